"""Test web searches over real HTTP: the requests, the stored results and the errors."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.lookups import search
from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS, Run, ask, rows_in
from untold.udfs.llm.calls import CallSettings, Progress
from untold.udfs.llm.client import Endpoint
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.limiter import Budget, Limits
from untold.udfs.llm.usage import Prices
from untold.udfs.stages.lookups import hits_of

STAGE = Stage("web_search", ("query", "count"), "brave", "", api="search")
QUERY = "What is known of the home of Ada Mill & others?"


@pytest.fixture
def server(server: ModelServer) -> ModelServer:
    """Return the server with the path of the search in its address."""
    server.base_url = server.search_url
    return server


def look_up(
    server: ModelServer, folder: Path, rows: list[tuple[str, dict[str, Any]]], settings: CallSettings = SETTINGS
) -> tuple[Progress, dict[str, dict[str, Any]]]:
    progress = ask(server, folder, rows, settings, stage=STAGE)
    return progress, rows_in(folder)


def test_hits_have_the_results_of_the_service_as_plain_text(server: ModelServer, tmp_path: Path) -> None:
    progress, rows = look_up(server, tmp_path, [("r", {"query": QUERY, "count": 3})])
    expected = [{"id": one["url"], "text": f"{one['title']} {one['text']}"} for one in search(QUERY, 3)]
    assert hits_of(rows["r"]["text"]) == expected
    assert len(expected) == 3
    assert (progress.usage.calls, progress.usage.prompt_tokens, rows["r"]["model"]) == (1, 0, "brave")


def test_a_query_without_results_has_no_hits(server: ModelServer, tmp_path: Path) -> None:
    _, rows = look_up(server, tmp_path, [("r", {"query": "xylophone", "count": 3})])
    assert rows["r"]["error_type"] is None
    assert hits_of(rows["r"]["text"]) == []


@pytest.mark.parametrize("query", ["home " * 80, "honey" * 200, "x" * 399 + " yy"])
def test_a_query_is_cut_to_the_limit_of_the_service(server: ModelServer, tmp_path: Path, query: str) -> None:
    _, rows = look_up(server, tmp_path, [("r", {"query": query, "count": 100})])
    assert rows["r"]["error_type"] is None


@pytest.mark.parametrize("deed", ["html", "cut_json", {"status": 503}, {"status": 429}])
def test_a_temporary_error_is_retried(server: ModelServer, tmp_path: Path, deed: Any) -> None:
    server.configure(rules=[{"when": {"attempt_below": 2}, "do": deed}])
    progress, rows = look_up(server, tmp_path, [("r", {"query": QUERY, "count": 3})])
    assert rows["r"]["error_type"] is None
    assert (progress.usage.calls, progress.usage.rate_limited) == (2, int(deed == {"status": 429}))


def test_html_that_stays_is_a_bad_body_and_a_slow_answer_a_timeout(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"contains": "slow"}, "do": "hang"}, {"do": "html"}])
    rows = [("html", {"query": "a", "count": 1}), ("hang", {"query": "slow", "count": 1})]
    _, found = look_up(server, tmp_path, rows, replace(SETTINGS, timeout=0.5, max_attempts=2))
    assert {name: row["error_type"] for name, row in found.items()} == {"html": "bad_body", "hang": "timeout"}


def test_a_price_a_call_is_held_against_the_budget() -> None:
    assert Prices(thousand_calls=5.0).cost(0, 0, calls=3) == pytest.approx(0.015)


def test_a_bounded_cost_ends_the_searching_at_the_last_call_that_it_pays(server: ModelServer, tmp_path: Path) -> None:
    settings = replace(
        SETTINGS, prices=Prices(thousand_calls=10.0), budget=Budget(max_cost=0.055), limits=Limits(max_concurrency=2)
    )

    async def search_until_spent() -> Progress:
        run = Run(server, tmp_path, settings, stage=STAGE)
        run.asker.start()
        run.asker.feed("unit", [(f"r{number}", {"query": f"home {number}", "count": 1}) for number in range(20)])
        await run.until(lambda progress: progress.refusal == "budget" and not progress.in_flight)
        return await run.asker.stop(1.0)

    progress = asyncio.run(search_until_spent())
    assert progress.usage.calls == server.count() == 5
    assert len(rows_in(tmp_path)) == 5


@pytest.mark.parametrize(("key", "status"), [("right", None), (None, "http_401"), ("wrong", "http_401")])
def test_the_key_is_sent_in_the_header_of_the_service(key: str | None, status: str | None) -> None:
    async def call(server: ModelServer) -> Any:
        endpoint = Endpoint(server.search_url, key, connections=1, timeout=3.0, key_header="X-Subscription-Token")
        try:
            return await endpoint.call("search", b"q=a&count=1", read=lambda content, *_: content)  # type: ignore[arg-type]
        finally:
            await endpoint.close()

    with ModelServer(api_key="right") as server:
        answer = asyncio.run(call(server))
    assert getattr(answer, "error_type", None) == status
