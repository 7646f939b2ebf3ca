"""Answer relevancy (DeepEval; docs/methods.md, section 21): the share of sentences that address the query.

A judge labels the sentences of a response in lists. The metric needs neither contexts nor a ground truth.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics import base
from untold.jobs.metrics.grounded_claims import covered_statements
from untold.jobs.metrics.judging import NumberedList
from untold.jobs.metrics.settings import AnswerRelevancySettings
from untold.jobs.metrics.views import RelevancyView
from untold.jobs.settings.model import Settings
from untold.udfs.facts import citation_measures

NAME, JUDGE = "answer_relevancy", "judge_relevancy"
UNKNOWN = base.bounds_of(citation_measures.CREDITED, citation_measures.SENTENCES)


def assume(settings: Settings) -> base.Assumptions:
    """Assume a clear label for each sentence."""
    return base.Assumptions(settings, {JUDGE: _lists(settings).assumed(citation_measures.RELEVANT)})


def _lists(settings: Settings) -> NumberedList:
    outputs = {"labels": "label", "reasons": "reason"}
    return NumberedList(JUDGE, settings.answer_relevancy.list_size, {"sentences": "text"}, outputs)


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Score valid samples (columns of the table `samples`): the tables of `METRIC`.

    A missing label leaves values with bounds. A sample without any label failed.
    """
    cut = tools.keep(
        base.map_rows(samples.select("sample_id", "query", "response"), citation_measures.cut_sentences), "sentences"
    )
    calls = base.StageCalls(NAME, tools)
    labels = _lists(settings).ask(tools, cut, "sample_id")
    judged = calls.record(JUDGE, tools.keep(labels, "judged-sentences"))
    concluded = tools.keep(_conclude(cut, judged), "concluded")
    known = base.with_status(samples, concluded)
    return {
        "statements": covered_statements(known.where(base.is_judged()), NAME),
        "scores": base.measured_scores(known, NAME, citation_measures.RELEVANCY, F.lit(0)),
        "measures": base.measure_rows(known, NAME, UNKNOWN),
        "failures": calls.failures(),
    }


def _conclude(cut: DataFrame, judged: DataFrame) -> DataFrame:
    """Return the conclusions, lost, and waiting: true if a sentence was not requested. A row per sample."""
    rows = cut.join(base.collect(judged, "judged", "number", "label", "reason"), on="sample_id", how="left")
    concluded = base.conclude(rows, citation_measures.conclude_relevancy)
    is_lost = ~F.col("empty") & (F.col("covered") + F.col("uncovered") == 0) & ~F.coalesce("waiting", F.lit(False))
    return concluded.withColumn("lost", is_lost)


METRIC = base.Metric(
    name=NAME,
    stages=lambda _: (JUDGE,),
    score=score,
    assume=assume,
    sections={NAME: AnswerRelevancySettings},
    settings=(NAME,),
    tables=("statements", "scores", "measures", "failures"),
    needs=("query", "response"),
    unknown=UNKNOWN,
    view=RelevancyView,
)
