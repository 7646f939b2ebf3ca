"""Run on tables of a lakehouse: the inputs have one version, and each night is complete in each table or not there."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession

from tests.fakes.model_server import ModelServer
from tests.jobs.lakehouse.tables import catalog_variables
from tests.runs.harness import Ended, Row, count_distinct, make_samples, read_manifest
from tests.runs.here import RunHere
from untold.jobs.lakehouse.delta import DeltaLake
from untold.jobs.lakehouse.iceberg import IcebergLake
from untold.jobs.run.output import Output
from untold.jobs.run_tables import open_run
from untold.jobs.tables import RESULT_TABLES

pytestmark = pytest.mark.gate

SAMPLES = make_samples(20)
DATE = "2026-11-20"
CATALOG = {"lakehouse.catalog": "local", "lakehouse.namespace": "nights"}


class Killed(BaseException):
    """The process was killed."""


class World:
    """A folder with the table `answers` and with runs that write its scores into `lake`."""

    def __init__(self, run_here: RunHere, server: ModelServer, folder: Path) -> None:
        self._run, self.server, self.folder = run_here, server, folder
        self.output = folder / "out"

    @property
    def answers(self) -> str:
        return f"delta:{self.folder / 'answers'}"

    def add(self, rows: list[Row], **options: Any) -> None:
        write_deltalake(str(self.folder / "answers"), pa.Table.from_pylist(rows), mode="append", **options)

    def run(
        self,
        *flags: str,
        input: str | None = None,
        output: Path | None = None,
        command: str = "score",
        **settings: Any,
    ) -> Ended:
        place = {"lakehouse.path": self.folder / "lake", "completion_store": self.folder / "store", **CATALOG}
        paths: Any = (input or self.answers, output or self.output)
        return self._run(self.server, *paths, *flags, settings={**place, **settings}, command=command)

    def nights(self, *flags: str) -> Ended:
        """Run the nights of the table, which is partitioned by `day`, and write into tables of the lake."""
        named, output = f"{self.answers}?day={{date}}", self.folder / "nights" / "{date}"
        words = ("--metric", "e2e", "--output-format", "delta", *flags)
        return self.run(*words, input=named, output=output, command="nightly")

    def delta(self, name: str) -> list[Row]:
        rows: list[Row] = DeltaTable(str(self.folder / "lake" / name)).to_pyarrow_table().to_pylist()
        return rows

    def iceberg(self, name: str) -> list[Row]:
        rows: list[Row] = load_catalog("local").load_table(f"nights.{name}").scan().to_arrow().to_pylist()
        return rows

    @property
    def version(self) -> str:
        version: str = read_manifest(self.output)["input"]["version"]
        return version


@pytest.fixture
def world(run_here: RunHere, server: ModelServer, tmp_path: Path) -> Iterator[World]:
    with patch.dict(os.environ, catalog_variables(tmp_path)):
        # It reads variables when it is imported
        with patch("pyiceberg.catalog._ENV_CONFIG", Config()):
            yield World(run_here, server, tmp_path)


def by_id(rows: list[Row]) -> dict[str, Row]:
    return {row["sample_id"]: row for row in rows}


@contextmanager
def killed_at(lake: type, number: int) -> Iterator[None]:
    """End a run just before the commit with this number. As with SIGKILL, no file is removed."""
    names: list[str] = []
    commit: Callable[..., int] = lake.commit  # type: ignore[attr-defined]

    def commit_or_die(self: Any, name: str, files: Any) -> int:
        if len(names) == number:
            raise Killed
        names.append(name)
        return commit(self, name, files)

    with patch.object(lake, "commit", commit_or_die), patch.object(Output, "_break_off"):
        yield


@pytest.mark.slow
def test_a_run_names_the_version_of_its_input_and_resumes_with_it(world: World) -> None:
    world.add(SAMPLES[:5])
    world.add(SAMPLES[5:10])
    first = world.run()
    assert first.code == 0, first.err
    assert world.version == "v1"
    assert read_manifest(world.output)["input"]["path"] == f"{world.answers}@v1"
    calls = world.server.count()
    world.add(SAMPLES[10:])
    again = world.run()
    assert again.code == 0, again.err
    assert "Nothing to do" in again.out
    assert world.server.count() == calls == count_distinct(SAMPLES[:10])
    other = world.run(input=f"{world.answers}@v2")
    assert other.code == 1
    assert "another input" in other.err
    # With `--since`, only the new rows need requests, and the tables contain all rows
    since = world.run("--since", "v1")
    assert since.code == 0, since.err
    assert world.version == "v2"
    assert "10 late, 0 changed, 0 gone" in since.err
    assert world.server.count() == count_distinct(SAMPLES)
    assert read_manifest(world.output)["counts"]["samples"] == 20
    # A new output has the same rows, because the store has the completions
    elsewhere = world.run("--since", "v1", output=world.folder / "elsewhere")
    assert elsewhere.code == 0, elsewhere.err
    assert world.server.count() == count_distinct(SAMPLES)
    assert open_run(world.folder / "elsewhere").summary().equals(open_run(world.output).summary())
    unknown = world.run("--since", "v1", output=world.folder / "unknown", completion_store=world.folder / "empty")
    assert unknown.code == 1
    assert "has no completions, so every row needs requests. Remove --since" in unknown.err


@pytest.mark.parametrize("format", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_a_night_is_in_the_lakehouse_once_after_any_failure(world: World, spark: SparkSession, format: str) -> None:
    lake, read = (DeltaLake, world.delta) if format == "delta" else (IcebergLake, world.iceberg)
    flags = ("--output-format", format, "--date", DATE)
    # The input has a column of the user
    world.add([{**row, "topic": row["system"]} for row in SAMPLES[:10]])
    with killed_at(lake, 4), suppress(Killed):
        pytest.fail(world.run(*flags).err)
    assert read("scores") == []
    calls = world.server.count()
    ended = world.run(*flags)
    assert ended.code == 0, ended.err
    assert world.server.count() == calls
    run = open_run(world.output)
    for name in RESULT_TABLES:
        ours = run.table(name).to_pylist()
        theirs = [{key: value for key, value in row.items() if key != "date"} for row in read(name)]
        assert sorted(map(str, ours)) == sorted(map(str, theirs)), name
        assert {str(row["date"]) for row in read(name)} <= {DATE}
    assert [row["topic"] for row in read("samples")] == [row["system"] for row in read("samples")]
    files = [str(run.path_of(name)) for name in ("scores", "statements")]
    assert spark.read.parquet(files[0]).count() == 10
    # There are no new rows, so the run does not write
    versions = read_manifest(world.output)["lakehouse"]["versions"]
    assert "Nothing to do" in world.run(*flags).out
    assert read_manifest(world.output)["lakehouse"]["versions"] == versions
    # Late rows are added, and the run is killed before it commits the last table
    world.add([{**row, "topic": "late"} for row in SAMPLES[10:]])
    with killed_at(lake, len(RESULT_TABLES) - 1), suppress(Killed):
        pytest.fail(world.run(*flags, "--since", "v0").err)
    assert read_manifest(world.output)["status"] == "running"
    ended = world.run(*flags)
    assert ended.code == 0, ended.err
    assert len(by_id(read("scores"))) == len(read("scores")) == 20
    (overall,) = [row for row in read("summary") if row["level"] == "overall"]
    assert overall["n"] == 20
    assert world.server.count() == count_distinct(SAMPLES)


@pytest.mark.slow
def test_nights_of_one_table_read_the_changes_since_a_version(world: World, run_here: RunHere) -> None:
    def add(rows: list[Row], day: int) -> None:
        world.add([{**row, "day": date(2026, 11, day)} for row in rows], partition_by=["day"])

    def night(day: int) -> Row:
        return read_manifest(world.folder / "nights" / f"2026-11-{day}")

    add(SAMPLES[:6], 19)
    add(SAMPLES[6:12], 20)
    first = world.nights("--backfill", "2026-11-19", "2026-11-21")
    assert first.code == 0, first.err
    assert "2026-11-21: empty" in first.out
    assert [night(day)["counts"]["samples"] for day in (19, 20)] == [6, 6]
    assert night(20)["input"]["path"] == f"{world.answers}?day=2026-11-20@v1"
    assert world.server.count() == count_distinct(SAMPLES[:12])
    # One date has an update, a delete and late rows, and another date is new
    table = DeltaTable(str(world.folder / "answers"))
    updated = {**SAMPLES[6], "response": "Fact C6."}
    table.update({"response": "'Fact C6.'"}, predicate=f"sample_id = '{updated['sample_id']}'")
    table.delete(f"sample_id = '{SAMPLES[7]['sample_id']}'")
    add(SAMPLES[12:14], 20)
    add(SAMPLES[14:16], 21)
    since = world.nights("--since", "v1", "--order", "oldest")
    assert since.code == 0, since.err
    assert [line.split(",")[0] for line in since.out.splitlines()[:2]] == [
        "2026-11-20: finished",
        "2026-11-21: finished",
    ]
    assert night(20)["input"]["changes"] == {"late": 2, "changed": 1, "gone": 1}
    assert world.server.count() == count_distinct([*SAMPLES[:12], updated, *SAMPLES[12:16]])
    (overall,) = [row for row in night(20)["summary"] if row["level"] == "overall"]
    assert overall["n"] == 7
    counted = Counter(str(row["date"]) for row in world.delta("scores"))
    assert counted == {"2026-11-19": 6, "2026-11-20": 7, "2026-11-21": 2}
    # The trend reads the tables of the lake
    words = ["trend", str(world.folder / "nights"), "--output", str(world.folder / "trend"), "--json"]
    points = json.loads(run_here.command(words).out)["points"]
    assert {row["date"]: row["n"] for row in points if row["level"] == "overall"} == dict(counted)


def test_a_missing_part_of_a_lakehouse_is_one_line(world: World) -> None:
    world.add(SAMPLES[:2])
    missing = world.run("--output-format", "delta", **{"lakehouse.path": "null"})
    assert missing.code == 1
    assert "--output-format delta needs lakehouse.path: --set lakehouse.path=DIR" in missing.err
    nowhere = world.run(input=f"delta:{world.folder / 'nowhere'}")
    assert nowhere.code == 1
    assert "is not a Delta table" in nowhere.err
