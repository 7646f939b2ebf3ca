"""Cut texts into passages, and conclude verdicts on claims from the chunks that were found (Samarinas et al. 2025)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import normalise
from untold.udfs.recall.segmentation import sentences
from untold.udfs.retrieval.catalog import chunk_id, chunk_text
from untold.udfs.samples.batches import in_batches
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


CHUNK = pa.struct([(name, pa.string()) for name in ("chunk_id", "document_id", "url", "text")])
EVIDENCE = pa.schema([("owner", pa.string()), ("chunks", pa.list_(CHUNK))])
Hit = Mapping[str, Any]


def chunk_evidence(batches: Iterable[pa.RecordBatch], words: int, overlap: int) -> Iterator[pa.RecordBatch]:
    """Columns of `EVIDENCE`: the chunks of an owner's contexts in order; from owner, contexts list<struct<id, text>>.

    They are cut as those of an index: `words` words each, of which `overlap` are also the next one's.
    """
    for batch in batches:
        rows = [
            {
                "owner": row["owner"],
                "chunks": [
                    {"chunk_id": chunk_id(context["id"], number), "document_id": context["id"], "text": text}
                    for context in row["contexts"] or ()
                    for number, text in enumerate(chunk_text(context["text"], words, overlap))
                ],
            }
            for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pylist(rows, EVIDENCE)


def choose_evidence(
    batches: Iterable[pa.RecordBatch], documents: int | None, decimals: int | None
) -> Iterator[pa.RecordBatch]:
    """Columns of `EVIDENCE`: what was found for an owner's query.

    batches: owner, hits list<struct<rank, chunk_id, document_id, url, text, similarity>>. `documents`: the hits are
    grouped, those of the best so many documents stay; None: all, by rank.
    """
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            hits = sorted(row["hits"] or (), key=lambda hit: (hit["rank"], hit["chunk_id"]))
            chosen = hits if documents is None else hits_of_top_documents(hits, documents, decimals)
            chunks = [{name: hit[name] for name in ("chunk_id", "document_id", "url", "text")} for hit in chosen]
            rows.append({"owner": row["owner"], "chunks": chunks})
        yield pa.RecordBatch.from_pylist(rows, EVIDENCE)


def hits_of_top_documents(hits: Sequence[Hit], most: int, decimals: int | None = None) -> list[Hit]:
    """The hits of the best documents, document by document: each is as good as its best hit; ties by document_id.

    hits: chunk_id, document_id, similarity, best first; similarities are compared to so many decimals (None: all).

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
# The last ranks of the waves in which an ungrounded claim is held against its chunks: a first chunk grounds most claims
# that any grounds, and the ten published ranks are three waves
ENDS_OF_WAVES = (1, 4)

CLAIM_SCHEMA = pa.schema([("sample_id", pa.string()), ("position", pa.int64()), ("text", pa.string())])
WINDOWS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("sample_id", "query", "before", "sentence", "after")),
        ("number", pa.int64()),
    ]
)
VERDICTS = pa.schema(
    [
        ("owner", pa.string()),
        ("claim_key", pa.string()),
        ("verdict", pa.string()),
        ("evidence", pa.list_(pa.string())),
        ("document_id", pa.string()),
        ("unjudged", pa.bool_()),
        ("waiting", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class ChunkJudgement:
    """A chunk held against a claim. `relation` is null where it could not be had; `waiting`: it was never asked."""

    rank: int
    chunk_id: str
    document_id: str | None = None
    relation: str | None = None
    grounded: bool = False
    waiting: bool = False


@dataclass(frozen=True)
class ClaimVerdict:
    """What is concluded of a claim.

    `verdict` is None where nothing grounds it and some of what it needs is missing: lost (`unjudged`) or never asked
    (`waiting`). `evidence`: the chunks that ground it, by rank; `document_id`: the document of the first of them.
    """

    verdict: str | None
    evidence: tuple[str, ...] = ()
    document_id: str | None = None
    unjudged: bool = False
    waiting: bool = False


def distinct_texts(texts: Iterable[str]) -> list[str]:
    """The texts in their order, of those that are equal after `normalise` the first.

    >>> distinct_texts(["Bees make honey.", "Ice floats.", "bees  make honey"])
    ['Bees make honey.', 'Ice floats.']
    """
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(normalise(text), text)
    return list(first.values())


def number_claims(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `CLAIM_SCHEMA`, a row a distinct claim, positions from 1; from sample_id and claims list<string>."""
    for batch in batches:
        rows = (
            {"sample_id": row["sample_id"], "position": position, "text": text}
            for row in batch.to_pylist()
            for position, text in enumerate(distinct_texts(row["claims"] or ()), start=1)
        )
        yield from in_batches(rows, CLAIM_SCHEMA)


def window_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `WINDOWS`, a row per sentence of a response, numbers from 1; from sample_id, query and text."""
    for batch in batches:
        rows = (
            {"before": before, "sentence": sentence, "after": after, "number": number}
            | {name: row[name] for name in ("sample_id", "query")}
            for row in batch.to_pylist()
            for number, (before, sentence, after) in enumerate(cut_windows(row["text"]), start=1)
        )
        yield from in_batches(rows, WINDOWS)


def waves_of(top: int, *, early_stop: bool) -> list[tuple[int, int]]:
    """The first and the last rank of each wave in which the `top` chunks of a claim are judged.

    >>> waves_of(10, early_stop=True), waves_of(3, early_stop=True), waves_of(10, early_stop=False)
    ([(1, 1), (2, 4), (5, 10)], [(1, 1), (2, 3)], [(1, 10)])
    """
    ends = [*(end for end in ENDS_OF_WAVES if early_stop and end < top), top]
    return list(zip([1, *(end + 1 for end in ends)], ends, strict=False))


def judge_claim(judgements: Iterable[ChunkJudgement], *, lost: bool = False, waiting: bool = False) -> ClaimVerdict:
    """The verdict over the chunks of a claim: supported where one grounds it, else contradicted, else not supported.

    What grounds a claim does so whatever else is missing; without that, a relation that failed, or a retrieval that was
    `lost`, leaves it unjudged, and one that was never asked leaves it `waiting`.
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


def judge_claims(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `VERDICTS`, a row a claim.

    batches: owner, claim_key, lost, waiting, judged list<struct<rank, chunk_id, document_id, relation, grounded,
    waiting>>: the retrieval, and each chunk that was judged or ought to have been.
    """
    for batch in batches:
        rows = [_judge(row) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, VERDICTS)


def _judge(row: Mapping[str, Any]) -> dict[str, Any]:
    judged: Sequence[Mapping[str, Any]] = row["judged"] or ()
    found = judge_claim(
        [ChunkJudgement(**{**one, "grounded": bool(one["grounded"])}) for one in judged],
        lost=bool(row["lost"]),
        waiting=bool(row["waiting"]),
    )
    return {"owner": row["owner"], "claim_key": row["claim_key"], **vars(found)}
