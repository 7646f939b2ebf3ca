"""One call to an OpenAI-compatible endpoint: bytes out, an `Answer` in. No retry, no wait, no limit."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from math import isfinite
from time import time
from typing import Any, TypeGuard
from urllib.parse import urlsplit

import aiohttp
import httpx2
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAioHttpClient, Omit

from udfs.llm.keys import Stage
from udfs.llm.templates import Prompt
from udfs.llm.tokens import estimate_tokens
from udfs.llm.tools import ToolCall, read_tool_calls

TOP_LOGPROBS = 10
MOST_TOKENS = 2**40
LONGEST_RETRY_AFTER = 3600.0
_PATHS = {"chat": "/chat/completions", "completions": "/completions"}
_REFUSED = (401, 403, 404)
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
_MODEL_CODES = {"model_not_found", "model_not_available", "invalid_model", "unknown_model"}
_MODEL_MESSAGE = re.compile(r"\bmodel\b.{0,200}\b(not found|not exist|unknown|not available|no such)", re.I | re.S)


_TOOL_MESSAGE = re.compile(r"\btools?\b|\btool_choice\b|\btool[- ]call", re.I)
_NOT_ABOUT_TOOLS = (401, 403, 429, 502, 503, 504)
_LONGEST_MESSAGE = 500


@dataclass(frozen=True)
class Usage:
    """Tokens of one call; `estimated` where the endpoint did not return them."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False


@dataclass(frozen=True)
class Answer:
    """What came of one call.

    `error_type` is None for a completion that can be read. `refused` means that no call of the run can succeed (key,
    address or model), `about_tools` that the endpoint's error speaks of tools. `unconnected` means that no connection
    was made. `retry_after` is in seconds.
    """

    text: str | None = None
    finish_reason: str | None = None
    model: str | None = None
    usage: Usage = Usage()
    logprobs: Any = None
    tool_calls: tuple[ToolCall, ...] = ()
    error_type: str | None = None
    error: str | None = None
    retry_after: float | None = None
    refused: bool = False
    about_tools: bool = False
    unconnected: bool = False


class Endpoint:
    """An async client on the aiohttp transport that sends each call once and follows no redirect.

    Without a key no Authorization header is sent. What the client reads from OPENAI_* variables besides (organisation,
    project, headers) goes with the key of OPENAI_API_KEY alone: it says whose account that is.

    Proxies of the environment are ignored on the loopback interface.
    """

    def __init__(self, base_url: str, api_key: str | None, *, connections: int, timeout: float) -> None:
        self._timeout = timeout
        self._client = AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",
            max_retries=0,
            timeout=timeout,
            http_client=DefaultAioHttpClient(
                limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
                timeout=httpx2.Timeout(timeout),
                follow_redirects=False,
                trust_env=not is_loopback(base_url),
            ),
        )
        unsent = [] if api_key else ["Authorization"]
        if not api_key or api_key != os.environ.get("OPENAI_API_KEY"):
            unsent += ["OpenAI-Organization", "OpenAI-Project", *self._client._custom_headers]
        self._options: Any = {"headers": {name: Omit() for name in dict.fromkeys(unsent)}} if unsent else {}

    async def call(self, api: str, body: bytes, timeout: float | None = None) -> Answer:
        """Sends one request and reads what comes, within `timeout` seconds where that is less than the client's.

        Never raises for anything that an endpoint may do.
        """
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.post(
                    _PATHS[api], content=body, cast_to=httpx2.Response, options=self._options
                )
        except TimeoutError:
            return Answer(error_type="timeout", error=f"no answer within {seconds:g} s")
        except APIStatusError as error:
            return _read_status(error.response)
        except APIConnectionError as error:
            return _read_connection_error(error)
        except Exception as error:
            return Answer(error_type="connection", error=f"the connection failed ({type(error).__name__})")
        return read_completion(response.content, api, len(body))

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()


def request_body(
    stage: Stage,
    prompt: Prompt,
    variables: Mapping[str, Any],
    turns: Sequence[Mapping[str, Any]] = (),
    *,
    tools_left: bool = True,
) -> bytes:
    """The JSON body of the call for these variables, going on after the `turns` that tools were used in.

    Without `tools_left` the model is told to call none. `logprobs: false` in `extra_body` sends none of them, for
    models that refuse to give log-probabilities.
    """
    body: dict[str, Any] = {"model": stage.model}
    if stage.api == "chat":
        body["messages"] = [*prompt.messages(variables), *turns]
        if stage.rated:
            body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    else:
        body["prompt"] = prompt.text(variables)
        if stage.rated:
            body["logprobs"] = TOP_LOGPROBS
    if stage.tools:
        body["tools"] = list(stage.tools)
        if not tools_left:
            body["tool_choice"] = "none"
    body |= stage.decoding
    if body.get("logprobs") is False:
        del body["logprobs"]
        body.pop("top_logprobs", None)
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def read_completion(content: bytes, api: str, sent: int) -> Answer:
    """Reads the body of a 200; `sent` is the request's size in bytes, for the estimate where usage is missing."""
    try:
        body = json.loads(content)
        choice = body["choices"][0]
        message = choice["message"] if api == "chat" else choice
        text = message["content"] if api == "chat" else choice["text"]
        finish_reason = choice.get("finish_reason")
        if not isinstance(text, (str, type(None))) or not isinstance(finish_reason, (str, type(None))):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        usage = Usage(estimate_tokens(sent), 0, estimate_tokens(len(content)), estimated=True)
        return Answer(error_type="bad_body", error="the endpoint's answer is no completion", usage=usage)
    text = _valid_utf8(text)
    refusal = message.get("refusal") if api == "chat" else None
    model = body.get("model")
    error_type = _completion_error(text, finish_reason, bool(refusal))
    return Answer(
        text=text,
        finish_reason=_valid_utf8(finish_reason),
        model=_valid_utf8(model) if isinstance(model, str) else None,
        usage=_read_usage(body.get("usage"), text or "", sent),
        logprobs=choice.get("logprobs"),
        tool_calls=read_tool_calls(message),
        error_type=error_type,
        error=_COMPLETION_ERRORS.get(error_type or ""),
    )


_COMPLETION_ERRORS = {
    "filtered": "the endpoint filtered the completion",
    "truncated": "the completion was cut at its token limit; raise max_tokens of the stage",
    "empty": "the completion is empty",
}


def _completion_error(text: str | None, finish_reason: str | None, refusal: bool) -> str | None:
    if finish_reason == "content_filter" or (refusal and not text):
        return "filtered"
    if finish_reason == "length":
        return "truncated"
    return None if text and text.strip() else "empty"


def _read_usage(usage: Any, text: str, sent: int) -> Usage:
    if isinstance(usage, Mapping):
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if _is_count(prompt) and _is_count(completion):
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
            return Usage(prompt, cached if _is_count(cached) else 0, completion)
    return Usage(estimate_tokens(sent), 0, estimate_tokens(len(text.encode("utf-8"))), estimated=True)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


def _read_status(response: httpx2.Response) -> Answer:
    status = response.status_code
    code, message = _read_error_body(response.content)
    model_unknown = code in _MODEL_CODES or bool(_MODEL_MESSAGE.search(message))
    if 300 <= status < 400:
        return Answer(error_type=f"http_{status}", error=f"HTTP {status}: redirects are not followed", refused=True)
    return Answer(
        error_type=f"http_{status}",
        error=f"HTTP {status}" + (f" ({code})" if code in _KNOWN_CODES else ""),
        retry_after=_retry_after(response.headers) if status == 429 or status >= 500 else None,
        refused=status in _REFUSED or (400 <= status < 500 and status != 429 and model_unknown),
        about_tools=status not in _NOT_ABOUT_TOOLS and bool(_TOOL_MESSAGE.search(message)),
    )


def _read_error_body(content: bytes) -> tuple[str | None, str]:
    """The code, or type, of an error, and the beginning of its message with the name of the parameter it is about."""
    try:
        body = json.loads(content)
        error = body.get("error", body)
        if isinstance(error, str):
            return None, error[:_LONGEST_MESSAGE]
        code = error.get("code") or error.get("type")
        said = [text for text in (error.get("param"), error.get("message")) if isinstance(text, str)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None, ""
    return code if isinstance(code, str) else None, " ".join(said)[:_LONGEST_MESSAGE]


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


def _read_connection_error(error: APIConnectionError) -> Answer:
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(isinstance(cause, (TimeoutError, aiohttp.ServerTimeoutError)) for cause in causes):
        return Answer(error_type="timeout", error="the connection timed out")
    if any(isinstance(cause, aiohttp.ClientPayloadError) for cause in causes):
        return Answer(error_type="bad_body", error="the endpoint's answer broke off")
    unconnected = any(isinstance(cause, aiohttp.ClientConnectorError) for cause in causes)
    reason = "no connection could be made" if unconnected else "the connection broke"
    return Answer(error_type="connection", error=reason, unconnected=unconnected)


def _valid_utf8(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine's loopback interface."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
