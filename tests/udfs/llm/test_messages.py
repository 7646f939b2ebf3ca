"""Test live calls to the Messages API of Anthropic over real HTTP, with keys that a command prints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from untold.udfs.llm import client as client_module
from untold.udfs.llm.calls import EXPIRED_KEY, MESSAGES, Answer
from untold.udfs.llm.client import ApiKey, Endpoint
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.messages import chat_body, message_body
from untold.udfs.llm.script import request_body
from untold.udfs.llm.templates import compile_prompt

STAGE = Stage(
    name="summarise_context",
    variables=("query",),
    model="fake-model",
    template="=== system\nBe brief.\n=== user\n{{ query }}",
    temperature=0,
    top_p=1,
    max_tokens=50,
)
BODY = request_body(STAGE, compile_prompt(STAGE.template), {"query": "What is wet?"})


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(answer="fixed") as started:
        yield started


def call(server: ModelServer, key: str | ApiKey | None, times: int = 1, **options: Any) -> list[Answer]:
    """Send the request several times in a row with one client."""

    async def send() -> list[Answer]:
        endpoint = Endpoint(server.base_url, key, connections=4, timeout=5.0, **options)
        try:
            return [await endpoint.call("chat", BODY) for _ in range(times)]
        finally:
            await endpoint.close()

    return asyncio.run(send())


class TestMessages:
    def test_a_chat_is_sent_as_a_message_and_read_as_a_chat(self, server: ModelServer) -> None:
        (chat,) = call(server, "sk-one")
        first, later = call(server, "sk-one", 2, protocol=MESSAGES)
        for answer in (first, later):
            assert (answer.text, answer.error_type) == (chat.text, None)
            assert replace(answer.usage, estimated=False) == replace(chat.usage, estimated=False)

    def test_the_key_has_its_own_header(self, server: ModelServer) -> None:
        server.configure(api_key="sk-one")
        assert call(server, "sk-one", protocol=MESSAGES)[0].error_type is None
        (answer,) = call(server, "sk-two", protocol=MESSAGES)
        assert (answer.error_type, answer.refused) == ("http_401", True)

    def test_a_refused_request_names_its_reason(self, server: ModelServer) -> None:
        (answer,) = call(server, "sk-one", protocol=MESSAGES, headers={"anthropic-version": ""})
        assert answer.error_type == "http_400"
        server.configure(rules=[{"do": {"status": 400, "error": {"type": "invalid_request_error", "message": "x"}}}])
        (answer,) = call(server, "sk-one", protocol=MESSAGES)
        assert (answer.error_type, answer.error) == ("http_400", "HTTP 400 (invalid_request_error)")

    def test_the_body_has_a_system_prompt_and_a_limit(self) -> None:
        message = json.loads(message_body(BODY))
        assert message == {
            "model": "fake-model",
            "system": "Be brief.",
            "messages": [{"role": "user", "content": "What is wet?"}],
            "temperature": 0,
            "max_tokens": 50,
        }

    @pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"{}", b'{"content": 1}', b'{"content": ["x"]}'])
    def test_another_body_stays_unchanged(self, content: bytes) -> None:
        assert chat_body(content) == content


class TestKeyCommand:
    def test_the_output_of_a_command_is_the_key(self, server: ModelServer) -> None:
        server.configure(api_key="sk-printed")
        (answer,) = call(server, ApiKey(None, "echo sk-printed"))
        assert answer.error_type is None

    def test_the_command_runs_again_after_its_time(self, server: ModelServer, tmp_path: Path) -> None:
        runs = tmp_path / "runs"
        call(server, ApiKey(None, f"echo x >> {runs}; echo sk", seconds=1000), 3)
        assert runs.read_text() == "x\n"
        call(server, ApiKey(None, f"echo x >> {runs}; echo sk", seconds=0), 3)
        assert runs.read_text() == "x\n" * 4

    def test_an_expired_key_is_replaced_and_its_call_is_not_a_refusal(
        self, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_module, "LEAST_KEY_AGE", 0.0)
        server.configure(api_key="sk-2")
        count = tmp_path / "count"
        command = f"echo x >> {count}; echo sk-$(wc -l < {count})"
        first, second = call(server, ApiKey(None, command), 2)
        assert (first.error_type, first.refused) == (EXPIRED_KEY, False)
        assert second.error_type is None

    def test_a_new_key_that_is_refused_ends_the_run(self, server: ModelServer) -> None:
        server.configure(api_key="sk-another")
        (answer,) = call(server, ApiKey(None, "echo sk-wrong"))
        assert (answer.error_type, answer.refused) == ("http_401", True)

    @pytest.mark.parametrize(
        ("command", "said"),
        [
            ("echo sk-secret >&2; exit 3", "llm.api_key_command ended with exit code 3"),
            ("true", "llm.api_key_command printed no key"),
            ("printf 'sk-secret\\nsecond line'", "llm.api_key_command printed no key"),
        ],
    )
    def test_a_failed_command_is_a_passing_error_without_its_output(
        self, server: ModelServer, command: str, said: str
    ) -> None:
        (answer,) = call(server, ApiKey(None, command))
        assert (answer.error_type, answer.error) == ("connection", said)
        assert server.count() == 0

    def test_a_command_without_end_is_killed(self, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_module, "KEY_SECONDS", 0.2)
        (answer,) = call(server, ApiKey(None, "sleep 60"))
        assert answer.error == "llm.api_key_command printed no key within 0.2 s"
