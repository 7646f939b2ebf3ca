"""Render the report of a study of coverage as Markdown, with what the papers print; methods, section 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from untold.jobs.study.coverage_rows import AGREEMENTS, BY_QUERY, BY_SAMPLE, KAPPA, ItemLabels
from untold.jobs.study.report import (
    Cost,
    Row,
    by_owner,
    cost_cells,
    interval,
    markdown_cell,
    number,
    prompts_table,
    section,
)
from untold.udfs.statistics.correlation import COEFFICIENTS
from untold.udfs.statistics.item_agreement import AVERAGES, MEASURES
from untold.udfs.statistics.tiers import Subset

Key = tuple[str | None, str]
# Samarinas et al. 2025; what is not printed for a row is None. Correlations are of ICAT-S with a 70B aligner
ICAT, IMPORTANCE, LONGRECALL = "icat", "importance", "longrecall"
ICAT_CORRELATIONS = {
    "a corpus (ClueWeb)": {"pearson": 0.422, "spearman": 0.446, "kendall": 0.368},
    "web search": {"pearson": 0.525, "spearman": 0.443, "kendall": 0.358},
}
ICAT_ITEMS = {"precision": 0.903, "recall": 0.798, "f1": 0.835}
ICAT_KAPPA = 0.829
ICAT_BASELINES = {"bertscore_recall": 0.291, "meteor": 0.027, "rouge1": -0.058, "bleu": -0.099}
ICAT_NOTE = (
    "Published (Samarinas et al. 2025) of responses to topics of the TREC Web Track, with ClueWeb or a web search as "
    "the source. ClueWeb and the paper's human labels are not at hand: these figures are of other samples than ours, "
    "and show only how large such figures are. Which coefficient the published baselines are is not known here."
)
# By data set and answering model: precision, recall and F1 of its answers in per cent, means over prompts
IMPORTANCE_MEANS = {
    ("biographies", "GPT-4o-mini"): (13.3, 9.1, 8.2),
    ("biographies", "Gemini-2.5-flash-lite"): (14.1, 10.9, 9.4),
    ("LongFact", "GPT-4o-mini"): (38.6, 42.6, 36.8),
    ("LongFact", "Gemini-2.5-flash-lite"): (28.6, 44.4, 30.4),
    ("LongForm", "Llama-3.1-70B"): (27.7, 8.5, 8.9),
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
LONGRECALL_KAPPAS = {
    "of annotators": (KAPPA, (0.83, 0.85)),
    "of majorities": ("fleiss_kappa_majorities", (0.87, 0.85)),
}
LONGRECALL_NOTE = (
    "Published (LongRecall) of 900 labelled references of each data set, and of 300 challenging ones; candidates were "
    "missed for 2-4 % of the references. Those labels are not at hand: they show only how large such figures are."
)


def published(rows: Sequence[Row], means: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """A section a paper whose metric the study has; that of ICAT, which has baselines, where it has none of the others.

    rows: of the table `meta_evaluation`; means: by model, of the measures of importance.
    """
    metrics = {row["metric"] for row in rows}
    by_key: dict[Key, dict[str | None, Row]] = {}
    for row in rows:
        if row.get("level") != BY_QUERY:
            by_key.setdefault((row["metric"], row["measure"]), {})[row["model"]] = row
    parts = []
    if IMPORTANCE in metrics:
        parts.append(_importance(means))
    if LONGRECALL in metrics:
        parts.append(_longrecall(by_key))
    if ICAT in metrics or not parts:
        parts.append(_icat(by_key))
    return parts


def _icat(by_key: Mapping[Key, Mapping[str | None, Row]]) -> str:
    lines = []
    for source, figures in ICAT_CORRELATIONS.items():
        for name in COEFFICIENTS:
            lines.append([f"{name} of ICAT-S, {source}", _ours(by_key, ICAT, name), f"{figures[name]:.3f}"])
    for name, value in ICAT_ITEMS.items():
        lines.append([f"{name} of covered aspects", _ours(by_key, ICAT, f"{name}_macro"), f"{value:.3f}"])
    lines.append(["Fleiss' kappa of annotators", _ours(by_key, None, KAPPA), f"{ICAT_KAPPA:.3f}"])
    for name, value in ICAT_BASELINES.items():
        lines.append([f"correlation of {name} (ours: pearson)", _ours(by_key, name, "pearson"), f"{value:.3f}"])
    return section("Published", ICAT_NOTE, ["figure", "here", "published"], lines)


def _importance(means: Mapping[str, Mapping[str, float | None]]) -> str:
    lines = [[f"here: {model}", *_percent(own)] for model, own in means.items()]
    for (data, system), figures in IMPORTANCE_MEANS.items():
        lines.append([f"{data}, {system}", *(f"{value:.1f}" for value in figures)])
    heads = ["answers", "precision %", "recall %", "F1 %"]
    return section("Published: importance", IMPORTANCE_NOTE, heads, lines)


def _percent(means: Mapping[str, float | None]) -> list[str]:
    values = [means.get(name) for name in ("precision", "recall", "f1")]
    return ["-" if value is None else f"{100 * value:.1f}" for value in values]


def _longrecall(by_key: Mapping[Key, Mapping[str | None, Row]]) -> str:
    lines = []
    for name, (metric, figures) in LONGRECALL_F1.items():
        for data, value in zip(LONGRECALL_SETS, figures, strict=True):
            lines.append([f"F1, {name}, {data}", _ours(by_key, metric, "f1_micro"), f"{value:.2f}"])
    for name, (measure, values) in LONGRECALL_KAPPAS.items():
        owner = None if measure == KAPPA else LONGRECALL
        shown = ", ".join(f"{value:.2f}" for value in values)
        lines.append([f"Fleiss' kappa {name}", _ours(by_key, owner, measure), shown])
    heads = ["figure", "here, pooled", "published"]
    return section("Published: LongRecall", LONGRECALL_NOTE, heads, lines)


def _ours(by_key: Mapping[Key, Mapping[str | None, Row]], metric: str | None, measure: str) -> str:
    """Our figure, or those of all models, in their order; `-` without one."""
    values = [row["value"] for row in by_key.get((metric, measure), {}).values()]
    return ", ".join(map(number, values)) or "-"


MODELS_KAPPA, MAJORITIES_KAPPA = "fleiss_kappa_models", "fleiss_kappa_majorities"


@dataclass(frozen=True)
class CoverageFindings:
    """What a study of coverage found: rows of its tables, the labels, and those of them that mean covered.

    rows: of `meta_evaluation`; tiers, misses: of `tiers` and `false_negatives`; means: by model, of the measures of
    importance; subset: what the references were drawn as, None where all are taken; comparisons: of two prompts.
    """

    rows: Sequence[Row]
    labels: ItemLabels
    covered: Sequence[str]
    tiers: Sequence[Row] = ()
    misses: Sequence[Row] = ()
    means: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    subset: Subset | None = None
    comparisons: Sequence[Row] = ()


def render(
    found: CoverageFindings, costs: Mapping[str, Mapping[str, Cost]], *, clustered: bool, notes: Sequence[str]
) -> str:
    """The report as Markdown.

    costs: of a sample, by model and metric; none for scores that were given. notes: lines on what is left out. The same
    rows give the same text; names from outside are escaped.
    """
    rows = found.rows
    units = "whole queries" if clustered else "single samples"
    parts = [
        "# Meta-evaluation on coverage",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}; p-values take samples for independent. Human coverage is "
        "the share of a sample's labelled items that most annotators found covered.",
        _labels(found),
        *[f"Note: {note}." for note in notes],
        *[_correlations(rows, level) for level in (BY_SAMPLE, BY_QUERY)],
        _items(rows),
        _agreements(rows),
        _single_items(rows),
        prompts_table(found.comparisons),
        _models(rows),
        _tiers(found),
        _misses(found.misses),
        _costs(costs),
        *published(rows, found.means),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _labels(found: CoverageFindings) -> str:
    """What people said; what the study is of, where that is not all."""
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


def _agreements(rows: Sequence[Row]) -> str:
    """A line a method: what agreement with the majority of annotators there is over all labelled items."""
    own = by_owner((row for row in rows if row["model"] is not None), AGREEMENTS)
    lines = [
        [*map(str, owner), f"{found['kappa']['n']:,}", *(interval(found[name]) for name in AGREEMENTS)]
        for owner, found in own.items()
    ]
    note = "Cohen's kappa, mean F1 of covered and not covered, and accuracy, of all labelled items together."
    return section("Agreement with the majority", note, ["metric", "model", "n", *AGREEMENTS], lines)


def _single_items(rows: Sequence[Row]) -> str:
    """The baselines and ceilings of single items, and how weights tell must-have from nice-to-have references."""
    measures = ("auc", "auc_weight", "accuracy")
    own = [
        row for row in rows if row["measure"] in measures and (row["model"] is None or row["measure"] == "auc_weight")
    ]
    lines = [[row["metric"], row["model"] or "-", row["measure"], interval(row), f"{row['n']:,}"] for row in own]
    note = (
        "word_overlap: the share of an item's words that stand in the response. constant: one label for all. "
        "annotator: one of them against the majority, which their own label is part of. auc_weight: weights of "
        "must-have against those of nice-to-have references."
    )
    heads = ["who", "model", "measure", "value", "n"]
    return section("Baselines and ceilings of single items", note, heads, lines)


def _models(rows: Sequence[Row]) -> str:
    """Fleiss' kappa of models; empty where no metric has two."""
    names = {MODELS_KAPPA: "of models", MAJORITIES_KAPPA: "of the two majorities"}
    lines = [
        [row["metric"], names[row["measure"]], number(row["value"]), f"{row['n']:,}", f"{row['excluded']:,}"]
        for row in rows
        if row["measure"] in names
    ]
    heads = ["metric", "Fleiss' kappa", "value", "n", "left out"]
    return section("Agreement of models", "", heads, lines)


def _tiers(found: CoverageFindings) -> str:
    """How many methods call a reference covered, of all references."""
    lines = [[row["tier"], f"{row['count']:,}"] for row in found.tiers]
    note = "How many methods call a reference covered: all, some, one alone, none. Of all references, drawn or not."
    return section("Tiers", note, ["tier", "references"], lines)


def _misses(misses: Sequence[Row]) -> str:
    """What methods missed; empty where nothing was."""
    columns = ("fn", "fn_candidate", "fn_entailment")
    lines = [[row["method"], *(number(row[name]) for name in columns)] for row in misses]
    note = "Covered by most annotators and not by the method: no candidate covers it, or entailment said no."
    heads = ["method", "missed", "no candidate", "no entailment"]
    return section("False negatives", note, heads, lines) if any(row["fn"] for row in misses) else ""


def _correlations(rows: Sequence[Row], level: str) -> str:
    """A line a metric of a model, then a line a baseline; empty for a level that the study does not have."""
    lines = []
    own = by_owner((row for row in rows if row["level"] == level), COEFFICIENTS)
    for (metric, model), found in own.items():
        first = found["pearson"]
        cells = [cell for name in COEFFICIENTS for cell in (interval(found[name]), _p_value(found[name]["p_value"]))]
        lines.append([metric, model or "(baseline)", f"{first['n']:,}", f"{first['excluded']:,}", *cells])
    heads = ["metric", "model", "n", "left out", *[head for name in COEFFICIENTS for head in (name, "p")]]
    return section(f"Correlation with human coverage, by {level}", "", heads, lines)


def _items(rows: Sequence[Row]) -> str:
    """A line a metric of a model and average."""
    by_line: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        measure, _, average = row["measure"].rpartition("_")
        if average in AVERAGES:
            by_line.setdefault((row["metric"], row["model"], average), {})[measure] = row
    lines = [
        [*owner, *[cell for name in MEASURES for cell in (interval(found[name]), f"{found[name]['n']:,}")]]
        for owner, found in by_line.items()
    ]
    note = (
        "Of labelled items. Macro: over the n samples in which a measure is defined; micro: over items, n of its "
        "denominator."
    )
    heads = ["metric", "model", "average", *[head for name in MEASURES for head in (name, "n")]]
    return section("Covered items", note, heads, lines)


def _costs(costs: Mapping[str, Mapping[str, Cost]]) -> str:
    """A line a metric of a model that was run; empty where none was."""
    lines = [[metric, model, *cost_cells(cost)] for model, own in costs.items() for metric, cost in own.items()]
    return section("What a sample cost", "Of all starts.", ["metric", "model", "calls", "tokens", "cost"], lines)


def _p_value(value: float | None) -> str:
    return "<0.0001" if value is not None and value < 0.0001 else number(value, 4)
