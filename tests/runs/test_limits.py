"""Test that several actors and several jobs on one Ray cluster use the rate limits of an endpoint and never exceed
them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import Run, kill_processes, make_samples, most_within, read_table, times, write_samples
from tests.runs.here import RunHere

pytestmark = pytest.mark.alone
PER_MINUTE = 1200
PER_SECOND = PER_MINUTE / 60
IN_ONE_SECOND = PER_SECOND + max(2.0, PER_SECOND / 10)
SLACK_SECONDS = 0.3


def _settings(actors: int = 1, **limits: Any) -> dict[str, Any]:
    """Return the settings of a run with one unit of work per actor."""
    return {
        "summarise_contexts": "false",
        "llm.actors": actors,
        "spark.conf.spark.sql.adaptive.enabled": "false",
        "spark.conf.spark.sql.shuffle.partitions": actors,
        **{f"llm.{name}": value for name, value in limits.items()},
    }


def _check_rate(moments: Sequence[float], least_use: float = 0.9, per_minute: float = PER_MINUTE) -> None:
    assert most_within(moments, 1.0) <= IN_ONE_SECOND
    assert most_within(moments, 60.0) <= per_minute
    middle = [moment for moment in moments if moments[0] + 2 <= moment < moments[-1] - 2]
    assert len(middle) / (moments[-1] - moments[0] - 4) >= least_use * PER_SECOND


@pytest.fixture(autouse=True)
def _no_idle_actors(run_here: RunHere) -> Iterator[None]:
    """Stop the actors of a run with many actors, so that later runs do not use them."""
    yield
    run_here.close()


@pytest.mark.parametrize("actors", [pytest.param(1, marks=pytest.mark.slow), pytest.param(16, marks=pytest.mark.slow)])
def test_a_limit_of_requests_is_kept_and_used(
    run_here: RunHere, server: ModelServer, tmp_path: Path, actors: int
) -> None:
    path = write_samples(tmp_path / "samples.jsonl", make_samples(260))
    ended = run_here(server, path, tmp_path / "out", settings=_settings(actors, requests_per_minute=PER_MINUTE))
    assert (ended.code, server.count()) == (0, 260), ended.err
    _check_rate(times(server.arrivals()))


def test_four_actors_keep_a_limit_and_all_honour_retry_after(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    limited, wait = 200, 2.0
    once = {
        "when": {"after": limited - 1, "first": limited},
        "do": {"status": 429, "headers": {"Retry-After": f"{wait:g}"}},
    }
    server.configure(rules=[once])
    path = write_samples(tmp_path / "samples.jsonl", make_samples(300))
    settings = _settings(4, requests_per_minute=PER_MINUTE, max_attempts=1)
    ended = run_here(server, path, tmp_path / "out", settings=settings)
    assert (ended.code, server.count()) == (0, 301), ended.err
    arrivals = server.arrivals()
    (at,) = [arrival.at for arrival in arrivals if arrival.status == 429]
    moments = times(arrivals)
    _check_rate([moment for moment in moments if moment < at])
    assert most_within(moments, 1.0) <= IN_ONE_SECOND
    assert not [moment for moment in moments if at + SLACK_SECONDS < moment < at + wait - 0.01]
    assert {row["status"] for row in read_table(tmp_path / "out", "scores")} == {"ok"}
    (usage,) = read_table(tmp_path / "out", "usage")
    assert (usage["calls"], usage["rate_limited"], usage["retries"]) == (301, 1, 0)


@pytest.mark.slow
def test_a_limit_in_flight_is_shared_by_four_actors(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    server.configure(latency=0.1)
    path = write_samples(tmp_path / "samples.jsonl", make_samples(300))
    ended = run_here(server, path, tmp_path / "out", settings=_settings(4, max_concurrency=8))
    assert (ended.code, server.count()) == (0, 300), ended.err
    assert server.in_flight_peak() == 8


@pytest.mark.slow
def test_a_limit_of_tokens_is_kept_and_used(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    path, per_second = write_samples(tmp_path / "samples.jsonl", make_samples(200)), 1000.0
    settings = _settings(tokens_per_minute=60 * per_second)
    ended = run_here(server, path, tmp_path / "out", settings=settings)
    assert (ended.code, server.count()) == (0, 200), ended.err
    arrivals = sorted(server.arrivals(), key=lambda arrival: arrival.at)
    moments = times(arrivals)
    tokens = [float(arrival.prompt_tokens + arrival.completion_tokens) for arrival in arrivals]
    assert most_within(moments, 5.0, tokens) <= 1.1 * 5 * per_second
    middle = [n for n, moment in zip(tokens, moments, strict=True) if moments[0] + 3 <= moment < moments[-1] - 1]
    assert sum(middle) >= 0.85 * per_second * (moments[-1] - moments[0] - 4)


@pytest.fixture
def cluster() -> Iterator[str]:
    """Start a Ray cluster on this machine and return its address."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--port=0", "--num-cpus=1", "--block"]
    command += ["--include-dashboard=false", f"--object-store-memory={100 * 2**20}", f"--temp-dir={folder}"]
    command += ["--node-ip-address=127.0.0.1", "--disable-usage-stats"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    try:
        yield _address(process, folder)
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.wait()
        kill_processes(below)
        rmtree(folder, ignore_errors=True)


def _address(process: subprocess.Popen[bytes], folder: Path) -> str:
    known = folder / "ray_current_cluster"
    end = monotonic() + 120
    while monotonic() < end and process.poll() is None:
        if known.exists() and "Ray runtime started" in (folder / "log").read_text(encoding="utf-8"):
            return known.read_text(encoding="utf-8").strip()
        sleep(0.1)
    raise RuntimeError(f"Ray did not start: {(folder / 'log').read_text(encoding='utf-8')[-2000:]}")


def _score_together(server: ModelServer, folder: Path, count: int, settings: dict[str, Any]) -> list[float]:
    """Run two jobs with different samples in parallel and return the arrival times of their requests."""
    samples = make_samples(2 * count)
    halves = [write_samples(folder / f"{name}.jsonl", half) for name, half in zip("ab", _halves(samples), strict=True)]
    runs = [Run(server, path, folder / f"out-{path.stem}", settings=settings) for path in halves]
    ends = [run.wait() for run in runs]
    assert [ended.code for ended in ends] == [0, 0], [ended.err for ended in ends]
    assert server.count() == 2 * count
    return times(server.arrivals())


def _halves(samples: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return samples[: len(samples) // 2], samples[len(samples) // 2 :]


@pytest.mark.slow
def test_two_jobs_on_one_cluster_share_a_limit(server: ModelServer, tmp_path: Path, cluster: str) -> None:
    settings = {**_settings(requests_per_minute=PER_MINUTE), "ray.address": cluster}
    moments = _score_together(server, tmp_path, 200, settings)
    assert most_within(moments, 1.0) <= IN_ONE_SECOND


@pytest.mark.slow
def test_a_limit_holds_over_whole_minutes(server: ModelServer, tmp_path: Path, cluster: str) -> None:
    settings = {**_settings(2, requests_per_minute=PER_MINUTE), "ray.address": cluster}
    moments = _score_together(server, tmp_path, 1000, settings)
    assert most_within(moments, 1.0) <= IN_ONE_SECOND
    assert most_within(moments, 60.0) <= PER_MINUTE
