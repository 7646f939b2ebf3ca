"""What the demo says while it runs, and what it ships: without the model, which `test_demo` runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from tests.fakes.answers import coverage_text
from untold.jobs.demo import STAGE, Spent, demo_settings, describe_work, showing_results
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.store.store import stage_folder
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.settings.model import Settings
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.segments import write_file
from untold.udfs.llm.templates import compile_prompt

DEMO = Path(__file__).parents[2] / "conf" / "demo"
SAMPLES = DEMO / "samples.jsonl"
LONGEST_CONTEXT = 120
WAIT_SECONDS = 60.0


def rows_of(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (DEMO / name).read_text(encoding="utf-8").splitlines()]


def answer(folder: Path, number: int, sample: dict[str, object], cached: int, *, estimated: bool = False) -> None:
    """Writes a judgement of a sample to the store, as an actor does: one statement covered, two left out."""
    settings = demo_settings(Settings(), DEMO)
    stage = bind_stage(STAGE, settings)
    contexts = [context["text"] for context in sample["contexts"]]  # type: ignore[index,attr-defined]
    request = stage.request_id({"query": sample["query"], "contexts": contexts, "response": sample["response"]})
    row = {
        "request_id": request,
        "text": coverage_text([("One.", (1,))], [("Two.", (1,)), ("Three.", (2,))]),
        "prompt_tokens": 100,
        "cached_prompt_tokens": cached,
        "tokens_estimated": estimated,
    }
    values = [{name: row.get(name) for name in COMPLETIONS.names}]
    place = Path(stage_folder(str(folder), stage))
    place.mkdir(parents=True, exist_ok=True)
    write_file(str(place / f"run-{number}.parquet"), pa.Table.from_pylist(values, schema=COMPLETIONS))


@pytest.mark.parametrize(("estimated", "tokens"), [(False, "100"), (True, "~100")])
def test_each_result_is_shown_as_it_comes_and_what_was_known_is_counted(
    tmp_path: Path, estimated: bool, tokens: str
) -> None:
    first, second, *_ = rows_of("samples.jsonl")
    answer(tmp_path, 1, first, cached=0)
    said: list[str] = []
    shown = Event()

    def say(line: str) -> None:
        said.append(line)
        if line.startswith(str(second["sample_id"])):
            shown.set()

    settings = demo_settings(Settings(completion_store=str(tmp_path)), DEMO)
    request = ScoreRequest(input=str(SAMPLES), output="", settings=settings, metrics=("e2e",), embedded=False)
    with showing_results(request, say):
        answer(tmp_path, 2, second, cached=75, estimated=estimated)
        assert shown.wait(WAIT_SECONDS)

    assert said == [
        "5 judgements to make (1 known from before)",
        f"{second['sample_id']}: 1 covered, 2 left out",
        f"75% of {tokens} tokens of prompts came from the cache",
    ]


def test_the_time_to_go_is_that_of_the_judgements_which_came() -> None:
    began = datetime(2026, 11, 22, tzinfo=UTC)
    tokens = {"prompt_tokens": 560, "cached_prompt_tokens": 0, "completion_tokens": 90, "tokens_estimated": False}
    later = {**tokens, "cached_prompt_tokens": 410}
    quick, slow = Spent(), Spent()

    assert quick.seconds_for(5) is None
    for spent, pace in ((quick, 1), (slow, 10)):
        spent.add({**tokens, "seconds": 20.0 * pace, "answered_at": began + timedelta(seconds=20 * pace)})
    first = quick.seconds_for(5)
    # It was sent with the first and waited for it: its own seconds are not what it took
    quick.add({**later, "seconds": 32.0, "answered_at": began + timedelta(seconds=32)})

    assert first is not None
    assert 50 < first < 100, "the shared beginning, which the first alone reads, is no part of what the others take"
    assert slow.seconds_for(5) == pytest.approx(10 * first)
    assert quick.seconds_for(4) == pytest.approx(4 * 12, rel=0.15)
    assert quick.seconds_for(0) == 0


def test_the_work_is_named_with_its_time_on_so_many_threads() -> None:
    one, four = describe_work(6, 0, 1), describe_work(6, 0, 4)

    assert one.startswith("6 judgements to make on 1 thread: ")
    assert four.startswith("6 judgements to make on 4 threads: ")
    assert "minutes" in one
    assert describe_work(0, 6, 4) == "0 judgements to make (6 known from before)"


def test_the_demo_needs_no_condensing_and_a_shorter_prompt() -> None:
    samples = rows_of("samples.jsonl")
    settings = demo_settings(Settings(), DEMO)
    row = {"query": "q", "contexts": ["c"], "response": "r"}
    lengths = [
        compile_prompt(bind_stage(STAGE, chosen).template, api="chat", name=STAGE).characters(row)
        for chosen in (settings, Settings())
    ]

    assert [sample["sample_id"] for sample in samples] == [one["sample_id"] for one in rows_of("expected.jsonl")]
    assert len(samples) == 6
    assert not settings.summarise_contexts
    texts = [context["text"] for sample in samples for context in sample["contexts"]]  # type: ignore[attr-defined]
    assert max(map(len, texts)) <= LONGEST_CONTEXT
    assert lengths[0] < lengths[1]
