"""Whatever text is given to the stages of e2e: what is in the form is read back, and nothing takes long."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import assert_linear
from tests.udfs.stages.e2e_read import Read, coverage, lists
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.e2e import EVALUATE_COVERAGE, SUMMARISE_CONTEXT
from untold.udfs.stages.reading import letters, without_emphasis, without_ticks

DATA = Path(os.environ.get("UNTOLD_DATA", Path(__file__).parents[4] / "shared" / "data"))
RECORDED = DATA / "wikicontradict" / "recorded_e2e"


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


@given(written | st.lists(pieces | others, max_size=25).map("".join))
def test_shortcuts_of_the_usual_form_change_no_reading(text: str) -> None:
    def read() -> tuple[Any, str | None]:
        try:
            return EVALUATE_COVERAGE.parse(text, {"contexts": ["a", "b"]}), None
        except Unparsable as error:
            return None, str(error)

    shortly = read()
    readers = "untold.udfs.stages"
    with (
        patch(f"{readers}.sources._PLAIN", re.compile("(?!)")),
        patch(f"{readers}.coverage._OF_HEADINGS", ("",)),
        patch(f"{readers}.reading._BREAKS", ("",)),
    ):
        assert read() == shortly


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
