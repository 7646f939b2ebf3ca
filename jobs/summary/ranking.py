"""Compute the rows of `summary` from counts, rank systems, and test their differences (methods, sections 7 and 8)."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

from untold.jobs.run.terminal import amount
from untold.jobs.run_tables import RunTables
from untold.jobs.summary.score_counts import COLUMN_OF_STATUS, Row, Rows, ScoreCounts, connect_scores, group_by
from untold.udfs.errors import UserError, did_you_mean, near_misses
from untold.udfs.statistics.intervals import (
    NOTHING,
    bca_interval,
    clustered_bca_interval,
    mean_of_counts,
    wilson_interval,
)
from untold.udfs.statistics.permutation import Clusters, adjust_p_values, clustered_permutation_test

FEW = 10  # an interval of fewer values is rough
LEVELS = ("overall", "system")
Key = tuple[str | None, ...]
Counts = dict[str, Counter[float]]
"""The frequency of each value, by measure."""
CountedGroup = tuple[Key, Counter[str], Counts]
"""The values of the keys with the system, the samples by status, and the values."""
Result = TypeVar("Result")
THREADS = min(8, os.cpu_count() or 1)  # a thread needs up to 50 MB


def summarise_counts(
    counts: Iterable[Row], *, seed: int | None, zero: bool = False, levels: Collection[str] = LEVELS
) -> Rows:
    """Return the rows of the table `summary`: per metric one of the level `overall`, then one per system by name.

    counts: metric, system, status, measure (score, score_low, score_high or score_zero), value or null, count. Samples
    without a system count only in the overall row. The interval is of `mean`, with `zero` of `mean_zero`. seed: None
    computes no intervals. levels: the levels to compute. Raises ValueError for a status that the contract does not
    have. Methods, section 7.
    """

    def row_of(group: CountedGroup) -> dict[str, Any]:
        (metric, system), statuses, values = group
        columns: Counter[str] = Counter()
        for status, count in statuses.items():
            # A mean would hide an unknown status
            if status not in COLUMN_OF_STATUS:
                hint = did_you_mean(near_misses(str(status), COLUMN_OF_STATUS), quote="'")
                message = f"scores has status {status!r}, not {', '.join(COLUMN_OF_STATUS)}; {hint}"
                raise ValueError(message.rstrip("; "))
            columns[COLUMN_OF_STATUS[status]] += count
        return {
            "metric": metric,
            "level": LEVELS[system is not None],
            "system": system,
            "n": columns.total(),
            **{name: columns[name] for name in ("scored", "undefined", "failed")},
            **mean_columns(values, "score", "score_zero" if zero else "score", seed),
            **answer_columns(values["score"], values["score_zero"]),
        }

    groups = group_counts(counts, ("metric",), "score")
    return map_in_threads(row_of, (one for one in groups if LEVELS[one[0][-1] is not None] in levels))


def map_in_threads(function: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
    """Return the results of a function for the arguments, in their order. NumPy draws resamples in parallel threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, *arguments))


def group_counts(counts: Iterable[Row], keys: Sequence[str], counted: str) -> Iterator[CountedGroup]:
    """Yield each group with its samples by status, and with its values by measure, sorted.

    counts: the keys, system, status (optional), measure, value or null, count. A group has the values of the keys and a
    system, which is None for all samples. counted: the measure that has one row per sample.
    """
    statuses: dict[Key, Counter[str]] = defaultdict(Counter)
    values: dict[Key, Counts] = defaultdict(lambda: defaultdict(Counter))
    for row in counts:
        key = tuple(row[name] for name in keys)
        for group in {(*key, None), (*key, row["system"])}:
            if row["measure"] == counted:
                statuses[group][row.get("status", "")] += row["count"]
            if row["value"] is not None:
                values[group][row["measure"]][row["value"]] += row["count"]
    for group in sorted(statuses, key=lambda group: (*group[:-1], group[-1] is not None, group[-1] or "")):
        yield group, statuses[group], values[group]


def mean_columns(values: Counts, name: str, interval_of: str, seed: int | None) -> dict[str, float | None]:
    """Return the mean of a measure, the limits of the mean of `interval_of`, and the means of the bounds."""
    interval = NOTHING if seed is None else bca_interval(*values_and_counts(values[interval_of]), seed=seed)
    mean, low, high = (mean_of_counts(*values_and_counts(values[f"{name}{end}"])) for end in ("", "_low", "_high"))
    return {"mean": mean, "ci_low": interval.low, "ci_high": interval.high, "mean_low": low, "mean_high": high}


def interval_text(row: Mapping[str, Any], *, clustered: bool = False) -> str:
    """Return the 95 % interval of a row as text, with a remark below `FEW` values, or the reason for no interval.

    clustered: True if the interval resamples whole queries.

    >>> [interval_text({"ci_low": low, "ci_high": 0.5, "n": n}) for low, n in [(0.25, 12), (0.25, 3), (None, 1)]]
    ['0.250 .. 0.500', '0.250 .. 0.500 (n < 10)', '- (n = 1)']
    """
    count = row.get("scored", row["n"])
    if row["ci_low"] is not None:
        return f"{row['ci_low']:.3f} .. {row['ci_high']:.3f}" + (f" (n < {FEW})" if count < FEW else "")
    if count < 2:
        return f"- (n = {count})"
    return "- (one query, or all equal)" if clustered else "- (all equal)"


def number_text(value: float | None, form: str = ".3f") -> str:
    """Return a number as text, or `-` for None."""
    return "-" if value is None else format(value, form)


def limits_text(row: Mapping[str, Any], name: str, form: str = ".3f") -> str:
    """Return the limits `<name>_low` and `<name>_high` of a row as text, or `-` without limits."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "-" if low is None else f"{low:{form}} .. {high:{form}}"


def answer_columns(defined: Counter[float], zero: Counter[float]) -> dict[str, float | None]:
    """Return answer_rate with its interval, and mean_zero, from counts of values without and with zeros."""
    rate = wilson_interval(defined.total() if zero else 0, zero.total())
    return {**rate.columns("answer_rate", "answer_ci"), "mean_zero": mean_of_counts(*values_and_counts(zero))}


def values_and_counts(counts: Counter[float]) -> tuple[list[float], list[int]]:
    """Return the distinct values and their counts, as `untold.udfs.statistics.intervals` accepts them."""
    return list(counts.keys()), list(counts.values())


# Two systems with a smaller adjusted p-value differ by more than chance
CHANCE = 0.05
ANSWER_COLUMNS = ("answer_rate", "answer_ci_low", "answer_ci_high", "mean_zero")
SYSTEM_COLUMNS = (
    *("metric", "system", "n", "scored", "undefined", "failed", "mean", "ci_low", "ci_high"),
    *ANSWER_COLUMNS,
)
# The mean of a ranking: without undefined scores, or with 0 for those of samples with something to state
UNDEFINED = {"mean": "mean", "zero": "mean_zero"}


class CompareError(UserError):
    """Outputs that cannot be compared. The message has one line per problem and names the remedy."""


def compare_scores(
    runs: Sequence[RunTables],
    *,
    metrics: Sequence[str] | None = None,
    measures: Sequence[str] | None = None,
    seed: int = 0,
    notify: Callable[[str], None] = lambda _: None,
    cluster: bool = False,
    undefined: str = "mean",
) -> dict[str, Rows]:
    """Return `systems` and `comparisons` of runs, for `metrics` or for all metrics of the runs.

    With `measures` the values of these replace the scores, `metric` is `<metric>.<measure>`, and answer rates are null.

    `systems`, the best first within a metric: `SYSTEM_COLUMNS`, as in the table `summary`. Samples without a system
    have the name of their output. `undefined` names the mean of the ranking, a key of `UNDEFINED`. With `zero`,
    intervals and comparisons also count an undefined score as 0 if there was something to state.

    `comparisons`, one row per two systems of a metric, the better one first: metric, first, second, n (questions with a
    score of both), difference of the means over these with ci_low and ci_high, p_value, p_adjusted (Benjamini-Hochberg
    within the metric); null if n is 0. A question is a query with its contexts, and several samples of one count as
    their mean. With `cluster`, all rows of a query are resampled together and flip together.

    notify: accepts a line if systems differ in their answer rates by more than chance, if runs were judged differently,
    and if queries have several rows without `cluster`. Raises CompareError for runs that cannot be compared. Methods,
    sections 7 and 8.
    """
    wanted = wanted_measures(check_runs(runs), measures)
    metrics = wanted_metrics(runs, metrics)
    if undefined not in UNDEFINED:
        raise CompareError(f"undefined={undefined}: must be {' or '.join(UNDEFINED)}")
    if wanted and undefined != "mean":
        raise CompareError(f"undefined={undefined} is for scores. Measures have mean_zero in measures_summary")
    for line in judged_differently(runs):
        notify(line)
    scores = ScoreCounts(connect_scores(runs, names_of(runs), metrics, wanted))
    _check_once(scores, runs)
    zero = undefined == "zero"
    by, score = UNDEFINED[undefined], "score_zero" if zero else "score"
    summary = summarise_counts(scores.count_values(), seed=None if cluster else seed, zero=zero, levels=LEVELS[1:])
    systems = rank(summary, by)
    systems = [{**row, **dict.fromkeys(ANSWER_COLUMNS)} for row in systems] if wanted else systems
    _check_scored(systems, runs, by)
    for line in _unequal_answers(scores, systems, seed, cluster=cluster):
        notify(line)
    if cluster:
        clusters = scores.count_clusters(score)
        of_systems = [clusters.get((row["metric"], row["system"]), ([], [], [])) for row in systems]
        limits = map_in_threads(lambda one: _limits(one, seed), of_systems)
        systems = [row | own for row, own in zip(systems, limits, strict=True)]
    elif repeated := scores.count_repeated_queries():
        have = amount(repeated, "query has", "queries have")
        notify(
            f"{have} several rows of one system, which are similar, so intervals and tests over single rows are too "
            "narrow. --cluster resamples whole queries"
        )
    pairs = compare_pairs(systems, scores.count_differences(score, cluster=cluster), seed)
    return {"systems": systems, "comparisons": pairs}


def check_runs(runs: Sequence[RunTables]) -> Sequence[RunTables]:
    """Return the runs. Raises CompareError if a run occurs twice or has no scores."""
    outputs = [run.directory for run in runs]
    twice = sorted({output for output in outputs if outputs.count(output) > 1})
    if twice:
        raise CompareError(f"{', '.join(twice)} is given twice. Give every output once")
    for run in runs:
        if missing := [name for name in ("samples", "scores") if name not in run.tables]:
            score_it = f"score it: untold score --input {run.path_of('samples')}"
            hint = score_it if "samples" in run.tables else "give other outputs"
            tables = " and no table ".join(missing)
            raise CompareError(f"{run.directory} has no table {tables}, so it is not an output of untold score; {hint}")
    return runs


def wanted_metrics(runs: Sequence[RunTables], metrics: Sequence[str] | None) -> Sequence[str]:
    """Return the metrics to compare, by default all metrics of the runs. Raises CompareError for an unknown metric."""
    known = sorted({name for run in runs for name in run.manifest.get("metrics", ())})
    _check_known("scores of metric", metrics or (), known, "")
    return metrics or known


def wanted_measures(runs: Sequence[RunTables], measures: Sequence[str] | None) -> Sequence[str]:
    """Return the measures to compare instead of scores. Raises CompareError for an unknown measure."""
    if measures is None:
        return ()
    tables = [run.table("measures_summary") for run in runs if "measures_summary" in run.tables]
    known = sorted({name for table in tables for name in table["measure"].to_pylist()})
    _check_known("measure", measures, known, "none")
    return measures


def _check_known(what: str, names: Sequence[str], known: Sequence[str], none: str) -> None:
    """Raise CompareError for unknown names. `none` is the text for no known names."""
    if unknown := [name for name in names if name not in known]:
        hint = f"{did_you_mean(near_misses(unknown[0], known), quote='')} the outputs have {', '.join(known) or none}"
        raise CompareError(f"no {what} {', '.join(unknown)}; {hint.strip()}")


def names_of(runs: Sequence[RunTables]) -> list[str]:
    """Return the systems of samples without one: the name of the folder, or the path if two folders have one name.

    `runs/a` and `runs/b` are a and b; `x/out` and `y/out` keep their paths.
    """
    short = [os.path.basename(run.directory.rstrip("/")) for run in runs]
    return [name if short.count(name) == 1 else run.directory for name, run in zip(short, runs, strict=True)]


def judged_differently(runs: Sequence[RunTables]) -> Iterator[str]:
    """Yield a line per two runs with different stages (model, decoding, template) or settings of the judge.

    Only common stages count. The runs are still compared, because the difference may be the purpose.
    """
    for one, other in combinations(runs, 2):
        first, second = (run.manifest.get("identity", {}) for run in (one, other))
        stages = first.get("stages", {}).keys() & second.get("stages", {}).keys()
        judged = [name for name in sorted(stages) if first["stages"][name] != second["stages"][name]]
        # The settings that change scores, without those of the statistics
        options = [
            {name: value for name, value in one.get("results", {}).items() if name not in ("stages", "statistics")}
            for one in (first, second)
        ]
        changed = sorted(name for name in options[0] if options[0][name] != options[1].get(name))
        if judged or changed:
            what = ", ".join([*judged, *changed])
            pair = f"{one.directory} and {other.directory}"
            yield f"{pair} were judged by different {what}: the results may not be comparable"


def _check_once(scores: ScoreCounts, runs: Sequence[RunTables]) -> None:
    """Raise CompareError if a system has scores of one metric for one question in two runs."""
    first = scores.find_twice() if len(runs) > 1 else None
    if first is not None:
        one, other = (runs[first[name]].directory for name in ("one", "other"))
        raise CompareError(
            f"{one} and {other} both have {first['metric']} scores of system {first['system']}, for "
            f"{amount(first['count'], 'question')}; give one of the two, or name the systems apart"
        )


def _check_scored(systems: Rows, runs: Sequence[RunTables], by: str) -> None:
    """Raise CompareError if no system has the mean of that column."""
    if all(row[by] is None for row in systems):
        failed, undefined = (sum(row[name] for row in systems) for name in ("failed", "undefined"))
        outputs = ", ".join(run.directory for run in runs)
        raise CompareError(
            f"nothing to compare, because no sample of {outputs} has a score ({failed:,} failed, {undefined:,} "
            "undefined). The table failures has the reasons. Retry with untold score --retry-failed"
        )


def rank(summary: Iterable[Mapping[str, Any]], by: str) -> Rows:
    """Return the rows of the systems of a summary with `SYSTEM_COLUMNS`, the best first within a metric.

    by: the column of the mean. Systems without a mean are last. Equal means have the order of names.
    """
    rows = [{name: row[name] for name in SYSTEM_COLUMNS} for row in summary if row["level"] == "system"]
    return sorted(rows, key=lambda row: (row["metric"], row[by] is None, -(row[by] or 0.0), row["system"]))


def _unequal_answers(scores: ScoreCounts, systems: Rows, seed: int, *, cluster: bool) -> Iterator[str]:
    """Yield a line per metric with answer rates that differ by more than chance (methods, section 7).

    The line names the pair with the largest difference. Nothing is counted if every system answers everything.
    """
    answering = [row for row in systems if row["answer_rate"] is not None]
    silent = sorted({row["metric"] for row in answering if row["answer_rate"] < 1})
    if not silent:
        return
    differences = scores.count_differences("answered", cluster=cluster)
    pairs = compare_pairs([row for row in answering if row["metric"] in silent], differences, seed)
    rates = {(row["metric"], row["system"]): row["answer_rate"] for row in answering}
    for metric in silent:
        own = [row for row in pairs if row["metric"] == metric and is_unlikely(row)]
        if own:
            pair = max(own, key=lambda row: abs(row["difference"]))
            low, high = sorted((pair["first"], pair["second"]), key=lambda name: rates[metric, name])
            yield (
                f"{metric}: answer rates differ by more than chance ({low} {rates[metric, low]:.2f}, {high} "
                f"{rates[metric, high]:.2f}). --undefined zero counts an undefined score as 0"
            )


def is_unlikely(pair: Row) -> bool:
    """Return True if two systems differ by more than chance."""
    return pair["p_adjusted"] is not None and pair["p_adjusted"] < CHANCE


def _limits(clusters: Clusters, seed: int) -> dict[str, float | None]:
    """Return ci_low and ci_high of a mean."""
    interval = clustered_bca_interval(*clusters, seed=seed)
    return {"ci_low": interval.low, "ci_high": interval.high}


def compare_pairs(systems: Rows, differences: Mapping[tuple[str, ...], Clusters], seed: int) -> Rows:
    """Return the rows of `comparisons`: every two systems of a metric, the better one first (methods, section 7).

    systems: ranked rows; differences: as `ScoreCounts.count_differences` returns them.
    """
    ranked: dict[str, list[str]] = defaultdict(list)
    for system in systems:
        ranked[system["metric"]].append(system["system"])
    pairs = [(metric, *pair) for metric, names in ranked.items() for pair in combinations(names, 2)]
    # Systems without a common query
    nothing: Clusters = ([], [], [])
    clusters: list[Clusters] = []
    for metric, first, second in pairs:
        sums, sizes, counts = differences.get((metric, second, first), nothing)
        reverse = -np.asarray(sums, np.float64), sizes, counts
        clusters.append(differences.get((metric, first, second), reverse))
    # In one pool, so that the test and the limits of a single pair run in parallel
    with ThreadPoolExecutor(THREADS) as pool:
        tests = pool.map(lambda one: clustered_permutation_test(*one, seed=seed), clusters)
        limits = pool.map(lambda one: _limits(one, seed), clusters)
        rows = [
            dict(zip(("metric", "first", "second"), pair, strict=True))
            | {"n": test.n, "difference": test.difference, **interval, "p_value": test.p_value}
            for pair, test, interval in zip(pairs, tests, limits, strict=True)
        ]
    return add_adjusted(rows, "metric")


def add_adjusted(rows: Rows, *family: str) -> Rows:
    """Return rows with `p_adjusted`, the `p_value` after Benjamini and Hochberg over the rows with equal columns."""
    for own in group_by(rows, *family).values():
        for row, value in zip(own, adjust_p_values([row["p_value"] for row in own]), strict=True):
            row["p_adjusted"] = value
    return rows
