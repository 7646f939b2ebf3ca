"""The verdicts of a gate: PASS, FAIL or INCONCLUSIVE, compared with brute force over all results of lost scores."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.gates import Scored, failed, write_run
from untold.jobs.run_tables import open_run
from untold.jobs.summary.gate import FAIL, INCONCLUSIVE, PASS, Drop, Gate, compare_with_base, questions_needed
from untold.jobs.summary.ranking import CompareError
from untold.udfs.statistics.intervals import bca_interval

SCORES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
QUESTIONS = 6
# One or two samples of a question: a score, a failure, or bounds around a score
STATES = st.one_of(
    SCORES.map(lambda score: {"score": score}),
    st.just({"score": None, "status": "failed"}),
    SCORES.map(lambda score: {"score": score, "status": "partial", "low": score / 2, "high": (1 + score) / 2}),
)
SIDE = st.lists(
    st.tuples(st.integers(0, QUESTIONS - 1), st.sampled_from("xy"), STATES), max_size=9, unique_by=lambda one: one[:2]
).map(lambda rows: [Scored(question, kind=kind, **state) for question, kind, state in rows])


def gate_of(base: list[Scored], candidate: list[Scored], **how: Any) -> Gate:
    """Write two runs and compare them."""
    with TemporaryDirectory() as folder:
        runs = [write_run(Path(folder, name), rows) for name, rows in (("base", base), ("candidate", candidate))]
        return compare_with_base(*map(open_run, runs), **{"max_drop": 0.02, **how})


def drop_of(base: list[Scored], candidate: list[Scored], **how: Any) -> Drop:
    (drop,) = gate_of(base, candidate, **how).drops
    return drop


def possible_values(base: list[Scored], candidate: list[Scored]) -> dict[int, tuple[list[Any], list[Any]]]:
    """Return by question of the base the possible values of each sample of the base, and of the candidate.

    A sample that the candidate lacks has the values 0 and 1.
    """
    sides: tuple[dict[int, list[Any]], ...] = (defaultdict(list), defaultdict(list))
    for side, rows in zip(sides, (base, candidate), strict=True):
        for one in rows:
            side[one.question].append(one.bounds)
    lost = {question: [(0.0, 1.0)] * max(0, len(own) - len(sides[1][question])) for question, own in sides[0].items()}
    return {question: (own, sides[1][question] + lost[question]) for question, own in sides[0].items()}


def mean(values: Any) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def all_differences(base: list[Scored], candidate: list[Scored]) -> list[list[float]]:
    """Return the differences of the questions for each combination of the end points of all bounds of a question."""
    return [
        sorted({mean(after) - mean(before) for before in product(*first) for after in product(*second)})
        for first, second in possible_values(base, candidate).values()
    ]


@given(base=SIDE.filter(bool), candidate=SIDE.filter(bool), max_drop=st.sampled_from([0.02, 0.3, 0.6]))
def test_a_verdict_holds_for_every_result_of_the_lost_scores(
    base: list[Scored], candidate: list[Scored], max_drop: float
) -> None:
    drop = drop_of(base, candidate, max_drop=max_drop)
    differences = all_differences(base, candidate)
    worst, best = [own[0] for own in differences], [own[-1] for own in differences]

    # The mean of any result is between the means of the worst and the best results
    if drop.verdict == PASS:
        assert mean(worst) > -max_drop
    if drop.verdict == FAIL:
        assert mean(best) < -max_drop
    # The limits of whole lists, without counts and SQL
    low, high = interval_of(worst)[0], interval_of(best)[1]
    assert (drop.n, drop.ci_low, drop.ci_high) == (len(differences), pytest.approx(low), pytest.approx(high))
    expected = PASS if low is not None and low > -max_drop else INCONCLUSIVE
    assert drop.verdict == (FAIL if high is not None and high < -max_drop else expected)


def interval_of(values: list[float]) -> tuple[float | None, float | None]:
    rounded = [round(value, 12) for value in values]
    if len(rounded) > 1 and len(set(rounded)) == 1:
        return rounded[0], rounded[0]
    found = bca_interval(rounded, [1] * len(rounded), seed=0)
    return found.low, found.high


def scores(values: list[float], **more: Any) -> list[Scored]:
    return [Scored(question, value, **more) for question, value in enumerate(values)]


ALTERNATING = [0.5 + 0.3 * (-1) ** n for n in range(40)]


def test_equal_outputs_pass_and_a_large_drop_fails() -> None:
    base = scores(ALTERNATING)
    same = drop_of(base, base)
    assert (same.verdict, same.difference, same.ci_low, same.ci_high, same.needed) == (PASS, 0.0, 0.0, 0.0, None)
    worse = drop_of(base, scores([value - 0.1 - 0.1 * (n % 3) for n, value in enumerate(ALTERNATING)]))
    assert (worse.verdict, worse.paired) == (FAIL, 40)
    assert worse.ci_high is not None
    assert worse.ci_high < -0.02
    noisy = drop_of(base, scores(ALTERNATING[1:] + ALTERNATING[:1]))
    assert (noisy.verdict, noisy.difference) == (INCONCLUSIVE, pytest.approx(0.0))


def test_the_number_of_questions_decides() -> None:
    """The verdict is PASS with this number of copies of the questions, and INCONCLUSIVE with half of them."""
    change = [(-0.15, 0.16)[n % 2] for n in range(40)]
    base, candidate = [0.5] * 40, [0.5 + one for one in change]
    drop = drop_of(scores(base), scores(candidate))
    assert drop.verdict == INCONCLUSIVE
    assert drop.needed is not None
    # The half width of a normal interval equals the distance of the mean from the limit
    deviation = math.sqrt(math.fsum((one - mean(change)) ** 2 for one in change) / 39)
    assert drop.needed == math.ceil((1.959964 * deviation / (mean(change) + 0.02)) ** 2)
    times = math.ceil(1.1 * drop.needed / 40)
    assert drop_of(scores(base * times), scores(candidate * times)).verdict == PASS
    assert drop_of(scores(base * (times // 2)), scores(candidate * (times // 2))).verdict == INCONCLUSIVE


def test_no_number_of_questions_decides_at_the_limit() -> None:
    drop = drop_of(scores([0.5, 0.5, 0.5, 0.5]), scores([0.25, 0.5, 0.25, 0.5]), max_drop=0.125)
    assert (drop.verdict, drop.needed) == (INCONCLUSIVE, None)
    equal = gate_of(scores([0.5] * 4), scores([0.375] * 4), max_drop=0.125)
    assert (equal.verdict, equal.drops[0].needed) == (INCONCLUSIVE, None)
    assert equal.explain(equal.drops[0]).endswith("not decided by more questions, because the drop is exactly 0.125")
    # A rounding error is not a reason to require 10^20 questions
    assert questions_needed(([0.1, -0.1], [1, 1], [1, 1]), ([0.1, -0.1], [1, 1], [1, 1]), 1e-12) is None


def test_one_sample_has_no_interval() -> None:
    gate = gate_of(scores([0.5]), scores([0.9]))
    (drop,) = gate.drops
    assert (drop.verdict, drop.n, drop.ci_low, drop.needed) == (INCONCLUSIVE, 1, None, None)
    assert gate.explain(drop).endswith("an interval needs two or more questions")


@pytest.mark.parametrize("status", ["failed", "budget"])
def test_failed_scores_count_by_their_bounds(status: str) -> None:
    base = scores([0.5] * 40)
    few = [replace(one, score=None, status=status) if one.question < 4 else one for one in base]
    drop = drop_of(base, few)
    assert (drop.verdict, drop.paired, drop.failed, drop.lost, drop.difference) == (INCONCLUSIVE, 36, 4, 0, 0.0)
    # With a limit below the worst mean of -0.05, no result of the failed scores changes the verdict
    assert drop_of(base, few, max_drop=0.2).verdict == PASS
    # A failed base cannot cause a PASS either
    back = drop_of(few, base)
    assert (back.verdict, back.base_failed) == (INCONCLUSIVE, 4)


def test_failures_cannot_hide_a_drop() -> None:
    base = scores([0.9] * 40)
    worse = [failed(n) if n < 8 else Scored(n, 0.1 + 0.01 * (n % 2)) for n in range(40)]
    assert drop_of(base, worse).verdict == FAIL
    nothing = drop_of(base, [failed(n) for n in range(40)])
    assert (nothing.verdict, nothing.difference, nothing.failed, nothing.needed) == (INCONCLUSIVE, None, 40, None)
    both = drop_of([failed(n) for n in range(4)], [failed(n) for n in range(4)])
    assert (both.verdict, both.ci_low, both.ci_high) == (INCONCLUSIVE, -1.0, 1.0)


def test_a_partial_score_counts_by_its_own_bounds() -> None:
    base = scores([0.5] * 20)
    narrow = [replace(one, status="partial", low=0.49, high=0.6) for one in base]
    assert drop_of(base, narrow).verdict == PASS
    wide = [replace(one, status="partial", low=0.4, high=0.6) for one in base]
    assert drop_of(base, wide).verdict == INCONCLUSIVE


@pytest.mark.parametrize("kept", [range(20), range(0, 40, 2), range(39)])
def test_a_candidate_that_lost_rows_does_not_pass(kept: range) -> None:
    base = scores([0.8] * 40)
    drop = drop_of(base, [base[n] for n in kept], max_drop=0.01)
    assert (drop.verdict, drop.n, drop.lost, drop.difference) == (INCONCLUSIVE, 40, 40 - len(kept), 0.0)


def test_a_lost_sample_of_a_question_with_several_samples_counts() -> None:
    base = [Scored(n, 0.5, kind=kind) for n in range(10) for kind in "xy"]
    drop = drop_of(base, [one for one in base if one.kind == "x"])
    assert (drop.verdict, drop.n, drop.paired, drop.lost) == (INCONCLUSIVE, 10, 10, 10)
    assert (drop.ci_low, drop.ci_high) == (-0.25, 0.25)


def test_new_samples_of_the_candidate_change_nothing() -> None:
    base = scores(ALTERNATING)
    assert drop_of(base, [*base, *(Scored(n, 1.0) for n in range(40, 900))]) == drop_of(base, base)


def test_a_response_without_statements_does_not_pass_without_zeros() -> None:
    base = scores([0.5] * 20)
    silent = [replace(one, score=None, status="no_statements") if one.question < 10 else one for one in base]
    drop = drop_of(base, silent)
    assert (drop.verdict, drop.lost, drop.failed) == (INCONCLUSIVE, 10, 0)
    zero = drop_of(base, silent, undefined="zero")
    assert (zero.verdict, zero.lost, zero.difference) == (FAIL, 0, -0.25)
    # An undefined score of the base is not compared
    assert drop_of(silent, base).n == 10
    with pytest.raises(CompareError, match=r"cannot compare, because all scores of .*base are undefined"):
        gate_of([replace(one, score=None, status="no_statements") for one in base], base)


def test_single_systems_are_compared_under_any_names() -> None:
    drop = drop_of(scores([0.5] * 3, system=None), scores([0.5] * 3, system="new"))
    assert (drop.verdict, drop.base_system, drop.system) == (PASS, "base", "new")


def test_several_systems_are_compared_by_name_and_a_lost_system_does_not_pass() -> None:
    base = [*scores([0.5] * 9), *scores([0.25] * 9, system="b"), *scores([0.75] * 9, system=None)]
    candidate = [*scores([0.5] * 9), *scores([0.9] * 9, system="c"), *scores([0.75] * 9, system=None)]
    notes: list[str] = []
    gate = gate_of(base, candidate, notify=notes.append)
    found = {drop.base_system: (drop.system, drop.verdict, drop.paired, drop.lost) for drop in gate.drops}
    assert found == {"a": ("a", PASS, 9, 0), "b": ("b", INCONCLUSIVE, 0, 9), "base": ("candidate", PASS, 9, 0)}
    assert (gate.verdict, notes) == (INCONCLUSIVE, ["without a base, so not compared: c"])
    # Two systems of the candidate do not replace the one of the base
    with pytest.raises(CompareError, match="no common system: the base has b, and the candidate has a, c"):
        gate_of(scores([0.5] * 3, system="b"), [*scores([0.5] * 3), *scores([0.5] * 3, system="c")])


def test_a_metric_missing_in_one_run_is_an_error() -> None:
    base = [*scores([0.5] * 3), *scores([0.5] * 3, metric="nli")]
    candidate = scores([0.5] * 3)
    with pytest.raises(CompareError, match=r"candidate has no scores of metric nli\. Score it, or .* --metric qa"):
        gate_of(base, candidate)
    assert gate_of(base, candidate, metrics=["qa"]).verdict == PASS
    assert [drop.metric for drop in gate_of(candidate, base).drops] == ["qa"]
    with pytest.raises(CompareError, match="no scores of metric q; did you mean qa"):
        gate_of(base, candidate, metrics=["q"])


def test_all_rows_of_a_query_are_resampled_together(tmp_path: Path) -> None:
    """Forty questions of one query are one value, which has no interval."""
    base = scores([0.5] * 40)
    candidate = [replace(one, score=0.5 + (0.1 if one.question < 20 else -0.1)) for one in base]
    runs = [
        write_run(tmp_path / name, rows, query="one query") for name, rows in (("base", base), ("candidate", candidate))
    ]
    notes: list[str] = []
    opened = [open_run(run) for run in runs]
    gate = compare_with_base(*opened, max_drop=0.05, notify=notes.append)
    assert (gate.drops[0].verdict, gate.drops[0].n) == (PASS, 40)
    assert notes == ["1 query has several rows. --cluster resamples whole queries"]
    clustered = compare_with_base(*opened, max_drop=0.05, cluster=True, notify=notes.append)
    assert (clustered.drops[0].verdict, clustered.drops[0].ci_low) == (INCONCLUSIVE, None)
    assert len(notes) == 1


def test_samples_without_contexts_are_paired_by_id(tmp_path: Path) -> None:
    rows = [replace(one, kind="same") for one in scores(ALTERNATING)]
    runs = [write_run(tmp_path / name, rows, contexts=False) for name in ("base", "candidate")]
    (drop,) = compare_with_base(*map(open_run, runs), max_drop=0.02).drops
    assert (drop.verdict, drop.paired) == (PASS, 40)
