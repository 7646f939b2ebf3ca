"""The order of the contexts only changes ties. The facts, their weights, their ranks and the measures are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.udfs.facts.test_reference_facts import CLASSES, PASSAGES, RATING, VECTORS, one
from untold.udfs.facts.importance_measures import CONCLUDED, RANKED, RANKINGS, conclude_batches, rank_batches
from untold.udfs.facts.reference_facts import FACTS, gather_facts, merge_classes, merge_near

# The names in the statements, and the number of forms of a statement. The forms have the same words and are
# near-duplicates
NAMES, FORMS, KS = ("ada", "bob", "cleo", "dora", "emil", "fay"), 3, (1, 2, 4)
STATEMENTS = len(NAMES)
GATHERED = pa.schema(
    [
        ("sample_id", pa.string()),
        RANKED.field("facts"),
        ("rated", pa.bool_()),
        ("claims", pa.list_(pa.struct([("position", pa.int64()), ("verdict", pa.string())]))),
        ("judged", pa.bool_()),
        ("checked", CONCLUDED.field("coverage").type),
    ]
)
TO_RANK = FACTS.append(pa.field("ratings", pa.list_(RATING)))
# The rating or weight that orders the facts, and the measure that uses this order
KEYS = {
    "recall": ("weight", "relevance"),
    "recall_relevance": ("relevance", "salience"),
    "recall_salience": ("salience", "relevance"),
}
Fact = Mapping[str, Any]


@dataclass(frozen=True)
class Stated:
    """Contexts as lists of statements in a form, and the ratings and the coverage of each statement."""

    contexts: Sequence[Sequence[tuple[int, int]]]
    relevance: Sequence[float]
    salience: Sequence[float]
    covered: Sequence[bool | None]


RATINGS = st.lists(st.sampled_from([1.0, 2.5, 4.0]), min_size=STATEMENTS, max_size=STATEMENTS)
FORM = st.tuples(st.integers(0, STATEMENTS - 1), st.integers(0, 2 * FORMS - 1))
STATED = st.builds(
    Stated,
    contexts=st.lists(st.lists(FORM, max_size=4), min_size=1, max_size=5),
    relevance=RATINGS,
    salience=RATINGS,
    covered=st.lists(st.sampled_from([True, False, None]), min_size=STATEMENTS, max_size=STATEMENTS),
)


def text_of(statement: int, form: int) -> str:
    """Return the text of a statement. The forms are the orders of the words, with and without a capital letter."""
    words, first = [NAMES[statement], "sails", "slowly"], form % FORMS
    text = " ".join([*words[first:], *words[:first]])
    return text.capitalize() if form >= FORMS else text


def statement_of(text: str) -> int:
    """Return the number of the statement in a text."""
    return next(number for number, name in enumerate(NAMES) if name in text.casefold())


def vector_of(text: str) -> list[float]:
    """Return the vector of a text. Different statements are orthogonal, and the forms of a statement are within .1."""
    form = next(form for form in range(FORMS) if text_of(statement_of(text), form) == text.casefold())
    vector = np.zeros(STATEMENTS + FORMS)
    vector[statement_of(text)] = 1.0
    vector[STATEMENTS + form] = 0.1 + 0.05 * form + 0.01 * statement_of(text)
    found: list[float] = (vector / np.linalg.norm(vector)).tolist()
    return found


def facts_of(stated: Stated, contexts: Iterable[int], duplicates: str) -> list[Fact]:
    """Return the facts of these contexts in their order, merged, with ratings and ranks."""
    passages = [
        {
            "place": place,
            "passage": 0,
            "source": f"c{context}",
            "facts": [text_of(*fact) for fact in stated.contexts[context]],
        }
        for place, context in enumerate(contexts)
    ]
    found = one(gather_facts, {"owner": "o", "passages": passages}, PASSAGES, most=99)
    texts = [fact["text"] for fact in found["found"]]
    if duplicates == "entailed":
        merged = one(merge_classes, {**found, "classes": _classes(texts)}, CLASSES)
    else:
        vectors = [vector_of(text) for text in texts]
        merged = one(merge_near, {**found, "vectors": vectors}, VECTORS, method=duplicates, threshold=0.1)
    numbers = [statement_of(fact["text"]) for fact in merged["facts"]]
    ratings = {name: [getattr(stated, name)[number] for number in numbers] for name in ("relevance", "salience")}
    row = {"owner": "o", "facts": merged["facts"], "ratings": [{"batch": 0, **ratings}]}
    ranked = one(rank_batches, row, TO_RANK, relevance_weight=0.5, min_weight=None, top=None)
    return list(ranked["facts"])


def _classes(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Each form entails the other forms of its statement, and the first form is the representative."""
    numbers = [statement_of(text) for text in texts]
    return [
        {"node": node, "statement": number, "representative": numbers.index(number) == node}
        for node, number in enumerate(numbers)
    ]


def measures_of(stated: Stated, facts: Sequence[Fact]) -> dict[str, tuple[float | None, ...]]:
    checked = [
        {"number": fact["number"], "covered": stated.covered[statement_of(fact["text"])], "claims": []}
        for fact in facts
    ]
    row = {"sample_id": "s", "facts": facts, "rated": True, "claims": [], "judged": True, "checked": checked}
    concluded = one(conclude_batches, row, GATHERED, ks=KS)
    return {each["measure"]: (each["value"], each["value_low"], each["value_high"]) for each in concluded["measures"]}


def keys_of(facts: Sequence[Fact], measure: str) -> list[tuple[float, ...]]:
    """Return the keys that rank the facts, in the order of the facts for a measure at k."""
    return [tuple(fact[name] for name in KEYS[measure]) for fact in sorted(facts, key=itemgetter(RANKINGS[measure]))]


def contents(facts: Iterable[Fact]) -> Counter[tuple[Any, ...]]:
    """Return the statement, the statements and sources of the members, and the weight of each fact."""
    return Counter(
        (
            *(statement_of(fact["text"]), frozenset(map(statement_of, fact["members"])), frozenset(fact["sources"])),
            *(len(fact["members"]), fact["weight"], fact["relevance"], fact["salience"]),
        )
        for fact in facts
    )


@pytest.mark.parametrize("duplicates", ["words", "distance", "entailed"])
@given(STATED, st.randoms())
def test_the_order_of_contexts_changes_only_ties(duplicates: str, stated: Stated, random: Random) -> None:
    order = list(range(len(stated.contexts)))
    facts = facts_of(stated, order, duplicates)
    random.shuffle(order)
    others = facts_of(stated, order, duplicates)
    assert contents(facts) == contents(others)
    measures, of_others = measures_of(stated, facts), measures_of(stated, others)
    tied = set()
    for name in KEYS:
        keys = keys_of(facts, name)
        assert keys == keys_of(others, name)
        tied |= {f"{name}@{k}" for k in KS if k < len(keys) and keys[k - 1] == keys[k]}
    assert {name for name in measures if measures[name] != of_others[name]} <= tied
