"""The store of completions as Spark sees it: one folder a stage, read by one rule, compacted when a stage ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from time import sleep
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from untold.jobs.asking import snapshots
from untold.jobs.asking.compaction import FILE_BYTES, compact_folder, run_merges
from untold.jobs.run.session import is_connect, read_parquet, spark_schema
from untold.jobs.tables import COMPLETIONS
from untold.udfs.errors import UserError
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.retrying import ASKED_AGAIN, PASSING_PREFIX, PASSING_TYPES
from untold.udfs.llm.store_files import Described, Merge, merge_files
from untold.udfs.storage import Place

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
    return str(Place(store) / snapshots.VERSION / f"{stage.name}-{stage.digest}")


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
    whole: snapshots.Whole

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
    return Reading(spark, snapshots.find_whole(folder, move=False))


def read_strictly(
    spark: SparkSession, folder: str, act: Callable[[Reading], Given], tell: Callable[[snapshots.Whole], None]
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
            whole = snapshots.find_whole(folder, move=True)
        tell(whole)
        try:
            return act(Reading(spark, whole))
        except (*SPARK_ERRORS, ShortReadError) as error:
            suspects = suspect(error, whole.names)
            if not suspects:
                raise
            with _one_line():
                damaged = snapshots.set_aside(folder, snapshots.find_damaged(folder, suspects))
            tell(snapshots.Whole((), (), 0, tuple(damaged)))
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
    return frozenset(snapshots.list_folder(folder).live())


def compact(spark: SparkSession, folder: str, *, file_bytes: int = FILE_BYTES) -> None:
    """Merges the small files of a stage's folder (`compact_folder`), by Spark's workers where it is much.

    Who calls it holds the folder's lock. Raises what Spark raises, OSError or ValueError; the store is then as it was.
    """

    def merge(merges: Sequence[Merge]) -> list[Described]:
        if sum(one.size for one in merges) <= BYTES_HERE or is_connect(spark):
            return run_merges(merges)
        return spark.sparkContext.parallelize(merges, len(merges)).map(merge_files).collect()

    compact_folder(folder, merge, file_bytes=file_bytes)
