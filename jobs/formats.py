"""Reads files of samples on a worker, without Spark: bytes -> records -> samples. `jobs.samples` plans and checks."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import IO, Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

KNOWN = ("sample_id", "query", "response", "contexts", "system", "label")
REQUIRED = ("query", "response", "contexts")

# What is nested deeper, or has more keys, is carried as JSON text: a schema of that size serves no reader.
MAX_DEPTH = 16
MAX_FIELDS = 200
# Deeper JSON is refused: Python's own limit depends on who calls.
MAX_NESTING = 200
LONG = 2**63
# Integers above are not exact as doubles, so that only smaller doubles are written like the integers they equal.
EXACT_DOUBLE = 2**53
CHUNK = 1 << 20
# A piece of a file that ends within a token of JSON other than a string fails at most this far before its end.
LONGEST_TOKEN = 16
ROWS_PER_BATCH = 1000
SAMPLE_ID_CHARACTERS = 32

BOM = b"\xef\xbb\xbf"
ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))
SURROGATE = re.compile("[\ud800-\udfff]")
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
READ_ERRORS = (OSError, EOFError, zlib.error, UnicodeError, pa.ArrowException)

Shape = Any
"""null, boolean, long, double, string, text (types that do not agree), {"list": shape} or {"struct": {name: shape}}."""


class UnreadableFileError(Exception):
    """A file that cannot be read on. The message names what is wrong, never what stands in the file."""


@dataclass(frozen=True)
class Unit:
    """What one task reads: bytes of JSON Lines, a row group of Parquet (`start` its first row), else a whole file."""

    file: int
    path: str
    kind: str
    start: int = 0
    length: int = 0
    group: int = 0


@dataclass(frozen=True)
class Record:
    """A row as the file has it. Where `problem` is set it could not be read, and `raw` stands for its content."""

    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    raw: str = ""


@dataclass(frozen=True)
class Sample:
    """A row as a sample: the six known columns, the rest, the hash of all (64 hex characters), and what is wrong."""

    known: Mapping[str, Any]
    rest: Mapping[str, Any]
    content: str
    error: str | None


@dataclass(frozen=True)
class Adapter:
    """Another layout of files: the columns it needs, and the records that a record and its 0-based row stand for."""

    required: tuple[str, ...]
    expand: Callable[[Record, int], list[Record]]


def plain(value: Any) -> Any:
    """The value as canonical JSON has it: no nulls in objects, integral doubles as integers, dates as ISO text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < EXACT_DOUBLE else value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def canonical(value: Any) -> str:
    """Canonical JSON: keys sorted by code point, no spaces, no escapes but those that JSON needs."""
    return ENCODER.encode(plain(value))


def text_of(value: Any) -> str | None:
    """A value as a text column has it: text as it is, bytes decoded as UTF-8, anything else as canonical JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    text = plain(value)
    return text if isinstance(text, str) else canonical(text)


def shape_of(value: Any, depth: int = 0) -> Shape:
    """The type of a value of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long" if -LONG <= value < LONG else "text"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "string"
    if depth == MAX_DEPTH or not isinstance(value, list | dict):
        return "text"
    if isinstance(value, dict):
        fields = {key: shape_of(item, depth + 1) for key, item in value.items()}
        return "text" if "text" in fields.values() else struct_shape(fields)
    inner: Shape = "null"
    for item in value:
        inner = merge_shapes(inner, shape_of(item, depth + 1))
    return "text" if inner == "text" else {"list": inner}


def struct_shape(fields: dict[str, Shape]) -> Shape:
    """A struct, or text where Spark could not hold it: names equal but for case, empty names, too many."""
    names = {name.lower() for name in fields}
    return "text" if len(names) < len(fields) or "" in names or len(fields) > MAX_FIELDS else {"struct": fields}


def merge_shapes(left: Shape, right: Shape) -> Shape:
    """The type that holds both; `text` where none does, which then is the whole column's."""
    if left == right or right == "null":
        return left
    if left == "null":
        return right
    if isinstance(left, str) or isinstance(right, str):
        return "double" if {str(left), str(right)} == {"long", "double"} else "text"
    if "list" in left and "list" in right:
        inner = merge_shapes(left["list"], right["list"])
        return "text" if inner == "text" else {"list": inner}
    if "struct" in left and "struct" in right:
        fields = dict(left["struct"])
        for name, shape in right["struct"].items():
            fields[name] = merge_shapes(fields.get(name, "null"), shape)
        return "text" if "text" in fields.values() else struct_shape(fields)
    return "text"


def normalise_contexts(value: Any) -> list[dict[str, str]]:
    """Contexts as [{id, text}]: strings get their 1-based position, numbers and booleans become text.

    An id that is missing, null or empty is the position. Raises ValueError that says what is wrong, without the text.
    """
    if value is None:
        raise ValueError("contexts is null")
    if not isinstance(value, list):
        raise ValueError("contexts is no list")
    contexts: list[dict[str, str]] = []
    seen: dict[str, int] = {}
    for position, item in enumerate(value, start=1):
        named = isinstance(item, dict)
        text, name = (item.get("text"), item.get("id")) if named else (item, None)
        where = f"context {position}"
        if text is None:
            raise ValueError(f"{where} has no text" if named else f"{where} is null")
        if isinstance(text, list | dict) or isinstance(name, list | dict):
            raise ValueError(f"{where} is neither text nor an object of id and text")
        identifier = text_of(name) or str(position)
        if identifier in seen:
            raise ValueError(f"contexts {seen[identifier]} and {position} have one id")
        seen[identifier] = position
        contexts.append({"id": identifier, "text": cast(str, text_of(text))})
    return contexts


def contexts_of_text(value: Any) -> Any:
    """Contexts that a column of text holds as JSON. Raises ValueError where it is no JSON."""
    if not isinstance(value, str | bytes):
        return value
    try:
        return load_json(cast(str, text_of(value)))
    except (ValueError, RecursionError):
        raise ValueError("contexts is no JSON list") from None


def _text_column(name: str, value: Any, problems: list[str]) -> str | None:
    if isinstance(value, list | dict):
        problems.append(f"{name} is no text")
        return None
    text = text_of(value)
    if text is None:
        problems.append(f"{name} is null")
    elif name == "query" and not text.strip():
        problems.append("query is empty")
        return None
    return text


def to_sample(record: Record, contexts_as_text: bool) -> Sample:
    """A record as a sample: its id where given, else the hash of all columns. What is unusable is null."""
    values = record.values
    problems = [record.problem] if record.problem else []
    contexts = None
    query = response = None
    if not record.problem:
        query = _text_column("query", values.get("query"), problems)
        response = _text_column("response", values.get("response"), problems)
        try:
            given = values.get("contexts")
            contexts = normalise_contexts(contexts_of_text(given) if contexts_as_text else given)
        except ValueError as error:
            problems.append(str(error))
    rest = {name: value for name, value in values.items() if name not in KNOWN}
    content = _content(record, contexts, rest)
    known = {
        "sample_id": text_of(values.get("sample_id")) or content[:SAMPLE_ID_CHARACTERS],
        "query": query,
        "response": response,
        "contexts": contexts,
        "system": text_of(values.get("system")),
        "label": text_of(values.get("label")),
    }
    return Sample(known, rest, content, "; ".join(problems) or None)


def _content(record: Record, contexts: list[dict[str, str]] | None, rest: Mapping[str, Any]) -> str:
    """sha2-256 of every column's text, nulls left out; of text, because one column has one type."""
    values = record.values
    texts = {name: text_of(value) for name, value in rest.items()}
    texts |= {name: text_of(values.get(name)) for name in KNOWN}
    texts["sample_id"] = texts["sample_id"] or None
    if contexts is not None:
        texts["contexts"] = ENCODER.encode(contexts)
    columns = {name: text for name, text in texts.items() if text is not None}
    return hashlib.sha256(ENCODER.encode([columns, record.raw, contexts is None]).encode()).hexdigest()


def filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """Arrow's file system of a URI and the path in it; Spark's `s3a` and `s3n` are Arrow's `s3`.

    The path is no part of what Arrow parses, for it may hold spaces, brackets and wildcards.
    """
    scheme, _, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    system, base = pafs.FileSystem.from_uri(f"{re.sub('^s3[an]$', 's3', scheme)}://{host}{'' if host else slash}")
    return system, f"{base.rstrip('/')}/{path}"


def local_path(path: str) -> str:
    """A path without its `file:` scheme, percent signs decoded where there is no such file otherwise."""
    if not path.startswith("file:/"):
        return path
    bare = re.sub("^file:(//)?(?=/)", "", path)
    return bare if os.path.exists(bare) else unquote(bare)


def is_remote(path: str) -> bool:
    """Whether a path has a scheme other than `file`."""
    return "://" in path and not path.startswith("file:/") and not os.path.exists(path)


def open_file(path: str) -> IO[bytes]:
    """A file's bytes as a buffered stream, uncompressed where its name ends in .gz."""
    if is_remote(path):
        system, inner = filesystem(path)
        stream = cast(IO[bytes], io.BufferedReader(system.open_input_file(inner), CHUNK))
    else:
        stream = open(path, "rb", CHUNK)  # noqa: SIM115
    return cast(IO[bytes], gzip.open(stream)) if path.lower().endswith(".gz") else stream


def load_json(text: str) -> Any:
    """JSON as Python values, lone surrogates replaced; of two equal keys the last counts.

    Raises ValueError where it is no JSON, RecursionError where it is nested too deeply.
    """
    return _checked(json.loads(text), text)


def _checked(value: Any, text: str) -> Any:
    if text.count("[") + text.count("{") > MAX_NESTING and _is_deeper(value, MAX_NESTING):
        raise RecursionError
    return _without_surrogates(value) if SURROGATE_ESCAPE.search(text) else value


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(item, depth - 1) for item in items)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _record(value: Any) -> Record:
    if not isinstance(value, dict):
        return Record(problem="no JSON object", raw=canonical(value))
    return Record({name or "_c0": item for name, item in value.items()})


def _read_lines(unit: Unit) -> Iterator[Record]:
    """JSON Lines that begin within the unit's bytes. Blank lines are no rows."""
    with closing(open_file(unit.path)) as stream:
        position = unit.start
        if unit.start:
            stream.seek(unit.start - 1)
            position += len(stream.readline()) - 1
        while not unit.length or position < unit.start + unit.length:
            line = stream.readline()
            if not line:
                break
            content = (line.removeprefix(BOM) if position == 0 else line).strip(b" \t\r\n")
            position += len(line)
            if content:
                yield _record_of_line(content.decode("utf-8", "replace"))


def _record_of_line(line: str) -> Record:
    try:
        return _record(load_json(line))
    except RecursionError:
        return Record(problem="nested too deeply", raw=line)
    except ValueError:
        return Record(problem="no JSON", raw=line)


def _read_array(unit: Unit) -> Iterator[Record]:
    """The elements of a JSON array, read piece by piece. Raises UnreadableFileError where it is no JSON."""
    with io.TextIOWrapper(cast(Any, open_file(unit.path)), encoding="utf-8-sig", errors="replace") as stream:
        reader = _ArrayReader(stream)
        reader.expect("[")
        closed = reader.next_character() == "]"
        while not closed:
            yield reader.element()
            closed = reader.expect(",]") == "]"
        reader.position += int(reader.next_character() == "]")
        if reader.next_character():
            raise UnreadableFileError(f"text after the end of the JSON array (element {reader.elements})")


class _ArrayReader:
    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.buffer = ""
        self.position = 0
        self.chunk = CHUNK
        self.ended = False
        self.elements = 0
        self.decoder = json.JSONDecoder()

    def fill(self) -> None:
        more = self.stream.read(self.chunk)
        self.ended = not more
        self.buffer = self.buffer[self.position :] + more
        self.position = 0
        self.chunk *= 2

    def next_character(self) -> str:
        """The next character that is no white space, without taking it; empty at the end."""
        while True:
            while self.position < len(self.buffer) and self.buffer[self.position] in " \t\r\n":
                self.position += 1
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if self.ended:
                return ""
            self.fill()

    def expect(self, characters: str) -> str:
        found = self.next_character()
        if not found or found not in characters:
            raise UnreadableFileError(f"the JSON array is broken or cut after element {self.elements}")
        self.position += int(found != "]")
        return found

    def element(self) -> Record:
        self.next_character()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.position)
            except RecursionError:
                raise UnreadableFileError(
                    f"element {self.elements + 1} of the JSON array is nested too deeply"
                ) from None
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos > len(self.buffer) - LONGEST_TOKEN
                if not cut:
                    raise UnreadableFileError(f"element {self.elements + 1} of the JSON array is no JSON") from None
                end = len(self.buffer)
            except ValueError:
                raise UnreadableFileError(
                    f"element {self.elements + 1} of the JSON array has too long a number"
                ) from None
            # What ends with the buffer may go on in the next piece.
            if end < len(self.buffer):
                break
            if self.ended:
                raise UnreadableFileError(f"element {self.elements + 1} of the JSON array is broken or cut")
            self.fill()
        text = self.buffer[self.position : end]
        self.position, self.chunk, self.elements = end, CHUNK, self.elements + 1
        try:
            return _record(_checked(value, text))
        except RecursionError:
            return Record(problem="nested too deeply", raw=text)


def csv_header(path: str) -> list[str]:
    """A CSV file's column names, none where it has no line; an unnamed one is `_c<position>`."""
    with io.TextIOWrapper(cast(Any, open_file(path)), encoding="utf-8-sig", errors="replace", newline="") as stream:
        return _header(csv.reader(stream, strict=True))


def _header(rows: Iterator[list[str]]) -> list[str]:
    try:
        names = [name or f"_c{position}" for position, name in enumerate(next((row for row in rows if row), []))]
    except csv.Error as error:
        raise UnreadableFileError(f"the header is no CSV ({error})") from None
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UnreadableFileError(f"the header has {', '.join(f'`{name}`' for name in repeated)} twice; rename one")
    return names


def _read_csv(unit: Unit) -> Iterator[Record]:
    """RFC 4180. An empty cell is null, but the empty string in `response`."""
    csv.field_size_limit(2**31 - 1)
    with io.TextIOWrapper(
        cast(Any, open_file(unit.path)), encoding="utf-8-sig", errors="replace", newline=""
    ) as stream:
        taken: list[str] = []
        rows = csv.reader(_tap(stream, taken), strict=True)
        header = _header(rows)
        while True:
            taken.clear()
            try:
                row = next(rows, None)
            except csv.Error as error:
                if "end of data" in str(error):
                    raise UnreadableFileError(
                        f"a quote opened in the record before line {rows.line_num} never ends"
                    ) from None
                yield Record(problem=f"broken CSV quoting near line {rows.line_num}", raw="".join(taken))
                continue
            if row is None:
                return
            if row:
                yield _record_of_cells(header, row)


def _tap(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    for line in lines:
        taken.append(line)
        yield line


def _record_of_cells(header: list[str], row: list[str]) -> Record:
    if len(row) != len(header):
        return Record(problem=f"{len(row)} cells where the header has {len(header)}", raw=canonical(row))
    cells = zip(header, row, strict=True)
    return Record({name: cell if cell or name == "response" else None for name, cell in cells})


def _read_parquet(unit: Unit) -> Iterator[Record]:
    with closing(open_parquet(unit.path)) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, row_groups=[unit.group]):
            names = [name or f"_c{position}" for position, name in enumerate(batch.schema.names)]
            columns = [_values(column) for column in batch.columns]
            for row in zip(*columns, strict=True):
                yield Record(dict(zip(names, row, strict=True)))


def open_parquet(path: str) -> pq.ParquetFile:
    """A Parquet file, its footer read."""
    return pq.ParquetFile(open_file(path))


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    try:
        return cast(list[Any], column.to_pylist(maps_as_pydicts="lossy"))
    except UnicodeDecodeError:
        return [_valid(scalar) for scalar in column]


def _valid(scalar: Any) -> Any:
    """A scalar as Python value with invalid UTF-8 replaced."""
    if not scalar.is_valid:
        return None
    if pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type):
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")
    if pa.types.is_struct(scalar.type):
        return {name: _valid(item) for name, item in scalar.items()}
    if pa.types.is_list(scalar.type) or pa.types.is_large_list(scalar.type):
        return [_valid(item) for item in scalar.values]
    return scalar.as_py()


READERS: dict[str, Callable[[Unit], Iterator[Record]]] = {
    "lines": _read_lines,
    "array": _read_array,
    "csv": _read_csv,
    "parquet": _read_parquet,
}


def json_kind(path: str) -> str:
    """`array` or `lines`, from a file's first line. Raises UnreadableFileError where it is UTF-16 or UTF-32."""
    with closing(open_file(path)) as stream:
        head = stream.read(CHUNK)
        if head.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")):
            raise UnreadableFileError("not UTF-8; save it as UTF-8")
        text = head.removeprefix(BOM).lstrip(b" \t\r\n")
        if not text.startswith(b"["):
            return "lines"
        line, newline, after = text.partition(b"\n")
        return "lines" if newline and after.strip() and _is_json(line) else "array"


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def as_type(value: Any, arrow: pa.DataType) -> Any:
    """A value as its column takes it: text columns hold `text_of`, doubles no integers that Arrow refuses."""
    if value is None:
        return None
    if pa.types.is_string(arrow):
        return text_of(value)
    if pa.types.is_floating(arrow):
        return float(value)
    if pa.types.is_list(arrow):
        return [as_type(item, arrow.value_type) for item in value]
    if pa.types.is_struct(arrow):
        return {item.name: as_type(value.get(item.name), item.type) for item in arrow}
    if pa.types.is_map(arrow):
        return [(key, as_type(item, arrow.item_type)) for key, item in value.items()]
    return value
