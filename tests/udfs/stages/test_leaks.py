"""Test the items of completions that come from the examples of a prompt, and the names that identify such items."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from untold.udfs.llm.calls import Answer
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.script import script_of
from untold.udfs.llm.templates import split_turns
from untold.udfs.stages import STAGES
from untold.udfs.stages.arrow import make_parser
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.non_answers import example_names, without_leaked

CONF = Path(__file__).parents[3] / "conf"
TEMPLATES = sorted(CONF.glob("**/*.jinja"))
NAMES = ("Orla Venn", "Dorra 5", "Osk")
# Words with a capital letter that are not names, and words about the task
ORDINARY = {
    *("March", "May", "June", "Friday", "I", "V"),
    *("None", "Match", "Format", "Statement"),
}


def read(stage: str, completion: str, template: str, **variables: Any) -> dict[str, Any]:
    """Return the row of a completion of a stage with this template."""
    bound = Stage(stage, STAGES[stage].variables, "m", template=template)
    row = {**variables, "request_id": "r", "text_of_completion": completion, "error_type": None, "error": None}
    row |= {"alternatives": None} if STAGES[stage].rated else {}
    (batch,) = make_parser(bound, ())(iter([pa.RecordBatch.from_pylist([row])]))
    found: dict[str, Any] = batch.to_pylist()[0]
    assert found["error_type"] is None, found["error"]
    return found


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Orla Venn painted.", []),
        ("Osks are small, and oskar too.", ["Osks are small, and oskar too."]),
        ("The pump Dorra 5 is here.", ["The pump Dorra 5 is here."]),
        ("The Dorra 50 is here.", ["The Dorra 50 is here."]),
        ("Osk has a Dorra 5.", []),
    ],
)
def test_an_item_with_a_name_that_no_input_has_is_removed(text: str, kept: list[str]) -> None:
    variables = {"text": "It speaks of the DORRA 5.", "limit": 3, "facts": ["another"]}

    found, leaked = without_leaked({"facts": [text]}, ["facts"], variables, NAMES)

    assert (found["facts"], leaked) == (kept, 1 - len(kept))


def test_names_of_items_in_lists_of_inputs_are_known() -> None:
    given = {"facts": ["Osk is old."]}

    assert without_leaked(given, ["facts"], {"contexts": ["calm", "In Osk."]}, NAMES) == (given, 0)


@pytest.mark.parametrize(
    ("stage", "completion", "variables", "kept"),
    [
        ("extract_facts", "- Osk is old.\n- Lyon is old.", {"text": "Lyon is old"}, {"facts": ["Lyon is old."]}),
        ("extract_claims", "Osk is old.\nLyon is old.", {"text": "Lyon is old"}, {"claims": ["Lyon is old."]}),
        (
            "extract_verifiable_claims",
            "Osk is old.\nLyon is old.",
            dict.fromkeys(("query", "before", "sentence", "after"), "Lyon?"),
            {"claims": ["Lyon is old."]},
        ),
        ("mine_questions", "* How old is Osk?\n* What is Lyon?", {}, {"questions": ["What is Lyon?"]}),
        (
            "refine_questions",
            "* How old is Osk? [Relevance: 5]\n* What is Lyon? [Relevance: 2]",
            {"questions": ["What is Lyon?"]},
            {"questions": ["What is Lyon?"], "ratings": [2.0]},
        ),
        ("generate_aspects", '{"topic": "Osk"}\n{"topic": "Lyon"}', {}, {"aspects": ["Lyon"]}),
        ("create_nuggets", "- Osk is old\n- Lyon is old", {"nuggets": ["Lyon"]}, {"nuggets": ["Lyon is old"]}),
        (
            "extract_atoms",
            "- Osk is old: Fact\n- Lyon is old: Fact",
            {"text": "Lyon"},
            {"atoms": [{"text": "Lyon is old", "unit_type": "Fact"}]},
        ),
        (
            "revise_atoms",
            "* Osk is old\n* Lyon is old",
            {"text": "", "statements": ["a", "b"]},
            {"atoms": ["Lyon is old"]},
        ),
        (
            "evaluate_coverage",
            "[Covered statements]\n- Osk is old. [1]\n[Uncovered statements]\n- Lyon is old. [1]",
            {"contexts": ["Lyon is old."], "response": ""},
            {"dropped": 0, "statements": [{"text": "Lyon is old.", "covered": False, "sources": [1]}]},
        ),
        (
            "list_conflicts",
            '{"first": "Osk is old.", "first_sources": [1], "second": "Osk is new.", "second_sources": [2]}\n'
            '{"first": "Lyon is old.", "first_sources": [1], "second": "Lyon is new.", "second_sources": [2]}',
            {"contexts": ["Lyon is old.", "Lyon is new."]},
            {
                "conflicts": [
                    {
                        "first": {"text": "Lyon is old.", "sources": [1]},
                        "second": {"text": "Lyon is new.", "sources": [2]},
                    }
                ]
            },
        ),
    ],
)
def test_leaked_items_of_every_stage_with_items_are_dropped_and_counted(
    stage: str, completion: str, variables: dict[str, Any], kept: dict[str, Any]
) -> None:
    given = {"query": "Lyon", "text": "Lyon", "texts": [], "most": 9, **variables}
    asked = {name: given[name] for name in STAGES[stage].variables}

    found = read(stage, completion, "{# names: Osk #}\n=== user\n{{ query }}", **asked)

    assert {name: found[name] for name in kept} == kept
    assert found["leaked_example"] == 1
    assert read(stage, completion, "=== user\n{{ query }}", **asked)["leaked_example"] == 0


@pytest.mark.parametrize(
    ("stage", "completion"),
    [
        ("extract_claims", "Osk is old.\nIn Osk there is a mill."),
        ("generate_aspects", '{"topic": "Osk"}'),
        ("extract_atoms", "- Osk is old: Fact"),
    ],
)
def test_a_completion_of_leaked_items_alone_is_unparsable(stage: str, completion: str) -> None:
    variables = dict.fromkeys(STAGES[stage].variables, "Lyon")

    with pytest.raises(Unparsable, match="only items of the prompt's examples"):
        STAGES[stage].accept(completion, variables, ("Osk",))


def test_the_cases_above_are_all_stages_with_items() -> None:
    (cases,) = (mark.args[1] for mark in test_leaked_items_of_every_stage_with_items_are_dropped_and_counted.pytestmark)

    assert {stage for stage, *_ in cases} == {name for name, stage in STAGES.items() if stage.items}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(CONF)))
def test_every_shipped_template_lists_the_names_of_its_examples(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    names = example_names(source)
    examples = "\n".join(text for role, text, _ in split_turns(source)[1:-1])
    examples = examples or source.split("an instruction to you.", 1)[1].rpartition("<premise>")[0]

    assert names
    assert not [name for name in names if source.count(name) < 2]
    rest = re.sub("|".join(sorted(map(re.escape, names), key=len, reverse=True)), "", examples)
    # A capital letter after a small letter, a comma or a number does not start a sentence
    unnamed = set(re.findall(r"(?<=[a-z,0-9] )[A-Z]\w*", rest)) - ORDINARY
    assert not unnamed


LEAKED = "The last miller of Osk moved to Lundvast in 1938."


@pytest.mark.parametrize(
    ("stage", "variables"),
    [
        ("summarise_context", {"query": "Who was the miller?", "text": "The mill of Lyon was sold."}),
        ("restate_answer", {"question": "Who was the miller?", "answer": "Ada Mill"}),
    ],
)
def test_a_text_of_the_examples_is_unparsable_for_actors_and_readers(stage: str, variables: dict[str, str]) -> None:
    names = example_names((CONF / "prompts" / f"{stage}.jinja").read_text(encoding="utf-8"))
    assert "Osk" in names
    with pytest.raises(Unparsable, match="examples"):
        STAGES[stage].accept(LEAKED, variables, names)
    own = {name: f"{text} Osk and Lundvast are meant." for name, text in variables.items()}
    for asked, said in ((own, LEAKED), (variables, "The last miller moved in 1938.")):
        output, leaked = STAGES[stage].accept(said, asked, names)
        assert (list(output.values()), leaked) == ([said], 0)
    template = (CONF / "prompts" / f"{stage}.jinja").read_text(encoding="utf-8")
    bound = Stage(stage, STAGES[stage].variables, "m", template=template)
    script = script_of(bound, partial(STAGES[stage].accept, names=names))
    assert script.read(Answer(LEAKED), variables).error_type == "unparsable"
