"""Test the output of `untold show` for a sample of icat: the aspects, the claims that cover them, and the evidence."""

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

KEY = {"sample_id": "s", "metric": "icat"}


def claim(number: int, text: str, verdict: str | None, *evidence: str) -> dict[str, Any]:
    return {
        **KEY,
        "claim_id": f"s:icat:{number}",
        "position": number,
        "text": text,
        "verdict": verdict,
        "evidence": evidence,
    }


def pair(number: int, rank: int, chunk: str, relation: str | None) -> dict[str, Any]:
    return {**KEY, "claim_id": f"s:icat:{number}", "chunk_id": chunk, "rank": rank, "relation": relation}


def aspect(number: int, text: str, *claims: int) -> dict[str, Any]:
    names = [f"s:icat:{one}" for one in claims]
    return {**KEY, "statement_id": f"s:icat:{number}", "text": text, "covered": bool(claims), "claims": names}


TABLES: Mapping[str, list[dict[str, Any]]] = {
    "scores": [
        {
            **KEY,
            "score": 0.5,
            "score_low": 0.25,
            "score_high": 1.0,
            "covered": 1,
            "uncovered": 1,
            "unjudged": 1,
            "status": "partial",
        }
    ],
    "statements": [aspect(1, "home", 1), aspect(2, "fleet")],
    "claims": [
        claim(1, "She lives in France.", "supported", "d#0", "d#2"),
        claim(2, "She likes tea.", "supported", "d#1"),
        claim(3, "She owns 7 boats.", "contradicted"),
        claim(4, "She sings.", None),
        claim(5, "She swims.", "not_supported"),
    ],
    "evidence": [
        *(pair(1, rank, f"d#{rank - 1}", "entailment") for rank in (1, 3)),
        pair(2, 1, "d#1", "entailment"),
        *(pair(3, rank, f"e#{rank}", "contradiction" if rank == 2 else "neutral") for rank in (10, 2)),
        pair(4, 1, "e#10", None),
    ],
    "chunks": [
        {"chunk_id": name, "text": f"This is \x1b[2J{name}."} for name in ("d#0", "d#1", "d#2", "e#2", "e#10", "z#0")
    ],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "manifest.json").write_text(json.dumps({"status": "finished"}))
    for name, rows in TABLES.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, RESULT_TABLES[name]), tmp_path / name / "part-0.parquet")
    return tmp_path


def test_aspects_claims_and_chunks_are_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (picture,) = show(ShowRequest(str(run), "s", picture=str(run / "p.svg")))
    lines = capsys.readouterr().out.splitlines()
    shown = [line.strip() for line in lines if line.strip()]
    start = shown.index("score: 0.50, between 0.25 and 1.00 (partial), 1 covered, 1 missing, 1 claim unjudged")
    assert shown[start + 1 : -1] == [
        "missing: 1 aspect",
        "1  fleet",
        "covered: 1 aspect",
        "2  home",
        "claim: She lives in France.",
        "d#0: This is �[2Jd#0.",
        "d#2: This is �[2Jd#2.",
        "grounded, but without an aspect: 1 claim",
        "claim: She likes tea.",
        "d#1: This is �[2Jd#1.",
        "not grounded: 3 claims",
        "contradicted: She owns 7 boats.",
        "nearest, contradiction, e#2: This is �[2Je#2.",
        "not judged: She sings.",
        "nearest, not judged, e#10: This is �[2Je#10.",
        "not supported: She swims.",
        "no chunk was found for it",
    ]
    svg = Path(picture).read_text(encoding="utf-8")
    assert all(row["text"] in svg for name in ("claims", "statements") for row in TABLES[name])
    assert "\x1b" not in "".join(lines)


def test_a_response_without_claims_shows_its_aspects(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("claims", "evidence", "chunks"):
        pq.write_table(pa.Table.from_pylist([], RESULT_TABLES[name]), run / name / "part-0.parquet")
    show(ShowRequest(str(run), "s"))
    out = capsys.readouterr().out
    assert "missing: 1 aspect" in out
    assert "stated in" not in out
