"""Find the sentences of responses with the sources that they cite, and the texts of these sources.

Methods, section 19. A context has the text of its id. Other texts are pages: documents and files by id and URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from untold.udfs.samples.batches import in_batches
from untold.udfs.samples.citations import cited_sentences, source_key

_SOURCE = pa.struct([(name, pa.string()) for name in ("source", "key", "text")])
CITING = pa.schema(
    [
        ("sample_id", pa.string()),
        (
            "sentences",
            pa.list_(pa.struct([("number", pa.int64()), ("text", pa.string()), ("sources", pa.list_(_SOURCE))])),
        ),
    ]
)


def cite_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield columns of `CITING`, a row per sample: its sentences with the sources that they cite.

    The columns of `batches` are sample_id, response, contexts list<struct<id, text>> and citations list<struct<start,
    end, sources>>. The text of a source is the text of the context with its id, and otherwise null.
    """
    for batch in batches:
        yield from in_batches(map(_citing, batch.to_pylist()), CITING)


def _citing(row: Mapping[str, Any]) -> dict[str, Any]:
    contexts = row["contexts"] or ()
    texts = {source_key(one["id"]): one["text"] for one in contexts if one["text"].strip()}
    found = cited_sentences(row["response"] or "", row["citations"], [one["id"] for one in contexts])
    return {
        "sample_id": row["sample_id"],
        "sentences": [
            {
                "number": number,
                "text": one.text,
                "sources": [
                    {"source": source, "key": key, "text": texts.get(key)}
                    for key, source in {source_key(name): name for name in one.sources}.items()
                ],
            }
            for number, one in enumerate(found, start=1)
        ],
    }


PAGES = pa.schema([("key", pa.string()), ("number", pa.int64()), ("text", pa.string())])


def key_pages(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield columns of `PAGES`, a row per id and URL of a text, from document_id, url, number and text."""
    for batch in batches:
        rows = ((row, {row["document_id"], row["url"]} - {None, ""}) for row in batch.to_pylist() if row["text"])
        found = ({**row, "key": source_key(name)} for row, names in rows for name in sorted(names))
        yield from in_batches(({name: row[name] for name in PAGES.names} for row in found), PAGES)
