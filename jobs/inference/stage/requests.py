"""The requests of a stage, from rows or pairs or lists of texts, and the columns of its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from operator import add
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from untold.jobs.run.session import fields_of, spark_schema
from untold.jobs.tables import FAILURES
from untold.udfs.facts.pairs import LISTS, PAIRS, PairFilter, ask_all, generate_lists, generate_pairs
from untold.udfs.llm.keys import Stage
from untold.udfs.stages import definition_of
from untold.udfs.stages.arrow import LEAKED, TOKENS, UNASKED, add_request_ids, mask_columns

STRING = T.StringType()
OUTCOME = ("request_id", "error_type", "error")
"""The columns of all results about their request."""
_ROW = "request_row"


def masked(frame: DataFrame, stage: Stage, *names: str) -> DataFrame:
    """Return the rows with masked texts in these columns, or unchanged if the stage has no mask."""
    if stage.mask is None:
        return frame
    return frame.mapInArrow(partial(mask_columns, stage=stage, names=names), frame.schema)


class Requests(Protocol):
    """Requests of a stage before the lookup.

    Attributes:
        carry: columns that the results keep.
        bound: for requests that are too many for a plan, a frame with the columns requests and bytes: their maximum
            number, and the bytes of the variables of each. `expected` is such a frame with their expected number.
        made_of: stages with the outputs that the requests contain. Empty for the outputs of all earlier stages.
        all_asked: True if every row has a request.
    """

    @property
    def carry(self) -> tuple[str, ...]: ...

    @property
    def bound(self) -> DataFrame | None: ...

    @property
    def expected(self) -> DataFrame | None: ...

    @property
    def made_of(self) -> tuple[str, ...]: ...

    @property
    def all_asked(self) -> bool: ...

    def identify(self, stage: Stage, *, measured: bool = False) -> DataFrame:
        """Return the columns of `carry`, request_id (null without a request), and the columns for `texts_of`.

        `measured` adds the estimated tokens of the prompts, if the rows contain the texts.
        """

    def texts_of(self, stage: Stage, identified: DataFrame, wanted: DataFrame) -> DataFrame:
        """Return request_id and the variables of the stage, one row per request of `wanted` (column request_id)."""

    def readable(self, stage: Stage, identified: DataFrame) -> DataFrame:
        """Return the rows with the variables that the parser of the stage needs."""


@dataclass(frozen=True)
class Rows:
    """One request per row. The columns with the names of the variables of the stage are its variables."""

    frame: DataFrame
    carry: tuple[str, ...]
    bound: DataFrame | None = None
    expected: DataFrame | None = None
    made_of: tuple[str, ...] = ()
    all_asked: bool = True

    def identify(self, stage: Stage, *, measured: bool = False) -> DataFrame:
        """Return the rows with request_id, their texts and a number of the row."""
        others = [name for name in stage.variables if name not in self.carry]
        ordered = masked(self.frame.select(*self.carry, *others), stage, *stage.variables)
        added = [T.StructField("request_id", STRING), *([T.StructField(TOKENS, T.LongType())] if measured else [])]
        schema = T.StructType([*fields_of(ordered, ordered.columns), *added])
        keyed = ordered.mapInArrow(partial(add_request_ids, stage=stage, measured=measured), schema)
        # The number of one row identifies a request, so that no text is shuffled
        return keyed.withColumn(_ROW, F.monotonically_increasing_id())

    def texts_of(self, stage: Stage, identified: DataFrame, wanted: DataFrame) -> DataFrame:
        """Return the texts of the first row of each wanted request."""
        first = identified.groupBy("request_id").agg(F.min(_ROW).alias(_ROW))
        rows = first.join(wanted, on="request_id", how="left_semi").select(_ROW)
        return identified.join(rows, on=_ROW, how="left_semi").select("request_id", *stage.variables)

    def readable(self, stage: Stage, identified: DataFrame) -> DataFrame:
        """Return the rows unchanged, because they have all variables."""
        return identified


@dataclass(frozen=True)
class Pairs:
    """Pairs of the texts of `owners` from `untold.udfs.facts.pairs.generate_pairs`: owner, source, target.

    Rows of pairs only have numbers, and texts are joined to the missing requests. A pair that is implied by `choose` or
    removed by the pair filter has no request.
    """

    owners: DataFrame
    choose: Callable[..., Any] = ask_all
    pair_filter: PairFilter = field(default_factory=PairFilter)
    carry: tuple[str, ...] = ("owner", "source", "target", "judged_by")
    made_of: tuple[str, ...] = ()

    @property
    def all_asked(self) -> bool:
        """True if no pair is implied or filtered."""
        return self.choose is ask_all and not self.pair_filter

    @cached_property
    def bound(self) -> DataFrame:
        """2 * R * C + C * (C - 1) pairs per owner, each with the length of its two longest texts."""
        pairs = F.col("to_contexts") + F.col("between_contexts") + F.col("to_responses")
        longest = F.array_max(F.transform("texts", lambda text: F.octet_length(text)))
        return self.owners.select(pairs.alias("requests"), (2 * longest).alias("bytes"))

    @property
    def expected(self) -> DataFrame:
        """The same formula, which is exact for any numbers of texts."""
        return self.bound

    def identify(self, stage: Stage, *, measured: bool = False) -> DataFrame:
        """Return the columns of `PAIRS`: numbers and request_id, without texts to measure."""
        pairs = partial(generate_pairs, stage=stage, choose=self.choose, pair_filter=self.pair_filter)
        return masked(self.owners, stage, "texts").mapInArrow(pairs, spark_schema(PAIRS))

    def texts_of(self, stage: Stage, identified: DataFrame, wanted: DataFrame) -> DataFrame:
        """Return the texts of one pair of each wanted request, by their indices in `texts` of the owner."""
        return self._with_texts(stage, self._least(identified, wanted)).select("request_id", *stage.variables)

    def readable(self, stage: Stage, identified: DataFrame) -> DataFrame:
        """Return the rows unchanged, because the parser of a label needs no texts."""
        return identified

    def _least(self, identified: DataFrame, wanted: DataFrame) -> DataFrame:
        """Return one row of each wanted request: request_id and the columns of `carry`."""
        # Equal texts of several owners are one request. The least row is the same each time
        least = F.min(F.struct(*self.carry)).alias("least")
        rows = identified.join(wanted, on="request_id", how="left_semi").groupBy("request_id").agg(least)
        return rows.select("request_id", "least.*")

    def _with_texts(self, stage: Stage, rows: DataFrame) -> DataFrame:
        """Return the rows with the variables of the stage."""
        texts = masked(self.owners.select("owner", "texts"), stage, "texts")
        owned = rows.join(texts, on="owner", how="inner")
        first, second = stage.variables
        columns = {first: _text_at(F.col("source")), second: self._second()}
        return owned.withColumns(columns).drop("texts")

    def _second(self) -> Column:
        """Return the second variable of the stage, for rows with `texts`."""
        return _text_at(F.col("target"))


def _text_at(place: Column) -> Column:
    return F.get("texts", place.cast("int"))


@dataclass(frozen=True)
class Lists(Pairs):
    """The same pairs in lists: a source with at most `size` of its targets of one kind."""

    carry: tuple[str, ...] = ("owner", "source", "targets", "judged_by")
    size: int = 1

    @property
    def all_asked(self) -> bool:
        """True without a pair filter: lists have no implied pairs, but a filter removes lists."""
        return not self.pair_filter

    @cached_property
    def bound(self) -> DataFrame:
        """The number of lists of all sources: R·⌈C / n⌉ + C·⌈(C − 1) / n⌉ + C·⌈R / n⌉."""
        contexts, texts = F.col("contexts"), F.size("texts")
        kinds = {"to_contexts": contexts, "between_contexts": contexts - 1, "to_responses": texts - contexts}
        lists = [
            F.ceil(F.col(kind) / F.greatest(width, F.lit(1))) * F.ceil(width / self.size)
            for kind, width in kinds.items()
        ]
        longest = F.array_max(F.transform("texts", lambda text: F.octet_length(text)))
        shown = F.lit(1) + F.least(F.lit(self.size), texts)
        return self.owners.select(reduce(add, lists).alias("requests"), (shown * longest).alias("bytes"))

    def identify(self, stage: Stage, *, measured: bool = False) -> DataFrame:
        """Return the columns of `LISTS`: numbers and request_id, without texts to measure."""
        lists = partial(generate_lists, stage=stage, choose=self.choose, size=self.size, pair_filter=self.pair_filter)
        return masked(self.owners, stage, "texts").mapInArrow(lists, spark_schema(LISTS))

    def readable(self, stage: Stage, identified: DataFrame) -> DataFrame:
        """Return the rows with premise and hypotheses, because the parser needs their number and their texts."""
        return self._with_texts(stage, identified)

    def _second(self) -> Column:
        return F.transform("targets", _text_at)


def result_schema(stage: Stage, identified: DataFrame, carry: Sequence[str]) -> T.StructType:
    """Return the schema of the results of a stage: the columns of `carry` and of `udfs.stages.arrow.make_parser`."""
    definition = definition_of(stage.name)
    output = spark_schema(definition.results)
    errors = [T.StructField(name, STRING) for name in ("error_type", "error")]
    leaked = [T.StructField(LEAKED, T.LongType())] if definition.items else []
    return T.StructType([*fields_of(identified, (*carry, "request_id")), *output.fields, *errors, *leaked])


def without_requests(identified: DataFrame, schema: T.StructType, carry: Sequence[str]) -> DataFrame:
    """Return the rows without a request as results, with null in all columns except `carry`."""
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields[len(carry) :]]
    return identified.where(F.col("request_id").isNull()).select(*carry, *nulls)


def has_failed() -> Column:
    """Return True for a row of results with a failed request, which is a row of the table `failures`."""
    return F.col("error_type").isNotNull() & (F.col("error_type") != UNASKED)


def is_unasked() -> Column:
    """Return True for a row of results whose request was not sent, because the run ended early."""
    return F.col("error_type").eqNullSafe(UNASKED)


def outcomes(results: DataFrame, *keys: str) -> DataFrame:
    """Return the keys and `OUTCOME` of results, and of the votes of a panel (`jobs.metrics.panel`)."""
    own = results.select(*keys, *OUTCOME)
    if "votes" not in results.columns:
        return own
    return own.unionByName(results.select(*keys, F.inline("votes")).select(*keys, *OUTCOME))


def failure_rows(metric: str | None, stage: str, results: DataFrame, key: str = "sample_id") -> DataFrame:
    """Return the rows of the table `failures` from the results of a stage, with the ids in the column `key`.

    There is one row per result with a failed request. A request that was not sent is not a failure.
    """
    own = {"sample_id": F.col(key), "metric": F.lit(metric).cast("string"), "stage": F.lit(stage)}
    return results.where(has_failed()).select(*[own.get(name, F.col(name)).alias(name) for name in FAILURES.names])


def invalid_rows(invalid: DataFrame, metric: str | None = None) -> DataFrame:
    """Return the rows of the table `failures` for unusable rows of the input (sample_id, error)."""
    known = {"metric": F.lit(metric), "stage": F.lit("input"), "error_type": F.lit("invalid_input")}
    own = {**known, "request_id": F.lit(None), "sample_id": F.col("sample_id"), "error": F.col("error")}
    return invalid.select(*[own[name].cast("string").alias(name) for name in FAILURES.names])
