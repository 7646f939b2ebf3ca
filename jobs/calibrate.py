"""Compare the costs and the agreement of cheaper forms of a metric with the published one on the same samples.

A form is a set of settings. Each form is a run in a folder of the output, and all runs share a store.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from untold.graph.plotting import draw_picture, new_figure
from untold.graph.views import FORMATS, one_line
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import calls_for, hours_at, runs_in_tasks
from untold.jobs.inference.stage.engines import open_held
from untold.jobs.inference.store.compaction import VERSION, list_uses, read_completions
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.run.outcome import EXIT_CODES, FAILED_TOO_MANY, Ending
from untold.jobs.run.output import Output, shown
from untold.jobs.run.session import task_slots
from untold.jobs.run.terminal import Display, Page, table, wrapped
from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.score import score
from untold.jobs.settings.model import Settings, prices_for
from untold.jobs.study.rendering import Columns, cells, document, markdown_table
from untold.jobs.summary.ranking import limits_text, number_text
from untold.jobs.summary.score_counts import connect_scores
from untold.jobs.tables import CALIBRATION
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.statistics.intervals import Interval, clustered_bca_interval
from untold.udfs.statistics.item_agreement import compare_rankings, kappa_by_query, limits_of_agreement
from untold.udfs.storage import StoragePath

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLE, REPORT = "calibration", "calibration.md"
SECONDS_AN_HOUR = 3600
Row = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """A set of settings as `KEY=VALUE`, and the request that scores the samples with these settings."""

    name: str
    settings: tuple[str, ...]
    request: ScoreRequest


@dataclass(frozen=True)
class Calibrated:
    """The exit code and the rows of the table `calibration`; no rows if a form is not scored completely."""

    exit_code: int
    rows: Sequence[Row] = ()
    message: str | None = None


def calibrate(forms: Sequence[Variant], folder: str, display: Display, *, least: float, overwrite: bool) -> Calibrated:
    """Score the samples with each form of a metric, and write the table `calibration`, its pictures and a report.

    The published form is the first. `least` is the least lower limit of kappa of a recommended form. A second start
    sends only the missing requests. If a form ends early, the start ends with the exit code of the form.
    """
    first = forms[0].request
    settings, metric = first.settings, first.metrics[0]
    given = {"path": first.input, "draw": None if first.draw is None else vars(first.draw), "limit": first.limit}
    with Output(folder, (TABLE,), overwrite, inputs=[first.input], store=first.store, lock=first.lock) as output:
        output.claim({"dataset": "calibrate", "input": json.dumps(given), "metrics": [metric]})
        output.begin(shown(settings), input=given, forms={form.name: list(form.settings) for form in forms})
        with open_held(settings, display, first.small) as held:
            for variant in forms:
                display.note(f"form {variant.name}: {' '.join(variant.settings) or 'the given settings'}")
                ended = score(variant.request, display, held)
                if ended.exit_code not in (0, FAILED_TOO_MANY):
                    status = ended.manifest["status"]
                    output.end(Ending(status if status in EXIT_CODES else "broken", ended.message))
                    return Calibrated(ended.exit_code, message=ended.message)
            cores = task_slots(held.spark)
        rows = measure(forms, least, cores)
        output.write_rows(TABLE, rows, CALIBRATION)
        StoragePath(f"{folder}/{REPORT}").write_bytes(report_of(rows, least).encode())
        for form in FORMATS:
            picture = draw_picture(form, partial(draw_calibration, rows, least))
            (StoragePath(folder) / f"{TABLE}.{form}").write_bytes(picture)
        output.end(Ending())
    return Calibrated(0, rows)


def measure(forms: Sequence[Variant], least: float, cores: int) -> list[Row]:
    """Return one row of the table `calibration` per form. `cores` is the number of cores for local models."""
    runs = [open_run(form.request.output) for form in forms]
    seed = forms[0].request.settings.statistics.seed
    rows = [
        _costs(form, run, cores) | _agreement([runs[0], run], form.request.metrics[0], seed)
        for form, run in zip(forms, runs, strict=True)
    ]
    chosen = _recommend(rows, least)
    return [{**row, "recommended": row is chosen} for row in rows]


def _recommend(rows: Sequence[Row], least: float) -> Row | None:
    """Return the cheapest form that agrees well enough, if it is cheaper than the published form."""
    is_priced = all(row["cost"] is not None for row in rows)
    prices = {row["form"]: float(row["cost"]) if is_priced else _tokens(row) for row in rows}
    good = [row for row in rows[1:] if row["kappa_low"] is not None and row["kappa_low"] >= least]
    cheapest = min(good, key=lambda row: (prices[row["form"]], row["requests"]), default=None)
    return cheapest if cheapest is not None and prices[cheapest["form"]] < prices[rows[0]["form"]] else None


def _costs(form: Variant, run: RunTables, cores: int) -> Row:
    """Return the costs of a form, also of requests that another run of the store sent. Local models use seconds."""
    drawn = run.manifest["counts"]["samples"]
    whole = ((run.manifest.get("input") or {}).get("draw") or {}).get("of") or drawn
    used = [
        _used(run, form.request.store, bind_stage(name, form.request.settings), digest, form.request.settings)
        for name, digest in run.manifest["identity"]["stages"].items()
    ]
    total = sum((one.usage for one in used), NOTHING_USED)
    sums = {
        "requests": sum(one.requests for one in used),
        **{name: getattr(total, name) for name in ("calls", "prompt_tokens", "completion_tokens", "cost", "seconds")},
        "task_seconds": sum(one.usage.seconds for one in used if one.in_tasks),
    }
    hours = [one.hours(form.request.settings, whole / drawn, cores) for one in used]
    return {
        "form": form.name,
        "settings": list(form.settings),
        "samples": drawn,
        **sums,
        "population_size": whole,
        **{f"projected_{name}": None if value is None else value * whole / drawn for name, value in sums.items()},
        "projected_hours": sum(one for one in hours if one is not None),
        **{f"sample_{name}": None if value is None else value / drawn for name, value in sums.items()},
    }


@dataclass(frozen=True)
class _Used:
    """The usage of the requests of a stage, also of requests that another run sent, and their number."""

    stage: Stage
    usage: Usage
    requests: int
    in_tasks: bool

    def hours(self, settings: Settings, times: float, cores: int) -> float | None:
        """Return the hours of a multiple of this usage, at the rate limits or within tasks on these cores."""
        if self.in_tasks:
            return self.usage.seconds * times / cores / SECONDS_AN_HOUR
        return hours_at(
            settings, self.stage, *(times * one for one in (self.usage.calls, self.usage.tokens, self.usage.seconds))
        )


def _used(run: RunTables, store: str, stage: Stage, digest: str, settings: Settings) -> _Used:
    """Return the usage of a stage. Several requests of one call share its seconds."""
    noted = [
        use for use in list_uses(store) if use.run == run.manifest["run"] and use.stage.startswith(f"{stage.name}-")
    ]
    # A refused schema changes the digest of a stage during a run
    folder = max(noted, key=lambda use: use.at).stage if noted else f"{stage.name}-{digest}"
    asked = (one for use in noted if use.stage == folder for batch in use.ids() for one in batch)
    wanted = pa.array(sorted(set(asked)), pa.string())
    sums = _sum_completions(StoragePath(store) / VERSION / folder, wanted)
    if runs_in_tasks(stage, settings):
        return _Used(stage, Usage(seconds=sums["seconds"]), 0, in_tasks=True)
    attempts = sums["attempts"]
    calls = calls_for(settings, stage, int(attempts))
    usage = Usage(
        calls=calls,
        seconds=sums["seconds"] * calls / max(attempts, 1),
        prompt_tokens=int(sums["prompt_tokens"]),
        completion_tokens=int(sums["completion_tokens"]),
    )
    return _Used(stage, prices_for(settings, stage.name).priced(usage), len(wanted), in_tasks=False)


def _sum_completions(folder: StoragePath, wanted: pa.Array) -> dict[str, float]:
    """Return the sums of prompt_tokens, completion_tokens, attempts and seconds of the stored rows of requests.

    A retried request has one row per completion. Each row has its own tokens, and the attempts and seconds so far.
    """
    each = {"prompt_tokens": "sum", "completion_tokens": "sum", "attempts": "max", "seconds": "max"}
    keys = ["request_id", "run_id"]
    rows = read_completions(folder, [*keys, *each], pc.field("request_id").isin(wanted))
    by_request = rows.group_by(keys).aggregate(list(each.items()))
    return {name: pc.sum(by_request[f"{name}_{how}"]).as_py() or 0.0 for name, how in each.items()}


def _agreement(runs: Sequence[RunTables], metric: str, seed: int) -> Row:
    """Return the agreement of a form with the published form: verdicts, scores, and the ranking of systems."""
    database = connect_scores(runs, None, [metric], tables=("relations", "statements", "claims"))
    database.execute(
        """create view queries as select sample_id, dense_rank() over (order by query) - 1 as query
            from samples where output = 0"""
    )
    kappa, verdicts = _kappa(database, metric, seed)
    pairs = database.sql(
        """select query, coalesce(a.system, '') as system, a.score as first, b.score as second
            from judged a join judged b using (sample_id) join queries using (sample_id)
            where a.output = 0 and b.output = 1 and a.score is not null and b.score is not null
            order by sample_id"""
    ).fetchnumpy()
    difference = np.asarray(pairs["second"], np.float64) - np.asarray(pairs["first"], np.float64)
    queries, place = np.unique(np.asarray(pairs["query"]), return_inverse=True)
    sums, squares = (np.bincount(place, values, len(queries)) for values in (difference, difference**2))
    sizes = np.bincount(place, minlength=len(queries))
    mean = clustered_bca_interval(sums, sizes, seed=seed)
    lower, upper = limits_of_agreement(sums, squares, sizes, seed=seed)
    return {
        "verdicts": verdicts,
        **kappa.columns("kappa", "kappa"),
        "n": difference.size,
        **mean.columns("difference", "difference"),
        **lower.columns("loa_low", "loa_low_ci"),
        **upper.columns("loa_high", "loa_high_ci"),
        **_ranking(pairs, place, len(queries), seed),
    }


def _kappa(database: DuckDBPyConnection, metric: str, seed: int) -> tuple[Interval, int]:
    """Return kappa of the verdicts of both forms, and the number of verdicts of the published form.

    Verdicts are relations. For a metric without relations, they are the coverage of statements and the support of
    claims with one text. A missing verdict agrees with no verdict. An implied relation is a path of entailments.
    """
    database.execute(
        f"""create view verdicts as
            select output, sample_id, premise_id || chr(31) || hypothesis_id as item,
                min(case when relation = 'implied' then 'entailment' else relation end) as verdict
            from relations where metric = '{metric}' group by all
            union all select output, sample_id, coalesce(reference_id, lower(trim(text))) as item,
                min(covered)::varchar as verdict
            from statements where metric = '{metric}' and not exists (from relations where metric = '{metric}')
            group by all
            union all select output, sample_id, 'claim' || chr(31) || lower(trim(text)) as item,
                min(verdict = 'supported')::varchar as verdict
            from claims where metric = '{metric}' group by all"""
    )
    rows = database.sql(
        """select query, a.verdict as first, b.verdict as second, count(*) as count
            from verdicts a join queries using (sample_id)
                left join (from verdicts where output = 1) b using (sample_id, item)
            where a.output = 0 and a.verdict is not null group by all"""
    ).fetchall()
    labels = sorted({str(row[1]) for row in rows})
    queries = sorted({row[0] for row in rows})
    tables = np.zeros((len(queries), len(labels), len(labels) + 1), np.int64)
    for query, first, second, count in rows:
        column = labels.index(second) if second in labels else len(labels)
        tables[queries.index(query), labels.index(first), column] += count
    return kappa_by_query(tables, seed=seed), int(tables.sum())


def _ranking(pairs: Mapping[str, Any], place: Any, queries: int, seed: int) -> Row:
    systems, owner = np.unique(np.asarray(pairs["system"], str), return_inverse=True)
    shape = (queries, len(systems))
    sums = np.zeros((2, *shape))
    for number, name in enumerate(("first", "second")):
        np.add.at(sums[number], (place, owner), np.asarray(pairs[name], np.float64))
    sizes = np.zeros(shape)
    np.add.at(sizes, (place, owner), 1)
    found = compare_rankings(sums, sizes, seed=seed)
    if found is None:
        return dict.fromkeys(("tau", "tau_low", "tau_high", "same_winner", "winner_changes"))
    return {**found.tau.columns("tau", "tau"), "same_winner": found.same_winner, "winner_changes": found.changes}


def draw_calibration(rows: Sequence[Row], least: float) -> Figure:
    """Return a figure of kappa with its interval over the tokens of each form. The line is the least kappa."""
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    for row in rows:
        if row["kappa"] is not None:
            tokens, kappa = _tokens(row), row["kappa"]
            low, high = ((row[f"kappa_{end}"] or kappa) for end in ("low", "high"))
            axes.errorbar(tokens, kappa, [[kappa - low], [high - kappa]], marker="o", capsize=3)
            axes.annotate(one_line(row["form"]), (tokens, kappa), xytext=(5, 5), textcoords="offset points")
    axes.axhline(least, linestyle="--", linewidth=1)
    axes.set(xlabel="tokens", ylabel="kappa (95 % interval)", title="Cost and agreement of the variants")
    return figure


def _tokens(row: Row, prefix: str = "") -> float:
    return float(row[f"{prefix}prompt_tokens"] + row[f"{prefix}completion_tokens"])


def _figure(name: str, form: str) -> Callable[[Row], str]:
    """Return a column with the values of a field, `-` for None."""
    return lambda row: number_text(row[name], form)


def _range(name: str, form: str = ".3f") -> Callable[[Row], str]:
    """Return a column with the limits of an interval, `-` for an unknown interval."""
    return lambda row: limits_text(row, name, form)


# The columns of the terminal and of the report by form: totals, and figures per sample and of the whole input
TOTALS: Columns = [
    "form",
    "requests",
    ("tokens", lambda row: f"{_tokens(row):,.0f}"),
    ("cost", _figure("cost", ",.4f")),
    ("seconds", _figure("seconds", ",.1f")),
    "kappa",
    ("95 % interval", _range("kappa")),
    ("difference", _figure("difference", "+.3f")),
    ("tau-b", _figure("tau", ".2f")),
]
PER_SAMPLE: Columns = [
    "form",
    ("requests a sample", _figure("sample_requests", ",.1f")),
    ("tokens a sample", lambda row: f"{_tokens(row, 'sample_'):,.0f}"),
    ("cost a sample", _figure("sample_cost", ",.6f")),
    ("seconds a sample", _figure("sample_seconds", ",.2f")),
    ("cost of all", _figure("projected_cost", ",.2f")),
    ("hours of all", _figure("projected_hours", ",.2f")),
]
LIMITS: Columns = [
    "form",
    ("lower limit", _figure("loa_low", "+.3f")),
    ("95 % interval", _range("loa_low_ci", "+.3f")),
    ("upper limit", _figure("loa_high", "+.3f")),
    ("95 % interval", _range("loa_high_ci", "+.3f")),
]
RANKS: Columns = [
    "form",
    ("tau-b, 95 % interval", _range("tau", ".2f")),
    ("same winner", lambda row: str(row["same_winner"])),
    ("winner changes", _figure("winner_changes", ".1%")),
]


def _advice(rows: Sequence[Row], least: float) -> list[str]:
    """Return the lines with the recommended form and the settings to copy."""
    chosen = next((row for row in rows if row["recommended"]), None)
    if chosen is None:
        return [f"recommended: none, because no cheaper variant has a kappa with a lower limit of at least {least:g}"]
    words = " ".join(f"--set {shlex.quote(setting)}" for setting in chosen["settings"])
    return [f"recommended: {chosen['form']}", f"  {words}"]


def calibration_lines(rows: Sequence[Row], least: float, page: Page) -> Iterator[str]:
    """Yield the lines of the forms and of the recommended form."""
    totals, per_sample = (cells(columns, rows) for columns in (TOTALS, PER_SAMPLE))
    yield from table(totals[0], totals[1:], page, names=1)
    yield ""
    yield from table(per_sample[0], per_sample[1:], page, names=1)
    size, drawn = rows[0]["population_size"], rows[0]["samples"]
    yield from wrapped(f"of all: of all {size:,} samples, by the {drawn:,} that were scored", page)
    yield from ("", *_advice(rows, least))


def report_of(rows: Sequence[Row], least: float) -> str:
    """Return the report as Markdown."""
    return document(
        "Calibration",
        f"{rows[0]['samples']:,} of {rows[0]['population_size']:,} samples, scored in each form.",
        markdown_table(TOTALS, rows),
        "Seconds are the sum over requests and local models.",
        markdown_table(PER_SAMPLE, rows),
        "Differences are the score of the variant minus the published score. Intervals resample whole queries. "
        "Limits of agreement, which contain 95 % of the differences:",
        markdown_table(LIMITS, rows),
        "Systems:",
        markdown_table(RANKS, rows),
        "\n".join(_advice(rows, least)),
    )
