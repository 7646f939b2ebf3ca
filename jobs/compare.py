"""Rank systems with intervals and paired tests, and estimate means from a judged part (methods, sections 7 and 8)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from typing import TYPE_CHECKING, Any

from untold.jobs.run.terminal import Page, amount, table, wrapped
from untold.jobs.summary.estimating import EstimateError, EstimateRequest, Group, read_groups
from untold.jobs.summary.ranking import (
    CHANCE,
    UNDEFINED,
    add_adjusted,
    interval_text,
    is_unlikely,
    limits_text,
    number_text,
)
from untold.jobs.summary.score_counts import Rows, rounded_row
from untold.jobs.tables import ESTIMATES
from untold.udfs.statistics.prediction_powered import LEAST_JUDGED, samples_needed

if TYPE_CHECKING:
    from untold.jobs.inference.stage.start import Outcome
    from untold.jobs.inputs.sampling import Draw
    from untold.jobs.metrics.scoring import ScoreRequest
    from untold.jobs.run.terminal import Display

PAIR_COLUMNS = {"metric": "metric", "first": "first", "second": "second", "n": "n", "difference": "diff."}
ESTIMATE_COLUMNS = {
    "metric": "metric",
    "proxy": "proxy",
    "system": "first",
    "compared_system": "second",
    "judged": "judged",
    "mean": "diff.",
}


def comparison_lines(
    found: Mapping[str, Rows], page: Page, *, every: bool = False, clustered: bool = False, undefined: str = "mean"
) -> Iterator[str]:
    """Yield the ranking as lines, then the pairs that differ by more than chance, or all."""
    by = UNDEFINED[undefined]
    heads = ["metric", "system", "n", "scored", "answered", by.replace("_", ", "), "95 % interval"]
    ranked = [
        [
            *(row["metric"], row["system"], f"{row['n']:,}", f"{row['scored']:,}"),
            *(number_text(row["answer_rate"], ".2f"), number_text(row[by], ".3f")),
            interval_text(
                row if by == "mean" else row | {"scored": row["scored"] + row["undefined"]}, clustered=clustered
            ),
        ]
        for row in found["systems"]
    ]
    yield from table(heads, ranked, page, names=2, texts=1)
    names = [row["system"] for row in found["systems"]]
    yield from _differences(found["comparisons"], PAIR_COLUMNS, page, every=every, among=names)


def _differences(
    pairs: Rows, columns: Mapping[str, str], page: Page, *, every: bool, among: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the pairs that differ by more than chance as lines, or all pairs, and the number of hidden pairs.

    columns: heads by column: names, a count, the difference; among: the names to tell apart.
    """
    *labels, count, difference = columns
    shown = [
        [
            *(*(row[name] for name in labels), f"{row[count]:,}"),
            *(number_text(row[difference], "+.3f"), limits_text(row, "ci", "+.3f")),
            *(number_text(row[name], ".4f") for name in ("p_value", "p_adjusted")),
        ]
        for row in pairs
        if every or is_unlikely(row)
    ]
    if shown:
        heads = [*columns.values(), "95 % interval", "p", "p adj."]
        yield from ("", *table(heads, shown, page, names=len(labels), among=among))
    if hidden := len(pairs) - len(shown):
        number = amount(hidden, "pair does not differ", "pairs do not differ")
        rest = f"--all or --json shows {'it' if hidden == 1 else 'them'}"
        yield from ("", *wrapped(f"{number} by more than chance (p adj. < {CHANCE}); {rest}", page))


TABLE = "estimates"
# A proxy is useless if its weight is smaller, or if it replaces a smaller share of the judged samples
LEAST_WEIGHT, LEAST_GAIN = 0.05, 1.05
SHOWN_NAMES = 3
NEEDED_COLUMNS = ("metric", "proxy", "level", "system", "n", "judged")


def estimate(request: EstimateRequest, notify: Callable[[str], None] = lambda _: None) -> dict[str, Rows]:
    """Estimate the mean of each metric over all samples, of each system, and the differences of two systems.

    Returns rows of the table `estimates`: `estimates` of one system or of all, and `differences` of two systems.
    notify: accepts a line about samples without a score and about a useless proxy. Raises EstimateError and
    CompareError for runs and labels that do not match.
    """
    if request.proxy is None and request.labels is None:
        raise EstimateError("give --proxy, cheap scores of all samples, or --labels, or both")
    groups = read_groups(request, notify)
    for line in _useless(groups):
        notify(line)
    differences: Rows = []
    for _, own in groupby(groups, key=lambda group: group.pair):
        systems = [group for group in own if group.system is not None]
        ranked = sorted(systems, key=lambda group: -group.moments.mean)
        differences += [_row(one.less(other)) for one, other in combinations(ranked, 2)]
    return {
        "estimates": [_row(group) for group in groups],
        "differences": add_adjusted(differences, "metric", "proxy"),
    }


def needed(request: EstimateRequest, half_width: float, notify: Callable[[str], None] = lambda _: None) -> Rows:
    """Return the numbers of samples to judge for intervals of this half width, by the variances of a pilot.

    metric, proxy, level, system, n, judged, half_width, needed: null if all n are too few.
    """
    return [
        {
            **{name: value for name, value in _row(group).items() if name in NEEDED_COLUMNS},
            "half_width": half_width,
            "needed": samples_needed(group.moments, group.judged, group.rest, half_width),
        }
        for group in read_groups(request, notify)
    ]


# The maximum number of samples of the pilot, and its share of the budget
PILOT, PILOT_SHARE = 20, 0.25
# The part may cost more than its plan
PLANNED_SHARE = 0.9


def score_part(judged: ScoreRequest, display: Display, *, proxy: ScoreRequest, budget: float | None) -> Outcome:
    """Score all samples with the proxy, and a random part with the language model. A run that ends early ends the job.

    `budget` is the largest cost of the part, in the currency of the prices. None uses the draw of `judged`. A pilot
    before both runs measures the cost of a sample. It is a smaller draw of the same seed: its samples are in the part,
    and their completions in its store. A second start continues the draws of the first one. Raises EstimateError
    without prices, and for a budget that pays for too few samples.
    """
    from untold.jobs.inputs.sampling import Draw
    from untold.jobs.score import score

    if budget is None:
        outcome = score(proxy, display)
        return score(judged, display) if outcome.is_complete else outcome
    settings = judged.settings.model_copy(update={"completion_store": judged.store})
    judged = replace(judged, settings=settings)
    pilot = replace(judged, output=f"{judged.output}-pilot")
    draw = Draw(PILOT, settings.statistics.seed, judged.draw.stratify if judged.draw else ())
    drawn, spent = _earlier(pilot)
    drawn = drawn or _affordable(pilot, draw, budget * PILOT_SHARE, 0, display)
    outcome = score(_limited(pilot, drawn, budget - spent), display)
    outcome = score(proxy, display) if outcome.is_complete else outcome
    if not outcome.is_complete:
        return outcome
    samples = outcome.manifest["counts"]["samples"]
    part, spent = _earlier(judged)
    left = max(0.0, budget - spent - _earlier(replace(pilot, overwrite=False))[1])
    part = part or _affordable(judged, replace(draw, rows=samples), left * PLANNED_SHARE, drawn.rows, display)
    display.note(f"the language model scores {min(part.rows, samples):,} of {samples:,} samples")
    return score(_limited(judged, part, left), display)


def _earlier(request: ScoreRequest) -> tuple[Draw | None, float]:
    """Return the draw and the cost of the earlier starts in the output of a request, None and 0 without one."""
    from untold.jobs.inputs.sampling import read_draw
    from untold.jobs.run.manifest import read_manifest, sum_starts

    manifest = None if request.overwrite else read_manifest(request.output)
    if manifest is None:
        return None, 0.0
    return read_draw(manifest["input"].get("draw")), float(sum_starts(manifest, "cost") or 0)


def _limited(request: ScoreRequest, draw: Draw, cost: float) -> ScoreRequest:
    """Return the request with a draw and a limit of its cost."""
    budget = request.settings.budget.model_copy(update={"max_cost": max(0.0, cost)})
    return replace(request, draw=draw, settings=request.settings.model_copy(update={"budget": budget}))


def _affordable(request: ScoreRequest, draw: Draw, budget: float, scored: int, display: Display) -> Draw:
    """Return the draw with fewer rows, if needed, so that its expected cost is at most the budget.

    The store has the completions of `scored` rows. Each draw is planned, because a part of the samples shares fewer
    requests than all.
    """
    from untold.jobs.plan import plan

    while (cost := _expected_cost(plan(replace(request, draw=draw), display))) > budget:
        rows = min(draw.rows - 1, scored + int((draw.rows - scored) * budget / cost))
        if rows < (least := max(LEAST_JUDGED, scored)):
            raise EstimateError(f"--judge-budget pays for fewer than {least} samples. Give a larger budget")
        draw = replace(draw, rows=rows)
    return draw


def _expected_cost(rows: Rows) -> float:
    """Return the expected cost of a plan. Raises EstimateError without prices."""
    costs = [row["expected_cost"] for row in rows if row["expected_cost"] is not None]
    if not costs:
        raise EstimateError(
            "--judge-budget: the language model has no price. Set llm.price_per_million_prompt_tokens and "
            "llm.price_per_million_completion_tokens, or give --random N in place of --judge-budget"
        )
    return math.fsum(costs)


def write_estimates(
    request: EstimateRequest, found: Mapping[str, Rows], output: str, *, overwrite: bool = False
) -> None:
    """Write the table `estimates` into a new output."""
    from untold.jobs.run.outcome import Ending
    from untold.jobs.run.output import Output

    runs = {"run": request.run, "proxy": request.everything}
    given: dict[str, str | None] = {name: run.directory for name, run in runs.items()}
    given |= {"labels": request.labels, "undefined": request.undefined}
    of = [run.manifest.get("identity", {}) for run in runs.values()]
    identity = {
        "dataset": "estimate",
        "input": json.dumps([of, given["labels"], given["undefined"]], sort_keys=True),
        "metrics": sorted({row["metric"] for row in found["estimates"]}),
    }
    with Output(output, (TABLE,), overwrite, inputs=[run.directory for run in runs.values()]) as place:
        place.claim(identity)
        place.begin({}, input=given)
        place.write_rows(TABLE, [*found["estimates"], *found["differences"]], ESTIMATES)
        place.end(Ending())


def estimate_lines(found: Mapping[str, Rows], page: Page, *, every: bool = False) -> Iterator[str]:
    """Yield the estimates as lines, then the differences beyond chance, or all."""
    interval = "95 % interval"
    heads = ("metric", "proxy", "system", "n", "judged", "mean", interval, "judged alone", interval, "worth")
    cells = [
        [
            *(row["metric"], row["proxy"], row["system"] or "all", f"{row['n']:,}", f"{row['judged']:,}"),
            *(number_text(row["mean"]), limits_text(row, "ci")),
            *(number_text(row["plain_mean"]), limits_text(row, "plain")),
            number_text(row["effective_sample_size"], ",.0f"),
        ]
        for row in found["estimates"]
    ]
    yield from table(heads, cells, page, names=3)
    yield from wrapped("worth: judged samples whose plain mean would have an interval as narrow", page)
    yield from _differences(found["differences"], ESTIMATE_COLUMNS, page, every=every)


def needed_lines(rows: Rows, page: Page) -> Iterator[str]:
    """Yield the numbers of samples to judge as lines."""
    cells = [
        [
            *(row["metric"], row["proxy"] or "-", row["system"] or "all", f"{row['n']:,}", f"{row['judged']:,}"),
            "not enough" if row["needed"] is None else f"{row['needed']:,}",
        ]
        for row in rows
    ]
    yield from table(("metric", "proxy", "system", "n", "judged", "needed"), cells, page, names=3)
    yield from wrapped(f"needed: judged samples for a 95 % interval of +-{rows[0]['half_width']:g}", page)


def _row(group: Group) -> dict[str, Any]:
    """Return a row of the table `estimates` without an adjusted p-value."""
    moments, weight = group.moments, group.moments.weight
    plain, found = moments.interval(0), moments.interval(weight)
    variance = moments.variance_at(weight)
    row = {
        **dict(zip(("metric", "proxy"), group.pair, strict=True)),
        "level": "difference" if group.compared_system else "system" if group.system else "overall",
        "system": group.system,
        "compared_system": group.compared_system,
        "n": group.judged + group.rest,
        "judged": group.judged,
        "undefined": group.undefined,
        "failed": group.failed,
        **found.columns("mean"),
        **plain.columns("plain_mean", "plain"),
        "weight": weight,
        "effective_sample_size": round(group.judged * moments.variance / variance, 6) if variance else None,
        "p_value": moments.p_value() if group.compared_system else None,
    }
    return rounded_row(row)


def _useless(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a line per proxy that adds nothing to some means."""
    for (metric, proxy), own in groupby(groups, key=lambda group: group.pair):
        poor = [group for group in own if proxy is not None and _adds_nothing(group)]
        if poor:
            names = [group.system or "all samples" for group in poor]
            more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
            why = f"its weight is {poor[0].moments.weight:.2f}" if poor[0].rest else "every sample is judged"
            yield (
                f"{metric}: the proxy {proxy} adds nothing to the mean of {', '.join(names[:SHOWN_NAMES])}{more} "
                f"({why}). The mean of only the judged samples is as good"
            )


def _adds_nothing(group: Group) -> bool:
    """Return True if the proxy has a small weight, or narrows no interval."""
    moments, weight = group.moments, group.moments.weight
    return moments.variance > 0 and (
        weight < LEAST_WEIGHT or moments.variance < LEAST_GAIN * moments.variance_at(weight)
    )
