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

# What our commands write beside tables, where nobody else would; none of it is removed for its name alone
_WORK = "_work"
_RUNS = "runs"
_STORE = "completions"
_SENTINEL = "_sentinel"
_NESTS = (_RUNS, _STORE)
_FILES = re.compile(
    r"_lock.*|manifest\.json(\.tmp)?|meta_evaluation\.(md|svg|png)|human_study\.md|annotation_(key|sheet)\..*"
)
# `_SUCCESS`, `_temporary`, `.part-*.crc`: Spark leaves them beside tables, and a killed one leaves them half done
_SPARKS_OWN = re.compile(r"/[._]")
# Completions of one version, and what runs have noted that they need
_STORE_VERSION = re.compile(r"v\d+|_uses")
_WILDCARD = re.compile(r"[*?\[]")


def check_folders(inputs: Iterable[str | None], output: str, store: str | None = None) -> None:
    """Raises OutputError for an output that another may miss, and for one that lies in an input or holds one.

    An output that is not empty and has no manifest of ours must hold nothing but our tables (and `store`, which may lie
    anywhere): a run removes and replaces folders by their names. It reads names, links and a footer a table, and
    changes nothing. See docs/contract.md, "Runs, outputs, stores".
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
    """Raises OutputError where, links and globs resolved, one of them lies in the other."""
    place = _real(output)
    if any(_is_within(found, place) for found in _places_of(path)):
        raise OutputError(f"{path} is in the output {output}, which a run overwrites. Give another --output")
    holding = any(_is_within(place, found) for found in _places_of(path))
    if holding or _is_matched(place, path):
        raise OutputError(f"{output} is in the input {path} and would be read with it. Give another --output")


def _places_of(path: str) -> Iterator[str]:
    """The real paths of what an input names, and of the links to files in it; links to folders are not followed."""
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
    """A path without links, or a URI without the differences between Spark's schemes and Arrow's."""
    if is_remote(path):
        return StoragePath(path).spark.rstrip("/")
    return os.path.realpath(os.path.expanduser(local_path(path)))


def _is_within(inner: str, outer: str) -> bool:
    """Whether a path is another or lies below it; `data-old` does not lie in `data`."""
    return f"{inner}/".startswith(f"{outer.rstrip('/')}/")


def _is_matched(place: str, path: str) -> bool:
    """Whether a glob stands for the output too, which may not be there yet; its `*` then stops at no slash."""
    wildcard = _WILDCARD.search(path)
    if wildcard is None or (not is_remote(path) and os.path.exists(local_path(path))):
        return False
    head, _, _ = path[: wildcard.start()].rpartition("/")
    rest = path[len(head) :].lstrip("/")
    return fnmatch.fnmatchcase(place, f"{glob.escape(_real(head or os.curdir)).rstrip('/')}/{rest}")


def _find_foreign(output: str, store: str | None) -> str | None:
    """The name of something in the output that is not ours; None in an output, and where there is nothing such."""
    place = StoragePath(output)
    if place.entry().kind == "file":
        return "the content of a file"
    found = sorted(place.entries(), key=lambda entry: entry.name)
    if any(entry.name == NAME and _is_manifest(entry.place) for entry in found):
        return None
    kept = _real(store) if store else None
    return next((entry.name for entry in found if not _is_ours(entry, output, kept)), None)


def _is_manifest(place: StoragePath) -> bool:
    """Whether a file is the manifest of a run; browsers, packages and backups have files of this name as well."""
    with suppress(OSError, ValueError):
        manifest = json.loads(place.read_bytes())
        return isinstance(manifest, dict) and {"format", "status"} <= manifest.keys()
    return False


def _is_ours(entry: FileInfo, output: str, store: str | None) -> bool:
    """Whether something in a folder without a manifest is what our commands write there, by its content and not its
    name.

    `store` is where completions are kept, which may be the folder itself or lie anywhere below it.
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
    """Whether a folder is one of a store: `STORE/v1`, in which completions of one version lie, or its notes."""
    parent, _, name = path.rpartition("/")
    return parent == store and _STORE_VERSION.fullmatch(name) is not None


def _is_damaged(place: StoragePath) -> bool:
    """Whether a file is no JSON, as a manifest is that a full disk cut short."""
    try:
        json.loads(place.read_bytes())
    except ValueError:
        return True
    return False


def _holds_tables(place: StoragePath, name: str) -> bool:
    """Whether a folder holds Parquet alone, with the table's leading column where it has the name of a table.

    What has a leading `_` or `.` is Spark's own.
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


# What of a column this process has in memory at once: rows, and bytes of the file that they are read from
PIECE_ROWS = 8192
PIECE_BYTES = 4 * 2**20
# So few values of a column come with the number of rows, and need no execution of their own
FEW = 1000


class LostRowsError(UserError):
    """Rows that were written and cannot be read back. The message names the table, both counts and the likely cause."""


@dataclass
class Counted:
    """Aggregates of a frame's rows by name, taken while the frame is written, for no job of their own.

    For example, of rows that are to be written anyway:

        counted = Counted({"failed": F.count_if(F.col("error_type").isNotNull())})
        kept = workspace.keep(rows, "results", counted)
        if counted["failed"]:
            ...
    """

    columns: Mapping[str, Column]
    _seen: Observation = field(default_factory=Observation)

    def on(self, frame: DataFrame) -> DataFrame:
        """The frame, counted by the first action on it."""
        return frame.observe(self._seen, *[value.alias(name) for name, value in self.columns.items()])

    def __getitem__(self, name: str) -> Any:
        """A value, once the frame was written; before that it waits for ever. KeyError for a name not counted."""
        return self._seen.get[name]


class _Step(NamedTuple):
    """A step: its frame, how many rows it has, its folder, and the values of columns where they are known."""

    frame: DataFrame
    rows: int
    path: str
    known: Mapping[str, list[Any]]


@dataclass
class Workspace:
    """A folder of steps as Parquet, each named for what it holds. Whoever makes it removes it.

    Steps are numbered in the order of their making, so that a listing of the folder is the course of the run.
    `in_memory`: what is kept stays with Spark instead, for runs on one machine that are so small that writing and
    reading files takes them longer than all else (0.1 s a step and not 0.3; 300 rows).
    """

    spark: SparkSession
    folder: str
    in_memory: bool = False
    _numbers: count[int] = field(default_factory=count)
    _kept: list[_Step] = field(default_factory=list)

    def keep(
        self, frame: DataFrame, name: str = "step", counted: Counted | None = None, column: str | None = None
    ) -> DataFrame:
        """The same rows, computed once and counted on the way, by `counted` too.

        One Spark execution. What is built on the result is planned from there, so that nothing below it runs again.
        `column`: one whose `values` are read next. Raises LostRowsError where fewer rows can be read back than were
        written.
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
        """The number of rows; costs nothing for what `keep` gave."""
        # By identity: frames compare by nothing else
        counted = [one.rows for one in self._kept if one.frame is frame]
        return counted[0] if counted else frame.count()

    def values(self, frame: DataFrame, column: str) -> Iterator[pa.Array]:
        """A column of what `keep` gave, in pieces, read by this process: of files, no execution of Spark's.

        Nulls may be missing.
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
                    # Else all of the column is read ahead, and threads of Arrow's keep what they had of it
                    parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=PIECE_BYTES)
                    for batch in parquet.iter_batches(PIECE_ROWS, columns=[column], use_threads=False):
                        yield batch.column(0)

    def path(self, name: str) -> str:
        """A folder of that name that nothing else is in."""
        return f"{self.folder}/{next(self._numbers):03d}-{name}"

    def within(self, name: str) -> Workspace:
        """A workspace in a folder of its own inside this one."""
        return Workspace(self.spark, self.path(name), self.in_memory)

    def remove(self) -> None:
        """Deletes the files of what was kept; what stays with Spark goes with its frames."""
        StoragePath(self.folder).remove()


def write_parquet(frame: DataFrame, path: str, **options: Any) -> int:
    """Writes a frame as Parquet, over what is there, and gives its number of rows, which are counted on the way.

    Raises LostRowsError where this process finds another number of rows in the files.
    """
    rows = _counted_rows()
    rows.on(frame).write.mode("overwrite").options(**options).parquet(path)
    check_rows(path, rows["rows"])
    return int(rows["rows"])


def _counted_rows() -> Counted:
    return Counted({"rows": F.count(F.lit(1))})


def check_rows(path: str, written: int) -> None:
    """Raises LostRowsError where the Parquet files of a folder do not have this number of rows, by their footers."""
    files = [entry.place for entry in StoragePath(path).entries() if entry.name.endswith(".parquet")]
    found = sum(rows or 0 for rows in count_rows(files))
    if found != written:
        raise LostRowsError(
            f"{path}: Spark wrote {written:,} rows, and {found:,} can be read back. Spark's executors probably write "
            "to another disk than this machine. Set --output, store and work to paths that all machines share"
        )
