from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from untold.udfs.errors import Registry


@dataclass(frozen=True)
class Thing:
    name: str


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Thing]:
    """Return a registry with one object. Another package adds two objects, and one of them has the same name."""
    described = tmp_path / "others-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[things]\ntheirs = others_things:THING\nours = others_things:THING\n")
    (tmp_path / "others_things.py").write_text(
        "from tests.udfs.test_registry import Thing\nTHING = Thing('theirs')\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "our_things.py").write_text(
        "from tests.udfs.test_registry import Thing\nTHING = Thing('later')\n", encoding="utf-8"
    )
    return Registry([Thing("ours")], "things", places={"later": "our_things:THING"})


def test_ours_come_first_and_are_not_replaced(registry: Registry[Thing]) -> None:
    assert list(registry) == ["ours", "later", "theirs"]
    assert len(registry) == 3
    assert registry["ours"] == Thing("ours")


def test_objects_of_other_packages_are_loaded_on_lookup(registry: Registry[Thing]) -> None:
    assert "theirs" in registry
    assert "others_things" not in sys.modules
    assert registry["theirs"] == Thing("theirs")
    assert registry["theirs"] is sys.modules["others_things"].THING


def test_what_is_ours_at_a_place_is_loaded_when_it_is_looked_up(registry: Registry[Thing]) -> None:
    assert "later" in registry
    assert "our_things" not in sys.modules
    assert registry["later"] == Thing("later")


def test_an_unknown_name_is_not_a_key(registry: Registry[Thing]) -> None:
    assert "nobody's" not in registry
    with pytest.raises(KeyError):
        registry["nobody's"]
