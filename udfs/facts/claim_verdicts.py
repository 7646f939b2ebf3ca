"""Cut texts into passages, and conclude verdicts on claims from retrieved chunks (Samarinas et al. 2025)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from untold.udfs.arrow import FLAG, NUMBER, TEXT, Row, columns, over_rows, struct
from untold.udfs.facts.nodes import normalise
from untold.udfs.recall.segmentation import sentences
from untold.udfs.retrieval.chunks import chunk_id, chunk_text
from untold.udfs.texts import count_words, sentence_ends

# Sentences do not cross blank lines
_BLANK_LINES = re.compile(r"\n\s*\n")
# The tokenizer's time is quadratic in the length of a word: 48,000 signs took 1.3 s. A text with such a word is not
# prose
_LONGEST_WORD = re.compile(r"\S{5000}")
# The number of sentences before and after a sentence in the published window
BEFORE, AFTER = 3, 1


def cut_passages(text: str, words: int) -> Iterator[str]:
    """Yield the passages of a text: consecutive sentences with at most `words` words. A longer sentence stays whole.

    Words are defined by `split_words`. Text within a passage is unchanged, and white space between passages is removed.
    A text without a word has no passage. Sentences end as in nupunkt, at `sentence_ends`, and at blank lines.

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
    # A text of signs has no sentence
    found = list(filter(None, sentences(text))) or [text.strip()]
    for at, sentence in enumerate(found):
        yield " ".join(found[max(0, at - BEFORE) : at]), sentence, " ".join(found[at + 1 : at + 1 + AFTER])


def _sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence of a text. Together they are the text."""
    # Imported here because its model loads slowly, and only long texts need it
    from nupunkt import sent_spans

    start = 0
    ends = {found.end() for pattern in (_BLANK_LINES, _LONGEST_WORD) for found in pattern.finditer(text)}
    for end in sorted(ends | {*sentence_ends(text), len(text)}):
        yield from ((start + first, start + last) for first, last in sent_spans(text[start:end]))
        start = end


CHUNK = struct(chunk_id=TEXT, document_id=TEXT, url=TEXT, text=TEXT)
EVIDENCE = columns(owner=TEXT, chunks=[CHUNK])
Hit = Mapping[str, Any]


@over_rows(EVIDENCE)
def chunk_evidence(row: Row, words: int, overlap: int) -> Row:
    """Return the chunks of an owner's contexts in order, as columns of `EVIDENCE`.

    row: owner, contexts list<struct<id, text>>. Chunks are cut as in an index: `words` words each, with `overlap` words
    in common with the next one.
    """
    chunks = [
        {"chunk_id": chunk_id(context["id"], number), "document_id": context["id"], "text": text}
        for context in row["contexts"] or ()
        for number, text in enumerate(chunk_text(context["text"], words, overlap))
    ]
    return {"owner": row["owner"], "chunks": chunks}


@over_rows(EVIDENCE)
def choose_evidence(row: Row, documents: int | None, decimals: int | None) -> Row:
    """Return the hits of an owner's query as columns of `EVIDENCE`.

    row: owner, hits list<struct<rank, chunk_id, document_id, url, text, similarity>>. `documents`: group the hits, and
    keep this number of documents; None keeps all hits by rank.
    """
    hits = sorted(row["hits"] or (), key=lambda hit: (hit["rank"], hit["chunk_id"]))
    chosen = hits if documents is None else hits_of_top_documents(hits, documents, decimals)
    return {"owner": row["owner"], "chunks": chosen}


def hits_of_top_documents(hits: Sequence[Hit], most: int, decimals: int | None = None) -> list[Hit]:
    """Return the hits of the best documents, grouped by document and ordered by the best hit. Ties by document_id.

    hits: chunk_id, document_id, similarity, best first. `decimals`: compare similarities to this precision (None: all).

    >>> found = [("b#1", "b", 0.9), ("a#0", "a", 0.9), ("b#0", "b", 0.2), ("c#0", "c", 0.1)]
    >>> hits = [dict(zip(("chunk_id", "document_id", "similarity"), one)) for one in found]
    >>> [hit["chunk_id"] for hit in hits_of_top_documents(hits, 2)]
    ['a#0', 'b#1', 'b#0']
    """
    by_document: dict[str, list[Hit]] = {}
    for hit in hits:
        by_document.setdefault(hit["document_id"], []).append(hit)

    def place(document: str) -> tuple[float, str]:
        best = max(hit["similarity"] or 0.0 for hit in by_document[document])
        return -(best if decimals is None else round(best, decimals)), document

    return [hit for document in sorted(by_document, key=place)[:most] for hit in by_document[document]]


SUPPORTED, CONTRADICTED, NOT_SUPPORTED = "supported", "contradicted", "not_supported"
CONTRADICTION = "contradiction"
# The last ranks of the waves in which ungrounded claims are compared with their chunks. A first chunk grounds most
# groundable claims, and the ten published ranks make three waves
ENDS_OF_WAVES = (1, 4)

CLAIM_SCHEMA = columns(sample_id=TEXT, position=NUMBER, text=TEXT)
WINDOWS = columns(sample_id=TEXT, query=TEXT, before=TEXT, sentence=TEXT, after=TEXT, number=NUMBER)
VERDICTS = columns(
    owner=TEXT, claim_key=TEXT, verdict=TEXT, evidence=[TEXT], document_id=TEXT, unjudged=FLAG, waiting=FLAG
)


@dataclass(frozen=True)
class ChunkJudgement:
    """A chunk compared with a claim. `relation` is null if it is missing, and `waiting` if it was never requested."""

    rank: int
    chunk_id: str
    document_id: str | None = None
    relation: str | None = None
    grounded: bool = False
    waiting: bool = False


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim.

    `verdict` is None if no chunk grounds the claim and a part is missing: lost (`unjudged`) or never requested
    (`waiting`). `evidence` has the chunks that ground it, by rank. `document_id` is the document of the first of these
    chunks.
    """

    verdict: str | None
    evidence: tuple[str, ...] = ()
    document_id: str | None = None
    unjudged: bool = False
    waiting: bool = False


def distinct_texts(texts: Iterable[str]) -> list[str]:
    """Return the texts in order, without texts that are equal to an earlier one after `normalise`.

    >>> distinct_texts(["Bees make honey.", "Ice floats.", "bees  make honey"])
    ['Bees make honey.', 'Ice floats.']
    """
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(normalise(text), text)
    return list(first.values())


@over_rows(CLAIM_SCHEMA)
def number_claims(row: Row) -> Iterator[Row]:
    """Yield distinct claims as columns of `CLAIM_SCHEMA`, positions from 1; from sample_id and claims list<string>."""
    for position, text in enumerate(distinct_texts(row["claims"] or ()), start=1):
        yield {"sample_id": row["sample_id"], "position": position, "text": text}


@over_rows(WINDOWS)
def window_batches(row: Row) -> Iterator[Row]:
    """Yield a row of `WINDOWS` per sentence of a response, numbers from 1; from sample_id, query and text."""
    for number, (before, sentence, after) in enumerate(cut_windows(row["text"]), start=1):
        yield {**row, "before": before, "sentence": sentence, "after": after, "number": number}


def waves_of(top: int, *, early_stop: bool) -> list[tuple[int, int]]:
    """Return the first and last rank of each wave in which the `top` chunks of a claim are judged.

    >>> waves_of(10, early_stop=True), waves_of(3, early_stop=True), waves_of(10, early_stop=False)
    ([(1, 1), (2, 4), (5, 10)], [(1, 1), (2, 3)], [(1, 10)])
    """
    ends = [*(end for end in ENDS_OF_WAVES if early_stop and end < top), top]
    return list(zip([1, *(end + 1 for end in ends)], ends, strict=False))


def judge_claim(judgements: Iterable[ChunkJudgement], *, lost: bool = False, waiting: bool = False) -> ClaimVerdict:
    """Return the verdict of a claim: supported if a chunk grounds it, else contradicted, else not supported.

    A grounding chunk decides even if other parts are missing. Otherwise a failed relation or a `lost` retrieval leaves
    the claim unjudged, and an unsent request leaves it `waiting`.
    """
    judged = sorted(judgements, key=lambda one: (one.rank, one.chunk_id))
    grounding = [one for one in judged if one.grounded]
    if grounding:
        return ClaimVerdict(SUPPORTED, tuple(one.chunk_id for one in grounding), grounding[0].document_id)
    if waiting or any(one.waiting for one in judged):
        return ClaimVerdict(None, waiting=True)
    if lost or any(one.relation is None for one in judged):
        return ClaimVerdict(None, unjudged=True)
    contradicted = any(one.relation == CONTRADICTION for one in judged)
    return ClaimVerdict(CONTRADICTED if contradicted else NOT_SUPPORTED)


@over_rows(VERDICTS)
def judge_claims(row: Row) -> Row:
    """Return columns of `VERDICTS`.

    row: owner, claim_key, lost, waiting, judged list<struct<rank, chunk_id, document_id, relation, grounded, waiting>>:
    the retrieval, and each chunk that was judged or should have been.
    """
    judged = [ChunkJudgement(**{**one, "grounded": bool(one["grounded"])}) for one in row["judged"] or ()]
    found = judge_claim(judged, lost=bool(row["lost"]), waiting=bool(row["waiting"]))
    return {"owner": row["owner"], "claim_key": row["claim_key"], **vars(found)}
