"""Where results of steps lie while a run lives: as Parquet, so that nothing is computed twice and plans stay short."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from pyarrow import fs
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from udfs.files import open_filesystem


@dataclass
class Workspace:
    """A folder of steps, each named for what it holds. Whoever makes it removes it."""

    spark: SparkSession
    folder: str
    _numbers: count[int] = field(default_factory=count)
    _kept: list[tuple[DataFrame, int]] = field(default_factory=list)

    def keep(self, frame: DataFrame, name: str = "step") -> DataFrame:
        """The same rows, computed once and counted on the way."""
        path = self.path(name)
        seen = Observation()
        frame.observe(seen, F.count(F.lit(1)).alias("rows")).write.parquet(path)
        kept = self.spark.read.schema(frame.schema).parquet(path)
        self._kept.append((kept, seen.get["rows"]))
        return kept

    def count(self, frame: DataFrame) -> int:
        """The number of rows; costs nothing for what `keep` gave."""
        counted = [rows for kept, rows in self._kept if kept is frame]
        return counted[0] if counted else frame.count()

    def path(self, name: str) -> str:
        """A folder of that name that nothing else is in."""
        return f"{self.folder}/{next(self._numbers):03d}-{name}"

    def within(self, name: str) -> Workspace:
        """A workspace in a folder of its own inside this one."""
        return Workspace(self.spark, self.path(name))

    def remove(self) -> None:
        """Deletes what was kept."""
        system, path = open_filesystem(self.folder)
        if system.get_file_info(path).type == fs.FileType.Directory:
            system.delete_dir(path)
