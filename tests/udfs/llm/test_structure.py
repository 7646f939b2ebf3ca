"""Test the schemas of stages with a real server: the requests, and the findings about the endpoint."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import Run, all_rows_in, ask, rows_in
from untold.udfs.llm.calls import Progress
from untold.udfs.llm.keys import SchemaFields, SchemaSupport, Stage, schema_fields
from untold.udfs.llm.responses import read_completion, read_status
from untold.udfs.llm.script import request_body
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.stages import STAGES

VARIABLES = {"fact": "Ada lives in Lyon.", "claims": ["Ada lives in Lyon.", "Ada is a nurse."]}


def stage_of(name: str, form: str | None = "json_schema", **fields: Any) -> Stage:
    definition = STAGES[name]
    names = ", ".join(f'"{variable}": {{{{ {variable} | tojson }}}}' for variable in definition.variables)
    structured = {"form": form, "schema": definition.schema} if form else None
    template = f'{{"stage": "{name}", {names}}}'
    options = {"model": "m", "rated": definition.rated, "structured": structured, **fields}
    return Stage(name, definition.variables, template=template, **options)


def body_of(stage: Stage, variables: Any = VARIABLES) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request_body(stage, compile_prompt(stage.template), variables))
    return body


def test_the_schema_of_the_request_is_sent_in_the_form_of_the_endpoint() -> None:
    named = body_of(stage_of("check_coverage"))["response_format"]["json_schema"]
    assert (named["name"], named["strict"]) == ("check_coverage", True)
    fields = named["schema"]["properties"]
    assert fields["label"]["enum"] == ["COVERED", "NOT_COVERED"]
    assert fields["evidence_claim_ids"]["items"] == {"type": "integer", "enum": [1, 2]}
    assert body_of(stage_of("check_coverage", "guided_json"))["guided_json"] == named["schema"]
    assert {"response_format", "guided_json"}.isdisjoint(body_of(stage_of("check_coverage", None)))


@pytest.mark.parametrize("name", [name for name, definition in STAGES.items() if definition.schema])
def test_shared_fields_equal_the_fields_of_each_request(name: str) -> None:
    stage = stage_of(name)
    fields = SchemaFields(stage)
    for count in (2, 0, 1, 2, 300):
        variables = dict.fromkeys(stage.variables, ["a text"] * count)
        assert fields.of(variables) == schema_fields(stage, variables)


def test_a_schema_its_form_and_its_absence_are_part_of_the_key() -> None:
    forms = ("json_schema", "guided_json", None)
    assert len({stage_of("check_coverage", form).digest for form in forms}) == 3
    thinks = SchemaSupport("taken", thinks=True).applied(stage_of("compare_answers"))
    assert thinks.digest != stage_of("compare_answers").digest
    assert "reasoning" not in thinks.structured["schema"]["properties"]  # type: ignore[index]


TRIALS = {
    "taken": (SchemaSupport("taken"), 4, "check_coverage"),
    "refused": (SchemaSupport("refused"), 1, "check_coverage"),
    # All attempts of the first request fail, and then the first attempt of the second
    "empty": (SchemaSupport("broken"), 5, "check_coverage"),
    "misplaced": (SchemaSupport("broken"), 1, "check_coverage"),
    "thinking": (SchemaSupport("taken", thinks=True), 4, "check_coverage"),
}


def tried(server: ModelServer, folder: Path, stage: Stage, rows: list[Any]) -> Progress:
    """Send the rows of a stage with an untested schema, until all rows are complete or the stage must change."""

    async def go() -> Progress:
        run = Run(server, folder, parse=STAGES[stage.name].parse, stage=stage, tries_schema=True)
        run.asker.start()
        run.asker.feed("unit", rows)
        await run.until(lambda now: bool(now.finished_units) or bool(now.finding and now.finding.changes(stage)))
        return await run.asker.stop(1.0)

    return asyncio.run(go())


@pytest.mark.parametrize("kind", TRIALS)
def test_the_first_completion_shows_the_support_for_schemas(server: ModelServer, tmp_path: Path, kind: str) -> None:
    expected, calls, name = TRIALS[kind]
    server.configure(answer="verbatim", rules=[{"do": {"schema": kind}}])
    rows = [(f"r{number}", VARIABLES | {"fact": f"Ada has {number} cats."}) for number in range(4)]
    progress = tried(server, tmp_path, stage_of(name), rows)
    assert (progress.finding, server.count()) == (expected, calls)
    assert len(rows_in(tmp_path)) == {"empty": 1}.get(kind, 4 if calls == 4 else 0)


def test_an_endpoint_that_ignores_a_schema_is_read_as_text(server: ModelServer, tmp_path: Path) -> None:
    server.configure(answer="verbatim")
    rows = [(f"r{n}", {"claim": "It is.", "evidence": [f"{n}"]}) for n in range(4)]
    progress = tried(server, tmp_path, stage_of("verify_claim"), rows)
    assert (progress.finding, server.count()) == (SchemaSupport("ignored"), 4)
    assert {row["text"] for row in rows_in(tmp_path).values()} == {"not_supported"}


@pytest.mark.parametrize(("kind", "weighs"), [("taken", True), ("unweighed", False)])
def test_ratings_have_no_schema_if_it_removes_their_probabilities(
    server: ModelServer, tmp_path: Path, kind: str, weighs: bool
) -> None:
    server.configure(answer="verbatim", rules=[{"do": {"schema": kind}}])
    stage = stage_of("rate_importance")
    progress = tried(server, tmp_path, stage, [("r", {"query": "q", "facts": ["Ada is a nurse."]})])
    finding = progress.finding
    assert finding == SchemaSupport("taken", weighs=weighs)
    assert (finding.applied(stage).structured is None) is not weighs
    assert finding.applied(stage_of("check_coverage")).structured is not None


def test_a_late_refusal_ends_the_stage_if_the_schema_is_required(server: ModelServer, tmp_path: Path) -> None:
    server.configure(answer="verbatim", rules=[{"do": {"schema": "refused"}}])

    async def go() -> Progress:
        run = Run(server, tmp_path, parse=STAGES["check_coverage"].parse, stage=stage_of("check_coverage"))
        run.asker.start()
        run.asker.feed("unit", [("r", VARIABLES)])
        await run.until(lambda now: bool(now.refused))
        return await run.asker.stop(1.0)

    refused = asyncio.run(go()).refused
    assert refused is not None
    assert refused.endswith("it takes no schema in this form, set llm.structured to auto or off")


def test_json_in_the_reasoning_is_the_completion_if_there_is_no_other() -> None:
    def read(message: dict[str, Any], *, structured: bool = True) -> Any:
        body = {"choices": [{"message": message, "finish_reason": "stop"}]}
        return read_completion(json.dumps(body).encode(), "chat", 10, structured=structured)

    for name in ("reasoning_content", "reasoning"):
        found = read({"content": None, name: ' {"label": "COVERED"}'})
        assert (found.text, found.misplaced, found.error_type) == ('{"label": "COVERED"}', True, None)
        beside = read({"content": "yes", name: "It says so."})
        assert (beside.text, beside.misplaced, beside.thinks) == ("yes", False, True)
        assert read({"content": "", name: "It says so."}).error_type == "empty"
        assert read({"content": None, name: '{"a": 1}'}, structured=False).error_type == "empty"


@pytest.mark.parametrize(
    ("content", "about"),
    [
        (b'{"error": {"message": "Unknown parameter: \'response_format\'."}}', True),
        (b'{"detail": [{"loc": ["body", "response_format"], "msg": "Extra inputs are not permitted"}]}', True),
        (b'{"error": {"message": "Failed to parse grammar", "code": 400}}', True),
        (b'{"error": {"message": "the prompt on English grammar is too long"}}', False),
        (b"Bad Request", False),
    ],
)
def test_an_error_with_the_name_of_the_field_is_about_the_schema(content: bytes, about: bool) -> None:
    assert read_status(400, content, {}).about_schema is about
    # The errors about a key, a limit and an outage are not about the schema
    assert not any(read_status(status, content, {}).about_schema for status in (401, 429, 503))


def test_a_second_attempt_is_another_request_that_names_the_form(server: ModelServer, tmp_path: Path) -> None:
    server.configure(answer="verbatim", rules=[{"when": {"attempt_below": 2}, "do": "garbage"}])
    stage = stage_of("check_coverage", None)
    ask(server, tmp_path, [("r", VARIABLES)], stage=stage, parse=STAGES["check_coverage"].parse)
    first, second = sorted(all_rows_in(tmp_path), key=lambda row: row["attempts"])
    assert (first["request_id"], first["error_type"], first["attempts"]) == ("r", "asked_again", 1)
    assert first["error"] == "unparsable: no object with a label"
    assert (second["request_id"], second["error_type"], second["attempts"]) == ("r", None, 2)
    # The prompt has some more words. Each row only contains the tokens of one call
    assert second["prompt_tokens"] > first["prompt_tokens"]
    tokens = Counter(row["prompt_tokens"] for row in (first, second))
    assert tokens == Counter(one.prompt_tokens for one in server.arrivals())


@pytest.mark.parametrize("source", ["=== system\nBe brief.\n\n=== user\n{{ claim }}", "{{ claim }}"])
def test_the_output_format_is_named_in_the_system_turn(source: str) -> None:
    stage = Stage("verify_claim", ("claim",), "m", source)
    prompt = compile_prompt(source)
    messages = json.loads(request_body(stage, prompt, {"claim": "c"}, instruction="Write a label."))["messages"]
    assert [turn["role"] for turn in messages] == ["system", "user"]
    assert messages[0]["content"].endswith("Write a label.")
    assert messages[1] == {"role": "user", "content": "c"}
    plain = replace(stage, api="completions", template="{{ claim }}")
    text = compile_prompt(plain.template, api="completions")
    body = json.loads(request_body(plain, text, {"claim": "c"}, instruction="Write a label."))
    assert body["prompt"] == "Write a label.\n\nc"
