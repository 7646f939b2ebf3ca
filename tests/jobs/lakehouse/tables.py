"""Create Delta and Iceberg tables with their own libraries. The Iceberg catalog is in SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyiceberg.catalog import Catalog, load_catalog

ANSWERS = pa.schema([("query", pa.string()), ("response", pa.string()), ("contexts", pa.list_(pa.string()))])


def answers(*names: str, **more: Any) -> pa.Table:
    """Return one row per name. The values of `more` are the same in all rows."""
    rows = [{"query": f"q {name}", "response": f"r {name}", "contexts": [f"c {name}"], **more} for name in names]
    extra = [(name, pa.scalar(value).type) for name, value in more.items()]
    return pa.Table.from_pylist(rows, schema=pa.schema([*ANSWERS, *extra]))


def append_delta(path: Path, rows: pa.Table, **options: Any) -> None:
    """Append a new version to a Delta table."""
    write_deltalake(str(path), rows, mode="append", **options)


def catalog_variables(folder: Path) -> dict[str, str]:
    """Return the variables that configure the catalog `local` of `pyiceberg` in a folder."""
    return {
        "PYICEBERG_CATALOG__LOCAL__TYPE": "sql",
        "PYICEBERG_CATALOG__LOCAL__URI": f"sqlite:///{folder}/catalog.db",
        "PYICEBERG_CATALOG__LOCAL__WAREHOUSE": f"file://{folder}/warehouse",
    }


def open_catalog() -> Catalog:
    """Return the catalog of `catalog_variables` with a namespace `db`."""
    catalog = load_catalog("local")
    catalog.create_namespace_if_not_exists("db")
    return catalog
