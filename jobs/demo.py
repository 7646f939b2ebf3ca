"""Print the results of the demo, six short samples by nli, e2e or icat, next to the judgements of a person."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from untold.jobs.run.terminal import page_of, print_lines, table
from untold.jobs.run_tables import UnreadableRunError, open_run
from untold.jobs.settings.model import Settings
from untold.jobs.summary.score_counts import group_by
from untold.udfs.facts.aspect_coverage import FACT, ICAT
from untold.udfs.facts.claim_verdicts import SUPPORTED
from untold.udfs.storage import read_lines

# Chunks per claim. Each of the fifteen documents is one chunk, and one document is about the claim
CHUNKS = 3


def demo_settings(settings: Settings, folder: Path, index: str | None = None) -> Settings:
    """Return the settings with short contexts and short prompts, and with the index of the demo if it has one."""
    changed: dict[str, Any] = {"summarise_contexts": False, "prompts_dir": settings.prompts_dir or str(folder)}
    if index is not None:
        looked_up = {"source": "index", "index": index, "top_k": min(CHUNKS, settings.knowledge.top_k)}
        changed["knowledge"] = settings.knowledge.model_copy(update=looked_up)
    return settings.model_copy(update=changed)


def show_expected(output: str, folder: Path, metric: str) -> None:
    """Print the results of each sample next to a person's judgement, or nothing if the run has no scores.

    `folder` has JSON Lines with sample_id and the judgements of a person: `expected.jsonl` has score and statements,
    each with `covered`. `expected_claims.jsonl` has claims, each with `supported` by the documents.
    """
    name, tables, lines = _EXPECTED[metric]
    expected = read_lines(folder / name)
    try:
        run = open_run(output, allow_running=True)
        found = {table: group_by(run.table(table).to_pylist(), "sample_id") for table in tables}
    except (UnreadableRunError, OSError, pa.ArrowInvalid):
        return
    if found["scores"] and expected:
        print_lines(["", *lines(expected, found)])


# The rows of a run by table and sample_id
_Found = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]


def _beside_coverage(expected: Sequence[Mapping[str, Any]], found: _Found) -> list[str]:
    """Return the lines of e2e: the score and the statements of each sample."""
    rows = []
    for wanted in expected:
        score = _first(found["scores"], wanted)
        covered = [statement["covered"] for statement in wanted["statements"]]
        numbers = [_number(score.get("score")), _number(wanted["score"])]
        rows.append([wanted["sample_id"], *numbers, _both(score), _counts(covered)])
    heads = ["sample", "score", "expected", "statements", "expected"]
    title = "result and human expectation (statements covered / uncovered)"
    return [title, *table(heads, rows, page_of(sys.stdout))]


def _beside_statements(expected: Sequence[Mapping[str, Any]], found: _Found) -> list[str]:
    """Return the lines of nli: the score of each sample, then the statements with both judgements."""
    scores, verdicts = [], []
    for wanted in expected:
        sample = wanted["sample_id"]
        stated = {text: row["covered"] for row in found["statements"].get(sample, ()) for text in row["members"]}
        scores.append([sample, _number(_first(found["scores"], wanted).get("score")), _number(wanted["score"])])
        for one in wanted["statements"]:
            judged = _COVERED.get(stated.get(one["text"]), "-")
            verdicts.append([sample, judged, _COVERED[one["covered"]], one["text"]])
    page = page_of(sys.stdout)
    heads = ["sample", "result", "expected", "statement"]
    title = "result and human expectation (score, then the statements of the contexts)"
    return [title, *table(["sample", "score", "expected"], scores, page), "", *table(heads, verdicts, page, names=4)]


_COVERED: Mapping[bool | None, str] = {True: "covered", False: "missing"}


def _beside_claims(expected: Sequence[Mapping[str, Any]], found: _Found) -> list[str]:
    """Return the lines of icat: the scores and claims of each sample, then the verdict of each claim."""
    rows, verdicts = [], []
    for wanted in expected:
        sample = wanted["sample_id"]
        measures = {row["measure"]: row["value"] for row in found["measures"].get(sample, ())}
        claims = sorted(found["claims"].get(sample, ()), key=lambda row: int(row["position"]))
        hoped = [claim["supported"] for claim in wanted["claims"]]
        scores = [_number(value) for value in (measures.get(ICAT), measures.get(FACT), sum(hoped) / len(hoped))]
        supported = _counts([row["verdict"] == SUPPORTED for row in claims])
        rows.append([sample, *scores, supported, _counts(hoped), _both(_first(found["scores"], wanted))])
        verdicts += [[sample, claim["verdict"] or "not judged", claim["text"]] for claim in claims]
    page = page_of(sys.stdout)
    heads = ["sample", "icat", "s_fact", "expected", "claims", "expected", "aspects"]
    title = "result and human expectation (claims supported / not, aspects covered / not)"
    return [title, *table(heads, rows, page), "", *table(["sample", "verdict", "claim"], verdicts, page, names=3)]


# The file of the expected results, the tables to read, and the function of the lines, by metric
_EXPECTED: Mapping[str, tuple[str, Sequence[str], Callable[[Sequence[Mapping[str, Any]], _Found], list[str]]]] = {
    "nli": ("expected.jsonl", ("scores", "statements"), _beside_statements),
    "e2e": ("expected.jsonl", ("scores",), _beside_coverage),
    "icat": ("expected_claims.jsonl", ("scores", "measures", "claims"), _beside_claims),
}


def _first(rows: Mapping[str, Sequence[Mapping[str, Any]]], wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first row of a sample, or an empty row."""
    return next(iter(rows.get(wanted["sample_id"], ())), {})


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _both(score: Mapping[str, Any]) -> str:
    """Return the numbers of covered and uncovered statements."""
    return "-" if score.get("covered") is None else f"{score['covered']} / {score['uncovered']}"


def _counts(held: Sequence[bool]) -> str:
    return f"{sum(held)} / {len(held) - sum(held)}"
