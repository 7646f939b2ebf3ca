"""Whether two statements say the same words, whatever their order: what a change of meaning rarely leaves in place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from rapidfuzz.distance import Indel
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from untold.udfs.texts import compatible, tokens_in

_DIGIT = re.compile(r"\d")
# Least similarity of two forms of one word: `benefit` and `benefits` have .93, `sleepiness` and `insomnia` .33
SAME_WORD = 0.8

_ARTICLES = "a an the"
_VERBS = "be am is are was were been being have has had having do does did doing done"
_MODALS = "can could may might must shall should will would ought"
# Of two opposites one alone, as `with` and `without`, `to` and `from`, `in` and `out`: a statement that has the other
# says something else
_PREPOSITIONS = (
    "about across along amid amidst among amongst around as at by concerning during for in inside into of on onto per "
    "regarding through throughout to toward towards upon via with within"
)
FUNCTION_WORDS = frozenset(" ".join((_ARTICLES, _VERBS, _MODALS, _PREPOSITIONS)).split())
"""What statements may differ in and still say the same: no negation is among them, and no number."""


@lru_cache(maxsize=20_000)
def words_of(text: str) -> frozenset[str]:
    """The words of a text, compatible and case folded, without `FUNCTION_WORDS`.

    >>> sorted(words_of("The Seine is a river in France."))
    ['france', 'river', 'seine']
    """
    return frozenset(tokens_in(compatible(text).casefold(), apostrophes=True)) - FUNCTION_WORDS


def say_same_words(first: str, second: str) -> bool:
    """Whether two statements say the same words.

    The words that only one of them has pair off, each with one that is nearly equal (Indel similarity of at least
    `SAME_WORD`), and none of them has a digit.

    >>> say_same_words("The benefit occurs in weeks", "Benefits will occur within weeks")
    True
    >>> say_same_words("It was founded in 1912", "It was founded in 1913")
    False
    """
    one, other = words_of(first), words_of(second)
    return one == other or _pair_off(sorted(one - other), sorted(other - one))


def _pair_off(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether there is a one-to-one matching of nearly equal words."""
    if len(first) != len(second) or any(map(_DIGIT.search, (*first, *second))):
        return False
    alike = [[Indel.normalized_similarity(one, other) >= SAME_WORD for other in second] for one in first]
    # Most differ in a word that is like none: that is plain without a matching
    if not all(map(any, alike)):
        return False
    matched = maximum_bipartite_matching(csr_array(np.array(alike)), perm_type="column")
    return bool((matched >= 0).all())
