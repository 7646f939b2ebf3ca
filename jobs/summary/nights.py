"""Compare the outputs of many dates: results, cost, and the dates from which figures are not comparable.

The module also writes the figures of a run in the format of Prometheus and OpenMetrics (`--metrics-file`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date, datetime
from itertools import pairwise
from typing import Any

from untold.jobs.metrics import METRICS
from untold.jobs.run.manifest import Added, OutputError, by_stage, differences, read_manifest, seconds_of
from untold.jobs.run.terminal import Page, table
from untold.jobs.summary.ranking import interval_text, number_text
from untold.udfs.stages import LOOKUPS
from untold.udfs.storage import FOOTERS_AT_ONCE, StoragePath

# The placeholder for the date, as YYYY-MM-DD, in the paths of an input and an output
DATE = "{date}"
# The folder of the sentinel in the output of a date
SENTINEL_FOLDER = "_sentinel"
Manifest = Mapping[str, Any]
Row = Mapping[str, Any]


def parse_date(text: str) -> date:
    """Return a date from YYYY-MM-DD. Raises ValueError for another text.

    >>> parse_date("2026-11-20")
    datetime.date(2026, 11, 20)
    """
    with suppress(ValueError):
        # Python also reads 20261120 and 2026-W47-5, but outputs do not have such names
        if (found := date.fromisoformat(text)).isoformat() == text:
            return found
    raise ValueError(f"must be a date as YYYY-MM-DD, got {text or 'nothing'}")


def read_nights(pattern: str) -> dict[str, Manifest]:
    """Return the manifests of all outputs of a path with `{date}`, by date, ascending.

    A manifest includes the manifest of its `sentinel`. Damaged manifests are skipped, because scoring the date reports
    them.
    """
    dates = _dates_of(pattern)
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        manifests = pool.map(_read_night, (pattern.replace(DATE, day) for day in dates))
        return {day: found for day, found in zip(dates, manifests, strict=True) if found is not None}


def _read_night(output: str) -> Manifest | None:
    try:
        found = read_manifest(output)
        sentinel = read_manifest(f"{output}/{SENTINEL_FOLDER}")
    except OutputError:
        return None
    return found if sentinel is None or found is None else {**found, "sentinel": sentinel}


def _dates_of(pattern: str) -> list[str]:
    """Return the dates that have outputs, from one listing."""
    head, _, tail = pattern.partition(DATE)
    above, _, before = head.rpartition("/")
    after = tail.partition("/")[0].replace(DATE, "")
    found = []
    for entry in StoragePath(above).entries():
        day = entry.name.removeprefix(before).removesuffix(after)
        with suppress(ValueError):
            found.append(parse_date(day).isoformat())
    return sorted(found)


def breaks_of(nights: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """Return the dates with figures that are not comparable with the date before: date, before, differs (texts)."""
    known = [(day, found) for day, found in nights.items() if found.get("identity")]
    changes = [(day, earlier, _changes(before, after)) for (earlier, before), (day, after) in pairwise(known)]
    return [{"date": day, "before": earlier, "differs": found} for day, earlier, found in changes if found]


def _changes(before: Manifest, after: Manifest) -> list[str]:
    """Return the reasons why the figures of two outputs are not comparable, for the metrics of both."""
    shared = [name for name in after["metrics"] if name in before["metrics"] and name in METRICS]
    if not shared:
        return []
    asked, stages = after["identity"]["stages"], before["identity"]["stages"]
    theirs = {**before["identity"], "stages": {name: stages[name] for name in stages if name in asked}}
    added = Added(lambda key: any(METRICS[name].depends_on(key) for name in shared), theirs["input"])
    if found := differences(after["identity"], theirs, added):
        return found
    # An endpoint may change the model behind a name
    new = sorted(set(after.get("models", ())) - set(before.get("models", ())))
    return [f"another model answers ({', '.join(new)})"] if new and before.get("models") else []


def describe_break(found: Row) -> str:
    """Return the line about a break."""
    return f"from {found['date']} on, figures are not comparable with those before: {' and '.join(found['differs'])}"


def row_of(day: str, night: Manifest) -> dict[str, Any]:
    """Return the results and usage of an output over all its starts, with its sentinel."""
    row = {"date": day, **_row_of(night)}
    sentinel = night.get("sentinel")
    return row if sentinel is None else {**row, "sentinel": _row_of(sentinel)}


def _row_of(night: Manifest) -> dict[str, Any]:
    starts, counts, totals = night.get("starts", []), night.get("counts", {}), night.get("totals") or {}
    tokens = [totals.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
    return {
        "status": night.get("status"),
        "samples": counts.get("samples"),
        "statuses": counts.get("statuses", {}),
        "failures": counts.get("failures"),
        "calls": totals.get("calls") or 0,
        "tokens": sum(tokens),
        "cost": totals.get("cost"),
        "seconds": sum(map(seconds_of, starts)),
        "metrics": night.get("metrics", []),
        "models": night.get("models", []),
        "summary": night.get("summary", []),
    }


def cost_within(month: str, night: Manifest) -> float:
    """Return the cost of the starts of an output and of its sentinel in a month, `2026-11`."""
    starts = (start for one in (night, night.get("sentinel") or {}) for start in one.get("starts", ()))
    began = (start for start in starts if start["started_at"].startswith(month))
    return sum(row["cost"] or 0.0 for start in began for row in start["usage"])


def write_nights(pattern: str, nights: Mapping[str, Manifest]) -> str:
    """Write the file about all dates and return its path: `nightly` replaces the date, and `.json` follows."""
    path = f"{pattern.replace(DATE, 'nightly')}.json"
    content = {"dates": [row_of(day, night) for day, night in nights.items()], "breaks": breaks_of(nights)}
    StoragePath(path).write_bytes(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
    return path


def table_of(rows: Sequence[Row], page: Page) -> list[str]:
    """Return a line per date and metric, over all systems."""
    heads = ["date", "status", "metric", "n", "scored", "failed", "mean", "95 % interval", "calls", "cost"]
    return table(heads, [line for row in rows for line in _lines_of(row)], page, names=3)


def _lines_of(row: Row) -> list[list[str]]:
    took = [f"{row.get('calls', 0):,}", number_text(row.get("cost"), ",.4f")]
    means = [
        [
            one["metric"],
            *(f"{one[name]:,}" for name in ("n", "scored", "failed")),
            number_text(one["mean"]),
            interval_text(one),
        ]
        for one in row.get("summary", ())
        if one["level"] == "overall"
    ]
    return [[row["date"], row["status"], *found, *took] for found in means or [["-"] * 6]]


# The description of each metric
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
    """Return the lines about a run, valid in both formats. Unknown values are left out.

    `system` is empty for all systems together.
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
    # The last line of OpenMetrics, and a comment for Prometheus
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
            stage = {"stage": row["stage"]}
            for outcome in _OUTCOMES:
                yield "untold_requests", {**stage, "outcome": outcome}, row[outcome]
            for name in _OF_STAGES:
                yield f"untold_{name}", stage, row[name]
            yield "untold_stage_seconds", stage, row["seconds"]
            section = _SECTIONS.get(row["stage"], None if row["stage"] in LOOKUPS else "llm")
            own = manifest.get("settings", {}).get(section or "", {})
            limit = own.get("requests_per_minute")
            # Each of several endpoints has its own limit
            if limit and row["seconds"] and not own.get("endpoints"):
                yield "untold_limit_used_ratio", stage, row["calls"] * 60 / (row["seconds"] * limit)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
