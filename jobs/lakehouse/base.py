"""The common parts of both table formats: the files of a version, and the tables that an output is added to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from typing import Any, ClassVar, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from untold.udfs.errors import UserError
from untold.udfs.llm.store_files import count_rows
from untold.udfs.redaction import redact
from untold.udfs.storage import FileInfo, StoragePath

# The column of dates. It is a partition column and is not in the files
DATE = "date"
# The partition column. All rows of a file have the same value
DATE_FIELD = pa.field(DATE, pa.date32())
ATTEMPTS = 10
File = TypeVar("File")


class LakehouseError(UserError):
    """A table that cannot be read or extended. The message names the table and the remedy."""


class NoTableError(LakehouseError):
    """A table that does not exist or has no rows."""


@dataclass(frozen=True)
class ListedFile:
    """A file of a folder or a table: its path, its size in bytes, and its time in seconds since 1970, 0 if unknown.

    `constants` are the values of columns that the file need not have, from its folders or from the partition of its
    table. `names` are the columns of an Iceberg table by field id.
    """

    path: str
    size: int
    modified: float = 0.0
    constants: Mapping[str, pa.Scalar[Any]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


class TableVersion(NamedTuple):
    """A version of a table, as it is written after an `@`, and the files of the table or of a partition."""

    version: str
    files: Sequence[ListedFile]


def in_partition(what: str, files: Iterable[tuple[File, Mapping[str, str]]], wanted: Mapping[str, str]) -> list[File]:
    """Return the files with these values of partition columns, compared as text.

    files: each with the values of its partition columns. Raises LakehouseError for a column that does not partition a
    file, because its rows cannot be selected without reading the file.
    """
    found = []
    for file, parts in files:
        if lacking := [name for name in wanted if name not in parts]:
            known = f"by {', '.join(parts)}" if parts else "by no column"
            raise LakehouseError(
                f"{what}: a file is partitioned {known}, not by `{lacking[0]}`. Use a table with this partition column"
            )
        if all(parts[name] == value for name, value in wanted.items()):
            found.append(file)
    return found


class DataFile(NamedTuple):
    """A file to add to a table, with its number of rows."""

    entry: FileInfo
    rows: int


@dataclass(frozen=True)
class Lake(ABC):
    """Tables of all dates, one per name. The tables of an output are added to them as the rows of its date.

    `place` is a folder for Delta and `CATALOG.NAMESPACE` for Iceberg. Methods raise LakehouseError.
    """

    FORMAT: ClassVar[str]

    place: str
    date: date

    @property
    def shown(self) -> dict[str, str]:
        """Return the entry for a manifest."""
        return {"format": self.FORMAT, "place": self.place, "date": self.date.isoformat()}

    @abstractmethod
    def folder(self, name: str, schema: pa.Schema) -> str:
        """Return the folder of the files of the date. If the table does not exist, create it with these columns."""

    @abstractmethod
    def extend(self, name: str, schema: pa.Schema) -> None:
        """Add the missing columns to a table."""

    @abstractmethod
    def commit(self, name: str, files: Sequence[DataFile]) -> int:
        """Replace the files of the date with these files in one commit, and return the new version of the table."""

    def check(self, name: str, folder: str) -> None:
        """Add the missing columns of the files to a table. Raises LakehouseError for a column with another type."""
        files = data_files(folder)
        if files:
            with files[0].entry.place.open() as file:
                self.extend(name, pq.read_schema(file))

    def replace(self, name: str, folder: str) -> int:
        """Replace the files of the date with the files of a folder, and return the new version of the table."""
        self.check(name, folder)
        return self.commit(name, data_files(folder))

    def other_type(self, name: str, column: pa.Field[Any], there: object) -> LakehouseError:
        """Return the error for a column that has another type in its table."""
        return LakehouseError(
            f"{self.place}, {name}: `{column.name}` is {there} in the table and {column.type} in this output. Change "
            "the name or type of the column, or the settings lakehouse.*"
        )


def data_files(folder: str) -> list[DataFile]:
    """Return the Parquet files of a folder that have rows."""
    found = [entry for entry in StoragePath(folder).entries() if entry.name.endswith(".parquet")]
    rows = count_rows([entry.place for entry in found])
    return [DataFile(entry, number) for entry, number in zip(found, rows, strict=True) if number]


def repeated(commit: Callable[[], int], *lost: type[Exception]) -> int:
    """Run a commit, and repeat it with the current table after each conflict. Return the result."""
    for _ in range(ATTEMPTS - 1):
        with suppress(*lost):
            return commit()
    return commit()


@contextmanager
def telling(what: str, advice: str) -> Iterator[None]:
    """Convert an error of a library to a LakehouseError with its type and advice."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise LakehouseError(redact(f"{what}: {type(error).__name__} ({first}); {advice}")) from error
