"""Test the stored findings about the schemas of an endpoint and a model, and their effect on the stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.settings.cases import load
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import Findings
from untold.jobs.plan import completion_limit
from untold.jobs.settings.model import Settings
from untold.udfs.llm.keys import Parameters, SchemaSupport, Stage


def settings_of(**llm: Any) -> Settings:
    return Settings.model_validate(
        {"llm": {"base_url": "http://judge.example/v1", "model": "m", **llm}, "qa": {"quantity_tool": "none"}}
    )


def bound(name: str, settings: Settings) -> Stage:
    return bind_stage(name, settings)


def test_an_unknown_model_is_probed_with_its_schema(tmp_path: Path) -> None:
    settings = settings_of()
    findings, stage = Findings(settings, str(tmp_path)), bound("check_coverage", settings)
    assert findings.applied(stage) == stage
    assert stage.structured is not None
    assert findings.needs_probe(stage)
    assert findings.can_drop_schema(stage)


@pytest.mark.parametrize("outcome", ["refused", "broken", "untried"])
def test_a_model_without_schemas_gets_no_schema_in_any_later_run(tmp_path: Path, outcome: str) -> None:
    settings = settings_of()
    stage = bound("check_coverage", settings)
    line = Findings(settings, str(tmp_path)).record(stage, SchemaSupport(outcome))
    assert line.startswith("m: ")
    later = Findings(settings, str(tmp_path))
    assert later.applied(stage) == bound("check_coverage", settings_of(structured="off"))
    assert not later.needs_probe(stage)
    # The findings do not apply to another model or another endpoint
    for other in (settings_of(model="n"), settings_of(base_url="http://other.example/v1")):
        assert Findings(other, str(tmp_path)).needs_probe(bound("check_coverage", other))


def test_a_model_with_schemas_is_probed_again_with_ratings(tmp_path: Path) -> None:
    settings = settings_of()
    findings = Findings(settings, str(tmp_path))
    plain, rated = bound("check_coverage", settings), bound("rate_importance", settings)
    findings.record(plain, SchemaSupport("taken", thinks=True))
    assert (findings.needs_probe(plain), findings.needs_probe(rated)) == (False, True)
    findings.record(rated, SchemaSupport("refused"))
    assert (findings.needs_probe(plain), findings.needs_probe(rated)) == (False, False)
    assert findings.applied(rated).structured is None
    assert findings.applied(plain) == plain
    compared = findings.applied(bound("compare_answers", settings)).structured
    assert compared is not None
    assert list(compared["schema"]["properties"]) == ["relation"]


def test_an_invalid_file_is_not_a_finding(tmp_path: Path) -> None:
    (tmp_path / "structured.json").write_text("[")
    settings = settings_of()
    assert Findings(settings, str(tmp_path)).needs_probe(bound("check_coverage", settings))
    assert Findings(settings, None).needs_probe(bound("check_coverage", settings))


def test_a_set_option_is_neither_probed_nor_dropped(tmp_path: Path) -> None:
    for form in ("json_schema", "guided_json"):
        settings = settings_of(structured=form)
        findings, stage = Findings(settings, str(tmp_path)), bound("check_coverage", settings)
        assert stage.structured is not None
        assert stage.structured["form"] == form
        assert (findings.needs_probe(stage), findings.can_drop_schema(stage)) == (False, False)


def test_stages_that_send_no_schema() -> None:
    assert bound("generate_answer", settings_of()).structured is None
    assert bound("check_coverage", settings_of(structured="off")).structured is None
    assert bound("check_coverage", settings_of(extra_body={"guided_json": {}})).structured is None
    own = Settings.model_validate({**settings_of().model_dump(), "stages": {"check_coverage": {"structured": "off"}}})
    assert (bound("check_coverage", own).structured, bound("match_one", own).structured is None) == (None, False)
    tools = Settings.model_validate({**settings_of().model_dump(), "qa": {"quantity_tool": "tool"}})
    assert bound("compare_answers", tools).structured is None
    plain = settings_of(api="completions")
    assert bound("classify_relation", plain).structured is None


def test_the_embedded_model_has_no_schema() -> None:
    assert load(endpoint="local").settings.llm.structured == "off"
    assert load("llm.base_url=http://h", "llm.model=m", "llm.structured=off").settings.llm.structured == "off"


def test_refused_parameters_are_stored_next_to_the_completions_for_every_run(tmp_path: Path) -> None:
    settings = settings_of()
    findings, stage = Findings(settings, str(tmp_path)), bound("rate_importance", settings)
    refused = Parameters(dropped=("temperature",))
    assert findings.adapt(stage, refused) == ["m: temperature is not supported; sent without it"]
    assert findings.goes_alone(stage)
    # A second refusal adds to the first one, and only the new line is reported
    renamed = Parameters(limit_name="max_completion_tokens")
    assert findings.adapt(findings.applied(stage), renamed) == [
        "m: max_tokens is not supported; sent as max_completion_tokens"
    ]
    later = Findings(settings, str(tmp_path))
    sent = later.applied(stage).decoding
    assert (set(sent), later.applied(stage)) == ({"top_p", "max_completion_tokens"}, findings.applied(stage))
    assert later.described([stage]) == {"m": refused.merged(renamed).lines()}
    for other in (settings_of(model="n"), settings_of(base_url="http://other.example/v1")):
        known = Findings(other, str(tmp_path))
        assert known.applied(bound("rate_importance", other)) == bound("rate_importance", other)


def test_a_plan_counts_the_room_that_reasoning_takes(tmp_path: Path) -> None:
    settings = settings_of()
    findings, stage = Findings(settings, str(tmp_path)), bound("check_coverage", settings)
    before = completion_limit(stage)
    findings.adapt(stage, Parameters(reasoning_tokens=768))
    assert completion_limit(Findings(settings, str(tmp_path)).applied(stage)) == before + 768
    assert completion_limit(bound("check_coverage", settings_of(reasoning_tokens=100))) == before + 100
