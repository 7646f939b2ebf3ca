from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.answers import Said, expected_score, find_answer
from tests.fakes.expected_qa import Options, payloads
from tests.fakes.facts import (
    DURATION,
    FOREIGN,
    JUDGES,
    LENGTHS,
    LOOSE_LENGTHS,
    NEEDED,
    QA_TOPICS,
    Fact,
    Odds,
    chain,
    normalise,
    read_fact,
)
from tests.fakes.model_server import ModelServer
from tests.fakes.questions import (
    CONFIDENCES,
    NO_INFORMATION,
    PHRASES,
    PHRASINGS,
    SWAPPED,
    answer,
    ask_for,
    compare_lengths,
    first_of_equals,
    generate,
    mine,
    quantities_of,
    read_answer,
    read_question,
    refine,
    relate_answers,
    restate,
)
from tests.fakes.world import qa_worlds
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.quantities import compare_quantities, is_plain_quantity
from untold.udfs.stages import STAGES

_LEAVES = (
    Fact("founding", "day", "ada mill", "3 may 1912"),
    Fact("home", "city", "ada mill", "lyon"),
    Fact("fleet", "exact", "ada mill", "exactly 3"),
    Fact("taste", "taste", "ada mill", "tea"),
    Fact("length", "length", "ada mill", "5,000 m"),
)
_EVERY = [general for fact in _LEAVES for general in chain(fact)]
_QUERY = "What is known of the home and the length of Ada Mill?"
_HOME, _LENGTH = "Where does Ada Mill live?", "How long is Ada Mill?"
_QUANTITIES = [*LENGTHS, *LOOSE_LENGTHS, DURATION]
_TOOLS = [{"type": "function", "function": {"name": "compare_quantities"}}]


@pytest.fixture
def server(server: ModelServer) -> ModelServer:
    server.configure(answer="world")
    return server


def _messages(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    source = (Path(__file__).parent / "prompts" / f"{payload['stage']}.jinja").read_text(encoding="utf-8")
    return [dict(turn) for turn in compile_prompt(source).messages(payload)]


def _post(server: ModelServer, messages: Sequence[Any], **body: Any) -> tuple[int, dict[str, Any]]:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps({"model": "m", "messages": messages, **body}))
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def _ask(server: ModelServer, messages: Sequence[Any], **body: Any) -> dict[str, Any]:
    choice: dict[str, Any] = _post(server, messages, **body)[1]["choices"][0]
    return choice


def _comparison(first: str, second: str, question: str = _LENGTH) -> dict[str, Any]:
    return {"stage": "compare_answers", "question": question, "first": first, "second": second}


def _called(choice: Mapping[str, Any]) -> dict[str, Any]:
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"], call["id"]) == ("tool_calls", None, "call_0")
    function: dict[str, Any] = call["function"]
    return function


def _follow_up(payload: Mapping[str, Any], choice: Mapping[str, Any], result: str) -> list[Any]:
    call = choice["message"]["tool_calls"][0]
    return [*_messages(payload), choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": result}]


def _relation(payload: Mapping[str, Any], completion: str) -> str:
    relation: str = STAGES["compare_answers"].parse(completion, payload)["relation"]
    return relation


def test_every_question_is_parsed_in_any_case() -> None:
    assert set(PHRASINGS) == set(QA_TOPICS)
    for topic, phrasing in product(QA_TOPICS, range(3)):
        question = ask_for(topic, "ada mill", phrasing)
        assert {read_question(text) for text in (question, question.upper(), f'"{question}"')} == {
            (topic, "ada mill", phrasing)
        }
    assert read_question(_QUERY) is None


def test_every_answer_reads_back_as_its_fact() -> None:
    for fact in _EVERY:
        for form, phrase in enumerate(PHRASES[fact.level]):
            text = phrase.format(v=fact.written)
            found = {read_answer(ask_for(fact.topic, fact.subject), each) for each in (text, f"{text}.", text.upper())}
            assert found == {(fact, PHRASES[fact.level].index(phrase))}, (form, text)
    assert read_answer(_HOME, "5 km") is None


@pytest.mark.parametrize(
    ("topic", "first", "second", "closed", "steps"),
    [
        ("home", "Lyon", "the city of Lyon", "equivalent", "equivalent"),
        ("home", "Lyon", "in Lyon", "equivalent", "neutral"),
        ("home", "Lyon", "in France", "first_implies_second", "first_implies_second"),
        ("home", "the continent of Europe", "Lyon", "second_implies_first", "neutral"),
        ("home", "Lyon", "Nantes", "contradictory", "contradictory"),
        ("home", "France", "Osaka", "contradictory", "contradictory"),
        ("founding", "on 3 May 1912", "1912", "first_implies_second", "first_implies_second"),
        ("founding", "the 1910s", "3 May 1912", "second_implies_first", "neutral"),
        ("fleet", "exactly 5", "at least 2 boats", "first_implies_second", "neutral"),
        ("fleet", "exactly 1", "at least 2 boats", "contradictory", "contradictory"),
        ("taste", "tea", "rain", "neutral", "neutral"),
        ("taste", "tea", "tea, above all", "equivalent", "equivalent"),
        ("length", "5 km", "a length of 5,000 m", "equivalent", "equivalent"),
        ("length", "5 km", "8 km", "contradictory", "contradictory"),
        ("length", "5 km", "about 5 km", "equivalent", "equivalent"),
        ("length", "20 minutes", "5 km", "neutral", "neutral"),
        ("home", "a boat", "Lyon", "neutral", "neutral"),
    ],
)
def test_judges_return_the_relation_of_answers(topic: str, first: str, second: str, closed: str, steps: str) -> None:
    question = ask_for(topic, "ada mill")
    assert [relate_answers(question, first, second, judge) for judge in ("closed", "steps")] == [closed, steps]


def _comparisons() -> list[tuple[str, str, str]]:
    values: dict[str, list[str]] = {topic: [] for topic in QA_TOPICS}
    for fact in [*_EVERY, *(Fact("length", "length", "ada mill", each) for each in _QUANTITIES)]:
        values[fact.topic] += [phrase.format(v=fact.written) for phrase in PHRASES[fact.level]]
    return [
        (ask_for(topic, "ada mill"), *pair)
        for topic in QA_TOPICS
        for pair in permutations(dict.fromkeys(values[topic]), 2)
    ]


@pytest.mark.parametrize("judge", JUDGES)
def test_a_swapped_pair_gives_the_swapped_relation(judge: str) -> None:
    for question, first, second in _comparisons():
        relation = relate_answers(question, first, second, judge)
        assert relate_answers(question, second, first, judge) == SWAPPED.get(relation, relation)


def test_the_noisy_judge_errs_in_a_sixth_of_the_pairs() -> None:
    compared = _comparisons()
    errors = sum(relate_answers(*each, "noisy") != relate_answers(*each, "closed") for each in compared)
    assert 0.12 < errors / len(compared) < 0.2


def test_only_the_closed_judge_is_transitive() -> None:
    assert _broken_triples("closed") == 0
    assert min(_broken_triples("steps"), _broken_triples("noisy")) > 20


def _broken_triples(judge: str) -> int:
    edges = set()
    for question, first, second in _comparisons():
        if relate_answers(question, first, second, judge) in ("equivalent", "first_implies_second"):
            edges.add((question, first, second))
    return sum(
        (q, b, d) in edges and d != a and (q, a, d) not in edges for q, a, b in edges for d in _ends(edges, q, b)
    )


def _ends(edges: set[tuple[str, str, str]], question: str, start: str) -> list[str]:
    return [second for asked, first, second in edges if (asked, first) == (question, start)]


def test_the_tool_agrees_with_the_world_for_all_lengths() -> None:
    for first, second in product(_QUANTITIES, repeat=2):
        assert compare_quantities(first, second).outcome == compare_lengths(first, second), (first, second)
    plain = [*LENGTHS, DURATION]
    assert [text for text in _QUANTITIES if is_plain_quantity(text)] == plain
    assert all(is_plain_quantity(f"{text}.") for text in plain)
    others = [form for text in plain for form in (f'"{text}"', f"a length of {text}", f"A length of {text}.")]
    assert not any(map(is_plain_quantity, others))


def test_questions_are_mined_from_the_facts_of_a_text() -> None:
    text = "Ada Mill lives in Lyon. It lives in France and likes tea.\nWell, well. The home of Bo Lane is in Lyon."
    mined = [read_question(question) for question in mine(_QUERY, text) if question != _QUERY]
    homes, tastes = ("home", "ada mill", 0), ("taste", "ada mill", 0)
    assert mined in ([homes, homes, tastes, ("home", "bo lane", 1)], [homes, tastes, ("home", "bo lane", 1)])
    assert mine(_QUERY, "Well, well.") == []


def test_refinement_merges_phrasings_and_rates_the_rest() -> None:
    mined = [ask_for("home", "bo lane", 1), _QUERY, ask_for("home", "ada mill", 1), ask_for("home", "ada mill", 0)]
    refined = refine(_QUERY, mined)
    assert refined[:2] == [("Where does Bo Lane live?", FOREIGN), (_HOME, NEEDED)]
    assert refined[2:] in ([], [("WHERE DOES BO LANE LIVE?", FOREIGN)])
    assert refine(_QUERY, [_QUERY]) == []


def test_answers_depend_only_on_the_text_and_its_level_of_generality() -> None:
    text = (
        "Ada Mill lives in Lyon. The home of Ada Mill is in Italy. Bo Lane likes tea. Europe is where Ada Mill lives."
    )
    found = answer(text, [_HOME, _LENGTH])
    assert [normalise(said) for said, _ in found[0]] == ["lyon", "the country of italy", "in europe"]
    assert found[1] == []


@pytest.mark.parametrize("top", [3, 5, 10, 20])
def test_confidences_are_far_from_the_threshold_and_two_confidences_change_the_digit(top: int) -> None:
    scores = [expected_score(odds, next(iter(odds)), top) for odds in CONFIDENCES]
    assert all(abs(score - Options().confidence) > 0.15 for score in scores)
    turned = [_turns(odds, score) for odds, score in zip(CONFIDENCES, scores, strict=True)]
    assert turned == [False] * 8 + [True, True]
    assert [score >= Options().confidence for score in scores[-4:]] == [True, False, False, True]


def _turns(odds: Odds, score: float) -> bool:
    return (int(next(iter(odds))) >= Options().confidence) != (score >= Options().confidence)


def test_answers_are_restated_as_their_sentence() -> None:
    assert restate(_HOME, "the city of Lyon.") == "Ada Mill lives in Lyon."
    assert restate(_HOME, "anywhere") == f"{_HOME} anywhere"
    assert all(read_fact(restate(ask_for(fact.topic, fact.subject), fact.written)) == (fact, 0) for fact in _EVERY)


def test_an_answer_states_each_fact_of_the_contexts_once() -> None:
    contexts = [
        "It lives. Ada Mill lives in Lyon. It is 5 km long and likes tea.",
        "Bo Lane lives in Lyon. ADA MILL LIVES IN LYON",
    ]
    assert generate(_QUERY, contexts).split("\n") == ["ADA MILL LIVES IN LYON", "Ada Mill is 5 km long."]
    assert generate(_QUERY, ["Bo Lane lives in Lyon."]) == NO_INFORMATION


@pytest.mark.parametrize("judge", JUDGES)
def test_the_parsers_read_the_truth_in_completions(judge: str) -> None:
    say = find_answer(f"world_{judge}")
    options = Options(judge, quantity_tool="none")
    stages = Counter[str]()
    for world in qa_worlds(25, judge):
        for payload in payloads(world.samples()[0], options):
            said = say(payload)
            assert isinstance(said, Said)
            _check(payload, said, judge)
            stages[payload["stage"]] += 1
    assert min(stages[name] for name in ("mine_questions", "refine_questions", "answer_questions")) > 15
    assert stages["compare_answers"] > 40


def _check(payload: Mapping[str, Any], said: Said, judge: str) -> None:
    stage, read = payload["stage"], STAGES[payload["stage"]].parse(said.text, payload)
    if stage == "mine_questions":
        assert read["questions"] == mine(payload["query"], payload["text"])
    elif stage == "refine_questions":
        rated = first_of_equals(refine(payload["query"], payload["questions"]))
        assert read["questions"] == [text for text, _ in rated]
        _check_digits(read["ratings"], rated, said)
    elif stage == "answer_questions":
        truth = map(first_of_equals, answer(payload["text"], payload["questions"]))
        for answers, digits, rated in zip(read["answers"], read["confidences"], truth, strict=True):
            assert answers == [text for text, _ in rated]
            _check_digits(digits, rated, said)
    elif stage == "compare_answers":
        asked = payload["question"], payload["first"], payload["second"]
        assert read["relation"] == relate_answers(*asked, judge)


def _check_digits(digits: Sequence[Any], rated: Sequence[tuple[str, Odds]], said: Said) -> None:
    assert [said.odds[digit.offset] for digit in digits] == [odds for _, odds in rated]
    assert [str(digit.value) for digit in digits] == [next(iter(odds)) for _, odds in rated]


def test_the_server_returns_the_truth_of_any_world_for_all_templates(server: ModelServer) -> None:
    asked = [payload for world in qa_worlds(6) for payload in payloads(world.samples()[0], Options())]
    asked += [
        {"stage": "generate_answer", "query": _QUERY, "contexts": ["Ada Mill lives in Lyon."]},
        {"stage": "restate_answer", "question": _HOME, "answer": "Lyon"},
    ]
    assert len({payload["stage"] for payload in asked}) == 7
    for payload in asked[::-3]:
        said = find_answer("world")(payload)
        assert _ask(server, _messages(payload))["message"]["content"] == (said.text if isinstance(said, Said) else said)


def test_the_server_gives_the_odds_of_each_confidence(server: ModelServer) -> None:
    text = "Ada Mill lives in Lyon. It lives in Europe."
    payload = {"stage": "answer_questions", "text": text, "questions": [_HOME]}
    tokens = _ask(server, _messages(payload), logprobs=True, top_logprobs=10)["logprobs"]["content"]
    shown = [
        {top["token"].strip() for top in token["top_logprobs"]} for token in tokens if token["token"].strip().isdigit()
    ]
    assert shown == [set(odds) for _, odds in answer(text, [_HOME])[0]]


def test_an_endpoint_may_return_no_log_probabilities(server: ModelServer) -> None:
    server.configure(rules=[{"when": {}, "do": "no_logprobs"}])
    payload = {"stage": "answer_questions", "text": "Ada Mill lives in Lyon.", "questions": [_HOME]}
    choice = _ask(server, _messages(payload), logprobs=True, top_logprobs=10)
    assert (choice["logprobs"], choice["message"]["content"].startswith(f"* {_HOME}")) == (None, True)


@pytest.mark.parametrize(
    ("first", "second"), [("5 km", "a length of 5,470 yards."), ("About 5 km", "5 km"), ("8 km", "5 km")]
)
def test_two_lengths_are_given_to_the_tool_and_its_outcome_counts(server: ModelServer, first: str, second: str) -> None:
    payload = _comparison(first, second)
    choice = _ask(server, _messages(payload), tools=_TOOLS)
    function = _called(choice)
    arguments = json.loads(function["arguments"])
    assert (function["name"], arguments) == ("compare_quantities", quantities_of(_LENGTH, first, second))
    outcomes = {"equal": "equivalent", "first_larger": "contradictory", "second_larger": "contradictory"}
    for outcome, relation in {**outcomes, "incomparable": "neutral"}.items():
        after = _ask(server, _follow_up(payload, choice, json.dumps({"outcome": outcome})), tools=_TOOLS)
        assert after["finish_reason"] == "stop"
        assert _relation(payload, after["message"]["content"]) == relation
    assert server.count("compare_answers") == server.count() == 5


def test_without_tools_or_without_lengths_the_judge_answers_at_once(server: ModelServer) -> None:
    lengths, homes = _comparison("5 km", "about 5 km"), _comparison("Lyon", "France", _HOME)
    assert _relation(lengths, _ask(server, _messages(lengths))["message"]["content"]) == "equivalent"
    said = _ask(server, _messages(homes), tools=_TOOLS)
    assert (_relation(homes, said["message"]["content"]), said["finish_reason"]) == ("first_implies_second", "stop")


@pytest.mark.parametrize("result", ['{"error": "the arguments are no JSON"}', "no JSON", "[]"])
def test_without_an_outcome_the_judge_answers_by_itself(server: ModelServer, result: str) -> None:
    payload = _comparison("8 km", "5 km")
    choice = _ask(server, _messages(payload), tools=_TOOLS)
    after = _ask(server, _follow_up(payload, choice, result), tools=_TOOLS)
    assert _relation(payload, after["message"]["content"]) == "contradictory"


def test_an_endpoint_without_tools_refuses_requests_that_offer_them(server: ModelServer) -> None:
    server.configure(rules=[{"when": {}, "do": "no_tools"}])
    messages = _messages(_comparison("Lyon", "France", _HOME))
    status, body = _post(server, messages, tools=_TOOLS)
    assert (status, body["error"]["message"]) == (400, "this model does not support tools")
    assert _post(server, messages)[0] == 200


@pytest.mark.parametrize("kind", ["arguments", "name"])
def test_a_call_may_be_garbage_once(server: ModelServer, kind: str) -> None:
    server.configure(rules=[{"when": {}, "do": {"tool_garbage": kind}}])
    payload = _comparison("Lyon", "France", _HOME)
    choice = _ask(server, _messages(payload), tools=_TOOLS)
    function = _called(choice)
    assert (function["name"] == "compare_quantities", function["arguments"] == "{}") == (
        (kind == "arguments", kind == "name")
    )
    after = _ask(server, _follow_up(payload, choice, '{"error": "?"}'), tools=_TOOLS)
    assert _relation(payload, after["message"]["content"]) == "first_implies_second"
    assert _ask(server, _messages(payload))["finish_reason"] == "stop"


@pytest.mark.parametrize(("kind", "ends"), [(True, False), ("obedient", True)])
def test_a_model_may_call_the_tool_again_and_again(server: ModelServer, kind: Any, ends: bool) -> None:
    server.configure(rules=[{"when": {}, "do": {"tool_loop": kind}}])
    payload = _comparison("5 km", "8 km")
    choice = _ask(server, _messages(payload), tools=_TOOLS)
    follow_up = _follow_up(payload, choice, '{"outcome": "equal"}')
    assert json.loads(_called(_ask(server, follow_up, tools=_TOOLS))["arguments"]) == {
        "first": "5 km",
        "second": "8 km",
    }
    last = _ask(server, follow_up, tools=_TOOLS, tool_choice="none")
    assert (last["finish_reason"] == "stop") == ends
    assert not ends or _relation(payload, last["message"]["content"]) == "equivalent"
