"""Count the executions that Spark starts. They determine the startup time of a small run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def counted_executions(spark: SparkSession) -> Iterator[list[int]]:
    """Yield a list that receives the number of executions at the end of the block."""
    found: list[int] = []
    before = _last_number(spark)
    yield found
    # The second call of `_last_number` also starts an execution
    found.append(_last_number(spark) - before - 1)


def _last_number(spark: SparkSession) -> int:
    """Return the number of the next execution. Spark keeps only a thousand executions, so their count is not enough."""
    spark.range(1).collect()
    # The status store receives the event a little later
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    known = spark._jsparkSession.sharedState().statusStore().executionsList()
    return max(known.apply(place).executionId() for place in range(max(0, known.size() - 5), known.size()))
