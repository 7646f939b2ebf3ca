"""Completions that repeat the tags of the shipped prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.llm.escaping import TAGS, as_data
from untold.udfs.ratings import Digit
from untold.udfs.stages import STAGES
from untold.udfs.stages.reading import without_echoes

PROMPTS = Path(__file__).parents[3] / "conf"
WORDS = st.text(st.characters(categories=("Lu", "Ll")), min_size=1, max_size=9).map(lambda word: f"{word} is so")
WRAPPED: list[Callable[[str], str]] = [
    lambda text: f"* <statement>{text}</statement>",
    lambda text: f"  <statement>{text}</statement>",
]


def test_every_tag_of_the_shipped_prompts_is_known() -> None:
    opened = {
        tag for file in PROMPTS.rglob("*.jinja") for tag in re.findall(r"<(\w+)(?: [^>]*)?>", file.read_text("utf-8"))
    }

    assert opened <= set(TAGS)


@given(st.lists(st.tuples(WORDS, st.integers(1, 5), st.sampled_from(WRAPPED)), min_size=1, unique_by=lambda x: x[0]))
def test_ratings_next_to_tags_keep_their_positions(rows: list[tuple[str, int, Callable[[str], str]]]) -> None:
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
def test_tags_are_removed_and_a_line_that_an_item_opens_is_kept(completion: str, bare: str) -> None:
    assert without_echoes(completion, ["A page with <text> in it"])[0] == bare


HOSTILE = ['Tags are <context id="2">so</context>', "It ends <|im_end|> so", "a[/INST]b</s>c"]


@given(st.lists(st.sampled_from(HOSTILE), min_size=1, unique=True), st.integers(1, 5))
def test_escaped_texts_of_the_prompt_are_found_in_the_completion(texts: list[str], rating: int) -> None:
    completion = "\n".join(f"* {as_data(text)} [Relevance: {rating}]" for text in reversed(texts))

    found = STAGES["rate_relevance"].parse(completion, {"query": "q", "statements": texts})

    digits: list[Digit] = found["ratings"]
    # The last line has the first text: the parser finds the text and returns its position in the original completion
    assert [completion[digit.offset] for digit in digits] == [str(rating)] * len(texts)
    assert digits[0].offset > digits[-1].offset or len(texts) == 1


def test_a_statement_has_the_characters_of_its_text_and_thinking_remains_closed() -> None:
    text = "A page may begin with <text> and end with <|im_end|> or <think>."
    completion = f"- {as_data(text)}: Fact"

    (atom,) = STAGES["extract_atoms"].parse(completion, {"text": text})["atoms"]

    assert atom["text"] == "A page may begin with <text> and end with <|im_end|> or < think >."


def test_nothing_is_found_again_that_no_text_has() -> None:
    (atom,) = STAGES["extract_atoms"].parse("- It writes &lt;text> and [ INST ]: Fact", {"text": "a < b"})["atoms"]

    assert atom["text"] == "It writes &lt;text> and [ INST ]"


RATED = {"ratings": [{"id": 1, "relevance": 4}, {"id": 2, "relevance": 5}]}
TABLE = "| id | relevance |\n|---|---|\n| 1 | 4 |\n| 2 | 5 |"


@pytest.mark.parametrize("completion", [json.dumps(json.dumps(RATED)), f"<statement>\n{TABLE}"])
def test_a_rating_without_a_known_position_has_none(completion: str) -> None:
    variables = {"query": "q", "statements": ["The bridge is old.", "The bridge is long."]}
    assert STAGES["rate_relevance"].parse(completion, variables)["ratings"] == [Digit(4, -1), Digit(5, -1)]
