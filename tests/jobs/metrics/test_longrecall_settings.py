"""Test the required settings of longrecall and the stages that it runs."""

from __future__ import annotations

from typing import Any

import pytest

from untold.jobs.metrics import METRICS, needs_of, optional_of, stages_of
from untold.jobs.metrics.longrecall import options_of
from untold.jobs.settings.model import Settings


def settings_for(**given: Any) -> Settings:
    return Settings.model_validate(given)


@pytest.mark.parametrize(
    ("given", "stages"),
    [
        ({}, ["extract_claims", "resolve_coreference", "match_one", "match_many", "embed_text"]),
        ({"segmentation": "sentences"}, ["resolve_coreference", "match_one", "match_many", "embed_text"]),
        (
            {"segmentation": "list", "resolve_coreference": False, "baselines": ["holistic"]},
            ["match_one", "match_many", "embed_text", "match_holistic"],
        ),
    ],
)
def test_stages_follow_from_the_settings(given: dict[str, Any], stages: list[str]) -> None:
    assert stages_of(["longrecall"], settings_for(longrecall=given)) == stages


def test_references_are_needed_and_contexts_are_not() -> None:
    assert needs_of(["longrecall"], settings_for()) == ("query", "response", "references")
    assert optional_of(["longrecall"], Settings()) == ("references",)


@pytest.mark.parametrize(
    ("embeddings", "cosine", "used"),
    [
        ({}, None, 0.5),
        ({}, 0.7, 0.7),
        ({"model": "a/folder"}, None, 0.6),
        # A service can have a different model of the same name
        ({"base_url": "http://localhost/v1"}, None, 0.6),
    ],
)
def test_the_threshold_of_vectors_is_that_of_the_model(
    embeddings: dict[str, Any], cosine: float | None, used: float
) -> None:
    assert options_of(settings_for(embeddings=embeddings, longrecall={"cosine": cosine})).cosine == used


def test_every_measure_has_bounds_without_any_result() -> None:
    metric = METRICS["longrecall"]
    assert metric.bounds_of_unknown(settings_for(longrecall={"baselines": ["erecall"]})) == {
        "recall": (0, 1),
        "erecall": (0, 1),
        "references": (None, None),
        "generated": (None, None),
    }
    assert not metric.has_graph
