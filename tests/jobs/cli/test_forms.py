"""Test the variants of the command line: named sets of settings with their own folders and one shared store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from untold.jobs.calibrate import _Used, calibration_lines, report_of
from untold.jobs.cli.forms import FORMS, PUBLISHED, folder_of, read_form, requests_of, unpriced_models
from untold.jobs.cli.main import UNTOLD, main
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.run.terminal import Page
from untold.jobs.settings.layers import known_settings
from untold.jobs.settings.model import LlmSettings, Settings, SettingsError
from untold.jobs.settings.sections import EndpointSettings
from untold.jobs.tables import CALIBRATION
from untold.udfs.llm.usage import Usage

ENDPOINT = ["--set", "llm.base_url=http://127.0.0.1:9/v1", "--set", "llm.model=m"]


def options_of(output: Path, *words: str):  # type: ignore[no-untyped-def]
    from untold.jobs.cli.arguments import Options

    given = ["--input", "a.jsonl", "--output", str(output), "--metric", "nli", *words, *ENDPOINT]
    context = UNTOLD.commands["calibrate"].make_context("calibrate", given)
    return Options(**context.params, command_line="untold calibrate")


def test_each_variant_has_its_own_output_and_all_share_a_store(tmp_path: Path) -> None:
    options = options_of(tmp_path, "--forms", "lists of 5/a: nli.judgement=lists, nli.list_size=5", "--random", "7")
    found = requests_of(options, "nli")
    assert list(found) == [PUBLISHED, "lists of 5/a"]
    (own, published), (settings, lists) = found.values()
    assert (own, settings) == ((), ("nli.judgement=lists", "nli.list_size=5"))
    folder = folder_of("lists of 5/a")
    assert (published.output, lists.output) == (f"{tmp_path}/forms/published", f"{tmp_path}/forms/{folder}")
    assert published.store == lists.store == f"{tmp_path}/completions"
    assert (published.settings.nli.judgement, lists.settings.nli.judgement) == ("pairs", "lists")
    assert lists.settings.nli.list_size == 5
    assert published.draw == lists.draw
    assert published.draw is not None
    assert published.draw.rows == 7


def test_names_that_differ_in_any_sign_have_folders_of_their_own() -> None:
    names = ("a b", "a-b", "a/b", "a", "..", "a.b", "-", "published", "publishéd")
    folders = [folder_of(name) for name in names]
    assert len(set(folders)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", folder) and folder not in (".", "..") for folder in folders)


def test_without_variants_the_variants_of_this_release_are_tried(tmp_path: Path) -> None:
    found = requests_of(options_of(tmp_path), "nli")
    known = {name for name, own in FORMS.items() if {one.partition("=")[0] for one in own} <= known_settings().keys()}
    assert set(found) - {PUBLISHED} == {name for name in known if FORMS[name][0].startswith("nli.")}
    assert "lists of 20" in found


def test_with_a_classifier_cascades_are_tried_too(tmp_path: Path) -> None:
    found = requests_of(options_of(tmp_path, "--set", "nli.classifier=judge"), "nli")
    tried = {
        name: (request.settings.nli.classifier, request.settings.nli.classifier_threshold)
        for name, (_, request) in found.items()
    }
    certain = {f"classifier certain at {p}": ("judge", p) for p in (0.8, 0.9, 0.95, 0.99)}
    in_lists = ("lists of 20, classifier certain at 0.9", "lists of 20, filter by words, classifier certain at 0.9")
    cascades = {**certain, **dict.fromkeys(in_lists, ("judge", 0.9))}
    nli = found[in_lists[1]][1].settings.nli
    assert (nli.judgement, nli.list_size, nli.filter) == ("lists", 20, "words")
    assert {name: own for name, own in tried.items() if own[0]} == cascades
    assert {own for name, own in tried.items() if name not in cascades} == {(None, None)}
    assert found["classifier certain at 0.8"][0] == ("nli.classifier=judge", "nli.classifier_threshold=0.8")


def test_a_model_of_a_stage_without_a_price_is_reported_once(tmp_path: Path) -> None:
    small = "stages.classify_relation.model=small"
    priced = f"{small}, stages.classify_relation.price_per_million_prompt_tokens=1"
    found = requests_of(
        options_of(tmp_path, "--forms", small, "--forms", f"a: {small}", "--forms", f"b: {priced}"), "nli"
    )
    (line,) = unpriced_models(request for _, request in found.values())
    assert line.startswith(f"{small} has the prices of m. Set stages.classify_relation.price_per_million_prompt_tokens")


def test_a_plan_of_forms_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    options = options_of(tmp_path, "--forms", "nli.skip_implied=true", "--endpoint", "openai")
    options.overrides = ()
    assert list(requests_of(options, "nli", asks=False)) == [PUBLISHED, "nli.skip_implied=true"]
    with pytest.raises(SettingsError, match="OPENAI_API_KEY"):
        requests_of(options, "nli")


@pytest.mark.parametrize("text", ["", "small", "small: model", "=1"])
def test_an_invalid_variant_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="must be settings by comma"):
        read_form(text)
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "--input", "a", "--output", "b", "--metric", "nli", "--forms", text])
    assert ended.value.code == 2
    assert "must be settings by comma, such as nli.list_size=5, or NAME: settings. Got " in capsys.readouterr().err


def test_a_metric_without_variants_requires_some(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=r"longrecall has no cheaper variants\. Add --forms"):
        requests_of(options_of(tmp_path), "longrecall")


def rows_of_forms() -> list[dict[str, Any]]:
    known = {
        "requests": 3,
        "prompt_tokens": 9,
        "completion_tokens": 1,
        "seconds": 61.5,
        "samples": 2,
        "population_size": 10,
    }
    each = {"sample_requests": 1.5, "sample_prompt_tokens": 4.5, "sample_completion_tokens": 0.5, "sample_cost": 0.25}
    more = {"sample_seconds": 30.75, "cost": 0.5, "projected_cost": 2.5, "projected_hours": 0.5, "kappa": 0.99}
    ends = {"loa_low": -0.1, "loa_low_ci_low": -0.2, "loa_low_ci_high": -0.05, "same_winner": True}
    figures = {**dict.fromkeys(CALIBRATION.names), **known, **each, **more, **ends}
    return [
        {**figures, "form": "published", "settings": [], "recommended": False},
        {**figures, "form": "small", "settings": ["a.b=c d", "e=1"], "recommended": True},
    ]


def test_the_settings_of_the_recommended_form_are_there_to_copy() -> None:
    rows = rows_of_forms()
    lines = list(calibration_lines(rows, 0.95, Page()))
    assert lines[-2:] == ["recommended: small", "  --set 'a.b=c d' --set e=1"]
    lines = list(calibration_lines(rows[:1], 0.95, Page()))
    assert lines[-1] == "recommended: none, because no cheaper variant has a kappa with a lower limit of at least 0.95"


def test_figures_are_for_the_scored_samples_for_one_sample_and_for_all() -> None:
    lines = list(calibration_lines(rows_of_forms(), 0.95, Page()))
    assert lines[1].split() == ["published", "3", "10", "0.5000", "61.5", "0.990", "-", "-", "-"]
    assert lines[5].split() == ["published", "1.5", "5", "0.250000", "30.75", "2.50", "0.50"]
    report = report_of(rows_of_forms(), 0.95)
    assert "| published | 3 | 10 | 0.5000 | 61.5 | 0.990 | - | - | - |" in report
    assert "| published | 1.5 | 5 | 0.250000 | 30.75 | 2.50 | 0.50 |" in report
    assert "| published | -0.100 | -0.200 .. -0.050 | - | - |" in report


def test_hours_depend_on_the_slowest_limit_and_on_the_cores_of_tasks() -> None:
    limited = Settings(llm=LlmSettings(model="m", requests_per_minute=60, max_concurrency=4))
    stage = bind_stage("classify_relation", limited)
    used = _Used(stage, Usage(calls=60, prompt_tokens=5, seconds=60), 60, in_tasks=False)
    assert used.hours(limited, 120, 2) == pytest.approx(2.0)
    # The two endpoints run 16 calls in parallel: 10,800 calls of one second
    both = [EndpointSettings(base_url=f"http://{name}.test/v1", max_concurrency=8) for name in ("a", "b")]
    several = Settings(llm=LlmSettings(model="m", endpoints=both))
    assert used.hours(several, 16 * 60, 2) == pytest.approx(1.0)
    assert _Used(stage, Usage(seconds=3600), 0, in_tasks=True).hours(limited, 6, 2) == pytest.approx(3.0)
