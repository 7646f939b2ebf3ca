"""The subcommands of indexes: their arguments, and how these become what a job is asked to do."""

from __future__ import annotations

import click

from untold.jobs.cli.arguments import (
    READ_OPTIONS,
    Command,
    Option,
    Options,
    flag,
    read_options,
    settings_options,
    settings_without_endpoint,
    tell_outcome,
)
from untold.jobs.cli.values import count, one_of

RETRIEVERS = ("dense", "bm25", "hybrid")


def _index(options: Options) -> int:
    """A corpus to an index, made or grown."""
    from untold.jobs.run.output import absolute

    settings = settings_without_endpoint(options)
    from untold.jobs.inputs.checking import check_input
    from untold.jobs.inputs.texts import DOCUMENT, DOCUMENT_NEEDS

    read = read_options(options, tuple(DOCUMENT))
    check_input(options.input, read, DOCUMENT_NEEDS, names=DOCUMENT)
    from untold.jobs.index import IndexRequest, index, show_index
    from untold.jobs.run.progress import Display

    output = absolute(options.output)
    request = IndexRequest(
        input=options.input,
        output=output,
        settings=settings,
        limit=options.limit,
        read=read,
        overwrite=options.overwrite,
        retry_failed=options.retry_failed,
        wait=not options.no_wait,
        command=options.command_line,
    )
    with Display() as display:
        outcome = index(request, display)
    tell_outcome(lambda: show_index(outcome, output), outcome.message)
    return outcome.exit_code


def _search(options: Options) -> int:
    """One query to hits on standard output, or a file of them to a table."""
    if (options.query is None) == (options.queries is None):
        raise click.UsageError("give --query TEXT, or --queries FILE with --output DIR")
    if (options.queries is None) != (options.output is None):
        raise click.UsageError("--queries and --output go together")
    if options.query is not None and not options.query.strip():
        raise click.UsageError("argument --query: the text is empty")
    from untold.jobs.run.output import absolute

    settings = settings_without_endpoint(options)
    from untold.jobs.inputs.checking import check_input
    from untold.jobs.inputs.texts import QUERY, QUERY_NEEDS

    read = read_options(options, tuple(QUERY))
    if options.queries is not None:
        check_input(options.queries, read, QUERY_NEEDS, names=QUERY)
    from untold.jobs.run.progress import Display
    from untold.jobs.search import SearchRequest, search, show_hits

    request = SearchRequest(
        index=absolute(options.index),
        settings=settings,
        query=options.query,
        queries=options.queries,
        read=read,
        output=None if options.output is None else absolute(options.output),
        top=options.top,
        retriever=options.retriever,
        exact=options.exact,
        overwrite=options.overwrite,
        retry_failed=options.retry_failed,
        wait=not options.no_wait,
        command=options.command_line,
    )
    with Display() as display:
        outcome = search(request, display)
    tell_outcome(lambda: show_hits(outcome, request, as_json=options.json), outcome.message)
    return outcome.exit_code


COMMANDS: dict[str, click.Command] = {
    "index": Command(
        "make a corpus searchable, or grow what was made of it",
        _index,
        [
            Option("--input", "PATH", "documents: document_id (or id), text (or contents); title, url", required=True),
            Option("--output", "DIR", "where the index goes", required=True),
            *READ_OPTIONS,
            *settings_options(),
            Option("--limit", "N", "only the first N documents by document_id", read=count),
            flag("--overwrite", "make the index anew, or another in its place"),
            flag("--retry-failed", "retry permanently failed requests"),
            flag("--no-wait", "refuse instead of waiting for another run"),
        ],
    ),
    "search": Command(
        "find the chunks of an index that are nearest to a query",
        _search,
        [
            Option("--index", "DIR", "an index", required=True),
            Option("--query", "TEXT", "what to look for"),
            Option("--queries", "FILE", "many queries: query, query_id; with --output"),
            *READ_OPTIONS,
            Option("--output", "DIR", "where the table of hits goes"),
            Option("--top", "N", "hits of a query (10)", read=count, default=10),
            Option(
                "--retriever",
                "HOW",
                "dense, by vectors (the default); bm25, by words; hybrid, both fused",
                read=one_of(RETRIEVERS),
                default="dense",
            ),
            flag("--exact", "compare every vector, whatever their number"),
            *settings_options(),
            flag("--json", "print JSON"),
            flag("--overwrite", "replace the hits of another search in --output"),
            flag("--retry-failed", "retry permanently failed requests"),
            flag("--no-wait", "refuse instead of waiting for another run"),
        ],
    ),
}
