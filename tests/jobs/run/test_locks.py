from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from threading import Timer
from time import time
from typing import Any

import pytest

from untold.jobs.run import locks
from untold.jobs.run.locks import FolderLock, Holder, LockedError, LostLockError, Process, read_holder, this_process

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = Process("another-host", "another-boot", "pid:[1]", 1234, "99")
CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
HOLD = """
import sys
from untold.jobs.run.locks import FolderLock, LockedError
try:
    with FolderLock(sys.argv[1], sys.argv[2], wait=sys.argv[3:] == ["wait"]):
        print("held", flush=True)
        sys.stdin.readline()
except LockedError as error:
    print(error, flush=True)
"""
HOLD_WITH_HELPER = """
import subprocess, sys
from untold.jobs.run.locks import FolderLock
with FolderLock(sys.argv[1], "other", wait=False) as lock:
    helper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=int(sys.argv[2]), stdout=subprocess.DEVNULL)
    lock.add_process(helper.pid)
    print(helper.pid, flush=True)
    sys.stdin.readline()
"""
RACE = """
import os, sys, time
from pathlib import Path
from untold.jobs.run.locks import FolderLock, LockedError
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
def process(
    code: str, *arguments: str, within: Sequence[str] = (), pass_fds: Sequence[int] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process that runs this code. It ends with the block."""
    command = [*within, sys.executable, "-c", code, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, pass_fds=pass_fds) as running:
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
def holder_of(folder: Path, *, within: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the lock of the folder."""
    with process(HOLD, str(folder), "other", within=within) as running:
        assert line_of(running) == "held"
        yield running


def write_lock(folder: Path, holder: Process = ELSEWHERE, *, run: str = "other", age: float = 0.0) -> Path:
    """Write the lock file of another run with an age in seconds."""
    path = folder / "_lock"
    path.write_text(json.dumps(asdict(Holder(run, holder))), encoding="utf-8")
    os.utime(path, (time() - age,) * 2)
    return path


def dead_process() -> Process:
    """Return a process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ending:
        return this_process(ending.pid)


def take(folder: Path, run: str = "mine", *, wait: bool = False, **options: Any) -> FolderLock:
    return FolderLock(str(folder), run, wait=wait, **options)


@pytest.fixture
def container() -> Sequence[str]:
    """Return the command that runs a process in its own PID namespace, like a container."""
    if shutil.which("unshare") is None or subprocess.run([*CONTAINER, "true"], check=False).returncode:
        pytest.skip("this machine does not permit a PID namespace")
    return CONTAINER


def test_a_lock_names_its_holder_and_is_removed_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with take(folder, "run-1"):
        assert read_holder(folder / "_lock") == Holder("run-1", this_process())
    assert [path.name for path in folder.iterdir()] == ["_lock-held"]


def test_a_lock_is_removed_if_the_run_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), take(tmp_path):
        raise ZeroDivisionError
    with take(tmp_path, "next") as lock:
        assert not lock.lost


def test_another_process_is_refused_with_host_and_pid(tmp_path: Path) -> None:
    with holder_of(tmp_path) as other:
        with pytest.raises(LockedError) as raised, take(tmp_path):
            pass
        message = str(raised.value)
        assert f"host {socket.gethostname()}, pid {other.pid}" in message
        assert str(tmp_path) in message
        assert len(message.splitlines()) == 1


def test_a_refused_run_does_not_change_the_lock(tmp_path: Path) -> None:
    with holder_of(tmp_path):
        before = (tmp_path / "_lock").read_text()
        with pytest.raises(LockedError), take(tmp_path):
            pass
        assert (tmp_path / "_lock").read_text() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["_lock", "_lock-held"]


def test_a_run_waits_until_the_other_is_done(tmp_path: Path) -> None:
    notes: list[str] = []
    with holder_of(tmp_path) as other:
        Timer(0.8, tell, (other, "end")).start()
        with take(tmp_path, wait=True, notify=notes.append) as lock:
            assert lock.waited
            assert other.wait(10) == 0
    assert len(notes) == 1
    assert f"pid {other.pid}" in notes[0]


def test_a_run_that_need_not_wait_did_not(tmp_path: Path) -> None:
    with take(tmp_path, wait=True) as lock:
        assert not lock.waited


def test_other_folders_are_free(tmp_path: Path) -> None:
    with holder_of(tmp_path / "a"), take(tmp_path / "b"):
        assert (tmp_path / "a" / "_lock").exists()


def test_a_lock_of_an_ended_process_is_free(tmp_path: Path) -> None:
    write_lock(tmp_path, dead_process())
    with take(tmp_path, "mine"):
        assert read_holder(tmp_path / "_lock") == Holder("mine", this_process())


@pytest.mark.parametrize("wait", [True, False])
def test_a_killed_holder_is_followed(tmp_path: Path, wait: bool) -> None:
    with holder_of(tmp_path) as other:
        other.kill()
        other.wait()
        with take(tmp_path, wait=wait) as lock:
            assert not lock.waited


def test_a_live_process_keeps_its_lock_however_old_its_heartbeat(tmp_path: Path) -> None:
    with holder_of(tmp_path) as other:
        os.utime(tmp_path / "_lock", (time() - 7200,) * 2)
        with pytest.raises(LockedError, match=f"pid {other.pid}"), take(tmp_path):
            pass


def test_a_live_process_keeps_its_lock_without_the_file_that_names_it(tmp_path: Path) -> None:
    with holder_of(tmp_path):
        (tmp_path / "_lock").unlink()
        with pytest.raises(LockedError, match="in use"), take(tmp_path):
            pass


def test_a_container_of_this_machine_does_not_take_the_lock(tmp_path: Path, container: Sequence[str]) -> None:
    with holder_of(tmp_path) as other:
        os.utime(tmp_path / "_lock", (time() - 7200,) * 2)
        with process(HOLD, str(tmp_path), "inner", within=container) as inner:
            assert f"pid {other.pid} of another container" in line_of(inner)


def test_the_lock_of_a_container_is_kept_until_the_container_ends(tmp_path: Path, container: Sequence[str]) -> None:
    with holder_of(tmp_path, within=container) as other:
        with pytest.raises(LockedError, match="of another container"), take(tmp_path):
            pass
        other.kill()
        with take(tmp_path, wait=True) as lock:
            assert not lock.lost


def test_a_disk_without_locks_uses_the_process_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderLock, "_lock_system", lambda _: None)
    write_lock(tmp_path, this_process(), age=7200)
    with pytest.raises(LockedError), take(tmp_path):
        pass
    write_lock(tmp_path, replace(this_process(), started="another time"))
    with take(tmp_path) as lock:
        assert not lock.lost


def test_the_helper_of_a_killed_run_gets_time_and_holds_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    try:
        with process(HOLD_WITH_HELPER, str(tmp_path), str(reading), pass_fds=[reading]) as other:
            helper = this_process(int(line_of(other)))
            other.kill()
            other.wait()
            monkeypatch.setattr(locks, "HELPER_SECONDS", 0.2)
            with take(tmp_path):
                assert helper.is_alive
            write_lock(tmp_path, dead_process())
            (tmp_path / "_lock").write_text(json.dumps(asdict(Holder("other", dead_process(), (helper,)))))
            monkeypatch.setattr(locks, "HELPER_SECONDS", 60.0)
            Timer(0.5, os.close, (writing,)).start()
            with take(tmp_path):
                assert not helper.is_alive
    finally:
        os.close(reading)


@pytest.mark.parametrize(("age", "gone"), [(0, False), (290, False), (310, True)])
def test_another_host_is_believed_for_five_minutes(tmp_path: Path, age: float, gone: bool) -> None:
    write_lock(tmp_path, age=age)
    if gone:
        with take(tmp_path) as lock:
            assert not lock.lost
        return
    with pytest.raises(LockedError, match="host another-host, pid 1234"), take(tmp_path):
        pass


@pytest.mark.parametrize("same", [{"host": socket.gethostname()}, {"namespace": this_process().namespace}])
def test_another_machine_of_the_same_name_is_another_machine(tmp_path: Path, same: dict[str, str]) -> None:
    write_lock(tmp_path, replace(dead_process(), boot="another-boot", **same))
    with pytest.raises(LockedError), take(tmp_path):
        pass


def test_clocks_of_hosts_may_differ(tmp_path: Path) -> None:
    path = write_lock(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"heartbeat": time() - 7200}))
    with pytest.raises(LockedError), take(tmp_path):
        pass


def test_a_reused_process_id_is_another_process() -> None:
    assert this_process().is_alive
    assert not replace(this_process(), started="another time").is_alive
    assert not dead_process().is_alive
    assert replace(this_process(), boot="another-boot").is_alive is None
    assert replace(this_process(), namespace="another").is_alive is None


def test_a_run_notices_at_once_that_another_took_over(tmp_path: Path) -> None:
    with take(tmp_path) as lock:
        lock.check()
        path = write_lock(tmp_path, run="next")
        with pytest.raises(LostLockError, match="took over"):
            lock.check()
        lock.add_process(4711)
        assert read_holder(path) == Holder("next", ELSEWHERE)
        path.unlink()
        assert lock.lost


def test_a_run_whose_follower_has_ended_has_lost_its_lock_too(tmp_path: Path) -> None:
    with take(tmp_path) as lock:
        (tmp_path / "_lock").unlink()
        assert lock.lost


def test_the_lock_of_a_run_that_took_over_is_kept(tmp_path: Path) -> None:
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


def race(folder: Path, names: tuple[str, ...], rounds: int, stale: Process | None) -> list[list[str]]:
    """Run the racers and return their results in each round.

    With `stale`, each round starts with a lock of that dead process.
    """
    folder.mkdir()
    for number in range(rounds):
        (folder / str(number)).mkdir()
        if stale is not None:
            write_lock(folder / str(number), stale)
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


def test_one_of_two_processes_gets_a_free_lock(tmp_path: Path) -> None:
    outcomes = race(tmp_path / "race", ("a", "b"), 100, None)
    assert outcomes == [["refused", "won"]] * 100


@pytest.mark.gate
def test_one_of_two_processes_gets_a_stale_lock(tmp_path: Path) -> None:
    outcomes = race(tmp_path / "race", ("a", "b"), 300, dead_process())
    assert [outcome for outcome in outcomes if outcome != ["refused", "won"]] == []
