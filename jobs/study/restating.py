"""Questions with answers restated as statements, by the model: what makes the metrics of a blinded sheet look alike."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import DataFrame

from jobs.asking.endpoint import RunEndpoint
from jobs.asking.engines import open_engines
from jobs.asking.process import AnsweringError
from jobs.asking.prompts import bind_stage
from jobs.asking.runner import StageRunner
from jobs.run.output import store_of
from jobs.run.progress import Display
from jobs.run.workspace import Workspace
from jobs.settings.model import Settings

STAGE = "restate_answer"
# Hidden from readers of tables, which pass over names that begin with an underscore
WORK = "_restating"


@dataclass(frozen=True)
class Restater:
    """Restates by the endpoint of some settings. Completions are kept as those of any stage, by `store` or in `output`.

    `command` is how to start the run again that asks.
    """

    settings: Settings
    embedded: bool
    output: str
    display: Display
    wait: bool = True
    command: str = ""

    def restate(self, pairs: DataFrame) -> DataFrame:
        """Columns question, answer, statement, error_type from question, answer: the stage `restate_answer`.

        A pair that failed has no statement and an error_type. Raises AnsweringError where the asking ended early; what
        was answered is kept. Methods, section 6.
        """
        settings, note = self.settings, self.display.note
        workspace = Workspace(pairs.sparkSession, f"{self.output}/{WORK}")
        workspace.remove()
        with (
            RunEndpoint(settings, embedded=self.embedded, wait=self.wait, notify=note) as endpoint,
            open_engines(settings, self.display, uuid4().hex[:12], wait=self.wait) as engines,
        ):
            stages = {STAGE: bind_stage(STAGE, settings, embedded_model=endpoint.model_sha256)}
            runner = StageRunner(engines, settings, stages, endpoint, workspace, store_of(settings, self.output))
            try:
                asked = runner.ask(STAGE, pairs, carry=("question", "answer"))
                if runner.ended:
                    raise AnsweringError(runner.ending.explain(self.command))
                # The rows lie in the working folder, which goes before anybody reads them
                return asked.select("question", "answer", "statement", "error_type").localCheckpoint()
            finally:
                workspace.remove()
