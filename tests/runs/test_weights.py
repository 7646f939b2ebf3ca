"""Test jobs that weigh statements by source and relevance. The scores equal the sums over the rows of the tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.world import worlds
from tests.runs.harness import Row, read_table
from tests.runs.here import RunHere
from tests.runs.world_jobs import WorldJob, run_worlds
from tests.runs.worlds import with_kinds

pytestmark = pytest.mark.gate

METRICS = ("e2e", "nli", "qa")
WEIGHTS = {"news": 0.5, "2": 0.25}
SETTINGS = {"nli.weighted": "true", "qa.weighted": "true", "sources.weights": "{news: 0.5, '2': 0.25}"}


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldJob]:
    samples = [with_kinds(sample) for world in worlds(6, "open", ids=True) for sample in world.samples(2)]
    folder = tmp_path_factory.mktemp("weights")
    with run_worlds(run_here, folder, samples, "--metric", ",".join(METRICS), settings=SETTINGS) as ran:
        yield ran


def statements_of(job: WorldJob, row: Row) -> list[Row]:
    found = [one for one in read_table(job.output, "statements") if one["sample_id"] == row["sample_id"]]
    return [one for one in found if one["metric"] == row["metric"]]


def kinds_of(job: WorldJob) -> dict[str, dict[str, str | None]]:
    """Return the kind of each context by sample and id."""
    rows = read_table(job.output, "samples")
    return {row["sample_id"]: {one["id"]: one["kind"] for one in row["contexts"]} for row in rows}


def share(statements: list[Row], weights: list[float]) -> float | None:
    whole = sum(weights)
    return sum(w for one, w in zip(statements, weights, strict=True) if one["covered"]) / whole if whole else None


def test_weights_of_sources_equal_the_setting(job: WorldJob) -> None:
    assert job.ended.code == 0, job.ended.err
    kinds = {
        row["sample_id"]: {one["id"]: one["kind"] for one in row["contexts"]}
        for row in read_table(job.output, "samples")
    }
    found = set()
    for row in read_table(job.output, "statements"):
        own = kinds[row["sample_id"]]
        expected = max(WEIGHTS.get(name, WEIGHTS.get(own[name] or "", 1.0)) for name in row["sources"])
        assert row["source_weight"] == expected
        found.add((row["metric"], expected))
    assert {weight for _, weight in found} >= {0.5, 1.0}
    assert {metric for metric, _ in found} == set(METRICS)


def test_measures_are_sums_over_statements(job: WorldJob) -> None:
    measures = {
        (row["sample_id"], row["metric"], row["measure"]): row["value"] for row in read_table(job.output, "measures")
    }
    kinds = {
        row["sample_id"]: {one["id"]: one["kind"] for one in row["contexts"]}
        for row in read_table(job.output, "samples")
    }
    changed = 0
    for row in read_table(job.output, "scores"):
        key, statements = (row["sample_id"], row["metric"]), statements_of(job, row)
        own = kinds[row["sample_id"]]
        weights = [one["source_weight"] for one in statements]
        assert measures[*key, "source_weighted"] == approx(share(statements, weights))
        for source in WEIGHTS:
            left = [one for one in statements if any(source not in (name, own[name]) for name in one["sources"])]
            without = share(left, [1.0] * len(left))
            assert measures[*key, f"without:{source}"] == approx(without)
            change = None if without is None or row["score"] is None else without - row["score"]
            assert measures[*key, f"change_without:{source}"] == approx(change)
            changed += bool(change)
    assert changed


def approx(value: float | None) -> object:
    return None if value is None else pytest.approx(value)


def test_statements_are_ranked_by_relevance(job: WorldJob) -> None:
    measures = {
        (row["sample_id"], row["metric"], row["measure"]): row["value"] for row in read_table(job.output, "measures")
    }
    ranked = 0
    for row in read_table(job.output, "scores"):
        statements = sorted(statements_of(job, row), key=lambda one: one["rank"] or 0)
        if row["metric"] == "e2e":
            assert not any(one["relevance"] or one["rank"] for one in statements)
            continue
        assert [one["rank"] for one in statements] == list(range(1, len(statements) + 1))
        assert all(one["weight"] == (one["relevance"] - 1) / 4 for one in statements)
        assert [one["weight"] for one in statements] == sorted((one["weight"] for one in statements), reverse=True)
        key = (row["sample_id"], row["metric"])
        assert measures[*key, "weighted_recall"] == approx(share(statements, [one["weight"] for one in statements]))
        assert measures[*key, "recall@5"] == approx(share(statements[:5], [1.0] * len(statements[:5])))
        ranked += len(statements)
    assert ranked


def test_the_summary_shows_the_changes_without_a_source(job: WorldJob) -> None:
    rows = {
        (row["metric"], row["measure"]): row
        for row in read_table(job.output, "measures_summary")
        if row["level"] == "overall"
    }
    for metric in METRICS:
        row = rows[metric, "change_without:news"]
        values = [
            one["value"]
            for one in read_table(job.output, "measures")
            if (one["metric"], one["measure"]) == (metric, "change_without:news") and one["value"] is not None
        ]
        assert row["mean"] == pytest.approx(sum(values) / len(values))
        assert row["ci_low"] <= row["mean"] <= row["ci_high"]
