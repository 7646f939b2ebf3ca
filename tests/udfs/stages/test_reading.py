"""Test the markers, single Nones and thoughts in the completions of all stages."""

from __future__ import annotations

import pytest

from untold.udfs.stages.reading import breaks_off, first_turn, is_none, split_marker


def test_a_marker_is_used_once() -> None:
    assert split_marker("  - - a").text == "- a"
    assert split_marker("-5 °C").marked is False
    assert split_marker("-The sun").text == "The sun"


def test_only_a_single_none_is_none() -> None:
    assert is_none("‘None’.")
    assert not is_none("None of them")
    assert not is_none("")


def test_every_leading_think_block_goes() -> None:
    assert first_turn(" <Think>a</THINK>\n<think>b</think> c", []).strip() == "c"


@pytest.mark.parametrize(
    "thinking",
    [
        "[THINK]a[/THINK]",
        "<thought>\na\n</thought>\n",
        "<seed:think>a</seed:think>",
        "◁think▷a◁/think▷",
        "<|begin_of_thought|>a<|end_of_thought|>",
    ],
)
def test_thinking_in_any_tags_is_not_an_answer(thinking: str) -> None:
    assert first_turn(f"{thinking}b", []).strip() == "b"


@pytest.mark.parametrize("opened", ["[THINK]a", "<thought>a", "<scratchpad>a\n\nb", "◁think▷a"])
def test_thinking_that_never_ends_leaves_no_answer(opened: str) -> None:
    assert first_turn(opened, []).strip() == ""


@pytest.mark.parametrize("answer", ["<label>neutral</label>", "<b>a</b> b", "[Covered statements]\nNone"])
def test_tags_of_an_answer_are_not_thinking(answer: str) -> None:
    assert first_turn(answer, []).strip() == answer


@pytest.mark.parametrize(
    ("text", "own", "expected"),
    [
        ("It weighs 3,100 kg; a sur", "A survey of 1977 found 2,940 kg.", True),
        ("Мельница стоит у рек", "Мельница стоит у рекламы.", True),
        ("It weighs 3,100 kg; a survey", "A survey of 1977 found 2,940 kg.", False),
        ("The mill has two wheel", "The mill has two wheels.", False),
        ("It was found in 19", "It was found in 1977.", False),
        ("北京是中国的首都", "北京是中国的首都并且很大", False),
        ("ข้าวเป็นอาหาร", "ข้าวเป็นอาหารหลักของไทย", False),
        ("The mill is old", "", False),
        ("", "The mill is old.", False),
    ],
)
def test_a_text_breaks_off_within_a_word_of_an_input(text: str, own: str, expected: bool) -> None:
    assert breaks_off(text, own) is expected
