"""Replay the recorded completions of judges in a whole job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.answers import collapse
from tests.fakes.model_server import ModelServer
from tests.fakes.recorded import Expected, expectations, recorded_samples, write_replay
from tests.runs.harness import read_table, sum_usage, write_samples
from tests.runs.here import RunHere

pytestmark = pytest.mark.gate

JUDGES = (
    "llama-3.3-70b-instruct",
    pytest.param("gpt-oss-120b", marks=pytest.mark.slow),
    pytest.param("Qwen2.5-72B-Instruct", marks=pytest.mark.slow),
)


# The other test runs are too small to benefit from compilation
COMPILED = {"spark.conf.spark.sql.codegen.wholeStage": "true", "spark.conf.spark.sql.adaptive.enabled": "true"}


def _sorted(statements: Sequence[Expected]) -> list[Expected]:
    return sorted((text, tuple(sorted(sources))) for text, sources in statements)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_recorded_judge_has_the_recorded_results(
    run_here: RunHere, server: ModelServer, data: Path, tmp_path: Path, judge: str
) -> None:
    path, output = data / "wikicontradict" / "recorded_e2e" / f"{judge}.jsonl", tmp_path / "out"
    calls, expected = write_replay(path, tmp_path / "table.json"), expectations(path)
    server.configure(answer=f"replay:{tmp_path / 'table.json'}")
    samples = recorded_samples(path)
    assert len(samples) == len(expected) == 1200
    settings = {"summarise_contexts": "false", **COMPILED}
    ended = run_here(server, write_samples(tmp_path / "samples.jsonl", samples), output, settings=settings)
    assert ended.code == 0, ended.err
    assert server.count() == sum_usage(output, "calls") == sum_usage(output, "answered") == calls

    statements: dict[str, tuple[list[Expected], list[Expected]]] = defaultdict(lambda: ([], []))
    for row in read_table(output, "statements"):
        statements[row["sample_id"]][not row["covered"]].append((collapse(row["text"]), tuple(row["sources"])))
    scores = {row["sample_id"]: row for row in read_table(output, "scores")}
    assert scores.keys() == expected.keys()
    for sample_id, (covered, uncovered, value) in expected.items():
        found = [_sorted(part) for part in statements[sample_id]]
        assert found == [_sorted(covered), _sorted(uncovered)], sample_id
        row = scores[sample_id]
        assert (row["covered"], row["uncovered"], row["score"]) == (len(covered), len(uncovered), value)
        assert row["status"] == ("no_statements" if value is None else "ok")
