"""The store of completions as Spark sees it: one folder a stage, read by one rule, compacted when a stage ends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from time import time

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.run.session import spark_schema
from jobs.tables import COMPLETIONS
from udfs.llm.keys import Stage
from udfs.llm.retrying import PASSING_PREFIX, PASSING_TYPES
from udfs.llm.segments import open_filesystem

VERSION = "v1"
COMPACT_FROM_FILES = 8
COMPACTED_BYTES = 128 * 2**20
KEEP_SEGMENTS_SECONDS = 7 * 24 * 3600


def stage_folder(store: str, stage: Stage) -> str:
    """Where the completions of a stage are."""
    return f"{store.rstrip('/')}/{VERSION}/{stage.name}-{stage.digest}"


def is_transient(error_type: str = "error_type") -> Column:
    """Whether a failure has a passing reason and is asked again by the next run."""
    column = F.col(error_type)
    return column.isin(*PASSING_TYPES) | column.startswith(PASSING_PREFIX)


def read_completions(spark: SparkSession, folder: str) -> DataFrame:
    """All rows of a stage's folder, with the columns of `completions`. Damaged files are skipped, by this read only."""
    schema = spark_schema(COMPLETIONS)
    if not list_segments(folder):
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("ignoreCorruptFiles", True).option("ignoreMissingFiles", True)
    return reader.parquet(folder)


def one_a_request(completions: DataFrame) -> DataFrame:
    """One row a request: ok before failed, lasting failures before passing ones, then the earliest, then by content.

    Columns request_id, text_of_completion, alternatives, error_type, error, model.
    """
    rank = (
        _rank().alias("rank"),
        F.col("answered_at"),
        F.xxhash64("text", "error_type", "error").alias("content"),
    )
    best = F.min(F.struct(*rank, "text", "error_type", "error", "model", "alternatives")).alias("best")
    return (
        completions.groupBy("request_id")
        .agg(best)
        .select(
            "request_id",
            F.col("best.text").alias("text_of_completion"),
            F.col("best.alternatives").alias("alternatives"),
            F.col("best.error_type").alias("error_type"),
            F.col("best.error").alias("error"),
            F.col("best.model").alias("model"),
        )
    )


def _rank() -> Column:
    """0 for ok, 1 for a lasting failure, 2 for a passing one."""
    return F.when(F.col("error_type").isNull(), 0).when(~is_transient(), 1).otherwise(2)


def states_of_requests(completions: DataFrame) -> DataFrame:
    """Columns request_id, state: `ok`, `lasting` or `passing`, the best that the store has."""
    names = F.array(F.lit("ok"), F.lit("lasting"), F.lit("passing"))
    return (
        completions.select("request_id", _rank().alias("rank"))
        .groupBy("request_id")
        .agg(F.min("rank").alias("rank"))
        .select("request_id", F.get(names, F.col("rank")).alias("state"))
    )


def needed(states: DataFrame, *, retry_failed: bool) -> DataFrame:
    """Column request_id: what a run asks of requests in these states, null where the store has nothing."""
    again = ["lasting", "passing"] if retry_failed else ["passing"]
    return states.where(F.col("state").isNull() | F.col("state").isin(*again)).select("request_id")


def list_segments(folder: str) -> list[fs.FileInfo]:
    """The Parquet files of a stage's folder."""
    system, path = open_filesystem(folder)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return [info for info in found if info.base_name.endswith(".parquet") and info.base_name[0] not in "._"]


def names_of_segments(folder: str) -> frozenset[str]:
    """The names of the files of a stage's folder."""
    return frozenset(info.base_name for info in list_segments(folder))


def count_damaged(folder: str) -> int:
    """How many files of a stage's folder have no readable footer; damage inside a file is skipped without a count."""
    system, _ = open_filesystem(folder)
    return sum(1 for info in list_segments(folder) if not _is_readable(system, info.path))


def compact(spark: SparkSession, folder: str, run: str) -> None:
    """Rewrites a run's segments into large files; the segments stay for a week, for runs that are reading them."""
    system, _ = open_filesystem(folder)
    own = [info for info in list_segments(folder) if info.base_name.startswith(f"{run}-")]
    segments = [info for info in own if _is_readable(system, info.path)]
    if len(segments) >= COMPACT_FROM_FILES:
        target = f"{folder}/_compact-{run}"
        files = -(-sum(info.size for info in segments) // COMPACTED_BYTES)
        reader = spark.read.schema(spark_schema(COMPLETIONS))
        rows = reader.parquet(*[_with_scheme(folder, info.path) for info in segments])
        rows.coalesce(max(1, files)).write.mode("overwrite").option("compression", "zstd").parquet(target)
        _publish(folder, target, run, sorted(info.path for info in segments))
    _remove_old(folder)


def _publish(folder: str, target: str, run: str, segments: list[str]) -> None:
    """Moves the large files into place and notes what they replace, if they hold every row of it."""
    system, path = open_filesystem(folder)
    aside = open_filesystem(target)[1]
    found = system.get_file_info(fs.FileSelector(aside))
    written = sorted(info.path for info in found if info.base_name.endswith(".parquet"))
    if _count_rows(system, written) == _count_rows(system, segments):
        names = [f"{path}/compact-{run}-{number:04d}.parquet" for number in range(len(written))]
        for source, name in zip(written, names, strict=True):
            system.move(source, name)
        note = json.dumps({"at": time(), "segments": segments, "files": names}).encode()
        with system.open_output_stream(f"{aside}/note") as stream:
            stream.write(note)
        system.move(f"{aside}/note", f"{path}/_compacted-{run}.json")
    system.delete_dir(aside)


def _count_rows(system: fs.FileSystem, paths: Iterable[str]) -> int:
    return sum(pq.read_metadata(path, filesystem=system).num_rows for path in paths)


def _remove_old(folder: str) -> None:
    """Removes the segments that were compacted a week ago, where the compacted files are still there."""
    system, path = open_filesystem(folder)
    for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        if info.base_name.startswith("_compacted-"):
            # Another run may be removing the same, and a note that a crash cut short is no reason to end a run
            with suppress(OSError, ValueError, KeyError):
                _remove_compacted(system, info.path)


def _remove_compacted(system: fs.FileSystem, note_path: str) -> None:
    with system.open_input_stream(note_path) as stream:
        note = json.loads(stream.read())
    whole = all(_is_readable(system, name) for name in note["files"])
    if whole and time() - note["at"] > KEEP_SEGMENTS_SECONDS:
        for segment in note["segments"]:
            with suppress(FileNotFoundError):
                system.delete_file(segment)
        system.delete_file(note_path)


def _with_scheme(folder: str, path: str) -> str:
    own = open_filesystem(folder)[1]
    return folder + path.removeprefix(own)


def _is_readable(system: fs.FileSystem, path: str) -> bool:
    try:
        pq.read_metadata(path, filesystem=system)
    except (OSError, pa.ArrowInvalid):
        return False
    return True
