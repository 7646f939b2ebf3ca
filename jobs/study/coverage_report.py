"""Render the report of a study of coverage as Markdown, with published figures; methods, section 6."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from untold.jobs.study import published
from untold.jobs.study.coverage_rows import (
    AGREEMENTS,
    F1_PAIRS,
    KAPPA,
    MAJORITIES_KAPPA,
    MODELS_KAPPA,
    PAIRS,
    ItemLabels,
)
from untold.jobs.study.judgements import BY_QUERY, BY_SAMPLE, Row
from untold.jobs.study.meta_evaluation import COSTS, Cost, cost_cells
from untold.jobs.study.published import PublishedFigure, published_figures, published_section
from untold.jobs.study.rendering import (
    document,
    interval,
    intervals,
    markdown_cell,
    number,
    pivot,
    section,
    table_section,
)
from untold.jobs.study.report import prompts_table
from untold.udfs.statistics.correlation import COEFFICIENTS
from untold.udfs.statistics.item_agreement import AVERAGES, MEASURES
from untold.udfs.statistics.tiers import Subset

Means = Mapping[str, Mapping[str, float | None]]
"""By model the means of the measures of importance."""
IMPORTANCE = "importance"
# The heading, the paper and the note by metric
PUBLISHED = {
    IMPORTANCE: (
        "Published: importance",
        published.IMPORTANCE,
        "Published (Beyond Precision, Jafari et al. 2026) for responses of other systems to other prompts, as means "
        "over prompts. Therefore F1 is not the harmonic mean of the other two. Ours are the means over the samples of "
        "this study.",
    ),
    "longrecall": (
        "Published: LongRecall",
        published.LONGRECALL,
        "Published (LongRecall, Ardestani et al. 2025) for 900 labelled references of each data set and 300 "
        "challenging references, with missed candidates for 2-4 % of them. These labels are not available, so the "
        "figures show only the size to expect. f1_pairs is over pairs of a reference and a response fact. If a method "
        "has no pairs, its f1_micro is shown.",
    ),
    "icat": (
        "Published",
        published.ICAT,
        "Published (ICAT-S, Samarinas et al. 2025) for responses to topics of the TREC Web Track, with ClueWeb or a "
        "web search as the source and a 70B aligner. ClueWeb and the paper's human labels are not available, so the "
        "figures describe other samples and show only the size to expect.",
    ),
}


@dataclass(frozen=True)
class CoverageFindings:
    """The results of a study of coverage.

    `rows`, `tiers`, `misses` and `comparisons` are rows of the tables `meta_evaluation`, `tiers`, `false_negatives` and
    `comparisons`. `covered` lists the labels that mean covered. `subset` is None for a study of all references.
    """

    rows: Sequence[Row]
    labels: ItemLabels
    covered: Sequence[str]
    tiers: Sequence[Row] = ()
    misses: Sequence[Row] = ()
    means: Means = field(default_factory=dict)
    subset: Subset | None = None
    comparisons: Sequence[Row] = ()


def render(
    found: CoverageFindings, costs: Mapping[str, Mapping[str, Cost]], *, clustered: bool, notes: Sequence[str]
) -> str:
    """Return the report as Markdown. `costs` has the cost per sample by model and metric; existing scores have none."""
    rows = found.rows
    units = "whole queries" if clustered else "single samples"
    return document(
        "Meta-evaluation on coverage",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}. p-values assume independent samples. Human coverage is "
        "the share of a sample's labelled items that most annotators found covered.",
        _labels(found),
        *[f"Note: {note}." for note in notes],
        *[_correlations(rows, level) for level in (BY_SAMPLE, BY_QUERY)],
        _items(rows),
        section(
            "Agreement with the majority",
            "Cohen's kappa, mean F1 of covered and not covered, and accuracy, of all labelled items together.",
            {"metric": "metric", "model": "model", "n": "n", **intervals(AGREEMENTS)},
            pivot((row for row in rows if row["model"] is not None), AGREEMENTS),
        ),
        section(
            "Baselines and ceilings of single items",
            "word_overlap is the share of an item's words that occur in the response. constant is one label for all "
            "items. annotator compares one annotator with the majority, which includes the annotator. auc_weight "
            "compares the weights of must-have and nice-to-have references.",
            {"who": "metric", "model": "model", "measure": "measure", "value": interval, "n": "n"},
            [row for row in rows if _is_single(row)],
        ),
        prompts_table(found.comparisons),
        section(
            "Agreement of models",
            "",
            {"metric": "metric", "Fleiss' kappa": _kappa_name, "value": "value", "n": "n", "left out": "excluded"},
            [row for row in rows if row["measure"] in _KAPPAS],
        ),
        section(
            "Tiers",
            "Number of methods that find a reference covered (all, some, one or none), over all references.",
            {"tier": "tier", "references": "count"},
            found.tiers,
        ),
        section(
            "False negatives",
            "Covered by most annotators, but not by the method (no candidate covers it, or entailment rejected it).",
            {"method": "method", "missed": "fn", "no candidate": "fn_candidate", "no entailment": "fn_entailment"},
            found.misses if any(row["fn"] for row in found.misses) else (),
        ),
        section(
            "Cost per sample",
            "Costs include all starts.",
            {name: name for name in ("metric", "model", *COSTS)},
            [
                {"metric": metric, "model": model, **dict(zip(COSTS, cost_cells(cost), strict=True))}
                for model, own in costs.items()
                for metric, cost in own.items()
            ],
        ),
        *published_sections(rows, found.means),
    )


_KAPPAS = {MODELS_KAPPA: "of models", MAJORITIES_KAPPA: "of the two majorities"}


def _kappa_name(row: Row) -> str:
    return _KAPPAS[row["measure"]]


def _is_single(row: Row) -> bool:
    of_items = row["measure"] in ("auc", "accuracy") and row["model"] is None
    return of_items or row["measure"] == "auc_weight"


def _labels(found: CoverageFindings) -> str:
    """Return the counts of the labels, and the subset."""
    labels, kappa = found.labels, next(row for row in found.rows if row["measure"] == KAPPA)
    taken = "" if found.subset is None else f"All figures cover only the subset {found.subset}. "
    if not found.covered:
        return f"{taken}{labels.items:,} items without labels, so there is no comparison with people."
    return (
        f"{taken}Labels that mean covered: {', '.join(f'`{markdown_cell(name)}`' for name in found.covered)}. "
        f"{labels.labelled:,} of {labels.items:,} items have a majority. {labels.ties:,} are ties and "
        f"{labels.items - labels.labelled - labels.ties:,} have no label, and both are excluded. Fleiss' kappa of the "
        f"annotators: {number(kappa['value'])}, Krippendorff's alpha {number(labels.alpha)}, over {kappa['n']:,} "
        "items with two labels or more."
    )


def _correlations(rows: Sequence[Row], level: str) -> str:
    """Return the correlations by metric and model, then by baseline; empty if the study does not have the level."""
    lines = [
        [own["metric"], own["baseline"], number(own["n"]), number(own["excluded"])]
        + [cell for name in COEFFICIENTS for cell in (interval(own[name]), _p_value(own[name]["p_value"]))]
        for own in pivot((row for row in rows if row["level"] == level), COEFFICIENTS)
    ]
    heads = ["metric", "model", "n", "left out", *[head for name in COEFFICIENTS for head in (name, "p")]]
    return table_section(f"Correlation with human coverage, by {level}", "", heads, lines)


def _p_value(value: float | None) -> str:
    return "<0.0001" if value is not None and value < 0.0001 else number(value, 4)


def _items(rows: Sequence[Row]) -> str:
    """Return precision, recall and F1 of covered items by metric, model and average."""
    split = [
        row | dict(zip(("measure", "average"), row["measure"].rsplit("_", 1), strict=True))
        for row in map(dict, rows)
        if row["measure"].endswith(tuple(f"_{average}" for average in (*AVERAGES, PAIRS)))
    ]
    lines = [
        [own["metric"], own["model"], own["average"]]
        + [cell for name in MEASURES for cell in (interval(own[name]), number(own[name]["n"]))]
        for own in pivot(split, MEASURES, ("metric", "model", "average"))
    ]
    note = (
        "Measures cover labelled items. Macro is the mean over the n samples with a defined measure. Micro is over "
        "items, and pairs is over pairs of an item and a response fact; n is the denominator."
    )
    heads = ["metric", "model", "average", *[head for name in MEASURES for head in (name, "n")]]
    return table_section("Covered items", note, heads, lines)


def published_sections(rows: Sequence[Row], means: Means) -> list[str]:
    """Return the published figures of the metrics of the study. By default, return the figures of ICAT."""
    ours: dict[tuple[str | None, str], list[str]] = defaultdict(list)
    for row in rows:
        if row["level"] != BY_QUERY:
            ours[row["metric"], row["measure"]].append(number(row["value"]))
    for own in means.values():
        for measure, value in own.items():
            ours[IMPORTANCE, measure].append(number(value))

    def find(one: PublishedFigure) -> str | None:
        found = ours.get((one.metric, one.measure))
        if found is None and one.measure == F1_PAIRS:
            found = ours.get((one.metric, "f1_micro"))
        return None if found is None else ", ".join(found)

    metrics = {row["metric"] for row in rows}
    return [
        published_section(heading, note, published_figures(paper), find)
        for metric, (heading, paper, note) in PUBLISHED.items()
        if metric in metrics or (metric == "icat" and metrics.isdisjoint(PUBLISHED))
    ]
