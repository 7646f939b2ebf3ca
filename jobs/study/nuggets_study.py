"""Compare assignments of nuggets and verdicts on criteria with human ones; methods, sections 17 and 18."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from scipy.stats import kendalltau

from untold.jobs.study.agreement import group_means, group_rows, verdict_rows
from untold.jobs.study.judgements import (
    BY_ITEM,
    BY_QUERY,
    Judgements,
    LabelledUnits,
    MetaEvaluationError,
    Row,
    Source,
    check_labels,
    fold_label,
    whole_rows,
)
from untold.jobs.study.meta_evaluation import NUGGETS, RUBRICS, Study, StudyFindings
from untold.jobs.study.rendering import Columns, document, intervals, pivot, section
from untold.udfs.errors import shorten
from untold.udfs.facts.nugget_measures import SUPPORTS, Nugget, measures_of
from untold.udfs.facts.rubric_measures import DIMENSION, MET, NOT_MET, PARTLY, VERDICTS
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1
from untold.udfs.statistics.correlation import correlate
from untold.udfs.statistics.intervals import bca_interval

METRIC, RUBRIC = "nuggets", "rubric"
READS = ("query_id", "references", RUBRIC)
AGREEMENTS = {"kappa": kappa, "accuracy": accuracy}
OF_CRITERIA = {"macro_f1": macro_f1, **AGREEMENTS}
SYSTEMS, WITHIN = "kendall", "kendall_within_query"
MEASURES = (*AGREEMENTS, SYSTEMS, WITHIN)
PEOPLE, JUDGE = "people", "support"
# The keys of a nugget and of a criterion
NUGGET, CRITERION = ("sample_id", "reference_id"), ("sample_id", "criterion_id")


# The verdicts by the labels of people
LABELS = {
    **{verdict: verdict for verdict in VERDICTS},
    **dict.fromkeys(("true", "yes", "1", "satisfied"), MET),
    "partially_satisfied": PARTLY,
    **dict.fromkeys(("false", "no", "0", "not_satisfied"), NOT_MET),
}


def _read(_: str, rows: pa.Table) -> pa.Table:
    # A row without an importance is a statement of another kind
    return rows.filter((pc.field("metric") == METRIC) & pc.field("importance").is_valid())


def _read_criteria(_: str, rows: pa.Table) -> pa.Table:
    return rows.filter(pc.field("metric") == RUBRIC)


ASSIGNMENTS = Source(
    table="statements",
    required=("metric", *NUGGET, "importance", "weight", JUDGE),
    optional=(),
    read=_read,
    unit=("nugget", "nuggets"),
    value=("assignment", "assignments"),
    rows="assignments",
    example="reference_id `{1}` of sample `{0}`",
    lenient=True,
)
CRITERIA = Source(
    table="criteria",
    required=("metric", *CRITERION, "verdict"),
    optional=(),
    read=_read_criteria,
    unit=("criterion", "criteria"),
    value=("verdict", "verdicts"),
    rows="verdicts",
    example="criterion_id `{1}` of sample `{0}`",
    lenient=True,
)


@dataclass(frozen=True)
class NuggetStudy(Study):
    """A study of assignments of nuggets."""

    source = ASSIGNMENTS

    @cached_property
    def units(self) -> LabelledUnits:
        """The labelled nuggets, with the label of most annotators, None for a tie."""
        return label_parts(self, "references", "text, importance, assignment", NUGGET, SUPPORTS, _majority)

    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the assignments of the models and of people."""
        request, score = self.request, self.request.settings.nuggets.score
        rows = evaluation_rows(join_verdicts(self.units, found), score, **request.resampling)
        report = render(rows, score, clustered=request.cluster)
        return StudyFindings({"meta_evaluation": rows}, report, {"metrics": [METRIC]})


@dataclass(frozen=True)
class RubricStudy(Study):
    """A study of verdicts on criteria."""

    source = CRITERIA

    @cached_property
    def units(self) -> LabelledUnits:
        """The labelled criteria without levels, with a verdict per annotator."""
        return label_parts(self, RUBRIC, "text, labels", CRITERION, LABELS, lambda own: [LABELS[one] for one in own])

    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the verdicts of the models and of people with the verdicts of people."""
        judged = join_verdicts(self.units, found)
        rows = criterion_rows(self.units.table.to_pylist(), judged, **self.request.resampling)
        return StudyFindings({"meta_evaluation": rows}, render_criteria(rows), {"metrics": [RUBRIC]})


def label_parts(
    study: Study,
    column: str,
    fields: str,
    key: tuple[str, str],
    known: Collection[str],
    people: Callable[[Sequence[str]], Any],
) -> LabelledUnits:
    """Return the labelled parts of samples: the columns of the key, topic, system, dimension, people.

    `column` has the parts with these `fields`, and `people` returns the column `people` from the labels of a part.
    Raises MetaEvaluationError for labels that are not `known`, and for an input without labels.
    """
    about, samples, part = study.request.input, study.samples, study.source.unit
    names = [name for name in ("query_id", "query") if name in samples.columns]
    given = samples.select("sample_id", *names, "system", column) if column in samples.columns else samples.limit(0)
    found = []
    for row in given.toArrow().to_pylist():
        topic = next((row[name] for name in names if row[name] is not None), None)
        for one in row[column] or ():
            labels = [fold_label(label) for label in one["labels"] or () if label is not None]
            check_labels(f"{about}: sample `{shorten(row['sample_id'])}`", labels, known, part)
            if labels and not one.get("levels"):
                shared = {"topic": topic, "system": row["system"], "dimension": one.get("dimension")}
                named = dict(zip(key, (row["sample_id"], one["id"]), strict=True))
                found.append(named | shared | {PEOPLE: people(labels)})
    if not found:
        raise MetaEvaluationError(f"{about}: no {part[0]} in the column `{column}` has a label. Give each {{{fields}}}")
    return LabelledUnits(about, pa.Table.from_pylist(found), key)


def _majority(labels: Sequence[str]) -> str | None:
    (first, most), *others = Counter(labels).most_common(2)
    return None if others and others[0][1] == most else first


def join_verdicts(units: LabelledUnits, found: Judgements) -> dict[str, list[Row]]:
    """Return by model the labelled parts of its run, with their labels and the verdicts of the model.

    Raises MetaEvaluationError for a run without a labelled part.
    """
    judged: dict[str, list[Row]] = {}
    for owner, table in found.tables.items():
        rows = zip(units.table.to_pylist(), table.to_pylist(), found.given[owner], strict=True)
        judged[owner[0]] = [verdict | labels for labels, verdict, given in rows if given]
        if not judged[owner[0]]:
            raise MetaEvaluationError(f"{owner[0]}: none of its nuggets is labelled. Give a run of the same input")
    return judged


def evaluation_rows(
    assigned: Mapping[str, Sequence[Row]], score: str, *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """Return the rows of the table `meta_evaluation`.

    `assigned` are the nuggets by model, `score` is a measure of nuggets. Intervals resample samples, or whole queries
    with `clustered`.
    """
    found = []
    for model, rows in assigned.items():
        pairs = [(row[PEOPLE], row[JUDGE]) for row in rows]
        owners = [row["topic" if clustered else "sample_id"] for row in rows]
        agreements = verdict_rows(AGREEMENTS, SUPPORTS, pairs, owners, seed=seed)
        every = [*({"level": BY_ITEM, **row} for row in agreements), *_rankings(rows, score, seed)]
        found += [{"model": model, **row} for row in every]
    return whole_rows(found, dataset=NUGGETS, metric=METRIC)


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
    known = [row for row in rows if row[PEOPLE] is not None and row[JUDGE] is not None]
    for own in group_rows(known, "sample_id"):
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
    columns: Columns = ["model", "n", *intervals(MEASURES)]
    return document("Meta-evaluation on nuggets", section("Assignments", note, columns, pivot(rows, MEASURES)))


def criterion_rows(
    units: Sequence[Row], judged: Mapping[str, Sequence[Row]], *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """Return the rows of the table `meta_evaluation`, of all criteria and by dimension.

    units: the criteria with the verdicts of people; judged: the same with `verdict`, by model. A verdict of a model is
    compared with each annotator's. The human ceiling (model null) compares each annotator with each other one. If no
    annotator calls a criterion partly met, a verdict partly_met counts as not_met. Intervals resample samples, or
    whole queries with `clustered`.
    """
    has_partly = any(PARTLY in row[PEOPLE] for row in units)
    sides: dict[str | None, list[tuple[Row, str, str | None]]] = {
        model: [(row, label, row["verdict"]) for row in rows for label in row[PEOPLE]] for model, rows in judged.items()
    }
    sides[None] = [(row, other, one) for row in units for one, other in permutations(row[PEOPLE], 2)]
    found = []
    for model, compared in sides.items():
        names = sorted({row["dimension"] for row, *_ in compared if row["dimension"] is not None})
        for dimension in (None, *names):
            own = [pair for pair in compared if dimension in (None, pair[0]["dimension"])]
            pairs = [(label, NOT_MET if verdict == PARTLY and not has_partly else verdict) for _, label, verdict in own]
            owners = [row["topic" if clustered else "sample_id"] for row, *_ in own]
            suffix = "" if dimension is None else f":{DIMENSION}{dimension}"
            found += [
                row | {"metric": model and RUBRIC, "model": model, "level": BY_ITEM, "measure": row["measure"] + suffix}
                for row in verdict_rows(OF_CRITERIA, VERDICTS, pairs, owners, seed=seed)
            ]
    return whole_rows(found, dataset=RUBRICS)


def render_criteria(rows: Sequence[Row]) -> str:
    """Return the report as Markdown, from the rows of the table `meta_evaluation`."""
    note = (
        "Each verdict of a model is compared with the verdict of each annotator. The row people is the human ceiling: "
        "each annotator is compared with each other one."
    )
    named = [dict(row) | {"model": row["model"] or PEOPLE, "metric": RUBRIC} for row in rows]
    dimensions = dict.fromkeys(row["measure"].partition(":")[2] for row in named)
    parts = []
    for name in dimensions:
        measures = [f"{measure}:{name}" if name else measure for measure in OF_CRITERIA]
        own = [row for row in named if row["measure"] in measures]
        columns: Columns = ["model", "n", *intervals(measures)]
        parts.append(
            section(name.removeprefix(DIMENSION) or "Criteria", "" if name else note, columns, pivot(own, measures))
        )
    return document("Meta-evaluation on rubrics", *parts)
