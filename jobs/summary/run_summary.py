"""Print the summary of a run, and explain its failures and retrieval errors in words."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow.dataset as ds

from untold.graph.views import CONFLICT_MEASURES, COVERAGE, NUMBER, ONE_SIDED, one_line
from untold.jobs.inference.stage.call_settings import DEMO_LABEL
from untold.jobs.run.manifest import by_stage, seconds_of
from untold.jobs.run.terminal import Page, amount, clock, table, visible, width_of, wrapped
from untold.jobs.run_tables import RunTables, connect_tables, first_rows, lowest_scores, quoted, quoted_list
from untold.jobs.summary.ranking import interval_text, number_text
from untold.jobs.summary.score_counts import fetch_rows, group_by
from untold.jobs.tables import RESULT_TABLES
from untold.udfs.facts.rag_measures import FAULTS, GROUPS
from untold.udfs.redaction import redact
from untold.udfs.retrieval.local_models import JUDGE

Row = Mapping[str, Any]


def dead_stages(usage: Iterable[Row]) -> list[Row]:
    """Return the rows of `usage` of stages with failed requests and without a new or stored completion."""
    return [row for row in by_stage(usage) if row["failed"] and not row["answered"] and not row["reused"]]


def most_frequent_errors(run: RunTables, stages: Iterable[str]) -> list[dict[str, Any]]:
    """Return the most frequent error of each stage: stage, error_type, error, count of its requests.

    Of equally frequent errors the last one by its text counts.
    """
    order = "count desc, error_type desc nulls last, error desc nulls last"
    return fetch_rows(
        connect_tables([run], ["failures"]),
        f"""select * from (select stage, error_type, error, count(distinct request_id) as count from failures
                where stage in ({quoted_list(stages)}) group by all)
            qualify row_number() over (partition by stage order by {order}) = 1""",
    )


def explain_dead_stages(dead: Iterable[Row], errors: Iterable[Row]) -> list[str]:
    """Return a line per stage without a completion: its failed requests and the most frequent error.

    dead: rows of `dead_stages`; errors: rows of `most_frequent_errors`.

    >>> error = {"stage": "match_one", "error_type": "http_500", "error": "HTTP 500", "count": 3}
    >>> explain_dead_stages([{"stage": "match_one", "failed": 4, "requests": 4}], [error])
    ['every request of match_one failed (4 of 4). The most frequent error (3 times): http_500: HTTP 500']
    >>> explain_dead_stages([{"stage": "match_one", "failed": 1, "requests": 4}], [])
    ['no request of match_one succeeded (1 of 4 failed)']
    """
    frequent = {row["stage"]: row for row in errors}
    lines = []
    for row in dead:
        stage, count = row["stage"], f"{row['failed']:,} of {row['requests']:,}"
        said = f"every request of {stage} failed ({count})"
        if row["failed"] < row["requests"]:
            said = f"no request of {stage} succeeded ({count} failed)"
        if error := frequent.get(stage):
            times = "once" if error["count"] == 1 else f"{error['count']:,} times"
            said += f". The most frequent error ({times}): {_error(error['error_type'], error['error'])}"
        lines.append(said)
    return lines


def describe_failures(failures: Iterable[Row]) -> list[str]:
    """Return a line per stage and kind of error, sorted: the number of errors and the most frequent text.

    >>> row = {"stage": "match_one", "error_type": "timeout", "error": "no answer within 60 s"}
    >>> describe_failures([row, row])
    ['match_one (2): timeout: no answer within 60 s']
    """
    found: dict[tuple[str, str], Counter[str]] = {}
    for row in failures:
        found.setdefault((str(row["stage"]), str(row["error_type"])), Counter())[row.get("error") or ""] += 1
    return [
        f"{one_line(stage)} ({texts.total():,}): {_error(kind, max(sorted(texts), key=texts.__getitem__))}"
        for (stage, kind), texts in sorted(found.items())
    ]


def _error(kind: str | None, text: str | None) -> str:
    said = one_line(redact(text or ""))
    return f"{one_line(str(kind))}: {said}" if said else one_line(str(kind))


RAG = "rag"
# Systems with a line, and rows of a table
SHOWN = 10


def describe_means(run: RunTables) -> list[str]:
    """Return the means of the measures of rag in per cent, by the groups of RAGChecker.

    A mean with 0 for undefined values follows if there are some.
    """
    rows = _measures(run)
    known = {group: [rows[name] for name in names if name in rows] for group, names in GROUPS.items()}
    return [f"{group}: {', '.join(map(_mean, own))}" for group, own in known.items() if own]


def _measures(run: RunTables) -> dict[str, Mapping[str, Any]]:
    """Return the summaries of the measures of rag over all samples, by name. A run without rag has none."""
    summary = run.table("measures_summary").to_pylist() if "measures_summary" in run.tables else []
    return {row["measure"]: row for row in summary if row["metric"] == RAG and row["level"] == "overall"}


def _mean(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return f"{row['measure']} -"
    zero = f" ({row['mean_zero']:.1%} with 0 where undefined)" if row["mean_zero"] != row["mean"] else ""
    return f"{row['measure']} {row['mean']:.1%}{zero}"


def describe_faults(run: RunTables) -> list[str]:
    """Return a sentence per fault of the samples of a run, the most frequent fault first.

    It names the half of the pipeline, the measure, the number of samples with the fault, and the worst sample. If there
    are several systems, a line per system follows.
    """
    # SQL over the tables needs tens of megabytes in the driver
    if not _measures(run) or not {"measures", "scores"} <= set(run.tables):
        return []
    counted = _count_faults(run)
    named = (row | {"system": row["system"] or "without a system"} for row in counted if not row["overall"])
    lines = []
    for name, rows in sorted(group_by(named, "system").items()):
        faults = [(*FAULTS[row["measure"]][:2], row) for row in rows]
        told = [f"{half} ({measure}) {row['samples']:,} of {row['defined']:,}" for half, measure, row in faults]
        lines.append(f"{redact(name)}: {', '.join(told)}")
    more = [f"{len(lines) - SHOWN:,} more systems in the table measures_summary"] if len(lines) > SHOWN else []
    found = [_sentence(run, row) for row in counted if row["overall"]]
    return [*found, *lines[:SHOWN], *more] if found and len(lines) > 1 else found


def _count_faults(run: RunTables) -> list[dict[str, Any]]:
    """Count the samples with each fault, the most frequent first: measure, system, overall, samples, defined."""
    found = fetch_rows(
        connect_tables([run], ["measures", "scores"]),
        f"""select measure, system, grouping(system) = 1 as overall, count_if(value > 0) as samples,
                count(value) as defined
            from measures join scores using (sample_id, metric)
            where metric = {quoted(RAG)} and measure in ({quoted_list(FAULTS)})
            group by grouping sets ((measure), (measure, system)) having count_if(value > 0) > 0""",
    )
    places = list(FAULTS)
    return sorted(found, key=lambda row: (-row["samples"], places.index(row["measure"])))


def _sentence(run: RunTables, row: Mapping[str, Any]) -> str:
    half, measure, what = FAULTS[row["measure"]]
    own = (ds.field("metric") == RAG) & (ds.field("measure") == row["measure"]) & (ds.field("value") > 0)
    order = [("value", "descending"), ("sample_id", "ascending")]
    columns = ["value", "sample_id", "metric", "measure"]
    (worst,) = first_rows(run.dataset("measures"), 1, columns, order, own).to_pylist()
    most = f"The worst is {redact(worst['sample_id'])} ({worst['value']:.1%} of its claims)"
    have = f"{row['samples']:,} of {amount(row['defined'], 'sample')}"
    return f"{half} ({measure}): {have} have claims {what}. {most}"


WORST_SHOWN = 3
UNSHOWN_CONFLICTS = "not shown: the judge of the package calls many different facts contradictory (docs/judge.md)"
# An interval as text: its columns, and its left end, line, right end and mean
DRAWN_COLUMNS = 41
MARKS, PLAIN_MARKS = "├─┤●", "|-|o"
OTHER_FORMS = ("parsed_lenient", "unparsable", "refused")
NOT_ASKED = "budget"  # the status of a sample without requests, because the run ended before
# By metric and system, which is None for all samples
Unasked = Mapping[tuple[str, str | None], int]


def end_of_run(
    run: RunTables,
    summary: Sequence[Row],
    counts: Mapping[str, Any],
    page: Page,
    *,
    embedded: bool,
    brief: bool = False,
) -> list[str]:
    """Return the lines at the end of a run.

    summary: rows of the table `summary`; counts: the counts of the manifest; embedded: True labels the scores as those
    of a demo; brief: True leaves out the lowest scores and the conflicts.
    """
    unasked = count_unasked(run) if counts["statuses"].get(NOT_ASKED) else {}
    rows = run.manifest["rows"]
    failures = count_failures(run) if rows["failures"] else []
    worst = lowest_scores(run.dataset("scores"), WORST_SHOWN).to_pylist()
    heads = ["sample_id", "metric", "score"]
    lowest = [[row["sample_id"], row["metric"], f"{row['score']:.3f}"] for row in worst]
    diagnoses = [*describe_means(run), *describe_faults(run)]
    preference = run.table("source_preference").to_pylist() if rows.get("source_preference") else []
    measures = run.table("measures_summary").to_pylist() if rows.get("measures_summary") else []
    conflicts = conflict_lines(measures, page)
    if {row.get("model") for row in run.manifest["starts"][-1].get("usage", [])} == {JUDGE}:
        conflicts, preference = conflicts and [*wrapped(UNSHOWN_CONFLICTS, page)], []
    statuses = (f"{n:,} {'not asked' if name == NOT_ASKED else name}" for name, n in counts["statuses"].items())
    label = f" ({DEMO_LABEL}: not a judge to rely on)" if embedded else ""
    parts = [
        [f"summary{label}", *_summary(summary, unasked, page), *wrapped(f"statuses: {', '.join(statuses)}", page)],
        ["failures", *failures_table(failures, page)] if failures else [],
        _readings(run.manifest["starts"][-1].get("usage", []), page),
        ["lowest scores", *table(heads, lowest, page, names=2)] if worst and not brief else [],
        ["diagnoses", *(line for one in diagnoses for line in wrapped(one, page))] if diagnoses else [],
        ["audits of filters", *_audits(run.manifest.get("audits", []), page)] if run.manifest.get("audits") else [],
        ["conflicts of contexts", *conflicts] if conflicts and not brief else [],
        ["sources followed in conflicts", *leaning_lines(preference, page)] if preference and not brief else [],
        [*wrapped(_took(run.manifest), page), *_prompt_lines(run.manifest), *_places(run, worst, page)],
    ]
    return [line for part in parts if part for line in (*part, "")][:-1]


def _summary(rows: Sequence[Row], unasked: Unasked, page: Page) -> list[str]:
    """Return the table `summary`, with a column for samples that were not asked if there are some."""
    waiting = ["not asked"] if unasked else []
    heads = ["metric", "system", "n", "scored", "undefined", "failed", *waiting, "mean", "95 % interval"]
    lines = []
    for row in rows:
        missing = unasked.get((row["metric"], row["system"]), 0)
        numbers = [row["n"], row["scored"], row["undefined"], row["failed"] - missing, *([missing] if unasked else [])]
        system = "all" if row["level"] == "overall" else row["system"]
        figures = [*(f"{number:,}" for number in numbers), number_text(row["mean"]), interval_text(row)]
        lines.append([row["metric"], system, *figures])
    plain = table(heads, lines, page, names=2, texts=1)
    if page.width is None:
        return plain
    drawings = [[*line, drawn_interval(row, page)] for line, row in zip(lines, rows, strict=True)]
    drawn = table([*heads, f"0{'1':>{DRAWN_COLUMNS - 1}}"], drawings, Page(None, page.encoding), names=2, texts=2)
    # Only if it fits the page
    return drawn if max(map(width_of, drawn)) <= page.width else plain


def drawn_interval(row: Row, page: Page) -> str:
    """Return the mean of a row with its interval as a line of text from 0 to 1, or an empty text without a mean.

    >>> drawn_interval({"mean": 0.5, "ci_low": 0.25, "ci_high": 0.75}, Page())
    '          ├─────────●─────────┤'
    """
    if row["mean"] is None:
        return ""
    marks = MARKS if visible(MARKS, page.encoding) == MARKS else PLAIN_MARKS
    ends = [float(row["mean"] if row[end] is None else row[end]) for end in ("ci_low", "mean", "ci_high")]
    low, mean, high = (round(end * (DRAWN_COLUMNS - 1)) for end in ends)
    # The mean replaces an end at the same position
    line = {low: marks[0], high: marks[2], mean: marks[3]}
    return " " * low + "".join(line.get(place, marks[1]) for place in range(low, high + 1))


def failures_table(failures: Sequence[Row], page: Page) -> list[str]:
    """Return the rows of `count_failures` as a table with an example per stage and kind."""
    names = ("stage", "error_type", "sample_id", "error")
    rows = [[*(redact(row[name] or "-") for name in names), f"{row['count']:,}"] for row in failures]
    return table(["stage", "kind", "example", "message", "count"], rows, page, names=4)


def _readings(usage: Sequence[Row], page: Page) -> list[str]:
    """Return the forms of the completions of stages with other forms than the requested one."""
    loose = [row for row in by_stage(usage) if any(row.get(name) for name in (*OTHER_FORMS, "retries_after_parse"))]
    heads = ["stage", "schema", "form", "other form", "unparsable", "refused", "asked again"]
    names = ("parsed_schema", "parsed_template", *OTHER_FORMS, "retries_after_parse")
    rows = [[row["stage"], *(f"{row.get(name) or 0:,}" for name in names)] for row in loose]
    return ["how completions were read", *table(heads, rows, page, names=1)] if rows else []


def _audits(audits: Sequence[Row], page: Page) -> list[str]:
    """Return the shares of the filtered pairs that a model judges differently."""
    counted = [{**row, "n": row["defined"]} for row in audits]
    rows = [
        [row["metric"], row["measure"], f"{row['n']:,}", number_text(row["mean"]), interval_text(row)]
        for row in counted
    ]
    return table(["metric", "measure", "audited", "share", "95 % interval"], rows, page, names=2)


def _took(manifest: Mapping[str, Any]) -> str:
    """Return the cost, calls, tokens and time of all attempts."""
    totals, starts = manifest["totals"], manifest["starts"]
    seconds = sum(map(seconds_of, starts))
    calls, *tokens = (totals[name] or 0 for name in ("calls", "prompt_tokens", "completion_tokens"))
    cost = "unknown (no price is set)" if totals["cost"] is None else f"{totals['cost']:,.4f}"
    over = f", over {len(starts):,} starts" if len(starts) > 1 else ""
    used = f"cost: {cost}, {amount(calls, 'call')}, {amount(sum(tokens), 'token')}"
    return f"{used}; time: {clock(seconds)}{over}"


def _prompt_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line about dropped items, which repeat the examples of prompts, and a warning about cut prompts.

    The completions of a cut prompt use a part of the text.
    """
    rows = by_stage(manifest["starts"][-1].get("usage", []))
    if leaks := [f"{row['stage']} {row['leaked_example']:,}" for row in rows if row.get("leaked_example")]:
        yield f"items dropped as repeats of the prompts' examples: {', '.join(leaks)}"
    if cut := [row for row in rows if row.get("cut_prompts")]:
        stages = ", ".join(f"{row['stage']} {row['cut_prompts']:,} of {row.get('calls') or 0:,}" for row in cut)
        yield (
            f"WARNING: the endpoint reports too few prompt tokens for the text that was sent ({stages}). Its context "
            "window cuts prompts. Raise it (num_ctx of Ollama, --max-model-len of vLLM) and score with another store"
        )


def _places(run: RunTables, worst: Sequence[Row], page: Page) -> Iterator[str]:
    """Yield the folder of the tables, the tables with rows, and the command that shows the worst sample."""
    yield redact(f"results: {run.directory}")
    rows = run.manifest["rows"]
    held = (name for name in RESULT_TABLES if rows.get(name))
    yield from wrapped(f"tables: {', '.join(held)}", page)
    # Other ids cannot be pasted, and may change the terminal
    named = [row for row in worst if row["sample_id"].isprintable()]
    if named:
        sample = f"--sample {shlex.quote(named[0]['sample_id'])} --metric {named[0]['metric']}"
        yield redact(f"next: untold show {shlex.quote(run.directory)} {sample}")
    yield redact(f"report: untold report {shlex.quote(run.directory)}")


def count_unasked(run: RunTables) -> Unasked:
    """Count the samples that were not asked, by metric and system, and by metric under the system None."""
    rows = fetch_rows(
        connect_tables([run], ["scores"]),
        f"""select metric, system, count(*) as count from scores where status = {quoted(NOT_ASKED)}
            group by grouping sets ((metric), (metric, system)) having grouping(system) = 1 or system is not null""",
    )
    return {(row["metric"], row["system"]): row["count"] for row in rows}


def count_failures(run: RunTables) -> list[dict[str, Any]]:
    """Count failed requests by stage and kind, most first: stage, error_type, sample_id, error, count.

    sample_id and error belong to the first failure in the order of the table.
    """
    return fetch_rows(
        connect_tables([run], ["failures"]),
        """select stage, error_type, min(sample_id) as sample_id,
                arg_min(error, row(coalesce(sample_id, ''), metric, request_id)) as error, count(*) as count
            from failures group by all order by count desc, stage, error_type""",
    )


def conflict_lines(measures: Iterable[Row], page: Page) -> list[str]:
    """Return the numbers of conflicts and the shares of covered sides as a table, without lines if none conflict.

    measures: rows of `measures_summary`.
    """
    found: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in measures:
        if row["measure"] in CONFLICT_MEASURES:
            found[row["metric"], row["system"] or "all"][row["measure"]] = row
    known = {key: rows for key, rows in found.items() if rows.keys() == set(CONFLICT_MEASURES) and rows[NUMBER]["mean"]}
    heads = ["metric", "system", "conflicts", "both sides", "95 % interval", "one side", "95 % interval"]
    lines = []
    for key, rows in known.items():
        cells = [*key, f"{rows[NUMBER]['mean'] * rows[NUMBER]['defined']:,.0f}"]
        for name in (COVERAGE, ONE_SIDED):
            share = {**rows[name], "n": rows[name]["defined"]}
            cells += [number_text(share["mean"]), interval_text(share)]
        lines.append(cells)
    return _first_lines(heads, lines, page, 2, "measures_summary") if lines else []


def leaning_lines(rows: Sequence[Row], page: Page) -> list[str]:
    """Return the first rows as a table."""
    lines = [
        [
            *(row["metric"], row["system"] or "all", row["by"], row["source"], f"{row['followed']:,} of {row['n']:,}"),
            *(number_text(row["share"]), interval_text(row, clustered=True), f"{row['p_adjusted']:.4f}"),
        ]
        for row in rows
    ]
    heads = ["metric", "system", "by", "source", "followed", "share", "95 % interval", "p adj."]
    return _first_lines(heads, lines, page, 4, "source_preference")


def _first_lines(heads: Sequence[str], lines: Sequence[list[str]], page: Page, names: int, of: str) -> list[str]:
    more = [f"{len(lines) - SHOWN:,} more in the table {of}"] if len(lines) > SHOWN else []
    return [*table(heads, lines[:SHOWN], page, names=names), *more]
