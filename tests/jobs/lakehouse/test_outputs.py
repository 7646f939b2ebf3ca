"""Tables of runs in a lakehouse: replaced by date, whole at any moment, and read back by others than who wrote them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog

from untold.jobs.lakehouse.base import Lake, LakehouseError
from untold.jobs.lakehouse.outputs import open_lake
from untold.jobs.settings.storage import LakehouseSettings
from untold.udfs.errors import UserError
from untold.udfs.storage import Place

SCHEMA = pa.schema([("sample_id", pa.string()), ("score", pa.float64()), ("sources", pa.list_(pa.string()))])
DAYS = date(2026, 11, 20), date(2026, 11, 21)
Opened = Callable[[date], Lake]


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, catalog: Catalog, tmp_path: Path) -> Opened:
    settings = LakehouseSettings(path=str(tmp_path / "lake"), catalog="local", namespace="nights")

    def opened(day: date) -> Lake:
        found = open_lake(request.param, settings, day)
        assert found is not None
        return found

    return opened


def write(lake: Lake, run: str, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> str:
    """Files of a start, as Spark leaves them."""
    folder = Place(lake.folder("scores", SCHEMA)) / run
    folder.make_folder()
    pq.write_table(pa.Table.from_pylist(rows, schema), f"{folder}/part-0.parquet")
    Path(str(folder), "_SUCCESS").touch()
    return str(folder)


def read(lake: Lake) -> list[dict[str, Any]]:
    """All rows by the format's own library, sorted."""
    if lake.FORMAT == "delta":
        table = DeltaTable(f"{lake.place}/scores").to_pyarrow_table()
    else:
        from pyiceberg.catalog import load_catalog

        table = load_catalog("local").load_table("nights.scores").scan().to_arrow()
    return sorted(table.to_pylist(), key=lambda row: (row["date"], row["sample_id"]))


def row(name: str, score: float | None, **more: Any) -> dict[str, Any]:
    return {"sample_id": name, "score": score, "sources": ["1"], **more}


def test_rows_of_a_date_take_the_place_of_those_of_that_date_alone(lake: Opened) -> None:
    first, second = map(lake, DAYS)
    first.replace("scores", write(first, "r1", [row("a", 0.25), row("b", None)]))
    second.replace("scores", write(second, "r2", [row("a", 1.0)]))
    first.replace("scores", write(first, "r3", [row("a", 0.5)]))
    assert read(first) == [row("a", 0.5, date=DAYS[0]), row("a", 1.0, date=DAYS[1])]
    # The same again, as after a kill between a commit and the manifest
    first.replace("scores", write(first, "r4", [row("a", 0.5)]))
    assert len(read(first)) == 2
    first.replace("scores", write(first, "r5", []))
    assert read(first) == [row("a", 1.0, date=DAYS[1])]


def test_columns_are_added_and_other_types_are_refused(lake: Opened) -> None:
    first, second = map(lake, DAYS)
    first.replace("scores", write(first, "r1", [row("a", 0.25)]))
    wider = SCHEMA.append(pa.field("topic", pa.string()))
    second.replace("scores", write(second, "r2", [row("b", 0.5, topic="t")], wider))
    assert [found["topic"] for found in read(first)] == [None, "t"]
    other = SCHEMA.append(pa.field("topic", pa.list_(pa.int64())))
    folder = write(second, "r3", [row("b", 0.5, topic=[1])], other)
    with pytest.raises(LakehouseError, match=r", scores: `topic` is string there and list<"):
        second.check("scores", folder)
    assert [found["topic"] for found in read(first)] == [None, "t"]


def test_a_format_needs_its_settings() -> None:
    assert open_lake("parquet", LakehouseSettings(), DAYS[0]) is None
    with pytest.raises(UserError, match=r"needs lakehouse\.path: --set lakehouse\.path=DIR"):
        open_lake("delta", LakehouseSettings(), DAYS[0])
    with pytest.raises(UserError, match=r"needs lakehouse\.catalog and lakehouse\.namespace"):
        open_lake("iceberg", LakehouseSettings(catalog="local"), DAYS[0])
