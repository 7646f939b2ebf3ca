"""The examples in docstrings are run."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(
    "untold." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("jobs", "udfs", "graph")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_have_the_stated_results(module: str) -> None:
    ran = doctest.testmod(import_module(module))
    assert ran.attempted > 0
    assert ran.failed == 0
