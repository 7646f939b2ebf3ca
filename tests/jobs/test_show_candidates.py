"""Test the output of `untold show` for a sample of longrecall: the missing references and their candidates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.inputs.options import ShowRequest
from untold.jobs.show import show
from untold.jobs.tables import RESULT_TABLES

KEY = {"sample_id": "s", "metric": "longrecall"}


def reference(number: int, text: str, covered: bool | None, *claims: int) -> dict[str, Any]:
    names = None if covered is None else [f"s:longrecall:{one}" for one in claims]
    return {**KEY, "statement_id": f"s:longrecall:{number}", "text": text, "covered": covered, "claims": names}


def candidate(number: int, claim: int, step: str, rank: int, chosen: bool | None, *likeness: float) -> dict[str, Any]:
    words, letters, cosine = (*likeness, None)[:3]
    names = {"statement_id": f"s:longrecall:{number}", "claim_id": f"s:longrecall:{claim}"}
    shown = {"step": step, "rank": rank, "jaccard": words, "lcs": letters, "cosine": cosine, "chosen": chosen}
    return {**KEY, **names, **shown}


def fact(position: int, text: str) -> dict[str, Any]:
    return {**KEY, "claim_id": f"s:longrecall:{position}", "position": position, "text": text, "evidence": []}


TABLES: Mapping[str, list[dict[str, Any]]] = {
    "scores": [
        {
            **KEY,
            "score": 1 / 3,
            "score_low": 0.25,
            "score_high": 0.5,
            "covered": 1,
            "uncovered": 2,
            "unjudged": 1,
            "dropped": 4,
            "status": "partial",
        }
    ],
    "statements": [
        reference(1, "Richard Boleslavsky", True, 2),
        reference(2, "Steve McQueen", False),
        reference(3, "Ingmar Bergman", None),
        reference(4, "Agnès Varda", False),
    ],
    "claims": [fact(10, "Ten \x1b[2J"), fact(2, "Ryszard Boleslawski"), fact(3, "Steve McQueen, an actor")],
    "candidates": [
        candidate(1, 2, "lexical", 1, True, 1 / 3, 0.7368),
        candidate(2, 10, "semantic", 1, False, 0.0, 0.1, 0.61),
        candidate(2, 3, "lexical", 1, False, 0.5, 0.57),
        candidate(3, 10, "lexical", 1, None, 0.3, 0.2),
    ],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "manifest.json").write_text(json.dumps({"status": "finished"}))
    for name, rows in TABLES.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, RESULT_TABLES[name]), tmp_path / name / "part-0.parquet")
    return tmp_path


def test_missing_references_come_with_their_candidates(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (picture,) = show(ShowRequest(str(run), "s", picture=str(run / "p.svg")))
    lines = capsys.readouterr().out.splitlines()
    shown = [line.strip() for line in lines if line.strip()]
    start = shown.index(
        "score: 0.33, between 0.25 and 0.50 (partial), 1 covered, 2 missing, 1 reference unjudged, "
        "4 beyond longrecall.max_facts left out"
    )
    assert shown[start + 1 : -1] == [
        "missing: 3 references",
        "1  Steve McQueen",
        "rejected, found by words (J 0.50, L 0.57): Steve McQueen, an actor",
        "rejected, found by vectors (J 0.00, L 0.10, cosine 0.61): Ten �[2J",
        "?   2  Ingmar Bergman",
        "not judged, found by words (J 0.30, L 0.20): Ten �[2J",
        "3  Agnès Varda",
        "no fact is near it",
        "covered: 1 reference",
        "4  Richard Boleslavsky",
        "fact: Ryszard Boleslawski",
        "without a reference: 2 facts",
        "fact: Steve McQueen, an actor",
        "fact: Ten �[2J",
    ]
    svg = Path(picture).read_text(encoding="utf-8")
    assert all(row["text"] in svg for row in TABLES["statements"])
