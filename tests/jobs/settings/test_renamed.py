"""Old names of settings, options, values, tables and columns: each is an error that suggests the new name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.settings.cases import SERVER, problems, write
from untold.jobs.cli.main import main
from untold.jobs.settings.layers import known_settings
from untold.jobs.tables import TABLES
from untold.udfs.errors import RENAMED, near_misses

SETTINGS = {
    "prompts": "prompt_set",
    "stages.extract_facts.prompts": "stages.extract_facts.prompt_set",
    "nli.certain": "nli.classifier_threshold",
    "nli.most_missed": "nli.max_miss_rate",
    "nli.audit": "nli.audit_share",
    "rag.joint": "rag.claims_per_request",
    "nuggets.most": "nuggets.max_generated",
    "nuggets.keep": "nuggets.top_k",
    "llm.answering": "llm.backend",
    "llm.delivery": "llm.backend",
    "stages.extract_facts.delivery": "stages.extract_facts.backend",
    "work": "work_dir",
    "store": "completion_store",
}
COLUMNS = {
    "calibration": {
        "of": "population_size",
        "whole_requests": "projected_requests",
        "whole_calls": "projected_calls",
        "whole_prompt_tokens": "projected_prompt_tokens",
        "whole_completion_tokens": "projected_completion_tokens",
        "whole_cost": "projected_cost",
        "whole_seconds": "projected_seconds",
        "whole_hours": "projected_hours",
        "whole_task_seconds": "projected_task_seconds",
        "agreement_low": "loa_low",
        "agreement_high": "loa_high",
        "agreement_low_low": "loa_low_ci_low",
        "agreement_low_high": "loa_low_ci_high",
        "agreement_high_low": "loa_high_ci_low",
        "agreement_high_high": "loa_high_ci_high",
    },
    "contexts_used": {"new": "new_claims"},
    "repeatability": {"flips": "disagreement_rate"},
    "estimates": {"effective": "effective_sample_size", "second": "compared_system"},
    "meta_evaluation": {"left_out": "excluded"},
    "match_counts": {"left_out": "excluded"},
    "usage": {
        "schema": "parsed_schema",
        "form": "parsed_template",
        "lenient": "parsed_lenient",
        "asked_again": "retries_after_parse",
    },
}


@pytest.mark.parametrize(("old", "new"), SETTINGS.items())
def test_an_old_setting_is_an_error_that_names_the_new_one(tmp_path: Path, old: str, new: str) -> None:
    told = f"no such setting; the nearest is {new} ({known_settings()[new].allowed})"
    (line,) = problems(*SERVER, f"{old}=1")
    assert line == f"{old}=1 (--set): {told}"
    config = write(tmp_path, f"{old}: 1")
    assert problems(*SERVER, config=config) == [f"{old}=1 ({config}): {told}"]
    if old.startswith(("llm.", "stages.")):
        assert problems(endpoint=str(config))[0].endswith(told)


@pytest.mark.parametrize(("old", "new"), SETTINGS.items())
def test_an_old_variable_is_an_error_that_names_the_new_one(old: str, new: str) -> None:
    variables = [f"UNTOLD_{name.upper().replace('.', '__')}" for name in (old, new)]
    (line,) = problems(*SERVER, environ={variables[0]: "1"})
    assert line.startswith(f"{variables[0]}=1 (environment): no such setting; the nearest is {variables[1]} (")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("prompt_set=ours", "must be untold | published; did you mean untold?"),
        ("stages.extract_facts.prompt_set=ours", "must be untold | published or null; did you mean untold?"),
        ("llm.backend=calls", "must be process | ray-job | spool | batch; did you mean process?"),
        ("stages.extract_facts.backend=calls", "must be process | batch or null; did you mean process?"),
    ],
)
def test_an_old_value_is_an_error_that_names_the_new_one(given: str, told: str) -> None:
    assert problems(*SERVER, given) == [f"{given} (--set): {told}"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("prune", "--store", "DIR"), "No such option '--store'; did you mean --completion-store?"),
        (("meta-evaluate", "--prompts", "published"), "No such option '--prompts'; did you mean --prompt-set?"),
        (("meta-evaluate", "--prompt-set", "ours"), "(choose from untold, published); did you mean untold?"),
        (("schema", "leaning"), "did you mean source_preference?"),
    ],
)
def test_an_old_word_on_the_command_line_is_an_error_that_names_the_new_one(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("table", COLUMNS)
def test_the_new_column_is_suggested_for_an_old_one(table: str) -> None:
    for old, new in COLUMNS[table].items():
        assert old not in TABLES[table].names
        assert near_misses(old, TABLES[table].names) == [new]


def test_every_renamed_name_is_tried_here() -> None:
    tried = {old.rpartition(".")[2] for old in SETTINGS} | {old for names in COLUMNS.values() for old in names}
    assert tried | {"ours", "calls", "leaning"} == RENAMED.keys()


def test_a_word_that_is_known_keeps_its_meaning() -> None:
    assert near_misses("schema", ["schema", "parsed_schema"]) == ["schema"]
