"""Measure a night before its first call, with earlier nights and their store: constant from a month to a year.

Each night needs the same number of completions as the first, and 5 % of them are new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from time import perf_counter

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.reuse import make_completions, write_answers
from tests.benchmarks.running import Ran, run_night
from tests.benchmarks.samples import bound_stage, read_variables, write_samples
from tests.fakes.answers import coverage_text
from tests.fakes.model_server import ModelServer
from untold.jobs.inference.store.compaction import compact_folder, live_names
from untold.jobs.inference.store.store import open_reading, stage_folder, states_of_requests
from untold.jobs.run.session import open_session
from untold.jobs.settings.model import Settings, SparkSettings
from untold.udfs.llm.store_files import write_file

COMPLETIONS = 30_000
NEW = 0.05
PAIRS = 3
SEGMENTS = 10
FLAT = 1.2
# A night of a bounded month reads the manifests of all nights
PRICES = ("llm.price_per_million_prompt_tokens=1", "llm.price_per_million_completion_tokens=1")
FIRST = date(2026, 1, 1)


def measure(options: Options) -> list[Figure]:
    """Fill one store night by night. After some numbers of nights, look up its keys and run a job.

    The job is `untold nightly` with the manifests of all nights before. It needs the requests of the first night,
    except for 5 % new ones. The same date then runs again. Raises RuntimeError for any other request.
    """
    count, pairs = options.requests or COMPLETIONS, options.pairs or PAIRS
    settings = Settings(spark=SparkSettings(master="local[2]", conf={"spark.driver.memory": "2g"}))
    session = open_session(settings, "untold-nights")
    found: dict[int, Mapping[str, tuple[float, ...]]] = {}
    try:
        with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed") as server:
            nightly = _Nights(Path(name), server, count)
            for night, written in enumerate(nightly.fill(max(options.nights)), start=1):
                if night in options.nights:
                    ran = [nightly.run(night) for _ in range(pairs)]
                    found[night] = {
                        "look-up": tuple(nightly.look_up(session, pairs + 1))[1:],
                        "files": (len(live_names(str(nightly.folder))),),
                        "last compaction": (written,),
                        "start to first call": tuple(one.seconds_before for one, _ in ran),
                        "a date that is done": tuple(again.seconds for _, again in ran),
                    }
    finally:
        session.stop()
    first, last = min(found), max(found)
    units = {"files": ""}
    figures = [
        Figure(f"{name}, night {night}", values, units.get(name, "s"))
        for night, figures in found.items()
        for name, values in figures.items()
    ]
    return figures + [
        Figure(f"{name}, night {last} / night {first}", (min(values) / min(found[first][name]),), at_most=FLAT)
        for name, values in found[last].items()
        if name != "last compaction"
    ]


class _Nights:
    """A store after some nights. The completions of the first night belong to samples, and the others are invented."""

    def __init__(self, folder: Path, server: ModelServer, count: int) -> None:
        self._directory, self._server, self._count, self._runs = folder, server, count, 0
        self._new = round(count * NEW)
        stage = bound_stage(server.base_url)
        samples = read_variables(write_samples(folder / "first.jsonl", count), stage)
        text = coverage_text([("A covered statement.", (1,))], [("An uncovered one.", (1,))])
        write_answers(folder / "store", stage, ((variables, text) for variables in samples))
        self.folder = Path(stage_folder(str(folder / "store"), stage))

    def fill(self, nights: int) -> Iterator[float]:
        """Add the new completions of each night. Yield the seconds of each night's compaction."""
        for night in range(nights):
            for number in range(SEGMENTS if night else 0):
                first = (night * SEGMENTS + number) * self._new // SEGMENTS
                last = (night * SEGMENTS + number + 1) * self._new // SEGMENTS
                rows = make_completions(range(first, last))
                write_file(f"{self.folder}/run{night:04d}-a-{number:06d}.parquet", rows)
            began = perf_counter()
            compact_folder(str(self.folder))
            yield perf_counter() - began

    def look_up(self, spark: SparkSession, times: int) -> Iterator[float]:
        """Yield the seconds of a look-up of a night's keys, as in a run. Raises RuntimeError for a missing key."""
        folder, path = str(self.folder), str(self._directory / "keys")
        keys = open_reading(spark, folder).completions.select("request_id")
        # From all nights equally, because files are sorted by the prefix of keys
        keys.orderBy(F.reverse("request_id")).limit(self._count).write.mode("overwrite").parquet(path)
        for _ in range(times):
            began = perf_counter()
            keys = spark.read.parquet(path)
            known = open_reading(spark, folder).completions.join(keys, on="request_id", how="left_semi")
            found = keys.join(states_of_requests(known), on="request_id", how="left")
            seen = found.where(F.col("state").isNotNull()).count()
            if seen != self._count:
                raise RuntimeError(f"{seen:,} of {self._count:,} completions were found")
            yield perf_counter() - began

    def run(self, nights: int) -> tuple[Ran, Ran]:
        """Run a night with 5 % new requests after these nights, and the same date again with a full store."""
        if not self._runs:
            self._run_next()
        # The first manifest is a copy for all nights before
        first = self._directory / "out" / f"{FIRST - timedelta(1)}" / "manifest.json"
        for number in range(nights):
            folder = self._directory / "out" / f"{FIRST + timedelta(number)}"
            folder.mkdir(exist_ok=True)
            copyfile(first, folder / "manifest.json")
        return self._run_next()

    def _run_next(self) -> tuple[Ran, Ran]:
        """Run the night of the next date, without an output, and the same date again."""
        self._runs += 1
        # Before all dates with a copied manifest
        day = f"{FIRST - timedelta(self._runs)}"
        path, old = self._directory / "in" / f"{day}.jsonl", self._count - self._new
        path.parent.mkdir(exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.write(write_samples(self._directory / "old.jsonl", old).read_text())
            new = write_samples(self._directory / "new.jsonl", self._new, first=self._count + self._runs * self._new)
            file.write(new.read_text())
        settings = (f"completion_store={self._directory / 'store'}", "nightly.budget_month=1000000", *PRICES)
        given = (self._server, self._directory, day, *settings)
        return run_night(*given, calls=self._new), run_night(*given, calls=0)
