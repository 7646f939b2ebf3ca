"""Test the loaded settings: the decoding of each stage, the settings that change a result, and the values in JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.settings.cases import SERVER, load
from untold.jobs.run.session import spark_defaults
from untold.jobs.settings.fields import merge_patch
from untold.jobs.settings.model import (
    STAGE_NAMES,
    LlmSettings,
    Settings,
    SettingsError,
    StageSettings,
    decoding_for,
    result_settings,
)


def test_stage_overrides_decoding_and_null_is_not_unset() -> None:
    settings = load(
        *SERVER,
        "llm.extra_body={a: 1, b: {c: 1, d: 2}}",
        "stages.evaluate_coverage.temperature=null",
        "stages.evaluate_coverage.model=big",
        "stages.evaluate_coverage.extra_body={a: null, b: {c: 3}}",
        "stages.mine_questions.extra_body=null",
    ).settings
    own = decoding_for(settings, "evaluate_coverage")
    assert (own.model, own.temperature, own.top_p, own.max_tokens) == ("big", None, 1.0, 16_384)
    assert own.extra_body == {"b": {"c": 3, "d": 2}}
    assert decoding_for(settings, "mine_questions").extra_body == {}
    assert decoding_for(settings, "refine_questions").temperature == 0


def test_settings_for_all_stages_replace_the_shipped_defaults_of_single_stages() -> None:
    settings = load(*SERVER, "llm.max_tokens=300", "stages.mine_questions.max_tokens=500").settings
    limits = {name: decoding_for(settings, name).max_tokens for name in STAGE_NAMES}
    assert limits.pop("mine_questions") == 500
    assert set(limits.values()) == {300}


@pytest.mark.parametrize(
    ("stage", "tokens"), [("evaluate_coverage", 16_384), ("rate_relevance", 8_192), ("classify_relation", 4_096)]
)
def test_stages_with_long_completions_have_a_higher_default_limit(stage: str, tokens: int) -> None:
    assert decoding_for(load(*SERVER).settings, stage).max_tokens == tokens
    assert decoding_for(load(*SERVER, f"stages.{stage}.max_tokens=7").settings, stage).max_tokens == 7


def test_decoding_of_an_unknown_stage_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"stages\.nope"):
        decoding_for(Settings(), "nope")


stage_overrides = st.dictionaries(
    st.sampled_from(STAGE_NAMES),
    st.fixed_dictionaries(
        {},
        optional={
            "model": st.text(min_size=1),
            "api": st.sampled_from(["chat", "completions"]),
            "temperature": st.none() | st.floats(0, 2),
            "max_tokens": st.none() | st.integers(1, 10**6),
            "extra_body": st.none() | st.dictionaries(st.text("xyz"), st.none() | st.integers(), max_size=3),
        },
    ),
    max_size=3,
)


@given(stage_overrides)
def test_settings_survive_json(stages: dict[str, Any]) -> None:
    settings = Settings.model_validate({"stages": stages})
    again = Settings.model_validate_json(settings.model_dump_json())
    assert again == settings
    assert [decoding_for(again, name) for name in STAGE_NAMES] == [decoding_for(settings, name) for name in STAGE_NAMES]


json_patches = st.recursive(
    st.none() | st.integers(),
    lambda below: st.dictionaries(st.text("ab", min_size=1, max_size=1), below, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.text("ab", min_size=1, max_size=1), json_patches, max_size=2))
def test_merge_patch_is_idempotent(patch: dict[str, Any]) -> None:
    once = merge_patch({"a": 1}, patch)
    assert merge_patch(once, patch) == once


@pytest.mark.parametrize(
    "update",
    [
        {"llm": LlmSettings(requests_per_minute=5, price_per_million_prompt_tokens=1, max_attempts=9)},
        {"llm": LlmSettings(repeated_share=0.5)},
        {"llm": LlmSettings(base_url="http://h/v1", api_key_env="MINE", timeout_seconds=1, endpoint="vllm")},
        {"completion_store": "s", "fail_on_error": "none", "storage": {"options": {"s3": {"region": "eu-west-1"}}}},
        {"spark": {"conf": {"a": "b"}}, "ray": {"address": "auto"}, "budget": {"max_calls": 1}},
        {"embeddings": {"base_url": "http://h/v1", "batch": 1, "tokens_per_minute": 5, "max_concurrency": 2}},
        {"search": {"base_url": "http://h", "api_key_env": None, "requests_per_minute": None}},
    ],
)
def test_result_settings_omit_settings_without_effect_on_results(update: dict[str, Any]) -> None:
    assert result_settings(Settings.model_validate(update)) == result_settings(Settings())


@pytest.mark.parametrize(
    "update",
    [
        {"llm": {"model": "m"}},
        {"llm": {"temperature": None}},
        {"llm": {"extra_body": {"a": 1}}},
        {"llm": {"salt": "2026-11-23"}},
        {"llm": {"repeats": 2}},
        {"stages": {"evaluate_coverage": {"max_tokens": None}}},
        {"thresholds": {"relevance": 3}},
        {"summarise_contexts": False},
        {"nli": {"skip_implied": True}},
        {"qa": {"questions": "contexts"}},
        {"statistics": {"seed": 1}},
        {"embeddings": {"model": "m"}},
        {"embeddings": {"extra_body": {"dimensions": 8}}},
        {"embeddings": {"query_prefix": "query: "}},
        {"embeddings": {"max_tokens": 128}},
        {"search": {"edition": "2026-11"}},
        {"grounding": {"verifier": "folder"}},
    ],
)
def test_result_settings_contain_all_settings_that_change_results(update: dict[str, Any]) -> None:
    changed = result_settings(Settings.model_validate(update))
    assert changed != result_settings(Settings())
    assert json.loads(json.dumps(changed)) == changed


def test_result_settings_of_some_stages() -> None:
    settings = Settings(stages={"mine_questions": StageSettings(max_tokens=3)})
    assert result_settings(settings, ["evaluate_coverage"]) == result_settings(
        Settings(stages={}), ["evaluate_coverage"]
    )


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({}, "contexts"),
        ({"index": "kb"}, "index"),
        ({"index": "kb", "source": "web"}, "web"),
        ({"source": None}, "contexts"),
    ],
)
def test_a_named_index_is_the_default_source(given: dict[str, Any], source: str) -> None:
    settings = Settings.model_validate({"knowledge": given})
    assert (settings.knowledge.source, result_settings(settings)["knowledge"]["source"]) == (source, source)


def test_settings_are_frozen_and_refuse_unknown_keys() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().llm.model = "m"
    with pytest.raises(ValueError, match="Extra inputs"):
        Settings.model_validate({"llm": {"modle": "m"}})


def test_spark_defaults_are_key_and_value() -> None:
    defaults = spark_defaults()
    assert defaults["spark.sql.session.timeZone"] == "UTC"
    assert all(name.startswith("spark.") and value for name, value in defaults.items())
