"""Every kind of fault in every stage of icat: what was not lost is as brute force has it, and later starts mend."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.claims import claims_of
from tests.fakes.expected_icat import ExpectedClaim, ExpectedIcat, Options, distinct, expected_icat
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import icat_worlds
from tests.runs.fates import ASKED_ONCE, ATTEMPTS, ERRORS, PASSING, fate_of
from tests.runs.harness import Row, read_table, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import (
    ICAT,
    Source,
    concluded,
    embedder,
    failed,
    in_contexts,
    on_the_web,
    read_concluded,
    searcher,
)

SHARE = 0.01
PROMPTED = ("extract_claims", "generate_aspects", "classify_relation", "align_claims")
LIMITED = {"status": 429, "headers": {"Retry-After": "0.5"}}


def _rule(stage: str, deed: Any, *, attempts: int | None = None) -> Row:
    when: Row = {"share": SHARE, "stage": stage}
    return {"when": when if attempts is None else {**when, "attempt_below": attempts + 1}, "do": deed}


def rules_of(lookup: str) -> list[Row]:
    """A hundredth of each fault in each stage, once or until the end of all attempts."""
    once = (LIMITED, {"status": 500}, "refuse", "cut_json", {"status": 503})
    always = ({"status": 500}, "html", *({"status": status} for status in (400, 403, 408)))
    said = ("empty", "length", "filter", {"finish": "error"}, "garbage", "no_usage")
    rules = [_rule(stage, deed, attempts=1) for stage in (*PROMPTED, lookup) for deed in once]
    rules += [_rule(stage, "hang", attempts=1) for stage in ("extract_claims", lookup)]
    rules += [_rule(stage, deed) for stage in (*PROMPTED, lookup) for deed in always]
    # Any text is a claim
    rules += [
        _rule(stage, deed) for stage in PROMPTED for deed in said if (stage, deed) != ("extract_claims", "garbage")
    ]
    return rules + [_rule("embed_text", deed) for deed in ("nan", "zero", "drop") if lookup == "embed_text"]


Request = tuple[str, str]  # a stage and its variables


@dataclass
class Fates:
    """What becomes of requests: those of `known` by what came of them in earlier starts, others by the rules.

    `asked`: the error type of what was asked, None where it was answered.
    """

    rules: Sequence[Row]
    known: Mapping[Request, str | None] = field(default_factory=dict)
    asked: dict[Request, str | None] = field(default_factory=dict)

    def of(self, stage: str, **variables: Any) -> str | None:
        """The error type of a request that is not asked yet, or None."""
        request = request_of(stage, variables)
        if request in self.known:
            return self.known[request]
        if stage == "web_search":
            # As it is sent
            variables |= {"query": " ".join(variables["query"].split())}
        return fate_of({"stage": stage, **variables}, self.rules).error_type

    def ask(self, stage: str, **variables: Any) -> str | None:
        """The same of one that is asked now."""
        error = self.of(stage, **variables)
        self.asked[request_of(stage, variables)] = error
        return error

    def lasting(self) -> dict[Request, str | None]:
        """What a later start does not ask again."""
        return {request: error for request, error in self.asked.items() if error not in PASSING}


def request_of(stage: str, variables: Mapping[str, Any]) -> Request:
    return stage, json.dumps(variables, sort_keys=True)


@dataclass
class Expectation:
    """What must come of a start: each sample in the form of `read_concluded`, and what it lost."""

    samples: dict[str, Row] = field(default_factory=dict)
    failures: Counter[tuple[str, str, str]] = field(default_factory=Counter)


def expect(samples: Sequence[Row], source: Source, fates: Fates, lookup: str) -> Expectation:
    """What must come of all samples."""
    found = Expectation()
    for sample in samples:
        lost: set[tuple[Request, str]] = set()
        found.samples[sample["sample_id"]] = _expect(sample, source, fates, lookup, lost)
        found.failures.update((sample["sample_id"], stage, error) for (stage, _), error in lost)
    return found


def _expect(sample: Row, source: Source, fates: Fates, lookup: str, lost: set[tuple[Request, str]]) -> Row:
    """One of them; what it lost is added to `lost`: request, error type."""

    def ask(stage: str, **variables: Any) -> bool:
        error = fates.ask(stage, **variables)
        if error:
            lost.add((request_of(stage, variables), error))
        return error is None

    if sample["response"].strip() and not ask("extract_claims", text=sample["response"]):
        # Its aspects are not asked for
        return failed()
    texts = distinct([claim.strip() for claim in claims_of(sample["response"])])
    if not sample["aspects"] and not ask("generate_aspects", query=sample["query"]):
        return failed([(text, None, (), ()) for text in texts])
    unfound = _unfound(sample, texts, ask, lookup)
    look = source(sample)
    options = Options(
        lost=lambda claim, chunk: fates.of("classify_relation", premise=chunk, hypothesis=claim) is not None,
        unfound=unfound.__contains__,
    )
    expected = expected_icat(sample, look, options)
    for claim in expected.claims:
        said = {chunk.chunk_id: chunk.text for chunk in look(claim.text)}
        for name, _ in claim.judged:
            ask("classify_relation", premise=said[name], hypothesis=claim.text)
    if not _is_aligned(sample, expected, ask):
        return failed(concluded(expected)["claims"])
    return concluded(expected)


def _unfound(sample: Row, claims: Sequence[str], ask: Any, lookup: str) -> set[str]:
    """The claims whose looking up was lost; all of them where a chunk of the contexts has no vector."""
    if lookup == "web_search":
        return {claim for claim in claims if not ask(lookup, query=claim, count=10)}
    if not claims:
        return set()
    texts = {chunk.text for chunk in in_contexts(sample)(claims[0])}
    assert len(texts) < 10
    found = [ask(lookup, texts=[text]) for text in sorted(texts)]
    vectors = {claim for claim in claims if not ask(lookup, texts=[claim])}
    return vectors if all(found) else set(claims)


def _is_aligned(sample: Row, expected: ExpectedIcat, ask: Any) -> bool:
    grounded = [claim.text for claim in expected.claims if _is_grounded(claim)]
    aspects = [aspect.text for aspect in expected.aspects]
    if not grounded or not aspects:
        return True
    return bool(ask("align_claims", query=sample["query"], aspects=aspects, claims=grounded))


def _is_grounded(claim: ExpectedClaim) -> bool:
    return claim.verdict == "supported"


def assert_as_expected(output: Path, expected: Expectation) -> None:
    """Every sample is as it must be, and what it lost is told, once a request and sample."""
    found = read_concluded(output)
    assert found.keys() == expected.samples.keys()
    for name, one in expected.samples.items():
        assert found[name] == one, name
    rows = read_table(output, "failures")
    assert Counter((row["sample_id"], row["stage"], row["error_type"]) for row in rows) == expected.failures


@pytest.mark.slow
@pytest.mark.parametrize(("lookup", "source"), [("embed_text", in_contexts), ("web_search", on_the_web)])
def test_every_fault_in_every_stage(run_here: RunHere, tmp_path: Path, lookup: str, source: Source) -> None:
    samples = [sample for world in icat_worlds(100) for sample in world.samples(2)]
    path, output, rules = write_samples(tmp_path / "samples.jsonl", samples), tmp_path / "out", rules_of(lookup)
    with ModelServer(answer="world", rules=rules) as server:
        # One text a call: which texts share a call is no part of what is asked
        place = {**embedder(server), "embeddings.batch": 1} if lookup == "embed_text" else searcher(server)
        settings = {**place, "llm.timeout_seconds": 2, "llm.max_attempts": ATTEMPTS}

        ended = run_here(server, path, output, *ICAT, settings=settings)
        assert ended.code == 4, ended.err
        fates = Fates(rules)
        first = expect(samples, source, fates, lookup)
        assert_as_expected(output, first)
        assert {*ERRORS.values(), "filtered", *ASKED_ONCE} - {"timeout", "connection"} <= set(fates.asked.values())
        assert {stage for stage, _ in fates.asked} == {*PROMPTED, lookup}
        assert Counter(one["status"] for one in first.samples.values()).keys() >= {"ok", "partial", "failed"}

        # What may pass is asked again, without what was answered
        server.configure(rules=[])
        server.reset()
        ended = run_here(server, path, output, *ICAT, settings=settings)
        assert ended.code == 4, ended.err
        later = Fates([], fates.lasting())
        second = expect(samples, source, later, lookup)
        assert_as_expected(output, second)
        assert len(second.failures) < len(first.failures)
        new = Counter(stage for stage, variables in later.asked if (stage, variables) not in fates.lasting())
        assert Counter(arrival.stage for arrival in server.arrivals()) == new

        server.reset()
        ended = run_here(server, path, output, *ICAT, "--retry-failed", settings=settings)
        assert ended.code == 0, ended.err
        last = expect(samples, source, Fates([]), lookup)
        assert_as_expected(output, last)
        assert not last.failures
