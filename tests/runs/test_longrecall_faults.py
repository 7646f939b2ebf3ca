"""Test longrecall with errors and kills in each of its stages.

The bounds equal brute force, and later runs are complete.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.fakes.expected_longrecall import ExpectedRecall, Options, Variables, expect
from tests.fakes.model_server import ModelServer
from tests.fakes.world_longrecall import longrecall_worlds
from tests.runs.fates import ATTEMPTS
from tests.runs.harness import Row, read_table, write_samples
from tests.runs.here import RunHere
from tests.runs.killing import Whole, assert_same_tables, kill_in_stages, run_whole
from tests.runs.mending import Expectation, Fates, assert_mended, faults_of
from tests.runs.recalled import TABLES, assert_as_expected

# The jobs without errors are in test_longrecall.py, which always runs, and kills of other stages are in test_kill.py
pytestmark = pytest.mark.slow
BASELINES = ("arecall", "erecall", "holistic")
STAGES = ("extract_claims", "resolve_coreference", "match_one", "match_many", "embed_text", "match_holistic")
# The stages of entailment run for the lexical candidates and again for the semantic candidates
MOMENTS = (*STAGES[:5], "match_one", "match_many", "match_holistic")
# Any text is a claim, and may be a resolved fact
UNREAD = ("match_one", "match_many", "match_holistic")
SETTINGS = {"longrecall.baselines": json.dumps(BASELINES)}
WORLDS, WORLDS_AMONG_FAULTS = 60, 200


def samples_of(count: int) -> list[Row]:
    return [sample for world in longrecall_worlds(count, "noisy") for sample in world.samples(2)]


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    path = write_samples(tmp_path_factory.mktemp("whole") / "samples.jsonl", samples_of(WORLDS))
    with ModelServer(answer="world_noisy") as server:
        yield run_whole(run_here, server, path, "longrecall", STAGES, SETTINGS)


def test_a_repeated_run_equals_brute_force(whole: Whole) -> None:
    options = Options("noisy", baselines=BASELINES)
    expected = {sample["sample_id"]: expect(sample, options) for sample in samples_of(WORLDS)}
    assert_as_expected({name: read_table(whole.output, name) for name in TABLES}, expected)
    assert {one.status for one in expected.values()} == {"ok", "no_statements"}


def test_a_run_killed_in_every_stage_sends_no_stored_request(run_here: RunHere, whole: Whole, tmp_path: Path) -> None:
    kill_in_stages(run_here, whole, tmp_path / "out", MOMENTS)
    assert_same_tables(tmp_path / "out", whole.output, (*TABLES, "failures", "summary", "measures_summary"))


def expect_all(samples: list[Row], fates: Fates) -> Expectation[ExpectedRecall]:
    """Return the expected results of all samples, and the failed requests of each sample."""
    found: Expectation[ExpectedRecall] = Expectation()
    for sample in samples:
        lost: set[tuple[str, str, str]] = set()

        def is_lost(stage: str, variables: Variables, lost: set[tuple[str, str, str]] = lost) -> bool:
            error = fates.ask(stage, **variables)
            if error:
                lost.add((stage, json.dumps(variables, sort_keys=True), error))
            return error is not None

        name = sample["sample_id"]
        found.samples[name] = expect(sample, Options("noisy", baselines=BASELINES, lost=is_lost))
        found.failures += Counter((name, stage, error) for stage, _, error in lost)
    return found


def test_every_fault_in_every_stage(run_here: RunHere, tmp_path: Path) -> None:
    samples, output = samples_of(WORLDS_AMONG_FAULTS), tmp_path / "out"
    path = write_samples(tmp_path / "samples.jsonl", samples)
    with ModelServer(answer="world_noisy") as server:
        # Each call has one text, because the key of a request does not depend on the other texts of its call
        place = {"embeddings.base_url": server.base_url, "embeddings.model": "embedder", "embeddings.batch": 1}
        settings = {**SETTINGS, **place, "llm.timeout_seconds": 2, "llm.max_attempts": ATTEMPTS}

        def check(expected: Mapping[str, ExpectedRecall]) -> None:
            assert_as_expected({name: read_table(output, name) for name in TABLES}, expected)

        first = assert_mended(
            lambda *flags: run_here(server, path, output, "--metric", "longrecall", *flags, settings=settings),
            server,
            output,
            faults_of(STAGES, unread=UNREAD, hanging=("extract_claims", "embed_text")),
            lambda fates: expect_all(samples, fates),
            check,
        )
    assert {one.status for one in first.samples.values()} == {"ok", "partial", "failed", "no_statements"}
    # A score of zero only depends on the judged references
    assert all(one.count(False) for one in first.samples.values() if one.measures.get("recall", [None])[0] == 0.0)
