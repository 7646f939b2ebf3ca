"""Test the valid and invalid tool calls of models. Each call gets a result, so that the model can continue."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.llm.tools import (
    LONGEST_ARGUMENTS,
    MAX_CALLS_OF_A_ROUND,
    ToolCall,
    exchange,
    read_tool_calls,
    run_tool,
    trace,
)

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


def asked(arguments: Any, name: str = "compare_quantities") -> ToolCall:
    return ToolCall("c", name, arguments if isinstance(arguments, str) else json.dumps(arguments))


def message(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def call(name: Any = "compare_quantities", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": "call_7", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ("8,000 nmi", "14,800 km", "equal"),
        ("829.8 m", "2,722 ft", "equal"),
        ("2 °C", "3.6 °F", "incomparable"),
        ("2 km", "900 m", "first_larger"),
        ("5 kg", "5 km", "incomparable"),
        ("over 23 %", "25.4 %", "incomparable"),
        ("1e999999", "9**9**9", "incomparable"),
        ("\0", "5 km", "incomparable"),
    ],
)
def test_quantities_are_compared(first: str, second: str, outcome: str) -> None:
    assert json.loads(run_tool(asked({"first": first, "second": second})))["outcome"] == outcome


@pytest.mark.parametrize(
    "given_call",
    [
        asked("", "compare_quantities"),
        asked("{", "compare_quantities"),
        asked("[" * 2000),
        asked({"first": "5 km"}),
        asked({"first": "5 km", "second": 6}),
        asked(["5 km", "6 km"]),
        asked({"first": "5 km", "second": "6 km"}, "delete_everything"),
        asked({"first": "5" * LONGEST_ARGUMENTS, "second": "6 km"}),
    ],
)
def test_an_unreadable_call_gets_an_error(given_call: ToolCall) -> None:
    answer = json.loads(run_tool(given_call))
    assert set(answer) == {"error"}


def test_a_tool_never_repeats_its_arguments() -> None:
    assert "secret" not in run_tool(asked({"first": "secret", "second": "secret"}, "secret"))


@pytest.mark.parametrize("arguments", ['{"first": "5 km", "second": "6 km"}', {"first": "5 km", "second": "6 km"}])
def test_arguments_are_read_as_text_or_object(arguments: Any) -> None:
    (found,) = read_tool_calls(message(call(arguments=arguments)))
    assert json.loads(run_tool(found))["outcome"] == "second_larger"
    assert found.id == "call_7"


def test_calls_without_an_id_get_one_each() -> None:
    found = read_tool_calls(message(call(id=None), call(id=3)))
    assert [each.id for each in found] == ["call_0", "call_1"]


def test_the_number_of_answered_calls_per_turn_is_limited() -> None:
    assert len(read_tool_calls(message(*[call()] * 50))) == MAX_CALLS_OF_A_ROUND


@given(ANYTHING)
def test_any_message_can_be_read_and_answered(anything: Any) -> None:
    for shown in (anything, {"tool_calls": anything}, message(anything), message(call(anything, anything))):
        for found in read_tool_calls(shown):
            json.loads(run_tool(found))


def test_a_conversation_continues_with_each_result_under_its_call_id() -> None:
    calls = read_tool_calls(message(call(id="a"), call(id="b")))
    turns = exchange(None, calls, ["1", "2"])
    assert [turn["role"] for turn in turns] == ["assistant", "tool", "tool"]
    assert [each["id"] for each in turns[0]["tool_calls"]] == ["a", "b"]
    assert [(turn["tool_call_id"], turn["content"]) for turn in turns[1:]] == [("a", "1"), ("b", "2")]
    assert trace(calls, ["1", "2"])[1] == {"name": "compare_quantities", "arguments": "{}", "result": "2"}
