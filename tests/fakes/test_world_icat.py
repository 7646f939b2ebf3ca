"""Test the symbolic world of ICAT: its judge, results by hand, and the completions of the server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.answers import find_answer
from tests.fakes.claims import align, aspects_of, claims_of, covers
from tests.fakes.expected_icat import Chunk, ExpectedIcat, Options, cut, expected_icat, nearest
from tests.fakes.facts import relate_text
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import IcatWorld, icat_worlds
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.stages import STAGES

WORLDS = icat_worlds(100)
QUERY = "What is known of the founding and the home of Ada Mill?"
CHUNKS = [
    Chunk("d#0", "d", "Ada Mill was founded on 3 May 1912. Ada Mill likes tea."),
    Chunk("e#0", "e", "Ada Mill lives in Lyon. Ada Mill owns exactly 2 boats."),
    Chunk("f#0", "f", "The home of Ada Mill is in Lyon."),
]
RESPONSE = (
    "Ada Mill was founded in 1912. Ada Mill lives in France. “Ada Mill lives in France”\n"
    "Ada Mill owns exactly 3 boats. Ada Mill likes chess. Well, well."
)
GIVEN = [{"id": "A", "text": "the century of the founding of Ada Mill"}, "the city of the home of Ada Mill"]
GIVEN += ["the continent of the home of Ada Mill", "the taste of the taste of Ada Mill"]


def found(claim: str) -> Sequence[Chunk]:
    return CHUNKS


def by_hand(**options: Any) -> ExpectedIcat:
    sample = {"query": QUERY, "query_id": "t", "response": RESPONSE, "aspects": GIVEN}
    return expected_icat(
        sample, found, Options(**options), [("t", "A", "d", 1), ("t", "2", "e", 2), ("t", "3", "e", 0)]
    )


def in_the_server(payload: Mapping[str, Any], judge: str = "closed") -> Any:
    """Return the result of the stage's parser for the server's completion."""
    said = find_answer(f"world_{judge}")(dict(payload))
    return STAGES[payload["stage"]].parse(said if isinstance(said, str) else said.text, payload)


def test_a_chunk_states_the_facts_of_its_sentences() -> None:
    assert relate_text(CHUNKS[0].text, "Ada Mill was founded in the 1910s.", "closed") == "entailment"
    assert relate_text(CHUNKS[1].text, "Ada Mill owns exactly 3 boats.", "closed") == "contradiction"
    assert relate_text(CHUNKS[2].text, "Ada Mill likes tea.", "closed") == "neutral"
    # A contradicting sentence does not cancel an entailing sentence
    both = "Ada Mill lives in Osaka. Ada Mill lives in Lyon."
    assert relate_text(both, "Ada Mill lives in France.", "closed") == "entailment"


@pytest.mark.parametrize(
    ("claim", "aspect", "covered"),
    [
        ("Ada Mill was founded on 3 May 1912.", "the year of the founding of Ada Mill", True),
        ("In 1912 came the founding of Ada Mill.", "THE CENTURY OF THE FOUNDING OF ADA MILL.", True),
        ("Ada Mill was founded in 1912.", "the day of the founding of Ada Mill", False),
        ("Ada Mill was founded in 1912.", "the year of the founding of Ada Lane", False),
        ("Ada Mill lives in Lyon.", "the year of the founding of Ada Mill", False),
        ("Well, well.", "the year of the founding of Ada Mill", False),
    ],
)
def test_a_claim_covers_the_facts_that_it_states_or_implies(claim: str, aspect: str, covered: bool) -> None:
    assert covers(claim, aspect) is covered


def test_claims_verdicts_and_aspects_by_hand() -> None:
    expected = by_hand()
    assert [(claim.text, claim.verdict, claim.evidence) for claim in expected.claims] == [
        ("Ada Mill was founded in 1912.", "supported", ("d#0",)),
        ("Ada Mill lives in France.", "supported", ("e#0", "f#0")),
        ("Ada Mill owns exactly 3 boats.", "contradicted", ()),
        ("Ada Mill likes chess.", "not_supported", ()),
    ]
    assert [(aspect.reference_id, aspect.claims) for aspect in expected.aspects] == [
        ("A", (1,)),
        ("2", ()),
        ("3", (2,)),
        ("4", ()),
    ]
    assert expected.status == "ok"
    assert expected.measures == {
        "s_fact": (0.5,) * 3,
        "s_coverage": (0.5,) * 3,
        "icat": (0.5,) * 3,
        "claims": (4.0,) * 3,
    }


def test_early_stop_changes_only_the_evidence() -> None:
    chunks = [CHUNKS[2], CHUNKS[0], *[CHUNKS[1]] * 3]
    sample = {"query": QUERY, "response": "Ada Mill lives in France. Ada Mill was founded in 1912."}
    stopped, whole = (expected_icat(sample, lambda _: chunks, Options(early_stop=early)) for early in (True, False))
    assert [claim.evidence for claim in stopped.claims] == [("f#0",), ("d#0",)]
    assert [claim.evidence for claim in whole.claims] == [("f#0", "e#0", "e#0", "e#0"), ("d#0",)]
    assert (stopped.measures, stopped.aspects) == (whole.measures, whole.aspects)


def test_the_bounds_of_lost_requests_by_hand() -> None:
    def lost(claim: str, chunk: str) -> bool:
        return chunk == CHUNKS[2].text

    # One chunk is lost for four claims. Another chunk grounds two of the claims, and two claims are unjudged
    expected = by_hand(lost=lost, beta=2.0)
    assert [claim.verdict for claim in expected.claims] == ["supported", "supported", None, None]
    assert expected.measures["s_fact"] == (1.0, 0.5, 1.0)
    assert expected.measures["s_coverage"] == (0.5, 0.5, 1.0)
    assert expected.measures["icat"] == pytest.approx((5 * 0.5 / (4 + 0.5), 5 * 0.25 / (4 * 0.5 + 0.5), 1.0))
    assert expected.status == "partial"
    assert by_hand(unfound=lambda claim: "chess" in claim).measures["s_fact"] == (2 / 3, 0.5, 0.75)


def test_annotated_documents_by_hand() -> None:
    assert [aspect.claims for aspect in by_hand(variant="m").aspects] == [(1,), (2,), (), ()]


@pytest.mark.parametrize(("response", "query"), [("", QUERY), ("Well, well.", QUERY), ("Ada Mill likes tea.", "What?")])
def test_without_claims_or_aspects_nothing_is_defined(response: str, query: str) -> None:
    expected = expected_icat({"query": query, "response": response, "aspects": None}, found)
    assert (expected.status, expected.measures["icat"]) == ("no_statements", (None, None, None))
    assert expected.measures["s_coverage"][0] == (0.0 if query == QUERY else None)


def test_chunks_overlap_and_none_is_superfluous() -> None:
    def lengths(words: int) -> list[int]:
        return [len(chunk.text.split()) for chunk in cut({"document_id": "d", "text": "w " * words})]

    assert [lengths(words) for words in (0, 1, 128, 129, 224, 225)] == [
        [],
        [1],
        [128],
        [128, 33],
        [128, 128],
        [128, 128, 33],
    ]


@pytest.mark.parametrize("judge", ["closed", "steps", "noisy"])
def test_the_server_returns_the_truth_in_readable_formats(judge: str) -> None:
    for world in icat_worlds(30, judge):
        for sample in world.samples(2):
            claims = [claim.strip() for claim in claims_of(sample["response"])]
            if claims or sample["response"].strip():
                assert in_the_server({"stage": "extract_claims", "text": sample["response"]})["claims"] == claims
            aspects = aspects_of(world.query)
            assert in_the_server({"stage": "generate_aspects", "query": world.query})["aspects"] == aspects
            if claims and aspects:
                payload = {"stage": "align_claims", "query": world.query, "aspects": aspects, "claims": claims}
                assert in_the_server(payload)["evidence"] == align(aspects, claims)
        for document in world.documents:
            asked = {
                "stage": "classify_relation",
                "premise": document["text"],
                "hypothesis": f"{document['text'][:40]}.",
            }
            assert in_the_server(asked, judge)["relation"] == relate_text(asked["premise"], asked["hypothesis"], judge)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(answer="world") as server:
        yield server


def test_the_templates_of_tests_carry_the_variables(server: ModelServer) -> None:
    payload = {"stage": "align_claims", "query": QUERY, "aspects": ["the city of the home of Ada Mill"]}
    payload["claims"] = ["Ada Mill lives in Lyon."]
    source = (Path(__file__).parent / "prompts" / "align_claims.jinja").read_text(encoding="utf-8")
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
        body = {"model": "m", "messages": compile_prompt(source).messages(payload)}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        said = json.loads(connection.getresponse().read())["choices"][0]["message"]["content"]
    assert STAGES["align_claims"].parse(said, payload) == {"evidence": [[1]]}


def expected_of(world: IcatWorld, number: int = 0, **options: Any) -> ExpectedIcat:
    chunks = [chunk for document in world.documents for chunk in cut(document)]
    sample = world.samples(number + 1)[number]
    return expected_icat(sample, lambda claim: nearest(claim, chunks), Options(**options), world.annotations())


def test_worlds_hold_every_case() -> None:
    counts: Counter[str] = Counter()
    for world in WORLDS:
        expected = expected_of(world)
        counts.update(claim.verdict or "" for claim in expected.claims)
        counts[expected.status] += 1
        counts["given"] += bool(world.given)
        counts["long document"] += any(len(cut(document)) > 2 for document in world.documents)
        counts["more than ten aspects"] += len(aspects_of(world.query)) > 10
        counts["covered"] += any(aspect.claims for aspect in expected.aspects)
        counts["partly covered"] += 0 < (expected.measures["s_coverage"][0] or 0) < 1
        counts["equal claims"] += len(expected.claims) < len(claims_of(world.samples()[0]["response"]))
        counts["stopped early"] += expected.claims != expected_of(world, early_stop=False).claims
        counts["by documents"] += expected.aspects != expected_of(world, variant="m").aspects
        counts["annotated"] += any(relevance > 0 for *_, relevance in world.annotations())
        counts["grounded in nothing"] += expected.measures["icat"][0] == 0.0
    few = {case: count for case, count in counts.items() if count < 5}
    assert few == {}
    assert {"supported", "contradicted", "not_supported", "ok", "no_statements"} <= set(counts)


def test_a_world_depends_only_on_its_seed() -> None:
    assert [world.samples(2) for world in icat_worlds(5, first=7)] == [world.samples(2) for world in WORLDS[7:12]]
    assert [world.documents for world in icat_worlds(5, first=7)] == [world.documents for world in WORLDS[7:12]]
    assert WORLDS[3].samples(3)[:1] == WORLDS[3].samples(1)
