"""Test `untold meta-evaluate --dataset coverage`: from files of labelled items and verdicts to tables."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nltk.translate.meteor_score import single_meteor_score
from pyspark.sql import SparkSession
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import sentence_bleu
from scipy import stats
from statsmodels.stats.inter_rater import fleiss_kappa
from tokenizers import Tokenizer

from tests.jobs.report.outputs import CORRECTED, CORRECTIONS, write_output
from tests.jobs.studies import Rows, ask, rows_of, run
from tests.sample_files import write_lines
from untold.jobs.cli.main import main
from untold.jobs.meta_evaluate import MetaEvaluationRequest
from untold.jobs.run.manifest import OutputError
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import Settings
from untold.jobs.study.judgements import MetaEvaluationError
from untold.jobs.study_tables import COVERAGE, META_EVALUATION
from untold.udfs.retrieval.embedding import BERTSCORE, find_model
from untold.udfs.samples.data_sets import read_system
from untold.udfs.samples.file_records import Unit
from untold.udfs.samples.labelled import SURFACE

FACTS = ["bees make honey", "bees sting people", "honey never spoils", "queens lay eggs"]
SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
LABELS = {"yes": True, "partly": True, "no": False}


def write_study(folder: Path) -> str:
    """Write twelve responses to four queries with four aspects each.

    Two of the four annotators labelled few aspects.
    """
    draw, rows = random.Random(4), []
    for number in range(12):
        aspects = []
        for place, fact in enumerate(FACTS):
            labels = [draw.choice(list(LABELS)) for _ in range(draw.choice([0, 2, 2, 3]))]
            aspects.append({"id": f"f{place}", "text": fact, "labels": labels or None})
        said = ". ".join(draw.sample(FACTS, draw.randrange(4)))
        rows.append({"sample_id": f"s{number:02}", "query": f"bees {number % 4}", "response": said, "aspects": aspects})
    return write_lines(folder / "wiki.jsonl", rows)


def write_verdicts(folder: Path, rows: Rows) -> str:
    folder.mkdir()
    schema = pa.schema([(name, pa.bool_() if name == "covered" else pa.string()) for name in rows[0]])
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "part-0.parquet")
    return str(folder)


def make_verdicts() -> Rows:
    """Return verdicts for all aspects except the aspects of the last sample. One verdict is null."""
    draw = random.Random(5)
    rows = [
        {"sample_id": f"s{n:02}", "metric": "icat", "reference_id": f"f{place}", "covered": draw.random() < 0.5}
        for n in range(11)
        for place in range(len(FACTS))
    ]
    rows[0]["covered"] = None
    # A statement of the contexts without an aspect
    return [*rows, {"sample_id": "s00", "metric": "icat", "reference_id": None, "covered": True}]


@pytest.fixture(scope="module")
def study(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MetaEvaluationRequest:
    folder = tmp_path_factory.mktemp("coverage")
    write_study(folder)
    places = {"m": write_verdicts(folder / "m", make_verdicts())}
    request = ask(folder, places, dataset="coverage", covered=("yes", "partly"), cluster=True)
    assert run(spark, request).exit_code == 0
    return request


def samples_of(request: MetaEvaluationRequest) -> Rows:
    return [json.loads(line) for line in Path(request.input).read_text().splitlines()]


def majority(labels: list[str] | None) -> bool | None:
    yes = sum(LABELS[label] for label in labels or [])
    return None if 2 * yes == len(labels or []) else 2 * yes > len(labels or [])


@pytest.mark.gate
def test_each_sample_has_the_labels_of_people_and_of_the_metric(study: MetaEvaluationRequest) -> None:
    assert open_run(study.output).table("coverage").schema.equals(COVERAGE)
    found = {row["sample_id"]: row for row in rows_of(study, "coverage") if row["metric"] == "icat"}
    verdicts = {(row["sample_id"], row["reference_id"]): row["covered"] for row in make_verdicts()}
    for sample in samples_of(study):
        name = sample["sample_id"]
        people = {one["id"]: majority(one["labels"]) for one in sample["aspects"]}
        said = {place: verdicts.get((name, place)) for place in people}
        known = [value for value in people.values() if value is not None]
        both = [(said[place], people[place]) for place in people if None not in (said[place], people[place])]
        judged = [value for value in said.values() if value is not None]
        row = found[name]
        assert row["query_id"] == sample["query"]
        assert (row["human"], row["labelled"]) == (np.mean(known) if known else None, len(known))
        assert row["ties"] == sum(bool(one["labels"]) and people[one["id"]] is None for one in sample["aspects"])
        assert row["value"] == (np.mean(judged) if judged else None)
        if name == "s11":
            assert row["true_positives"] is row["judged"] is None
        else:
            counts = [both.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))]
            assert [
                row[key] for key in ("true_positives", "false_positives", "false_negatives", "true_negatives")
            ] == counts
            assert row["judged"] == sum(counts)


@pytest.mark.gate
def test_baselines_are_the_libraries_on_the_items_joined_by_newlines(study: MetaEvaluationRequest) -> None:
    rows = [row for row in rows_of(study, "coverage") if row["model"] is None]
    assert {row["metric"] for row in rows} == {*SURFACE, *BERTSCORE}
    values = {(row["metric"], row["sample_id"]): row["value"] for row in rows}
    scorer, reference = RougeScorer(["rougeLsum"], use_stemmer=False), "\n".join(FACTS)
    for sample in samples_of(study):
        name, response = sample["sample_id"], sample["response"]
        blank = not re.search(r"\w", response)
        assert values["rougeLsum", name] == scorer.score(reference, response)["rougeLsum"].fmeasure
        assert values["bleu", name] == pytest.approx(0 if blank else sentence_bleu(response, [reference]).score)
        assert (values["bertscore_f1", name] == 0) == blank


@pytest.mark.gate
def test_measures_equal_scipy_and_statsmodels(study: MetaEvaluationRequest) -> None:
    table = open_run(study.output).table("meta_evaluation")
    assert table.schema.equals(META_EVALUATION)
    rows = table.to_pylist()
    by_sample = [row for row in rows_of(study, "coverage") if None not in (row["human"], row["value"])]
    for metric in ("icat", "rouge2", "bertscore_recall"):
        own = [(row["human"], row["value"]) for row in by_sample if row["metric"] == metric]
        (kendall,) = [
            row for row in rows if (row["metric"], row["measure"], row["level"]) == (metric, "kendall", "sample")
        ]
        expected = stats.kendalltau(*zip(*own, strict=True))
        assert (kendall["n"], kendall["value"], kendall["p_value"]) == (
            len(own),
            pytest.approx(expected.statistic),
            pytest.approx(expected.pvalue),
        )
    assert {row["n"] for row in rows if row["level"] == "query"} == {4}
    votes = [[LABELS[label] for label in one["labels"] or []] for s in samples_of(study) for one in s["aspects"]]
    alike = [row for row in rows if row["measure"] == "fleiss_kappa"]
    assert [row["n"] for row in alike] == [sum(len(one) >= 2 for one in votes)]
    assert table.schema.names == list(rows[0])


@pytest.mark.gate
def test_other_labels_are_another_study(spark: SparkSession, study: MetaEvaluationRequest) -> None:
    with pytest.raises(OutputError, match="belongs to another --covered; give another --output"):
        run(spark, replace(study, covered=("yes",)))


@pytest.mark.gate
def test_annotators_of_one_number_have_the_kappa_of_statsmodels(spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(6)
    labels = [[draw.choice([1, 1, 0]) for _ in range(3)] for _ in range(9)]
    aspects = [{"text": f"fact {place}", "labels": given} for place, given in enumerate(labels)]
    write_lines(tmp_path / "wiki.jsonl", [{"sample_id": "s", "query": "q", "response": "fact", "references": aspects}])
    verdicts = [{"sample_id": "s", "metric": "recall", "reference_id": "1", "covered": True}]
    # The folder has no model, so the study skips BERTScore and reports the reason
    settings = Settings.model_validate({"embeddings": {"model": str(tmp_path)}})
    request = MetaEvaluationRequest(
        dataset="coverage",
        input=str(tmp_path / "wiki.jsonl"),
        output=str(tmp_path / "out"),
        settings=settings,
        scores={"m": write_verdicts(tmp_path / "m", verdicts)},
    )
    report = run(spark, request).report
    kappa = next(row["value"] for row in rows_of(request, "meta_evaluation") if row["measure"] == "fleiss_kappa")
    assert kappa == pytest.approx(fleiss_kappa(np.array([[sum(one), 3 - sum(one)] for one in labels])))
    assert "Note: BERTScore is skipped: " in report
    assert "has no model.onnx and no tokenizer.json" in report
    assert not any("bert" in str(row["metric"]) for row in rows_of(request, "meta_evaluation"))
    assert "Labels that mean covered: `1`" in report


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def judge_by_words(samples: Rows) -> Rows:
    """Return the verdicts of a judge. It needs at least half of the words of a fact in the summary."""
    return [
        {"sample_id": sample["sample_id"], "metric": "overlap", "reference_id": fact["id"], "covered": covered}
        for sample in samples
        for fact in sample["aspects"]
        for known in [words(fact["text"])]
        for covered in [2 * len(known & words(sample["response"])) >= len(known)]
    ]


def read_realsumm(folder: Path) -> Rows:
    files = sorted((folder / "labels").glob("*.label"))
    return [dict(record.values) for file in files for record in read_system(Unit(0, str(file), ""))]


def check_realsumm(samples: Rows, verdicts: Rows, coverage: Rows, measures: Rows) -> None:
    """Compare all figures of a study of REALSumm with a separate calculation and with the original libraries."""
    people = {s["sample_id"]: [fact["labels"] == ["1"] for fact in s["aspects"]] for s in samples}
    said: dict[str, list[bool]] = defaultdict(list)
    for row in verdicts:
        said[row["sample_id"]].append(row["covered"])
    found = {(row["metric"], row["measure"], row["level"]): row for row in measures}
    by_metric: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in coverage:
        by_metric[row["metric"]][row["sample_id"]] = row
    human = [float(np.mean(people[name])) for name in sorted(people)]
    for metric, rows in by_metric.items():
        values = [rows[name]["value"] for name in sorted(people)]
        for name, of in SCIPY.items():
            expected, row = of(human, values), found[metric, name, "sample"]
            assert (row["n"], row["value"]) == (2500, pytest.approx(float(expected.statistic))), (metric, name)
            assert row["p_value"] == pytest.approx(float(expected.pvalue), rel=1e-6, abs=1e-300)
            assert row["ci_low"] < row["value"] < row["ci_high"]
    both = {name: sum(map(and_, people[name], said[name])) for name in people}
    sizes = {name: (sum(people[name]), sum(said[name])) for name in people}
    f1 = [2 * both[name] / sum(sizes[name]) for name in people if any(sizes[name])]
    assert found["overlap", "f1_macro", "sample"]["value"] == pytest.approx(np.mean(f1))
    covered, claimed = (sum(side) for side in zip(*sizes.values(), strict=True))
    assert found["overlap", "recall_micro", "item"]["value"] == pytest.approx(sum(both.values()) / covered)
    assert found["overlap", "precision_micro", "item"]["value"] == pytest.approx(sum(both.values()) / claimed)
    rouge = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=False)
    for sample in samples[::50]:
        name, reference = sample["sample_id"], "\n".join(fact["text"] for fact in sample["aspects"])
        expected = {key: one.fmeasure for key, one in rouge.score(reference, sample["response"]).items()}
        expected["bleu"] = sentence_bleu(sample["response"], [reference]).score
        tokens = [re.findall(r"\w+", text.casefold()) for text in (reference, sample["response"])]
        expected["meteor"] = single_meteor_score(*tokens, wordnet=NoWordNet())
        assert {key: by_metric[key][name]["value"] for key in expected} == pytest.approx(expected)

    states = open_states()
    for sample in samples[::500]:
        one, other = (states(text) for text in (sample["response"], "\n".join(f["text"] for f in sample["aspects"])))
        cosines = one @ other.T
        # The first token and the last token are [CLS] and [SEP]. They are matched but have no weight
        recall, precision = cosines.max(axis=0)[1:-1].mean(), cosines.max(axis=1)[1:-1].mean()
        found_recall = by_metric["bertscore_recall"][sample["sample_id"]]["value"]
        found_f1 = by_metric["bertscore_f1"][sample["sample_id"]]["value"]
        assert [found_recall, found_f1] == pytest.approx(
            [recall, 2 * recall * precision / (recall + precision)], abs=1e-5
        )


def open_states() -> Callable[[str], np.ndarray]:
    """Return a function that computes the token states of a text with onnxruntime and the embedded model."""
    files = find_model("minilm")
    tokenizer, session = Tokenizer.from_file(files.tokenizer), onnxruntime.InferenceSession(files.model)
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)

    def states(text: str) -> np.ndarray:
        encoding = tokenizer.encode(text)
        known = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        feeds = {one.name: np.array([known[one.name]]) for one in session.get_inputs()}
        rows = session.run(None, feeds)[0][0].astype(float)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    return states


class NoWordNet:
    def synsets(self, word: str) -> list[object]:
        return []


@pytest.mark.slow
def test_realsumm_by_the_words_of_its_facts(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    samples = read_realsumm(data / "realsumm")
    verdicts = judge_by_words(samples)
    places = {"words": write_verdicts(tmp_path / "overlap", verdicts)}
    request = ask(tmp_path, places, dataset="coverage", format="realsumm", input=str(data / "realsumm"), cluster=True)
    run(spark, request)
    check_realsumm(samples, verdicts, rows_of(request, "coverage"), rows_of(request, "meta_evaluation"))


def item(**values: Any) -> Rows:
    return [{"query": "q", "response": "r", "aspects": [{"text": "a", "labels": ["yes"], **values}]}]


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        ([{"query": "q", "response": "r", "aspect": ["a"]}], {}, "no column `aspects` (did you mean `aspect`?) or"),
        ([{"query": "q", "response": "r", "aspects": ["a"]}], {}, "no item has a label. Give each {id, text, labels}"),
        (item(text=None), {}, "1 sample has items that cannot be read ("),
        (item(labels=["right"]), {}, "no label is one of covered, true, yes, 1. Set the labels that mean covered with"),
        (item(), {"covered": ("Yes!",)}, "no item is labelled `Yes!` (did you mean `yes`?). Labels are `yes`"),
    ],
)
def test_items_that_cannot_be_used_are_refused(
    spark: SparkSession, tmp_path: Path, rows: Rows, options: dict[str, Any], told: str
) -> None:
    write_lines(tmp_path / "wiki.jsonl", rows)
    request = ask(tmp_path, {"m": str(tmp_path)}, dataset="coverage", **options)
    with pytest.raises(MetaEvaluationError) as raised:
        run(spark, request)
    assert told in str(raised.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.gate
def test_corrections_of_a_report_are_compared_with_the_verdicts_of_the_run(spark: SparkSession, tmp_path: Path) -> None:
    """The run has other samples too. One statement of the corrected samples has no correction."""
    (tmp_path / "wiki.jsonl").with_suffix(".csv").write_bytes(CORRECTIONS.encode())
    judged = write_output(tmp_path / "judged", CORRECTED)
    request = ask(tmp_path, {"judge": str(judged)}, dataset="coverage", input=str(tmp_path / "wiki.csv"))
    run(spark, request)
    rows = open_run(request.output).table("coverage").to_pylist()
    names = ("true_positives", "false_positives", "false_negatives", "true_negatives")
    found = {row["sample_id"]: [row[name] for name in names] for row in rows if row["metric"] == "e2e"}
    assert found == {"007": [1, 0, 1, 1], "s2": [0, 1, 0, 0]}


def test_statements_that_do_not_fit_are_refused_all_at_once(spark: SparkSession, tmp_path: Path) -> None:
    write_study(tmp_path)
    given = make_verdicts()
    wrong = [*given, given[1], {**given[1], "reference_id": "f9"}]
    request = ask(tmp_path, {"m": write_verdicts(tmp_path / "m", wrong)}, dataset="coverage")
    with pytest.raises(MetaEvaluationError) as raised:
        run(spark, request)
    about, where = tmp_path / "wiki.jsonl", f"m ({tmp_path / 'm'}): icat"
    assert str(raised.value).splitlines() == [
        f"{where}: 1 item of {about} has several statements: reference_id `f1` of sample `s00`",
        f"{where}: 1 statement belongs to no item of {about}: reference_id `f9` of sample `s00`",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dataset", "wikicontradict", "--covered", "yes"], "--covered requires --dataset coverage"),
        (["--dataset", "coverage", "--annotation-sheet", "3"], "--annotation-sheet draws from labels of responses"),
        (["--dataset", "coverage", "--format", "realsum"], "did you mean realsumm?"),
    ],
)
def test_options_of_a_study_of_coverage_are_its_own(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["meta-evaluate", *words, "--input", "x", "--output", "out", "--scores", "m=n"])
    assert told in capsys.readouterr().err
