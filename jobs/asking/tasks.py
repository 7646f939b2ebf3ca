"""Stages that models within Spark's tasks answer: run to their end, watched, and counted as an answering process is."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
from pyspark import InheritableThread

from untold.jobs.asking.answerers import Unanswered, shown
from untold.jobs.asking.calling import call_settings
from untold.jobs.asking.engines import Engines
from untold.jobs.asking.job import Outcome
from untold.jobs.asking.process import AnsweringError
from untold.jobs.run.refusals import explain, root_cause
from untold.jobs.run.session import read_parquet, spark_schema, task_slots
from untold.jobs.run.workspace import Workspace
from untold.jobs.settings.model import Settings
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.usage import Usage
from untold.udfs.retrieval.tasks import COUNTS, answer_in_task
from untold.udfs.storage import Place

# Rows of a task: half a minute to a few minutes of work, so that the last ones do not run alone for long
TASK_ROWS = 2000
LOOK_SECONDS = 0.5
# Reading the footers of all new files costs more than looking whether the work has ended
COUNT_SECONDS = 5.0
# What Python workers raise reaches the driver as text, with a traceback around it
_ERROR = re.compile(r"LocalModelFileError: ([^\n]+)")


@dataclass
class TaskAnswerer:
    """Has requests answered by local models within Spark's tasks. Nothing is called, and nothing is paid for."""

    engines: Engines
    settings: Settings
    workspace: Workspace

    def prepare(self, stage: Stage) -> None:
        """There is nothing to start."""

    def answer(self, unanswered: Unanswered) -> Outcome:
        """By one Spark job, which an interrupt or a lost lock cancels."""
        requests = self.workspace.path(f"{unanswered.stage.name}-units")
        unanswered.write(self.settings, requests)
        with shown(self.engines, unanswered.stage):
            run = _TaskRun(self.engines, self.settings, unanswered, requests)
            finished = run.answer()
        if not finished and unanswered.lock is not None:
            unanswered.lock.check()
        return Outcome(None if finished else "interrupted")


class _TaskRun:
    """One answering of a stage's requests by tasks."""

    def __init__(self, engines: Engines, settings: Settings, unanswered: Unanswered, requests: str) -> None:
        self._engines, self._spark, self._run = engines, engines.spark, engines.run
        self._unanswered, self._stage, self._folder = unanswered, unanswered.stage, unanswered.folder
        self._requests = requests
        self._flush = call_settings(settings, self._stage, "", self._folder).flush
        self._tag = f"untold-{uuid4().hex}"
        self._error: BaseException | None = None
        self._counted: dict[str, int] = {}
        # What an earlier asking of the stage in this start wrote
        self._earlier = 0
        # Rows and failures, once all tasks have ended
        self._done: tuple[int, int] | None = None

    def answer(self) -> bool:
        """Answers all, or ends early; whether it finished.

        Raises AnsweringError in one line where a model cannot be used on a worker, or the tasks fail otherwise.
        """
        Place(self._folder).make_folder()
        self._earlier = self._rows_written()
        total, show = self._unanswered.count, self._unanswered.show
        began = told = monotonic()
        thread = InheritableThread(target=self._work, args=(total,), session=self._spark)
        thread.start()
        cancelled = False
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            if not cancelled and (self._engines.interrupts.requested or self._unanswered.is_lost()):
                cancelled = True
                self._spark.interruptTag(self._tag)
            if monotonic() - told >= COUNT_SECONDS:
                show(self._progress(total, began))
                told = monotonic()
        show(self._progress(total, began))
        if self._error is not None and not cancelled:
            raise AnsweringError(self._explain(self._error)) from self._error
        return not cancelled

    def _work(self, total: int) -> None:
        """The Spark job, in a thread of its own, so that signals are heard meanwhile."""
        try:
            self._spark.addTag(self._tag)
            frame = read_parquet(self._spark, self._requests)
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
        usage = Usage(done=done, failed=failed, seconds=monotonic() - began)
        return {"stage": self._stage.name, "total": total, "usage": asdict(usage)}

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
