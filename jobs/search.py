"""Queries to ranked chunks of an index: `untold search` (methods, section 10)."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.runner import StageRunner
from untold.jobs.asking.store import is_transient
from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions
from untold.jobs.inputs.samples import fingerprint
from untold.jobs.inputs.texts import read_queries
from untold.jobs.retrieval.catalogs import cache_of, check_model, open_catalog
from untold.jobs.retrieval.searching import Searcher, SearchError, distinct_queries
from untold.jobs.retrieval.sources import query_key
from untold.jobs.retrieval.vector_engines import VectorEngines, bind_vectors, open_vector_engines
from untold.jobs.retrieval.vectors import STAGE
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import Output, shown, store_of
from untold.jobs.run.progress import Display
from untold.jobs.run.terminal import amount, print_lines
from untold.jobs.run.workspace import Counted, Workspace
from untold.jobs.settings.model import Settings
from untold.jobs.tables import FAILURES, HITS, ORDER, USAGE
from untold.udfs.llm.keys import Stage
from untold.udfs.redaction import redact
from untold.udfs.retrieval.catalog import Catalog
from untold.udfs.retrieval.dense import Probing
from untold.udfs.stages.arrow import UNASKED

TABLES = ("hits", "failures", "usage")
COMMAND = "search"
# Of a hit's text, in the terminal
SHOWN_CHARACTERS = 160


@dataclass(frozen=True)
class SearchRequest:
    """What `untold search` was asked to do: one `query`, or `queries` of a file into an `output`."""

    index: str
    settings: Settings
    query: str | None = None
    queries: str | None = None
    read: ReadOptions = AS_THEY_ARE
    output: str | None = None
    top: int = 10
    retriever: str = "dense"
    exact: bool = False
    overwrite: bool = False
    retry_failed: bool = False
    wait: bool = True
    command: str = ""


@dataclass(frozen=True)
class SearchOutcome:
    """How a search ended: exit code, the hits of a single query, and what was counted of many."""

    exit_code: int
    hits: Sequence[Mapping[str, Any]] = ()
    counts: Mapping[str, Any] = field(default_factory=dict)
    message: str | None = None
    unchanged: bool = False


def search(request: SearchRequest, display: Display) -> SearchOutcome:
    """Searches an index. Raises errors with one clear line for what a user can mend.

    One query gives its hits; a file of them the table `hits`, beside `failures` and a manifest. Each distinct text is
    asked once. Order of hits: similarity descending, then chunk_id ascending by code points.
    """
    catalog = open_catalog(request.index)
    stages = {}
    if request.retriever != "bm25":
        stages[STAGE] = bind_vectors(request.settings)
        check_model(request.index, catalog, stages[STAGE].digest)
    if request.output is None:
        return _search_one(request, catalog, stages, display)
    return _search_file(request, catalog, stages, display)


def _search_one(
    request: SearchRequest, catalog: Catalog, stages: Mapping[str, Stage], display: Display
) -> SearchOutcome:
    """The hits of one query; unless the setting `store` says where, nothing of it is kept."""
    settings = request.settings
    _check_local(settings.spark.master)
    if stages and settings.embeddings.base_url is not None and settings.llm.answering == "spool":
        raise SearchError("--query needs llm.answering=here; with a spool use --queries and --output")
    with (
        tempfile.TemporaryDirectory(prefix="untold-search-") as folder,
        open_vector_engines(
            settings,
            stages,
            display,
            uuid4().hex[:12],
            wait=request.wait,
            retry_failed=request.retry_failed,
            small=True,
        ) as asking,
    ):
        # Where the settings leave the master to the launcher it is known only now
        _check_local(asking.engines.spark.sparkContext.master)
        steps = Workspace(asking.engines.spark, folder)
        runner = asking.runner(steps, store_of(settings, folder))
        queries = asking.engines.spark.createDataFrame([("1", request.query)], "query_id string, query string")
        hits, lost = _hits(request, catalog, steps, runner, queries)
        if told := runner.ending.explain(request.command):
            return SearchOutcome(runner.ending.exit_code({}, request.settings.fail_on_error), message=told)
        for row in lost.limit(1).collect():
            raise SearchError(f"the query got no vector ({row['error_type']})")
        return SearchOutcome(0, [row.asDict() for row in hits.orderBy("rank").collect()])


def _check_local(master: str | None) -> None:
    """Raises SearchError where tasks run on other machines: they cannot read the steps of one query, kept on this."""
    if master is not None and not master.startswith("local"):
        raise SearchError(
            f"--query needs a Spark of this machine; spark.master is {master}; use --queries and --output"
        )


def _search_file(
    request: SearchRequest, catalog: Catalog, stages: Mapping[str, Stage], display: Display
) -> SearchOutcome:
    """The hits of a file of queries as a table."""
    settings, output_path, retry = request.settings, str(request.output), request.retry_failed
    store = store_of(settings, output_path)
    with (
        Output(output_path, TABLES, request.overwrite, inputs=[request.queries, request.index], store=store) as output,
        open_vector_engines(settings, stages, display, output.run, wait=request.wait, retry_failed=retry) as asking,
    ):
        return _write_hits(request, catalog, output, asking)


def _write_hits(request: SearchRequest, catalog: Catalog, output: Output, asking: VectorEngines) -> SearchOutcome:
    """One start: reads, claims, searches, writes. An output with nothing left to ask is not touched."""
    spark = asking.engines.spark
    # In the output, which executors can read; before it is claimed, as it is the queries that say whose it is
    steps = output.workspace(spark)
    found = read_queries(steps, str(request.queries), request.read)
    queries = found.rows.select("query_id", "query")
    content = fingerprint(queries)
    output.claim(_identity(request, catalog, asking.stages, content))
    if output.earlier and output.is_complete(retry_failed=request.retry_failed):
        counts = output.earlier["counts"]
        code = Ending().exit_code(counts["statuses"], request.settings.fail_on_error)
        return SearchOutcome(code, counts=counts, unchanged=True)
    counts = {"queries": found.row_count, "invalid": found.invalid_count, "duplicates": found.duplicates}
    given = {"path": request.queries, "fingerprint": content, "index": request.index}
    fields: dict[str, Any] = {"metrics": [COMMAND], "input": given, "counts": counts}
    output.begin(shown(request.settings), **fields)
    for line in (*found.notes, *found.first_invalid):
        asking.engines.display.note(line)
    asked, invalid = steps.keep(queries, "asked"), steps.keep(found.invalid, "invalid")
    runner = asking.runner(steps, store_of(request.settings, output.place), output.spooled_runs)
    hits, lost = _hits(request, catalog, steps, runner, asked)
    asking.engines.process.leave()
    return _finish(request, output, runner, hits, steps.keep(_failures(lost, invalid), "failures"))


def _identity(request: SearchRequest, catalog: Catalog, stages: Mapping[str, Stage], content: str) -> Mapping[str, Any]:
    """What a table of hits is of: queries, what the index holds, and how it is searched."""
    way = {"top": request.top, "retriever": request.retriever, "exact": request.exact}
    results = {COMMAND: {**way, "nprobe": request.settings.index.nprobe, "index": catalog.digest}}
    digests = {name: stage.digest for name, stage in stages.items()}
    return {"dataset": COMMAND, "input": content, "metrics": [COMMAND], "results": results, "stages": digests}


def _finish(
    request: SearchRequest, output: Output, runner: StageRunner, hits: DataFrame, failures: DataFrame
) -> SearchOutcome:
    """Writes the tables, then the manifest as it ended."""
    asked = F.col("stage") != "input"
    counted = Counted(
        {
            "failed": F.count(F.lit(1)),
            "failures": F.count_if(asked),
            "passing_failures": F.count_if(asked & is_transient()),
        }
    )
    rows = Counted({"hits": F.count(F.lit(1))})
    output.write("hits", hits, order=("query_id", "rank"), schema=HITS, counted=rows)
    output.write("failures", failures, order=ORDER["failures"], schema=FAILURES, few=True, counted=counted)
    output.write_rows("usage", runner.usage, USAGE)
    before = output.manifest["counts"]
    failed = counted["failed"]
    statuses = {"ok": before["queries"] + before["invalid"] - failed, "failed": failed}
    counts = {**before, "hits": rows["hits"], "statuses": statuses}
    counts |= {name: counted[name] for name in ("failures", "passing_failures")}
    code = runner.ending.exit_code(statuses, request.settings.fail_on_error)
    output.end(runner.ending, code=code, usage=runner.usage, counts=counts)
    return SearchOutcome(code, counts=counts, message=runner.ending.explain(request.command))


def _hits(
    request: SearchRequest, catalog: Catalog, steps: Workspace, runner: StageRunner, queries: DataFrame
) -> tuple[DataFrame, DataFrame]:
    """The columns of the table `hits` for queries (query_id, query), and the queries that have no vector."""
    searcher = Searcher(
        steps,
        request.index,
        catalog,
        runner.ask,
        cache_of(request.settings),
        request.top,
        request.retriever,
        Probing(request.settings.index.nprobe, request.exact),
    )
    found, lost = searcher.search(distinct_queries(queries, "query"))
    keyed = queries.withColumn("key", query_key("query"))
    hits = keyed.join(found.withColumnRenamed("query", "key"), on="key", how="inner").select(*HITS.names)
    return hits, keyed.join(lost.withColumnRenamed("query", "key"), on="key", how="inner")


def _failures(lost: DataFrame, invalid: DataFrame) -> DataFrame:
    """Rows of `failures`: queries without a vector, and rows that are no query."""
    null = F.lit(None).cast("string")
    own = {"sample_id": F.col("query_id"), "metric": null, "stage": F.lit(STAGE)}
    failed = lost.where(F.col("error_type") != UNASKED)
    without = failed.select(*[own.get(name, F.col(name)).alias(name) for name in FAILURES.names])
    known = {"sample_id": F.col("id"), "stage": F.lit("input"), "error_type": F.lit("invalid_input")}
    known["error"] = F.col("error")
    return without.unionByName(invalid.select(*[known.get(name, null).alias(name) for name in FAILURES.names]))


def show_hits(outcome: SearchOutcome, request: SearchRequest, *, as_json: bool) -> None:
    """Prints the hits of one query, or where those of many are; nothing of one that ended before it was searched."""
    if request.output is not None:
        if outcome.unchanged:
            print("Nothing to do; results unchanged")
        counts = outcome.counts
        found = f"{amount(counts['hits'], 'hit')} of {amount(counts['queries'], 'query', 'queries')}"
        print_lines([redact(f"{found}: {request.output}/hits")])
    elif outcome.message is not None:
        # The message is all that there is to say; no hits would read as if nothing had been found
        return
    elif as_json:
        print(json.dumps(list(outcome.hits), indent=2, ensure_ascii=False))
    else:
        for hit in outcome.hits:
            text = hit["text"] if len(hit["text"]) <= SHOWN_CHARACTERS else f"{hit['text'][:SHOWN_CHARACTERS]}..."
            print(f"{hit['rank']:>3}  {hit['similarity']:7.4f}  {hit['chunk_id']}\n     {text}")
        if not outcome.hits:
            print("no chunk of the index has a word of the query" if request.retriever == "bm25" else "no hits")
    sys.stdout.flush()
