"""Whole commands of `untold` in this process: one Spark session, one Ray and one answering process for many runs."""

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
    """`untold` in this process: gives what `harness.score` gives, without what a JVM and a Ray of its own cost.

    Not for what only a process of its own can show: kills, signals, how the command itself ends, locks between
    processes, limits over jobs.
    """

    def __init__(self, spark: SparkSession, cluster: SharedCluster) -> None:
        self._spark, self._cluster = spark, cluster
        self._kept: _KeptProcess | None = None

    def __call__(self, *given: Any, environment: Mapping[str, str] | None = None, **options: Any) -> Ended:
        """Runs `untold score`, or another command, to its end; takes what `words_of` takes."""
        return self.command(words_of(*given, **options), environment)

    def command(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Ended:
        """Runs these words of a command line. It reads the `environment`; its actors have that of the cluster."""
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
        """What asks the stages of these names under the settings; steps and store lie in the folder."""
        settings = settings.model_copy(update={"ray": RaySettings(address=self._cluster.address)})
        interrupts, display = Interrupts(), Display(StringIO())
        answering = ProcessWhenNeeded(settings.ray, interrupts)
        # An id of its own, as each start has: it is in the names of all files that it writes
        engines = Engines(self._spark, display, interrupts, answering, f"run-{uuid4().hex}")
        stages = {name: bind_stage(name, settings) for name in names}
        workspace = Workspace(self._spark, str(folder / f"steps-{monotonic()}"))
        endpoint = RunEndpoint(settings, embedded=False, wait=True, notify=display.note)
        with patch.dict(os.environ, SHARED_RAY), patch.object(process, "ActorProcess", self._process):
            yield StageRunner(engines, settings, stages, endpoint, workspace, str(folder / "store"))
        self._cluster.forget()

    @contextmanager
    def answering(self, count: int) -> Iterator[list[ActorProcess]]:
        """So many answering processes on the one cluster, as so many runs have."""
        with patch.dict(os.environ, SHARED_RAY):
            processes = [ActorProcess(RaySettings(address=self._cluster.address), Interrupts()) for _ in range(count)]
        try:
            yield processes
        finally:
            for one in processes:
                one.close()
            self._cluster.forget()

    def close(self) -> None:
        """Ends the answering process and its actors; the next run starts another."""
        if self._kept is not None:
            self._kept.end()
        self._kept = None

    def _process(self, ray: RaySettings, interrupts: Interrupts) -> ActorProcess:
        """The process of the run before, where that ended well; it begins each job with settings of its own."""
        if self._kept is None or not self._kept.usable:
            self.close()
            self._kept = _KeptProcess(ray, interrupts)
        self._kept.serve(interrupts)
        return self._kept

    @contextmanager
    def _conf_kept(self) -> Iterator[None]:
        """A run sets its Spark settings on the session that there is; the next test finds its own again."""
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
    """An answering process that outlives the run which started it; one that broke or was told to stop does not."""

    def serve(self, interrupts: Interrupts) -> None:
        self.interrupts = interrupts

    def leave(self) -> None:
        """The next run has more for it."""

    def close(self) -> None:
        """The next run has more for it."""

    def end(self) -> None:
        """Ends it, as its run would have."""
        super().leave()
        super().close()


def _exit_code(words: Sequence[str]) -> int:
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Gives SIGINT and SIGTERM back to who had them: a run takes them over for its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
