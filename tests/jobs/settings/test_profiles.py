"""Test profiles: the values below the settings of the user, and the note about settings with other values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.settings.cases import SERVER, load, problems, write
from untold.jobs.metrics import METRICS
from untold.jobs.metrics.base import note_settings
from untold.jobs.settings.layers import shipped_layer, shipped_names
from untold.jobs.settings.loading import load_settings
from untold.jobs.settings.model import Settings, result_settings
from untold.jobs.settings.templates import value_of

PROFILE = "profile=published"


def told(settings: Settings, *metrics: str) -> list[str]:
    lines: list[str] = []
    note_settings(settings, [METRICS[name] for name in metrics], lines.append)
    return lines


def explained(settings: Settings, *metrics: str) -> str:
    (line,) = told(settings, *metrics)
    return line.removeprefix("profile published: you changed ").partition(". The models")[0]


@pytest.mark.parametrize("name", shipped_names("profiles"))
def test_what_a_profile_sets_is_set(name: str) -> None:
    layer = shipped_layer(f"profiles/{name}.yaml")
    settings = load(*SERVER, f"profile={name}").settings
    assert layer.problems == []
    for one in layer.assignments:
        value = value_of(settings, one.key)
        assert (list(value) if isinstance(value, tuple) else value) == one.value


def test_the_papers_differ_from_the_defaults_in_prompts_duplicates_and_cosines() -> None:
    ours, theirs = load(*SERVER).settings, load(*SERVER, PROFILE).settings
    keys = [one.key for one in shipped_layer("profiles/published.yaml").assignments]
    assert {key: value_of(theirs, key) for key in keys if value_of(ours, key) != value_of(theirs, key)} == {
        "prompt_set": "published",
        "importance.duplicates": "distance",
        "importance.claims": "window",
        "importance.evidence_chunks": None,
        "longrecall.cosine": 0.6,
    }


def test_a_profile_is_above_a_preset_and_below_all_that_the_user_sets(tmp_path: Path) -> None:
    preset = write(tmp_path, "llm: {base_url: 'http://h/v1', model: m, temperature: 0.5, top_p: 0.5}", "preset.yaml")
    config = write(tmp_path, f"profile: published\nllm: {{endpoint: {preset}, top_p: 0.9}}\n")
    found = load("importance.duplicates=none", config=config, environ={"UNTOLD_LONGRECALL__COSINE": "0.4"})
    settings = found.settings
    assert (settings.llm.temperature, settings.llm.top_p, settings.prompt_set) == (0, 0.9, "published")
    assert (settings.importance.duplicates, settings.longrecall.cosine) == ("none", 0.4)
    assert found.sources["llm.temperature"] == "conf/profiles/published.yaml"


@pytest.mark.parametrize("given", [{"overrides": [*SERVER, PROFILE]}, {"overrides": SERVER, "profile": "published"}])
def test_the_flag_is_short_for_the_setting(given: dict[str, Any]) -> None:
    found = load_settings(None, endpoint=None, environ={}, local_installed=lambda: False, **given)
    assert (found.settings.profile, found.settings.prompt_set) == ("published", "published")


def test_a_profile_that_does_not_ship_is_refused() -> None:
    assert problems(*SERVER, "profile=paper") == ["profile=paper (--set): must be published or null"]


def test_a_run_reports_its_differences_from_the_papers(tmp_path: Path) -> None:
    assert explained(load(*SERVER, PROFILE).settings, *METRICS) == "none of its settings"
    changed = (PROFILE, "llm.temperature=0.7", "thresholds.relevance=4", "longrecall.cosine=null")
    settings = load(*SERVER, *changed).settings
    assert explained(settings, "e2e") == "llm.temperature=0.7 (was 0)"
    assert explained(settings, "nli") == "llm.temperature=0.7 (was 0); thresholds.relevance=4.0 (was 3.5)"
    assert explained(settings, "longrecall") == "llm.temperature=0.7 (was 0); longrecall.cosine=null (was 0.6)"


def test_it_reports_the_difference_of_one_stage(tmp_path: Path) -> None:
    write(tmp_path, "{{ query }}{{ text }}", "summarise_context.jinja")
    changed = ("stages.evaluate_coverage.temperature=1", "stages.evaluate_coverage.prompt_set=untold")
    settings = load(*SERVER, PROFILE, *changed, f"prompts_dir={tmp_path}").settings
    assert explained(settings, "e2e").split("; ") == [
        "stages.evaluate_coverage.temperature=1.0 (was 0)",
        f"the template of summarise_context ({tmp_path}/summarise_context.jinja)",
        "the template of evaluate_coverage (conf/prompts/evaluate_coverage.jinja)",
    ]
    assert explained(load(*SERVER, PROFILE, *changed).settings, "qa") == "none of its settings"


def test_changed_prompts_are_reported_once() -> None:
    assert (
        explained(load(*SERVER, PROFILE, "prompt_set=untold").settings, *METRICS)
        == 'prompt_set="untold" (was "published")'
    )


def test_without_a_profile_there_is_no_message() -> None:
    assert told(load(*SERVER).settings, *METRICS) == []


def test_a_profile_is_not_part_of_the_identity_of_an_output() -> None:
    spelt = (
        *("prompt_set=published", "importance.duplicates=distance", "longrecall.cosine=0.6"),
        *("importance.claims=window", "importance.evidence_chunks=null"),
    )
    assert result_settings(load(*SERVER, PROFILE).settings) == result_settings(load(*SERVER, *spelt).settings)
