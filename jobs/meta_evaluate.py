"""Compare metrics with human labels, for one data set or several (Dejl et al. 2025; methods, sections 6 and 7)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from untold.graph.views import FORMATS
from untold.jobs.inputs.samples import fingerprint, show_invalid
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.run.manifest import Identity
from untold.jobs.run.outcome import EXIT_CODES, FAILED_TOO_MANY, Ending
from untold.jobs.run.output import Output, shown, store_of
from untold.jobs.run.session import open_session
from untold.jobs.run.terminal import Display, amount
from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.score import score
from untold.jobs.study.agreement import average_rows, has_answered, missing_averages
from untold.jobs.study.annotations import Restate, write_sheet
from untold.jobs.study.coverage_study import CoverageStudy
from untold.jobs.study.judgements import AVERAGE, MetaEvaluationError
from untold.jobs.study.label_study import LabelStudy
from untold.jobs.study.meta_evaluation import CLAIMS, COVERAGE, NUGGETS, RUBRICS, StageCaller, Study, check_prompts
from untold.jobs.study.meta_evaluation import MetaEvaluationOutcome as MetaEvaluationOutcome
from untold.jobs.study.meta_evaluation import MetaEvaluationRequest as MetaEvaluationRequest
from untold.jobs.study.meta_evaluation import Sheet as Sheet
from untold.jobs.study.meta_evaluation import StudyEndpoint as StudyEndpoint
from untold.jobs.study.meta_evaluation import endpoint_of as endpoint_of
from untold.jobs.study.report import draw, render_averages
from untold.jobs.study.verdict_studies import ClaimStudy, NuggetStudy, RubricStudy
from untold.jobs.study_tables import META_EVALUATION, STUDY_TABLES
from untold.udfs.errors import UserError
from untold.udfs.storage import StoragePath

TABLE = "meta_evaluation"
TABLES = {name: schema for name, schema in STUDY_TABLES.items() if name != "human_study"}
# The ending of an output by the exit code of the run that ended it
ENDED = {code: reason for reason, code in EXIT_CODES.items()}


def meta_evaluate(request: MetaEvaluationRequest, display: Display) -> MetaEvaluationOutcome:
    """Compare metrics with labels. Write the tables, the report and the figure to the output.

    The runs of endpoints are outputs of `untold score` in `DIR/runs/<folder>`. Raises MetaEvaluationError for labels or
    judgements that a study cannot use and for two endpoints with one model, OutputError for an output with another
    identity, and the errors of `untold.jobs.score.score`. Dejl et al. 2025; methods, section 6.
    """
    _check_models(request.endpoints)
    # Endpoints with one model differ in their prompts
    check_prompts(request.prompt_pairs, request.metrics or ())
    with request.open_output(TABLES) as output:
        return _meta_evaluate(output, request, display)


def _meta_evaluate(output: Output, request: MetaEvaluationRequest, display: Display) -> MetaEvaluationOutcome:
    """Check the samples and the existing scores, remove an earlier report, and evaluate."""
    steps = output.workspace(open_session(request.settings))
    kind = STUDIES.get(request.dataset, LabelStudy)
    found = kind.read_samples(steps.spark, request)
    show_invalid(found, display)
    study = kind(request, steps.keep(found.samples, "samples"), steps)
    # Raises before any request for labels that the study cannot use
    _ = study.units
    content = fingerprint(study.samples)
    output.claim(_identify(request, content))
    given = None if request.scores is None else study.read()
    _remove_report(output)
    # The manifests of the runs name the endpoints
    output.begin(
        shown(request.settings),
        dataset=request.dataset,
        metrics=list(request.metrics) if request.metrics else None,
        input=request.shown_input(content),
        scores=request.runs,
        counts={"samples": found.row_count},
        confusion=[],
    )
    try:
        return _evaluate(output, study, given, display)
    except BaseException:
        _remove_report(output)
        raise


STUDIES: dict[str, type[Study]] = {
    COVERAGE: CoverageStudy,
    CLAIMS: ClaimStudy,
    NUGGETS: NuggetStudy,
    RUBRICS: RubricStudy,
}


def _check_models(endpoints: Sequence[StudyEndpoint]) -> None:
    """Raise MetaEvaluationError if two endpoints have one model, or models with one folder."""
    by_folder: dict[str, StudyEndpoint] = {}
    for endpoint in endpoints:
        # Some file systems ignore case
        other = by_folder.setdefault(endpoint.folder.lower(), endpoint)
        if other is not endpoint:
            raise MetaEvaluationError(
                f"two endpoints have the models `{other.model}` and `{endpoint.model}` and would share one folder. "
                "Set a different model for each endpoint (llm.model of a preset file)"
            )


def _identify(request: MetaEvaluationRequest, content: str) -> Identity:
    """Return the identity of the output. The runs of endpoints have their own."""
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
        # Outputs of earlier versions have no subset
        identity |= {"subset": str(request.subset)} if request.subset else {}
    return identity


def _evaluate(output: Output, study: Study, given: Any, display: Display) -> MetaEvaluationOutcome:
    """Run the endpoints, then write the report and the sheet. A run that ends early ends with its exit code."""
    request = study.request
    ended = _run_endpoints(study, display)
    if ended.exit_code not in (0, FAILED_TOO_MANY):
        output.end(Ending(ENDED.get(ended.exit_code, "broken")))
        return ended
    found = study.evaluate(given or study.read())
    for name, rows in found.tables.items():
        output.write_rows(name, rows, TABLES[name])
    files = {"md": found.report.encode()}
    if found.figure is not None:
        files |= {form: draw(found.figure, form=form) for form in FORMATS}
    for form, content in files.items():
        (StoragePath(request.output) / f"{TABLE}.{form}").write_bytes(content)
    if request.sheet is not None:
        _write_sheet(study, request.sheet, found.manifest["metrics"], display)
    output.end(Ending(), **found.manifest)
    return MetaEvaluationOutcome(ended.exit_code, found.report)


def _run_endpoints(study: Study, display: Display) -> MetaEvaluationOutcome:
    """Run the endpoints until one ends early. Too many failures do not stop the others."""
    code = 0
    for endpoint in study.request.endpoints:
        display.note(f"model {endpoint.model}")
        if isinstance(study, ClaimStudy):
            outcome = study.verify(endpoint, display)
        else:
            outcome = _score(study.request, endpoint, display)
        if outcome.exit_code not in (0, FAILED_TOO_MANY):
            return outcome
        if outcome.message is not None:
            display.note(outcome.message)
        code = max(code, outcome.exit_code)
    return MetaEvaluationOutcome(code)


def _score(request: MetaEvaluationRequest, endpoint: StudyEndpoint, display: Display) -> MetaEvaluationOutcome:
    """Score the samples with the metrics of the request at an endpoint."""
    assert request.metrics is not None
    settings = endpoint.settings
    if endpoint.prompt_set is not None:
        # Prompt sets share the completions of stages with equal templates
        settings = settings.model_copy(update={"completion_store": store_of(settings, request.output)})
    own = {"output": request.runs[endpoint.model], "settings": settings, "format": request.layout}
    shared = request.shared() | own
    outcome = score(ScoreRequest(**shared, metrics=request.metrics, embedded=endpoint.embedded), display)
    return MetaEvaluationOutcome(outcome.exit_code, message=outcome.message)


def _write_sheet(study: Study, sheet: Sheet, metrics: Sequence[str], display: Display) -> None:
    """Write the blinded sheet of the run of the one model."""
    request, spark = study.request, study.steps.spark
    judges = request.judges or dict.fromkeys(metrics, next(iter(request.runs)))
    run = {metric: request.runs[judges[metric]] for metric in metrics}
    restate: Restate = _refuse_to_restate
    if sheet.endpoint is not None:
        restate = partial(StageCaller(request, sheet.endpoint, display).restate, spark)
    counts = write_sheet(run, metrics, sheet.samples, sheet.seed, request.output, restate)
    display.note(
        f"annotation sheet: {amount(counts.items, 'sample')}, {amount(counts.rows, 'row')}, "
        f"{amount(counts.restated, 'answer')} restated, in {request.output}"
    )


def _refuse_to_restate(_: object) -> list[dict[str, Any]]:
    raise MetaEvaluationError(
        "--annotation-sheet restates the answers of qa as statements, and no endpoint is set: "
        "--set llm.base_url=http://HOST/v1 --set llm.model=NAME, or leave qa out of --metric"
    )


def _remove_report(output: Output) -> None:
    """Remove the tables, the report and the figures of an earlier start, which do not fit new scores."""
    output.remove(TABLES)
    for form in ("md", *FORMATS):
        (StoragePath(output.place) / f"{TABLE}.{form}").remove()


# Intervals over data sets are computed from match_counts
NEEDED = (TABLE, "match_counts")
# Two studies with equal keys would count twice
KEYS = ("dataset", "metric", "model")


class CombineError(UserError):
    """Outputs that cannot be combined."""


def combine_studies(
    studies: Sequence[str],
    output: str,
    *,
    seed: int,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> str:
    """Write the table `meta_evaluation` and the report of several outputs of meta-evaluate. Return the report.

    The table has the LMR rows of each output, then the averages over data sets and their spread over models. Raises
    CombineError for unfinished outputs and for two outputs with one metric of a model on one data set, and
    UnreadableRunError for a folder that is no output.
    """
    runs = [_open(study) for study in studies]
    _check_once(runs)
    # Baselines have no model and no average
    counts = [row for run in runs for row in run.table("match_counts").to_pylist() if row["model"] is not None]
    for metric, model, missing in missing_averages(counts):
        notify(f"{metric} of {model} has no average: it was not evaluated on {', '.join(missing)}")
    given = [row for run in runs for row in run.table(TABLE).to_pylist() if row["measure"] == "lmr"]
    averages = average_rows(counts, seed=seed)
    if not has_answered(averages):
        raise CombineError(
            "cannot average, because no metric of a model has an LMR on all data sets in these studies. "
            "Check their reports, and repeat the failed evaluations"
        )
    rows = given + averages
    report = render_averages(rows)
    identities = json.dumps([run.manifest.get("identity", {}) for run in runs], sort_keys=True)
    content = hashlib.blake2b(identities.encode(), digest_size=16).hexdigest()
    # An error above leaves no output
    with Output(output, (TABLE,), overwrite) as target:
        target.claim({"dataset": AVERAGE, "input": content, "statistics": {"seed": seed}})
        target.begin({}, counts={"studies": len(runs)})
        target.write_rows(TABLE, rows, META_EVALUATION)
        (StoragePath(output) / f"{TABLE}.md").write_bytes(report.encode())
        target.end(Ending())
    return report


def _open(study: str) -> RunTables:
    """Return the output of a study. Raises CombineError unless it is a finished meta-evaluation."""
    run = open_run(study)
    missing = [name for name in NEEDED if name not in run.tables]
    if missing or run.manifest.get("status") != "finished":
        raise CombineError(
            f"{study} is not a finished output of untold meta-evaluate ({' and '.join(missing) or 'not ended'}). "
            "Give other outputs, or evaluate it again"
        )
    return run


def _check_once(runs: Sequence[RunTables]) -> None:
    """Raise CombineError if two studies have one metric of a model on one data set."""
    owners: dict[tuple[str, ...], str] = {}
    for run in runs:
        for owner in sorted({tuple(row[key] for key in KEYS) for row in run.table(TABLE).to_pylist()}):
            other = owners.setdefault(owner, run.directory)
            if other != run.directory:
                dataset, metric, model = owner
                raise CombineError(f"{other} and {run.directory} both have {metric} of {model} on {dataset}; give one")
