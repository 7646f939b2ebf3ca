"""Score samples with metrics: the request, the tools of the metrics, and the union of their tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial, reduce
from threading import Lock

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.graph.distributed import Condensed
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.engines import MainThreadExecutor
from untold.jobs.inference.stage.requests import Requests, invalid_rows
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inference.stage.start import RunRequest
from untold.jobs.inputs.checking import adapter_of, check_input, check_names
from untold.jobs.inputs.files import SampleError
from untold.jobs.inputs.samples import Samples
from untold.jobs.inputs.sampling import Draw
from untold.jobs.lakehouse.inputs import read_table, table_named
from untold.jobs.metrics import judged_stages_of, needs_of, optional_of, stages_of
from untold.jobs.metrics.base import Metric, Tables, contract_rows, map_rows, measure_rows, unknown_measures
from untold.jobs.metrics.condensing import Condenser
from untold.jobs.metrics.summaries import STAGE as SUMMARISE
from untold.jobs.metrics.summaries import summarise_contexts
from untold.jobs.run.manifest import read_manifest
from untold.jobs.run.output import ORDER, with_added
from untold.jobs.run.session import is_connect, spark_schema
from untold.jobs.settings.model import Settings, backend_for, settings_of_judges
from untold.jobs.settings.sections import BudgetSettings
from untold.jobs.tables import TABLES
from untold.udfs.facts.importance_measures import CLAIMS, claims_at_batches, weigh_batches
from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.index_table import Catalog
from untold.udfs.stages import LOOKUPS
from untold.udfs.storage import StoragePath

# During the calls of one metric, Spark runs the steps of the others. More metrics would only share its memory
METRICS_AT_ONCE = 3
# The least number of repeated samples, if there are any
LEAST_REPEATED = 2


@dataclass(frozen=True, kw_only=True)
class ScoreRequest(RunRequest):
    """The samples and the metrics of `untold score` and `untold plan`."""

    metrics: tuple[str, ...]
    # True if the embedded model is used
    embedded: bool
    # The version of a table whose rows are already scored: `v12`
    since: str | None = None
    # The date of the samples, if the command names one
    day: date | None = None

    def check(self) -> None:
        """Raise SampleError if the first rows of the samples cannot be used. Spark does not start.

        Raises SettingsError for metrics that the judge cannot score.
        """
        stages_of(self.metrics, self.settings)
        adapter = adapter_of(self.format)
        check_names(self.read.columns, adapter)
        strata = self.draw.stratify if self.draw else ()
        check_input(self.input, self.read, (*needs_of(self.metrics, self.settings), *strata), adapter)
        if self.since is not None:
            self._check_since(self.since)

    def _check_since(self, since: str) -> None:
        """Raise SampleError if no run scored the rows of the table at that version."""
        table = table_named(self.input)
        if table is None or table.format != "delta":
            raise SampleError("--since needs a Delta table: --input delta:PATH")
        scored = read_table(table._replace(version=since)).files
        earlier = read_manifest(self.output)
        if scored and earlier is None and not StoragePath(self.store).entries():
            raise SampleError(
                f"{self.output} has no run and {self.store} has no completions, so every row needs requests. "
                "Remove --since"
            )
        before = table_named((earlier or {}).get("input", {}).get("path", ""))
        if earlier is not None and (before is None or before.rows != table.rows):
            raise SampleError(f"{self.output} has another input. Choose an output of {table.rows}, or a new one")

    def read_samples(self, spark: SparkSession, metrics: Sequence[str] | None = None) -> Samples:
        """Return the samples with the columns that these metrics, or all metrics of the request, read."""
        names = self.metrics if metrics is None else metrics
        return self.read_columns(spark, needs_of(names, self.settings), optional_of(names, self.settings))


@dataclass
class RunTools:
    """The tools of the metrics of one run; what they share is computed once."""

    runner: StageRunner
    samples: DataFrame
    catalog: Catalog | None = None
    _contexts: DataFrame | None = None
    _lock: Lock = field(default_factory=Lock)

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """Run a stage. Stored completions are not requested again."""
        return self.runner.ask(stage, rows, carry)

    def judges(self) -> Mapping[str, RunTools]:
        """Return the tools of each judge of a panel."""
        return {name: replace(self, runner=own) for name, own in self.runner.panel.items()}

    def contexts(self) -> DataFrame:
        """Return the contexts, which are summarised once for all metrics."""
        with self._lock:
            if self._contexts is None:
                summarise = self.runner.settings.summarise_contexts
                self._contexts = summarise_contexts(self.samples, self.ask, summarise=summarise)
            return self._contexts

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        """Retrieve chunks with the settings `knowledge.*`."""
        # This import loads FAISS
        from untold.jobs.retrieval.sources import Knowledge

        knowledge = Knowledge(self.runner.settings, self.runner.workspace, self.ask, self.samples, self.catalog)
        return knowledge.retrieve(rows, k)

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """Keep a frame in the working folder of the run until its end."""
        return self.runner.workspace.keep(frame, name)

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Condense graphs with the settings `graph.*`."""
        return Condenser(self.runner.settings, self.runner.workspace).condense(nodes, edges)


def score_samples(
    samples: DataFrame,
    invalid: DataFrame,
    metrics: Iterable[Metric],
    runner: StageRunner,
    catalog: Catalog | None = None,
    begin: Callable[[str], None] = lambda _: None,
) -> Tables:
    """Return the tables of the metrics. Each table is the union over the metrics, in their order.

    samples: the columns of the table `samples`. invalid: sample_id and error of the rows that cannot be scored.
    catalog: the index for the retrieval of facts. begin: called with the name of each metric before it is scored.
    Metrics are scored in parallel, and their stages run one after the other.
    """
    valid = samples.join(invalid.select("sample_id"), on="sample_id", how="left_anti")
    unusable = samples.select("sample_id", "system").join(invalid, on="sample_id", how="inner")
    tools, settings = RunTools(runner, valid, catalog), runner.settings

    def score(metric: Metric) -> Tables:
        begin(metric.name)
        tables = _weighed(metric, metric.score(valid, tools, settings), valid, tools)
        tables = with_claims_at_k(metric, tables, settings)
        return _with_unusable(metric, tables, unusable, settings)

    runner.turns = MainThreadExecutor()
    for judge in runner.panel.values():
        judge.turns = runner.turns
    given = runner.turns.run([partial(score, metric) for metric in metrics], _at_once(runner, samples.sparkSession))
    runner.account.sort(runner.stages)
    names = [name for name in ORDER if any(name in tables for tables in given)]
    # Each union starts with an empty frame of the contract, so that a missing column is an error
    spark = samples.sparkSession
    empty = {name: spark.createDataFrame([], spark_schema(TABLES[name])) for name in names}
    return {name: _united(name, nothing, given) for name, nothing in empty.items()}


def _at_once(runner: StageRunner, spark: SparkSession) -> int:
    """Return the number of metrics in parallel: one if a run that ends early must leave complete metrics.

    Such a run has a budget, or a spool or batches, which run one stage per start. The session of Spark Connect belongs
    to one thread.
    """
    settings = runner.settings
    whole = settings.budget != BudgetSettings() or settings.llm.uses_spool
    whole = whole or any(backend_for(settings, name) == "batch" for name in runner.stages)
    return 1 if whole or is_connect(spark) else METRICS_AT_ONCE


def repeated_samples(samples: DataFrame, count: int, settings: Settings) -> DataFrame:
    """Return the share of `count` samples that `llm.repeats` scores several times, by hash. Runs one action."""
    rows = max(LEAST_REPEATED, math.ceil(count * settings.llm.repeated_share))
    return samples.where(Draw(rows, settings.statistics.seed).among(samples))


def repetitions(
    some: DataFrame, stages: Mapping[str, Stage], settings: Settings
) -> Iterator[tuple[int, DataFrame, Mapping[str, Stage]]]:
    """Yield the number of each repetition, from 2, its samples and its stages.

    The contexts have another order, or the stages have another salt. Lookups have no salt.
    """
    llm = settings.llm
    for number in range(2, llm.repeats + 1):
        if settings.repeats.shuffle_contexts:
            yield number, shuffle_contexts(some, settings.statistics.seed, number), stages
        else:
            salt = " ".join(filter(None, (llm.salt, f"repeat {number}")))
            salted = {name: one if name in LOOKUPS else replace(one, salt=salt) for name, one in stages.items()}
            yield number, some, salted


def shuffle_contexts(samples: DataFrame, seed: int, number: int) -> DataFrame:
    """Return the samples with their contexts in the order of a hash, or reversed if the hash keeps the order."""
    key = [F.lit(seed), F.lit(number), F.col("sample_id")]
    placed = F.transform("contexts", lambda one, place: F.struct(F.xxhash64(*key, place), one.alias("context")))
    shuffled = F.transform(F.array_sort(placed), lambda one: one["context"])
    is_kept = shuffled == F.col("contexts")
    return samples.withColumn("contexts", F.when(is_kept, F.reverse("contexts")).otherwise(shuffled))


Panel = Mapping[str, tuple[Settings, Mapping[str, Stage]]]
"""The settings and the stages of each judge by its model."""


def bind_panel(metrics: Sequence[str], settings: Settings, stages: Mapping[str, Stage]) -> Panel:
    """Return the judges of the settings. Their salts are those of `stages`."""
    names = judged_stages_of(metrics, settings)
    return {
        model: (own, {name: replace(bind_stage(name, own), salt=stages[name].salt) for name in names})
        for model, own in settings_of_judges(settings).items()
    }


def count_stages(metrics: Iterable[Metric], settings: Settings) -> int:
    """Return the number of stages. Contexts are summarised once for all metrics."""
    stages = [name for metric in metrics for name in metric.asks(settings)]
    return len(stages) - max(0, stages.count(SUMMARISE) - 1)


def _united(name: str, nothing: DataFrame, given: Sequence[Tables]) -> DataFrame:
    """Return the rows of a table over all metrics. Chunks belong to no metric, so each chunk occurs once."""
    rows = reduce(
        DataFrame.unionByName, [with_added(name, tables[name]) for tables in given if name in tables], nothing
    )
    return rows if "metric" in rows.columns else rows.dropDuplicates(list(ORDER[name]))


def _weighed(metric: Metric, tables: Tables, samples: DataFrame, tools: RunTools) -> Tables:
    """Return the tables with the weights of statements and the weighted measures, if the settings have weights."""
    weighting = metric.weighting(tools.runner.settings) if metric.weighting else None
    if not weighting:
        return tables
    statements = with_added("statements", tables["statements"]).drop("source_weight")
    number = F.element_at(F.split("statement_id", ":"), -1).cast("long").alias("number")
    one = F.struct(number, "statement_id", "covered", "kept", "weight", "relevance", "sources")
    by_sample = statements.groupBy("sample_id").agg(F.collect_list(one).alias("statements"))
    sources = F.transform(
        "contexts", lambda context: F.struct(context["id"].alias("id"), context["kind"].alias("kind"))
    )
    status = tables["scores"].select("sample_id", "status")
    rows = status.join(by_sample, on="sample_id", how="left").join(
        samples.select("sample_id", sources.alias("contexts")), on="sample_id", how="left"
    )
    weighed = tools.keep(map_rows(rows, weigh_batches, weighting=weighting), "weighed-statements")
    weights = weighed.select("sample_id", F.inline("weights"))
    combined = {name: F.coalesce(name, f"relevance_{name}") for name in ("weight", "rank")}
    joined = statements.join(weights, on=["sample_id", "statement_id"], how="left").withColumns(combined)
    judged = status.join(weighed.select("sample_id", "measures"), on="sample_id", how="inner")
    measures = measure_rows(judged, metric.name, weighting.bounds())
    own = tables.get("measures")
    return {
        **tables,
        "statements": joined.drop("relevance_weight", "relevance_rank"),
        "measures": measures if own is None else own.unionByName(measures),
    }


def with_claims_at_k(metric: Metric, tables: Tables, settings: Settings) -> Tables:
    """Return the tables with R@K and F1@K of claims in `measures`, if `claims.k` is set and the metric has claims."""
    k, share = settings.claims.k, metric.supported_share
    if k is None or share is None:
        return tables
    measures, name = tables["measures"], F.col("measure")
    without = F.bool_or((name == F.lit(metric.reference_claims)) & F.col("value").isNull())
    has_reference = ~F.coalesce(without, F.lit(False))
    ends = F.struct("value", F.col("value_low").alias("low"), F.col("value_high").alias("high"))
    by_sample = measures.groupBy("sample_id").agg(
        F.when(has_reference, F.any_value(F.when(name == CLAIMS, F.col("value")), True)).alias("claims"),
        F.any_value(F.when(name == share, ends), True).alias("share"),
    )
    found = map_rows(by_sample, claims_at_batches, k=k).select("sample_id", F.inline("measures"))
    return {**tables, "measures": measures.unionByName(contract_rows("measures", metric.name, found))}


def _with_unusable(metric: Metric, tables: Tables, unusable: DataFrame, settings: Settings) -> Tables:
    """Return the tables with a score and a failure for each row that cannot be scored.

    Such a row has a score in every metric, with the status failed and the bounds 0 and 1 (docs/contract.md, "Bounds").
    """
    bounds = {"score_low": F.lit(0.0), "score_high": F.lit(1.0)}
    added = {
        "scores": contract_rows("scores", metric.name, unusable, **bounds, status=F.lit("failed")),
        "failures": invalid_rows(unusable, metric.name),
    }
    if unknown := metric.bounds_of_unknown(settings):
        added["measures"] = unknown_measures(unusable, metric.name, unknown)
    return {**tables, **{name: tables[name].unionByName(rows) for name, rows in added.items()}}
