"""Compute scores over a range of beta or k without calls: `untold sweep` and `untold curve`. No engine starts."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from untold.graph.plotting import draw_picture, new_figure
from untold.graph.views import FORMATS, one_line
from untold.jobs.metrics.views import count
from untold.jobs.run.output import Output
from untold.jobs.run.terminal import page_of, print_lines, table
from untold.jobs.run_tables import RunTables, connect_tables, open_run
from untold.jobs.summary.ranking import interval_text
from untold.jobs.summary.score_counts import count_distinct
from untold.jobs.tables import BETA_SWEEP, RECALL_CURVE
from untold.udfs.errors import UserError, shorten
from untold.udfs.facts.aspect_coverage import COVERAGE, FACT, f_score
from untold.udfs.facts.importance_measures import CLAIMS, f1_at_claims, median_of_claims, recall_at_claims
from untold.udfs.facts.rag_measures import TRUTH_CLAIMS
from untold.udfs.statistics.intervals import bca_interval
from untold.udfs.storage import StoragePath

METRIC, TABLE = "icat", "beta_sweep"
BETAS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CURVE_METRIC, CURVE_TABLE = "importance", "recall_curve"
# The metric with contexts, and the ranking of its curve
RAG, OF_CONTEXTS = "rag", "contexts"
# The metrics with verdicts on claims, the first one first, and the rankings of R@K and F1@K
CLAIM_METRICS = (CURVE_METRIC, RAG, METRIC)
OF_CLAIMS = (CLAIMS_RECALL, CLAIMS_F1) = ("claims", "claims_f1")
# The rankings in the order of the panels, by the name of a measure at k. Claim recall is the recall of contexts.
RANKINGS = {
    "recall": "combined",
    "recall_relevance": "relevance",
    "recall_salience": "salience",
    "claim_recall": OF_CONTEXTS,
}
_AT_K = re.compile(rf"({'|'.join(RANKINGS)})@(\d+)")
OF_FACTS = [name for name in RANKINGS.values() if name != OF_CONTEXTS]
PANELS = (*RANKINGS.values(), *OF_CLAIMS)
# One line per colour: the picture shows the first systems, and the table shows all
COLOURS = (*(f"C{number}" for number in range(10)), "black", "gold")
MOST_LINES = len(COLOURS)
NAME_LENGTH = 40
Rows = Sequence[Mapping[str, Any]]
# The number of samples with each (S_fact, S_coverage)
Pairs = Counter[tuple[float, float]]
# System (None for all samples), ranking, k
Point = tuple[str | None, str, int]

_PAIRS = f"""select system, fact, coverage from scores join (
        select sample_id, max(value) filter (measure = '{FACT}') as fact,
            max(value) filter (measure = '{COVERAGE}') as coverage
        from measures where metric = '{METRIC}' group by sample_id) using (sample_id)
    where metric = '{METRIC}' and fact is not null and coverage is not null"""
# The claim recall at k is the share of the ground-truth claims that the first k contexts of a sample, or all its
# contexts, state. It is undefined if a label of these contexts is missing, or if there are no claims.
_RECALLS = f"""select system, measure, value from measures join scores using (sample_id, metric)
    where metric = '{CURVE_METRIC}' and regexp_full_match(measure, '{_AT_K.pattern}') and value is not null
    union all
    select system, 'claim_recall@' || k as measure, sum(new_claims) / claims as value
    from (select sample_id, new_claims, max(len(ground_truth)) over (partition by sample_id) as claims,
            row_number() over (partition by sample_id order by rank) as place from contexts_used)
        join (select unnest(range(1, coalesce(max(rank), 1) + 1)) as k from contexts_used) on place <= k
        join scores using (sample_id)
    where metric = '{RAG}' and claims > 0
    group by sample_id, system, k, claims having count(*) = count(new_claims)"""
# A sample without a ground truth, and a sample whose claims lack a verdict, are left out
_VERDICTS = f"""select system, metric, found.value as claims, coalesce(judged.supported, 0) as supported
    from measures as found join scores using (sample_id, metric)
        left join (select sample_id, metric, count(verdict) as verdicts,
                (count(*) filter (verdict = 'supported'))::double as supported
            from claims group by sample_id, metric) as judged using (sample_id, metric)
    where metric in {CLAIM_METRICS} and found.measure = '{CLAIMS}' and found.value = coalesce(judged.verdicts, 0)
        and (sample_id, metric) not in (
            select (sample_id, metric) from measures where measure = '{TRUTH_CLAIMS}' and value is null)"""


class UnmeasuredError(UserError):
    """The run lacks the needed measures. The message names the command that computes them."""


def sweep(output: str, betas: Sequence[float] = BETAS, seed: int = 0) -> list[dict[str, Any]]:
    """Write the table `beta_sweep` and two pictures into the output of a run, and return the rows of the table.

    The run has the metric icat. The rows of all samples (system null) come first, and then the rows of each system by
    name, with ascending betas. Means and intervals include only samples with a defined ICAT (methods, section 11).
    Raises UnmeasuredError for a run without the metric, and UnreadableRunError for a folder without a run that has
    ended.
    """
    run = open_run(output)
    pairs: dict[str | None, Pairs] = defaultdict(Counter)
    for row in _count(run, METRIC, "system", ["fact", "coverage"], _PAIRS):
        for system in {None, row["system"]}:
            pairs[system][row["fact"], row["coverage"]] += row["count"]
    _check_measured(pairs, run, METRIC)
    systems = sorted(pairs, key=lambda system: (system is not None, system or ""))
    rows = [row for system in systems for row in sweep_rows(system, pairs[system], betas, seed)]
    _write(output, TABLE, rows, BETA_SWEEP, draw_sweep)
    return rows


def curve(output: str, seed: int = 0, ks: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Write the table `recall_curve` and two pictures into the output of a run, and return the rows of the table.

    The run has the metric importance, rag or icat. `ks` are the values of K of R@K and F1@K of claims, by default the
    median number of claims of a response. The rows of all samples (system null) come first, and then the rows of each
    system by name. Each has the rankings combined, relevance, salience, contexts, claims (R@K) and claims_f1 (F1@K)
    with ascending k. Means and intervals include only samples with a defined value (methods, sections 12 and 16).
    Raises UnmeasuredError for a run without the metrics, and UnreadableRunError for a folder without a run that has
    ended.
    """
    run = open_run(output)
    values: dict[Point, Counter[float]] = defaultdict(Counter)
    for row in _count(run, CURVE_METRIC, "system, measure", ["value"], _RECALLS):
        name, _, k = row["measure"].partition("@")
        for system in {None, row["system"]}:
            values[system, RANKINGS[name], int(k)][row["value"]] += row["count"]
    _add_claims(values, run, ks)
    scored = {row["metric"] for row in run.manifest.get("summary", ())}
    _check_measured(values, run, RAG if RAG in scored and CURVE_METRIC not in scored else CURVE_METRIC)
    rows = []
    for point in sorted(values, key=_place):
        interval = bca_interval(list(values[point]), list(values[point].values()), seed=seed)
        named = dict(zip(("system", "ranking", "k"), point, strict=True))
        rows.append({**named, **interval.columns("mean"), "n": values[point].total()})
    _write(output, CURVE_TABLE, rows, RECALL_CURVE, draw_curve)
    return rows


def _add_claims(values: dict[Point, Counter[float]], run: RunTables, ks: Sequence[int]) -> None:
    """Add R@K and F1@K of the claims of the first of `CLAIM_METRICS` that has verdicts."""
    rows = list(_count(run, CURVE_METRIC, "system, metric", ["claims", "supported"], _VERDICTS))
    metric = next(
        (name for name in CLAIM_METRICS if any(row["metric"] == name and row["claims"] for row in rows)), None
    )
    own = [row for row in rows if row["metric"] == metric]
    sizes: Counter[int] = Counter()
    for row in own:
        sizes[int(row["claims"])] += row["count"]
    for k in sorted(set(ks)) or ([median_of_claims(sizes)] if own else []):
        for row in own:
            claims, supported = int(row["claims"]), int(row["supported"])
            for system in {None, row["system"]}:
                values[system, CLAIMS_RECALL, k][recall_at_claims(supported, k)] += row["count"]
                values[system, CLAIMS_F1, k][f1_at_claims(supported, claims, k)] += row["count"]


def _count(run: RunTables, metric: str, keys: str, values: Sequence[str], query: str) -> Iterator[dict[str, Any]]:
    """Yield the distinct rows of a query with their count (`count_distinct`).

    Raises UnmeasuredError for a run without measures or scores.
    """
    for name in ("measures", "scores"):
        if name not in run.tables:
            raise UnmeasuredError(f"{run.directory} has no table {name}. Score it with --metric {metric} first")
    database = connect_tables([run], ("measures", "scores", "contexts_used", "claims"))
    for batch in count_distinct(database, "measures", keys, values, query).to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _check_measured(found: Mapping[Any, Any], run: RunTables, metric: str) -> None:
    """Raise UnmeasuredError without measures. The message depends on whether the run has the metric."""
    if found:
        return
    whole = next((row for row in run.manifest.get("summary", ()) if row["metric"] == metric), None)
    if whole is None:
        raise UnmeasuredError(f"{run.directory} has no measures of {metric}. Score it with --metric {metric} first")
    raise UnmeasuredError(
        f"{run.directory}: none of {whole['n']:,} samples has the measures of {metric} ({whole['failed']:,} failed, "
        f"{whole['undefined']:,} undefined). The table failures has the reasons. Retry with untold score --retry-failed"
    )


def sweep_rows(system: str | None, pairs: Pairs, betas: Iterable[float], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a system: the mean ICAT of its samples for each beta, with the BCa interval."""
    for beta in sorted(set(betas)):
        scores = [f_score(fact, coverage, beta) or 0.0 for fact, coverage in pairs]
        interval = bca_interval(scores, list(pairs.values()), seed=seed)
        yield {"system": system, "beta": beta, **interval.columns("mean"), "n": pairs.total()}


def _place(point: Point) -> tuple[bool, str, int, int]:
    """Return the place of a point in the table."""
    system, ranking, k = point
    return system is not None, system or "", PANELS.index(ranking), k


def _write(
    output: str, name: str, rows: list[dict[str, Any]], schema: pa.Schema, draw: Callable[[Rows], Figure]
) -> None:
    """Write a table and its pictures into the output of a run."""
    with Output(output, (name,)) as place:
        place.write_rows(name, rows, schema)
        for form in FORMATS:
            _picture(output, name, form).write_bytes(draw_picture(form, partial(draw, rows)))


def _picture(output: str, name: str, form: str) -> StoragePath:
    return StoragePath(output) / "pictures" / f"{name}.{form}"


def draw_sweep(rows: Rows) -> Figure:
    """Return the figure of a sweep: the means of each system over beta, with their intervals."""
    figure = new_figure(9, 5)
    title = "ICAT by the weight of coverage"
    labels = {"xlabel": "beta", "ylabel": "ICAT (mean, 95 % interval)"}
    _draw_lines(figure, {_titled(title, rows): rows}, rows, "beta", labels)
    (axes,) = figure.axes
    axes.set_xscale("log", base=2)
    # The labels of Matplotlib are formulas, which the style turns off
    axes.xaxis.set_major_formatter(lambda beta, _: f"{beta:g}")
    return figure


def draw_curve(rows: Rows) -> Figure:
    """Return the figure of a curve: the means of each system over k, with one panel per ranking."""
    figure = new_figure(12, 4.5)
    shown = {row["ranking"] for row in rows}
    of_facts = [] if shown.isdisjoint(OF_FACTS) else OF_FACTS
    rankings = [*of_facts, *(name for name in (OF_CONTEXTS, *OF_CLAIMS) if name in shown)]
    panels = {ranking: [row for row in rows if row["ranking"] == ranking] for ranking in rankings}
    _draw_lines(figure, panels, rows, "k", {"xlabel": "k"})
    for axes in figure.axes:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.axes[0].set_ylabel("recall at k (mean, 95 % interval)")
    of_others = "Claim recall of the first k contexts" if OF_CONTEXTS in shown else "Supported claims at k"
    what = "Recall of the k most important facts" if of_facts else of_others
    figure.suptitle(_titled(what, rows))
    return figure


def _draw_lines(figure: Figure, panels: Mapping[str, Rows], rows: Rows, over: str, labels: Mapping[str, str]) -> None:
    """Draw one panel per title, and in each the means of the first systems over a column with their intervals."""
    systems = _systems(rows)
    across = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, own) in zip(across, panels.items(), strict=True):
        for system, colour in zip(systems, COLOURS, strict=False):
            line = [row for row in own if row["system"] == system]
            places = [row[over] for row in line]
            axes.plot(places, [row["mean"] for row in line], marker="o", color=colour)
            ends = ([row["mean"] if row[end] is None else row[end] for row in line] for end in ("ci_low", "ci_high"))
            axes.fill_between(places, *ends, color=colour, alpha=0.15)
        axes.set(ylim=(0, 1), title=title, **labels)
    lines = [Line2D([], [], marker="o", color=colour) for colour, _ in zip(COLOURS, systems, strict=False)]
    legend = figure.legend(lines, ["" for _ in lines], loc="outside right upper", frameon=False)
    # Matplotlib ignores labels with an underscore at the start
    for text, system in zip(legend.get_texts(), systems, strict=False):
        text.set_text("all" if system is None else shorten(one_line(system), NAME_LENGTH))


def _titled(title: str, rows: Rows) -> str:
    """Return a title with the number of lines, if there are more than the picture shows."""
    lines = len(_systems(rows))
    return f"{title} (the first {MOST_LINES} of {lines:,} lines)" if lines > MOST_LINES else title


def _systems(rows: Rows) -> list[str | None]:
    return list(dict.fromkeys(row["system"] for row in rows))


def show_sweep(rows: Rows, output: str) -> None:
    """Print the table of a sweep, and the paths of the table and of its pictures."""
    _show(rows, output, TABLE, {"beta": "g"})


def show_curve(rows: Rows, output: str) -> None:
    """Print the table of a curve, the paths, and the sufficient number of contexts."""
    _show(rows, output, CURVE_TABLE, {"ranking": "", "k": "d"})
    of_contexts = [row for row in rows if row["ranking"] == OF_CONTEXTS and row["system"] is None]
    if of_contexts:
        best = max(row["mean"] for row in of_contexts)
        enough = min(row["k"] for row in of_contexts if row["mean"] == best)
        print_lines([f"claim recall is highest, {best:.3f}, from {count(enough, 'context')} on"])


def _show(rows: Rows, output: str, name: str, over: Mapping[str, str]) -> None:
    """Print a table and the paths. `over` has the formats of the columns between the system and n."""
    cells = [
        [
            row["system"] or "all",
            *(f"{row[column]:{form}}" for column, form in over.items()),
            *(f"{row['n']:,}", f"{row['mean']:.3f}", interval_text(row)),
        ]
        for row in rows
    ]
    heads = ["system", *over, "n", "mean", "95 % interval"]
    names = 1 + sum(not form for form in over.values())
    pictures = ", ".join(str(_picture(output, name, form)) for form in FORMATS)
    places = f"The table is {output}/{name}. The pictures are {pictures}"
    print_lines([*table(heads, cells, page_of(sys.stdout), names=names, texts=1), places])
