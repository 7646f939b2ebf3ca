"""The metrics, one file each: values of `jobs.metrics.base.Metric`, registered here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

from jobs.metrics import e2e, nli, qa
from jobs.metrics.base import Metric
from jobs.settings.model import Settings

GROUP = "untold.metrics"
"""The entry points by which other packages add metrics."""

METRICS: dict[str, Metric] = {metric.name: metric for metric in (e2e.METRIC, nli.METRIC, qa.METRIC)}
METRICS |= {point.name: point.load() for point in entry_points(group=GROUP)}


def stages_of(metrics: Sequence[str], settings: Settings) -> list[str]:
    """The stages that these metrics ask, each once, in order."""
    return list(dict.fromkeys(name for metric in metrics for name in METRICS[metric].stages(settings)))


def needs_of(metrics: Sequence[str]) -> tuple[str, ...]:
    """The columns that samples must have for these metrics."""
    return tuple(dict.fromkeys(name for metric in metrics for name in METRICS[metric].needs))
