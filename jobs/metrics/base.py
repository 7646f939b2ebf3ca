"""The parts that all metrics share: the value `Metric`, the calls of its stages, and the columns of its scores.

The status and the bounds of a score do not depend on its formula (docs/contract.md, "Scores" and "Bounds").
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ParamSpec, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.distributed import Condensed
from untold.jobs.inference.stage.requests import Requests, failure_rows, has_failed, is_unasked, outcomes
from untold.jobs.inputs.samples import OPTIONAL_TYPES
from untold.jobs.metrics.views import View
from untold.jobs.retrieval.sources import stages_of_knowledge
from untold.jobs.run.session import map_rows as map_rows
from untold.jobs.run.session import spark_schema
from untold.jobs.run_tables import RunTables
from untold.jobs.settings.fields import Section
from untold.jobs.settings.model import Settings, judges_without_price
from untold.jobs.settings.templates import explain_profile
from untold.jobs.tables import TABLES
from untold.udfs.arrow import BatchFunction
from untold.udfs.facts.importance_measures import Weighting, names_at
from untold.udfs.stages.definitions import Figures

Tables = Mapping[str, DataFrame]
"""The rows of a metric by table of `untold.jobs.tables`."""
Bounds = Mapping[str, tuple[float | None, float | None]]
"""The lower and the upper bound by measure, None for an unbounded side."""


def bounds_of(shares: Iterable[str], *counts: str) -> Bounds:
    """Return the bounds of a sample without results, by measure: 0 and 1, and none for counts.

    A name that is in both is a count.
    """
    return {**dict.fromkeys(shares, (0.0, 1.0)), **dict.fromkeys(counts, (None, None))}


class Tools(Protocol):
    """The functions that a metric may call.

    The tools of a run send requests (`jobs.metrics.scoring`), and the tools of a plan count them (`jobs.plan`). A
    metric runs the same code with both, so a plan cannot differ from a run.
    """

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """Run a stage over rows: the columns of `carry`, request_id, the stage's output, error_type, error.

        The result has a row per row of a DataFrame, because rows can share a request. The output is null if error_type
        is not null. error_type is `unasked` (`udfs.stages.arrow.UNASKED`) if the run ended before the request. Rows of
        `Pairs` without a request_id are implied by other rows, and have no output either.
        """

    def contexts(self) -> DataFrame:
        """Return the result of `jobs.metrics.summaries.summarise_contexts`, which is computed once per run."""

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        """Search for queries with the settings `knowledge.*`: the columns of `rows` and of a hit, one row per hit.

        rows: query, sample_id and any other columns. `jobs.retrieval.knowledge.Knowledge` lists the columns of hits. A
        metric that calls this function sets `Metric.retrieves`.
        """

    def judges(self) -> Mapping[str, Tools]:
        """Return the tools of each judge by its name, for a run whose settings have a panel."""

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """Compute a frame once and return its rows, for a frame that is read several times.

        `name` is for people who look into the working folder of a run. It need not be unique.
        """

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Condense fact graphs with `untold.jobs.metrics.condensing.Condenser`, which lists the columns."""


@dataclass
class StageCalls:
    """The stages that a metric ran, with their results in order.

    key: the column of a request's owner in all results. Owners are samples, or `owner` for results that samples share.
    """

    metric: str
    tools: Tools
    key: str = "sample_id"
    results: dict[str, list[DataFrame]] = field(default_factory=dict)

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] | None = None) -> DataFrame:
        """Run a stage as `Tools.ask` does, and record the results. carry: the key by default."""
        return self.record(stage, self.tools.ask(stage, rows, (self.key,) if carry is None else carry))

    def record(self, stage: str, results: DataFrame) -> DataFrame:
        """Record and return the results of a stage."""
        self.results.setdefault(stage, []).append(results)
        return results

    def complete(self, rows: DataFrame, *stages: str) -> DataFrame:
        """Return the rows of owners with all results of these stages, or of all stages.

        Further requests of the other owners would be paid for nothing.
        """
        missing = [one.where(F.col("error_type").isNotNull()).select(self.key) for one in self._results_of(stages)]
        return rows.join(reduce(DataFrame.union, missing), on=self.key, how="left_anti") if missing else rows

    def incomplete(self, *more: DataFrame) -> DataFrame:
        """Return the owners without a result: the key, lost (a request failed) and waiting (a request was not sent).

        more: further results, with the key and error_type. Both flags can be true.
        """
        flags = [
            results.where(F.col("error_type").isNotNull()).select(self.key, has_failed().alias("lost"))
            for results in (*more, *self._results_of(()))
        ]
        together = reduce(DataFrame.union, flags).groupBy(self.key)
        return together.agg(F.max("lost").alias("lost"), F.max(~F.col("lost")).alias("waiting"))

    def _results_of(self, stages: Sequence[str]) -> list[DataFrame]:
        return [results for stage in stages or self.results for results in self.results.get(stage, ())]

    def failures(self, owned: DataFrame | None = None) -> DataFrame:
        """Return the rows of the table `failures`.

        owned: sample_id and the key, for results that samples share. Each sample then has the failures of its owner.
        """
        frames = []
        for stage, results in self.results.items():
            lost = reduce(DataFrame.unionByName, (outcomes(rows, self.key) for rows in results))
            if owned is None:
                frames.append(failure_rows(self.metric, stage, lost).distinct())
            else:
                failed = lost.where(has_failed()).withColumn("stage", F.lit(stage))
                frames.append(shared_failures(self.metric, owned, failed, self.key))
        return reduce(DataFrame.unionByName, frames)


# The settings of retrieval
LOOKED_UP = ("knowledge", "index", "embeddings", "search")


@dataclass(frozen=True)
class Assumptions:
    """The completions that a plan assumes for requests without a completion."""

    # The settings of the plan. With some settings, the requests of a run depend on completions
    settings: Settings
    # The largest possible output by stage, as columns over the variables of the stage
    results: Mapping[str, Mapping[str, Column]]
    # Stages with fewer requests than counted if completions imply others, as with nli.skip_implied
    at_most: frozenset[str] = frozenset()
    # Returns the average output from the figures of the stages (`untold.jobs.metrics.summaries`). None for `results`
    expected: Callable[[Mapping[str, Figures]], Mapping[str, Mapping[str, Column]]] | None = None


@dataclass(frozen=True)
class Metric:
    """A metric. The jobs read these fields, and name no metric."""

    name: str
    # The stages of the metric in order
    stages: Callable[[Settings], tuple[str, ...]]
    # Returns the tables of valid samples (columns of the table `samples`): `scores` has one row per sample, and
    # `failures` has every failed request
    score: Callable[[DataFrame, Tools, Settings], Tables]
    # Returns the assumptions of a plan
    assume: Callable[[Settings], Assumptions]
    tables: tuple[str, ...] = ("statements", "scores", "failures")
    # The required columns of samples
    needs: tuple[str, ...] | Callable[[Settings], tuple[str, ...]] = ("query", "response", "contexts")
    # The optional columns of samples (`udfs.samples.conversion.OPTIONAL`)
    reads: tuple[str, ...] = ()
    # Returns further optional columns that only some settings need
    reads_more: Callable[[Settings], tuple[str, ...]] | None = None
    # Own settings by section: `{"toy": ToySettings}` adds `toy.*`, and `settings.of(ToySettings)` returns them
    sections: Mapping[str, type[Section]] = field(default_factory=dict)
    # Returns the stages whose items a panel of judges can label. None if the metric has no panel
    judged: Callable[[Settings], tuple[str, ...]] | None = None
    # The settings that results depend on besides the settings of the stages, by dotted key or section; None for all
    settings: tuple[str, ...] | None = None
    # Returns the digests of the files that settings name, by setting. They belong to the identity of an output.
    # Raises UserError for an unusable file before any request
    digests: Callable[[Settings], Mapping[str, str]] | None = None
    # True for a metric with retrieval, which has stages of its own
    retrieves: bool = False
    # The column that retrieval from contexts needs, None for a metric that does not retrieve from contexts
    looks_in: str | None = "contexts"
    # The measures, with the bounds of a sample without results. The table `measures` has one row per sample and measure
    unknown: Bounds | Callable[[Settings], Bounds] = field(default_factory=dict)
    # Returns the weights of statements. None if the sources of statements have no weights
    weighting: Callable[[Settings], Weighting] | None = None
    # Returns further rows of `measures_summary` that are not means, from the written tables measures and scores
    pooled: Callable[[RunTables], list[dict[str, Any]]] | None = None
    # Returns further rows of `measures_summary` from the rows of the metric
    derived: Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]] | None = None
    # The text about samples with `dropped` in the table `scores`, None for no message
    dropped: str | None = None
    # Measures that are undefined for a response without claims, and count as 0 in `mean_zero` for such a response. The
    # measure `claims` of the response is 0
    zeroed: tuple[str, ...] = ()
    # The measure that is the share of supported claims, for R@K and F1@K of claims
    supported_share: str | None = None
    # The measure that is null if a sample has no claims of a reference. It then has no R@K and F1@K. None for a metric
    # that supports claims without a reference
    reference_claims: str | None = None
    # Measures that count as 0 in `mean_zero` whenever they are undefined, as published
    undefined_zero: tuple[str, ...] = ()
    # The class that prints a sample in `untold show`
    view: type[View] = View

    def columns(self, settings: Settings) -> tuple[str, ...]:
        """Return the required columns of samples, with contexts if facts are retrieved from them."""
        own = self.needs(settings) if callable(self.needs) else self.needs
        in_contexts = self.retrieves and settings.knowledge.source == "contexts"
        return tuple(dict.fromkeys((*own, *((self.looks_in,) if in_contexts and self.looks_in else ()))))

    def optional(self, settings: Settings) -> tuple[str, ...]:
        """Return the optional columns of samples."""
        return (*self.reads, *(self.reads_more(settings) if self.reads_more else ()))

    def asks(self, settings: Settings) -> tuple[str, ...]:
        """Return all stages that the metric may run, with the stages of retrieval."""
        looks_up = self.retrieves and (self.looks_in or settings.knowledge.source != "contexts")
        lookups = stages_of_knowledge(settings) if looks_up else ()
        return tuple(dict.fromkeys((*self.stages(settings), *lookups)))

    def depends_on(self, key: str) -> bool:
        """Return True if results may depend on a setting, by dotted key. Settings of stages are not included."""
        if self.settings is None:
            return True
        of_claims = ("claims",) if self.supported_share else ()
        common = (*of_claims, "statistics", "sources", "judges", "judges_rule")
        names = (*self.settings, *(LOOKED_UP if self.retrieves else ()), *common)
        return any(f"{key}.".startswith(f"{name}.") for name in names)

    def bounds_of_unknown(self, settings: Settings) -> Bounds:
        """Return the bounds of each measure for a sample without results."""
        own = self.unknown(settings) if callable(self.unknown) else self.unknown
        k = settings.claims.k if self.supported_share else None
        weighed = self.weighting(settings).bounds() if self.weighting else {}
        return {**own, **weighed, **dict.fromkeys(names_at(k) if k else (), (0.0, 1.0))}

    @property
    def has_graph(self) -> bool:
        """Return True if relations are condensed as fact graphs. A run then checks GraphFrames before any request."""
        return "relations" in self.tables


def note_settings(settings: Settings, metrics: Sequence[Metric], notify: Callable[[str], None]) -> None:
    """Name the settings of a run that differ from its profile, and the judges without a price."""
    stages = dict.fromkeys(name for metric in metrics for name in metric.asks(settings))
    line = explain_profile(settings, stages, lambda key: any(metric.depends_on(key) for metric in metrics))
    if line is not None:
        notify(line)
    if lacking := judges_without_price(settings):
        notify(f"judges: {', '.join(lacking)} have no price, so the total cost is incomplete")


# The statuses of samples with counts, and of samples without results. The contract has no other status
JUDGED = ("ok", "partial", "no_statements")
UNKNOWN = ("failed", "budget")


def is_judged() -> Column:
    """Return True for a sample with counts, by the column `status`."""
    return F.col("status").isin(*JUDGED)


def status_of(*, lost: Column, waiting: Column, empty: Column, partial: Column) -> Column:
    """Return the status of a sample. Null counts as false, and the first true argument decides.

    lost: a required request failed. waiting: a request was not sent. empty: the sample has nothing to score by.
    partial: a part of the sample was not judged. A failure comes first, because further requests would not repair it.
    Without all completions nobody knows if a sample is empty.
    """
    return (
        F.when(lost, "failed").when(waiting, "budget").when(empty, "no_statements").when(partial, "partial")
    ).otherwise("ok")


def with_status(
    samples: DataFrame, *known: DataFrame, empty: Column | None = None, partial: Column | None = None
) -> DataFrame:
    """Return sample_id, system, the columns of `known`, and status: one row per sample.

    known: frames with at most one row per sample_id, or per owner if an earlier frame has the owners of the samples.
    Their columns `lost` and `waiting` are flags of `status_of`, and null counts as false. empty, partial: the other
    flags, by default the column `empty` and `unjudged` > 0.
    """
    joined = samples.select("sample_id", "system")
    flags: dict[str, list[Column]] = {"lost": [], "waiting": []}
    for number, frame in enumerate(known):
        renamed = {name: f"{name}_{number}" for name in flags if name in frame.columns}
        key = "sample_id" if "sample_id" in frame.columns else "owner"
        joined = joined.join(frame.withColumnsRenamed(renamed), on=key, how="left")
        for name, own in renamed.items():
            flags[name].append(F.col(own))
    lost, waiting = (reduce(operator.or_, columns, F.lit(False)) for columns in flags.values())
    status = status_of(
        lost=lost,
        waiting=waiting,
        empty=F.col("empty") if empty is None else empty,
        partial=F.col("unjudged") > 0 if partial is None else partial,
    )
    return joined.withColumn("status", status)


P = ParamSpec("P")


def contract_rows(table: str, metric: str | Column, rows: DataFrame, **columns: Column) -> DataFrame:
    """Return rows of a table of the contract: the given columns, and otherwise the columns of `rows` by name.

    A column that neither has is null.
    """
    known = {**{name: F.col(name) for name in rows.columns}, "metric": F.lit(metric), **columns}
    fields = ((field, known.get(field.name, F.lit(None))) for field in spark_schema(TABLES[table]).fields)
    return rows.select(*(value.cast(field.dataType).alias(field.name) for field, value in fields))


def collect(judged: DataFrame, name: str, *fields: str | Column) -> DataFrame:
    """Return sample_id, the column `name` and waiting: one row per sample of `judged`.

    The column is an array of structs of the fields. waiting is true if a request was not sent.
    """
    return judged.groupBy("sample_id").agg(
        F.collect_list(F.struct(*fields)).alias(name), F.max(is_unasked()).alias("waiting")
    )


def conclude(rows: DataFrame, function: BatchFunction[P], *args: P.args, **options: P.kwargs) -> DataFrame:
    """Return the columns that a function computes per sample, and the column `waiting` of the rows."""
    concluded = map_rows(rows.drop("waiting"), function, *args, **options)
    return concluded.join(rows.select("sample_id", "waiting"), on="sample_id", how="left")


def bounded(value: Column, low: Column, high: Column, *, always: bool = False) -> list[Column]:
    """Return the columns score, score_low, score_high of a sample with a status (docs/contract.md, "Bounds").

    `value` is the formula over the judged parts, or null if it is undefined. `low` and `high` are the bounds of a
    partial sample, and 0 and 1 are the bounds of a sample without results. With `always`, `low` and `high` are the
    bounds of every sample with a defined score.
    """
    known = F.when(is_judged(), value)
    unknown, partial = F.col("status").isin(*UNKNOWN), F.col("status").isin("partial", *(["ok"] if always else []))
    return [
        known.alias("score"),
        # The whole range, so that a sample without results cannot narrow the bounds of a mean
        F.when(unknown, low if always else F.lit(0.0)).when(partial, low).otherwise(known).alias("score_low"),
        F.when(unknown, high if always else F.lit(1.0)).when(partial, high).otherwise(known).alias("score_high"),
    ]


def optional_columns(samples: DataFrame, names: Sequence[str]) -> list[Column]:
    """Return these columns of the samples, null if the input lacks them."""
    return [
        (F.col(name) if name in samples.columns else F.lit(None)).cast(OPTIONAL_TYPES[name]).alias(name)
        for name in names
    ]


def is_blank(name: str) -> Column:
    """Return True for a text of white space only, as Unicode defines it."""
    return ~F.col(name).rlike(r"(?U)\S")


def counted(name: str) -> Column:
    """Return a count of a sample: 0 if there is none, null if the sample was not judged."""
    return F.when(is_judged(), F.coalesce(F.col(name), F.lit(0))).cast("long").alias(name)


def comprehensiveness() -> Column:
    """Return covered / (covered + uncovered), null without statements (docs/methods.md, section 1).

    3 covered and 1 uncovered make 0.75. Reads the long columns covered and uncovered. Null counts as 0.
    """
    covered, uncovered = (F.coalesce(F.col(name), F.lit(0)).cast("double") for name in ("covered", "uncovered"))
    return F.try_divide(covered, covered + uncovered)


def measured_scores(
    judged: DataFrame, metric: str, measure: str, dropped: Column, *, always: bool = False
) -> DataFrame:
    """Return the table `scores` of a metric whose score is one of its measures.

    judged: sample_id, system, status, covered, uncovered, unjudged, and measures array<struct<measure, value,
    value_low, value_high>>. dropped: a count, null as 0. always: as in `bounded`.
    """
    one = F.filter("measures", lambda row: row["measure"] == measure)[0]
    score = bounded(one["value"], one["value_low"], one["value_high"], always=always)
    return judged.select(*_score_columns(metric, score, dropped))


def measure_rows(judged: DataFrame, metric: str, bounds: Bounds) -> DataFrame:
    """Return the table `measures`: the values of judged samples, and the bounds of the others.

    judged: as in `measured_scores`.
    """
    known = contract_rows("measures", metric, judged.where(is_judged()).select("sample_id", F.inline("measures")))
    return known.unionByName(unknown_measures(judged.where(~is_judged()), metric, bounds))


def bounded_measures(known: DataFrame, metric: str) -> DataFrame:
    """Return the table `measures` of samples with bounds of their own, also for samples without a verdict.

    known: sample_id, status, measures array<struct<measure, value, value_low, value_high>>.
    """
    rows = known.select("sample_id", is_judged().alias("judged"), F.inline("measures"))
    return contract_rows("measures", metric, rows, value=F.when(F.col("judged"), F.col("value")))


def unknown_measures(samples: DataFrame, metric: str, bounds: Bounds) -> DataFrame:
    """Return rows of the table `measures` with the bounds of samples without results."""
    rows = measure_structs({name: (None, low, high) for name, (low, high) in bounds.items()})
    return contract_rows("measures", metric, samples.select("sample_id", F.inline(rows)))


def measure_structs(measures: Mapping[str, tuple[Any, Any, Any]]) -> Column:
    """Return array<struct<measure, value, value_low, value_high>> of columns or numbers, by measure."""
    names = ("value", "value_low", "value_high")
    rows = []
    for measure, values in measures.items():
        ends = (F.lit(value).cast("double").alias(name) for name, value in zip(names, values, strict=True))
        rows.append(F.struct(F.lit(measure).alias("measure"), *ends))
    return F.array(*rows)


def shared_failures(metric: str, owned: DataFrame, lost: DataFrame, *key: str) -> DataFrame:
    """Return rows of the table `failures`: the failures of results that samples share, for each sample.

    owned: sample_id and the key. lost: the key, stage and `OUTCOME`.
    """
    joined = owned.select("sample_id", *key).join(lost, on=list(key), how="inner")
    return contract_rows("failures", metric, joined).distinct()


def score_columns(metric: str | Column, dropped: Column | None = None) -> list[Column]:
    """Return the columns of the table `scores` of a comprehensiveness metric.

    Reads sample_id, system, status, covered, uncovered, unjudged, low and high. `dropped` counts the items of a list
    without a source, 0 by default.
    """
    score = bounded(comprehensiveness(), F.col("low"), F.col("high"))
    return _score_columns(metric, score, F.lit(0) if dropped is None else dropped)


def _score_columns(metric: str | Column, score: Sequence[Column], dropped: Column) -> list[Column]:
    """Return the columns of the table `scores`. score: from `bounded`."""
    return [
        F.col("sample_id"),
        F.lit(metric).alias("metric"),
        F.col("system"),
        *score,
        *map(counted, ("covered", "uncovered", "unjudged")),
        F.when(is_judged(), F.coalesce(dropped, F.lit(0))).cast("long").alias("dropped"),
        F.col("status"),
    ]
