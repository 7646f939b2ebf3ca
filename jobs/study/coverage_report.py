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
    "Published (Samarinas et al. 2025) for responses to topics of the TREC Web Track, with ClueWeb or a web search as "
    "the source. ClueWeb and the paper's human labels are not available, so the published figures describe other "
    "samples and show only the size to expect. The coefficient of the published baselines is unknown."
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
    "Published (importance-aware recall, 2026) for answers of other systems to other prompts, as means over prompts. "
    "Therefore F1 is not the harmonic mean of the other two. Ours are the means over the samples of this study."
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
    "Published (LongRecall) for 900 labelled references of each data set and 300 challenging references, with missed "
    "candidates for 2-4 % of them. These labels are not available, so the figures show only the size to expect."
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
        if row["measure"].endswith(tuple(f"_{average}" for average in AVERAGES))
    ]
    lines = [
        [own["metric"], own["model"], own["average"]]
        + [cell for name in MEASURES for cell in (interval(own[name]), number(own[name]["n"]))]
        for own in pivot(split, MEASURES, ("metric", "model", "average"))
    ]
    note = (
        "Measures cover labelled items. Macro is the mean over the n samples with a defined measure. Micro is over "
        "items, and n is its denominator."
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
