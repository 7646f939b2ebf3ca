from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from untold.udfs.ratings import Digit
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable

FOLDER = Path(__file__).parents[1] / "completions"  # its README says what a line is


def written() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if line.strip():
                yield pytest.param(path.stem, json.loads(line), id=f"{path.stem}-{number}")


def plain(value: Any) -> Any:
    """What a parser gives as JSON says it: digits as numbers, texts with single spaces."""
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
    except Unparsable:
        return None


@pytest.mark.skipif(not any(FOLDER.glob("*.jsonl")), reason="no completions are written yet")
@pytest.mark.parametrize(("stage", "row"), list(written()))
def test_a_completion_is_read_as_a_person_reads_it(stage: str, row: Mapping[str, Any]) -> None:
    allowed = [plain(row["expected"]), *([None] if row.get("or_unparsable") else [])]
    assert read(stage, row) in allowed, row["note"]
