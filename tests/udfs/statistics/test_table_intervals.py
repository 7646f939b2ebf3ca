"""Compare the intervals of confusion tables with SciPy. The resamples use whole questions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from itertools import product

import numpy as np
import pytest
from scipy import stats

from untold.udfs.statistics.confusion import CONVENTIONS, MEASURES, under_convention
from untold.udfs.statistics.intervals import FloatArray, IntArray, Interval, table_intervals

SHAPE, CELLS = (3, 5), 15
ANSWERS = 5
RESAMPLING_NOISE = 0.3  # in standard errors, of a limit with 4,000 resamples


def make_questions(count: int, seed: int = 4) -> IntArray:
    """Return the tables of questions with similar answers: int64[count, 3, 5]."""
    random = np.random.default_rng(seed)
    tables = np.zeros((count, *SHAPE), dtype=np.int64)
    for table in tables:
        easy = random.beta(1, 1)
        for _ in range(ANSWERS):
            label = random.choice(3, p=[0.2, 0.6, 0.2])
            said = label if random.random() < easy else random.choice(5, p=[0.3, 0.3, 0.2, 0.15, 0.05])
            table[label, said] += 1
    return tables


def intervals_of(tables: IntArray, seed: int) -> Mapping[tuple[str, str], Interval]:
    """Return the intervals of all measures over questions, for all conventions."""

    def under(convention: str, name: str, cells: IntArray) -> FloatArray:
        return MEASURES[name](under_convention(cells, convention))

    forms = {form: partial(under, *form) for form in product(CONVENTIONS, MEASURES)}
    return table_intervals(forms, tables, seed=seed)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", MEASURES)
def test_limits_equal_scipys_bootstrap_of_the_questions(name: str, convention: str) -> None:
    tables = make_questions(60)

    def statistic(chosen: IntArray, axis: int = -1) -> FloatArray:
        return MEASURES[name](under_convention(tables[chosen.astype(np.int64)].sum(axis=-3), convention))

    places = np.arange(len(tables))
    expected = stats.bootstrap(
        (places,), statistic, vectorized=True, method="BCa", n_resamples=4000, batch=500, rng=np.random.default_rng(0)
    )
    got = intervals_of(tables, seed=1)[convention, name]
    assert got.mean == pytest.approx(float(statistic(places)))
    noise = RESAMPLING_NOISE * float(expected.standard_error)
    limits = expected.confidence_interval
    assert [got.low, got.high] == pytest.approx([float(limits.low), float(limits.high)], abs=noise)


def test_alike_answers_to_a_question_widen_the_interval() -> None:
    tables = make_questions(200)
    single = np.repeat(np.eye(CELLS, dtype=np.int64), tables.sum(axis=0).ravel(), axis=0).reshape(-1, *SHAPE)
    width = {}
    for name, given in (("questions", tables), ("answers", single)):
        found = intervals_of(given, seed=0)["zero", "kappa"]
        assert found.low is not None
        assert found.high is not None
        width[name] = found.high - found.low
    assert width["questions"] > 1.2 * width["answers"]


def test_order_changes_nothing_and_conventions_may_be_applied_first() -> None:
    tables = make_questions(40)
    together = intervals_of(tables, seed=2)
    assert intervals_of(tables[::-1], seed=2) == together
    mismatch = table_intervals(MEASURES, under_convention(tables, "mismatch"), seed=2)
    assert {name: mismatch[name].mean for name in MEASURES} == {
        name: together["mismatch", name].mean for name in MEASURES
    }


@pytest.mark.parametrize("count", [1, 30])
def test_equal_questions_have_no_limits(count: int) -> None:
    table = np.zeros((1, *SHAPE), dtype=np.int64)
    table[0, 1, 1], table[0, 0, 1], table[0, 2, 4] = 3, 1, 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for interval in intervals_of(np.repeat(table, count, axis=0), seed=0).values():
            assert interval == Interval(interval.mean, None, None)


def test_a_failed_score_is_omitted_under_zero_and_incorrect_as_published() -> None:
    table = np.array([[1, 0, 0, 2, 4], [0, 3, 0, 0, 1], [0, 0, 5, 1, 0]])
    assert under_convention(table, "mismatch").tolist() == [[1, 0, 0, 6], [0, 3, 0, 1], [0, 0, 5, 1]]
    assert under_convention(table, "zero").tolist() == [[3, 0, 0, 0], [0, 3, 0, 0], [1, 0, 5, 0]]
    assert under_convention(table, "published").tolist() == [[7, 0, 0, 0], [1, 3, 0, 0], [1, 0, 5, 0]]
