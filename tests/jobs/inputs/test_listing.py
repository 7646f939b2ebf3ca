"""Test the description of an input from its listing, without reading the files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.object_store import BUCKET, ObjectStore
from untold.jobs.inputs.checking import adapter_of, listed_files
from untold.jobs.inputs.files import NoInputError, listing_of


def listing(path: Path | str) -> dict[str, Any]:
    return listing_of(listed_files(str(path), None)[0])


def test_a_listing_changes_with_a_new_removed_or_rewritten_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n", encoding="utf-8")
    first = listing(tmp_path / "*.jsonl")
    assert (first["files"], first["bytes"]) == (1, 3)
    (tmp_path / "notes.md").write_text("no data", encoding="utf-8")
    assert listing(tmp_path) == listing(tmp_path / "*.jsonl") == first
    (tmp_path / "b.jsonl").write_text("{}\n", encoding="utf-8")
    second = listing(tmp_path)
    assert second["digest"] != first["digest"]
    os.utime(tmp_path / "b.jsonl", (0, 0))
    assert listing(tmp_path)["digest"] != second["digest"]
    (tmp_path / "b.jsonl").unlink()
    assert listing(tmp_path) == first


def test_a_listing_of_an_object_store(object_store: ObjectStore) -> None:
    object_store.put("in/2026-11-20/a.jsonl", b"{}\n")
    first = listing(f"s3://{BUCKET}/in/2026-11-20/*.jsonl")
    assert (first["files"], first["bytes"]) == (1, 3)
    assert listing(f"s3://{BUCKET}/in/2026-11-20") == first
    object_store.put("in/2026-11-20/b.jsonl", b"{}\n")
    assert listing(f"s3://{BUCKET}/in/2026-11-20/*.jsonl")["files"] == 2
    with pytest.raises(NoInputError):
        listing(f"s3://{BUCKET}/in/2026-11-21/*.jsonl")


def test_an_input_without_files_has_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.jsonl").write_text("{}\n", encoding="utf-8")
    for path in ("missing/*.jsonl", "missing", "empty"):
        with pytest.raises(NoInputError):
            listing(tmp_path / path)
    with pytest.raises(NoInputError, match="has no file that matches"):
        listed_files(str(tmp_path / "other"), adapter_of("realsumm"))
