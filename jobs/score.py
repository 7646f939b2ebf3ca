"""Samples to statements, scores and summary: the main job, `untold score` (docs/architecture.md, "A run")."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import RunEndpoint
from untold.jobs.inference.stage.engines import SharedEngines
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inference.stage.start import Outcome, Start, failure_counts, open_endpoint, open_start
from untold.jobs.inputs.samples import (
    SampleError,
    Samples,
    changes_between,
    fingerprint,
    show_invalid,
    show_untested,
    write_samples,
)
from untold.jobs.metrics import METRICS, digests_of, joined, needs_of, optional_of, retrieves, stages_of
from untold.jobs.metrics.base import Metric, Tables, note_profile
from untold.jobs.metrics.condensing import check_graphframes
from untold.jobs.metrics.graphs import SIDES
from untold.jobs.metrics.judging import MISS_RATE, SCORE_AUDITED
from untold.jobs.metrics.scoring import ScoreRequest, count_stages, repeated_samples, salted_stages, score_samples
from untold.jobs.retrieval.sources import open_knowledge
from untold.jobs.run import manifest
from untold.jobs.run.folders import Counted, LostRowsError
from untold.jobs.run.notifications import lineage, span
from untold.jobs.run.output import Output, shown
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import Display, RunProgress, amount, page_of, print_lines
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import Settings
from untold.jobs.summary import aggregate
from untold.jobs.summary.aggregate import leaning_rows, measure_repeats, read_counts, repeatability_lines, widened
from untold.jobs.summary.run_summary import end_of_run
from untold.jobs.summary.score_counts import COLUMN_OF_STATUS
from untold.jobs.tables import ORDER, REPEATABILITY, RESULT_TABLES
from untold.udfs.llm.keys import Stage
from untold.udfs.redaction import redact
from untold.udfs.retrieval.catalog import Catalog
from untold.udfs.stages import definition_of

# So few make tables that one task sorts and writes sooner than two hand them to each other
# An execution of Spark's costs about a second on two slow cores, whatever its size (docs/architecture.md, "A start")
FEW_SAMPLES = 200
# Two cores are busy with three; more only share the executors' memory among more sorts
TABLES_AT_ONCE = 3


def score(request: ScoreRequest, display: Display, held: SharedEngines | None = None) -> Outcome:
    """Runs the main job. Raises errors with one clear line for what a user can mend.

    Writes the tables of `RESULT_TABLES` and manifest.json into the output, completions into the store. Starting it
    again asks for what is missing alone; where nothing is, the tables stay as they are. The metrics of an earlier start
    are scored beside those that are asked for, from completions that the store has. A run that ended early is an
    outcome with an exit code (docs/contract.md, "Exit codes") and no error. The folder is locked before anything
    is read. `held`: the engines of a session, else Spark and an answering process are started.
    """
    request = request.pinned()
    with (
        lineage("untold.score", request.input, request.output, display.note) as told,
        span("untold score", output=request.output),
    ):
        outcome = _run(request, display, held)
        told.manifest = outcome.manifest
    return outcome


def _run(request: ScoreRequest, display: Display, held: SharedEngines | None) -> Outcome:
    """The run of `score`, in its locked output."""
    settings = request.settings
    with (
        # Samples are checked and written before anything is asked: a run that breaks later loses what it computed, not
        # what it read
        request.open_output(_table_names(settings), kept=("samples",)) as output,
        open_endpoint(request, display, embedded=request.embedded) as endpoint,
    ):
        there = output.metrics()
        request = replace(request, metrics=joined(there, request.metrics))
        names = stages_of(request.metrics, settings)
        stages = {name: bind_stage(name, settings, embedded_model=endpoint.model_sha256) for name in names}
        _show_unused_tools(settings, stages, display)
        note_profile(settings, [METRICS[name] for name in request.metrics], display.note)
        # A guess from the manifest, before the input is read: it decides only whether the answering process starts
        # already
        asks = set(there) != set(request.metrics) or not output.seems_complete(retry_failed=request.retry_failed)
        index = settings.knowledge.index if retrieves(request.metrics) else None
        with open_start(request, output, display, asks=asks, stages=names, held=held, index=index) as start:
            return _score(_Scoring(start, request, endpoint, stages))


def is_complete(request: ScoreRequest, earlier: Mapping[str, Any]) -> bool:
    """Whether the output with this manifest leaves nothing to ask for the request, whatever became of its input.

    No engine starts for it. Raises OutputError where the output belongs to other settings, and what reading templates
    and indexes raises.
    """
    settings, there = request.settings, tuple(earlier.get("metrics") or ())
    metrics = joined(there, request.metrics)
    with open_endpoint(request, Display(), embedded=request.embedded) as endpoint:
        names = stages_of(metrics, settings)
        stages = {name: bind_stage(name, settings, embedded_model=endpoint.model_sha256) for name in names}
    digests, _ = _digests(metrics, settings, stages)
    theirs = earlier.get("identity", {})
    own = manifest.identify(theirs.get("input", ""), metrics, settings, stages, digests)
    added = _added_metrics(there, metrics, str(theirs.get("input")))
    if found := manifest.differences(own, theirs, added):
        raise manifest.refused(request.output, found)
    output = request.open_output(_table_names(settings))
    return added is None and output.left_nothing(earlier, retry_failed=request.retry_failed)


def _table_names(settings: Settings) -> Sequence[str]:
    """The tables that a run with these settings writes."""
    return (*RESULT_TABLES, "repeatability") if settings.llm.repeats > 1 else tuple(RESULT_TABLES)


def _digests(
    metrics: Sequence[str], settings: Settings, stages: Mapping[str, Stage]
) -> tuple[dict[str, str], Catalog | None]:
    """The digests of what metrics read beside samples, and the index that they look things up in, if they do."""
    digests = digests_of(metrics, settings)
    catalog = open_knowledge(settings, stages) if retrieves(metrics) else None
    return digests | ({} if catalog is None else {"knowledge.index": catalog.digest}), catalog


def _added_metrics(there: Sequence[str], metrics: Sequence[str], content: str) -> manifest.Added | None:
    """What is to be known of metrics beside those that an output has; None where it gets none.

    content: the fingerprint of the input as those that it has read it.
    """
    if not there or not set(there) < set(metrics):
        return None
    return manifest.Added(lambda key: any(METRICS[name].depends_on(key) for name in there), content)


@dataclass(frozen=True)
class _Scoring:
    """What the steps of one start share."""

    start: Start
    request: ScoreRequest
    endpoint: RunEndpoint
    stages: Mapping[str, Stage]

    @property
    def metrics(self) -> list[Metric]:
        return [METRICS[name] for name in self.request.metrics]


def _score(run: _Scoring) -> Outcome:
    """One start: reads and claims, writes the samples, asks and scores, writes the rest.

    Metrics read the table `samples` as it was written, so that a file that changes meanwhile changes nothing.
    """
    start, request, output, settings = run.start, run.request, run.start.output, run.request.settings
    # Before anything is paid for: a missing jar would end the run after all answers
    if any(metric.has_graph for metric in run.metrics):
        check_graphframes(start.spark, settings)
    start.display.status(f"reading {request.input}")
    found = request.read_samples(start.spark)
    show_invalid(found, start.display)
    digests, catalog = _digests(request.metrics, settings, run.stages)
    content = fingerprint(found.samples)
    added = _added(run, content)
    output.claim(manifest.identify(content, request.metrics, settings, run.stages, digests), added)
    changes = _changes(start, found) if output.refreshes else {}
    if changes:
        rows = ", ".join(f"{number:,} {what}" for what, number in changes.items())
        start.display.note(f"{output.place} is scored again from the changed input ({rows})")
    elif added is not None:
        _check_kept(output, found, start.display)
    elif unchanged := start.unchanged():
        if request.refresh:
            output.note_input({**request.named_input, "listing": found.listing})
        return unchanged
    _begin(run, found, content, changes)
    samples = _write_samples(start, found, content)
    start.display.course = RunProgress(count_stages(run.metrics, settings) * settings.llm.repeats)
    runner = start.runner(run.stages, run.endpoint)
    tables = score_samples(samples, found.invalid, run.metrics, runner, catalog, start.display.course.enter)
    repeats = list(_score_again(run, runner, samples, found, catalog))
    start.engines.process.leave()
    runners = [runner, *(one for one, _ in repeats)]
    return _finish(run, runners, samples, tables, [again for _, again in repeats])


def _score_again(
    run: _Scoring, runner: StageRunner, samples: DataFrame, found: Samples, catalog: Catalog | None
) -> Iterator[tuple[StageRunner, Tables]]:
    """Scores a share of the samples under other salts, as often as `llm.repeats` says, where all else was answered."""
    start, settings = run.start, run.request.settings
    if settings.llm.repeats == 1 or runner.ended:
        return
    some = start.workspace.keep(repeated_samples(samples, found.row_count, settings), "repeated-samples")
    for number, stages in salted_stages(run.stages, settings.llm):
        # What is asked again counts among the requests of its stage
        again = start.runner(stages, run.endpoint, account=runner.account)
        again.follow(runner)
        begin = partial(_enter_again, start.display, number)
        yield again, score_samples(some, found.invalid, run.metrics, again, catalog, begin)
        runner = again


def _enter_again(display: Display, number: int, metric: str) -> None:
    display.course.enter(f"{metric} (scoring {number})")


def _added(run: _Scoring, content: str) -> manifest.Added | None:
    """What is to be known of metrics that the output gets beside those that it has; None where it gets none.

    content: the fingerprint of the input as all metrics together read it.
    """
    there, metrics, settings = run.start.output.metrics(), run.request.metrics, run.request.settings
    added = _added_metrics(there, metrics, content)
    if added is None or all(of(there) == of(metrics) for of in (lambda names: needs_of(names, settings), optional_of)):
        return added
    return replace(added, input=fingerprint(run.request.read_samples(run.start.spark, there).samples))


def _changes(start: Start, found: Samples) -> dict[str, int]:
    """How the rows of the input differ from those that the output is of (`changes_between`)."""
    path = start.output.place_of("samples")
    return changes_between(read_parquet(start.spark, path), found.samples) if path else {"late": found.row_count}


def _check_kept(output: Output, found: Samples, display: Display) -> None:
    """Says which metrics stay. Raises OutputError for rows that these have scored and the others cannot read."""
    earlier, place = output.earlier or {}, output.place
    there = ", ".join(earlier["metrics"])
    lost = found.invalid_count - earlier["counts"]["invalid"]
    if lost > 0:
        raise manifest.OutputError(
            f"{lost:,} samples that {there} scored are invalid for a metric that is to be added to {place}; "
            "fix the rows named above, or give another --output (store may be the same)"
        )
    display.note(f"{place} already has {there}, which stays unchanged")


def _show_unused_tools(settings: Settings, stages: Mapping[str, Stage], display: Display) -> None:
    """Says which stages cannot use the tools that the settings ask for."""
    unused = [name for name, stage in stages.items() if definition_of(name).tools and not stage.tools]
    if unused and settings.offers_tools:
        display.note(f"{', '.join(unused)}: the completions API has no tools, so qa.quantity_tool is ignored")


def _begin(run: _Scoring, found: Samples, content: str, changes: Mapping[str, int]) -> None:
    """Writes the manifest as `running`, before the first table: tables beside it are not to be trusted."""
    request = run.request
    run.start.begin(
        shown(request.settings),
        metrics=list(request.metrics),
        **({} if request.day is None else {"date": request.day.isoformat()}),
        input=request.shown_input(content, listing=found.listing, changes=changes, draw=found.draw),
        template_digests=manifest.template_digests(run.stages),
        embedded_model=run.endpoint.model_sha256,
        counts={"samples": found.row_count, "invalid": found.invalid_count, "duplicates": found.duplicates},
        summary=[],
    )


def _write_samples(start: Start, found: Samples, content: str) -> DataFrame:
    """Writes the table `samples` and gives it as written."""
    start.output.check_lock()
    path = start.output.table("samples")
    written = write_samples(found, path)
    # Rows once read lie on the workers' disks; a lost worker's are read again, from a file that may have changed
    if written.fingerprint != content:
        raise SampleError(f"{start.request.input} changed while it was read; start again")
    start.output.take_written("samples", found.row_count)
    show_untested(written, start.display)
    return written.samples


def _finish(
    run: _Scoring, runners: Sequence[StageRunner], samples: DataFrame, tables: Tables, repeats: Sequence[Tables]
) -> Outcome:
    """Writes the tables, says what a metric's caps left out, and ends the run."""
    start, output = run.start, run.start.output
    start.display.status("writing the tables")
    counted = _counted(run.metrics)
    written = _write_tables(output, tables, counted)
    counts = _counts(counted["scores"], counted["failures"])
    _check_scores(run, counts["scores"])
    summary, audits = _summarise(run, written, repeats)
    one_sided = "conflicts" in written and counted["conflicts"]["one_sided"]
    choices = read_counts(written["conflicts"], samples) if one_sided else []
    preference = leaning_rows(choices, seed=run.request.settings.statistics.seed)
    output.write_rows("source_preference", preference, RESULT_TABLES["source_preference"])
    for metric in run.metrics:
        if metric.dropped is not None and (lacking := counted["scores"][f"dropped-{metric.name}"]):
            start.display.note(f"{metric.name}: {amount(lacking, 'sample has', 'samples have')} {metric.dropped}")
    found = {"audits": audits} if audits else {}
    return start.end(runners, counts, runners[0].usage, summary=summary, **found)


def _check_scores(run: _Scoring, scores: int) -> None:
    """Raises LostRowsError unless every sample has a score, or a row that says why not, of every metric."""
    samples, metrics = run.start.output.manifest["counts"]["samples"], len(run.metrics)
    if scores != samples * metrics:
        raise LostRowsError(
            f"{run.start.output.place}: the table scores has {amount(scores, 'row')}, and "
            f"{amount(samples, 'sample')} by {amount(metrics, 'metric')} need {samples * metrics:,}. Rows were lost "
            "between the steps. Check that all machines share --output, store and work, then start again (completions "
            "are kept)"
        )


def _summarise(
    run: _Scoring, written: Mapping[str, DataFrame], repeats: Sequence[Tables]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Writes the tables `summary`, `measures_summary` and `repeatability`.

    Gives the rows of the first, and those of the second on audits.
    """
    output, settings = run.start.output, run.request.settings
    seed = settings.statistics.seed
    measures, tables = written.get("measures"), output.opened(("samples", "scores", "measures"))
    summary = aggregate.summarise(tables, seed=seed)
    if settings.llm.repeats > 1:
        repeated = measure_repeats([written, *repeats]) if len(repeats) == settings.llm.repeats - 1 else []
        output.write_rows("repeatability", repeated, REPEATABILITY)
        for line in repeatability_lines(repeated):
            run.start.display.note(line)
        summary = widened(summary, repeated) if settings.statistics.widen else summary
    output.write_rows("summary", summary, RESULT_TABLES["summary"])
    zeroed = {metric.name: metric.zeroed for metric in run.metrics}
    always = {metric.name: metric.undefined_zero for metric in run.metrics}
    found = [] if measures is None else aggregate.summarise_measures(tables, zeroed, always, seed=seed)
    if measures is not None:
        found = aggregate.with_query_intervals(found, tables, SCORE_AUDITED, seed=seed)
        pooling = [metric.pooled for metric in run.metrics if metric.pooled is not None]
        found += [row for pool in pooling for row in pool(measures, written["scores"])]
    output.write_rows("measures_summary", found, RESULT_TABLES["measures_summary"])
    return summary, [row for row in found if row["measure"].startswith(MISS_RATE)]


def _counted(metrics: Iterable[Metric]) -> dict[str, Counted]:
    """What is counted of tables while they are written: samples by status and by metrics whose caps left out something
    of them, and failed requests.
    """
    statuses = {name: F.count_if(F.col("status") == name) for name in COLUMN_OF_STATUS}
    dropped = {
        f"dropped-{metric.name}": F.count_if((F.col("metric") == metric.name) & (F.col("dropped") > 0))
        for metric in metrics
        if metric.dropped is not None
    }
    return {
        "scores": Counted({"rows": F.count(F.lit(1)), **statuses, **dropped}),
        "failures": Counted(failure_counts()),
        "conflicts": Counted({"one_sided": F.count_if(F.col("coverage").isin(*SIDES))}),
    }


def _write_tables(output: Output, tables: Tables, counted: Mapping[str, Counted]) -> dict[str, DataFrame]:
    """Writes the tables that metrics give, side by side; those that none of them gives are no work of Spark's.

    Side by side, for much of a small table's time is the driver's: planning, and naming files once they are written.
    """
    few = output.manifest["counts"]["samples"] <= FEW_SAMPLES
    names = [name for name in ORDER if name != "samples"]
    for name in names:
        if name not in tables:
            output.write_rows(name, [], RESULT_TABLES[name])

    def write(name: str) -> DataFrame:
        schema, counts = RESULT_TABLES[name], counted.get(name)
        return output.write(name, tables[name], order=ORDER[name], schema=schema, few=few, counted=counts)

    given = [name for name in names if name in tables]
    pool = ThreadPoolExecutor(TABLES_AT_ONCE)
    try:
        return dict(zip(given, pool.map(write, given), strict=True))
    finally:
        # Whoever ends the run at once does not wait for what Spark is at: the session's end cancels it
        pool.shutdown(wait=False, cancel_futures=True)


def _counts(scores: Counted, failures: Counted) -> dict[str, Any]:
    """The counts of the manifest: statuses that occur, scores, failures and passing_failures."""
    statuses = {name: scores[name] for name in COLUMN_OF_STATUS if scores[name]}
    failed = {name: failures[name] for name in failures.columns}
    return {"scores": scores["rows"], "statuses": statuses, **failed}


def show_summary(outcome: Outcome, request: ScoreRequest, *, brief: bool = False) -> None:
    """Print the end of a run: the summary, the failures, the cost and time, and the next commands.

    brief: True leaves out the lowest scores and the conflicts.
    """
    if outcome.unchanged:
        print("Nothing to do. The results are unchanged\n")
    given, page = outcome.manifest, page_of(sys.stdout)
    try:
        run = open_run(request.output)
        lines = end_of_run(run, given["summary"], given["counts"], page, embedded=request.embedded, brief=brief)
    except (OSError, ValueError) as error:
        # The tables are whole, and a later command can read them
        lines = [redact(f"results: {request.output} (its tables cannot be read at the moment: {type(error).__name__})")]
    print_lines(lines)
