"""Compare jobs of the metric qa on symbolic worlds with brute force."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any, TypeAlias
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

from tests.fakes.expected_qa import (
    Comparison,
    ExpectedQa,
    Options,
    QaAtom,
    count_requests,
    count_tool_turns,
    expected_qa,
    is_settled,
)
from tests.fakes.model_server import ModelServer
from tests.fakes.world import qa_worlds
from tests.runs.harness import Row, Run, read_table, sum_usage, times, words_of, write_samples
from tests.runs.here import RunHere
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
from untold.jobs.inference.stage import start

WORLDS = 40
QA = ("--metric", "qa")
PAIRS = "compare_answers"
STAGES = ("summarise_context", "mine_questions", "refine_questions", "answer_questions", PAIRS)
FLUSH_SECONDS = 1.0
QaJob: TypeAlias = Job[Options, ExpectedQa]


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QaJob]:
    """Run two responses to the query of each world with a noisy judge and the tool. Its relations are not transitive.

    The job writes its steps to files, like a job with a large input. The other jobs of the tests are small.
    """
    folder = tmp_path_factory.mktemp("worlds")
    known = [*qa_worlds(WORLDS // 2, "noisy"), *qa_worlds(WORLDS // 2, "noisy", ids=True, first=WORLDS // 2)]
    samples = [with_kinds(sample) for world in known for sample in world.samples(2)]
    path = write_samples(folder / "samples.jsonl", samples)
    options = Options("noisy")
    with ModelServer(answer="world_noisy") as server, patch.object(start, "SMALL_BYTES", 0):
        ended = run_here(server, path, folder / "out", *QA)
        asked = Counter({stage: server.count(stage) for stage in STAGES})
        yield Job(server, samples, options, path, folder / "out", ended, asked, expect(samples, options))


def expect(samples: list[Row], options: Options) -> dict[str, ExpectedQa]:
    return {sample["sample_id"]: expected_qa(sample, options) for sample in samples}


def atoms_of(output: Path) -> dict[str, list[QaAtom]]:
    """Return the answers of each sample."""
    return {
        name: [
            QaAtom(row["question"], row["text"], row["origin"], tuple(row["sources"]), row["rating"], row["kept"])
            for row in rows
        ]
        for name, rows in rows_by_sample(output, "atoms").items()
    }


def ordered(atoms: Iterator[QaAtom] | list[QaAtom] | tuple[QaAtom, ...]) -> list[tuple[Any, ...]]:
    return sorted((a.question, a.text, a.origin, a.sources, round(a.rating, 9), a.kept) for a in atoms)


def relations_of(output: Path) -> dict[str, dict[Comparison, str | None]]:
    """Return the relation of each pair of answers of each sample, in the order of the table."""
    known = {row["atom_id"]: row for row in read_table(output, "atoms")}
    found: dict[str, dict[Comparison, str | None]] = defaultdict(dict)
    for row in read_table(output, "relations"):
        first, second = known[row["premise_id"]], known[row["hypothesis_id"]]
        assert first["question"] == second["question"]
        comparison = first["question"], first["text"], second["text"]
        assert comparison not in found[row["sample_id"]]
        found[row["sample_id"]][comparison] = row["relation"]
    return dict(found)


def assert_concluded(output: Path, expected: Mapping[str, ExpectedQa]) -> None:
    """Check that every table of an output equals the result of brute force."""
    assert {name: figures_of(row) for name, row in scores_of(output).items()} == {
        name: figures(one) for name, one in expected.items()
    }
    assert relations_of(output) == {name: dict(one.relations) for name, one in expected.items() if one.relations}
    assert statements_of(output) == expected_statements(expected)
    assert_conflicts(output, expected)
    assert {name: ordered(atoms) for name, atoms in atoms_of(output).items()} == {
        name: ordered(one.atoms) for name, one in expected.items() if one.atoms
    }


def test_the_worlds_contain_all_cases(job: QaJob) -> None:
    statements = [one for expected in job.expected.values() for one in expected.statements]
    relations = Counter(relation for one in job.expected.values() for relation in one.relations.values())
    assert len(job.samples) == 2 * WORLDS
    assert sum(one.covered for one in statements) > 50
    assert sum(len(one.members) > 1 for one in statements) > 50
    assert sum(not one.covered and not one.in_basis for one in statements) > 10
    assert sum(one.status == "no_statements" for one in job.expected.values()) > 5
    assert len(relations) == 5
    assert min(relations.values()) > 20


def test_scores_and_statuses_equal_brute_force(job: QaJob) -> None:
    assert job.ended.code == 0, job.ended.err
    found = {name: figures_of(row) for name, row in scores_of(job.output).items()}
    assert found == {name: figures(one) for name, one in job.expected.items()}


def test_every_row_of_every_table_is_that_of_brute_force(job: QaJob) -> None:
    assert_concluded(job.output, job.expected)
    assert not read_table(job.output, "failures")
    for name in ("atoms", "relations", "statements", "conflicts", "scores", "measures"):
        assert {row["metric"] for row in read_table(job.output, name)} == {"qa"}


def test_sources_followed_in_conflicts_equal_brute_force(job: QaJob) -> None:
    assert_leaning(job.output, job.samples, job.expected)


def test_bounds_equal_the_score_if_all_pairs_are_judged(job: QaJob) -> None:
    for row in scores_of(job.output).values():
        assert row["score_low"] == row["score"] == row["score_high"]


def test_every_answer_of_a_statement_names_it(job: QaJob) -> None:
    assert_atoms_name_their_statements(job.output, lambda row: f"Q: {row['question']} A: {row['text']}")


def test_pairs_are_in_code_point_order_and_sent_in_one_direction(job: QaJob) -> None:
    asked = {comparison for pairs in relations_of(job.output).values() for comparison in pairs}
    assert all(first < second for _, first, second in asked)


def test_every_distinct_request_is_sent_once_and_each_tool_call_is_continued(job: QaJob) -> None:
    distinct, turns = count_requests(job.samples, job.options), count_tool_turns(job.samples, job.options)
    assert turns > 20
    assert job.asked == distinct + Counter({PAIRS: turns})
    assert sum_usage(job.output, "requests") == distinct.total()
    assert sum_usage(job.output, "calls") == job.server.count() == distinct.total() + turns


def test_questions_and_pairs_of_contexts_are_sent_once_for_all_responses(job: QaJob) -> None:
    alone = sum((count_requests([sample], job.options) for sample in job.samples), Counter[str]())
    assert all(job.asked[stage] < 0.95 * alone[stage] for stage in ("mine_questions", PAIRS))


def test_the_tool_calls_and_results_are_stored_with_the_completion(job: QaJob) -> None:
    traces = completions(job.output, PAIRS, "tool_trace")
    kept = [json.loads(trace) for trace in traces if trace]
    assert len(kept) == count_tool_turns(job.samples, job.options)
    assert {call["name"] for (call,) in kept} == {"compare_quantities"}
    outcomes = Counter(json.loads(call["result"])["outcome"] for (call,) in kept)
    assert outcomes.keys() == {"equal", "first_larger", "second_larger", "incomparable"}


def completions(output: Path, stage: str, column: str) -> list[Any]:
    """Return a column of the stored completions of a stage."""
    folders = [each for each in (output / "completions" / "v1").iterdir() if each.name.startswith(f"{stage}-")]
    return [value for folder in folders for value in pq.read_table(folder)[column].to_pylist()]


def test_alternatives_are_stored_for_ratings_only(job: QaJob) -> None:
    rated = {stage: any(completions(job.output, stage, "alternatives")) for stage in STAGES}
    assert {stage for stage, has_any in rated.items() if has_any} == {"refine_questions", "answer_questions"}


LISTS = "compare_many"
IN_LISTS = {"qa.judgement": "lists", "qa.list_size": 3}


def count_lists(expected: Mapping[str, ExpectedQa], size: int) -> int:
    """Return the number of distinct lists of answers: the answers of contexts that a response is compared with."""
    lists: set[tuple[str, ...]] = set()
    for one in expected.values():
        of_contexts = {(atom.question, atom.text) for atom in one.atoms if atom.kept and atom.sources}
        others: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
        for question, first, second in one.relations:
            both = (question, first) in of_contexts and (question, second) in of_contexts
            head = first if both or (question, first) not in of_contexts else second
            others[question, head, both].append(second if head == first else first)
        for (question, head, _), texts in others.items():
            lists |= {(question, head, *sorted(texts)[start : start + size]) for start in range(0, len(texts), size)}
    return len(lists)


@pytest.mark.slow
def test_lists_have_the_results_of_pairs_if_a_judge_omits_or_repeats_items(
    run_here: RunHere, job: QaJob, tmp_path: Path
) -> None:
    """The tool is not available for lists."""
    settings = {"completion_store": job.output / "completions", **IN_LISTS}
    expected = expect(job.samples, replace(job.options, quantity_tool="none"))
    with ModelServer(answer="careless_noisy") as server:
        words = words_of(server, job.path, tmp_path / "out", *QA, "--json", settings=settings, command="plan")
        planned = {row["stage"]: row for row in json.loads(run_here.command(words).out)}[LISTS]
        assert (planned["requests"], planned["reused"], server.count()) == (count_lists(expected, 3), 0, 0)
        ended = run_here(server, job.path, tmp_path / "out", *QA, settings=settings)
        assert ended.code == 0, ended.err
        asked = server.count(LISTS)
        assert planned["requests"] < asked == server.count() < job.asked[PAIRS]
        again = run_here(server, job.path, tmp_path / "again", *QA, settings=settings)
        assert (again.code, server.count()) == (0, asked), again.err
    assert_concluded(tmp_path / "out", expected)
    assert {row["judged_by"] for row in read_table(tmp_path / "out", "relations")} == {"list"}


@pytest.mark.slow
def test_failed_lists_are_sent_one_by_one_and_quantities_are_compared_before(
    run_here: RunHere, job: QaJob, tmp_path: Path
) -> None:
    samples, options = job.samples[:60], replace(job.options, quantity_tool="resolve")
    path = write_samples(tmp_path / "samples.jsonl", samples)
    rules = [{"when": {"stage": LISTS, "share": 0.3, "seed": 7}, "do": "garbage"}]
    settings = {"llm.max_attempts": 1, "qa.quantity_tool": "resolve", **IN_LISTS}
    with ModelServer(answer="careless_noisy", rules=rules) as server:
        ended = run_here(server, path, tmp_path / "out", *QA, settings=settings)
    assert ended.code == 4, ended.err
    found = relations_of(tmp_path / "out")
    assert_partly_judged(tmp_path / "out", samples, found, lambda one, known: expected_qa(one, options, known))
    assert_pairs_failed(tmp_path / "out", LISTS)
    tellers = Counter(row["judged_by"] for row in read_table(tmp_path / "out", "relations"))
    assert set(tellers) == {"list", None}


@pytest.mark.slow
def test_failed_comparisons_make_a_sample_partial_and_widen_its_bounds(
    run_here: RunHere, job: QaJob, tmp_path: Path
) -> None:
    samples = job.samples[:80]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    rules = [{"when": {"stage": PAIRS, "share": 0.15, "seed": 7}, "do": "garbage"}]
    with ModelServer(answer="world_noisy", rules=rules) as server:
        ended = run_here(server, path, tmp_path / "out", *QA, settings={"llm.max_attempts": 1})
    assert ended.code == 4, ended.err
    found, scores = relations_of(tmp_path / "out"), scores_of(tmp_path / "out")
    assert Counter(row["status"] for row in scores.values())["partial"] > 10
    assert_partly_judged(tmp_path / "out", samples, found, lambda one, known: expected_qa(one, job.options, known))
    for name, row in scores.items():
        whole = job.expected[name].score
        assert whole is None or row["score_low"] <= whole <= row["score_high"]
    assert_pairs_failed(tmp_path / "out", PAIRS)


@pytest.mark.slow
def test_only_questions_of_contexts_fix_the_denominator_and_share_everything(
    run_here: RunHere, job: QaJob, tmp_path: Path
) -> None:
    options = replace(job.options, questions="contexts")
    with ModelServer(answer="world_noisy") as server:
        ended = run_here(server, job.path, tmp_path / "out", *QA, settings={"qa.questions": "contexts"})
        asked = Counter({stage: server.count(stage) for stage in STAGES})
    assert ended.code == 0, ended.err
    turns = count_tool_turns(job.samples, options)
    assert asked == count_requests(job.samples, options) + Counter({PAIRS: turns})
    assert asked["refine_questions"] < 0.6 * job.asked["refine_questions"]
    assert_concluded(tmp_path / "out", expect(job.samples, options))
    answers = defaultdict(set)
    for name, atoms in atoms_of(tmp_path / "out").items():
        of_contexts = {(atom.question, atom.text, atom.sources) for atom in atoms if atom.kept and atom.sources}
        answers[name.partition("-")[0]].add(frozenset(of_contexts))
    assert len(answers) > 0.8 * WORLDS
    assert all(len(of_world) == 1 for of_world in answers.values())


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["resolve", "none"])
def test_quantities_are_resolved_or_left_to_the_model(run_here: RunHere, job: QaJob, tool: str, tmp_path: Path) -> None:
    options = replace(job.options, quantity_tool=tool)
    expected = expect(job.samples, options)
    with ModelServer(answer="world_noisy", rules=[{"when": {}, "do": "no_tools"}]) as server:
        ended = run_here(server, job.path, tmp_path / "out", *QA, settings={"qa.quantity_tool": tool})
        asked = Counter({stage: server.count(stage) for stage in STAGES})
    assert ended.code == 0, ended.err
    assert asked == count_requests(job.samples, options)
    assert_concluded(tmp_path / "out", expected)
    settled = {pair for one in expected.values() for pair in one.relations if is_settled(pair, options)}
    assert (len(settled) > 5) == (tool == "resolve")


@pytest.mark.slow
@pytest.mark.parametrize("judge", ["closed", "steps"])
def test_other_judges(run_here: RunHere, judge: str, tmp_path: Path) -> None:
    samples = [sample for world in qa_worlds(60, judge, first=1000) for sample in world.samples(3)]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    with ModelServer(answer=f"world_{judge}") as server:
        assert run_here(server, path, tmp_path / "out", *QA).code == 0
    assert_concluded(tmp_path / "out", expect(samples, Options(judge)))


@pytest.mark.slow
def test_an_endpoint_without_tools_ends_the_run_with_the_remedy(run_here: RunHere, job: QaJob, tmp_path: Path) -> None:
    with ModelServer(answer="world_noisy", rules=[{"when": {}, "do": "no_tools"}]) as server:
        ended = run_here(server, job.path, tmp_path / "out", *QA)
        asked = server.count(PAIRS)
        again = run_here(server, job.path, tmp_path / "out", *QA)
    assert ended.code == 1
    assert "set qa.quantity_tool to resolve or none" in ended.err.strip().splitlines()[-1]
    assert 0 < asked < count_requests(job.samples, job.options)[PAIRS]
    assert again.code == 1


@pytest.mark.slow
@pytest.mark.parametrize("deed", [{"tool_garbage": "arguments"}, {"tool_garbage": "name"}, {"tool_loop": "obedient"}])
def test_a_model_that_misuses_the_tool_answers_all_the_same(
    run_here: RunHere, job: QaJob, deed: Row, tmp_path: Path
) -> None:
    samples = job.samples[:40]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    with ModelServer(answer="world_noisy", rules=[{"when": {"stage": PAIRS}, "do": deed}]) as server:
        ended = run_here(server, path, tmp_path / "out", *QA)
    assert ended.code == 0, ended.err
    tool = "tool" if "tool_loop" in deed else "none"
    assert_concluded(tmp_path / "out", expect(samples, replace(job.options, quantity_tool=tool)))


@pytest.mark.slow
def test_endless_tool_calls_fail_the_comparison_and_do_not_hang(run_here: RunHere, job: QaJob, tmp_path: Path) -> None:
    samples = job.samples[:20]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    rules = [{"when": {"stage": PAIRS, "contains": "How long is"}, "do": "tool_loop"}]
    with ModelServer(answer="world_noisy", rules=rules) as server:
        ended = run_here(server, path, tmp_path / "out", *QA, settings={"llm.max_attempts": 2})
    assert ended.code == 4, ended.err
    for name, pairs in relations_of(tmp_path / "out").items():
        for comparison, relation in pairs.items():
            is_lost = "How long is" in comparison[0]
            assert relation == (None if is_lost else job.expected[name].relations[comparison])
    assert {row["error_type"] for row in read_table(tmp_path / "out", "failures")} == {"unparsable"}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["mine_questions", "answer_questions"])
def test_a_text_that_was_not_read_fails_the_sample_and_no_other(
    run_here: RunHere, job: QaJob, stage: str, tmp_path: Path
) -> None:
    samples = job.samples[:20]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    victim = next(s for s in samples if job.expected[s["sample_id"]].relations and s["response"])
    with ModelServer(answer="world_noisy", rules=refuse(stage, victim)) as server:
        ended = run_here(server, path, tmp_path / "out", *QA)
    assert ended.code == 4, ended.err
    assert_failed_alone(tmp_path / "out", victim, job.expected)


@pytest.mark.slow
def test_without_log_probabilities_the_digits_count_and_the_run_reports_it(
    run_here: RunHere, job: QaJob, tmp_path: Path
) -> None:
    samples, options = job.samples[:60], replace(job.options, top=None)
    path = write_samples(tmp_path / "samples.jsonl", samples)
    with ModelServer(answer="world_noisy", rules=[{"when": {}, "do": "no_logprobs"}]) as server:
        ended = run_here(server, path, tmp_path / "out", *QA)
    assert ended.err.count("not probability-weighted") == 1
    expected = expect(samples, options)
    assert_concluded(tmp_path / "out", expected)
    assert any(one.relations != job.expected[name].relations for name, one in expected.items())


@pytest.mark.slow
def test_a_run_killed_among_its_comparisons_continues_without_paying_twice(
    run_here: RunHere, job: QaJob, tmp_path: Path
) -> None:
    samples, in_flight = job.samples[:80], 8
    path, output = write_samples(tmp_path / "samples.jsonl", samples), tmp_path / "out"
    turns = count_tool_turns(samples, job.options)
    distinct = count_requests(samples, job.options)
    settings = {"llm.max_concurrency": in_flight}
    with ModelServer(answer="world_noisy", latency=0.05) as server:
        run = Run(server, path, output, *QA, settings=settings)
        run.wait_for(server, (distinct[PAIRS] + turns) // 2, PAIRS)
        killed_at = time()
        run.kill()
        # An interrupted conversation has had at most two turns.
        at_risk = 2 * in_flight + sum(moment >= killed_at - FLUSH_SECONDS for moment in times(server.arrivals()))
        ended = run_here(server, path, output, *QA, settings=settings)
        assert ended.code == 0, ended.err
        needed = distinct.total() + turns
        assert needed <= server.count() <= needed + at_risk
    names = {sample["sample_id"] for sample in samples}
    assert_concluded(output, {name: one for name, one in job.expected.items() if name in names})


def test_a_report_has_the_content_of_the_tables(job: QaJob) -> None:
    assert_reported(job.output)
