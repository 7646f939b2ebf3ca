"""`untold calibrate`: what cheaper forms of a metric cost and err, beside the published one on the same samples."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.runs.harness import Row, read_manifest, read_table, write_samples
from tests.runs.here import RunHere

PRICES = {
    "llm.price_per_million_prompt_tokens": 1,
    "llm.price_per_million_completion_tokens": 4,
    "llm.structured": "off",
}
SMALL = "stages.classify_relation.model=small-model"
# The small model takes some pairs for neutral
ERRS = {"when": {"stage": "classify_relation", "contains": '"small-model"', "share": 0.3}, "do": {"text": "neutral"}}


def kappa_of(first: list[str], second: list[str]) -> float:
    agreed = sum(map(str.__eq__, first, second)) / len(first)
    shares = [Counter(first), Counter(second)]
    chance = sum(shares[0][name] * shares[1][name] for name in shares[0]) / len(first) ** 2
    return (agreed - chance) / (1 - chance)


def relations_of(output: Path) -> dict[tuple[str, ...], str]:
    keys = ("sample_id", "premise_id", "hypothesis_id")
    return {tuple(row[key] for key in keys): row["relation"] for row in read_table(output, "relations")}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.slow
def test_figures_are_those_of_two_full_runs(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    known = worlds(2, "noisy")
    server.configure(answer=known[0].answer, rules=[ERRS])
    path = write_samples(tmp_path / "samples.jsonl", [sample for world in known for sample in world.samples(2)])
    output = tmp_path / "out"
    given = ["--metric", "nli", "--random", "3", "--forms", f"small: {SMALL}", "--kappa", ".05", "--json"]
    ended = run_here(server, path, output, *given, settings=PRICES, command="calibrate")
    assert ended.code == 0, ended.err
    rows = read_table(output, "calibration")
    assert json.loads(ended.out) == rows
    paid = server.count()

    by_hand = {"published": tmp_path / "published", "small": tmp_path / "small"}
    for name, alone in by_hand.items():
        settings = {**PRICES, **({"stages.classify_relation.model": "small-model"} if name == "small" else {})}
        run = run_here(server, path, alone, "--metric", "nli", "--random", "3", settings=settings)
        assert run.code == 0, run.err
    used = {name: read_manifest(alone)["starts"][0]["usage"] for name, alone in by_hand.items()}
    for row in rows:
        for column in ("requests", "calls", "prompt_tokens", "completion_tokens", "cost"):
            expected = sum(stage[column] for stage in used[row["form"]])
            assert row[column] == pytest.approx(expected), column
            assert row[f"whole_{column}"] == pytest.approx(expected * 4 / 3)
        assert (row["samples"], row["of"], row["seconds"] > 0) == (3, 4, True)

    published, small = rows
    first, second = (relations_of(alone) for alone in by_hand.values())
    assert first.keys() == second.keys()
    assert small["verdicts"] == len(first)
    assert small["kappa"] == pytest.approx(kappa_of(list(first.values()), [second[key] for key in first]))
    assert small["kappa"] < 1
    assert small["kappa_low"] <= small["kappa"] <= small["kappa_high"]
    assert (published["kappa"], published["kappa_low"], published["difference"]) == (1, 1, 0)

    scores: list[dict[str, Row]] = [
        {row["sample_id"]: row for row in read_table(alone, "scores")} for alone in by_hand.values()
    ]
    differences = [scores[1][name]["score"] - row["score"] for name, row in scores[0].items()]
    assert small["difference"] == pytest.approx(mean(differences))
    assert small["agreement_high"] + small["agreement_low"] == pytest.approx(2 * mean(differences))

    good = small["kappa_low"] >= 0.05 and small["cost"] < published["cost"]
    assert [row["recommended"] for row in rows] == [False, good]
    assert "recommended: " in (output / "calibration.md").read_text()
    assert (output / "calibration.png").read_bytes().startswith(b"\x89PNG")
    # What both forms ask was asked once, and again nothing
    shared = sum(stage["requests"] for stage in used["small"] if stage["stage"] != "classify_relation")
    assert paid == sum(row["calls"] for row in rows) - shared
    before = server.count()
    again = run_here(server, path, output, *given, settings=PRICES, command="calibrate")
    assert (again.code, server.count()) == (0, before), again.err
