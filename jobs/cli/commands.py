"""The subcommands and their options, and the tables that `untold plan` prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from untold.jobs.cli.arguments import (
    FAIL_UNDER,
    LAKEHOUSE_OPTIONS,
    METRICS_FILE,
    READ_OPTIONS,
    RUN_FLAGS,
    Argument,
    Command,
    Option,
    Options,
    bars_of,
    flag,
    input_options,
    load,
    read_options,
    run_fields,
    run_job,
    score_request,
    scored,
    settings_options,
    settings_without_endpoint,
    tell_outcome,
    with_tables,
)
from untold.jobs.cli.data import COMMANDS as DATA
from untold.jobs.cli.data import INDEX_COMMANDS as LOOKUPS
from untold.jobs.cli.data import SPOOL_COMMANDS as SPOOLS
from untold.jobs.cli.forms import COMMANDS as FORMS
from untold.jobs.cli.forms import FORMS_OPTION, plan_forms
from untold.jobs.cli.meta_evaluation import COMMANDS as META_EVALUATION
from untold.jobs.cli.nightly import COMMANDS as NIGHTS
from untold.jobs.cli.studies import COMMANDS as STUDIES
from untold.jobs.cli.values import completes, count, day, one_of, with_hint
from untold.udfs.errors import require

if TYPE_CHECKING:
    from untold.jobs.metrics.request import ScoreRequest
    from untold.jobs.run.notifications import RunNotification
    from untold.jobs.run.terminal import Display, Page
    from untold.jobs.settings.model import Settings


DEMO_OUTPUTS = {"e2e": "untold-demo", "icat": "untold-demo-icat"}


def _begin_spark(request: ScoreRequest, display: Display, *, archives: bool = False) -> None:
    """Starts Spark's JVM, as large as the input and the store ask for, while the rest of the command is imported."""
    from untold.jobs.run.session import begin_session

    display.status("starting Java")
    begin_session(request.settings, small=request.small, archives=archives)


def _begin_ray(request: ScoreRequest) -> None:
    """Starts the answering process likewise, where the output has no run yet: something is sure to be asked."""
    from untold.jobs.inference.backends.process import begin_process
    from untold.jobs.inference.stage.engines import calls_endpoint
    from untold.jobs.run.manifest import OutputError, read_manifest

    # What is wrong with a manifest is told where it counts
    with suppress(OutputError):
        if calls_endpoint(request.settings) and read_manifest(request.output) is None:
            begin_process(request.settings.ray)


def _score(options: Options) -> int:
    """Samples to statements, scores and a summary."""
    least = bars_of(options)
    from untold.jobs.run.terminal import Display

    request = with_tables(score_request(options, load(options)), options)
    from untold.jobs.run.notifications import reporting

    notify, facts = request.settings.notify, {"command": "score", "output": request.output}
    with reporting(notify, options.metrics_file, Display().note, **facts) as report, Display() as display:
        request.check()
        # What a run loads of Spark is what other commands load, and more
        _begin_spark(request, display, archives=True)
        _begin_ray(request)
        return _run_score(request, display, least, report)


def _run_score(
    request: ScoreRequest,
    display: Display,
    bars: Mapping[str, float] = MappingProxyType({}),
    report: RunNotification | None = None,
) -> int:
    """Runs the main job and tells how it ended, and which means are below their bars."""
    from untold.jobs.run.notifications import facts_of
    from untold.jobs.run.session import end_archive
    from untold.jobs.score import score, show_summary
    from untold.jobs.summary.nights import metrics_text

    with display:
        outcome = score(request, display).apply_thresholds(bars)
    if report is not None:
        report.metrics = metrics_text(outcome.manifest, outcome.exit_code)
        report.facts |= facts_of(outcome.manifest, outcome.exit_code)
    tell_outcome(lambda: show_summary(outcome, request), outcome.message)
    end_archive(whole=outcome.exit_code == 0 and not outcome.unchanged)
    return outcome.exit_code


def _plan(options: Options) -> int:
    """What `untold score` with the same options would ask, by metric and stage; it needs no key."""
    from untold.jobs.run.terminal import Display, page_of, print_lines

    if options.forms:
        return plan_forms(options)
    request = score_request(options, load(options, asks=False))
    request.check()
    with Display() as display:
        _begin_spark(request, display)
        from untold.jobs.inference.stage.expected_usage import cluster_of
        from untold.jobs.plan import plan

        rows = plan(request, display)
    if options.machines:
        rows = [row | cluster_of(options.machines, options.cores, request.settings).takes(row) for row in rows]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_lines(plan_lines(rows, page_of(sys.stdout)))
    return 0


def _demo(options: Options) -> int:
    """The shipped samples through the main job, and what a person would say of them beside it."""
    resolved = load(options, demo=True)
    options.output = options.output or DEMO_OUTPUTS[options.metric]
    from untold.jobs.demo import demo_settings, show_expected, showing_results
    from untold.jobs.inputs.files import AS_THEY_ARE
    from untold.jobs.run.output import absolute
    from untold.jobs.run.terminal import Display

    # A real folder, also where the package is read from a zip
    with as_file(files("untold.conf").joinpath("demo")) as folder:
        options.input = str(folder / "samples.jsonl")
        index = f"{absolute(options.output)}-index" if options.metric == "icat" else None
        if index is not None and (code := _index_documents(options, resolved.settings, folder, index)):
            return code
        settings = demo_settings(resolved.settings, folder, index)
        request = scored(options, replace(resolved, settings=settings), (options.metric,), AS_THEY_ARE)
        display = Display()
        with showing_results(request, display.note) if index is None else nullcontext():
            code = _run_score(request, display)
        # After the summary: what a person would say of the same samples
        show_expected(request.output, folder, options.metric)
    return code


def _index_documents(options: Options, settings: Settings, folder: Path, place: str) -> int:
    """Makes the index of the demo's documents and gives the exit code; it says why where that is not 0."""
    from untold.jobs.index import index
    from untold.jobs.inputs.files import AS_THEY_ARE
    from untold.jobs.inputs.request import RunRequest

    given = Options(**{**vars(options), "input": str(folder / "corpus.jsonl"), "output": place})
    return run_job(index, RunRequest(**run_fields(given, settings, AS_THEY_ARE)), lambda *_: None)


def _show(options: Options) -> int:
    """One sample on standard output, and its graph as a picture where one is asked for; starts no engine."""
    from untold.jobs.show import ShowRequest, show

    if options.raw and options.picture is None:
        raise click.UsageError("--raw goes with --picture")
    if options.picture is not None:
        require("show --picture", "study", "matplotlib", "networkx")
    show(ShowRequest(options.run, options.sample, options.metric, options.picture, options.raw))
    return 0


def _report(options: Options) -> int:
    """Runs as one HTML file; starts no engine."""
    from untold.graph.views import one_line
    from untold.jobs.report.page import write_report
    from untold.jobs.run_tables import open_run

    report = write_report([open_run(run) for run in dict.fromkeys(options.runs)], options.html)
    print(f"report: {one_line(options.html)} ({len(report.html.encode()) / 1e6:.1f} MB); open it in a browser")
    return 0


def _open(options: Options) -> int:
    """What a run has, or the output that ships with the package, and how to go on; starts no engine."""
    if (options.run is None) == (not options.demo):
        raise click.UsageError("give RUN or --demo")
    from untold.jobs.run.terminal import print_lines
    from untold.jobs.run_analysis import demo_output, lines_of, open_run

    print_lines(lines_of(open_run(options.run or demo_output())))
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
    from untold.jobs.run.terminal import Display

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


def _package(options: Options) -> int:
    """This environment as files that the machines of a cluster use, and the settings that use them."""
    from untold.jobs.package import package, show_package

    settings = settings_without_endpoint(options)
    show_package(options.output, package(options.output, settings, jars=options.jars))
    return 0


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
    from untold.jobs.settings.model import api_for

    settings = settings_without_endpoint(options)
    return {name: api_for(settings, name) for name in stages}


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
    from untold.jobs.settings.templates import template_of

    return template_of(options.stage, settings_without_endpoint(options)).source


COMMANDS: dict[str, click.Command] = {
    "score": Command(
        "score a file of answers",
        _score,
        [
            *input_options(output=True),
            *settings_options(),
            *RUN_FLAGS,
            FAIL_UNDER,
            METRICS_FILE,
            *LAKEHOUSE_OPTIONS,
            Option("--date", "DATE", "of the rows in a lakehouse (the day of the first start, by UTC)", read=day),
        ],
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
            Option("--machines", "N", "also say what the requests take on so many machines", read=count),
            Option("--cores", "C", "cores of each machine (8)", read=count, default=8),
            FORMS_OPTION,
            flag("--json", "print JSON"),
        ],
    ),
    **NIGHTS,
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
    **DATA,
    **STUDIES,
    **FORMS,
    **META_EVALUATION,
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
    "open": Command(
        "show what a run has, and how to go on in Python, SQL or a notebook",
        _open,
        [
            Argument("run", "RUN", "the output of a run", required=False),
            flag("--demo", "the output that ships with Untold"),
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
    "report": Command(
        "write runs as one HTML page: systems, answers and what they leave out",
        _report,
        [
            Argument(
                "runs",
                "RUN...",
                "outputs of untold score; those of meta-evaluate say how far to trust the judge",
                many=True,
            ),
            Option("--html", "FILE", "the file to write (report.html)", default="report.html"),
        ],
    ),
    "doctor": Command("check this machine and the endpoint", _doctor, settings_options()),
    "package": Command(
        "pack this environment for the machines of a cluster",
        _package,
        [
            *settings_options(),
            Option("--output", "DIR", "where the wheel, the archive and cluster.yaml go", required=True),
            flag("--jars", "copy the packages of spark.conf.spark.jars.packages too"),
        ],
    ),
    "schema": Command(
        "show the tables and their columns",
        _schema,
        [click.Argument(["table"], metavar="TABLE", required=False, shell_complete=completes(_table_names))],
        names=_table_names,
    ),
    "prompts": Command(
        "show the stages and their templates",
        _prompts,
        [
            click.Argument(["stage"], metavar="STAGE", required=False, shell_complete=completes(_stage_names)),
            *settings_options(),
        ],
        names=_stage_names,
    ),
}


POSSIBLE = ("requests", "reused", "prompt_tokens", "completion_tokens", "cost", "hours")
EXPECTED = ("expected_requests", "expected_prompt_tokens", "expected_completion_tokens", "expected_cost")
CLUSTER = ("cluster_hours", "files", "bytes", "store_requests", "machines")
CLUSTER_HEADS = ("hours", "files", "bytes", "store requests", "machines")
CLUSTER_NOTE = (
    "Cluster: the expected requests on these machines, at the limits or at the measured speed, whichever is slower; "
    "files and bytes of completions, and the requests to an object store that write and read them. Machines: how many "
    "are worth having, - where no limit ends what more of them gain."
)
HEADS = ("requests", "tokens in", "tokens out", "cost")
AMOUNTS = ("cost", "hours", "expected_cost", "cluster_hours")
NOTES = (
    "=: exact, <=: at most. Tokens, cost and hours are of the requests still to be asked (requests - reused), without "
    "retries. Tokens in are estimated, tokens out are at most. Expected: by the means of the store's completions, else "
    "by the figures of docs/methods.md, section 9. -: no price or no limit is set."
)
WIDEST = 100
Row = Mapping[str, Any]


def plan_lines(rows: Sequence[Row], page: Page) -> list[str]:
    """The plan as two tables with their totals: what is possible, and what is expected."""
    from untold.jobs.run.terminal import Page, table, wrapped

    whole = [*rows, _total(rows)]
    names = [[row["metric"], row["stage"]] for row in whole]
    possible = [[*name, *_possible(row)] for name, row in zip(names, whole, strict=True)]
    expected = [[*name, *_numbers(row, EXPECTED)] for name, row in zip(names, whole, strict=True)]
    head, *tail = HEADS
    return [
        "possible",
        *table(["metric", "stage", head, "reused", *tail, "hours"], possible, page, names=2),
        "",
        "expected",
        *table(["metric", "stage", *HEADS], expected, page, names=2),
        "",
        *_by_batches(whole),
        *(_on_cluster(whole, page) if CLUSTER[0] in rows[0] else []),
        *wrapped(NOTES, Page(min(page.width or WIDEST, WIDEST))),
    ]


def _by_batches(rows: Sequence[Row]) -> list[str]:
    """What batches would cost, and how many rounds of them there are; nothing without prices."""
    from untold.jobs.run.terminal import amount
    from untold.udfs.stages import LOOKUPS

    *stages, total = rows
    if total["batch_cost"] is None:
        return []
    # Stages of several metrics are asked one after the other too
    asked = {row["stage"] for row in stages if row["requests"] > row["reused"] and row["batch_cost"] is not None}
    within = amount(len(asked.difference(LOOKUPS)), "round of batches", "rounds of batches")
    cost = f"cost {total['batch_cost']:,.2f} at most"
    return [f"by batches (llm.backend=batch): {cost}, {within}, each within 24 hours", ""]


def _on_cluster(rows: Sequence[Row], page: Page) -> list[str]:
    """What the stages take on the machines, and what its columns say."""
    from untold.jobs.run.terminal import Page, table, wrapped

    cells = [[row["metric"], row["stage"], *_numbers(row, CLUSTER)] for row in rows]
    head = table(["metric", "stage", *CLUSTER_HEADS], cells, page, names=2)
    return ["cluster", *head, "", *wrapped(CLUSTER_NOTE, Page(min(page.width or WIDEST, WIDEST))), ""]


def _possible(row: Row) -> list[str]:
    """The numbers of a row: `=` before an exact number of requests, `<=` before an upper bound."""
    requests, *others = _numbers(row, POSSIBLE)
    return [f"{'=' if row['exact'] else '<='} {requests}", *others]


def _numbers(row: Row, names: Sequence[str]) -> list[str]:
    """Counts in full, amounts with two decimals, `-` for what is not known."""
    return ["-" if row[name] is None else format(row[name], ",.2f" if name in AMOUNTS else ",") for name in names]


def _total(rows: Sequence[Row]) -> dict[str, Any]:
    """The sums of all rows; stages are asked one after the other, so hours add up too."""
    names = (*POSSIBLE, "batch_cost", *EXPECTED, *(CLUSTER if CLUSTER[0] in rows[0] else ()))
    known = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    sums = {name: sum(values) if values else None for name, values in known.items()}
    # One stage after the other has all machines
    most = {"machines": max(known["machines"], default=None)} if "machines" in known else {}
    return {"metric": "total", "stage": "", "exact": all(row["exact"] for row in rows), **sums, **most}
