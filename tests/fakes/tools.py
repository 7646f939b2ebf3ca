"""Tool calls of the model server: what a conversation holds of them, and the calls that the model makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.fakes.questions import quantities_of

TOOL = "compare_quantities"
NO_TOOLS = {"message": "this model does not support tools", "type": "invalid_request_error"}
Call = dict[str, Any]


def conversation_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """`tools`: whether a request offers tools; `outcome`: what the tool said last, empty where that is no outcome.

    Without tools offered, and before one was called, the entry is missing.
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
    """A call of the tool; arguments that are a text stand as they are, others as JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": text}}


def forced_call(body: Mapping[str, Any], payload: Mapping[str, Any], deeds: Mapping[str, Any]) -> Call | None:
    """The call that a rule makes of any request that offers tools; None where no rule does.

    `tool_garbage`: once, `arguments` (or True) that are no JSON, or a `name` that no tool has. `tool_loop`: at every
    turn, with `obedient` as long as `tool_choice` allows it.
    """
    if not body.get("tools"):
        return None
    if "tool_loop" in deeds and not (deeds["tool_loop"] == "obedient" and body.get("tool_choice") == "none"):
        return call(_arguments(payload))
    if "tool_garbage" in deeds and "outcome" not in payload:
        return call({}, "compare_apples") if deeds["tool_garbage"] == "name" else call('{"first": "5 km", "sec')
    return None


def _arguments(payload: Mapping[str, Any]) -> dict[str, str]:
    """The two lengths that the answers state; else the answers themselves."""
    question, first, second = (str(payload.get(name, "")) for name in ("question", "first", "second"))
    return quantities_of(question, first, second) or {"first": first, "second": second}
