"""The metrics, one file each: values of `untold.jobs.metrics.base.Metric`, registered here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from untold.jobs.metrics.settings import GROUP
from untold.udfs.errors import Registry, UserError, did_you_mean, near_misses

if TYPE_CHECKING:
    from untold.jobs.metrics.base import Metric
    from untold.jobs.settings.model import Settings

# Loaded when they are looked up: settings need the package's names, and metrics import Spark
METRICS: Registry[Metric] = Registry(
    (),
    GROUP,
    places={
        name: f"untold.jobs.metrics.{name}:METRIC"
        for name in ("e2e", "nli", "qa", "icat", "importance", "longrecall", "nuggets", "rag")
    },
)


class UnknownMetricError(UserError):
    """A name that no metric has."""


def check_metrics(names: str | Sequence[str]) -> tuple[str, ...]:
    """The names of metrics, each once. Raises UnknownMetricError for a name that no metric has, and for none at all."""
    given = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    unknown = [name for name in given if name not in METRICS]
    if unknown or not given:
        near = did_you_mean(near_misses(unknown[0], list(METRICS)), quote="") if unknown else ""
        what = f"no metric {', '.join(unknown)}" if unknown else "no metric is named"
        raise UnknownMetricError("; ".join(part for part in (what, f"there are {', '.join(METRICS)}", near) if part))
    return given


def stages_of(metrics: Sequence[str], settings: Settings) -> list[str]:
    """The stages that these metrics ask, each once, in order.

    Metrics that share a stage share its requests too, so that a plan and a run bind it once.

    Of e2e and nli with summarised contexts: summarise_context, evaluate_coverage, extract_atoms and what follows.
    """
    return list(dict.fromkeys(name for metric in metrics for name in METRICS[metric].asks(settings)))


def joined(there: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """The metrics that an output has, then those that are asked for besides; the latter alone where one is unknown."""
    return tuple(dict.fromkeys((*there, *asked))) if all(name in METRICS for name in there) else tuple(asked)


def retrieves(metrics: Sequence[str]) -> bool:
    """Whether one of these metrics looks facts up."""
    return any(METRICS[metric].retrieves for metric in metrics)


def needs_of(metrics: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """The columns that samples must have for these metrics; whoever reads the samples refuses a file without them."""
    return tuple(dict.fromkeys(name for metric in metrics for name in METRICS[metric].columns(settings)))


def optional_of(metrics: Sequence[str]) -> tuple[str, ...]:
    """The optional columns of samples that these metrics read where they are there."""
    return tuple(dict.fromkeys(name for metric in metrics for name in METRICS[metric].reads))


def digests_of(metrics: Sequence[str], settings: Settings) -> dict[str, str]:
    """By setting, the digest of each file that settings of these metrics name. Raises UserError for one of no use."""
    found = (METRICS[metric].digests for metric in metrics)
    return {key: digest for given in found if given is not None for key, digest in given(settings).items()}
