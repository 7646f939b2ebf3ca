from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from untold.udfs.ratings import Digit
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Refused, Unparsable

FOLDER = Path(__file__).parents[1] / "completions"  # see the README for the format


def written() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if line.strip():
                yield pytest.param(path.stem, json.loads(line), id=f"{path.stem}-{number}")


def plain(value: Any) -> Any:
    """Return the result of a parser in the form of JSON, with single spaces in texts."""
    if isinstance(value, Digit):
        return value.value
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def read(stage: str, row: Mapping[str, Any]) -> Any:
    try:
        return plain(STAGES[stage].parse(row["completion"], row["variables"]))
    except Refused:
        return "refused"
    except Unparsable:
        return None


LEAST_READ = 0.85  # the share of the readable completions of a stage that must be parsed in the first attempt


@pytest.mark.parametrize(("stage", "row"), list(written()))
def test_no_completion_has_a_wrong_result(stage: str, row: Mapping[str, Any]) -> None:
    expected = plain(row["expected"])
    # An unclear completion can be requested again, but a refusal must be detected
    allowed = ["refused"] if expected == "refused" else [expected, None, *(["refused"] if expected is None else [])]
    assert read(stage, row) in allowed, row["note"]


@pytest.mark.parametrize("stage", sorted(path.stem for path in FOLDER.glob("*.jsonl")))
def test_most_readable_completions_are_read_at_once(stage: str) -> None:
    lines = (FOLDER / f"{stage}.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [row for row in map(json.loads, filter(str.strip, lines)) if row["expected"] not in (None, "refused")]
    right = sum(read(stage, row) == plain(row["expected"]) for row in rows)
    assert right >= LEAST_READ * len(rows), f"{right} of {len(rows)}"
