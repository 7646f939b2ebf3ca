"""The standalone answering command: the same rules as a run's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.jobs.asking.completions import break_pages, failed, names_in, row, write
from tests.udfs.llm.askers import SETTINGS, STAGE
from untold.jobs.asking.job import Job, job_to_json
from untold.jobs.asking.settled import hold_folder, settled_ids
from untold.jobs.run.locks import FolderLock, LockedError


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as started:
        yield started


def write_requests(folder: Path, ids: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"request_id": ids, "query": ["q"] * len(ids), "text": [f"Fact {one}." for one in ids]})
    pq.write_table(table, folder / "part-0.parquet")
    return folder


def fill_store(folder: Path) -> None:
    """Completions of each kind, and two files that are none any more."""
    write(folder, "a.parquet", [row("ok", text="t"), failed("filtered", request_id="lasting")])
    write(folder, "b.parquet", [failed("timeout", request_id="passing"), failed("timeout", request_id="both")])
    write(folder, "c.parquet", [row("both", text="t"), row("of another run", text="t")])
    (folder / "empty.parquet").write_bytes(b"")
    break_pages(write(folder, "pages.parquet", [row("damaged", text="t" * 5000)]))


IDS = ["ok", "lasting", "passing", "both", "damaged", "new"]


@pytest.mark.parametrize(("retry_failed", "left"), [(False, {"passing", "damaged", "new"}), (True, {"lasting"})])
def test_settled_is_what_a_run_would_not_ask(tmp_path: Path, retry_failed: bool, left: set[str]) -> None:
    fill_store(tmp_path / "store")
    requests = write_requests(tmp_path / "requests", IDS)
    settled = settled_ids(str(requests), str(tmp_path / "store"), retry_failed=retry_failed)
    assert settled == set(IDS) - left - {"passing", "damaged", "new"}
    assert names_in(tmp_path / "store" / "damaged") == ["empty.parquet", "pages.parquet"]


def test_nothing_is_settled_in_a_store_that_is_not_there(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "requests", IDS)
    assert settled_ids(str(requests), str(tmp_path / "nowhere")) == frozenset()


def test_a_folder_has_one_spender(tmp_path: Path) -> None:
    with hold_folder(str(tmp_path / "v1" / "stage"), "run1", wait=False) as lost:
        assert not lost()
        with pytest.raises(LockedError), hold_folder(str(tmp_path / "v1" / "stage"), "run2", wait=False):
            pass


def test_answering_imports_no_spark() -> None:
    words = [sys.executable, "-c", "import untold.jobs.answer, sys; print('pyspark' in sys.modules)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"


def command(tmp_path: Path, server: ModelServer, *flags: str) -> list[str]:
    settings = {**vars(SETTINGS), "base_url": server.base_url}
    job = Job(requests="", directory="", run="run", stage=STAGE, settings=type(SETTINGS)(**settings))
    (tmp_path / "job.json").write_text(json.dumps(job_to_json(job)))
    paths = ["--requests", str(tmp_path / "requests"), "--store", str(tmp_path / "store")]
    return [sys.executable, "-m", "untold.jobs.answer", *paths, "--settings", str(tmp_path / "job.json"), *flags]


def test_the_command_asks_what_a_run_would_and_only_as_the_one_spender(server: ModelServer, tmp_path: Path) -> None:
    fill_store(tmp_path / "store")
    write_requests(tmp_path / "requests", IDS)
    (tmp_path / "requests" / "part-1.parquet").write_bytes(b"")
    with FolderLock(str(tmp_path / "store"), "another", wait=False):
        refused = subprocess.run(command(tmp_path, server, "--no-wait"), capture_output=True, text=True, check=False)
    assert (refused.returncode, server.count()) == (1, 0)
    assert "is in use by a run" in refused.stderr
    ended = subprocess.run(command(tmp_path, server), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert server.count() == 3
    assert all(f"{name}.parquet" in ended.stderr for name in ("empty", "pages"))
    written = pq.read_table([*(tmp_path / "store").glob("run-*.parquet")])
    assert Counter(written["request_id"].to_pylist()) == Counter(["passing", "damaged", "new"])
    assert not (tmp_path / "store" / "_lock").exists()
