"""What answers the requests of a stage: the answering process beside the driver, Spark's tasks, or a spool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame

from untold.jobs.asking.calling import batch_of, call_settings, count_actors, section_of
from untold.jobs.asking.endpoint import RunEndpoint, explain_refusal
from untold.jobs.asking.engines import Engines
from untold.jobs.asking.job import Job, Outcome
from untold.jobs.asking.prompts import order_of_prompt
from untold.jobs.asking.reach import Reach
from untold.jobs.run.locks import Lock
from untold.jobs.run.workspace import Workspace, write_parquet
from untold.jobs.settings.model import Settings
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.units import UNIT_BYTES, UNIT_ROWS
from untold.udfs.llm.usage import Usage

# So that the last unit is a small part of an actor's work, and no actor waits long for the slowest
UNITS_OF_AN_ACTOR = 4
# Requests that one task of Spark writes for the actors
REQUESTS_OF_A_TASK = 10_000


@dataclass(frozen=True)
class Unanswered:
    """Requests of a stage that are to be answered into its folder of the store, which `lock` holds.

    `rows`: request_id and the stage's variables, one row each; `count`: how many, or more. `spent`: by this start, on
    the budget. `answered_before`: whether the endpoint ever answered this run. `show` takes events of progress. What
    `tries_schema`, `may_drop_schema` and `may_adapt` are, `Job` says.
    """

    stage: Stage
    folder: str
    rows: DataFrame
    count: int
    lock: Lock | None
    show: Callable[[Mapping[str, Any]], None]
    spent: Usage = field(default_factory=Usage)
    answered_before: bool = False
    tries_schema: bool = False
    may_drop_schema: bool = False
    may_adapt: bool = False

    def is_lost(self) -> bool:
        """Whether another run took the folder over."""
        return self.lock is not None and self.lock.lost

    def write(self, settings: Settings, path: str) -> None:
        """Writes one row a request, in files of one unit of work; more where their texts are long.

        Without dictionaries, for the sizes in their footers are then those of the rows in memory (`list_units`).
        """
        unit = self._rows_of_a_unit(settings)
        # In the order of the prompt, so that a common beginning of prompts is asked together: prompt caches then hit
        keys = (*order_of_prompt(self.stage), "request_id")
        # By number alone: what Spark would choose varies with cores, and each task's last unit is a short one
        tasks = -(-self.count // REQUESTS_OF_A_TASK)
        ordered = self.rows.repartitionByRange(tasks, *keys).sortWithinPartitions(*keys)
        options = {"maxRecordsPerFile": unit, "parquet.enable.dictionary": False, "parquet.block.size": UNIT_BYTES}
        write_parquet(ordered, path, **options)

    def _rows_of_a_unit(self, settings: Settings) -> int:
        """As many as the architecture allows, less where actors would stand idle; whole calls where one has several."""
        actors = count_actors(settings, self.stage.api)
        rows = max(1, min(UNIT_ROWS, -(-self.count // (UNITS_OF_AN_ACTOR * actors))))
        batch = batch_of(settings, self.stage.api)
        return min(-(-rows // batch), max(1, UNIT_ROWS // batch)) * batch

    def job(self, settings: Settings, base_url: str, **places: Any) -> Job:
        """The requests as a job of `places`: requests, directory, run, and what else a job has."""
        return Job(
            stage=self.stage,
            settings=call_settings(settings, self.stage, base_url, places["directory"]),
            actors=count_actors(settings, self.stage.api),
            answered_before=self.answered_before,
            tries_schema=self.tries_schema,
            may_drop_schema=self.may_drop_schema,
            may_adapt=self.may_adapt,
            **places,
        )


class Answerer(Protocol):
    """Answers requests of stages."""

    def prepare(self, stage: Stage) -> None:
        """Gets ready for a stage, before its folder is locked: runs that waited in other orders would block."""

    def answer(self, unanswered: Unanswered) -> Outcome:
        """Has requests answered, or ends early for the outcome's reason. Raises AnsweringError for what broke it."""


@contextmanager
def shown(engines: Engines, stage: Stage) -> Iterator[None]:
    """Shows the stage from the start of its answering to its end."""
    engines.display.start(stage.name)
    try:
        yield
    finally:
        engines.display.end()


@dataclass
class ProcessAnswerer:
    """Has requests answered by the process beside the driver."""

    engines: Engines
    settings: Settings
    endpoint: RunEndpoint
    workspace: Workspace
    reach: Reach | None = None
    _base_url: str = field(default="", init=False)

    def prepare(self, stage: Stage) -> None:
        """Starts the server of the embedded model, where that is asked."""
        self._base_url = self.endpoint.base_url(stage.api)

    def answer(self, unanswered: Unanswered) -> Outcome:
        """By a job that the process gets; the outcome of a refusal says what to do about a key.

        Raises ReachError, before anything is asked, where a machine does not reach what the run writes.
        """
        if self.reach is not None:
            self.reach.check_executors()
            if self.settings.ray.address:
                self.reach.check_nodes(self.engines.process)
        requests = self.workspace.path(f"{unanswered.stage.name}-units")
        unanswered.write(self.settings, requests)
        process, lock = self.engines.process.open(), unanswered.lock
        if lock is not None:
            lock.add_process(process.pid)
        job = unanswered.job(
            self.settings,
            self._base_url,
            requests=requests,
            directory=unanswered.folder,
            run=self.engines.run,
            spent=unanswered.spent,
        )
        with shown(self.engines, unanswered.stage):
            if lock is not None:
                # The last look before money is spent
                lock.check()
            if not process.ready:
                self.engines.display.status("starting Ray")
            outcome = process.answer(job, unanswered.show, unanswered.is_lost)
        return self._explained(outcome, unanswered.stage)

    def _explained(self, outcome: Outcome, stage: Stage) -> Outcome:
        """The outcome, with what to do where the endpoint refused the run."""
        if outcome.reason != "refused":
            return outcome
        section = section_of(stage.api)
        each = self.settings.llm.each if section == "llm" else [getattr(self.settings, section)]
        keys = [one.api_key_env for one in each]
        return replace(outcome, error=explain_refusal(str(outcome.error), keys, section))
