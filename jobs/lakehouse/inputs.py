"""Tables as inputs: `delta:PATH[@VERSION]` and `iceberg:CATALOG.DB.TABLE[@VERSION]`, at one version."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from typing import NamedTuple

from untold.jobs.lakehouse.base import TableVersion
from untold.udfs.errors import require

# How a version is written that is no time
_VERSIONS = {"delta": re.compile(r"v\d+"), "iceberg": re.compile(r"\d+")}
_PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}


class TableName(NamedTuple):
    """A table: its format, a path or a name in a catalog, and the version that is asked for, as it is written."""

    format: str
    name: str
    version: str | None = None

    def at(self, version: str) -> str:
        """The input that is this table at a version."""
        return f"{self.format}:{self.name}@{version}"


def table_named(path: str) -> TableName | None:
    """The table that an input names; None for files. What is no version belongs to the name.

    >>> table_named("delta:s3://lake/answers@v12")
    TableName(format='delta', name='s3://lake/answers', version='v12')
    >>> table_named("iceberg:prod.nights.answers@2026-11-20T06:00:00Z").version, table_named("answers.parquet")
    ('2026-11-20T06:00:00Z', None)
    """
    kind, _, rest = path.partition(":")
    if kind not in _VERSIONS or not rest or os.path.exists(path):
        return None
    name, _, version = rest.rpartition("@")
    return TableName(kind, name, version) if name and _read(kind, version) else TableName(kind, rest)


def _read(kind: str, version: str) -> str | datetime | None:
    """A version, or a time, of UTC where it names no zone; None for another text."""
    if _VERSIONS[kind].fullmatch(version):
        return version
    try:
        time = datetime.fromisoformat(version)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def read_table(table: TableName) -> TableVersion:
    """The files of a table at its version, or the newest. Raises LakehouseError."""
    require(f"{table.format}:", "lakehouse", _PACKAGES[table.format])
    version = _read(table.format, table.version) if table.version else None
    if table.format == "delta":
        from untold.jobs.lakehouse import delta

        return delta.read_version(table.name, version)
    from untold.jobs.lakehouse import iceberg

    return iceberg.read_version(table.name, version)


def pinned(path: str, earlier: str | None = None) -> str:
    """An input with its version: of a table that names none that of an earlier input, else the newest.

    A time becomes the version of that time. Files stay as they are. Raises LakehouseError.
    """
    table = table_named(path)
    if table is None:
        return path
    before = table_named(earlier or "")
    if table.version is None and before is not None and before[:2] == table[:2] and before.version:
        return table.at(before.version)
    return table.at(read_table(table).version)


def location_of(path: str) -> str | None:
    """Where the files of an input lie; None for a table that only its catalog can find."""
    table = table_named(path)
    return path if table is None else table.name if table.format == "delta" else None
