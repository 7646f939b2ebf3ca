"""The subcommand that holds metrics against people: meta-evaluate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from untold.jobs.cli.arguments import (
    CONFLICTBANK_OPTION,
    RANDOM_OPTION,
    READ_OPTIONS,
    RUN_FLAGS,
    Command,
    Option,
    Options,
    check_samples,
    data_set,
    flag,
    load,
    load_or_none,
    run_fields,
    run_job,
    settings_options,
    settings_without_endpoint,
)
from untold.jobs.cli.values import (
    claim_formats,
    count,
    known_formats,
    known_metrics,
    metric_names,
    names,
    one_of,
    prompt_sets,
    studied,
    study_formats,
    whole_number,
)
from untold.udfs.statistics.tiers import read_subset

if TYPE_CHECKING:
    from untold.jobs.inputs.files import ReadOptions
    from untold.jobs.meta_evaluate import Sheet, StudyEndpoint


def print_report(report: str) -> None:
    from untold.jobs.run.terminal import page_of, print_lines
    from untold.jobs.study.report import report_lines

    print_lines(report_lines(report, page_of(sys.stdout)))


def _named_folder(text: str) -> tuple[str, str]:
    """The two halves of MODEL=DIR. Raises ValueError for a text that has only one.

    >>> _named_folder("gpt-4o=runs/gpt-4o")
    ('gpt-4o', 'runs/gpt-4o')
    """
    model, equals, folder = text.partition("=")
    if not (model.strip() and equals and folder):
        raise ValueError(f"{text!r} is not of the form MODEL=DIR")
    return model.strip(), folder


def _meta_evaluate(options: Options) -> int:
    """Metrics against human labels; with `--annotations` a report on a filled sheet, and nothing else.

    Both are one command because the sheet is drawn from the runs that the first makes.
    """
    _check_annotations(options)
    if options.annotations is not None:
        return _report_annotations(options)
    _check_meta_evaluate(options)
    return _run_meta_evaluate(options)


def _check_annotations(options: Options) -> None:
    """Raises UsageError where what writes a sheet and what reads one do not go together."""
    if (options.annotations is None) != (options.key is None):
        raise click.UsageError("--annotations and --key go together")
    if options.annotations is not None and options.annotation_sheet is not None:
        raise click.UsageError("--annotation-sheet writes a sheet, --annotations reads one; give one of them")


def _report_annotations(options: Options) -> int:
    """Reads a filled sheet, writes the table and the report to --output, and prints the report; starts no engine."""
    from untold.jobs.study.annotations import report_study

    for one in _by_endpoint(options):
        settings_without_endpoint(one)
    print_report(report_study(options.annotations, options.key, options.output, seed=options.seed or 0))
    return 0


def _check_meta_evaluate(options: Options) -> None:
    """Raises UsageError where arguments are missing or do not go together."""
    # Claims are judged by a stage, and by no metric
    asks_metrics = not options.scores and options.dataset != "claims"
    needed = ("dataset", "input", "metric") if asks_metrics else ("dataset", "input")
    missing = [f"'--{name}'" for name in needed if not getattr(options, name)]
    if missing:
        raise click.UsageError(f"Missing option {', '.join(missing)}.")
    if options.scores and options.endpoint:
        raise click.UsageError("--scores takes scores that exist; leave --endpoint out")
    if options.prompt_set and not asks_metrics:
        raise click.UsageError(
            "--prompt-set runs metrics under several prompts; leave --scores and --dataset claims out"
        )
    given = [name for name, _ in options.scores]
    if len(set(given)) < len(given):
        raise click.UsageError("--scores names one model twice")
    scores, judges = _judges_of(options)
    if judges and len(judges) < len(given):
        raise click.UsageError("--scores METRIC:JUDGE=DIR names a judge for each metric; give all of them that form")
    several = max(len(scores), len(options.endpoint or ()), len(options.prompt_set or ()))
    if options.annotation_sheet and not judges and several > 1:
        raise click.UsageError("--annotation-sheet is of one model; give one --endpoint, --prompt-set or --scores")
    if asks_metrics:
        _metrics_or_error(options)
    _check_coverage(options)
    _check_claims(options)


def _check_coverage(options: Options) -> None:
    """Raises UsageError for what only a study of coverage has, or has not."""
    if options.dataset != "coverage":
        given = [f"--{name}" for name in ("covered", "subset") if getattr(options, name) is not None]
        given += ["--format"] if options.format is not None and options.dataset not in ("claims", "nuggets") else []
        if given:
            raise click.UsageError(f"{' and '.join(given)} goes with --dataset coverage")
    if options.dataset in ("coverage", "nuggets") and options.format not in (None, *known_formats("items")):
        raise click.UsageError(f"--format {options.format} is of --dataset claims")
    if options.dataset in ("coverage", "nuggets") and options.annotation_sheet:
        raise click.UsageError(
            f"--annotation-sheet draws from labels of responses; the data set {options.dataset} has none"
        )
    if options.dataset == "nuggets" and options.metric not in (None, (), ("nuggets",)):
        raise click.UsageError("--dataset nuggets is of the metric nuggets alone")


def _check_claims(options: Options) -> None:
    """Raises UsageError for what a study of claims has not."""
    if options.dataset != "claims":
        return
    if options.metric and not options.scores:
        raise click.UsageError("--metric goes with --scores: claims are judged by the stage verify_claim")
    if options.annotation_sheet:
        raise click.UsageError("--annotation-sheet draws from labels of responses; the data set claims has none")
    if options.format not in (None, *claim_formats()):
        raise click.UsageError(f"--format {options.format} is of --dataset coverage")


def _judges_of(options: Options) -> tuple[dict[str, str], dict[str, str]]:
    """The folders of `--scores` by model, and by metric its judge where they have the form METRIC:JUDGE=DIR.

    Raises UsageError where one judge has two folders.

    `--scores e2e:gpt=A --scores qa:llama=B` gives ({gpt: A, llama: B}, {e2e: gpt, qa: llama}). A model's own name may
    hold a colon: only what stands before it and is a metric is read as one.
    """
    scores: dict[str, str] = {}
    judges: dict[str, str] = {}
    for name, folder in options.scores:
        metric, colon, judge = name.partition(":")
        if colon and metric in known_metrics():
            judges[metric] = name = judge
        if scores.setdefault(name, folder) != folder:
            raise click.UsageError(f"--scores gives {name} two folders; name the judges apart")
    return scores, judges


def _metrics_or_error(options: Options) -> None:
    """Raises UsageError for metrics that cannot be run; with --scores a metric may be of any name."""
    try:
        metric_names(",".join(options.metric))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--metric'") from None


def _by_endpoint(options: Options) -> list[Options]:
    """The options once for each endpoint that they name, and once where they name none."""
    return [Options(**{**vars(options), "endpoint": name}) for name in options.endpoint or [None]]


def _run_meta_evaluate(options: Options) -> int:
    """Runs the metrics on each endpoint, or takes scores that exist, and prints the report.

    Every endpoint's settings are loaded before the first is asked: a missing key ends it at once.
    """
    from untold.jobs.meta_evaluate import MetaEvaluationRequest, endpoint_of, meta_evaluate
    from untold.jobs.run.output import absolute

    each = _by_endpoint(options)
    resolved = [] if options.scores else [load(one) for one in each]
    # Spark, statistics and store are of the first endpoint; each run has its own `llm.*`
    settings = resolved[0].settings if resolved else settings_without_endpoint(each[0])
    endpoints = tuple(
        endpoint_of(one.settings, embedded=one.embedded, prompt_set=prompt_set)
        for one in resolved
        for prompt_set in options.prompt_set or (None,)
    )
    scores, judges = _judges_of(options)
    read = _check_labelled(options)
    request = MetaEvaluationRequest(
        **run_fields(options, settings, read),
        dataset=str(data_set(options.dataset, options.conflictbank)),
        metrics=options.metric or (tuple(judges) or None),
        endpoints=endpoints,
        scores={model: absolute(folder) for model, folder in scores.items()} or None,
        judges=judges or None,
        sheet=_sheet_of(each[0], endpoints),
        cluster=options.cluster,
        format=options.format,
        covered=options.covered,
        subset=options.subset,
    )
    return run_job(meta_evaluate, request, lambda outcome, _: print_report(outcome.report))


def _check_labelled(options: Options) -> ReadOptions:
    """How the input of a study is read. Raises what `check_samples` raises."""
    from untold.jobs.inputs.checking import adapter_of
    from untold.jobs.study.claims_study import layout_of
    from untold.jobs.study.coverage_study import NEEDS

    if options.dataset == "claims":
        return check_samples(options, (), layout_of(options.format))
    is_data_set = options.dataset not in ("coverage", "nuggets")
    name = data_set(options.dataset, options.conflictbank) if is_data_set else options.format
    return check_samples(options, NEEDS, adapter_of(name))


def _sheet_of(options: Options, endpoints: Sequence[StudyEndpoint]) -> Sheet | None:
    """The annotation sheet of `--annotation-sheet`, or None; the first endpoint restates the answers of qa on it.

    Scores that exist need no endpoint, but a sheet of qa does: one that the settings name, if any, is taken for it.
    """
    from untold.jobs.meta_evaluate import Sheet, endpoint_of

    if not options.annotation_sheet:
        return None
    restating = None if endpoints else load_or_none(options)
    own = endpoint_of(restating.settings, embedded=restating.embedded) if restating else None
    return Sheet(options.annotation_sheet, options.seed or 0, endpoints[0] if endpoints else own)


_SCORES = (
    "scores that exist: an output of score, or a folder of Parquet; repeatable, and nothing is asked; "
    "METRIC:JUDGE=DIR where each metric has a judge of its own"
)
_LABELLED = [
    Option("--dataset", "NAME", "what people have labelled", names=studied, read=one_of(studied)),
    Option("--input", "PATH", "the data set's file"),
    Option("--output", "DIR", "where runs, tables and report go", required=True),
    Option("--metric", "LIST", "metrics, by comma; with --scores all by default", read=names),
    Option("--scores", "MODEL=DIR", _SCORES, read=_named_folder, multiple=True),
    Option("--prompt-set", "LIST", "run under each of these prompts, compared: published,untold", read=prompt_sets),
    Option("--limit", "N", "only the first N samples by sample_id", read=count),
    flag("--cluster", "intervals and tests take all answers to a question together"),
    Option("--covered", "LABEL,...", "coverage: labels of items that mean covered (covered, true, yes, 1)", read=names),
    Option(
        "--format", "NAME", "a data set of coverage, claims or nuggets", names=study_formats, read=one_of(study_formats)
    ),
    Option("--subset", "KIND:N", "coverage: N references only, standard or challenging", read=read_subset),
    CONFLICTBANK_OPTION,
    *READ_OPTIONS,
    RANDOM_OPTION,
]
_HUMAN_STUDY = [
    Option("--annotation-sheet", "N", "human study: draw N samples and write a blinded sheet and its key", read=count),
    Option(
        "--seed",
        "S",
        "of --random (statistics.seed), and of the human study's draw and intervals (0)",
        read=whole_number,
    ),
    Option("--annotations", "FILE", "human study: a filled sheet, CSV or XLSX: report on it, nothing else"),
    Option("--key", "FILE", "human study: the key that was written beside the sheet"),
]
COMMANDS: dict[str, click.Command] = {
    "meta-evaluate": Command(
        "evaluate metrics against human labels",
        _meta_evaluate,
        [*_LABELLED, *settings_options(several=True), *RUN_FLAGS, *_HUMAN_STUDY],
        needs=("matplotlib", "networkx", "nltk", "openpyxl", "rouge_score", "sacrebleu"),
    ),
}
