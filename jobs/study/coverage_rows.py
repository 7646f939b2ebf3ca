"""Compute correlations, agreement and the measures of covered items; methods, sections 6 and 7."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from untold.jobs.study.agreement import comparison_rows, group_means, prompt_pairs, table_rows
from untold.jobs.study.judgements import (
    BY_ITEM,
    BY_QUERY,
    BY_SAMPLE,
    BoolArray,
    Judgements,
    Key,
    LabelledUnits,
    Owner,
    Row,
    Rows,
    whole_rows,
)
from untold.jobs.study.meta_evaluation import PromptPairs
from untold.jobs.summary.score_counts import group_by
from untold.udfs.facts.nodes import normalise
from untold.udfs.samples.data_sets import MUST_HAVE, NICE_TO_HAVE
from untold.udfs.samples.labelled import word_overlap
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1
from untold.udfs.statistics.correlation import correlate
from untold.udfs.statistics.intervals import IntArray, total_interval
from untold.udfs.statistics.item_agreement import (
    auc,
    fleiss_kappa,
    item_averages,
    krippendorff_alpha,
    score_counts,
    votes,
)

KEY = ("sample_id", "reference_id")
KAPPA, ALPHA = "fleiss_kappa", "krippendorff_alpha"
COUNTS = ("true_positives", "false_positives", "false_negatives", "true_negatives")
# Measures over all labelled items with the labels covered and not covered
AGREEMENTS = {"kappa": kappa, "macro_f1": macro_f1, "accuracy": accuracy}
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


def sample_rows(items: Items, found: Judgements, baselines: Sequence[Row]) -> Rows:
    """Return the rows of the table `coverage`: each sample under each metric of a model, then under each baseline.

    `human` is the share of covered items among the labelled items, `value` among all items with a verdict. The counts
    compare verdict and majority of the labelled items; `judged` is their sum. value and counts are null for samples
    without a verdict. `baselines` have a value per baseline and sample_id.
    """
    people = _people(items)
    rows = []
    for model, metric in found.owners:
        said = codes_of(found.tables[model, metric])
        masks = [(said == one) & (items.said == other) for one, other in ((1, 1), (1, 0), (0, 1), (0, 0))]
        counted = zip(*map(items.count, (found.given[model, metric], said >= 0, said == 1, *masks)), strict=True)
        for person, (given, known, covered, *cells) in zip(people, counted, strict=True):
            own = {"value": covered / known if known else None, **dict(zip(COUNTS, cells, strict=True))}
            own |= {"judged": sum(cells)}
            rows.append(person | {"metric": metric, "model": model} | (own if given else dict.fromkeys(own)))
    values = {row["sample_id"]: row for row in baselines}
    for name in [name for name in next(iter(baselines), {}) if name != "sample_id"]:
        empty = {"metric": name, "model": None, **dict.fromkeys((*COUNTS, "judged"))}
        rows += [person | empty | {"value": values.get(person["sample_id"], {}).get(name)} for person in people]
    return rows


def _people(items: Items) -> Rows:
    """Return sample_id, query_id, human, labelled and ties of each sample. Ties have labels and no majority."""
    tied = (items.said < 0) & (items.votes[:, 0] > 0)
    counts = zip(*map(items.count, (items.said >= 0, items.said == 1, tied)), strict=True)
    return [
        {"sample_id": row["sample_id"], "query_id": row["cluster"], "labelled": size, "ties": ties}
        | {"human": covered / size if size else None}
        for row, (size, covered, ties) in zip(items.samples, counts, strict=True)
    ]


def compare_prompts(rows: Iterable[Row], pairs: PromptPairs, *, clustered: bool, seed: int) -> Rows:
    """Return the rows of the table `comparisons` for prompts of one model: tests of accuracy over labelled items.

    `rows` are those of the table `coverage`, with equal samples of all methods. The items of a sample, or of a query
    with `clustered`, flip together. A sample counts if both judged equally many of its items.
    """
    own = group_by((row for row in rows if row["model"] is not None), "model", "metric")
    earned = {
        owner: (_sums(each, "true_positives", "true_negatives"), _sums(each, "judged")) for owner, each in own.items()
    }
    metrics = dict.fromkeys(metric for (_, metric), (_, sizes) in earned.items() if sizes.any())
    names = [row["query_id" if clustered else "sample_id"] for row in next(iter(own.values()), [])]
    # A metric may have judged under one prompt only
    nothing = np.zeros(len(names), dtype=np.int64)
    both = product((one.model for pair in pairs for one in pair), metrics)
    earned = {owner: earned.get(owner, (nothing, nothing)) for owner in both}
    compared = comparison_rows(earned, prompt_pairs(metrics, pairs), names, seed=seed)
    return [{"dataset": "coverage", **row} for row in compared]


def _sums(rows: Iterable[Row], *names: str) -> IntArray:
    """Return the sum of the columns of each row, 0 for null."""
    return np.array([sum(row[name] or 0 for name in names) for row in rows], dtype=np.int64)


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


def evaluation_rows(
    rows: Sequence[Row], labels: ItemLabels, more: Sequence[Row] = (), *, clustered: bool, seed: int
) -> Rows:
    """Return the rows of the table `meta_evaluation`: correlations and covered items by metric and model, then kappa.

    `rows` has the rows of the table `coverage`; `more` has the rows of single items, which come last. With `clustered`,
    intervals resample queries, and the means of each query are correlated as well.
    """
    by_owner = group_by(sorted(rows, key=lambda row: str(row["sample_id"])), "metric", "model")
    found: Rows = []
    for metric, model in dict.fromkeys((row["metric"], row["model"]) for row in rows):
        own = by_owner[metric, model]
        found += [{"metric": metric, "model": model} | row for row in _correlations(own, clustered, seed)]
        if model is not None:
            found += [{"metric": metric, "model": model} | row for row in _items(own, clustered, seed)]
    sizes = {"level": BY_ITEM, "n": labels.compared, "excluded": labels.items - labels.compared}
    found.append({"measure": KAPPA, "value": labels.kappa, **sizes})
    found.append({"measure": ALPHA, "value": labels.alpha, **sizes})
    return whole_rows([*found, *({"level": BY_ITEM, **row} for row in more)], dataset="coverage")


def _correlations(rows: Sequence[Row], clustered: bool, seed: int) -> Rows:
    """Correlate the samples that both people and the metric judged. The others are left out and counted."""
    known = [row for row in rows if row["human"] is not None and row["value"] is not None]
    clusters = [row["query_id"] for row in known] if clustered else None
    human, value = ([row[name] for row in known] for name in ("human", "value"))
    levels = [(BY_SAMPLE, len(rows), correlate(human, value, clusters, seed=seed))]
    if clustered:
        human, value = group_means(known, "query_id", ("human", "value"))
        levels.append((BY_QUERY, len({row["query_id"] for row in rows}), correlate(human, value, seed=seed)))
    return [
        {"measure": name, "level": level, **one.columns(), "excluded": size - one.n}
        for level, size, found in levels
        for name, one in found.items()
    ]


def _items(rows: Sequence[Row], clustered: bool, seed: int) -> Rows:
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
    agreements = table_rows(AGREEMENTS, cells, clusters, excluded=unjudged["micro"], seed=seed)
    return averages + [row | {"level": BY_ITEM} for row in agreements]


OVERLAP, CONSTANT, ANNOTATOR = "word_overlap", "constant", "annotator"
PAIRS, F1_PAIRS = "pairs", "f1_pairs"
AUC, WEIGHT_AUC, ACCURACY = "auc", "auc_weight", "accuracy"
MODELS_KAPPA, MAJORITIES_KAPPA = "fleiss_kappa_models", "fleiss_kappa_majorities"
# With two annotators, a majority is both of them
LEAST_ANNOTATORS = 3


def item_rows(items: Items, found: Judgements, *, clustered: bool, seed: int) -> Rows:
    """Return the rows of `meta_evaluation` of single items: kappas of models, baselines and ceilings, and weights."""
    units = items.names(clustered=clustered)
    rows = model_kappas(items, found)
    if items.covered:
        rows += [*overlap_rows(items, units, seed), *annotator_rows(items)]
    return rows + weight_rows(items, found, units, seed)


def model_kappas(items: Items, found: Judgements) -> Rows:
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


def pair_rows(items: Items, found: Judgements, cited: Mapping[Owner, Facts], *, clustered: bool, seed: int) -> Rows:
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


def overlap_rows(items: Items, units: Sequence[str], seed: int) -> Rows:
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


def weight_rows(items: Items, found: Judgements, units: Sequence[str], seed: int) -> Rows:
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


def annotator_rows(items: Items) -> Rows:
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
