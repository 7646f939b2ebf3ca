"""Test runs with batches.

Their tables equal the tables of calls for all kinds of errors, and each request is paid once.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import (
    Run,
    canonical,
    count_distinct,
    make_samples,
    read_manifest,
    read_table,
    sum_usage,
    write_samples,
)
from tests.runs.here import RunHere
from untold.jobs.inference.backends.batch_jobs import batch_jobs
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inputs.options import RunOptions
from untold.jobs.settings.model import Settings
from untold.jobs.settings.sections import BudgetSettings

pytestmark = pytest.mark.gate

SAMPLES = make_samples(20)
BATCH: dict[str, Any] = {
    "llm.backend": "batch",
    "batch.requests": 15,
    "batch.poll_seconds": 0.1,
    "batch.longest_poll_seconds": 0.2,
    "batch.settle_seconds": 0.2,
    "llm.price_per_million_prompt_tokens": 2.0,
    "llm.price_per_million_completion_tokens": 8.0,
}


def test_batches_give_the_tables_of_calls_at_half_the_price(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    samples, output = write_samples(tmp_path / "samples.jsonl", SAMPLES), tmp_path / "out"
    # A batch cannot use the schemas of an endpoint before the first completion
    calls = BATCH | {"llm.backend": "process", "llm.structured": "off"}
    assert run_here(server, samples, tmp_path / "calls", settings=calls).code == 0
    server.reset()

    server.configure(batches={"delay": 600.0})
    first = run_here(server, samples, output, "--no-poll", settings=BATCH)
    assert (first.code, read_manifest(output)["status"]) == (7, "batched"), first.err
    assert "at most 2 rounds of batches, one a stage, each within 24 hours" in first.err
    assert (
        f"requests wait in batches. See `untold batches {output}/completions`, and later continue with: untold"
        in first.err
    )
    assert {row["status"] for row in read_table(output, "scores")} == {"budget"}
    asked = server.count()
    shown = run_here.command(["batches", str(output)])
    assert (shown.code, shown.out.count("in_progress"), shown.out.count("batch_")) == (
        0,
        asked // 15 + 1,
        asked // 15 + 1,
    )
    unknown = run_here.command(["batches", str(output), "cancel", "--id", "batch_99"])
    assert (unknown.code, "has no batch batch_99" in unknown.err) == (1, True)
    # The canceled batch already has completions, so its requests are not sent again
    assert run_here.command(["batches", str(output), "cancel", "--id", "batch_1"]).code == 0
    fetched = run_here.command(["batches", str(output), "fetch"])
    assert (fetched.code, "batch_1" in fetched.out, "next: start the run again" in fetched.out) == (0, False, True)
    assert run_here.command(["batches", str(output), "cancel"]).code == 0
    deeds = [{"expire": 0.4}, {"lost": True}, {"twice": True}, {"shuffle": True}]
    server.configure(
        batches={"delay": 0.0, "batches": [{}] * (asked // 15 + 1) + deeds, "uploads": [""] * 4 + ["lost"]}
    )
    last = run_here(server, samples, output, settings=BATCH)
    assert last.code == 0, last.err
    assert canonical(output) == canonical(tmp_path / "calls")
    assert server.count() == count_distinct(SAMPLES)
    manifest = read_manifest(output)
    assert manifest["totals"]["calls"] == manifest["totals"]["answered"] == count_distinct(SAMPLES)
    assert manifest["totals"]["cost"] == pytest.approx(read_manifest(tmp_path / "calls")["totals"]["cost"] / 2)
    assert run_here.command(["batches", str(output)]).out == "No batches\n"


def batching(server: ModelServer, backend: str = "batch") -> Settings:
    llm = {"base_url": server.base_url, "model": "fake-model", "backend": backend, "structured": "off"}
    prompts = Path(__file__).parents[1] / "fakes" / "prompts"
    batch = {"poll_seconds": 0.1, "longest_poll_seconds": 0.1, "settle_seconds": 0.2}
    return Settings.model_validate({"llm": llm, "batch": batch, "prompts_dir": str(prompts)})


def summarise(runner: StageRunner, texts: list[str]) -> list[str | None]:
    rows = runner.engines.spark.createDataFrame([("q", text) for text in texts], "query string, text string")
    return [row["error_type"] for row in runner.ask("summarise_context", rows, carry=("text",)).collect()]


def test_a_run_with_calls_waits_for_batches_and_sends_the_rest(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    server.configure(batches={"batches": [{"delay": 1.0, "expire": 0.5}]})
    with run_here.runner(tmp_path, batching(server), "summarise_context") as runner:
        runner.engines = replace(runner.engines, options=RunOptions(poll=False))
        assert set(summarise(runner, ["Fact A.", "Fact B.", "Fact C.", "Fact D."])) == {"unasked"}
        assert runner.ended == "batched"
    with run_here.runner(tmp_path, batching(server, "process"), "summarise_context") as runner:
        assert set(summarise(runner, ["Fact A.", "Fact B.", "Fact C.", "Fact D."])) == {None}
        assert (runner.usage[0]["answered"], runner.usage[0]["calls"]) == (4, 4)
    assert server.count() == 4
    assert sum(arrival.path == "/v1/batches" for arrival in server.arrivals()) == 1


def test_a_run_pays_for_its_own_requests_and_not_for_requests_in_flight(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    """Requests of another run that are not in a batch remain unsent."""
    server.configure(batches={"batches": [{"delay": 1.0}]})
    short = batching(server).model_copy(update={"budget": BudgetSettings(max_calls=2)})
    with run_here.runner(tmp_path, short, "summarise_context") as runner:
        runner.engines = replace(runner.engines, options=RunOptions(poll=False))
        summarise(runner, ["Fact A.", "Fact B.", "Fact C.", "Fact D."])
    assert server.count() == 2
    with run_here.runner(tmp_path, batching(server), "summarise_context") as runner:
        assert set(summarise(runner, ["Fact B.", "Fact D.", "Fact E."])) == {None}
    assert server.count() == 4
    assert batch_jobs(f"{tmp_path}/store") == []


@pytest.mark.slow
def test_an_interrupted_run_names_its_batches_and_the_next_run_pays_nothing(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    """Send a real SIGINT to a separate process."""
    samples, output = write_samples(tmp_path / "samples.jsonl", SAMPLES), tmp_path / "out"
    server.configure(batches={"batches": [{"delay": 20.0}] * 20})
    run = Run(server, samples, output, settings=BATCH)
    while "requests of summarise_context" not in run.errors and run.is_running:
        sleep(0.1)
    asked = server.count()
    os.kill(run.pid, signal.SIGINT)
    ended = run.wait()
    assert (ended.code, read_manifest(output)["status"]) == (130, "interrupted"), ended.err
    assert "these batches continue, and the next start reads their completions: batch_1" in ended.err
    last = run_here(server, samples, output, settings=BATCH)
    assert last.code == 0, last.err
    assert 0 < asked < server.count() == count_distinct(SAMPLES)


@pytest.mark.slow
def test_failures_of_batches_are_retried_on_request(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    samples, output = write_samples(tmp_path / "samples.jsonl", SAMPLES), tmp_path / "out"
    server.configure(rules=[{"when": {"contains": "Fact C3."}, "do": {"status": 400, "error": {"message": "no"}}}])
    first = run_here(server, samples, output, settings=BATCH)
    failed = sum_usage(output, "failed")
    assert (first.code, failed > 0) == (4, True), first.err
    before = server.count()
    server.configure(rules=[])
    again = run_here(server, samples, output, "--retry-failed", settings=BATCH)
    assert again.code == 0, again.err
    # A request for coverage changes if the summary failed before
    assert failed <= server.count() - before <= failed + 1
    assert {row["status"] for row in read_table(output, "scores")} == {"ok"}


@pytest.mark.slow
def test_several_faults_at_once_change_no_table(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    """The faults are truncated and unreadable results, a full queue, lost responses, late lists, expiry and missing
    credit.
    """
    samples = write_samples(tmp_path / "samples.jsonl", make_samples(40))
    refused = {"when": {"contains": "Fact C7."}, "do": {"status": 400, "error": {"message": "no"}}}
    settings = BATCH | {"llm.structured": "off", "batch.settle_seconds": 3.0}
    server.configure(rules=[refused])
    calls = settings | {"llm.backend": "process"}
    assert run_here(server, samples, tmp_path / "calls", settings=calls).code == 4
    server.reset()
    deeds: list[dict[str, Any]] = [
        {"cut": True},
        {"garbage": 2, "shuffle": True},
        {"fail": "token_limit_exceeded"},
        {"lost": True, "lag": 0.5},
        {"expire": 0.4, "twice": True},
        {"delay": 0.5},
    ]
    credit = {"when": {"after": 60}, "do": {"status": 429, "error": {"code": "insufficient_quota", "message": "no"}}}
    server.configure(rules=[refused, credit], batches={"batches": deeds, "uploads": ["lost", "fails"]})
    output = tmp_path / "out"
    first = run_here(server, samples, output, settings=settings)
    assert (first.code, "add credit" in first.err) == (1, True), first.err
    server.configure(rules=[refused])
    last = run_here(server, samples, output, settings=settings)
    assert last.code == 4, last.err
    assert canonical(output) == canonical(tmp_path / "calls")


# The server has processed the step but not responded when the run is killed
STEPS = ["POST /v1/files", "POST /v1/batches", "GET /v1/batches/batch_2", "GET /v1/files/output"]
MESSAGES = ["POST /v1/messages", "GET /v1/messages/batches/batch_2", "GET /v1/messages/batches/batch_1/results"]


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[] if step == STEPS[1] else pytest.mark.slow) for step in STEPS + MESSAGES]
)
def test_a_run_that_is_killed_at_a_step_pays_for_no_request_twice(
    run_here: RunHere, server: ModelServer, tmp_path: Path, step: str
) -> None:
    samples, output = write_samples(tmp_path / "samples.jsonl", SAMPLES), tmp_path / "out"
    form = "anthropic" if step in MESSAGES else "openai"
    settings = BATCH | {"batch.format": form}
    server.configure(batches={"slow": step, "form": form, "delay": 0.5 * (form == "anthropic")})
    run = Run(server, samples, output, settings=settings)
    path = step.partition(" ")[2]
    while not any(arrival.path.startswith(path) for arrival in server.arrivals()) and run.is_running:
        sleep(0.05)
    run.kill()
    server.configure(batches={"slow": ""})
    again = run_here(server, samples, output, settings=settings)
    assert again.code == 0, again.err + run.errors
    assert server.count() == count_distinct(SAMPLES)
    paths = [arrival.path for arrival in server.arrivals()]
    assert sum_usage(output, "failed") == 0
    assert read_manifest(output)["status"] == "finished"
    assert {row["status"] for row in read_table(output, "scores")} <= {"ok", "no_statements"}
    assert paths.count("/v1/files") < 2 * paths.count("/v1/batches") + 4 or form == "anthropic"
