"""Makes few large files of the many small ones of a stage's folder, so that reading it stays as fast as it was.

Nothing is lost at whatever moment it is killed: merged files count once a snapshot names them, and what they replace
stays for a week. Imports no pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from time import time
from uuid import uuid4

from pyarrow import fs

from untold.jobs.asking.snapshots import (
    MERGED,
    Listing,
    LiveFile,
    ReplacedFile,
    Snapshot,
    is_segment,
    list_folder,
    write_snapshot,
)
from untold.jobs.tables import COMPLETIONS
from untold.udfs.files import is_local
from untold.udfs.llm.segments import open_filesystem
from untold.udfs.llm.store_files import Described, Merge, count_rows, digest_of, merge_files

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
# What the version before snapshots noted of a compaction.
NOTE = "_compacted-"


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
    for info in _leftovers(folder, listing, clock()):
        with suppress(FileNotFoundError):
            system = open_filesystem(folder)[0]
            system.delete_file(info.path) if info.is_file else system.delete_dir(info.path)
    noted, notes = _read_notes(folder, listing)
    live = sorted(set(listing.live()) - {file.name for file in noted})
    small = _small(listing, live, file_bytes)
    merges = plan_merges(folder, listing, small, file_bytes) if len(small) >= COMPACT_FROM_FILES else []
    lost = set(listing.named) - set(listing.files)
    if merges or notes or lost:
        before = listing.snapshot or _first_snapshot(folder, listing)
        made = run(merges)
        known = [file for file in (*listing.replaced, *noted) if file.name in listing.files]
        replaced = [ReplacedFile(name=n, at=clock(), into=(m.target,)) for m in merges for n in m.names]
        gone = {file.name for file in replaced}
        kept = [_describe(folder, listing, name) for name in live if name not in gone]
        files = [*kept, *(LiveFile(name=m.name, rows=m.rows, size=m.size, digest=m.digest) for m in made)]
        still = [file for file in known if file.name not in {*gone, *live}]
        # The merged files are whole by now: only from this line on do they count, and what they replace does not
        write_snapshot(folder, Snapshot(number=before.number + 1, files=tuple(files), replaced=(*still, *replaced)))
        # After the snapshot, which says the same: killed between the two lines, the next compaction reads them again
        _delete(folder, notes)
    _remove_replaced(folder, clock())


def _first_snapshot(folder: str, listing: Listing) -> Snapshot:
    """Writes the snapshot of a folder that has none, of its merged files alone: from then on no other of these counts.

    Without it, a merged file that a killed compaction leaves would count beside all that it was merged from.
    """
    merged = (_describe(folder, listing, name) for name in listing.live() if name.startswith(MERGED))
    snapshot = Snapshot(number=1, files=tuple(merged))
    write_snapshot(folder, snapshot)
    return snapshot


def is_due(folder: str) -> bool:
    """Whether a killed run left a folder with many small files or with parts of files. One listing; reads no file."""
    listing = list_folder(folder)
    many = len(_small(listing, listing.live(), FILE_BYTES)) >= COMPACT_FROM_FILES
    return many or any(True for _ in _leftovers(folder, listing, time()))


def _small(listing: Listing, names: Iterable[str], file_bytes: int) -> list[str]:
    """Those of the files that are small enough to be merged."""
    return [name for name in names if listing.files[name].size < SMALL * file_bytes]


def plan_merges(folder: str, listing: Listing, names: Iterable[str], file_bytes: int) -> list[Merge]:
    """The files in groups of at most `file_bytes`, in the order of their names; a group of one stays as it is.

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
        Merge(folder, tuple(group), f"{MERGED}{uuid4().hex}.parquet", COMPLETIONS) for group in groups if len(group) > 1
    ]


def _describe(folder: str, listing: Listing, name: str) -> LiveFile:
    """What a snapshot says of a file: as the newest one does, else by its footer and all its bytes.

    Raises ValueError for a damaged one, for a snapshot that names it would hide the damage.
    """
    if name in listing.named:
        return listing.named[name]
    system, path = open_filesystem(folder)
    (rows,) = count_rows(system, [f"{path}/{name}"])
    if rows is None:
        raise ValueError(f"{name} of {folder} is damaged")
    digest = digest_of(system, f"{path}/{name}")
    return LiveFile(name=name, rows=rows, size=listing.files[name].size, digest=digest)


def _remove_replaced(folder: str, now: float) -> None:
    """Removes what was replaced a week ago, the oldest first, where all that it was merged into is whole."""
    listing = list_folder(folder)
    for file in sorted(listing.replaced, key=lambda file: file.at):
        if now - file.at > KEEP_SECONDS and file.name in listing.files and _are_whole(folder, listing, file.into):
            _delete(folder, [file.name])


def _are_whole(folder: str, listing: Listing, names: Iterable[str]) -> bool:
    """Whether files are there with a good footer, of the size that the snapshot says."""
    known = set(names)
    if not known or not known <= set(listing.files):
        return False
    system, path = open_filesystem(folder)
    sizes_agree = all(listing.files[name].size == listing.named[name].size for name in known & set(listing.named))
    return sizes_agree and None not in count_rows(system, [f"{path}/{name}" for name in sorted(known)])


def _leftovers(folder: str, listing: Listing, now: float) -> Iterator[fs.FileInfo]:
    """What killed compactions and killed writers left: merged files without a name, files aside.

    Where there is no lock (object stores) another compaction may be at work, and its files have a week.
    """
    known = {*listing.named, *(file.name for file in listing.replaced)}
    merging = (MERGED, f".{MERGED}")
    young = 0 if is_local(folder) else KEEP_SECONDS
    system, path = open_filesystem(folder)
    for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        name, age = info.base_name, now - (info.mtime_ns or 0) / 1e9
        is_merged = listing.snapshot is not None and name.startswith(MERGED) and name not in known
        is_aside = name.startswith((".", "_probe-", "_compact-")) and age > LEFTOVER_SECONDS
        if ((is_merged or name.startswith(merging[1])) and age >= young) or is_aside:
            yield info


def _read_notes(folder: str, listing: Listing) -> tuple[list[ReplacedFile], list[str]]:
    """What the notes of the version before say was replaced, and the names of these notes.

    A note counts where it speaks of files of this folder alone, and what it calls merged is there and has all the rows.
    """
    system, path = open_filesystem(folder)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    replaced: dict[str, ReplacedFile] = {}
    notes = []
    for info in found:
        if info.base_name.startswith(NOTE):
            # Whatever else lies there under that name is no reason to end a run
            with suppress(OSError, ValueError, KeyError, TypeError):
                replaced |= {file.name: file for file in _read_note(folder, listing, info.path)}
                notes.append(info.base_name)
    return list(replaced.values()), notes


def _read_note(folder: str, listing: Listing, note_path: str) -> list[ReplacedFile]:
    """What one note says was replaced and is still there; nothing where all of that is gone.

    Raises ValueError where its merged files are not there or hold fewer rows than what they are said to replace,
    KeyError or TypeError where it is no note of ours.
    """
    system, path = open_filesystem(folder)
    with system.open_input_stream(note_path) as stream:
        note = json.loads(stream.read())
    into = tuple(_bare_name(path, name) for name in note["files"])
    segments = [_bare_name(path, name) for name in note["segments"]]
    left = [name for name in segments if name in listing.files]
    if not left:
        return []
    if not set(into) <= set(listing.files) or set(into) & set(segments):
        raise ValueError(f"{note_path} names files that are not there")
    rows_into, rows_left = (count_rows(system, [f"{path}/{name}" for name in names]) for names in (into, left))
    if None in rows_into or sum(filter(None, rows_into)) < sum(filter(None, rows_left)):
        raise ValueError(f"{note_path} names files that do not hold all rows")
    return [ReplacedFile(name=name, at=float(note["at"]), into=into) for name in left]


def _bare_name(folder_path: str, path: str) -> str:
    """The name of a file that an old note names by its path. Raises ValueError for one of another folder."""
    parts = PurePosixPath(path)
    if parts.parent.name != PurePosixPath(folder_path).name or ".." in parts.parts or not is_segment(parts.name):
        raise ValueError(f"{path} is no file of {folder_path}")
    return parts.name


def _delete(folder: str, names: Iterable[str]) -> None:
    """Removes files of a folder by their names. One that is gone already was removed by another run."""
    system, path = open_filesystem(folder)
    for name in names:
        with suppress(FileNotFoundError):
            system.delete_file(f"{path}/{name}")
