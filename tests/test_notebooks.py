"""The notebooks run from top to bottom, and `open_run` reads what they stand on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient

from untold.jobs.results import UnreadableRunError, open_run
from untold.jobs.tables import TABLES

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
RESULTS = NOTEBOOKS / "results.ipynb"
META_EVALUATION = NOTEBOOKS / "meta_evaluation.ipynb"

SHOWN = ("text/html", "image/svg+xml", "text/plain")
STRING, LONG, DOUBLE = pa.string(), pa.int64(), pa.float64()
CONTEXTS = pa.list_(pa.struct([("id", STRING), ("text", STRING)]))
SCHEMAS: dict[str, dict[str, pa.DataType]] = {
    "samples": dict.fromkeys(["sample_id", "query", "response"], STRING)
    | {"contexts": CONTEXTS, "system": STRING, "label": STRING},
    "statements": dict.fromkeys(["sample_id", "metric", "statement_id", "text"], STRING)
    | dict.fromkeys(["covered", "in_basis"], pa.bool_())
    | dict.fromkeys(["sources", "members"], pa.list_(STRING)),
    "scores": dict.fromkeys(["sample_id", "metric", "system"], STRING)
    | dict.fromkeys(["score", "score_low", "score_high"], DOUBLE)
    | dict.fromkeys(["covered", "uncovered", "unjudged", "dropped"], LONG)
    | {"status": STRING},
    "failures": dict.fromkeys(["sample_id", "metric", "stage", "request_id", "error_type", "error"], STRING),
    "usage": {"stage": STRING, "model": STRING, "requests": LONG, "calls": LONG, "cost": DOUBLE},
    "summary": dict.fromkeys(["metric", "level", "system"], STRING)
    | dict.fromkeys(["n", "scored", "undefined", "failed"], LONG)
    | dict.fromkeys(["mean", "ci_low", "ci_high", "mean_low", "mean_high"], DOUBLE),
}
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "samples": [
        ("s1", "How tall is <it>?", "828 m", [{"id": "1", "text": "It is 829.8 m tall."}], "a", None),
        ("s2", "Who wrote it?", "Ann", [{"id": "1", "text": "Ann wrote it."}], "a", None),
        ("s3", "When?", "In May", [{"id": "1", "text": "In June."}], "b", None),
    ],
    "statements": [
        ("s1", "e2e", "1", "The tower measures 829.8 m.", False, None, ["1"], None),
        ("s1", "e2e", "2", "The tower stands.", True, None, ["1"], None),
        ("s2", "e2e", "1", "Ann wrote it.", True, None, ["1"], None),
    ],
    "scores": [
        ("s1", "e2e", "a", 0.5, 0.5, 0.5, 1, 1, 0, 0, "ok"),
        ("s2", "e2e", "a", 1.0, 1.0, 1.0, 1, 0, 0, 0, "ok"),
        ("s3", "e2e", "b", None, 0.0, 1.0, None, None, None, None, "failed"),
    ],
    "failures": [("s3", "e2e", "evaluate_coverage", "0" * 32, "truncated", "finish_reason is length")],
    "usage": [("evaluate_coverage", "fake", 3, 3, 0.0)],
    "summary": [
        ("e2e", "system", "b", 1, 0, 0, 1, None, None, None, 0.0, 1.0),
        ("e2e", "system", "a", 2, 2, 0, 0, 0.75, 0.5, 1.0, 0.75, 0.75),
        ("e2e", "overall", None, 3, 2, 0, 1, 0.75, 0.5, 1.0, 0.5, 0.8333),
    ],
}


def write_table(directory: Path, name: str, rows: list[tuple[Any, ...]]) -> None:
    schema = pa.schema(SCHEMAS[name])
    records = [dict(zip(schema.names, row, strict=True)) for row in rows]
    (directory / name).mkdir()
    pq.write_table(pa.Table.from_pylist(records, schema=schema), directory / name / "part-0.parquet")


def write_run(directory: Path, status: str = "finished", rows: dict[str, list[tuple[Any, ...]]] | None = None) -> Path:
    for name, kept in (ROWS | (rows or {})).items():
        write_table(directory, name, kept)
    (directory / "manifest.json").write_text(json.dumps({"status": status}), encoding="utf-8")
    return directory


def read_notebook(path: Path) -> nbformat.NotebookNode:
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-any-return, no-untyped-call]


def execute(directory: Path, monkeypatch: pytest.MonkeyPatch, path: Path = RESULTS) -> dict[str, str]:
    """What each code cell shows, by the cell's id."""
    monkeypatch.setenv("UNTOLD_RUN", str(directory))
    notebook = read_notebook(path)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = {}
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        shown[cell["id"]] = "".join(
            out.get("text", "") or next(out["data"][kind] for kind in SHOWN if kind in out["data"]) for out in outputs
        )
    return shown


def test_results_notebook_shows_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = execute(write_run(tmp_path), monkeypatch)
    assert "finished; tables failures, samples, scores, statements, summary, usage" in shown["open"]
    assert shown["summary"].count("<tr>") == 4
    assert "0.750" in shown["summary"]
    assert "no_statements" not in shown["status"]
    assert "failed" in shown["status"]
    assert shown["least"].index("The tower measures 829.8 m. [1]") < shown["least"].index("s2")
    assert "How tall is &lt;it&gt;?" in shown["least"]
    assert "The tower stands." not in shown["least"]
    assert "truncated" in shown["failures-count"]
    assert "finish_reason is length" in shown["failures"]


def test_results_notebook_runs_where_nothing_was_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, list[tuple[Any, ...]]] = {"statements": [], "scores": ROWS["scores"][2:], "failures": []}
    assert "no sample has a score" in execute(write_run(tmp_path, rows=nothing), monkeypatch)["least"]


def write_meta_evaluation(directory: Path, dataset: str, comparisons: list[dict[str, Any]]) -> Path:
    names = {"dataset": dataset, "model": "<m>"}
    rows = [
        {**names, "metric": metric, "undefined": undefined, "measure": measure, "value": value, "ci_low": low, "n": 40}
        | {"ci_high": None if low is None else value + 0.1}
        for metric in ("e2e", "qa")
        for undefined in ("mismatch", "zero")
        for measure, value, low in (("lmr", 0.625, 0.5), ("kappa", None, None), ("floor_constant", 0.77, None))
    ]
    for name, kept in (("meta_evaluation", rows), ("comparisons", comparisons)):
        (directory / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(kept, schema=TABLES[name]), directory / name / "part-0.parquet")
    cell = {"model": "<m>", "metric": "e2e", "label": "Correct", "predicted": "Incorrect", "count": 17}
    confusion = [cell] if dataset == "wikicontradict" else []
    manifest = {"status": "finished", "dataset": dataset, "counts": {"samples": 40}, "confusion": confusion}
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return directory


def test_meta_evaluation_notebook_shows_agreement_and_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = {"dataset": "wikicontradict", "model": "<m>", "first": "e2e", "second": "qa", "difference": 0.125}
    compared |= {"p_value": 0.041, "p_adjusted": 0.082, "n": 40}
    shown = execute(write_meta_evaluation(tmp_path, "wikicontradict", [compared]), monkeypatch, META_EVALUATION)
    assert "finished; wikicontradict, 40 samples" in shown["open"]
    assert "<svg" in shown["figure"]
    assert "floor: constant label" in shown["figure"]
    assert shown["agreement"].count("<tr>") == 1 + 4
    assert "0.625 [0.500, 0.725]" in shown["agreement"]
    assert "&lt;m&gt;" in shown["agreement"]
    assert "0.082" in shown["comparisons"]
    assert "17" in shown["confusion"]


def test_meta_evaluation_notebook_runs_without_labels_and_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = execute(write_meta_evaluation(tmp_path, "conflictbank", []), monkeypatch, META_EVALUATION)
    assert "nothing to compare" in shown["comparisons"]
    assert "no labels" in shown["confusion"]


@pytest.mark.parametrize("path", [RESULTS, META_EVALUATION], ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    cells = read_notebook(path).cells
    assert [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_tables_are_read_with_all_columns_of_all_files(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    more = pa.table({"stage": ["summarise_context"], "seconds": [1.5]})
    pq.write_table(more, run / "usage" / "part-1.parquet")
    usage = open_run(run).table("usage").sort_by("stage")
    assert usage.column_names == ["stage", "model", "requests", "calls", "cost", "seconds"]
    assert usage["seconds"].to_pylist() == [None, 1.5]


def test_hidden_files_and_folders_are_no_part_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    for name in ("_temporary.parquet", ".part-0.parquet.crc", ".half.parquet", "_SUCCESS"):
        (run / "usage" / name).write_bytes(b"not parquet")
    (run / "_staging").mkdir()
    (run / "completions" / "v1").mkdir(parents=True)
    assert open_run(run).tables == tuple(sorted(SCHEMAS))
    assert open_run(run).table("usage").num_rows == 1


def test_large_tables_are_read_lazily(tmp_path: Path) -> None:
    dataset = open_run(write_run(tmp_path)).dataset("scores")
    assert dataset.count_rows() == 3
    assert dataset.schema.field("score").type == DOUBLE


def test_summary_begins_with_all_samples(tmp_path: Path) -> None:
    assert open_run(write_run(tmp_path)).summary()["system"].to_pylist() == [None, "a", "b"]


def test_a_run_is_read_by_uri(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path).as_uri())
    assert run.manifest == {"status": "finished"}
    assert run.table("scores").num_rows == 3


def test_unknown_table_names_the_near_ones(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRunError, match=r"no table 'score'; did you mean scores\?"):
        open_run(write_run(tmp_path)).table("score")


def test_a_directory_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRunError, match=r"no manifest\.json"):
        open_run(tmp_path)


def test_a_running_run_is_refused_unless_asked_for(tmp_path: Path) -> None:
    run = write_run(tmp_path, status="running")
    with pytest.raises(UnreadableRunError, match="has not ended"):
        open_run(run)
    assert open_run(run, allow_running=True).table("scores").num_rows == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_broken_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UnreadableRunError, match=r"manifest\.json"):
        open_run(tmp_path)


def test_an_unknown_kind_of_uri_is_refused() -> None:
    with pytest.raises(UnreadableRunError, match="nowhere://"):
        open_run("nowhere://bucket/run")
