"""What a start of a run works with: Spark, the answering process, and the signals that end both in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from untold.jobs.asking.process import KeptProcess, ProcessWhenNeeded
from untold.jobs.run.interrupts import Interrupts
from untold.jobs.run.progress import Display
from untold.jobs.run.session import begin_session, open_session
from untold.jobs.settings.model import STAGE_NAMES, Settings, delivery_for
from untold.udfs.stages import LOOKUPS


@dataclass(frozen=True)
class Engines:
    """What all stages of one start share. `run` is its id, `wait` whether it waits for another run on its store.

    `retry_failed`: whether what failed for a lasting reason is asked again (docs/contract.md, "Runs, outputs, stores").
    `answers`: whether this start has requests answered by its own process. `lock`: whether it locks its store. `poll`:
    whether it waits for batches.
    """

    spark: SparkSession
    display: Display
    interrupts: Interrupts
    process: ProcessWhenNeeded
    run: str
    wait: bool = True
    retry_failed: bool = False
    answers: bool = True
    lock: bool = True
    poll: bool = True

    def prepare(self) -> None:
        """Starts the answering process, unless a spool takes the requests: something is sure to be asked."""
        if self.answers:
            self.process.open()


@dataclass(frozen=True)
class Held:
    """Spark and an answering process that several starts use, one after the other (`untold.Session`)."""

    spark: SparkSession
    process: KeptProcess


@contextmanager
def open_engines(
    settings: Settings,
    display: Display,
    run: str,
    *,
    wait: bool = True,
    lock: bool = True,
    retry_failed: bool = False,
    poll: bool = True,
    small: bool = False,
    asks: bool = False,
    stages: Collection[str] = STAGE_NAMES,
    held: Held | None = None,
) -> Iterator[Engines]:
    """Spark, and an answering process that starts when it is first needed and ends with the context.

    `small`: as `open_session` takes it. `asks`: something is sure to be asked of these `stages`, so that the process,
    whose Ray takes as long to start as Spark does, is first of all, unless batches answer all of them. `held`: what is
    used instead, and stays. From here on the first signal asks the run to end in order. Raises JavaError where no
    usable Java is found.
    """
    interrupts = Interrupts(display.note)
    process = ProcessWhenNeeded(settings.ray, interrupts) if held is None else held.process
    if held is not None:
        held.process.serve(interrupts)
    try:
        answers = settings.llm.answering == "process"
        first = asks and calls_endpoint(settings, stages)
        display.status("starting Java and Ray" if first else "starting Java")
        if first:
            process.open()
        spark = open_session(settings, small=small) if held is None else held.spark
        with interrupts.installed():
            yield Engines(spark, display, interrupts, process, run, wait, retry_failed, answers, lock, poll)
    finally:
        process.close()


@contextmanager
def open_held(settings: Settings, display: Display, small: bool) -> Iterator[Held]:
    """Spark and an answering process for several starts, started side by side."""
    display.status("starting Java and Ray")
    begin_session(settings, small=small)
    process = KeptProcess(settings.ray, Interrupts(display.note))
    try:
        if calls_endpoint(settings):
            process.open()
        yield Held(open_session(settings, small=small), process)
    finally:
        process.end()


def calls_endpoint(settings: Settings, stages: Collection[str] = STAGE_NAMES) -> bool:
    """Whether the process beside the start is likely to call the language model for one of these stages."""
    asked = set(stages) - set(LOOKUPS)
    return settings.llm.answering == "process" and any(delivery_for(settings, name) == "calls" for name in asked)
