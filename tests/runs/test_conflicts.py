"""Whole jobs of the metric e2e that list conflicts: what they conclude is what brute force concludes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.answers import expected_e2e
from tests.fakes.expected import contexts_of
from tests.fakes.facts import conflicts_among, conveys, normalise, summarise
from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.runs.harness import Ended, Row, read_table, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.worlds import rows_by_sample, with_kinds

WORLDS = 30
E2E = ("--metric", "e2e")
LIST, COVER = "list_conflicts", "cover_sides"
SETTINGS = {"e2e.conflicts": "true"}
# Text, sources and coverage of both sides
Conflict = tuple[tuple[str, tuple[str, ...], bool], ...]


@dataclass(frozen=True)
class Found:
    """A finished job, and the samples that it is of."""

    server: ModelServer
    samples: list[Row]
    path: Path
    output: Path
    ended: Ended


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """Two responses to the query of each world."""
    folder = tmp_path_factory.mktemp("conflicts")
    known = [*worlds(WORLDS // 2, "closed"), *worlds(WORLDS // 2, "closed", ids=True, first=WORLDS // 2)]
    samples = [with_kinds(sample) for world in known for sample in world.samples(2)]
    path = write_samples(folder / "samples.jsonl", samples)
    with ModelServer(answer="world_closed") as server:
        ended = run_here(server, path, folder / "out", *E2E, settings=SETTINGS)
        yield Found(server, samples, path, folder / "out", ended)


def shown_to(sample: Row) -> dict[str, str]:
    """The contexts that the judge sees, by id."""
    return {name: text for name, whole in contexts_of(sample).items() if (text := summarise(whole)) is not None}


def expected_conflicts(sample: Row) -> list[Conflict]:
    contexts, response = shown_to(sample), sample["response"]
    names, texts = list(contexts), list(contexts.values())
    if len(texts) < 2:
        return []
    covered, uncovered = expected_e2e(sample["query"], texts, response)
    known = {normalise(text): True for text, _ in covered} | {normalise(text): False for text, _ in uncovered}
    found: dict[frozenset[str], Conflict] = {}
    for first, first_sources, second, second_sources in conflicts_among(texts, "closed"):
        sides = tuple(
            (
                text,
                tuple(names[number - 1] for number in numbers),
                known[normalise(text)] if normalise(text) in known else conveys(response, text, "closed"),
            )
            for text, numbers in ((first, first_sources), (second, second_sources))
        )
        pair = frozenset(normalise(text) for text, *_ in sides)
        if len(pair) > 1:
            found.setdefault(pair, sides)
    return list(found.values())


def rows_of(conflicts: list[Conflict]) -> list[tuple[Any, ...]]:
    coverage = {(True, True): "both", (True, False): "first", (False, True): "second", (False, False): "neither"}
    return sorted((a[0], a[1], b[0], b[1], coverage[a[2], b[2]]) for a, b in conflicts)


def found_in(output: Path) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: sorted(
            (row["first"], tuple(row["first_sources"]), row["second"], tuple(row["second_sources"]), row["coverage"])
            for row in rows
        )
        for name, rows in rows_by_sample(output, "conflicts").items()
    }


def test_conflicts_are_those_of_brute_force(job: Found) -> None:
    assert job.ended.code == 0, job.ended.err
    expected = {sample["sample_id"]: rows_of(expected_conflicts(sample)) for sample in job.samples}
    assert found_in(job.output) == {name: rows for name, rows in expected.items() if rows}
    assert {row[4] for rows in expected.values() for row in rows} >= {"first", "second", "neither"}


def test_sides_that_are_statements_name_them(job: Found) -> None:
    statements = {row["statement_id"]: row for row in read_table(job.output, "statements")}
    named = [
        (row[side], statements[row[f"{side}_id"]]["text"])
        for row in read_table(job.output, "conflicts")
        for side in ("first", "second")
        if row[f"{side}_id"] is not None
    ]
    assert 10 < len(named) < 2 * len(read_table(job.output, "conflicts"))
    assert all(normalise(text) == normalise(statement) for text, statement in named)


def test_measures_are_those_of_the_conflicts(job: Found) -> None:
    measures = {(row["sample_id"], row["measure"]): row["value"] for row in read_table(job.output, "measures")}
    found = found_in(job.output)
    for sample in job.samples:
        coverage = [row[4] for row in found.get(sample["sample_id"], [])]
        shares = [
            sum(one in names for one in coverage) / len(coverage) if coverage else None
            for names in (("both",), ("first", "second"))
        ]
        names = ("conflicts", "conflict_coverage", "one_sided")
        assert [measures[sample["sample_id"], name] for name in names] == [len(coverage), *shares]
    assert {row["by"] for row in read_table(job.output, "leaning")} == {"rank", "kind"}


def test_conflicts_are_listed_once_for_all_responses_and_sides_are_asked_where_they_are_no_statement(
    job: Found,
) -> None:
    lists = {(sample["query"], tuple(shown_to(sample).values())) for sample in job.samples if len(shown_to(sample)) > 1}
    assert job.server.count(LIST) == len(lists)
    asked = defaultdict(set)
    for row in read_table(job.output, "conflicts"):
        for side in ("first", "second"):
            if row[f"{side}_id"] is None:
                asked[row["sample_id"]].add(row[side])
    responses = {sample["sample_id"]: sample["response"] for sample in job.samples}
    assert job.server.count(COVER) == len({(responses[name], tuple(sorted(texts))) for name, texts in asked.items()})


@pytest.mark.slow
def test_a_plan_counts_the_stages_and_failures_leave_measures_open(
    run_here: RunHere, job: Found, tmp_path: Path
) -> None:
    words = words_of(job.server, job.path, tmp_path / "out", *E2E, "--json", settings=SETTINGS, command="plan")
    planned = {row["stage"]: row for row in json.loads(run_here.command(words).out)}
    assert planned[LIST]["requests"] >= job.server.count(LIST)
    assert planned[COVER]["requests"] >= job.server.count(COVER)
    rules = [{"when": {"stage": stage, "share": 0.3, "seed": 7}, "do": "garbage"} for stage in (LIST, COVER)]
    with ModelServer(answer="world_closed", rules=rules) as server:
        settings = {"llm.max_attempts": 1, **SETTINGS}
        ended = run_here(server, job.path, tmp_path / "out", *E2E, settings=settings)
    assert ended.code == 4, ended.err
    failed = read_table(tmp_path / "out", "failures")
    assert {row["stage"] for row in failed} == {LIST, COVER}
    lost = {row["sample_id"]: row["stage"] for row in failed}
    measures = {(row["sample_id"], row["measure"]): row for row in read_table(tmp_path / "out", "measures")}
    whole = found_in(job.output)
    for name, rows in found_in(tmp_path / "out").items():
        if name not in lost:
            assert rows == whole[name]
    for name in lost:
        row = measures[name, "conflict_coverage"]
        assert (row["value_low"], row["value_high"]) == (0.0, 1.0)
    scores = {row["sample_id"]: row["score"] for row in read_table(tmp_path / "out", "scores")}
    assert scores == {row["sample_id"]: row["score"] for row in read_table(job.output, "scores")}
