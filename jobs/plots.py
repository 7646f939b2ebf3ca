"""Pictures of a run for notebooks, as Matplotlib figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

from untold.graph.drawing import STYLE
from untold.graph.views import one_line

# Inches: a panel's width, its head and axis, and a system's line
PANEL_WIDTH, PANEL_HEAD, LINE_HEIGHT = 5.0, 1.2, 0.3


def plot_means(summary: Sequence[Mapping[str, Any]]) -> Figure:
    """The mean of each system with its interval, a panel a metric; summary: rows of the table `summary`."""
    metrics = list(dict.fromkeys(row["metric"] for row in summary))
    by_metric = {name: [row for row in summary if row["metric"] == name] for name in metrics}
    most = max(map(len, by_metric.values()), default=1)
    with style.context(STYLE):
        size = (PANEL_WIDTH * max(len(metrics), 1), PANEL_HEAD + LINE_HEIGHT * most)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, max(len(metrics), 1), squeeze=False)[0]
        for panel, name in zip(panels, metrics, strict=False):
            rows = [row for row in reversed(by_metric[name]) if row["mean"] is not None]
            for place, row in enumerate(rows):
                low, high = (row["mean"] if row[end] is None else row[end] for end in ("ci_low", "ci_high"))
                panel.plot([low, high], [place, place], color="#0072B2")
                panel.plot([row["mean"]], [place], marker="o", color="#0072B2")
            names = ["all" if row["level"] == "overall" else one_line(str(row["system"])) for row in rows]
            panel.set_yticks(range(len(rows)), names, parse_math=False)
            panel.set(title=f"{name}: mean and 95 % interval", xlim=(-0.02, 1.02))
    return figure
