"""Compare a job of the metric rag on symbolic worlds with brute force, and exchange files with RAGChecker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.fakes.expected_rag import check, figures, rag_samples
from tests.fakes.facts import relate_text
from tests.fakes.model_server import ModelServer
from tests.runs.harness import Row, read_table, sorted_rows, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.killing import assert_same_tables, kill_in_stages, run_whole
from tests.runs.mending import Expectation, Fates, faults_of, mend_worlds
from tests.runs.reported import assert_reported
from tests.runs.worlds import rows_by_sample, scores_of
from untold.graph.views import one_line
from untold.udfs.facts.rag_measures import PUBLISHED

RAG = ("--metric", "rag")
STAGES = ("extract_claims", "check_claims")
SAMPLES = rag_samples(24, 2)
TABLES = (
    "samples",
    "statements",
    "scores",
    "measures",
    "claims",
    "contexts_used",
    "failures",
    "summary",
    "measures_summary",
)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    """Start a judge that omits some items of its lists and repeats some others. All of its labels are right."""
    with ModelServer(answer="careless_closed") as running:
        yield running


@pytest.fixture(scope="module")
def job(run_here: RunHere, server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rag")
    path = write_samples(folder / "samples.jsonl", SAMPLES)
    ended = run_here(server, path, folder / "out", *RAG, settings={"completion_store": folder / "store"})
    assert ended.code == 0, ended.err
    said = ended.out + ended.err
    assert all(
        text in said
        for text in ("overall: precision", "diagnoses", "retriever (claim_recall)", "generator (hallucination)")
    ), said
    return folder


def measures_of(output: Path) -> dict[str, dict[str, float | None]]:
    return {
        name: {row["measure"]: row["value"] for row in rows}
        for name, rows in rows_by_sample(output, "measures").items()
    }


def assert_as_expected(output: Path, samples: Sequence[Row]) -> None:
    """Check that the measures and scores equal the results of brute force."""
    found, scores = measures_of(output), scores_of(output)
    assert found.keys() == {sample["sample_id"] for sample in samples}
    for sample in samples:
        one = check(sample)
        wanted = figures(one.of_response, one.of_truth, one.contexts)
        assert found[sample["sample_id"]] == pytest.approx(wanted), sample["sample_id"]
        assert scores[sample["sample_id"]]["score"] == pytest.approx(wanted["f1"])


def test_measures_equal_brute_force(job: Path) -> None:
    assert_as_expected(job / "out", SAMPLES)
    assert {row["status"] for row in read_table(job / "out", "scores")} == {"ok", "no_statements"}


def test_the_summary_has_means_as_published(job: Path) -> None:
    summary = {(row["measure"], row["system"]): row for row in read_table(job / "out", "measures_summary")}
    found = measures_of(job / "out").values()
    for name in PUBLISHED:
        values = [one[name] for one in found]
        row, defined = summary[name, None], [value for value in values if value is not None]
        assert (row["n"], row["defined"]) == (len(values), len(defined))
        assert row["mean"] == pytest.approx(sum(defined) / len(defined))
        # RAGChecker replaces an undefined value with 0
        assert row["mean_zero"] == pytest.approx(sum(defined) / len(values))
    assert {name for (name, _), row in summary.items() if row["mean_zero"] is not None} == {*PUBLISHED}


@pytest.mark.slow
def test_a_plan_counts_the_stored_completions(run_here: RunHere, server: ModelServer, job: Path) -> None:
    words = words_of(
        server,
        job / "samples.jsonl",
        job / "out",
        *RAG,
        "--json",
        settings={"completion_store": job / "store"},
        command="plan",
    )
    before = server.count()
    ended = run_here.command(words)
    assert (ended.code, server.count()) == (0, before), ended.err
    rows = {row["stage"]: row for row in json.loads(ended.out)}
    asked = rows["extract_claims"]
    assert (asked["requests"], asked["reused"], asked["exact"]) == (server.count("extract_claims"),) * 2 + (True,)
    # The lists with missing items were sent again
    assert 0 < rows["check_claims"]["requests"] < server.count("check_claims")


@pytest.mark.gate
def test_an_export_to_ragchecker_can_be_imported_without_requests(
    run_here: RunHere, server: ModelServer, job: Path
) -> None:
    file, before = job / "ragchecker.json", server.count()
    ended = run_here.command(["export", str(job / "out"), "--to", "ragchecker", "--output", str(file)])
    assert ended.code == 0, ended.err
    written = json.loads(file.read_text())
    summary = {row["measure"]: row for row in read_table(job / "out", "measures_summary") if row["system"] is None}
    means = {name: mean for group in written["metrics"].values() for name, mean in group.items()}
    assert means == {name: round(100 * summary[name]["mean_zero"], 1) for name in PUBLISHED}
    ended = run_here(server, file, job / "again", *RAG, "--format", "ragchecker")
    assert (ended.code, server.count()) == (0, before), ended.err
    assert measures_of(job / "again") == measures_of(job / "out")
    for name in ("statements", "claims", "contexts_used"):
        assert sorted_rows(job / "again", name) == sorted_rows(job / "out", name), name


@pytest.mark.gate
def test_the_curve_is_of_claim_recall_by_number_of_contexts(run_here: RunHere, job: Path) -> None:
    ended = run_here.command(["curve", str(job / "out")])
    assert ended.code == 0, ended.err
    table = read_table(job / "out", "recall_curve")
    rows = {(row["system"], row["k"]): row for row in table if row["ranking"] == "contexts"}
    assert {row["ranking"] for row in table} == {"contexts", "claims", "claims_f1"}
    for k in (1, 2):
        shares = []
        for sample in SAMPLES:
            one = check(sample)
            if one.truth and one.contexts:
                recalled = [any(cell == "entailment" for cell in row[1 : k + 1]) for row in one.of_truth]
                shares.append(sum(recalled) / len(recalled))
        assert (rows[None, k]["mean"], rows[None, k]["n"]) == (pytest.approx(sum(shares) / len(shares)), len(shares))
    assert "claim recall is highest" in ended.out


def test_a_sample_is_shown_with_the_half_that_is_to_blame(run_here: RunHere, job: Path) -> None:
    left_out = next(row for row in read_table(job / "out", "statements") if not row["covered"] and not row["sources"])
    ended = run_here.command(["show", str(job / "out"), "--sample", left_out["sample_id"], "--metric", "rag"])
    assert ended.code == 0, ended.err
    assert "left out, in no context (claim_recall)" in ended.out
    assert one_line(left_out["text"]) in ended.out
    assert_reported(job / "out")


@pytest.mark.slow
def test_a_run_killed_in_its_stages_sends_no_stored_request(run_here: RunHere, tmp_path: Path) -> None:
    path = write_samples(tmp_path / "whole" / "samples.jsonl", SAMPLES[:20])
    with ModelServer(answer="careless_closed") as server:
        whole = run_whole(run_here, server, path, "rag", STAGES, {})
        kill_in_stages(run_here, whole, tmp_path / "out", STAGES)
    assert_same_tables(tmp_path / "out", whole.output, TABLES)


def expect(samples: Sequence[Row], fates: Fates) -> Expectation[Row]:
    """Return the expected results of samples with one request per claim."""
    found: Expectation[Row] = Expectation()
    for sample in samples:
        lost: set[tuple[str, str, str]] = set()

        def ask(stage: str, lost: set[tuple[str, str, str]] = lost, **variables: object) -> bool:
            error = fates.ask(stage, **variables)
            lost |= {(stage, str(variables), error)} if error else set()
            return error is None

        truth = sample["ground_truth"]
        texts = [text for text in (sample["response"], truth) if isinstance(text, str) and text.strip()]
        read = [ask("extract_claims", text=text) for text in texts]
        if all(read):
            one = check(sample, lambda premise, claim: _relation(premise, claim, ask))
            empty = not one.response or not one.truth
            status = "no_statements" if empty else "partial" if one.unjudged else "ok"
            found.samples[sample["sample_id"]] = {"status": status, "unjudged": one.unjudged}
        else:
            found.samples[sample["sample_id"]] = {"status": "failed", "unjudged": None}
        found.failures.update((sample["sample_id"], stage, error) for stage, _, error in lost)
    return found


def _relation(premise: str, claim: str, ask: Callable[..., bool]) -> str | None:
    known = ask("check_claims", premise=premise, hypotheses=[claim])
    return relate_text(premise, claim, "closed") if known else None


@pytest.mark.slow
def test_every_fault_in_every_stage(run_here: RunHere, tmp_path: Path) -> None:
    samples = rag_samples(80, 2)

    def check_scores(output: Path, expected: Mapping[str, Row]) -> None:
        rows = scores_of(output)
        found = {name: {key: row[key] for key in ("status", "unjudged")} for name, row in rows.items()}
        assert found == expected

    first = mend_worlds(
        run_here,
        tmp_path,
        samples,
        *RAG,
        rules=faults_of(STAGES, unread=STAGES[1:], hanging=STAGES[:1]),
        expect=lambda fates: expect(samples, fates),
        check=check_scores,
        settings={"rag.claims_per_request": 1},
    )
    assert {one["status"] for one in first.samples.values()} == {"ok", "partial", "failed", "no_statements"}
