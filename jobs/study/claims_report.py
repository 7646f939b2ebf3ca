"""The report of a study of claims: rows of the table `meta_evaluation` in, Markdown out."""

from __future__ import annotations

from collections.abc import Sequence

from untold.jobs.study.claims_study import CONSTANT, PEOPLE, SHARE
from untold.jobs.study.markdown import Row, by_owner, interval, number, section
from untold.udfs.statistics.verdict_agreement import MEASURES

# Min et al. 2023, of the human labels that are public; ours have to be the same where those are the input
PUBLISHED_SHARES = {"ChatGPT": 0.6537, "InstructGPT": 0.5158, "PerplexityAI": 0.8642}


def render(rows: Sequence[Row], *, clustered: bool, notes: Sequence[str]) -> str:
    """The report as Markdown. rows: of the table `meta_evaluation`, of one study. Names from outside are escaped."""
    units = "whole queries" if clustered else "single claims"
    parts = [
        "# Meta-evaluation on claims",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}. Where no label is `contradicted`, a verdict of it counts "
        "as `not_supported`. Claims without a verdict are left out.",
        *[f"Note: {note}." for note in notes],
        _measures(rows),
        _shares(rows),
    ]
    return "\n\n".join(parts) + "\n"


def _measures(rows: Sequence[Row]) -> str:
    """A line a metric of a model, and one for the constant label."""
    lines = [
        [metric, model or "(baseline)", f"{own['accuracy']['n']:,}", f"{own['accuracy']['left_out']:,}"]
        + [interval(own[name], 4) for name in MEASURES]
        for (metric, model), own in by_owner(rows, MEASURES).items()
    ]
    return section("Verdicts", "", ["metric", "model", "n", "left out", *MEASURES], lines)


def _shares(rows: Sequence[Row]) -> str:
    """A line a system: what share of its claims people, and each metric of a model, call supported."""
    owners = list(dict.fromkeys((row["metric"], row["model"]) for row in rows if row["metric"] != CONSTANT))
    owners.sort(key=lambda owner: owner[0] != PEOPLE)
    by_key = {(row["measure"], row["metric"], row["model"]): row for row in rows}
    measures = dict.fromkeys(row["measure"] for row in rows if row["measure"].startswith(SHARE))
    lines = []
    for measure in measures:
        system = measure.partition(":")[2]
        found = [by_key.get((measure, *owner)) for owner in owners]
        shown = ["-" if row is None else interval(row, 4) for row in found]
        lines.append([system or "all", *shown, number(PUBLISHED_SHARES.get(system), 4)])
    names = [PEOPLE if metric == PEOPLE else f"{metric} of {model}" for metric, model in owners]
    note = "Of all claims, pooled. Published: FActScore's human labels (Min et al. 2023), S / (S + NS)."
    return section("Supported", note, ["system", *names, "published"], lines)
