"""Test the error messages of `untold meta-evaluate` for invalid input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.jobs.studies import (
    ask,
    conflictbank_ids,
    endpoint,
    make_scores,
    run,
    wiki_row,
    write_scores,
)
from tests.sample_files import CONFLICTBANK_ROW, write_lines
from untold.jobs.cli.arguments import Options
from untold.jobs.cli.main import main
from untold.jobs.cli.meta_evaluation import load_endpoint
from untold.jobs.meta_evaluate import (
    MetaEvaluationRequest,
    meta_evaluate,
)
from untold.jobs.run.terminal import Display
from untold.jobs.run_tables import UnreadableRunError
from untold.jobs.settings.model import Settings, SettingsError
from untold.jobs.study.judgements import MetaEvaluationError


def refused(spark: SparkSession, request: MetaEvaluationRequest) -> str:
    with pytest.raises(MetaEvaluationError) as raised:
        run(spark, request)
    assert not (Path(request.output) / "manifest.json").exists()
    return str(raised.value)


def test_unknown_labels_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    rows = [wiki_row(0, "CPIPC"), wiki_row(1, "PPPII")]
    rows[0] |= {"label0": "correct", "label3": "correct", "label4": None}
    write_lines(tmp_path / "wiki.jsonl", rows)
    told = refused(spark, ask(tmp_path, {"m": write_scores(tmp_path / "m", make_scores())}))
    assert "3 samples have a label that is not one of Incorrect, Partially correct, Correct" in told
    assert "`correct` (did you mean `Correct`?) in 2, none at all in 1" in told


def test_ids_that_are_missing_on_either_side_are_counted_with_near_misses(spark: SparkSession, wiki: Path) -> None:
    scores = make_scores()
    for row in scores:
        if row["metric"] == "nli" and row["sample_id"].startswith("1-"):
            row["sample_id"] = row["sample_id"].replace("-", "_").upper()
    scores.append({"sample_id": "9-answer0", "metric": "e2e", "score": 1.0})
    scores.append({"sample_id": "0-answer0", "metric": "e2e", "score": 1.0})
    told = refused(spark, ask(wiki, {"m": write_scores(wiki / "m", scores)}))
    where, about = f"m ({wiki / 'm'})", wiki / "wiki.jsonl"
    assert told.splitlines() == [
        f"{where}: e2e: 1 sample of {about} has several scores: `0-answer0`",
        f"{where}: e2e: 1 score belongs to no sample of {about}: `9-answer0`",
        f"{where}: nli: 5 samples of {about} have no score: `1-answer0` (did you mean `1_ANSWER0`?)",
        f"{where}: nli: 5 scores belong to no sample of {about}: `1_ANSWER0`",
    ]


def test_scores_that_all_failed_are_one_line(spark: SparkSession, wiki: Path) -> None:
    failed = [{**row, "score": None, "status": "failed"} for row in make_scores()]
    with pytest.raises(MetaEvaluationError, match=r"nothing to evaluate: no sample of .* has a score in"):
        run(spark, ask(wiki, {"m": write_scores(wiki / "m", failed)}))


def test_metrics_that_are_not_there_are_named_with_the_nearest(spark: SparkSession, wiki: Path) -> None:
    request = ask(wiki, {"m": write_scores(wiki / "m", make_scores())}, metrics=("e2e", "nlli"))
    assert "no scores of metric `nlli` (did you mean `nli`?). It has e2e, nli" in refused(spark, request)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("scor", None, "no column `score` (did you mean `scor`?). It has metric, sample_id, scor"),
        ("score", pa.array(["high"] * 40), "the column `score` is string. Give numbers from 0 to 1"),
        ("score", pa.array([2.0, -1.0] + [0.5] * 38), "2 rows have a score that is not between 0 and 1"),
        ("sample_id", pa.array([None] + ["x"] * 39), "1 row has no sample_id"),
        ("metric", pa.array([None] + ["e2e"] * 39), "the column `metric` is null in some rows"),
    ],
)
def test_columns_of_no_use_are_named(
    spark: SparkSession, wiki: Path, column: str, values: pa.Array | None, told: str
) -> None:
    rows = pa.Table.from_pylist(make_scores())
    table = (
        rows.rename_columns({"score": column})
        if values is None
        else rows.set_column(rows.schema.get_field_index(column), column, values)
    )
    (wiki / "m").mkdir()
    pq.write_table(table, wiki / "m" / "part-0.parquet")
    assert told in refused(spark, ask(wiki, {"m": str(wiki / "m")}))


def test_a_folder_without_parquet_is_named(spark: SparkSession, wiki: Path) -> None:
    request = ask(wiki, {"m": str(wiki / "wiki.jsonl")})
    assert "wiki.jsonl has no Parquet. Give an output of untold score" in refused(spark, request)


@pytest.mark.gate
def test_an_output_of_score_is_read_and_a_running_output_is_refused(spark: SparkSession, wiki: Path) -> None:
    write_scores(wiki / "run" / "scores", make_scores(("e2e",)))
    request = ask(wiki, {"m": str(wiki / "run")})
    for status in ("running", "finished"):
        (wiki / "run" / "manifest.json").write_text(json.dumps({"status": status}), encoding="utf-8")
        if status == "running":
            with pytest.raises(UnreadableRunError, match="has not ended"):
                run(spark, request)
    assert run(spark, request).exit_code == 0


@pytest.mark.gate
def test_a_limit_that_cuts_an_instance_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "bank.jsonl", [CONFLICTBANK_ROW, CONFLICTBANK_ROW | {"question": "p"}])
    rows = [{"sample_id": name, "metric": "qa", "score": 1.0} for name in conflictbank_ids(1)]
    places = {"m": write_scores(tmp_path / "m", rows)}
    request = ask(tmp_path, places, dataset="conflictbank_alone", input=str(tmp_path / "bank.jsonl"))
    told = refused(spark, replace(request, limit=13))
    assert "1 of 2 instances lack some of their 10 samples. Set --limit to a multiple of 10" in told
    assert run(spark, replace(request, limit=10)).exit_code == 0


def test_two_endpoints_of_one_model_or_folder_are_refused(tmp_path: Path) -> None:
    request = ask(tmp_path, {})
    for first, second in (("m", "m"), ("org/m", "org-m"), ("a", "A")):
        pair = replace(request, scores=None, endpoints=(endpoint(first), endpoint(second)))
        with pytest.raises(MetaEvaluationError, match=f"two endpoints have the models `{first}` and `{second}`"):
            meta_evaluate(pair, Display())
    assert not (tmp_path / "out").exists()


PRESET = "llm: {base_url: http://127.0.0.1:9/v1, model: %s}\n"


def settings_of(folder: Path, name: str, text: str) -> Settings:
    """Return the settings of `--endpoint FILE --profile published --set llm.max_tokens=100`."""
    path = folder / f"{name}.yaml"
    path.write_text(PRESET % name + text, encoding="utf-8")
    options = Options(config=None, overrides=("llm.max_tokens=100",), endpoint=str(path), profile="published")
    return load_endpoint(options).settings


def test_each_endpoint_has_its_own_settings_of_metrics(tmp_path: Path) -> None:
    with_tool, without = settings_of(tmp_path, "llama", ""), settings_of(tmp_path, "oss", "qa: {quantity_tool: none}")
    assert (with_tool.llm.model, with_tool.qa.quantity_tool) == ("llama", "tool")
    assert (without.llm.model, without.qa.quantity_tool) == ("oss", "none")
    assert without.llm.base_url == with_tool.llm.base_url
    assert without.nli == with_tool.nli
    assert without.llm.max_tokens == with_tool.llm.max_tokens == 100


def test_an_endpoint_sets_nothing_of_the_study(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"statistics\.seed.*a preset sets only llm"):
        settings_of(tmp_path, "oss", "qa: {quantity_tool: none}\nstatistics: {seed: 3}")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--input", "a"], "Missing option '--dataset', '--metric'."),
        (["--dataset", "wikicontradict", "--scores", "m=d"], "Missing option '--input'."),
        (["--dataset", "wikicontradicts", "--input", "a", "--metric", "e2e"], "invalid choice: 'wikicontradicts'"),
        (["--dataset", "conflictbank", "--input", "a", "--metric", "e3e"], "no metric e3e; there are e2e"),
        (["--dataset", "conflictbank", "--input", "a", "--scores", "d"], "'d' is not of the form MODEL=DIR"),
        (["--dataset", "conflictbank", "--input", "a", *["--scores", "m=d"] * 2], "--scores names one model twice"),
        (
            ["--dataset", "wikicontradict", "--input", "a", "--scores", "qa:m=d", "--scores", "nli:m=e"],
            "--scores has two folders for m. Use a different name for each judge",
        ),
        (
            ["--dataset", "wikicontradict", "--input", "a", "--scores", "qa:m=d", "--scores", "org/x:free=e"],
            "--scores METRIC:JUDGE=DIR sets the judge of one metric",
        ),
        (
            ["--dataset", "wikicontradict", "--input", "a", "--scores", "m=d", "--conflictbank", "alone"],
            "--conflictbank requires --dataset conflictbank",
        ),
        (
            ["--dataset", "conflictbank", "--input", "a", "--scores", "m=d", "--endpoint", "vllm"],
            "--scores uses existing scores; leave --endpoint out",
        ),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["meta-evaluate", "--output", "out", *arguments])
    assert raised.value.code == 2
    assert told in capsys.readouterr().err
