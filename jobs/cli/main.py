"""Run the command `untold`. An error is one line, and `--debug` shows its traceback."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

from untold.jobs.cli.arguments import COMPLETE, DEBUG
from untold.jobs.cli.commands import COMMANDS
from untold.jobs.cli.values import with_hint
from untold.udfs.errors import UserError
from untold.udfs.redaction import redact, redact_words

# docs/contract.md, "Exit codes". Shells use 130 for an interrupt: 128 plus the number of SIGINT
MENDABLE, WRONG_USE, INTERRUPTED = 1, 2, 130
# Maximum characters of an unexpected error
LONGEST = 500


# The groups of commands in the help
GROUPS = {
    "Score": ("demo", "inspect", "plan", "score", "generate", "nightly"),
    "Look": ("show", "report", "open", "export"),
    "Search": ("index", "search"),
    "Study": (
        *("compare", "estimate", "sample-size", "calibrate", "meta-evaluate", "combine-studies"),
        *("sweep", "curve", "condense"),
    ),
    "Run": ("trend", "prune", "completion", "answer", "batches", "doctor", "package", "schema", "prompts"),
}


class _CommandGroup(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group, with one width for all names."""
        width = max(map(len, self.commands)) + formatter.current_indent
        for heading, names in GROUPS.items():
            rows = [(f"{name:{width}}", self.commands[name].get_short_help_str(formatter.width)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the commands in their own order. The default sorts them."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word. Raise UsageError for an unknown word, with the nearest command."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(with_hint(f"No such command {args[0]!r}", args[0], self.commands))
        return super().resolve_command(ctx, args)


UNTOLD = click.version_option(package_name="untold", message="%(prog)s %(version)s")(
    _CommandGroup(
        "untold",
        help="Scores the comprehensiveness of LLM answers against their contexts.",
        commands=COMMANDS,
        subcommand_metavar="COMMAND ...",
        no_args_is_help=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: docs/contract.md, "Exit codes". Raise SystemExit for help and wrong use.

    The `main` of click is not used, because it handles interrupts and closed pipes differently.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if asked := os.environ.get(COMPLETE):
        return shell_complete(UNTOLD, {}, "untold", COMPLETE, asked)
    # Schedulers stop jobs with SIGTERM. An interrupt leaves a run resumable
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        # A copy, because click removes words from it
        with UNTOLD.make_context("untold", list(given)) as context:
            # Errors show the command line, without possible keys
            context.obj = shlex.join(["untold", *redact_words(given)])
            try:
                return _guarded(context)
            finally:
                if session := sys.modules.get("untold.jobs.run.session"):
                    session.end_archive(whole=False)
    except click.exceptions.Exit as ended:
        raise SystemExit(ended.exit_code) from None
    except click.UsageError as error:
        program = error.ctx.command_path if error.ctx else "untold"
        print(f"{program}: {redact(_describe_usage(error))}\ntry '{program} --help'", file=sys.stderr)
        raise SystemExit(WRONG_USE) from None


def _describe_usage(error: click.UsageError) -> str:
    """Return the message of click, with only the nearest option for an unknown option."""
    match error:
        case click.NoSuchOption(option_name=word):
            parameters = error.ctx.command.params if error.ctx else []
            return with_hint(error.message.rstrip("."), word, [name for one in parameters for name in one.opts])
    return error.format_message()


def _guarded(context: click.Context) -> int:
    """Run the command of a context. Print its errors as redacted lines, and return its exit code.

    A closed pipe is not an error, because the reader has all the output that it needs.
    """
    try:
        return int(UNTOLD.invoke(context))
    except (click.UsageError, click.exceptions.Exit):
        raise
    except BrokenPipeError:
        # Python flushes standard output again when it exits, which would fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, Exception) as error:
        for line in _describe(error, context.obj):
            print(redact(f"untold: {line}"), file=sys.stderr)
        if DEBUG in context.meta:
            print(redact(traceback.format_exc()), file=sys.stderr, end="")
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else MENDABLE


def _describe(error: BaseException, command: str) -> list[str]:
    """Return the lines of an error: the command to continue, the remedy, or the kind of an unexpected error."""
    if isinstance(error, KeyboardInterrupt):
        return [f"interrupted. The completions are kept. Continue with: {command}"]
    if isinstance(error, UserError):
        return str(error).splitlines()
    from untold.jobs.run.error_messages import explain, root_cause

    return [explain(error) or f"{root_cause(error)[:LONGEST]}; --debug shows more"]
