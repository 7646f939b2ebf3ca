"""The page of a report: a template filled in with figures, and the data, style and script that it carries."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import pyarrow as pa
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from untold.jobs.report import figures
from untold.jobs.report.answers import MOST_DETAILED, Answers
from untold.jobs.report.reliance import opening, reliance
from untold.jobs.report.sources import PART, Sources, open_sources
from untold.jobs.report.texts import CONTEXT, DETAILED, RESPONSE, STATEMENT, Packed, pack
from untold.jobs.results import Run
from untold.jobs.summary.diagnoses import describe_faults
from untold.jobs.summary.ranking import CHANCE
from untold.udfs.errors import UserError
from untold.udfs.redaction import redact
from untold.udfs.storage import Place

TEMPLATE = "report.html"
SCRIPTS = ("page.js", "words.js", "graph.js", "sample.js", "answers.js", "beside.js", "start.js")


class ReportError(UserError):
    """A report that cannot be written. The message says what to do."""


@dataclass(frozen=True)
class Report:
    """A report: a page of HTML, and the file that it was written to, if any. A notebook shows it in a frame."""

    html: str = field(repr=False)
    file: str | None = None

    def _repr_html_(self) -> str:
        """The page in a frame that can do nothing to the notebook, or where it was written."""
        if self.file is not None:
            return f"<p>report: {escape(self.file)}</p>"
        frame = 'sandbox="allow-scripts allow-modals" title="Untold report" width="100%" height="900" frameborder="0"'
        return f'<iframe srcdoc="{escape(self.html)}" {frame}></iframe>'


def make_report(runs: Sequence[Run]) -> str:
    """The report of one or several runs, an HTML page that asks no network.

    Raises UnreadableRunError for an output without scores.
    """
    sources = open_sources(runs)
    answers = Answers(sources)
    return _fill(sources, pack(answers.data(), answers.texts))


def write_report(runs: Sequence[Run], file: str | os.PathLike[str]) -> Report:
    """Writes the report of runs into a file. Raises ReportError where it cannot be written, and as `make_report`."""
    report = Report(make_report(runs), os.fspath(file))
    page = report.html.encode("utf-8", "replace")
    try:
        Place(os.fspath(file)).write_whole(lambda target: target.write(page))
    except (OSError, pa.ArrowException) as error:
        raise ReportError(f"{file}: cannot be written ({type(error).__name__}); give another --html FILE") from error
    return report


def _fill(sources: Sources, data: Packed) -> str:
    style, script = _read("report.css"), "\n".join(map(_read, SCRIPTS))
    allowed = f"script-src {_digest(script)}; style-src {_digest(style)}"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    systems = figures.system_rows(sources)
    differences, reason = figures.difference_rows(sources)
    costs = figures.costs_a_sample(sources)
    dated, findings = figures.trend_rows(sources)
    page: str = _template().render(
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
        reason=reason,
        spans={metric: _span(rows) for metric, rows in differences.items()},
        chance=CHANCE,
        costs=costs,
        # Of one run the overview says it
        priced=len(costs) > 1 and any(cost is not None for cost in costs),
        dated=dated,
        findings=findings,
        measures=figures.measure_rows(sources),
        diagnoses=[line for run in sources.runs for line in describe_faults(run)],
        shown=_shown(sources, data),
        left_out=figures.left_out_rows(sources),
        failures=figures.failure_rows(sources),
        usage=figures.usage_rows(sources),
    )
    return page


def _shown(sources: Sources, data: Packed) -> list[str]:
    """Which answers are shown, and how far their texts are cut."""
    said = []
    total = sum(sources.sizes)
    if sources.shown < total:
        said.append(
            f"The table has {sources.shown:,} of {total:,} answers: those of the {PART:,} lowest scores, and {PART:,} "
            "drawn at random by query. All figures are of all answers."
        )
    if data.limit is not None:
        said.append(
            "Long texts are cut, so that the file stays small; each says so. Of most answers contexts are cut to "
            f"{data.limit * CONTEXT:,} characters, responses to {data.limit * RESPONSE:,} and statements to "
            f"{data.limit * STATEMENT:,}; of the {MOST_DETAILED:,} worst to {DETAILED} times these."
        )
    return said


def _span(rows: Sequence[Mapping[str, Any]]) -> float:
    """The largest end of the intervals, for their axis."""
    ends = [abs(row[name]) for row in rows for name in ("difference", "ci_low", "ci_high") if row.get(name) is not None]
    return float(max([*ends, 0.01]))


def _template() -> Any:
    loader = DictLoader({TEMPLATE: _read(TEMPLATE)})
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(TEMPLATE)


def _read(name: str) -> str:
    return files("untold.conf").joinpath("report", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The hash by which the page's policy lets an inline element run."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
