"""Compare scores with the labels of responses, and with the instances of ConflictBank; methods, section 6.

A unit earns whole *points* of the full scale of a measure. A unit is a response, or a claim of a ConflictBank instance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from untold.graph.views import COVERAGE, ONE_SIDED
from untold.jobs.run.terminal import amount
from untold.jobs.run_tables import find_table
from untold.jobs.study import agreement
from untold.jobs.study.agreement import LABEL_BASELINES, LAX, LMR, STRICT, Points
from untold.jobs.study.judgements import (
    BoolArray,
    Judgements,
    LabelledUnits,
    MetaEvaluationError,
    Owner,
    Source,
    check_labels,
    open_tables,
)
from untold.jobs.study.meta_evaluation import Study, StudyFindings, all_costs
from untold.jobs.study.rendering import with_published
from untold.jobs.study.report import render
from untold.jobs.summary.score_counts import FAILED_STATUSES
from untold.udfs.samples.adapters import CONFLICTBANK_CLAIMS, CONFLICTBANK_CONTEXTS, CONFLICTBANK_SETS
from untold.udfs.samples.conversion import REQUIRED
from untold.udfs.statistics import confusion
from untold.udfs.statistics.confusion import CONVENTIONS, LABELS, overlap_score
from untold.udfs.statistics.intervals import FloatArray, IntArray, count_tables, number_names

KEY = ("sample_id",)
# The share of one to five comparisons, and each fixed share below, is a whole number of points
BANK_SCALE = 60
BANK_SCALES = {LMR: 2 * BANK_SCALE, STRICT: BANK_SCALE, LAX: BANK_SCALE}
# The strict and the lax points in the authors' code: 0 and 0.25 if no context has statements, 0.3 and 0.9 if only D has
# no statements
POINTS_WITHOUT_STATEMENTS, POINTS_WITHOUT_DEFAULT = (0, 15), (18, 54)
LABEL_SCALES = {LMR: 1, **dict.fromkeys(LABEL_BASELINES, 1)}
BY_SOURCE, ALONE = "conflictbank", "conflictbank_alone"


def _read_scores(where: str, rows: pa.Table) -> pa.Table:
    """Return metric, sample_id, score and failed. NaN becomes null. Raises MetaEvaluationError for other types."""
    kind = rows.schema.field("score").type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise MetaEvaluationError(
            f"{where}: the column `score` is {kind}. Give numbers from 0 to 1, or null if undefined"
        )
    score = rows["score"].cast(pa.float64())
    failed = [False] * len(rows)
    if "status" in rows.column_names:
        failed = pc.is_in(rows["status"], pa.array(FAILED_STATUSES))
    named = {name: rows[name].cast(pa.string()) for name in ("metric", *KEY)}
    return pa.table(named | {"score": pc.if_else(pc.is_nan(score), None, score), "failed": failed})


def _check_scores(rows: pa.Table) -> list[str]:
    outside = pc.or_(pc.less(rows["score"], 0), pc.greater(rows["score"], 1))
    counts = {
        "no sample_id": rows["sample_id"].null_count,
        "a score that is not between 0 and 1": pc.sum(outside).as_py(),
    }
    return [f"{amount(count, 'row has', 'rows have')} {what}; correct them" for what, count in counts.items() if count]


SCORES = Source(
    table="scores",
    required=("sample_id", "metric", "score"),
    optional=("status",),
    read=_read_scores,
    unit=("sample", "samples"),
    value=("score", "scores"),
    rows="scores",
    example="`{}`",
    check=_check_scores,
    complete=True,
)


@dataclass(frozen=True)
class LabelStudy(Study):
    """A study of scores: of labelled responses, or of ConflictBank."""

    source, needs = SCORES, REQUIRED

    @property
    def has_labels(self) -> bool:
        """True if the samples have labels, and so confusion tables and baselines."""
        return self.request.dataset not in (BY_SOURCE, ALONE)

    @property
    def scales(self) -> Mapping[str, int]:
        """The points of a full match by measure."""
        return LABEL_SCALES if self.has_labels else BANK_SCALES

    @cached_property
    def units(self) -> LabelledUnits:
        """The samples with query, label and overlap. Samples of ConflictBank have row, claim and context_set."""
        if self.has_labels:
            rows = add_overlap(self.samples.select(*KEY, "query", "response", "contexts", "label").toArrow())
            check_labels(self.request.input, rows["label"].to_pylist(), LABELS, SCORES.unit)
        else:
            names = [name for name in ("row", "claim", "context_set") if name in self.samples.columns]
            rows = self.samples.select(*KEY, *names).toArrow()
            sets = 1 if self.request.dataset == BY_SOURCE else len(CONFLICTBANK_SETS)
            check_instances(self.request.input, rows["row"].to_pylist(), len(CONFLICTBANK_CLAIMS) * sets)
        return LabelledUnits(self.request.input, rows.sort_by("sample_id"), KEY)

    def read(self) -> Judgements:
        """Return the scores of the models, and the views of metrics with measures of conflicts."""
        found = super().read()
        return with_views(found, self.units, self.request.runs) if self.has_labels else found

    def earned(self, found: Judgements) -> tuple[dict[Owner, Points], IntArray]:
        """Return the points of each model and metric, and the question of each unit as a number: int64[units]."""
        if self.has_labels:
            queries, ids = self.units.column("query"), self.units.column("sample_id")
            labels = label_codes(self.units)
            points = {
                owner: of_given(label_points(*scores_of(table), labels), found.given[owner])
                for owner, table in found.tables.items()
            }
            names = [one if one is not None else other for one, other in zip(queries, ids, strict=True)]
            return points, number_names(names)[1]
        by_source = self.request.dataset == BY_SOURCE
        groups = bank_groups(self.units, by_source=by_source)
        shares = {model: read_source_shares(place) for model, place in self.request.runs.items() if by_source}
        default = np.array([claim == "default" for _, claim in groups])
        points = {}
        for (model, metric), table in found.tables.items():
            own = shares[model].get(metric, {}) if by_source else None
            points[model, metric] = bank_points(bank_scores(table, groups, self.units, own), default)
        return points, number_names([row for row, _ in groups])[1]

    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the scores of the models with the labels, and the metrics and the prompts with each other."""
        request, seed = self.request, self.request.settings.statistics.seed
        metrics, models = request.metrics or found.all_metrics, list(request.runs)
        earned, questions = self.earned(found)
        clusters = questions if request.cluster else None
        owned: list[tuple[tuple[str | None, str | None], Points]] = [*earned.items()]
        if self.has_labels:
            owned.append(((None, None), baseline_points(self.units)))
        counts = agreement.count_units(request.dataset, owned, clusters, self.scales)
        intervals = agreement.match_means(counts, seed=seed)
        tables = self._label_tables(found, np.arange(len(questions)) if clusters is None else clusters)
        intervals |= agreement.confusion_intervals(tables, seed=seed)
        # The report shows these tables
        confusions = {key: confusion.under_convention(one.sum(axis=0), CONVENTIONS[0]) for key, one in tables.items()}
        views = [view_of(metric) for metric in metrics]
        rows = with_published(agreement.agreement_rows(request.dataset, [*metrics, *views], models, intervals))
        if request.scores and not agreement.has_answered(rows):
            raise MetaEvaluationError(
                f"nothing to evaluate: no sample of {request.input} has a score in {', '.join(request.runs.values())}. "
                "The table failures of each has the reasons. Retry with untold score --retry-failed"
            )
        by_model = sorted(request.prompt_pairs, key=lambda pair: (pair[0].model, pair[1].model))
        comparisons = [
            row
            for pairs in (
                agreement.metric_pairs({model for model, _ in earned}, metrics),
                agreement.prompt_pairs(sorted(metrics), by_model),
            )
            for row in agreement.compare_points(
                request.dataset, earned, pairs, clusters, scale=self.scales[LMR], seed=seed
            )
        ]
        note = None if request.cluster else describe_repeats(questions)
        report = render(rows, comparisons, confusions, all_costs(request), clustered=request.cluster, note=note)
        counts = [row for row in counts if row["metric"] not in views]
        return StudyFindings(
            {"meta_evaluation": rows, "match_counts": counts, "comparisons": comparisons},
            report,
            {"metrics": list(metrics), "confusion": agreement.confusion_cells(confusions)},
            figure=rows,
        )

    def _label_tables(self, found: Judgements, clusters: IntArray) -> dict[Owner, IntArray]:
        """Return the confusion tables of the clusters by model and metric: int64[clusters, labels, outcomes]."""
        if not self.has_labels:
            return {}
        labels, shape = label_codes(self.units), (len(LABELS), len(confusion.OUTCOMES))
        return {
            owner: count_tables(labels, np.where(found.given[owner], outcomes(*scores_of(table)), -1), clusters, shape)
            for owner, table in sorted(found.tables.items())
        }


def label_codes(units: LabelledUnits) -> IntArray:
    """Return the position of each label in `LABELS`: int64[units]."""
    return np.array([LABELS.index(label) for label in units.column("label")], dtype=np.int64)


def scores_of(table: pa.Table) -> tuple[FloatArray, BoolArray]:
    """Return the scores, NaN if undefined, and which of them failed: float64[units], bool[units]."""
    failed = pc.fill_null(table["failed"], False).to_numpy()
    return table["score"].to_numpy(), failed


def add_overlap(samples: pa.Table) -> pa.Table:
    """Return sample_id, query, label and overlap, the score of the words of a response (`overlap_score`).

    `samples`: sample_id, query, response, contexts list<struct<id, text>>, label. overlap is null without a response or
    contexts.
    """
    scores = [
        overlap_score(response, [context["text"] for context in contexts])
        if response is not None and contexts is not None
        else None
        for response, contexts in zip(samples["response"].to_pylist(), samples["contexts"].to_pylist(), strict=True)
    ]
    return samples.select(["sample_id", "query", "label"]).append_column("overlap", pa.array(scores, pa.float64()))


def check_instances(path: str, rows: Sequence[int | None], whole: int) -> None:
    """Raise MetaEvaluationError for samples without an instance, and for instances that lack one of `whole` samples."""
    sizes = Counter(rows)
    unread = sizes.pop(None, 0)
    if unread:
        raise MetaEvaluationError(
            f"{path}: {amount(unread, 'row')} cannot be read as instances. Correct or remove them"
        )
    cut = sum(size != whole for size in sizes.values())
    if cut:
        raise MetaEvaluationError(
            f"{path}: {cut:,} of {len(sizes):,} instances lack some of their {whole} samples. "
            f"Set --limit to a multiple of {whole}"
        )


def describe_repeats(questions: IntArray) -> str | None:
    """Return a note if any question has several units."""
    number = len(set(questions.tolist()))
    if number == len(questions):
        return None
    return (
        f"{amount(len(questions), 'row shares', 'rows share')} {amount(number, 'question')}, and answers to one "
        "question are similar, so intervals and tests over rows are too narrow. --cluster resamples whole questions"
    )


def view_of(metric: str) -> str:
    """Return the name of the view of a metric among metrics."""
    return f"{metric}_view"


def with_views(found: Judgements, units: LabelledUnits, places: Mapping[str, str]) -> Judgements:
    """Add `<metric>_view` for each metric with measures of conflicts: the share of conflicts with both sides.

    The score is conflict_coverage + one_sided / 2. It is 1 if the response covers both sides of every conflict, and 0
    if it covers neither side. Without conflicts, it is null. It failed if a measure failed. Methods, section 6.
    """
    tables, given = dict(found.tables), dict(found.given)
    for model, place in places.items():
        database = open_tables(place, ["measures"])
        if database is None:
            continue
        for metric in found.metrics[model]:
            score, failed = scores_of(found.tables[model, metric])
            view, failed = np.full(len(score), np.nan), failed.copy()
            seen = np.zeros(len(score), dtype=bool)
            for sample, value, lost in database.execute(_VIEWS, [metric]).fetchall():
                unit = units.rows.get((sample,))
                if unit is not None:
                    seen[unit] = True
                    view[unit] = np.nan if value is None else value
                    failed[unit] |= lost
            if seen.any():
                scores = pa.array(view, mask=np.isnan(view))
                tables[model, view_of(metric)] = pa.table({"score": scores, "failed": failed})
                given[model, view_of(metric)] = seen
    return replace(found, tables=tables, given=given)


# A lost measure has bounds and no value; an undefined one has neither
_VIEWS = f"""select sample_id, sum(value * if(measure = '{COVERAGE}', 1, 0.5)),
        bool_or(value is null and value_high is not null)
    from measures where metric = ? and measure in ('{COVERAGE}', '{ONE_SIDED}') group by sample_id"""


def outcomes(score: FloatArray, failed: BoolArray) -> IntArray:
    """Return the position in `OUTCOMES` of the label that each score predicts (`predict_label`): int64[units]."""
    between: IntArray = np.where(score == 0, 0, np.where(score == 1, 2, 1))
    undefined = np.where(np.isnan(score), len(LABELS), between)
    return np.where(failed, len(confusion.PREDICTIONS), undefined)


def label_points(score: FloatArray, failed: BoolArray, labels: IntArray) -> Points:
    """Return the points of LMR_WC (Dejl et al. 2025, match(S, l)). A score that predicts the label earns one point.

    `zero` excludes failed scores. `zero` and `published` replace undefined scores with 0.
    """
    undefined, nothing = np.isnan(score), np.zeros(len(score), dtype=np.int64)
    matched = (outcomes(score, np.zeros_like(failed)) == labels).astype(np.int64)
    lenient = np.where(undefined, labels == 0, matched).astype(np.int64)
    return {
        (LMR, "mismatch"): (matched, nothing),
        (LMR, "zero"): (np.where(failed, -1, lenient), failed.astype(np.int64)),
        (LMR, "published"): (lenient, nothing),
    }


def of_given(points: Points, given: BoolArray) -> Points:
    """Return the points of the units with a score: bool[units]. The other units have none."""
    return {key: (np.where(given, one, -1), np.where(given, left_out, 0)) for key, (one, left_out) in points.items()}


def baseline_points(units: LabelledUnits) -> Points:
    """Return the points of the baselines: the most frequent label for all, and the word overlap as a score."""
    labels = label_codes(units)
    nothing = np.zeros(len(labels), dtype=np.int64)
    # The first of equally frequent labels
    constant = int(np.bincount(labels, minlength=len(LABELS)).argmax())
    always = (labels == constant).astype(np.int64), nothing
    overlap = label_points(np.array(units.column("overlap"), dtype=np.float64), nothing.astype(bool), labels)
    return {
        **{(LABEL_BASELINES[0], convention): always for convention in CONVENTIONS},
        **{(LABEL_BASELINES[1], convention): earned for (_, convention), earned in overlap.items()},
    }


Groups = Mapping[tuple[int, str], Mapping[str, int]]
"""The sample of each context set, by the row and the claim of a unit of ConflictBank."""


def bank_groups(units: LabelledUnits, *, by_source: bool) -> Groups:
    """Return the units of ConflictBank; by source, each has one sample with all contexts."""
    groups: dict[tuple[int, str], dict[str, int]] = {}
    sets = ["all"] * len(units.keys) if by_source else units.column("context_set")
    for sample, unit in enumerate(zip(units.column("row"), units.column("claim"), strict=True)):
        groups.setdefault(unit, {})[sets[sample]] = sample
    return groups


@dataclass(frozen=True)
class BankScores:
    """The scores of all contexts together, of D, and of the counterfactuals, in the order of `CONFLICTBANK_SETS`.

    Undefined scores are NaN. `stated` is False for a context without statements. Shapes: float64[units, 5], bool[units,
    5], bool[units, 5].
    """

    score: FloatArray
    failed: BoolArray
    stated: BoolArray


def bank_scores(
    table: pa.Table, groups: Groups, units: LabelledUnits, shares: Mapping[tuple[str, str], float] | None
) -> BankScores:
    """Return the scores of separate evaluations of each context.

    With `shares` of single contexts by sample and source, each unit has one evaluation, with all contexts.
    """
    sets = CONFLICTBANK_SETS if shares is None else CONFLICTBANK_SETS[:1]
    order = np.array([[samples[name] for name in sets] for samples in groups.values()])
    score, failed = (values[order] for values in scores_of(table))
    stated = np.ones_like(failed)
    if shares is not None:
        ids = [units.keys[sample][0] for sample in order[:, 0].tolist()]
        own = np.array([[shares.get((one, name), np.nan) for name in CONFLICTBANK_CONTEXTS] for one in ids])
        score, stated = np.hstack([score, own]), np.hstack([stated, ~np.isnan(own)])
        failed = np.hstack([failed, np.zeros_like(own, dtype=bool)])
    return BankScores(score, failed, stated)


def bank_points(scores: BankScores, default: BoolArray) -> Points:
    """Return the points of LMR_CB, its strict and its lax part (Dejl et al. 2025; methods, section 6).

    `default` is True for units of the default fact, which only D states: bool[units]. The counterfactual is the claim
    of C1, C2 and C3. The strict part has five comparisons. With all contexts, 0 < S < 1 holds. With context X, S_X = 1
    holds if X states the claim, and S_X = 0 otherwise. The lax part compares C1, C2 and C3 with D. S_X < S_D holds for
    the default fact, and S_X > S_D for the counterfactual. Under `mismatch`, no comparison holds for undefined scores.
    A comparison with a context without statements does not count. Under `published`, a unit has fixed points instead if
    no context has statements, or if only D has none.
    """
    parts: dict[tuple[str, str], tuple[IntArray, IntArray]] = {}
    of_default = default[:, None]
    expected = np.where(of_default, [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0])
    for convention in CONVENTIONS:
        score = scores.score if convention == "mismatch" else np.nan_to_num(scores.score)
        counts = scores.stated & ~scores.failed if convention == "zero" else scores.stated
        between = (score[:, :1] > 0) & (score[:, :1] < 1)
        strict = _share(np.hstack([between, score[:, 1:] == expected]), counts)
        others, own = score[:, 2:], score[:, 1:2]
        holds = np.where(of_default, others < own, others > own)
        lax = _share(holds, counts[:, 2:] & counts[:, 1:2])
        if convention == "published":
            of_d, of_others = scores.stated[:, 1], scores.stated[:, 2:]
            for units, fixed in (
                (~of_d & ~of_others.any(axis=1), POINTS_WITHOUT_STATEMENTS),
                (~of_d & of_others.all(axis=1), POINTS_WITHOUT_DEFAULT),
            ):
                # A unit with fixed points excludes no comparison
                strict, lax = (
                    (np.where(units, points, scored), np.where(units, 0, excluded))
                    for points, (scored, excluded) in zip(fixed, (strict, lax), strict=True)
                )
        # The mean of strict / 60 and lax / 60 is (strict + lax) / 120
        both = np.where((strict[0] < 0) | (lax[0] < 0), -1, strict[0] + lax[0])
        parts |= {
            (LMR, convention): (both, strict[1] + lax[1]),
            (STRICT, convention): strict,
            (LAX, convention): lax,
        }
    return parts


def _share(holds: BoolArray, counts: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the share of the comparisons that count and hold, in points, and the number that do not count."""
    number = counts.sum(axis=1)
    points: IntArray = np.where(number > 0, (holds & counts).sum(axis=1) * BANK_SCALE // np.maximum(number, 1), -1)
    return points, (~counts).sum(axis=1)


def read_source_shares(place: str) -> dict[str, dict[tuple[str, str], float]]:
    """Return by metric, sample and source the share of the statements of the source that the response covers.

    Metrics with atoms (nli, qa) count the kept atoms of a source, before condensation merged them; the others count
    statements. A source without statements has no share. Methods, section 6. Raises MetaEvaluationError for a folder
    that has only scores.
    """
    database = open_tables(place, ["atoms", "statements"])
    if database is None:
        missing = next(name for name in ("atoms", "statements") if find_table(place, name) is None)
        raise MetaEvaluationError(
            f"{place} has no table {missing}, which the share of each source is computed from. Give an output of "
            "untold score, or use `--conflictbank alone` with scores of each single context"
        )
    found: dict[str, dict[tuple[str, str], float]] = {}
    for metric, sample, source, share in database.sql(_SHARES).fetchall():
        if share is not None:
            found.setdefault(metric, {})[sample, source] = share
    return found


_SHARES = """with judged as (
        select metric, sample_id, statements.covered, atoms.sources
        from atoms join statements using (sample_id, metric, statement_id) where atoms.kept
        union all
        select metric, sample_id, covered, sources from statements anti join atoms using (metric)
    )
    select metric, sample_id, source, avg(covered::int)
    from (select metric, sample_id, covered, unnest(sources) as source from judged) group by all"""
