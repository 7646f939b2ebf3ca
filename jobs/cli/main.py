"""The command `untold`: one subcommand a job. Errors are one line each; `--debug` shows the traceback."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from jobs.cli.commands import COMMANDS, USER_ERRORS
from jobs.run.locks import LockedError
from jobs.run.session import SHOW_JVM
from udfs.redaction import redact, redact_words


class _Parser(argparse.ArgumentParser):
    """Names the nearest known flag where one is not known."""

    _given_flags: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given_flags = [word.split("=")[0] for word in args or () if word.startswith("--")]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> None:  # type: ignore[override]
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = [name for name in self._given_flags if name not in flags]
        near = get_close_matches(unknown[0], flags, n=1) if unknown else []
        if near:
            named = "" if unknown[0] in message else f"{unknown[0]} is unknown, "
            message += f"; {named}did you mean {near[0]}?"
        self.exit(2, f"{self.prog}: {redact(message)}\ntry '{self.prog} --help'\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = _Parser(prog="untold", description="Scores the comprehensiveness of LLM answers against their contexts.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        command.add_arguments(own)
        own.add_argument("--debug", action="store_true", help="show tracebacks")
        own.set_defaults(run=command.run, parser=own)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and gives its exit code (`contract.md` lists them)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    options, unknown = parser.parse_known_args(given)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.command_line = shlex.join(["untold", *redact_words(given)])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.debug:
        SHOW_JVM.set()
    return _guarded(options.run, options)


def _guarded(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    try:
        return run(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, Exception) as error:
        for line in _describe(error, options.command_line):
            print(redact(f"untold: {line}"), file=sys.stderr)
        if options.debug:
            print(redact(traceback.format_exc()), file=sys.stderr, end="")
        return 130 if isinstance(error, KeyboardInterrupt) else 1


def _describe(error: BaseException, command: str) -> list[str]:
    if isinstance(error, KeyboardInterrupt):
        return [f"interrupted; what was answered is kept, continue with: {command}"]
    if isinstance(error, (*USER_ERRORS, LockedError)):
        return str(error).splitlines()
    return [f"{_one_line(error)}; --debug shows more"]


def _one_line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        # An error of the JVM asks it for its text, and the JVM may be gone
        text = "Spark's JVM is gone; start again"
    first = next((line for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:500]
