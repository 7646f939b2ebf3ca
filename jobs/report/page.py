"""The page of a report: a template filled in with figures, and the data, style and script that it carries."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from untold.jobs.report import figures
from untold.jobs.report.answers import Answers
from untold.jobs.report.reliance import opening, reliance
from untold.jobs.report.sources import PART, Sources, open_sources
from untold.jobs.report.texts import Packed, pack
from untold.jobs.results import Run
from untold.udfs.errors import UserError
from untold.udfs.redaction import redact
from untold.udfs.storage import Place

TEMPLATE = "report.html.jinja"
SCRIPTS = ("page.js", "words.js", "graph.js", "sample.js", "answers.js", "beside.js", "start.js")
# Of an adjusted p-value: below it a difference is called more than chance
CHANCE = 0.05


class ReportError(UserError):
    """A report that cannot be written. The message says what to do."""


def make_report(runs: Sequence[Run]) -> str:
    """The report of one or several runs, an HTML page that asks no network.

    Raises UnreadableRunError for an output without scores.
    """
    sources = open_sources(runs)
    answers = Answers(sources)
    rows = answers.rows()
    data = {"runs": sources.names, "samples": rows}
    packed = pack(data, answers.texts)
    return _fill(sources, packed)


def write_report(runs: Sequence[Run], file: str | os.PathLike[str]) -> str:
    """Writes the report of runs into a file, and gives its path. Raises ReportError where it cannot be written."""
    page = make_report(runs).encode("utf-8", "replace")
    place = os.fspath(file)
    try:
        target = Place(place)
        target.write_bytes(page)
    except OSError as error:
        raise ReportError(f"{place}: cannot be written ({type(error).__name__}); give another --html FILE") from error
    return place


def inline(page: str) -> str:
    """The page as a frame of a notebook, which runs nothing of the notebook and nothing in it."""
    source = str(Markup.escape(page))
    return (
        f'<iframe srcdoc="{source}" sandbox="allow-scripts allow-modals" title="Untold report" '
        'width="100%" height="900" style="border:0"></iframe>'
    )


def _fill(sources: Sources, data: Packed) -> str:
    style, script = _read("report.css"), "\n".join(map(_read, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    )
    systems = figures.system_rows(sources)
    differences: Mapping[str, Sequence[Mapping[str, Any]]] = {metric: [] for metric in systems}
    costs = figures.costs_a_sample(sources)
    return _template().render(
        policy=policy,
        version=version("untold"),
        style=Markup(style),
        script=Markup(script),
        data=data,
        runs=sources.names,
        directories=[redact(run.directory) for run in sources.runs],
        opening=opening(sources),
        reliance=reliance(sources),
        systems=systems,
        several=max((len(rows) for rows in systems.values()), default=0) > 1,
        differences=differences,
        spans={metric: _span(rows) for metric, rows in differences.items()},
        chance=CHANCE,
        costs=costs,
        priced=any(cost is not None for cost in costs),
        measures=figures.measure_rows(sources),
        shown=_shown(sources, data),
        left_out=[],
        failures=figures.failure_rows(sources),
        usage=figures.usage_rows(sources),
    )


def _shown(sources: Sources, data: Packed) -> list[str]:
    """Which answers are shown, and how far their texts are cut."""
    said = []
    total = sum(sources.sizes)
    if sources.shown < total:
        said.append(
            f"Of {total:,} answers {sources.shown:,} are shown: the {PART:,} of the lowest scores and {PART:,} drawn at "
            "random. All figures are of all answers."
        )
    if data.limit is not None:
        said.append(f"Texts are cut to {data.limit:,} characters, so that the file stays small; each cut text says so.")
    return said


def _span(rows: Sequence[Mapping[str, Any]]) -> float:
    """The largest end of the intervals, for their axis."""
    ends = [abs(row[name]) for row in rows for name in ("difference", "ci_low", "ci_high") if row.get(name) is not None]
    return max([*ends, 0.01])


def _template() -> Any:
    loader = DictLoader({TEMPLATE: _read(TEMPLATE)})
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(TEMPLATE)


def _read(name: str) -> str:
    return files("untold.conf").joinpath("report", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The hash by which the page's policy lets an inline element run."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
