"""Questions to answers by several systems, ready to be scored: `untold generate` (methods, section 8)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.asking.endpoint import RunEndpoint
from jobs.asking.process import ProcessWhenNeeded
from jobs.asking.prompts import bind_stage
from jobs.asking.runner import StageRunner
from jobs.asking.store import is_transient
from jobs.inputs.questions import read_questions
from jobs.inputs.samples import SampleError, Samples, column_named, fingerprint
from jobs.metrics.base import has_failed, is_unasked
from jobs.run import manifest
from jobs.run.interrupts import Interrupts
from jobs.run.locks import FolderLock
from jobs.run.manifest import Identity
from jobs.run.progress import Display
from jobs.run.session import open_session, spark_schema
from jobs.score import (
    MANIFEST_STATUS,
    add_start,
    check_output,
    exit_code,
    explain,
    is_complete,
    remove_folders,
    show_invalid,
    store_of,
)
from jobs.settings.layers import without_secrets
from jobs.settings.loading import Resolved
from jobs.settings.model import Settings
from jobs.settings.systems import SystemsError
from jobs.tables import USAGE
from udfs.files import is_local, open_filesystem
from udfs.llm.keys import Stage

STAGE = "generate_answer"
WORK = "_work"
TABLES = ("samples", "failures", "usage")
USAGE_OF_SYSTEMS = pa.schema([("system", pa.string()), *USAGE])
LEADING = ("sample_id", "query", "response", "contexts", "system", "question_id")
STATUSES = {"answered": "ok", "failed": "failed", "unasked": "budget"}


@dataclass(frozen=True)
class GenerateRequest:
    """What `untold generate` was asked to do. `contexts` is the second file of questions in the form of ELI5-Category.

    `systems` have settings of their own in `llm.*` alone. `command` is how to start it again.
    """

    input: str
    output: str
    systems: Mapping[str, Resolved]
    contexts: str | None = None
    limit: int | None = None
    overwrite: bool = False
    retry_failed: bool = False
    wait: bool = True
    command: str = ""

    @property
    def settings(self) -> Settings:
        """What all systems share, under the `llm.*` of one of them."""
        return next(iter(self.systems.values())).settings

    @property
    def store(self) -> str:
        """Where completions are kept."""
        return store_of(self.settings, self.output)


@dataclass(frozen=True)
class GenerateOutcome:
    """How a run ended: exit code, for each system what became of its questions, and why it ended early."""

    exit_code: int
    systems: Sequence[Mapping[str, Any]]
    message: str | None = None
    unchanged: bool = False


@dataclass(frozen=True)
class _System:
    """A system that answers: the stage under its settings, and where its calls go."""

    name: str
    settings: Settings
    stage: Stage
    endpoint: RunEndpoint


@dataclass(frozen=True)
class _Answers:
    """What a system gave: sample_id of the question, request_id, answer, error_type, error."""

    system: _System
    runner: StageRunner
    rows: DataFrame


@dataclass
class _Run:
    """One start of a run: everything that its steps share."""

    request: GenerateRequest
    spark: SparkSession
    display: Display
    interrupts: Interrupts
    systems: Sequence[_System]
    stack: ExitStack
    id: str = field(default_factory=lambda: uuid4().hex[:12])
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    process: ProcessWhenNeeded = field(init=False)

    def __post_init__(self) -> None:
        self.process = ProcessWhenNeeded(self.request.settings.ray.address, self.interrupts, self.stack)


def generate(request: GenerateRequest, display: Display) -> GenerateOutcome:
    """Writes samples, failures, usage and a manifest. Raises errors with one clear line for what a user can mend.

    `samples`: sample_id (`<question_id>:<system>`), query, response, contexts, system, question_id, then the columns of
    the question; a row an answer that was got. A failure is no answer and has no row.
    """
    with ExitStack() as stack:
        if is_local(request.output):
            path = open_filesystem(request.output)[1]
            stack.enter_context(FolderLock(path, uuid4().hex[:12], wait=False))
        systems = [_bind(name, given, request, display, stack) for name, given in request.systems.items()]
        _check_distinct(systems)
        interrupts = Interrupts()
        spark = open_session(request.settings)
        interrupts.install()
        return _generate(_Run(request, spark, display, interrupts, systems, stack))


def _bind(name: str, given: Resolved, request: GenerateRequest, display: Display, stack: ExitStack) -> _System:
    endpoint = RunEndpoint(given.settings, embedded=given.embedded, wait=request.wait, notify=display.note)
    stack.callback(endpoint.close)
    stage = bind_stage(STAGE, given.settings, embedded_model=endpoint.model_sha256)
    return _System(name, given.settings, stage, endpoint)


def _check_distinct(systems: Sequence[_System]) -> None:
    """Raises SystemsError for two systems whose requests are the same: one would be given the other's answers."""
    first: dict[str, str] = {}
    for system in systems:
        same = first.setdefault(system.stage.digest, system.name)
        if same != system.name:
            raise SystemsError(
                f"systems {same} and {system.name} have one model, decoding and template, so that they share every "
                "answer (an address is no part of a request): leave one out, or give each its own llm.model"
            )


def _generate(run: _Run) -> GenerateOutcome:
    request = run.request
    found, notes = read_questions(run.spark, request.input, contexts=request.contexts, limit=request.limit)
    for note in notes:
        run.display.note(note)
    show_invalid(found, run.display, "answered")
    digests = {system.name: system.stage.digest for system in run.systems}
    identity = Identity(fingerprint(found.samples), (), {"systems": digests}, {})
    earlier = check_output(request.output, identity, overwrite=request.overwrite)
    if earlier is not None and is_complete(request.output, TABLES, earlier, again=request.retry_failed):
        return GenerateOutcome(_exit_code(run, "finished", earlier["counts"]), earlier["systems"], unchanged=True)
    current = _begin(run, identity, found, earlier)
    try:
        # It takes as long to start as Spark takes to prepare what it will be asked
        run.process.open()
        questions = _write(run, f"{WORK}/questions", found.samples)
        invalid = _write(run, f"{WORK}/invalid", found.invalid)
        if fingerprint(questions) != identity.fingerprint:
            raise SampleError(f"{request.input} changed while it was read; start again")
        answers = _ask_systems(run, questions.join(invalid, on="sample_id", how="left_anti"), current)
        run.process.leave()
        return _finish(run, current, questions, invalid, answers)
    except BaseException as error:
        ended = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        remove_folders(request.output, TABLES)
        manifest.write_manifest(request.output, {**current, "status": ended})
        raise


def _begin(run: _Run, identity: Identity, found: Samples, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Writes the manifest as `running`."""
    request = run.request
    system, path = open_filesystem(request.output)
    system.create_dir(path, recursive=True)
    current = {
        "format": manifest.FORMAT,
        "status": "running",
        "input": {
            "path": request.input,
            "contexts": request.contexts,
            "limit": request.limit,
            "fingerprint": identity.fingerprint,
        },
        "identity": identity.to_json(),
        "settings": _settings_of(request.settings, exclude={"llm"}),
        "llm": {system.name: _settings_of(system.settings, include={"llm"})["llm"] for system in run.systems},
        "template_digests": manifest.template_digests({system.name: system.stage for system in run.systems}),
        "versions": manifest.versions(),
        "embedded_models": {system.name: system.endpoint.model_sha256 for system in run.systems},
        "models": list(earlier["models"]) if earlier else [],
        "counts": {"questions": found.row_count, "invalid": found.invalid_count, "duplicates": found.duplicates},
        "systems": [],
        "starts": list(earlier["starts"]) if earlier else [],
        "totals": dict(earlier["totals"]) if earlier else {},
    }
    manifest.write_manifest(request.output, current)
    return current


def _settings_of(settings: Settings, **fields: Any) -> Any:
    return without_secrets(settings.model_dump(mode="json", **fields))


def _ask_systems(run: _Run, questions: DataFrame, current: Mapping[str, Any]) -> list[_Answers]:
    """The answers of one system after the other; where one ends the run, those after it are not asked."""
    texts = F.transform("contexts", lambda context: context["text"]).alias("contexts")
    rows = questions.select("sample_id", "query", texts)
    answers: list[_Answers] = []
    for number, system in enumerate(run.systems):
        run.display.note(f"system {system.name}: {system.stage.model}")
        runner = _runner(run, number, current, answers[-1].runner if answers else None)
        answers.append(_Answers(system, runner, runner.ask(STAGE, rows)))
        system.endpoint.close()
    return answers


def _runner(run: _Run, number: int, current: Mapping[str, Any], before: StageRunner | None) -> StageRunner:
    """What asks a system, with what the systems before it have spent."""
    request, system = run.request, run.systems[number]
    runner = StageRunner(
        spark=run.spark,
        settings=system.settings,
        stages={STAGE: system.stage},
        work=f"{request.output}/{WORK}/{number}",
        store=request.store,
        run=run.id,
        open_process=run.process.open,
        base_url=system.endpoint.base_url,
        display=run.display,
        retry_failed=request.retry_failed,
        wait=request.wait,
        answered_before=_has_answered(system.name, current["starts"]),
        interrupts=run.interrupts,
    )
    if before is not None:
        runner.ended, runner.error, runner.spent = before.ended, before.error, before.spent
    return runner


def _has_answered(system: str, starts: Sequence[Mapping[str, Any]]) -> bool:
    return any(row["answered"] for start in starts for row in start["usage"] if row["system"] == system)


def _finish(
    run: _Run, current: dict[str, Any], questions: DataFrame, invalid: DataFrame, answers: Sequence[_Answers]
) -> GenerateOutcome:
    """Writes the tables, then the manifest as it ended."""
    request = run.request
    samples = [make_samples(questions, one.rows, one.system.name) for one in answers]
    failures = [make_failures(one.rows, invalid, one.system.name) for one in answers]
    _write(run, "samples", reduce(DataFrame.unionByName, samples).orderBy("sample_id"))
    written = _write(run, "failures", reduce(DataFrame.unionByName, failures).orderBy("sample_id"))
    usage = [{"system": one.system.name, **row} for one in answers for row in one.runner.usage]
    _write(run, "usage", _frame(run.spark, usage, USAGE_OF_SYSTEMS).coalesce(1))
    if damaged := sum(one.runner.damaged_files for one in answers):
        run.display.note(f"{damaged} damaged files of the store were skipped: {request.store}")
    stopped = next((one for one in answers if one.runner.ended), None)
    ended = (stopped and stopped.runner.ended) or "finished"
    current["systems"] = [_count(one, current["counts"]) for one in answers]
    current["counts"] |= _count_all(current["systems"], written)
    current["status"] = MANIFEST_STATUS.get(ended, ended)
    current["models"] = sorted({*current["models"], *(name for one in answers for name in one.runner.models if name)})
    code = _exit_code(run, ended, current["counts"])
    add_start(current, run.id, run.started_at, usage, code)
    remove_folders(request.output, [WORK])
    manifest.write_manifest(request.output, current)
    message = f"system {stopped.system.name}: {explain(stopped.runner, request.command)}" if stopped else None
    return GenerateOutcome(code, current["systems"], message)


def make_samples(questions: DataFrame, answers: DataFrame, system: str) -> DataFrame:
    """A system's rows of the table `samples`: `LEADING`, then the other columns of the questions; a row an answer.

    questions: sample_id (the question's), query, contexts and others; answers: sample_id, answer, error_type.
    """
    got = answers.where(F.col("error_type").isNull()).select("sample_id", F.col("answer").alias("response"))
    rest = [column_named(name) for name in questions.columns if name not in LEADING]
    joined = questions.join(got, on="sample_id", how="inner").withColumnRenamed("sample_id", "question_id")
    return joined.withColumn("sample_id", _sample_id("question_id", system)).select(
        *LEADING[:4], F.lit(system).alias("system"), "question_id", *rest
    )


def make_failures(answers: DataFrame, invalid: DataFrame, system: str) -> DataFrame:
    """A system's rows of the table `failures`: answers that were asked for and not got, and rows that are no question.

    answers: sample_id (the question's), request_id, error_type, error; invalid: sample_id, error.
    """
    null = F.lit(None).cast("string")
    failed = answers.where(has_failed()).withColumn("stage", F.lit(STAGE))
    unusable = invalid.withColumns({"stage": F.lit("input"), "request_id": null, "error_type": F.lit("invalid_input")})
    names = ("stage", "request_id", "error_type", "error")
    both = failed.select("sample_id", *names).unionByName(unusable.select("sample_id", *names))
    return both.select(_sample_id("sample_id", system).alias("sample_id"), null.alias("metric"), *names)


def _sample_id(question_id: str, system: str) -> Any:
    return F.concat_ws(":", question_id, F.lit(system))


def _write(run: _Run, name: str, frame: DataFrame) -> DataFrame:
    path = f"{run.request.output}/{name}"
    frame.write.mode("overwrite").parquet(path)
    return run.spark.read.schema(frame.schema).parquet(path)


def _frame(spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> DataFrame:
    return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in rows], spark_schema(schema))


def _count(answers: _Answers, counts: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a system's questions; a row that is no question has failed."""
    outcome = F.when(is_unasked(), "unasked").when(has_failed(), "failed").otherwise("answered")
    found = {row["outcome"]: row["count"] for row in answers.rows.groupBy(outcome.alias("outcome")).count().collect()}
    found["failed"] = found.get("failed", 0) + counts["invalid"]
    numbers = {name: found.get(name, 0) for name in STATUSES}
    return {
        "system": answers.system.name,
        "model": answers.system.stage.model,
        "questions": counts["questions"],
        **numbers,
    }


def _count_all(systems: Sequence[Mapping[str, Any]], failures: DataFrame) -> dict[str, Any]:
    asked = failures.where(F.col("stage") == STAGE)
    return {
        "statuses": {status: sum(row[name] for row in systems) for name, status in STATUSES.items()},
        "failures": asked.count(),
        "passing_failures": asked.where(is_transient()).count(),
    }


def _exit_code(run: _Run, ended: str, counts: Mapping[str, Any]) -> int:
    statuses = counts["statuses"]
    everything = {"statuses": statuses, "scores": sum(statuses.values())}
    return exit_code(ended, everything, run.request.settings.fail_on_error)


def show_systems(outcome: GenerateOutcome, output: str) -> None:
    """Prints what became of the questions, and how to go on."""
    if outcome.unchanged:
        print("nothing left to ask; the tables are as they were")
    print(f"{'system':28} {'model':28} {'questions':>9} {'answered':>9} {'failed':>7} {'unasked':>8}")
    for row in outcome.systems:
        counts = f"{row['questions']:>9,} {row['answered']:>9,} {row['failed']:>7,} {row['unasked']:>8,}"
        print(f"{row['system'][:28]:28} {row['model'][:28]:28} {counts}")
    print(f"tables: {', '.join(f'{output}/{name}' for name in TABLES)}")
    if any(row["answered"] for row in outcome.systems):
        print(f"next: untold score --input {output}/samples --output DIR --metric LIST")
    sys.stdout.flush()
