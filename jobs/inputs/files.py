"""Find, list and inspect the files of an input. Reads no file to its end, and starts no engine."""

from __future__ import annotations

import fnmatch
import glob
import os
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from untold.jobs.inputs.options import ReadOptions as ReadOptions
from untold.jobs.lakehouse.base import LakehouseError, ListedFile, NoTableError
from untold.jobs.lakehouse.inputs import TableName, read_table, table_named
from untold.udfs.errors import UserError
from untold.udfs.samples.conversion import QUESTION_ID
from untold.udfs.samples.file_records import (
    READ_ERRORS,
    Unit,
    UnreadableFileError,
    column_names,
    csv_header,
    json_kind,
    open_parquet,
    renamed,
)
from untold.udfs.samples.files import (
    COMPRESSIONS,
    UTF_8,
    compression_of,
    encoding_of,
    is_remote,
)
from untold.udfs.samples.values import Shape, merge_columns
from untold.udfs.storage import FOOTERS_AT_ONCE, StoragePath, local_path

# One or two screens. A folder with thousands of broken files usually has one cause
SHOWN_PROBLEMS = 50
JSON_EXTENSIONS = (".jsonl", ".ndjson", ".json")
TAB_EXTENSIONS = tuple(f".tsv{ending}" for ending in ("", *COMPRESSIONS))
TEXT_KINDS = dict.fromkeys(JSON_EXTENSIONS, "json") | {".csv": "csv", ".tsv": "csv"}
KINDS = {".parquet": "parquet"} | {
    extension + ending: kind for extension, kind in TEXT_KINDS.items() for ending in ("", *COMPRESSIONS)
}
KNOWN_EXTENSIONS = f".parquet, {', '.join(TEXT_KINDS)}; all but the first also with {' or '.join(COMPRESSIONS)}"
# Columns in the names of folders, and Hive's name for null
FOLDER_COLUMNS = ("sample_id", "query_id", QUESTION_ID, "query", "system", "label")
EMPTY_PARTITION = "__HIVE_DEFAULT_PARTITION__"
# The approximate compression of text by gzip or zstd
COMPRESSED = 10


class SampleError(UserError):
    """Input that a run cannot use. The message has one line per file with the remedy, and no text of a row."""


class NoInputError(SampleError):
    """An input without a file or without a row."""


AS_THEY_ARE = ReadOptions()


@dataclass(frozen=True)
class InputFile(ListedFile):
    """A file of an input: its kind, its columns with types, and its rows by row group.

    `kind` is parquet, csv, lines or array (both JSON), and empty before `inspect_files`. `types` is by column, with our
    names, of Arrow. A type is None in CSV. The mapping is empty for JSON, where only reading the whole file would find
    the columns.
    """

    kind: str = ""
    types: Mapping[str, pa.DataType | None] = field(default_factory=dict)
    row_groups: tuple[int, ...] = ()
    encoding: str = UTF_8
    delimiter: str = ","

    def unit(self, number: int = 0, start: int = 0, length: int = 0, group: int = 0) -> Unit:
        """Return a part of the file for a task, by default the whole file. `number` is its position in the input."""
        constants = {name: value.as_py() for name, value in self.constants.items()}
        packed = pickle.dumps(constants) if constants else b""
        return Unit(number, self.path, self.kind, start, length, group, self.encoding, self.delimiter, packed)


@dataclass(frozen=True)
class FileFacts:
    """The facts of a completely read file: columns, shapes of other columns, rows, and the error."""

    columns: frozenset[str] = frozenset()
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    rows: int = 0
    problem: str | None = None

    def merge(self, other: FileFacts) -> FileFacts:
        """Merge the facts of two parts of one file. The first error is kept."""
        shapes = merge_columns(self.shapes, other.shapes)
        columns, rows = self.columns | other.columns, self.rows + other.rows
        return FileFacts(columns, shapes, rows, self.problem or other.problem)


def find_files(path: str) -> list[InputFile]:
    """Return the files of a path, glob, URI or table, by path. An existing path is not a glob.

    Raises NoInputError if there are none, and SampleError if they cannot be listed.
    """
    if (table := table_named(path)) is not None:
        return _find_of_table(path, table)
    try:
        found = _find_remote(path) if is_remote(path) else _find_local(local_path(path))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SampleError(f"{path} cannot be listed ({type(error).__name__}). Check its permissions") from error
    if not found:
        raise NoInputError(f"{path} does not exist, or has no files. Check the path")
    return [replace(file, constants=_of_folders(file.path)) for file in sorted(found, key=lambda file: file.path)]


def _of_folders(path: str) -> dict[str, pa.Scalar[Any]]:
    """Return the columns in the folder names of a file, as Hive and Spark write partitions.

    >>> _of_folders("runs/system=gpt-4%2Fmini/n=5/part-0.jsonl")
    {'system': <pyarrow.StringScalar: 'gpt-4/mini'>}
    """
    parts = [part.partition("=") for part in path.split("/")[:-1]]
    found = {name: unquote(value) for name, _, value in parts if name in FOLDER_COLUMNS and value}
    return {name: pa.scalar(value) for name, value in found.items() if value != EMPTY_PARTITION}


def _find_of_table(path: str, table: TableName) -> list[InputFile]:
    try:
        found = read_table(table).files
    except NoTableError as error:
        # A partition may appear later, but a missing table is an error
        raise (SampleError if table.partition else NoInputError)(str(error)) from error
    except LakehouseError as error:
        raise SampleError(str(error)) from error
    if not found:
        raise NoInputError(f"{path} has no rows")
    return sorted((InputFile(**vars(file)) for file in found), key=lambda file: file.path)


def listing_of(files: Sequence[InputFile]) -> dict[str, Any]:
    """Return the number of an input's files, their bytes, and a digest that changes with any file.

    The digest covers names, sizes and times. Inputs with equal digests are assumed to have the same rows.
    """
    known = sorted((os.path.basename(file.path), file.size, file.modified) for file in files)
    digest = blake2b(repr(known).encode(), digest_size=16).hexdigest()
    return {"files": len(files), "bytes": sum(file.size for file in files), "digest": digest}


def data_files(path: str) -> tuple[list[InputFile], list[InputFile]]:
    """Return the files of a path with known extensions, and other files next to them, such as a README.

    If no file has a known extension, all are returned, and `inspect_files` reports their errors. Raises SampleError as
    `find_files`.
    """
    found = find_files(path)
    known = [file for file in found if _kind(file.path)]
    return (known, [file for file in found if not _kind(file.path)]) if known else (found, [])


def _kind(path: str) -> str | None:
    return next((kind for extension, kind in KINDS.items() if path.lower().endswith(extension)), None)


def count_bytes(*paths: str) -> int:
    """Return the bytes of all files of these paths. A compressed file counts as ten times its size.

    A missing path has 0 bytes. The reader reports the error.
    """
    total = 0
    for path in paths:
        with suppress(SampleError):
            total += sum(file.size * (COMPRESSED if is_compressed(file.path) else 1) for file in find_files(path))
    return total


def is_compressed(path: str) -> bool:
    """Return True if the name of a file shows that its content is larger than its size."""
    return compression_of(path) is not None or path.lower().endswith(".parquet")


def _find_local(path: str) -> list[InputFile]:
    """Return the files of a path or glob with their sizes, in no order, without hidden files below a folder."""
    if os.path.exists(path):
        matches = [path]
    else:
        # The folders above the first wildcard exist, and may have brackets in their names
        above = path
        while above and above != os.sep and not os.path.exists(above):
            above = os.path.dirname(above)
        pattern = f"{glob.escape(above)}{path[len(above) :]}"
        matches = [match for match in glob.glob(pattern, recursive=True) if _is_shown(os.path.basename(match))]
    if not matches and os.path.islink(path):
        # A link to a missing file, which `_local_file` reports
        matches = [path]
    paths = {file for match in matches for file in (_walk(match) if os.path.isdir(match) else [match])}
    return list(map(_local_file, paths))


def _local_file(path: str) -> InputFile:
    """Return a file as listed. Raises SampleError for a link to a missing file."""
    if os.path.islink(path) and not os.path.exists(path):
        raise SampleError(f"{path} is a link to a missing file. Remove or fix it")
    found = os.stat(path)
    return InputFile(path, found.st_size, modified=found.st_mtime)


def _walk(folder: str) -> Iterator[str]:
    """Yield the files below a folder, except files and folders that begin with `.` or `_`."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _is_shown(name)]
        yield from (os.path.join(parent, name) for name in names if _is_shown(name))


def _is_shown(name: str) -> bool:
    """Return False for names that Spark's readers hide: `_SUCCESS`, `_temporary`, `.crc` files."""
    return not name.startswith((".", "_"))


def _find_remote(uri: str) -> list[InputFile]:
    """Return the files of a URI or a glob in it, as URIs of the same scheme. An existing path is not a glob."""
    found = StoragePath(uri).entry()
    if found.kind == "file":
        return [InputFile(uri, found.size, modified=found.modified)]
    # The folder above the first wildcard
    base = uri if found.kind == "folder" else re.split(r"[*?\[]", uri, maxsplit=1)[0].rpartition("/")[0]
    return [
        InputFile(str(item.place), item.size, modified=item.modified)
        for item in StoragePath(base).entries(recursive=True)
        if item.kind == "file"
        and all(_is_shown(part) for part in PurePosixPath(str(item.place)).relative_to(base).parts)
        and (base == uri or _matches(str(item.place), uri))
    ]


def _matches(path: str, pattern: str) -> bool:
    """Return True if a path, or a folder above it, matches the pattern. `*` does not match a slash."""
    parts, patterns = path.split("/"), pattern.split("/")
    return len(parts) >= len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def inspect_files(found: Sequence[InputFile], options: ReadOptions = AS_THEY_ARE) -> list[InputFile]:
    """Return the files with their kind and the data of headers and footers, which are read in parallel.

    Raises SampleError with a line per unusable file.
    """
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        inspected = list(pool.map(partial(_try_inspect, options=options), found))
    raise_problems([one for one in inspected if isinstance(one, str)])
    return [one for one in inspected if isinstance(one, InputFile)]


def _try_inspect(file: InputFile, options: ReadOptions) -> InputFile | str:
    """Return the result of `_inspect`, or a line with the error of the file."""
    try:
        return _inspect(file, options)
    except UnreadableFileError as problem:
        return f"{file.path}: {problem}"
    except READ_ERRORS as error:
        return f"{file.path} cannot be read ({type(error).__name__}). Replace the file or check its permissions"


def _inspect(file: InputFile, options: ReadOptions) -> InputFile:
    """Return a file with its kind (by extension, and for JSON by its first bytes) and its header or footer.

    Raises UnreadableFileError for an unknown extension, or content that does not match the extension.
    """
    kind = _kind(file.path)
    if kind is None:
        raise UnreadableFileError(f"unknown extension. Known extensions are {KNOWN_EXTENSIONS}")
    if kind == "parquet":
        return _inspect_parquet(file, options)
    encoding = encoding_of(file.path, options.encoding)
    if kind == "json":
        return replace(file, kind=json_kind(file.path, encoding), encoding=encoding)
    delimiter = options.delimiter or ("\t" if file.path.lower().endswith(TAB_EXTENSIONS) else None)
    header, delimiter = csv_header(file.path, encoding, delimiter)
    names = renamed(dict.fromkeys(header), options.columns)
    return replace(file, kind=kind, types=names, encoding=encoding, delimiter=delimiter)


def _inspect_parquet(file: InputFile, options: ReadOptions) -> InputFile:
    with open_parquet(file.path) as parquet:
        schema = parquet.schema_arrow
        groups = tuple(parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups))
    _check_names(schema, file.names)
    named = [*zip(column_names(schema.names), schema.types, strict=True)]
    named += [(name, value.type) for name, value in file.constants.items()]
    types = renamed(dict(named), options.columns)
    return replace(file, kind="parquet", types=types, row_groups=groups)


def _check_names(schema: pa.Schema, names: Mapping[int, str]) -> None:
    """Raise UnreadableFileError for a file with a column that its table has renamed or dropped."""
    if names:
        from untold.jobs.lakehouse.iceberg import differing_column

        if column := differing_column(schema, names):
            raise UnreadableFileError(f"`{column}` was renamed or dropped in its table; rewrite the table's files")


def raise_problems(problems: Sequence[str]) -> None:
    """Raise SampleError with a line per problem, up to `SHOWN_PROBLEMS`, if there are any."""
    if problems:
        more = [f"and {len(problems) - SHOWN_PROBLEMS} more files"] if len(problems) > SHOWN_PROBLEMS else []
        raise SampleError("\n".join([*problems[:SHOWN_PROBLEMS], *more]))
