"""Averages over data sets, and how they spread over models: rows of several meta-evaluations in, rows out.

Dejl et al. 2025 average the LMR of WikiContradict and ConflictBank; methods, section 6.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from untold.jobs.study.agreement import unit_counts
from untold.jobs.study.label_points import LMR
from untold.jobs.study.report import AVERAGE, PUBLISHED_CONVENTION, PUBLISHED_SPREADS, with_published
from untold.udfs.statistics.intervals import joint_bca_interval

SPREAD = "lmr_spread"
Row = Mapping[str, Any]
Owner = tuple[str, str, str]  # metric, model, convention


def average_rows(counts: Iterable[Row], *, seed: int) -> list[dict[str, Any]]:
    """Rows of `meta_evaluation`: the average LMR of each metric and model, then its spread over models.

    counts: rows of `match_counts`. A metric of a model is averaged where every data set has it: every data set counts
    the same, and the interval is joint over all of them. The spread is the standard deviation over at least two models,
    of no model. Dejl et al. 2025; methods, section 6.
    """
    by_owner = _by_owner(counts)
    datasets = sorted({dataset for found in by_owner.values() for dataset in found})
    whole = {owner: found for owner, found in by_owner.items() if len(found) == len(datasets)}
    averages = [_average(owner, [found[name] for name in datasets], seed) for owner, found in sorted(whole.items())]
    return with_published(averages) + _spreads(averages)


def has_answered(rows: Iterable[Row]) -> bool:
    """Whether rows of `meta_evaluation` are of scores that did not all fail: only `zero` leaves failed ones out."""
    return any(row["value"] is not None for row in rows if (row["measure"], row["convention"]) == (LMR, "zero"))


def missing_averages(counts: Iterable[Row]) -> list[tuple[str, str, list[str]]]:
    """Metric, model and the data sets that lack it, of what cannot be averaged.

    An average over fewer data sets would be of another measure, and stand beside the others as if it were not.
    """
    found = {(metric, model): set(sets) for (metric, model, _), sets in _by_owner(counts).items()}
    datasets = set[str]().union(*found.values())
    return [(*owner, sorted(datasets - sets)) for owner, sets in sorted(found.items()) if sets != datasets]


def _by_owner(counts: Iterable[Row]) -> dict[Owner, dict[str, list[Row]]]:
    """By metric, model and convention, then by data set: its rows of LMR. Other measures have no average."""
    by_owner: dict[Owner, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in counts:
        if row["measure"] == LMR:
            by_owner[row["metric"], row["model"], row["convention"]][row["dataset"]].append(row)
    return by_owner


def _average(owner: Owner, sets: Sequence[Sequence[Row]], seed: int) -> dict[str, Any]:
    """A row of `meta_evaluation` of the data set `average`: the mean over data sets of their means.

    n and left_out are sums over the data sets. The interval resamples each data set by itself, as they are independent.
    """
    interval = joint_bca_interval([unit_counts(rows, rows[0]["scale"]) for rows in sets], seed=seed)
    return {
        "dataset": AVERAGE,
        **dict(zip(("metric", "model", "convention"), owner, strict=True)),
        "measure": LMR,
        **interval.columns(),
        "n": sum(row["size"] * row["count"] for rows in sets for row in rows),
        "left_out": sum(row["left_out"] for rows in sets for row in rows),
    }


def _spreads(averages: Iterable[Row]) -> list[dict[str, Any]]:
    """The standard deviation (n - 1) of the averages over models, by metric and convention, without an interval.

    n counts models. The published figure is of five models under the convention `published`, and stands there alone.
    """
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in averages:
        # A model whose average is undefined says nothing of the spread
        if row["value"] is not None:
            values[row["metric"], row["convention"]].append(row["value"])
    return [
        {
            "dataset": AVERAGE,
            "metric": metric,
            "model": None,
            "convention": convention,
            "measure": SPREAD,
            "value": statistics.stdev(found),
            "ci_low": None,
            "ci_high": None,
            "n": len(found),
            "left_out": None,
            "published": PUBLISHED_SPREADS.get(metric) if convention == PUBLISHED_CONVENTION else None,
        }
        for (metric, convention), found in sorted(values.items())
        # One model has no spread; 0 would look like agreement
        if len(found) > 1
    ]
