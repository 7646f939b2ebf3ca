from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.linear import assert_linear
from udfs.stages.definitions import Unparsable
from udfs.stages.e2e import EVALUATE_COVERAGE, SUMMARISE_CONTEXT
from udfs.stages.reading import is_none, letters, split_marker, strip_thinking, without_emphasis, without_ticks

DATA = Path(os.environ.get("UNTOLD_DATA", Path(__file__).parents[4] / "shared" / "data"))
RECORDED = DATA / "wikicontradict" / "recorded_e2e"
Read = list[tuple[str, bool, list[int]]]


def coverage(completion: str, contexts: int = 3) -> Read:
    variables = {"query": "?", "contexts": ["text"] * contexts, "response": "answer"}
    row = EVALUATE_COVERAGE.parse(completion, variables)
    return [(each["text"], each["covered"], each["sources"]) for each in row["statements"]]


def lists(covered: str, uncovered: str) -> str:
    return f"[Covered statements]\n{covered}\n[Uncovered statements]\n{uncovered}"


def one(line: str, contexts: int = 3) -> tuple[str, list[int]]:
    """Text and sources of the only statement."""
    [(text, _, sources)] = coverage(lists(line, "None"), contexts)
    return text, sources


def summary(completion: str) -> str | None:
    result: str | None = SUMMARISE_CONTEXT.parse(completion, {"query": "?", "text": "t"})["summary"]
    return result


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


@pytest.mark.parametrize("completion", REALISTIC.values(), ids=REALISTIC.keys())
def test_what_models_write_is_read(completion: str) -> None:
    assert coverage(completion) == SUN_AND_MOON


@pytest.mark.parametrize(
    ("line", "text", "sources"),
    [
        ("- The sum [of 3] was paid [1, 3]", "The sum [of 3] was paid", [1, 3]),
        ("- A [1] [2]", "A [1]", [2]),
        ("- A [3,1 , 1]", "A", [1, 3]),
        ("- A [0, 2, 4, 99999999999999999999]", "A", [2]),
        ("- A [1-3]", "A", [1, 2, 3]),
        ("- A [contexts 1 and 2]", "A", [1, 2]),
        ("- A [Contexts: 1; 3]", "A", [1, 3]),
        ("- A [C1, C2]", "A", [1, 2]),
        ("- A [1].", "A", [1]),
        ("- A. [1];", "A.", [1]),
        ("- A is **b [1]**", "A is **b**", [1]),
        ("- `A [1]`", "A", [1]),
        ("- A [Response, 1]", "A", [1]),
        ("- A (parts 1, 3) [2]", "A (parts 1, 3)", [2]),
        ("- A [1] (by implication).", "A (by implication).", [1]),
        ("- [1, 2] A is B.", "A is B.", [1, 2]),
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
def test_an_empty_list_or_a_lone_none_is_an_empty_list(empty: str) -> None:
    assert coverage(lists(empty, "- A [1]")) == [("A", False, [1])]
    assert coverage(lists(empty, empty)) == []


def test_none_beside_its_heading_is_an_empty_list() -> None:
    assert (
        coverage("[Covered statements]: None\n\nNothing.\n**Uncovered statements:** none.\n\nI hope this helps.") == []
    )


def test_bare_sentences_are_no_empty_list_though_the_other_list_has_items() -> None:
    with pytest.raises(Unparsable, match="neither a list with sources nor None"):
        coverage(lists("- A [1]", "The sun is hot.\nThe moon is cold."))


@pytest.mark.parametrize(
    "nothing", ["No statements are left out.", "None.\n\nI hope this helps.", "Note: all is said."]
)
def test_what_says_that_a_list_is_empty_makes_it_empty(nothing: str) -> None:
    assert coverage(lists("- A [1]", nothing)) == [("A", True, [1])]


def test_prose_without_any_item_is_unparsable() -> None:
    with pytest.raises(Unparsable, match="neither a list with sources nor None"):
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
    with pytest.raises(Unparsable, match=missing):
        coverage(completion)


def test_the_last_heading_of_each_kind_counts_and_ends_at_the_next_of_any_kind() -> None:
    text = lists("- Old [1]", "- B [2]") + "\nCorrection:\n[Covered statements]\n- A [1]"
    assert coverage(text) == [("A", True, [1]), ("B", False, [2])]


def test_covered_wins_over_uncovered_and_sources_of_equals_are_united() -> None:
    text = lists("- B [1]\n- A  b [3]\n- A b [1]", "- A b [2]\n- C [1]\n-  C [2]\n- a b [1]")
    assert coverage(text) == [
        ("B", True, [1]),
        ("A  b", True, [1, 2, 3]),
        ("C", False, [1, 2]),
        ("a b", False, [1]),
    ]


def test_an_unmarked_line_with_sources_is_an_item_after_a_closed_one() -> None:
    assert coverage(lists("- A [1]\nB [2]", "None")) == [("A", True, [1]), ("B", True, [2])]


def test_rows_fit_the_output_schemas() -> None:
    variables = {"query": "?", "contexts": ["a", "b"], "response": "r"}
    row = EVALUATE_COVERAGE.parse(lists("- A [1, 2]", "- B [2]\n- C"), variables)
    assert pa.Table.from_pylist([row], schema=EVALUATE_COVERAGE.output).to_pylist() == [row]
    assert pa.Table.from_pylist([{"summary": None}], schema=SUMMARISE_CONTEXT.output).num_rows == 1


@pytest.mark.parametrize(
    "completion",
    [
        "None",
        "none.",
        "NONE",
        " None \n",
        '"None."',
        "**None**",
        "`None`",
        "```\nNone\n```",
        "```text\nNone.\n```",
        "<think>Hm. It says much.</think>\nNone",
        "Summary: None",
        "**Summary:** None.",
        "## Summary\n\nNone",
        "None. The text deals with cheese.",
        "None - it speaks of nothing else.",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>None<|return|>",
        "None<|im_end|>",
    ],
)
def test_a_lone_none_is_no_summary(completion: str) -> None:
    assert summary(completion) is None


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("The sun is hot.", "The sun is hot."),
        ("  The sun is hot.\n\nThe moon is not.\n", "The sun is hot.\n\nThe moon is not."),
        ("Summary: The sun is hot.", "The sun is hot."),
        ("Summary: **Hot** sun.", "**Hot** sun."),
        ("**Summary:**\nThe sun is hot.", "The sun is hot."),
        ("### Summary\nThe sun is hot.", "The sun is hot."),
        ("Here is the summary of the relevant text:\n\nThe sun is hot.", "The sun is hot."),
        ("```\nThe sun is hot.\n```", "The sun is hot."),
        ("<think>a</think>\n\nThe sun is hot.", "The sun is hot."),
        ("The text says much.\n</think>\n\nThe sun is hot.", "The sun is hot."),
        ("None of the ships sank.", "None of the ships sank."),
        ("None of the drugs is safe", "None of the drugs is safe"),
        ("analysis\nIt is short.\nassistantfinal\nThe sun is hot.", "The sun is hot."),
        ("Summary judgement was given: the case ended.", "Summary judgement was given: the case ended."),
        ("Use the tag <think>x</think> here.", "Use the tag <think>x</think> here."),
    ],
)
def test_a_summary_loses_its_label_and_nothing_else(completion: str, expected: str) -> None:
    assert summary(completion) == expected


@pytest.mark.parametrize(
    "completion", ["", " \n", "<think>so", "<think>a</think>", "Summary:", "```\n```", "a\n</think>\n"]
)
def test_no_answer_is_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        summary(completion)


SOURCELESS = ["A", "A [7]", "A []", "A [None]", "A [sic]", "A [of 3]", "A (1, 3)", "a[1] is B", "The law [2004] was"]


@pytest.mark.parametrize("item", SOURCELESS)
def test_an_item_without_a_shown_context_is_dropped_and_counted_beside_others(item: str) -> None:
    variables = {"contexts": ["text"] * 3}
    row = EVALUATE_COVERAGE.parse(lists(f"- B [1]\n- {item}\n- C [2]", "None"), variables)
    assert ([each["text"] for each in row["statements"]], row["dropped"]) == (["B", "C"], 1)


@pytest.mark.parametrize("item", SOURCELESS)
def test_a_list_of_nothing_but_such_items_is_unparsable(item: str) -> None:
    with pytest.raises(Unparsable, match="neither a list with sources nor None"):
        coverage(lists(f"- {item}", "- B [1]"))


@pytest.mark.parametrize(
    "nothing",
    ["None of them is covered.", "- Nothing is left out", "**N/A** - see above", "[No statements]",
     "- none, all is said", "No covered statements were found.", "- None [1]", "n/a"],
)  # fmt: skip
def test_a_list_that_begins_with_nothing_is_empty(nothing: str) -> None:
    assert coverage(lists(nothing, "- B [1]")) == [("B", False, [1])]


@pytest.mark.parametrize("heading", ["### Summary", "**Summary:**", "Note:", "Summary", "**Overall assessment**"])
def test_a_heading_of_another_name_ends_a_list(heading: str) -> None:
    assert coverage(lists("None", f"- B [1]\n\n{heading}\n- That is one statement.")) == [("B", False, [1])]


def test_statements_below_a_heading_of_an_unknown_name_are_unparsable() -> None:
    with pytest.raises(Unparsable, match="none of the lists"):
        coverage(lists("None", "- B [1]\n\n### Doubtful\n- C [2]"))


@pytest.mark.parametrize("heading", ["[Partially covered statements]", "### Partially covered", "**Partly covered:**"])
def test_partially_covered_statements_are_unparsable(heading: str) -> None:
    with pytest.raises(Unparsable, match="partially"):
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


def reads_as_itself(text: str) -> bool:
    """Whether the text has no decoration of its own that a reader must take for a list's."""
    stripped = text.strip()
    words = letters(stripped).split()
    return (
        bool(stripped)
        and without_emphasis(stripped) == stripped
        and not {"covered", "uncovered", "none", "nothing", "n", "missing", "omitted"} & set(words)
        and without_ticks(stripped) == stripped
    )


texts = st.text(
    st.one_of(
        st.sampled_from("[](){}*-–•`_#:.,\"' 19aé中"), st.characters(exclude_characters="\n", exclude_categories=["Cs"])
    ),
    min_size=1,
    max_size=40,
).filter(reads_as_itself)
statements = st.lists(st.tuples(texts, st.sets(st.integers(1, 5), min_size=1)), max_size=6)


@st.composite
def decorated(draw: st.DrawFn, items: list[tuple[str, set[int]]]) -> str:
    bullet = draw(st.sampled_from(["- ", "* ", "• ", "– ", "  - ", "1. ", "(2) ", "3) "]))
    separator = draw(st.sampled_from([", ", ",", " ; ", " and "]))
    end = draw(st.sampled_from(["", ".", "  ", "\r"]))
    gap = draw(st.sampled_from(["\n", "\n\n"]))
    lines = [f"{bullet}{text} [{separator.join(map(str, sorted(sources)))}]{end}" for text, sources in items]
    return gap.join(lines) or draw(st.sampled_from(["", "None", "- None."]))


@st.composite
def completions(draw: st.DrawFn) -> tuple[str, Read]:
    covered, uncovered = draw(statements), draw(statements)
    heading = draw(st.sampled_from(["[{}]", "**[{}]**", "### {}", "{}:", "**{}:**"]))
    blocks = [
        f"{heading.format(name)}\n{draw(decorated(items))}\n"
        for name, items in (("Covered statements", covered), ("Uncovered Statements", uncovered))
    ]
    if draw(st.booleans()):
        blocks.reverse()
    return draw(st.sampled_from(["", "Reasoning.\n", "<think>a</think>"])) + "\n".join(blocks), expected(
        covered, uncovered
    )


def expected(covered: list[tuple[str, set[int]]], uncovered: list[tuple[str, set[int]]]) -> Read:
    found: dict[str, tuple[str, bool, set[int]]] = {}
    for kind, items in ((True, covered), (False, uncovered)):
        for text, sources in items:
            found.setdefault(" ".join(text.split()), (text.strip(), kind, set()))[2].update(sources)
    return [(text, kind, sorted(sources)) for text, kind, sources in found.values()]


@settings(max_examples=300, deadline=None)
@given(completions())
def test_what_is_rendered_in_the_form_is_read_back(case: tuple[str, Read]) -> None:
    completion, statements_in = case
    assert coverage(completion, contexts=5) == statements_in


pieces = st.one_of(
    st.text(max_size=15),
    st.sampled_from(
        [
            "\n",
            "\n  ",
            "- ",
            "[",
            "]",
            "[1]",
            "(Context 1)",
            "None",
            "```",
            "---",
            "**",
            "1. ",
            "<think>",
            "</think>",
            "[Covered statements]",
            "[Uncovered statements]",
            "Note: ",
            "Notes:",
        ]
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=25).map("".join), st.booleans())
def test_any_text_is_read_or_unparsable(text: str, with_headings: bool) -> None:
    for stage in (SUMMARISE_CONTEXT, EVALUATE_COVERAGE):
        try:
            row = stage.parse(lists(text, text) if with_headings else text, {"contexts": ["a", "b"]})
        except Unparsable:
            continue
        assert set(row) == set(stage.output.names)
        assert all(each["text"].strip() and set(each["sources"]) <= {1, 2} for each in row.get("statements", []))


HOSTILE = [
    *(
        "[",
        "]",
        "[1",
        "- ",
        "- \n",
        "*",
        "(",
        "(context 1",
        "` ",
        "```\n",
        "``` ",
        "[1] ",
        "a\n b\n",
        "- a\n",
        "- a\n b\n",
    ),
    *(" ", "1-", "1 ", "1, ", "#", "-", "None", "İ", "- a:\n  - b\n", "and ", "context ", "Summary: ", "Note: "),
    *("[Covered statements", "[Covered statements]\n", "<think>", "</think>", "<think></think>", "</think> "),
]
LENGTH = 32_000


@pytest.mark.parametrize("piece", HOSTILE)
def test_long_hostile_text_is_read_in_linear_time(piece: str) -> None:
    # As long as the text: stairs of n steps are n² / 2 characters
    def hostile_texts(length: int) -> list[str]:
        text = piece * (length // len(piece))
        stairs = "\n".join(" " * depth + "a" for depth in range(isqrt(2 * length)))
        return [text, lists(text, f"- x {text}]"), lists(f"- [{text}]", f"[1{text}"), lists(stairs, f"```{text}")]

    def read(length: int) -> None:
        for hostile in hostile_texts(length):
            for stage in (SUMMARISE_CONTEXT, EVALUATE_COVERAGE):
                try:
                    row = stage.parse(hostile, {"contexts": ["a", "b"]})
                except Unparsable:
                    row = {}
                assert set(row) <= set(stage.output.names)

    assert_linear(read, LENGTH)


def recorded_rows() -> Iterator[dict[str, Any]]:
    for path in sorted(RECORDED.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"recorded lists are absent ({RECORDED}); set UNTOLD_DATA")
def test_every_recorded_list_is_read_back() -> None:
    unread = []
    for row in recorded_rows():
        shown = [name for name, text in row["context_summaries"].items() if text is not None and text != "None"]
        numbers = {name: number for number, name in enumerate(shown, start=1)}
        given_lists = [
            [
                (each["statement"], {numbers[name] for name in each["context_ids"] if name in numbers})
                for each in row[kind]
            ]
            for kind in ("covered", "uncovered")
        ]
        rendered = ["\n".join(f"- {text} {sorted(sources)}" for text, sources in items) for items in given_lists]
        if coverage(lists(*rendered), len(shown)) != expected(*given_lists):
            unread.append((row["judge"], row["row"], row["answer_field"]))
    assert unread == []


def test_a_marker_is_taken_once() -> None:
    assert split_marker("  - - a").text == "- a"
    assert split_marker("-5 °C").marked is False
    assert split_marker("-The sun").text == "The sun"


def test_only_a_lone_none_is_none() -> None:
    assert is_none("‘None’.")
    assert not is_none("None of them")
    assert not is_none("")


def test_every_leading_think_block_goes() -> None:
    assert strip_thinking(" <Think>a</THINK>\n<think>b</think> c") == "c"
