"""Verdicts against labels of claims, against statsmodels, SciPy and counting by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.inter_rater import cohens_kappa

from tests.examples import examples
from untold.udfs.statistics.intervals import clustered_bca_interval, wilson_interval
from untold.udfs.statistics.item_agreement import (
    VERDICTS,
    constant_label,
    labels_of,
    supported_share,
    verdict_intervals,
)

CLAIMS = st.lists(st.tuples(st.sampled_from(VERDICTS), st.sampled_from([*VERDICTS, None])), min_size=1, max_size=40)


def counted(claims: list[tuple[str, str | None]], units: int = 0) -> list[dict[str, Any]]:
    """Rows of claims as Spark counts them, by unit where there are some."""
    named = [(f"u{place % units}" if units else None, *claim) for place, claim in enumerate(claims)]
    return [
        {"unit": unit, "label": label, "verdict": verdict, "count": count}
        for (unit, label, verdict), count in Counter(named).items()
    ]


@examples(30)
@given(CLAIMS)
def test_measures_are_those_of_the_claims_one_by_one(claims: list[tuple[str, str | None]]) -> None:
    rows = counted(claims)
    labels = labels_of(rows)
    known = [(label, verdict) for label, verdict in claims if verdict is not None]
    if "contradicted" not in labels.names:
        known = [(label, "not_supported" if verdict == "contradicted" else verdict) for label, verdict in known]
    found = {name: one.mean for name, one in verdict_intervals(rows, labels, seed=0).items()}
    if not known:
        assert set(found.values()) == {None}
        return
    assert found["accuracy"] == pytest.approx(np.mean([label == verdict for label, verdict in known]))
    f1 = []
    for name in labels.names:
        hits = sum(label == verdict == name for label, verdict in known)
        size = sum((label == name) + (verdict == name) for label, verdict in known)
        f1 += [2 * hits / size] if size else []
    assert found["macro_f1"] == pytest.approx(np.mean(f1))
    table = np.zeros((3, 3))
    for label, verdict in known:
        table[VERDICTS.index(label), VERDICTS.index(verdict)] += 1
    agreed_by_chance = (table.sum(axis=0) * table.sum(axis=1)).sum() == table.sum() ** 2
    if agreed_by_chance:
        assert found["kappa"] is None
    else:
        assert found["kappa"] == pytest.approx(float(cohens_kappa(table, return_results=False)))


def test_whole_units_have_wider_intervals_where_their_claims_are_alike() -> None:
    said = [("supported", "supported"), ("not_supported", "supported"), ("not_supported", "not_supported")]
    claims = [said[n % 3] for n in range(60)]
    one_by_one = verdict_intervals(counted(claims), labels_of(counted(claims)), seed=0)["accuracy"]
    # Every third claim is of one kind, so that six units hold claims of one kind each
    by_unit = verdict_intervals(counted(claims, 6), labels_of(counted(claims, 6)), seed=0)["accuracy"]
    assert one_by_one == wilson_interval(40, 60)
    assert one_by_one.mean == by_unit.mean == pytest.approx(2 / 3)
    widths = [one.high - one.low for one in (one_by_one, by_unit) if one.low is not None and one.high is not None]
    assert len(widths) == 2
    assert widths[1] > 2 * widths[0]


def test_the_supported_share_is_that_of_all_claims() -> None:
    claims: list[tuple[str, str | None]] = [("supported", "supported")] * 5 + [("not_supported", None)] * 3
    share, size = supported_share(counted(claims), "label", seed=0)
    assert (share, size) == (wilson_interval(5, 8), 8)
    assert supported_share(counted(claims), "verdict", seed=0)[1] == 5
    clustered, _ = supported_share(counted(claims, 2), "label", seed=0)
    assert clustered == clustered_bca_interval([3, 2], [4, 4], seed=0)


def test_the_constant_label_is_the_most_frequent() -> None:
    assert constant_label(counted([("not_supported", None), ("supported", None), ("not_supported", None)])) == (
        "not_supported"
    )
    assert constant_label([]) == "supported"
