"""The metrics, one file each: values of `untold.jobs.metrics.base.Metric`, registered here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        for name in (
            "e2e",
            "nli",
            "qa",
            "icat",
            "importance",
            "longrecall",
            "nuggets",
            "rag",
            "rubric",
            "citations",
            "answer_relevancy",
        )
    },
)


# The metrics that the judge of the package scores without a language model
JUDGED_METRICS = ("citations", "icat", "importance", "longrecall", "nli", "nuggets", "rag")


# The names of other tools, and where their measures are (docs/howto/coming-from.md)
ALIASES = {
    "faithfulness": "rag has the measure faithfulness",
    **dict.fromkeys(("context_recall", "contextual_recall"), "rag has the measure claim_recall"),
    **dict.fromkeys(("context_precision", "contextual_precision"), "rag has the measure context_precision"),
    **dict.fromkeys(("factual_correctness", "answer_correctness"), "the score of rag is F1 of claims"),
    "hallucination": "rag has the measure hallucination",
    **dict.fromkeys(("answer_relevance", "response_relevancy"), "answer_relevancy measures it"),
    **dict.fromkeys(("nuggetizer", "autonuggetizer"), "nuggets follows nuggetizer"),
    **dict.fromkeys(("comprehensiveness", "completeness"), "e2e, qa and nli measure it"),
}


class UnknownMetricError(UserError):
    """A name is not the name of a metric."""


def check_metrics(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the distinct names of metrics. Raises UnknownMetricError for an unknown name, and without a name."""
    given = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    unknown = [name for name in given if name not in METRICS]
    if unknown or not given:
        near = _suggestion(unknown[0]) if unknown else ""
        what = f"no metric {', '.join(unknown)}" if unknown else "no metric is named"
        raise UnknownMetricError("; ".join(part for part in (what, f"there are {', '.join(METRICS)}", near) if part))
    return given


def _suggestion(name: str) -> str:
    """Return what a name means in other tools, or the nearest metric.

    >>> _suggestion("Context Recall"), _suggestion("nil")
    ('context_recall: rag has the measure claim_recall', 'did you mean nli?')
    """
    word = name.strip().lower().replace(" ", "_").replace("-", "_")
    near = next(iter(near_misses(word, ALIASES, cutoff=0.85)), None)
    return f"{near}: {ALIASES[near]}" if near else did_you_mean(near_misses(name, list(METRICS)), quote="")


def stages_of(metrics: Sequence[str], settings: Settings) -> list[str]:
    """Return the distinct stages of metrics in order.

    Metrics with a common stage share its requests, so a plan and a run bind the stage once. Raises SettingsError if the
    judge takes the place of a language model and cannot answer a stage, and for a panel that a metric does not support.
    """
    asked = {metric: METRICS[metric].asks(settings) for metric in metrics}
    # Checks the panel
    judged_stages_of(metrics, settings)
    if settings.llm.is_judge:
        _check_judged(asked)
    return list(dict.fromkeys(name for names in asked.values() for name in names))


def judged_stages_of(metrics: Sequence[str], settings: Settings) -> list[str]:
    """Return the distinct stages whose items a panel labels, in order, and nothing without a panel.

    Raises SettingsError for metrics without a panel, and for settings that a panel excludes.
    """
    from untold.jobs.settings.model import SettingsError

    if settings.judges and (lacking := [name for name in metrics if METRICS[name].judged is None]):
        works = ", ".join(name for name in METRICS if METRICS[name].judged)
        raise SettingsError(f"judges: {', '.join(lacking)} has no panel of judges, only {works}. Remove judges")
    found = (METRICS[metric].judged for metric in metrics) if settings.judges else ()
    return list(dict.fromkeys(name for judged in found if judged for name in judged(settings)))


def _check_judged(asked: Mapping[str, Sequence[str]]) -> None:
    """Raise SettingsError with a line for each metric that has a stage without an answer of the judge."""
    from untold.jobs.settings.model import SettingsError
    from untold.udfs.judge.stages import ANSWERS
    from untold.udfs.stages import LOOKUPS

    missing = {metric: [name for name in names if name not in {*ANSWERS, *LOOKUPS}] for metric, names in asked.items()}
    if lines := [f"{metric}: the judge cannot answer {', '.join(names)}" for metric, names in missing.items() if names]:
        works = f"the judge works with {', '.join(JUDGED_METRICS)}"
        remedy = "for other metrics, set OPENAI_API_KEY, llm.base_url and llm.model, or --endpoint local"
        raise SettingsError("\n".join([*lines, f"llm.endpoint: {works}; {remedy}"]))


def joined(there: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics of an output and the requested ones, or only the latter if the output has an unknown one."""
    return tuple(dict.fromkeys((*there, *asked))) if all(name in METRICS for name in there) else tuple(asked)


def retrieves(metrics: Sequence[str]) -> bool:
    """Return True if a metric retrieves documents."""
    return any(METRICS[metric].retrieves for metric in metrics)


def needs_of(metrics: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Return the required columns of samples for metrics."""
    return tuple(dict.fromkeys(name for metric in metrics for name in METRICS[metric].columns(settings)))


def optional_of(metrics: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Return the optional columns of samples for metrics."""
    return tuple(dict.fromkeys(name for metric in metrics for name in METRICS[metric].optional(settings)))


def digests_of(metrics: Sequence[str], settings: Settings) -> dict[str, str]:
    """Return the digest of each file in the settings of metrics, by setting. Raises UserError for an unusable file."""
    found = (METRICS[metric].digests for metric in metrics)
    return {key: digest for given in found if given is not None for key, digest in given(settings).items()}
