"""Test the completed requests of a folder of completions. The rules are the same as in a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs.inference.completions import break_pages, failed, names_in, row, write
from untold.jobs.inference.store.compaction import answered_ids


def write_requests(folder: Path, ids: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"request_id": ids, "query": ["q"] * len(ids), "text": [f"Fact {one}." for one in ids]})
    pq.write_table(table, folder / "part-0.parquet")
    return folder


def fill_store(folder: Path) -> None:
    """Write completions of each kind, and two files that are not readable as Parquet."""
    write(folder, "a.parquet", [row("ok", text="t"), failed("filtered", request_id="lasting")])
    write(folder, "b.parquet", [failed("timeout", request_id="passing"), failed("timeout", request_id="both")])
    write(folder, "c.parquet", [row("both", text="t"), row("of another run", text="t")])
    (folder / "empty.parquet").write_bytes(b"")
    break_pages(write(folder, "pages.parquet", [row("damaged", text="t" * 5000)]))


IDS = ["ok", "lasting", "passing", "both", "damaged", "new"]


@pytest.mark.parametrize(("retry_failed", "left"), [(False, {"passing", "damaged", "new"}), (True, {"lasting"})])
def test_completed_requests_are_not_sent_by_a_run(tmp_path: Path, retry_failed: bool, left: set[str]) -> None:
    fill_store(tmp_path / "store")
    requests = write_requests(tmp_path / "requests", IDS)
    said: list[str] = []
    answered = answered_ids(str(requests), str(tmp_path / "store"), said.append, retry_failed=retry_failed)
    assert answered.among([*IDS, "of another run"]) == set(IDS) - left - {"passing", "damaged", "new"}
    assert names_in(tmp_path / "store" / "damaged") == ["empty.parquet", "pages.parquet"]
    assert all(any(name in line for line in said) for name in ("empty.parquet", "pages.parquet"))


def test_nothing_is_answered_in_a_store_that_is_not_there(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests", IDS)
    assert answered_ids(str(requests), str(tmp_path / "nowhere"), print).among(IDS) == frozenset()


def test_answering_imports_no_spark() -> None:
    words = [sys.executable, "-c", "import untold.jobs.answer, sys; print('pyspark' in sys.modules)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"
