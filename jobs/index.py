"""A corpus to an index: `untold index` (methods, section 10). Started again it grows the index, or goes on with it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from untold.jobs.asking.prompts import bind_stage
from untold.jobs.asking.results import invalid_rows
from untold.jobs.asking.runner import StageRunner
from untold.jobs.asking.start import Outcome, Start, open_endpoint, open_start
from untold.jobs.inputs.request import RunRequest
from untold.jobs.inputs.samples import fingerprint
from untold.jobs.inputs.texts import Texts, read_corpus
from untold.jobs.retrieval.making import CorpusError, Made, Maker
from untold.jobs.retrieval.sources import STAGE, cache_of, catalog_in
from untold.jobs.run.output import shown
from untold.jobs.run.progress import Display
from untold.jobs.run.session import spark_schema
from untold.jobs.run.terminal import amount, print_lines
from untold.jobs.tables import FAILURES
from untold.udfs.redaction import redact
from untold.udfs.retrieval.building import is_begun
from untold.udfs.retrieval.catalog import COARSE, DEAD, SHARDS, Catalog
from untold.udfs.retrieval.shards import is_whole, shard_folder
from untold.udfs.storage import Place

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
    corpus = read_corpus(steps, request.input, request.limit, request.read)
    _show_invalid(corpus, start.display)
    documents = steps.keep(corpus.rows, "documents")
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


def _is_whole_of(start: Start, corpus: Texts, before: Catalog, content: str) -> bool:
    """Whether the index is whole and of this very corpus."""
    earlier = start.output.earlier or {}
    same = earlier["input"]["fingerprint"] == content and earlier["counts"]["invalid"] == corpus.invalid_count
    outgrown = not before.making.lists and before.chunks > start.request.settings.index.exact_chunks
    return same and not outgrown and _is_whole(start.output.place, before)


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
        rows = amount(corpus.invalid_count, "row is not a document and is", "rows are not documents and are")
        display.note(f"{rows} in the table failures; the first:")
        for line in corpus.first_invalid:
            display.note(f"  {line}")


def _begin(start: Start, corpus: Texts, before: Catalog | None, content: str) -> None:
    """Writes the manifest as `running`, still with the index as it was: that is searched until there is another."""
    counts = {"documents": corpus.row_count, "invalid": corpus.invalid_count, "duplicates": corpus.duplicates}
    kept = {} if before is None else {COMMAND: before.plain()}
    given = start.request.shown_input(content)
    fields: dict[str, Any] = {"metrics": [COMMAND], "input": given, "counts": counts, **kept}
    start.begin(shown(start.request.settings), **fields)


def _finish(start: Start, corpus: Texts, made: Made, runner: StageRunner) -> Outcome:
    """Writes the tables, then the manifest with the index as it is now, and removes what it names no more."""
    invalid = invalid_rows(corpus.invalid.withColumnRenamed("id", "sample_id"))
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
        for entry in (Place(place) / folder).entries():
            if entry.name not in names:
                entry.place.remove()


def show_index(outcome: Outcome, request: RunRequest) -> None:
    """Prints what is in the index, and how to search it."""
    catalog, counts = catalog_in(outcome.manifest), outcome.manifest["counts"]
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
        output = request.output
        places = f"results: {output}", f"next: untold search --index {shlex.quote(output)} --query TEXT"
        print_lines([", ".join(sizes), *map(redact, places)])
