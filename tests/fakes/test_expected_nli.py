"""Test the expected nli result of a sample."""

from __future__ import annotations

from itertools import product
from typing import Any

from tests.fakes.answers import expected_score
from tests.fakes.expected import Atom, ExpectedStatement, Options, count_requests, expected_nli
from tests.fakes.facts import (
    Fact,
    rate,
)
from tests.fakes.world import worlds

_QUERY = "What is known of the founding and the home of Ada Mill?"


def _sample(response: str, *contexts: Any, query: str = _QUERY) -> dict[str, Any]:
    return {"sample_id": "s", "query": query, "response": response, "contexts": list(contexts), "system": "x"}


def _statement(text: str, *others: str, covered: bool, basis: bool = False, sources: str = "1") -> ExpectedStatement:
    return ExpectedStatement(text, covered, basis, tuple(sources.split()), others or (text,))


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


def test_the_basis_omits_statements_that_another_missing_statement_entails() -> None:
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


def test_members_without_a_context_come_last_even_if_they_appear_first() -> None:
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
    return expected_score(odds, next(iter(odds)), Options().top) >= Options().relevance


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


def test_bounds_hold_for_all_labels_of_the_unjudged_pairs() -> None:
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
