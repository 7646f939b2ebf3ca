"""Makes few large files of the many small ones of a stage's folder, so that reading it stays as fast as it was.

Nothing is lost at whatever moment it is killed: merged files count once a snapshot names them, and what they replace
stays for a week. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import time
from uuid import uuid4

from untold.jobs.asking.snapshots import (
    MERGED,
    Listing,
    LiveFile,
    ReplacedFile,
    Snapshot,
    list_folder,
    write_snapshot,
)
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.store_files import Described, Merge, count_rows, digest_of, merge_files
from untold.udfs.storage import Entry, Place

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
    place = Place(folder) / name
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
            (Place(folder) / file.name).remove()


def are_whole(folder: str, listing: Listing, names: Iterable[str]) -> bool:
    """Whether files are there with a good footer, of the size that the snapshot says."""
    known = set(names)
    if not known <= set(listing.files):
        return False
    sizes_agree = all(listing.files[name].size == listing.named[name].size for name in known & set(listing.named))
    return sizes_agree and None not in count_rows(Place(folder) / name for name in sorted(known))


def _leftovers(folder: str, listing: Listing, now: float) -> Iterator[Entry]:
    """What killed compactions and killed writers left: merged files without a name, files aside.

    On an object store, which runs may use without a lock, another compaction may be at work: its files have a week.
    """
    known = {*listing.named, *(file.name for file in listing.replaced)}
    merging = (MERGED, f".{MERGED}")
    place = Place(folder)
    young = KEEP_SECONDS if place.local is None else 0
    for entry in place.entries():
        name, age = entry.name, now - entry.modified
        is_merged = listing.snapshot is not None and name.startswith(MERGED) and name not in known
        is_aside = name.startswith((".", "_probe-", "_compact-")) and age > LEFTOVER_SECONDS
        if ((is_merged or name.startswith(merging[1])) and age >= young) or is_aside:
            yield entry
