"""Compare assignments of nuggets with human ones, and the rankings of systems under both; methods, section 17."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from scipy.stats import kendalltau

from untold.jobs.study.agreement import group_means, group_rows, table_rows
from untold.jobs.study.judgements import (
    BY_ITEM,
    BY_QUERY,
    Judgements,
    LabelledUnits,
    MetaEvaluationError,
    Row,
    Source,
    whole_rows,
)
from untold.jobs.study.meta_evaluation import NUGGETS, Study, StudyFindings
from untold.jobs.study.rendering import Columns, document, intervals, pivot, section
from untold.udfs.errors import shorten
from untold.udfs.facts.nugget_measures import SUPPORTS, Nugget, measures_of
from untold.udfs.statistics.confusion import accuracy, kappa
from untold.udfs.statistics.correlation import correlate
from untold.udfs.statistics.intervals import bca_interval
from untold.udfs.statistics.question_resampling import count_tables

METRIC = "nuggets"
READS = ("query_id", "references")
KEY = ("sample_id", "reference_id")
AGREEMENTS = {"kappa": kappa, "accuracy": accuracy}
SYSTEMS, WITHIN = "kendall", "kendall_within_query"
MEASURES = (*AGREEMENTS, SYSTEMS, WITHIN)
PEOPLE, JUDGE = "people", "support"


def _read(_: str, rows: pa.Table) -> pa.Table:
    # A row without an importance is a statement of another kind
    return rows.filter((pc.field("metric") == METRIC) & pc.field("importance").is_valid())


ASSIGNMENTS = Source(
    table="statements",
    required=("metric", *KEY, "importance", "weight", JUDGE),
    optional=(),
    read=_read,
    unit=("nugget", "nuggets"),
    value=("assignment", "assignments"),
    rows="assignments",
    example="reference_id `{1}` of sample `{0}`",
    lenient=True,
)


@dataclass(frozen=True)
class NuggetStudy(Study):
    """A study of assignments of nuggets."""

    source = ASSIGNMENTS

    @cached_property
    def units(self) -> LabelledUnits:
        """The labelled nuggets."""
        return label_nuggets(self.request.input, self.samples)

    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the assignments of the models and of people."""
        settings, clustered = self.request.settings, self.request.cluster
        score, seed = settings.nuggets.score, settings.statistics.seed
        rows = evaluation_rows(join_assignments(self.units, found), score, clustered=clustered, seed=seed)
        return StudyFindings({"meta_evaluation": rows}, render(rows, score, clustered=clustered), {"metrics": [METRIC]})


def label_nuggets(about: str, samples: DataFrame) -> LabelledUnits:
    """Return the labelled nuggets: sample_id, reference_id, topic, system, people.

    `people` is the label of most annotators, None for a tie. Raises MetaEvaluationError for labels that are no
    assignments, and for an input without labels.
    """
    if "references" not in samples.columns:
        raise MetaEvaluationError(f"{about} has no column `references` of {{id, text, importance, labels}}")
    names = [name for name in ("query_id", "query") if name in samples.columns]
    found = []
    for row in samples.select("sample_id", *names, "system", "references").toArrow().to_pylist():
        topic = next((row[name] for name in names if row[name] is not None), None)
        for one in row["references"] or ():
            labels = [label for label in one["labels"] or () if label is not None]
            unknown = next((label for label in labels if label not in SUPPORTS), None)
            if unknown is not None:
                raise MetaEvaluationError(
                    f"{about}: sample `{shorten(row['sample_id'])}` has the label `{shorten(unknown)}`. "
                    f"An assignment is one of {', '.join(SUPPORTS)}"
                )
            if labels:
                named = {"sample_id": row["sample_id"], "reference_id": one["id"], "topic": topic}
                found.append(named | {"system": row["system"], PEOPLE: _majority(labels)})
    if not found:
        raise MetaEvaluationError(f"{about}: no nugget has a label. Give each {{text, importance, assignment}}")
    return LabelledUnits(about, pa.Table.from_pylist(found), KEY)


def _majority(labels: Iterable[str]) -> str | None:
    (first, most), *others = Counter(labels).most_common(2)
    return None if others and others[0][1] == most else first


def join_assignments(units: LabelledUnits, found: Judgements) -> dict[str, list[Row]]:
    """Return by model the labelled nuggets of its run, with their labels and the assignments of the model.

    Raises MetaEvaluationError for a run without a labelled nugget.
    """
    assigned: dict[str, list[Row]] = {}
    for owner, table in found.tables.items():
        rows = zip(units.table.to_pylist(), table.to_pylist(), found.given[owner], strict=True)
        assigned[owner[0]] = [assignment | labels for labels, assignment, given in rows if given]
        if not assigned[owner[0]]:
            raise MetaEvaluationError(f"{owner[0]}: none of its nuggets is labelled. Give a run of the same input")
    return assigned


def evaluation_rows(
    assigned: Mapping[str, Sequence[Row]], score: str, *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """Return the rows of the table `meta_evaluation`.

    `assigned` are the nuggets by model, `score` is a measure of nuggets. Intervals resample samples, or whole queries
    with `clustered`.
    """
    found = [
        {"metric": METRIC, "model": model} | row
        for model, rows in assigned.items()
        for row in (*_agreements(rows, clustered, seed), *_rankings(rows, score, seed))
    ]
    return whole_rows(found, dataset=NUGGETS)


def _agreements(rows: Sequence[Row], clustered: bool, seed: int) -> list[dict[str, Any]]:
    """Return the agreement on the nuggets that people and the model assign."""
    known = _known(rows)
    people, judge = ([SUPPORTS.index(row[who]) for row in known] for who in (PEOPLE, JUDGE))
    owners = [row["topic" if clustered else "sample_id"] for row in known]
    tables = count_tables(people, judge, owners, (len(SUPPORTS), len(SUPPORTS)))
    found = table_rows(AGREEMENTS, tables, excluded=len(rows) - len(known), seed=seed)
    return [row | {"level": BY_ITEM} for row in found]


def _known(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row[PEOPLE] is not None and row[JUDGE] is not None]


def _rankings(rows: Sequence[Row], score: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield Kendall's tau-b of the means of the systems, and the mean of tau-b within the queries."""
    scores = _scores(rows, score)
    people, judge = group_means(scores, "system", (PEOPLE, JUDGE))
    overall = correlate(people, judge, seed=seed)["kendall"]
    yield {"measure": SYSTEMS, "level": "system", **overall.columns(), "excluded": 0}
    by_topic = group_rows(scores, "topic")
    found = [_tau(*group_means(own, "system", (PEOPLE, JUDGE))) for own in by_topic]
    taus = [tau for tau in found if tau is not None]
    within = bca_interval(taus, [1] * len(taus), seed=seed)
    sizes = {"n": len(taus), "excluded": len(by_topic) - len(taus)}
    yield {"measure": WITHIN, "level": BY_QUERY, **within.columns(), **sizes}


def _scores(rows: Sequence[Row], score: str) -> list[Row]:
    """Return topic, system, people and support: both scores of each sample with two defined scores."""
    found: list[Row] = []
    for own in group_rows(_known(rows), "sample_id"):
        values = {
            who: measures_of(Nugget(row["importance"], row[who], row["weight"]) for row in own)[score].value
            for who in (PEOPLE, JUDGE)
        }
        if own[0]["system"] is not None and None not in values.values():
            found.append({"topic": own[0]["topic"], "system": own[0]["system"], **values})
    return found


def _tau(people: Sequence[float], judge: Sequence[float]) -> float | None:
    """Return Kendall's tau-b, None if all systems are equal for people or for the model."""
    if len(set(people)) < 2 or len(set(judge)) < 2:
        return None
    return float(kendalltau(people, judge).statistic)


def render(rows: Sequence[Row], score: str, *, clustered: bool) -> str:
    """Return the report as Markdown, from the rows of the table `meta_evaluation`."""
    units = "whole queries" if clustered else "single samples"
    note = (
        f"kappa and accuracy compare single assignments. Intervals resample {units}. kendall is tau-b of the systems' "
        f"mean `{score}` by people's assignments and the model's. kendall_within_query is the mean of tau-b per query."
    )
    columns: Columns = {"model": "model", "n": "n", **intervals(MEASURES)}
    return document("Meta-evaluation on nuggets", section("Assignments", note, columns, pivot(rows, MEASURES)))
