"""Test rows with values of the wrong type in every format. Each row becomes a sample or a failure."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from untold.jobs.inputs.frames import carried_types
from untold.jobs.inputs.reading import read_fields
from untold.jobs.inputs.samples import KNOWN_FIELDS, _output_names
from untold.udfs.samples.adapters import CONTEXTS, FORMATS, QUESTIONS, Adapter
from untold.udfs.samples.batches import ColumnSelection, read_batches, type_batches
from untold.udfs.samples.conversion import KNOWN, OPTIONAL, REQUIRED
from untold.udfs.samples.file_records import Unit
from untold.udfs.samples.labelled import CLAIM_FORMATS

BROKEN: Sequence[Any] = (
    *(None, math.nan, -math.inf, True, 0, -1, 10**30, 1e308, "", " ", "x\ud800", "NaN", "2025-03-01"),
    *("[]", "['a', nan", '["cut', '"[\\"a\\"]"', "[Document(page_content='a')]", [], {}, [None], [[]], [{}]),
    *([[["x"]]], {"text": None}, {"a": {"b": [1]}}, [1, "a", None, {}], [math.nan], [{"text": {"a": 1}}], ["a", "a"]),
    *([{"id": [1], "text": "a"}], {"id": {}}, {"": 1}),
)
assert len(BROKEN) >= 30
TEXT = "The bridge opened in 1931."
RUBRIC = {"criterion": TEXT, "points": -3, "tags": ["a"]}
SPAN = {"span_type": "RETRIEVER", "outputs": [TEXT], "parent_id": "1", "attributes": {}}
CLAIM = {"claim_string": TEXT, "evidence": [TEXT], "support": "Complete", "informativeness": "Very relevant"}
FACT = {"text": TEXT, "label": "S"}
K_QA = ("Question", "llm_x", "answer", "claim", "category_x", "label_0", "label_1", "label_2")

# A valid row of each format
ROWS: Mapping[str, Mapping[str, Any]] = {
    "wikicontradict": dict.fromkeys(FORMATS["wikicontradict"].required or (), TEXT),
    "conflictbank": dict.fromkeys(FORMATS["conflictbank"].required or (), TEXT),
    "conflictbank_alone": dict.fromkeys(FORMATS["conflictbank"].required or (), TEXT),
    "k_qa_questions": {"Question": "q", "Free_form_answer": TEXT, "Must_have": [TEXT], "Nice_to_have": []},
    "expertqa": {"question": "q", "answers": {"a": {"answer_string": TEXT, "claims": [CLAIM]}}, "metadata": {}},
    "qampari": {"qid": "1", "question_text": "q", "answer_list": [{"aid": "1", "answer_text": "a", "proof": []}]},
    "romqa": {"id": "1", "question": "q", "candidates": [{"uri": "u", "text": "a", "is_answer": True, "evidence": []}]},
    "longfact": {"prompt": "q", "canary": "c"},
    "ragas": {"user_input": "q", "response": "r", "retrieved_contexts": [TEXT], "reference": TEXT},
    "deepeval": {"input": "q", "actual_output": "r", "retrieval_context": [TEXT], "expected_output": TEXT},
    "trec_rag": {"topic": "q", "topic_id": 1, "answer": [{"text": TEXT}], "references": [TEXT], "metadata": {}},
    "trec_rag_answers": {"topic_id": 1, "answer": [{"text": TEXT}], "references": ["msmarco_1#2"]},
    "trec_rag_nuggets": {"qid": "1", "query": "q", "answer_text": "r", "nuggets": [{"text": TEXT, "assignment": "a"}]},
    "rubrics": {"prompt": [{"role": "user", "content": "q"}], "rubrics": [RUBRIC], "ideal_completions_data": {}},
    "healthbench_meta": {"prompt": "q", "completion": "r", "rubric": TEXT, "binary_labels": [True], "category": "c"},
    "deepresearch_bench": {
        "id": 1,
        "prompt": "q",
        "dimension_weight": {"insight": 1.0},
        "criterions": {"insight": [{"criterion": TEXT, "explanation": TEXT, "weight": 1.0}]},
    },
    "deepresearch_bench_2": {"id": "1", "prompt": "q", "content": {"rubric": {"analysis": [TEXT]}, "blocked": {}}},
    "deepresearch_articles": {
        "id": 1,
        "prompt": "q",
        "article": TEXT,
        "citations_deduped": {"u": {"url_content": TEXT}},
    },
    "ragtime": {
        "metadata": {"topic_id": "1"},
        "responses": [{"text": TEXT, "citations": {"d": 0.5}}],
        "references": [],
    },
    "scholarqa_cs": {"initial_prompt": "q", "metric_config": {"config": {"other_properties": [{"criterion": TEXT}]}}},
    "langsmith": {"id": "1", "run_type": "chain", "inputs": {"q": 1}, "outputs": {}, "child_runs": [{}]},
    "langfuse": {"id": "1", "input": "q", "output": "r", "observations": [{"type": "RETRIEVER", "output": [TEXT]}]},
    "phoenix": {"context": {"trace_id": "1"}, "span_kind": "CHAIN", "attributes": {"input": {"value": "q"}}},
    "mlflow": {"trace_id": "1", "request": "q", "response": "r", "spans": [SPAN], "info": {}, "data": {}},
    "openai_evals": {"input": "q", "ideal": ["r"], "item": {"input": "q"}, "sample": {}, "type": "x", "data": {}},
    "ragchecker": {"query_id": "1", "query": "q", "response": "r", "gt_answer": TEXT, "retrieved_context": [TEXT]},
    "claims": {"claim": TEXT, "evidence": [TEXT], "label": "supported", "query_id": "1"},
    "claims of expertqa": {"question": "q", "answers": {"a": {"answer_string": TEXT, "claims": [CLAIM]}}},
    "claims of factscore": {"input": "q", "annotations": [{"human-atomic-facts": [FACT]}]},
    "questions of eli5": {"q_id": "1", "title": "q", "selftext": ""},
    "contexts of eli5": {"q_id": "1", "contexts": [TEXT]},
    "samples": {"query": "q", "response": "r", "contexts": [TEXT], "system": "s", "label": "l", "sample_id": None},
    "optional columns": {
        "query": "q",
        "response": "r",
        "contexts": [TEXT],
        "query_id": "1",
        "aspects": [TEXT],
        "references": [TEXT],
        "ground_truth": TEXT,
        "claim_checks": {"response_claims": [TEXT], "answer2response": ["neutral"]},
        "rubric": [{"text": TEXT, "points": 1, "levels": ["bad", "good"], "tags": ["a"], "axis": "a"}],
    },
}
OWN_FILES = ("realsumm", "k_qa", "trec_web", "huggingface", "open_rag_eval")
ADAPTERS: Mapping[str, Adapter | None] = {
    **FORMATS,
    "claims": CLAIM_FORMATS["claims"],
    "samples": None,
    "optional columns": None,
    **{f"claims of {name}": CLAIM_FORMATS[name] for name in ("expertqa", "factscore")},
    "questions of eli5": QUESTIONS,
    "contexts of eli5": CONTEXTS,
}


def variants(value: Any) -> Iterable[Any]:
    """Yield the broken values in place of a field and of each field inside it."""
    yield from BROKEN
    if isinstance(value, dict):
        for name in value:
            yield from ({**value, name: one} for one in variants(value[name]))
    if isinstance(value, list) and value:
        yield from ([one, *value[1:]] for one in variants(value[0]))


def broken_rows(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**row, name: one} for name in row for one in variants(row[name])]


def read(path: Path, kind: str, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of a file and its facts in the same way as a run, including the types of copied columns."""
    adapter = ADAPTERS[name]
    wanted = ColumnSelection(adapter, REQUIRED, OPTIONAL if adapter is not None or name == "optional columns" else ())
    unit = pa.RecordBatch.from_pylist([vars(Unit(0, str(path), kind))])
    batches = list(read_batches([unit], wanted, to_arrow_schema(read_fields(KNOWN_FIELDS))))
    *rows, last = [row for batch in batches for row in batch.to_pylist()]
    facts = json.loads(last["facts"])
    carried = carried_types([], [facts["shapes"]])
    sources = _output_names([one for one in carried if one not in KNOWN], KNOWN)
    fields = [T.StructField(one, carried[sources[one]]) for one in sorted(sources)]
    list(type_batches(batches, to_arrow_schema(T.StructType([*KNOWN_FIELDS, *fields])), sources))
    return rows, facts


def check(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """Check that each row is a sample with an id, and that a row without a text has an error."""
    assert facts["problem"] is None
    for row in rows:
        assert row["sample_id"]
        assert row["error"] or None not in (row["query"], row["response"], row["contexts"])
        assert not {"NaN", "nan", "-Infinity"} & {row["response"], row["query"], row["system"]} - {BROKEN[11]}


@pytest.mark.parametrize("name", ROWS)
def test_every_broken_row_is_a_sample_or_a_failure(tmp_path: Path, name: str) -> None:
    broken = broken_rows(ROWS[name])
    path = tmp_path / "a.jsonl"
    if name == "ragchecker":
        path.write_text(json.dumps({"results": broken}))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in broken))

    rows, facts = read(path, "lines", name)

    check(rows, facts)
    if name not in ("claims of expertqa", "claims of factscore", *TRACES):
        assert {row["n"] for row in rows} == set(range(1, len(broken) + 1))


# The rows of one trace form one sample
TRACES = ("langsmith", "langfuse", "phoenix", "mlflow", "openai_evals")


def test_every_format_is_tried() -> None:
    assert {*FORMATS} <= {*ROWS, *OWN_FILES}


@pytest.mark.parametrize("bad", [pa.array([b"\xff\xfe", b"a"]), pa.array([{"x": [date(2025, 3, 1)]}, None])])
@pytest.mark.parametrize("column", ["sample_id", "query", "response", "contexts", "other"])
def test_broken_columns_of_arrow_are_rows_too(tmp_path: Path, column: str, bad: pa.Array) -> None:
    texts = {name: pa.array(["a", "b"]) for name in ("sample_id", "query", "response", "contexts")}
    table = pa.table({**texts, column: bad})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    pq.write_table(table, tmp_path / "a.parquet")

    for path, kind, name in ((tmp_path / "a.arrow", "", "huggingface"), (tmp_path / "a.parquet", "parquet", "samples")):
        rows, facts = read(path, kind, name)
        check(rows, facts)
        assert len(rows) == 2


def test_a_time_beyond_the_range_of_python_is_a_failure(tmp_path: Path) -> None:
    when = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us"))
    pq.write_table(
        pa.table({"query": ["q"] * 2, "response": ["r"] * 2, "contexts": ["c"] * 2, "at": when}),
        path := tmp_path / "a.parquet",
    )

    rows, facts = read(path, "parquet", "samples")

    assert [row["error"] for row in rows] == [None, "`at` is a time that Python cannot hold; write it as text"]
    assert facts["problem"] is None


def test_broken_cells_of_k_qa_are_rows(tmp_path: Path) -> None:
    cells = [one for one in BROKEN if isinstance(one, str) and "\ud800" not in one]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(K_QA)
        writer.writerows([cell if name == broken else "x" for name in K_QA] for broken in K_QA for cell in cells)

    check(*read(tmp_path / "a.csv", "csv", "k_qa"))


@pytest.mark.parametrize("name", ["trec_web", "realsumm"])
def test_broken_texts_of_published_files_are_rows(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path)
    path = {"trec_web": tmp_path / "a.topics.web.xml", "realsumm": tmp_path / "labels" / "a.label"}[name]

    rows, facts = read(path, "", name)

    check([row for row in rows if row["error"] is None], facts)
    assert rows


def write_topics(folder: Path) -> None:
    topics = "".join(f'<topic number="{n}" type="x">{part}</topic>' for n, part in enumerate(PARTS))
    (folder / "a.topics.web.xml").write_text(f"<webtrack>{topics}<topic/></webtrack>")


def write_summaries(folder: Path) -> None:
    for name in ("labels", "summaries"):
        (folder / name).mkdir()
    lines = {"ids.txt": "i", "documents.txt": " ", "SCUs.txt": "a\tb", "summaries/a.summary": "", "labels/a.label": "1"}
    for name, line in lines.items():
        (folder / name).write_text(f"{line}\n\n")


PARTS = ("", "<query/>", "<description> </description>", "<subtopic/>", '<subtopic number="1"><b>x</b></subtopic>')
WRITERS: Mapping[str, Callable[[Path], None]] = {"trec_web": write_topics, "realsumm": write_summaries}
