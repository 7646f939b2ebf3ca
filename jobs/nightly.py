"""Score each date of an input into its own output, with one store for all: `untold nightly`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

from untold.jobs.inference.stage.engines import SharedEngines, open_held
from untold.jobs.inference.stage.start import Outcome, miss_messages
from untold.jobs.inference.store.store import SPARK_ERRORS
from untold.jobs.inputs.checking import adapter_of, listed_files
from untold.jobs.inputs.files import NoInputError, count_bytes, listing_of
from untold.jobs.inputs.options import NightlyOptions
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.run.error_messages import explain, root_cause
from untold.jobs.run.manifest import read_manifest
from untold.jobs.run.outcome import EXIT_CODES, FAILED_TOO_MANY, LEFT, Ending
from untold.jobs.run.session import SMALL_BYTES
from untold.jobs.run.terminal import Display, amount, page_of, print_lines
from untold.jobs.score import is_complete, score, show_summary
from untold.jobs.settings.model import Settings
from untold.jobs.summary.nights import (
    DATE,
    SENTINEL_FOLDER,
    Manifest,
    breaks_of,
    cost_within,
    describe_break,
    metrics_text,
    read_nights,
    row_of,
    table_of,
    write_nights,
)
from untold.jobs.summary.ranking import number_text
from untold.udfs.errors import UserError
from untold.udfs.redaction import redact

REFUSED = 1
# The worst is the last (docs/contract.md, "Nights"): codes that a repeated start fixes come before the others
SEVERITY = (0, FAILED_TOO_MANY, *(EXIT_CODES[name] for name in (*LEFT, "budget", "outage")), REFUSED, 130)
# The statuses after which the next night would fail too
STOPPING = ("outage", "interrupted", "failed")


class SentinelError(UserError):
    """A sentinel is unreadable. The message has the reason."""


@dataclass(frozen=True, kw_only=True)
class NightlyRequest(NightlyOptions):
    """The dates to score, in order. `night` is the request of each date, with `{date}` in its input and output."""

    night: ScoreRequest
    dates: Sequence[date]
    # The minimum mean of each metric
    bars: Mapping[str, float] = field(default_factory=dict)

    def of(self, day: date) -> ScoreRequest:
        """Return the request of a date."""
        paths = {name: getattr(self.night, name).replace(DATE, day.isoformat()) for name in ("input", "output")}
        lake = self.night.lake and replace(self.night.lake, date=day)
        return replace(self.night, **paths, lake=lake, day=day)


@dataclass(frozen=True, kw_only=True)
class DateResult(Outcome):
    """The outcome of a date, with the manifest of its output.

    `status` is `done` for a date that was complete before, `empty` without input, `refused` for a date that could not
    start, `waiting` if another date ended the command first, and otherwise the status of the manifest. `ran` is True
    if this command started the date. `rows` and `unchanged` keep their defaults.
    """

    date: str
    status: str
    exit_code: int = 0
    ran: bool = False
    # True if files were added or changed after the date was complete
    input_changed: bool = False

    @property
    def row(self) -> dict[str, Any]:
        """The values of the date for `--json`."""
        known = row_of(self.date, self.manifest) if self.manifest else {"date": self.date}
        changes = self.manifest.get("input", {}).get("changes", {}) if self.ran else {}
        own = {"status": self.status, "exit_code": self.exit_code, "message": self.message}
        return {**known, **own, "input_changed": self.input_changed, **changes}

    @property
    def line(self) -> str:
        """The printed line of the date."""
        overall = [row for row in self.manifest.get("summary", ()) if row["level"] == "overall"]
        means = [f"{row['metric']} {number_text(row['mean'])}" for row in overall]
        counts = self.manifest.get("counts", {})
        samples = [amount(counts["samples"], "sample")] if "samples" in counts else []
        changed = ["its input has changed since then. --refresh scores the changed input"] if self.input_changed else []
        return f"{self.date}: {', '.join([self.status, *samples, *means, *changed])}"


@dataclass(frozen=True)
class BackfillResult:
    """The results of all dates, in the order of the request."""

    nights: Sequence[DateResult]
    breaks: Sequence[Mapping[str, Any]] = ()
    # The file with all dates, None if no date ran
    file: str | None = None

    @property
    def exit_code(self) -> int:
        """The worst exit code of all dates."""
        return max((night.exit_code for night in self.nights), key=SEVERITY.index, default=0)

    @property
    def status(self) -> str:
        """The status of a date with the worst exit code."""
        worst = max(self.nights, key=lambda night: SEVERITY.index(night.exit_code), default=None)
        return "empty" if worst is None else worst.status

    @property
    def told(self) -> list[dict[str, Any]]:
        """The values of each date for a notification."""
        return [{name: value for name, value in night.row.items() if name != "message"} for night in self.nights]

    @property
    def metrics(self) -> str | None:
        """The metrics text of the newest date with a manifest, or None."""
        known = [night for night in self.nights if "status" in night.manifest]
        newest = max(known, key=lambda night: night.date, default=None)
        return None if newest is None else metrics_text(newest.manifest, self.exit_code)

    @property
    def message(self) -> str:
        """The messages of all dates, one per line, each after its date."""
        told = (night for night in self.nights if night.message)
        return "\n".join(f"{night.date}: {line}" for night in told for line in str(night.message).splitlines())


def nightly(request: NightlyRequest, display: Display) -> BackfillResult:
    """Score the incomplete dates with one start of Spark and Ray. The error of one date does not end the others."""
    found = {day: _look(request, day) for day in request.dates}
    pending = {day: one for day, one in found.items() if isinstance(one, ScoreRequest)}
    nights = {day: one for day, one in found.items() if isinstance(one, DateResult)}
    if pending:
        nights |= {date.fromisoformat(night.date): night for night in _score_all(request, pending, display)}
    ended = [nights[day] for day in request.dates]
    ran = {night.date for night in ended if night.ran}
    if not ran:
        return BackfillResult(ended)
    known = read_nights(request.night.output)
    breaks = [one for one in breaks_of(known) if ran & {one["date"], one["before"]}]
    return BackfillResult(ended, breaks, write_nights(request.night.output, known))


def _look(request: NightlyRequest, day: date) -> DateResult | ScoreRequest:
    """Return the request of an incomplete date, or the result of any other date. This starts no engine."""
    asked, name = request.of(day), day.isoformat()
    try:
        earlier = None if asked.overwrite else read_manifest(asked.output)
        ended = earlier is not None and is_complete(asked, earlier)
        if earlier is not None and ended:
            changed = _input_changed(asked, earlier)
            if not (changed and request.refresh):
                return _done(request, name, earlier, changed)
        asked.check()
        _check_sentinel(asked, name)
    except NoInputError as error:
        if earlier is None and not request.require_input:
            return DateResult(date=name, status="empty")
        return _refused(name, error)
    except UserError as error:
        return _refused(name, error)
    # An incomplete date has no published scores, so it continues with the present input
    return replace(asked, refresh=request.refresh or not ended)


def sentinel_of(asked: ScoreRequest, day: str) -> ScoreRequest | None:
    """Return the request of a date's sentinel, or None without one. Its responses are judged again for each date."""
    settings = asked.settings
    if settings.nightly.sentinel is None:
        return None
    salt = " ".join(filter(None, (settings.llm.salt, f"sentinel {day}")))
    llm = settings.llm.model_copy(update={"salt": salt, "repeats": 1})
    own = settings.model_copy(update={"llm": llm, "completion_store": asked.store})
    fixed = replace(asked, input=settings.nightly.sentinel, output=f"{asked.output}/{SENTINEL_FOLDER}", settings=own)
    return replace(fixed, limit=None, draw=None, refresh=False, since=None, lake=None)


def _check_sentinel(asked: ScoreRequest, day: str) -> None:
    """Raise SentinelError if the first rows of the sentinel are invalid."""
    sentinel = sentinel_of(asked, day)
    try:
        if sentinel is not None:
            sentinel.check()
    except UserError as error:
        raise SentinelError(f"nightly.sentinel: {error}") from error


def _input_changed(asked: ScoreRequest, earlier: Manifest) -> bool:
    """Return True if the files of the input differ from the scored ones. A removed input counts as unchanged."""
    known = earlier.get("input", {}).get("listing")
    try:
        files, _ = listed_files(asked.input, adapter_of(asked.format))
    except NoInputError:
        return False
    return known is not None and known != listing_of(files)


def _done(request: NightlyRequest, day: str, earlier: Manifest, changed: bool) -> DateResult:
    """Return the result of a complete date, with the exit code of its run."""
    settings = request.night.settings
    missed = miss_messages(earlier, settings)
    code = Ending().exit_code(earlier["counts"]["statuses"], settings.fail_on_error, missed)
    told = "\n".join(missed) or None
    ended = DateResult(date=day, status="done", exit_code=code, manifest=earlier, message=told, input_changed=changed)
    return ended.apply_thresholds(request.bars)


def _refused(day: str, error: Exception) -> DateResult:
    return DateResult(date=day, status="refused", exit_code=REFUSED, message=_told(error))


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else explain(error) or root_cause(error)


@dataclass
class _Month:
    """The budget of all nights of this month, and their costs."""

    pattern: str
    most: float | None

    @cached_property
    def name(self) -> str:
        """The month in UTC, with the format of the times in manifests."""
        return f"{datetime.now(UTC):%Y-%m}"

    @cached_property
    def costs(self) -> dict[str, float]:
        """The costs by date."""
        return {day: cost_within(self.name, night) for day, night in read_nights(self.pattern).items()}

    @property
    def left(self) -> float | None:
        """The remaining budget, None if it is unlimited."""
        return None if self.most is None else max(0.0, self.most - sum(self.costs.values()))

    def add(self, night: DateResult) -> None:
        """Add the cost of a night that ran."""
        if self.most is not None and night.manifest:
            self.costs[night.date] = cost_within(self.name, night.manifest)

    def capped(self, settings: Settings) -> Settings:
        """Return the settings of a night with at most the remaining budget."""
        budget = settings.budget
        costs = [cost for cost in (budget.max_cost, self.left) if cost is not None]
        capped = budget.model_copy(update={"max_cost": min(costs, default=None)})
        return settings.model_copy(update={"budget": capped})


def _score_all(request: NightlyRequest, pending: Mapping[date, ScoreRequest], display: Display) -> Iterator[DateResult]:
    """Score the dates in order, until a date ends with a status that stops the others."""
    month = _Month(request.night.output, request.night.settings.nightly.budget_month)
    waiting = iter(pending.items())
    if month.left == 0:
        yield from _wait(waiting, _month_used_up(month))
        return
    paths = [request.night.settings.nightly.sentinel, *(asked.input for asked in pending.values())]
    small = count_bytes(*filter(None, paths), request.night.store) < SMALL_BYTES
    with open_held(request.night.settings, display, small) as held:
        for day, asked in waiting:
            if len(request.dates) > 1:
                display.note(f"{day}: starting")
            night = _score_one(request, day, replace(asked, settings=month.capped(asked.settings)), display, held)
            # The session stores cached rows of the input on disk until they are removed
            held.spark.catalog.clearCache()
            month.add(night)
            yield night
            if night.status in STOPPING:
                yield from _wait(waiting, replace(night, message=None))
            if night.status == "budget" and month.left is not None and _is_used_up(month, asked.settings):
                yield from _wait(waiting, _month_used_up(month))


def _is_used_up(month: _Month, settings: Settings) -> bool:
    """Return True if the monthly budget ended a night, because no other budget can have been reached."""
    night = settings.budget
    others = (night.max_calls, night.max_tokens)
    return others == (None, None) and (night.max_cost is None or (month.left or 0.0) < night.max_cost)


def _month_used_up(month: _Month) -> DateResult:
    spent = sum(month.costs.values())
    message = (
        f"nightly.budget_month is used up ({spent:,.4f} of {month.most:,.4f} in {month.name}); "
        "raise it, or start again next month"
    )
    return DateResult(date="", status="waiting", exit_code=EXIT_CODES["budget"], message=message)


def _wait(waiting: Iterator[tuple[date, ScoreRequest]], cause: DateResult) -> Iterator[DateResult]:
    """Yield a result for each remaining date, which a later start continues."""
    for day, _ in waiting:
        yield DateResult(date=day.isoformat(), status="waiting", exit_code=cause.exit_code, message=cause.message)


def _score_one(
    request: NightlyRequest, day: date, asked: ScoreRequest, display: Display, held: SharedEngines
) -> DateResult:
    name = day.isoformat()
    sentinel: Outcome | None = None
    try:
        if (fixed := sentinel_of(asked, name)) is not None:
            sentinel = score(fixed, display, held)
            if sentinel.manifest["status"] != "finished":
                return _night(name, sentinel, {"sentinel": sentinel.manifest})
        outcome = score(_less(asked, sentinel), display, held).apply_thresholds(request.bars)
    except NoInputError as error:
        # The files have no row, which the check of their first rows did not find
        return _refused(name, error) if request.require_input else DateResult(date=name, status="empty")
    except (UserError, *SPARK_ERRORS) as error:
        return _refused(name, error)
    return _night(name, outcome, {**outcome.manifest, **({"sentinel": sentinel.manifest} if sentinel else {})})


def _night(day: str, outcome: Outcome, manifest: Manifest) -> DateResult:
    return DateResult(
        date=day,
        status="done" if outcome.unchanged else outcome.manifest["status"],
        exit_code=outcome.exit_code,
        manifest=manifest,
        message=outcome.message,
        ran=True,
    )


def _less(asked: ScoreRequest, sentinel: Outcome | None) -> ScoreRequest:
    """Return the request with the budget minus the usage of its sentinel."""
    if sentinel is None or sentinel.unchanged:
        return asked
    usage = sentinel.manifest["starts"][-1]["usage"]
    names = {
        "max_calls": ("calls",),
        "max_tokens": ("prompt_tokens", "completion_tokens"),
        "max_cost": ("cost",),
    }
    used = {most: sum(row[name] or 0 for row in usage for name in columns) for most, columns in names.items()}
    budget = asked.settings.budget
    left = {most: max(0, bound - used[most]) for most, bound in budget if bound is not None}
    settings = asked.settings.model_copy(update={"budget": budget.model_copy(update=left)})
    return replace(asked, settings=settings)


def show_nights(found: BackfillResult, request: NightlyRequest) -> None:
    """Print one line per date, and a table of several dates, or the summary of a single date that ran."""
    nights = found.nights
    if len(nights) == 1 and nights[0].ran:
        show_summary(nights[0], request.of(request.dates[0]))
        print()
    lines = [night.line for night in nights]
    if found.file is not None:
        lines += ["", *table_of([night.row for night in nights], page_of(sys.stdout))] if len(nights) > 1 else []
        lines += ["", *map(describe_break, found.breaks), f"all dates: {found.file}"]
    print_lines(map(redact, lines))


def show_json(found: BackfillResult, request: NightlyRequest) -> None:
    """Print the results of the dates as JSON, with the breaks of the series of all stored dates."""
    breaks = breaks_of(read_nights(request.night.output))
    content = {"exit_code": found.exit_code, "dates": [night.row for night in found.nights], "breaks": breaks}
    print(json.dumps(content, indent=2, ensure_ascii=False))
