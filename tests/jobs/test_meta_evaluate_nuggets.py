"""Test `untold meta-evaluate --dataset nuggets`: the agreement of a model with people, and the ranks of the systems."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from scipy.stats import kendalltau
from statsmodels.stats.inter_rater import cohens_kappa

from tests.jobs.studies import Rows, ask, rows_of, run
from tests.sample_files import write_lines
from untold.jobs.study.judgements import MetaEvaluationError
from untold.jobs.study.verdict_studies import nugget_rows
from untold.jobs.tables import STATEMENTS
from untold.udfs.facts.nugget_measures import SUPPORTS

CREDIT = {"support": 1.0, "partial_support": 0.5, "not_support": 0.0}
TOPICS, SYSTEMS, NUGGETS = 6, 5, 8


def assignments() -> Rows:
    """Return the labels that people and a model assign to nuggets. Some of the labels are null."""
    draw = random.Random(5)
    return [
        {
            "sample_id": f"{topic}-{system}",
            "topic": f"t{topic}",
            "system": f"s{system}",
            "reference_id": str(number),
            "importance": "vital" if number < 4 else "okay",
            "weight": None,
            "people": None if draw.random() < 0.05 else draw.choices(SUPPORTS, [1 + system, 2, 4])[0],
            "support": None if draw.random() < 0.05 else draw.choices(SUPPORTS, [1 + system, 2, 3])[0],
        }
        for topic in range(TOPICS)
        for system in range(SYSTEMS)
        for number in range(NUGGETS)
    ]


def score_of(rows: Rows, who: str) -> float:
    """Return the mean credit of the vital nuggets with both labels."""
    return float(np.mean([CREDIT[row[who]] for row in rows if row["importance"] == "vital"]))


def expected(rows: Rows) -> dict[str, float]:
    known = [row for row in rows if row["people"] and row["support"]]
    table = np.zeros((3, 3))
    for row in known:
        table[SUPPORTS.index(row["people"]), SUPPORTS.index(row["support"])] += 1
    scores = {
        (row["topic"], row["system"]): tuple(
            score_of([one for one in known if one["sample_id"] == row["sample_id"]], who)
            for who in ("people", "support")
        )
        for row in known
    }

    def tau(pairs: Iterator[Any]) -> float:
        return float(kendalltau(*zip(*pairs, strict=True)).statistic)

    systems, topics = (sorted({key[place] for key in scores}) for place in (1, 0))
    means = (np.round(np.mean([scores[key] for key in scores if key[1] == one], axis=0), 12) for one in systems)
    within = [tau(scores[topic, one] for one in systems) for topic in topics]
    return {
        "kappa": cohens_kappa(table, return_results=False),
        "accuracy": np.trace(table) / table.sum(),
        "kendall": tau(means),
        "kendall_within_query": float(np.mean(within)),
    }


@pytest.mark.parametrize("clustered", [False, True])
def test_agreement_and_rankings_equal_the_references(clustered: bool) -> None:
    rows = assignments()
    found = {row["measure"]: row for row in nugget_rows({"m": rows}, "vital", clustered=clustered, seed=0)}
    assert {name: row["value"] for name, row in found.items()} == pytest.approx(expected(rows))
    known = sum(bool(row["people"] and row["support"]) for row in rows)
    assert (found["kappa"]["n"], found["kappa"]["excluded"]) == (known, len(rows) - known)
    assert (found["kendall"]["n"], found["kendall_within_query"]["n"]) == (SYSTEMS, TOPICS)
    assert found["kappa"]["ci_low"] < found["kappa"]["value"] < found["kappa"]["ci_high"]


def test_without_systems_there_is_no_ranking() -> None:
    rows = [row | {"system": None} for row in assignments()]
    found = {row["measure"]: row for row in nugget_rows({"m": rows}, "vital", clustered=False, seed=0)}
    assert (found["kendall"]["value"], found["kendall"]["n"]) == (None, 0)
    assert (found["kendall_within_query"]["value"], found["kappa"]["n"] > 0) == (None, True)


def test_without_assignments_nothing_is_known() -> None:
    rows = [row | {"support": None} for row in assignments()]
    found = nugget_rows({"m": rows}, "vital", clustered=False, seed=0)
    assert [(row["value"], row["n"]) for row in found] == [(None, 0)] * 4


def write_study(folder: Path, rows: Rows) -> dict[str, str]:
    """Write the input in the format of nuggetizer and the statements of a run, with one statement of another metric."""
    by_sample: dict[str, Rows] = {}
    for row in rows:
        by_sample.setdefault(row["sample_id"], []).append(row)
    lines = [
        {"sample_id": name, "query": "q", "qid": own[0]["topic"], "run_id": own[0]["system"], "answer_text": "r"}
        | {"nuggets": [{"text": f"n{number}", "assignment": row["people"]} for number, row in enumerate(own)]}
        for name, own in by_sample.items()
    ]
    write_lines(folder / "nuggets.jsonl", lines)
    judged = [
        row | {"metric": metric, "reference_id": str(int(row["reference_id"]) + 1), "importance": importance}
        for row in rows
        for metric, importance in (("nuggets", row["importance"]), ("longrecall", None))
    ]
    (folder / "m").mkdir()
    cut = [{name: row.get(name) for name in STATEMENTS.names} for row in judged]
    pq.write_table(pa.Table.from_pylist(cut, STATEMENTS), folder / "m" / "part-0.parquet")
    return {"m": str(folder / "m")}


def test_a_run_is_held_against_assignments_in_nuggetizers_form(spark: SparkSession, tmp_path: Path) -> None:
    rows = assignments()
    given = {"dataset": "nuggets", "format": "trec_rag_nuggets", "input": str(tmp_path / "nuggets.jsonl")}
    request = ask(tmp_path, write_study(tmp_path, rows), **given)
    report = run(spark, request).report
    found = {row["measure"]: row["value"] for row in rows_of(request, "meta_evaluation")}
    assert found == pytest.approx(expected(rows))
    assert "| m | " in report


def test_invalid_assignments_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    for people, said in (
        ("maybe", r"1 nugget has a label that is not one of support, .* \(`maybe` in 1\)"),
        (None, "no nugget in the column `references` has a label"),
    ):
        folder = tmp_path / str(people)
        folder.mkdir()
        places = write_study(folder, [row | {"people": people} for row in assignments()])
        given = {"dataset": "nuggets", "format": "trec_rag_nuggets", "input": str(folder / "nuggets.jsonl")}
        with pytest.raises(MetaEvaluationError, match=said):
            run(spark, ask(folder, places, **given))
