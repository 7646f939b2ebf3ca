"""What a start of a run works with: Spark, the answering process, and the signals that end both in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from untold.jobs.asking.process import ProcessWhenNeeded
from untold.jobs.run.interrupts import Interrupts
from untold.jobs.run.progress import Display
from untold.jobs.run.session import open_session
from untold.jobs.settings.model import Settings


@dataclass(frozen=True)
class Engines:
    """What all stages of one start share. `run` is its id, `wait` whether it waits for another run on its store.

    `retry_failed`: whether what failed for a lasting reason is asked again (docs/contract.md, "Runs, outputs, stores").
    """

    spark: SparkSession
    display: Display
    interrupts: Interrupts
    process: ProcessWhenNeeded
    run: str
    wait: bool = True
    retry_failed: bool = False


@contextmanager
def open_engines(
    settings: Settings,
    display: Display,
    run: str,
    *,
    wait: bool = True,
    retry_failed: bool = False,
    small: bool = False,
    asks: bool = False,
) -> Iterator[Engines]:
    """Spark, and an answering process that starts when it is first needed and ends with the context.

    `small`: as `open_session` takes it. `asks`: something is sure to be asked, so that the process, whose Ray takes as
    long to start as Spark does, is first of all. From here on the first signal asks the run to end in order. Raises
    JavaError where no usable Java is found.
    """
    interrupts = Interrupts()
    process = ProcessWhenNeeded(settings.ray.address, interrupts)
    try:
        if asks:
            process.open()
        spark = open_session(settings, small=small)
        interrupts.install()
        yield Engines(spark, display, interrupts, process, run, wait, retry_failed)
    finally:
        process.close()
