"""Run jobs with a reasoning judge, a judge that rejects parameters, and endpoints that reject all requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.expected_rag import rag_samples
from tests.fakes.model_server import ModelServer
from tests.fakes.world_nuggets import nugget_worlds
from tests.runs.harness import Row, make_samples, read_table, sum_usage, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder
from tests.runs.test_structured import METRICS
from tests.udfs.llm.test_parameters import refusal

pytestmark = pytest.mark.gate

slow = pytest.mark.slow
REFUSED = ("max_tokens", "temperature", "top_p", "logprobs")
REASONING = [*map(refusal, REFUSED), {"do": {"reasoning": 900}}]
SAMPLES: dict[str, Callable[[], list[Row]]] = {
    **METRICS,
    "nuggets": lambda: [sample for world in nugget_worlds(4) for sample in world.samples(2)],
    "rag": lambda: rag_samples(4, 2),
}
ANSWERS = {"e2e": "e2e", "nuggets": "world", "rag": "careless_closed"}


@pytest.mark.parametrize("metric", ["e2e", *(pytest.param(name, marks=slow) for name in SAMPLES if name != "e2e")])
def test_a_model_that_reasons_scores_all_samples(
    run_here: RunHere, server: ModelServer, tmp_path: Path, metric: str
) -> None:
    server.configure(answer=ANSWERS.get(metric, "world_noisy"), rules=REASONING)
    path, store = write_samples(tmp_path / "samples.jsonl", SAMPLES[metric]()), tmp_path / "store"
    settings = {**embedder(server), "completion_store": store}
    ended = run_here(server, path, tmp_path / "one", "--metric", metric, settings=settings)
    assert ended.code == 0, ended.err
    statuses = {row["status"] for row in read_table(tmp_path / "one", "scores")}
    assert statuses <= {"ok", "no_statements"}
    assert "fake-model: max_tokens is not supported; sent as max_completion_tokens" in ended.err
    assert "fake-model: temperature is not supported; sent without it" in ended.err
    (found,) = json.loads((store / "parameters.json").read_text()).values()
    assert (found["limit_name"], found["reasoning_tokens"]) == ("max_completion_tokens", 1024)
    assert {"temperature", "top_p"} <= set(found["dropped"]) <= set(REFUSED)
    (lines,) = json.loads((tmp_path / "one" / "manifest.json").read_text())["parameters"].values()
    assert "top_p is not supported; sent without it" in lines
    assert sum_usage(tmp_path / "one", "reasoning_tokens") > 0

    # Another run on the store sends no requests, because the store also has the parameters
    calls = server.count()
    again = run_here(server, path, tmp_path / "two", "--metric", metric, settings=settings)
    assert (again.code, server.count(), "is not supported" in again.err) == (0, calls, False)


REFUSALS = {
    "an unknown parameter": (
        {"status": 422, "error": {"detail": [{"loc": ["body", "min_p"], "msg": "Extra inputs are not permitted"}]}},
        "remove min_p from llm.extra_body",
    ),
    "the key": ({"status": 400, "error": {"message": "API key not valid."}}, "llm.api_key_env"),
    "the budget": ({"status": 400, "error": {"message": "Budget has been exceeded!"}}, "raise the budget"),
    "another server": ({"status": 200, "body": "<!doctype html><html></html>"}, "most end in /v1"),
}


@pytest.mark.parametrize(("deed", "said"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_run_without_any_success_is_stopped_and_resumes_after_the_fix(
    run_here: RunHere, server: ModelServer, tmp_path: Path, deed: dict[str, Any], said: str
) -> None:
    server.configure(answer="e2e", rules=[{"do": deed}])
    path = write_samples(tmp_path / "samples.jsonl", make_samples(30))
    ended = run_here(server, path, tmp_path / "out")
    assert (ended.code, server.count() <= 20) == (1, True), ended.err
    assert said in ended.err
    assert not list((tmp_path / "out" / "completions" / "v1").rglob("*.parquet"))

    server.configure(answer="e2e", rules=[])
    again = run_here(server, path, tmp_path / "out")
    assert again.code == 0, again.err
    assert {row["status"] for row in read_table(tmp_path / "out", "scores")} == {"ok"}


def test_a_context_window_that_cuts_prompts_is_named(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    server.configure(answer="e2e", rules=[{"do": "few_tokens"}])
    path = write_samples(tmp_path / "samples.jsonl", make_samples(3))
    ended = run_here(server, path, tmp_path / "out")
    assert ended.code == 0, ended.err
    assert sum_usage(tmp_path / "out", "cut_prompts") > 0
    assert "context window cuts prompts" in ended.out


def test_failures_of_an_earlier_start_are_named_with_the_option_that_sends_them(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    server.configure(answer="e2e", rules=[{"when": {"stage": "evaluate_coverage"}, "do": "filter"}])
    path = write_samples(tmp_path / "samples.jsonl", make_samples(3))
    first = run_here(server, path, tmp_path / "out")
    assert (first.code, "earlier starts" in first.err) == (4, False), first.err
    calls = server.count()
    again = run_here(server, path, tmp_path / "out")
    assert (again.code, server.count()) == (4, calls)
    assert "of earlier starts, not sent again without --retry-failed" in again.err
    server.configure(answer="e2e", rules=[])
    assert run_here(server, path, tmp_path / "out", "--retry-failed").code == 0
