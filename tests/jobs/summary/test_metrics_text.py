from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from tests.jobs.summary.test_nights import MEAN
from untold.jobs.summary.nights import metrics_text

NAME = 'model "a"\\b\nc'
USAGE = {
    "stage": "evaluate_coverage",
    "reused": 2,
    "answered": 7,
    "failed": 1,
    "unasked": 0,
    "calls": 9,
    "rate_limited": 1,
    "seconds": 3.0,
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "cost": 0.25,
}
MANIFEST: dict[str, Any] = {
    "counts": {"statuses": {"ok": 4}, "failures": 1},
    "summary": [
        {**MEAN, "mean": 0.75, "answer_rate": None},
        {**MEAN, "level": "system", "system": NAME, "failed": 1, "mean": 0.5, "answer_rate": 1.0},
    ],
    "settings": {"llm": {"requests_per_minute": 600}},
    "starts": [{"ended_at": "2026-11-21T02:40:00+00:00", "usage": [USAGE]}],
}


@pytest.mark.parametrize("read", [parser, openmetrics])
def test_both_formats_read_the_same(read: Any) -> None:
    families = list(read.text_string_to_metric_families(metrics_text(MANIFEST, 4)))
    assert {one.type for one in families} == {"gauge"}
    assert all(one.documentation for one in families)
    found = {(each.name, *each.labels.values()): each.value for one in families for each in one.samples}
    assert found == {
        ("untold_exit_code",): 4,
        ("untold_ended_timestamp_seconds",): 1795228800.0,
        ("untold_samples", "ok"): 4,
        ("untold_failures",): 1,
        **{
            ("untold_requests", "evaluate_coverage", outcome): USAGE[outcome]
            for outcome in ("reused", "answered", "failed", "unasked")
        },
        ("untold_calls", "evaluate_coverage"): 9,
        ("untold_rate_limited", "evaluate_coverage"): 1,
        ("untold_prompt_tokens", "evaluate_coverage"): 100,
        ("untold_completion_tokens", "evaluate_coverage"): 20,
        ("untold_cost", "evaluate_coverage"): 0.25,
        ("untold_stage_seconds", "evaluate_coverage"): 3,
        ("untold_limit_used_ratio", "evaluate_coverage"): 0.3,
        ("untold_scored", "e2e", ""): 4,
        ("untold_scored", "e2e", NAME): 4,
        ("untold_failed", "e2e", ""): 0,
        ("untold_failed", "e2e", NAME): 1,
        ("untold_mean", "e2e", ""): 0.75,
        ("untold_mean", "e2e", NAME): 0.5,
        ("untold_answer_rate", "e2e", NAME): 1,
    }


def test_a_run_without_figures_has_its_exit_code() -> None:
    assert "untold_exit_code 1\n" in metrics_text({}, 1)
