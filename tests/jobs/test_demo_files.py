"""The files of the demo, and the lines next to its summary. `test_demo` runs the demo itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.demo import demo_settings, show_expected
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.settings.model import Settings
from untold.udfs.llm.templates import compile_prompt

DEMO = Path(__file__).parents[2] / "conf" / "demo"
VARIABLES: dict[str, dict[str, Any]] = {
    "extract_claims": {"text": "r"},
    "generate_aspects": {"query": "q"},
    "align_claims": {"query": "q", "aspects": ["a"], "claims": ["c"]},
}


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / name).read_text(encoding="utf-8").splitlines()]


# Characters
LONGEST_CONTEXT = 120


def test_the_demo_needs_no_condensing_and_a_shorter_prompt() -> None:
    samples = lines_of("samples.jsonl")
    settings = demo_settings(Settings(), DEMO)
    row = {"query": "q", "contexts": ["c"], "response": "r"}
    lengths = [
        compile_prompt(
            bind_stage("evaluate_coverage", chosen).template, api="chat", name="evaluate_coverage"
        ).characters(row)
        for chosen in (settings, Settings())
    ]

    assert [sample["sample_id"] for sample in samples] == [one["sample_id"] for one in lines_of("expected.jsonl")]
    assert len(samples) == 6
    assert not settings.summarise_contexts
    texts = [context["text"] for sample in samples for context in sample["contexts"]]
    assert max(map(len, texts)) <= LONGEST_CONTEXT
    assert lengths[0] < lengths[1]


def test_it_looks_few_chunks_up_in_its_index_with_shorter_prompts() -> None:
    settings = demo_settings(Settings(), DEMO, "/index")
    assert (settings.knowledge.source, settings.knowledge.index, settings.knowledge.top_k) == ("index", "/index", 3)
    for stage, row in VARIABLES.items():
        own, shipped = (
            compile_prompt(bind_stage(stage, chosen).template, api="chat", name=stage).characters(row)
            for chosen in (settings, Settings())
        )
        assert own < 0.8 * shipped, stage
    assert [one["sample_id"] for one in lines_of("expected_claims.jsonl")] == [
        one["sample_id"] for one in lines_of("samples.jsonl")
    ]


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / name).mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / name / "part-0.parquet")


def test_each_sample_is_shown_with_the_expectation_of_a_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text('{"status": "finished"}', encoding="utf-8")
    mine: dict[str, Any] = {"sample_id": "longest-river-a", "metric": "icat"}
    write(tmp_path, "scores", [{**mine, "covered": 1, "uncovered": 2}])
    write(tmp_path, "measures", [{**mine, "measure": name, "value": 0.25} for name in ("icat", "s_fact")])
    verdicts = [(2, None, "B."), (1, "supported", "A.")]
    write(
        tmp_path,
        "claims",
        [{**mine, "position": at, "verdict": verdict, "text": text} for at, verdict, text in verdicts],
    )
    show_expected(str(tmp_path), DEMO, "icat")
    lines = capsys.readouterr().out.splitlines()
    assert lines[5].split() == ["longest-river-a", "0.25", "0.25", "0.50", "1", "/", "1", "1", "/", "1", "1", "/", "2"]
    # A sample without any results of the run
    assert lines[3].split() == ["everest-height-a", "-", "-", "0.33", "0", "/", "0", "1", "/", "2", "-"]
    assert [line.split()[1:] for line in lines[-2:]] == [["supported", "A."], ["not", "judged", "B."]]


def test_the_statements_of_nli_are_next_to_a_judgement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text('{"status": "finished"}', encoding="utf-8")
    mine: dict[str, Any] = {"sample_id": "longest-river-b", "metric": "nli"}
    nile, amazon = (one["text"] for one in lines_of("expected.jsonl")[3]["statements"])
    write(tmp_path, "scores", [{**mine, "score": 1.0}])
    write(tmp_path, "statements", [{**mine, "members": ["The Nile.", nile], "covered": True}])
    show_expected(str(tmp_path), DEMO, "nli")
    lines = capsys.readouterr().out.splitlines()
    assert next(line.split() for line in lines if line.startswith(mine["sample_id"])) == [
        mine["sample_id"],
        "1.00",
        "0.50",
    ]
    told = [line.split(maxsplit=3)[1:] for line in lines if line.startswith(mine["sample_id"]) and "." in line[-1:]]
    assert told == [["covered", "covered", nile], ["-", "missing", amazon]]


def test_without_tables_there_is_no_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_expected(str(tmp_path), DEMO, "icat")
    assert capsys.readouterr().out == ""
