"""A stage asked by a study itself, outside of any metric: answers restated for a sheet, claims to be verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame

from untold.jobs.asking.endpoint import RunEndpoint
from untold.jobs.asking.engines import open_engines
from untold.jobs.asking.process import AnsweringError
from untold.jobs.asking.prompts import bind_stage
from untold.jobs.asking.reach import Reach, reached_places
from untold.jobs.asking.runner import StageRunner
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import store_of
from untold.jobs.run.progress import Display
from untold.jobs.run.workspace import Workspace
from untold.jobs.settings.model import Settings

RESTATE = "restate_answer"
# Hidden from readers of tables, which pass over names that begin with an underscore
WORK = "_asking"


@dataclass(frozen=True)
class Answers:
    """What a stage gave: the columns asked for, how the asking ended, and the rows of the table `usage`."""

    rows: DataFrame
    ending: Ending
    usage: Sequence[Mapping[str, Any]] = field(default=())


@dataclass(frozen=True)
class StageAsker:
    """Asks by the endpoint of some settings. Completions are kept as those of any run, by `store` or in `output`.

    `command` is how to start the run again that asks.
    """

    settings: Settings
    embedded: bool
    output: str
    display: Display
    wait: bool = True
    retry_failed: bool = False
    command: str = ""

    def ask(self, stage: str, rows: DataFrame, carry: Sequence[str], columns: Sequence[str]) -> Answers:
        """Answers a stage for rows: the columns of `carry`, then those of `columns` out of the stage's results.

        What `jobs.asking.runner.StageRunner.ask` says of rows holds; where the asking ended early, some are unasked,
        and what was answered is kept for the next start.
        """
        settings, note = self.settings, self.display.note
        workspace = Workspace(rows.sparkSession, f"{self.output}/{WORK}")
        workspace.remove()
        run, retry = uuid4().hex[:12], self.retry_failed
        with (
            RunEndpoint(settings, embedded=self.embedded, wait=self.wait, notify=note) as endpoint,
            open_engines(settings, self.display, run, wait=self.wait, retry_failed=retry) as engines,
        ):
            stages = {stage: bind_stage(stage, settings, embedded_model=endpoint.model_sha256)}
            store = store_of(settings, self.output)
            places = reached_places(self.output, workspace.folder, store)
            reach = Reach(rows.sparkSession, places, note=note)
            reach.check_executors()
            runner = StageRunner(engines, settings, stages, endpoint, workspace, store, reach=reach)
            try:
                asked = runner.ask(stage, rows, carry=tuple(carry))
                # The rows lie in the working folder, which goes before anybody reads them
                found = asked.select(*carry, *columns).localCheckpoint()
                return Answers(found, runner.ending, runner.usage)
            finally:
                workspace.remove()

    def restate(self, pairs: DataFrame) -> DataFrame:
        """Columns question, answer, statement, error_type from question, answer: the stage `restate_answer`.

        A pair that failed has no statement and an error_type. Raises AnsweringError where the asking ended early.
        Methods, section 6.
        """
        given = self.ask(RESTATE, pairs, ("question", "answer"), ("statement", "error_type"))
        if given.ending.reason is not None:
            raise AnsweringError(given.ending.explain(self.command))
        return given.rows
