"""Compare the tables of a whole job of the metric nuggets over symbolic worlds with brute force."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.asked_nuggets import judge_nuggets
from tests.fakes.expected_nuggets import ExpectedNuggets, Options, expected_nuggets
from tests.fakes.model_server import ModelServer
from tests.fakes.world_importance import texts_of
from tests.fakes.world_nuggets import nugget_worlds
from tests.runs.harness import Row, read_table, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.reported import assert_reported
from tests.runs.world_jobs import WorldJob, assert_measured, run_worlds
from tests.runs.worlds import concluded_of

NUGGETS = ("--metric", "nuggets")
WORLDS, RESPONSES = 28, 2
OPTIONS = Options(window=2, max_generated=6, top_k=4, vital_weight=0.5)
SETTINGS = {"nuggets.window": 2, "nuggets.max_generated": 6, "nuggets.top_k": 4, "nuggets.vital_weight": 0.5}


def expect(sample: Row, options: Options) -> ExpectedNuggets:
    return expected_nuggets(sample, [text for _, text in texts_of(sample)], options)


def expected_of(job: WorldJob) -> Mapping[str, ExpectedNuggets]:
    """Return the result of brute force for each sample."""
    return {sample["sample_id"]: expect(sample, OPTIONS) for sample in job.samples}


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldJob]:
    """Run two responses to the query of each world, with given and with created nuggets. Some labels stay open."""
    samples = [sample for world in nugget_worlds(WORLDS) for sample in world.samples(RESPONSES)]
    with run_worlds(run_here, tmp_path_factory.mktemp("nuggets"), samples, *NUGGETS, settings=SETTINGS) as ran:
        yield ran


def test_all_tables_equal_brute_force(job: WorldJob) -> None:
    assert job.ended.code == 0, job.ended.err
    assert not read_table(job.output, "failures")
    assert_concluded(job.output, expected_of(job))


def assert_concluded(output: Path, expected: Mapping[str, ExpectedNuggets | None]) -> None:
    """Compare all tables with brute force. The expectation is None for a failed sample."""
    scores, measures, statements = concluded_of(output, "statements")
    assert scores.keys() == expected.keys()
    for name, one in expected.items():
        row = scores[name]
        if one is None:
            assert (row["status"], row["score"], row["score_low"], row["score_high"]) == ("failed", None, 0.0, 1.0), (
                name
            )
            assert {each["value"] for each in measures[name]} == {None}
            assert not statements[name]
            continue
        assert_measured(row, measures[name], one, one.measures["vital"])
        nuggets = sorted(statements[name], key=lambda each: each["rank"])
        assert [shown(each) for each in nuggets] == [
            (each.text, each.importance, each.support, each.kept, each.reference_id, each.weight)
            for each in one.nuggets
        ], name


def shown(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("text", "importance", "support", "kept", "reference_id", "weight"))


def test_vital_measures_without_vital_nuggets_count_as_0_in_mean_zero(job: WorldJob) -> None:
    stated = [one for one in expected_of(job).values() if sum(one.counts)]
    rows = {row["measure"]: row for row in read_table(job.output, "measures_summary") if row["level"] == "overall"}
    (summary,) = (row for row in read_table(job.output, "summary") if row["level"] == "overall")
    assert any(one.measures["vital"][0] is None for one in stated)
    for measure, found in (("vital", summary), ("vital", rows["vital"]), ("strict_vital", rows["strict_vital"])):
        values = [one.measures[measure][0] or 0.0 for one in stated]
        assert found["mean_zero"] == pytest.approx(sum(values) / len(values))
    assert rows["all"]["mean_zero"] is None


def test_every_distinct_request_is_sent_once(job: WorldJob) -> None:
    """Responses to one query share nuggets and ratings. A nugget without a label is sent in a list and then singly."""
    asked = set()

    def ask(stage: str, **variables: Any) -> None:
        asked.add((stage, json.dumps(variables, sort_keys=True)))

    judged = {sample["sample_id"]: judge_nuggets(sample, OPTIONS, ask).verdict for sample in job.samples}
    assert judged == expected_of(job)
    found = Counter(arrival.stage for arrival in job.server.arrivals())
    assert found == Counter(stage for stage, _ in asked)
    assert found["assign_nuggets"] > found["rate_nuggets"] > found["create_nuggets"]


@pytest.mark.slow
def test_a_plan_is_exact_once_all_is_known_and_a_bound_before(run_here: RunHere, job: WorldJob, tmp_path: Path) -> None:
    usage = {row["stage"]: row["requests"] for row in read_table(job.output, "usage")}
    before = {stage: usage[stage] for stage in ("create_nuggets", "rate_nuggets", "assign_nuggets")}
    calls = job.server.count()
    known, fresh = (planned(run_here, job, output) for output in (job.output, tmp_path / "other"))
    for stage, count in before.items():
        assert (known[stage]["exact"], known[stage]["requests"], known[stage]["reused"]) == (True, count, count)
        assert not fresh[stage]["exact"] or stage == "create_nuggets"
    assert fresh["create_nuggets"]["requests"] >= before["create_nuggets"]
    assert fresh["create_nuggets"]["expected_requests"] > 0
    assert job.server.count() == calls


def planned(run_here: RunHere, job: WorldJob, output: Path) -> dict[str, Row]:
    words = words_of(job.server, job.path, output, *NUGGETS, "--json", settings=SETTINGS, command="plan")
    ended = run_here.command(words)
    assert ended.code == 0, ended.err
    return {row["stage"]: row for row in json.loads(ended.out)}


def test_a_report_has_the_content_of_the_tables(job: WorldJob) -> None:
    assert_reported(job.output)


def test_show_lists_nuggets_by_their_support(run_here: RunHere, job: WorldJob) -> None:
    name, one = next((name, one) for name, one in expected_of(job).items() if one.counts[0] and one.counts[1])
    ended = run_here.command(["show", str(job.output), "--sample", name])
    assert ended.code == 0, ended.err
    for nugget in one.nuggets:
        assert not nugget.kept or f"({nugget.importance}" in ended.out
    assert "supported: 1 nugget, vital nuggets first" in ended.out or one.counts[0] > 1


@pytest.mark.slow
def test_answers_of_trec_rag_are_scored_by_a_file_of_nuggets(run_here: RunHere, tmp_path: Path) -> None:
    worlds = [world for world in nugget_worlds(28) if world.kind == "rated"]
    nuggets = {str(world.seed): [{"text": one["text"]} for one in map(named, world.references)] for world in worlds}
    topics = [
        {"qid": name, "query": world.query, "nuggets": nuggets[name]}
        for name, world in zip(nuggets, worlds, strict=True)
    ]
    said = {str(world.seed): world.samples()[0]["response"] for world in worlds}
    answers = [
        {"run_id": "r", "topic_id": name, "answer": [{"text": text, "citations": []}], "references": ["doc_1#2"]}
        for name, text in said.items()
    ]
    path, file = write_samples(tmp_path / "answers.jsonl", answers), write_samples(tmp_path / "topics.jsonl", topics)
    settings = {"nuggets.file": file}
    with ModelServer(answer="world") as server:
        ended = run_here(server, path, tmp_path / "out", *NUGGETS, "--format", "trec_rag_answers", settings=settings)
    assert ended.code == 0, ended.err
    ended = run_here.command(["export", str(tmp_path / "out"), "--trec", str(tmp_path / "run.txt")])
    assert ended.code == 0, ended.err
    lines = [line.split("\t") for line in (tmp_path / "run.txt").read_text(encoding="utf-8").splitlines()]
    found = {(name, measure): value for name, measure, value in lines}
    for name, world in zip(nuggets, worlds, strict=True):
        sample = {"query": world.query, "response": said[name], "references": nuggets[name]}
        measures = expected_nuggets(sample, [], Options()).measures
        for measure in ("strict_vital", "vital", "all"):
            value = measures[measure][0]
            assert found.get((name, measure)) == (None if value is None else f"{value:.4f}"), (name, measure)
    assert ("all", "vital") in found


def named(reference: Any) -> Mapping[str, Any]:
    return reference if isinstance(reference, dict) else {"text": reference}
