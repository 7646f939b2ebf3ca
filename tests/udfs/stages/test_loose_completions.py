"""Read completions that follow the requested form loosely. Their author saw the prompts, but no reader."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.udfs.stages.test_completions import plain
from untold.udfs.errors import Refused, Unparsable
from untold.udfs.stages import STAGES
from untold.udfs.stages.non_answers import example_names

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests" / "udfs" / "loose_completions"  # see the README for the format
# Limits for all completions, for all readable completions, and for the readable completions of a stage
MOST_WRONG, LEAST_READ, LEAST_READ_OF_A_STAGE = 0.01, 0.85, 0.8


def rows() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield each completion with its stage and the number of its line."""
    for path in sorted(FOLDER.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            yield path.stem, number, json.loads(line)


def read(stage: str, row: dict[str, Any]) -> Any:
    """Return the fields of a completion that the row expects, as actors and readers of the store read them."""
    template = (ROOT / "conf" / "prompts" / f"{stage}.jinja").read_text(encoding="utf-8")
    try:
        output, leaked = STAGES[stage].accept(row["completion"], row["variables"], example_names(template))
    except Refused:
        return "refused"
    except Unparsable:
        return None
    fields = plain(output) if not leaked else {**plain(output), "leaked": leaked}
    # Most rows have no reasons
    kept = row["expected"] if isinstance(row["expected"], dict) else fields
    return {name: value for name, value in fields.items() if name in kept or name == "leaked"}


def has_open_items(said: dict[str, Any], expected: Any) -> bool:
    """Return True if the fields differ only by items without a label, which are requested again."""
    if not isinstance(expected, dict):
        return False
    labels = next(iter(said.values()))
    if not isinstance(labels, list) or None not in labels:
        return False
    open_places = {place for place, label in enumerate(labels) if label is None}
    return all(
        said[name][place] == value
        for name, values in expected.items()
        for place, value in enumerate(values)
        if place not in open_places
    )


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Counter[str]]:
    """The number of outcomes of each stage: `right`, `again`, `wrong` and `nothing`, with the lines of the wrong."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for stage, number, row in rows():
        said, expected = read(stage, row), plain(row["expected"])
        is_readable = expected not in (None, "refused")
        if said in (None, "refused"):
            found[stage]["again" if is_readable else "nothing"] += 1
        elif said != expected and has_open_items(said, expected):
            found[stage]["again"] += 1
        else:
            found[stage]["right" if said == expected else f"wrong in line {number}"] += 1
    return found


def test_few_completions_are_read_differently_from_a_person(outcomes: dict[str, Counter[str]]) -> None:
    wrong = [f"{stage}: {kind}" for stage, counts in outcomes.items() for kind in counts if kind.startswith("wrong")]

    assert len(wrong) <= MOST_WRONG * sum(counts.total() for counts in outcomes.values()), wrong


def test_most_readable_completions_are_read_at_the_first_attempt(outcomes: dict[str, Counter[str]]) -> None:
    total = sum(outcomes.values(), Counter[str]())

    assert total["right"] >= LEAST_READ * (total["right"] + total["again"])
    shares = {stage: counts["right"] / (counts["right"] + counts["again"]) for stage, counts in outcomes.items()}
    assert {stage: share for stage, share in shares.items() if share < LEAST_READ_OF_A_STAGE} == {}


def test_no_refusal_is_read_as_an_answer() -> None:
    refusals = [(stage, row) for stage, _, row in rows() if row["expected"] == "refused"]

    assert len(refusals) > len(STAGES)
    assert [(stage, row["completion"]) for stage, row in refusals if read(stage, row) not in (None, "refused")] == []
