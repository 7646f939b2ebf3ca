"""Whole runs of `untold meta-evaluate`: two models on one server, ended by a budget, continued, and a sheet drawn."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.model_server import ModelServer
from tests.runs.harness import SETTINGS, Ended, read_manifest, read_table, write_samples
from tests.runs.here import RunHere
from untold.udfs.statistics.confusion import CONVENTIONS

MODELS = ("org/judge-a", "judge-b")
PRICE = 1_000_000.0  # a token costs 1
SUBJECTS = ("Ada Mill", "Boris Works")
HOME, TASTE = "{x} lives in Lyon.", "{x} likes tea."
ANSWERS = (HOME, TASTE, "{x} likes rain.", f"{TASTE} {HOME}", "")
LABELS = ("Partially correct", "Partially correct", "Incorrect", "Correct", "Partially correct")


def wiki_row(subject: str) -> dict[str, Any]:
    """Return a row with an answer for each context, for no context and for all contexts, and an empty answer."""
    row = {"question": f"What is known of the home and the taste of {subject}?", "model": "writer"}
    row |= {f"context{place}_self_contained": text.format(x=subject) for place, text in ((1, HOME), (2, TASTE))}
    row |= {f"answer{place}": text.format(x=subject) for place, text in enumerate(ANSWERS)}
    return row | {f"label{place}": label for place, label in enumerate(LABELS)}


def write_presets(folder: Path, server: ModelServer) -> list[str]:
    """The --endpoint flags of a preset file a model."""
    flags = []
    for number, model in enumerate(MODELS):
        path = folder / f"preset{number}.yaml"
        prices = dict.fromkeys(("price_per_million_prompt_tokens", "price_per_million_completion_tokens"), PRICE)
        path.write_text(yaml.safe_dump({"llm": {"base_url": server.base_url, "model": model, **prices}}))
        flags += ["--endpoint", str(path)]
    return flags


def meta_evaluate(run_here: RunHere, folder: Path, *flags: str, **settings: Any) -> Ended:
    chosen: Mapping[str, Any] = {**SETTINGS, **settings}
    words = ["meta-evaluate", "--dataset", "wikicontradict"]
    words += ["--input", str(folder / "wiki.jsonl"), "--metric", "e2e,nli", *flags]
    for key, value in chosen.items():
        words += ["--set", f"{key}={value}"] if key != "llm.model" else []
    return run_here.command(words)


@pytest.mark.slow
def test_two_models_are_run_continued_and_set_side_by_side(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    write_samples(tmp_path / "wiki.jsonl", [wiki_row(subject) for subject in SUBJECTS])
    server.configure(answer="world")
    output, endpoints = tmp_path / "out", write_presets(tmp_path, server)

    ended = meta_evaluate(run_here, tmp_path, "--output", str(output), *endpoints, **{"budget.max_calls": 6})
    assert ended.code == 3, ended.err
    assert "the budget is used up after 6 calls" in ended.err
    assert "ontinue with: untold meta-evaluate" in ended.err
    assert read_manifest(output)["status"] == "budget"
    assert not (output / "meta_evaluation").exists()
    assert not (output / "runs" / MODELS[1]).exists()

    ended = meta_evaluate(run_here, tmp_path, "--output", str(output), *endpoints)
    assert ended.code == 0, ended.err
    calls = server.count()
    assert read_manifest(output)["status"] == "finished"
    runs = {model: output / "runs" / model.replace("/", "-") for model in MODELS}
    assert sum(read_manifest(run)["totals"]["calls"] for run in runs.values()) == calls
    rows = read_table(output, "meta_evaluation")
    assert {(row["metric"], row["model"]) for row in rows} == {
        (metric, model) for metric in ("e2e", "nli", "nli_view") for model in MODELS
    }
    lmr = {(row["metric"], row["convention"]): row["value"] for row in rows if row["measure"] == "lmr"}
    assert lmr["e2e", "mismatch"] == lmr["nli", "zero"] == 0.8  # the empty answer is incorrect, and labelled otherwise

    (shown,) = [line for line in ended.out.splitlines() if line.startswith("| e2e | judge-b | zero |")]
    usage = [
        row
        for row in read_table(runs["judge-b"], "usage")
        if row["stage"] in ("summarise_context", "evaluate_coverage")
    ]
    tokens = sum(row["prompt_tokens"] + row["completion_tokens"] for row in usage) / 10
    called, counted, cost = shown.split(" | ")[-4:-1]
    assert called == f"{sum(row['calls'] for row in usage) / 10:.2f}"
    assert (counted, cost) == (f"{tokens:,.0f}", f"{tokens:.6f}")

    scores = ["--scores", f"a={runs[MODELS[0]]}", "--annotation-sheet", "4", "--seed", "2"]
    ended = meta_evaluate(run_here, tmp_path, "--output", str(tmp_path / "sheet"), *scores)
    assert ended.code == 0, ended.err
    assert "annotation sheet: 4 samples, 8 rows, 0 answers restated" in ended.err
    with open(tmp_path / "sheet" / "annotation_key.csv", encoding="utf-8-sig", newline="") as stream:
        assert sorted(row["metric"] for row in csv.DictReader(stream)) == ["e2e"] * 4 + ["nli"] * 4
    assert server.count() == calls


@pytest.mark.slow
def test_claims_are_verified_by_two_models_and_their_verdicts_can_be_read_again(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    rows = [
        ("Ada Mill lives in Lyon.", ["Ada Mill lives in Lyon."], "supported"),
        ("Ada Mill lives in Lyon.", ["Ada Mill likes tea."], "not_supported"),
        ("Boris Works likes tea.", ["Boris Works lives in Lyon.", "Boris Works likes tea."], "supported"),
        ("Boris Works likes rain.", [], "not_supported"),
    ]
    claims = [
        {"sample_id": f"c{place}", "claim": claim, "evidence": evidence, "label": label}
        for place, (claim, evidence, label) in enumerate(rows)
    ]
    write_samples(tmp_path / "claims.jsonl", claims)
    server.configure(answer="world")
    output, endpoints = tmp_path / "out", write_presets(tmp_path, server)
    words = ["meta-evaluate", "--dataset", "claims", "--input", str(tmp_path / "claims.jsonl"), "--output", str(output)]
    for key, value in SETTINGS.items():
        words += ["--set", f"{key}={value}"] if key != "llm.model" else []
    ended = run_here.command([*words, *endpoints, "--set", "budget.max_calls=2"])
    assert ended.code == 3, ended.err
    assert "ontinue with: untold meta-evaluate" in ended.err
    assert read_manifest(output)["status"] == "budget"
    ended = run_here.command([*words, *endpoints])
    assert ended.code == 0, ended.err
    # A claim without evidence is not supported and costs no request. The verdicts before the end of the budget are kept
    assert server.count("verify_claim") == server.count() == 6
    assert "1 claim has no evidence and count as not supported" in ended.err
    found = {(row["model"], row["measure"]): row for row in read_table(output, "meta_evaluation")}
    assert [found[model, "accuracy"]["value"] for model in MODELS] == [1, 1]
    place = output / "runs" / MODELS[1] / "claims"
    stored = ["meta-evaluate", "--dataset", "claims", "--input", str(tmp_path / "claims.jsonl")]
    again = run_here.command([*stored, "--output", str(tmp_path / "again"), "--scores", f"b={place}"])
    assert again.code == 0, again.err
    assert server.count() == 6
    assert "| verify_claim | b | 4 | 0 | 1.0000" in again.out


@pytest.mark.slow
def test_two_prompts_of_a_model_are_run_and_compared(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    write_samples(tmp_path / "wiki.jsonl", [wiki_row(SUBJECTS[0])])
    server.configure(answer="fixed")
    words = ["meta-evaluate", "--dataset", "wikicontradict", "--input", str(tmp_path / "wiki.jsonl")]
    words += ["--metric", "e2e", "--prompt-set", "published,untold", "--output", str(tmp_path / "out")]
    # The server's lists in the place of a summary would be headings within a context
    for key, value in {**SETTINGS, "llm.base_url": server.base_url, "summarise_contexts": False}.items():
        words += ["--set", f"{key}={value}"] if key != "prompts_dir" else []
    refused = run_here.command([*words, "--set", f"prompts_dir={SETTINGS['prompts_dir']}"])
    assert refused.code == 1
    assert "e2e would send fake-model equal prompts under both. They differ for check_coverage" in refused.err
    ended = run_here.command(words)
    assert ended.code == 0, ended.err
    # Responses are judged under each set
    assert server.count() == 2 * len(ANSWERS)
    judges = [f"fake-model ({name} prompts)" for name in ("published", "untold")]
    assert {row["model"] for row in read_table(tmp_path / "out", "meta_evaluation")} == set(judges)
    tests = read_table(tmp_path / "out", "comparisons")
    assert {test["convention"] for test in tests} == set(CONVENTIONS)
    names = ("metric", "model", "first", "second", "difference", "n")
    expected = ("e2e", "fake-model", "published", "untold", 0, len(ANSWERS))
    assert [tuple(test[name] for name in names) for test in tests] == [expected] * len(CONVENTIONS)
    assert "## Prompts compared" in ended.out
    digests = [
        read_manifest(tmp_path / "out" / "runs" / f"fake-model-{name}-prompts")["template_digests"]
        for name in ("published", "untold")
    ]
    assert {name for name in digests[0] if digests[0][name] != digests[1][name]} == {"evaluate_coverage"}


@pytest.mark.slow
def test_k_qa_has_the_published_baseline_and_the_candidates_that_are_expected(
    run_here: RunHere, server: ModelServer, data: Path, tmp_path: Path
) -> None:
    """A judge that returns `Match` for every candidate covers all references with a candidate."""
    server.configure(answer="fixed")
    given = ["--format", "k_qa", "--input", str(data / "k_qa" / "NLI_medical_annotator.csv")]
    options = {**SETTINGS, "llm.base_url": server.base_url, "longrecall.segmentation": "sentences"}
    words = ["score", "--metric", "longrecall", "--output", str(tmp_path / "run"), *given]
    for key, value in {**options, "longrecall.resolve_coreference": False}.items():
        words += ["--set", f"{key}={value}"]
    ended = run_here.command(words)
    assert ended.code == 0, ended.err
    scores = ["--scores", f"judge={tmp_path / 'run'}", "--covered", "Entailment"]
    ended = run_here.command(
        ["meta-evaluate", "--dataset", "coverage", *given, *scores, "--output", str(tmp_path / "o")]
    )
    assert ended.code == 0, ended.err
    found = {(row["metric"], row["measure"]): row["value"] for row in read_table(tmp_path / "o", "meta_evaluation")}
    baseline = [round(found["erecall", f"{name}_micro"], 4) for name in ("precision", "recall", "f1")]
    assert baseline == [0.8333, 0.0980, 0.1754]
    own = [row for row in read_table(tmp_path / "o", "coverage") if row["metric"] == "longrecall"]
    assert sum(row["true_positives"] for row in own) == pytest.approx(151, abs=2)
    assert sum(row["false_positives"] for row in own) == pytest.approx(201, abs=2)
    missed = {row["method"]: row for row in read_table(tmp_path / "o", "false_negatives")}
    judge = missed["longrecall:judge"]
    assert (judge["fn_candidate"], judge["fn_entailment"]) == (153 - sum(row["true_positives"] for row in own), 0)
    assert missed["erecall"]["fn"] == 153 - 15
    tiers = {row["tier"]: row["count"] for row in read_table(tmp_path / "o", "tiers")}
    assert sum(tiers.values()) == 399
