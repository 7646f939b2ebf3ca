"""Removes completions that no output needs from a stage's folder, as a compaction merges: imports no pyspark.

What stays is written anew and counts once a snapshot names it; only then do the files go that it was in. So nothing
that is needed is lost at whatever moment it is killed, and the next prune or compaction finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import time

from untold.jobs.asking.compaction import (
    FILE_BYTES,
    are_whole,
    begin_merging,
    plan_merges,
    publish_merged,
    run_merges,
)
from untold.jobs.asking.snapshots import Listing, ReplacedFile, find_whole, list_folder
from untold.udfs.llm.store_files import Unneeded, count_kept
from untold.udfs.storage import Place


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
    return Pruned(Place(folder).name, sum(rows.values()), sum(sizes.values()), sum(gone.values()), share)


def prune_folder(folder: str, unneeded: Unneeded, *, clock: Callable[[], float] = time) -> Pruned:
    """Removes them, and gives what went. Who calls it holds the folder's lock.

    Raises OSError or ValueError where a file cannot be read or written; what is needed is then still there.
    """
    listing, kept = _count(folder, unneeded, move=True)
    before = _bytes(folder)
    changed = [name for name, (rows, left) in kept.items() if left < rows]
    found = Pruned(Place(folder).name, sum(rows for rows, _ in kept.values()), before)
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
        raise ValueError(f"what stays of {folder} cannot be read back; nothing was removed")
    for name in _dead(listing, into):
        (Place(folder) / name).remove()
    removed = sum(rows for rows, _ in kept.values()) - sum(left for _, left in kept.values())
    return replace(found, unneeded_rows=removed, unneeded_bytes=before - _bytes(folder))


def _count(folder: str, unneeded: Unneeded, *, move: bool) -> tuple[Listing, dict[str, tuple[int, int]]]:
    """The folder, and of each live file its rows and how many of these stay."""
    names = find_whole(folder, move=move).names
    return list_folder(folder), {name: count_kept(Place(folder) / name, unneeded) for name in names}


def _dead(listing: Listing, into: Mapping[str, object]) -> list[str]:
    """The files to remove, those first that were merged into others of them before."""
    dead = list(into)
    for file in sorted(listing.replaced, key=lambda one: -one.at):
        if set(file.into) <= set(dead) and file.name in listing.files and file.name not in dead:
            dead.insert(0, file.name)
    return dead


def _bytes(folder: str) -> int:
    return sum(entry.size for entry in list_folder(folder).files.values())
