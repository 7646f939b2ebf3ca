"""The report of a study of coverage: rows of the table `meta_evaluation` in, Markdown out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from untold.jobs.study.coverage_published import IMPORTANCE as IMPORTANCE
from untold.jobs.study.coverage_published import published
from untold.jobs.study.coverage_rows import AGREEMENTS, BY_QUERY, BY_SAMPLE, KAPPA, ItemLabels
from untold.jobs.study.report import Cost, cost_cells, markdown_cell, markdown_table, prompts_table
from untold.udfs.retrieval.token_states import BERTSCORE
from untold.udfs.statistics.correlation import COEFFICIENTS
from untold.udfs.statistics.item_agreement import AVERAGES, MEASURES
from untold.udfs.statistics.surface import SURFACE
from untold.udfs.statistics.tiers import Subset

Row = Mapping[str, Any]
SIMILARITY_BASELINES = (*SURFACE, *BERTSCORE)
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
        f"annotators: {_number(kappa['value'])}, over {kappa['n']:,} items with two labels or more."
    )


def _agreements(rows: Sequence[Row]) -> str:
    """A line a method: what agreement with the majority of annotators there is over all labelled items."""
    own = [row for row in rows if row["model"] is not None and row["measure"] in AGREEMENTS]
    by_owner: dict[tuple[str, str], dict[str, Row]] = {}
    for row in own:
        by_owner.setdefault((row["metric"], row["model"]), {})[row["measure"]] = row
    lines = [
        [*owner, f"{found['kappa']['n']:,}", *(_interval(found[name]) for name in AGREEMENTS)]
        for owner, found in by_owner.items()
    ]
    note = "Cohen's kappa, mean F1 of covered and not covered, and accuracy, of all labelled items together."
    heads = ["metric", "model", "n", *AGREEMENTS]
    return "\n\n".join(["## Agreement with the majority", note, markdown_table(heads, lines)]) if lines else ""


def _single_items(rows: Sequence[Row]) -> str:
    """The baselines and ceilings of single items, and how weights tell must-have from nice-to-have references."""
    measures = ("auc", "auc_weight", "accuracy")
    own = [
        row for row in rows if row["measure"] in measures and (row["model"] is None or row["measure"] == "auc_weight")
    ]
    lines = [[row["metric"], row["model"] or "-", row["measure"], _interval(row), f"{row['n']:,}"] for row in own]
    note = (
        "word_overlap: the share of an item's words that stand in the response. constant: one label for all. "
        "annotator: one of them against the majority, which their own label is part of. auc_weight: weights of "
        "must-have against those of nice-to-have references."
    )
    heads = ["who", "model", "measure", "value", "n"]
    return (
        "\n\n".join(["## Baselines and ceilings of single items", note, markdown_table(heads, lines)]) if lines else ""
    )


def _models(rows: Sequence[Row]) -> str:
    """Fleiss' kappa of models; empty where no metric has two."""
    names = {MODELS_KAPPA: "of models", MAJORITIES_KAPPA: "of the two majorities"}
    lines = [
        [row["metric"], names[row["measure"]], _number(row["value"]), f"{row['n']:,}", f"{row['left_out']:,}"]
        for row in rows
        if row["measure"] in names
    ]
    heads = ["metric", "Fleiss' kappa", "value", "n", "left out"]
    return f"## Agreement of models\n\n{markdown_table(heads, lines)}" if lines else ""


def _tiers(found: CoverageFindings) -> str:
    """How many methods call a reference covered, of all references."""
    if not found.tiers:
        return ""
    lines = [[row["tier"], f"{row['count']:,}"] for row in found.tiers]
    note = "How many methods call a reference covered: all, some, one alone, none. Of all references, drawn or not."
    return "\n\n".join(["## Tiers", note, markdown_table(["tier", "references"], lines)])


def _misses(misses: Sequence[Row]) -> str:
    """What methods missed; empty where nothing was."""
    if not any(row["fn"] for row in misses):
        return ""
    columns = ("fn", "fn_candidate", "fn_entailment")
    lines = [[row["method"], *(_count(row[name]) for name in columns)] for row in misses]
    note = "Covered by most annotators and not by the method: no candidate covers it, or entailment said no."
    heads = ["method", "missed", "no candidate", "no entailment"]
    return "\n\n".join(["## False negatives", note, markdown_table(heads, lines)])


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _correlations(rows: Sequence[Row], level: str) -> str:
    """A line a metric of a model, then a line a baseline; empty for a level that the study does not have."""
    by_owner: dict[tuple[str, str | None], dict[str, Row]] = {}
    for row in rows:
        if row["measure"] in COEFFICIENTS and row["level"] == level:
            by_owner.setdefault((row["metric"], row["model"]), {})[row["measure"]] = row
    if not by_owner:
        return ""
    lines = []
    for (metric, model), found in by_owner.items():
        first = found["pearson"]
        cells = [cell for name in COEFFICIENTS for cell in (_interval(found[name]), _p_value(found[name]["p_value"]))]
        lines.append([metric, model or "(baseline)", f"{first['n']:,}", f"{first['left_out']:,}", *cells])
    heads = ["metric", "model", "n", "left out", *[head for name in COEFFICIENTS for head in (name, "p")]]
    return f"## Correlation with human coverage, by {level}\n\n" + markdown_table(heads, lines)


def _items(rows: Sequence[Row]) -> str:
    """A line a metric of a model and average."""
    by_line: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        measure, _, average = row["measure"].rpartition("_")
        if average in AVERAGES:
            by_line.setdefault((row["metric"], row["model"], average), {})[measure] = row
    if not by_line:
        return ""
    lines = [
        [*owner, *[cell for name in MEASURES for cell in (_interval(found[name]), f"{found[name]['n']:,}")]]
        for owner, found in by_line.items()
    ]
    note = (
        "Of labelled items. Macro: over the n samples in which a measure is defined; micro: over items, n of its "
        "denominator."
    )
    heads = ["metric", "model", "average", *[head for name in MEASURES for head in (name, "n")]]
    return "\n\n".join(["## Covered items", note, markdown_table(heads, lines)])


def _costs(costs: Mapping[str, Mapping[str, Cost]]) -> str:
    """A line a metric of a model that was run; empty where none was."""
    lines = [[metric, model, *cost_cells(cost)] for model, own in costs.items() for metric, cost in own.items()]
    heads = ["metric", "model", "calls", "tokens", "cost"]
    return f"## What a sample cost\n\nOf all starts.\n\n{markdown_table(heads, lines)}" if lines else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(row: Row) -> str:
    """A value with its interval, where that is known; `-` where it is undefined."""
    limits = "" if row["ci_low"] is None else f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    return _number(row["value"]) + (limits if row["value"] is not None else "")


def _p_value(value: float | None) -> str:
    return "-" if value is None else "<0.0001" if value < 0.0001 else f"{value:.4f}"
