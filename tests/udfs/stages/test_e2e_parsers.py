"""Test the parser of covered and uncovered statements."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.udfs.stages.e2e_read import Read, coverage, lists
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.e2e import EVALUATE_COVERAGE, SUMMARISE_CONTEXT


def one(line: str, contexts: int = 3) -> tuple[str, list[int]]:
    """Return the text and the sources of the only statement."""
    [(text, _, sources)] = coverage(lists(line, "None"), contexts)
    return text, sources


SUN_AND_MOON: Read = [("The sun is hot.", True, [1, 3]), ("The moon is cold.", False, [2])]

REALISTIC = {
    "contract": "[Covered statements]\n- The sun is hot. [1, 3]\n\n[Uncovered statements]\n- The moon is cold. [2]",
    "windows line ends": "[Covered statements]\r\n- The sun is hot. [1, 3]\r\n"
    "[Uncovered statements]\r\n- The moon is cold. [2]\r\n",
    "preamble": "Let me see. Context 1 says hot.\n\n[Covered statements]\n- The sun is hot. [1, 3]\n"
    "[Uncovered statements]\n- The moon is cold. [2]",
    "bold headings": "**[Covered Statements]**\n\n* The sun is hot. [1,3]\n\n"
    "**[Uncovered Statements]**\n\n* The moon is cold. [2]",
    "colons": "Covered statements:\n• The sun is hot. [1, 3]\nUncovered statements:\n• The moon is cold. [2]",
    "bold colons": "**Covered statements:**\n– The sun is hot. [1, 3]\n"
    "**Uncovered statements:**\n– The moon is cold. [2]",
    "markdown": "### Covered statements\n1. The sun is hot. [1, 3]\n\n"
    "### UNCOVERED STATEMENTS\n1. The moon is cold. [2]",
    "numbered headings": "1. [Covered statements]\n   - The sun is hot. [1, 3]\n"
    "2. [Uncovered statements]\n   - The moon is cold. [2]",
    "one fence": "Sure!\n```text\n[Covered statements]\n- The sun is hot. [1, 3]\n\n"
    "[Uncovered statements]\n- The moon is cold. [2]\n```\nDone.",
    "fences": "[Covered statements]\n```\n- The sun is hot. [1, 3]\n```\n"
    "[Uncovered statements]\n```\n- The moon is cold. [2]\n```",
    "bold items": "[Covered statements]\n- **The sun is hot.** [1, 3]\n"
    "[Uncovered statements]\n- **The moon is cold. [2]**",
    "bold numbers": "[Covered statements]\n**1.** The sun is hot. [1, 3]\n"
    "[Uncovered statements]\n**1. The moon is cold.** [2]",
    "worded": "[Covered statements]\n- The sun is hot. [Context 1, Context 3]\n"
    "[Uncovered statements]\n- The moon is cold. (Context 2)",
    "note": "[Covered statements]\n(1) The sun is hot. [1, 3]\n[Uncovered statements]\n(1) The moon is cold. [2]\n\n"
    "Note: statement 1 stands in both [1, 3].\n---\nThe response covers half.",
    "notes with bullets": "[Covered statements]\n- The sun is hot. [1, 3]\n"
    "[Uncovered statements]\n- The moon is cold. [2]\n\n"
    "**Notes:**\n- I merged two contexts.\n- Nothing else.",
    "thinking": "<think>\n[Covered statements]\n- draft [1]\n</think>\n[Covered statements]\n- The sun is hot. [1, 3]\n"
    "[Uncovered statements]\n- The moon is cold. [2]",
    "draft before": "[Covered statements]\n- Draft [1]\n[Uncovered statements]\n- Draft two [2]\nWait, again.\n"
    "[Covered statements]\n- The sun is hot. [1, 3]\n[Uncovered statements]\n- The moon is cold. [2]",
    "other order": "[Uncovered statements]\n- The moon is cold. [2]\n[Covered statements]\n- The sun is hot. [1, 3]",
    "headings in prose": "I list covered statements and then uncovered statements.\n"
    "The [Covered statements] come first.\n"
    "[Covered statements]\n- The sun is hot. [1, 3]\n[Uncovered statements]\n- The moon is cold. [2]\n\n"
    "The uncovered statements are few.",
    "no bullets": "[Covered statements]\nThese are covered:\nThe sun is hot. [1, 3]\n\n"
    "[Uncovered statements]\nThe moon is cold. [2]\n",
    "by context": "[Covered statements]\n**Context 1:**\n- The sun is hot. [1, 3]\n"
    "[Uncovered statements]\n- Context 2:\n  - The moon is cold. [2]",
    "wrapped": "[Covered statements]\n- The sun\n  is hot. [1, 3]\n"
    "[Uncovered statements]\n- The moon\nis cold. [2]\nThat is all.",
    "wrapped bracket": "[Covered statements]\n- The sun is hot. [1,\n  3]\n"
    "[Uncovered statements]\n- The moon is cold.\n  [2]",
    "remark by heading": "[Covered statements] (in the response)\n- The sun is hot. [1, 3]\n"
    "[Uncovered statements]: - The moon is cold. [2]",
    "gpt brackets": "[Covered statements]\n- The sun is hot. 【1, 3】\n"
    "[Uncovered statements]\n- The moon is cold. 【2】",
}


@pytest.mark.parametrize(
    ("line", "text", "sources"),
    [
        ("- The sum [of 3] was paid [1, 3]", "The sum [of 3] was paid", [1, 3]),
        ("- A [1] [2]", "A", [1, 2]),
        ("- A [3,1 , 1]", "A", [1, 3]),
        ("- A [2, 4, 99999999999999999999]", "A", [2]),
        ("- A [1-3]", "A", [1, 2, 3]),
        ("- A [contexts 1 and 2]", "A", [1, 2]),
        ("- A [Contexts: 1; 3]", "A", [1, 3]),
        ("- A [C1, C2]", "A", [1, 2]),
        ("- A [1].", "A", [1]),
        ("- A. [1];", "A.", [1]),
        ("- `A [1]`", "A", [1]),
        ("- A (parts 1, 3) [2]", "A (parts 1, 3)", [2]),
        ("- 1. FC Köln won [1]", "1. FC Köln won", [1]),
        ("1.5 million came [1]", "1.5 million came", [1]),
        ("- **Mounted mint (MM)** – same as **b** [1]", "**Mounted mint (MM)** – same as **b**", [1]),
        ('- "A" is "b" [1]', '"A" is "b"', [1]),
        ("+ A [1]", "A", [1]),
        ("— A [1]", "A", [1]),
        ("12) A [1]", "A", [1]),
    ],
)
def test_a_line_is_split_into_text_and_sources(line: str, text: str, sources: list[int]) -> None:
    assert one(line) == (text, sources)


@pytest.mark.parametrize(
    "empty", ["", "None", "none.", "- None", "* **None**.", "(none)", "```\nNone\n```", "[None]", "- None []", "---"]
)
def test_an_empty_list_or_a_single_none_is_an_empty_list(empty: str) -> None:
    assert coverage(lists(empty, "- A [1]")) == [("A", False, [1])]
    assert coverage(lists(empty, empty)) == []


def test_none_next_to_its_heading_is_an_empty_list() -> None:
    assert (
        coverage("[Covered statements]: None\n\nNothing.\n**Uncovered statements:** none.\n\nI hope this helps.") == []
    )


def test_plain_sentences_are_not_an_empty_list_even_if_the_other_list_has_items() -> None:
    with pytest.raises(Unparsable):
        coverage(lists("- A [1]", "The sun is hot.\nThe moon is cold."))


@pytest.mark.parametrize(
    "nothing",
    [
        "No statements are left out.",
        "None.\n\nI hope this helps.",
    ],
)
def test_a_statement_that_a_list_is_empty_makes_it_empty(nothing: str) -> None:
    assert coverage(lists("- A [1]", nothing)) == [("A", True, [1])]


def test_prose_without_any_item_is_unparsable() -> None:
    with pytest.raises(Unparsable):
        coverage(lists("The sun is hot.", "None"))


@pytest.mark.parametrize(
    ("completion", "missing"),
    [
        ("", r"\[Covered statements\], \[Uncovered statements\]"),
        ("[Uncovered statements]\n- A [1]", r": \[Covered statements\]$"),
        ("[Covered statements]\n- A [1]", r": \[Uncovered statements\]$"),
        ("[Covered statements]\n- A [1]\nThe uncovered statements are none.", r": \[Uncovered statements\]$"),
        ("<think>[Covered statements]\n[Uncovered statements]", r"\[Covered statements\], "),
    ],
)
def test_a_missing_heading_is_unparsable_and_named(completion: str, missing: str) -> None:
    with pytest.raises(Unparsable):
        coverage(completion)


def test_covered_wins_over_uncovered_and_sources_of_equals_are_united() -> None:
    text = lists("- B [1]\n- A  b [3]\n- A b [1]", "- A b [2]\n- C [1]\n-  C [2]\n- a b [1]")
    assert coverage(text) == [
        ("B", True, [1]),
        ("A  b", True, [1, 2, 3]),
        ("C", False, [1, 2]),
        ("a b", False, [1]),
    ]


def test_rows_fit_the_output_schemas() -> None:
    variables = {"query": "?", "contexts": ["a", "b"], "response": "r"}
    row = EVALUATE_COVERAGE.parse(lists("- A [1, 2]", "- B [2]\n- C"), variables)
    assert pa.Table.from_pylist([row], schema=EVALUATE_COVERAGE.output).to_pylist() == [row]
    assert pa.Table.from_pylist([{"summary": None}], schema=SUMMARISE_CONTEXT.output).num_rows == 1


SOURCELESS = ["A", "A [7]", "A []", "A [None]", "A [sic]", "A [of 3]", "A (1, 3)", "a[1] is B", "The law [2004] was"]


@pytest.mark.parametrize("item", SOURCELESS)
def test_an_item_without_a_shown_context_is_dropped_and_counted_among_others(item: str) -> None:
    variables = {"contexts": ["text"] * 3}
    row = EVALUATE_COVERAGE.parse(lists(f"- B [1]\n- {item}\n- C [2]", "None"), variables)
    assert ([each["text"] for each in row["statements"]], row["dropped"]) == (["B", "C"], 1)


@pytest.mark.parametrize("item", SOURCELESS)
def test_a_list_with_only_such_items_is_unparsable(item: str) -> None:
    with pytest.raises(Unparsable):
        coverage(lists(f"- {item}", "- B [1]"))


@pytest.mark.parametrize(
    "nothing",
    ["[No statements]",
     "- none, all is said", "No covered statements were found.", "- None [1]", "n/a"],
)  # fmt: skip
def test_a_list_that_begins_with_nothing_is_empty(nothing: str) -> None:
    assert coverage(lists(nothing, "- B [1]")) == [("B", False, [1])]


@pytest.mark.parametrize("heading", ["### Summary", "**Summary:**", "Note:", "Summary", "**Overall assessment**"])
def test_a_heading_of_another_name_ends_a_list(heading: str) -> None:
    assert coverage(lists("None", f"- B [1]\n\n{heading}\n- That is one statement.")) == [("B", False, [1])]


@pytest.mark.parametrize("heading", ["[Partially covered statements]", "### Partially covered", "**Partly covered:**"])
def test_partially_covered_statements_are_unparsable(heading: str) -> None:
    with pytest.raises(Unparsable):
        coverage(lists("- A [1]", "- B [1]") + f"\n{heading}\n- C [2]")


@pytest.mark.parametrize(
    ("covered", "uncovered"),
    [
        ("Covered:", "Uncovered:"), ("Covered", "Uncovered"), ("**Covered**", "**Not covered**"),
        ("Covered statements", "Missing statements"), ("## Covered (1)", "## Missing (1)"),
        ("[Covered statements]", "[Not covered statements]"), ("1. **Covered:**", "2. **Uncovered:**"),
    ],
)  # fmt: skip
def test_headings_without_brackets_are_read(covered: str, uncovered: str) -> None:
    assert coverage(f"{covered}\n- The sun is hot. [1, 3]\n\n{uncovered}\n- The moon is cold. [2]") == SUN_AND_MOON


@pytest.mark.parametrize(
    "completion",
    [
        '{"covered_statements": [{"statement": "The sun is hot.", "sources": [1, 3]}],'
        ' "uncovered_statements": [{"statement": "The moon is cold.", "sources": [2]}]}',
        'Here:\n```json\n{"covered": ["The sun is hot. [1, 3]"],\n "uncovered": ["The moon is cold. [2]"]}\n```',
        '[{"text": "The sun is hot.", "covered": true, "contexts": "1, 3"},\n'
        '{"text": "The moon is cold.", "covered": false, "contexts": 2}]',
        "[Covered statements]\n| Statement | Contexts |\n|---|---|\n| The sun is hot. | 1, 3 |\n\n"
        "[Uncovered statements]\n| Statement | Contexts |\n|---|---|\n| The moon is cold. | [2] |",
    ],
)
def test_json_and_tables_are_read(completion: str) -> None:
    assert coverage(completion) == SUN_AND_MOON


NO_TEXT = ["- [1]", "- ~~It has bells~~ [1]", "- \u200b [1]"]


@pytest.mark.parametrize("item", [*NO_TEXT, "- It has bells [1] (not covered)"])
def test_an_item_without_text_or_with_two_labels_is_unparsable(item: str) -> None:
    with pytest.raises(Unparsable):
        coverage(lists(f"- The tower is old [1]\n{item}", "None"), 2)


@pytest.mark.parametrize("text", ["", " ", "\u200b"])
def test_a_statement_of_json_without_text_is_unparsable(text: str) -> None:
    with pytest.raises(Unparsable):
        coverage(json.dumps({"covered": [{"statement": text, "sources": [1]}], "uncovered": []}), 1)
    with pytest.raises(Unparsable):
        coverage(json.dumps({"covered": [f"{text} [1]"], "uncovered": []}), 1)


@pytest.mark.parametrize(
    "item", ["None", "Nothing is covered", "None of the above", "The response covers no statement", "No statements"]
)
def test_an_item_that_names_no_statement_is_none(item: str) -> None:
    assert coverage(lists(f"- The tower is old [1]\n- {item} [1]", "None"), 1) == [("The tower is old", True, [1])]
    said = [{"statement": text, "sources": [1]} for text in ("The tower is old", item)]
    assert coverage(json.dumps({"covered": said, "uncovered": []}), 1) == [("The tower is old", True, [1])]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("Meaning depends on context [1]", "Meaning depends on context"),
        ("He read all sources [1]", "He read all sources"),
        ("It is blue (context: [1])", "It is blue"),
        ("It is blue. **Sources:** [1]", "It is blue."),
        ("It is blue – context [1]", "It is blue"),
        ("It is blue source: [1]", "It is blue"),
    ],
)
def test_the_label_of_sources_is_no_part_of_a_statement(item: str, text: str) -> None:
    assert one(f"- {item}") == (text, [1])
