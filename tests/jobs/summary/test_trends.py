"""Test the changes between dates: systems with lower scores, a changed judge, and no message without a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import untold
from tests.jobs.summary.test_nights import night
from tests.jobs.test_analysis import write_run
from untold.jobs.plots import draw_trend
from untold.jobs.summary.nights import SENTINEL_FOLDER
from untold.jobs.summary.trends import Trend, date_of, describe_finding, find_trend
from untold.udfs.statistics.intervals import clustered_bca_interval

QUERIES = 16
# A text is the status of a sample without a score
Scores = Mapping[str, Sequence[float | str]]


def write_night(folder: Path, day: int, scores: Scores, metric: str = "e2e", **fields: Any) -> untold.Run:
    """Write the output of a date with the score of each system for each query.

    `ids` sets the form of the sample ids.
    """
    ids = fields.pop("ids", "{system}-{query}")
    rows = [
        (ids.format(system=system, query=query), system, query, value)
        for system, values in scores.items()
        for query, value in enumerate(values)
    ]
    samples = [{"sample_id": name, "query": f"What of {fields.get('topic', '')}{query}?"} for name, _, query, _ in rows]
    scored = [
        {"sample_id": name, "metric": metric, "system": system, **scored_as(value)} for name, system, _, value in rows
    ]
    fields.pop("topic", None)
    return write_run(folder / f"2026-11-{day:02d}", {"samples": samples, "scores": scored}, **night(**fields))


def scored_as(value: float | str) -> dict[str, Any]:
    """Return the columns of a score. A sample without statements leaves all of the statements uncovered."""
    if isinstance(value, str):
        return {"score": None, "status": value, "covered": 0, "uncovered": 2}
    return {"score": value, "status": "ok"}


def write_sentinel(run: untold.Run, values: list[float], content: str = "fixed") -> None:
    rows = [{"sample_id": f"s{place}", "query": f"q{place}"} for place in range(len(values))]
    scored = [{**row, "metric": "e2e", "score": value, "status": "ok"} for row, value in zip(rows, values, strict=True)]
    write_run(Path(run.directory) / SENTINEL_FOLDER, {"samples": rows, "scores": scored}, **night(content=content))


def noisy(random: np.random.Generator, mean: float, count: int = QUERIES) -> list[float]:
    return [float(value) for value in random.normal(mean, 0.04, count)]


def month(folder: Path, level: Callable[[int], Mapping[str, float]], nights: int = 12, **fields: Any) -> Trend:
    """Return the trend of nights with these levels of the systems and the sentinel."""
    random = np.random.default_rng(0)
    runs = []
    for day in range(1, nights + 1):
        means = dict(level(day))
        judge = means.pop("judge", None)
        run = write_night(folder, day, {name: noisy(random, mean) for name, mean in means.items()}, **fields)
        if judge is not None:
            write_sentinel(run, noisy(random, judge))
        runs.append(run)
    return find_trend(runs)


def told(found: Trend) -> list[tuple[Any, ...]]:
    return [(row["kind"], row["date"][-2:], row.get("system")) for row in found.findings]


@pytest.mark.gate
def test_a_worse_system_is_distinguished_from_a_changed_judge(tmp_path: Path) -> None:
    def level(day: int) -> dict[str, float]:
        judge = -0.1 if day >= 5 else 0
        return {"a": 0.7 + judge, "b": 0.6 + judge - (0.2 if day >= 9 else 0), "judge": 0.5 + judge}

    found = month(tmp_path, level)
    assert told(found) == [("judge", "05", None), ("system", "09", "b")]
    judge, system = found.findings
    assert judge["systems"] == ["a", "b"]
    causes = [row.get("cause") for row in found.changes if row["date"] == "2026-11-05" and row["system"]]
    assert set(causes) == {"judge"}
    assert system["net_ci_low"] < -0.2 < system["net_ci_high"]
    assert describe_finding(judge).startswith("from 2026-11-05 on, the judge moved: under e2e it scores the sentinel l")
    assert describe_finding(judge).endswith("; a, b moved with it")
    assert describe_finding(system).startswith("2026-11-09, b is lower by 0.2")
    assert describe_finding(system).endswith(" under e2e; the judge did not move")
    assert {row["system"] for row in found.falls(0.05)} == {"b"}
    assert found.falls(0.3) == []
    assert {row["date"] for row in found.moved if row["system"] == "b"} == {"2026-11-05", "2026-11-09"}
    assert all(row["query"].startswith("What of ") for row in found.moved)


@pytest.mark.gate
def test_a_fall_is_distinguished_from_a_fall_of_the_judge_on_the_same_date(tmp_path: Path) -> None:
    def level(day: int) -> dict[str, float]:
        return {"a": 0.7, "judge": 0.5} if day < 4 else {"a": 0.4, "judge": 0.4}

    found = month(tmp_path, level, nights=5)
    own = next(row for row in found.findings if row.get("system") == "a")
    assert (own["kind"], own["cause"]) == ("system", "both")
    assert own["net_ci_low"] < -0.2 < own["net_ci_high"]
    assert "; the judge moved by -0." in describe_finding(own)


def test_without_a_sentinel_a_change_has_no_cause(tmp_path: Path) -> None:
    found = month(tmp_path, lambda day: {"a": 0.7 if day < 3 else 0.4}, nights=4)
    assert told(found) == [("change", "03", "a")]
    assert [row["cause"] for row in found.findings if "cause" in row] == []


@pytest.mark.gate
def test_fewer_answers_and_more_failures_are_reported_with_the_means(tmp_path: Path) -> None:
    whole, silent, failed = ([0.6] * 6 + [one] * 10 for one in (0.6, "no_statements", "failed"))
    runs = [
        write_night(tmp_path, day, {"a": silent if day >= 4 else whole, "b": failed if day >= 4 else whole})
        for day in range(1, 7)
    ]
    found = find_trend(runs)
    assert [(row["system"], row["measure"], row["date"][-2:]) for row in found.findings] == [
        ("a", "answer_rate", "04"),
        ("b", "failed_share", "04"),
    ]
    (less, more) = map(describe_finding, found.findings)
    assert less.startswith("2026-11-04, the answer rate of a is lower by 0.625 (-0.8")
    assert more.startswith("2026-11-04, the share of failed samples of b is higher by 0.625 (")
    assert {(row["system"], row["measure"]) for row in found.falls(0.05)} == {("a", "answer_rate")}
    assert found.falls(0.625) == []
    # Shares that never differ have no rows
    assert {row["measure"] for row in found.changes if row["system"] == "a"} == {"mean", "answer_rate"}
    assert {row["measure"] for row in found.steps} == {"mean"}


def test_dates_that_a_break_parts_are_not_compared(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    runs = [
        write_night(tmp_path, day, {"a": noisy(random, 0.7 if day < 3 else 0.4)}, template="one" if day < 3 else "two")
        for day in range(1, 6)
    ]
    found = find_trend(runs)
    assert told(found) == [("break", "03", None)]
    assert [(row["before"][-2:], row["date"][-2:]) for row in found.changes] == [
        ("01", "02"),
        ("03", "04"),
        ("04", "05"),
    ]
    assert [row["stretch"] for row in found.points if row["system"]] == [1, 1, 2, 2, 2]
    # The line in the picture is broken there too
    panel = draw_trend(found).axes[0]
    drawn = [[int(place) for place in np.asarray(line.get_xdata())] for line in panel.lines if line.get_marker() == "o"]
    assert drawn == [[0, 1], [2, 3, 4]]
    assert [line.get_xdata() for line in panel.lines if line.get_linestyle() == ":"] == [[1.5, 1.5]]


def test_a_sentinel_with_other_answers_starts_again(tmp_path: Path) -> None:
    runs = [write_night(tmp_path, day, {"a": [0.5, 0.75] * 8}) for day in (1, 2)]
    write_sentinel(runs[0], [0.9] * QUERIES)
    write_sentinel(runs[1], [0.2] * QUERIES, content="another")
    found = find_trend(runs)
    assert (told(found), [row["level"] for row in found.changes]) == ([], ["system"])


def test_other_samples_are_compared_unpaired_and_new_ids_by_their_queries(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    levels = {1: 0.7, 2: 0.7, 3: 0.4}
    by_query = [
        write_night(tmp_path / "ids", day, {"a": noisy(random, mean)}, ids=f"{day}-{{system}}-{{query}}")
        for day, mean in levels.items()
    ]
    unpaired = [
        write_night(tmp_path / "new", day, {"a": noisy(random, mean)}, topic=f"{day}-") for day, mean in levels.items()
    ]
    for runs, key, n in ((by_query, "query", QUERIES), (unpaired, None, 2 * QUERIES)):
        found = find_trend(runs)
        assert [(row["paired_by"], row["n"]) for row in found.changes] == [(key, n)] * 2
        assert told(found) == [("change", "03", "a")]
        (step,) = (row for row in found.changes if row["date"] == "2026-11-03")
        assert step["ci_low"] < -0.3 < step["ci_high"]


def test_means_are_of_samples_and_their_intervals_of_queries(tmp_path: Path) -> None:
    values = [0.0, 0.25, 0.5, 1.0, 1.0, 0.75]
    run = write_night(tmp_path, 1, {"a": values, "b": values})
    whole, one, _ = find_trend([run]).points
    assert (whole["level"], whole["n"], whole["mean"], whole["cost"]) == ("overall", 12, pytest.approx(7 / 12), 0.5)
    # Both systems have responses to the same queries
    limits = clustered_bca_interval([2 * value for value in values], [2] * 6, seed=0)
    assert (whole["ci_low"], whole["ci_high"]) == (pytest.approx(limits.low), pytest.approx(limits.high))
    assert (one["ci_low"], one["ci_high"]) == (pytest.approx(limits.low), pytest.approx(limits.high))


@pytest.mark.parametrize(
    ("folder", "named", "day"),
    [
        ("2026-11-20/e2e", {"date": "2026-11-19"}, "2026-11-19"),
        ("nightly", {"lakehouse": {"date": "2026-11-18"}}, "2026-11-18"),
        ("2026-11-20/e2e", {}, "2026-11-20"),
        ("2026-11-20/e2e-2026-11-22", {}, "2026-11-22"),
        ("nightly", {}, "2026-11-21"),
    ],
)
def test_a_date_is_that_of_the_manifest_the_path_or_the_start(
    tmp_path: Path, folder: str, named: dict[str, Any], day: str
) -> None:
    assert date_of(write_run(tmp_path / folder, {}, **night(**named))) == day


def test_weeks_begin_on_monday_and_at_breaks(tmp_path: Path) -> None:
    runs = [
        write_night(tmp_path, day, {"a": [0.5, 0.75]}, template="one" if day < 12 else "two") for day in range(8, 17)
    ]
    found = find_trend(runs, by="week")
    own = [(row["date"][-2:], row["n"], row["stretch"]) for row in found.points if row["system"]]
    # 2026-11-09 is a Monday
    assert own == [("02", 2, 1), ("09", 6, 1), ("12", 8, 2), ("16", 2, 2)]


@pytest.mark.gate
def test_nothing_is_found_without_a_change(tmp_path: Path) -> None:
    """Thirty metrics without a change have hardly any false findings. Each metric is a separate family of tests."""
    random = np.random.default_rng(5)
    names = [f"m{number:02d}" for number in range(30)]
    runs = []
    for day in range(1, 8):
        samples = [{"sample_id": f"s{query}", "query": f"q{query}"} for query in range(12)]
        scores = [
            {"sample_id": f"s{query}", "metric": metric, "system": "a", "status": "ok", "score": random.random()}
            for metric in names
            for query in range(12)
        ]
        runs.append(write_run(tmp_path / f"2026-11-{day:02d}", {"samples": samples, "scores": scores}, metrics=names))
    found = find_trend(runs)
    assert len(found.changes) >= 30 * 6
    # 5 % of thirty, and four standard errors
    assert len({row["metric"] for row in found.findings}) <= 6
