"""Tables as columns and canonical rows: read them from outputs, and read and write the frozen files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).resolve().parent
FROZEN, RENAMES = FOLDER / "frozen", FOLDER / "renames.json"
STORE = "completions"
# The reason, by table and column, that two runs never agree on a cell. Frozen tables lack these columns.
VOLATILE: Mapping[str, Mapping[str, str]] = {
    "usage": {
        "seconds": "a duration",
        "endpoint": "contains the port of the model server",
    },
    STORE: {
        "seconds": "a duration",
        "answered_at": "a time",
        "run_id": "a random id",
        "endpoint": "contains the port of the model server",
    },
}
Row = Mapping[str, Any]
_NULL = "null"


@dataclass(frozen=True)
class Table:
    """Columns with their types (`json` outside Parquet), and rows of canonical JSON per cell, sorted by all columns."""

    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, str]]


Tables = dict[str, Table]


def make_table(columns: Mapping[str, str], rows: Iterable[Row]) -> Table:
    """Return a table. A cell that a row lacks is null."""
    found = [{column: canonical(row.get(column)) for column in columns} for row in rows]
    return Table(columns, sort_rows(found, columns))


def sort_rows(rows: Iterable[Mapping[str, str]], columns: Iterable[str]) -> list[Mapping[str, str]]:
    """Return the rows sorted by these columns in their order."""
    names = list(columns)
    return sorted(rows, key=lambda row: tuple(row.get(name, "") for name in names))


def canonical(value: Any) -> str:
    """Return the one JSON text of a cell. A float keeps all its digits."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_as_text)


def _as_text(value: Any) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"no canonical form of {type(value).__name__}")


def read_tables(output: Path) -> Tables:
    """Return all Parquet tables of an output, each without its volatile columns; the store is one table."""
    files = [path for path in output.rglob("*.parquet") if not _is_inner(path.relative_to(output))]
    places = sorted({path if path.parent == output else path.parent for path in files})
    stored = [place for place in places if STORE in place.relative_to(output).parts]
    found = {
        place.relative_to(output).with_suffix("").as_posix(): _from_arrow(place.stem, [("", pq.read_table(place))])
        for place in places
        if place not in stored
    }
    if stored:
        parts = [(folder.name.rpartition("-")[0], pq.read_table(folder)) for folder in stored]
        found[STORE] = _from_arrow(STORE, parts)
    return found


def _is_inner(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def _from_arrow(name: str, parts: Sequence[tuple[str, pa.Table]]) -> Table:
    schema = parts[0][1].schema
    columns = {"stage": "string"} if name == STORE else {}
    columns |= {field.name: str(field.type) for field in schema if field.name not in VOLATILE.get(name, {})}
    return make_table(columns, ({"stage": stage, **row} for stage, part in parts for row in part.to_pylist()))


def read_json(data: Any, name: str) -> Tables:
    """Return the leaves of JSON data as a table of paths and values."""
    return {name: make_table({"path": "json", "value": "json"}, _leaves(data, ""))}


def _leaves(data: Any, path: str) -> Iterable[Row]:
    if isinstance(data, dict) and data:
        for name, value in data.items():
            yield from _leaves(value, f"{path}.{name}" if path else name)
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from _leaves(value, f"{path}[{index:03}]")
    else:
        yield {"path": path, "value": data}


def rows_table(rows: Sequence[Row]) -> Table:
    """Return rows of JSON as a table."""
    return make_table({column: "json" for row in rows for column in row}, rows)


def write_frozen(output: str, tables: Tables) -> None:
    """Write one file of JSON lines per table: the columns, then the rows without null cells. Remove former files."""
    folder = FROZEN / output
    for path in folder.glob("*.jsonl"):
        path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        lines = [json.dumps({"columns": table.columns}, separators=(",", ":")), *map(_line, table.rows)]
        path = folder / f"{name.replace('/', '+')}.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _line(row: Mapping[str, str]) -> str:
    cells = (f"{canonical(column)}:{cell}" for column, cell in row.items() if cell != _NULL)
    return "{" + ",".join(cells) + "}"


def read_frozen(output: str) -> Tables:
    """Return the frozen tables of an output, after the renames of `renames.json`."""
    renames = json.loads(RENAMES.read_text(encoding="utf-8"))
    found = {}
    for path in sorted((FROZEN / output).glob("*.jsonl")):
        head, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1])
        table = make_table(head["columns"], rows)
        found[path.stem.replace("+", "/")] = rename_columns(table, renames.get(path.stem.rpartition("+")[2], {}))
    return found


def rename_columns(table: Table, names: Mapping[str, str]) -> Table:
    """Return the table with new names for old columns."""
    columns = {names.get(column, column): kind for column, kind in table.columns.items()}
    return Table(columns, [{names.get(column, column): cell for column, cell in row.items()} for row in table.rows])
