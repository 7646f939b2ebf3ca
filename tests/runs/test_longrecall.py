"""Compare jobs of the metric longrecall on symbolic worlds with brute force: the requests and the results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.expected_longrecall import ExpectedRecall, Options, Variables, expect
from tests.fakes.model_server import ModelServer
from tests.fakes.world_longrecall import longrecall_worlds
from tests.runs.harness import SETTINGS, Row, read_table, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.recalled import TABLES, assert_as_expected
from tests.runs.reported import assert_reported
from tests.runs.worlds import Job, scores_of

LONGRECALL = ("--metric", "longrecall")
WORLDS = 16
BASELINES = ("arecall", "erecall", "holistic")
STAGES = ("extract_claims", "resolve_coreference", "match_one", "match_many", "match_holistic")
# The words of the requests that fail: a topic of some pairs, and a home in some responses
REFUSED = {"match_one": "tea", "match_many": "boats", "resolve_coreference": "Osaka", "match_holistic": "rain"}
WRONG: list[Row] = [
    {"sample_id": "no references", "query": "q", "response": "Ada Mill lives in Lyon.", "references": None},
    {"sample_id": "no texts", "query": "q", "response": "Ada Mill lives in Lyon.", "references": [{"id": "a"}]},
]
RecallJob = Job[Options, ExpectedRecall]


def is_refused(stage: str, variables: Variables) -> bool:
    return stage in REFUSED and REFUSED[stage] in json.dumps(variables, ensure_ascii=False)


RULES = [{"when": {"stage": stage, "contains": text}, "do": {"status": 400}} for stage, text in REFUSED.items()]


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecallJob]:
    """Run two responses to the references of each world with a noisy judge that refuses some of the requests."""
    folder = tmp_path_factory.mktemp("worlds")
    samples = [sample for world in longrecall_worlds(WORLDS, "noisy") for sample in world.samples(2)]
    samples.append({**samples[0], "sample_id": "none", "references": []})
    path = write_samples(folder / "samples.jsonl", [*samples, *WRONG])
    options = Options("noisy", baselines=BASELINES, lost=is_refused)
    expected = {sample["sample_id"]: expect(sample, options) for sample in samples}
    with ModelServer(answer="world_noisy", rules=RULES) as server:
        ended = run_here(server, path, folder / "out", *LONGRECALL, settings=settings_for(server, folder))
        asked = Counter({stage: server.count(stage) for stage in STAGES})
        yield Job(server, samples, options, path, folder / "out", ended, asked, expected)


def settings_for(server: ModelServer, folder: Path) -> dict[str, object]:
    return {
        **SETTINGS,
        "llm.max_attempts": 1,
        "embeddings.base_url": server.base_url,
        "embeddings.model": "embedder",
        "longrecall.baselines": json.dumps(BASELINES),
        "completion_store": folder / "store",
    }


def test_every_table_is_that_of_brute_force(job: RecallJob) -> None:
    assert job.ended.code == 4, job.ended.err
    wrong = {row["sample_id"] for row in WRONG}
    tables = {name: [row for row in read_table(job.output, name) if row["sample_id"] not in wrong] for name in TABLES}
    assert_as_expected(tables, job.expected)
    assert {one.status for one in job.expected.values()} == {"ok", "partial", "failed", "no_statements"}


def test_a_run_sends_the_same_requests_as_brute_force(job: RecallJob) -> None:
    requests = {request for one in job.expected.values() for request in one.requests}
    wanted = Counter(stage for stage, _ in requests)
    assert job.asked == {stage: wanted[stage] for stage in STAGES}
    usage = {row["stage"]: row["requests"] for row in read_table(job.output, "usage")}
    assert usage == wanted


def test_the_failures_of_each_sample_are_reported(job: RecallJob) -> None:
    failures = read_table(job.output, "failures")
    assert {(row["stage"], row["error_type"]) for row in failures} == {
        *((stage, "http_400") for stage in REFUSED),
        ("input", "invalid_input"),
    }
    scores = scores_of(job.output)
    assert all(scores[row["sample_id"]]["status"] == "failed" for row in WRONG)
    errors = {row["sample_id"]: row["error"] for row in failures if row["stage"] == "input"}
    assert errors["no references"].endswith("references is null")
    assert errors["no texts"].endswith("reference 1 has no text")


def planned(run_here: RunHere, job: RecallJob, store: Path, output: Path) -> dict[str, list[Row]]:
    """Return the rows of a plan by stage. A stage that runs twice has two rows."""
    settings = settings_for(job.server, store)
    ended = run_here.command(
        words_of(job.server, job.path, output, *LONGRECALL, "--json", settings=settings, command="plan")
    )
    assert ended.code == 0, ended.err
    found: dict[str, list[Row]] = {}
    for row in json.loads(ended.out):
        found.setdefault(row["stage"], []).append(row)
    return found


@pytest.mark.slow
def test_a_plan_is_exact_with_all_results_and_otherwise_a_bound(
    run_here: RunHere, job: RecallJob, tmp_path: Path
) -> None:
    before = job.server.count()
    usage = {row["stage"]: row["requests"] for row in read_table(job.output, "usage")}
    known = planned(run_here, job, job.output.parent, job.output)
    assert {stage: sum(row["requests"] for row in rows) for stage, rows in known.items()} == usage
    assert all(row["exact"] and row["reused"] == row["requests"] for rows in known.values() for row in rows)
    unknown = planned(run_here, job, tmp_path, tmp_path / "out")
    assert unknown.keys() == usage.keys()
    for stage, rows in unknown.items():
        assert sum(row["requests"] for row in rows) >= usage[stage], stage
        assert all(row["expected_requests"] <= row["requests"] for row in rows), stage
    assert [row["exact"] for row in unknown["extract_claims"]] == [True]
    assert not any(row["exact"] for row in unknown["match_many"])
    assert job.server.count() == before


def test_measures_are_summed_up(job: RecallJob) -> None:
    summary = {(row["measure"], row["system"]): row for row in read_table(job.output, "measures_summary")}
    known = [one for one in job.expected.values() if one.status != "failed"]
    for measure in ("recall", "arecall", "holistic", "references"):
        values = [value for one in known if (value := one.measures[measure][0]) is not None]
        row = summary[measure, None]
        mean = sum(values) / len(values)
        assert row["mean"] == pytest.approx(mean), measure
    assert {system for _, system in summary} >= {None, "system0", "system1"}


def test_a_complete_run_sends_no_request(run_here: RunHere, job: RecallJob) -> None:
    before = job.server.count()
    settings = settings_for(job.server, job.output.parent)
    ended = run_here(job.server, job.path, job.output, *LONGRECALL, settings=settings)
    assert (ended.code, job.server.count()) == (4, before)


def test_samples_need_references(run_here: RunHere, job: RecallJob, tmp_path: Path) -> None:
    path = write_samples(tmp_path / "samples.jsonl", [{"sample_id": "a", "query": "q", "response": "r"}])
    ended = run_here(job.server, path, tmp_path / "out", *LONGRECALL)
    assert ended.code == 1
    assert "references" in ended.err


def test_a_report_has_the_content_of_the_tables(job: RecallJob) -> None:
    assert_reported(job.output)
