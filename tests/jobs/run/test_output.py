"""An output that gets metrics beside those that it has keeps its tables until the new ones are whole."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.fakes.object_store import BUCKET
from tests.runs.harness import snapshot
from untold.jobs.results import open_run
from untold.jobs.run.manifest import Added
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import Output

TABLES = ("samples", "scores")
SCHEMA = pa.schema([("metric", pa.string())])
ADDED = Added(lambda _: True, "i")


def identity(*metrics: str) -> dict[str, Any]:
    return {"input": "i", "metrics": sorted(metrics), "results": {}, "stages": {}}


def write(output: Output, *metrics: str, added: Added | None = None) -> None:
    output.claim(identity(*metrics), added)
    output.begin({}, metrics=list(metrics))
    for name in TABLES:
        output.write_rows(name, [{"metric": metric} for metric in metrics], SCHEMA)


def break_off(place: Path, *metrics: str, added: Added | None = None) -> None:
    with Output(str(place), TABLES, kept=("samples",)) as output:
        write(output, *metrics, added=added)
        raise ZeroDivisionError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with Output(str(tmp_path / "out"), TABLES) as output:
        write(output, "e2e")
        output.end(Ending())
    return tmp_path / "out"


def metrics_of(place: Path) -> list[str]:
    run = open_run(place)
    found = [run.table(name)["metric"].to_pylist() for name in TABLES]
    assert found[0] == found[1] == run.manifest["metrics"] == run.manifest["identity"]["metrics"]
    return found[0]


def test_new_tables_take_the_place_of_the_old_ones_at_the_end(place: Path) -> None:
    with Output(str(place), TABLES) as output:
        write(output, "e2e", "qa", added=ADDED)
        assert metrics_of(place) == ["e2e"]
        output.end(Ending("budget"))
    assert metrics_of(place) == ["e2e", "qa"]
    assert open_run(place).manifest["status"] == "budget"


def test_an_error_before_the_end_leaves_all_as_it_was(place: Path) -> None:
    before = snapshot(place)
    with pytest.raises(ZeroDivisionError):
        break_off(place, "e2e", "qa", added=ADDED)
    assert snapshot(place).items() >= {name: it for name, it in before.items() if "_lock" not in name}.items()
    assert metrics_of(place) == ["e2e"]


def test_a_kill_while_tables_are_replaced_is_no_whole_output(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Output(str(place), TABLES) as output:
        write(output, "e2e", "qa", added=ADDED)
        monkeypatch.setattr(Output, "__exit__", lambda *_: None)
        (place / "_work" / "tables" / "scores").rename(place / "_work" / "elsewhere")
        with pytest.raises(FileNotFoundError):
            output.end(Ending())
    assert output.manifest["status"] == "running"
    again = Output(str(place), TABLES)
    assert again.metrics() == ("e2e", "qa")
    assert not again.seems_complete(retry_failed=False)


def test_what_was_not_whole_is_no_obstacle(place: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        break_off(place, "e2e")
    with Output(str(place), TABLES) as output:
        write(output, "e2e", "qa", added=ADDED)
        output.end(Ending())
    assert metrics_of(place) == ["e2e", "qa"]


def test_each_file_of_relations_is_sorted_and_has_all_rows_of_its_samples(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(f"s{n % 40:02d}", f"{n // 40:02d}") for n in range(400)]
    frame = spark.createDataFrame(rows, "sample_id string, premise_id string").repartition(8)
    with Output(str(tmp_path / "out"), ("relations",)) as output:
        written = output.write("relations", frame, order=("sample_id", "premise_id"))
        assert sorted(map(tuple, written.collect())) == sorted(rows)
    files = [pq.read_table(path).to_pylist() for path in (tmp_path / "out" / "relations").glob("*.parquet")]
    for file in files:
        assert file == sorted(file, key=lambda row: (row["sample_id"], row["premise_id"]))
    owners = [name for file in files for name in {row["sample_id"] for row in file}]
    assert len(owners) == len(set(owners)) == 40


@pytest.mark.usefixtures("object_store")
def test_steps_of_an_output_in_an_object_store_stay_on_this_machine(spark: SparkSession, tmp_path: Path) -> None:
    remote = f"s3://{BUCKET}/out"
    here = Output(remote, ()).workspace(spark).folder
    assert Path(here).is_relative_to(tempfile.gettempdir())
    assert here == Output(remote, ()).workspace(spark).folder != Output(f"{remote}2", ()).workspace(spark).folder
    # Actors on other machines read what Spark writes for them
    assert Output(remote, (), alone=False).workspace(spark).folder == f"{remote}/_work"
    assert Output(remote, (), work=str(tmp_path)).workspace(spark).folder.startswith(f"{tmp_path}/untold-")
    assert Output(str(tmp_path / "out"), ()).workspace(spark).folder == f"{tmp_path}/out/_work"
