"""Kill a run of icat with SIGKILL in each of its stages. The next run continues and sends no stored request again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.expected_icat import Options, expected_icat
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import icat_worlds
from tests.runs.harness import write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import TABLES, concluded, in_contexts, read_concluded
from tests.runs.killing import Whole, assert_same_tables, kill_in_stages, run_whole

# The test of a killed run with other stages is in test_kill_in_writes.py, which always runs
pytestmark = pytest.mark.slow
STAGES = ("extract_claims", "generate_aspects", "embed_text", "classify_relation", "align_claims")
SAMPLES = [sample for world in icat_worlds(16, "noisy", ids=True) for sample in world.samples(2)]


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    path = write_samples(tmp_path_factory.mktemp("whole") / "samples.jsonl", SAMPLES)
    with ModelServer(answer="world_noisy") as server:
        yield run_whole(run_here, server, path, "icat", STAGES, {})


def test_a_repeated_run_equals_brute_force(whole: Whole) -> None:
    found = read_concluded(whole.output)
    expected = {one["sample_id"]: expected_icat(one, in_contexts(one), Options(judge="noisy")) for one in SAMPLES}
    assert found == {name: concluded(one) for name, one in expected.items()}


@pytest.mark.parametrize("stages", [STAGES[3:4], STAGES], ids=["one stage", "every stage"])
def test_a_run_killed_in_its_stages_sends_no_stored_request(
    run_here: RunHere, whole: Whole, tmp_path: Path, stages: tuple[str, ...]
) -> None:
    kill_in_stages(run_here, whole, tmp_path / "out", stages)
    assert_same_tables(tmp_path / "out", whole.output, TABLES)
