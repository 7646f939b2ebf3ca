"""Test locks on folders of an object store. The store is a real HTTP server with conditional writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest

from tests.fakes.object_store import BUCKET, Fault, ObjectStore
from tests.jobs.run.test_locks import ELSEWHERE, dead_process
from untold.jobs.run import locks
from untold.jobs.run.locks import Holder, LockedError, LostLockError, Process, UnlockableError, lock_folder
from untold.jobs.run.output import Output

FOLDER = f"s3://{BUCKET}/store"
KEY = "store/_lock"


def take(run: str = "mine") -> Any:
    return lock_folder(FOLDER, run, wait=False)


def said(store: ObjectStore) -> dict[str, Any]:
    """Return the content of the lock."""
    plain: dict[str, Any] = json.loads(store.objects[KEY])
    return plain


def put_lock(store: ObjectStore, process: Process, age: float = 0.0) -> None:
    """Write the lock of another run with an age in seconds."""
    store.put(KEY, json.dumps({**asdict(Holder("other", process)), "epoch": 7}).encode())
    store.entry(KEY).last_modified -= timedelta(seconds=age)


def test_one_run_holds_a_folder_and_the_next_one_takes_it_with_a_higher_epoch(object_store: ObjectStore) -> None:
    with take():
        with pytest.raises(LockedError, match="store is in use by a run on host"), take("other"):
            pass
        assert {name: said(object_store)[name] for name in ("run", "epoch", "ended")} == {
            "run": "mine",
            "epoch": 1,
            "ended": False,
        }
    assert said(object_store)["ended"]
    with take("other"):
        assert (said(object_store)["run"], said(object_store)["epoch"]) == ("other", 2)
    assert [key for key in object_store.objects if key != KEY] == []


def test_the_lock_of_a_process_that_has_ended_is_taken_at_once(object_store: ObjectStore) -> None:
    put_lock(object_store, dead_process())
    with take():
        assert (said(object_store)["run"], said(object_store)["epoch"]) == ("mine", 8)


def test_a_holder_elsewhere_is_gone_after_five_silent_minutes_by_the_stores_clock(object_store: ObjectStore) -> None:
    put_lock(object_store, ELSEWHERE, age=200)
    with pytest.raises(LockedError, match=ELSEWHERE.host), take():
        pass
    put_lock(object_store, ELSEWHERE, age=400)
    with take():
        assert said(object_store)["run"] == "mine"


def test_a_run_whose_lock_another_took_over_loses_it_with_its_next_beat(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with take() as lock:
        put_lock(object_store, ELSEWHERE)
        assert not lock.lost
        # The run behaves as after a suspension
        monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", -1.0)
        with pytest.raises(LostLockError, match="another run took over"):
            lock.check()
    assert said(object_store)["run"] == "other"


def test_a_beat_whose_answer_is_lost_loses_no_lock(object_store: ObjectStore) -> None:
    with take() as lock:
        faults = iter([Fault(lost=True)])
        object_store.fault = lambda method, key: next(faults, None) if method == "PUT" else None
        lock.add_process(1)
        assert not lock.lost
    assert said(object_store)["ended"]


def test_checking_a_lock_costs_no_request(object_store: ObjectStore) -> None:
    with take() as lock:
        before = len(object_store.requests)
        for _ in range(50):
            lock.check()
        assert len(object_store.requests) == before


def test_a_store_that_ignores_conditions_is_refused_before_anything_is_written(object_store: ObjectStore) -> None:
    object_store.conditional = False
    with pytest.raises(UnlockableError, match="Start one run at a time on it, with --no-lock"):
        with Output(FOLDER, (), store=f"{FOLDER}/completions"):
            pass
    with Output(FOLDER, (), store=f"{FOLDER}/completions", lock=False):
        assert object_store.objects == {}


def test_hdfs_has_no_lock() -> None:
    with pytest.raises(UnlockableError, match="cannot lock hdfs://host/out"):
        lock_folder("hdfs://host/out", "mine", wait=False)
