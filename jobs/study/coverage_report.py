"""Render the report of a study of coverage as Markdown, with published figures; methods, section 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from untold.jobs.study.coverage_rows import AGREEMENTS, KAPPA, MAJORITIES_KAPPA, MODELS_KAPPA, ItemLabels
from untold.jobs.study.judgements import BY_QUERY, BY_SAMPLE, Row
from untold.jobs.study.report import (
    COSTS,
    Cost,
    cost_cells,
    document,
    interval,
    intervals,
    markdown_cell,
    number,
    pivot,
    prompts_table,
    section,
    table_section,
)
from untold.udfs.statistics.correlation import COEFFICIENTS
from untold.udfs.statistics.item_agreement import AVERAGES, MEASURES
from untold.udfs.statistics.tiers import Subset

Means = Mapping[str, Mapping[str, float | None]]
"""By model the means of the measures of importance."""
ICAT, IMPORTANCE, LONGRECALL = "icat", "importance", "longrecall"
# Samarinas et al. 2025; ICAT-S uses a 70B aligner
ICAT_FIGURES = (
    ("pearson of ICAT-S, a corpus (ClueWeb)", ICAT, "pearson", 0.422),
    ("spearman of ICAT-S, a corpus (ClueWeb)", ICAT, "spearman", 0.446),
    ("kendall of ICAT-S, a corpus (ClueWeb)", ICAT, "kendall", 0.368),
    ("pearson of ICAT-S, web search", ICAT, "pearson", 0.525),
    ("spearman of ICAT-S, web search", ICAT, "spearman", 0.443),
    ("kendall of ICAT-S, web search", ICAT, "kendall", 0.358),
    ("precision of covered aspects", ICAT, "precision_macro", 0.903),
    ("recall of covered aspects", ICAT, "recall_macro", 0.798),
    ("f1 of covered aspects", ICAT, "f1_macro", 0.835),
    ("Fleiss' kappa of annotators", None, KAPPA, 0.829),
    ("correlation of bertscore_recall (ours: pearson)", "bertscore_recall", "pearson", 0.291),
    ("correlation of meteor (ours: pearson)", "meteor", "pearson", 0.027),
    ("correlation of rouge1 (ours: pearson)", "rouge1", "pearson", -0.058),
    ("correlation of bleu (ours: pearson)", "bleu", "pearson", -0.099),
)
ICAT_NOTE = (
    "Published (Samarinas et al. 2025) of responses to topics of the TREC Web Track, with ClueWeb or a web search as "
    "the source. ClueWeb and the paper's human labels are not at hand: these figures are of other samples than ours, "
    "and show only how large such figures are. Which coefficient the published baselines are is not known here."
)
# Precision, recall and F1 in per cent by data set and answering model, means over prompts
IMPORTANCE_MEANS = {
    "biographies, GPT-4o-mini": (13.3, 9.1, 8.2),
    "biographies, Gemini-2.5-flash-lite": (14.1, 10.9, 9.4),
    "LongFact, GPT-4o-mini": (38.6, 42.6, 36.8),
    "LongFact, Gemini-2.5-flash-lite": (28.6, 44.4, 30.4),
    "LongForm, Llama-3.1-70B": (27.7, 8.5, 8.9),
}
IMPORTANCE_NOTE = (
    "Published (importance-aware recall, 2026) of answers of other systems to other prompts: means over prompts, so "
    "that F1 is no harmonic mean of the other two. Ours are the means of this study's outputs, over their samples."
)
LONGRECALL_SETS = ("QAMPARI", "RoMQA", "ExpertQA")
LONGRECALL_F1 = {
    "longrecall, Qwen-2.5-32B": (LONGRECALL, (0.91, 0.88, 0.55)),
    "longrecall, Gemini": (LONGRECALL, (0.86, 0.80, 0.53)),
    "holistic": ("holistic", (0.52, 0.36, 0.42)),
    "arecall, or erecall": ("arecall", (0.78, 0.66, 0.01)),
    "longrecall, challenging subset": (LONGRECALL, (0.76, 0.74, 0.64)),
}
LONGRECALL_KAPPAS = (
    ("Fleiss' kappa of annotators", None, KAPPA, "0.83, 0.85"),
    ("Fleiss' kappa of majorities", LONGRECALL, MAJORITIES_KAPPA, "0.87, 0.85"),
)
LONGRECALL_NOTE = (
    "Published (LongRecall) of 900 labelled references of each data set, and of 300 challenging ones; candidates were "
    "missed for 2-4 % of the references. Those labels are not at hand: they show only how large such figures are."
)


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
        f"Intervals: 95 % BCa, 10,000 resamples of {units}; p-values take samples for independent. Human coverage is "
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
            "word_overlap: the share of an item's words that stand in the response. constant: one label for all. "
            "annotator: one of them against the majority, which their own label is part of. auc_weight: weights of "
            "must-have against those of nice-to-have references.",
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
            "How many methods call a reference covered: all, some, one alone, none. Of all references, drawn or not.",
            {"tier": "tier", "references": "count"},
            found.tiers,
        ),
        section(
            "False negatives",
            "Covered by most annotators and not by the method: no candidate covers it, or entailment said no.",
            {"method": "method", "missed": "fn", "no candidate": "fn_candidate", "no entailment": "fn_entailment"},
            found.misses if any(row["fn"] for row in found.misses) else (),
        ),
        section(
            "What a sample cost",
            "Of all starts.",
            {name: name for name in ("metric", "model", *COSTS)},
            [
                {"metric": metric, "model": model, **dict(zip(COSTS, cost_cells(cost), strict=True))}
                for model, own in costs.items()
                for metric, cost in own.items()
            ],
        ),
        *published(rows, found.means),
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
    taken = "" if found.subset is None else f"Of the subset {found.subset} alone. "
    if not found.covered:
        return f"{taken}{labels.items:,} items, none of them labelled: nothing is held against people."
    return (
        f"{taken}Labels that mean covered: {', '.join(f'`{markdown_cell(name)}`' for name in found.covered)}. Of "
        f"{labels.items:,} items, {labels.labelled:,} have a majority; {labels.ties:,} are ties and "
        f"{labels.items - labels.labelled - labels.ties:,} have no label: these are left out. Fleiss' kappa of the "
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
        if row["measure"].endswith(tuple(f"_{average}" for average in AVERAGES))
    ]
    lines = [
        [own["metric"], own["model"], own["average"]]
        + [cell for name in MEASURES for cell in (interval(own[name]), number(own[name]["n"]))]
        for own in pivot(split, MEASURES, ("metric", "model", "average"))
    ]
    note = (
        "Of labelled items. Macro: over the n samples in which a measure is defined; micro: over items, n of its "
        "denominator."
    )
    heads = ["metric", "model", "average", *[head for name in MEASURES for head in (name, "n")]]
    return table_section("Covered items", note, heads, lines)


def published(rows: Sequence[Row], means: Means) -> list[str]:
    """Return the published figures of the metrics of the study. By default, return the figures of ICAT."""
    metrics = {row["metric"] for row in rows}
    values: dict[tuple[str | None, str], list[str]] = {}
    for row in rows:
        if row.get("level") != BY_QUERY:
            values.setdefault((row["metric"], row["measure"]), []).append(number(row["value"]))
    ours = {key: ", ".join(shown) for key, shown in values.items()}
    parts = []
    if IMPORTANCE in metrics:
        parts.append(_importance(means))
    if LONGRECALL in metrics:
        parts.append(_longrecall(ours))
    if ICAT in metrics or not parts:
        lines = [
            [name, ours.get((metric, measure), "-"), number(value)] for name, metric, measure, value in ICAT_FIGURES
        ]
        parts.append(table_section("Published", ICAT_NOTE, ["figure", "here", "published"], lines))
    return parts


def _importance(means: Means) -> str:
    lines = []
    for model, own in means.items():
        values = [own.get(name) for name in ("precision", "recall", "f1")]
        lines.append([f"here: {model}", *("-" if value is None else f"{100 * value:.1f}" for value in values)])
    lines += [[name, *(f"{value:.1f}" for value in figures)] for name, figures in IMPORTANCE_MEANS.items()]
    return table_section(
        "Published: importance", IMPORTANCE_NOTE, ["answers", "precision %", "recall %", "F1 %"], lines
    )


def _longrecall(ours: Mapping[tuple[str | None, str], str]) -> str:
    lines = [
        [f"F1, {name}, {data}", ours.get((metric, "f1_micro"), "-"), f"{value:.2f}"]
        for name, (metric, figures) in LONGRECALL_F1.items()
        for data, value in zip(LONGRECALL_SETS, figures, strict=True)
    ]
    lines += [[name, ours.get((metric, measure), "-"), shown] for name, metric, measure, shown in LONGRECALL_KAPPAS]
    return table_section("Published: LongRecall", LONGRECALL_NOTE, ["figure", "here, pooled", "published"], lines)
