"""Generate the responses of several systems to questions for scoring: `untold generate` (methods, section 8)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import RunEndpoint
from untold.jobs.inference.stage.requests import failure_rows, has_failed, invalid_rows, is_unasked
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inference.stage.start import Outcome, RunRequest, Start, open_endpoint, open_start
from untold.jobs.inputs.options import GenerateOptions
from untold.jobs.inputs.questions import read_questions
from untold.jobs.inputs.reading import column_named
from untold.jobs.inputs.samples import SampleError, Samples, fingerprint, show_invalid
from untold.jobs.run import manifest
from untold.jobs.run.output import shown
from untold.jobs.run.terminal import Display, RunProgress, page_of, print_lines, table
from untold.jobs.run_tables import place_of_table
from untold.jobs.settings.loading import Resolved, SystemsError
from untold.jobs.settings.model import Settings
from untold.jobs.settings.templates import explain_profile
from untold.jobs.tables import USAGE
from untold.udfs.llm.keys import Stage
from untold.udfs.redaction import redact

STAGE = "generate_answer"
TABLES = ("samples", "failures", "usage")
USAGE_OF_SYSTEMS = pa.schema([("system", pa.string()), *USAGE])
# The columns of a sample come first, in the order of the contract. The other columns of the question follow
LEADING = ("sample_id", "query", "response", "contexts", "system", "question_id")
# The outcome of a question, and its status for fail_on_error and the exit code
STATUSES = {"answered": "ok", "failed": "failed", "unasked": "budget"}


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(RunRequest, GenerateOptions):
    """The request of `untold generate`, with the settings of one of the systems, which only differ in `llm.*`."""

    systems: Mapping[str, Resolved]


@dataclass(frozen=True)
class _System:
    """A system with its settings, its stage and its endpoint."""

    name: str
    settings: Settings
    stage: Stage
    endpoint: RunEndpoint


@dataclass(frozen=True)
class _SystemAnswers:
    """The responses of a system: sample_id of the question, request_id, answer, error_type, error."""

    system: _System
    runner: StageRunner
    rows: DataFrame


@dataclass(frozen=True)
class _Generating:
    """The common data of the steps of an attempt."""

    start: Start
    request: GenerateRequest
    systems: Sequence[_System]


def generate(request: GenerateRequest, display: Display) -> Outcome:
    """Write samples, failures, usage and a manifest. Raise errors of one line that a user can fix.

    `samples` has a row per response: sample_id (`<question_id>:<system>`), query, response, contexts, system,
    question_id, then the columns of the question. A failed response has no row.

    All systems answer the same questions, one system after the other. Methods, section 8.
    """
    request = request.pinned()
    with request.open_output(TABLES, request.contexts) as output, ExitStack() as endpoints:
        systems = [_bind(name, given, request, display, endpoints) for name, given in request.systems.items()]
        _check_distinct(systems)
        for line in dict.fromkeys(explain_profile(one.settings, [STAGE], lambda _: False) for one in systems):
            if line is not None:
                display.note(line)
        with open_start(request, output, display) as start:
            return _generate(_Generating(start, request, systems))


def _bind(name: str, given: Resolved, request: GenerateRequest, display: Display, stack: ExitStack) -> _System:
    """Return a system with its stage and its endpoint, which `stack` closes."""
    endpoint = open_endpoint(request, display, settings=given.settings, embedded=given.embedded)
    stack.enter_context(endpoint)
    stage = bind_stage(STAGE, given.settings, embedded_model=endpoint.model_sha256)
    return _System(name, given.settings, stage, endpoint)


def _check_distinct(systems: Sequence[_System]) -> None:
    """Raise SystemsError for two systems with the same requests, because they would share all completions."""
    first: dict[str, str] = {}
    for system in systems:
        same = first.setdefault(system.stage.digest, system.name)
        if same != system.name:
            raise SystemsError(
                f"systems {same} and {system.name} have the same model, decoding and template, so they share all "
                "completions (the address is not part of a request). Remove one, or set different llm.model"
            )


def _generate(run: _Generating) -> Outcome:
    """Run one attempt: read the questions, claim the output, run each system, and write. A complete output stays."""
    start, request = run.start, run.request
    found, notes = read_questions(
        start.spark,
        request.input,
        contexts=request.contexts,
        format=request.format,
        limit=request.limit,
        draw=request.draw,
        options=request.read,
    )
    for note in notes:
        start.display.note(note)
    show_invalid(found, start.display, "row cannot be answered", "rows cannot be answered")
    if request.closed_book and found.samples.where(F.size("contexts") > 0).isEmpty():
        raise SampleError(f"{request.input}: no question has contexts. Run without --closed-book")
    digests = {system.name: system.stage.digest for system in run.systems}
    content = fingerprint(found.samples)
    results = {"systems": digests, **({"closed_book": True} if request.closed_book else {})}
    start.output.claim({"input": content, "metrics": [], "results": results, "stages": {}})
    if unchanged := start.unchanged():
        return unchanged
    _begin(run, found, content)
    # The process of the actors starts while Spark prepares the requests
    start.engines.prepare()
    questions = start.workspace.keep(found.samples, "questions")
    invalid = start.workspace.keep(found.invalid, "invalid")
    # The rows are on the disks of workers. If a worker is lost, Spark reads the file again, which may have changed
    if fingerprint(questions) != content:
        raise SampleError(f"{request.input} changed while it was read; start again")
    answers = _ask_systems(run, questions.join(invalid, on="sample_id", how="left_anti"))
    start.engines.process.leave()
    return _finish(start, questions, invalid, answers)


def _begin(run: _Generating, found: Samples, content: str) -> None:
    """Write the manifest as `running`, with the model settings and digests of each system, and without secrets."""
    request = run.request
    run.start.begin(
        shown(request.settings, exclude={"llm"}),
        input=request.shown_input(content, contexts=request.contexts, closed_book=request.closed_book),
        llm={system.name: shown(system.settings, include={"llm"})["llm"] for system in run.systems},
        template_digests=manifest.template_digests({system.name: system.stage for system in run.systems}),
        embedded_models={system.name: system.endpoint.model_sha256 for system in run.systems},
        counts={"questions": found.row_count, "invalid": found.invalid_count, "duplicates": found.duplicates},
        systems=[],
    )


def _ask_systems(run: _Generating, questions: DataFrame) -> list[_SystemAnswers]:
    """Return the responses of the systems in order. If a system ends the run, the next systems are not run."""
    # Prompts contain only texts. The ids of contexts come from the question
    texts = F.transform("contexts", lambda context: context["text"])
    if run.request.format is not None:
        # For a data set without contexts. A system would have to respond to an empty list that nothing is relevant
        texts = F.when(F.size("contexts") > 0, texts)
    if run.request.closed_book:
        texts = F.lit(None).cast("array<string>")
    rows = questions.select("sample_id", "query", texts.alias("contexts"))
    answers: list[_SystemAnswers] = []
    display = run.start.display
    display.course = RunProgress(len(run.systems))
    for system in run.systems:
        display.note(f"system {system.name}: {system.stage.model}")
        display.course.enter(system.name)
        runner = _runner(run, system, answers[-1].runner if answers else None)
        answers.append(_SystemAnswers(system, runner, runner.ask(STAGE, rows, carry=("sample_id",))))
        # The server of a local model frees its memory before the next one starts
        system.endpoint.close()
    return answers


def _runner(run: _Generating, system: _System, before: StageRunner | None) -> StageRunner:
    """Return the runner of a system, with the usage of the earlier systems."""
    runner = run.start.runner(
        {STAGE: system.stage},
        system.endpoint,
        settings=system.settings,
        workspace=run.start.workspace.within(f"system-{run.systems.index(system)}"),
        answered_before=_has_answered(system.name, run.start.output.manifest["starts"]),
    )
    if before is not None:
        # A budget is for all systems together, and a run that ended sends no requests of further systems
        runner.follow(before)
    return runner


def _has_answered(system: str, starts: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if an earlier attempt has a completion of the system.

    Without one, a 403, a 404 or an unknown model ends the run at once (docs/contract.md, "Runs, outputs, stores").
    """
    return any(row["answered"] for start in starts for row in start["usage"] if row["system"] == system)


def _finish(start: Start, questions: DataFrame, invalid: DataFrame, answers: Sequence[_SystemAnswers]) -> Outcome:
    """Write the tables and end the run."""
    samples = [make_samples(questions, one.rows, one.system.name) for one in answers]
    failures = [make_failures(one.rows, invalid, one.system.name) for one in answers]
    start.output.write("samples", reduce(DataFrame.unionByName, samples), order=("sample_id",))
    counts = start.write_failures(reduce(DataFrame.unionByName, failures))
    systems = [_count(one, start.output.manifest["counts"]) for one in answers]
    statuses = {status: sum(row[name] for row in systems) for name, status in STATUSES.items()}
    usage = [{"system": one.system.name, **row} for one in answers for row in one.runner.usage]
    runners = [one.runner for one in answers]
    ended = start.end(runners, {**counts, "statuses": statuses}, usage, USAGE_OF_SYSTEMS, systems=systems)
    stopped = next((one.system.name for one in answers if one.runner.ended), None)
    return replace(ended, message=f"system {stopped}: {ended.message}") if stopped else ended


def make_samples(questions: DataFrame, answers: DataFrame, system: str) -> DataFrame:
    """Return the rows of the table `samples` of a system: `LEADING`, then the other columns of the questions.

    There is a row per response. questions: sample_id (of the question), query, contexts and other columns. answers:
    sample_id, answer, error_type.
    """
    got = answers.where(F.col("error_type").isNull()).select("sample_id", F.col("answer").alias("response"))
    rest = [column_named(name) for name in questions.columns if name not in LEADING]
    joined = questions.join(got, on="sample_id", how="inner").withColumnRenamed("sample_id", "question_id")
    return joined.withColumn("sample_id", _sample_id("question_id", system)).select(
        *LEADING[:4], F.lit(system).alias("system"), "question_id", *rest
    )


def make_failures(answers: DataFrame, invalid: DataFrame, system: str) -> DataFrame:
    """Return the rows of the table `failures` of a system: failed requests, and invalid rows.

    answers: sample_id (of the question), request_id, error_type, error. invalid: sample_id, error.
    """
    both = failure_rows(None, STAGE, answers).unionByName(invalid_rows(invalid))
    return both.withColumn("sample_id", _sample_id("sample_id", system))


def _sample_id(question_id: str, system: str) -> Any:
    """Return `<question_id>:<system>`, because a question has a sample for each system."""
    return F.concat_ws(":", question_id, F.lit(system))


def _count(answers: _SystemAnswers, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome of the questions of a system, as a row of the manifest and of the printed table.

    The fields are system, model, questions, answered, failed and unasked. Invalid rows count as failed.
    """
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


def show_systems(outcome: Outcome, request: RunRequest) -> None:
    """Print the outcome of the questions, and the next command."""
    if outcome.unchanged:
        print("Nothing to do. The results are unchanged")
    systems, counts = outcome.manifest["systems"], ("questions", "answered", "failed", "unasked")
    rows = [[row["system"], row["model"], *(f"{row[name]:,}" for name in counts)] for row in systems]
    heads = ["system", "model", *counts[:-1], "not asked"]
    print_lines([*table(heads, rows, page_of(sys.stdout), names=2), redact(f"results: {request.output}")])
    if any(row["answered"] for row in systems):
        samples = shlex.quote(str(place_of_table(request.output, outcome.manifest, "samples")))
        print_lines([redact(f"next: untold score --input {samples} --output DIR --metric LIST")])
