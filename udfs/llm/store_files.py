"""Files of completions as they lie in a store: whether they are whole, what they hold, several made one."""

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

# Waits before each try at a file that cannot be read: a mount or an object store that stumbles is back within seconds.
PAUSES = (0.0, 0.1, 1.0, 5.0)
READ_BYTES = 8 * 2**20
BATCH_ROWS = 1024
# Large enough for zstd and for a scan by columns, small enough that a merge holds tens of megabytes.
ROW_GROUP_BYTES = 16 * 2**20
# What Arrow raises for bytes that are no Parquet: of its own, and a name that is no text (ValueError).
UNREADABLE = (OSError, ValueError, pa.ArrowException, MemoryError)

Given = TypeVar("Given")


class DamagedError(ValueError):
    """A file's bytes can be read and are no Parquet."""


@dataclass(frozen=True)
class Described:
    """A file of a folder: its bare name, rows by its footer, bytes, and a hash of all its bytes."""

    name: str
    rows: int
    size: int
    digest: str


def read_fields(place: StoragePath, *names: str) -> list[dict[str, Any]]:
    """The rows of a file, with those columns that it has. Raises DamagedError, or OSError where it cannot be read."""
    rows: list[dict[str, Any]] | None = _read(place, lambda file: pq.ParquetFile(file).read(list(names)).to_pylist())
    if rows is None:
        raise DamagedError(f"{place} is damaged")
    return rows


def count_rows(places: Iterable[StoragePath]) -> list[int | None]:
    """The rows of each file by its footer; None for one that is damaged.

    Raises OSError for one that cannot be read to its end, FileNotFoundError for one that is gone.

    Only footers are read: a file may be thousands of times as long.
    """
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        return list(pool.map(lambda place: _read(place, _rows_by_footer), places))


def is_damaged(place: StoragePath, digest: str | None = None) -> bool:
    """Whether a file can be read and makes no sense, by reading all of it; or is not what its digest says.

    Raises OSError where it cannot be read.
    """
    if _read(place, _read_through) is None:
        return True
    return digest is not None and digest_of(place) != digest


def digest_of(place: StoragePath) -> str:
    """A hash of a file's bytes, 32 hex characters."""
    digest = blake2b(digest_size=16)
    with place.open() as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


@dataclass(frozen=True)
class Unneeded:
    """Rows that nobody needs: answered before a time, and of no request that is `needed`."""

    before: datetime
    needed: RequestIds

    def kept(self, rows: pa.RecordBatch) -> pa.Array:
        """Whether each row stays; one that does not say when it was answered does."""
        ids, times = (rows.column(name).to_pylist() for name in ("request_id", "answered_at"))
        young = np.array([at is None or at >= self.before for at in times], np.bool_)
        return pa.array(young | (self.needed.places(ids) >= 0))


def count_kept(place: StoragePath, unneeded: Unneeded) -> tuple[int, int]:
    """The rows of a file, and how many of them stay. Raises DamagedError, or OSError where it cannot be read."""

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
    """Files of a folder that are to become one there. It may be done on any machine that sees the folder.

    `size`: the bytes of the files. Without those rows that are `unneeded`; `rows` then says how many there will be.
    """

    folder: str
    names: tuple[str, ...]
    target: str
    schema: pa.Schema
    size: int
    unneeded: Unneeded | None = None
    rows: int | None = None


def merge_files(merge: Merge) -> Described:
    """Writes the rows of the files into the new one. It holds one row group of them at a time.

    Columns are those of the schema, then what the files have beyond it: another version may have paid for that.
    Raises ValueError or OSError, and writes nothing, where a file is not whole.
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
    """Writes the rows of the files that are needed in their order to an open stream; how many there were."""
    written, size, held = 0, 0, [schema.empty_table()]
    # Checksums of pages are verified as they are read and written anew: a merge is no place where damage becomes
    # content.
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
    """The rows with the columns of `schema`, null where there are none; engines write some types differently."""
    known = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in known else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _with_further(schema: pa.Schema, others: Sequence[pa.Schema]) -> pa.Schema:
    """The schema, and behind it the columns that only others have, in the order in which they are found."""
    further = {field.name: field for other in others for field in other if field.name not in schema.names}
    return pa.schema([*schema, *further.values()])


def _read(place: StoragePath, make: Callable[[Any], Given]) -> Given | None:
    """What `make` gives of an open file; None where it fails twice on a file whose bytes can all be read.

    Only that is damage: a disk or a network that fails says nothing about the content, and may be well again soon.
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
            # Twice, as a mount that stumbles may first give bytes that are not the file's.
            if senseless == 2:
                return None
            if last:
                raise OSError(f"{place} cannot be read ({error}). Repair its disk, or move it elsewhere") from error
    return None


def _has_readable_bytes(place: StoragePath) -> bool:
    """Whether every byte of a file can be read, whatever it says."""
    try:
        digest_of(place)
    except OSError:
        return False
    return True


def _rows_by_footer(file: Any) -> int:
    """The rows that a file's footer says it has."""
    return int(pq.read_metadata(file).num_rows)


def _read_through(file: Any) -> int:
    """The rows of a file, each of its values decoded."""
    parquet, rows = pq.ParquetFile(file, page_checksum_verification=True), 0
    for batch in parquet.iter_batches(BATCH_ROWS):
        batch.validate(full=True)
        rows += batch.num_rows
    if rows != parquet.metadata.num_rows:
        raise pa.ArrowInvalid(f"{rows:,} rows, not the {parquet.metadata.num_rows:,} of the footer")
    return rows
