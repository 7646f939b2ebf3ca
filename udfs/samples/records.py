"""Readers of JSON Lines, JSON arrays, CSV and Parquet: bytes -> records."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from untold.udfs.samples.files import open_file, open_text
from untold.udfs.samples.values import canonical, check_nesting, load_json

# More come from keys that are data, and would be a table that no reader opens.
MAX_COLUMNS = 1000
WIDTH_ADVICE = "put keys that vary from row to row into one column of JSON"
# What is read of a JSON array at once, doubled while an element is longer: decoding from its beginning again and again
# stays linear in its length.
CHUNK = 1 << 20
# A piece of a file that ends within a token of JSON other than a string fails at most this far before its end.
LONGEST_TOKEN = 16
ROWS_PER_BATCH = 1000

BOM = b"\xef\xbb\xbf"
READ_ERRORS = (OSError, EOFError, zlib.error, UnicodeError, pa.ArrowException)


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


def _record(value: Any) -> Record:
    """A value of JSON as a record; an empty key is `_c0`, as no column can be without a name."""
    if not isinstance(value, dict):
        return Record(problem="no JSON object", raw=canonical(value))
    return Record({name or "_c0": item for name, item in value.items()})


def _read_lines(unit: Unit) -> Iterator[Record]:
    """JSON Lines that begin within the unit's bytes. Blank lines are no rows."""
    with closing(open_file(unit.path)) as stream:
        position = unit.start
        if unit.start:
            # From one byte before: a line that begins exactly at the unit's first byte is this unit's, others are the
            # one's before.
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
    """A line as a record; one that is no JSON is a record with a problem, and the next line is read on."""
    try:
        return _record(load_json(line))
    except RecursionError:
        return Record(problem="nested too deeply", raw=line)
    except ValueError:
        return Record(problem="no JSON", raw=line)


def _read_array(unit: Unit) -> Iterator[Record]:
    """The elements of a JSON array, read piece by piece. Raises UnreadableFileError where it is no JSON."""
    with open_text(unit.path) as stream:
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
    """Takes the elements of an array from a stream one at a time, and holds no more of it than the longest."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.buffer = ""
        self.position = 0
        self.chunk = CHUNK
        self.ended = False
        self.elements = 0
        self.decoder = json.JSONDecoder()

    def fill(self) -> None:
        """Reads on, forgetting what was taken; pieces double until an element is whole."""
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
        """The next character, one of these, and taken but for `]`. Raises UnreadableFileError for another."""
        found = self.next_character()
        if not found or found not in characters:
            raise UnreadableFileError(f"the JSON array is broken or cut after element {self.elements}")
        # The bracket stays, for an empty array and the end of others are looked at in one place.
        self.position += int(found != "]")
        return found

    def element(self) -> Record:
        """The next element, taken. Raises UnreadableFileError where the array cannot be read on."""
        self.next_character()
        value, end = self.decode()
        # What ends with the buffer may go on in the next piece.
        while end == len(self.buffer):
            if self.ended:
                raise UnreadableFileError(f"element {self.elements + 1} of the JSON array is broken or cut")
            self.fill()
            value, end = self.decode()
        text = self.buffer[self.position : end]
        self.position, self.chunk, self.elements = end, CHUNK, self.elements + 1
        try:
            return _record(check_nesting(value, text))
        except RecursionError:
            return Record(problem="nested too deeply", raw=text)

    def decode(self) -> tuple[Any, int]:
        """The element in the buffer and where it ends, which is the buffer's end for what is cut there."""
        element = f"element {self.elements + 1} of the JSON array"
        try:
            return self.decoder.raw_decode(self.buffer, self.position)
        except RecursionError:
            raise UnreadableFileError(f"{element} is nested too deeply") from None
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated") or error.pos > len(self.buffer) - LONGEST_TOKEN:
                return None, len(self.buffer)
            raise UnreadableFileError(f"{element} is no JSON") from None
        except ValueError:
            raise UnreadableFileError(f"{element} has too long a number") from None


def column_names(names: Sequence[str]) -> list[str]:
    """Names as a header or footer gives them; an unnamed column is `_c<position>`. Raises as `check_width`.

    >>> column_names(["query", "", "response"])
    ['query', '_c1', 'response']
    """
    check_width(len(names))
    return [name or f"_c{position}" for position, name in enumerate(names)]


def check_width(columns: int) -> None:
    """Raises UnreadableFileError for more columns than a table of samples may have."""
    if columns > MAX_COLUMNS:
        raise UnreadableFileError(f"more than {MAX_COLUMNS:,} columns; {WIDTH_ADVICE}")


def csv_header(path: str) -> list[str]:
    """A CSV file's column names, none where it has no line. Raises UnreadableFileError for a header of no use."""
    with open_text(path, newline="") as stream:
        return _header(csv.reader(stream, strict=True))


def _header(rows: Iterator[list[str]]) -> list[str]:
    """The names of a CSV file's columns, none where it has no line. Raises UnreadableFileError for broken or repeated
    ones.
    """
    try:
        names = column_names(next((row for row in rows if row), []))
    except csv.Error as error:
        raise UnreadableFileError(f"the header is no CSV ({error})") from None
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UnreadableFileError(f"the header has {', '.join(f'`{name}`' for name in repeated)} twice; rename one")
    return names


def _read_csv(unit: Unit) -> Iterator[Record]:
    """RFC 4180. An empty cell is null, but the empty string in `response`."""
    # A context is easily longer than the 131,072 characters that the module takes; the limit is a C long.
    csv.field_size_limit(2**31 - 1)
    with open_text(unit.path, newline="") as stream:
        taken: list[str] = []
        rows = csv.reader(_tap(stream, taken), strict=True)
        header = _header(rows)
        while True:
            taken.clear()
            try:
                row = next(rows, None)
            except csv.Error as error:
                # The words of the module, which has one kind of error for all: an open quote has swallowed the rest of
                # the file.
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
    """The lines as they are, each noted in `taken` too: what a broken record looked like."""
    for line in lines:
        taken.append(line)
        yield line


def _record_of_cells(header: list[str], row: list[str]) -> Record:
    """A row of cells as a record; as many cells as the header has, or nobody knows which is which."""
    if len(row) != len(header):
        return Record(problem=f"{len(row)} cells where the header has {len(header)}", raw=canonical(row))
    cells = zip(header, row, strict=True)
    return Record({name: cell if cell or name == "response" else None for name, cell in cells})


def _read_parquet(unit: Unit) -> Iterator[Record]:
    """The rows of one row group."""
    with open_parquet(unit.path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, row_groups=[unit.group]):
            names = column_names(batch.schema.names)
            for row in zip(*map(_values, batch.columns), strict=True):
                yield Record(dict(zip(names, row, strict=True)))


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file, its footer read, for the time of a `with` block."""
    with closing(open_file(path)) as stream:
        yield pq.ParquetFile(stream)


def _values(column: pa.Array) -> list[Any]:
    """The values of a column as Python has them, invalid UTF-8 replaced."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        # Python's own times end at microseconds, and Arrow refuses to drop what is below.
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
        # A first line that is a whole array with more behind it is a line of JSON Lines, not the beginning of one
        # array.
        line, newline, after = text.partition(b"\n")
        return "lines" if newline and after.strip() and _is_json(line) else "array"


def _is_json(line: bytes) -> bool:
    """Whether bytes are a whole value of JSON."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
