from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.llm.keys import Stage, canonical_json

RECORDED = json.loads((Path(__file__).parent / "recorded_keys.json").read_text(encoding="utf-8"))
STAGE = Stage(
    name="summarise_context",
    variables=("query", "text"),
    model="m",
    template="{{ query }}\n{{ text }}",
    temperature=0.0,
    top_p=1.0,
    max_tokens=100,
    extra_body={"reasoning": {"effort": "low"}, "seed": 7},
)
VARIABLES = {"query": "Who?", "text": "A text."}
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def stage_of(case: Mapping[str, Any]) -> Stage:
    given_fields = dict(case["stage"])
    given_fields["variables"] = tuple(given_fields["variables"])
    given_fields["tools"] = tuple(given_fields.get("tools", ()))
    return Stage(**given_fields)


def hashed(text: str) -> str:
    return blake2b(text.encode("utf-8"), digest_size=16).hexdigest()


def plain_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def without_nulls(value: Any) -> Any:
    """Return the value of a client that omits nulls and has only one type of number."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return int(value) if isinstance(value, float) and value == int(value) else value


def expected_digest(case: Mapping[str, Any]) -> str:
    """Compute the digest from its definition, without the code under test."""
    stage = case["stage"]
    sent = {name: stage.get(name) for name in ("temperature", "top_p", "max_tokens")} | stage.get("extra_body", {})
    identity = {
        "version": 1,
        "stage": stage["name"],
        "model": stage.get("model_key", stage["model"]),
        "api": stage.get("api", "chat"),
        "template": stage["template"],
        "tools": stage.get("tools"),
        "decoding": sent,
    }
    return hashed(plain_json(without_nulls(identity)))


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_recorded_keys_never_change(case: Mapping[str, Any]) -> None:
    stage = stage_of(case)
    assert (stage.digest, stage.request_id(case["variables"])) == (case["digest"], case["request_id"])


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_recorded_keys_equal_the_definition(case: Mapping[str, Any]) -> None:
    digest = expected_digest(case)
    variables = plain_json(without_nulls(case["variables"]))
    assert (digest, hashed(digest + variables)) == (case["digest"], case["request_id"])


def test_ten_distinct_keys_are_recorded() -> None:
    assert len({case["request_id"] for case in RECORDED}) == 10


def test_the_first_recorded_key_is_this_literal() -> None:
    assert RECORDED[0]["request_id"] == "322b6915065373cb40fe54a0f9047615"


def test_a_key_is_32_hex_characters() -> None:
    key = STAGE.request_id(VARIABLES)
    assert len(key) == 32
    assert set(key) <= set("0123456789abcdef")


CHANGES: dict[str, dict[str, Any]] = {
    "stage": {"name": "restate_answer"},
    "model": {"model": "n"},
    "model_key": {"model_key": "sha256:00"},
    "api": {"api": "completions"},
    "template byte": {"template": STAGE.template.replace("\n", " ")},
    "template blank": {"template": STAGE.template + "\n"},
    "tools": {"tools": ({"type": "function"},)},
    "temperature": {"temperature": 0.1},
    "temperature not sent": {"temperature": None},
    "top_p": {"top_p": 0.9},
    "top_p not sent": {"top_p": None},
    "max_tokens": {"max_tokens": 101},
    "extra_body value": {"extra_body": {"reasoning": {"effort": "high"}, "seed": 7}},
    "extra_body field": {"extra_body": {"reasoning": {"effort": "low"}}},
    "extra_body type": {"extra_body": {"reasoning": {"effort": "low"}, "seed": "7"}},
    "salt": {"salt": "2026-11-23"},
    "another salt": {"salt": "2026-11-24"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_setting_that_changes_a_completion_changes_the_key(change: Mapping[str, Any]) -> None:
    assert replace(STAGE, **change).request_id(VARIABLES) != STAGE.request_id(VARIABLES)


def test_all_changes_have_keys_of_their_own() -> None:
    keys = {replace(STAGE, **change).digest for change in CHANGES.values()}
    assert len(keys) == len(CHANGES)


@pytest.mark.parametrize("name", ["query", "text"])
def test_every_variable_changes_the_key(name: str) -> None:
    assert STAGE.request_id({**VARIABLES, name: VARIABLES[name] + " "}) != STAGE.request_id(VARIABLES)


def test_values_do_not_run_into_each_other() -> None:
    assert STAGE.request_id({"query": "ab", "text": "c"}) != STAGE.request_id({"query": "a", "text": "bc"})
    assert STAGE.request_id({"query": "a", "text": "b"}) != STAGE.request_id({"query": "b", "text": "a"})


def test_a_request_for_log_probabilities_is_not_in_the_key() -> None:
    assert replace(STAGE, rated=True).request_id(VARIABLES) == STAGE.request_id(VARIABLES)


def test_a_key_of_the_model_replaces_its_name() -> None:
    local = replace(STAGE, model_key="sha256:00")
    assert replace(local, model="other").digest == local.digest


def test_the_endpoint_is_not_in_the_key() -> None:
    names = {item.name for item in fields(Stage)}
    assert names.isdisjoint({"base_url", "api_key", "api_key_env", "timeout", "retries", "price", "endpoint", "run"})


def test_other_variables_are_not_in_the_key() -> None:
    assert STAGE.request_id({**VARIABLES, "sample_id": "s1"}) == STAGE.request_id(VARIABLES)


def test_a_null_parameter_equals_a_missing_parameter() -> None:
    with_null = replace(STAGE, extra_body={**STAGE.extra_body, "top_k": None})
    assert with_null.digest == STAGE.digest
    assert "top_k" not in with_null.decoding


def test_a_null_inside_extra_body_equals_a_missing_field() -> None:
    with_null = replace(STAGE, extra_body={"reasoning": {"effort": "low", "summary": None}, "seed": 7})
    assert with_null.digest == STAGE.digest


def test_no_tools_and_an_empty_list_of_tools_are_the_same() -> None:
    assert replace(STAGE, tools=()).digest == STAGE.digest


def test_zero_is_zero_in_either_type() -> None:
    assert replace(STAGE, temperature=0).digest == replace(STAGE, temperature=0.0).digest
    assert replace(STAGE, temperature=-0.0).digest == replace(STAGE, temperature=0.0).digest


def test_zero_is_not_absent() -> None:
    assert replace(STAGE, temperature=0.0).digest != replace(STAGE, temperature=None).digest


def test_true_is_not_one() -> None:
    assert canonical_json({"a": True}) != canonical_json({"a": 1})


def test_a_list_and_a_tuple_are_the_same() -> None:
    assert canonical_json({"a": ("x", "y")}) == canonical_json({"a": ["x", "y"]})


def test_order_in_a_list_matters() -> None:
    assert canonical_json(["a", "b"]) != canonical_json(["b", "a"])


def test_text_is_hashed_unchanged() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    assert STAGE.request_id({**VARIABLES, "text": composed}) != STAGE.request_id({**VARIABLES, "text": decomposed})


def test_what_is_not_json_has_no_key() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"temperature": float("nan")})


@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=6), st.randoms())
def test_the_order_of_keys_never_matters(value: dict[str, Any], random: Any) -> None:
    names = list(value)
    random.shuffle(names)
    assert canonical_json({name: value[name] for name in names}) == canonical_json(value)


@given(JSON_VALUES)
def test_canonical_json_reads_back_as_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == without_nulls(value)


@given(JSON_VALUES)
def test_canonical_json_is_a_fixed_point(value: Any) -> None:
    once = canonical_json(value)
    assert canonical_json(json.loads(once)) == once


@given(JSON_VALUES, JSON_VALUES)
def test_different_values_have_different_json(one: Any, other: Any) -> None:
    same = plain_json(without_nulls(one)) == plain_json(without_nulls(other))
    assert (canonical_json(one) == canonical_json(other)) == same


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    st.text(alphabet=st.characters(exclude_categories=["Cs"])),
)
def test_two_pairs_of_texts_share_a_key_only_if_they_are_equal(one: str, other: str) -> None:
    keys = {STAGE.request_id({"query": a, "text": b}) for a, b in ((one, other), (other, one))}
    assert len(keys) == len({(one, other), (other, one)})
