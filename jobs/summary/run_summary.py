"""What a run prints at its end: its summary, what failed, the lowest scores, what it took, where to look further."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from untold.jobs.asking.endpoint import DEMO_LABEL
from untold.jobs.results import Run, batches_of, lowest_scores
from untold.jobs.run.manifest import by_stage, seconds_of
from untold.jobs.run.progress import clock
from untold.jobs.run.terminal import Page, amount, table, visible, width_of, wrapped
from untold.jobs.summary.diagnoses import describe_faults, describe_means
from untold.jobs.summary.leaning import conflict_lines, leaning_lines
from untold.jobs.summary.rows import interval_text, mean_text
from untold.jobs.tables import RESULT_TABLES
from untold.udfs.redaction import redact

WORST_SHOWN = 3
# Of an interval that is drawn as text: its columns, and its left end, line, right end and mean
DRAWN_COLUMNS = 41
MARKS, PLAIN_MARKS = "├─┤●", "|-|o"
OTHER_FORMS = ("lenient", "unparsable", "refused")
NOT_ASKED = "budget"  # the status, in the tables, of a sample that the run ended before
# As `aggregate.Group`: a metric, and a system or None
Unasked = Mapping[tuple[str, str | None], int]
Row = Mapping[str, Any]


def end_of_run(run: Run, summary: Sequence[Row], counts: Mapping[str, Any], page: Page, *, embedded: bool) -> list[str]:
    """The lines at the end of a run.

    summary: rows of the table `summary`; counts: as the manifest has them. Scores of the embedded model are labelled as
    those of a demo.
    """
    unasked = count_unasked(run.dataset("scores")) if counts["statuses"].get(NOT_ASKED) else {}
    rows = run.manifest["rows"]
    failures = count_failures(run.dataset("failures")) if rows["failures"] else []
    worst = lowest_scores(run.dataset("scores"), WORST_SHOWN).to_pylist()
    diagnoses = [*describe_means(run), *describe_faults(run)]
    leaning = run.table("leaning").to_pylist() if rows.get("leaning") else []
    measures = run.table("measures_summary").to_pylist() if rows.get("measures_summary") else []
    conflicts = conflict_lines(measures, page)
    label = f" ({DEMO_LABEL}: not a judge to rely on)" if embedded else ""
    parts = [
        [f"summary{label}", *_summary(summary, unasked, page), *wrapped(_statuses(counts["statuses"]), page)],
        ["failures", *failures_table(failures, page)] if failures else [],
        _readings(run.manifest["starts"][-1].get("usage", []), page),
        ["lowest scores", *_worst(worst, page)] if worst else [],
        ["diagnoses", *(line for one in diagnoses for line in wrapped(one, page))] if diagnoses else [],
        ["audits of filters", *_audits(run.manifest.get("audits", []), page)] if run.manifest.get("audits") else [],
        ["conflicts of contexts", *conflicts] if conflicts else [],
        ["sources followed in conflicts", *leaning_lines(leaning, page)] if leaning else [],
        [
            *wrapped(_took(run.manifest), page),
            *_leaks(run.manifest),
            *_cut_prompts(run.manifest),
            *_places(run, worst, page),
        ],
    ]
    return [line for part in parts if part for line in (*part, "")][:-1]


def _summary(rows: Sequence[Row], unasked: Unasked, page: Page) -> list[str]:
    """The table `summary`; samples that were not asked have a column of their own where there are some."""
    waiting = ["not asked"] if unasked else []
    heads = ["metric", "system", "n", "scored", "undefined", "failed", *waiting, "mean", "95 % interval"]
    lines = []
    for row in rows:
        missing = unasked.get((row["metric"], row["system"]), 0)
        numbers = [row["n"], row["scored"], row["undefined"], row["failed"] - missing, *([missing] if unasked else [])]
        system = "all" if row["level"] == "overall" else row["system"]
        figures = [*(f"{number:,}" for number in numbers), mean_text(row), interval_text(row)]
        lines.append([row["metric"], system, *figures])
    plain = table(heads, lines, page, names=2, texts=1)
    if page.width is None:
        return plain
    drawings = [[*line, drawn_interval(row, page)] for line, row in zip(lines, rows, strict=True)]
    drawn = table([*heads, f"0{'1':>{DRAWN_COLUMNS - 1}}"], drawings, Page(None, page.encoding), names=2, texts=2)
    # Only where nothing has to be cut for it
    return drawn if max(map(width_of, drawn)) <= page.width else plain


def drawn_interval(row: Row, page: Page) -> str:
    """The mean of a row with its interval as a line of text from 0 to 1; empty without a mean.

    >>> drawn_interval({"mean": 0.5, "ci_low": 0.25, "ci_high": 0.75}, Page())
    '          ├─────────●─────────┤'
    """
    if row["mean"] is None:
        return ""
    marks = MARKS if visible(MARKS, page.encoding) == MARKS else PLAIN_MARKS
    ends = [float(row["mean"] if row[end] is None else row[end]) for end in ("ci_low", "mean", "ci_high")]
    low, mean, high = (round(end * (DRAWN_COLUMNS - 1)) for end in ends)
    # The mean over an end that it meets
    line = {low: marks[0], high: marks[2], mean: marks[3]}
    return " " * low + "".join(line.get(place, marks[1]) for place in range(low, high + 1))


def _statuses(statuses: Mapping[str, int]) -> str:
    named = (f"{count:,} {'not asked' if name == NOT_ASKED else name}" for name, count in statuses.items())
    return f"statuses: {', '.join(named)}"


def failures_table(failures: Sequence[Row], page: Page) -> list[str]:
    """Failures by stage and kind, each with an example; rows as `count_failures` gives them."""
    names = ("stage", "error_type", "sample_id", "error")
    rows = [[*(redact(row[name] or "-") for name in names), f"{row['count']:,}"] for row in failures]
    return table(["stage", "kind", "example", "message", "count"], rows, page, names=4)


def _readings(usage: Sequence[Row], page: Page) -> list[str]:
    """How completions were read, of stages whose judge does not always keep to the form."""
    loose = [row for row in by_stage(usage) if any(row.get(name) for name in (*OTHER_FORMS, "asked_again"))]
    heads = ["stage", "schema", "form", "other form", "unparsable", "refused", "asked again"]
    names = ("schema", "form", *OTHER_FORMS, "asked_again")
    rows = [[row["stage"], *(f"{row.get(name) or 0:,}" for name in names)] for row in loose]
    return ["how completions were read", *table(heads, rows, page, names=1)] if rows else []


def _worst(worst: Sequence[Row], page: Page) -> list[str]:
    rows = [[row["sample_id"], row["metric"], f"{row['score']:.3f}"] for row in worst]
    return table(["sample_id", "metric", "score"], rows, page, names=2)


def _audits(audits: Sequence[Row], page: Page) -> list[str]:
    """How much of what filters took a model judges otherwise."""
    counted = [{**row, "n": row["defined"]} for row in audits]
    rows = [[row["metric"], row["measure"], f"{row['n']:,}", mean_text(row), interval_text(row)] for row in counted]
    return table(["metric", "measure", "audited", "share", "95 % interval"], rows, page, names=2)


def _took(manifest: Mapping[str, Any]) -> str:
    """What all starts took."""
    totals, starts = manifest["totals"], manifest["starts"]
    seconds = sum(map(seconds_of, starts))
    calls, *tokens = (totals[name] or 0 for name in ("calls", "prompt_tokens", "completion_tokens"))
    cost = "unknown (no price is set)" if totals["cost"] is None else f"{totals['cost']:,.4f}"
    over = f", over {len(starts):,} starts" if len(starts) > 1 else ""
    used = f"cost: {cost}, {amount(calls, 'call')}, {amount(sum(tokens), 'token')}"
    return f"{used}; time: {clock(seconds)}{over}"


def _leaks(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What was dropped of the answers, because it came from the examples of prompts."""
    found = {row["stage"]: row.get("leaked_example") or 0 for row in by_stage(manifest["starts"][-1].get("usage", []))}
    stages = ", ".join(f"{stage} {count:,}" for stage, count in found.items() if count)
    if stages:
        yield f"items dropped as repeats of the prompts' examples: {stages}"


def _cut_prompts(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Warn of prompts that the endpoint cut: their completions are about a part of the text."""
    rows = by_stage(manifest["starts"][-1].get("usage", []))
    found = {row["stage"]: (row.get("cut_prompts") or 0, row.get("calls") or 0) for row in rows}
    stages = ", ".join(f"{stage} {cut:,} of {calls:,}" for stage, (cut, calls) in found.items() if cut)
    if stages:
        yield (
            f"WARNING: the endpoint reports too few prompt tokens for the text that was sent ({stages}): its context "
            "window cuts prompts. Raise it (num_ctx of Ollama, --max-model-len of vLLM) and score with another store"
        )


def _places(run: Run, worst: Sequence[Row], page: Page) -> Iterator[str]:
    """Where the tables are, which of them hold rows, and the command that shows the worst sample."""
    yield redact(f"results: {run.directory}")
    rows = run.manifest["rows"]
    held = (name for name in RESULT_TABLES if rows.get(name))
    yield from wrapped(f"tables: {', '.join(held)}", page)
    # Others cannot be pasted, and may do something to a terminal
    named = [row for row in worst if row["sample_id"].isprintable()]
    if named:
        sample = f"--sample {shlex.quote(named[0]['sample_id'])} --metric {named[0]['metric']}"
        yield redact(f"next: untold show {shlex.quote(run.directory)} {sample}")
    yield redact(f"report: untold report {shlex.quote(run.directory)}")


def count_unasked(scores: ds.Dataset) -> Unasked:
    """How many samples were not asked, by metric and system, and by metric alone as those of system None."""
    found: Counter[tuple[str, str | None]] = Counter()
    for batch in batches_of(scores, ["metric", "system", "status"], ds.field("status") == NOT_ASKED):
        counted = pa.Table.from_batches([batch]).group_by(["metric", "system"]).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            for group in {(row["metric"], None), (row["metric"], row["system"])}:
                found[group] += row["count_all"]
    return found


def count_failures(failures: ds.Dataset) -> list[dict[str, Any]]:
    """How many requests failed by stage and kind, most first: stage, error_type, count, and sample_id, error of one."""
    keys = ["stage", "error_type"]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for batch in batches_of(failures, [*keys, "sample_id", "error"]):
        groups = pa.Table.from_batches([batch]).group_by(keys, use_threads=False)
        for row in groups.aggregate([([], "count_all"), ("sample_id", "first"), ("error", "first")]).to_pylist():
            first = {"sample_id": row["sample_id_first"], "error": row["error_first"], "count": 0}
            known = found.setdefault((row["stage"], row["error_type"]), {name: row[name] for name in keys} | first)
            known["count"] += row["count_all"]
    return sorted(found.values(), key=lambda row: (-row["count"], row["stage"], row["error_type"]))
