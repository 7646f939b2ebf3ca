"""Test the figure of a meta-evaluation and its published values."""

from __future__ import annotations

from typing import Any

import pytest

from untold.jobs.run.terminal import Page
from untold.jobs.study.rendering import DEJL, find_published, markdown_table, published_figures, report_lines
from untold.jobs.study.report import draw, render, render_averages


def lmr_row(metric: str, model: str, convention: str, value: float | None) -> dict[str, Any]:
    names = {"dataset": "wikicontradict", "metric": metric, "model": model, "convention": convention, "measure": "lmr"}
    return names | {"value": value, "ci_low": None, "ci_high": None, "n": 20}


@pytest.mark.gate
@pytest.mark.parametrize(("form", "head"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_figure_shows_the_existing_values(form: str, head: bytes) -> None:
    rows = [lmr_row("qa", "m", convention, value) for convention, value in (("mismatch", None), ("zero", 0.5))]
    assert draw(rows, form=form).startswith(head)
    assert draw(rows, form=form) == draw(rows, form=form)
    assert draw([], form=form).startswith(head)


@pytest.mark.gate
def test_the_figure_marks_published_values_under_their_convention() -> None:
    published, other = (draw([lmr_row("e2e", "m", name, 0.5)]) for name in ("published", "mismatch"))
    assert b">published<" in published
    assert b">published<" not in other


def test_an_unknown_picture_format_is_refused() -> None:
    with pytest.raises(ValueError, match="no picture of form 'pdf'; there are svg, png"):
        draw([], form="pdf")


@pytest.mark.parametrize("model", ["gpt-oss-120b", "openai/gpt-oss-120b", "GPT_OSS 120B"])
def test_published_figures_are_found_however_a_provider_writes_the_model(model: str) -> None:
    found = {
        (dataset, metric, measure): one["value"]
        for dataset in ("wikicontradict", "conflictbank", "average")
        for metric in ("qa", "e2e")
        for measure in ("lmr", "lmr_lax")
        if (one := find_published(dataset, metric, model, measure)) is not None
    }
    assert found == {
        ("wikicontradict", "qa", "lmr"): 0.744,
        ("wikicontradict", "e2e", "lmr"): 0.7558,
        ("conflictbank", "qa", "lmr"): 0.846,
        ("conflictbank", "qa", "lmr_lax"): 0.951,
        ("conflictbank", "e2e", "lmr"): 0.699,
        ("conflictbank", "e2e", "lmr_lax"): 0.743,
        ("average", "qa", "lmr"): 0.795,
        ("average", "e2e", "lmr"): 0.728,
    }


def test_published_means_are_consistent() -> None:
    names = ("dataset", "metric", "model", "measure")
    figures = {tuple(one[name] for name in names): one["value"] for one in published_figures(DEJL)}
    owners = {(one["metric"], one["model"]) for one in published_figures(DEJL) if one["measure"] == "lmr"}
    assert len(owners) == 15
    assert len(figures) == 75 + 2 + 10
    for owner in owners:
        strict, lax, mean = (figures["conflictbank", *owner, name] for name in ("lmr_strict", "lmr_lax", "lmr"))
        # The figures have three digits
        assert mean == pytest.approx((strict + lax) / 2, abs=0.0011)
        average = figures["average", *owner, "lmr"]
        assert average == pytest.approx((mean + figures["wikicontradict", *owner, "lmr"]) / 2, abs=0.0011)


def test_published_figures_are_next_to_ours() -> None:
    row = lmr_row("e2e", "openai/gpt-oss-120b", "published", 0.5) | {"excluded": 0, "published": 0.7558}
    report = render([row], [], {}, {}, clustered=False)
    assert "| wikicontradict | e2e | gpt-oss-120b | lmr | 0.500 | 0.7558 [0.731, 0.779] |" in report
    assert "| wikicontradict | e2e | gpt-oss-20b | lmr | - | 0.788 |" in report
    assert "| wikicontradict | qa |" not in report
    together = render_averages([row | {"dataset": "average", "published": 0.728}])
    assert "| average | e2e | gpt-oss-120b | lmr | 0.500 | 0.728 |" in together
    assert "| average | e2e | - | lmr_spread | - | 0.044 |" in together
    assert "| eli5 | e2e | Qwen2.5-72B-Instruct | mean | - | 0.739 |" in together


def test_every_cell_of_the_report_is_under_its_heading() -> None:
    shared = {"excluded": 3, "published": None}
    rows = [lmr_row("e2e", "m", "zero", 0.5) | shared, lmr_row("e2e", "m", "zero", 0.25) | shared]
    rows[1]["measure"] = "baseline_constant"

    lines = [line for line in render(rows, [], {}, {}, clustered=True).split("\n") if line.startswith("| ")]
    heads, cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], lines[2]))

    expected = {"n": "20", "left out": "3", "LMR": "0.500", "constant label": "0.250", "calls": "-"}
    assert expected.items() <= dict(zip(heads, cells, strict=True)).items()


def test_a_terminal_gets_tables_that_fit_and_a_pipe_markdown() -> None:
    names = [f"provider/a|model-of-a-long-name-{number}" for number in range(2)]
    rows = [{"metric": "e2e", "model": name, "n": 1200, "LMR": "0.802 [0.748, 0.846]"} for name in names]
    report = f"# Report\n\n{markdown_table(['metric', 'model', 'n', 'LMR'], rows)}\n"
    assert "".join(f"{line}\n" for line in report_lines(report, Page())) == report
    assert report_lines(report, Page(60))[2:] == [
        "metric  model                        n                   LMR",
        "e2e     provider/a|…long-name-0  1,200  0.802 [0.748, 0.846]",
        "e2e     provider/a|…long-name-1  1,200  0.802 [0.748, 0.846]",
    ]
