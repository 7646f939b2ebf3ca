"""Test that the tables of an output are complete or missing: with added metrics, on object stores and after failed
runs.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.fakes.object_store import BUCKET, ObjectStore
from tests.runs.harness import snapshot
from untold.jobs.run.folders import Workspace
from untold.jobs.run.manifest import FORMAT, Added, OutputError
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import Output
from untold.jobs.run_tables import open_run
from untold.udfs.storage import StoragePath

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


def break_off(place: Path | str, *metrics: str, added: Added | None = None) -> None:
    with Output(str(place), TABLES, kept=("samples",)) as output:
        write(output, *metrics, added=added)
        raise ZeroDivisionError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with Output(str(tmp_path / "out"), TABLES) as output:
        write(output, "e2e")
        output.end(Ending())
    return tmp_path / "out"


def test_an_output_of_another_format_is_refused_until_it_is_overwritten(place: Path) -> None:
    manifest = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps(manifest | {"format": 1}))
    with pytest.raises(OutputError, match="belongs to another version of Untold"), Output(str(place), TABLES) as output:
        write(output, "e2e")
    with Output(str(place), TABLES, overwrite=True) as output:
        write(output, "e2e")
        output.end(Ending())
    assert json.loads((place / "manifest.json").read_text())["format"] == FORMAT


def metrics_of(place: Path) -> list[str]:
    run = open_run(place)
    found = [run.table(name)["metric"].to_pylist() for name in TABLES]
    assert found[0] == found[1] == run.manifest["metrics"] == run.manifest["identity"]["metrics"]
    return found[0]


def test_new_tables_replace_the_old_tables_at_the_end(place: Path) -> None:
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


def test_a_kill_during_the_replacement_of_tables_leaves_an_incomplete_output(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_incomplete_output_is_not_an_obstacle(place: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        break_off(place, "e2e")
    with Output(str(place), TABLES) as output:
        write(output, "e2e", "qa", added=ADDED)
        output.end(Ending())
    assert metrics_of(place) == ["e2e", "qa"]


def finish(place: str, *metrics: str, added: Added | None = None) -> Output:
    with Output(place, TABLES, kept=("samples",)) as output:
        write(output, *metrics, added=added)
        output.end(Ending())
    return output


def keys_of(object_store: ObjectStore, name: str) -> list[str]:
    return sorted(
        key.removeprefix("out/") for key in object_store.objects if key.startswith(f"out/{name}/") and key[-1] != "/"
    )


@pytest.mark.parametrize("added", [None, ADDED])
def test_on_an_object_store_each_run_has_its_own_table_folders_in_the_manifest(
    object_store: ObjectStore, added: Added | None
) -> None:
    place = f"s3://{BUCKET}/out"
    first = finish(place, "e2e")
    run = open_run(place)
    assert run.manifest["tables"] == {name: f"{name}/{first.run}" for name in TABLES}
    with Output(place, TABLES) as output:
        write(output, *(("e2e", "qa") if added else ("e2e",)), added=added)
        # The run that is already open reads the same files, because no file is overwritten or removed
        assert run.table("scores")["metric"].to_pylist() == ["e2e"]
        output.end(Ending(), counts={"failures": 0, "passing_failures": 0})
    again = open_run(place)
    assert again.tables == TABLES
    assert again.table("scores")["metric"].to_pylist() == (["e2e", "qa"] if added else ["e2e"])
    assert keys_of(object_store, "scores") == [f"scores/{output.run}/part-0.parquet"]
    assert Output(place, TABLES).seems_complete(retry_failed=False)


def test_a_failed_run_on_an_object_store_keeps_the_earlier_tables_or_none(object_store: ObjectStore) -> None:
    place = f"s3://{BUCKET}/out"
    finish(place, "e2e")
    with pytest.raises(ZeroDivisionError):
        break_off(place, "e2e", "qa", added=ADDED)
    assert open_run(place).table("scores")["metric"].to_pylist() == ["e2e"]
    assert len(keys_of(object_store, "scores")) == 1
    with pytest.raises(ZeroDivisionError):
        break_off(place, "e2e")
    run = open_run(place)
    assert (run.status, run.tables, list(run.manifest["tables"])) == ("failed", ("samples",), ["samples"])
    # A table in the folder of a run that is not in the manifest
    with Output(place, ("beta_sweep",)) as beside:
        beside.write_rows("beta_sweep", [{"metric": "e2e"}], SCHEMA)
    assert open_run(place).table("beta_sweep").num_rows == 1


def test_on_a_local_disk_tables_have_their_names_and_a_manifest_that_names_none_is_read(place: Path) -> None:
    run = open_run(place)
    assert run.manifest["tables"] == {name: name for name in TABLES}
    assert run.manifest["rows"] == dict.fromkeys(TABLES, 1)
    content = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps({**content, "tables": None}))
    assert metrics_of(place) == ["e2e"]


def test_what_cannot_be_removed_is_a_note_once_the_tables_are_written(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"s3://{BUCKET}/out"
    finish(place, "e2e")
    notes: list[str] = []

    def refuse(one: StoragePath) -> None:
        raise OSError(13, "Permission denied", str(one))

    monkeypatch.setattr(StoragePath, "remove", refuse)
    with Output(place, TABLES, notify=notes.append) as output:
        write(output, "e2e")
        output._workspace = Workspace(None, f"{place}/_work")  # type: ignore[arg-type]
        output.end(Ending())
    assert open_run(place).status == "finished"
    assert [note.partition(" could not be removed (Permission denied)")[0] for note in notes] == [
        f"{place}/_work",
        f"tables of an earlier start in {place}",
    ]


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
    # Actors on other machines read the files that Spark writes for them
    assert Output(remote, (), alone=False).workspace(spark).folder == f"{remote}/_work"
    assert Output(remote, (), work=str(tmp_path)).workspace(spark).folder.startswith(f"{tmp_path}/untold-")
    assert Output(str(tmp_path / "out"), ()).workspace(spark).folder == f"{tmp_path}/out/_work"
