"""Test the tables of a run in a lakehouse: each date is replaced as a whole, and readers only see complete tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config

from tests.fakes.object_store import BUCKET, ObjectStore
from untold.jobs.inputs.files import find_files, inspect_files
from untold.jobs.lakehouse.base import Lake, LakehouseError
from untold.jobs.lakehouse.inputs import open_lake
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import Output
from untold.jobs.settings.sections import LakehouseSettings
from untold.jobs.tables import RESULT_TABLES
from untold.udfs.errors import UserError
from untold.udfs.storage import StoragePath

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
    """Write the files of a run in the same way as Spark."""
    folder = StoragePath(lake.folder("scores", SCHEMA)) / run
    folder.make_folder()
    for number in range(max(len(rows), 1)):
        pq.write_table(pa.Table.from_pylist(rows[number : number + 1], schema), f"{folder}/part-{number}.parquet")
    Path(str(folder), "_SUCCESS").touch()
    return str(folder)


def read(lake: Lake, name: str = "scores") -> list[dict[str, Any]]:
    """Return all rows in sorted order, read with the library of the format."""
    if lake.FORMAT == "delta":
        table = DeltaTable(f"{lake.place}/{name}").to_pyarrow_table()
    else:
        from pyiceberg.catalog import load_catalog

        table = load_catalog("local").load_table(f"nights.{name}").scan().to_arrow()
    return sorted(table.to_pylist(), key=str)


def row(name: str, score: float | None, **more: Any) -> dict[str, Any]:
    return {"sample_id": name, "score": score, "sources": ["1"], **more}


def test_rows_of_a_date_only_replace_rows_of_that_date(lake: Opened) -> None:
    first, second = map(lake, DAYS)
    first.replace("scores", write(first, "r0", []))
    assert read(first) == []
    first.replace("scores", write(first, "r1", [row("a", 0.25), row("b", None)]))
    second.replace("scores", write(second, "r2", [row("a", 1.0)]))
    first.replace("scores", write(first, "r3", [row("a", 0.5)]))
    assert read(first) == [row("a", 0.5, date=DAYS[0]), row("a", 1.0, date=DAYS[1])]
    # The same rows again, as after a kill between commit and manifest
    first.replace("scores", write(first, "r4", [row("a", 0.5)]))
    assert len(read(first)) == 2
    first.replace("scores", write(first, "r5", []))
    assert read(first) == [row("a", 1.0, date=DAYS[1])]


def test_dates_that_are_added_at_once_are_all_there(lake: Opened) -> None:
    lakes = [lake(date(2026, 11, day)) for day in range(1, 7)]
    folders = [write(one, "r", [row("a", 1.0)]) for one in lakes]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda one, folder: one.replace("scores", folder), lakes, folders))
    assert [found["date"] for found in read(lakes[0])] == [one.date for one in lakes]


def test_columns_are_added_and_other_types_are_refused(lake: Opened) -> None:
    first, second = map(lake, DAYS)
    first.replace("scores", write(first, "r1", [row("a", 0.25)]))
    wider = SCHEMA.append(pa.field("topic", pa.string()))
    second.replace("scores", write(second, "r2", [row("b", 0.5, topic="t")], wider))
    assert [found["topic"] for found in read(first)] == [None, "t"]
    other = SCHEMA.append(pa.field("topic", pa.list_(pa.int64())))
    folder = write(second, "r3", [row("b", 0.5, topic=[1])], other)
    with pytest.raises(LakehouseError, match=r", scores: `topic` is string in the table and list<"):
        second.check("scores", folder)
    assert [found["topic"] for found in read(first)] == [None, "t"]


def test_a_format_needs_its_settings() -> None:
    assert open_lake("parquet", LakehouseSettings(), DAYS[0]) is None
    with pytest.raises(UserError, match=r"needs lakehouse\.path: --set lakehouse\.path=DIR"):
        open_lake("delta", LakehouseSettings(), DAYS[0])
    with pytest.raises(UserError, match=r"needs lakehouse\.catalog and lakehouse\.namespace"):
        open_lake("iceberg", LakehouseSettings(catalog="local"), DAYS[0])


def test_delta_tables_can_be_in_object_stores(object_store: ObjectStore) -> None:
    settings = LakehouseSettings(path=f"s3://{BUCKET}/lake")
    for run, score in enumerate((0.25, 0.5)):
        lake = open_lake("delta", settings, DAYS[0])
        assert lake is not None
        folder = StoragePath(f"{lake.folder('scores', SCHEMA)}/r{run}")
        table = pa.Table.from_pylist([row("a", score)], SCHEMA)
        (folder / "part-0.parquet").write_whole(lambda file, table=table: pq.write_table(table, file))
        lake.replace("scores", str(folder))
    assert f"lake/scores/_delta_log/{2:020d}.json" in object_store.objects
    (file,) = inspect_files(find_files(f"delta:s3://{BUCKET}/lake/scores"))
    assert file.path == f"s3a://{BUCKET}/lake/scores/date=2026-11-20/r1/part-0.parquet"
    assert file.row_groups == (1,)
    (before,) = find_files(f"delta:s3://{BUCKET}/lake/scores@v1")
    assert before.path.endswith("/r0/part-0.parquet")


@pytest.mark.slow
def test_iceberg_tables_of_glue_can_be_in_object_stores(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"TYPE": "glue", "WAREHOUSE": f"s3://{BUCKET}/warehouse"}
    known |= {f"{kind}__ENDPOINT": object_store.endpoint for kind in ("GLUE", "S3")}
    known |= {f"{kind}__REGION": str(object_store.settings["region"]) for kind in ("GLUE", "S3")}
    for name, value in known.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__CLOUD__{name}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    settings = LakehouseSettings(catalog="cloud", namespace="nights")
    for run, (day, score) in enumerate([(DAYS[0], 0.25), (DAYS[1], 1.0), (DAYS[0], 0.5)]):
        lake = open_lake("iceberg", settings, day)
        assert lake is not None
        folder = StoragePath(f"{lake.folder('scores', SCHEMA)}/r{run}")
        table = pa.Table.from_pylist([row("a", score)], SCHEMA)
        (folder / "part-0.parquet").write_whole(lambda file, table=table: pq.write_table(table, file))
        lake.replace("scores", str(folder))
    rows = load_catalog("cloud").load_table("nights.scores").scan().to_arrow().to_pylist()
    assert sorted((row["date"], row["score"]) for row in rows) == [(DAYS[0], 0.5), (DAYS[1], 1.0)]
    (file,) = inspect_files(find_files(f"iceberg:cloud.nights.scores?date={DAYS[0]}"))
    assert file.path.startswith(f"s3a://{BUCKET}/")
    assert file.path.endswith("/r2/part-0.parquet")


TABLES = {name: RESULT_TABLES[name] for name in ("samples", "scores", "summary", "usage")}


class Killed(BaseException):
    """The process was killed."""


def end_night(lake: Lake, output: Path, ids: list[str], killed_before: int = -1) -> None:
    """Run one job that writes all tables with one row per id. It is killed before the commit with the given number."""
    commit, numbers = type(lake).commit, count()

    def commit_or_die(self: Lake, name: str, files: Any) -> int:
        if next(numbers) == killed_before:
            raise Killed
        return commit(self, name, files)

    # The output is not removed if the process is killed
    with patch.object(type(lake), "commit", commit_or_die), patch.object(Output, "_break_off"), suppress(Killed):
        with Output(str(output), tuple(TABLES), lake=lake) as run:
            run.claim({"input": "same"})
            run.begin({})
            # The tables are written in parallel, as in a run
            with ThreadPoolExecutor(3) as pool:
                rows = ([{schema.names[0]: one} for one in ids] for schema in TABLES.values())
                list(pool.map(run.write_rows, TABLES, rows, TABLES.values()))
            run.end(Ending(), usage=[])


@pytest.mark.gate
@pytest.mark.parametrize("number", range(len(TABLES) + 1))
def test_a_start_after_a_kill_between_commits_makes_all_tables_whole(lake: Opened, tmp_path: Path, number: int) -> None:
    first, second = map(lake, DAYS)
    end_night(first, tmp_path / "before", ["a"])
    end_night(second, tmp_path / "out", ["b"], killed_before=number)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["status"] == (
        "running" if number < len(TABLES) else "finished"
    )
    there = {name: {str(row["date"]) for row in read(first, name)} for name in TABLES}
    assert sum(len(dates) == 2 for dates in there.values()) == number
    assert len(there["summary"]) == 1 or number == len(TABLES)
    # A run with one more row replaces the rows of the first two runs
    end_night(second, tmp_path / "out", ["b", "c"])
    for name, schema in TABLES.items():
        rows = [(row[schema.names[0]], row["date"]) for row in read(first, name)]
        assert sorted(rows) == [("a", DAYS[0]), ("b", DAYS[1]), ("c", DAYS[1])], name
