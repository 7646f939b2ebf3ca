"""What indexes and searches ask with: the stage of vectors, bound to settings, and the runner that asks it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from untold.jobs.asking.endpoint import RunEndpoint
from untold.jobs.asking.engines import Engines, open_engines
from untold.jobs.asking.prompts import bind_stage
from untold.jobs.asking.runner import StageRunner
from untold.jobs.retrieval.vectors import STAGE
from untold.jobs.run.progress import Display
from untold.jobs.run.workspace import Workspace
from untold.jobs.settings.model import Settings
from untold.udfs.llm.keys import Stage


@dataclass(frozen=True)
class VectorEngines:
    """Engines and endpoint of one start, and the stages that it may ask: none, or that of vectors."""

    settings: Settings
    engines: Engines
    endpoint: RunEndpoint
    stages: Mapping[str, Stage]

    def runner(self, workspace: Workspace, store: str, earlier: Collection[str] = ()) -> StageRunner:
        """What asks for vectors, and keeps them in this store; `earlier` as `StageRunner` takes it."""
        return StageRunner(self.engines, self.settings, self.stages, self.endpoint, workspace, store, earlier=earlier)


def bind_vectors(settings: Settings) -> Stage:
    """The stage of vectors under these settings; its digest is what vectors are known by.

    Raises what says, in one line, that there is no model.
    """
    return bind_stage(STAGE, settings)


@contextmanager
def open_vector_engines(
    settings: Settings,
    stages: Mapping[str, Stage],
    display: Display,
    run: str,
    *,
    wait: bool = True,
    retry_failed: bool = False,
    small: bool = False,
) -> Iterator[VectorEngines]:
    """Spark and what it takes to ask for vectors, for the time of a `with` block; parameters as of `open_engines`."""
    with (
        RunEndpoint(settings, embedded=False, wait=wait, notify=display.note) as endpoint,
        open_engines(settings, display, run, wait=wait, retry_failed=retry_failed, small=small) as engines,
    ):
        yield VectorEngines(settings, engines, endpoint, stages)
