"""Queries to ranked chunks of an index: `untold search` (methods, section 10)."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.prompts import bind_stage
from untold.jobs.asking.results import invalid_rows
from untold.jobs.asking.runner import StageRunner
from untold.jobs.asking.start import Outcome, Start, open_endpoint, open_start
from untold.jobs.inputs.request import RunRequest
from untold.jobs.inputs.samples import fingerprint
from untold.jobs.inputs.texts import read_queries
from untold.jobs.results import place_of_table
from untold.jobs.retrieval.knowledge import Searcher, SearchError, distinct_queries
from untold.jobs.retrieval.sources import STAGE, cache_of, check_model, open_catalog, query_key
from untold.jobs.run.output import shown
from untold.jobs.run.progress import Display
from untold.jobs.run.terminal import amount, print_lines
from untold.jobs.run.workspace import Counted
from untold.jobs.tables import FAILURES, HITS
from untold.udfs.redaction import redact
from untold.udfs.retrieval.catalog import Catalog
from untold.udfs.retrieval.dense import Probing
from untold.udfs.stages.arrow import UNASKED

TABLES = ("hits", "failures", "usage")
COMMAND = "search"
# Of a hit's text, in the terminal
SHOWN_CHARACTERS = 160


@dataclass(frozen=True, kw_only=True)
class SearchRequest(RunRequest):
    """What `untold search` was asked to do: one `query`, or the queries of `input` into an `output`."""

    index: str
    query: str | None = None
    top: int = 10
    retriever: str = "dense"
    exact: bool = False


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
            if stages and request.settings.embeddings.base_url and request.settings.llm.answering == "spool":
                raise SearchError("--query needs llm.answering=process; with a spool use --queries and --output")
            # Unless the setting `store` says where, nothing of one query is kept
            request = replace(request, output=stack.enter_context(tempfile.TemporaryDirectory(prefix="untold-search-")))
        output = stack.enter_context(request.open_output(TABLES, request.index))
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
        raise SearchError(
            f"--query needs a Spark of this machine; spark.master is {master}; use --queries and --output"
        )


def _search_file(run: _Searching) -> Outcome:
    """The hits of a file of queries as a table. An output with nothing left to ask is not touched."""
    start, request, steps = run.start, run.request, run.start.workspace
    # Before the output is claimed, as it is the queries that say whose it is
    found = read_queries(steps, request.input, request.read)
    queries = found.rows.select("query_id", "query")
    content = fingerprint(queries)
    start.output.claim(_identity(run, content))
    if unchanged := start.unchanged():
        return unchanged
    counts = {"queries": found.row_count, "invalid": found.invalid_count, "duplicates": found.duplicates}
    given = request.shown_input(content, index=request.index)
    start.begin(shown(request.settings), metrics=[COMMAND], input=given, counts=counts)
    for line in (*found.notes, *found.first_invalid):
        start.display.note(line)
    asked, invalid = steps.keep(queries, "asked"), steps.keep(found.invalid, "invalid")
    hits, lost = run.hits(asked)
    start.engines.process.leave()
    return _finish(run, hits, steps.keep(_failures(lost, invalid), "failures"))


def _identity(run: _Searching, content: str) -> Mapping[str, Any]:
    """What a table of hits is of: queries, what the index holds, and how it is searched."""
    request = run.request
    way = {"top": request.top, "retriever": request.retriever, "exact": request.exact}
    results = {COMMAND: {**way, "nprobe": request.settings.index.nprobe, "index": run.catalog.digest}}
    digests = {name: stage.digest for name, stage in run.runner.stages.items()}
    return {"dataset": COMMAND, "input": content, "metrics": [COMMAND], "results": results, "stages": digests}


def _finish(run: _Searching, hits: DataFrame, failures: DataFrame) -> Outcome:
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
    return without.unionByName(invalid_rows(invalid.withColumnRenamed("id", "sample_id")))


def show_hits(outcome: Outcome, request: SearchRequest, *, as_json: bool) -> None:
    """Prints the hits of one query, or where those of many are; nothing of one that ended before it was searched."""
    if request.query is None:
        if outcome.unchanged:
            print("Nothing to do; results unchanged")
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
