"""Drive the Ray actors that send the requests of a job. Imports no pyspark.

`python -m untold.jobs.inference.backends.actor_driver` is a process next to a Spark driver. It reads one job per line
from standard input, so one local Ray serves all stages of a run, and prints one JSON event per line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import reduce
from time import monotonic, sleep
from typing import Any

from ray.exceptions import RayError

from untold.jobs.inference.backends.actor_pool import Actor, ActorPool, start_first_actor, start_ray, visit_nodes
from untold.jobs.inference.backends.job import Job, JobOutcome, job_from_json, progress
from untold.udfs.llm.keys import Parameters, SchemaSupport
from untold.udfs.llm.store_files import Completion, check_probe, completions_table, read_ids, write_file
from untold.udfs.llm.units import RequestIds, list_units, read_request_ids, read_requests
from untold.udfs.llm.usage import Usage
from untold.udfs.redaction import redact
from untold.udfs.retrieval.local_models import LocalModelFileError
from untold.udfs.storage import StoragePath

# An actor completes at most 500 calls between two looks, at 2,500 per second. With 1,000 in its queue it never idles
LOOK_SECONDS = 0.2
# A stage with few requests ends sooner, so the waits between looks grow
FIRST_LOOK_SECONDS = 0.02
LOW_WATER = 1000
# Actors also die by chance. After three deaths a unit is suspect, and two more deaths of a single request prove it
DEATHS_OF_A_SUSPECT = 3
DEATHS_OF_A_REQUEST = 2
# Requests in flight are paid, so they get this time to arrive: little if a user waits, and less if nobody waits
STOP_GRACE_SECONDS = 3.0
REFUSED_GRACE_SECONDS = 30.0
ORPHAN_GRACE_SECONDS = 0.5


class ActorDriver:
    """Sends the units of a job to actors, repeats the requests that dead actors did not store, and returns the outcome.

    `answered` has the requests that need no call. `total` is the number of the others.
    """

    def __init__(
        self,
        job: Job,
        stopped: Callable[[], str | None],
        tell: Callable[[Mapping[str, Any]], None],
        idle: list[Actor] | None = None,
        answered: RequestIds | None = None,
    ) -> None:
        self.pool = ActorPool(job, [] if idle is None else idle, self._wait_on)
        self._job, self._stopped, self._tell = job, stopped, tell
        units = list_units(job.requests)
        self._waiting = deque(units)
        self._answered = answered or RequestIds()
        self.total = sum(units.values()) - len(self._answered)
        # The stored requests of dead actors
        self._stored = RequestIds()
        self._deaths: dict[str, int] = {}
        self._suspects: list[str] = []
        self._began = monotonic()
        self._told = 0.0

    def run(self) -> JobOutcome:
        """Send all requests, or end early with the reason in the outcome.

        Every actor is stopped in any case, because it writes its paid completions before it ends.
        """
        reason: str | None = None
        try:
            self.pool.start(min(self._job.actors, max(len(self._waiting), 1)))
            self._check_probes()
            reason = self._loop() or self._ask_suspects()
        finally:
            self.pool.stop(lambda: self._grace(reason))
        reason, error, lost = self._verdict(reason)
        self._report(force=True)
        models = tuple(sorted(self.pool.models))
        return JobOutcome(reason, error, self.usage, models, lost, self._finding, self._parameters)

    def _grace(self, reason: str | None) -> float:
        """Return the seconds for requests in flight. They are fewer after a stop by the user or the end of the run."""
        if (stopped := self._stopped()) is not None:
            return ORPHAN_GRACE_SECONDS if stopped == "orphaned" else STOP_GRACE_SECONDS
        return REFUSED_GRACE_SECONDS if reason == "refused" else STOP_GRACE_SECONDS

    @property
    def _finding(self) -> SchemaSupport | None:
        """Return the schema support of the endpoint, if known. A result that changes the requests comes first."""
        found = [state.finding for state in self.pool.states if state.finding]
        return max(found, key=lambda one: one.changes(self._job.stage), default=None)

    @property
    def _parameters(self) -> Parameters | None:
        """Return the refused parameters and the largest reasoning of all actors."""
        found = [state.parameters for state in self.pool.states if state.parameters]
        return reduce(Parameters.merged, found) if found else None

    @property
    def usage(self) -> Usage:
        """Return the usage so far."""
        return replace(self.pool.usage, seconds=monotonic() - self._began)

    def _verdict(self, reason: str | None) -> tuple[str | None, str | None, int]:
        """Return the reason of the end, its error, and the number of unwritten completions, which make it `broken`."""
        states = self.pool.states
        unwritten = sum(state.unwritten for state in states)
        trouble = next((state.trouble for state in states if state.trouble), None)
        if unwritten and trouble:
            return "broken", f"answers could not be written to {self._job.directory} ({trouble})", unwritten
        return reason, next((state.refused for state in states if state.refused), None), unwritten

    def _check_probes(self) -> None:
        """Check before the first lease that this process can read the file of every actor."""
        for worker in self.pool.workers:
            check_probe(worker.probe)

    def _loop(self) -> str | None:
        """Send units until all are finished. Return the reason of an earlier end."""
        wait = FIRST_LOOK_SECONDS
        while True:
            self._look()
            self._hand_out()
            self._report()
            reason = self._reason_to_end()
            if reason or not (self._waiting or any(worker.units for worker in self.pool.workers)):
                return reason
            sleep(wait)
            wait = min(LOOK_SECONDS, 1.5 * wait)

    def _look(self) -> None:
        """Update the progress of the actors. Replace dead actors, and put their unfinished units back."""
        for dead in self.pool.check():
            self.pool.replace(dead)
            self._stored |= RequestIds([*read_ids(self._job.directory, dead.name)])
            for unit in dead.units:
                self._deaths[unit] = self._deaths.get(unit, 0) + 1
                (self._suspects if self._deaths[unit] >= DEATHS_OF_A_SUSPECT else self._waiting).append(unit)

    def _hand_out(self) -> None:
        """Send a unit to each actor with a short queue, without its completed requests."""
        tries = self._job.call.tries_schema and all(state.tries_schema for state in self.pool.states)
        # During the trial of a schema, one request is sent alone
        for worker in self.pool.workers[: 1 if tries else None]:
            if not self._waiting:
                return
            if worker.progress is None or worker.progress.queued < LOW_WATER:
                unit = self._waiting.popleft()
                worker.units.append(unit)
                worker.feeds.append(worker.handle.feed.remote(unit, self._known(unit)))

    def _known(self, unit: str) -> frozenset[str]:
        """Return the requests of a unit that need no call."""
        if not self._answered and not self._stored:
            return frozenset()
        ids = read_request_ids(unit)
        return self._answered.among(ids) | self._stored.among(ids)

    def _ask_suspects(self) -> str | None:
        """Send the requests of suspect units one by one, to find and record the request that kills actors."""
        for unit in self._suspects:
            known = self._known(unit)
            for row in read_requests(unit):
                if row[0] in known:
                    continue
                reason = self._ask_suspect(row)
                if reason:
                    return reason
        return None

    def _ask_suspect(self, row: tuple[str, dict[str, Any]]) -> str | None:
        """Send one request until it is completed, or until it is recorded as the cause of the deaths."""
        deaths = 0
        while deaths < DEATHS_OF_A_REQUEST:
            worker = self.pool.workers[0]
            name = f"{row[0]}-{deaths}"
            worker.units = []
            worker.handle.feed_rows.remote(name, [row])
            while True:
                self._look()
                if self.pool.workers[0] is not worker:
                    deaths += 1
                    break
                self._report()
                reason = self._reason_to_end()
                if reason or (worker.progress and name in worker.progress.finished_units):
                    return reason
                sleep(LOOK_SECONDS)
        self._record_crash(row[0])
        return None

    def _record_crash(self, request_id: str) -> None:
        """Write the failure of a request that kills actors. Its deaths do not count for the job."""
        deaths = DEATHS_OF_A_SUSPECT + DEATHS_OF_A_REQUEST
        row = Completion(
            request_id,
            attempts=deaths,
            answered_at=datetime.now(UTC),
            error_type="crashed",
            error=f"asking it ended {deaths} processes",
            run_id=self._job.run,
        )
        path = f"{self._job.directory}/{self._job.run}-crashed-{request_id}.parquet"
        write_file(path, completions_table([row]))
        self.pool.record_crash(deaths)

    def _reason_to_end(self) -> str | None:
        """Return the most permanent reason to end the job now, or None."""
        if self._stopped():
            return "interrupted"
        states = self.pool.states
        if any(state.refused for state in states):
            return "refused"
        if any(found and found.changes(self._job.stage) for found in (self._finding, self._parameters)):
            return "restructured"
        if any(state.unwritable for state in states):
            return "broken"
        if any(state.refusal == "outage" for state in states):
            return "outage"
        busy = [state for state in states if state.queued or state.in_flight]
        # A spent budget refuses new calls, but calls in flight can still complete
        if busy and all(state.refusal == "budget" and not state.in_flight for state in busy):
            return "budget"
        return None

    def _wait_on(self) -> bool:
        """Return True if the pool should wait for an actor that cannot write. Report the progress of the others."""
        self._report()
        return not self._stopped()

    def _report(self, *, force: bool = False) -> None:
        """Report the progress, at most every second look unless forced. Times are in seconds."""
        if not force and monotonic() - self._told < 2 * LOOK_SECONDS:
            return
        self._told = monotonic()
        states = self.pool.states
        waits = {
            "in_flight": sum(state.in_flight for state in states),
            "paused": max((state.paused for state in states), default=0.0),
            "unwritten": sum(state.unwritten for state in states),
            "left_out": sorted({line for state in states for line in state.left_out}),
            "trouble": next((state.trouble for state in states if state.trouble), None),
        }
        self._tell(progress(self._job.stage, self.total, self.usage) | waits)


class Control:
    """The reasons to end this process: a signal, the line `stop`, or the end of standard input.

    A thread reads the lines of standard input: `stop`, or a job or a visit as JSON. The first reason stays:
    `interrupted`, or `orphaned` after the end of standard input, when nobody waits for an outcome.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._lines: list[str] = []
        self._news = threading.Condition()
        self.take_signals()
        threading.Thread(target=self._read, daemon=True).start()

    def take_signals(self) -> None:
        """Handle SIGINT and SIGTERM with an orderly end. Ray replaces these handlers when it starts."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop("interrupted"))

    def reason(self) -> str | None:
        """Return `interrupted` or `orphaned`, or None without a reason to end."""
        return self._reason

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs of standard input, one per line, until there is a reason to end.

        A line that requests a visit of all nodes gets its response at once.
        """
        while True:
            with self._news:
                self._news.wait_for(lambda: self._lines or self._reason, timeout=1.0)
                if self._reason:
                    return
                line = self._lines.pop(0) if self._lines else None
            plain = json.loads(line) if line else {}
            if "folders" in plain:
                tell({"event": "visited", "reports": visit_nodes(**plain)})
            elif plain:
                yield job_from_json(plain)

    def _read(self) -> None:
        """Read the lines of standard input. Its end means that the parent process is gone."""
        for line in sys.stdin:
            if line.strip() == "stop":
                self._stop("interrupted")
                continue
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        self._stop("orphaned")

    def _stop(self, reason: str) -> None:
        """Record the reason, and wake the thread that waits for a job. Handlers of signals call this too."""
        self._reason = self._reason or reason
        # A handler of a signal must not wait. If the lock is taken, `jobs` sees the reason within a second
        if self._news.acquire(blocking=False):
            self._news.notify_all()
            self._news.release()


def answer(job: Job, control: Control, idle: list[Actor]) -> None:
    """Run a job for the parent process and print its outcome. Raises the error of a broken job after printing it."""
    try:
        StoragePath(job.directory).make_folder()
        answering = ActorDriver(job, control.reason, tell, idle)
        outcome = answering.run()
    except (RayError, RuntimeError, OSError) as error:
        tell({"event": "broken", "error": explain(error)})
        raise
    tell({"event": "done", "stage": job.stage.name, "total": answering.total, **asdict(outcome)})


def explain(error: Exception) -> str:
    """Return the error of a job in one line without secrets."""
    said = str(error).splitlines()[-1]
    # An error of an actor has the type of Ray and its own type, whose name is at the beginning of the message
    if isinstance(error, LocalModelFileError):
        return redact(said.rpartition(f"{LocalModelFileError.__name__}: ")[2])
    return redact(f"{type(error).__name__}: {said}")


def tell(event: Mapping[str, Any]) -> None:
    """Print an event. Nothing is printed after the reader is gone."""
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def main(ray: Mapping[str, Any]) -> None:
    """Run the jobs of standard input one after another. `ray` has the settings `ray.*`."""
    control = Control()
    start_ray(ray["address"], ray["runtime_env"])
    control.take_signals()
    tell({"event": "ready"})
    idle = [start_first_actor()]
    for job in control.jobs():
        answer(job, control, idle)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
