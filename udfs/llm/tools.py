"""The tools that a model may call while it answers, executed where the call is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from untold.udfs.quantities import MAX_LENGTH, compare_quantities

# Each round is a call that is paid for. One is enough to compare what an answer names; models that call on and on do
# not stop by themselves.
MAX_ROUNDS = 4
MAX_CALLS_OF_A_ROUND = 8
# Room for two quantities of the greatest length with every character as an escape of JSON (\u0000), and their names.
LONGEST_ARGUMENTS = 16 * MAX_LENGTH

_SIDES = ("first", "second")
COMPARE_QUANTITIES: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "compare_quantities",
        "description": (
            "Compares two physical quantities, whatever their units: says whether they are equal within the rounding "
            "that they are written with, which one is larger, or why they cannot be compared."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                side: {"type": "string", "description": f"The {side} quantity as written, such as 8,000 nmi"}
                for side in _SIDES
            },
            "required": list(_SIDES),
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class ToolCall:
    """A call as the model asks for it; `arguments` should be the JSON of an object."""

    id: str
    name: str
    arguments: str


def read_tool_calls(message: Any) -> tuple[ToolCall, ...]:
    """The calls of a chat message, at most `MAX_CALLS_OF_A_ROUND`; none where it has no list of them. Never raises."""
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not isinstance(calls, list):
        return ()
    return tuple(_read_call(call, number) for number, call in enumerate(calls[:MAX_CALLS_OF_A_ROUND]))


def _read_call(call: Any, number: int) -> ToolCall:
    """A call as it was sent, of any shape: what is missing or of another type is empty, and answered with an error."""
    function = call.get("function") if isinstance(call, Mapping) else None
    fields = function if isinstance(function, Mapping) else {}
    name, arguments = fields.get("name"), fields.get("arguments")
    given = call.get("id") if isinstance(call, Mapping) else None
    return ToolCall(
        id=_text(given) or f"call_{number}",
        name=_text(name),
        arguments=_as_json(arguments) if isinstance(arguments, Mapping) else _text(arguments),
    )


def _text(value: Any) -> str:
    """The value if it is text, lone surrogates replaced, since it is sent back and stored; else empty."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""


def _as_json(arguments: Mapping[str, Any]) -> str:
    """The text of arguments that an endpoint has parsed already."""
    return json.dumps(arguments)


def run_tool(call: ToolCall) -> str:
    """The tool's answer, JSON: what it says, or `error` where the call cannot be understood. Never raises.

    >>> run_tool(ToolCall("call_0", "compare_quantities", '{"first": "1 km", "second": "900 m"}'))
    '{"outcome": "first_larger"}'
    """
    if call.name != COMPARE_QUANTITIES["function"]["name"]:
        return json.dumps({"error": "there is no such tool"})
    if len(call.arguments) > LONGEST_ARGUMENTS:
        return json.dumps({"error": "the arguments are too long"})
    try:
        arguments = json.loads(call.arguments)
    # What the model is told it may mend in its next turn, so that no call of a tool is a failure of the request.
    except (ValueError, RecursionError):
        return json.dumps({"error": "the arguments are no JSON"})
    first, second = map(arguments.get, _SIDES) if isinstance(arguments, Mapping) else (None, None)
    if not isinstance(first, str) or not isinstance(second, str):
        return json.dumps({"error": f"the arguments {' and '.join(_SIDES)} must be texts"})
    return compare_quantities(first, second).to_json()


def exchange(text: str | None, calls: tuple[ToolCall, ...], results: list[str]) -> list[dict[str, Any]]:
    """The turns that a conversation goes on with: the model's with its calls, and one with each tool's answer."""
    asked = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    answered = [
        {"role": "tool", "tool_call_id": call.id, "content": result}
        for call, result in zip(calls, results, strict=True)
    ]
    return [{"role": "assistant", "content": text, "tool_calls": asked}, *answered]


def trace(calls: tuple[ToolCall, ...], results: list[str]) -> list[dict[str, str]]:
    """What is kept of a round: name, arguments and result of each call."""
    return [
        {"name": call.name, "arguments": call.arguments, "result": result}
        for call, result in zip(calls, results, strict=True)
    ]
