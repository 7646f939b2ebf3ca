"""The request of a run, and one start of it: engines, check for an unchanged output, and end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inference.backends.backends import ClusterChecks, reached_places
from untold.jobs.inference.stage.call_settings import RunEndpoint
from untold.jobs.inference.stage.engines import Engines, SharedEngines, open_engines
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inference.store.store import is_transient
from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions, count_bytes
from untold.jobs.inputs.options import RunOptions
from untold.jobs.inputs.samples import Samples, read_samples
from untold.jobs.inputs.sampling import Draw, shown_draw
from untold.jobs.lakehouse.base import Lake
from untold.jobs.lakehouse.inputs import location_of, pinned, table_named
from untold.jobs.run import manifest
from untold.jobs.run.folders import Counted, Workspace
from untold.jobs.run.manifest import read_manifest
from untold.jobs.run.outcome import FAILED_TOO_MANY, Ending, below_bars, missed_too_often
from untold.jobs.run.output import ORDER, Output, store_of
from untold.jobs.run.session import SMALL_BYTES
from untold.jobs.run.terminal import Display, amount
from untold.jobs.run_tables import RunTables
from untold.jobs.settings.model import STAGE_NAMES, Settings
from untold.jobs.summary.run_summary import dead_stages, explain_dead_stages, most_frequent_errors
from untold.jobs.tables import FAILURES, USAGE
from untold.udfs.llm.keys import Stage


@dataclass(frozen=True, kw_only=True)
class RunRequest(RunOptions):
    """The common fields of all run requests, with absolute paths. Commands add their own fields."""

    input: str
    # Empty if no output is written: for a plan, and for a search for one query
    output: str
    settings: Settings
    # A known data set, or None for reading by extension
    format: str | None = None
    draw: Draw | None = None
    read: ReadOptions = AS_THEY_ARE
    # True if an output of another input is rebuilt from this input
    refresh: bool = False
    # Lakehouse tables that also receive the tables of the output
    lake: Lake | None = None
    # The command in messages
    command: str = ""

    @cached_property
    def store(self) -> str:
        """Return the path of the completions, empty without a store and an output."""
        return store_of(self.settings, self.output) if self.settings.completion_store or self.output else ""

    @cached_property
    def small(self) -> bool:
        """Return True if the input is so small that the start takes most of the time (`open_session`).

        The store counts too, because the same session reads its completions.
        """
        return count_bytes(*filter(None, (self.input, self.store))) < SMALL_BYTES

    def open_output(self, tables: Iterable[str], *more: str | None, kept: Sequence[str] = ()) -> Output:
        """Return the output with tables of these names, to be used in a `with` block. `more` are additional inputs."""
        return Output(
            self.output,
            tuple(tables),
            self.overwrite,
            refresh=self.refresh,
            kept=kept,
            inputs=[location_of(path) for path in (self.input, *more) if path],
            store=self.store,
            lock=self.lock,
            work=self.settings.work_dir,
            alone=self.settings.ray.address is None,
            lake=self.lake,
        )

    def pinned(self) -> Self:
        """Return the request with a version for a table: the version of the output's first start, or the newest."""
        if table_named(self.input) is None:
            return self
        keeps = self.output and not (self.overwrite or self.refresh)
        earlier = read_manifest(self.output) if keeps else None
        return replace(self, input=pinned(self.input, (earlier or {}).get("input", {}).get("path")))

    @property
    def layout(self) -> str | None:
        """Return the name of the adapter for the input."""
        return self.format

    def read_columns(self, spark: SparkSession, required: Sequence[str], optional: Sequence[str] = ()) -> Samples:
        """Return the samples of the input with these columns and the columns of every sample (`read_samples`)."""
        return read_samples(
            spark,
            self.input,
            format=self.layout,
            limit=self.limit,
            draw=self.draw,
            required=required,
            optional=optional,
            options=self.read,
        )

    def shared(self) -> dict[str, Any]:
        """Return the fields of this class, for a run of another command that this run starts."""
        return {one.name: getattr(self, one.name) for one in fields(RunRequest)}

    @property
    def named_input(self) -> dict[str, Any]:
        """Return the input for the manifest: its path, and the version of a table."""
        table = table_named(self.input)
        return {"path": self.input, **({} if table is None else {"version": table.version})}

    def shown_input(self, fingerprint: str, **more: Any) -> dict[str, Any]:
        """Return the input as shown in the manifest."""
        return {
            **self.named_input,
            "format": self.layout,
            "limit": self.limit,
            "draw": shown_draw(self.draw),
            "fingerprint": fingerprint,
            **more,
        }


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

    def apply_thresholds(self, bars: Mapping[str, float]) -> Self:
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
        request,
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
