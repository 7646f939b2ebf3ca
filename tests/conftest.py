"""Fixtures: one Spark session for all tests, a model server, a small disk and an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from tests.fakes.disks import SmallDisk
from tests.fakes.model_server import ModelServer
from tests.runs.cluster import SharedCluster
from tests.runs.here import RunHere
from untold.jobs.run.session import SMALL_JVM, open_session
from untold.jobs.settings.model import Settings, SparkSettings

if TYPE_CHECKING:
    # It takes a second to import
    from tests.fakes.object_store import ObjectStore

# Each run tests the same examples, so that failures repeat. Use `--hypothesis-profile=search` for random examples.
settings.register_profile("untold", deadline=None, derandomize=True)
settings.register_profile("quick", settings.get_profile("untold"), max_examples=20)
settings.register_profile("search", deadline=None, max_examples=1000)
ROOT = Path(__file__).resolve().parent.parent
# xdist sets this variable in its processes, and commands would use it to shorten their tables
os.environ.pop("COLUMNS", None)
# For a few rows, Spark and the JVM need more time to compile a plan than to run it
SPARK = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Workers import the modules of the tests, and otherwise only installed packages
    "spark.executorEnv.PYTHONPATH": str(ROOT),
}


def pytest_configure(config: pytest.Config) -> None:
    """Load fewer examples for the quick tests. Hypothesis loads the profile of its option after this one."""
    settings.load_profile("quick" if "not gate" in config.getoption("markexpr") else "untold")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two processes for all tests, and none if the command line names tests: one process starts faster."""
    return 0 if config.args_source is pytest.Config.ArgsSource.ARGS else 2


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    begun = SparkSession.getActiveSession()
    assert begun is None, "an earlier test opened its own session; use the fixture `spark` in that test"
    # The session sets variables for its workers. They would hide modules of this folder from the subprocesses of tests
    with patch.dict(os.environ):
        session = open_session(Settings(spark=SparkSettings(master="local[2]", conf=SPARK)), "untold-tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[SharedCluster]:
    """Start one Ray cluster for all runs of this process."""
    started = SharedCluster()
    yield started
    started.close()


@pytest.fixture(scope="session")
def run_here(spark: SparkSession, shared_cluster: SharedCluster) -> Iterator[RunHere]:
    """Return a runner of commands in this process. It uses the shared Spark session and the shared Ray cluster."""
    runs = RunHere(spark, shared_cluster)
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def module_server() -> Iterator[ModelServer]:
    """Start one model server for each module."""
    with ModelServer() as started:
        yield started


@pytest.fixture
def server(module_server: ModelServer) -> ModelServer:
    """Return the server of the module in its initial state. Some folders and modules define their own server."""
    module_server.configure(answer="e2e", rules=[], limits={}, latency=0.0, api_key=None, down=False, batches={})
    module_server.reset()
    return module_server


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount a disk that a test can fill. Skip the test if mounting is not permitted."""
    try:
        disk = SmallDisk(tmp_path / "disk")
    except PermissionError as error:
        pytest.skip(str(error))
    yield disk
    disk.close()


@pytest.fixture
def object_store() -> Iterator[ObjectStore]:
    """Start an empty S3 store and set the environment variables of its clients."""
    from tests.fakes.object_store import ObjectStore

    with ObjectStore() as store, patch.dict(os.environ, store.variables):
        yield store


@pytest.fixture(scope="session")
def data() -> Path:
    folder = Path(os.environ.get("UNTOLD_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set UNTOLD_DATA")
    return folder
