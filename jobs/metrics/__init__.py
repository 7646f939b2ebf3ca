"""The metrics, one file each: values of `jobs.metrics.base.Metric`, registered here."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.metrics import e2e, nli, qa
from jobs.metrics.base import Metric
from jobs.settings.model import Settings
from udfs.registry import Registry

GROUP = "untold.metrics"
"""The entry points by which other packages add metrics."""

METRICS: Registry[Metric] = Registry((e2e.METRIC, nli.METRIC, qa.METRIC), GROUP)


def stages_of(metrics: Sequence[str], settings: Settings) -> list[str]:
    """The stages that these metrics ask, each once, in order.

    Metrics that share a stage share its requests too, so that a plan and a run bind it once.

    Of e2e and nli with condensed contexts: summarise_context, evaluate_coverage, extract_atoms and what follows.
    """
    return list(dict.fromkeys(name for metric in metrics for name in METRICS[metric].asks(settings)))


def retrieves(metrics: Sequence[str]) -> bool:
    """Whether one of these metrics looks facts up."""
    return any(METRICS[metric].retrieves for metric in metrics)


def needs_of(metrics: Sequence[str]) -> tuple[str, ...]:
    """The columns that samples must have for these metrics; whoever reads the samples refuses a file without them."""
    return tuple(dict.fromkeys(name for metric in metrics for name in METRICS[metric].needs))
