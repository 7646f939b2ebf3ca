from __future__ import annotations

from typing import Any

import pytest

from untold.jobs.report.answers import StatementGroups


def statement(
    text: str, *, sources: list[str] | None = None, members: list[str] | None = None, **others: Any
) -> dict[str, Any]:
    return {"text": text, "sources": sources, "members": members, "reference_id": None, **others}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (statement("It has 12 bells."), statement("it has 12 bells"), True),
        (statement("It has 12 bells."), statement("12 bells it has."), True),
        (statement("It has 12 bells."), statement("It has 13 bells."), False),
        (statement("It has 12 bells.", sources=["1"]), statement("12 bells it has.", sources=["2"]), False),
        (statement("It has 12 bells.", sources=["1"]), statement("12 bells it has.", sources=["1", "2"]), True),
        # A judge of pairs has already merged the equal statements
        (statement("It has 12 bells.", members=["A."]), statement("12 bells it has.", members=["B."]), False),
        (statement("One.", members=["One.", "Eins."]), statement("Eins.", members=["Eins."]), True),
        (statement("One.", reference_id="r"), statement("Another wording.", reference_id="r"), True),
        (statement("One.", reference_id="r"), statement("One.", reference_id="s"), False),
        (statement("It rains."), statement("The harbour was built by the king."), False),
    ],
)
def test_equal_statements_are_one_point(first: dict[str, Any], second: dict[str, Any], same: bool) -> None:
    points = StatementGroups()
    assert points.number("e2e", "q", first, 0) == 0
    assert (points.number("e2e", "q", second, 1) == 0) is same


def test_points_are_of_one_query_and_metric() -> None:
    points = StatementGroups()
    keys = [("e2e", "q"), ("nli", "q"), ("e2e", "r")]
    found = [points.number(*key, statement("It has 12 bells."), number) for number, key in enumerate(keys)]
    assert found == [0, 1, 2]
