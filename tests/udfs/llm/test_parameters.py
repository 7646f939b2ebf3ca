"""Test the parameters that endpoints reject: the parser of the errors, the changed stage and the later requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS, STAGE, ask, requests, rows_in
from tests.udfs.llm.test_asking_refusals import ask_until, is_refused
from untold.udfs.llm.calls import Answer, Progress
from untold.udfs.llm.keys import Parameters
from untold.udfs.llm.responses import read_completion, read_status
from untold.udfs.llm.retrying import refused_parameters
from untold.udfs.llm.script import request_body
from untold.udfs.llm.templates import compile_prompt

CHAT = replace(STAGE, top_p=1.0, max_tokens=4096, template="=== system\nJudge.\n=== user\n{{ query }} {{ text }}")
RATED = replace(CHAT, name="rate_relevance", rated=True)


def error(status: int = 400, /, **fields: Any) -> Answer:
    return read_status(status, json.dumps({"error": fields}).encode(), {})


def plain(status: int, body: Any) -> Answer:
    return read_status(status, json.dumps(body).encode(), {})


# The error texts of OpenAI, Anthropic, Bedrock, LiteLLM, Gemini, Mistral, vLLM, DeepSeek and Groq, by parameter
REFUSALS = {
    "openai max_tokens": (
        error(
            message="Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            param="max_tokens",
            code="unsupported_parameter",
        ),
        Parameters(limit_name="max_completion_tokens"),
    ),
    "openai temperature": (
        error(
            message="Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value "
            "is supported.",
            param="temperature",
            code="unsupported_value",
        ),
        Parameters(dropped=("temperature",)),
    ),
    "openai system role": (
        error(
            message="Unsupported value: 'messages[0].role' does not support 'system' with this model.",
            param="messages[0].role",
            code="unsupported_value",
        ),
        Parameters(system_role="user"),
    ),
    "openai developer role": (
        error(message="The role 'system' is not supported. Use 'developer' instead.", param="messages[0].role"),
        Parameters(system_role="developer"),
    ),
    "openai limit": (
        error(message="max_tokens is too large: 4096. This model supports at most 2048 completion tokens."),
        Parameters(max_tokens=2048),
    ),
    "openai window": (
        error(
            message="This model's maximum context length is 4096 tokens. However, you requested 4500 tokens (404 in "
            "the messages, 4096 in the completion). Please reduce the length of the messages or completion.",
            code="context_length_exceeded",
        ),
        Parameters(window=4096),
    ),
    "anthropic either": (
        error(message="`temperature` and `top_p` cannot both be specified for this model. Please use only one."),
        Parameters(dropped=("top_p",)),
    ),
    "anthropic deprecated": (
        error(message="`temperature` is deprecated for this model.", type="invalid_request_error"),
        Parameters(dropped=("temperature",)),
    ),
    "anthropic limit": (
        error(message="max_tokens: 4096 > 2048, which is the maximum allowed number of output tokens"),
        Parameters(max_tokens=2048),
    ),
    "bedrock key": (
        plain(400, {"message": "Malformed input request: #: extraneous key [top_p] is not permitted"}),
        Parameters(dropped=("top_p",)),
    ),
    "bedrock system": (
        plain(400, {"message": "This model doesn't support system messages. Try again without a system message."}),
        Parameters(system_role="user"),
    ),
    "litellm": (
        error(
            message="litellm.UnsupportedParamsError: openai does not support parameters: ['temperature'], for "
            "model=o1-mini. To drop these, set `litellm.drop_params=True`",
            param="None",
        ),
        Parameters(dropped=("temperature",)),
    ),
    "gemini system": (
        plain(400, [{"error": {"code": 400, "message": "Developer instruction is not enabled for models/gemma-3"}}]),
        Parameters(system_role="user"),
    ),
    "gemini limit": (
        plain(
            400,
            [
                {
                    "error": {
                        "message": "it has a maxOutputTokens value of 4096 but the supported range is from 1 to 2049"
                    }
                }
            ],
        ),
        Parameters(max_tokens=2049),
    ),
    "mistral": (
        plain(422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "top_p"], "msg": "Extra inputs"}]}),
        Parameters(dropped=("top_p",)),
    ),
    "vllm system": (
        plain(400, {"object": "error", "message": "System role not supported"}),
        Parameters(system_role="user"),
    ),
    "vllm window": (
        plain(
            400,
            {
                "message": "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context "
                "length is 4096 tokens and your request has 1203 input tokens (4096 > 4096 - 1203).",
                "param": "max_tokens",
            },
        ),
        Parameters(window=4096),
    ),
    "deepseek limit": (
        error(message="Invalid max_tokens value, the valid range of max_tokens is [1, 2048]"),
        Parameters(max_tokens=2048),
    ),
    "plain text": (read_status(400, b"parameter top_p is not supported", {}), Parameters(dropped=("top_p",))),
}


@pytest.mark.parametrize(("answer", "expected"), REFUSALS.values(), ids=REFUSALS.keys())
def test_the_refused_parameter_is_found(answer: Answer, expected: Parameters) -> None:
    assert refused_parameters(CHAT, answer) == expected
    # If the parameter is not sent, the same error has no further effect
    assert refused_parameters(expected.applied(CHAT), answer) != expected


@pytest.mark.parametrize("message", ["Logprobs is not enabled for this model", "property 'logprobs' is unsupported"])
def test_log_probabilities_are_dropped_from_stages_that_send_them(message: str) -> None:
    assert refused_parameters(RATED, error(message=message)) == Parameters(dropped=("logprobs",))
    assert refused_parameters(CHAT, error(message=message)) is None


NOT_REFUSALS = {
    "a prompt that is too long": error(message="prompt is too long: 210000 tokens > 200000 maximum"),
    "a filtered prompt": error(message="filtered, see temperature, not supported", code="content_filter"),
    "a rate limit": error(429, message="temperature is not supported"),
    "a broken server": error(503, message="temperature is not supported"),
    "a mention": error(message="your prompt says that the temperature is 7 degrees"),
    "a parameter that is not sent": error(message="Unknown parameter: 'min_p'.", param="min_p"),
}


@pytest.mark.parametrize("answer", NOT_REFUSALS.values(), ids=NOT_REFUSALS.keys())
def test_other_errors_change_no_parameter(answer: Answer) -> None:
    assert refused_parameters(CHAT, answer) is None


RUN_ERRORS = {
    "the API key": plain(
        400, [{"error": {"message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}}]
    ),
    "the budget of the key": error(message="ExceededBudget: Budget has been exceeded! Max budget: 10.0"),
    "the credit of the account": error(message="Your credit balance is too low to access the API."),
}


@pytest.mark.parametrize(("words", "answer"), RUN_ERRORS.items(), ids=RUN_ERRORS.keys())
def test_key_credit_and_budget_refuse_the_run_with_any_status(words: str, answer: Answer) -> None:
    assert answer.refused
    assert answer.error == f"HTTP 400: {words}"


def body_of(stage: Any, **options: Any) -> dict[str, Any]:
    prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
    body: dict[str, Any] = json.loads(request_body(stage, prompt, {"query": "q", "text": "t"}, **options))
    return body


def test_dropped_parameters_are_not_sent_and_are_part_of_the_key() -> None:
    stage = Parameters(dropped=("logprobs", "temperature"), limit_name="max_completion_tokens").applied(RATED)
    body = body_of(stage)
    assert set(body) == {"model", "messages", "top_p", "max_completion_tokens"}
    assert stage.digest != RATED.digest
    assert Parameters().applied(RATED).digest == RATED.digest


@pytest.mark.parametrize("role", ["user", "developer"])
def test_the_system_turn_is_sent_in_another_role(role: str) -> None:
    messages = body_of(replace(CHAT, system_role=role))["messages"]
    merged = [{"role": "user", "content": "Judge.\n\nq t"}]
    assert messages == (
        merged if role == "user" else [{"role": role, "content": "Judge."}, {"role": "user", "content": "q t"}]
    )


def test_the_limit_leaves_room_for_reasoning_which_is_not_in_the_key() -> None:
    stage = replace(CHAT, reasoning_tokens=512)
    assert (body_of(stage)["max_tokens"], stage.digest) == (4608, CHAT.digest)
    assert body_of(stage, limit=9000)["max_tokens"] == 9000


def test_the_limit_with_room_for_reasoning_stays_within_the_models_own_limit() -> None:
    stage = replace(CHAT, reasoning_tokens=512)
    message = "max_tokens is too large: 4608. This model supports at most 4096 completion tokens."
    refused = refused_parameters(stage, error(message=message))
    assert refused == Parameters(max_tokens=4096)
    assert body_of(refused.applied(stage))["max_tokens"] == 4096
    assert refused.changes(stage)


def test_the_limit_is_the_rest_of_the_context_window() -> None:
    prompt_bytes = len(json.dumps(body_of(CHAT), separators=(",", ":")))
    assert body_of(replace(CHAT, window=4096))["max_tokens"] == 4096 - prompt_bytes // 3
    assert body_of(replace(CHAT, window=100_000))["max_tokens"] == 4096


def refusal(name: str) -> dict[str, Any]:
    said = {"message": f"Unsupported parameter: '{name}'", "param": name, "code": "unsupported_parameter"}
    return {"when": {"sends": name}, "do": {"status": 400, "error": said}}


def ask_adapting(server: ModelServer, folder: Path, done: Callable[[Progress], bool], **options: Any) -> Progress:
    return ask_until(server, folder, 8, done, stage=CHAT, may_adapt=True, **options)


def test_a_refused_parameter_ends_the_stage_and_records_nothing(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[refusal("temperature")])
    progress = ask_adapting(server, tmp_path, lambda progress: progress.parameters is not None, tries_schema=True)
    assert progress.parameters == Parameters(dropped=("temperature",))
    assert (progress.refused, rows_in(tmp_path), server.count()) == (None, {}, 1)


def test_a_refusal_after_a_completion_is_its_row_s(server: ModelServer, tmp_path: Path) -> None:
    rule = refusal("temperature")
    server.configure(rules=[rule | {"when": {"contains": "number 3."}}])
    one_at_a_time = replace(SETTINGS, limits=replace(SETTINGS.limits, max_concurrency=1))
    ask(server, tmp_path, requests(8), one_at_a_time, stage=CHAT, may_adapt=True)
    assert [row["error_type"] for row in rows_in(tmp_path).values()].count(None) == 7


def test_a_completion_cut_off_by_reasoning_is_sent_again_with_more_room(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": {"reasoning": 900}}])
    stage = replace(CHAT, max_tokens=300)
    one_at_a_time = replace(SETTINGS, limits=replace(SETTINGS.limits, max_concurrency=1))
    progress = ask(server, tmp_path, requests(4), one_at_a_time, stage=stage)
    assert {row["error_type"] for row in rows_in(tmp_path).values()} == {None}
    # The limits are 300, 600 and 1200. The later requests start with the limit of the first
    assert server.count() == 3 + 3
    assert progress.parameters == Parameters(reasoning_tokens=1024)
    assert progress.usage.reasoning_tokens == 300 + 600 + 4 * 900


def test_the_same_rejection_of_twenty_requests_ends_the_run(server: ModelServer, tmp_path: Path) -> None:
    said = {"message": "Unknown parameter: 'min_p'.", "param": "min_p"}
    server.configure(rules=[{"do": {"status": 400, "error": said}}])
    progress = ask_until(server, tmp_path, 1000, is_refused)
    assert progress.refused == "HTTP 400: min_p; remove min_p from llm.extra_body"
    assert (rows_in(tmp_path), server.count()) == ({}, 20)


def test_fewer_requests_that_are_all_rejected_end_the_run(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": {"status": 422}}])
    progress = ask_until(server, tmp_path, 3, is_refused)
    assert (progress.refused or "").startswith("HTTP 422")
    assert (rows_in(tmp_path), server.count()) == ({}, 3)


def test_rejections_next_to_completions_fail_their_rows(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"contains": "number 1"}, "do": {"status": 400}}], latency=0.01)
    progress = ask_until(server, tmp_path, 40, is_refused)
    assert progress.refused is None
    failed = {name for name, row in rows_in(tmp_path).items() if row["error_type"]}
    assert failed == {"r0001", *(f"r001{digit}" for digit in range(10))}


def test_different_rejections_are_their_rows(server: ModelServer, tmp_path: Path) -> None:
    rules = [{"when": {"contains": f"{digit}."}, "do": {"status": 400 + 13 * (digit % 2)}} for digit in range(10)]
    server.configure(rules=rules)
    progress = ask_until(server, tmp_path, 50, is_refused)
    assert progress.refused is None
    assert {row["error_type"] for row in rows_in(tmp_path).values()} == {"http_400", "http_413"}
    assert len(rows_in(tmp_path)) == server.count() == 50


@pytest.mark.parametrize("said", ['{"error": "Unexpected endpoint or method."}', "<!doctype html><html></html>"])
def test_an_address_of_another_server_ends_the_run(server: ModelServer, tmp_path: Path, said: str) -> None:
    server.configure(rules=[{"do": {"status": 200, "body": said}}])
    progress = ask_until(server, tmp_path, 30, is_refused)
    assert "most end in /v1" in (progress.refused or "")
    assert (rows_in(tmp_path), server.count(), progress.usage.tokens) == ({}, 20, 0)


def chat(content: Any, finish: str | None = "stop", **message: Any) -> bytes:
    choice = {"message": {"content": content, **message}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}).encode()


def test_the_text_parts_of_a_message_are_joined_and_thinking_is_apart() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    answer = read_completion(chat([thinking, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "chat", 40)
    assert (answer.text, answer.error_type, answer.thinks) == ("ab", None, True)


@pytest.mark.parametrize(
    ("finish", "error_type"),
    [
        ("length", "truncated"),
        ("content_filter", "filtered"),
        ("stop", "empty"),
        ("content_filter: PROHIBITED", "filtered"),
    ],
)
def test_a_message_without_content_is_read_by_its_finish_reason(finish: str, error_type: str) -> None:
    body = json.dumps({"choices": [{"message": {"role": "assistant"}, "finish_reason": finish}]}).encode()
    assert read_completion(body, "chat", 40).error_type == error_type


def test_the_chunks_of_an_event_stream_are_joined() -> None:
    deltas = [{"delta": {"content": text}} for text in ("ye", "s")] + [{"delta": {}, "finish_reason": "stop"}]
    stream = "".join(f"data: {json.dumps({'choices': [delta]})}\n\n" for delta in deltas) + "data: [DONE]\n\n"
    answer = read_completion(stream.encode(), "chat", 40)
    assert (answer.text, answer.error_type) == ("yes", None)
    cut = read_completion(stream.partition("finish_reason")[0].encode(), "chat", 40)
    assert (cut.error_type, "event stream" in (cut.error or "")) == ("bad_body", True)


def used(**usage: int) -> Any:
    body = {"choices": [{"message": {"content": "some text"}, "finish_reason": "stop"}], "usage": usage}
    return read_completion(json.dumps(body).encode(), "chat", 34_000).usage


def test_a_call_with_a_prompt_and_a_text_never_takes_zero_tokens() -> None:
    nothing = used(prompt_tokens=0, completion_tokens=0)
    assert nothing.estimated
    assert min(nothing.prompt_tokens, nothing.completion_tokens) > 0


@pytest.mark.parametrize(("tokens", "cut"), [(2050, 1), (2800, 1), (2900, 0), (8500, 0)])
def test_too_few_prompt_tokens_are_counted_as_a_cut_prompt(tokens: int, cut: int) -> None:
    assert used(prompt_tokens=tokens, completion_tokens=3).cut_prompts == cut
