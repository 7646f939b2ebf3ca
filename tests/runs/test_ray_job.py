"""Test runs with a job on a Ray cluster as the backend. The driver only has access to the job server."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.cluster import SHARED_RAY, SharedCluster
from tests.runs.harness import Run, canonical, make_samples, read_manifest, read_table, write_samples
from tests.runs.here import RunHere
from untold.jobs.inference.backends.job import Spool
from untold.jobs.inference.backends.spooled_backends import RayJobBackend
from untold.udfs.errors import UserError

pytestmark = pytest.mark.alone
SAMPLES = make_samples(20)
KEY = "sk-a-key-of-the-driver-alone-1234567890"


@pytest.fixture(scope="module")
def job_server() -> Iterator[str]:
    if find_spec("aiohttp_cors") is None:
        pytest.skip("the job server needs ray[default]")
    cluster = SharedCluster(jobs=True)
    yield cluster.address
    cluster.close()


def settings(address: str, **more: Any) -> dict[str, Any]:
    runtime_env = json.dumps({"py_executable": sys.executable})
    return {"llm.backend": "ray-job", "ray.address": address, "ray.runtime_env": runtime_env, **more}


@pytest.mark.slow
def test_a_job_of_a_cluster_answers_and_the_tables_are_equal(
    run_here: RunHere, server: ModelServer, tmp_path: Path, job_server: str
) -> None:
    path = write_samples(tmp_path / "samples.jsonl", SAMPLES)
    assert run_here(server, path, tmp_path / "whole", settings={"llm.structured": "off"}).code == 0
    calls = server.count()
    more = {"llm.structured": "off", "llm.api_key_env": "A_KEY"}
    ended = run_here(server, path, tmp_path / "out", settings=settings(job_server, **more), environment={"A_KEY": KEY})
    assert (ended.code, server.count()) == (0, 2 * calls), ended.err
    assert canonical(tmp_path / "out") == canonical(tmp_path / "whole")
    assert [row["calls"] for row in read_table(tmp_path / "out", "usage")] == [
        row["calls"] for row in read_table(tmp_path / "whole", "usage")
    ]
    assert Spool(str(tmp_path / "out" / "completions" / "spool")).jobs() == []
    assert KEY not in ended.err

    more["budget.max_calls"] = "30"
    ended = run_here(server, path, tmp_path / "less", settings=settings(job_server, **more))
    assert (ended.code, server.count()) == (3, 2 * calls + 30), ended.err


@pytest.mark.slow
def test_an_interrupt_ends_the_job_and_keeps_its_completions(
    server: ModelServer, tmp_path: Path, job_server: str
) -> None:
    server.configure(latency=1.0)
    path = write_samples(tmp_path / "samples.jsonl", SAMPLES)
    given = settings(job_server, **{"llm.max_concurrency": 2})
    run = Run(server, path, tmp_path / "out", settings=given, environment=SHARED_RAY)
    run.wait_for(server, 8)
    os.kill(run.pid, signal.SIGINT)
    ended = run.wait()
    assert (ended.code, read_manifest(tmp_path / "out")["status"]) == (130, "interrupted"), ended.err
    arrived = server.count()
    assert read_manifest(tmp_path / "out")["totals"]["answered"] >= 6
    assert arrived < 40
    server.configure(latency=0.0)
    ended = Run(server, path, tmp_path / "out", settings=given, environment=SHARED_RAY).wait()
    assert (ended.code, server.count() - arrived < 64 - 6) == (0, True), ended.err


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_named(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    path = write_samples(tmp_path / "samples.jsonl", SAMPLES)
    ended = run_here(server, path, tmp_path / "out", settings=settings("http://127.0.0.1:9"))
    assert (ended.code, server.count()) == (1, 0)
    assert "no job could be submitted to http://127.0.0.1:9 (" in ended.err


def test_a_job_needs_the_address_of_a_job_server(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    path = write_samples(tmp_path / "samples.jsonl", SAMPLES)
    ended = run_here(server, path, tmp_path / "out", settings={"llm.backend": "ray-job"})
    assert ended.code == 1
    assert "needs ray.address of the cluster's job server, such as http://ray-head:8265" in ended.err


def test_a_missing_package_for_jobs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    backend: Any = object.__new__(RayJobBackend)
    with pytest.raises(UserError, match=r"^llm.backend=ray-job needs requests: pip install 'untold\[cluster\]'$"):
        backend.prepare(None)
