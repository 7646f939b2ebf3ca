"""Compute correlations, agreement and the measures of covered items; methods, sections 6 and 7."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from untold.jobs.study.judgements import (
    BY_ITEM,
    BY_QUERY,
    BY_SAMPLE,
    DIGITS,
    BoolArray,
    Judgements,
    Key,
    LabelledUnits,
    Row,
    whole_rows,
)
from untold.jobs.study.judgements import Owner as JudgementOwner
from untold.udfs.facts.nodes import normalise
from untold.udfs.samples.data_sets import MUST_HAVE, NICE_TO_HAVE
from untold.udfs.samples.labelled import word_overlap
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1
from untold.udfs.statistics.correlation import correlate
from untold.udfs.statistics.intervals import IntArray
from untold.udfs.statistics.item_agreement import fleiss_kappa, item_averages, krippendorff_alpha, votes
from untold.udfs.statistics.question_resampling import auc, score_counts, table_intervals, total_interval

KEY = ("sample_id", "reference_id")
KAPPA, ALPHA = "fleiss_kappa", "krippendorff_alpha"
COUNTS = ("true_positives", "false_positives", "false_negatives", "true_negatives")
# Measures over all labelled items with the labels covered and not covered
AGREEMENTS = {"kappa": kappa, "macro_f1": macro_f1, "accuracy": accuracy}
Owner = tuple[str, str | None]
"""A metric or a baseline, and its model."""
Facts = Mapping[Key, Sequence[frozenset[str]]]
"""By item the response facts of an output, each as its texts: with and without its anchor."""


@dataclass(frozen=True)
class Items:
    """The items of samples with the labels of annotators. `covered` lists the labels that mean covered.

    `samples` have sample_id, cluster and response; `units` have the columns of `coverage_study.read_items`.
    """

    samples: Sequence[Row]
    units: LabelledUnits
    covered: tuple[str, ...]

    @cached_property
    def sample(self) -> IntArray:
        """The number of the sample of each item: int64[items]."""
        numbers = {row["sample_id"]: number for number, row in enumerate(self.samples)}
        return np.array([numbers[sample] for sample, _ in self.units.keys], dtype=np.int64)

    @cached_property
    def votes(self) -> IntArray:
        """The number of annotators per item for and against covered: int64[items, 2]."""
        found = [votes(labels, self.covered) for labels in self.units.column("labels")]
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def said(self) -> IntArray:
        """The majority as 1 for covered, 0 for not covered, -1 for a tie or no label. Shape: int64[items]."""
        yes, no = self.votes.T
        return np.where(yes == no, -1, yes > no)

    def only(self, kept: BoolArray) -> Items:
        """Return some of the items, of the same samples: bool[items]."""
        return replace(self, units=replace(self.units, table=self.units.table.filter(pa.array(kept))))

    def count(self, kept: BoolArray) -> list[int]:
        """Return the number of kept items of each sample."""
        counts: list[int] = np.bincount(self.sample[kept], minlength=len(self.samples)).tolist()
        return counts

    def names(self, *, clustered: bool) -> list[str]:
        """Return the sample of each item, or its cluster."""
        return [self.samples[number]["cluster" if clustered else "sample_id"] for number in self.sample.tolist()]


def codes_of(table: pa.Table) -> IntArray:
    """Return the verdicts as 1 for covered, 0 for not covered, -1 for unknown: int64[items]."""
    codes: IntArray = pc.fill_null(table["covered"].cast(pa.int64()), -1).to_numpy()
    return codes


def human_coverage(items: Items) -> list[dict[str, Any]]:
    """Return sample_id, cluster, labelled, ties and human of each sample.

    `human` is the share of covered items among the labelled items. Ties have labels and no majority.
    """
    labelled, covered = items.count(items.said >= 0), items.count(items.said == 1)
    ties = items.count((items.said < 0) & (items.votes[:, 0] > 0))
    return [
        {"sample_id": row["sample_id"], "cluster": row["cluster"], "labelled": size, "ties": tied}
        | {"human": share / size if size else None}
        for row, size, share, tied in zip(items.samples, labelled, covered, ties, strict=True)
    ]


def metric_coverage(items: Items, found: Judgements) -> list[dict[str, Any]]:
    """Return model, metric, sample_id, value, the `COUNTS` and judged of each sample that the metric judged.

    `value` is the share of covered items among all items with a verdict. The counts compare verdict and majority of the
    labelled items; `judged` is their sum.
    """
    rows = []
    for model, metric in found.owners:
        said = codes_of(found.tables[model, metric])
        given, known, covered = (items.count(each) for each in (found.given[model, metric], said >= 0, said == 1))
        cells = [items.count((said == one) & (items.said == other)) for one, other in ((1, 1), (1, 0), (0, 1), (0, 0))]
        for number, row in enumerate(items.samples):
            if given[number]:
                counts = [cell[number] for cell in cells]
                value = covered[number] / known[number] if known[number] else None
                named = {"model": model, "metric": metric, "sample_id": row["sample_id"], "value": value}
                rows.append(named | dict(zip(COUNTS, counts, strict=True)) | {"judged": sum(counts)})
    return rows


@dataclass(frozen=True)
class ItemLabels:
    """The number of items, of items with a majority, and of ties; kappa and alpha over items with two labels.

    An item that is neither labelled nor tied has no label.
    """

    items: int
    labelled: int
    ties: int
    kappa: float | None
    alpha: float | None
    compared: int


def count_labels(votes: Iterable[tuple[int, int]]) -> ItemLabels:
    """Count the labels of all items. `votes` has the number of annotators per item for and against covered."""
    given = list(votes)
    several = [one for one in given if sum(one) >= 2]
    labelled, ties = sum(yes != no for yes, no in given), sum(yes == no > 0 for yes, no in given)
    return ItemLabels(len(given), labelled, ties, fleiss_kappa(several), krippendorff_alpha(several), len(several))


def sample_rows(
    people: Sequence[Row], judged: Iterable[Row], baselines: Iterable[Row], owners: Sequence[Owner]
) -> list[dict[str, Any]]:
    """Return the rows of the table `coverage`: each sample under each metric of a model, then under each baseline.

    `people` are rows of `human_coverage`, `judged` of `metric_coverage`, `baselines` of `similarity_baselines`. value
    and counts are null for samples without a verdict.
    """
    given = {((row["metric"], row["model"]), row["sample_id"]): row for row in judged}
    by_sample = {row["sample_id"]: row for row in baselines}
    names = [name for name in next(iter(by_sample.values()), {}) if name != "sample_id"]
    rows = [_row(one, owner, given.get((owner, one["sample_id"]), {})) for owner in owners for one in people]
    for name in names:
        rows += [_row(one, (name, None), {"value": by_sample.get(one["sample_id"], {}).get(name)}) for one in people]
    return rows


def _row(person: Row, owner: Owner, found: Row) -> dict[str, Any]:
    named = {"sample_id": person["sample_id"], "query_id": person["cluster"], "metric": owner[0], "model": owner[1]}
    people = {name: person[name] for name in ("human", "labelled", "ties")}
    return named | people | {name: found.get(name) for name in ("value", *COUNTS, "judged")}


def evaluation_rows(
    rows: Sequence[Row], labels: ItemLabels, more: Sequence[Row] = (), *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """Return the rows of the table `meta_evaluation`: correlations and covered items by metric and model, then kappa.

    `rows` has the rows of the table `coverage`; `more` has the rows of single items, which come last. With `clustered`,
    intervals resample queries, and the means of each query are correlated as well.
    """
    by_owner: dict[Owner, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: str(row["sample_id"])):
        by_owner[row["metric"], row["model"]].append(row)
    found: list[dict[str, Any]] = []
    for metric, model in dict.fromkeys((row["metric"], row["model"]) for row in rows):
        own = by_owner[metric, model]
        found += [{"metric": metric, "model": model} | row for row in _correlations(own, clustered, seed)]
        if model is not None:
            found += [{"metric": metric, "model": model} | row for row in _items(own, clustered, seed)]
    sizes = {"level": BY_ITEM, "n": labels.compared, "excluded": labels.items - labels.compared}
    found.append({"measure": KAPPA, "value": labels.kappa, **sizes})
    found.append({"measure": ALPHA, "value": labels.alpha, **sizes})
    return whole_rows([*found, *({"level": BY_ITEM, **row} for row in more)], dataset="coverage")


def _correlations(rows: Sequence[Row], clustered: bool, seed: int) -> list[dict[str, Any]]:
    """Correlate the samples that both people and the metric judged. The others are left out and counted."""
    known = [row for row in rows if row["human"] is not None and row["value"] is not None]
    clusters = [row["query_id"] for row in known] if clustered else None
    pairs = [row["human"] for row in known], [row["value"] for row in known]
    found = _correlation_rows(BY_SAMPLE, pairs, clusters, len(rows) - len(known), seed)
    if clustered:
        queries = {row["query_id"] for row in rows}
        means = _query_means(known)
        found += _correlation_rows(BY_QUERY, means, None, len(queries) - len(means[0]), seed)
    return found


def _correlation_rows(
    level: str, pairs: tuple[list[float], list[float]], clusters: list[str] | None, excluded: int, seed: int
) -> list[dict[str, Any]]:
    return [
        {
            "measure": name,
            "level": level,
            "value": one.value,
            "p_value": one.p_value,
            "ci_low": one.low,
            "ci_high": one.high,
            "n": one.n,
            "excluded": excluded,
        }
        for name, one in correlate(*pairs, clusters, seed=seed).items()
    ]


def _query_means(known: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Return the mean human coverage and the mean value of each query, sorted by query."""
    by_query: dict[str, list[Row]] = defaultdict(list)
    for row in known:
        by_query[row["query_id"]].append(row)
    human, value = (
        [round(fsum(row[name] for row in own) / len(own), DIGITS) for _, own in sorted(by_query.items())]
        for name in ("human", "value")
    )
    return human, value


def _items(rows: Sequence[Row], clustered: bool, seed: int) -> list[dict[str, Any]]:
    """Measure covered items: macro over the samples with a judged label, micro over their items, and agreement."""
    judged = [row for row in rows if row["judged"]]
    clusters = [row["query_id"] for row in judged] if clustered else None
    hits, wrong, missed = ([row[name] for row in judged] for name in COUNTS[:3])
    unjudged = {"macro": len(rows) - len(judged), "micro": sum(row["labelled"] - (row["judged"] or 0) for row in rows)}
    averages = [
        {
            "measure": f"{measure}_{average}",
            "level": BY_SAMPLE if average == "macro" else BY_ITEM,
            **one.interval.columns(),
            "n": one.n,
            "excluded": one.excluded + unjudged[average],
        }
        for (measure, average), one in item_averages(hits, wrong, missed, clusters, seed=seed).items()
    ]
    cells = np.array([[row[name] for name in COUNTS] for row in judged], dtype=np.int64).reshape(-1, 2, 2)
    sizes = {"level": BY_ITEM, "n": int(cells.sum()), "excluded": unjudged["micro"]}
    found = table_intervals(AGREEMENTS, cells, clusters, seed=seed)
    return averages + [{"measure": name, **one.columns(), **sizes} for name, one in found.items()]


OVERLAP, CONSTANT, ANNOTATOR = "word_overlap", "constant", "annotator"
PAIRS, F1_PAIRS = "pairs", "f1_pairs"
AUC, WEIGHT_AUC, ACCURACY = "auc", "auc_weight", "accuracy"
MODELS_KAPPA, MAJORITIES_KAPPA = "fleiss_kappa_models", "fleiss_kappa_majorities"
# With two annotators, a majority is both of them
LEAST_ANNOTATORS = 3


def item_rows(items: Items, found: Judgements, *, clustered: bool, seed: int) -> list[dict[str, Any]]:
    """Return the rows of `meta_evaluation` of single items: kappas of models, baselines and ceilings, and weights."""
    units = items.names(clustered=clustered)
    rows = model_kappas(items, found)
    if items.covered:
        rows += [*overlap_rows(items, units, seed), *annotator_rows(items)]
    return rows + weight_rows(items, found, units, seed)


def model_kappas(items: Items, found: Judgements) -> list[dict[str, Any]]:
    """Return Fleiss' kappa of the models of each metric, and Fleiss' kappa of two majorities: models and annotators.

    The first compares the items that all models judged. n counts the compared items; excluded counts the others.
    """
    rows = []
    counts = Counter(metric for _, metric in found.owners)
    for metric, models in counts.items():
        if models > 1:
            said = np.stack([codes_of(found.tables[owner]) for owner in found.owners if owner[1] == metric])
            yes, no = (said == 1).sum(axis=0), (said == 0).sum(axis=0)
            both = (items.said >= 0) & (yes != no)
            covered = (items.said == 1).astype(np.int64) + (yes > no)
            tables = (
                (MODELS_KAPPA, np.stack([yes, no], axis=1)[yes + no == models]),
                (MAJORITIES_KAPPA, np.stack([covered, 2 - covered], axis=1)[both]),
            )
            for name, table in tables:
                sizes = {"n": len(table), "excluded": len(items.said) - len(table)}
                rows.append({"metric": metric, "measure": name, "value": fleiss_kappa(table), **sizes})
    return rows


def pair_rows(
    items: Items, found: Judgements, cited: Mapping[JudgementOwner, Facts], *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """Return by metric and model precision, recall and F1 over pairs of a reference and a response fact.

    `cited` has the facts by which a method calls an item covered. The pairs of people are the covered items with the
    facts of `covered_by`. So a fact that people do not name is a wrong pair, also of a covered item. Leaves out items
    without a majority or a verdict, and covered items without `covered_by`. LongRecall; methods, section 6.
    """
    covering = [None if names is None else set(map(normalise, names)) for names in items.units.column("covered_by")]
    if not any(covering):
        return []
    clusters = [row["cluster"] for row in items.samples] if clustered else None
    rows = []
    for owner, facts in cited.items():
        known = (items.said == 0) & (codes_of(found.tables[owner]) >= 0)
        known |= (items.said == 1) & (codes_of(found.tables[owner]) >= 0) & [names is not None for names in covering]
        counts = np.zeros((len(items.samples), 3), dtype=np.int64)
        for item in np.flatnonzero(known).tolist():
            people = (covering[item] or set()) if items.said[item] else set()
            given = [set(map(normalise, forms)) for forms in facts.get(items.units.keys[item], ())]
            chosen = {min(forms & people or forms) for forms in given}
            counts[items.sample[item]] += len(chosen & people), len(chosen - people), len(people - chosen)
        hits, wrong, missed = counts.T
        for (measure, average), one in item_averages(hits, wrong, missed, clusters, seed=seed).items():
            if average == "micro":
                named = {"metric": owner[1], "model": owner[0], "measure": f"{measure}_{PAIRS}"}
                sizes = {"n": one.n, "excluded": int((~known).sum())}
                rows.append(named | one.interval.columns() | sizes)
    return rows


def overlap_rows(items: Items, units: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Return the AUC of a baseline, the share of an item's words in the response, and the accuracy of a constant label.

    Items without a majority, a word or a response are left out. `units` are the samples or clusters to resample.
    """
    size = int((items.said >= 0).sum())
    covered = int((items.said == 1).sum())
    scores: list[float | None] = []
    for text, number, said in zip(items.units.column("text"), items.sample.tolist(), items.said, strict=True):
        response = items.samples[number]["response"]
        scores.append(word_overlap(text, response) if said >= 0 and response is not None else None)
    share = {"value": max(covered, size - covered) / size if size else None, "n": size}
    return [
        {"metric": OVERLAP, "measure": AUC} | _auc(scores, items.said == 1, units, len(scores), seed),
        {"metric": CONSTANT, "measure": ACCURACY} | share | {"excluded": len(scores) - size},
    ]


def weight_rows(items: Items, found: Judgements, units: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Return by metric and model the AUC of its weights for must-have against nice-to-have references.

    For a metric that receives the weights as input, the AUC measures only the input. `units` as `overlap_rows`.
    """
    types = items.units.column("type")
    typed = [kind in (MUST_HAVE, NICE_TO_HAVE) for kind in types]
    rows = []
    for model, metric in sorted(found.owners, key=lambda owner: owner[::-1]):
        weights = found.tables[model, metric]["weight"].to_pylist()
        scores = [weight if one else None for weight, one in zip(weights, typed, strict=True)]
        if any(score is not None for score in scores):
            must = np.array([kind == MUST_HAVE for kind in types])
            named = {"metric": metric, "model": model, "measure": WEIGHT_AUC}
            rows.append(named | _auc(scores, must, units, sum(typed), seed))
    return rows


def _auc(
    scores: Sequence[float | None], positive: BoolArray, units: Sequence[str], everything: int, seed: int
) -> dict[str, Any]:
    """Return an AUC with its interval over the items with a score."""
    known = [(score, one, unit) for score, one, unit in zip(scores, positive, units, strict=True) if score is not None]
    values, covered, owners = zip(*known, strict=True) if known else ((), (), ())
    counts, _ = score_counts(values, covered, owners)
    return total_interval(auc, counts, seed=seed).columns() | {"n": len(known), "excluded": everything - len(known)}


def annotator_rows(items: Items) -> list[dict[str, Any]]:
    """Return the accuracy of each annotator against the majority, for items with three or more labels.

    It is the ceiling of any metric. Items without a label of the annotator, or without a majority, are left out.
    """
    columns, labels = defaultdict[int, list[bool | None]](list), items.units.column("labels")
    for item in np.flatnonzero(items.votes.sum(axis=1) >= LEAST_ANNOTATORS).tolist():
        for place, label in enumerate(labels[item]):
            known = label is not None and items.said[item] >= 0
            columns[place].append((label in items.covered) == bool(items.said[item]) if known else None)
    rows = []
    for place, column in sorted(columns.items()):
        agreed = [one for one in column if one is not None]
        value = sum(agreed) / len(agreed) if agreed else None
        sizes = {"n": len(agreed), "excluded": len(column) - len(agreed)}
        rows.append({"metric": f"{ANNOTATOR}_{place + 1}", "measure": ACCURACY, "value": value, **sizes})
    return rows
