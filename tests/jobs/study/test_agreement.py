"""What scores earn against labels and instances, and the floors beside them, counted by Spark."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.meta_evaluate import add_overlap
from jobs.study import agreement
from udfs.statistics.confusion import LABELS, match_label
from udfs.statistics.intervals import Interval

Rows = list[dict[str, Any]]
Scores = Mapping[str, float | None]
SCORES = "model string, metric string, sample_id string, score double"
VALUES = (0.0, 0.25, 0.5, 1.0, None)
SETS = ("all", "D", "C1", "C2", "C3")


def collected(frame: DataFrame) -> Rows:
    rows: Rows = frame.toArrow().to_pylist()
    return rows


def test_every_label_and_score_earns_what_it_matches(spark: SparkSession) -> None:
    cases = [
        (f"s{number}", label, score) for number, (label, score) in enumerate((a, b) for a in LABELS for b in VALUES)
    ]
    samples = spark.createDataFrame(
        [(name, "q", label) for name, label, _ in cases], "sample_id string, query string, label string"
    )
    scores = spark.createDataFrame([("m", "e2e", name, score) for name, _, score in cases], SCORES)
    earned = {
        (row["unit"], row["undefined"]): row["points"] for row in collected(agreement.label_points(scores, samples))
    }
    for name, label, score in cases:
        assert earned.pop((name, "mismatch")) == match_label(score, label)
        assert earned.pop((name, "zero")) == match_label(0.0 if score is None else score, label)
    assert not earned


def conflictbank(spark: SparkSession, groups: Mapping[tuple[int, str], Scores]) -> dict[tuple[str, str, str], int]:
    """By unit, undefined and measure: the points of (row, claim) groups whose scores are given by context set."""
    named = [(f"{row}-{claim}-{name}", row, claim, name) for row, claim in groups for name in SETS]
    samples = spark.createDataFrame(named, "sample_id string, row long, claim string, context_set string")
    given = [("m", "e2e", name, groups[row, claim][context_set]) for name, row, claim, context_set in named]
    points = agreement.conflictbank_points(spark.createDataFrame(given, SCORES), samples)
    return {(row["unit"], row["undefined"], row["measure"]): row["points"] for row in collected(points)}


def of_sets(*scores: float | None) -> Scores:
    return dict(zip(SETS, scores, strict=True))


@pytest.mark.parametrize(
    ("claim", "scores", "strict", "lax"),
    [
        # all, D, C1, C2, C3: (points under mismatch, under zero)
        ("default", of_sets(0.5, 1.0, 0.0, 0.0, 0.0), (5, 5), (3, 3)),
        ("counterfactual", of_sets(0.5, 0.0, 1.0, 1.0, 1.0), (5, 5), (3, 3)),
        ("default", of_sets(0.5, 0.0, 1.0, 1.0, 1.0), (1, 1), (0, 0)),
        ("default", of_sets(1.0, 1.0, 0.0, 0.5, None), (2, 3), (2, 3)),
        ("counterfactual", of_sets(0.25, None, 1.0, 0.5, 0.0), (2, 3), (0, 2)),
        ("counterfactual", of_sets(0.0, 0.5, 0.5, 0.75, 1.0), (1, 1), (2, 2)),
        ("default", of_sets(None, None, None, None, None), (0, 3), (0, 0)),
        ("counterfactual", of_sets(None, None, None, None, None), (0, 1), (0, 0)),
    ],
)
def test_strict_and_lax_points_of_hand_computed_groups(
    spark: SparkSession, claim: str, scores: Scores, strict: tuple[int, int], lax: tuple[int, int]
) -> None:
    earned = conflictbank(spark, {(7, claim): scores})
    for convention, of_strict, of_lax in zip(("mismatch", "zero"), strict, lax, strict=True):
        assert earned[f"7-{claim}", convention, "lmr_strict"] == of_strict
        assert earned[f"7-{claim}", convention, "lmr_lax"] == of_lax
        assert earned[f"7-{claim}", convention, "lmr"] == 3 * of_strict + 5 * of_lax
    assert len(earned) == 6


def strict_and_lax(claim: str, scores: Scores) -> tuple[float, float]:
    """LMR_CB of one group by the published formula; what compares an undefined score is false."""
    everything, default = scores["all"], scores["D"]
    strict = [everything is not None and 0 < everything < 1]
    strict += [scores[name] == float((claim == "default") == (name == "D")) for name in SETS[1:]]
    lax = []
    for name in SETS[2:]:
        score = scores[name]
        known = score is not None and default is not None
        lax.append(known and (score < default if claim == "default" else score > default))
    return sum(strict) / 5, sum(lax) / 3


def test_points_of_random_groups_are_those_of_the_formula(spark: SparkSession) -> None:
    draw = random.Random(5)
    claims = ("default", "counterfactual")
    groups = {(row, claim): of_sets(*draw.choices(VALUES, k=5)) for row in range(60) for claim in claims}
    earned = conflictbank(spark, groups)
    for (row, claim), scores in groups.items():
        filled = {name: score or 0.0 for name, score in scores.items()}
        for convention, known in (("mismatch", scores), ("zero", filled)):
            strict, lax = strict_and_lax(claim, known)
            got = [earned[f"{row}-{claim}", convention, name] for name in ("lmr_strict", "lmr_lax", "lmr")]
            assert [got[0] / 5, got[1] / 3, got[2] / 30] == pytest.approx([strict, lax, (strict + lax) / 2])


def test_floors_are_of_the_constant_label_and_of_the_words(spark: SparkSession) -> None:
    contexts = [{"id": "1", "text": "alpha beta"}, {"id": "2", "text": "gamma delta"}]
    rows = [
        ("a", "q", "alpha gamma", contexts, "Correct"),
        ("b", "q", "Beta!", contexts, "Partially correct"),
        ("c", "p", "none of it", contexts, "Partially correct"),
        ("d", "p", "none of it", [], "Incorrect"),
        ("e", None, None, None, "Incorrect"),
    ]
    contexts_type = "array<struct<id: string, text: string>>"
    schema = f"sample_id string, query string, response string, contexts {contexts_type}, label string"
    samples = add_overlap(spark.createDataFrame(rows, schema))
    points = agreement.floor_points(samples, "Partially correct")
    earned = {(row["measure"], row["undefined"]): "" for row in collected(points)}
    for row in sorted(collected(points), key=lambda row: row["unit"]):
        earned[row["measure"], row["undefined"]] += str(row["points"])
    assert earned == {
        ("floor_constant", "mismatch"): "01100",
        ("floor_constant", "zero"): "01100",
        ("floor_overlap", "mismatch"): "11000",  # nothing is known of d and e
        ("floor_overlap", "zero"): "11011",
    }


def test_floors_stand_beside_every_metric_that_a_model_has() -> None:
    one, floor = (Interval(0.5, 0.4, 0.6), 20), (Interval(0.75, None, None), 20)
    found: dict[agreement.Key, agreement.Found] = {(None, None, "zero", "floor_constant"): floor}
    judged = (("a", "e2e", "zero", "lmr"), ("b", "qa", "zero", "lmr"), ("b", "qa", "zero", "kappa"))
    found |= dict.fromkeys(judged, one)
    rows = agreement.agreement_rows("wikicontradict", ("qa", "e2e"), ("a", "b"), found)
    assert [(row["metric"], row["model"], row["measure"], row["value"]) for row in rows] == [
        ("qa", "b", "lmr", 0.5),
        ("qa", "b", "kappa", 0.5),
        ("qa", "b", "floor_constant", 0.75),
        ("e2e", "a", "lmr", 0.5),
        ("e2e", "a", "floor_constant", 0.75),
    ]
