"""The subcommands that study systems and metrics: generate, compare and meta-evaluate."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from untold.jobs.cli.arguments import (
    CONFLICTBANK_OPTION,
    RANDOM_OPTION,
    READ_OPTIONS,
    RUN_FLAGS,
    Argument,
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
    CONTEXTS_APART,
    claim_formats,
    count,
    known_formats,
    known_metrics,
    metric_names,
    names,
    one_of,
    prompt_names,
    question_formats,
    studied,
    study_formats,
    weights,
    whole_number,
)
from untold.udfs.statistics.tiers import read_subset

if TYPE_CHECKING:
    from untold.jobs.inputs.files import ReadOptions
    from untold.jobs.meta_evaluate import Sheet, StudyEndpoint


def _generate(options: Options) -> int:
    """Questions to the answers of several systems, laid out as samples to be scored."""
    if (options.format == CONTEXTS_APART) != (options.contexts is not None):
        raise click.UsageError(f"--format {CONTEXTS_APART} and --contexts go together: give both, or neither")
    # Only here: wrong use is told before the engines are imported
    from untold.jobs.settings.systems import load_systems

    systems = load_systems(options.systems, lambda layer: load(options, system=layer))
    read = _check_questions(options)
    from untold.jobs.generate import GenerateRequest, generate, show_systems

    request = GenerateRequest(
        **run_fields(options, next(iter(systems.values())).settings, read),
        systems=systems,
        contexts=options.contexts,
        format=None if options.format == CONTEXTS_APART else options.format,
    )
    return run_job(generate, request, show_systems)


def _check_questions(options: Options) -> ReadOptions:
    """How the questions are read. Raises what `check_samples` raises, for the file of their contexts too."""
    from untold.jobs.inputs.checking import adapter_of, check_input
    from untold.jobs.inputs.questions import QUESTION
    from untold.udfs.samples.eli5 import CONTEXTS, QUESTIONS

    if options.contexts is None:
        return check_samples(options, QUESTION, adapter_of(options.format))
    read = check_samples(options, (), QUESTIONS)
    check_input(options.contexts, replace(read, columns={}), (), CONTEXTS)
    return read


def _compare(options: Options) -> int:
    """Outputs of `untold score` to a ranking. Asks nothing, so it needs no endpoint."""
    from untold.jobs.compare import compare, comparison_lines
    from untold.jobs.run.output import absolute
    from untold.jobs.run.progress import Display
    from untold.jobs.run.session import open_session
    from untold.jobs.run.terminal import page_of, print_lines

    settings = settings_without_endpoint(options)
    with Display() as display:
        display.status("starting Java")
        spark = open_session(settings)
        display.status("comparing systems")
        found = compare(
            spark,
            [absolute(directory) for directory in options.runs],
            metrics=options.metric,
            seed=settings.statistics.seed,
            notify=display.note,
            cluster=options.cluster,
            undefined=options.undefined,
        )
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print_lines(
            comparison_lines(
                found,
                page_of(sys.stdout),
                every=options.all,
                clustered=options.cluster,
                undefined=options.undefined,
            )
        )
    return 0


def _combine_studies(options: Options) -> int:
    """Averages of several outputs of `untold meta-evaluate`; prints the report. Asks nothing."""
    from untold.jobs.combine_studies import combine_studies
    from untold.jobs.run.output import absolute
    from untold.jobs.run.progress import Display

    settings = settings_without_endpoint(options)
    with Display() as display:
        report = combine_studies(
            [absolute(directory) for directory in options.studies],
            absolute(options.output),
            seed=settings.statistics.seed,
            overwrite=options.overwrite,
            notify=display.note,
        )
    _print_report(report)
    return 0


def _print_report(report: str) -> None:
    from untold.jobs.run.terminal import page_of, print_lines
    from untold.jobs.study.report import report_lines

    print_lines(report_lines(report, page_of(sys.stdout)))


def _sweep(options: Options) -> int:
    """ICAT of an output under several betas, as a table and a plot."""
    from untold.jobs.sweep import BETAS, SweepRequest, show_sweep, sweep

    return _over_measures(options, partial(SweepRequest, betas=options.betas or BETAS), sweep, show_sweep)


def _curve(options: Options) -> int:
    """Recall at k of an output against k, as a table and a plot."""
    from untold.jobs.curve import CurveRequest, curve, show_curve

    return _over_measures(options, CurveRequest, curve, show_curve)


def _over_measures(
    options: Options, request: Callable[..., Any], run: Callable[..., Any], show: Callable[..., None]
) -> int:
    """A table and a plot of what a run has measured. Asks nothing, so it needs no endpoint."""
    from untold.jobs.run.output import absolute
    from untold.jobs.run.progress import Display
    from untold.jobs.run.session import open_session

    settings = settings_without_endpoint(options)
    output = absolute(options.run)
    with Display() as display:
        display.status("starting Java")
        rows = run(open_session(settings), request(output, seed=settings.statistics.seed))
    show(rows, output)
    return 0


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
    _print_report(report_study(options.annotations, options.key, options.output, seed=options.seed or 0))
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
    if options.prompts and not asks_metrics:
        raise click.UsageError("--prompts runs metrics under several prompts; leave --scores and --dataset claims out")
    given = [name for name, _ in options.scores]
    if len(set(given)) < len(given):
        raise click.UsageError("--scores names one model twice")
    scores, judges = _judges_of(options)
    if judges and len(judges) < len(given):
        raise click.UsageError("--scores METRIC:JUDGE=DIR names a judge for each metric; give all of them that form")
    several = max(len(scores), len(options.endpoint or ()), len(options.prompts or ()))
    if options.annotation_sheet and not judges and several > 1:
        raise click.UsageError("--annotation-sheet is of one model; give one --endpoint, --prompts or --scores")
    if asks_metrics:
        _metrics_or_error(options)
    _check_coverage(options)
    _check_claims(options)


def _check_coverage(options: Options) -> None:
    """Raises UsageError for what only a study of coverage has, or has not."""
    if options.dataset != "coverage":
        given = [f"--{name}" for name in ("covered", "subset") if getattr(options, name) is not None]
        given += ["--format"] if options.format is not None and options.dataset != "claims" else []
        if given:
            raise click.UsageError(f"{' and '.join(given)} goes with --dataset coverage")
    elif options.format not in (None, *known_formats("items")):
        raise click.UsageError(f"--format {options.format} is of --dataset claims")
    elif options.annotation_sheet:
        raise click.UsageError("--annotation-sheet draws from labels of whole responses, which coverage has not")


def _check_claims(options: Options) -> None:
    """Raises UsageError for what a study of claims has not."""
    if options.dataset != "claims":
        return
    if options.metric and not options.scores:
        raise click.UsageError("--metric goes with --scores: claims are judged by the stage verify_claim")
    if options.annotation_sheet:
        raise click.UsageError("--annotation-sheet draws from labels of whole responses, which claims have not")
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
        endpoint_of(one.settings, embedded=one.embedded, prompts=prompts)
        for one in resolved
        for prompts in options.prompts or (None,)
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
    return run_job(meta_evaluate, request, lambda outcome, _: _print_report(outcome.report))


def _check_labelled(options: Options) -> ReadOptions:
    """How the input of a study is read. Raises what `check_samples` raises."""
    from untold.jobs.inputs.checking import adapter_of
    from untold.jobs.study.claims_study import layout_of
    from untold.jobs.study.coverage_study import NEEDS

    if options.dataset == "claims":
        return check_samples(options, (), layout_of(options.format))
    is_data_set = options.dataset != "coverage"
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


_QUESTIONS = [
    Option("--input", "PATH", "questions: a file, a folder or a glob", required=True),
    Option("--output", "DIR", "where the tables go", required=True),
    Option("--systems", "FILE", "systems and their settings of llm.* (YAML)", required=True),
    Option("--format", "NAME", "a known data set", names=question_formats, read=one_of(question_formats)),
    Option("--contexts", "FILE", "the contexts of questions of eli5_category: rows of q_id and contexts"),
    *READ_OPTIONS,
    RANDOM_OPTION,
    Option("--limit", "N", "only the first N questions by id", read=count),
]
_COMPARED = [
    Argument("runs", "RUN...", "outputs of untold score", many=True),
    Option("--metric", "LIST", "metrics, by comma; all of them by default", read=names),
    flag("--cluster", "intervals and tests take all rows of a query together"),
    Option(
        "--undefined",
        "HOW",
        "rank by the mean of the scores (mean, the default), or with 0 for samples that state nothing (zero)",
        read=one_of(("mean", "zero")),
        default="mean",
    ),
    flag("--all", "print all pairs, and not only those that differ by more than chance"),
    flag("--json", "print JSON"),
]
_COMBINED = [
    Argument("studies", "STUDY...", "outputs of untold meta-evaluate", many=True),
    Option("--output", "DIR", "where the table and the report go", required=True),
    flag("--overwrite", "replace the tables of another run in --output"),
]
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
    Option("--prompts", "LIST", "run under each of these prompts, compared: published,ours", read=prompt_names),
    Option("--limit", "N", "only the first N samples by sample_id", read=count),
    flag("--cluster", "intervals and tests take all answers to a question together"),
    Option("--covered", "LABEL,...", "coverage: labels of items that mean covered (covered, true, yes, 1)", read=names),
    Option("--format", "NAME", "a data set of coverage or claims", names=study_formats, read=one_of(study_formats)),
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
    "generate": Command(
        "answer a file of questions by several systems, to be scored",
        _generate,
        [*_QUESTIONS, *settings_options(), *RUN_FLAGS],
    ),
    "compare": Command("rank systems by their scores", _compare, [*_COMPARED, *settings_options()]),
    "combine-studies": Command(
        "average meta-evaluations over data sets",
        _combine_studies,
        [*_COMBINED, *settings_options()],
        needs=("matplotlib", "networkx"),
    ),
    "meta-evaluate": Command(
        "evaluate metrics against human labels",
        _meta_evaluate,
        [*_LABELLED, *settings_options(several=True), *RUN_FLAGS, *_HUMAN_STUDY],
        needs=("matplotlib", "networkx", "nltk", "openpyxl", "rouge_score", "sacrebleu"),
    ),
    "sweep": Command(
        "weigh coverage against factuality over a range: ICAT by beta",
        _sweep,
        [
            Argument("run", "RUN", "an output of untold score with the metric icat"),
            Option("--betas", "LIST", "values of beta, by comma (.125,.25,.5,1,2,4,8)", read=weights),
            *settings_options(),
        ],
        needs=("matplotlib", "networkx"),
    ),
    "curve": Command(
        "draw recall of the most important facts against their number",
        _curve,
        [
            Argument("run", "RUN", "an output of untold score with the metric importance"),
            *settings_options(),
        ],
        needs=("matplotlib", "networkx"),
    ),
}
