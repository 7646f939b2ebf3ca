"""What the demo shows beside its summary: the demo model's scores and those that a person would expect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs.results import UnreadableRunError, open_run

ROW = "{:24} {:>6} {:>9} {:>11} {:>12}"


def show_expected(output: str, expected_path: Path) -> None:
    """Prints one line a demo sample; nothing where the run left no scores or nothing is expected."""
    scores, expected = _read_scores(output), _read_expected(expected_path)
    if not scores or not expected:
        return
    print("\nbeside what a person would expect (statements covered / uncovered)")
    print(ROW.format("sample", "score", "expected", "statements", "expected").rstrip())
    for wanted in expected:
        given = scores.get(wanted["sample_id"], {})
        found = _counts(given.get("covered"), given.get("uncovered"))
        covered = sum(1 for statement in wanted["statements"] if statement["covered"])
        hoped = _counts(covered, len(wanted["statements"]) - covered)
        score = _number(given.get("score"))
        print(ROW.format(wanted["sample_id"][:24], score, _number(wanted["score"]), found, hoped))


def _read_scores(output: str) -> dict[str, Mapping[str, Any]]:
    try:
        rows = open_run(output, allow_running=True).table("scores").to_pylist()
    except (UnreadableRunError, OSError, pa.ArrowInvalid):
        return {}
    return {row["sample_id"]: row for row in rows}


def _read_expected(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _counts(covered: int | None, uncovered: int | None) -> str:
    return "-" if covered is None or uncovered is None else f"{covered} / {uncovered}"
