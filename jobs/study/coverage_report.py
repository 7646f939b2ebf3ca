"""The report of a study of coverage: rows of the table `meta_evaluation` in, Markdown out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from untold.jobs.study.coverage_published import IMPORTANCE as IMPORTANCE
from untold.jobs.study.coverage_published import published
from untold.jobs.study.coverage_rows import AGREEMENTS, BY_QUERY, BY_SAMPLE, KAPPA, ItemLabels
from untold.jobs.study.markdown import Row, by_owner, interval, markdown_cell, number, section
from untold.jobs.study.report import Cost, cost_cells, prompts_table
from untold.udfs.statistics.correlation import COEFFICIENTS
from untold.udfs.statistics.item_agreement import AVERAGES, MEASURES
from untold.udfs.statistics.tiers import Subset

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
        [row["metric"], names[row["measure"]], number(row["value"]), f"{row['n']:,}", f"{row['left_out']:,}"]
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
        lines.append([metric, model or "(baseline)", f"{first['n']:,}", f"{first['left_out']:,}", *cells])
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
