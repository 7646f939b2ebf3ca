"""How far a judge agrees with itself: samples that were scored several times under other salts (methods, section 7)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.run.terminal import amount
from untold.jobs.summary.ranking import DECIMALS, Row, Rows

Key = tuple[str, str | None]


def measure_repeats(runs: Sequence[Mapping[str, DataFrame]]) -> Rows:
    """The rows of the table `repeatability`: of each metric all samples, then each system.

    runs: the tables of each scoring, the first that of all samples. Samples count that every scoring has a score for,
    and statements of one text that every scoring has of a sample.
    """
    scored = _numbered([run["scores"].select("metric", "sample_id", "system", "score") for run in runs])
    repeated = (
        scored.where(~F.isnan("score"))
        .groupBy("metric", "sample_id", "system")
        .agg(F.count("score").alias("scorings"), F.var_samp("score").alias("within"))
        .where(F.col("scorings") == len(runs))
    )
    within = _by_group(repeated, F.count("*").alias("n"), F.avg("within").alias("within"))
    known = runs[0]["scores"].where(~F.isnan("score"))
    total = _by_group(known, F.var_samp("score").alias("total"))
    sums = (F.count("*").alias("statements"), F.count_if("flips").alias("flips"))
    verdicts = _verdicts(runs)
    counts = {} if verdicts is None else _by_group(verdicts, *sums)
    return [
        {
            "metric": metric,
            "level": "overall" if system is None else "system",
            "system": system,
            "repeats": len(runs),
            "n": row["n"],
            "deviation": round(math.sqrt(row["within"]), DECIMALS),
            **_flips(counts.get((metric, system))),
            "share": _share(row["within"], total[metric, system]["total"]),
        }
        for (metric, system), row in sorted(within.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    ]


def repeatability_lines(rows: Rows) -> Iterator[str]:
    """A line a metric: how far its scorings differ."""
    for row in rows:
        if row["level"] == "overall":
            flips = "" if row["flips"] is None else f", {row['flips']:.1%} of {row['statements']:,} statements flip"
            share = "" if row["share"] is None else f", {row['share']:.1%} of the scores' variance is the judge's own"
            yield (
                f"{row['metric']}: over {row['repeats']} scorings of {amount(row['n'], 'sample')} a score varies by "
                f"{row['deviation']:.3f} (standard deviation){flips}{share}"
            )


def widened(summary: Rows, repeats: Rows) -> Rows:
    """The rows of `summary` with intervals for one more scoring of the same samples, whose mean has that error too."""
    shares = {(row["metric"], row["system"]): row["share"] for row in repeats}
    return [_widened(row, math.sqrt(1 + (shares.get((row["metric"], row["system"])) or 0.0))) for row in summary]


def _widened(row: dict[str, Any], factor: float) -> dict[str, Any]:
    if row["ci_low"] is None:
        return row
    low, high = (row["mean"] + factor * (row[end] - row["mean"]) for end in ("ci_low", "ci_high"))
    return {**row, "ci_low": max(0.0, low), "ci_high": min(1.0, high)}


def _numbered(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, [one.withColumn("scoring", F.lit(place)) for place, one in enumerate(frames)])


def _verdicts(runs: Sequence[Mapping[str, DataFrame]]) -> DataFrame | None:
    """metric, system, flips: a row a statement that each scoring has, and whether they differ about it."""
    if not all("statements" in run for run in runs):
        return None
    text = F.lower(F.trim("text")).alias("text")
    judged = _numbered([run["statements"].select("metric", "sample_id", text, "covered") for run in runs])
    found = (
        judged.where(F.col("covered").isNotNull())
        .groupBy("metric", "sample_id", "text")
        .agg(F.count_distinct("scoring").alias("scorings"), (F.min("covered") != F.max("covered")).alias("flips"))
        .where(F.col("scorings") == len(runs))
    )
    systems = runs[0]["scores"].select("metric", "sample_id", "system")
    return found.join(systems, on=["metric", "sample_id"], how="inner")


def _by_group(rows: DataFrame, *sums: Any) -> dict[Key, Row]:
    """Aggregates by metric and system; under the system None of all samples."""
    groups = F.explode(F.array_distinct(F.array(F.lit(None), F.col("system")))).alias("of")
    others = [name for name in rows.columns if name != "system"]
    found = rows.select(*others, groups).groupBy("metric", "of").agg(*sums).collect()
    return {(row["metric"], row["of"]): row.asDict() for row in found}


def _flips(counts: Row | None) -> dict[str, Any]:
    statements = counts["statements"] if counts else 0
    return {"statements": statements, "flips": counts["flips"] / statements if counts and statements else None}


def _share(within: float, total: float | None) -> float | None:
    """The share of the variance of scores that is the judge's own; null where scores do not vary."""
    return round(min(1.0, within / total), DECIMALS) if total else None
