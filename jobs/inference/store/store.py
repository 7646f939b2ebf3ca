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
from untold.udfs.llm.store_files import Described, Merge, merge_files
from untold.udfs.stages.arrow import UNASKED, make_parser
from untold.udfs.storage import StoragePath

# The best first
STATES = ("ok", "tried", "lasting", "passing")
# Waits before a read is tried again that failed though no file is damaged; the last try is the end of them.
PAUSES = (1.0, 2.0, 4.0)
# To merge so many bytes takes this process less time than a Spark job takes to begin, and little memory
BYTES_HERE = 4 * 2**20

Given = TypeVar("Given")
SPARK_ERRORS = (PySparkException, Py4JJavaError)


class StoreError(UserError):
    """A stage's folder cannot be read. The message says which and what to do."""


class ShortReadError(StoreError):
    """Spark read fewer rows than the files hold."""


def stage_folder(store: str, stage: Stage) -> str:
    """Where the completions of a stage are: `STORE/v1/<stage>-<digest>` (docs/architecture.md, "The store")."""
    return str(StoragePath(store) / compaction.VERSION / f"{stage.name}-{stage.digest}")


def is_transient(error_type: str = "error_type") -> Column:
    """Whether a failure has a passing reason and is asked again by the next run."""
    column = F.col(error_type)
    return column.isin(*PASSING_TYPES) | column.startswith(PASSING_PREFIX)


@dataclass(frozen=True)
class Reading:
    """The live files of a stage's folder, to be read whole or with an error, never in part.

    The files are those of one look at the folder: what is written later is not in it, however late it is read.
    """

    spark: SparkSession
    whole: compaction.Whole

    @cached_property
    def completions(self) -> DataFrame:
        """All rows, with the columns of `completions`."""
        schema = spark_schema(COMPLETIONS)
        if not self.whole.uris:
            return self.spark.createDataFrame([], schema)
        # Said here so that no setting of a session makes Spark drop what it cannot read.
        strict = {
            "ignoreCorruptFiles": False,
            "ignoreMissingFiles": False,
            "parquet.page.verify-checksum.enabled": True,
        }
        return read_parquet(self.spark, *self.whole.uris, schema=schema, **strict)

    def counted(self, *columns: str) -> tuple[DataFrame, Callable[[], None]]:
        """Columns of all rows, and what to call after the first action on them: it raises ShortReadError.

        The count comes with the rows, at no further job.
        """
        observation = Observation()
        observed = self.completions.select(*columns).observe(observation, F.count(F.lit(1)).alias("rows"))
        return observed, lambda: self._check(observation)

    def _check(self, observation: Observation) -> None:
        """Raises ShortReadError where Spark read fewer rows than the footers say."""
        try:
            rows = observation.get["rows"]
        except (Py4JJavaError, KeyError):
            # The other side of a join was empty, and Spark read nothing
            return
        # More than there are is a task that ran twice
        if rows < self.whole.rows:
            raise ShortReadError(f"{rows:,} of {self.whole.rows:,} completions could be read")


def open_reading(spark: SparkSession, folder: str) -> Reading:
    """A stage's folder as it is, for a command that writes nothing: files with a bad footer are left out."""
    return Reading(spark, compaction.find_whole(folder, move=False))


def read_strictly(
    spark: SparkSession, folder: str, act: Callable[[Reading], Given], tell: Callable[[compaction.Whole], None]
) -> Given:
    """What `act`, which reads a stage's folder to its end, gives. Damaged files are moved aside first, or on the way.

    `act` may be called several times, each time with all live files. `tell` hears of every look at the folder, with the
    files that were damaged. Raises StoreError where it cannot be read although it was tried again, seven seconds in
    all, and what `act` raises where no file of the folder is the reason.
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
            tell(compaction.Whole((), (), 0, tuple(damaged)))
            if damaged:
                # Spark names the first file that it meets; where there are several, they are found in one go
                suspect = _all_of
            else:
                _wait(pauses, folder, error)


@contextmanager
def _one_line() -> Iterator[None]:
    """Files that cannot be read at all are the user's to see to."""
    try:
        yield
    except OSError as error:
        raise StoreError(str(error)) from error


def _named_in(error: Exception, names: Sequence[str]) -> Sequence[str]:
    """The files that an error is about; none where it is about something else."""
    if isinstance(error, ShortReadError):
        return names
    text = str(error)
    return [name for name in names if name in text]


def _all_of(error: Exception, names: Sequence[str]) -> Sequence[str]:
    """All files where the error is about any of them."""
    return names if _named_in(error, names) else ()


def _wait(pauses: Iterator[float], folder: str, error: Exception) -> None:
    """Sleeps before the next try. Raises StoreError, in one line, where there is none left."""
    pause = next(pauses, None)
    if pause is None:
        first = next(iter(str(error).splitlines()), "")[:300]
        raise StoreError(f"{folder} cannot be read, though no file of it is damaged: {first}") from error
    sleep(pause)


def one_a_request(completions: DataFrame) -> DataFrame:
    """One row a request: ok before failed, lasting failures before passing ones, then the earliest, then by content.

    Columns request_id, text_of_completion, alternatives, error_type, error, model, vector_of_completion.
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
    """Whether a row is what its request ended with, and no completion after which it was asked again."""
    return ~F.col("error_type").eqNullSafe(ASKED_AGAIN)


def _rank() -> Column:
    """The place in `STATES` by the error alone."""
    return F.when(F.col("error_type").isNull(), 0).when(~is_transient(), 2).otherwise(3)


def states_of_requests(completions: DataFrame, runs: Collection[str] = ()) -> DataFrame:
    """Columns request_id, state: one of `STATES`, the best that the store has.

    completions: request_id, error_type, and run_id where `runs` are given: what failed in these was `tried`, and no
    start that goes on with them asks it again. A request of which the store has nothing is not in it.
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
    """Column request_id: what a run asks of requests in these states, null where the store has nothing.

    states: request_id, state as `states_of_requests` names it. Which failures pass is said in docs/contract.md,
    "Runs, outputs, stores".
    """
    return states.where(is_needed(retry_failed=retry_failed)).select("request_id")


def is_needed(*, retry_failed: bool) -> Column:
    """Whether a run asks a request in the state of the column `state` (`needed`)."""
    again = ["lasting", "passing"] if retry_failed else ["passing"]
    return F.col("state").isNull() | F.col("state").isin(*again)


def names_of_live_files(folder: str) -> frozenset[str]:
    """The names of the live files of a stage's folder: they change where something was answered meanwhile."""
    return frozenset(compaction.list_folder(folder).live())


def compact(spark: SparkSession, folder: str, *, file_bytes: int = FILE_BYTES) -> None:
    """Merges the small files of a stage's folder (`compact_folder`), by Spark's workers where it is much.

    Who calls it holds the folder's lock. Raises what Spark raises, OSError or ValueError; the store is then as it was.
    """

    def merge(merges: Sequence[Merge]) -> list[Described]:
        if sum(one.size for one in merges) <= BYTES_HERE or is_connect(spark):
            return run_merges(merges)
        return spark.sparkContext.parallelize(merges, len(merges)).map(merge_files).collect()

    compact_folder(folder, merge, file_bytes=file_bytes)


# An endpoint names one model or a few dated ones; a router that names thousands is not to fill a driver's memory
MODELS_NAMED = 100
FILES_NAMED = 5
# Rows of a folder for each row of requests, up to which all are read
MOST_OTHERS = 2


@dataclass(frozen=True)
class StoreLookup:
    """What the store has of the requests of a stage, by one look at its folder.

    `states`: request_id, state of all distinct requests. `ok`: how many are answered. `missing`: how many are to be
    asked, or more where the store has nothing. `files`: the live files of the look.
    """

    states: DataFrame
    ok: int
    missing: int
    files: frozenset[str]


@dataclass(frozen=True)
class Results:
    """The results of a stage: rows, models that answered, and how many requests were not asked or not weighted."""

    rows: DataFrame
    models: Collection[str | None]
    unasked: int
    unweighted: int


class StageStore:
    """The folder of a stage in the store. `damaged`: how many of its files were moved aside so far.

    `runs`: earlier starts that this one goes on with; what failed in them is not asked again.
    """

    def __init__(
        self, path: str, stage: Stage, engines: Engines, workspace: Workspace, runs: Collection[str] = ()
    ) -> None:
        self.folder = stage_folder(path, stage)
        self.damaged = 0
        self._stage, self._engines, self._workspace, self._runs = stage, engines, workspace, runs
        self._missing_files: set[str] = set()

    def look_up(self, requests: Requests, identified: DataFrame) -> StoreLookup:
        """What the store has for each request, written down: a frame that is kept would hide what is added later."""
        ids = with_request(requests, identified).select("request_id").distinct()

        def look(reading: Reading) -> StoreLookup:
            files = frozenset(reading.whole.names)
            if not reading.whole.uris and requests.all_asked:
                # Nothing is known, so that nothing has to be counted: rows are at least as many as their requests
                states = ids.withColumn("state", F.lit(None).cast("string"))
                return StoreLookup(states, 0, self._workspace.count(identified), files)
            completions, check = reading.counted("request_id", "error_type", *(["run_id"] if self._runs else []))
            known = self._of_requests(completions, ids, reading, identified)
            states = ids.join(states_of_requests(known, self._runs), on="request_id", how="left")
            named = {name: F.count_if(F.col("state") == name) for name in STATES}
            counts = Counted({"all": F.count(F.lit(1)), **named})
            kept = self._workspace.keep(states.select("request_id", "state"), f"{self._stage.name}-states", counts)
            # A join with no request reads none of the folder, and a count of nothing says nothing of its files
            if counts["all"]:
                check()
            settled = counts["ok"] + counts["tried"] + (0 if self._engines.retry_failed else counts["lasting"])
            return StoreLookup(kept, counts["ok"], counts["all"] - settled, files)

        return self._read(look)

    def has_changed(self, found: StoreLookup) -> bool:
        """Whether something was answered since a look."""
        return names_of_live_files(self.folder) != found.files

    def missing(self, requests: Requests, identified: DataFrame, found: StoreLookup) -> DataFrame:
        """The requests that are to be asked: request_id and the stage's variables, one row each."""
        wanted = needed(found.states, retry_failed=self._engines.retry_failed)
        return requests.texts_of(self._stage, with_request(requests, identified), wanted)

    def read(self, requests: Requests, identified: DataFrame) -> Results:
        """The results of all requests, unasked ones included."""
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
        """The completions of some requests, and perhaps of others: of a store that has few others, all.

        What joins them with their requests passes over the others; to do it twice takes longer than to carry a few.
        """
        if reading.whole.rows <= MOST_OTHERS * self._workspace.count(identified):
            return completions
        return completions.join(ids, on="request_id", how="left_semi")

    @contextmanager
    def locked(self) -> Iterator[Lock | None]:
        """Holds the folder as its one spender; None where this start locks nothing, after a line that says so.

        Raises LockedError where another run holds it and this one is not to wait, UnlockableError where it cannot be.
        """
        if not self._engines.lock:
            self._note("the store is not locked: start one run at a time on it")
            yield None
            return
        with ExitStack() as stack:
            lock = lock_folder(self.folder, self._engines.run, wait=self._engines.wait, notify=self._note)
            with self._engines.interrupts.waiting():
                stack.enter_context(lock)
            yield lock

    def compact(self) -> None:
        """Merges the folder's small files. Where that fails the run goes on: the files are as good as they were.

        Call it under the lock: nobody else compacts then, and nobody else's files are half written.
        """
        try:
            compact(self._workspace.spark, self.folder)
        except (*SPARK_ERRORS, OSError, ValueError, pa.ArrowException) as error:
            self._note(f"the store could not be compacted ({explain(error) or root_cause(error)}). No data is lost")

    def compact_leftovers(self) -> None:
        """Does the compaction of a run that was killed before or in it: this one, which asks nothing, would not.

        Another run that holds the folder compacts it anyway, and a store that may only be read stays as it is.
        """
        if self._engines.lock and compaction.is_due(self.folder):
            with suppress(LockedError, OSError), lock_folder(self.folder, self._engines.run, wait=False):
                self.compact()

    def _read(self, act: Callable[[Reading], Given]) -> Given:
        """What `act` makes of the folder, read whole; the user hears of files that are not."""
        return read_strictly(self._workspace.spark, self.folder, act, self._report_damage)

    def _report_damage(self, whole: compaction.Whole) -> None:
        """Counts and names the files that are damaged; those that are gone once in a run."""
        self.damaged += len(whole.damaged)
        if whole.damaged:
            where = f"moved to {self.folder}/{compaction.DAMAGED}, and missing completions are requested again"
            self._note(f"damaged files of the store were {where}: {_name(whole.damaged)}")
        missing = sorted(set(whole.missing) - self._missing_files)
        self._missing_files.update(missing)
        if missing:
            gone = f"files of the store are missing from {self.folder}, and their requests are sent again"
            self._note(f"{gone}: {_name(missing)}")

    def _note(self, line: str) -> None:
        self._engines.display.note(line)


def with_request(requests: Requests, identified: DataFrame) -> DataFrame:
    """The rows that have a request."""
    return identified if requests.all_asked else identified.where(F.col("request_id").isNotNull())


def _outcomes(stage: Stage) -> dict[str, Column]:
    """What is counted of a stage's results while they are written."""
    is_rated = F.col("error_type").isNull() & ~F.col("weighted") if stage.rated else F.lit(False)
    return {"unasked": F.count_if(F.col("error_type") == UNASKED), "unweighted": F.count_if(is_rated)}


def _name(files: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(files) - FILES_NAMED:,} more" if len(files) > FILES_NAMED else ""
    return ", ".join(files[:FILES_NAMED]) + more
