"""Test the facts of lists: the lines that are items, and the anchor of an item."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import assert_linear
from untold.udfs.recall.fact_texts import Fact, fact_of, shown_form
from untold.udfs.recall.segmentation import cut, is_list, read_list


def items_of(text: str) -> tuple[str, ...]:
    return tuple(item.text for item in read_list(text).items)


def facts_of(text: str) -> list[str]:
    return [fact.text for fact in cut(text, "list", 10)]


@pytest.mark.parametrize(
    "mark",
    ["-", "*", "+", "•", "‣", "◦", "▪", "·", "–", "—", "1.", "12)", "(3)", "123:", "a)", "b.", "[4]", "  -", "\t2."],
)
def test_a_line_with_a_mark_is_an_item(mark: str) -> None:
    assert items_of(f"{mark} one\n{mark} two") == ("one", "two")


@pytest.mark.parametrize("start", ["1234. ", "-", "1.", "E. ", "ab) ", "# ", "> ", "1 "])
def test_a_line_without_a_mark_is_not_an_item(start: str) -> None:
    assert items_of(f"{start}one\n{start}two") == ()


def test_a_bracket_is_a_mark_that_stays() -> None:
    assert items_of("[Fellini] 8 films\n【Varda】 9 films") == ("[Fellini] 8 films", "[Varda] 9 films")


@pytest.mark.parametrize(
    "marks",
    [
        "A. B. C.",
        "１． ２． ３．",
        "１） ２） ３）",
        "（1） （2） （3）",
        "一、 二、 三、",
        "① ② ③",
        "1、 2、 3、",
        "Ａ． Ｂ． Ｃ．",
    ],
)
def test_letters_that_count_and_wide_numbers_are_marks(marks: str) -> None:
    one, two, three = marks.split()
    space = " " if marks.isascii() else ""
    assert items_of(f"{one}{space}北京\n{two}{space}Paris\n{three}{space}Rome") == ("北京", "Paris", "Rome")


@pytest.mark.parametrize(
    "text", ["A. Holt climbed it.\nN. Ree drew it.", "B. Holt\nC. Ree", "3、4月\n5、6月", "１．５ km\n２．５ km"]
)
def test_initials_and_decimals_are_not_marks(text: str) -> None:
    assert not is_list(text)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        # A blank line ends an item unless the next line is indented
        ("1. one,\n   which goes on\n\n   and on\n\n2. two", ["one, which goes on and on", "two"]),
        ("- one\n- two\n\nThat is all there is.", ["one", "two", "That is all there is."]),
        # A remark directly below the last item also ends it, unless the other items have such lines too
        ("• one\n• two\nThat is all there is.", ["one", "two", "That is all there is."]),
        ("- one\nIt is odd.\n- two\nIt is even.", ["one It is odd.", "two It is even."]),
        ("1. It goes over\nseveral lines\n2. two", ["It goes over several lines", "two"]),
        # A heading is not a fact and not a part of an item
        ("**First**\n- one\n- two\n__Second__\n- three", ["one", "two", "three"]),
        ("Some of them:\n- one\n- two\nOthers are:\n- three", ["one", "two", "three"]),
        ("## First\n- one\n\n---\n\n## Second\n- two", ["one", "two"]),
        ("- First:\n- one\n- two", ["one", "two"]),
        # The name of an item is added to its sub-items
        ("- Europe\n  - Paris\n  - Rome\n- Asia\n  - Delhi", ["Europe: Paris", "Europe: Rome", "Asia: Delhi"]),
        ("- Paris: a capital\n\t- It has parks.\n- Rome", ["Paris: a capital", "Paris: It has parks.", "Rome"]),
        ("- a\n  - b\n    - c\n- d\n  - e", ["a: b: c", "d: e"]),
        ("1. **Paris**\n   - Louvre\n\n   A city.\n2. Rome", ["Paris: A city.", "Paris: Louvre", "Rome"]),
        ("### 1. Paris\n- Louvre\n\n### 2. Rome\n- Forum", ["Paris: Louvre", "Rome: Forum"]),
        ("**1. Paris**\n- Louvre\n**2. Rome**\n- Forum", ["Paris: Louvre", "Rome: Forum"]),
        ("- one\n - two", ["one", "two"]),
        # Deleted text is removed, and a line break can be an escape sequence
        ("- ~~one~~\n- two\n- ~~not~~ three", ["two", "three"]),
        ("They are:\\n- one\\n- two goes\\non", ["one", "two goes on"]),
        (r"- C:\new is one" + "\n" + r"- \nabla is two", [r"C:\new is one", r"\nabla is two"]),
        ("- [x] one\n- [ ] two", ["one", "two"]),
    ],
)
def test_a_list_is_read_as_a_person_reads_it(text: str, facts: list[str]) -> None:
    assert facts_of(text) == facts


@pytest.mark.parametrize(
    ("before", "facts"),
    [
        ("They are:", []),
        ("**They are：**", []),
        ("They are many.\nHere they\nare:", []),
        ("They are many.\n\nThey are:", ["They are many."]),
        ("They are many.", ["They are many."]),
    ],
)
def test_a_paragraph_with_a_colon_announces_a_list(before: str, facts: list[str]) -> None:
    assert facts_of(f"{before}\n- one\n- two") == [*facts, "one", "two"]


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        (
            "| City | Country | Size |\n|:--|---|--:|\n| **Paris** | France | 2 m |\n| Rome | | 3 m |",
            ["City: Paris: Country: France; Size: 2 m", "City: Rome: Size: 3 m"],
        ),
        ("City | Country\n--- | ---\nParis | France\nRome | Italy\n\nBoth are old.", [..., ..., "Both are old."]),
        ("| # | City |\n|---|---|\n| 1 | Paris |\n| 2 | Rome |", ["City: Paris", "City: Rome"]),
        (r"| | Sign |" + "\n|-|-|\n" + r"| a | x \| y |" + "\n| b | ~~z~~ |", ["a: Sign: x | y", "b"]),
    ],
)
def test_rows_of_tables_are_items_with_their_headers(table: str, facts: list[str]) -> None:
    found = facts_of(table)
    assert [wanted if wanted is ... else fact for fact, wanted in zip(found, facts, strict=True)] == facts
    assert is_list(table)


def test_the_first_cell_of_a_row_and_the_name_of_a_sub_item_are_anchors() -> None:
    assert cut("| City | Land |\n|---|---|\n| Paris | France |", "list", 10)[0].anchor == "Paris"
    assert [fact.anchor for fact in cut("- Europe\n  - Paris\n  - Rome: It is old.", "list", 10)] == ["Paris", "Rome"]
    assert (
        cut("- Paris\n  - It is old, and it has many more parks than one would think.", "list", 10)[0].anchor == "Paris"
    )


@pytest.mark.parametrize(
    ("item", "free"),
    [
        ("He was born in Ulm.", True),
        ("It was built in 1889", True),
        ("上海很大。", True),
        ("Warner Bros.", False),
        ("Paris", False),
        ("Fellini: He directed 8 films.", False),
        ("one two three four five six seven eight nine ten eleven", True),
    ],
)
def test_items_that_are_sentences_are_resolved_as_free_text_is(item: str, free: bool) -> None:
    assert [fact.free for fact in cut(f"- {item}\n- Rome", "list", 10)] == [free, False]


def test_numbers_in_order_split_a_text_from_three_on() -> None:
    assert facts_of("They are: 1. one in 2. two, 3. three") == ["one in", "two,", "three"]
    assert items_of("1. one 2. two 3. three") == ("one", "two", "three")
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
        ("Reign of Louis XIV: 1643 - 1715", "Reign of Louis XIV", "1643 - 1715"),
        ("1990 - 1995: war", "1990 - 1995", "war"),
        ("Jaws (1975), by Spielberg", "Jaws", "1975, by Spielberg"),
        ("北京：中国的首都", "北京", "中国的首都"),
        ("北京（中国）", "北京", "中国"),
        ("フェデリコ・フェリーニ――映画監督", "フェデリコ・フェリーニ", "映画監督"),
        ("Germany won 3 - 2 in the end.", None, ...),
        ("The drug (aspirin) reduces pain.", None, ...),
        ("The drug (brand: Bayer) reduces pain.", None, ...),
        ("He was born in Ulm (in Germany).", None, ...),
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


LINES = st.text(alphabet="-*[](1.a): \n\t**_•bA|~#\\一、北１．", max_size=60)


@given(LINES | st.text())
def test_any_text_has_items_with_content(text: str) -> None:
    facts = [fact_of(item.text, 3) for item in read_list(text).items]
    assert all(fact.text for fact in facts)


@given(LINES)
def test_no_word_of_a_text_occurs_twice_except_names(text: str) -> None:
    said = "".join("".join(part if isinstance(part, str) else part.text) for part in read_list(text).parts)
    assert said.count("b") <= text.count("b")


@pytest.mark.parametrize(
    "part", ["- ", "[\n", "1. 2. 3. ", "*", "__a", "(", " (", ")", "a) ", "北（", "a -- ", "~~a", "\\n"]
)
def test_every_text_takes_linear_time(part: str) -> None:
    for item in read_list(part * 100_000).items:
        assert fact_of(item.text, 10).text


@pytest.mark.parametrize(
    "line",
    ["- a\n", "  - a\n", "a:\n", "**a**\n", "|a|b|\n", "|-|-|\n", "a\n\n", "a. b\n", "A. b\n", "- ~~a\\n~~", "   \n"],
)
def test_lines_are_read_in_linear_time(line: str) -> None:
    assert_linear(lambda size: cut(line * size, "list", 10), 8_000)


def test_deep_lists_are_read_in_linear_time() -> None:
    text = "".join(f"{'  ' * depth}- {'x' * 50}\n" for depth in range(400))
    assert max(len(fact) for fact in facts_of(text)) < 4 * 60
