"""A metric of another package: the share of a response's words that occur in its contexts."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import failure_rows, has_failed, is_unasked
from untold.jobs.metrics.base import Assumptions, Metric, Tables, Tools, score_columns, status_of
from untold.jobs.metrics.views import View
from untold.jobs.settings.fields import Count, Section
from untold.jobs.settings.model import Settings
from untold.udfs.stages.definitions import StageDefinition, Unparsable


class ToySettings(Section):
    letters: Count = Field(default=1, description="Fewest letters of a word that counts")


class WordView(View):
    dropped = "of fewer letters than toy.letters"


def read_words(completion: str, _: Mapping[str, Any]) -> Mapping[str, Any]:
    """The words of lines `- word`. Raises Unparsable where there is none."""
    words = [line.removeprefix("- ").strip() for line in completion.splitlines() if line.startswith("- ")]
    if not words:
        raise Unparsable("no line of the form `- word`")
    return {"words": words}


def score(samples: DataFrame, tools: Tools, settings: Settings) -> Tables:
    """One row a sample of `scores`: words of the response found in the contexts, and words that are not."""
    rows = samples.select("sample_id", "system", "contexts", F.col("response").alias("text"))
    listed = tools.ask("list_words", rows, carry=("sample_id", "system", "contexts"))
    long = F.filter("words", lambda word: F.length(word) >= settings.of(ToySettings).letters)
    text = F.lower(F.concat_ws("\n", "contexts.text"))
    found = F.size(F.filter(long, lambda word: F.contains(text, F.lower(word))))
    status = status_of(lost=has_failed(), waiting=is_unasked(), empty=F.size(long) == 0, partial=F.lit(False))
    counts = {"covered": found, "uncovered": F.size(long) - found, "short": F.size("words") - F.size(long)}
    nothing = dict.fromkeys(("unjudged", "low", "high"), F.lit(None).cast("double"))
    scores = listed.withColumns({**counts, **nothing, "status": status}).select(*score_columns("words", F.col("short")))
    return {"scores": scores, "failures": failure_rows("words", "list_words", listed)}


LIST_WORDS = StageDefinition("list_words", ("text",), read_words, pa.schema([("words", pa.list_(pa.string()))]))
WORDS = Metric(
    name="words",
    stages=lambda _: ("list_words",),
    score=score,
    assume=lambda settings: Assumptions(settings, {"list_words": {"words": F.array(F.lit("word"))}}),
    tables=("scores", "failures"),
    sections={"toy": ToySettings},
    view=WordView,
)
