"""What scores earn against labels and instances, and the baselines beside them, counted by Spark."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from untold.jobs.study import agreement
from untold.jobs.study import label_points as points
from untold.jobs.study.agreement import add_overlap
from untold.udfs.statistics.confusion import FAILED as FAILED_OUTCOME
from untold.udfs.statistics.confusion import LABELS, OUTCOMES, match_label, predict_label
from untold.udfs.statistics.intervals import Interval
from untold.udfs.statistics.permutation import clustered_permutation_test
from untold.udfs.statistics.question_resampling import resample_questions

Rows = list[dict[str, Any]]
Scores = Mapping[str, float | None]
SCORES = "model string, metric string, sample_id string, score double, failed boolean"
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
    scores = spark.createDataFrame([("m", "e2e", name, score, False) for name, _, score in cases], SCORES)
    earned = {
        (row["unit"], row["convention"]): row["points"] for row in collected(points.label_points(scores, samples))
    }
    for name, label, score in cases:
        assert earned.pop((name, "mismatch")) == match_label(score, label)
        for convention in ("zero", "published"):
            assert earned.pop((name, convention)) == match_label(0.0 if score is None else score, label)
    assert not earned


def test_a_failed_score_matches_nothing_is_left_out_or_is_zero_as_published(spark: SparkSession) -> None:
    samples = spark.createDataFrame([("s", "q", LABELS[0])], "sample_id string, query string, label string")
    scores = spark.createDataFrame([("m", "e2e", "s", None, True)], SCORES)
    earned = {
        row["convention"]: (row["points"], row["excluded"]) for row in collected(points.label_points(scores, samples))
    }
    assert earned == {"mismatch": (0, 0), "zero": (None, 1), "published": (1, 0)}
    counted = agreement.read_rows(agreement.count_units(points.label_points(scores, samples), clustered=False))
    zero = agreement.point_intervals(counted, {"lmr": 1}, seed=0)["m", "e2e", "zero", "lmr"]
    assert (zero.interval.mean, zero.n, zero.excluded) == (None, 0, 1)


FAILED = -1.0  # stands for a score that could not be had
Earned = dict[tuple[str, str, str], tuple[int | None, int]]


def of_points(frame: DataFrame) -> Earned:
    """By unit, convention and measure: points and what is left out."""
    return {
        (row["unit"], row["convention"], row["measure"]): (row["points"], row["excluded"]) for row in collected(frame)
    }


def conflictbank(spark: SparkSession, groups: Mapping[tuple[int, str], Scores]) -> Earned:
    """What (row, claim) groups earn whose scores are given by context set, each set evaluated by itself."""
    named = [(f"{row}-{claim}-{name}", row, claim, name) for row, claim in groups for name in SETS]
    samples = spark.createDataFrame(named, "sample_id string, row long, claim string, context_set string")
    given = [("m", "e2e", name, *score_of(groups[row, claim][context_set])) for name, row, claim, context_set in named]
    return of_points(points.alone_points(spark.createDataFrame(given, SCORES), samples))


def score_of(value: float | None) -> tuple[float | None, bool]:
    return (None, True) if value == FAILED else (value, False)


def by_source(spark: SparkSession, groups: Mapping[tuple[int, str], Scores]) -> Earned:
    """What groups earn whose score with all contexts is given, and the share of each source, None where it has none."""
    samples = spark.createDataFrame(
        [(f"{row}-{claim}-all", row, claim) for row, claim in groups], "sample_id string, row long, claim string"
    )
    given = [("m", "e2e", f"{row}-{claim}-all", *score_of(scores["all"])) for (row, claim), scores in groups.items()]
    shares = [
        ("m", "e2e", f"{row}-{claim}-all", name, scores[name])
        for (row, claim), scores in groups.items()
        for name in SETS[1:]
        if scores[name] is not None
    ]
    schema = "model string, metric string, sample_id string, source string, share double"
    found = points.source_points(spark.createDataFrame(given, SCORES), samples, spark.createDataFrame(shares, schema))
    return of_points(found)


def of_sets(*scores: float | None) -> Scores:
    return dict(zip(SETS, scores, strict=True))


def parts(strict: tuple[int, int], lax: tuple[int, int]) -> dict[str, tuple[int | None, int]]:
    """Points and what is left out, of (comparisons that hold, that count) of five and of three."""
    of_strict = strict[0] * 60 // strict[1] if strict[1] else None
    of_lax = lax[0] * 6 // lax[1] if lax[1] else None
    both = None if of_strict is None or of_lax is None else of_strict + 10 * of_lax
    missing = 5 - strict[1], 3 - lax[1]
    return {"lmr_strict": (of_strict, missing[0]), "lmr_lax": (of_lax, missing[1]), "lmr": (both, sum(missing))}


def check(earned: Earned, claim: str, convention: str, strict: tuple[int, int], lax: tuple[int, int]) -> None:
    for measure, expected in parts(strict, lax).items():
        assert earned[f"7-{claim}", convention, measure] == expected


@pytest.mark.gate
@pytest.mark.parametrize(
    ("claim", "scores", "strict", "lax"),
    [
        # all, D, C1, C2, C3: (comparisons that hold under mismatch, under zero)
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
    for convention, place in (("mismatch", 0), ("zero", 1), ("published", 1)):
        check(earned, claim, convention, (strict[place], 5), (lax[place], 3))
    assert len(earned) == 9


def test_a_failed_context_is_left_out_under_zero_alone(spark: SparkSession) -> None:
    earned = conflictbank(spark, {(7, "default"): of_sets(0.5, FAILED, 0.0, 0.0, 0.0)})
    check(earned, "default", "mismatch", (4, 5), (0, 3))
    check(earned, "default", "zero", (4, 4), (0, 0))
    check(earned, "default", "published", (4, 5), (0, 3))


@pytest.mark.gate
@pytest.mark.parametrize(
    ("claim", "shares", "strict", "lax"),
    [
        ("default", of_sets(0.5, 1.0, 0.0, 0.0, 0.0), (5, 5), (3, 3)),
        ("default", of_sets(0.5, 1.0, 0.0, None, 0.5), (3, 4), (2, 2)),
        ("counterfactual", of_sets(1.0, None, 1.0, 1.0, 1.0), (3, 4), (0, 0)),
        ("default", of_sets(1.0, 1.0, None, None, None), (1, 2), (0, 0)),
        ("counterfactual", of_sets(0.75, 0.5, 1.0, None, None), (2, 3), (1, 1)),
        ("default", of_sets(None, None, None, None, None), (0, 1), (0, 0)),
    ],
)
def test_a_source_that_states_nothing_is_left_out_and_counted(
    spark: SparkSession, claim: str, shares: Scores, strict: tuple[int, int], lax: tuple[int, int]
) -> None:
    earned = by_source(spark, {(7, claim): shares, (8, claim): of_sets(0.5, 1.0, 0.0, 0.0, 0.0)})
    for convention in ("mismatch", "zero", "published"):
        check(earned, claim, convention, strict, lax)


def test_nothing_counts_of_an_evaluation_that_failed_under_zero(spark: SparkSession) -> None:
    groups = {(7, "default"): of_sets(FAILED, None, None, None, None), (8, "default"): of_sets(1.0, 1.0, 1.0, 1.0, 1.0)}
    earned = by_source(spark, groups)
    check(earned, "default", "mismatch", (0, 1), (0, 0))
    check(earned, "default", "zero", (0, 0), (0, 0))
    check(earned, "default", "published", (0, 1), (0, 0))


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


@pytest.mark.parametrize("count", [conflictbank, by_source])
def test_points_of_random_groups_are_those_of_the_formula(spark: SparkSession, count: Any) -> None:
    draw = random.Random(5)
    values = VALUES if count is conflictbank else VALUES[:-1]
    claims = ("default", "counterfactual")
    groups = {(row, claim): of_sets(*draw.choices(values, k=5)) for row in range(60) for claim in claims}
    earned = count(spark, groups)
    for (row, claim), scores in groups.items():
        filled = {name: score or 0.0 for name, score in scores.items()}
        for convention, known in (("mismatch", scores), ("zero", filled), ("published", filled)):
            strict, lax = strict_and_lax(claim, known)
            got = [earned[f"{row}-{claim}", convention, name][0] for name in ("lmr_strict", "lmr_lax", "lmr")]
            assert [got[0] / 60, got[1] / 6, got[2] / 120] == pytest.approx([strict, lax, (strict + lax) / 2])


# Questions


def wiki_scores(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Scores of two metrics, and samples of four answers to each of nine questions."""
    draw = random.Random(9)
    samples = [(f"{n}", f"q{n // 4}", draw.choice(LABELS)) for n in range(36)]
    scores = [
        ("m", metric, name, *score_of(draw.choice((*VALUES, FAILED))))
        for name, _, _ in samples
        for metric in ("a", "b")
    ]
    frame = spark.createDataFrame(samples, "sample_id string, query string, label string")
    return spark.createDataFrame(scores, SCORES), frame


@pytest.mark.gate
@pytest.mark.parametrize("clustered", [False, True])
def test_tables_of_questions_are_counted_and_resampled(spark: SparkSession, clustered: bool) -> None:
    scores, samples = wiki_scores(spark)
    labels = {row["sample_id"]: (row["query"], row["label"]) for row in collected(samples)}
    tables: dict[str, Any] = defaultdict(lambda: np.zeros((3, 5), dtype=np.int64))
    for row in collected(scores.where("metric = 'a'")):
        question, label = labels[row["sample_id"]]
        said = FAILED_OUTCOME if row["failed"] else predict_label(row["score"])
        tables[question if clustered else row["sample_id"]][LABELS.index(label), OUTCOMES.index(said)] += 1
    expected = resample_questions(np.stack(list(tables.values())), [1] * len(tables), seed=4)
    counted = agreement.count_tables(scores, samples, clustered=clustered)
    found = agreement.resample_tables(counted, seed=4)["m", "a"]
    assert found.accelerations == expected.accelerations
    assert (found.drawn == expected.drawn).all()


@pytest.mark.gate
def test_spark_resamples_more_questions_than_the_driver_takes(spark: SparkSession) -> None:
    scores, samples = wiki_scores(spark)
    counted = agreement.count_tables(scores, samples, clustered=True)
    here, there = (agreement.resample_tables(counted, seed=4, max_tables=most)["m", "b"] for most in (100, 0))
    again = agreement.resample_tables(counted.repartition(5), seed=4, max_tables=0)["m", "b"]
    assert (there.table == here.table).all()
    assert (there.drawn == again.drawn).all()
    assert there.accelerations == again.accelerations
    for form, expected in here.accelerations.items():
        assert there.accelerations[form] == pytest.approx(expected)
    assert there.drawn.mean(axis=0) == pytest.approx(here.drawn.mean(axis=0), abs=0.2)


@pytest.mark.gate
def test_metrics_are_compared_by_whole_questions(spark: SparkSession) -> None:
    scores, samples = wiki_scores(spark)
    earned = points.label_points(scores, samples)
    by_question: dict[str, int] = Counter()
    for row in collected(earned.where("convention = 'mismatch'")):
        by_question[row["cluster"]] += row["points"] * (1 if row["metric"] == "a" else -1)
    counted = agreement.read_rows(agreement.count_differences(earned, ("a", "b"), clustered=True))
    (got,) = agreement.compare_metrics(counted, "wikicontradict", 1, seed=2)
    expected = clustered_permutation_test(list(by_question.values()), [4] * 9, seed=2)
    assert (got["p_value"], got["n"], got["convention"]) == (expected.p_value, 36, "mismatch")
    assert got["difference"] == expected.difference


@pytest.mark.gate
def test_baselines_are_of_the_constant_label_and_of_the_words(spark: SparkSession) -> None:
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
    baselines = points.baseline_points(samples, "Partially correct")
    earned = {(row["measure"], row["convention"]): "" for row in collected(baselines)}
    for row in sorted(collected(baselines), key=lambda row: row["unit"]):
        earned[row["measure"], row["convention"]] += str(row["points"])
    assert earned == {
        **{("baseline_constant", convention): "01100" for convention in ("mismatch", "zero", "published")},
        ("baseline_overlap", "mismatch"): "11000",  # nothing is known of d and e
        ("baseline_overlap", "zero"): "11011",
        ("baseline_overlap", "published"): "11011",
    }


def test_baselines_stand_beside_every_metric_that_a_model_has() -> None:
    one, baseline = (
        agreement.AgreementRows(Interval(0.5, 0.4, 0.6), 20),
        agreement.AgreementRows(Interval(0.75, None, None), 20),
    )
    found: dict[agreement.Key, agreement.AgreementRows] = {(None, None, "zero", "baseline_constant"): baseline}
    judged = (("a", "e2e", "zero", "lmr"), ("b", "qa", "zero", "lmr"), ("b", "qa", "zero", "kappa"))
    found |= dict.fromkeys(judged, one)
    rows = agreement.agreement_rows("wikicontradict", ("qa", "e2e"), ("a", "b"), found)
    assert [(row["metric"], row["model"], row["measure"], row["value"]) for row in rows] == [
        ("qa", "b", "lmr", 0.5),
        ("qa", "b", "kappa", 0.5),
        ("qa", "b", "baseline_constant", 0.75),
        ("e2e", "a", "lmr", 0.5),
        ("e2e", "a", "baseline_constant", 0.75),
    ]
