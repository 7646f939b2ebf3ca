"""One start of a run: its engines, the check for an unchanged output, and its end. Jobs define the steps in between."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inference.backends.backends import ClusterChecks, reached_places
from untold.jobs.inference.stage.call_settings import RunEndpoint
from untold.jobs.inference.stage.engines import Engines, SharedEngines, open_engines
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inference.store.store import is_transient
from untold.jobs.inputs.request import RunRequest
from untold.jobs.run import manifest
from untold.jobs.run.folders import Counted, Workspace
from untold.jobs.run.outcome import FAILED_TOO_MANY, Ending, below_bars, missed_too_often
from untold.jobs.run.output import Output
from untold.jobs.run.terminal import Display, amount
from untold.jobs.run_tables import RunTables
from untold.jobs.settings.model import STAGE_NAMES, Settings
from untold.jobs.summary.run_summary import dead_stages, explain_dead_stages, most_frequent_errors
from untold.jobs.tables import FAILURES, ORDER, USAGE
from untold.udfs.llm.keys import Stage


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a start: exit code, manifest, and lines about failures and an early end."""

    exit_code: int
    manifest: Mapping[str, Any] = field(default_factory=dict)
    message: str | None = None
    unchanged: bool = False
    # Rows that a command prints but does not write: the hits of a single query
    rows: Sequence[Mapping[str, Any]] = ()

    @property
    def is_complete(self) -> bool:
        """True if all tables are written, even if too many samples failed."""
        return self.exit_code in (0, FAILED_TOO_MANY)

    def apply_thresholds(self, bars: Mapping[str, float]) -> Outcome:
        """Return the outcome of a run with means below their bars (`below_bars`).

        A run that ended early stays as it is, because its means lack samples.
        """
        below = below_bars(self.manifest["summary"], bars) if self.is_complete else []
        if not below:
            return self
        return replace(self, exit_code=FAILED_TOO_MANY, message="\n".join(filter(None, [*below, self.message])))


@dataclass(frozen=True)
class Start:
    """One start of a run, from the lock of its output to the final manifest.

    The order is: read, `output.claim`, `unchanged`, `begin`, stages of a `runner`, tables, `end`.
    """

    request: RunRequest
    output: Output
    engines: Engines
    # The folder of steps until the end of the run
    workspace: Workspace
    reach: ClusterChecks

    @property
    def spark(self) -> SparkSession:
        """The Spark session of the run."""
        return self.engines.spark

    @property
    def display(self) -> Display:
        """The display of progress and notes."""
        return self.engines.display

    def begin(self, settings: Mapping[str, Any], **fields: Any) -> None:
        """Write the manifest as `running` (`Output.begin`), with the id of the start for references in the store."""
        self.output.begin(settings, run=self.output.run, **fields)

    def runner(self, stages: Mapping[str, Stage], endpoint: RunEndpoint, **other: Any) -> StageRunner:
        """Return a runner of these stages with the settings and workspace of the request, or with `other` fields."""
        own: dict[str, Any] = {
            "settings": self.request.settings,
            "workspace": self.workspace,
            "store": self.request.store,
            "answered_before": self.output.has_answered,
            "earlier": self.output.spooled_runs,
            "reach": self.reach,
        }
        return StageRunner(engines=self.engines, stages=stages, endpoint=endpoint, **{**own, **other})

    def unchanged(self) -> Outcome | None:
        """Return the outcome of a complete output of an earlier start, None if requests or tables are missing."""
        if not self.output.is_complete(retry_failed=self.request.retry_failed):
            return None
        earlier = self.output.earlier or {}
        missed = miss_messages(earlier, self.request.settings)
        code = Ending().exit_code(earlier["counts"]["statuses"], self.request.settings.fail_on_error, missed)
        message = self._explain(Ending(), earlier, earlier["starts"][-1]["usage"], missed, sent=False)
        return Outcome(exit_code=code, manifest=earlier, message=message, unchanged=True)

    def write_failures(self, rows: DataFrame) -> dict[str, int]:
        """Write the table `failures` and return its counts for the manifest (`failure_counts`)."""
        counted = Counted(failure_counts())
        self.output.write("failures", rows, order=ORDER["failures"], schema=FAILURES, few=True, counted=counted)
        return {name: counted[name] for name in counted.columns}

    def end(
        self,
        runners: Sequence[StageRunner],
        counts: Mapping[str, Any],
        usage: Sequence[Mapping[str, Any]] | None = None,
        schema: pa.Schema = USAGE,
        **fields: Any,
    ) -> Outcome:
        """Write the table `usage`, and then the final manifest, so that a finished output has complete tables.

        Args:
            counts: counts in addition to those of `begin`, with `statuses`.
            usage: rows of `schema`, by default the rows of the runners.
            fields: other fields of the manifest.
        """
        output, settings = self.output, self.request.settings
        rows = [row for runner in runners for row in runner.usage] if usage is None else usage
        output.write_rows("usage", rows, schema)
        if damaged := sum(runner.damaged_files for runner in runners):
            moved = amount(damaged, "damaged file of the store was", "damaged files of the store were")
            self.display.note(f"{moved} moved aside: {self.request.store}")
        ending = next((runner.ending for runner in runners if runner.ended), Ending())
        # The models of all starts, without unnamed ones
        models = sorted({*output.manifest["models"], *(name for one in runners for name in one.models if name)})
        missed = miss_messages(fields, settings)
        code = ending.exit_code(counts["statuses"], settings.fail_on_error, missed)
        every = output.manifest["counts"] | counts
        parameters = {model: lines for runner in runners for model, lines in runner.parameters.items()}
        if parameters:
            fields = {**fields, "parameters": parameters}
        output.end(ending, code=code, usage=rows, counts=every, models=models, **fields)
        message = self._explain(ending, output.manifest, rows, missed, sent=any(row["calls"] for row in rows))
        return Outcome(exit_code=code, manifest=output.manifest, message=message)

    def _explain(
        self,
        ending: Ending,
        written: Mapping[str, Any],
        usage: Iterable[Mapping[str, Any]],
        missed: Sequence[str] = (),
        *,
        sent: bool,
    ) -> str | None:
        """Return lines about stages without any completion, about missed pairs, and about an early end.

        written: the manifest of the start. sent: False if this start sent no request; the lines then name the option
        that sends stored failures again.
        """
        # The result of a system is shown next to the others
        dead = [row for row in dead_stages(usage) if "system" not in row]
        errors: list[dict[str, Any]] = []
        if dead:
            run = RunTables(self.output.place, written)
            errors = most_frequent_errors(run, [row["stage"] for row in dead])
        counts = written["counts"]
        lasting = counts.get("failures", 0) - counts.get("passing_failures", 0)
        shown = f"{amount(lasting, 'stored failure')} of earlier starts, not sent again without --retry-failed"
        stored = [shown] if lasting > 0 and not sent and ending.reason is None else []
        lines = [*missed, *stored, *explain_dead_stages(dead, errors), ending.explain(self.request.command)]
        return "\n".join(line for line in lines if line) or None


def miss_messages(written: Mapping[str, Any], settings: Settings) -> list[str]:
    """Return lines about filters with too many missed pairs, from the audits of a manifest."""
    return missed_too_often(written.get("audits", []), {"nli": settings.nli.max_miss_rate})


@contextmanager
def open_start(
    request: RunRequest,
    output: Output,
    display: Display,
    *,
    asks: bool = False,
    stages: Collection[str] = STAGE_NAMES,
    held: SharedEngines | None = None,
    index: str | None = None,
) -> Iterator[Start]:
    """Open a start in an entered output, with its engines. See `open_engines` for `asks`, `stages` and `held`.

    `index` is the index that executors read. Raises NodeCheckError if they cannot access it, the output or the store.
    """
    with open_engines(
        request.settings,
        display,
        output.run,
        wait=request.wait,
        lock=request.lock,
        retry_failed=request.retry_failed,
        poll=request.poll,
        small=request.small,
        asks=asks,
        stages=stages,
        held=held,
    ) as engines:
        output.notify = display.note
        workspace = output.workspace(engines.spark, small=request.small)
        places = reached_places(output.place, workspace.folder, request.store)
        reach = ClusterChecks(engines.spark, places, [f"{index}/{manifest.NAME}"] if index else [], display.note)
        if asks or not output.seems_complete(retry_failed=request.retry_failed):
            reach.check_executors()
        yield Start(request, output, engines, workspace, reach)


def open_endpoint(
    request: RunRequest, display: Display, *, settings: Settings | None = None, embedded: bool = False
) -> RunEndpoint:
    """Return the endpoint of a run as a context manager. `settings` replace the settings of the request."""
    return RunEndpoint(settings or request.settings, embedded=embedded, wait=request.wait, notify=display.note)


def failure_counts() -> dict[str, Column]:
    """Return the counts of the table `failures`: failed requests, and temporary failures among them.

    Invalid rows (stage `input`) do not count, because no start can fix them.
    """
    asked = F.col("stage") != "input"
    return {"failures": F.count_if(asked), "passing_failures": F.count_if(asked & is_transient())}
