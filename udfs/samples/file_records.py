"""Read JSON Lines, JSON arrays, CSV and Parquet: bytes become records."""

from __future__ import annotations

import csv
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from untold.udfs.arrow import ROWS_PER_BATCH
from untold.udfs.samples.files import UNDECODED, UTF_8, cuts_lines, open_file, open_text
from untold.udfs.samples.values import canonical, check_nesting, load_json

# More columns come from data used as keys, and the table would be unreadable
MAX_COLUMNS = 1000
WIDTH_ADVICE = "put keys that vary from row to row into one column of JSON"
# The initial size of a read of a JSON array. It doubles for longer elements, so repeated decoding stays linear in their
# length
CHUNK = 1 << 20
# A piece of a file that ends within a JSON token (except strings) fails at most this far before its end
LONGEST_TOKEN = 16

# The first wins if two give the same number of columns
DELIMITERS = (",", "\t", ";")
OUT_OF_RANGE = object()
EXCEL_DELIMITER = re.compile(r'"?sep=([^"\r\n])"?\r?\n')
# The beginning of a JSON object on several lines
OBJECT_OVER_LINES = re.compile(r"\{[ \t]*\r?\n")
# Headers are shorter
HEADER_CHARACTERS = 1 << 16
# Errors that values of wrong types cause in any converter
ROW_ERRORS = (AttributeError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError)
READ_ERRORS = (OSError, EOFError, zlib.error, UnicodeError, pa.ArrowException)


class UnreadableFileError(Exception):
    """A file that cannot be read further. The message has the problem, and never content of the file."""


class UndecodableError(UnreadableFileError):
    """A line in another encoding than its file. `line` counts from 1 in the unit."""

    def __init__(self, line: int, encoding: str) -> None:
        super().__init__(undecodable(line, encoding))
        self.line, self.encoding = line, encoding


class RowError(ValueError):
    """A row that its format cannot read. The message names the column and no value."""


def converted(convert: Callable[[FileRecord], Iterable[Any]], record: FileRecord) -> list[Any]:
    """Return the result of a conversion, or one record with a problem if a value has the wrong type for its format."""
    problem = _try_convert(convert, record)
    if isinstance(problem, list):
        return problem
    for name in record.values if problem is None else ():
        if isinstance(_try_convert(convert, replace(record, values={**record.values, name: None})), list):
            problem = f"`{name}` has a value of the wrong type for its format; correct it, or leave it out"
            break
    # With the column names of samples, so that a file of such rows does not lack columns
    known = {"query": None, "response": None, "contexts": None, "sample_id": record.values.get("sample_id")}
    problem = problem or "its values have the wrong types for its format; check --format"
    return [FileRecord(known, problem, canonical(record.values), record.row)]


def _try_convert(convert: Callable[[FileRecord], Iterable[Any]], record: FileRecord) -> list[Any] | str | None:
    """Return the result of a conversion, the message of its RowError, or None after another error."""
    try:
        return list(convert(record))
    except ROW_ERRORS as error:
        return str(error) if isinstance(error, RowError) else None


def undecodable(line: int, encoding: str) -> str:
    """Return the message for a line in another encoding than its file.

    >>> undecodable(3, UTF_8)
    'line 3 is not UTF-8; give its encoding, such as --encoding cp1252'
    """
    known = encoding.removesuffix("-sig")
    way = "give its encoding, such as --encoding cp1252" if known == "utf-8" else "give another --encoding"
    return f"line {line} is not {known.upper()}; {way}"


def describe_break(error: Exception) -> str:
    """Return the message for a read error of a file, one of `READ_ERRORS` or an UnreadableFileError."""
    if isinstance(error, UnreadableFileError):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"is not {error.encoding.upper()} throughout; give another --encoding"
    return f"cannot be read completely ({type(error).__name__}); replace the file or check its permissions"


@dataclass(frozen=True)
class Unit:
    """The input of one task: bytes of JSON Lines, a row group of Parquet (`start` its first row), or a whole file.

    `delimiter` is for CSV, and empty if the header decides. `constants` are pickled values by column, for rows without
    their own values.
    """

    file: int
    path: str
    kind: str
    start: int = 0
    length: int = 0
    group: int = 0
    encoding: str = UTF_8
    delimiter: str = ","
    constants: bytes = b""


@dataclass(frozen=True)
class FileRecord:
    """A row of a file. If `problem` is set, the row is unreadable and `raw` represents its content.

    `row` is its start in the unit, from 1: a line of JSON Lines or CSV, an element of an array, a row of Parquet; 0 if
    unknown. `blank` marks blank lines at the end of a unit, which have no row.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    raw: str = ""
    row: int = 0
    blank: bool = False


def _record(value: Any, row: int) -> FileRecord:
    """Return a JSON value as a record. An empty key becomes `_c0`, because columns need a name."""
    if not isinstance(value, dict):
        return FileRecord(problem="no JSON object", raw=canonical(value), row=row)
    return FileRecord({name or "_c0": item for name, item in value.items()}, row=row)


def renamed(values: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    """Rename the columns of a row or a header. `columns` maps our names to the names in the file.

    A column with our name is left out if another column replaces it.

    >>> renamed({"question": 1, "query": 2, "n": 3}, {"query": "question"})
    {'query': 1, 'n': 3}
    """
    if not columns:
        return values
    ours = {name: values[other] for name, other in columns.items() if other in values}
    replaced = {*columns, *columns.values()}
    return {**ours, **{name: value for name, value in values.items() if name not in replaced}}


def read_all_lines(unit: Unit) -> Iterator[FileRecord]:
    """Yield JSON Lines that begin within the unit's bytes. Blank lines at its end are one record, `blank`."""
    row = last = 0
    for row, line in enumerate(_lines(unit), start=1):
        content = line.strip(" \t\r\n")
        if content:
            last = row
            yield _record_of_line(content, row)
    if row > last:
        yield FileRecord(row=row, blank=True)


def _read_lines(unit: Unit) -> Iterator[FileRecord]:
    """Yield JSON Lines that begin within the unit's bytes. Blank lines are not rows, but count in row numbers."""
    return (record for record in read_all_lines(unit) if not record.blank)


def _lines(unit: Unit) -> Iterator[str]:
    """Yield the lines that begin within the unit's bytes. Raises UndecodableError for another encoding."""
    if not cuts_lines(unit.encoding):
        with open_text(unit.path, unit.encoding, newline="\n") as stream:
            yield from stream
        return
    with closing(open_file(unit.path)) as stream:
        position = unit.start
        if unit.start:
            # Start one byte earlier: a line that begins at the first byte belongs to this unit, and an incomplete line
            # to the unit before
            stream.seek(unit.start - 1)
            position += len(stream.readline()) - 1
        row = 0
        while not unit.length or position < unit.start + unit.length:
            line = stream.readline()
            if not line:
                break
            position, row = position + len(line), row + 1
            try:
                yield line.decode(unit.encoding)
            except UnicodeDecodeError:
                raise UndecodableError(row, unit.encoding) from None


def _record_of_line(line: str, row: int) -> FileRecord:
    """Return a line as a record. Invalid JSON becomes a record with a problem, and reading continues."""
    try:
        # A line of an array without its brackets
        return _record(load_json(line.removesuffix(",") if line.startswith("{") else line), row)
    except RecursionError:
        return FileRecord(problem="nested too deeply", raw=line, row=row)
    except ValueError:
        return FileRecord(problem="no JSON", raw=line, row=row)


def _checked(text: str, lines: int, encoding: str) -> str:
    """Return text that was read with `surrogateescape`, unchanged. `lines` is the number of lines before it.

    Raises UndecodableError for the first line with a byte outside the encoding.
    """
    found = None if text.isascii() else UNDECODED.search(text)
    if found is not None:
        raise UndecodableError(lines + text.count("\n", 0, found.start()) + 1, encoding)
    return text


def read_text(unit: Unit) -> str:
    """Return the whole text of a file. Raises UndecodableError for a line in another encoding."""
    with open_text(unit.path, unit.encoding, errors="surrogateescape") as stream:
        return _checked(stream.read(), 0, unit.encoding)


def _read_array(unit: Unit) -> Iterator[FileRecord]:
    """Yield the elements of a JSON array, or consecutive objects, in a stream.

    Raises UnreadableFileError if the file is not JSON.
    """
    with open_text(unit.path, unit.encoding, errors="surrogateescape") as stream:
        reader = _ArrayReader(stream, unit.encoding)
        if reader.next_character() == "{":
            while reader.next_character():
                yield reader.element()
                reader.position += int(reader.next_character() == ",")
            return
        reader.expect("[")
        closed = reader.next_character() == "]"
        while not closed:
            yield reader.element()
            closed = reader.expect(",]") == "]" or reader.next_character() == "]"
        reader.position += int(reader.next_character() == "]")
        if reader.next_character():
            raise UnreadableFileError(f"text after the end of the JSON array (element {reader.elements})")


class _ArrayReader:
    """Reads the elements of an array from a stream, one at a time. It only buffers the longest element."""

    def __init__(self, stream: IO[str], encoding: str) -> None:
        self.stream, self.encoding = stream, encoding
        self.lines = 0
        self.buffer = ""
        self.position = 0
        self.chunk = CHUNK
        self.ended = False
        self.elements = 0
        self.decoder = json.JSONDecoder()

    def fill(self) -> None:
        """Read the next piece and drop consumed text. The size doubles until an element is complete."""
        more = _checked(self.stream.read(self.chunk), self.lines, self.encoding)
        self.lines += more.count("\n")
        self.ended = not more
        self.buffer = self.buffer[self.position :] + more
        self.position = 0
        self.chunk *= 2

    def next_character(self) -> str:
        """Return the next character that is not white space, without consuming it. Return an empty text at the end."""
        while True:
            while self.position < len(self.buffer) and self.buffer[self.position] in " \t\r\n":
                self.position += 1
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if self.ended:
                return ""
            self.fill()

    def expect(self, characters: str) -> str:
        """Consume one of these characters, except `]`, and return it. Raises UnreadableFileError for another one."""
        found = self.next_character()
        if not found or found not in characters:
            raise UnreadableFileError(f"the JSON array is broken or cut after element {self.elements}")
        # The bracket is not consumed, so that one place handles the end of all arrays
        self.position += int(found != "]")
        return found

    def element(self) -> FileRecord:
        """Consume and return the next element. Raises UnreadableFileError if the array is broken."""
        self.next_character()
        value, end = self.decode()
        # A value at the end of the buffer may continue in the next piece, unless a brace closed it
        while end == len(self.buffer) and not isinstance(value, dict):
            if self.ended:
                raise UnreadableFileError(f"element {self.elements + 1} of the JSON array is broken or cut")
            self.fill()
            value, end = self.decode()
        text = self.buffer[self.position : end]
        self.position, self.chunk, self.elements = end, CHUNK, self.elements + 1
        try:
            return _record(check_nesting(value, text), self.elements)
        except RecursionError:
            return FileRecord(problem="nested too deeply", raw=text, row=self.elements)

    def decode(self) -> tuple[Any, int]:
        """Return the element in the buffer and its end. For an incomplete element this is the end of the buffer."""
        element = f"element {self.elements + 1} of the JSON array"
        try:
            return self.decoder.raw_decode(self.buffer, self.position)
        except RecursionError:
            raise UnreadableFileError(f"{element} is nested too deeply") from None
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated") or error.pos > len(self.buffer) - LONGEST_TOKEN:
                return None, len(self.buffer)
            raise UnreadableFileError(f"{element} is not JSON") from None
        except ValueError:
            raise UnreadableFileError(f"{element} has too long a number") from None


def column_names(names: Sequence[str]) -> list[str]:
    """Return the names of a header or footer. An unnamed column is `_c<position>`. Raises as `check_width`.

    >>> column_names(["query", "", "response"])
    ['query', '_c1', 'response']
    """
    check_width(len(names))
    return [name or f"_c{position}" for position, name in enumerate(names)]


def check_width(columns: int) -> None:
    """Raise UnreadableFileError for more columns than a table of samples may have."""
    if columns > MAX_COLUMNS:
        raise UnreadableFileError(f"more than {MAX_COLUMNS:,} columns; {WIDTH_ADVICE}")


def csv_header(path: str, encoding: str = UTF_8, delimiter: str | None = None) -> tuple[list[str], str]:
    """Return the column names of a CSV file (none for an empty file) and its delimiter, detected if None.

    Raises UnreadableFileError for an invalid header.
    """
    with open_text(path, encoding, newline="", errors="surrogateescape") as stream:
        head = stream.read(HEADER_CHARACTERS)
    check_text(head)
    found = delimiter or find_delimiter(head)
    lines = (_checked(line, number, encoding) for number, line in enumerate(io.StringIO(head, newline="")))
    return _header(csv.reader(lines, delimiter=found, strict=True)), found


def check_text(head: str) -> None:
    """Raise UnreadableFileError for UTF-16 or UTF-32 that was read in another encoding."""
    if "\0" in head[:HEADER_CHARACTERS]:
        raise UnreadableFileError("has NUL characters; give its encoding, such as --encoding utf-16-le")


def find_delimiter(head: str) -> str:
    """Return the delimiter: the one that splits the header into the most columns, or the one in Excel's line.

    >>> find_delimiter("query;response;contexts\\n"), find_delimiter("query\\n"), find_delimiter("sep=|\\nquery|x")
    (';', ',', '|')
    """
    if named := EXCEL_DELIMITER.match(head):
        return named[1]
    return max(DELIMITERS, key=lambda mark: _width(head, mark))


def _width(head: str, delimiter: str) -> int:
    rows = csv.reader(io.StringIO(head, newline=""), delimiter=delimiter, strict=True)
    try:
        return len(next((row for row in rows if row), []))
    except csv.Error:
        return 0


def _header(rows: Iterator[list[str]]) -> list[str]:
    """Return the column names of a CSV file, none without a line. Raises UnreadableFileError for a bad header."""

    def names_delimiter(row: list[str]) -> bool:
        # Excel may write a line with the delimiter before the header
        return row[0].startswith("sep=") and len("".join(row)) <= len("sep=;")

    try:
        names = column_names(next((row for row in rows if row and not names_delimiter(row)), []))
    except csv.Error as error:
        raise UnreadableFileError(f"the header is not CSV ({error})") from None
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UnreadableFileError(f"the header has {', '.join(f'`{name}`' for name in repeated)} twice; rename one")
    return names


def _read_csv(unit: Unit) -> Iterator[FileRecord]:
    """Yield the rows of RFC 4180, with the unit's delimiter, or the delimiter of the header if it has none.

    An empty cell is null, but empty text in `response`.
    """
    # Contexts are often longer than the module's limit of 131,072 characters. The limit is a C long
    csv.field_size_limit(2**31 - 1)
    delimiter = unit.delimiter or csv_header(unit.path, unit.encoding)[1]
    with open_text(unit.path, unit.encoding, newline="", errors="surrogateescape") as stream:
        taken: list[str] = []
        rows = csv.reader(_tap(stream, taken, unit.encoding), delimiter=delimiter, strict=True)
        header = _header(rows)
        while True:
            taken.clear()
            begins = rows.line_num + 1
            try:
                row = next(rows, None)
            except csv.Error as error:
                # The module has one exception for all errors, so its message is checked: an open quote consumed the
                # rest of the file
                raw = "".join(taken)
                # Spark escapes quotes with backslashes, and RFC 4180 doubles them
                way = ". Write quotes doubled (in Spark, option('escape', '\"'))" if '\\"' in raw else ""
                if "end of data" in str(error):
                    raise UnreadableFileError(f"a quote in the record at line {begins} never ends{way}") from None
                yield FileRecord(problem=f"broken CSV quoting{way}", raw=raw, row=begins)
                continue
            if row is None:
                return
            if row and len(row) != len(header):
                problem = f"{len(row)} cells where the header has {len(header)}"
                yield FileRecord(problem=problem, raw=canonical(row), row=begins)
            elif row:
                named = zip(header, row, strict=True)
                yield FileRecord(
                    {name: cell if cell or name == "response" else None for name, cell in named}, row=begins
                )


def _tap(lines: Iterable[str], taken: list[str], encoding: str) -> Iterator[str]:
    """Yield the lines, and append each to `taken`, which is the raw text of a broken record."""
    for number, line in enumerate(lines):
        taken.append(_checked(line, number, encoding))
        yield line


def _read_parquet(unit: Unit) -> Iterator[FileRecord]:
    """Yield the rows of one row group."""
    rows = count(1)
    with open_parquet(unit.path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, row_groups=[unit.group]):
            yield from records_of(batch, rows)


def records_of(batch: pa.RecordBatch, rows: Iterator[int]) -> Iterator[FileRecord]:
    """Yield the rows of a batch, numbered by `rows`. A time that Python cannot represent is a problem of its row."""
    names = column_names(batch.schema.names)
    for values in zip(*map(_values, batch.columns), strict=True):
        record = dict(zip(names, values, strict=True))
        late = [name for name, value in record.items() if value is OUT_OF_RANGE]
        problem = f"`{late[0]}` is a time that Python cannot hold; write it as text" if late else None
        yield FileRecord({name: record[name] for name in names if name not in late}, problem, row=next(rows))


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for a `with` block, and read its footer."""
    with closing(open_file(path)) as stream:
        yield pq.ParquetFile(stream)


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python values, with invalid UTF-8 replaced."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        # Python's times have microseconds, and Arrow refuses to truncate nanoseconds
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    try:
        return cast(list[Any], column.to_pylist(maps_as_pydicts="lossy"))
    except (ValueError, OverflowError, LookupError):
        return [_valid(scalar) for scalar in column]


def _valid(scalar: Any) -> Any:
    """Return a scalar as a Python value, with invalid UTF-8 replaced."""
    if not scalar.is_valid:
        return None
    if pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type):
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")
    if pa.types.is_struct(scalar.type):
        found = {name: _valid(item) for name, item in scalar.items()}
        return OUT_OF_RANGE if OUT_OF_RANGE in found.values() else found
    if pa.types.is_list(scalar.type) or pa.types.is_large_list(scalar.type):
        items = [_valid(item) for item in scalar.values]
        return OUT_OF_RANGE if OUT_OF_RANGE in items else items
    try:
        return scalar.as_py()
    except (ValueError, OverflowError, LookupError):
        return OUT_OF_RANGE


Reader = Callable[[Unit], Iterator[FileRecord]]
READERS: dict[str, Reader] = {
    "lines": _read_lines,
    "array": _read_array,
    "objects": _read_array,
    "csv": _read_csv,
    "parquet": _read_parquet,
}
# The same readers, with a record for blank lines at the end: a reader of one part needs the number of its lines
READERS_OF_PARTS: dict[str, Reader] = {**READERS, "lines": read_all_lines}


def json_kind(path: str, encoding: str = UTF_8) -> str:
    """Return `array`, `lines` or `objects` (objects on several lines), from the first line of a file."""
    with open_text(path, encoding, errors="replace") as stream:
        text = stream.read(CHUNK).lstrip(" \t\r\n")
    check_text(text)
    if OBJECT_OVER_LINES.match(text):
        return "objects"
    if not text.startswith("["):
        return "lines"
    line, _, after = text.partition("\n")
    if after.strip():
        with suppress(ValueError, RecursionError):
            json.loads(line)
            # The first line is a complete array and more text follows, so the file is JSON Lines and not one array
            return "lines"
    return "array"
