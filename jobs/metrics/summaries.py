"""Summarise the contexts of the samples for the query, and generate the expected outputs of a plan.

Methods, sections 1 and 9. All responses and metrics share the summary of a text for a query. Expected numbers are
integers that vary around their mean by a hash of the text, so sums over many texts are correct, and equal requests have
equal outputs. Generated texts contain a mark, so no store has completions for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import has_failed, is_unasked
from untold.jobs.metrics.base import Assumptions
from untold.jobs.settings.model import Settings
from untold.udfs.llm.usage import BYTES_OF_A_TOKEN
from untold.udfs.stages.definitions import Figures, LinearSize

STAGE = "summarise_context"
# The mark of generated texts: a noncharacter of Unicode, which no text of a store contains
MARK = "\uffff"


def stages_with_contexts(settings: Settings, *own: str) -> tuple[str, ...]:
    """Return the stages of a metric with contexts: the summaries if they are on, and its own stages."""
    return (STAGE, *own) if settings.summarise_contexts else own


# The length of an atom or answer in a plan, in characters. Few are longer. With whole texts, the tokens of a plan would
# grow with the square of the length
LONGEST_ATOM = 300
# The fewest words of an extracted text, for an upper bound of the number of texts
FEWEST_WORDS = 2


class Extraction(NamedTuple):
    """The texts that a stage extracts, for a plan.

    Attributes:
        output: the column of the stage's output.
        text: the variable that the texts come from.
        others: the other variables whose length counts.
        most: the maximum number of texts, None for a number that depends on the length of the text.
    """

    output: str
    text: str = "text"
    others: tuple[str, ...] = ()
    most: int | None = None

    def largest(self) -> dict[str, Column]:
        """Return the maximum number of texts."""
        if self.most is None:
            return {self.output: different_texts(FEWEST_WORDS, self.text)}
        text = F.substring(self.text, 1, LONGEST_ATOM)
        of_number = F.transform(numbers(F.lit(self.most)), lambda number: F.concat(number, F.lit(MARK), text))
        return {self.output: of_number}

    def average(self, figures: Figures) -> dict[str, Column]:
        """Return the average number of texts."""
        return {self.output: expected_texts(figures, self.text, *self.others, most=self.most)}


def assume_texts(
    settings: Settings,
    extracting: Mapping[str, Extraction],
    judged: Mapping[str, Mapping[str, Column]],
    at_most: Iterable[str] = (),
) -> Assumptions:
    """Assume the maximum number of texts of each extracting stage, or the average number.

    judged: the output of the other stages. at_most: as in `Assumptions`.
    """

    def expected(figures: StageFigures) -> dict[str, Mapping[str, Column]]:
        found = {stage: one.average(figures[stage]) for stage, one in extracting.items() if stage in figures}
        return {**expected_summaries(figures), **judged, **found}

    largest = {stage: one.largest() for stage, one in extracting.items()}
    return Assumptions(settings, {**assumed_summaries(), **judged, **largest}, frozenset(at_most), expected)


def different_texts(words: int, of: str = "text") -> Column:
    """Return the parts of a text for a plan: the beginning of the text, once for `words` words of it.

    The column `of` has the texts. `words` is the fewest words of a part, so the number of parts is an upper bound.
    Each part contains its number between marks, which makes all nodes and all requests for pairs different.
    """
    count = F.ceil(F.size(F.split(F.trim(of), r"\s+")) / words).cast("int")
    text = F.substring(of, 1, LONGEST_ATOM)
    return F.transform(
        F.sequence(F.lit(1), count),
        lambda number: F.concat(F.lit(MARK), number.cast("string"), F.lit(MARK), text),
    )


def assumed_summaries() -> dict[str, Mapping[str, Column]]:
    """Return the assumed summaries of a plan: the whole text with the mark. Few summaries are longer than the text."""
    return {STAGE: {"summary": F.concat("text", F.lit(MARK))}}


def summarise_contexts(samples: DataFrame, ask: Callable[..., DataFrame], *, summarise: bool) -> DataFrame:
    """Return sample_id, position, context_id, request_id, summary, error_type, error: one row per context.

    `summary` is null for a context that is not relevant to the query. Without `summarise`, it is the text itself, and
    request_id is null. `position` counts the contexts of a sample from 0. A sample without contexts has no row.

    samples: sample_id, query, contexts array<struct<id, text>>. ask: `Tools.ask`.
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
    """Return sample_id, kept array<struct<position, context_id, summary>>, lost, waiting: one row per sample.

    `kept` has the relevant contexts in their order. lost: a summary failed. waiting: a summary was not requested.
    Samples without contexts have no row.
    """
    # collect_list skips the nulls of irrelevant contexts
    kept = F.when(F.col("summary").isNotNull(), F.struct("position", "context_id", "summary"))
    return contexts.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(kept)).alias("kept"),
        F.max(has_failed()).alias("lost"),
        F.max(is_unasked()).alias("waiting"),
    )


def is_ready() -> Column:
    """Return True if all summaries of a gathered sample are known, and at least one context is relevant."""
    return ~F.col("lost") & ~F.col("waiting") & (F.size("kept") > 0)


# The number of values that a hash can draw between 0 and 1
_PARTS = 1_000_003

StageFigures = Mapping[str, Figures]
"""The figures by stage."""


def tokens_of(*variables: str) -> Column:
    """Return the approximate number of tokens of the variables of a request. A list counts all its items."""
    joined = F.concat_ws(" ", *variables)
    return F.octet_length(joined) / BYTES_OF_A_TOKEN


def value_of(line: LinearSize, tokens: Column) -> Column:
    """Return the value of the line, at least 0."""
    return F.greatest(F.lit(line.base) + F.lit(line.slope) * tokens, F.lit(0.0))


def drawn(*seeds: Column | str) -> Column:
    """Return a number from 0 to 1 (excluded), equal for equal seeds."""
    return F.pmod(F.xxhash64(*seeds), F.lit(_PARTS)) / _PARTS


def whole(mean: Column, *seeds: Column | str) -> Column:
    """Return the mean rounded down or up at random, so that the average of many values is the mean."""
    return F.floor(mean + drawn(*seeds)).cast("int")


def numbers(count: Column) -> Column:
    """Return the numbers from 1 to a count, none for 0."""
    # A sequence from 1 to 0 would count down
    return F.filter(F.sequence(F.lit(1), count + 1), lambda number: number <= count)


def mark_of(*seeds: Column | str) -> Column:
    """Return the mark of the generated texts of these seeds, which is in no other text."""
    return F.concat(F.lit(MARK), F.hex(F.xxhash64(*seeds)), F.lit(MARK))


def made_up(count: Column, size: Column, text: str, *seeds: Column | str) -> Column:
    """Return `count` texts of `size` characters, cut from the text, each with its number and the mark of its seeds."""
    mark = mark_of(text, *seeds)
    body = F.rpad(F.col(text), F.greatest((size - F.length(mark)).cast("int"), F.lit(1)), " ")
    return F.transform(numbers(count), lambda number: F.concat(number.cast("string"), mark, body))


def rewritten(items: str, count: Column) -> Column:
    """Return `count` items with new texts, starting again at the first item after the last. Return none without items.

    The texts depend on the whole list, as with a model, so lists with common items have different results.
    """
    mark, size = mark_of(items), F.size(items)
    new = F.transform(
        numbers(count), lambda number: F.concat(number.cast("string"), mark, F.get(items, F.pmod(number - 1, size)))
    )
    return F.when(size > 0, new).otherwise(F.slice(items, 1, 0))


def size_of_things(figures: Figures, tokens: Column) -> Column:
    """Return the average size of an item of a completion in characters."""
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
    """Return summaries of the average length for the average share of relevant contexts, none without figures."""
    if STAGE not in expected:
        return {}
    figures, tokens = expected[STAGE], tokens_of("query", "text")
    size = value_of(figures.completion, tokens) * BYTES_OF_A_TOKEN
    said = F.concat(F.substring(F.col("text"), F.lit(1), F.greatest(size.cast("int"), F.lit(1))), F.lit(MARK))
    return {STAGE: {"summary": F.when(drawn("query", "text") < value_of(figures.things, tokens), said)}}


def expected_ratings(items: str, passing: float) -> Column:
    """Return the highest rating for a share of the items, chosen by their texts, and the lowest for the others."""
    return F.transform(items, lambda item: F.when(drawn(item) < passing, 5.0).otherwise(1.0))


def all_highest(items: Column | str) -> Column:
    """Return the highest rating for each of the items."""
    return F.transform(items, lambda _: F.lit(5.0))
