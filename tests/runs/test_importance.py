"""Whole jobs of the metric importance over symbolic worlds: what they conclude is what brute force concludes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from tests.fakes.expected_importance import ExpectedImportance, Options, expected_importance
from tests.fakes.model_server import ModelServer
from tests.fakes.world_importance import chunks_of, importance_worlds, texts_of
from tests.runs.harness import Row, read_table, write_samples
from tests.runs.here import RunHere
from tests.runs.importance_jobs import assert_claims, assert_facts, assert_measures, assert_scores
from tests.runs.test_icat import embedder
from tests.runs.worlds import Job

WORLDS = 42
IMPORTANCE = ("--metric", "importance")
STAGES = ("summarise_context", "extract_facts", "rate_importance", "extract_claims", "verify_claim", "check_coverage")
ImportanceJob: TypeAlias = Job[Options, ExpectedImportance]


def expect(samples: list[Row], options: Options) -> dict[str, ExpectedImportance]:
    return {
        sample["sample_id"]: expected_importance(sample, texts_of(sample), chunks_of(sample), options)
        for sample in samples
    }


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImportanceJob]:
    """Three responses to the query of each world; facts mined and given; near ones merged by words."""
    folder = tmp_path_factory.mktemp("importance")
    samples = [sample for world in importance_worlds(WORLDS) for sample in world.samples(3)]
    path = write_samples(folder / "samples.jsonl", samples)
    options = Options(min_weight=0.3, batch=4, evidence_chunks=2, ks=(1, 3))
    settings = {
        "importance.min_weight": 0.3,
        "importance.batch": 4,
        "importance.evidence_chunks": 2,
        "importance.ks": "[1,3]",
    }
    with ModelServer(answer="world") as server:
        ended = run_here(server, path, folder / "out", *IMPORTANCE, settings=settings | embedder(server))
        asked = Counter({stage: server.count(stage) for stage in STAGES})
        yield Job(server, samples, options, path, folder / "out", ended, asked, expect(samples, options))


def test_it_ends_well(job: ImportanceJob) -> None:
    assert job.ended.code == 0, job.ended.err
    assert not read_table(job.output, "failures")


def test_scores_are_those_of_brute_force(job: ImportanceJob) -> None:
    assert_scores(job.output, job.expected)


def test_measures_are_those_of_brute_force(job: ImportanceJob) -> None:
    assert_measures(job.output, job.expected)


def test_facts_are_those_of_brute_force(job: ImportanceJob) -> None:
    assert_facts(job.output, job.expected)


def test_claims_are_those_of_brute_force(job: ImportanceJob) -> None:
    assert_claims(job.output, job.expected)
