"""What a metric is: a value that says what it asks, needs and gives, and the function that scores samples.

Status and bounds of scores are computed apart from their formula: columns in, columns out (docs/contract.md, "Scores"
and "Bounds"). Every metric's table `scores` is made of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.distributed import Condensed
from untold.jobs.inference.stage.requests import Requests
from untold.jobs.metrics.views import View
from untold.jobs.retrieval.sources import stages_of_knowledge
from untold.jobs.settings.fields import Section
from untold.jobs.settings.model import Settings
from untold.jobs.settings.templates import explain_profile
from untold.udfs.stages.definitions import Figures

Tables = Mapping[str, DataFrame]
"""By name, the rows that a metric gives of tables of `untold.jobs.tables`."""
Bounds = Mapping[str, tuple[float | None, float | None]]
"""By the name of a measure, its low and its high; None where it has no end."""


class Tools(Protocol):
    """What a metric may call; everything that materialises happens behind these.

    A run gives tools that ask (`jobs.metrics.scoring`), a plan gives tools that count (`jobs.plan`); the same code of a
    metric meets both, so that a plan cannot drift from what a run does.
    """

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """Answers a stage for rows: the columns of `carry`, request_id, the stage's output, error_type, error.

        Each row of a DataFrame is a row of the result, however many of them share a request. The output is null where
        error_type is not; error_type is `unasked` (`udfs.stages.arrow.UNASKED`) where the run ended before the row's
        turn. Rows of `Pairs` without a request_id are implied by others and have no output either.
        """

    def contexts(self) -> DataFrame:
        """What `jobs.metrics.summaries` gives: the contexts, condensed where the settings say so. Asked once a run."""

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        """Looks queries up as `knowledge.*` says: the columns of `rows`, and those of a hit, a row a hit.

        rows: query, sample_id, and whatever else. `jobs.retrieval.knowledge.Knowledge` says what hits have. A metric
        that calls it says so (`Metric.retrieves`).
        """

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        """The same rows, computed once: for a frame that is read more than once.

        `name` is for people who look into a run's working folder; it need not be unique.
        """

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Condenses fact graphs by `untold.jobs.metrics.condensing.Condenser`, which says what columns it reads."""


# Settings that facts are looked up by
LOOKED_UP = ("knowledge", "index", "embeddings", "search")


@dataclass(frozen=True)
class Assumptions:
    """What a plan takes for granted where nothing is known."""

    # Those to plan under: some settings make what is asked depend on answers
    settings: Settings
    # By stage the output of a request that was not answered, never less and never shorter than what could come, as
    # columns over the stage's variables
    results: Mapping[str, Mapping[str, Column]]
    # Stages that may be asked less than is counted, as under nli.skip_implied, where answers say what is implied
    at_most: frozenset[str] = frozenset()
    # From the figures of its stages to what `results` are in the mean (`untold.jobs.metrics.summaries`); without, these
    # are what is expected too
    expected: Callable[[Mapping[str, Figures]], Mapping[str, Mapping[str, Column]]] | None = None


@dataclass(frozen=True)
class Metric:
    """A metric as the jobs see it. All that a metric brings stands here; the jobs name none."""

    name: str
    # The stages that it asks, in order
    stages: Callable[[Settings], tuple[str, ...]]
    # From valid samples (columns of the table `samples`) to rows of its tables: one row a sample of `scores`, every
    # failed request in `failures`
    score: Callable[[DataFrame, Tools, Settings], Tables]
    # What a plan takes for granted
    assume: Callable[[Settings], Assumptions]
    tables: tuple[str, ...] = ("statements", "scores", "failures")
    # The columns that samples must have
    needs: tuple[str, ...] | Callable[[Settings], tuple[str, ...]] = ("query", "response", "contexts")
    # Columns of `udfs.samples.conversion.OPTIONAL` that it reads where they are there
    reads: tuple[str, ...] = ()
    # Settings of its own, by section: `{"toy": ToySettings}` adds `toy.*`, and `settings.of(ToySettings)` reads them
    sections: Mapping[str, type[Section]] = field(default_factory=dict)
    # Settings that its results depend on besides those of its stages, by dotted key or section; None: it may be any
    settings: tuple[str, ...] | None = None
    # Digests of the files that settings name, by setting: what they hold belongs to an output. Raises UserError for a
    # file that cannot be used, before anything is paid for
    digests: Callable[[Settings], Mapping[str, str]] | None = None
    # Whether it looks facts up, which asks stages of its own and may need contexts, or the column of `looks_in`; None
    # for a metric that looks nothing up in contexts
    retrieves: bool = False
    looks_in: str | None = "contexts"
    # Its measures, one row a sample of `measures`, each with the bounds of a sample of which nothing is known
    unknown: Bounds | Callable[[Settings], Bounds] = field(default_factory=dict)
    # From the tables measures and scores, as they were written, further rows of `measures_summary`: of what is no mean
    pooled: Callable[[DataFrame, DataFrame], list[dict[str, Any]]] | None = None
    # From its rows of `measures_summary` further ones
    derived: Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]] | None = None
    # What samples with `dropped` in the table `scores` lack, where a run is to say that there are some
    dropped: str | None = None
    # Measures that are undefined where a response states nothing, and count as 0 in `mean_zero` then; such a response
    # has the measure `claims` 0
    zeroed: tuple[str, ...] = ()
    # Measures that count as 0 in `mean_zero` wherever they are undefined, as they were published
    undefined_zero: tuple[str, ...] = ()
    # What `untold show` prints of a sample
    view: type[View] = View

    def columns(self, settings: Settings) -> tuple[str, ...]:
        """The columns that samples must have under these settings; contexts where facts are looked up in them."""
        own = self.needs(settings) if callable(self.needs) else self.needs
        in_contexts = self.retrieves and settings.knowledge.source == "contexts"
        return tuple(dict.fromkeys((*own, *((self.looks_in,) if in_contexts and self.looks_in else ()))))

    def asks(self, settings: Settings) -> tuple[str, ...]:
        """All stages that the metric may ask: its own, and those of looking facts up."""
        looks_up = self.retrieves and (self.looks_in or settings.knowledge.source != "contexts")
        lookups = stages_of_knowledge(settings) if looks_up else ()
        return tuple(dict.fromkeys((*self.stages(settings), *lookups)))

    def depends_on(self, key: str) -> bool:
        """Whether its results may depend on a setting, by dotted key; those of its stages aside."""
        names = (
            None if self.settings is None else (*self.settings, *(LOOKED_UP if self.retrieves else ()), "statistics")
        )
        return names is None or any(f"{key}.".startswith(f"{name}.") for name in names)

    def bounds_of_unknown(self, settings: Settings) -> Bounds:
        """Of each measure, the bounds of a sample of which nothing is known."""
        return self.unknown(settings) if callable(self.unknown) else self.unknown

    @property
    def has_graph(self) -> bool:
        """Whether its relations are condensed as fact graphs: then a run checks for GraphFrames before it asks."""
        return "relations" in self.tables


def note_profile(settings: Settings, metrics: Sequence[Metric], notify: Callable[[str], None]) -> None:
    """Says what of a run of these metrics is not as its profile has it, where it has one."""
    stages = dict.fromkeys(name for metric in metrics for name in metric.asks(settings))
    line = explain_profile(settings, stages, lambda key: any(metric.depends_on(key) for metric in metrics))
    if line is not None:
        notify(line)


# Statuses whose counts are numbers, and those of which nothing is known; together all of the contract
JUDGED = ("ok", "partial", "no_statements")
UNKNOWN = ("failed", "budget")


def status_of(*, lost: Column, waiting: Column, empty: Column, partial: Column) -> Column:
    """A sample's status from what befell it; null counts as no.

    lost: something that it needs failed; waiting: something was never asked; empty: nothing to score by; partial: some
    of it was not judged. The worst wins, in this order: what failed would not be mended by asking the rest, and without
    all answers nobody knows whether a sample is empty.
    """
    return (
        F.when(lost, "failed").when(waiting, "budget").when(empty, "no_statements").when(partial, "partial")
    ).otherwise("ok")


def bounded(value: Column, low: Column, high: Column, *, always: bool = False) -> list[Column]:
    """Return the columns score, score_low, score_high of a sample with a status (docs/contract.md, "Bounds").

    `value` is the formula over the judged part, null if it is undefined. `low` and `high` bound a partial sample, and 0
    and 1 bound a sample of unknown status. `always`: `low` and `high` bound every sample with a defined score.
    """
    known = F.when(F.col("status").isin(*JUDGED), value)
    unknown, partial = F.col("status").isin(*UNKNOWN), F.col("status").isin("partial", *(["ok"] if always else []))
    return [
        known.alias("score"),
        # From 0 to 1, the whole range: an unknown sample narrows no mean's bounds
        F.when(unknown, low if always else F.lit(0.0)).when(partial, low).otherwise(known).alias("score_low"),
        F.when(unknown, high if always else F.lit(1.0)).when(partial, high).otherwise(known).alias("score_high"),
    ]


def is_blank(name: str) -> Column:
    """Whether a text says nothing, by what Unicode calls white space."""
    return ~F.col(name).rlike(r"(?U)\S")


def counted(name: str) -> Column:
    """A count of a sample: 0 where there is none, null where the sample was not judged."""
    return F.when(F.col("status").isin(*JUDGED), F.coalesce(F.col(name), F.lit(0))).cast("long").alias(name)


def comprehensiveness() -> Column:
    """S = covered / (covered + uncovered), null without statements (docs/methods.md, section 1).

    3 covered and 1 uncovered make 0.75. Reads long columns covered and uncovered, null as 0.
    """
    covered, uncovered = (F.coalesce(F.col(name), F.lit(0)).cast("double") for name in ("covered", "uncovered"))
    return F.try_divide(covered, covered + uncovered)


def measured_scores(
    judged: DataFrame, metric: str, measure: str, dropped: Column, *, always: bool = False
) -> DataFrame:
    """The table `scores` of a metric whose score is one of its measures.

    judged: sample_id, system, status, covered, uncovered, unjudged, and measures array<struct<measure, value,
    value_low, value_high>>; dropped: a count, null as 0; always: as of `bounded`.
    """
    one = F.filter("measures", lambda row: row["measure"] == measure)[0]
    return judged.withColumn("dropped", dropped).select(
        "sample_id",
        F.lit(metric).alias("metric"),
        "system",
        *bounded(one["value"], one["value_low"], one["value_high"], always=always),
        *map(counted, ("covered", "uncovered", "unjudged", "dropped")),
        "status",
    )


def measure_rows(judged: DataFrame, metric: str, bounds: Mapping[str, tuple[float | None, float | None]]) -> DataFrame:
    """The table `measures`: of `judged` samples (as `measured_scores`) what is known, of the others the bounds."""
    is_known = F.col("status").isin(*JUDGED)
    known = judged.where(is_known).select("sample_id", F.lit(metric).alias("metric"), F.inline("measures"))
    return known.unionByName(unknown_measures(judged.where(~is_known), metric, bounds))


def bounded_measures(known: DataFrame, metric: str) -> DataFrame:
    """Return the table `measures` of samples with bounds of their own, also for samples without a verdict.

    known: sample_id, status, measures array<struct<measure, value, value_low, value_high>>.
    """
    one = F.explode("measures").alias("one")
    rows = known.select("sample_id", F.col("status").isin(*JUDGED).alias("judged"), one)
    value = F.when(F.col("judged"), F.col("one.value")).alias("value")
    return rows.select(
        "sample_id", F.lit(metric).alias("metric"), "one.measure", value, "one.value_low", "one.value_high"
    )


def unknown_measures(
    samples: DataFrame, metric: str, bounds: Mapping[str, tuple[float | None, float | None]]
) -> DataFrame:
    """Rows of the table `measures` of samples of which nothing is known. `bounds`: of each measure, low and high."""
    null = F.lit(None).cast("double")
    rows = [
        F.struct(
            F.lit(name).alias("measure"),
            null.alias("value"),
            F.lit(low).cast("double").alias("value_low"),
            F.lit(high).cast("double").alias("value_high"),
        )
        for name, (low, high) in bounds.items()
    ]
    exploded = samples.select("sample_id", F.explode(F.array(*rows)).alias("one"))
    return exploded.select("sample_id", F.lit(metric).alias("metric"), "one.*")


def score_columns(metric: str | Column, dropped: Column | None = None) -> list[Column]:
    """The columns of the table `scores` of a comprehensiveness metric.

    From sample_id, system, status, covered, uncovered, unjudged, low and high. `dropped` counts the items that a list
    gave without a source; without it there are none.
    """
    judged = F.col("status").isin("ok", "partial", "no_statements")
    without_source = F.lit(0) if dropped is None else F.coalesce(dropped, F.lit(0))
    return [
        F.col("sample_id"),
        F.lit(metric).alias("metric"),
        F.col("system"),
        *bounded(comprehensiveness(), F.col("low"), F.col("high")),
        *map(counted, ("covered", "uncovered", "unjudged")),
        F.when(judged, without_source).cast("long").alias("dropped"),
        F.col("status"),
    ]
