"""Run `untold generate` with two systems and one file: the errors, the retries and the scores."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

import pytest
import yaml

from tests.fakes.model_server import ModelServer
from tests.runs.harness import Ended, Run, read_manifest, read_table, snapshot, times, write_samples
from tests.runs.here import RunHere

pytestmark = pytest.mark.gate

SYSTEMS = {"terse": {"model": "small-model"}, "whole": {"model": "large-model", "temperature": None}}
SHORT = "Fact of them all."
TERSE = {"when": {"contains": "small-model"}, "do": {"text": SHORT}}
COUNT = 30
IN_FLIGHT = 4
FLUSH_SECONDS = 1.0


def make_questions(count: int = COUNT) -> list[dict[str, Any]]:
    """Return questions in the order of their ids.

    The contexts of a question have two facts, and one fact is in all contexts.
    """
    return [
        {
            "question_id": f"q{number:03d}",
            "query": f"What of {number}?",
            "contexts": [f"{SHORT} IRRELEVANT thing.", {"id": "b", "text": f"Fact B{number}."}],
            "topic": {"number": number},
        }
        for number in range(count)
    ]


def write_systems(folder: Path, systems: dict[str, Any]) -> Path:
    path = folder / "systems.yaml"
    path.write_text(yaml.safe_dump(systems), encoding="utf-8")
    return path


def flags_of(output: Path, systems: Path | None) -> tuple[str, str]:
    return "--systems", str(systems or write_systems(output.parent, SYSTEMS))


@pytest.fixture
def generate(run_here: RunHere) -> Callable[..., Ended]:
    """Run `untold generate` for a file of questions in this process."""

    def run(server: ModelServer, questions: Path, output: Path, *flags: str, **options: Any) -> Ended:
        words = (*flags_of(output, options.pop("systems", None)), *flags)
        return run_here(server, questions, output, *words, settings=options, command="generate")

    return run


@pytest.mark.slow
def test_two_systems_answer_the_questions_and_are_scored(
    run_here: RunHere, generate: Callable[..., Ended], server: ModelServer, tmp_path: Path
) -> None:
    lost = {"when": {"contains": "What of 3?"}, "do": {"status": 400, "error": {"message": "no"}}}
    server.configure(rules=[lost, TERSE])
    rows = [*make_questions(), {**make_questions(1)[0], "question_id": "empty", "query": " "}]
    questions, output = write_samples(tmp_path / "questions.jsonl", rows), tmp_path / "out"

    stopped = generate(server, questions, output, **{"budget.max_calls": COUNT + 5})
    assert (stopped.code, server.count("generate_answer")) == (3, COUNT + 5), stopped.err
    assert f"system whole: the budget is used up after {COUNT + 5} calls" in stopped.err
    assert [(row["system"], row["unasked"]) for row in read_manifest(output)["systems"]] == [
        ("terse", 0),
        ("whole", 25),
    ]

    ended = generate(server, questions, output)
    # Each system gets each question once, and a lasting error is not retried
    assert (ended.code, server.count()) == (4, 2 * COUNT), ended.err
    check_samples(output)
    failures = {row["sample_id"]: (row["stage"], row["error_type"]) for row in read_table(output, "failures")}
    assert failures == {
        **{f"q003:{system}": ("generate_answer", "http_400") for system in SYSTEMS},
        **{f"empty:{system}": ("input", "invalid_input") for system in SYSTEMS},
    }
    check_usage(output)

    scored = run_here(server, output / "samples", tmp_path / "scores")
    assert scored.code == 0, scored.err
    scores = {row["sample_id"]: (row["system"], row["score"]) for row in read_table(tmp_path / "scores", "scores")}
    expected = {"terse": 0.5, "whole": 1.0}
    assert scores == {
        row["sample_id"]: (row["system"], expected[row["system"]]) for row in read_table(output, "samples")
    }


TOPICS = """<webtrack2012>
  <topic number="151" type="faceted"><query>403b</query><description>What is a 403b plan?</description>
    <subtopic number="1" type="inf">Who may take part?</subtopic><subtopic number="2" type="inf">Taxes</subtopic>
  </topic>
</webtrack2012>"""


@pytest.mark.slow
def test_topics_are_answered_without_contexts_and_keep_their_aspects(
    generate: Callable[..., Ended], server: ModelServer, tmp_path: Path
) -> None:
    server.configure(rules=[{"when": {"contains": '"contexts": null'}, "do": {"text": "A plan for teachers."}}])
    (tmp_path / "topics.web.151-200.txt").write_text(TOPICS, encoding="utf-8")
    ended = generate(server, tmp_path / "topics.web.151-200.txt", tmp_path / "out", "--format", "trec_web")
    assert ended.code == 0, ended.err
    rows = {row["sample_id"]: row for row in read_table(tmp_path / "out", "samples")}
    assert rows.keys() == {"151:terse", "151:whole"}
    row = rows["151:whole"]
    assert (row["query"], row["response"], row["contexts"]) == ("What is a 403b plan?", "A plan for teachers.", [])
    assert (row["query_id"], [one["text"] for one in row["aspects"]]) == ("151", ["Who may take part?", "Taxes"])


PROOF = "The Marigold was laid down at Osk."
LISTS = {
    "qampari": {
        "qid": "7",
        "question_text": "Which boats did Osk build?",
        "answer_list": [{"answer_text": "Marigold", "aid": "a0", "proof": [{"proof_text": PROOF}]}],
    },
    "romqa": {
        "id": "7",
        "question": "Which boats did Osk build?",
        "candidates": [{"uri": "a0", "text": "Marigold", "is_answer": True, "evidence": [{"text": PROOF}]}],
        "complete_answer": [],
    },
    "ragas": {"id": "7", "user_input": "Which boats did Osk build?", "retrieved_contexts": [PROOF]},
}


@pytest.mark.parametrize("format", LISTS)
def test_a_closed_book_keeps_proofs_from_the_prompts_only(
    generate: Callable[..., Ended], server: ModelServer, tmp_path: Path, format: str
) -> None:
    server.configure(rules=[{"when": {"contains": '"contexts": null'}, "do": {"text": "From memory."}}])
    questions, output = write_samples(tmp_path / "questions.jsonl", [LISTS[format]]), tmp_path / "out"
    systems = write_systems(tmp_path, {"terse": SYSTEMS["terse"]})
    ended = generate(server, questions, output, "--format", format, "--closed-book", systems=systems)
    assert ended.code == 0, ended.err
    (row,) = read_table(output, "samples")
    assert row["response"] == "From memory."
    assert [context["text"].removeprefix("Marigold: ") for context in row["contexts"]] == [PROOF]
    assert read_manifest(output)["input"]["closed_book"] is True
    refused = generate(server, questions, output, "--format", format, systems=systems)
    assert refused.code == 1, refused.err
    assert "other settings (closed_book" in refused.err


def test_a_closed_book_without_contexts_is_refused_before_any_call(
    generate: Callable[..., Ended], server: ModelServer, tmp_path: Path
) -> None:
    questions = write_samples(tmp_path / "longfact-objects_rain.jsonl", [{"prompt": "What is rain?", "canary": "c"}])
    ended = generate(server, questions, tmp_path / "out", "--format", "longfact", "--closed-book")
    assert (ended.code, server.count(), len(ended.err.splitlines())) == (1, 0, 1), ended.err
    assert f"{questions}: no question has contexts. Run without --closed-book" in ended.err


def check_samples(output: Path) -> None:
    samples = read_table(output, "samples")
    answered = [number for number in range(COUNT) if number != 3]
    assert [row["sample_id"] for row in samples] == [f"q{n:03d}:{system}" for n in answered for system in SYSTEMS]
    said = {row["sample_id"]: row["response"] for row in samples}
    assert (said["q007:terse"], said["q007:whole"]) == (SHORT, f"{SHORT} Fact B7.")
    assert samples[0] == {
        "sample_id": "q000:terse",
        "query": "What of 0?",
        "response": SHORT,
        "contexts": [{"id": "1", "text": f"{SHORT} IRRELEVANT thing."}, {"id": "b", "text": "Fact B0."}],
        "system": "terse",
        "question_id": "q000",
        "topic": {"number": 0},
    }


def check_usage(output: Path) -> None:
    """Check that the second run sent the requests of one system that were over the budget of the first run."""
    columns = ("system", "model", "requests", "reused", "answered", "failed", "unasked", "calls")
    assert [tuple(row[column] for column in columns) for row in read_table(output, "usage")] == [
        ("terse", "small-model", COUNT, COUNT - 1, 0, 1, 0, 0),
        ("whole", "large-model", COUNT, 5, 24, 1, 0, 25),
    ]
    manifest = read_manifest(output)
    assert (manifest["status"], manifest["totals"]["calls"], len(manifest["starts"])) == ("finished", 2 * COUNT, 2)
    counts = [(row["system"], row["questions"], row["answered"], row["failed"]) for row in manifest["systems"]]
    assert counts == [(system, COUNT + 1, COUNT - 1, 2) for system in SYSTEMS]


@pytest.mark.slow
def test_a_killed_run_continues_and_a_finished_run_does_not_change(
    generate: Callable[..., Ended], server: ModelServer, tmp_path: Path
) -> None:
    server.configure(rules=[TERSE], latency=0.5)
    questions, output = write_samples(tmp_path / "questions.jsonl", make_questions()), tmp_path / "out"
    settings = {"llm.max_concurrency": IN_FLIGHT}
    run = Run(server, questions, output, *flags_of(output, None), settings=settings, command="generate")
    try:
        run.wait_for(server, COUNT + 10)
        killed_at = time()
    finally:
        run.kill()
    at_risk = IN_FLIGHT + sum(moment >= killed_at - FLUSH_SECONDS for moment in times(server.arrivals()))
    assert read_manifest(output)["status"] == "running"

    server.configure(latency=0.0)
    ended = generate(server, questions, output)
    assert ended.code == 0, ended.err
    assert 2 * COUNT <= (asked := server.count()) <= 2 * COUNT + at_risk
    assert len(read_table(output, "samples")) == 2 * COUNT

    before = snapshot(output)
    again = generate(server, questions, output)
    assert (again.code, server.count(), snapshot(output)) == (0, asked, before), again.err

    write_systems(tmp_path, SYSTEMS | {"third": {"model": "third-model"}})
    refused = generate(server, questions, output, systems=tmp_path / "systems.yaml")
    assert (refused.code, server.count(), snapshot(output)) == (1, asked, before)
    assert "belongs to other settings (systems.third); give another --output, or --overwrite" in refused.err
    more = generate(server, questions, output, "--overwrite", systems=tmp_path / "systems.yaml")
    assert (more.code, server.count()) == (0, asked + COUNT), more.err


@pytest.mark.slow
def test_a_refused_system_ends_the_run_and_leaves_the_others_to_the_next(
    generate: Callable[..., Ended], server: ModelServer, tmp_path: Path
) -> None:
    server.configure(rules=[{"when": {"contains": "small-model"}, "do": {"status": 401}}])
    questions, output = write_samples(tmp_path / "questions.jsonl", make_questions(5)), tmp_path / "out"
    refused = generate(server, questions, output)
    assert refused.code == 1, refused.err
    assert "system terse: the endpoint refuses the run: " in refused.err
    assert read_manifest(output)["status"] == "failed"
    assert {arrival.model for arrival in server.arrivals()} == {"small-model"}
    assert read_table(output, "samples") == []

    server.configure(rules=[])
    server.reset()
    ended = generate(server, questions, output)
    assert (ended.code, server.count()) == (0, 10), ended.err
    assert len(read_table(output, "samples")) == 10


@pytest.mark.slow
def test_questions_of_eli5_category_get_their_contexts(
    generate: Callable[..., Ended], server: ModelServer, tmp_path: Path
) -> None:
    rows = [{"q_id": f"q{n}", "title": f"What of {n}?", "selftext": "", "answers": {"text": ["a"]}} for n in range(4)]
    questions = tmp_path / "eli5.json.gz"
    questions.write_bytes(gzip.compress(json.dumps(rows).encode()))
    contexts = write_samples(
        tmp_path / "contexts.jsonl", [{"q_id": f"q{n}", "contexts": [f"Fact {n}."]} for n in (1, 3, 8)]
    )
    flags = ("--format", "eli5_category", "--contexts", str(contexts))
    ended = generate(server, questions, tmp_path / "out", *flags)
    assert (ended.code, server.count()) == (0, 4), ended.err
    assert f"2 of 4 questions skipped (no contexts in {contexts})" in ended.err
    said = {row["sample_id"]: row["response"] for row in read_table(tmp_path / "out", "samples")}
    assert said == {f"q{n}:{system}": f"Fact {n}." for n in (1, 3) for system in SYSTEMS}
