"""Test matches with labels, the measures of confusion tables with their intervals, and the overlap of words."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.examples import examples
from untold.udfs.statistics.confusion import (
    LABELS,
    MEASURES,
    PREDICTIONS,
    UNDEFINED,
    balanced_accuracy,
    kappa,
    macro_f1,
    match_label,
    overlap_score,
    predict_label,
    under_convention,
)
from untold.udfs.statistics.intervals import FloatArray, IntArray, Interval, table_intervals

INCORRECT, PARTIALLY, CORRECT = LABELS
RESAMPLING_NOISE = 0.3  # in standard errors, of a limit with 4,000 resamples
# The recorded predictions of a judge. The last column is the number of undefined predictions
RECORDED = np.array([[104, 68, 4, 31], [56, 758, 22, 88], [0, 37, 14, 18]])

tables = st.lists(st.integers(0, 6), min_size=12, max_size=12).map(lambda cells: np.array(cells).reshape(3, 4))


@pytest.mark.parametrize(
    ("score", "label"),
    [(0.0, INCORRECT), (1.0, CORRECT), (0.5, PARTIALLY), (1e-9, PARTIALLY), (1 - 1e-9, PARTIALLY), (None, UNDEFINED)],
)
def test_a_score_predicts_one_label_and_matches_no_other(score: float | None, label: str) -> None:
    assert predict_label(score) == label
    assert [name for name in LABELS if match_label(score, name)] == ([] if score is None else [label])


def test_an_unknown_label_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'correct' is none of Incorrect, Partially correct, Correct"):
        match_label(1.0, "correct")


def test_an_undefined_score_only_counts_as_incorrect_under_zero() -> None:
    assert under_convention(RECORDED, "mismatch").tolist() == RECORDED.tolist()
    assert under_convention(RECORDED, "zero").tolist() == [[135, 68, 4, 0], [144, 758, 22, 0], [18, 37, 14, 0]]


def rows_of(table: IntArray) -> tuple[list[str], list[str]]:
    """Return one label and one prediction per row."""
    cells = [
        (label, predicted)
        for (row, label), (column, predicted) in product(enumerate(LABELS), enumerate(PREDICTIONS))
        for _ in range(int(table[row, column]))
    ]
    return [label for label, _ in cells], [predicted for _, predicted in cells]


def kappa_of_rows(labels: Sequence[str], predicted: Sequence[str]) -> float | None:
    """Return the kappa of Cohen (1960), computed from shares of rows."""
    n = len(labels)
    if not n:
        return None
    agreed = sum(label == said for label, said in zip(labels, predicted, strict=True)) / n
    chance = sum(labels.count(name) / n * predicted.count(name) / n for name in PREDICTIONS)
    return None if abs(1 - chance) < 1e-12 else (agreed - chance) / (1 - chance)


def recalls(labels: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """Return the share of right predictions for each label."""
    pairs = list(zip(labels, predicted, strict=True))
    return {name: pairs.count((name, name)) / labels.count(name) for name in LABELS if name in labels}


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def macro_f1_of_rows(labels: Sequence[str], predicted: Sequence[str]) -> float | None:
    """Return the mean over the labels of the harmonic mean of recall and precision."""
    recall, precision = recalls(labels, predicted), recalls(predicted, labels)
    found = []
    for name in recall.keys() | precision.keys():
        r, p = recall.get(name, 0.0), precision.get(name, 0.0)
        found.append(2 * r * p / (r + p) if r + p else 0.0)
    return mean(found)


@examples(200)
@given(table=tables)
def test_measures_equal_the_rows(table: IntArray) -> None:
    labels, predicted = rows_of(table)
    expected = (
        kappa_of_rows(labels, predicted),
        macro_f1_of_rows(labels, predicted),
        mean(list(recalls(labels, predicted).values())),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = [float(measure(table)) for measure in (kappa, macro_f1, balanced_accuracy)]
    for value, oracle in zip(got, expected, strict=True):
        assert np.isnan(value) if oracle is None else value == pytest.approx(oracle, abs=1e-12)


def test_measures_of_many_tables_at_once_equal_the_measures_of_each() -> None:
    many = np.random.default_rng(3).integers(0, 5, (20, 3, 4))
    for measure in MEASURES.values():
        assert measure(many).tolist() == [float(measure(table)) for table in many]


def test_recorded_predictions_have_the_published_agreement_under_zero() -> None:
    table = under_convention(RECORDED, "zero")
    assert [round(float(measure(table)), 3) for measure in (kappa, macro_f1)] == [0.392, 0.547]


def measured(name: str, labels: IntArray, predicted: IntArray) -> FloatArray:
    """Return the measure of rows with the numbers of labels and predictions: float64[...], rows in the last axis."""
    cells = labels * len(PREDICTIONS) + predicted
    counts = (cells[..., None] == np.arange(12)).sum(axis=-2)
    return MEASURES[name](counts.reshape(*counts.shape[:-1], 3, 4))


@pytest.mark.parametrize("name", MEASURES)
def test_limits_equal_scipys_bootstrap_of_the_rows(name: str) -> None:
    table = (RECORDED // 4).astype(np.int64)
    cells = np.repeat(np.arange(12), table.ravel())

    def statistic(labels: IntArray, predicted: IntArray, axis: int = -1) -> FloatArray:
        return measured(name, labels, predicted)

    expected = stats.bootstrap(
        (cells // 4, cells % 4),
        statistic,
        paired=True,
        vectorized=True,
        method="BCa",
        n_resamples=4000,
        batch=200,
        rng=0,
    )
    got = table_intervals({name: MEASURES[name]}, table, seed=1)[name]
    assert got.mean == pytest.approx(float(measured(name, cells // 4, cells % 4)))
    assert got.low is not None
    assert got.high is not None
    limits = expected.confidence_interval
    noise = RESAMPLING_NOISE * float(expected.standard_error)
    assert [got.low, got.high] == pytest.approx([float(limits.low), float(limits.high)], abs=noise)


@examples(100)
@given(table=tables)
def test_limits_are_numbers_within_the_measures_range_or_none(table: IntArray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for measure in MEASURES.values():
            got = table_intervals({0: measure}, table, seed=0, resamples=100)[0]
            assert (got.low is None) == (got.high is None)
            if got.low is not None and got.high is not None:
                assert -1 <= got.low <= got.high <= 1


def one_cell(row: int, column: int, count: int) -> IntArray:
    table = np.zeros((3, 4), dtype=np.int64)
    table[row, column] = count
    return table


@pytest.mark.parametrize(
    ("table", "means"),
    [
        (one_cell(0, 0, 0), [None, None, None]),
        (one_cell(1, 1, 9), [None, 1.0, 1.0]),  # all labels agree, as they would by chance
        (one_cell(1, 3, 9), [0.0, 0.0, 0.0]),  # nothing defined
        (one_cell(1, 1, 1) + one_cell(1, 2, 1), [0.0, 1 / 3, 0.5]),
    ],
)
def test_degenerate_tables_have_no_limits(table: IntArray, means: list[float | None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = list(table_intervals(MEASURES, table, seed=0).values())
    assert [interval.mean for interval in got] == pytest.approx(means)
    if np.count_nonzero(table) < 2:
        assert all(interval == Interval(interval.mean, None, None) for interval in got)


def test_the_seed_decides_the_limits() -> None:
    first = table_intervals({0: kappa}, RECORDED, seed=3)
    assert first == table_intervals({0: kappa}, RECORDED, seed=3)
    assert first != table_intervals({0: kappa}, RECORDED, seed=4)


@pytest.mark.parametrize(
    ("response", "contexts", "score"),
    [
        ("The tower is 829.8 m tall.", ["Tower: 829.8 m"], 1.0),
        ("the tower", ["tall TOWER", "tall blue tower"], 0.5),  # one of two words, and one of three words
        ("tower", ["tower tower tower tall wide"], 0.0),  # distinct words count
        ("Größe_1", ["größe_1"], 1.0),
        ("", ["a"], 0.0),
        ("a", [], None),
    ],
)
def test_a_context_is_covered_if_half_of_its_words_occur(
    response: str, contexts: list[str], score: float | None
) -> None:
    assert overlap_score(response, contexts) == score
