"""Shares over all claims of a system, and its claims a fact: the paper's figures, beside means over samples.

"Beyond Precision" 2026; methods, section 12. Counts are read back from the shares of the table `measures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics.importance_tables import NAME
from untold.udfs.facts.importance_measures import CLAIMS, FACTS, PRECISION, RATES

# By the measure of a sample, that of all claims
SHARES = {name: f"{verdict}_share" for name, verdict in RATES.items()}
CLAIM_TO_FACT = "claim_to_fact"
_SUMS = ("n", "judging", "claims", "unjudged", *RATES, "counted", "stated", "facts")
Row = Mapping[str, Any]


def pool_measures(measures: DataFrame, scores: DataFrame) -> list[dict[str, Any]]:
    """Rows of `measures_summary`: `SHARES` and `CLAIM_TO_FACT`, of all samples and of each system.

    measures, scores: the tables. Of a share mean is over the judged claims, mean_low and mean_high are with all
    unjudged ones against and for it, and `defined` are the samples with claims that were to be judged. None has an
    interval, as claims of one response are not independent. One row a system reaches the driver.
    """
    sums = [row.asDict() for row in _sums_of_systems(measures, scores).collect()]
    named = sorted((row for row in sums if row["system"] is not None), key=lambda row: row["system"])
    groups = [_total(sums), *named] if sums else []
    return [pooled for group in groups for pooled in _pooled(group)]


def _sums_of_systems(measures: DataFrame, scores: DataFrame) -> DataFrame:
    """system, and the columns of `_SUMS`: a row a system."""
    own = measures.where(F.col("metric") == NAME)

    def column(name: str, of: str) -> Column:
        return F.max(F.when(F.col("measure") == name, F.col(of)))

    rates = [column(name, "value_low").alias(name) for name in RATES]
    samples = own.groupBy("sample_id").agg(
        *rates,
        column(PRECISION, "value_high").alias("high"),
        column(CLAIMS, "value").alias("of_claims"),
        column(FACTS, "value").alias("of_facts"),
    )
    systems = scores.where(F.col("metric") == NAME).select("sample_id", "system")
    judging = (F.col("of_claims") > 0) & F.col(PRECISION).isNotNull()
    known = F.col("of_claims").isNotNull() & F.col("of_facts").isNotNull()

    def count(share: Column) -> Column:
        # Shares are of whole numbers of claims
        return F.sum(F.when(judging, F.round(share * F.col("of_claims"))))

    return (
        samples.join(systems, on="sample_id", how="inner")
        .groupBy("system")
        .agg(
            F.count("*").alias("n"),
            F.count_if(judging).alias("judging"),
            F.sum(F.when(judging, F.col("of_claims"))).alias("claims"),
            count(F.col("high") - F.col(PRECISION)).alias("unjudged"),
            *(count(F.col(name)).alias(name) for name in RATES),
            F.count_if(known).alias("counted"),
            F.sum(F.when(known, F.col("of_claims"))).alias("stated"),
            F.sum(F.when(known, F.col("of_facts"))).alias("facts"),
        )
    )


def _total(sums: Iterable[Row]) -> dict[str, Any]:
    """The sums over all samples, those without a system too."""
    rows = list(sums)
    return {"system": None, **{name: sum(row[name] or 0 for row in rows) for name in _SUMS}}


def _pooled(sums: Row) -> Iterator[dict[str, Any]]:
    claims, unjudged = sums["claims"] or 0, sums["unjudged"] or 0
    ratio = _share(sums["stated"] or 0, sums["facts"] or 0)
    yield _row(CLAIM_TO_FACT, sums, sums["counted"], (ratio, None, None))
    for name, share in SHARES.items():
        part = sums[name] or 0
        ends = _share(part, claims - unjudged), _share(part, claims), _share(part + unjudged, claims)
        yield _row(share, sums, sums["judging"], ends)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _row(
    measure: str, sums: Row, defined: int, ends: tuple[float | None, float | None, float | None]
) -> dict[str, Any]:
    return {
        "metric": NAME,
        "measure": measure,
        "level": "overall" if sums["system"] is None else "system",
        "system": sums["system"],
        "n": sums["n"],
        "defined": defined,
        "mean": ends[0],
        "ci_low": None,
        "ci_high": None,
        "mean_low": ends[1],
        "mean_high": ends[2],
    }
