"""Compare jobs of the metric nli on symbolic worlds with brute force."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.fakes.classifier import LABELS, SEPARATOR
from tests.fakes.expected import count_requests, expected_nli
from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.graph.standin import has_graphframes
from tests.runs.audits import NliJob, assert_audited, relations_of
from tests.runs.harness import Row, canonical, read_table, sum_usage, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import words_among
from tests.runs.killing import kill_among
from tests.runs.reported import assert_reported
from tests.runs.worlds import (
    Job,
    assert_atoms_name_their_statements,
    assert_conflicts,
    assert_failed_alone,
    assert_leaning,
    assert_pairs_failed,
    assert_partly_judged,
    expected_statements,
    figures,
    figures_of,
    refuse,
    rows_by_sample,
    scores_of,
    statements_of,
    with_kinds,
)
from tests.udfs.retrieval.onnx_files import write_classifier
from untold.jobs.inference.stage.bindings import bind_lookup
from untold.jobs.settings.model import Settings
from untold.udfs.facts.pairs import content_words, is_audited
from untold.udfs.retrieval.classifying import Classifier, find_classifier

WORLDS = 40
NLI = ("--metric", "nli")
PAIRS = "classify_relation"
FLUSH_SECONDS = 1.0
# A share of the calls to the server of the classifier fails once, in different ways
STUMBLES = [
    {"when": {"share": share, "attempt_below": 2}, "do": deed}
    for share, deed in ((0.1, {"status": 503}), (0.1, {"status": 429}), (0.1, "drop"), (0.1, {"nan": True}))
]
FOLDER, AGAIN = "folder", "folder, and again"
BY_API: dict[str, dict[str, Any]] = {
    "classify": {"model": "judge", "labels": list(LABELS), "separator": SEPARATOR},
    "predict": {"model": "judge"},
    "score": {"model": "judge"},
}


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NliJob]:
    """Run two responses to the query of each world with a noisy judge. Its entailments are not transitive."""
    folder = tmp_path_factory.mktemp("worlds")
    known = [*worlds(WORLDS // 2, "noisy"), *worlds(WORLDS // 2, "noisy", ids=True, first=WORLDS // 2)]
    samples = [with_kinds(sample) for world in known for sample in world.samples(2)]
    path = write_samples(folder / "samples.jsonl", samples)
    options = known[0].options
    with ModelServer(answer=known[0].answer) as server:
        ended = run_here(server, path, folder / "out", *NLI)
        asked = Counter({stage: server.count(stage) for stage in count_requests(samples, options)})
        expected = {sample["sample_id"]: expected_nli(sample, options) for sample in samples}
        yield Job(server, samples, options, path, folder / "out", ended, asked, expected)


def test_scores_and_statuses_equal_brute_force(job: NliJob) -> None:
    assert job.ended.code == 0, job.ended.err
    found = {name: figures_of(row) for name, row in scores_of(job.output).items()}
    assert found == {name: figures(one) for name, one in job.expected.items()}


def test_the_worlds_contain_all_cases(job: NliJob) -> None:
    statements = [one for expected in job.expected.values() for one in expected.statements]
    assert len(job.samples) == 2 * WORLDS
    assert sum(one.covered for one in statements) > 100
    assert sum(len(one.members) > 1 for one in statements) > 50
    assert sum(not one.covered and not one.in_basis for one in statements) > 20
    assert sum(one.status == "no_statements" for one in job.expected.values()) > 5


def test_statements_coverage_basis_sources_and_members_equal_brute_force(job: NliJob) -> None:
    assert statements_of(job.output) == expected_statements(job.expected)


def test_conflicts_and_their_measures_equal_brute_force(job: NliJob) -> None:
    assert_conflicts(job.output, job.expected)
    coverage = Counter(row["coverage"] for row in read_table(job.output, "conflicts"))
    assert min(coverage[name] for name in ("both", "first", "second", "neither")) > 20
    rows = {(row["measure"], row["system"]): row for row in read_table(job.output, "measures_summary")}
    shares = [one.measures["conflict_coverage"] for one in job.expected.values() if one.conflicts]
    known = rows["conflict_coverage", None]
    assert (known["defined"], known["mean"]) == (len(shares), pytest.approx(sum(filter(None, shares)) / len(shares)))
    assert rows["conflict_coverage", job.samples[0]["system"]]["ci_low"] is not None


def test_sources_followed_in_conflicts_equal_brute_force(job: NliJob) -> None:
    assert_leaning(job.output, job.samples, job.expected)
    (title,) = [line for line in job.ended.out.splitlines() if line.startswith("sources followed")]
    assert job.ended.out.partition(title)[2].split()[:4] == ["metric", "system", "by", "source"]


def test_atoms_equal_brute_force(job: NliJob) -> None:
    found = {
        name: sorted((row["text"], row["origin"], sorted(row["sources"])) for row in rows if row["kept"])
        for name, rows in rows_by_sample(job.output, "atoms").items()
    }
    for name, one in job.expected.items():
        atoms = sorted((a.text, a.origin, sorted(a.sources)) for a in one.atoms if a.kept)
        assert found.get(name, []) == atoms, name


def test_every_atom_of_a_statement_names_it(job: NliJob) -> None:
    assert_atoms_name_their_statements(job.output, lambda row: str(row["text"]))


def test_relations_are_complete_contradictions_included(job: NliJob) -> None:
    found = relations_of(job.output)
    wanted = {name: dict(one.relations) for name, one in job.expected.items() if one.relations}
    assert found == wanted
    assert {"entailment", "contradiction", "neutral"} == {r for pairs in found.values() for r in pairs.values()}


def test_every_distinct_request_is_sent_once(job: NliJob) -> None:
    assert job.asked == count_requests(job.samples, job.options)
    assert job.server.count() == sum(job.asked.values()) == sum_usage(job.output, "requests")


def test_pairs_of_contexts_are_sent_once_for_all_responses(job: NliJob) -> None:
    alone = sum(count_requests([sample], job.options)[PAIRS] for sample in job.samples)
    assert job.asked[PAIRS] < 0.75 * alone


@pytest.mark.slow
def test_metrics_share_equal_requests(run_here: RunHere, job: NliJob, tmp_path: Path) -> None:
    samples = job.samples[:30]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    job.server.reset()
    settings = {"completion_store": job.output / "completions"}
    ended = run_here(job.server, path, tmp_path / "out", "--metric", "e2e,nli", settings=settings)
    assert ended.code == 0, ended.err
    assert job.server.count() == job.server.count("evaluate_coverage") > 0
    usage = [(row["stage"], row["requests"] - row["reused"]) for row in read_table(tmp_path / "out", "usage")]
    assert dict(usage) == dict.fromkeys(job.asked, 0) | {"evaluate_coverage": job.server.count()}
    assert len(usage) == len(dict(usage))
    metrics = Counter(row["metric"] for row in read_table(tmp_path / "out", "scores"))
    assert metrics == {"e2e": 30, "nli": 30}


@pytest.mark.slow
def test_skipping_implied_pairs_concludes_the_same_without_asking(
    run_here: RunHere, job: NliJob, tmp_path: Path
) -> None:
    job.server.reset()
    settings = {"completion_store": job.output / "completions", "nli.skip_implied": "true"}
    ended = run_here(job.server, job.path, tmp_path / "out", *NLI, settings=settings)
    assert (ended.code, job.server.count()) == (0, 0), ended.err
    whole, skipped = canonical(job.output), canonical(tmp_path / "out")
    assert [skipped[name] for name in ("atoms", "statements", "scores")] == [
        whole[name] for name in ("atoms", "statements", "scores")
    ]
    found, wanted = relations_of(tmp_path / "out"), relations_of(job.output)
    implied = [pair for pairs in found.values() for pair, relation in pairs.items() if relation == "implied"]
    assert len(implied) > 100
    told = {n: {p: "entailment" if r == "implied" else r for p, r in pairs.items()} for n, pairs in found.items()}
    known = {one["sample_id"]: expected_nli(one, job.options, told.get(one["sample_id"], {})) for one in job.samples}
    assert_conflicts(tmp_path / "out", known)
    for name, pairs in found.items():
        assert pairs.keys() == wanted[name].keys()
        assert {p: r for p, r in pairs.items() if r != "implied"}.items() <= wanted[name].items()
    usage = {row["stage"]: row for row in read_table(tmp_path / "out", "usage")}[PAIRS]
    assert usage["requests"] == usage["reused"] < job.asked[PAIRS]


LISTS = "classify_relations"
IN_LISTS = {"nli.judgement": "lists", "nli.list_size": 5}


def count_lists(job: NliJob, size: int) -> int:
    """Return the number of distinct lists of sorted hypotheses for a premise."""
    lists: set[tuple[str, ...]] = set()
    for one in job.expected.values():
        contexts = {atom.text for atom in one.atoms if atom.kept and atom.origin != "response"}
        hypotheses: dict[tuple[str, bool], list[str]] = defaultdict(list)
        for premise, hypothesis in one.relations:
            hypotheses[premise, hypothesis in contexts].append(hypothesis)
        for (premise, _), texts in hypotheses.items():
            lists |= {(premise, *sorted(texts)[start : start + size]) for start in range(0, len(texts), size)}
    return len(lists)


@pytest.mark.gate
def test_lists_have_the_results_of_pairs_if_a_judge_omits_or_repeats_items(
    run_here: RunHere, job: NliJob, tmp_path: Path
) -> None:
    settings = {"completion_store": job.output / "completions", **IN_LISTS}
    with ModelServer(answer="careless_noisy") as server:
        words = words_of(server, job.path, tmp_path / "out", *NLI, "--json", settings=settings, command="plan")
        planned = {row["stage"]: row for row in json.loads(run_here.command(words).out)}[LISTS]
        assert (planned["requests"], planned["reused"], server.count()) == (count_lists(job, 5), 0, 0)
        ended = run_here(server, job.path, tmp_path / "out", *NLI, settings=settings)
        assert ended.code == 0, ended.err
        asked = server.count(LISTS)
        assert planned["requests"] < asked == server.count() < job.asked[PAIRS]
    whole, found = canonical(job.output), canonical(tmp_path / "out")
    tables = ("atoms", "statements", "conflicts", "scores", "measures")
    assert [found[name] for name in tables] == [whole[name] for name in tables]
    assert relations_of(tmp_path / "out") == relations_of(job.output)
    assert {row["judged_by"] for row in read_table(tmp_path / "out", "relations")} == {"list"}


def assert_as_in(
    job: NliJob, samples: Sequence[Row], output: Path, table_of: Callable[[Path], Mapping[str, Any]]
) -> None:
    """Check that a job with some of the samples has the same results for them as the whole job."""
    names = {sample["sample_id"] for sample in samples}
    assert table_of(output) == {name: row for name, row in table_of(job.output).items() if name in names}


@pytest.mark.slow
def test_lists_of_a_killed_run_are_not_paid_for_twice(run_here: RunHere, job: NliJob, tmp_path: Path) -> None:
    samples = job.samples[:40]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    with ModelServer(answer="careless_noisy") as server:
        assert run_here(server, path, tmp_path / "whole", *NLI, settings=IN_LISTS).code == 0
        distinct = server.count()
    with ModelServer(answer="careless_noisy", latency=0.05) as server:
        kill_among(run_here, server, path, tmp_path / "out", "nli", LISTS, 100, distinct, **IN_LISTS)
    assert_as_in(job, samples, tmp_path / "out", scores_of)


@pytest.mark.slow
def test_failed_lists_are_sent_pair_by_pair_and_bounds_count_the_rest(
    run_here: RunHere, job: NliJob, tmp_path: Path
) -> None:
    samples = job.samples[:60]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    rules = [{"when": {"stage": LISTS, "share": 0.3, "seed": 7}, "do": "garbage"}]
    with ModelServer(answer="careless_noisy", rules=rules) as server:
        ended = run_here(server, path, tmp_path / "out", *NLI, settings={"llm.max_attempts": 1, **IN_LISTS})
    assert ended.code == 4, ended.err
    found = relations_of(tmp_path / "out")
    assert_partly_judged(tmp_path / "out", samples, found, lambda one, known: expected_nli(one, job.options, known))
    assert_pairs_failed(tmp_path / "out", LISTS)


@pytest.mark.gate
def test_filtered_pairs_are_neutral_and_an_audit_estimates_the_miss_rate(
    run_here: RunHere, job: NliJob, tmp_path: Path
) -> None:
    share, output = 0.3, tmp_path / "out"
    settings = {
        "completion_store": job.output / "completions",
        "nli.filter": "words",
        "nli.audit_share": share,
        "nli.max_miss_rate": 0.01,
    }
    job.server.reset()
    ended = run_here(job.server, job.path, output, *NLI, settings=settings)
    assert (ended.code, job.server.count()) == (4, 0), ended.err
    assert "max_miss_rate is 1.000%" in ended.err
    assert "audits of filters" in ended.out.splitlines()
    assert_audited(job, output, share, lambda pair: filtered(*pair, share))
    again = run_here(job.server, job.path, output, *NLI, settings=settings)
    assert (again.code, "max_miss_rate" in again.err, job.server.count()) == (4, True, 0)


@pytest.mark.gate
@pytest.mark.parametrize("judge", [FOLDER, *(pytest.param(name, marks=pytest.mark.slow) for name in (AGAIN, *BY_API))])
def test_a_classifier_judges_the_certain_pairs_and_the_model_the_others(
    run_here: RunHere, job: NliJob, tmp_path: Path, judge: str
) -> None:
    """The classifier is in a folder or behind an API that sometimes fails."""
    share, output, folder = 0.3, tmp_path / "out", write_judge(job, tmp_path)
    with ModelServer(rules=STUMBLES, classifier=words_of_judge(job)) as server:
        given: dict[str, Any] = {"nli": {"classifier": str(folder)}}
        if judge in BY_API:
            given = {"nli": {"classifier_url": f"{server.root_url}/{judge}"}, "classifier": BY_API[judge]}
        # For a probability of entailment of at most .70, no pair would be certain at .8
        given["nli"] |= {"classifier_threshold": 0.65 if judge == "score" else 0.8, "audit_share": share}
        by_key = {f"{section}.{name}": value for section, values in given.items() for name, value in values.items()}
        settings = {"completion_store": tmp_path / "store", **by_key}
        copytree(job.output / "completions", tmp_path / "store")
        job.server.reset()
        ended = run_here(job.server, job.path, output, *NLI, settings=settings)
        assert (ended.code, job.server.count()) == (0, 0), ended.err
        if judge != FOLDER:
            assert_nothing_classified_again(run_here, job, output, settings, server)
    stage = bind_lookup("classify_entailment", Settings.model_validate(given))
    classifier = Classifier(find_classifier(str(folder)))

    def tell(pair: tuple[str, str]) -> tuple[str, str | None]:
        (found,) = classifier.classify([pair])
        assert found is not None
        relation = "entailment" if judge == "score" else max(found, key=lambda name: found[name])
        if found[relation] < given["nli"]["classifier_threshold"]:
            return "model", None
        drawn = int(stage.request_id(dict(zip(stage.variables, pair, strict=True)))[:8], 16) < share * 2**32
        return "audit" if drawn else "classifier", relation

    tellers = assert_audited(job, output, share, tell)
    assert min(tellers[name] for name in ("model", "audit", "classifier")) > 20


def assert_nothing_classified_again(
    run_here: RunHere, job: NliJob, output: Path, settings: dict[str, Any], server: ModelServer
) -> None:
    """A run with a lower threshold reads all probabilities from the store."""
    asked, least = server.count("classify_entailment"), {**settings, "nli.classifier_threshold": 0.7}
    again = run_here(job.server, job.path, output.with_name("again"), *NLI, settings=least)
    assert (again.code, server.count("classify_entailment")) == (0, asked), again.err
    (first, second) = (
        next(row for row in read_table(path, "usage") if row["stage"] == "classify_entailment")
        for path in (output, output.with_name("again"))
    )
    assert (first["reused"], second["reused"], second["answered"]) == (0, first["requests"], 0)
    assert (first["retries"] > 0, first["failed"]) == (asked > 0, 0)


def words_of_judge(job: NliJob) -> dict[str, list[str]]:
    """Return the words in the atoms of the job. The classifier is uncertain about every second word."""
    words = words_among({text for one in job.expected.values() for pair in one.relations for text in pair})
    return {"words": words, "doubted": words[::2]}


def write_judge(job: NliJob, folder: Path) -> Path:
    """Write a classifier for these words and return its folder."""
    write_classifier(folder / "judge", labels=list(LABELS), **words_of_judge(job))
    return folder / "judge"


def filtered(premise: str, hypothesis: str, share: float) -> tuple[str, str | None]:
    """Return the source of the relation of a pair under a word filter, and the relation of the filter."""
    if content_words(premise) & content_words(hypothesis):
        return "model", None
    return "audit" if is_audited(premise, hypothesis, share) else "filtered", "neutral"


@pytest.mark.slow
@pytest.mark.parametrize("classified", [False, True], ids=["filter", "classifier too"])
@pytest.mark.parametrize("more", [IN_LISTS, {"nli.skip_implied": "true"}, {"nli.filter": "either"}])
def test_filters_work_with_lists_waves_and_vectors(
    run_here: RunHere, job: NliJob, tmp_path: Path, more: dict[str, Any], classified: bool
) -> None:
    samples = job.samples[:20]
    path, output = write_samples(tmp_path / "samples.jsonl", samples), tmp_path / "out"
    settings = {"completion_store": job.output / "completions", "nli.filter": "words", "nli.audit_share": 0.3, **more}
    if classified:
        settings |= {"nli.classifier": write_judge(job, tmp_path), "nli.classifier_threshold": 0.8}
    with ModelServer(answer="careless_noisy") as server:
        ended = run_here(server, path, output, *NLI, settings=settings)
    assert ended.code == 0, ended.err
    tellers = Counter(row["judged_by"] for row in read_table(output, "relations"))
    assert {"filtered", "audit"} < set(tellers)
    assert ("list" in tellers, "implied" in tellers) == (
        "nli.judgement" in more,
        "nli.skip_implied" in more,
    )
    assert ("classifier" in tellers) == classified
    known = {pair: relation for one in job.expected.values() for pair, relation in one.relations.items()}
    texts = {row["atom_id"]: row["text"] for row in read_table(output, "atoms")}
    for row in read_table(output, "relations"):
        pair = texts[row["premise_id"]], texts[row["hypothesis_id"]]
        if row["judged_by"] == "filtered":
            assert row["relation"] == "neutral"
        elif row["judged_by"] not in ("implied", "classifier"):
            assert row["relation"] == known[pair]


def test_graphframes_without_its_jar_is_refused_before_any_call(
    spark: SparkSession, run_here: RunHere, job: NliJob, tmp_path: Path
) -> None:
    if has_graphframes(spark):
        pytest.skip("this session has GraphFrames")
    job.server.reset()
    ended = run_here(job.server, job.path, tmp_path / "out", *NLI, settings={"graph.method": "graphframes"})
    assert (ended.code, job.server.count(), len(ended.err.splitlines())) == (1, 0, 1)
    assert "io.graphframes:graphframes-spark4_2.13" in ended.err
    assert "UNTOLD_GRAPHFRAMES_JAR" in ended.err


@pytest.mark.slow
@pytest.mark.graphframes
@pytest.mark.parametrize("largest", [1, 1000])
def test_a_whole_job_by_graphframes(
    spark: SparkSession, run_here: RunHere, job: NliJob, tmp_path: Path, largest: int
) -> None:
    """The tables equal brute force, with the library for all components or with tasks for the small components."""
    if not has_graphframes(spark):
        pytest.skip("GraphFrames is not on the class path")
    samples = job.samples[:12]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    settings = {
        "completion_store": job.output / "completions",
        "graph.method": "graphframes",
        "graph.max_edges_in_task": largest,
    }
    ended = run_here(job.server, path, tmp_path / "out", *NLI, settings=settings)
    assert ended.code == 0, ended.err
    expected = {name: one for name, one in job.expected.items() if name in {row["sample_id"] for row in samples}}
    assert {name: figures_of(row) for name, row in scores_of(tmp_path / "out").items()} == {
        name: figures(one) for name, one in expected.items()
    }
    assert statements_of(tmp_path / "out") == expected_statements(expected)


@pytest.mark.slow
@pytest.mark.parametrize("judge", ["closed", "steps"])
def test_other_judges(run_here: RunHere, judge: str, tmp_path: Path) -> None:
    known = worlds(100, judge, first=1000)
    samples = [sample for world in known for sample in world.samples(3)]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    with ModelServer(answer=known[0].answer) as server:
        assert run_here(server, path, tmp_path / "out", *NLI).code == 0
    expected = {sample["sample_id"]: expected_nli(sample, known[0].options) for sample in samples}
    found = {name: (row["score"], row["covered"]) for name, row in scores_of(tmp_path / "out").items()}
    assert found == {name: (one.score, one.covered) for name, one in expected.items()}


@pytest.mark.slow
def test_failed_pairs_make_a_sample_partial_and_widen_its_bounds(
    run_here: RunHere, job: NliJob, tmp_path: Path
) -> None:
    samples = job.samples[:80]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    rules = [{"when": {"stage": PAIRS, "share": 0.1, "seed": 7}, "do": "garbage"}]
    with ModelServer(answer="world_noisy", rules=rules) as server:
        ended = run_here(server, path, tmp_path / "out", *NLI, settings={"llm.max_attempts": 1})
    assert ended.code == 4, ended.err
    statuses = Counter(row["status"] for row in scores_of(tmp_path / "out").values())
    assert statuses["partial"] > 20
    found = relations_of(tmp_path / "out")
    assert_partly_judged(tmp_path / "out", samples, found, lambda one, known: expected_nli(one, job.options, known))
    assert_pairs_failed(tmp_path / "out", PAIRS)


@pytest.mark.slow
def test_a_failed_extraction_fails_the_sample_and_no_other(run_here: RunHere, job: NliJob, tmp_path: Path) -> None:
    samples = job.samples[:20]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    victim = next(s for s in samples if job.expected[s["sample_id"]].pairs and s["response"])
    with ModelServer(answer="world_noisy", rules=refuse("extract_atoms", victim)) as server:
        ended = run_here(
            server, path, tmp_path / "out", *NLI, settings={"completion_store": job.output / "completions-of-failure"}
        )
    assert ended.code == 4, ended.err
    assert_failed_alone(tmp_path / "out", victim, job.expected)


def test_alternatives_are_stored_for_ratings_only(job: NliJob) -> None:
    store = job.output / "completions" / "v1"
    stored = {
        folder.name.split("-")[0]: pq.read_table(folder)["alternatives"].to_pylist() for folder in store.iterdir()
    }
    assert {name for name, rows in stored.items() if any(rows)} == {"rate_relevance"}
    assert all(top["logprob"] <= 0 for row in stored["rate_relevance"] for one in row for top in one["top"])


@pytest.mark.slow
def test_without_log_probabilities_the_digits_count_and_the_run_reports_it(
    run_here: RunHere, job: NliJob, tmp_path: Path
) -> None:
    samples, options = job.samples[:40], replace(job.options, top=None)
    path = write_samples(tmp_path / "samples.jsonl", samples)
    with ModelServer(answer="world_noisy") as server:
        ended = run_here(server, path, tmp_path / "out", *NLI, settings={"llm.extra_body": '{"logprobs": false}'})
    assert ended.err.count("not probability-weighted") == 1
    found = {name: (row["score"], row["covered"]) for name, row in scores_of(tmp_path / "out").items()}
    expected = {sample["sample_id"]: expected_nli(sample, options) for sample in samples}
    assert found == {name: (one.score, one.covered) for name, one in expected.items()}
    assert any(one.atoms != job.expected[name].atoms for name, one in expected.items())


@pytest.mark.slow
def test_a_cap_is_counted_and_widens_the_bounds(run_here: RunHere, job: NliJob, tmp_path: Path) -> None:
    cap = 12
    settings = {
        "completion_store": job.output / "completions",
        "nli.max_pairs_per_sample": cap,
        "fail_on_error": "none",
    }
    job.server.reset()
    ended = run_here(job.server, job.path, tmp_path / "out", *NLI, settings=settings)
    assert (ended.code, job.server.count()) == (0, 0), ended.err
    found = relations_of(tmp_path / "out")
    for name, row in scores_of(tmp_path / "out").items():
        one = job.expected[name]
        if not one.statements:
            continue
        assert len(found.get(name, {})) == min(cap, one.pairs)
        assert row["unjudged"] == one.pairs - len(found.get(name, {})), name
        sample = next(sample for sample in job.samples if sample["sample_id"] == name)
        capped = expected_nli(sample, job.options, {pair: found.get(name, {}).get(pair) for pair in one.relations})
        assert (row["status"], row["score"]) == (capped.status, capped.score), name
        assert (row["score_low"], row["score_high"]) == capped.bounds, name
        assert row["score_low"] <= one.score <= row["score_high"]


@pytest.mark.slow
def test_a_run_killed_among_its_pairs_continues_without_paying_twice(
    run_here: RunHere, job: NliJob, tmp_path: Path
) -> None:
    samples = job.samples[:60]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    distinct = sum(count_requests(samples, job.options).values())
    with ModelServer(answer="world_noisy", latency=0.05) as server:
        kill_among(run_here, server, path, tmp_path / "out", "nli", PAIRS, 300, distinct)
    assert_as_in(job, samples, tmp_path / "out", scores_of)
    assert_as_in(job, samples, tmp_path / "out", relations_of)


def test_a_report_has_the_content_of_the_tables(job: NliJob) -> None:
    samples = assert_reported(job.output)
    judged = {one["id"]: one["metrics"]["nli"] for one in samples if one["metrics"]["nli"]["status"] == "ok"}
    answering = judged.keys() & {row["sample_id"] for row in job.samples if row["response"].strip()}
    assert answering
    assert all([stage for stage, _ in judged[name]["words"]] == ["extract_atoms"] for name in answering)
