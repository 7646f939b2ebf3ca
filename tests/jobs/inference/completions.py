"""Completions for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.inference.store.compaction import Whole, find_whole
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.store_files import write_file
from untold.udfs.storage import StoragePath

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Row = dict[str, Any]


def row(request_id: str = "r", *, minute: int = 0, **fields: Any) -> Row:
    """Return a row of `completions`. The row has no error if it has a text."""
    return {"request_id": request_id, "answered_at": NOON + timedelta(minutes=minute), **fields}


def failed(error_type: str, **fields: Any) -> Row:
    return row(error_type=error_type, error=f"why {error_type}", **fields)


def write(folder: Path, name: str, rows: Sequence[Row]) -> Path:
    """Write a file of completions."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(f"{folder}/{name}", pa.Table.from_pylist(list(rows), COMPLETIONS))
    return folder / name


def segments_of(folder: Path, run: str, count: int) -> list[Path]:
    """Write files of one row each, in the same form as a run."""
    return [
        write(folder, f"{run}-a-{number:06d}.parquet", [row(f"{run}-{number}", text=f"t{number}")])
        for number in range(count)
    ]


def break_pages(path: Path) -> None:
    """Overwrite the rows of a file and keep its footer."""
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    path.write_bytes(content[:4] + b"\xff" * (len(content) - 4 - footer) + content[-footer:])


def break_column(path: Path, name: str) -> int:
    """Overwrite the values of one column and return the number of rows. The other columns remain readable."""
    footer, content = pq.read_metadata(path), bytearray(path.read_bytes())
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(footer.schema.names.index(name))
        first = chunk.dictionary_page_offset or chunk.data_page_offset
        content[first : first + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
    rows: int = footer.num_rows
    return rows


def read_rows(folder: Path, whole: Whole | None = None) -> list[Row]:
    """Return the rows of the live files, sorted by request id."""
    names = (whole or find_whole(str(folder), move=False)).names
    rows: list[Row] = [one for name in names for one in pq.read_table(folder / name, schema=COMPLETIONS).to_pylist()]
    return sorted(rows, key=lambda one: (one["request_id"], str(one["answered_at"])))


def names_in(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


class KilledError(BaseException):
    """The process stops at this point, as after a kill."""


def killed_after(monkeypatch: pytest.MonkeyPatch, changes: int) -> Callable[[], int]:
    """Raise KilledError before the change of the disk after this number of changes. Return their current number."""
    made = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any) -> Any:
            nonlocal made
            if made == changes:
                raise KilledError
            made += 1
            return change(*given)

        return act

    for name in ("write_whole", "put_if_absent", "remove"):
        monkeypatch.setattr(StoragePath, name, counted(getattr(StoragePath, name)))
    return lambda: made
