"""Test the client of batches over HTTP with the model server."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS
from untold.udfs.llm.batch_api import BatchApi, BatchError, BatchStatus, Host, HostedBatches, Sent, line_of
from untold.udfs.llm.batch_formats import open_batches
from untold.udfs.llm.client import BROKEN_STREAMS, httpx

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": '{"stage": "summarise_context", "query": "q", "text": "t"}'}],
}
LINES = b"".join(line_of(f"r{number}", "/v1/chat/completions", json.dumps(BODY).encode()) for number in range(5))
MORE = {"run": "run1", "stage": "summarise_context", "digest": "0"}


@pytest.fixture
def api(server: ModelServer) -> Iterator[HostedBatches]:
    with closing(HostedBatches(replace(SETTINGS, base_url=server.base_url), Host())) as api:
        yield api


def create(api: BatchApi, name: str) -> BatchStatus:
    return api.create(sent(name, api.upload(f"{name}.jsonl", io.BytesIO(LINES))))


def sent(name: str, file: str = "") -> Sent:
    return Sent(name, file, "chat", MORE, 0.0, 5, lambda: io.BytesIO(LINES))


def test_a_file_is_uploaded_and_its_results_are_downloaded(api: BatchApi, server: ModelServer) -> None:
    look = api.look(create(api, "one").id)
    assert (look.status, look.ended, look.done, look.code) == ("completed", True, 5, None)
    found = [json.loads(line) for file in look.results for line in api.lines(file) if line]
    assert sorted(one["custom_id"] for one in found) == ["r0", "r1", "r2", "r3", "r4"]
    assert server.count("summarise_context") == 5


def test_the_batches_and_files_of_an_earlier_run_are_found_on_later_pages(api: BatchApi, server: ModelServer) -> None:
    looks = {name: create(api, name) for name in ("one", "two", "three", "four")}
    found = api.find_batch(sent("four"))
    assert found is not None
    assert found.id == looks["four"].id
    assert api.find_batch(sent("five")) is None
    assert api.find_file("three.jsonl", len(LINES)) is not None
    # The upload of this file was interrupted
    assert api.find_file("three.jsonl", len(LINES) + 1) is None


def test_a_batch_of_another_key_does_not_show(
    api: BatchApi, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = create(api, "own")
    monkeypatch.setenv("ANOTHER", "sk-another")
    with closing(open_batches(replace(SETTINGS, base_url=server.base_url, api_key_env="ANOTHER"))) as other:
        assert other.find_batch(sent("own")) is None
        with pytest.raises(BatchError) as refused:
            other.look(own.id)
    assert refused.value.answer.error_type == "http_404"


def test_a_cancelled_batch_and_a_failed_batch(api: BatchApi, server: ModelServer) -> None:
    server.configure(
        batches={"delay": 60.0, "batches": [{}, {"fail": "token_limit_exceeded"}, {"fail": "model_not_found"}]}
    )
    one = create(api, "one")
    assert not one.ended
    assert api.cancel(one.id).ended
    full, refused = create(api, "two"), create(api, "three")
    assert (full.status, full.code, full.refusal) == ("failed", "token_limit_exceeded", None)
    assert refused.refusal is not None
    assert refused.refusal.refused


def test_an_error_has_the_same_type_as_in_a_call(api: BatchApi, server: ModelServer) -> None:
    server.configure(batches={"uploads": ["fails"]})
    with pytest.raises(BatchError) as failed:
        create(api, "one")
    assert failed.value.answer.error_type == "http_500"
    server.configure(down=True)
    with pytest.raises(BatchError) as gone:
        api.look("batch_1")
    assert gone.value.answer.error_type == "connection"


def test_a_page_without_json_has_no_batch(server: ModelServer) -> None:
    with closing(open_batches(replace(SETTINGS, base_url=server.base_url.removesuffix("/v1")))) as api:
        with pytest.raises(BatchError) as wrong:
            api.look("batch_1")
    assert wrong.value.answer.refused


def listed(number: int, **fields: Any) -> Any:
    batch = {"id": f"batch_{number}", "status": "completed", "input_file_id": f"file-{number}", "metadata": None}
    return batch | {"errors": None, "output_file_id": None, "error_file_id": None, "request_counts": None} | fields


def test_an_endless_list_of_batches_ends(api: HostedBatches) -> None:
    page = {"data": [listed(1), listed(2)], "has_more": True}
    with patch.object(api, "json", lambda *_, **__: page):
        assert api.find_batch(sent("other")) is None
        # If the endpoint does not return metadata, the file identifies the batch
        found = api.find_batch(sent("other", "file-2"))
    assert found is not None
    assert found.id == "batch_2"


@pytest.mark.parametrize(
    ("said", "status"),
    [("canceled", "cancelled"), ("COMPLETED", "completed"), ("IN_PROGRESS", "in_progress"), ("Failed", "failed")],
)
def test_statuses_are_read_in_any_spelling(api: HostedBatches, said: str, status: str) -> None:
    with patch.object(api, "json", lambda *_, **__: listed(1, status=said)):
        look = api.look("batch_1")
    assert (look.status, look.ended) == (status, status != "in_progress")


def test_a_file_that_is_not_gzip_is_an_error() -> None:
    assert issubclass(httpx.DecodingError, BROKEN_STREAMS)
