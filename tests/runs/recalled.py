"""Compare the tables of the metric longrecall with brute force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.expected_longrecall import ExpectedRecall, Shown, Statement
from tests.runs.harness import Row

Tables = Mapping[str, Iterable[Row]]
TABLES = ("scores", "statements", "claims", "candidates", "measures")
BASELINES = ("arecall", "erecall", "holistic")


def assert_as_expected(tables: Tables, expected: Mapping[str, ExpectedRecall]) -> None:
    """Check that every table except failures equals the result of brute force."""
    rows = {name: _by_sample(tables[name]) for name in TABLES}
    assert rows["scores"].keys() == expected.keys()
    for name, one in expected.items():
        (score,) = rows["scores"][name]
        assert score["status"] == one.status, name
        _assert_scored(score, one)
        if one.status == "failed":
            assert not any(rows[table][name] for table in ("statements", "claims", "candidates")), name
            continue
        assert _statements(rows["statements"][name]) == list(one.statements), name
        assert _claims(rows["claims"][name]) == list(one.claims), name
        found = {row["measure"]: (row["value"], row["value_low"], row["value_high"]) for row in rows["measures"][name]}
        assert found == {measure: pytest.approx(bounds) for measure, bounds in one.measures.items()}, name
        _assert_shown(rows["candidates"][name], one, name)


def _by_sample(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[row["sample_id"]].append(row)
    return found


def _assert_scored(row: Row, one: ExpectedRecall) -> None:
    counts = tuple(row[name] for name in ("covered", "uncovered", "unjudged", "dropped"))
    figures = tuple(row[name] for name in ("score", "score_low", "score_high"))
    if one.status == "failed":
        assert (counts, figures) == ((None,) * 4, (None, 0.0, 1.0))
    else:
        assert counts == (one.count(True), one.count(False), one.count(None), one.dropped)
        assert figures == pytest.approx(one.measures["recall"])


def _place(identifier: str) -> int:
    return int(identifier.rpartition(":")[2])


def _statements(rows: list[Row]) -> list[Statement]:
    ordered = sorted(rows, key=lambda row: _place(row["statement_id"]))
    assert [_place(row["statement_id"]) for row in ordered] == list(range(1, len(rows) + 1))
    return [
        Statement(
            row["text"],
            row["reference_id"],
            row["anchor"],
            row["covered"],
            None if row["claims"] is None else tuple(map(_place, row["claims"])),
            row["found_by"],
            _Known({name: row[name] for name in BASELINES}),
        )
        for row in ordered
    ]


class _Known(dict[str, Any]):
    """The baselines of a row. A missing value and a null value are equal."""

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Mapping)
        return all(self[name] is other.get(name) for name in BASELINES)

    __hash__ = None  # type: ignore[assignment]


def _claims(rows: list[Row]) -> list[tuple[str, str | None]]:
    ordered = sorted(rows, key=lambda row: row["position"])
    assert [row["position"] for row in ordered] == [_place(row["claim_id"]) for row in ordered]
    assert all(row["verdict"] is None and list(row["evidence"]) == [] for row in ordered)
    return [(row["text"], row["anchor"]) for row in ordered]


def _assert_shown(rows: list[Row], one: ExpectedRecall, name: str) -> None:
    found = [
        Shown(
            _place(row["statement_id"]),
            _place(row["claim_id"]),
            *(row[column] for column in ("step", "rank", "jaccard", "lcs", "cosine", "chosen")),
        )
        for row in rows
    ]
    ordered = [
        sorted(some, key=lambda each: (each.reference, each.step, each.rank)) for some in (found, one.candidates)
    ]
    bare = [[replace(each, cosine=None) for each in some] for some in ordered]
    assert bare[0] == bare[1], name
    # The vectors have single precision, so the sixth decimal can differ
    first, second = ([each.cosine for each in some] for some in ordered)
    assert first == pytest.approx(second, abs=2e-6), name
