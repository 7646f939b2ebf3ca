"""Test the parsers of atoms, revised atoms and the ratings of atoms."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.udfs.stages.nli_read import NLI, Units, ratings, revised, units
from untold.udfs.ratings import Digit, weigh
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.nli import (
    CLASSIFY_RELATION,
    EXTRACT_ATOMS,
    RATE_RELEVANCE,
    REVISE_ATOMS,
)


def test_the_stages_are_registered_with_their_variables() -> None:
    assert {stage.name: stage.variables for stage in NLI} == {
        "extract_atoms": ("text",),
        "revise_atoms": ("text", "statements"),
        "rate_relevance": ("query", "statements"),
        "classify_relation": ("premise", "hypothesis"),
    }
    assert [stage for stage in NLI if stage.rated] == [RATE_RELEVANCE]
    assert all(STAGES[stage.name] is stage for stage in NLI)


SUN_AND_MOON: Units = [("The sun is hot", "Fact"), ("He thinks: the moon is cold", "Claim")]

UNIT_LISTS = {
    "contract": "- The sun is hot: Fact\n- He thinks: the moon is cold: Claim",
    "windows line ends": "- The sun is hot: Fact\r\n- He thinks: the moon is cold: Claim\r\n",
    "preamble and note": "Here are the units:\n\n- The sun is hot: Fact\n- He thinks: the moon is cold: Claim\n\n"
    "I left out nothing.",
    "other bullets": "* The sun is hot: Fact\n• He thinks: the moon is cold: Claim",
    "numbers": "1. The sun is hot: Fact\n2) He thinks: the moon is cold: Claim",
    "no bullets": "The units are:\nThe sun is hot: Fact\nHe thinks: the moon is cold: Claim\n",
    "one bullet forgotten": "- The sun is hot: Fact\nHe thinks: the moon is cold: Claim",
    "case and plural": "- The sun is hot: FACTS\n- He thinks: the moon is cold: claims",
    "bold types": "- The sun is hot: **Fact**\n- He thinks: the moon is cold: **Claim**.",
    "bold units": "- **The sun is hot**: Fact\n- **He thinks: the moon is cold:** Claim",
    "bold lines": "- **The sun is hot: Fact**\n- *He thinks: the moon is cold: Claim*",
    "brackets": "- The sun is hot: [Fact]\n- He thinks: the moon is cold: (Claim).",
    "brackets without a colon": "- The sun is hot [Fact]\n- He thinks: the moon is cold (Claim)",
    "labelled types": "- The sun is hot: Unit Type: Fact\n- He thinks: the moon is cold [Type: Claim]",
    "full-width colon": "- The sun is hot：Fact\n- He thinks: the moon is cold： Claim",
    "fence": "```\n- The sun is hot: Fact\n- He thinks: the moon is cold: Claim\n```",
    "wrapped": "- The sun\n  is hot: Fact\n- He thinks:\nthe moon is\n  cold: Claim",
    "wrapped without bullets": "The sun is hot: Fact\nHe thinks:\nthe moon is cold: Claim",
    "rule and heading": "## Units\n---\n- The sun is hot: Fact\n- - -\n- He thinks: the moon is cold: Claim\n***",
    "notes with bullets": "- The sun is hot: Fact\n- He thinks: the moon is cold: Claim\n\n"
    "**Notes:**\n- I kept the order.",
    "thinking": "<think>\n- Draft: Fact\n</think>\n- The sun is hot: Fact\n- He thinks: the moon is cold: Claim",
    "leading types": "- Fact: The sun is hot\n- **Claim:** He thinks: the moon is cold",
    "leading brackets": "- [Fact] The sun is hot\n- (Claim) He thinks: the moon is cold",
    "dashes": "- The sun is hot - Fact\n- He thinks: the moon is cold — **Claim**",
    "remarks": "- The sun is hot: Fact (verifiable)\n- He thinks: the moon is cold: Claim (opinion)",
    "groups by type": "### Facts\n- The sun is hot\n\n### Claims\n- He thinks: the moon is cold",
    "groups by bold type": "**Facts:**\n\n1. The sun is hot\n\n**Claims:**\n\n1. He thinks: the moon is cold\n\n"
    "**Questions:**\n\nNone",
    "nested groups": "- Facts:\n  - The sun is hot\n- Claims:\n  - He thinks: the moon is cold",
    "table": "| # | Unit | Type |\n|---|---|---|\n| 1 | The sun is hot | Fact |\n"
    "| 2 | He thinks: the moon is cold | Claim |",
    "json": 'Here:\n```json\n[{"unit": "The sun is hot", "type": "Fact"},\n'
    ' {"unit": "He thinks: the moon is cold", "type": "claim"}]\n```',
    "json by type": '{"facts": ["The sun is hot"], "claims": ["He thinks: the moon is cold"]}',
    "json lines": '{"text": "The sun is hot", "unit_type": "Fact"}\n'
    '{"text": "He thinks: the moon is cold", "unit_type": "Claim"}',
    "type below": "1. Unit: The sun is hot\n   Type: Fact\n2. Unit: He thinks: the moon is cold\n   Type: Claim",
    "ticks": "✅ The sun is hot: Fact\n✅ He thinks: the moon is cold: Claim",
    "channels": "<|channel|>analysis<|message|>- Draft: Fact<|end|><|start|>assistant<|channel|>final<|message|>"
    "- The sun is hot: Fact\n- He thinks: the moon is cold: Claim<|return|>",
    "glued channels": "analysisI split it.assistantfinal- The sun is hot: Fact\n- He thinks: the moon is cold: Claim",
    "indented": "- The sun is hot: Fact\n    - He thinks: the moon is cold: Claim",
}


@pytest.mark.parametrize(
    ("written", "unit_type"),
    [
        ("Fact", "Fact"),
        ("claim", "Claim"),
        ("Instructions", "Instruction"),
        ("Data format", "Data Format"),
        ("DATA-FORMAT", "Data Format"),
        ("data formats.", "Data Format"),
        ("Meta Statement", "Meta Statement"),
        ("meta-statements", "Meta Statement"),
        ("question", "Question"),
        ("_Other_", "Other"),
    ],
)
def test_a_type_is_known_in_any_spelling(written: str, unit_type: str) -> None:
    assert units(f"- What is it? : {written}") == [("What is it?", unit_type)]


@pytest.mark.parametrize(
    ("line", "unit"),
    [
        ("- At 10:30 it began: Fact", "At 10:30 it began"),
        ("- 1. FC Köln won: Fact", "1. FC Köln won"),
        ("- 1912 was dry: Fact", "1912 was dry"),
        ('- "Fact: or fiction" is a book: Fact', '"Fact: or fiction" is a book'),
        ("- It is a **big** claim: Fact", "It is a **big** claim"),
        ("- **Bold** start and **bold**: Fact", "**Bold** start and **bold**"),
        ("- {'a': 1}: Data Format", "{'a': 1}"),
        ("- See http://example.org/a:b: Other", "See http://example.org/a:b"),
    ],
)
def test_the_type_follows_the_last_colon(line: str, unit: str) -> None:
    assert [text for text, _ in units(line)] == [unit]


LONE_NONE = ["None", "none.", "- None", "* **None**.", "(none)", "```\nNone\n```", "<think>x</think>None", "NONE"]


@pytest.mark.parametrize("completion", [*LONE_NONE, "None\n\nNote: the text is empty."])
def test_a_single_none_is_not_an_atom(completion: str) -> None:
    assert units(completion) == []
    assert revised(completion) == []


@pytest.mark.parametrize(
    "completion",
    [
        "",
        " \n",
        "The sun is hot.",
        "- The sun is hot",
        "- The sun is hot: Truth",
        "- The sun is hot: Fact or Claim",
        "- The sun is hot: Fact\n- The moon is cold",
        "- The sun is hot\n- The moon is cold: Fact",
        "- The sun is hot\n\nThat is all.",
        "**Facts:**\n- The sun is hot\n\n### Opinions\n- The moon is cold",
        "- : Fact",
        "<think>- The sun is hot: Fact",
    ],
)
def test_units_without_a_known_type_are_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable) as raised:
        units(completion)
    assert "sun" not in str(raised.value)


REVISED_LISTS = {
    "contract": "* The sun is hot.\n* The moon: cold.",
    "dashes and preamble": "Sure! Here are the statements:\n- The sun is hot.\n- The moon: cold.",
    "numbers": "1. The sun is hot.\n2. The moon: cold.",
    "bold": "* **The sun is hot.**\n* **The moon: cold.**",
    "fence": "```text\n* The sun is hot.\n* The moon: cold.\n```",
    "blank lines and note": "* The sun is hot.\n\n* The moon: cold.\n\nNote: I replaced pronouns.",
    "notes with bullets": "* The sun is hot.\n* The moon: cold.\n\n**Changes:**\n* I replaced pronouns.",
    "wrapped": "* The sun\n  is hot.\n* The moon:\n  cold.\nThat is all.",
    "groups": "* Sentence 1:\n  * The sun is hot.\n* Sentence 2:\n  * The moon: cold.",
    "rules": "---\n* The sun is hot.\n* * *\n* The moon: cold.\n* \n---",
    "thinking": "<think>* He is hot.</think>* The sun is hot.\n* The moon: cold.",
    "no space": "*The sun is hot.\n*The moon: cold.",
    "heading item": "* Revised statements:\n* The sun is hot.\n* ## Moon\n* The moon: cold.",
    "heading between": "1. The sun is hot.\n**Moon**\n2. The moon: cold.",
    "goes on in lower case": "* The sun\nis hot.\n* The moon: cold.",
    "json": '["The sun is hot.", "The moon: cold."]',
    "json objects": '{"statements": [{"id": 1, "statement": "The sun is hot."},'
    ' {"id": 2, "statement": "The moon: cold."}]}',
    "table": "| No. | Statement |\n|--|--|\n| 1 | The sun is hot. |\n| 2 | The moon: cold. |",
    "channel behind a tag": "<|start|>assistant<|channel|>final<|message|>* The sun is hot.\n* The moon: cold.<|end|>",
    "tick boxes": "- [x] The sun is hot.\n- [ ] The moon: cold. ✅",
}


@pytest.mark.parametrize(
    "completion",
    [
        '["The sun is hot.", "The moon',
        '* The sun is hot.\n["The moon is cold."]',
        "* The sun is hot.\nThe moon is cold.\n* The sea is wet.",
        '[{"note": "The sun is hot."}]',
    ],
)
def test_lists_that_could_lose_a_statement_are_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable) as raised:
        revised(completion)
    assert "sun" not in str(raised.value)


@pytest.mark.parametrize("completion", ["", "*", "---"])
def test_prose_is_not_a_list_of_statements(completion: str) -> None:
    with pytest.raises(Unparsable):
        revised(completion)


THREE = ["The tower is high", "It has [3 of 5] floors", "1. FC Köln won"]

RATED_LISTS = {
    "contract": "* The tower is high [Relevance: 4]\n* It has [3 of 5] floors [Relevance: 1]\n"
    "* 1. FC Köln won [Relevance: 5]",
    "reordered": "* 1. FC Köln won [Relevance: 5]\n* The tower is high [Relevance: 4]\n"
    "* It has [3 of 5] floors [Relevance: 1]",
    "other bullets and case": "- the tower is high. [relevance: 4]\n- It has [3 of 5] floors [RELEVANCE: 1].\n"
    "- 1. FC Köln won [Relevance:5]",
    "numbers": "1. The tower is high [Relevance: 4]\n2. It has [3 of 5] floors [Relevance: 1]\n"
    "3. FC Köln won [Relevance: 5]",
    "no bullets": "The tower is high [Relevance: 4]\nIt has [3 of 5] floors [Relevance: 1]\n"
    "1. FC Köln won [Relevance: 5]",
    "bold": "* **The tower is high** [Relevance: **4**]\n* It has [3 of 5] floors **[Relevance: 1]**\n"
    "* 1. FC Köln won **Relevance:** 5",
    "parentheses and fractions": "* The tower is high (Relevance: 4)\n* It has [3 of 5] floors - Relevance: 1/5\n"
    "* 1. FC Köln won [Relevance: 5 out of 5]",
    "reasons": "* The tower is high [Relevance: 4 - because]\n* It has [3 of 5] floors [Relevance: 1] (3 is few)\n"
    "* 1. FC Köln won [Relevance: 5, as it says who won in 2 of 3 years]",
    "other words": "* The tower is high [Relevance score: 4]\n* It has [3 of 5] floors [Rating: 1]\n"
    "* 1. FC Köln won [Relevance = 5]",
    "digits alone": "* The tower is high: 4\n* It has [3 of 5] floors [1]\n* 1. FC Köln won (5/5)",
    "table": "| Statement | Relevance |\n|---|---|\n| The tower is high | 4 |\n| It has [3 of 5] floors | 1 |\n"
    "| 1. FC Köln won | 5 |",
    "rating first": "* [Relevance: 4] The tower is high\n* [Relevance: 1] It has [3 of 5] floors\n"
    "* [Relevance: 5] 1. FC Köln won",
    "below": "* The tower is high\n  [Relevance: 4]\n* It has [3 of 5] floors\n  Relevance: 1\n"
    "* 1. FC Köln won\n\n  - Relevance: 5",
    "below with a reason": "The tower is high\nIt is on topic.\nRelevance: 4\nIt has [3 of 5] floors\nRelevance: 1\n"
    "1. FC Köln won\nRelevance: 5",
    "wrapped": "* The tower\n  is high [Relevance: 4]\n* It has [3 of 5]\nfloors [Relevance: 1]\n"
    "* 1. FC Köln won [Relevance: 5]",
    "preamble and note": "On a scale where [Relevance: 5] is best:\n\n* The tower is high [Relevance: 4]\n"
    "* It has [3 of 5] floors [Relevance: 1]\n* 1. FC Köln won [Relevance: 5]\n\nNote: 2 statements matter.",
    "fence": "```\n* The tower is high [Relevance: 4]\n* It has [3 of 5] floors [Relevance: 1]\n"
    "* 1. FC Köln won [Relevance: 5]\n```",
    "thinking": "<think>The tower is high [Relevance: 1]</think>\n* The tower is high [Relevance: 4]\n"
    "* It has [3 of 5] floors [Relevance: 1]\n* 1. FC Köln won [Relevance: 5]",
    "draft": "* The tower is high [Relevance: 2]\n* It has [3 of 5] floors [Relevance: 2]\nOnce more, all of them:\n"
    "* The tower is high [Relevance: 4]\n* It has [3 of 5] floors [Relevance: 1]\n* 1. FC Köln won [Relevance: 5]",
    "reworded": "* The tower is tall [Relevance: 4]\n* It has some floors [Relevance: 1]\n"
    "* FC Cologne won [Relevance: 5]",
    "one reworded": "* The tower is high [Relevance: 4]\n* It has floors [Relevance: 1]\n"
    "* 1. FC Köln won [Relevance: 5]",
    "ratings alone": "Relevance: 4\nRelevance: 1\nRelevance: 5",
    "json": '[{"statement": "The tower is high", "relevance": 4},'
    ' {"statement": "It has [3 of 5] floors", "relevance": "1"},'
    ' {"statement": "1. FC Köln won", "relevance": 5.0}]',
    "json by statement": '{"The tower is high": 4, "It has [3 of 5] floors": 1, "1. FC Köln won": 5}',
    "square brackets win": "* The tower is high (relevance: 3) [Relevance: 4]\n"
    "* It has [3 of 5] floors [Relevance: 1] (relevance: 2 at most)\n* 1. FC Köln won (Relevance: 5), relevance: 3",
    "numbered ratings alone": "1. [Relevance: 4]\n2. [Relevance: 1]\n3. [Relevance: 5]",
}


@pytest.mark.parametrize(
    "said",
    ["0", "6", "45", "10", "4.5", "4,5", "-4", "4-5", "4 or 5", "3 to 4", "4/10", "8/10", "4 out of 10", "4th", "high"],
)
def test_a_rating_off_the_scale_is_unparsable(said: str) -> None:
    with pytest.raises(Unparsable):
        ratings(f"* A [Relevance: 5]\n* B [Relevance: {said}]", ["A", "B"])


@pytest.mark.parametrize("said", ["4", "4.", "4/5", "4 / 5", "4 - because", "4 (of use)"])
def test_a_whole_number_of_the_scale_is_a_rating(said: str) -> None:
    assert ratings(f"* A [Relevance: {said}]", ["A"]) == [4]


@pytest.mark.parametrize(
    ("completion", "missing"),
    [
        ("", 3),
        ("None", 3),
        ("* The tower is high\n* It has [3 of 5] floors\n* 1. FC Köln won", 3),
        ("* The tower is high [Relevance: 4]\n* 1. FC Köln won [Relevance: 5]", 1),
        ("* The tower is tall [Relevance: 4]\n* It has floors [Relevance: 5]", 3),
        ("* The tower is high [Relevance: 4]\n* It has [3 of 5] floors\n* 1. FC Köln won [Relevance: 5]", 1),
        ("* [Relevance: 5] is best\n* The tower is high [Relevance: 4]\n* 1. FC Köln won [Relevance: 5]", 1),
        ("4\n1\n5", 3),
    ],
)
def test_a_missing_rating_is_unparsable_and_counted(completion: str, missing: int) -> None:
    with pytest.raises(Unparsable):
        ratings(completion, THREE)


def test_equal_statements_take_their_ratings_in_order() -> None:
    assert ratings("* A [Relevance: 4]\n* B [Relevance: 1]\n* A [Relevance: 5]", ["A", "B", "A"]) == [4, 1, 5]


def test_statements_that_differ_only_in_punctuation_are_not_merged() -> None:
    assert ratings("* C++ is old [Relevance: 4]\n* C is old [Relevance: 1]", ["C++ is old", "C is old"]) == [4, 1]
    with pytest.raises(Unparsable):
        ratings("* C++ is old [Relevance: 4]", ["C++ is old", "C is old"])


def test_statements_that_differ_in_a_number_are_distinct() -> None:
    statements = [f"It was built in {year}" for year in (1998, 1999)]
    completion = "\n".join(
        f"* {each} [Relevance: {mark}]" for each, mark in zip(reversed(statements), "25", strict=True)
    )
    assert ratings(completion, statements) == [5, 2]


def test_offsets_count_from_the_start_of_the_completion() -> None:
    completion = "  <think>é 4 🙂</think>\r\n\n * A [Relevance: 3]"
    [digit] = RATE_RELEVANCE.parse(completion, {"query": "?", "statements": ["A"]})["ratings"]
    assert digit == Digit(3, completion.rindex("3"))


def test_rows_fit_the_output_schemas() -> None:
    for stage, completion, variables in (
        (EXTRACT_ATOMS, "- A: Fact", {}),
        (REVISE_ATOMS, "* A", {}),
        (RATE_RELEVANCE, "* A [Relevance: 2]", {"statements": ["A"]}),
        (CLASSIFY_RELATION, "neutral", {}),
    ):
        row, _ = weigh(stage.parse(completion, variables), None)
        assert pa.Table.from_pylist([row], schema=stage.output).to_pylist() == [row]
