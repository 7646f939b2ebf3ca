"""Compare jobs of the metric importance on symbolic worlds with brute force."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from jinja2.utils import htmlsafe_json_dumps

from tests.fakes.claims import claims_of
from tests.fakes.expected_importance import ExpectedImportance, Options, expected_importance
from tests.fakes.facts import roll
from tests.fakes.model_server import ModelServer
from tests.fakes.world_importance import chunks_of, importance_worlds, texts_of
from tests.runs.harness import Row, read_table, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder
from tests.runs.importance_jobs import assert_claims, assert_facts, assert_measures, assert_pooled, assert_scores
from tests.runs.reported import assert_reported
from tests.runs.worlds import Job, rows_by_sample, scores_of

WORLDS = 42
IMPORTANCE = ("--metric", "importance")
STAGES = ("summarise_context", "extract_facts", "rate_importance", "extract_claims", "verify_claim", "check_coverage")
SETTINGS = {
    "importance.min_weight": 0.3,
    "importance.batch": 4,
    "importance.evidence_chunks": 2,
    "importance.ks": "[1,3]",
}
ImportanceJob: TypeAlias = Job[Options, ExpectedImportance]


def expect(samples: list[Row], options: Options) -> dict[str, ExpectedImportance]:
    return {
        sample["sample_id"]: expected_importance(sample, texts_of(sample), chunks_of(sample), options)
        for sample in samples
    }


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImportanceJob]:
    """Run three responses to the query of each world, with mined and given facts. Words merge the similar facts."""
    folder = tmp_path_factory.mktemp("importance")
    samples = [sample for world in importance_worlds(WORLDS) for sample in world.samples(3)]
    path = write_samples(folder / "samples.jsonl", samples)
    options = Options(min_weight=0.3, batch=4, evidence_chunks=2, ks=(1, 3))
    with ModelServer(answer="world") as server:
        ended = run_here(server, path, folder / "out", *IMPORTANCE, settings={**SETTINGS, **embedder(server)})
        asked = Counter({stage: server.count(stage) for stage in STAGES})
        yield Job(server, samples, options, path, folder / "out", ended, asked, expect(samples, options))


def test_it_ends_well(job: ImportanceJob) -> None:
    assert job.ended.code == 0, job.ended.err
    assert not read_table(job.output, "failures")


def test_scores_equal_brute_force(job: ImportanceJob) -> None:
    assert_scores(job.output, job.expected)


def test_measures_equal_brute_force(job: ImportanceJob) -> None:
    assert_measures(job.output, job.expected)


def test_facts_equal_brute_force(job: ImportanceJob) -> None:
    assert_facts(job.output, job.expected)


def test_claims_equal_brute_force(job: ImportanceJob) -> None:
    assert_claims(job.output, job.expected)


LOST = 5  # the share of failed requests is one fifth


def lost(kind: str) -> Callable[[str], bool]:
    """Return a function that selects one in five texts for an error. The result depends only on the text."""
    return lambda text: roll(kind, text) % LOST == 0


def rules_of(expected: Mapping[str, ExpectedImportance]) -> list[Row]:
    """Return rules with HTTP 400 for the failed verdicts on the claims and the failed coverage of the facts."""
    claims = {claim.text for one in expected.values() for claim in one.claims}
    facts = {fact.text for one in expected.values() for fact in one.facts}
    victims = [("verify_claim", "claim", text) for text in claims if lost("claim")(text)]
    victims += [("check_coverage", "fact", text) for text in facts if lost("fact")(text)]
    return [refusal(stage, {variable: text}) for stage, variable, text in sorted(victims)]


def refusal(stage: str, variables: Mapping[str, str]) -> Row:
    # The filter `tojson` of Jinja has the same output
    contains = htmlsafe_json_dumps(variables)[1:-1]
    return {"when": {"stage": stage, "contains": contains}, "do": {"status": 400}}


@pytest.mark.slow
def test_a_lost_request_leaves_bounds_or_fails_a_sample(run_here: RunHere, tmp_path: Path) -> None:
    worlds = importance_worlds(21, "closed", first=100)
    samples = [sample for world in worlds for sample in world.samples(2)]
    options = Options(unverified=lost("claim"), unchecked=lost("fact"))
    expected = expect(samples, options)
    mined = [world for world in worlds if world.kind == "mined"]
    unread, unrated = mined[0], mined[1]
    silent = next(sample for sample in mined[2].samples(2) if claims_of(sample["response"]))
    (_, text), *_ = texts_of(unread.samples()[0])
    rules = [
        *rules_of(expected),
        refusal("extract_facts", {"text": text}),
        refusal("rate_importance", {"query": unrated.query}),
        refusal("extract_claims", {"text": silent["response"]}),
    ]
    broken = {silent["sample_id"]: "extract_claims"}
    broken |= dict.fromkeys((one["sample_id"] for one in unread.samples(2)), "extract_facts")
    broken |= dict.fromkeys((one["sample_id"] for one in unrated.samples(2)), "rate_importance")
    # The sample has no contexts and no references
    nothing = {**silent, "sample_id": "nothing", "contexts": None, "references": []}
    path = write_samples(tmp_path / "samples.jsonl", [*samples, nothing])
    with ModelServer(answer="world", rules=rules) as server:
        ended = run_here(server, path, tmp_path / "out", *IMPORTANCE, settings=embedder(server))
    assert ended.code == 4, ended.err
    whole = {name: one for name, one in expected.items() if name not in broken}
    assert Counter(one.status for one in whole.values())["partial"] > 10
    scores, measures = scores_of(tmp_path / "out"), rows_by_sample(tmp_path / "out", "measures")
    failures = rows_by_sample(tmp_path / "out", "failures")
    assert [(row["stage"], row["error"].rpartition(": ")[2]) for row in failures["nothing"]] == [
        ("input", "contexts is null")
    ]
    for name, stage in broken.items():
        row = scores[name]
        assert (row["status"], row["score"], row["score_low"], row["score_high"]) == ("failed", None, 0.0, 1.0)
        ends = {one["measure"]: (one["value"], one["value_low"], one["value_high"]) for one in measures[name]}
        assert ends.keys() == expected[name].measures.keys()
        assert ends["f1"] == ends["recall@5"] == (None, 0.0, 1.0)
        assert ends["claims"] == ends["facts"] == (None, None, None)
        assert {one["stage"] for one in failures[name]} == {stage}
    assert_scores(tmp_path / "out", whole, alone=False)
    assert_measures(tmp_path / "out", whole, alone=False)
    assert_facts(tmp_path / "out", whole)
    for name, one in whole.items():
        wanted = {"verify_claim": any(lost("claim")(claim.text) for claim in one.claims if claim.evidence)}
        wanted["check_coverage"] = bool(one.claims) and any(lost("fact")(fact.text) for fact in one.facts)
        assert {row["stage"] for row in failures.get(name, [])} == {
            stage for stage, is_lost in wanted.items() if is_lost
        }
    assert_pooled(tmp_path / "out", whole, {sample["sample_id"]: sample["system"] for sample in samples})


def test_responses_to_one_query_share_facts_and_ratings(job: ImportanceJob) -> None:
    mined = {sample["query"]: sample for sample in job.samples if not sample["references"]}
    texts = {text for sample in mined.values() for _, text in texts_of(sample)}
    assert job.asked["extract_facts"] == len(texts)
    lists = {
        (sample["query"], str(sample["references"]), str(sample["contexts"])): job.expected[sample["sample_id"]].prompts
        for sample in job.samples
    }
    assert len(lists) == WORLDS
    assert job.asked["rate_importance"] == sum(lists.values())
    claims = {claim.text for one in job.expected.values() for claim in one.claims}
    assert job.asked["extract_claims"] == len({sample["response"] for sample in job.samples if is_asked(job, sample)})
    assert 0 < job.asked["verify_claim"] < sum(len(one.claims) for one in job.expected.values())
    assert job.asked["verify_claim"] >= len(claims) / 2
    checks = {
        (fact.text, tuple(claim.text for claim in one.claims))
        for one in job.expected.values()
        for fact in one.facts
        if fact.kept and one.claims
    }
    assert job.asked["check_coverage"] == len(checks)


def is_asked(job: ImportanceJob, sample: Row) -> bool:
    """Return True if the claims of a sample are requested: the sample has a response and a text to compare it with."""
    return bool(sample["response"].strip()) and job.expected[sample["sample_id"]].measures["claims"][0] is not None


def test_shares_are_over_all_claims(job: ImportanceJob) -> None:
    assert_pooled(job.output, job.expected, {sample["sample_id"]: sample["system"] for sample in job.samples})


@pytest.mark.slow
def test_a_plan_is_exact_once_facts_are_known(run_here: RunHere, job: ImportanceJob) -> None:
    before = job.server.count()
    settings = {**SETTINGS, **embedder(job.server)}
    known = planned(run_here, job, job.output, settings)
    assert {stage: (row["exact"], row["requests"], row["reused"]) for stage, row in known.items()} == {
        stage: (True, row["requests"], row["requests"]) for stage, row in known.items()
    }
    asked = {stage: row["requests"] for stage, row in known.items() if stage != "embed_text"}
    assert asked == dict(job.asked)
    assert job.server.count() == before


@pytest.mark.slow
def test_a_plan_counts_the_coverage_requests_if_verdicts_are_missing(
    run_here: RunHere, job: ImportanceJob, tmp_path: Path
) -> None:
    other = {**SETTINGS, **embedder(job.server), "stages.verify_claim.max_tokens": 99}
    rows = planned(run_here, job, tmp_path / "other", {**other, "completion_store": job.output / "completions"})
    assert rows["verify_claim"]["reused"] < rows["verify_claim"]["requests"]
    checks = rows["check_coverage"]
    assert checks["requests"] == checks["reused"] == job.asked["check_coverage"]


@pytest.mark.slow
def test_a_plan_counts_the_checks_of_the_largest_query_without_making_them(run_here: RunHere, tmp_path: Path) -> None:
    # The sample has the maximum number of facts and a thousand long claims, so the requests have 1.5 GB in total
    words = [f"w{number}" for number in range(12_000)]
    sample = {"query": "What?", "response": " ".join(words[:2_000]), "contexts": [" ".join(words)]}
    path = write_samples(tmp_path / "samples.jsonl", [sample])
    with ModelServer(answer="world") as server:
        more = {"summarise_contexts": "false", **embedder(server)}
        given = words_of(server, path, tmp_path / "out", *IMPORTANCE, "--json", settings=more, command="plan")
        ended = run_here.command(given)
    assert ended.code == 0, ended.err
    checks = next(row for row in json.loads(ended.out) if row["stage"] == "check_coverage")
    assert (checks["requests"], checks["exact"]) == (5_000, False)
    assert checks["prompt_tokens"] > 5_000 * 1_000 * 300 / 4
    assert 0 < checks["expected_requests"] < 5_000


@pytest.mark.slow
@pytest.mark.parametrize("duplicates", ["words", "entailed"])
def test_a_plan_is_a_bound_before_facts_are_known(
    run_here: RunHere, job: ImportanceJob, tmp_path: Path, duplicates: str
) -> None:
    before = job.server.count()
    settings = {**SETTINGS, **embedder(job.server), "importance.duplicates": duplicates}
    fresh = planned(run_here, job, tmp_path / "other", settings)
    assert job.server.count() == before
    assert {stage for stage, row in fresh.items() if row["exact"]} == {"summarise_context"}
    for stage, count in job.asked.items():
        assert fresh[stage]["requests"] >= count, stage
    if duplicates == "entailed":
        lists = {str(sample["contexts"]): job.expected[sample["sample_id"]] for sample in job.samples}
        mined = [len(one.facts) for one in lists.values() if one.facts and one.facts[0].members]
        assert fresh["classify_relation"]["requests"] >= sum(count * (count - 1) for count in mined)


@pytest.mark.slow
def test_a_plan_of_the_published_profile(run_here: RunHere, tmp_path: Path) -> None:
    """The plan has an upper bound before the run, and it is exact after the run."""
    samples = [sample for world in importance_worlds(7) for sample in world.samples(2)]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    with ModelServer(answer="world") as server:
        settings = {**embedder(server), "profile": "published", "completion_store": tmp_path / "store"}
        job: ImportanceJob = Job(server, samples, Options(), path, tmp_path / "out", None, Counter(), {})  # type: ignore[arg-type]
        fresh = planned(run_here, job, tmp_path / "plan", settings)
        ended = run_here(server, path, job.output, *IMPORTANCE, settings=settings)
        assert ended.code == 0, ended.err
        known = planned(run_here, job, tmp_path / "plan", settings)
        asked = {stage: server.count(stage) for stage in known if stage != "embed_text"}
    assert "extract_claims" not in known
    assert asked["extract_verifiable_claims"] > len({sample["response"] for sample in samples})
    for stage, count in asked.items():
        assert fresh[stage]["requests"] >= count, stage
        assert (known[stage]["requests"], known[stage]["reused"], known[stage]["exact"]) == (count, count, True), stage
        assert fresh[stage]["expected_completion_tokens"] > 0


def planned(run_here: RunHere, job: ImportanceJob, output: Path, settings: Mapping[str, Any]) -> dict[str, Row]:
    """Return the rows of a plan by stage. Each stage has one row."""
    ended = run_here.command(
        words_of(job.server, job.path, output, *IMPORTANCE, "--json", settings=settings, command="plan")
    )
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)
    found = {row["stage"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_report_has_the_content_of_the_tables(job: ImportanceJob) -> None:
    assert_reported(job.output)
