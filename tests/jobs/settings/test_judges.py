"""Read the setting `judges`: endpoints of presets, of `llm.*` and of judges, and errors of one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from untold.jobs.metrics import METRICS, stages_of
from untold.jobs.metrics.base import note_settings
from untold.jobs.settings.loading import load_settings
from untold.jobs.settings.model import (
    PRICES,
    Settings,
    SettingsError,
    prices_for,
    result_settings,
    settings_of_judges,
)

ADDRESS = "http://here/v1"


def load(judges: Any, *overrides: str) -> Settings:
    words = [f"llm.base_url={ADDRESS}", "llm.model=main", f"judges={json.dumps(judges)}", *overrides]
    return load_settings(None, words, None, {}, local_installed=lambda: False).settings


def test_a_judge_has_the_endpoint_of_its_preset_its_own_or_that_of_the_run() -> None:
    judges = [{"model": "a"}, {"endpoint": "anthropic", "model": "b"}, {"base_url": "http://there/v1", "model": "c"}]
    settings = load(
        judges, "llm.api_key_env=MINE", 'llm.extra_headers={"team": "x"}', "stages.rate_nuggets.model=other"
    )
    found = {model: own.llm for model, own in settings_of_judges(settings).items()}
    assert [(llm.model, llm.base_url, llm.api_key_env, llm.protocol, llm.extra_headers) for llm in found.values()] == [
        ("a", ADDRESS, "MINE", "chat", {"team": "x"}),
        ("b", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "messages", {}),
        ("c", "http://there/v1", None, "chat", {}),
    ]
    assert all(
        "model" not in own.stages["rate_nuggets"].model_fields_set for own in settings_of_judges(settings).values()
    )


def test_only_models_and_the_rule_identify_an_output() -> None:
    one = load([{"model": "a"}, {"model": "b"}])
    other = load([{"model": "a", "base_url": "http://there/v1"}, {"model": "b", "requests_per_minute": 60}])
    assert result_settings(one) == result_settings(other)
    assert result_settings(one)["judges"] == ["a", "b"]
    assert result_settings(one) != result_settings(load([{"model": "a"}, {"model": "b"}], "judges_rule=all"))
    assert "judges" not in result_settings(Settings())


def test_a_judge_has_only_prices_of_its_own_model() -> None:
    free = dict.fromkeys(PRICES, 0.0)
    judges = [
        {"model": "main"},
        {"model": "other"},
        {"model": "main-elsewhere", "base_url": "http://there/v1"},
        {"endpoint": "openai", "model": "gpt-4.1-mini"},
        {"endpoint": "openai", "model": "gpt-4.1"},
        {"model": "free", **free},
    ]
    priced = [f"llm.{name}=2" for name in PRICES]
    settings = load(judges, *priced, "stages.rate_nuggets.price_per_million_prompt_tokens=9")
    found = {
        model: (prices.prompt, prices.completion)
        for model, own in settings_of_judges(settings).items()
        for prices in [prices_for(own, "rate_nuggets")]
    }
    unknown = (None, None)
    assert found == {
        "main": (2.0, 2.0),
        "other": unknown,
        "main-elsewhere": unknown,
        "gpt-4.1-mini": (0.4, 1.6),
        "gpt-4.1": unknown,
        "free": (0.0, 0.0),
    }
    lines: list[str] = []
    note_settings(settings, [METRICS["nuggets"]], lines.append)
    lacking = "other, main-elsewhere, gpt-4.1"
    assert lines == [f"judges: {lacking} have no price, so the total cost is incomplete"]
    with pytest.raises(SettingsError, match=rf"budget\.max_cost.*of the judges {lacking}") as error:
        load(judges, *priced, "budget.max_cost=1")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("judges", "overrides", "message"),
    [
        ([{"model": "a"}], (), "two or more judges"),
        ([{"model": "a"}, {"model": "a", "base_url": "http://there/v1"}], (), "different models"),
        ([{"model": "a"}, {"endpoint": "nobody", "model": "b"}], (), "endpoint must be one of anthropic"),
        ([{"model": "a"}, {"base_url": "http://there/v1"}], (), "different models"),
        ([{"model": "a"}, "b"], (), "must be a list of judges"),
        ([{"model": "a"}, {"model": "b"}], ("llm.backend=batch",), "llm.backend=process"),
    ],
)
def test_a_wrong_panel_is_an_error_of_one_line(judges: Any, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as error:
        load(judges, *overrides)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("metric", "overrides", "message"),
    [
        ("nli", (), "nli has no panel of judges, only e2e, icat"),
        ("e2e", ("e2e.conflicts=true",), "conflicts of e2e"),
        ("icat", ("grounding.verifier=judge",), "grounding.verifier is a classifier"),
    ],
)
def test_a_metric_without_a_panel_is_an_error_of_one_line(
    metric: str, overrides: tuple[str, ...], message: str
) -> None:
    settings = load([{"model": "a"}, {"model": "b"}], *overrides)
    with pytest.raises(SettingsError, match=message) as error:
        stages_of((metric,), settings)
    assert len(str(error.value).splitlines()) == 1
