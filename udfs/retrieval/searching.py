"""What searches an index on Spark's workers: a task is a shard, its hits are merged by query, and then read.

A sample's own contexts are searched too: a few chunks, all compared, a sample at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from untold.udfs.retrieval import dense
from untold.udfs.retrieval.catalog import Catalog
from untold.udfs.retrieval.dense import Integers, Probing, plain_search, use_one_thread
from untold.udfs.retrieval.shards import DamagedShardError, Shard, groups_by, open_shard, rows_of
from untold.udfs.retrieval.terms import (
    Bm25,
    Hit,
    Statistics,
    Terms,
    TermsBuilder,
    decimals_of,
    depth_of,
    fuse_rankings,
    rank_hits,
    tokenise,
)
from untold.udfs.samples.batches import in_batches
from untold.udfs.storage import StoragePath
from untold.udfs.texts import split_words

RETRIEVERS = ("dense", "bm25", "hybrid")
# So many queries are held by a task at once
QUERIES_AT_ONCE = 1_000
FREQUENCIES = pa.schema([("term", pa.string()), ("frequency", pa.int64()), ("error", pa.string())])
HITS = pa.schema(
    [
        ("query", pa.string()),
        ("retriever", pa.string()),
        ("chunk_id", pa.string()),
        ("similarity", pa.float64()),
        ("shard", pa.string()),
        ("position", pa.int32()),
        ("error", pa.string()),
    ]
)
MERGED = pa.schema(
    [
        ("query", pa.string()),
        ("rank", pa.int64()),
        ("chunk_id", pa.string()),
        ("similarity", pa.float64()),
        ("shard", pa.string()),
        ("position", pa.int32()),
    ]
)
TEXTS = ("document_id", "title", "url", "text")
READ = pa.schema([*list(MERGED)[:4], *((name, pa.string()) for name in (*TEXTS, "error"))])


@dataclass(frozen=True)
class SearchTask:
    """What every task of a search knows. `queries`: Parquet of query (its key), text and vector, path or URI.

    `frequencies`: Parquet of term and frequency, for BM25. `tombstones` by the names of shards.
    """

    index: str
    cache: str
    queries: str
    retrievers: tuple[str, ...]
    k: int
    probing: Probing
    tombstones: Mapping[str, str | None]
    chunks: int = 0
    mean_length: float = 0.0
    frequencies: str | None = None

    @property
    def fused(self) -> bool:
        """Whether several rankings become one."""
        return len(self.retrievers) > 1

    @property
    def depth(self) -> int:
        """How many hits of a shard are wanted of each retriever."""
        return depth_of(self.k, fused=self.fused)

    def open(self, name: str) -> Shard:
        """A shard. Raises DamagedShardError."""
        return open_shard(self.index, name, self.tombstones[name], self.cache)


def terms_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Column term: the distinct terms of each batch of queries (column text)."""
    for batch in batches:
        terms = {term for text in batch.column("text").to_pylist() for term in tokenise(text)}
        yield pa.RecordBatch.from_pydict({"term": pa.array(sorted(terms), pa.string())})


def count_terms(batches: Iterable[pa.RecordBatch], searching: SearchTask, terms: str) -> Iterator[pa.RecordBatch]:
    """Columns of `FREQUENCIES`: in how many living chunks of a shard (column name) each term of a file is."""
    for name in _names(batches):
        try:
            postings = searching.open(name).terms()
            for batch in _read(terms, ["term"]):
                wanted = batch.column("term").to_pylist()
                counts = pa.array([postings.frequency(term) for term in wanted], pa.int64())
                columns = [batch.column("term"), counts, pa.nulls(len(wanted), pa.string())]
                yield pa.RecordBatch.from_arrays(columns, schema=FREQUENCIES)
        except DamagedShardError as error:
            yield pa.RecordBatch.from_pylist([{"error": str(error)}], FREQUENCIES)


def search_shards(batches: Iterable[pa.RecordBatch], searching: SearchTask) -> Iterator[pa.RecordBatch]:
    """Columns of `HITS`: the k best of a shard (column name) for every query and retriever.

    A shard that is damaged is one row with `error` alone.
    """
    dense.use_one_thread()
    statistics = _statistics(searching)
    for name in _names(batches):
        try:
            yield from _search_shard(name, searching, statistics)
        except DamagedShardError as error:
            yield pa.RecordBatch.from_pylist([{"error": str(error)}], HITS)


def _search_shard(name: str, searching: SearchTask, statistics: Statistics) -> Iterator[pa.RecordBatch]:
    shard = searching.open(name)
    if "dense" in searching.retrievers:
        vectors = shard.dense()
        for batch in _read(searching.queries, ["query", "vector"]):
            found = vectors.search(rows_of(batch.column("vector")), searching.depth, searching.probing)
            hits: list[tuple[Integers, Any]] = [(one.positions, one.similarities) for one in found]
            yield _hits(shard, name, "dense", batch.column("query"), hits)
    if "bm25" in searching.retrievers:
        ranking = Bm25(shard.terms(), statistics)
        for batch in _read(searching.queries, ["query", "text"]):
            texts = batch.column("text").to_pylist()
            hits = [ranking.search(tokenise(text), searching.depth) for text in texts]
            yield _hits(shard, name, "bm25", batch.column("query"), hits)


def _hits(
    shard: Shard, name: str, retriever: str, queries: pa.Array, hits: Iterable[tuple[Integers, Any]]
) -> pa.RecordBatch:
    """The hits of a batch of queries in one shard as rows."""
    found = list(hits)
    sizes = [len(positions) for positions, _ in found]
    positions = np.concatenate([positions for positions, _ in found]).astype(np.int32)
    scores = np.concatenate([scores for _, scores in found]).astype(np.float64)
    rows = len(positions)
    columns = [
        queries.take(pa.array(np.repeat(np.arange(len(sizes)), sizes))),
        pa.array([retriever] * rows, pa.string()),
        pa.array(shard.names(positions), pa.string()),
        pa.array(scores),
        pa.array([name] * rows, pa.string()),
        pa.array(positions),
        pa.nulls(rows, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=HITS)


def merge_hits(batches: Iterable[pa.RecordBatch], k: int, *, fused: bool = False) -> Iterator[pa.RecordBatch]:
    """Columns of `MERGED`: the k best of all shards for a query, of several retrievers fused.

    batches: query, hits list<struct<retriever, similarity, chunk_id, shard, position>>.
    """
    for batch in batches:
        rows = []
        for one in batch.to_pylist():
            places = {hit["chunk_id"]: (hit["shard"], hit["position"]) for hit in one["hits"]}
            for rank, hit in enumerate(_merge(one["hits"], k, fused=fused), start=1):
                shard, position = places[hit.chunk_id]
                rows.append(
                    {**hit._asdict(), "query": one["query"], "rank": rank, "shard": shard, "position": position}
                )
        yield pa.RecordBatch.from_pylist(rows, MERGED)


def _merge(hits: Iterable[Mapping[str, Any]], k: int, *, fused: bool) -> list[Hit]:
    """The k best hits of a query, over all shards and retrievers."""
    by_retriever: dict[str, list[Hit]] = {}
    for hit in hits:
        by_retriever.setdefault(hit["retriever"], []).append(Hit(hit["chunk_id"], hit["similarity"]))
    depth = depth_of(k, fused=fused)
    rankings = [rank_hits(by_retriever[name], depth, decimals_of(name)) for name in sorted(by_retriever)]
    # Where nothing is fused there is one retriever, and its depth is k
    return fuse_rankings(rankings, k) if fused else [hit for ranking in rankings for hit in ranking][:k]


def read_hits(batches: Iterable[pa.RecordBatch], searching: SearchTask) -> Iterator[pa.RecordBatch]:
    """Columns of `READ`: hits with what their chunks say. batches: the columns of `MERGED`, sorted by shard."""
    for name, parts in groups_by(batches, "shard"):
        try:
            shard = searching.open(name)
            for part in parts:
                yield _texts_of(shard, part)
        except DamagedShardError as error:
            yield pa.RecordBatch.from_pylist([{"error": str(error)}], READ)


# A chunk of a document without the words that the chunk before it has too
CHUNK_TEXTS = pa.schema(
    [*((name, pa.string()) for name in ("document_id", "url")), ("number", pa.int64()), ("text", pa.string())]
)


def read_documents(
    batches: Iterable[pa.RecordBatch], catalog: Catalog, index: str, cache: str
) -> Iterator[pa.RecordBatch]:
    """Yield columns of `CHUNK_TEXTS`, a row per chunk of the shards with these names. Raises DamagedShardError."""
    tombstones = {shard.name: shard.tombstones for shard in catalog.shards}
    overlap = catalog.making.overlap
    for name in _names(batches):
        shard = open_shard(index, name, tombstones[name], cache)
        is_living = shard.is_living()
        for start, chunks in shard.chunks(["chunk_id", "document_id", "url", "text"]):
            living = chunks.filter(pa.array(is_living[start : start + chunks.num_rows]))
            yield from in_batches((_without_overlap(row, overlap) for row in living.to_pylist()), CHUNK_TEXTS)


def _without_overlap(row: Mapping[str, Any], overlap: int) -> dict[str, Any]:
    number = int(row["chunk_id"].rpartition("#")[2])
    text = "".join(split_words(row["text"])[overlap:]) if number else row["text"]
    return {"document_id": row["document_id"], "url": row["url"], "number": number, "text": text}


def _texts_of(shard: Shard, hits: pa.RecordBatch) -> pa.RecordBatch:
    positions = hits.column("position").to_numpy()
    read = shard.read(positions, TEXTS).combine_chunks()
    rows = pa.array(np.searchsorted(np.unique(positions), positions))
    texts = [read[name].combine_chunks().take(rows) if len(read) else pa.nulls(0, pa.string()) for name in TEXTS]
    columns = [*hits.select(MERGED.names[:4]).columns, *texts, pa.nulls(hits.num_rows, pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=READ)


def _statistics(searching: SearchTask) -> Statistics:
    """What BM25 knows of the whole corpus, as far as the queries ask."""
    found: dict[str, int] = {}
    if searching.frequencies is not None:
        for batch in _read(searching.frequencies, ["term", "frequency"]):
            found.update(zip(batch.column("term").to_pylist(), batch.column("frequency").to_pylist(), strict=True))
    return Statistics(searching.chunks, searching.mean_length, found)


def _names(batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    for batch in batches:
        yield from batch.column("name").to_pylist()


def _read(path: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a folder of Parquet, a bounded number at a time; batches without a row are left out."""
    system, inner = StoragePath(path).arrow
    rows = ds.dataset(inner, filesystem=system, format="parquet")
    # Of no rows Spark may write no file, and then there is no column to read
    if not rows.files:
        return
    for batch in rows.to_batches(columns=columns, batch_size=QUERIES_AT_ONCE):
        if batch.num_rows:
            yield batch


RANKED = pa.schema(
    [
        ("sample_id", pa.string()),
        ("query", pa.string()),
        ("rank", pa.int64()),
        ("chunk_id", pa.string()),
        ("similarity", pa.float64()),
        ("document_id", pa.string()),
        ("text", pa.string()),
    ]
)
Rows = Sequence[Mapping[str, Any]]


def rank_contexts(batches: Iterable[pa.RecordBatch], k: int, retrievers: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Columns of `RANKED`: for each query of a sample its k best chunks.

    batches: sample_id, chunks list<struct<chunk_id, document_id, text, vector>>, queries list<struct<query, text,
    vector>>; vectors are null where no retriever compares them. Statistics of words are of the sample's own chunks.
    """
    use_one_thread()
    for batch in batches:
        rows = []
        for sample in batch.to_pylist():
            chunks = sorted(sample["chunks"], key=lambda chunk: chunk["chunk_id"])
            by_id = {chunk["chunk_id"]: chunk for chunk in chunks}
            for query, hits in _rank(chunks, sample["queries"], k, retrievers):
                for rank, hit in enumerate(hits, start=1):
                    chunk = {name: by_id[hit.chunk_id][name] for name in ("document_id", "text")}
                    rows.append(
                        {"sample_id": sample["sample_id"], "query": query, "rank": rank, **hit._asdict(), **chunk}
                    )
        yield pa.RecordBatch.from_pylist(rows, RANKED)


def _rank(chunks: Rows, queries: Rows, k: int, retrievers: Sequence[str]) -> Iterator[tuple[str, list[Hit]]]:
    """Each query's key, and its hits in order."""
    depth = depth_of(k, fused=len(retrievers) > 1)
    rankings = [RANKERS[name](chunks, queries, depth) for name in retrievers]
    for query, *lists in zip(queries, *rankings, strict=True):
        yield query["query"], fuse_rankings(lists, k) if len(lists) > 1 else lists[0]


def _by_vectors(chunks: Rows, queries: Rows, depth: int) -> Iterator[list[Hit]]:
    vectors, asked = (np.array([row["vector"] for row in rows], np.float32) for rows in (chunks, queries))
    for found in plain_search(vectors, asked, depth):
        hits = zip(found.positions, found.similarities.tolist(), strict=True)
        named = (Hit(chunks[at]["chunk_id"], similarity) for at, similarity in hits)
        yield rank_hits(named, depth, decimals_of("dense"))


def _by_words(chunks: Rows, queries: Rows, depth: int) -> Iterator[list[Hit]]:
    builder = TermsBuilder()
    tokens = [tokenise(chunk["text"]) for chunk in chunks]
    for one in tokens:
        builder.add(one)
    lengths = np.array(list(map(len, tokens)), np.int32)
    terms = Terms(builder.postings(), lengths, np.empty(0, np.int32))
    frequencies = {term: terms.frequency(term) for term in {token for one in tokens for token in one}}
    statistics = Statistics(len(chunks), float(lengths.mean()), frequencies)
    ranking = Bm25(terms, statistics)
    for query in queries:
        positions, scores = ranking.search(tokenise(query["text"]), depth)
        hits = zip(positions, scores.tolist(), strict=True)
        yield [Hit(chunks[at]["chunk_id"], score) for at, score in hits]


# By the name of a retriever: from chunks and queries, and how many hits are wanted, each query's hits in order
RANKERS = {"dense": _by_vectors, "bm25": _by_words}
