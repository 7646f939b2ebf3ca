"""Compare verdicts on criteria with verdicts of people: `untold meta-evaluate --dataset rubrics`."""

from __future__ import annotations

import random
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from statsmodels.stats.inter_rater import cohens_kappa

from tests.jobs.studies import Rows, ask, rows_of, run
from tests.sample_files import write_lines
from untold.jobs.study.judgements import MetaEvaluationError
from untold.jobs.study.verdict_studies import criterion_rows
from untold.jobs.tables import CRITERIA
from untold.udfs.facts.rubric_measures import VERDICTS

SAMPLES, CRITERIA_OF_EACH = 30, 4


def verdicts(partly: bool = True) -> Rows:
    """Return criteria with the verdicts of one to three people and of a model. Some verdicts of the model are lost."""
    draw = random.Random(3)
    known = VERDICTS if partly else ("met", "not_met")
    return [
        {
            "sample_id": f"s{sample:02}",
            "criterion_id": str(number),
            "topic": f"q{sample % 7}",
            "dimension": ("accuracy", "style", None)[number % 3],
            "people": [draw.choice(known) for _ in range(draw.choice((1, 2, 3)))],
            "verdict": None if draw.random() < 0.05 else draw.choice(VERDICTS),
        }
        for sample in range(SAMPLES)
        for number in range(1, CRITERIA_OF_EACH + 1)
    ]


def expected(pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Return the measures of pairs of verdicts (model, people) by references."""
    table = np.zeros((3, 3))
    for one, other in pairs:
        table[VERDICTS.index(other), VERDICTS.index(one)] += 1
    used = [n for n in range(3) if table[n].sum() + table[:, n].sum()]
    scores = [2 * table[n, n] / (table[n].sum() + table[:, n].sum()) for n in used]
    square = table[np.ix_(used, used)]
    return {
        "macro_f1": float(np.mean(scores)),
        "kappa": cohens_kappa(square, return_results=False),
        "accuracy": np.trace(table) / table.sum(),
    }


def pairs_of(rows: Rows, dimension: str | None) -> dict[str | None, list[tuple[str, str]]]:
    own = [row for row in rows if dimension in (None, row["dimension"])]
    has_partly = any("partly_met" in row["people"] for row in rows)
    model = [(row["verdict"], label) for row in own for label in row["people"] if row["verdict"]]
    if not has_partly:
        model = [("not_met" if one == "partly_met" else one, other) for one, other in model]
    return {"m": model, None: [pair for row in own for pair in permutations(row["people"], 2)]}


@pytest.mark.parametrize("partly", [True, False])
def test_agreement_and_its_human_ceiling_equal_the_references(partly: bool) -> None:
    rows = verdicts(partly)
    found = {(row["model"], row["measure"]): row for row in criterion_rows(rows, {"m": rows}, clustered=False, seed=0)}
    for dimension in (None, "accuracy", "style"):
        suffix = "" if dimension is None else f":dimension:{dimension}"
        for model, pairs in pairs_of(rows, dimension).items():
            for name, value in expected(pairs).items():
                row = found[model, name + suffix]
                assert (row["value"], row["n"]) == (pytest.approx(value), len(pairs))
                assert row["metric"] == (None if model is None else "rubric")
    assert found["m", "kappa"]["excluded"] == sum(len(row["people"]) for row in rows if row["verdict"] is None)
    assert len(found) == 2 * 3 * 3


def test_one_annotator_has_no_ceiling() -> None:
    rows = [row | {"people": row["people"][:1]} for row in verdicts()]
    found = criterion_rows(rows, {"m": rows}, clustered=True, seed=0)
    assert [(row["value"], row["n"]) for row in found if row["model"] is None] == [(None, 0)] * 3
    assert all(row["value"] is not None for row in found if row["model"])


def write_study(folder: Path, rows: Rows) -> dict[str, str]:
    """Write the input in the format of HealthBench's meta-evaluation, and a table of criteria of a run over it."""
    lines = [
        {
            "sample_id": f"{row['sample_id']}-{row['criterion_id']}",
            "prompt": [{"role": "user", "content": row["topic"]}],
            "completion": "r",
            "rubric": f"criterion {row['criterion_id']}",
            "binary_labels": [label == "met" for label in row["people"]],
            "category": row["dimension"],
        }
        for row in rows
    ]
    write_lines(folder / "meta.jsonl", lines)
    judged = [
        {
            "sample_id": line["sample_id"],
            "metric": "rubric",
            "number": 1,
            "criterion_id": "1",
            "verdict": row["verdict"],
        }
        for line, row in zip(lines, rows, strict=True)
    ]
    (folder / "m").mkdir()
    cut = [{name: row.get(name) for name in CRITERIA.names} for row in judged]
    pq.write_table(pa.Table.from_pylist(cut, CRITERIA), folder / "m" / "part-0.parquet")
    return {"m": str(folder / "m")}


def test_a_run_is_compared_with_labels_of_physicians(spark: SparkSession, tmp_path: Path) -> None:
    rows = verdicts(partly=False)
    given = {"dataset": "rubrics", "format": "healthbench_meta", "input": str(tmp_path / "meta.jsonl")}
    request = ask(tmp_path, write_study(tmp_path, rows), **given)
    report = run(spark, request).report
    found = {(row["model"], row["measure"]): row["value"] for row in rows_of(request, "meta_evaluation")}
    for model, pairs in pairs_of(rows, None).items():
        assert {name: found[model, name] for name in expected(pairs)} == pytest.approx(expected(pairs))
    assert "| m | " in report
    assert "| people | " in report


def test_invalid_verdicts_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    for labels, message in (
        (["maybe"], r"1 criterion has a label that is not one of met, .* \(`maybe` in 1\)"),
        ([], "no criterion in the column `rubric` has a label"),
    ):
        folder = tmp_path / str(len(labels))
        folder.mkdir()
        rubric = [{"text": "Names a dose", "labels": labels}]
        write_lines(folder / "a.jsonl", [{"query": "q", "response": "r", "contexts": [], "rubric": rubric}])
        request = ask(folder, write_study(folder, verdicts()), dataset="rubrics", input=str(folder / "a.jsonl"))
        with pytest.raises(MetaEvaluationError, match=message):
            run(spark, request)
