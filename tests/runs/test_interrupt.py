"""Test Ctrl-C and SIGTERM: the run ends in order, prints how to resume it, and no request is paid for twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import (
    Ended,
    Run,
    count_distinct,
    make_samples,
    read_manifest,
    read_table,
    sum_usage,
    write_samples,
)
from tests.runs.here import RunHere

pytestmark = pytest.mark.gate

IN_FLIGHT = 8
SETTINGS = {"llm.max_concurrency": IN_FLIGHT}


def _check_interrupted(ended: Ended, output: Path) -> None:
    assert ended.code == 130, ended.err
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("untold: interrupted")
    assert f"untold score --input {output.parent / 'samples.jsonl'} --output {output}" in last
    assert read_manifest(output)["status"] == "interrupted"
    statuses = {row["status"] for row in read_table(output, "scores")}
    assert statuses <= {"ok", "budget"}
    assert "budget" in statuses
    assert not read_table(output, "failures")
    for row in read_table(output, "usage"):
        assert row["requests"] == row["reused"] + row["answered"] + row["failed"] + row["unasked"]


Moment = tuple[int, signal.Signals, Callable[[int, int], None]]
MOMENTS: list[Moment] = [
    (40, signal.SIGINT, os.killpg),
    (80, signal.SIGTERM, os.kill),
    (100, signal.SIGINT, os.kill),
]


@pytest.mark.parametrize("moments", [MOMENTS[:1], pytest.param(MOMENTS, marks=pytest.mark.slow)], ids=["one", "all"])
def test_an_interrupted_run_prints_how_to_resume_and_pays_once(
    run_here: RunHere, server: ModelServer, tmp_path: Path, moments: list[Moment]
) -> None:
    server.reset()
    samples = make_samples(100)
    path, output = write_samples(tmp_path / "samples.jsonl", samples), tmp_path / "out"
    distinct = count_distinct(samples)
    server.configure(latency=0.4)
    for arrivals, number, send in moments:
        run = Run(server, path, output, settings=SETTINGS)
        run.wait_for(server, arrivals)
        send(run.pid, number)
        _check_interrupted(run.wait(), output)
        assert read_manifest(output)["totals"]["calls"] == server.count()
        assert sum_usage(output, "unasked") > 0
    interrupted_calls = server.count()
    ended = run_here(server, path, output, settings=SETTINGS)
    assert ended.code == 0, ended.err
    assert distinct <= server.count() <= distinct + IN_FLIGHT
    assert sum_usage(output, "calls") == server.count() - interrupted_calls
    assert {row["status"] for row in read_table(output, "scores")} == {"ok"}
    manifest = read_manifest(output)
    assert manifest["status"] == "finished"
    assert [start["status"] for start in manifest["starts"]] == ["interrupted"] * len(moments) + ["finished"]
