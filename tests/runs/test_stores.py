"""Test runs on each kind of object store with Arrow, obstore and the connector of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.stores import URIS, serve_store
from tests.runs.harness import Run, canonical, count_distinct, make_samples, read_manifest, write_samples
from tests.runs.here import RunHere
from untold.jobs.doctor import check_spark
from untold.jobs.settings.model import Settings, SparkSettings
from untold.jobs.settings.sections import StorageSettings
from untold.udfs.storage import StoragePath

pytestmark = pytest.mark.slow


# moto is in the gate
KINDS = [kind for kind in URIS if kind != "moto"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_probe_of_doctor_uses_the_same_libraries_as_a_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_store(kind, tmp_path / "store") as gateway:
        for name, value in gateway.variables.items():
            monkeypatch.setenv(name, value)
        spark = SparkSettings(master="local[1]", conf=dict(gateway.spark))
        storage = StorageSettings.model_validate(gateway.settings)
        found = check_spark(Settings(completion_store=f"{URIS[kind]}/a store%20", spark=spark, storage=storage))
        assert found.state == "ok", found.text
        # Spark and the server keep marker files for folders
        left = [e for e in StoragePath(URIS[kind]).entries(recursive=True) if e.kind == "file" and e.size]
        assert left == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_over_an_object_store_has_the_tables_of_a_local_run(
    kind: str, server: ModelServer, run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_samples(20)
    samples = write_samples(tmp_path / "samples.jsonl", rows)
    # The key contains a space and a percent sign on purpose
    uri, output = URIS[kind], f"{URIS[kind]}/runs of%20today/out"
    with serve_store(kind, tmp_path / "store") as gateway:
        for name, value in gateway.variables.items():
            monkeypatch.setenv(name, value)
        StoragePath(str(samples)).copy(StoragePath(f"{uri}/in/samples 1.jsonl"))
        flags = ["--input", f"{uri}/in/*.jsonl", "--output", output]
        spark = {f"spark.conf.{name}": value for name, value in gateway.spark.items()}
        for _ in range(2):
            run = Run(server, samples, tmp_path / "run", *flags, environment=gateway.variables, settings=spark)
            ended = run.wait()
            assert (ended.code, server.count()) == (0, count_distinct(rows)), ended.err
        StoragePath(output).copy(StoragePath(str(tmp_path / "fetched")))
        StoragePath(output).remove()
        assert [entry for entry in StoragePath(output).entries(recursive=True) if entry.kind == "file"] == []
    assert read_manifest(tmp_path / "fetched")["status"] == "finished"
    assert run_here(server, samples, tmp_path / "local").code == 0
    assert canonical(tmp_path / "fetched") == canonical(tmp_path / "local")
