"""Kill a run with SIGKILL during a write: a segment, a compacted file, or a table.

The next run has the right result. It only sends the requests without a completion on disk again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import (
    WAIT_SECONDS,
    Ended,
    Row,
    Run,
    expected_statements,
    find_actor,
    kill_processes,
    read_manifest,
    read_statements,
    read_table,
    times,
    write_samples,
)
from tests.runs.here import RunHere
from untold.jobs.inference.store.compaction import find_whole, live_names
from untold.jobs.run.output import ORDER

IN_FLIGHT = 4
FLUSH_SECONDS = 0.2
# There are 20 calls per second at this latency, so a stage writes more segments than a store permits without a merge
LATENCY = 0.2
SETTINGS = {
    "summarise_contexts": "false",
    "llm.max_concurrency": IN_FLIGHT,
    "llm.flush_seconds": FLUSH_SECONDS,
}
SAMPLES: list[Row] = [
    {
        "sample_id": f"s{number:03d}",
        "query": f"What of {number}?",
        "response": f"Fact A{number}.",
        "contexts": [f"Fact A{number}. Fact B{number}.", f"Fact B{number}. Fact C{number}."],
    }
    for number in range(50)
]
# The names of unfinished files: the third segment of an actor, a merged file, and the first snapshot with such a file
SEGMENT = r"^\.[^_].*-000003\.parquet\.tmp$"
MERGED = r"^\.merged-.*\.tmp$"


@dataclass(frozen=True)
class Job:
    """A job in a separate folder that can be started several times."""

    server: ModelServer
    folder: Path

    @property
    def samples(self) -> Path:
        return self.folder / "samples.jsonl"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    @property
    def stage(self) -> Path:
        """Return the folder with the completions of the only stage."""
        (found,) = (self.output / "completions" / "v1").iterdir()
        return found

    def start(self, stop_at: str | None = None) -> Run:
        """Start the job. A process stops before it syncs a file with a name that matches `stop_at`."""
        path = write_samples(self.samples, SAMPLES)
        here = Path(__file__).parent / "stopping"
        stopping = {"PYTHONPATH": str(here), "STOP_AT": stop_at, "STOP_NOTE": str(self.note)} if stop_at else {}
        self.note.unlink(missing_ok=True)
        return Run(self.server, path, self.output, settings=SETTINGS, environment=stopping)

    @property
    def note(self) -> Path:
        return self.folder / "stopped"

    def stored(self) -> set[str]:
        """Return the requests with a completion on the disk."""
        names = find_whole(str(self.stage), move=False).names
        return {one for name in names for one in pq.read_table(self.stage / name)["request_id"].to_pylist()}

    def leftovers(self) -> set[Path]:
        """Return the unfinished files: hidden files of the store, folders of Spark and steps of the run."""
        store = {path for path in self.stage.iterdir() if path.name.startswith(".")}
        return store | {*self.output.glob("*/_temporary"), *self.output.glob("_work")}


def wait_for(run: Run, holds: Callable[[], bool]) -> None:
    """Wait until the condition is true. Raise TimeoutError if the run ends before that."""
    end = monotonic() + WAIT_SECONDS
    while not holds():
        if not run.is_running or monotonic() > end:
            raise TimeoutError(f"the condition was not met. Standard error of the run: {run.errors[-2000:]}")
        sleep(0.005)


def kill_all(run: Run, job: Job) -> None:
    run.kill()
    assert read_manifest(job.output)["status"] == "running"


def unwritten_at_a_stop(job: Job) -> int:
    """Return the number of requests without a completion on disk: in flight, or completed since the start of the last
    segment.
    """
    stored, stopped_at = len(job.stored()), job.note.stat().st_mtime
    unwritten = job.server.count() - stored
    # A flush can be late by half of its interval, so this uses two intervals
    at_risk = sum(moment >= stopped_at - 2 * FLUSH_SECONDS for moment in times(job.server.arrivals()))
    assert stored > 0
    assert 0 < unwritten <= at_risk + IN_FLIGHT
    return unwritten


def check_whole(job: Job, ended: Ended, paid_twice: int) -> None:
    """Check that the output equals the result of brute force and that only the requests at risk were paid twice."""
    assert ended.code == 0, ended.err
    assert read_statements(job.output) == {sample["sample_id"]: expected_statements(sample) for sample in SAMPLES}
    assert [(row["status"], row["score"]) for row in read_table(job.output, "scores")] == [("ok", 1 / 3)] * len(SAMPLES)
    assert read_manifest(job.output)["status"] == "finished"
    assert not job.leftovers()
    assert len(SAMPLES) <= job.server.count() <= len(SAMPLES) + paid_twice
    assert len(job.stored()) == len(SAMPLES)


@pytest.fixture
def job(server: ModelServer, tmp_path: Path) -> Job:
    server.configure(latency=LATENCY)
    return Job(server, tmp_path)


@pytest.mark.slow
def test_a_job_that_is_killed_during_writes_of_segments_and_tables_keeps_all_completions(
    run_here: RunHere, job: Job
) -> None:
    run = job.start(stop_at=SEGMENT)
    wait_for(run, job.note.exists)
    kill_all(run, job)
    (part,) = job.leftovers() - {job.output / "_work"}
    # A file is not removed before it is an hour old, because it could still be open
    os.utime(part, (0, 0))
    paid_twice = unwritten_at_a_stop(job)

    run = job.start()
    tables = [job.output / name / "_temporary" for name in ORDER if name != "samples"]
    wait_for(run, lambda: any(table.exists() for table in tables))
    # The test stops the driver and its JVM together, because a small table is written before all processes are found
    os.killpg(run.pid, signal.SIGSTOP)
    calls = job.server.count()
    kill_all(run, job)
    assert any(table.exists() for table in tables)
    assert len(job.stored()) == len(SAMPLES)
    assert not part.exists()

    ended = run_here(job.server, job.samples, job.output, settings=SETTINGS)
    check_whole(job, ended, paid_twice)
    assert job.server.count() == calls
    assert len(live_names(str(job.stage))) == 1


@pytest.mark.slow
def test_a_job_that_is_killed_during_a_compaction_sends_no_request_again(run_here: RunHere, job: Job) -> None:
    run = job.start(stop_at=MERGED)
    wait_for(run, job.note.exists)
    kill_all(run, job)
    assert len(job.stored()) == len(SAMPLES)
    assert [path.name[:8] for path in job.leftovers() - {job.output / "_work"}] == [".merged-"]
    for part in job.leftovers() - {job.output / "_work"}:
        os.utime(part, (0, 0))
    check_whole(job, run_here(job.server, job.samples, job.output, settings=SETTINGS), 0)
    assert len(live_names(str(job.stage))) == 1


@pytest.mark.slow
def test_an_actor_that_is_killed_as_it_writes_a_segment_is_replaced(job: Job) -> None:
    run = job.start(stop_at=SEGMENT)
    wait_for(run, job.note.exists)
    actor = find_actor(run, "AnsweringActor")
    assert actor.pid == int(job.note.read_text())
    kill_processes([actor])
    paid_twice = unwritten_at_a_stop(job)
    ended = run.wait()
    (part,) = job.leftovers()
    part.unlink()
    check_whole(job, ended, paid_twice)


@pytest.mark.slow
def test_an_answering_process_that_is_killed_as_a_segment_is_written_ends_the_run(run_here: RunHere, job: Job) -> None:
    run = job.start(stop_at=SEGMENT)
    wait_for(run, job.note.exists)
    below = run.tree()[1:]
    kill_processes([process for process in below if "untold.jobs.inference.backends.actor_driver" in process.cmdline()])
    ended = run.wait()
    kill_processes(below)
    paid_twice = unwritten_at_a_stop(job)
    assert ended.code == 1
    assert "the answering process ended with code -9" in ended.err.splitlines()[-1]
    assert "the stored completions are kept" in ended.err.splitlines()[-1]
    for part in job.leftovers():
        os.utime(part, (0, 0))
    check_whole(job, run_here(job.server, job.samples, job.output, settings=SETTINGS), paid_twice)
