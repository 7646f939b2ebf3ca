"""What `untold score` and `untold plan` are asked to do, from the command line and from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pyspark.sql import SparkSession

from untold.jobs.inputs.checking import adapter_of, check_input, check_names
from untold.jobs.inputs.files import SampleError
from untold.jobs.inputs.request import RunRequest
from untold.jobs.inputs.samples import Samples
from untold.jobs.lakehouse.inputs import read_table, table_named
from untold.jobs.metrics import needs_of, optional_of
from untold.jobs.run.manifest import read_manifest
from untold.udfs.storage import StoragePath


@dataclass(frozen=True, kw_only=True)
class ScoreRequest(RunRequest):
    """Samples to be scored, or planned, by metrics."""

    metrics: tuple[str, ...]
    # Whether the embedded model answers
    embedded: bool
    # The version of a table whose rows need not be asked any more: `v12`
    since: str | None = None
    # The date that the samples are of, where the command names one
    day: date | None = None

    def check(self) -> None:
        """Raises SampleError for samples whose first rows are of no use; it starts no Spark."""
        adapter = adapter_of(self.format)
        check_names(self.read.columns, adapter)
        strata = self.draw.stratify if self.draw else ()
        check_input(self.input, self.read, (*needs_of(self.metrics, self.settings), *strata), adapter)
        if self.since is not None:
            self._check_since(self.since)

    def _check_since(self, since: str) -> None:
        """Raises SampleError where nothing has scored the rows that the table had at that version."""
        table = table_named(self.input)
        if table is None or table.format != "delta":
            raise SampleError("--since needs a Delta table: --input delta:PATH")
        scored = read_table(table._replace(version=since)).files
        earlier = read_manifest(self.output)
        if scored and earlier is None and not StoragePath(self.store).entries():
            raise SampleError(
                f"{self.output} has no run and {self.store} has no completions, so every row needs requests. "
                "Remove --since"
            )
        before = table_named((earlier or {}).get("input", {}).get("path", ""))
        if earlier is not None and (before is None or before.rows != table.rows):
            raise SampleError(f"{self.output} has another input. Choose an output of {table.rows}, or a new one")

    def read_samples(self, spark: SparkSession, metrics: Sequence[str] | None = None) -> Samples:
        """The samples with the columns that the metrics read: these, or all of the request."""
        names = self.metrics if metrics is None else metrics
        return self.read_columns(spark, needs_of(names, self.settings), optional_of(names))
