"""Every stage reads a value back from each form: JSON in a fence, lines of the template, a table, a numbered list."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import seconds_of
from tests.udfs.stages.test_completions import plain
from tests.udfs.stages.test_schemas import FORMS, INSTANCES, VARIABLES
from untold.udfs.stages import STAGES, Unparsable

LONGEST = 100_000  # characters
MOST_SECONDS = 10.0  # of CPU
# The line of the template for a row of the schema
LINES = {
    "extract_atoms": "{unit}: {type}",
    "refine_questions": "{question} [Relevance: {relevance}]",
    "rate_importance": "id {id}: relevance {relevance}, salience {salience}",
    "resolve_coreference": "{fact}",
    **dict.fromkeys(("classify_relations", "check_claims", "compare_many"), "{id}: {relation}"),
    "cover_sides": "{id}: {label}",
    **dict.fromkeys(("rate_nuggets", "assign_nuggets"), "{number}: {label}"),
    "judge_criteria": "{number}: {label} | {reason}",
    "judge_relevancy": "{number}: {label} | {reason}",
    "judge_support": "{number}: {label} | {reason}",
}
# These name their inputs by numbers, which a marker would hide
NUMBERED = ("rate_importance", "classify_relations", "check_claims", "compare_many", "cover_sides")
RECORDS = ("align_claims", "match_holistic", "list_conflicts")


def in_template(stage: str, variables: Mapping[str, Any], said: Mapping[str, Any]) -> list[str] | str:
    """Return the lines of the template without their marker, or the whole text if it is not a list."""
    value = list(said.values())[-1]
    rows = sorted(value, key=lambda row: row.get("id", 0)) if isinstance(value, list) and _are_rows(value) else value
    if stage == "evaluate_coverage":
        titles = {"covered_statements": "[Covered statements]", "uncovered_statements": "[Uncovered statements]"}
        parts = [[titles[name], *(_statement(one) for one in said[name])] for name in titles]
        return "\n\n".join("\n".join(part if part[1:] else [part[0], "None"]) for part in parts)
    if stage == "answer_questions":
        return "\n".join(f"* {variables['questions'][row['id'] - 1]}\nA: {_answers(row['answers'])}" for row in rows)
    if stage == "rate_relevance":
        return [f"{variables['statements'][row['id'] - 1]} [Relevance: {row['relevance']}]" for row in rows]
    if stage == "compare_answers":
        return f"They differ.\nsalt - ferry [{str(value).replace('_', ' ')}]"
    if stage in LINES:
        return [LINES[stage].format(**row) for row in rows]
    if stage in RECORDS:
        return [json.dumps(row) for row in rows]
    if stage in ("match_many", "check_coverage"):
        return json.dumps(said if stage == "check_coverage" else value)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    return str(value)


def _are_rows(value: Sequence[Any]) -> bool:
    return len(value) > 0 and all(isinstance(row, dict) for row in value)


def _statement(one: Mapping[str, Any]) -> str:
    return f"- {one['statement']} {one['sources']}"


def _answers(answers: Sequence[Mapping[str, Any]]) -> str:
    said = [f"{one['answer']} [Confidence: {one['confidence']}]" for one in answers]
    return " | A: ".join(said) if said else "unknown"


def forms_of(stage: str, variables: Mapping[str, Any], said: Mapping[str, Any]) -> list[str]:
    """Return a completion in each of the forms that suit a value."""
    forms = [f"Here is the result:\n\n```json\n{json.dumps(said, indent=2, ensure_ascii=False)}\n```"]
    lines = in_template(stage, variables, said)
    if isinstance(lines, str):
        return [*forms, lines]
    if not lines:
        return [*forms, "None"]
    bullet = "" if stage in ("extract_claims", "extract_verifiable_claims", *NUMBERED, *RECORDS) else "- "
    forms.append("\n".join(f"{bullet}{line}" for line in lines))
    of_labels = ("rate_nuggets", "assign_nuggets", "judge_criteria", "judge_support", "judge_relevancy")
    if stage not in (*NUMBERED, *of_labels, *RECORDS):
        forms.append("\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1)))
    rows = next((value for value in said.values() if isinstance(value, list)), [])
    if _are_rows(rows) and not any(isinstance(cell, list) and not cell for row in rows for cell in row.values()):
        table = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
        forms.append("\n".join(f"| {' | '.join(map(_cell, row))} |" for row in table))
    return forms


def _cell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize("stage", INSTANCES)
@given(data=st.data())
def test_a_value_is_read_back_from_each_of_its_forms(stage: str, data: st.DataObject) -> None:
    variables, said, expected = data.draw(INSTANCES[stage])
    for completion in forms_of(stage, variables, said):
        assert plain(STAGES[stage].parse(completion, variables)) == plain(expected), completion


HOSTILE = (
    "* a\n",
    "- a: Fact\n",
    "1. ",
    "[1, ",
    '{"a": ',
    "| a ",
    "Wait, ",
    "covered [1] ",
    "neutral, ",
    "A: a [",
    "\n ",
)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_long_completion_is_read_in_linear_time(stage: str) -> None:
    for piece in (*filter(None, FORMS[stage]), *HOSTILE):
        completion = (f"{piece}\n" * LONGEST)[:LONGEST]

        def read(completion: str = completion) -> None:
            with suppress(Unparsable):
                STAGES[stage].parse(completion, VARIABLES)

        # Work that is quadratic takes minutes
        assert seconds_of(read) < MOST_SECONDS, piece
