"""Compare the tables of a whole job of the metric rubric over symbolic worlds with brute force."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.criteria import STAGE
from tests.fakes.rubrics import ExpectedRubric, JudgedRubric, rubric_worlds
from tests.jobs.report.outputs import data_of
from tests.runs.harness import Row, read_table, words_of
from tests.runs.here import RunHere
from tests.runs.world_jobs import WorldJob, assert_measured, run_worlds
from tests.runs.worlds import concluded_of, rows_by_sample
from untold.jobs.api import open_run
from untold.jobs.report.page import make_report

RUBRIC = ("--metric", "rubric")
WORLDS, RESPONSES, LISTED = 28, 2, 4
SETTINGS = {"rubric.score": "relative", "rubric.list_size": LISTED}


def expected_of(job: WorldJob) -> Mapping[str, ExpectedRubric]:
    """Return the result of brute force for each sample."""
    judge = JudgedRubric(lambda *_, **__: None, "relative", LISTED)
    return {sample["sample_id"]: judge.judged(sample) for sample in job.samples}


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldJob]:
    """Run two responses to the query of each world, with one ground truth. Completions leave criteria open."""
    samples = [sample for world in rubric_worlds(WORLDS) for sample in world.samples(RESPONSES)]
    with run_worlds(run_here, tmp_path_factory.mktemp("rubric"), samples, *RUBRIC, settings=SETTINGS) as ran:
        yield ran


def test_all_tables_equal_brute_force(job: WorldJob) -> None:
    assert job.ended.code == 0, job.ended.err
    assert not read_table(job.output, "failures")
    assert_concluded(job.output, expected_of(job), "relative")
    assert {one.status for one in expected_of(job).values()} == {"ok", "no_statements"}


def assert_concluded(output: Path, expected: Mapping[str, ExpectedRubric], score: str) -> None:
    """Compare all tables with brute force."""
    scores, measures, criteria = concluded_of(output, "criteria")
    assert scores.keys() == expected.keys()
    for name, one in expected.items():
        assert_measured(scores[name], measures[name], one, one.measures[score])
        own = sorted(criteria[name], key=lambda each: each["number"])
        assert [(each["verdict"], each["grade"], each["earned"]) for each in own] == [
            (verdict, grade, pytest.approx(earned)) for verdict, grade, earned in one.criteria
        ], name


def test_reasons_are_columns(job: WorldJob) -> None:
    rows = read_table(job.output, "criteria")
    judged = [row for row in rows if row["verdict"] and row["reason"]]
    assert len(judged) > 100
    assert all(row["reason"].startswith("It says ") for row in judged)
    assert any(row["reference_reason"] for row in rows)


def test_every_distinct_request_is_sent_once(job: WorldJob) -> None:
    """Systems with one ground truth share its requests. Open criteria are requested in another list, then singly."""
    asked = set()

    def ask(stage: str, **variables: Any) -> None:
        asked.add((stage, json.dumps(variables, sort_keys=True)))

    judge = JudgedRubric(ask, "relative", LISTED)
    assert {sample["sample_id"]: judge.judged(sample) for sample in job.samples} == expected_of(job)
    assert Counter(arrival.stage for arrival in job.server.arrivals()) == {STAGE: len(asked)}
    assert any(len(json.loads(variables)["criteria"]) == 1 for _, variables in asked)


def test_means_are_clipped_as_in_healthbench(job: WorldJob) -> None:
    rows = {(row["measure"], row["system"]): row for row in read_table(job.output, "measures_summary")}
    for system in (None, "S0", "S1"):
        own = [
            expected_of(job)[sample["sample_id"]].measures["strict"][0]
            for sample in job.samples
            if system in (None, sample["system"])
        ]
        known = [value for value in own if value is not None]
        mean = sum(known) / len(known)
        assert rows["strict", system]["mean"] == pytest.approx(mean)
        assert rows["strict_clipped", system]["mean"] == pytest.approx(min(1.0, max(0.0, mean)))
    assert min(one.measures["strict"][0] or 0.0 for one in expected_of(job).values()) < 0
    assert ("dimension:accuracy", None) in rows


def test_a_plan_is_exact_once_all_is_known_and_a_bound_before(run_here: RunHere, job: WorldJob, tmp_path: Path) -> None:
    (usage,) = read_table(job.output, "usage")
    calls = job.server.count()
    (known,), (fresh,) = (planned(run_here, job, output) for output in (job.output, tmp_path / "other"))
    assert (known["exact"], known["requests"], known["reused"]) == (True, usage["requests"], usage["requests"])
    # A plan counts the lists without completions, and no request for an open criterion
    first = {
        json.dumps([sample["query"], text, [one.get("text", one.get("criterion")) for one in own]])
        for sample in job.samples
        for text in (sample["response"], sample["ground_truth"])
        if text.strip()
        for start in range(0, len(sample["rubric"]), LISTED)
        for own in [sample["rubric"][start : start + LISTED]]
    }
    assert (fresh["requests"], fresh["stage"]) == (len(first), STAGE)
    assert job.server.count() == calls


def planned(run_here: RunHere, job: WorldJob, output: Path) -> list[Row]:
    words = words_of(job.server, job.path, output, *RUBRIC, "--json", settings=SETTINGS, command="plan")
    ended = run_here.command(words)
    assert ended.code == 0, ended.err
    found: list[Row] = json.loads(ended.out)
    return found


def test_a_report_has_the_criteria_of_the_tables(job: WorldJob) -> None:
    data = data_of(make_report([open_run(job.output)]))
    texts = data["texts"]
    shown = {
        one["id"]: [
            (texts[row["text"]], row["points"], row.get("dimension"), row.get("verdict"))
            for row in one["metrics"]["rubric"].get("criteria", ())
        ]
        for one in data["samples"]
    }
    for name, rows in rows_by_sample(job.output, "criteria").items():
        assert shown[name] == [
            (row["text"], row["points"], row["dimension"], row["grade"] or row["verdict"]) for row in rows
        ]


def test_show_lists_criteria_by_dimension(run_here: RunHere, job: WorldJob) -> None:
    samples = {sample["sample_id"]: sample for sample in job.samples}
    name = next(name for name, one in expected_of(job).items() if one.counts[0] and one.counts[1])
    ended = run_here.command(["show", str(job.output), "--sample", name])
    assert ended.code == 0, ended.err
    assert ended.out.count("points\n") == len(
        {one.get("dimension", one.get("axis")) for one in samples[name]["rubric"]}
    )
    assert "reason: It says" in ended.out
    empty = next(name for name, one in expected_of(job).items() if one.status == "no_statements")
    assert (
        "undefined: no criterion has positive points"
        in run_here.command(["show", str(job.output), "--sample", empty]).out
    )
