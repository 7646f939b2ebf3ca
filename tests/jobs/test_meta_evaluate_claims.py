"""Test `untold meta-evaluate --dataset claims`: from files of labelled claims and verdicts to tables."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from statsmodels.stats.inter_rater import cohens_kappa

from tests.jobs.studies import Rows, ask, rows_of, run
from tests.sample_files import write_lines
from untold.jobs.cli.main import main
from untold.jobs.inputs.samples import SampleError
from untold.jobs.run_tables import open_run
from untold.jobs.study.judgements import MetaEvaluationError
from untold.jobs.study.verdict_studies import VERDICTS
from untold.jobs.study_tables import META_EVALUATION
from untold.udfs.samples import labelled
from untold.udfs.samples.file_records import Unit


def write_claims(folder: Path) -> Rows:
    """Write forty claims from ten responses of two systems, with human labels in several spellings."""
    draw = random.Random(3)
    names = {"supported": "Supported", "not_supported": "not supported", "contradicted": "CONTRADICTED"}
    rows = [
        {
            "sample_id": f"c{number:02}",
            "query_id": f"q{number % 10}",
            "system": f"system {number % 2}",
            "claim": f"claim {number}",
            "evidence": [f"evidence {number}"],
            "label": names[draw.choice(["supported", "supported", "not_supported", "contradicted"])],
        }
        for number in range(40)
    ]
    write_lines(folder / "wiki.jsonl", rows)
    return rows


def write_verdicts(folder: Path, rows: Rows) -> str:
    folder.mkdir()
    schema = pa.schema([(name, pa.string()) for name in rows[0]])
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "part-0.parquet")
    return str(folder)


def label_of(row: dict[str, Any]) -> str:
    label: str = row["label"].lower().replace(" ", "_")
    return label


@pytest.mark.gate
@pytest.mark.parametrize("clustered", [False, True])
def test_stored_verdicts_are_held_against_labels(spark: SparkSession, tmp_path: Path, clustered: bool) -> None:
    claims, draw = write_claims(tmp_path), random.Random(4)
    # One claim has a null verdict, and another has no row
    verdicts: dict[str, str | None] = {
        row["sample_id"]: label_of(row) if draw.random() < 0.6 else draw.choice(VERDICTS) for row in claims[1:]
    }
    verdicts["c01"] = None
    stored = [{"metric": "mine", "claim_id": name, "verdict": verdict} for name, verdict in verdicts.items()]
    places = {"m": write_verdicts(tmp_path / "m", stored)}
    request = ask(tmp_path, places, dataset="claims", cluster=clustered)
    report = run(spark, request).report
    assert open_run(request.output).table("meta_evaluation").schema.equals(META_EVALUATION)
    found = {(row["metric"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
    table = np.zeros((3, 3))
    for row in claims[2:]:
        table[VERDICTS.index(label_of(row)), VERDICTS.index(str(verdicts[row["sample_id"]]))] += 1
    accuracy = found["mine", "accuracy"]
    assert accuracy["value"] == pytest.approx(np.trace(table) / 38)
    assert (accuracy["n"], accuracy["excluded"], accuracy["dataset"], accuracy["level"]) == (38, 2, "claims", "item")
    assert accuracy["ci_low"] < accuracy["value"] < accuracy["ci_high"]
    assert found["mine", "kappa"]["value"] == pytest.approx(cohens_kappa(table, return_results=False))
    labels = [label_of(row) for row in claims]
    assert found["constant", "accuracy"]["value"] == max(map(labels.count, VERDICTS)) / 40
    for system in (0, 1):
        own = [label == "supported" for label in labels[system::2]]
        share = found["people", f"supported_share:system {system}"]
        assert (share["value"], share["n"]) == (pytest.approx(np.mean(own)), 20)
    assert ("whole queries" in report) == clustered
    assert "| mine | m | 38 | 2 |" in report


def test_a_contradicted_claim_counts_as_not_supported_if_labels_do_not_distinguish_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = ['1,a,"[""e""]",supported', "2,b,some text,not_supported", "3,c,,not_supported"]
    (tmp_path / "claims.csv").write_text("\n".join(["sample_id,claim,evidence,label", *rows]))
    stored = [{"claim_id": str(n), "verdict": verdict} for n, verdict in ((1, "supported"), (2, "contradicted"))]
    places = {"m": write_verdicts(tmp_path / "m", stored)}
    request = ask(tmp_path, places, dataset="claims", input=str(tmp_path / "claims.csv"))
    run(spark, request)
    (accuracy,) = [
        row
        for row in rows_of(request, "meta_evaluation")
        if (row["metric"], row["measure"]) == ("verify_claim", "accuracy")
    ]
    assert (accuracy["value"], accuracy["n"], accuracy["excluded"]) == (1, 2, 1)


@pytest.mark.gate
def test_what_cannot_be_used_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    claims = write_claims(tmp_path)
    wrong = [
        {"claim_id": "c00", "verdict": "supported"},
        {"claim_id": "c00", "verdict": "supported"},
        {"claim_id": "c01", "verdict": "true"},
        {"claim_id": "c99", "verdict": "supported"},
    ]
    request = ask(tmp_path, {"m": write_verdicts(tmp_path / "m", wrong)}, dataset="claims")
    with pytest.raises(MetaEvaluationError) as raised:
        run(spark, request)
    about, where = tmp_path / "wiki.jsonl", f"m ({tmp_path / 'm'}): verify_claim"
    assert str(raised.value).splitlines() == [
        f"{where}: 1 claim of {about} has several verdicts: claim_id `c00`",
        f"{where}: 1 verdict is not one of supported, contradicted, not_supported: claim_id `c01`",
        f"{where}: 1 verdict belongs to no claim of {about}: claim_id `c99`",
    ]
    write_lines(about, [{**claims[0], "label": "suported"}, *claims[1:]])
    with pytest.raises(MetaEvaluationError, match=r"1 claim has a label that is not one of supported, .*`suported`"):
        run(spark, request)
    write_lines(about, [{"claim": "c", "label": "supported"}])
    with pytest.raises(SampleError, match="no column `evidence`"):
        run(spark, request)


@pytest.mark.gate
def test_factscore_has_the_precision_of_its_labels(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    file = data / "factscore_human" / "ChatGPT.jsonl"
    claims = [dict(record.values) for record in labelled.read_claims(Unit(0, str(file), ""))]
    stored = [{"claim_id": claim["sample_id"], "verdict": claim["label"]} for claim in claims]
    places = {"people": write_verdicts(tmp_path / "m", stored)}
    request = ask(tmp_path, places, dataset="claims", format="factscore", input=str(data / "factscore_human"))
    # The output has no verdicts of the other models
    report = run(spark, request).report
    found = {(row["metric"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
    shares = {
        name: round(found["people", f"supported_share:{name}"]["value"], 4)
        for name in ("ChatGPT", "InstructGPT", "PerplexityAI")
    }
    assert shares == {"ChatGPT": 0.6537, "InstructGPT": 0.5158, "PerplexityAI": 0.8642}
    assert found["verify_claim", "accuracy"]["value"] == 1
    assert found["verify_claim", "accuracy"]["n"] == len(claims) == 3194 + 1692
    assert "| PerplexityAI | 0.8642 [" in report


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--metric", "e2e"], "--metric requires --scores, because the stage verify_claim judges claims"),
        (["--format", "realsumm"], "--format realsumm requires --dataset coverage"),
        (["--covered", "yes"], "--covered requires --dataset coverage"),
        (["--annotation-sheet", "3"], "--annotation-sheet draws from labels of responses"),
    ],
)
def test_options_of_a_study_of_claims_are_its_own(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["meta-evaluate", "--dataset", "claims", *words, "--input", "x", "--output", "out"])
    assert told in capsys.readouterr().err
