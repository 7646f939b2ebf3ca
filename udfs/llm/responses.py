"""Read the body, the status and the headers of a response."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from math import isfinite
from time import time
from typing import Any, TypeGuard

from untold.udfs.llm.calls import Answer
from untold.udfs.llm.tools import read_tool_calls
from untold.udfs.llm.usage import Usage, estimate_tokens

# Some endpoints request a wait of a year. The user should start the run again instead
LONGEST_RETRY_AFTER = 3600.0
# No tokenizer has tokens of this size on average. If fewer tokens are reported, the server cut the prompt
LEAST_BYTES_OF_A_TOKEN = 12
# No model reasons longer in one completion
MOST_REASONING_TOKENS = 2**17
# A shorter prompt fits into every context window
LEAST_BYTES_OF_A_PROMPT = 1000
QUOTA = "insufficient_quota"
_NO_HEADERS: Mapping[str, str] = {}
# Finish reasons of complete completions, in lower case. All others are incomplete, such as `error` and `abort`
_WHOLE = frozenset({"", "stop", "eos", "end_turn", "stop_sequence", "tool_calls", "function_call"})
_CUT = ("length", "max_tokens", "max_output_tokens", "token_limit")
# Errors of the key, the credit, the permission or the address, which concern the run
_REFUSED = (401, 402, 403, 404)
# The code of an error can be any text, so only known codes are shown
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
# The status for the code of an error in a response with status 200
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
_CONTEXT_CODES = ("context_length_exceeded", "exceed_context_size_error")
# Azure answers a filtered prompt with 400
_FILTER_CODES = ("content_filter", "content_policy_violation")
_MODEL_CODES = {"model_not_found", "model_not_available", "invalid_model", "unknown_model"}
_MODEL_MESSAGE = re.compile(r"\bmodel\b.{0,200}\b(not found|not exist|unknown|not available|no such)", re.I | re.S)
# The topics of refusals of the whole run
_TOPICS = {
    "api_key": r"api[ _-]?key\b.{0,40}(?:not valid|invalid|missing|expired|required|not found)|api_key_invalid"
    r"|(?:invalid|incorrect|missing|no|wrong) (?:api|proxy server|bearer|auth\w*)[ _-]?(?:key|token)"
    r"|authentication (?:error|failed|required)|\bunauthori[sz]ed\b",
    "credit": r"credit balance|insufficient (?:account )?(?:balance|credits?|funds)|out of credits?|purchase credits"
    r"|payment required|insufficient_quota",
    "budget": r"budget[ _](?:has been )?exceeded|exceeded ?_?(?:your |the )?budget|max(?:imum)? budget"
    r"|spend(?:ing)? limit",
}
_ABOUT_RUN = {topic: re.compile(words, re.IGNORECASE) for topic, words in _TOPICS.items()}
# Parameters by their names in requests, with their spellings in errors. The first one is left out first
_PARAMETERS = {
    "tools": r"\btools?\b|\btool_choice\b|\btool[- ]call",
    "response_format": r"response_?format|json[ _]?schema|guided_(?:json|decoding)|structured[ _]output"
    r"|(?:parse|custom|invalid) grammar",
    "top_p": r"\btop[_-]?p\b",
    "top_logprobs": r"\btop_?logprobs\b",
    "logprobs": r"\b(?:response_?)?log[_-]?prob(?:s|abilities)\b",
    "temperature": r"\btemperature\b",
    "seed": r"\bseed\b",
    "system": r"\bsystem[ _-]?(?:role|messages?|prompts?|instructions?|turns?)\b|\brole[^a-z]{1,9}system\b"
    r"|developer instruction|'system'|\"system\"|roles must alternate|\brole\b.{0,60}\bsystem\b"
    r"|only user and assistant roles",
    "max_tokens": r"\bmax_?(?:completion_?|output_?|new_?)?tokens\b|maximum (?:number of )?tokens",
}
_NAMED = {name: re.compile(words, re.IGNORECASE) for name, words in _PARAMETERS.items()}
_NEEDS_NO_VERB = ("tools", "response_format")
_REFUSAL = re.compile(
    r"un-?supported|not (?:\w+ ){0,2}(?:supported|permitted|allowed|enabled|available|implemented|compatible|valid)"
    r"|n(?:o|')t support|unrecogni[sz]ed|unknown|unexpected|extra_forbidden|extra(?:neous)? (?:inputs?|keys?|fields?)"
    r"|cannot (?:both )?be|deprecated|only the default|may only be|can only be|must (?:be|alternate|not)|invalid"
    r"|unable to|(?:supported|valid) range|too large|at most|less than|exceed|maximum"
    r"|larger|greater|disallowed|incompatible|reject|use only one|out of range",
    re.IGNORECASE,
)
_RENAMED = re.compile(
    r"use\W{1,3}max_completion_tokens"
    r"|max_tokens\W{1,3}(?:is |are )?(?:un-?supported|not supported|deprecated|not compatible)"
    r"|unsupported parameter\W{1,3}max_tokens|support parameters?\W{1,4}max_tokens",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context[ _](?:length|window|limit|size)|(?:maximum|max) context|(?:prompt|input|request)(?: \w+)? is too long"
    r"|too many (?:input )?tokens|max_model_len|reduce the length|exceed_context_size",
    re.IGNORECASE,
)
_COUNT = r"(\d[\d,_]{2,11})"
_WINDOWS = [
    rf"\d{{2,}} \+ \d{{2,}} > {_COUNT}",
    rf"{_COUNT}(?: tokens?)? (?:maximum )?context",
    rf"(?:context[ _](?:length|window|limit|size)|max_model_len)\D{{0,60}}{_COUNT}",
]
_INPUTS = [
    r"(\d[\d,_]*) \+ \d{2,} > \d{2,}",
    r"(\d[\d,_]*) (?:input|prompt) tokens",
    r"(\d[\d,_]*)(?: tokens)? (?:in|from) (?:the |your )?(?:messages|input|prompt)",
    r"(?:prompt|input)(?: contains| has| of| length| is)?\D{0,20}(\d[\d,_]*) tokens",
]
_MOST_TOKENS = [
    rf"(?:at most|less than or equal to|up to|not exceed|<=|≤)\W{{0,3}}{_COUNT}",
    rf"model limit of {_COUNT}",
    rf"maximum (?:allowed )?(?:value|number)\D{{0,40}}{_COUNT}",
    rf"\[\s?\d+\s?,\s?{_COUNT}\s?\]",
    rf"\d > {_COUNT}",
    rf"\d+(?: \(inclusive\))? to {_COUNT}",
]
_WORDS = {
    "api_key": "the API key",
    "credit": "the credit of the account",
    "budget": "the budget of the key",
    "context": "the context window",
    "system": "the system role",
    "developer": "the system role",
    "max_completion_tokens": "max_tokens",
}
_PARAMETER_NAME = re.compile(r"[a-z][a-z_]{1,30}")
_LONGEST_MESSAGE = 1000

Reader = Callable[[bytes, int, Mapping[str, str]], Answer]
"""What makes an answer of the body of a 200, the request's size in bytes and the response's headers."""


def read_completion(
    content: bytes, api: str, sent: int, headers: Mapping[str, str] = _NO_HEADERS, *, structured: bool = False
) -> Answer:
    """Read the body of a response with status 200. A body with an error and no choice has the status of its code.

    Args:
        sent: the size of the request in bytes, to estimate missing usage.
        structured: True if the request had a schema. JSON in the field of the reasoning is then the completion if there
            is no other.

    >>> read_completion(b'{"choices": [{"text": "yes", "finish_reason": "stop"}]}', "completions", 40).text
    'yes'
    """
    body: Any = None
    try:
        body = json.loads(content)
        choice = body["choices"][0]
        message = choice["message"] if api == "chat" else choice
        text, parts_thought = _text_and_thought(message.get("content") if api == "chat" else choice["text"])
        finish_reason = choice.get("finish_reason")
        if not isinstance(text, (str, type(None))) or not isinstance(finish_reason, (str, type(None))):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        status = status_in(body)
        if status is not None:
            return read_status(status, content, headers)
        if (joined := _joined_chunks(content)) is not None:
            return read_completion(joined, api, sent, headers, structured=structured)
        if kind := _kind_of(content, body):
            said = f"the response is not a completion but {kind}"
            return Answer(error_type="bad_body", error=said, about=("base_url",))
        usage = Usage(estimate_tokens(sent), 0, estimate_tokens(len(content)), estimated=True)
        return Answer(error_type="bad_body", error="the endpoint's answer is not a completion", usage=usage)
    thought = (_thought(message) if api == "chat" else "") or parts_thought
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
    """Return the reasoning in its own field, "" without such a field."""
    thoughts = [message.get(name) for name in ("reasoning_content", "reasoning")]
    return next((thought.strip() for thought in thoughts if isinstance(thought, str) and thought.strip()), "")


def _text_and_thought(content: Any) -> tuple[Any, str]:
    """Return the text of a message and its thinking; content may be a text, null or a list of parts."""
    if not isinstance(content, list):
        return content, ""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    texts = [part["text"] for part in parts if part.get("type") in ("text", "output_text")]
    thoughts = [part for part in parts if part.get("type") in ("thinking", "reasoning", "redacted_thinking")]
    if len(texts) + len(thoughts) < len(parts):
        raise TypeError
    return "".join(texts) if texts else None, json.dumps(thoughts) if thoughts else ""


def _joined_chunks(content: bytes) -> bytes | None:
    """Return the completion of an event stream as one body. None if the content is not a complete stream of chunks."""
    lines = [line[5:].strip() for line in content.splitlines() if line.startswith(b"data:")]
    try:
        chunks = [json.loads(line) for line in lines if line != b"[DONE]"]
        if len(chunks) == 1 and "message" in chunks[0]["choices"][0]:
            return json.dumps(chunks[0]).encode()
        choices = [chunk["choices"][0] for chunk in chunks if chunk.get("choices")]
        deltas = [choice.get("delta") or {} for choice in choices]
        finish = next(choice["finish_reason"] for choice in choices if choice.get("finish_reason"))
        text = "".join(delta.get("content") or "" for delta in deltas)
        thought = "".join(delta.get("reasoning_content") or delta.get("reasoning") or "" for delta in deltas)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        return None
    usage = next((chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage")), None)
    message = {"content": text, "reasoning_content": thought}
    choice = {"message": message, "finish_reason": finish, "text": text}
    return json.dumps({"model": chunks[0].get("model"), "choices": [choice], "usage": usage}).encode()


def _kind_of(content: bytes, body: Any) -> str | None:
    """Return the kind of a body that another kind of server sends; None for a broken completion."""
    start = content[:200].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page"
    if start.startswith((b"data:", b"event:", b":")):
        return "an event stream"
    if not isinstance(body, Mapping) or "choices" in body:
        return None
    if body.get("error") or body.get("detail"):
        return "an error object with status 200"
    if body.get("object") == "response":
        return "a response of the Responses API"
    if body.get("type") == "message":
        return "a message of Anthropic's own API"
    return "a JSON object without choices"


_COMPLETION_ERRORS = {
    "filtered": "the endpoint filtered the completion",
    "truncated": "the completion was cut at its token limit; raise max_tokens of the stage",
    "empty": "the completion is empty",
    "bad_finish": "the endpoint ended the completion for an unusual reason",
}


def _completion_error(text: str | None, finish_reason: str | None, refusal: bool) -> str | None:
    """Return the error of a completion by its finish reason: `filtered`, `truncated`, `bad_finish`, `empty` or None."""
    reason = (finish_reason or "").strip().lower()
    if reason.startswith("content_filter") or (refusal and not text):
        return "filtered"
    # A part of the reason, because some endpoints return `model_length`
    if any(word in reason for word in _CUT):
        return "truncated"
    if reason not in _WHOLE:
        return "bad_finish"
    return None if text and text.strip() else "empty"


def read_usage(usage: Any, text: str, sent: int, received: int) -> Usage:
    """Return the tokens of a call. A token has at least one byte, so larger counts are cut and marked as estimated."""
    if isinstance(usage, Mapping):
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if _is_count(prompt) and _is_count(completion):
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
            details = usage.get("completion_tokens_details")
            thought = details.get("reasoning_tokens") if isinstance(details, Mapping) else None
            # The body may lack the reasoning
            reasoning = min(thought, completion, MOST_REASONING_TOKENS) if _is_count(thought) else 0
            counts = min(prompt, sent), min(completion, received + reasoning)
            known = min(cached, counts[0]) if _is_count(cached) else 0
            # A call with a prompt and a text has at least one token
            written = estimate_tokens(len(text.encode("utf-8"))) if text else 0
            filled = (counts[0] or estimate_tokens(sent), counts[1] or written)
            return Usage(
                filled[0],
                known,
                filled[1],
                estimated=filled != (prompt, completion),
                reasoning_tokens=reasoning,
                cut_prompts=int(0 < prompt * LEAST_BYTES_OF_A_TOKEN < sent and sent >= LEAST_BYTES_OF_A_PROMPT),
            )
    return Usage(estimate_tokens(sent), 0, estimate_tokens(len(text.encode("utf-8"))), estimated=True)


def _is_count(value: Any) -> TypeGuard[int]:
    """Return True if a JSON value is a number of tokens. True and False are integers in Python."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def status_in(body: Any) -> int | None:
    """Return the status of the error in a body, by its code or type. None for unknown codes."""
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
    """Return the answer for a status: `refused` if the error concerns the run, and `retry_after` if it is given.

    It contains only known codes and no other text of the endpoint, because messages can repeat prompts and keys.
    """
    code, param, message = _read_error_body(content)
    quota = status == 429 and code == QUOTA
    model_unknown = code in _MODEL_CODES or bool(_MODEL_MESSAGE.search(message))
    if 300 <= status < 400:
        return Answer(error_type=f"http_{status}", error=f"HTTP {status}: redirects are not followed", refused=True)
    about = _topics(status, code, param, message)
    of_run = bool({"api_key", "credit", "budget"}.intersection(about))
    window, most = _token_room(message) if {"max_tokens", "context"}.intersection(about) else (None, None)
    if "context" in about and most is not None and most < 1:
        # The prompt is too long by itself, so no limit helps
        about = ("context",)
    named = next((_WORDS.get(one, one) for one in about if one not in _NEEDS_NO_VERB), None)
    named = None if code in _CONTEXT_CODES else named
    return Answer(
        error_type="filtered" if code in _FILTER_CODES else f"http_{status}",
        error=f"HTTP {status}" + (f" ({code})" if code in _KNOWN_CODES else "") + (f": {named}" if named else ""),
        # An exhausted quota also has the status 429, but no wait helps
        retry_after=read_retry_after(headers) if (status == 429 and not quota) or status >= 500 else None,
        refused=status in _REFUSED or quota or (400 <= status < 500 and status != 429 and (model_unknown or of_run)),
        about=about,
        window=window,
        most_tokens=most,
    )


def _topics(status: int, code: str | None, param: str | None, message: str) -> tuple[str, ...]:
    """Return the topics of an error and the parameters that it refuses, by its parameter, its code and known words."""
    if status in (401, 403, 429) or status >= 502:
        return ()
    found = [topic for topic, words in _ABOUT_RUN.items() if words.search(f"{code} {message}")]
    if found or code in _FILTER_CODES:
        return tuple(found)
    if (param == "max_tokens" and code == "unsupported_parameter") or _RENAMED.search(message):
        return ("max_completion_tokens",)
    named = [name for name, words in _NAMED.items() if words.search(param or "")]
    if not named:
        refuses = code in ("unsupported_parameter", "unsupported_value") or bool(_REFUSAL.search(message))
        named = [
            name for name, words in _NAMED.items() if words.search(message) and (refuses or name in _NEEDS_NO_VERB)
        ]
    if "system" in named or (param or "").endswith("role"):
        named = ["developer" if re.search(r"\buse\W.{0,20}developer", message, re.I) else "system", *named]
    if code in _CONTEXT_CODES or _CONTEXT.search(message):
        named = [*(["max_tokens"] if any(_token_room(message)) else []), "context", *named]
    if not named and param and _PARAMETER_NAME.fullmatch(param):
        named = [param]
    return tuple(dict.fromkeys(named))


def _token_room(message: str) -> tuple[int | None, int | None]:
    """Return the context window that a message states, and the largest token limit that it allows; None if unknown."""
    window, prompt = _first_count(_WINDOWS, message), _first_count(_INPUTS, message)
    if window is None:
        return None, _first_count(_MOST_TOKENS, message)
    return window, None if prompt is None else window - prompt


def _first_count(patterns: Sequence[str], message: str) -> int | None:
    """Return the count of the first pattern that matches."""
    found = next((match for pattern in patterns if (match := re.search(pattern, message, re.IGNORECASE))), None)
    return int(re.sub("[,_]", "", found[1])) if found else None


def _read_error_body(content: bytes) -> tuple[str | None, str | None, str]:
    """Return the code (or type) of an error, the parameter that it names, and the beginning of its message."""
    try:
        body = json.loads(content)
        # Gemini's compatible endpoint wraps the error into a list
        body = body[0] if isinstance(body, list) else body
        error = body.get("error", body)
        if isinstance(error, str):
            return None, None, error[:_LONGEST_MESSAGE]
        reasons = [one.get("reason") for one in error.get("details") or () if isinstance(one, Mapping)]
        said = (error.get("code"), error.get("type"), error.get("status"), *reasons)
        codes = [one for one in said if isinstance(one, str)]
        # Some endpoints return it as the type, with another code
        code = QUOTA if QUOTA in codes else next(iter(codes), None)
        message = error.get("message") or error.get("Message") or error.get("detail") or ""
        details = message.get("detail") if isinstance(message, Mapping) else message
        param, message = error.get("param"), _text_of(details)
        if isinstance(details, list) and not isinstance(param, str):
            param = str(details[0]["loc"][-1])
    except ValueError:
        return None, None, content[:_LONGEST_MESSAGE].decode("utf-8", "replace")
    except (LookupError, TypeError, AttributeError, RecursionError):
        return None, None, ""
    known = isinstance(param, str) and param not in ("", "None", "null")
    return code, param if known else None, " ".join((*codes[1:], message))[:_LONGEST_MESSAGE]


def _text_of(details: Any) -> str:
    """Return the text of a message, or of the details of a validation error (FastAPI, Mistral)."""
    if isinstance(details, list):
        return "; ".join(f"{one.get('type', '')} {one.get('loc', '')} {one.get('msg', '')}" for one in details)
    return details if isinstance(details, str) else ""


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, at most an hour, by `retry-after-ms` or `retry-after` (seconds or date), or None."""
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
    """Return the text without lone surrogates. JSON can contain them, but Arrow refuses them."""
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")


def has_alternatives(logprobs: Any, api: str) -> bool:
    """Return True if the `logprobs` of a choice have the alternatives of a token.

    Chat completions: `{"content": [{"top_logprobs": [...]}]}`, plain ones: `{"top_logprobs": [{token: logprob}]}`.
    Servers without log-probabilities send null, an empty list, or tokens without alternatives.
    """
    if not isinstance(logprobs, Mapping):
        return False
    if api != "chat":
        return any(logprobs.get("top_logprobs") or [])
    tokens = logprobs.get("content") or []
    return any(isinstance(token, Mapping) and token.get("top_logprobs") for token in tokens)
