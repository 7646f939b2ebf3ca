"""Cheaper forms of a metric beside the published one, on the same samples: what each costs, and what it errs.

A form is a set of settings. Each is a run of its own in a folder of the output, and all share a store.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from untold.graph.plotting import STYLE, save_figure
from untold.graph.views import FORMATS, one_line
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import calls_for, hours_at, runs_in_tasks
from untold.jobs.inference.stage.engines import open_held
from untold.jobs.inference.store.compaction import VERSION, list_folder
from untold.jobs.inference.store.completion_references import list_uses
from untold.jobs.metrics.request import ScoreRequest
from untold.jobs.run.outcome import EXIT_CODES, FAILED_TOO_MANY, Ending
from untold.jobs.run.output import Output, shown
from untold.jobs.run.session import task_slots
from untold.jobs.run.terminal import Display, Page, table, wrapped
from untold.jobs.run_tables import RunTables, connect_tables, open_run
from untold.jobs.score import score
from untold.jobs.settings.model import Settings, prices_for
from untold.jobs.study.report import markdown_table
from untold.jobs.summary.score_counts import SCORE
from untold.jobs.tables import CALIBRATION
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.usage import Usage
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
    """A set of settings, as `KEY=VALUE`, and what scores the samples under it."""

    name: str
    settings: tuple[str, ...]
    request: ScoreRequest


@dataclass(frozen=True)
class CalibrateRequest:
    """What `untold calibrate` is asked: the forms of one metric, the published one first."""

    forms: Sequence[Variant]
    output: str
    # A form is recommended where the lower end of its kappa is no lower
    kappa: float = 0.95
    overwrite: bool = False


@dataclass(frozen=True)
class Calibrated:
    """How a start ended: rows of the table `calibration`; none where a form is not scored to its end."""

    exit_code: int
    rows: Sequence[Row] = ()
    message: str | None = None


def calibrate(request: CalibrateRequest, display: Display) -> Calibrated:
    """Scores the samples under each form, and writes the table `calibration`, its picture and a report.

    Started again, it asks what is missing. A form that ends early ends the start with its exit code.
    """
    first = request.forms[0].request
    settings, metric = first.settings, first.metrics[0]
    given = {"path": first.input, "draw": None if first.draw is None else vars(first.draw), "limit": first.limit}
    with Output(request.output, (TABLE,), request.overwrite, inputs=[first.input], store=first.store) as output:
        output.claim({"dataset": "calibrate", "input": json.dumps(given), "metrics": [metric]})
        output.begin(shown(settings), input=given, forms={form.name: list(form.settings) for form in request.forms})
        with open_held(settings, display, first.small) as held:
            for form in request.forms:
                display.note(f"form {form.name}: {' '.join(form.settings) or 'the given settings'}")
                ended = score(form.request, display, held)
                if ended.exit_code not in (0, FAILED_TOO_MANY):
                    status = ended.manifest["status"]
                    output.end(Ending(status if status in EXIT_CODES else "broken", ended.message))
                    return Calibrated(ended.exit_code, message=ended.message)
            cores = task_slots(held.spark)
        rows = measure(request, cores)
        output.write_rows(TABLE, rows, CALIBRATION)
        StoragePath(f"{request.output}/{REPORT}").write_bytes(report_of(rows, request.kappa).encode())
        _draw(rows, request)
        output.end(Ending())
    return Calibrated(0, rows)


def measure(request: CalibrateRequest, cores: int) -> list[Row]:
    """The rows of the table `calibration`, a form each, from the runs of all forms. cores: that run local models."""
    runs = [open_run(form.request.output) for form in request.forms]
    seed = request.forms[0].request.settings.statistics.seed
    rows = [
        _costs(form, run, cores) | _agreement([runs[0], run], form.request.metrics[0], seed)
        for form, run in zip(request.forms, runs, strict=True)
    ]
    chosen = _recommend(rows, request.kappa)
    return [{**row, "recommended": row is chosen} for row in rows]


def _recommend(rows: Sequence[Row], least: float) -> Row | None:
    """The cheapest form that agrees well enough, if it is cheaper than the published one."""
    by = "cost" if all(row["cost"] is not None for row in rows) else "tokens"
    good = [row for row in rows[1:] if row["kappa_low"] is not None and row["kappa_low"] >= least]
    cheapest = min(good, key=lambda row: (_price(row, by), row["requests"]), default=None)
    return cheapest if cheapest is not None and _price(cheapest, by) < _price(rows[0], by) else None


def _price(row: Row, by: str) -> float:
    return float(row["cost"] if by == "cost" else row["prompt_tokens"] + row["completion_tokens"])


def _costs(form: Variant, run: RunTables, cores: int) -> Row:
    """What a form needs, whether this run or another one of the store asked it; local models need seconds alone."""
    drawn = run.manifest["counts"]["samples"]
    whole = ((run.manifest.get("input") or {}).get("draw") or {}).get("of") or drawn
    used = [
        _used(run, form.request.store, bind_stage(name, form.request.settings), digest, form.request.settings)
        for name, digest in run.manifest["identity"]["stages"].items()
    ]
    costs = [one.usage.cost for one in used if one.usage.cost is not None]
    sums = {
        "requests": sum(one.requests for one in used),
        "calls": sum(one.usage.calls for one in used),
        "prompt_tokens": sum(one.usage.prompt_tokens for one in used),
        "completion_tokens": sum(one.usage.completion_tokens for one in used),
        "cost": sum(costs) if costs else None,
        "seconds": sum(one.usage.seconds for one in used),
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
    """What a stage's requests of a run used, whoever asked them, and how many these are."""

    stage: Stage
    usage: Usage
    requests: int
    in_tasks: bool

    def hours(self, settings: Settings, times: float, cores: int) -> float | None:
        """Hours of so many times as much: at the limits, or within tasks on so many cores."""
        if self.in_tasks:
            return self.usage.seconds * times / cores / SECONDS_AN_HOUR
        return hours_at(
            settings, self.stage, *(times * one for one in (self.usage.calls, self.usage.tokens, self.usage.seconds))
        )


def _used(run: RunTables, store: str, stage: Stage, digest: str, settings: Settings) -> _Used:
    """What a stage of a run used; several requests of one call have its seconds together."""
    noted = [
        use for use in list_uses(store) if use.run == run.manifest["run"] and use.stage.startswith(f"{stage.name}-")
    ]
    # A schema that is refused gives a stage another digest in the middle of a run
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
    """prompt_tokens, completion_tokens, attempts and seconds of the stored rows of these requests.

    A request that was asked again has a row an answer, each with its own tokens, and attempts and seconds up to it.
    """
    each = {"prompt_tokens": "sum", "completion_tokens": "sum", "attempts": "max", "seconds": "max"}
    keys, parts = ["request_id", "run_id"], []
    for name in list_folder(str(folder)).live():
        with (folder / name).open() as file:
            rows = pq.read_table(file, columns=[*keys, *each])
        parts.append(rows.filter(pc.is_in(rows["request_id"], wanted)))
    if not parts:
        return dict.fromkeys(each, 0.0)
    by_request = pa.concat_tables(parts).group_by(keys).aggregate(list(each.items()))
    return {name: pc.sum(by_request[f"{name}_{how}"]).as_py() or 0.0 for name, how in each.items()}


def _agreement(runs: Sequence[RunTables], metric: str, seed: int) -> Row:
    """How far a form agrees with the published one: verdicts, scores, and the ranking of systems."""
    database = connect_tables(runs, ("samples", "scores", "relations", "statements", "claims"), numbered=True)
    database.execute(
        f"""create view asked as select sample_id, dense_rank() over (order by query) - 1 as query
                from samples where output = 0;
            create view scored as select output, sample_id, system, {SCORE} as score from scores
                where metric = '{metric}'"""
    )
    kappa, verdicts = _kappa(database, metric, seed)
    pairs = database.sql(
        """select query, coalesce(a.system, '') as system, a.score as first, b.score as second
            from scored a join scored b using (sample_id) join asked using (sample_id)
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
        **_ends("kappa", kappa),
        "n": difference.size,
        **_ends("difference", mean),
        **_ends("loa_low", lower, "loa_low_ci"),
        **_ends("loa_high", upper, "loa_high_ci"),
        **_ranking(pairs, place, len(queries), seed),
    }


def _ends(name: str, interval: Interval, limits: str = "") -> Row:
    """Return a figure and the limits of its interval as columns. `limits` is the prefix of the limits (`name`)."""
    prefix = limits or name
    return {name: interval.mean, f"{prefix}_low": interval.low, f"{prefix}_high": interval.high}


def _kappa(database: DuckDBPyConnection, metric: str, seed: int) -> tuple[Interval, int]:
    """Kappa of the verdicts of both forms, and how many the published one has.

    Verdicts are relations, or of a metric without these what statements and claims of one text are: covered or not,
    supported or not. What a form lacks agrees with nothing; relations that are implied are those of a path of
    entailments.
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
            from verdicts a join asked using (sample_id)
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
    return {**_ends("tau", found.tau), "same_winner": found.same_winner, "winner_changes": found.changes}


def _draw(rows: Sequence[Row], request: CalibrateRequest) -> None:
    """The picture: kappa with its interval against the tokens of a form."""
    for form in FORMATS:
        with style.context(["default", STYLE]):
            figure = Figure(figsize=(8, 5), layout="constrained")
            FigureCanvasAgg(figure)
            axes = figure.add_subplot()
            for row in rows:
                if row["kappa"] is not None:
                    tokens = row["prompt_tokens"] + row["completion_tokens"]
                    low, high = ((row[f"kappa_{end}"] or row["kappa"]) for end in ("low", "high"))
                    axes.errorbar(
                        tokens, row["kappa"], [[row["kappa"] - low], [high - row["kappa"]]], marker="o", capsize=3
                    )
                    axes.annotate(
                        one_line(row["form"]), (tokens, row["kappa"]), xytext=(5, 5), textcoords="offset points"
                    )
            axes.axhline(request.kappa, linestyle="--", linewidth=1)
            axes.set(xlabel="tokens", ylabel="kappa (95 % interval)", title="Cost and agreement of the variants")
            (StoragePath(request.output) / f"{TABLE}.{form}").write_bytes(save_figure(figure, form))


HEADS = ("form", "requests", "tokens", "cost", "seconds", "kappa", "95 % interval", "difference", "tau-b")
# Of one sample, and of all that the input has
EACH = (
    "form",
    "requests a sample",
    "tokens a sample",
    "cost a sample",
    "seconds a sample",
    "cost of all",
    "hours of all",
)


def _cells(row: Row) -> list[str]:
    tokens = row["prompt_tokens"] + row["completion_tokens"]
    return [
        *(row["form"], f"{row['requests']:,}", f"{tokens:,}", _figure(row["cost"], ",.4f"), f"{row['seconds']:,.1f}"),
        *(_figure(row["kappa"]), _between(row, "kappa")),
        *(_figure(row["difference"], "+.3f"), _figure(row["tau"], ".2f")),
    ]


def _cells_of_each(row: Row) -> list[str]:
    tokens = row["sample_prompt_tokens"] + row["sample_completion_tokens"]
    return [
        *(row["form"], f"{row['sample_requests']:,.1f}", f"{tokens:,.0f}", _figure(row["sample_cost"], ",.6f")),
        *(f"{row['sample_seconds']:,.2f}", _figure(row["projected_cost"], ",.2f"), f"{row['projected_hours']:,.2f}"),
    ]


def _figure(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)


def _between(row: Row, name: str, form: str = ".3f") -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "-" if low is None else f"{low:{form}} .. {high:{form}}"


def _advice(rows: Sequence[Row], least: float) -> list[str]:
    """What is recommended, and the settings to copy."""
    chosen = next((row for row in rows if row["recommended"]), None)
    if chosen is None:
        return [f"recommended: none, because no cheaper variant has a kappa with a lower limit of at least {least:g}"]
    words = " ".join(f"--set {shlex.quote(setting)}" for setting in chosen["settings"])
    return [f"recommended: {chosen['form']}", f"  {words}"]


def calibration_lines(rows: Sequence[Row], least: float, page: Page) -> Iterator[str]:
    """The forms as lines, and which is recommended."""
    yield from table(HEADS, [_cells(row) for row in rows], page, names=1)
    yield ""
    yield from table(EACH, [_cells_of_each(row) for row in rows], page, names=1)
    size, drawn = rows[0]["population_size"], rows[0]["samples"]
    yield from wrapped(f"of all: of all {size:,} samples, by the {drawn:,} that were scored", page)
    yield from ("", *_advice(rows, least))


def report_of(rows: Sequence[Row], least: float) -> str:
    """The report as Markdown."""
    heads = ("form", "lower limit", "95 % interval", "upper limit", "95 % interval")
    limits = [
        [
            *(row["form"], _figure(row["loa_low"], "+.3f"), _between(row, "loa_low_ci", "+.3f")),
            *(_figure(row["loa_high"], "+.3f"), _between(row, "loa_high_ci", "+.3f")),
        ]
        for row in rows
    ]
    ranks = [
        [row["form"], _between(row, "tau", ".2f"), str(row["same_winner"]), _figure(row["winner_changes"], ".1%")]
        for row in rows
    ]
    parts = [
        f"# Calibration\n\n{rows[0]['samples']:,} of {rows[0]['population_size']:,} samples, scored in each form.\n",
        markdown_table(HEADS, [_cells(row) for row in rows]),
        "\nSeconds are the sum over requests and local models.\n",
        markdown_table(EACH, [_cells_of_each(row) for row in rows]),
        "\nDifferences are the score of the variant minus the published score. Intervals resample whole queries. "
        "Limits of agreement, which contain 95 % of the differences:\n",
        markdown_table(heads, limits),
        "\nSystems:\n",
        markdown_table(("form", "tau-b, 95 % interval", "same winner", "winner changes"), ranks),
        "",
        "\n".join(_advice(rows, least)),
    ]
    return "\n".join(parts) + "\n"
