"""What a plan takes unanswered requests to yield where it says what is likely: as many things as usual, as long.

Numbers are whole and vary from text to text about their mean, by a hash of the text, so that sums over many texts are
right and the same request always has the same output. Texts are made up and marked: no store knows their requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from untold.jobs.metrics.contexts import MARK, STAGE
from untold.udfs.llm.tokens import BYTES_OF_A_TOKEN
from untold.udfs.stages.figures import Figures, Line

# Parts that a hash is told apart by where it draws a number between 0 and 1
_PARTS = 1_000_003

Likely = Mapping[str, Figures]
"""By stage its figures."""


def tokens_of(*variables: str) -> Column:
    """About how many tokens the variables of a request have; of a list its items together."""
    joined = F.concat_ws(" ", *variables)
    return F.octet_length(joined) / BYTES_OF_A_TOKEN


def value_of(line: Line, tokens: Column) -> Column:
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


def likely_summaries(likely: Likely) -> dict[str, Mapping[str, Column]]:
    """A part of the text, as long as completions are, for as many texts as have one; nothing where none is asked."""
    if STAGE not in likely:
        return {}
    figures, tokens = likely[STAGE], tokens_of("query", "text")
    size = value_of(figures.completion, tokens) * BYTES_OF_A_TOKEN
    said = F.concat(F.substring(F.col("text"), F.lit(1), F.greatest(size.cast("int"), F.lit(1))), F.lit(MARK))
    return {STAGE: {"summary": F.when(drawn("query", "text") < value_of(figures.things, tokens), said)}}


def likely_ratings(items: str, passing: float) -> Column:
    """The highest rating for a share of the items, the lowest for the others; which, their texts say."""
    return F.transform(items, lambda item: F.when(drawn(item) < passing, 5.0).otherwise(1.0))


def all_highest(items: Column | str) -> Column:
    """The highest rating for each of the items."""
    return F.transform(items, lambda _: F.lit(5.0))
