"""Build or grow an index (`untold index`), and search it (`untold search`). Methods, section 10."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.requests import invalid_rows
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inference.stage.start import Outcome, RunRequest, Start, open_endpoint, open_start
from untold.jobs.inputs.checking import describe_left_out
from untold.jobs.inputs.options import SearchOptions
from untold.jobs.inputs.reading import Samples, read_corpus, read_queries
from untold.jobs.inputs.samples import fingerprint, show_invalid
from untold.jobs.retrieval.index_build import CorpusError, IndexBuild, Maker
from untold.jobs.retrieval.sources import (
    STAGE,
    Searcher,
    SearchError,
    cache_of,
    catalog_in,
    check_model,
    distinct_queries,
    open_catalog,
    query_key,
)
from untold.jobs.run.folders import Counted
from untold.jobs.run.output import shown
from untold.jobs.run.session import spark_schema
from untold.jobs.run.terminal import Display, amount, print_lines
from untold.jobs.run_tables import place_of_table
from untold.jobs.tables import FAILURES, HITS
from untold.udfs.redaction import redact
from untold.udfs.retrieval.building import is_begun
from untold.udfs.retrieval.catalog import COARSE, DEAD, SHARDS, Catalog
from untold.udfs.retrieval.dense import Probing
from untold.udfs.retrieval.shards import is_whole, shard_folder
from untold.udfs.stages.arrow import UNASKED
from untold.udfs.storage import StoragePath

TABLES = ("failures", "usage")
COMMAND = "index"
# What of `index.*` an index is made by; the rest says how it is spread and searched
MADE_BY = {"chunk_words", "chunk_overlap", "codec"}


def index(request: RunRequest, display: Display) -> Outcome:
    """Makes or grows the index in the output. Raises errors with one clear line for what a user can mend.

    An index belongs to the embedding model and to how texts are cut, not to a corpus: what the corpus has anew is added
    in new shards, what it has no more is passed over. Killed at any moment, it is searched as it was before, and goes
    on when it is started again.
    """
    request = request.pinned()
    stages = {STAGE: bind_stage(STAGE, request.settings)}
    with (
        request.open_output(TABLES) as output,
        open_endpoint(request, display) as endpoint,
        open_start(request, output, display) as start,
    ):
        return _index(start, start.runner(stages, endpoint))


def _index(start: Start, runner: StageRunner) -> Outcome:
    """One start: claims, reads, makes what is missing, and names it in the manifest."""
    request, output, steps = start.request, start.output, start.workspace
    settings, digest = request.settings, runner.stages[STAGE].digest
    results = {"index": settings.index.model_dump(include=MADE_BY)}
    output.claim({"dataset": COMMAND, "metrics": [COMMAND], "results": results, "stages": {STAGE: digest}})
    before = catalog_in(output.earlier)
    corpus = read_corpus(start.spark, request.input, request.limit, request.read)
    show_invalid(corpus, start.display, "row is not a document", "rows are not documents")
    documents = steps.keep(corpus.samples, "documents")
    content = fingerprint(documents.select("document_id", "content"))
    if before is not None and _is_whole_of(start, corpus, before, content) and (unchanged := start.unchanged()):
        return unchanged
    _begin(start, corpus, before, content)
    maker = Maker(steps, output.place, settings.index, digest, runner.ask, cache_of(settings))
    made = _make(maker, documents, corpus, before)
    start.engines.process.leave()
    for line in made.damaged:
        start.display.note(line)
    return _finish(start, corpus, made, runner)


def _is_whole_of(start: Start, corpus: Samples, before: Catalog, content: str) -> bool:
    """Whether the index is whole and of this very corpus."""
    earlier = start.output.earlier or {}
    same = earlier["input"]["fingerprint"] == content and earlier["counts"]["invalid"] == corpus.invalid_count
    outgrown = not before.making.lists and before.chunks > start.request.settings.index.exact_chunks
    return same and not outgrown and _is_whole(start.output.place, before)


def _is_whole(place: str, catalog: Catalog) -> bool:
    """Whether what every shard begins as, the shards and their tombstones are there."""
    dead = [StoragePath(place) / DEAD / shard.tombstones for shard in catalog.shards if shard.tombstones]
    files = [StoragePath(place) / COARSE, *dead]
    if not is_begun(place, catalog.making) or not all(file.entry().kind == "file" for file in files):
        return False
    return all(is_whole(shard_folder(place, shard.name)) for shard in catalog.shards)


def _make(maker: Maker, documents: DataFrame, corpus: Samples, before: Catalog | None) -> IndexBuild:
    """The index. Where no document has a word, rows that are none still go into the table failures."""
    try:
        return maker.make(documents, corpus.row_count, before)
    except CorpusError as error:
        if not corpus.invalid_count:
            raise
        empty = documents.sparkSession.createDataFrame([], spark_schema(FAILURES))
        return IndexBuild(None, empty, 0, nothing=str(error))


def _begin(start: Start, corpus: Samples, before: Catalog | None, content: str) -> None:
    """Writes the manifest as `running`, still with the index as it was: that is searched until there is another."""
    counts = {"documents": corpus.row_count, "invalid": corpus.invalid_count, "duplicates": corpus.duplicates}
    kept = {} if before is None else {COMMAND: before.plain()}
    given = start.request.shown_input(content)
    fields: dict[str, Any] = {"metrics": [COMMAND], "input": given, "counts": counts, **kept}
    start.begin(shown(start.request.settings), **fields)


def _finish(start: Start, corpus: Samples, made: IndexBuild, runner: StageRunner) -> Outcome:
    """Writes the tables, then the manifest with the index as it is now, and removes what it names no more."""
    invalid = invalid_rows(corpus.invalid)
    counts: dict[str, Any] = start.write_failures(made.failures.unionByName(invalid))
    statuses = {"ok": corpus.row_count - made.failed, "failed": made.failed + corpus.invalid_count}
    counts |= {"statuses": statuses, "new_chunks": made.new, "shards_built": made.built}
    named: dict[str, Any] = {} if made.catalog is None else {COMMAND: made.catalog.plain()}
    outcome = start.end([runner], counts, **named)
    if made.catalog is not None:
        old = f"shards of an earlier index in {start.output.place}"
        start.output.tidy(old, partial(remove_unnamed, start.output.place, made.catalog))
    return replace(outcome, message="\n".join(filter(None, [outcome.message, made.nothing])) or None)


def remove_unnamed(place: str, catalog: Catalog) -> None:
    """Removes shards and tombstones that the index names no more, and what is left of killed writes.

    After the manifest that names others: a search that began before may have to be started again, none finds half.
    """
    named: dict[str, set[str | None]] = {
        SHARDS: {shard.name for shard in catalog.shards},
        DEAD: {shard.tombstones for shard in catalog.shards},
    }
    for folder, names in named.items():
        for entry in (StoragePath(place) / folder).entries():
            if entry.name not in names:
                entry.place.remove()


def show_index(outcome: Outcome, request: RunRequest) -> None:
    """Prints what is in the index, and how to search it."""
    catalog, counts = catalog_in(outcome.manifest), outcome.manifest["counts"]
    if outcome.unchanged:
        print("Nothing to do. The results are unchanged")
    if catalog is not None:
        new = 0 if outcome.unchanged else counts["new_chunks"]
        kind = amount(catalog.making.lists, "list") if catalog.making.lists else "exact"
        size = sum(shard.size for shard in catalog.shards) / 2**20
        sizes = [
            amount(catalog.documents, "document"),
            f"{amount(catalog.chunks, 'chunk')} ({new:,} new)",
            amount(len(catalog.shards), "shard"),
            *(kind, f"{size:,.1f} MB"),
        ]
        output = request.output
        places = f"results: {output}", f"next: untold search --index {shlex.quote(output)} --query TEXT"
        print_lines([", ".join(sizes), *map(redact, places)])


SEARCH_TABLES = ("hits", "failures", "usage")
SEARCH_COMMAND = "search"
# Of a hit's text, in the terminal
SHOWN_CHARACTERS = 160


@dataclass(frozen=True, kw_only=True)
class SearchRequest(RunRequest, SearchOptions):
    """What `untold search` was asked to do: one `query`, or the queries of `input` into an `output`."""


def search(request: SearchRequest, display: Display) -> Outcome:
    """Searches an index. Raises errors with one clear line for what a user can mend.

    One query gives its hits; a file of them the table `hits`, beside `failures` and a manifest. Each distinct text is
    asked once. Order of hits: similarity descending, then chunk_id ascending by code points.
    """
    catalog = open_catalog(request.index)
    stages = {}
    if request.retriever != "bm25":
        stages[STAGE] = bind_stage(STAGE, request.settings)
        check_model(request.index, catalog, stages[STAGE].digest)
    with ExitStack() as stack:
        if request.query is not None:
            _check_local(request.settings.spark.master)
            if stages and request.settings.embeddings.base_url and request.settings.llm.backend == "spool":
                raise SearchError("--query needs llm.backend=process; with a spool use --queries and --output")
            # Unless the setting `completion_store` says where, nothing of one query is kept
            request = replace(request, output=stack.enter_context(tempfile.TemporaryDirectory(prefix="untold-search-")))
        output = stack.enter_context(request.open_output(SEARCH_TABLES, request.index))
        endpoint = stack.enter_context(open_endpoint(request, display))
        start = stack.enter_context(open_start(request, output, display, index=request.index))
        searching = _Searching(start, request, catalog, start.runner(stages, endpoint))
        return _search_one(searching) if request.query is not None else _search_file(searching)


@dataclass(frozen=True)
class _Searching:
    """What the steps of one search share."""

    start: Start
    request: SearchRequest
    catalog: Catalog
    runner: StageRunner

    def hits(self, queries: DataFrame) -> tuple[DataFrame, DataFrame]:
        """The columns of the table `hits` for queries (query_id, query), and the queries that have no vector."""
        request = self.request
        searcher = Searcher(
            self.start.workspace,
            request.index,
            self.catalog,
            self.runner.ask,
            cache_of(request.settings),
            request.top,
            request.retriever,
            Probing(request.settings.index.nprobe, request.exact),
        )
        found, lost = searcher.search(distinct_queries(queries, "query"))
        keyed = queries.withColumn("key", query_key("query"))
        hits = keyed.join(found.withColumnRenamed("query", "key"), on="key", how="inner").select(*HITS.names)
        return hits, keyed.join(lost.withColumnRenamed("query", "key"), on="key", how="inner")


def _search_one(run: _Searching) -> Outcome:
    """The hits of one query."""
    spark, request = run.start.spark, run.request
    # Where the settings leave the master to the launcher it is known only now
    _check_local(spark.conf.get("spark.master"))
    hits, lost = run.hits(spark.createDataFrame([("1", request.query)], "query_id string, query string"))
    if told := run.runner.ending.explain(request.command):
        code = run.runner.ending.exit_code({}, request.settings.fail_on_error)
        return Outcome(exit_code=code, message=told)
    for row in lost.limit(1).collect():
        raise SearchError(f"the query got no vector ({row['error_type']})")
    return Outcome(exit_code=0, rows=[row.asDict() for row in hits.orderBy("rank").collect()])


def _check_local(master: str | None) -> None:
    """Raises SearchError where tasks run on other machines: they cannot read the steps of one query, kept on this."""
    if master is not None and not master.startswith("local"):
        raise SearchError(f"--query needs a local Spark, and spark.master is {master}. Use --queries and --output")


def _search_file(run: _Searching) -> Outcome:
    """The hits of a file of queries as a table. An output with nothing left to ask is not touched."""
    start, request, steps = run.start, run.request, run.start.workspace
    # Before the output is claimed, as it is the queries that say whose it is
    found = read_queries(start.spark, request.input, request.read)
    queries = found.samples.select("query_id", "query")
    content = fingerprint(queries)
    start.output.claim(_identity(run, content))
    if unchanged := start.unchanged():
        return unchanged
    counts = {"queries": found.row_count, "invalid": found.invalid_count, "duplicates": found.duplicates}
    given = request.shown_input(content, index=request.index)
    start.begin(shown(request.settings), metrics=[SEARCH_COMMAND], input=given, counts=counts)
    left_out = [describe_left_out(found.left_out)] if found.left_out else []
    for line in (*left_out, *found.first_invalid):
        start.display.note(line)
    asked, invalid = steps.keep(queries, "asked"), steps.keep(found.invalid, "invalid")
    hits, lost = run.hits(asked)
    start.engines.process.leave()
    return _finish_search(run, hits, steps.keep(_failures(lost, invalid), "failures"))


def _identity(run: _Searching, content: str) -> Mapping[str, Any]:
    """What a table of hits is of: queries, what the index holds, and how it is searched."""
    request = run.request
    way = {"top": request.top, "retriever": request.retriever, "exact": request.exact}
    results = {SEARCH_COMMAND: {**way, "nprobe": request.settings.index.nprobe, "index": run.catalog.digest}}
    digests = {name: stage.digest for name, stage in run.runner.stages.items()}
    return {
        "dataset": SEARCH_COMMAND,
        "input": content,
        "metrics": [SEARCH_COMMAND],
        "results": results,
        "stages": digests,
    }


def _finish_search(run: _Searching, hits: DataFrame, failures: DataFrame) -> Outcome:
    """Writes the tables and ends the run."""
    start, before = run.start, run.start.output.manifest["counts"]
    rows = Counted({"hits": F.count(F.lit(1))})
    start.output.write("hits", hits, order=("query_id", "rank"), schema=HITS, counted=rows)
    counts: dict[str, Any] = start.write_failures(failures)
    lost = counts["failures"]
    statuses = {"ok": before["queries"] - lost, "failed": before["invalid"] + lost}
    return start.end([run.runner], {**counts, "hits": rows["hits"], "statuses": statuses})


def _failures(lost: DataFrame, invalid: DataFrame) -> DataFrame:
    """Rows of `failures`: queries without a vector, and rows that are no query."""
    null = F.lit(None).cast("string")
    own = {"sample_id": F.col("query_id"), "metric": null, "stage": F.lit(STAGE)}
    failed = lost.where(F.col("error_type") != UNASKED)
    without = failed.select(*[own.get(name, F.col(name)).alias(name) for name in FAILURES.names])
    return without.unionByName(invalid_rows(invalid))


def show_hits(outcome: Outcome, request: SearchRequest, *, as_json: bool) -> None:
    """Prints the hits of one query, or where those of many are; nothing of one that ended before it was searched."""
    if request.query is None:
        if outcome.unchanged:
            print("Nothing to do. The results are unchanged")
        counts = outcome.manifest["counts"]
        found = f"{amount(counts['hits'], 'hit')} of {amount(counts['queries'], 'query', 'queries')}"
        print_lines([redact(f"{found}: {place_of_table(request.output, outcome.manifest, 'hits')}")])
    elif outcome.message is not None:
        # The message is all that there is to say; no hits would read as if nothing had been found
        return
    elif as_json:
        print(json.dumps(list(outcome.rows), indent=2, ensure_ascii=False))
    else:
        for hit in outcome.rows:
            text = hit["text"] if len(hit["text"]) <= SHOWN_CHARACTERS else f"{hit['text'][:SHOWN_CHARACTERS]}..."
            print(f"{hit['rank']:>3}  {hit['similarity']:7.4f}  {hit['chunk_id']}\n     {text}")
        if not outcome.rows:
            print("no chunk of the index has a word of the query" if request.retriever == "bm25" else "no hits")
    sys.stdout.flush()
