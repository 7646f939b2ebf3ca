"""Sources that responses follow in conflicts: rows from counts of queries, and the lines at the end of a run."""

from __future__ import annotations

from typing import Any

import pytest

from untold.jobs.run.terminal import Page
from untold.jobs.summary.aggregate import leaning_rows
from untold.jobs.summary.run_summary import SHOWN, conflict_lines, leaning_lines
from untold.udfs.statistics.intervals import clustered_bca_interval
from untold.udfs.statistics.permutation import adjust_p_values, binomial_test


def counted(source: str, *queries: tuple[int, int, int], by: str = "rank", system: str | None = None) -> Any:
    """Return a row for each tuple of followed conflicts, all conflicts and the number of such queries."""
    names = ("followed", "n", "count")
    key = {"metric": "nli", "system": system, "by": by, "source": source}
    return [{**key, **dict(zip(names, query, strict=True))} for query in queries]


COUNTS = [
    *counted("news", (1, 1, 4), (0, 2, 3), by="kind"),
    *counted("10", (1, 1, 1)),
    *counted("2", (2, 3, 5), (0, 1, 2), (4, 4, 1)),
    *counted("2", (0, 1, 6), system="a"),
]


def test_shares_are_over_conflicts_and_intervals_over_queries() -> None:
    rows = leaning_rows(COUNTS, seed=0)
    assert [(row["level"], row["system"], row["by"], row["source"]) for row in rows] == [
        ("overall", None, "rank", "2"),
        ("overall", None, "rank", "10"),
        ("overall", None, "kind", "news"),
        ("system", "a", "rank", "2"),
    ]
    assert [(row["followed"], row["n"]) for row in rows] == [(14, 21), (1, 1), (4, 10), (0, 6)]
    interval = clustered_bca_interval([2, 0, 4], [3, 1, 4], [5, 2, 1], seed=0)
    assert (rows[0]["share"], rows[0]["ci_low"], rows[0]["ci_high"]) == (interval.mean, interval.low, interval.high)
    assert interval.mean == pytest.approx(14 / 21)
    p_values = [binomial_test(*counts) for counts in ((14, 21), (1, 1), (4, 10))]
    assert [row["p_value"] for row in rows[:3]] == p_values
    assert [row["p_adjusted"] for row in rows[:3]] == adjust_p_values(p_values)
    assert rows[3]["p_adjusted"] == rows[3]["p_value"] == binomial_test(0, 6)


def test_the_first_rows_are_printed_and_the_others_counted() -> None:
    rows = leaning_rows([row for place in range(1, SHOWN + 3) for row in counted(str(place), (1, 2, 3))], seed=0)
    lines = leaning_lines(rows, Page())
    assert lines[1].split()[:7] == ["nli", "all", "rank", "1", "3", "of", "6"]
    assert (len(lines), lines[-1]) == (SHOWN + 2, "2 more in the table source_preference")


def test_without_conflicts_there_is_no_row() -> None:
    assert leaning_rows([], seed=0) == []
    assert conflict_lines(measured("nli", None, 0, 4), Page()) == conflict_lines([], Page()) == []


def measured(metric: str, system: str | None, conflicts: int, samples: int) -> list[dict[str, Any]]:
    """Return the rows of `measures_summary` for these conflicts and samples. Half of the samples have conflicts."""
    own = {"metric": metric, "system": system, "n": samples, "ci_low": None, "ci_high": None}
    shares = {"mean": 0.25 if conflicts else None, "ci_low": 0.125, "ci_high": 0.5, "defined": samples // 2}
    return [
        {**own, "measure": "conflicts", "mean": conflicts / samples, "defined": samples},
        {**own, "measure": "conflict_coverage", **shares},
        {**own, "measure": "one_sided", **shares, "mean": 0.75},
        {**own, "measure": "audited", "mean": 1.0, "defined": samples},
    ]


def test_conflicts_are_a_line_by_system() -> None:
    rows = [*measured("nli", None, 12, 40), *measured("nli", "dense", 5, 20), *measured("qa", None, 0, 40)]
    (_, *lines) = conflict_lines(rows, Page())
    assert [line.split() for line in lines] == [
        ["nli", "all", "12", "0.250", "0.125", "..", "0.500", "0.750", "0.125", "..", "0.500"],
        ["nli", "dense", "5", "0.250", "0.125", "..", "0.500", "0.750", "0.125", "..", "0.500"],
    ]
