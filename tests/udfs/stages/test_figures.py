"""Test the names and figures of the stages for a plan, and the functions that count the items of a completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import FACTSCORE, RATINGS, RECORDED, WRITTEN, Figures, LinearSize, Unparsable

FOLDER = Path(__file__).parents[1] / "completions"
HIGHEST = RATINGS[-1]
# The items in the result of the parser by stage. The parser has the variables
THINGS: Mapping[str, Callable[[Mapping[str, Any]], list[float]]] = {
    "summarise_context": lambda row: [HIGHEST] * (row["summary"] is not None),
    "extract_atoms": lambda row: [HIGHEST for atom in row["atoms"] if atom["unit_type"] in ("Fact", "Claim")],
    "revise_atoms": lambda row: [HIGHEST] * len(row["atoms"]),
    "rate_relevance": lambda row: [digit.value for digit in row["ratings"]],
    "mine_questions": lambda row: [HIGHEST] * len(row["questions"]),
    "refine_questions": lambda row: [digit.value for digit in row["ratings"]],
    "extract_claims": lambda row: [HIGHEST] * len(row["claims"]),
    "extract_facts": lambda row: [HIGHEST] * len(row["facts"]),
    "generate_aspects": lambda row: [HIGHEST] * len(row["aspects"]),
    "answer_questions": lambda row: [digit.value for digits in row["confidences"] for digit in digits],
}


def test_every_stage_is_registered_under_its_own_name() -> None:
    assert {name: stage.name for name, stage in STAGES.items()} == {name: name for name in STAGES}


def test_every_stage_has_figures_with_a_source() -> None:
    for stage in STAGES.values():
        assert stage.figures is not None
        assert stage.figures.source in (RECORDED, FACTSCORE, WRITTEN)
        assert sum(stage.figures.ratings) == pytest.approx(1.0)


def readable(stage: str) -> list[tuple[dict[str, Any], int, int]]:
    """Return the readable completions that people wrote: the row, the tokens of the variables and of the completion.

    Difficult completions are shorter than the completions of models, so they are left out.
    """
    lines = (FOLDER / f"{stage}.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [row for row in map(json.loads, filter(str.strip, lines)) if row["expected"] is not None]
    return [
        (row, sum(map(tokens, row["variables"].values())), tokens(row["completion"]))
        for row in rows
        if row["family"] not in ("hard", "refusal")
    ]


def written(stage: str) -> list[tuple[str, list[float], int]]:
    """Return the text, the things and the tokens of the variables of the completions that the parser reads."""
    found = []
    for row, of_variables, _ in readable(stage):
        try:
            read = STAGES[stage].parse(row["completion"], row["variables"])
        except Unparsable:
            continue
        found.append((row["completion"], THINGS[stage](read), of_variables))
    return found


def tokens(value: Any) -> int:
    return sum(map(tokens, value)) if isinstance(value, list) else len(str(value).encode()) // 4 + 1


@pytest.mark.parametrize("stage", THINGS)
def test_things_are_counted_without_the_variables(stage: str) -> None:
    """Compare the counts with the parser for most completions.

    Some completions need the variables to count their items.
    """
    read, rows = STAGES[stage].things, written(stage)
    assert read is not None
    counts = []
    for completion, things, *_ in rows:
        try:
            counts.append(sorted(thing.rating for thing in read(completion)) == sorted(things))
        except Unparsable:
            counts.append(False)
    assert sum(counts) >= 0.75 * len(rows) >= 50


def figures_of(stage: str) -> Figures:
    figures = STAGES[stage].figures
    assert figures is not None
    return figures


BY_HAND = [name for name in STAGES if figures_of(name).source == WRITTEN]


@pytest.mark.parametrize("stage", BY_HAND)
def test_shipped_lengths_equal_the_completions_written_by_hand(stage: str) -> None:
    figures, rows = figures_of(stage), readable(stage)
    of_variables, of_completions = (sum(row[place] for row in rows) for place in (1, 2))
    expected = figures.completion.base + figures.completion.slope * of_variables / len(rows)
    assert expected == pytest.approx(of_completions / len(rows), rel=0.05)


@pytest.mark.parametrize("stage", [name for name in BY_HAND if name in THINGS])
def test_shipped_item_counts_equal_the_completions_written_by_hand(stage: str) -> None:
    figures, rows = figures_of(stage), written(stage)
    of_a_request = sum(row[2] for row in rows) / len(rows)
    things = sum(len(row[1]) for row in rows) / len(rows)
    assert figures.things.base + figures.things.slope * of_a_request == pytest.approx(things, rel=0.1)
    rated = [rating for row in rows for rating in row[1]]
    shares = [rated.count(rating) / len(rated) for rating in RATINGS]
    assert figures.ratings == pytest.approx(shares, abs=0.02)


def test_a_share_passes_a_threshold() -> None:
    figures = Figures("", LinearSize(), ratings=(0.1, 0.2, 0.1, 0.2, 0.4))
    assert [figures.passing(threshold) for threshold in (1, 3, 3.5, 5)] == [1.0, 0.7, 0.6, 0.4]
