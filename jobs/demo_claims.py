"""The demo of icat: the shipped samples held against the shipped documents, and what a person would say beside it."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from untold.jobs.results import Run, UnreadableRunError, open_run
from untold.jobs.run.terminal import page_of, print_lines, table
from untold.jobs.settings.model import Settings
from untold.udfs.facts.aspect_coverage import FACT, ICAT
from untold.udfs.facts.claim_verdicts import SUPPORTED
from untold.udfs.storage import read_lines

METRIC = "icat"
# A claim is held against so many chunks: of fifteen documents, each a chunk, one is about what it says
CHUNKS = 3
HEADER = ("sample", "icat", "s_fact", "expected", "claims", "expected", "aspects")
CLAIM_HEADER = ("sample", "verdict", "claim")


def claims_settings(settings: Settings, folder: Path, index: str) -> Settings:
    """The settings with what the demo is about: its index, few chunks a claim, and its short prompts."""
    knowledge = {"source": "index", "index": index, "top_k": min(CHUNKS, settings.knowledge.top_k)}
    changed = {"knowledge": settings.knowledge.model_copy(update=knowledge)}
    return settings.model_copy(update={**changed, "prompts_dir": settings.prompts_dir or str(folder)})


def show_expected_claims(output: str, expected_path: Path) -> None:
    """Prints one line a demo sample, then each claim's verdict; nothing where the run left no scores.

    expected_path: JSON Lines of sample_id and claims, each with `supported`, as a person judged them by the documents.
    """
    expected = read_lines(expected_path)
    try:
        run = open_run(output, allow_running=True)
        rows = {name: _by_sample(run, name) for name in ("scores", "measures", "claims")}
    except (UnreadableRunError, OSError, pa.ArrowInvalid):
        return
    if not rows["scores"] or not expected:
        return
    print("\nbeside what a person would expect (claims supported / not, aspects covered / not)")
    lines = []
    for wanted in expected:
        found = {name: by_sample.get(wanted["sample_id"], []) for name, by_sample in rows.items()}
        lines.append(_line(wanted, found))
    claims = [
        [wanted["sample_id"], claim["verdict"] or "not judged", claim["text"]]
        for wanted in expected
        for claim in sorted(rows["claims"].get(wanted["sample_id"], []), key=lambda row: int(row["position"]))
    ]
    page = page_of(sys.stdout)
    print_lines([*table(HEADER, lines, page), "", *table(CLAIM_HEADER, claims, page, names=3)])


def _by_sample(run: Run, name: str) -> dict[str, list[Mapping[str, Any]]]:
    found = defaultdict(list)
    for row in run.table(name).to_pylist():
        found[row["sample_id"]].append(row)
    return found


def _line(wanted: Mapping[str, Any], found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The cells of a sample: what the run found, and what was expected of its claims."""
    measures = {row["measure"]: row["value"] for row in found["measures"]}
    score: Mapping[str, Any] = next(iter(found["scores"]), {})
    supported = [row["verdict"] == SUPPORTED for row in found["claims"]]
    hoped = [claim["supported"] for claim in wanted["claims"]]
    aspects = None if score.get("covered") is None else f"{score['covered']} / {score['uncovered']}"
    return [
        wanted["sample_id"],
        _number(measures.get(ICAT)),
        _number(measures.get(FACT)),
        _number(sum(hoped) / len(hoped)),
        _counts(supported),
        _counts(hoped),
        aspects or "-",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _counts(held: Sequence[bool]) -> str:
    return f"{sum(held)} / {len(held) - sum(held)}"
