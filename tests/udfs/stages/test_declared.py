"""Test the stage in CONTRIBUTING: it parses its own form and other forms, and its template renders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from untold.udfs.llm.templates import compile_prompt
from untold.udfs.stages.definitions import StageDefinition, Unparsable, filled

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"
SENTENCES = {"sentences": ["The committee met.", "They talked a lot."]}
SHOWN = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE.read_text(encoding="utf-8"), re.M | re.S))


@pytest.fixture(scope="module")
def stage() -> StageDefinition:
    names: dict[str, Any] = {}
    exec(compile(SHOWN["tone.py"], PAGE.name, "exec"), names)
    declared = names["RATE_TONE"]
    assert isinstance(declared, StageDefinition)
    return declared


@pytest.mark.parametrize(
    "completion",
    [
        "1: formal\n2: informal",
        '```json\n{"labels": [{"number": 1, "label": "formal"}, {"number": 2, "label": "informal"}]}\n```',
        "| number | label |\n| --- | --- |\n| 1 | formal |\n| 2 | informal |",
        "1. official\n2. casual",
    ],
)
def test_it_reads_each_form(stage: StageDefinition, completion: str) -> None:
    assert stage.parse(completion, SENTENCES) == {"labels": ["formal", "informal"]}


@pytest.mark.parametrize("completion", ["", "They are fine.", "1: formal or informal"])
def test_it_never_guesses(stage: StageDefinition, completion: str) -> None:
    with pytest.raises(Unparsable):
        stage.parse(completion, SENTENCES)


def test_its_declaration_has_the_stated_length(stage: StageDefinition) -> None:
    assert 20 <= len(SHOWN["tone.py"].splitlines()) <= 60
    assert stage.schema is not None
    assert filled(stage.schema, SENTENCES)["properties"]["labels"]["items"]["properties"]["number"]["enum"] == [1, 2]


def test_its_template_renders(stage: StageDefinition) -> None:
    prompt = compile_prompt(SHOWN["rate_tone.jinja"])
    assert stage.examples is not None
    system, user = prompt.messages(stage.examples)
    assert (system["role"], user["role"]) == ("system", "user")
    assert '<sentence id="2">They talked a lot.</sentence>' in user["content"]
