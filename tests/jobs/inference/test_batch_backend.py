"""Compare batches with calls, and run the batch backend over several jobs of a stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.model_server import ModelServer
from tests.jobs.inference.batched import (
    Row,
    deliver,
    left_job,
)
from tests.udfs.llm.askers import SETTINGS, all_rows_in, ask
from tests.udfs.llm.test_asking_tools import FAR, FAR_TOO, NEAR, QUESTION
from tests.udfs.llm.test_asking_tools import STAGE as COMPARING
from untold.jobs.inference.backends.batch_jobs import INFINITE, BatchJob, Load, fill
from untold.jobs.inference.backends.job import JobOutcome
from untold.jobs.inference.backends.spooled_backends import BatchBackend, WaitingError
from untold.jobs.inputs.options import RunOptions
from untold.jobs.settings.model import Settings
from untold.udfs.llm.batch_formats import open_batches
from untold.udfs.llm.usage import Usage
from untold.udfs.stages import STAGES


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [{"do": "garbage", "when": {"attempt_below": 2}}],
        [{"do": "garbage"}],
        [{"do": "tool_loop"}],
        [{"do": {"tool_garbage": "no json"}}],
        [{"do": "filter"}],
        [{"do": {"status": 400, "error": {"code": "context_length_exceeded"}}, "when": {"contains": "5 km"}}],
        [{"do": "empty", "when": {"attempt_below": 3}}],
        [{"do": "no_usage"}],
    ],
    ids=str,
)
def test_rows_of_batches_equal_the_rows_of_calls(server: ModelServer, tmp_path: Path, rules: list[Row]) -> None:
    """The model calls a tool, and its next turn is in the next batch."""
    variables = [{"question": QUESTION, "first": first, "second": FAR} for first in (FAR_TOO, NEAR)]
    asked = [(f"r{number}", one) for number, one in enumerate(variables)]
    server.configure(answer="world", rules=rules)
    (tmp_path / "calls").mkdir()
    kinds: Any = {"parse": STAGES[COMPARING.name].parse, "form": STAGES[COMPARING.name].form}
    called = ask(server, tmp_path / "calls", asked, SETTINGS, 20.0, stage=COMPARING, **kinds)
    server.reset()
    job = left_job(tmp_path, asked, COMPARING, base_url=server.base_url)
    with closing(open_batches(job.read().settings)) as api:
        assert deliver(job, api).reason is None

    def essence(rows: Iterable[Row]) -> list[Row]:
        """Return the rows without their times."""
        return sorted(({**row, "answered_at": 0, "seconds": 0, "run_id": ""} for row in rows), key=str)

    assert essence(all_rows_in(Path(job.completions))) == essence(all_rows_in(tmp_path / "calls"))
    assert replace(job.ledger().used, seconds=0.0, endpoints={}) == replace(called.usage, seconds=0.0, endpoints={})


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 8), st.integers(1, 120), st.integers(1, 60))
def test_batches_hold_all_lines_in_order_and_no_more_than_they_may(
    sizes: list[int], requests: int, size: int, queue: int
) -> None:
    lines = [Load(1, one, one, 2 * one, 0.1) for one in sizes]
    found = list[Load]()
    while len(found) < len(lines):
        batch = fill(lines[len(found) :], Load(requests, size, queue, INFINITE, INFINITE))
        total = sum(batch, Load())
        assert len(batch) == 1 or (len(batch) <= requests and total.bytes <= min(size, queue))
        found += batch
    assert found == lines
    taken = fill(lines, Load(requests, size, queue, tokens=40, cost=0.5))
    assert sum(line.tokens for line in taken) <= 40
    assert len(taken) <= 5


def batch_backend(store: str, backend: str = "batch", *, poll: bool = True) -> BatchBackend:
    """A run's side of the batches of a store, without Spark."""
    engines: Any = SimpleNamespace(
        run="run2",
        options=RunOptions(poll=poll),
        display=SimpleNamespace(note=lambda _: None, show=lambda _: None),
        interrupts=SimpleNamespace(requested=False),
    )
    llm = {"base_url": "http://host/v1", "model": "m", "backend": backend}
    return BatchBackend(engines, Settings.model_validate({"llm": llm}), cast(Any, None), store)


class Scripted:
    """Submitters of jobs that end with the given reasons and note each step."""

    def __init__(self, outcomes: dict[str, list[JobOutcome]]) -> None:
        self.outcomes, self.runs = outcomes, list[tuple[str, bool]]()

    @contextmanager
    def __call__(self, job: BatchJob, *_: object, **__: object) -> Iterator[Any]:
        def run(*, submit: bool = True, poll: bool = True) -> JobOutcome:
            self.runs.append((str(job.place), poll))
            job.write_ledger(replace(job.ledger(), made=len(self.runs)))
            outcome = self.outcomes[str(job.place)].pop(0)
            if outcome.reason is None:
                job.close()
            return outcome

        yield SimpleNamespace(run=run)


def test_jobs_of_a_stage_are_gone_back_to_until_no_more_comes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = left_job(root), left_job(root)
    waits, ends = JobOutcome("batched"), JobOutcome()
    scripted = Scripted({str(first.place): [waits, waits, ends], str(second.place): [waits, ends]})
    own = batch_backend(str(root))
    monkeypatch.setattr(own, "_delivery", scripted)
    outcome = own._deliver([first, second], lambda: None, lambda _: None, Usage())
    assert outcome.reason is None
    assert [poll for _, poll in scripted.runs] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (JobOutcome("batched"), "batched"),
        (JobOutcome("outage"), "outage"),
        (JobOutcome("refused", "HTTP 401"), "refused"),
    ],
)
@pytest.mark.parametrize("poll", [True, False])
def test_a_stage_with_calls_reports_why_its_batches_block_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, outcome: JobOutcome, reason: str, poll: bool
) -> None:
    job = left_job(root)
    own, scripted = batch_backend(str(root), "process", poll=poll), Scripted({str(job.place): [outcome]})
    monkeypatch.setattr(own, "_delivery", scripted)
    with pytest.raises(WaitingError) as waiting:
        own._look_at(job, alone=True)
    assert waiting.value.outcome.reason == reason
    assert scripted.runs == [(str(job.place), poll)]
