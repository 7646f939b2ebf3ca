"""Lookups under settings: what their keys are made of, and how their endpoints are called and paid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.udfs.retrieval.onnx_files import write_classifier, write_lookup, write_tokenizer
from untold.jobs.asking.calling import call_settings, count_actors
from untold.jobs.asking.endpoint import RunEndpoint
from untold.jobs.asking.lookups import bind_lookup
from untold.jobs.asking.prompts import bind_stage
from untold.jobs.settings.model import Settings, SettingsError
from untold.udfs.llm.limiter import Limits
from untold.udfs.retrieval.local_models import LocalModelFileError

REMOTE = {"base_url": "http://h/v1", "model": "embedder"}


def settings_for(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


def digest(name: str = "embed_text", **sections: Any) -> str:
    return bind_lookup(name, settings_for(**sections)).digest


@pytest.mark.parametrize(
    "change",
    [
        {"model": "another"},
        {"extra_body": {"dimensions": 8}},
        {"query_prefix": "query: "},
        {"document_prefix": "passage: "},
    ],
)
def test_what_changes_a_vector_is_in_its_key(change: dict[str, Any]) -> None:
    assert digest(embeddings={**REMOTE, **change}) != digest(embeddings=REMOTE)


@pytest.mark.parametrize(
    "change",
    [
        {"base_url": "http://other/v1"},
        {"batch": 1},
        {"requests_per_minute": 5.0},
        {"price_per_million_tokens": 1.0},
        {"max_tokens": 9},  # of a local model alone
        {"pooling": "cls"},
    ],
)
def test_what_changes_no_vector_is_not_in_its_key(change: dict[str, Any]) -> None:
    assert digest(embeddings={**REMOTE, **change}) == digest(embeddings=REMOTE)


def test_of_a_local_model_the_files_count_and_how_they_are_used(tmp_path: Path) -> None:
    for name in ("one", "copy", "other"):
        write_tokenizer(tmp_path / name, ["bees"])
        write_lookup(tmp_path / name, np.ones((5, 3 if name == "other" else 2)))
    found = {name: digest(embeddings={"model": str(tmp_path / name)}) for name in ("one", "copy", "other")}
    assert found["one"] == found["copy"] != found["other"]
    for change in ({"pooling": "cls"}, {"max_tokens": 9}, {"query_prefix": "q"}):
        assert digest(embeddings={"model": str(tmp_path / "one"), **change}) != found["one"]
    write_tokenizer(tmp_path / "copy", ["honey"])
    assert digest(embeddings={"model": str(tmp_path / "copy")}) != found["one"]


def test_a_search_is_known_by_service_and_edition() -> None:
    plain = digest("web_search")
    assert plain == digest("web_search", search={"base_url": "http://h/search", "requests_per_minute": None})
    editions = {digest("web_search", search={"edition": edition}) for edition in (None, "1", "2")}
    assert len(editions) == 3
    assert plain in editions


def test_a_classifier_is_known_by_its_files_and_classes(tmp_path: Path) -> None:
    labels = ["entailment", "neutral", "contradiction"]
    for name, classes in (("one", labels), ("copy", labels), ("turned", labels[::-1])):
        write_classifier(tmp_path / name, ["bees"], classes)
    found = {
        name: digest("classify_entailment", grounding={"verifier": str(tmp_path / name)})
        for name in ("one", "copy", "turned")
    }
    assert found["one"] == found["copy"] != found["turned"]


def test_a_folder_that_is_none_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(LocalModelFileError, match=r"model\.onnx"):
        bind_stage("embed_text", settings_for(embeddings={"model": str(tmp_path)}))


def test_a_bounded_cost_needs_the_price_of_a_search() -> None:
    with pytest.raises(SettingsError, match=r"search\.price_per_thousand_requests"):
        bind_stage("web_search", settings_for(budget={"max_cost": 1.0}))


def test_each_api_has_the_endpoint_limits_and_prices_of_its_section() -> None:
    settings = settings_for(
        llm={"base_url": "http://m/v1", "requests_per_minute": 60_001.0, "api_key_env": "MODEL"},
        embeddings={
            **REMOTE,
            "tokens_per_minute": 9.0,
            "price_per_million_tokens": 2.0,
            "batch": 7,
            "max_concurrency": 3,
        },
        search={"base_url": "http://s", "api_key_env": "SEARCH", "price_per_thousand_requests": 5.0},
    )
    stages = [bind_lookup(name, settings) for name in ("embed_text", "web_search")]
    embed, search = (call_settings(settings, stage, "", "/store") for stage in stages)
    assert (embed.section, embed.batch, embed.api_key_env, embed.limits) == (
        "embeddings",
        7,
        None,
        Limits(None, 9.0, 3),
    )
    assert (search.section, search.batch, search.api_key_env, search.limits) == (
        "search",
        1,
        "SEARCH",
        Limits(60.0, None, 8),
    )
    assert embed.prices.cost(500_000, 0, 200) == search.prices.cost(500_000, 0, 200) == pytest.approx(1.0)
    assert [count_actors(settings, api) for api in ("chat", "embeddings", "search")] == [2, 1, 1]
    notes: list[str] = []
    endpoint = RunEndpoint(settings, embedded=False, wait=True, notify=notes.append)
    urls = [endpoint.base_url(api) for api in ("chat", "embeddings", "search", "search")]
    assert urls == ["http://m/v1", "http://h/v1", "http://s", "http://s"]
    # Each address in clear text is spoken of once
    assert len(notes) == 3
