"""Render tables as Markdown, and the report and the figure of a study of labels. The same rows give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from untold.graph.plotting import draw_picture, new_figure
from untold.graph.views import one_line
from untold.jobs.run.terminal import Page, table
from untold.udfs.llm.usage import shown_tokens
from untold.udfs.statistics.confusion import CONVENTIONS, LABELS, PREDICTIONS
from untold.udfs.statistics.intervals import IntArray

Row = Mapping[str, Any]
Columns = Mapping[str, str | Callable[[Any], str]]
"""The columns of a table by head: the name of a field of its rows, or a function of a row."""


def document(title: str, *parts: str) -> str:
    """Return a page of Markdown with a title and the parts that are not empty."""
    return "\n\n".join(filter(None, [f"# {title}", *parts])) + "\n"


def section(heading: str, note: str, columns: Columns, rows: Iterable[Row]) -> str:
    """Return a heading, a note and a table with one line per row; empty without rows."""
    return table_section(heading, note, list(columns), cells(columns, rows))


def table_section(heading: str, note: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a heading, a note and a table of these lines; empty without lines."""
    return "\n\n".join(filter(None, [f"## {heading}", note, markdown_table(heads, lines)])) if lines else ""


def cells(columns: Columns, rows: Iterable[Row]) -> list[list[str]]:
    """Return one list of texts per row, with one text per column."""
    return [[_cell(row, column) for column in columns.values()] for row in rows]


def _cell(row: Row, column: str | Callable[[Any], str]) -> str:
    value = column(row) if callable(column) else row[column]
    return value if isinstance(value, str) else number(value)


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with escaped cells."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(map(markdown_cell, row))} |" for row in rows)


def markdown_cell(cell: str) -> str:
    """Return a name of a model or a metric as the text of one cell in one line."""
    return one_line(cell).replace("|", "\\|")


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with its digits, a whole number with thousands separators, `-` for None.

    >>> number(0.25), number(1200), number(None)
    ('0.250', '1,200', '-')
    """
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def interval(row: Row, digits: int = 3) -> str:
    """Return the value of a row with its interval, if that is known; `-` if the value is undefined."""
    if row["value"] is None or row["ci_low"] is None:
        return number(row["value"], digits)
    return f"{row['value']:.{digits}f} [{row['ci_low']:.{digits}f}, {row['ci_high']:.{digits}f}]"


def pivot(rows: Iterable[Row], measures: Iterable[str], keys: Sequence[str] = ("metric", "model")) -> list[Row]:
    """Return one row per key, in the order of the rows: the fields of its first row, and its rows by measure.

    `baseline` is the model, or `(baseline)`.
    """
    wanted = set(measures)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["measure"] in wanted:
            first = {"baseline": row["model"] or "(baseline)", **row}
            found.setdefault(tuple(row[key] for key in keys), first)[row["measure"]] = row
    return list(found.values())


def intervals(measures: Iterable[str], digits: int = 3) -> dict[str, Callable[[Row], str]]:
    """Return a column per measure of a pivoted table, with the interval."""
    return {name: partial(_interval_of, name, digits) for name in measures}


def _interval_of(name: str, digits: int, row: Row) -> str:
    return interval(row[name], digits)


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
# The start of a cell with a number, an interval or nothing
_NUMBER = re.compile(r"[-+<]?(\d|$)")
# Baselines have no interval in the report
WITH_INTERVAL = ("lmr", "lmr_strict", "lmr_lax", "kappa", "macro_f1", "balanced_accuracy")
PUBLISHED_NOTE = (
    "Published (Dejl et al. 2025), means of the LMR of WikiContradict and ConflictBank: 0.85 for E2E with Llama 4 "
    "17Bx128E and 0.81 for Q&A with gpt-oss-20b. The standard deviation over five models is 0.009 for Q&A and 0.044 "
    "for E2E. Q&A and E2E are above NLI for every model (p < 0.05)."
)


@dataclass(frozen=True)
class Cost:
    """The calls, the tokens and the cost per sample of a metric; the cost is None without a known price."""

    calls: float
    tokens: float
    cost: float | None
    tokens_estimated: bool = False


@dataclass(frozen=True)
class Published:
    """A published LMR under the convention `published`, with its published interval, if there is one."""

    dataset: str
    metric: str
    model: str
    value: float
    low: float | None = None
    high: float | None = None


# Dejl et al. 2025
PUBLISHED = (
    Published("wikicontradict", "e2e", "Qwen2.5-72B-Instruct", 0.8025),
    Published("wikicontradict", "e2e", "gpt-oss-120b", 0.7558, 0.731, 0.779),
    Published("wikicontradict", "e2e", "llama-3.3-70b-instruct", 0.8142),
    Published("average", "e2e", "Llama-4-Maverick-17B-128E-Instruct", 0.85),
    Published("average", "qa", "gpt-oss-20b", 0.81),
)
# The data set of averages over data sets
AVERAGE = "average"
# The paper does not evaluate single contexts of ConflictBank
PUBLISHED_DATASETS = {"wikicontradict", "conflictbank", AVERAGE}
# Standard deviations of the averages over five models
PUBLISHED_SPREADS = {"qa": 0.009, "e2e": 0.044}
PUBLISHED_CONVENTION = "published"


def find_published(dataset: str, metric: str, model: str) -> Published | None:
    """Return the published figure of a model, None if the paper has none. Ignores providers, case and signs.

    `meta-llama/Llama-3.3-70B-Instruct` equals `llama-3.3-70b-instruct`.
    """
    for published in PUBLISHED:
        if (published.dataset, published.metric) == (dataset, metric) and _plain(published.model) == _plain(model):
            return published
    return None


def with_published(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows of `meta_evaluation` with the column `published`, the figure of the paper for an LMR."""
    return [{**row, "published": _published_value(row)} for row in rows]


def _published_value(row: Row) -> float | None:
    if row["measure"] != "lmr" or not _as_published(row):
        return None
    published = find_published(row["dataset"], row["metric"], row["model"])
    return published.value if published else None


def _as_published(row: Row) -> bool:
    """Return True under the convention of the paper, to which `zero` is equal if no score failed."""
    return row["convention"] == PUBLISHED_CONVENTION or (row["convention"] == "zero" and not row.get("excluded"))


def _plain(model: str) -> str:
    """Return the name of a model without provider, prompt set, case and signs."""
    model = re.sub(r" \(\w+ prompts\)$", "", model)
    return re.sub("[^a-z0-9]", "", model.rpartition("/")[2].lower())


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
    return document("Meta-evaluations together", note, table, PUBLISHED_NOTE)


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


COSTS = ("calls", "tokens", "cost")


def cost_cells(cost: Cost | None) -> list[str]:
    """Return the cells of `COSTS`. A sample may cost a small part of a cent, so the cost has six decimals."""
    if cost is None:
        return ["-", "-", "-"]
    tokens = shown_tokens(cost.tokens, estimated=cost.tokens_estimated)
    return [f"{cost.calls:.2f}", tokens, number(cost.cost, 6)]


def _published_table(rows: Sequence[Row]) -> str:
    """Return the published figures of the metrics of the rows; empty for a data set without published figures."""
    shown = {(row["dataset"], row["metric"]) for row in rows}
    if not {dataset for dataset, _ in shown} & PUBLISHED_DATASETS:
        return ""
    lines = [
        [one.metric, one.model, f"{one.value:.3f}" + (f" [{one.low:.3f}, {one.high:.3f}]" if one.low else "")]
        for one in PUBLISHED
        if (one.dataset, one.metric) in shown
    ]
    table = markdown_table(["metric", "model", f"published LMR ({PUBLISHED_CONVENTION})"], lines) if lines else ""
    return "\n\n".join(["## Published", *filter(None, [table]), PUBLISHED_NOTE])


def prompts_table(comparisons: Sequence[Row]) -> str:
    """Return the paired tests of prompts; empty without any."""
    return tests_table("Prompts compared", comparisons, "metric", "model")


def tests_table(heading: str, comparisons: Sequence[Row], *names: str) -> str:
    """Return paired tests as a table that begins with these columns; empty without any."""
    under = comparisons[0]["convention"] if comparisons else None
    what = "accuracy over the items that both judged" if under is None else f"LMR under `{under}`"
    note = f"Paired permutation tests of {what}; p adjusted after Benjamini and Hochberg over the table."
    values = {"first - second": "difference", "p": "p_value", "p adjusted": "p_adjusted"}
    columns: Columns = {name: name for name in (*names, "first", "second", "n")} | {
        head: partial(_four_digits, name) for head, name in values.items()
    }
    return section(heading, note, columns, comparisons)


def _four_digits(name: str, row: Row) -> str:
    return number(row[name], 4)


def report_lines(report: str, page: Page) -> list[str]:
    """Return the lines of a report: plain Markdown, or on a terminal with tables that fit its width."""
    lines: list[str] = []
    for is_table, group in groupby(report.removesuffix("\n").split("\n"), key=lambda line: line.startswith("| ")):
        if not is_table or page.width is None:
            lines += group
            continue
        heads, _, *rows = (_cells(line) for line in group)
        numeric = [all(_NUMBER.match(row[place]) for row in rows) for place in range(len(heads))]
        lines += table(heads, rows, page, names=[*numeric, True].index(True))
    return lines


def _cells(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


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
    if any(row["measure"] == "lmr" and _as_published(row) for row in rows):
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
    label = "published"
    for one in PUBLISHED:
        if one.metric not in metrics or one.dataset != rows[0]["dataset"]:
            continue
        own = [place for (metric, model), place in at.items() if find_published(one.dataset, metric, model) is one]
        # The interval is in the middle of the bar
        beside = GROUP_WIDTH / len(models) / 4
        for place in [place + beside for place in own] or [float(metrics.index(one.metric))]:
            axes.scatter(
                [place], [one.value], marker="D", s=26, color="white", edgecolors="black", zorder=3, label=label
            )
