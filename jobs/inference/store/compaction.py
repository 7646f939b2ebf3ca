"""Merge the small files of a stage's folder, and list its current files by snapshot. Imports no pyspark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from time import time
from typing import Annotated
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.retrying import is_passing
from untold.udfs.llm.store_files import Described, Merge, count_rows, digest_of, is_damaged, merge_files
from untold.udfs.llm.units import RequestIds, list_units, read_request_ids
from untold.udfs.storage import FileInfo, StoragePath

# The folder of a store that has the folders of its stages
VERSION = "v1"
SNAPSHOT = "_snapshot-"
MERGED = "base-"
DAMAGED = "damaged"
# A snapshot goes between a listing and its reading only while another is written: a compaction each time.
LISTINGS = 5
# A name of a file of the folder itself: nothing that is elsewhere, hidden, or no completions.
BareName = Annotated[str, StringConstraints(pattern=r"^[^._/\\\x00][^/\\\x00]*\.parquet$")]


class LiveFile(BaseModel, frozen=True):
    """A file that a snapshot names: rows by its footer, bytes, and a hash of them."""

    name: BareName
    rows: int
    size: int
    digest: str


class ReplacedFile(BaseModel, frozen=True):
    """A file whose rows are in the files `into` since the time `at` (seconds since 1970), or needed no more."""

    name: BareName
    at: float
    into: tuple[BareName, ...]


class Snapshot(BaseModel, frozen=True):
    """What the live files of a folder were when it was written. Fields are only ever added."""

    number: int = Field(ge=1)
    files: tuple[LiveFile, ...] = ()
    replaced: tuple[ReplacedFile, ...] = ()


@dataclass(frozen=True)
class Listing:
    """The Parquet files of a stage's folder by name, its newest snapshot, and snapshots that make no sense.

    With a snapshot that names `base-1` and calls `a` replaced by it, a folder of `a`, `b`, `base-1` and `base-2` has
    the live files `b` and `base-1`: `b` came later, and `base-2` is what a killed compaction left.
    """

    files: Mapping[str, FileInfo]
    snapshot: Snapshot | None = None
    refused: tuple[str, ...] = ()

    @cached_property
    def named(self) -> Mapping[str, LiveFile]:
        """What the newest snapshot says of each file that it names."""
        return {file.name: file for file in (self.snapshot.files if self.snapshot else ())}

    @property
    def replaced(self) -> tuple[ReplacedFile, ...]:
        """What the newest snapshot says was merged into others: dead, as long as those are there."""
        return self.snapshot.replaced if self.snapshot else ()

    def newer(self) -> set[str]:
        """The files that came after the newest snapshot."""
        known = {*self.named, *(file.name for file in self.replaced)}
        return {name for name in set(self.files) - known if not (self.snapshot and name.startswith(MERGED))}

    def live(self, without: Collection[str] = ()) -> list[str]:
        """The names of the live files that are there, less some; for merged ones that are not, what they replaced.

        So a merged file that is damaged or gone within a week of its making costs nothing: for as long as they are
        kept, its parts take its place.
        """
        there = set(self.files) - set(without)
        lost = (set(self.named) | self.newer()) - there
        live = (set(self.named) | self.newer()) & there
        # What was lost may have been merged from files that were merged themselves: as many rounds as there are kinds.
        while further := {file.name for file in self.replaced if lost & set(file.into)} - live - lost:
            live |= further & there
            lost |= further - there
        return sorted(live)


@dataclass(frozen=True)
class Whole:
    """The live files of a folder with a good footer: their names, paths for Spark, and all their rows.

    `damaged`: files that are not whole. `missing`: files that the newest snapshot names and nobody finds.
    """

    names: tuple[str, ...]
    uris: tuple[str, ...]
    rows: int
    damaged: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def list_folder(folder: str) -> Listing:
    """The files of a stage's folder as they are now; none where it is not there.

    Raises OSError where its newest snapshot was gone before it was read, five times in a row.
    """
    for _ in range(LISTINGS):
        listing = _list_once(folder)
        if listing is not None:
            return listing
    raise OSError(f"the snapshots of {folder} change continuously. End all runs on this store except one")


def find_whole(folder: str, *, move: bool) -> Whole:
    """The live files of a folder whose footers are good. With `move` others go to its folder `damaged/`.

    Raises OSError where a file cannot be read at all, which says nothing about its content.
    """
    damaged: dict[str, None] = {}
    vanished = 0
    # Moving one file may bring back those it was merged from, so look until all that is live is whole
    while True:
        listing = list_folder(folder)
        if move and listing.refused:
            damaged.update(dict.fromkeys(set_aside(folder, listing.refused)))
        names = listing.live(without=() if move else damaged)
        places = [StoragePath(folder) / name for name in names]
        try:
            rows = _count_rows(folder, listing, names)
        except FileNotFoundError:
            # Another run removed or moved it after the listing
            vanished += 1
            if vanished == LISTINGS:
                raise
            continue
        broken = [name for name, count in zip(names, rows, strict=True) if count is None]
        if not broken:
            missing = _missing(folder, listing, damaged)
            uris = tuple(place.spark for place in places)
            return Whole(tuple(names), uris, sum(filter(None, rows)), tuple(damaged), missing)
        damaged.update(dict.fromkeys(set_aside(folder, broken) if move else broken))


def _count_rows(folder: str, listing: Listing, names: Sequence[str]) -> list[int | None]:
    """The rows of each file: as the newest snapshot says, else by its footer; None for one that is damaged.

    A file that has another size than the snapshot says has its footer read. Raises as `count_rows`.
    """
    known = {name: file.rows for name, file in listing.named.items() if _is_as_named(listing, name)}
    others = [name for name in names if name not in known]
    counted = dict(zip(others, count_rows(StoragePath(folder) / name for name in others), strict=True))
    return [known.get(name, counted.get(name)) for name in names]


def _is_as_named(listing: Listing, name: str) -> bool:
    return name in listing.files and listing.files[name].size == listing.named[name].size


def find_damaged(folder: str, names: Iterable[str]) -> list[str]:
    """Those of the files that cannot be read through although their bytes are there. It reads all of each."""
    known = list_folder(folder).named
    found = []
    for name in names:
        with suppress(FileNotFoundError):
            if is_damaged(StoragePath(folder) / name, known[name].digest if name in known else None):
                found.append(name)
    return found


def set_aside(folder: str, names: Iterable[str]) -> list[str]:
    """Moves files of a folder to its folder `damaged/`; gives those that no other run had moved before."""
    place, moved = StoragePath(folder), list[str]()
    for name in names:
        if not moved:
            (place / DAMAGED).make_folder()
        with suppress(FileNotFoundError):
            (place / name).move(place / DAMAGED / name)
            moved.append(name)
    return moved


def write_snapshot(folder: str, snapshot: Snapshot) -> None:
    """Writes a snapshot, then removes those before it, which nobody needs: a reader that misses one lists again.

    Who writes holds the folder's lock. A run that locks nothing may meet another: the first of one number stays, and
    what the other merged is still there as the files that it was merged from. Raises OSError where it cannot be
    written, FileExistsError where another was quicker; the one before, or the other's, then counts.
    """
    place = StoragePath(folder)
    written = (place / _file_of(snapshot.number)).put_if_absent(snapshot.model_dump_json().encode())
    if not written:
        raise FileExistsError(f"another run has merged files of {folder} at the same time")
    for number in _numbers(place.entries()):
        if number < snapshot.number:
            (place / _file_of(number)).remove()


def _list_once(folder: str) -> Listing | None:
    """None where the newest snapshot was gone before it was read: a newer one is there then."""
    found = StoragePath(folder).entries()
    files = {entry.name: entry for entry in found if entry.kind == "file" and is_segment(entry.name)}
    numbers = _numbers(found)
    if not numbers:
        return Listing(files)
    try:
        snapshot = Snapshot.model_validate_json((StoragePath(folder) / _file_of(numbers[-1])).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        # All of them: an older one would call files leftovers that this one made live
        return Listing(files, None, tuple(_file_of(number) for number in numbers))
    return Listing(files, snapshot)


def _missing(folder: str, listing: Listing, damaged: Collection[str]) -> tuple[str, ...]:
    """What the newest snapshot names and is neither here nor in `damaged/`: files that somebody removed."""
    gone = set(listing.named) - set(listing.files) - set(damaged)
    if not gone:
        return ()
    return tuple(sorted(gone - {entry.name for entry in (StoragePath(folder) / DAMAGED).entries()}))


def is_segment(name: str) -> bool:
    """Whether a name is one of a file of completions."""
    return name.endswith(".parquet") and name[0] not in "._"


def _numbers(found: Iterable[FileInfo]) -> list[int]:
    """The numbers of the snapshots of a listing, ascending."""
    return sorted(filter(None, (_number_of(entry.name) for entry in found)))


def _number_of(name: str) -> int | None:
    """The number in a snapshot's name; None for any other name, one of ours that is written otherwise included."""
    number = PurePosixPath(name).stem.removeprefix(SNAPSHOT)
    whole = name == _file_of(int(number)) if number.isdecimal() and number.isascii() else False
    return int(number) if whole else None


def _file_of(number: int) -> str:
    return f"{SNAPSHOT}{number:08d}.json"


# A file costs a scan about a millisecond (20,000: 25 s): a few are cheaper read than rewritten.
COMPACT_FROM_FILES = 8
# Few enough files for a scan (20,000 small ones: 25 s; one: 1.4 s), small enough for Spark to read them side by side.
FILE_BYTES = 128 * 2**20
# Only files below half of that are merged again: a night's job rewrites what it added and at most one unfinished file,
# whatever the store has; merging all of them would rewrite 365 nights in the 365th.
SMALL = 0.5
# Readers of other runs may hold on to replaced files that long, and so long can a damaged merged file be undone.
KEEP_SECONDS = 7 * 24 * 3600
# A file that is still written is younger.
LEFTOVER_SECONDS = 3600


def run_merges(merges: Sequence[Merge]) -> list[Described]:
    """Does them here, one after the other."""
    return [merge_files(merge) for merge in merges]


def compact_folder(
    folder: str,
    run: Callable[[Sequence[Merge]], list[Described]] = run_merges,
    *,
    file_bytes: int = FILE_BYTES,
    clock: Callable[[], float] = time,
) -> None:
    """Merges the small files of a stage's folder, killed runs' too, and removes what was replaced a week ago.

    `run` does the merges, which may be on other machines; `clock` gives seconds since 1970, to which files' ages are
    compared. Who calls it holds the folder's lock, so that nobody else compacts. Raises OSError or ValueError where a
    file is not whole; the store is then as it was. See docs/architecture.md, "The store".
    """
    listing = list_folder(folder)
    for entry in _leftovers(folder, listing, clock()):
        entry.place.remove()
    live = listing.live()
    small = _small(listing, live, file_bytes)
    merges = plan_merges(folder, listing, small, file_bytes) if len(small) >= COMPACT_FROM_FILES else []
    lost = set(listing.named) - set(listing.files)
    if merges or lost:
        number = begin_merging(folder, listing)
        made = run(merges)
        replaced = [ReplacedFile(name=n, at=clock(), into=(m.target,)) for m in merges for n in m.names]
        publish_merged(folder, number, listing, live, made, replaced)
    _remove_replaced(folder, clock())


def begin_merging(folder: str, listing: Listing) -> int:
    """The number of the newest snapshot; in a folder that has none, one of its merged files alone is written.

    Without it, a merged file that a killed compaction leaves would count beside all that it was merged from.
    """
    if listing.snapshot is not None:
        return listing.snapshot.number
    merged = (_describe(folder, listing, name) for name in listing.live() if name.startswith(MERGED))
    snapshot = Snapshot(number=1, files=tuple(merged))
    write_snapshot(folder, snapshot)
    return snapshot.number


def publish_merged(
    folder: str,
    number: int,
    listing: Listing,
    live: Sequence[str],
    made: Iterable[Described],
    replaced: Sequence[ReplacedFile],
) -> None:
    """Writes the snapshot behind `number`: only from then on do merged files count, and what they replace does not.

    The files that were `made` are whole by now. `live`: the names that counted before.
    """
    gone = {file.name for file in replaced}
    kept = [_describe(folder, listing, name) for name in live if name not in gone]
    files = [*kept, *(LiveFile(name=m.name, rows=m.rows, size=m.size, digest=m.digest) for m in made)]
    known = [file for file in listing.replaced if file.name in listing.files]
    still = [file for file in known if file.name not in {*gone, *live}]
    write_snapshot(folder, Snapshot(number=number + 1, files=tuple(files), replaced=(*still, *replaced)))


def is_due(folder: str) -> bool:
    """Whether a killed run left a folder with many small files or with parts of files. One listing; reads no file."""
    listing = list_folder(folder)
    many = len(_small(listing, listing.live(), FILE_BYTES)) >= COMPACT_FROM_FILES
    return many or any(True for _ in _leftovers(folder, listing, time()))


def _small(listing: Listing, names: Iterable[str], file_bytes: int) -> list[str]:
    """Those of the files that are small enough to be merged."""
    return [name for name in names if listing.files[name].size < SMALL * file_bytes]


def plan_merges(folder: str, listing: Listing, names: Iterable[str], file_bytes: int, *, least: int = 2) -> list[Merge]:
    """The files in groups of at most `file_bytes`, in the order of their names; a group of less than `least` stays.

    The order is that of the names so that a second attempt at the same folder makes the same groups. A file that is
    larger than `file_bytes` by itself is a group of one.
    """
    groups: list[list[str]] = []
    room = 0
    for name in names:
        size = listing.files[name].size
        if size > room:
            groups.append([])
            room = file_bytes
        groups[-1].append(name)
        room -= size
    return [
        Merge(
            folder,
            tuple(group),
            f"{MERGED}{uuid4().hex}.parquet",
            COMPLETIONS,
            size=sum(listing.files[name].size for name in group),
        )
        for group in groups
        if len(group) >= least
    ]


def _describe(folder: str, listing: Listing, name: str) -> LiveFile:
    """What a snapshot says of a file: as the newest one does, else by its footer and all its bytes.

    Raises ValueError for a damaged one, for a snapshot that names it would hide the damage.
    """
    if name in listing.named:
        return listing.named[name]
    place = StoragePath(folder) / name
    (rows,) = count_rows([place])
    if rows is None:
        raise ValueError(f"{name} of {folder} is damaged")
    return LiveFile(name=name, rows=rows, size=listing.files[name].size, digest=digest_of(place))


def _remove_replaced(folder: str, now: float) -> None:
    """Removes what was replaced a week ago, the oldest first, where all that it was merged into is whole.

    What was replaced by nothing had no row that is needed.
    """
    listing = list_folder(folder)
    for file in sorted(listing.replaced, key=lambda file: file.at):
        is_due = now - file.at > KEEP_SECONDS and file.name in listing.files
        if is_due and are_whole(folder, listing, file.into):
            (StoragePath(folder) / file.name).remove()


def are_whole(folder: str, listing: Listing, names: Iterable[str]) -> bool:
    """Whether files are there with a good footer, of the size that the snapshot says."""
    known = set(names)
    if not known <= set(listing.files):
        return False
    sizes_agree = all(listing.files[name].size == listing.named[name].size for name in known & set(listing.named))
    return sizes_agree and None not in count_rows(StoragePath(folder) / name for name in sorted(known))


def _leftovers(folder: str, listing: Listing, now: float) -> Iterator[FileInfo]:
    """What killed compactions and killed writers left: merged files without a name, files aside.

    On an object store, which runs may use without a lock, another compaction may be at work: its files have a week.
    """
    known = {*listing.named, *(file.name for file in listing.replaced)}
    merging = (MERGED, f".{MERGED}")
    place = StoragePath(folder)
    young = KEEP_SECONDS if place.local is None else 0
    for entry in place.entries():
        name, age = entry.name, now - entry.modified
        is_merged = listing.snapshot is not None and name.startswith(MERGED) and name not in known
        is_aside = name.startswith((".", "_probe-", "_compact-")) and age > LEFTOVER_SECONDS
        if ((is_merged or name.startswith(merging[1])) and age >= young) or is_aside:
            yield entry


COLUMNS = ["request_id", "error_type"]


def answered_ids(
    requests: str, folder: str, notify: Callable[[str], None], *, retry_failed: bool = False
) -> RequestIds:
    """The requests under a path that need no asking: answered ones, and those that failed for a lasting reason.

    Only ids of requests under the path are held: a folder may have many more. Damaged files of the folder are moved
    aside, and `notify` is told. Raises OSError where one cannot be read.
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
    """Marks the places of what a file has of the wanted requests; False where the file is damaged."""
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
    # Only of a file that was read to its end: what a damaged one seemed to hold is asked again
    for places in found:
        answered[places[places >= 0]] = True
    return True


def _column(batch: pa.RecordBatch, name: str) -> Iterable[str | None]:
    """A column's values; nulls where a file of an older version has none."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    values: list[str | None] = batch.column(name).to_pylist()
    return values


def _is_asked(error_type: str | None, retry_failed: bool) -> bool:
    """Whether a stored row leaves its request to be asked. None is an answer."""
    return error_type is not None and (retry_failed or is_passing(error_type))
