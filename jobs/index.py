"""A corpus to an index: `untold index` (methods, section 10). Started again it grows the index, or goes on with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.runner import StageRunner
from untold.jobs.asking.store import is_transient
from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions, count_bytes
from untold.jobs.inputs.samples import fingerprint
from untold.jobs.inputs.texts import Texts, read_corpus
from untold.jobs.retrieval.catalogs import cache_of, catalog_in
from untold.jobs.retrieval.making import CorpusError, Made, Maker
from untold.jobs.retrieval.vector_engines import VectorEngines, bind_vectors, open_vector_engines
from untold.jobs.retrieval.vectors import STAGE
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import Output, shown, store_of
from untold.jobs.run.progress import Display
from untold.jobs.run.session import SMALL_BYTES, spark_schema
from untold.jobs.run.terminal import amount, print_lines
from untold.jobs.run.workspace import Counted
from untold.jobs.settings.model import Settings
from untold.jobs.tables import FAILURES, ORDER, USAGE
from untold.udfs.redaction import redact
from untold.udfs.retrieval.building import is_begun
from untold.udfs.retrieval.catalog import COARSE, DEAD, SHARDS, Catalog
from untold.udfs.retrieval.shard_files import shard_folder
from untold.udfs.retrieval.shards import is_whole
from untold.udfs.storage import Place

TABLES = ("failures", "usage")
COMMAND = "index"
# What of `index.*` an index is made by; the rest says how it is spread and searched
MADE_BY = {"chunk_words", "chunk_overlap", "codec"}


@dataclass(frozen=True)
class IndexRequest:
    """What `untold index` was asked to do. `command` is how to start it again."""

    input: str
    output: str
    settings: Settings
    limit: int | None = None
    read: ReadOptions = AS_THEY_ARE
    overwrite: bool = False
    retry_failed: bool = False
    wait: bool = True
    command: str = ""


@dataclass(frozen=True)
class IndexOutcome:
    """How a build ended: exit code, the index, what was counted, and the line that says why it ended early."""

    exit_code: int
    catalog: Catalog | None
    counts: Mapping[str, Any]
    message: str | None = None
    unchanged: bool = False


def index(request: IndexRequest, display: Display) -> IndexOutcome:
    """Makes or grows the index in the output. Raises errors with one clear line for what a user can mend.

    An index belongs to the embedding model and to how texts are cut, not to a corpus: what the corpus has anew is added
    in new shards, what it has no more is passed over. Killed at any moment, it is searched as it was before, and goes
    on when it is started again.
    """
    settings = request.settings
    stage = bind_vectors(settings)
    store = store_of(settings, request.output)
    small = count_bytes(request.input, store) < SMALL_BYTES
    with (
        Output(request.output, TABLES, request.overwrite, inputs=[request.input], store=store) as output,
        open_vector_engines(
            settings,
            {STAGE: stage},
            display,
            output.run,
            wait=request.wait,
            retry_failed=request.retry_failed,
            small=small,
        ) as asking,
    ):
        return _index(request, output, asking)


def _index(request: IndexRequest, output: Output, asking: VectorEngines) -> IndexOutcome:
    """One start: claims, reads, makes what is missing, and names it in the manifest."""
    settings, digest = request.settings, asking.stages[STAGE].digest
    results = {"index": settings.index.model_dump(include=MADE_BY)}
    output.claim({"dataset": COMMAND, "metrics": [COMMAND], "results": results, "stages": {STAGE: digest}})
    before = catalog_in(output.earlier)
    steps = output.workspace(asking.engines.spark)
    corpus = read_corpus(steps, request.input, request.limit, request.read)
    _show_invalid(corpus, asking.engines.display)
    documents = steps.keep(corpus.rows, "documents")
    content = fingerprint(documents.select("document_id", "content"))
    if before is not None and _is_unchanged(request, output, corpus, before, content):
        counts = (output.earlier or {})["counts"]
        code = Ending().exit_code(counts["statuses"], settings.fail_on_error)
        return IndexOutcome(code, before, counts, unchanged=True)
    _begin(request, output, corpus, before, content)
    runner = asking.runner(steps, store_of(settings, request.output), output.spooled_runs)
    maker = Maker(steps, output.place, settings.index, digest, runner.ask, cache_of(settings))
    made = _make(maker, documents, corpus, before)
    asking.engines.process.leave()
    for line in made.damaged:
        asking.engines.display.note(line)
    return _finish(request, output, corpus, made, runner)


def _is_unchanged(request: IndexRequest, output: Output, corpus: Texts, before: Catalog, content: str) -> bool:
    """Whether the index is whole and of this very corpus, with nothing left to ask, so that a start changes nothing."""
    earlier = output.earlier or {}
    if not output.is_complete(retry_failed=request.retry_failed):
        return False
    same = earlier["input"]["fingerprint"] == content and earlier["counts"]["invalid"] == corpus.invalid_count
    outgrown = not before.making.lists and before.chunks > request.settings.index.exact_chunks
    return same and not outgrown and _is_whole(output.place, before)


def _is_whole(place: str, catalog: Catalog) -> bool:
    """Whether what every shard begins as, the shards and their tombstones are there."""
    dead = [Place(place) / DEAD / shard.tombstones for shard in catalog.shards if shard.tombstones]
    files = [Place(place) / COARSE, *dead]
    if not is_begun(place, catalog.making) or not all(file.entry().kind == "file" for file in files):
        return False
    return all(is_whole(shard_folder(place, shard.name)) for shard in catalog.shards)


def _make(maker: Maker, documents: DataFrame, corpus: Texts, before: Catalog | None) -> Made:
    """The index. Where no document has a word, rows that are none still go into the table failures."""
    try:
        return maker.make(documents, corpus.row_count, before)
    except CorpusError as error:
        if not corpus.invalid_count:
            raise
        empty = documents.sparkSession.createDataFrame([], spark_schema(FAILURES))
        return Made(None, empty, 0, nothing=str(error))


def _show_invalid(corpus: Texts, display: Display) -> None:
    """Says how many rows are no document, and why the first of them."""
    for line in corpus.notes:
        display.note(line)
    if corpus.invalid_count:
        rows = amount(corpus.invalid_count, "row is no document and is", "rows are no documents and are")
        display.note(f"{rows} in the table failures; the first:")
        for line in corpus.first_invalid:
            display.note(f"  {line}")


def _begin(request: IndexRequest, output: Output, corpus: Texts, before: Catalog | None, content: str) -> None:
    """Writes the manifest as `running`, still with the index as it was: that is searched until there is another."""
    counts = {"documents": corpus.row_count, "invalid": corpus.invalid_count, "duplicates": corpus.duplicates}
    given = {"path": request.input, "limit": request.limit, "fingerprint": content}
    kept = {} if before is None else {COMMAND: before.plain()}
    fields: dict[str, Any] = {"metrics": [COMMAND], "input": given, "counts": counts, **kept}
    output.begin(shown(request.settings), **fields)


def _finish(request: IndexRequest, output: Output, corpus: Texts, made: Made, runner: StageRunner) -> IndexOutcome:
    """Writes the tables, then the manifest with the index as it is now, and removes what it names no more."""
    asked = F.col("stage") != "input"
    counted = Counted({"failures": F.count_if(asked), "passing_failures": F.count_if(asked & is_transient())})
    failures = made.failures.unionByName(failures_of(corpus.invalid))
    output.write("failures", failures, order=ORDER["failures"], schema=FAILURES, few=True, counted=counted)
    output.write_rows("usage", runner.usage, USAGE)
    statuses = {"ok": corpus.row_count - made.failed, "failed": made.failed + corpus.invalid_count}
    counts = {**output.manifest["counts"], "statuses": statuses, "new_chunks": made.new, "shards_built": made.built}
    counts |= {name: counted[name] for name in ("failures", "passing_failures")}
    code = runner.ending.exit_code(statuses, request.settings.fail_on_error)
    catalog = made.catalog
    fields: dict[str, Any] = {"counts": counts} | ({} if catalog is None else {COMMAND: catalog.plain()})
    output.end(runner.ending, code=code, usage=runner.usage, **fields)
    if catalog is not None:
        remove_unnamed(output.place, catalog)
    return IndexOutcome(code, catalog, counts, runner.ending.explain(request.command) or made.nothing)


def failures_of(invalid: DataFrame) -> DataFrame:
    """Rows of `failures` for rows of the input that are of no use (id, error)."""
    null = F.lit(None).cast("string")
    own = {"sample_id": F.col("id"), "stage": F.lit("input"), "error_type": F.lit("invalid_input")}
    own["error"] = F.col("error")
    return invalid.select(*[own.get(name, null).alias(name) for name in FAILURES.names])


def remove_unnamed(place: str, catalog: Catalog) -> None:
    """Removes shards and tombstones that the index names no more, and what is left of killed writes.

    After the manifest that names others: a search that began before may have to be started again, none finds half.
    """
    named: dict[str, set[str | None]] = {
        SHARDS: {shard.name for shard in catalog.shards},
        DEAD: {shard.tombstones for shard in catalog.shards},
    }
    for folder, names in named.items():
        for entry in (Place(place) / folder).entries():
            if entry.name not in names:
                entry.place.remove()


def show_index(outcome: IndexOutcome, output: str) -> None:
    """Prints what is in the index, and how to search it."""
    catalog, counts = outcome.catalog, outcome.counts
    if outcome.unchanged:
        print("Nothing to do; results unchanged")
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
        places = f"results: {output}", f"next: untold search --index {shlex.quote(output)} --query TEXT"
        print_lines([", ".join(sizes), *map(redact, places)])
