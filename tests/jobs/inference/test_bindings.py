from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from untold.jobs.inference.stage.bindings import SUFFIXES, bind_stage, checked_template, order_of_prompt
from untold.jobs.settings.model import LlmSettings, PromptSet, Settings, SettingsError, StageSettings
from untold.jobs.settings.templates import find_template, stages_that_differ, template_of
from untold.udfs.llm.templates import PromptError, check_variables, compile_prompt, split_turns
from untold.udfs.stages import STAGES

STAGE = "summarise_context"
PUBLISHED = ("check_coverage", "classify_relation", "evaluate_coverage", "extract_facts", "rate_importance")


def settings(**fields: Any) -> Settings:
    llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
    return Settings(**{"llm": llm, **fields})


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_bytes(text.encode("utf-8"))
    return str(folder)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_a_shipped_template_with_its_variables(stage: str) -> None:
    template = find_template(stage, "chat", None)
    compile_prompt(template.source, name=stage)
    check_variables(template.source, STAGES[stage].variables, name=stage)
    assert template.origin == f"conf/prompts/{stage}.jinja"


@pytest.mark.parametrize("stage", STAGES)
def test_every_shipped_template_uses_all_variables_of_its_stage(stage: str) -> None:
    source = find_template(stage, "chat", None).source
    for variable in STAGES[stage].variables:
        others = tuple(name for name in STAGES[stage].variables if name != variable)
        with pytest.raises(PromptError, match=f"unknown variable {variable}"):
            check_variables(source, others, name=stage)


@pytest.mark.parametrize(
    ("stage", "api"), [(name, "chat") for name in PUBLISHED] + [("classify_relation", "completions")]
)
def test_stages_whose_duty_differs_in_the_papers_have_a_template_of_it(stage: str, api: str) -> None:
    ours, theirs = (find_template(stage, api, None, prompts) for prompts in ("untold", "published"))
    for variable in STAGES[stage].variables:
        others = tuple(name for name in STAGES[stage].variables if name != variable)
        with pytest.raises(PromptError, match=f"unknown variable {variable}"):
            check_variables(theirs.source, others, api=api, name=stage)
    assert theirs.origin == ours.origin.replace("prompts/", "prompts/published/")
    assert not set(sentences(ours.source)) & set(sentences(theirs.source))


def sentences(source: str) -> list[str]:
    """Return the sentences of a system turn, without the shared sentence and the sentences about the output format."""
    first = split_turns(source)[0][1].split("<premise>")[0]
    return [
        one
        for one in first.replace("\n", ". ").split(". ")
        if len(one) > 30 and not re.search("an instruction|[Ww]rite", one)
    ]


@pytest.mark.parametrize("prompts", ["untold", "published"])
def test_examples_of_coverage_and_relations_are_in_the_form(prompts: PromptSet) -> None:
    for said in examples("evaluate_coverage", prompts):
        found = STAGES["evaluate_coverage"].parse(said, {"query": "", "contexts": ["a", "b"], "response": ""})
        assert (len(found["statements"]), found["dropped"]) == (said.count("\n- "), 0)
    relations = examples("classify_relation", prompts)
    assert set(relations) == {"entailment", "contradiction", "neutral"}
    assert relations == [STAGES["classify_relation"].parse(said, {})["relation"] for said in relations]


def examples(stage: str, prompts: PromptSet) -> list[str]:
    return [
        text for role, text, _ in split_turns(find_template(stage, "chat", None, prompts).source) if role == "assistant"
    ]


def test_the_papers_duty_is_chosen_for_all_stages_or_for_one() -> None:
    def origins(**fields: Any) -> dict[str, str]:
        return {name: template_of(name, settings(**fields)).origin.split("/")[2] for name in STAGES}

    assert stages_that_differ() == set(PUBLISHED)
    assert "published" not in origins().values()
    chosen = origins(prompt_set="published")
    assert {name for name, folder in chosen.items() if folder == "published"} == set(PUBLISHED)
    one = origins(stages={"extract_facts": StageSettings(prompt_set="published")})
    assert [name for name, folder in one.items() if folder == "published"] == ["extract_facts"]
    but_one = origins(prompt_set="published", stages={"extract_facts": StageSettings(prompt_set="untold")})
    assert {name for name, folder in but_one.items() if folder == "published"} == set(PUBLISHED) - {"extract_facts"}


def test_whose_duty_a_template_has_is_part_of_the_key_and_only_of_its_stages() -> None:
    def digests(prompts: str) -> dict[str, str]:
        return {name: bind_stage(name, settings(prompt_set=prompts)).digest for name in STAGES}

    ours, theirs = digests("untold"), digests("published")
    assert {name for name in STAGES if ours[name] != theirs[name]} == set(PUBLISHED)


def test_a_file_of_the_user_beats_both(tmp_path: Path) -> None:
    folder = write(tmp_path, "extract_facts.jinja", "mine {{ text }}")
    assert (
        bind_stage("extract_facts", settings(prompts_dir=folder, prompt_set="published")).template == "mine {{ text }}"
    )


@pytest.mark.parametrize("stage", STAGES)
def test_every_shipped_template_ends_with_a_user_turn(stage: str) -> None:
    assert split_turns(find_template(stage, "chat", None).source)[-1][0] == "user"


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        ("check_coverage", ("claims", "fact")),
        ("verify_claim", ("evidence", "claim")),
        ("evaluate_coverage", ("query", "contexts", "response")),
    ],
)
def test_what_prompts_share_comes_first_in_their_order(stage: str, order: tuple[str, ...]) -> None:
    assert order_of_prompt(bind_stage(stage, settings())) == order


def test_a_template_of_the_user_has_its_own_order(tmp_path: Path) -> None:
    folder = write(tmp_path, "check_coverage.jinja", "=== system\nOf {{ fact }}\n\n=== user\n{{ claims | tojson }}")
    assert order_of_prompt(bind_stage("check_coverage", settings(prompts_dir=folder))) == ("fact", "claims")


def test_a_lookup_has_no_prompt_to_order() -> None:
    stage = bind_stage("embed_text", settings())
    assert order_of_prompt(stage) == stage.variables


def test_every_shipped_template_belongs_to_a_stage() -> None:
    shipped = {path.name for path in files("untold.conf").joinpath("prompts").iterdir() if path.is_file()}
    assert {name.split(".")[0] for name in shipped} == set(STAGES)


def test_a_file_of_the_user_has_priority_over_the_shipped_file(tmp_path: Path) -> None:
    folder = write(tmp_path, f"{STAGE}.jinja", "mine {{ query }}")
    template = find_template(STAGE, "chat", folder)
    assert (template.source, template.api, template.origin) == ("mine {{ query }}", "chat", f"{folder}/{STAGE}.jinja")


@pytest.mark.parametrize(("wanted", "written"), [("chat", "completions"), ("completions", "chat")])
def test_a_file_of_the_user_fixes_the_form(tmp_path: Path, wanted: str, written: str) -> None:
    folder = write(tmp_path, f"{STAGE}{SUFFIXES[written]}", "mine")
    assert find_template(STAGE, wanted, folder).api == written


@pytest.mark.parametrize("wanted", ["chat", "completions"])
def test_of_two_files_of_the_user_the_wanted_form_counts(tmp_path: Path, wanted: str) -> None:
    for form, suffix in SUFFIXES.items():
        write(tmp_path, f"{STAGE}{suffix}", form)
    template = find_template(STAGE, wanted, str(tmp_path))
    assert (template.source, template.api) == (wanted, wanted)


def test_files_of_other_names_are_ignored(tmp_path: Path) -> None:
    for name in ("README.md", "no_such_stage.jinja", f"{STAGE}.jinja.bak", f"{STAGE}.txt", f"my-{STAGE}.jinja"):
        write(tmp_path, name, "{% broken")
    (tmp_path / f"{STAGE}.text.jinja").mkdir()
    assert find_template(STAGE, "chat", str(tmp_path)) == find_template(STAGE, "chat", None)


def test_a_variant_without_a_template_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    for folder in (None, str(tmp_path)):
        with pytest.raises(SettingsError) as raised:
            find_template(STAGE, "completions", folder)
        message = str(raised.value)
        assert f"stages.{STAGE}.api" in message
        assert f"{STAGE}.text.jinja" in message
        assert "prompts_dir" in message


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"prompts_dir: .*nowhere is not a folder"):
        find_template(STAGE, "chat", str(tmp_path / "nowhere"))


def test_a_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / f"{STAGE}.jinja").write_bytes(b"\xff\xfe{{ query }}")
    with pytest.raises(SettingsError, match=r"summarise_context\.jinja cannot be read as UTF-8"):
        find_template(STAGE, "chat", str(tmp_path))


def test_a_bound_stage_has_template_model_and_decoding(tmp_path: Path) -> None:
    folder = write(tmp_path, f"{STAGE}.jinja", "{{ query }}: {{ text }}")
    bound = bind_stage(STAGE, settings(prompts_dir=folder, stages={STAGE: StageSettings(model="n", max_tokens=9)}))
    assert (bound.name, bound.variables) == (STAGE, ("query", "text"))
    assert (bound.template, bound.model, bound.max_tokens) == ("{{ query }}: {{ text }}", "n", 9)
    assert (bound.temperature, bound.top_p, bound.api, bound.model_key) == (0, 1, "chat", None)


def test_a_plain_template_makes_a_plain_stage(tmp_path: Path) -> None:
    folder = write(tmp_path, f"{STAGE}.text.jinja", "{{ query }}: {{ text }}")
    assert bind_stage(STAGE, settings(prompts_dir=folder)).api == "completions"


def test_a_local_file_replaces_its_model_in_the_key() -> None:
    bound = bind_stage(STAGE, settings(), embedded_model="ab" * 32)
    assert bound.model_key == "sha256:" + "ab" * 32


@pytest.mark.parametrize("llm", [{"base_url": "http://other/v1"}, {"timeout_seconds": 7}, {"requests_per_minute": 9}])
def test_how_an_endpoint_is_called_is_not_in_the_key(llm: dict[str, Any]) -> None:
    moved = Settings(llm=LlmSettings(**{"base_url": "http://127.0.0.1:9/v1", "model": "m", **llm}))
    assert bind_stage(STAGE, moved).digest == bind_stage(STAGE, settings()).digest


def test_a_salt_is_in_the_key_and_not_in_the_request() -> None:
    plain = bind_stage(STAGE, settings())
    salted = bind_stage(STAGE, Settings(llm=settings().llm.model_copy(update={"salt": "2026-11-23"})))
    assert salted.digest != plain.digest
    assert replace(salted, salt=None).digest == plain.digest
    assert (salted.template, salted.decoding) == (plain.template, plain.decoding)


def test_one_byte_of_a_template_changes_the_key(tmp_path: Path) -> None:
    digests = set()
    for text in ("{{ query }} {{ text }}", "{{ query }}  {{ text }}"):
        folder = write(tmp_path, f"{STAGE}.jinja", text)
        digests.add(bind_stage(STAGE, settings(prompts_dir=folder)).digest)
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ quary }}", "unknown variable quary. The stage has query, text"),
        ("{% include 'x' %}", "cannot include another"),
        ("{{ query", "line 1: unexpected end of template"),
        ("=== system\n{% if query %}\n=== user\n{% endif %}", "line 2: Unexpected end of template"),
        ("=== user\n{{ query }}\n{{ text.name }}", "line 3: 'str object' has no attribute"),
    ],
)
def test_a_template_that_cannot_be_used_is_an_error_before_any_call(tmp_path: Path, text: str, message: str) -> None:
    folder = write(tmp_path, f"{STAGE}.jinja", text)
    with pytest.raises(PromptError, match=message) as raised:
        bind_stage(STAGE, settings(prompts_dir=folder))
    assert str(raised.value).startswith(f"{folder}/{STAGE}.jinja line ")


@pytest.mark.parametrize("stage", STAGES)
def test_every_shipped_template_can_be_filled_in(stage: str) -> None:
    assert STAGES[stage].examples is not None
    checked_template(stage, settings())
