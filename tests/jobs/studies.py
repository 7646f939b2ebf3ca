"""Labelled samples, their scores and the evaluation of the scores for the tests of `untold meta-evaluate`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.jobs.study.test_agreement import SETS, VALUES
from tests.sample_files import CONFLICTBANK_ROW, write_lines
from untold.jobs.meta_evaluate import (
    MetaEvaluationOutcome,
    MetaEvaluationRequest,
    StudyEndpoint,
    endpoint_of,
    meta_evaluate,
)
from untold.jobs.run.terminal import Display
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import LlmSettings, Settings
from untold.udfs.statistics.confusion import match_label

Rows = list[dict[str, Any]]


def wiki_row(number: int, labels: str) -> dict[str, Any]:
    """A row of the human evaluation; labels are five of C, P, I."""
    names = {"C": "Correct", "P": "Partially correct", "I": "Incorrect"}
    row = {"question": f"q{number // 2}", "model": "writer"}
    row |= {f"context{n}_self_contained": f"context {n} of {number}" for n in (1, 2)}
    row |= {f"answer{n}": f"answer {n}" for n in range(5)}
    return row | {f"label{n}": names[label] for n, label in enumerate(labels)}


LABELLED = ("CPIPC", "PPPII", "IPCCP", "PIPPC")


def write_wiki(path: Path, labels: tuple[str, ...] = LABELLED) -> str:
    return write_lines(path, [wiki_row(number, each) for number, each in enumerate(labels)])


def make_scores(metrics: tuple[str, ...] = ("e2e", "nli"), seed: int = 1) -> Rows:
    draw = random.Random(seed)
    ids = [f"{row}-answer{answer}" for row in range(len(LABELLED)) for answer in range(5)]
    return [{"sample_id": name, "metric": metric, "score": draw.choice(VALUES)} for name in ids for metric in metrics]


def write_scores(folder: Path, rows: Rows) -> str:
    folder.mkdir(parents=True)
    schema = pa.schema([(name, pa.float64() if name == "score" else pa.string()) for name in rows[0]])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "part-0.parquet")
    return str(folder)


def ask(folder: Path, scores: Mapping[str, str], **options: Any) -> MetaEvaluationRequest:
    chosen = {"dataset": "wikicontradict", "input": str(folder / "wiki.jsonl"), **options}
    return MetaEvaluationRequest(output=str(folder / "out"), settings=Settings(), scores=scores, **chosen)


def run(spark: SparkSession, request: MetaEvaluationRequest) -> MetaEvaluationOutcome:
    return meta_evaluate(request, Display())


def rows_of(request: MetaEvaluationRequest, table: str) -> Rows:
    rows: Rows = open_run(request.output).table(table).to_pylist()
    return rows


def label_of(sample_id: str) -> str:
    row, answer = int(sample_id[0]), int(sample_id[-1])
    label = LABELLED[row][answer]
    return {"C": "Partially correct" if answer in (1, 2) else "Correct", "P": "Partially correct", "I": "Incorrect"}[
        label
    ]


def matches(rows: Rows, metric: str, *, zero: bool = False) -> dict[str, float]:
    return {
        row["sample_id"]: float(
            match_label(0.0 if zero and row["score"] is None else row["score"], label_of(row["sample_id"]))
        )
        for row in rows
        if row["metric"] == metric
    }


CLAIMS = ("default", "counterfactual")


def conflictbank_ids(instances: int) -> list[str]:
    return [f"{row}-{claim}-{name}" for row in range(instances) for claim in CLAIMS for name in SETS]


def write_bank(path: Path, instances: int) -> str:
    return write_lines(path, [CONFLICTBANK_ROW | {"question": f"q{n}"} for n in range(instances)])


def endpoint(model: str) -> StudyEndpoint:
    return endpoint_of(Settings(llm=LlmSettings(model=model, base_url="http://localhost:1/v1")), embedded=False)
