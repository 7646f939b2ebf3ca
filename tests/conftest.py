"""One Spark session for all tests, a model server, a small disk, and where the real data is."""

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

# The same examples every time, so that what one run finds every run finds. `--hypothesis-profile=search` draws others.
settings.register_profile("untold", deadline=None, derandomize=True)
settings.register_profile("quick", settings.get_profile("untold"), max_examples=20)
settings.register_profile("search", deadline=None, max_examples=1000)
ROOT = Path(__file__).resolve().parent.parent
# Processes of xdist set it; commands that print into a pipe would cut their tables by it
os.environ.pop("COLUMNS", None)
# A plan of a few rows takes longer to be compiled, by Spark and by the JVM, than to be run
SPARK = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Workers import what tests send them, and from no other folder than installed packages
    "spark.executorEnv.PYTHONPATH": str(ROOT),
}


def pytest_configure(config: pytest.Config) -> None:
    """Load fewer examples for the quick tests. Hypothesis loads the profile of its option after this one."""
    settings.load_profile("quick" if "not gate" in config.getoption("markexpr") else "untold")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two for all tests; none where some are named, which one process starts sooner."""
    return 0 if config.args_source is pytest.Config.ArgsSource.ARGS else 2


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    begun = SparkSession.getActiveSession()
    assert begun is None, "a test before this one opened a session of its own: have it use the fixture `spark`"
    # What a session sets for its workers would keep modules of this folder from the processes that tests start
    with patch.dict(os.environ):
        session = open_session(Settings(spark=SparkSettings(master="local[2]", conf=SPARK)), "untold-tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[SharedCluster]:
    """One Ray cluster for all jobs of this process."""
    started = SharedCluster()
    yield started
    started.close()


@pytest.fixture(scope="session")
def run_here(spark: SparkSession, shared_cluster: SharedCluster) -> Iterator[RunHere]:
    """Whole commands in this process, on one session and one Ray cluster; a server a test gives each its limiter."""
    runs = RunHere(spark, shared_cluster)
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def module_server() -> Iterator[ModelServer]:
    """One model server for a module."""
    with ModelServer() as started:
        yield started


@pytest.fixture
def server(module_server: ModelServer) -> ModelServer:
    """The module's server as if it had just started; folders and modules that need another have their own."""
    module_server.configure(answer="e2e", rules=[], limits={}, latency=0.0, api_key=None, down=False, batches={})
    module_server.reset()
    return module_server


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk that a test can fill; skipped where none may be mounted."""
    try:
        disk = SmallDisk(tmp_path / "disk")
    except PermissionError as error:
        pytest.skip(str(error))
    yield disk
    disk.close()


@pytest.fixture
def object_store() -> Iterator[ObjectStore]:
    """An empty S3, and the environment of a process that uses it."""
    from tests.fakes.object_store import ObjectStore

    with ObjectStore() as store, patch.dict(os.environ, store.variables):
        yield store


@pytest.fixture(scope="session")
def data() -> Path:
    folder = Path(os.environ.get("UNTOLD_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set UNTOLD_DATA")
    return folder
