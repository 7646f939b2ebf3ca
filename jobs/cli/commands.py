"""Define the subcommands that score, plan and show runs, and collect all subcommands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from untold.jobs.cli import arguments, data, forms, meta_evaluation, studies
from untold.jobs.cli.arguments import JSON, Argument, Command, Option, Options, flag, options_of, settings_options
from untold.jobs.cli.values import OneOf, count, day
from untold.jobs.inputs.options import CondenseOptions, RunOptions, ShowRequest
from untold.udfs.errors import require
from untold.udfs.redaction import redact

if TYPE_CHECKING:
    from untold.jobs.metrics.scoring import ScoreRequest
    from untold.jobs.run.notifications import RunNotification
    from untold.jobs.run.terminal import Display
    from untold.jobs.settings.model import Settings


DEMO_OUTPUTS = {"nli": "untold-demo", "e2e": "untold-demo-e2e", "icat": "untold-demo-icat"}


def _begin_spark(request: ScoreRequest, display: Display, *, archives: bool = False) -> None:
    """Start Spark's JVM while Python imports the rest of the command. The input and the store decide its size."""
    from untold.jobs.run.session import begin_session

    display.status("starting Java")
    begin_session(request.settings, small=request.small, archives=archives)


def _begin_ray(request: ScoreRequest) -> None:
    """Start the process that sends requests, if the output has no run yet: requests are then certain."""
    from untold.jobs.inference.backends.process import begin_process
    from untold.jobs.inference.stage.engines import calls_endpoint
    from untold.jobs.run.manifest import OutputError, read_manifest

    # The run itself reports an invalid manifest
    with suppress(OutputError):
        if calls_endpoint(request.settings) and read_manifest(request.output) is None:
            begin_process(request.settings.ray)


def _score(options: Options) -> int:
    """Score samples by metrics."""
    least = arguments.bars_of(options)
    request = arguments.with_tables(arguments.score_request(options, arguments.load(options)), options)
    from untold.jobs.run.notifications import reporting

    notify, facts = request.settings.notify, {"command": "score", "output": request.output}
    note = arguments.display().note
    with reporting(notify, options.metrics_file, note, **facts) as report, arguments.display() as display:
        request.check()
        # A run loads the classes of all other commands
        _begin_spark(request, display, archives=True)
        _begin_ray(request)
        return _run_score(options, request, display, least, report)


def _run_score(
    options: Options,
    request: ScoreRequest,
    display: Display,
    bars: Mapping[str, float] = MappingProxyType({}),
    report: RunNotification | None = None,
    *,
    brief: bool = False,
) -> int:
    """Run the main job, and report its end and the means below their bars."""
    from untold.jobs.run.notifications import facts_of
    from untold.jobs.run.session import end_archive
    from untold.jobs.score import score, show_summary
    from untold.jobs.summary.nights import metrics_text

    with display:
        outcome = score(request, display).apply_thresholds(bars)
    if report is not None:
        report.metrics = metrics_text(outcome.manifest, outcome.exit_code)
        report.facts |= facts_of(outcome.manifest, outcome.exit_code)
    show = arguments.show_with(options, partial(show_summary, brief=brief))
    arguments.report_outcome(lambda: show(outcome, request), outcome.message)
    end_archive(whole=outcome.exit_code == 0 and not outcome.unchanged)
    return outcome.exit_code


def _plan(options: Options) -> int:
    """Plan the requests of `untold score` with the same options. It needs no key."""
    if options.forms:
        return forms.plan_forms(options)
    request = arguments.score_request(options, arguments.load(options, asks=False))
    request.check()
    with arguments.display() as display:
        _begin_spark(request, display)
        from untold.jobs.inference.stage.expected_usage import cluster_of
        from untold.jobs.plan import plan, plan_lines

        rows = plan(request, display)
    if options.machines:
        rows = [row | cluster_of(options.machines, options.cores, request.settings).takes(row) for row in rows]
    arguments.print_result(options, rows, lambda page: plan_lines(rows, page))
    return 0


def _demo(options: Options) -> int:
    """Score the shipped samples, and show the expected results next to the results."""
    resolved = arguments.load(options, demo=True, judged=options.metric in (None, "nli"))
    options.metric = options.metric or ("nli" if resolved.settings.llm.is_judge else "e2e")
    options.output = options.output or DEMO_OUTPUTS[options.metric]
    from untold.jobs.demo import demo_settings, show_expected

    # The package may be in a zip file
    with as_file(files("untold.conf").joinpath("demo")) as folder:
        given = {**vars(options), "input": str(folder / "samples.jsonl"), "metric": (options.metric,)}
        asked = Options(**given, format=None, conflictbank=None, columns=None)
        index = f"{arguments.absolute(options.output)}-index" if options.metric == "icat" else None
        if index is not None and (code := _index_documents(options, resolved.settings, folder, index)):
            return code
        settings = demo_settings(resolved.settings, folder, index)
        request = arguments.score_request(asked, replace(resolved, settings=settings))
        request.check()
        code = _run_score(options, request, arguments.display(), brief=True)
        if not options.json:
            show_expected(request.output, folder, options.metric)
    return code


def _index_documents(options: Options, settings: Settings, folder: Path, path: str) -> int:
    """Create the index of the demo's documents, and return the exit code."""
    from untold.jobs.index import index
    from untold.jobs.inference.stage.start import RunRequest
    from untold.jobs.inputs.files import AS_THEY_ARE

    given = Options(**{**vars(options), "input": str(folder / "corpus.jsonl"), "output": path})
    request = RunRequest(**arguments.run_fields(given, settings, AS_THEY_ARE))
    return arguments.run_job(index, request, lambda *_: None)


def _show(options: Options) -> int:
    """Print one sample, and draw its graph. No engine starts."""
    from untold.jobs.show import rows_of_sample, show

    if options.raw and options.picture is None:
        raise click.UsageError("--raw requires --picture")
    request = ShowRequest(**arguments.values_of(ShowRequest, options))
    if options.json:
        if options.picture is not None:
            raise click.UsageError("--json prints the rows of the sample; leave out --picture")
        arguments.print_json(rows_of_sample(request))
        return 0
    if options.picture is not None:
        require("show --picture", "study", "matplotlib", "networkx")
    show(request)
    return 0


def _report(options: Options) -> int:
    """Write runs as one HTML file. No engine starts."""
    from untold.graph.views import one_line
    from untold.jobs.report.page import write_report
    from untold.jobs.run_tables import open_run

    report = write_report([open_run(run) for run in dict.fromkeys(options.runs)], options.html)
    print(f"report: {one_line(options.html)} ({len(report.html.encode()) / 1e6:.1f} MB). Open it in a browser")
    return 0


def _open(options: Options) -> int:
    """Print the tables of a run or of the shipped output, and the next steps. No engine starts."""
    if (options.run is None) == (not options.demo):
        raise click.UsageError("give RUN or --demo")
    from untold.jobs.run_analysis import content_of, demo_output, lines_of, open_run

    run = open_run(options.run or demo_output())
    arguments.print_result(options, content_of(run) if options.json else None, lambda page: lines_of(run, page))
    return 0


def _condense(options: Options) -> int:
    """Condense relations from any source to statements, without a model."""
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

    settings = arguments.settings_without_endpoint(options)
    read = arguments.read_options(options, (*RELATION_NEEDS, *NODE_NEEDS, *GROUPS, FREQUENCY))
    for path, needs in ((options.relations, RELATION_NEEDS), (options.nodes, NODE_NEEDS)):
        own = {name: other for name, other in read.columns.items() if name in needs}
        if path is not None:
            check_input(path, replace(read, columns=own), needs)
    given = arguments.values_of(CondenseOptions, options)
    request = CondenseRequest(**given, settings=settings, read=read)
    with arguments.display() as display:
        display.status("starting Java, reading the relations, condensing them")
        counts = condense(request)
    if options.json:
        arguments.print_json({"output": request.output, "counts": counts})
    else:
        show_counts(counts, request.output)
    return 0


def _doctor(options: Options) -> int:
    """Check the machine and the endpoint. Return 1 if a check fails."""
    from untold.jobs.doctor import FAIL, check_all, examine

    needs = {name: one.needs for name, one in COMMANDS.items() if isinstance(one, Command)}
    if not options.json:
        return examine(lambda: arguments.load(options), needs)
    found = list(check_all(lambda: arguments.load(options), needs))
    arguments.print_json([{name: redact(text) for name, text in vars(one).items()} for one in found])
    return int(any(one.state == FAIL for one in found))


def _package(options: Options) -> int:
    """Pack this environment for the machines of a cluster."""
    from untold.jobs.package import package, show_package

    settings = arguments.settings_without_endpoint(options)
    show_package(options.output, package(options.output, settings, jars=options.jars))
    return 0


def _schema(options: Options) -> int:
    """Print the columns of all tables or of one table, with their Arrow types."""
    from untold.jobs.tables import TABLES

    names = [options.table] if options.table else TABLES
    found = {name: {field.name: str(field.type) for field in TABLES[name]} for name in names}
    lines = (
        line for name, columns in found.items() for line in (name, *(f"  {one}: {columns[one]}" for one in columns))
    )
    arguments.print_result(options, found, lambda _: lines)
    return 0


def _prompts(options: Options) -> int:
    """Print all stages with their variables, or the template of one stage under the settings."""
    if options.stage is not None:
        from untold.jobs.settings.templates import template_of

        source = template_of(options.stage, arguments.settings_without_endpoint(options)).source
        arguments.print_result(options, {"stage": options.stage, "template": source}, lambda _: [source])
        return 0
    from untold.udfs.stages import STAGES
    from untold.udfs.stages.definitions import SUFFIXES

    apis: dict[str, str] = {}
    # The import of the settings is slow
    if options.config or options.overrides or options.endpoint:
        from untold.jobs.settings.model import api_for

        settings = arguments.settings_without_endpoint(options)
        apis = {name: api_for(settings, name) for name in STAGES}
    rows = [
        {"stage": name, "variables": stage.variables, "file": f"{name}{SUFFIXES[apis.get(name, 'chat')]}"}
        for name, stage in STAGES.items()
    ]
    lines = (f"{row['stage']}: variables {', '.join(row['variables'])}; file {row['file']}" for row in rows)
    arguments.print_result(options, rows, lambda _: lines)
    return 0


def _table_names() -> Sequence[str]:
    from untold.jobs.tables import TABLES

    return list(TABLES)


def _stage_names() -> Sequence[str]:
    from untold.udfs.stages import STAGES

    return list(STAGES)


COMMANDS: dict[str, click.Command] = {
    "score": Command(
        "score a file of answers",
        _score,
        [
            *arguments.input_options(output=True),
            JSON,
            *settings_options(),
            *arguments.RUN_FLAGS,
            *arguments.REPORTING,
            Option("--date", "DATE", "date of the rows in a lakehouse (the day of the first start, in UTC)", read=day),
        ],
        needs=arguments.SCORES,
    ),
    "plan": Command(
        "plan the requests and the cost of a run; sends nothing",
        _plan,
        [
            *arguments.input_options(output=False),
            *settings_options(),
            *options_of(RunOptions, "overwrite", "retry_failed", "wait"),
            Option("--machines", "N", "also plan the requests on N machines", read=count),
            Option("--cores", "C", "cores of each machine (8)", read=count, default=8),
            forms.FORMS_OPTION,
            JSON,
        ],
        needs=arguments.SCORES,
    ),
    "condense": Command(
        "condense relations from any source to statements",
        _condense,
        [*options_of(CondenseOptions), *arguments.READ_OPTIONS, JSON, *settings_options()],
        needs=arguments.SCORES,
    ),
    **data.COMMANDS,
    **studies.COMMANDS,
    **forms.COMMANDS,
    **meta_evaluation.COMMANDS,
    "demo": Command(
        "score the shipped samples by the judge, or by the language model of --endpoint",
        _demo,
        [
            *settings_options(),
            Option("--metric", "NAME", "nli (the default of the judge), e2e or icat", read=OneOf(tuple(DEMO_OUTPUTS))),
            Option("--output", "DIR", "folder of the tables (untold-demo, or untold-demo-METRIC with e2e and icat)"),
            *options_of(RunOptions, "overwrite"),
            JSON,
        ],
        needs=arguments.SCORES,
    ),
    "open": Command(
        "show the tables of a run, and how to use them in Python, SQL or a notebook",
        _open,
        [
            Argument("run", "RUN", "the output of a run", required=False),
            flag("--demo", "the output that ships with Untold"),
            JSON,
        ],
    ),
    "show": Command(
        "show one sample: its response, and the missing statements with their sources",
        _show,
        [*options_of(ShowRequest), JSON],
    ),
    "report": Command(
        "write runs as one HTML page: systems, answers and their missing statements",
        _report,
        [
            Argument("runs", "RUN...", "outputs of untold score; outputs of meta-evaluate rate the judge", many=True),
            Option("--html", "FILE", "the file to write (report.html)", default="report.html"),
        ],
    ),
    "doctor": Command("check this machine and the endpoint", _doctor, [*settings_options(), JSON]),
    "package": Command(
        "pack this environment for the machines of a cluster",
        _package,
        [
            *settings_options(),
            Option("--output", "DIR", "folder of the wheel, the archive and cluster.yaml", required=True),
            flag("--jars", "also copy the packages of spark.conf.spark.jars.packages"),
        ],
        needs=arguments.SCORES,
    ),
    "schema": Command(
        "show the tables and their columns",
        _schema,
        [Argument("table", "TABLE", "one table", required=False, read=OneOf(_table_names), names=_table_names), JSON],
    ),
    "prompts": Command(
        "show the stages and their templates",
        _prompts,
        [
            Argument("stage", "STAGE", "one stage", required=False, read=OneOf(_stage_names), names=_stage_names),
            JSON,
            *settings_options(),
        ],
    ),
}
