"""Figures of a run as Prometheus and OpenMetrics read them: `--metrics-file`, for a collector of text files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from untold.jobs.run.manifest import by_stage
from untold.udfs.stages import LOOKUPS

# By name: what it is, and the labels
FAMILIES = {
    "untold_exit_code": "Exit code of the run",
    "untold_ended_timestamp_seconds": "When the last start of the run ended",
    "untold_samples": "Samples under a metric by status",
    "untold_failures": "Requests that failed",
    "untold_requests": "Requests of a stage in the last start, by outcome",
    "untold_calls": "HTTP requests of a stage in the last start",
    "untold_rate_limited": "HTTP requests of a stage in the last start that were answered with 429",
    "untold_prompt_tokens": "Prompt tokens of a stage in the last start",
    "untold_completion_tokens": "Completion tokens of a stage in the last start",
    "untold_cost": "Cost of a stage in the last start, in the currency of the prices",
    "untold_stage_seconds": "Seconds that a stage took in the last start",
    "untold_limit_used_ratio": "Share of requests_per_minute that a stage used in the last start",
    "untold_scored": "Samples with a score",
    "untold_failed": "Samples that failed under a metric",
    "untold_mean": "Mean score",
    "untold_answer_rate": "Share of samples with something to state that have a score",
}
_OF_STAGES = ("calls", "rate_limited", "prompt_tokens", "completion_tokens", "cost")
_OUTCOMES = ("reused", "answered", "failed", "unasked")
_SECTIONS = {"embed_text": "embeddings", "web_search": "search", "classify_entailment": "classifier"}
Sample = tuple[str, Mapping[str, str], float | None]


def metrics_text(manifest: Mapping[str, Any], exit_code: int) -> str:
    """The lines of both formats about the run of a manifest; what is unknown, such as a cost without prices, is left
    out. `system` is empty for all systems together.
    """
    found: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for name, labels, value in [("untold_exit_code", {}, exit_code), *_samples(manifest)]:
        if value is not None:
            named = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            found[name].append(f"{name}{{{named}}} {value}" if named else f"{name} {value}")
    lines = [
        line
        for name, rows in found.items()
        if rows
        for line in (f"# HELP {name} {FAMILIES[name]}", f"# TYPE {name} gauge", *rows)
    ]
    # Ends OpenMetrics, and is a remark to Prometheus
    return "\n".join([*lines, "# EOF", ""])


def _samples(manifest: Mapping[str, Any]) -> Iterator[Sample]:
    counts = manifest.get("counts", {})
    for status, count in counts.get("statuses", {}).items():
        yield "untold_samples", {"status": status}, count
    yield "untold_failures", {}, counts.get("failures")
    for row in manifest.get("summary", ()):
        labels = {"metric": row["metric"], "system": row["system"] or ""}
        for name in ("scored", "failed", "mean", "answer_rate"):
            yield f"untold_{name}", labels, row[name]
    for start in manifest.get("starts", ())[-1:]:
        yield "untold_ended_timestamp_seconds", {}, datetime.fromisoformat(start["ended_at"]).timestamp()
        for row in by_stage(start["usage"]):
            yield from _of_stage(row, manifest.get("settings", {}))


def _of_stage(row: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Sample]:
    stage = {"stage": row["stage"]}
    for outcome in _OUTCOMES:
        yield "untold_requests", {**stage, "outcome": outcome}, row[outcome]
    for name in _OF_STAGES:
        yield f"untold_{name}", stage, row[name]
    yield "untold_stage_seconds", stage, row["seconds"]
    section = _SECTIONS.get(row["stage"], None if row["stage"] in LOOKUPS else "llm")
    own = settings.get(section or "", {})
    limit = own.get("requests_per_minute")
    # Several endpoints have a limit each
    if limit and row["seconds"] and not own.get("endpoints"):
        yield "untold_limit_used_ratio", stage, row["calls"] * 60 / (row["seconds"] * limit)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
