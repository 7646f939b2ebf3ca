"""Find the significant changes between dates, their causes, and the breaks of comparability (methods, section 7)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from math import hypot
from typing import Any

from untold.jobs.run_tables import RunTables, UnreadableRunError, open_run
from untold.jobs.summary.dated_scores import (
    ANSWER_RATE,
    FAILED_SHARE,
    MEAN,
    MEASURES,
    OVERALL,
    SENTINEL,
    SYSTEM,
    DatedScores,
    Series,
)
from untold.jobs.summary.nights import SENTINEL_FOLDER, breaks_of, describe_break
from untold.jobs.summary.ranking import CHANCE, add_adjusted, is_unlikely
from untold.udfs.statistics.permutation import Change, adjust_p_values, find_shifts, interval_of, p_of_error
from untold.udfs.storage import FOOTERS_AT_ONCE

STEP, SHIFT = "step", "shift"
_SHARES = {ANSWER_RATE: "the answer rate of", FAILED_SHARE: "the share of failed samples of"}
JUDGE, BOTH = "judge", "both"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
Row = dict[str, Any]


@dataclass(frozen=True)
class Trend:
    """Rows of the tables `trend`, `changes` and `moved`, with the breaks, and the findings in the order of dates.

    A finding has kind (break, judge, system, or change without a sentinel), date, before, and the columns of its row.
    """

    points: list[Row]
    changes: list[Row]
    moved: list[Row]
    breaks: list[Row]
    findings: list[Row]

    @property
    def dates(self) -> list[str]:
        """Return all dates in ascending order."""
        return sorted({row["date"] for row in self.points})

    @property
    def steps(self) -> list[Row]:
        """Return the changes of the means of systems between consecutive dates."""
        return [row for row in self.changes if (row["kind"], row["level"], row["measure"]) == (STEP, SYSTEM, MEAN)]

    @property
    def shown(self) -> list[Row]:
        """Return the points without the totals of metrics with a single system."""
        systems = {(row["metric"], row["system"]) for row in self.points if row["system"]}
        several = {metric for metric, _ in systems if sum(one == metric for one, _ in systems) > 1}
        return [row for row in self.points if row["level"] != OVERALL or row["metric"] in several]

    def falls(self, fall: float) -> list[Row]:
        """Return the significant falls of a mean or an answer rate by more than `fall`, without the part of the judge.

        For the newest date only the interval decides. Earlier dates also need a significant p-value.
        """
        newest = max(self.dates, default="")
        rows = (row for row in self.changes if row["level"] == SYSTEM and row["measure"] in (MEAN, ANSWER_RATE))
        return [row for row in rows if _upper(row) < -fall and (is_unlikely(row) or row["date"] == newest)]


def date_of(run: RunTables) -> str:
    """Return the date of a run (`2026-11-20`): `named_date`, otherwise the day of its start, or an empty text."""
    starts = [str(start["started_at"]) for start in run.manifest.get("starts", ())]
    return named_date(run) or "".join(_DATE.findall(" ".join(starts[:1]))[:1])


def named_date(run: RunTables) -> str:
    """Return the date in the manifest of a run, otherwise the last date in its path, or an empty text."""
    known = run.manifest.get("date") or run.manifest.get("lakehouse", {}).get("date")
    return str(known or "".join(_DATE.findall(str(run.place))[-1:]))


def describe_finding(row: Row) -> str:
    """Return the line about a finding."""
    if row["kind"] == "break":
        return describe_break(row)
    when = f"from {row['date']} on" if row["kind"] == JUDGE or row["kind_of_change"] == SHIFT else row["date"]
    limits = "" if row["ci_low"] is None else f"{row['ci_low']:+.3f} .. {row['ci_high']:+.3f}, "
    way = "lower" if row["difference"] < 0 else "higher"
    moved = f"{way} by {abs(row['difference']):.3f} ({limits}n = {row['n']:,})"
    if row["level"] == SENTINEL:
        systems = f"; {', '.join(row['systems'])} moved with it" if row["systems"] else ""
        what = {MEAN: "it scores the sentinel"}.get(row["measure"], f"{_SHARES.get(row['measure'])} the sentinel is")
        return f"{when}, the judge moved: under {row['metric']} {what} {moved}{systems}"
    what = "" if row["measure"] == MEAN else f"{_SHARES[row['measure']]} "
    who = f"{when}, {what}{row['system']} is {moved} under {row['metric']}"
    judge = {
        JUDGE: "; the sentinel moved too, so the judge moved",
        BOTH: f"; the judge moved by {row.get('judge_difference') or 0:+.3f} of it",
        SYSTEM: "; the judge did not move",
    }
    return f"{who}{judge.get(row.get('cause') or '', '')}"


def find_trend(runs: Sequence[RunTables], *, by: str = "day", seed: int = 0) -> Trend:
    """Return the trend of runs over their dates, with their sentinels. by: `day` or `week`."""
    breaks = _breaks(runs)
    cuts = sorted({row["date"] for row in breaks})
    dated: dict[str, list[tuple[RunTables, str]]] = defaultdict(list)
    ordered = sorted(runs, key=lambda one: (date_of(one), one.directory))
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        sentinels = list(pool.map(open_sentinel, ordered))
    for run, sentinel in zip(ordered, sentinels, strict=True):
        own = [(run, SYSTEM), *([(sentinel, SENTINEL)] if sentinel else [])]
        dated[_label(date_of(run), by, cuts)] += own
    return _TrendTables(dict(dated), breaks, seed).trend()


def open_sentinel(run: RunTables) -> RunTables | None:
    """Return the output of the sentinel of a date, or None without a finished one."""
    try:
        found = open_run(str(run.place / SENTINEL_FOLDER))
    except UnreadableRunError:
        return None
    return found if found.status == "finished" and {"samples", "scores"} <= set(found.tables) else None


def _label(day: str, by: str, cuts: Sequence[str]) -> str:
    """Return the date of a day in the trend: for weeks the Monday, or a later break in the same week."""
    if by == "day" or not day:
        return day
    known = date.fromisoformat(day)
    monday = (known - timedelta(days=known.weekday())).isoformat()
    return max([monday, *(cut for cut in cuts if cut <= day)])


def _breaks(runs: Iterable[RunTables]) -> list[Row]:
    """Return the dates at which the figures of metrics stop to be comparable with earlier figures."""
    nights: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for run in runs:
        for metric in run.manifest.get("metrics", ()):
            nights[metric][date_of(run)] = run.manifest
    found: dict[tuple[str, ...], Row] = {}
    for metric, manifests in sorted(nights.items()):
        for row in breaks_of(dict(sorted(manifests.items()))):
            key = (row["date"], row["before"], *row["differs"])
            found.setdefault(key, {**row, "metrics": []})["metrics"].append(metric)
    return [found[key] for key in sorted(found)]


class _TrendTables:
    """The rows of a trend. Each run is read once."""

    def __init__(self, dated: Mapping[str, Sequence[tuple[RunTables, str]]], breaks: list[Row], seed: int) -> None:
        self._dates, self._breaks, self._seed = sorted(dated), breaks, seed
        self._scores = DatedScores(seed)
        self._renewed = self._renewals(dated)
        self._points = [
            {**row, "date": name, "cost": None if row["system"] else _cost(dated[name], row["level"])}
            for place, name in enumerate(self._dates)
            for row in self._scores.add(place, dated[name])
        ]
        wanted = [row for row in self._points if row["level"] in (SYSTEM, SENTINEL)]
        keys = {(row["metric"], row["level"], row["system"]) for row in wanted}
        ordered = sorted(keys, key=lambda key: (key[0], key[1], key[2] or ""))
        every = [self._make_series(*key, measure) for key in ordered for measure in MEASURES]
        # Constant shares are not compared
        self._series = [one for one in every if one.measure == MEAN or len(set(one.means.values())) > 1]
        self._judges = {(one.metric, one.measure): one for one in every if one.level == SENTINEL}

    def trend(self) -> Trend:
        """Return the trend."""
        points = [{**row, "stretch": self._stretch(row["metric"], row["level"], row["date"])} for row in self._points]
        points.sort(key=lambda row: (row["metric"], row["date"], row["level"], row["system"] or ""))
        found = [(series, *one) for series in self._series for one in self._changes(series)]
        changes = add_adjusted([row for _, row, _, _ in found], "metric", "measure", "kind")
        for series, row, later, earlier in found:
            # An alert can also report an insignificant change of the newest date
            if row["level"] == SYSTEM and (is_unlikely(row) or row["date"] == self._dates[-1]):
                row |= self._judged(series, later, earlier)
        _name_causes([row for row in changes if "judge_p_value" in row])
        moved = [row for one in found if is_unlikely(one[1]) for row in self._moved(*one)]
        findings = self._findings([row for row in changes if is_unlikely(row)])
        return Trend(points, sorted(changes, key=_order), moved, self._breaks, findings)

    def _renewals(self, dated: Mapping[str, Sequence[tuple[RunTables, str]]]) -> list[str]:
        """Return the dates at which the samples of the sentinel change."""
        inputs = [
            (name, run.manifest.get("identity", {}).get("input"))
            for name in self._dates
            for run, level in dated[name]
            if level == SENTINEL
        ]
        return [name for (_, before), (name, after) in pairwise(inputs) if before != after]

    def _make_series(self, metric: str, level: str, system: str | None, measure: str) -> Series:
        places = {name: place for place, name in enumerate(self._dates)}
        own = (row for row in self._points if (row["metric"], row["level"], row["system"]) == (metric, level, system))
        means = {places[row["date"]]: row[measure] for row in own if row[measure] is not None}
        return Series(metric, level, system, measure, means)

    def _stretch(self, metric: str, level: str, day: str) -> int:
        """Return the number of the stretch of comparable dates that contains a date, from 1."""
        cuts: list[str] = [row["date"] for row in self._breaks if metric in row["metrics"]]
        cuts += self._renewed if level == SENTINEL else []
        return 1 + sum(cut <= day for cut in set(cuts))

    def _changes(self, series: Series) -> Iterator[tuple[Row, range, range]]:
        """Yield the steps and shifts of a series without adjusted p-values, with their later and earlier dates."""
        stretches: dict[int, list[int]] = defaultdict(list)
        for place in sorted(series.means):
            stretches[self._stretch(series.metric, series.level, self._dates[place])].append(place)
        for places in stretches.values():
            errors = []
            for before, place in pairwise(places):
                later, earlier = range(place, place + 1), range(before, before + 1)
                change, key = self._scores.change(series, later, earlier)
                errors.append(change.error)
                yield self._row(series, STEP, change, key, place, before), later, earlier
            # All means of the measure are one family
            points = sum(len(one.means) for one in self._series if one.measure == series.measure)
            shifts = find_shifts([series.means[place] for place in places], errors, points=points)
            for start, middle, end in zip([0, *shifts], shifts, [*shifts[1:], len(places)], strict=False):
                later = range(places[middle], places[end - 1] + 1)
                earlier = range(places[start], places[middle - 1] + 1)
                change, key = self._scores.change(series, later, earlier)
                yield self._row(series, SHIFT, change, key, places[middle], places[middle - 1]), later, earlier

    def _row(self, series: Series, kind: str, change: Change, key: str | None, place: int, before: int) -> Row:
        test = change.test(self._seed)
        return {
            **{name: getattr(series, name) for name in ("metric", "level", "system", "measure")},
            "kind": kind,
            "date": self._dates[place],
            "before": self._dates[before],
            "paired_by": key,
            "n": test.n,
            **interval_of(change, seed=self._seed).columns("difference"),
            "p_value": test.p_value,
        }

    def _judged(self, series: Series, later: range, earlier: range) -> Row:
        """Return the columns about the judge, from the sentinel on the same dates, or nothing without a sentinel."""
        judge = self._judges.get((series.metric, series.measure))
        stretches = {self._stretch(series.metric, SENTINEL, self._dates[one]) for one in (later[0], earlier[-1])}
        if judge is None or len(stretches) > 1:
            return {}
        moved, _ = self._scores.change(judge, later, earlier)
        test = moved.test(self._seed)
        if test.p_value is None:
            return {}
        own, _ = self._scores.change(series, later, earlier)
        net = interval_of(own, moved.negated, seed=self._seed)
        freedom = min(own.degrees_of_freedom, moved.degrees_of_freedom)
        return {
            "judge_difference": test.difference,
            "judge_p_value": test.p_value,
            **net.columns("net_difference", "net_ci"),
            "net_p_value": p_of_error(net.mean or 0.0, hypot(own.error, moved.error), freedom),
        }

    def _moved(self, series: Series, row: Row, later: range, earlier: range) -> list[Row]:
        if (row["level"], row["measure"]) != (SYSTEM, MEAN) or row["paired_by"] is None:
            return []
        named = {name: row[name] for name in ("kind", "date", "before")}
        return [one | named for one in self._scores.moved(series, later, earlier, row["paired_by"])]

    def _findings(self, unlikely: Sequence[Row]) -> list[Row]:
        """Return breaks, changes of the judge and changes of systems.

        A shift next to a step with the same sign is the same change, so only the step is returned.
        """
        steps = [row for row in unlikely if row["kind"] == STEP]
        shifts = [row for row in unlikely if row["kind"] == SHIFT and not any(self._alike(row, one) for one in steps)]
        rows = sorted([*steps, *shifts], key=_order)
        rows = [{**row, "kind_of_change": row["kind"]} for row in rows]
        judges = [{**row, "kind": JUDGE, "systems": []} for row in rows if row["level"] == SENTINEL]
        systems = []
        for row in (row for row in rows if row["level"] == SYSTEM):
            moved = next((one for one in judges if self._near(row, one)), None)
            if row.get("cause") == JUDGE and moved is not None:
                moved["systems"] = sorted({*moved["systems"], row["system"]})
                continue
            systems.append({**row, "kind": {None: "change", JUDGE: JUDGE}.get(row.get("cause"), SYSTEM)})
        breaks = [{**row, "kind": "break"} for row in self._breaks]
        return sorted([*breaks, *judges, *systems], key=lambda row: (row["date"], row["kind"], row.get("metric", "")))

    def _alike(self, row: Row, other: Row) -> bool:
        same = all(row[name] == other[name] for name in ("level", "system"))
        return same and self._near(row, other) and row["difference"] * other["difference"] > 0

    def _near(self, row: Row, other: Row) -> bool:
        """Return True if two changes of a measure have the same date or neighbouring dates."""
        apart = abs(self._dates.index(row["date"]) - self._dates.index(other["date"]))
        same = all(row[name] == other[name] for name in ("metric", "measure"))
        return same and apart <= 1


def _cost(runs: Iterable[tuple[RunTables, str]], level: str) -> float | None:
    """Return the cost of the outputs of a date, or of its sentinels; None without a price."""
    own = [
        (run.manifest.get("totals") or {}).get("cost") for run, one in runs if (one == SENTINEL) == (level == SENTINEL)
    ]
    known = [cost for cost in own if cost is not None]
    return sum(known) if known else None


def _order(row: Row) -> tuple[str, ...]:
    return tuple(row[name] or "" for name in ("metric", "level", "system", "date", "kind", "measure"))


def _name_causes(rows: Sequence[Row]) -> None:
    """Set the cause of changes of systems.

    If the judge changed, the p-value of the net change decides. It is adjusted over all such changes.
    """
    moved = [row for row in rows if row["judge_p_value"] < CHANCE]
    for row in rows:
        row["cause"] = SYSTEM
    for row, value in zip(moved, adjust_p_values([row["net_p_value"] for row in moved]), strict=True):
        row["cause"] = BOTH if value is not None and value < CHANCE else JUDGE


def _upper(row: Row) -> float:
    """Return the upper limit of a change, or the change without limits, net of the judge if the judge changed."""
    net = "net_" if row.get("cause") in (JUDGE, BOTH) else ""
    change, low, high = (row[f"{net}{name}"] for name in ("difference", "ci_low", "ci_high"))
    if change is None or (high is None and not is_unlikely(row)):
        return 0.0
    return float(change if low is None or high is None else high)
