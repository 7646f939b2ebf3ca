"""Which requests a folder of completions answers already, by the rules of a run. Imports no pyspark."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from untold.jobs.asking.snapshots import find_damaged, find_whole, set_aside
from untold.udfs.llm.retrying import is_passing
from untold.udfs.llm.units import RequestIds, list_units, read_request_ids
from untold.udfs.storage import Place

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
            notify(f"damaged files were moved to {folder}/damaged and are asked again: {shown}")

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
        with (Place(folder) / name).open() as file:
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
