"""Translate chat completions to Anthropic's Messages API and back.

Source: Anthropic's API reference, "Messages", and the types of the package `anthropic`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

MESSAGES_PATH: Final = "/messages"
KEY_HEADER: Final = "x-api-key"
HEADERS: Mapping[str, str] = MappingProxyType({"anthropic-version": "2023-06-01"})
# The API requires a limit
MAX_TOKENS = 4096
# The finish reasons of chat completions
_FINISHES = {
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "model_context_window_exceeded": "length",
}
# Fields of chat completions that the Messages API does not have
_UNKNOWN = ("logprobs", "top_logprobs", "stop", "response_format", "max_completion_tokens", "n")


def json_of(text: bytes | str) -> dict[str, Any]:
    """Return the JSON object of a text, or an empty one for another text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def message_body(body: bytes) -> bytes:
    """Return the JSON body of a message from the JSON body of a chat completion."""
    return json.dumps(message_of_chat(json.loads(body)), ensure_ascii=False, separators=(",", ":")).encode()


def chat_body(content: bytes) -> bytes:
    """Return the JSON body of a chat completion from the body of a message. Other bodies stay unchanged."""
    try:
        return json.dumps(chat_of_message(json_of(content))).encode()
    except (LookupError, TypeError, AttributeError):
        return content


def message_of_chat(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for a message from the request for a chat completion.

    The system turn is a field, and tools and their results are blocks. A temperature above 1 becomes 1. A `top_p` of 1
    is left out, because the API refuses both together. There are no log-probabilities. Unknown fields stay unchanged.
    """
    turns = list(chat["messages"])
    system = "\n\n".join(turn["content"] for turn in turns if turn["role"] == "system")
    params = {name: value for name, value in chat.items() if name not in (*_UNKNOWN, "messages")}
    params["max_tokens"] = chat.get("max_tokens") or chat.get("max_completion_tokens") or MAX_TOKENS
    params["messages"] = _messages(turn for turn in turns if turn["role"] != "system")
    if system:
        params["system"] = system
    if "temperature" in chat:
        params["temperature"] = min(1.0, chat["temperature"])
    if chat.get("top_p") == 1:
        del params["top_p"]
    if stop := chat.get("stop"):
        params["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if "tools" in chat:
        params["tools"] = [_tool(tool["function"]) for tool in chat["tools"]]
    if isinstance(chat.get("tool_choice"), str):
        params["tool_choice"] = {"type": {"required": "any"}.get(chat["tool_choice"], chat["tool_choice"])}
    if schema := (chat.get("response_format") or {}).get("json_schema"):
        params["output_config"] = {"format": {"type": "json_schema", "schema": schema["schema"]}}
    return params


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: function[name] for name in ("name", "description") if name in function}
    return {**said, "input_schema": function.get("parameters") or {"type": "object"}}


def _messages(turns: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the turns of a chat as messages. Consecutive results of tools are one turn of the user."""
    found: list[dict[str, Any]] = []
    before = ""
    for turn in turns:
        if turn["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}
            if before != "tool":
                found.append({"role": "user", "content": []})
            found[-1]["content"].append(block)
        elif calls := turn.get("tool_calls"):
            said = [{"type": "text", "text": turn["content"]}] if turn.get("content") else []
            found.append({"role": "assistant", "content": said + [_use(call) for call in calls]})
        else:
            found.append({"role": turn["role"], "content": turn["content"]})
        before = turn["role"]
    return found


def _use(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block for a call of a tool. Arguments that are not a JSON object are left out."""
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json_of(function["arguments"])}


def chat_of_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as a chat completion. Raises LookupError or TypeError for another body."""
    blocks = message["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    thoughts = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    said = {"role": "assistant", "content": text, "tool_calls": calls or None, "reasoning_content": thoughts or None}
    finish = message["stop_reason"]
    choice = {"index": 0, "message": said, "finish_reason": _FINISHES.get(finish, finish)}
    return {"model": message.get("model"), "choices": [choice], "usage": _usage(message["usage"])}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of a chat completion. Tokens of the cache belong to the prompt."""
    read, written = (usage.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    return {
        "prompt_tokens": usage["input_tokens"] + read + written,
        "completion_tokens": usage["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": read},
    }
