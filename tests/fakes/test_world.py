"""Test the symbolic world: its facts, its judges, and the completions of the server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from itertools import pairwise, permutations
from math import exp
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.answers import Said, expected_score, find_answer, spread
from tests.fakes.expected import Options, expected_nli, payloads
from tests.fakes.facts import (
    FOREIGN,
    JUDGES,
    LEVELS,
    NEEDED,
    RELATED,
    Fact,
    Odds,
    chain,
    extract,
    normalise,
    rate,
    read_fact,
    relate,
    revise,
    summarise,
)
from tests.fakes.model_server import ModelServer
from tests.fakes.world import World, worlds
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.stages import STAGES

_DAY = Fact("founding", "day", "ada mill", "3 may 1912")
_CITY = Fact("home", "city", "ada mill", "lyon")
_BOATS = Fact("fleet", "exact", "ada mill", "exactly 3")
_TEA = Fact("taste", "taste", "ada mill", "tea")
_LENGTH = Fact("length", "length", "ada mill", "5 km")
_EVERY = [general for fact in (_DAY, _CITY, _BOATS, _TEA, _LENGTH) for general in chain(fact)]
_QUERY = "What is known of the founding and the home of Ada Mill?"
_THRESHOLD = Options().relevance


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(answer="world") as server:
        yield server


def _ask(server: ModelServer, payload: Mapping[str, Any], **body: Any) -> dict[str, Any]:
    source = (Path(__file__).parent / "prompts" / f"{payload['stage']}.jinja").read_text(encoding="utf-8")
    messages = compile_prompt(source).messages(payload)
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps({"model": "m", "messages": messages, **body}))
        choice: dict[str, Any] = json.loads(connection.getresponse().read())["choices"][0]
    return choice


def test_every_sentence_reads_back_as_its_fact() -> None:
    assert {(fact.topic, fact.level) for fact in _EVERY} == set(LEVELS)
    for fact in _EVERY:
        for form in range(fact.forms):
            sentence = fact.sentence(form)
            assert read_fact(sentence) == (fact, form)
            assert {read_fact(text) for text in (sentence.upper(), f'"{sentence}"', f" {sentence[:-1]} ")} == {
                (fact, form)
            }


def test_a_chain_goes_from_the_fact_to_the_most_general() -> None:
    assert [fact.value for fact in chain(_DAY)] == ["3 may 1912", "1912", "the 1910s", "the 20th century"]
    assert [fact.value for fact in chain(_CITY)] == ["lyon", "france", "europe"]
    assert [fact.value for fact in chain(_BOATS)] == ["exactly 3", "at least 3", "at least 2", "at least 1"]
    assert chain(_TEA) == [_TEA]


@pytest.mark.parametrize("text", ["A b  c", " a\u00a0B\tc. ", '"a b c."', "“A b c”.", "a b c", "ａ b c．", "'a b c'"])
def test_variants_of_a_text_normalise_to_one_node(text: str) -> None:
    assert normalise(text) == "a b c"


@pytest.mark.parametrize("text", ["a b c?", "a b, c", "a “b” c", "a b c 1"])
def test_other_texts_normalise_to_other_nodes(text: str) -> None:
    assert normalise(text) != "a b c"


@pytest.mark.parametrize(
    ("premise", "hypothesis", "closed", "steps"),
    [
        ("Ada Mill was founded on 3 May 1912.", "Ada Mill was founded in 1912.", "entailment", "entailment"),
        ("Ada Mill was founded on 3 May 1912.", "Ada Mill was founded in the 1910s.", "entailment", "neutral"),
        ("Ada Mill was founded in 1912.", "Ada Mill was founded on 3 May 1912.", "neutral", "neutral"),
        ("Ada Mill was founded in 1912.", "Ada Mill was founded in 1913.", "contradiction", "contradiction"),
        ("Ada Mill was founded in 1912.", "Ada Mill was founded in the 1920s.", "contradiction", "contradiction"),
        ("Ada Mill was founded in 1912.", "Ada Works was founded in 1913.", "neutral", "neutral"),
        ("Ada Mill lives in Lyon.", "The home of Ada Mill is in Lyon.", "entailment", "entailment"),
        ("The home of Ada Mill is in Lyon.", "Ada Mill lives in Lyon.", "entailment", "neutral"),
        ("Lyon is where Ada Mill lives.", "Ada Mill lives in Lyon.", "entailment", "entailment"),
        ("Ada Mill owns exactly 5 boats.", "Ada Mill owns at least 3 boats.", "entailment", "neutral"),
        ("Ada Mill owns exactly 2 boats.", "Ada Mill owns at least 3 boats.", "contradiction", "contradiction"),
        ("Ada Mill likes tea.", "Ada Mill likes rain.", "neutral", "neutral"),
        ("Ada Mill likes tea.", "Well, well.", "neutral", "neutral"),
    ],
)
def test_judges_return_the_relation(premise: str, hypothesis: str, closed: str, steps: str) -> None:
    assert (relate(premise, hypothesis, "closed"), relate(premise, hypothesis, "steps")) == (closed, steps)


def _broken_triples(judge: str) -> int:
    texts = [fact.sentence(form) for fact in _EVERY for form in range(fact.forms)]
    edges = {pair for pair in permutations(texts, 2) if relate(*pair, judge) == "entailment"}
    return sum((a, b) in edges and (b, c) in edges and (a, c) not in edges for a, b, c in permutations(texts, 3))


def test_only_the_closed_judge_is_transitive() -> None:
    assert _broken_triples("closed") == 0
    assert min(_broken_triples("steps"), _broken_triples("noisy")) > 100


def test_the_noisy_judge_depends_only_on_the_pair_and_is_wrong_for_an_eighth_of_the_pairs() -> None:
    texts = [fact.sentence(form) for fact in _EVERY for form in range(fact.forms)]
    pairs = list(permutations(texts, 2))
    errors = sum(relate(*pair, "noisy") != relate(*pair, "closed") for pair in pairs) / len(pairs)
    assert 0.1 < errors < 0.17
    assert all(relate(a.upper(), f'"{b}"', "noisy") == relate(a, b, "noisy") for a, b in pairs)


def test_a_summary_keeps_sentences_verbatim_and_drops_the_irrelevant() -> None:
    assert summarise('It  is. IRRELEVANT remark. "So"\nEnd') == 'It  is.\n"So"\nEnd'
    assert summarise("IRRELEVANT weather.") is None


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("Ada Mill lives in Lyon.", "Fact"),
        ('"it lives in Lyon and likes tea"', "Fact"),
        ("Ada Mill likes tea.", "Claim"),
        ("Many say: Ada Mill is great.", "Claim"),
        ("This text is about Ada Mill.", "Meta Statement"),
        ("Where does Ada Mill live?", "Question"),
        ("Ask Ada Mill about boats.", "Instruction"),
        ("Dates are written day first.", "Data Format"),
        ("Well, well.", "Other"),
    ],
)
def test_units_have_types(sentence: str, kind: str) -> None:
    assert extract(f"Well, well.\n{sentence}\nWell, well.")[1] == (sentence, kind)


@pytest.mark.parametrize(
    ("statement", "revised"),
    [
        ("Ada Mill  lives in Lyon", ["Ada Mill  lives in Lyon"]),
        ("It likes tea.", ["Ada Mill likes tea."]),
        ('"IT OWNS EXACTLY 3 BOATS."', ['"Ada Mill OWNS EXACTLY 3 BOATS."']),
        ("Ada Mill lives in Lyon and likes tea.", ["Ada Mill lives in Lyon.", "Ada Mill likes tea."]),
        ("It lives in Lyon and likes tea", ["Ada Mill lives in Lyon.", "Ada Mill likes tea."]),
        ("Salt and pepper.", ["Salt and pepper."]),
    ],
)
def test_revision_resolves_pronouns_and_splits_conjunctions(statement: str, revised: list[str]) -> None:
    text = f"Bo Lane likes tea. Ada Mill likes rain.\n{statement}\nBo Lane likes rain."
    assert revise(text, [statement]) == revised


def test_a_pronoun_without_a_subject_before_it_stays() -> None:
    assert revise("It likes tea. Ada Mill likes tea.", ["It likes tea."]) == ["It likes tea."]


def test_requested_subjects_are_needed_and_other_subjects_are_foreign() -> None:
    statements = ["Ada Mill lives in Lyon.", "Bo Lane lives in Lyon.", "Well, well."]
    assert rate(_QUERY, statements) == [NEEDED, FOREIGN, FOREIGN]


def test_one_statement_is_rated_differently_in_lists_of_different_lengths() -> None:
    rated = [rate(_QUERY, ["Ada Mill likes tea."] * length)[0] for length in range(1, 9)]
    assert set(map(id, rated)) <= set(map(id, RELATED))
    assert len(set(map(id, rated))) > 1


@pytest.mark.parametrize(
    ("odds", "said", "top", "score"),
    [
        ({"4": 0.5, "2": 0.25, "n": 0.25}, "4", 3, 2.5 / 0.75),
        ({"4": 0.5, "2": 0.25, "n": 0.25}, "4", 1, 4.0),
        ({"4": 0.5, "2": 0.25, "n": 0.25}, "2", 1, 2.0),
        ({"4": 0.5, "2": 0.25, "n": 0.25}, "4", None, 4.0),
        (spread("4"), "4", 2, (2.8 + 0.15) / 0.85),
        (spread("5"), "5", 10, (3.5 + 0.15 + 0.15 + 0.1125 + 0.075) / 0.98125),
    ],
)
def test_an_expected_score_weighs_the_digits_that_are_shown(
    odds: Odds, said: str, top: int | None, score: float
) -> None:
    assert expected_score(odds, said, top) == pytest.approx(score)


@pytest.mark.parametrize("top", [3, 5, 10, 20])
def test_ratings_are_far_from_the_threshold_and_two_ratings_change_the_digit(top: int) -> None:
    every = [NEEDED, FOREIGN, *RELATED]
    scores = [expected_score(odds, next(iter(odds)), top) for odds in every]
    assert all(abs(score - _THRESHOLD) > 0.3 for score in scores)
    passed = [
        (int(next(iter(odds))) >= _THRESHOLD, score >= _THRESHOLD) for odds, score in zip(every, scores, strict=True)
    ]
    assert passed == [(True, True), (False, False), (True, True), (False, False), (True, False), (False, True)]


@pytest.mark.parametrize("rules", [[], [{"when": {}, "do": "think"}]])
@pytest.mark.parametrize("top", [1, 2, 3, 5, 10])
def test_the_server_gives_the_odds_of_each_rating(server: ModelServer, top: int, rules: list[Any]) -> None:
    server.configure(rules=rules)
    statements = [fact.sentence() for fact in _EVERY] + ["Many say: Bo Lane is great."]
    payload = {"stage": "rate_relevance", "query": _QUERY, "statements": statements}
    tokens = _ask(server, payload, logprobs=True, top_logprobs=top)["logprobs"]["content"]
    rated = [token for before, token in pairwise(tokens) if before["token"].endswith("[Relevance:")]
    expected = [expected_score(odds, next(iter(odds)), top) for odds in rate(_QUERY, statements)]
    assert [_weigh(token) for token in rated] == pytest.approx(expected)
    server.configure(rules=[])


def _weigh(token: Mapping[str, Any]) -> float:
    shares = {top["token"].strip(): exp(top["logprob"]) for top in token["top_logprobs"]}
    digits = {int(digit): share for digit, share in shares.items() if digit.isdigit()}
    return sum(digit * share for digit, share in digits.items()) / sum(digits.values())


def test_the_server_returns_the_truth_of_any_world_for_all_templates(server: ModelServer) -> None:
    asked = [
        payload for world in worlds(6) for sample in world.samples() for payload in payloads(sample, world.options)
    ]
    assert len({payload["stage"] for payload in asked}) == 5
    for payload in asked[::5]:
        said = find_answer("world")(payload)
        assert _ask(server, payload)["message"]["content"] == (said.text if isinstance(said, Said) else said)


@pytest.mark.parametrize("judge", JUDGES)
def test_the_parsers_read_the_truth_in_completions(judge: str) -> None:
    answer = find_answer(f"world_{judge}")
    for world in worlds(20, judge):
        for payload in payloads(world.samples()[0], world.options):
            said = answer(payload)
            assert isinstance(said, Said)
            _check(payload, said, judge)


def _check(payload: Mapping[str, Any], said: Said, judge: str) -> None:
    read = STAGES[payload["stage"]].parse(said.text, payload)
    if payload["stage"] == "summarise_context":
        assert read["summary"] == summarise(payload["text"])
    elif payload["stage"] == "extract_atoms":
        assert [(atom["text"], atom["unit_type"]) for atom in read["atoms"]] == extract(payload["text"])
    elif payload["stage"] == "revise_atoms":
        assert read["atoms"] == revise(payload["text"], payload["statements"])
    elif payload["stage"] == "rate_relevance":
        assert [digit.offset for digit in read["ratings"]] == list(said.odds)
        assert [str(digit.value) for digit in read["ratings"]] == [next(iter(odds)) for odds in said.odds.values()]
    else:
        assert read["relation"] == relate(payload["premise"], payload["hypothesis"], judge)


def test_worlds_depend_only_on_their_seed() -> None:
    assert World(7).samples(5)[:2] == World(7).samples(2)
    assert World(7).samples() != World(8).samples()
    named = World(7, ids=True).samples()[0]["contexts"]
    assert [context["text"] for context in named] == World(7).samples()[0]["contexts"]


@pytest.mark.parametrize("judge", JUDGES)
def test_hundreds_of_worlds_contain_all_cases(judge: str) -> None:
    seen: Counter[str] = Counter()
    every = worlds(300, judge)
    for world in every:
        expected = expected_nli(world.samples()[0], world.options)
        seen += Counter(name for name, is_so in _traits(expected, world).items() if is_so)
    assert len(seen) == 12
    assert min(seen.values()) >= 5, seen
    assert min(seen[name] for name in ("covered", "uncovered", "both", "contradiction")) >= 100, seen


def _traits(expected: Any, world: World) -> dict[str, bool]:
    statements = expected.statements
    responded = {atom.text for atom in expected.atoms if not atom.sources}
    return {
        "none": expected.score is None,
        "covered": expected.covered > 0,
        "uncovered": expected.uncovered > 0,
        "both": expected.covered > 0 and expected.uncovered > 0,
        "merged": any(len(statement.members) > 1 for statement in statements),
        "cycle of three": any(len(statement.members) > 2 for statement in statements),
        "merged with the response": any(responded & set(statement.members) for statement in statements),
        "smaller basis": sum(statement.in_basis for statement in statements) < expected.uncovered,
        "contradiction": "contradiction" in expected.relations.values(),
        "dropped": not all(atom.kept for atom in expected.atoms),
        "said by both": any(atom.origin == "both" for atom in expected.atoms),
        "turned by probabilities": expected
        != expected_nli(world.samples()[0], Options(judge=world.options.judge, top=None)),
    }
