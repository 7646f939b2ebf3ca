"""Lists: which lines are items, and what of an item is its anchor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.recall.forms import shown_form
from untold.udfs.recall.lists import Fact, fact_of, is_list, read_list


@pytest.mark.parametrize(
    "mark",
    ["-", "*", "+", "•", "‣", "◦", "▪", "·", "–", "—", "1.", "12)", "(3)", "123:", "a)", "b.", "[4]", "  -", "\t2."],
)
def test_a_line_with_a_mark_is_an_item(mark: str) -> None:
    assert read_list(f"{mark} one\n{mark} two").items == ("one", "two")


@pytest.mark.parametrize("start", ["1234. ", "-", "1.", "E. ", "ab) ", "# ", "> ", "1 "])
def test_a_line_with_no_mark_is_none(start: str) -> None:
    assert read_list(f"{start}one\n{start}two").items == ()


def test_a_bracket_is_a_mark_that_stays() -> None:
    assert read_list("[Fellini] 8 films\n【Varda】 9 films").items == ("[Fellini] 8 films", "[Varda] 9 films")


def test_lines_without_a_mark_belong_to_the_item_above_and_text_before_the_first_to_none() -> None:
    found = read_list("Two of them\nare:\n\n1. one,\n   which goes on\n\n2. two\nThat is all.")
    assert found.items == ("one, which goes on", "two That is all.")
    assert found.introduced


@pytest.mark.parametrize(
    ("before", "introduced"), [("They are:", True), ("**They are：**", True), ("They are many.", False), ("", False)]
)
def test_a_colon_announces_a_list(before: str, introduced: bool) -> None:
    assert read_list(f"{before}\n- one\n- two").introduced is introduced


def test_numbers_in_order_split_a_text_from_three_on() -> None:
    found = read_list("They are: 1. one in 2. two, 3. three")
    assert found.items == ("one in", "two,", "three")
    assert found.introduced
    assert read_list("1. one 2. two 3. three").items == ("one", "two", "three")
    assert not is_list("They are 1. one 2. two")
    assert not is_list("Of 1. one, 3. three and 2. two")
    assert not is_list("Version 1.1. 2.2. 3.3. of it")


def test_one_item_makes_no_list() -> None:
    assert not is_list("- one\nmore")
    assert is_list("- one\n- two")


@pytest.mark.parametrize(
    ("item", "anchor", "evidence"),
    [
        ("**Federico Fellini**: He directed Amarcord", "Federico Fellini", "He directed Amarcord"),
        ("**Federico Fellini:** He directed Amarcord", "Federico Fellini", "He directed Amarcord"),
        ("__Federico Fellini__ directed Amarcord", "Federico Fellini", "directed Amarcord"),
        ("Jean-Luc Godard (À bout de souffle, 1960)", "Jean-Luc Godard", "À bout de souffle, 1960"),
        ("**Godard** (Breathless)", "Godard", "Breathless"),
        ("Agnès Varda – Cléo from 5 to 7", "Agnès Varda", "Cléo from 5 to 7"),
        ("[Agnès Varda] Cléo from 5 to 7", "Agnès Varda", "Cléo from 5 to 7"),
        ("Melting point: -5 °C (23 °F)", "Melting point", "-5 °C (23 °F)"),
        ("a b c d e f g h i j: k", "a b c d e f g h i j", "k"),
        ("Federico Fellini", "Federico Fellini", ""),
        ("**Federico Fellini**", "Federico Fellini", ""),
        ("a b c d e f g h i j k: l", None, "a b c d e f g h i j k: l"),
        ("One two three four five six seven eight nine ten eleven", None, ...),
    ],
)
def test_what_an_item_is(item: str, anchor: str | None, evidence: object) -> None:
    found = fact_of(shown_form(item), 10)
    assert (found.anchor, found.evidence) == (anchor, item if evidence is ... else evidence)


def test_a_fact_with_an_anchor_is_matched_with_it() -> None:
    assert Fact("He directed Amarcord", "Federico Fellini").text == "Federico Fellini: He directed Amarcord"


LINES = st.text(alphabet="-*[](1.a): \n\t**_•b", max_size=60)


@given(LINES | st.text())
def test_any_text_has_items_that_say_something(text: str) -> None:
    facts = [fact_of(item, 3) for item in read_list(text).items]
    assert all(fact.text for fact in facts)


@pytest.mark.parametrize("part", ["- ", "[\n", "1. 2. 3. ", "*", "__a", "(", " (", ")", "a) "])
def test_no_text_takes_quadratic_time(part: str) -> None:
    for item in read_list(part * 100_000).items:
        assert fact_of(item, 10).text
