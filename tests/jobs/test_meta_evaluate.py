"""Test `untold meta-evaluate`: the counts and the tables of the output."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.jobs.studies import (
    Rows,
    ask,
    endpoint,
    label_of,
    make_scores,
    matches,
    rows_of,
    run,
    write_scores,
    write_wiki,
)
from untold.jobs.cli.main import main
from untold.jobs.meta_evaluate import (
    MetaEvaluationRequest,
)
from untold.jobs.run.manifest import OutputError
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import Settings
from untold.jobs.study_tables import COMPARISONS, META_EVALUATION
from untold.jobs.tables import MEASURES
from untold.udfs.statistics.confusion import CONVENTIONS, LABELS
from untold.udfs.statistics.intervals import bca_interval, clustered_bca_interval
from untold.udfs.statistics.permutation import adjust_p_values, clustered_permutation_test

SPARK = ["--set", "spark.conf.spark.sql.shuffle.partitions=1", "--set", "spark.conf.spark.sql.adaptive.enabled=false"]


GIVEN = {"org/large": make_scores(seed=1), "small|é\nx": make_scores(seed=2)}


@pytest.fixture(scope="module")
def evaluated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MetaEvaluationRequest:
    """Return an evaluation of two models with two metrics."""
    folder = tmp_path_factory.mktemp("evaluated")
    write_wiki(folder / "wiki.jsonl")
    places = {model: write_scores(folder / str(seed), rows) for seed, (model, rows) in enumerate(GIVEN.items())}
    request = ask(folder, places)
    assert run(spark, request).exit_code == 0
    return request


def test_agreement_of_two_models_and_metrics(evaluated: MetaEvaluationRequest) -> None:
    table = open_run(evaluated.output).table("meta_evaluation")
    assert table.schema.equals(META_EVALUATION)
    rows = {(row["metric"], row["model"], row["convention"], row["measure"]): row for row in table.to_pylist()}
    assert len(rows) == table.num_rows == 2 * 2 * 3 * 6
    assert {(row["dataset"], row["n"]) for row in rows.values()} == {("wikicontradict", 20)}
    for model, scores in GIVEN.items():
        found = [*matches(scores, "nli", zero=True).values()]
        expected = bca_interval([0, 1], [found.count(0), found.count(1)], seed=0)
        row = rows["nli", model, "zero", "lmr"]
        assert (row["value"], row["ci_low"], row["ci_high"]) == (expected.mean, expected.low, expected.high)
    most = max([label_of(row["sample_id"]) for row in GIVEN["org/large"]].count(label) for label in LABELS) / 2
    assert {row["value"] for key, row in rows.items() if key[3] == "baseline_constant"} == {most / 20}


@pytest.mark.gate
def test_the_coverage_of_conflicts_and_the_score_are_compared_with_labels(spark: SparkSession, wiki: Path) -> None:
    """A correct response covers both sides of all conflicts, and an incorrect one covers no side.

    The view is always right.
    """
    scores = make_scores()
    shares = {"Correct": (1.0, 0.0), "Partially correct": (0.25, 0.5), "Incorrect": (0.0, 0.0)}
    measures = [
        {"sample_id": row["sample_id"], "metric": "nli", "measure": measure, "value": value}
        for row in scores
        if row["metric"] == "nli"
        for measure, value in zip(
            ("conflict_coverage", "one_sided", "conflicts"), (*shares[label_of(row["sample_id"])], 4.0), strict=True
        )
    ]
    write_scores(wiki / "m" / "scores", scores)
    (wiki / "m" / "measures").mkdir()
    pq.write_table(pa.Table.from_pylist(measures), wiki / "m" / "measures" / "part-0.parquet")
    request = ask(wiki, {"m": str(wiki / "m")})
    report = run(spark, request).report
    rows = {(row["metric"], row["convention"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
    assert {metric for metric, *_ in rows} == {"e2e", "nli", "nli_view"}
    assert [rows["nli_view", "mismatch", name]["value"] for name in ("lmr", "kappa", "macro_f1")] == [1.0, 1.0, 1.0]
    lmr = [*matches(scores, "nli").values()]
    assert rows["nli", "mismatch", "lmr"]["value"] == sum(lmr) / len(lmr) < 1
    assert "| nli_view | m | mismatch |" in report
    compared = [(row["first"], row["second"], row["convention"]) for row in rows_of(request, "comparisons")]
    assert compared == [("e2e", "nli", convention) for convention in CONVENTIONS]
    assert {row["metric"] for row in rows_of(request, "match_counts")} == {"e2e", "nli", None}


@pytest.mark.gate
def test_a_view_whose_conflicts_were_lost_is_failed_and_one_without_conflicts_undefined(
    spark: SparkSession, wiki: Path
) -> None:
    """All samples have a score, because the requests for conflicts are separate."""
    scores = [{**row, "score": 1.0} for row in make_scores(("e2e",))]
    ends = {scores[0]["sample_id"]: (None, 0.0, 1.0), scores[1]["sample_id"]: (None, None, None)}
    measures = [
        {"sample_id": row["sample_id"], "metric": "e2e", "measure": measure}
        | dict(zip(("value", "value_low", "value_high"), ends.get(row["sample_id"], (0.5, 0.5, 0.5)), strict=True))
        for row in scores
        for measure in ("conflict_coverage", "one_sided")
    ]
    write_scores(wiki / "m" / "scores", scores)
    (wiki / "m" / "measures").mkdir()
    pq.write_table(pa.Table.from_pylist(measures, MEASURES), wiki / "m" / "measures" / "part-0.parquet")
    request = ask(wiki, {"m": str(wiki / "m")})
    run(spark, request)
    table = rows_of(request, "meta_evaluation")
    # Only the convention `zero` ignores the failed samples and replaces an undefined value with 0
    found = {(row["metric"], row["n"]) for row in table if row["convention"] == "zero" and row["measure"] == "lmr"}
    assert found == {("e2e", 20), ("e2e_view", 19)}


def test_metrics_are_compared_within_each_model(evaluated: MetaEvaluationRequest) -> None:
    compared = open_run(evaluated.output).table("comparisons")
    assert compared.schema.equals(COMPARISONS)
    tests = []
    for scores in GIVEN.values():
        first, second = (matches(scores, metric) for metric in ("e2e", "nli"))
        differences = [first[name] - second[name] for name in first]
        tests.append(clustered_permutation_test(differences, [1] * 20, seed=0))
    adjusted = adjust_p_values([test.p_value for test in tests])
    assert [row for row in compared.to_pylist() if row["convention"] == "mismatch"] == [
        {
            "dataset": "wikicontradict",
            "model": model,
            "first": "e2e",
            "second": "nli",
            "difference": test.difference,
            "p_value": test.p_value,
            "p_adjusted": p_adjusted,
            "n": 20,
            "convention": "mismatch",
            "metric": None,
        }
        for model, test, p_adjusted in zip(GIVEN, tests, adjusted, strict=True)
    ]


def snapshot(request: MetaEvaluationRequest) -> dict[str, bytes]:
    folder = Path(request.output)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("_")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.gate
def test_starting_again_gives_the_same_bytes(spark: SparkSession, evaluated: MetaEvaluationRequest) -> None:
    first = snapshot(evaluated)
    assert sorted(first) == [
        *("comparisons/part-0.parquet", "manifest.json", "match_counts/part-0.parquet", "meta_evaluation.md"),
        *("meta_evaluation.png", "meta_evaluation.svg", "meta_evaluation/part-0.parquet"),
    ]
    run(spark, evaluated)
    assert snapshot(evaluated) == first


@pytest.mark.gate
def test_another_seed_is_refused_unless_overwritten(
    spark: SparkSession, evaluated: MetaEvaluationRequest, tmp_path: Path
) -> None:
    copy = tmp_path / "out"
    shutil.copytree(evaluated.output, copy)
    request = replace(evaluated, output=str(copy), settings=Settings.model_validate({"statistics": {"seed": 5}}))
    before = snapshot(request)
    with pytest.raises(OutputError, match=r"belongs to another statistics\.seed or --cluster; give another --output"):
        run(spark, request)
    assert snapshot(request) == before
    run(spark, replace(request, overwrite=True))
    assert snapshot(request).keys() == before.keys()
    assert snapshot(request)["meta_evaluation/part-0.parquet"] != before["meta_evaluation/part-0.parquet"]


def test_clustered_intervals_resample_questions_tables_included(spark: SparkSession, wiki: Path) -> None:
    scores = make_scores(("e2e",))
    request = ask(wiki, {"m": write_scores(wiki / "m", scores)}, cluster=True)
    run(spark, request)
    rows = {(row["convention"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
    found = matches(scores, "e2e")
    sums = [sum(value for name, value in found.items() if int(name[0]) // 2 == question) for question in (0, 1)]
    expected = clustered_bca_interval(sums, [10, 10], seed=0)
    row = rows["mismatch", "lmr"]
    assert (row["value"], row["ci_low"], row["ci_high"]) == (expected.mean, expected.low, expected.high)
    kappa = rows["zero", "kappa"]
    assert kappa["ci_low"] < kappa["value"] < kappa["ci_high"]
    report = (Path(request.output) / "meta_evaluation.md").read_text(encoding="utf-8")
    assert "10,000 resamples of whole questions" in report
    assert "Note:" not in report


def test_questions_with_several_answers_are_noted_if_rows_are_independent(
    evaluated: MetaEvaluationRequest,
) -> None:
    report = (Path(evaluated.output) / "meta_evaluation.md").read_text(encoding="utf-8")
    assert "Note: 20 rows share 2 questions" in report


@pytest.mark.gate
def test_failed_scores_are_omitted_under_zero_counted_and_wrong_as_published(spark: SparkSession, wiki: Path) -> None:
    rows = [row | {"status": "ok" if row["score"] is not None else "no_statements"} for row in make_scores(("e2e",))]
    for row in rows[:4]:
        row |= {"score": None, "status": "failed"}
    rows[4] |= {"score": None, "status": "budget"}
    request = ask(wiki, {"m": write_scores(wiki / "m", rows)})
    run(spark, request)
    found = {(row["convention"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
    zero, published = matches(rows[5:], "e2e", zero=True), matches(rows, "e2e", zero=True)
    mismatch = matches(rows, "e2e")
    for convention, earned, excluded in (("mismatch", mismatch, 0), ("zero", zero, 5), ("published", published, 0)):
        row = found[convention, "lmr"]
        assert (row["n"], row["excluded"]) == (len(earned), excluded)
        assert row["value"] == pytest.approx(sum(earned.values()) / len(earned))
        assert (found[convention, "kappa"]["n"], found[convention, "kappa"]["excluded"]) == (len(earned), excluded)


def test_the_report_has_the_values_of_the_tables(evaluated: MetaEvaluationRequest) -> None:
    report = (Path(evaluated.output) / "meta_evaluation.md").read_text(encoding="utf-8")
    rows = {
        (row["metric"], row["model"], row["convention"]): row
        for row in rows_of(evaluated, "meta_evaluation")
        if row["measure"] == "lmr"
    }
    (line,) = [line for line in report.splitlines() if line.startswith("| e2e | small") and "| zero |" in line]
    lmr, shown = rows["e2e", "small|é\nx", "zero"], line.split(" | ")
    assert shown[1:5] == ["small\\|é x", "zero", "20", "0"]
    assert shown[5] == f"{lmr['value']:.3f} [{lmr['ci_low']:.3f}, {lmr['ci_high']:.3f}]"
    assert shown[-4:-1] == ["-", "-", "-"]  # the cost of the scores is not known
    assert "| wikicontradict | e2e | gpt-oss-120b | lmr | - | 0.7558 [0.731, 0.779] |" in report
    cells = open_run(evaluated.output).manifest["confusion"]
    assert sum(cell["count"] for cell in cells) == 2 * 2 * 20


JUDGES = {
    "Qwen2.5-72B-Instruct": (0.8025, 0.410, 0.577),
    "gpt-oss-120b": (0.7558, 0.392, 0.547),
    "llama-3.3-70b-instruct": (0.8142, 0.413, 0.567),
}


def recorded_scores(path: Path) -> Rows:
    """Return the recorded rows of a judge as scores. The score is null if there are no statements."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        covered, uncovered = len(row["covered"]), len(row["uncovered"])
        score = covered / (covered + uncovered) if covered or uncovered else None
        rows.append({"sample_id": f"{row['row']}-{row['answer_field']}", "metric": "e2e", "score": score})
    return rows


@pytest.mark.gate
def test_recorded_judges_have_the_published_agreement(
    spark: SparkSession, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = data / "wikicontradict", tmp_path / "out"
    arguments = ["--dataset", "wikicontradict", "--input", str(folder / "wiki_contradict_simple_humaneval.jsonl")]
    for judge in JUDGES:
        place = write_scores(tmp_path / judge, recorded_scores(folder / "recorded_e2e" / f"{judge}.jsonl"))
        arguments += ["--scores", f"{judge}={place}"]
    assert main(["meta-evaluate", *arguments, "--output", str(output), *SPARK]) == 0
    rows = {
        (row["model"], row["convention"], row["measure"]): row
        for row in open_run(output).table("meta_evaluation").to_pylist()
    }
    for judge, expected in JUDGES.items():
        values = [rows[judge, "zero", name]["value"] for name in ("lmr", "kappa", "macro_f1")]
        assert [round(value, digits) for value, digits in zip(values, (4, 3, 3), strict=True)] == list(expected)
    published = rows["gpt-oss-120b", "zero", "lmr"]
    assert [published["ci_low"], published["ci_high"]] == pytest.approx([0.731, 0.779], abs=0.002)
    assert rows["gpt-oss-120b", "mismatch", "lmr"]["value"] == pytest.approx((104 + 758 + 14) / 1200)
    assert {row["value"] for key, row in rows.items() if key[2] == "baseline_constant"} == {0.77}
    assert {row["n"] for row in rows.values()} == {1200}
    assert capsys.readouterr().out == (output / "meta_evaluation.md").read_text(encoding="utf-8")


@pytest.mark.gate
def test_each_metric_can_have_its_own_judge(spark: SparkSession, wiki: Path) -> None:
    places = {name: write_scores(wiki / name, make_scores(seed=seed)) for seed, name in enumerate(("one", "two"))}
    request = ask(wiki, places, metrics=("e2e", "nli"), judges={"e2e": "two", "nli": "one"})
    run(spark, request)
    rows = [row for row in rows_of(request, "meta_evaluation") if row["measure"] == "lmr"]
    assert {(row["metric"], row["model"]) for row in rows} == {("e2e", "two"), ("nli", "one")}


def test_nan_is_an_undefined_score(spark: SparkSession, wiki: Path) -> None:
    rows = [row | {"score": float("nan")} for row in make_scores(("e2e",))]
    request = ask(wiki, {"m": write_scores(wiki / "m", rows)})
    run(spark, request)
    found = {(row["convention"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
    assert (found["mismatch", "lmr"]["value"], found["mismatch", "lmr"]["ci_low"]) == (0.0, None)
    assert found["zero", "lmr"]["value"] == [label_of(row["sample_id"]) for row in rows].count("Incorrect") / 20


def test_a_model_has_one_folder_below_the_output() -> None:
    names = ("org/model:free", "../..", "gpt-4.1", "é è")
    assert [endpoint(name).folder for name in names] == ["org-model-free", "-", "gpt-4.1", "é-è"]
