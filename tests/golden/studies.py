"""Outputs of the commands that read outputs or files: plan, compare, meta-evaluate, trend, report. Also the keys."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.fakes.model_server import ModelServer
from tests.golden.metrics import output_of, statement_samples
from tests.golden.tables import Tables, read_json, rows_table
from tests.golden.workshop import Workshop
from tests.jobs import test_meta_evaluate_claims as claims
from tests.jobs import test_meta_evaluate_conflictbank as conflictbank
from tests.jobs import test_meta_evaluate_coverage as coverage
from tests.jobs import test_meta_evaluate_methods as methods
from tests.jobs import test_meta_evaluate_nuggets as nuggets
from tests.jobs.report.outputs import data_of
from tests.jobs.studies import CLAIMS, conflictbank_ids, make_scores, write_bank, write_scores, write_wiki
from tests.jobs.study.test_agreement import SETS, VALUES
from tests.jobs.summary.test_trends import write_night
from tests.runs.harness import SETTINGS, words_of, write_samples
from tests.runs.icat_jobs import embedder
from tests.udfs.llm.test_keys import RECORDED, stage_of

VERDICTS = ("supported", "contradicted", "not_supported")
PLANNED = ("e2e", "qa", "nli", "icat")
PRICES = {
    "llm.price_per_million_prompt_tokens": 0.5,
    "llm.price_per_million_completion_tokens": 2,
    "llm.requests_per_minute": 600,
}
COMPARED = "importance"
REPORTED = ("nli", "conflicts")
# The token states of a model are a baseline that needs the model
QUICK = {**{key: value for key, value in SETTINGS.items() if key != "llm.model"}, "embeddings.model": "none"}
# Writes the labelled file into a folder, and returns the stored scores or verdicts by model
Study = Callable[[Path], Mapping[str, str]]


def freeze_keys(_: Workshop) -> Tables:
    """Return the digests and the request ids of the recorded stages."""
    rows = []
    for case in RECORDED:
        stage = stage_of(case)
        request_id = stage.request_id(case["variables"])
        rows.append({"name": case["name"], "digest": stage.digest, "request_id": request_id})
    return {"keys": rows_table(rows)}


def freeze_plan(workshop: Workshop) -> Tables:
    """Return the rows that `plan` prints for several metrics, with prices and a limit."""
    path = write_samples(workshop.folder / "plan.jsonl", statement_samples(2, 1, "closed"))
    with ModelServer() as server:
        settings = {**embedder(server), **PRICES}
        flags = ("--metric", ",".join(PLANNED), "--json")
        words = words_of(server, path, workshop.folder / "plan", *flags, settings=settings, command="plan")
        return {"plan": rows_table(json.loads(workshop.command(*words).out))}


def freeze_compare(workshop: Workshop) -> Tables:
    """Return the systems of a run, and their paired differences by query."""
    ended = workshop.command("compare", output_of(workshop, COMPARED), "--cluster", "--all", "--json")
    return read_json(json.loads(ended.out), "compare")


def freeze_report(workshop: Workshop) -> Tables:
    """Return the data of the page that reports two runs."""
    page = workshop.folder / "report.html"
    workshop.command("report", *(output_of(workshop, name) for name in REPORTED), "--html", page)
    return read_json(data_of(page.read_text(encoding="utf-8")), "report")


def freeze_trend(workshop: Workshop) -> Tables:
    """Return the trend of three dates with one system that falls."""
    high, low = [0.7, 0.75, 0.8, 0.85] * 4, [0.4, 0.35, 0.45, 0.5] * 4
    for day, values in ((17, high), (18, high), (19, low)):
        write_night(workshop.folder / "nights", day, {"a": high, "b": values})
    output = workshop.folder / "trend"
    ended = workshop.command("trend", workshop.folder / "nights", "--output", output, "--json")
    return {**workshop.read(output), **read_json(json.loads(ended.out), "json")}


def meta_evaluate(workshop: Workshop, name: str, study: Study, flags: Sequence[str]) -> Tables:
    """Return the tables of `meta-evaluate` over stored scores or verdicts."""
    folder = workshop.folder / name
    folder.mkdir()
    judges = study(folder)
    given = [word for judge, path in judges.items() for word in ("--scores", f"{judge}={path}")]
    words = ["meta-evaluate", *flags, "--input", *folder.glob("*.jsonl"), "--output", folder / "out", *given]
    workshop.command(*words, settings=QUICK)
    return workshop.read(folder / "out")


def make_wiki(folder: Path) -> Mapping[str, str]:
    """Write labelled answers, and the scores of two models under two metrics."""
    write_wiki(folder / "wiki.jsonl")
    return {f"model-{seed}": write_scores(folder / str(seed), make_scores(seed=seed)) for seed in (1, 2)}


def make_bank_alone(folder: Path) -> Mapping[str, str]:
    """Write questions with conflicting evidence, and a score per context."""
    draw = random.Random(3)
    write_bank(folder / "wiki.jsonl", 6)
    rows = [{"sample_id": name, "metric": "qa", "score": draw.choice(VALUES)} for name in conflictbank_ids(6)]
    return {"m": write_scores(folder / "m", rows)}


def make_bank(folder: Path) -> Mapping[str, str]:
    """Write questions with conflicting evidence, and an output with atoms of every context."""
    draw = random.Random(4)
    write_bank(folder / "wiki.jsonl", 6)
    counts = {
        f"{row}-{claim}-all": {source: (draw.randint(0, 3), 3) for source in SETS[1:]}
        for row in range(6)
        for claim in CLAIMS
    }
    return {"m": conflictbank.write_run(folder / "m", "nli", counts, atoms=True)}


def make_coverage(folder: Path) -> Mapping[str, str]:
    """Write responses with labelled aspects, and verdicts on the aspects."""
    coverage.write_study(folder)
    return {"m": coverage.write_verdicts(folder / "m", coverage.make_verdicts())}


def make_methods(folder: Path) -> Mapping[str, str]:
    """Write responses with labelled references, and the outputs of two models with several methods."""
    samples = methods.write_samples(folder)
    return {model: str(methods.write_output(folder / model, samples, model)) for model in methods.MODELS}


def make_claims(folder: Path) -> Mapping[str, str]:
    """Write labelled claims, and verdicts on them."""
    draw = random.Random(4)
    known = claims.write_claims(folder)
    verdicts = [claims.label_of(row) if draw.random() < 0.6 else draw.choice(VERDICTS) for row in known]
    rows = [
        {"metric": "mine", "claim_id": row["sample_id"], "verdict": verdict}
        for row, verdict in zip(known[1:], [None, *verdicts[2:]], strict=True)
    ]
    return {"m": claims.write_verdicts(folder / "m", rows)}


def make_nuggets(folder: Path) -> Mapping[str, str]:
    """Write responses with assigned nuggets, and the assignments of a model."""
    return nuggets.write_study(folder, nuggets.assignments())


STUDIES: Mapping[str, tuple[Study, Sequence[str]]] = {
    "meta-evaluate-wikicontradict": (make_wiki, ("--dataset", "wikicontradict", "--cluster")),
    "meta-evaluate-conflictbank": (make_bank, ("--dataset", "conflictbank")),
    "meta-evaluate-conflictbank-alone": (make_bank_alone, ("--dataset", "conflictbank", "--conflictbank", "alone")),
    "meta-evaluate-coverage": (make_coverage, ("--dataset", "coverage", "--covered", "yes,partly", "--cluster")),
    "meta-evaluate-methods": (make_methods, ("--dataset", "coverage", "--subset", "challenging:60")),
    "meta-evaluate-claims": (make_claims, ("--dataset", "claims", "--cluster")),
    "meta-evaluate-nuggets": (make_nuggets, ("--dataset", "nuggets", "--format", "trec_rag_nuggets")),
}
