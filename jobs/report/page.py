"""Render the page of a report from a template: introduction, figures of systems, data, style and script."""

from __future__ import annotations

import os
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import pyarrow as pa
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from untold.jobs.analysis import changes, compare_runs, distribution, left_out
from untold.jobs.report.answers import MOST_DETAILED, ReportSamples
from untold.jobs.report.sources import (
    CONTEXT,
    DETAILED,
    PART,
    RESPONSE,
    STATEMENT,
    Packed,
    Sources,
    open_sources,
    pack,
    rows_of,
)
from untold.jobs.run.manifest import by_stage
from untold.jobs.run.terminal import amount
from untold.jobs.run_tables import RunTables, UnreadableRunError, open_run
from untold.jobs.summary.ranking import CHANCE, CompareError
from untold.jobs.summary.run_summary import count_failures, describe_faults
from untold.jobs.summary.score_counts import group_by
from untold.jobs.summary.trends import date_of, describe_finding
from untold.udfs.errors import UserError
from untold.udfs.redaction import redact
from untold.udfs.storage import StoragePath

Row = dict[str, Any]
# Bars of a distribution from 0 to 1
BARS = 20
# Maximum pairs of systems per metric, and maximum missed statements in a report
PAIRS, LEFT_OUT = 40, 30
# Maximum dates in the trend
DATES = 31


def system_rows(sources: Sources) -> dict[str, list[Row]]:
    """Return the rows of the tables `summary` by metric, best mean first, with `label` and `bars`.

    If a run has several systems, the row of all samples is first. If a run has no systems, it represents the run.
    """
    found: dict[str, list[Row]] = defaultdict(list)
    for place, rows in enumerate(sources.summaries):
        bars = _distributions(sources, place)
        systems = Counter(row["metric"] for row in rows if row["level"] == "system")
        for row in rows:
            several = row["level"] == "overall" and systems[row["metric"]]
            # A single system equals its run, and several runs have no common row
            if several and (several == 1 or len(sources.runs) > 1):
                continue
            label = "all systems" if several else sources.labels[place, row["system"]]
            counts = bars[row["metric"], row["system"]]
            found[row["metric"]].append({**row, "label": label, "run": place, "all": bool(several), "bars": counts})
    for rows in found.values():
        rows.sort(key=lambda row: (not row["all"], row["mean"] is None, -(row["mean"] or 0.0), row["label"]))
    return dict(sorted(found.items()))


def _distributions(sources: Sources, place: int) -> dict[tuple[str, str | None], list[int]]:
    """Return the number of scores in each of `BARS` intervals from 0 to 1, by metric and system (None for all).

    Scores below 0 count in the first interval.
    """
    found: dict[tuple[str, str | None], list[int]] = defaultdict(lambda: [0] * BARS)
    for row in distribution(sources.runs[place], bins=BARS).to_pylist():
        for system in (None, row["system"]):
            found[row["metric"], system][max(0, round(row["low"] * BARS))] += row["count"]
    return found


def difference_rows(sources: Sources) -> tuple[dict[str, list[Row]], str | None]:
    """Return the pairs of systems by metric, as in `untold compare`, or the changes of systems between dates.

    If both are missing, the second value is the reason. Pairs with the least p are kept.
    """
    try:
        rows = compare_runs(sources.runs)["comparisons"].to_pylist()
    except CompareError as error:
        # The same systems answered the same questions in several runs
        if len({date_of(run) for run in sources.runs}) < max(2, len(sources.runs)):
            return {}, str(error)
        changed = changes(*sources.runs).to_pylist() if sources.trend is None else sources.trend.steps
        names = (("first", "date"), ("second", "before"))
        rows = [row | {name: f"{row['system']}, {row[date]}" for name, date in names} for row in changed]
    found: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["p_value"] is None, row["p_value"] or 0)):
        if len(found[row["metric"]]) < PAIRS:
            found[row["metric"]].append(row)
    return found, None


def trend_rows(sources: Sources) -> tuple[dict[str, list[Row]], list[str]]:
    """Return the means of the last dates by metric, and the lines about changes, empty for runs without dates."""
    found = sources.trend
    if found is None:
        return {}, []
    last = set(found.dates[-DATES:])
    shown = ({**row, "label": row["system"] or f"({row['level']})"} for row in found.shown if row["date"] in last)
    return group_by(shown, "metric"), [describe_finding(row) for row in found.findings]


def measure_rows(sources: Sources) -> list[Row]:
    """Return the rows of the tables `measures_summary` with `label`, only by system if a run has several systems."""
    found = []
    for place, run in enumerate(sources.runs):
        rows = rows_of(run, "measures_summary")
        systems = {(row["metric"], row["measure"]) for row in rows if row["level"] == "system"}
        shown = [row for row in rows if row["level"] == "system" or (row["metric"], row["measure"]) not in systems]
        found += [{**row, "label": sources.labels.get((place, row["system"]), row["system"])} for row in shown]
    return sorted(found, key=lambda row: (row["metric"], row["measure"], row["label"] or ""))


def failure_rows(sources: Sources) -> list[Row]:
    """Return failed requests by run, stage and kind, most frequent first, with an example of sample_id and error."""
    found = []
    for place, run in enumerate(sources.runs):
        if "failures" in run.tables:
            rows = count_failures(run)
            found += [{**row, "run": place, "error": redact(row["error"] or "")} for row in rows]
    return sorted(found, key=lambda row: -row["count"])


def usage_rows(sources: Sources) -> list[Row]:
    """Return the rows of the tables `usage`, one per stage, with `run` and `tokens`."""
    found = []
    for place, run in enumerate(sources.runs):
        for row in by_stage(rows_of(run, "usage")):
            tokens = (row["prompt_tokens"] or 0) + (row["completion_tokens"] or 0)
            found.append({**row, "run": place, "tokens": tokens})
    return found


def total(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    """Return the sum of a column, with nulls as 0."""
    return sum(row.get(name) or 0 for row in rows)


def cost_of(sources: Sources) -> list[float | None]:
    """Return the cost of each run over all its starts, None without a price."""
    return [(run.manifest.get("totals") or {}).get("cost") for run in sources.runs]


def counts_of(sources: Sources) -> dict[str, Row]:
    """Return the numbers of scored, undefined and failed samples by metric, over all runs."""
    rows = [row for own in sources.summaries for row in own if row["level"] == "overall"]
    names = ("n", "scored", "undefined", "failed")
    metrics = sorted({row["metric"] for row in rows})
    return {
        one: {name: int(total((row for row in rows if row["metric"] == one), name)) for name in names}
        for one in metrics
    }


GOOD, NOTE, WARNING = "good", "note", "warning"
Sentence = tuple[str, str]
# Shares of requests or samples. Above them a reader should check the failures
FEW, MANY = 0.01, 0.05
# With fewer scored samples, a mean is not reliable
SMALL = 30
ENDS = {
    "budget": "ended by its budget",
    "outage": "ended because the endpoint was out",
    "spooled": "waits for a spool to be answered",
    "batched": "waits for batches",
    "interrupted": "was interrupted",
    "failed": "failed",
}
AGREEMENT = ("kappa", "lmr", "accuracy", "auc", "spearman", "macro_f1")


def opening(sources: Sources) -> list[str]:
    """Return the introduction: samples, judge, date and cost."""
    counts, systems = counts_of(sources), {name for _, name in sources.labels if name is not None}
    of_systems = f" of {amount(len(systems), 'system')}" if systems else ""
    of_systems += f" in {len(sources.runs)} runs" if len(sources.runs) > 1 else ""
    answers, were = amount(sum(sources.sizes), "answer"), "was" if sum(sources.sizes) == 1 else "were"
    scored = f"{answers}{of_systems} {were} scored by {_list(counts) or 'no metric'}"
    dates = sorted(start["ended_at"][:10] for run in sources.runs for start in run.manifest.get("starts", ()))
    when = f" The last start ended on {dates[-1]}." if dates else ""
    return [f"{scored}. The judge is {_judges(sources)}.{when}", *_outcomes(counts), _costs(sources)]


def _outcomes(counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for metric, row in counts.items():
        undefined = f", {row['undefined']:,} had no statements" if row["undefined"] else ""
        yield f"{metric}: {row['scored']:,} of {row['n']:,} have a score{undefined}, {row['failed']:,} failed."


def _judges(sources: Sources) -> str:
    if any(run.manifest.get("embedded_model") for run in sources.runs):
        return "the embedded model"
    vectors = {((run.manifest.get("settings") or {}).get("embeddings") or {}).get("model") for run in sources.runs}
    return (
        _list(sorted({name for run in sources.runs for name in run.manifest.get("models", ())} - vectors)) or "unknown"
    )


def _costs(sources: Sources) -> str:
    """Return a sentence with the cost and tokens of all starts."""
    totals = [run.manifest.get("totals") or {} for run in sources.runs]
    tokens = int(total(totals, "prompt_tokens") + total(totals, "completion_tokens"))
    used = f"{int(total(totals, 'calls')):,} calls and {tokens:,} tokens"
    known = [cost for cost in cost_of(sources) if cost is not None]
    if not known:
        return f"It took {used}; the cost is unknown, as no price is set."
    size = sum(size for size, cost in zip(sources.sizes, cost_of(sources), strict=True) if cost is not None)
    return f"It cost {sum(known):,.4f}, or {sum(known) / max(size, 1):.6f} a sample, for {used}."


def reliance(sources: Sources) -> list[Sentence]:
    """Return sentences about the reliability of the figures, with their level, warnings first."""
    counts = counts_of(sources)
    parts = (_judging(sources), _failed(counts), _small(counts), _read_loosely(sources), _silent(sources))
    found = [sentence for part in (*parts, _people(sources)) for sentence in part]
    return sorted(found, key=lambda sentence: (WARNING, NOTE, GOOD).index(sentence[0]))


def _judging(sources: Sources) -> Iterator[Sentence]:
    for name, run in zip(sources.names, sources.runs, strict=True):
        if run.status in ENDS:
            yield WARNING, f"The run {name} {ENDS[run.status]}, so its figures cover only a part of the samples."

    if any(run.manifest.get("embedded_model") for run in sources.runs):
        yield WARNING, "The judge is the embedded demo model, which is not a judge to rely on."


def _failed(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Sentence]:
    if not any(row["failed"] for row in counts.values()):
        yield GOOD, "No sample failed."
    for metric, row in counts.items():
        share = row["failed"] / max(row["n"], 1)
        if row["failed"]:
            yield (
                WARNING if share > MANY else NOTE,
                f"{row['failed']:,} of {row['n']:,} samples ({share:.1%}) have no score under {metric}, because "
                "requests failed. Its means do not include them. The bounds show how far they could change it.",
            )


def _small(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Sentence]:
    few = [f"{metric} {row['scored']:,}" for metric, row in counts.items() if row["scored"] < SMALL]
    if few:
        yield NOTE, f"Few samples have a score ({', '.join(few)}), so that intervals are rough."


def _read_loosely(sources: Sources) -> Iterator[Sentence]:
    """Yield the share of unusable completions."""
    rows = usage_rows(sources)
    requests = total(rows, "requests") - total(rows, "unasked")
    lost = {name: int(total(rows, name)) for name in ("unparsable", "refused", "truncated", "empty")}
    if not requests:
        return
    share = sum(lost.values()) / requests
    told = ", ".join(f"{count:,} {name}" for name, count in lost.items() if count)
    if told:
        yield (WARNING if share > FEW else NOTE), f"{share:.1%} of the judge's completions could not be used ({told})."
    else:
        yield GOOD, f"Every completion could be read ({int(requests):,} requests)."


def _silent(sources: Sources) -> Iterator[Sentence]:
    """Yield the systems with answers that have no score."""
    for place, rows in enumerate(sources.summaries):
        for row in rows:
            rate = row.get("answer_rate")
            if row["level"] == "system" and rate is not None and rate < 1:
                yield (
                    NOTE,
                    f"{sources.labels[place, row['system']]} has a score under {row['metric']} for {rate:.0%} of the "
                    "answers with statements. Its mean covers only these answers.",
                )


def _people(sources: Sources) -> Iterator[Sentence]:
    """Yield the agreement of the judge with people, from studies."""
    rows = [row for study in _studies(sources) for row in study.table("meta_evaluation").to_pylist()]
    metrics = {*counts_of(sources)}
    judges = {None, *(name for run in sources.runs for name in run.manifest.get("models", ()))}
    own = [row for row in rows if row["metric"] in metrics and row["measure"] in AGREEMENT and row["value"] is not None]
    for row in sorted(own, key=lambda row: (row["metric"], row["model"] or "", AGREEMENT.index(row["measure"])))[:8]:
        ends = "" if row["ci_low"] is None else f" (95 % interval {row['ci_low']:.2f} to {row['ci_high']:.2f})"
        under = f", {row['convention']} convention" if row["convention"] else ""
        by = f"{row['metric']} by {row['model'] or 'this judge'} on {row['dataset']}"
        other = "" if row["model"] in judges else " The study has another name for its judge."
        told = f"{by}: {row['measure']} {row['value']:.2f}{ends}, n = {row['n']:,}{under}"
        yield NOTE, f"Agreement with people, {told}.{other}"
    if not own:
        yield (
            NOTE,
            "This report has no measure of the judge's agreement with people. untold meta-evaluate measures it. Add "
            "its output to untold report.",
        )


def _studies(sources: Sources) -> Iterable[RunTables]:
    """Yield the given studies, and the studies that contain a run or its store."""
    yield from sources.studies
    seen = {study.place.uri for study in sources.studies}
    for run in sources.runs:
        store = (run.manifest.get("settings") or {}).get("completion_store")
        above = [run.place.uri, run.place.uri.rpartition("/runs/")[0], (store or "").rstrip("/").rpartition("/")[0]]
        for directory in filter(None, above):
            if directory in seen:
                continue
            seen.add(directory)
            with suppress(UnreadableRunError, OSError):
                study = open_run(StoragePath(directory).spark)
                if "meta_evaluation" in study.tables:
                    yield study


def _list(names: Iterable[str]) -> str:
    """Return names joined as in a sentence.

    >>> _list(["a", "b", "c"])
    'a, b and c'
    """
    *head, last = [*names] or [""]
    return f"{', '.join(head)} and {last}" if head else last


TEMPLATE = "report.html"
SCRIPTS = ("page.js", "words.js", "graph.js", "corrections.js", "sample.js", "answers.js", "beside.js", "start.js")


class ReportError(UserError):
    """A report that cannot be written. The message has the remedy."""


@dataclass(frozen=True)
class Report:
    """A report: a page of HTML and the path of its file, if any. A notebook shows it in a frame."""

    html: str = field(repr=False)
    file: str | None = None

    def _repr_html_(self) -> str:
        """Return the page in a frame without access to the notebook, or the path of its file."""
        if self.file is not None:
            return f"<p>report: {escape(self.file)}</p>"
        frame = 'sandbox="allow-scripts allow-modals" title="Untold report" width="100%" height="900" frameborder="0"'
        return f'<iframe srcdoc="{escape(self.html)}" {frame}></iframe>'


def make_report(runs: Sequence[RunTables]) -> str:
    """Return the report of runs, an HTML page without network requests.

    Raises UnreadableRunError for an output without scores.
    """
    sources = open_sources(runs)
    answers = ReportSamples(sources)
    return _fill(sources, pack(answers.data(), answers.texts))


def write_report(runs: Sequence[RunTables], file: str | os.PathLike[str]) -> Report:
    """Write the report of runs to a file. Raises ReportError if it is not writable, and the errors of `make_report`."""
    report = Report(make_report(runs), os.fspath(file))
    page = report.html.encode("utf-8", "replace")
    try:
        StoragePath(os.fspath(file)).write_whole(lambda target: target.write(page))
    except (OSError, pa.ArrowException) as error:
        raise ReportError(f"{file} cannot be written ({type(error).__name__}). Choose another --html FILE") from error
    return report


def _fill(sources: Sources, data: Packed) -> str:
    style, script = _read("report.css"), "\n".join(map(_read, SCRIPTS))
    allowed = f"script-src {_digest(script)}; style-src {_digest(style)}"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    systems = system_rows(sources)
    differences, reason = difference_rows(sources)
    paid = zip(cost_of(sources), sources.sizes, strict=True)
    costs = [None if cost is None or not size else cost / size for cost, size in paid]
    dated, findings = trend_rows(sources)
    loader = DictLoader({TEMPLATE: _read(TEMPLATE)})
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(TEMPLATE)
    return template.render(
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
        # The introduction has the cost of a single run
        priced=len(costs) > 1 and any(cost is not None for cost in costs),
        dated=dated,
        findings=findings,
        measures=measure_rows(sources),
        diagnoses=[line for run in sources.runs for line in describe_faults(run)],
        shown=_shown(sources, data),
        # A statement of a single response is not missed by most
        left_out=[row for row in left_out(*sources.runs, n=LEFT_OUT).to_pylist() if row["responses"] > 1],
        failures=failure_rows(sources),
        usage=usage_rows(sources),
    )


def _shown(sources: Sources, data: Packed) -> list[str]:
    """Return sentences about the answers on the page and the length of their texts."""
    said = []
    total = sum(sources.sizes)
    if sources.shown < total:
        said.append(
            f"The table has {sources.shown:,} of {total:,} answers: the {PART:,} with the lowest scores, and {PART:,} "
            "drawn at random by query. All figures cover all answers."
        )
    if data.limit is not None:
        said.append(
            "Long texts are cut and marked, so that the file stays small. Contexts are cut to "
            f"{data.limit * CONTEXT:,} characters, responses to {data.limit * RESPONSE:,} and statements to "
            f"{data.limit * STATEMENT:,}. The limits of the {MOST_DETAILED:,} worst answers are {DETAILED} times these."
        )
    return said


def _span(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest absolute limit of the intervals, for their axis."""
    ends = [abs(row[name]) for row in rows for name in ("difference", "ci_low", "ci_high") if row.get(name) is not None]
    return float(max([*ends, 0.01]))


def _read(name: str) -> str:
    return files("untold.conf").joinpath("report", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the hash that allows an inline element in the policy of the page."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
