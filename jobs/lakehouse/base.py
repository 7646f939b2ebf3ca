"""What tables of both formats have in common: the files of a version, and what an output's tables are added to."""

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

# The column that tells the dates of a table apart; no file has it
DATE = "date"
# What many tables of one name differ in, and every file of one date has the same value of
DATE_FIELD = pa.field(DATE, pa.date32())
ATTEMPTS = 10
File = TypeVar("File")


class LakehouseError(UserError):
    """A table that cannot be read, or not be added to. The message names it and says what to do."""


class NoTableError(LakehouseError):
    """A table that is not there, or has no rows."""


@dataclass(frozen=True)
class TableFile:
    """A Parquet file of a table.

    `constants`: values of partition columns, which need not be in the file; `names`: of Iceberg, the table's columns by
    their field ids.
    """

    path: str
    size: int
    modified: float = 0.0
    constants: Mapping[str, pa.Scalar[Any]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


class TableVersion(NamedTuple):
    """A version of a table as it is written behind an `@`, and its files, or those of a partition."""

    version: str
    files: Sequence[TableFile]


def in_partition(what: str, files: Iterable[tuple[File, Mapping[str, str]]], wanted: Mapping[str, str]) -> list[File]:
    """The files whose partition columns have these values, as text.

    files: each with the values of those that its rows are told apart by. Raises LakehouseError for a column that a file
    is not partitioned by, whose rows nobody could tell apart without reading it.
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
    """A file that is to be added to a table, with its rows."""

    entry: FileInfo
    rows: int


@dataclass(frozen=True)
class Lake(ABC):
    """Tables, one of each name for all dates, that the tables of an output are added to as those of its date.

    `place`: of Delta a folder, of Iceberg `CATALOG.NAMESPACE`. Methods raise LakehouseError.
    """

    FORMAT: ClassVar[str]

    place: str
    date: date

    @property
    def shown(self) -> dict[str, str]:
        """What a manifest says of it."""
        return {"format": self.FORMAT, "place": self.place, "date": self.date.isoformat()}

    @abstractmethod
    def folder(self, name: str, schema: pa.Schema) -> str:
        """Where files of the date of a table lie, which is made with these columns where there is none."""

    @abstractmethod
    def extend(self, name: str, schema: pa.Schema) -> None:
        """Adds the columns that a table lacks."""

    @abstractmethod
    def commit(self, name: str, files: Sequence[DataFile]) -> int:
        """Puts the files in the place of those of the date, all at once, and gives the table's new version."""

    def check(self, name: str, folder: str) -> None:
        """Adds the columns of files that a table lacks. Raises for one that has another type there."""
        files = data_files(folder)
        if files:
            with files[0].entry.place.open() as file:
                self.extend(name, pq.read_schema(file))

    def replace(self, name: str, folder: str) -> int:
        """Puts a folder's files in the place of those of the date, and gives the table's new version."""
        self.check(name, folder)
        return self.commit(name, data_files(folder))

    def other_type(self, name: str, column: pa.Field[Any], there: object) -> LakehouseError:
        """The error about a column that has another type in its table."""
        return LakehouseError(
            f"{self.place}, {name}: `{column.name}` is {there} in the table and {column.type} in this output. Change "
            "the name or type of the column, or the settings lakehouse.*"
        )


def data_files(folder: str) -> list[DataFile]:
    """The Parquet files of a folder that have rows."""
    found = [entry for entry in StoragePath(folder).entries() if entry.name.endswith(".parquet")]
    rows = count_rows([entry.place for entry in found])
    return [DataFile(entry, number) for entry, number in zip(found, rows, strict=True) if number]


def repeated(commit: Callable[[], int], *lost: type[Exception]) -> int:
    """What a commit gives, which starts from the table as it then is each time that it lost a race with another."""
    for _ in range(ATTEMPTS - 1):
        with suppress(*lost):
            return commit()
    return commit()


@contextmanager
def telling(what: str, advice: str) -> Iterator[None]:
    """Raises what a library says of a table as LakehouseError: its kind, and what to check."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise LakehouseError(redact(f"{what}: {type(error).__name__} ({first}); {advice}")) from error
