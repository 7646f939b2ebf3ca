"""The folders that a run may write to, and the workspace that keeps the results of its steps."""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from untold.jobs.run.manifest import NAME, OutputError
from untold.jobs.run.session import read_parquet
from untold.jobs.tables import TABLES
from untold.udfs.errors import UserError
from untold.udfs.llm.store_files import count_rows
from untold.udfs.samples.files import is_remote
from untold.udfs.storage import FileInfo, StoragePath, local_path

# The folders of Untold next to tables. They are never removed only because of their names
_WORK = "_work"
_RUNS = "runs"
_STORE = "completions"
_SENTINEL = "_sentinel"
_NESTS = (_RUNS, _STORE)
_FILES = re.compile(
    r"_lock.*|manifest\.json(\.tmp)?|meta_evaluation\.(md|svg|png)|human_study\.md|annotation_(key|sheet)\..*"
)
# Spark writes `_SUCCESS`, `_temporary` and `.part-*.crc` next to tables. A killed Spark leaves incomplete ones
_SPARKS_OWN = re.compile(r"/[._]")
# The folders of a store: completions of a version, and the references of runs
_STORE_VERSION = re.compile(r"v\d+|_uses")
_WILDCARD = re.compile(r"[*?\[]")


def check_folders(inputs: Iterable[str | None], output: str, store: str | None = None) -> None:
    """Raise OutputError for an output with foreign files, and for one that is inside of or around an input.

    A run removes and replaces folders by their names. An output that is not empty and has no manifest must therefore
    contain only tables of Untold, and `store`, which can be anywhere. This reads names, links and one footer per table,
    and changes nothing. See docs/contract.md, "Runs, outputs, stores".
    """
    for path in inputs:
        if path is not None:
            _check_apart(path, output)
    foreign = _find_foreign(output, store)
    if foreign is not None:
        raise OutputError(
            f"{output} holds {foreign} and no manifest of a run, so it is not an output of untold and is never "
            "overwritten; give another --output, or an empty folder"
        )


def _check_apart(path: str, output: str) -> None:
    """Raise OutputError if one of both is inside of the other, after links and globs are resolved."""
    place = _real(output)
    if any(_is_within(found, place) for found in _places_of(path)):
        raise OutputError(f"{path} is in the output {output}, which a run overwrites. Give another --output")
    holding = any(_is_within(place, found) for found in _places_of(path))
    if holding or _is_matched(place, path):
        raise OutputError(f"{output} is in the input {path} and would be read with it. Give another --output")


def _places_of(path: str) -> Iterator[str]:
    """Yield the real paths of an input and of links to files in it. Links to folders are not followed."""
    yield _real(path)
    if is_remote(path):
        return
    local = local_path(path)
    for match in [local] if os.path.exists(local) else glob.iglob(local, recursive=True):
        yield os.path.realpath(match)
        for parent, _, names in os.walk(match):
            links = (os.path.join(parent, name) for name in names)
            yield from (os.path.realpath(link) for link in links if os.path.islink(link))


def _real(path: str) -> str:
    """Return a path without links, or a URI with the scheme of Spark."""
    if is_remote(path):
        return StoragePath(path).spark.rstrip("/")
    return os.path.realpath(os.path.expanduser(local_path(path)))


def _is_within(inner: str, outer: str) -> bool:
    """Return True if a path is equal to another or below it. `data-old` is not in `data`."""
    return f"{inner}/".startswith(f"{outer.rstrip('/')}/")


def _is_matched(place: str, path: str) -> bool:
    """Return True if a glob also matches the output, which may not exist yet. Its `*` then matches slashes too."""
    wildcard = _WILDCARD.search(path)
    if wildcard is None or (not is_remote(path) and os.path.exists(local_path(path))):
        return False
    head, _, _ = path[: wildcard.start()].rpartition("/")
    rest = path[len(head) :].lstrip("/")
    return fnmatch.fnmatchcase(place, f"{glob.escape(_real(head or os.curdir)).rstrip('/')}/{rest}")


def _find_foreign(output: str, store: str | None) -> str | None:
    """Return the name of a foreign file in a folder, None for an output of Untold and without foreign files."""
    place = StoragePath(output)
    if place.entry().kind == "file":
        return "the content of a file"
    found = sorted(place.entries(), key=lambda entry: entry.name)
    if any(entry.name == NAME and _is_manifest(entry.place) for entry in found):
        return None
    kept = _real(store) if store else None
    return next((entry.name for entry in found if not _is_ours(entry, output, kept)), None)


def _is_manifest(place: StoragePath) -> bool:
    """Return True if a file is the manifest of a run. Browsers, packages and backups use the same name."""
    with suppress(OSError, ValueError):
        manifest = json.loads(place.read_bytes())
        return isinstance(manifest, dict) and {"format", "status"} <= manifest.keys()
    return False


def _is_ours(entry: FileInfo, output: str, store: str | None) -> bool:
    """Return True if Untold wrote an entry of a folder without a manifest, by its content and not by its name.

    `store` is the folder of completions, which can be the folder itself or any folder in it.
    """
    name = entry.name
    if entry.kind == "file":
        return bool(_FILES.fullmatch(name)) and (name != NAME or _is_damaged(entry.place))
    place = f"{_real(output)}/{name}"
    if store is not None and (_is_within(store, place) or _is_version(place, store)):
        return True
    below = [str(each.place) for each in entry.place.entries()] if name in _NESTS else []
    if name == _STORE:
        return all(_is_version(each, str(entry.place)) for each in below)
    if name == _SENTINEL:
        return _find_foreign(place, None) is None
    if name == _RUNS:
        return all(_find_foreign(each, None) is None for each in below)
    return (name in TABLES or name == _WORK) and _holds_tables(entry.place, name)


def _is_version(path: str, store: str) -> bool:
    """Return True if a folder belongs to a store: `STORE/v1` with completions of one version, or its references."""
    parent, _, name = path.rpartition("/")
    return parent == store and _STORE_VERSION.fullmatch(name) is not None


def _is_damaged(place: StoragePath) -> bool:
    """Return True if a file is not JSON, such as a manifest that a full disk cut off."""
    try:
        json.loads(place.read_bytes())
    except ValueError:
        return True
    return False


def _holds_tables(place: StoragePath, name: str) -> bool:
    """Return True if a folder contains only Parquet, with the first column of the table if it has the name of a table.

    Names with a leading `_` or `.` belong to Spark.
    """
    files = [entry.place for entry in place.entries(recursive=True) if entry.kind == "file"]
    files = [file for file in files if not _SPARKS_OWN.search(file.uri.removeprefix(place.uri))]
    if not all(file.name.endswith(".parquet") for file in files):
        return False
    if not files or name == _WORK:
        return True
    try:
        with files[0].open() as file:
            columns = pq.read_schema(file).names
    except (OSError, pa.ArrowException):
        return False
    return TABLES[name].names[0] in columns


# The parts of a column in the memory of this process: rows, and bytes of the file
PIECE_ROWS = 8192
PIECE_BYTES = 4 * 2**20
# This number of values of a column is read together with the number of rows, without another execution
FEW = 1000


class LostRowsError(UserError):
    """Written rows that cannot be read. The message names the table, both counts and the likely cause."""


@dataclass
class Counted:
    """Aggregates of the rows of a frame by name, computed while the frame is written, without a job of their own.

    For example:

        counted = Counted({"failed": F.count_if(F.col("error_type").isNotNull())})
        kept = workspace.keep(rows, "results", counted)
        if counted["failed"]:
            ...
    """

    columns: Mapping[str, Column]
    _seen: Observation = field(default_factory=Observation)

    def on(self, frame: DataFrame) -> DataFrame:
        """Return the frame. The first action on it computes the aggregates."""
        return frame.observe(self._seen, *[value.alias(name) for name, value in self.columns.items()])

    def __getitem__(self, name: str) -> Any:
        """Return a value after the write of the frame. Before that, this waits forever. KeyError for unknown names."""
        return self._seen.get[name]


class _Step(NamedTuple):
    """A step: its frame, its number of rows, its folder, and the known values of columns."""

    frame: DataFrame
    rows: int
    path: str
    known: Mapping[str, list[Any]]


@dataclass
class Workspace:
    """A folder of steps as Parquet, with their names. Its creator removes it.

    Steps are numbered in their order, so that a listing of the folder shows the course of the run. With `in_memory`,
    Spark keeps them in memory, for small runs on one machine (0.1 s in place of 0.3 s per step of 300 rows).
    """

    spark: SparkSession
    folder: str
    in_memory: bool = False
    _numbers: count[int] = field(default_factory=count)
    _kept: list[_Step] = field(default_factory=list)

    def keep(
        self, frame: DataFrame, name: str = "step", counted: Counted | None = None, column: str | None = None
    ) -> DataFrame:
        """Return the same rows, computed and counted once, with one execution of Spark.

        Later plans begin at the result. `counted` computes aggregates on the way, and `values` of `column` are read
        next. Raises LostRowsError if fewer rows can be read than were written.
        """
        path, watched = self.path(name), frame if counted is None else counted.on(frame)
        known = {}
        if self.in_memory:
            counts = _counted_rows().columns
            listed = {} if column is None else {column: F.when(counts["rows"] <= FEW, F.collect_list(column))}
            seen = Counted({**counts, **listed})
            kept = seen.on(watched).localCheckpoint()
            rows = int(seen["rows"])
            known = {name: seen[name] for name in listed if rows <= FEW}
        else:
            rows = write_parquet(watched, path)
            kept = read_parquet(self.spark, path, schema=frame.schema)
        self._kept.append(_Step(kept, rows, path, known))
        return kept

    def count(self, frame: DataFrame) -> int:
        """Return the number of rows, without a job for a result of `keep`."""
        # By identity, because frames have no other comparison
        counted = [one.rows for one in self._kept if one.frame is frame]
        return counted[0] if counted else frame.count()

    def values(self, frame: DataFrame, column: str) -> Iterator[pa.Array]:
        """Yield a column of a result of `keep` in pieces. This process reads files without an execution of Spark.

        Nulls can be missing.
        """
        (kept,) = [one for one in self._kept if one.frame is frame]
        if column in kept.known:
            yield from [pa.array(kept.known[column])] if kept.known[column] else []
            return
        if self.in_memory:
            yield from frame.select(column).toArrow().column(0).chunks
            return
        for entry in StoragePath(kept.path).entries():
            if entry.name.endswith(".parquet"):
                with entry.place.open() as file:
                    # Otherwise Arrow reads the whole column ahead, and its threads keep parts of it
                    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=PIECE_BYTES)
                    for batch in parquet.iter_batches(PIECE_ROWS, columns=[column], use_threads=False):
                        yield batch.column(0)

    def path(self, name: str) -> str:
        """Return a new folder with this name."""
        return f"{self.folder}/{next(self._numbers):03d}-{name}"

    def within(self, name: str) -> Workspace:
        """Return a workspace in a new folder in this one."""
        return Workspace(self.spark, self.path(name), self.in_memory)

    def remove(self) -> None:
        """Remove the files of the steps. Spark removes its data in memory with the frames."""
        StoragePath(self.folder).remove()


def write_parquet(frame: DataFrame, path: str, **options: Any) -> int:
    """Write a frame as Parquet in place of an existing one, and return its number of rows.

    Raises LostRowsError if this process finds another number of rows in the files.
    """
    rows = _counted_rows()
    rows.on(frame).write.mode("overwrite").options(**options).parquet(path)
    check_rows(path, rows["rows"])
    return int(rows["rows"])


def _counted_rows() -> Counted:
    return Counted({"rows": F.count(F.lit(1))})


def check_rows(path: str, written: int) -> None:
    """Raise LostRowsError if the footers of the Parquet files of a folder have another number of rows."""
    files = [entry.place for entry in StoragePath(path).entries() if entry.name.endswith(".parquet")]
    found = sum(rows or 0 for rows in count_rows(files))
    if found != written:
        raise LostRowsError(
            f"{path}: Spark wrote {written:,} rows, and {found:,} can be read back. Spark's executors probably write "
            "to another disk than this machine. Set --output, store and work to paths that all machines share"
        )
