"""Test `untold combine-studies`: the averages of several data sets, the joint intervals and the spread over models."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.cli.main import main
from untold.jobs.meta_evaluate import CombineError, combine_studies
from untold.jobs.run.manifest import OutputError
from untold.jobs.run_tables import open_run
from untold.jobs.study_tables import MATCH_COUNTS, META_EVALUATION
from untold.udfs.statistics.intervals import joint_bca_interval

MODELS = ("org/gpt-oss-20b", "other")
Counts = dict[tuple[str, str], tuple[int, int]]  # by metric and model: the number of matches and the total number
WIKI: Counts = {("qa", MODELS[0]): (60, 100), ("qa", MODELS[1]): (50, 100), ("e2e", MODELS[0]): (90, 100)}
BANK: Counts = {("qa", MODELS[0]): (24, 30), ("qa", MODELS[1]): (18, 30)}


def write_study(folder: Path, dataset: str, counts: Counts, **manifest: Any) -> str:
    """Write an output of meta-evaluate with these matches for each convention."""
    tables: dict[str, list[dict[str, Any]]] = {"meta_evaluation": [], "match_counts": []}
    for (metric, model), (held, of) in counts.items():
        for convention in ("mismatch", "zero", "published"):
            names = {"dataset": dataset, "metric": metric, "model": model, "convention": convention, "measure": "lmr"}
            tables["meta_evaluation"].append({**names, "value": held / of, "n": of, "excluded": 0})
            for points, count in ((1, held), (0, of - held)):
                row = {**names, "scale": 1, "points": points, "size": 1, "count": count, "excluded": 0}
                tables["match_counts"].append(row)
    for name, schema in (("meta_evaluation", META_EVALUATION), ("match_counts", MATCH_COUNTS)):
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(tables[name], schema=schema), folder / name / "part-0.parquet")
    told = {"status": "finished", "identity": {"dataset": dataset}, **manifest}
    (folder / "manifest.json").write_text(json.dumps(told), encoding="utf-8")
    return str(folder)


@pytest.fixture
def studies(tmp_path: Path) -> list[str]:
    return [write_study(tmp_path / name, name, counts) for name, counts in (("wiki", WIKI), ("bank", BANK))]


def rows_of(output: Path) -> dict[tuple[str, str, str | None, str, str], dict[str, Any]]:
    rows = open_run(output).table("meta_evaluation").to_pylist()
    keys = ("dataset", "metric", "model", "convention", "measure")
    return {tuple(row[key] for key in keys): row for row in rows}  # type: ignore[misc]


def test_data_sets_count_the_same_and_the_interval_is_over_both(studies: list[str], tmp_path: Path) -> None:
    notes: list[str] = []
    combine_studies(studies, str(tmp_path / "out"), seed=3, notify=notes.append)
    rows = rows_of(tmp_path / "out")
    row = rows["average", "qa", MODELS[0], "published", "lmr"]
    expected = joint_bca_interval([([1, 0], [1, 1], [24, 6]), ([1, 0], [1, 1], [60, 40])], seed=3)
    assert (row["value"], row["ci_low"], row["ci_high"]) == (pytest.approx(0.7), expected.low, expected.high)
    assert (row["n"], row["published"]) == (130, 0.811)
    assert rows["wiki", "qa", MODELS[1], "zero", "lmr"]["value"] == 0.5
    assert ("average", "e2e", MODELS[0], "zero", "lmr") not in rows
    assert notes == [f"e2e of {MODELS[0]} has no average: it was not evaluated on bank"]


def test_the_spread_is_the_standard_deviation_over_models(studies: list[str], tmp_path: Path) -> None:
    report = combine_studies(studies, str(tmp_path / "out"), seed=0)
    row = rows_of(tmp_path / "out")["average", "qa", None, "published", "lmr_spread"]
    assert row["value"] == pytest.approx(statistics.pstdev([0.7, np.mean([0.5, 0.6])]))
    assert (row["n"], row["published"]) == (2, 0.009)
    assert f"| average | qa | {MODELS[0]} | published | 130 | 0.700 [" in report
    assert (tmp_path / "out" / "meta_evaluation.md").read_text(encoding="utf-8") == report


def test_the_command_prints_the_report_and_the_same_studies_give_the_same_bytes(
    studies: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    written = []
    for _ in range(2):
        assert main(["combine-studies", *studies, "--output", str(output)]) == 0
        assert capsys.readouterr().out == (output / "meta_evaluation.md").read_text(encoding="utf-8")
        written.append((output / "meta_evaluation" / "part-0.parquet").read_bytes())
    assert written[0] == written[1]
    assert main(["combine-studies", *studies, "--output", str(output), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == pq.read_table(output / "meta_evaluation").to_pylist()
    with pytest.raises(OutputError, match="belongs to another input"):
        combine_studies(studies[:1], str(output), seed=0)


def test_what_cannot_be_combined_is_named(studies: list[str], tmp_path: Path) -> None:
    again = write_study(tmp_path / "again", "wiki", WIKI)
    with pytest.raises(CombineError, match=f"both have e2e of {MODELS[0]} on wiki; give one"):
        combine_studies([*studies, again], str(tmp_path / "out"), seed=0)
    running = write_study(tmp_path / "failed", "other", WIKI, status="failed")
    with pytest.raises(CombineError, match="not a finished output of untold meta-evaluate"):
        combine_studies([*studies, running], str(tmp_path / "out"), seed=0)
    apart = write_study(tmp_path / "apart", "third", {("nli", MODELS[0]): (1, 2)})
    with pytest.raises(CombineError, match="cannot average"):
        combine_studies([studies[0], apart], str(tmp_path / "out"), seed=0)
    assert not (tmp_path / "out" / "meta_evaluation").exists()
