"""Cutting texts into facts: as lists, by sentences, or by what a model extracted (methods, section 13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Literal

from untold.udfs.recall.forms import match_form, shown_form
from untold.udfs.recall.list_facts import Fact, fact_of, name_of
from untold.udfs.recall.list_items import ListItem, ends_with_colon, is_list, read_list
from untold.udfs.texts import sentence_ends

Segmentation = Literal["list", "sentences", "atomic"]
Choice = Literal["auto", "list", "sentences", "atomic"]
# The tokenizer's time is quadratic in a word's signs: 16,000 of them took 0.2 s. No sentence is as long as this
_LONGEST_PIECE = 5_000


def choose_segmentation(wanted: Choice, response: str, references: str | None) -> Segmentation:
    """How a sample's texts are cut. references: their text, None where they are given one by one.

    `auto` mirrors the references: lists where both are lists, sentences beside given references, else atomic facts.
    """
    if wanted != "auto":
        return wanted
    given = references is None
    if is_list(response) and (given or is_list(str(references))):
        return "list"
    return "sentences" if given else "atomic"


def cut(text: str, segmentation: Segmentation, anchor_words: int) -> list[Fact]:
    """The facts of a text by its list or its sentences, in order; none for `atomic`, which a model has to be asked for.

    Cut as a list, a text without items is cut by sentences, as is the prose around them; a lone item is one.
    """
    if segmentation == "atomic":
        return []
    found = read_list(text) if segmentation == "list" else None
    if found is None or not found.items:
        return free_facts(sentences(text))
    return [fact for part in found.parts for fact in _facts_of(part, anchor_words)]


def _facts_of(part: ListItem | str, anchor_words: int) -> list[Fact]:
    """The facts of an item or of prose. An item that only names those below it, or announces some, is none."""
    if isinstance(part, str):
        return free_facts(sentences(part))
    names = [name for line in part.under if (name := name_of(line, anchor_words))]
    fact = fact_of(part.text, anchor_words, names)
    return [] if ends_with_colon(part.text) or (part.parent and not fact.evidence) else [fact]


def free_facts(texts: Iterable[str]) -> list[Fact]:
    """Facts cut out of free text."""
    return [Fact(shown_form(text), free=True) for text in texts]


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, line by line.

    >>> list(sentences("Dr. Varda filmed it. It rained.\\nThe end"))
    ['Dr. Varda filmed it.', 'It rained.', 'The end']
    """
    # Here, as its model takes a while to load, which no other metric needs
    from nupunkt import sent_tokenize

    for line in text.splitlines():
        for piece in _pieces(line):
            yield from (str(sentence).strip() for sentence in sent_tokenize(piece))


def distinct_facts(facts: Iterable[Fact]) -> list[Fact]:
    """The facts in their order, of those of equal form for matching the first; what has none is no fact."""
    first: dict[str, Fact] = {}
    for fact in facts:
        first.setdefault(match_form(fact.text), fact)
    return [fact for form, fact in first.items() if form]


def _pieces(line: str) -> Iterator[str]:
    """A line in pieces that the tokenizer can take: cut at `sentence_ends`, and at a space where there is one."""
    for start, end in pairwise([0, *sentence_ends(line), len(line)]):
        piece = line[start:end]
        while len(piece) > _LONGEST_PIECE:
            cut_at = piece.rfind(" ", 1, _LONGEST_PIECE) + 1 or _LONGEST_PIECE
            yield piece[:cut_at]
            piece = piece[cut_at:]
        yield piece
