"""The completion store in Spark: one folder per stage, with lookup, locks and compaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from time import sleep
from typing import TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inference.stage.engines import Engines
from untold.jobs.inference.stage.requests import Requests, result_schema
from untold.jobs.inference.store import compaction
from untold.jobs.inference.store.compaction import FILE_BYTES, compact_folder, run_merges
from untold.jobs.run.error_messages import explain, root_cause
from untold.jobs.run.folders import Counted, Workspace
from untold.jobs.run.locks import Lock, LockedError, lock_folder
from untold.jobs.run.session import is_connect, read_parquet, spark_schema
from untold.jobs.tables import COMPLETIONS
from untold.udfs.errors import UserError
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.retrying import ASKED_AGAIN, PASSING_PREFIX, PASSING_TYPES
from untold.udfs.llm.store_files import Merge, merge_files
from untold.udfs.stages.arrow import UNASKED, make_parser
from untold.udfs.storage import StoragePath

# The best first
STATES = ("ok", "tried", "lasting", "passing")
# Seconds before each repetition of a read that failed although no file is damaged
PAUSES = (1.0, 2.0, 4.0)
# A merge of these bytes takes this process less time than the start of a Spark job, and little memory
BYTES_HERE = 4 * 2**20

Given = TypeVar("Given")
SPARK_ERRORS = (PySparkException, Py4JJavaError)


class StoreError(UserError):
    """The folder of a stage cannot be read. The message names the folder and the remedy."""


class ShortReadError(StoreError):
    """Spark read fewer rows than the files hold."""


def stage_folder(store: str, stage: Stage) -> str:
    """Return the folder of the completions of a stage: `STORE/v1/<stage>-<digest>`."""
    return str(StoragePath(store) / compaction.VERSION / f"{stage.name}-{stage.digest}")


def is_transient(error_type: str = "error_type") -> Column:
    """Return True for a failure with a temporary reason. The next run sends its request again."""
    column = F.col(error_type)
    return column.isin(*PASSING_TYPES) | column.startswith(PASSING_PREFIX)


@dataclass(frozen=True)
class Reading:
    """The live files of a stage's folder at one time. They are read completely, or with an error.

    Files that are written later are not included.
    """

    spark: SparkSession
    whole: compaction.Whole

    @cached_property
    def completions(self) -> DataFrame:
        """All rows, with the columns of `completions`."""
        schema = spark_schema(COMPLETIONS)
        if not self.whole.uris:
            return self.spark.createDataFrame([], schema)
        # A setting of the session could make Spark skip unreadable files
        strict = {
            "ignoreCorruptFiles": False,
            "ignoreMissingFiles": False,
            "parquet.page.verify-checksum.enabled": True,
        }
        return read_parquet(self.spark, *self.whole.uris, schema=schema, **strict)

    def counted(self, *columns: str) -> tuple[DataFrame, Callable[[], None]]:
        """Return columns of all rows, and a check to call after the first action on them. It raises ShortReadError.

        The rows are counted in the same job.
        """
        observation = Observation()
        observed = self.completions.select(*columns).observe(observation, F.count(F.lit(1)).alias("rows"))
        return observed, lambda: self._check(observation)

    def _check(self, observation: Observation) -> None:
        """Raise ShortReadError if Spark read fewer rows than the footers have."""
        try:
            rows = observation.get["rows"]
        except (Py4JJavaError, KeyError):
            # The other side of a join was empty, and Spark read nothing
            return
        # A task that ran twice counts its rows twice
        if rows < self.whole.rows:
            raise ShortReadError(f"{rows:,} of {self.whole.rows:,} completions could be read")


def open_reading(spark: SparkSession, folder: str) -> Reading:
    """Return the files of a stage's folder without files with a bad footer. This moves no file."""
    return Reading(spark, compaction.find_whole(folder, move=False))


def read_strictly(
    spark: SparkSession, folder: str, act: Callable[[Reading], Given], tell: Callable[[compaction.Whole], None]
) -> Given:
    """Return the result of `act`, which reads all completions of a stage. Damaged files are moved aside.

    `act` can be called several times, each time with all live files. `tell` is called after every look at the folder,
    with its damaged files. Raises StoreError if the folder is still unreadable after seven seconds, and the error of
    `act` if no file of the folder is the reason.
    """
    pauses = iter(PAUSES)
    suspect = _named_in
    while True:
        with _one_line():
            whole = compaction.find_whole(folder, move=True)
        tell(whole)
        try:
            return act(Reading(spark, whole))
        except (*SPARK_ERRORS, ShortReadError) as error:
            suspects = suspect(error, whole.names)
            if not suspects:
                raise
            with _one_line():
                damaged = compaction.set_aside(folder, compaction.find_damaged(folder, suspects))
            tell(compaction.Whole(damaged=tuple(damaged)))
            if damaged:
                # Spark names only the first damaged file, so the next check reads all files
                suspect = _all_of
            else:
                _wait(pauses, folder, error)


@contextmanager
def _one_line() -> Iterator[None]:
    """Convert the error of an unreadable file into an error for the user."""
    try:
        yield
    except OSError as error:
        raise StoreError(str(error)) from error


def _named_in(error: Exception, names: Sequence[str]) -> Sequence[str]:
    """Return the files that an error names, or all files after a short read."""
    if isinstance(error, ShortReadError):
        return names
    text = str(error)
    return [name for name in names if name in text]


def _all_of(error: Exception, names: Sequence[str]) -> Sequence[str]:
    """Return all files if the error names any of them."""
    return names if _named_in(error, names) else ()


def _wait(pauses: Iterator[float], folder: str, error: Exception) -> None:
    """Wait before the next read. Raises StoreError after the last one."""
    pause = next(pauses, None)
    if pause is None:
        first = next(iter(str(error).splitlines()), "")[:300]
        raise StoreError(f"{folder} cannot be read, though no file of it is damaged: {first}") from error
    sleep(pause)


def one_a_request(completions: DataFrame) -> DataFrame:
    """Return one row per request: success before failure, permanent before temporary failure, then the earliest.

    The content decides between rows of the same time. The columns are request_id, text_of_completion, alternatives,
    error_type, error, model, vector_of_completion.
    """
    rank = (
        _rank().alias("rank"),
        F.col("answered_at"),
        F.xxhash64("text", "error_type", "error", "vector").alias("content"),
    )
    best = F.min(F.struct(*rank, "text", "error_type", "error", "model", "alternatives", "vector")).alias("best")
    return (
        completions.where(_is_last())
        .groupBy("request_id")
        .agg(best)
        .select(
            "request_id",
            F.col("best.text").alias("text_of_completion"),
            F.col("best.alternatives").alias("alternatives"),
            F.col("best.error_type").alias("error_type"),
            F.col("best.error").alias("error"),
            F.col("best.model").alias("model"),
            F.col("best.vector").alias("vector_of_completion"),
        )
    )


def _is_last() -> Column:
    """Return True for the last row of a request, and False for a completion after which it was sent again."""
    return ~F.col("error_type").eqNullSafe(ASKED_AGAIN)


def _rank() -> Column:
    """Return the index in `STATES` by the error."""
    return F.when(F.col("error_type").isNull(), 0).when(~is_transient(), 2).otherwise(3)


def states_of_requests(completions: DataFrame, runs: Collection[str] = ()) -> DataFrame:
    """Return the columns request_id and state, the best of `STATES` in the store. Unknown requests have no row.

    `completions` has request_id and error_type, and run_id if `runs` are given. A request that failed in one of `runs`
    is `tried`, and the starts that continue them do not send it again.
    """
    rank = _rank()
    if runs:
        rank = F.when((rank > 0) & F.col("run_id").isin(*runs), F.lit(STATES.index("tried"))).otherwise(rank)
    names = F.array(*map(F.lit, STATES))
    return (
        completions.where(_is_last())
        .select("request_id", rank.alias("rank"))
        .groupBy("request_id")
        .agg(F.min("rank").alias("rank"))
        .select("request_id", F.get(names, F.col("rank")).alias("state"))
    )


def needed(states: DataFrame, *, retry_failed: bool) -> DataFrame:
    """Return the column request_id of the requests that a run sends.

    `states` has request_id and state, as in `states_of_requests`, or null for an unknown request. The section "Runs,
    outputs, stores" of docs/contract.md has the rules for failures.
    """
    return states.where(is_needed(retry_failed=retry_failed)).select("request_id")


def is_needed(*, retry_failed: bool) -> Column:
    """Return True if a run sends a request in the state of the column `state`."""
    again = ["lasting", "passing"] if retry_failed else ["passing"]
    return F.col("state").isNull() | F.col("state").isin(*again)


def compact(spark: SparkSession, folder: str, *, file_bytes: int = FILE_BYTES) -> None:
    """Merge the small files of a stage's folder (`compact_folder`). Spark's workers merge more than `BYTES_HERE`.

    The caller holds the lock of the folder. Raises the errors of Spark, OSError or ValueError; no row is lost then.
    """

    def merge(merges: Sequence[Merge]) -> None:
        if sum(one.size for one in merges) <= BYTES_HERE or is_connect(spark):
            run_merges(merges)
        else:
            spark.sparkContext.parallelize(merges, len(merges)).foreach(merge_files)

    compact_folder(folder, merge, file_bytes=file_bytes)


# An endpoint names a few models. A router that names thousands must not fill the memory of the driver
MODELS_NAMED = 100
FILES_NAMED = 5
# The rows of a folder per row of requests up to which all rows are read
MOST_OTHERS = 2


@dataclass(frozen=True)
class StoreLookup:
    """The states of the requests of a stage at one time.

    Attributes:
        states: columns request_id and state of all distinct requests.
        ok: number of requests with a completion.
        missing: number of requests to send. It is larger than that if the store is empty.
        files: names of the files of the folder, live and dead.
    """

    states: DataFrame
    ok: int
    missing: int
    files: frozenset[str]


@dataclass(frozen=True)
class Results:
    """The results of a stage: rows, models, and the numbers of requests without a call or without weights."""

    rows: DataFrame
    models: Collection[str | None]
    unasked: int
    unweighted: int


class StageStore:
    """The folder of a stage in the store. `damaged` is the number of files that were moved aside.

    `runs` are earlier starts that this one continues. Requests that failed in them are not sent again.
    """

    def __init__(
        self, path: str, stage: Stage, engines: Engines, workspace: Workspace, runs: Collection[str] = ()
    ) -> None:
        self.folder = stage_folder(path, stage)
        self.damaged = 0
        self._stage, self._engines, self._workspace, self._runs = stage, engines, workspace, runs

    def look_up(self, requests: Requests, identified: DataFrame) -> StoreLookup:
        """Return the states of the requests. They are written to disk, so later completions do not change them."""
        ids = with_request(requests, identified).select("request_id").distinct()

        def look(reading: Reading) -> StoreLookup:
            files = frozenset((*reading.whole.names, *reading.whole.dead))
            if not reading.whole.uris and requests.all_asked:
                # No request has a completion. The rows are at least as many as their requests
                states = ids.withColumn("state", F.lit(None).cast("string"))
                return StoreLookup(states, 0, self._workspace.count(identified), files)
            completions, check = reading.counted("request_id", "error_type", *(["run_id"] if self._runs else []))
            known = self._of_requests(completions, ids, reading, identified)
            states = ids.join(states_of_requests(known, self._runs), on="request_id", how="left")
            named = {name: F.count_if(F.col("state") == name) for name in STATES}
            counts = Counted({"all": F.count(F.lit(1)), **named})
            kept = self._workspace.keep(states.select("request_id", "state"), f"{self._stage.name}-states", counts)
            # A join without requests reads no file, so its count proves nothing
            if counts["all"]:
                check()
            settled = counts["ok"] + counts["tried"] + (0 if self._engines.options.retry_failed else counts["lasting"])
            return StoreLookup(kept, counts["ok"], counts["all"] - settled, files)

        return self._read(look)

    def has_changed(self, found: StoreLookup) -> bool:
        """Return True if completions were added or merged since a look."""
        return compaction.list_segments(self.folder).keys() != found.files

    def missing(self, requests: Requests, identified: DataFrame, found: StoreLookup) -> DataFrame:
        """Return the requests to send, one row each: request_id and the variables of the stage."""
        wanted = needed(found.states, retry_failed=self._engines.options.retry_failed)
        return requests.texts_of(self._stage, with_request(requests, identified), wanted)

    def read(self, requests: Requests, identified: DataFrame) -> Results:
        """Return the results of all requests, including the requests that were not sent."""
        rows, carry = with_request(requests, identified), requests.carry
        ids = rows.select("request_id").distinct()
        schema, outcomes = result_schema(self._stage, rows, carry), _outcomes(self._stage)

        def read(reading: Reading) -> Results:
            best = one_a_request(self._of_requests(reading.completions, ids, reading, identified))
            models = Counted({"models": F.slice(F.array_sort(F.collect_set("model")), 1, MODELS_NAMED)})
            counts = Counted(outcomes)
            parsed = (
                models.on(requests.readable(self._stage, rows.join(best, on="request_id", how="left")))
                .drop("model")
                .mapInArrow(make_parser(self._stage, carry), schema)
            )
            kept = self._workspace.keep(parsed, f"{self._stage.name}-results", counts)
            return Results(kept, models["models"], counts["unasked"], counts["unweighted"])

        return self._read(read)

    def _of_requests(
        self, completions: DataFrame, ids: DataFrame, reading: Reading, identified: DataFrame
    ) -> DataFrame:
        """Return the completions of the requests, or all completions if there are few others.

        A later join drops the others, and a second join takes longer than reading a few more rows.
        """
        if reading.whole.rows <= MOST_OTHERS * self._workspace.count(identified):
            return completions
        return completions.join(ids, on="request_id", how="left_semi")

    @contextmanager
    def locked(self) -> Iterator[Lock | None]:
        """Lock the folder, so that no other run spends on it. Yield None if the settings turn locks off.

        Raises LockedError if another run has the lock and this run does not wait, and UnlockableError if the storage
        has no locks.
        """
        if not self._engines.options.lock:
            self._note("the store is not locked: start one run at a time on it")
            yield None
            return
        with ExitStack() as stack:
            lock = lock_folder(self.folder, self._engines.run, wait=self._engines.options.wait, notify=self._note)
            with self._engines.interrupts.waiting():
                stack.enter_context(lock)
            yield lock

    def compact(self) -> None:
        """Merge the small files of the folder, under its lock. A failure loses no row, and the run continues."""
        try:
            compact(self._workspace.spark, self.folder)
        except (*SPARK_ERRORS, OSError, ValueError, pa.ArrowException) as error:
            self._note(f"the store could not be compacted ({explain(error) or root_cause(error)}). No data is lost")

    def compact_leftovers(self) -> None:
        """Finish the compaction of a killed run, in a run that sends no request.

        If another run has the lock, it compacts the folder itself. A read-only store is not changed.
        """
        if self._engines.options.lock and compaction.is_due(self.folder):
            with suppress(LockedError, OSError), lock_folder(self.folder, self._engines.run, wait=False):
                self.compact()

    def _read(self, act: Callable[[Reading], Given]) -> Given:
        """Return the result of `act` over the completions. The names of damaged files are printed."""
        return read_strictly(self._workspace.spark, self.folder, act, self._report_damage)

    def _report_damage(self, whole: compaction.Whole) -> None:
        """Count the damaged files, and print their names."""
        self.damaged += len(whole.damaged)
        if whole.damaged:
            where = f"moved to {self.folder}/{compaction.DAMAGED}, and missing completions are requested again"
            self._note(f"damaged files of the store were {where}: {_name(whole.damaged)}")

    def _note(self, line: str) -> None:
        self._engines.display.note(line)


def with_request(requests: Requests, identified: DataFrame) -> DataFrame:
    """Return the rows with a request."""
    return identified if requests.all_asked else identified.where(F.col("request_id").isNotNull())


def _outcomes(stage: Stage) -> dict[str, Column]:
    """Return the counts of a stage's results, which are computed while they are written."""
    is_rated = F.col("error_type").isNull() & ~F.col("weighted") if stage.rated else F.lit(False)
    return {"unasked": F.count_if(F.col("error_type") == UNASKED), "unweighted": F.count_if(is_rated)}


def _name(files: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(files) - FILES_NAMED:,} more" if len(files) > FILES_NAMED else ""
    return ", ".join(files[:FILES_NAMED]) + more
