"""Render the report and the figure of a study of labels. Equal rows give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from untold.graph.plotting import draw_picture, new_figure
from untold.graph.views import one_line
from untold.jobs.study.meta_evaluation import COSTS, Cost, cost_cells
from untold.jobs.study.published import (
    DEJL,
    PUBLISHED_CONVENTION,
    by_measure,
    find_published,
    has_published_convention,
    published_figures,
    published_section,
)
from untold.jobs.study.rendering import (
    Columns,
    Row,
    cells,
    document,
    interval,
    markdown_cell,
    markdown_table,
    number,
    pivot,
    section,
    table_section,
)
from untold.udfs.statistics.confusion import CONVENTIONS, LABELS, PREDICTIONS
from untold.udfs.statistics.intervals import IntArray

# The colours of Okabe and Ito, which colour-blind people can distinguish
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
BASELINE_STYLES = {"baseline_constant": ("dashed", "constant label"), "baseline_overlap": ("dotted", "token overlap")}
# The width of a group of bars, if the distance between groups is 1
GROUP_WIDTH = 0.8
MEASURE_HEADS = {
    "lmr": "LMR",
    "lmr_strict": "strict",
    "lmr_lax": "lax",
    "kappa": "kappa",
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "baseline_constant": "constant label",
    "baseline_overlap": "token overlap",
}
MATCH_RATES = ("lmr", "lmr_strict", "lmr_lax")
# The measures and the additional data set of the report of several data sets
COMBINED, ELI5 = ("lmr", "lmr_spread", "mean"), "eli5"
# Baselines have no interval in the report
WITH_INTERVAL = (*MATCH_RATES, "kappa", "macro_f1", "balanced_accuracy")
PUBLISHED_NOTE = (
    "Published (Dejl et al. 2025): label match rates under the relevance threshold 3.5. For Llama 3.3, Llama 4 and "
    "Qwen, Q&A has the quantity tool. The spread is the population standard deviation over these five models. Q&A and "
    "E2E are above NLI for every model (p < 0.05)."
)
ELI5_NOTE = (
    " For `eli5`, the mean is the comprehensiveness of the responses of a model to 500 questions. gpt-oss-20b judges "
    "for Q&A, and Llama 4 for E2E."
)


def render(
    rows: Sequence[Row],
    comparisons: Sequence[Row],
    confusions: Mapping[tuple[str, str], IntArray],
    costs: Mapping[str, Mapping[str, Cost]],
    *,
    clustered: bool,
    note: str | None = None,
) -> str:
    """Return the report of a study of labels as Markdown.

    `rows` and `comparisons` are those of the tables `meta_evaluation` and `comparisons`; `confusions` are int64[3, 4]
    by model and metric; `costs` are by model and metric, without those of existing scores.
    """
    units = "whole questions" if clustered else "single rows"
    return document(
        f"Meta-evaluation on {rows[0]['dataset'] if rows else 'nothing'}",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}. With `mismatch`, an undefined score agrees with no "
        "label. With `zero`, an undefined score is 0 and failed scores are excluded. With `published`, failed scores "
        "are 0 too. Failed scores, and comparisons with a source without statements, are excluded. Calls, tokens and "
        "cost are per sample, over all starts.",
        f"Note: {note}." if note else "",
        _main_table(rows, costs),
        _published_table(rows),
        tests_table("Metrics compared", [row for row in comparisons if row["metric"] is None], "model"),
        prompts_table([row for row in comparisons if row["metric"] is not None]),
        *[_confusion_table(*owner, cells) for owner, cells in sorted(confusions.items())],
    )


def _confusion_table(model: str, metric: str, cells: IntArray) -> str:
    lines = [[label, *map(number, counts)] for label, counts in zip(LABELS, cells.tolist(), strict=True)]
    heading = f"Labels and predictions of {metric}, {markdown_cell(model)}"
    return table_section(heading, "", ["label", *PREDICTIONS], lines)


def render_averages(rows: Sequence[Row]) -> str:
    """Return the report of several data sets: the LMR of each, the averages, and their spread over models."""
    columns: Columns = {
        "data set": "dataset",
        "metric": "metric",
        "model": lambda row: row["model"] or "(standard deviation over models)",
        "convention": "convention",
        "n": "n",
        "LMR": interval,
        "published": "published",
    }
    note = (
        "LMR. Averages count every data set the same; their intervals are 95 % BCa, joint over the data sets, 10,000 "
        "resamples of each."
    )
    table = markdown_table(list(columns), cells(columns, rows))
    metrics = {row["metric"] for row in rows}
    # The paper's figures cover more data sets than the average
    whole = [*rows, *({"dataset": ELI5, "metric": metric, "convention": None} for metric in sorted(metrics))]
    return document("Meta-evaluations together", note, table, _published_table(whole, COMBINED, ELI5_NOTE))


def _main_table(rows: Sequence[Row], costs: Mapping[str, Mapping[str, Cost]]) -> str:
    """Return the table of the measures and the costs by metric, model and convention."""
    present = {row["measure"] for row in rows}
    measures = [name for name in MEASURE_HEADS if name in present]
    lines = []
    for own in pivot(rows, measures, ("dataset", "metric", "model", "convention")):
        lmr = own["lmr"]
        lines.append(
            [
                *(own["metric"], own["model"], own["convention"], number(lmr["n"]), number(lmr["excluded"] or 0)),
                *(_measured(own.get(name)) for name in measures),
                *cost_cells(costs.get(own["model"], {}).get(own["metric"])),
                number(lmr["published"]),
            ]
        )
    heads = [MEASURE_HEADS[name] for name in measures]
    names = ["metric", "model", "convention", "n", "left out", *heads, *COSTS, "published LMR"]
    return markdown_table(names, lines)


def _measured(row: Row | None) -> str:
    """Return a value with its interval, if the measure has one."""
    if row is None:
        return "-"
    return interval(row) if row["measure"] in WITH_INTERVAL else number(row["value"])


def _published_table(rows: Sequence[Row], measures: Sequence[str] = MATCH_RATES, more: str = "") -> str:
    """Return the published figures of the metrics of the rows; empty for a data set without published figures."""
    shown = {(row["dataset"], row["metric"]) for row in rows}
    figures = [one for one in published_figures(DEJL) if (one.dataset, one.metric) in shown and one.measure in measures]
    if not {dataset for dataset, _ in shown} & {one.dataset for one in published_figures(DEJL)}:
        return ""
    ours = by_measure([row for row in rows if row["convention"] == PUBLISHED_CONVENTION], interval)
    return published_section("Published", PUBLISHED_NOTE + more, figures, ours)


def prompts_table(comparisons: Sequence[Row]) -> str:
    """Return the paired tests of prompts; empty without any."""
    return tests_table("Prompts compared", comparisons, "metric", "model")


def tests_table(heading: str, comparisons: Sequence[Row], *names: str) -> str:
    """Return paired tests as a table that begins with these columns; empty without any."""
    of_items = any(row["convention"] is None for row in comparisons)
    what = "accuracy over the items that both judged" if of_items else "LMR under each convention"
    family = "the table" if of_items else "the tests under one convention"
    note = f"Paired permutation tests of {what}; p adjusted after Benjamini and Hochberg over {family}."
    values = {"first - second": "difference", "p": "p_value", "p adjusted": "p_adjusted"}
    heads = (*names, *(() if of_items else ("convention",)), "first", "second", "n")
    columns: Columns = {name: name for name in heads} | {
        head: partial(_four_digits, name) for head, name in values.items()
    }
    return section(heading, note, columns, comparisons)


def _four_digits(name: str, row: Row) -> str:
    return number(row[name], 4)


def draw(rows: Sequence[Row], *, form: str = "svg") -> bytes:
    """Return an SVG or a PNG of the LMR with its intervals by metric and model. `rows` as in `render`.

    Has one panel per convention. Lines are baselines. Diamonds are published figures, on the bar of their model or in
    the middle of the metric. Raises ValueError for another format.
    """
    return draw_picture(form, partial(_draw, rows))


def _draw(rows: Sequence[Row]) -> Figure:
    """Return a figure with one panel per convention, and one legend for all."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    # In inches: the width of a panel depends on its number of bars
    width = max(3.2, 0.9 + len(metrics) * (0.5 + 0.3 * len(models)))
    figure = new_figure(len(CONVENTIONS) * width + 2.6, 4.2)
    panels = figure.subplots(1, len(CONVENTIONS), sharey=True)
    for axes, convention in zip(panels, CONVENTIONS, strict=True):
        _draw_panel(axes, [row for row in rows if row["convention"] == convention], metrics, models)
        axes.set_title(f"undefined scores: {convention}", fontsize=10)
    panels[0].set_ylabel("LMR")
    # The panels have equal labels
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), loc="outside right upper", fontsize=8, frameon=False)
    figure.suptitle(f"Match rate with the labels of {rows[0]['dataset']}" if rows else "nothing to show", fontsize=11)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row], metrics: Sequence[str], models: Sequence[str]) -> None:
    """Draw a group of bars per metric, with one bar per model and its interval as a line."""
    bar = GROUP_WIDTH / max(len(models), 1)
    # Groups are at whole numbers, and their bars around the middle
    at = {
        (metric, model): place + (position - (len(models) - 1) / 2) * bar
        for place, metric in enumerate(metrics)
        for position, model in enumerate(models)
    }
    for position, model in enumerate(models):
        shown = [row for row in rows if row["model"] == model and row["measure"] == "lmr" and row["value"] is not None]
        places = [at[row["metric"], model] for row in shown]
        colour = COLOURS[position % len(COLOURS)]
        axes.bar(places, [row["value"] for row in shown], width=0.9 * bar, color=colour, label=one_line(model))
        for place, row in zip(places, shown, strict=True):
            if row["ci_low"] is not None:
                axes.plot([place, place], [row["ci_low"], row["ci_high"]], color="black", linewidth=1.2)
    _draw_baselines(axes, rows)
    if any(row["measure"] == "lmr" and has_published_convention(row) for row in rows):
        _draw_published(axes, rows, metrics, models, at)
    axes.set_xticks(range(len(metrics)), [one_line(metric) for metric in metrics])
    # All panels and all reports have one scale
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.6, max(len(metrics), 1) - 0.4)


def _draw_baselines(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw a line per baseline."""
    for measure, (line, name) in BASELINE_STYLES.items():
        value = next((row["value"] for row in rows if row["measure"] == measure), None)
        if value is not None:
            axes.axhline(value, color="#444444", linestyle=line, linewidth=1, label=f"baseline: {name}")


def _draw_published(
    axes: Axes,
    rows: Sequence[Row],
    metrics: Sequence[str],
    models: Sequence[str],
    at: Mapping[tuple[str, str], float],
) -> None:
    """Draw a diamond per published figure of the data set. `at` are the positions of the bars by metric and model."""
    label, dataset = "published", rows[0]["dataset"]
    for one in published_figures(DEJL):
        if one.metric not in metrics or (one.dataset, one.measure) != (dataset, "lmr"):
            continue
        own = [place for (metric, model), place in at.items() if find_published(dataset, metric, model, "lmr") is one]
        # The interval is in the middle of the bar
        beside = GROUP_WIDTH / len(models) / 4
        for place in [place + beside for place in own] or [float(metrics.index(one.metric))]:
            axes.scatter(
                [place], [one.value], marker="D", s=26, color="white", edgecolors="black", zorder=3, label=label
            )
