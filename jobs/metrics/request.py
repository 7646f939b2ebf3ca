"""What `untold score` and `untold plan` are asked to do, from the command line and from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from untold.jobs.inputs.checking import adapter_of, check_input, check_names
from untold.jobs.inputs.request import RunRequest
from untold.jobs.inputs.samples import Samples
from untold.jobs.metrics import needs_of, optional_of


@dataclass(frozen=True, kw_only=True)
class ScoreRequest(RunRequest):
    """Samples to be scored, or planned, by metrics."""

    metrics: tuple[str, ...]
    # Whether the embedded model answers
    embedded: bool

    def check(self) -> None:
        """Raises SampleError for samples whose first rows are of no use; it starts no Spark."""
        adapter = adapter_of(self.format)
        check_names(self.read.columns, adapter)
        strata = self.draw.stratify if self.draw else ()
        check_input(self.input, self.read, (*needs_of(self.metrics, self.settings), *strata), adapter)

    def read_samples(self, spark: SparkSession, metrics: Sequence[str] | None = None) -> Samples:
        """The samples with the columns that the metrics read: these, or all of the request."""
        names = self.metrics if metrics is None else metrics
        return self.read_columns(spark, needs_of(names, self.settings), optional_of(names))
