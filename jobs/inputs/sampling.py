"""Draw random rows of an input by hash. The draw is the same for one seed, and stable when rows are added."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from untold.jobs.inputs.files import SampleError
from untold.udfs.errors import UserError, aside, near_misses

# If there are more strata, a manifest does not list them
SHOWN_STRATA = 1_000


class DrawError(UserError):
    """A draw that is not possible. The message has the remedy."""


@dataclass(frozen=True)
class Draw:
    """A number of input rows with the least hashes of seed and id. An added row replaces at most one row.

    With `stratify`, the rows with equal values of these columns are a stratum. Each stratum has its share of the draw,
    at least one row. A row of a known data set is drawn as a whole, with all its answers or claims.
    """

    rows: int
    seed: int
    stratify: tuple[str, ...] = ()

    def among(self, ids: DataFrame, *, whole_rows: bool = False) -> Column:
        """Return True if a sample_id is drawn from `ids` (column sample_id). `whole_rows`: ids begin with `<row>-`.

        It runs one action, which finds the greatest of the least hashes. Any single row can be compared with it.
        """
        key = self._key(F.substring_index("sample_id", "-", 1) if whole_rows else F.col("sample_id"))
        least = ids.select(key.alias("key")).distinct().orderBy("key").limit(self.rows)
        last = least.agg(F.max("key")).collect()[0][0]
        return key <= F.lit(last)

    def keep(self, rows: DataFrame) -> DataFrame:
        """Return the drawn rows, by their sample_id. Raises DrawError and SampleError as `by_stratum` does."""
        if self.stratify:
            return rows.join(self.by_stratum(rows)[0], on="sample_id", how="left_semi")
        return rows.where(self.among(rows))

    def by_stratum(self, strata: DataFrame) -> tuple[DataFrame, list[dict[str, Any]]]:
        """Draw samples from `strata`: sample_id and the columns of `stratify`, a row per sample.

        Returns their ids (column sample_id), and a list of strata, each with its values, its number of drawn rows as
        `rows`, and its number of rows as `of`. The list is empty for more than `SHOWN_STRATA` strata. Raises DrawError
        for more strata than rows to draw, and SampleError for a missing column.
        """
        for name in self.stratify:
            if name not in strata.columns:
                near = aside(near_misses(name, strata.columns))
                raise SampleError(f"stratify: no column `{name}`{near}. Columns are {', '.join(strata.columns)}")
        values = F.struct(*(F.col(f"`{name.replace('`', '``')}`") for name in self.stratify))
        named = strata.select("sample_id", F.to_json(values, {"ignoreNullFields": "false"}).alias("stratum"))
        counted = named.groupBy("stratum").agg(F.count("*").alias("of")).orderBy("stratum").limit(self.rows + 1)
        found = counted.collect()
        if len(found) > self.rows:
            raise DrawError(
                f"{self.rows:,} random rows are fewer than the strata by {', '.join(self.stratify)}; "
                "draw more, or stratify by fewer columns"
            )
        shares = allocate([row["of"] for row in found], self.rows)
        allocated = [(row["stratum"], share) for row, share in zip(found, shares, strict=True)]
        quotas = strata.sparkSession.createDataFrame(allocated, "stratum string, quota long")
        rank = F.row_number().over(Window.partitionBy("stratum").orderBy(self._key(F.col("sample_id")), "sample_id"))
        ranked = named.join(F.broadcast(quotas), on="stratum", how="inner").withColumn("rank", rank)
        ids = ranked.where(F.col("rank") <= F.col("quota")).select("sample_id").persist(StorageLevel.DISK_ONLY)
        listed = [
            {**json.loads(row["stratum"]), "rows": share, "of": row["of"]}
            for row, share in zip(found, shares, strict=True)
        ]
        return ids, listed if len(listed) <= SHOWN_STRATA else []

    def _key(self, row: Column) -> Column:
        # A hash does not depend on the order or the partitioning of rows, unlike a random number
        return F.sha2(F.concat_ws(":", F.lit(str(self.seed)), row), 256)


def allocate(counts: Sequence[int], rows: int) -> list[int]:
    """Return the number of rows per stratum: in proportion to its count, at least one, at most all.

    rows: at least the number of strata.

    >>> allocate([900, 90, 10, 1], 20)
    [17, 1, 1, 1]
    """
    whole = sum(counts)
    if rows >= whole:
        return list(counts)
    wanted = [rows * count / whole for count in counts]
    given = [max(1, int(share)) for share in wanted]
    while (left := rows - sum(given)) != 0:
        step = 1 if left > 0 else -1
        open_strata = [at for at, count in enumerate(counts) if 1 <= given[at] + step <= count]
        furthest = max(open_strata, key=lambda at: step * (wanted[at] - given[at]))
        given[furthest] += step
    return given


def shown_draw(draw: Draw | None) -> dict[str, Any] | None:
    """Return the draw for a manifest, None if all rows are used."""
    if draw is None:
        return None
    by = {"stratify": list(draw.stratify)} if draw.stratify else {}
    return {"rows": draw.rows, "seed": draw.seed, **by}


def read_draw(shown: Mapping[str, Any] | None) -> Draw | None:
    """Return the draw from a manifest (`shown_draw`).

    >>> read_draw(shown_draw(Draw(20, 7, ("topic",))))
    Draw(rows=20, seed=7, stratify=('topic',))
    """
    return None if shown is None else Draw(shown["rows"], shown["seed"], tuple(shown.get("stratify", ())))
