"""Which files of a stage's folder are its completions: what its newest snapshot names, and what came since.

A snapshot is a file `_snapshot-<number>.json`, written whole and never changed. A file that it names is live; one that
it calls replaced is not, and goes a week later; any other is newer than the snapshot and live. Only a merged file
(`base-*`) has to be named to be live: a killed compaction leaves some that no snapshot names. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from untold.udfs.llm.store_files import count_rows, is_damaged
from untold.udfs.storage import Entry, Place

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
    """A file whose rows are all in the files `into` since the time `at` (seconds since 1970)."""

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

    files: Mapping[str, Entry]
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
    raise OSError(f"the snapshots of {folder} change all the time: end all but one of the runs on this store")


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
        places = [Place(folder) / name for name in names]
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
    counted = dict(zip(others, count_rows(Place(folder) / name for name in others), strict=True))
    return [known.get(name, counted.get(name)) for name in names]


def _is_as_named(listing: Listing, name: str) -> bool:
    return name in listing.files and listing.files[name].size == listing.named[name].size


def find_damaged(folder: str, names: Iterable[str]) -> list[str]:
    """Those of the files that cannot be read through although their bytes are there. It reads all of each."""
    known = list_folder(folder).named
    found = []
    for name in names:
        with suppress(FileNotFoundError):
            if is_damaged(Place(folder) / name, known[name].digest if name in known else None):
                found.append(name)
    return found


def set_aside(folder: str, names: Iterable[str]) -> list[str]:
    """Moves files of a folder to its folder `damaged/`; gives those that no other run had moved before."""
    place, moved = Place(folder), list[str]()
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
    place = Place(folder)
    written = (place / _file_of(snapshot.number)).put_if_absent(snapshot.model_dump_json().encode())
    if not written:
        raise FileExistsError(f"another run has merged files of {folder} meanwhile")
    for number in _numbers(place.entries()):
        if number < snapshot.number:
            (place / _file_of(number)).remove()


def _list_once(folder: str) -> Listing | None:
    """None where the newest snapshot was gone before it was read: a newer one is there then."""
    found = Place(folder).entries()
    files = {entry.name: entry for entry in found if entry.kind == "file" and is_segment(entry.name)}
    numbers = _numbers(found)
    if not numbers:
        return Listing(files)
    try:
        snapshot = Snapshot.model_validate_json((Place(folder) / _file_of(numbers[-1])).read_bytes())
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
    return tuple(sorted(gone - {entry.name for entry in (Place(folder) / DAMAGED).entries()}))


def is_segment(name: str) -> bool:
    """Whether a name is one of a file of completions."""
    return name.endswith(".parquet") and name[0] not in "._"


def _numbers(found: Iterable[Entry]) -> list[int]:
    """The numbers of the snapshots of a listing, ascending."""
    return sorted(filter(None, (_number_of(entry.name) for entry in found)))


def _number_of(name: str) -> int | None:
    """The number in a snapshot's name; None for any other name, one of ours that is written otherwise included."""
    number = PurePosixPath(name).stem.removeprefix(SNAPSHOT)
    whole = name == _file_of(int(number)) if number.isdecimal() and number.isascii() else False
    return int(number) if whole else None


def _file_of(number: int) -> str:
    return f"{SNAPSHOT}{number:08d}.json"
