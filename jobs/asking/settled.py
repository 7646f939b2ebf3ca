"""What the standalone answering command knows of a store before it asks, by the rules of a run. Imports no pyspark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import pyarrow as pa
import pyarrow.parquet as pq

from untold.jobs.asking.snapshots import find_damaged, find_whole, set_aside
from untold.jobs.run.locks import FolderLock
from untold.udfs.files import is_local, make_folder
from untold.udfs.llm.retrying import is_passing
from untold.udfs.llm.segments import open_filesystem
from untold.udfs.llm.units import list_units, read_request_ids

COLUMNS = ["request_id", "error_type"]


@contextmanager
def hold_folder(folder: str, run: str, *, wait: bool) -> Iterator[Callable[[], bool]]:
    """Makes a stage's folder and is its one spender; gives whether that was lost. Raises LockedError without `wait`."""
    make_folder(folder)
    path = open_filesystem(folder)[1]
    lock = FolderLock(path, run, wait=wait, notify=_say) if is_local(folder) else None
    if lock is None:
        _say("the store is no local disk, where runs do not see each other: start one at a time on it")
    with lock or nullcontext():
        yield lambda: lock is not None and lock.lost


def settled_ids(requests: str, folder: str, *, retry_failed: bool = False) -> frozenset[str]:
    """The requests under a path that need no asking: answered ones, and those that failed for a lasting reason.

    Ids are held in memory, some 100 bytes each, and only those of requests under the path: a store may have many more.
    Damaged files of the folder are moved aside and named. Raises OSError where one cannot be read.
    """
    wanted = {one for unit in list_units(requests) for one in read_request_ids(unit)}
    settled: set[str] = set()
    while True:
        whole = find_whole(folder, move=True)
        _say_damaged(folder, whole.damaged)
        broken = [name for name in whole.names if not _add_settled(folder, name, wanted, settled, retry_failed)]
        if not broken:
            return frozenset(settled)
        _say_damaged(folder, set_aside(folder, broken))


def _add_settled(folder: str, name: str, wanted: set[str], settled: set[str], retry_failed: bool) -> bool:
    """Adds what a file has of the wanted requests; False where the file is damaged."""
    system, path = open_filesystem(folder)
    found: set[str] = set()
    try:
        with system.open_input_file(f"{path}/{name}") as file:
            for batch in pq.ParquetFile(file, page_checksum_verification=True).iter_batches(columns=COLUMNS):
                rows = zip(*(_column(batch, column) for column in COLUMNS), strict=True)
                found.update(one for one, error in rows if one in wanted and not _is_asked(error, retry_failed))
    except (OSError, pa.ArrowException):
        if find_damaged(folder, [name]):
            return False
        raise
    # Only of a file that was read to its end: what a damaged one seemed to hold is asked again
    settled |= found
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


def _say_damaged(folder: str, names: Iterable[str]) -> None:
    if shown := ", ".join(names):
        _say(f"damaged files were moved to {folder}/damaged and are asked again: {shown}")


def _say(line: str) -> None:
    """To standard error: standard output has the events, one JSON object a line."""
    print(f"untold: {line}", file=sys.stderr, flush=True)
