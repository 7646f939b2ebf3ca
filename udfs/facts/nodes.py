"""The nodes of a sample's fact graph: atoms, questions and answers (Dejl et al. 2025; methods, sections 3 and 5)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import chain, combinations, islice, product
from typing import Any

import pyarrow as pa

from untold.udfs.llm.keys import canonical_json
from untold.udfs.quantities import compare_quantities, is_plain_quantity
from untold.udfs.texts import compatible

# Pairs as languages set them: English, German (both ways around), French, Swedish, and the backticks of code.
_QUOTES = frozenset({'""', "''", "“”", "‘’", "„“", "‚‘", "«»", "»«", "‹›", "””", "’’", "„”", "``"})
_FULL_STOPS = ".。।۔"

ANSWER_FORM = "Q: %s A: %s"
"""How statements show an answer together with its question."""

SOURCE_TYPE = pa.struct([pa.field("position", pa.int32()), pa.field("id", pa.string())])
NODE_TYPE = pa.struct(
    [
        pa.field("atom_id", pa.string()),
        pa.field("node", pa.int64()),
        pa.field("question", pa.string()),
        pa.field("text", pa.string()),
        pa.field("context", pa.bool_()),
        pa.field("response", pa.bool_()),
        pa.field("frequency", pa.int64()),
        pa.field("origin", pa.string()),
        pa.field("sources", pa.list_(SOURCE_TYPE)),
        pa.field("unit_type", pa.string()),
        pa.field("rating", pa.float64()),
        pa.field("kept", pa.bool_()),
    ]
)
SAMPLE_NODES = pa.schema(
    [
        pa.field("sample_id", pa.string()),
        pa.field("atoms", pa.list_(NODE_TYPE)),
        pa.field("contexts", pa.int64()),
        pa.field("responses", pa.int64()),
    ]
)


def normalise(text: str) -> str:
    """What texts are compared by: NFKC, single spaces, without outer quotes and final full stop, case folded.

    Two texts that differ in no more are one node, without a model being asked.

    >>> normalise(" “The  Seine.” "), normalise("THE SEINE")
    ('the seine', 'the seine')
    """
    plain = " ".join(compatible(text).split())
    stopped = _without_stop(plain)
    bare = _without_quotes(stopped)
    # A full stop goes once, outside of the quotes or within.
    if bare != stopped and stopped == plain:
        bare = _without_stop(bare)
    # Last, as it may lengthen a text: "ß" becomes "ss".
    return bare.casefold()


def _without_stop(text: str) -> str:
    """The text without one full stop, of any script, at its end."""
    return text[:-1].rstrip() if text[-1:] in _FULL_STOPS else text


def _without_quotes(text: str) -> str:
    """The text without one pair of quotes around it."""
    return text[1:-1].strip() if len(text) > 2 and text[0] + text[-1] in _QUOTES else text


@dataclass
class Node:
    """An atom, or an answer to a question, and where it occurs.

    It passes from a context, or from the response, where its own rating there is high enough. `wanted`: whether what
    is of its unit type goes on at all.
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
        """Adds an occurrence: in the context at that position, or in the response, which has none."""
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
        """Whether it is in the graph."""
        return self.wanted and bool(self.passed or self.response_passed)

    @cached_property
    def text(self) -> str:
        """Its most frequent form, among the contexts' where there are any, so that no response changes it."""
        return (self.in_contexts or self.in_response).most_common(1)[0][0]

    def to_row(self, atom_id: str, number: int | None) -> dict[str, Any]:
        """A value of `NODE_TYPE`."""
        # Where it is in the graph, only by where it passed; what did not pass is shown with all its places.
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
    """The row of `SAMPLE_NODES` of a sample, and the nodes of its graph in their order.

    These come first among `atoms`: the `contexts` with a context source, then the `responses` others, each in order of
    first appearance; after them, with a null node, what did not pass, and `others`.
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


# 128 bits, as the keys of requests have.
_KEY_BYTES = 16

SAMPLE_ATOMS = SAMPLE_NODES.append(pa.field("texts", pa.list_(pa.string()))).append(
    pa.field("contexts_key", pa.string())
)


def gather_atoms(
    batches: Iterator[pa.RecordBatch], *, metric: str, unit_types: tuple[str, ...], threshold: float
) -> Iterator[pa.RecordBatch]:
    """The atoms of samples, for `mapInArrow`: one row of `SAMPLE_ATOMS` a sample.

    In: sample_id; passages list<struct<position int32 (null for the response), context_id, units list<struct<text,
    unit_type>>, statements list<string>, ratings list<double>>>, the contexts in order, then the response. `units` are
    what was extracted, `statements` what became of those of `unit_types`, `ratings` null for the response.
    Out: atoms, the nodes of the graph first: the `contexts` with a context source, then the `responses` others, each in
    order of first appearance; after them, with a null node, what was rated below `threshold` or is of another type.
    `texts` are those of the nodes; `contexts_key` hashes the texts of the nodes with a context source.
    """
    for batch in batches:
        rows = [_gather(row["sample_id"], metric, row["passages"], unit_types, threshold) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=SAMPLE_ATOMS)


def _gather(
    sample_id: str, metric: str, passages: Sequence[Mapping[str, Any]], unit_types: tuple[str, ...], threshold: float
) -> dict[str, Any]:
    """The row of `SAMPLE_ATOMS` of one sample."""
    nodes: dict[str, Node] = {}
    for passage in passages:
        _add_statements(nodes, passage, unit_types, threshold)
    # After all statements: a unit that another passage states as one that goes on is that node, and no other.
    others: dict[str, Node] = {}
    for passage in passages:
        _add_other_units(others, nodes, passage, unit_types)
    row, kept = number_nodes(sample_id, metric, nodes.values(), list(others.values()))
    texts = [node.text for node in kept]
    return {**row, "texts": texts, "contexts_key": _hash_texts(texts[: row["contexts"]])}


def _add_statements(
    nodes: dict[str, Node], passage: Mapping[str, Any], unit_types: tuple[str, ...], threshold: float
) -> None:
    """Adds what became of a passage's units; statements of the response have no rating, and all pass."""
    statements = passage["statements"] or []
    units = [unit for unit in passage["units"] or [] if unit["unit_type"] in unit_types]
    types = _types_of(statements, units)
    position, context_id = passage["position"], passage["context_id"]
    ratings = passage["ratings"] if position is not None else [None] * len(statements)
    # Strict: statements and ratings of one passage come from two stages, and a shift would rate the wrong ones.
    for text, unit_type, rating in zip(statements, types, ratings or [], strict=True):
        node = nodes.setdefault(normalise(text), Node(unit_type))
        node.add(text, position, context_id, rating, passes=rating is None or rating >= threshold)


def _types_of(statements: Sequence[str], units: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """The unit type of each revised statement: by its text, by its place if none was split, else null if they vary."""
    by_text = {normalise(unit["text"]): unit["unit_type"] for unit in units}
    kinds = {unit["unit_type"] for unit in units}
    common = kinds.pop() if len(kinds) == 1 else None
    placed = [unit["unit_type"] for unit in units] if len(units) == len(statements) else [common] * len(statements)
    return [by_text.get(normalise(text), kind) for text, kind in zip(statements, placed, strict=True)]


def _add_other_units(
    others: dict[str, Node], nodes: Mapping[str, Node], passage: Mapping[str, Any], unit_types: tuple[str, ...]
) -> None:
    """Adds the units of types that do not go on: they are shown in `atoms`, and never asked about."""
    for unit in passage["units"] or []:
        key = normalise(unit["text"])
        if unit["unit_type"] in unit_types or key in nodes:
            continue
        node = others.setdefault(key, Node(unit["unit_type"], wanted=False))
        node.add(unit["text"], passage["position"], passage["context_id"], None, passes=False)


def _hash_texts(texts: Iterable[str]) -> str:
    """32 hex characters over texts in their order, which is part of the key: pairs are named by places."""
    return blake2b(canonical_json(list(texts)).encode("utf-8"), digest_size=_KEY_BYTES).hexdigest()


# Pairs grow with the square of the answers: a batch of bounded rows keeps one sample from filling a worker.
BATCH_ROWS = 20_000

SAMPLE_QUESTIONS = pa.schema(
    [
        pa.field("sample_id", pa.string()),
        pa.field("query", pa.string()),
        pa.field("questions", pa.list_(pa.string())),
    ]
)
PAIRS = pa.schema(
    [
        pa.field("sample_id", pa.string()),
        pa.field("source", pa.int64()),
        pa.field("target", pa.int64()),
        pa.field("question", pa.string()),
        pa.field("first", pa.string()),
        pa.field("second", pa.string()),
        pa.field("head", pa.int64()),
        pa.field("settled", pa.string()),
    ]
)
_SETTLED = {"equal": "equivalent", "first_larger": "contradictory", "second_larger": "contradictory"}


def gather_questions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The questions mined for a sample, each once, for `mapInArrow`: rows of `SAMPLE_QUESTIONS`.

    In: sample_id, query, passages list<struct<..., questions list<string>>>, the contexts in order, then the response.
    Of those that are equal after normalisation the first stays.
    """
    for batch in batches:
        rows = [{**row, "questions": _distinct(row["passages"])} for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(
            [{name: row[name] for name in SAMPLE_QUESTIONS.names} for row in rows], schema=SAMPLE_QUESTIONS
        )


def _distinct(passages: Iterable[Mapping[str, Any]]) -> list[str]:
    """The questions of the passages, each once, by the form that comes first."""
    found: dict[str, str] = {}
    for question in chain.from_iterable(passage["questions"] or [] for passage in passages):
        found.setdefault(normalise(question), question)
    return list(found.values())


def gather_answers(batches: Iterator[pa.RecordBatch], *, metric: str, threshold: float) -> Iterator[pa.RecordBatch]:
    """The answers of samples, for `mapInArrow`: one row of `SAMPLE_NODES` a sample (methods, section 3).

    In: sample_id; questions list<string>; passages list<struct<position int32 (null for the response), context_id,
    answers list<list<string>>, confidences list<list<double>>>>, the contexts in order, then the response; a list of
    answers a question. A node is a question with what is one answer after normalisation. It passes from a passage
    where its own confidence there is at least `threshold`, the response's too.
    """
    for batch in batches:
        rows = [
            _gather_answers(row["sample_id"], metric, row["questions"], row["passages"], threshold)
            for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=SAMPLE_NODES)


def _gather_answers(
    sample_id: str, metric: str, questions: Sequence[str], passages: Sequence[Mapping[str, Any]], threshold: float
) -> dict[str, Any]:
    """The row of `SAMPLE_NODES` of one sample."""
    nodes: dict[tuple[str, str], Node] = {}
    for passage in passages:
        for question, text, confidence in _answers_of(questions, passage):
            # One text may answer two questions, and says something else each time.
            node = nodes.setdefault((question, normalise(text)), Node(question=question))
            passes = confidence >= threshold
            node.add(text, passage["position"], passage["context_id"], confidence, passes=passes)
    return number_nodes(sample_id, metric, nodes.values())[0]


def _answers_of(questions: Sequence[str], passage: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(question, answer, confidence) of a passage; nothing where it could not be asked."""
    if passage["answers"] is None:
        return
    for question, answers, confidences in zip(questions, passage["answers"], passage["confidences"], strict=True):
        for text, confidence in zip(answers, confidences, strict=True):
            yield question, text, confidence


def pair_answers(batches: Iterator[pa.RecordBatch], *, resolve: bool) -> Iterator[pa.RecordBatch]:
    """The pairs of answers to compare, for `mapInArrow`: rows of `PAIRS` in bounded batches (methods, section 3).

    In: sample_id; nodes list<struct<node, question, text, context>>, those with a context source first. Out: each
    unordered pair of answers to one question once, of two contexts or of context and response; `source` and `first`
    are of the answer that comes first in code point order. `head` is the answer in whose list the pair belongs: the
    response's, else the first, so that lists of contexts are the same for all responses. With `resolve`, `settled` is
    the relation of two plain quantities that can be compared, which no model needs to be asked for.
    """
    for batch in batches:
        rows = (_pair(sample["sample_id"], *pair, resolve) for sample in batch.to_pylist() for pair in _pairs(sample))
        while some := list(islice(rows, BATCH_ROWS)):
            columns = zip(*some, strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, kind.type) for column, kind in zip(columns, PAIRS, strict=True)], schema=PAIRS
            )


def _pairs(sample: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The pairs of nodes with one question: context with context, then context with response."""
    by_question: dict[str, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for node in sample["nodes"]:
        by_question[node["question"]][not node["context"]].append(node)
    for from_contexts, from_response in by_question.values():
        yield from combinations(from_contexts, 2)
        yield from product(from_contexts, from_response)


def _pair(sample_id: str, one: Mapping[str, Any], other: Mapping[str, Any], resolve: bool) -> tuple[Any, ...]:
    """The row of `PAIRS` of two nodes."""
    # Whichever node comes first in a sample, two answers make one request, and so are asked once in all samples.
    first, second = sorted((one, other), key=lambda node: str(node["text"]))
    texts = first["text"], second["text"]
    head = first if one["context"] and other["context"] else other
    settled = _settle(*texts) if resolve else None
    return sample_id, first["node"], second["node"], first["question"], *texts, head["node"], settled


def _settle(first: str, second: str) -> str | None:
    """What two plain quantities are to each other, None where that is not known without the model.

    >>> _settle("5 km", "5,000 m"), _settle("5 km", "far")
    ('equivalent', None)
    """
    if not (is_plain_quantity(first) and is_plain_quantity(second)):
        return None
    return _SETTLED.get(compare_quantities(first, second).outcome)


SIDES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("statement", pa.int64()),
        ("text", pa.string()),
        ("sources", pa.list_(pa.string())),
        ("place", pa.int64()),
        ("covered", pa.bool_()),
    ]
)


def find_sides(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The sides of conflicts, for `mapInArrow`: rows of `SIDES`, the sides of the n-th conflict 2n and 2n + 1.

    In: sample_id; context_ids list<string>; conflicts list<struct<first, second: struct<text, sources list<int>>>>,
    sources counted from 1; statements list<struct<text, covered>>. `place` is that of the statement with an equal text,
    from 1, and `covered` what that is; both are null where there is none.
    """
    for batch in batches:
        rows = [side for row in batch.to_pylist() for side in _sides_of(row)]
        yield pa.RecordBatch.from_pylist(rows, schema=SIDES)


def _sides_of(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
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
