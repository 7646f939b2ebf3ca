"""What a response says: its body, status and headers, whoever sent it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from math import isfinite
from time import time
from typing import Any, TypeGuard

from untold.udfs.llm.calls import Answer
from untold.udfs.llm.tokens import estimate_tokens
from untold.udfs.llm.tools import read_tool_calls
from untold.udfs.llm.usage import Usage

# An endpoint may ask for a year; a run that is to wait longer than this is one to start again.
LONGEST_RETRY_AFTER = 3600.0
QUOTA = "insufficient_quota"
_NO_HEADERS: Mapping[str, str] = {}
# Finish reasons, lower case. Everything that is not known to be whole is not: endpoints also say `error` or `abort`.
_WHOLE = frozenset({"", "stop", "eos", "end_turn", "stop_sequence", "tool_calls", "function_call"})
_CUT = ("length", "max_tokens", "max_output_tokens", "token_limit")
# About key, credit, permission or address, and so about the run more likely than about a row
_REFUSED = (401, 402, 403, 404)
# An endpoint may put anything into an error's code, so only known ones are shown.
_KNOWN_CODES = frozenset(
    {
        "api_error",
        "authentication_error",
        "content_filter",
        "content_policy_violation",
        "context_length_exceeded",
        "exceed_context_size_error",
        "insufficient_quota",
        "invalid_api_key",
        "invalid_request_error",
        "invalid_value",
        "model_not_found",
        "not_found_error",
        "overloaded_error",
        "permission_error",
        "rate_limit_exceeded",
        "server_error",
        "unsupported_parameter",
        "unsupported_value",
    }
)
# What an error's code means where it comes with the status 200
_STATUS_OF_CODE = {
    "authentication_error": 401,
    "context_length_exceeded": 400,
    "exceed_context_size_error": 400,
    "insufficient_quota": 429,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "model_not_found": 404,
    "not_found_error": 404,
    "overloaded_error": 503,
    "permission_error": 403,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "api_error": 500,
    "server_error": 500,
}
_MODEL_CODES = {"model_not_found", "model_not_available", "invalid_model", "unknown_model"}
_MODEL_MESSAGE = re.compile(r"\bmodel\b.{0,200}\b(not found|not exist|unknown|not available|no such)", re.I | re.S)
_TOOL_MESSAGE = re.compile(r"\btools?\b|\btool_choice\b|\btool[- ]call", re.I)
# Some name the field in a list of details and not in an error
_SCHEMA_MESSAGE = re.compile(
    rb"response_?format|json[ _]?schema|guided_(?:json|decoding)|structured[ _]output|(?:parse|custom|invalid) grammar",
    re.IGNORECASE,
)
_NOT_ABOUT_TOOLS = (401, 403, 429, 502, 503, 504)
_LONGEST_MESSAGE = 500

Reader = Callable[[bytes, int, Mapping[str, str]], Answer]
"""What makes an answer of the body of a 200, the request's size in bytes and the response's headers."""


def read_completion(
    content: bytes, api: str, sent: int, headers: Mapping[str, str] = _NO_HEADERS, *, structured: bool = False
) -> Answer:
    """Reads the body of a 200; `sent` is the request's size in bytes, for the estimate where usage is missing.

    `structured`: a schema was sent, so that JSON in the place of thinking is the answer where there is no other. A body
    that holds an error and no choice is read as the status that the error's code stands for.

    >>> read_completion(b'{"choices": [{"text": "yes", "finish_reason": "stop"}]}', "completions", 40).text
    'yes'
    """
    body: Any = None
    try:
        body = json.loads(content)
        choice = body["choices"][0]
        message = choice["message"] if api == "chat" else choice
        text = message["content"] if api == "chat" else choice["text"]
        finish_reason = choice.get("finish_reason")
        if not isinstance(text, (str, type(None))) or not isinstance(finish_reason, (str, type(None))):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        status = status_in(body)
        if status is not None:
            return read_status(status, content, headers)
        usage = Usage(estimate_tokens(sent), 0, estimate_tokens(len(content)), estimated=True)
        return Answer(error_type="bad_body", error="the endpoint's answer is not a completion", usage=usage)
    thought = _thought(message) if api == "chat" else ""
    misplaced = structured and not (text or "").strip() and thought.startswith(("{", "["))
    text = valid_utf8(thought if misplaced else text)
    refusal = message.get("refusal") if api == "chat" else None
    model = body.get("model")
    error_type = _completion_error(text, finish_reason, bool(refusal))
    return Answer(
        text=text,
        finish_reason=valid_utf8(finish_reason),
        model=valid_utf8(model) if isinstance(model, str) else None,
        usage=read_usage(body.get("usage"), text or "", sent, len(content)),
        logprobs=choice.get("logprobs"),
        tool_calls=read_tool_calls(message),
        error_type=error_type,
        error=_COMPLETION_ERRORS.get(error_type or ""),
        thinks=bool(thought) and not misplaced,
        misplaced=misplaced,
    )


def _thought(message: Any) -> str:
    """What a model thought, where the endpoint sets it apart from the text; "" where it does not."""
    thoughts = [message.get(name) for name in ("reasoning_content", "reasoning")]
    return next((thought.strip() for thought in thoughts if isinstance(thought, str) and thought.strip()), "")


_COMPLETION_ERRORS = {
    "filtered": "the endpoint filtered the completion",
    "truncated": "the completion was cut at its token limit; raise max_tokens of the stage",
    "empty": "the completion is empty",
    "bad_finish": "the endpoint ended the completion for an unusual reason",
}


def _completion_error(text: str | None, finish_reason: str | None, refusal: bool) -> str | None:
    """What is wrong with a completion by how it ended: `filtered`, `truncated`, `bad_finish`, `empty`, None for
    nothing.
    """
    reason = (finish_reason or "").strip().lower()
    if reason == "content_filter" or (refusal and not text):
        return "filtered"
    # Contained, not equal: some say `model_length`.
    if any(word in reason for word in _CUT):
        return "truncated"
    if reason not in _WHOLE:
        return "bad_finish"
    return None if text and text.strip() else "empty"


def read_usage(usage: Any, text: str, sent: int, received: int) -> Usage:
    """The tokens of a call: no token is shorter than a byte, so what is beyond the bytes is cut, and estimated."""
    if isinstance(usage, Mapping):
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if _is_count(prompt) and _is_count(completion):
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
            counts = min(prompt, sent), min(completion, received)
            known = min(cached, counts[0]) if _is_count(cached) else 0
            return Usage(counts[0], known, counts[1], estimated=counts != (prompt, completion))
    return Usage(estimate_tokens(sent), 0, estimate_tokens(len(text.encode("utf-8"))), estimated=True)


def _is_count(value: Any) -> TypeGuard[int]:
    """Whether a value of JSON is a number of tokens; true and false are int in Python."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def status_in(body: Any) -> int | None:
    """The status that the error in a body stands for, by its code or type; None where it has none that is known."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return None
    for said in (error.get("code"), error.get("type"), error.get("status")):
        if isinstance(said, str) and said.lower() in _STATUS_OF_CODE:
            return _STATUS_OF_CODE[said.lower()]
        number = int(said) if isinstance(said, str) and re.fullmatch("[3-5][0-9][0-9]", said) else said
        if isinstance(number, int) and 300 <= number <= 599:
            return number
    return None


def read_status(status: int, content: bytes, headers: Mapping[str, str]) -> Answer:
    """The answer that a status stands for: `refused` where it speaks of the run, `retry_after` where the endpoint has
    one to say.

    No text of the endpoint's is in it but known codes, since messages echo prompts and keys.
    """
    code, message = _read_error_body(content)
    quota = status == 429 and code == QUOTA
    model_unknown = code in _MODEL_CODES or bool(_MODEL_MESSAGE.search(message))
    if 300 <= status < 400:
        return Answer(error_type=f"http_{status}", error=f"HTTP {status}: redirects are not followed", refused=True)
    return Answer(
        error_type=f"http_{status}",
        error=f"HTTP {status}" + (f" ({code})" if code in _KNOWN_CODES else ""),
        # An exhausted quota is answered with 429 too, and no wait helps it.
        retry_after=_retry_after(headers) if (status == 429 and not quota) or status >= 500 else None,
        refused=status in _REFUSED or quota or (400 <= status < 500 and status != 429 and model_unknown),
        about_tools=status not in _NOT_ABOUT_TOOLS and bool(_TOOL_MESSAGE.search(message)),
        about_schema=status not in _NOT_ABOUT_TOOLS and bool(_SCHEMA_MESSAGE.search(content[:_LONGEST_MESSAGE])),
    )


def _read_error_body(content: bytes) -> tuple[str | None, str]:
    """The code, or type, of an error, and the beginning of its message with the name of the parameter it is about."""
    try:
        body = json.loads(content)
        error = body.get("error", body)
        if isinstance(error, str):
            return None, error[:_LONGEST_MESSAGE]
        codes = [said for said in (error.get("code"), error.get("type")) if isinstance(said, str)]
        # Some endpoints have it as the type beside a code of their own.
        code = QUOTA if QUOTA in codes else next(iter(codes), None)
        said = [text for text in (error.get("param"), error.get("message")) if isinstance(text, str)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None, ""
    return code, " ".join(said)[:_LONGEST_MESSAGE]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, an hour at most, by `retry-after-ms`, or `retry-after` in seconds or as a date; else None."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            seconds = float(headers[name]) * scale
            if isfinite(seconds):
                return min(max(0.0, seconds), LONGEST_RETRY_AFTER)
    with suppress(KeyError, ValueError, TypeError, OverflowError):
        seconds = parsedate_to_datetime(headers["retry-after"]).timestamp() - time()
        return min(max(0.0, seconds), LONGEST_RETRY_AFTER)
    return None


def valid_utf8(text: str | None) -> str | None:
    """The text with lone surrogates replaced, which JSON may escape and Arrow refuses."""
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")
