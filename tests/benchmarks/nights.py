"""Seconds a completion to read what a nightly job wrote in a month and in a year: flat in the number of nights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from pyspark.sql import SparkSession

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.reuse import make_completions
from untold.jobs.asking.compaction import FILE_BYTES, compact_folder
from untold.jobs.asking.snapshots import list_folder
from untold.jobs.asking.store import open_reading, states_of_requests
from untold.jobs.run.session import open_session
from untold.jobs.settings.model import Settings, SparkSettings
from untold.udfs.llm.segments import write_file

COMPLETIONS = 30_000
PAIRS = 3
SEGMENTS = 10
DAY = 24 * 3600.0
# An eighth of what a store's files have, and so an eighth of what a night rewrites: a year of nights fits into minutes.
# There are eight times as many files to read, which makes it no easier to stay flat.
MERGED_BYTES = FILE_BYTES // 8
# A scan has a fixed part too, so that a larger store comes out cheaper a completion, and never much dearer.
FLAT = 1.2


def measure(options: Options) -> list[Figure]:
    """Fills one store night by night, compacting it each time, and scans its keys after some numbers of nights."""
    count, pairs = options.requests or COMPLETIONS, options.pairs or PAIRS
    settings = Settings(spark=SparkSettings(master="local[2]", conf={"spark.driver.memory": "2g"}))
    session = open_session(settings, "untold-nights")
    figures, each = [], {}
    try:
        with TemporaryDirectory(prefix="untold-") as name:
            folder = Path(name)
            for night, written in enumerate(fill(folder, max(options.nights), count), start=1):
                if night in options.nights:
                    seconds = [scan(session, folder, night * count) for _ in range(pairs + 1)][1:]
                    each[night] = min(seconds) / (night * count)
                    live = len(list_folder(name).live())
                    figures += [
                        Figure(f"scan after {night} nights", tuple(seconds), "s"),
                        Figure(f"files read after {night} nights", (live,)),
                        Figure(f"last compaction, night {night}", (written,), "s"),
                    ]
    finally:
        session.stop()
    first, last = min(each), max(each)
    ratio = Figure(f"a completion, night {last} / night {first}", (each[last] / each[first],), at_most=FLAT)
    return [*figures, ratio]


def fill(folder: Path, nights: int, count: int) -> Iterator[float]:
    """Adds the completions of one night after the other; gives the seconds of each night's compaction."""
    for night in range(nights):
        for number in range(SEGMENTS):
            first = night * count + number * count // SEGMENTS
            last = night * count + (number + 1) * count // SEGMENTS
            write_file(f"{folder}/run{night:04d}-a-{number:06d}.parquet", make_completions(range(first, last)))
        began = perf_counter()
        # The clock alone is made up: what was replaced a week ago goes, as it would
        compact_folder(str(folder), file_bytes=MERGED_BYTES, clock=lambda night=night: (night + 1) * DAY)  # type: ignore[misc]
        yield perf_counter() - began


def scan(spark: SparkSession, folder: Path, count: int) -> float:
    """Seconds that a look at all keys takes. Raises RuntimeError where it does not see all of them."""
    began = perf_counter()
    seen = states_of_requests(open_reading(spark, str(folder)).completions).count()
    if seen != count:
        raise RuntimeError(f"{seen:,} of {count:,} completions were read")
    return perf_counter() - began
