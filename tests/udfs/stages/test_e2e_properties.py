"""Test the parsers of e2e with any text: valid completions are parsed without loss, and no text takes a long time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import assert_linear
from tests.udfs.stages.e2e_read import Read, coverage, lists
from untold.udfs.stages import Unparsable
from untold.udfs.stages.e2e import EVALUATE_COVERAGE, SUMMARISE_CONTEXT
from untold.udfs.stages.non_answers import NONE_WORDS
from untold.udfs.stages.reading import letters, without_emphasis, without_ticks

DATA = Path(os.environ.get("UNTOLD_DATA", Path(__file__).parents[4] / "shared" / "data"))
PROMPTS = Path(__file__).parents[3] / "conf" / "prompts"
RECORDED = DATA / "wikicontradict" / "recorded_e2e"


def reads_as_itself(text: str) -> bool:
    """Return True if the text has no decoration that a parser must remove."""
    stripped = text.strip()
    words = letters(stripped).split()
    return (
        any(sign.isprintable() and not sign.isspace() for sign in stripped)
        and stripped.strip("*_`~") == without_emphasis(stripped) == stripped
        and not {"covered", "uncovered", "nothing", "n", "missing", "omitted"} & set(words)
        and without_ticks(stripped) == stripped
        and not NONE_WORDS & set(words)
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


@given(st.lists(pieces, max_size=25).map("".join), st.booleans())
def test_any_text_is_read_or_unparsable(text: str, with_headings: bool) -> None:
    for stage in (SUMMARISE_CONTEXT, EVALUATE_COVERAGE):
        try:
            row = stage.parse(lists(text, text) if with_headings else text, {"contexts": ["a", "b"]})
        except Unparsable:
            continue
        assert set(row) == set(stage.output.names)
        assert all(each["text"].strip() and set(each["sources"]) <= {1, 2} for each in row.get("statements", []))


others = st.sampled_from(
    [
        *("Left-out facts:\n", "**Not covered**\n", "Partly covered:\n", "MISSED STATEMENTS (2)\n", "### omitted\n"),
        *("[1, 2]", "[2,1]", "[1,  2]", "[01]", "[9]", "[-1]", "[1-2]", "<br>\n", "\\\n", "\u200b\n", " \t\n", "\n\n"),
    ]
)
written = completions().map(lambda case: case[0])

# Words that have a meaning for the parser, at any position in a valid completion
WORDS = [
    *(
        "Covered",
        "uncovered",
        "statements",
        "statement:",
        "None",
        "nothing",
        "n/a",
        "no statements",
        "Half",
        "left out",
    ),
    *("partly", "partially", "covered", "(partly covered)", "- half -", "Partial:", "missing", "omitted", "facts"),
    *("atomic", "in the response", "by the response", "Overall, the response", "Note:", "Sources:", "Context 1:", "-"),
    *(
        "Wait,",
        "Final:",
        "I cannot help with this.",
        "Thinking:",
        "analysis",
        "assistantfinal",
        "\u0131n part\u0131al",
        "keine",
        "解",
        "なし",
        "1.",
        "a)",
    ),
    *("It rose.", "'quoted'", "(1931)", "✅", "→", "\u2028", "\x0b", "\xa0", "Ｃovered", "->", "because", "x"),
]
DECORATIONS = ["&lt;", "|", "~~a~~", "**a**", "[a]", "<b>", "\\n", "{"]


def in_form(phrases: st.SearchStrategy[str], **instead: list[str]) -> st.SearchStrategy[str]:
    """Return valid completions with these phrases. `instead` adds other bullets, numbers and introductions."""
    bullets = st.sampled_from(["- ", "- ", "* ", "• ", "1. ", "12. ", *instead.get("bullets", [])])
    numbers = st.sampled_from(["1", "2", "1, 2", "2, 1", "1, 9", "9", *instead.get("numbers", [])])
    items = st.lists(st.builds("{}{} [{}]\n".format, bullets, phrases, numbers), min_size=1, max_size=3).map("".join)
    begins = st.sampled_from(["Context 1", "Context 2 says that ", "", "Reasoning: ", *instead.get("begins", [])])
    return st.builds(
        "{}{}[Covered statements]\n{}{}[Uncovered statements]\n{}{}".format,
        st.lists(st.builds("{}{}\n".format, begins, phrases), max_size=2).map("".join),
        st.sampled_from(["", "\n", *instead.get("breaks", [])]),
        items | st.just("None\n"),
        st.sampled_from(["", "\n", "\n\n", *instead.get("between", [])]),
        items | st.just("None\n"),
        st.sampled_from(["", "\n", *instead.get("behind", [])]),
    )


usual = in_form(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join))
nearly = in_form(
    st.lists(st.sampled_from([*WORDS, *DECORATIONS]), max_size=4).map(" ".join),
    bullets=["  - ", "-", "", "(1) "],
    numbers=["1,2", "0", "01", "None", ""],
    begins=["Contextual", "◁/think▷", "**Thoughts:** "],
    breaks=[" \n"],
    between=["And:\n"],
    behind=["\nThat is all.", "<|im_end|>"],
)


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
    # The stairs are as long as the text: n steps have n² / 2 characters
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
        if any(text.endswith("]") for items in given_lists for text, _ in items):
            continue  # the recorded text still contains a source
        rendered = ["\n".join(f"- {text} {sorted(sources)}" for text, sources in items) for items in given_lists]
        if coverage(lists(*rendered), len(shown)) != expected(*given_lists):
            unread.append((row["judge"], row["row"], row["answer_field"]))
    assert unread == []
