"""Methods of a study of coverage against each other: tiers, subsets, misses and their causes, single items."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from scipy import stats
from statsmodels.stats.inter_rater import cohens_kappa, fleiss_kappa

from tests.jobs.studies import Rows, ask, rows_of, run
from tests.sample_files import write_lines
from untold.jobs.cli.main import main
from untold.jobs.meta_evaluate import MetaEvaluationRequest
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import Settings
from untold.jobs.study_tables import FALSE_NEGATIVES, SUBSET, TIERS
from untold.jobs.tables import CANDIDATES, CLAIMS, STATEMENTS
from untold.udfs.samples.data_sets import read_answers
from untold.udfs.samples.file_records import Unit
from untold.udfs.statistics.item_agreement import Subset, largest_remainder

pytestmark = pytest.mark.gate

MODELS = ("gpt", "llama")
METHODS = ("longrecall:gpt", "arecall", "holistic:gpt", "longrecall:llama", "holistic:llama")
SAMPLES, REFERENCES = 20, 6
FACTS = ["Bees make honey.", "Bees sting people.", "Honey never spoils."]


# This model does not exist. The baselines from token states have their own tests
QUICK = Settings.model_validate({"embeddings": {"model": "none"}})


def ask_for(folder: Path, places: Mapping[str, str], **options: Any) -> MetaEvaluationRequest:
    return replace(ask(folder, places, dataset="coverage", **options), settings=QUICK)


def write_samples(folder: Path) -> Rows:
    """Write twenty responses with six references each and labels from three people.

    Some labels name the covering facts.
    """
    draw, rows = random.Random(8), []
    for number in range(SAMPLES):
        references = [
            {
                "id": f"f{place}",
                "text": f"fact {place} of {number}",
                "labels": [draw.choice(["yes", "yes", "no"]) for _ in range(3)],
                "covered_by": draw.choice([None, [draw.choice(FACTS).lower()]]),
            }
            for place in range(REFERENCES)
        ]
        said = " ".join(f"fact {place} {number}" for place in draw.sample(range(REFERENCES), 3))
        rows.append(
            {
                "sample_id": f"s{number:02}",
                "query": f"q{number // 2}",
                "response": said,
                "references": references,
                "reference_types": [draw.choice(["Must_have", "Nice_to_have"]) for _ in references],
            }
        )
    write_lines(folder / "wiki.jsonl", rows)
    return rows


def write_output(folder: Path, samples: Rows, model: str) -> Path:
    """Write the tables of a model: verdicts with weights and baselines, generated facts, and the facts in each request.

    The values of `arecall` are the same for all models. One verdict of a model is null.
    """
    draw, shared = random.Random(model), random.Random(1)
    tables: dict[str, Rows] = {"statements": [], "candidates": [], "claims": []}
    for sample in samples:
        name = sample["sample_id"]
        for place, text in enumerate(FACTS):
            claim = {"sample_id": name, "metric": "longrecall", "claim_id": f"{name}:c{place}", "text": text}
            tables["claims"].append(claim | {"position": place + 1})
        for place, reference in enumerate(sample["references"]):
            statement = {"sample_id": name, "metric": "longrecall", "statement_id": f"{name}:{place}"}
            verdicts = {
                "covered": draw.random() < 0.6,
                "arecall": shared.random() < 0.3,
                "holistic": draw.random() < 0.5,
            }
            more = {"reference_id": reference["id"], "weight": draw.choice([0.2, 0.5, 0.8])}
            tables["statements"].append(statement | verdicts | more)
            for rank, claim_place in enumerate(draw.sample(range(3), draw.choice([0, 0, 1, 2])), start=1):
                pair = {"claim_id": f"{name}:c{claim_place}", "step": "lexical", "rank": rank}
                tables["candidates"].append(statement | pair)
    tables["statements"][0]["covered"] = None
    for table, schema in (("statements", STATEMENTS), ("candidates", CANDIDATES), ("claims", CLAIMS)):
        (folder / table).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(tables[table], schema), folder / table / "part-0.parquet")
    return folder


@pytest.fixture(scope="module")
def study(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MetaEvaluationRequest:
    folder = tmp_path_factory.mktemp("methods")
    samples = write_samples(folder)
    places = {model: str(write_output(folder / model, samples, model)) for model in MODELS}
    request = ask_for(folder, places)
    assert run(spark, request).exit_code == 0
    return request


def samples_of(request: MetaEvaluationRequest) -> Rows:
    return write_samples(Path(request.input).parent)


def said_by_people(samples: Rows) -> dict[tuple[str, str], bool]:
    return {(s["sample_id"], one["id"]): one["labels"].count("yes") >= 2 for s in samples for one in s["references"]}


def table_of(request: MetaEvaluationRequest, model: str, name: str) -> Rows:
    assert request.scores is not None
    rows: Rows = pq.read_table(f"{request.scores[model]}/{name}").to_pylist()
    return rows


def verdicts_of(request: MetaEvaluationRequest) -> dict[str, dict[tuple[str, str], bool | None]]:
    """Return the verdict on each reference by method."""
    found: dict[str, dict[tuple[str, str], bool | None]] = defaultdict(dict)
    for model in MODELS:
        for row in table_of(request, model, "statements"):
            key = row["sample_id"], row["reference_id"]
            found[f"longrecall:{model}"][key] = row["covered"]
            found[f"holistic:{model}"][key] = row["holistic"]
            found["arecall"][key] = row["arecall"]
    return found


def tiers_of(request: MetaEvaluationRequest) -> dict[tuple[str, str], str]:
    """The tier of each reference that all methods judged, by counting."""
    verdicts, tiers = verdicts_of(request), {}
    for key in said_by_people(samples_of(request)):
        calling = [name for name in METHODS if verdicts[name][key]]
        if None not in (verdicts[name][key] for name in METHODS):
            alone = f"singleton:{calling[0]}" if calling else "none"
            tiers[key] = alone if len(calling) < 2 else "full" if len(calling) == len(METHODS) else "partial"
    return tiers


def test_tiers_count_the_methods_that_call_a_reference_covered(study: MetaEvaluationRequest) -> None:
    assert open_run(study.output).table("tiers").schema.equals(TIERS)
    rows, tiers = rows_of(study, "tiers"), tiers_of(study)
    assert {row["dataset"] for row in rows} == {"coverage"}
    assert {row["tier"]: row["count"] for row in rows if row["count"]} == Counter(tiers.values())
    assert [row["tier"] for row in rows] == ["full", "partial", *(f"singleton:{name}" for name in METHODS), "none"]
    # One verdict of each model is null, for the same reference
    assert len(tiers) == SAMPLES * REFERENCES - 1
    report = (Path(study.output) / "meta_evaluation.md").read_text()
    assert "Note: 1 reference has no tier, because a method has no result for it." in report


def test_what_was_missed_was_no_candidate_or_not_entailed(study: MetaEvaluationRequest) -> None:
    assert open_run(study.output).table("false_negatives").schema.equals(FALSE_NEGATIVES)
    samples, verdicts = samples_of(study), verdicts_of(study)
    people = said_by_people(samples)
    covering = {(s["sample_id"], one["id"]): one["covered_by"] for s in samples for one in s["references"]}
    rows = {row["method"]: row for row in rows_of(study, "false_negatives")}
    assert list(rows) == list(METHODS)
    for method in METHODS:
        missed = [key for key, covered in people.items() if covered and verdicts[method][key] is False]
        assert rows[method]["fn"] == len(missed)
        metric, _, model = method.partition(":")
        if metric != "longrecall":
            assert rows[method]["fn_candidate"] is rows[method]["fn_entailment"] is None
            continue
        texts = {row["claim_id"]: row["text"] for row in table_of(study, model, "claims")}
        names = {row["statement_id"]: row["reference_id"] for row in table_of(study, model, "statements")}
        shown = defaultdict(set)
        for row in table_of(study, model, "candidates"):
            shown[row["sample_id"], names[row["statement_id"]]].add(texts[row["claim_id"]])
        seen = [
            key
            for key in missed
            if shown[key] and (not covering[key] or covering[key][0] in map(str.lower, shown[key]))
        ]
        assert (rows[method]["fn_candidate"], rows[method]["fn_entailment"]) == (len(missed) - len(seen), len(seen))
        assert 0 < len(seen) < len(missed)


def test_agreement_is_that_of_statsmodels(study: MetaEvaluationRequest) -> None:
    people, verdicts = said_by_people(samples_of(study)), verdicts_of(study)
    found = {(row["metric"], row["model"], row["measure"]): row for row in rows_of(study, "meta_evaluation")}
    for metric, model in (("longrecall", "llama"), ("holistic", "gpt"), ("arecall", "gpt")):
        method = metric if metric == "arecall" else f"{metric}:{model}"
        table = np.zeros((2, 2))
        for key, covered in people.items():
            if verdicts[method][key] is not None:
                table[int(covered), int(bool(verdicts[method][key]))] += 1
        kappa = found[metric, model, "kappa"]
        assert kappa["value"] == pytest.approx(cohens_kappa(table, return_results=False))
        assert (kappa["n"], kappa["excluded"]) == (table.sum(), len(people) - table.sum())
        assert kappa["ci_low"] < kappa["value"] < kappa["ci_high"]
        assert found[metric, model, "accuracy"]["value"] == pytest.approx(np.trace(table) / table.sum())
    assert ("arecall", "llama", "kappa") not in found
    votes = [[verdicts[f"longrecall:{model}"][key] for model in MODELS] for key in people]
    whole = [[sum(map(bool, each)), 2 - sum(map(bool, each))] for each in votes if None not in each]
    models = found["longrecall", None, "fleiss_kappa_models"]
    assert (models["value"], models["n"]) == (pytest.approx(fleiss_kappa(np.array(whole))), len(whole))
    both = [
        (covered, first if first is not None else second)
        for covered, (first, second) in zip(people.values(), votes, strict=True)
        if first == second or None in (first, second)
    ]
    known = [(bool(one), bool(other)) for one, other in both if other is not None]
    majorities = found["longrecall", None, "fleiss_kappa_majorities"]
    assert majorities["value"] == pytest.approx(fleiss_kappa(np.array([[sum(each), 2 - sum(each)] for each in known])))
    assert majorities["n"] == len(known)


def test_single_items_have_baselines_and_ceilings(study: MetaEvaluationRequest) -> None:
    samples = samples_of(study)
    found = {(row["metric"], row["model"], row["measure"]): row for row in rows_of(study, "meta_evaluation")}
    people, labels = said_by_people(samples), [one["labels"] for s in samples for one in s["references"]]
    covered = list(people.values())
    for place in range(3):
        agreed = [(each[place] == "yes") == said for each, said in zip(labels, covered, strict=True)]
        row = found[f"annotator_{place + 1}", None, "accuracy"]
        assert (row["value"], row["n"]) == (pytest.approx(np.mean(agreed)), len(agreed))
    share = max(sum(covered), len(covered) - sum(covered)) / len(covered)
    assert found["constant", None, "accuracy"]["value"] == pytest.approx(share)
    overlaps = []
    for sample in samples:
        said = set(sample["response"].split())
        for one in sample["references"]:
            # The statements can differ in the word `of`
            words = set(one["text"].split()) - {"of"}
            overlaps.append(len(words & said) / len(words))
    ours, others = ([v for v, c in zip(overlaps, covered, strict=True) if c is wanted] for wanted in (True, False))
    expected = stats.mannwhitneyu(ours, others).statistic / len(ours) / len(others)
    assert found["word_overlap", None, "auc"]["value"] == pytest.approx(expected)
    types = {(s["sample_id"], f"f{n}"): kind for s in samples for n, kind in enumerate(s["reference_types"])}
    rows = table_of(study, "llama", "statements")
    must, nice = (
        [row["weight"] for row in rows if types[row["sample_id"], row["reference_id"]] == kind]
        for kind in ("Must_have", "Nice_to_have")
    )
    weights = found["longrecall", "llama", "auc_weight"]
    assert weights["value"] == pytest.approx(stats.mannwhitneyu(must, nice).statistic / len(must) / len(nice))
    assert weights["n"] == len(must) + len(nice)


@pytest.mark.parametrize("kind", ["standard", "challenging"])
def test_a_subset_is_drawn_by_tiers_and_is_all_that_is_studied(
    spark: SparkSession, study: MetaEvaluationRequest, tmp_path: Path, kind: str
) -> None:
    size = 30 if kind == "standard" else 80
    drawn = replace(study, output=str(tmp_path / "out"), subset=Subset(kind, size))
    report = run(spark, drawn).report
    assert open_run(drawn.output).table("subset").schema.equals(SUBSET)
    tiers, rows = tiers_of(study), rows_of(drawn, "subset")
    keys = [(row["sample_id"], row["reference_id"]) for row in rows]
    assert [row["tier"] for row in rows] == [tiers[key] for key in keys]
    assert keys == sorted(set(keys))
    counts, all_counts = Counter(row["tier"] for row in rows), Counter(tiers.values())
    if kind == "standard":
        order = {row["tier"]: row["count"] for row in rows_of(study, "tiers") if row["tier"] != "none"}
        assert {name: count for name, count in largest_remainder(order, size).items() if count} == counts
    else:
        wanted = {"partial": 40, **{f"singleton:{name}": 8 for name in METHODS}}
        assert counts == {name: min(count, all_counts[name]) for name, count in wanted.items() if all_counts[name]}
        short = [name for name, count in wanted.items() if all_counts[name] < count]
        assert short
        for name in short:
            told = f"{kind}:{size} is short: {all_counts[name]:,} references of {name}, {wanted[name]:,} wanted"
            assert f"Note: {told}." in report
    # The tiers cover all references, and the other measures only cover the references of the subset
    assert rows_of(drawn, "tiers") == rows_of(study, "tiers")
    people = said_by_people(samples_of(study))
    kappa = next(row for row in rows_of(drawn, "meta_evaluation") if row["measure"] == "fleiss_kappa")
    labels = {
        (s["sample_id"], one["id"]): one["labels"].count("yes") for s in samples_of(study) for one in s["references"]
    }
    assert kappa["value"] == pytest.approx(fleiss_kappa(np.array([[labels[key], 3 - labels[key]] for key in keys])))
    assert kappa["n"] == len(keys)
    human = {row["sample_id"]: row["human"] for row in rows_of(drawn, "coverage") if row["metric"] == "arecall"}
    for name, value in human.items():
        own = [people[key] for key in keys if key[0] == name]
        assert value == (pytest.approx(np.mean(own)) if own else None)
    assert f"All figures cover only the subset {kind}:{size}." in report


def test_references_without_labels_are_counted_by_tier(spark: SparkSession, tmp_path: Path) -> None:
    samples = write_samples(tmp_path)
    place = write_output(tmp_path / "gpt", samples, "gpt")
    for sample in samples:
        sample["references"] = [{"id": one["id"], "text": one["text"]} for one in sample["references"]]
        del sample["reference_types"]
    write_lines(tmp_path / "wiki.jsonl", samples)
    request = ask_for(tmp_path, {"gpt": str(place)}, subset=Subset("standard", 10))
    report = run(spark, request).report
    assert "All figures cover only the subset standard:10. 10 items without labels" in report
    assert len(rows_of(request, "subset")) == 10
    assert sum(row["count"] for row in rows_of(request, "tiers")) == SAMPLES * REFERENCES - 1


def test_k_qa_has_the_figures_of_its_labels_and_its_words(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    path = data / "k_qa" / "NLI_medical_annotator.csv"
    verdicts: list[dict[str, Any]] = [
        {
            "sample_id": record.values["sample_id"],
            "metric": "longrecall",
            "reference_id": one["id"],
            "covered": one["labels"].count("Entailment") == 3,
            "weight": one["weight"],
        }
        for record in read_answers(Unit(0, str(path), ""))
        for one in record.values["references"]
    ]
    (tmp_path / "m").mkdir()
    pq.write_table(pa.Table.from_pylist(verdicts), tmp_path / "m" / "part-0.parquet")
    options: dict[str, Any] = {"format": "k_qa", "covered": ("Entailment",), "input": str(path)}
    request = ask_for(tmp_path, {"m": str(tmp_path / "m")}, **options)
    report = run(spark, request).report
    found = {(row["metric"], row["measure"]): row for row in rows_of(request, "meta_evaluation")}
    assert round(found[None, "fleiss_kappa"]["value"], 4) == 0.7149
    assert round(found["word_overlap", "auc"]["value"], 3) == pytest.approx(0.747, abs=0.002)
    assert [round(found[f"annotator_{place}", "accuracy"]["value"], 2) for place in (1, 2, 3)] == [0.93, 0.91, 0.96]
    # A method that requires all three labels misses the references with two labels, and has no other errors
    assert found["longrecall", "precision_micro"]["value"] == 1
    assert found["longrecall", "auc_weight"]["value"] == 1
    assert found["longrecall", "recall_micro"]["n"] == 153
    human = [row["human"] for row in rows_of(request, "coverage") if row["metric"] == "longrecall"]
    assert (len(human), round(float(np.mean(human)), 4)) == (50, 0.3907)
    assert "| QAMPARI | holistic | - | f1_micro | - | 0.52 |" in report


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dataset", "coverage", "--subset", "hard:3"], "'hard:3' is neither standard:N nor challenging:N"),
        (["--dataset", "wikicontradict", "--subset", "standard:3"], "--subset requires --dataset coverage"),
    ],
)
def test_subsets_that_cannot_be_drawn_are_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["meta-evaluate", *words, "--input", "x", "--output", "out", "--scores", "m=n"])
    assert told in capsys.readouterr().err
