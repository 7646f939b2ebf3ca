from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.udfs.llm.askers import SETTINGS, STAGE
from untold.jobs.inference.backends import actor_pool, process
from untold.jobs.inference.backends.job import Job
from untold.jobs.inference.backends.process import ActorProcess, ActorProcessError, ProcessWhenNeeded, begin_process
from untold.jobs.run.outcome import Interrupts
from untold.jobs.settings.model import RaySettings
from untold.udfs.errors import UserError
from untold.udfs.llm.calls import CallContext


def test_a_silent_process_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENT_SECONDS", 1.0)
    begin_process(RaySettings())
    ((_, begun),) = process._begun
    interrupts = Interrupts()
    answering = ProcessWhenNeeded(RaySettings(), interrupts).open()
    assert (answering is begun, answering.interrupts is interrupts, process._begun) == (True, True, [])
    os.kill(answering.pid, signal.SIGSTOP)
    job = Job(str(tmp_path), str(tmp_path), "run", CallContext(STAGE), SETTINGS)
    try:
        with pytest.raises(ActorProcessError, match=f"process {answering.pid} reported nothing"):
            answering.answer(job, lambda _: None, lambda: False)
    finally:
        answering.close()
    assert not psutil.pid_exists(answering.pid)


def test_an_address_of_a_client_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(UserError, match=r"^a ray:// address needs grpc: pip install 'untold\[cluster\]'$"):
        ActorProcess(RaySettings(address="ray://head:10001"), Interrupts())


def test_a_ray_that_a_busy_machine_does_not_start_in_time_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [Exception("The current node timed out during startup")] * (actor_pool.STARTS - 1)
    started: list[str] = []

    def init(address: str, **_: object) -> None:
        started.append(address)
        given = actor_pool.parameter.RayParams()
        assert (given.no_monitor, given.include_log_monitor) == (True, False)
        if failing:
            raise failing.pop()

    monkeypatch.setattr(actor_pool.ray, "init", init)
    monkeypatch.setattr(actor_pool, "_keep_to_loopback", lambda: None)
    actor_pool.start_ray(None)
    assert started == ["local"] * actor_pool.STARTS
    assert not actor_pool.parameter.RayParams().no_monitor
    failing.extend([Exception("The current node timed out during startup")] * actor_pool.STARTS)
    with pytest.raises(Exception, match="timed out"):
        actor_pool.start_ray(None)
