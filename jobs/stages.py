"""Runs a stage over a DataFrame: distinct, anti-join, answer, join, parse. Each step is materialised as Parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from jobs import store
from jobs.answer import Job
from jobs.answering import AnsweringError, AnsweringProcess
from jobs.interrupts import Interrupts
from jobs.locks import FolderLock
from jobs.progress import Display
from jobs.session import fields_of, spark_schema
from jobs.settings import Settings
from jobs.tables import COMPLETIONS
from udfs.llm.asking import CallSettings, Tally
from udfs.llm.keys import Stage
from udfs.llm.limiter import Budget, Limits, Spent
from udfs.llm.segments import is_local, open_filesystem
from udfs.stages import STAGES
from udfs.stages.arrow import add_request_ids, parse_completions

UNIT_ROWS = 2000
UNITS_OF_AN_ACTOR = 4
REQUESTS_PER_SECOND_AND_ACTOR = 1000
STRING = T.StringType()


def call_settings(settings: Settings, base_url: str, store_path: str) -> CallSettings:
    """How the endpoint is called, from the settings."""
    llm, budget = settings.llm, settings.budget
    flush = llm.flush_seconds or (1.0 if is_local(store_path) else 10.0)
    return CallSettings(
        base_url=base_url,
        api_key_env=llm.api_key_env,
        timeout=llm.timeout_seconds,
        deadline=llm.deadline_seconds,
        outage=llm.outage_minutes * 60,
        max_attempts=llm.max_attempts,
        flush=flush,
        prompt_price=llm.price_per_million_prompt_tokens or 0.0,
        completion_price=llm.price_per_million_completion_tokens or 0.0,
        limits=Limits(llm.requests_per_minute, llm.tokens_per_minute, llm.max_in_flight),
        budget=Budget(budget.max_calls, budget.max_tokens, budget.max_cost),
    )


def count_actors(settings: Settings) -> int:
    """`llm.actors`, or one for each thousand requests a second of the limit; one without a limit."""
    limit = settings.llm.requests_per_minute
    return settings.llm.actors or max(1, -(-int(limit or 0) // (60 * REQUESTS_PER_SECOND_AND_ACTOR)))


def carried_columns(stage: Stage, rows: DataFrame) -> tuple[str, ...]:
    """The columns of rows that are not variables of the stage."""
    return tuple(column for column in rows.columns if column not in stage.variables)


def add_ids(stage: Stage, rows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Columns `keys`, the stage's variables, request_id."""
    ordered = rows.select(*keys, *stage.variables)
    schema = T.StructType([*fields_of(ordered, ordered.columns), T.StructField("request_id", STRING)])
    return ordered.mapInArrow(partial(add_request_ids, stage=stage), schema)


def result_schema(stage: Stage, rows: DataFrame, keys: tuple[str, ...]) -> T.StructType:
    """Columns `keys`, request_id, the stage's output, error_type, error: what asking a stage gives."""
    output = spark_schema(STAGES[stage.name].output)
    errors = [T.StructField(name, STRING) for name in ("error_type", "error")]
    return T.StructType([*fields_of(rows, (*keys, "request_id")), *output.fields, *errors])


@dataclass
class StageRunner:
    """Asks the stages of one run. It stops asking, and only reads what is known, once `ended` is set.

    `ended`: None, `budget`, `outage`, `interrupted`, `refused` or `broken` (these two with `error`).
    """

    spark: SparkSession
    settings: Settings
    stages: Mapping[str, Stage]
    work: str
    store: str
    run: str
    open_process: Callable[[], AnsweringProcess]
    base_url: Callable[[], str]
    display: Display
    retry_failed: bool = False
    wait: bool = True
    answered_before: bool = False
    interrupts: Interrupts = field(default_factory=Interrupts)
    ended: str | None = None
    error: str | None = None
    spent: Spent = field(default_factory=Spent)
    usage: list[dict[str, Any]] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    damaged_files: int = 0

    def ask(self, name: str, rows: DataFrame) -> DataFrame:
        """The stage's results for the rows: their other columns, request_id, the stage's output, error_type, error.

        Columns named after the stage's variables are its variables; the others are carried. A row whose request was
        not asked has the error_type `unasked`.
        """
        stage = self.stages[name]
        keys = carried_columns(stage, rows)
        with_ids = add_ids(stage, rows, keys).withColumn("request_row", F.monotonically_increasing_id())
        keyed = self._write(with_ids, f"{stage.name}/keyed")
        folder = store.stage_folder(self.store, stage)
        ids = keyed.select("request_id").distinct().persist(StorageLevel.MEMORY_AND_DISK)
        try:
            before = self._write(self._states(ids, folder), f"{stage.name}/states")
            outcome = self._answer_missing(stage, keyed, before, folder)
            results = self._write_results(stage, keyed, keys, folder)
            self._account(stage, ids, folder, outcome)
        finally:
            ids.unpersist()
        return results

    def _states(self, ids: DataFrame, folder: str) -> DataFrame:
        """Columns request_id, state: what the store has for each id, null where nothing."""
        completions = store.read_completions(self.spark, folder).select("request_id", "error_type")
        known = completions.join(ids, on="request_id", how="left_semi")
        return ids.join(store.states_of_requests(known), on="request_id", how="left").select("request_id", "state")

    def _answer_missing(self, stage: Stage, keyed: DataFrame, states: DataFrame, folder: str) -> _Answered:
        counts = {row["state"]: row["count"] for row in states.groupBy("state").count().collect()}
        reused = counts.get("ok", 0)
        missing = counts.get(None, 0) + counts.get("passing", 0)
        missing += counts.get("lasting", 0) if self.retry_failed else 0
        if self.interrupts.requested:
            self.ended = self.ended or "interrupted"
        if not missing or self.ended:
            return _Answered(reused)
        try:
            return self._answer_locked(stage, keyed, states, folder, reused)
        except KeyboardInterrupt:
            if not self.interrupts.requested:
                raise
            self.ended = "interrupted"
        except AnsweringError as error:
            self.ended, self.error = "broken", str(error)
        return _Answered(reused)

    def _answer_locked(self, stage: Stage, keyed: DataFrame, states: DataFrame, folder: str, reused: int) -> _Answered:
        """Answers as the one spender of the stage's folder; where it had to wait, it looks again what is missing."""
        with ExitStack() as stack:
            lock = self._lock(folder)
            with self.interrupts.waiting():
                base_url = self.base_url()
                if lock is not None:
                    stack.enter_context(lock)
            if lock is not None and lock.waited:
                ids = keyed.select("request_id").distinct()
                states = self._write(self._states(ids, folder), f"{stage.name}/states-after-waiting")
                reused = states.where(F.col("state") == "ok").count()
            requests = self._write_requests(stage, keyed, store.needed(states, retry_failed=self.retry_failed))
            if requests is None:
                return _Answered(reused)
            process = self.open_process()
            if lock is not None:
                lock.add_process(process.pid)
            event = self._answer(stage, requests, folder, process, base_url)
        store.compact(self.spark, folder, self.run)
        return _Answered(reused, event)

    def _lock(self, folder: str) -> FolderLock | None:
        if not is_local(folder):
            return None
        return FolderLock(open_filesystem(folder)[1], self.run, wait=self.wait, notify=self.display.note)

    def _write_requests(self, stage: Stage, keyed: DataFrame, missing: DataFrame) -> str | None:
        """Writes one row a missing request, in files of one unit of work; None where nothing is missing."""
        count = missing.count()
        if not count:
            return None
        first = keyed.groupBy("request_id").agg(F.min("request_row").alias("request_row"))
        wanted = first.join(missing, on="request_id", how="left_semi").select("request_row")
        rows = keyed.join(wanted, on="request_row", how="left_semi").select("request_id", *stage.variables)
        path = f"{self.work}/{stage.name}/requests"
        ordered = rows.orderBy(*stage.variables, "request_id")
        ordered.write.mode("overwrite").option("maxRecordsPerFile", self._rows_of_a_unit(count)).parquet(path)
        return path

    def _rows_of_a_unit(self, requests: int) -> int:
        """As many as the architecture allows, less where actors would stand idle."""
        return max(1, min(UNIT_ROWS, -(-requests // (UNITS_OF_AN_ACTOR * count_actors(self.settings)))))

    def _answer(
        self, stage: Stage, requests: str, folder: str, process: AnsweringProcess, base_url: str
    ) -> dict[str, Any]:
        job = Job(
            requests=requests,
            directory=folder,
            run=self.run,
            stage=stage,
            settings=call_settings(self.settings, base_url, self.store),
            actors=count_actors(self.settings),
            spent=self.spent,
            answered_before=self.answered_before or bool(self.models),
            confirm_probes=self._spans_nodes(),
        )
        self.display.start(stage.name)
        event = process.answer(job, lambda progress: self.display.show(progress, job.settings), self._read_probes)
        self.display.end()
        tally = event["tally"]
        tokens = tally["prompt_tokens"] + tally["completion_tokens"]
        cost = job.settings.cost(tally["prompt_tokens"], tally["completion_tokens"])
        self.spent += Spent(tally["calls"], tokens, cost)
        self.models.update(event["models"])
        if event["outcome"] != "finished":
            self.ended, self.error = event["outcome"], event["error"]
        return event

    def _spans_nodes(self) -> bool:
        """Whether Spark and Ray may run on machines with other disks."""
        master = self.settings.spark.master or ""
        return self.settings.ray.address is not None or not master.startswith("local")

    def _read_probes(self, uris: list[str]) -> None:
        """Raises AnsweringError where Spark cannot read what an actor wrote: completions would be paid for and lost."""
        try:
            self.spark.read.schema(spark_schema(COMPLETIONS)).parquet(*uris).count()
        except PySparkException as error:
            raise AnsweringError(
                f"Spark cannot read what the answering actors write to {self.store}: "
                "set store (or --output) to a path that all machines share"
            ) from error

    def _write_results(self, stage: Stage, keyed: DataFrame, keys: tuple[str, ...], folder: str) -> DataFrame:
        rows = keyed.drop("request_row")
        ids = rows.select("request_id").distinct()
        completions = store.read_completions(self.spark, folder).join(ids, on="request_id", how="left_semi")
        best = store.one_a_request(completions).drop("model")
        parsed = rows.join(best, on="request_id", how="left").mapInArrow(
            partial(parse_completions, stage=stage.name, keys=keys), result_schema(stage, rows, keys)
        )
        self.damaged_files += store.count_damaged(folder)
        return self._write(parsed, f"{stage.name}/results")

    def _account(self, stage: Stage, ids: DataFrame, folder: str, answered: _Answered) -> None:
        after = self._states(ids, folder)
        counts = {row["state"]: row["count"] for row in after.groupBy("state").count().collect()}
        tally = answered.tally
        priced = self.settings.llm.price_per_million_prompt_tokens is not None
        priced = priced or self.settings.llm.price_per_million_completion_tokens is not None
        cost = call_settings(self.settings, "", self.store).cost(tally["prompt_tokens"], tally["completion_tokens"])
        self.usage.append(
            {
                "stage": stage.name,
                "model": stage.model,
                "requests": sum(counts.values()),
                "reused": answered.reused,
                "answered": counts.get("ok", 0) - answered.reused,
                "failed": counts.get("lasting", 0) + counts.get("passing", 0),
                "unasked": counts.get(None, 0),
                "calls": tally["calls"],
                "retries": tally["calls"] - tally["asked"] - tally["rate_limited"],
                "rate_limited": tally["rate_limited"],
                "prompt_tokens": tally["prompt_tokens"],
                "completion_tokens": tally["completion_tokens"],
                "tokens_estimated": bool(tally["tokens_estimated"]),
                "cost": cost if priced else None,
                "seconds": answered.seconds,
            }
        )

    def _write(self, frame: DataFrame, name: str) -> DataFrame:
        path = f"{self.work}/{name}"
        frame.write.mode("overwrite").parquet(path)
        return self.spark.read.schema(frame.schema).parquet(path)


_NOTHING = asdict(Tally())


@dataclass(frozen=True)
class _Answered:
    """How many requests the store had answered before, and what the answering process reported."""

    reused: int
    event: Mapping[str, Any] | None = None

    @property
    def tally(self) -> Mapping[str, int]:
        return self.event["tally"] if self.event else _NOTHING

    @property
    def seconds(self) -> float:
        return self.event["seconds"] if self.event else 0.0
