"""What the subcommands share: the form of a command, and arguments that several of them have."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from jobs.asking import local_model
from jobs.inputs.samples import FORMATS
from jobs.metrics import METRICS
from jobs.settings.layers import Layer
from jobs.settings.loading import NoEndpointError, Resolved, load_settings
from jobs.settings.model import Settings
from udfs.redaction import redact


@dataclass(frozen=True)
class Command:
    """A subcommand: its help line, its arguments, and what runs it."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_settings(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """The arguments of every command that runs or plans a metric; `several` endpoints for one that runs on each."""
    parser.add_argument("--config", metavar="F", help="a settings file (YAML)")
    parser.add_argument("--set", metavar="K=V", action="append", default=[], dest="overrides", help="one setting")
    kept = "append" if several else "store"
    more = "; repeatable" if several else ""
    parser.add_argument("--endpoint", metavar="NAME", action=kept, help=f"a preset: openai, vllm, local, ...{more}")


def load(
    options: argparse.Namespace, *, system: Layer | None = None, demo: bool = False, asks: bool = True
) -> Resolved:
    """The settings of a command line, of a system where one is given; a command that asks nothing needs no key."""
    return load_settings(
        options.config,
        options.overrides,
        options.endpoint,
        os.environ,
        system=system,
        demo=demo,
        asks=asks,
        local_installed=local_model.installed,
    )


def add_input(parser: argparse.ArgumentParser, *, output: bool) -> None:
    """The arguments of samples, output and metrics."""
    parser.add_argument("--input", metavar="PATH", required=True, help="samples: a file, a folder or a glob")
    parser.add_argument("--output", metavar="DIR", required=output, help="where the tables go")
    known = ", ".join(METRICS)
    parser.add_argument(
        "--metric", metavar="LIST", required=True, type=metric_names, help=f"metrics, by comma: {known}"
    )
    parser.add_argument("--format", metavar="NAME", help=f"a known data set: {', '.join(FORMATS)}")
    parser.add_argument("--limit", metavar="N", type=count, help="only the first N samples by sample_id")


def names(text: str) -> tuple[str, ...]:
    """The names of a list by comma, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def metric_names(text: str) -> tuple[str, ...]:
    """The metrics of a list by comma. Raises ArgumentTypeError for what is none."""
    found = names(text)
    unknown = [name for name in found if name not in METRICS]
    if unknown or not found:
        raise argparse.ArgumentTypeError(f"no metric {', '.join(unknown) or text!r}; there are {', '.join(METRICS)}")
    return found


def count(text: str) -> int:
    """A number from 1. Raises ArgumentTypeError for another text."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that asks and writes tables."""
    parser.add_argument("--overwrite", action="store_true", help="replace the tables of another run in --output")
    parser.add_argument("--retry-failed", action="store_true", help="ask lasting failures again")
    parser.add_argument("--no-wait", action="store_true", help="refuse instead of waiting for another run")


def tell_outcome(show: Callable[[], None], message: str | None) -> None:
    """Shows how a run ended, and the line that says why it ended early; `show` prints to standard output.

    The run is over and written: a closed pipe changes nothing of how it ended.
    """
    with suppress(BrokenPipeError):
        show()
        sys.stdout.flush()
        if message:
            print(redact(f"untold: {message}"), file=sys.stderr)


def settings_without_endpoint(options: argparse.Namespace) -> Settings:
    """The settings of a command that needs no endpoint, with or without one."""
    try:
        return load(options, asks=False).settings
    except NoEndpointError:
        overrides = [*options.overrides, "llm.base_url=http://localhost", "llm.model=any"]
        return load_settings(options.config, overrides, None, os.environ, local_installed=lambda: False).settings
