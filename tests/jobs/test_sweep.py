"""Test the sweep over beta: the means of the samples for each beta, with a table and two pictures in the output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.graph.plotting import draw_picture
from untold.jobs.cli.main import main
from untold.jobs.cli.values import weights
from untold.jobs.run.manifest import FORMAT
from untold.jobs.run_tables import UnreadableRunError, open_run
from untold.jobs.sweep import BETAS, UnmeasuredError, draw_sweep, sweep, sweep_rows
from untold.jobs.tables import MEASURES, SCORES

# sample, system, s_fact, s_coverage
SAMPLES = [
    ("a", "x", 1.0, 0.5),
    ("b", "x", 0.25, 0.75),
    ("c", "y", 0.0, 0.0),
    ("d", None, 0.5, 1.0),
    ("e", "y", None, 0.5),
]


def by_formula(fact: float, coverage: float, beta: float) -> Fraction:
    square, first, second = Fraction(beta) ** 2, Fraction(fact), Fraction(coverage)
    total = square * first + second
    return (1 + square) * first * second / total if total else Fraction(0)


def mean(values: Iterable[Fraction]) -> float:
    known = list(values)
    return float(sum(known) / len(known))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a finished run with two metrics. The sweep does not apply to the second metric."""
    measures = [
        {"sample_id": name, "metric": "icat", "measure": measure, "value": value}
        for name, _, fact, coverage in SAMPLES
        for measure, value in (("s_fact", fact), ("s_coverage", coverage), ("claims", 4.0))
    ]
    measures += [{**row, "metric": "other", "value": 0.125} for row in measures]
    scores = [
        {"sample_id": name, "metric": metric, "system": system}
        for name, system, *_ in SAMPLES
        for metric in ("icat", "other")
    ]
    folder = tmp_path / "out"
    for name, rows, schema in (("measures", measures, MEASURES), ("scores", scores, SCORES)):
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / name / "part-0.parquet")
    (folder / "manifest.json").write_text(json.dumps({"format": FORMAT, "identity": {}, "status": "finished"}))
    return folder


def test_the_command_prints_the_rows_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(run), "--betas", "2,.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == sweep(str(run), (2.0, 0.5))


def test_means_are_of_samples_under_each_beta(run: Path) -> None:
    rows = sweep(str(run), (2.0, 0.5))
    assert open_run(run).table("beta_sweep").to_pylist() == rows
    wanted = {None: SAMPLES[:4], "x": SAMPLES[:2], "y": SAMPLES[2:3]}
    assert [(row["system"], row["beta"]) for row in rows] == [
        (system, beta) for system in wanted for beta in (0.5, 2.0)
    ]
    for row in rows:
        values = [by_formula(fact or 0, coverage or 0, row["beta"]) for _, _, fact, coverage in wanted[row["system"]]]
        assert row["mean"] == pytest.approx(mean(values))
        assert row["n"] == len(values)
        assert row["ci_low"] is None or row["ci_low"] <= row["mean"] <= row["ci_high"]
    assert (run / "pictures" / "beta_sweep.png").read_bytes().startswith(b"\x89PNG")
    assert {"beta", "0.5", "1", "2", "x", "y", "all"} <= texts_of((run / "pictures" / "beta_sweep.svg").read_bytes())


def texts_of(picture: bytes) -> set[str]:
    return {text.strip() for text in ElementTree.fromstring(picture).itertext()}


def test_ticks_and_names_are_shown_as_written() -> None:
    pairs = Counter({(0.5, 0.25): 2, (1.0, 0.5): 1})
    names = ["$x_1^2$", "_under", "日本語", "two\nlines"]
    rows = [row for system in names for row in sweep_rows(system, pairs, BETAS, seed=0)]
    shown = texts_of(draw_picture("svg", lambda: draw_sweep(rows)))
    assert {"0.125", "0.25", "0.5", "1", "2", "4", "8"} <= shown
    assert {"$x_1^2$", "_under", "日本語", "two lines"} <= shown
    assert not any("mathdefault" in text for text in shown)


def test_a_run_without_icat_is_one_line(run: Path) -> None:
    pq.write_table(pa.Table.from_pylist([], MEASURES), run / "measures" / "part-0.parquet")
    with pytest.raises(UnmeasuredError, match="no measures of icat"):
        sweep(str(run))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["summary"] = [{"metric": "icat", "level": "overall", "n": 5, "failed": 4, "undefined": 1}]
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UnmeasuredError, match=r"none of 5 samples has the measures of icat \(4 failed, 1 undefined\)"):
        sweep(str(run))
    with pytest.raises(UnreadableRunError):
        sweep(str(run / "measures"))


@given(st.dictionaries(st.tuples(st.floats(0, 1), st.floats(0, 1)), st.integers(1, 5), min_size=1, max_size=8))
def test_counts_stand_for_samples(pairs: dict[tuple[float, float], int]) -> None:
    rows = list(sweep_rows("x", Counter(pairs), BETAS, seed=0))
    assert [row["beta"] for row in rows] == list(BETAS)
    for row in rows:
        values = [by_formula(*pair, row["beta"]) for pair, times in pairs.items() for _ in range(times)]
        assert row["mean"] == pytest.approx(mean(values), abs=1e-12)


def test_a_plot_of_the_same_rows_has_the_same_bytes() -> None:
    pairs = Counter({(0.5, 0.25): 2, (1.0, 0.5): 1})
    rows = [row for system in (None, *map(str, range(20))) for row in sweep_rows(system, pairs, BETAS, seed=0)]
    assert draw_picture("svg", lambda: draw_sweep(rows)) == draw_picture("svg", lambda: draw_sweep(rows))
    assert b"the first 12 of 21 lines" in draw_picture("svg", lambda: draw_sweep(rows))


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "1001", "a,1"])
def test_an_invalid_beta_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be numbers"):
        weights(text)
