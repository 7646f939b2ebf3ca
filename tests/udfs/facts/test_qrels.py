"""Test the annotations of documents with subtopics, in the format of TREC and as JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from untold.udfs.facts.aspect_coverage import Annotation, QrelsError, digest_of_qrels, read_qrels

ROWS = [("1", "2", "clueweb-1", "1"), ("1", "3", "clueweb-1", "0"), ("7", "1", "doc-b", "2"), ("7", "1", "doc-c", "-2")]
RELEVANT = [Annotation("1", "2", "clueweb-1"), Annotation("7", "1", "doc-b")]


def write(path: Path, rows: list[tuple[str, ...]], as_json: bool) -> str:
    names = ("query_id", "subtopic_id", "doc_id", "relevance")
    lines = [json.dumps(dict(zip(names, row, strict=True))) if as_json else "  ".join(row) for row in rows]
    path.write_text("\n".join([*lines, "", ""]))
    return str(path)


@pytest.mark.parametrize("name", ["qrels.txt", "qrels.jsonl"])
def test_what_is_relevant_counts(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ROWS, name.endswith("jsonl"))
    assert list(read_qrels(path)) == RELEVANT
    turned = write(tmp_path / f"turned-{name}", ROWS[::-1], name.endswith("jsonl"))
    assert digest_of_qrels(turned) == digest_of_qrels(path)
    assert digest_of_qrels(write(tmp_path / f"other-{name}", ROWS[1:], name.endswith("jsonl"))) != digest_of_qrels(path)


@pytest.mark.parametrize(
    ("name", "line"),
    [("q.txt", "1 2 three"), ("q.txt", "1 2 d high"), ("q.jsonl", '{"query_id": 1}'), ("q.jsonl", "1")],
)
def test_a_line_of_another_form_is_named(tmp_path: Path, name: str, line: str) -> None:
    path = tmp_path / name
    path.write_text(f"\n{line}\n")
    with pytest.raises(QrelsError, match=rf"{name} line 2: not in the format"):
        list(read_qrels(str(path)))


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(QrelsError, match=r"none\.txt cannot be read \(FileNotFoundError\)"):
        digest_of_qrels(str(tmp_path / "none.txt"))
