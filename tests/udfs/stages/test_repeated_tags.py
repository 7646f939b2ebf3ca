"""Completions that repeat the tags of the shipped prompts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.ratings import Digit
from untold.udfs.stages import STAGES
from untold.udfs.stages.repeated_tags import TAGS, past_echoes

PROMPTS = Path(__file__).parents[3] / "conf" / "prompts"
WORDS = st.text(st.characters(categories=("Lu", "Ll")), min_size=1, max_size=9).map(lambda word: f"{word} is so")
WRAPPED: list[Callable[[str], str]] = [
    lambda text: f"* <statement>{text}</statement>",
    lambda text: f"  <statement>{text}</statement>",
]


def test_every_tag_of_the_shipped_prompts_is_known() -> None:
    opened = {
        tag for file in PROMPTS.glob("*.jinja") for tag in re.findall(r"<(\w+)(?: [^>]*)?>", file.read_text("utf-8"))
    }

    assert opened <= set(TAGS)


@given(st.lists(st.tuples(WORDS, st.integers(1, 5), st.sampled_from(WRAPPED)), min_size=1, unique_by=lambda x: x[0]))
def test_ratings_beside_tags_keep_their_places(rows: list[tuple[str, int, Callable[[str], str]]]) -> None:
    completion = "\n".join(f"{wrap(text)} [Relevance: {rating}]" for text, rating, wrap in rows)

    found = STAGES["rate_relevance"].parse(completion, {"query": "q", "statements": [text for text, *_ in rows]})

    digits: list[Digit] = found["ratings"]
    assert [digit.value for digit in digits] == [rating for _, rating, _ in rows]
    assert [completion[digit.offset] for digit in digits] == [str(digit.value) for digit in digits]


@pytest.mark.parametrize(
    ("completion", "bare"),
    [
        ('<context id="2">One.</context>', "One."),
        ("<QUERY >One?</ Query>", "One?</ Query>"),
        ("say <b>so</b> in <texts>", "say <b>so</b> in <texts>"),
        ("  <question>One?</question>\n  Two", "* One?\n  Two"),
        ("<answer>one</answer> of <text>two</text>", "one of <text>two</text>"),
    ],
)
def test_tags_go_and_a_line_that_an_item_opens_is_one(completion: str, bare: str) -> None:
    def parse(text: str, _: Any) -> dict[str, str]:
        return {"text": text}

    assert past_echoes(parse)(completion, {"text": "A page with <text> in it"}) == {"text": bare}
