"""Runs a stage over a DataFrame: distinct, anti-join, answer, join, parse. Each step is materialised as Parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from jobs import store
from jobs.answer_job import Job
from jobs.answering import AnsweringError, AnsweringProcess
from jobs.interrupts import Interrupts
from jobs.local_model import LocalModelError
from jobs.locks import FolderLock, LockedError
from jobs.progress import Display
from jobs.session import fields_of, spark_schema
from jobs.settings import Settings
from jobs.tables import COMPLETIONS
from udfs.llm.accounts import CallSettings, Tally
from udfs.llm.keys import Stage
from udfs.llm.limiter import Budget, Limits, Spent
from udfs.llm.segments import is_local, open_filesystem
from udfs.stages import STAGES
from udfs.stages.arrow import UNASKED, add_request_ids, parse_completions

UNIT_ROWS = 2000
UNITS_OF_AN_ACTOR = 4
MODELS_NAMED = 100
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


def cost_of(settings: Settings, tokens: Mapping[str, int]) -> float | None:
    """The price of `prompt_tokens` and `completion_tokens`; None where no price is set."""
    prices = (settings.llm.price_per_million_prompt_tokens, settings.llm.price_per_million_completion_tokens)
    if prices == (None, None):
        return None
    return (tokens["prompt_tokens"] * (prices[0] or 0.0) + tokens["completion_tokens"] * (prices[1] or 0.0)) / 1e6


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
    models: set[str | None] = field(default_factory=set)
    damaged_files: int = 0

    def ask(self, name: str, rows: DataFrame) -> DataFrame:
        """The stage's results for the rows: their other columns, request_id, the stage's output, error_type, error.

        Columns named after the stage's variables are its variables; the others are carried. A row whose request was
        not asked has the error_type `unasked`.
        """
        stage = self.stages[name]
        keys = carried_columns(stage, rows)
        place = f"{self.work}/{len(self.usage):02d}-{stage.name}"
        with_ids = add_ids(stage, rows, keys).withColumn("request_row", F.monotonically_increasing_id())
        asking = _Asking(
            stage,
            place,
            store.stage_folder(self.store, stage),
            self._write(with_ids, f"{place}/keyed"),
        )
        self._look_up(asking)
        self._answer_missing(asking)
        results = self._write_results(asking, keys)
        self._account(asking, results)
        return results

    def _look_up(self, asking: _Asking) -> None:
        """What the store has for each request, written down: a frame that is kept would hide what is added later."""
        asking.seen = store.names_of_segments(asking.folder)
        ids = asking.keyed.select("request_id").distinct()
        completions = store.read_completions(self.spark, asking.folder).select("request_id", "error_type")
        known = store.states_of_requests(completions.join(ids, on="request_id", how="left_semi"))
        states = ids.join(known, on="request_id", how="left").select("request_id", "state")
        asking.states = self._write(states, f"{asking.place}/states-{len(asking.seen)}")
        counts = {row["state"]: row["count"] for row in asking.states.groupBy("state").count().collect()}
        asking.reused = counts.get("ok", 0)
        asking.missing = counts.get(None, 0) + counts.get("passing", 0)
        asking.missing += counts.get("lasting", 0) if self.retry_failed else 0

    def _answer_missing(self, asking: _Asking) -> None:
        if self.interrupts.requested:
            self.ended = self.ended or "interrupted"
        if not asking.missing or self.ended:
            return
        try:
            self._answer_locked(asking)
        except KeyboardInterrupt:
            if not self.interrupts.requested:
                raise
            self.ended = "interrupted"
        except (AnsweringError, LockedError, LocalModelError) as error:
            # A process that is told to stop before it took its job up ends without a word
            self.ended = "interrupted" if self.interrupts.requested else "broken"
            self.error = str(error)

    def _answer_locked(self, asking: _Asking) -> None:
        """Answers as the one spender of the stage's folder; where it changed meanwhile, it looks again."""
        with ExitStack() as stack:
            lock = self._lock(asking.folder)
            with self.interrupts.waiting():
                base_url = self.base_url()
                if lock is not None:
                    stack.enter_context(lock)
            if store.names_of_segments(asking.folder) != asking.seen:
                self._look_up(asking)
            if not asking.missing:
                return
            requests = self._write_requests(asking)
            process = self.open_process()
            if lock is not None:
                lock.add_process(process.pid)
            self._answer(asking, requests, process, base_url, lock)
        try:
            store.compact(self.spark, asking.folder, self.run)
        except (PySparkException, OSError, ValueError) as error:
            self.display.note(f"the store could not be compacted ({type(error).__name__}); nothing is lost")

    def _lock(self, folder: str) -> FolderLock | None:
        if not is_local(folder):
            self.display.note("the store is no local disk, where runs do not see each other: start one at a time on it")
            return None
        return FolderLock(open_filesystem(folder)[1], self.run, wait=self.wait, notify=self.display.note)

    def _write_requests(self, asking: _Asking) -> str:
        """Writes one row a missing request, in files of one unit of work."""
        missing = store.needed(asking.states, retry_failed=self.retry_failed)
        first = asking.keyed.groupBy("request_id").agg(F.min("request_row").alias("request_row"))
        wanted = first.join(missing, on="request_id", how="left_semi").select("request_row")
        variables = asking.stage.variables
        rows = asking.keyed.join(wanted, on="request_row", how="left_semi").select("request_id", *variables)
        path = f"{asking.place}/requests"
        unit = self._rows_of_a_unit(asking.missing)
        ordered = rows.orderBy(*variables, "request_id")
        ordered.write.mode("overwrite").option("maxRecordsPerFile", unit).parquet(path)
        return path

    def _rows_of_a_unit(self, requests: int) -> int:
        """As many as the architecture allows, less where actors would stand idle."""
        return max(1, min(UNIT_ROWS, -(-requests // (UNITS_OF_AN_ACTOR * count_actors(self.settings)))))

    def _answer(
        self, asking: _Asking, requests: str, process: AnsweringProcess, base_url: str, lock: FolderLock | None
    ) -> None:
        settings = call_settings(self.settings, base_url, self.store)
        job = Job(
            requests=requests,
            directory=asking.folder,
            run=self.run,
            stage=asking.stage,
            settings=settings,
            actors=count_actors(self.settings),
            spent=self.spent,
            answered_before=self.answered_before or bool(self.models),
            confirm_probes=self._spans_nodes(),
        )

        def show(progress: Mapping[str, Any]) -> None:
            asking.tally, asking.seconds = progress["tally"], progress["seconds"]
            self.display.show(progress, settings)

        self.display.start(asking.stage.name)
        try:
            event = process.answer(job, show, self._read_probes, lambda: lock is not None and lock.lost)
            show(event)
            self.models.update(event["models"])
            if event["outcome"] != "finished":
                self.ended, self.error = event["outcome"], event["error"]
        finally:
            self.display.end()
            tokens = asking.tally["prompt_tokens"] + asking.tally["completion_tokens"]
            self.spent += Spent(asking.tally["calls"], tokens, cost_of(self.settings, asking.tally) or 0.0)

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

    def _write_results(self, asking: _Asking, keys: tuple[str, ...]) -> DataFrame:
        rows = asking.keyed.drop("request_row")
        ids = rows.select("request_id").distinct()
        completions = store.read_completions(self.spark, asking.folder).join(ids, on="request_id", how="left_semi")
        best = store.one_a_request(completions)
        self.models.update(row["model"] for row in best.select("model").distinct().limit(MODELS_NAMED).collect())
        parsed = rows.join(best.drop("model"), on="request_id", how="left").mapInArrow(
            partial(parse_completions, stage=asking.stage.name, keys=keys), result_schema(asking.stage, rows, keys)
        )
        self.damaged_files += store.count_damaged(asking.folder)
        return self._write(parsed, f"{asking.place}/results")

    def _account(self, asking: _Asking, results: DataFrame) -> None:
        """Adds the stage's row of the table `usage`, from the results that the metric goes on with."""
        outcome = F.when(F.col("error_type").isNull(), "ok").when(F.col("error_type") == UNASKED, UNASKED)
        requests = results.select("request_id", outcome.otherwise("failed").alias("outcome")).distinct()
        counts = {row["outcome"]: row["count"] for row in requests.groupBy("outcome").count().collect()}
        tally = asking.tally
        self.usage.append(
            {
                "stage": asking.stage.name,
                "model": asking.stage.model,
                "requests": sum(counts.values()),
                "reused": min(asking.reused, counts.get("ok", 0)),
                "answered": max(0, counts.get("ok", 0) - asking.reused),
                "failed": counts.get("failed", 0),
                "unasked": counts.get(UNASKED, 0),
                "calls": tally["calls"],
                "retries": tally["calls"] - tally["asked"] - tally["rate_limited"],
                "rate_limited": tally["rate_limited"],
                "prompt_tokens": tally["prompt_tokens"],
                "completion_tokens": tally["completion_tokens"],
                "tokens_estimated": bool(tally["tokens_estimated"]),
                "cost": cost_of(self.settings, tally),
                "seconds": asking.seconds,
            }
        )
        if counts.get(UNASKED) and not self.ended:
            self.ended = "broken"
            self.error = (
                f"{counts[UNASKED]:,} completions were written to {asking.folder} and cannot be read from there"
            )

    def _write(self, frame: DataFrame, path: str) -> DataFrame:
        frame.write.mode("overwrite").parquet(path)
        return self.spark.read.schema(frame.schema).parquet(path)


@dataclass
class _Asking:
    """A stage while it is asked: its rows with request ids, what the store had before, what the asking came to."""

    stage: Stage
    place: str
    folder: str
    keyed: DataFrame
    states: DataFrame = field(init=False)
    seen: frozenset[str] = frozenset()
    reused: int = 0
    missing: int = 0
    tally: Mapping[str, int] = field(default_factory=lambda: asdict(Tally()))
    seconds: float = 0.0
