"""Questions and answers of a sample as nodes of its fact graph, pairs to compare, and listed sides of conflicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, product
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import SAMPLE_NODES, Node, normalise, number_nodes
from untold.udfs.quantities import compare_quantities, is_plain_quantity

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
            _gather(row["sample_id"], metric, row["questions"], row["passages"], threshold) for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=SAMPLE_NODES)


def _gather(
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
