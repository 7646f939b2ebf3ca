"""Compare the tables of a whole job of the metric citations over symbolic worlds with brute force."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.citations import (
    CitationWorld,
    Cited,
    ExpectedCitations,
    JudgedCitations,
    citation_worlds,
    groups_of,
    pages_of,
)
from tests.fakes.criteria import CITED
from tests.jobs.report.outputs import data_of
from tests.runs.harness import Row, read_table, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.world_jobs import WorldJob, assert_measured, run_worlds
from tests.runs.worlds import concluded_of, rows_by_sample
from untold.jobs.api import open_run
from untold.jobs.report.page import make_report
from untold.udfs.samples.citations import source_key

CITATIONS = ("--metric", "citations")
WORLDS, RESPONSES, LISTED = 40, 2, 2


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Write the pages of all worlds, in two files of one folder."""
    folder = tmp_path_factory.mktemp("pages")
    pages = pages_of(citation_worlds(WORLDS))
    write_samples(folder / "a.jsonl", pages[::2])
    write_samples(folder / "b.jsonl", pages[1::2])
    return {"citations.list_size": LISTED, "citations.sources": str(folder)}


@pytest.fixture(scope="module")
def job(run_here: RunHere, settings: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldJob]:
    """Run two responses to the query of each world. Completions leave sentences open."""
    samples = [sample for world in citation_worlds(WORLDS) for sample in world.samples(RESPONSES)]
    with run_worlds(run_here, tmp_path_factory.mktemp("citations"), samples, *CITATIONS, settings=settings) as ran:
        yield ran


def responses_of(worlds: Sequence[CitationWorld]) -> Iterator[tuple[Row, list[Cited]]]:
    """Yield the samples of worlds with their sentences."""
    for world in worlds:
        yield from world.responses(RESPONSES)


def expected_of(judge: JudgedCitations | None = None) -> Mapping[str, ExpectedCitations]:
    """Return the result of brute force for each sample."""
    judge = judge or JudgedCitations(lambda *_, **__: None, size=LISTED)
    return {
        sample["sample_id"]: judge.judged(sample, sentences)
        for sample, sentences in responses_of(citation_worlds(WORLDS))
    }


def test_all_tables_equal_brute_force(job: WorldJob) -> None:
    assert job.ended.code == 0, job.ended.err
    assert not read_table(job.output, "failures")
    assert_concluded(job.output, expected_of(), "f1")
    assert {one.status for one in expected_of().values()} == {"ok", "no_statements"}


def assert_concluded(output: Path, expected: Mapping[str, ExpectedCitations], score: str) -> None:
    """Compare all tables with brute force."""
    scores, measures, citations = concluded_of(output, "citations")
    assert scores.keys() == expected.keys()
    for name, one in expected.items():
        bounds = one.measures[score] if one.status != "no_statements" else (None, None, None)
        assert_measured(scores[name], measures[name], one, bounds)
        found = [
            (
                each["sentence_number"],
                each["citation"],
                source_key(each["source"] or ""),
                each["support"],
                each["status"],
            )
            for each in sorted(citations.get(name, ()), key=lambda each: (each["sentence_number"], each["citation"]))
        ]
        assert found == [(n, place, source_key(source or ""), *rest) for n, place, source, *rest in one.rows], name


def test_reasons_are_columns(job: WorldJob) -> None:
    rows = read_table(job.output, "citations")
    judged = [row for row in rows if row["support"] and row["reason"]]
    assert len(judged) > 100
    assert all(row["reason"].startswith("It says ") for row in judged)
    missing = {row["reason"] for row in rows if row["status"] == "no_source"}
    assert missing == {"no context, document or page has this id"}
    assert all(row["sentence"] and "[" not in row["sentence"] for row in rows)


def test_every_distinct_request_is_sent_once(job: WorldJob) -> None:
    """Equal sentences of equal sources share a request. An unlabelled sentence is sent in a list again."""
    asked = set()

    def ask(stage: str, **variables: Any) -> None:
        asked.add((stage, json.dumps(variables, sort_keys=True)))

    assert expected_of(JudgedCitations(ask, size=LISTED)) == expected_of()
    assert Counter(arrival.stage for arrival in job.server.arrivals()) == {CITED: len(asked)}
    sources = Counter(len(json.loads(variables)["sources"]) for _, variables in asked)
    assert min(sources[1], sources[2]) > 10, sources


def test_a_plan_is_exact_once_all_is_known_and_a_bound_before(
    run_here: RunHere, job: WorldJob, settings: Mapping[str, Any], tmp_path: Path
) -> None:
    (usage,) = read_table(job.output, "usage")
    calls = job.server.count()
    (known,), (fresh,) = (planned(run_here, job, settings, output) for output in (job.output, tmp_path / "other"))
    # A request for open sentences of one sample can be the first request of another one, and counts twice
    assert known["exact"]
    assert known["requests"] == known["reused"] >= usage["requests"]
    # A plan counts the lists without completions, and no request for an open sentence
    first = {
        json.dumps([texts, list(listed.values())[start : start + LISTED]])
        for _, sentences in responses_of(citation_worlds(WORLDS))
        for _, texts, listed in groups_of(sentences)
        for start in range(0, len(listed), LISTED)
    }
    assert (fresh["requests"], fresh["stage"]) == (len(first), CITED)
    assert job.server.count() == calls


def planned(run_here: RunHere, job: WorldJob, settings: Mapping[str, Any], output: Path) -> list[Row]:
    words = words_of(job.server, job.path, output, *CITATIONS, "--json", settings=settings, command="plan")
    ended = run_here.command(words)
    assert ended.code == 0, ended.err
    found: list[Row] = json.loads(ended.out)
    return found


def test_a_report_has_the_citations_of_the_tables(job: WorldJob) -> None:
    data = data_of(make_report([open_run(job.output)]))
    texts = data["texts"]
    for one in data["samples"]:
        shown = [
            (
                row["number"],
                texts[row["sentence"]],
                texts[row["source"]] if "source" in row else None,
                row.get("support"),
            )
            for row in one["metrics"]["citations"].get("citations", ())
        ]
        rows = rows_by_sample(job.output, "citations").get(one["id"], ())
        assert sorted(shown, key=str) == sorted(
            ((row["sentence_number"], row["sentence"], row["source"], row["support"]) for row in rows), key=str
        )


def test_show_lists_sentences_with_their_sources(run_here: RunHere, job: WorldJob) -> None:
    expected = expected_of()
    name = next(name for name, one in expected.items() if {row[4] for row in one.rows} >= {"judged", "no_source"})
    ended = run_here.command(["show", str(job.output), "--sample", name])
    assert ended.code == 0, ended.err
    assert "with a citation" in ended.out
    assert "no source: " in ended.out
    assert "reason: It says" in ended.out
    empty = next(name for name, one in expected.items() if not one.rows)
    shown = run_here.command(["show", str(job.output), "--sample", empty]).out
    assert "undefined: the response has no sentence" in shown
