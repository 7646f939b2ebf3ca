"""Test the export of the scores of a run. All formats have the same rows, read back with the other tools."""

from __future__ import annotations

import bz2
import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import load_workbook

from tests.fakes.object_store import BUCKET, ObjectStore
from tests.runs.harness import clean_environment
from untold import open_run
from untold.jobs import export as exports
from untold.jobs.cli.main import main
from untold.jobs.export import BATCH_ROWS, export, figures, parameters, wide_rows, wide_schema
from untold.jobs.run_tables import UnreadableRunError
from untold.jobs.tables import RESULT_TABLES
from untold.udfs.errors import UserError
from untold.udfs.facts.rag_measures import PUBLISHED

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("http://x")']
Row = dict[str, Any]


def write_table(folder: Path, name: str, rows: list[Row], files: int = 1, **more: pa.DataType) -> None:
    """Write a table in several files that follow each other, like a run."""
    schema = pa.schema([*RESULT_TABLES[name], *more.items()])
    (folder / name).mkdir(parents=True)
    size = max(1, -(-len(rows) // files))
    for part in range(files):
        cut = [{field: row.get(field) for field in schema.names} for row in rows[part * size : (part + 1) * size]]
        pq.write_table(pa.Table.from_pylist(cut, schema), folder / name / f"part-{part:05}.parquet", row_group_size=100)


def write_run(folder: Path, count: int = 3, response: str = "r") -> Path:
    """Write a run with two metrics. For every third sample, `qa` failed and two statements are uncovered with `e2e`."""
    ids = sorted(f"s{number:05}" for number in range(count))
    samples = [
        {
            "sample_id": one,
            "query": "q",
            "response": response,
            "contexts": [{"id": "1", "text": "long"}],
            "system": "a b",
        }
        | {"day": number, "marks": ["x", "y"]}
        for number, one in enumerate(ids)
    ]
    write_table(folder, "samples", samples, 3, day=pa.int64(), marks=pa.list_(pa.string()))
    scores, statements = [], []
    for number, one in enumerate(ids):
        scores.append({"sample_id": one, "metric": "e2e", "score": 0.5, "score_low": 0.25, "score_high": 0.75})
        scores[-1] |= {"covered": 2, "uncovered": 2, "status": "partial"}
        failed = number % 3 == 0
        scores.append(
            {"sample_id": one, "metric": "qa", "score": None if failed else 1.0, "status": "failed" if failed else "ok"}
        )
        if failed:
            texts = [
                ("e2e", "first", False),
                ("e2e", "=second", False),
                ("e2e", "told", True),
                ("qa", "unjudged", None),
            ]
            statements += [
                {"sample_id": one, "metric": m, "text": text, "covered": covered} for m, text, covered in texts
            ]
    write_table(folder, "scores", scores, 2)
    write_table(folder, "statements", statements)
    figures = {"n": count, "scored": count, "undefined": 0, "failed": 0, "mean": 0.5, "ci_low": 0.25, "ci_high": 0.75}
    summary = [{"metric": name, "level": "overall", **figures} for name in ("e2e", "qa")]
    summary += [
        {"metric": "e2e", "level": "system", "system": name, **figures} for name in ("a b", "a:b", "a/b?", "a/b!")
    ]
    write_table(folder, "summary", summary)
    known = {
        "status": "finished",
        "models": ["judge"],
        "counts": {"samples": count},
        "input": {"path": "in.jsonl", "fingerprint": "f" * 900},
        "totals": {"calls": 12, "prompt_tokens": 300, "completion_tokens": 40, "cost": None},
        "versions": {"untold": "0.1.0"},
    }
    (folder / "manifest.json").write_text(json.dumps(known), encoding="utf-8")
    return folder


def test_a_row_is_a_sample_with_its_scores_and_missing_statements(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path))
    first, second, _ = wide_rows(run)

    assert first == {
        "sample_id": "s00000",
        "query": "q",
        "response": "r",
        "system": "a b",
        "label": None,
        "day": 0,
        "marks": '["x","y"]',
        "e2e_score": 0.5,
        "e2e_score_low": 0.25,
        "e2e_score_high": 0.75,
        "e2e_status": "partial",
        "e2e_covered": 2,
        "e2e_uncovered": 2,
        "e2e_missing": "first\n=second",
        "qa_score": None,
        "qa_score_low": None,
        "qa_score_high": None,
        "qa_status": "failed",
        "qa_covered": None,
        "qa_uncovered": None,
        "qa_missing": None,
    }
    assert list(first) == wide_schema(run).names
    assert (second["e2e_missing"], second["qa_score"]) == (None, 1.0)


def test_rows_of_all_tables_meet_over_files_and_batches(tmp_path: Path) -> None:
    count = 2 * BATCH_ROWS + 7
    rows = list(wide_rows(open_run(write_run(tmp_path, count))))

    assert [row["sample_id"] for row in rows] == [f"s{number:05}" for number in range(count)]
    assert [row["qa_status"] for row in rows] == ["failed" if number % 3 == 0 else "ok" for number in range(count)]
    assert [bool(row["e2e_missing"]) for row in rows] == [number % 3 == 0 for number in range(count)]


def test_few_rows_are_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a caller reads only the first rows, the export has read only the first rows of the tables."""
    read: list[int] = []
    rows_of = exports._rows

    def counted(*given: Any) -> Any:
        for row in rows_of(*given):
            read.append(1)
            yield row

    monkeypatch.setattr(exports, "_rows", counted)
    rows = wide_rows(open_run(write_run(tmp_path, 3000)))
    for _ in range(10):
        next(rows)
    assert len(read) < 100


def test_tables_in_another_order_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    file = tmp_path / "scores" / "part-00000.parquet"
    table = pq.read_table(file)
    pq.write_table(table.take(list(reversed(range(table.num_rows)))), file)
    with pytest.raises(UnreadableRunError, match="the table scores is not sorted by sample_id"):
        list(wide_rows(open_run(tmp_path)))


def test_every_form_has_the_same_rows(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", 5))
    for form in ("csv", "jsonl", "parquet", "xlsx"):
        run.export(form, tmp_path / f"out.{form}")
    frames = {
        "csv": pd.read_csv(tmp_path / "out.csv"),
        "jsonl": pd.read_json(tmp_path / "out.jsonl", lines=True),
        "parquet": pd.read_parquet(tmp_path / "out.parquet"),
        "xlsx": pd.read_excel(tmp_path / "out.xlsx"),
    }
    names = wide_schema(run).names
    for frame in frames.values():
        assert list(frame.columns) == names
        assert frame["sample_id"].tolist() == [f"s{number:05}" for number in range(5)]
        assert frame["qa_score"].isna().tolist() == [True, False, False, True, False]
        assert frame["e2e_missing"][0] == "first\n=second"
    assert pq.read_schema(tmp_path / "out.parquet") == wide_schema(run)
    assert (tmp_path / "out.csv").read_bytes().startswith(b"\xef\xbb\xbfsample_id,")


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_is_a_formula(tmp_path: Path, text: str) -> None:
    run = open_run(write_run(tmp_path / "run", 1, response=text))
    run.export("xlsx", tmp_path / "out.xlsx")
    run.export("csv", tmp_path / "out.csv")

    cell = load_workbook(tmp_path / "out.xlsx").worksheets[0]["C2"]
    assert (cell.value, cell.data_type, cell.quotePrefix) == (text, "s", True)
    with (tmp_path / "out.csv").open(encoding="utf-8-sig", newline="") as file:
        assert list(csv.reader(file))[1][2] == f"'{text}"


def test_no_name_of_a_column_is_a_formula(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 1)
    samples = pq.read_table(folder / "samples")
    for file in (folder / "samples").iterdir():
        file.unlink()
    pq.write_table(samples.append_column("=1+1", pa.array(["a"] * len(samples))), folder / "samples" / "part-0.parquet")

    open_run(folder).export("csv", tmp_path / "out.csv")

    with (tmp_path / "out.csv").open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file))
    assert "'=1+1" in header
    assert "=1+1" not in header


def test_text_that_no_cell_can_store_is_cut_or_replaced(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", 1, response="a\x00b" + "x" * 40_000))
    run.export("xlsx", tmp_path / "out.xlsx")
    text = str(load_workbook(tmp_path / "out.xlsx").worksheets[0]["C2"].value)
    assert text.startswith("a\ufffdb")
    assert text.endswith("[... cut: the whole text is in the CSV]")


def test_more_samples_than_a_worksheet_has_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(write_run(tmp_path / "run", 5))
    monkeypatch.setattr(exports, "XLSX_ROWS", 5)
    with pytest.raises(UserError, match=r"5 samples\. A worksheet has 5 rows\. Use --to csv or parquet"):
        run.export("xlsx", tmp_path / "out.xlsx")
    assert not (tmp_path / "out.xlsx").exists()


def test_measures_are_lines_of_sample_metric_and_score(tmp_path: Path, capsysbinary: Any) -> None:
    write_run(tmp_path / "run", 2)
    assert main(["export", str(tmp_path / "run"), "--to", "trec"]) == 0
    out, err = capsysbinary.readouterr()
    lines = [
        b"s00000\te2e\t0.5000",
        b"s00001\te2e\t0.5000",
        b"s00001\tqa\t1.0000",
        b"all\te2e\t0.5000",
        b"all\tqa\t0.5000",
    ]
    assert out.splitlines() == lines
    assert err == b"untold: each line is qid, measure, value. Undefined values have no line\n"


def test_measures_of_topics_are_lines_next_to_their_scores(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2)
    rows = [("s00000", "qa", "vital", 0.25), ("s00001", "e2e", "qa", 2.0), ("s00001", "qa", "vital", None)]
    write_table(
        run, "measures", [dict(zip(("sample_id", "metric", "measure", "value"), row, strict=True)) for row in rows]
    )
    means = [("e2e", "qa", 2.0), ("qa", "vital", 0.25)]
    summary = [{"metric": metric, "measure": name, "level": "overall", "mean": mean} for metric, name, mean in means]
    write_table(run, "measures_summary", summary)
    for ids, qids in ((["7", "8 b"], ["7", "8_b"]), (["7", "7"], ["s00000", "s00001"])):
        samples = pq.read_table(run / "samples")
        shutil.rmtree(run / "samples")
        write_table(
            run,
            "samples",
            [row | {"query_id": one} for row, one in zip(samples.to_pylist(), ids, strict=True)],
            query_id=pa.string(),
        )
        assert main(["export", str(run), "--trec", str(tmp_path / "run.txt")]) == 0
        lines = (tmp_path / "run.txt").read_text(encoding="utf-8").splitlines()
        first, second = qids
        assert lines == [
            f"{first}\te2e\t0.5000",
            f"{first}\tvital\t0.2500",
            f"{second}\te2e\t0.5000",
            f"{second}\tqa\t1.0000",
            f"{second}\te2e.qa\t2.0000",
            *("all\te2e\t0.5000", "all\tqa\t0.5000", "all\te2e.qa\t2.0000", "all\tvital\t0.2500"),
        ]


@pytest.mark.parametrize(
    ("topics", "systems"),
    [("1122", "abab"), ("1122", "aabb"), ("112", "aba"), ("1234", "abab"), ("11", "a ")],
    ids=["pooled", "several answers", "not all", "apart", "without a system"],
)
def test_systems_that_answer_one_topic_have_a_file_each(
    tmp_path: Path, topics: str, systems: str, capsysbinary: Any
) -> None:
    run, is_pooled = write_run(tmp_path / "run", len(topics)), topics[0] == topics[1] and "ab" in systems[:2]
    samples = pq.read_table(run / "samples").to_pylist()
    shutil.rmtree(run / "samples")
    rows = [
        row | {"query_id": f"t {topic}", "system": f"{system}/x" if system.strip() else None}
        for row, topic, system in zip(samples, topics, systems, strict=True)
    ]
    write_table(run, "samples", rows, query_id=pa.string())
    shutil.rmtree(run / "summary")
    means = {None: 0.5, "a/x": 0.25, "b/x": 0.75}
    summary = [
        {"metric": name, "level": "system" if system else "overall", "system": system, "mean": mean}
        for name in ("e2e", "qa")
        for system, mean in means.items()
    ]
    write_table(run, "summary", summary)
    assert main(["export", str(run), "--trec", str(tmp_path / "run.txt")]) == 0
    said = capsysbinary.readouterr().out.decode().splitlines()
    files = {path.name: path.read_text(encoding="utf-8").splitlines() for path in tmp_path.glob("run*.txt")}
    assert said == [f"written to {tmp_path}/{name}" for name in sorted(files)]
    if not is_pooled:
        assert [*files] == ["run.txt"]
        assert files["run.txt"][-2:] == ["all\te2e\t0.5000", "all\tqa\t0.5000"]
        assert files["run.txt"][0].split("\t")[0] == ("t_1" if len({*topics}) == len(topics) else "s00000")
        return
    scores = {
        row["sample_id"]: row["score"] for row in pq.read_table(run / "scores").to_pylist() if row["metric"] == "qa"
    }
    assert sorted(files) == ["run.a_x.txt", "run.b_x.txt"]
    for system, lines in zip("ab", (files[name] for name in sorted(files)), strict=True):
        own = [row for row in rows if row["system"] == f"{system}/x"]
        wanted = [f"all\trunid\t{system}/x"]
        for row in own:
            qid, score = row["query_id"].replace(" ", "_"), scores[row["sample_id"]]
            wanted += [f"{qid}\te2e\t0.5000", *([f"{qid}\tqa\t{score:.4f}"] if score is not None else [])]
        assert lines == [*wanted, *(f"all\t{name}\t{means[f'{system}/x']:.4f}" for name in ("e2e", "qa"))]
    assert main(["export", str(run), "--to", "trec"]) == 0
    assert capsysbinary.readouterr().out.decode().splitlines() == [
        line for name in sorted(files) for line in files[name]
    ]


def test_nuggets_are_lines_as_nuggetizer_writes_them(tmp_path: Path, capsysbinary: Any) -> None:
    run = write_run(tmp_path / "run", 2)
    assert main(["export", str(run), "--to", "trec_rag_nuggets"]) == 1
    assert b"has no nuggets; run untold score --metric nuggets" in capsysbinary.readouterr().err
    for table in ("statements", "summary"):
        shutil.rmtree(run / table)
    own = {"sample_id": "s00000", "metric": "nuggets"}
    write_table(run, "summary", [{**own, "level": "overall"}])
    nuggets = [("b", "okay", "not_support", 2), ("a", "vital", "support", 1), ("cut", "okay", None, 3)]
    names = ("text", "importance", "support", "rank")
    rows = [{**own, **dict(zip(names, row, strict=True)), "kept": row[0] != "cut"} for row in nuggets]
    # Without the lost assignment, the list would look complete with one nugget less
    lost = [{**row, "sample_id": "s00001", "support": row["support"] if row["rank"] == 1 else None} for row in rows]
    write_table(run, "statements", [*rows, *lost])
    assert main(["export", str(run), "--to", "trec_rag_nuggets"]) == 0
    said = capsysbinary.readouterr()
    (line,) = said.out.splitlines()
    assert said.err.startswith(b"untold: 1 response is left out, because a nugget has no assignment")
    assert json.loads(line) == {
        "query": "q",
        "qid": "s00000",
        "answer_text": "r",
        "response_length": 1,
        "run_id": "a b",
        "nuggets": [
            {"text": "a", "importance": "vital", "assignment": "support"},
            {"text": "b", "importance": "okay", "assignment": "not_support"},
        ],
    }


def test_ragchecker_gets_no_list_that_lacks_a_relation(tmp_path: Path) -> None:
    known = {"sample_id": "a", "metric": "rag"}
    truth = pa.struct([("text", pa.string()), ("claims", pa.list_(pa.string()))])
    sample = {"sample_id": "a", "query": "q", "response": "r", "contexts": [{"id": "1", "text": "c"}]}
    write_table(tmp_path, "samples", [{**sample, "ground_truth": {"text": "g"}}], ground_truth=truth)
    verdicts = {"one": None, "two": "supported"}
    claims = [{**known, "position": n, "text": t, "verdict": v} for n, (t, v) in enumerate(verdicts.items(), start=1)]
    measures = dict.fromkeys(PUBLISHED, 0.5) | {"hallucination": None, "claims": 2.0, "ground_truth_claims": 1.0}
    cells = {"rank": 1, "response": ["entailment", "neutral"], "ground_truth": [None]}
    tables: dict[str, list[Row]] = {
        "claims": claims,
        "statements": [{**known, "statement_id": "a:rag:1", "text": "g", "relation": "contradiction"}],
        "contexts_used": [{**known, **cells}],
        "measures": [{**known, "measure": name, "value": value} for name, value in measures.items()],
        "summary": [{**known, "level": "overall"}],
        "measures_summary": [{**known, "measure": "f1", "level": "overall", "mean_zero": 0.12345}],
    }
    for name, rows in tables.items():
        write_table(tmp_path, name, rows)
    (tmp_path / "manifest.json").write_text(json.dumps({"status": "finished"}), encoding="utf-8")
    export(open_run(str(tmp_path)), "ragchecker", str(tmp_path / "out.json"))
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    (result,) = written["results"]
    assert (result["query_id"], result["gt_answer"], result["retrieved_context"]) == (
        "a",
        "g",
        [{"doc_id": "1", "text": "c"}],
    )
    assert (result["response_claims"], result["gt_answer_claims"]) == (["one", "two"], ["g"])
    assert (result["answer2response"], result["response2answer"]) == (None, ["Contradiction"])
    assert (result["retrieved2response"], result["retrieved2answer"]) == ([["Entailment"], ["Neutral"]], None)
    assert (result["metrics"]["f1"], result["metrics"]["hallucination"]) == (0.5, 0.0)
    assert written["metrics"] == {"overall_metrics": {"f1": 12.3}, "retriever_metrics": {}, "generator_metrics": {}}


def test_ragchecker_needs_the_metric(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no metric rag\. Score it with --metric rag first"):
        export(open_run(str(write_run(tmp_path / "run"))), "ragchecker", str(tmp_path / "out.json"))


def test_text_is_written_to_standard_output_without_a_file(tmp_path: Path, capsysbinary: Any) -> None:
    write_run(tmp_path / "run", 2)
    assert main(["export", str(tmp_path / "run"), "--to", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsysbinary.readouterr().out.decode(), newline="")))
    assert [row["sample_id"] for row in rows] == ["s00000", "s00001"]
    assert main(["export", str(tmp_path / "run"), "--to", "jsonl", "--output", str(tmp_path / "o.jsonl")]) == 0
    assert capsysbinary.readouterr() == (f"written to {tmp_path}/o.jsonl\n".encode(), b"")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--to", "parquet"], 2, "--to parquet needs --output FILE"),
        (["--to", "xslx", "--output", "o"], 2, "did you mean xlsx?"),
        (["--to", "mlflow", "--output", "o"], 2, "--to mlflow accepts no --output"),
        (["--to", "mlflow"], 1, "export --to mlflow needs mlflow: pip install mlflow"),
    ],
)
def test_an_impossible_export_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    write_run(tmp_path)
    try:
        ended = main(["export", str(tmp_path), *words])
    except SystemExit as raised:
        ended = int(str(raised.code))
    assert ended == code
    assert message in capsys.readouterr().err


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run"))
    (tmp_path / "run" / "scores" / "part-00001.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(Exception, match="Parquet"):
        export(run, "csv", str(tmp_path / "out.csv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_files_and_runs_of_an_object_store_are_inspected_and_exported(
    tmp_path: Path, object_store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    object_store.put("in/a.jsonl.bz2", bz2.compress(b'{"query": "q", "response": "r", "contexts": ["a"]}\n' * 3))
    assert main(["inspect", f"s3://{BUCKET}/in/*.bz2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3
    folder = write_run(tmp_path / "run")
    for path in folder.rglob("*"):
        if path.is_file():
            object_store.put(str(path.relative_to(tmp_path)), path.read_bytes())
    assert main(["export", f"s3://{BUCKET}/run", "--to", "csv", "--output", f"s3://{BUCKET}/out.csv"]) == 0
    open_run(folder).export("csv", tmp_path / "out.csv")
    assert object_store.objects["out.csv"] == (tmp_path / "out.csv").read_bytes()


def test_the_parameters_and_metrics_of_mlflow(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path))
    assert parameters(run) == {
        "metrics": "e2e,qa",
        "models": "judge",
        "samples": "3",
        "input": "in.jsonl",
        "fingerprint": "f" * 500,
        "status": "finished",
        "untold": "0.1.0",
    }
    told = figures(run)
    assert (told["e2e.mean"], told["qa.ci_low"], told["e2e.mean.a b"], told["calls"]) == (0.5, 0.25, 0.5, 12.0)
    assert "cost" not in told
    # MLflow would not accept the original names, and the new names would be equal
    assert {"e2e.mean.a_b", "e2e.mean.a/b_", "e2e.mean.a/b__2"} <= set(told)


@pytest.mark.slow
def test_a_run_becomes_a_run_of_mlflow(tmp_path: Path) -> None:
    """Test with MLflow itself in its own folder, with a database next to the folder."""
    library, folder = tmp_path / "library", write_run(tmp_path / "run")
    (folder / "report.html").write_text("<p>report</p>")
    line = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--target", str(library), "mlflow"]
    subprocess.run(line, check=True, capture_output=True)
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/track.db", "MLFLOW_EXPERIMENT_NAME": "untold"}
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join(map(str, (root, library)))
    environment = {**clean_environment(), **variables, "PYTHONPATH": paths}
    words = [sys.executable, "-m", "untold", "export", str(folder), "--to", "mlflow", "--debug"]
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "logged to MLflow as run " in ended.stdout
    program = """
import json, mlflow
(run,) = mlflow.search_runs(experiment_names=["untold"], output_format="list")
files = [one.path for one in mlflow.MlflowClient().list_artifacts(run.info.run_id)]
print(json.dumps([run.info.run_name, run.info.status, run.data.params, run.data.metrics, files]))
"""
    read = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    name, status, told, measured, files = json.loads(read.stdout.splitlines()[-1])
    assert (name, status, files) == ("run", "FINISHED", ["report.html"])
    run = open_run(folder)
    assert (told, measured) == (parameters(run), figures(run))
