"""The subcommands: their arguments, and how these become what a job is asked to do.

Jobs are imported within the functions, after the JVM was sent on its way: `--help` and wrong use wait for no engine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from untold.jobs.cli.arguments import (
    READ_OPTIONS,
    RUN_FLAGS,
    Argument,
    Command,
    Option,
    Options,
    bars_of,
    check_samples,
    data_set,
    draw_of,
    flag,
    input_options,
    load,
    read_options,
    settings_options,
    settings_without_endpoint,
    tell_outcome,
)
from untold.jobs.cli.retrieval import COMMANDS as LOOKUPS
from untold.jobs.cli.spool import COMMANDS as SPOOLS
from untold.jobs.cli.studies import COMMANDS as STUDIES
from untold.jobs.cli.values import bars, one_of, with_hint
from untold.udfs.errors import require

if TYPE_CHECKING:
    from untold.jobs.inputs.files import ReadOptions
    from untold.jobs.run.progress import Display
    from untold.jobs.score import ScoreRequest
    from untold.jobs.settings.loading import Resolved
    from untold.jobs.settings.model import Settings

DEMO_OUTPUTS = {"e2e": "untold-demo", "icat": "untold-demo-icat"}


def _begin_spark(settings: Settings, *paths: str | None) -> None:
    """Starts Spark's JVM, as large as what lies at the paths asks for, while the rest of the command is imported."""
    from untold.jobs.inputs.files import count_bytes
    from untold.jobs.run.session import SMALL_BYTES, begin_session

    begin_session(settings, small=count_bytes(*filter(None, paths)) < SMALL_BYTES)


def _check_scored(options: Options, settings: Settings) -> ReadOptions:
    """How the samples of `score` and `plan` are read. Raises what `check_samples` raises."""
    from untold.jobs.inputs.checking import adapter_of
    from untold.jobs.metrics import needs_of

    adapter = adapter_of(data_set(options.format, options.conflictbank))
    return check_samples(options, needs_of(options.metric, settings), adapter)


def _score(options: Options) -> int:
    """Samples to statements, scores and a summary."""
    least = bars_of(options)
    from untold.jobs.run.output import absolute, store_of
    from untold.jobs.run.progress import Display

    resolved = load(options)
    read = _check_scored(options, resolved.settings)
    with Display() as display:
        display.status("starting Java")
        # Before the next import, so that the JVM starts beside it
        _begin_spark(resolved.settings, options.input, store_of(resolved.settings, absolute(options.output)))
        request = _score_request(
            options,
            resolved,
            input=options.input,
            metrics=options.metric,
            format=data_set(options.format, options.conflictbank),
            limit=options.limit,
            draw=draw_of(options, resolved.settings),
            read=read,
            retry_failed=options.retry_failed,
            wait=not options.no_wait,
        )
        return _run_score(request, display, least)


def _score_request(options: Options, resolved: Resolved, **more: Any) -> ScoreRequest:
    """What the main job is asked by any command that runs it, and `more` of its own, named as the fields are."""
    from untold.jobs.run.output import absolute
    from untold.jobs.score import ScoreRequest

    return ScoreRequest(
        output=absolute(options.output),
        settings=resolved.settings,
        embedded=resolved.embedded,
        overwrite=options.overwrite,
        command=options.command_line,
        **more,
    )


def _run_score(request: ScoreRequest, display: Display, bars: Mapping[str, float] = MappingProxyType({})) -> int:
    """Runs the main job and tells how it ended, and which means are below their bars."""
    from untold.jobs.run.outcome import FAILED_TOO_MANY, below_bars
    from untold.jobs.score import score, show_summary

    with display:
        outcome = score(request, display)
    # A run that ended early has not asked for all that a mean is of
    below = below_bars(outcome.summary, bars) if outcome.exit_code in (0, FAILED_TOO_MANY) else []
    tell_outcome(lambda: show_summary(outcome, request.output), "\n".join(filter(None, [*below, outcome.message])))
    return FAILED_TOO_MANY if below else outcome.exit_code


def _demo(options: Options) -> int:
    """The shipped samples through the main job, and what a person would say of them beside it."""
    resolved = load(options, demo=True)
    options.output = options.output or DEMO_OUTPUTS[options.metric]
    # A real folder, also where the package is read from a zip
    with as_file(files("untold.conf").joinpath("demo")) as folder:
        return _DEMOS[options.metric](options, resolved, folder)


def _demo_of_coverage(options: Options, resolved: Resolved, folder: Path) -> int:
    """Six judgements of e2e, each shown as it comes."""
    from untold.jobs.demo import demo_settings, show_expected, showing_results
    from untold.jobs.run.progress import Display

    samples, settings = folder / "samples.jsonl", demo_settings(resolved.settings, folder)
    request = _score_request(options, replace(resolved, settings=settings), input=str(samples), metrics=("e2e",))
    display = Display()
    with showing_results(samples, request.store, settings, resolved.embedded, display.note):
        code = _run_score(request, display)
    # After the summary: what a person would say of the same samples
    show_expected(request.output, folder / "expected.jsonl")
    return code


def _demo_of_claims(options: Options, resolved: Resolved, folder: Path) -> int:
    """The shipped documents as an index, and the claims of the samples held against it by icat."""
    from untold.jobs.demo_claims import METRIC, claims_settings, show_expected_claims
    from untold.jobs.index import IndexRequest, index
    from untold.jobs.run.output import absolute
    from untold.jobs.run.progress import Display

    place = f"{absolute(options.output)}-index"
    with Display() as display:
        made = index(
            IndexRequest(
                input=str(folder / "corpus.jsonl"),
                output=place,
                settings=resolved.settings,
                overwrite=options.overwrite,
                command=options.command_line,
            ),
            display,
        )
    if made.exit_code:
        tell_outcome(lambda: None, made.message)
        return made.exit_code
    settings = claims_settings(resolved.settings, folder, place)
    samples = str(folder / "samples.jsonl")
    request = _score_request(options, replace(resolved, settings=settings), input=samples, metrics=(METRIC,))
    code = _run_score(request, Display())
    show_expected_claims(request.output, folder / "expected_claims.jsonl")
    return code


_DEMOS = {"e2e": _demo_of_coverage, "icat": _demo_of_claims}


def _plan(options: Options) -> int:
    """What `untold score` with the same options would ask, by metric and stage; it needs no key."""
    from untold.jobs.run.output import absolute, store_of
    from untold.jobs.run.progress import Display
    from untold.jobs.run.terminal import page_of, print_lines

    resolved = load(options, asks=False)
    read = _check_scored(options, resolved.settings)
    # A plan without --output and store looks nothing up
    store = store_of(resolved.settings, absolute(options.output or ""))
    with Display() as display:
        display.status("starting Java")
        _begin_spark(resolved.settings, options.input, store if options.output or resolved.settings.store else None)
        from untold.jobs.cli.plan_table import plan_lines
        from untold.jobs.plan import PlanRequest, plan

        request = PlanRequest(
            input=options.input,
            output=absolute(options.output) if options.output else None,
            metrics=options.metric,
            settings=resolved.settings,
            embedded=resolved.embedded,
            format=data_set(options.format, options.conflictbank),
            limit=options.limit,
            draw=draw_of(options, resolved.settings),
            read=read,
            retry_failed=options.retry_failed,
        )
        rows = plan(request, display)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_lines(plan_lines(rows, page_of(sys.stdout)))
    return 0


def _show(options: Options) -> int:
    """One sample on standard output, and its graph as a picture where one is asked for; starts no engine."""
    from untold.jobs.show import ShowRequest, show

    if options.raw and options.picture is None:
        raise click.UsageError("--raw goes with --picture")
    if options.picture is not None:
        require("show --picture", "study", "matplotlib", "networkx")
    show(ShowRequest(options.run, options.sample, options.metric, options.picture, options.raw))
    return 0


def _condense(options: Options) -> int:
    """Relations from any source to statements, without any model."""
    from untold.jobs.condense import (
        FREQUENCY,
        GROUPS,
        NODE_NEEDS,
        RELATION_NEEDS,
        CondenseRequest,
        condense,
        show_counts,
    )
    from untold.jobs.inputs.checking import check_input
    from untold.jobs.run.output import absolute
    from untold.jobs.run.progress import Display

    settings = settings_without_endpoint(options)
    output = absolute(options.output)
    read = read_options(options, (*RELATION_NEEDS, *NODE_NEEDS, *GROUPS, FREQUENCY))
    for path, needs in ((options.relations, RELATION_NEEDS), (options.nodes, NODE_NEEDS)):
        own = {name: other for name, other in read.columns.items() if name in needs}
        if path is not None:
            check_input(path, replace(read, columns=own), needs)
    request = CondenseRequest(options.relations, options.nodes, output, settings, options.overwrite, read)
    with Display() as display:
        display.status("starting Java, reading the relations, condensing them")
        counts = condense(request)
    show_counts(counts, output)
    return 0


def _doctor(options: Options) -> int:
    """One line a check; 1 where one failed."""
    from untold.jobs.doctor import examine

    return examine(lambda: load(options))


def _schema(options: Options) -> int:
    """Tables and columns as Arrow writes their types: all, or the one that is named."""
    from untold.jobs.tables import TABLES

    _check_name("table", options.table, TABLES)
    for name in [options.table] if options.table else TABLES:
        print(name)
        for field in TABLES[name]:
            print(f"  {field.name}: {field.type}")
    return 0


def _prompts(options: Options) -> int:
    """All stages with their variables, or one stage's template, as a run with these settings would use it."""
    from untold.udfs.stages import STAGES

    _check_name("stage", options.stage, STAGES)
    if options.stage is None:
        from untold.udfs.stages.definitions import SUFFIXES

        apis = _apis_of(options, STAGES)
        for name, stage in STAGES.items():
            print(f"{name}: variables {', '.join(stage.variables)}; file {name}{SUFFIXES[apis.get(name, 'chat')]}")
        return 0
    print(_template_of(options))
    return 0


def _apis_of(options: Options, stages: Iterable[str]) -> dict[str, str]:
    """The API of each stage under the settings of the command line; nothing where it gives none, for a quick answer."""
    if not (options.config or options.overrides or options.endpoint):
        return {}
    from untold.jobs.settings.model import decoding_for

    settings = settings_without_endpoint(options)
    return {name: decoding_for(settings, name).api for name in stages}


def _check_name(what: str, name: str | None, known: Iterable[str]) -> None:
    """Raises UsageError for a name that is given and not known."""
    if name is not None and name not in known:
        raise click.UsageError(with_hint(f"no {what} {name}; there are {', '.join(known)}", name, known))


def _table_names() -> Iterable[str]:
    """The names of the tables, for the help."""
    from untold.jobs.tables import TABLES

    return TABLES


def _stage_names() -> Iterable[str]:
    """The names of the stages, for the help."""
    from untold.udfs.stages import STAGES

    return STAGES


def _template_of(options: Options) -> str:
    """The template that a run with these settings would use; a template needs no endpoint."""
    from untold.jobs.settings.model import decoding_for
    from untold.jobs.settings.templates import find_template

    settings = settings_without_endpoint(options)
    return find_template(options.stage, decoding_for(settings, options.stage).api, settings.prompts_dir).source


_FAIL_UNDER = Option(
    "--fail-under",
    "METRIC=BAR",
    "exit with code 4 where the mean of a metric is below the bar (e2e=0.7); by comma or repeated",
    read=bars,
    multiple=True,
)
COMMANDS: dict[str, click.Command] = {
    "score": Command(
        "score a file of answers", _score, [*input_options(output=True), *settings_options(), *RUN_FLAGS, _FAIL_UNDER]
    ),
    "plan": Command(
        "say what a run would ask and cost; asks nothing",
        _plan,
        [
            *input_options(output=False),
            *settings_options(),
            flag("--overwrite", "as for score"),
            flag("--retry-failed", "count permanently failed requests as to be retried"),
            flag("--no-wait", "as for score"),
            flag("--json", "print JSON"),
        ],
    ),
    "condense": Command(
        "condense relations from any source to statements",
        _condense,
        [
            Option("--relations", "PATH", "premise_id, hypothesis_id, relation", required=True),
            Option("--nodes", "PATH", "id, text, origin; without it every id is a context"),
            Option("--output", "DIR", "where the tables go", required=True),
            *READ_OPTIONS,
            *settings_options(),
            flag("--overwrite", "replace what --output holds"),
        ],
    ),
    **STUDIES,
    **LOOKUPS,
    **SPOOLS,
    "demo": Command(
        "score the shipped samples on the embedded model",
        _demo,
        [
            *settings_options(),
            Option("--metric", "NAME", "e2e (the default) or icat", read=one_of(tuple(DEMO_OUTPUTS)), default="e2e"),
            Option("--output", "DIR", f"where the tables go ({', or '.join(DEMO_OUTPUTS.values())} with icat)"),
            flag("--overwrite", "replace the tables of another run in --output"),
        ],
    ),
    "show": Command(
        "show one sample: its response, what it misses and where that is stated",
        _show,
        [
            Argument("run", "RUN", "the output of a run"),
            Option("--sample", "ID", "a sample_id", required=True),
            Option("--metric", "NAME", "one metric; all that scored the sample by default"),
            Option("--picture", "FILE", "draw its graph into this file: .svg or .png"),
            flag("--raw", "draw atoms instead of statements; with --picture"),
        ],
    ),
    "doctor": Command("check this machine and the endpoint", _doctor, settings_options()),
    "schema": Command(
        "show the tables and their columns",
        _schema,
        [click.Argument(["table"], metavar="TABLE", required=False)],
        names=_table_names,
    ),
    "prompts": Command(
        "show the stages and their templates",
        _prompts,
        [click.Argument(["stage"], metavar="STAGE", required=False), *settings_options()],
        names=_stage_names,
    ),
}
