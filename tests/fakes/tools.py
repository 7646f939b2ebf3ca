"""Tool calls of the model server: their entries in a conversation, and the calls of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.fakes.questions import quantities_of

TOOL = "compare_quantities"
NO_TOOLS = {"message": "this model does not support tools", "type": "invalid_request_error"}
Call = dict[str, Any]


def conversation_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tools`: the request offers tools, and `outcome`: the last result of the tool, empty if invalid.

    If no tools are offered, or no tool was called, the entry is missing.
    """
    found: dict[str, Any] = {"tools": True} if body.get("tools") else {}
    last = (body.get("messages") or [{}])[-1]
    return found | {"outcome": _outcome(last.get("content"))} if last.get("role") == "tool" else found


def _outcome(content: Any) -> str:
    try:
        return str(json.loads(content).get("outcome", ""))
    except (ValueError, TypeError, AttributeError):
        return ""


def call(arguments: Any, name: str = TOOL) -> Call:
    """Return a call of the tool. Arguments are a text, or a value that becomes JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": text}}


def forced_call(body: Mapping[str, Any], payload: Mapping[str, Any], deeds: Mapping[str, Any]) -> Call | None:
    """Return the tool call that a rule forces for requests with tools, or None.

    `tool_garbage`: once, invalid JSON in `arguments` (or True), or an unknown `name`. `tool_loop`: at every turn, and
    with `obedient` only while `tool_choice` allows it.
    """
    if not body.get("tools"):
        return None
    if "tool_loop" in deeds and not (deeds["tool_loop"] == "obedient" and body.get("tool_choice") == "none"):
        return call(_arguments(payload))
    if "tool_garbage" in deeds and "outcome" not in payload:
        return call({}, "compare_apples") if deeds["tool_garbage"] == "name" else call('{"first": "5 km", "sec')
    return None


def _arguments(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the two lengths in the answers, or the answers themselves."""
    question, first, second = (str(payload.get(name, "")) for name in ("question", "first", "second"))
    return quantities_of(question, first, second) or {"first": first, "second": second}
