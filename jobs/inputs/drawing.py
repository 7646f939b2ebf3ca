"""Some rows of an input at random, by hash: the same for one seed, and stable when rows are added."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


@dataclass(frozen=True)
class Draw:
    """So many rows of the input, those with the least hashes of seed and id: a row that is added displaces one at most.

    A row of a known data set, with the answers or claims that it holds, is drawn as a whole.
    """

    rows: int
    seed: int

    def among(self, ids: DataFrame, *, whole_rows: bool = False) -> Column:
        """Whether a sample_id is drawn of those in `ids` (column sample_id). `whole_rows`: ids begin with `<row>-`.

        One action: it looks for the greatest of the least hashes, with which any row can be told by itself.
        """
        row = F.substring_index("sample_id", "-", 1) if whole_rows else F.col("sample_id")
        # A hash and not a random number: it needs no order of the rows, and partitioning changes nothing
        key = F.sha2(F.concat_ws(":", F.lit(str(self.seed)), row), 256)
        least = ids.select(key.alias("key")).distinct().orderBy("key").limit(self.rows)
        last = least.agg(F.max("key")).collect()[0][0]
        return key <= F.lit(last)


def shown_draw(draw: Draw | None) -> dict[str, int] | None:
    """The draw as a manifest shows it; None where every row is taken."""
    return None if draw is None else asdict(draw)
