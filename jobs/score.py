"""Samples to statements, scores and summary: the main job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any
from uuid import uuid4

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.asking.endpoint import DEMO_LABEL, RunEndpoint
from jobs.asking.process import ProcessWhenNeeded
from jobs.asking.prompts import bind_stage
from jobs.asking.runner import StageRunner
from jobs.asking.store import is_transient
from jobs.inputs.samples import SampleError, Samples, fingerprint, read_samples
from jobs.metrics import GRAPH_METRICS, METRICS
from jobs.metrics.base import MetricResult, Tools, score_columns
from jobs.metrics.condensing import Condenser, check_graphframes
from jobs.metrics.contexts import condense_contexts
from jobs.run import manifest
from jobs.run.interrupts import Interrupts
from jobs.run.locks import FolderLock
from jobs.run.manifest import Identity, OutputError
from jobs.run.progress import Display
from jobs.run.session import open_session, spark_schema
from jobs.settings.layers import without_secrets
from jobs.settings.model import Settings
from jobs.study import aggregate
from jobs.tables import RESULT_TABLES, SUMMARY, USAGE
from udfs.llm.keys import Stage
from udfs.llm.segments import is_local, open_filesystem
from udfs.stages import STAGES

EXIT_CODES = {"budget": 3, "outage": 5, "interrupted": 130, "refused": 1, "broken": 1}
MANIFEST_STATUS = {"refused": "failed", "broken": "failed"}
FAILED_TOO_MANY = 4
WORK = "_work"
# The tables that metrics give, and the order of their rows
METRIC_TABLES = {
    "atoms": ("sample_id", "metric", "atom_id"),
    "relations": ("sample_id", "metric", "premise_id", "hypothesis_id"),
    "statements": ("sample_id", "metric", "statement_id"),
    "scores": ("sample_id", "metric"),
    "failures": ("sample_id", "metric", "stage", "request_id"),
}


@dataclass(frozen=True)
class ScoreRequest:
    """What `untold score` was asked to do. `command` is how to start it again."""

    input: str
    output: str
    metrics: tuple[str, ...]
    settings: Settings
    embedded: bool
    format: str | None = None
    limit: int | None = None
    overwrite: bool = False
    retry_failed: bool = False
    wait: bool = True
    command: str = ""

    @property
    def store(self) -> str:
        """Where completions are kept."""
        return store_of(self.settings, self.output)


def absolute(path: str) -> str:
    """A path that means the same in every process; URIs stay as they are."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def store_of(settings: Settings, output: str) -> str:
    """Where completions are kept: the setting `store`, else a folder of the output."""
    return absolute(settings.store) if settings.store else f"{output}/completions"


@dataclass(frozen=True)
class ScoreOutcome:
    """How a run ended: exit code, summary rows, counts, and the line that says why it ended early."""

    exit_code: int
    summary: Sequence[Mapping[str, Any]]
    counts: Mapping[str, Any]
    message: str | None = None
    embedded: bool = False
    unchanged: bool = False


@dataclass
class _Run:
    """One start of a run: everything that its steps share."""

    request: ScoreRequest
    spark: SparkSession
    display: Display
    interrupts: Interrupts
    endpoint: RunEndpoint
    stages: Mapping[str, Stage]
    stack: ExitStack
    id: str = field(default_factory=lambda: uuid4().hex[:12])
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    process: ProcessWhenNeeded = field(init=False)

    def __post_init__(self) -> None:
        self.process = ProcessWhenNeeded(self.request.settings.ray.address, self.interrupts, self.stack)


def stages_of(metrics: Sequence[str], settings: Settings) -> list[str]:
    """The stages that these metrics ask, in order."""
    found: list[str] = []
    for metric in metrics:
        for name in METRICS[metric].stages(settings):
            if name not in found:
                found.append(name)
    return found


def score(request: ScoreRequest, display: Display) -> ScoreOutcome:
    """Runs the main job. Raises errors with one clear line for what a user can mend."""
    settings = request.settings
    _check_apart(request)
    with ExitStack() as stack:
        if is_local(request.output):
            path = open_filesystem(request.output)[1]
            stack.enter_context(FolderLock(path, uuid4().hex[:12], wait=False))
        endpoint = RunEndpoint(settings, embedded=request.embedded, wait=request.wait, notify=display.note)
        stack.callback(endpoint.close)
        sha256 = endpoint.model_sha256
        names = stages_of(request.metrics, settings)
        stages = {name: bind_stage(name, settings, embedded_model=sha256) for name in names}
        _show_unused_tools(settings, stages, display)
        interrupts = Interrupts()
        spark = open_session(settings)
        interrupts.install()
        return _score(_Run(request, spark, display, interrupts, endpoint, stages, stack))


def _check_apart(request: ScoreRequest) -> None:
    """Raises OutputError for samples that lie in a table of the output, which would be written over them."""
    place = f"{absolute(request.input)}/"
    if any(place.startswith(f"{request.output.rstrip('/')}/{name}/") for name in RESULT_TABLES):
        raise OutputError(f"{request.input} is a table of the output {request.output}; give another --output")


def _show_unused_tools(settings: Settings, stages: Mapping[str, Stage], display: Display) -> None:
    """Says which stages cannot use the tools that the settings ask for."""
    unused = [name for name, stage in stages.items() if STAGES[name].tools and not stage.tools]
    if unused and settings.qa.quantity_tool == "tool":
        display.note(f"{', '.join(unused)}: text completions have no tools; qa.quantity_tool is as if it were none")


def _score(run: _Run) -> ScoreOutcome:
    request = run.request
    if GRAPH_METRICS.intersection(request.metrics):
        check_graphframes(run.spark, request.settings)
    found = read_samples(run.spark, request.input, format=request.format, limit=request.limit)
    show_invalid(found, run.display)
    identity = manifest.identify(fingerprint(found.samples), request.metrics, request.settings, run.stages)
    earlier = check_output(request.output, identity, overwrite=request.overwrite)
    if earlier is not None and is_complete(request.output, RESULT_TABLES, earlier, again=request.retry_failed):
        counts = earlier["counts"]
        code = exit_code("finished", counts, request.settings.fail_on_error)
        return ScoreOutcome(code, earlier["summary"], counts, None, request.embedded, unchanged=True)
    current = _begin(run, identity, found, earlier)
    try:
        # It takes as long to start as Spark takes to prepare what it will be asked
        run.process.open()
        samples = _write_samples(run, found)
        if fingerprint(samples) != identity.fingerprint:
            raise SampleError(f"{request.input} changed while it was read; start again")
        runner = _runner(run, bool(sum_starts(current, "answered")))
        tables = _score_metrics(run, runner, samples, found.invalid)
        run.process.leave()
        return _finish(run, runner, current, tables)
    except BaseException as error:
        ended = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        remove_folders(request.output, [name for name in RESULT_TABLES if name != "samples"])
        manifest.write_manifest(request.output, {**current, "status": ended})
        raise


def show_invalid(found: Samples, display: Display, done: str = "scored") -> None:
    """Says how many rows cannot be scored, or what else was to be done with them, and why the first of them."""
    if found.invalid_count:
        display.note(f"{found.invalid_count:,} rows cannot be {done} and are in the table failures; the first:")
        for line in found.first_invalid:
            display.note(f"  {line}")


def check_output(output: str, identity: Identity, *, overwrite: bool) -> dict[str, Any] | None:
    """The manifest of an earlier start of the same run; None for a new output. Raises OutputError for another run's."""
    earlier = None if overwrite else manifest.read_manifest(output)
    if earlier is None:
        return None
    differences = identity.differences(earlier.get("identity", {}))
    if differences:
        raise OutputError(
            f"{output} belongs to {' and '.join(differences)}; "
            "give another --output, or --overwrite to replace its tables (completions stay)"
        )
    return earlier


def is_complete(output: str, tables: Iterable[str], earlier: Mapping[str, Any], *, again: bool) -> bool:
    """Whether an earlier start left nothing to ask, lasting failures included where they are asked `again`."""
    if earlier["status"] != "finished" or any(not exists(f"{output}/{name}") for name in tables):
        return False
    counts = earlier["counts"]
    return not (counts["failures"] if again else counts["passing_failures"])


def exists(uri: str) -> bool:
    """Whether there is such a folder."""
    system, path = open_filesystem(uri)
    return bool(system.get_file_info(path).type == fs.FileType.Directory)


def _begin(run: _Run, identity: Identity, found: Samples, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Writes the manifest as `running`."""
    request = run.request
    system, path = open_filesystem(request.output)
    system.create_dir(path, recursive=True)
    counts = {"samples": found.row_count, "invalid": found.invalid_count, "duplicates": found.duplicates}
    current = {
        "format": manifest.FORMAT,
        "status": "running",
        "metrics": list(request.metrics),
        "input": {
            "path": request.input,
            "format": request.format,
            "limit": request.limit,
            "fingerprint": identity.fingerprint,
        },
        "identity": identity.to_json(),
        "settings": without_secrets(request.settings.model_dump(mode="json")),
        "template_digests": manifest.template_digests(run.stages),
        "versions": manifest.versions(),
        "embedded_model": run.endpoint.model_sha256,
        "models": list(earlier["models"]) if earlier else [],
        "counts": counts,
        "starts": list(earlier["starts"]) if earlier else [],
        "totals": dict(earlier["totals"]) if earlier else {},
        "summary": [],
    }
    manifest.write_manifest(request.output, current)
    return current


def _write_samples(run: _Run, found: Samples) -> DataFrame:
    path = f"{run.request.output}/samples"
    found.samples.orderBy("sample_id").write.mode("overwrite").parquet(path)
    return run.spark.read.schema(found.samples.schema).parquet(path)


def _runner(run: _Run, answered_before: bool) -> StageRunner:
    request = run.request
    return StageRunner(
        spark=run.spark,
        settings=request.settings,
        stages=run.stages,
        work=f"{request.output}/{WORK}",
        store=request.store,
        run=run.id,
        open_process=run.process.open,
        base_url=run.endpoint.base_url,
        display=run.display,
        retry_failed=request.retry_failed,
        wait=request.wait,
        answered_before=answered_before,
        interrupts=run.interrupts,
    )


def _score_metrics(run: _Run, runner: StageRunner, samples: DataFrame, invalid: DataFrame) -> dict[str, DataFrame]:
    """The tables of all metrics."""
    settings = run.request.settings
    valid = samples.join(invalid.select("sample_id"), on="sample_id", how="left_anti")
    unusable = samples.select("sample_id", "system").join(invalid, on="sample_id", how="inner")
    contexts = condense_contexts(valid, runner.ask, summarise=settings.summarise_contexts)
    condenser = Condenser(run.spark, settings, runner.work)
    tools = Tools(runner.ask, runner.ask_pairs, runner.keep, condenser.condense)
    tables: dict[str, list[DataFrame]] = {name: [] for name in METRIC_TABLES}
    for metric in run.request.metrics:
        result = METRICS[metric].score(valid, contexts, tools, settings)
        for name, frame in vars(_with_unusable(metric, result, unusable)).items():
            tables[name] += [] if frame is None else [frame]
    empty = {name: run.spark.createDataFrame([], spark_schema(RESULT_TABLES[name])) for name in METRIC_TABLES}
    return {name: reduce(DataFrame.unionByName, frames, empty[name]) for name, frames in tables.items()}


def _with_unusable(metric: str, result: MetricResult, unusable: DataFrame) -> MetricResult:
    """The result with a score and a failure for each row that cannot be scored."""
    names = ("covered", "uncovered", "unjudged", "low", "high")
    missing = [F.lit(None).cast("double").alias(name) for name in names]
    failed = unusable.select("sample_id", "system", *missing, F.lit("failed").alias("status"))
    refused = unusable.select(
        "sample_id",
        F.lit(metric).alias("metric"),
        F.lit("input").alias("stage"),
        F.lit(None).cast("string").alias("request_id"),
        F.lit("invalid_input").alias("error_type"),
        "error",
    )
    scores = result.scores.unionByName(failed.select(*score_columns(metric)))
    return replace(result, scores=scores, failures=result.failures.unionByName(refused))


def _finish(run: _Run, runner: StageRunner, current: dict[str, Any], tables: Mapping[str, DataFrame]) -> ScoreOutcome:
    """Writes the tables, then the manifest as it ended."""
    request = run.request
    written = {name: _write_table(run, name, frame) for name, frame in tables.items()}
    summary = aggregate.summarise(written["scores"], seed=request.settings.statistics.seed)
    _write_rows(run, "summary", summary, SUMMARY)
    _write_rows(run, "usage", runner.usage, USAGE)
    ended = runner.ended or "finished"
    current["counts"] |= _count(written["scores"], written["failures"])
    current["status"] = MANIFEST_STATUS.get(ended, ended)
    current["summary"] = summary
    current["models"] = sorted({*current["models"], *runner.models} - {None})
    if runner.damaged_files:
        run.display.note(f"{runner.damaged_files} damaged files of the store were skipped: {request.store}")
    code = exit_code(ended, current["counts"], request.settings.fail_on_error)
    add_start(current, run.id, run.started_at, runner.usage, code)
    remove_folders(request.output, [WORK])
    manifest.write_manifest(request.output, current)
    message = explain(runner, request.command)
    return ScoreOutcome(code, summary, current["counts"], message, request.embedded)


def _write_table(run: _Run, name: str, frame: DataFrame) -> DataFrame:
    path = f"{run.request.output}/{name}"
    schema = spark_schema(RESULT_TABLES[name])
    frame.select(*schema.names).orderBy(*METRIC_TABLES[name]).write.mode("overwrite").parquet(path)
    return run.spark.read.schema(schema).parquet(path)


def _write_rows(run: _Run, name: str, rows: Sequence[Mapping[str, Any]], schema: Any) -> None:
    spark = spark_schema(schema)
    values = [tuple(row.get(field) for field in spark.names) for row in rows]
    run.spark.createDataFrame(values, spark).coalesce(1).write.mode("overwrite").parquet(f"{run.request.output}/{name}")


def _count(scores: DataFrame, failures: DataFrame) -> dict[str, Any]:
    statuses = {row["status"]: row["count"] for row in scores.groupBy("status").count().collect()}
    asked = failures.where(F.col("stage") != "input")
    return {
        "scores": sum(statuses.values()),
        "statuses": statuses,
        "failures": asked.count(),
        "passing_failures": asked.where(is_transient()).count(),
    }


def add_start(
    current: dict[str, Any], run: str, started_at: datetime, usage: Sequence[Mapping[str, Any]], code: int
) -> None:
    """One entry a start that had something to ask, and the sums over all starts."""
    asked = any(row["calls"] or row["unasked"] for row in usage)
    if asked or not current["starts"]:
        current["starts"].append(
            {
                "run": run,
                "started_at": started_at.isoformat(),
                "ended_at": datetime.now(UTC).isoformat(),
                "status": current["status"],
                "exit_code": code,
                "usage": list(usage),
            }
        )
    names = ("calls", "retries", "rate_limited", "answered", "prompt_tokens", "completion_tokens", "cost", "seconds")
    current["totals"] = {name: sum_starts(current, name) for name in names}


def sum_starts(current: Mapping[str, Any], name: str) -> Any:
    """The sum of a column of the usage of all starts that a manifest has; None where no value is known."""
    values = [row[name] for start in current["starts"] for row in start["usage"]]
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def remove_folders(output: str, folders: Sequence[str]) -> None:
    """Removes those folders of an output that are there."""
    for folder in folders:
        if exists(f"{output}/{folder}"):
            system, path = open_filesystem(f"{output}/{folder}")
            system.delete_dir(path)


def exit_code(ended: str, counts: Mapping[str, Any], fail_on_error: bool | int | float) -> int:
    """The exit code of a run that ended so: 0, or as `contract.md` lists them."""
    if ended in EXIT_CODES:
        return EXIT_CODES[ended]
    bad = sum(counts["statuses"].get(status, 0) for status in ("failed", "partial"))
    if isinstance(fail_on_error, bool):
        exceeded = fail_on_error and bad > 0
    elif isinstance(fail_on_error, int):
        exceeded = bad > fail_on_error
    else:
        exceeded = bad / max(counts["scores"], 1) > fail_on_error
    return FAILED_TOO_MANY if exceeded else 0


def explain(runner: StageRunner, command: str) -> str | None:
    """The line that says why a run ended early, and how to go on; None where it did not."""
    again = f"continue with: {command}"
    reasons = {
        "budget": f"the budget is used up after {runner.spent.calls:,} calls; raise budget.* and {again}",
        "outage": f"the endpoint does not answer; nothing is lost, {again}",
        "interrupted": f"interrupted; what was answered is kept, {again}",
        "refused": f"the endpoint refuses the run: {runner.error}, then {again}",
        "broken": f"{runner.error}; what was answered is kept, {again}",
    }
    return reasons.get(runner.ended or "")


def show_summary(outcome: ScoreOutcome, output: str) -> None:
    """Prints the summary and where the tables are."""
    if outcome.unchanged:
        print("nothing left to ask; the tables are as they were")
    label = f" ({DEMO_LABEL}: not a judge to rely on)" if outcome.embedded else ""
    print(f"summary{label}")
    print(f"{'metric':8} {'system':28} {'n':>7} {'scored':>7} {'undef.':>7} {'failed':>7} {'mean':>6}  95 % interval")
    for row in outcome.summary:
        interval = "-" if row["ci_low"] is None else f"{row['ci_low']:.3f} .. {row['ci_high']:.3f}"
        mean = "-" if row["mean"] is None else f"{row['mean']:.3f}"
        system = "all" if row["level"] == "overall" else row["system"]
        print(
            f"{row['metric']:8} {system[:28]:28} {row['n']:>7,} {row['scored']:>7,} {row['undefined']:>7,} "
            f"{row['failed']:>7,} {mean:>6}  {interval}"
        )
    print(f"tables: {', '.join(f'{output}/{name}' for name in RESULT_TABLES)}")
    sys.stdout.flush()
