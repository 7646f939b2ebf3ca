"""Test runs with a separate worker that shares only the folder of the spool with the run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.jobs.inference.completions import failed, row, write
from tests.runs.harness import (
    WAIT_SECONDS,
    canonical,
    count_distinct,
    kill_processes,
    make_samples,
    read_manifest,
    read_table,
    start_worker,
    sum_usage,
    write_samples,
)
from tests.runs.here import RunHere
from untold.jobs.inference.backends.job import Spool, SpooledJob
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inference.store.compaction import live_names
from untold.jobs.settings.model import Settings
from untold.udfs.llm.units import read_request_ids
from untold.udfs.llm.usage import Usage
from untold.udfs.node_report import NodeReport, visit

pytestmark = pytest.mark.gate

SAMPLES = make_samples(40)
KEY = "sk-a-key-that-no-spool-has-1234567890"


def words(spool: Path) -> str:
    return f"requests wait in a spool. Run `untold answer {spool}`, then continue with: untold score "


def ids_in(folder: Path) -> list[str]:
    files = [file for file in folder.rglob("*.parquet") if file.name[0] not in "._" and file.parent.name != "requests"]
    return [one for file in files for one in pq.read_table(file, columns=["request_id"])["request_id"].to_pylist()]


def live_ids_in(store: Path) -> list[str]:
    """Return the ids of the requests in the live files of a store."""
    files = [folder / name for folder in (store / "v1").iterdir() for name in live_names(str(folder))]
    return [one for file in files for one in pq.read_table(file, columns=["request_id"])["request_id"].to_pylist()]


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """Return the shared folder with its path on another machine."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "mount").symlink_to(tmp_path / "shared")
    return tmp_path / "mount"


def test_a_worker_completes_the_requests_of_a_run_and_the_tables_are_equal(
    run_here: RunHere, server: ModelServer, tmp_path: Path, mount: Path
) -> None:
    samples = write_samples(tmp_path / "samples.jsonl", SAMPLES[:6])
    without = {"summarise_contexts": "false"}
    assert run_here(server, samples, tmp_path / "whole", settings=without).code == 0
    total = server.count()
    output, spool = tmp_path / "out", tmp_path / "shared" / "spool"
    settings = {**without, "llm.backend": "spool", "llm.spool": spool, "llm.api_key_env": "A_KEY"}
    first = run_here(server, samples, output, settings=settings, environment={"A_KEY": KEY})
    assert (first.code, server.count(), words(spool) in first.err) == (6, total, True)
    assert {row["status"] for row in read_table(output, "scores")} == {"budget"}
    assert not any(KEY.encode() in file.read_bytes() for file in spool.rglob("*") if file.is_file())
    told = start_worker(mount / "spool", A_KEY=KEY).communicate(timeout=WAIT_SECONDS)[0]
    assert "next: start the run again" in told
    last = run_here(server, samples, output, settings=settings)
    assert (last.code, server.count()) == (0, 2 * total), last.err
    assert canonical(output) == canonical(tmp_path / "whole")
    assert Spool(str(spool)).jobs() == []


@pytest.mark.slow
def test_a_run_resumes_with_the_completions_of_a_killed_and_restarted_worker(
    run_here: RunHere, server: ModelServer, tmp_path: Path, mount: Path
) -> None:
    samples = write_samples(tmp_path / "samples.jsonl", SAMPLES)
    assert run_here(server, samples, tmp_path / "whole").code == 0
    total = server.count()
    server.reset()

    output, spool = tmp_path / "out", tmp_path / "shared" / "spool"
    settings = {
        "completion_store": tmp_path / "shared" / "store",
        "llm.backend": "spool",
        "llm.spool": spool,
        "llm.max_concurrency": 2,
        "llm.flush_seconds": 0.2,
        "llm.api_key_env": "A_KEY",
        "budget.max_calls": 1000,
    }
    first = run_here(server, samples, output, settings=settings, environment={"A_KEY": KEY})
    assert (first.code, server.count()) == (6, 0)
    assert words(spool) in first.err
    assert read_manifest(output)["status"] == "spooled"
    assert {row["status"] for row in read_table(output, "scores")} == {"budget"}
    assert read_table(output, "failures") == []
    (job,) = Spool(str(spool)).jobs()
    wanted = job.count_requests()
    assert not any(KEY.encode() in file.read_bytes() for file in spool.rglob("*") if file.is_file())

    # If the run is started again too early, no request is sent twice
    again = run_here(server, samples, output, settings=settings)
    assert (again.code, [one.name for one in Spool(str(spool)).jobs() if one.is_open]) == (6, [job.name])

    server.configure(rules=[{"when": {"stage": "summarise_context"}, "do": {"delay": 0.2}}])
    worker = start_worker(mount / "spool", A_KEY=KEY)
    server.wait_for(20, timeout=WAIT_SECONDS)
    kill_processes([*psutil.Process(worker.pid).children(recursive=True), psutil.Process(worker.pid)])
    worker.communicate()
    server.configure(rules=[])
    kept, arrived = len(set(ids_in(spool))), server.count()
    assert 0 < kept < wanted

    # The run reads the completions so far, and the worker keeps the rest of the requests
    assert run_here(server, samples, output, settings=settings).code == 6
    assert server.count() == arrived
    told = start_worker(mount / "spool", A_KEY=KEY).communicate(timeout=WAIT_SECONDS)[0]
    assert "summarise_context" in told
    assert "next: start the run again" in told
    assert server.count() - arrived == wanted - kept
    assert not any(one.is_open for one in Spool(str(spool)).jobs())

    second = run_here(server, samples, output, settings=settings)
    assert (second.code, sum_usage(output, "answered")) == (6, wanted - kept)
    worker = start_worker(mount / "spool", "--set", "budget.max_calls=5", A_KEY=KEY)
    told = worker.communicate(timeout=WAIT_SECONDS)[0]
    assert (worker.returncode, "the budget is used up after 5 calls" in told) == (3, True), told
    worker = start_worker(mount / "spool", "--set", "llm.max_concurrency=8", A_KEY=KEY)
    told = worker.communicate(timeout=WAIT_SECONDS)[0]
    assert worker.returncode == 0, told
    last = run_here(server, samples, output, settings=settings)
    assert last.code == 0, last.err
    assert canonical(output) == canonical(tmp_path / "whole")
    assert Spool(str(spool)).jobs() == []
    kept_ids = live_ids_in(tmp_path / "shared" / "store")
    assert len(kept_ids) == len(set(kept_ids)) == total == count_distinct(SAMPLES)
    manifest = read_manifest(output)
    assert [start["status"] for start in manifest["starts"]][-2:] == ["spooled", "finished"]
    assert manifest["totals"]["answered"] == total
    # Calls in flight at the time of the kill are not counted
    assert total - 20 <= manifest["totals"]["calls"] <= server.count()
    assert manifest["totals"]["prompt_tokens"] > 0


def test_a_worker_without_jobs_or_without_a_spool_reports_it(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    assert start_worker(tmp_path).communicate()[0] == "Nothing to answer\n"
    shutil.rmtree(tmp_path / "jobs")
    worker = start_worker(tmp_path)
    assert "is not a spool" in worker.communicate()[0]
    assert worker.returncode == 1


def spooling(server: ModelServer, backend: str = "spool") -> Settings:
    return Settings.model_validate(
        {
            "llm": {"base_url": server.base_url, "model": "none", "backend": backend},
            "embeddings": {"base_url": server.base_url, "model": "embedder", "price_per_million_tokens": 2.0},
        }
    )


def embed(runner: StageRunner, texts: list[str]) -> dict[str, str | None]:
    """Return the error type of each text, or None if it has a vector."""
    rows = runner.engines.spark.createDataFrame([(text, "document") for text in texts], "text string, kind string")
    return {row["text"]: row["error_type"] for row in runner.ask("embed_text", rows, carry=("text",)).collect()}


def answer_by_hand(job: SpooledJob, failing: int = 0) -> None:
    """Write the completions of a worker. Some of the requests fail with a temporary error."""
    run, files = job.read().run, Path(job.requests).glob("*.parquet")
    ids = [one for file in files for one in read_request_ids(str(file))]
    rows = [failed("http_500", request_id=one, run_id=run) for one in ids[:failing]]
    rows += [row(one, vector=[1.0, 0.0], run_id=run) for one in ids[failing:]]
    write(Path(job.completions), f"{run}-1.parquet", rows)
    usage = Usage(100, calls=len(ids), asked=len(ids), done=len(ids), failed=failing, seconds=2.0, cost=0.5)
    job.note_usage("by-hand", usage)
    job.close()


def test_failed_requests_of_a_worker_do_not_block_a_run(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    spool = Spool(f"{tmp_path}/store/spool")
    with run_here.runner(tmp_path, spooling(server), "embed_text") as runner:
        assert set(embed(runner, ["a", "b", "c"]).values()) == {"unasked"}
        assert (runner.ended, runner.usage[0]["unasked"], runner.usage[0]["calls"]) == ("spooled", 3, 0)
        first = runner.engines.run
        # Another run only writes the requests that are not in a job yet
        runner.ended = None
        embed(runner, ["a", "b", "c"])
    (job,) = spool.jobs()
    answer_by_hand(job, failing=1)
    with run_here.runner(tmp_path, spooling(server), "embed_text") as runner:
        runner.earlier = {first}
        assert sorted(map(str, embed(runner, ["a", "b", "c"]).values())) == ["None", "None", "http_500"]
        usage = runner.usage[0]
        assert runner.ended is None
        assert (usage["answered"], usage["failed"], usage["reused"], usage["calls"]) == (2, 1, 0, 3)
        assert (usage["prompt_tokens"], usage["cost"], usage["seconds"]) == (100, pytest.approx(2e-4), 2.0)
    assert spool.jobs() == []
    # A new run that does not resume this job sends the requests with a temporary error again
    with run_here.runner(tmp_path, spooling(server), "embed_text") as runner:
        embed(runner, ["a", "b", "c"])
        assert runner.ended == "spooled"
    (job,) = spool.jobs()
    assert job.count_requests() == 1
    assert server.count() == 0


def test_a_start_adds_only_requests_that_wait_in_no_job_and_can_take_its_own_back(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    spool = Spool(f"{tmp_path}/store/spool")
    with run_here.runner(tmp_path, spooling(server), "embed_text") as runner:
        embed(runner, ["a", "b"])
        first = runner.engines.run
    with run_here.runner(tmp_path, spooling(server), "embed_text") as runner:
        embed(runner, ["b", "c"])
        second = runner.engines.run
    assert sorted(job.count_requests() for job in spool.jobs()) == [1, 2]
    with run_here.runner(tmp_path, spooling(server, "process"), "embed_text") as runner:
        runner.earlier = {first, second}
        assert set(embed(runner, ["a", "b", "c"]).values()) == {None}
    assert (spool.jobs(), server.count("embed_text")) == ([], 1)


def test_no_request_is_sent_if_the_nodes_do_not_share_the_spool(
    run_here: RunHere, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test fails if a request is sent, because the test double for Ray has no actors."""
    spool = f"{tmp_path}/store/spool"
    with run_here.runner(tmp_path, spooling(server), "embed_text") as runner:
        embed(runner, ["a", "b"])

    def visit_elsewhere(folders: Mapping[str, str], nonce: str) -> list[NodeReport]:
        return [visit("the Ray node n", dict.fromkeys(folders, f"{tmp_path}/other"), {}, nonce)]

    monkeypatch.setattr("untold.jobs.answer.start_ray", lambda *given: None)
    monkeypatch.setattr("untold.jobs.answer.visit_nodes", visit_elsewhere)
    ended = run_here.command(["answer", spool, "--ray-address", "ray-head:6379"])
    assert ended.code == 1
    assert f"untold: {spool} is not shared by the Ray node n: it does not see the file that the driver" in ended.err
    assert server.count() == 0
