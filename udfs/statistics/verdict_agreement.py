"""Verdicts on claims against labels of these: accuracy, kappa and macro-F1, and the share that is supported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1, table_interval
from untold.udfs.statistics.intervals import FloatArray, IntArray, Interval, clustered_bca_interval, wilson_interval
from untold.udfs.statistics.question_resampling import total_interval

VERDICTS = (SUPPORTED, CONTRADICTED, NOT_SUPPORTED)
MEASURES = {"accuracy": accuracy, "kappa": kappa, "macro_f1": macro_f1}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class VerdictLabels:
    """The labels that claims have, of `VERDICTS`, in their order.

    Where none is `contradicted`, people did not tell it from `not_supported`, and a verdict of it is one of these.
    """

    names: tuple[str, ...]

    def place_of(self, verdict: str) -> int:
        """The column of a verdict in a confusion table; behind all labels where no claim has it.

        >>> both = VerdictLabels(("supported", "not_supported"))
        >>> [both.place_of(one) for one in VERDICTS], VerdictLabels(("supported",)).place_of("not_supported")
        ([0, 1, 1], 1)
        """
        if verdict == CONTRADICTED and CONTRADICTED not in self.names:
            verdict = NOT_SUPPORTED
        return self.names.index(verdict) if verdict in self.names else len(self.names)

    def table(self, rows: Iterable[Row]) -> IntArray:
        """int64[k, k + 1], claims by label and verdict; rows: label, verdict (null ones are passed over), count."""
        table = np.zeros((len(self.names), len(self.names) + 1), dtype=np.int64)
        for row in rows:
            if row["verdict"] is not None:
                table[self.names.index(row["label"]), self.place_of(row["verdict"])] += row["count"]
        return table


def labels_of(rows: Iterable[Row]) -> VerdictLabels:
    """The labels of rows of label and count."""
    given = {row["label"] for row in rows if row["count"]}
    return VerdictLabels(tuple(name for name in VERDICTS if name in given))


def constant_label(rows: Iterable[Row]) -> str:
    """The most frequent label of rows of label and count, the first of `VERDICTS` of equals."""
    counts = dict.fromkeys(VERDICTS, 0)
    for row in rows:
        counts[row["label"]] += row["count"]
    return max(VERDICTS, key=lambda name: counts[name])


def verdict_intervals(rows: Sequence[Row], labels: VerdictLabels, *, seed: int) -> dict[str, Interval]:
    """By name of `MEASURES`, over all claims. rows: unit, label, verdict, count.

    A unit is a cluster of claims (those of one answer), resampled as a whole; where it is None claims are resampled one
    by one, and the interval of accuracy is Wilson's. Methods, sections 6 and 7.
    """
    if any(row["unit"] is None for row in rows) or not rows:
        table = labels.table(rows)
        found = {name: table_interval(measure, table, seed=seed) for name, measure in MEASURES.items()}
        return {**found, "accuracy": wilson_interval(int(np.trace(table)), int(table.sum()))}
    by_unit: dict[str, list[Row]] = {}
    for row in rows:
        by_unit.setdefault(row["unit"], []).append(row)
    tables = np.stack([labels.table(own) for own in by_unit.values()])
    shape = tables.shape[1:]
    found = {}
    for name, measure in MEASURES.items():

        def of_counts(totals: IntArray, measure: Any = measure) -> FloatArray:
            values: FloatArray = measure(totals.reshape(*totals.shape[:-1], *shape))
            return values

        found[name] = total_interval(of_counts, tables.reshape(len(tables), -1), seed=seed)
    return found


def supported_share(rows: Sequence[Row], column: str, *, seed: int) -> tuple[Interval, int]:
    """The share of claims whose `column` (label or verdict) is supported, pooled, and how many have one.

    rows and units as `verdict_intervals`. Of labels it is the published precision of human labels, S / (S + NS).
    """
    sums: dict[str | None, list[int]] = {}
    for row in rows:
        if row[column] is not None:
            counts = sums.setdefault(row["unit"], [0, 0])
            counts[0] += row["count"] * (row[column] == SUPPORTED)
            counts[1] += row["count"]
    size = sum(own for _, own in sums.values())
    if None in sums:
        supported = sum(one for one, _ in sums.values())
        return wilson_interval(supported, size), size
    above, below = ([counts[place] for counts in sums.values()] for place in (0, 1))
    return clustered_bca_interval(above, below, seed=seed), size
