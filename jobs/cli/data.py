"""The subcommands between Untold and other tools: inspect."""

from __future__ import annotations

import json
import sys

import click

from untold.jobs.cli.arguments import READ_OPTIONS, Argument, Command, Option, Options, flag, read_options
from untold.jobs.cli.values import known_formats


def _inspect(options: Options) -> int:
    """What files are taken for; 1 where nothing of what was read can be used."""
    from untold.jobs.inputs.checking import adapter_of, known_columns
    from untold.jobs.inspect import inspect, inspection_lines
    from untold.jobs.run.terminal import page_of, print_lines

    read = read_options(options, known_columns(adapter_of(options.format)))
    found = inspect(options.file, options.format, read)
    if options.json:
        print(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
    else:
        print_lines(inspection_lines(found, page_of(sys.stdout)))
    return 0 if found.usable else 1


COMMANDS: dict[str, click.Command] = {
    "inspect": Command(
        "show what files are taken for: format, columns, first rows, what is wrong",
        _inspect,
        [
            Argument("file", "FILE", "samples: a file, a folder or a glob"),
            Option("--format", "NAME", "a known data set; by default the one that the first row is of", names=known_formats),
            *READ_OPTIONS,
            flag("--json", "print JSON"),
        ],
    ),
}
