from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest

from tests.fakes.expected import ExpectedStatement
from tests.fakes.expected_qa import Options, QaAtom, count_requests, count_tool_turns, expected_qa
from tests.fakes.facts import JUDGES, normalise
from tests.fakes.questions import answer, read_question
from tests.fakes.world import World, qa_worlds

_QUERY = "What is known of the home and the length of Ada Mill?"
_HOME, _LENGTH = "Where does Ada Mill live?", "How long is Ada Mill?"
_SURE = Options(confidence=0.0)


def _sample(response: str, *contexts: Any, query: str = _QUERY) -> dict[str, Any]:
    return {"sample_id": "s", "query": query, "response": response, "contexts": list(contexts), "system": "x"}


def test_statements_are_covered_where_an_answer_of_the_response_entails_them() -> None:
    context = "Ada Mill lives in Lyon. Ada Mill lives in Italy. Ada Mill lives in Asia."
    expected = expected_qa(_sample("The home of Ada Mill is in Lyon. Ada Mill lives in Osaka.", context), _SURE)
    first, asia, italy = (_statement_of(expected, text) for text in ("lyon", "asia", "italy"))
    assert (first.covered, asia.covered, italy.covered) == (True, True, False)
    assert [len(statement.members) for statement in (first, asia, italy)] == [2, 1, 1]
    assert (expected.score, expected.bounds) == (2 / 3, (2 / 3, 2 / 3))


def _statement_of(expected: Any, answer: str) -> ExpectedStatement:
    (found,) = [one for one in expected.statements if normalise(one.text.partition(" A: ")[2]) == answer]
    assert isinstance(found, ExpectedStatement)
    return found


def test_the_basis_omits_answers_that_another_missing_answer_entails() -> None:
    context = "Ada Mill lives in France. Ada Mill lives in Lyon. Ada Mill lives in Osaka."
    statements = expected_qa(_sample("", context), _SURE).statements
    bases = {normalise(one.text.partition(" A: ")[2]): one.in_basis for one in statements}
    assert bases == {"france": False, "lyon": True, "osaka": True}


def test_equal_answers_are_one_node_with_all_sources_and_need_no_comparison() -> None:
    contexts = ("Ada Mill lives in Lyon.", "ADA MILL LIVES IN LYON. Ada Mill is 5 km long.", "Ada Mill is 5 km long.")
    expected = expected_qa(_sample("Ada Mill lives in Lyon", *contexts), _SURE)
    homes, lengths = expected.atoms
    assert (homes.question, normalise(homes.text), homes.origin, homes.sources) == (_HOME, "lyon", "both", ("1", "2"))
    assert (lengths.question, normalise(lengths.text), lengths.origin, lengths.sources) == (
        _LENGTH,
        "5 km",
        "context",
        ("2", "3"),
    )
    assert (expected.relations, expected.score) == ({}, 0.5)


def test_answers_are_compared_within_a_question_in_code_point_order_never_two_of_the_response() -> None:
    response = "Ada Mill lives in Osaka. Ada Mill lives in Kyoto. Ada Mill is 5 km long."
    expected = expected_qa(
        _sample(response, "Ada Mill lives in Lyon. Ada Mill lives in France. Ada Mill is 8 km long."), _SURE
    )
    homes = [pair for pair in expected.relations if pair[0] == _HOME]
    found = {tuple(sorted(map(normalise, pair[1:]))) for pair in homes}
    assert found == {("france", "lyon"), ("kyoto", "lyon"), ("france", "kyoto"), ("lyon", "osaka"), ("france", "osaka")}
    assert (len(homes), len(expected.relations)) == (len(found), len(found) + 1)
    assert all(first < second for _, first, second in expected.relations)


def test_a_node_keeps_the_sources_whose_own_confidence_passed() -> None:
    wanted = {(True, False), (False, True), (False, False), (True, True)}
    for number in range(500):
        texts = [f"Ada Mill lives in Lyon.\nRemark {number}.", f"Remark {number}.\nAda Mill lives in Lyon."]
        passes = tuple(Options().expect(answer(text, [_HOME])[0][0][1]) >= Options().confidence for text in texts)
        (atom,) = expected_qa(_sample("", *texts), Options()).atoms
        wanted.discard((passes[0], passes[1]))
        kept = tuple(name for name, passed in zip("12", passes, strict=True) if passed)
        assert (atom.kept, atom.sources) == (any(passes), kept or ("1", "2"))
        said = expected_qa(_sample(texts[1], texts[0]), Options()).atoms[0]
        origin = {(True, True): "both", (True, False): "context", (False, True): "response"}.get((passes[0], passes[1]))
        assert (said.origin, said.kept) == (origin or "both", any(passes))
    assert wanted == set()


def test_a_class_is_named_after_its_most_frequent_context_answer() -> None:
    contexts = (
        "Ada Mill lives in Lyon.",
        "The home of Ada Mill is in Lyon.",
        "The home of Ada Mill is in Lyon. Well, well.",
    )
    (statement,) = expected_qa(_sample("Lyon is where Ada Mill lives.", *contexts), _SURE).statements
    assert normalise(statement.text) == normalise(f"Q: {_HOME} A: the city of Lyon")
    assert [normalise(member) for member in statement.members] == [
        normalise(f"Q: {_HOME} A: {text}") for text in ("Lyon", "the city of Lyon", "in Lyon")
    ]
    assert (statement.covered, statement.sources) == (True, ("1", "2", "3"))


@pytest.mark.parametrize(
    ("tool", "relations", "requests", "turns"),
    [
        ("tool", ["equivalent", "neutral", "neutral"], 3, 3),
        ("none", ["equivalent", "equivalent", "equivalent"], 3, 0),
        ("resolve", ["equivalent", "equivalent", "equivalent"], 2, 0),
    ],
)
def test_lengths_are_compared_by_tool_by_judge_or_without_asking(
    tool: str, relations: list[str], requests: int, turns: int
) -> None:
    context = "Ada Mill is 5 km long.\nAda Mill is 5,000 m long.\nAda Mill is about 5 km long."
    sample, options = _sample("", context), Options(confidence=0.0, quantity_tool=tool)
    answers = [said for said, _ in answer(context, [_LENGTH])[0]]
    found = expected_qa(sample, options).relations
    compared = [found[_LENGTH, min(pair), max(pair)] for pair in combinations(answers, 2)]
    assert compared == relations
    quoted = any('"' in text for text in answers[:2])
    assert count_requests([sample], options)["compare_answers"] == requests + (tool == "resolve" and quoted)
    assert count_tool_turns([sample], options) == turns


def test_questions_of_contexts_are_shared_by_all_responses() -> None:
    contexts = ("Ada Mill lives in Lyon. It is 5 km long.", "Ada Mill lives in Nantes.")
    samples = [
        _sample(f"Ada Mill likes {taste}. It lives in {home}.", *contexts)
        for taste in ("tea", "rain")
        for home in ("Lyon", "Osaka")
    ]
    alone, shared = (count_requests(samples, Options(questions=which)) for which in ("all", "contexts"))
    assert (alone["mine_questions"], shared["mine_questions"]) == (2 + 4, 2)
    assert shared["refine_questions"] == 1 < alone["refine_questions"]
    assert shared["answer_questions"] == 2 + 4


def test_without_a_passing_question_nothing_is_answered() -> None:
    sample = _sample("Bo Lane lives in Lyon.", "Bo Lane lives in Osaka. Bo Lane lives in Lyon.")
    assert expected_qa(sample, _SURE).status == "no_statements"
    assert count_requests([sample], _SURE)["answer_questions"] == 0


@pytest.mark.gate
def test_bounds_hold_for_all_labels_of_the_unjudged_pairs() -> None:
    widths = []
    for world in qa_worlds(60, "noisy"):
        sample, options = world.samples()[0], Options("noisy")
        pairs = sorted(expected_qa(sample, options).relations)
        unjudged = pairs[:: max(1, len(pairs) // 3)][:3]
        expected = expected_qa(sample, options, dict.fromkeys(unjudged))
        if expected.bounds is None or not unjudged:
            continue
        assert expected.status == "partial"
        low, high = expected.bounds
        relations = ("equivalent", "first_implies_second", "second_implies_first", "neutral")
        scores = [
            expected_qa(sample, options, dict(zip(unjudged, chosen, strict=True))).score
            for chosen in product(relations, repeat=len(unjudged))
        ]
        assert all(score is not None and low <= score <= high for score in scores)
        widths.append(high - low)
    assert sum(width > 0 for width in widths) > 10


@pytest.mark.parametrize("judge", JUDGES)
def test_hundreds_of_worlds_contain_all_cases(judge: str) -> None:
    seen: Counter[str] = Counter()
    for world in qa_worlds(300, judge):
        expected = expected_qa(world.samples()[0], Options(judge))
        seen += Counter(name for name, is_so in _traits(expected, world, judge).items() if is_so)
    assert len(seen) == 18
    assert min(seen.values()) >= 5, seen
    assert min(seen[name] for name in ("covered", "uncovered", "both", "merged", "contradictory")) >= 70, seen


def _traits(expected: Any, world: World, judge: str) -> dict[str, bool]:
    sample, statements, relations = world.samples()[0], expected.statements, expected.relations
    others = {
        "changed by the tool": Options(judge, quantity_tool="none"),
        "changed by the response's questions": Options(judge, questions="contexts"),
        "turned by probabilities": Options(judge, top=None),
    }
    return {
        **{relation: relation in relations.values() for relation in ("equivalent", "contradictory", "neutral")},
        "implied": any("implies" in relation for relation in relations.values()),
        "none": expected.score is None,
        "covered": expected.covered > 0,
        "uncovered": expected.uncovered > 0,
        "both": expected.covered > 0 and expected.uncovered > 0,
        "merged": any(len(statement.members) > 1 for statement in statements),
        "cycle of three": any(len(statement.members) > 2 for statement in statements),
        "smaller basis": sum(statement.in_basis for statement in statements) < expected.uncovered,
        "dropped": not all(atom.kept for atom in expected.atoms),
        "said by both": any(atom.origin == "both" and atom.kept for atom in expected.atoms),
        "several questions": len({atom.question for atom in expected.atoms}) > 1,
        "one topic in two questions": _has_split_topic(expected.atoms),
        **{name: _essence(expected_qa(sample, other)) != _essence(expected) for name, other in others.items()},
    }


def _essence(expected: Any) -> Any:
    return [(atom.question, atom.text, atom.kept) for atom in expected.atoms], expected.relations


def _has_split_topic(atoms: Sequence[QaAtom]) -> bool:
    asked = [read_question(question) for question in {atom.question for atom in atoms}]
    return len({found[:2] for found in asked if found}) < len(asked)
