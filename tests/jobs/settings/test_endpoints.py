from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.settings.cases import SERVER, load, problems, write
from untold.jobs.settings.layers import shipped_names

PRICED = tuple(f"llm.price_per_million_{kind}_tokens=1" for kind in ("prompt", "completion"))


@pytest.mark.parametrize(
    ("overrides", "environ", "options", "endpoint", "embedded"),
    [
        ((), {"OPENAI_API_KEY": "k"}, {}, "openai", False),
        ((), {"OPENAI_BASE_URL": "http://h/v1"}, {}, "openai", False),
        ((), {}, {}, "local", True),
        ((), {"OPENAI_API_KEY": ""}, {}, "local", True),
        (("llm.max_tokens=9",), {"OPENAI_API_KEY": "k"}, {}, "openai", False),
        (SERVER, {"OPENAI_API_KEY": "k"}, {}, None, False),
        (("llm.local_model=/m.gguf",), {"OPENAI_API_KEY": "k"}, {"installed": False}, "local", True),
        ((), {"OPENAI_API_KEY": "k"}, {"endpoint": "local"}, "local", True),
        (SERVER, {}, {"endpoint": "local", "installed": False}, "local", False),
        ((), {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://h"}, {"demo": True}, "local", True),
        (("llm.max_concurrency=1",), {"OPENAI_API_KEY": "k"}, {"demo": True}, "local", True),
        (("llm.model=m",), {"OPENAI_API_KEY": "k"}, {"demo": True}, "openai", False),
        ((), {"OPENAI_API_KEY": "k"}, {"demo": True, "endpoint": "openai"}, "openai", False),
        ((), {"OPENAI_API_KEY": "k", "UNTOLD_LLM__ENDPOINT": "openai"}, {"demo": True}, "openai", False),
        (SERVER, {"OPENAI_API_KEY": "k"}, {"demo": True}, None, False),
        ((), {}, {"judged": True, "installed": False}, "judge", False),
        ((), {}, {"judged": True, "demo": True}, "judge", False),
        ((), {"OPENAI_API_KEY": "k"}, {"judged": True}, "openai", False),
        (("llm.local_model=/m.gguf",), {}, {"judged": True}, "local", True),
        (SERVER, {}, {"judged": True}, None, False),
        ((), {"OPENAI_API_KEY": "k"}, {"endpoint": "judge"}, "judge", False),
    ],
)
def test_endpoint_choice(
    overrides: Sequence[str], environ: dict[str, str], options: dict[str, Any], endpoint: str | None, embedded: bool
) -> None:
    resolved = load(*overrides, environ=environ, **options)
    assert (resolved.settings.llm.endpoint, resolved.embedded) == (endpoint, embedded)


@pytest.mark.parametrize(
    ("overrides", "options", "parts"),
    [
        ((), {"installed": False}, ("OPENAI_API_KEY", "llm.base_url=", "pip install 'untold[local]'")),
        ((), {"installed": False, "demo": True}, ("pip install 'untold[local]'", "--endpoint")),
        ((), {"installed": False, "endpoint": "local"}, ("llm.endpoint=local", "pip install 'untold[local]'")),
        ((), {"endpoint": "openai"}, ("OPENAI_API_KEY: not set",)),
        (("llm.api_key_env=MINE",), {"endpoint": "openai"}, ("MINE: not set",)),
        (("llm.model=m",), {"endpoint": "openrouter"}, ("OPENROUTER_API_KEY: not set",)),
        (("llm.base_url=http://h/v1",), {}, ("llm.model is not set",)),
        ((), {"endpoint": "vllm"}, ("llm.model is not set", "vllm")),
        (("llm.model=m",), {}, ("llm.model=m (--set): has no endpoint",)),
        (("llm.model=m",), {"judged": True}, ("llm.model=m (--set): has no endpoint",)),
        (("llm.model=m",), {"endpoint": "judge"}, ("llm.model=m (--set): must be judge",)),
        (("llm.backend=spool",), {"endpoint": "judge"}, ("llm.backend=spool (--set): needs llm.base_url",)),
        (("llm.backend=batch",), {"endpoint": "judge"}, ("llm.backend=batch (--set): must be process with the judge",)),
        ((*SERVER, "budget.max_cost=1"), {}, ("budget.max_cost=1 (--set): needs llm.price_per_million",)),
        (
            (*SERVER, *PRICED, "stages.extract_facts.price_per_million_prompt_tokens=null", "budget.max_cost=1"),
            {},
            ("budget.max_cost=1 (--set): needs stages.extract_facts.price_per_million_prompt_tokens and",),
        ),
    ],
)
def test_a_missing_setting_of_the_endpoint_is_one_line(
    overrides: Sequence[str], options: dict[str, Any], parts: Sequence[str]
) -> None:
    (line,) = problems(*overrides, **options)
    assert all(part in line for part in parts)


def test_the_judge_writes_no_text_and_has_no_price() -> None:
    settings = load("budget.max_cost=1", endpoint="judge").settings
    assert settings.llm.is_judge
    assert (settings.summarise_contexts, settings.longrecall.resolve_coreference) == (False, False)
    assert (settings.icat.variant, settings.llm.price_per_million_prompt_tokens) == ("s", 0)
    assert not load("llm.base_url=http://h/v1", endpoint="judge").settings.llm.is_judge
    assert not load(*SERVER).settings.llm.is_judge


@pytest.mark.parametrize("endpoint", [None, "openai"])
def test_openai_base_url_moves_the_preset_and_needs_no_key(endpoint: str | None) -> None:
    resolved = load(environ={"OPENAI_BASE_URL": "http://h/v1"}, endpoint=endpoint)
    assert resolved.settings.llm.base_url == "http://h/v1"
    assert resolved.sources["llm.base_url"] == "OPENAI_BASE_URL"
    assert resolved.settings.llm.model == "gpt-4.1-mini"


@pytest.mark.parametrize(
    ("overrides", "environ", "endpoint", "named"),
    [
        ((), {"OPENAI_API_KEY": "k"}, None, "OPENAI_API_KEY"),
        ((), {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://h/v1"}, None, "OPENAI_API_KEY"),
        ((), {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://h/v1"}, "openai", "OPENAI_API_KEY"),
        ((), {"OPENAI_API_KEY": "k", "OPENROUTER_API_KEY": "r"}, "openrouter", "OPENROUTER_API_KEY"),
        ((), {"OPENAI_API_KEY": "k"}, "vllm", None),
        ((), {"OPENAI_API_KEY": "k"}, "local", None),
        (SERVER, {"OPENAI_API_KEY": "k"}, None, None),
        (SERVER, {"OPENAI_API_KEY": "k"}, "openai", None),
        (SERVER, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://h/v1"}, "openai", None),
        ((*SERVER, "llm.api_key_env=null"), {"OPENAI_API_KEY": "k"}, "openai", None),
        ((*SERVER, "llm.api_key_env=OPENAI_API_KEY"), {"OPENAI_API_KEY": "k"}, None, "OPENAI_API_KEY"),
        (SERVER, {"OPENAI_API_KEY": "k", "UNTOLD_LLM__API_KEY_ENV": "MINE"}, "openai", "MINE"),
        (("llm.api_key_env=MINE",), {"MINE": "k"}, "openai", "MINE"),
        ((), {"OPENAI_API_KEY": "k", "UNTOLD_LLM__BASE_URL": "https://h/v1"}, "openai", None),
    ],
)
def test_a_key_is_only_sent_to_its_endpoint(
    overrides: Sequence[str], environ: dict[str, str], endpoint: str | None, named: str | None
) -> None:
    resolved = load("llm.model=m", *overrides, environ=environ, endpoint=endpoint)
    assert resolved.settings.llm.api_key_env == named


def test_a_preset_file_names_the_key_of_its_own_address(tmp_path: Path) -> None:
    preset = write(tmp_path, "llm: {base_url: 'https://h/v1', model: m, api_key_env: MINE}", "mine.yaml")
    assert load(endpoint=str(preset)).settings.llm.api_key_env == "MINE"
    assert load("llm.base_url=https://other/v1", endpoint=str(preset)).settings.llm.api_key_env is None


def test_a_preset_without_its_key_is_an_error() -> None:
    (line,) = problems("llm.api_key_env=null", endpoint="openai", environ={"OPENAI_API_KEY": "k"})
    assert line.startswith("llm.api_key_env: not set, and the endpoint openai needs its key")


def test_base_url_setting_beats_openai_base_url_and_needs_no_key() -> None:
    environ = {"OPENAI_BASE_URL": "http://other/v1"}
    assert load("llm.base_url=http://h/v1", environ=environ, endpoint="openai").settings.llm.base_url == "http://h/v1"
    assert load("llm.base_url=http://h/v1", endpoint="openai").settings.llm.model == "gpt-4.1-mini"


def test_a_preset_file_of_the_user(tmp_path: Path) -> None:
    preset = write(
        tmp_path, "llm: {base_url: 'http://h/v1', model: m}\nstages.mine_questions.max_tokens: 5", "mine.yaml"
    )
    settings = load(endpoint=str(preset)).settings
    assert (settings.llm.model, settings.stages["mine_questions"].max_tokens) == ("m", 5)


@pytest.mark.parametrize("text", ["completion_store: x", "llm.endpoint: openai"])
def test_a_preset_only_sets_the_llm_and_stages(tmp_path: Path, text: str) -> None:
    preset = write(tmp_path, text, "mine.yaml")
    (line,) = problems(*SERVER, endpoint=str(preset))
    assert "a preset sets only llm.* and stages.*" in line


def test_shipped_presets_load() -> None:
    names = shipped_names("endpoints")
    assert names == ["anthropic", "judge", "local", "ollama", "openai", "openai-reasoning", "openrouter", "vllm"]
    environ = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY"), "k")
    for name in set(names) - {"judge"}:
        assert load("llm.model=m", endpoint=name, environ=environ).settings.llm.endpoint == name


def test_openai_preset_has_its_prices() -> None:
    llm = load(environ={"OPENAI_API_KEY": "k"}).settings.llm
    assert (llm.price_per_million_prompt_tokens, llm.price_per_million_completion_tokens) == (0.40, 1.60)


def test_a_search_service_of_the_user_gets_only_its_own_key() -> None:
    assert load(*SERVER).settings.search.api_key_env == "BRAVE_API_KEY"
    moved = load(*SERVER, "search.base_url=http://h/search")
    assert moved.settings.search.api_key_env is None
    named = load(*SERVER, "search.base_url=http://h/search", "search.api_key_env=MINE")
    assert named.settings.search.api_key_env == "MINE"


def test_an_endpoint_for_embeddings_needs_a_model_and_with_a_budget_a_price() -> None:
    assert problems(*SERVER, "embeddings.base_url=http://h/v1") == [
        "embeddings.model is not set, and embeddings.base_url has no model. Use --set embeddings.model=NAME"
    ]
    (line,) = problems(
        *SERVER, *PRICED, "budget.max_cost=1", "embeddings.base_url=http://h/v1", "embeddings.model=embedder"
    )
    assert line == "budget.max_cost=1 (--set): needs embeddings.price_per_million_tokens"


@pytest.mark.parametrize("name", ["model", "input", "encoding_format"])
def test_a_request_for_embeddings_has_no_duplicate_values(name: str) -> None:
    (line,) = problems(*SERVER, f"embeddings.extra_body.{name}=x")
    assert name in line
