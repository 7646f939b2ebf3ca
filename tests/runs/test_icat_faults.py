"""Test all kinds of errors in all stages of icat. Other results equal brute force, and later runs retry the errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.claims import claims_of
from tests.fakes.expected_icat import ExpectedClaim, ExpectedIcat, Options, distinct, expected_icat
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import icat_worlds
from tests.runs.fates import ATTEMPTS
from tests.runs.harness import Row, write_samples
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
from tests.runs.mending import Expectation, Fates, Request, assert_mended, faults_of, request_of

PROMPTED = ("extract_claims", "generate_aspects", "classify_relation", "align_claims")


def expect(samples: Sequence[Row], source: Source, fates: Fates, lookup: str) -> Expectation[Row]:
    """Return the expected results of all samples."""
    found: Expectation[Row] = Expectation()
    for sample in samples:
        lost: set[tuple[Request, str]] = set()
        found.samples[sample["sample_id"]] = _expect(sample, source, fates, lookup, lost)
        found.failures.update((sample["sample_id"], stage, error) for (stage, _), error in lost)
    return found


def _expect(sample: Row, source: Source, fates: Fates, lookup: str, lost: set[tuple[Request, str]]) -> Row:
    """Return the expected result of a sample, and add its failed requests with their error types to `lost`."""

    def ask(stage: str, **variables: Any) -> bool:
        error = fates.ask(stage, **variables)
        if error:
            lost.add((request_of(stage, variables), error))
        return error is None

    if sample["response"].strip() and not ask("extract_claims", text=sample["response"]):
        # No request for the aspects is sent
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
    """Return the claims with a failed lookup. If a chunk of the contexts has no vector, these are all of the claims."""
    if lookup == "web_search":
        return {claim for claim in claims if not ask(lookup, query=claim, count=10)}
    if not claims:
        return set()
    texts = {chunk.text for chunk in in_contexts(sample)(claims[0])}
    assert len(texts) < 10
    found = [ask(lookup, text=text) for text in sorted(texts)]
    vectors = {claim for claim in claims if not ask(lookup, text=claim)}
    return vectors if all(found) else set(claims)


def _is_aligned(sample: Row, expected: ExpectedIcat, ask: Any) -> bool:
    grounded = [claim.text for claim in expected.claims if _is_grounded(claim)]
    aspects = [aspect.text for aspect in expected.aspects]
    if not grounded or not aspects:
        return True
    return bool(ask("align_claims", query=sample["query"], aspects=aspects, claims=grounded))


def _is_grounded(claim: ExpectedClaim) -> bool:
    return claim.verdict == "supported"


@pytest.mark.slow
@pytest.mark.parametrize(("lookup", "source"), [("embed_text", in_contexts), ("web_search", on_the_web)])
def test_every_fault_in_every_stage(run_here: RunHere, tmp_path: Path, lookup: str, source: Source) -> None:
    samples = [sample for world in icat_worlds(100) for sample in world.samples(2)]
    path, output = write_samples(tmp_path / "samples.jsonl", samples), tmp_path / "out"
    # Any text is a claim
    rules = faults_of((*PROMPTED, lookup), unread=PROMPTED[1:], hanging=("extract_claims", lookup))
    with ModelServer(answer="world") as server:
        # Each call has one text, because the key of a request does not depend on the other texts of its call
        place = {**embedder(server), "embeddings.batch": 1} if lookup == "embed_text" else searcher(server)
        settings = {**place, "llm.timeout_seconds": 2, "llm.max_attempts": ATTEMPTS}

        def check(expected: Mapping[str, Row]) -> None:
            found = read_concluded(output)
            assert found.keys() == expected.keys()
            for name, one in expected.items():
                assert found[name] == one, name

        first = assert_mended(
            lambda *flags: run_here(server, path, output, *ICAT, *flags, settings=settings),
            server,
            output,
            rules,
            lambda fates: expect(samples, source, fates, lookup),
            check,
        )
        assert {one["status"] for one in first.samples.values()} >= {"ok", "partial", "failed"}
