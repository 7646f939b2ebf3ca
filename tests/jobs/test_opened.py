"""Test how runs are opened: the shipped output, `untold open`, folders of runs, and pictures."""

from __future__ import annotations

import struct
from pathlib import Path

import matplotlib
import pytest

import untold
from tests.jobs.test_analysis import write_run
from untold.jobs.cli.main import main
from untold.jobs.run_analysis import PYTHON_LINES

SHIPPED = ("results", "meta_evaluation", *(f"nightly/2026-11-{day}" for day in range(16, 21)))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_outputs_open_and_name_their_creator(name: str) -> None:
    run = untold.open_run(untold.demo_output(name))
    assert run.status == "finished"
    assert "scripted judge" in run.manifest["made_by"]
    assert all(run.dataset(table).count_rows() for table in run.tables if table != "failures")
    files = [path for path in Path(run.directory).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 400_000


def test_shipped_results_have_the_tables_of_the_report_and_the_notebooks() -> None:
    run = untold.open_run(untold.demo_output())
    assert {row["metric"] for row in run.summary().to_pylist()} == {"e2e", "nli", "qa"}
    assert {row["status"] for row in run.statuses().to_pylist()} == {"ok", "no_statements", "failed"}
    assert "contradiction" in run.table("relations")["relation"].to_pylist()
    assert run.costs().to_pylist()[0]["cost"] > 0


def test_the_command_shows_the_tables_of_a_run_and_the_next_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["open", "--demo"]) == 0
    shown = capsys.readouterr().out.splitlines()
    where = untold.demo_output()
    assert shown[0].startswith(f"{where}: finished; ")
    assert ["scores", "117"] in [line.split() for line in shown]
    run = untold.open_run(where)
    for line in PYTHON_LINES:
        assert f"  {line}" in shown
        assert len(eval(line, {"run": run}))


@pytest.mark.parametrize("words", [[], ["out", "--demo"]])
def test_the_command_accepts_a_run_or_the_demo(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["open", *words])
    assert "give RUN or --demo" in capsys.readouterr().err


def test_runs_of_a_folder_are_sorted_by_date(tmp_path: Path) -> None:
    for name in ("2026-11-21", "2026-11-20"):
        write_run(tmp_path / name, {})
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "manifest.json").write_text('{"status": "running"}')
    (tmp_path / "completions").mkdir()
    assert [Path(run.directory).name for run in untold.open_runs(tmp_path)] == ["2026-11-20", "2026-11-21"]
    with pytest.raises(untold.UntoldError, match="no folder in it is the output of a run"):
        untold.open_runs(tmp_path / "completions")


def test_a_change_of_a_broken_system_is_significant() -> None:
    nights = untold.open_runs(untold.demo_output("nightly"))
    found = nights[0].changes(*nights[1:]).to_pylist()
    assert len(found) == 3 * (len(nights) - 1)
    unlikely = [(row["system"], row["before"], row["date"]) for row in found if row["p_adjusted"] < 0.05]
    assert unlikely == [("large", "2026-11-18", "2026-11-19"), ("large", "2026-11-19", "2026-11-20")]
    assert [row["difference"] < 0 for row in found if row["p_adjusted"] < 0.05] == [True, False]


PICTURES = ("means", "distribution", "agreement", "left_out", "statuses", "costs", "trend")


@pytest.mark.parametrize("name", [*PICTURES, "differences"])
def test_pictures_are_png_files_of_the_size_that_is_shown(name: str) -> None:
    content, shown = getattr(untold.plots, name)(untold.open_run(untold.demo_output()))._repr_png_()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width / height == pytest.approx(shown["width"] / shown["height"], rel=0.02)


def test_a_picture_does_not_depend_on_other_pictures() -> None:
    run = untold.open_run(untold.demo_output())
    first = untold.plots.costs(run)._repr_png_()
    with matplotlib.rc_context({"font.size": 30, "text.color": "red"}):
        assert untold.plots.costs(run)._repr_png_() == first


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_without_rows_are_empty_and_not_an_error(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"summary": [], "scores": []})
    assert getattr(untold.plots, name)(run)._repr_png_()[0].startswith(b"\x89PNG")


def test_a_picture_shows_the_numbers_of_the_table() -> None:
    run = untold.open_run(untold.demo_output())
    (panel, *_) = untold.plots.differences(run, metrics=["e2e"]).axes
    rows = run.differences(metrics=["e2e"]).to_pylist()
    names = [f"{row['first']} − {row['second']}" for row in rows]
    assert [text.get_text() for text in panel.get_yticklabels()] == names[::-1]
    assert [text.get_text().split()[0] for text in panel.texts] == [f"{row['difference']:+.2f}" for row in rows][::-1]
    drawn = sorted(line.get_xdata()[0] for line in panel.lines if line.get_marker() == "o")
    assert drawn == sorted(row["difference"] for row in rows)


def test_a_stage_without_a_price_is_not_free(tmp_path: Path) -> None:
    usage = [{"stage": "a", "calls": 2, "cost": 0.5}, {"stage": "b", "calls": 3, "cost": None}]
    figure = untold.plots.costs(write_run(tmp_path / "run", {"usage": usage}))
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.5000, 2 calls", "no price, 3 calls"]
