"""One start of a run: engines, what is unchanged, and how it ends. Each job says only what it does in between."""

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
    """How a start ended: exit code, manifest, and the lines that say what failed and why it ended early."""

    exit_code: int
    manifest: Mapping[str, Any] = field(default_factory=dict)
    message: str | None = None
    unchanged: bool = False
    # What a command prints and does not write: the hits of a single query
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
    """One start of a run, from an output that is locked to a manifest that says how it ended.

    In order: read, `output.claim`, `unchanged`, `begin`, ask by a `runner`, write tables, `end`.
    """

    request: RunRequest
    output: Output
    engines: Engines
    # Where steps are kept until the run ends
    workspace: Workspace
    reach: ClusterChecks

    @property
    def spark(self) -> SparkSession:
        """The session of the run."""
        return self.engines.spark

    @property
    def display(self) -> Display:
        """Where progress and notes are shown."""
        return self.engines.display

    def begin(self, settings: Mapping[str, Any], **fields: Any) -> None:
        """Writes the manifest as `running` (`Output.begin`), with the start's id, by which the store has its notes."""
        self.output.begin(settings, run=self.output.run, **fields)

    def runner(self, stages: Mapping[str, Stage], endpoint: RunEndpoint, **other: Any) -> StageRunner:
        """What asks these stages, by the request's settings and workspace; `other` fields replace these."""
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
        """The outcome of an output that an earlier start left nothing to ask in; None where there is something."""
        if not self.output.is_complete(retry_failed=self.request.retry_failed):
            return None
        earlier = self.output.earlier or {}
        missed = miss_messages(earlier, self.request.settings)
        code = Ending().exit_code(earlier["counts"]["statuses"], self.request.settings.fail_on_error, missed)
        message = self._explain(Ending(), earlier, earlier["starts"][-1]["usage"], missed, sent=False)
        return Outcome(exit_code=code, manifest=earlier, message=message, unchanged=True)

    def write_failures(self, rows: DataFrame) -> dict[str, int]:
        """Writes the table `failures` and gives its counts for the manifest (`failure_counts`)."""
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
        """Writes the table `usage`, then the manifest as it ended: who reads `finished` finds every table whole.

        counts: beside those of `begin`, with `statuses`. usage: rows of `schema`, those of the runner by default.
        fields: others of the manifest.
        """
        output, settings = self.output, self.request.settings
        rows = [row for runner in runners for row in runner.usage] if usage is None else usage
        output.write_rows("usage", rows, schema)
        if damaged := sum(runner.damaged_files for runner in runners):
            moved = amount(damaged, "damaged file of the store was", "damaged files of the store were")
            self.display.note(f"{moved} moved aside: {self.request.store}")
        ending = next((runner.ending for runner in runners if runner.ended), Ending())
        # Of all starts; null where an endpoint did not name its model
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
        """The lines that say which stages got no answer at all, what was missed, and why the run ended early, if any.

        written: the manifest of the start that they are about. sent: False if this start sent no request, so that
        stored failures are named with the option that sends them again.
        """
        # What became of a system is shown beside the others
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
    """What to say of filters that missed too much, by the audits of a manifest."""
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
    """A start in an output that was entered, with its engines; `asks`, `stages` and `held` as of `open_engines`.

    `index`: the index that executors read. Raises NodeCheckError if they do not reach it, the output or the store.
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
    """Where the calls of a run go, to be entered; by other settings than the request's where they are given."""
    return RunEndpoint(settings or request.settings, embedded=embedded, wait=request.wait, notify=display.note)


def failure_counts() -> dict[str, Column]:
    """What is counted of the table `failures`: failed requests, and those that may pass when they are asked again.

    Invalid rows (stage `input`) do not count, as no start can mend them.
    """
    asked = F.col("stage") != "input"
    return {"failures": F.count_if(asked), "passing_failures": F.count_if(asked & is_transient())}
