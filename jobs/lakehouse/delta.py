"""Read and write Delta tables with `deltalake`, which does not need Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from untold.jobs.lakehouse import base
from untold.udfs.storage import StoragePath

CHECK = "check the path, its rights, and storage.*"


def read_version(path: str, version: str | datetime | None, wanted: Mapping[str, str]) -> base.TableVersion:
    """Return the files of a table, or of a partition, at a version (`v12`), at a time, or at the newest version.

    Raises LakehouseError if the files need more than a Parquet reader, and NoTableError if there is no table.
    """
    place = StoragePath(path).spark
    with base.telling(f"delta:{path}", CHECK):
        try:
            table = DeltaTable(place, storage_options=StoragePath(place).options)
        except TableNotFoundError as error:
            raise base.NoTableError(
                f"delta:{path} is not a Delta table. Check the path and the version (such as @v12, or a time)"
            ) from error
        _load(table, path, version)
        files = _files(place, pa.table(table.get_add_actions(flatten=False)))
        parts = [{name: str(value.as_py()) for name, value in file.constants.items()} for file in files]
        chosen = base.in_partition(f"delta:{path}", zip(files, parts, strict=True), wanted)
        _check_readable(table, path, chosen)
    return base.TableVersion(f"v{table.version()}", chosen)


def _files(place: str, actions: pa.Table) -> list[base.ListedFile]:
    """Return the files of add actions. The values of partition columns are typed Arrow scalars."""
    rows = actions.select(["path", "size_bytes", "modification_time"]).to_pylist()
    partitions = actions.column("partition") if "partition" in actions.column_names else [{}] * len(rows)
    files = []
    for row, values in zip(rows, partitions, strict=True):
        path = unquote(row["path"])
        # A clone has full paths to the files of another table
        whole = StoragePath(path).spark if "://" in path else f"{place}/{path}"
        files.append(base.ListedFile(whole, row["size_bytes"], row["modification_time"] / 1000, dict(values.items())))
    return files


def _load(table: DeltaTable, path: str, version: str | datetime | None) -> None:
    """Load a version of the table. Raises LakehouseError if it does not exist."""
    newest = table.version()
    if isinstance(version, str):
        if (number := int(version.removeprefix("v"))) > newest:
            raise base.LakehouseError(f"delta:{path}@{version} does not exist. The newest version is v{newest}")
        table.load_as_version(number)
    elif version is not None:
        # For earlier times, the library would load the first version
        if table.history()[-1]["timestamp"] > version.timestamp() * 1000:
            raise base.LakehouseError(f"the table delta:{path} is newer than {version.isoformat()}. Use a later time")
        table.load_as_version(version)


def _check_readable(table: DeltaTable, path: str, files: Sequence[base.ListedFile]) -> None:
    """Raise LakehouseError if a Parquet reader would not see the rows or the column names of the table."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise base.LakehouseError(
            f"delta:{path} uses column mapping (delta.columnMapping.mode={mode}), which is not supported. Write a copy "
            "of the table without column mapping, and use the copy"
        )
    if "deletionVectors" in (table.protocol().reader_features or []) and _has_vectors(table, files):
        raise base.LakehouseError(
            f"delta:{path} has deletion vectors, which are not supported. Rewrite the files first with "
            "REORG TABLE ... APPLY (PURGE)"
        )


def _has_vectors(table: DeltaTable, files: Sequence[base.ListedFile]) -> bool:
    """Return True if rows of these files are marked as deleted. Names of files are unique."""
    names = {file.path.rpartition("/")[2] for file in files}
    marked = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
    return any(unquote(path).rpartition("/")[2] in names for path in marked)


@dataclass(frozen=True)
class DeltaLake(base.Lake):
    """Delta tables below a folder: `place/scores`, `place/statements`, ...

    Files are in the folder of their table, because `deltalake` only reads relative paths of add actions.
    """

    FORMAT: ClassVar[str] = "delta"

    def folder(self, name: str, schema: pa.Schema) -> str:
        with self._telling(name):
            self._table(name, schema)
        return f"{self._path(name)}/{base.DATE}={self.date}"

    def extend(self, name: str, schema: pa.Schema) -> None:
        with self._telling(name):
            wanted, table = Schema.from_arrow(schema), self._table(name)
            there = {field.name: field for field in table.schema().fields}
            for field in wanted.fields:
                if (known := there.get(field.name, field)).type != field.type:
                    raise self.other_type(name, schema.field(field.name), pa.field(known).type)
            if new := [field for field in wanted.fields if field.name not in there]:
                table.alter.add_columns(new)

    def commit(self, name: str, files: Sequence[base.DataFile]) -> int:
        with self._telling(name):
            return base.repeated(lambda: self._commit(name, files), CommitFailedError)

    def _commit(self, name: str, files: Sequence[base.DataFile]) -> int:
        table = self._table(name)
        table.create_write_transaction(
            [self._added(name, file) for file in files],
            "overwrite",
            table.schema(),
            [base.DATE],
            partition_filters=[(base.DATE, "=", self.date.isoformat())],
        )
        table.update_incremental()
        return int(table.version())

    def _added(self, name: str, file: base.DataFile) -> AddAction:
        relative = str(file.entry.place).removeprefix(f"{self._path(name)}/")
        return AddAction(
            path=quote(relative, safe="/="),
            size=file.entry.size,
            partition_values={base.DATE: self.date.isoformat()},
            modification_time=int(file.entry.modified * 1000),
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )

    def _table(self, name: str, schema: pa.Schema | None = None) -> DeltaTable:
        """Return the table. If it does not exist and `schema` is given, create it."""
        path = self._path(name)
        try:
            return DeltaTable(path, storage_options=StoragePath(path).options)
        except TableNotFoundError:
            if schema is None:
                raise
        columns = Schema.from_arrow(schema.append(base.DATE_FIELD))
        return DeltaTable.create(
            path, columns, "ignore", partition_by=[base.DATE], storage_options=StoragePath(path).options
        )

    def _path(self, name: str) -> str:
        return f"{self.place}/{name}"

    def _telling(self, name: str) -> Any:
        return base.telling(self._path(name), CHECK)
