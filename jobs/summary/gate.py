"""Decide if the means of a candidate are lower than the means of its base (methods, section 8). Report the verdicts.

A score that failed counts by its bounds, and a sample without a score in the candidate by 0 and 1. Lost samples can
therefore prevent a verdict, but they cannot cause a PASS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from untold.graph.views import one_line
from untold.jobs.run.terminal import Page, amount, table, wrapped
from untold.jobs.run_tables import RunTables, quoted_list
from untold.jobs.summary import ranking
from untold.jobs.summary.ranking import FEW, CompareError, number_text
from untold.jobs.summary.score_counts import (
    DECIMALS,
    FAILED_STATUSES,
    ScoreCounts,
    clusters_by,
    connect_scores,
    count_distinct,
    fetch_rows,
    rounded_row,
)
from untold.udfs.statistics.intervals import Interval, clustered_bca_interval
from untold.udfs.statistics.prediction_powered import Moments, samples_needed

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from untold.udfs.statistics.permutation import Clusters

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
# A smaller distance of a mean from the limit counts as 0
LEAST_DISTANCE = 1e-6
HEADS = ("metric", "system", "n", "base", "candidate", "diff.", "95 % interval", "failed", "lost")
# A pull request has one comment with this line, which later runs replace
MARK = "<!-- untold compare -->"
_PUNCTUATION = re.compile(r"[^\w .-]|_")


@dataclass(frozen=True)
class Drop:
    """The change of a mean from the base to the candidate: candidate less base, over the questions of the base.

    Attributes:
        system: the system of the candidate; `base_system` is the system that it is compared with.
        n: the questions of the base with a score or a failed score; `paired` of them have a score on both sides.
        base_mean, candidate_mean, difference: means over the paired questions, None without one.
        ci_low, ci_high: the lower limit if each failed or lost score is as bad as possible for the candidate, and the
            upper limit if each is as good as possible. None without an interval.
        failed, base_failed: the failed scores of both sides.
        lost: the scores of the base without a sample or a score of the candidate.
        needed: the number of questions that decides at the same mean and deviation; None if no number does.
    """

    metric: str
    system: str
    base_system: str
    verdict: str
    n: int = 0
    paired: int = 0
    base_mean: float | None = None
    candidate_mean: float | None = None
    difference: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    failed: int = 0
    lost: int = 0
    base_failed: int = 0
    needed: int | None = None


@dataclass(frozen=True)
class Gate:
    """The verdicts about a candidate and its base, one per metric and system. `max_drop` is the permitted drop."""

    base: str
    candidate: str
    max_drop: float
    drops: Sequence[Drop]

    @property
    def verdict(self) -> str:
        """Return FAIL if one mean fails, INCONCLUSIVE if one is undecided and none fails, and otherwise PASS."""
        found = {drop.verdict for drop in self.drops}
        return next((name for name in (FAIL, INCONCLUSIVE) if name in found), PASS)

    @property
    def content(self) -> dict[str, Any]:
        """Return the content of `--json`."""
        return {"verdict": self.verdict, **asdict(self)}

    def summary(self) -> str:
        """Return the verdict with its reason."""
        count = sum(drop.verdict == self.verdict for drop in self.drops)
        of = f"{count} of {amount(len(self.drops), 'mean')}"
        reasons = {
            PASS: f"no mean fell by {self.max_drop:g} or more",
            FAIL: f"{of} fell by more than {self.max_drop:g}",
            INCONCLUSIVE: f"{of} may have fallen by more than {self.max_drop:g}",
        }
        return f"{self.verdict}: {reasons[self.verdict]}"

    def problems(self, show: Callable[[str], str] = one_line) -> list[str]:
        """Return a line per verdict other than PASS. show: returns the text of a name."""
        undecided = [drop for drop in self.drops if drop.verdict != PASS]
        return [f"{show(drop.metric)} of {show(drop.system)}: {self.explain(drop)}" for drop in undecided]

    def explain(self, drop: Drop) -> str:
        """Return the verdict about one mean as a sentence: the change, its interval, the failures and the remedy."""
        change = "no question has a score on both sides"
        if drop.difference is not None:
            change = f"the mean changed by {drop.difference:+.3f} ({interval_of(drop)}, {amount(drop.n, 'question')})"
        return "; ".join([f"{drop.verdict}: {change}", *_failures(drop), *self._remedy(drop)])

    def _remedy(self, drop: Drop) -> Iterator[str]:
        if drop.verdict != INCONCLUSIVE:
            side = "above" if drop.verdict == PASS else "below"
            yield f"the interval is {side} -{self.max_drop:g}"
        elif drop.needed is not None:
            yield f"about {drop.needed:,} questions would decide"
        elif drop.failed or drop.lost or drop.base_failed:
            yield "not decided by more questions, but by the failed and lost scores: score these samples again"
        elif drop.n > 1:
            yield f"not decided by more questions, because the drop is exactly {self.max_drop:g}"
        else:
            yield "an interval needs two or more questions"


def compare_with_base(
    base: RunTables,
    candidate: RunTables,
    *,
    max_drop: float,
    metrics: Sequence[str] | None = None,
    seed: int = 0,
    cluster: bool = False,
    undefined: str = "mean",
    notify: Callable[[str], None] = lambda _: None,
) -> Gate:
    """Compare each metric and system of a candidate with its base, paired by question.

    If each run has one system, both systems are compared. Otherwise systems with the same name are compared.

    Args:
        max_drop: the permitted drop of a mean, from 0 to 1.
        metrics: names of metrics, by default all metrics of the base.
        cluster, undefined: as in `ranking.compare_scores`.
        notify: accepts a line about systems without a base, different judges, and repeated queries.

    Raises:
        CompareError: the runs cannot be compared.
    """
    runs = ranking.check_runs([base, candidate])
    wanted = _common_metrics(base, candidate, metrics)
    for line in ranking.judged_differently(runs):
        notify(line)
    scores = ScoreCounts(connect_scores(runs, None, wanted))
    scores.hash_questions()
    names, key = _matched_systems(scores.database, runs, notify)
    _pair(scores.database, "score_zero" if undefined == "zero" else "score", key)
    if not cluster and (repeated := fetch_rows(scores.database, _REPEATED)[0]["count"]):
        notify(f"{amount(repeated, 'query has', 'queries have')} several rows. --cluster resamples whole queries")
    counts = {(row["metric"], row["system"]): row for row in fetch_rows(scores.database, _COUNTS)}
    clusters = _clusters_of(scores.database, cluster=cluster)
    drops = []
    for metric in wanted:
        for own, shown in names.items():
            sides = [clusters.get((metric, own, side)) for side in ("low", "high")]
            drops.append(_drop(metric, shown, counts.get((metric, own), {}), sides, max_drop, seed))
    if not any(drop.n for drop in drops):
        raise CompareError(f"cannot compare, because all scores of {base.directory} are undefined")
    return Gate(base.directory, candidate.directory, max_drop, drops)


def _common_metrics(base: RunTables, candidate: RunTables, metrics: Sequence[str] | None) -> Sequence[str]:
    """Return the metrics to compare. Raises CompareError for a metric that one of the runs lacks."""
    known = {run.directory: set(run.manifest.get("metrics", ())) for run in (base, candidate)}
    wanted = ranking.wanted_metrics([base, candidate], metrics) if metrics else sorted(known[base.directory])
    for directory, own in known.items():
        if missing := [name for name in wanted if name not in own]:
            choice = f"choose others with --metric {','.join(sorted(set.intersection(*known.values()))) or 'LIST'}"
            raise CompareError(f"{directory} has no scores of metric {', '.join(missing)}. Score it, or {choice}")
    return wanted


def _matched_systems(
    database: DuckDBPyConnection, runs: Sequence[RunTables], notify: Callable[[str], None]
) -> tuple[dict[str, tuple[str, str]], str]:
    """Return the shown names of each two systems, the base first, by their key, and SQL of the key.

    A system of the base without a counterpart stays, because its samples are lost. Raises CompareError if the runs have
    no common system.
    """
    rows = fetch_rows(database, "select distinct output, coalesce(system, '') as system from judged order by all")
    first, second = ([row["system"] for row in rows if row["output"] == place] for place in (0, 1))
    folders = ranking.names_of(runs)
    if len(first) == len(second) == 1:
        return {"": (first[0] or folders[0], second[0] or folders[1])}, "''"
    if not set(first) & set(second):
        have = [", ".join(name or "none" for name in own) or "none" for own in (first, second)]
        raise CompareError(f"no common system: the base has {have[0]}, and the candidate has {have[1]}")
    if new := [name for name in second if name not in first]:
        notify(f"without a base, so not compared: {', '.join(name or folders[1] for name in new)}")
    return {name: (name or folders[0], name or folders[1]) for name in first}, "coalesce(system, '')"


def _pair(database: DuckDBPyConnection, score: str, key: str) -> None:
    """Create the table `drops`: one row per question of the base, with its difference and the bounds of the difference.

    If the candidate lacks a sample or a score of the base, its bounds are 0 and 1. Samples without contexts are paired
    by sample_id. `score` is the column of the score, and `key` is SQL of the name of a system.
    """
    failed = f"status in ({quoted_list(FAILED_STATUSES)})"
    database.execute(
        f"""create or replace temp table drops as
            with sides as (
                select output, metric, {key} as system, coalesce(question::varchar, sample_id) as question,
                    any_value(coalesce(query::varchar, sample_id)) as query, avg({score}) as score, count(*) as n,
                    sum(coalesce(score_low, {score}, 0)) as low, sum(coalesce(score_high, {score}, 1)) as high,
                    count(*) filter ({failed}) as failed
                from judged join questions using (output, sample_id) where {score} is not null or {failed}
                group by output, metric, {key}, coalesce(question::varchar, sample_id)),
            pairs as (
                select b.*, c.score as other, coalesce(c.low, 0) as other_low, coalesce(c.high, 0) as other_high,
                    coalesce(c.failed, 0) as other_failed, greatest(b.n - coalesce(c.n, 0), 0) as lost,
                    greatest(b.n, coalesce(c.n, 0)) as most
                from (from sides where output = 0) b left join (from sides where output = 1) c
                    using (metric, system, question))
            select metric, system, query, score, other, other - score as difference, lost, failed, other_failed,
                other_low / most - high / n as low, (other_high + lost) / most - low / n as high
            from pairs"""
    )


_COUNTS = """select metric, system, count(*) as n, count(difference) as paired,
        avg(score) filter (difference is not null) as base_mean,
        avg(other) filter (difference is not null) as candidate_mean, avg(difference) as difference,
        sum(lost)::bigint as lost, sum(other_failed)::bigint as failed, sum(failed)::bigint as base_failed
    from drops group by metric, system"""
_REPEATED = """select count(distinct query) as count from (
    select query from drops group by metric, system, query having count(*) > 1)"""


def _clusters_of(database: DuckDBPyConnection, *, cluster: bool) -> dict[tuple[str, ...], Clusters]:
    """Return the frequencies of the bounds `low` and `high` of the differences, by metric, system and bound."""
    own = "sum(value) as sum, count(*) as size" if cluster else "value as sum, 1 as size"
    keys = ("metric", "system", "bound")
    rows = f"""select metric, system, bound, {own} from (unpivot drops on low, high into name bound value value)
        {"group by metric, system, bound, query" if cluster else ""}"""
    return clusters_by(keys, count_distinct(database, "drops", ", ".join((*keys, "size")), ["sum"], rows))


def _drop(
    metric: str,
    systems: tuple[str, str],
    row: Mapping[str, Any],
    sides: Sequence[Clusters | None],
    max_drop: float,
    seed: int,
) -> Drop:
    """Return the verdict from the counts of a metric and its systems, and from the clusters of both bounds."""
    (base_system, system), (low, high) = systems, sides
    if low is None or high is None:
        return Drop(metric, system, base_system, INCONCLUSIVE)
    limits = _interval(low, seed).low, _interval(high, seed).high
    verdict = verdict_of(*limits, max_drop)
    figures = {name: value for name, value in rounded_row(row).items() if name not in ("metric", "system")}
    needed = questions_needed(low, high, max_drop) if verdict == INCONCLUSIVE else None
    return Drop(metric, system, base_system, verdict, ci_low=limits[0], ci_high=limits[1], needed=needed, **figures)


def verdict_of(low: float | None, high: float | None, max_drop: float) -> str:
    """Return PASS if an interval is above -max_drop, FAIL if it is below, and INCONCLUSIVE for any other interval.

    >>> [verdict_of(*interval, 0.02) for interval in [(-0.01, 0.1), (-0.1, -0.03), (-0.1, 0.1), (None, None)]]
    ['PASS', 'FAIL', 'INCONCLUSIVE', 'INCONCLUSIVE']
    """
    if low is not None and low > -max_drop:
        return PASS
    return FAIL if high is not None and high < -max_drop else INCONCLUSIVE


def _interval(clusters: Clusters, seed: int) -> Interval:
    """Return the mean of clusters with its 95 % interval, which has no width if two or more clusters have one value."""
    found = clustered_bca_interval(*clusters, seed=seed)
    sums, sizes, counts = (np.asarray(part, np.float64) for part in clusters)
    if found.low is None and found.mean is not None and counts.sum() > 1 and np.ptp(sums / sizes) < LEAST_DISTANCE:
        found = Interval(found.mean, found.mean, found.mean)
    limits = (None if one is None else round(one, DECIMALS) for one in (found.low, found.high))
    return Interval(found.mean, *limits)


def questions_needed(low: Clusters, high: Clusters, max_drop: float) -> int | None:
    """Return the number of questions with an interval on one side of -max_drop, or None if no number has one.

    low, high: the bounds of the differences. More questions keep the mean, the deviation and the share of failures.
    """
    numbers = []
    for clusters, side in ((low, 1), (high, -1)):
        sums, sizes, counts = (np.asarray(part, np.float64) for part in clusters)
        n, groups = float(sizes @ counts), float(counts.sum())
        mean = float(sums @ counts) / n
        distance = side * (mean + max_drop)
        if groups > 1 and distance > LEAST_DISTANCE:
            squares = float(((sums - sizes * mean) ** 2) @ counts)
            moments = Moments(mean, 0.0, squares * groups / (groups - 1) / n**2, 0.0, 0.0)
            # The interval at hand does not decide, although a normal interval of its size may
            numbers.append(max(int(n) + 1, samples_needed(moments, int(n), 0, distance) or 0))
    return min(numbers, default=None)


def interval_of(drop: Drop) -> str:
    """Return the interval of a difference as text."""
    if drop.ci_low is None or drop.ci_high is None:
        return "no interval"
    few = f" (n < {FEW})" if drop.n < FEW else ""
    return f"{drop.ci_low:+.3f} .. {drop.ci_high:+.3f}{few}"


def _failures(drop: Drop) -> Iterator[str]:
    """Yield the numbers of failed and lost scores in words."""
    counts = {
        ("failed score", "failed scores"): drop.failed,
        ("sample without a score of the candidate", "samples without a score of the candidate"): drop.lost,
        ("failed score of the base", "failed scores of the base"): drop.base_failed,
    }
    if found := [amount(count, *texts) for texts, count in counts.items() if count]:
        yield f"by bounds: {', '.join(found)}"


def _cells(drop: Drop) -> list[str]:
    """Return the texts of the columns `HEADS`."""
    name = drop.system if drop.system == drop.base_system else f"{drop.system} (base: {drop.base_system})"
    return [
        *(drop.metric, name, f"{drop.n:,}", number_text(drop.base_mean), number_text(drop.candidate_mean)),
        *(number_text(drop.difference, "+.3f"), interval_of(drop)),
        *(f"{drop.failed + drop.base_failed:,}", f"{drop.lost:,}"),
    ]


def gate_lines(gate: Gate, page: Page) -> Iterator[str]:
    """Yield the verdicts as lines: a table, the explanation of each verdict but PASS, and the verdict of all."""
    rows = [[drop.verdict, *_cells(drop)] for drop in gate.drops]
    yield from table(("verdict", *HEADS), rows, page, names=3)
    for line in gate.problems():
        yield from ("", *wrapped(line, page, indent=2))
    yield from ("", gate.summary())


def gate_markdown(gate: Gate) -> str:
    """Return the verdicts as Markdown for a comment on a pull request. A name is never markup."""
    heads = ("verdict", *HEADS)
    rows = [
        [drop.verdict, *(_code(cell) if place < 2 else cell for place, cell in enumerate(_cells(drop)))]
        for drop in gate.drops
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
    problems = [f"- {line}" for line in gate.problems(_code)]
    parts = [MARK, f"### Untold: {gate.summary()}", "\n".join(lines), "\n".join(problems)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _code(text: str) -> str:
    """Return a text as HTML code for a cell of Markdown: one line, with all punctuation as entities.

    >>> _code("a|`b`")
    '<code>a&#124;&#96;b&#96;</code>'
    """
    return f"<code>{_PUNCTUATION.sub(lambda found: f'&#{ord(found[0])};', one_line(text))}</code>"


def gate_junit(gate: Gate) -> bytes:
    """Return the verdicts as JUnit's XML, one case per metric and system.

    A FAIL is a failure. An INCONCLUSIVE with failed or lost scores is an error, because the scoring is incomplete. Any
    other INCONCLUSIVE is skipped, because the samples show neither a pass nor a failure.
    """
    suites = ElementTree.Element("testsuites", name="untold compare")
    suite = ElementTree.SubElement(suites, "testsuite", name="untold compare")
    kinds = []
    for drop in gate.drops:
        named = {"classname": f"untold.{one_line(drop.metric)}", "name": one_line(drop.system)}
        case, text = ElementTree.SubElement(suite, "testcase", named), gate.explain(drop)
        incomplete = drop.failed or drop.lost or drop.base_failed
        kind = {PASS: None, FAIL: "failure", INCONCLUSIVE: "error" if incomplete else "skipped"}[drop.verdict]
        kinds.append(kind)
        if kind is None:
            ElementTree.SubElement(case, "system-out").text = text
        else:
            found = ElementTree.SubElement(case, kind, message=text)
            # A skipped case has no type in JUnit
            found.attrib |= {} if kind == "skipped" else {"type": drop.verdict}
    names = {"failure": "failures", "error": "errors", "skipped": "skipped"}
    counts = {name: str(kinds.count(kind)) for kind, name in names.items()}
    for one in (suites, suite):
        one.attrib |= {"tests": str(len(kinds)), **counts}
    ElementTree.indent(suites)
    content: bytes = ElementTree.tostring(suites, "utf-8", xml_declaration=True)
    return content
