"""Test the output of `untold show` for a sample of importance: the missing facts by rank, and contradicted claims."""

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

KEY = {"sample_id": "s", "metric": "importance"}


def claim(number: int, text: str, verdict: str | None, *evidence: str) -> dict[str, Any]:
    return {
        **KEY,
        "claim_id": f"s:importance:{number}",
        "position": number,
        "text": text,
        "verdict": verdict,
        "evidence": evidence,
    }


def fact(number: int, rank: int, text: str, covered: bool | None, *claims: int, **more: Any) -> dict[str, Any]:
    return {
        **KEY,
        "statement_id": f"s:importance:{number}",
        "text": text,
        "covered": covered,
        "claims": None if covered is None else [f"s:importance:{one}" for one in claims],
        "rank": rank,
        "weight": 1 - rank / 10,
        "relevance": 4.5,
        "salience": 3.25,
        "kept": True,
        "sources": ["1"],
        "members": [text],
        **more,
    }


TABLES: Mapping[str, list[dict[str, Any]]] = {
    "scores": [
        {
            **KEY,
            "score": 0.5,
            "score_low": 0.25,
            "score_high": 1.0,
            "covered": 1,
            "uncovered": 2,
            "unjudged": 1,
            "dropped": 3,
            "status": "partial",
        }
    ],
    "statements": [
        fact(1, 4, "She swims.", False),
        fact(2, 1, "She lives in \x1b[2JLyon.", False, members=["She lives in Lyon.", "In Lyon she lives."]),
        fact(3, 2, "She sails.", True, 1, relevance=None, salience=None),
        fact(4, 3, "She sings.", None),
        fact(5, 5, "She blinks.", None, kept=False),
    ],
    "claims": [
        claim(1, "She sails a boat.", "supported", "1#0"),
        claim(2, "She lives in Rome.", "contradicted", "1#0", "2#0"),
        claim(3, "She knits.", "not_supported", "2#0"),
        claim(4, "She reads.", None),
    ],
    "evidence": [{**KEY, "claim_id": "s:importance:2", "chunk_id": "1#0", "rank": 1, "relation": "contradicted"}],
    "chunks": [{"chunk_id": name, "text": f"This is {name}."} for name in ("1#0", "2#0")],
}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    for name, rows in TABLES.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, RESULT_TABLES[name]), tmp_path / name / "part-0.parquet")
    (tmp_path / "manifest.json").write_text(json.dumps({"status": "finished"}))
    return tmp_path


def test_missing_facts_then_contradicted_claims_then_the_rest(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (picture,) = show(ShowRequest(str(output), "s", picture=str(output / "p.svg")))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("missing"))
    assert lines[start - 2] == (
        "score: 0.50, between 0.25 and 1.00 (partial), 1 covered, 2 missing, 1 verdict unjudged, "
        "3 beyond importance.max_facts left out"
    )
    assert [line for line in lines[start:-1] if line] == [
        "missing: 2 facts, most important first",
        *("1  She lives in �[2JLyon. (weight 0.90: relevance 4.5, salience 3.2)", "stated in context 1"),
        *("also: She lives in Lyon.", "also: In Lyon she lives."),
        *("3  She swims. (weight 0.60: relevance 4.5, salience 3.2)", "stated in context 1"),
        "not judged: 1 fact",
        *("2  She sings. (weight 0.70: relevance 4.5, salience 3.2)", "stated in context 1"),
        "contradicted: 1 claim",
        *("She lives in Rome.", "1#0: This is 1#0.", "2#0: This is 2#0."),
        "covered: 1 fact",
        *("4  She sails. (weight 0.80)", "stated in context 1", "claim: She sails a boat."),
        "1 more that an answer need not give (importance.min_weight, importance.top_k)",
        "without a fact: 2 claims",
        *("not supported: She knits.", "not judged: She reads."),
    ]
    assert Path(picture).read_bytes().startswith(b"<?xml")
