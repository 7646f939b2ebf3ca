"""Outputs of `untold score` written by hand, for reports: every metric's tables, and texts that mean harm."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from gzip import decompress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from untold.jobs.study_tables import META_EVALUATION
from untold.jobs.tables import RESULT_TABLES

Row = dict[str, Any]
SCHEMAS = {**RESULT_TABLES, "meta_evaluation": META_EVALUATION}
MANIFEST = {
    "status": "finished",
    "models": ["a-judge"],
    "starts": [{"started_at": "2026-11-20T09:00:00+00:00", "ended_at": "2026-11-20T10:00:00+00:00"}],
    "totals": {"cost": 1.5, "calls": 12, "prompt_tokens": 3000, "completion_tokens": 400},
}
HARM = '</script><script>window.harmed = 1</script><img src="x" onerror="window.harmed = 2"><!--'
TURNED = "gpj.\u202eexe"
WORD = "w" * 100_000


def write_output(folder: Path, tables: Mapping[str, Sequence[Row]], **manifest: Any) -> Path:
    """An output with these tables; a summary that they lack has the means of the scores."""
    folder.mkdir(parents=True)
    metrics = sorted({row["metric"] for row in tables.get("scores", ())})
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "metrics": metrics, **manifest}), encoding="utf-8")
    found = {"summary": summary_of(tables.get("scores", ())), **tables}
    for name, rows in found.items():
        (folder / name).mkdir()
        pq.write_table(pa.Table.from_pylist(list(rows), SCHEMAS[name]), folder / name / "part-0.parquet")
    return folder


def summary_of(scores: Sequence[Row]) -> list[Row]:
    groups = {(row["metric"], system): None for row in scores for system in (None, row["system"])}
    return [_summary_row(metric, system, scores) for metric, system in groups if (metric, system) != (metric, "")]


def _summary_row(metric: str, system: str | None, scores: Sequence[Row]) -> Row:
    own = [row for row in scores if row["metric"] == metric and system in (None, row["system"])]
    values = [row["score"] for row in own if row["score"] is not None]
    mean = sum(values) / len(values) if values else None
    undefined = sum(row["status"] == "no_statements" for row in own)
    counts = {
        "n": len(own),
        "scored": len(values),
        "undefined": undefined,
        "failed": len(own) - len(values) - undefined,
    }
    ends = {} if mean is None else {"ci_low": mean - 0.1, "ci_high": mean + 0.1}
    level = "overall" if system is None else "system"
    return {"metric": metric, "level": level, "system": system, **counts, "mean": mean, **ends, "answer_rate": 1.0}


def sample(name: str, query: str = "How high is it?", response: str = "It is 8 m high.", **others: Any) -> Row:
    contexts = [{"id": "c1", "text": "It rained. The tower is 8 m high."}, {"id": "c2", "text": "It has 12 bells."}]
    return {"sample_id": name, "query": query, "response": response, "contexts": contexts, "system": "a"} | others


def score(name: str, metric: str = "e2e", value: float | None = 0.5, **others: Any) -> Row:
    row = {"sample_id": name, "metric": metric, "system": "a", "score": value, "score_low": value, "score_high": value}
    return {**row, "covered": 1, "uncovered": 1, "unjudged": 0, "dropped": 0, "status": "ok"} | others


def statement(name: str, number: int, text: str, covered: bool | None, metric: str = "e2e", **others: Any) -> Row:
    row = {"sample_id": name, "metric": metric, "statement_id": f"{name}:{metric}:{number}", "text": text}
    return {**row, "covered": covered, "sources": ["c1"]} | others


def data_of(page: str) -> dict[str, Any]:
    """The data that a page carries."""
    kind, text = re.search(r'<script type="([^"]+)" id="data">([^<]*)</script>', page).groups()  # type: ignore[union-attr]
    return json.loads(text if kind == "application/json" else decompress(b64decode(text)))


CORRECTED = {
    "samples": [
        sample("007", response='It is "8 m" high,\nand loud.'),
        sample("s2", "=1+1", response="It has 12 bells."),
        sample("s3"),
    ],
    "scores": [score("007", covered=1, uncovered=2), score("s2", value=0.25), score("s3")],
    "statements": [
        statement("007", 10, "It is 8 m high.", True, in_basis=False),
        statement("007", 2, "It has 12 bells.", False, sources=["c2"]),
        statement("007", 3, "It is loud.", False),
        statement("s2", 1, "It has 12 bells.", True, sources=["c2"]),
        statement("s2", 2, "It is 8 m high.", None),
        statement("s3", 1, "It is 8 m high.", True),
        statement("s3", 2, "It rained.", False),
    ],
}


# The worst answer is first. The judged verdicts of a corrected answer are kept
CORRECTIONS = (
    '"sample_id","query","response","system","metric","score","aspects"\r\n'
    '"s2","\'=1+1","It has 12 bells.","a","e2e","0",'
    '"[{""id"":""s2:e2e:1"",""text"":""It has 12 bells."",""labels"":[""no""]}]"\r\n'
    '"007","How high is it?","It is ""8 m"" high,\nand loud.","a","e2e","0.6666666666666666",'
    '"[{""id"":""007:e2e:2"",""text"":""It has 12 bells."",""labels"":[""no""]},'
    '{""id"":""007:e2e:3"",""text"":""It is loud."",""labels"":[""yes""]},'
    '{""id"":""007:e2e:10"",""text"":""It is 8 m high."",""labels"":[""yes""]}]"\r\n'
)
