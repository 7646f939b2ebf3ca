"""The report of a study of coverage: rows of the table `meta_evaluation` in, Markdown out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.study.coverage import BY_QUERY, BY_SAMPLE, KAPPA, Labels
from jobs.study.report import Cost, cost_cells, markdown_cell, markdown_table
from udfs.retrieval.token_states import BERTSCORE
from udfs.statistics.correlation import COEFFICIENTS
from udfs.statistics.coverage import AVERAGES, MEASURES
from udfs.statistics.surface import SURFACE

Row = Mapping[str, Any]
FLOORS = (*SURFACE, *BERTSCORE)
# Samarinas et al. 2025; what is not printed for a row is None. Correlations are of ICAT-S with a 70B aligner
PUBLISHED_METRIC = "icat"
PUBLISHED_CORRELATIONS = {
    "a corpus (ClueWeb)": {"pearson": 0.422, "spearman": 0.446, "kendall": 0.368},
    "web search": {"pearson": 0.525, "spearman": 0.443, "kendall": 0.358},
}
PUBLISHED_ITEMS = {"precision": 0.903, "recall": 0.798, "f1": 0.835}
PUBLISHED_KAPPA = 0.829
PUBLISHED_FLOORS = {"bertscore_recall": 0.291, "meteor": 0.027, "rouge1": -0.058, "bleu": -0.099}
NOT_AT_HAND = (
    "Published (Samarinas et al. 2025) of responses to topics of the TREC Web Track, with ClueWeb or a web search as "
    "the source. ClueWeb and the paper's human labels are not at hand: these figures are of other samples than ours, "
    "and show only how large such figures are. Which coefficient the published floors are is not known here."
)


def render(
    rows: Sequence[Row],
    labels: Labels,
    covered: Sequence[str],
    costs: Mapping[str, Mapping[str, Cost]],
    *,
    clustered: bool,
    notes: Sequence[str],
) -> str:
    """The report as Markdown.

    rows: of the table `meta_evaluation`, of one study. covered: the labels that mean covered. costs: of a sample, by
    model and metric; none for scores that were given. notes: lines on what is left out. The same rows give the same
    text; names from outside are escaped.
    """
    units = "whole queries" if clustered else "single samples"
    kappa = next(row for row in rows if row["measure"] == KAPPA)
    parts = [
        "# Meta-evaluation on coverage",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}; p-values take samples for independent. Human coverage is "
        "the share of a sample's labelled items that most annotators found covered.",
        f"Labels that mean covered: {', '.join(f'`{markdown_cell(name)}`' for name in covered)}. Of {labels.items:,} "
        f"items, {labels.labelled:,} have a majority; {labels.ties:,} are ties and "
        f"{labels.items - labels.labelled - labels.ties:,} have no label: these are left out. Fleiss' kappa of the "
        f"annotators: {_number(kappa['value'])}, over {kappa['n']:,} items with two labels or more.",
        *[f"Note: {note}." for note in notes],
        *[_correlations(rows, level) for level in (BY_SAMPLE, BY_QUERY)],
        _items(rows),
        _costs(costs),
        _published(rows),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _correlations(rows: Sequence[Row], level: str) -> str:
    """A line a metric of a model, then a line a floor; empty for a level that the study does not have."""
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
        lines.append([metric, model or "(floor)", f"{first['n']:,}", f"{first['left_out']:,}", *cells])
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


def _published(rows: Sequence[Row]) -> str:
    """The paper's figures beside ours: of the metric by that name where it was evaluated, of the floors always."""
    by_key = {(row["metric"], row["measure"]): row for row in rows if row.get("level") != BY_QUERY}
    lines = []
    ours = {name: _of(by_key, PUBLISHED_METRIC, name) for name in COEFFICIENTS}
    for source, figures in PUBLISHED_CORRELATIONS.items():
        lines += [[f"{name} of ICAT-S, {source}", ours[name], f"{value:.3f}"] for name, value in figures.items()]
    for name, value in PUBLISHED_ITEMS.items():
        lines.append([f"{name} of covered aspects", _of(by_key, PUBLISHED_METRIC, f"{name}_macro"), f"{value:.3f}"])
    lines.append(["Fleiss' kappa of annotators", _of(by_key, None, KAPPA), f"{PUBLISHED_KAPPA:.3f}"])
    for name, value in PUBLISHED_FLOORS.items():
        lines.append([f"correlation of {name} (ours: pearson)", _of(by_key, name, "pearson"), f"{value:.3f}"])
    return "\n\n".join(["## Published", NOT_AT_HAND, markdown_table(["figure", "here", "published"], lines)])


def _of(by_key: Mapping[tuple[str | None, str], Row], metric: str | None, measure: str) -> str:
    found = by_key.get((metric, measure))
    return "-" if found is None else _number(found["value"])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(row: Row) -> str:
    """A value with its interval, where that is known; `-` where it is undefined."""
    limits = "" if row["ci_low"] is None else f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    return _number(row["value"]) + (limits if row["value"] is not None else "")


def _p_value(value: float | None) -> str:
    return "-" if value is None else "<0.0001" if value < 0.0001 else f"{value:.4f}"
