"""Build and extend an index: find the changed documents, cut and embed the new ones, and write their chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import failure_rows, has_failed, is_unasked
from untold.jobs.inputs.samples import fingerprint
from untold.jobs.retrieval.sources import STAGE, Ask, embed, row_ranges
from untold.jobs.run.folders import Counted, Workspace, write_parquet
from untold.jobs.run.session import map_rows, spark_schema
from untold.jobs.settings.sections import IndexSettings
from untold.jobs.tables import FAILURES
from untold.udfs.errors import UserError
from untold.udfs.retrieval.chunks import CHUNKS, chunk_documents
from untold.udfs.retrieval.index_table import LISTED, Catalog, IndexParameters, list_documents, write_table
from untold.udfs.storage import StoragePath

# A build that removes more documents replaces the table, which is faster than their deletion. No text is embedded again
MOST_REMOVED = 100_000
# A document is unchanged if both are equal
_SAME = ["document_id", "content"]


class CorpusError(UserError):
    """A corpus that cannot become an index. The message has the remedy."""


@dataclass(frozen=True)
class IndexBuild:
    """The result of a build: the index, and rows of `failures` of the documents without a vector.

    `catalog` is None if vectors are missing, or if no document could be embedded: `nothing` then has the reason.
    `failed`: number of documents; `new`: number of new chunks; `damage`: the reason why
    the index before was replaced.
    """

    catalog: Catalog | None
    failures: DataFrame
    failed: int
    new: int = 0
    damage: str | None = None
    nothing: str | None = None


@dataclass(frozen=True)
class _Embedded:
    """The chunks of documents without failures, vectors (text_id, vector, ...), and the documents that failed."""

    chunks: DataFrame
    vectors: DataFrame
    failures: DataFrame
    failed: int
    waiting: int


@dataclass(frozen=True)
class IndexBuilder:
    """Build and extend an index. `model`: the identity of the vectors that `ask` returns."""

    steps: Workspace
    index: str
    settings: IndexSettings
    model: str
    ask: Ask

    def build(self, documents: DataFrame, before: Catalog | None) -> IndexBuild:
        """Return the index of documents (document_id, title, url, text, content), extended from the index before.

        Raises CorpusError for a corpus without a word.
        """
        new, removed, damage = documents, list[str](), None
        if before is not None:
            known, damage = self._documents_of(before)
            new = documents.join(known, on=_SAME, how="left_anti")
            gone = known.join(documents.select(*_SAME), on=_SAME, how="left_anti").select("document_id")
            removed = [row["document_id"] for row in gone.limit(MOST_REMOVED + 1).collect()]
            if damage or len(removed) > MOST_REMOVED or len(removed) == self.steps.count(known):
                before, new, removed = None, documents, []
        chunks = self._cut(new)
        count = self.steps.count(chunks)
        if before is None and not count:
            raise CorpusError("cannot build an index, because no document of the corpus has a word")
        embedded = self._embed(chunks)
        catalog, nothing = None, None
        if not embedded.waiting:
            catalog = self._write(documents, embedded, before, removed)
            if catalog is None:
                nothing = "no index was built, because no text of the corpus could be embedded. See the table failures"
        return IndexBuild(catalog, embedded.failures, embedded.failed, count, damage, nothing)

    def _documents_of(self, catalog: Catalog) -> tuple[DataFrame, str | None]:
        """Return document_id and content of the documents in an index, and the damage of its table as a line."""
        read = partial(list_documents, index=self.index, version=catalog.version)
        rows = row_ranges(self.steps.spark, catalog.chunks)
        damage = Counted({"error": F.max("error")})
        known = self.steps.keep(rows.mapInArrow(read, spark_schema(LISTED)).distinct(), "indexed-documents", damage)
        return known.drop("error"), damage["error"]

    def _cut(self, documents: DataFrame) -> DataFrame:
        """Return the chunks of documents: the columns of `CHUNKS`."""
        own = self.settings
        wanted = documents.select("document_id", "title", "url", "content", "text")
        cut = map_rows(wanted, chunk_documents, words=own.chunk_words, overlap=own.chunk_overlap)
        return self.steps.keep(cut, "chunks")

    def _embed(self, chunks: DataFrame) -> _Embedded:
        """Return the chunks with their vectors. A document with a failed text is left out completely."""
        texts = chunks.select("text_id", "text").dropDuplicates(["text_id"])
        counts = Counted({"failed": F.count_if(has_failed()), "waiting": F.count_if(is_unasked())})
        vectors = self.steps.keep(embed(self.ask, texts, "document", "text_id"), "vectors", counts)
        if not counts["failed"]:
            nothing = self.steps.spark.createDataFrame([], spark_schema(FAILURES))
            return _Embedded(chunks, vectors, nothing, 0, counts["waiting"])
        results = chunks.select("document_id", "text_id").join(vectors, on="text_id", how="inner")
        failures = self.steps.keep(failure_rows(None, STAGE, results, "document_id").distinct(), "failures")
        failed = _documents_in(failures)
        whole = self.steps.keep(chunks.join(failed, on="document_id", how="left_anti"), "whole")
        return _Embedded(whole, vectors, failures, failed.count(), counts["waiting"])

    def _write(
        self, documents: DataFrame, embedded: _Embedded, before: Catalog | None, removed: list[str]
    ) -> Catalog | None:
        """Write the table, and return the new index, None if it would have no chunk."""
        own = self.settings
        if before is None and not self.steps.count(embedded.chunks):
            return None
        making = before.making if before else self._parameters(embedded.vectors)
        indexed = documents.select(*_SAME)
        if embedded.failed:
            indexed = indexed.join(_documents_in(embedded.failures), on="document_id", how="left_anti")
        return write_table(
            self.index,
            making,
            self._rows(embedded),
            before,
            removed,
            documents=self.steps.count(documents) - embedded.failed,
            content=fingerprint(indexed),
            exact_chunks=own.exact_chunks,
            chunks_per_shard=own.chunks_per_shard,
        )

    def _parameters(self, vectors: DataFrame) -> IndexParameters:
        """Return the parameters of a new index with these vectors."""
        own, first = self.settings, vectors.where(F.col("vector").isNotNull()).select(F.size("vector")).first()
        assert first is not None
        return IndexParameters(own.chunk_words, own.chunk_overlap, self.model, own.codec, int(first[0]))

    def _rows(self, embedded: _Embedded) -> Iterator[pa.RecordBatch]:
        """Yield the chunks with their vectors, streamed from the files of a step."""
        vectors = embedded.vectors.select("text_id", "vector")
        rows = embedded.chunks.join(vectors, on="text_id", how="inner")
        path = self.steps.path("rows")
        write_parquet(rows.select(*CHUNKS.names, "vector"), path)
        system, inner = StoragePath(path).arrow
        files = ds.dataset(inner, filesystem=system, format="parquet")
        # Spark may write no file for no rows
        yield from files.to_batches() if files.files else ()


def _documents_in(failures: DataFrame) -> DataFrame:
    """Return document_id of the documents that failed."""
    return failures.select(F.col("sample_id").alias("document_id")).distinct()
