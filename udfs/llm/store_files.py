"""Read, check and merge the files of completions in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from time import sleep
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from untold.udfs.llm.units import RequestIds
from untold.udfs.storage import FOOTERS_AT_ONCE, StoragePath

# Seconds before each attempt to read a file, because a mount or an object store can fail for a few seconds
PAUSES = (0.0, 0.1, 1.0, 5.0)
READ_BYTES = 8 * 2**20
BATCH_ROWS = 1024
# Large enough for zstd and for a scan by columns, and small enough for a merge with tens of megabytes of memory
ROW_GROUP_BYTES = 16 * 2**20
# The errors of Arrow for invalid Parquet, with ValueError for a name that is not text
UNREADABLE = (OSError, ValueError, pa.ArrowException, MemoryError)

Given = TypeVar("Given")


class DamagedError(ValueError):
    """A readable file that is not valid Parquet."""


@dataclass(frozen=True)
class Described:
    """A file of a folder: its name, the rows in its footer, its size, and a hash of its bytes."""

    name: str
    rows: int
    size: int
    digest: str


def read_fields(place: StoragePath, *names: str) -> list[dict[str, Any]]:
    """Return the rows of a file with its columns among `names`. Raises DamagedError, or OSError if it is unreadable."""
    rows: list[dict[str, Any]] | None = _read(place, lambda file: pq.ParquetFile(file).read(list(names)).to_pylist())
    if rows is None:
        raise DamagedError(f"{place} is damaged")
    return rows


def count_rows(places: Iterable[StoragePath]) -> list[int | None]:
    """Return the number of rows in the footer of each file, None for a damaged file.

    Only footers are read, because files are much larger. Raises OSError for an unreadable file, and FileNotFoundError
    for a missing one.
    """
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        return list(pool.map(lambda place: _read(place, _rows_by_footer), places))


def is_damaged(place: StoragePath, digest: str | None = None) -> bool:
    """Return True if a readable file is invalid or has another digest. This reads the whole file.

    Raises OSError if it is unreadable.
    """
    if _read(place, _read_through) is None:
        return True
    return digest is not None and digest_of(place) != digest


def digest_of(place: StoragePath) -> str:
    """Return the hash of the bytes of a file: 32 hex characters."""
    digest = blake2b(digest_size=16)
    with place.open() as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


@dataclass(frozen=True)
class Unneeded:
    """Unneeded rows: completed before a time, and of no request in `needed`."""

    before: datetime
    needed: RequestIds

    def kept(self, rows: pa.RecordBatch) -> pa.Array:
        """Return True for each row to keep. Rows without a time of completion are kept."""
        ids, times = (rows.column(name).to_pylist() for name in ("request_id", "answered_at"))
        young = np.array([at is None or at >= self.before for at in times], np.bool_)
        return pa.array(young | (self.needed.places(ids) >= 0))


def count_kept(place: StoragePath, unneeded: Unneeded) -> tuple[int, int]:
    """Return the rows of a file, and the rows to keep. Raises DamagedError, or OSError if it is unreadable."""

    def count(file: Any) -> tuple[int, int]:
        columns = ["request_id", "answered_at"]
        kept = [unneeded.kept(rows) for rows in pq.ParquetFile(file).iter_batches(columns=columns)]
        return sum(map(len, kept)), sum(one.true_count for one in kept)

    counted = _read(place, count)
    if counted is None:
        raise DamagedError(f"{place} is damaged")
    return counted


@dataclass(frozen=True)
class Merge:
    """A merge of files of a folder into one, on any machine with access to the folder.

    `size` is the bytes of the files. Rows in `unneeded` are left out, and `rows` is then the number of kept rows.
    """

    folder: str
    names: tuple[str, ...]
    target: str
    schema: pa.Schema
    size: int
    unneeded: Unneeded | None = None
    rows: int | None = None


def merge_files(merge: Merge) -> Described:
    """Write the rows of the files into the new file, with one row group in memory.

    The columns are the columns of the schema, then all others of the files, which another version may have written.
    Raises ValueError or OSError, and writes nothing, if a file is incomplete.
    """
    folder = StoragePath(merge.folder)
    places = [folder / name for name in merge.names]
    footers = [_footer(place) for place in places]
    columns = _with_further(merge.schema, [footer.schema.to_arrow_schema() for footer in footers])
    rows = sum(footer.num_rows for footer in footers) if merge.rows is None else merge.rows

    def write(stream: Any) -> None:
        if (written := _copy_rows(places, columns, stream, merge.unneeded)) != rows:
            raise ValueError(f"{written:,} of {rows:,} rows could be read from {len(places)} files of {folder}")

    target = folder / merge.target
    target.write_whole(write)
    return Described(merge.target, rows, target.entry().size, digest_of(target))


def _footer(place: StoragePath) -> Any:
    with place.open() as file:
        return pq.read_metadata(file)


def _copy_rows(places: Sequence[StoragePath], schema: pa.Schema, stream: Any, unneeded: Unneeded | None) -> int:
    """Write the needed rows of the files in their order to an open stream, and return their number."""
    written, size, held = 0, 0, [schema.empty_table()]
    # Checksums of pages are verified and written again, so that a merge does not copy damaged bytes
    with pq.ParquetWriter(stream, schema, compression="zstd", write_page_checksum=True) as writer:
        for place in places:
            with place.open() as file:
                parquet = pq.ParquetFile(file, page_checksum_verification=True)
                for batch in parquet.iter_batches(BATCH_ROWS, use_threads=False):
                    rows = batch if unneeded is None else batch.filter(unneeded.kept(batch))
                    held.append(_conform(rows, schema))
                    written, size = written + rows.num_rows, size + held[-1].nbytes
                    if size >= ROW_GROUP_BYTES:
                        writer.write_table(pa.concat_tables(held))
                        size, held = 0, held[:1]
        writer.write_table(pa.concat_tables(held))
    return written


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return the rows with the columns and types of `schema`. Missing columns are null."""
    known = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in known else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _with_further(schema: pa.Schema, others: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema with the additional columns of the others at its end, in their order."""
    further = {field.name: field for other in others for field in other if field.name not in schema.names}
    return pa.schema([*schema, *further.values()])


def _read(place: StoragePath, make: Callable[[Any], Given]) -> Given | None:
    """Return the result of `make` for an open file, None if it fails twice for a file with readable bytes.

    Only such a file is damaged. Errors of a disk or a network are temporary, and do not depend on the content.
    """
    senseless = 0
    for last, pause in zip((False,) * (len(PAUSES) - 1) + (True,), PAUSES, strict=True):
        sleep(pause)
        try:
            with place.open() as file:
                return make(file)
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            senseless += _has_readable_bytes(place)
            # Twice, because a failing mount can return wrong bytes at first
            if senseless == 2:
                return None
            if last:
                raise OSError(f"{place} cannot be read ({error}). Repair its disk, or move it elsewhere") from error
    return None


def _has_readable_bytes(place: StoragePath) -> bool:
    """Return True if all bytes of a file can be read."""
    try:
        digest_of(place)
    except OSError:
        return False
    return True


def _rows_by_footer(file: Any) -> int:
    """Return the number of rows in the footer of a file."""
    return int(pq.read_metadata(file).num_rows)


def _read_through(file: Any) -> int:
    """Return the number of rows of a file after decoding all values."""
    parquet, rows = pq.ParquetFile(file, page_checksum_verification=True), 0
    for batch in parquet.iter_batches(BATCH_ROWS):
        batch.validate(full=True)
        rows += batch.num_rows
    if rows != parquet.metadata.num_rows:
        raise pa.ArrowInvalid(f"{rows:,} rows, not the {parquet.metadata.num_rows:,} of the footer")
    return rows
