"""The symbolic world of LongRecall: the results of its judge, and completions of the server with this truth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection
from itertools import combinations
from math import hypot
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fakes.answers import find_answer
from tests.fakes.claims import claims_of
from tests.fakes.facts import JUDGES
from tests.fakes.lookups import vector_of
from tests.fakes.model_server import ModelServer
from tests.fakes.names import alias_of, misspellings, namesake_of, plain
from tests.fakes.recall import entails, extracted, is_extended, map_all, minimal_subset, propositions, resolve_all
from tests.fakes.world import worlds
from tests.fakes.world_longrecall import VARIANTS, LongRecallWorld, Saying, longrecall_worlds
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.recall.candidates import Thresholds, form_of, lexical_candidates
from untold.udfs.recall.fact_texts import Fact, match_form, shown_form
from untold.udfs.recall.segmentation import cut
from untold.udfs.stages import STAGES

WORLDS = longrecall_worlds(160)


@pytest.mark.parametrize(
    ("reference", "candidates", "subset"),
    [
        ("Ada Mill lives in Lyon.", ["Ada Mill lives in Lyon"], [1]),
        ("Ada Mill lives in France.", ["Lyon is where Ada Mill lives."], [1]),
        ("Ada Mill lives in Lyon.", ["Ada Mill lives in France."], []),
        ("Ada Mill lives in Lyon.", ["Elder Grinder lives in Lyonn."], [1]),
        ("Ada Mill lives in Lyon.", ["“Ada Mill” – lives in Lyon", "Ada Mill: lives in Lyon"], [1]),
        ("Ada Mill lives in Lyon.", ["The swimmer Ada Mill lives in Lyon."], []),
        ("The swimmer Ada Mill", ["**The Swimmer Elder Grinder** (likes tea)"], [1]),
        ("Ada Mill", ["Boris Lane knows Ada Mill.", "- [Ada Mill] likes rain"], [2]),
        ("Boris Lane", ["Boris Lane knows Ada Mill."], [1]),
        ("Ada Mill (likes tea and lives in Lyon)", ["Ada Mill likes tea.", "Well.", "ADA MILL LIVES IN LYON"], [1, 3]),
        (
            "Ada Mill likes tea and lives in Europe.",
            ["Ada Mill likes tea.", "Ada Mill: lives in Lyon and likes tea"],
            [2],
        ),
        ("Ada Mill likes tea and lives in Lyon.", ["Ada Mill likes tea.", "Ada Mills lives in Lyon."], []),
        ("Ada Mill was founded in 1912. Ada Mill likes tea.", ["Ada Mill likes tea", "1912: the founding"], []),
        ("The weather of day 3.", ["the weather of day 3", "Ada Mill likes tea."], [1]),
    ],
)
def test_candidates_together_entail_the_facts_that_they_state(
    reference: str, candidates: list[str], subset: list[int]
) -> None:
    assert minimal_subset(reference, candidates) == subset
    assert entails(reference, candidates) == bool(subset)
    assert map_all(["Nothing is known.", reference], candidates) == [[], subset]


def test_a_subset_is_the_smallest_that_entails_and_of_these_the_first() -> None:
    """Compare the result with all subsets of the sayings of a world's response."""
    for world in WORLDS[:60]:
        references, generated = _facts(world)
        for reference in references:
            subsets = [
                [number + 1 for number in some]
                for size in range(1, 3)
                for some in combinations(range(len(generated)), size)
                if entails(reference, [generated[number] for number in some])
            ]
            assert minimal_subset(reference, generated) == next(iter(subsets), [])


def test_another_form_has_the_same_meaning() -> None:
    random = Random("forms")
    for world in WORLDS:
        for saying in world.sayings:
            said = saying.sentence()
            for text in (saying.item(random), *misspellings(said), f"“{said}”", said.upper(), f"(3) {said}"):
                assert set(propositions(text)) == set(propositions(said)), text
            under_alias = Saying(alias_of(saying.subject), saying.facts, 2)
            assert set(propositions(under_alias.sentence())) == set(propositions(said))
            falsely = Saying(namesake_of(saying.subject, "painter"), saying.facts)
            assert not entails(said, [falsely.sentence(), falsely.item(random)])


def test_a_pronoun_is_the_subject_named_last() -> None:
    text = "Elder Grinder likes tea. It lives in Lyon.\n- Boris Lane\n- It owns exactly 2 boats\nIt lives in Lyon. So."
    facts = ["It lives in Lyon.", "It owns exactly 2 boats", '"it" lives in Lyon', "It rains.", "Boris Lane"]
    assert resolve_all(text, facts) == [
        "Elder Grinder lives in Lyon.",
        "Boris Lane owns exactly 2 boats",
        '"Boris Lane" lives in Lyon',
        "It rains.",
        "Boris Lane",
    ]
    assert resolve_all("It likes tea.", ["It likes tea."]) == ["It likes tea."]


def test_claims_of_the_other_metrics_do_not_change() -> None:
    texts = [sample["response"] for world in worlds(200) for sample in world.samples(2)]
    assert not any(map(is_extended, texts))
    assert [extracted(text) for text in texts] == [claims_of(text) for text in texts]
    listed = "1. Ada Mill (lives in Lyonn) 2. **The Sailor Ada Mill** 3. Elder Grinder: knows Boris Lane"
    assert extracted(listed) == [
        "Ada Mill lives in Lyon.",
        "The Sailor Ada Mill is one of them.",
        "Elder Grinder knows Boris Lane.",
    ]


def test_vectors_of_aliases_and_of_namesakes_are_near() -> None:
    said, falsely = "Ada Mill lives in Lyon.", "The sailor Ada Mill lives in Lyon."
    assert vector_of("Elder Grinder lives in Lyon.") == vector_of(said)
    assert _cosine(said, falsely) > 0.8
    assert _cosine(said, "Boris Lane was founded in 1912.") < 0.5


def _cosine(one: str, other: str) -> float:
    first, second = vector_of(one), vector_of(other)
    return sum(a * b for a, b in zip(first, second, strict=True)) / (hypot(*first) * hypot(*second))


def in_the_server(judge: str, **payload: Any) -> Any:
    """Return the result of the stage's parser for the server's completion."""
    said = find_answer(f"world_{judge}")(payload)
    return STAGES[payload["stage"]].parse(said if isinstance(said, str) else said.text, payload)


def _facts(world: LongRecallWorld) -> tuple[list[str], list[str]]:
    """Return the references as shown (a text is cut as a list) and the generated facts of a response."""
    references = world.references
    if isinstance(references, str):
        texts = [fact.text for fact in cut(references, "list", 10)]
    else:
        texts = [shown_form(_text(one)) for one in references]
    return texts, [fact.text for fact in cut(world.samples()[0]["response"], "list", 10)]


def _text(reference: str | Mapping[str, Any]) -> str:
    if isinstance(reference, str):
        return reference
    return ": ".join(part for part in (reference["anchor"], reference["text"]) if part)


@pytest.mark.parametrize("judge", JUDGES)
def test_the_server_returns_the_truth_in_readable_formats(judge: str) -> None:
    for world in longrecall_worlds(40, judge):
        references, generated = _facts(world)
        if not generated:
            continue
        for reference in references:
            for candidate in generated:
                said = in_the_server(judge, stage="match_one", reference=reference, candidate=candidate)
                assert said == {"matched": entails(reference, [candidate], judge)}
            for some in (generated, generated[:3], generated[-2:]):
                said = in_the_server(judge, stage="match_many", reference=reference, candidates=some)
                assert said == {"candidates": minimal_subset(reference, some, judge)}
        if references:
            both = {"query": world.query, "references": references, "candidates": generated}
            said = in_the_server(judge, stage="match_holistic", **both)
            assert said == {"candidates": map_all(references, generated, judge)}


@pytest.mark.parametrize("segmentation", ["list", "sentences"])
def test_the_server_resolves_the_facts_of_texts(segmentation: Any) -> None:
    changed = 0
    for world in WORLDS:
        texts = [sample["response"] for sample in world.samples(2)]
        for text in [*texts, *([world.references] if isinstance(world.references, str) else [])]:
            facts = [fact.text for fact in cut(text, segmentation, 10) if fact.free]
            if facts:
                resolved = resolve_all(text, facts)
                assert in_the_server("closed", stage="resolve_coreference", text=text, facts=facts) == {
                    "facts": resolved
                }
                changed += resolved != facts
            if text:
                assert in_the_server("closed", stage="extract_claims", text=text) == {"claims": extracted(text)}
    assert changed > 20


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(answer="world") as server:
        yield server


@pytest.mark.parametrize(
    ("variables", "row"),
    [
        ({"stage": "resolve_coreference", "text": "It is so.", "facts": ["It is so."]}, {"facts": ["It is so."]}),
        ({"stage": "match_one", "reference": "Ada Mill", "candidate": "Ada Mill likes tea."}, {"matched": True}),
        ({"stage": "match_many", "reference": "Ada Mill", "candidates": ["A", "Elder Grinder"]}, {"candidates": [2]}),
        (
            {"stage": "match_holistic", "query": "q", "references": ["A", "B"], "candidates": ["B"]},
            {"candidates": [[], [1]]},
        ),
    ],
)
def test_the_templates_of_tests_carry_the_variables(server: ModelServer, variables: dict[str, Any], row: Any) -> None:
    source = (Path(__file__).parent / "prompts" / f"{variables['stage']}.jinja").read_text(encoding="utf-8")
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
        body = {"model": "m", "messages": compile_prompt(source).messages(variables)}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        said = json.loads(connection.getresponse().read())["choices"][0]["message"]["content"]
    assert STAGES[variables["stage"]].parse(said, variables) == row


def _near(reference: str, generated: Sequence[str]) -> list[int]:
    """Return the positions of the lexical candidates."""
    forms = [form_of(Fact(text)) for text in (reference, *generated)]
    return [one.place for one in lexical_candidates(forms[:1], forms[1:], Thresholds())[0]]


def test_worlds_hold_every_case() -> None:
    counts: Counter[str] = Counter()
    for world in WORLDS:
        references, generated = _facts(world)
        counts[world.form] += 1
        counts["no references"] += not references
        counts["no response"] += not generated
        counts["references that are equal"] += len(set(map(match_form, references))) < len(references)
        for reference in references:
            subset, near = minimal_subset(reference, generated), _near(reference, generated)
            lexical = minimal_subset(reference, [generated[place] for place in near])
            counts["covered"] += bool(subset)
            counts["uncovered"] += not subset
            counts["by two facts"] += len(subset) == 2
            counts["found by words"] += bool(lexical)
            counts["found by vectors alone"] += bool(subset) and not near
            counts["found by vectors after words were rejected"] += bool(subset) and bool(near) and not lexical
            counts["one candidate"] += len(near) == 1
            counts["several candidates"] += len(near) > 1
            counts["near and false"] += bool(near) and not subset
            named = [generated[number - 1] for number in subset]
            counts["by an alias"] += any("_" not in plain(text) and _is_alias(text) for text in named)
    few = {case: count for case, count in counts.items() if count < 5}
    assert few == {}


def _is_alias(text: str) -> bool:
    return not any(fact.subject.split()[0] in text.casefold() for fact in propositions(text) if fact.subject)


def test_every_variant_of_a_saying_entails_it_or_not() -> None:
    """Test each variant by name: it always entails, never entails, or depends on the saying."""
    entailing: dict[str, set[bool]] = {name: set() for name in VARIANTS}
    random = Random("variants")
    for world in WORLDS:
        for saying in world.sayings:
            for name, variant in VARIANTS.items():
                texts = [one if isinstance(one, str) else one.sentence() for one in variant(random, saying)]
                entailing[name].add(entails(saying.sentence(), texts))
    assert {name for name, truths in entailing.items() if truths == {True}} == {
        *("same", "reordered", "apart", "alias", "misspelt")
    }
    assert {name for name, truths in entailing.items() if truths == {False}} == {"namesake", "background"}


def test_a_world_depends_only_on_its_seed() -> None:
    again = longrecall_worlds(5, first=7)
    assert [world.references for world in again] == [world.references for world in WORLDS[7:12]]
    assert [world.samples(2) for world in again] == [world.samples(2) for world in WORLDS[7:12]]
    assert WORLDS[3].samples(3)[:1] == WORLDS[3].samples(1)
