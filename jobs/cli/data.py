"""The subcommands between Untold and other tools: inspect, export and completion."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from click.shell_completion import get_completion_class

from untold.jobs.cli.arguments import COMPLETE, READ_OPTIONS, Argument, Command, Option, Options, flag, read_options
from untold.jobs.cli.values import known_formats, one_of


def _inspect(options: Options) -> int:
    """What files are taken for; 1 where nothing of what was read can be used."""
    from untold.jobs.inputs.checking import adapter_of, known_columns
    from untold.jobs.inspect import inspect, inspection_lines
    from untold.jobs.run.terminal import page_of, print_lines

    read = read_options(options, known_columns(adapter_of(options.format)))
    found = inspect(options.file, options.format, read)
    if options.json:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        print_lines(inspection_lines(found, page_of(sys.stdout)))
    return 0 if found.usable else 1


def _export(options: Options) -> int:
    """A run's scores for another tool, in a file or on standard output."""
    from untold.jobs.export import MLFLOW, TEXTS, WRITERS, export, log_to_mlflow, note_of, write_csv
    from untold.jobs.results import open_run

    if (options.to is None) == (options.trec is None):
        raise click.UsageError("give one of --to FORM and --trec FILE")
    if options.trec is not None:
        options = Options(**{**vars(options), "to": "trec", "output": options.trec})
    if options.to == MLFLOW:
        if options.output is not None:
            raise click.UsageError("--to mlflow takes no --output: MLFLOW_TRACKING_URI says where it is logged")
        experiment, logged = log_to_mlflow(open_run(options.run))
        print(f"logged to MLflow as run {logged} of experiment {experiment}")
        return 0
    if options.output is None and options.to not in TEXTS:
        raise click.UsageError(f"--to {options.to} needs --output FILE")
    found = open_run(options.run)
    if options.output is not None:
        print("\n".join(f"written to {path}" for path in export(found, options.to, options.output)))
    elif options.to == "csv":
        # What reads a pipe is no Excel, and takes a mark for a part of the first name
        write_csv(found, sys.stdout.buffer, mark=False)
    else:
        WRITERS[options.to](found, sys.stdout.buffer)
    if note := note_of(found, options.to):
        print(f"untold: {note}", file=sys.stderr)
    return 0


def _completion(options: Options) -> int:
    """The script by which a shell completes commands, options, metrics, stages and settings."""
    kind = get_completion_class(options.shell)
    root = click.get_current_context().find_root().command
    if kind is not None:
        print(kind(root, {}, "untold", COMPLETE).source())
    return 0


SHELLS = ("bash", "zsh", "fish")
EXPORTS = ("csv", "xlsx", "parquet", "jsonl", "mlflow", "trec", "ragchecker", "trec_rag_nuggets")
COMMANDS: dict[str, click.Command] = {
    "inspect": Command(
        "show what files are taken for: format, columns, first rows, what is wrong",
        _inspect,
        [
            Argument("file", "FILE", "samples: a file, a folder or a glob"),
            Option(
                "--format", "NAME", "a known data set; by default the one that the first row is of", names=known_formats
            ),
            *READ_OPTIONS,
            flag("--json", "print JSON"),
        ],
    ),
    "export": Command(
        "write a run's scores for other tools, one row a sample",
        _export,
        [
            Argument("run", "RUN", "the output of a run"),
            Option("--to", "FORM", ", ".join(EXPORTS), read=one_of(EXPORTS)),
            Option("--output", "FILE", "the file; forms of text go to standard output without one"),
            Option(
                "--trec", "FILE", "the same as --to trec --output FILE; a file a system where several answer one topic"
            ),
        ],
    ),
    "completion": Command(
        "print a script that completes commands in bash, zsh or fish",
        _completion,
        [Argument("shell", "SHELL", ", ".join(SHELLS), read=one_of(SHELLS))],
    ),
}
