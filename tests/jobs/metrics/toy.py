"""A metric of somebody else's package: the share of a response's words that occur in its contexts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.results import failure_rows, has_failed, is_unasked
from untold.jobs.metrics.base import Assumptions, Metric, Tables, Tools
from untold.jobs.metrics.scores import score_columns, status_of
from untold.jobs.settings.model import Settings
from untold.udfs.stages.definitions import StageDefinition, Unparsable


def read_words(completion: str, _: Mapping[str, Any]) -> Mapping[str, Any]:
    """The words of lines `- word`. Raises Unparsable where there is none."""
    words = [line.removeprefix("- ").strip() for line in completion.splitlines() if line.startswith("- ")]
    if not words:
        raise Unparsable("no line of the form `- word`")
    return {"words": words}


LIST_WORDS = StageDefinition("list_words", ("text",), read_words, pa.schema([("words", pa.list_(pa.string()))]))


def score(samples: DataFrame, tools: Tools, _: Settings) -> Tables:
    """One row a sample of `scores`: words of the response found in the contexts, and words that are not."""
    rows = samples.select("sample_id", "system", "contexts", F.col("response").alias("text"))
    listed = tools.ask("list_words", rows, carry=("sample_id", "system", "contexts"))
    found = F.filter(
        "words", lambda word: F.exists("contexts", lambda context: F.contains(F.lower(context["text"]), F.lower(word)))
    )
    status = status_of(lost=has_failed(), waiting=is_unasked(), empty=F.size("words") == 0, partial=F.lit(False))
    nothing = [F.lit(None).cast("double").alias(name) for name in ("unjudged", "low", "high")]
    counts = [F.size(found).alias("covered"), (F.size("words") - F.size(found)).alias("uncovered")]
    scores = listed.select("sample_id", "system", *counts, *nothing, status.alias("status"))
    return {"scores": scores.select(*score_columns("words")), "failures": failure_rows("words", "list_words", listed)}


WORDS = Metric(
    name="words",
    stages=lambda _: ("list_words",),
    score=score,
    assume=lambda settings: Assumptions(settings, {"list_words": {"words": F.array(F.lit("word"))}}),
    tables=("scores", "failures"),
)
