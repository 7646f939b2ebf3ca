"""Parse tables as inputs and outputs: `delta:PATH[?COLUMN=VALUE][@VERSION]`, `iceberg:...`, `--output-format`."""

from __future__ import annotations

import os
import re
from datetime import UTC, date, datetime
from typing import NamedTuple

from untold.jobs.lakehouse.base import Lake, LakehouseError, TableVersion
from untold.jobs.settings.sections import LakehouseSettings
from untold.udfs.errors import require
from untold.udfs.storage import StoragePath

FORMATS = ("parquet", "delta", "iceberg")


def open_lake(format: str, settings: LakehouseSettings, day: date) -> Lake | None:
    """Return the tables of `--output-format`, or None for `parquet`. Raises LakehouseError for a missing setting."""
    if format == "delta":
        require("--output-format delta", "lakehouse", "deltalake")
        if settings.path is None:
            raise LakehouseError("--output-format delta needs lakehouse.path: --set lakehouse.path=DIR")
        from untold.jobs.lakehouse.delta import DeltaLake

        return DeltaLake(StoragePath(settings.path).spark, day)
    if format == "iceberg":
        require("--output-format iceberg", "lakehouse", "pyiceberg")
        if settings.catalog is None or settings.namespace is None:
            raise LakehouseError(
                "--output-format iceberg needs lakehouse.catalog and lakehouse.namespace: "
                "--set lakehouse.catalog=NAME --set lakehouse.namespace=NAME"
            )
        from untold.jobs.lakehouse.iceberg import IcebergLake

        return IcebergLake(f"{settings.catalog}.{settings.namespace}", day)
    return None


# The formats of versions that are not times
_VERSIONS = {"delta": re.compile(r"v\d+"), "iceberg": re.compile(r"\d+")}
_PARTITION = re.compile(r"(?P<name>.+)\?(?P<partition>[^?=&]+=[^?&]*(&[^?=&]+=[^?&]*)*)")
_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}


class TableName(NamedTuple):
    """A table: its format, a path or a name in a catalog, and the requested version as text.

    `partition` selects files by the values of partition columns, `day=2026-11-20` or `day=2026-11-20&n=1`.
    """

    format: str
    name: str
    version: str | None = None
    partition: str = ""

    @property
    def rows(self) -> str:
        """Return the input without its version."""
        return f"{self.format}:{self.name}{'?' if self.partition else ''}{self.partition}"

    @property
    def wanted(self) -> dict[str, str]:
        """Return the values of the partition columns."""
        pairs = (one.partition("=") for one in self.partition.split("&") if one)
        return {name: value for name, _, value in pairs}

    def at(self, version: str) -> str:
        """Return the input with a version."""
        return f"{self.rows}@{version}"


def table_named(path: str) -> TableName | None:
    """Return the table of an input, or None for files. Text after an `@` that is not a version belongs to the name.

    >>> table_named("delta:s3://lake/answers@v12")
    TableName(format='delta', name='s3://lake/answers', version='v12', partition='')
    >>> table_named("delta:answers?day=2026-11-20@v12").wanted
    {'day': '2026-11-20'}
    >>> table_named("iceberg:prod.nights.answers@2026-11-20T06:00:00Z").version, table_named("answers.parquet")
    ('2026-11-20T06:00:00Z', None)
    """
    kind, _, rest = path.partition(":")
    if kind not in _VERSIONS or not rest or os.path.exists(path):
        return None
    name, _, version = rest.rpartition("@")
    found = TableName(kind, name, version) if name and _read(kind, version) else TableName(kind, rest)
    parted = _PARTITION.fullmatch(found.name)
    return found._replace(name=parted["name"], partition=parted["partition"]) if parted else found


def _read(kind: str, version: str) -> str | datetime | None:
    """Return a version or a time (UTC if it has no zone), or None for other text."""
    if _VERSIONS[kind].fullmatch(version):
        return version
    try:
        time = datetime.fromisoformat(version)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def read_table(table: TableName) -> TableVersion:
    """Return the files of a table, or of its partition, at its version or the newest. Raises LakehouseError."""
    require(f"{table.format}:", "lakehouse", _PACKAGES[table.format])
    version = _read(table.format, table.version) if table.version else None
    if table.format == "delta":
        from untold.jobs.lakehouse import delta

        return delta.read_version(table.name, version, table.wanted)
    from untold.jobs.lakehouse import iceberg

    return iceberg.read_version(table.name, version, table.wanted)


def values_since(path: str, value: str, since: str) -> list[str]:
    """Return the values of a partition column with added or removed files since a version.

    path: a Delta table with the placeholder `value` for the partition column. Raises LakehouseError.
    """
    table = table_named(path)
    column = next((name for name, one in table.wanted.items() if one == value), None) if table else None
    if table is None or column is None:
        raise LakehouseError(
            f"--since without --date needs the date in the table's name: --input 'delta:PATH?day={value}'"
        )
    rest = "&".join(f"{name}={one}" for name, one in table.wanted.items() if name != column)
    then, now = (
        {(file.constants[column].as_py(), file.path) for file in read_table(one).files if column in file.constants}
        for one in (table._replace(version=since, partition=rest), table._replace(partition=rest))
    )
    # Rows without a value have no date
    return sorted({str(found) for found, _ in then ^ now if found is not None})


def pinned(path: str, earlier: str | None = None) -> str:
    """Return an input with its version: its own, the version of an earlier input, or the newest.

    A time becomes the version of that time. Files stay unchanged. Raises LakehouseError.
    """
    table = table_named(path)
    if table is None:
        return path
    before = table_named(earlier or "")
    if table.version is None and before is not None and before.rows == table.rows and before.version:
        return table.at(before.version)
    return table.at(read_table(table).version)


def location_of(path: str) -> str | None:
    """Return the folder of an input's files, or None for a table in a catalog."""
    table = table_named(path)
    return path if table is None else table.name if table.format == "delta" else None
