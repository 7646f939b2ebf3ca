"""Compare the output of a job of the metric importance with brute force."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from pathlib import Path
from typing import Any

from tests.fakes.expected_importance import ExpectedFact, ExpectedImportance
from tests.runs.harness import Row, read_table
from tests.runs.worlds import rows_by_sample, scores_of

Expected = Mapping[str, ExpectedImportance]
NAME = "importance"


def assert_concluded(output: Path, expected: Expected) -> None:
    """Check that every table of an output equals the result of brute force."""
    assert_scores(output, expected)
    assert_measures(output, expected)
    assert_facts(output, expected)
    assert_claims(output, expected)


def assert_scores(output: Path, expected: Expected, *, alone: bool = True) -> None:
    """Check the status, the score, the bounds and the counts. With `alone`, the output has no other samples."""
    rows = scores_of(output)
    assert rows.keys() == expected.keys() if alone else rows.keys() > expected.keys()
    for name, one in expected.items():
        row = rows[name]
        assert (row["status"], row["dropped"]) == (one.status, one.left_out), name
        assert (row["covered"], row["uncovered"], row["unjudged"]) == one.counts, name
        value, low, high = one.measures["weighted_recall"]
        assert _close(row["score"], value), name
        if one.status == "partial":
            assert _close(row["score_low"], low), name
            assert _close(row["score_high"], high), name


def assert_measures(output: Path, expected: Expected, *, alone: bool = True) -> None:
    """Check the value and the bounds of each measure. With `alone`, the output has no other samples."""
    found = rows_by_sample(output, "measures")
    assert found.keys() == expected.keys() if alone else found.keys() > expected.keys()
    for name, one in expected.items():
        rows = {row["measure"]: (row["value"], row["value_low"], row["value_high"]) for row in found[name]}
        assert rows.keys() == one.measures.keys(), name
        for measure, ends in one.measures.items():
            assert all(map(_close, rows[measure], ends)), (name, measure, rows[measure], ends)


def assert_facts(output: Path, expected: Expected) -> None:
    """Check every column of the table `statements`."""
    found = rows_by_sample(output, "statements")
    assert found.keys() == {name for name, one in expected.items() if one.facts}
    for name, rows in found.items():
        by_id = {row["statement_id"]: row for row in rows}
        assert len(by_id) == len(expected[name].facts), name
        for number, fact in enumerate(expected[name].facts, start=1):
            _assert_fact(by_id[f"{name}:{NAME}:{number}"], fact, name)


def _assert_fact(row: Row, fact: ExpectedFact, name: str) -> None:
    lists = {key: None if row[key] is None else tuple(row[key]) for key in ("sources", "members", "claims")}
    covering = None if fact.claims is None else tuple(f"{name}:{NAME}:{number}" for number in fact.claims)
    assert (row["text"], row["reference_id"], row["rank"], row["kept"], row["covered"], row["in_basis"]) == (
        *(fact.text, fact.reference_id, fact.rank, fact.kept, fact.covered, None),
    ), name
    assert lists == {"sources": fact.sources, "members": fact.members, "claims": covering}, name
    for key in ("relevance", "salience", "weight"):
        assert _close(row[key], getattr(fact, key)), (name, key)


def assert_claims(output: Path, expected: Expected) -> None:
    """Check the tables `claims`, `evidence` and `chunks`."""
    claims, evidence = rows_by_sample(output, "claims"), rows_by_sample(output, "evidence")
    assert claims.keys() == {name for name, one in expected.items() if one.claims}
    known = {row["chunk_id"] for row in read_table(output, "chunks")}
    for name, one in expected.items():
        rows = sorted(claims.get(name, []), key=lambda row: row["position"])
        found = [
            (row["claim_id"], row["position"], row["text"], row["verdict"], tuple(row["evidence"])) for row in rows
        ]
        assert found == [
            (f"{name}:{NAME}:{number}", number, claim.text, claim.verdict, claim.evidence)
            for number, claim in enumerate(one.claims, start=1)
        ], name
        shown = {(row["claim_id"], row["rank"], row["chunk_id"], row["relation"]) for row in evidence.get(name, [])}
        assert shown == {
            (f"{name}:{NAME}:{number}", rank, chunk, claim.verdict)
            for number, claim in enumerate(one.claims, start=1)
            for rank, chunk in enumerate(claim.evidence, start=1)
        }, name
        assert {chunk for _, _, chunk, _ in shown} <= known


def assert_pooled(output: Path, expected: Expected, systems: Mapping[str, str | None]) -> None:
    """Check the shares of all claims and the number of claims per fact, for all samples and for each system."""
    rows = {(row["measure"], row["system"]): row for row in read_table(output, "measures_summary")}
    for system in {None, *systems.values()}:
        own = [one for name, one in expected.items() if system in (None, systems[name])]
        # A sample without judged claims has no precision and no bounds of the precision
        judged = [claim.verdict for one in own if one.measures["precision"][1] is not None for claim in one.claims]
        for verdict in ("supported", "contradicted", "not_supported"):
            row, said = rows[f"{verdict}_share", system], judged.count(verdict)
            missing = judged.count(None)
            assert _close(row["mean"], said / (len(judged) - missing)), (verdict, system)
            assert _close(row["mean_low"], said / len(judged))
            assert _close(row["mean_high"], (said + missing) / len(judged))
            assert row["ci_low"] is row["ci_high"] is None
            assert row["defined"] == sum(one.measures["precision"][1] is not None for one in own)
        counted = [one for one in own if one.measures["claims"][0] is not None]
        claims, facts = (sum(one.measures[name][0] or 0 for one in counted) for name in ("claims", "facts"))
        assert _close(rows["claim_to_fact", system]["mean"], claims / facts)


def _close(found: Any, wanted: Any) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return isclose(found, wanted, abs_tol=1e-9)
