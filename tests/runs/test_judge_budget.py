"""`untold estimate` without RUN: the judge scores all samples, a language model as many as the budget pays for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.runs.harness import SETTINGS, read_table, write_samples
from tests.runs.here import RunHere
from untold.jobs.run.manifest import sum_starts
from untold.jobs.run_tables import open_run

PRICES = {"llm.price_per_million_prompt_tokens": 100, "llm.price_per_million_completion_tokens": 100}
SAMPLES = 30


def words(samples: Path, output: Path, server: ModelServer, *more: str, prices: bool = True) -> list[str]:
    settings = {**SETTINGS, **(PRICES if prices else {}), "llm.base_url": server.base_url}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    given = ("--proxy", "judge", "--input", str(samples), "--metric", "e2e", "--output", str(output))
    return ["estimate", *given, *more, *sets]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    return write_samples(
        tmp_path / "samples.jsonl", [one for world in worlds(SAMPLES // 2) for one in world.samples(2)]
    )


@pytest.mark.gate
def test_a_budget_decides_how_many_samples_the_language_model_scores(
    run_here: RunHere, samples: Path, tmp_path: Path
) -> None:
    output = tmp_path / "estimated"
    with ModelServer(answer="world_closed") as server:
        asked = words(samples, output, server, "--judge-budget", "0.9", "--json")
        first = run_here.command(asked)
        assert first.code == 0, first.err
        calls = len(server.arrivals())
        second = run_here.command(asked)
        assert second.code == 0, second.err
        assert len(server.arrivals()) == calls
    assert json.loads(first.out) == json.loads(second.out)
    (whole,) = [row for row in json.loads(first.out)["estimates"] if row["level"] == "overall"]
    judged, proxy = open_run(output / "judged").manifest, open_run(output / "proxy").manifest
    assert (whole["metric"], whole["proxy"], whole["n"]) == ("e2e", "nli", SAMPLES)
    assert 2 <= whole["judged"] == judged["input"]["draw"]["rows"] < SAMPLES
    assert f"the language model scores {whole['judged']} of {SAMPLES} samples" in first.err
    # The judge needs no call, and the language model stays within the budget and uses more than half of it
    assert sum_starts(proxy, "calls") == 0
    cost = sum(sum_starts(one, "cost") for one in (judged, open_run(output / "judged-pilot").manifest))
    assert 0.45 < cost <= 0.9
    (row,) = [one for one in read_table(output, "estimates/estimates") if one["level"] == "overall"]
    assert row["mean"] == whole["mean"]


def test_wrong_use_is_named_before_anything_is_scored(run_here: RunHere, samples: Path, tmp_path: Path) -> None:
    output = tmp_path / "estimated"
    with ModelServer(answer="world_closed") as server:
        neither = run_here.command(words(samples, output, server))
        both = run_here.command(words(samples, output, server, "--judge-budget", "1", "--random", "3"))
        scored = run_here.command(["estimate", "run", "--proxy", "judge", "--judge-budget", "1"])
        labels = run_here.command(words(samples, output, server, "--random", "3", "--labels", "people.csv"))
        judge = run_here.command([*words(samples, output, server, "--random", "3")[:9], "--endpoint", "judge"])
        assert not server.arrivals()
    ended = [neither, both, scored, labels, judge]
    assert [one.code for one in ended] == [2] * 5, [one.err for one in ended]
    assert "one of --judge-budget and --random" in neither.err
    assert "one of --judge-budget and --random" in both.err
    assert "RUN is scored" in scored.err
    assert "--labels needs RUN" in labels.err
    assert not output.exists()


@pytest.mark.gate
def test_a_budget_needs_prices_and_must_pay_for_two_samples(run_here: RunHere, samples: Path, tmp_path: Path) -> None:
    # The error is reported before the judge scores the samples
    with ModelServer(answer="world_closed") as server:
        free = run_here.command(words(samples, tmp_path / "free", server, "--judge-budget", "1", prices=False))
        small = run_here.command(words(samples, tmp_path / "small", server, "--judge-budget", "0.001"))
        assert not server.arrivals()
    assert (free.code, small.code) == (1, 1)
    assert "the language model has no price" in free.err
    assert "--judge-budget pays for fewer than 2 samples" in small.err
    assert not any((tmp_path / name / "proxy").exists() for name in ("free", "small"))
