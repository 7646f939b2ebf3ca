"""List, check, merge and prune the files of a stage's folder. Imports no pyspark.

A merged file names its sources in its footer. It is written whole, and then its sources are deleted. A source that a
killed merge left is not live, so no row counts twice. Runs record the completions that they reference, and a prune
removes the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import PurePosixPath
from time import time
from typing import Annotated, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, StringConstraints, ValidationError

from untold.jobs.run.locks import NAME, lock_folder
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.retrying import is_passing
from untold.udfs.llm.store_files import FooterFacts, Merge, Unneeded, count_kept, is_damaged, merge_files, read_footers
from untold.udfs.llm.units import RequestIds, list_units, read_request_ids
from untold.udfs.storage import FileInfo, StoragePath

# The folder of a store that has the folders of its stages
VERSION = "v1"
MERGED = "merged-"
DAMAGED = "damaged"
# Another run may remove files between a listing and the reading of their footers, in each compaction
LISTINGS = 5
# The number of objects in one page of a listing
LIST_PAGE = 1000


@dataclass(frozen=True)
class Whole:
    """The live files of a folder with a good footer: names, paths for Spark, sizes in bytes, and all their rows.

    `dead` has the files whose rows a merged file has. `damaged` has the files with a bad footer.
    """

    names: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    rows: int = 0
    damaged: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


def list_segments(folder: str) -> dict[str, FileInfo]:
    """Return the files of completions in a folder by name, live and dead. A missing folder has none."""
    return _segments(StoragePath(folder).entries())


def _segments(found: Iterable[FileInfo]) -> dict[str, FileInfo]:
    return {entry.name: entry for entry in found if entry.kind == "file" and is_segment(entry.name)}


def live_names(folder: str) -> tuple[str, ...]:
    """Return the names of the live files with a good footer. This moves no file."""
    return find_whole(folder, move=False).names


def read_completions(folder: StoragePath, columns: Sequence[str], where: pc.Expression) -> pa.Table:
    """Return columns of the rows of the live files under a filter. They are read again if another run merges them."""
    # Actors import this module, and do not read stores
    import pyarrow.dataset as ds

    def read() -> pa.Table:
        files = [(folder / name).arrow for name in live_names(str(folder))]
        rows = ds.dataset([path for _, path in files], COMPLETIONS, "parquet", files[0][0] if files else None)
        return rows.to_table(columns=list(columns), filter=where)

    for _ in range(LISTINGS - 1):
        with suppress(FileNotFoundError):
            return read()
    return read()


def find_whole(folder: str, *, move: bool) -> Whole:
    """Return the live files of a folder. With `move`, damaged files move to its folder `damaged/`.

    A file that vanishes after the listing was merged by another run, so the folder is listed again. Raises OSError for
    an unreadable file, which says nothing about its content.
    """
    damaged: dict[str, None] = {}
    place, vanished = StoragePath(folder), 0
    # A source is live again if its merged file is damaged, so the loop ends when all live files are whole
    while True:
        found = place.entries()
        files = {name: file for name, file in _segments(found).items() if name not in damaged}
        try:
            footers = dict(zip(files, read_footers(file.place for file in files.values()), strict=True))
            old = _read_snapshot(folder, found)
            if not (place.has_conditions and len(found) < LIST_PAGE):
                _check_unmerged(folder, files, damaged)
        except FileNotFoundError:
            vanished += 1
            if vanished == LISTINGS:
                raise
            continue
        broken = [name for name, footer in footers.items() if footer is None]
        if not broken:
            dead = _dead_names(footers, old)
            live = sorted(set(files) - dead)
            return Whole(
                tuple(live),
                tuple(files[name].place.spark for name in live),
                sum(footer.rows for name, footer in footers.items() if footer and name not in dead),
                tuple(damaged),
                tuple(sorted(dead)),
                {name: files[name].size for name in live},
            )
        damaged.update(dict.fromkeys(set_aside(folder, broken) if move else broken))


def _check_unmerged(folder: str, files: Collection[str], damaged: Collection[str]) -> None:
    """Raise FileNotFoundError if files were merged since the listing.

    A listing during a merge can miss both the sources, which are gone, and the merged file, which is new. Only a
    listing of an object store in one page has the files of one moment.
    """
    current = list_segments(folder)
    merged = any(name.startswith(MERGED) for name in set(current) - {*files, *damaged})
    if merged or any(name not in current for name in files):
        raise FileNotFoundError(f"files of {folder} are merged continuously. End all runs on this store except one")


def _dead_names(footers: Mapping[str, FooterFacts | None], old: Snapshot) -> set[str]:
    """Return the files whose rows are in merged files, and the merged files that an old snapshot does not name."""
    dead = {source for footer in footers.values() if footer for source in footer.sources}
    dead |= {file.name for file in old.replaced if set(file.into) <= set(footers)}
    if old.numbers:
        named = {*(file.name for file in old.files), *(file.name for file in old.replaced)}
        dead |= {name for name in footers if name.startswith(OLD_MERGED) and name not in named}
    return dead & set(footers)


def find_damaged(folder: str, names: Iterable[str]) -> list[str]:
    """Return the files that cannot be decoded although their bytes are readable. This reads all of each file."""
    found = []
    for name in names:
        with suppress(FileNotFoundError):
            if is_damaged(StoragePath(folder) / name):
                found.append(name)
    return found


def set_aside(folder: str, names: Iterable[str]) -> list[str]:
    """Move files of a folder to its folder `damaged/`. Return those that no other run has moved."""
    place, moved = StoragePath(folder), list[str]()
    for name in names:
        if not moved:
            (place / DAMAGED).make_folder()
        with suppress(FileNotFoundError):
            (place / name).move(place / DAMAGED / name)
            moved.append(name)
    return moved


def is_segment(name: str) -> bool:
    """Return True if a name is one of a file of completions."""
    return name.endswith(".parquet") and name[0] not in "._"


# Earlier versions listed live and replaced files in snapshots, and kept replaced files for a week
SNAPSHOT = "_snapshot-"
OLD_MERGED = "base-"
# A name of a file of the folder itself, that is not hidden
BareName = Annotated[str, StringConstraints(pattern=r"^[^._/\\\x00][^/\\\x00]*\.parquet$")]


class NamedFile(BaseModel, frozen=True):
    """A file that a snapshot names. A replaced file has its rows in the files `into`."""

    name: BareName
    into: tuple[BareName, ...] = ()


class Snapshot(BaseModel, frozen=True):
    """The snapshot of an earlier version, and the numbers of all snapshots of the folder."""

    files: tuple[NamedFile, ...] = ()
    replaced: tuple[NamedFile, ...] = ()
    numbers: tuple[str, ...] = ()


def _read_snapshot(folder: str, found: Iterable[FileInfo]) -> Snapshot:
    """Return the newest snapshot of a folder. An invalid one says nothing, so every file is live."""
    names = sorted(entry.name for entry in found if _is_snapshot(entry.name))
    if not names:
        return Snapshot()
    try:
        newest = Snapshot.model_validate_json((StoragePath(folder) / names[-1]).read_bytes())
    except ValidationError:
        return Snapshot()
    return newest.model_copy(update={"numbers": tuple(names)})


def _is_snapshot(name: str) -> bool:
    stem = PurePosixPath(name).stem.removeprefix(SNAPSHOT)
    return stem.isdecimal() and stem.isascii() and name == f"{SNAPSHOT}{int(stem):08d}.json"


# A file costs a scan about a millisecond (20,000: 25 s), so a few files are not rewritten
COMPACT_FROM_FILES = 8
# Few files for a scan (20,000 small ones: 25 s; one: 1.4 s), small enough for Spark to read them in parallel
FILE_BYTES = 128 * 2**20
# Only files below half of that are merged again. Merging all files would rewrite 365 nights in the 365th
SMALL = 0.5
# The footer of a merged file has the names of its sources
MOST_SOURCES = 1000
# A file that is still written is younger
LEFTOVER_SECONDS = 3600


def run_merges(merges: Sequence[Merge]) -> None:
    """Run merges in this process, one after the other."""
    for merge in merges:
        merge_files(merge)


def compact_folder(
    folder: str, run: Callable[[Sequence[Merge]], None] = run_merges, *, file_bytes: int = FILE_BYTES
) -> None:
    """Merge the small files of a stage's folder, and remove what killed writers and merges left.

    `run` runs the merges, possibly on other machines. The caller holds the lock of the folder, so nobody else merges.
    Raises OSError or ValueError for a damaged file. No row is lost then.
    """
    found = StoragePath(folder).entries()
    for entry in _leftovers(found, time()):
        entry.place.remove()
    if not _has_many_small(found, file_bytes) and not any(_is_snapshot(entry.name) for entry in found):
        return
    whole = find_whole(folder, move=False)
    remove_dead(folder, whole)
    small = [name for name in whole.names if whole.sizes[name] < SMALL * file_bytes]
    if len(small) >= COMPACT_FROM_FILES:
        replace_files(folder, plan_merges(folder, whole, small, file_bytes), run)


def remove_dead(folder: str, whole: Whole) -> None:
    """Remove the files whose rows merged files have, then the snapshots of an earlier version."""
    place = StoragePath(folder)
    for name in whole.dead:
        (place / name).remove()
    for entry in place.entries():
        if _is_snapshot(entry.name):
            entry.place.remove()


def replace_files(folder: str, merges: Sequence[Merge], run: Callable[[Sequence[Merge]], None] = run_merges) -> None:
    """Write the merged files, read their footers, and then delete their sources."""
    run(merges)
    place = StoragePath(folder)
    for merge, footer in zip(merges, read_footers(place / merge.target for merge in merges), strict=True):
        if footer is None or footer.sources != merge.names:
            raise ValueError(f"{merge.target} of {folder} cannot be read back; no source was removed")
        for name in merge.names:
            (place / name).remove()


def is_due(folder: str) -> bool:
    """Return True if a killed run left many small files, or parts of files. This reads no file."""
    found = StoragePath(folder).entries()
    return _has_many_small(found, FILE_BYTES) or any(True for _ in _leftovers(found, time()))


def _has_many_small(found: Iterable[FileInfo], file_bytes: int) -> bool:
    """Return True for enough small files, live or dead, for a merge."""
    return sum(file.size < SMALL * file_bytes for file in _segments(found).values()) >= COMPACT_FROM_FILES


def plan_merges(folder: str, whole: Whole, names: Iterable[str], file_bytes: int, *, least: int = 2) -> list[Merge]:
    """Return merges of at most `file_bytes`, in the order of names. Fewer than `least` files are not merged.

    The name of a merged file depends on the names of its sources only, so a repeated merge replaces the same file. A
    file that is larger than `file_bytes` is a group of its own.
    """
    groups: list[list[str]] = []
    room = 0
    for name in names:
        size = whole.sizes[name]
        if size > room or len(groups[-1]) == MOST_SOURCES:
            groups.append([])
            room = file_bytes
        groups[-1].append(name)
        room -= size
    return [
        Merge(
            folder,
            tuple(group),
            f"{MERGED}{blake2b(chr(0).join(group).encode(), digest_size=16).hexdigest()}.parquet",
            COMPLETIONS,
            size=sum(whole.sizes[name] for name in group),
        )
        for group in groups
        if len(group) >= least
    ]


def _leftovers(found: Iterable[FileInfo], now: float) -> Iterator[FileInfo]:
    """Yield the partly written files of killed writers."""
    for entry in found:
        is_aside = entry.name.startswith((".", "_probe-", "_compact-"))
        is_merge = entry.name.startswith((f".{MERGED}", f".{OLD_MERGED}"))
        if is_aside and (is_merge or now - entry.modified > LEFTOVER_SECONDS):
            yield entry


COLUMNS = ["request_id", "error_type"]


def answered_ids(
    requests: str, folder: str, notify: Callable[[str], None], *, retry_failed: bool = False
) -> RequestIds:
    """Return the requests under a path that need no call: completed ones, and permanently failed ones.

    Only ids of requests under the path are in memory, because a folder may have many more. Damaged files of the folder
    are moved aside, and `notify` gets a line. Raises OSError for an unreadable file.
    """
    ids = [np.asarray(read_request_ids(unit), np.bytes_) for unit in list_units(requests)]
    wanted = RequestIds(np.concatenate(ids) if ids else ())
    answered = np.zeros(len(wanted), np.bool_)

    def tell(names: Iterable[str]) -> None:
        if shown := ", ".join(names):
            notify(f"damaged files were moved to {folder}/damaged, and their requests are sent again: {shown}")

    while True:
        whole = find_whole(folder, move=True)
        tell(whole.damaged)
        broken = [name for name in whole.names if not _mark(folder, name, wanted, answered, retry_failed)]
        if not broken:
            return wanted.where(answered)
        tell(set_aside(folder, broken))


def _mark(folder: str, name: str, wanted: RequestIds, answered: NDArray[np.bool_], retry_failed: bool) -> bool:
    """Mark the wanted requests that a file completes. Return False for a damaged file."""
    found = []
    try:
        with (StoragePath(folder) / name).open() as file:
            for batch in pq.ParquetFile(file, page_checksum_verification=True).iter_batches(columns=COLUMNS):
                rows = zip(*(_column(batch, column) for column in COLUMNS), strict=True)
                found.append(wanted.places([str(one) for one, error in rows if not _is_asked(error, retry_failed)]))
    except (OSError, pa.ArrowException):
        if find_damaged(folder, [name]):
            return False
        raise
    # After the end of the file, so that a damaged file marks nothing
    for places in found:
        answered[places[places >= 0]] = True
    return True


def _column(batch: pa.RecordBatch, name: str) -> Iterable[str | None]:
    """Return the values of a column, or nulls if a file of an earlier version lacks it."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    values: list[str | None] = batch.column(name).to_pylist()
    return values


def _is_asked(error_type: str | None, retry_failed: bool) -> bool:
    """Return True if the request of a stored row is sent again. None is a success."""
    return error_type is not None and (retry_failed or is_passing(error_type))


FOLDER = "_uses"
IDS = pa.schema([("request_id", pa.string())])
_NAME = re.compile(r"(\w+-[0-9a-f]{32})-[0-9a-f]+\.parquet")


@dataclass(frozen=True)
class ReferenceFile:
    """A file with the ids of the requests that a run needs of a stage's folder. `at` is in seconds since 1970."""

    place: StoragePath
    run: str
    stage: str
    at: float

    def ids(self) -> Iterator[list[str]]:
        """Yield the ids of the requests in batches. Raises OSError or ValueError for an unreadable file."""
        with self.place.open() as file:
            for batch in pq.ParquetFile(file).iter_batches(columns=IDS.names):
                yield batch.column(0).to_pylist()


def folder_of_uses(store: str) -> str:
    """Return the folder of these files in a store."""
    return str(StoragePath(store) / FOLDER)


def note_use(store: str, run: str, stage: str, ids: Iterable[pa.Array]) -> None:
    """Record the requests that a run needs of a stage. A read-only store records nothing.

    `stage` is the name of its folder. `ids` are texts, or null for a row without a request. A file is written even
    without ids, so that every run has one.
    """

    def write(stream: Any) -> None:
        # All ids are different, so a dictionary would be a copy of them
        with pq.ParquetWriter(stream, IDS, compression="zstd", use_dictionary=False) as writer:
            for column in ids:
                writer.write_table(pa.table([pc.unique(column.drop_null())], schema=IDS))

    own = StoragePath(folder_of_uses(store)) / run
    with suppress(OSError):
        own.make_folder()
        (own / f"{stage}-{uuid4().hex[:12]}.parquet").write_whole(write)


def wait_for_prune(store: str, run: str, *, wait: bool, notify: Callable[[str], None]) -> None:
    """Wait while completions of a store are removed. Call this after the run has recorded its requests.

    A removal takes this lock before it reads the records, so it sees the record of the run, or the run sees the lock.
    Raises LockedError if the run does not wait.
    """
    uses = folder_of_uses(store)
    if (StoragePath(uses) / NAME).entry().kind is not None:
        with lock_folder(uses, run, wait=wait, notify=notify):
            return


def list_uses(store: str) -> list[ReferenceFile]:
    """Return the records of all runs of a store."""
    found = []
    for entry in StoragePath(folder_of_uses(store)).entries(recursive=True):
        known = _NAME.fullmatch(entry.name)
        if known is not None:
            run = str(entry.place).rpartition("/")[0].rpartition("/")[2]
            found.append(ReferenceFile(entry.place, run, known[1], entry.modified))
    return found


@dataclass(frozen=True)
class Pruned:
    """The rows and bytes of a stage's folder, and of its unneeded rows. Before a removal, these bytes are estimates."""

    stage: str
    rows: int
    size: int
    unneeded_rows: int = 0
    unneeded_bytes: int = 0


def find_unneeded(folder: str, unneeded: Unneeded) -> Pruned:
    """Return the unneeded rows of a folder. It changes nothing and takes no lock."""
    whole, kept = _count(folder, unneeded, move=False)
    rows = {name: count for name, (count, _) in kept.items()}
    gone = {name: count - left for name, (count, left) in kept.items()}
    sizes = whole.sizes
    share = sum(sizes[name] * gone[name] // rows[name] for name in kept if rows[name])
    return Pruned(StoragePath(folder).name, sum(rows.values()), sum(sizes.values()), sum(gone.values()), share)


def prune_folder(folder: str, unneeded: Unneeded) -> Pruned:
    """Remove the unneeded rows of a folder, and return their number. The caller holds the lock of the folder.

    Raises OSError or ValueError for a file that cannot be read or written. No needed row is lost then.
    """
    whole, kept = _count(folder, unneeded, move=True)
    before = _bytes(folder)
    remove_dead(folder, whole)
    changed = [name for name, (rows, left) in kept.items() if left < rows]
    found = Pruned(StoragePath(folder).name, sum(rows for rows, _ in kept.values()), before)
    if not changed:
        return found
    left = {name: kept[name][1] for name in changed}
    merges = [
        replace(merge, unneeded=unneeded, rows=sum(left[name] for name in merge.names))
        for merge in plan_merges(folder, whole, filter(left.get, changed), FILE_BYTES, least=1)
    ]
    replace_files(folder, merges)
    for name in changed:
        if not left[name]:
            (StoragePath(folder) / name).remove()
    removed = sum(rows for rows, _ in kept.values()) - sum(left for _, left in kept.values())
    return replace(found, unneeded_rows=removed, unneeded_bytes=before - _bytes(folder))


def _count(folder: str, unneeded: Unneeded, *, move: bool) -> tuple[Whole, dict[str, tuple[int, int]]]:
    """Return the live files of a folder, and for each the number of its rows and of its needed rows."""
    whole = find_whole(folder, move=move)
    return whole, {name: count_kept(StoragePath(folder) / name, unneeded) for name in whole.names}


def _bytes(folder: str) -> int:
    return sum(file.size for file in list_segments(folder).values())
