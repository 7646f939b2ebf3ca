"""Summarise the contexts of the samples to what bears on the query, and make up the likely outputs of a plan.

Methods, sections 1 and 9: the stage `summarise_context` is asked once for a query and a text, however many responses
and metrics read it. Numbers of likely outputs are whole and vary from text to text about their mean, by a hash of the
text, so that sums over many texts are right and the same request always has the same output. Texts are made up and
marked: no store knows their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import has_failed, is_unasked
from untold.jobs.settings.model import Settings
from untold.udfs.llm.usage import BYTES_OF_A_TOKEN
from untold.udfs.stages.definitions import Figures, LinearSize

STAGE = "summarise_context"
# Keeps what stands in for an answer from being taken for a text that the store knows
# (a noncharacter of Unicode, which texts do not have)
MARK = "\uffff"


def stages_with_contexts(settings: Settings, *own: str) -> tuple[str, ...]:
    """The stages of a metric that reads contexts: its own, after summarising where that is on."""
    return (STAGE, *own) if settings.summarise_contexts else own


def assumed_summaries() -> dict[str, Mapping[str, Column]]:
    """What a plan takes a summary to be: the whole text, since hardly one is longer.

    It is marked, so that no request made of it is one that the store knows.
    """
    return {STAGE: {"summary": F.concat("text", F.lit(MARK))}}


def summarise_contexts(samples: DataFrame, ask: Callable[..., DataFrame], *, summarise: bool) -> DataFrame:
    """Columns sample_id, position, context_id, request_id, summary, error_type, error: one row a context.

    `summary` is null where the context has nothing that bears on the query; without `summarise` it is the text itself.

    samples: sample_id, query, contexts array<struct<id, text>>. position int counts from 0 in the order of the sample's
    contexts; request_id is null where nothing was asked. A sample without contexts has no row. `ask` is `Tools.ask`.
    """
    contexts = samples.select("sample_id", "query", F.posexplode("contexts").alias("position", "context")).select(
        "sample_id", "position", F.col("context.id").alias("context_id"), "query", F.col("context.text").alias("text")
    )
    place = ("sample_id", "position", "context_id")
    if summarise:
        return ask(STAGE, contexts, carry=place)
    null = F.lit(None).cast("string")
    return contexts.select(
        *place,
        null.alias("request_id"),
        F.col("text").alias("summary"),
        null.alias("error_type"),
        null.alias("error"),
    )


def gather_contexts(contexts: DataFrame) -> DataFrame:
    """Columns sample_id, kept array<struct<position, context_id, summary>>, lost, waiting: one row a sample.

    `kept` is in the order of the contexts and without those that say nothing of the query; `lost` says that the
    summary of one failed, `waiting` that it was never asked. Samples without contexts have no row.
    """
    # collect_list passes over the nulls of contexts that say nothing
    kept = F.when(F.col("summary").isNotNull(), F.struct("position", "context_id", "summary"))
    return contexts.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(kept)).alias("kept"),
        F.max(has_failed()).alias("lost"),
        F.max(is_unasked()).alias("waiting"),
    )


def is_ready() -> Column:
    """Whether all contexts of a gathered sample are known, and some are left."""
    return ~F.col("lost") & ~F.col("waiting") & (F.size("kept") > 0)


# Parts that a hash is told apart by where it draws a number between 0 and 1
_PARTS = 1_000_003

StageFigures = Mapping[str, Figures]
"""By stage its figures."""


def tokens_of(*variables: str) -> Column:
    """About how many tokens the variables of a request have; of a list its items together."""
    joined = F.concat_ws(" ", *variables)
    return F.octet_length(joined) / BYTES_OF_A_TOKEN


def value_of(line: LinearSize, tokens: Column) -> Column:
    """The line's value, never below 0."""
    return F.greatest(F.lit(line.base) + F.lit(line.slope) * tokens, F.lit(0.0))


def drawn(*seeds: Column | str) -> Column:
    """A number from 0 up to 1, the same for the same seeds."""
    return F.pmod(F.xxhash64(*seeds), F.lit(_PARTS)) / _PARTS


def whole(mean: Column, *seeds: Column | str) -> Column:
    """A whole number, the one below the mean or the one above, so that many of them have this mean."""
    return F.floor(mean + drawn(*seeds)).cast("int")


def numbers(count: Column) -> Column:
    """The numbers from 1 to a count, none for 0."""
    # A sequence from 1 to 0 would count down
    return F.filter(F.sequence(F.lit(1), count + 1), lambda number: number <= count)


def mark_of(*seeds: Column | str) -> Column:
    """What tells made-up texts of these seeds from all others, and from real ones."""
    return F.concat(F.lit(MARK), F.hex(F.xxhash64(*seeds)), F.lit(MARK))


def made_up(count: Column, size: Column, text: str, *seeds: Column | str) -> Column:
    """So many texts of so many characters, cut from the text; each has its number, and the mark of its seeds."""
    mark = mark_of(text, *seeds)
    body = F.rpad(F.col(text), F.greatest((size - F.length(mark)).cast("int"), F.lit(1)), " ")
    return F.transform(numbers(count), lambda number: F.concat(number.cast("string"), mark, body))


def rewritten(items: str, count: Column) -> Column:
    """So many of the items, from the first again after the last; none where there is none. Their texts are new ones.

    Rewritten anew for every list that they stand in, as a model does it: lists that share items share no result.
    """
    mark, size = mark_of(items), F.size(items)
    new = F.transform(
        numbers(count), lambda number: F.concat(number.cast("string"), mark, F.get(items, F.pmod(number - 1, size)))
    )
    return F.when(size > 0, new).otherwise(F.slice(items, 1, 0))


def size_of_things(figures: Figures, tokens: Column) -> Column:
    """Characters of each thing that a completion yields, all of them together being all of it."""
    things = F.greatest(value_of(figures.things, tokens), F.lit(1.0))
    return value_of(figures.completion, tokens) * BYTES_OF_A_TOKEN / things


def expected_texts(figures: Figures, text: str, *others: str, most: int | None = None) -> Column:
    """Return the average number of texts of a stage, cut from the variable `text`, at most `most`.

    others: the other variables whose length counts.
    """
    tokens = tokens_of(text, *others)
    count = whole(value_of(figures.things, tokens), text)
    limited = count if most is None else F.least(count, F.lit(most))
    return made_up(limited, size_of_things(figures, tokens), text)


def expected_summaries(expected: StageFigures) -> dict[str, Mapping[str, Column]]:
    """A part of the text, as long as completions are, for as many texts as have one; nothing where none is asked."""
    if STAGE not in expected:
        return {}
    figures, tokens = expected[STAGE], tokens_of("query", "text")
    size = value_of(figures.completion, tokens) * BYTES_OF_A_TOKEN
    said = F.concat(F.substring(F.col("text"), F.lit(1), F.greatest(size.cast("int"), F.lit(1))), F.lit(MARK))
    return {STAGE: {"summary": F.when(drawn("query", "text") < value_of(figures.things, tokens), said)}}


def expected_ratings(items: str, passing: float) -> Column:
    """The highest rating for a share of the items, the lowest for the others; which, their texts say."""
    return F.transform(items, lambda item: F.when(drawn(item) < passing, 5.0).otherwise(1.0))


def all_highest(items: Column | str) -> Column:
    """The highest rating for each of the items."""
    return F.transform(items, lambda _: F.lit(5.0))
