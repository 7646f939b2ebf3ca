"""The notebooks run from top to bottom, and `open_run` reads what they stand on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient

from tests.fakes.model_server import ModelServer
from tests.fakes.world_importance import importance_worlds
from tests.runs.harness import write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder
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


def write_run(
    directory: Path,
    status: str = "finished",
    rows: Mapping[str, list[tuple[Any, ...]]] | None = None,
    names: Iterable[str] = ROWS,
) -> Path:
    directory.mkdir(exist_ok=True)
    for name in names:
        write_table(directory, name, {**ROWS, **(rows or {})}[name])
    (directory / "manifest.json").write_text(json.dumps({"status": status}), encoding="utf-8")
    return directory


def read_notebook(path: Path) -> nbformat.NotebookNode:
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-any-return, no-untyped-call]


Shown = dict[str, str]


def execute(given: Mapping[str, tuple[Path, Path]]) -> dict[str, Shown]:
    """What each code cell shows, by its id, for each notebook and the run that it reads: all of them in one kernel."""
    whole = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    parts = {name: read_notebook(path).cells for name, (path, _) in given.items()}
    for name, (_, run) in given.items():
        source = f"import os; os.environ['UNTOLD_RUN'] = {str(run)!r}"
        whole.cells.append(nbformat.v4.new_code_cell(source))  # type: ignore[no-untyped-call]
        whole.cells += [nbformat.NotebookNode(cell | {"id": f"{name}-{cell['id']}"}) for cell in parts[name]]
    NotebookClient(whole, timeout=300, kernel_name="python3", allow_errors=True).execute()
    outputs = {cell["id"]: "".join(map(output_text, cell.get("outputs", []))) for cell in whole.cells}
    return {name: {cell["id"]: outputs[f"{name}-{cell['id']}"] for cell in cells} for name, cells in parts.items()}


def output_text(output: Mapping[str, Any]) -> str:
    if output["output_type"] == "error":
        return f"ERROR {output['ename']}: {output['evalue']}"
    if "text" in output:
        return str(output["text"])
    return str(next(output["data"][kind] for kind in SHOWN if kind in output["data"]))


METRICS = ("e2e", "qa", "nli", "icat", "importance", "longrecall")


@pytest.fixture(scope="module")
def six(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job of all six metrics wrote."""
    folder = tmp_path_factory.mktemp("six")
    (world,) = [world for world in importance_worlds(7) if world.kind == "rated"]
    path = write_samples(folder / "samples.jsonl", world.samples(2))
    with ModelServer(answer="world") as server:
        ended = run_here(server, path, folder / "out", "--metric", ",".join(METRICS), settings=embedder(server))
    assert ended.code == 0, ended.err
    return folder / "out"


@pytest.fixture(scope="module")
def shown(six: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    """Both notebooks over every kind of output."""
    folder = tmp_path_factory.mktemp("runs")
    nothing: dict[str, list[tuple[Any, ...]]] = {"statements": [], "scores": ROWS["scores"][2:]}
    runs = {
        "run": write_run(folder / "run"),
        "six": six,
        "failures": write_run(folder / "failures", rows=nothing),
        "empty": write_run(folder / "empty", rows={name: [] for name in ROWS}),
        "bare": write_run(folder / "bare", "failed", rows={}, names=()),
    }
    compared = {"dataset": "wikicontradict", "model": "<m>", "first": "e2e", "second": "qa", "difference": 0.125}
    compared |= {"p_value": 0.041, "p_adjusted": 0.082, "n": 40}
    failed = [row | {"value": None, "ci_low": None, "ci_high": None, "n": 0} for row in label_rows(METRICS[:3])]
    studies = {
        "labels": write_study(folder / "labels", "wikicontradict", label_rows(METRICS[:3]), [compared]),
        "coverage": write_study(folder / "coverage", "coverage", coverage_rows()),
        "all": write_study(folder / "all", "coverage", [*label_rows(METRICS[:3]), *coverage_rows()]),
        "lost": write_study(folder / "lost", "wikicontradict", failed),
        "none": write_study(folder / "none", "conflictbank", []),
        "no study": runs["bare"],
        "scores": six,
    }
    given = {f"results {name}": (RESULTS, run) for name, run in {**runs, "study": studies["labels"]}.items()}
    given |= {f"study {name}": (META_EVALUATION, run) for name, run in studies.items()}
    return execute(given)


def test_both_notebooks_run_to_their_end_over_every_kind_of_output(shown: dict[str, Shown]) -> None:
    texts = {f"{name}: {cell}": text for name, cells in shown.items() for cell, text in cells.items()}
    assert {place: text for place, text in texts.items() if "ERROR" in text} == {}


def test_results_notebook_shows_the_run(shown: dict[str, Shown]) -> None:
    cells = shown["results run"]
    assert "finished; tables failures, samples, scores, statements, summary, usage" in cells["open"]
    assert cells["summary"].count("<tr>") == 4
    assert "0.750" in cells["summary"]
    assert "no_statements" not in cells["status"]
    assert "failed" in cells["status"]
    assert cells["least"].index("The tower measures 829.8 m. [1]") < cells["least"].index("s2")
    assert "How tall is &lt;it&gt;?" in cells["least"]
    assert "The tower stands." not in cells["least"]
    assert "truncated" in cells["failures-count"]
    assert "finish_reason is length" in cells["failures"]


def test_results_notebook_shows_a_run_of_all_metrics(shown: dict[str, Shown]) -> None:
    cells = shown["results six"]
    assert all(f">{metric}</td>" in cells[cell] for metric in METRICS for cell in ("summary", "status", "least"))


@pytest.mark.parametrize("name", ["failures", "empty", "bare", "study"])
def test_results_notebook_runs_where_nothing_was_scored(shown: dict[str, Shown], name: str) -> None:
    cells = shown[f"results {name}"]
    assert "no sample has a score" in cells["least"]
    assert ("truncated" in cells["failures-count"]) == (name == "failures")


LMR = (("lmr", 0.625, 0.5), ("kappa", None, None), ("baseline_constant", 0.77, None))


def label_rows(metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Agreement with labels of whole responses."""
    names = {"dataset": "wikicontradict", "model": "<m>", "n": 40}
    return [
        {**names, "metric": metric, "convention": convention, "measure": measure, "value": value, "ci_low": low}
        | {"ci_high": None if low is None or value is None else value + 0.1}
        for metric in metrics
        for convention in ("mismatch", "zero", "published")
        for measure, value, low in LMR
    ]


def coverage_rows() -> list[dict[str, Any]]:
    """Agreement with labels of items, and a baseline, which has no model."""
    rows = [{"metric": metric, "model": "<m>", "measure": "f1", "value": 0.5} for metric in METRICS]
    rows += [{"metric": "word_overlap", "measure": "accuracy", "value": 0.25}]
    return [{"dataset": "coverage", "level": "item", "n": 40, **row} for row in rows]


def write_study(
    directory: Path, dataset: str, rows: list[dict[str, Any]], comparisons: Sequence[dict[str, Any]] = ()
) -> Path:
    for name, kept in (("meta_evaluation", rows), ("comparisons", list(comparisons))):
        (directory / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(kept, schema=TABLES[name]), directory / name / "part-0.parquet")
    cell = {"model": "<m>", "metric": "e2e", "label": "Correct", "predicted": "Incorrect", "count": 17}
    manifest = {"status": "finished", "dataset": dataset, "counts": {"samples": 40}}
    # A study of items has none
    manifest |= {"confusion": [cell]} if dataset == "wikicontradict" else {}
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return directory


def test_meta_evaluation_notebook_shows_agreement_and_comparisons(shown: dict[str, Shown]) -> None:
    cells = shown["study labels"]
    assert "finished; wikicontradict, 40 samples" in cells["open"]
    assert "<svg" in cells["figure"]
    assert "baseline: constant label" in cells["figure"]
    assert cells["agreement"].count("<tr>") == 1 + 9
    assert "0.625 [0.500, 0.725]" in cells["agreement"]
    assert "&lt;m&gt;" in cells["agreement"]
    assert "0.082" in cells["comparisons"]
    assert "17" in cells["confusion"]


def test_meta_evaluation_notebook_shows_every_metric_and_measure(shown: dict[str, Shown]) -> None:
    cells = shown["study all"]
    assert all(f">{name}</t" in cells["agreement"] for name in (*METRICS, "lmr", "f1", "accuracy"))
    assert "no match rates" in shown["study coverage"]["figure"]
    assert "no labels" in shown["study coverage"]["confusion"]


def test_meta_evaluation_notebook_runs_without_anything_to_show(shown: dict[str, Shown]) -> None:
    for name in ("none", "no study", "scores"):
        cells = shown[f"study {name}"]
        assert "nothing was compared" in cells["agreement"]
        assert "nothing to compare" in cells["comparisons"]
        assert ("no table meta_evaluation" in cells["open"]) == (name != "none")


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
