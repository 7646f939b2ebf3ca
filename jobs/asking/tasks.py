"""Stages that models within Spark's tasks answer: run to their end, watched, and counted as an answering process is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from untold.jobs.asking.process import AnsweringError
from untold.jobs.run.refusals import explain, root_cause
from untold.jobs.run.session import spark_schema, task_slots
from untold.udfs.llm.calls import Tally
from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.tasks import COUNTS, answer_in_task
from untold.udfs.storage import Place

# Rows of a task: half a minute to a few minutes of work, so that the last ones do not run alone for long
TASK_ROWS = 2000
LOOK_SECONDS = 0.5
# Reading the footers of all new files costs more than looking whether the work has ended
COUNT_SECONDS = 5.0
# What Python workers raise reaches the driver as text, with a traceback around it
_ERROR = re.compile(r"LocalModelFileError: ([^\n]+)")


class TaskRun:
    """One answering of a stage's requests by tasks."""

    def __init__(self, spark: SparkSession, stage: Stage, requests: str, folder: str, run: str, flush: float) -> None:
        self._spark, self._stage, self._folder, self._run = spark, stage, folder, run
        self._requests, self._flush = requests, flush
        self._tag = f"untold-{uuid4().hex}"
        self._error: BaseException | None = None
        self._counted: dict[str, int] = {}
        # What an earlier asking of the stage in this start wrote
        self._earlier = 0
        # Rows and failures, once all tasks have ended
        self._done: tuple[int, int] | None = None

    def answer(self, total: int, show: Callable[[Mapping[str, Any]], None], stopped: Callable[[], bool]) -> str:
        """Answers them all, or ends early where `stopped`: `finished` or `interrupted`; progress goes to `show`.

        Raises AnsweringError in one line where a model cannot be used on a worker, or the tasks fail otherwise.
        """
        Place(self._folder).make_folder()
        self._earlier = self._rows_written()
        began = told = monotonic()
        thread = InheritableThread(target=self._work, args=(total,), session=self._spark)
        thread.start()
        cancelled = False
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            if stopped() and not cancelled:
                cancelled = True
                self._spark.interruptTag(self._tag)
            if monotonic() - told >= COUNT_SECONDS:
                show(self._progress(total, began))
                told = monotonic()
        show(self._progress(total, began))
        if cancelled:
            return "interrupted"
        if self._error is not None:
            raise AnsweringError(self._explain(self._error)) from self._error
        return "finished"

    def _work(self, total: int) -> None:
        """The Spark job, in a thread of its own, so that signals are heard meanwhile."""
        try:
            self._spark.addTag(self._tag)
            frame = self._spark.read.parquet(self._requests)
            # Files of requests are small and would all be one task's; each core should have one
            tasks = max(-(-total // TASK_ROWS), min(task_slots(self._spark), total))
            answer = partial(answer_in_task, stage=self._stage, folder=self._folder, run=self._run, flush=self._flush)
            counts = frame.repartition(tasks).mapInArrow(answer, spark_schema(COUNTS)).collect()
            self._done = sum(row["done"] for row in counts), sum(row["failed"] for row in counts)
        except BaseException as error:
            self._error = error

    def _progress(self, total: int, began: float) -> dict[str, Any]:
        """How far it is, by the files written so far, as the answering process tells it."""
        # Files count a task that ran twice twice; until the end that is near enough
        done, failed = self._done or (min(self._rows_written() - self._earlier, total), 0)
        tally = Tally(taken=total, done=done, failed=failed)
        return {"stage": self._stage.name, "total": total, "seconds": monotonic() - began, "tally": asdict(tally)}

    def _rows_written(self) -> int:
        """The rows in this run's files; the footer of each is read once."""
        prefix = f"{self._run}-{self._stage.name}-task-"
        for entry in Place(self._folder).entries():
            name = entry.name
            if name.startswith(prefix) and name.endswith(".parquet") and name not in self._counted:
                with entry.place.open() as file:
                    self._counted[name] = pq.read_metadata(file).num_rows
        return sum(self._counted.values())

    def _explain(self, error: BaseException) -> str:
        """One line: what a model's files lack, else what a disk refused or the worker said."""
        found = _ERROR.search(str(error))
        if found:
            return found[1].strip()
        return f"{self._stage.name} failed within Spark's tasks ({explain(error) or root_cause(error)})"
