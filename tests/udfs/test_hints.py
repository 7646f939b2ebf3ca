from __future__ import annotations

import re
from pathlib import Path

import pytest

from untold.udfs.errors import aside, did_you_mean, near_misses, shorten

KNOWN = ("sample_id", "query", "response", "contexts")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("qurey", ["query"]),
        ("Query", ["query"]),
        (" SAMPLE_ID", ["sample_id"]),
        ("context", ["contexts"]),
        ("label", []),
        ("", []),
    ],
)
def test_near_misses(word: str, near: list[str]) -> None:
    assert near_misses(word, KNOWN) == near


def test_the_nearest_comes_first_and_no_more_than_wanted() -> None:
    assert near_misses("answer1", ["answers", "question", "answer12"], most=2) == ["answer12", "answers"]


def test_without_a_threshold_there_is_always_a_suggestion() -> None:
    assert near_misses("llm.modle", ["llm.model", "qa.questions"], cutoff=0) == ["llm.model"]


def test_a_hint_is_a_question_or_nothing() -> None:
    assert did_you_mean(["a", "b"]) == "did you mean `a` or `b`?"
    assert did_you_mean(["--limit"], quote="") == "did you mean --limit?"
    assert aside(["a"]) == " (did you mean `a`?)"
    assert did_you_mean([]) == aside([]) == ""


def test_long_names_are_cut() -> None:
    assert shorten("a" * 41) == "a" * 40 + "…"
    assert shorten("a" * 40) == "a" * 40


def test_hints_are_made_in_one_place() -> None:
    own = {
        str(file.relative_to(ROOT))
        for folder in ("jobs", "udfs", "graph")
        for file in (ROOT / folder).rglob("*.py")
        if re.search(r"difflib|\"did you mean|[^`]did you mean \{", file.read_text(encoding="utf-8"))
    }
    assert own == {"udfs/errors.py"}
