"""Define the subcommand that compares metrics with human labels: meta-evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from untold.jobs.cli import arguments, values
from untold.jobs.cli.arguments import JSON, Command, Option, Options, flag, options_of, settings_options
from untold.jobs.cli.values import OneOf, claim_formats, count, known_formats, names, studied, study_formats
from untold.jobs.inputs.options import DrawOptions, ReadOptions

if TYPE_CHECKING:
    from untold.jobs.meta_evaluate import Sheet, StudyEndpoint
    from untold.jobs.settings.loading import Resolved
    from untold.udfs.statistics.item_agreement import Subset


def print_study(options: Options, report: str, table: str = "meta_evaluation") -> None:
    """Print the report of a study, or with --json the rows of its table, which are none without a report."""
    from untold.jobs.run_tables import open_run
    from untold.jobs.study.rendering import report_lines

    rows = open_run(options.output).table(table).to_pylist() if options.json and report else []
    arguments.print_result(options, rows, lambda page: report_lines(report, page))


def _subset(text: str) -> Subset:
    """Return the subset that a text names. NumPy is only imported for this option."""
    from untold.udfs.statistics.item_agreement import read_subset

    return read_subset(text)


def _named_folder(text: str) -> tuple[str, str]:
    """Read MODEL=DIR. Raise ValueError for other text.

    >>> _named_folder("gpt-4o=runs/gpt-4o")
    ('gpt-4o', 'runs/gpt-4o')
    """
    model, equals, folder = text.partition("=")
    if not (model.strip() and equals and folder):
        raise ValueError(f"{text!r} is not of the form MODEL=DIR")
    return model.strip(), folder


def _meta_evaluate(options: Options) -> int:
    """Compare metrics with human labels, or with `--annotations` report on a filled sheet.

    Both are one command because the first one writes the sheet.
    """
    if (options.annotations is None) != (options.key is None):
        raise click.UsageError("--annotations and --key go together")
    if options.annotations is None:
        _check(options)
        return _run(options)
    if options.annotation_sheet is not None:
        raise click.UsageError("--annotation-sheet writes a sheet, --annotations reads one; give one of them")
    from untold.jobs.study.annotations import report_study

    for one in _by_endpoint(options):
        arguments.settings_without_endpoint(one)
    report = report_study(options.annotations, options.key, options.output, seed=options.seed or 0)
    print_study(options, report, "human_study")
    return 0


def _check(options: Options) -> None:
    """Raise UsageError for missing options and for options that exclude each other."""
    # A stage judges claims, without a metric
    asks_metrics = not options.scores and options.dataset != "claims"
    needed = ("dataset", "input", "metric") if asks_metrics else ("dataset", "input")
    missing = [f"'--{name}'" for name in needed if not getattr(options, name)]
    if missing:
        raise click.UsageError(f"Missing option {', '.join(missing)}.")
    if options.scores and options.endpoint:
        raise click.UsageError("--scores uses existing scores; leave --endpoint out")
    if options.prompt_set and not asks_metrics:
        raise click.UsageError(
            "--prompt-set runs metrics under several prompts; leave --scores and --dataset claims out"
        )
    given = [name for name, _ in options.scores]
    if len(set(given)) < len(given):
        raise click.UsageError("--scores names one model twice")
    scores, judges = _judges_of(options)
    if judges and len(judges) < len(given):
        raise click.UsageError("--scores METRIC:JUDGE=DIR sets the judge of one metric. Write all in this way")
    several = max(len(scores), len(options.endpoint or ()), len(options.prompt_set or ()))
    if options.annotation_sheet and not judges and several > 1:
        raise click.UsageError("--annotation-sheet is for one model; give one --endpoint, --prompt-set or --scores")
    if asks_metrics:
        try:
            values.metric_names(",".join(options.metric))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="'--metric'") from None
    _check_data_set(options)


def _check_data_set(options: Options) -> None:
    """Raise UsageError for an option that the data set does not have."""
    dataset, metric = options.dataset, options.metric
    if dataset != "coverage":
        given = [f"--{name}" for name in ("covered", "subset") if getattr(options, name) is not None]
        given += ["--format"] if options.format is not None and dataset not in ("claims", "nuggets", "rubrics") else []
        if given:
            raise click.UsageError(f"{' and '.join(given)} requires --dataset coverage")
    formats = {"coverage": known_formats("items"), "nuggets": known_formats("items"), "claims": claim_formats()}
    formats["rubrics"] = known_formats("criteria")
    if dataset in formats and options.format not in (None, *formats[dataset]):
        other = "coverage" if dataset == "claims" else "claims"
        raise click.UsageError(f"--format {options.format} requires --dataset {other}")
    if dataset in formats and options.annotation_sheet:
        raise click.UsageError(f"--annotation-sheet draws from labels of responses; the data set {dataset} has none")
    only = {"nuggets": "nuggets", "rubrics": "rubric"}.get(str(dataset))
    if only and metric not in (None, (), (only,)):
        raise click.UsageError(f"--dataset {dataset} is only for the metric {only}")
    if dataset == "claims" and metric and not options.scores:
        raise click.UsageError("--metric requires --scores, because the stage verify_claim judges claims")


def _judges_of(options: Options) -> tuple[dict[str, str], dict[str, str]]:
    """Return the folders of `--scores` by model, and the judge of each metric for METRIC:JUDGE=DIR.

    Raise UsageError for a judge with two folders. The name of a model may contain a colon: only the name of a metric
    before it is a metric.

    `--scores e2e:gpt=A --scores qa:llama=B` returns ({gpt: A, llama: B}, {e2e: gpt, qa: llama}).
    """
    scores: dict[str, str] = {}
    judges: dict[str, str] = {}
    for name, folder in options.scores:
        metric, colon, judge = name.partition(":")
        if colon and metric in values.known_metrics():
            judges[metric] = name = judge
        if scores.setdefault(name, folder) != folder:
            raise click.UsageError(f"--scores has two folders for {name}. Use a different name for each judge")
    return scores, judges


def _by_endpoint(options: Options) -> list[Options]:
    """Return the options for each endpoint, or the options themselves without an endpoint."""
    return [Options(**{**vars(options), "endpoint": name}) for name in options.endpoint or [None]]


def load_endpoint(options: Options) -> Resolved:
    """Return the settings of a command line with one `--endpoint`. Its file can also set `qa.*` and other metrics."""
    from untold.jobs.metrics import METRICS

    return arguments.load(options, metrics=METRICS)


def _run(options: Options) -> int:
    """Run the metrics on each endpoint, or read existing scores, and print the report.

    All settings are loaded before the first request, so that a missing key is an error at once.
    """
    from untold.jobs.meta_evaluate import MetaEvaluationRequest, endpoint_of, meta_evaluate

    each = _by_endpoint(options)
    resolved = [] if options.scores else [load_endpoint(one) for one in each]
    # Only `llm.*`, `stages.*` and the settings of metrics differ between the runs
    settings = resolved[0].settings if resolved else arguments.settings_without_endpoint(each[0])
    endpoints = tuple(
        endpoint_of(one.settings, embedded=one.embedded, prompt_set=prompt_set)
        for one in resolved
        for prompt_set in options.prompt_set or (None,)
    )
    scores, judges = _judges_of(options)
    request = MetaEvaluationRequest(
        **arguments.run_fields(options, settings, _check_labelled(options)),
        dataset=str(arguments.data_set(options.dataset, options.conflictbank)),
        metrics=options.metric or (tuple(judges) or None),
        endpoints=endpoints,
        scores={model: arguments.absolute(folder) for model, folder in scores.items()} or None,
        judges=judges or None,
        sheet=_sheet_of(each[0], endpoints),
        **{name: getattr(options, name) for name in ("cluster", "format", "covered", "subset")},
    )
    return arguments.run_job(meta_evaluate, request, lambda outcome, _: print_study(options, outcome.report))


def _check_labelled(options: Options) -> ReadOptions:
    """Return the format of the study's input. Raise the errors of `check_samples`."""
    from untold.jobs.inputs.checking import adapter_of
    from untold.jobs.study.meta_evaluation import NEEDS
    from untold.jobs.study.verdict_studies import layout_of

    if options.dataset == "claims":
        return arguments.check_samples(options, (), layout_of(options.format))
    is_data_set = options.dataset not in ("coverage", "nuggets", "rubrics")
    name = arguments.data_set(options.dataset, options.conflictbank) if is_data_set else options.format
    return arguments.check_samples(options, NEEDS, adapter_of(name))


def _sheet_of(options: Options, endpoints: Sequence[StudyEndpoint]) -> Sheet | None:
    """Return the annotation sheet of `--annotation-sheet`. The first endpoint restates the answers of qa on it.

    A sheet of qa needs an endpoint, also with `--scores`. The endpoint of the settings is then used.
    """
    from untold.jobs.meta_evaluate import Sheet, endpoint_of

    if not options.annotation_sheet:
        return None
    restating = None if endpoints else arguments.load_or_none(options)
    own = endpoint_of(restating.settings, embedded=restating.embedded) if restating else None
    return Sheet(options.annotation_sheet, options.seed or 0, endpoints[0] if endpoints else own)


_SCORES = (
    "existing scores, an output of score or a folder of Parquet (repeatable). Use METRIC:JUDGE=DIR if each metric has "
    "a different judge"
)
_COVERED = "coverage: labels of items that mean covered (covered, true, yes, 1)"
_SEED = "seed of --random (statistics.seed), and of the draw and the intervals of the human study (0)"
COMMANDS: dict[str, click.Command] = {
    "meta-evaluate": Command(
        "evaluate metrics against human labels",
        _meta_evaluate,
        [
            Option("--dataset", "NAME", "the labelled data set", names=studied, read=OneOf(studied)),
            Option("--input", "PATH", "the data set's file"),
            Option("--output", "DIR", "folder of the runs, the tables and the report", required=True),
            Option("--metric", "LIST", "metrics, by comma; with --scores by default all", read=names),
            Option("--scores", "MODEL=DIR", _SCORES, read=_named_folder, multiple=True),
            Option("--prompt-set", "LIST", "compare these prompts: published,untold", read=values.prompt_sets),
            *arguments.LIMIT,
            flag("--cluster", "intervals and tests resample all answers to a question together"),
            Option("--covered", "LABEL,...", _COVERED, read=names),
            Option("--format", "NAME", "a data set of items or claims", names=study_formats, read=OneOf(study_formats)),
            Option("--subset", "KIND:N", "coverage: only N references, standard or challenging", read=_subset),
            arguments.CONFLICTBANK_OPTION,
            *arguments.READ_OPTIONS,
            *options_of(DrawOptions, "random"),
            JSON,
            *settings_options(several=True),
            *arguments.RUN_FLAGS,
            Option(
                "--annotation-sheet", "N", "human study: draw N samples, write a blinded sheet and its key", read=count
            ),
            Option("--seed", "S", _SEED, read=values.whole_number),
            Option("--annotations", "FILE", "human study: only report on a filled sheet, CSV or XLSX"),
            Option("--key", "FILE", "human study: the key next to the sheet"),
        ],
        needs={**arguments.SCORES, "study": (*arguments.PLOTS, "nltk", "openpyxl", "rouge_score", "sacrebleu")},
    ),
}
