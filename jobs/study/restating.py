"""Questions with answers restated as statements, by the model: what makes the metrics of a blinded sheet look alike."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.asking.endpoint import RunEndpoint
from jobs.asking.process import AnsweringError, ProcessWhenNeeded
from jobs.asking.prompts import bind_stage
from jobs.asking.runner import StageRunner
from jobs.run.interrupts import Interrupts
from jobs.run.progress import Display
from jobs.score import explain, remove_folders, store_of
from jobs.settings.model import Settings

STAGE = "restate_answer"
WORK = "_restating"


@dataclass(frozen=True)
class Restater:
    """Restates by the endpoint of some settings. Completions are kept as those of any stage, by `store` or in `output`.

    `command` is how to start the run again that asks.
    """

    spark: SparkSession
    settings: Settings
    embedded: bool
    output: str
    display: Display
    wait: bool = True
    command: str = ""

    def restate(self, pairs: DataFrame) -> DataFrame:
        """Columns question, answer, statement, error_type from question, answer: the stage `restate_answer`.

        Raises AnsweringError where the asking ended early; what was answered is kept.
        """
        with ExitStack() as stack:
            runner = self._open(stack)
            copies = [F.col(name).alias(f"given_{name}") for name in ("question", "answer")]
            asked = runner.ask(STAGE, pairs.select("question", "answer", *copies))
            if runner.ended:
                raise AnsweringError(explain(runner, self.command))
            restated = asked.select(
                *[F.col(f"given_{name}").alias(name) for name in ("question", "answer")], "statement", "error_type"
            )
            return restated.localCheckpoint()

    def _open(self, stack: ExitStack) -> StageRunner:
        settings = self.settings
        endpoint = RunEndpoint(settings, embedded=self.embedded, wait=self.wait, notify=self.display.note)
        stack.callback(endpoint.close)
        stage = bind_stage(STAGE, settings, embedded_model=endpoint.model_sha256)
        interrupts = Interrupts()
        interrupts.install()

        stack.callback(remove_folders, self.output, [WORK])
        return StageRunner(
            spark=self.spark,
            settings=settings,
            stages={STAGE: stage},
            work=f"{self.output}/{WORK}",
            store=store_of(settings, self.output),
            run=uuid4().hex[:12],
            open_process=ProcessWhenNeeded(settings.ray.address, interrupts, stack).open,
            base_url=endpoint.base_url,
            display=self.display,
            wait=self.wait,
            interrupts=interrupts,
        )
