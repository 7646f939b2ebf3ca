from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.udfs.llm.test_reading import BAD_BODIES, completion, error_body
from untold.udfs.llm.calls import Answer
from untold.udfs.llm.client import Endpoint
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.script import request_body
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.llm.usage import estimate_tokens

KEY = "sk-proj-0123456789abcdefghijklmnop"
PROMPT_TEXT = "confidential-prompt-text"
ANSWER_TEXT = "confidential-answer-text"
STAGE = Stage(name="summarise_context", variables=("query",), model="fake-model", template="{{ query }}", temperature=0)
PROMPT = compile_prompt(STAGE.template)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(answer="fixed") as started:
        yield started


def call(base_url: str, *, key: str | None = None, timeout: float = 5.0, stage: Stage = STAGE) -> Answer:
    """Send one call with a new client, and close the client."""

    async def ask() -> Answer:
        endpoint = Endpoint(base_url, key, connections=4, timeout=timeout)
        prompt = compile_prompt(stage.template, api=stage.api)
        try:
            return await endpoint.call(stage.api, request_body(stage, prompt, {"query": PROMPT_TEXT}))
        finally:
            await endpoint.close()

    return asyncio.run(ask())


def call_raw(
    response: bytes,
    *,
    key: str | None = None,
    timeout: float = 5.0,
    times: int = 1,
    tls: ssl.SSLContext | None = None,
    **sent: Mapping[str, Any],
) -> tuple[Answer, bytes]:
    """Send calls to a server that sends these bytes and closes the connection. Return the last answer and the request.

    If there are several calls, the prompts differ in length. With `tls`, the server uses HTTPS.
    """
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.readuntil(b"\r\n\r\n"))
        received.extend(await reader.read(65536))
        writer.write(response)
        writer.close()

    async def ask() -> Answer:
        listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        port, scheme = listener.sockets[0].getsockname()[1], "https" if tls else "http"
        endpoint = Endpoint(f"{scheme}://127.0.0.1:{port}/v1", key, connections=1, timeout=timeout, **sent)
        try:
            for number in range(1, times + 1):
                answer = await endpoint.call("chat", request_body(STAGE, PROMPT, {"query": PROMPT_TEXT * number}))
            return answer
        finally:
            await endpoint.close()
            listener.close()

    return asyncio.run(ask()), bytes(received)


def test_headers_and_parameters_are_sent_by_value_or_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_GATEWAY", "of the environment")
    headers = {"X-Id": 7, "api-key": {"env": "A_GATEWAY"}, "X-Unset": {"env": "NOBODY_SET_THIS"}}
    _, received = call_raw(http(200, completion()), key=KEY, headers=headers, query={"api-version": "2024-06-01"})
    head = received.split(b"\r\n\r\n")[0].decode().lower()
    assert head.startswith("post /v1/chat/completions?api-version=2024-06-01 ")
    assert "\r\nx-id: 7" in head
    assert "\r\napi-key: of the environment" in head
    assert f"\r\nauthorization: bearer {KEY.lower()}" in head
    assert "x-unset" not in head


def test_a_header_of_the_user_replaces_the_header_of_the_key() -> None:
    _, received = call_raw(http(200, completion()), headers={"authorization": "Basic abc"})
    lines = [line for line in received.decode().lower().split("\r\n") if line.startswith("authorization")]
    assert lines == ["authorization: basic abc"]


def test_later_calls_repeat_the_first_but_for_the_body() -> None:
    sent = {"headers": {"X-Id": 7}, "query": {"api-version": "1"}}
    answer, received = call_raw(http(200, completion(), {"Set-Cookie": "its=own"}), key=KEY, times=3, **sent)
    heads, bodies = zip(*(one.split(b"\r\n\r\n") for one in received.split(b"POST ")[1:]), strict=True)
    lines = [dict.fromkeys(head.lower().split(b"\r\n")) for head in heads]
    lengths = [b"content-length: %d" % len(body) for body in bodies]
    assert answer.text == "text"
    assert len({*lengths}) == 3
    assert [list(one) for one in lines] == [
        [length if line == lengths[0] else line for line in lines[0]] for length in lengths
    ]


def http(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    length = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"HTTP/1.1 {status} Status\r\n{length}{lines}\r\n".encode() + body


def test_a_completion_is_read(server: ModelServer) -> None:
    server.configure(rules=[{"do": {"text": "said"}}])
    answer = call(server.base_url)
    assert (answer.text, answer.finish_reason, answer.model) == ("said", "stop", "fake-model")
    assert (answer.error_type, answer.error, answer.refused) == (None, None, False)
    assert answer.usage.prompt_tokens > 0
    assert not answer.usage.estimated


def test_a_plain_completion_is_read(server: ModelServer) -> None:
    server.configure(rules=[{"do": {"text": "said"}}])
    stage = Stage(name="s", variables=("query",), model="m", template="{{ query }}", api="completions")
    assert call(server.base_url, stage=stage).text == "said"
    assert server.arrivals()[-1].path == "/v1/completions"


MISBEHAVIOUR = {
    "hang": ("hang", "timeout"),
    "refuse": ("refuse", "connection"),
    "html": ("html", "bad_body"),
    "cut_json": ("cut_json", "bad_body"),
    "cut_body": ("cut_body", "bad_body"),
    "length": ("length", "truncated"),
    "filter": ("filter", "filtered"),
    "empty": ("empty", "empty"),
    "null": ("null", "empty"),
    "blank": ({"text": " \n\t"}, "empty"),
    "400": ({"status": 400}, "http_400"),
    "401": ({"status": 401}, "http_401"),
    "408": ({"status": 408}, "http_408"),
    "422": ({"status": 422}, "http_422"),
    "429": ({"status": 429}, "http_429"),
    "500": ({"status": 500}, "http_500"),
    "503 with html": ({"status": 503, "body": "<html>"}, "http_503"),
    "529": ({"status": 529}, "http_529"),
}


@pytest.mark.parametrize(("deed", "error_type"), MISBEHAVIOUR.values(), ids=MISBEHAVIOUR.keys())
def test_each_misbehaviour_has_its_error_type(server: ModelServer, deed: Any, error_type: str) -> None:
    server.configure(rules=[{"do": deed}])
    answer = call(server.base_url, timeout=0.5 if deed == "hang" else 5.0)
    assert answer.error_type == error_type
    assert answer.error


@pytest.mark.parametrize("deed", ["refuse", {"status": 500}, {"status": 429}, "html", {"status": 408}])
def test_a_call_is_sent_once(server: ModelServer, deed: Any) -> None:
    server.configure(rules=[{"do": deed}])
    server.reset()
    call(server.base_url)
    assert server.count() == 1


def test_a_late_answer_is_a_timeout(server: ModelServer) -> None:
    server.configure(rules=[{"do": {"delay": 2.0}}])
    assert call(server.base_url, timeout=0.3).error_type == "timeout"


def test_a_body_that_never_ends_is_a_timeout() -> None:
    async def ask() -> Answer:
        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            for _ in range(20):
                writer.write(b" ")
                await asyncio.sleep(0.1)
            writer.close()

        listener = await asyncio.start_server(drip, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", None, connections=1, timeout=0.5)
        answer = await endpoint.call("chat", b"{}")
        await endpoint.close()
        listener.close()
        return answer

    assert asyncio.run(ask()).error_type == "timeout"


def test_a_closed_port_is_unconnected(server: ModelServer) -> None:
    with ModelServer() as other:
        address = other.base_url
    answer = call(address)
    assert (answer.error_type, answer.unconnected) == ("connection", True)


def test_an_unknown_host_is_unconnected() -> None:
    answer = call("http://no-such-host.invalid/v1")
    assert (answer.error_type, answer.unconnected) == ("connection", True)


def test_a_broken_connection_was_connected(server: ModelServer) -> None:
    server.configure(rules=[{"do": "refuse"}])
    assert not call(server.base_url).unconnected


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_what_no_call_can_get_past_is_refused(server: ModelServer, status: int) -> None:
    server.configure(rules=[{"do": {"status": status}}])
    assert call(server.base_url).refused


@pytest.mark.parametrize("status", [400, 409, 422, 429, 500, 503])
def test_what_another_call_may_get_past_is_not_refused(server: ModelServer, status: int) -> None:
    server.configure(rules=[{"do": {"status": status}}])
    assert not call(server.base_url).refused


UNKNOWN_MODEL = [
    {"message": "The model `nope` does not exist", "code": "model_not_found"},
    {"message": "anything", "code": "model_not_found"},
    {"message": "The model `nope` does not exist or you do not have access to it."},
    {"message": "Unknown model: no such model nope"},
    {"message": "model 'nope' not found, try pulling it first"},
]


@pytest.mark.parametrize("error", UNKNOWN_MODEL)
def test_a_model_that_is_not_there_is_refused(server: ModelServer, error: Mapping[str, str]) -> None:
    server.configure(rules=[{"do": {"status": 400, "error": error}}])
    answer = call(server.base_url)
    assert (answer.error_type, answer.refused) == ("http_400", True)


@pytest.mark.parametrize("message", ["context length of the model exceeded", "the temperature is not supported", ""])
def test_other_bad_requests_are_not_a_missing_model(server: ModelServer, message: str) -> None:
    server.configure(rules=[{"do": {"status": 400, "error": {"message": message, "code": "invalid_request"}}}])
    assert not call(server.base_url).refused


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(server: ModelServer, status: int) -> None:
    server.configure(rules=[{"do": {"status": status, "headers": {"Location": f"{server.base_url}/elsewhere"}}}])
    server.reset()
    answer = call(server.base_url, key=KEY)
    assert (answer.error_type, answer.refused) == (f"http_{status}", True)
    assert [arrival.path for arrival in server.arrivals()] == ["/v1/chat/completions"]


def date_in(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry-After": "7"}, 7, 7),
        ({"Retry-After": "1.5"}, 1.5, 1.5),
        ({"Retry-After-Ms": "250"}, 0.25, 0.25),
        ({"Retry-After-Ms": "250", "Retry-After": "7"}, 0.25, 0.25),
        ({"Retry-After": "-3"}, 0, 0),
        ({"Retry-After": "date"}, 27, 30),
    ],
)
def test_retry_after_is_read(
    server: ModelServer, status: int, headers: dict[str, str], low: float, high: float
) -> None:
    sent = {name: date_in(30) if value == "date" else value for name, value in headers.items()}
    server.configure(rules=[{"do": {"status": status, "headers": sent}}])
    wait = call(server.base_url).retry_after
    assert wait is not None
    assert low <= wait <= high


def test_a_past_date_requests_no_wait(server: ModelServer) -> None:
    server.configure(rules=[{"do": {"status": 429, "headers": {"Retry-After": date_in(-60)}}}])
    assert call(server.base_url).retry_after == 0


@pytest.mark.parametrize("value", ["soon", "", "Wed, 99 Foo 2026 00:00:00 GMT", "1,5"])
def test_an_unreadable_wait_is_ignored(server: ModelServer, value: str) -> None:
    server.configure(rules=[{"do": {"status": 429, "headers": {"Retry-After": value}}}])
    assert call(server.base_url).retry_after is None


@pytest.mark.parametrize("value", ["inf", "1e400"])
def test_an_endless_wait_is_ignored(value: str) -> None:
    assert call_raw(http(429, b"{}", {"Retry-After": value}))[0].retry_after is None


def test_without_a_key_no_authorization_is_sent() -> None:
    answer, received = call_raw(http(200, completion()))
    assert answer.text == "text"
    assert b"authorization" not in received.lower()


def test_a_key_is_sent_as_a_bearer_token() -> None:
    _, received = call_raw(http(200, completion()), key=KEY)
    assert f"bearer {KEY}".encode().lower() in received.lower()


def test_a_key_of_the_package_s_own_variable_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    _, received = call_raw(http(200, completion()))
    assert KEY.encode() not in received


OTHERS = {"OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj-2", "OPENAI_ADMIN_KEY": "admin-3"}
OTHERS |= {"OPENAI_CUSTOM_HEADERS": "X-Own: header-4\nAuthorization: header-5"}


@pytest.mark.parametrize("key", [None, "key-of-another-endpoint"])
def test_the_account_of_the_package_is_never_sent_to_another_endpoint(
    key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**OTHERS, "OPENAI_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    answer, received = call_raw(http(200, completion()), key=key)
    assert answer.text == "text"
    assert [
        value for value in ("org-1", "proj-2", "admin-3", "header-4", "header-5") if value.encode() in received
    ] == []
    assert b"X-Own" not in received


def test_the_account_of_the_package_is_sent_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**OTHERS, "OPENAI_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    _, received = call_raw(http(200, completion()), key=KEY)
    assert [value for value in ("org-1", "proj-2", "header-4") if value.encode() not in received] == []


def test_a_certificate_is_trusted_by_its_file_on_loopback_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    host = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert), *host]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    unknown, _ = call_raw(http(200, completion()), tls=context)
    assert (unknown.refused, unknown.about) == (True, ("certificate",))
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    assert call_raw(http(200, completion()), tls=context)[0].error_type is None


def test_proxies_are_ignored_on_the_loopback_interface(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.configure(rules=[{"do": {"text": "said"}}])
    assert call(server.base_url).text == "said"
    assert call(server.base_url.replace("127.0.0.1", "localhost")).text == "said"


LEAKS = {
    "in the message": {"message": f"bad key {KEY}: {PROMPT_TEXT}, {ANSWER_TEXT}"},
    "in param": {"message": "m", "param": f"{KEY}"},
    "in a long code": {"message": "m", "code": f"{PROMPT_TEXT} {KEY}"},
    "no object": f"{KEY} {PROMPT_TEXT}",
}


@pytest.mark.parametrize("error", LEAKS.values(), ids=LEAKS.keys())
@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_errors_never_contain_the_sent_text(status: int, error: Any) -> None:
    answer, _ = call_raw(http(status, json.dumps({"error": error}).encode()), key=KEY)
    shown = answer.error or ""
    assert shown.startswith(f"HTTP {status}")
    assert all(secret not in shown for secret in (KEY, PROMPT_TEXT, ANSWER_TEXT))


@pytest.mark.parametrize("field", ["code", "type"])
def test_a_code_that_is_the_key_is_not_shown(field: str) -> None:
    answer, _ = call_raw(http(401, error_body(message="Incorrect API key", **{field: KEY})), key=KEY)
    assert KEY not in (answer.error or "")


def test_a_code_is_shown() -> None:
    answer, _ = call_raw(http(400, error_body(message="too long", code="context_length_exceeded")))
    assert answer.error == "HTTP 400 (context_length_exceeded)"


@pytest.mark.parametrize("deed", ["length", "filter", "empty", "html", "cut_json"])
def test_errors_of_completions_do_not_repeat_them(server: ModelServer, deed: str) -> None:
    server.configure(rules=[{"do": {deed: True, "text": ANSWER_TEXT}}])
    error = call(server.base_url).error or ""
    assert ANSWER_TEXT[:8] not in error
    assert PROMPT_TEXT not in error


def test_missing_usage_is_estimated(server: ModelServer) -> None:
    server.configure(rules=[{"do": {"no_usage": True, "text": "x" * 400}}])
    usage = call(server.base_url).usage
    assert usage.estimated
    assert usage.completion_tokens == estimate_tokens(400)
    assert usage.prompt_tokens > 0


@pytest.mark.parametrize("status", [400, 429, 500])
@pytest.mark.parametrize("body", [*BAD_BODIES.values(), error_body(code=7, message=[]), b'{"error": null}'])
def test_no_error_body_breaks_the_reading(status: int, body: bytes) -> None:
    answer, _ = call_raw(http(status, body))
    assert (answer.error_type, answer.refused) == (f"http_{status}", False)


def test_only_the_set_parameters_are_sent() -> None:
    body = json.loads(request_body(STAGE, PROMPT, {"query": "q"}))
    assert body == {"model": "fake-model", "messages": [{"role": "user", "content": "q"}], "temperature": 0}


def test_fields_of_extra_body_are_sent_with_the_parameters() -> None:
    stage = Stage("s", ("query",), "m", "{{ query }}", top_p=0.5, extra_body={"top_k": 1, "top_p": 0.9, "seed": None})
    body = json.loads(request_body(stage, PROMPT, {"query": "q"}))
    assert (body["top_p"], body["top_k"], "seed" in body) == (0.9, 1, False)


def test_rated_stages_request_log_probabilities() -> None:
    chat = json.loads(request_body(Stage("s", (), "m", "x", rated=True), compile_prompt("x"), {}))
    plain_stage = Stage("s", (), "m", "x", api="completions", rated=True)
    plain = json.loads(request_body(plain_stage, compile_prompt("x", api="completions"), {}))
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 10)
    assert (plain["logprobs"], plain["prompt"]) == (10, "x")


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_log_probabilities_can_be_refused(api: str) -> None:
    stage = Stage("s", (), "m", "x", api=api, rated=True, extra_body={"logprobs": False})
    body = json.loads(request_body(stage, compile_prompt("x", api=api), {}))
    assert not {"logprobs", "top_logprobs"} & body.keys()


def test_text_is_sent_as_utf8() -> None:
    assert "日本 😀".encode() in request_body(STAGE, PROMPT, {"query": "日本 😀"})
