from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, IncompleteRead, RemoteDisconnected
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import pytest

from tests.fakes.answers import GARBAGE, expected_summary, find_answer
from tests.fakes.model_server import ModelServer
from untold.udfs.llm.templates import compile_prompt

_COVERAGE = {
    "query": "Who?",
    "contexts": ["Ada wrote it. It ran in 1843.", "Ada wrote it. Babbage built [no engine]"],
    "response": "I know: Ada wrote it.",
}


def _prompt(stage: str = "evaluate_coverage", **variables: Any) -> str:
    source = (Path(__file__).parent / "prompts" / f"{stage}.jinja").read_text(encoding="utf-8")
    return compile_prompt(source).messages(variables or _COVERAGE)[-1]["content"]


def _post(server: ModelServer, prompt: str | None = None, timeout: float = 5.0, **body: Any) -> tuple[int, bytes]:
    status, _, content = _exchange(server, prompt, timeout, **body)
    return status, content


def _exchange(
    server: ModelServer,
    prompt: str | None = None,
    timeout: float = 5.0,
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] | None = None,
    **body: Any,
) -> tuple[int, Mapping[str, str], bytes]:
    text = _prompt() if prompt is None else prompt
    asked = {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=timeout)) as connection:
        connection.request("POST", path, json.dumps({"model": "m", **asked, **body}), dict(headers or {}))
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


def _choice(content: bytes) -> dict[str, Any]:
    choice: dict[str, Any] = json.loads(content)["choices"][0]
    return choice


def _text(content: bytes) -> Any:
    return _choice(content)["message"]["content"]


def _rule(server: ModelServer, do: Any, **when: Any) -> None:
    server.configure(rules=[{"when": when, "do": do}])


def _statuses(server: ModelServer, count: int) -> list[int]:
    return [_post(server, _prompt(query=f"it's q{i}", contexts=["A."], response=""))[0] for i in range(count)]


def _raw(server: ModelServer, data: bytes, answers: int) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(data)
        received = b""
        while received.count(b'"total_tokens"') < answers:
            received += connection.recv(65536)
    return received


def test_coverage_is_answered_with_every_sentence_once_and_its_contexts(server: ModelServer) -> None:
    _, content = _post(server)
    assert _text(content).split("\n\n", 1)[1] == (
        "[Covered statements]\n- Ada wrote it. [1, 2]\n\n"
        "[Uncovered statements]\n- It ran in 1843. [1]\n- Babbage built [no engine] [2]\n"
    )


@pytest.mark.parametrize(
    ("text", "summary"), [("Yes, it's <so>. IRRELEVANT it is.\nEnd.", "Yes, it's <so>. End."), ("IRRELEVANT.", "None")]
)
def test_a_summary_omits_the_text_that_is_marked_irrelevant(server: ModelServer, text: str, summary: str) -> None:
    _, content = _post(server, _prompt("summarise_context", query="q", text=text))
    assert _text(content) == summary == (expected_summary(text) or "None")


def test_a_prompt_without_json_gets_the_fixed_answer(server: ModelServer) -> None:
    assert _text(_post(server, "Please rate this.")[1]) == find_answer("fixed")({})


@pytest.mark.parametrize("settings", [{"answer": "hnag"}, {"rules": [{"when": {}, "do": "hnag"}]}])
def test_unknown_names_are_refused_before_the_server_starts(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unknown (answer|deed) 'hnag'; known: "):
        ModelServer(**settings)


def test_plain_completions_are_served(server: ModelServer) -> None:
    status, _, content = _exchange(server, path="/v1/completions")
    assert (status, _choice(content)["text"].startswith("Sentence by sentence")) == (200, True)


def test_models_are_listed(server: ModelServer) -> None:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "fake-model"


def test_arrivals_are_logged(server: ModelServer) -> None:
    before = time()
    _, content = _post(server)
    (arrival,) = server.arrivals()
    usage = json.loads(content)["usage"]
    assert before <= arrival.at <= time()
    assert (arrival.path, arrival.model, arrival.stage) == ("/v1/chat/completions", "m", "evaluate_coverage")
    assert (arrival.status, arrival.prompt_tokens) == (200, usage["prompt_tokens"])
    assert arrival.completion_tokens == usage["completion_tokens"] == len(_text(content).encode()) // 4 + 1


def test_equal_requests_have_one_key(server: ModelServer) -> None:
    for prompt, temperature in (("a", 0), ("a", 1), ("b", 0)):
        _post(server, prompt, temperature=temperature)
    first, second, third = (arrival.key for arrival in server.arrivals())
    assert first == second != third


def test_arrivals_are_counted_by_stage(server: ModelServer) -> None:
    _post(server)
    _post(server, _prompt("summarise_context", query="q", text="t"))
    assert (server.count(), server.count("summarise_context"), server.count("other")) == (2, 1, 0)


def test_reset_forgets_arrivals(server: ModelServer) -> None:
    _post(server)
    server.reset()
    assert (server.arrivals(), server.count()) == ([], 0)


def test_the_peak_of_requests_in_flight_is_known(server: ModelServer) -> None:
    server.configure(latency=0.3)
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda number: _post(server, str(number)), range(5)))
    assert server.in_flight_peak() == 5


def test_pipelined_requests_are_answered_in_order(server: ModelServer) -> None:
    _rule(server, {"delay": 0.1}, contains="first")
    data = b""
    for text in ("first", "second"):
        body = json.dumps({"model": text, "prompt": text}).encode()
        data += b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert re.findall(rb'"model": "(\w+)"', _raw(server, data, 2)) == [b"first", b"second"]


def test_chunked_bodies_are_read(server: ModelServer) -> None:
    body = json.dumps({"model": "m", "prompt": "p"}).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert _raw(server, head + chunks, 1).startswith(b"HTTP/1.1 200 OK\r\n")


def test_an_invalid_body_is_a_400(server: ModelServer) -> None:
    assert _post(server, messages=7)[0] == 400


def test_a_wrong_key_is_a_401(server: ModelServer) -> None:
    server.configure(api_key="right")
    assert [_exchange(server, headers={"Authorization": f"Bearer {key}"})[0] for key in ("wrong", "right")] == [
        401,
        200,
    ]


def test_a_rule_answers_with_status_and_headers(server: ModelServer) -> None:
    _rule(server, {"status": 429, "headers": {"Retry-After": "2"}, "error": {"code": "slow_down"}})
    status, headers, content = _exchange(server)
    assert (status, headers["Retry-After"], json.loads(content)) == (429, "2", {"error": {"code": "slow_down"}})
    assert server.arrivals()[0].status == 429


def test_a_rule_delays(server: ModelServer) -> None:
    _rule(server, {"delay": 0.3})
    with ThreadPoolExecutor(5) as pool:
        statuses = list(pool.map(lambda number: _post(server, str(number))[0], range(5)))
    assert statuses == [200] * 5
    assert server.in_flight_peak() == 5


def test_a_rule_hangs(server: ModelServer) -> None:
    _rule(server, "hang")
    with pytest.raises(TimeoutError):
        _post(server, timeout=0.2)
    assert [arrival.status for arrival in server.arrivals()] == [0]


def test_a_rule_refuses(server: ModelServer) -> None:
    _rule(server, "refuse")
    with pytest.raises(RemoteDisconnected):
        _post(server)


def test_a_rule_returns_html(server: ModelServer) -> None:
    _rule(server, "html")
    status, headers, content = _exchange(server)
    assert (status, headers["Content-Type"][:9], content[:9]) == (200, "text/html", b"<!DOCTYPE")


def test_a_rule_cuts_the_json(server: ModelServer) -> None:
    _rule(server, "cut_json")
    status, content = _post(server)
    with pytest.raises(json.JSONDecodeError):
        json.loads(content)
    assert status == 200


def test_a_rule_cuts_the_body(server: ModelServer) -> None:
    _rule(server, "cut_body")
    with pytest.raises(IncompleteRead):
        _post(server)


@pytest.mark.parametrize(
    ("do", "content", "finish_reason"),
    [
        ("garbage", GARBAGE, "stop"),
        ("empty", "", "stop"),
        ("null", None, "stop"),
        ("filter", "", "content_filter"),
        ({"text": "x"}, "x", "stop"),
    ],
)
def test_a_rule_sets_the_content(server: ModelServer, do: Any, content: Any, finish_reason: str) -> None:
    _rule(server, do)
    choice = _choice(_post(server)[1])
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, finish_reason)


def test_a_rule_truncates(server: ModelServer) -> None:
    whole = _text(_post(server)[1])
    _rule(server, "length")
    choice = _choice(_post(server)[1])
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == whole[: len(whole) // 2]


def test_a_rule_prefixes_a_thought(server: ModelServer) -> None:
    _rule(server, {"think": True, "text": "x"})
    assert re.fullmatch(r"<think>.*</think>\s*x", _text(_post(server)[1]), re.DOTALL)


def test_a_rule_leaves_usage_out(server: ModelServer) -> None:
    _rule(server, "no_usage")
    assert "usage" not in json.loads(_post(server)[1])


@pytest.mark.parametrize(
    ("when", "statuses"),
    [
        ({"every": 2}, [200, 500, 200, 500]),
        ({"first": 1}, [500, 200, 200, 200]),
        ({"after": 3}, [200, 200, 200, 500]),
        ({"after": 1, "every": 2}, [200, 500, 200, 500]),
        ({"contains": "it's q2"}, [200, 200, 500, 200]),
        ({"stage": "summarise_context"}, [200, 200, 200, 200]),
        ({"between": [60, 90]}, [200, 200, 200, 200]),
        ({"between": [0, 60]}, [500, 500, 500, 500]),
    ],
)
def test_rules_hold_when_all_their_conditions_do(server: ModelServer, when: Any, statuses: list[int]) -> None:
    _rule(server, {"status": 500}, **when)
    assert _statuses(server, 4) == statuses


def test_attempt_below_counts_the_attempts_of_each_body(server: ModelServer) -> None:
    _rule(server, {"status": 500}, attempt_below=2)
    assert [_post(server, prompt)[0] for prompt in ("a", "b", "a", "b")] == [500, 500, 200, 200]


def test_a_share_takes_the_same_requests_each_time(server: ModelServer) -> None:
    _rule(server, {"status": 500}, share=0.2)
    first = _statuses(server, 200)
    assert 20 <= first.count(500) <= 60
    assert _statuses(server, 200) == first


def test_shares_of_different_rules_are_independent(server: ModelServer) -> None:
    server.configure(rules=[{"when": {"share": 0.5}, "do": {"status": status}} for status in (500, 503)])
    statuses = _statuses(server, 200)
    assert statuses.count(500) > 60
    assert 25 < statuses.count(503) < 75


def test_the_first_rule_that_matches_wins(server: ModelServer) -> None:
    server.configure(rules=[{"when": {"every": 2}, "do": {"status": 500}}, {"when": {}, "do": {"status": 503}}])
    assert _statuses(server, 2) == [503, 500]


def test_the_limit_of_requests_is_enforced(server: ModelServer) -> None:
    server.configure(limits={"requests_per_minute": 3, "retry_after": 7})
    assert _statuses(server, 4) == [200, 200, 200, 429]
    assert _exchange(server)[1]["Retry-After"] == "7"


def test_the_limit_of_tokens_is_enforced(server: ModelServer) -> None:
    _post(server)
    (arrival,) = server.arrivals()
    server.reset()
    server.configure(limits={"tokens_per_minute": 2 * (arrival.prompt_tokens + arrival.completion_tokens)})
    assert [_post(server)[0] for _ in range(3)] == [200, 200, 429]


def test_a_server_that_is_down_refuses_until_it_is_up(server: ModelServer) -> None:
    kept = HTTPConnection("127.0.0.1", server.port, timeout=5)
    kept.request("GET", "/v1/models")
    kept.getresponse().read()
    server.configure(down=True)
    assert kept.sock.recv(1) == b""
    kept.close()
    with pytest.raises(ConnectionRefusedError):
        _post(server)
    server.configure(down=False)
    assert _post(server)[0] == 200


def test_log_probabilities_are_per_token(server: ModelServer) -> None:
    _rule(server, {"text": "* a b [Relevance: 4]"})
    tokens = _choice(_post(server, logprobs=True, top_logprobs=5)[1])["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == "* a b [Relevance: 4]"
    digit = next(token for token in tokens if token["token"].strip() == "4")
    assert sorted(top["token"].strip() for top in digit["top_logprobs"]) == ["1", "2", "3", "4", "5"]
    assert digit["top_logprobs"][0]["token"] == digit["token"]
    assert digit["top_logprobs"][0]["logprob"] == digit["logprob"]


def test_plain_log_probabilities_are_parallel_lists(server: ModelServer) -> None:
    _rule(server, {"text": "a 4"})
    logprobs = _choice(_exchange(server, path="/v1/completions", logprobs=2)[2])["logprobs"]
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["a", " 4"], [0, 1])
    assert [len(tops) for tops in logprobs["top_logprobs"]] == [2, 2]


def test_a_killed_server_refuses_then_restarts_on_its_port_with_its_arrivals() -> None:
    with ModelServer() as server:
        _post(server)
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            _post(server)
        server.restart()
        _post(server)
        assert [arrival.status for arrival in server.arrivals()] == [200, 200]
        assert server.count("evaluate_coverage") == 2


def test_the_server_ends_with_the_process_that_started_it() -> None:
    code = (
        "from tests.fakes.model_server import ModelServer as M; s = M(); s.start(); print(s.pid, flush=True); input()"
    )
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    end = monotonic() + 5
    while _runs(pid) and monotonic() < end:
        sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
