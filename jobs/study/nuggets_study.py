"""Compare assignments of nuggets and verdicts on criteria with human ones; methods, sections 17 and 18."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
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
from untold.jobs.study.meta_evaluation import NUGGETS, RUBRICS, Study, StudyFindings
from untold.jobs.study.rendering import Columns, document, intervals, pivot, section
from untold.udfs.errors import shorten
from untold.udfs.facts.nugget_measures import SUPPORTS, Nugget, measures_of
from untold.udfs.facts.rubric_measures import DIMENSION, MET, NOT_MET, PARTLY, VERDICTS
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1
from untold.udfs.statistics.correlation import correlate
from untold.udfs.statistics.intervals import bca_interval
from untold.udfs.statistics.question_resampling import count_tables

METRIC = "nuggets"
READS = ("query_id", "references", "rubric")
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


RUBRIC = "rubric"
OF_CRITERIA = {"macro_f1": macro_f1, **AGREEMENTS}
# Labels of people by the verdict that they mean, in lower case
LABELS = {
    **{verdict: verdict for verdict in VERDICTS},
    **dict.fromkeys(("true", "yes", "1", "satisfied"), MET),
    "partially satisfied": PARTLY,
    **dict.fromkeys(("false", "no", "0", "not satisfied"), NOT_MET),
}
_CEILING = "people"


def _read_criteria(_: str, rows: pa.Table) -> pa.Table:
    return rows.filter(pc.field("metric") == RUBRIC)


CRITERIA = Source(
    table="criteria",
    required=("metric", "sample_id", "criterion_id", "verdict"),
    optional=(),
    read=_read_criteria,
    unit=("criterion", "criteria"),
    value=("verdict", "verdicts"),
    rows="verdicts",
    example="criterion_id `{1}` of sample `{0}`",
    lenient=True,
)


@dataclass(frozen=True)
class RubricStudy(Study):
    """A study of verdicts on criteria."""

    source = CRITERIA

    @cached_property
    def units(self) -> LabelledUnits:
        """The labelled criteria."""
        return label_criteria(self.request.input, self.samples)

    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the verdicts of the models and of people with the verdicts of people."""
        judged = join_assignments(self.units, found)
        seed, clustered = self.request.settings.statistics.seed, self.request.cluster
        rows = criterion_rows(self.units.table.to_pylist(), judged, clustered=clustered, seed=seed)
        return StudyFindings({"meta_evaluation": rows}, render_criteria(rows), {"metrics": [RUBRIC]})


def label_criteria(about: str, samples: DataFrame) -> LabelledUnits:
    """Return the labelled criteria: sample_id, criterion_id, topic, dimension, people (a verdict per annotator).

    Criteria with levels are left out. Raises MetaEvaluationError for an unknown label, and without labels.
    """
    if RUBRIC not in samples.columns:
        raise MetaEvaluationError(f"{about} has no column `{RUBRIC}` of {{id, text, labels}}")
    names = [name for name in ("query_id", "query") if name in samples.columns]
    found = []
    for row in samples.select("sample_id", *names, RUBRIC).toArrow().to_pylist():
        topic = next((row[name] for name in names if row[name] is not None), None)
        for one in row[RUBRIC] or ():
            labels = [label.strip().lower() for label in one["labels"] or ()]
            unknown = next((label for label in labels if label not in LABELS), None)
            if unknown is not None:
                raise MetaEvaluationError(
                    f"{about}: sample `{shorten(row['sample_id'])}` has the label `{shorten(unknown)}`. "
                    f"A label is true, false, or one of {', '.join(VERDICTS)}"
                )
            if labels and not one["levels"]:
                named = {"sample_id": row["sample_id"], "criterion_id": one["id"], "topic": topic}
                found.append(named | {"dimension": one["dimension"], PEOPLE: [LABELS[label] for label in labels]})
    if not found:
        raise MetaEvaluationError(f"{about}: no criterion has a label. Give each {{text, labels}}")
    return LabelledUnits(about, pa.Table.from_pylist(found), ("sample_id", "criterion_id"))


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
    sides: dict[str | None, list[tuple[Row, str | None, str]]] = {
        model: [(row, row["verdict"], label) for row in rows for label in row[PEOPLE]] for model, rows in judged.items()
    }
    sides[None] = [(row, one, other) for row in units for one, other in permutations(row[PEOPLE], 2)]
    found = []
    for model, pairs in sides.items():
        names = sorted({row["dimension"] for row, *_ in pairs if row["dimension"] is not None})
        for dimension in (None, *names):
            own = [pair for pair in pairs if dimension in (None, pair[0]["dimension"])]
            known = [pair for pair in own if pair[1] in VERDICTS]
            judge, people = ([_place(pair[side], has_partly) for pair in known] for side in (1, 2))
            owners = [pair[0]["topic" if clustered else "sample_id"] for pair in known]
            tables = count_tables(people, judge, owners, (len(VERDICTS), len(VERDICTS)))
            suffix = "" if dimension is None else f":{DIMENSION}{dimension}"
            found += [
                row | {"metric": model and RUBRIC, "model": model, "level": BY_ITEM, "measure": row["measure"] + suffix}
                for row in table_rows(OF_CRITERIA, tables, excluded=len(own) - len(known), seed=seed)
            ]
    return whole_rows(found, dataset=RUBRICS)


def _place(verdict: Any, has_partly: bool) -> int:
    return VERDICTS.index(NOT_MET if verdict == PARTLY and not has_partly else verdict)


def render_criteria(rows: Sequence[Row]) -> str:
    """Return the report as Markdown, from the rows of the table `meta_evaluation`."""
    note = (
        "Each verdict of a model is compared with the verdict of each annotator. The row people is the human ceiling: "
        "each annotator is compared with each other one."
    )
    named = [dict(row) | {"model": row["model"] or _CEILING, "metric": RUBRIC} for row in rows]
    dimensions = dict.fromkeys(row["measure"].partition(":")[2] for row in named)
    parts = []
    for name in dimensions:
        measures = [f"{measure}:{name}" if name else measure for measure in OF_CRITERIA]
        own = [row for row in named if row["measure"] in measures]
        columns: Columns = {"model": "model", "n": "n", **intervals(measures)}
        parts.append(
            section(name.removeprefix(DIMENSION) or "Criteria", "" if name else note, columns, pivot(own, measures))
        )
    return document("Meta-evaluation on rubrics", *parts)
