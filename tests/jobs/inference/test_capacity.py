from __future__ import annotations

from typing import Any

import pytest

from untold.jobs.inference.stage.expected_usage import (
    CALLS_PER_SECOND_AND_CORE,
    CLASSIFIED_PAIRS_PER_SECOND_AND_CORE,
    EMBEDDED_TEXTS_PER_SECOND_AND_CORE,
    Cluster,
    cluster_of,
)
from untold.jobs.settings.model import Settings


def row(requests: int, hours: float | None = None, stage: str = "evaluate_coverage") -> dict[str, Any]:
    return {
        "stage": stage,
        "requests": requests,
        "reused": 0,
        "hours": hours,
        "expected_requests": requests,
        "expected_completion_tokens": 100 * requests,
    }


def test_without_a_limit_hours_depend_on_the_cores() -> None:
    requests = 36_000_000
    takes = Cluster(machines=10, cores=8, flush_seconds=5).takes(row(requests))
    assert takes["cluster_hours"] == pytest.approx(10_000 / 80 / CALLS_PER_SECOND_AND_CORE)
    assert takes["machines"] is None
    assert takes["bytes"] == requests * (264 + 400)
    assert takes["files"] == 18_000 + -(-takes["bytes"] // 2**20)
    assert takes["store_requests"] == 3 * takes["files"]


def test_beyond_a_limit_no_machine_is_worth_having() -> None:
    requests = 36_000_000
    alone = requests / CALLS_PER_SECOND_AND_CORE / 8 / 3600
    assert Cluster(10, 8, 5).takes(row(requests, hours=alone)) | {"machines": 1, "cluster_hours": alone} == Cluster(
        10, 8, 5
    ).takes(row(requests, hours=alone))
    assert Cluster(10, 8, 5).takes(row(requests, hours=alone / 2.5))["machines"] == 3


def test_the_hours_of_a_limit_are_of_the_requests_that_are_expected() -> None:
    expected = row(1000, hours=10.0) | {"requests": 4000}
    assert Cluster(1, 8, 5).takes(expected)["cluster_hours"] == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("stage", "settings", "rate"),
    [
        ("embed_text", {}, EMBEDDED_TEXTS_PER_SECOND_AND_CORE),
        ("embed_text", {"embeddings": {"base_url": "http://127.0.0.1:1/v1"}}, CALLS_PER_SECOND_AND_CORE),
        ("classify_entailment", {"nli": {"classifier": "folder"}}, CLASSIFIED_PAIRS_PER_SECOND_AND_CORE),
        ("classify_entailment", {"nli": {"classifier_url": "http://127.0.0.1:1/score"}}, CALLS_PER_SECOND_AND_CORE),
        ("classify_entailment", {"grounding": {"verifier": "folder"}}, CLASSIFIED_PAIRS_PER_SECOND_AND_CORE),
        ("classify_relation", {"llm": {"model": "judge"}}, CLASSIFIED_PAIRS_PER_SECOND_AND_CORE),
        ("classify_relation", {}, CALLS_PER_SECOND_AND_CORE),
    ],
)
def test_a_model_in_tasks_has_its_own_rate(stage: str, settings: dict[str, Any], rate: float) -> None:
    cluster = cluster_of(2, 4, Settings.model_validate(settings))
    assert cluster.takes(row(3600, stage=stage))["cluster_hours"] == pytest.approx(1 / rate / 8)


def test_no_requests_need_no_actors() -> None:
    takes = Cluster(2, 8, 5).takes(row(0, hours=0.0))
    assert (takes["cluster_hours"], takes["files"], takes["store_requests"], takes["machines"]) == (0.0, 0, 0, None)
