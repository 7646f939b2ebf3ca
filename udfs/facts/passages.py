"""Cut texts into passages, and the contexts of a sample into chunks, for stages that read a bounded number of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.recall.segmentation import sentences
from untold.udfs.retrieval.cutting import chunk_id, chunk_text
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
            chosen = hits if documents is None else of_best_documents(hits, documents, decimals)
            chunks = [{name: hit[name] for name in ("chunk_id", "document_id", "url", "text")} for hit in chosen]
            rows.append({"owner": row["owner"], "chunks": chunks})
        yield pa.RecordBatch.from_pylist(rows, EVIDENCE)


def of_best_documents(hits: Sequence[Hit], most: int, decimals: int | None = None) -> list[Hit]:
    """The hits of the best documents, document by document: each is as good as its best hit; ties by document_id.

    hits: chunk_id, document_id, similarity, best first; similarities are compared to so many decimals (None: all).

    >>> found = [("b#1", "b", 0.9), ("a#0", "a", 0.9), ("b#0", "b", 0.2), ("c#0", "c", 0.1)]
    >>> hits = [dict(zip(("chunk_id", "document_id", "similarity"), one)) for one in found]
    >>> [hit["chunk_id"] for hit in of_best_documents(hits, 2)]
    ['a#0', 'b#1', 'b#0']
    """
    by_document: dict[str, list[Hit]] = {}
    for hit in hits:
        by_document.setdefault(hit["document_id"], []).append(hit)

    def place(document: str) -> tuple[float, str]:
        best = max(hit["similarity"] or 0.0 for hit in by_document[document])
        return -(best if decimals is None else round(best, decimals)), document

    return [hit for document in sorted(by_document, key=place)[:most] for hit in by_document[document]]
