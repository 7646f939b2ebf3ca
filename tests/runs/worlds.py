"""Compare a finished job on symbolic worlds with brute force. The checks apply to both metrics of statements."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import pytest
from scipy.stats import binomtest

from tests.fakes.expected import Verdict, contexts_of
from tests.fakes.expected_conflicts import ExpectedConflicts
from tests.fakes.model_server import ModelServer
from tests.runs.harness import Ended, Row, read_table

OptionsT = TypeVar("OptionsT")
ExpectedT = TypeVar("ExpectedT")
Concluded: TypeAlias = Verdict[Any, Any]


@dataclass(frozen=True)
class Job(Generic[OptionsT, ExpectedT]):
    """A finished job on worlds, and the results of brute force for the same worlds."""

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


def concluded_of(output: Path, table: str) -> tuple[dict[str, Row], dict[str, list[Row]], dict[str, list[Row]]]:
    """Return the scores, the measures and the rows of a table, by sample."""
    return scores_of(output), rows_by_sample(output, "measures"), rows_by_sample(output, table)


def figures_of(row: Row) -> tuple[Any, ...]:
    return row["status"], row["score"], row["covered"], row["uncovered"], row["unjudged"]


def figures(expected: Concluded) -> tuple[Any, ...]:
    return expected.status, expected.score, expected.covered, expected.uncovered, 0


def statements_of(output: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the text, the flags, the sources and the members of each statement by sample, sorted."""
    return {
        name: sorted(
            (row["text"], row["covered"], row["in_basis"], tuple(row["sources"]), tuple(row["members"])) for row in rows
        )
        for name, rows in rows_by_sample(output, "statements").items()
    }


def expected_statements(expected: Mapping[str, Concluded]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the same values from brute force for the samples with statements."""
    return {
        name: sorted((s.text, s.covered, s.in_basis, s.sources, s.members) for s in one.statements)
        for name, one in expected.items()
        if one.statements
    }


def assert_conflicts(output: Path, expected: Mapping[str, Concluded]) -> None:
    """Check the conflicts and their measures. The shares of a partial sample are not checked."""
    found: dict[str, list[Any]] = defaultdict(list)
    statements = {row["statement_id"]: row for row in read_table(output, "statements")}
    for row in read_table(output, "conflicts"):
        sides = [statements[row[f"{side}_id"]] for side in ("first", "second")]
        assert [(row[side], row[f"{side}_sources"]) for side in ("first", "second")] == [
            (one["text"], one["sources"]) for one in sides
        ]
        ids = [int(one["statement_id"].rpartition(":")[2]) for one in sides]
        assert ids[0] < ids[1]
        found[row["sample_id"]].append((row["first"], row["second"], row["coverage"]))
    measures = {(row["sample_id"], row["measure"]): row for row in read_table(output, "measures")}
    for name, one in expected.items():
        pairs = [(conflict.first.text, conflict.second.text, conflict.coverage) for conflict in one.conflicts]
        assert sorted(found[name]) == sorted(pairs), name
        for measure, value in one.measures.items():
            row, is_share = measures[name, measure], measure != "conflicts"
            ends = (0.0, 1.0) if one.status == "partial" else (value, value)
            assert row["value"] == value, (name, measure)
            assert (row["value_low"], row["value_high"]) == (ends if is_share else (None, None))


def assert_conflicts_listed(output: Path, expected: Mapping[str, ExpectedConflicts]) -> None:
    """Check the conflicts, the measures with their bounds, and the status of each score."""
    columns = ("first", "first_sources", "second", "second_sources", "coverage")
    found: dict[str, list[Any]] = {
        name: sorted(([row[column] for column in columns] for row in rows), key=str)
        for name, rows in rows_by_sample(output, "conflicts").items()
    }
    assert found == {name: one.rows for name, one in expected.items() if one.rows}
    assert {name: row["status"] for name, row in scores_of(output).items()} == {
        name: one.status for name, one in expected.items()
    }
    measures = {
        name: {row["measure"]: (row["value"], row["value_low"], row["value_high"]) for row in rows}
        for name, rows in rows_by_sample(output, "measures").items()
    }
    assert measures == {name: one.measures for name, one in expected.items()}


def with_kinds(sample: Row) -> Row:
    """Return the sample with a kind for each context object, except for every third context."""
    kinds = ({"kind": "news"}, {"kind": "blog"}, {})
    contexts = [
        one if isinstance(one, str) else {**one, **kinds[place % 3]} for place, one in enumerate(sample["contexts"])
    ]
    return {**sample, "contexts": contexts}


def assert_leaning(output: Path, samples: Iterable[Row], expected: Mapping[str, Concluded]) -> None:
    """Check that the table `source_preference` counts the one-sided conflicts with one side in a rank or kind."""
    found: dict[tuple[str | None, str, str], list[int]] = defaultdict(list)
    for sample in samples:
        contexts = dict(zip(contexts_of(sample), enumerate(sample["contexts"], 1), strict=True))
        names = {
            "rank": {name: str(place) for name, (place, _) in contexts.items()},
            "kind": {n: one["kind"] for n, (_, one) in contexts.items() if not isinstance(one, str) and "kind" in one},
        }
        for conflict in expected[sample["sample_id"]].conflicts:
            if conflict.coverage in ("first", "second"):
                sides = sorted((conflict.first, conflict.second), key=lambda one: one.covered)
                for by, of in names.items():
                    missing, covered = ({of[name] for name in one.sources if name in of} for one in sides)
                    for source, system in product(covered ^ missing, {None, sample["system"]}):
                        found[system, by, source].append(int(source in covered))
    rows = {(row["system"], row["by"], row["source"]): row for row in read_table(output, "source_preference")}
    assert rows.keys() == found.keys()
    for key, choices in found.items():
        followed, total = sum(choices), len(choices)
        assert (rows[key]["followed"], rows[key]["n"]) == (followed, total), key
        assert rows[key]["share"] == pytest.approx(followed / total)
        assert rows[key]["p_value"] == pytest.approx(binomtest(followed, total).pvalue)
    assert rows[None, "rank", "1"]["ci_low"] < rows[None, "rank", "1"]["share"] < rows[None, "rank", "1"]["ci_high"]
    assert {by for _, by, _ in found} == {"rank", "kind"}


def assert_atoms_name_their_statements(output: Path, text_of: Callable[[Row], str]) -> None:
    """Check that the members of a statement equal the texts of its atoms."""
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
    """Check status, score, bounds and conflicts against brute force with the relations that have a completion."""
    scores = scores_of(output)
    judged = {sample["sample_id"]: expected(sample, relations.get(sample["sample_id"], {})) for sample in samples}
    assert_conflicts(output, judged)
    for sample in samples:
        name = sample["sample_id"]
        answered = relations.get(name, {})
        one, row = judged[name], scores[name]
        assert (row["status"], row["score"]) == (one.status, one.score), name
        assert row["unjudged"] == sum(relation is None for relation in answered.values())
        assert (row["score_low"], row["score_high"]) == (one.bounds or (None, None)), name


def assert_pairs_failed(output: Path, stage: str) -> None:
    """Check that only comparisons of the partial samples failed, and that their error type is unparsable."""
    failed = read_table(output, "failures")
    assert {(row["stage"], row["error_type"]) for row in failed} == {(stage, "unparsable")}
    partial = {name for name, row in scores_of(output).items() if row["status"] == "partial"}
    assert {row["sample_id"] for row in failed} == partial


def refuse(stage: str, victim: Row) -> list[dict[str, Any]]:
    """Return server rules with HTTP 400 for the response of the victim in this stage."""
    # The text in the form of the JSON in the prompt
    return [{"when": {"stage": stage, "contains": json.dumps(victim["response"])[1:-1]}, "do": {"status": 400}}]


def assert_failed_alone(output: Path, victim: Row, expected: Mapping[str, Concluded]) -> None:
    """Check that the victim failed and that all other samples equal brute force."""
    scores = scores_of(output)
    failed = {name for name, row in scores.items() if row["status"] == "failed"}
    assert victim["sample_id"] in failed
    for name, row in scores.items():
        if name in failed:
            assert (row["score"], row["score_low"], row["score_high"]) == (None, 0.0, 1.0)
        else:
            assert figures_of(row) == figures(expected[name])
    assert {row["sample_id"] for row in read_table(output, "failures")} == failed
