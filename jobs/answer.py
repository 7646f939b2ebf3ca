"""Requests to completions, by Ray: `python -m jobs.answer --requests P --store S --settings F`. Imports no pyspark.

It runs as a process of its own beside a Spark driver, or as a Ray job. With `--serve` it reads one job a line from
standard input, so that one local Ray serves all stages of a run. It prints one JSON event a line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError

from jobs.asking.control import Control
from jobs.asking.deaths import Deaths
from jobs.asking.job import Job, job_from_json
from jobs.asking.local_ray import start_ray
from jobs.asking.settled import hold_folder, settled_ids
from jobs.run.locks import LockedError
from udfs.files import make_folder
from udfs.llm.actors import AnsweringActor, Assignment, limiter_name, open_limiter
from udfs.llm.calls import Progress, Tally, Work
from udfs.llm.limiter import NOTHING_SPENT, Spent
from udfs.llm.records import Completion, completions_table
from udfs.llm.segments import check_probe, read_ids, write_file
from udfs.llm.units import count_unit, ids_among, list_units, read_requests
from udfs.redaction import redact

# At 2,500 calls a second at best an actor answers 500 between two looks: with twice that queued it never idles
LOOK_SECONDS = 0.2
# A stage of a few requests is done sooner than that: the waits between looks grow
FIRST_LOOK_SECONDS = 0.02
LOW_WATER = 1000
# Memory and nodes fail by chance too: thrice in a unit is suspicious, and twice more, alone in its actor, is proof
DEATHS_OF_A_SUSPECT = 3
DEATHS_OF_A_CULPRIT = 2
# What is in flight is paid for and gets so long to arrive; where nobody waits for it any more, hardly any time
STOP_GRACE_SECONDS = 3.0
ORPHAN_GRACE_SECONDS = 0.5
# An actor says how far it is in milliseconds, unless its node is gone or starved
ANSWER_SECONDS = 60.0
# An actor starts in seconds; on a machine that is short of memory or processors in minutes.
START_SECONDS = 300.0
# A farewell takes the limiter milliseconds; a limiter that is lost too must not hold up what the living ask
LEAVE_SECONDS = 5.0
# Waits before an actor that could not write its first file tries again, doubled each time
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0


@dataclass
class _Worker:
    assignment: Assignment
    handle: Any
    probe: str = ""
    units: list[str] = field(default_factory=list)
    feeds: list[Any] = field(default_factory=list)
    progress: Progress | None = None


@dataclass(frozen=True)
class Outcome:
    """How a job ended: `finished`, `budget`, `outage`, `interrupted`, or `refused` or `broken` (both with `error`).

    `lost`: answers that were paid for and could not be written.
    """

    outcome: str
    error: str | None
    tally: Tally
    models: tuple[str, ...]
    seconds: float
    lost: int = 0


class Answering:
    """Hands the units of a job to actors, replaces actors that die, and says how the job ended.

    `settled`: requests of the units that need no asking.
    """

    def __init__(
        self,
        job: Job,
        stopped: Callable[[], str | None],
        tell: Callable[[Mapping[str, Any]], None],
        confirmed: Callable[[], bool] = lambda: True,
        idle: list[Any] | None = None,
        settled: frozenset[str] = frozenset(),
    ) -> None:
        self._job, self._stopped, self._tell, self._confirmed = job, stopped, tell, confirmed
        self._idle = [] if idle is None else idle
        self._waiting = list_units(job.requests)
        self._total = sum(count_unit(unit) for unit in self._waiting)
        self._settled = set(settled)
        self._deaths: dict[str, int] = {}
        self._suspects: list[str] = []
        self._workers: list[_Worker] = []
        self._past = Tally()
        self._models: set[str] = set()
        self._born = 0
        self._dead = Deaths()
        self._gone: dict[str, Spent] = {}
        self._began = monotonic()
        self._told = 0.0

    def run(self) -> Outcome:
        """Answers everything, or ends early for a reason that the outcome names.

        Whatever happens, every actor is dismissed: what it has answered is paid for, and is written before it goes.
        """
        try:
            self._hire(min(self._job.actors, max(len(self._waiting), 1)))
            reason = self._confirm_probes() or self._loop()
            if reason is None and self._suspects:
                reason = self._ask_suspects()
        finally:
            self._dismiss(ORPHAN_GRACE_SECONDS if self._stopped() == "orphaned" else STOP_GRACE_SECONDS)
        reason, error, lost = self._verdict(reason or "finished")
        tally = self._tally()
        self._report(tally, force=True)
        return Outcome(reason, error, tally, tuple(sorted(self._models)), monotonic() - self._began, lost)

    def _verdict(self, reason: str) -> tuple[str, str | None, int]:
        """How the job ended, the error that belongs to it, and how many answers are on no disk: these break any end."""
        states = [worker.progress for worker in self._workers if worker.progress]
        unwritten = sum(state.unwritten for state in states)
        trouble = next((state.trouble for state in states if state.trouble), None)
        if unwritten and trouble:
            return "broken", f"answers could not be written to {self._job.directory} ({trouble})", unwritten
        return reason, next((state.refused for state in states if state.refused), None), unwritten

    def _confirm_probes(self) -> str | None:
        """Before the first lease: whoever started this reads what every actor wrote, then the probes go."""
        probes = [worker.probe for worker in self._workers]
        if self._job.confirm_probes:
            self._tell({"event": "probes", "uris": probes})
            while not self._confirmed():
                if self._stopped():
                    return "interrupted"
                sleep(LOOK_SECONDS / 10)
        for probe in probes:
            check_probe(probe)
        return None

    def _loop(self) -> str | None:
        wait = FIRST_LOOK_SECONDS
        while True:
            self._look()
            self._hand_out()
            self._report(self._tally())
            reason = self._reason_to_end()
            if reason or not (self._waiting or any(worker.units for worker in self._workers)):
                return reason
            sleep(wait)
            wait = min(LOOK_SECONDS, 1.5 * wait)

    def _look(self) -> None:
        """Asks every actor how far it is; replaces those that died or do not say."""
        asked = {worker.handle.progress.remote(): worker for worker in self._workers}
        ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)
        for reference, worker in asked.items():
            try:
                worker.progress = ray.get(reference, timeout=0)
                worker.feeds = _unfinished(worker.feeds)
            except (RayActorError, ActorUnavailableError, GetTimeoutError) as error:
                self._replace(worker, error)
                continue
            worker.units = [unit for unit in worker.units if unit not in worker.progress.finished_units]
            self._models.update(worker.progress.models)

    def _hand_out(self) -> None:
        for worker in self._workers:
            if not self._waiting:
                return
            if worker.progress is None or worker.progress.queued < LOW_WATER:
                unit = self._waiting.pop(0)
                worker.units.append(unit)
                worker.feeds.append(worker.handle.feed.remote(unit, ids_among(unit, self._settled)))

    def _replace(self, worker: _Worker, cause: Exception) -> None:
        """Takes back what a dead actor had not stored, and hires another in its place."""
        self._dead.count(cause)
        if worker.progress is not None:
            self._past += worker.progress.tally
        ray.kill(worker.handle, no_restart=True)
        self._note_spending(worker)
        self._settled |= read_ids(self._job.directory, worker.assignment.work.name)
        for unit in worker.units:
            self._deaths[unit] = self._deaths.get(unit, 0) + 1
            (self._suspects if self._deaths[unit] >= DEATHS_OF_A_SUSPECT else self._waiting).append(unit)
        place = self._workers.index(worker)
        self._workers.remove(worker)
        (new,) = self._hire(1)
        check_probe(new.probe)
        self._workers.remove(new)
        self._workers.insert(place, new)

    def _note_spending(self, worker: _Worker) -> None:
        """Remembers what a dead actor spent, and has the living remember it: a limiter that dies too forgets it."""
        name, tally = worker.assignment.work.name, worker.progress.tally if worker.progress else Tally()
        try:
            # By its leases, so never too little
            spent = ray.get(open_limiter(worker.assignment.limiter).leave.remote(name), timeout=LEAVE_SECONDS)
        except (RayError, GetTimeoutError):
            spent = NOTHING_SPENT
        prices = self._job.settings.prices
        cost = prices.cost(tally.prompt_tokens, tally.completion_tokens, tally.calls) or 0.0
        seen = Spent(tally.calls, tally.prompt_tokens + tally.completion_tokens, cost)
        self._gone[name] = max(spent, seen, key=lambda known: known.calls)
        for other in self._workers:
            if other is not worker:
                # Before a new actor is hired: until that takes its first lease, only these can tell
                other.handle.remember.remote(self._gone)

    def _ask_suspects(self) -> str | None:
        """Asks units that killed several actors one request at a time, to find and record the culprit."""
        for unit in self._suspects:
            for row in read_requests(unit):
                if row[0] in self._settled:
                    continue
                reason = self._ask_suspect(row)
                if reason:
                    return reason
        return None

    def _ask_suspect(self, row: tuple[str, dict[str, Any]]) -> str | None:
        deaths = 0
        while deaths < DEATHS_OF_A_CULPRIT:
            worker = self._workers[0]
            name = f"{row[0]}-{deaths}"
            worker.units = []
            worker.handle.feed_rows.remote(name, [row])
            while True:
                self._look()
                if self._workers[0] is not worker:
                    deaths += 1
                    break
                self._report(self._tally())
                reason = self._reason_to_end()
                if reason or (worker.progress and name in worker.progress.finished_units):
                    return reason
                sleep(LOOK_SECONDS)
        self._record_crash(row[0])
        return None

    def _record_crash(self, request_id: str) -> None:
        deaths = DEATHS_OF_A_SUSPECT + DEATHS_OF_A_CULPRIT
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
        self._dead.forgive(deaths)
        self._past += Tally(done=1, failed=1)

    def _hire(self, count: int) -> list[_Worker]:
        """Actors that are ready to ask: idle ones of an earlier stage, else new ones, started side by side."""
        workers = [_Worker(self._assign(), self._idle.pop() if self._idle else _new_actor()) for _ in range(count)]
        self._workers += workers
        starting = [worker.handle.start.remote(worker.assignment) for worker in workers]
        for worker, probe in zip(workers, starting, strict=True):
            self._await_start(worker, probe)
        return workers

    def _await_start(self, worker: _Worker, probe: Any) -> None:
        """Waits until the worker is ready: with another actor where its own dies or does not start.

        Where it cannot write, it tries again for as long as an endpoint may be away.
        """
        began, wait = monotonic(), FIRST_WAIT
        while True:
            try:
                worker.probe = ray.get(probe, timeout=START_SECONDS)
                return
            except (RayActorError, ActorUnavailableError, GetTimeoutError) as error:
                self._dead.count(error)
                ray.kill(worker.handle, no_restart=True)
                worker.handle = _new_actor()
            except OSError:
                if self._stopped() or monotonic() - began >= self._job.settings.outage:
                    raise
                self._report(self._tally())
                sleep(wait)
                wait = min(LONGEST_WAIT, 2 * wait)
            probe = worker.handle.start.remote(worker.assignment)

    def _assign(self) -> Assignment:
        job = self._job
        self._born += 1
        work = Work(
            name=f"{job.run}-{job.stage.name}-{self._born}",
            run=job.run,
            stage=job.stage,
            settings=job.settings,
            spent_before=job.spent,
            answered_before=job.answered_before,
            gone=dict(self._gone),
        )
        return Assignment(work, limiter_name(job.settings.base_url, job.stage.model), job.directory)

    def _dismiss(self, grace: float) -> None:
        """Ends every worker in order; its actor is kept for the next stage, or ended where it does not answer."""
        stopping = {worker.handle.stop.remote(grace): worker for worker in self._workers}
        if stopping:
            ray.wait(list(stopping), num_returns=len(stopping), timeout=grace + ANSWER_SECONDS)
        for reference, worker in stopping.items():
            try:
                worker.progress = ray.get(reference, timeout=0)
                self._models.update(worker.progress.models)
            except (RayError, RuntimeError, OSError, GetTimeoutError):
                ray.kill(worker.handle, no_restart=True)
            else:
                self._idle.append(worker.handle)

    def _reason_to_end(self) -> str | None:
        stopped = self._stopped()
        if stopped:
            return "interrupted"
        states = [worker.progress for worker in self._workers if worker.progress]
        if any(state.refused for state in states):
            return "refused"
        if any(state.unwritable for state in states):
            return "broken"
        if any(state.refusal == "outage" for state in states):
            return "outage"
        busy = [state for state in states if state.queued or state.in_flight]
        if busy and all(state.refusal == "budget" and not state.in_flight for state in busy):
            return "budget"
        return None

    def _tally(self) -> Tally:
        total = self._past
        for worker in self._workers:
            if worker.progress is not None:
                total += worker.progress.tally
        return total

    def _report(self, tally: Tally, *, force: bool = False) -> None:
        if not force and monotonic() - self._told < 2 * LOOK_SECONDS:
            return
        self._told = monotonic()
        seconds = monotonic() - self._began
        known = {"stage": self._job.stage.name, "total": self._total, "seconds": seconds, "tally": asdict(tally)}
        states = [worker.progress for worker in self._workers if worker.progress]
        waits = {
            "paused": max((state.paused for state in states), default=0.0),
            "unwritten": sum(state.unwritten for state in states),
            "trouble": next((state.trouble for state in states if state.trouble), None),
        }
        self._tell({"event": "progress", **known, **waits})


def _new_actor() -> Any:
    options = {"num_cpus": 0, "scheduling_strategy": "SPREAD", "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(AnsweringActor).options(**options).remote()


def _unfinished(feeds: list[Any]) -> list[Any]:
    """The calls that go on; raises what went wrong in one that ended."""
    if not feeds:
        return feeds
    ended, going_on = ray.wait(feeds, num_returns=len(feeds), timeout=0)
    ray.get(ended)
    return list(going_on)


def _tell(event: Mapping[str, Any]) -> None:
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _answer(job: Job, stopped: Callable[[], str | None], confirmed: Callable[[], bool], **options: Any) -> Outcome:
    try:
        make_folder(job.directory)
        outcome = Answering(job, stopped, _tell, confirmed, **options).run()
    except (RayError, RuntimeError, OSError) as error:
        _tell({"event": "broken", "error": redact(f"{type(error).__name__}: {str(error).splitlines()[-1]}")})
        raise
    _tell({"event": "done", "stage": job.stage.name, "total": outcome.tally.taken, **asdict(outcome)})
    return outcome


def _serve(ray_address: str | None) -> int:
    control = _open_control(ray_address, serving=True)
    idle: list[Any] = []
    for job in control.jobs():
        _answer(job, control.reason, control.confirmed, idle=idle)
    return 0


def _answer_alone(given: argparse.Namespace) -> int:
    """Answers one job as a run would: as the one spender of its folder, and without what is settled there."""
    with open(given.settings, encoding="utf-8") as file:
        plain = json.load(file)
    job = job_from_json({**plain, "requests": given.requests, "directory": given.store})
    # Before signals are taken over, so that one ends the waiting for another run.
    with hold_folder(job.directory, job.run, wait=not given.no_wait) as lost:
        settled = settled_ids(job.requests, job.directory, retry_failed=given.retry_failed)
        control = _open_control(given.ray_address, serving=False)
        outcome = _answer(
            job, lambda: control.reason() or ("interrupted" if lost() else None), control.confirmed, settled=settled
        )
    return 0 if outcome.outcome == "finished" else 1


def _open_control(ray_address: str | None, *, serving: bool) -> Control:
    control = Control(serving)
    start_ray(ray_address)
    control.take_signals()
    _tell({"event": "ready"})
    return control


def main(arguments: list[str] | None = None) -> int:
    """Answers one job, or one after the other with `--serve`. 0 where all of it was answered."""
    parser = argparse.ArgumentParser(prog="python -m jobs.answer", description="Answers requests by Ray actors.")
    parser.add_argument("--requests", help="folder of requests files (Parquet)")
    parser.add_argument("--store", help="folder of this stage's completions; what it holds is not asked again")
    parser.add_argument("--settings", help="JSON file of a job: run, stage, settings, actors")
    parser.add_argument("--ray-address", help="the Ray cluster; without it one is started on this machine")
    parser.add_argument("--no-wait", action="store_true", help="end where another run asks for this folder")
    parser.add_argument("--retry-failed", action="store_true", help="ask again what failed for a lasting reason")
    parser.add_argument("--serve", action="store_true", help="read one job a line from standard input")
    given = parser.parse_args(arguments)
    if given.serve:
        return _serve(given.ray_address)
    if not (given.requests and given.store and given.settings):
        parser.error("give --requests, --store and --settings, or --serve")
    try:
        return _answer_alone(given)
    except LockedError as error:
        print(f"untold: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
