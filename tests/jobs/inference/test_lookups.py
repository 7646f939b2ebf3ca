"""Test lookups under different settings: the content of the keys, the calls of the endpoints, and the costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.udfs.retrieval.onnx_files import write_classifier, write_lookup, write_tokenizer
from untold.jobs.inference.backends.job import Job
from untold.jobs.inference.stage.bindings import bind_lookup, bind_stage
from untold.jobs.inference.stage.call_settings import RunEndpoint, call_settings, calls_for, count_actors, with_given
from untold.jobs.plan import cost_and_hours
from untold.jobs.settings.loading import load_given
from untold.jobs.settings.model import Settings, SettingsError
from untold.udfs.llm.calls import CallContext
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
        {"max_tokens": 9},  # only for a local model
        {"pooling": "cls"},
    ],
)
def test_a_setting_without_effect_on_the_vector_is_not_in_its_key(change: dict[str, Any]) -> None:
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


def test_a_classifier_is_known_by_its_temperature(tmp_path: Path) -> None:
    write_classifier(tmp_path, ["bees"], ["entailment", "neutral"])
    digests = set()
    for temperature in ({}, {"temperature": 1.0}, {"temperature": 1.5}):
        config = {"id2label": {"0": "entailment", "1": "neutral"}, **temperature}
        (tmp_path / "config.json").write_text(json.dumps(config))
        digests.add(digest("classify_entailment", grounding={"verifier": str(tmp_path)}))
    assert len(digests) == 2


def test_the_judge_is_one_classifier_for_contexts_and_claims() -> None:
    stage = bind_stage("classify_entailment", settings_for(nli={"classifier": "judge"}))
    assert (stage.model, stage.api) == ("judge", "local")
    assert stage.extra_body["relations"] == ["entailment", "neutral", "contradiction"]
    claims = digest("classify_entailment", grounding={"verifier": "judge"}, nli={"classifier": "judge"})
    assert claims == digest("classify_entailment", nli={"classifier": "judge"})


JUDGE: dict[str, Any] = {"model": "judge", "labels": ["entailment", "neutral", "contradiction"], "separator": "[SEP]"}


def server(api: str = "classify", threshold: float = 0.9, **given: Any) -> dict[str, Any]:
    nli = {"classifier_url": f"http://h/{api}", "classifier_threshold": threshold}
    return {"nli": nli, "classifier": {**JUDGE, **given}}


def test_a_server_is_known_by_api_model_classes_and_separator() -> None:
    plain = digest("classify_entailment", **server())
    changes: list[dict[str, Any]] = [
        {"model": "another"},
        {"labels": JUDGE["labels"][::-1]},
        {"separator": " and "},
        {"api": "predict"},
        {"api": "score"},
    ]
    assert len({plain, *(digest("classify_entailment", **server(**change)) for change in changes)}) == 6
    same: list[dict[str, Any]] = [
        {"batch": 7},
        {"price_per_million_tokens": 2.0},
        {"threshold": 0.2},
        {"api": "v1/classify/"},
    ]
    assert {digest("classify_entailment", **server(**change)) for change in same} == {plain}
    verifier = {"grounding": {"verifier": "http://h/classify"}, "classifier": JUDGE}
    assert digest("classify_entailment", **verifier) == plain


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (server("rerank"), "nli.classifier_url: must end in"),
        (server(model=None), "classifier.model is not set"),
        (server(labels=None), "classifier.labels: /classify needs"),
        (server(labels=["LABEL_0", "LABEL_1"]), "classifier.labels: calls a class LABEL_0"),
        (server(separator=None), "classifier.separator: /classify accepts single texts"),
        (server("score", threshold=0.4), "nli.classifier_threshold: must be at least 0.5"),
        ({**server(), "budget": {"max_cost": 1.0}}, "budget.max_cost: a server that classifies needs"),
        (
            {**server(), "grounding": {"verifier": "http://other/classify"}},
            "nli.classifier and grounding.verifier must be equal",
        ),
    ],
)
def test_missing_settings_of_a_server_are_reported_before_the_first_request(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        bind_stage("classify_entailment", settings_for(**given))
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_a_missing_folder_is_reported_before_the_first_request(tmp_path: Path) -> None:
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
        **server("predict", api_key_env="JUDGE", price_per_million_tokens=2.0, max_concurrency=2, batch=9),
    )
    stages = [bind_lookup(name, settings) for name in ("embed_text", "web_search", "classify_entailment")]
    embed, search, judge = (call_settings(settings, stage, "") for stage in stages)
    assert (judge.section, judge.batch, judge.api_key_env, judge.limits) == (
        "classifier",
        9,
        "JUDGE",
        Limits(None, None, 2),
    )
    assert judge.prices.cost(500_000, 0, 200) == pytest.approx(1.0)
    planned = cost_and_hours(settings, stages[2], 100, {"prompt_tokens": 500_000, "completion_tokens": 0})
    assert (planned["cost"], [calls_for(settings, stage, 100) for stage in stages]) == (1.0, [15, 100, 12])
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
    urls = [endpoint.base_url(api) for api in ("chat", "embeddings", "search", "search", "predict")]
    assert urls == ["http://m/v1", "http://h/v1", "http://s", "http://s", "http://h/predict"]
    # Each plain-text address is reported once
    assert len(notes) == 4


def test_a_job_of_a_classifier_moves_without_the_key_that_was_named_for_its_address() -> None:
    settings = settings_for(**server("predict", api_key_env="JUDGE"))
    stage = bind_lookup("classify_entailment", settings)
    job = Job("/requests", "/store", "run", CallContext(stage), call_settings(settings, stage, "http://h/predict"))

    def given(*sets: str) -> tuple[str, str | None]:
        calls = with_given(job, load_given(None, sets, {})).settings
        return calls.base_url, calls.api_key_env

    assert given("classifier.batch=3") == given("nli.classifier_url=http://h/predict") == ("http://h/predict", "JUDGE")
    assert given("nli.classifier_url=http://i/predict") == ("http://i/predict", None)
    assert given("nli.classifier_url=http://i/predict", "classifier.api_key_env=NEW") == ("http://i/predict", "NEW")
