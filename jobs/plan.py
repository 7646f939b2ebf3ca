"""What a run would ask and cost, before it does: the metric's own code, asked by a planner that calls nobody."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from graph.distributed import Condensed
from jobs.asking import local_model, store
from jobs.asking.calling import cost_of, limits_of, runs_in_tasks
from jobs.asking.prompts import bind_stage
from jobs.asking.requests import Requests, Rows, result_schema, without_requests
from jobs.inputs.drawing import Draw
from jobs.inputs.files import count_bytes
from jobs.inputs.samples import read_samples, show_invalid
from jobs.metrics import METRICS, needs_of, stages_of
from jobs.metrics.base import Assumptions
from jobs.metrics.contexts import condense_contexts
from jobs.run.output import store_of
from jobs.run.progress import Display
from jobs.run.session import SMALL_BYTES, open_session, spark_schema
from jobs.settings.model import LlmSettings, Settings
from jobs.tables import COMPLETIONS
from udfs.llm.keys import Stage
from udfs.llm.limiter import Limits
from udfs.llm.templates import compile_prompt
from udfs.llm.tokens import estimate_tokens
from udfs.stages import LOOKUPS
from udfs.stages.arrow import measure_prompts, reading_of

# Names under which a limit is sent; the first counts where both are
COMPLETION_LIMITS = ("max_completion_tokens", "max_tokens")
# A model's own limit is not known; where a stage sends none, the default of llm.max_tokens stands for it.
UNLIMITED_COMPLETION_TOKENS = int(LlmSettings.model_fields["max_tokens"].default)
MINUTES_PER_HOUR = 60
# The columns of `graph.distributed.Condensed`
CLASSES = "graph string, node long, statement long, representative boolean, covered boolean, in_basis boolean"
COUNTS = "graph string, covered long, uncovered long, low double, high double"


@dataclass(frozen=True)
class PlanRequest:
    """What `untold plan` was asked to do."""

    input: str
    output: str | None
    metrics: tuple[str, ...]
    settings: Settings
    embedded: bool
    format: str | None = None
    limit: int | None = None
    draw: Draw | None = None
    retry_failed: bool = False

    @property
    def store(self) -> str | None:
        """Where completions are looked for; None where no store and no output is named."""
        return store_of(self.settings, self.output or "") if self.settings.store or self.output else None


def plan(request: PlanRequest) -> list[dict[str, Any]]:
    """One row a metric and stage, in the order in which they are asked. Asks nothing and writes nothing.

    metric, stage; requests: distinct ones; exact: whether that is their number or an upper bound, as it is after a
    stage with requests still to be asked; reused: requests that this run would not ask, because the store, or an
    earlier metric of the list, has their answer or lasting failure. For the others: prompt_tokens, estimated;
    completion_tokens, at most; cost, None without a price; hours at the limits, None without a limit. Raises what
    `untold score` raises for samples, settings and templates.
    """
    settings = request.settings
    sha256 = _embedded_sha256(settings) if request.embedded else None
    names = stages_of(request.metrics, settings)
    stages = {name: bind_stage(name, settings, embedded_model=sha256) for name in names}
    paths = [path for path in (request.input, request.store) if path]
    spark = open_session(settings, small=count_bytes(*paths) < SMALL_BYTES)
    needs = needs_of(request.metrics)
    found = read_samples(
        spark, request.input, format=request.format, limit=request.limit, required=needs, draw=request.draw
    )
    show_invalid(found, Display())
    planner = Planner(spark, stages, request.store, retry_failed=request.retry_failed)
    valid = found.samples.join(found.invalid.select("sample_id"), on="sample_id", how="left_anti")
    # Read by every metric and stage; a plan has no output to write them to
    samples = valid.localCheckpoint(eager=False)
    for metric in request.metrics:
        assumed = METRICS[metric].assume(settings)
        # The tables that it gives are frames nobody reads: what a plan wants was counted on the way
        METRICS[metric].score(samples, planner.begin(metric, samples, assumed), assumed.settings)
    return planner.rows


def _embedded_sha256(settings: Settings) -> str:
    """The sha256 of the embedded model's file, which is not put together for a plan, nor remembered.

    It is part of the key, so that the store is asked for the right requests. Raises LocalModelError for a file that
    cannot be read.
    """
    if settings.llm.local_model is None:
        return local_model.MODEL_SHA256
    path = Path(settings.llm.local_model).expanduser()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise local_model.LocalModelError(
            f"llm.local_model: cannot read {path}: {error.strerror or error}; give the path of a GGUF file"
        ) from error


@dataclass
class Planner:
    """Counts what stages would ask, and reads what the store knows. `rows` are those of the plan so far.

    counted: by stage the request_ids counted so far, over metrics.
    """

    spark: SparkSession
    stages: Mapping[str, Stage]
    store: str | None
    retry_failed: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    counted: dict[str, DataFrame] = field(default_factory=dict)

    def begin(self, metric: str, samples: DataFrame, assumed: Assumptions) -> PlanningTools:
        """The tools of a metric. What was counted for the metrics before it counts as reused."""
        return PlanningTools(self, metric, samples, assumed)


@dataclass
class PlanningTools:
    """Stands in for the tools of a run. `exact`: whether all that a metric asked so far is known."""

    planner: Planner
    metric: str
    samples: DataFrame
    assumed: Assumptions
    exact: bool = True

    def contexts(self) -> DataFrame:
        """As in a run, counted for each metric."""
        return condense_contexts(self.samples, self.ask, summarise=self.assumed.settings.summarise_contexts)

    def keep(self, frame: DataFrame, name: str = "") -> DataFrame:
        """The frame, computed once where it is read at all, in memory and Spark's temporary folder.

        Its plan is cut off: each stage reads the one before several times, and their plans would grow exponentially.
        """
        return frame.localCheckpoint(eager=False)

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Nothing: a plan ends where everything is asked."""
        spark = self.planner.spark
        return Condensed(spark.createDataFrame([], CLASSES), spark.createDataFrame([], COUNTS))

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """Counts the requests and gives results as `StageRunner.ask` does, assumed ones among them."""
        bound_stage = self.planner.stages[stage]
        requests = Rows(rows, tuple(carry)) if isinstance(rows, DataFrame) else rows
        identified = requests.identify(bound_stage)
        schema = result_schema(bound_stage, identified, requests.carry)
        # Pairs of made-up texts are not generated: their number follows from a formula, and may be billions
        if requests.bound is not None and not self.exact:
            self._count_bound(bound_stage, requests.bound)
            return self.planner.spark.createDataFrame([], schema)
        kept = self.keep(identified)
        results = self._count_requests(bound_stage, requests, kept)
        return results if requests.all_asked else results.unionByName(without_requests(kept, schema, requests.carry))

    def _count_requests(self, stage: Stage, requests: Requests, identified: DataFrame) -> DataFrame:
        """Counts a stage's distinct requests and those to be asked; gives its results, known and assumed ones."""
        planner = self.planner
        asked_rows = identified.where(F.col("request_id").isNotNull())
        ids = self.keep(asked_rows.select("request_id").distinct())
        known = self._completions(stage).join(ids, on="request_id", how="left_semi")
        missing = self.keep(self._missing(ids, known))
        before = planner.counted.get(stage.name)
        # What an earlier metric of the list would ask is in the store by then
        asked = missing if before is None else missing.join(before, on="request_id", how="left_anti")
        planner.counted[stage.name] = ids if before is None else before.unionByName(ids)
        total, to_ask = ids.count(), asked.count()
        texts = requests.texts_of(stage, identified, asked).select(*stage.variables)
        self._add_row(stage, total, to_ask, _measure(stage, texts) if to_ask else 0)
        # From here on what is asked depends on answers that nobody has
        if not missing.isEmpty():
            self.exact = False
        return self.keep(_results(stage, requests.carry, asked_rows, known, missing, self.assumed.results[stage.name]))

    def _count_bound(self, stage: Stage, bound: DataFrame) -> None:
        """A row for requests that are counted by formula, where texts to count are not known.

        bound: requests, bytes: so many requests, the variables of each together so long; the template's own characters
        come on top for every request.
        """
        row = bound.select(F.sum("requests"), F.sum(F.col("requests") * F.col("bytes"))).first()
        count, size = (int(value or 0) for value in row) if row else (0, 0)
        prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
        frame = prompt.characters(dict.fromkeys(stage.variables, ""))
        self._add_row(stage, count, count, count * estimate_tokens(frame) + estimate_tokens(size))

    def _completions(self, stage: Stage) -> DataFrame:
        """Rows of `COMPLETIONS` of the stage's folder in the store; none where there is no store."""
        spark, place = self.planner.spark, self.planner.store
        if place is None:
            return spark.createDataFrame([], spark_schema(COMPLETIONS))
        return store.read_completions(spark, store.stage_folder(place, stage))

    def _missing(self, ids: DataFrame, known: DataFrame) -> DataFrame:
        """Column request_id: what a run would ask by the rule of `StageRunner`."""
        states = ids.join(store.states_of_requests(known), on="request_id", how="left")
        return store.needed(states, retry_failed=self.planner.retry_failed)

    def _add_row(self, stage: Stage, requests: int, to_ask: int, prompt_tokens: int) -> None:
        """Adds a row of the plan.

        Tokens are of the requests still to be asked: prompts estimated, completions at their limit.
        """
        settings = self.assumed.settings
        calls = -(-to_ask // settings.embeddings.batch) if stage.api == "embeddings" else to_ask
        tokens = {"prompt_tokens": prompt_tokens, "completion_tokens": to_ask * completion_limit(stage)}
        asked = not runs_in_tasks(stage, settings)
        self.planner.rows.append(
            {
                "metric": self.metric,
                "stage": stage.name,
                "requests": requests,
                "exact": self.exact and not (stage.name in self.assumed.at_most and to_ask),
                "reused": requests - to_ask,
                **tokens,
                "cost": cost_of(settings, {**tokens, "calls": calls}, stage.api) if asked else None,
                "hours": hours_of(limits_of(settings, stage.api), calls, sum(tokens.values())) if asked else None,
            }
        )


def _measure(stage: Stage, texts: DataFrame) -> int:
    """The prompt tokens of rows of a stage's variables, estimated from the rendered prompts on workers."""
    tokens = texts.mapInArrow(partial(measure_prompts, stage=stage), "tokens long").agg(F.sum("tokens")).first()
    return int(tokens[0] or 0) if tokens else 0


def _results(
    stage: Stage,
    keys: tuple[str, ...],
    keyed: DataFrame,
    known: DataFrame,
    missing: DataFrame,
    assumed: Mapping[str, Column],
) -> DataFrame:
    """Columns `keys`, request_id, the stage's output, error_type, error: parsed where known, assumed elsewhere."""
    schema = result_schema(stage, keyed, keys)
    # The model as returned is no column of results
    best = store.one_a_request(known).drop("model")
    answered = (
        keyed.join(missing, on="request_id", how="left_anti")
        .join(best, on="request_id", how="left")
        .mapInArrow(reading_of(stage.name, keys), schema)
    )
    unknown = keyed.join(missing, on="request_id", how="left_semi").select(
        *keys,
        "request_id",
        *[
            assumed.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in schema.fields[len(keys) + 1 :]
        ],
    )
    return answered.unionByName(unknown)


def completion_limit(stage: Stage) -> int:
    """The most tokens that a completion of the stage may have, as it is asked for.

    A stage that sends no limit is taken to have the default of llm.max_tokens, so that a plan has a number. Vectors and
    hits are no tokens.
    """
    if stage.name in LOOKUPS:
        return 0
    sent = (stage.decoding.get(name) for name in COMPLETION_LIMITS)
    return next((limit for limit in sent if isinstance(limit, int)), UNLIMITED_COMPLETION_TOKENS)


def hours_of(limits: Limits | LlmSettings, requests: int, tokens: int) -> float | None:
    """Hours that the limits alone would take for so many requests and tokens; None where there is no limit.

    The slower of the two limits counts: 60 requests of 2,000 tokens at 60 requests and 60,000 tokens a minute take two
    minutes, which are 0.033 hours. What the endpoint itself takes is not known.
    """
    limited = ((requests, limits.requests_per_minute), (tokens, limits.tokens_per_minute))
    minutes = [amount / limit for amount, limit in limited if limit is not None]
    return max(minutes) / MINUTES_PER_HOUR if minutes else None


COLUMNS = ("metric", "stage", "", "requests", "reused", "prompt tokens", "completion tokens", "cost", "hours")
# Columns that are set to the left; numbers stand to the right
TEXT_COLUMNS = 3


def show_plan(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the plan as a table with its totals."""
    lines = [COLUMNS, *map(_line, rows), _line(_total(rows))]
    widths = [max(len(line[place]) for line in lines) for place in range(len(COLUMNS))]
    for line in lines:
        cells = [
            cell.ljust(width) if place < TEXT_COLUMNS else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print("=: exact, <=: at most. Tokens, cost and hours are of what is still to be asked (requests - reused), without")
    print("retries; prompt tokens are estimated, completion tokens are at most. -: no price or no limit is set.")


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as cells: `=` for an exact number of requests, `<=` for an upper bound, `-` for what is not known."""
    counts = [f"{row[name]:,}" for name in ("requests", "reused", "prompt_tokens", "completion_tokens")]
    amounts = ["-" if row[name] is None else f"{row[name]:,.2f}" for name in ("cost", "hours")]
    return row["metric"], row["stage"], "=" if row["exact"] else "<=", *counts, *amounts


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of all rows; stages are asked one after the other, so hours add up too."""
    names = ("requests", "reused", "prompt_tokens", "completion_tokens", "cost", "hours")
    known = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    sums = {name: sum(values) if values else None for name, values in known.items()}
    return {"metric": "total", "stage": "", "exact": all(row["exact"] for row in rows), **sums}
