"""Test the diagnosis of a retrieval pipeline at the end of a run: the means in percent and the most frequent causes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.summary.run_summary import describe_faults, describe_means
from untold.jobs.tables import RESULT_TABLES

MEASURES = {"a": {"not_retrieved": 0.5, "hallucination": 0.0}, "b": {"not_retrieved": 0.25, "hallucination": 0.125}}
SYSTEMS = {"a": "dense", "b": "words", "lost": "words"}
MEANS = {"precision": (0.7636, 0.7636), "recall": (0.5, 0.25), "faithfulness": (None, 0.0)}


@pytest.fixture
def run(tmp_path: Path) -> RunTables:
    known = {"metric": "rag", "level": "overall"}
    tables: dict[str, list[dict[str, Any]]] = {
        "measures": [
            {"sample_id": sample, "metric": "rag", "measure": name, "value": value}
            for sample, values in {**MEASURES, "lost": {"not_retrieved": None}}.items()
            for name, value in values.items()
        ]
        # A row of a metric from another package
        + [{"sample_id": "a", "metric": "own", "measure": "hallucination", "value": 1.0}],
        "scores": [
            {"sample_id": sample, "metric": metric, "system": system}
            for sample, system in SYSTEMS.items()
            for metric in ("rag", "own")
        ],
        "measures_summary": [
            {**known, "measure": name, "mean": mean, "mean_zero": zero} for name, (mean, zero) in MEANS.items()
        ],
    }
    for name, rows in tables.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, RESULT_TABLES[name]), tmp_path / name / "part-0.parquet")
    (tmp_path / "manifest.json").write_text(json.dumps({"status": "finished"}), encoding="utf-8")
    return open_run(str(tmp_path))


def test_each_fault_is_a_sentence_with_the_half_that_has_it(run: RunTables) -> None:
    assert describe_faults(run) == [
        "retriever (claim_recall): 2 of 2 samples have claims left out, in no context. "
        "The worst is a (50.0% of its claims)",
        "generator (hallucination): 1 of 2 samples have claims not in the ground truth, in no context. "
        "The worst is b (12.5% of its claims)",
        "dense: retriever (claim_recall) 1 of 1",
        "words: retriever (claim_recall) 1 of 1, generator (hallucination) 1 of 1",
    ]


def test_means_are_per_cent_by_group(run: RunTables) -> None:
    assert describe_means(run) == [
        "overall: precision 76.4%, recall 50.0% (25.0% with 0 where undefined)",
        "generator: faithfulness -",
    ]
