"""The subcommands of stores that grow night by night: their arguments, and how these become what a job is asked."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import click

from untold.jobs.cli.arguments import (
    FAIL_UNDER,
    LAKEHOUSE_OPTIONS,
    METRICS_FILE,
    RUN_FLAGS,
    Argument,
    Command,
    Option,
    Options,
    bars_of,
    flag,
    input_options,
    load,
    score_request,
    settings_options,
    settings_without_endpoint,
    tell_outcome,
    with_tables,
)
from untold.jobs.cli.values import age, day, one_of

ORDERS = ("newest", "oldest")
PERIODS = ("day", "week")


def _nightly(options: Options) -> int:
    """Each date's samples to an output of its own, over one store."""
    least, dates = bars_of(options), _dates(options)
    from untold.jobs.lakehouse.inputs import values_since
    from untold.jobs.nightly import NightlyRequest, nightly, show_json, show_nights
    from untold.jobs.summary.nights import DATE

    for name in ("input", "output"):
        if DATE not in getattr(options, name):
            raise click.UsageError(f"--{name} needs {DATE}, which stands for the date: 'nights/{DATE}'")
    from untold.jobs.run.notifications import reporting
    from untold.jobs.run.terminal import Display

    night = with_tables(score_request(options, load(options)), options)
    if dates is None:
        try:
            dates = _in_order([day(one) for one in values_since(night.input, DATE, options.since)], options)
        except ValueError as error:
            raise click.UsageError(f"--since: a value of the partition column {error}") from error
    if night.settings.completion_store is None:
        # Beside the outputs: one store for all dates
        above = night.output.partition(DATE)[0].rpartition("/")[0]
        night = replace(night, settings=night.settings.model_copy(update={"completion_store": f"{above}/completions"}))
    request = NightlyRequest(
        night=night,
        dates=dates,
        refresh=night.refresh or options.refresh,
        require_input=options.require_input,
        bars=least,
    )
    notify, facts = night.settings.notify, {"command": "nightly", "output": night.output}
    with reporting(notify, options.metrics_file, Display().note, **facts) as report, Display() as display:
        found = nightly(request, display)
        report.facts |= {"status": found.status, "exit_code": found.exit_code, "dates": found.told}
        report.metrics = found.metrics
    show = show_json if options.json else show_nights
    tell_outcome(lambda: show(found, request), found.message)
    return found.exit_code


def _dates(options: Options) -> list[date] | None:
    """The dates in the order in which they are to run; None for those that changed since the version of a table.

    Raises UsageError for a range that has none.
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
    """The completions of a store that no output needs: what they are, or without them."""
    # Opens object stores as the settings say
    settings_without_endpoint(options)
    from untold.jobs.prune import PruneRequest, prune, prune_lines
    from untold.jobs.run.output import absolute
    from untold.jobs.run.terminal import page_of, print_lines

    request = PruneRequest(
        store=absolute(options.completion_store),
        older_than=options.older_than,
        keep_outputs=options.keep_outputs,
        apply=options.apply,
    )
    found = prune(request)
    if options.json:
        print(json.dumps([vars(one) for one in found], indent=2))
    else:
        print_lines(prune_lines(found, page_of(sys.stdout), applied=options.apply))
    return 0


def _trend(options: Options) -> int:
    """Outputs of many dates to what changed and by whom; 4 where an alert is asked for and a system fell."""
    settings = settings_without_endpoint(options)
    from untold.jobs.run.notifications import reporting
    from untold.jobs.run.outcome import FAILED_TOO_MANY
    from untold.jobs.run.output import absolute
    from untold.jobs.run.terminal import Display, page_of, print_lines
    from untold.jobs.trend import trend, trend_lines

    output, fall = absolute(options.output), settings.trend.fall
    with Display() as display:
        display.status("comparing dates")
        found = trend(
            options.outputs, output, by=options.by, fall=fall, seed=settings.statistics.seed, notify=display.note
        )
    alerts = bool(options.alert and found.falls)
    code = FAILED_TOO_MANY if alerts else 0
    if alerts:
        facts = {"command": "trend", "output": output, "findings": found.trend.findings, "falls": found.falls}
        with reporting(settings.notify, None, Display().note, **facts) as report:
            report.facts |= {"status": "fallen", "exit_code": code}
    if options.json:
        print(json.dumps(found.content, indent=2, ensure_ascii=False))
    else:
        print_lines(trend_lines(found, fall, page_of(sys.stdout)))
    return code


COMMANDS: dict[str, click.Command] = {
    "nightly": Command(
        "score each date's samples into an output of its own, over one store",
        _nightly,
        [
            *input_options(output=True),
            Option(
                "--date",
                "DATE",
                "the date to score, YYYY-MM-DD (yesterday by UTC, or those that changed --since)",
                read=day,
            ),
            Option("--backfill", "FROM TO", "all dates from one to another, in one start", read=day, nargs=2),
            Option("--order", "WHICH", "newest or oldest date first (newest)", read=one_of(ORDERS), default="newest"),
            flag("--refresh", "take up rows that came after a date was done"),
            flag("--require-input", "make a date without input an error"),
            flag("--json", "print JSON"),
            *settings_options(),
            *RUN_FLAGS,
            FAIL_UNDER,
            METRICS_FILE,
            *LAKEHOUSE_OPTIONS,
        ],
    ),
    "trend": Command(
        "show how means move from date to date, what changed beyond chance, and whether the judge moved",
        _trend,
        [
            Argument("outputs", "OUTPUT...", "outputs of untold nightly, globs of them, or their folder", many=True),
            Option("--output", "DIR", "where tables, picture and trend.json go", required=True),
            Option("--by", "PERIOD", "day or week (day)", read=one_of(PERIODS), default="day"),
            flag("--alert", "exit with code 4, and notify, where a system falls by more than trend.fall beyond chance"),
            flag("--json", "print JSON"),
            *settings_options(),
        ],
    ),
    "prune": Command(
        "remove completions from a store that no output needs; says what it would remove unless told to",
        _prune,
        [
            Option("--completion-store", "DIR", "a store of completions", required=True),
            Option("--older-than", "AGE", "the least age of what goes: 90d, 12w, 36h", read=age, required=True),
            Option("--keep-outputs", "PATH", "outputs of any age whose completions stay; repeatable", multiple=True),
            flag("--apply", "remove them"),
            flag("--json", "print JSON"),
            *settings_options(),
        ],
    ),
}
