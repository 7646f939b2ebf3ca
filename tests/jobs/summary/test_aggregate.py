from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.run_tables import RunTables
from untold.jobs.summary import score_counts
from untold.jobs.summary.aggregate import summarise, summarise_measures, with_query_intervals
from untold.jobs.summary.score_counts import GRID
from untold.jobs.tables import MEASURES, SAMPLES, SCORES, SUMMARY
from untold.udfs.statistics.intervals import bca_interval, clustered_bca_interval, wilson_interval

Scores = Callable[[list[tuple[Any, ...]]], RunTables]
COLUMNS = ("metric", "system", "score", "score_low", "score_high", "status", "covered", "uncovered")
MEASURE_COLUMNS = ("sample_id", "metric", "measure", "value", "value_low", "value_high")
SCHEMAS = {"samples": SAMPLES, "scores": SCORES, "measures": MEASURES}


def ok(score: float, system: str | None = "a", metric: str = "e2e") -> tuple[Any, ...]:
    return (metric, system, score, score, score, "ok")


def failed(status: str = "failed", system: str | None = "a") -> tuple[Any, ...]:
    return ("e2e", system, None, 0.0, 1.0, status)


def undefined(system: str | None = "a") -> tuple[Any, ...]:
    return ("e2e", system, None, None, None, "no_statements")


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., RunTables]:
    """Write tables of rows, and open them as the tables of a run."""

    def write(**tables: list[dict[str, Any]]) -> RunTables:
        run = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        for name in SCHEMAS:
            (run / name).mkdir(parents=True)
            table = pa.Table.from_pylist(tables.get(name, []), SCHEMAS[name])
            pq.write_table(table, run / name / "part-0.parquet")
        return RunTables(str(run), {})

    return write


@pytest.fixture
def scores(run_of: Callable[..., RunTables]) -> Callable[[list[tuple[Any, ...]]], RunTables]:
    def write(rows: list[tuple[Any, ...]]) -> RunTables:
        # Most tests do not depend on the number of statements
        named = [dict(zip(COLUMNS, (*row, None, None), strict=False)) for row in rows]
        return run_of(scores=[{"sample_id": str(number), **row} for number, row in enumerate(named)])

    return write


def only(rows: list[dict[str, Any]], system: str | None) -> dict[str, Any]:
    (row,) = [row for row in rows if row["system"] == system]
    return row


def test_one_row_a_metric_and_one_a_system(scores: Scores) -> None:
    rows = [ok(1.0, "b"), ok(0.5, "a"), ok(0.0, None), ok(1.0, "a", metric="qa")]
    got = summarise(scores(rows), seed=0)
    assert [(row["metric"], row["level"], row["system"], row["n"]) for row in got] == [
        ("e2e", "overall", None, 3),
        ("e2e", "system", "a", 1),
        ("e2e", "system", "b", 1),
        ("qa", "overall", None, 1),
        ("qa", "system", "a", 1),
    ]


def test_not_a_number_is_not_a_score(scores: Scores) -> None:
    """The statistics of a Parquet file omit NaN, and the file has no null."""
    run = scores([ok(0.5), ok(math.nan), ok(1.0)])
    scored = score_counts.connect_scores([run], None).sql("select count(*), sum(score) from judged where score >= 0")
    assert scored.fetchall() == [(2, 1.5)]


def test_every_status_is_counted_as_in_the_contract(scores: Scores) -> None:
    partial = ("e2e", "a", 0.5, 0.25, 0.75, "partial")
    rows = [ok(1.0), ok(0.0), partial, undefined(), undefined(), failed(), failed("budget")]
    row = only(summarise(scores(rows), seed=0), "a")
    assert {name: row[name] for name in ("n", "scored", "undefined", "failed")} == {
        "n": 7,
        "scored": 3,
        "undefined": 2,
        "failed": 2,
    }


def test_the_mean_covers_scored_rows_and_the_bounds_also_cover_failed_rows(scores: Scores) -> None:
    partial = ("e2e", "a", 0.5, 0.25, 0.75, "partial")
    rows = [ok(1.0), partial, undefined(), failed(), failed("budget")]
    row = only(summarise(scores(rows), seed=0), "a")
    assert row["mean"] == 0.75
    assert row["mean_low"] == (1.0 + 0.25 + 0 + 0) / 4
    assert row["mean_high"] == (1.0 + 0.75 + 1 + 1) / 4


def test_interval_is_that_of_the_counts(scores: Scores) -> None:
    rows = [ok(i % 4 / 3) for i in range(50)]
    row = only(summarise(scores(rows), seed=11), "a")
    expected = bca_interval([0, 1 / 3, 2 / 3, 1], [13, 13, 12, 12], seed=11)
    assert (row["mean"], row["ci_low"], row["ci_high"]) == (expected.mean, expected.low, expected.high)


def test_nothing_scored_gives_nulls(scores: Scores) -> None:
    row = only(summarise(scores([undefined()]), seed=0), "a")
    assert [row[name] for name in ("mean", "ci_low", "ci_high", "mean_low", "mean_high")] == [None] * 5


def test_all_equal_has_a_mean_and_no_interval(scores: Scores) -> None:
    row = only(summarise(scores([ok(0.1)] * 3), seed=0), "a")
    assert (row["mean"], row["ci_low"], row["ci_high"]) == (0.1, None, None)


def test_nan_never_reaches_the_summary(scores: Scores) -> None:
    rows = [ok(0.5), ok(1.0), ok(math.nan)]
    got = only(summarise(scores(rows), seed=0), "a")
    assert got["mean"] == 0.75
    assert not any(isinstance(value, float) and math.isnan(value) for value in got.values())


def test_no_scores_give_no_rows(scores: Scores) -> None:
    assert summarise(scores([]), seed=0) == []


def test_the_order_changes_no_bit(scores: Scores) -> None:
    rows = [ok(i % 97 / 97, system="ab"[i % 2]) for i in range(1_000)]
    assert summarise(scores(rows), seed=4) == summarise(scores(rows[::-1]), seed=4)


def test_too_many_distinct_values_are_rounded_to_the_grid(scores: Scores, monkeypatch: pytest.MonkeyPatch) -> None:
    run = scores([ok(i / 1_013) for i in range(300)])
    exact = only(summarise(run, seed=0), "a")
    monkeypatch.setattr(score_counts, "MAX_DISTINCT", 100)
    rounded = only(summarise(run, seed=0), "a")
    assert rounded["n"] == exact["n"] == 300
    assert rounded["mean"] == pytest.approx(exact["mean"], abs=0.5 / GRID)
    assert rounded["ci_low"] == pytest.approx(exact["ci_low"], abs=0.5 / GRID)
    assert rounded["mean"] != exact["mean"]


def test_unknown_status_is_named_with_the_nearest(scores: Scores) -> None:
    with pytest.raises(ValueError, match=r"'partal'.*did you mean 'partial'"):
        summarise(scores([("e2e", "a", 0.5, 0.5, 0.5, "partal")]), seed=0)


def test_the_rows_have_the_columns_of_the_table(scores: Scores) -> None:
    (overall, _) = summarise(scores([ok(1.0), ok(0.0), undefined()]), seed=0)
    # Only panels of judges and scorings with other orders of contexts have values for the last columns
    assert list(overall) == SUMMARY.names[:-4]
    assert SUMMARY.names[-4:] == ["alpha", "order_difference", "order_ci_low", "order_ci_high"]


def test_a_response_without_statements_counts_as_0_if_the_contexts_have_statements(scores: Scores) -> None:
    silent, pointless = (*undefined(), 0, 4), (*undefined(), 0, 0)
    rows = [(*ok(1.0), 3, 0), (*ok(0.5), 1, 1), silent, silent, pointless, undefined(), failed()]
    row = only(summarise(scores(rows), seed=3), "a")
    assert (row["n"], row["scored"], row["undefined"], row["failed"]) == (7, 2, 4, 1)
    assert (row["mean"], row["mean_zero"], row["answer_rate"]) == (0.75, 1.5 / 4, 0.5)
    rate = wilson_interval(2, 4)
    assert (row["answer_ci_low"], row["answer_ci_high"]) == (rate.low, rate.high)
    zero = only(summarise(scores(rows), seed=3, zero=True), "a")
    limits = bca_interval([0.0, 0.5, 1.0], [2, 1, 1], seed=3)
    assert zero == {**row, "ci_low": limits.low, "ci_high": limits.high}


def test_nothing_to_state_has_no_answer_rate(scores: Scores) -> None:
    row = only(summarise(scores([undefined(), failed()]), seed=0), "a")
    assert [row[name] for name in ("answer_rate", "answer_ci_low", "answer_ci_high", "mean_zero")] == [None] * 4


def test_a_measure_counts_as_0_with_facts_and_without_claims(run_of: Callable[..., RunTables]) -> None:
    # The claims, facts, precision and contradiction rate of each sample
    samples: list[tuple[float | None, int | None, float | None, float | None]] = [
        (2.0, 3, 0.5, 0.5),
        (0.0, 3, None, None),
        (0.0, 0, None, None),
        (1.0, 3, None, 0.0),
        (None, None, None, None),
    ]
    rows, owners = [], []
    for number, (claims, facts, *values) in enumerate(samples):
        owners.append(
            {"sample_id": str(number), "metric": "m", "system": "a", "covered": facts, "uncovered": facts and 0}
        )
        named = zip(("claims", "precision", "contradiction_rate"), (claims, *values), strict=True)
        rows += [dict(zip(MEASURE_COLUMNS, (str(number), "m", *one), strict=False)) for one in named]
    found = summarise_measures(run_of(scores=owners, measures=rows), {"m": ("precision",)}, {}, seed=0)
    of_system = {row["measure"]: row for row in found if row["system"] == "a"}
    precision, other = of_system["precision"], of_system["contradiction_rate"]
    # Only the second sample is silent. The third has no facts, and the fourth has no judged claim
    assert (precision["mean"], precision["mean_zero"], precision["answer_rate"]) == (0.5, 0.25, 0.5)
    assert (other["mean"], other["mean_zero"], other["answer_rate"]) == (0.25, None, None)


def test_intervals_of_one_measure_take_whole_queries(run_of: Callable[..., RunTables]) -> None:
    """Two systems respond to 20 queries. The other measure and a null system do not change."""
    values = [(place, place % 7 / 7 + (place % 2) / 10) for place in range(40)]
    samples = [
        {"sample_id": f"s{place}", "query": f"query {place // 2}", "system": "ab"[place % 2] if place < 38 else None}
        for place, _ in values
    ]
    measures = [
        dict(zip(MEASURE_COLUMNS, (f"s{place}", "nli", name, value), strict=False))
        for place, value in values
        for name in ("score_audited", "audited")
    ]
    row = {"metric": "nli", "mean": 0.0, "ci_low": -1.0, "ci_high": -1.0}
    found = [
        {**row, "measure": name, "level": "system" if system else "overall", "system": system}
        for name in ("score_audited", "audited")
        for system in (None, "a", "b")
    ]
    run = run_of(samples=samples, measures=measures)
    got = with_query_intervals(found, run, "score_audited", seed=0)
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
