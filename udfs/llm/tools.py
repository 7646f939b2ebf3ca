"""Read the tool calls of a model, and run the tools in the process that sends the requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from untold.udfs.quantities import MAX_LENGTH, compare_quantities

# Each round is a paid call. One round is enough for a comparison, and some models never stop to call tools
MAX_ROUNDS = 4
MAX_CALLS_OF_A_ROUND = 8
# Enough for two quantities of the maximum length with each character as a JSON escape (\u0000), and for their names
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
    """A tool call of a model. `arguments` should be the JSON of an object."""

    id: str
    name: str
    arguments: str


def read_tool_calls(message: Any) -> tuple[ToolCall, ...]:
    """Return the tool calls of a chat message, at most `MAX_CALLS_OF_A_ROUND`. Never raises."""
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not isinstance(calls, list):
        return ()
    return tuple(_read_call(call, number) for number, call in enumerate(calls[:MAX_CALLS_OF_A_ROUND]))


def _read_call(call: Any, number: int) -> ToolCall:
    """Return a call of any shape. Missing fields and fields of a wrong type are empty, and `run_tool` reports them."""
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
    """Return a text without lone surrogates, because it is sent and stored. Return '' for other values."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""


def _as_json(arguments: Mapping[str, Any]) -> str:
    """Return the JSON of arguments that the endpoint has parsed."""
    return json.dumps(arguments)


def run_tool(call: ToolCall) -> str:
    """Run a tool and return its result as JSON, or an `error` for an invalid call. Never raises.

    >>> run_tool(ToolCall("call_0", "compare_quantities", '{"first": "1 km", "second": "900 m"}'))
    '{"outcome": "first_larger"}'
    """
    if call.name != COMPARE_QUANTITIES["function"]["name"]:
        return json.dumps({"error": "there is no such tool"})
    if len(call.arguments) > LONGEST_ARGUMENTS:
        return json.dumps({"error": "the arguments are too long"})
    try:
        arguments = json.loads(call.arguments)
    # The model can fix the call in its next turn, so an invalid call is not a failure of the request
    except (ValueError, RecursionError):
        return json.dumps({"error": "the arguments are no JSON"})
    first, second = map(arguments.get, _SIDES) if isinstance(arguments, Mapping) else (None, None)
    if not isinstance(first, str) or not isinstance(second, str):
        return json.dumps({"error": f"the arguments {' and '.join(_SIDES)} must be texts"})
    return compare_quantities(first, second).to_json()


def exchange(text: str | None, calls: tuple[ToolCall, ...], results: list[str]) -> list[dict[str, Any]]:
    """Return the next turns of a conversation: the turn of the model with its calls, and one turn per result."""
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
    """Return the stored record of a round: name, arguments and result of each call."""
    return [
        {"name": call.name, "arguments": call.arguments, "result": result}
        for call, result in zip(calls, results, strict=True)
    ]
