"""The baselines of a start, each in a separate process: `python -m tests.benchmarks.bare spark|ray|tables ...`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

# The value for a run on one machine: see `untold.jobs.answer` and `conf/default.yaml`
OBJECT_STORE_BYTES = 100_000_000
MASTER = "local[*]"


def start_spark() -> None:
    """Start a Spark session as in its documentation, and run one job with a Python worker."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master(MASTER).config("spark.ui.enabled", False).getOrCreate()
    rows = session.range(10).mapInArrow(_pass, "id long").collect()
    assert len(rows) == 10
    session.stop()


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def start_ray() -> None:
    """Start a Ray with one CPU, and call an actor once."""
    import ray

    @ray.remote(num_cpus=0)
    class Actor:
        def answer(self) -> int:
            return 1

    ray.init(address="local", num_cpus=1, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False)
    assert ray.get(Actor.remote().answer.remote()) == 1
    ray.shutdown()


def copy_tables(source: str, target: str, *names: str) -> None:
    """Read each table of an output and write it to another path, in one session."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master(MASTER).config("spark.ui.enabled", False).getOrCreate()
    for name in names:
        session.read.parquet(f"{source}/{name}").write.parquet(f"{target}/{name}")
    session.stop()


KINDS: dict[str, Callable[..., None]] = {"spark": start_spark, "ray": start_ray, "tables": copy_tables}


def main(arguments: Sequence[str]) -> None:
    """Run the baseline that the first argument names."""
    kind, *rest = arguments
    KINDS[kind](*rest)


if __name__ == "__main__":
    main(sys.argv[1:])
