"""Show how files of samples are read: format, columns, first rows, problems, next command. Starts no engine."""

from __future__ import annotations

import fnmatch
import shlex
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import PurePath
from typing import Any

from untold.jobs.inputs.checking import (
    CHECKED_FILES,
    HEAD_BYTES,
    HEAD_ROWS,
    adapter_of,
    check_input,
    describe_left_out,
    head_unit,
    input_files,
    probable_columns,
)
from untold.jobs.inputs.files import InputFile, ReadOptions, SampleError, data_files, inspect_files
from untold.jobs.run.terminal import Page, amount, cut, table, visible, wrapped
from untold.udfs.samples.adapters import FORMATS, Adapter
from untold.udfs.samples.batches import ColumnSelection, UnitProgress, expanded, reader_of, samples_of
from untold.udfs.samples.conversion import KNOWN, OPTIONAL, REQUIRED, Sample
from untold.udfs.samples.data_sets import RESULTS
from untold.udfs.samples.file_records import READ_ERRORS, READERS, UnreadableFileError, describe_break
from untold.udfs.samples.files import compression_of, open_file

SHOWN_ROWS = 3
SHOWN_PROBLEMS = 5
# Limits of counting rows: lines are counted by their ends, which is quick, and records are parsed
COUNTED_BYTES = 1 << 28
COUNTED_RECORDS = 20_000
KINDS = {"lines": "JSON Lines", "array": "a JSON array", "objects": "JSON objects", "csv": "CSV", "parquet": "Parquet"}
# The metrics of the next command, with a language model and with the judge of the package
LANGUAGE_MODEL_METRIC, JUDGE_METRIC = "e2e", "nli"
NUGGETS = "trec_rag_nuggets"
# Formats of responses with citations
CITING = ("ragtime", "deepresearch_articles", "open_rag_eval")
# Patterns of several formats
ANY_FILE = ("*", "*.csv", "*.jsonl", "*.json*", "*.*json*")


@dataclass(frozen=True)
class Inspection:
    """The detected format of files.

    `columns`: column (name in the files), taken_for (our name, None for another column) and filled (rows with a value).
    `rows` is the number of rows in the files, or a lower limit if it is not `exact`. `read` is the number of samples
    that were read.
    """

    path: str
    kind: str
    files: int
    bytes: int
    format: str | None
    rows: int
    exact: bool
    read: int
    columns: Sequence[Mapping[str, Any]]
    samples: Sequence[Mapping[str, Any]]
    problems: Sequence[str]
    usable: bool
    command: str


def inspect(
    path: str, format: str | None = None, read: ReadOptions | None = None, *, metric: str = LANGUAGE_MODEL_METRIC
) -> Inspection:
    """Read the beginnings of the files of a path, a folder or a glob.

    `metric` is the metric of the next command for samples with contexts. Raises SampleError if there are no rows, and
    for an unknown format or column.
    """
    options = read or ReadOptions()
    name = format or _format_of(path, options)
    adapter = adapter_of(name)
    files, left_out = input_files(path, adapter, options)
    options = replace(options, columns=options.columns or _columns_of(files, adapter, options))
    problems = [describe_left_out(left_out)] if left_out else []
    head = _Head(adapter, options)
    try:
        head.read(files[:CHECKED_FILES])
    except SampleError as error:
        problems += str(error).splitlines()
    required = head.required
    try:
        check_input(path, options, required, adapter)
    except SampleError as error:
        problems += [line for line in str(error).splitlines() if line not in problems]
    rows, exact = _count(files, adapter, head.whole)
    return Inspection(
        path=path,
        kind=KINDS.get(files[0].kind) or f"*{PurePath(files[0].path).suffix}",
        files=len(files),
        bytes=sum(file.size for file in files),
        format=name,
        rows=rows,
        exact=exact,
        read=len(head.samples),
        columns=head.columns(),
        samples=[_shown(one) for one in head.samples[:SHOWN_ROWS]],
        problems=[*problems, *head.problems()],
        usable=any(not _error(one, required) for one in head.samples),
        command=_command(path, name, options, required, head.given, metric),
    )


def _format_of(path: str, options: ReadOptions) -> str | None:
    """Return the known data set of files by their names or the columns of the first row, or None for our format."""
    found, others = data_files(path)
    for name, adapter in FORMATS.items():
        if adapter.files not in ANY_FILE and fnmatch.filter([file.path for file in (*found, *others)], adapter.files):
            return name
    columns = _first_columns(inspect_files(found[:1], options)[0])
    if columns is None:
        return "ragchecker" if _holds_results(found[0].path) else None
    if columns.issuperset(REQUIRED):
        return None
    return next((name for name, adapter in FORMATS.items() if adapter.knows(columns)), None)


def _first_columns(file: InputFile) -> set[str] | None:
    """Return the columns of a file's first row, or None if the row is not an object."""
    if file.types:
        return set(file.types)
    try:
        first = next(READERS[file.kind](head_unit(file)), None)
    except (UnreadableFileError, *READ_ERRORS):
        return None
    return None if first is None or first.problem else set(first.values)


def _holds_results(path: str) -> bool:
    """Return True if a file of JSON over several lines begins like a file of RAGChecker."""
    with closing(open_file(path)) as stream:
        return stream.read(100).lstrip(b"\xef\xbb\xbf \t\r\n{").startswith(f'"{RESULTS}"'.encode())


def _columns_of(files: Sequence[InputFile], adapter: Adapter | None, options: ReadOptions) -> Mapping[str, str]:
    """Return the likely names of our columns in files without a known format, by our names."""
    columns = (_first_columns(files[0]) if adapter is None else None) or set(REQUIRED)
    found: dict[str, str] = {}
    # One by one: questions have no response, and not every file has contexts
    for name in REQUIRED:
        if name not in columns:
            found |= probable_columns([name], columns - set(found.values()), {}) or {}
    return found or options.columns


class _Head:
    """The first rows of files as samples."""

    def __init__(self, adapter: Adapter | None, options: ReadOptions) -> None:
        self.wanted = ColumnSelection(adapter, REQUIRED, OPTIONAL, dict(options.columns))
        self.samples: list[Sample] = []
        self.places: list[str] = []
        self.given: set[str] = set()
        self.raw: set[str] = set()
        # Rows of the files that were read to their ends
        self.whole: dict[str, int] = {}

    def read(self, files: Sequence[InputFile]) -> None:
        """Read up to `HEAD_ROWS` rows. Raises SampleError for an unreadable file."""
        for number, file in enumerate(files):
            tally, unit = UnitProgress(), head_unit(file, number)
            try:
                rows = tally.rows(unit, reader_of(unit, self.wanted.adapter), self.wanted.columns)
                for record in islice(rows, max(HEAD_ROWS - len(self.samples), 0)):
                    self.raw.update(record.values)
                    records = expanded(self.wanted.adapter, record, tally.rows_read - 1, file.path)
                    self.given.update(name for one in records for name in one.values)
                    found = samples_of(unit, records, self.wanted)
                    self.samples += found
                    self.places += [f"{file.path} row {tally.row}"] * len(found)
            except (UnreadableFileError, *READ_ERRORS) as error:
                raise SampleError(f"{file.path}: {describe_break(error)}") from error
            if len(self.samples) < HEAD_ROWS and _is_whole(file):
                self.whole[file.path] = tally.rows_read

    @property
    def required(self) -> tuple[str, ...]:
        """The required columns. Questions have no response, and references can replace contexts."""
        if "response" not in self.given and "query" in self.given:
            return ("query",)
        is_citing = self.wanted.adapter in [FORMATS[name] for name in CITING]
        without = ({"references", "rubric"} & self.given or is_citing) and "contexts" not in self.given
        return ("query", "response") if without else REQUIRED

    def columns(self) -> list[dict[str, Any]]:
        """Return the columns, first the columns of samples."""
        cells = (pair for one in self.samples for pair in chain(one.known.items(), one.rest.items()))
        filled = Counter(name for name, value in cells if value not in (None, "", []))
        ours = [name for name in (*KNOWN, *OPTIONAL) if name in self.given]
        rest = sorted(name for name in filled if name not in (*KNOWN, *OPTIONAL))
        return [{"column": self._theirs(name), "taken_for": name, "filled": filled[name]} for name in ours] + [
            {"column": name, "taken_for": None, "filled": filled[name]} for name in rest
        ]

    def _theirs(self, name: str) -> str:
        """Return the name of one of our columns in the files."""
        names = {} if self.wanted.adapter is None else self.wanted.adapter.names
        return self.wanted.columns.get(name) or next((one for one in names.get(name, ()) if one in self.raw), name)

    def problems(self) -> list[str]:
        """Return the first problems of single rows."""
        required = self.required
        wrong = [
            f"{place}: {error}"
            for place, one in zip(self.places, self.samples, strict=True)
            if (error := _error(one, required))
        ]
        contents: dict[str, set[str | None]] = {}
        for one in self.samples:
            contents.setdefault(str(one.known["sample_id"]), set()).add(one.content)
        twice = [f"sample_id `{name}` has two contents" for name, found in contents.items() if len(found) > 1]
        more = [f"and {len(wrong) - SHOWN_PROBLEMS:,} more invalid rows"] if len(wrong) > SHOWN_PROBLEMS else []
        return [*wrong[:SHOWN_PROBLEMS], *more, *twice[:SHOWN_PROBLEMS]]


def _error(sample: Sample, required: Sequence[str]) -> str:
    """Return the error of a sample without the missing columns that are not required."""
    passed = {f"{name} is null" for name in REQUIRED if name not in required}
    return "; ".join(part for part in (sample.error or "").split("; ") if part and part not in passed)


def _shown(sample: Sample) -> dict[str, Any]:
    """Return the known values of a sample."""
    known = {**sample.known, **{name: sample.rest[name] for name in OPTIONAL if name in sample.rest}}
    return {name: value for name, value in known.items() if value is not None}


def _is_whole(file: InputFile) -> bool:
    """Return True if the head of a file is the whole file."""
    is_cut = file.size > HEAD_BYTES or compression_of(file.path) is not None
    return file.kind != "parquet" and not (file.kind == "lines" and is_cut)


def _count(files: Sequence[InputFile], adapter: Adapter | None, whole: Mapping[str, int]) -> tuple[int, bool]:
    """Return the number of rows of all files, and False if it reached a limit. `whole`: known numbers by path."""
    rows, exact, bytes_left, records_left = 0, True, COUNTED_BYTES, COUNTED_RECORDS
    for file in files:
        if file.path in whole:
            found = whole[file.path]
        elif file.kind == "parquet":
            found = sum(file.row_groups)
        elif file.kind == "lines":
            found, read = _count_lines(file.path, bytes_left)
            bytes_left -= read
            exact = exact and bytes_left > 0
        else:
            found = _count_records(file, adapter, records_left)
            records_left -= found
            exact = exact and records_left > 0
        rows += found
    return rows, exact


def _count_records(file: InputFile, adapter: Adapter | None, most: int) -> int:
    """Return the number of records of a file, at most `most`, or the number before an error of the file."""
    unit, tally = head_unit(file), UnitProgress()
    with suppress(UnreadableFileError, *READ_ERRORS):
        deque(islice(tally.rows(unit, reader_of(unit, adapter), {}), max(most, 0)), maxlen=0)
    return tally.rows_read


def _count_lines(path: str, most: int) -> tuple[int, int]:
    """Return the lines with text in the first `most` bytes of a file, and the bytes that were read.

    For a file with an error, all bytes count as read.
    """
    lines = read = 0
    try:
        with closing(open_file(path)) as stream:
            for line in stream if most > 0 else ():
                read += len(line)
                lines += not line.isspace()
                if read >= most:
                    break
    except READ_ERRORS:
        return lines, max(read, most)
    return lines, read


def _command(
    path: str, name: str | None, options: ReadOptions, required: Sequence[str], given: set[str], metric: str
) -> str:
    """Return the next command for the files."""
    words = ["--input", path]
    words += ["--format", name] if name else []
    words += ["--columns", ",".join(f"{ours}={theirs}" for ours, theirs in options.columns.items())] * bool(
        options.columns
    )
    words += ["--encoding", options.encoding] if options.encoding else []
    words += ["--delimiter", options.delimiter] if options.delimiter else []
    # Nuggets, criteria and citations come without contexts
    own = "rubric" if "rubric" in given else "nuggets" if name == NUGGETS else "citations" if name in CITING else None
    if "response" not in required and "response" not in given:
        asked = shlex.join(["untold", "generate", *words, "--systems", "systems.yaml", "--output", "answers"])
        return (
            f"{asked} && {shlex.join(['untold', 'plan', '--input', 'answers/samples', '--metric', own])}"
            if own
            else asked
        )
    if own:
        texts = ["--set", "citations.sources=TEXTS"] if own == "citations" and "contexts" not in given else []
        return shlex.join(["untold", "plan", *words, "--metric", own, *texts])
    if "contexts" in given or name is None:
        return shlex.join(["untold", "plan", *words, "--metric", metric])
    # Samples without contexts have references, or an index has the facts
    other = ["longrecall"] if "references" in given else ["icat", "--set", "knowledge.index=INDEX"]
    return shlex.join(["untold", "plan", *words, "--metric", *other])


def inspection_lines(found: Inspection, page: Page) -> list[str]:
    """Return the lines of an inspection."""
    rows = f"{'' if found.exact else 'at least '}{found.rows:,}"
    read = f"; {amount(found.read, 'sample')} read" if found.read != found.rows else ""
    lines = [
        *wrapped(f"{found.path}: {amount(found.files, 'file')}, {found.bytes:,} bytes, {found.kind}", page),
        f"format: {f'{found.format} (--format {found.format})' if found.format else 'samples, by extension'}",
        f"rows: {rows}{read}",
        "",
        *table(
            ["column", "taken for", "filled"],
            [
                [one["column"], one["taken_for"] or "- (kept)", f"{one['filled']:,} / {found.read:,}"]
                for one in found.columns
            ],
            page,
            names=2,
        ),
    ]
    for number, sample in enumerate(found.samples, start=1):
        lines += ["", f"sample {number}"]
        lines += [_line(name, value, page) for name, value in sample.items()]
    lines += ["", *(["wrong", *found.problems] if found.problems else ["no problem was found"])]
    return [*lines, "", f"next: {found.command}"]


def _line(name: str, value: Any, page: Page) -> str:
    """Return a column of a sample as one line that fits the page."""
    if isinstance(value, list):
        first = value[0] if value else ""
        first = first.get("text") or ", ".join(first.get("sources") or ()) if isinstance(first, dict) else first
        value = f"{len(value):,}: {first}" if value else "none"
    text = visible(f"  {name}: {value}", page.encoding)
    return cut(text, page.width or 200, mark=page.ellipsis, share=1.0 - 1 / (page.width or 200))
