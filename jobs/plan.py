"""What a run would ask and cost, before it does: the metric's own code, asked by a planner that calls nobody."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from graph.distributed import Condensed
from jobs.asking import local_model, store
from jobs.asking.prompts import bind_stage
from jobs.asking.runner import add_ids, add_pairs, attach_texts, carried_columns, cost_of, result_schema
from jobs.inputs.samples import read_samples
from jobs.metrics import METRICS
from jobs.metrics.base import Tools
from jobs.metrics.contexts import condense_contexts
from jobs.run.progress import Display
from jobs.run.session import open_session, spark_schema
from jobs.score import absolute, show_invalid, stages_of
from jobs.settings.model import LlmSettings, Settings
from jobs.tables import COMPLETIONS
from udfs.llm.keys import Stage
from udfs.llm.templates import compile_prompt
from udfs.llm.tokens import estimate_tokens
from udfs.stages.arrow import measure_prompts, parse_completions

MARK = "\uffff"
SKIPPING = ("classify_relation",)
COMPLETION_LIMITS = ("max_completion_tokens", "max_tokens")
# A model's own limit is not known; where a stage sends none, the default of llm.max_tokens stands for it.
UNLIMITED_COMPLETION_TOKENS = int(LlmSettings.model_fields["max_tokens"].default)
MINUTES_PER_HOUR = 60
CLASSES = "graph string, node long, statement long, representative boolean, covered boolean, in_basis boolean"
COUNTS = "graph string, covered long, uncovered long, low double, high double"

# What stands for the result of a request that was not answered, so that the stages after it are counted too: never
# fewer and never shorter than what could come. The mark keeps it from being taken for a text that the store knows.
# An atom takes two words at least and a question three of what it asks about; of a text's answers each takes another
# word. None is often longer than `LONGEST_ATOM` characters.
WORDS_OF_AN_ATOM = 2
WORDS_OF_A_QUESTION = 3
LONGEST_ATOM = 300
STAND_INS: Mapping[str, Callable[[Settings], Mapping[str, Column]]] = {
    "summarise_context": lambda _: {"summary": F.concat("text", F.lit(MARK))},
    "evaluate_coverage": lambda _: {"statements": F.array()},
    "extract_atoms": lambda settings: {"atoms": _most_atoms(settings.nli.unit_types[0])},
    "revise_atoms": lambda _: {"atoms": F.transform("statements", lambda text: F.concat(text, F.lit(MARK)))},
    "rate_relevance": lambda _: {"ratings": F.transform("statements", lambda _: F.lit(5.0)), "weighted": F.lit(True)},
    "classify_relation": lambda _: {"relation": F.lit(None)},
    "mine_questions": lambda _: {"questions": F.concat(F.array("query"), _different_texts(WORDS_OF_A_QUESTION))},
    "refine_questions": lambda _: {
        "questions": F.transform("questions", lambda text: F.concat(text, F.lit(MARK))),
        "ratings": F.transform("questions", lambda _: F.lit(5.0)),
        "weighted": F.lit(True),
    },
    "answer_questions": lambda _: {
        "answers": _all_to_the_first(_different_texts(1)),
        "confidences": _all_to_the_first(F.transform(_different_texts(1), lambda _: F.lit(5.0))),
        "weighted": F.lit(True),
    },
    "compare_answers": lambda _: {"relation": F.lit(None)},
}


def _most_atoms(unit_type: str) -> Column:
    """As many different atoms as a text can have, each beginning as it does."""
    return F.transform(
        _different_texts(WORDS_OF_AN_ATOM),
        lambda text: F.struct(text.alias("text"), F.lit(unit_type).alias("unit_type")),
    )


def _different_texts(words: int) -> Column:
    """One for so many words of a text, each beginning as it does."""
    count = F.ceil(F.size(F.split(F.trim("text"), r"\s+")) / words).cast("int")
    text = F.substring("text", 1, LONGEST_ATOM)
    return F.transform(
        F.sequence(F.lit(1), count),
        lambda number: F.concat(F.lit(MARK), number.cast("string"), F.lit(MARK), text),
    )


def _all_to_the_first(items: Column) -> Column:
    """The items as the answers to the first question, where they make the most pairs; none to the others."""
    nothing = F.transform(F.slice("questions", 2, F.size("questions")), lambda _: F.slice(items, 1, 0))
    return F.concat(F.array(items), nothing)


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
    retry_failed: bool = False

    @property
    def store(self) -> str | None:
        """Where completions are looked for; None where no store and no output is named."""
        if self.settings.store:
            return absolute(self.settings.store)
        return f"{self.output}/completions" if self.output else None


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
    spark = open_session(settings)
    found = read_samples(spark, request.input, format=request.format, limit=request.limit)
    show_invalid(found, Display())
    planner = Planner(spark, settings, stages, request.store, retry_failed=request.retry_failed)
    valid = planner.keep(found.samples.join(found.invalid.select("sample_id"), on="sample_id", how="left_anti"))
    for metric in request.metrics:
        tools = planner.begin(metric)
        contexts = condense_contexts(valid, tools.ask, summarise=settings.summarise_contexts)
        METRICS[metric].score(valid, contexts, tools, _without_waves(settings))
    return planner.rows


def _embedded_sha256(settings: Settings) -> str:
    """The sha256 of the embedded model's file, which is not put together for a plan, nor remembered."""
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


class Planner:
    """Stands in for the runner of stages: counts what it would ask, and reads what the store knows."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        stages: Mapping[str, Stage],
        store_path: str | None,
        *,
        retry_failed: bool = False,
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self._spark, self._settings, self._stages, self._store = spark, settings, stages, store_path
        self._retry_failed = retry_failed
        self._counted: dict[str, DataFrame] = {}
        self._exact = True

    def begin(self, metric: str) -> Tools:
        """The tools of a metric. What was counted for the metrics before it counts as reused."""
        self._exact = True
        return Tools(partial(self._ask, metric), partial(self._ask_pairs, metric), self._keep_named, self._condense)

    def keep(self, frame: DataFrame) -> DataFrame:
        """The frame, computed once where it is read at all, in memory and Spark's temporary folder.

        Its plan is cut off: each stage reads the one before several times, and their plans would grow exponentially.
        """
        return frame.localCheckpoint(eager=False)

    def _keep_named(self, name: str, frame: DataFrame) -> DataFrame:
        return self.keep(frame)

    def _condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Nothing: a plan ends where everything is asked."""
        return Condensed(self._spark.createDataFrame([], CLASSES), self._spark.createDataFrame([], COUNTS))

    def _ask(self, metric: str, name: str, rows: DataFrame, bound: DataFrame | None = None) -> DataFrame:
        """Counts the requests of the rows and gives results as `StageRunner.ask` does, stand-ins among them."""
        stage = self._stages[name]
        keys = carried_columns(stage, rows)
        if bound is not None and not self._exact:
            self._count_bound(metric, stage, bound)
            return self._spark.createDataFrame([], result_schema(stage, add_ids(stage, rows, keys), keys))
        keyed = self.keep(add_ids(stage, rows, keys))

        def texts_of(requests: DataFrame) -> DataFrame:
            wanted = keyed.join(requests, on="request_id", how="left_semi")
            return wanted.dropDuplicates(["request_id"]).select(*stage.variables)

        return self._count_requests(metric, stage, keyed, keys, texts_of)

    def _ask_pairs(self, metric: str, name: str, owners: DataFrame, choose: Callable[..., Any]) -> DataFrame:
        """Counts the requests of pairs: one by one where the atoms are known, else by formula, without making them."""
        stage = self._stages[name]
        keys = ("owner", "source", "target")
        if not self._exact:
            self._count_pairs(metric, stage, owners)
            return self._spark.createDataFrame([], result_schema(stage, add_pairs(stage, owners, choose), keys))
        keyed = self.keep(add_pairs(stage, owners, choose))

        def texts_of(requests: DataFrame) -> DataFrame:
            wanted = keyed.join(requests, on="request_id", how="left_semi").dropDuplicates(["request_id"])
            return attach_texts(stage, wanted, owners).select(*stage.variables)

        return self._count_requests(metric, stage, keyed, keys, texts_of)

    def _count_requests(
        self,
        metric: str,
        stage: Stage,
        keyed: DataFrame,
        keys: tuple[str, ...],
        texts_of: Callable[[DataFrame], DataFrame],
    ) -> DataFrame:
        ids = self.keep(keyed.select("request_id").distinct())
        known = self._completions(stage).join(ids, on="request_id", how="left_semi")
        missing = self.keep(self._missing(ids, known))
        before = self._counted.get(stage.name)
        asked = missing if before is None else missing.join(before, on="request_id", how="left_anti")
        self._counted[stage.name] = ids if before is None else before.unionByName(ids)
        requests, to_ask = ids.count(), asked.count()
        prompt_tokens = _measure(stage, texts_of(asked)) if to_ask else 0
        self._add_row(metric, stage, requests, to_ask, prompt_tokens)
        if not missing.isEmpty():
            self._exact = False
        stand_ins = STAND_INS[stage.name](self._settings)
        return self.keep(_results(stage, keys, keyed, known, missing, stand_ins))

    def _count_pairs(self, metric: str, stage: Stage, owners: DataFrame) -> None:
        """2 * R * C + C * (C - 1) pairs an owner, each as long as with its longest texts."""
        pairs = F.col("to_contexts") + F.col("between_contexts") + F.col("to_responses")
        longest = F.array_max(F.transform("texts", lambda text: F.octet_length(text)))
        bound = owners.select(pairs.alias("requests"), (len(stage.variables) * longest).alias("bytes"))
        self._count_bound(metric, stage, bound)

    def _count_bound(self, metric: str, stage: Stage, bound: DataFrame) -> None:
        """Columns requests and bytes: so many requests, the variables of each together so long."""
        row = bound.select(F.sum("requests"), F.sum(F.col("requests") * F.col("bytes"))).first()
        count, size = (int(value or 0) for value in row) if row else (0, 0)
        prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
        frame = prompt.characters(dict.fromkeys(stage.variables, ""))
        self._add_row(metric, stage, count, count, count * estimate_tokens(frame) + estimate_tokens(size))

    def _completions(self, stage: Stage) -> DataFrame:
        if self._store is None:
            return self._spark.createDataFrame([], spark_schema(COMPLETIONS))
        return store.read_completions(self._spark, store.stage_folder(self._store, stage))

    def _missing(self, ids: DataFrame, known: DataFrame) -> DataFrame:
        """Column request_id: what a run would ask by the rule of `StageRunner`."""
        states = ids.join(store.states_of_requests(known), on="request_id", how="left")
        return store.needed(states, retry_failed=self._retry_failed)

    def _add_row(self, metric: str, stage: Stage, requests: int, to_ask: int, prompt_tokens: int) -> None:
        completion_tokens = to_ask * completion_limit(stage)
        self.rows.append(
            {
                "metric": metric,
                "stage": stage.name,
                "requests": requests,
                "exact": self._exact and not (stage.name in SKIPPING and self._settings.nli.skip_implied and to_ask),
                "reused": requests - to_ask,
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "cost": cost_of(
                    self._settings, {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
                ),
                "hours": hours_of(self._settings.llm, to_ask, prompt_tokens + completion_tokens),
            }
        )


def _measure(stage: Stage, texts: DataFrame) -> int:
    tokens = texts.mapInArrow(partial(measure_prompts, stage=stage), "tokens long").agg(F.sum("tokens")).first()
    return int(tokens[0] or 0) if tokens else 0


def _without_waves(settings: Settings) -> Settings:
    """The settings with all pairs in one wave: which of them will be implied is not known before they are asked."""
    return settings.model_copy(update={"nli": settings.nli.model_copy(update={"skip_implied": False})})


def _results(
    stage: Stage,
    keys: tuple[str, ...],
    keyed: DataFrame,
    known: DataFrame,
    missing: DataFrame,
    stand_ins: Mapping[str, Column],
) -> DataFrame:
    """Columns `keys`, request_id, the stage's output, error_type, error: parsed where known, stand-ins elsewhere."""
    schema = result_schema(stage, keyed, keys)
    best = store.one_a_request(known).drop("model")
    answered = (
        keyed.join(missing, on="request_id", how="left_anti")
        .join(best, on="request_id", how="left")
        .mapInArrow(partial(parse_completions, stage=stage.name, keys=keys), schema)
    )
    assumed = keyed.join(missing, on="request_id", how="left_semi").select(
        *keys,
        "request_id",
        *[
            stand_ins.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in schema.fields[len(keys) + 1 :]
        ],
    )
    return answered.unionByName(assumed)


def completion_limit(stage: Stage) -> int:
    """The most tokens that a completion of the stage may have, as it is asked for."""
    sent = (stage.decoding.get(name) for name in COMPLETION_LIMITS)
    return next((limit for limit in sent if isinstance(limit, int)), UNLIMITED_COMPLETION_TOKENS)


def hours_of(llm: LlmSettings, requests: int, tokens: int) -> float | None:
    """Hours that the limits alone would take for so many requests and tokens; None where there is no limit."""
    limited = ((requests, llm.requests_per_minute), (tokens, llm.tokens_per_minute))
    minutes = [amount / limit for amount, limit in limited if limit is not None]
    return max(minutes) / MINUTES_PER_HOUR if minutes else None


COLUMNS = ("metric", "stage", "", "requests", "reused", "prompt tokens", "completion tokens", "cost", "hours")
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
    counts = [f"{row[name]:,}" for name in ("requests", "reused", "prompt_tokens", "completion_tokens")]
    amounts = ["-" if row[name] is None else f"{row[name]:,.2f}" for name in ("cost", "hours")]
    return row["metric"], row["stage"], "=" if row["exact"] else "<=", *counts, *amounts


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of all rows; stages are asked one after the other, so hours add up too."""
    names = ("requests", "reused", "prompt_tokens", "completion_tokens", "cost", "hours")
    known = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    sums = {name: sum(values) if values else None for name, values in known.items()}
    return {"metric": "total", "stage": "", "exact": all(row["exact"] for row in rows), **sums}
