"""Rubrics (HealthBench, ResearchRubrics, RACE; docs/methods.md, section 18): the points of the criteria that hold.

A judge labels criteria in lists, and each criterion without a clear verdict is requested again. Negative points are for
content that a response should avoid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import is_unasked
from untold.jobs.metrics import base
from untold.jobs.metrics.judging import NumberedList
from untold.jobs.metrics.panel import ordered, vote_rows
from untold.jobs.metrics.settings import RubricSettings
from untold.jobs.metrics.views import RubricView
from untold.jobs.settings.model import Settings
from untold.udfs.facts import rubric_measures
from untold.udfs.samples import citations
from untold.udfs.samples.items import MOST_LEVELS

NAME, JUDGE = "rubric", "judge_criteria"
RESPONSE, REFERENCE, UNBLOCKED = SIDES = "response", "reference", "unblocked"
# A level includes the lower levels
VERDICTS = {
    **ordered(*rubric_measures.VERDICTS),
    **ordered(*(f"{rubric_measures.LEVEL}{number}" for number in range(MOST_LEVELS, 0, -1))),
}
# The suffix of means that are clipped to 0 and 1, as HealthBench clips its score
CLIPPED = "_clipped"
_MEANS = ("mean", "ci_low", "ci_high", "mean_low", "mean_high")


def needs(settings: Settings) -> tuple[str, ...]:
    """Return the columns that samples must have. A relative score compares with the ground truth."""
    reference = ("ground_truth",) if settings.rubric.score == rubric_measures.RELATIVE else ()
    return ("query", "response", "rubric", *reference)


def unknown_bounds(settings: Settings) -> base.Bounds:
    """Return the bounds of a sample of which nothing is known. Points to avoid have no lower end."""
    relative = {rubric_measures.REFERENCE: (None, 1.0), rubric_measures.RELATIVE: (0.0, 1.0)}
    return {
        **dict.fromkeys((rubric_measures.STRICT, rubric_measures.LENIENT), (None, 1.0)),
        rubric_measures.CRITERIA: (None, None),
        **(relative if settings.rubric.score == rubric_measures.RELATIVE else {}),
    }


def assume(settings: Settings) -> base.Assumptions:
    """Assume a clear verdict for each criterion."""
    return base.Assumptions(settings, {JUDGE: _lists(settings).assumed(rubric_measures.MET)})


def _lists(settings: Settings) -> NumberedList:
    outputs = {"verdicts": "verdict", "reasons": "reason"}
    return NumberedList(JUDGE, settings.rubric.list_size, {"criteria": "text", "levels": "levels"}, outputs)


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Score valid samples (columns of the table `samples`): the tables of `METRIC`.

    A lost verdict leaves values with bounds. Systems with one query and one ground truth share its verdicts.
    """
    own = settings.rubric
    given = _given(samples, relative=own.score == rubric_measures.RELATIVE)
    calls = base.StageCalls(NAME, tools)
    verdicts = _lists(settings).judge(tools, settings, VERDICTS, _to_judge(given), "sample_id", "side")
    judged = calls.record(JUDGE, tools.keep(verdicts, "judged-criteria"))
    concluded = tools.keep(_conclude(given, judged, own.score), "concluded")
    known = base.with_status(samples, concluded)
    return {
        "criteria": base.contract_rows("criteria", NAME, concluded.select("sample_id", F.inline("criteria"))),
        "scores": base.measured_scores(known, NAME, own.score, F.lit(0), always=True),
        "measures": base.bounded_measures(known, NAME),
        "failures": calls.failures(),
        **vote_rows(NAME, JUDGE, judged, "number", F.nullif("side", F.lit(RESPONSE))),
    }


def _given(samples: DataFrame, *, relative: bool) -> DataFrame:
    """Return sample_id, query, rubric, the texts of all `SIDES`, null if not judged, and if each is blank.

    reference is null unless relative. unblocked is null unless a sentence cites one of the `blocked_sources`.
    """
    reference = F.col("ground_truth.text") if relative else F.lit(None).cast("string")
    (blocked,) = base.optional_columns(samples, ("blocked_sources",))
    named = samples.select("sample_id", "query", "response", reference.alias("reference"), "rubric", blocked)
    cut = named.where(F.size("blocked_sources") > 0).select("sample_id", "response", "blocked_sources")
    unblocked = base.map_rows(cut, citations.unblocked_batches)
    blank = {"blank": base.is_blank(RESPONSE)} | {f"{side}_blank": base.is_blank(side) for side in SIDES[1:]}
    return named.join(unblocked, on="sample_id", how="left").withColumns(blank)


def _to_judge(given: DataFrame) -> DataFrame:
    """Return sample_id, side, query, response, listed: the texts that are not blank, with the criteria as numbered."""
    listed = F.transform(
        "rubric",
        lambda one, place: F.struct(
            (place + 1).alias("number"), one["text"].alias("text"), _level_lines(one["levels"]).alias("levels")
        ),
    )
    texts = F.array(*(F.struct(F.lit(side).alias("side"), F.col(side).alias("text")) for side in SIDES))
    rows = given.select("sample_id", "query", listed.alias("listed"), F.explode(texts).alias("one"))
    named = rows.select("sample_id", "query", "listed", "one.side", F.col("one.text").alias("response"))
    return named.where(F.col("response").isNotNull() & ~base.is_blank("response"))


def _level_lines(levels: Column) -> Column:
    return F.transform(levels, lambda one: F.concat_ws(": ", one["label"], one["text"]))


def _conclude(given: DataFrame, judged: DataFrame, score: str) -> DataFrame:
    """Return the columns of `CONCLUDED`, lost (no verdict is known) and waiting: one row per sample.

    waiting: true if a criterion was not requested.
    """
    one = F.struct("number", "verdict", "reason")
    by_sample = judged.groupBy("sample_id").agg(
        # collect_list skips nulls
        F.collect_list(F.when(F.col("side") == RESPONSE, one)).alias("judged"),
        *(F.collect_list(F.when(F.col("side") == side, one)).alias(side) for side in SIDES[1:]),
        F.max(is_unasked()).alias("waiting"),
    )
    blank = ("blank", *(f"{side}_blank" for side in SIDES[1:]))
    is_blocked = F.col("blocked_sources").isNotNull().alias("is_blocked")
    rows = given.select("sample_id", "rubric", *blank, is_blocked).join(by_sample, on="sample_id", how="left")
    concluded = base.conclude(rows, rubric_measures.conclude_batches, score=score)
    is_lost = ~F.col("known") & ~F.col("empty") & ~F.coalesce("waiting", F.lit(False)) & (F.col("unjudged") > 0)
    return concluded.withColumn("lost", is_lost)


def clipped_means(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of `measures_summary` with the means of the net measures, clipped to 0 and 1."""
    return [
        {
            **row,
            "measure": row["measure"] + CLIPPED,
            **{name: None if row[name] is None else min(1.0, max(0.0, row[name])) for name in _MEANS},
        }
        for row in rows
        if row["measure"] in (rubric_measures.STRICT, rubric_measures.LENIENT)
    ]


METRIC = base.Metric(
    name=NAME,
    stages=lambda _: (JUDGE,),
    score=score,
    assume=assume,
    sections={NAME: RubricSettings},
    judged=lambda _: (JUDGE,),
    settings=(NAME,),
    tables=("criteria", "scores", "measures", "failures"),
    needs=needs,
    reads=("rubric", "ground_truth", "blocked_sources"),
    unknown=unknown_bounds,
    derived=clipped_means,
    view=RubricView,
)
