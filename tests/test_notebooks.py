"""Test that the notebooks run without errors, and test the functions of `open_run` that they use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import untold
from tests.fakes.model_server import ModelServer
from tests.fakes.world_importance import importance_worlds
from tests.notebooks import NAMES, Cells, execute, path_of, read, text_of
from tests.runs.harness import write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder
from untold.jobs.run_tables import UnreadableRunError, open_run

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


METRICS = ("e2e", "qa", "nli", "icat", "importance", "longrecall")


@pytest.fixture(scope="module")
def six(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the output of a job with all six metrics."""
    folder = tmp_path_factory.mktemp("six")
    (world,) = [world for world in importance_worlds(7) if world.kind == "rated"]
    path = write_samples(folder / "samples.jsonl", world.samples(2))
    with ModelServer(answer="world") as server:
        ended = run_here(server, path, folder / "out", "--metric", ",".join(METRICS), settings=embedder(server))
    assert ended.code == 0, ended.err
    return folder / "out"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cells]:
    """Return the cells of the notebooks with their own outputs, and of one notebook with a run of few rows."""
    given: dict[str, tuple[Path, Path | None]] = {name: (path_of(name), None) for name in NAMES}
    run = write_run(tmp_path_factory.mktemp("runs") / "run")
    return execute(given | {"results run": (path_of("results"), run)})


@pytest.fixture(scope="module")
def shown_of_others(six: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cells]:
    """Return the cells of notebooks with three runs: all six metrics, a failed run and an empty run."""
    folder = tmp_path_factory.mktemp("runs")
    nothing: dict[str, list[tuple[Any, ...]]] = {"statements": [], "scores": ROWS["scores"][2:]}
    runs = {
        "failures": write_run(folder / "failures", rows=nothing),
        "empty": write_run(folder / "empty", rows={name: [] for name in ROWS}),
    }
    given: dict[str, tuple[Path, Path | None]] = {
        f"{name} six": (path_of(name), six) for name in ("results", "compare", "missing")
    }
    return execute(given | {f"results {name}": (path_of("results"), run) for name, run in runs.items()})


def errors_of(shown: Mapping[str, Cells]) -> dict[str, str]:
    texts = {f"{name}: {cell}": text_of(cells[cell]) for name, cells in shown.items() for cell in cells}
    # If there are no scores, this cell cannot select a sample to read first
    texts = {place: text for place, text in texts.items() if not place.endswith(": one")}
    return {place: text for place, text in texts.items() if "ERROR" in text}


def test_no_cell_of_any_notebook_fails(shown: dict[str, Cells]) -> None:
    assert errors_of(shown) == {}


@pytest.mark.gate
def test_no_cell_fails_over_other_runs(shown_of_others: dict[str, Cells]) -> None:
    assert errors_of(shown_of_others) == {}


@pytest.mark.parametrize("name", NAMES)
def test_each_question_of_a_notebook_is_answered_by_a_table_or_a_picture(shown: dict[str, Cells], name: str) -> None:
    kinds = {
        cell: [kind for output in shown[name][cell].outputs for kind in output.get("data", ())]
        for cell in shown[name]
        if cell != "open"
    }
    assert {cell: found for cell, found in kinds.items() if not {"text/html", "image/png"} & {*found}} == {}
    assert all(len(source_lines(cell)) <= 3 for cell in shown[name].values())
    assert "run = untold.open_run(" in shown[name]["open"].source


def source_lines(cell: Mapping[str, Any]) -> list[str]:
    return [line for line in cell["source"].splitlines() if line.strip()]


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_contain_their_outputs(shown: dict[str, Cells], name: str) -> None:
    """`python -m tests.notebooks` writes the outputs into the notebook."""
    kept = {cell["id"]: cell for cell in read(path_of(name)).cells if cell["cell_type"] == "code"}
    same = [cell for cell in kept if "machine" not in kept[cell]["metadata"].get("tags", ())]
    assert {cell: text_of(kept[cell]) for cell in same} == {cell: text_of(shown[name][cell]) for cell in same}
    assert all(cell["outputs"] for key, cell in kept.items() if key != "open")
    assert len(path_of(name).read_text(encoding="utf-8")) < 300_000
    texts = "".join(f"{cell['source']}{text_of(cell)}" for cell in kept.values())
    assert [place for place in (str(Path(__file__).parents[1]), str(Path.home()), "/tmp") if place in texts] == []


def test_a_run_that_failed_before_its_tables_is_shown(tmp_path: Path) -> None:
    run = untold.open_run(write_run(tmp_path / "bare", "failed", rows={}, names=()))
    assert "bare: failed" in run._repr_html_()
    assert run.sql("select count(*) from scores").fetchall() == [(0,)]
    assert untold.plots.means(run)._repr_png_()[0].startswith(b"\x89PNG")


def test_results_notebook_shows_the_run(shown: dict[str, Cells]) -> None:
    cells = {name: text_of(cell) for name, cell in shown["results run"].items()}
    assert "run: finished" in cells["look"]
    assert cells["look"].count("<tr>") == 3
    assert "0.750" in cells["look"]
    assert "truncated" in cells["failures"]
    assert "The tower measures 829.8 m." in cells["least"]
    assert "The tower stands." not in cells["least"]
    assert "How tall is &lt;it&gt;?" in cells["one"]


@pytest.mark.gate
def test_notebooks_show_a_run_of_all_metrics(shown_of_others: dict[str, Cells]) -> None:
    assert all(f">{metric}</td>" in text_of(shown_of_others["results six"]["look"]) for metric in METRICS)
    assert all(f">{metric}</td>" in text_of(shown_of_others["missing six"]["system"]) for metric in METRICS)


def test_tables_are_read_with_all_columns_of_all_files(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    more = pa.table({"stage": ["summarise_context"], "seconds": [1.5]})
    pq.write_table(more, run / "usage" / "part-1.parquet")
    usage = open_run(run).table("usage").sort_by("stage")
    assert usage.column_names == ["stage", "model", "requests", "calls", "cost", "seconds"]
    assert usage["seconds"].to_pylist() == [None, 1.5]


def test_hidden_files_and_folders_are_not_part_of_a_run(tmp_path: Path) -> None:
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


def test_an_unknown_table_names_similar_tables(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRunError, match=r"no table 'score'; did you mean scores\?"):
        open_run(write_run(tmp_path)).table("score")


def test_a_directory_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRunError, match=r"no manifest\.json"):
        open_run(tmp_path)


def test_a_running_run_is_refused_by_default(tmp_path: Path) -> None:
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
