"""Record the completions that runs reference, and remove the others. Imports no pyspark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from untold.jobs.inference.store.compaction import (
    FILE_BYTES,
    Whole,
    find_whole,
    list_segments,
    plan_merges,
    remove_dead,
    replace_files,
)
from untold.jobs.run.locks import NAME, lock_folder
from untold.udfs.llm.store_files import Unneeded, count_kept
from untold.udfs.storage import StoragePath

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
