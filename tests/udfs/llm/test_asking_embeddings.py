"""Test vectors over real HTTP: a call has several texts, each text has a row, and one text can break its call."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.lookups import vector_of
from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS, Run, ask, rows_in
from untold.udfs.llm.calls import CallSettings, Progress
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.text_models import read_embeddings, shares
from untold.udfs.llm.usage import Usage
from untold.udfs.retrieval.embedding import prefixes_template

STAGE = Stage("embed_text", ("text", "kind"), "embedder", prefixes_template("", ""), api="embeddings")
BATCHES = replace(SETTINGS, batch=64, section="embeddings")
POISON = "poison"


def texts(count: int, kind: str = "document") -> list[tuple[str, dict[str, str]]]:
    return [(f"r{number:04d}", {"text": f"bees of hive {number}", "kind": kind}) for number in range(count)]


def embed(
    server: ModelServer,
    folder: Path,
    rows: list[tuple[str, dict[str, str]]],
    settings: CallSettings = BATCHES,
    stage: Stage = STAGE,
) -> tuple[Progress, dict[str, dict[str, Any]]]:
    progress = ask(server, folder, rows, settings, stage=stage)
    return progress, rows_in(folder)


def with_poison(count: int, place: int) -> list[tuple[str, dict[str, str]]]:
    rows = texts(count)
    rows[place] = (rows[place][0], {"text": f"{POISON} of bees", "kind": "document"})
    return rows


def test_a_call_asks_for_a_batch_and_every_text_is_a_row(server: ModelServer, tmp_path: Path) -> None:
    progress, rows = embed(server, tmp_path, texts(150))
    assert server.count("embed_text") == progress.usage.calls == progress.usage.asked == 3
    assert (progress.usage.done, progress.usage.failed) == (150, 0)
    # The server returns the vectors in reverse order, and the index assigns them to the texts
    assert {name: row["vector"] for name, row in rows.items()} == {
        name: vector_of(variables["text"]) for name, variables in texts(150)
    }
    assert {row["model"] for row in rows.values()} == {"embedder"}
    assert {row["text"] for row in rows.values()} == {None}


def test_tokens_of_a_call_are_divided_among_its_texts_by_their_bytes(server: ModelServer, tmp_path: Path) -> None:
    given = [("long", {"text": "é" * 300, "kind": "query"}), ("short", {"text": "b" * 200, "kind": "query"})]
    progress, rows = embed(server, tmp_path, given)
    arrived = sum(arrival.prompt_tokens for arrival in server.arrivals())
    assert progress.usage.prompt_tokens == arrived == rows["long"]["prompt_tokens"] + rows["short"]["prompt_tokens"]
    assert rows["long"]["prompt_tokens"] == pytest.approx(3 * rows["short"]["prompt_tokens"], abs=2)
    assert progress.usage.completion_tokens == 0


@given(st.integers(0, 10**6), st.lists(st.integers(0, 1000), min_size=1, max_size=80))
def test_shares_add_up_to_the_usage(tokens: int, sizes: list[int]) -> None:
    parts = [part.prompt_tokens for part in shares(Usage(tokens), sizes)]
    assert min(parts) >= 0
    assert sum(parts) == (tokens if sum(sizes) else 0)


def test_each_kind_has_its_prefix(server: ModelServer, tmp_path: Path) -> None:
    stage = replace(STAGE, template=prefixes_template("query of", "document of"))
    given = [(kind, {"text": "bees", "kind": kind}) for kind in ("query", "document")]
    _, rows = embed(server, tmp_path, given, stage=stage)
    assert rows["query"]["vector"] == vector_of("query of" + "bees")
    assert rows["document"]["vector"] == vector_of("document of" + "bees")


@pytest.mark.parametrize("place", [0, 37, 63])
def test_one_poison_text_in_a_batch_of_64_is_the_only_one_that_fails(
    server: ModelServer, tmp_path: Path, place: int
) -> None:
    server.configure(rules=[{"when": {"contains": POISON}, "do": {"status": 400}}])
    progress, rows = embed(server, tmp_path, with_poison(64, place))
    failed = {name: row["error_type"] for name, row in rows.items() if row["error_type"]}
    assert failed == {f"r{place:04d}": "http_400"}
    # The batch is split in half six times to find one of 64 texts, with two calls each after the first
    assert progress.usage.calls == server.count() == 13
    # The batch's first call is the first attempt of all of its rows
    assert progress.usage.asked == 1
    assert rows[f"r{place:04d}"]["attempts"] == 7


def test_the_halves_of_a_rejected_batch_are_retried_after_an_error(server: ModelServer, tmp_path: Path) -> None:
    """The first call of each body fails: the call with both texts, and the call with each of the texts."""
    stumble = {"when": {"attempt_below": 2}, "do": {"status": 503}}
    server.configure(rules=[stumble, {"when": {"contains": POISON}, "do": {"status": 400}}])
    progress, rows = embed(server, tmp_path, with_poison(2, 0), replace(BATCHES, max_attempts=3))
    assert {name: row["error_type"] for name, row in rows.items()} == {"r0000": "http_400", "r0001": None}
    assert progress.usage.calls == 6


def test_a_text_that_makes_the_server_stumble_is_found_as_well(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"contains": POISON}, "do": {"status": 500}}])
    _, rows = embed(server, tmp_path, with_poison(8, 5), replace(BATCHES, max_attempts=2))
    assert {name: row["error_type"] for name, row in rows.items() if row["error_type"]} == {"r0005": "http_500"}


@pytest.mark.parametrize("deed", [{"nan": POISON}, {"zero": POISON}, {"short": POISON}])
def test_an_invalid_vector_only_fails_its_row_and_the_others_are_not_sent_again(
    server: ModelServer, tmp_path: Path, deed: Mapping[str, Any]
) -> None:
    server.configure(rules=[{"do": deed}])
    progress, rows = embed(server, tmp_path, with_poison(8, 5), replace(BATCHES, max_attempts=3))
    assert {name: row["error_type"] for name, row in rows.items() if row["error_type"]} == {"r0005": "bad_body"}
    assert rows["r0005"]["vector"] is None
    assert progress.usage.calls == 3
    assert {row["attempts"] for name, row in rows.items() if name != "r0005"} == {1}


@pytest.mark.parametrize("deed", ["drop", "nan", "html", "cut_json", {"status": 503}, {"status": 429}])
def test_a_temporary_error_is_retried(server: ModelServer, tmp_path: Path, deed: Any) -> None:
    server.configure(rules=[{"when": {"attempt_below": 2}, "do": {"nan": True} if deed == "nan" else deed}])
    progress, rows = embed(server, tmp_path, texts(10))
    assert {row["error_type"] for row in rows.values()} == {None}
    assert (progress.usage.calls, progress.usage.asked) == (2, 1)
    assert progress.usage.rate_limited == (deed == {"status": 429})


def test_a_slow_response_is_a_timeout_and_retried(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"attempt_below": 2}, "do": "hang"}])
    progress, rows = embed(server, tmp_path, texts(10), replace(BATCHES, timeout=0.5))
    assert {row["error_type"] for row in rows.values()} == {None}
    assert progress.usage.calls == 2


def test_a_wrong_count_that_stays_fails_every_row(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": "drop"}])
    progress, rows = embed(server, tmp_path, texts(4), replace(BATCHES, max_attempts=2))
    assert {row["error_type"] for row in rows.values()} == {"bad_body"}
    # The batch is sent twice, and then each half and each single row once
    assert progress.usage.calls == 2 + 2 + 4


def test_a_key_that_is_refused_ends_the_run_and_names_its_setting(tmp_path: Path) -> None:
    with ModelServer(api_key="right") as server:
        progress = ask_until_refused(server, tmp_path)
    assert progress.refused is not None
    assert "embeddings.base_url and embeddings.model" in progress.refused
    assert rows_in(tmp_path) == {}


def ask_until_refused(server: ModelServer, folder: Path) -> Progress:
    async def run() -> Progress:
        one = Run(server, folder, BATCHES, stage=STAGE)
        one.asker.start()
        one.asker.feed("unit", texts(5))
        await one.until(lambda progress: progress.refused is not None)
        return await one.asker.stop(1.0)

    return asyncio.run(run())


def body(*vectors: Any, **fields: Any) -> bytes:
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return json.dumps({"data": data, "model": "m", **fields}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"[]",
        b'{"data": null}',
        b'{"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}',
        b'{"data": [{"index": 0, "embedding": [1.0]}, {"index": 2, "embedding": [1.0]}]}',
        b'{"data": [{"index": 0, "embedding": [1.0]}, {"index": true, "embedding": [1.0]}]}',
        b'{"data": [{"index": 0, "embedding": ["1"]}, {"index": 1, "embedding": [1.0]}]}',
        b'{"data": [{"index": 0, "embedding": "%"}, {"index": 1, "embedding": [1.0]}]}',
        body([1.0]),
        body([1.0], [1.0], [1.0]),
    ],
)
def test_a_body_without_one_vector_for_each_text_is_bad(content: bytes) -> None:
    answer = read_embeddings(content, 100, {}, sizes=[1, 1], dimension=None)
    assert (answer.error_type, answer.parts) == ("bad_body", ())


def test_a_vector_may_come_in_base64() -> None:
    encoded = base64.b64encode(np.array([0.5, -1.0], "<f4").tobytes()).decode()
    answer = read_embeddings(body(encoded), 100, {}, sizes=[1], dimension=2)
    assert answer.parts[0].vector is not None
    assert answer.parts[0].vector.tolist() == [0.5, -1.0]


@pytest.mark.parametrize("value", [1e60, float("inf"), float("nan")])
def test_a_number_beyond_single_precision_is_invalid(value: float) -> None:
    answer = read_embeddings(body([1.0, value], [1.0, 2.0]), 100, {}, sizes=[1, 1], dimension=2)
    assert [part.error_type for part in answer.parts] == ["bad_body", None]
    assert answer.error_type is None


def test_an_error_in_a_body_has_the_type_of_its_status() -> None:
    answer = read_embeddings(b'{"error": {"code": 503}}', 100, {}, sizes=[1], dimension=None)
    assert answer.error_type == "http_503"
