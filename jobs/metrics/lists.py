"""Pairs of texts judged in lists: one text, and those that it is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.results import has_failed
from untold.jobs.asking.store import is_transient

# What tells a relation that was asked for in a list (`relations.judged_by`)
LIST = "list"
AskLists = Callable[[DataFrame | None, int], DataFrame]
"""Asks for pairs, all of them where None is given, in lists of at most so many; a row a pair.

Its columns are those that name a pair, listed (how many the pair's list has), relation, error_type, and others.
"""


def ask_in_lists(ask: AskLists, size: int) -> DataFrame:
    """The pairs in lists. What a list leaves open is asked again in a list, then alone, as failed lists are.

    Equal answers make equal requests: a start that goes on asks nothing twice.
    """
    first = ask(None, size)
    is_open = F.col("relation").isNull() & F.col("error_type").isNull()
    second = ask(first.where(is_open), size)
    both = first.where(~is_open).unionByName(second)
    has_lasted = F.col("error_type").isNull() | (has_failed() & ~is_transient())
    is_alone = F.col("relation").isNull() & (F.col("listed") > 1) & has_lasted
    third = ask(both.where(is_alone), 1)
    return both.where(~is_alone).unionByName(third)


def listed_pairs(found: DataFrame, items: str, item: str) -> DataFrame:
    """A row for each item of a list, as the column `item`: the relation of its place, and listed.

    found: a row a list, with `items` and relations in one order; relations is null where the list failed.
    """
    pairs = found.select("*", F.size(items).alias("listed"), F.posexplode(items).alias("place", item))
    return pairs.withColumn("relation", F.get("relations", F.col("place"))).drop("relations")


def cut_in_lists(rows: DataFrame, head: Sequence[str], item: Column, size: int) -> DataFrame:
    """The columns of `head`, and items: lists of at most so many, in the order of the items.

    item: a struct that begins with the text, so that equal sets of texts are one request.
    """
    found = rows.groupBy(*head).agg(F.array_sort(F.collect_list(item)).alias("items"))
    starts = F.sequence(F.lit(1), F.size("items"), F.lit(size))
    parts = F.transform(starts, lambda start: F.slice("items", start, size))
    return found.withColumn("items", F.explode(parts))


def texts_of_items() -> Column:
    """The texts of the items of a list."""
    return F.transform("items", lambda one: one["text"])
