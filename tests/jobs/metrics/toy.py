"""A metric of another package: the share of a response's words that occur in its contexts."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics.base import Assumptions, Metric, StageCalls, Tables, Tools, score_columns, with_status
from untold.jobs.metrics.views import View
from untold.jobs.settings.fields import Count, Section
from untold.jobs.settings.model import Settings
from untold.udfs.stages.definitions import StageDefinition, Unparsable


class ToySettings(Section):
    letters: Count = Field(default=1, description="Fewest letters of a word that counts")


class WordView(View):
    dropped = "of fewer letters than toy.letters"


def read_words(completion: str, _: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the words of lines `- word`. Raises Unparsable if there is none."""
    words = [line.removeprefix("- ").strip() for line in completion.splitlines() if line.startswith("- ")]
    if not words:
        raise Unparsable("no line of the form `- word`")
    return {"words": words}


def score(samples: DataFrame, tools: Tools, settings: Settings) -> Tables:
    """Return one row of `scores` per sample: the number of words in the contexts, and of the other words."""
    calls = StageCalls("words", tools)
    rows = samples.select("sample_id", "contexts", F.col("response").alias("text"))
    listed = calls.ask("list_words", rows, carry=("sample_id", "contexts"))
    long = F.filter("words", lambda word: F.length(word) >= settings.of(ToySettings).letters)
    text = F.lower(F.concat_ws("\n", "contexts.text"))
    found = F.size(F.filter(long, lambda word: F.contains(text, F.lower(word))))
    counts = {"covered": found, "uncovered": F.size(long) - found, "short": F.size("words") - F.size(long)}
    nothing = dict.fromkeys(("unjudged", "low", "high"), F.lit(None).cast("double"))
    counted = listed.withColumns({**counts, **nothing, "empty": F.size(long) == 0})
    judged = with_status(samples, counted, calls.incomplete())
    return {"scores": judged.select(*score_columns("words", F.col("short"))), "failures": calls.failures()}


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
