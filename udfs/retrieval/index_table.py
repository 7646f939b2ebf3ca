"""The chunks of an index in a table of LanceDB: write the table, search it by vectors and by words, and read it.

INDEX/chunks.lance   columns of `CHUNKS` without text_id, `words` (the tokens of the text), and `vector` (length 1)

Each change of the table is a new version. The manifest of the index names the version that is searched, so a search
does not see a build that is still running. LanceDB's scores of words are those of BM25 (methods, section 10) times
k1 + 1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby
from math import isqrt
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from untold.udfs.arrow import FLOAT, NUMBER, TEXT, columns, slices
from untold.udfs.errors import UserError
from untold.udfs.retrieval.chunks import CHUNKS, without_overlap
from untold.udfs.retrieval.ranking import (
    K1,
    Hit,
    compared,
    cosines,
    decimals_of,
    depth_of,
    fuse_rankings,
    rank_hits,
    tokenise,
)
from untold.udfs.storage import PlaceError, StoragePath

TABLE = "chunks"
STORED = tuple(name for name in CHUNKS.names if name != "text_id")
TEXTS = ("document_id", "title", "url", "text")
SEARCHED = columns(query=TEXT, rank=NUMBER, chunk_id=TEXT, similarity=FLOAT, **dict.fromkeys((*TEXTS, "error"), TEXT))
LISTED = columns(document_id=TEXT, content=TEXT, error=TEXT)
# A chunk of a document without the words that the chunk before it has too
CHUNK_TEXTS = columns(document_id=TEXT, url=TEXT, number=NUMBER, text=TEXT)
# Queries in one call of LanceDB
QUERIES_AT_ONCE = 100
# Hits beyond the wanted ones. If the last of them has the similarity of the last wanted one, the search is repeated
SPARE_HITS = 8
DOCUMENTS_OF_A_DELETION = 1_000
# Bytes of indexes and of metadata that a process keeps. LanceDB's defaults are 6 and 1 GB
CACHED_BYTES = 256 * 2**20


class DamagedIndexError(UserError):
    """A table that LanceDB cannot read. The message names the index and the remedy."""


@dataclass(frozen=True)
class IndexParameters:
    """The parameters of all chunks of an index.

    `model` is the identity of the embedding model, `dimension` the length of its vectors.
    """

    words: int
    overlap: int
    model: str
    codec: str
    dimension: int

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        number = pa.float16() if self.codec == "fp16" else pa.float32()
        texts = [pa.field(name, pa.string()) for name in (*STORED, "words")]
        return pa.schema([*texts, pa.field("vector", pa.list_(number, self.dimension))])


@dataclass(frozen=True)
class Catalog:
    """A complete index: its parameters, the state of its table, and `content`, a hash of its documents.

    `lists` is the number of inverted lists, 0 for an exact index. `size` is in bytes.
    """

    making: IndexParameters
    documents: int
    content: str
    version: int
    chunks: int
    lists: int
    size: int

    @property
    def digest(self) -> str:
        """A hash of the parameters and the documents. It is part of the identity of outputs that use the index."""
        known = json.dumps([asdict(self.making), self.lists, self.content], sort_keys=True)
        return blake2b(known.encode(), digest_size=16).hexdigest()

    def plain(self) -> dict[str, Any]:
        """Return the catalog as JSON for a manifest."""
        return {"digest": self.digest, **asdict(self)}


def read_catalog(plain: Mapping[str, Any]) -> Catalog:
    """Return a catalog from the result of `plain`. Raises KeyError or TypeError for anything else."""
    fields = {name: value for name, value in plain.items() if name not in ("digest", "making")}
    return Catalog(IndexParameters(**plain["making"]), **fields)


def list_count(chunks: int) -> int:
    """Return the number of inverted lists for so many chunks: 8 floor(sqrt(2^floor(log2 N))).

    >>> list_count(100_000)
    2048
    """
    return 8 * isqrt(2 ** (chunks.bit_length() - 1))


@lru_cache(maxsize=4)
def _connect(index: str) -> Any:
    """Return the connection of a process to the database in the folder of an index.

    Raises PlaceError for a file system that is neither a local disk nor an object store.
    """
    # LanceDB warns of each table that it creates. It reads the variable when it is imported
    os.environ.setdefault("LANCEDB_LOG", "error")
    # The import takes half a second, and runs without an index import this module too
    import lancedb

    session = lancedb.Session(CACHED_BYTES, CACHED_BYTES)
    place = StoragePath(index)
    if place.local is not None:
        return lancedb.connect(place.local, session=session)
    if not place.has_conditions:
        raise PlaceError(f"{index}: an index needs a local disk or an object store")
    root, path = place.root
    user, _, host = root.authority.rpartition("@")
    if root.scheme == "abfss":
        options = place.options | {"account_name": host.partition(".")[0]}
        return lancedb.connect(f"az://{user}/{path}", storage_options=options, session=session)
    return lancedb.connect(f"{root.scheme}://{host}/{path}", storage_options=place.options, session=session)


def open_table(index: str, version: int) -> Any:
    """Return the table of an index at a version. Raises DamagedIndexError."""
    try:
        table = _connect(index).open_table(TABLE)
        table.checkout(version)
        return table
    except PlaceError:
        raise
    except Exception as error:
        raise _damaged(index, error) from error


def _damaged(index: str, error: Exception) -> DamagedIndexError:
    return DamagedIndexError(
        f"{index}/{TABLE}.lance cannot be read ({type(error).__name__}). Build it again with untold index --overwrite, "
        "which embeds no text twice"
    )


def write_table(
    index: str,
    making: IndexParameters,
    batches: Iterable[pa.RecordBatch],
    before: Catalog | None = None,
    removed: Sequence[str] = (),
    *,
    documents: int,
    content: str,
    exact_chunks: int,
    chunks_per_shard: int,
) -> Catalog:
    """Write chunks (columns of `CHUNKS`, vector), and their indexes, and return the index.

    before: the index to extend, None to replace the table. `removed`: ids of documents, whose chunks are deleted.
    `documents` and `content`: fields of the returned catalog. Rows are streamed. A shard is a file with at most
    `chunks_per_shard` new chunks.
    """
    table = None
    if before is not None:
        table = open_table(index, before.version)
        # A killed build may have added versions
        table.restore()
        for start in range(0, len(removed), DOCUMENTS_OF_A_DELETION):
            names = (name.replace("'", "''") for name in removed[start : start + DOCUMENTS_OF_A_DELETION])
            literals = ", ".join(f"'{name}'" for name in names)
            table.delete(f"document_id IN ({literals})")
    for rows in _shards(batches, making.schema, chunks_per_shard):
        if table is None:
            table = _connect(index).create_table(TABLE, rows, mode="overwrite")
        else:
            table.add(rows)
    if table is None:
        raise ValueError("a table without rows")
    chunks = table.count_rows()
    lists = before.lists if before else 0
    if not lists and chunks > exact_chunks:
        lists = list_count(chunks)
    _write_indexes(table, making, lists, words=before is None or bool(removed))
    files = (StoragePath(index) / f"{TABLE}.lance").entries(recursive=True)
    return Catalog(making, documents, content, table.version, chunks, lists, sum(entry.size for entry in files))


def _shards(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most: int) -> Iterator[pa.RecordBatchReader]:
    """Yield readers of at most `most` rows. Each must be read before the next."""

    def numbered() -> Iterator[tuple[int, pa.RecordBatch]]:
        rows = 0
        for batch in batches:
            while batch.num_rows:
                part = batch.slice(0, most - rows % most)
                yield rows // most, _to_store(part, schema)
                rows, batch = rows + part.num_rows, batch.slice(part.num_rows)

    for _, parts in groupby(numbered(), key=itemgetter(0)):
        yield pa.RecordBatchReader.from_batches(schema, (part for _, part in parts))


def _to_store(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of the table."""
    words = [" ".join(tokenise(text)) for text in batch.column("text").to_pylist()]
    vectors = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
    kind = schema.field("vector").type
    numbers = pa.array(vectors.astype(kind.value_type.to_pandas_dtype()), kind.value_type)
    columns = [*batch.select(STORED).columns, pa.array(words, pa.string())]
    return pa.RecordBatch.from_arrays([*columns, pa.FixedSizeListArray.from_arrays(numbers, type=kind)], schema=schema)


def _write_indexes(table: Any, making: IndexParameters, lists: int, *, words: bool) -> None:
    """Update the indexes of a table. `words`: create the index of words again, `lists`: number of inverted lists."""
    from lancedb.index import FTS, IvfFlat, IvfSq

    known = {column for one in table.list_indices() for column in one.columns}
    if words:
        # LanceDB counts the words of deleted rows until the index is created again. The words are tokens already
        config = FTS(
            base_tokenizer="whitespace",
            with_position=False,
            max_token_length=None,
            lower_case=False,
            stem=False,
            remove_stop_words=False,
            ascii_folding=False,
        )
        table.create_index("words", config=config, replace=True)
    if known:
        table.optimize()
    if lists and "vector" not in known:
        kind = IvfSq if making.codec == "sq8" else IvfFlat
        table.create_index("vector", config=kind(distance_type="dot", num_partitions=lists))


@dataclass(frozen=True)
class SearchTask:
    """The parameters of a search. `retrievers`: dense, bm25 or both; `exact`: read all lists instead of `nprobe`."""

    index: str
    version: int
    retrievers: tuple[str, ...]
    k: int
    nprobe: int
    exact: bool = False

    @property
    def depth(self) -> int:
        """The number of hits of each ranking."""
        return depth_of(self.k, fused=len(self.retrievers) > 1)


def search_table(batches: Iterable[pa.RecordBatch], task: SearchTask) -> Iterator[pa.RecordBatch]:
    """Yield columns of `SEARCHED`: the k best chunks for each query, in order. batches: query, text, vector.

    `vector` is only necessary for the retriever dense. A damaged table is one row with `error` only.
    """
    table = None
    for batch in batches:
        for part in slices(batch, QUERIES_AT_ONCE):
            try:
                table = open_table(task.index, task.version) if table is None else table
                yield _search(table, part, task)
            except DamagedIndexError as error:
                yield pa.RecordBatch.from_pylist([{"error": str(error)}], SEARCHED)
                return


def _search(table: Any, batch: pa.RecordBatch, task: SearchTask) -> pa.RecordBatch:
    rows: dict[str, int] = {}
    rankings = {"dense": _rank_by_vectors, "bm25": _rank_by_words}
    try:
        found = [list(rankings[name](table, batch, task, rows)) for name in task.retrievers]
        fused = [fuse_rankings(lists, task.k) for lists in zip(*found, strict=True)]
        texts = _texts(table, sorted({rows[hit.chunk_id] for hits in fused for hit in hits}))
    except Exception as error:
        raise _damaged(task.index, error) from error
    queries = batch.column("query").to_pylist()
    ranked = [
        {"query": query, "rank": rank, **hit._asdict(), **texts[hit.chunk_id]}
        for query, hits in zip(queries, fused, strict=True)
        for rank, hit in enumerate(hits, start=1)
    ]
    return pa.RecordBatch.from_pylist(ranked, SEARCHED)


def _rank_by_vectors(table: Any, batch: pa.RecordBatch, task: SearchTask, rows: dict[str, int]) -> Iterator[list[Hit]]:
    """Yield the hits of each query by cosines."""
    vectors = _rows_of(batch.column("vector"))

    def search(places: Sequence[int], most: int) -> dict[int, list[Hit]]:
        wanted = vectors[list(places)]
        query = table.search(wanted.astype(np.float32), vector_column_name="vector").distance_type("dot")
        query = query.bypass_vector_index() if task.exact else query.nprobes(task.nprobe)
        found = _read_hits(query, most, ["vector", "_distance"], rows)
        numbers = found["query_index"].to_numpy() if len(places) > 1 else np.zeros(len(found), np.int32)
        # LanceDB's own distances have rounding errors, which would decide between equal hits
        similarities = cosines(_rows_of(found["vector"]), wanted[numbers])
        hits: dict[int, list[Hit]] = {place: [] for place in places}
        for number, chunk_id, cosine in zip(numbers, found["chunk_id"].to_pylist(), similarities, strict=True):
            hits[places[number]].append(Hit(chunk_id, cosine))
        return hits

    return _complete(search, batch.num_rows, task.depth, decimals_of("dense"))


def _rows_of(vectors: Any) -> Any:
    """Return a column of lists of one length as an array, n x d, float64."""
    flat = vectors.combine_chunks() if isinstance(vectors, pa.ChunkedArray) else vectors
    return flat.flatten().to_numpy(zero_copy_only=False).astype(np.float64).reshape(len(vectors), -1)


def _rank_by_words(table: Any, batch: pa.RecordBatch, task: SearchTask, rows: dict[str, int]) -> Iterator[list[Hit]]:
    """Yield the hits of each query by BM25."""
    queries = [" ".join(tokenise(text)) for text in batch.column("text").to_pylist()]

    def search(places: Sequence[int], most: int) -> dict[int, list[Hit]]:
        hits: dict[int, list[Hit]] = {}
        for place in places:
            hits[place] = []
            if queries[place]:
                query = table.search(queries[place], query_type="fts", fts_columns="words")
                found = _read_hits(query, most, ["_score"], rows)
                scores = (score / (K1 + 1) for score in found["_score"].to_pylist())
                hits[place] = list(map(Hit, found["chunk_id"].to_pylist(), scores))
        return hits

    return _complete(search, batch.num_rows, task.depth, decimals_of("bm25"))


def _read_hits(query: Any, most: int, columns: Sequence[str], rows: dict[str, int]) -> pa.Table:
    """Return chunk_id and columns of the hits. `rows` receives the row of each hit."""
    found = query.limit(most).select(["chunk_id", *columns]).with_row_id(True).to_arrow()
    rows.update(zip(found["chunk_id"].to_pylist(), found["_rowid"].to_pylist(), strict=True))
    return found


def _complete(
    search: Callable[[Sequence[int], int], dict[int, list[Hit]]], queries: int, depth: int, decimals: int | None
) -> Iterator[list[Hit]]:
    """Yield the `depth` best hits of each query, in order. `search` returns so many hits of the queries at places.

    LanceDB breaks off among equal similarities. Such a query is searched again with twice as many hits.
    """
    best: dict[int, list[Hit]] = {}
    most = depth + SPARE_HITS
    places = list(range(queries))
    while places:
        for place, hits in search(places, most).items():
            ordered = rank_hits(hits, most, decimals)
            last = [compared(ordered[at].similarity, decimals) for at in (depth - 1, -1)] if len(hits) == most else []
            if not last or last[0] != last[1]:
                best[place] = ordered[:depth]
        places = [place for place in places if place not in best]
        most *= 2
    return (best[place] for place in range(queries))


def _texts(table: Any, rows: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the texts of chunks, by chunk_id."""
    if not rows:
        return {}
    found = table.take_row_ids(list(rows)).select(["chunk_id", *TEXTS]).to_arrow()
    return {row.pop("chunk_id"): row for row in found.to_pylist()}


def list_documents(batches: Iterable[pa.RecordBatch], index: str, version: int) -> Iterator[pa.RecordBatch]:
    """Yield columns of `LISTED`, one row per chunk of these rows of a table (start, count).

    A damaged table is one row with `error` only.
    """
    columns = ["document_id", "content"]
    try:
        for rows in _read_rows(batches, index, version, columns):
            no_error = pa.nulls(rows.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays([*rows.select(columns).columns, no_error], schema=LISTED)
    except DamagedIndexError as error:
        yield pa.RecordBatch.from_pylist([{"error": str(error)}], LISTED)


def read_documents(
    batches: Iterable[pa.RecordBatch], index: str, version: int, overlap: int
) -> Iterator[pa.RecordBatch]:
    """Yield columns of `CHUNK_TEXTS`, one row per chunk of these rows of a table (start, count).

    Raises DamagedIndexError.
    """
    for rows in _read_rows(batches, index, version, ["chunk_id", "document_id", "url", "text"]):
        texts = []
        for row in rows.to_pylist():
            number = int(row.pop("chunk_id").rpartition("#")[2])
            texts.append({**row, "number": number, "text": without_overlap(row["text"], number, overlap)})
        yield pa.RecordBatch.from_pylist(texts, CHUNK_TEXTS)


def _read_rows(
    batches: Iterable[pa.RecordBatch], index: str, version: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    table = open_table(index, version)
    for batch in batches:
        for part in batch.to_pylist():
            try:
                query = table.search().select(columns).limit(part["count"]).offset(part["start"])
                yield from query.to_batches()
            except Exception as error:
                raise _damaged(index, error) from error
