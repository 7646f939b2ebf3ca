"""Compare verdicts on claims, nuggets and criteria with human labels; methods, sections 6, 17 and 18."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy.stats import kendalltau

from untold.jobs.inference.stage.requests import failure_rows
from untold.jobs.inputs.files import SampleError
from untold.jobs.inputs.samples import Samples, read_rows
from untold.jobs.run.folders import write_parquet
from untold.jobs.run.terminal import Display, amount
from untold.jobs.study.agreement import group_means, group_rows, verdict_rows
from untold.jobs.study.judgements import (
    BY_ITEM,
    BY_QUERY,
    Judgements,
    LabelledUnits,
    MetaEvaluationError,
    Row,
    Rows,
    Source,
    check_labels,
    fold_label,
    whole_rows,
)
from untold.jobs.study.meta_evaluation import (
    CLAIMS,
    NUGGETS,
    RUBRICS,
    MetaEvaluationOutcome,
    MetaEvaluationRequest,
    StageCaller,
    Study,
    StudyEndpoint,
    StudyFindings,
)
from untold.jobs.study.rendering import (
    FACTSCORE,
    Columns,
    document,
    find_published,
    interval,
    intervals,
    pivot,
    section,
)
from untold.udfs.errors import aside, near_misses, shorten
from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.facts.nugget_measures import SUPPORTS, Nugget, measures_of
from untold.udfs.facts.rubric_measures import DIMENSION, MET, NOT_MET, PARTLY
from untold.udfs.facts.rubric_measures import VERDICTS as CRITERION_VERDICTS
from untold.udfs.samples.adapters import Adapter
from untold.udfs.samples.labelled import CLAIM_FORMATS, NEEDS, PLAIN
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1
from untold.udfs.statistics.correlation import correlate
from untold.udfs.statistics.intervals import bca_interval, mean_interval, wilson_interval

CLAIM_AGREEMENTS = {"accuracy": accuracy, "kappa": kappa, "macro_f1": macro_f1}
CRITERION_AGREEMENTS = {"macro_f1": macro_f1, "kappa": kappa, "accuracy": accuracy}
NUGGET_AGREEMENTS = {"kappa": kappa, "accuracy": accuracy}
RUBRIC = "rubric"
# The keys of a claim, of a nugget and of a criterion
CLAIM, NUGGET, CRITERION = ("claim_id",), ("sample_id", "reference_id"), ("sample_id", "criterion_id")
STAGE = "verify_claim"
# The labels and the verdicts
VERDICTS = (SUPPORTED, CONTRADICTED, NOT_SUPPORTED)
CONSTANT, PEOPLE = "constant", "people"
# A verdict that no label has
OTHER = "other"
SHARE = "supported_share"


def _read_verdicts(_: str, rows: pa.Table) -> pa.Table:
    metric = rows["metric"].cast(pa.string()) if "metric" in rows.column_names else pa.nulls(len(rows), pa.string())
    named = {name: rows[name].cast(pa.string()) for name in (*CLAIM, "verdict")}
    return pa.table(named | {"metric": pc.fill_null(metric, STAGE)})


VERDICTS_OF_CLAIMS = Source(
    table="claims",
    required=(*CLAIM, "verdict"),
    optional=("metric",),
    read=_read_verdicts,
    unit=("claim", "claims"),
    value=("verdict", "verdicts"),
    rows="verdicts",
    example="claim_id `{}`",
    allowed=VERDICTS,
)


@dataclass(frozen=True)
class ClaimStudy(Study):
    """A study of verdicts on claims."""

    source = VERDICTS_OF_CLAIMS

    @classmethod
    def read_samples(cls, spark: SparkSession, request: MetaEvaluationRequest) -> Samples:
        """Read the claims of the input as samples (`udfs.samples.labelled`). Raises the errors of `read_rows`."""
        layout = layout_of(request.layout)
        return read_rows(spark, request.input, layout, request.limit, NEEDS, request.draw, ("query_id",), request.read)

    @cached_property
    def claims(self) -> DataFrame:
        """The usable claims: claim_id, unit, system, claim, evidence array<string>, label.

        The unit is the query_id, or else the claim itself.
        """
        samples = self.samples
        unit = F.col("query_id").cast("string") if "query_id" in samples.columns else F.lit(None).cast("string")
        rows = samples.where("response IS NOT NULL AND contexts IS NOT NULL AND label IS NOT NULL").select(
            F.col("sample_id").alias("claim_id"),
            F.coalesce(unit, F.col("sample_id")).alias("unit"),
            "system",
            F.col("response").alias("claim"),
            F.transform("contexts", lambda context: context["text"]).alias("evidence"),
            "label",
        )
        return self.steps.keep(rows, "claims")

    @cached_property
    def units(self) -> LabelledUnits:
        """The claims with normalised labels: `Not supported` becomes `not_supported`."""
        about, claims = self.request.input, self.claims.select(*CLAIM, "unit", "system", "label").toArrow()
        labels = [fold_label(label) for label in claims["label"].to_pylist()]
        check_labels(about, labels, VERDICTS, self.source.unit)
        if not labels:
            raise MetaEvaluationError(f"{about} has no claim with a label. Give rows of claim, evidence and label")
        return LabelledUnits(about, claims.drop_columns(["label"]).append_column("label", pa.array(labels)), CLAIM)

    def verify(self, endpoint: StudyEndpoint, display: Display) -> MetaEvaluationOutcome:
        """Run `verify_claim` on all claims with evidence, and write the tables `claims` and `failures` of the endpoint.

        A claim without evidence is not supported, as in the metric `importance`. Writes nothing if the run ends early.
        """
        place, given = self.request.runs[endpoint.model], self.claims.select("claim_id", "claim", "evidence")
        bare = given.where(F.size("evidence") == 0)
        caller = StageCaller(self.request, endpoint, display)
        columns = ("relation", "request_id", "error_type", "error")
        rows, ending = caller.ask(STAGE, given.where(F.size("evidence") > 0), CLAIM, columns)
        if ending.reason is not None:
            message = ending.explain(self.request.command)
            return MetaEvaluationOutcome(ending.exit_code({}, "none"), message=message)
        said = rows.select("claim_id", F.col("relation").alias("verdict"))
        silent = bare.select("claim_id", F.lit(NOT_SUPPORTED).alias("verdict"))
        names = [F.col("claim_id").alias("sample_id"), F.lit(STAGE).alias("metric")]
        every = said.unionByName(silent).join(given, on="claim_id", how="inner")
        write_parquet(every.select(*names, "claim_id", F.col("claim").alias("text"), "verdict"), f"{place}/claims")
        failures = failure_rows(STAGE, STAGE, rows, "claim_id")
        write_parquet(failures, f"{place}/failures")
        failed, without = failures.count(), bare.count()
        code = ending.exit_code({"ok": given.count() - failed, "failed": failed}, endpoint.settings.fail_on_error)
        have = amount(without, "claim has", "claims have")
        message = f"{have} no evidence and count as not supported" if without else None
        return MetaEvaluationOutcome(code, message=message)

    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the verdicts of the models with the labels."""
        rows = claim_rows(self.units, found, **self.request.resampling)
        report = render_claims(rows, clustered=self.request.cluster)
        return StudyFindings({"meta_evaluation": rows}, report, {"metrics": list(found.all_metrics)})


def layout_of(format: str | None) -> Adapter:
    """Return the format of claims of that name, or the plain one. Raises SampleError for an unknown name."""
    name = format or PLAIN
    if name not in CLAIM_FORMATS:
        raise SampleError(f"unknown format `{name}`{aside(near_misses(name, CLAIM_FORMATS))} of claims")
    return CLAIM_FORMATS[name]


def claim_rows(units: LabelledUnits, found: Judgements, *, clustered: bool, seed: int) -> Rows:
    """Return the rows of the table `meta_evaluation`: each metric of a model, the constant label, and shares by system.

    Claims without a verdict are left out and counted. With `clustered`, whole queries are resampled.
    """
    people: list[str] = units.column("label")
    how: dict[str, Any] = {"clustered": clustered, "seed": seed}
    agreement = partial(claim_agreements, people, units.column("unit"), clustered=clustered, seed=seed)
    # The first of equally frequent labels
    constant = max(VERDICTS, key=people.count)
    rows: Rows = []
    for model, metric in found.owners:
        verdicts = found.tables[model, metric]["verdict"].to_pylist()
        measured = [*agreement(verdicts), *share_rows(units, verdicts, **how)]
        rows += [{"metric": metric, "model": model} | row for row in measured]
    rows += [{"metric": CONSTANT} | row for row in agreement([constant] * len(people))]
    rows += [{"metric": PEOPLE} | row for row in share_rows(units, people, **how)]
    return whole_rows(rows, dataset=CLAIMS, level=BY_ITEM)


def claim_agreements(
    labels: Sequence[str], units: Sequence[str], verdicts: Sequence[str | None], *, clustered: bool, seed: int
) -> Rows:
    """Return the agreement of labels and verdicts, by claim. A null verdict does not count.

    If no label is `contradicted`, people did not distinguish it from `not_supported`, and verdicts count so too. With
    `clustered`, the claims of a unit are resampled together. Otherwise accuracy has Wilson's interval.
    """
    names = [name for name in VERDICTS if name in labels]
    as_label = {verdict: verdict if verdict in names else OTHER for verdict in VERDICTS}
    if CONTRADICTED not in names:
        as_label[CONTRADICTED] = as_label[NOT_SUPPORTED]
    pairs = [(label, None if one is None else as_label[one]) for label, one in zip(labels, verdicts, strict=True)]
    rows = verdict_rows(CLAIM_AGREEMENTS, [*names, OTHER], pairs, units if clustered else None, other=OTHER, seed=seed)
    if not clustered:
        # Accuracy is the first measure
        rows[0] |= wilson_interval(sum(label == one for label, one in pairs), rows[0]["n"]).columns()
    return rows


def share_rows(units: LabelledUnits, verdicts: Sequence[str | None], *, clustered: bool, seed: int) -> Rows:
    """Return the share of supported claims, of all and by system: `supported_share` and `supported_share:<system>`.

    For labels it is the published precision of human labels, S / (S + NS). Resamples as `claim_agreements`.
    """
    systems, owners, rows = units.column("system"), units.column("unit"), []
    known = np.array([verdict is not None for verdict in verdicts], dtype=bool)
    supported = np.array([verdict == SUPPORTED for verdict in verdicts], dtype=np.int64)
    for system in (None, *sorted(set(systems) - {None})):
        own = np.array([system in (None, name) for name in systems], dtype=bool)
        sums, sizes = supported * own, (own & known).astype(np.int64)
        n = int(sizes.sum())
        one = mean_interval(sums, sizes, owners, seed=seed) if clustered else wilson_interval(int(sums.sum()), n)
        measure = SHARE if system is None else f"{SHARE}:{system}"
        rows.append({"measure": measure, "n": n, "excluded": int(own.sum()) - n} | one.columns())
    return rows


def render_claims(rows: Sequence[Row], *, clustered: bool) -> str:
    """Return the report as Markdown, from the rows of the table `meta_evaluation`."""
    units = "whole queries" if clustered else "single claims"
    measures = intervals(CLAIM_AGREEMENTS, 4)
    columns: Columns = ["metric", ("model", "baseline"), "n", ("left out", "excluded"), *measures]
    shares = [row for row in rows if row["measure"].startswith(SHARE)]
    by_measure: dict[str, dict[str, Any]] = {}
    for row in sorted(shares, key=lambda row: row["metric"] != PEOPLE):
        system = row["measure"].partition(":")[2]
        figure = find_published("factscore", PEOPLE, system, SHARE, FACTSCORE)
        own = by_measure.setdefault(
            row["measure"], {"system": system or "all", "published": "-" if figure is None else figure["text"]}
        )
        own[PEOPLE if row["metric"] == PEOPLE else f"{row['metric']} of {row['model']}"] = interval(row, 4)
    names = dict.fromkeys(name for own in by_measure.values() for name in own)
    by_system = sorted(names, key=lambda name: (name == "published") - (name == "system"))
    note = "All claims are pooled. The published values are FActScore's human labels (Min et al. 2023), S / (S + NS)."
    return document(
        "Meta-evaluation on claims",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}. If no label is `contradicted`, this verdict counts "
        "as `not_supported`. Claims without a verdict are excluded.",
        section("Verdicts", "", columns, pivot(rows, CLAIM_AGREEMENTS)),
        section("Supported", note, by_system, by_measure.values()),
    )


READS = ("query_id", "references", RUBRIC)
SYSTEMS, WITHIN = "kendall", "kendall_within_query"
MEASURES = (*NUGGET_AGREEMENTS, SYSTEMS, WITHIN)
JUDGE = "support"
# The verdicts by the labels of people
NUGGET_LABELS = {support: support for support in SUPPORTS}
CRITERION_LABELS = {
    **{verdict: verdict for verdict in CRITERION_VERDICTS},
    **dict.fromkeys(("true", "yes", "1", "satisfied"), MET),
    "partially_satisfied": PARTLY,
    **dict.fromkeys(("false", "no", "0", "not_satisfied"), NOT_MET),
}


ASSIGNMENTS = Source(
    table="statements",
    required=("metric", *NUGGET, "importance", "weight", JUDGE),
    optional=(),
    # A row without an importance is a statement of another kind
    read=lambda _, rows: rows.filter((pc.field("metric") == NUGGETS) & pc.field("importance").is_valid()),
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
    read=lambda _, rows: rows.filter(pc.field("metric") == RUBRIC),
    unit=("criterion", "criteria"),
    value=("verdict", "verdicts"),
    rows="verdicts",
    example="criterion_id `{1}` of sample `{0}`",
    lenient=True,
)


@dataclass(frozen=True)
class NuggetStudy(Study):
    """A study of assignments of nuggets."""

    source, optional = ASSIGNMENTS, READS

    @cached_property
    def units(self) -> LabelledUnits:
        """The labelled nuggets, with the label of most annotators, None for a tie."""
        return label_parts(self, "references", "text, importance, assignment", NUGGET, NUGGET_LABELS, _majority)

    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the assignments of the models and of people."""
        request, score = self.request, self.request.settings.nuggets.score
        rows = nugget_rows(join_verdicts(self.units, found), score, **request.resampling)
        report = render_nuggets(rows, score, clustered=request.cluster)
        return StudyFindings({"meta_evaluation": rows}, report, {"metrics": [NUGGETS]})


@dataclass(frozen=True)
class RubricStudy(Study):
    """A study of verdicts on criteria."""

    source, optional = CRITERIA, READS

    @cached_property
    def units(self) -> LabelledUnits:
        """The labelled criteria without levels, with a verdict per annotator."""
        return label_parts(self, RUBRIC, "text, labels", CRITERION, CRITERION_LABELS, list)

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
    verdicts: Mapping[str, str],
    merge: Callable[[list[str]], Any],
) -> LabelledUnits:
    """Return the labelled parts of samples: the columns of the key, topic, system, dimension, people.

    `column` has the parts with these `fields`, `verdicts` has the verdict of each label, and `merge` unites the
    verdicts of the annotators. Raises MetaEvaluationError for unknown labels, and for an input without labels.
    """
    about, samples, part = study.request.input, study.samples, study.source.unit
    names = [name for name in ("query_id", "query") if name in samples.columns]
    given = samples.select("sample_id", *names, "system", column) if column in samples.columns else samples.limit(0)
    found = []
    for row in given.toArrow().to_pylist():
        topic = next((row[name] for name in names if row[name] is not None), None)
        for one in row[column] or ():
            labels = [fold_label(label) for label in one["labels"] or () if label is not None]
            check_labels(f"{about}: sample `{shorten(row['sample_id'])}`", labels, verdicts, part)
            if labels and not one.get("levels"):
                shared = {"topic": topic, "system": row["system"], "dimension": one.get("dimension")}
                named = dict(zip(key, (row["sample_id"], one["id"]), strict=True))
                found.append(named | shared | {PEOPLE: merge([verdicts[label] for label in labels])})
    if not found:
        raise MetaEvaluationError(f"{about}: no {part[0]} in the column `{column}` has a label. Give each {{{fields}}}")
    return LabelledUnits(about, pa.Table.from_pylist(found), key)


def _majority(labels: list[str]) -> str | None:
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


def nugget_rows(assigned: Mapping[str, Sequence[Row]], score: str, *, clustered: bool, seed: int) -> Rows:
    """Return the rows of the table `meta_evaluation`.

    `assigned` are the nuggets by model, `score` is a measure of nuggets. Intervals resample samples, or whole queries
    with `clustered`.
    """
    found = []
    for model, rows in assigned.items():
        pairs = [(row[PEOPLE], row[JUDGE]) for row in rows]
        owners = [row["topic" if clustered else "sample_id"] for row in rows]
        agreements = verdict_rows(NUGGET_AGREEMENTS, SUPPORTS, pairs, owners, seed=seed)
        # Rankings have levels of their own
        found += [{"model": model, "level": BY_ITEM, **row} for row in (*agreements, *_rankings(rows, score, seed))]
    return whole_rows(found, dataset=NUGGETS, metric=NUGGETS)


def _rankings(rows: Sequence[Row], score: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield Kendall's tau-b of the means of the systems, and the mean of tau-b within the queries."""
    scores = _scores(rows, score)
    people, judge = group_means(scores, "system", (PEOPLE, JUDGE))
    overall = correlate(people, judge, seed=seed)["kendall"]
    yield {"measure": SYSTEMS, "level": "system", **overall.columns(), "excluded": 0}
    by_topic = group_rows(scores, "topic")
    # The tau of systems that are equal for people or for the model is undefined
    found = [kendalltau(*group_means(own, "system", (PEOPLE, JUDGE))).statistic for own in by_topic]
    taus = [float(tau) for tau in found if not np.isnan(tau)]
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


def render_nuggets(rows: Sequence[Row], score: str, *, clustered: bool) -> str:
    """Return the report as Markdown, from the rows of the table `meta_evaluation`."""
    units = "whole queries" if clustered else "single samples"
    note = (
        f"kappa and accuracy compare single assignments. Intervals resample {units}. kendall is tau-b of the systems' "
        f"mean `{score}` by people's assignments and the model's. kendall_within_query is the mean of tau-b per query."
    )
    columns: Columns = ["model", "n", *intervals(MEASURES)]
    return document("Meta-evaluation on nuggets", section("Assignments", note, columns, pivot(rows, MEASURES)))


def criterion_rows(units: Sequence[Row], judged: Mapping[str, Sequence[Row]], *, clustered: bool, seed: int) -> Rows:
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
                for row in verdict_rows(CRITERION_AGREEMENTS, CRITERION_VERDICTS, pairs, owners, seed=seed)
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
        measures = [f"{measure}:{name}" if name else measure for measure in CRITERION_AGREEMENTS]
        own = [row for row in named if row["measure"] in measures]
        columns: Columns = ["model", "n", *intervals(measures)]
        parts.append(
            section(name.removeprefix(DIMENSION) or "Criteria", "" if name else note, columns, pivot(own, measures))
        )
    return document("Meta-evaluation on rubrics", *parts)
