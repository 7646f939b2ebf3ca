"""The options that several subcommands share, and the class of a subcommand."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from untold.jobs.cli.values import (
    PATHS,
    Names,
    bars,
    column_pairs,
    completes,
    count,
    delimiter,
    encoding,
    known_formats,
    known_metrics,
    metric_names,
    names,
    one_of,
    path,
    preset_names,
    setting_keys,
    version,
    with_hint,
    words_of,
)
from untold.udfs.errors import require
from untold.udfs.redaction import redact
from untold.udfs.schemes import STORES, scheme_of

if TYPE_CHECKING:
    from untold.jobs.inputs.files import ReadOptions
    from untold.jobs.inputs.sampling import Draw
    from untold.jobs.metrics.request import ScoreRequest
    from untold.jobs.settings.layers import Layer
    from untold.jobs.settings.loading import Resolved
    from untold.jobs.settings.model import Settings
    from untold.udfs.samples.adapters import Adapter


# In the context's meta, which every context of one command line shares
DEBUG = "untold.debug"
# The variable by which a shell asks what a word may be
COMPLETE = "_UNTOLD_COMPLETE"
Options = SimpleNamespace  # the values of a command line by the names of its options, and `command_line` itself


class Reader(click.ParamType):  # type: ignore[type-arg]  # click before 8.4 has no such argument
    """Reads an option's text by a function; what that says in a ValueError is wrong use of the command."""

    name = "text"

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value as `read` gives it; what is no text, a default for one, passes as it is."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Option(click.Option):
    """An option with a value. Its help ends with `names()`, which are not asked for before the help is shown."""

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
        kind = Reader(path if metavar in PATHS and read is str else read)
        complete = completes(completed_by or names or words_of(read), metavar)
        super().__init__(
            [flag, to] if to else [flag], metavar=metavar, help=help, type=kind, shell_complete=complete, **more
        )
        self._names = names

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option's lines of the help, with its names asked for only now: they import registries."""
        if self._names is not None:
            # Once, however often the help is shown
            self.help, self._names = f"{self.help}: {', '.join(self._names())}", None
        return super().get_help_record(ctx)


def flag(name: str, help: str) -> click.Option:
    """An option without a value."""
    return click.Option([name], is_flag=True, help=help)


class Argument(click.Argument):
    """A positional argument, listed with the options in the help; of `many` there is at least one."""

    def __init__(
        self,
        name: str,
        metavar: str,
        help: str,
        *,
        many: bool = False,
        required: bool = True,
        read: Callable[[str], Any] = str,
    ) -> None:
        kind = Reader(path if metavar in PATHS else read)
        complete = completes(words_of(read), metavar)
        super().__init__(
            [name], metavar=metavar, required=required, nargs=-1 if many else 1, type=kind, shell_complete=complete
        )
        self._help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """The argument's line of the help, which click has of itself from 8.5 on."""
        return str(self.metavar), self._help


class Command(click.Command):
    """A subcommand: `run` gets the values of its parameters and gives the exit code.

    The help ends with `names`, which its positional argument may be. `needs` are modules of the extra `study`, without
    which it does not start.
    """

    def __init__(
        self,
        help: str,
        run: Callable[[Options], int],
        parameters: Sequence[click.Parameter] = (),
        *,
        names: Names | None = None,
        needs: Sequence[str] = (),
    ) -> None:
        # On every command and told to the context alone, so that no job has a parameter for it
        debug = click.Option(["--debug"], is_flag=True, expose_value=False, callback=_show_all, help="show tracebacks")
        super().__init__(None, help=help, short_help=help, callback=None, params=[*parameters, debug])
        self._run, self._names, self._needs = run, names, needs

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; what lacks its value is wrong use of this command, where click would name none."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def invoke(self, ctx: click.Context) -> int:
        """Runs the command with its options by name; what it says of their use is shown under its name."""
        require(str(ctx.info_name), "study", *self._needs)
        # Readers of settings are imported for those who have such variables alone
        if "overrides" in ctx.params and any(name.startswith("UNTOLD_") for name in os.environ):
            _warn_of_variables()
        try:
            return self._run(Options(**ctx.params, command_line=ctx.obj))
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The names that the positional argument may be, at the end of the help."""
        if self._names is not None:
            metavar = next(one for one in self.params if isinstance(one, click.Argument)).metavar
            formatter.write_paragraph()
            formatter.write_text(f"{metavar}: {', '.join(self._names())}")


def _show_all(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    """Marks the context for whoever shows its error, and has Spark's JVM heard."""
    if given:
        from untold.jobs.run.session import SHOW_JVM

        ctx.meta[DEBUG] = True
        SHOW_JVM.set()


def _warn_of_variables() -> None:
    """Names the variables of the environment that look like ours and set nothing, a line each."""
    from untold.jobs.settings.layers import unknown_variables

    for line in unknown_variables(os.environ):
        print(redact(f"untold: warning: {line}"), file=sys.stderr)


def bars_of(options: Options) -> dict[str, float]:
    """The least mean by metric of all `--fail-under`. Raises UsageError for a metric that the command does not run."""
    given = {metric: bar for one in options.fail_under for metric, bar in one.items()}
    unknown = [metric for metric in given if metric not in options.metric]
    if unknown:
        message = f"--metric has no {', '.join(unknown)}; it has {', '.join(options.metric)}"
        raise click.BadParameter(with_hint(message, unknown[0], options.metric), param_hint="'--fail-under'")
    return given


def run_fields(options: Options, settings: Settings, read: ReadOptions) -> dict[str, Any]:
    """The fields of `RunRequest` as a command line gives them; an option that the command lacks is one not given."""
    from untold.jobs.run.output import absolute

    given = vars(options)
    return {
        "input": given.get("input") or "",
        "output": absolute(options.output) if options.output else "",
        "settings": settings,
        "limit": given.get("limit"),
        "draw": draw_of(options, settings),
        "read": read,
        "overwrite": options.overwrite,
        "retry_failed": given.get("retry_failed", False),
        "wait": not given.get("no_wait", False),
        "lock": not given.get("no_lock", False),
        "poll": not given.get("no_poll", False),
        "command": options.command_line,
    }


def settings_options(*, several: bool = False) -> list[click.Parameter]:
    """The options of every command that runs or plans a metric; `several` endpoints for one that runs on each."""
    more = "; repeatable" if several else ""
    return [
        Option("--config", "F", "a settings file (YAML)"),
        Option(
            "--set", "KEY=VALUE", "one setting; repeatable", to="overrides", multiple=True, completed_by=setting_keys
        ),
        Option(
            "--endpoint",
            "NAME",
            f"a preset: openai, vllm, local, ...{more}",
            multiple=several,
            completed_by=preset_names,
        ),
        Option("--profile", "NAME", "settings beneath your own: published, as in the papers"),
    ]


CONFLICTBANK_WAYS = ("by_source", "alone")
_WAYS = "S_X of a context: by_source, of one evaluation (the default), or alone, each context evaluated by itself"
CONFLICTBANK_OPTION = Option("--conflictbank", "HOW", _WAYS, read=one_of(CONFLICTBANK_WAYS))
RANDOM_OPTION = Option("--random", "N", "N rows of the input at random (statistics.seed), by hash", read=count)
STRATIFY_OPTION = Option(
    "--stratify", "LIST", "columns by which --random gives each group its share, at least one", read=names
)


def data_set(name: str | None, conflictbank: str | None) -> str | None:
    """The layout of a data set. Raises UsageError where the way of ConflictBank is given for another.

    >>> data_set("conflictbank", "alone")
    'conflictbank_alone'
    """
    if conflictbank is not None and name != "conflictbank":
        raise click.UsageError("--conflictbank goes with the data set conflictbank")
    return f"{name}_alone" if conflictbank == "alone" else name


def draw_of(options: Options, settings: Settings) -> Draw | None:
    """What `--random` asks for, by `--seed` where the command has one and it is given.

    None without `--random`. The same seed draws the same rows, whatever the partitioning.
    """
    from untold.jobs.inputs.sampling import Draw

    rows, seed = (getattr(options, name, None) for name in ("random", "seed"))
    stratify: tuple[str, ...] = getattr(options, "stratify", None) or ()
    if stratify and not rows:
        raise click.UsageError("--stratify goes with --random")
    return Draw(rows, settings.statistics.seed if seed is None else seed, stratify) if rows else None


def input_options(*, output: bool) -> list[click.Parameter]:
    """The options of samples, output and metrics; `output` says whether one must be given."""
    return [
        Option("--input", "PATH", "samples: a file, a folder or a glob", required=True),
        Option("--output", "DIR", "where the tables go", required=output),
        Option("--metric", "LIST", "metrics, by comma", names=known_metrics, read=metric_names, required=True),
        Option("--format", "NAME", "a known data set", names=known_formats),
        CONFLICTBANK_OPTION,
        *READ_OPTIONS,
        RANDOM_OPTION,
        STRATIFY_OPTION,
        Option("--limit", "N", "only the first N samples by sample_id", read=count),
    ]


READ_OPTIONS = [
    Option("--columns", "OURS=THEIRS,...", "what the files call our columns: query=question,...", read=column_pairs),
    Option("--encoding", "NAME", "encoding of CSV and JSON, such as cp1252 (utf-8)", read=encoding),
    Option("--delimiter", "CHAR", "delimiter of CSV (comma, tab or semicolon, by the header)", read=delimiter),
]


def read_options(options: Options, known: Sequence[str]) -> ReadOptions:
    """How the command line says that files are read. Raises UsageError for a column that is not among the known."""
    from untold.jobs.inputs.files import ReadOptions

    columns: dict[str, str] = options.columns or {}
    for name in columns:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "the names of this format are fixed"
            raise click.BadParameter(with_hint(f"no column {name}; {there}", name, known), param_hint="'--columns'")
    return ReadOptions(columns, options.encoding, options.delimiter)


def check_samples(options: Options, required: Sequence[str], adapter: Adapter | None = None) -> ReadOptions:
    """How the samples of `--input` are read, checked by the beginnings of their files.

    Before Spark starts, so that a wrong path or column is told at once. Raises SampleError and UsageError.
    """
    from untold.jobs.inputs.checking import check_input, known_columns

    read = read_options(options, known_columns(adapter))
    check_input(options.input, read, required, adapter)
    return read


ASKING_FLAGS = [
    flag("--retry-failed", "retry permanently failed requests"),
    flag("--no-wait", "refuse instead of waiting for another run"),
    flag("--no-lock", "lock nothing: for stores that know no locks, one run at a time"),
]
FAIL_UNDER = Option(
    "--fail-under",
    "METRIC=BAR",
    "exit with code 4 where the mean of a metric is below the bar (e2e=0.7); by comma or repeated",
    read=bars,
    multiple=True,
)
METRICS_FILE = Option(
    "--metrics-file", "FILE", "write the figures of the run for Prometheus (text format, also OpenMetrics)"
)
RUN_FLAGS = [
    flag("--overwrite", "replace the tables of another run in --output"),
    *ASKING_FLAGS,
    flag("--no-poll", "look at batches once, and end with code 7 while they go on"),
]


def load(options: Options, *, system: Layer | None = None, demo: bool = False, asks: bool = True) -> Resolved:
    """Return the settings of a command line; `asks=False` needs no key.

    `load_settings` says which layer wins. Raises its errors, and NoInputError if the input is missing too.
    """
    from untold.jobs.settings.loading import NoEndpointError, UnservedModelError

    try:
        return _load(options, system, demo, asks)
    except (NoEndpointError, UnservedModelError):
        # A wrong path is the simpler error, and is shown first
        _require_local_input(options)
        raise


def _load(options: Options, system: Layer | None, demo: bool, asks: bool) -> Resolved:
    from untold.jobs.inference.backends import local_model
    from untold.jobs.settings.loading import load_settings

    resolved = load_settings(
        options.config,
        options.overrides,
        options.endpoint,
        os.environ,
        profile=options.profile,
        system=system,
        demo=demo,
        asks=asks,
        local_installed=local_model.installed,
    )
    # A command looks at its paths before all else, and starts processes that do
    os.environ.update(resolved.settings.storage.environment)
    if remote := [text for text in _texts(options) if scheme_of(text) in STORES]:
        from untold.jobs.run.connectors import with_packages

        return replace(resolved, settings=with_packages(resolved.settings, remote))
    return resolved


def _require_local_input(options: Options) -> None:
    """Raises NoInputError for a missing file. Object stores and tables need the settings before they are looked at."""
    from untold.jobs.inputs.files import find_files
    from untold.jobs.lakehouse.inputs import table_named
    from untold.udfs.samples.files import is_remote

    path = getattr(options, "input", None)
    if path and "{date}" not in path and not is_remote(path) and table_named(path) is None:
        find_files(path)


def _texts(options: Options) -> list[str]:
    """The values of a command line that are texts: paths are among them."""
    values = vars(options).values()
    return [text for value in values for text in (value if isinstance(value, tuple) else [value]) if type(text) is str]


def load_or_none(options: Options, *, asks: bool = True) -> Resolved | None:
    """The settings of a command that can do without an endpoint; None without one."""
    from untold.jobs.settings.loading import NoEndpointError

    try:
        return _load(options, None, False, asks)
    except NoEndpointError:
        return None


def settings_without_endpoint(options: Options) -> Settings:
    """The settings of a command that needs no endpoint, with or without one.

    Where none is set a place that nobody calls stands for it: settings are checked as a whole, endpoint and all.
    """
    resolved = load_or_none(options, asks=False)
    if resolved is None:
        overrides = [*options.overrides, "llm.base_url=http://localhost", "llm.model=any"]
        resolved = load(Options(**{**vars(options), "overrides": overrides}), asks=False)
    return resolved.settings


def score_request(options: Options, resolved: Resolved) -> ScoreRequest:
    """What the options of `untold score` ask, with paths as they were given; nothing is read.

    Raises SampleError and UsageError.
    """
    from untold.jobs.inputs.checking import adapter_of, known_columns

    layout = data_set(options.format, options.conflictbank)
    read = read_options(options, known_columns(adapter_of(layout)))
    return scored(options, resolved, options.metric, read, format=layout)


def scored(
    options: Options, resolved: Resolved, metrics: tuple[str, ...], read: ReadOptions, **more: Any
) -> ScoreRequest:
    """The request of a command that runs or plans metrics, with `more` of its fields."""
    from untold.jobs.metrics.request import ScoreRequest

    fields = run_fields(options, resolved.settings, read)
    return ScoreRequest(**fields, **more, metrics=metrics, embedded=resolved.embedded)


def run_job(job: Callable[..., Any], request: Any, show: Callable[[Any, Any], None]) -> int:
    """Runs a job and tells how it ended; gives its exit code. `show` takes the outcome and the request."""
    from untold.jobs.run.terminal import Display

    with Display() as display:
        outcome = job(request, display)
    tell_outcome(lambda: show(outcome, request), outcome.message)
    return int(outcome.exit_code)


def tell_outcome(show: Callable[[], None], message: str | None) -> None:
    """Shows how a run ended, and the lines that say what is wrong with it; `show` prints to standard output.

    The run is over and written: a closed pipe changes nothing of how it ended.
    """
    # `untold score ... | head` ends the pipe early
    with suppress(BrokenPipeError):
        show()
        sys.stdout.flush()
        for line in (message or "").splitlines():
            print(redact(f"untold: {line}"), file=sys.stderr)


LAKEHOUSE_OPTIONS = [
    Option(
        "--output-format",
        "NAME",
        "parquet, or delta or iceberg: the tables are also those of their date in a lakehouse (parquet)",
        read=one_of(("parquet", "delta", "iceberg")),
        default="parquet",
    ),
    Option("--since", "VERSION", "with --input delta:PATH: a version (v12) whose rows are scored", read=version),
]


def with_tables(request: ScoreRequest, options: Options) -> ScoreRequest:
    """The request with the tables that its own are added to, and the version that it goes on from.

    The date of the tables is `--date`, else that of the first start, which the output's manifest knows. Raises
    LakehouseError.
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
