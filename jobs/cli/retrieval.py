"""The subcommands of indexes: their arguments, and how these become what a job is asked to do."""

from __future__ import annotations

from functools import partial

import click

from untold.jobs.cli.arguments import (
    ASKING_FLAGS,
    READ_OPTIONS,
    Command,
    Option,
    Options,
    flag,
    read_options,
    run_fields,
    run_job,
    settings_options,
    settings_without_endpoint,
)
from untold.jobs.cli.values import count, one_of

RETRIEVERS = ("dense", "bm25", "hybrid")


def _index(options: Options) -> int:
    """A corpus to an index, made or grown."""
    settings = settings_without_endpoint(options)
    from untold.jobs.inputs.checking import check_input
    from untold.jobs.inputs.texts import DOCUMENT, DOCUMENT_NEEDS

    read = read_options(options, tuple(DOCUMENT))
    check_input(options.input, read, DOCUMENT_NEEDS, names=DOCUMENT)
    from untold.jobs.index import index, show_index
    from untold.jobs.inputs.request import RunRequest

    return run_job(index, RunRequest(**run_fields(options, settings, read)), show_index)


def _search(options: Options) -> int:
    """One query to hits on standard output, or a file of them to a table."""
    if (options.query is None) == (options.input is None):
        raise click.UsageError("give --query TEXT, or --queries FILE with --output DIR")
    if (options.input is None) != (options.output is None):
        raise click.UsageError("--queries and --output go together")
    if options.query is not None and not options.query.strip():
        raise click.BadParameter("the text is empty", param_hint="'--query'")
    from untold.jobs.run.output import absolute

    settings = settings_without_endpoint(options)
    from untold.jobs.inputs.checking import check_input
    from untold.jobs.inputs.texts import QUERY, QUERY_NEEDS

    read = read_options(options, tuple(QUERY))
    if options.input is not None:
        check_input(options.input, read, QUERY_NEEDS, names=QUERY)
    from untold.jobs.search import SearchRequest, search, show_hits

    request = SearchRequest(
        **run_fields(options, settings, read),
        index=absolute(options.index),
        query=options.query,
        top=options.top,
        retriever=options.retriever,
        exact=options.exact,
    )
    return run_job(search, request, partial(show_hits, as_json=options.json))


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
            *ASKING_FLAGS,
        ],
    ),
    "search": Command(
        "find the chunks of an index that are nearest to a query",
        _search,
        [
            Option("--index", "DIR", "an index", required=True),
            Option("--query", "TEXT", "what to look for"),
            Option("--queries", "FILE", "many queries: query, query_id; with --output", to="input"),
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
            *ASKING_FLAGS,
        ],
    ),
}
