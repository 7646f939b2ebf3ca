"""Test the tools that a model calls during a completion. The caller runs them under the limits and stores the turns."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS, Run, ask, rows_in
from untold.udfs.llm.calls import Progress
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.limiter import Budget
from untold.udfs.llm.tools import COMPARE_QUANTITIES, MAX_ROUNDS
from untold.udfs.stages import STAGES

STAGE = Stage(
    name="compare_answers",
    variables=("question", "first", "second"),
    model="fake-model",
    template='{"stage": "compare_answers", "question": {{ question | tojson }}, "first": {{ first | tojson }}, '
    '"second": {{ second | tojson }}}',
    tools=(COMPARE_QUANTITIES,),
)
QUESTION = "How long is Ada Mill?"
FAR, FAR_TOO, NEAR = "8 km", "8,000 m", "5 km"


@pytest.fixture
def server(server: ModelServer) -> ModelServer:
    server.configure(answer="world")
    return server


def compare(
    server: ModelServer,
    folder: Path,
    *pairs: tuple[str, str],
    stage: Stage = STAGE,
    seconds: float = 20.0,
    **settings: Any,
) -> tuple[Any, list[dict[str, Any]]]:
    """Return the progress and the written rows, in the order of the pairs."""
    asked = [
        (f"r{number}", {"question": QUESTION, "first": first, "second": second})
        for number, (first, second) in enumerate(pairs)
    ]
    kinds = {"stage": stage, "parse": STAGES[stage.name].parse}
    progress = ask(server, folder, asked, replace(SETTINGS, **settings), seconds=seconds, **kinds)
    rows = rows_in(folder)
    return progress, [rows[name] for name, _ in asked if name in rows]


def relation(row: dict[str, Any], first: str, second: str) -> Any:
    return STAGES[STAGE.name].parse(row["text"], {"question": QUESTION, "first": first, "second": second})["relation"]


def test_the_tool_is_run_and_its_answer_decides(server: ModelServer, tmp_path: Path) -> None:
    progress, (equal, larger) = compare(server, tmp_path, (FAR_TOO, FAR), (NEAR, FAR))
    assert relation(equal, FAR_TOO, FAR) == "equivalent"
    assert relation(larger, NEAR, FAR) == "contradictory"
    assert (progress.usage.calls, server.count()) == (4, 4)
    assert (progress.usage.asked, progress.usage.done, progress.usage.failed) == (2, 2, 0)
    assert progress.usage.tool_turns == 2


def test_the_result_of_the_tool_is_stored_with_the_completion(server: ModelServer, tmp_path: Path) -> None:
    _, (row,) = compare(server, tmp_path, (FAR_TOO, FAR))
    (step,) = json.loads(row["tool_trace"])
    assert step["name"] == "compare_quantities"
    assert json.loads(step["arguments"]) == {"first": FAR_TOO, "second": FAR}
    assert json.loads(step["result"]) == {"outcome": "equal"}
    assert row["attempts"] == 2
    assert row["prompt_tokens"] == sum(arrival.prompt_tokens for arrival in server.arrivals())


def test_without_tools_no_tools_are_offered_or_stored(server: ModelServer, tmp_path: Path) -> None:
    progress, (row,) = compare(server, tmp_path, (FAR_TOO, FAR), stage=replace(STAGE, tools=()))
    assert (row["tool_trace"], row["error_type"], progress.usage.calls) == (None, None, 1)


@pytest.mark.parametrize("garbage", [True, "name"])
def test_a_broken_call_gets_an_error_and_the_model_continues(server: ModelServer, tmp_path: Path, garbage: Any) -> None:
    server.configure(rules=[{"do": {"tool_garbage": garbage}}])
    progress, (row,) = compare(server, tmp_path, (FAR_TOO, FAR))
    assert row["error_type"] is None
    assert "error" in json.loads(json.loads(row["tool_trace"])[0]["result"])
    assert progress.usage.calls == 2


def test_an_obedient_model_stops_its_calls_on_request(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": {"tool_loop": "obedient"}}])
    progress, (row,) = compare(server, tmp_path, (FAR_TOO, FAR))
    assert (row["error_type"], progress.usage.calls) == (None, MAX_ROUNDS + 1)
    assert len(json.loads(row["tool_trace"])) == MAX_ROUNDS


def test_a_model_that_never_stops_calling_is_unparsable(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": "tool_loop"}])
    progress, (row,) = compare(server, tmp_path, (FAR_TOO, FAR), max_attempts=2)
    assert (row["error_type"], row["error"]) == ("unparsable", "the model does not stop calling tools")
    assert progress.usage.calls == 2 * (MAX_ROUNDS + 1)


def test_an_endpoint_without_tools_ends_the_run_with_the_setting(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": "no_tools"}])

    async def run() -> Progress:
        one = Run(server, tmp_path, parse=STAGES[STAGE.name].parse, stage=STAGE)
        one.asker.start()
        one.asker.feed("unit", [("r0", {"question": QUESTION, "first": FAR_TOO, "second": FAR})])
        await one.until(lambda progress: progress.refused is not None)
        return await one.asker.stop(1.0)

    progress = asyncio.run(run())
    assert "set qa.quantity_tool to resolve or none" in (progress.refused or "")
    assert (server.count(), rows_in(tmp_path)) == (1, {})


def test_a_fault_between_the_turns_loses_no_turn(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"every": 2, "attempt_below": 2}, "do": {"status": 503}}])
    progress, (row,) = compare(server, tmp_path, (FAR_TOO, FAR))
    assert (row["error_type"], progress.usage.calls, progress.usage.tool_turns) == (None, 3, 1)
    assert len(json.loads(row["tool_trace"])) == 1


def test_each_turn_counts_towards_the_budget(server: ModelServer, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        compare(server, tmp_path, (FAR_TOO, FAR), seconds=3.0, budget=Budget(max_calls=1))
    assert server.count() == 1
