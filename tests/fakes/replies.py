"""The bytes of the model server's responses and errors, in the format of the APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import responses
from itertools import accumulate
from math import log
from typing import Any

from tests.fakes.answers import GARBAGE, Answer, Payload, Said, likeliest, spread
from tests.fakes.facts import Odds
from tests.fakes.rules import Request
from tests.fakes.structured import REFUSAL, as_json, schema_of
from tests.fakes.tools import NO_TOOLS, forced_call

_TOKEN = re.compile(r"\s*[^\s\d]+|\s*\d|\s+")
_HTML = b"<!DOCTYPE html>\n<html><head><title>Bad gateway</title></head><body><h1>Bad gateway</h1></body></html>\n"
# Additional fields of a message, or replacements of its content
_THINKING: Mapping[str, Callable[[str], Payload]] = {
    "misplaced": lambda text: {"content": None, "reasoning_content": text},
    "thinking": lambda text: {"reasoning_content": "The statements are compared one by one."},
}
_THOUGHT = "<think>\nThe statements are compared one by one.\n</think>\n\n"


def count_tokens(text: str) -> int:
    """Return the server's count of tokens: a quarter of the UTF-8 bytes, plus one."""
    return len(text.encode("utf-8", "replace")) // 4 + 1


def completion_body(
    request: Mapping[str, Any], chat: bool, said: Said | None, finish_reason: str, usage: tuple[int, int] | None
) -> Payload:
    """Return the object of a response: a chat or a plain completion, with log-probabilities if requested.

    `usage` is (prompt tokens, completion tokens), or None to omit it.
    """
    text = None if said is None else said.text
    body: Payload = {
        "id": "cmpl-0",
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": request.get("model", ""),
    }
    choice: Payload = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
    if said is not None and said.call:
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [said.call]}
    elif chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    if said is not None and request.get("logprobs"):
        choice["logprobs"] = chat_logprobs(said, int(request.get("top_logprobs") or 0)) if chat else None
        if not chat:
            choice["logprobs"] = plain_logprobs(said, int(request["logprobs"]))
    body["choices"] = [choice]
    if usage is not None:
        prompt, completion = usage
        total = prompt + completion
        body["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    return body


def chat_logprobs(said: Said, top: int) -> Payload:
    """Return log-probabilities in the chat format: a token per word and per digit. Without odds, it has 0.7."""
    return {
        "content": [
            _logprob(token, odds[token])
            | {"top_logprobs": [_logprob(other, odds[other]) for other in likeliest(odds, token, top)]}
            for token, odds in _tokens(said)
        ]
    }


def plain_logprobs(said: Said, top: int) -> Payload:
    """Return the same in the format of plain completions: parallel lists, with alternatives as a mapping."""
    tokens = _tokens(said)
    lengths = (len(token) for token, _ in tokens)
    return {
        "tokens": [token for token, _ in tokens],
        "token_logprobs": [log(odds[token]) for token, odds in tokens],
        "top_logprobs": [{other: log(odds[other]) for other in likeliest(odds, token, top)} for token, odds in tokens],
        "text_offset": [0, *accumulate(lengths)][: len(tokens)],
    }


def _tokens(said: Said) -> list[tuple[str, Odds]]:
    """Return the tokens of a completion in order, each with its odds."""
    found = []
    for match in _TOKEN.finditer(said.text):
        token = match[0]
        space = token[: len(token) - len(token.lstrip())]
        odds = said.odds.get(match.start() + len(space))
        found.append((token, {space + word: share for word, share in odds.items()} if odds else spread(token)))
    return found


def _logprob(token: str, probability: float) -> Payload:
    return {"token": token, "logprob": log(probability), "bytes": list(token.encode("utf-8", "replace"))}


@dataclass(slots=True)
class Reply:
    """A response: its bytes, None for no response, and a flag that closes the connection after it."""

    status: int
    content: bytes | None
    close: bool = False
    completion_tokens: int = 0
    delay: float = 0.0


def make_reply(
    answer: Answer,
    request: Request,
    prompt_tokens: int,
    deeds: Mapping[str, Any],
    lookup: Callable[[Request, int, Mapping[str, Any]], Reply] | None = None,
    cached: int | None = None,
) -> Reply:
    """Return the response with a completion by `answer` or `lookup`, or the result of a rule's deeds.

    `cached`: the number of cached tokens of the prompt.
    """
    if "status" in deeds:
        return _status_reply(deeds)
    if "no_tools" in deeds and request.body.get("tools"):
        return error_reply(400, NO_TOOLS)
    if "hang" in deeds or "refuse" in deeds:
        return Reply(0, None, close="refuse" in deeds)
    if "html" in deeds:
        return Reply(200, http_message(200, _HTML, {"Content-Type": "text/html; charset=utf-8"}))
    if lookup is not None:
        return lookup(request, prompt_tokens, deeds)
    schema, kind = schema_of(request.body), deeds.get("schema")
    if schema and kind == "refused":
        return error_reply(400, REFUSAL)
    said, finish_reason = _say(answer, request, deeds)
    if schema and kind and said:
        said = Said("") if kind == "empty" else as_json(said, request.payload, schema)
    tokens = count_tokens(json.dumps(said.call) if said.call else said.text) if said else count_tokens("")
    if thought := deeds.get("reasoning"):
        # Reasoning counts as output, so no content is left if it uses up the limit
        cut = request.limit is not None and request.limit < thought + tokens
        thought, tokens = (request.limit, request.limit) if cut else (thought, thought + tokens)
        said, finish_reason = (Said(""), "length") if cut else (said, finish_reason)
    usage = None if "no_usage" in deeds else (1 if "few_tokens" in deeds else prompt_tokens, tokens)
    asked = request.body | ({"logprobs": None} if "no_logprobs" in deeds or (schema and kind == "unweighed") else {})
    body = completion_body(asked, request.chat, said, finish_reason, usage)
    if schema and kind in _THINKING:
        body["choices"][0]["message"] |= _THINKING[kind](said.text if said else "")
    if thought and usage:
        body["usage"]["completion_tokens_details"] = {"reasoning_tokens": thought}
    if cached is not None and usage:
        body["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    content = json.dumps(body).encode()
    if "cut_json" in deeds:
        return Reply(200, http_message(200, content[: len(content) // 2]), completion_tokens=tokens)
    if "cut_body" in deeds:
        return Reply(200, http_message(200, content)[: -(len(content) // 2)], close=True, completion_tokens=tokens)
    return Reply(200, http_message(200, content), completion_tokens=tokens)


def _say(answer: Answer, request: Request, deeds: Mapping[str, Any]) -> tuple[Said | None, str]:
    forced = forced_call(request.body, request.payload, deeds)
    if forced:
        return Said("", call=forced), "tool_calls"
    if "null" in deeds:
        return None, "stop"
    if "empty" in deeds or "filter" in deeds:
        return Said(""), "content_filter" if "filter" in deeds else "stop"
    text = GARBAGE if "garbage" in deeds else deeds.get("text")
    answered = answer(request.payload) if text is None else text
    said = answered if isinstance(answered, Said) else Said(answered)
    if said.call:
        return said, "tool_calls"
    if "finish" in deeds:
        return said, deeds["finish"]
    if "think" in deeds:
        said = Said(_THOUGHT + said.text, {place + len(_THOUGHT): odds for place, odds in said.odds.items()})
    return (Said(said.text[: len(said.text) // 2], said.odds), "length") if "length" in deeds else (said, "stop")


def http_message(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a whole HTTP/1.1 response, JSON unless the headers have another type."""
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body))} | dict(headers or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {responses.get(status, 'Status')}\r\n{lines}\r\n".encode("latin-1") + body


def error_reply(status: int, error: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """Return an error in the format of the API."""
    return Reply(status, http_message(status, json.dumps({"error": error}).encode(), headers))


def _status_reply(deeds: Mapping[str, Any]) -> Reply:
    status, headers = int(deeds["status"]), deeds.get("headers")
    if "body" in deeds:
        return Reply(status, http_message(status, deeds["body"].encode(), headers))
    return error_reply(status, deeds.get("error", {"message": f"by rule: {status}", "type": "by_rule"}), headers)
