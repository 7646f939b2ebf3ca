"""Compare measures of rubrics with brute force, and their bounds with every result of the lost verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.rubrics import ExpectedRubric, JudgedRubric, expected_rubric, rubric_worlds
from untold.udfs.facts.rubric_measures import (
    UNDEFINED,
    BoundedValue,
    JudgedCriterion,
    conclude_batches,
    measures_of,
    net_share,
    relative_share,
)
from untold.udfs.samples.items import normalise_rubric

POINTS = st.sampled_from([-8, -3, 0, 0.5, 2, 5, 10])
LEVELS = [{"label": "a", "share": 0.25}, {"label": "b", "share": 0.5}, {"label": "c", "share": 1}]
UNGRADED, GRADED = ("met", "partly_met", "not_met"), ("level_1", "level_2", "level_3")


@st.composite
def rubrics(draw: Any) -> tuple[list[dict[str, Any]], list[str | None], list[str | None]]:
    """A rubric, and the verdicts on a response and on a reference."""
    rubric, sides = [], ([], [])
    for place in range(draw(st.integers(0, 5))):
        graded = draw(st.booleans())
        one = {"text": f"t{place}", "points": draw(POINTS), "axis": draw(st.sampled_from(["x", "y", None]))}
        rubric.append(one | ({"levels": LEVELS} if graded else {}))
        for side in sides:
            side.append(draw(st.none() | st.sampled_from(GRADED if graded else UNGRADED)))
    return rubric, *sides


def criteria_of(rubric: Sequence[Any], verdicts: Sequence[str | None]) -> list[JudgedCriterion]:
    shares = [tuple(level["share"] for level in one.get("levels", ())) for one in rubric]
    return [
        JudgedCriterion(one["points"], verdict, own) for one, verdict, own in zip(rubric, verdicts, shares, strict=True)
    ]


@pytest.mark.parametrize("score", ["strict", "lenient", "relative"])
@given(given=rubrics())
def test_measures_equal_brute_force(score: str, given: Any) -> None:
    rubric, verdicts, reference = given
    expected = expected_rubric({"rubric": rubric}, verdicts, reference, score)
    compared = criteria_of(rubric, reference) if score == "relative" else None
    found = measures_of(criteria_of(rubric, verdicts), compared, [one["axis"] for one in rubric], score)
    if expected.status == "failed":
        found = {name: BoundedValue(None, one.low, one.high) for name, one in found.items()}
    ends = {name: (one.value, one.low, one.high) for name, one in found.items()}
    assert ends == {name: pytest.approx(wanted) for name, wanted in expected.measures.items()}


@given(given=rubrics(), partly=st.sampled_from([0.0, 0.5]))
def test_bounds_hold_for_every_result_of_the_lost_verdicts(given: Any, partly: float) -> None:
    rubric, verdicts, reference = given
    response, compared = (net_share(criteria_of(rubric, one), partly) for one in (verdicts, reference))
    relative = relative_share(response, compared)
    known = [GRADED if "levels" in one else UNGRADED for one in rubric]
    whole = [
        [net_share(criteria_of(rubric, one), partly).value for one in filled(verdicts_of, known)]
        for verdicts_of in (verdicts, reference)
    ]
    for ends, values in ((response, whole[0]), (compared, whole[1])):
        for value in filter(lambda one: one is not None, values):
            assert ends.low - 1e-9 <= value <= ends.high + 1e-9
    for one, other in product(whole[0][:20], whole[1][:20]):
        value = relative_share(BoundedValue(one, one, one), BoundedValue(other, other, other)).value
        if value is not None:
            assert relative.low - 1e-9 <= value <= relative.high + 1e-9


def filled(verdicts: Sequence[str | None], known: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    return list(product(*([one] if one else own for one, own in zip(verdicts, known, strict=True))))


def test_the_net_share_is_the_score_of_healthbench() -> None:
    """The points of the met criteria over the positive points. The share can be below 0 and is not clipped."""
    rubric = [JudgedCriterion(5, "met"), JudgedCriterion(7, "not_met"), JudgedCriterion(-8, "met")]
    assert net_share(rubric, 0.0).value == pytest.approx(-3 / 12)
    assert net_share([*rubric, JudgedCriterion(4, "partly_met")], 0.0).value == pytest.approx(-3 / 16)
    assert net_share([*rubric, JudgedCriterion(4, "partly_met")], 0.5).value == pytest.approx(-1 / 16)
    assert net_share([JudgedCriterion(-8, "not_met")], 0.0) == net_share([], 0.0) == UNDEFINED


def test_lost_verdicts_give_bounds_and_never_0() -> None:
    lost = net_share([JudgedCriterion(4, None), JudgedCriterion(-2, None)], 0.0)
    assert lost == BoundedValue(None, -0.5, 1.0)
    some = net_share([JudgedCriterion(4, None), JudgedCriterion(4, "met"), JudgedCriterion(-2, "met")], 0.0)
    # The judged part has 0.5
    assert some == BoundedValue(0.5, 0.25, 0.75)


def test_a_relative_score_compares_with_the_reference() -> None:
    def of(value: float | None) -> BoundedValue:
        return BoundedValue(value, value, value)

    assert relative_share(of(0.3), of(0.3)).value == 0.5
    assert relative_share(of(-0.3), of(0.3)).value == 0.0
    assert relative_share(of(0.0), of(-0.3)) == UNDEFINED
    # A lost reference can be anything from 0 to 1
    assert relative_share(of(0.5), BoundedValue(None, 0.0, 1.0)) == BoundedValue(None, 1 / 3, 1.0)


JUDGED = pa.list_(pa.struct([("number", pa.int64()), ("verdict", pa.string()), ("reason", pa.string())]))
LEVEL = pa.struct([("label", pa.string()), ("text", pa.string()), ("share", pa.float64())])
ROW = pa.schema(
    [
        ("sample_id", pa.string()),
        (
            "rubric",
            pa.list_(
                pa.struct(
                    [
                        *((name, pa.string()) for name in ("id", "text", "dimension")),
                        ("points", pa.float64()),
                        ("tags", pa.list_(pa.string())),
                        ("levels", pa.list_(LEVEL)),
                    ]
                )
            ),
        ),
        *((name, pa.bool_()) for name in ("blank", "reference_blank", "unblocked_blank", "is_blocked")),
        *((name, JUDGED) for name in ("judged", "reference", "unblocked")),
    ]
)


def concluded(sample: Any, score: str) -> Any:
    """Return the conclusion of a sample with the verdicts of the world."""
    rubric = normalise_rubric(sample["rubric"]) or []
    texts = {"judged": sample["response"], "reference": sample["ground_truth"]}
    asked = JudgedRubric(lambda *_, **__: None)
    of = {name: JudgedRubric.judged(asked, {**sample, "response": text}) for name, text in texts.items()}
    judged = {name: _numbered(one, rubric) if texts[name].strip() else None for name, one in of.items()}
    blank = {name: not texts[side].strip() for name, side in (("blank", "judged"), ("reference_blank", "reference"))}
    row = {"sample_id": "s", "rubric": rubric, **blank, **judged}
    (found,) = conclude_batches([pa.RecordBatch.from_pylist([row], ROW)], score)
    (one,) = found.to_pylist()
    return one


def _numbered(expected: ExpectedRubric, rubric: Sequence[Any]) -> list[dict[str, Any]]:
    labels = [[level["label"] for level in one["levels"]] for one in rubric]
    verdicts = [
        f"level_{own.index(grade) + 1}" if grade else verdict
        for (verdict, grade, _), own in zip(expected.criteria, labels, strict=True)
    ]
    return [{"number": n, "verdict": verdict, "reason": f"r{n}"} for n, verdict in enumerate(verdicts, start=1)]


@pytest.mark.parametrize("score", ["strict", "lenient", "relative"])
def test_hundreds_of_worlds_are_concluded_as_by_brute_force(score: str) -> None:
    for world in rubric_worlds(140):
        for sample in world.samples(2):
            expected = JudgedRubric(lambda *_, **__: None, score).judged(sample)
            found = concluded(sample, score)
            ends = {one["measure"]: (one["value"], one["value_low"], one["value_high"]) for one in found["measures"]}
            assert ends == {name: pytest.approx(wanted) for name, wanted in expected.measures.items()}
            assert (found["covered"], found["uncovered"], found["unjudged"]) == expected.counts
            assert found["empty"] == (expected.status == "no_statements")
            shown = [(one["verdict"], one["grade"], one["earned"]) for one in found["criteria"]]
            assert shown == [(*one[:2], pytest.approx(one[2])) for one in expected.criteria]
