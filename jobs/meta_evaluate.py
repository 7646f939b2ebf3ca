"""Compare metrics with human labels, for one data set or several (Dejl et al. 2025; methods, sections 6 and 7)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from untold.jobs.inputs.samples import Samples, fingerprint, show_invalid
from untold.jobs.run.manifest import Identity
from untold.jobs.run.outcome import EXIT_CODES, FAILED_TOO_MANY, Ending
from untold.jobs.run.output import Output, shown
from untold.jobs.run.session import open_session
from untold.jobs.run.terminal import Display, amount
from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.study.agreement import average_rows, has_answered, missing_averages
from untold.jobs.study.annotations import Restate, write_sheet
from untold.jobs.study.claims_study import ClaimStudy, asker_of, read_claims
from untold.jobs.study.coverage_study import NEEDS, CoverageStudy
from untold.jobs.study.judgements import MetaEvaluationError
from untold.jobs.study.label_study import REPORT, LabelStudy
from untold.jobs.study.meta_evaluation import CLAIMS, COVERAGE, NUGGETS, Study, check_prompts
from untold.jobs.study.meta_evaluation import MetaEvaluationOutcome as MetaEvaluationOutcome
from untold.jobs.study.meta_evaluation import MetaEvaluationRequest as MetaEvaluationRequest
from untold.jobs.study.meta_evaluation import Sheet as Sheet
from untold.jobs.study.meta_evaluation import StudyEndpoint as StudyEndpoint
from untold.jobs.study.meta_evaluation import endpoint_of as endpoint_of
from untold.jobs.study.nuggets_study import READS, NuggetStudy
from untold.jobs.study.report import AVERAGE, render_averages
from untold.jobs.tables import COMPARISONS, FALSE_NEGATIVES, MATCH_COUNTS, META_EVALUATION, SUBSET, TIERS
from untold.jobs.tables import COVERAGE as COVERAGE_TABLE
from untold.udfs.errors import UserError
from untold.udfs.samples.conversion import REQUIRED
from untold.udfs.storage import StoragePath

TABLES = {
    "meta_evaluation": META_EVALUATION,
    "match_counts": MATCH_COUNTS,
    "comparisons": COMPARISONS,
    "coverage": COVERAGE_TABLE,
    "tiers": TIERS,
    "false_negatives": FALSE_NEGATIVES,
    "subset": SUBSET,
}
# SVG for documents, PNG for readers that show no SVG
FIGURES = ("svg", "png")
# How an output of several runs ended that ended with one of them, by its exit code
ENDED = {code: reason for reason, code in EXIT_CODES.items()}


def meta_evaluate(request: MetaEvaluationRequest, display: Display) -> MetaEvaluationOutcome:
    """Writes the tables, the report and the figure beside the runs.

    Raises MetaEvaluationError for input without usable labels, for scores that are not of exactly its samples and for
    endpoints of one model, OutputError for an output of something else, and what `untold.jobs.score.score` raises.

    Runs of endpoints lie in `DIR/runs/<folder>`, each an output of `untold score` that can be read, compared and
    resumed by itself. Dejl et al. 2025; methods, section 6.
    """
    _check_models(request.endpoints)
    # Endpoints of one model are told apart by their prompts
    check_prompts(request.prompt_pairs, request.metrics or ())
    with request.open_output(TABLES) as output:
        return _meta_evaluate(output, request, display)


def _meta_evaluate(output: Output, request: MetaEvaluationRequest, display: Display) -> MetaEvaluationOutcome:
    """Reads and checks samples and given scores first: then it asks, and removes an earlier start's report."""
    steps = output.workspace(open_session(request.settings))
    found = _read(steps.spark, request)
    show_invalid(found, display)
    study = STUDIES.get(request.dataset, LabelStudy)(request, steps.keep(found.samples, "samples"), steps)
    # Reads and checks the labels before any request
    _ = study.units
    content = fingerprint(study.samples)
    output.claim(_identify(request, content))
    given = None if request.scores is None else study.read()
    _remove_report(output)
    _begin(output, request, content, found.row_count)
    try:
        return _evaluate(output, study, given, display)
    except BaseException:
        _remove_report(output)
        raise


def _read(spark: SparkSession, request: MetaEvaluationRequest) -> Samples:
    """Read the input of a study as samples."""
    if request.dataset == CLAIMS:
        return read_claims(spark, request.input, request.layout, request.limit, request.draw, request.read)
    if request.dataset == NUGGETS:
        return request.read_columns(spark, NEEDS, READS)
    return request.read_columns(spark, NEEDS if request.dataset == COVERAGE else REQUIRED)


STUDIES: dict[str, type[Study]] = {COVERAGE: CoverageStudy, CLAIMS: ClaimStudy, NUGGETS: NuggetStudy}


def _check_models(endpoints: Sequence[StudyEndpoint]) -> None:
    """Raises MetaEvaluationError where two endpoints have one model, or names that give one folder."""
    by_folder: dict[str, str] = {}
    for endpoint in endpoints:
        # Without case: some file systems do not tell it
        other = by_folder.setdefault(endpoint.folder.lower(), endpoint.model)
        if endpoint is not next(one for one in endpoints if one.folder.lower() == endpoint.folder.lower()):
            raise MetaEvaluationError(
                f"two endpoints have the models `{other}` and `{endpoint.model}`, and one folder for both; "
                "give each endpoint a model of its own (llm.model of a preset file)"
            )


def _identify(request: MetaEvaluationRequest, content: str) -> Identity:
    """What the output belongs to: data set, input, metrics, seed and clusters. Runs have identities of their own.

    Of a study of coverage, the labels given and the model of its baselines too; of nuggets, the measure.
    """
    identity: dict[str, Any] = {
        "dataset": request.dataset,
        "input": content,
        "metrics": list(request.metrics) if request.metrics else None,
        "statistics": {"seed": request.settings.statistics.seed, "cluster": request.cluster},
    }
    if request.dataset == NUGGETS:
        identity |= {"score": request.settings.nuggets.score}
    if request.dataset == COVERAGE:
        labels = None if request.covered is None else sorted(request.covered)
        identity |= {"covered": labels, "baselines": request.settings.embeddings.model}
        # Only where there is one: what was studied before there were any stays as it is
        identity |= {"subset": str(request.subset)} if request.subset else {}
    return identity


def _begin(output: Output, request: MetaEvaluationRequest, content: str, samples: int) -> None:
    """Writes the manifest as `running`; no endpoint is named in it, as each run's own manifest does that."""
    output.begin(
        shown(request.settings),
        dataset=request.dataset,
        metrics=list(request.metrics) if request.metrics else None,
        input=request.shown_input(content),
        scores=request.runs,
        counts={"samples": samples},
        confusion=[],
    )


def _evaluate(output: Output, study: Study, given: Any, display: Display) -> MetaEvaluationOutcome:
    """Run the endpoints, then write the report and the sheet. A run that ends early ends with its exit code."""
    request = study.request
    ended = _run_endpoints(study, display)
    if ended.exit_code not in (0, FAILED_TOO_MANY):
        output.end(Ending(ENDED.get(ended.exit_code, "broken")))
        return ended
    report, found = study.write(output, given or study.read())
    (StoragePath(request.output) / f"{REPORT}.md").write_bytes(report.encode())
    if request.sheet is not None:
        _write_sheet(study.steps.spark, request, request.sheet, found["metrics"], display)
    output.end(Ending(), **found)
    return MetaEvaluationOutcome(ended.exit_code, report)


def _run_endpoints(study: Study, display: Display) -> MetaEvaluationOutcome:
    """Run the endpoints until one ends early. Too many failures do not stop the others."""
    code = 0
    for endpoint in study.request.endpoints:
        display.note(f"model {endpoint.model}")
        outcome = study.run_endpoint(endpoint, display)
        if outcome.exit_code not in (0, FAILED_TOO_MANY):
            return outcome
        if outcome.message is not None:
            display.note(outcome.message)
        code = max(code, outcome.exit_code)
    return MetaEvaluationOutcome(code)


def _write_sheet(
    spark: SparkSession, request: MetaEvaluationRequest, sheet: Sheet, metrics: Sequence[str], display: Display
) -> None:
    """Writes the blinded sheet of the one model's run, and says what it holds."""
    judges = request.judges or dict.fromkeys(metrics, next(iter(request.runs)))
    run = {metric: request.runs[judges[metric]] for metric in metrics}
    restate = _restater(request, sheet, display)
    counts = write_sheet(spark, run, metrics, sheet.samples, sheet.seed, request.output, restate)
    display.note(
        f"annotation sheet: {amount(counts.items, 'sample')}, {amount(counts.rows, 'row')}, "
        f"{amount(counts.restated, 'answer')} restated, in {request.output}"
    )


def _restater(request: MetaEvaluationRequest, sheet: Sheet, display: Display) -> Restate:
    """What restates answers of qa: the sheet's endpoint, else a refusal that is raised only if it is needed."""
    if sheet.endpoint is None:
        return _refuse_to_restate
    return asker_of(request, sheet.endpoint, display).restate


def _refuse_to_restate(_: DataFrame) -> DataFrame:
    """Raises MetaEvaluationError: sheets without qa never come here."""
    raise MetaEvaluationError(
        "--annotation-sheet restates the answers of qa as statements, and no endpoint is set: "
        "--set llm.base_url=http://HOST/v1 --set llm.model=NAME, or leave qa out of --metric"
    )


def _remove_report(output: Output) -> None:
    """Removes tables, report and figures of an earlier start: half of them beside new scores would be believed."""
    output.remove(TABLES)
    for form in ("md", *FIGURES):
        (StoragePath(output.place) / f"{REPORT}.{form}").remove()


TABLE = "meta_evaluation"
COMBINED_REPORT = f"{TABLE}.md"
# match_counts is what intervals over data sets are made of: means and limits alone cannot be joined
NEEDED = (TABLE, "match_counts")
# What two studies may not both have: it would count twice
KEYS = ("dataset", "metric", "model")


class CombineError(UserError):
    """Outputs that cannot be combined. The message says which, and what to do."""


def combine_studies(
    studies: Sequence[str],
    output: str,
    *,
    seed: int,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> str:
    """Writes the table `meta_evaluation` and the report of several outputs of meta-evaluate together; gives the report.

    The table has the LMR rows of each, then the averages over data sets and their spread over models. Raises
    CombineError for what is no finished meta-evaluation and for two that have the same metric of a model on one data
    set, UnreadableRunError for what is no output.
    """
    runs = [_open(study) for study in studies]
    _check_once(runs)
    # Baselines are of no model, and of no interest as averages
    counts = [row for run in runs for row in _rows(run, "match_counts") if row["model"] is not None]
    for metric, model, missing in missing_averages(counts):
        notify(f"{metric} of {model} has no average: it was not evaluated on {', '.join(missing)}")
    given = [row for run in runs for row in _rows(run, TABLE) if row["measure"] == "lmr"]
    averages = average_rows(counts, seed=seed)
    if not has_answered(averages):
        raise CombineError(
            "nothing to average: no metric of a model has an LMR on all data sets of these studies; "
            "see their reports, and evaluate again what failed"
        )
    rows = given + averages
    report = render_averages(rows)
    # All is computed first, so that a study that cannot be combined leaves no output behind
    with Output(output, (TABLE,), overwrite) as target:
        target.claim({"dataset": AVERAGE, "input": _fingerprint(runs), "statistics": {"seed": seed}})
        target.begin({}, counts={"studies": len(runs)})
        target.write_rows(TABLE, rows, META_EVALUATION)
        (StoragePath(output) / COMBINED_REPORT).write_bytes(report.encode())
        target.end(Ending())
    return report


def _open(study: str) -> RunTables:
    """The run of a study. Raises CombineError unless it is a finished meta-evaluation."""
    run = open_run(study)
    missing = [name for name in NEEDED if name not in run.tables]
    if missing or run.manifest.get("status") != "finished":
        raise CombineError(
            f"{study}: not a finished output of untold meta-evaluate ({' and '.join(missing) or 'it has not ended'}); "
            "give other outputs, or evaluate it again"
        )
    return run


def _fingerprint(runs: Sequence[RunTables]) -> str:
    """32 hex characters of what the studies are of."""
    identities = [run.manifest.get("identity", {}) for run in runs]
    return hashlib.blake2b(json.dumps(identities, sort_keys=True).encode(), digest_size=16).hexdigest()


def _rows(run: RunTables, table: str) -> list[dict[str, Any]]:
    """The rows of a table of a study; these are small, a few for a metric, model and measure."""
    rows: list[dict[str, Any]] = run.table(table).to_pylist()
    return rows


def _check_once(runs: Sequence[RunTables]) -> None:
    """Raises CombineError where two studies have the same metric of a model on one data set."""
    owners: dict[tuple[str, ...], str] = {}
    for run in runs:
        for owner in sorted({tuple(row[key] for key in KEYS) for row in _rows(run, TABLE)}):
            other = owners.setdefault(owner, run.directory)
            if other != run.directory:
                dataset, metric, model = owner
                raise CombineError(f"{other} and {run.directory} both have {metric} of {model} on {dataset}; give one")
