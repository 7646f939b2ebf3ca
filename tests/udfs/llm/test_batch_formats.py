"""Test batches in each documented format.

The rows equal the rows of calls for all errors, and no request is sent twice.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.jobs.inference.batched import HOW, ROWS, deliver, delivery, is_whole, left_job, rows_of
from tests.udfs.llm.askers import SETTINGS, STAGE
from tests.udfs.llm.test_asking_tools import FAR, FAR_TOO, NEAR, QUESTION
from tests.udfs.llm.test_asking_tools import STAGE as COMPARING
from untold.udfs.llm.batch_api import BatchApi, BatchError, NotYetError, Sent
from untold.udfs.llm.batch_formats import FORMATS, FileBatches, open_batches, result_line
from untold.udfs.llm.calls import CallSettings, format_at
from untold.udfs.llm.messages import chat_of_message, message_of_chat

# The path of each format on the fake server
ROOTS = {"azure": "/openai/deployments/a-deployment", "azure-v1": "/openai/v1"}
FORMS = ["openai", "azure", "azure-v1", "groq", "mistral", "together", "anthropic"]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-one")


def changes_for(server: ModelServer, form: str, **batches: Any) -> dict[str, Any]:
    """Return the settings of a call to the fake server with batches in this format."""
    server.configure(batches={"form": form.removesuffix("-v1"), **batches})
    root = server.base_url.removesuffix("/v1") + ROOTS.get(form, "/v1")
    query = {"api-version": "2024-10-21"} if form == "azure" else {}
    return {
        "base_url": root,
        "api_key_env": "A_KEY",
        "batch_format": form.removesuffix("-v1"),
        "query": query,
        "timeout": 5.0,
    }


def stage_for(form: str) -> Any:
    """Return a stage with a deployment as its model if the address does not name the deployment."""
    return replace(STAGE, model="a-deployment") if form == "azure-v1" else STAGE


@pytest.mark.parametrize("form", FORMS)
def test_each_format_has_the_same_rows_and_sends_each_request_once(
    server: ModelServer, tmp_path: Path, form: str
) -> None:
    deeds = [{"expire": 0.5, "twice": True}, {"shuffle": True, "delay": 0.05}, {"lost": True}]
    changes = changes_for(server, form, batches=deeds, uploads=["", "lost"], pending=1)
    job = left_job(tmp_path, stage=stage_for(form), **changes)
    with closing(open_batches(job.read().settings)) as api:
        outcome = deliver(job, api, HOW.model_copy(update={"requests": 5}))
    assert (outcome.reason, outcome.error) == (None, None)
    assert is_whole(job)
    assert server.count() == ROWS
    used = job.ledger().used
    assert (used.calls, used.asked, used.failed) == (ROWS, ROWS, 0)
    assert {row["finish_reason"] for row in rows_of(job)} <= {"stop", "end_turn"}
    assert all(row["prompt_tokens"] > 7 and row["model"] for row in rows_of(job))


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_errors_are_theirs_in_each_form(server: ModelServer, tmp_path: Path, form: str) -> None:
    server.configure(
        rules=[
            {"when": {"contains": "number 1."}, "do": {"status": 400, "error": {"message": "too long"}}},
            {"when": {"contains": "number 2."}, "do": {"length": True}},
        ]
    )
    job = left_job(tmp_path, stage=stage_for(form), **changes_for(server, form))
    with closing(open_batches(job.read().settings)) as api:
        assert deliver(job, api).reason is None
    failed = {row["request_id"]: row["error_type"] for row in rows_of(job) if row["error_type"]}
    assert failed == {"r0001": "http_400", "r0002": "truncated"}


@pytest.mark.parametrize("form", FORMS)
def test_files_are_removed_once_they_are_read(server: ModelServer, tmp_path: Path, form: str) -> None:
    """The files with the requests and the results are removed. For messages, the batch and its results are removed."""
    job = left_job(tmp_path, stage=stage_for(form), **changes_for(server, form))
    removed = []
    with closing(open_batches(job.read().settings)) as api:
        remove = api.remove
        api.remove = lambda file: removed.append(file) or remove(file)  # type: ignore[method-assign, func-returns-value]
        started, notes = delivery(job, api)
        assert started.run().reason is None
        for file in removed:
            with pytest.raises(BatchError, match="HTTP 404"):
                list(api.lines(file))
    assert (len(set(removed)), len(removed)) == (6, 6)
    assert not any("stays at the endpoint" in note for note in notes)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_is_cancelled_and_that_of_another_key_does_not_show(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    job = left_job(tmp_path, stage=stage_for(form), **changes_for(server, form, delay=60.0))
    settings = job.read().settings
    with closing(open_batches(settings)) as api:
        assert deliver(job, api, poll=False).reason == "batched"
        first, *rest = (str(batch.id) for batch in job.ledger().batches)
        assert not api.look(first).ended
        assert api.cancel(first).ended
        for batch in rest:
            api.cancel(batch)
        assert api.look(first).ended
        assert deliver(job, api).reason is None
    assert is_whole(job)
    monkeypatch.setenv("A_KEY", "sk-two")
    with closing(open_batches(settings)) as other, pytest.raises(BatchError) as hidden:
        other.look(first)
    assert hidden.value.answer.error_type == "http_404"


def sent_of(api: BatchApi, requests: int = 2, since: float | None = None, **fields: Any) -> Sent:
    lines = b"".join(api.line(f"r{number}", "chat", chat_body()) for number in range(requests))
    now = time() if since is None else since
    return replace(Sent("a-name", "untold-a-name", "chat", {}, now, requests, lambda: io.BytesIO(lines)), **fields)


def chat_body(**fields: Any) -> bytes:
    payload = '{"stage": "summarise_context", "query": "q", "text": "t"}'
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": payload}], **fields}).encode()


class TestMessageBatches:
    @pytest.fixture
    def api(self, server: ModelServer) -> Iterator[BatchApi]:
        with closing(open_batches(replace(SETTINGS, **changes_for(server, "anthropic")))) as api:
            yield api

    def test_an_unknown_batch_is_found_when_it_has_ended(self, api: BatchApi, server: ModelServer) -> None:
        server.configure(batches={"form": "anthropic", "batches": [{"delay": 1.0}, {}]})
        own = api.create(sent_of(api))
        with pytest.raises(NotYetError, match=f"batch {own.id} may be it"):
            api.find_batch(sent_of(api))
        # Batches of other runs do not match: known batches, other sizes, other requests and older batches
        assert api.find_batch(sent_of(api, others=frozenset({own.id}))) is None
        assert api.find_batch(sent_of(api, requests=3)) is None
        api.cancel(own.id)
        found = api.find_batch(sent_of(api))
        assert found is not None
        assert found.id == own.id
        foreign = replace(sent_of(api), open=lambda: io.BytesIO(api.line("x0", "chat", chat_body())))
        assert api.find_batch(foreign) is None
        assert api.find_batch(sent_of(api, since=time() + 600)) is None

    def test_it_is_found_beyond_the_first_page(self, api: BatchApi) -> None:
        first = api.create(sent_of(api, requests=1))
        for _ in range(4):
            api.create(sent_of(api, requests=3))
        found = api.find_batch(sent_of(api, requests=1))
        assert found is not None
        assert found.id == first.id

    def test_a_chat_becomes_a_message(self) -> None:
        tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        turns = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ]
        sent = {"temperature": 1.5, "top_p": 1.0, "logprobs": True, "top_logprobs": 10, "stop": "end"}
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        chat = {"model": "m", "messages": turns, "tools": [tool], "tool_choice": "none", "response_format": schema}
        assert message_of_chat(chat | sent) == {
            "model": "m",
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": "1 + 1?"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
            ],
            "tools": [{"name": "add", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "none"},
            "temperature": 1.0,
            "max_tokens": 4096,
            "stop_sequences": ["end"],
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        }

    def test_a_message_becomes_a_completion(self) -> None:
        usage = {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 2}
        blocks = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes"}]
        read = chat_of_message({"model": "m", "content": blocks, "stop_reason": "refusal", "usage": usage})
        (choice,) = read["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Yes", "content_filter")
        assert read["usage"]["prompt_tokens"] == 27
        assert read["usage"]["prompt_tokens_details"] == {"cached_tokens": 20}

    @pytest.mark.parametrize(
        ("result", "status"),
        [
            ({"type": "errored", "error": {"type": "error", "error": {"type": "billing_error"}}}, 402),
            ({"type": "errored", "error": {"type": "error", "error": {"type": "overloaded_error"}}}, 503),
            ({"type": "errored", "error": {"type": "error", "error": {"type": "a_new_one"}}}, 500),
            ({"type": "canceled"}, None),
        ],
    )
    def test_results_are_read_as_statuses(self, result: Mapping[str, Any], status: int | None) -> None:
        line = json.loads(result_line(json.dumps({"custom_id": "r1", "result": result}).encode()))
        assert (line["response"] or {}).get("status_code") == status
        assert line["custom_id"] == "r1"

    @pytest.mark.parametrize("line", [b"", b"<html>", b"[]", b'{"custom_id": "r1", "result": {"type": "succeeded"}}'])
    def test_other_files_are_not_changed(self, line: bytes) -> None:
        assert result_line(line) == line

    def test_tools_are_used_over_batches(self, server: ModelServer, tmp_path: Path, api: BatchApi) -> None:
        variables = [{"question": QUESTION, "first": first, "second": FAR} for first in (FAR_TOO, NEAR)]
        server.configure(answer="world")
        asked = [(f"r{number}", one) for number, one in enumerate(variables)]
        job = left_job(tmp_path, asked, COMPARING, **changes_for(server, "anthropic"))
        sent = []
        line = api.line
        api.line = lambda *given: sent.append(line(*given)) or sent[-1]  # type: ignore[method-assign, func-returns-value]
        assert deliver(job, api).reason is None
        assert [row["error_type"] for row in rows_of(job)] == [None, None]
        assert any(b'"tool_result"' in one for one in sent)


class TestFiles:
    @pytest.fixture
    def api(self, tmp_path: Path) -> FileBatches:
        return FileBatches(CallSettings("http://host/v1", batch_folder=str(tmp_path / "files")))

    def run_batch(self, folder: Path, server: ModelServer, lines: int | None = None) -> None:
        """Complete the first lines of each file in the same way as `vllm run-batch`."""
        for path in folder.glob("untold-*.jsonl"):
            if path.name.endswith(".results.jsonl"):
                continue
            with open(str(path).replace(".jsonl", ".results.jsonl"), "w") as out:
                for line in map(json.loads, path.read_text().splitlines()[:lines]):
                    body = {"choices": [{"message": {"content": "A summary"}, "finish_reason": "stop"}]}
                    response = {"status_code": 200, "request_id": "vllm-1", "body": body}
                    out.write(json.dumps({"id": "vllm-1", "custom_id": line["custom_id"], "response": response}) + "\n")

    def test_files_wait_for_their_results_and_are_then_gone(
        self, api: FileBatches, server: ModelServer, tmp_path: Path
    ) -> None:
        job, folder = left_job(tmp_path), tmp_path / "files"
        started, notes = delivery(job, api)
        assert started.run(poll=False).reason == "batched"
        assert len(list(folder.iterdir())) == 3
        assert sum("run: vllm run-batch -i " in note and "--model" in note for note in notes) == 3
        self.run_batch(folder, server, lines=1)
        assert deliver(job, api, poll=False).reason == "batched"
        assert rows_of(job) == []
        self.run_batch(folder, server)
        assert deliver(job, api, poll=False).reason is None
        assert is_whole(job)
        assert list(folder.iterdir()) == []

    def test_a_cancelled_file_has_its_completions(self, api: FileBatches, server: ModelServer, tmp_path: Path) -> None:
        job, folder = left_job(tmp_path), tmp_path / "files"
        deliver(job, api, poll=False)
        self.run_batch(folder, server, lines=1)
        for batch in job.ledger().batches:
            assert api.cancel(str(batch.id)).status == "cancelled"
        assert deliver(job, api, poll=False).reason == "batched"
        assert len(rows_of(job)) == 3
        assert sum(batch.requests for batch in job.ledger().batches) == ROWS - 3

    def test_a_missing_folder_loses_no_request(self, api: FileBatches, tmp_path: Path) -> None:
        job = left_job(tmp_path)
        deliver(job, api, poll=False)
        shutil.rmtree(tmp_path / "files")
        assert deliver(job, api, poll=False).reason == "batched"
        assert len(job.ledger().batches) == 3


def test_a_known_host_determines_the_format() -> None:
    addresses = {
        "https://api.openai.com/v1": "openai",
        "https://mine.openai.azure.com/openai/v1": "azure",
        "https://api.groq.com/openai/v1": "groq",
        "https://api.anthropic.com/v1": "anthropic",
        "https://api.together.xyz/v1": "together",
        "https://not-api.mistral.ai.test/v1": "openai",
        "https://myapi.mistral.ai/v1": "openai",
        "http://127.0.0.1:8000/v1": "openai",
    }
    assert {address: format_at(address) for address in addresses} == addresses
    assert set(addresses.values()) <= set(FORMATS)
