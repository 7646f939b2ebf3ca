"""Test the table `usage`: the totals of several calls of a stage. Each request counts once."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from tests.jobs.executions import counted_executions
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.usage import Account, StageResult
from untold.jobs.settings.model import Settings
from untold.udfs.llm.usage import Usage

RESULTS = "request_id string, error_type string"
STAGE = bind_stage("classify_relation", Settings())
OTHER = bind_stage("extract_atoms", Settings())


def asked(spark: SparkSession, *rows: tuple[str, str | None], reused: int = 0, **counts: int) -> StageResult:
    frame = spark.createDataFrame(list(rows), RESULTS)
    return StageResult(STAGE, frame, reused, Usage(seconds=1.5, cost=0.25, **counts))


def test_a_request_is_counted_once_however_often_it_was_needed(spark: SparkSession) -> None:
    usage = Account()
    first = asked(spark, ("a", None), ("a", None), ("b", None), ("c", "timeout"), reused=1, calls=5, asked=2)
    # The store contains the completions of the first call before the second, so `a` and `b` are reused
    second = asked(spark, ("a", None), ("b", None), ("d", None), ("e", "unasked"), reused=2, calls=1, asked=1)
    usage.add(first)
    usage.add(second)
    usage.add(replace(asked(spark, ("a", "unparsable")), stage=OTHER, usage=Usage()))

    row, other = usage.rows

    assert {name: row[name] for name in ("requests", "reused", "answered", "failed", "unasked")} == {
        "requests": 5,
        "reused": 1,
        "answered": 2,
        "failed": 1,
        "unasked": 1,
    }
    assert (row["stage"], row["calls"], row["retries"], row["cost"], row["seconds"]) == (STAGE.name, 6, 3, 0.5, 3.0)
    assert (other["stage"], other["requests"], other["failed"], other["cost"]) == (OTHER.name, 1, 1, None)


def test_dropped_items_are_counted_once_a_request(spark: SparkSession) -> None:
    def leaking(*rows: tuple[str, str | None, int | None]) -> StageResult:
        frame = spark.createDataFrame(list(rows), f"{RESULTS}, leaked_example long")
        return replace(asked(spark, ("a", None)), stage=OTHER, results=frame)

    usage = Account()
    usage.add(leaking(("a", None, 2), ("a", None, 2), ("b", None, 0)))
    usage.add(leaking(("c", "timeout", None)))
    usage.add(leaking(("a", None, 2), ("d", None, 1)))
    usage.add(asked(spark, ("a", None)))

    assert [(row["stage"], row["leaked_example"]) for row in usage.rows] == [(OTHER.name, 3), (STAGE.name, 0)]


def test_counting_is_one_execution_for_all_stages_and_none_the_second_time(spark: SparkSession) -> None:
    usage = Account()
    for _ in range(3):
        usage.add(asked(spark, ("a", None)))

    with counted_executions(spark) as executions:
        assert usage.rows == usage.rows
    assert executions == [1]
