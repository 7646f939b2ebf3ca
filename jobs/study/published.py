"""Read the published figures, and show them next to the results of a study; `conf/published.csv` names the papers."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from untold.jobs.study.rendering import section

Row = Mapping[str, Any]
DEJL, ICAT, IMPORTANCE, LONGRECALL, FACTSCORE = (
    *("Dejl et al. 2025", "Samarinas et al. 2025", "Jafari et al. 2026", "Ardestani et al. 2025", "Min et al. 2023"),
)
PUBLISHED_CONVENTION = "published"
# The data set of averages over data sets
AVERAGE = "average"


@dataclass(frozen=True)
class PublishedFigure:
    """A value of a paper, with its interval if the paper gives one.

    `metric` and `measure` have the names of the table `meta_evaluation`. `text` is the value as the paper prints it.
    """

    paper: str
    dataset: str | None
    metric: str | None
    model: str | None
    measure: str
    value: float
    ci_low: float | None
    ci_high: float | None
    text: str


@cache
def published_figures(paper: str) -> tuple[PublishedFigure, ...]:
    """Return the figures of a paper, in the order of the file."""
    with files("untold.conf").joinpath("published.csv").open(encoding="utf-8", newline="") as file:
        rows = [{name: text or None for name, text in row.items()} for row in csv.DictReader(file)]
    return tuple(_figure(row) for row in rows if row["paper"] == paper)


def _figure(row: Mapping[str, Any]) -> PublishedFigure:
    limits = {name: None if row[name] is None else float(row[name]) for name in ("ci_low", "ci_high")}
    text = row["value"] if limits["ci_low"] is None else f"{row['value']} [{row['ci_low']}, {row['ci_high']}]"
    return PublishedFigure(**{**row, **limits, "value": float(row["value"]), "text": text})


def find_published(
    dataset: str, metric: str, model: str | None, measure: str, paper: str = DEJL
) -> PublishedFigure | None:
    """Return the figure of a model in a paper, or None. Ignores providers, case and punctuation in names of models.

    `meta-llama/Llama-3.3-70B-Instruct` equals `llama-3.3-70b-instruct`.
    """
    key = dataset, metric, _plain(model), measure
    return next((one for one in published_figures(paper) if _key(one) == key), None)


def _key(one: PublishedFigure) -> tuple[str | None, ...]:
    return one.dataset, one.metric, _plain(one.model), one.measure


def _plain(model: str | None) -> str:
    """Return the name of a model without provider, prompt set, case and punctuation."""
    model = re.sub(r" \(\w+ prompts\)$", "", model or "")
    return re.sub("[^a-z0-9]", "", model.rpartition("/")[2].lower())


def with_published(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows of `meta_evaluation` with the column `published`, the figure of Dejl et al. 2025 for a match rate."""
    return [{**row, "published": _published_value(row)} for row in rows]


def _published_value(row: Row) -> float | None:
    found = None
    if has_published_convention(row):
        found = find_published(row["dataset"], row["metric"], row["model"], row["measure"])
    return None if found is None else found.value


def has_published_convention(row: Row) -> bool:
    """Return True under the convention of the paper, to which `zero` is equal if no score failed."""
    return row["convention"] == PUBLISHED_CONVENTION or (row["convention"] == "zero" and row.get("excluded") == 0)


def published_section(
    heading: str, note: str, figures: Sequence[PublishedFigure], ours: Callable[[PublishedFigure], str | None]
) -> str:
    """Return the figures as a section of a report, each next to the result `ours`; only the note without figures."""
    rows = [
        {"data set": one.dataset, "metric": one.metric, "model": one.model, "measure": one.measure}
        | {"here": ours(one), "published": one.text}
        for one in figures
    ]
    names = ("data set", "metric", "model", "measure", "here", "published")
    return section(heading, note, {name: name for name in names}, rows) or f"## {heading}\n\n{note}"


def by_measure(rows: Iterable[Row], show: Callable[[Row], str]) -> Callable[[PublishedFigure], str | None]:
    """Return a function from a figure to our result under the same data set, metric, model and measure."""
    found = {(row["dataset"], row["metric"], _plain(row["model"]), row["measure"]): show(row) for row in rows}
    return lambda one: found.get(_key(one))
