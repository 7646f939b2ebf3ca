"""One Spark session for all tests, and where the real data is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from jobs.run.session import open_session
from jobs.settings.model import Settings, SparkSettings

settings.register_profile("untold", deadline=None)
settings.load_profile("untold")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    conf = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false", "spark.driver.memory": "1g"}
    session = open_session(Settings(spark=SparkSettings(master="local[2]", conf=conf)), "untold-tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def data() -> Path:
    folder = Path(os.environ.get("UNTOLD_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set UNTOLD_DATA")
    return folder
