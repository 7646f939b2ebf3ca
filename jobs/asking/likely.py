"""What requests of stages are likely to come to: means over the completions of a store, else the shipped figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from untold.jobs.asking import snapshots, store
from untold.udfs.llm.keys import Stage
from untold.udfs.stages import definition_of
from untold.udfs.stages.arrow import read_things
from untold.udfs.stages.figures import RATINGS, Figures, Line
from untold.udfs.storage import Place

# Means are good to a few percent from so many, and reading them takes seconds whatever a store holds
MOST_COMPLETIONS = 2_000
# The newest folders of other models and settings; a store that sees many of them has too many to read them all
MOST_FOLDERS = 5
READ = (
    "stage string, prompt_tokens long, completion_tokens long, attempts int, ratings array<double>, texts array<long>"
)
FROM_STORE = "means of the store"


def read_figures(spark: SparkSession, place: str | None, stages: Mapping[str, Stage]) -> dict[str, Figures | None]:
    """By stage its figures; None for a stage that has none and of which the store has no completion.

    From the completions of the stage's own folder of the store, else from those of other folders of the same stage:
    other models, templates or decoding. What these do not tell is as shipped. One Spark execution where there are any,
    of at most `MOST_COMPLETIONS` rows a stage; the driver gets a row a stage. `place`: the store; None for none.
    """
    shipped = {name: definition_of(name).figures for name in stages}
    if place is None:
        return shipped
    frames = [frame for stage in stages.values() for frame in _some_completions(spark, place, stage)]
    if not frames:
        return shipped
    rows = reduce(DataFrame.unionByName, frames).mapInArrow(read_things, READ)
    means = {row["stage"]: row for row in rows.groupBy("stage").agg(*_means()).collect()}
    return {name: _figures(known, means.get(name)) for name, known in shipped.items()}


def _some_completions(spark: SparkSession, place: str, stage: Stage) -> Iterator[DataFrame]:
    """Some completions of the stage's own folder, or of others of its name; none where no folder has any."""
    own = store.stage_folder(place, stage)
    for folders in ([own], _folders_of(place, stage.name)):
        readings = [store.open_reading(spark, folder) for folder in folders]
        found = [reading.completions for reading in readings if reading.whole.uris]
        if found:
            rows = reduce(DataFrame.unionByName, found).where(F.col("error_type").isNull()).limit(MOST_COMPLETIONS)
            columns = ("text", "prompt_tokens", "completion_tokens", "attempts")
            yield rows.select(F.lit(stage.name).alias("stage"), *columns)
            return


def _folders_of(place: str, stage: str) -> list[str]:
    """The newest folders of a stage in the store, whatever their digests."""
    folders = (Place(place) / snapshots.VERSION).entries()
    named = [entry for entry in folders if re.fullmatch(rf"{re.escape(stage)}-[0-9a-f]{{32}}", entry.name)]
    newest = sorted(named, key=lambda entry: (entry.modified, entry.name), reverse=True)
    return [str(entry.place) for entry in newest[:MOST_FOLDERS]]


def _rated(rating: float) -> Column:
    """How many things of a completion have this rating; null where these are unknown."""
    return F.when(F.col("ratings").isNotNull(), F.size(F.filter("ratings", lambda one: one == rating)))


def _means() -> list[Column]:
    """The aggregates of `READ`, each passing over the nulls of what was not counted or could not be read."""
    rated = [F.sum(_rated(rating)).alias(f"rated_{rating:.0f}") for rating in RATINGS]
    means = {name: F.avg(name) for name in ("prompt_tokens", "completion_tokens", "attempts")}
    # The size of a null is -1 under some settings of Spark
    things = F.avg(F.when(F.col("ratings").isNotNull(), F.size("ratings")))
    # As many hashes as `MOST_COMPLETIONS` have things: what equals each other is mostly of one query, hence near
    distinct = F.size(F.array_distinct(F.flatten(F.collect_list("texts"))))
    named = {**means, "things": things, "distinct": distinct}
    return [*(value.alias(name) for name, value in named.items()), *rated]


def _figures(shipped: Figures | None, means: Row | None) -> Figures | None:
    """The figures with a store's means in place of what these tell."""
    if means is None or means["completion_tokens"] is None:
        return shipped
    known = replace(
        shipped or Figures(FROM_STORE, Line()),
        source=FROM_STORE,
        completion=Line(means["completion_tokens"]),
        prompt_tokens=means["prompt_tokens"],
        calls=max(1.0, means["attempts"] or 1.0),
    )
    counts = [means[f"rated_{rating:.0f}"] or 0 for rating in RATINGS]
    if means["things"] is None:
        return known
    total = sum(counts)
    things = replace(known, things=Line(means["things"]))
    if not total:
        return things
    return replace(things, ratings=tuple(count / total for count in counts), distinct=means["distinct"] / total)
