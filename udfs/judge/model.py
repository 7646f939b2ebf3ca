"""Compute the probability that a text states a fact, by the small cross-encoder of the package.

A long text is judged as a whole, or in overlapping windows if it does not fit in a window of the model, and in short
windows too: whole sentences and bullets, without most of the foreign material. The window with the largest probability
counts. The query that a text answers can stand before each window: it often names the subject, as in
"How high is Mount Everest? It is 8,849 metres high."
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from untold.udfs.recall.segmentation import sentences
from untold.udfs.retrieval.classifying import Classifier, ClassifierFiles, find_classifier
from untold.udfs.retrieval.local_models import JUDGE, open_tokenizer

# The longest pairs of the training data, in tokens
WINDOW_TOKENS = 256
# Tokens of a short window. On held-back summaries among foreign summaries, windows of 80 tokens have the best kappa
SHORT_TOKENS = 80
# [CLS] text [SEP] fact [SEP]
_SPECIAL_TOKENS = 3
# A window has room for at least a sentence of the text
_LEAST_ROOM = 64
# A longer query can state the fact itself
_LONGEST_QUERY = 48
# Memory stays small, and each text of a group is cut once
_GROUP_PAIRS = 512

EMPTY_TEXT, EMPTY_FACT = "the text is empty", "the fact is empty"
FOREIGN_TEXT, FOREIGN_FACT = "the text is not in English", "the fact is not in English"
LONG_FACT = "the fact is longer than the window of the judge"

# Fewer words do not identify a language of the Latin script
_FEWEST_WORDS = 8
# Different stop words of another language that a text must have, next to fewer of English
_FEWEST_FOREIGN = 3
# The share of letters of the Latin script in an English text with foreign names and formulas
_LATIN_SHARE = 0.5
_LAST_LATIN = "\u024f"
_WORD = re.compile(r"[^\W\d_]+")
_ENGLISH = frozenset(
    _WORD.findall(
        "the of and to in is was for that it with as on by are be this from at his her has had have not an or but were "
        "which their they can will its who been would when there if more no out so said what up he she you we i may "
        "your do does than then these those into about after also other some should such"
    )
)
# Parts of names such as Álvar Núñez Cabeza de Vaca
_IN_NAMES = frozenset(_WORD.findall("de del la las los le el du des van von der den di da do dos e y al"))
# Frequent words of German, French, Spanish, Italian, Portuguese, Dutch, Swedish, Danish, Polish, Turkish and
# Indonesian, without frequent words of English
_FOREIGN = tuple(
    frozenset(words.split()) - _ENGLISH - _IN_NAMES
    for words in (
        "der die das und ist nicht ein eine mit von den dem zu für auf sich auch wird bei oder einer sind wurde nach",
        "le la les des et est un une du dans pour que qui sur pas avec par au ce sont aux plus il elle ou être",
        "el la los las y es un una del en para que se con por su al como más pero son fue está ha lo",
        "il la lo gli le di è un una del della che per con non sono si nel alla più anche dei delle ha",
        "o os as um uma do da em para que não com por se dos das é ao mais foi na no são pela pelo",
        "de het een en van is dat niet op te zijn met voor ook er maar aan bij wordt door naar werd deze",
        "och att det som en på är av för med den till inte har om ett var jag ett kan sig från eller vid",
        "og at det som en på er af for med den til ikke har om et var jeg kan sig fra eller ved blev",
        "i w na się nie do to jest że z o od po jak ale za przez dla oraz był jego są być",
        "ve bir bu için ile da de olarak olan çok daha en gibi var değil olduğu kadar ancak ya sonra",
        "yang dan di dari untuk dengan pada ini itu tidak adalah dalam akan oleh sebagai juga ke telah bisa",
    )
)


@dataclass(frozen=True)
class Judgement:
    """Probabilities that a text states a fact and that it contradicts it, and the number of windows.

    Both probabilities are None if `reason` is set. Their sum is at most 1.
    """

    entailment: float | None
    contradiction: float | None
    windows: int
    reason: str | None = None


class Judge:
    """Judge pairs of a text and a fact on one thread; equal pairs have equal probabilities in every batch."""

    def __init__(self, found: ClassifierFiles) -> None:
        """Open the model. Raises LocalModelFileError if onnxruntime or tokenizers cannot read its files."""
        self._classifier = Classifier(found)
        self._tokenizer = open_tokenizer(found.files.tokenizer)

    def assess(
        self, texts: Sequence[str], facts: Sequence[str], queries: Sequence[str] | None = None
    ) -> list[Judgement]:
        """Return the judgement of each pair. Raises ValueError if the arguments differ in length.

        `queries` has the query that each text answers, or an empty string. A query longer than 48 tokens is left out.
        """
        asked = [""] * len(texts) if queries is None else queries
        if not len(texts) == len(facts) == len(asked):
            raise ValueError(
                f"{len(texts)} texts, {len(facts)} facts and {len(asked)} queries: give each fact its text"
            )
        pairs = list(zip(texts, facts, asked, strict=True))
        groups = (pairs[first : first + _GROUP_PAIRS] for first in range(0, len(pairs), _GROUP_PAIRS))
        return [judgement for group in groups for judgement in self._assess_group(group)]

    def _assess_group(self, pairs: Sequence[tuple[str, str, str]]) -> list[Judgement]:
        texts = {text: _Text(text, self._spans(text)) for text in dict.fromkeys(text for text, _, _ in pairs)}
        windows = [self._windows(texts[text], fact, query) for text, fact, query in pairs]
        judged = iter(
            self._classifier.classify(
                [
                    (one, fact)
                    for (_, fact, _), cut in zip(pairs, windows, strict=True)
                    if not isinstance(cut, str)
                    for one in cut
                ]
            )
        )
        return [
            Judgement(None, None, 0, cut) if isinstance(cut, str) else _joined([next(judged) for _ in cut])
            for cut in windows
        ]

    def _windows(self, text: _Text, fact: str, query: str) -> list[str] | str:
        """Return the windows of a text for a fact, or the reason why the pair has no judgement."""
        tokens = len(self._spans(fact))
        if text.reason or not tokens:
            return text.reason or EMPTY_FACT
        if not is_english(fact):
            return FOREIGN_FACT
        room = WINDOW_TOKENS - _SPECIAL_TOKENS - tokens
        if room < _LEAST_ROOM:
            return LONG_FACT
        before = len(self._spans(query))
        if not 0 < before <= min(_LONGEST_QUERY, room - _LEAST_ROOM):
            return text.windows(room)
        return [f"{query} {window}" for window in text.windows(room - before)]

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Return the first and the last character (exclusive) of each token of a text."""
        spans: list[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return spans


def _joined(windows: Sequence[Mapping[str, float] | None]) -> Judgement:
    """Return the largest probabilities of the windows of a text."""
    judged = [window for window in windows if window is not None]
    entailment = max(window["entailment"] for window in judged)
    contradiction = max(window.get("contradiction", 0.0) for window in judged)
    return Judgement(entailment, min(contradiction, 1 - entailment), len(judged))


class _Text:
    """A text with the characters of its tokens, and the reason why it has no judgement."""

    def __init__(self, text: str, spans: Sequence[tuple[int, int]]) -> None:
        self._text, self._spans = text, spans
        self.reason = EMPTY_TEXT if not spans else None if is_english(text) else FOREIGN_TEXT

    def windows(self, room: int) -> list[str]:
        """Return the text in parts of at most `room` tokens, and then in parts of at most `SHORT_TOKENS`."""
        return list(dict.fromkeys((*self._parts(room), *self._parts(min(room, SHORT_TOKENS)))))

    def _parts(self, room: int) -> list[str]:
        """Return the text, or overlapping parts of it with at most `room` tokens each."""
        if len(self._spans) <= room:
            return [self._text]
        # Long sentences are cut to half a window, so that windows overlap there too
        starts = [
            start
            for first, after in pairwise((*self._sentence_starts, len(self._spans)))
            for start in range(first, after, room // 2)
        ]
        cuts = cut_windows([after - first for first, after in pairwise((*starts, len(self._spans)))], room)
        ends = (*starts, len(self._spans))
        return [self._text[self._spans[ends[first]][0] : self._spans[ends[last] - 1][1]] for first, last in cuts]

    @cached_property
    def _sentence_starts(self) -> list[int]:
        """The index of the first token of each sentence, by lines and then within each line."""
        found, place = {0}, 0
        begins = [begin for begin, _ in self._spans]
        for sentence in sentences(self._text):
            place = max(self._text.find(sentence, place), place)
            found.add(bisect_left(begins, place))
            place += len(sentence)
        return sorted(found - {len(begins)})


def cut_windows(sizes: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last segment (exclusive) of each window of at most `room` tokens.

    Windows overlap by about half. `sizes` are the tokens of the segments, each at most `room`.

    >>> list(cut_windows([4, 4, 4, 4], 8))
    [(0, 2), (1, 3), (2, 4)]
    """
    first, last = 0, 0
    while last < len(sizes):
        last, held = first, 0
        while last < len(sizes) and held + sizes[last] <= room:
            held += sizes[last]
            last += 1
        yield first, last
        # The next window drops half of this one, or more if the next segment needs the room
        kept, wanted = held, held + sizes[last] if last < len(sizes) else 0
        while first < last and (kept > held / 2 or wanted > room):
            kept, wanted = kept - sizes[first], wanted - sizes[first]
            first += 1


def is_english(text: str) -> bool:
    """Return False if the script or the frequent words of a text belong to another language.

    A short text in the Latin script counts as English, as does one in a language that has no list of words here.

    >>> [is_english(text) for text in ("Bees make honey.", "Пчёлы делают мёд.")]
    [True, False]
    """
    letters = [letter for letter in text if letter.isalpha()]
    if sum(letter <= _LAST_LATIN for letter in letters) < _LATIN_SHARE * len(letters):
        return False
    words = _WORD.findall(text.lower())
    if len(words) < _FEWEST_WORDS:
        return True
    different = frozenset(words)
    foreign = max(len(different & language) for language in _FOREIGN)
    return foreign < _FEWEST_FOREIGN or len(different & _ENGLISH) >= foreign


@lru_cache(maxsize=1)
def shipped_judge() -> Judge:
    """Return the judge of the package, which the process keeps. Raises LocalModelFileError if a file is missing."""
    return Judge(find_classifier(JUDGE))


def judge(
    texts: str | Sequence[str], facts: str | Sequence[str], queries: str | Sequence[str] = ""
) -> NDArray[np.float64]:
    """Return the probability that a text states a fact, for each pair: an array [facts] of float64.

    A single text is judged with every fact. `queries` are the queries that the texts answer, one for all or one for
    each fact. A query names the subject of a text that does not name it. The probability is NaN if the text or the fact
    is empty or not in English, or if the fact is longer than the window of the model. Raises ValueError if the
    arguments differ in length, TypeError if a value is not a string, and LocalModelFileError if the model is missing.
    """
    stated = [facts] if isinstance(facts, str) else list(facts)
    given = [texts] * len(stated) if isinstance(texts, str) else list(texts)
    asked = [queries] * len(stated) if isinstance(queries, str) else list(queries)
    for name, values in (("texts", given), ("facts", stated), ("queries", asked)):
        wrong = next((number for number, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            raise TypeError(f"{name}[{wrong}] is of type {type(values[wrong]).__name__}, not str")
    found = shipped_judge().assess(given, stated, asked)
    return np.array([np.nan if one.entailment is None else one.entailment for one in found], dtype=np.float64)
