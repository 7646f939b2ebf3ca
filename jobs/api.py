"""Score and plan from Python, with progress bars in notebooks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import count
from numbers import Integral
from threading import Lock, current_thread, main_thread
from time import monotonic
from typing import Any, Literal, Self, TypedDict, Unpack

from pyspark.sql import SparkSession

from untold.jobs.inference.backends import local_model
from untold.jobs.inference.backends.process import ProcessWhenNeeded
from untold.jobs.inference.stage.engines import SharedEngines
from untold.jobs.inputs.files import ReadOptions
from untold.jobs.inputs.frames import write_frame
from untold.jobs.inputs.sampling import Draw
from untold.jobs.metrics import check_metrics
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.plan import plan
from untold.jobs.run.outcome import Interrupts
from untold.jobs.run.session import is_connect, open_session, spark_defaults
from untold.jobs.run.terminal import Display, Pace, clock
from untold.jobs.run_analysis import Run, open_run
from untold.jobs.run_tables import html_table
from untold.jobs.score import score
from untold.jobs.settings.layers import known_settings
from untold.jobs.settings.loading import load_settings
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError, aside, near_misses
from untold.udfs.redaction import redact
from untold.udfs.storage import absolute

# Seconds between two redraws: each is a message to the browser
REDRAW_SECONDS = 0.5


def notebook_bars() -> Callable[[Mapping[str, Any]], None] | None:
    """Return a function that draws progress events in the current notebook, or None outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # IPython in a terminal shows no HTML
    return _Bars(ipython.display).draw if ipython is not None and hasattr(shell, "kernel") else None


class _Bars:
    """The progress bars of one call in one output of a notebook."""

    def __init__(self, display: Any) -> None:
        self._html = display.HTML
        self._handle = display.display(self._html(""), display_id=True)
        self._lines: dict[str, str] = {}
        self._drawn = 0.0

    def draw(self, event: Mapping[str, Any]) -> None:
        """Draw a progress event of `Session.score`."""
        if "note" in event:
            self._lines[f"note {len(self._lines)}"] = f"<div>{escape(event['note'])}</div>"
        else:
            self._lines[event["stage"]] = _bar(event)
        done = event.get("done") == event.get("total")
        if done or monotonic() - self._drawn >= REDRAW_SECONDS:
            self._drawn = monotonic()
            self._handle.update(self._html("".join(self._lines.values())))


def _bar(event: Mapping[str, Any]) -> str:
    """Return the line of a stage: its bar, its calls, its cost and its remaining time."""
    done, total = event["done"], event.get("total")
    parts = [f"{done:,} / {total:,}" if total else "starting", f"{event.get('calls', 0):,} calls"]
    if event.get("cost") is not None:
        parts.append(f"cost {event['cost']:.4f}")
    if event.get("left") is not None:
        parts.append(f"{clock(event['left'])} left")
    bar = f'<progress value="{done}" max="{total or 1}"></progress>'
    return f"<div>{bar} {escape(event['stage'])}: {', '.join(parts)}</div>"


# Open sessions that started Spark. The last one stops it.
_STARTED: set[Session] = set()
_STARTING = Lock()
INTERRUPTED = 130  # docs/contract.md, "Exit codes"


class ScoringError(UserError):
    """A score without tables, because the endpoint refused the run or its process failed."""


@dataclass(frozen=True)
class Plan:
    """The expected requests of a run: one row per metric and stage, as `untold plan --json` prints them."""

    rows: Sequence[Mapping[str, Any]]

    @property
    def totals(self) -> dict[str, Any]:
        """Return the sums over all rows. A sum is None if no row has the figure, such as a cost without prices."""
        numbers = [name for name in (self.rows[0] if self.rows else ()) if name not in ("metric", "stage", "exact")]
        known = {name: [row[name] for row in self.rows if row[name] is not None] for name in numbers}
        return {name: sum(values) if values else None for name, values in known.items()}

    def _repr_html_(self) -> str:
        return html_table([*self.rows, {"metric": "total", **self.totals}])


class SampleOptions(TypedDict, total=False):
    """Options of `Session.score` and `Session.plan` for reading samples."""

    # Names of columns in the samples: `{"query": "question"}`
    columns: Mapping[str, str] | None
    # A format, like `--format`
    format: str | None
    # The encoding of text files, such as `cp1252`; None is UTF-8
    encoding: str | None
    # The delimiter of CSV files; None detects it
    delimiter: str | None
    # Only the first samples by sample_id
    limit: int | None
    # The number of random rows, by `statistics.seed`
    random: int | None
    # Columns whose groups get their share of `random`, at least one row each
    stratify: str | Sequence[str] | None


class Session:
    """Score and plan with one Spark, one Ray and one set of settings.

    Args:
        spark: Your Spark session, which is used as it is and never stopped. None is the active session, or a new one
            on this machine or at `spark.master`.
        config: A settings file, like `--config`.
        settings: Settings by their dotted keys, like `--set`: `{"llm.model": "gpt-4.1-mini"}`.
        endpoint: A preset, like `--endpoint`.

    Raises:
        UntoldError: A setting is unknown or invalid. Without an endpoint and the embedded model, the judge of the
            package takes their place.

    Examples:
        >>> import untold
        >>> with untold.Session(settings={"llm.base_url": "http://localhost:8000/v1", "llm.model": "m"}) as session:
        ...     session.settings.llm.model
        'm'
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        config: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        endpoint: str | None = None,
    ) -> None:
        self._resolved = load_settings(
            None if config is None else os.fspath(config),
            [f"{key}={json.dumps(value)}" for key, value in _dotted(settings or {})],
            endpoint,
            os.environ,
            judged=not local_model.installed(),
            local_installed=local_model.installed,
        )
        active = None if _STARTED else SparkSession.getActiveSession()
        self._given = spark if spark is not None else active
        self._process = ProcessWhenNeeded(self.settings.ray, Interrupts(), kept=True)
        self._numbers = count(1)
        self._lock = Lock()

    @property
    def settings(self) -> Settings:
        """Return the settings of all layers, which cannot be changed."""
        return self._resolved.settings

    def score(
        self,
        samples: Any,
        metrics: str | Sequence[str],
        output: str | os.PathLike[str] | None = None,
        *,
        overwrite: bool = False,
        retry_failed: bool = False,
        wait: bool = True,
        poll: bool = True,
        progress: Callable[[Mapping[str, Any]], None] | None = None,
        **how: Unpack[SampleOptions],
    ) -> Run:
        """Score samples, write the tables, and return the run.

        The same call again sends only the missing requests, like the same command.

        Args:
            samples: A path or glob, a Spark DataFrame, or a table of pyarrow, pandas, polars or DuckDB.
            metrics: Names of metrics, such as `["e2e", "qa"]`.
            output: Folder of the tables. None is a temporary folder of the session.
            overwrite: Replace the tables of another run in `output`.
            retry_failed: Send permanently failed requests again.
            wait: Wait for another run on the same store. False raises an error.
            poll: Wait for batches. False polls them once, and the run has the status `batched` until they finish.
            progress: Called with each event: a mapping with stage, done, total, calls, failed, cost and left (the
                expected seconds until the end of the stage), or with note. None draws one bar per stage in a
                notebook, and prints lines elsewhere.
            **how: Options for reading samples: columns, format, encoding, delimiter, limit, random and stratify
                (`SampleOptions`).

        Returns:
            The run. Its `status` is `finished`, or the reason of an early end: `budget`, `outage`, `spooled` or
            `batched`.

        Raises:
            UntoldError: The samples, settings, output or endpoint are invalid. The message names the remedy.
            KeyboardInterrupt: The call was interrupted. Its completions are kept.
        """
        # One call at a time, because the calls share the actor process
        with self._called(), self._input(samples) as path, display_for(progress) as display:
            asked = self._request(path, metrics, output, how)
            request = replace(
                asked,
                output=asked.output or f"{self._folder}/run-{next(self._numbers)}",
                overwrite=overwrite,
                retry_failed=retry_failed,
                wait=wait,
                poll=poll,
                command="the same call",
            )
            outcome = score(request, display, SharedEngines(self._spark, self._process))
        if outcome.exit_code == INTERRUPTED:
            raise KeyboardInterrupt
        found = open_run(request.output)
        if found.status == "failed":
            raise ScoringError(outcome.message or "the run failed")
        return found

    def plan(
        self,
        samples: Any,
        metrics: str | Sequence[str],
        output: str | os.PathLike[str] | None = None,
        **how: Unpack[SampleOptions],
    ) -> Plan:
        """Plan the requests and the cost of `score` with the same arguments. It sends no request and writes no file.

        Raises:
            UntoldError: The samples or the settings are invalid. The message names the remedy.
        """
        with self._called(), self._input(samples) as path, display_for(None) as display:
            return Plan(plan(self._request(path, metrics, output, how), display, self._spark))

    def close(self) -> None:
        """End the actor process with its Ray, the Spark that the session started, and its temporary folder."""
        self._process.end()
        shutil.rmtree(self.__dict__.pop("_folder", ""), ignore_errors=True)
        with _STARTING:
            _STARTED.discard(self)
            spark = self.__dict__.pop("_spark", None)
            if spark is not None and self._given is None and not _STARTED:
                spark.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _folder(self) -> str:
        """Return the temporary folder of the session."""
        return tempfile.mkdtemp(prefix="untold-session-")

    @cached_property
    def _spark(self) -> SparkSession:
        """Return the Spark session of all calls: a sibling of the caller's session, with its own options.

        A session of Spark Connect is used itself, because PySpark registers checkpoints with the active session.
        """
        if self._given is not None:
            return self._given if is_connect(self._given) else self._given.newSession()
        with _STARTING, _surroundings_kept():
            _STARTED.add(self)
            return open_session(self.settings)

    @contextmanager
    def _called(self) -> Iterator[None]:
        """Run one call at a time, with the options of object stores in the environment."""
        with self._lock, _surroundings_kept():
            os.environ.update(self.settings.storage.environment)
            options = {**spark_defaults(), **self.settings.spark.conf}
            # A new session has these options, and starts after the check of the samples
            with nullcontext() if self._given is None else _options_set(self._spark, options):
                yield

    def _request(
        self, path: str, metrics: str | Sequence[str], output: str | os.PathLike[str] | None, how: SampleOptions
    ) -> ScoreRequest:
        """Return the request of both calls. Raises UntoldError if the first rows of the samples are invalid."""
        known = list(SampleOptions.__annotations__)
        for name in how:
            if name not in known:
                raise TypeError(f"unexpected keyword argument {name!r}{aside(near_misses(name, known))}")
        # All calls without `output` share a store
        shares = output is None and not self.settings.completion_store
        request = ScoreRequest(
            input=path,
            output="" if output is None else absolute(os.fspath(output)),
            metrics=check_metrics(metrics),
            settings=self.settings.with_store(self._folder) if shares else self.settings,
            embedded=self._resolved.embedded,
            format=how.get("format"),
            limit=_positive(how, "limit"),
            draw=_draw_of(how, self.settings.statistics.seed),
            read=ReadOptions(how.get("columns") or {}, how.get("encoding"), how.get("delimiter")),
        )
        request.check()
        return request

    @contextmanager
    def _input(self, samples: Any) -> Iterator[str]:
        """Return the path of the samples. A frame is written to a temporary folder of the call."""
        if isinstance(samples, str | os.PathLike):
            yield absolute(os.fspath(samples))
            return
        with tempfile.TemporaryDirectory(prefix="untold-samples-") as folder:
            yield write_frame(samples, folder)


def _positive(how: SampleOptions, name: Literal["limit", "random"]) -> int | None:
    """Return a number of rows of the options. Raises UserError unless it is a positive integer or None."""
    number = how.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, Integral) or number < 1:
        raise UserError(f"{name}={number!r}: must be a positive integer")
    return int(number)


def _draw_of(how: SampleOptions, seed: int) -> Draw | None:
    """Return the draw of the options. Raises UserError for columns of strata without a number of rows."""
    rows, given = _positive(how, "random"), how.get("stratify")
    columns = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    if columns and rows is None:
        raise UserError("stratify requires random, the number of rows")
    return None if rows is None else Draw(rows, seed, columns)


def display_for(progress: Callable[[Mapping[str, Any]], None] | None) -> Display:
    """Return the display of progress: the callback, a bar in a notebook, or lines on standard error."""
    if progress is not None:
        return CallbackDisplay(progress)
    return Display() if (bars := notebook_bars()) is None else CallbackDisplay(bars)


class CallbackDisplay(Display):
    """A display that passes progress events to a function."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._tell = tell

    def status(self, text: str) -> None:
        """Ignore statuses between stages, which are not events."""

    def note(self, text: str) -> None:
        self._tell({"note": redact(text)})

    def start(self, stage: str) -> None:
        self._pace = Pace(monotonic())
        self._tell({"stage": stage, "done": 0})

    def show(self, event: Mapping[str, Any]) -> None:
        counted = {name: event["usage"][name] for name in ("done", "calls", "failed", "cost")}
        self._tell({"stage": event["stage"], "total": event["total"], **counted, "left": self._left(event)})

    def end(self) -> None:
        """End a stage. Its last event was passed on before."""


def _dotted(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings with dotted keys, also from nested mappings.

    >>> list(_dotted({"llm": {"model": "m"}, "spark.conf": {"spark.ui.enabled": "false"}}))
    [('llm.model', 'm'), ('spark.conf', {'spark.ui.enabled': 'false'})]
    """
    for name, value in settings.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and key not in known_settings():
            yield from _dotted(value, f"{key}.")
        else:
            yield key, value


@contextmanager
def _options_set(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set the options of a session that can change at run time, and restore them at the end."""
    names = [name for name in options if spark.conf.isModifiable(name)]
    before = dict(spark.conf.getAll)
    try:
        for name in names:
            spark.conf.set(name, options[name])
        yield
    finally:
        for name in names:
            spark.conf.set(name, before[name]) if name in before else spark.conf.unset(name)


@contextmanager
def _surroundings_kept() -> Iterator[None]:
    """Restore the environment and the handler of SIGINT, which the start of Spark changes."""
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        if current_thread() is main_thread():
            signal.signal(signal.SIGINT, handler)
