"""Test errors that stop or delay a run: credit, quota and disk. No completion is lost, and no request is paid twice."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.fakes.disks import SmallDisk
from tests.fakes.model_server import ModelServer
from tests.runs.harness import (
    PROMPTS,
    WAIT_SECONDS,
    Run,
    count_distinct,
    make_samples,
    read_manifest,
    read_table,
    score,
    sum_usage,
    write_samples,
)
from tests.runs.here import RunHere
from untold.jobs.metrics import METRICS
from untold.jobs.metrics.base import Tables
from untold.jobs.score import score_samples

pytestmark = pytest.mark.gate

IN_FLIGHT = 8
SETTINGS: dict[str, Any] = {"llm.max_concurrency": IN_FLIGHT}
SAMPLES = make_samples(40)
NO_CREDIT = {"status": 402, "error": {"message": "Insufficient credits", "code": 402}}


def places(folder: Path) -> tuple[Path, Path]:
    return write_samples(folder / "samples.jsonl", SAMPLES), folder / "out"


def check_mended(run_here: RunHere, server: ModelServer, path: Path, output: Path, paid: int) -> None:
    """Check that a run with a working endpoint sends the missing requests and judges all samples."""
    server.configure(rules=[], latency=0.0)
    server.reset()
    ended = run_here(server, path, output, settings=SETTINGS)
    assert ended.code == 0, ended.err
    assert {row["status"] for row in read_table(output, "scores")} == {"ok"}
    assert count_distinct(SAMPLES) - paid <= server.count() <= count_distinct(SAMPLES) - paid + IN_FLIGHT


def test_a_run_whose_credit_is_used_up_ends_with_one_line_and_no_failures(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    path, output = places(tmp_path)
    server.configure(rules=[{"when": {"after": 30}, "do": NO_CREDIT}])
    ended = run_here(server, path, output, settings=SETTINGS)
    assert ended.code == 1, ended.err
    assert "HTTP 402" in ended.err.strip().splitlines()[-1]
    assert "add credit" in ended.err.strip().splitlines()[-1]
    assert read_manifest(output)["status"] == "failed"
    assert not read_table(output, "failures")
    assert sum_usage(output, "answered") == 30
    check_mended(run_here, server, path, output, 30)


@pytest.mark.slow
def test_429s_without_end_are_an_outage(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    path, output = places(tmp_path)
    server.configure(rules=[{"do": {"status": 429}}])
    ended = run_here(server, path, output, settings={**SETTINGS, "llm.outage_minutes": 0.05})
    assert ended.code == 5, ended.err
    assert read_manifest(output)["status"] == "outage"
    assert not read_table(output, "failures")
    check_mended(run_here, server, path, output, 0)


@pytest.mark.slow
def test_a_disk_that_fills_and_empties_only_costs_time(server: ModelServer, tmp_path: Path, disk: SmallDisk) -> None:
    path, output = places(tmp_path)
    server.configure(latency=0.3)
    run = Run(server, path, output, settings={**SETTINGS, "completion_store": disk.folder})
    try:
        run.wait_for(server, 2 * IN_FLIGHT)
        disk.fill()
        end = monotonic() + 120
        while "answers cannot be written (No space left on device)" not in run.errors and monotonic() < end:
            sleep(0.1)
        disk.empty()
        ended = run.wait()
    finally:
        if run.is_running:
            run.kill()
    assert ended.code == 0, ended.err
    assert "answers cannot be written (No space left on device)" in ended.err
    assert server.count() == count_distinct(SAMPLES)
    assert {row["status"] for row in read_table(output, "scores")} == {"ok"}


def fill_after_a_segment(disk: SmallDisk) -> None:
    end = monotonic() + WAIT_SECONDS
    while not any(disk.folder.glob("v1/**/*.parquet")) and monotonic() < end:
        sleep(0.02)
    disk.fill()


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_the_number_of_lost_completions(
    run_here: RunHere, server: ModelServer, tmp_path: Path, disk: SmallDisk
) -> None:
    path, output = places(tmp_path)
    settings = {**SETTINGS, "completion_store": disk.folder, "llm.outage_minutes": 0.05}
    server.configure(latency=0.3)
    with ThreadPoolExecutor() as beside:
        filled = beside.submit(fill_after_a_segment, disk)
        ended = run_here(server, path, output, settings=settings)
        filled.result()
    written = sum(pq.read_metadata(file).num_rows for file in disk.folder.glob("v1/**/*.parquet"))
    lost = server.count() - written
    assert (ended.code, written > 0, lost > 0) == (1, True, True), ended.err
    told = f"(No space left on device); {lost} answer{'s are' if lost > 1 else ' is'} lost and will be paid for again"
    assert told in ended.err.splitlines()[-1]
    assert "the completions are kept" not in ended.err
    disk.empty()
    server.reset()
    assert run_here(server, path, output, settings=settings).code == 0
    assert server.count() == count_distinct(SAMPLES) - written


def test_an_output_on_a_full_disk_is_one_line_with_its_path(
    run_here: RunHere, server: ModelServer, tmp_path: Path, disk: SmallDisk
) -> None:
    path, _ = places(tmp_path)
    disk.fill()
    ended = run_here(server, path, disk.folder / "out", settings=SETTINGS)
    assert (ended.code, server.count()) == (1, 0)
    assert ended.err.startswith(f"untold: {disk.folder}/out")
    assert "No space left on device; make room there, then start again" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.slow
def test_names_beyond_ascii_need_no_locale(server: ModelServer, tmp_path: Path) -> None:
    path = write_samples(tmp_path / "größe" / "日本.jsonl", SAMPLES[:5])
    ended = score(server, path, tmp_path / "größe" / "out", settings=SETTINGS, environment={"LC_ALL": "C"})
    assert ended.code == 0, ended.err
    assert len(read_table(tmp_path / "größe" / "out", "scores")) == 5


@pytest.mark.slow
@pytest.mark.parametrize("arrivals", [20, 37, 55])
def test_a_run_that_is_stopped_during_a_write_keeps_its_completions(
    run_here: RunHere, server: ModelServer, tmp_path: Path, arrivals: int
) -> None:
    path, output = places(tmp_path)
    server.configure(latency=0.1)
    run = Run(server, path, output, settings={**SETTINGS, "llm.flush_seconds": 0.02})
    run.wait_for(server, arrivals)
    os.kill(run.pid, signal.SIGTERM)
    ended = run.wait(timeout=120)
    assert ended.code == 130, ended.err
    calls, answered = server.count(), sum_usage(output, "answered")
    assert answered <= calls == read_manifest(output)["totals"]["calls"]
    assert calls - answered <= IN_FLIGHT
    check_mended(run_here, server, path, output, answered)


def test_a_run_drops_and_reports_copies_of_the_examples_in_its_prompts(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    """The templates contain the names in the only completion of the server.

    The line of the profile names these templates.
    """
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    source = (PROMPTS / "evaluate_coverage.jinja").read_text(encoding="utf-8")
    (prompts / "evaluate_coverage.jinja").write_text(f"{{# names: fixed covered #}}\n{source}", encoding="utf-8")
    server.configure(answer="fixed")
    path, output = write_samples(tmp_path / "samples.jsonl", make_samples(2)), tmp_path / "out"
    chosen = {"prompts_dir": prompts, "profile": "published", "summarise_contexts": False}
    ended = run_here(server, path, output, settings=chosen)
    assert ended.code == 0, ended.err
    (usage,) = read_table(output, "usage")
    assert usage["leaked_example"] == usage["requests"] == server.count()
    assert {row["text"] for row in read_table(output, "statements")} == {"A fixed uncovered one."}
    assert f"items dropped as repeats of the prompts' examples: evaluate_coverage {server.count()}" in ended.out
    assert "profile published: you changed summarise_contexts=false (was true); the template of" in ended.err


def test_a_run_that_lost_scores_has_failed_and_is_not_done(
    run_here: RunHere, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, output = places(tmp_path)
    whole = METRICS["e2e"]

    def lose(*given: Any) -> Tables:
        tables = whole.score(*given)
        return {**tables, "scores": tables["scores"].where("sample_id != 's0000'")}

    monkeypatch.setattr("untold.jobs.score.METRICS", {"e2e": replace(whole, score=lose)})
    ended = run_here(server, path, output, settings=SETTINGS)
    assert (ended.code, read_manifest(output)["status"]) == (1, "failed"), ended.err
    (line,) = [line for line in ended.err.splitlines() if "Rows were lost" in line]
    assert "the table scores has 39 rows, and 40 samples by 1 metric need 40" in line
    monkeypatch.undo()
    paid = server.count()
    ended = run_here(server, path, output, settings=SETTINGS)
    assert (ended.code, "Nothing to do" in ended.out, server.count()) == (0, False, paid), ended.err


@pytest.mark.slow
def test_a_run_that_loses_a_sample_between_steps_is_not_finished(
    run_here: RunHere, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_one(samples: DataFrame, *given: Any) -> Tables:
        return score_samples(samples.where(F.col("sample_id") != lost), *given)

    path, output = places(tmp_path)
    lost = SAMPLES[0]["sample_id"]
    monkeypatch.setattr("untold.jobs.score.score_samples", lose_one)
    ended = run_here(server, path, output, settings=SETTINGS)
    assert (ended.code, read_manifest(output)["status"]) == (1, "failed")
    assert "the table scores has 39 rows, and 40 samples by 1 metric need 40. Rows were lost" in ended.err
    monkeypatch.undo()
    paid = server.count()
    ended = run_here(server, path, output, settings=SETTINGS)
    assert (ended.code, read_manifest(output)["status"]) == (0, "finished"), ended.err
    assert server.count() == paid + 1
