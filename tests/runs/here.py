"""Run commands of `untold` in this process. The runs share one Spark session, one Ray cluster and one actor process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from pyspark.sql import SparkSession

from tests.runs.cluster import SHARED_RAY, SharedCluster
from tests.runs.harness import Ended, clean_environment, words_of
from untold.jobs.cli.main import main
from untold.jobs.inference.backends import process
from untold.jobs.inference.backends.process import ActorProcess, ProcessWhenNeeded
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import RunEndpoint
from untold.jobs.inference.stage.engines import Engines
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.run.folders import Workspace
from untold.jobs.run.outcome import Interrupts
from untold.jobs.run.session import SHOW_JVM
from untold.jobs.run.terminal import Display
from untold.jobs.settings.model import RaySettings, Settings


class RunHere:
    """Run `untold` in this process. The result is the same as in `harness.score`, without a new JVM and a new Ray.

    This does not work for tests that need a separate process: kills, signals, the end of the command, locks between
    processes, and limits of a Ray job.
    """

    def __init__(self, spark: SparkSession, cluster: SharedCluster) -> None:
        self._spark, self._cluster = spark, cluster
        self._kept: _KeptProcess | None = None

    def __call__(self, *given: Any, environment: Mapping[str, str] | None = None, **options: Any) -> Ended:
        """Run `untold score`, or another command, to its end. The arguments are the same as in `words_of`."""
        return self.command(words_of(*given, **options), environment)

    def command(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Ended:
        """Run a command line with this `environment`. The actors use the environment of the cluster."""
        out, err, began = StringIO(), StringIO(), monotonic()
        address = {"UNTOLD_RAY__ADDRESS": self._cluster.address, **SHARED_RAY}
        known = {**clean_environment(), **address, **(environment or {})}
        with _signals_kept(), self._conf_kept(), patch.dict(os.environ, known, clear=True):
            with patch.object(process, "ActorProcess", self._process), redirect_stdout(out), redirect_stderr(err):
                code = _exit_code(words)
        SHOW_JVM.clear()
        self._cluster.forget()
        return Ended(code, out.getvalue(), err.getvalue(), monotonic() - began)

    @contextmanager
    def runner(self, folder: Path, settings: Settings, *names: str) -> Iterator[StageRunner]:
        """Yield a runner of these stages with the settings. The steps and the store are in the folder."""
        settings = settings.model_copy(update={"ray": RaySettings(address=self._cluster.address)})
        interrupts, display = Interrupts(), Display(StringIO())
        answering = ProcessWhenNeeded(settings.ray, interrupts)
        # Each run has a unique id, because the id is in the names of all of its files
        engines = Engines(self._spark, display, interrupts, answering, f"run-{uuid4().hex}")
        stages = {name: bind_stage(name, settings) for name in names}
        workspace = Workspace(self._spark, str(folder / f"steps-{monotonic()}"))
        endpoint = RunEndpoint(settings, embedded=False, wait=True, notify=display.note)
        with patch.dict(os.environ, SHARED_RAY), patch.object(process, "ActorProcess", self._process):
            yield StageRunner(engines, settings, stages, endpoint, workspace, str(folder / "store"))
        self._cluster.forget()

    @contextmanager
    def answering(self, count: int) -> Iterator[list[ActorProcess]]:
        """Start the given number of actor processes on the same cluster, as for several runs."""
        with patch.dict(os.environ, SHARED_RAY):
            processes = [ActorProcess(RaySettings(address=self._cluster.address), Interrupts()) for _ in range(count)]
        try:
            yield processes
        finally:
            for one in processes:
                one.close()
            self._cluster.forget()

    def close(self) -> None:
        """Stop the actor process and its actors. The next run starts a new process."""
        if self._kept is not None:
            self._kept.end()
        self._kept = None

    def _process(self, ray: RaySettings, interrupts: Interrupts) -> ActorProcess:
        """Return the process of the previous run if it ended well. Each job in the process has its own settings."""
        if self._kept is None or not self._kept.usable:
            self.close()
            self._kept = _KeptProcess(ray, interrupts)
        self._kept.serve(interrupts)
        return self._kept

    @contextmanager
    def _conf_kept(self) -> Iterator[None]:
        """Restore the Spark settings of the session after a run, because each run changes them."""
        before = dict(self._spark.conf.getAll)
        try:
            yield
        finally:
            for name in {name for name, _ in dict(self._spark.conf.getAll).items() ^ before.items()}:
                if name not in before:
                    self._spark.conf.unset(name)
                elif self._spark.conf.isModifiable(name):
                    self._spark.conf.set(name, before[name])


class _KeptProcess(ActorProcess):
    """An actor process that outlives its run, unless the process failed or was stopped."""

    def serve(self, interrupts: Interrupts) -> None:
        self.interrupts = interrupts

    def leave(self) -> None:
        """Do nothing, because the next run uses the process."""

    def close(self) -> None:
        """Do nothing, because the next run uses the process."""

    def end(self) -> None:
        """Stop the process in the same way as a run."""
        super().leave()
        super().close()


def _exit_code(words: Sequence[str]) -> int:
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM after a run, because each run replaces them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
