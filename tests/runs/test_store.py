"""Test outputs, stores and endpoints in several runs: the errors, the reused completions and the early end of a run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from time import monotonic, sleep

import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.jobs.inference.completions import break_column
from tests.runs.harness import (
    PROMPTS,
    WAIT_SECONDS,
    Ended,
    Row,
    Run,
    canonical,
    count_distinct,
    make_samples,
    read_manifest,
    read_table,
    score,
    sum_usage,
    write_samples,
)
from tests.runs.here import RunHere
from untold.jobs.inference.store.compaction import live_names

pytestmark = pytest.mark.gate

NOWHERE = "http://127.0.0.1:9/v1"
SECRET = "a-key-that-nobody-may-read"


@dataclass(frozen=True)
class Shared:
    """A run in a separate process, a run in this process on the same store, and the messages of others during the first
    run.
    """

    server: ModelServer
    samples: Path
    rows: list[Row]
    distinct: int
    output: Path
    settings: dict[str, str]
    second_output: Path
    pid: int
    ends: tuple[Ended, Ended]
    same_output: Ended
    unwilling: Ended
    calls: int


@pytest.fixture(scope="module")
def shared(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    rows = make_samples(50)
    path = write_samples(folder / "samples.jsonl", rows)
    settings = {"completion_store": str(folder / "store")}
    slow = {**settings, "llm.max_concurrency": "2"}
    with ModelServer(latency=3.0) as server:
        first = Run(server, path, folder / "first", settings=slow)
        first.wait_for(server, 4)
        same_output = run_here(server, path, folder / "first", settings=slow)
        unwilling = run_here(server, path, folder / "third", "--no-wait", settings=slow)
        assert first.is_running
        with ThreadPoolExecutor() as beside:
            beside.submit(hurry, server, folder / "second")
            second = run_here(server, path, folder / "second", settings=slow)
        yield Shared(
            server=server,
            samples=path,
            rows=rows,
            distinct=count_distinct(rows),
            output=folder / "first",
            settings=settings,
            second_output=folder / "second",
            pid=first.pid,
            ends=(first.wait(), second),
            same_output=same_output,
            unwilling=unwilling,
            calls=server.count(),
        )


def hurry(server: ModelServer, output: Path) -> None:
    """Remove the latency of the server as soon as the second run has its samples. This run then waits for the store."""
    end = monotonic() + WAIT_SECONDS
    while not (output / "samples" / "_SUCCESS").exists() and monotonic() < end:
        sleep(0.02)
    server.configure(latency=0.0)


def test_two_runs_on_one_store_pay_once(shared: Shared) -> None:
    assert [ended.code for ended in shared.ends] == [0, 0], [ended.err for ended in shared.ends]
    assert shared.calls == shared.distinct
    assert canonical(shared.output) == canonical(shared.second_output)


def test_a_second_run_on_one_output_is_refused(shared: Shared) -> None:
    assert shared.same_output.code == 1
    assert f"host {gethostname()}, pid {shared.pid}" in shared.same_output.err


def test_a_run_that_may_not_wait_for_a_store_is_refused(shared: Shared) -> None:
    assert shared.unwilling.code == 1
    assert f"host {gethostname()}, pid {shared.pid}" in shared.unwilling.err


def test_another_input_with_other_settings_is_refused(run_here: RunHere, shared: Shared, tmp_path: Path) -> None:
    path = write_samples(tmp_path / "samples.jsonl", shared.rows[:-1])
    before = shared.server.count()
    ended = run_here(shared.server, path, shared.output, settings={**shared.settings, "llm.temperature": "0.5"})
    assert ended.code == 1
    (line,) = [line for line in ended.err.splitlines() if line.startswith("untold: ")]
    assert all(part in line for part in ("another input", "temperature", "--overwrite"))
    assert shared.server.count() == before


def test_an_overwritten_output_at_a_moved_endpoint_reuses_everything_but_damaged_files(
    run_here: RunHere, shared: Shared
) -> None:
    before, results = shared.server.count(), canonical(shared.output)
    folders = sorted((Path(shared.settings["completion_store"]) / "v1").iterdir())
    segment = min(folders[0].glob("*.parquet"))
    (folders[0] / "cut.parquet").write_bytes(segment.read_bytes()[:-100])
    (folders[1] / "noise.parquet").write_bytes(b"no Parquet at all")
    ended = run_here(NOWHERE, shared.samples, shared.output, "--overwrite", settings=shared.settings)
    assert ended.code == 0, ended.err
    assert [path.name for folder in folders[:2] for path in (folder / "damaged").iterdir()] == [
        "cut.parquet",
        "noise.parquet",
    ]
    assert shared.server.count() == before
    assert canonical(shared.output) == results
    assert "2 damaged files" in ended.err


def test_damaged_completions_are_requested_again(run_here: RunHere, shared: Shared) -> None:
    """The store reads only ids and errors of the completions at first.

    It reads the texts when all requests are done.
    """
    (folder,) = (Path(shared.settings["completion_store"]) / "v1").glob("evaluate_coverage-*")
    damaged = folder / live_names(str(folder))[0]
    before, lost = shared.server.count(), break_column(damaged, "text")
    ended = run_here(shared.server, shared.samples, shared.second_output, "--overwrite", settings=shared.settings)
    assert ended.code == 0, ended.err
    assert damaged.name in ended.err
    assert shared.server.count() == before + lost
    assert canonical(shared.second_output) == canonical(shared.output)


def test_a_changed_template_reuses_nothing_and_a_budget_ends_the_run(
    run_here: RunHere, shared: Shared, tmp_path: Path
) -> None:
    prompts = shutil.copytree(PROMPTS, tmp_path / "prompts")
    for template in prompts.iterdir():
        template.write_text(template.read_text(encoding="utf-8").replace("{{ {", "{{  {"), encoding="utf-8")
    settings = {**shared.settings, "prompts_dir": str(prompts)}
    before, allowed, output = shared.server.count(), 30, tmp_path / "out"
    ended = run_here(shared.server, shared.samples, output, settings={**settings, "budget.max_calls": str(allowed)})
    assert ended.code == 3, ended.err
    assert "budget" in ended.err
    assert read_manifest(output)["status"] == "budget"
    assert 0 < shared.server.count() - before <= allowed
    assert {row["status"] for row in read_table(output, "scores")} == {"budget"}
    assert (sum_usage(output, "reused"), sum_usage(output, "calls")) == (0, shared.server.count() - before)
    ended = run_here(shared.server, shared.samples, output, settings=settings)
    assert ended.code == 0, ended.err
    assert shared.server.count() - before == shared.distinct
    assert {row["status"] for row in read_table(output, "scores")} == {"ok"}


REFUSED = {"llm.api_key_env": "KEY_OF_A_TEST", "llm.max_concurrency": 4}
KEY = {"KEY_OF_A_TEST": SECRET}


def check_refused(ended: Ended, server: ModelServer, output: Path, status: str) -> str:
    """Check that the run ended early and can be resumed, and return the message.

    The key is not in a message or file.
    """
    assert ended.code == 1, ended.err
    (line,) = [line for line in ended.err.splitlines() if line.startswith("untold: ")]
    assert status in line
    assert SECRET not in ended.err + ended.out
    assert server.count() <= 8
    assert read_manifest(output)["status"] == "failed"
    assert SECRET not in (output / "manifest.json").read_text(encoding="utf-8")
    assert not read_table(output, "failures")
    assert {row["status"] for row in read_table(output, "scores")} == {"budget"}
    return line


def test_an_endpoint_that_refuses_ends_the_run_at_once(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    server.configure(api_key="another")
    path, output = write_samples(tmp_path / "samples.jsonl", make_samples(50)), tmp_path / "out"
    ended = run_here(server, path, output, settings=REFUSED, environment=KEY)
    assert "KEY_OF_A_TEST (llm.api_key_env) is set" in check_refused(ended, server, output, "401")


_UNKNOWN_MODEL = {"message": "The model `fake-model` does not exist", "code": "model_not_found"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("misfit", "status"),
    [
        ({"api_key": "another"}, "401"),
        ({"rules": [{"when": {}, "do": {"status": 404, "error": _UNKNOWN_MODEL}}]}, "404"),
    ],
)
def test_a_key_is_not_in_any_message_or_file(server: ModelServer, tmp_path: Path, misfit: Row, status: str) -> None:
    """Run in a separate process with actors that have the key and send it."""
    server.configure(**misfit)
    path, output = write_samples(tmp_path / "samples.jsonl", make_samples(50)), tmp_path / "out"
    ended = score(server, path, output, settings=REFUSED, environment=KEY)
    line = check_refused(ended, server, output, status)
    assert ("KEY_OF_A_TEST (llm.api_key_env) is set" in line) is (status == "401")


@pytest.mark.slow
def test_an_outage_is_resumable_and_the_run_waits_for_a_short_one(server: ModelServer, tmp_path: Path) -> None:
    samples = make_samples(100)
    path, output = write_samples(tmp_path / "samples.jsonl", samples), tmp_path / "out"
    ended = score(NOWHERE, path, output, settings={"llm.outage_minutes": 0.05})
    assert ended.code == 5, ended.err
    assert read_manifest(output)["status"] == "outage"
    assert not read_table(output, "failures")
    assert {row["status"] for row in read_table(output, "scores")} == {"budget"}

    server.configure(latency=0.4)
    run = Run(server, path, output, settings={"llm.max_concurrency": 8})
    run.wait_for(server, 40)
    server.configure(down=True)
    sleep(6)
    server.configure(down=False)
    ended = run.wait()
    assert ended.code == 0, ended.err
    assert {row["status"] for row in read_table(output, "scores")} == {"ok"}
    assert server.count() <= count_distinct(samples) + 8
    assert sum_usage(output, "answered") == count_distinct(samples)
    folders = (output / "completions" / "v1").iterdir()
    errors = [error for folder in folders for error in pq.read_table(folder)["error_type"].to_pylist()]
    assert not any(errors)
