"""The subcommands that study systems and metrics: generate, compare and meta-evaluate."""

from __future__ import annotations

import argparse
import json

from jobs.cli.arguments import (
    Command,
    add_run_flags,
    add_settings,
    count,
    load,
    metric_names,
    names,
    settings_without_endpoint,
    tell_outcome,
)
from jobs.run.progress import Display
from jobs.settings.loading import NoEndpointError, Resolved
from jobs.settings.systems import load_systems

META_DATASETS = ("wikicontradict", "conflictbank")


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", metavar="PATH", required=True, help="questions: a file, a folder or a glob")
    parser.add_argument("--output", metavar="DIR", required=True, help="where the tables go")
    parser.add_argument("--systems", metavar="FILE", required=True, help="systems and their settings of llm.* (YAML)")
    parser.add_argument("--format", choices=["eli5_category"], help="questions of a known data set, with --contexts")
    parser.add_argument("--contexts", metavar="FILE", help="the contexts of such questions: rows of q_id and contexts")
    parser.add_argument("--limit", metavar="N", type=count, help="only the first N questions by id")
    add_settings(parser)
    add_run_flags(parser)


def _generate(options: argparse.Namespace) -> int:
    from jobs.generate import GenerateRequest, generate, show_systems
    from jobs.run.output import absolute

    if (options.format is None) != (options.contexts is None):
        options.parser.error("--format eli5_category and --contexts go together: give both, or neither")
    request = GenerateRequest(
        input=options.input,
        output=absolute(options.output),
        systems=load_systems(options.systems, lambda layer: load(options, system=layer)),
        contexts=options.contexts,
        limit=options.limit,
        overwrite=options.overwrite,
        retry_failed=options.retry_failed,
        wait=not options.no_wait,
        command=options.command_line,
    )
    outcome = generate(request, Display())
    tell_outcome(lambda: show_systems(outcome, request.output), outcome.message)
    return outcome.exit_code


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="DIR", required=True, nargs="+", help="outputs of untold score")
    parser.add_argument("--metric", metavar="LIST", type=names, help="metrics, by comma; all of them by default")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_settings(parser)


def _compare(options: argparse.Namespace) -> int:
    from jobs.compare import compare, show_comparison
    from jobs.run.output import absolute
    from jobs.run.session import open_session

    settings = settings_without_endpoint(options)
    display = Display()
    found = compare(
        open_session(settings),
        [absolute(directory) for directory in options.output],
        metrics=options.metric,
        seed=settings.statistics.seed,
        notify=display.note,
    )
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        show_comparison(found)
    return 0


def _add_meta_evaluate(parser: argparse.ArgumentParser) -> None:
    from jobs.study.annotations import add_annotation_arguments

    parser.add_argument("--dataset", metavar="NAME", choices=META_DATASETS, help=" or ".join(META_DATASETS))
    parser.add_argument("--input", metavar="PATH", help="the data set's file")
    parser.add_argument("--output", metavar="DIR", required=True, help="where runs, tables and report go")
    parser.add_argument("--metric", metavar="LIST", type=names, help="metrics, by comma; with --scores all by default")
    scores = "scores that exist: an output of score, or a folder of Parquet; repeatable, and nothing is asked"
    parser.add_argument("--scores", metavar="MODEL=DIR", action="append", default=[], type=_named_folder, help=scores)
    parser.add_argument("--limit", metavar="N", type=count, help="only the first N samples by sample_id")
    parser.add_argument("--cluster", action="store_true", help="intervals resample whole questions")
    add_settings(parser, several=True)
    add_run_flags(parser)
    add_annotation_arguments(parser)


def _named_folder(text: str) -> tuple[str, str]:
    model, equals, folder = text.partition("=")
    if not (model.strip() and equals and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form MODEL=DIR")
    return model.strip(), folder


def _meta_evaluate(options: argparse.Namespace) -> int:
    from jobs.study.annotations import reads_annotations, report_annotations

    if reads_annotations(options):
        return report_annotations(options)
    _check_meta_evaluate(options)
    return _run_meta_evaluate(options)


def _check_meta_evaluate(options: argparse.Namespace) -> None:
    """Ends the command with a usage error where arguments are missing or do not go together."""
    needed = ("dataset", "input") if options.scores else ("dataset", "input", "metric")
    missing = [f"--{name}" for name in needed if not getattr(options, name)]
    if missing:
        options.parser.error(f"the following arguments are required: {', '.join(missing)}")
    if options.scores and options.endpoint:
        options.parser.error("--scores takes scores that exist; leave --endpoint out")
    models = [model for model, _ in options.scores]
    if len(set(models)) < len(models):
        options.parser.error("--scores names one model twice")
    if options.annotation_sheet and max(len(models), len(options.endpoint or ())) > 1:
        options.parser.error("--annotation-sheet is of one model; give one --endpoint or one --scores")
    if not options.scores:
        _metrics_or_error(options)


def _metrics_or_error(options: argparse.Namespace) -> None:
    try:
        metric_names(",".join(options.metric))
    except argparse.ArgumentTypeError as error:
        options.parser.error(f"argument --metric: {error}")


def _load_or_none(options: argparse.Namespace) -> Resolved | None:
    """The settings of a command that can do without an endpoint; None without one."""
    try:
        return load(options)
    except NoEndpointError:
        return None


def _run_meta_evaluate(options: argparse.Namespace) -> int:
    from jobs.meta_evaluate import MetaEvaluationRequest, Sheet, endpoint_of, meta_evaluate
    from jobs.run.output import absolute

    each = [argparse.Namespace(**{**vars(options), "endpoint": name}) for name in options.endpoint or [None]]
    resolved = [] if options.scores else [load(one) for one in each]
    sheet = None
    if options.annotation_sheet:
        restating = resolved[0] if resolved else _load_or_none(each[0])
        endpoint = endpoint_of(restating.settings, embedded=restating.embedded) if restating else None
        sheet = Sheet(options.annotation_sheet, options.seed, endpoint)
    request = MetaEvaluationRequest(
        dataset=options.dataset,
        input=options.input,
        output=absolute(options.output),
        settings=resolved[0].settings if resolved else settings_without_endpoint(each[0]),
        metrics=options.metric,
        endpoints=tuple(endpoint_of(one.settings, embedded=one.embedded) for one in resolved),
        scores={model: absolute(folder) for model, folder in options.scores} or None,
        limit=options.limit,
        sheet=sheet,
        cluster=options.cluster,
        overwrite=options.overwrite,
        retry_failed=options.retry_failed,
        wait=not options.no_wait,
        command=options.command_line,
    )
    outcome = meta_evaluate(request, Display())
    tell_outcome(lambda: print(outcome.report, end=""), outcome.message)
    return outcome.exit_code


COMMANDS = {
    "generate": Command("answer a file of questions by several systems, to be scored", _add_generate, _generate),
    "compare": Command("rank systems by their scores", _add_compare, _compare),
    "meta-evaluate": Command("hold metrics against human labels", _add_meta_evaluate, _meta_evaluate),
}
