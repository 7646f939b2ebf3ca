"""Run a job with several endpoints.

One endpoint stops, one has another model, and the tables show the calls of each.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import Run, count_distinct, make_samples, read_manifest, read_table, write_samples
from tests.runs.here import RunHere
from untold.jobs.run.manifest import by_stage

pytestmark = pytest.mark.gate

SAMPLES = make_samples(60)


def test_a_job_is_answered_by_all_endpoints_that_live(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    path, output = write_samples(tmp_path / "samples.jsonl", SAMPLES), tmp_path / "out"
    with ModelServer() as other:
        each = [
            {"base_url": server.base_url, "price_per_million_prompt_tokens": 1.0},
            {"base_url": other.base_url, "model": "theirs", "price_per_million_prompt_tokens": 3.0},
            {"base_url": "http://127.0.0.1:9/v1"},
        ]
        settings: dict[str, Any] = {"llm.base_url": "null", "llm.endpoints": json.dumps(each)}
        first = run_here(server, path, output, settings={**settings, "budget.max_calls": 50})
        assert first.code == 3, first.err
        assert server.count() + other.count() <= 50
        ended = run_here(server, path, output, settings=settings)
        arrived = {server.base_url: server.count(), other.base_url: other.count()}
    assert ended.code == 0, ended.err
    assert sum(arrived.values()) == count_distinct(SAMPLES)
    assert all(arrived.values())
    assert {row["status"] for row in read_table(output, "scores")} == {"ok"}
    files = [*(output / "completions" / "v1").rglob("*.parquet")]
    written = [row for file in files for row in pq.read_table(file, columns=["endpoint", "model"]).to_pylist()]
    assert {(row["endpoint"], row["model"]) for row in written} == {
        (server.base_url, "fake-model"),
        (other.base_url, "theirs"),
    }
    assert read_manifest(output)["models"] == ["fake-model", "theirs"]
    check_usage(output, arrived)


def test_shares_of_a_job_equal_the_weights(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    path, output = write_samples(tmp_path / "samples.jsonl", make_samples(400)), tmp_path / "out"
    with ModelServer() as second, ModelServer() as third:
        weights = {server: 1, second: 1, third: 2}
        # Without a latency, the processors of this machine decide the shares of three servers
        for one in weights:
            one.configure(latency=0.1)
        each = [{"base_url": one.base_url, "weight": weight} for one, weight in weights.items()]
        settings = {"llm.base_url": "null", "llm.endpoints": json.dumps(each), "summarise_contexts": "false"}
        ended = run_here(server, path, output, settings={**settings, "llm.max_concurrency": 16})
        arrived = [one.count() for one in weights]
    assert ended.code == 0, ended.err
    asked = sum(arrived)
    assert arrived == [pytest.approx(asked * weight / 4, abs=0.02 * asked) for weight in weights.values()]


@pytest.mark.slow
def test_a_job_continues_with_faulty_endpoints(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    """The endpoints are broken and repaired, rate limited, poisoned, slow, and normal."""
    path, output = write_samples(tmp_path / "samples.jsonl", make_samples(400)), tmp_path / "out"
    with ExitStack() as stack:
        dying, limited, poisoned, slow = (stack.enter_context(ModelServer()) for _ in range(4))
        # The text is a valid summary of a context, but it is not a valid judgement
        poisoned.configure(rules=[{"when": {"stage": "evaluate_coverage"}, "do": {"text": "purple monkey dishwasher"}}])
        slow.configure(latency=0.5)
        server.configure(latency=0.05)
        dying.configure(latency=0.05)
        all_of_them = (server, dying, limited, poisoned, slow)
        each: list[dict[str, Any]] = [{"base_url": one.base_url, "max_concurrency": 4} for one in all_of_them]
        each[2]["requests_per_minute"] = 120
        settings = {"llm.base_url": "null", "llm.endpoints": json.dumps(each), "llm.outage_minutes": 0.05}
        settings["stages.summarise_context.structured"] = settings["llm.structured"] = "off"
        run = Run(server, path, output, settings=settings)
        dying.wait_for(20, 300.0)
        dying.configure(down=True)
        # This takes longer than the permitted outage of all endpoints
        run.wait_for(server, server.count() + 150)
        before = dying.count()
        dying.configure(down=False)
        ended = run.wait()
        counts, repeated = [one.count() for one in all_of_them], poisoned.count("evaluate_coverage")
    assert ended.code == 0, ended.err
    assert {row["status"] for row in read_table(output, "scores")} == {"ok"}
    starts = read_manifest(output)["starts"]
    rows = [row for start in starts for row in start["usage"]]
    used = {name: sum(row[name] for row in rows) for name in ("answered", "failed", "unasked", "retries_after_parse")}
    assert used == {
        "answered": count_distinct(make_samples(400)),
        "failed": 0,
        "unasked": 0,
        "retries_after_parse": repeated,
    }
    assert repeated > 0
    # The only repeated requests are the requests to the poisoned model and the requests in flight at the stopped
    # endpoint
    assert sum(counts) - count_distinct(make_samples(400)) <= repeated + 2 * 4
    assert dying.count() > before
    assert counts[4] < counts[0]


@pytest.mark.slow
def test_failures_are_sent_again_to_all_endpoints(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    path, output = write_samples(tmp_path / "samples.jsonl", SAMPLES), tmp_path / "out"
    refused = {"when": {"contains": "Fact C3."}, "do": {"status": 400, "error": {"message": "no"}}}
    with ModelServer(rules=[refused]) as other:
        server.configure(rules=[refused])
        each = [{"base_url": one.base_url} for one in (server, other)]
        settings: dict[str, Any] = {"llm.base_url": "null", "llm.endpoints": json.dumps(each)}
        first = run_here(server, path, output, settings=settings)
        failed = sum(row["failed"] for row in read_table(output, "usage"))
        assert (first.code, failed > 0) == (4, True), first.err
        before = server.count() + other.count()
        for one in (server, other):
            one.configure(rules=[])
        again = run_here(server, path, output, "--retry-failed", settings=settings)
        assert again.code == 0, again.err
        assert failed <= server.count() + other.count() - before <= failed + 1


def check_usage(output: Path, arrived: dict[str, int]) -> None:
    """Check that the rows of each endpoint match its calls, and that the requests are the sum of the results."""
    starts = read_manifest(output)["starts"]
    rows = [row for start in starts for row in start["usage"]]
    assert read_table(output, "usage") == starts[-1]["usage"]
    for row in rows:
        assert row["requests"] == row["reused"] + row["answered"] + row["failed"] + row["unasked"]
    calls = {name: sum(row["calls"] for row in rows if row["endpoint"] == name) for name in arrived}
    assert calls == arrived
    for name, price in zip(arrived, (1.0, 3.0), strict=True):
        own = [row for row in rows if row["endpoint"] == name]
        paid = sum(row["prompt_tokens"] for row in own) * price
        assert sum(row["cost"] for row in own) * 1e6 == pytest.approx(paid)
    whole = {row["stage"]: row["requests"] for row in by_stage(starts[-1]["usage"])}
    assert sum(whole.values()) == count_distinct(SAMPLES)
