"""Report errors in the files of an input before the first request, mostly from headers, footers and first rows.

`check_input` reports them before Spark starts. `check_columns` reports the same errors after all files were read.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import PurePath
from typing import Any

from untold.jobs.inputs.files import (
    FileFacts,
    InputFile,
    NoInputError,
    ReadOptions,
    SampleError,
    data_files,
    inspect_files,
    raise_problems,
)
from untold.udfs.errors import aside, near_misses
from untold.udfs.samples.adapters import FORMATS, Adapter, needed
from untold.udfs.samples.batches import UnitProgress, columns_of, expanded, given, reader_of
from untold.udfs.samples.conversion import EITHER, KNOWN, OPTIONAL, OTHER_NAMES, QUESTION_ID, REQUIRED
from untold.udfs.samples.file_records import (
    MAX_COLUMNS,
    READ_ERRORS,
    WIDTH_ADVICE,
    FileRecord,
    Unit,
    UnreadableFileError,
    describe_break,
)
from untold.udfs.samples.files import encoding_of
from untold.udfs.samples.tool_files import BAR, DEEPEVAL, Names

# The first files of an input with thousands of files show most of its errors
CHECKED_FILES = 20
# The maximum rows of each file, and for JSON Lines the bytes in which they begin
HEAD_ROWS = 1000
HEAD_BYTES = 1 << 20
# Keeps the message about a file with thousands of columns short
SHOWN_COLUMNS = 20
SHOWN_LEFT_OUT = 5
# The key of RAGChecker's results, and the columns that identify a file of TREC RAG
RESULTS = "results"
TREC_RAG = {"topic", "references"}
BY_COLUMNS = (
    "its only object has columns instead of rows. Write one row per line with "
    "pandas.DataFrame(json.load(open(FILE))).to_json(NEW, orient='records', lines=True)"
)
NO_CONTEXTS = {"contexts", EITHER}


def adapter_of(name: str | None) -> Adapter | None:
    """Return the adapter of a format, None for reading by extension. Raises SampleError for an unknown name."""
    if name is None:
        return None
    if name not in FORMATS:
        raise SampleError(
            f"unknown format `{name}`{aside(near_misses(name, FORMATS))}. Formats are {', '.join(sorted(FORMATS))}, "
            "or none to use the extension of the file"
        )
    return FORMATS[name]


def known_columns(adapter: Adapter | None = None) -> tuple[str, ...]:
    """Return the columns that `ReadOptions.columns` may rename: those of samples or of an adapter."""
    if adapter is None or adapter.required is None:
        return (*KNOWN, *OPTIONAL, QUESTION_ID)
    return (*adapter.required, *adapter.optional)


def check_names(columns: Mapping[str, str], adapter: Adapter | None = None) -> None:
    """Raise SampleError for a column of `ReadOptions.columns` that is not read."""
    known = known_columns(adapter)
    for name in columns:
        if name not in known:
            there = f". Columns are {', '.join(known)}" if known else ". This format has fixed column names"
            raise SampleError(f"columns: no column `{name}` is read{aside(near_misses(name, known))}{there}")


def input_files(
    path: str, adapter: Adapter | None, options: ReadOptions, most: int | None = None
) -> tuple[list[InputFile], tuple[str, ...]]:
    """Return the first `most` files of a path, inspected, and the names of the skipped files with other extensions.

    For an adapter with its own reader, only its files count. Raises SampleError if there are none, or some are
    unreadable.
    """
    files, others = listed_files(path, adapter)
    if adapter is None or adapter.read is None:
        return inspect_files(files[:most], options), tuple(PurePath(file.path).name for file in others)
    delimiter = options.delimiter or ""
    return [
        replace(file, encoding=encoding_of(file.path, options.encoding), delimiter=delimiter) for file in files[:most]
    ], ()


def listed_files(path: str, adapter: Adapter | None) -> tuple[list[InputFile], list[InputFile]]:
    """Return the files of a path from a listing, and the skipped files with other extensions.

    Raises as `input_files`, and NoInputError if there are none.
    """
    found, others = data_files(path)
    if adapter is None or adapter.read is None:
        return found, others
    files = [file for file in (*found, *others) if fnmatch.fnmatchcase(file.path, adapter.files)]
    if not files:
        raise NoInputError(f"{path} has no file that matches {adapter.files}. Give the folder of the data set")
    return files, []


def describe_left_out(names: Sequence[str]) -> str:
    """Return the message about skipped files in a folder.

    >>> describe_left_out(["README.md"])
    'skipped, because their extensions are unknown: README.md'
    """
    more = f" and {len(names) - SHOWN_LEFT_OUT} more" if len(names) > SHOWN_LEFT_OUT else ""
    return f"skipped, because their extensions are unknown: {', '.join(names[:SHOWN_LEFT_OUT])}{more}"


def check_input(
    path: str,
    options: ReadOptions,
    required: Sequence[str],
    adapter: Adapter | None = None,
    names: Names | None = None,
) -> None:
    """Raise SampleError for errors at the beginning of the first files. No engine is needed.

    `required`: the required columns without an adapter. `names`: other names of these columns.
    """
    files, _ = input_files(path, adapter, options, CHECKED_FILES)
    heads = {number: _head(file, adapter, options.columns) for number, file in enumerate(files)}
    heads = with_names(heads, files, names or {})
    check_columns(path, files, heads, needed(adapter, required), options.columns)
    if len(files) < CHECKED_FILES and not any(head.rows for head in heads.values()):
        raise NoInputError(f"{path} has no samples. Give a file with at least one row")


def with_names(facts: Mapping[int, FileFacts], files: Sequence[InputFile], names: Names) -> dict[int, FileFacts]:
    """Return the facts of files, and add our names for columns with other names."""
    found = {number: facts.get(number, FileFacts()) for number in range(len(files))}
    return {
        number: replace(one, columns=one.columns | given(names, one.columns.union(files[number].types)))
        for number, one in found.items()
    }


def _head(file: InputFile, adapter: Adapter | None, columns: Mapping[str, str]) -> FileFacts:
    """Return the facts from the first rows of a file, or from the footer of Parquet.

    An adapter may add columns, so its rows are read for Parquet too.
    """
    ours = adapter is not None and adapter.required is None
    if file.kind == "parquet" and not ours:
        return FileFacts(frozenset(file.types), rows=sum(file.row_groups))
    found, tally, unit = set[str]() if ours else set(file.types), UnitProgress(), head_unit(file)
    first: FileRecord | None = None
    try:
        for record in islice(tally.rows(unit, reader_of(unit, adapter), columns), HEAD_ROWS):
            found |= columns_of(adapter, record, expanded(adapter, record, tally.rows_read - 1) if ours else ())
            first = first or record
            if file.kind == "csv" and columns.get("contexts") in DEEPEVAL["contexts"] and _is_joined(record, adapter):
                return FileFacts(problem="its contexts are separated by bars. Use --format deepeval")
    except (UnreadableFileError, *READ_ERRORS) as error:
        return FileFacts(problem=describe_break(error))
    layout = _layout_of(first.values) if first and adapter is None and tally.rows_read == 1 else None
    return FileFacts(frozenset(found), rows=tally.rows_read, problem=layout)


def _is_joined(record: FileRecord, adapter: Adapter | None) -> bool:
    """Return True if the contexts of a row are several texts of DeepEval in one cell."""
    contexts = record.values.get("contexts")
    return adapter is None and isinstance(contexts, str) and BAR in contexts and not contexts.startswith("[")


def _layout_of(values: Mapping[str, Any]) -> str | None:
    """Return a line on the only object of a file if it holds all rows: by columns, or in one list."""
    there = [value for value in values.values() if value is not None]
    # Messages are lists of objects, and not columns
    lists = [len(one) for one in there if isinstance(one, list) and not any(isinstance(item, dict) for item in one)]
    objects = [tuple(one) for one in there if isinstance(one, dict)]
    if len(there) > 1 and any(len(one) == len(there) and len(set(one)) == 1 for one in (lists, objects)):
        return BY_COLUMNS
    of_rows = [name for name, value in values.items() if isinstance(value, list) and _are_rows(value)]
    if "query" in values or len(of_rows) != 1 or of_rows == [RESULTS]:
        return None
    return f"its rows are in the list `{of_rows[0]}`. Write one per line: jq -c '.{of_rows[0]}[]' FILE > NEW.jsonl"


def _are_rows(value: Sequence[Any]) -> bool:
    """Return True for a list of objects that have columns of samples."""
    names = {*REQUIRED, *(other for several in OTHER_NAMES.values() for other in several)}
    return bool(value) and all(isinstance(one, dict) and names.intersection(one) for one in value)


def head_unit(file: InputFile, number: int = 0) -> Unit:
    """Return the beginning of a file: a MiB of JSON Lines, a row group of Parquet, otherwise the whole file, lazily."""
    return file.unit(number, length=HEAD_BYTES if file.kind == "lines" else 0)


def check_columns(
    path: str,
    files: Sequence[InputFile],
    facts: Mapping[int, FileFacts],
    required: Sequence[str],
    renaming: Mapping[str, str],
) -> None:
    """Raise SampleError with a line per broken file or file with missing columns, and for too many columns.

    `renaming` maps our names of columns to the names in the files.
    """
    problems = []
    union: set[str] = set()
    for number, file in enumerate(files):
        found = facts.get(number, FileFacts())
        columns = set(found.columns).union(file.types)
        union |= columns
        needed = dict.fromkeys((*required, *renaming))
        missing = [name for name in needed if not columns.intersection(name.split(" or "))]
        if found.problem:
            problems.append(f"{file.path}: {found.problem}")
        elif missing and (file.types or found.rows):
            problems.append(f"{file.path}: {_describe_missing(missing, columns, renaming)}")
    raise_problems(problems)
    if len(union) > MAX_COLUMNS:
        raise SampleError(f"{path} has {len(union):,} columns over all files, at most {MAX_COLUMNS:,}; {WIDTH_ADVICE}")


def _describe_missing(missing: Sequence[str], columns: set[str], renaming: Mapping[str, str]) -> str:
    if not columns:
        return (
            "none of its rows is a JSON object. Give JSON Lines, a JSON array, CSV or Parquet (--format ragchecker "
            "reads one object with `results`, and `untold inspect` shows the format of a file)"
        )
    theirs = {renaming.get(name, name) for name in columns}
    parts = [_describe_one(name, theirs, renaming) for name in missing]
    shown = ", ".join(f"`{name}`" for name in sorted(theirs)[:SHOWN_COLUMNS])
    more = f" and {len(theirs) - SHOWN_COLUMNS} more" if len(theirs) > SHOWN_COLUMNS else ""
    return f"{', and '.join(parts)}. It has {shown}{more}; {_advice(missing, theirs, renaming)}"


def _describe_one(name: str, theirs: set[str], renaming: Mapping[str, str]) -> str:
    if name not in renaming:
        return f"no column `{name}`{aside(_candidates(name, theirs)[:3])}"
    other = renaming[name]
    return f"no column `{other}`{aside(near_misses(other, sorted(theirs)))}, which --columns takes for `{name}`"


def _candidates(name: str, columns: set[str]) -> list[str]:
    """Return the columns of a file that could be the missing one, the most probable first."""
    known = sorted(columns - set(REQUIRED))
    names = [*name.split(" or "), *(other for one in name.split(" or ") for other in OTHER_NAMES.get(one, ()))]
    same = [column for other in names for column in known if column.lower() == other]
    near = [match for other in names for match in near_misses(other, known, most=2, cutoff=0.7)]
    return list(dict.fromkeys([*same, *near]))


def probable_columns(missing: Sequence[str], theirs: set[str], renaming: Mapping[str, str]) -> dict[str, str] | None:
    """Return the file's names by our names, including missing columns, or None if one has no probable name."""
    found = {name.split(" or ")[0]: next(iter(_candidates(name, theirs)), None) for name in missing}
    if theirs >= TREC_RAG and "contexts" in found:
        found["contexts"] = "references"
    if None in found.values() or len(set(found.values())) < len(found):
        return None
    # Additional columns of samples. Queries and documents do not have them
    for name in ("references", "query_id") if {"response", "contexts"} & set(found) else ():
        taken = {*found.values(), *OPTIONAL}
        same = [other for other in OTHER_NAMES[name] if other in theirs - taken and name not in theirs]
        found |= {name: same[0]} if same and name not in found else {}
    return {**renaming, **{name: other for name, other in found.items() if other is not None}}


def _advice(missing: Sequence[str], theirs: set[str], renaming: Mapping[str, str]) -> str:
    """Return the remedy for missing columns, with the options that would read the file, if any."""
    if any(name in renaming for name in missing):
        return "correct --columns"
    if FORMATS["deepeval"].knows(theirs):
        return "give --format deepeval, or rename them"
    if RESULTS in theirs:
        return f"--format ragchecker reads one object with `{RESULTS}`"
    columns = probable_columns(missing, theirs, renaming)
    if columns is None:
        without = (
            ", or choose a metric that reads no contexts, such as longrecall" if set(missing) <= NO_CONTEXTS else ""
        )
        return f"rename or add columns{without}"
    pairs = ",".join(f"{name}={other}" for name, other in columns.items())
    texts = " (where `references` are texts and no ids)" if columns.get("contexts") == "references" else ""
    return f"give --columns {pairs}{texts}, or rename them"
