from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from itertools import pairwise, permutations, product
from math import exp
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.answers import Said, expected_score, find_answer, spread
from tests.fakes.expected import Atom, ExpectedStatement, Options, count_requests, expected_nli, payloads
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
from udfs.llm.templates import compile_prompt
from udfs.stages import STAGES

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


def _sample(response: str, *contexts: Any, query: str = _QUERY) -> dict[str, Any]:
    return {"sample_id": "s", "query": query, "response": response, "contexts": list(contexts), "system": "x"}


def _statement(text: str, *others: str, covered: bool, basis: bool = False, sources: str = "1") -> ExpectedStatement:
    return ExpectedStatement(text, covered, basis, tuple(sources.split()), others or (text,))


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
def test_judges_tell_the_relation(premise: str, hypothesis: str, closed: str, steps: str) -> None:
    assert (relate(premise, hypothesis, "closed"), relate(premise, hypothesis, "steps")) == (closed, steps)


def _broken_triples(judge: str) -> int:
    texts = [fact.sentence(form) for fact in _EVERY for form in range(fact.forms)]
    edges = {pair for pair in permutations(texts, 2) if relate(*pair, judge) == "entailment"}
    return sum((a, b) in edges and (b, c) in edges and (a, c) not in edges for a, b, c in permutations(texts, 3))


def test_only_the_closed_judge_is_transitive() -> None:
    assert _broken_triples("closed") == 0
    assert min(_broken_triples("steps"), _broken_triples("noisy")) > 100


def test_the_noisy_judge_answers_by_the_pair_alone_and_errs_in_an_eighth_of_the_pairs() -> None:
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


def test_what_is_asked_for_is_needed_and_other_subjects_are_foreign() -> None:
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
def test_ratings_are_clear_of_the_threshold_and_two_of_them_turn_the_digit_said(top: int) -> None:
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


def test_the_server_tells_the_truth_of_any_world_through_the_templates(server: ModelServer) -> None:
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


def test_statements_are_covered_where_the_response_entails_them() -> None:
    context = "Ada Mill was founded in 1912. Ada Mill was founded in the 20th century. Ada Mill lives in France."
    expected = expected_nli(_sample("Ada Mill was founded in the 1910s.", context), Options())
    assert expected.statements == (
        _statement("Ada Mill was founded in 1912.", covered=False, basis=True),
        _statement("Ada Mill was founded in the 20th century.", covered=True),
        _statement("Ada Mill lives in France.", covered=False, basis=True),
    )
    assert (expected.covered, expected.uncovered, expected.score) == (1, 2, 1 / 3)
    assert expected.pairs == 2 * 1 * 3 + 3 * 2
    assert expected.bounds == (1 / 3, 1 / 3)


def test_the_basis_leaves_out_what_another_missing_statement_entails() -> None:
    context = "Ada Mill lives in France. Ada Mill lives in Lyon. Ada Mill lives in Europe. Ada Mill lives in Osaka."
    expected = expected_nli(_sample("", context), Options())
    assert [(statement.text[18:-1], statement.in_basis) for statement in expected.statements] == [
        ("France", False),
        ("Lyon", True),
        ("Europe", False),
        ("Osaka", True),
    ]
    assert expected.relations["Ada Mill lives in Osaka.", "Ada Mill lives in France."] == "contradiction"


def test_a_class_is_represented_by_its_most_frequent_context_member() -> None:
    contexts = ("Ada Mill lives in Lyon.", "Lyon is where Ada Mill lives. The home of Ada Mill is in Lyon.")
    said = "The home of Ada Mill is in Lyon."
    (tied,) = expected_nli(_sample("", *contexts), Options()).statements
    (said_once,) = expected_nli(_sample(said, *contexts), Options()).statements
    assert tied.text == "Ada Mill lives in Lyon."
    assert said_once == _statement(
        said, contexts[0], "Lyon is where Ada Mill lives.", said, covered=True, sources="1 2"
    )


def test_members_of_the_response_come_last_and_never_represent() -> None:
    said = "Ada Mill lives in Lyon. Ada Mill lives in Lyon. Ada Mill lives in Lyon."
    (statement,) = expected_nli(_sample(said, "Lyon is where Ada Mill lives."), Options()).statements
    members = ("Lyon is where Ada Mill lives.", "Ada Mill lives in Lyon.")
    assert statement == _statement(members[0], *members, covered=True)


def test_members_that_no_context_gave_come_last_even_where_they_appear_first() -> None:
    fleets = (Fact("fleet", "exact", "ada mill", f"exactly {number}") for number in range(1, 100))
    fleet = next(one for one in fleets if not _passes(one.sentence(0), 1) and _passes(one.sentence(1), 1))
    dropped, kept = fleet.sentence(0), fleet.sentence(1)
    (statement,) = expected_nli(_sample(f"{dropped} {dropped}", dropped, kept), Options()).statements
    assert statement == _statement(kept, kept, dropped, covered=True, sources="2")


def test_variants_are_one_atom_with_its_most_frequent_context_form() -> None:
    contexts = ("Ada Mill lives in Lyon\nada mill lives in lyon.", '"Ada Mill lives in Lyon."\nada mill lives in lyon.')
    expected = expected_nli(
        _sample("ADA MILL LIVES IN LYON. ADA MILL LIVES IN LYON. ADA MILL LIVES IN LYON.", *contexts), Options()
    )
    assert expected.atoms == (Atom("ada mill lives in lyon.", "both", ("1", "2"), True),)
    assert (expected.pairs, expected.score) == (0, 1.0)


def test_an_atom_keeps_the_sources_from_which_it_passed() -> None:
    length = next(n for n in range(2, 9) if not _passes("Ada Mill likes tea.", n) and _passes("Ada Mill likes tea.", 1))
    filler = [f"Ada Mill lives in {city}." for city in ("Lyon", "Turin", "Osaka", "Cusco", "Kyoto", "Nantes", "Japan")]
    long = " ".join(["Ada Mill likes tea.", *filler[: length - 1]])
    contexts = [{"id": "long", "text": long}, {"id": "short", "text": "Ada Mill likes tea."}]
    passed = expected_nli(_sample("", *contexts), Options()).atoms[0]
    failed = expected_nli(_sample("", contexts[0]), Options()).atoms[0]
    said = expected_nli(_sample("Ada Mill likes tea.", contexts[0]), Options()).atoms[0]
    assert passed == Atom("Ada Mill likes tea.", "context", ("short",), True)
    assert failed == Atom("Ada Mill likes tea.", "context", ("long",), False)
    assert said == Atom("Ada Mill likes tea.", "response", (), True)


def _passes(statement: str, length: int) -> bool:
    odds = rate(_QUERY, [statement] * length)[0]
    return expected_score(odds, next(iter(odds)), Options().top) >= _THRESHOLD


def test_responses_are_not_filtered_by_relevance() -> None:
    expected = expected_nli(_sample("Bo Lane lives in Lyon.", "Ada Mill lives in Lyon."), Options())
    assert expected.atoms[1] == Atom("Bo Lane lives in Lyon.", "response", (), True)


def test_units_of_other_types_are_no_nodes_and_come_last() -> None:
    response = "Where does Bo Lane live? Bo Lane likes tea."
    expected = expected_nli(_sample(response, "Well, well. Ada Mill lives in Lyon."), Options(unit_types=("Fact",)))
    assert expected.atoms == (
        Atom("Ada Mill lives in Lyon.", "context", ("1",), True),
        Atom("Well, well.", "context", ("1",), False),
        Atom("Where does Bo Lane live?", "response", (), False),
        Atom("Bo Lane likes tea.", "response", (), False),
    )
    assert expected.pairs == 0


def test_contexts_share_their_requests_across_responses() -> None:
    contexts = ("Ada Mill lives in Lyon. Ada Mill was founded in 1912.", "Ada Mill was founded in 1913.")
    responses = [f"Ada Mill owns exactly {number} boats. Bo Lane likes tea." for number in range(1, 6)]
    samples = [_sample(response, *contexts) for response in responses]
    context, said, recurring = 3, 2, 1
    pairs = 5 * 2 * said * context + context * (context - 1) - 4 * 2 * recurring * context
    assert count_requests(samples, Options()) == {
        "summarise_context": 2,
        "extract_atoms": 2 + 5,
        "revise_atoms": 2 + 5,
        "rate_relevance": 2,
        "classify_relation": pairs,
    }


def test_five_responses_to_each_of_forty_queries_share_the_pairs_of_their_contexts() -> None:
    every = [[expected_nli(sample, world.options) for sample in world.samples(5)] for world in worlds(40)]
    samples = [sample for world in worlds(40) for sample in world.samples(5)]
    counted = count_requests(samples, Options())["classify_relation"]
    alone = sum(2 * one.response_atoms * one.context_atoms for of_query in every for one in of_query)
    between = sum(of_query[0].context_atoms * (of_query[0].context_atoms - 1) for of_query in every)
    assert all(one.context_atoms == of_query[0].context_atoms for of_query in every for one in of_query)
    assert counted <= alone + between < sum(one.pairs for of_query in every for one in of_query)
    assert counted > 0.5 * (alone + between)


def test_bounds_hold_for_every_completion_of_what_is_unjudged() -> None:
    widths = []
    for world in worlds(40, "noisy"):
        sample = world.samples()[0]
        pairs = sorted(expected_nli(sample, world.options).relations)
        unjudged = pairs[:: max(1, len(pairs) // 5)][:5]
        expected = expected_nli(sample, world.options, dict.fromkeys(unjudged))
        if expected.bounds is None:
            continue
        assert expected.status == ("partial" if unjudged else "ok")
        low, high = expected.bounds
        scores = [
            expected_nli(sample, world.options, dict(zip(unjudged, relations, strict=True))).score
            for relations in product(("entailment", "neutral"), repeat=len(unjudged))
        ]
        assert all(score is not None and low <= score <= high for score in scores)
        widths.append(high - low)
    assert sum(width > 0 for width in widths) > 5


def test_worlds_are_of_their_seed_alone() -> None:
    assert World(7).samples(5)[:2] == World(7).samples(2)
    assert World(7).samples() != World(8).samples()
    named = World(7, ids=True).samples()[0]["contexts"]
    assert [context["text"] for context in named] == World(7).samples()[0]["contexts"]


@pytest.mark.parametrize("judge", JUDGES)
def test_hundreds_of_worlds_hold_everything_that_matters(judge: str) -> None:
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
