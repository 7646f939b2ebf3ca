"""A catalog of Iceberg for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.utils.config import Config

from tests.jobs.lakehouse.tables import catalog_variables, open_catalog


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    for name, value in catalog_variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    # It reads variables when it is imported
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return open_catalog()
