"""Failed requests in words: of which stages all failed, and what went wrong most often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from untold.graph.views import one_line
from untold.jobs.run.manifest import by_stage
from untold.udfs.redaction import redact

Row = Mapping[str, Any]


def dead_stages(usage: Iterable[Row]) -> list[Row]:
    """The rows of `usage` of stages without an answer, new or from the store, where requests failed."""
    return [row for row in by_stage(usage) if row["failed"] and not row["answered"] and not row["reused"]]


def explain_dead_stages(dead: Iterable[Row], errors: Iterable[Row]) -> list[str]:
    """A line for each stage without an answer: how many requests failed, and most often with what.

    dead: rows of `dead_stages`; errors: stage, error_type, error, count of its most frequent one.

    >>> error = {"stage": "match_one", "error_type": "http_500", "error": "HTTP 500", "count": 3}
    >>> explain_dead_stages([{"stage": "match_one", "failed": 4, "requests": 4}], [error])
    ['every request of match_one failed (4 of 4); the most frequent error, 3 times: http_500: HTTP 500']
    >>> explain_dead_stages([{"stage": "match_one", "failed": 1, "requests": 4}], [])
    ['no request of match_one succeeded (1 of 4 failed)']
    """
    by_stage = {row["stage"]: row for row in errors}
    return [_explain(row, by_stage.get(row["stage"])) for row in dead]


def _explain(usage: Row, error: Row | None) -> str:
    stage, count = usage["stage"], f"{usage['failed']:,} of {usage['requests']:,}"
    said = f"every request of {stage} failed ({count})"
    if usage["failed"] < usage["requests"]:
        said = f"no request of {stage} succeeded ({count} failed)"
    if error is None:
        return said
    times = "once" if error["count"] == 1 else f"{error['count']:,} times"
    return f"{said}; the most frequent error, {times}: {_error(error['error_type'], error['error'])}"


def describe_failures(failures: Iterable[Row]) -> list[str]:
    """A line for each stage and kind of error, sorted: how often it came, and the most frequent text.

    >>> row = {"stage": "match_one", "error_type": "timeout", "error": "no answer within 60 s"}
    >>> describe_failures([row, row])
    ['match_one (2): timeout: no answer within 60 s']
    """
    found: dict[tuple[str, str], Counter[str]] = {}
    for row in failures:
        found.setdefault((str(row["stage"]), str(row["error_type"])), Counter())[row.get("error") or ""] += 1
    return [
        f"{one_line(stage)} ({texts.total():,}): {_error(kind, max(sorted(texts), key=texts.__getitem__))}"
        for (stage, kind), texts in sorted(found.items())
    ]


def _error(kind: str | None, text: str | None) -> str:
    said = one_line(redact(text or ""))
    return f"{one_line(str(kind))}: {said}" if said else one_line(str(kind))
