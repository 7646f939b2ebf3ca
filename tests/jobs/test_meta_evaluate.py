"""`untold meta-evaluate`: what is counted, what is written, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jobs.cli.main import main
from jobs.meta_evaluate import (
    Endpoint,
    MetaEvaluationOutcome,
    MetaEvaluationRequest,
    endpoint_of,
    meta_evaluate,
)
from jobs.results import UnreadableRunError, open_run
from jobs.run.manifest import OutputError
from jobs.run.progress import Display
from jobs.settings.model import LlmSettings, Settings
from jobs.study.inputs import MetaEvaluationError
from jobs.tables import ATOMS, COMPARISONS, META_EVALUATION, STATEMENTS
from tests.jobs.study.test_agreement import SETS, VALUES, of_sets, strict_and_lax
from tests.sample_files import CONFLICTBANK_ROW, write_lines
from udfs.statistics.confusion import LABELS, match_label
from udfs.statistics.intervals import bca_interval, clustered_bca_interval
from udfs.statistics.permutation import adjust_p_values, paired_permutation_test

Rows = list[dict[str, Any]]
SPARK = ["--set", "spark.conf.spark.sql.shuffle.partitions=1", "--set", "spark.conf.spark.sql.adaptive.enabled=false"]


def wiki_row(number: int, labels: str) -> dict[str, Any]:
    """A row of the human evaluation; labels are five of C, P, I."""
    names = {"C": "Correct", "P": "Partially correct", "I": "Incorrect"}
    row = {"question": f"q{number // 2}", "model": "writer"}
    row |= {f"context{n}_self_contained": f"context {n} of {number}" for n in (1, 2)}
    row |= {f"answer{n}": f"answer {n}" for n in range(5)}
    return row | {f"label{n}": names[label] for n, label in enumerate(labels)}


LABELLED = ("CPIPC", "PPPII", "IPCCP", "PIPPC")


def write_wiki(path: Path, labels: tuple[str, ...] = LABELLED) -> str:
    return write_lines(path, [wiki_row(number, each) for number, each in enumerate(labels)])


def make_scores(metrics: tuple[str, ...] = ("e2e", "nli"), seed: int = 1) -> Rows:
    draw = random.Random(seed)
    ids = [f"{row}-answer{answer}" for row in range(len(LABELLED)) for answer in range(5)]
    return [{"sample_id": name, "metric": metric, "score": draw.choice(VALUES)} for name in ids for metric in metrics]


def write_scores(folder: Path, rows: Rows) -> str:
    folder.mkdir(parents=True)
    schema = pa.schema([(name, pa.float64() if name == "score" else pa.string()) for name in rows[0]])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "part-0.parquet")
    return str(folder)


def ask(folder: Path, scores: Mapping[str, str], **options: Any) -> MetaEvaluationRequest:
    chosen = {"dataset": "wikicontradict", "input": str(folder / "wiki.jsonl"), **options}
    return MetaEvaluationRequest(output=str(folder / "out"), settings=Settings(), scores=scores, **chosen)


def run(spark: SparkSession, request: MetaEvaluationRequest) -> MetaEvaluationOutcome:
    return meta_evaluate(request, Display())


def rows_of(request: MetaEvaluationRequest, table: str) -> Rows:
    rows: Rows = open_run(request.output).table(table).to_pylist()
    return rows


def label_of(sample_id: str) -> str:
    row, answer = int(sample_id[0]), int(sample_id[-1])
    label = LABELLED[row][answer]
    return {"C": "Partially correct" if answer in (1, 2) else "Correct", "P": "Partially correct", "I": "Incorrect"}[
        label
    ]


@pytest.fixture
def wiki(tmp_path: Path) -> Path:
    write_wiki(tmp_path / "wiki.jsonl")
    return tmp_path


def matches(rows: Rows, metric: str, *, zero: bool = False) -> dict[str, float]:
    return {
        row["sample_id"]: float(
            match_label(0.0 if zero and row["score"] is None else row["score"], label_of(row["sample_id"]))
        )
        for row in rows
        if row["metric"] == metric
    }


GIVEN = {"org/large": make_scores(seed=1), "small|é\nx": make_scores(seed=2)}


@pytest.fixture(scope="module")
def evaluated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MetaEvaluationRequest:
    """Two models under two metrics, evaluated."""
    folder = tmp_path_factory.mktemp("evaluated")
    write_wiki(folder / "wiki.jsonl")
    places = {model: write_scores(folder / str(seed), rows) for seed, (model, rows) in enumerate(GIVEN.items())}
    request = ask(folder, places)
    assert run(spark, request).exit_code == 0
    return request


def test_agreement_of_two_models_and_metrics(evaluated: MetaEvaluationRequest) -> None:
    table = open_run(evaluated.output).table("meta_evaluation")
    assert table.schema.equals(META_EVALUATION)
    rows = {(row["metric"], row["model"], row["undefined"], row["measure"]): row for row in table.to_pylist()}
    assert len(rows) == table.num_rows == 2 * 2 * 3 * 6
    assert {(row["dataset"], row["n"]) for row in rows.values()} == {("wikicontradict", 20)}
    for model, scores in GIVEN.items():
        found = [*matches(scores, "nli", zero=True).values()]
        expected = bca_interval([0, 1], [found.count(0), found.count(1)], seed=0)
        row = rows["nli", model, "zero", "lmr"]
        assert (row["value"], row["ci_low"], row["ci_high"]) == (expected.mean, expected.low, expected.high)
    most = max([label_of(row["sample_id"]) for row in GIVEN["org/large"]].count(label) for label in LABELS) / 2
    assert {row["value"] for key, row in rows.items() if key[3] == "floor_constant"} == {most / 20}


def test_metrics_are_compared_within_each_model(evaluated: MetaEvaluationRequest) -> None:
    compared = open_run(evaluated.output).table("comparisons")
    assert compared.schema.equals(COMPARISONS)
    tests = []
    for scores in GIVEN.values():
        first, second = (matches(scores, metric) for metric in ("e2e", "nli"))
        differences = [first[name] - second[name] for name in first]
        tests.append(paired_permutation_test(differences, [1] * 20, seed=0))
    adjusted = adjust_p_values([test.p_value for test in tests])
    assert compared.to_pylist() == [
        {
            "dataset": "wikicontradict",
            "model": model,
            "first": "e2e",
            "second": "nli",
            "difference": test.difference,
            "p_value": test.p_value,
            "p_adjusted": p_adjusted,
            "n": 20,
            "undefined": "mismatch",
        }
        for model, test, p_adjusted in zip(GIVEN, tests, adjusted, strict=True)
    ]


def snapshot(request: MetaEvaluationRequest) -> dict[str, bytes]:
    folder = Path(request.output)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("_")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_starting_again_gives_the_same_bytes(spark: SparkSession, evaluated: MetaEvaluationRequest) -> None:
    first = snapshot(evaluated)
    assert sorted(first) == [
        *("comparisons/part-0.parquet", "manifest.json", "match_counts/part-0.parquet", "meta_evaluation.md"),
        *("meta_evaluation.png", "meta_evaluation.svg", "meta_evaluation/part-0.parquet"),
    ]
    run(spark, evaluated)
    assert snapshot(evaluated) == first


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
    rows = {(row["undefined"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
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


def test_questions_with_several_answers_are_noted_where_rows_are_taken_one_by_one(
    evaluated: MetaEvaluationRequest,
) -> None:
    report = (Path(evaluated.output) / "meta_evaluation.md").read_text(encoding="utf-8")
    assert "Note: 20 rows are of 2 questions" in report


def test_failed_scores_are_left_out_under_zero_counted_and_wrong_as_published(spark: SparkSession, wiki: Path) -> None:
    rows = [row | {"status": "ok" if row["score"] is not None else "no_statements"} for row in make_scores(("e2e",))]
    for row in rows[:4]:
        row |= {"score": None, "status": "failed"}
    rows[4] |= {"score": None, "status": "budget"}
    request = ask(wiki, {"m": write_scores(wiki / "m", rows)})
    run(spark, request)
    found = {(row["undefined"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
    zero, published = matches(rows[5:], "e2e", zero=True), matches(rows, "e2e", zero=True)
    mismatch = matches(rows, "e2e")
    for undefined, earned, left_out in (("mismatch", mismatch, 0), ("zero", zero, 5), ("published", published, 0)):
        row = found[undefined, "lmr"]
        assert (row["n"], row["left_out"]) == (len(earned), left_out)
        assert row["value"] == pytest.approx(sum(earned.values()) / len(earned))
        assert (found[undefined, "kappa"]["n"], found[undefined, "kappa"]["left_out"]) == (len(earned), left_out)


def test_the_report_says_what_the_tables_say(evaluated: MetaEvaluationRequest) -> None:
    report = (Path(evaluated.output) / "meta_evaluation.md").read_text(encoding="utf-8")
    rows = {
        (row["metric"], row["model"], row["undefined"]): row
        for row in rows_of(evaluated, "meta_evaluation")
        if row["measure"] == "lmr"
    }
    (line,) = [line for line in report.splitlines() if line.startswith("| e2e | small") and "| zero |" in line]
    lmr, shown = rows["e2e", "small|é\nx", "zero"], line.split(" | ")
    assert shown[1:4] == ["small\\|é x", "zero", "20"]
    assert shown[4] == f"{lmr['value']:.3f} [{lmr['ci_low']:.3f}, {lmr['ci_high']:.3f}]"
    assert shown[-4:-1] == ["-", "-", "-"]  # what the scores cost is not known
    assert "| e2e | gpt-oss-120b | 0.756 [0.731, 0.779] |" in report
    cells = open_run(evaluated.output).manifest["confusion"]
    assert sum(cell["count"] for cell in cells) == 2 * 2 * 20


CLAIMS = ("default", "counterfactual")


def conflictbank_ids(instances: int) -> list[str]:
    return [f"{row}-{claim}-{name}" for row in range(instances) for claim in CLAIMS for name in SETS]


def write_bank(path: Path, instances: int) -> str:
    return write_lines(path, [CONFLICTBANK_ROW | {"question": f"q{n}"} for n in range(instances)])


def check_bank(request: MetaEvaluationRequest, groups: list[tuple[float, float]]) -> None:
    """The means of the strict and the lax parts of groups."""
    found = {row["measure"]: row for row in rows_of(request, "meta_evaluation") if row["undefined"] == "mismatch"}
    assert found.keys() == {"lmr", "lmr_strict", "lmr_lax"}
    strict, lax = (sum(part) / len(groups) for part in zip(*groups, strict=True))
    assert [found[name]["value"] for name in ("lmr_strict", "lmr_lax", "lmr")] == pytest.approx(
        [strict, lax, (strict + lax) / 2]
    )
    assert {row["n"] for row in found.values()} == {len(groups)}
    assert all(row["ci_low"] < row["value"] < row["ci_high"] for row in found.values())
    assert rows_of(request, "comparisons") == []


def test_conflictbank_alone_has_strict_and_lax_parts_no_tables_and_nothing_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    draw = random.Random(3)
    scores = {name: draw.choice(VALUES) for name in conflictbank_ids(6)}
    rows = [{"sample_id": name, "metric": "qa", "score": score} for name, score in scores.items()]
    places = {"m": write_scores(tmp_path / "m", rows)}
    request = ask(tmp_path, places, dataset="conflictbank_alone", input=write_bank(tmp_path / "bank.jsonl", 6))
    assert "published (dejl" not in run(spark, request).report.lower()
    check_bank(
        request,
        [
            strict_and_lax(claim, of_sets(*(scores[f"{row}-{claim}-{name}"] for name in SETS)))
            for row in range(6)
            for claim in CLAIMS
        ],
    )


Covered = dict[str, tuple[int, int]]  # by source how many statements are covered, of how many


def write_run(folder: Path, metric: str, counts: Mapping[str, Covered], *, atoms: bool) -> str:
    """An output of score whose samples cover that many statements, or atoms, of each source."""
    scores: Rows = []
    tables: dict[str, Rows] = {"atoms": [], "statements": []}
    for name, covered in counts.items():
        held, number = (sum(pair) for pair in zip(*covered.values(), strict=True))
        scores.append({"sample_id": name, "metric": metric, "score": held / number})
        keys = {"sample_id": name, "metric": metric}
        for source, (share, of) in covered.items():
            for place in range(of):
                statement = {**keys, "statement_id": f"{source}{place}", "covered": place < share}
                tables["statements"].append({**statement, "sources": [source]})
                if atoms:  # every other of them twice: before condensation both count
                    kept = {**keys, "statement_id": statement["statement_id"], "sources": [source], "kept": True}
                    tables["atoms"] += [kept] * (1 + place % 2) + [{**kept, "statement_id": None, "kept": False}]
    write_scores(folder / "scores", scores)
    for name, schema in (("atoms", ATOMS), ("statements", STATEMENTS)):
        (folder / name).mkdir()
        pq.write_table(pa.Table.from_pylist(tables[name], schema=schema), folder / name / "part-0.parquet")
    (folder / "manifest.json").write_text(json.dumps({"status": "finished"}), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("atoms", [False, True])
def test_conflictbank_by_source_counts_what_each_context_states(
    spark: SparkSession, tmp_path: Path, atoms: bool
) -> None:
    draw = random.Random(4)
    counts: dict[str, Covered] = {
        f"{row}-{claim}-all": {source: (draw.randint(0, 3), 3) for source in SETS[1:]}
        for row in range(6)
        for claim in CLAIMS
    }
    metric = "nli" if atoms else "e2e"
    places = {"m": write_run(tmp_path / "m", metric, counts, atoms=atoms)}
    request = ask(tmp_path, places, dataset="conflictbank", input=write_bank(tmp_path / "bank.jsonl", 6))
    assert "Published (Dejl" in run(spark, request).report

    def share(covered: int) -> float:
        # Of three statements the second has two atoms
        return (covered + (covered > 1)) / 4 if atoms else covered / 3

    groups = []
    for name, covered in counts.items():
        everything = sum(pair[0] for pair in covered.values()) / 12
        shares = [share(covered[source][0]) for source in SETS[1:]]
        groups.append(strict_and_lax(name.split("-")[1], of_sets(everything, *shares)))
    check_bank(request, groups)


def test_conflictbank_by_source_needs_more_than_scores(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"sample_id": f"0-{claim}-all", "metric": "qa", "score": 1.0} for claim in CLAIMS]
    request = ask(tmp_path, {"m": write_scores(tmp_path / "m", rows)}, dataset="conflictbank")
    with pytest.raises(MetaEvaluationError, match="no table atoms, and the shares of each source are counted from it"):
        run(spark, replace(request, input=write_bank(tmp_path / "bank.jsonl", 1)))


JUDGES = {
    "Qwen2.5-72B-Instruct": (0.8025, 0.410, 0.577),
    "gpt-oss-120b": (0.7558, 0.392, 0.547),
    "llama-3.3-70b-instruct": (0.8142, 0.413, 0.567),
}


def recorded_scores(path: Path) -> Rows:
    """A judge's recorded rows as scores, null where it stated nothing."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        covered, uncovered = len(row["covered"]), len(row["uncovered"])
        score = covered / (covered + uncovered) if covered or uncovered else None
        rows.append({"sample_id": f"{row['row']}-{row['answer_field']}", "metric": "e2e", "score": score})
    return rows


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
        (row["model"], row["undefined"], row["measure"]): row
        for row in open_run(output).table("meta_evaluation").to_pylist()
    }
    for judge, expected in JUDGES.items():
        values = [rows[judge, "zero", name]["value"] for name in ("lmr", "kappa", "macro_f1")]
        assert [round(value, digits) for value, digits in zip(values, (4, 3, 3), strict=True)] == list(expected)
    published = rows["gpt-oss-120b", "zero", "lmr"]
    assert [published["ci_low"], published["ci_high"]] == pytest.approx([0.731, 0.779], abs=0.002)
    assert rows["gpt-oss-120b", "mismatch", "lmr"]["value"] == pytest.approx((104 + 758 + 14) / 1200)
    assert {row["value"] for key, row in rows.items() if key[2] == "floor_constant"} == {0.77}
    assert {row["n"] for row in rows.values()} == {1200}
    assert capsys.readouterr().out == (output / "meta_evaluation.md").read_text(encoding="utf-8")


def test_each_metric_can_have_a_judge_of_its_own(spark: SparkSession, wiki: Path) -> None:
    places = {name: write_scores(wiki / name, make_scores(seed=seed)) for seed, name in enumerate(("one", "two"))}
    request = ask(wiki, places, metrics=("e2e", "nli"), judges={"e2e": "two", "nli": "one"})
    run(spark, request)
    rows = [row for row in rows_of(request, "meta_evaluation") if row["measure"] == "lmr"]
    assert {(row["metric"], row["model"]) for row in rows} == {("e2e", "two"), ("nli", "one")}


# What is refused


def refused(spark: SparkSession, request: MetaEvaluationRequest) -> str:
    with pytest.raises(MetaEvaluationError) as raised:
        run(spark, request)
    assert not (Path(request.output) / "manifest.json").exists()
    return str(raised.value)


def test_labels_that_are_none_of_the_three_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    rows = [wiki_row(0, "CPIPC"), wiki_row(1, "PPPII")]
    rows[0] |= {"label0": "correct", "label3": "correct", "label4": None}
    write_lines(tmp_path / "wiki.jsonl", rows)
    told = refused(spark, ask(tmp_path, {"m": write_scores(tmp_path / "m", make_scores())}))
    assert "3 samples have a label that is none of Incorrect, Partially correct, Correct" in told
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
        f"{where}: e2e: 1 samples of {about} have several scores: `0-answer0`",
        f"{where}: e2e: 1 scores are of no sample of {about}: `9-answer0`",
        f"{where}: nli: 5 samples of {about} have no score: `1-answer0` (did you mean `1_ANSWER0`?)",
        f"{where}: nli: 5 scores are of no sample of {about}: `1_ANSWER0`",
    ]


def test_metrics_that_are_not_there_are_named_with_the_nearest(spark: SparkSession, wiki: Path) -> None:
    request = ask(wiki, {"m": write_scores(wiki / "m", make_scores())}, metrics=("e2e", "nlli"))
    assert "no scores of metric `nlli` (did you mean `nli`?); it has e2e, nli" in refused(spark, request)


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("scor", None, "no column `score` (did you mean `scor`?); it has metric, sample_id, scor"),
        ("score", pa.array(["high"] * 40), "the column `score` is string; give numbers from 0 to 1"),
        ("score", pa.array([2.0, -1.0] + [0.5] * 38), "2 rows have a score that is not between 0 and 1"),
        ("sample_id", pa.array([None] + ["x"] * 39), "1 rows have no sample_id"),
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
    assert "wiki.jsonl: no Parquet in it; give an output of untold score" in refused(spark, request)


def test_nan_is_an_undefined_score(spark: SparkSession, wiki: Path) -> None:
    rows = [row | {"score": float("nan")} for row in make_scores(("e2e",))]
    request = ask(wiki, {"m": write_scores(wiki / "m", rows)})
    run(spark, request)
    found = {(row["undefined"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
    assert (found["mismatch", "lmr"]["value"], found["mismatch", "lmr"]["ci_low"]) == (0.0, None)
    assert found["zero", "lmr"]["value"] == [label_of(row["sample_id"]) for row in rows].count("Incorrect") / 20


def test_an_output_of_score_is_read_and_one_that_is_running_is_refused(spark: SparkSession, wiki: Path) -> None:
    write_scores(wiki / "run" / "scores", make_scores(("e2e",)))
    request = ask(wiki, {"m": str(wiki / "run")})
    for status in ("running", "finished"):
        (wiki / "run" / "manifest.json").write_text(json.dumps({"status": status}), encoding="utf-8")
        if status == "running":
            with pytest.raises(UnreadableRunError, match="has not ended"):
                run(spark, request)
    assert run(spark, request).exit_code == 0


def test_a_limit_that_cuts_an_instance_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "bank.jsonl", [CONFLICTBANK_ROW, CONFLICTBANK_ROW | {"question": "p"}])
    rows = [{"sample_id": name, "metric": "qa", "score": 1.0} for name in conflictbank_ids(1)]
    places = {"m": write_scores(tmp_path / "m", rows)}
    request = ask(tmp_path, places, dataset="conflictbank_alone", input=str(tmp_path / "bank.jsonl"))
    told = refused(spark, replace(request, limit=13))
    assert "1 of 2 instances lack some of their 10 samples; give --limit a multiple of 10" in told
    assert run(spark, replace(request, limit=10)).exit_code == 0


def endpoint(model: str) -> Endpoint:
    return endpoint_of(Settings(llm=LlmSettings(model=model, base_url="http://localhost:1/v1")), embedded=False)


def test_two_endpoints_of_one_model_or_folder_are_refused(tmp_path: Path) -> None:
    request = ask(tmp_path, {})
    for first, second in (("m", "m"), ("org/m", "org-m"), ("a", "A")):
        pair = replace(request, scores=None, endpoints=(endpoint(first), endpoint(second)))
        with pytest.raises(MetaEvaluationError, match=f"two endpoints have the models `{first}` and `{second}`"):
            meta_evaluate(pair, Display())
    assert not (tmp_path / "out").exists()


def test_a_model_has_one_folder_below_the_output() -> None:
    names = ("org/model:free", "../..", "gpt-4.1", "é è")
    assert [endpoint(name).folder for name in names] == ["org-model-free", "-", "gpt-4.1", "é-è"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--input", "a"], "the following arguments are required: --dataset, --metric"),
        (["--dataset", "wikicontradict", "--scores", "m=d"], "the following arguments are required: --input"),
        (["--dataset", "wikicontradicts", "--input", "a", "--metric", "e2e"], "invalid choice: 'wikicontradicts'"),
        (["--dataset", "conflictbank", "--input", "a", "--metric", "e3e"], "no metric 'e3e'; there are e2e"),
        (["--dataset", "conflictbank", "--input", "a", "--scores", "d"], "'d' is not of the form MODEL=DIR"),
        (["--dataset", "conflictbank", "--input", "a", *["--scores", "m=d"] * 2], "--scores names one model twice"),
        (
            ["--dataset", "wikicontradict", "--input", "a", "--scores", "qa:m=d", "--scores", "nli:m=e"],
            "--scores gives m two folders; name the judges apart",
        ),
        (
            ["--dataset", "wikicontradict", "--input", "a", "--scores", "qa:m=d", "--scores", "org/x:free=e"],
            "--scores METRIC:JUDGE=DIR names a judge for each metric",
        ),
        (
            ["--dataset", "wikicontradict", "--input", "a", "--scores", "m=d", "--conflictbank", "alone"],
            "--conflictbank goes with the data set conflictbank",
        ),
        (
            ["--dataset", "conflictbank", "--input", "a", "--scores", "m=d", "--endpoint", "vllm"],
            "--scores takes scores that exist; leave --endpoint out",
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
