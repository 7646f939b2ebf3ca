"""The engines of an attempt: Spark, the actor process and signals, and work of threads on the main thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from untold.jobs.inference.backends.process import KeptProcess, ProcessWhenNeeded
from untold.jobs.run.outcome import Interrupts
from untold.jobs.run.session import begin_session, open_session
from untold.jobs.run.terminal import Display
from untold.jobs.settings.model import STAGE_NAMES, Settings, backend_for
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
class SharedEngines:
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
    held: SharedEngines | None = None,
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
        answers = not settings.llm.uses_spool
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
def open_held(settings: Settings, display: Display, small: bool) -> Iterator[SharedEngines]:
    """Spark and an answering process for several starts, started side by side."""
    display.status("starting Java and Ray")
    begin_session(settings, small=small)
    process = KeptProcess(settings.ray, Interrupts(display.note))
    try:
        if calls_endpoint(settings):
            process.open()
        yield SharedEngines(open_session(settings, small=small), process)
    finally:
        process.end()


def calls_endpoint(settings: Settings, stages: Collection[str] = STAGE_NAMES) -> bool:
    """Whether the process beside the start is likely to call the language model for one of these stages."""
    asked = set() if settings.llm.is_judge else set(stages) - set(LOOKUPS)
    return any(backend_for(settings, name) == "process" for name in asked)


Given = TypeVar("Given")


class MainThreadExecutor:
    """Runs functions side by side, once. What they hand to `take` is done one after the other, in the calling thread.

    Signals reach the main thread alone, so whatever a signal is to end belongs there.
    """

    def __init__(self) -> None:
        self._runner: Thread | None = None
        self._over = False
        # None: a function has ended
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def run(self, functions: Sequence[Callable[[], Given]], at_once: int) -> list[Given]:
        """What the functions give, in their order. Raises what the first of them raises, without waiting for others."""
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
            # What Spark is at for the others ends with its session
            pool.shutdown(wait=False, cancel_futures=True)
            self._end()

    def take(self, part: Callable[[], Given]) -> Given:
        """Does a part of a function in its turn, and gives or raises what that does.

        Raises CancelledError where one of the functions has failed: nothing is done for the others any more.
        """
        if self._runner in (None, current_thread()):
            return part()
        turn: Future[Given] = Future()
        self._waiting.put((turn, part))
        if self._over:
            self._end()
        return turn.result()

    def _do_next(self) -> None:
        """Waits for a part that is handed over, or for the end of a function, and does the part."""
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
        """Lets nobody wait for a turn that does not come."""
        self._over = True
        while not self._waiting.empty():
            if (waiting := self._waiting.get()) is not None:
                waiting[0].cancel()
