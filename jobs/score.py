"""Samples to statements, scores and summary: the main job, `untold score` (docs/architecture.md, "A run")."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.graph.distributed import Condensed
from untold.jobs.asking.endpoint import RunEndpoint
from untold.jobs.asking.engines import Engines, Held, open_engines
from untold.jobs.asking.prompts import bind_stage
from untold.jobs.asking.requests import Requests
from untold.jobs.asking.runner import StageRunner
from untold.jobs.asking.store import is_transient
from untold.jobs.inputs.drawing import Draw, shown_draw
from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions, count_bytes
from untold.jobs.inputs.samples import (
    SampleError,
    Samples,
    fingerprint,
    read_samples,
    show_invalid,
    show_untested,
    write_samples,
)
from untold.jobs.metrics import METRICS, digests_of, joined, needs_of, optional_of, retrieves, stages_of
from untold.jobs.metrics.base import Metric, Tables
from untold.jobs.metrics.condensing import Condenser, check_graphframes
from untold.jobs.metrics.contexts import STAGE as SUMMARISE
from untold.jobs.metrics.contexts import condense_contexts
from untold.jobs.metrics.scores import score_columns, unknown_measures
from untold.jobs.results import open_run
from untold.jobs.retrieval.sources import open_knowledge
from untold.jobs.run import manifest
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import Output, shown, store_of, with_added
from untold.jobs.run.progress import Course, Display
from untold.jobs.run.session import SMALL_BYTES, spark_schema
from untold.jobs.run.terminal import amount, page_of, print_lines
from untold.jobs.run.workspace import Counted
from untold.jobs.settings.model import Settings
from untold.jobs.summary import aggregate
from untold.jobs.summary.failed_requests import dead_stages, explain_dead_stages
from untold.jobs.summary.run_summary import end_of_run
from untold.jobs.tables import FAILURES, ORDER, RESULT_TABLES
from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.catalog import Catalog
from untold.udfs.stages import definition_of

# So few make tables that one task sorts and writes sooner than two hand them to each other
# An execution of Spark's costs about a second on two slow cores, whatever its size (docs/architecture.md, "A start")
FEW_SAMPLES = 200
# Two cores are busy with three; more only share the executors' memory among more sorts
TABLES_AT_ONCE = 3


@dataclass(frozen=True)
class ScoreRequest:
    """What `untold score` was asked to do. `command` is how to start it again."""

    input: str
    output: str
    metrics: tuple[str, ...]
    settings: Settings
    embedded: bool
    format: str | None = None
    limit: int | None = None
    draw: Draw | None = None
    read: ReadOptions = AS_THEY_ARE
    overwrite: bool = False
    retry_failed: bool = False
    wait: bool = True
    command: str = ""

    @cached_property
    def store(self) -> str:
        """Where completions are kept."""
        return store_of(self.settings, self.output)


@dataclass(frozen=True)
class ScoreOutcome:
    """How a run ended: exit code, summary rows, counts, and the lines that say what failed and why it ended early."""

    exit_code: int
    summary: Sequence[Mapping[str, Any]]
    counts: Mapping[str, Any]
    message: str | None = None
    embedded: bool = False
    unchanged: bool = False


def score(request: ScoreRequest, display: Display, held: Held | None = None) -> ScoreOutcome:
    """Runs the main job. Raises errors with one clear line for what a user can mend.

    Writes the tables of `RESULT_TABLES` and manifest.json into the output, completions into the store. Starting it
    again asks for what is missing alone; where nothing is, the tables stay as they are. The metrics of an earlier start
    are scored beside those that are asked for, from completions that the store has. A run that ended early is an
    outcome with an exit code (docs/contract.md, "Exit codes") and no error. The folder is locked before anything
    is read. `held`: the engines of a session, else Spark and an answering process are started.
    """
    settings = request.settings
    with (
        Output(
            request.output,
            tuple(RESULT_TABLES),
            request.overwrite,
            # Checked and written before anything is asked: a run that breaks later loses what it computed, not what it
            # read
            kept=("samples",),
            inputs=[request.input],
            store=request.store,
        ) as output,
        RunEndpoint(settings, embedded=request.embedded, wait=request.wait, notify=display.note) as endpoint,
    ):
        there = output.metrics()
        request = replace(request, metrics=joined(there, request.metrics))
        names = stages_of(request.metrics, settings)
        stages = {name: bind_stage(name, settings, embedded_model=endpoint.model_sha256) for name in names}
        _show_unused_tools(settings, stages, display)
        retry = request.retry_failed
        # The store counts as well: its completions are read by the same session
        small = count_bytes(request.input, request.store) < SMALL_BYTES
        # A guess from the manifest, before the input is read: it decides only whether the answering process starts
        # already
        asks = set(there) != set(request.metrics) or not output.seems_complete(retry_failed=retry)
        with open_engines(
            settings, display, output.run, wait=request.wait, retry_failed=retry, small=small, asks=asks, held=held
        ) as engines:
            return _score(_Scoring(request, output, engines, endpoint, stages))


@dataclass(frozen=True)
class _Scoring:
    """What the steps of one start share."""

    request: ScoreRequest
    output: Output
    engines: Engines
    endpoint: RunEndpoint
    stages: Mapping[str, Stage]

    @property
    def metrics(self) -> list[Metric]:
        return [METRICS[name] for name in self.request.metrics]

    def read(self, metrics: Sequence[str]) -> Samples:
        """The samples with the columns that these metrics read."""
        request = self.request
        return read_samples(
            self.engines.spark,
            request.input,
            format=request.format,
            limit=request.limit,
            draw=request.draw,
            required=needs_of(metrics, request.settings),
            optional=optional_of(metrics),
            options=request.read,
        )


def _score(run: _Scoring) -> ScoreOutcome:
    """One start: reads and claims, writes the samples, asks and scores, writes the rest.

    Metrics read the table `samples` as it was written, so that a file that changes meanwhile changes nothing.
    """
    request, output, settings = run.request, run.output, run.request.settings
    # Before anything is paid for: a missing jar would end the run after all answers
    if any(metric.has_graph for metric in run.metrics):
        check_graphframes(run.engines.spark, settings)
    run.engines.display.status(f"reading {request.input}")
    found = run.read(request.metrics)
    show_invalid(found, run.engines.display)
    digests = digests_of(request.metrics, settings)
    catalog = open_knowledge(settings, run.stages) if retrieves(request.metrics) else None
    if catalog is not None:
        digests["knowledge.index"] = catalog.digest
    identity = manifest.identify(fingerprint(found.samples), request.metrics, settings, run.stages, digests)
    added = _added(run, identity["input"])
    output.claim(identity, added)
    if added is not None:
        _check_kept(run, found)
    workspace = output.workspace(run.engines.spark)
    if output.earlier and not added and output.is_complete(retry_failed=request.retry_failed):
        return _unchanged(run, output.earlier)
    _begin(run, found, identity["input"])
    output.check_lock()
    written = write_samples(found, f"{output.folder}/samples")
    # Rows once read lie on the workers' disks; a lost worker's are read again, from a file that may have changed
    if written.fingerprint != identity["input"]:
        raise SampleError(f"{request.input} changed while it was read; start again")
    show_untested(written, run.engines.display)
    runner = StageRunner(
        run.engines,
        settings,
        run.stages,
        run.endpoint,
        workspace,
        request.store,
        answered_before=output.has_answered,
        earlier=output.spooled_runs,
    )
    tables = _score_metrics(run, runner, written.samples, found.invalid, catalog)
    run.engines.process.leave()
    return _finish(run, runner, tables)


def _added(run: _Scoring, content: str) -> manifest.Added | None:
    """What is to be known of metrics that the output gets beside those that it has; None where it gets none.

    content: the fingerprint of the input as all metrics together read it.
    """
    there, metrics, settings = run.output.metrics(), run.request.metrics, run.request.settings
    if not there or not set(there) < set(metrics):
        return None
    alike = all(of(there) == of(metrics) for of in (lambda names: needs_of(names, settings), optional_of))
    before = content if alike else fingerprint(run.read(there).samples)
    return manifest.Added(lambda key: any(METRICS[name].depends_on(key) for name in there), before)


def _check_kept(run: _Scoring, found: Samples) -> None:
    """Says which metrics stay. Raises OutputError for rows that these have scored and the others cannot read."""
    earlier, place = run.output.earlier or {}, run.request.output
    there = ", ".join(earlier["metrics"])
    lost = found.invalid_count - earlier["counts"]["invalid"]
    if lost > 0:
        raise manifest.OutputError(
            f"{lost:,} samples that {there} scored are invalid for a metric that is to be added to {place}; "
            "mend the rows named above, or give another --output (store may be the same)"
        )
    run.engines.display.note(f"{place} has {there} already, and keeps it")


def _show_unused_tools(settings: Settings, stages: Mapping[str, Stage], display: Display) -> None:
    """Says which stages cannot use the tools that the settings ask for."""
    unused = [name for name, stage in stages.items() if definition_of(name).tools and not stage.tools]
    if unused and settings.offers_tools:
        display.note(f"{', '.join(unused)}: text completions have no tools; qa.quantity_tool is as if it were none")


def _unchanged(run: _Scoring, earlier: Mapping[str, Any]) -> ScoreOutcome:
    """The outcome of an output with nothing left to ask: what its manifest says."""
    request, counts = run.request, earlier["counts"]
    code = Ending().exit_code(counts["statuses"], request.settings.fail_on_error)
    failures = run.engines.spark.read.schema(spark_schema(FAILURES)).parquet(f"{run.output.place}/failures")
    message = _explain(Ending(), request, earlier["starts"][-1]["usage"], failures)
    return ScoreOutcome(code, earlier["summary"], counts, message, request.embedded, unchanged=True)


def _explain(
    ending: Ending, request: ScoreRequest, usage: Sequence[Mapping[str, Any]], failures: DataFrame
) -> str | None:
    """The lines that say which stages got no answer at all, and why the run ended early; None without any."""
    dead = dead_stages(usage)
    errors = aggregate.most_frequent_errors(failures, [row["stage"] for row in dead]) if dead else []
    lines = [*explain_dead_stages(dead, errors), ending.explain(request.command)]
    return "\n".join(line for line in lines if line) or None


def _begin(run: _Scoring, found: Samples, content: str) -> None:
    """Writes the manifest as `running`, before the first table: tables beside it are not to be trusted."""
    request = run.request
    run.output.begin(
        shown(request.settings),
        metrics=list(request.metrics),
        input={
            "path": request.input,
            "format": request.format,
            "limit": request.limit,
            "draw": shown_draw(request.draw),
            "fingerprint": content,
        },
        template_digests=manifest.template_digests(run.stages),
        embedded_model=run.endpoint.model_sha256,
        counts={"samples": found.row_count, "invalid": found.invalid_count, "duplicates": found.duplicates},
        summary=[],
    )


@dataclass
class _Tools:
    """The tools of the metrics of one run; what they share is computed once."""

    runner: StageRunner
    samples: DataFrame
    catalog: Catalog | None = None
    _contexts: DataFrame | None = None

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """By the runner; what was answered before is not asked again."""
        return self.runner.ask(stage, rows, carry)

    def contexts(self) -> DataFrame:
        """Asked for all metrics together, at the first that wants them."""
        if self._contexts is None:
            summarise = self.runner.settings.summarise_contexts
            self._contexts = condense_contexts(self.samples, self.ask, summarise=summarise)
        return self._contexts

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        """By the settings `knowledge.*`."""
        # Only where a metric looks something up: FAISS is loaded with it
        from untold.jobs.retrieval.knowledge import Knowledge

        knowledge = Knowledge(self.runner.settings, self.runner.workspace, self.ask, self.samples, self.catalog)
        return knowledge.retrieve(rows, k)

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """In the run's working folder, which goes at its end."""
        return self.runner.workspace.keep(frame, name)

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """By the settings `graph.*`."""
        return Condenser(self.runner.settings, self.runner.workspace).condense(nodes, edges)


def _score_metrics(
    run: _Scoring, runner: StageRunner, samples: DataFrame, invalid: DataFrame, catalog: Catalog | None
) -> Tables:
    """The tables that the metrics give.

    samples: the table as it was written; invalid: sample_id, error of the rows that cannot be scored. Tables of all
    metrics are unions, in the order in which they were asked for; one that no metric gives has no entry.
    """
    valid = samples.join(invalid.select("sample_id"), on="sample_id", how="left_anti")
    unusable = samples.select("sample_id", "system").join(invalid, on="sample_id", how="inner")
    tools = _Tools(runner, valid, catalog)
    settings, display = run.request.settings, run.engines.display
    display.course = _course(run.metrics, settings)
    given = []
    for metric in run.metrics:
        display.course.metric = metric.name
        given.append(_with_unusable(metric, metric.score(valid, tools, settings), unusable, settings))
    names = [name for name in ORDER if any(name in tables for tables in given)]
    # An empty frame of the contract's schema leads each union: columns a metric's rows lack are errors here, not nulls
    empty = {name: run.engines.spark.createDataFrame([], spark_schema(RESULT_TABLES[name])) for name in names}
    return {name: _united(name, nothing, given) for name, nothing in empty.items()}


def _course(metrics: Iterable[Metric], settings: Settings) -> Course:
    """The stages to come. Contexts are condensed once for all metrics."""
    stages = [name for metric in metrics for name in metric.asks(settings)]
    return Course(len(stages) - max(0, stages.count(SUMMARISE) - 1))


def _united(name: str, nothing: DataFrame, given: Sequence[Tables]) -> DataFrame:
    """The rows of a table over all metrics; of chunks, which are no metric's, each once."""
    rows = reduce(
        DataFrame.unionByName, [with_added(name, tables[name]) for tables in given if name in tables], nothing
    )
    return rows if "metric" in rows.columns else rows.dropDuplicates(list(ORDER[name]))


def _with_unusable(metric: Metric, tables: Tables, unusable: DataFrame, settings: Settings) -> Tables:
    """The tables with a score and a failure for each row that cannot be scored.

    Such a row is a sample of every metric, with the status failed and bounds of 0 and 1 (docs/contract.md, "Bounds").
    """
    null = F.lit(None).cast("double")
    nothing = [null.alias(name) for name in ("covered", "uncovered", "unjudged", "low", "high")]
    failed = unusable.select("sample_id", "system", *nothing, F.lit("failed").alias("status"))
    refused = unusable.select(
        "sample_id",
        F.lit(metric.name).alias("metric"),
        F.lit("input").alias("stage"),
        F.lit(None).cast("string").alias("request_id"),
        F.lit("invalid_input").alias("error_type"),
        "error",
    )
    added = {"scores": failed.select(*score_columns(metric.name)), "failures": refused}
    if unknown := metric.bounds_of_unknown(settings):
        added["measures"] = unknown_measures(unusable, metric.name, unknown)
    return {**tables, **{name: tables[name].unionByName(rows) for name, rows in added.items()}}


def _finish(run: _Scoring, runner: StageRunner, tables: Tables) -> ScoreOutcome:
    """Writes the tables, then the manifest as it ended: who reads `finished` finds every table whole."""
    request, output = run.request, run.output
    run.engines.display.status("writing the tables")
    counted = _counted(run.metrics)
    written = _write_tables(output, tables, counted)
    seed = request.settings.statistics.seed
    summary = aggregate.summarise(written["scores"], seed=seed)
    output.write_rows("summary", summary, RESULT_TABLES["summary"])
    measures = written.get("measures")
    zeroed = {metric.name: metric.zeroed for metric in run.metrics}
    found = [] if measures is None else aggregate.summarise_measures(measures, written["scores"], zeroed, seed=seed)
    if measures is not None:
        pooling = [metric.pooled for metric in run.metrics if metric.pooled is not None]
        found += [row for pool in pooling for row in pool(measures, written["scores"])]
    output.write_rows("measures_summary", found, RESULT_TABLES["measures_summary"])
    output.write_rows("usage", runner.usage, RESULT_TABLES["usage"])
    if runner.damaged_files:
        moved = amount(runner.damaged_files, "damaged file of the store was", "damaged files of the store were")
        run.engines.display.note(f"{moved} moved aside: {runner.store}")
    for metric in run.metrics:
        if metric.dropped is not None and (samples := counted["scores"][f"dropped-{metric.name}"]):
            have = amount(samples, "sample has", "samples have")
            run.engines.display.note(f"{metric.name}: {have} {metric.dropped}")
    counts = output.manifest["counts"] | _counts(**counted)
    code = runner.ending.exit_code(counts["statuses"], request.settings.fail_on_error)
    # Of all starts; null where an endpoint did not name its model
    models = sorted({*output.manifest["models"], *runner.models} - {None})
    output.end(runner.ending, code=code, usage=runner.usage, counts=counts, summary=summary, models=models)
    message = _explain(runner.ending, request, runner.usage, written["failures"])
    return ScoreOutcome(code, summary, counts, message, request.embedded)


def _counted(metrics: Iterable[Metric]) -> dict[str, Counted]:
    """What is counted of tables while they are written: samples by status and by metrics whose caps left out something
    of them, failed requests, and those that may pass.

    The failures of invalid rows (stage `input`) do not count, as no start can mend them.
    """
    asked = F.col("stage") != "input"
    statuses = {name: F.count_if(F.col("status") == name) for name in aggregate.COLUMN_OF_STATUS}
    failures = {"failures": F.count_if(asked), "passing_failures": F.count_if(asked & is_transient())}
    dropped = {
        f"dropped-{metric.name}": F.count_if((F.col("metric") == metric.name) & (F.col("dropped") > 0))
        for metric in metrics
        if metric.dropped is not None
    }
    return {"scores": Counted(statuses | dropped), "failures": Counted(failures)}


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
    statuses = {name: scores[name] for name in aggregate.COLUMN_OF_STATUS if scores[name]}
    return {
        "scores": sum(statuses.values()),
        "statuses": statuses,
        "failures": failures["failures"],
        "passing_failures": failures["passing_failures"],
    }


def show_summary(outcome: ScoreOutcome, output: str) -> None:
    """Prints how a run ended: its summary, what failed, what it took, and where to look further."""
    if outcome.unchanged:
        print("Nothing to do; results unchanged\n")
    run, page = open_run(output), page_of(sys.stdout)
    print_lines(end_of_run(run, outcome.summary, outcome.counts, page, embedded=outcome.embedded))
