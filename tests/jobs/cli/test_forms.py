"""Forms on the command line: sets of settings with names, each asked into a folder of its own, over one store."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from untold.jobs.calibrate import calibration_lines
from untold.jobs.cli.forms import FORMS, PUBLISHED, read_form, requests_of, unpriced_models
from untold.jobs.cli.main import UNTOLD, main
from untold.jobs.run.terminal import Page
from untold.jobs.settings.layers import known_settings

ENDPOINT = ["--set", "llm.base_url=http://127.0.0.1:9/v1", "--set", "llm.model=m"]


def options_of(output: Path, *words: str):  # type: ignore[no-untyped-def]
    from untold.jobs.cli.arguments import Options

    given = ["--input", "a.jsonl", "--output", str(output), "--metric", "nli", *words, *ENDPOINT]
    context = UNTOLD.commands["calibrate"].make_context("calibrate", given)
    return Options(**context.params, command_line="untold calibrate")


def test_each_form_has_an_output_of_its_own_and_all_share_a_store(tmp_path: Path) -> None:
    options = options_of(tmp_path, "--forms", "lists of 5/a: nli.judgement=lists, nli.list_size=5", "--random", "7")
    found = requests_of(options, "nli")
    assert list(found) == [PUBLISHED, "lists of 5/a"]
    (own, published), (settings, lists) = found.values()
    assert (own, settings) == ((), ("nli.judgement=lists", "nli.list_size=5"))
    assert (published.output, lists.output) == (f"{tmp_path}/forms/published", f"{tmp_path}/forms/lists-of-5-a")
    assert published.store == lists.store == f"{tmp_path}/completions"
    assert (published.settings.nli.judgement, lists.settings.nli.judgement) == ("pairs", "lists")
    assert lists.settings.nli.list_size == 5
    assert published.draw == lists.draw
    assert published.draw is not None
    assert published.draw.rows == 7


def test_without_forms_those_that_this_release_knows_are_tried(tmp_path: Path) -> None:
    found = requests_of(options_of(tmp_path), "nli")
    known = {name for name, own in FORMS.items() if {one.partition("=")[0] for one in own} <= known_settings().keys()}
    assert set(found) - {PUBLISHED} == {name for name in known if FORMS[name][0].startswith("nli.")}
    assert "lists of 20" in found


def test_with_a_classifier_cascades_are_tried_beside_forms_without(tmp_path: Path) -> None:
    found = requests_of(options_of(tmp_path, "--set", "nli.classifier=judge"), "nli")
    tried = {
        name: (request.settings.nli.classifier, request.settings.nli.certain) for name, (_, request) in found.items()
    }
    certain = {f"classifier certain at {p}": ("judge", p) for p in (0.8, 0.9, 0.95, 0.99)}
    cascades = {**certain, "lists of 20, classifier certain at 0.9": ("judge", 0.9)}
    assert {name: own for name, own in tried.items() if own[0]} == cascades
    assert {own for name, own in tried.items() if name not in cascades} == {(None, None)}
    assert found["classifier certain at 0.8"][0] == ("nli.classifier=judge", "nli.certain=0.8")


def test_a_model_of_a_stage_without_a_price_of_its_own_is_told_once(tmp_path: Path) -> None:
    small = "stages.classify_relation.model=small"
    priced = f"{small}, stages.classify_relation.price_per_million_prompt_tokens=1"
    found = requests_of(
        options_of(tmp_path, "--forms", small, "--forms", f"a: {small}", "--forms", f"b: {priced}"), "nli"
    )
    (line,) = unpriced_models(request for _, request in found.values())
    assert line.startswith(
        f"{small}: has the prices of m; set stages.classify_relation.price_per_million_prompt_tokens"
    )


@pytest.mark.parametrize("text", ["", "small", "small: model", "=1"])
def test_what_is_no_form_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="must be settings"):
        read_form(text)
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "--input", "a", "--output", "b", "--metric", "nli", "--forms", text])
    assert ended.value.code == 2
    assert "must be settings such as nli.list_size=5, by comma, or NAME: settings; got" in capsys.readouterr().err


def test_a_metric_without_forms_of_its_own_asks_for_some(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="longrecall has no cheaper forms of its own; give --forms"):
        requests_of(options_of(tmp_path), "longrecall")


def test_the_settings_of_the_recommended_form_are_there_to_copy() -> None:
    figures = dict.fromkeys(("cost", "whole_cost", "kappa", "kappa_low", "kappa_high", "difference", "tau"))
    counts = {"requests": 3, "prompt_tokens": 9, "completion_tokens": 1, "whole_hours": 0.5, "of": 10, "samples": 2}
    rows = [
        {**figures, **counts, "form": "published", "settings": [], "recommended": False},
        {**figures, **counts, "form": "small", "settings": ["a.b=c d", "e=1"], "recommended": True},
    ]
    lines = list(calibration_lines(rows, 0.95, Page()))
    assert lines[-2:] == ["recommended: small", "  --set 'a.b=c d' --set e=1"]
    lines = list(calibration_lines(rows[:1], 0.95, Page()))
    assert lines[-1] == "recommended: none; no cheaper form has a kappa whose lower end is at least 0.95"
