"""Adapters for files and traces of other tools: ragas, TREC RAG, nuggetizer, and traces of applications."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa

from untold.udfs.arrow import ROWS_PER_BATCH, slices
from untold.udfs.samples import file_records
from untold.udfs.samples.conversion import CONTEXT_NAMES, SEGMENTS, is_python_list, read_python_list
from untold.udfs.samples.file_records import READERS, FileRecord, RowError, Unit, UnreadableFileError, converted
from untold.udfs.samples.files import open_file
from untold.udfs.samples.values import finite, json_or, object_of, text_of

Values = Mapping[str, Any]

# The names of texts in applications, the most probable first
ASKED = (
    *("question", "query", "user_input", "input", "prompt", "topic", "messages", "user_query", "request"),
    *("content", "text", "kwargs", "args", "parts"),
)
ANSWERED = (
    *("answer", "response", "output", "output_text", "result", "completion", "messages", "content", "text"),
    *("choices", "generations", "message", "outputs", "kwargs", "parts"),
)
ASKING, ANSWERING = ("user", "human"), ("assistant", "ai", "model")
NAMED = (*CONTEXT_NAMES, "retrieved_documents", "source_documents", "docs", "chunks")
FOUND = (*NAMED, "results", "output")
TEXTS = ("page_content", "pageContent", "content", "text", "document.content", "segment", "body")
IDS = ("id", "doc_id", "docid", "document_id", "document.id")


@dataclass(frozen=True, kw_only=True)
class Span:
    """A step of a trace. `found` is the result of a retriever, None for any other step."""

    trace: str
    first: bool = False
    # True if the trace is the id of its sample. False if it is a hash of the row
    named: bool = True
    inputs: Any = None
    outputs: Any = None
    found: Any = None
    references: Any = None
    # Columns that are carried along
    more: Values = field(default_factory=dict)


def opened(value: Any) -> Any:
    """Return the value of a JSON text, or any other value unchanged.

    >>> opened('{"question": "q"}'), opened('"RETRIEVER"'), opened("[1] q")
    ({'question': 'q'}, 'RETRIEVER', '[1] q')
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", '"')):
        return value
    return json_or(value, value)


def find_text(value: Any, names: Sequence[str], roles: Sequence[str]) -> str | None:
    """Return the text of a value: under one of the names, or the last message of one of the roles.

    >>> find_text([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], ASKED, ASKING)
    'q'
    >>> find_text({"kwargs": {"question": "q"}}, ASKED, ASKING), find_text({"one": "a"}, ANSWERED, ANSWERING)
    ('q', 'a')
    """
    value = opened(value)
    if isinstance(value, Mapping):
        named = [value[name] for name in names if value.get(name) is not None]
        only = list(value.values()) if len(value) == 1 else []
        return next((text for one in named or only if (text := find_text(one, names, roles)) is not None), None)
    if isinstance(value, list) and value:
        said = [one for one in value if _role(one) in roles]
        return find_text(said[-1] if said else value[0], names, roles)
    return None if value is None or isinstance(value, list) else text_of(value)


def _role(message: Any) -> str | None:
    """Return the role of a message. LangChain writes the class of a message at the end of its id."""
    if not isinstance(message, Mapping):
        return None
    classes = message.get("id")
    of_class = str(classes[-1]).removesuffix("Message").lower() if isinstance(classes, list) and classes else None
    return next((one for one in (of_class, message.get("role"), message.get("type")) if isinstance(one, str)), None)


def documents_in(value: Any) -> list[dict[str, Any]]:
    """Return the documents of a retriever's result, or of an object with documents, as contexts: id and text.

    >>> documents_in({"documents": [{"page_content": "t", "metadata": {}}, "u"]})
    [{'id': None, 'text': 't'}, {'id': None, 'text': 'u'}]
    """
    value = opened(value)
    if isinstance(value, Mapping):
        texts = [value[name] for name in TEXTS if isinstance(value.get(name), str)]
        if texts:
            return [{"id": next((value[name] for name in IDS if name in value), None), "text": texts[0]}]
        nested = [value[name] for name in ("document", "kwargs") if isinstance(value.get(name), Mapping)]
        listed = (value[name] for name in FOUND if isinstance(opened(value.get(name)), list | Mapping))
        return next((found for one in (*nested, *listed) if (found := documents_in(one))), [])
    if isinstance(value, list):
        return [one for item in value for one in documents_in(item)]
    return [{"id": None, "text": value}] if isinstance(value, str) and value.strip() else []


def read_traces(spans_of: Callable[[Values], Iterable[Span]], unit: Unit) -> Iterator[FileRecord]:
    """Yield the traces of a file as samples, in the order of their first spans. Other rows are problems."""
    given = replace(unit, kind=file_records.json_kind(unit.path, unit.encoding))
    records: list[FileRecord] = []
    traces: dict[str, _Trace] = {}
    for record in READERS[given.kind](given):
        if record.problem:
            records.append(record)
            continue
        known = replace(record, values={name: finite(value) for name, value in record.values.items()})
        for span in converted(lambda one: spans_of(one.values), known):
            if isinstance(span, FileRecord):
                records.append(span)
            else:
                traces.setdefault(span.trace, _Trace(record.row)).add(span, record.row)
    for name, trace in traces.items():
        one = FileRecord({"sample_id": name}, row=trace.row)
        records += converted(partial(trace.record, name), one)
    yield from sorted(records, key=lambda one: one.row)


class _Trace:
    """The state of a trace while its file is read."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.first: Span | None = None
        self.found: dict[str, dict[str, Any]] = {}
        self.references: Any = None

    def add(self, span: Span, row: int) -> None:
        """Add a span. If several spans are first spans, the first one counts."""
        if span.first and self.first is None:
            self.first, self.row = span, row
        self.references = self.references or span.references
        for one in documents_in(span.found):
            self.found.setdefault(one["text"], one)

    def record(self, name: str, _: FileRecord) -> list[FileRecord]:
        """Return the sample of the trace, without missing columns."""
        if self.first is None:
            return [FileRecord(problem="a trace without its first span", raw=name, row=self.row)]
        inputs, outputs = opened(self.first.inputs), opened(self.first.outputs)
        contexts = list(self.found.values()) or _named(outputs) or _named(inputs)
        names = [str(one["id"]) for one in contexts if one["id"] is not None]
        if len(set(names)) < len(names):
            # Two share an id, so positions number them
            contexts = [{**one, "id": None} for one in contexts]
        found = {
            "query": find_text(inputs, ASKED, ASKING),
            "response": find_text(outputs, ANSWERED, ANSWERING),
            "contexts": contexts or None,
            "references": self.references,
        }
        stated = {column: value for column, value in found.items() if value is not None}
        rest = {**_fields("inputs", inputs, stated), **_fields("outputs", outputs, stated), **self.first.more}
        return [FileRecord({**({"sample_id": name} if self.first.named else {}), **stated, **rest}, row=self.row)]


def _named(value: Any) -> list[dict[str, Any]]:
    """Return the contexts that an object lists under a name for contexts."""
    if not isinstance(value, Mapping):
        return []
    return next((found for name in NAMED if name in value and (found := documents_in(value[name]))), [])


def _fields(side: str, value: Any, stated: Values) -> dict[str, Any]:
    """Return the fields of an object as columns `inputs.<name>`, for `--columns`, without fields that are columns."""
    if not isinstance(value, Mapping):
        return {}
    taken = [text for text in stated.values() if isinstance(text, str)]
    used: list[Any] = [*taken, None, [], {}]
    kept = {name: one for name, one in value.items() if one not in used and not (name in NAMED and _named(value))}
    return {f"{side}.{name}": one for name, one in kept.items()}


def langsmith(values: Values) -> Iterator[Span]:
    """Yield a run as LangSmith exports it, with its children or in separate rows, or an example of a data set."""
    if "run_type" not in values:
        answer = find_text(values.get("outputs"), ANSWERED, ANSWERING)
        name = values.get("id") or values.get("example_id")
        trace = str(name or text_of(values))
        yield Span(trace=trace, first=True, named=bool(name), inputs=values.get("inputs"), references=answer)
        return
    above = values.get("parent_run_id") or values.get("parent_run_ids")
    found = values.get("outputs") if values["run_type"] == "retriever" else None
    trace = str(values.get("trace_id") or values.get("id") or values.get("run_id"))
    yield Span(
        trace=trace,
        first=not above,
        inputs=values.get("inputs"),
        outputs=values.get("outputs"),
        found=found,
        references=find_text(values.get("reference_outputs"), ANSWERED, ANSWERING),
        more=_carried(values, "name", "session_name", "start_time", "tags"),
    )
    for child in values.get("child_runs") or []:
        yield from langsmith({"trace_id": trace, "parent_run_id": trace, "run_type": None, **object_of(child)})


def langfuse(values: Values) -> Iterator[Span]:
    """Yield traces with or without their observations, or observations, exported from Langfuse by any method."""
    trace = values["trace"] if isinstance(values.get("trace"), Mapping) else values
    of = trace.get("traceId") or trace.get("trace_id")
    name = str(of or trace.get("id"))
    above = trace.get("parentObservationId") or trace.get("parent_observation_id")
    retrieves = of and (trace.get("type") == "RETRIEVER" or "retriev" in str(trace.get("name")).lower())
    yield Span(
        trace=name,
        first=not above or bool(trace.get("isRootObservation") or trace.get("is_root_observation")),
        inputs=trace.get("input"),
        outputs=trace.get("output"),
        found=trace.get("output") if retrieves and above else None,
        references=find_text(trace.get("expectedOutput") or trace.get("expected_output"), ANSWERED, ANSWERING),
        more=_carried(trace, "name", "sessionId", "session_id", "userId", "user_id", "release", "version", "tags"),
    )
    for one in values.get("observations") or []:
        if isinstance(one, Mapping):
            below = {**one, "trace_id": name, "parentObservationId": one.get("parentObservationId") or name}
            yield from (replace(span, first=False) for span in langfuse(below))


def phoenix(values: Values) -> Iterator[Span]:
    """Yield a span of OpenInference, from a row of Phoenix's data frame of spans or from its client."""
    context = object_of(values.get("context"))
    found = _attribute(values, "retrieval.documents")
    retrieves = str(values.get("span_kind") or _attribute(values, "openinference.span.kind")).upper() == "RETRIEVER"
    yield Span(
        trace=str(values.get("context.trace_id") or context.get("trace_id") or values.get("trace_id")),
        first=not values.get("parent_id"),
        inputs=_attribute(values, "input.value"),
        outputs=_attribute(values, "output.value"),
        found=found if found or not retrieves else _attribute(values, "output.value"),
        more=_carried(values, "name", "start_time"),
    )


def _attribute(values: Values, name: str) -> Any:
    """Return an attribute of a span: from its column, or from the object `attributes`, nested or by its full name."""
    attributes = {
        key.removeprefix("attributes."): one for key, one in values.items() if key.startswith("attributes.")
    } or object_of(opened(values.get("attributes")))
    if name in attributes:
        return attributes[name]
    # A list in the format of the protocol: retrieval.documents.0.document.content
    items: dict[int, dict[str, Any]] = {}
    for key, one in attributes.items():
        if part := re.fullmatch(rf"{re.escape(name)}\.(\d+)\.(.+)", key):
            items.setdefault(int(part[1]), {})[part[2]] = one
    if items:
        return [items[place] for place in sorted(items)]
    value: Any = attributes
    for part_of_name in name.split("."):
        value = object_of(value).get(part_of_name)
    return value


def mlflow(values: Values) -> Iterator[Span]:
    """Yield a trace as MLflow writes it (`Trace.to_json`), or from a row of `mlflow.search_traces`."""
    whole = object_of(opened(values.get("trace"))) or values
    info, data = object_of(whole.get("info")), object_of(whole.get("data"))
    name = str(info.get("trace_id") or info.get("request_id") or values.get("trace_id") or values.get("request_id"))
    for one in data.get("spans") or opened(values.get("spans")) or []:
        span = object_of(one)
        attributes = {key: opened(value) for key, value in object_of(span.get("attributes")).items()}
        outputs = attributes.get("mlflow.spanOutputs", span.get("outputs"))
        retrieves = attributes.get("mlflow.spanType", span.get("span_type")) == "RETRIEVER"
        yield Span(
            trace=name,
            first=not (span.get("parent_span_id") or span.get("parent_id")),
            inputs=attributes.get("mlflow.spanInputs", span.get("inputs")),
            outputs=outputs,
            found=outputs if retrieves else None,
            more=_carried(span, "name"),
        )
    if values.get("request") is not None:
        yield Span(trace=name, first=True, inputs=values["request"], outputs=values.get("response"))


def openai_evals(values: Values) -> Iterator[Span]:
    """Yield events of a log of OpenAI's evals, output items of its Evals API, or rows of a data set (input, ideal)."""
    data = object_of(values.get("data"))
    item = object_of(values.get("datasource_item") or values.get("item"))
    match values.get("type"):
        case "sampling":
            yield Span(
                trace=str(values.get("sample_id")),
                first=True,
                inputs=data.get("prompt"),
                outputs=data.get("sampled"),
                more=_carried(values, "run_id"),
            )
        case "match" | "raw_sample":
            ideal = _ideal(data.get("expected") or data.get("ideal"))
            yield Span(trace=str(values.get("sample_id")), references=ideal)
        case _ if item:
            answered = object_of(values.get("sample"))
            known = values.get("id") or values.get("datasource_item_id")
            yield Span(
                trace=str(known or text_of(values)),
                first=True,
                named=bool(known),
                inputs=item,
                outputs=answered.get("output_text") or answered.get("output") or answered.get("outputs"),
                references=_ideal(item.get("ideal") or item.get("ground_truth") or item.get("reference")),
                more=_carried(answered, "model"),
            )
        case _ if "input" in values:
            trace, ideal = str(text_of(values)), _ideal(values.get("ideal"))
            yield Span(trace=trace, first=True, named=False, inputs=values["input"], references=ideal)


def _ideal(value: Any) -> Any:
    """Return the wanted answer, or the first one of several."""
    return value[0] if isinstance(value, list) and value else value


def _carried(values: Values, *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name) is not None}


Names = Mapping[str, Sequence[str]]
"""The names that columns may have in a file. The first match counts: `{"text": ("text", "contents")}`."""
# The tools' names by our names. The first that a row has counts. The second names are from ragas before version 0.2
RAGAS: Names = {
    "query": ("user_input", "question"),
    "response": ("response", "answer"),
    "contexts": ("retrieved_contexts", "contexts", "reference_contexts"),
    "references": ("reference", "ground_truth", "ground_truths"),
    "ground_truth": ("reference", "ground_truth", "ground_truths"),
}
TREC_RAG: Names = {
    "query": ("topic", "narrative", "title"),
    "query_id": ("topic_id", "narrative_id", "request_id"),
    # RAGTIME has responses
    "response": ("answer", "responses"),
    "system": ("run_id",),
    "contexts": ("candidates", "references"),
}
TREC_RAG_NUGGETS: Names = {
    "query_id": ("qid",),
    "response": ("answer_text",),
    "system": ("run_id",),
    "references": ("nuggets",),
}
# DeepEval joins the texts of a list with bars in its CSV
DEEPEVAL: Names = {
    "query": ("input",),
    "response": ("actual_output", "actualOutput"),
    "contexts": ("retrieval_context", "retrievalContext", "context"),
    "references": ("expected_output", "expectedOutput"),
    "ground_truth": ("expected_output", "expectedOutput"),
}
BAR = "|"
# Columns that contain lists of Python in its CSV
LISTS = ("query", "contexts", "references", "ground_truth")
AS_JSON = 'write the rows again as JSON Lines: df.to_json(FILE, orient="records", lines=True)'
# The ids of documents and segments in collections: without white space, and with a digit
DOCUMENT_ID = re.compile(r"(?=\S*\d)\S+")


def under_our_names(values: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Rename the columns of a row to our names. Null columns are skipped."""
    stated = {ours: [name for name in many if finite(values.get(name)) is not None] for ours, many in names.items()}
    theirs = {ours: many[0] for ours, many in stated.items() if many}
    rest = {name: value for name, value in values.items() if name not in theirs.values()}
    return {**rest, **{ours: values[name] for ours, name in theirs.items()}}


def ragas(row: Values, _: int) -> Iterator[Values]:
    """Yield a row of a data set, result or test set of ragas. A conversation has its last question and answer."""
    values = {name: _list_of_python(value) for name, value in under_our_names(row, RAGAS).items()}
    broken = [name for name in LISTS if isinstance(values.get(name), str) and is_python_list(values[name])]
    if broken:
        problem = f"the list in {' and '.join(broken)} is cut, or holds more than texts; {AS_JSON}"
        raise RowError(problem)
    truth, asked = values.get("ground_truth"), values.get("query")
    if isinstance(truth, list):
        # These are whole answers and not claims
        values["ground_truth"] = "\n".join(str(one) for one in truth if finite(one) is not None) or None
    if isinstance(asked, list):
        values |= {"query": find_text(asked, ASKED, ASKING), "user_input": asked}
        values.setdefault("response", find_text(asked, ANSWERED, ANSWERING))
    yield values


def _list_of_python(value: Any) -> Any:
    """Return the list in a cell of ragas' CSV, or any other value unchanged."""
    if isinstance(value, str) and is_python_list(value):
        with suppress(ValueError):
            return read_python_list(value)
    return value


def trec_rag(row: Values, _: int) -> Iterator[Values]:
    """Yield an answer in the format of TREC RAG, with its source segments as contexts if their texts are present.

    References that are only ids become the column `segment_ids`, and the sample has no contexts.
    """
    values = under_our_names({**object_of(row.get("metadata")), **row, "metadata": None}, TREC_RAG)
    asked = values.get("query")
    if isinstance(asked, Mapping):
        values |= {"query": asked.get("text"), "query_id": asked.get("qid")}
    found = values.pop("contexts", None)
    listed = found if isinstance(found, list) else []
    texts = [one for one in listed if not (isinstance(one, str) and DOCUMENT_ID.fullmatch(one))]
    if texts:
        values["contexts"] = [one for text in texts for one in _segments(text)]
    elif found:
        values[SEGMENTS] = found
    yield {name: value for name, value in values.items() if value is not None}


def trec_rag_answers(row: Values, number: int) -> Iterator[Values]:
    """Yield the answer as in `trec_rag`. If the query is missing, the id of the topic replaces it."""
    return ({"query": values.get("query_id"), **values} for values in trec_rag(row, number))


def _segments(candidate: Any) -> list[dict[str, Any]]:
    """Return a candidate as contexts. The ranked lists of the track have the id next to the segment."""
    named = object_of(candidate).get("docid")
    inner = object_of(candidate).get("doc", candidate)
    return [{**one, "id": named or one["id"]} for one in documents_in(inner)]


def trec_rag_nuggets(row: Values, _: int) -> Iterator[Values]:
    """Yield the nuggets of a topic as references of a question, or of the response with the assignments."""
    values = {"contexts": [], **under_our_names(row, TREC_RAG_NUGGETS)}
    yield {**values, "references": references_of(values.get("references"))}


def read_open_rag_eval(unit: Unit) -> Iterator[FileRecord]:
    """Yield a sample for each query and run of an open-rag-eval CSV file, which has a row per passage.

    The numbers of passages, such as [1], are the ids of contexts. Other rows are problems.
    """
    samples: dict[tuple[Any, Any], tuple[int, dict[str, Any]]] = {}
    for record in READERS["csv"](unit):
        if record.problem:
            yield record
            continue
        values = record.values
        key = values.get("query_id") or values.get("query"), values.get("query_run")
        first: dict[str, Any] = {"query": values.get("query"), "query_id": key[0], "run": key[1], "contexts": []}
        _, known = samples.setdefault(key, (record.row, first))
        name, text = (values.get(each) for each in ("passage_id", "passage"))
        if text:
            known["contexts"].append({"id": str(name or "").strip("[] ") or None, "text": text})
        if values.get("generated_answer"):
            known.setdefault("response", values["generated_answer"])
    yield from (FileRecord(known, row=row) for row, known in samples.values())


def deepeval(row: Values, _: int) -> Iterator[Values]:
    """Yield a test case of DeepEval as a sample. Bars separate the contexts of its CSV."""
    values = under_our_names(row, DEEPEVAL)
    contexts = values.get("contexts")
    if isinstance(contexts, str) and contexts.strip() and not contexts.lstrip().startswith("["):
        values["contexts"] = [text for text in contexts.split(BAR) if text.strip()]
    yield values


def references_of(nuggets: Any) -> Any:
    """Return nuggets as references, with assignments as labels. Anything but a list is returned unchanged."""
    if not isinstance(nuggets, list):
        return nuggets
    return [
        {**one, "labels": one["assignment"]} if isinstance(one, Mapping) and "assignment" in one else one
        for one in nuggets
    ]


def read_arrow(unit: Unit) -> Iterator[FileRecord]:
    """Yield the rows of a file of `Dataset.save_to_disk`: a stream of Arrow batches."""
    with closing(open_file(unit.path)) as stream:
        try:
            batches = pa.ipc.open_stream(stream)
        except pa.ArrowInvalid:
            raise UnreadableFileError("is not an Arrow stream. Give a folder of Dataset.save_to_disk") from None
        rows = count(1)
        for batch in batches:
            for part in slices(batch, ROWS_PER_BATCH):
                yield from file_records.records_of(part, rows)
