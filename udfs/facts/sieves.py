"""Pairs of texts that are taken for neutral without a judgement, and the few of them that are judged all the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from untold.udfs.facts.words import FUNCTION_WORDS
from untold.udfs.texts import compatible, tokens_in

Places = NDArray[np.int64]
Flags = NDArray[np.bool_]
Sifted = Callable[[Places, Places], tuple[Flags, Flags]]

_PRONOUNS = (
    "i me my mine we us our ours you your yours he him his she her hers it its they them their theirs one this that "
    "these those there here who whom whose which what when where why how self himself herself itself themselves"
)
_CONNECTIVES = (
    "and or but nor not no than then as if so because since while although though also too only just very more most "
    "much many some any all both each every either neither other another such same own well however therefore thus "
    "from out off over under up down before after between again further once without against until during"
)
STOP_WORDS = FUNCTION_WORDS | frozenset(f"{_PRONOUNS} {_CONNECTIVES}".split())
"""English words that two statements may share and yet speak of nothing in common; numbers are none of them."""


def content_words(text: str) -> frozenset[str]:
    """The tokens of a text, compatible and case folded, without `STOP_WORDS`; a number is always content.

    >>> sorted(content_words("It was not built in the 1920s, but in 1874."))
    ['1874', '1920s', 'built']
    """
    return frozenset(tokens_in(compatible(text).casefold(), apostrophes=True)) - STOP_WORDS


@dataclass(frozen=True)
class Sieve:
    """A filter of pairs: `none`, `words`, `vectors` or `either`, and the share of what it takes that is audited.

    `words` takes pairs that share no content word, `vectors` those whose cosine is below `cosine`; `either` takes what
    one of both takes. A text without a vector has no cosine.
    """

    filter: str = "none"
    cosine: float = 0.0
    audit: float = 0.0

    def __bool__(self) -> bool:
        return self.filter != "none"

    @property
    def needs_vectors(self) -> bool:
        """Whether owners need the column vectors."""
        return self.filter in ("vectors", "either")

    def of(self, owner: Mapping[str, Any]) -> Sifted:
        """Says of pairs (source, target) of the owner's `texts` which are taken, and which of these are audited."""
        if not self:
            return lambda source, target: (np.zeros(len(source), dtype=bool), np.zeros(len(source), dtype=bool))
        texts: Sequence[str] = owner["texts"]
        apart = np.zeros((len(texts), len(texts)), dtype=bool)
        if self.filter in ("words", "either"):
            apart |= ~_share_words(texts)
        if self.needs_vectors:
            apart |= _are_far(owner["vectors"], self.cosine)

        def sift(source: Places, target: Places) -> tuple[Flags, Flags]:
            taken = apart[source, target]
            audited = np.zeros(len(source), dtype=bool)
            for place in np.flatnonzero(taken):
                audited[place] = is_audited(texts[source[place]], texts[target[place]], self.audit)
            return taken, audited

        return sift


def is_audited(premise: str, hypothesis: str, share: float) -> bool:
    """Whether a pair is among this share of all pairs, by a hash of its texts: the same in every run."""
    digest = blake2b(json.dumps([premise, hypothesis]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def _share_words(texts: Sequence[str]) -> Flags:
    """bool[n, n]: whether two texts share a content word."""
    # Half a second, which processes that sift nothing spare
    from scipy.sparse import csr_array

    words = [content_words(text) for text in texts]
    numbers = {word: number for number, word in enumerate(sorted(frozenset().union(*words)))}
    rows = [row for row, found in enumerate(words) for _ in found]
    columns = [numbers[word] for found in words for word in found]
    held = csr_array((np.ones(len(rows), dtype=np.int32), (rows, columns)), shape=(len(texts), max(1, len(numbers))))
    shared: Flags = (held @ held.T).toarray() > 0
    return shared


def _are_far(vectors: Sequence[Sequence[float] | None], least: float) -> Flags:
    """bool[n, n]: whether the cosine of two vectors of length 1, by six decimals, is below the least."""
    known = np.array([vector is not None for vector in vectors])
    size = next((len(vector) for vector in vectors if vector is not None), 1)
    matrix = np.array([np.zeros(size) if vector is None else vector for vector in vectors], dtype=np.float64)
    far: Flags = np.round(matrix @ matrix.T, 6) < least
    both: Flags = known[:, None] & known[None, :]
    return far & both
