"""Plot runs as Matplotlib figures for notebooks: `untold.plots`.

untold.plots.differences(run)
untold.plots.trend(*untold.open_runs("nightly"))
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from io import BytesIO
from textwrap import wrap
from typing import Any, ParamSpec

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from untold.graph.plotting import STYLE
from untold.graph.views import one_line
from untold.jobs import analysis
from untold.jobs.run_tables import RunTables
from untold.jobs.summary.dated_scores import OVERALL, SENTINEL
from untold.jobs.summary.ranking import is_unlikely
from untold.jobs.summary.score_counts import group_by
from untold.jobs.summary.trends import Trend, find_trend
from untold.udfs.errors import shorten

# The colours of Okabe and Ito for colour-blind people, in the order of the systems
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW, BLACK = "#56B4E9", "#D55E00", "#F0E442", "#000000"
GREY, PALE, INK = "#767676", "#D9D9D9", "#222222"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, BLACK, GREY)
STATUSES = {"ok": GREEN, "partial": SKY, "no_statements": PALE, "failed": RED, "budget": YELLOW}
# Inches: the width of a picture, the height of its head with the axis, and of one line
WIDTH, HEAD, LINE = 8.0, 0.9, 0.32
# Pixels per inch that a notebook stores and shows
STORED, SHOWN = 144, 96
NAME, TEXT = 28, 46  # characters of a name, and of a line of a statement
BINS = 10
MOST_TICKS = 16
_LOOK: dict[str, Any] = {
    **STYLE,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.labelcolor", "text.color"), INK),
    "axes.edgecolor": PALE,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": "#EEEEEE",
    "ytick.left": False,
    "xtick.bottom": False,
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


P = ParamSpec("P")
Row = Mapping[str, Any]


class Picture(Figure):
    """A figure that a notebook shows with and without `%matplotlib inline`."""

    def png(self) -> bytes:
        """Return the figure as a PNG, the same bytes for the same figure."""
        written = BytesIO()
        self.savefig(written, format="png", dpi=STORED, metadata={"Software": None}, facecolor="white")
        return written.getvalue()

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        width, height = (round(SHOWN * inches) for inches in self.get_size_inches())
        return self.png(), {"width": width, "height": height}


def _drawn(draw: Callable[P, Picture]) -> Callable[P, Picture]:
    """Draw with the style of the project, independent of the caller's style."""

    @wraps(draw)
    def drawn(*given: P.args, **named: P.kwargs) -> Picture:
        with style.context(["default", _LOOK]):
            return draw(*given, **named)

    return drawn


@_drawn
def means(run: RunTables, *others: RunTables) -> Picture:
    """Plot the mean of each system with its 95 % interval, one panel per metric."""
    rows = analysis.trend(run, *others).to_pylist()
    several = any(row["system"] is not None for row in rows if row["mean"] is not None)
    rows = [row for row in rows if row["mean"] is not None and (row["system"] is not None or not several)]
    figure = _dots(rows, "metric", "system", "mean", "mean score, 95 % interval")
    for panel in figure.axes:
        panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    return figure


@_drawn
def distribution(run: RunTables, *others: RunTables) -> Picture:
    """Plot the distribution of scores: the share of samples in tenths, one panel per metric and system."""
    rows = analysis.distribution(run, *others, bins=BINS).to_pylist()
    metrics, systems = (list(dict.fromkeys(row[name] for row in rows)) for name in ("metric", "system"))
    systems.sort()
    most = max((row["share"] for row in rows), default=1.0)
    figure = _figure(HEAD + 0.85 * max(len(systems), 1))
    panels = figure.subplots(max(len(systems), 1), max(len(metrics), 1), sharex=True, sharey=True, squeeze=False)
    for system, line in zip(systems, panels, strict=False):
        for metric, panel in zip(metrics, line, strict=False):
            own = [row for row in rows if (row["metric"], row["system"]) == (metric, system)]
            middles, shares = [(row["low"] + row["high"]) / 2 for row in own], [row["share"] for row in own]
            panel.bar(middles, shares, width=0.9 / BINS, color=BLUE)
            panel.set(xlim=(min([0, *(row["low"] for row in rows)]), 1), ylim=(0, 1.05 * most), yticks=[])
            panel.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            panel.set_title(metric if system == systems[0] else "")
        line[0].set_ylabel(_name(system), rotation=0, ha="right", va="center")
    figure.supxlabel("score (height = share of the system's samples)", fontsize=9.5)
    return figure


@_drawn
def differences(run: RunTables, *others: RunTables, metrics: Sequence[str] | None = None, **how: Any) -> Picture:
    """Plot the differences of systems with 95 % intervals, blue if the adjusted p is below 0.05.

    `metrics` and `how` are arguments of `Run.compare`.
    """
    rows = analysis.compare_runs((run, *others), metrics=metrics, **how)["comparisons"].to_pylist()
    rows = [row for row in rows if row["difference"] is not None]
    by_metric = group_by(rows, "metric")
    figure = _figure(HEAD * max(len(by_metric), 1) * 0.75 + LINE * max(len(rows), 1))
    sizes = [len(own) + 1 for own in by_metric.values()] or [1]
    panels = figure.subplots(len(sizes), 1, sharex=True, squeeze=False, height_ratios=sizes)[:, 0]
    for panel, (metric, own) in zip(panels, by_metric.items(), strict=False):
        for place, row in enumerate(reversed(own)):
            told = f"{row['difference']:+.2f}   p = {row['p_adjusted']:.3f}"
            _interval(panel, place, row["difference"], row, BLUE if is_unlikely(row) else GREY, "")
            panel.text(1.01, place, told, transform=panel.get_yaxis_transform(), va="center", fontsize=9)
        names = [f"{_name(row['first'])} − {_name(row['second'])}" for row in reversed(own)]
        panel.set_yticks(range(len(own)), names)
        panel.axvline(0, color=GREY, linewidth=0.8)
        panel.set(title=metric, ylim=(-0.6, len(own) - 0.4))
    panels[-1].set_xlabel("difference of the means over the questions that both have a score for")
    return figure


@_drawn
def agreement(run: RunTables, *others: RunTables) -> Picture:
    """Plot Spearman's coefficient of each pair of metrics on the same samples, and the number of samples."""
    rows = analysis.agreement(run, *others).to_pylist()
    names = list(dict.fromkeys(name for row in rows for name in (row["first"], row["second"])))
    figure = _figure(HEAD + 0.6 * max(len(names) - 1, 1), width=2.0 + 1.1 * max(len(names) - 1, 1))
    panel = figure.subplots()
    shades = LinearSegmentedColormap.from_list("agreement", [RED, "#FFFFFF", BLUE])
    for row in rows:
        x, y, value = names.index(row["first"]), names.index(row["second"]) - 1, row["spearman"]
        shade = PALE if value is None else shades((value + 1) / 2)
        panel.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, facecolor=shade, edgecolor="none"))
        ink = "white" if value is not None and abs(value) > 0.6 else INK
        how: dict[str, Any] = {"ha": "center", "va": "center", "color": ink}
        panel.text(x, y - 0.08, "-" if value is None else f"{value:.2f}", fontsize=12, **how)
        panel.text(x, y + 0.28, f"n = {row['n']:,}", fontsize=8, **how)
    panel.set_xticks(range(len(names) - 1), names[:-1])
    panel.set_yticks(range(len(names) - 1), names[1:])
    panel.set(xlim=(-0.5, len(names) - 1.5), ylim=(len(names) - 1.5, -0.5), title="agreement (Spearman)")
    panel.grid(visible=False)
    panel.spines["bottom"].set_visible(False)
    return figure


@_drawn
def left_out(
    run: RunTables, *others: RunTables, by: str = "statement", n: int = 10, metrics: Sequence[str] | None = None
) -> Picture:
    """Plot the share of responses that miss a statement, query, source or system, the largest first."""
    rows = analysis.left_out(run, *others, by=by, n=n, metrics=metrics).to_pylist()
    rows.sort(key=lambda row: -row["share"])
    several = len({row["metric"] for row in rows}) > 1
    # Ids of sources are unique per query
    names = [f"{row[by]} ({row['query']})" if by == "source" else str(row[by]) for row in rows]
    labels = [f"{row['metric']}: {name}" if several else name for row, name in zip(rows, names, strict=True)]
    of = "responses" if by == "statement" else "statements"
    told = [f"{row['missed']:,} of {row[of]:,}" for row in rows]
    title = f"left out most, by {by} (share of {'responses' if by == 'statement' else 'its statements'})"
    return _bars(labels, [row["share"] for row in rows], told, RED, title, limit=1.0)


@_drawn
def statuses(run: RunTables, *others: RunTables) -> Picture:
    """Plot the shares of sample statuses by metric and system."""
    rows = analysis.statuses(run, *others).to_pylist()
    names = list(dict.fromkeys((row["metric"], row["system"]) for row in rows))[::-1]
    figure = _figure(HEAD + LINE * max(len(names), 1))
    panel = figure.subplots()
    ends = dict.fromkeys(range(len(names)), 0.0)
    for status, colour in STATUSES.items():
        own = [row for row in rows if row["status"] == status]
        places = [names.index((row["metric"], row["system"])) for row in own]
        before = [ends[place] for place in places]
        if own:
            panel.barh(places, [row["share"] for row in own], left=before, height=0.72, color=colour, label=status)
        for row, place, start in zip(own, places, before, strict=True):
            ink = INK if status in ("no_statements", "budget", "partial") else "white"
            panel.text(start + row["share"] / 2, place, f"{row['count']:,}", ha="center", va="center", color=ink)
            ends[place] = start + row["share"]
    panel.set_yticks(range(len(names)), [f"{metric}: {_name(system)}" for metric, system in names])
    panel.set(xlim=(0, 1), xticks=[])
    if rows:
        panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(STATUSES), handlelength=1, borderaxespad=0.2)
    panel.grid(visible=False)
    panel.spines["bottom"].set_visible(False)
    return figure


@_drawn
def costs(run: RunTables, *others: RunTables) -> Picture:
    """Plot the cost of each stage of the last start, or its calls if there is no price."""
    rows = [row for row in analysis.costs(run, *others).to_pylist() if row["calls"]]
    what = "cost" if any(row["cost"] for row in rows) else "calls"
    rows = sorted(rows, key=lambda row: -(row[what] or 0))
    # A missing price is not a cost of 0
    prices = ["no price" if row["cost"] is None else f"{row['cost']:.4f}" for row in rows]
    calls = [f"{row['calls']:,}" for row in rows]
    told = calls if what == "calls" else [f"{one}, {count} calls" for one, count in zip(prices, calls, strict=True)]
    return _bars([row["stage"] for row in rows], [row[what] or 0 for row in rows], told, BLUE, f"{what} by stage")


def trend(*runs: RunTables) -> Picture:
    """Plot the mean of each system over the dates of runs with its 95 % interval, one panel per metric.

    A line is cut between dates that are not comparable. Circles mark significant changes. The sentinel is grey.
    """
    return draw_trend(find_trend(runs))


@_drawn
def draw_trend(found: Trend) -> Picture:
    """Plot a trend like `trend`."""
    rows = [row for row in found.points if row["mean"] is not None and row["level"] != OVERALL]
    by_metric, dates = group_by(rows, "metric"), found.dates
    systems = sorted({row["system"] for row in rows if row["system"]})
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(systems)}
    figure = _figure(3.2, width=max(WIDTH, 4.5 * len(by_metric)))
    panels = figure.subplots(1, max(len(by_metric), 1), sharey=True, squeeze=False)[0]
    for panel, (metric, own) in zip(panels, by_metric.items(), strict=False):
        ends = []
        for system, line in group_by(own, "system").items():
            colour = colours.get(system, GREY)
            for stretch in group_by(line, "stretch").values():
                _band(panel, stretch, dates, colour)
            ends.append((line[-1]["mean"], _name(system or SENTINEL), colour))
        for height, (_, name, colour) in zip(_apart([end[0] for end in sorted(ends)]), sorted(ends), strict=True):
            panel.text(len(dates) - 0.85, height, name, color=colour, va="center", fontweight="bold")
        for row in (row for row in found.breaks if metric in row["metrics"]):
            panel.axvline(bisect_left(dates, row["date"]) - 0.5, color=INK, linestyle=":", linewidth=1)
        told = (row for row in found.findings if (row.get("metric"), row.get("measure")) == (metric, "mean"))
        changed = {(row["date"], row["system"]) for row in told}
        marked = [row for row in own if (row["date"], row["system"]) in changed]
        places = [dates.index(row["date"]) for row in marked]
        panel.scatter(places, [row["mean"] for row in marked], s=90, facecolors="none", edgecolors=RED, zorder=3)
        shown = range(0, len(dates), 1 + (len(dates) - 1) // MOST_TICKS)
        panel.set_xticks(shown, [dates[place] for place in shown], rotation=30 if len(dates) > 4 else 0, ha="right")
        panel.set(title=f"{metric}: mean and 95 % interval", ylim=(0, 1.05), xlim=(-0.2, len(dates) - 0.1))
        panel.grid(axis="y")
    return figure


@_drawn
def match_rates(run: RunTables, convention: str = "mismatch") -> Picture:
    """Plot the label match rates of metrics with 95 % intervals, one panel per judge. The line is a constant label."""
    rows = [row for row in run.table("meta_evaluation").to_pylist() if row["convention"] == convention]
    rates = [row for row in rows if row["measure"] == "lmr" and row["value"] is not None]
    constant = next((row["value"] for row in rows if row["measure"] == "baseline_constant"), None)
    label = "label match rate, 95 % interval (dashed = one label for everything)"
    return _dots(rates, "model", "metric", "value", label, line=constant)


def _band(panel: Axes, line: Sequence[Row], dates: Sequence[str], colour: str) -> None:
    """Draw the means of a system over the dates with their intervals."""
    places = [dates.index(row["date"]) for row in line]
    low, high = ([row["mean"] if row[end] is None else row[end] for row in line] for end in ("ci_low", "ci_high"))
    panel.plot(places, [row["mean"] for row in line], marker="o", markersize=4, color=colour)
    panel.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)


def _apart(heights: Sequence[float], least: float = 0.07) -> list[float]:
    """Move ascending heights up until labels do not overlap.

    >>> _apart([0.5, 0.5, 0.9])
    [0.5, 0.57, 0.9]
    """
    moved: list[float] = []
    for height in heights:
        moved.append(height if not moved else max(height, round(moved[-1] + least, 6)))
    return moved


def _bars(
    labels: Sequence[str],
    values: Sequence[float],
    told: Sequence[str],
    colour: str,
    title: str,
    limit: float | None = None,
) -> Picture:
    """Draw horizontal bars, the first on top, with labels at the left and numbers at the right."""
    lines = ["\n".join(wrap(one_line(label), TEXT)[:3]) for label in labels]
    heights = [1 + 0.6 * line.count("\n") for line in lines]
    figure = _figure(HEAD - 0.3 + LINE * max(sum(heights), 1))
    panel = figure.subplots()
    places = [-(sum(heights[:place]) + height / 2) for place, height in enumerate(heights)]
    panel.barh(places, values, height=0.66, color=colour)
    top = limit or max(values, default=1.0) or 1.0
    for place, value, text in zip(places, values, told, strict=True):
        panel.text(value + 0.012 * top, place, text, va="center", fontsize=9)
    panel.set_yticks(places, lines)
    panel.set(title=title, xlim=(0, 1.2 * top), ylim=(-sum(heights) or -1, 0), xticks=[])
    panel.spines["bottom"].set_visible(False)
    return figure


def _dots(rows: Sequence[Row], by: str, name: str, value: str, label: str, line: float | None = None) -> Picture:
    """Draw the values of names from 0 to 1 with their intervals: at most three panels in a row, one per group.

    `by`, `name` and `value` are columns of the rows. `line` is the value of a dashed line.
    """
    groups = group_by(rows, by)
    names = sorted({_name(row[name]) for row in rows}, reverse=True)
    across = min(max(len(groups), 1), 3)
    down = -(-max(len(groups), 1) // across)
    figure = _figure(down * (HEAD + LINE * max(len(names), 1)))
    panels = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    for panel, (group, own) in zip(panels, groups.items(), strict=False):
        panel.set(title=_name(group), xlim=(-0.02, 1.14), ylim=(-0.6, len(names) - 0.4))
        for row in own:
            _interval(panel, names.index(_name(row[name])), row[value], row, BLUE, f"{row[value]:.2f}")
        if line is not None:
            panel.axvline(line, color=RED, linestyle="--", linewidth=1)
        panel.set_yticks(range(len(names)), names)
    figure.supxlabel(label, fontsize=9.5)
    return figure


def _interval(panel: Axes, place: float, value: float, row: Row, colour: str, told: str) -> None:
    """Draw a dot with its interval, and its number at the right."""
    low, high = (value if row[end] is None else row[end] for end in ("ci_low", "ci_high"))
    panel.plot([low, high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
    panel.plot([value], [place], marker="o", markersize=6, color=colour)
    if told:
        panel.annotate(told, (high, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)


def _figure(height: float, width: float = WIDTH) -> Picture:
    return Picture(figsize=(width, height), layout="constrained")


def _name(system: str | None) -> str:
    return "all" if system is None else shorten(one_line(str(system)), NAME)
