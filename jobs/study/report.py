"""The report of a meta-evaluation: its tables as Markdown, and the figure. Rows in, text and bytes out.

Its sections, tables and numbers in Markdown serve the reports of other studies too.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from untold.graph.plotting import STYLE, save_figure
from untold.graph.views import FORMATS, one_line
from untold.jobs.run.terminal import Page, table
from untold.udfs.llm.usage import shown_tokens
from untold.udfs.statistics.confusion import CONVENTIONS, LABELS, PREDICTIONS
from untold.udfs.statistics.intervals import IntArray

Row = Mapping[str, Any]


def section(heading: str, note: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A heading, a note and a table; empty where there are no lines."""
    parts = [f"## {heading}", note, markdown_table(heads, lines)]
    return "\n\n".join(filter(None, parts)) if lines else ""


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells that are escaped."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(map(markdown_cell, row))} |" for row in rows)


def markdown_cell(cell: str) -> str:
    """A cell that neither ends the line nor the column, whatever name a model or a metric has."""
    return one_line(cell).replace("|", "\\|")


def number(value: float | None, digits: int = 3) -> str:
    """A value, `-` where there is none; a whole number with its thousands apart.

    >>> number(0.25), number(1200), number(None)
    ('0.250', '1,200', '-')
    """
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def interval(row: Row, digits: int = 3) -> str:
    """A row's value with its interval where that is known; `-` where it is undefined."""
    if row["value"] is None or row["ci_low"] is None:
        return number(row["value"], digits)
    return f"{row['value']:.{digits}f} [{row['ci_low']:.{digits}f}, {row['ci_high']:.{digits}f}]"


def by_owner(rows: Iterable[Row], measures: Container[str]) -> dict[tuple[str, str | None], dict[str, Row]]:
    """By metric and model, in the order of the rows, those of these measures by measure."""
    found: dict[tuple[str, str | None], dict[str, Row]] = {}
    for row in rows:
        if row["measure"] in measures:
            found.setdefault((row["metric"], row["model"]), {})[row["measure"]] = row
    return found


Values = dict[str, Row]

# Okabe and Ito's colours, which colour-blind people tell apart
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
BASELINE_STYLES = {"baseline_constant": ("dashed", "constant label"), "baseline_overlap": ("dotted", "token overlap")}
# Of the distance between metrics: what is left keeps their bars apart
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
# How a cell of a number, an interval or nothing begins
_NUMBER = re.compile(r"[-+<]?(\d|$)")
# Baselines are drawn as lines and told as bare numbers
WITH_INTERVAL = ("lmr", "lmr_strict", "lmr_lax", "kappa", "macro_f1", "balanced_accuracy")
PUBLISHED_NOTE = (
    "Published (Dejl et al. 2025), means of the LMR of WikiContradict and ConflictBank: 0.85 for E2E with Llama 4 "
    "17Bx128E, 0.81 for Q&A with gpt-oss-20b; standard deviation over five models 0.009 for Q&A and 0.044 for E2E; "
    "Q&A and E2E above NLI for every model (p < 0.05)."
)


@dataclass(frozen=True)
class Cost:
    """What a metric needed for a sample: calls, tokens, and cost, None where no price is known."""

    calls: float
    tokens: float
    cost: float | None
    tokens_estimated: bool = False


@dataclass(frozen=True)
class Published:
    """A published LMR under `published`, with its interval where one was published."""

    dataset: str
    metric: str
    model: str
    value: float
    low: float | None = None
    high: float | None = None


# Dejl et al. 2025; a label match rate under the paper's convention, with its interval where the paper prints one
PUBLISHED = (
    Published("wikicontradict", "e2e", "Qwen2.5-72B-Instruct", 0.8025),
    Published("wikicontradict", "e2e", "gpt-oss-120b", 0.7558, 0.731, 0.779),
    Published("wikicontradict", "e2e", "llama-3.3-70b-instruct", 0.8142),
    Published("average", "e2e", "Llama-4-Maverick-17B-128E-Instruct", 0.85),
    Published("average", "qa", "gpt-oss-20b", 0.81),
)
AVERAGE = "average"  # the data set of averages over data sets
# Evaluating each context of ConflictBank alone is another measure than the paper's
PUBLISHED_DATASETS = {"wikicontradict", "conflictbank", AVERAGE}
PUBLISHED_SPREADS = {"qa": 0.009, "e2e": 0.044}  # standard deviations of averages over five models
PUBLISHED_CONVENTION = "published"


def find_published(dataset: str, metric: str, model: str) -> Published | None:
    """The published figure of a model, whatever provider its name begins with and however it is spelt.

    `meta-llama/Llama-3.3-70B-Instruct` is `llama-3.3-70b-instruct`. None where the paper has no figure of the three.
    """
    for published in PUBLISHED:
        if (published.dataset, published.metric) == (dataset, metric) and _plain(published.model) == _plain(model):
            return published
    return None


def with_published(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of `meta_evaluation` with the column `published`: the paper's figure for an LMR under its convention."""
    return [{**row, "published": _published_value(row)} for row in rows]


def _published_value(row: Row) -> float | None:
    """The figure to set beside a row: of an LMR alone, and only where the row is under the paper's convention."""
    if row["measure"] != "lmr" or not _as_published(row):
        return None
    published = find_published(row["dataset"], row["metric"], row["model"])
    return published.value if published else None


def _as_published(row: Row) -> bool:
    """Whether the convention is the paper's: where nothing was left out, `zero` is the same."""
    return row["convention"] == PUBLISHED_CONVENTION or (row["convention"] == "zero" and not row.get("excluded"))


def _plain(model: str) -> str:
    """A model's name without provider, prompts, case and signs, by which spellings of one model are equal."""
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
    """The report as Markdown.

    rows, comparisons: rows of the tables `meta_evaluation` and `comparisons`, of one data set. confusions: by (model,
    metric), int64[3, 4]. costs: by model and metric; none for scores that were given. `clustered` says how intervals
    and tests were made, `note` what to know of them.

    Texts from outside (models, metrics) are escaped for Markdown. The same rows give the same text.
    """
    units = "whole questions" if clustered else "single rows"
    parts = [
        f"# Meta-evaluation on {rows[0]['dataset'] if rows else 'nothing'}",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}. `mismatch`: an undefined score agrees with no label; "
        "`zero`: it is the score 0, and failed ones are left out; `published`: failed ones are 0 too. Left out: failed "
        "scores, and comparisons with a source that states nothing. Calls, tokens and cost are a sample's, of all "
        "starts.",
        f"Note: {note}." if note else "",
        _main_table(rows, costs),
        _published_table(rows),
        _comparison_table([row for row in comparisons if row["metric"] is None]),
        prompts_table([row for row in comparisons if row["metric"] is not None]),
        *[_confusion_table(model, metric, table) for (model, metric), table in sorted(confusions.items())],
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_averages(rows: Sequence[Row]) -> str:
    """The report of several data sets together as Markdown: LMR of each, averages, and their spread over models.

    rows: of `meta_evaluation`, as `untold.jobs.study.agreement.average_rows` gives them behind those of each data set.
    """
    lines = [
        [
            *(row["dataset"], row["metric"], row["model"] or "(standard deviation over models)", row["convention"]),
            *(f"{row['n']:,}", interval(row), number(row["published"])),
        ]
        for row in rows
    ]
    note = (
        "LMR. Averages count every data set the same; their intervals are 95 % BCa, joint over the data sets, 10,000 "
        "resamples of each."
    )
    heads = ["data set", "metric", "model", "convention", "n", "LMR", "published"]
    table = markdown_table(heads, lines)
    return "\n\n".join(["# Meta-evaluations together", note, table, PUBLISHED_NOTE]) + "\n"


def _by_line(rows: Iterable[Row]) -> dict[tuple[str, str, str, str], Values]:
    """By data set, metric, model and convention: the rows by measure."""
    lines: dict[tuple[str, str, str, str], Values] = {}
    for row in rows:
        key = row["dataset"], row["metric"], row["model"], row["convention"]
        lines.setdefault(key, {})[row["measure"]] = row
    return lines


def _main_table(rows: Sequence[Row], costs: Mapping[str, Mapping[str, Cost]]) -> str:
    """A line a metric, model and convention: its measures, and what a sample cost, `-` where that is unknown."""
    present = {row["measure"] for row in rows}
    measures = [name for name in MEASURE_HEADS if name in present]
    heads = [MEASURE_HEADS[name] for name in measures]
    lines = []
    for (_, metric, model, convention), values in _by_line(rows).items():
        measured = (values.get(name) for name in measures)
        lines.append(
            [
                *(metric, model, convention, f"{values['lmr']['n']:,}", f"{values['lmr']['excluded'] or 0:,}"),
                *("-" if row is None else _cell(row) for row in measured),
                *cost_cells(costs.get(model, {}).get(metric)),
                number(values["lmr"]["published"]),
            ]
        )
    return markdown_table(
        ["metric", "model", "convention", "n", "left out", *heads, "calls", "tokens", "cost", "published LMR"], lines
    )


def _cell(row: Row) -> str:
    """A value, with its interval where measures have one to be shown."""
    return interval(row) if row["measure"] in WITH_INTERVAL else number(row["value"])


def cost_cells(cost: Cost | None) -> list[str]:
    """Calls, tokens and cost a sample; six decimals, since a sample may cost a small part of a cent."""
    if cost is None:
        return ["-", "-", "-"]
    tokens = shown_tokens(cost.tokens, estimated=cost.tokens_estimated)
    return [f"{cost.calls:.2f}", tokens, number(cost.cost, 6)]


def _published_table(rows: Sequence[Row]) -> str:
    """The published figures of the metrics shown; empty for what the paper has no figures of."""
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


def _comparison_table(comparisons: Sequence[Row]) -> str:
    """The paired tests of the metrics; nothing where a model has one metric alone."""
    under = comparisons[0]["convention"] if comparisons else None
    note = f"Paired permutation tests of LMR under `{under}`; p adjusted after Benjamini and Hochberg over the table."
    return section("Metrics compared", note, *_tests(comparisons, "model"))


def prompts_table(comparisons: Sequence[Row]) -> str:
    """The paired tests of prompts; nothing where no model has two."""
    under = comparisons[0]["convention"] if comparisons else None
    what = "accuracy over the items that both judged" if under is None else f"LMR under `{under}`"
    note = f"Paired permutation tests of {what}; p adjusted after Benjamini and Hochberg over the table."
    return section("Prompts compared", note, *_tests(comparisons, "metric", "model"))


def _tests(comparisons: Sequence[Row], *names: str) -> tuple[list[str], list[list[str]]]:
    """The heads and lines of a table of tests."""
    lines = [
        [
            *(*(row[name] for name in names), row["first"], row["second"], f"{row['n']:,}"),
            *(number(row[name], 4) for name in ("difference", "p_value", "p_adjusted")),
        ]
        for row in comparisons
    ]
    return [*names, "first", "second", "n", "first - second", "p", "p adjusted"], lines


def _confusion_table(model: str, metric: str, table: IntArray) -> str:
    """Labels in rows, predictions in columns, `undefined` last."""
    lines = [[label, *(f"{count:,}" for count in counts)] for label, counts in zip(LABELS, table.tolist(), strict=True)]
    return section(f"Labels and predictions of {metric}, {markdown_cell(model)}", "", ["label", *PREDICTIONS], lines)


def report_lines(report: str, page: Page) -> list[str]:
    """The lines of a report: Markdown as it is, and on a terminal with tables that fit its width."""
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
    """The cells of a line of a Markdown table."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def draw(rows: Sequence[Row], *, form: str = "svg") -> bytes:
    """LMR with its intervals by metric and model as the bytes of an SVG or a PNG, the same for the same rows.

    One panel for each convention of undefined scores. Lines are the baselines, diamonds published figures: on the bar
    of the model, or in the middle of the metric where that model is not there. rows: as `render`. Raises ValueError for
    another form.
    """
    if form not in FORMATS:
        raise ValueError(f"no picture of form {form!r}; there are {', '.join(FORMATS)}")
    # No style of the caller's may change a byte
    with style.context(["default", STYLE]):
        return save_figure(_draw(rows), form)


def _draw(rows: Sequence[Row]) -> Figure:
    """The figure: a panel a convention side by side, with one legend for all."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    # Inches: a panel grows with its groups and their bars, so that bars keep their width
    width = max(3.2, 0.9 + len(metrics) * (0.5 + 0.3 * len(models)))
    figure = Figure(figsize=(len(CONVENTIONS) * width + 2.6, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(CONVENTIONS), sharey=True)
    for axes, convention in zip(panels, CONVENTIONS, strict=True):
        _draw_panel(axes, [row for row in rows if row["convention"] == convention], metrics, models)
        axes.set_title(f"undefined scores: {convention}", fontsize=10)
    panels[0].set_ylabel("LMR")
    # Each label once, though every panel has it
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), loc="outside right upper", fontsize=8, frameon=False)
    figure.suptitle(f"Match rate with the labels of {rows[0]['dataset']}" if rows else "nothing to show", fontsize=11)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row], metrics: Sequence[str], models: Sequence[str]) -> None:
    """The bars of a convention: a group a metric, a bar a model, its interval as a line on it."""
    bar = GROUP_WIDTH / max(len(models), 1)
    # Where a bar stands: groups at whole numbers, its bars about their middle
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
    # A rate: all panels and all reports have one scale
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.6, max(len(metrics), 1) - 0.4)


def _draw_baselines(axes: Axes, rows: Sequence[Row]) -> None:
    """A line at what each baseline reaches; a panel without one has none."""
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
    """A diamond at each published figure of the data set.

    at: by metric and model the place of its bar. One whose model is not there stands in the middle of its metric.
    """
    label = "published"
    for one in PUBLISHED:
        if one.metric not in metrics or one.dataset != rows[0]["dataset"]:
            continue
        own = [place for (metric, model), place in at.items() if find_published(one.dataset, metric, model) is one]
        # Beside the middle of the bar, where its interval stands
        beside = GROUP_WIDTH / len(models) / 4
        for place in [place + beside for place in own] or [float(metrics.index(one.metric))]:
            axes.scatter(
                [place], [one.value], marker="D", s=26, color="white", edgecolors="black", zorder=3, label=label
            )
