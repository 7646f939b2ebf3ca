"""A finished job over symbolic worlds beside brute force, and what both metrics of statements must hold to."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from tests.fakes.expected import Verdict
from tests.fakes.model_server import ModelServer
from tests.runs.harness import Ended, Row, read_table

OptionsT = TypeVar("OptionsT")
ExpectedT = TypeVar("ExpectedT")
Concluded: TypeAlias = Verdict[Any, Any]


@dataclass(frozen=True)
class Job(Generic[OptionsT, ExpectedT]):
    """A finished job over worlds, and the brute force over the same."""

    server: ModelServer
    samples: list[Row]
    options: OptionsT
    path: Path
    output: Path
    ended: Ended
    asked: Counter[str]
    expected: Mapping[str, ExpectedT]


def rows_by_sample(output: Path, name: str) -> dict[str, list[Row]]:
    found = defaultdict(list)
    for row in read_table(output, name):
        found[row["sample_id"]].append(row)
    return found


def scores_of(output: Path) -> dict[str, Row]:
    return {row["sample_id"]: row for row in read_table(output, "scores")}


def figures_of(row: Row) -> tuple[Any, ...]:
    return row["status"], row["score"], row["covered"], row["uncovered"], row["unjudged"]


def figures(expected: Concluded) -> tuple[Any, ...]:
    return expected.status, expected.score, expected.covered, expected.uncovered, 0


def statements_of(output: Path) -> dict[str, list[tuple[Any, ...]]]:
    """(text, covered, in_basis, sources, members) of each statement, sorted."""
    return {
        name: sorted(
            (row["text"], row["covered"], row["in_basis"], tuple(row["sources"]), tuple(row["members"])) for row in rows
        )
        for name, rows in rows_by_sample(output, "statements").items()
    }


def expected_statements(expected: Mapping[str, Concluded]) -> dict[str, list[tuple[Any, ...]]]:
    """The same of brute force, for the samples that have any."""
    return {
        name: sorted((s.text, s.covered, s.in_basis, s.sources, s.members) for s in one.statements)
        for name, one in expected.items()
        if one.statements
    }


def assert_atoms_name_their_statements(output: Path, text_of: Callable[[Row], str]) -> None:
    """The members of each statement are the texts of the atoms that name it."""
    members = {row["statement_id"]: row["members"] for row in read_table(output, "statements")}
    named = defaultdict(list)
    for row in read_table(output, "atoms"):
        if row["statement_id"] is not None:
            named[row["statement_id"]].append(text_of(row))
    assert {name: sorted(texts) for name, texts in named.items()} == {n: sorted(m) for n, m in members.items()}


def assert_partly_judged(
    output: Path,
    samples: Iterable[Row],
    relations: Mapping[str, Mapping[Any, str | None]],
    expected: Callable[[Row, Mapping[Any, str | None]], Concluded],
) -> None:
    """Status, score and bounds are those that brute force gives under the relations that were answered."""
    scores = scores_of(output)
    for sample in samples:
        name = sample["sample_id"]
        answered = relations.get(name, {})
        one, row = expected(sample, answered), scores[name]
        assert (row["status"], row["score"]) == (one.status, one.score), name
        assert row["unjudged"] == sum(relation is None for relation in answered.values())
        assert (row["score_low"], row["score_high"]) == (one.bounds or (None, None)), name


def assert_pairs_failed(output: Path, stage: str) -> None:
    """Comparisons alone failed, as unparsable, and of the partial samples alone."""
    failed = read_table(output, "failures")
    assert {(row["stage"], row["error_type"]) for row in failed} == {(stage, "unparsable")}
    partial = {name for name, row in scores_of(output).items() if row["status"] == "partial"}
    assert {row["sample_id"] for row in failed} == partial


def refuse(stage: str, victim: Row) -> list[dict[str, Any]]:
    """Rules for the server: HTTP 400 for the victim's response in this stage."""
    # As the text stands in the JSON of the prompt
    return [{"when": {"stage": stage, "contains": json.dumps(victim["response"])[1:-1]}, "do": {"status": 400}}]


def assert_failed_alone(output: Path, victim: Row, expected: Mapping[str, Concluded]) -> None:
    """The victim failed, and what did not is as brute force says."""
    scores = scores_of(output)
    failed = {name for name, row in scores.items() if row["status"] == "failed"}
    assert victim["sample_id"] in failed
    for name, row in scores.items():
        if name in failed:
            assert (row["score"], row["score_low"], row["score_high"]) == (None, 0.0, 1.0)
        else:
            assert figures_of(row) == figures(expected[name])
    assert {row["sample_id"] for row in read_table(output, "failures")} == failed
