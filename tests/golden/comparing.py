"""Find the first cell that differs between frozen tables and new tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.golden.tables import Table, Tables, sort_rows

_MOST_CHARACTERS = 300
_KEY_COLUMNS = 4


@dataclass(frozen=True)
class Difference:
    """One cell that differs. Row and column are empty if a whole table differs, the column is empty for a whole row."""

    table: str
    row: str
    column: str
    frozen: str
    now: str

    def __str__(self) -> str:
        place = ": ".join(filter(None, (self.table, self.row, self.column and f"column {self.column}")))
        return f"{place}: frozen {_cut(self.frozen)}, now {_cut(self.now)}"


def find_difference(frozen: Tables, now: Tables) -> Difference | None:
    """Return the first difference of two outputs, or None if they are equal."""
    for name in sorted({*frozen, *now}):
        if name not in now or name not in frozen:
            before, today = ("a table" if name in tables else "no table" for tables in (frozen, now))
            return Difference(name, "", "", before, today)
        found = _compare_columns(name, frozen[name], now[name]) or _compare_rows(name, frozen[name], now[name])
        if found:
            return found
    return None


def _compare_columns(name: str, frozen: Table, now: Table) -> Difference | None:
    for column in [*frozen.columns, *now.columns]:
        kinds = [table.columns.get(column, "no column") for table in (frozen, now)]
        if kinds[0] != kinds[1]:
            return Difference(name, "", column, *kinds)
    return None


def _compare_rows(name: str, frozen: Table, now: Table) -> Difference | None:
    lost = _missing_from(now, frozen)
    new = _missing_from(frozen, now)
    if not lost and not new:
        return None
    if not lost or not new:
        kinds = ("no such row", "a row") if new else ("a row", "no such row")
        return Difference(name, _key_of((lost or new)[0], {}), "", *kinds)
    row = lost[0]
    nearest = max(new, key=lambda other: sum(row[column] == other[column] for column in row))
    column = next(column for column in frozen.columns if row[column] != nearest[column])
    return Difference(name, _key_of(row, nearest), column, row[column], nearest[column])


def _missing_from(table: Table, other: Table) -> Sequence[Mapping[str, str]]:
    """Return the rows of the other table that this one lacks, a repeated row as often as it lacks it."""
    columns = sorted(other.columns)
    known = Counter(tuple(row[column] for column in columns) for row in table.rows)
    missing = []
    for row in sort_rows(other.rows, other.columns):
        cells = tuple(row[column] for column in columns)
        if known[cells]:
            known[cells] -= 1
        else:
            missing.append(row)
    return missing


def _key_of(row: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Name the row by its first columns with a text that the other row shares."""
    texts = [column for column, cell in row.items() if cell.startswith('"') and other.get(column, cell) == cell]
    cells = (f"{column}={_cut(row[column])}" for column in texts[:_KEY_COLUMNS])
    return f"row {' '.join(cells) or _cut(str(dict(row)))}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
