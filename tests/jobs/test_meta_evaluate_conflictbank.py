"""`untold meta-evaluate` on ConflictBank: its strict and lax parts, and the shares of each source."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.jobs.studies import (
    CLAIMS,
    Rows,
    ask,
    conflictbank_ids,
    rows_of,
    run,
    write_bank,
    write_scores,
)
from tests.jobs.study.test_agreement import SETS, VALUES, of_sets, strict_and_lax
from untold.jobs.meta_evaluate import (
    MetaEvaluationRequest,
)
from untold.jobs.study.judgements import MetaEvaluationError
from untold.jobs.tables import ATOMS, STATEMENTS


def check_bank(request: MetaEvaluationRequest, groups: list[tuple[float, float]]) -> None:
    """Check the means of the strict and the lax parts of groups."""
    found = {row["measure"]: row for row in rows_of(request, "meta_evaluation") if row["convention"] == "mismatch"}
    assert found.keys() == {"lmr", "lmr_strict", "lmr_lax"}
    strict, lax = (sum(part) / len(groups) for part in zip(*groups, strict=True))
    assert [found[name]["value"] for name in ("lmr_strict", "lmr_lax", "lmr")] == pytest.approx(
        [strict, lax, (strict + lax) / 2]
    )
    assert {row["n"] for row in found.values()} == {len(groups)}
    assert all(row["ci_low"] < row["value"] < row["ci_high"] for row in found.values())
    assert rows_of(request, "comparisons") == []


@pytest.mark.gate
def test_conflictbank_alone_has_strict_and_lax_parts_no_tables_and_nothing_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    draw = random.Random(3)
    scores = {name: draw.choice(VALUES) for name in conflictbank_ids(6)}
    rows = [{"sample_id": name, "metric": "qa", "score": score} for name, score in scores.items()]
    places = {"m": write_scores(tmp_path / "m", rows)}
    request = ask(tmp_path, places, dataset="conflictbank_alone", input=write_bank(tmp_path / "bank.jsonl", 6))
    assert "published (dejl" not in run(spark, request).report.lower()
    check_bank(
        request,
        [
            strict_and_lax(claim, of_sets(*(scores[f"{row}-{claim}-{name}"] for name in SETS)))
            for row in range(6)
            for claim in CLAIMS
        ],
    )


Covered = dict[str, tuple[int, int]]  # the number of covered statements and of all statements by source


def write_run(folder: Path, metric: str, counts: Mapping[str, Covered], *, atoms: bool) -> str:
    """Write an output of score. The samples cover the given number of statements or atoms per source."""
    scores: Rows = []
    tables: dict[str, Rows] = {"atoms": [], "statements": []}
    for name, covered in counts.items():
        held, number = (sum(pair) for pair in zip(*covered.values(), strict=True))
        scores.append({"sample_id": name, "metric": metric, "score": held / number})
        keys = {"sample_id": name, "metric": metric}
        for source, (share, of) in covered.items():
            for place in range(of):
                statement = {**keys, "statement_id": f"{source}{place}", "covered": place < share}
                tables["statements"].append({**statement, "sources": [source]})
                if atoms:  # every second atom occurs twice, and both count before condensation
                    kept = {**keys, "statement_id": statement["statement_id"], "sources": [source], "kept": True}
                    tables["atoms"] += [kept] * (1 + place % 2) + [{**kept, "statement_id": None, "kept": False}]
    write_scores(folder / "scores", scores)
    for name, schema in (("atoms", ATOMS), ("statements", STATEMENTS)):
        (folder / name).mkdir()
        pq.write_table(pa.Table.from_pylist(tables[name], schema=schema), folder / name / "part-0.parquet")
    (folder / "manifest.json").write_text(json.dumps({"status": "finished"}), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("atoms", [False, True])
def test_conflictbank_by_source_counts_the_statements_of_each_context(
    spark: SparkSession, tmp_path: Path, atoms: bool
) -> None:
    draw = random.Random(4)
    counts: dict[str, Covered] = {
        f"{row}-{claim}-all": {source: (draw.randint(0, 3), 3) for source in SETS[1:]}
        for row in range(6)
        for claim in CLAIMS
    }
    metric = "nli" if atoms else "e2e"
    places = {"m": write_run(tmp_path / "m", metric, counts, atoms=atoms)}
    request = ask(tmp_path, places, dataset="conflictbank", input=write_bank(tmp_path / "bank.jsonl", 6))
    assert "Published (Dejl" in run(spark, request).report

    def share(covered: int) -> float:
        # The second of the three statements has two atoms
        return (covered + (covered > 1)) / 4 if atoms else covered / 3

    groups = []
    for name, covered in counts.items():
        everything = sum(pair[0] for pair in covered.values()) / 12
        shares = [share(covered[source][0]) for source in SETS[1:]]
        groups.append(strict_and_lax(name.split("-")[1], of_sets(everything, *shares)))
    check_bank(request, groups)


def test_conflictbank_by_source_needs_more_than_scores(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"sample_id": f"0-{claim}-all", "metric": "qa", "score": 1.0} for claim in CLAIMS]
    request = ask(tmp_path, {"m": write_scores(tmp_path / "m", rows)}, dataset="conflictbank")
    with pytest.raises(
        MetaEvaluationError, match="has no table atoms, which the share of each source is computed from"
    ):
        run(spark, replace(request, input=write_bank(tmp_path / "bank.jsonl", 1)))
