"""Test the waves of pairs: no request is sent for an implied pair, and the results do not change."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from untold.graph.condensation import (
    FIRST_CONTEXTS,
    OTHER_CONTEXTS,
    OTHER_RESPONSES,
    RESPONSE_ENDS,
    Classes,
    Nodes,
    choose_by_wave,
    count_statements,
    find_classes,
    reachable,
)

Pair = tuple[int, int]


def pairs_of(contexts: int, responses: int) -> list[Pair]:
    """Return all ordered pairs with at least one context atom."""
    size = contexts + responses
    places = [(one, other) for one in range(size) for other in range(size) if one != other]
    return [(one, other) for one, other in places if min(one, other) < contexts]


@st.composite
def judges(draw: st.DrawFn) -> tuple[int, int, set[Pair]]:
    """Draw the number of context atoms, the number of response atoms and the set of entailed pairs.

    The set is not always transitive.
    """
    contexts, responses = draw(st.integers(1, 8)), draw(st.integers(0, 4))
    pairs = pairs_of(contexts, responses)
    dense = draw(st.sampled_from([0.1, 0.3, 0.6]))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    return contexts, responses, {pair for pair in pairs if random.random() < dense}


def ask_in_waves(contexts: int, responses: int, entailed: set[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the sent pairs and the implied pairs.

    The job runs three waves, and each wave uses all earlier entailments.
    """
    between = [pair for pair in pairs_of(contexts, responses) if max(pair) < contexts]
    crossing = [pair for pair in pairs_of(contexts, responses) if max(pair) >= contexts]
    asked: list[Pair] = []
    implied: list[Pair] = []
    first: list[dict[str, int]] = []
    for parts in ((FIRST_CONTEXTS,), (OTHER_CONTEXTS, RESPONSE_ENDS), (OTHER_RESPONSES,)):
        known = as_edges([pair for pair in asked if pair in entailed])
        first = known if parts == (OTHER_CONTEXTS, RESPONSE_ENDS) else first
        for part in parts:
            wanted = between if "contexts" in part else crossing
            texts = [""] * (contexts + responses)
            owner: dict[str, Any] = {"part": part, "contexts": contexts, "texts": texts, "first": first, "known": known}
            chosen = choose(owner, wanted)
            asked += chosen[0]
            implied += chosen[1]
    return asked, implied


def choose(owner: dict[str, Any], wanted: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    if not wanted:
        return [], []
    source, target = np.array(wanted).T
    flags = choose_by_wave(owner)(source, target)
    now, later = ([pair for pair, flag in zip(wanted, some, strict=True) if flag] for some in flags)
    return now, later


def as_edges(pairs: list[Pair]) -> list[dict[str, int]]:
    return [{"source": source, "target": target} for source, target in pairs]


def condense(contexts: int, responses: int, edges: list[Pair], said: int) -> tuple[Nodes, Classes]:
    """Return the classes of the graph. The first `said` context atoms also occur in the response."""
    size = contexts + responses
    place = np.arange(size)
    response = (place >= contexts) | (place < said)
    nodes = Nodes(np.zeros(size, dtype=np.int64), place < contexts, response, np.ones(size, dtype=np.int64), 1)
    source, target = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return nodes, find_classes(nodes, source, target)


@examples(300)
@given(judges())
def test_every_pair_is_sent_or_implied_exactly_once(world: tuple[int, int, set[Pair]]) -> None:
    contexts, responses, entailed = world
    asked, implied = ask_in_waves(contexts, responses, entailed)
    assert sorted(asked + implied) == sorted(pairs_of(contexts, responses))


@examples(300)
@given(judges())
def test_an_implied_pair_is_reachable_through_sent_pairs(world: tuple[int, int, set[Pair]]) -> None:
    contexts, responses, entailed = world
    asked, implied = ask_in_waves(contexts, responses, entailed)
    graph = nx.DiGraph([pair for pair in asked if pair in entailed])
    graph.add_nodes_from(range(contexts + responses))
    assert all(nx.has_path(graph, source, target) for source, target in implied)


@examples(300)
@given(judges(), st.integers(0, 2))
def test_skipping_changes_no_component_no_coverage_and_no_basis(world: tuple[int, int, set[Pair]], said: int) -> None:
    contexts, responses, entailed = world
    asked, _ = ask_in_waves(contexts, responses, entailed)
    nodes, whole = condense(contexts, responses, sorted(entailed), said)
    _, skipped = condense(contexts, responses, sorted(pair for pair in asked if pair in entailed), said)
    for name in ("component", "statement", "representative", "covered", "in_basis"):
        assert np.array_equal(getattr(whole, name), getattr(skipped, name)), name
    assert [list(x) for x in count_statements(nodes, whole)] == [list(x) for x in count_statements(nodes, skipped)]


def test_paraphrases_are_implied_by_a_few_of_their_pairs() -> None:
    everything = set(pairs_of(12, 3))
    asked, implied = ask_in_waves(12, 3, everything)
    assert len(implied) > len(asked)


@examples(100)
@given(judges())
def test_reachable_is_the_transitive_closure(world: tuple[int, int, set[Pair]]) -> None:
    contexts, responses, entailed = world
    size = contexts + responses
    graph = nx.DiGraph(sorted(entailed))
    graph.add_nodes_from(range(size))
    found = reachable(size, as_edges(sorted(entailed)))
    assert {(one, other) for one, other in np.argwhere(found).tolist()} == {
        (one, other) for one in range(size) for other in {one, *nx.descendants(graph, one)}
    }
