"""Compare nuggets with credit only from supported sentences with brute force, also with faults."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.citations import citation_worlds, pages_of
from tests.fakes.criteria import CITED
from tests.fakes.expected_nuggets import ExpectedNuggets
from tests.fakes.model_server import ModelServer
from tests.fakes.supported_nuggets import OPTIONS, SCORES, JudgedSupport, supported_samples
from tests.runs.fates import ATTEMPTS
from tests.runs.harness import Row, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.mending import Expectation, Fates, assert_mended, faults_of
from tests.runs.test_nuggets import assert_concluded
from tests.runs.world_jobs import WorldJob, run_worlds

WORLDS, RESPONSES = 30, 2
STAGES = ("rate_nuggets", "assign_nuggets", CITED)
Expected = Mapping[str, ExpectedNuggets | None]


def settings_of(folder: Path, worlds: int) -> dict[str, Any]:
    """Return the settings. All pages of the worlds are in one file."""
    pages = write_samples(folder / "pages.jsonl", pages_of(citation_worlds(worlds)))
    return {"nuggets.supported": "true", "nuggets.top_k": OPTIONS.top_k, "citations.sources": str(pages)}


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldJob]:
    folder = tmp_path_factory.mktemp("supported")
    samples = [dict(sample) for sample, _ in supported_samples(WORLDS, RESPONSES)]
    with run_worlds(run_here, folder, samples, "--metric", "nuggets", settings=settings_of(folder, WORLDS)) as ran:
        yield ran


def expected_of(ask: Any, worlds: int = WORLDS) -> Expectation[ExpectedNuggets | None]:
    """Return the expected samples and lost requests."""
    found: Expectation[ExpectedNuggets | None] = Expectation()
    for sample, sentences in supported_samples(worlds, RESPONSES):
        judged = JudgedSupport(ask)
        judged.judge(sample, sentences)
        found.samples[sample["sample_id"]] = judged.verdict
        found.failures.update((sample["sample_id"], stage, error) for stage, _, error in judged.lost)
    return found


def test_all_tables_and_requests_are_those_of_brute_force(job: WorldJob) -> None:
    assert job.ended.code == 0, job.ended.err
    asked = set()

    def ask(stage: str, **variables: Any) -> None:
        asked.add((stage, json.dumps(variables, sort_keys=True)))

    expected = expected_of(ask).samples
    assert_concluded(job.output, expected)
    assert Counter(arrival.stage for arrival in job.server.arrivals()) == Counter(stage for stage, _ in asked)
    known = [one.measures for one in expected.values() if one is not None]
    for name in SCORES:
        pairs = [(each[name], each[f"{name}_supported"]) for each in known if each[name][1] is not None]
        assert all(low <= plain[1] and high <= plain[2] for plain, (_, low, high) in pairs if low is not None)
        assert min(sum(low < plain[0] for plain, (_, low, _) in pairs), sum(low > 0 for _, (_, low, _) in pairs)) > 3
        assert sum(value is None for _, (value, _, _) in pairs) > 3
        assert sum(value is not None and value > 0 for _, (value, _, _) in pairs) > 3


@pytest.mark.gate
def test_a_plan_knows_the_requests_of_a_run(run_here: RunHere, job: WorldJob, tmp_path: Path) -> None:
    """The plan of the metric citations sends nothing either, because its requests for the support are the same."""

    def planned(output: Path, metrics: str) -> dict[str, Row]:
        words = words_of(job.server, job.path, output, "--metric", metrics, "--json", settings=settings, command="plan")
        ended = run_here.command(words)
        assert ended.code == 0, ended.err
        return {row["stage"]: row for row in json.loads(ended.out)}

    settings = settings_of(tmp_path, WORLDS)
    for known in (planned(job.output, "nuggets"), planned(job.output, "citations")):
        assert all(row["exact"] and row["reused"] == row["requests"] > 0 for row in known.values() if row["requests"])
        assert known[CITED]["requests"] > 0
    fresh = planned(tmp_path / "other", "nuggets")
    assert fresh[CITED]["requests"] > 0
    assert not fresh["assign_nuggets"]["exact"]


@pytest.mark.gate
def test_every_fault(run_here: RunHere, tmp_path: Path) -> None:
    worlds = 150
    samples = [dict(sample) for sample, _ in supported_samples(worlds, RESPONSES)]
    path, output = write_samples(tmp_path / "samples.jsonl", samples), tmp_path / "out"
    settings = {"llm.timeout_seconds": 2, "llm.max_attempts": ATTEMPTS, **settings_of(tmp_path, worlds)}

    def expect(fates: Fates) -> Expectation[ExpectedNuggets | None]:
        return expected_of(fates.ask, worlds)

    def check(expected: Expected) -> None:
        assert_concluded(output, expected)

    with ModelServer(answer="world") as server:
        first = assert_mended(
            lambda *flags: run_here(server, path, output, "--metric", "nuggets", *flags, settings=settings),
            server,
            output,
            faults_of(STAGES, unread=STAGES, hanging=(CITED,)),
            expect,
            check,
        )
    statuses = Counter("failed" if one is None else one.status for one in first.samples.values())
    assert min(statuses[name] for name in ("ok", "partial", "failed")) > 5, statuses
