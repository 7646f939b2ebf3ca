from __future__ import annotations

import math
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from untold.jobs.summary.aggregate import summarise, summarise_measures, with_query_intervals
from untold.jobs.summary.ranking import GRID
from untold.jobs.tables import SUMMARY
from untold.udfs.statistics.intervals import bca_interval, clustered_bca_interval, wilson_interval

SCHEMA = (
    "metric string, system string, score double, score_low double, score_high double, status string, "
    "covered long, uncovered long"
)


def ok(score: float, system: str | None = "a", metric: str = "e2e") -> tuple[Any, ...]:
    return (metric, system, score, score, score, "ok")


def failed(status: str = "failed", system: str | None = "a") -> tuple[Any, ...]:
    return ("e2e", system, None, 0.0, 1.0, status)


def undefined(system: str | None = "a") -> tuple[Any, ...]:
    return ("e2e", system, None, None, None, "no_statements")


def scores(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    # Most tests are not about how many statements there are
    return spark.createDataFrame([(*row, None, None)[:8] for row in rows], SCHEMA)


def only(rows: list[dict[str, Any]], system: str | None) -> dict[str, Any]:
    (row,) = [row for row in rows if row["system"] == system]
    return row


def test_one_row_a_metric_and_one_a_system(spark: SparkSession) -> None:
    rows = [ok(1.0, "b"), ok(0.5, "a"), ok(0.0, None), ok(1.0, "a", metric="qa")]
    got = summarise(scores(spark, rows), seed=0)
    assert [(row["metric"], row["level"], row["system"], row["n"]) for row in got] == [
        ("e2e", "overall", None, 3),
        ("e2e", "system", "a", 1),
        ("e2e", "system", "b", 1),
        ("qa", "overall", None, 1),
        ("qa", "system", "a", 1),
    ]


def test_every_status_is_counted_where_the_contract_says(spark: SparkSession) -> None:
    partial = ("e2e", "a", 0.5, 0.25, 0.75, "partial")
    rows = [ok(1.0), ok(0.0), partial, undefined(), undefined(), failed(), failed("budget")]
    row = only(summarise(scores(spark, rows), seed=0), "a")
    assert {name: row[name] for name in ("n", "scored", "undefined", "failed")} == {
        "n": 7,
        "scored": 3,
        "undefined": 2,
        "failed": 2,
    }


def test_mean_is_over_scored_rows_and_bounds_over_failed_ones_too(spark: SparkSession) -> None:
    partial = ("e2e", "a", 0.5, 0.25, 0.75, "partial")
    rows = [ok(1.0), partial, undefined(), failed(), failed("budget")]
    row = only(summarise(scores(spark, rows), seed=0), "a")
    assert row["mean"] == 0.75
    assert row["mean_low"] == (1.0 + 0.25 + 0 + 0) / 4
    assert row["mean_high"] == (1.0 + 0.75 + 1 + 1) / 4


def test_interval_is_that_of_the_counts(spark: SparkSession) -> None:
    rows = [ok(i % 4 / 3) for i in range(50)]
    row = only(summarise(scores(spark, rows), seed=11), "a")
    expected = bca_interval([0, 1 / 3, 2 / 3, 1], [13, 13, 12, 12], seed=11)
    assert (row["mean"], row["ci_low"], row["ci_high"]) == (expected.mean, expected.low, expected.high)


def test_nothing_scored_gives_nulls(spark: SparkSession) -> None:
    row = only(summarise(scores(spark, [undefined()]), seed=0), "a")
    assert [row[name] for name in ("mean", "ci_low", "ci_high", "mean_low", "mean_high")] == [None] * 5


def test_all_equal_has_a_mean_and_no_interval(spark: SparkSession) -> None:
    row = only(summarise(scores(spark, [ok(0.1)] * 3), seed=0), "a")
    assert (row["mean"], row["ci_low"], row["ci_high"]) == (0.1, None, None)


def test_nan_never_reaches_the_summary(spark: SparkSession) -> None:
    rows = [ok(0.5), ok(1.0), ok(math.nan)]
    got = only(summarise(scores(spark, rows), seed=0), "a")
    assert got["mean"] == 0.75
    assert not any(isinstance(value, float) and math.isnan(value) for value in got.values())


def test_no_scores_give_no_rows(spark: SparkSession) -> None:
    assert summarise(scores(spark, []), seed=0) == []


@pytest.mark.gate
def test_partitioning_and_order_change_no_bit(spark: SparkSession) -> None:
    rows = [ok(i % 97 / 97, system="ab"[i % 2]) for i in range(1_000)]
    one = scores(spark, rows).coalesce(1)
    many = scores(spark, rows[::-1]).repartition(7)
    assert summarise(one, seed=4) == summarise(many, seed=4)


@pytest.mark.gate
def test_too_many_distinct_values_are_rounded_to_the_grid(spark: SparkSession) -> None:
    rows = [ok(i / 1_013) for i in range(300)]
    exact = only(summarise(scores(spark, rows), seed=0), "a")
    rounded = only(summarise(scores(spark, rows), seed=0, max_distinct=100), "a")
    assert rounded["n"] == exact["n"] == 300
    assert rounded["mean"] == pytest.approx(exact["mean"], abs=0.5 / GRID)
    assert rounded["ci_low"] == pytest.approx(exact["ci_low"], abs=0.5 / GRID)
    assert rounded["mean"] != exact["mean"]


def test_unknown_status_is_named_with_the_nearest(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"'partal'.*did you mean 'partial'"):
        summarise(scores(spark, [("e2e", "a", 0.5, 0.5, 0.5, "partal")]), seed=0)


def test_the_rows_have_the_columns_of_the_table(spark: SparkSession) -> None:
    (overall, _) = summarise(scores(spark, [ok(1.0), ok(0.0), undefined()]), seed=0)
    assert list(overall) == SUMMARY.names


def test_a_response_that_states_nothing_counts_as_0_where_there_was_something_to_state(spark: SparkSession) -> None:
    silent, pointless = (*undefined(), 0, 4), (*undefined(), 0, 0)
    rows = [(*ok(1.0), 3, 0), (*ok(0.5), 1, 1), silent, silent, pointless, undefined(), failed()]
    row = only(summarise(scores(spark, rows), seed=3), "a")
    assert (row["n"], row["scored"], row["undefined"], row["failed"]) == (7, 2, 4, 1)
    assert (row["mean"], row["mean_zero"], row["answer_rate"]) == (0.75, 1.5 / 4, 0.5)
    rate = wilson_interval(2, 4)
    assert (row["answer_ci_low"], row["answer_ci_high"]) == (rate.low, rate.high)
    zero = only(summarise(scores(spark, rows), seed=3, zero=True), "a")
    limits = bca_interval([0.0, 0.5, 1.0], [2, 1, 1], seed=3)
    assert zero == {**row, "ci_low": limits.low, "ci_high": limits.high}


def test_nothing_to_state_has_no_answer_rate(spark: SparkSession) -> None:
    row = only(summarise(scores(spark, [undefined(), failed()]), seed=0), "a")
    assert [row[name] for name in ("answer_rate", "answer_ci_low", "answer_ci_high", "mean_zero")] == [None] * 4


@pytest.mark.gate
def test_a_measure_counts_as_0_where_there_are_facts_and_no_claims(spark: SparkSession) -> None:
    # What a sample states, how many facts it should give, precision, and how often it contradicts
    samples: list[tuple[float | None, int | None, float | None, float | None]] = [
        (2.0, 3, 0.5, 0.5),
        (0.0, 3, None, None),
        (0.0, 0, None, None),
        (1.0, 3, None, 0.0),
        (None, None, None, None),
    ]
    rows, owners = [], []
    for number, (claims, facts, *values) in enumerate(samples):
        owners.append((str(number), "m", "a", facts, facts and 0))
        named = zip(("claims", "precision", "contradiction_rate"), (claims, *values), strict=True)
        rows += [(str(number), "m", name, value, None, None) for name, value in named]
    measures = spark.createDataFrame(
        rows, "sample_id string, metric string, measure string, value double, value_low double, value_high double"
    )
    systems = spark.createDataFrame(
        owners, "sample_id string, metric string, system string, covered long, uncovered long"
    )
    found = summarise_measures(measures, systems, {"m": ("precision",)}, seed=0)
    of_system = {row["measure"]: row for row in found if row["system"] == "a"}
    precision, other = of_system["precision"], of_system["contradiction_rate"]
    # The second sample alone is silent: the third has no facts, and of the fourth no claim could be judged
    assert (precision["mean"], precision["mean_zero"], precision["answer_rate"]) == (0.5, 0.25, 0.5)
    assert (other["mean"], other["mean_zero"], other["answer_rate"]) == (0.25, None, None)


@pytest.mark.gate
def test_intervals_of_one_measure_take_whole_queries(spark: SparkSession) -> None:
    """Two systems answer 20 queries; the other measure, and a system that is null, stay as they are."""
    values = [(place, place % 7 / 7 + (place % 2) / 10) for place in range(40)]
    samples = [(f"s{place}", f"query {place // 2}", "ab"[place % 2] if place < 38 else None) for place, _ in values]
    measures = [(f"s{place}", "nli", name, value) for place, value in values for name in ("score_audited", "audited")]
    row = {"metric": "nli", "mean": 0.0, "ci_low": -1.0, "ci_high": -1.0}
    found = [
        {**row, "measure": name, "level": "system" if system else "overall", "system": system}
        for name in ("score_audited", "audited")
        for system in (None, "a", "b")
    ]
    got = with_query_intervals(
        found,
        spark.createDataFrame(measures, "sample_id string, metric string, measure string, value double"),
        spark.createDataFrame(samples, "sample_id string, query string, system string"),
        "score_audited",
        seed=0,
    )
    assert got[3:] == found[3:]
    sums = [sum(value for place, value in values if place // 2 == query) for query in range(20)]
    own = [value for place, value in values if place % 2 == 0 and place < 38]
    for one, expected in zip(
        got[:2],
        (clustered_bca_interval(sums, [2] * 20, seed=0), clustered_bca_interval(own, [1] * 19, seed=0)),
        strict=True,
    ):
        assert (one["mean"], one["ci_low"], one["ci_high"]) == pytest.approx(
            (expected.mean, expected.low, expected.high)
        )
