"""Pairs of a sample's atoms, single or in lists, and the keys of their requests, made on workers in bounded batches.

There are 2 * R * C + C * (C - 1) ordered pairs per sample (methods, section 2): response -> context, context ->
response and context -> context, never response -> response. Pairs between contexts belong to a distinct set of context
atoms and are made once for all samples with this set. A pair filter labels pairs as neutral without a request. The
audit judges a share of these pairs too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from untold.udfs.arrow import NUMBER, TEXT, Row, columns, over_rows
from untold.udfs.llm.keys import PairKeys, Stage
from untold.udfs.texts import FUNCTION_WORDS, compatible, tokens_in

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
"""English words that unrelated statements may share. They include no numbers."""


def content_words(text: str) -> frozenset[str]:
    """Return the tokens of a text, compatible and case folded, without `STOP_WORDS`. Numbers are always content.

    >>> sorted(content_words("It was not built in the 1920s, but in 1874."))
    ['1874', '1920s', 'built']
    """
    return frozenset(tokens_in(compatible(text).casefold(), apostrophes=True)) - STOP_WORDS


@dataclass(frozen=True)
class PairFilter:
    """A filter of pairs: `none`, `words`, `vectors` or `either`, and the audited share of the filtered pairs.

    `words` filters pairs without a common content word, `vectors` pairs with a cosine below `cosine`, and `either`
    both. A text without a vector has no cosine.
    """

    filter: str = "none"
    cosine: float = 0.0
    audit_share: float = 0.0

    def __bool__(self) -> bool:
        return self.filter != "none"

    @property
    def needs_vectors(self) -> bool:
        """Return True if owners need the column vectors."""
        return self.filter in ("vectors", "either")

    def of(self, owner: Row) -> Sifted:
        """Return a function of pairs (source, target) of the owner's texts: which are filtered, and audited."""
        if not self:
            return lambda source, target: (np.zeros(len(source), dtype=bool), np.zeros(len(source), dtype=bool))
        texts: Sequence[str] = owner["texts"]
        apart = np.zeros((len(texts), len(texts)), dtype=bool)
        if self.filter in ("words", "either"):
            apart |= ~_share_words(texts)
        if self.needs_vectors:
            apart |= _are_far(owner["vectors"], self.cosine)

        def split_pairs(source: Places, target: Places) -> tuple[Flags, Flags]:
            taken = apart[source, target]
            audited = np.zeros(len(source), dtype=bool)
            for place in np.flatnonzero(taken):
                audited[place] = is_audited(texts[source[place]], texts[target[place]], self.audit_share)
            return taken, audited

        return split_pairs


def is_audited(premise: str, hypothesis: str, share: float) -> bool:
    """Return True if a pair is in this share of all pairs, by a hash of its texts. It is the same in every run."""
    digest = blake2b(json.dumps([premise, hypothesis]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def _share_words(texts: Sequence[str]) -> Flags:
    """Return bool[n, n]: True if two texts share a content word."""
    # Imported here because the import takes half a second, and only filters need it
    from scipy.sparse import csr_array

    words = [content_words(text) for text in texts]
    numbers = {word: number for number, word in enumerate(sorted(frozenset().union(*words)))}
    rows = [row for row, found in enumerate(words) for _ in found]
    columns = [numbers[word] for found in words for word in found]
    held = csr_array((np.ones(len(rows), dtype=np.int32), (rows, columns)), shape=(len(texts), max(1, len(numbers))))
    shared: Flags = (held @ held.T).toarray() > 0
    return shared


def _are_far(vectors: Sequence[Sequence[float] | None], least: float) -> Flags:
    """Return bool[n, n]: True if the cosine of two vectors of length 1, to six decimals, is below `least`."""
    known = np.array([vector is not None for vector in vectors])
    size = next((len(vector) for vector in vectors if vector is not None), 1)
    matrix = np.array([np.zeros(size) if vector is None else vector for vector in vectors], dtype=np.float64)
    far: Flags = np.round(matrix @ matrix.T, 6) < least
    both: Flags = known[:, None] & known[None, :]
    return far & both


# Limited, because an owner with 5,000 context atoms has 25 million pairs
BATCH_ROWS = 20_000
PAIRS = columns(owner=TEXT, source=NUMBER, target=NUMBER, judged_by=TEXT, request_id=TEXT)
# judged_by: for each target. In a list with a request, all are MODEL or AUDIT
LISTS = columns(owner=TEXT, source=NUMBER, targets=[NUMBER], judged_by=[TEXT], request_id=TEXT)
# The source of a pair's relation: a model, a model although it is filtered, other pairs, or a filter
MODEL, AUDIT, IMPLIED, FILTERED = TELLERS = ("model", "audit", "implied", "filtered")
Choice = Callable[[Places, Places], tuple[Flags, Flags]]
_NO_FILTER = PairFilter()


def ask_all(owner: Row) -> Choice:
    """Return the choice of a run that sends every pair."""
    return lambda source, target: (np.ones(len(source), dtype=bool), np.zeros(len(source), dtype=bool))


def ask_again(owner: Row) -> Choice:
    """Return the choice of a wave that repeats requests: the pairs {source, target} of the owner's `again`."""
    size = len(owner["texts"])
    wanted = [pair["source"] * size + pair["target"] for pair in owner["again"]]
    return lambda source, target: (np.isin(source * size + target, wanted), np.zeros(len(source), dtype=bool))


def generate_pairs(
    batches: Iterator[pa.RecordBatch],
    stage: Stage,
    choose: Callable[[Row], Choice],
    pair_filter: PairFilter = _NO_FILTER,
) -> Iterator[pa.RecordBatch]:
    """Yield the pairs of owners, for `mapInArrow`: rows of `PAIRS`.

    Input: owner; texts list<string>, the context atoms first; contexts int64, their number; between_contexts,
    to_contexts, to_responses int64, the number of pairs of each kind, in their order; and the columns that `choose`
    reads. `choose(owner)(source, target)` decides which of these pairs are sent now and which are implied. Rows of
    implied and filtered pairs have no request_id. Other pairs have no row.
    """
    return _joined(batches, lambda owner: _pairs_of(owner, stage, choose(owner), pair_filter))


def generate_lists(
    batches: Iterator[pa.RecordBatch],
    stage: Stage,
    choose: Callable[[Row], Choice],
    size: int,
    pair_filter: PairFilter = _NO_FILTER,
) -> Iterator[pa.RecordBatch]:
    """Yield the same pairs as lists, for `mapInArrow`: rows of `LISTS`, with at most `size` targets of a source.

    Targets are in the order of their texts by code points, so that equal sets are one request. The filtered targets of
    a source are a row without request_id.
    """
    return _joined(batches, lambda owner: _lists_of(owner, stage, choose(owner), size, pair_filter))


def _joined(
    batches: Iterator[pa.RecordBatch], rows_of: Callable[[Row], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of owners in bounded batches of several owners, because each batch has a fixed cost in Spark."""
    for batch in batches:
        waiting: list[pa.RecordBatch] = []
        for owner in batch.to_pylist():
            for rows in rows_of(owner):
                waiting.append(rows)
                if sum(map(len, waiting)) >= BATCH_ROWS:
                    yield pa.concat_batches(waiting)
                    waiting = []
        if waiting:
            yield pa.concat_batches(waiting)


def _pairs_of(owner: Row, stage: Stage, choose: Choice, pair_filter: PairFilter) -> Iterator[pa.RecordBatch]:
    """Yield the pairs of an owner in batches."""
    keys = PairKeys(stage, owner["texts"])
    for source, target, teller in _told(owner, choose, pair_filter):
        yield _rows(owner["owner"], source, target, teller, keys)


def _lists_of(owner: Row, stage: Stage, choose: Choice, size: int, pair_filter: PairFilter) -> Iterator[pa.RecordBatch]:
    """Yield the lists of an owner in batches."""
    texts = owner["texts"]
    for source, target, teller in _told(owner, choose, pair_filter):
        rows = list(_lists(zip(source.tolist(), target.tolist(), teller.tolist(), strict=True), texts, size))
        ids = [
            None if FILTERED in tellers else _id_of_list(stage, texts, premise, hypotheses)
            for premise, hypotheses, tellers in rows
        ]
        columns = [[owner["owner"]] * len(rows), *zip(*rows, strict=True), ids]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, LISTS, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=LISTS)


def _lists(
    pairs: Iterable[tuple[int, int, int]], texts: Sequence[str], size: int
) -> Iterator[tuple[int, list[int], list[str]]]:
    """Yield source, targets and tellers of each list, in the order of the sources."""
    for premise, told in groupby(pairs, key=itemgetter(0)):
        hypotheses = sorted(((target, TELLERS[teller]) for _, target, teller in told), key=lambda one: texts[one[0]])
        filtered = [one for one in hypotheses if one[1] == FILTERED]
        asked = [one for one in hypotheses if one[1] != FILTERED]
        for part in [filtered, *(asked[start : start + size] for start in range(0, len(asked), size))]:
            if part:
                yield premise, [target for target, _ in part], [teller for _, teller in part]


def _id_of_list(stage: Stage, texts: Sequence[str], premise: int, hypotheses: Sequence[int]) -> str:
    first, second = stage.variables
    return stage.request_id({first: texts[premise], second: [texts[place] for place in hypotheses]})


def _told(owner: Row, choose: Choice, pair_filter: PairFilter) -> Iterator[tuple[Places, Places, Places]]:
    """Yield the pairs (source, target) with a row, in batches, and the source of their relations in `TELLERS`."""
    split_pairs = pair_filter.of(owner)
    for source, target in _places_of(owner):
        asked, implied = choose(source, target)
        shown = asked | implied
        if shown.any():
            taken, audited = split_pairs(source[shown], target[shown])
            teller = np.select([implied[shown], taken & ~audited, taken], [2, 3, 1], 0)
            yield source[shown], target[shown], teller


def _places_of(owner: Row) -> Iterator[tuple[Places, Places]]:
    """Yield the pairs (source, target) of an owner by kind, ranked from 0, so that a cap keeps the first pairs.

    Each batch has a limited size, and all pairs of a source and kind.
    """
    contexts, responses = owner["contexts"], len(owner["texts"]) - owner["contexts"]
    kinds = (
        # Response to context is first, so a cap removes the pairs that determine coverage last
        (owner["to_contexts"], contexts, lambda ranks: (contexts + ranks // contexts, ranks % contexts)),
        (owner["between_contexts"], contexts - 1, lambda ranks: between(ranks, contexts)),
        (owner["to_responses"], responses, lambda ranks: (ranks // responses, contexts + ranks % responses)),
    )
    for count, width, place in kinds:
        step = max(1, BATCH_ROWS // max(1, width)) * max(1, width)
        for start in range(0, count, step):
            yield place(np.arange(start, min(start + step, count)))


def between(ranks: Places, contexts: int) -> tuple[Places, Places]:
    """Return the ordered pairs of different context atoms with these numbers: by first, then by second.

    >>> [numbers.tolist() for numbers in between(np.arange(6), 3)]
    [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]
    """
    source, other = np.divmod(ranks, contexts - 1)
    return source, other + (other >= source)


def _rows(owner: str, source: Places, target: Places, teller: Places, keys: PairKeys) -> pa.RecordBatch:
    """Return the rows of `PAIRS`. Implied and filtered pairs have no key, because they have no request."""
    places = zip(source.tolist(), target.tolist(), teller.tolist(), strict=True)
    ids = [keys.request_id(premise, hypothesis) if number < 2 else None for premise, hypothesis, number in places]
    columns = [
        pa.array([owner] * len(ids), pa.string()),
        pa.array(source),
        pa.array(target),
        pa.array(TELLERS).take(pa.array(teller)),
        pa.array(ids, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PAIRS)


LEFT_OUT = columns(graph=TEXT, node=NUMBER, source=NUMBER, target=NUMBER)


@over_rows(LEFT_OUT)
def leave_out(owner: Row) -> Iterator[Row]:
    """Yield the pairs that a cap leaves out as edges whose number is linear in the atoms: rows of `LEFT_OUT`.

    owner: graph; contexts, responses; to_contexts, between_contexts, to_responses: the number of judged pairs of each
    kind. A row has either a `node` or an edge. If all pairs of some premises are left out, an additional node connects
    these premises with all hypotheses. The paths are the same, without an edge per pair.
    """
    contexts, responses = owner["contexts"], owner["responses"]
    from_contexts, from_responses = range(contexts), range(contexts, contexts + responses)
    kinds = (
        (owner["to_contexts"], from_responses, from_contexts, contexts),
        (owner["between_contexts"], from_contexts, from_contexts, contexts - 1),
        (owner["to_responses"], from_contexts, from_responses, responses),
    )
    for joint, (judged, premises, hypotheses, width) in enumerate(kinds, start=contexts + responses):
        if judged >= len(premises) * width:
            continue
        row, places = divmod(judged, width)
        # The premise at the cap has some judged pairs. Its other pairs are separate edges
        others = [target for target in hypotheses if target != premises[row]]
        edges = [(premises[row], target) for target in others[places:]]
        if row + 1 < len(premises):
            yield {"graph": owner["graph"], "node": joint}
            edges += [*((source, joint) for source in premises[row + 1 :]), *((joint, target) for target in hypotheses)]
        yield from ({"graph": owner["graph"], "source": source, "target": target} for source, target in edges)
