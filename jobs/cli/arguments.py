"""Define the options that several subcommands share, and the class of a subcommand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, fields, replace
from datetime import UTC, date, datetime
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from untold.jobs.cli import values
from untold.jobs.cli.values import OneOf, with_hint
from untold.jobs.inputs import options as records
from untold.jobs.inputs.options import ReadOptions, RunOptions
from untold.udfs.errors import ENGINE, Needs, require, require_of
from untold.udfs.redaction import redact, without_secrets
from untold.udfs.schemes import STORES, scheme_of

if TYPE_CHECKING:
    from untold.jobs.inputs.sampling import Draw
    from untold.jobs.metrics.scoring import ScoreRequest
    from untold.jobs.run.terminal import Display, Page
    from untold.jobs.settings.loading import Resolved
    from untold.jobs.settings.model import Settings
    from untold.udfs.samples.adapters import Adapter


Names = Callable[[], Iterable[str]]
# The metavars of paths
PATHS = frozenset({"PATH", "DIR", "FILE", "F", "RUN", "RUN...", "STUDY...", "SPOOL"})
# A key of the context's meta, which all contexts of a command line share
DEBUG = "untold.debug"
# A shell requests completions with this variable
COMPLETE = "_UNTOLD_COMPLETE"
# The needs of a command that scores, and the modules of pictures
SCORES: Needs = {ENGINE: ()}
PLOTS = ("matplotlib", "networkx")
Options = SimpleNamespace  # the values of a command line by the names of its options, and `command_line`


class Reader(click.ParamType):  # type: ignore[type-arg]  # click before 8.4 has no such argument
    """Read the text of an option with a function. A ValueError of the function is wrong use of the command.

    A shell completes `names`, the words of `OneOf`, or paths.
    """

    name = "text"

    def __init__(self, read: Callable[[str], Any], metavar: str, names: Names | None) -> None:
        self._read = values.path if metavar in PATHS and read is str else read
        self._names = (lambda: read.words) if names is None and isinstance(read, OneOf) else names
        self._metavar = metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that `read` returns. A default that is not a text stays unchanged."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the completions of a word, or of the last word of a LIST."""
        if self._names is None:
            kind = "dir" if self._metavar == "DIR" else "file"
            return [CompletionItem(incomplete, kind)] if self._metavar in PATHS else []
        before, comma, last = incomplete.rpartition(",") if self._metavar == "LIST" else ("", "", incomplete)
        return [CompletionItem(f"{before}{comma}{word}") for word in self._names() if word.startswith(last)]


class Option(click.Option):
    """An option with a value. Its help ends with `names()`, which are loaded only to show the help."""

    def __init__(
        self,
        flag: str,
        metavar: str,
        help: str,
        *,
        read: Callable[[str], Any] = str,
        names: Names | None = None,
        to: str | None = None,
        completed_by: Names | None = None,
        **more: Any,
    ) -> None:
        kind = Reader(read, metavar, completed_by or names)
        super().__init__([flag, to] if to else [flag], metavar=metavar, help=help, type=kind, **more)
        self._names = names

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the lines of the help, with the names: their import is slow."""
        if self._names is not None:
            # The help may be shown several times
            self.help, self._names = f"{self.help}: {', '.join(self._names())}", None
        return super().get_help_record(ctx)


def flag(name: str, help: str) -> click.Option:
    """Return an option without a value."""
    return click.Option([name], is_flag=True, help=help)


class Argument(click.Argument):
    """A positional argument. The help lists it with the options, and with `names()` as an option."""

    def __init__(
        self,
        name: str,
        metavar: str,
        help: str,
        *,
        many: bool = False,
        required: bool = True,
        read: Callable[[str], Any] = str,
        names: Names | None = None,
    ) -> None:
        kind = Reader(read, metavar, names)
        super().__init__([name], metavar=metavar, required=required, nargs=-1 if many else 1, type=kind)
        self._help, self._names = help, names

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return the line of the help. From version 8.5 on, click does this itself."""
        return str(self.metavar), f"{self._help}: {', '.join(self._names())}" if self._names else self._help


class Command(click.Command):
    """A subcommand: `run` receives the values of its options and returns the exit code.

    `needs` are the extras of the command (`udfs.errors.require`).
    """

    def __init__(
        self,
        help: str,
        run: Callable[[Options], int],
        parameters: Sequence[click.Parameter] = (),
        needs: Needs = MappingProxyType({}),
    ) -> None:
        # Only the context receives it, so that no job has a parameter for it
        debug = click.Option(["--debug"], is_flag=True, expose_value=False, callback=_show_all, help="show tracebacks")
        super().__init__(None, help=help, short_help=help, callback=None, params=[*parameters, debug])
        self._run, self.needs = run, needs

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words. An error names this command, also if an option lacks its value."""
        with _named(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> int:
        """Run the command. An error in its use and a missing package name this command."""
        for extra, modules in self.needs.items():
            require(str(ctx.info_name), extra, *modules)
        # The import of the settings is slow
        if "overrides" in ctx.params and any(name.startswith("UNTOLD_") for name in os.environ):
            from untold.jobs.settings.layers import unknown_variables

            for line in unknown_variables(os.environ):
                print(redact(f"untold: warning: {line}"), file=sys.stderr)
        with _named(ctx):
            try:
                return self._run(Options(**ctx.params, command_line=ctx.obj))
            except ModuleNotFoundError as error:
                # A command that only sometimes needs the engine, such as `estimate`
                require_of(error, str(ctx.info_name))
                raise


@contextmanager
def _named(ctx: click.Context) -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


def _show_all(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    """Show tracebacks and the output of Spark's JVM."""
    if given:
        from untold.jobs.run.session import SHOW_JVM

        ctx.meta[DEBUG] = True
        SHOW_JVM.set()


def _declared(record: type) -> list[tuple[Field[Any], records.OptionText, str]]:
    """Return the fields of a record that are options, with their texts and the names of their parameters.

    A flag for a field with the default True has the opposite value and its own name: `--no-wait` is `no_wait`.
    """
    declared = [(one, one.metadata["option"]) for one in fields(record) if "option" in one.metadata]
    return [
        (one, text, text.words.removeprefix("--").replace("-", "_") if one.default is True else one.name)
        for one, text in declared
    ]


def options_of(record: type, *names: str) -> list[click.Parameter]:
    """Return the options that a record of `jobs.inputs.options` declares, or only the options of these fields."""
    found: list[click.Parameter] = []
    for one, text, name in _declared(record):
        word, _, metavar = text.words.partition(" ")
        required = one.default is MISSING and one.default_factory is MISSING
        if names and one.name not in names:
            continue
        if not word.startswith("--"):
            found.append(Argument(name, word, text.help, required=required))
        elif not metavar:
            found.append(click.Option([word, name], is_flag=True, help=text.help))
        else:
            read = OneOf(text.choices) if text.choices else getattr(values, text.read) if text.read else str
            more: dict[str, Any] = {"required": required, "multiple": one.default == ()}
            # To click, the default None is a value
            more |= {} if one.default in (MISSING, None, ()) else {"default": one.default}
            more |= {"completed_by": getattr(values, text.completed_by)} if text.completed_by else {}
            found.append(Option(word, metavar, text.help, read=read, to=name, **more))
    return found


def values_of(record: type, options: Options) -> dict[str, Any]:
    """Return the fields of a record that a command line has, with absolute folders."""
    found = {}
    for one, text, name in _declared(record):
        value = vars(options).get(name)
        if value is None:
            continue
        value = absolute(value) if text.words.endswith(" DIR") else value
        found[one.name] = not value if one.default is True else value
    return found


REQUEST_FLAGS = options_of(RunOptions, "retry_failed", "wait", "lock")
RUN_FLAGS = options_of(RunOptions, "overwrite", "retry_failed", "wait", "lock", "poll")
LIMIT = options_of(RunOptions, "limit")
READ_OPTIONS = options_of(ReadOptions)
JSON = flag("--json", "print JSON")
SETTINGS_FILE = options_of(records.SettingsOptions, "config", "overrides")


def settings_options(*, several: bool = False) -> list[click.Parameter]:
    """Return the options of every command with settings. `several` allows several endpoints."""
    found = options_of(records.SettingsOptions)
    for one in found:
        if several and one.name == "endpoint":
            one.multiple, one.help = True, f"{one.help}; repeatable"
    return found


CONFLICTBANK_OPTION = Option(
    "--conflictbank",
    "HOW",
    "evaluation of S_X of a context: by_source (default) uses one evaluation, alone evaluates each context separately",
    read=OneOf(("by_source", "alone")),
)
DRAW = options_of(records.DrawOptions)
REPORTING = options_of(records.ReportingOptions)


def input_options(*, output: bool) -> list[click.Parameter]:
    """Return the options of samples, output and metrics. `output` requires an output."""
    return [
        Option("--input", "PATH", "samples: a file, a folder or a glob", required=True),
        Option("--output", "DIR", "folder of the tables", required=output),
        Option(
            "--metric", "LIST", "metrics, by comma", names=values.known_metrics, read=values.metric_names, required=True
        ),
        Option("--format", "NAME", "a known data set", names=values.known_formats),
        CONFLICTBANK_OPTION,
        *READ_OPTIONS,
        *DRAW,
        *LIMIT,
    ]


def data_set(name: str | None, conflictbank: str | None) -> str | None:
    """Return the adapter of a data set. Raise UsageError for --conflictbank with another data set.

    >>> data_set("conflictbank", "alone")
    'conflictbank_alone'
    """
    if conflictbank is not None and name != "conflictbank":
        raise click.UsageError("--conflictbank requires --dataset conflictbank")
    return f"{name}_alone" if conflictbank == "alone" else name


def bars_of(options: Options) -> dict[str, float]:
    """Return the minimum means of `--fail-under` by metric. Raise UsageError for a metric that `--metric` lacks."""
    given = {metric: bar for one in options.fail_under for metric, bar in one.items()}
    unknown = [metric for metric in given if metric not in options.metric]
    if unknown:
        message = f"--metric has no {', '.join(unknown)}; it has {', '.join(options.metric)}"
        raise click.BadParameter(with_hint(message, unknown[0], options.metric), param_hint="'--fail-under'")
    return given


def draw_of(options: Options, settings: Settings) -> Draw | None:
    """Return the draw of `--random`, with the seed of `--seed` or the settings. The partitioning does not change it."""
    from untold.jobs.inputs.sampling import Draw

    rows, seed = (getattr(options, name, None) for name in ("random", "seed"))
    stratify: tuple[str, ...] = getattr(options, "stratify", None) or ()
    if stratify and not rows:
        raise click.UsageError("--stratify requires --random")
    return Draw(rows, settings.statistics.seed if seed is None else seed, stratify) if rows else None


def run_fields(options: Options, settings: Settings, read: ReadOptions) -> dict[str, Any]:
    """Return the fields of `RunRequest` that a command line has."""
    return {
        **values_of(RunOptions, options),
        "input": getattr(options, "input", None) or "",
        "output": absolute(options.output) if options.output else "",
        "settings": settings,
        "draw": draw_of(options, settings),
        "read": read,
        "command": options.command_line,
    }


def read_options(options: Options, known: Sequence[str]) -> ReadOptions:
    """Return the format of the files. Raise UsageError for a column that is not among the known columns."""
    for name in options.columns or {}:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "the names of this format are fixed"
            raise click.BadParameter(with_hint(f"no column {name}; {there}", name, known), param_hint="'--columns'")
    return ReadOptions(**values_of(ReadOptions, options))


def check_samples(options: Options, required: Sequence[str], adapter: Adapter | None = None) -> ReadOptions:
    """Return the format of `--input` after a check of its first rows, so that an error occurs before Spark starts.

    Raise SampleError and UsageError.
    """
    from untold.jobs.inputs.checking import check_input, known_columns

    read = read_options(options, known_columns(adapter))
    check_input(options.input, read, required, adapter)
    return read


def load(options: Options, **how: Any) -> Resolved:
    """Return the settings of a command line. how: further arguments of `load_settings`.

    Raise the errors of `load_settings`. A missing input is reported first, because it is the simpler error.
    """
    from untold.jobs.settings.loading import NoEndpointError, UnservedModelError

    try:
        return _load(options, **how)
    except (NoEndpointError, UnservedModelError):
        from untold.jobs.inputs.files import find_files
        from untold.jobs.lakehouse.inputs import table_named
        from untold.udfs.samples.files import is_remote

        path = getattr(options, "input", None)
        # Object stores and tables need settings
        if path and "{date}" not in path and not is_remote(path) and table_named(path) is None:
            find_files(path)
        raise


def _load(options: Options, **how: Any) -> Resolved:
    from untold.jobs.inference.backends import local_model
    from untold.jobs.metrics import JUDGED_METRICS
    from untold.jobs.settings.loading import load_settings

    given = getattr(options, "metric", None)
    metrics = {given} if isinstance(given, str) else set(given or ())
    # The judge of the package scores all of the metrics
    judged = bool(metrics) and metrics <= set(JUDGED_METRICS)
    resolved = load_settings(
        options.config,
        options.overrides,
        options.endpoint,
        os.environ,
        profile=options.profile,
        local_installed=local_model.installed,
        **{"judged": judged, **how},
    )
    # This process and its children open file systems with these variables
    os.environ.update(resolved.settings.storage.environment)
    texts = [text for value in vars(options).values() for text in (value if isinstance(value, tuple) else [value])]
    if remote := [text for text in texts if type(text) is str and scheme_of(text) in STORES]:
        from untold.jobs.run.connectors import with_packages

        return replace(resolved, settings=with_packages(resolved.settings, remote))
    return resolved


def load_or_none(options: Options, *, asks: bool = True) -> Resolved | None:
    """Return the settings of a command, or None if no endpoint serves them."""
    from untold.jobs.settings.loading import NoEndpointError, UnservedModelError

    try:
        return _load(options, asks=asks)
    except (NoEndpointError, UnservedModelError):
        return None


def load_given(options: Options) -> Settings:
    """Return only the settings of a command line, for a command that continues a run."""
    from untold.jobs.settings.loading import load_given

    given = load_given(options.config, options.overrides, os.environ)
    os.environ.update(given.storage.environment)
    return given


def settings_without_endpoint(options: Options) -> Settings:
    """Return the settings of a command that needs no endpoint.

    Settings are validated with their endpoint. An address without calls therefore replaces a missing endpoint.
    """
    resolved = load_or_none(options, asks=False)
    if resolved is None:
        overrides = [*options.overrides, "llm.base_url=http://localhost", "llm.model=any"]
        resolved = load(Options(**{**vars(options), "overrides": overrides}), asks=False)
    return resolved.settings


def score_request(options: Options, resolved: Resolved) -> ScoreRequest:
    """Return the request of a command that runs or plans metrics, without reading its input.

    Raise SampleError and UsageError.
    """
    from untold.jobs.inputs.checking import adapter_of, known_columns
    from untold.jobs.metrics.scoring import ScoreRequest

    layout = data_set(options.format, options.conflictbank)
    run = run_fields(options, resolved.settings, read_options(options, known_columns(adapter_of(layout))))
    return ScoreRequest(**run, format=layout, metrics=options.metric, embedded=resolved.embedded)


def with_tables(request: ScoreRequest, options: Options) -> ScoreRequest:
    """Add the lakehouse tables and the first version of the input to a request. Raise LakehouseError.

    The date of the tables is `--date`, or the date of the first start, which the output's manifest has.
    """
    request = replace(request, since=options.since, refresh=options.since is not None, day=options.date)
    if options.output_format == "parquet":
        return request
    from untold.jobs.lakehouse.inputs import open_lake
    from untold.jobs.run.manifest import read_manifest

    earlier = None if options.overwrite or options.date else read_manifest(request.output)
    known = (earlier or {}).get("lakehouse", {}).get("date")
    day = options.date or (date.fromisoformat(known) if known else datetime.now(UTC).date())
    return replace(request, lake=open_lake(options.output_format, request.settings.lakehouse, day))


def display() -> Display:
    """Return the display of a run's progress."""
    from untold.jobs.run.terminal import Display

    return Display()


def absolute(path: str) -> str:
    """Return an absolute path or URI, as `udfs.storage.absolute`."""
    from untold.udfs.storage import absolute

    return absolute(path)


def run_job(job: Callable[..., Any], request: Any, show: Callable[[Any, Any], None]) -> int:
    """Run a job, report its end, and return its exit code. `show` accepts the outcome and the request."""
    with display() as shown:
        outcome = job(request, shown)
    report_outcome(lambda: show(outcome, request), outcome.message)
    return int(outcome.exit_code)


def report_outcome(show: Callable[[], None], message: str | None) -> None:
    """Print the result of a run with `show`, and its message on standard error.

    A closed pipe does not change the result, because the run is complete.
    """
    # `untold score ... | head` closes the pipe early
    with suppress(BrokenPipeError):
        show()
        sys.stdout.flush()
        for line in (message or "").splitlines():
            print(redact(f"untold: {line}"), file=sys.stderr)


def print_json(value: Any) -> None:
    """Print a value as JSON. Values that JSON does not have, such as dates, become text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def show_with(options: Options, show: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return the function that prints the outcome of a run: `show`, or with --json the facts of the run."""

    def show_facts(outcome: Any, request: Any) -> None:
        from untold.jobs.run.notifications import facts_of

        facts = {"output": request.output, **facts_of(outcome.manifest, outcome.exit_code)}
        if "systems" in outcome.manifest:
            facts["systems"] = outcome.manifest["systems"]
        print_json(without_secrets(facts | {"message": outcome.message}))

    return show_facts if options.json else show


def print_result(options: Options, value: Any, lines: Callable[[Page], Iterable[str]]) -> None:
    """Print a value as JSON with `--json`, otherwise its lines."""
    from untold.jobs.run.terminal import page_of, print_lines

    if options.json:
        print_json(value)
    else:
        print_lines(lines(page_of(sys.stdout)))
