"""The subcommands: their arguments, and how these become what a job is asked to do."""

from __future__ import annotations

import argparse
import json
from importlib.resources import as_file, files

from graph.distributed import CondensationError
from jobs.asking import local_model
from jobs.asking.process import AnsweringError
from jobs.asking.prompts import SUFFIXES, find_template
from jobs.cli.arguments import (
    Command,
    add_input,
    add_run_flags,
    add_settings,
    load,
    settings_without_endpoint,
    tell_outcome,
)
from jobs.cli.studies import COMMANDS as STUDIES
from jobs.compare import CompareError
from jobs.condense import RelationsError
from jobs.inputs.samples import SampleError
from jobs.metrics.condensing import GraphFramesError
from jobs.results import UnreadableRunError
from jobs.run.manifest import OutputError
from jobs.run.progress import Display
from jobs.run.session import JavaError
from jobs.settings.model import SettingsError, decoding_for
from jobs.study.inputs import MetaEvaluationError
from jobs.tables import TABLES
from udfs.llm.templates import PromptError
from udfs.sheets.blinding import AnnotationError
from udfs.sheets.spreadsheets import SpreadsheetError
from udfs.stages import STAGES

USER_ERRORS = (
    SettingsError,
    SampleError,
    PromptError,
    OutputError,
    JavaError,
    AnsweringError,
    local_model.LocalModelError,
    RelationsError,
    GraphFramesError,
    CondensationError,
    UnreadableRunError,
    CompareError,
    MetaEvaluationError,
    AnnotationError,
    SpreadsheetError,
)
DEMO_OUTPUT = "untold-demo"


def _add_score(parser: argparse.ArgumentParser) -> None:
    add_input(parser, output=True)
    add_settings(parser)
    add_run_flags(parser)


def _score(options: argparse.Namespace) -> int:
    from jobs.run.output import absolute
    from jobs.score import ScoreRequest

    resolved = load(options)
    return _run_score(
        ScoreRequest(
            input=options.input,
            output=absolute(options.output),
            metrics=options.metric,
            settings=resolved.settings,
            embedded=resolved.embedded,
            format=options.format,
            limit=options.limit,
            overwrite=options.overwrite,
            retry_failed=options.retry_failed,
            wait=not options.no_wait,
            command=options.command_line,
        )
    )


def _run_score(request: object) -> int:
    from jobs.score import ScoreRequest, score, show_summary

    assert isinstance(request, ScoreRequest)
    outcome = score(request, Display())
    tell_outcome(lambda: show_summary(outcome, request.output), outcome.message)
    return outcome.exit_code


def _add_demo(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--output", metavar="DIR", default=DEMO_OUTPUT, help=f"where the tables go ({DEMO_OUTPUT})")
    parser.add_argument("--overwrite", action="store_true", help="replace the tables of another run in --output")


def _demo(options: argparse.Namespace) -> int:
    from jobs.demo import show_expected
    from jobs.run.output import absolute
    from jobs.score import ScoreRequest

    resolved = load(options, demo=True)
    with as_file(files("conf").joinpath("demo")) as folder:
        request = ScoreRequest(
            input=str(folder / "samples.jsonl"),
            output=absolute(options.output),
            metrics=("e2e",),
            settings=resolved.settings,
            embedded=resolved.embedded,
            overwrite=options.overwrite,
            command=options.command_line,
        )
        code = _run_score(request)
        show_expected(request.output, folder / "expected.jsonl")
    return code


def _add_plan(parser: argparse.ArgumentParser) -> None:
    add_input(parser, output=False)
    add_settings(parser)
    parser.add_argument("--overwrite", action="store_true", help="as for score")
    parser.add_argument("--retry-failed", action="store_true", help="count lasting failures as to be asked")
    parser.add_argument("--no-wait", action="store_true", help="as for score")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _plan(options: argparse.Namespace) -> int:
    from jobs.plan import PlanRequest, plan, show_plan
    from jobs.run.output import absolute

    resolved = load(options, asks=False)
    rows = plan(
        PlanRequest(
            input=options.input,
            output=absolute(options.output) if options.output else None,
            metrics=options.metric,
            settings=resolved.settings,
            embedded=resolved.embedded,
            format=options.format,
            limit=options.limit,
            retry_failed=options.retry_failed,
        )
    )
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show_plan(rows)
    return 0


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="DIR", required=True, help="the tables of a run")
    parser.add_argument("--sample", metavar="ID", required=True, help="a sample_id")
    parser.add_argument("--metric", metavar="NAME", help="one metric; all that scored the sample by default")
    parser.add_argument("--picture", metavar="FILE", help="where the picture goes: .svg or .png (DIR/pictures/...)")
    parser.add_argument("--raw", action="store_true", help="draw atoms instead of statements")


def _show(options: argparse.Namespace) -> int:
    from jobs.show import ShowRequest, show

    show(ShowRequest(options.output, options.sample, options.metric, options.picture, options.raw))
    return 0


def _add_condense(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--relations", metavar="PATH", required=True, help="premise_id, hypothesis_id, relation")
    parser.add_argument("--nodes", metavar="PATH", help="id, text, origin; without it every id is a context")
    parser.add_argument("--output", metavar="DIR", required=True, help="where the tables go")
    add_settings(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace what --output holds")


def _condense(options: argparse.Namespace) -> int:
    from jobs.condense import CondenseRequest, condense, show_counts
    from jobs.run.output import absolute

    settings = settings_without_endpoint(options)
    output = absolute(options.output)
    request = CondenseRequest(options.relations, options.nodes, output, settings, options.overwrite)
    show_counts(condense(request), output)
    return 0


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)


def _doctor(options: argparse.Namespace) -> int:
    from jobs.doctor import examine

    return examine(lambda: load(options))


def _add_schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", nargs="?", metavar="TABLE", help=", ".join(TABLES))


def _schema(options: argparse.Namespace) -> int:
    if options.table and options.table not in TABLES:
        options.parser.error(f"no table {options.table}; there are {', '.join(TABLES)}")
    for name in [options.table] if options.table else TABLES:
        print(name)
        for field in TABLES[name]:
            print(f"  {field.name}: {field.type}")
    return 0


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stage", nargs="?", metavar="STAGE", help=", ".join(STAGES))
    add_settings(parser)


def _prompts(options: argparse.Namespace) -> int:
    if options.stage is None:
        for name, stage in STAGES.items():
            print(f"{name}: variables {', '.join(stage.variables)}; file {name}{SUFFIXES['chat']}")
        return 0
    if options.stage not in STAGES:
        options.parser.error(f"no stage {options.stage}; there are {', '.join(STAGES)}")
    template = _template_of(options)
    print(template)
    return 0


def _template_of(options: argparse.Namespace) -> str:
    """The template that a run with these settings would use; a template needs no endpoint."""
    settings = settings_without_endpoint(options)
    return find_template(options.stage, decoding_for(settings, options.stage).api, settings.prompts_dir).source


COMMANDS = {
    "score": Command("score a file of answers", _add_score, _score),
    "plan": Command("say what a run would ask and cost; asks nothing", _add_plan, _plan),
    "condense": Command("condense relations from any source to statements", _add_condense, _condense),
    **STUDIES,
    "demo": Command("score the shipped samples on the embedded model", _add_demo, _demo),
    "show": Command("show one sample's statements, and draw its graph", _add_show, _show),
    "doctor": Command("check this machine and the endpoint", _add_doctor, _doctor),
    "schema": Command("show the tables and their columns", _add_schema, _schema),
    "prompts": Command("show the stages and their templates", _add_prompts, _prompts),
}
