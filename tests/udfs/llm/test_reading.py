"""Test the parser of the body of a completion: text, finish reason, usage, and errors with the status 200."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.llm.responses import read_completion
from untold.udfs.llm.usage import Usage


def completion(**changes: Any) -> bytes:
    """Return the body of a valid chat completion with some other fields."""
    body = {
        "model": "m",
        "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "text"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    return json.dumps(body | changes).encode()


def error_body(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


def test_what_was_cut_or_filtered_was_paid_for() -> None:
    choice = {"finish_reason": "length", "message": {"content": "half"}}
    answer = read_completion(completion(choices=[choice]), "chat", 100)
    assert (answer.error_type, answer.text, answer.usage) == ("truncated", "half", Usage(3, 0, 2))


def test_a_refusal_without_text_is_filtered() -> None:
    choice = {"finish_reason": "stop", "message": {"content": None, "refusal": "I cannot"}}
    assert read_completion(completion(choices=[choice]), "chat", 100).error_type == "filtered"


def test_usage_includes_the_cached_tokens() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}
    assert read_completion(completion(usage=usage), "chat", 400).usage == Usage(100, 64, 5)


ODD = [None, True, -1, 1.5, "3", [], {}, [1], {"a": 1}]


@pytest.mark.parametrize("odd", [value for value in ODD if value != {}], ids=repr)
@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens"])
def test_an_invalid_usage_is_estimated(field: str, odd: Any) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, field: odd}
    assert read_completion(completion(usage=usage), "chat", 40).usage == Usage(11, 0, 2, estimated=True)


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_invalid_cached_tokens_are_ignored(odd: Any) -> None:
    for details in (odd, {"cached_tokens": odd}):
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": details}
        assert read_completion(completion(usage=usage), "chat", 40).usage == Usage(3, 0, 2)


BAD_BODIES = {
    "nothing": b"",
    "html": b"<html></html>",
    "null": b"null",
    "a number": b"7",
    "a list": b"[]",
    "no choices": b"{}",
    "null choices": completion(choices=None),
    "empty choices": completion(choices=[]),
    "choices of null": completion(choices=[None]),
    "choices as an object": completion(choices={"0": {}}),
    "choices as text": completion(choices="text"),
    "no message": completion(choices=[{"finish_reason": "stop"}]),
    "message as text": completion(choices=[{"message": "text"}]),
    "null message": completion(choices=[{"message": None}]),
    "content as a number": completion(choices=[{"message": {"content": 7}}]),
    "unknown parts": completion(choices=[{"message": {"content": [{"type": "image", "url": "u"}]}}]),
    "finish reason as a number": completion(choices=[{"message": {"content": "t"}, "finish_reason": 7}]),
    "deep nesting": b'{"choices":' * 100_000 + b"1" + b"}" * 100_000,
    "deep lists": b"[" * 200_000 + b"]" * 200_000,
    "a number of 5000 digits": b'{"choices": ' + b"9" * 5000 + b"}",
    "no UTF-8": b'{"choices": "\xff\xfe"}',
    "an error of no known code": error_body(message="overloaded"),
    "an error as text": b'{"error": "overloaded"}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_body_without_a_completion_is_a_bad_body(api: str, body: bytes) -> None:
    answer = read_completion(body, api, 40)
    assert (answer.error_type, answer.text) == ("bad_body", None)
    # Only a damaged completion can have a cost
    assert answer.usage.estimated != ("base_url" in answer.about)


@pytest.mark.parametrize("odd", [*ODD, float("nan"), float("inf")], ids=repr)
@pytest.mark.parametrize("field", ["model", "usage", "id", "created", "object"])
def test_odd_fields_next_to_the_text_do_no_harm(field: str, odd: Any) -> None:
    answer = read_completion(completion(**{field: odd}), "chat", 40)
    assert (answer.text, answer.error_type) == ("text", None)
    assert isinstance(answer.model, str | None)


def test_lone_surrogates_become_valid_text() -> None:
    choice = {"finish_reason": "stop", "message": {"content": "a\ud800b \ude00"}}
    answer = read_completion(completion(choices=[choice], model="m\udfff"), "chat", 40)
    assert answer.text == "a?b ?"
    assert (answer.model or "").encode("utf-8") == b"m?"


def test_a_finish_reason_becomes_valid_text() -> None:
    choice = {"finish_reason": "\ud800", "message": {"content": "a"}}
    answer = read_completion(completion(choices=[choice]), "chat", 40)
    assert (answer.finish_reason or "").encode("utf-8")


def test_pairs_of_surrogates_are_one_character() -> None:
    choice = {"finish_reason": "stop", "message": {"content": "\U0001f600"}}
    assert read_completion(completion(choices=[choice]), "chat", 40).text == "\U0001f600"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "text", "usage", "refusal"]), inner, max_size=4
        )
    ),
    max_leaves=15,
)


@given(JSON, st.sampled_from(["chat", "completions"]))
def test_no_json_breaks_the_reading(body: Any, api: str) -> None:
    answer = read_completion(json.dumps(body).encode("utf-8", "surrogatepass"), api, 40)
    assert answer.error_type in ("bad_body", "bad_finish", "empty", "filtered", None)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reading(body: bytes) -> None:
    assert read_completion(body, "chat", 40).error_type == "bad_body"


def finished(reason: Any, text: str | None = "text") -> str | None:
    choice = {"finish_reason": reason, "message": {"content": text}}
    return read_completion(completion(choices=[choice]), "chat", 100).error_type


WHOLE = ["stop", "eos", "end_turn", "stop_sequence", "tool_calls", "function_call", "", None, "STOP", "End_Turn"]
CUT = ["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens", "Length"]
ODD_REASONS = [
    "error",
    "abort",
    "insufficient_system_resource",
    "SAFETY",
    "recitation",
    "cancelled",
    "stopped",
    "\ud800",
]


@pytest.mark.parametrize("reason", WHOLE)
def test_a_whole_completion_is_good(reason: str | None) -> None:
    assert finished(reason) is None


@pytest.mark.parametrize("reason", CUT)
def test_a_completion_cut_at_a_length_is_truncated(reason: str) -> None:
    assert finished(reason) == "truncated"


@pytest.mark.parametrize("reason", ["content_filter", "CONTENT_FILTER"])
def test_a_filtered_completion_is_filtered_with_and_without_text(reason: str) -> None:
    assert (finished(reason), finished(reason, None)) == ("filtered", "filtered")


@pytest.mark.parametrize("reason", ODD_REASONS)
def test_any_other_finish_reason_is_an_error(reason: str) -> None:
    assert (finished(reason), finished(reason, None)) == ("bad_finish", "bad_finish")


@given(st.text(max_size=20))
def test_no_unknown_end_is_a_good_answer(reason: str) -> None:
    known = {"stop", "eos", "end_turn", "stop_sequence", "tool_calls", "function_call", ""}
    assert finished(reason) is not None or reason.strip().lower() in known


def usage_of(prompt: int, completed: int, cached: int = 0, sent: int = 400) -> tuple[Usage, int]:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completed,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    body = completion(usage=usage)
    return read_completion(body, "chat", sent).usage, len(body)


@pytest.mark.parametrize("huge", [2**32 - 1, 2**62, 10**30])
def test_no_call_has_more_tokens_than_bytes(huge: int) -> None:
    usage, received = usage_of(huge, huge, huge)
    assert usage == Usage(400, 400, received, estimated=True)


def test_only_text_beyond_the_bytes_is_cut() -> None:
    usage, _ = usage_of(100, 10**6, 64)
    assert (usage.prompt_tokens, usage.cached_prompt_tokens, usage.estimated) == (100, 64, True)
    assert usage_of(400, 5, 400)[0] == Usage(400, 400, 5)


ERRORS_WITH_200 = [
    ({"code": 502, "message": "upstream"}, "http_502", False),
    ({"code": "503", "message": "upstream"}, "http_503", False),
    ({"code": 429, "message": "slow down"}, "http_429", False),
    ({"code": "rate_limit_exceeded"}, "http_429", False),
    ({"type": "insufficient_quota", "code": None}, "http_429", True),
    ({"code": 402, "message": "Insufficient credits"}, "http_402", True),
    ({"code": "invalid_api_key"}, "http_401", True),
    ({"code": 403, "message": "flagged"}, "http_403", True),
    ({"type": "overloaded_error"}, "http_503", False),
    ({"code": 400, "message": "bad"}, "http_400", False),
]


@pytest.mark.parametrize(("error", "error_type", "refused"), ERRORS_WITH_200)
def test_an_error_with_status_200_is_read_by_its_code(error: dict[str, Any], error_type: str, refused: bool) -> None:
    answer = read_completion(error_body(**error), "chat", 40)
    assert (answer.error_type, answer.refused, answer.text) == (error_type, refused, None)


def test_such_an_error_can_request_a_wait() -> None:
    answer = read_completion(error_body(code=429), "chat", 40, {"retry-after": "7"})
    assert (answer.error_type, answer.retry_after) == ("http_429", 7.0)


def test_a_completion_next_to_an_error_is_a_completion() -> None:
    assert read_completion(completion(error={"code": 502}), "chat", 100).error_type is None
