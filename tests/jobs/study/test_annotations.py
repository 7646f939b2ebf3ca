from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.cli.main import main
from untold.jobs.run_tables import UnreadableRunError, open_run
from untold.jobs.study.annotations import (
    HUMAN_STUDY,
    SheetCounts,
    report_study,
    write_sheet,
)
from untold.jobs.tables import ATOMS, SAMPLES, SCORES, STATEMENTS
from untold.udfs.blinding import AnnotationError, order_metrics
from untold.udfs.sheets import SpreadsheetError, read_rows, to_csv, to_xlsx

METRICS = ("e2e", "nli", "qa")
FILES = ("annotation_key.csv", "annotation_sheet.csv", "annotation_sheet.xlsx")
SCHEMAS = {"samples": SAMPLES, "scores": SCORES, "statements": STATEMENTS, "atoms": ATOMS}
LABELS = ("Correct", "Partially correct", "Incorrect")
COUNT = 12
HOSTILE = '=HYPERLINK("http://example.org";"click")'
Row = dict[str, Any]


def sample_rows() -> list[Row]:
    contexts = [{"id": "a", "text": "First context."}, {"id": "b", "text": "@second\ncontext."}]
    rows = [
        {
            "sample_id": f"s{number}",
            "query": f"Query {number}?",
            "response": HOSTILE,
            "contexts": contexts,
            "label": LABELS[number % 3],
        }
        for number in range(COUNT)
    ]
    # These rows are never in a sheet: no label, a label of another type, or no result for one metric
    others = [{**rows[0], "sample_id": name, "label": label} for name, label in (("u", None), ("o", "A"))]
    return [*rows, *others, {**rows[0], "sample_id": "f"}]


def score_row(sample_id: str, metric: str, score: float | None, status: str) -> Row:
    return {"sample_id": sample_id, "metric": metric, "score": score, "status": status}


def score_rows() -> list[Row]:
    rows = [
        score_row(name, metric, 0.5, "partial" if metric == "nli" else "ok")
        for name in (*(f"s{number}" for number in range(1, COUNT)), "u", "o", "f")
        for metric in METRICS
    ]
    rows[-1] |= {"score": None, "status": "failed"}
    return [*rows, *(score_row("s0", metric, None, "no_statements") for metric in METRICS)]


def statement_rows() -> list[Row]:
    """Return three statements per sample and metric.

    The third is uncovered. Statements of qa are questions with answers.
    """
    shared = {"sources": ["a"], "members": None, "in_basis": None}
    return [
        {
            "sample_id": f"s{number}",
            "metric": metric,
            "statement_id": f"s{number}:{metric}:{place}",
            "text": f"Q: What A: is {place}? A: {place}" if metric == "qa" else f"{'=' * (place == 1)}Fact {place}",
            "covered": place < 3,
            **shared,
        }
        for number in range(1, COUNT)
        for metric in METRICS
        for place in (1, 2, 3)
    ]


def atom_rows() -> list[Row]:
    """Return the answer of each statement of qa, and a second atom for the same statement."""
    return [
        {
            "sample_id": f"s{number}",
            "metric": "qa",
            "atom_id": f"{number}:{place}:{text}",
            "text": text,
            "question": f"What A: is {place}?",
            "origin": "both",
            "sources": ["a"],
            "kept": True,
            "statement_id": f"s{number}:qa:{place}",
        }
        for number in range(1, COUNT)
        for place in (1, 2, 3)
        for text in (str(place), f"number {place}")
    ]


def write_run(folder: Path, files: int = 1, **changed: Sequence[Row]) -> str:
    tables = {"samples": sample_rows(), "scores": score_rows(), "statements": statement_rows(), "atoms": atom_rows()}
    for name, rows in {**tables, **changed}.items():
        (folder / name).mkdir(parents=True)
        for part in range(files):
            table = pa.Table.from_pylist(list(rows)[part::files], SCHEMAS[name])
            pq.write_table(table, folder / name / f"part-{part}.parquet")
    (folder / "manifest.json").write_text(json.dumps({"status": "finished"}))
    return str(folder)


def restate(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    return [
        {"question": question, "answer": answer, "statement": f"{question} is {answer}", "error_type": None}
        for question, answer in pairs
    ]


def refuse(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    return [row | {"error_type": "timeout" if row["answer"] > "1" else None} for row in restate(pairs)]


def never(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    raise AssertionError("there are no pairs to restate")


def records(path: Path) -> list[Row]:
    header, *rows = read_rows(str(path), path.read_bytes())
    return [dict(zip(header, row, strict=True)) for row in rows]


def bytes_of(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def whole(run: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the sheet with all samples that can be drawn."""
    folder = tmp_path_factory.mktemp("whole")
    counts = write_sheet(run, METRICS, COUNT, 7, str(folder), restate)
    assert counts == SheetCounts(items=COUNT, rows=3 * COUNT, restated=3)
    return folder


def test_a_sheet_has_the_labelled_samples_with_a_result_of_every_metric(whole: Path) -> None:
    key = records(whole / FILES[0])
    assert {row["sample_id"] for row in key} == {f"s{number}" for number in range(COUNT)}
    assert [(row["item"], row["method"]) for row in key] == [
        (str(item), str(method)) for item in range(1, COUNT + 1) for method in (1, 2, 3)
    ]
    assert [row["sample_id"] for row in key[::3]] != sorted(row["sample_id"] for row in key[::3])
    for row in key:
        number = int(row["sample_id"][1:])
        assert row["label"] == LABELS[number % 3]
        assert row["score"] == ("" if number == 0 else "0.5")


def test_a_sheet_has_the_items_of_the_key_without_the_metric(whole: Path) -> None:
    header, *rows = read_rows("a.csv", (whole / FILES[1]).read_bytes())
    assert header == ["item", "method", "query", "response", "contexts", "covered", "uncovered", "errors"]
    assert all(row[-1] == "" for row in rows)
    key_header, *key = read_rows("a.csv", (whole / FILES[0]).read_bytes())
    assert key_header == [*header[:-1], "sample_id", "metric", "score", "label"]
    assert [row[:7] for row in key] == [row[:7] for row in rows]
    assert not {*METRICS, *(f"s{number}" for number in range(COUNT))} & {cell for row in rows for cell in row}


def test_statements_of_all_metrics_look_the_same(whole: Path) -> None:
    for row in records(whole / FILES[0]):
        if row["sample_id"] == "s0":
            expected = ("", "")
        elif row["metric"] == "qa":
            expected = ("What A: is 1? is 1.\nWhat A: is 2? is 2.", "What A: is 3? is 3.")
        else:
            expected = ("=Fact 1.\nFact 2.", "Fact 3.")
        assert (row["covered"], row["uncovered"]) == expected
        assert row["contexts"] == "1. First context.\n\n2. @second\ncontext."


def test_each_item_has_its_own_order_of_metrics(whole: Path) -> None:
    orders: dict[str, list[str]] = {}
    for row in records(whole / FILES[0]):
        orders.setdefault(row["sample_id"], []).append(row["metric"])
    assert orders == {name: order_metrics(METRICS, 7, name) for name in orders}
    assert len({tuple(order) for order in orders.values()}) > 2


def test_the_workbook_is_the_sheet_without_formulas(whole: Path) -> None:
    assert records(whole / FILES[2]) == records(whole / FILES[1])
    raw = (whole / FILES[1]).read_text(encoding="utf-8-sig")
    assert f",'{HOSTILE[:10]}" in raw.replace('"', "")
    assert ",=" not in raw.replace('"', "")


@pytest.mark.gate
def test_each_metric_can_have_its_own_run(run: str, tmp_path: Path) -> None:
    runs = {metric: str(shutil.copytree(run, tmp_path / metric)) for metric in METRICS}
    for place, given in (("one", run), ("each", runs)):
        write_sheet(given, METRICS, COUNT, 7, str(tmp_path / place), restate)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "each").iterdir()} == files


@pytest.mark.gate
def test_the_same_seed_gives_the_same_bytes_for_any_files(whole: Path, tmp_path: Path) -> None:
    rows = {"samples": sample_rows(), "scores": score_rows(), "statements": statement_rows(), "atoms": atom_rows()}
    run = write_run(tmp_path / "run", files=4, **{name: found[::-1] for name, found in rows.items()})
    write_sheet(run, METRICS[::-1], COUNT, 7, str(tmp_path / "out"), restate)
    assert bytes_of(tmp_path / "out") == bytes_of(whole)


@pytest.mark.gate
def test_another_seed_draws_other_samples(run: str, tmp_path: Path) -> None:
    drawn = []
    for seed in (1, 2):
        write_sheet(run, ("e2e", "nli"), 5, seed, str(tmp_path / str(seed)), never)
        rows = records(tmp_path / str(seed) / FILES[0])
        assert len(rows) == 10
        drawn.append({row["sample_id"] for row in rows})
    assert drawn[0] != drawn[1]


@pytest.mark.gate
def test_a_sheet_that_is_there_is_never_overwritten(run: str, tmp_path: Path) -> None:
    metrics = ("e2e", "nli")
    write_sheet(run, metrics, 2, 1, str(tmp_path), never)
    (tmp_path / FILES[1]).write_text("filled in")
    (tmp_path / FILES[2]).unlink()
    write_sheet(run, metrics, 2, 1, str(tmp_path), never)
    assert (tmp_path / FILES[1]).read_text() == "filled in"
    assert (tmp_path / FILES[2]).exists()
    with pytest.raises(AnnotationError, match=r"holds annotation_key\.csv, .* of another draw; move them away"):
        write_sheet(run, metrics, 2, 2, str(tmp_path), never)
    (tmp_path / FILES[0]).unlink()
    with pytest.raises(AnnotationError, match=r"holds annotation_sheet\.csv, .* of another draw"):
        write_sheet(run, metrics, 2, 1, str(tmp_path), never)


@pytest.mark.gate
def test_no_file_is_written_if_statements_cannot_be_restated(run: str, tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match=r"2 of 3 Q&A statements could not be restated \(timeout 2\)"):
        write_sheet(run, METRICS, COUNT, 7, str(tmp_path), refuse)
    assert not list(tmp_path.iterdir())


@pytest.mark.gate
def test_q_and_a_statements_without_their_atoms_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", atoms=atom_rows()[2:])
    with pytest.raises(AnnotationError, match="1 of 33 Q&A statements have no answer in the table atoms"):
        write_sheet(run, METRICS, COUNT, 7, str(tmp_path / "out"), restate)
    assert not (tmp_path / "out").exists()


def test_too_few_samples_are_refused_with_their_number(run: str, tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match=r"--annotation-sheet 13: .* has 12 labelled samples with a result of"):
        write_sheet(run, METRICS, COUNT + 1, 7, str(tmp_path), never)


@pytest.mark.parametrize("metrics", [("nli",), (*METRICS, "icat")])
def test_a_sheet_compares_two_or_three_metrics(run: str, tmp_path: Path, metrics: tuple[str, ...]) -> None:
    with pytest.raises(AnnotationError, match=f"2 or 3 metrics side by side; --metric names {len(metrics)}"):
        write_sheet(run, metrics, 1, 7, str(tmp_path), never)


def test_scores_without_statements_have_no_sheet(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (tmp_path / "statements" / "part-0.parquet").unlink()
    with pytest.raises(UnreadableRunError, match="no table 'statements'"):
        write_sheet(run, ("e2e", "nli"), 1, 7, str(tmp_path / "out"), never)


# The report


def fill(whole: Path, target: Path) -> None:
    """Fill in the sheet like a person: all rows of e2e are right, and for the other metrics only the first six items
    are.
    """
    key = read_rows("key.csv", (whole / FILES[0]).read_bytes())[1:]
    sheet = read_rows("sheet.csv", (whole / FILES[1]).read_bytes())
    for row, keyed in zip(sheet[1:], key, strict=True):
        right = keyed[8] == "e2e" or int(row[0]) <= 6
        row[-1] = "NONE" if right else "MISS_ATOM, IRR_ATOM"
    write = to_csv if target.suffix == ".csv" else lambda rows: to_xlsx({"sheet": rows})
    target.write_bytes(write(sheet))


@pytest.mark.parametrize("ending", ["csv", "xlsx"])
def test_a_filled_sheet_is_reported(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    filled, output = tmp_path / f"filled.{ending}", tmp_path / "study"
    fill(whole, filled)
    arguments = ["--annotations", str(filled), "--key", str(whole / FILES[0]), "--output", str(output)]
    assert main(["meta-evaluate", *arguments]) == 0
    shown = capsys.readouterr().out
    assert shown == (output / "human_study.md").read_text()
    assert "| fully_correct, published | 0.88 | 0.48 | 0.66 |  |" in shown.splitlines()
    table = open_run(output).table("human_study")
    assert table.schema.equals(HUMAN_STUDY)
    found = {(row["metric"], row["measure"]): row for row in table.to_pylist()}
    values = {name: found[name, "fully_correct"]["value"] for name in (*METRICS, "all")}
    assert values == {"e2e": 1.0, "nli": 0.5, "qa": 0.5, "all": pytest.approx(2 / 3)}
    assert found["qa", "MISS_ATOM"]["value"] == found["qa", "IRR_ATOM"]["value"] == 0.5
    # A score of 0.5 matches the label Partially correct, which four of the twelve samples have
    key = records(whole / FILES[0])
    agreed = [
        (row["score"] != "" and row["label"] == "Partially correct")
        == (row["metric"] == "e2e" or int(row["item"]) <= 6)
        for row in key
    ]
    assert found["all", "agreement"]["value"] == pytest.approx(sum(agreed) / len(agreed))


def test_a_repeated_report_is_the_same_and_keeps_the_manifest(whole: Path, tmp_path: Path) -> None:
    filled, output = tmp_path / "filled.csv", tmp_path / "study"
    fill(whole, filled)
    output.mkdir()
    (output / "manifest.json").write_text('{"status": "finished", "of": "another command"}')
    report_study(str(filled), str(whole / FILES[0]), str(output), seed=0)
    first = {path: path.read_bytes() for path in output.rglob("*.*")}
    report_study(str(filled), str(whole / FILES[0]), str(output), seed=0)
    assert {path: path.read_bytes() for path in output.rglob("*.*")} == first
    assert "another command" in (output / "manifest.json").read_text()


def test_files_that_cannot_be_read_are_one_line_and_write_nothing(whole: Path, tmp_path: Path) -> None:
    for name, error, message in (
        ("absent.csv", AnnotationError, r"absent\.csv cannot be read \(FileNotFoundError\)"),
        ("key.ods", SpreadsheetError, r"has to end in \.csv or \.xlsx"),
    ):
        if error is SpreadsheetError:
            (tmp_path / name).write_bytes(b"")
        with pytest.raises(error, match=message):
            report_study(str(tmp_path / name), str(whole / FILES[0]), str(tmp_path), seed=0)
    assert not (tmp_path / "human_study.md").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--annotations", "a.csv"),
        ("--key", "k.csv"),
        ("--annotations", "a.csv", "--key", "k.csv", "--annotation-sheet", "5"),
        ("--annotation-sheet", "0"),
    ],
)
def test_arguments_that_do_not_go_together_are_usage_errors(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["meta-evaluate", *arguments, "--output", "out"])
    assert ended.value.code == 2


def test_a_sheet_to_write_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The command then requires the options of the samples. The seed can be negative."""
    with pytest.raises(SystemExit):
        main(["meta-evaluate", "--annotation-sheet", "50", "--seed", "-3", "--output", "out"])
    assert "Missing option '--dataset', '--input', '--metric'." in capsys.readouterr().err
