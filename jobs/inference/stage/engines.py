"""The engines of an attempt: Spark, the actor process and signals, and work of threads on the main thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from untold.jobs.inference.backends.process import ProcessWhenNeeded
from untold.jobs.inputs.options import RunOptions
from untold.jobs.run.connectors import find_spark
from untold.jobs.run.outcome import Interrupts
from untold.jobs.run.session import begin_session, open_session
from untold.jobs.run.terminal import Display
from untold.jobs.settings.model import STAGE_NAMES, Settings, backend_for
from untold.udfs.stages import LOOKUPS


@dataclass(frozen=True)
class Engines:
    """The engines and options that all stages of one start share.

    Attributes:
        run: id of the start.
        options: the options of the command (docs/contract.md, "Runs, outputs, stores").
        answers: True if the start has its own process that sends requests.
    """

    spark: SparkSession
    display: Display
    interrupts: Interrupts
    process: ProcessWhenNeeded
    run: str
    options: RunOptions = field(default_factory=RunOptions)
    answers: bool = True

    def prepare(self) -> None:
        """Start the process that sends requests, because requests are certain. A spool needs no process."""
        if self.answers:
            self.process.open()


@dataclass(frozen=True)
class SharedEngines:
    """Spark and an actor process for several starts in sequence (`untold.Session`)."""

    spark: SparkSession
    process: ProcessWhenNeeded


@contextmanager
def open_engines(
    settings: Settings,
    display: Display,
    run: str,
    options: RunOptions,
    *,
    small: bool = False,
    asks: bool = False,
    stages: Collection[str] = STAGE_NAMES,
    held: SharedEngines | None = None,
) -> Iterator[Engines]:
    """Open Spark, and an actor process that starts with the first request and ends with the context.

    From here on, the first signal ends the run in order. Raises JavaError without a usable Java.

    Args:
        small: see `open_session`.
        asks: True if requests of these `stages` are certain. The process then starts first, because its Ray takes as
            long as Spark, unless all requests are in batches.
        held: existing engines to use and keep.
    """
    interrupts = Interrupts(display.note)
    process = ProcessWhenNeeded(settings.ray, interrupts) if held is None else held.process
    if held is not None:
        held.process.serve(interrupts)
    try:
        answers = not settings.llm.uses_spool
        first = asks and calls_endpoint(settings, stages)
        _announce_spark(display, " and Ray" if first else "")
        if first:
            process.open()
        spark = open_session(settings, small=small) if held is None else held.spark
        with interrupts.installed():
            yield Engines(spark, display, interrupts, process, run, options, answers)
    finally:
        process.close()


@contextmanager
def open_held(settings: Settings, display: Display, small: bool) -> Iterator[SharedEngines]:
    """Open Spark and an actor process in parallel, for several starts."""
    _announce_spark(display, " and Ray")
    begin_session(settings, small=small)
    process = ProcessWhenNeeded(settings.ray, Interrupts(display.note), kept=True)
    try:
        if calls_endpoint(settings):
            process.open()
        yield SharedEngines(open_session(settings, small=small), process)
    finally:
        process.end()


def _announce_spark(display: Display, more: str) -> None:
    """Show the version of Spark, and print a line for the Spark of a platform or an untested one."""
    spark = find_spark()
    if spark.is_newer or not spark.of_pip:
        display.note(f"{'warning: ' if spark.is_newer else ''}{spark}")
    display.status(f"starting Spark {spark.version}{more}")


def calls_endpoint(settings: Settings, stages: Collection[str] = STAGE_NAMES) -> bool:
    """Return True if the actor process may call the language model for one of these stages."""
    asked = set() if settings.llm.is_judge else set(stages) - set(LOOKUPS)
    return any(backend_for(settings, name) == "process" for name in asked)


Given = TypeVar("Given")


class MainThreadExecutor:
    """Run functions in parallel, once. The parts that they pass to `take` run one after another in the calling thread.

    Signals only reach the main thread, so code that a signal must end runs there.
    """

    def __init__(self) -> None:
        self._runner: Thread | None = None
        self._over = False
        # None for the end of a function
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def run(self, functions: Sequence[Callable[[], Given]], at_once: int) -> list[Given]:
        """Return the results of the functions in their order. Raises the first error without a wait for the others."""
        if min(at_once, len(functions)) <= 1:
            return [function() for function in functions]
        self._runner = current_thread()
        pool = ThreadPoolExecutor(at_once)
        running = [pool.submit(function) for function in functions]
        for one in running:
            one.add_done_callback(lambda _: self._waiting.put(None))
        try:
            while not all(one.done() for one in running):
                self._do_next()
                for one in running:
                    if one.done():
                        one.result()
            return [one.result() for one in running]
        finally:
            # The jobs of Spark for the other functions end with its session
            pool.shutdown(wait=False, cancel_futures=True)
            self._end()

    def take(self, part: Callable[[], Given]) -> Given:
        """Run a part of a function in its turn, and return its result or raise its error.

        Raises CancelledError if another function has failed.
        """
        if self._runner in (None, current_thread()):
            return part()
        turn: Future[Given] = Future()
        self._waiting.put((turn, part))
        if self._over:
            self._end()
        return turn.result()

    def _do_next(self) -> None:
        """Wait for the next part or for the end of a function, and run the part."""
        if (waiting := self._waiting.get()) is None:
            return
        turn, part = waiting
        try:
            turn.set_result(part())
        except BaseException as error:
            turn.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _end(self) -> None:
        """Cancel all parts that wait for their turn."""
        self._over = True
        while not self._waiting.empty():
            if (waiting := self._waiting.get()) is not None:
                waiting[0].cancel()
