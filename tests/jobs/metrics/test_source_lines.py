"""Test the source sentence of a statement in its context, and the search for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from untold.jobs.metrics.views import stating_lines, stating_sentence

CONTEXT = "Osk was founded in 1187. The mill of Osk closed in 1950. It is old."


@pytest.mark.parametrize(
    ("statement", "context", "found"),
    [
        ("the mill of Osk closed in 1950", CONTEXT, ("The mill of Osk closed in 1950.", True)),
        ("In 1950 the mill closed", CONTEXT, ("The mill of Osk closed in 1950.", False)),
        ("Osk was founded in 1240", CONTEXT, ("Osk was founded in 1187.", False)),
        ("Bees make honey", CONTEXT, None),
        ("", CONTEXT, None),
        ("Bees make honey", "", None),
        ("奥斯克湖深九十三米", "奥斯克磨坊关闭了。\n奥斯克湖水深九十三米。", ("奥斯克湖水深九十三米。", False)),
        ("水深九十三米", "奥斯克磨坊关闭了。\n奥斯克湖水深九十三米。", ("奥斯克湖水深九十三米。", True)),
    ],
)
def test_the_sentence_with_the_most_words_of_a_statement_states_it(
    statement: str, context: str, found: tuple[str, bool] | None
) -> None:
    assert stating_sentence(statement, context) == found


@pytest.mark.parametrize(
    ("sources", "contexts", "lines"),
    [
        (None, {"a": CONTEXT}, []),
        (["a"], {"a": CONTEXT}, ["stated in context a", "a (found by shared words): Osk was founded in 1187."]),
        (["a", "b"], {"a": "Osk is a town.", "b": "Rain."}, ["stated in contexts a, b", "a: Osk is a town."]),
        (["a", "c#1"], {"a": "Rain."}, ["stated in context a", "stated in chunk c#1"]),
        (["a\n\x1b"], {}, ["stated in context a �"]),
    ],
)
def test_sources_are_shown_with_their_sentences(
    sources: Sequence[str] | None, contexts: Mapping[str, str], lines: list[str]
) -> None:
    told = stating_lines("Osk is a town", sources, contexts, quoted=True)
    assert [(start + text).strip() for text, start, _ in told] == lines


def test_a_long_sentence_is_cut() -> None:
    ((text, *_),) = list(stating_lines("town", ["a"], {"a": "town " * 1_000}, quoted=True))[1:]
    assert text.endswith("…")
    assert len(text) < 600
