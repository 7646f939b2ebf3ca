"""Where results of steps lie while a run lives, so that nothing is computed twice and plans stay short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from untold.jobs.run.session import read_parquet
from untold.udfs.errors import UserError
from untold.udfs.llm.store_files import count_rows
from untold.udfs.storage import Place

# What of a column this process has in memory at once: rows, and bytes of the file that they are read from
PIECE_ROWS = 8192
PIECE_BYTES = 4 * 2**20
# So few values of a column come with the number of rows, and need no execution of their own
FEW = 1000


class LostRowsError(UserError):
    """Rows that were written and cannot be read back. The message names the table, both counts and the likely cause."""


@dataclass
class Counted:
    """Aggregates of a frame's rows by name, taken while the frame is written, for no job of their own.

    For example, of rows that are to be written anyway:

        counted = Counted({"failed": F.count_if(F.col("error_type").isNotNull())})
        kept = workspace.keep(rows, "results", counted)
        if counted["failed"]:
            ...
    """

    columns: Mapping[str, Column]
    _seen: Observation = field(default_factory=Observation)

    def on(self, frame: DataFrame) -> DataFrame:
        """The frame, counted by the first action on it."""
        return frame.observe(self._seen, *[value.alias(name) for name, value in self.columns.items()])

    def __getitem__(self, name: str) -> Any:
        """A value, once the frame was written; before that it waits for ever. KeyError for a name not counted."""
        return self._seen.get[name]


class _Kept(NamedTuple):
    """A step: its frame, how many rows it has, its folder, and the values of columns where they are known."""

    frame: DataFrame
    rows: int
    path: str
    known: Mapping[str, list[Any]]


@dataclass
class Workspace:
    """A folder of steps as Parquet, each named for what it holds. Whoever makes it removes it.

    Steps are numbered in the order of their making, so that a listing of the folder is the course of the run.
    `in_memory`: what is kept stays with Spark instead, for runs on one machine that are so small that writing and
    reading files takes them longer than all else (0.1 s a step and not 0.3; 300 rows).
    """

    spark: SparkSession
    folder: str
    in_memory: bool = False
    _numbers: count[int] = field(default_factory=count)
    _kept: list[_Kept] = field(default_factory=list)

    def keep(
        self, frame: DataFrame, name: str = "step", counted: Counted | None = None, column: str | None = None
    ) -> DataFrame:
        """The same rows, computed once and counted on the way, by `counted` too.

        One Spark execution. What is built on the result is planned from there, so that nothing below it runs again.
        `column`: one whose `values` are read next. Raises LostRowsError where fewer rows can be read back than were
        written.
        """
        path, watched = self.path(name), frame if counted is None else counted.on(frame)
        known = {}
        if self.in_memory:
            counts = _counted_rows().columns
            listed = {} if column is None else {column: F.when(counts["rows"] <= FEW, F.collect_list(column))}
            seen = Counted({**counts, **listed})
            kept = seen.on(watched).localCheckpoint()
            rows = int(seen["rows"])
            known = {name: seen[name] for name in listed if rows <= FEW}
        else:
            rows = write_parquet(watched, path)
            kept = read_parquet(self.spark, path, schema=frame.schema)
        self._kept.append(_Kept(kept, rows, path, known))
        return kept

    def count(self, frame: DataFrame) -> int:
        """The number of rows; costs nothing for what `keep` gave."""
        # By identity: frames compare by nothing else
        counted = [one.rows for one in self._kept if one.frame is frame]
        return counted[0] if counted else frame.count()

    def values(self, frame: DataFrame, column: str) -> Iterator[pa.Array]:
        """A column of what `keep` gave, in pieces, read by this process: of files, no execution of Spark's.

        Nulls may be missing.
        """
        (kept,) = [one for one in self._kept if one.frame is frame]
        if column in kept.known:
            yield from [pa.array(kept.known[column])] if kept.known[column] else []
            return
        if self.in_memory:
            yield from frame.select(column).toArrow().column(0).chunks
            return
        for entry in Place(kept.path).entries():
            if entry.name.endswith(".parquet"):
                with entry.place.open() as file:
                    # Else all of the column is read ahead, and threads of Arrow's keep what they had of it
                    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=PIECE_BYTES)
                    for batch in parquet.iter_batches(PIECE_ROWS, columns=[column], use_threads=False):
                        yield batch.column(0)

    def path(self, name: str) -> str:
        """A folder of that name that nothing else is in."""
        return f"{self.folder}/{next(self._numbers):03d}-{name}"

    def within(self, name: str) -> Workspace:
        """A workspace in a folder of its own inside this one."""
        return Workspace(self.spark, self.path(name), self.in_memory)

    def remove(self) -> None:
        """Deletes the files of what was kept; what stays with Spark goes with its frames."""
        Place(self.folder).remove()


def write_parquet(frame: DataFrame, path: str, **options: Any) -> int:
    """Writes a frame as Parquet, over what is there, and gives its number of rows, which are counted on the way.

    Raises LostRowsError where this process finds another number of rows in the files.
    """
    rows = _counted_rows()
    rows.on(frame).write.mode("overwrite").options(**options).parquet(path)
    check_rows(path, rows["rows"])
    return int(rows["rows"])


def _counted_rows() -> Counted:
    return Counted({"rows": F.count(F.lit(1))})


def check_rows(path: str, written: int) -> None:
    """Raises LostRowsError where the Parquet files of a folder do not have this number of rows, by their footers."""
    files = [entry.place for entry in Place(path).entries() if entry.name.endswith(".parquet")]
    found = sum(rows or 0 for rows in count_rows(files))
    if found != written:
        raise LostRowsError(
            f"{path}: Spark wrote {written:,} rows, and {found:,} can be read back; Spark's executors probably write "
            "to another disk than this machine reads: give --output, store and work a place that all machines share"
        )
