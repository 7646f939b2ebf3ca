"""Compute the figures of `untold calibrate` again from the tables of two runs, with the exact bootstrap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from math import factorial, prod, sqrt
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from scipy.stats import kendalltau, norm

from tests.runs.harness import Row, read_table

# The verdict of the first variant and of the second variant, which is None if the second has no verdict
Verdicts: TypeAlias = Sequence[tuple[str, str | None]]
# (value, share of resamples)
Drawn: TypeAlias = Sequence[tuple[float, float]]


def assert_agreement(row: Row, outputs: Sequence[Path], metric: str) -> None:
    """Check kappa, differences, limits of agreement and ranks. The exact bootstrap draws whole queries."""
    queries = {one["sample_id"]: one["query"] for one in read_table(outputs[0], "samples")}
    first, second = (verdicts_of(output, metric) for output in outputs)
    of_query: dict[str, list[tuple[str, str | None]]] = {}
    for key, verdict in first.items():
        of_query.setdefault(queries[key[0]], []).append((verdict, second.get(key)))
    assert row["verdicts"] == len(first) > 20
    assert_interval(
        row, "kappa", list(of_query.values()), lambda parts: kappa_of([one for part in parts for one in part])
    )

    scores = [{one["sample_id"]: one for one in read_table(output, "scores")} for output in outputs]
    both = [name for name in queries if None not in (scores[0][name]["score"], scores[1][name]["score"])]
    groups = [
        [(scores[0][n]["system"], scores[0][n]["score"], scores[1][n]["score"]) for n in both if queries[n] == query]
        for query in sorted({queries[name] for name in both})
    ]
    assert row["n"] == len(both)
    assert_interval(row, "difference", groups, lambda parts: float(np.mean(differences(parts))))
    for name, sign in (("loa_low", -1), ("loa_high", 1)):
        limits = f"{name}_ci"
        assert_interval(row, name, groups, lambda parts, sign=sign: limit(differences(parts), sign), limits, bca=False)
    assert_interval(row, "tau", groups, lambda parts: float(kendalltau(*means(parts)).statistic), bca=False)
    winners = [int(np.argmax(one)) for one in means(groups)]
    assert row["same_winner"] == (winners[0] == winners[1])
    changed = sum(share for parts, share in resamples(groups) if len({int(np.argmax(one)) for one in means(parts)}) > 1)
    assert row["winner_changes"] == pytest.approx(changed, abs=0.05)


def verdicts_of(output: Path, metric: str) -> dict[tuple[str, str], str]:
    """Return the relations, or the covered statements and supported claims, by sample and key."""
    found: dict[tuple[str, str], str] = {}
    if metric in ("nli", "qa"):
        for row in read_table(output, "relations"):
            relation = "entailment" if row["relation"] == "implied" else row["relation"]
            found[row["sample_id"], f"{row['premise_id']} {row['hypothesis_id']}"] = relation
        return found
    for row in read_table(output, "statements"):
        key = row["sample_id"], row["reference_id"] or row["text"].strip().lower()
        found[key] = min(found.get(key, "true"), str(row["covered"]).lower())
    for row in read_table(output, "claims"):
        if row["verdict"] is not None:
            key = row["sample_id"], f"claim {row['text'].strip().lower()}"
            found[key] = min(found.get(key, "true"), str(row["verdict"] == "supported").lower())
    return found


def kappa_of(pairs: Verdicts) -> float:
    shares = [Counter(pair[side] for pair in pairs) for side in (0, 1)]
    agreed = sum(one == other for one, other in pairs) / len(pairs)
    chance = sum(shares[0][name] * shares[1][name] for name in shares[0]) / len(pairs) ** 2
    return (agreed - chance) / (1 - chance) if chance < 1 else float("nan")


def differences(parts: Sequence[Any]) -> list[float]:
    return [second - first for part in parts for _, first, second in part]


def limit(values: Sequence[float], sign: int) -> float:
    """Return a limit of agreement: 95 % of a normal distribution is between the two limits."""
    mean = sum(values) / len(values)
    return mean + sign * norm.ppf(0.975) * sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1))


def means(parts: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the mean of each system in both variants."""
    rows = [one for part in parts for one in part]
    systems = sorted({system for system, _, _ in rows})
    first, second = ([np.mean([row[side] for row in rows if row[0] == name]) for name in systems] for side in (1, 2))
    return [round(float(one), 12) for one in first], [round(float(one), 12) for one in second]


def resamples(groups: Sequence[Any]) -> Iterator[tuple[list[Any], float]]:
    """Yield every resample of the groups and its probability."""
    number = len(groups)
    for places in combinations_with_replacement(range(number), number):
        ways = factorial(number) / prod(factorial(count) for count in Counter(places).values())
        yield [groups[place] for place in places], ways / number**number


def assert_interval(
    row: Row, name: str, groups: Sequence[Any], statistic: Callable[[Any], float], limits: str = "", bca: bool = True
) -> None:
    """Check a figure and its limits, which are at the given shares of the exact bootstrap distribution."""
    prefix = limits or name
    observed, ends = statistic(groups), (row[f"{prefix}_low"], row[f"{prefix}_high"])
    assert row[name] == (None if np.isnan(observed) else pytest.approx(observed, abs=1e-9)), name
    left_out = [statistic([*groups[:place], *groups[place + 1 :]]) for place in range(len(groups))]
    if np.isnan(observed) or (bca and np.ptp(left_out) < 1e-12):
        # If no query changes the result, the limits of kappa equal kappa, and a mean has no limits
        assert ends in ((None, None), (row[name], row[name])), name
        return
    drawn = [(value, share) for parts, share in resamples(groups) if not np.isnan(value := statistic(parts))]
    total = sum(share for _, share in drawn)
    shares = [0.025, 0.975]
    if bca:
        below = (share_of(drawn, observed - 1e-9) + share_of(drawn, observed + 1e-9)) / 2
        off = np.mean(left_out) - np.array(left_out)
        bias, pull = norm.ppf(below / total), float((off**3).sum() / (6 * (off**2).sum() ** 1.5))
        moved = [bias + norm.ppf(share) for share in shares]
        shares = [float(norm.cdf(bias + one / (1 - pull * one))) for one in moved]
    for end, share in zip(ends, shares, strict=True):
        assert end is not None, name
        assert share_of(drawn, end - 1e-9) / total <= share + 0.02, (name, end, share)
        assert share_of(drawn, end + 1e-9) / total >= share - 0.02, (name, end, share)


def share_of(drawn: Drawn, value: float) -> float:
    return sum(share for one, share in drawn if one <= value)
