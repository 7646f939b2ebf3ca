"""Convert records to samples: parse the known columns, carry the others, and report unusable values."""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from untold.udfs.samples import items
from untold.udfs.samples.citations import citations_of_parts, normalise_citations, normalise_sources
from untold.udfs.samples.file_records import FileRecord
from untold.udfs.samples.values import (
    ENCODER,
    canonical,
    finite,
    id_of,
    load_json,
    object_of,
    text_of,
    without_surrogates,
)

KNOWN = ("sample_id", "query", "response", "contexts", "system", "label")
REQUIRED = ("query", "response", "contexts")
# Columns that only some metrics read: the question of a row, and the content that an answer should cover
CITATIONS = "citations"
OPTIONAL = (
    *("query_id", "aspects", "references", "ground_truth", "claim_checks", "rubric", CITATIONS),
    *("reference_sources", "blocked_sources"),
)
# A required column with an alternative: the texts in which facts are looked up, or the facts themselves
EITHER = "contexts or references"
# The names of these columns in data sets and tools, such as ragas, RAGChecker and TREC RAG. Their spelling is not
# similar
OTHER_NAMES = {
    "query": ("question", "user_input", "topic", "prompt", "input", "instruction"),
    "response": ("answer", "output", "completion", "prediction"),
    "contexts": ("retrieved_contexts", "retrieved_context", "context", "documents", "passages", "sources", "docs"),
    "references": ("reference", "ground_truth", "ground_truths", "gt_answer"),
    "ground_truth": ("reference", "ground_truths", "gt_answer"),
    "query_id": ("topic_id",),
    "rubric": ("rubrics", "criteria"),
}
CONTEXT_NAMES: tuple[str, ...] = ("contexts", *OTHER_NAMES["contexts"])
# Parsers for the columns that hold lists
ITEMS: Mapping[str, Callable[[Any], Any]] = {
    "aspects": items.normalise_aspects,
    "references": items.normalise_references,
    "ground_truth": items.normalise_ground_truth,
    "claim_checks": items.normalise_checks,
    "rubric": items.normalise_rubric,
    **dict.fromkeys(("reference_sources", "blocked_sources"), normalise_sources),
}
# The ids of sources without texts, by position
SEGMENTS = "segment_ids"
# The optional columns that metrics may require
NEEDED = ("references", "ground_truth", "rubric")
# The beginnings of texts that are meant as JSON, complete or not. Plain texts may also begin with a bracket
JSON_BEGINNINGS = ('["', "[{", "[]", '{"')
JSON_IN_JSON = (*JSON_BEGINNINGS, '"[', '"{', '"\\"')
# Columns in which a single text means a list with one text
ONE_TEXT = ("contexts", "references", "ground_truth", "reference_sources")
PYTHON_ERRORS = (ValueError, SyntaxError, MemoryError, RecursionError)
# Tokens of NumPy around values, and the ends and beginnings of values
NUMPY_NAMES = {**dict.fromkeys(("array", "np", ".", "str_", "dtype", "=", "object"), ""), "nan": "None", "NaN": "None"}
ENDS, BEGINS = re.compile(r"[\w'\"\]}]$"), re.compile(r"[\w'\"\[{]")
# Two texts without a comma, as NumPy writes them
ADJACENT = re.compile(r"['\"]\s+['\"]")
# The beginnings of a list of texts, and of other collections, as Python and pandas write them into CSV
PYTHON_LIST = re.compile(
    r"(array\()?\[\s*(array\()?[\[(]*\s*(\{\s*)?(np\.str_\()?'|\{'(text|page_content|id)':"
    r"|(np\.|numpy\.)?(array|deque|set|frozenset|dict_values|OrderedDict)\(\s*[\[({]\s*['\"\[({]"
)
_TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
# A tuple or a set of texts, complete or cut. Prose in brackets has words after it
PYTHON_TUPLE = re.compile(rf"[({{]\s*{_TEXT}\s*,\s*(?:{_TEXT}\s*,\s*)*(?:{_TEXT}?\s*[)}}]|['\"][^'\"]*)?", re.DOTALL)
# Documents of LangChain and LlamaIndex, and other objects in a list, as Python writes them
PYTHON_OBJECTS = re.compile(
    r"[\[(]\s*[A-Za-z_][\w.]*\(\s*\w+=|[\[(]\s*<[\w.]+ object at 0x|\w*(Document|Node)(WithScore)?\(\s*\w+="
    r"|page_content=['\"]"
)
OF_JSON, OF_LISTS = ".map(json.dumps)", ".map(list).map(json.dumps)"
OF_OBJECTS = ".map(lambda found: json.dumps([one.page_content for one in found]))"
# The values of a column without items, also as text
NO_ITEMS: tuple[Any, ...] = (None, [], "", "[]")
# Columns of answers that a question does not have, and the id of a question
OF_ANSWERS = ("response", "system", "label")
QUESTION_ID = "question_id"
# 128 of the hash's 256 bits: short enough to read, and unique among a billion samples
SAMPLE_ID_CHARACTERS = 32


@dataclass(frozen=True)
class Sample:
    """A row as a sample: the known columns, the rest, the hash of all (64 hex characters), and the error.

    An unusable column is null in `known`, and `error` names it without any text of the row.
    """

    known: Mapping[str, Any]
    rest: Mapping[str, Any]
    content: str | None
    error: str | None


def to_sample(
    record: FileRecord,
    items_as_text: bool,
    required_columns: Sequence[str] = REQUIRED,
    optional_columns: Sequence[str] = (),
) -> Sample:
    """Return a record as a sample. Its id is the given id or the hash of all columns. Unusable values are null.

    Columns of `REQUIRED` may be missing unless they are in `required_columns`. With `EITHER` in it, contexts are
    required in rows without references. Columns of `OPTIONAL` are parsed if they are in `optional_columns`, and carried
    unchanged otherwise. A question has no columns of answers, and its id is question_id, if present.
    """
    values = record.values
    if is_question(required_columns):
        named = id_of(values.get(QUESTION_ID))
        values = {name: value for name, value in values.items() if name not in (*OF_ANSWERS, QUESTION_ID)}
        values = {**values, "sample_id": named} if named else values
        record = replace(record, values=values)
    problems = [record.problem] if record.problem else []
    required = dict.fromkeys(REQUIRED)
    if not record.problem:
        required |= _required(values, required_columns, CITATIONS in optional_columns, problems)
    rest = {name: value for name, value in values.items() if name not in KNOWN}
    content = _content(record, required["contexts"], rest)
    if not record.problem:
        # After the hash, which covers the original row
        found = _optional(values, items_as_text, optional_columns, required_columns, problems)
        problems += filter(None, [items.check_contexts(found.get("claim_checks"), required["contexts"] or ())])
        rest |= found
        if CITATIONS in optional_columns:
            rest[CITATIONS] = _citations(values, items_as_text, required["contexts"], problems)
    known = {
        "sample_id": id_of(values.get("sample_id")) or content[:SAMPLE_ID_CHARACTERS],
        **required,
        "system": id_of(values.get("system")),
        "label": id_of(values.get("label")),
    }
    return Sample(known, rest, content, "; ".join(problems) or None)


def is_question(required_columns: Sequence[str]) -> bool:
    """Return True if rows that need only these columns are questions, which have no answer yet.

    >>> is_question(("query", "contexts")), is_question(("query", "response", "contexts"))
    (True, False)
    """
    return "response" not in required_columns


def _required(values: Mapping[str, Any], columns: Sequence[str], cites: bool, problems: list[str]) -> dict[str, Any]:
    """Return the required columns, null if unusable. Append errors to `problems`. `cites`: contexts may be cited."""
    texts = [name for name in ("query", "response") if name in columns]
    found: dict[str, Any] = {name: _text_column(name, values.get(name), problems) for name in texts}
    try:
        found["contexts"] = normalise_contexts(items_of_text(values.get("contexts"), "contexts"))
    except ValueError as error:
        # An error in a column that no metric reads is not an error of the row. The column is kept if readable
        is_read = "contexts" in columns or (EITHER in columns and finite(values.get("references")) in NO_ITEMS)
        is_read = is_read or (cites and finite(values.get("contexts")) is not None)
        problems += [str(error)] if is_read else []
    return found


def _optional(
    values: Mapping[str, Any], as_text: bool, names: Sequence[str], required: Sequence[str], problems: list[str]
) -> dict[str, Any]:
    """Return the requested optional columns of the row, null if unusable. Append errors to `problems`."""
    found: dict[str, Any] = {}
    if "query_id" in names and ("query_id" in values or "query_id" in required):
        found["query_id"] = id_of(values.get("query_id")) or None
        problems += ["query_id is null"] if found["query_id"] is None and "query_id" in required else []
    for name, normalise in ITEMS.items():
        if name in names and name in values:
            try:
                is_text = as_text or name in ONE_TEXT
                found[name] = normalise(items_of_text(values[name], name) if is_text else values[name])
            except ValueError as error:
                found[name] = None
                problems += [str(error)]
    problems += [f"{name} is null" for name in NEEDED if name in required and finite(values.get(name)) is None]
    return found


def _citations(
    values: Mapping[str, Any], as_text: bool, contexts: Sequence[Mapping[str, str]] | None, problems: list[str]
) -> list[dict[str, Any]] | None:
    """Return the citations of a response: its column, or the sources of its parts. Append errors to `problems`."""
    segments, parts = values.get(SEGMENTS), values.get("response")
    listed = [one["id"] for one in contexts or ()]
    if isinstance(segments, list) and not listed:
        listed = [text_of(one) or "" for one in segments]
    try:
        if finite(values.get(CITATIONS)) is None:
            return citations_of_parts(parts, listed) if isinstance(parts, list) and _joined(parts) != parts else None
        value = values[CITATIONS]
        return normalise_citations(items_of_text(value, CITATIONS) if as_text else value, listed)
    except ValueError as error:
        problems.append(str(error))
        return None


def _text_column(name: str, value: Any, problems: list[str]) -> str | None:
    """Return a column as text, null if unusable. Append errors to `problems`."""
    if name == "response":
        value = _joined(value)
    if isinstance(value, list | dict):
        problems.append(f"{name} is not a text")
        return None
    text = text_of(value)
    if text is None:
        problems.append(f"{name} is null")
    elif name == "query" and not text.strip():
        problems.append("query is empty")
        return None
    return text


def _joined(response: Any) -> Any:
    """Join the sentences of a response with citations, as in TREC RAG. Return any other response unchanged.

    >>> _joined([{"text": "One.", "citations": [0]}, {"text": "Two.", "citations": []}])
    'One. Two.'
    """
    if not isinstance(response, list) or not response:
        return response
    texts = [one["text"] for one in response if isinstance(one, dict) and isinstance(one.get("text"), str)]
    return " ".join(texts) if len(texts) == len(response) else response


def normalise_contexts(value: Any) -> list[dict[str, str]]:
    """Return contexts as [{id, text}]. Texts get their 1-based position as id; numbers and booleans become text.

    A context with a kind of source has `kind` too. A missing, null or empty id becomes the position. One text is one
    context, and an object of lists, as from Hugging Face, is the list of its texts. Raises ValueError with the problem,
    without the text.

    >>> normalise_contexts(["first", {"id": "b", "text": 2}])
    [{'id': '1', 'text': 'first'}, {'id': 'b', 'text': '2'}]
    >>> normalise_contexts([{"text": "first", "kind": "news"}])
    [{'id': '1', 'text': 'first', 'kind': 'news'}]
    >>> normalise_contexts("first") == normalise_contexts({"text": ["first"]})
    True
    """
    if finite(value) is None:
        raise ValueError("contexts is null")
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("contexts is an empty text. Give [] for no contexts")
        value = [value]
    elif isinstance(value, dict) and isinstance(value.get("text"), list):
        value = _items_of_lists(value)
    contexts = []
    for place, name, text, item in items.named_texts(value, "context"):
        kind = items.text_field(object_of(item).get("kind"), f"kind of context {place}")
        contexts.append({"id": name, "text": text, **({"kind": kind} if kind else {})})
    return contexts


def _items_of_lists(value: Mapping[str, Any]) -> list[Any]:
    """Return an object of lists as a list of objects.

    >>> _items_of_lists({"id": ["a"], "text": ["first"]})
    [{'id': 'a', 'text': 'first'}]
    """
    texts = value["text"]
    named = {
        name: value[name]
        for name in ("id", "kind")
        if isinstance(value.get(name), list) and len(value[name]) == len(texts)
    }
    if not named:
        return list(texts)
    return [dict(zip((*named, "text"), row, strict=True)) for row in zip(*named.values(), texts, strict=True)]


def items_of_text(value: Any, column: str) -> Any:
    """Return the value of a text column: a list from JSON, or in a column of `ONE_TEXT` a text.

    JSON within JSON is parsed too. Raises ValueError for an invalid list, with the remedy for lists of Python.

    >>> items_of_text('["one", "two"]', "contexts"), items_of_text("[1] One.", "contexts")
    (['one', 'two'], '[1] One.')
    """
    if not isinstance(value, str | bytes):
        return value
    text = cast(str, text_of(value))
    try:
        found = load_json(text)
    except (ValueError, RecursionError):
        if (mapped := way_to_json(text)) is not None:
            mended = f'df["{column}"] = df["{column}"]{mapped}'
            kind = "list of objects" if mapped == OF_OBJECTS else "list"
            raise ValueError(f"{column} is a Python {kind}, not JSON; write the file again after {mended}") from None
        if column not in ONE_TEXT or text.lstrip().startswith(JSON_BEGINNINGS):
            raise ValueError(f"{column} is not a JSON list") from None
        return text
    if isinstance(found, str) and (found.lstrip().startswith(JSON_IN_JSON) or way_to_json(found) is not None):
        return items_of_text(found, column)
    is_text = column in ONE_TEXT and not isinstance(found, list | dict | None)
    return text if is_text else found


def way_to_json(text: str) -> str | None:
    """Return the expression that writes a collection of Python's, which the text holds, as JSON; None for other text.

    >>> way_to_json("['a', 'b']"), way_to_json("('a', 'b')"), way_to_json("('A' and 'B') are names.")
    ('.map(json.dumps)', '.map(json.dumps)', None)
    """
    bare = text.strip()
    if PYTHON_OBJECTS.match(bare):
        return OF_OBJECTS
    if PYTHON_TUPLE.fullmatch(bare):
        return OF_LISTS if bare.startswith("{") else OF_JSON
    if not is_python_list(bare):
        return None
    return OF_LISTS if ADJACENT.search(bare) else OF_JSON


def is_python_list(text: str) -> bool:
    """Return True if a text is a list in Python syntax and not JSON.

    >>> is_python_list("['a', 'b']"), is_python_list('["a", None]'), is_python_list('["cut')
    (True, True, False)
    """
    bare = text.strip()
    if PYTHON_LIST.match(bare):
        return True
    try:
        return bare.startswith("[") and isinstance(ast.literal_eval(bare), list)
    except PYTHON_ERRORS:
        return False


def read_python_list(text: str) -> Any:
    """Return the list that Python, NumPy or pandas wrote as text, with None for nan.

    Raises ValueError if it is cut, or has values that are not written in full.

    >>> read_python_list("['a'\\n 'b']"), read_python_list("array(['a', nan], dtype=object)")
    (['a', 'b'], ['a', None])
    """
    try:
        tokens = [one.string.strip() for one in tokenize.generate_tokens(io.StringIO(text.strip()).readline)]
        parts = filter(None, (NUMPY_NAMES.get(token, token) for token in tokens))
        # NumPy writes no commas, so Python would join adjacent texts
        pairs = pairwise([*parts, ""])
        found = ast.literal_eval("".join(f"{a}," if ENDS.search(a) and BEGINS.match(b) else a for a, b in pairs))
    except (*PYTHON_ERRORS, tokenize.TokenError):
        raise ValueError("no list of Python's") from None
    return without_surrogates(found[0] if isinstance(found, tuple) else found)


def _content(record: FileRecord, contexts: list[dict[str, str]] | None, rest: Mapping[str, Any]) -> str:
    """Return the sha2-256 of the text of every column, without nulls. Text is used because one column has one type."""
    values = record.values
    # NaN is part of the hash, although it becomes null, so that ids do not change
    texts = {name: canonical(one) if isinstance(one, float) else text_of(one) for name, one in rest.items()}
    texts |= {name: text_of(values.get(name)) for name in KNOWN}
    # An empty id is missing, as in the sample
    texts["sample_id"] = texts["sample_id"] or None
    if contexts is not None:
        texts["contexts"] = ENCODER.encode(contexts)
    columns = {name: text for name, text in texts.items() if text is not None}
    # The raw text distinguishes unreadable rows: two of them are two samples
    return hashlib.sha256(ENCODER.encode([columns, record.raw, contexts is None]).encode()).hexdigest()
