from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread, Timer
from time import monotonic, time
from typing import Any

import pytest

from jobs.run.locks import FolderLock, Holder, LockedError, read_holder

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from jobs.run.locks import FolderLock
with FolderLock(sys.argv[1], sys.argv[2], wait=False):
    print("held", flush=True)
    sys.stdin.readline()
"""
RACE = """
import os, sys, time
from pathlib import Path
from jobs.run.locks import FolderLock, LockedError
name, folder = sys.argv[1], Path(sys.argv[2])
for line in sys.stdin:
    number, at = line.split()
    while time.time() < float(at):
        pass
    try:
        with FolderLock(str(folder / number), f"{name}-{number}", wait=False):
            print("won", flush=True)
            sys.stdin.readline()
    except LockedError:
        print("refused", flush=True)
        sys.stdin.readline()
    except Exception as error:
        print(type(error).__name__, flush=True)
        sys.stdin.readline()
"""


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs this code, ended with the block."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def line_of(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def tell(running: subprocess.Popen[str], line: str) -> None:
    assert running.stdin is not None
    running.stdin.write(line + "\n")
    running.stdin.flush()


@contextmanager
def holder_of(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the folder's lock."""
    with process(HOLD, str(folder), "other") as running:
        assert line_of(running) == "held"
        yield running


def write_lock(folder: Path, **changes: Any) -> Path:
    """The lock file of another run, written by hand."""
    content = {"run": "other", "host": "another-host", "pids": [1234], "heartbeat": time()}
    path = folder / "_lock"
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


def dead_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def take(folder: Path, run: str = "mine", *, wait: bool = False, **options: Any) -> FolderLock:
    return FolderLock(str(folder), run, wait=wait, **options)


def test_a_lock_names_its_holder_and_goes_with_it(tmp_path: Path) -> None:
    with take(tmp_path / "new" / "folder", "run-1"):
        holder = read_holder(tmp_path / "new" / "folder" / "_lock")
        assert holder is not None
        assert (holder.run, holder.host, holder.pids) == ("run-1", socket.gethostname(), (os.getpid(),))
        assert abs(holder.heartbeat - time()) < 5
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["_lock-guard"]


def test_a_lock_goes_when_the_run_breaks(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), take(tmp_path):
        raise ZeroDivisionError
    assert read_holder(tmp_path / "_lock") is None


def test_another_process_is_refused_with_host_and_pid(tmp_path: Path) -> None:
    with holder_of(tmp_path) as other:
        with pytest.raises(LockedError) as raised, take(tmp_path):
            pass
        message = str(raised.value)
        assert f"host {socket.gethostname()}, pid {other.pid}" in message
        assert str(tmp_path) in message
        assert len(message.splitlines()) == 1


def test_a_refused_run_leaves_the_lock_alone(tmp_path: Path) -> None:
    with holder_of(tmp_path):
        before = (tmp_path / "_lock").read_text()
        with pytest.raises(LockedError), take(tmp_path):
            pass
        assert (tmp_path / "_lock").read_text() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["_lock", "_lock-guard"]


def test_a_run_waits_until_the_other_is_done(tmp_path: Path) -> None:
    notes: list[str] = []
    with holder_of(tmp_path) as other:
        Timer(0.8, tell, (other, "end")).start()
        began = monotonic()
        with take(tmp_path, wait=True, notify=notes.append) as lock:
            assert lock.waited
            assert monotonic() - began >= 0.7
    assert len(notes) == 1
    assert f"pid {other.pid}" in notes[0]


def test_a_run_that_need_not_wait_did_not(tmp_path: Path) -> None:
    with take(tmp_path, wait=True) as lock:
        assert not lock.waited


def test_other_folders_are_free(tmp_path: Path) -> None:
    with holder_of(tmp_path / "a"), take(tmp_path / "b"):
        assert (tmp_path / "a" / "_lock").exists()


def test_a_lock_of_an_ended_process_is_stale(tmp_path: Path) -> None:
    write_lock(tmp_path, host=socket.gethostname(), pids=[dead_pid()])
    with take(tmp_path, "mine"):
        holder = read_holder(tmp_path / "_lock")
        assert holder is not None
        assert holder.run == "mine"


@pytest.mark.parametrize("wait", [True, False])
def test_a_killed_holder_is_followed_at_once(tmp_path: Path, wait: bool) -> None:
    with holder_of(tmp_path) as other:
        other.kill()
        other.wait()
        began = monotonic()
        with take(tmp_path, wait=wait):
            assert monotonic() - began < 1


def test_a_helper_that_lives_on_holds_the_lock(tmp_path: Path) -> None:
    write_lock(tmp_path, host=socket.gethostname(), pids=[dead_pid(), os.getpid()])
    with pytest.raises(LockedError), take(tmp_path):
        pass


def test_helpers_are_named_in_the_lock(tmp_path: Path) -> None:
    with take(tmp_path) as lock:
        lock.add_process(4711)
        holder = read_holder(tmp_path / "_lock")
        assert holder is not None
        assert holder.pids == (os.getpid(), 4711)


@pytest.mark.parametrize(("age", "gone"), [(0, False), (290, False), (310, True)])
def test_another_host_is_believed_for_five_minutes(tmp_path: Path, age: float, gone: bool) -> None:
    write_lock(tmp_path, heartbeat=time() - age)
    if gone:
        with take(tmp_path):
            assert (tmp_path / "_lock").exists()
        return
    with pytest.raises(LockedError, match="host another-host, pid 1234"), take(tmp_path):
        pass


def test_a_process_of_another_host_is_not_looked_for_here(tmp_path: Path) -> None:
    write_lock(tmp_path, pids=[dead_pid()])
    with pytest.raises(LockedError), take(tmp_path):
        pass


def test_a_process_number_given_anew_does_not_hold_an_old_lock() -> None:
    assert Holder("other", socket.gethostname(), (os.getpid(),), time() - 3600).is_gone


def test_a_run_that_lost_its_lock_does_not_take_it_back(tmp_path: Path) -> None:
    with take(tmp_path) as lock:
        path = write_lock(tmp_path, run="next")
        lock.add_process(4711)
        holder = read_holder(path)
        assert holder is not None
        assert holder.run == "next"


def test_the_lock_of_a_run_that_took_over_is_left(tmp_path: Path) -> None:
    with take(tmp_path):
        path = write_lock(tmp_path, run="next")
    assert path.exists()


@pytest.mark.parametrize("content", ["", "{", "{}", "null", "7"])
@pytest.mark.parametrize(("age", "gone"), [(0, False), (310, True)])
def test_a_damaged_lock_is_a_lock_for_five_minutes(tmp_path: Path, content: str, age: float, gone: bool) -> None:
    (tmp_path / "_lock").write_text(content)
    os.utime(tmp_path / "_lock", (time() - age,) * 2)
    if gone:
        with take(tmp_path):
            assert read_holder(tmp_path / "_lock") is not None
        return
    with pytest.raises(LockedError, match="in use"), take(tmp_path):
        pass


def race(folder: Path, names: tuple[str, ...], rounds: int, stale: int | None) -> list[list[str]]:
    """What became of each racer in each round; with `stale`, each round begins with a lock of that ended process."""
    folder.mkdir()
    for number in range(rounds):
        (folder / str(number)).mkdir()
        if stale is not None:
            write_lock(folder / str(number), host=socket.gethostname(), pids=[stale])
    outcomes = []
    with process(RACE, names[0], str(folder)) as first, process(RACE, names[1], str(folder)) as second:
        for number in range(rounds):
            at = time() + (0.5 if number == 0 else 0.004)
            for racer in (first, second):
                tell(racer, f"{number} {at}")
            outcomes.append(sorted(line_of(racer) for racer in (first, second)))
            for racer in (first, second):
                tell(racer, "next")
    return outcomes


def test_of_two_processes_one_gets_a_free_lock(tmp_path: Path) -> None:
    outcomes = race(tmp_path / "race", ("a", "b"), 100, None)
    assert outcomes == [["refused", "won"]] * 100


def test_of_two_processes_one_gets_a_stale_lock(tmp_path: Path) -> None:
    outcomes = race(tmp_path / "race", ("a", "b"), 300, dead_pid())
    assert [outcome for outcome in outcomes if outcome != ["refused", "won"]] == []


def test_a_fresh_lock_is_never_moved_away_as_a_stale_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more runs come between a run's look at a stale lock and its rename: of the three, one gets it."""
    write_lock(tmp_path, host=socket.gethostname(), pids=[dead_pid()])
    rename, holders, others = os.rename, list[FolderLock](), list[Thread]()

    def enter(run: str) -> None:
        with suppress(LockedError):
            holders.append(take(tmp_path, run).__enter__())

    def let_in(run: str) -> None:
        others.append(Thread(target=enter, args=(run,), daemon=True))
        others[-1].start()
        others[-1].join(1.0)

    def rename_late(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "rename", rename)
        let_in("second")
        rename(source, target)
        let_in("third")

    monkeypatch.setattr(os, "rename", rename_late)
    try:
        enter("first")
        for other in others:
            other.join(5.0)
        assert len(holders) == 1
    finally:
        for holder in holders:
            holder.__exit__()
