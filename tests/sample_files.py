"""Files of samples, as people write them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROW = {"query": "q", "response": "r", "contexts": ["a", "b"]}
CONFLICTBANK_ROW = {
    "question": "q",
    "default_evidence": "d",
    "misinformation_conflict_evidence": "c1",
    "temporal_conflict_evidence": "c2",
    "semantic_conflict_evidence": "c3",
    "default_claim": "It is d.",
    "misinformation_conflict_claim": "It is c.",
}
HOSTILE = ['a "quoted", cell', "line\nbreak\r\nand\rmore", "nul\x00", "\u2028\u2029\x85", "😀", "\\", "'", "[{", " "]


def write_lines(path: Path, rows: Iterable[Any]) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return str(path)


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    listed = [{**row, "contexts": json.dumps(row["contexts"])} for row in rows]
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(listed[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(listed)
    return str(path)


def write_parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return str(path)
