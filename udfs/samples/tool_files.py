"""Files of tools that have a row a sample: ragas, TREC RAG, nuggetizer, and folders of Hugging Face's `datasets`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa

from untold.udfs.samples.conversion import is_python_list, read_python_list
from untold.udfs.samples.file_records import (
    ROWS_PER_BATCH,
    FileRecord,
    RowError,
    Unit,
    UnreadableFileError,
    records_of,
)
from untold.udfs.samples.files import open_file
from untold.udfs.samples.items import WEIGHTS
from untold.udfs.samples.traces import ANSWERED, ANSWERING, ASKED, ASKING, documents_in, find_text
from untold.udfs.samples.values import finite

Names = Mapping[str, Sequence[str]]
ARROW = "*.arrow"
# Theirs by ours, the first that a row has counting; before version 0.2 ragas had the second ones
RAGAS: Names = {
    "query": ("user_input", "question"),
    "response": ("response", "answer"),
    "contexts": ("retrieved_contexts", "contexts", "reference_contexts"),
    "references": ("reference", "ground_truth", "ground_truths"),
    "ground_truth": ("reference", "ground_truth", "ground_truths"),
}
TREC_RAG: Names = {
    "query": ("topic", "narrative", "title"),
    "query_id": ("topic_id", "narrative_id"),
    "response": ("answer",),
    "system": ("run_id",),
    "contexts": ("candidates", "references"),
}
TREC_RAG_NUGGETS: Names = {
    "query_id": ("qid",),
    "response": ("answer_text",),
    "system": ("run_id",),
    "references": ("nuggets",),
}
# Those of ResearchRubrics
RUBRICS: Names = {
    "query": ("query", "prompt"),
    "response": ("response", "completion"),
    "query_id": ("query_id", "prompt_id"),
    "references": ("rubrics",),
}
# Fields of a criterion. A number in another field is a weight with an unknown name
CRITERION_FIELDS = (*WEIGHTS, "criterion", "text", "id", "index", "number", "position")
NUMBER = re.compile(r"\s*[-+]?\d+(\.\d+)?\s*")
# DeepEval joins the texts of a list with bars in its CSV
DEEPEVAL: Names = {
    "query": ("input",),
    "response": ("actual_output", "actualOutput"),
    "contexts": ("retrieval_context", "retrievalContext", "context"),
    "references": ("expected_output", "expectedOutput"),
    "ground_truth": ("expected_output", "expectedOutput"),
}
BAR = "|"
# Columns that hold lists of Python's in its CSV
LISTS = ("query", "contexts", "references", "ground_truth")
AS_JSON = 'write the rows again as JSON Lines: df.to_json(FILE, orient="records", lines=True)'
# As collections name their documents and segments: without white space, and with a digit
DOCUMENT_ID = re.compile(r"(?=\S*\d)\S+")


def _under_our_names(values: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The row with our names for the columns that it has under others; nulls are passed over."""
    theirs = {
        ours: next((name for name in many if finite(values.get(name)) is not None), None)
        for ours, many in names.items()
    }
    taken = {name for name in theirs.values() if name is not None}
    return {
        **{name: value for name, value in values.items() if name not in taken},
        **{ours: values[name] for ours, name in theirs.items() if name is not None},
    }


def ragas(record: FileRecord, _: int) -> list[FileRecord]:
    """A row of a data set, a result or a test set of ragas; of a conversation the last question and answer."""
    if record.problem:
        return [record]
    values = {name: _list_of_python(value) for name, value in _under_our_names(record.values, RAGAS).items()}
    broken = [name for name in LISTS if isinstance(values.get(name), str) and is_python_list(values[name])]
    if broken:
        problem = f"the list in {' and '.join(broken)} is cut, or holds more than texts; {AS_JSON}"
        raise RowError(problem)
    truth, asked = values.get("ground_truth"), values.get("query")
    if isinstance(truth, list):
        # Whole answers, and no claims
        values["ground_truth"] = "\n".join(str(one) for one in truth if finite(one) is not None) or None
    if isinstance(asked, list):
        values |= {"query": find_text(asked, ASKED, ASKING), "user_input": asked}
        values.setdefault("response", find_text(asked, ANSWERED, ANSWERING))
    return [replace(record, values=values)]


def _list_of_python(value: Any) -> Any:
    """The list of a cell that ragas has written into CSV; any other value as it is."""
    if not isinstance(value, str) or not is_python_list(value):
        return value
    with suppress(ValueError):
        return read_python_list(value)
    return value


def trec_rag(record: FileRecord, _: int) -> list[FileRecord]:
    """A topic's answer in the form of TREC RAG, with the segments that it was written from where they have their texts.

    References that are ids alone are the column `segment_ids`, and the sample has no contexts.
    """
    if record.problem:
        return [record]
    metadata = record.values.get("metadata")
    values = _under_our_names(
        {**(metadata if isinstance(metadata, Mapping) else {}), **record.values, "metadata": None}, TREC_RAG
    )
    asked = values.get("query")
    if isinstance(asked, Mapping):
        values |= {"query": asked.get("text"), "query_id": asked.get("qid")}
    found = values.pop("contexts", None)
    texts = [one for one in found if not _is_id(one)] if isinstance(found, list) else []
    if texts:
        values["contexts"] = [one for text in texts for one in _segments(text)]
    elif found:
        values["segment_ids"] = found
    return [replace(record, values={name: value for name, value in values.items() if value is not None})]


def trec_rag_answers(record: FileRecord, row: int) -> list[FileRecord]:
    """As `trec_rag`; the topic's id stands for a query that the file does not say."""
    return [replace(one, values={"query": one.values.get("query_id"), **one.values}) for one in trec_rag(record, row)]


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and DOCUMENT_ID.fullmatch(value) is not None


def _segments(candidate: Any) -> list[dict[str, Any]]:
    """A candidate as a context; the ranked lists of the track name it beside its segment."""
    named = candidate.get("docid") if isinstance(candidate, Mapping) else None
    inner = candidate.get("doc", candidate) if isinstance(candidate, Mapping) else candidate
    return [{**one, "id": named or one["id"]} for one in documents_in(inner)]


def trec_rag_nuggets(record: FileRecord, _: int) -> list[FileRecord]:
    """A topic's nuggets as references of a question, or of the response that they were assigned to."""
    if record.problem:
        return [record]
    values = {"contexts": [], **_under_our_names(record.values, TREC_RAG_NUGGETS)}
    return [replace(record, values={**values, "references": references_of(values.get("references"))})]


def rubrics(record: FileRecord, _: int) -> list[FileRecord]:
    """A task's criteria as references, each with its weight; what an answer should not do has one below 0.

    Several messages of a prompt become one text. HealthBench's ideal completion is the ground truth.
    """
    if record.problem:
        return [record]
    values = {"contexts": [], **_under_our_names(record.values, RUBRICS)}
    criteria, ideal = values.get("references"), values.get("ideal_completions_data")
    if isinstance(criteria, list):
        values["references"] = [_criterion(one, f"criterion {place}") for place, one in enumerate(criteria, start=1)]
    if isinstance(values.get("query"), list):
        values["query"] = _conversation(values["query"])
    if isinstance(ideal, Mapping) and isinstance(ideal.get("ideal_completion"), str):
        values.setdefault("ground_truth", ideal["ideal_completion"])
    return [replace(record, values=values)]


def _criterion(value: Any, where: str) -> Any:
    """Return a criterion as a reference. Raises RowError if the name of its weight is not known."""
    if not isinstance(value, Mapping):
        return value
    numbers = [name for name, one in value.items() if name not in CRITERION_FIELDS and NUMBER.fullmatch(str(one))]
    if numbers and all(finite(value.get(name)) is None for name in WEIGHTS):
        raise RowError(f"{where} has no weight, but `{numbers[0]}`; rename it to `weight` or `points`")
    return {**value, "text": value.get("criterion") or value.get("text")}


def _conversation(messages: Sequence[Any]) -> str | None:
    """Return the messages as one text, each with its role. A single message has no role."""
    texts = [find_text(one, ASKED, ()) for one in messages]
    if len(texts) < 2:
        return next(iter(texts), None)
    roles = [one.get("role") if isinstance(one, Mapping) else None for one in messages]
    return "\n\n".join(
        f"{role}: {text}" if role else f"{text}" for role, text in zip(roles, texts, strict=True) if text
    )


def deepeval(record: FileRecord, _: int) -> list[FileRecord]:
    """Return a test case of DeepEval as a sample. Bars separate the contexts of its CSV."""
    if record.problem:
        return [record]
    values = _under_our_names(record.values, DEEPEVAL)
    contexts = values.get("contexts")
    if isinstance(contexts, str) and contexts.strip() and not contexts.lstrip().startswith("["):
        values["contexts"] = [text for text in contexts.split(BAR) if text.strip()]
    return [replace(record, values=values)]


def references_of(nuggets: Any) -> Any:
    """Nuggets as references: an assignment is a label. What is no list of objects stays as it is."""
    if not isinstance(nuggets, list):
        return nuggets
    return [
        {**one, "labels": one["assignment"]} if isinstance(one, Mapping) and "assignment" in one else one
        for one in nuggets
    ]


def read_arrow(unit: Unit) -> Iterator[FileRecord]:
    """The rows of a file of `Dataset.save_to_disk`: a stream of Arrow batches."""
    with closing(open_file(unit.path)) as stream:
        try:
            batches = pa.ipc.open_stream(stream)
        except pa.ArrowInvalid:
            raise UnreadableFileError("is no stream of Arrow batches; give a folder of Dataset.save_to_disk") from None
        rows = count(1)
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_PER_BATCH):
                yield from records_of(batch.slice(start, ROWS_PER_BATCH), rows)
