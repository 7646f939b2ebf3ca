"""The published baselines that ask no model: what of a reference stands verbatim in a generated fact (section 13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
# Of the reference's length, what a common substring has to have for it to count as recalled
LEAST_SHARE = 0.4
# Stands in no text in its shown form
_END = "\0"


def contained(texts: Sequence[str], generated: Sequence[str]) -> list[bool]:
    """ARecall: whether each text is a substring of some generated one; all in their form for matching."""
    haystack = _END.join(generated)
    return [bool(text) and text in haystack for text in texts]


def share_common(references: Sequence[str], generated: Sequence[str], least: float = LEAST_SHARE) -> list[bool]:
    """ERecall: whether the longest common substring with some generated text has that share of a reference's length.

    All in their form for matching. That is so where one of the reference's substrings of the least length that counts
    stands in a generated text. Substrings are numbered, equal ones alike, for doubling lengths (Karp, Miller and
    Rosenberg 1972), and one of any length is the two numbers of its beginning and its end: no text is slow.

    >>> share_common(["the old harbour", "a new bridge"], ["they saw the old pier"])
    [True, False]
    """
    before = _END.join(generated) + _END
    text = before + _END.join(references)
    starts = np.cumsum([len(before), *(len(one) + 1 for one in references)])[:-1]
    lengths = [_least_length(len(one), least) for one in references]
    found = [False] * len(references)
    for size, numbers in _numbered(text, max(lengths, default=0)):
        for place, length in enumerate(lengths):
            if size <= length < 2 * size:
                last = int(starts[place]) + len(references[place]) - length
                found[place] = _has_common(numbers, length - size, len(before) - length, int(starts[place]), last)
    return found


def _least_length(length: int, least: float) -> int:
    """The least substring of a text of that length that has its share; 0 for an empty text, which has none."""
    # Of the quotient, as 0.4 * 5 is more than 2
    return next((size for size in range(max(1, int(least * length)), length + 1) if size / length >= least), 0)


def _numbered(text: str, longest: int) -> Iterator[tuple[int, Numbers]]:
    """For the lengths 1, 2, 4, ... up to `longest` the substrings' numbers, by where they begin."""
    numbers = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
    size = 1
    while size <= longest:
        yield size, numbers
        if 2 * size > longest:
            return
        pairs = numbers[:-size] * (int(numbers.max(initial=0)) + 1) + numbers[size:]
        numbers = np.unique(pairs, return_inverse=True)[1]
        size *= 2


def _has_common(numbers: Numbers, offset: int, ends: int, start: int, last: int) -> bool:
    """Whether a substring that begins from `start` to `last` is one that begins before `ends`, at most.

    Substrings are those whose beginning has one of `numbers` and whose end, `offset` further on, another.
    """
    own = np.arange(start, last + 1)
    wanted = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.bool_)
    wanted[numbers[own]] = True
    others = np.flatnonzero(wanted[numbers[: max(0, ends)]])
    base = len(wanted)
    mine, theirs = (numbers[some] * base + numbers[some + offset] for some in (own, others))
    return bool(np.isin(mine, theirs).any())
