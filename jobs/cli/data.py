"""The subcommands of files, indexes, spools and batches: their options and requests."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from functools import partial

import click
from click.shell_completion import get_completion_class

from untold.jobs.cli.arguments import (
    ASKING_FLAGS,
    COMPLETE,
    READ_OPTIONS,
    Argument,
    Command,
    Option,
    Options,
    flag,
    read_options,
    run_fields,
    run_job,
    settings_options,
    settings_without_endpoint,
    tell_outcome,
)
from untold.jobs.cli.values import count, known_formats, one_of


def _inspect(options: Options) -> int:
    """What files are taken for; 1 where nothing of what was read can be used."""
    from untold.jobs.inputs.checking import adapter_of, known_columns
    from untold.jobs.inspect import inspect, inspection_lines
    from untold.jobs.run.terminal import page_of, print_lines

    read = read_options(options, known_columns(adapter_of(options.format)))
    found = inspect(options.file, options.format, read)
    if options.json:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        print_lines(inspection_lines(found, page_of(sys.stdout)))
    return 0 if found.usable else 1


def _export(options: Options) -> int:
    """A run's scores for another tool, in a file or on standard output."""
    from untold.jobs.export import MLFLOW, TEXTS, WRITERS, export, log_to_mlflow, note_of, write_csv
    from untold.jobs.run_tables import open_run

    if (options.to is None) == (options.trec is None):
        raise click.UsageError("give one of --to FORM and --trec FILE")
    if options.trec is not None:
        options = Options(**{**vars(options), "to": "trec", "output": options.trec})
    if options.to == MLFLOW:
        if options.output is not None:
            raise click.UsageError("--to mlflow takes no --output: MLFLOW_TRACKING_URI says where it is logged")
        experiment, logged = log_to_mlflow(open_run(options.run))
        print(f"logged to MLflow as run {logged} of experiment {experiment}")
        return 0
    if options.output is None and options.to not in TEXTS:
        raise click.UsageError(f"--to {options.to} needs --output FILE")
    found = open_run(options.run)
    if options.output is not None:
        print("\n".join(f"written to {path}" for path in export(found, options.to, options.output)))
    elif options.to == "csv":
        # What reads a pipe is no Excel, and takes a mark for a part of the first name
        write_csv(found, sys.stdout.buffer, mark=False)
    else:
        WRITERS[options.to](found, sys.stdout.buffer)
    if note := note_of(found, options.to):
        print(f"untold: {note}", file=sys.stderr)
    return 0


def _completion(options: Options) -> int:
    """The script by which a shell completes commands, options, metrics, stages and settings."""
    kind = get_completion_class(options.shell)
    root = click.get_current_context().find_root().command
    if kind is not None:
        print(kind(root, {}, "untold", COMPLETE).source())
    return 0


SHELLS = ("bash", "zsh", "fish")
EXPORTS = ("csv", "xlsx", "parquet", "jsonl", "mlflow", "trec", "ragchecker", "trec_rag_nuggets")
COMMANDS: dict[str, click.Command] = {
    "inspect": Command(
        "show what files are taken for: format, columns, first rows, what is wrong",
        _inspect,
        [
            Argument("file", "FILE", "samples: a file, a folder or a glob"),
            Option(
                "--format", "NAME", "a known data set; by default the one that the first row is of", names=known_formats
            ),
            *READ_OPTIONS,
            flag("--json", "print JSON"),
        ],
    ),
    "export": Command(
        "write a run's scores for other tools, one row a sample",
        _export,
        [
            Argument("run", "RUN", "the output of a run"),
            Option("--to", "FORM", ", ".join(EXPORTS), read=one_of(EXPORTS)),
            Option("--output", "FILE", "the file; forms of text go to standard output without one"),
            Option(
                "--trec", "FILE", "the same as --to trec --output FILE; a file a system where several answer one topic"
            ),
        ],
    ),
    "completion": Command(
        "print a script that completes commands in bash, zsh or fish",
        _completion,
        [Argument("shell", "SHELL", ", ".join(SHELLS), read=one_of(SHELLS))],
    ),
}


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
    from untold.jobs.index import SearchRequest, search, show_hits

    request = SearchRequest(
        **run_fields(options, settings, read),
        index=absolute(options.index),
        query=options.query,
        top=options.top,
        retriever=options.retriever,
        exact=options.exact,
    )
    return run_job(search, request, partial(show_hits, as_json=options.json))


INDEX_COMMANDS: dict[str, click.Command] = {
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


ACTS = ("list", "fetch", "cancel")


def _answer(options: Options) -> int:
    """The jobs of a spool to completions; starts Ray, and no Spark."""
    from untold.jobs.answer import AnswerRequest, answer, show_answered
    from untold.jobs.run.terminal import Display
    from untold.jobs.settings.loading import load_given

    given = load_given(options.config, options.overrides, os.environ)
    os.environ.update(given.storage.environment)
    request = AnswerRequest(
        spool=options.spool,
        given=given,
        ray_address=options.ray_address,
        retry_failed=options.retry_failed,
        wait=not options.no_wait,
        command=options.command_line,
    )
    with Display() as display:
        outcome = answer(request, display)
    tell_outcome(lambda: show_answered(outcome), outcome.message)
    return outcome.exit_code


def _batches(options: Options) -> int:
    """The batches of a store: listed, fetched or cancelled; starts no engine."""
    from untold.jobs.batches import batches, show_batches
    from untold.jobs.run.terminal import Display
    from untold.jobs.settings.loading import load_given

    act = options.act or ACTS[0]
    if options.id and act != "cancel":
        raise click.UsageError("--id goes with cancel")
    given = load_given(options.config, options.overrides, os.environ)
    os.environ.update(given.storage.environment)
    show_batches(batches(options.folder, act, Display().note, options.id, given.llm.api_key_env), act)
    return 0


SPOOL_COMMANDS: dict[str, click.Command] = {
    "answer": Command(
        "answer the requests that runs left in a spool",
        _answer,
        [
            Argument("spool", "SPOOL", "the folder that the run has printed"),
            Option("--ray-address", "A", "a Ray cluster; without it one starts on this machine"),
            Option("--config", "F", "a settings file (YAML) for keys, limits and budget; the jobs keep their own else"),
            Option("--set", "KEY=VALUE", "one setting; repeatable", to="overrides", multiple=True),
            flag("--retry-failed", "retry permanently failed requests"),
            flag("--no-wait", "refuse instead of waiting for another worker"),
        ],
    ),
    "batches": Command(
        "list the batches that runs left at endpoints, fetch their answers, or cancel them",
        _batches,
        [
            Argument("folder", "DIR", "the output of a run, or a store of completions"),
            Argument("act", "ACT", "list (the default), fetch or cancel", required=False, read=one_of(ACTS)),
            Option("--id", "ID", "one batch to cancel; repeatable; all by default", multiple=True),
            Option("--config", "F", "a settings file (YAML), for another key variable"),
            Option("--set", "KEY=VALUE", "one setting; repeatable", to="overrides", multiple=True),
        ],
    ),
}
