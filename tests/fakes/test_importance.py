"""The symbolic world of importance: the results of its judge, and completions of the server in readable forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes.answers import expected_score, find_answer
from tests.fakes.claims import claims_of
from tests.fakes.facts import FOREIGN, NEEDED, Odds, normalise, split
from tests.fakes.importance import SALIENCES, VERDICTS, covering, facts_of, importance, parts_of, turned, verify
from tests.fakes.replies import chat_logprobs, plain_logprobs
from tests.fakes.world import worlds
from untold.udfs.ratings import read_alternatives, weigh
from untold.udfs.stages import STAGES

QUERY = "What is known of the founding and the home of Ada Mill?"
JOINED = "Ada Mill was founded in 1912 and lives in Lyon."


def in_the_server(payload: Mapping[str, Any], judge: str = "closed") -> Any:
    """Return the result of the stage's parser for the server's completion."""
    said = find_answer(f"world_{judge}")(dict(payload))
    return STAGES[payload["stage"]].parse(said if isinstance(said, str) else said.text, payload)


def test_facts_turn_their_words_and_are_read_all_the_same() -> None:
    assert turned("Ada Mill was founded in 1912.") == "Was founded in 1912 Ada Mill."
    assert turned("ADA MILL LIKES TEA.") == "LIKES TEA ADA MILL."
    assert turned("In 1912 came the founding of Ada Mill.") == "Came the founding of Ada Mill In 1912."
    assert (turned(JOINED), turned("Well, well, well, well.")) == (JOINED, "Well, well, well, well.")
    assert parts_of("Was founded in 1912 Ada Mill.") == ["Ada Mill Was founded in 1912"]
    assert parts_of(JOINED) == ["Ada Mill was founded in 1912.", "Ada Mill lives in Lyon."]
    assert parts_of("Well, well.") == ["Well, well."]


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("Ada Mill was founded in 1912.", "supported"),
        ("Was founded in the 1910s Ada Mill.", "supported"),
        ("Ada Mill was founded in 1913.", "contradicted"),
        ("Ada Mill owns exactly 2 boats.", "not_supported"),
        (JOINED, "supported"),
        ("Ada Mill was founded in 1912 and lives in Osaka.", "contradicted"),
        ("Ada Mill was founded in 1912 and likes tea.", "not_supported"),
        # The evidence contradicts itself. A stated claim is supported
        ("Ada Mill lives in Nantes.", "supported"),
        ("Well, well.", "not_supported"),
    ],
)
def test_verdicts_by_hand(claim: str, verdict: str) -> None:
    evidence = ["Ada Mill was founded on 3 May 1912. Well, well.", "Ada Mill lives in Lyon. It lives in Nantes."]
    assert verify(claim, evidence) == verdict
    assert verify(claim, []) == "not_supported"


def test_covered_facts_by_hand() -> None:
    claims = ["Ada Mill was founded on 3 May 1912.", "Ada Mill lives in Osaka.", "The home of Ada Mill is in Lyon."]
    assert covering("Ada Mill was founded in the 1910s.", claims) == [1]
    assert covering("Lives in France Ada Mill.", claims) == [3]
    # Each claim states a part
    assert covering(JOINED, claims) == [1, 3]
    assert covering("Ada Mill was founded in 1912 and likes tea.", claims) == []
    assert covering(JOINED, []) == covering("Well, well.", ["Well, well."]) == []


def test_importance_follows_from_query_fact_and_list() -> None:
    facts = ["Ada Mill was founded in 1912.", "Bo Lane lives in Lyon.", "Ada Mill owns exactly 2 boats and likes tea."]
    rated = importance(QUERY, facts)
    assert rated == importance(QUERY, facts)
    assert [relevance for relevance, _ in rated][:2] == [NEEDED, FOREIGN]
    # A relevant part makes the whole fact relevant
    assert importance(QUERY, ["Ada Mill likes tea and lives in Lyon."])[0][0] == NEEDED
    others = ["What is known of the taste and the fleet of Ada Mill?", QUERY]
    assert len({str(importance(query, facts * n)[0]) for query in others for n in range(1, 9)}) > 2


def test_digits_and_expected_scores_fall_on_two_sides_of_a_threshold() -> None:
    def sides(odds: Odds) -> tuple[bool, bool]:
        said = next(iter(odds))
        return int(said) >= 3, expected_score(odds, said, 10) >= 3

    assert [first == second for first, second in map(sides, SALIENCES)] == [True, True, True, False, False]


@pytest.mark.parametrize("judge", ["closed", "steps", "noisy"])
def test_the_server_returns_the_truth_in_readable_formats(judge: str) -> None:
    for world in worlds(30, judge):
        sample = world.samples()[0]
        facts = [fact for context in sample["contexts"] for fact in facts_of(context)]
        for context in sample["contexts"]:
            found = in_the_server({"stage": "extract_facts", "text": context})["facts"]
            assert list(map(normalise, found)) == list(map(normalise, facts_of(context)))
        claims = claims_of(sample["response"])
        for claim in claims:
            asked = {"stage": "verify_claim", "claim": claim, "evidence": sample["contexts"]}
            assert in_the_server(asked, judge)["relation"] == verify(claim, sample["contexts"], judge)
        for fact in facts if claims else []:
            numbers = covering(fact, claims, judge)
            read = in_the_server({"stage": "check_coverage", "fact": fact, "claims": claims}, judge)
            assert read == {"covered": bool(numbers), "claims": numbers}


def test_ratings_are_the_expected_scores_at_their_digits() -> None:
    forms = set()
    for world in worlds(40):
        facts = [fact for context in world.samples()[0]["contexts"] for fact in facts_of(context)]
        if not facts:
            continue
        asked = {"stage": "rate_importance", "query": world.query, "facts": facts}
        said = find_answer("world")(asked)
        assert not isinstance(said, str)
        forms.add(said.text[:3])
        read = STAGES["rate_importance"].parse(said.text, asked)
        for logprobs in (chat_logprobs(said, 10), plain_logprobs(said, 10)):
            row, weighted = weigh(read, read_alternatives(said.text, logprobs))
            assert weighted
            for scale, place in (("relevance", 0), ("salience", 1)):
                odds = [each[place] for each in importance(world.query, facts)]
                assert row[scale] == pytest.approx([expected_score(one, next(iter(one)), 10) for one in odds])
    assert len(forms) >= 4


def test_worlds_hold_every_case() -> None:
    counts: Counter[str] = Counter()
    for world in worlds(100):
        for sample in world.samples(2):
            claims = claims_of(sample["response"])
            facts = list({normalise(fact): fact for text in sample["contexts"] for fact in facts_of(text)}.values())
            counts.update(verify(claim, sample["contexts"]) for claim in claims)
            covered = {fact: covering(fact, claims) for fact in facts}
            counts["two claims together"] += any(len(split(fact)) > 1 and covered[fact] for fact in facts)
            counts["part of a fact"] += any(
                len(parts) > 1 and not covered[fact] and any(covering(part, claims) for part in parts)
                for fact in facts
                for parts in [parts_of(fact)]
            )
            words = Counter(" ".join(sorted(normalise(fact).split())) for fact in facts)
            counts["other word order"] += max(words.values(), default=0) > 1
            counts["claims that contradict"] += any(
                verify(claim, claims[:n]) == "contradicted" for n, claim in enumerate(claims)
            )
            counts["all covered"] += bool(facts) and all(covered.values())
            counts["none covered"] += bool(facts) and not any(covered.values())
    few = {case: count for case, count in counts.items() if count < 5}
    assert few == {}
    assert set(VERDICTS) <= set(counts)


def test_a_server_of_sentences_returns_the_covered_sentences_verbatim() -> None:
    def told(stage: str, **variables: Any) -> Any:
        payload = {"stage": stage, **variables}
        said = find_answer("verbatim")(payload)
        assert isinstance(said, str)
        return STAGES[stage].parse(said, payload)

    assert told("extract_facts", text="Ice floats. Bees sing.") == {"facts": ["Ice floats.", "Bees sing."]}
    assert told("extract_claims", text="") == {"claims": []}
    rated = told("rate_importance", query="q", facts=["Ice floats.", "Bees sing."])
    assert [len(rated[name]) for name in ("relevance", "salience")] == [2, 2]
    evidence = ["Warm ice melts. Ice floats.", "Bees sing."]
    assert told("verify_claim", claim="Ice floats.", evidence=evidence) == {"relation": "supported"}
    assert told("verify_claim", claim="Ice sinks.", evidence=evidence) == {"relation": "not_supported"}
    claims = ["Bees sing.", "Ice floats."]
    assert told("check_coverage", fact="Ice floats.", claims=claims) == {"covered": True, "claims": [2]}
    assert told("check_coverage", fact="Ice sinks.", claims=claims) == {"covered": False, "claims": []}
