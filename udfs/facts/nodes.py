"""The nodes of a sample's fact graph: atoms, questions and answers (Dejl et al. 2025; methods, sections 3 and 5)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import chain, combinations, product
from typing import Any

from untold.udfs.arrow import FLAG, FLOAT, NUMBER, POSITION, TEXT, Row, columns, over_rows, struct
from untold.udfs.llm.keys import canonical_json
from untold.udfs.quantities import compare_quantities, is_plain_quantity
from untold.udfs.texts import compatible

# Pairs of quotes in English, German (both directions), French and Swedish, and the backticks of code
_QUOTES = frozenset({'""', "''", "“”", "‘’", "„“", "‚‘", "«»", "»«", "‹›", "””", "’’", "„”", "``"})
_FULL_STOPS = ".。।۔"

ANSWER_FORM = "Q: %s A: %s"
"""The format of an answer with its question in statements."""

SOURCE_TYPE = struct(position=POSITION, id=TEXT)
NODE_TYPE = struct(
    struct(atom_id=TEXT, node=NUMBER, question=TEXT, text=TEXT, context=FLAG, response=FLAG, frequency=NUMBER),
    struct(origin=TEXT, sources=[SOURCE_TYPE], unit_type=TEXT, rating=FLOAT, kept=FLAG),
)
SAMPLE_NODES = columns(sample_id=TEXT, atoms=[NODE_TYPE], contexts=NUMBER, responses=NUMBER)


def normalise(text: str) -> str:
    """Return a text for comparison: NFKC, single spaces, no outer quotes, no final full stop, case folded.

    Texts with the same result are one node, without a request.

    >>> normalise(" “The  Seine.” "), normalise("THE SEINE")
    ('the seine', 'the seine')
    """
    plain = " ".join(compatible(text).split())
    stopped = _without_stop(plain)
    bare = _without_quotes(stopped)
    # One full stop is removed, outside or inside of the quotes
    if bare != stopped and stopped == plain:
        bare = _without_stop(bare)
    # Last, because it may lengthen a text: "ß" becomes "ss"
    return bare.casefold()


def _without_stop(text: str) -> str:
    """Return the text without a final full stop of any script."""
    return text[:-1].rstrip() if text[-1:] in _FULL_STOPS else text


def _without_quotes(text: str) -> str:
    """Return the text without one pair of outer quotes."""
    return text[1:-1].strip() if len(text) > 2 and text[0] + text[-1] in _QUOTES else text


@dataclass
class Node:
    """An atom, or an answer to a question, and its occurrences.

    An occurrence in a context or in the response passes if its rating there is high enough. `wanted`: the metric uses
    units of this type.
    """

    unit_type: str | None = None
    question: str | None = None
    wanted: bool = True
    in_contexts: Counter[str] = field(default_factory=Counter)
    in_response: Counter[str] = field(default_factory=Counter)
    sources: dict[int, str] = field(default_factory=dict)
    passed: dict[int, str] = field(default_factory=dict)
    response_passed: bool = False
    ratings: list[float] = field(default_factory=list)

    def add(
        self, text: str, position: int | None, context_id: str | None, rating: float | None, *, passes: bool
    ) -> None:
        """Add an occurrence in the context at this position, or in the response (no position)."""
        self.ratings += [] if rating is None else [rating]
        if position is None:
            self.in_response[text] += 1
            self.response_passed |= passes
            return
        self.in_contexts[text] += 1
        self.sources[position] = context_id or ""
        if passes:
            self.passed[position] = context_id or ""

    @property
    def kept(self) -> bool:
        """Return True if the node is in the graph."""
        return self.wanted and bool(self.passed or self.response_passed)

    @cached_property
    def text(self) -> str:
        """Return the most frequent form, from the contexts if there are any, so that responses do not change it."""
        return (self.in_contexts or self.in_response).most_common(1)[0][0]

    def to_row(self, atom_id: str, number: int | None) -> dict[str, Any]:
        """Return the node as a value of `NODE_TYPE`."""
        # A node in the graph has only the passages where it passed. Other nodes have all passages
        sources = self.passed if self.kept else self.sources
        context, response = bool(sources), self.response_passed if self.kept else bool(self.in_response)
        return {
            "atom_id": atom_id,
            "node": number,
            "question": self.question,
            "text": self.text,
            "context": context,
            "response": response,
            "frequency": self.in_contexts.total() + self.in_response.total(),
            "origin": "both" if context and response else "response" if response else "context",
            "sources": [{"position": position, "id": source} for position, source in sorted(sources.items())],
            "unit_type": self.unit_type,
            "rating": max(self.ratings, default=None),
            "kept": self.kept,
        }


def number_nodes(
    sample_id: str, metric: str, found: Iterable[Node], others: Sequence[Node] = ()
) -> tuple[dict[str, Any], list[Node]]:
    """Return the row of `SAMPLE_NODES` of a sample, and the nodes of its graph in order.

    `atoms` begins with these nodes: `contexts` nodes from contexts, then `responses` others, each in order of first
    appearance. Rejected nodes and `others` follow, with a null node.
    """
    nodes = list(found)
    from_contexts = [node for node in nodes if node.kept and node.passed]
    from_response = [node for node in nodes if node.kept and not node.passed]
    kept = [*from_contexts, *from_response]
    dropped = [*(node for node in nodes if not node.kept), *others]
    numbered = [*enumerate(kept), *((None, node) for node in dropped)]
    rows = [
        node.to_row(f"{sample_id}:{metric}:{place}", number) for place, (number, node) in enumerate(numbered, start=1)
    ]
    row = {"sample_id": sample_id, "atoms": rows, "contexts": len(from_contexts), "responses": len(from_response)}
    return row, kept


# 128 bits, as in the keys of requests
_KEY_BYTES = 16

SAMPLE_ATOMS = columns(SAMPLE_NODES, texts=[TEXT], contexts_key=TEXT)


@over_rows(SAMPLE_ATOMS)
def gather_atoms(row: Row, *, metric: str, unit_types: tuple[str, ...], threshold: float) -> Row:
    """Return the atoms of a sample: the columns of `SAMPLE_ATOMS`.

    row: sample_id; passages list<struct<position int32 (null for the response), context_id, units list<struct<text,
    unit_type>>, statements list<string>, ratings list<double>>>, the contexts in order, then the response. `units` are
    the extracted units, `statements` the revised units of `unit_types`, and `ratings` are null for the response.
    Result: atoms, the nodes of the graph first: `contexts` nodes from contexts, then `responses` others, each in order
    of first appearance. Units with a rating below `threshold` or of another type follow, with a null node. `texts` are
    the texts of the nodes. `contexts_key` hashes the texts of the nodes from contexts.
    """
    nodes: dict[str, Node] = {}
    for passage in row["passages"]:
        _add_statements(nodes, passage, unit_types, threshold)
    # After all statements: a unit that is a statement of another passage belongs to its node
    others: dict[str, Node] = {}
    for passage in row["passages"]:
        _add_other_units(others, nodes, passage, unit_types)
    found, kept = number_nodes(row["sample_id"], metric, nodes.values(), list(others.values()))
    texts = [node.text for node in kept]
    return {**found, "texts": texts, "contexts_key": _hash_texts(texts[: found["contexts"]])}


def _add_statements(nodes: dict[str, Node], passage: Row, unit_types: tuple[str, ...], threshold: float) -> None:
    """Add the revised units of a passage. Statements of the response have no rating and always pass."""
    statements = passage["statements"] or []
    units = [unit for unit in passage["units"] or [] if unit["unit_type"] in unit_types]
    types = _types_of(statements, units)
    position, context_id = passage["position"], passage["context_id"]
    ratings = passage["ratings"] if position is not None else [None] * len(statements)
    # Strict, because statements and ratings come from two stages, and a shift would assign wrong ratings
    for text, unit_type, rating in zip(statements, types, ratings or [], strict=True):
        node = nodes.setdefault(normalise(text), Node(unit_type))
        node.add(text, position, context_id, rating, passes=rating is None or rating >= threshold)


def _types_of(statements: Sequence[str], units: Sequence[Row]) -> list[str | None]:
    """Return the unit type of each statement: by text, by position if none was split, else null if types vary."""
    by_text = {normalise(unit["text"]): unit["unit_type"] for unit in units}
    kinds = {unit["unit_type"] for unit in units}
    common = kinds.pop() if len(kinds) == 1 else None
    placed = [unit["unit_type"] for unit in units] if len(units) == len(statements) else [common] * len(statements)
    return [by_text.get(normalise(text), kind) for text, kind in zip(statements, placed, strict=True)]


def _add_other_units(
    others: dict[str, Node], nodes: Mapping[str, Node], passage: Row, unit_types: tuple[str, ...]
) -> None:
    """Add the units of other types. They appear in `atoms`, and no request uses them."""
    for unit in passage["units"] or []:
        key = normalise(unit["text"])
        if unit["unit_type"] in unit_types or key in nodes:
            continue
        node = others.setdefault(key, Node(unit["unit_type"], wanted=False))
        node.add(unit["text"], passage["position"], passage["context_id"], None, passes=False)


def _hash_texts(texts: Iterable[str]) -> str:
    """Return 32 hex characters for texts in order. The order matters, because positions identify pairs."""
    return blake2b(canonical_json(list(texts)).encode("utf-8"), digest_size=_KEY_BYTES).hexdigest()


SAMPLE_QUESTIONS = columns(sample_id=TEXT, query=TEXT, questions=[TEXT])
PAIRS = columns(
    sample_id=TEXT, source=NUMBER, target=NUMBER, question=TEXT, first=TEXT, second=TEXT, head=NUMBER, settled=TEXT
)
_SETTLED = {"equal": "equivalent", "first_larger": "contradictory", "second_larger": "contradictory"}


@over_rows(SAMPLE_QUESTIONS)
def gather_questions(row: Row) -> Row:
    """Return the distinct questions of a sample: the columns of `SAMPLE_QUESTIONS`.

    row: sample_id, query, passages list<struct<..., questions list<string>>>, the contexts in order, then the response.
    The first of several questions that are equal after normalisation is kept.
    """
    found: dict[str, str] = {}
    for passage in row["passages"]:
        for question in passage["questions"] or ():
            found.setdefault(normalise(question), question)
    return {**row, "questions": list(found.values())}


@over_rows(SAMPLE_NODES)
def gather_answers(row: Row, *, metric: str, threshold: float) -> Row:
    """Return the answers of a sample: the columns of `SAMPLE_NODES` (methods, section 3).

    row: sample_id; questions list<string>; passages list<struct<position int32 (null for the response), context_id,
    answers list<list<string>>, confidences list<list<double>>>>, the contexts in order, then the response; one list of
    answers per question. A node is a question with an answer after normalisation. It passes from a passage, also from
    the response, if its confidence there is at least `threshold`.
    """
    nodes: dict[tuple[str, str], Node] = {}
    for passage in row["passages"]:
        for question, text, confidence in _answers_of(row["questions"], passage):
            # The same text may answer two questions, with another meaning each time
            node = nodes.setdefault((question, normalise(text)), Node(question=question))
            passes = confidence >= threshold
            node.add(text, passage["position"], passage["context_id"], confidence, passes=passes)
    return number_nodes(row["sample_id"], metric, nodes.values())[0]


def _answers_of(questions: Sequence[str], passage: Row) -> Iterator[tuple[str, str, float]]:
    """Yield (question, answer, confidence) of a passage, nothing for a missing completion."""
    if passage["answers"] is None:
        return
    for question, answers, confidences in zip(questions, passage["answers"], passage["confidences"], strict=True):
        for text, confidence in zip(answers, confidences, strict=True):
            yield question, text, confidence


@over_rows(PAIRS)
def pair_answers(row: Row, *, resolve: bool) -> Iterator[Row]:
    """Yield the pairs of answers to compare: rows of `PAIRS` (methods, section 3).

    row: sample_id; nodes list<struct<node, question, text, context>>, nodes from contexts first. Result: each unordered
    pair of answers to one question once, of two contexts or of context and response. `source` and `first` belong to the
    answer that is first in code point order. `head` is the answer whose list contains the pair: the response's answer,
    otherwise the first, so all responses share the lists of contexts. With `resolve`, `settled` is the relation of two
    plain, comparable quantities, which need no model.
    """
    by_question: dict[str, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for node in row["nodes"]:
        by_question[node["question"]][not node["context"]].append(node)
    for question, (from_contexts, from_response) in by_question.items():
        for one, other in chain(combinations(from_contexts, 2), product(from_contexts, from_response)):
            # The order does not depend on the sample, so all samples share one request per pair of answers
            first, second = sorted((one, other), key=lambda node: str(node["text"]))
            yield {
                "sample_id": row["sample_id"],
                "source": first["node"],
                "target": second["node"],
                "question": question,
                "first": first["text"],
                "second": second["text"],
                "head": (first if other["context"] else other)["node"],
                "settled": _settle(first["text"], second["text"]) if resolve else None,
            }


def _settle(first: str, second: str) -> str | None:
    """Return the relation of two plain quantities, or None if only the model can decide.

    >>> _settle("5 km", "5,000 m"), _settle("5 km", "far")
    ('equivalent', None)
    """
    if not (is_plain_quantity(first) and is_plain_quantity(second)):
        return None
    return _SETTLED.get(compare_quantities(first, second).outcome)


SIDES = columns(sample_id=TEXT, statement=NUMBER, text=TEXT, sources=[TEXT], place=NUMBER, covered=FLAG)


@over_rows(SIDES)
def find_sides(row: Row) -> Iterator[Row]:
    """Yield the sides of conflicts: rows of `SIDES`, 2n and 2n + 1 for the n-th conflict.

    row: sample_id; context_ids list<string>; conflicts list<struct<first, second: struct<text, sources list<int>>>>,
    with sources from 1; statements list<struct<text, covered>>. `place` is the position (from 1) of the statement with
    an equal text, and `covered` its coverage. Both are null if there is none.
    """
    known = {normalise(one["text"]): (place, one["covered"]) for place, one in enumerate(row["statements"], start=1)}
    sides = [conflict[name] for conflict in row["conflicts"] for name in ("first", "second")]
    for number, side in enumerate(sides):
        place, covered = known.get(normalise(side["text"]), (None, None))
        sources = [row["context_ids"][source - 1] for source in side["sources"]]
        yield {
            "sample_id": row["sample_id"],
            "statement": number,
            "text": side["text"],
            "sources": sources,
            "place": place,
            "covered": covered,
        }
