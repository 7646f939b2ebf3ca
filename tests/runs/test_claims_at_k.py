"""Compare R@K and F1@K of claims in the tables of whole jobs with the verdicts of their claims, and lost verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.golden.metrics import CASES
from tests.golden.workshop import Workshop
from tests.runs.harness import read_table
from tests.runs.here import RunHere
from tests.runs.worlds import rows_by_sample
from untold.jobs.metrics import METRICS
from untold.jobs.metrics.scoring import with_claims_at_k
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.jobs.sweep import curve
from untold.jobs.tables import MEASURES

K = 3


def by_hand(supported: int, claims: int) -> tuple[float, float]:
    """Return R@K and F1@K."""
    precision, recall = supported / claims if claims else 0.0, min(supported, K) / K
    return recall, 2 * precision * recall / (precision + recall) if supported else 0.0


def bounds_of(verdicts: Sequence[str | None]) -> list[tuple[float | None, float, float]]:
    """Return value, low and high of R@K and F1@K over all possible values of missing verdicts."""
    known = verdicts.count("supported")
    low, high = (by_hand(known + more, len(verdicts)) for more in (0, verdicts.count(None)))
    return [(one if None not in verdicts else None, one, other) for one, other in zip(low, high, strict=True)]


@pytest.mark.parametrize(("truth", "expected"), [(2.0, (0.0, 0.0, 0.0)), (None, (None, None, None))])
def test_a_response_without_claims_has_zero_only_with_a_ground_truth(
    truth: float | None, expected: tuple[float | None, ...], spark: SparkSession
) -> None:
    counts = {"claims": 0.0, "precision": None, "ground_truth_claims": truth}
    rows = [("s", "rag", name, value, value, value) for name, value in counts.items()]
    tables = {"measures": spark.createDataFrame(rows, spark_schema(MEASURES))}
    settings = Settings.model_validate({"claims": {"k": K}})
    found = with_claims_at_k(METRICS["rag"], tables, settings)["measures"].collect()
    at_k = {row["measure"]: (row["value"], row["value_low"], row["value_high"]) for row in found}
    assert at_k[f"claims_recall@{K}"] == at_k[f"claims_f1@{K}"] == expected


@pytest.mark.gate
@pytest.mark.parametrize("name", ["importance", "rag", "icat-s"])
def test_rows_are_those_of_the_verdicts(name: str, run_here: RunHere, tmp_path: Path) -> None:
    case = CASES[name]
    output = replace(case, settings={**case.settings, "claims.k": K}).run(Workshop(run_here, tmp_path), name)
    claims, measures = rows_by_sample(output, "claims"), rows_by_sample(output, "measures")
    status = {row["sample_id"]: row["status"] for row in read_table(output, "scores")}
    seen = set()
    for sample, rows in measures.items():
        found = {row["measure"]: (row["value"], row["value_low"], row["value_high"]) for row in rows}
        recall, f1 = found[f"claims_recall@{K}"], found[f"claims_f1@{K}"]
        verdicts = [row["verdict"] for row in claims.get(sample, ())]
        if status[sample] in ("failed", "budget"):
            assert recall == f1 == (None, 0.0, 1.0)
            seen.add("failed")
        elif lacks_truth(found) or (
            found["claims"][0] is not None and found[str(supported_share(name))][2] is None and verdicts
        ):
            assert recall == f1 == (None, None, None)
        else:
            assert [recall, f1] == [pytest.approx(one) for one in bounds_of(verdicts)], (sample, verdicts)
            seen |= {"lost" if None in verdicts else "known" if verdicts else "silent"}
    assert seen >= {"known", "failed"}, seen
    means = {row["measure"]: row["mean"] for row in read_table(output, "measures_summary") if row["level"] == "overall"}
    drawn = {row["ranking"]: row["mean"] for row in curve(str(output), ks=(K,)) if row["system"] is None}
    assert means[f"claims_recall@{K}"] == pytest.approx(drawn["claims"])
    assert means[f"claims_f1@{K}"] == pytest.approx(drawn["claims_f1"])


def lacks_truth(found: Mapping[str, tuple[float | None, ...]]) -> bool:
    """Return True if a sample of `rag` has no ground truth."""
    return found.get("ground_truth_claims", (0.0,))[0] is None


def supported_share(name: str) -> str:
    """Return the measure that is the share of supported claims."""
    return "s_fact" if name.startswith("icat") else "precision"
