"""Record the completions that runs reference, and remove the others. Imports no pyspark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from time import time
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from untold.jobs.inference.store.compaction import (
    FILE_BYTES,
    Listing,
    ReplacedFile,
    are_whole,
    begin_merging,
    find_whole,
    list_folder,
    plan_merges,
    publish_merged,
    run_merges,
)
from untold.jobs.run.locks import NAME, lock_folder
from untold.udfs.llm.store_files import Unneeded, count_kept
from untold.udfs.storage import StoragePath

FOLDER = "_uses"
IDS = pa.schema([("request_id", pa.string())])
_NAME = re.compile(r"(\w+-[0-9a-f]{32})-[0-9a-f]+\.parquet")


@dataclass(frozen=True)
class ReferenceFile:
    """A file of notes: which run needs what of which stage's folder, and since when (seconds since 1970)."""

    place: StoragePath
    run: str
    stage: str
    at: float

    def ids(self) -> Iterator[list[str]]:
        """The ids of the requests, some at a time. Raises OSError or ValueError where they cannot be read."""
        with self.place.open() as file:
            for batch in pq.ParquetFile(file).iter_batches(columns=IDS.names):
                yield batch.column(0).to_pylist()


def folder_of_uses(store: str) -> str:
    """Where the notes lie in a store."""
    return str(StoragePath(store) / FOLDER)


def note_use(store: str, run: str, stage: str, ids: Iterable[pa.Array]) -> None:
    """Notes the requests that a run needs of a stage. A store that may only be read keeps no notes.

    stage: the name of its folder. ids: texts, null where a row has no request; a file is written whatever there is, so
    that every run has one.
    """

    def write(stream: Any) -> None:
        # A dictionary of ids that are all different would be their whole copy
        with pq.ParquetWriter(stream, IDS, compression="zstd", use_dictionary=False) as writer:
            for column in ids:
                writer.write_table(pa.table([pc.unique(column.drop_null())], schema=IDS))

    own = StoragePath(folder_of_uses(store)) / run
    with suppress(OSError):
        own.make_folder()
        (own / f"{stage}-{uuid4().hex[:12]}.parquet").write_whole(write)


def wait_for_prune(store: str, run: str, *, wait: bool, notify: Callable[[str], None]) -> None:
    """Waits while completions of a store are being removed; to be called once the run has noted its use.

    Who removes takes this lock before it reads the notes: either it sees the run's, or the run sees the lock. Raises
    LockedError where the run is not to wait.
    """
    uses = folder_of_uses(store)
    if (StoragePath(uses) / NAME).entry().kind is not None:
        with lock_folder(uses, run, wait=wait, notify=notify):
            return


def list_uses(store: str) -> list[ReferenceFile]:
    """All notes of a store."""
    found = []
    for entry in StoragePath(folder_of_uses(store)).entries(recursive=True):
        known = _NAME.fullmatch(entry.name)
        if known is not None:
            run = str(entry.place).rpartition("/")[0].rpartition("/")[2]
            found.append(ReferenceFile(entry.place, run, known[1], entry.modified))
    return found


@dataclass(frozen=True)
class Pruned:
    """What a stage's folder has, and what of it goes: rows, and bytes, which are an estimate before they are gone."""

    stage: str
    rows: int
    size: int
    unneeded_rows: int = 0
    unneeded_bytes: int = 0


def find_unneeded(folder: str, unneeded: Unneeded) -> Pruned:
    """What of a folder nobody needs. It changes nothing and takes no lock."""
    listing, kept = _count(folder, unneeded, move=False)
    rows = {name: count for name, (count, _) in kept.items()}
    gone = {name: count - left for name, (count, left) in kept.items()}
    sizes = {name: listing.files[name].size for name in kept}
    share = sum(sizes[name] * gone[name] // rows[name] for name in kept if rows[name])
    return Pruned(StoragePath(folder).name, sum(rows.values()), sum(sizes.values()), sum(gone.values()), share)


def prune_folder(folder: str, unneeded: Unneeded, *, clock: Callable[[], float] = time) -> Pruned:
    """Removes them, and gives what went. Who calls it holds the folder's lock.

    Raises OSError or ValueError where a file cannot be read or written; what is needed is then still there.
    """
    listing, kept = _count(folder, unneeded, move=True)
    before = _bytes(folder)
    changed = [name for name, (rows, left) in kept.items() if left < rows]
    found = Pruned(StoragePath(folder).name, sum(rows for rows, _ in kept.values()), before)
    if not changed:
        return found
    left = {name: kept[name][1] for name in changed}
    merges = [
        replace(merge, unneeded=unneeded, rows=sum(left[name] for name in merge.names))
        for merge in plan_merges(folder, listing, filter(left.get, changed), FILE_BYTES, least=1)
    ]
    number = begin_merging(folder, listing)
    made = run_merges(merges)
    into = dict.fromkeys(changed, ()) | {name: (merge.target,) for merge in merges for name in merge.names}
    gone = [ReplacedFile(name=name, at=clock(), into=targets) for name, targets in into.items()]
    publish_merged(folder, number, listing, sorted(kept), made, gone)
    if not are_whole(folder, list_folder(folder), [merge.target for merge in merges]):
        raise ValueError(f"the remaining completions of {folder} cannot be read back; nothing was removed")
    for name in _dead(listing, into):
        (StoragePath(folder) / name).remove()
    removed = sum(rows for rows, _ in kept.values()) - sum(left for _, left in kept.values())
    return replace(found, unneeded_rows=removed, unneeded_bytes=before - _bytes(folder))


def _count(folder: str, unneeded: Unneeded, *, move: bool) -> tuple[Listing, dict[str, tuple[int, int]]]:
    """The folder, and of each live file its rows and how many of these stay."""
    names = find_whole(folder, move=move).names
    return list_folder(folder), {name: count_kept(StoragePath(folder) / name, unneeded) for name in names}


def _dead(listing: Listing, into: Mapping[str, object]) -> list[str]:
    """The files to remove, those first that were merged into others of them before."""
    dead = list(into)
    for file in sorted(listing.replaced, key=lambda one: -one.at):
        if set(file.into) <= set(dead) and file.name in listing.files and file.name not in dead:
            dead.insert(0, file.name)
    return dead


def _bytes(folder: str) -> int:
    return sum(entry.size for entry in list_folder(folder).files.values())
