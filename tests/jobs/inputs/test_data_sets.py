"""Test the adapters of published data sets: the rows and the files that they read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sample_files import CONFLICTBANK_ROW, write_lines
from untold.jobs.inputs.samples import SampleError, read_samples
from untold.jobs.meta_evaluate import MetaEvaluationRequest
from untold.jobs.settings.model import Settings
from untold.jobs.study.verdict_studies import ClaimStudy


@pytest.mark.gate
def test_wikicontradict_rows_become_five_labelled_samples(spark: SparkSession, tmp_path: Path) -> None:
    row = {"question": "q", "context1_self_contained": "a", "context2_self_contained": "b", "model": "m"}
    row |= {f"answer{n}": f"r{n}" for n in range(5)} | {f"label{n}": "Correct" for n in range(5)}
    path = write_lines(tmp_path / "a.jsonl", [row, {**row, "question": "p"}])

    found = {
        sample["sample_id"]: sample for sample in read_samples(spark, path, format="wikicontradict").samples.collect()
    }

    assert sorted(found) == [f"{n}-answer{k}" for n in range(2) for k in range(5)]
    sample = found["1-answer2"].asDict(recursive=True)
    assert sample == {
        "sample_id": "1-answer2",
        "query": "p",
        "response": "r2",
        "contexts": [
            {"id": "context1_self_contained", "text": "a", "kind": "context1"},
            {"id": "context2_self_contained", "text": "b", "kind": "context2"},
        ],
        "system": "m",
        "label": "Partially correct",
        "prompt_index": 2,
        "row": 1,
    }
    assert [found[f"0-answer{k}"]["label"] for k in (0, 1, 3)] == ["Correct", "Partially correct", "Correct"]


def test_the_human_evaluation_has_1200_labelled_samples(spark: SparkSession, data: Path) -> None:
    path = data / "wikicontradict" / "wiki_contradict_simple_humaneval.jsonl"

    read = read_samples(spark, str(path), format="wikicontradict")

    labels = {row["label"]: row["count"] for row in read.samples.groupBy("label").count().collect()}
    assert labels == {"Partially correct": 924, "Incorrect": 207, "Correct": 69}
    assert (read.row_count, read.invalid_count, read.duplicates) == (1200, 0, 0)


def test_a_conflictbank_instance_becomes_two_responses_to_five_context_sets(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [CONFLICTBANK_ROW, {**CONFLICTBANK_ROW, "question": "p"}])

    samples = read_samples(spark, path, format="conflictbank_alone").samples.collect()

    found = {sample["sample_id"]: sample.asDict(recursive=True) for sample in samples}
    assert len(found) == 20
    texts = {"D": "d", "C1": "c1", "C2": "c2", "C3": "c3"}
    kinds = dict(zip(texts, ("default", "misinformation", "temporal", "semantic"), strict=True))
    for claim, response in (("default", "It is d."), ("counterfactual", "It is c.")):
        for context_set in ("all", *texts):
            shown = texts if context_set == "all" else {context_set: texts[context_set]}
            assert found[f"1-{claim}-{context_set}"] == {
                "sample_id": f"1-{claim}-{context_set}",
                "query": "p",
                "response": response,
                "contexts": [{"id": name, "text": text, "kind": kinds[name]} for name, text in shown.items()],
                "system": None,
                "label": None,
                "claim": claim,
                "context_set": context_set,
                "row": 1,
            }


def test_a_conflictbank_instance_is_two_evaluations_by_source(spark: SparkSession, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "bank.jsonl", [CONFLICTBANK_ROW])
    samples = read_samples(spark, path, format="conflictbank").samples.collect()
    assert sorted(row["sample_id"] for row in samples) == ["0-counterfactual-all", "0-default-all"]
    assert [[context["id"] for context in row["contexts"]] for row in samples] == [["D", "C1", "C2", "C3"]] * 2


def test_a_conflictbank_row_without_a_context_fails_at_the_context(spark: SparkSession, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**CONFLICTBANK_ROW, "temporal_conflict_evidence": None}])

    invalid = read_samples(spark, path, format="conflictbank_alone").invalid.collect()

    assert sorted(row["sample_id"] for row in invalid) == [
        f"0-{claim}-{context_set}" for claim in ("counterfactual", "default") for context_set in ("C2", "all")
    ]


def test_the_instances_of_conflictbank_are_read(spark: SparkSession, data: Path) -> None:
    (path,) = (data / "conflictbank").glob("*.jsonl")

    read = read_samples(spark, str(path), format="conflictbank_alone")

    assert (read.row_count, read.invalid_count, read.duplicates) == (30, 0, 0)
    by_claim = read.samples.groupBy("row", "claim").agg({"response": "count", "context_set": "count"}).collect()
    assert len(by_claim) == 6


@pytest.mark.gate
def test_data_sets_with_files_of_their_own_are_read_from_their_folders(spark: SparkSession, data: Path) -> None:
    topics = read_samples(spark, str(data / "trec_web"), format="trec_web")
    assert (topics.row_count, topics.invalid_count) == (300, 300)  # the data set has no responses yet
    (seventh,) = topics.samples.where("query_id = '7'").select("query", "aspects").collect()
    assert seventh["query"].startswith("Find information ")
    assert [aspect["id"] for aspect in seventh["aspects"]] == [str(n) for n in range(1, len(seventh["aspects"]) + 1)]
    summaries = read_samples(spark, str(data / "realsumm"), format="realsumm", limit=30)
    assert (summaries.row_count, summaries.invalid_count) == (30, 0)
    experts = read_samples(spark, str(data / "expertqa"), format="expertqa", optional=("references",))
    assert (experts.row_count, experts.duplicates, experts.invalid_count) == (479, 885 - 479, 0)
    given = {"dataset": "claims", "input": str(data / "expertqa"), "format": "expertqa", "output": "out"}
    claims = ClaimStudy.read_samples(spark, MetaEvaluationRequest(settings=Settings(), **given))
    assert (claims.row_count, claims.invalid_count) == (2177, 0)
    with pytest.raises(SampleError, match=r"trec_web has no file that matches \*/labels/\*\.label\. Give the folder"):
        read_samples(spark, str(data / "trec_web"), format="realsumm")
