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
from untold.jobs.metrics.base import Metric, Tables, note_settings
from untold.jobs.metrics.condensing import check_graphframes
from untold.jobs.metrics.graphs import SIDES
from untold.jobs.metrics.judging import MISS_RATE, SCORE_AUDITED
from untold.jobs.metrics.scoring import (
    ScoreRequest,
    bind_panel,
    count_stages,
    repeated_samples,
    repetitions,
    score_samples,
)
from untold.jobs.retrieval.sources import open_knowledge
from untold.jobs.run import manifest
from untold.jobs.run.folders import Counted, LostRowsError
from untold.jobs.run.notifications import lineage, span
from untold.jobs.run.output import ORDER, Output, shown
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import Display, RunProgress, amount, page_of, print_lines
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import Settings
from untold.jobs.summary import aggregate
from untold.jobs.summary.aggregate import (
    count_leaning,
    leaning_rows,
    measure_repeats,
    repeatability_lines,
    widened,
    with_order_differences,
)
from untold.jobs.summary.run_summary import end_of_run
from untold.jobs.summary.score_counts import COLUMN_OF_STATUS
from untold.jobs.tables import REPEATABILITY, RESULT_TABLES, TABLES
from untold.udfs.llm.keys import Stage
from untold.udfs.redaction import redact
from untold.udfs.retrieval.index_table import Catalog
from untold.udfs.stages import definition_of

# Up to this number one task sorts and writes a table, because a shuffle to two tasks takes longer. A Spark execution
# costs about a second on two slow cores at any size (docs/architecture.md, "A start")
FEW_SAMPLES = 200
# Three tables keep two cores busy. More tables would share the memory of the executors among more sorts
TABLES_AT_ONCE = 3


def score(request: ScoreRequest, display: Display, held: SharedEngines | None = None) -> Outcome:
    """Run the main job. Raises UserError with one line for each error that a user can fix.

    Write the tables of `RESULT_TABLES` and manifest.json into the output, and completions into the store. A second
    start sends only the missing requests. If none is missing, the tables stay unchanged. The metrics of earlier starts
    are scored again from stored completions. A run that ends early returns an outcome with an exit code
    (docs/contract.md, "Exit codes") and raises no error. The folder is locked before the first read. held: the engines
    of a session; None starts Spark and the actor process.
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
    """Run `score` in the locked output."""
    settings = request.settings
    with (
        # Samples are checked and written before the first request, so a later error loses no sample
        request.open_output(_table_names(settings), kept=("samples",)) as output,
        open_endpoint(request, display, embedded=request.embedded) as endpoint,
    ):
        there = output.metrics()
        request = replace(request, metrics=joined(there, request.metrics))
        names = stages_of(request.metrics, settings)
        stages = {name: bind_stage(name, settings, embedded_model=endpoint.model_sha256) for name in names}
        _show_unused_tools(settings, stages, display)
        note_settings(settings, [METRICS[name] for name in request.metrics], display.note)
        # A guess from the manifest before the input is read. It only decides if the actor process starts at once
        asks = set(there) != set(request.metrics) or not output.seems_complete(retry_failed=request.retry_failed)
        index = settings.knowledge.index if retrieves(request.metrics) else None
        with open_start(request, output, display, asks=asks, stages=names, held=held, index=index) as start:
            return _score(_Scoring(start, request, endpoint, stages))


def is_complete(request: ScoreRequest, earlier: Mapping[str, Any]) -> bool:
    """Return True if the output with this manifest has no missing request. A changed input is ignored.

    No engine starts. Raises OutputError if the output belongs to other settings, and the errors of templates and
    indexes.
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
    """Return the tables that a run with these settings writes."""
    more = {"repeatability": settings.llm.repeats > 1, "votes": bool(settings.judges)}
    return (*RESULT_TABLES, *(name for name, is_written in more.items() if is_written))


def _digests(
    metrics: Sequence[str], settings: Settings, stages: Mapping[str, Stage]
) -> tuple[dict[str, str], Catalog | None]:
    """Return the digests of the further inputs of metrics, and the index if a metric searches one."""
    digests = digests_of(metrics, settings)
    catalog = open_knowledge(settings, stages) if retrieves(metrics) else None
    return digests | ({} if catalog is None else {"knowledge.index": catalog.digest}), catalog


def _added_metrics(there: Sequence[str], metrics: Sequence[str], content: str) -> manifest.Added | None:
    """Return the metrics that the output does not have yet, or None if it has all of them.

    content: the fingerprint of the input with the columns of the metrics in the output.
    """
    if not there or not set(there) < set(metrics):
        return None
    return manifest.Added(lambda key: any(METRICS[name].depends_on(key) for name in there), content)


@dataclass(frozen=True)
class _Scoring:
    """The common values of the steps of one start."""

    start: Start
    request: ScoreRequest
    endpoint: RunEndpoint
    stages: Mapping[str, Stage]

    @property
    def metrics(self) -> list[Metric]:
        return [METRICS[name] for name in self.request.metrics]


def _score(run: _Scoring) -> Outcome:
    """Carry out one start: read the input, claim the output, write the samples, score them, and write the tables.

    Metrics read the written table `samples`, so a change of the input file has no effect.
    """
    start, request, output, settings = run.start, run.request, run.start.output, run.request.settings
    # Before the first request, because a missing jar would end the run after all completions
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
    runner = _with_panel(run, start.runner(run.stages, run.endpoint))
    tables = score_samples(samples, found.invalid, run.metrics, runner, catalog, start.display.course.enter)
    repeats = list(_score_again(run, runner, samples, found, catalog))
    start.engines.process.leave()
    runners = [runner, *(one for one, _ in repeats)]
    return _finish(run, runners, tables, [again for _, again in repeats])


def _score_again(
    run: _Scoring, runner: StageRunner, samples: DataFrame, found: Samples, catalog: Catalog | None
) -> Iterator[tuple[StageRunner, Tables]]:
    """Score a share of the samples `llm.repeats` - 1 times again (`repetitions`), unless the run has ended."""
    start, settings = run.start, run.request.settings
    if settings.llm.repeats == 1 or runner.ended:
        return
    some = start.workspace.keep(repeated_samples(samples, found.row_count, settings), "repeated-samples")
    for number, chosen, stages in repetitions(some, run.stages, settings):
        # Repeated requests count as requests of their stage
        again = _with_panel(run, start.runner(stages, run.endpoint, account=runner.account))
        again.follow(runner)
        begin = partial(_enter_again, start.display, number)
        yield again, score_samples(chosen, found.invalid, run.metrics, again, catalog, begin)
        runner = again


def _with_panel(run: _Scoring, runner: StageRunner) -> StageRunner:
    """Return the runner with the runners of the judges of a panel, which share its account and its salt."""
    start, request = run.start, run.request
    for model, (settings, stages) in bind_panel(request.metrics, request.settings, runner.stages).items():
        own = {"settings": settings, "account": runner.account, "run": runner, "answered_before": False}
        endpoint = open_endpoint(request, start.display, settings=settings)
        runner.panel[model] = start.runner(stages, endpoint, **own)
    return runner


def _enter_again(display: Display, number: int, metric: str) -> None:
    display.course.enter(f"{metric} (scoring {number})")


def _added(run: _Scoring, content: str) -> manifest.Added | None:
    """Return the metrics that the output does not have yet, or None if it has all of them.

    content: the fingerprint of the input with the columns of all metrics.
    """
    there, metrics, settings = run.start.output.metrics(), run.request.metrics, run.request.settings
    added = _added_metrics(there, metrics, content)
    if added is None or all(of(there, settings) == of(metrics, settings) for of in (needs_of, optional_of)):
        return added
    return replace(added, input=fingerprint(run.request.read_samples(run.start.spark, there).samples))


def _changes(start: Start, found: Samples) -> dict[str, int]:
    """Count the differences between the rows of the input and the rows of the output (`changes_between`)."""
    path = start.output.place_of("samples")
    return changes_between(read_parquet(start.spark, path), found.samples) if path else {"late": found.row_count}


def _check_kept(output: Output, found: Samples, display: Display) -> None:
    """Note the metrics that stay unchanged. Raises OutputError for scored rows that the new metrics cannot read."""
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
    """Note the stages that cannot use the tools of the settings."""
    unused = [name for name, stage in stages.items() if definition_of(name).tools and not stage.tools]
    if unused and settings.offers_tools:
        display.note(f"{', '.join(unused)}: the completions API has no tools, so qa.quantity_tool is ignored")


def _begin(run: _Scoring, found: Samples, content: str, changes: Mapping[str, int]) -> None:
    """Write the manifest with the status `running` before the first table, because the tables are not complete yet."""
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
    """Write the table `samples` and return the written rows."""
    start.output.check_lock()
    path = start.output.table("samples")
    written = write_samples(found, path)
    # The rows are on the workers' disks. If a worker is lost, its rows are read again, and the file can have changed
    if written.fingerprint != content:
        raise SampleError(f"{start.request.input} changed while it was read; start again")
    start.output.take_written("samples", found.row_count)
    show_untested(written, start.display)
    return written.samples


def _finish(run: _Scoring, runners: Sequence[StageRunner], tables: Tables, repeats: Sequence[Tables]) -> Outcome:
    """Write the tables, note the items that the limits of metrics dropped, and end the run."""
    start, output = run.start, run.start.output
    start.display.status("writing the tables")
    counted = _counted(run.metrics)
    written = _write_tables(output, tables, counted)
    counts = _counts(counted["scores"], counted["failures"])
    _check_scores(run, counts["scores"])
    summary, audits = _summarise(run, written, repeats)
    one_sided = "conflicts" in written and counted["conflicts"]["one_sided"]
    choices = count_leaning(output.opened(("samples", "conflicts"))) if one_sided else []
    preference = leaning_rows(choices, seed=run.request.settings.statistics.seed)
    output.write_rows("source_preference", preference, RESULT_TABLES["source_preference"])
    for metric in run.metrics:
        if metric.dropped is not None and (lacking := counted["scores"][f"dropped-{metric.name}"]):
            start.display.note(f"{metric.name}: {amount(lacking, 'sample has', 'samples have')} {metric.dropped}")
    found = {"audits": audits} if audits else {}
    return start.end(runners, counts, runners[0].usage, summary=summary, **found)


def _check_scores(run: _Scoring, scores: int) -> None:
    """Raise LostRowsError unless the table `scores` has one row per sample and metric."""
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
    """Write the tables `summary`, `measures_summary` and `repeatability`.

    Return the rows of `summary`, and the rows of `measures_summary` about audits.
    """
    output, settings = run.start.output, run.request.settings
    seed = settings.statistics.seed
    tables = output.opened(("samples", "scores", "measures"))
    summary = aggregate.summarise(tables, seed=seed)
    if settings.llm.repeats > 1:
        repeated = measure_repeats([written, *repeats]) if len(repeats) == settings.llm.repeats - 1 else []
        output.write_rows("repeatability", repeated, REPEATABILITY)
        for line in repeatability_lines(repeated):
            run.start.display.note(line)
        summary = widened(summary, repeated) if settings.statistics.widen else summary
    if settings.repeats.shuffle_contexts and repeats:
        summary = with_order_differences(summary, [written, *repeats], seed=seed)
    if settings.judges:
        stages = {metric.name: metric.judged(settings)[-1] for metric in run.metrics if metric.judged}
        summary = aggregate.with_alpha(summary, output.opened(("votes", "scores")), stages)
        for row in summary:
            if row["level"] == "overall" and row["alpha"] is not None:
                run.start.display.note(f"{row['metric']}: Krippendorff's alpha of the judges is {row['alpha']:.3f}")
    output.write_rows("summary", summary, RESULT_TABLES["summary"])
    zeroed = {metric.name: metric.zeroed for metric in run.metrics}
    always = {metric.name: metric.undefined_zero for metric in run.metrics}
    found: list[dict[str, Any]] = []
    if "measures" in written:
        found = aggregate.summarise_measures(tables, zeroed, always, seed=seed)
        found = aggregate.with_query_intervals(found, tables, SCORE_AUDITED, seed=seed)
        found += [row for metric in run.metrics if metric.pooled for row in metric.pooled(tables)]
        for metric in run.metrics:
            own = [row for row in found if row["metric"] == metric.name]
            found += metric.derived(own) if metric.derived else []
    output.write_rows("measures_summary", found, RESULT_TABLES["measures_summary"])
    return summary, [row for row in found if row["measure"].startswith(MISS_RATE)]


def _counted(metrics: Iterable[Metric]) -> dict[str, Counted]:
    """Return the counts that are computed while tables are written.

    They are samples by status, samples with dropped items by metric, failed requests, and one-sided conflicts.
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
    """Write the tables of metrics in parallel. Tables that no metric returns are written without Spark.

    Most of the time of a small table is planning and renaming of files in the driver.
    """
    few = output.manifest["counts"]["samples"] <= FEW_SAMPLES
    names = [name for name in ORDER if name in output.tables and name != "samples"]
    for name in names:
        if name not in tables:
            output.write_rows(name, [], TABLES[name])

    def write(name: str) -> DataFrame:
        schema, counts = TABLES[name], counted.get(name)
        return output.write(name, tables[name], order=ORDER[name], schema=schema, few=few, counted=counts)

    given = [name for name in names if name in tables]
    pool = ThreadPoolExecutor(TABLES_AT_ONCE)
    try:
        return dict(zip(given, pool.map(write, given), strict=True))
    finally:
        # An interrupt does not wait for the executions of Spark, because the end of the session cancels them
        pool.shutdown(wait=False, cancel_futures=True)


def _counts(scores: Counted, failures: Counted) -> dict[str, Any]:
    """Return the counts of the manifest: statuses that occur, scores, failures and passing_failures."""
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
