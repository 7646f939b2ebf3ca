"""Test Spark on several machines. If a machine does not share a folder, the run stops before the first call."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import make_samples, read_manifest, read_table, score, write_samples
from tests.runs.standalone import Standalone
from untold.jobs.doctor import check_spark
from untold.jobs.settings.model import Settings, SparkSettings
from untold.jobs.settings.sections import KnowledgeSettings

pytestmark = [pytest.mark.slow, pytest.mark.alone]
SAMPLES = make_samples(20)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that one of the workers cannot see."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, hidden: Path) -> Iterator[Standalone]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        started = Standalone(tmp_path_factory.mktemp("standalone"), hidden, port)
    except PermissionError as error:
        pytest.skip(str(error))
    yield started
    started.close()


def test_an_executor_that_does_not_see_the_output_is_named_in_one_line(
    standalone: Standalone, server: ModelServer, tmp_path: Path, hidden: Path
) -> None:
    path = write_samples(tmp_path / "samples.jsonl", SAMPLES)
    ended = score(server, path, hidden / "out", settings=standalone.settings, environment=standalone.environment)
    assert (ended.code, server.count()) == (1, 0), ended.err
    (line,) = [line for line in ended.err.splitlines() if line.startswith("untold:")]
    assert f"{hidden}/out is not shared by the executor on" in line
    assert "a place that all machines share" in line


def test_a_store_that_an_executor_does_not_see_is_named_by_doctor_too(
    standalone: Standalone, server: ModelServer, tmp_path: Path, hidden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_samples(tmp_path / "samples.jsonl", SAMPLES)
    settings = {**standalone.settings, "completion_store": hidden / "store"}
    ended = score(server, path, tmp_path / "out", settings=settings, environment=standalone.environment)
    assert (ended.code, server.count()) == (1, 0), ended.err
    assert f"{hidden}/store is not shared by the executor on" in ended.err
    conf = {name.removeprefix("spark.conf."): value for name, value in standalone.settings.items()}
    given = SparkSettings(master=conf.pop("spark.master"), conf=conf)
    monkeypatch.setenv("SPARK_LOCAL_IP", standalone.environment["SPARK_LOCAL_IP"])
    found = check_spark(Settings(spark=given, completion_store=str(hidden / "store")))
    assert (found.state, "store is not shared by the executor on" in found.text) == ("FAIL", True), found.text
    index = hidden / "index"
    index.mkdir()
    (index / "manifest.json").write_text("{}")
    found = check_spark(Settings(spark=given, knowledge=KnowledgeSettings(index=str(index))))
    assert (found.state, f"{index}/manifest.json" in found.text) == ("FAIL", True), found.text


def test_workers_that_share_all_score_every_sample(standalone: Standalone, server: ModelServer, tmp_path: Path) -> None:
    write_samples(tmp_path / "samples.jsonl", SAMPLES)
    # The path is relative to the command, which runs in a folder next to the output
    path, output = Path("..") / "samples.jsonl", tmp_path / "out"
    ended = score(server, path, output, settings=standalone.settings, environment=standalone.environment)
    assert (ended.code, read_manifest(output)["status"]) == (0, "finished"), ended.err
    assert [row["status"] for row in read_table(output, "scores")] == ["ok"] * len(SAMPLES)
