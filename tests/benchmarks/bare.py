"""What a start is compared with, each a process of its own: `python -m tests.benchmarks.bare spark|ray|tables ...`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

# As a run starts them on one machine: see `untold.jobs.answer` and `conf/default.yaml`
OBJECT_STORE_BYTES = 100_000_000
MASTER = "local[*]"


def start_spark() -> None:
    """A Spark session as its documentation starts one, and one job that goes through a Python worker."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master(MASTER).config("spark.ui.enabled", False).getOrCreate()
    rows = session.range(10).mapInArrow(_pass, "id long").collect()
    assert len(rows) == 10
    session.stop()


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def start_ray() -> None:
    """A Ray of one CPU, and one call of an actor."""
    import ray

    @ray.remote(num_cpus=0)
    class Actor:
        def answer(self) -> int:
            return 1

    ray.init(address="local", num_cpus=1, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False)
    assert ray.get(Actor.remote().answer.remote()) == 1
    ray.shutdown()


def copy_tables(source: str, target: str, *names: str) -> None:
    """Reads each table of an output and writes it elsewhere, in one session."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master(MASTER).config("spark.ui.enabled", False).getOrCreate()
    for name in names:
        session.read.parquet(f"{source}/{name}").write.parquet(f"{target}/{name}")
    session.stop()


KINDS: dict[str, Callable[..., None]] = {"spark": start_spark, "ray": start_ray, "tables": copy_tables}


def main(arguments: Sequence[str]) -> None:
    """Does what the first argument names."""
    kind, *rest = arguments
    KINDS[kind](*rest)


if __name__ == "__main__":
    main(sys.argv[1:])
