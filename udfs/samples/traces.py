"""Traces of applications as samples: what was asked, what was answered, and what retrievers found for it.

LangSmith, Langfuse, Phoenix and MLflow export spans, OpenAI's evals events. Of each trace the first span asks and
answers; the contexts are what its retrievers found, else what that span names as contexts. A file is read as a whole,
because the spans of a trace may stand anywhere in it; spans in another file are not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from untold.udfs.samples.conversion import CONTEXT_NAMES
from untold.udfs.samples.file_records import READERS, FileRecord, Unit, converted, json_kind
from untold.udfs.samples.values import finite, load_json, text_of

FILES = "*.*json*"
Values = Mapping[str, Any]

# Under which names an application has its texts, the likeliest first
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
    """A step of a trace. `found`: what a retriever gave, None for any other step."""

    trace: str
    first: bool = False
    # Whether the trace is the id of its sample; a hash of the row is where it is no id
    named: bool = True
    inputs: Any = None
    outputs: Any = None
    found: Any = None
    references: Any = None
    # Columns that are carried along
    more: Values = field(default_factory=dict)


def opened(value: Any) -> Any:
    """The value of a text that is JSON; any other value as it is.

    >>> opened('{"question": "q"}'), opened('"RETRIEVER"'), opened("[1] q")
    ({'question': 'q'}, 'RETRIEVER', '[1] q')
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", '"')):
        return value
    try:
        return load_json(value)
    except (ValueError, RecursionError):
        return value


def find_text(value: Any, names: Sequence[str], roles: Sequence[str]) -> str | None:
    """The text that a value states: under one of the names, or the last message of one of the roles.

    >>> find_text([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], ASKED, ASKING)
    'q'
    >>> find_text({"kwargs": {"question": "q"}}, ASKED, ASKING), find_text({"one": "a"}, ANSWERED, ANSWERING)
    ('q', 'a')
    """
    value = opened(value)
    if isinstance(value, Mapping):
        named = [value[name] for name in names if value.get(name) is not None]
        return next((text for one in named or _only(value) if (text := find_text(one, names, roles)) is not None), None)
    if isinstance(value, list) and value:
        said = [one for one in value if _role(one) in roles]
        return find_text(said[-1] if said else value[0], names, roles)
    return None if value is None or isinstance(value, list) else text_of(value)


def _only(value: Values) -> list[Any]:
    """The value of an object with one key."""
    return list(value.values()) if len(value) == 1 else []


def _role(message: Any) -> str | None:
    """Who says a message; LangChain writes the class of a message as the end of its id."""
    if not isinstance(message, Mapping):
        return None
    classes = message.get("id")
    of_class = str(classes[-1]).removesuffix("Message").lower() if isinstance(classes, list) and classes else None
    return next((one for one in (of_class, message.get("role"), message.get("type")) if isinstance(one, str)), None)


def documents_in(value: Any) -> list[dict[str, Any]]:
    """The documents of what a retriever gave, or of an object that names some, as contexts: id and text.

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
    """The traces of a file as samples, by the places of their first spans; rows that are no object as they are."""
    given = replace(unit, kind=json_kind(unit.path, unit.encoding))
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
    """What is known of a trace while its file is read."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.first: Span | None = None
        self.found: dict[str, dict[str, Any]] = {}
        self.references: Any = None

    def add(self, span: Span, row: int) -> None:
        """Takes a span; of several first ones the first."""
        if span.first and self.first is None:
            self.first, self.row = span, row
        self.references = self.references or span.references
        for one in documents_in(span.found):
            self.found.setdefault(one["text"], one)

    def record(self, name: str, _: FileRecord) -> list[FileRecord]:
        """The sample of the trace; a column that it does not state is left out."""
        if self.first is None:
            return [FileRecord(problem="a trace without its first span", raw=name, row=self.row)]
        inputs, outputs = opened(self.first.inputs), opened(self.first.outputs)
        contexts = list(self.found.values()) or _named(outputs) or _named(inputs)
        found = {
            "query": find_text(inputs, ASKED, ASKING),
            "response": find_text(outputs, ANSWERED, ANSWERING),
            "contexts": _with_distinct_ids(contexts) or None,
            "references": self.references,
        }
        stated = {column: value for column, value in found.items() if value is not None}
        rest = {**_fields("inputs", inputs, stated), **_fields("outputs", outputs, stated), **self.first.more}
        return [FileRecord({**({"sample_id": name} if self.first.named else {}), **stated, **rest}, row=self.row)]


def _named(value: Any) -> list[dict[str, Any]]:
    """The contexts that an object names as such."""
    if not isinstance(value, Mapping):
        return []
    return next((found for name in NAMED if name in value and (found := documents_in(value[name]))), [])


def _with_distinct_ids(contexts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The contexts without their ids where two share one: places number them then."""
    names = [str(one["id"]) for one in contexts if one["id"] is not None]
    return contexts if len(set(names)) == len(names) else [{**one, "id": None} for one in contexts]


def _fields(side: str, value: Any, stated: Values) -> dict[str, Any]:
    """The fields of an object as columns `inputs.<name>`, for `--columns`, but those that are a column already."""
    if not isinstance(value, Mapping):
        return {}
    taken = [text for text in stated.values() if isinstance(text, str)]
    used: list[Any] = [*taken, None, [], {}]
    kept = {name: one for name, one in value.items() if one not in used and not (name in NAMED and _named(value))}
    return {f"{side}.{name}": one for name, one in kept.items()}


def langsmith(values: Values) -> Iterator[Span]:
    """A run as LangSmith exports it, with its children or in a row beside theirs; else an example of a data set."""
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
        yield from langsmith({"trace_id": trace, "parent_run_id": trace, "run_type": None, **_object(child)})


def langfuse(values: Values) -> Iterator[Span]:
    """Traces with or without their observations, or observations, as Langfuse exports them by UI, API or storage."""
    trace = _object(values.get("trace")) if isinstance(values.get("trace"), Mapping) else values
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
    """A span of OpenInference, as a row of Phoenix's data frame of spans or as its client gives it."""
    context = _object(values.get("context"))
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
    """An attribute of a span: in a column of its own, or in the object `attributes`, nested or by its whole name."""
    attributes = {
        key.removeprefix("attributes."): one for key, one in values.items() if key.startswith("attributes.")
    } or _object(opened(values.get("attributes")))
    if name in attributes:
        return attributes[name]
    # A list as the protocol has it: retrieval.documents.0.document.content
    items: dict[int, dict[str, Any]] = {}
    for key, one in attributes.items():
        if part := re.fullmatch(rf"{re.escape(name)}\.(\d+)\.(.+)", key):
            items.setdefault(int(part[1]), {})[part[2]] = one
    if items:
        return [items[place] for place in sorted(items)]
    value: Any = attributes
    for part_of_name in name.split("."):
        value = value.get(part_of_name) if isinstance(value, Mapping) else None
    return value


def mlflow(values: Values) -> Iterator[Span]:
    """A trace as MLflow writes it (`Trace.to_json`), or as a row of `mlflow.search_traces`."""
    whole = _object(opened(values.get("trace"))) or values
    info, data = _object(whole.get("info")), _object(whole.get("data"))
    name = str(info.get("trace_id") or info.get("request_id") or values.get("trace_id") or values.get("request_id"))
    for one in data.get("spans") or opened(values.get("spans")) or []:
        span = _object(one)
        attributes = {key: opened(value) for key, value in _object(span.get("attributes")).items()}
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
    """Events of a log of OpenAI's evals, output items of its Evals API, or rows of a data set (input, ideal)."""
    data = _object(values.get("data"))
    item = _object(values.get("datasource_item") or values.get("item"))
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
            answered = _object(values.get("sample"))
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
    """The answer that was wanted; of several that would do, the first."""
    return value[0] if isinstance(value, list) and value else value


def _object(value: Any) -> Values:
    return value if isinstance(value, Mapping) else {}


def _carried(values: Values, *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name) is not None}
