from __future__ import annotations

import json
import os
import re
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.answers import collapse, coverage_text, find_answer
from tests.fakes.model_server import ModelServer
from tests.fakes.recorded import distinct_inputs, expectations, recorded_samples, write_replay
from untold.udfs.llm.templates import compile_prompt

_DATA = Path(os.environ.get("UNTOLD_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"))
_RECORDED = _DATA / "wikicontradict" / "recorded_e2e"
_JUDGES = {"Qwen2.5-72B-Instruct": 921, "gpt-oss-120b": 978, "llama-3.3-70b-instruct": 924}
_needs_data = pytest.mark.skipif(not _RECORDED.is_dir(), reason="no recorded judges under UNTOLD_DATA")


def _write_judge(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(_RECORDING | row) for row in rows), encoding="utf-8")
    return path


_RECORDING = {
    "row": 0,
    "question": "q",
    "answer_field": "answer0",
    "judge": "j",
    "context_summaries": {"first": " none ", "second": "S", "third": "T"},
    "answer": "a",
    "covered": [],
    "uncovered": [],
    "adjusted_label": "Correct",
}


def _stated(statement: str, *ids: str) -> dict[str, Any]:
    return {"statement": statement, "context_ids": list(ids)}


def test_recorded_samples_show_the_summaries_that_are_not_none(tmp_path: Path) -> None:
    (sample,) = recorded_samples(_write_judge(tmp_path / "judge.jsonl", {}))
    assert sample == {
        "sample_id": "0-answer0",
        "query": "q",
        "contexts": [{"id": "second", "text": "S"}, {"id": "third", "text": "T"}],
        "response": "a",
        "label": "Correct",
        "judge": "j",
    }


def test_expectations_unite_equal_statements_and_drop_sources_not_shown(tmp_path: Path) -> None:
    row = {
        "covered": [_stated("x  y", "third", "first")],
        "uncovered": [_stated("z", "first"), _stated("x y ", "second")],
    }
    expected = expectations(_write_judge(tmp_path / "judge.jsonl", row))
    assert expected == {"0-answer0": ([("x y", ("second", "third"))], [("z", ())], 0.5)}


def test_the_first_recording_counts_for_its_group(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"covered": [_stated("x", "second")]},
        {"row": 1, "context_summaries": {"first": "S", "second": "T"}},
        {"row": 2, "context_summaries": {"first": "None"}, "covered": [_stated("x", "first")]},
    ]
    path = _write_judge(tmp_path / "judge.jsonl", *rows)
    assert distinct_inputs(path) == 1
    assert expectations(path) == {
        "0-answer0": ([("x", ("second",))], [], 1.0),
        "1-answer0": ([("x", ("first",))], [], 1.0),
        "2-answer0": ([], [], None),
    }


def test_lines_keep_brackets_and_carry_line_breaks_as_spaces() -> None:
    text = coverage_text([("a [1]", ()), ("b\nc [x]", (2,))], [])
    assert "- a [1] [0]\n- b c [x] [2]\n" in text


@_needs_data
@pytest.mark.parametrize("judge", _JUDGES)
def test_every_recording_survives_the_form_of_a_completion(tmp_path: Path, judge: str) -> None:
    path = _RECORDED / f"{judge}.jsonl"
    assert write_replay(path, tmp_path / "table.json") == distinct_inputs(path) == _JUDGES[judge]
    answer, expected = find_answer(f"replay:{tmp_path / 'table.json'}"), expectations(path)
    samples = recorded_samples(path)
    assert len(samples) == len(expected) == 1200
    for sample in samples:
        texts = [context["text"] for context in sample["contexts"]]
        prompt = json.loads(_prompt(query=sample["query"], contexts=texts, response=sample["response"]))
        covered, uncovered, score = expected[sample["sample_id"]]
        said = answer(prompt)
        assert isinstance(said, str)
        read = _read_lists(said, [context["id"] for context in sample["contexts"]])
        assert read == (dict(covered), dict(uncovered)), sample["sample_id"]
        assert score == (len(covered) / len([*covered, *uncovered]) if covered or uncovered else None)


def _read_lists(text: str, ids: list[str]) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Parse the form for lists without duplicates."""
    lists: tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]] = ({}, {})
    _, covered, uncovered = re.split(r"^\[(?:Unc|C)overed statements\]$", text, flags=re.MULTILINE)
    for part, found in ((covered, lists[0]), (uncovered, lists[1])):
        for line in filter(str.strip, part.splitlines()):
            statement, numbers = re.fullmatch(r"- (.*?)(?: \[([\d, ]*)\])?", line).groups()  # type: ignore[union-attr]
            sources = {int(number) for number in (numbers or "").split(", ") if number} & set(range(1, len(ids) + 1))
            statement = collapse(statement)
            known = {ids.index(name) + 1 for name in found.get(statement, ())}
            found[statement] = tuple(ids[number - 1] for number in sorted(known | sources))
    return lists


def test_an_input_that_was_never_recorded_is_a_400(tmp_path: Path) -> None:
    write_replay(_write_judge(tmp_path / "judge.jsonl", {}), tmp_path / "table.json")
    answer = f"replay:{tmp_path / 'table.json'}"
    prompts = (_prompt(query="q", contexts=["S", "T"], response="a"), _prompt(query="q", contexts=[], response="a"))
    with ModelServer(answer=answer) as server:
        assert [_status(server, prompt) for prompt in prompts] == [200, 400]


def _prompt(**variables: Any) -> str:
    source = (Path(__file__).parent / "prompts" / "evaluate_coverage.jinja").read_text(encoding="utf-8")
    return compile_prompt(source).messages(variables)[-1]["content"]


def _status(server: ModelServer, prompt: str) -> int:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        return connection.getresponse().status
