"""Test the driver of the actors on its own Ray cluster: dead actors, full disks and an orderly end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from time import sleep, time
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from tests.fakes.disks import SmallDisk
from tests.fakes.model_server import ModelServer
from tests.fakes.object_store import BUCKET, ObjectStore
from tests.udfs.llm.askers import SETTINGS, STAGE, requests, rows_in
from untold.jobs.inference.backends import actor_pool
from untold.jobs.inference.backends.actor_driver import ActorDriver
from untold.jobs.inference.backends.actor_pool import start_ray, visit_nodes
from untold.jobs.inference.backends.job import Job, JobOutcome
from untold.jobs.inference.backends.node_checks import NodeCheckError, check_nodes
from untold.udfs.llm import limiter_actor
from untold.udfs.llm.calls import CallContext
from untold.udfs.llm.limiter import Budget, Limiter, LimiterReport, Limits
from untold.udfs.llm.limiter_actor import ACTOR, NAMESPACE
from untold.udfs.node_report import NodeReport

Event = Mapping[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ObjectStore]:
    """Start a Ray cluster with access to an object store."""
    # A local Ray sets environment variables that change the drivers and clusters of later tests
    with ObjectStore() as store, patch.dict(os.environ, store.variables):
        start_ray(None)
        yield store
        ray.shutdown()


def job_of(server: ModelServer, folder: Path, count: int, store: Path | None = None, **settings: Any) -> Job:
    """Return a job with the given number of requests in one unit."""
    (folder / "requests").mkdir()
    rows = [{"request_id": request_id, **variables} for request_id, variables in requests(count)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "requests" / "unit.parquet")
    store = store or folder / "store"
    store.mkdir(exist_ok=True)
    chosen = replace(SETTINGS, base_url=server.base_url, **settings)
    return Job(str(folder / "requests"), str(store), f"run{abs(hash(folder))}", CallContext(STAGE), chosen)


def answered(job: Job, tell: Any = lambda event: None, idle: list[Any] | None = None) -> JobOutcome:
    return ActorDriver(job, lambda: None, tell, idle=idle).run()


@pytest.mark.usefixtures("cluster")
def test_a_job_is_answered_once_and_its_actor_is_kept(server: ModelServer, tmp_path: Path) -> None:
    events: list[Event] = []
    idle: list[Any] = []
    outcome = answered(job_of(server, tmp_path, 50), events.append, idle)
    assert (outcome.reason, outcome.usage.done, outcome.usage.calls) == (None, 50, 50)
    assert len(rows_in(tmp_path / "store")) == server.count() == 50
    assert len(idle) == 1
    assert (events[-1]["paused"], events[-1]["unwritten"], events[-1]["trouble"]) == (0.0, 0, None)


@pytest.mark.gate
def test_actors_write_to_an_object_store_by_the_options_of_the_settings(
    cluster: ObjectStore, server: ModelServer, tmp_path: Path
) -> None:
    job = replace(job_of(server, tmp_path, 20), directory=f"s3://{BUCKET}/store")
    assert answered(job).usage.done == 20
    # Arrow marks a folder by an empty object whose name ends in a slash
    files = [BytesIO(content) for key, content in cluster.objects.items() if not key.endswith("/")]
    assert sum(pq.read_metadata(file).num_rows for file in files) == 20


@pytest.mark.gate
@pytest.mark.usefixtures("cluster")
def test_a_stage_that_runs_twice_keeps_both_completions(server: ModelServer, tmp_path: Path) -> None:
    idle: list[Any] = []
    job = job_of(server, tmp_path, 40)
    assert answered(job, idle=idle).usage.done == 40
    more = [{"request_id": f"more{number}", "query": "Who?", "text": f"More {number}."} for number in range(5)]
    pq.write_table(pa.Table.from_pylist(more), tmp_path / "requests" / "unit.parquet")
    assert answered(job, idle=idle).usage.done == 5
    assert len(rows_in(tmp_path / "store")) == server.count() == 45


@pytest.mark.gate
@pytest.mark.usefixtures("cluster")
def test_slow_requests_in_flight_at_a_refusal_are_stored(server: ModelServer, tmp_path: Path) -> None:
    slow = [{"when": {"contains": f"number {number}."}, "do": {"delay": 4.5}} for number in (15, 17)]
    server.configure(rules=[*slow, {"when": {"after": 20}, "do": {"status": 402}}])
    outcome = answered(job_of(server, tmp_path, 100, timeout=60.0))
    assert (outcome.reason, outcome.usage.done) == ("refused", 20)
    assert len(rows_in(tmp_path / "store")) == 20


@pytest.mark.gate
@pytest.mark.usefixtures("cluster")
def test_an_exception_in_the_driver_still_stops_its_actors(server: ModelServer, tmp_path: Path) -> None:
    server.configure(latency=0.05)
    idle: list[Any] = []

    def break_off(event: Event) -> None:
        if event["usage"]["done"] >= 20:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        answered(job_of(server, tmp_path, 2000, flush=1000.0), break_off, idle)
    assert len(rows_in(tmp_path / "store")) == server.count() >= 20
    assert len(idle) == 1


@pytest.mark.gate
@pytest.mark.usefixtures("cluster")
def test_a_disk_that_is_full_at_first_loses_nothing(server: ModelServer, tmp_path: Path, disk: SmallDisk) -> None:
    disk.fill()
    job = job_of(server, tmp_path, 100, disk.folder, outage=60.0)
    outcome = answered(job, lambda event: disk.empty())
    assert (outcome.reason, outcome.usage.done) == (None, 100)
    assert len(rows_in(disk.folder)) == server.count() == 100


@pytest.mark.gate
@pytest.mark.usefixtures("cluster")
def test_a_disk_that_stays_full_ends_the_job_with_its_reason(
    server: ModelServer, tmp_path: Path, disk: SmallDisk
) -> None:
    job = job_of(server, tmp_path, 100, disk.folder, outage=2.0, flush=1.0)
    # The first file of the actor fits on the disk, and the next file does not
    outcome = ActorDriver(job, lambda: None, lambda event: disk.fill()).run()
    assert (outcome.reason, outcome.lost) == ("broken", 100)
    assert outcome.error == f"answers could not be written to {disk.folder} (No space left on device)"


@pytest.mark.gate
@pytest.mark.usefixtures("cluster")
def test_an_actor_that_does_not_start_is_replaced(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sleeper:
        def start(self, _: Any) -> None:
            sleep(600)

    def actors_of() -> Iterator[Any]:
        monkeypatch.setattr(actor_pool, "START_SECONDS", 0.5)
        yield ray.remote(Sleeper).options(num_cpus=0).remote()
        monkeypatch.setattr(actor_pool, "START_SECONDS", 300.0)
        yield make(*actor_pool.alive_nodes())

    make, found = actor_pool.new_actor, actors_of()
    monkeypatch.setattr(actor_pool, "new_actor", lambda node: next(found))
    assert answered(job_of(server, tmp_path, 5)).usage.done == 5


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_an_actor_that_does_not_answer_is_replaced(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.configure(latency=0.2)
    stopped: list[int] = []
    idle: list[Any] = []
    job = job_of(server, tmp_path, 60)

    def stop_the_first(event: Event) -> None:
        if not stopped and event["usage"]["done"] >= 10:
            monkeypatch.setattr(actor_pool, "ANSWER_SECONDS", 3.0)
            stopped.append(driver.pool.workers[0].handle._ray_actor_id)
            os.kill(pid_of(driver.pool.workers[0].handle), signal.SIGSTOP)
        elif stopped and driver.pool.workers and driver.pool.workers[0].handle._ray_actor_id != stopped[0]:
            monkeypatch.setattr(actor_pool, "ANSWER_SECONDS", 60.0)

    driver = ActorDriver(job, lambda: None, stop_the_first, idle=idle)
    outcome = driver.run()
    assert outcome.reason is None
    assert len(set(rows_in(tmp_path / "store"))) == 60
    assert server.count() <= 60 + SETTINGS.limits.max_concurrency + 10


def pid_of(actor: Any) -> int:
    found: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    return found


@pytest.mark.gate
@pytest.mark.usefixtures("cluster")
def test_a_budget_holds_if_an_actor_dies_and_then_the_limiter(server: ModelServer, tmp_path: Path) -> None:
    # Each lease lasts a quarter of a second. Without a rate, the first actor would lease the whole budget
    limits = Limits(requests_per_minute=2400, max_concurrency=8)
    job = job_of(server, tmp_path, 200, budget=Budget(max_calls=100), limits=limits)
    killed: list[int] = []

    def kill(event: Event) -> None:
        limiter = ray.get_actor(ACTOR, namespace=NAMESPACE)
        due = [driver.pool.workers[0].handle, limiter][len(killed) :]
        if due and event["usage"]["done"] >= 30 * (len(killed) + 1):
            killed.append(pid_of(due[0]))
            os.kill(killed[-1], signal.SIGKILL)

    driver = ActorDriver(job, lambda: None, kill)
    outcome = driver.run()
    assert len(killed) == 2
    assert outcome.reason == "budget"
    assert 60 <= server.count() <= 100


@pytest.mark.usefixtures("cluster")
def test_a_killed_actor_loses_requests_since_its_last_write(server: ModelServer, tmp_path: Path) -> None:
    server.configure(latency=0.05)
    flush = 0.5
    job = job_of(server, tmp_path, 300, flush=flush)
    store, killed = tmp_path / "store", dict[str, float]()

    def kill(event: Event) -> None:
        if not killed and event["usage"]["done"] >= 100:
            os.kill(pid_of(driver.pool.workers[0].handle), signal.SIGKILL)
            killed.update(at=time(), stored=len(rows_in(store)), sent=server.count())

    driver = ActorDriver(job, lambda: None, kill)
    outcome = driver.run()
    assert (outcome.reason, len(rows_in(store))) == (None, 300)
    assert killed["stored"] > 0
    # Exactly the requests without a stored completion are sent again
    assert server.count() == 300 + killed["sent"] - killed["stored"]
    recent = sum(killed["at"] - flush - 0.2 <= arrival.at <= killed["at"] for arrival in server.arrivals())
    assert killed["sent"] - killed["stored"] <= recent + SETTINGS.limits.max_concurrency


def driver_of(folder: Path) -> ActorDriver:
    return ActorDriver(
        Job(str(folder), str(folder), "run", CallContext(STAGE), SETTINGS), lambda: None, lambda event: None
    )


def test_deaths_of_a_culprit_that_is_found_are_forgiven(tmp_path: Path) -> None:
    driver = driver_of(tmp_path)
    for number in range(40):
        for _ in range(5):
            driver.pool.deaths.count(RuntimeError("out of memory"))
        driver._record_crash(f"r{number}")
    assert {row["error_type"] for row in rows_in(tmp_path).values()} == {"crashed"}


class _Handle:
    """The interface of the limiters in Ray: the caller awaits `lease.remote(reports)`.

    `sent` contains the names of each message.
    """

    def __init__(self, *, answers: bool = True) -> None:
        self.lease, self.answers, self.sent = self, answers, list[set[str]]()
        self._limiters: dict[str, Limiter] = {}

    async def remote(self, reports: Mapping[str, LimiterReport]) -> dict[str, Any]:
        self.sent.append(set(reports))
        await asyncio.sleep(0.01 if self.answers else 3600)
        return {name: self._limiters.setdefault(name, Limiter()).lease(report) for name, report in reports.items()}


def _report(number: int = 1) -> LimiterReport:
    return LimiterReport("a", "run", (0,), 0, number=number, limits=Limits())


def test_a_missing_lease_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_actor, "LEASE_SECONDS", 0.05)
    opened = iter((_Handle(answers=False), _Handle()))
    monkeypatch.setattr(limiter_actor, "open_limiters", lambda: next(opened))
    assert len(asyncio.run(limiter_actor.LimiterClient(["limiter"]).lease({0: _report()}))[0].times) == 1


def test_reports_to_several_limiters_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    limiters, names = _Handle(), [f"limiter {number}" for number in range(20)]
    monkeypatch.setattr(limiter_actor, "open_limiters", lambda: limiters)
    leases = asyncio.run(limiter_actor.LimiterClient(names).lease({number: _report() for number in range(1, 20)}))
    assert {number: len(lease.times) for number, lease in leases.items()} == dict.fromkeys(range(1, 20), 1)
    assert limiters.sent == [set(names[1:])]


def test_an_abandoned_lease_does_not_reduce_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    limiters = _Handle()
    monkeypatch.setattr(limiter_actor, "open_limiters", lambda: limiters)

    async def ask() -> list[int]:
        lender = limiter_actor.LimiterClient(["a", "b", "c"])
        first = asyncio.create_task(lender.lease({0: _report(), 1: _report()}))
        await asyncio.sleep(0.005)
        first.cancel()
        return [len(lease.times) for lease in (await lender.lease({1: _report(), 2: _report()})).values()]

    assert asyncio.run(ask()) == [1, 1]
    assert limiters.sent == [{"a", "b"}, {"b", "c"}]


@pytest.mark.usefixtures("cluster")
def test_every_node_tries_the_places_of_a_run(tmp_path: Path) -> None:
    places = {name: str(tmp_path / name) for name in ("out", "store")}
    check_nodes(places, visit_nodes, lambda line: None)
    assert list((tmp_path / "store").iterdir()) == []

    def elsewhere(folders: Mapping[str, str], nonce: str) -> list[NodeReport]:
        return visit_nodes({**folders, "store": str(tmp_path / "other")}, nonce)

    with pytest.raises(
        NodeCheckError, match=r"^store is not shared by the Ray node .*: it does not see the file that the driver"
    ):
        check_nodes(places, elsewhere, lambda line: None)
