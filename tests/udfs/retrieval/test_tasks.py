"""Test local models in tasks: the rows and the files of a partition, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.udfs.retrieval.onnx_files import SPECIAL, write_classifier, write_lookup, write_tokenizer
from untold.jobs.inference.stage.bindings import bind_lookup
from untold.jobs.settings.model import Settings
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.store_files import COMPLETIONS
from untold.udfs.retrieval import embedding
from untold.udfs.retrieval.classifying import MOST_TOKENS
from untold.udfs.retrieval.local_models import LocalModelFileError

WORDS = ["bees", "make", "honey"]


def embedding_stage(folder: Path, **given: Any) -> Stage:
    write_tokenizer(folder, WORDS)
    # The word `make` has no vector, so a text with this word has no vector
    table = np.array([[number, 1.0] for number in range(len(SPECIAL) + len(WORDS))])
    table[len(SPECIAL) + 1] = np.nan
    write_lookup(folder, table)
    return bind_lookup("embed_text", Settings.model_validate({"embeddings": {"model": str(folder), **given}}))


def answer(stage: Stage, folder: Path, rows: list[dict[str, Any]], flush: float = 60.0) -> list[dict[str, Any]]:
    """Return the counts of a task for its batches of two rows each."""
    batches = [pa.RecordBatch.from_pylist(rows[first : first + 2]) for first in range(0, len(rows), 2)]
    folder.mkdir(exist_ok=True)
    return [
        row
        for batch in embedding.answer_in_task(iter(batches), stage, str(folder), "run", flush)
        for row in batch.to_pylist()
    ]


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    tables = [pq.read_table(file) for file in folder.glob("*.parquet")]
    assert all(table.schema == COMPLETIONS for table in tables)
    return {row["request_id"]: row for row in pa.concat_tables(tables).to_pylist()}


def texts(*given: str) -> list[dict[str, Any]]:
    return [{"request_id": text, "text": text, "kind": "document"} for text in given]


def test_rows_are_vectors_and_an_invalid_vector_only_fails_its_row(tmp_path: Path) -> None:
    stage = embedding_stage(tmp_path / "model")
    counts = answer(stage, tmp_path / "store", texts("bees", "bees make honey", "honey"))
    assert counts == [{"done": 2, "failed": 1}, {"done": 1, "failed": 0}]
    rows = stored(tmp_path / "store")
    assert rows["bees"]["vector"] == [(2 + 4 + 3) / 3, 1.0]
    assert (rows["bees"]["model"], rows["bees"]["attempts"], rows["bees"]["run_id"]) == (
        str(tmp_path / "model"),
        1,
        "run",
    )
    failed = rows["bees make honey"]
    assert (failed["vector"], failed["error_type"]) == (None, "bad_body")


def test_a_task_writes_while_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "GROUP_ROWS", 1)
    answer(embedding_stage(tmp_path / "model"), tmp_path / "store", texts("bees", "honey"), flush=0.0)
    assert len(list((tmp_path / "store").glob("run-embed_text-task-*.parquet"))) == 2


def test_a_worker_with_another_file_does_not_answer(tmp_path: Path) -> None:
    stage = replace(embedding_stage(tmp_path / "model"), model_key="sha256:another")
    with pytest.raises(LocalModelFileError, match="differs from the file"):
        answer(stage, tmp_path / "store", texts("bees"))


def test_probabilities_are_text_and_a_claim_that_is_too_long_is_a_failure(tmp_path: Path) -> None:
    write_classifier(tmp_path / "judge", WORDS, ["entailment", "neutral", "contradiction"])
    stage = bind_lookup(
        "classify_entailment", Settings.model_validate({"grounding": {"verifier": str(tmp_path / "judge")}})
    )
    rows = [
        {"request_id": "told", "premise": "bees make honey", "hypothesis": "honey"},
        {"request_id": "long", "premise": "bees", "hypothesis": "bees " * MOST_TOKENS},
    ]
    answer(stage, tmp_path / "store", rows)
    found = stored(tmp_path / "store")
    assert json.loads(found["told"]["text"])["entailment"] > 0.9
    assert (found["long"]["text"], found["long"]["error_type"]) == (None, "truncated")
