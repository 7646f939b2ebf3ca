"""Requests to completions by Ray, without pyspark: the driver of the actors that answer a job.

`python -m untold.jobs.inference.backends.actor_driver` is the process beside a Spark driver: it reads one job a line
from standard input, so that one local Ray serves all stages of a run, and prints one JSON event a line.
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
from untold.jobs.inference.backends.job import Job, JobOutcome, job_from_json
from untold.udfs.llm.keys import Parameters, SchemaSupport
from untold.udfs.llm.store_files import Completion, check_probe, completions_table, read_ids, write_file
from untold.udfs.llm.units import RequestIds, list_units, read_request_ids, read_requests
from untold.udfs.llm.usage import Usage
from untold.udfs.redaction import redact
from untold.udfs.retrieval.local_models import LocalModelFileError
from untold.udfs.storage import StoragePath

# At 2,500 calls a second at best an actor answers 500 between two looks: with twice that queued it never idles
LOOK_SECONDS = 0.2
# A stage of a few requests is done sooner than that: the waits between looks grow
FIRST_LOOK_SECONDS = 0.02
LOW_WATER = 1000
# Memory and nodes fail by chance too: thrice in a unit is suspicious, and twice more, alone in its actor, is proof
DEATHS_OF_A_SUSPECT = 3
DEATHS_OF_A_REQUEST = 2
# What is in flight is paid for and gets so long to arrive: little where a user waits for the end, hardly any time where
# nobody waits for it any more
STOP_GRACE_SECONDS = 3.0
REFUSED_GRACE_SECONDS = 30.0
ORPHAN_GRACE_SECONDS = 0.5


class ActorDriver:
    """Hands the units of a job to actors, takes back what those that die had not stored, and says how the job ended.

    `answered`: requests of the units that need no asking. `total`: how many need it.
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
        # What actors that died had stored
        self._stored = RequestIds()
        self._deaths: dict[str, int] = {}
        self._suspects: list[str] = []
        self._began = monotonic()
        self._told = 0.0

    def run(self) -> JobOutcome:
        """Answers everything, or ends early for a reason that the outcome names.

        Whatever happens, every actor is stopped: what it has answered is paid for, and is written before it goes.
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
        """Seconds that what is in flight gets to arrive; less once a user, or the end of its run, ends the waiting."""
        if (stopped := self._stopped()) is not None:
            return ORPHAN_GRACE_SECONDS if stopped == "orphaned" else STOP_GRACE_SECONDS
        return REFUSED_GRACE_SECONDS if reason == "refused" else STOP_GRACE_SECONDS

    @property
    def _finding(self) -> SchemaSupport | None:
        """What the endpoint makes of a schema, where an answer said it; what changes the asking counts first."""
        found = [state.finding for state in self.pool.states if state.finding]
        return max(found, key=lambda one: one.changes(self._job.stage), default=None)

    @property
    def _parameters(self) -> Parameters | None:
        """Return the parameters that the actors found to be refused, and the most room that reasoning took."""
        found = [state.parameters for state in self.pool.states if state.parameters]
        return reduce(Parameters.merged, found) if found else None

    @property
    def usage(self) -> Usage:
        """What was used so far."""
        return replace(self.pool.usage, seconds=monotonic() - self._began)

    def _verdict(self, reason: str | None) -> tuple[str | None, str | None, int]:
        """How the job ended, the error that belongs to it, and how many answers are on no disk: these break any end."""
        states = self.pool.states
        unwritten = sum(state.unwritten for state in states)
        trouble = next((state.trouble for state in states if state.trouble), None)
        if unwritten and trouble:
            return "broken", f"answers could not be written to {self._job.directory} ({trouble})", unwritten
        return reason, next((state.refused for state in states if state.refused), None), unwritten

    def _check_probes(self) -> None:
        """Before the first lease: what every actor wrote can be read here."""
        for worker in self.pool.workers:
            check_probe(worker.probe)

    def _loop(self) -> str | None:
        """Hands out units until all are answered; the reason where it ends before."""
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
        """Looks how far every actor is; what a dead one had not stored waits again, and another takes its place."""
        for dead in self.pool.check():
            self.pool.replace(dead)
            self._stored |= RequestIds([*read_ids(self._job.directory, dead.name)])
            for unit in dead.units:
                self._deaths[unit] = self._deaths.get(unit, 0) + 1
                (self._suspects if self._deaths[unit] >= DEATHS_OF_A_SUSPECT else self._waiting).append(unit)

    def _hand_out(self) -> None:
        """A unit to each actor that soon has nothing left, less what of it is answered."""
        tries = self._job.call.tries_schema and all(state.tries_schema for state in self.pool.states)
        # While a schema is tried one request is sent alone
        for worker in self.pool.workers[: 1 if tries else None]:
            if not self._waiting:
                return
            if worker.progress is None or worker.progress.queued < LOW_WATER:
                unit = self._waiting.popleft()
                worker.units.append(unit)
                worker.feeds.append(worker.handle.feed.remote(unit, self._known(unit)))

    def _known(self, unit: str) -> frozenset[str]:
        """The requests of a unit that need no asking."""
        if not self._answered and not self._stored:
            return frozenset()
        ids = read_request_ids(unit)
        return self._answered.among(ids) | self._stored.among(ids)

    def _ask_suspects(self) -> str | None:
        """Asks units that killed several actors one request at a time, to find and record the culprit."""
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
        """Asks one request until it is answered, or has killed so many actors that it is recorded as the culprit."""
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
        """Writes the failure of a request that kills actors; its deaths speak neither of the machine nor of the job."""
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
        """Why the job has to end now, the most lasting reason first; None while it may go on."""
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
        # A budget that is used up refuses new calls; those in flight may still be answered
        if busy and all(state.refusal == "budget" and not state.in_flight for state in busy):
            return "budget"
        return None

    def _wait_on(self) -> bool:
        """Whether an actor that cannot write is to be waited for; says meanwhile how far the others are."""
        self._report()
        return not self._stopped()

    def _report(self, *, force: bool = False) -> None:
        """Tells how far the job is, at most every second look unless forced. Times are seconds."""
        if not force and monotonic() - self._told < 2 * LOOK_SECONDS:
            return
        self._told = monotonic()
        known = {"stage": self._job.stage.name, "total": self.total, "usage": asdict(self.usage)}
        states = self.pool.states
        waits = {
            "in_flight": sum(state.in_flight for state in states),
            "paused": max((state.paused for state in states), default=0.0),
            "unwritten": sum(state.unwritten for state in states),
            "left_out": sorted({line for state in states for line in state.left_out}),
            "trouble": next((state.trouble for state in states if state.trouble), None),
        }
        self._tell({"event": "progress", **known, **waits})


class Control:
    """What may end this process: a signal, a `stop` line on standard input, or the end of standard input.

    A thread reads the lines of standard input: `stop`, or a job or a visit as JSON. The first reason stays:
    `interrupted`, or `orphaned` where standard input ended, so that nobody waits for an outcome.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._lines: list[str] = []
        self._news = threading.Condition()
        self.take_signals()
        threading.Thread(target=self._read, daemon=True).start()

    def take_signals(self) -> None:
        """SIGINT and SIGTERM end the asking in order; Ray takes them over when it starts."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop("interrupted"))

    def reason(self) -> str | None:
        """`interrupted` or `orphaned`; None while nothing has asked this process to end."""
        return self._reason

    def jobs(self) -> Iterator[Job]:
        """The jobs of standard input, one a line, until it ends or something stops this process.

        A line that asks for a visit of all nodes is answered at once.
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
        """Sorts the lines of standard input; its end means that the process which started this one has gone."""
        for line in sys.stdin:
            if line.strip() == "stop":
                self._stop("interrupted")
                continue
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        self._stop("orphaned")

    def _stop(self, reason: str) -> None:
        """Notes the reason, and wakes whoever waits for a job. A signal's handler runs this too."""
        self._reason = self._reason or reason
        # A signal's handler must not wait: where the lock is taken, `jobs` sees the reason within a second
        if self._news.acquire(blocking=False):
            self._news.notify_all()
            self._news.release()


def answer(job: Job, control: Control, idle: list[Actor]) -> None:
    """Answers a job for the process that sent it, and tells its outcome. Raises what broke it, which is told too."""
    try:
        StoragePath(job.directory).make_folder()
        answering = ActorDriver(job, control.reason, tell, idle)
        outcome = answering.run()
    except (RayError, RuntimeError, OSError) as error:
        tell({"event": "broken", "error": explain(error)})
        raise
    tell({"event": "done", "stage": job.stage.name, "total": answering.total, **asdict(outcome)})


def explain(error: Exception) -> str:
    """What broke an answering, in one line without secrets."""
    said = str(error).splitlines()[-1]
    # What an actor raised is both of Ray's kind and of its own, whose name stands before what it says
    if isinstance(error, LocalModelFileError):
        return redact(said.rpartition(f"{LocalModelFileError.__name__}: ")[2])
    return redact(f"{type(error).__name__}: {said}")


def tell(event: Mapping[str, Any]) -> None:
    """Prints an event; a reader that has gone is told nothing more."""
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def main(ray: Mapping[str, Any]) -> None:
    """Answers one job after the other, as they come on standard input. `ray`: the settings `ray.*`."""
    control = Control()
    start_ray(ray["address"], ray["runtime_env"])
    control.take_signals()
    tell({"event": "ready"})
    idle = [start_first_actor()]
    for job in control.jobs():
        answer(job, control, idle)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
