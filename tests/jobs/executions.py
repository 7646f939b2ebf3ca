"""How many executions Spark began: what costs a start its seconds, whatever their size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def counted_executions(spark: SparkSession) -> Iterator[list[int]]:
    """A list that holds their number once the block has ended."""
    found: list[int] = []
    before = _last_number(spark)
    yield found
    # Less the one by which it looks
    found.append(_last_number(spark) - before - 1)


def _last_number(spark: SparkSession) -> int:
    """The number of an execution that begins now. Spark keeps a thousand, so that counting those would end there."""
    spark.range(1).collect()
    # The status hears of it a little later
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    known = spark._jsparkSession.sharedState().statusStore().executionsList()
    return max(known.apply(place).executionId() for place in range(max(0, known.size() - 5), known.size()))
