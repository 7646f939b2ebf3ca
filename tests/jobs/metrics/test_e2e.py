"""Test the metric with scripted stage results: the statuses, statements and failures, and the requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.metrics import e2e
from untold.jobs.metrics.base import Tables
from untold.jobs.metrics.summaries import summarise_contexts
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.jobs.tables import SAMPLES

ERRORS = "request_id string, error_type string, error string"
STATEMENTS = "array<struct<text string, covered boolean, sources array<int>>>"
Sample = tuple[str, str, str, list[tuple[str, str, None]], str | None, str | None]


def sample(name: str, *texts: str, response: str = "answer") -> Sample:
    return (name, "query", response, [(f"c{number}", text, None) for number, text in enumerate(texts)], "system", None)


def refuse(*arguments: Any) -> Any:
    raise AssertionError("the metric has no graph")


class Stages:
    """Return completions by the text of a context or response, and record the requests."""

    def __init__(self) -> None:
        self.asked: dict[str, list[dict[str, Any]]] = {}

    keep = condense = staticmethod(refuse)

    def on(self, samples: DataFrame, *, summarise: bool) -> Stages:
        """Return the tools for these samples."""
        self.samples, self.summarise = samples, summarise
        return self

    def contexts(self) -> DataFrame:
        return summarise_contexts(self.samples, self.ask, summarise=self.summarise)

    def ask(self, stage: str, rows: Any, carry: Iterable[str] = ()) -> DataFrame:
        self.asked[stage] = [row.asDict(recursive=True) for row in rows.collect()]
        answer = self._summary if stage == "summarise_context" else self._coverage
        result = [tuple(row[name] for name in carry) + answer(row) for row in self.asked[stage]]
        output = "summary string" if stage == "summarise_context" else f"statements {STATEMENTS}, dropped long"
        schema = ", ".join(f"`{name}` {rows.schema[name].dataType.simpleString()}" for name in carry)
        return rows.sparkSession.createDataFrame(result, f"{schema}, {output}, {ERRORS}")

    def _summary(self, row: dict[str, Any]) -> tuple[Any, ...]:
        text = row["text"]
        if text in ("timeout", "unasked"):
            return (None, f"id-{text}", text, "why")
        return (None if text == "nothing" else f"short {text}", "id", None, None)

    def _coverage(self, row: dict[str, Any]) -> tuple[Any, ...]:
        response = row["response"]
        if response in ("unparsable", "unasked"):
            return (None, None, "id-2", response, "why")
        if response == "empty":
            return ([], 0, "id-2", None, None)
        return ([("told", True, [1]), ("untold", False, [1, 2]), ("also untold", False, [])], 2, "id-2", None, None)


@pytest.fixture
def stages() -> Stages:
    return Stages()


def score(spark: SparkSession, stages: Stages, samples: list[Sample], *, summarise: bool = True) -> Tables:
    frame = spark.createDataFrame(samples, spark_schema(SAMPLES))
    return score_frame(stages, frame, summarise=summarise)


def score_frame(stages: Stages, samples: DataFrame, *, summarise: bool) -> Tables:
    return e2e.score(samples, stages.on(samples, summarise=summarise), Settings(summarise_contexts=summarise))


def only(frame: DataFrame) -> dict[str, Any]:
    (row,) = frame.collect()
    return row.asDict(recursive=True)


def test_a_judged_sample_has_its_share_of_covered_statements(spark: SparkSession, stages: Stages) -> None:
    row = only(score(spark, stages, [sample("s", "one", "two")])["scores"])
    assert row == {
        "sample_id": "s",
        "metric": "e2e",
        "system": "system",
        "score": pytest.approx(1 / 3),
        "score_low": pytest.approx(1 / 3),
        "score_high": pytest.approx(1 / 3),
        "covered": 1,
        "uncovered": 2,
        "unjudged": 0,
        "dropped": 2,
        "status": "ok",
    }


def test_numbers_of_the_contexts_shown_become_their_ids(spark: SparkSession, stages: Stages) -> None:
    statements = score(spark, stages, [sample("s", "nothing", "one", "two")])["statements"].orderBy("statement_id")
    found = [(row["text"], row["covered"], row["sources"]) for row in statements.collect()]
    assert found == [("told", True, ["c1"]), ("untold", False, ["c1", "c2"]), ("also untold", False, [])]
    assert stages.asked["evaluate_coverage"][0]["contexts"] == ["short one", "short two"]


def test_contexts_without_summaries_are_sent_unchanged(spark: SparkSession, stages: Stages) -> None:
    score(spark, stages, [sample("s", "one", "two")], summarise=False)["scores"].collect()
    assert list(stages.asked) == ["evaluate_coverage"]
    assert stages.asked["evaluate_coverage"][0]["contexts"] == ["one", "two"]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("one", "status", "judged"),
    [
        (sample("s"), "no_statements", 0),
        (sample("s", "nothing"), "no_statements", 0),
        (sample("s", "one", response="empty"), "no_statements", 1),
        (sample("s", "one", "timeout"), "failed", 0),
        (sample("s", "one", "unasked"), "budget", 0),
        (sample("s", "timeout", "unasked"), "failed", 0),
        (sample("s", "one", response="unparsable"), "failed", 1),
        (sample("s", "one", response="unasked"), "budget", 1),
    ],
)
def test_what_is_not_judged_has_no_score(
    spark: SparkSession, stages: Stages, one: Sample, status: str, judged: int
) -> None:
    row = only(score(spark, stages, [one])["scores"])
    assert (row["status"], row["score"]) == (status, None)
    bounds = (None, None) if status == "no_statements" else (0.0, 1.0)
    assert (row["score_low"], row["score_high"]) == bounds
    assert len(stages.asked["evaluate_coverage"]) == judged


def test_failures_name_stage_request_and_reason_once_a_sample(spark: SparkSession, stages: Stages) -> None:
    samples = [sample("s", "timeout", "timeout", "one"), sample("t", "one", response="unparsable")]
    failures = score(spark, stages, samples)["failures"].orderBy("sample_id").collect()
    found = [(row["sample_id"], row["stage"], row["request_id"], row["error_type"]) for row in failures]
    assert found == [
        ("s", "summarise_context", "id-timeout", "timeout"),
        ("t", "evaluate_coverage", "id-2", "unparsable"),
    ]


def test_an_unsent_request_is_not_a_failure(spark: SparkSession, stages: Stages) -> None:
    samples = [sample("s", "unasked"), sample("t", "one", response="unasked")]
    assert score(spark, stages, samples)["failures"].count() == 0


def test_columns_of_the_input_may_have_any_name(spark: SparkSession, stages: Stages) -> None:
    frame = spark.createDataFrame([sample("s", "one")], spark_schema(SAMPLES))
    for name in ("kept", "failed", "unasked", "request_id", "position", "verdict"):
        frame = frame.withColumn(name, F.lit("of the user"))
    assert only(score_frame(stages, frame, summarise=True)["scores"])["status"] == "ok"


def test_statement_ids_are_unique_over_samples(spark: SparkSession, stages: Stages) -> None:
    statements = score(spark, stages, [sample(f"s{number}", "one") for number in range(5)])["statements"]
    assert statements.agg(F.count_distinct("statement_id")).first() == (15,)
