from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.udfs.llm.askers import SETTINGS, STAGE
from untold.jobs.asking import process
from untold.jobs.asking.job import Job
from untold.jobs.asking.process import AnsweringError, AnsweringProcess
from untold.jobs.run.interrupts import Interrupts


def test_a_process_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENT_SECONDS", 1.0)
    answering = AnsweringProcess(None, Interrupts())
    os.kill(answering.pid, signal.SIGSTOP)
    job = Job(str(tmp_path), str(tmp_path), "run", STAGE, SETTINGS)
    try:
        with pytest.raises(AnsweringError, match=f"process {answering.pid} said nothing"):
            answering.answer(job, lambda _: None, lambda: False)
    finally:
        answering.close()
    assert not psutil.pid_exists(answering.pid)
