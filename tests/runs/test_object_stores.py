"""Test runs with the input, the output and the store in an object store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.object_store import BUCKET, Fault, ObjectStore
from tests.runs.harness import (
    Run,
    canonical,
    count_distinct,
    find_actor,
    kill_processes,
    make_samples,
    read_manifest,
    write_samples,
)
from tests.runs.here import RunHere

pytestmark = pytest.mark.gate

# The key contains a space and a percent sign on purpose
OUTPUT = "runs of%20today/out"


def start(server: ModelServer, bucket: ObjectStore, folder: Path, *flags: str, **settings: Any) -> Run:
    """Start a run on the samples in the bucket. The output and the store are in the bucket too."""
    places = ["--input", f"s3://{BUCKET}/in/*.jsonl", "--output", f"s3a://{BUCKET}/{OUTPUT}"]
    return Run(server, folder, folder / "run", *places, *flags, environment=bucket.variables, settings=settings)


def fetch(store: ObjectStore, folder: Path) -> Path:
    """Download the output from the bucket into a folder of this machine."""
    for key, content in store.objects.items():
        if key.startswith(f"{OUTPUT}/") and not key.endswith("/"):
            path = folder / "fetched" / key.removeprefix(f"{OUTPUT}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder / "fetched"


def put_samples(store: ObjectStore, folder: Path, rows: list[Mapping[str, Any]]) -> Path:
    """Write samples into the bucket and into a file of this machine."""
    path = write_samples(folder / "samples.jsonl", rows)
    store.put("in/samples 1.jsonl", path.read_bytes())
    return path


def test_a_run_over_s3a_has_the_tables_of_a_local_run(
    server: ModelServer, object_store: ObjectStore, run_here: RunHere, tmp_path: Path
) -> None:
    rows = make_samples(20)
    samples = put_samples(object_store, tmp_path, rows)
    ended = start(server, object_store, tmp_path).wait()
    assert (ended.code, server.count()) == (0, count_distinct(rows)), ended.err
    again = start(server, object_store, tmp_path).wait()
    assert (again.code, server.count()) == (0, count_distinct(rows)), again.err
    output = fetch(object_store, tmp_path)
    assert read_manifest(output)["status"] == "finished"
    assert run_here(server, samples, tmp_path / "local").code == 0
    assert canonical(output) == canonical(tmp_path / "local")


class Kill:
    """Kill a run with its JVM and its actors before the n-th request that matches. This request never arrives."""

    def __init__(self, is_meant: Callable[[str, str], bool], times: int = 1) -> None:
        self._is_meant, self._left = is_meant, times
        self.run: Run | None = None
        self.done = False

    def __call__(self, method: str, key: str) -> Fault | None:
        if self.run is None or self.done or not self._is_meant(method, key):
            return None
        self._left -= 1
        if self._left:
            return None
        self.done = True
        kill_processes([process for process in self.run.tree() if process.pid != psutil.Process().pid])
        return Fault(refused=True)


def is_before_the_removal_of_sources() -> Callable[[str, str], bool]:
    """Return a function that is True for the first removal after a merged file is written."""
    merged: list[str] = []

    def is_meant(method: str, key: str) -> bool:
        if method == "PUT" and "/merged-" in key:
            merged.append(key)
        # The removal of several objects is one POST request
        return bool(merged) and method in ("POST", "DELETE")

    return is_meant


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_meant", "times", "settings"),
    [
        # All tables are written, but the manifest still has the status of a running job
        (lambda method, key: (method, key) == ("PUT", f"{OUTPUT}/manifest.json"), 2, {}),
        # The store contains both the merged file and its sources
        (is_before_the_removal_of_sources(), 1, {"llm.flush_seconds": 0.1, "llm.max_concurrency": 4}),
    ],
    ids=["before the manifest", "in a compaction"],
)
def test_a_run_that_is_killed_in_its_writes_pays_for_no_request_twice(
    server: ModelServer,
    object_store: ObjectStore,
    run_here: RunHere,
    tmp_path: Path,
    is_meant: Callable[[str, str], bool],
    times: int,
    settings: Mapping[str, Any],
) -> None:
    rows = make_samples(40)
    samples = put_samples(object_store, tmp_path, rows)
    server.configure(latency=0.1)
    kill = Kill(is_meant, times)
    object_store.fault = kill
    kill.run = start(server, object_store, tmp_path, **settings)
    kill.run.wait()
    assert kill.done
    assert start(server, object_store, tmp_path, **settings).wait().code == 0
    assert server.count() == count_distinct(rows)
    assert run_here(server, samples, tmp_path / "local").code == 0
    assert canonical(fetch(object_store, tmp_path)) == canonical(tmp_path / "local")


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["actor", "driver"])
def test_a_killed_actor_or_driver_only_loses_the_completions_since_its_last_write(
    server: ModelServer, object_store: ObjectStore, run_here: RunHere, tmp_path: Path, killed: str
) -> None:
    rows, in_flight = make_samples(100), 4
    samples = put_samples(object_store, tmp_path, rows)
    server.configure(latency=0.1)
    flush = 0.5
    settings = {"llm.max_concurrency": in_flight, "llm.actors": 1, "llm.flush_seconds": flush}
    run = start(server, object_store, tmp_path, **settings)
    run.wait_for(server, 60)
    if killed == "actor":
        find_actor(run, "AnsweringActor").kill()
    else:
        run.kill_parent()
        run = start(server, object_store, tmp_path, **settings)
    ended = run.wait()
    assert ended.code == 0, ended.err
    # The requests during one interval and one write, with four calls per tenth of a second
    lost = in_flight + int(in_flight * (flush + 0.5) / 0.1)
    assert count_distinct(rows) <= server.count() <= count_distinct(rows) + lost
    assert run_here(server, samples, tmp_path / "local").code == 0
    assert canonical(fetch(object_store, tmp_path)) == canonical(tmp_path / "local")


@pytest.mark.slow
def test_a_store_that_is_busy_slow_and_cuts_answers_changes_no_table(
    server: ModelServer, object_store: ObjectStore, run_here: RunHere, tmp_path: Path
) -> None:
    rows = make_samples(20)
    samples = put_samples(object_store, tmp_path, rows)
    numbers = count()

    def trouble(method: str, key: str) -> Fault | None:
        number = next(numbers)
        if number % 101 == 100:
            return Fault(seconds=5.0)
        return Fault(refused=True) if number % 9 == 8 else Fault(cut=True) if number % 7 == 6 else None

    object_store.fault = trouble
    ended = start(server, object_store, tmp_path).wait()
    assert ended.code == 0, ended.err
    assert server.count() == count_distinct(rows)
    assert run_here(server, samples, tmp_path / "local").code == 0
    assert canonical(fetch(object_store, tmp_path)) == canonical(tmp_path / "local")


@pytest.mark.slow
def test_the_second_run_on_a_store_waits_and_pays_for_no_request(
    server: ModelServer, object_store: ObjectStore, tmp_path: Path
) -> None:
    rows = make_samples(20)
    put_samples(object_store, tmp_path, rows)
    # The first run is still sending requests when the second run has started Spark
    server.configure(latency=4.0)
    settings = {"completion_store": f"s3://{BUCKET}/store", "llm.max_concurrency": 1}
    runs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        flags = ["--output", f"s3://{BUCKET}/{name}"]
        runs.append(start(server, object_store, tmp_path / name, *flags, **settings))
        if name == "a":
            runs[0].wait_for(server, 4)
    ended = [run.wait() for run in runs]
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    assert "waiting for it" in ended[1].err
    assert server.count() == count_distinct(rows)
