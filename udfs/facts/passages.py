"""Texts cut into passages at the ends of sentences, for stages that read a bounded number of words at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from untold.udfs.recall.segmentation import sentences
from untold.udfs.texts import count_words, sentence_ends

# No sentence runs over one
_BLANK_LINES = re.compile(r"\n\s*\n")
# The tokenizer's time is quadratic in a word's signs: 48,000 of them took it 1.3 s. No sentence ends within so long a
# word, but what has one is no prose
_LONGEST_WORD = re.compile(r"\S{5000}")
# The number of sentences before and after a sentence in the published window
BEFORE, AFTER = 3, 1


def cut_passages(text: str, words: int) -> Iterator[str]:
    """The passages of a text: as many whole sentences each as have at most `words` words; a longer one stays whole.

    Words are as `split_words` has them. Within a passage nothing changes; white space between passages goes. A text
    without a word has none. Sentences end as nupunkt has it, at `sentence_ends`, and at blank lines.

    >>> list(cut_passages("Ada lives in Lyon. She owns a boat. She likes tea.", 8))
    ['Ada lives in Lyon. She owns a boat.', 'She likes tea.']
    """
    if count_words(text) <= words:
        yield from filter(None, [text.strip()])
        return
    start = end = held = 0
    for first, last in _sentence_spans(text):
        size = count_words(text[first:last])
        if held and held + size > words:
            yield text[start:end].strip()
            start, held = first, 0
        end, held = last, held + size
    yield from filter(None, [text[start:end].strip()])


def cut_windows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each sentence of a text between the sentences before and after it (VeriScore, Song et al. 2024).

    >>> list(cut_windows("Ada sails.\\nShe swims. It rains."))[1]
    ('Ada sails.', 'She swims.', 'It rains.')
    """
    # A text of signs only has no sentence
    found = list(filter(None, sentences(text))) or [text.strip()]
    for at, sentence in enumerate(found):
        yield " ".join(found[max(0, at - BEFORE) : at]), sentence, " ".join(found[at + 1 : at + 1 + AFTER])


def _sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where each sentence of a text starts and ends; together they are the text."""
    # Only where a text is long: its model takes a while to be read
    from nupunkt import sent_spans

    start = 0
    ends = {found.end() for pattern in (_BLANK_LINES, _LONGEST_WORD) for found in pattern.finditer(text)}
    for end in sorted(ends | {*sentence_ends(text), len(text)}):
        yield from ((start + first, start + last) for first, last in sent_spans(text[start:end]))
        start = end
