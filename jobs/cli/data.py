"""Define the subcommands for files, nightly outputs, stores, indexes, spools and batches."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import click
from click.shell_completion import get_completion_class

from untold.jobs.cli import arguments
from untold.jobs.cli.arguments import JSON, Argument, Command, Option, Options, flag, options_of, settings_options
from untold.jobs.cli.values import OneOf, day, known_formats, width
from untold.jobs.inputs.options import AnswerOptions, NightlyOptions, PruneRequest, RunOptions, SearchOptions
from untold.udfs.errors import ENGINE

SHELLS = ("bash", "zsh", "fish")
TRACKED = ("langfuse", "phoenix", "mlflow-traces", "otlp", "wandb")
EXPORTS = ("csv", "xlsx", "parquet", "jsonl", "mlflow", "trec", "ragchecker", "trec_rag_nuggets", *TRACKED)
ACTS = ("list", "fetch", "cancel")


def _inspect(options: Options) -> int:
    """Print the detected format of files. Return 1 if no row can be used."""
    from untold.jobs.inputs.checking import adapter_of, known_columns
    from untold.jobs.inspect import JUDGE_METRIC, LANGUAGE_MODEL_METRIC, inspect, inspection_lines

    read = arguments.read_options(options, known_columns(adapter_of(options.format)))
    known = arguments.load_or_none(Options(config=None, overrides=(), endpoint=None, profile=None))
    metric = JUDGE_METRIC if known is None or known.embedded else LANGUAGE_MODEL_METRIC
    found = inspect(options.file, options.format, read, metric=metric)
    arguments.print_result(options, asdict(found), lambda page: inspection_lines(found, page))
    return 0 if found.usable else 1


def _export(options: Options) -> int:
    """Write the scores of a run for another tool, to a file or to standard output, or send them to the tool."""
    from untold.jobs.export import (
        CALLS_PER_SECOND,
        MLFLOW,
        TEXTS,
        WRITERS,
        export,
        log_to_mlflow,
        note_of,
        send,
        write_csv,
    )
    from untold.jobs.run_tables import open_run

    if (options.to is None) == (options.trec is None):
        raise click.UsageError("give one of --to FORM and --trec FILE")
    if options.trec is not None:
        options = Options(**{**vars(options), "to": "trec", "output": options.trec})
    if options.to == MLFLOW:
        if options.output is not None:
            raise click.UsageError("--to mlflow accepts no --output: set MLFLOW_TRACKING_URI")
        experiment, logged = log_to_mlflow(open_run(options.run))
        print(f"logged to MLflow as run {logged} of experiment {experiment}")
        return 0
    if options.send:
        if options.to not in TRACKED or options.output is not None:
            raise click.UsageError(f"--send needs --to with one of {', '.join(TRACKED)}, and accepts no --output")
        print(send(open_run(options.run), options.to, options.url, options.rate or CALLS_PER_SECOND))
        return 0
    if options.url is not None or options.rate is not None:
        raise click.UsageError("--url and --rate need --send")
    if options.output is None and options.to not in TEXTS:
        raise click.UsageError(f"--to {options.to} needs --output FILE")
    found = open_run(options.run)
    if options.output is not None:
        print("\n".join(f"written to {path}" for path in export(found, options.to, options.output)))
    elif options.to == "csv":
        # Only Excel needs a byte-order mark
        write_csv(found, sys.stdout.buffer, mark=False)
    else:
        WRITERS[options.to](found, sys.stdout.buffer)
    if note := note_of(found, options.to):
        print(f"untold: {note}", file=sys.stderr)
    return 0


def _completion(options: Options) -> int:
    """Print the script with which a shell completes commands, options and values."""
    kind = get_completion_class(options.shell)
    root = click.get_current_context().find_root().command
    if kind is not None:
        print(kind(root, {}, "untold", arguments.COMPLETE).source())
    return 0


def _index(options: Options) -> int:
    """Create or extend an index of a corpus."""
    settings = arguments.settings_without_endpoint(options)
    from untold.jobs.inputs.checking import check_input
    from untold.jobs.inputs.reading import DOCUMENT, DOCUMENT_NEEDS

    read = arguments.read_options(options, tuple(DOCUMENT))
    check_input(options.input, read, DOCUMENT_NEEDS, names=DOCUMENT)
    from untold.jobs.index import index, show_index
    from untold.jobs.inference.stage.start import RunRequest

    return arguments.run_job(
        index, RunRequest(**arguments.run_fields(options, settings, read)), arguments.show_with(options, show_index)
    )


def _search(options: Options) -> int:
    """Search an index: print the hits of one query, or write a table for a file of queries."""
    if (options.query is None) == (options.input is None):
        raise click.UsageError("give --query TEXT, or --queries FILE with --output DIR")
    if (options.input is None) != (options.output is None):
        raise click.UsageError("--queries and --output go together")
    if options.query is not None and not options.query.strip():
        raise click.BadParameter("the text is empty", param_hint="'--query'")
    settings = arguments.settings_without_endpoint(options)
    from untold.jobs.inputs.checking import check_input
    from untold.jobs.inputs.reading import QUERY, QUERY_NEEDS

    read = arguments.read_options(options, tuple(QUERY))
    if options.input is not None:
        check_input(options.input, read, QUERY_NEEDS, names=QUERY)
    from untold.jobs.index import SearchRequest, search, show_hits

    run = arguments.run_fields(options, settings, read)
    request = SearchRequest(**run, **arguments.values_of(SearchOptions, options))
    show = partial(show_hits, as_json=options.json)
    return arguments.run_job(search, request, show if options.query else arguments.show_with(options, show))


def _answer(options: Options) -> int:
    """Send the requests of a spool. Starts Ray, but not Spark."""
    from untold.jobs.answer import AnswerRequest, answer, answer_lines

    given, command = arguments.load_given(options), options.command_line
    request = AnswerRequest(**arguments.values_of(AnswerOptions, options), given=given, command=command)

    def show(outcome: Any, _: object) -> None:
        arguments.print_result(options, asdict(outcome), lambda page: answer_lines(outcome, page))

    return arguments.run_job(answer, request, show)


def _batches(options: Options) -> int:
    """List, fetch or cancel the batches of a store. No engine starts."""
    from untold.jobs.batches import batch_lines, batches

    act = options.act or ACTS[0]
    if options.id and act != "cancel":
        raise click.UsageError("--id requires the action cancel")
    given = arguments.load_given(options)
    found = batches(options.folder, act, arguments.display().note, options.id, given.llm.api_key_env)
    arguments.print_result(options, [asdict(one) for one in found], lambda page: batch_lines(found, act, page))
    return 0


def _nightly(options: Options) -> int:
    """Score the samples of each date into a separate output, with one store."""
    least, dates = arguments.bars_of(options), _dates(options)
    from untold.jobs.lakehouse.inputs import values_since
    from untold.jobs.nightly import NightlyRequest, nightly, show_json, show_nights
    from untold.jobs.summary.nights import DATE

    for name in ("input", "output"):
        if DATE not in getattr(options, name):
            raise click.UsageError(f"--{name} needs {DATE} in place of the date: 'nights/{DATE}'")
    from untold.jobs.run.notifications import reporting

    night = arguments.with_tables(arguments.score_request(options, arguments.load(options)), options)
    if dates is None:
        try:
            dates = _in_order([day(one) for one in values_since(night.input, DATE, options.since)], options)
        except ValueError as error:
            raise click.UsageError(f"--since: a value of the partition column {error}") from error
    # All dates share a store next to the outputs
    above = night.output.partition(DATE)[0].rpartition("/")[0]
    night = replace(night, settings=night.settings.with_store(above))
    given = arguments.values_of(NightlyOptions, options)
    given["refresh"] |= night.refresh
    request = NightlyRequest(night=night, dates=dates, bars=least, **given)
    notify, facts = night.settings.notify, {"command": "nightly", "output": night.output}
    note = arguments.display().note
    with reporting(notify, options.metrics_file, note, **facts) as report, arguments.display() as display:
        found = nightly(request, display)
        report.facts |= {"status": found.status, "exit_code": found.exit_code, "dates": found.told}
        report.metrics = found.metrics
    show = show_json if options.json else show_nights
    arguments.report_outcome(lambda: show(found, request), found.message)
    return found.exit_code


def _dates(options: Options) -> list[date] | None:
    """Return the dates in their order, or None for the dates that changed since a version of a table.

    Raise UsageError for an empty range.
    """
    if options.date is not None and options.backfill is not None:
        raise click.UsageError("give --date or --backfill, not both")
    if options.since and not (options.date or options.backfill):
        return None
    if options.backfill is None:
        return [options.date or datetime.now(UTC).date() - timedelta(days=1)]
    first, last = options.backfill
    if first > last:
        raise click.BadParameter(f"{first} is after {last}", param_hint="'--backfill'")
    return _in_order([first + timedelta(days=number) for number in range((last - first).days + 1)], options)


def _in_order(days: list[date], options: Options) -> list[date]:
    return days[::-1] if options.order == "newest" else days


def _prune(options: Options) -> int:
    """Print the completions of a store that no output needs, or remove them."""
    # The settings open object stores
    arguments.settings_without_endpoint(options)
    from untold.jobs.prune import prune, prune_lines

    found = prune(PruneRequest(**arguments.values_of(PruneRequest, options)))
    rows = [vars(one) for one in found]
    arguments.print_result(options, rows, lambda page: prune_lines(found, page, applied=options.apply))
    return 0


def _trend(options: Options) -> int:
    """Compare the outputs of many dates. Return 4 with --alert if a system falls."""
    settings = arguments.settings_without_endpoint(options)
    from untold.jobs.run.notifications import reporting
    from untold.jobs.run.outcome import FAILED_TOO_MANY
    from untold.jobs.trend import trend, trend_lines

    output, fall = arguments.absolute(options.output), settings.trend.fall
    with arguments.display() as display:
        display.status("comparing dates")
        found = trend(
            options.outputs, output, by=options.by, fall=fall, seed=settings.statistics.seed, notify=display.note
        )
    alerts = bool(options.alert and found.falls)
    code = FAILED_TOO_MANY if alerts else 0
    if alerts:
        facts = {"command": "trend", "output": output, "findings": found.trend.findings, "falls": found.falls}
        with reporting(settings.notify, None, arguments.display().note, **facts) as report:
            report.facts |= {"status": "fallen", "exit_code": code}
    arguments.print_result(options, found.content, lambda page: trend_lines(found, fall, page))
    return code


COMMANDS: dict[str, click.Command] = {
    "nightly": Command(
        "score each date's samples into a separate output, with one store",
        _nightly,
        [
            *arguments.input_options(output=True),
            Option(
                "--date",
                "DATE",
                "the date to score, YYYY-MM-DD (yesterday in UTC, or the dates that changed --since)",
                read=day,
            ),
            Option("--backfill", "FROM TO", "all dates of a range, in one start", read=day, nargs=2),
            Option(
                "--order",
                "WHICH",
                "newest or oldest date first (newest)",
                read=OneOf(("newest", "oldest")),
                default="newest",
            ),
            *options_of(NightlyOptions),
            JSON,
            *settings_options(),
            *arguments.RUN_FLAGS,
            *arguments.REPORTING,
        ],
        needs=arguments.SCORES,
    ),
    "trend": Command(
        "show the means by date, the changes beyond chance, and changes of the judge",
        _trend,
        [
            Argument("outputs", "OUTPUT...", "outputs of untold nightly, globs of them, or their folder", many=True),
            Option("--output", "DIR", "folder of the tables, the picture and trend.json", required=True),
            Option("--by", "PERIOD", "day or week (day)", read=OneOf(("day", "week")), default="day"),
            flag("--alert", "exit with code 4, and notify, if a system falls by more than trend.fall beyond chance"),
            JSON,
            *settings_options(),
        ],
    ),
    "prune": Command(
        "remove completions from a store that no output needs; only prints them without --apply",
        _prune,
        [*options_of(PruneRequest), JSON, *settings_options()],
        needs=arguments.SCORES,
    ),
    "inspect": Command(
        "show the detected format of files: columns, first rows, errors",
        _inspect,
        [
            Argument("file", "FILE", "samples: a file, a folder or a glob"),
            Option("--format", "NAME", "a known data set; by default detected from the first row", names=known_formats),
            *arguments.READ_OPTIONS,
            JSON,
        ],
    ),
    "export": Command(
        "write a run's scores for other tools, one row per sample",
        _export,
        [
            Argument("run", "RUN", "the output of a run"),
            Option("--to", "FORM", ", ".join(EXPORTS), read=OneOf(EXPORTS)),
            Option("--output", "FILE", "output file, by default standard output for text"),
            flag("--send", f"send the scores to the tool: {', '.join(TRACKED)} (keys: its environment variables)"),
            Option("--url", "URL", "with --send: the address of the tool, by default from its environment variables"),
            Option("--rate", "N", "with --send: at most N calls per second (5)", read=width),
            Option("--trec", "FILE", "short for --to trec --output FILE; one file per system if topics repeat"),
        ],
    ),
    "completion": Command(
        "print a script that completes commands in bash, zsh or fish",
        _completion,
        [Argument("shell", "SHELL", ", ".join(SHELLS), read=OneOf(SHELLS))],
    ),
    "index": Command(
        "create an index of a corpus, or extend it",
        _index,
        [
            Option("--input", "PATH", "documents: document_id (or id), text (or contents), title, url", required=True),
            Option("--output", "DIR", "folder of the index", required=True),
            *arguments.READ_OPTIONS,
            JSON,
            *settings_options(),
            *arguments.LIMIT,
            *options_of(RunOptions, "overwrite"),
            *arguments.REQUEST_FLAGS,
        ],
        needs=arguments.SCORES,
    ),
    "search": Command(
        "find the chunks of an index that are nearest to a query",
        _search,
        [
            *options_of(SearchOptions),
            Option("--queries", "FILE", "file of queries (query, query_id), requires --output", to="input"),
            *arguments.READ_OPTIONS,
            Option("--output", "DIR", "folder of the table of hits"),
            *settings_options(),
            JSON,
            *options_of(RunOptions, "overwrite"),
            *arguments.REQUEST_FLAGS,
        ],
        needs=arguments.SCORES,
    ),
    "answer": Command(
        "send the requests that runs left in a spool",
        _answer,
        [*options_of(AnswerOptions), JSON, *arguments.SETTINGS_FILE],
        # A worker needs no Spark
        needs={ENGINE: ("ray", "openai", "aiohttp")},
    ),
    "batches": Command(
        "list, fetch or cancel the batches that runs left at endpoints",
        _batches,
        [
            Argument("folder", "DIR", "the output of a run, or a store of completions"),
            Argument("act", "ACT", "list (the default), fetch or cancel", required=False, read=OneOf(ACTS)),
            Option("--id", "ID", "batch to cancel, by default all (repeatable)", multiple=True),
            JSON,
            *arguments.SETTINGS_FILE,
        ],
        needs=arguments.SCORES,
    ),
}
