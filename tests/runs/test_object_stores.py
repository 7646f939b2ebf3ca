"""Whole runs whose input, output and store lie in an object store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fakes.model_server import ModelServer
from tests.fakes.object_store import BUCKET, ObjectStore
from tests.runs.harness import Run, canonical, count_distinct, make_samples, read_manifest, write_samples
from tests.runs.here import RunHere

# A space and a percent sign are part of a key as they stand
OUTPUT = "runs of%20today/out"


def start(server: ModelServer, store: ObjectStore, folder: Path, *flags: str, **settings: Any) -> Run:
    """A run of the samples in the bucket, whose output and store lie there too."""
    places = ["--input", f"s3://{BUCKET}/in/*.jsonl", "--output", f"s3a://{BUCKET}/{OUTPUT}"]
    return Run(server, folder, folder / "run", *places, *flags, environment=store.variables, settings=settings)


def fetch(store: ObjectStore, folder: Path) -> Path:
    """The output in the bucket as a folder of this machine."""
    for key, content in store.objects.items():
        if key.startswith(f"{OUTPUT}/") and not key.endswith("/"):
            path = folder / "fetched" / key.removeprefix(f"{OUTPUT}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder / "fetched"


def put_samples(store: ObjectStore, folder: Path, rows: list[Mapping[str, Any]]) -> Path:
    """Samples in the bucket, and the same on this machine."""
    path = write_samples(folder / "samples.jsonl", rows)
    store.put("in/samples 1.jsonl", path.read_bytes())
    return path


def test_a_run_over_s3a_gives_the_tables_of_a_local_one(
    server: ModelServer, object_store: ObjectStore, run_here: RunHere, tmp_path: Path
) -> None:
    rows = make_samples(20)
    samples = put_samples(object_store, tmp_path, rows)
    ended = start(server, object_store, tmp_path).wait()
    assert (ended.code, server.count()) == (0, count_distinct(rows)), ended.err
    again = start(server, object_store, tmp_path).wait()
    assert (again.code, server.count()) == (0, count_distinct(rows)), again.err
    output = fetch(object_store, tmp_path)
    assert read_manifest(output)["status"] == "finished"
    assert run_here(server, samples, tmp_path / "local").code == 0
    assert canonical(output) == canonical(tmp_path / "local")
