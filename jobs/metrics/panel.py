"""Label items by a panel of judges. A rule turns the votes on an item into a verdict (methods, section 22).

The model of the run labels the items if the settings have no panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import OUTCOME
from untold.jobs.metrics.base import Tools, contract_rows
from untold.jobs.settings.model import Settings
from untold.udfs.stages import UNASKED

# The error type of an item if the votes do not decide
UNDECIDED = "undecided"
Scale = Mapping[Any, Sequence[Any]]
"""By label the labels that it includes, itself first. The strongest labels come first."""


def ordered(*labels: Any) -> Scale:
    """Return the scale of labels from the strongest to the weakest. A label includes all weaker labels.

    >>> ordered("full", "partial", "none")["partial"]
    ('partial', 'none')
    """
    return {label: labels[place:] for place, label in enumerate(labels)}


def weaker(weakest: str, *labels: str) -> Scale:
    """Return the scale of labels that include only the weakest one."""
    return {**{label: (label, weakest) for label in labels}, weakest: (weakest,)}


COVERED = ordered(True, False)
RELATIONS = weaker("neutral", "entailment", "contradiction")


def ask_judges(
    ask: Callable[[Tools], DataFrame], tools: Tools, settings: Settings, item: Sequence[str], label: str, scale: Scale
) -> DataFrame:
    """Return the result of `ask` with the verdicts of the panel as `label`, and votes. The result has a row per item.

    ask: a function from the tools of a judge to the columns of `item`, `label`, `OUTCOME` and others. The result has
    the other columns of the first judge with the verdict. A verdict is null if the votes do not decide. Its error type
    is `undecided`, or `unasked` if a vote was not requested. votes: array<struct<judge, label, `OUTCOME`>>. The column
    is missing if the settings have no panel.
    """
    if not settings.judges:
        return ask(tools)
    judges = tools.judges()
    frames = [
        ask(own).withColumns({"judge": F.lit(name), "seat": F.lit(seat)})
        for seat, (name, own) in enumerate(judges.items())
    ]
    others = [name for name in frames[0].columns if name not in (*item, label, *OUTCOME, "judge", "seat")]
    vote = F.struct("seat", "judge", F.col(label).alias("label"), *others, *OUTCOME)
    gathered = reduce(DataFrame.unionByName, frames).groupBy(*item).agg(F.array_sort(F.collect_list(vote)).alias("all"))
    labels = F.filter(F.transform("all", lambda one: one["label"]), lambda one: one.isNotNull())
    decide = _majority if settings.judges_rule == "majority" else _common
    decided = gathered.withColumn("labels", labels).withColumn("verdict", decide("labels", len(judges), scale))
    first = F.get(F.filter("all", lambda one: one["label"] == F.col("verdict")), F.lit(0))
    is_open = F.col("verdict").isNull()
    waits = F.exists("all", lambda one: one["error_type"].eqNullSafe(UNASKED))
    verdicts = decided.select(
        *item,
        F.col("verdict").alias(label),
        *(first[name].alias(name) for name in (*others, "request_id")),
        F.when(is_open & waits, UNASKED).when(is_open, UNDECIDED).alias("error_type"),
        F.when(is_open, _describe(settings.judges_rule)).alias("error"),
        F.transform("all", _shown).alias("votes"),
    )
    return tools.keep(verdicts, "verdicts-of-judges")


def _majority(labels: str, judges: int, _: Scale) -> Column:
    """Return the label of more than half of all judges, which no missing vote can change, or null."""

    def wins(label: Column) -> Column:
        return F.size(F.filter(labels, lambda other: other == label)) * 2 > judges

    return F.get(F.filter(F.array_distinct(labels), wins), F.lit(0))


def _common(labels: str, judges: int, scale: Scale) -> Column:
    """Return the strongest label that the labels of all judges include, or null if a missing vote could weaken it."""
    included = F.create_map(*(part for label, own in scale.items() for part in (F.lit(label), _listed(own))))
    start = _listed(list(scale))
    both = F.aggregate(F.transform(labels, lambda label: included[label]), start, F.array_intersect)
    is_known = (F.size(labels) == judges) | (F.size(both) == 1)
    return F.when(is_known, F.get(both, F.lit(0)))


def _listed(labels: Sequence[Any]) -> Column:
    return F.array(*map(F.lit, labels))


def _shown(vote: Column) -> Column:
    columns = {"judge": vote["judge"], "label": vote["label"].cast("string"), **{name: vote[name] for name in OUTCOME}}
    return F.struct(*(column.alias(name) for name, column in columns.items()))


def _describe(rule: str) -> Column:
    """Return a line with the votes: labels are codes, and no texts."""
    labels = F.transform(
        "all",
        lambda one: F.concat_ws(" ", one["judge"], F.coalesce(one["label"].cast("string"), F.lit("without a label"))),
    )
    return F.concat(F.lit(f"the votes do not decide ({rule}): "), F.array_join(labels, ", "))


def votes_in(judged: DataFrame) -> tuple[str, ...]:
    """Return the name of the column of votes, or nothing without a panel."""
    return ("votes",) if "votes" in judged.columns else ()


def vote_rows(metric: str, stage: str, judged: DataFrame, *item: str | Column) -> dict[str, DataFrame]:
    """Return the table `votes` of the items of a stage (sample_id and votes), or no table without a panel.

    item: the parts of the item's id after the sample and the metric. Nulls are left out.
    """
    if not votes_in(judged):
        return {}
    named = F.concat_ws(":", "sample_id", F.lit(metric), *item).alias("item_id")
    rows = judged.select("sample_id", named, F.inline("votes"))
    return {"votes": contract_rows("votes", metric, rows, stage=F.lit(stage))}
