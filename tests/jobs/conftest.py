"""The shared fixtures of the tests of several jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.studies import (
    write_wiki,
)


@pytest.fixture
def wiki(tmp_path: Path) -> Path:
    write_wiki(tmp_path / "wiki.jsonl")
    return tmp_path
