"""Build or grow an index (`untold index`), and search it (`untold search`). Methods, section 10."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.requests import failure_rows, invalid_rows
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inference.stage.start import Outcome, RunRequest, Start, open_endpoint, open_start
from untold.jobs.inputs.checking import describe_left_out
from untold.jobs.inputs.options import SearchOptions
from untold.jobs.inputs.reading import Samples, read_corpus, read_queries
from untold.jobs.inputs.samples import fingerprint, show_invalid
from untold.jobs.retrieval.index_build import CorpusError, IndexBuild, IndexBuilder
from untold.jobs.retrieval.sources import (
    STAGE,
    SearchError,
    catalog_in,
    check_model,
    distinct_queries,
    open_catalog,
    query_key,
    search_index,
)
from untold.jobs.run.folders import Counted
from untold.jobs.run.output import shown
from untold.jobs.run.session import spark_schema
from untold.jobs.run.terminal import Display, amount, print_lines
from untold.jobs.run_tables import place_of_table
from untold.jobs.tables import FAILURES, HITS
from untold.udfs.redaction import redact
from untold.udfs.retrieval.index_table import TABLE, Catalog, SearchTask
from untold.udfs.retrieval.ranking import retrievers_of
from untold.udfs.storage import StoragePath

TABLES = ("failures", "usage")
COMMAND = "index"
# The settings `index.*` that change an index. The others change its distribution and the search
MADE_BY = {"chunk_words", "chunk_overlap", "codec"}


def index(request: RunRequest, display: Display) -> Outcome:
    """Create or extend the index in the output. Raise errors of one line that a user can fix.

    An index depends on the embedding model and on the chunks, and not on a corpus. New documents are added, and
    removed documents are deleted. After a kill, the earlier index is searched, and the next attempt continues.
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
    """Run one attempt: claim the output, read the corpus, write the chunks, and write the manifest."""
    request, output, steps = start.request, start.output, start.workspace
    settings, digest = request.settings, runner.stages[STAGE].digest
    results = {"index": settings.index.model_dump(include=MADE_BY)}
    output.claim({"dataset": COMMAND, "metrics": [COMMAND], "results": results, "stages": {STAGE: digest}})
    before = catalog_in(output.earlier, output.place)
    corpus = read_corpus(start.spark, request.input, request.limit, request.read)
    show_invalid(corpus, start.display, "row is not a document", "rows are not documents")
    documents = steps.keep(corpus.samples, "documents")
    content = fingerprint(documents.select("document_id", "content"))
    if before is not None and _is_whole_of(start, corpus, before, content) and (unchanged := start.unchanged()):
        return unchanged
    _begin(start, corpus, before, content)
    builder = IndexBuilder(steps, output.place, settings.index, digest, runner.ask)
    made = _build(builder, documents, corpus, before)
    start.engines.process.leave()
    if made.damage:
        start.display.note(made.damage)
    return _finish(start, corpus, made, runner)


def _is_whole_of(start: Start, corpus: Samples, before: Catalog, content: str) -> bool:
    """Return True if the index is complete and has exactly this corpus."""
    earlier = start.output.earlier or {}
    same = earlier["input"]["fingerprint"] == content and earlier["counts"]["invalid"] == corpus.invalid_count
    outgrown = not before.lists and before.chunks > start.request.settings.index.exact_chunks
    return same and not outgrown and (StoragePath(start.output.place) / f"{TABLE}.lance").entry().kind == "folder"


def _build(builder: IndexBuilder, documents: DataFrame, corpus: Samples, before: Catalog | None) -> IndexBuild:
    """Return the index. If no document has a word, invalid rows still go into the table failures."""
    try:
        return builder.build(documents, before)
    except CorpusError as error:
        if not corpus.invalid_count:
            raise
        empty = documents.sparkSession.createDataFrame([], spark_schema(FAILURES))
        return IndexBuild(None, empty, 0, nothing=str(error))


def _begin(start: Start, corpus: Samples, before: Catalog | None, content: str) -> None:
    """Write the manifest as `running`. It names the earlier index, which is searched until the new one is complete."""
    counts = {"documents": corpus.row_count, "invalid": corpus.invalid_count, "duplicates": corpus.duplicates}
    kept = {} if before is None else {COMMAND: before.plain()}
    given = start.request.shown_input(content)
    fields: dict[str, Any] = {"metrics": [COMMAND], "input": given, "counts": counts, **kept}
    start.begin(shown(start.request.settings), **fields)


def _finish(start: Start, corpus: Samples, made: IndexBuild, runner: StageRunner) -> Outcome:
    """Write the tables and the manifest with the new index."""
    invalid = invalid_rows(corpus.invalid)
    counts: dict[str, Any] = start.write_failures(made.failures.unionByName(invalid))
    statuses = {"ok": corpus.row_count - made.failed, "failed": made.failed + corpus.invalid_count}
    counts |= {"statuses": statuses, "new_chunks": made.new}
    named: dict[str, Any] = {} if made.catalog is None else {COMMAND: made.catalog.plain()}
    outcome = start.end([runner], counts, **named)
    return replace(outcome, message="\n".join(filter(None, [outcome.message, made.nothing])) or None)


def show_index(outcome: Outcome, request: RunRequest) -> None:
    """Print the sizes of the index and the command to search it."""
    catalog, counts = catalog_in(outcome.manifest, request.output), outcome.manifest["counts"]
    if outcome.unchanged:
        print("Nothing to do. The results are unchanged")
    if catalog is not None:
        new = 0 if outcome.unchanged else counts["new_chunks"]
        kind = amount(catalog.lists, "list") if catalog.lists else "exact"
        sizes = [
            amount(catalog.documents, "document"),
            f"{amount(catalog.chunks, 'chunk')} ({new:,} new)",
            *(kind, f"{catalog.size / 2**20:,.1f} MB"),
        ]
        output = request.output
        places = f"results: {output}", f"next: untold search --index {shlex.quote(output)} --query TEXT"
        print_lines([", ".join(sizes), *map(redact, places)])


SEARCH_TABLES = ("hits", "failures", "usage")
SEARCH_COMMAND = "search"
# The maximum length of the text of a hit in the terminal
SHOWN_CHARACTERS = 160


@dataclass(frozen=True, kw_only=True)
class SearchRequest(RunRequest, SearchOptions):
    """The request of `untold search`: one `query`, or the queries of `input` with an `output`."""


def search(request: SearchRequest, display: Display) -> Outcome:
    """Search an index. Raise errors of one line that a user can fix.

    One query returns its hits. A file of queries becomes the tables `hits` and `failures` and a manifest. Each distinct
    text has one request. Hits are sorted by similarity, descending, then by chunk_id in code point order.
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
            # The completion of one query is only kept with the setting `completion_store`
            request = replace(request, output=stack.enter_context(tempfile.TemporaryDirectory(prefix="untold-search-")))
        output = stack.enter_context(request.open_output(SEARCH_TABLES, request.index))
        endpoint = stack.enter_context(open_endpoint(request, display))
        start = stack.enter_context(open_start(request, output, display, index=request.index))
        searching = _Searching(start, request, catalog, start.runner(stages, endpoint))
        return _search_one(searching) if request.query is not None else _search_file(searching)


@dataclass(frozen=True)
class _Searching:
    """The common data of the steps of a search."""

    start: Start
    request: SearchRequest
    catalog: Catalog
    runner: StageRunner

    def hits(self, queries: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the columns of the table `hits` for queries (query_id, query), and the queries without a vector."""
        request = self.request
        task = SearchTask(
            request.index,
            self.catalog.version,
            retrievers_of(request.retriever),
            request.top,
            request.settings.index.nprobe,
            request.exact,
        )
        distinct = distinct_queries(queries, "query")
        found, lost = search_index(self.start.workspace, self.runner.ask, task, distinct)
        keyed = queries.withColumn("key", query_key("query"))
        hits = keyed.join(found.withColumnRenamed("query", "key"), on="key", how="inner").select(*HITS.names)
        return hits, keyed.join(lost.withColumnRenamed("query", "key"), on="key", how="inner")


def _search_one(run: _Searching) -> Outcome:
    """Return the hits of one query."""
    spark, request = run.start.spark, run.request
    # If the launcher of Spark chooses the master, it is only known here
    _check_local(spark.conf.get("spark.master"))
    hits, lost = run.hits(spark.createDataFrame([("1", request.query)], "query_id string, query string"))
    if told := run.runner.ending.explain(request.command):
        code = run.runner.ending.exit_code({}, request.settings.fail_on_error)
        return Outcome(exit_code=code, message=told)
    for row in lost.limit(1).collect():
        raise SearchError(f"the query got no vector ({row['error_type']})")
    return Outcome(exit_code=0, rows=[row.asDict() for row in hits.orderBy("rank").collect()])


def _check_local(master: str | None) -> None:
    """Raise SearchError if tasks run on other machines, which cannot read the files of one query on this machine."""
    if master is not None and not master.startswith("local"):
        raise SearchError(f"--query needs a local Spark, and spark.master is {master}. Use --queries and --output")


def _search_file(run: _Searching) -> Outcome:
    """Write the hits of a file of queries as a table. A complete output is not changed."""
    start, request, steps = run.start, run.request, run.start.workspace
    # The queries are part of the identity of the output, so they are read before the claim
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
    failures = failure_rows(None, STAGE, lost, "query_id").unionByName(invalid_rows(invalid))
    return _finish_search(run, hits, steps.keep(failures, "failures"))


def _identity(run: _Searching, content: str) -> Mapping[str, Any]:
    """Return the identity of a table of hits: the queries, the content of the index, and the settings of the search."""
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
    """Write the tables and end the run."""
    start, before = run.start, run.start.output.manifest["counts"]
    rows = Counted({"hits": F.count(F.lit(1))})
    start.output.write("hits", hits, order=("query_id", "rank"), schema=HITS, counted=rows)
    counts: dict[str, Any] = start.write_failures(failures)
    lost = counts["failures"]
    statuses = {"ok": before["queries"] - lost, "failed": before["invalid"] + lost}
    return start.end([run.runner], {**counts, "hits": rows["hits"], "statuses": statuses})


def show_hits(outcome: Outcome, request: SearchRequest, *, as_json: bool) -> None:
    """Print the hits of one query, or the place of the table of hits. A query that was not searched prints nothing."""
    if request.query is None:
        if outcome.unchanged:
            print("Nothing to do. The results are unchanged")
        counts = outcome.manifest["counts"]
        found = f"{amount(counts['hits'], 'hit')} of {amount(counts['queries'], 'query', 'queries')}"
        print_lines([redact(f"{found}: {place_of_table(request.output, outcome.manifest, 'hits')}")])
    elif outcome.message is not None:
        # The caller prints the message. A line about no hits would be wrong
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
