"""The expected results of qa for samples of the symbolic world, by brute force (methods, sections 3 and 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from tests.fakes.answers import expected_score
from tests.fakes.expected import (
    FactGraph,
    Node,
    Pair,
    Sample,
    Verdict,
    conclude,
    count_distinct,
    passages,
    summaries_of,
)
from tests.fakes.facts import DURATION, LENGTHS, Odds, normalise
from tests.fakes.questions import (
    RELATION_OF_OUTCOME,
    Rated,
    answer,
    compare_lengths,
    first_of_equals,
    mine,
    quantities_of,
    refine,
    relate_answers,
)

Payload = dict[str, Any]
Comparison = tuple[str, str, str]


@dataclass(frozen=True)
class Options:
    """The options of a job in a world: the judge of the server, and the settings of the job.

    `questions` and `quantity_tool` are settings of the metric. `top` is the number of requested alternatives of a
    rating, None for plain digits. `read` applies the changes of the parsers to a question or an answer.
    """

    judge: str = "closed"
    questions: str = "all"
    quantity_tool: str = "tool"
    top: int | None = 10
    relevance: float = 3.5
    confidence: float = 2.0
    summarise: bool = True
    read: Callable[[str], str] = str.strip

    def expect(self, odds: Odds) -> float:
        """Return the rating for these odds."""
        return expected_score(odds, next(iter(odds)), self.top)


@dataclass(frozen=True)
class QaAtom:
    """An answer of a sample.

    A `kept` answer passed in its `sources` or in the response. Other answers have a low rating everywhere. `rating` is
    the highest rating.
    """

    question: str
    text: str
    origin: str
    sources: tuple[str, ...]
    rating: float
    kept: bool


@dataclass(frozen=True)
class ExpectedQa(Verdict[QaAtom, Comparison]):
    """The expected qa result of a sample: relations by (question, first text, second text)."""


@dataclass
class _Node(Node):
    question: str = ""
    ratings: list[float] = field(default_factory=list)
    said: bool = False

    @property
    def label(self) -> str:
        return f"Q: {self.question} A: {self.text}"

    @property
    def kept(self) -> bool:
        return bool(self.sources) or self.said

    @property
    def is_said(self) -> bool:
        return self.said

    def to_row(self) -> QaAtom:
        sources, said = self.shown_sources, self.said if self.kept else bool(self.response_texts)
        origin = "response" if not sources else "both" if said else "context"
        return QaAtom(self.question, self.text, origin, tuple(sources), max(self.ratings), self.kept)


def expected_qa(
    sample: Sample, options: Options, answered: Mapping[Comparison, str | None] | None = None
) -> ExpectedQa:
    """Return the expected answers, relations, statements and bounds of a sample, with counts, score and status.

    A node is an equal answer to an equal question, by `normalise`. Its sources are the contexts with a passing rating,
    and its texts and frequency include every occurrence. `answered` has the comparisons with another result than the
    judge's, None for a lost one.
    """
    nodes = _read(sample, options)[0]
    kept = [node for node in nodes if node.kept]
    relations: dict[Comparison, str | None] = {}
    judged: list[Pair] = []
    unjudged: list[Pair] = []
    against: list[Pair] = []
    for first, second in _pairs(kept):
        comparison = (first.question, first.text, second.text)
        relation = (answered or {}).get(comparison, relation_of(comparison, options))
        relations[comparison] = relation
        (unjudged if relation is None else judged).extend(_edges(first.label, second.label, relation))
        against += [(first.label, second.label)] if relation == "contradictory" else []
    graphs = FactGraph(kept, judged), FactGraph(kept, [*judged, *unjudged])
    atoms = tuple(node.to_row() for node in nodes)
    return ExpectedQa(atoms, relations=relations, **conclude(sample, *graphs, against))


def _pairs(kept: Iterable[_Node]) -> Iterator[tuple[_Node, _Node]]:
    """Yield the pairs to judge: answers to one question, at least one from a context, in code point order."""
    for one, other in combinations(kept, 2):
        if one.question == other.question and (one.sources or other.sources):
            yield (one, other) if one.text < other.text else (other, one)


def _edges(first: str, second: str, relation: str | None) -> list[Pair]:
    """Return the entailments of a relation. An unjudged pair may be equivalent."""
    forwards = [(first, second)] if relation in ("equivalent", "first_implies_second", None) else []
    backwards = [(second, first)] if relation in ("equivalent", "second_implies_first", None) else []
    return [*forwards, *backwards]


def relation_of(comparison: Comparison, options: Options) -> str:
    """Return the relation of two answers: by the tool, if it is offered or decides them, otherwise by the judge."""
    quantities = quantities_of(*comparison)
    if quantities and (options.quantity_tool == "tool" or is_settled(comparison, options)):
        return RELATION_OF_OUTCOME[compare_lengths(**quantities)]
    return relate_answers(*comparison, options.judge)


def is_settled(comparison: Comparison, options: Options) -> bool:
    """Return True if two answers are plain quantities that need no model."""
    plain = [text.removesuffix(".") for text in comparison[1:]]
    if options.quantity_tool != "resolve" or not all(text in (*LENGTHS, DURATION) for text in plain):
        return False
    return compare_lengths(*plain) != "incomparable"


def payloads(sample: Sample, options: Options) -> list[Payload]:
    """Return the stage and variables of every request of a sample, with duplicates and without tool turns."""
    compared = [one for one in expected_qa(sample, options).relations if not is_settled(one, options)]
    names = ("question", "first", "second")
    pairs = [{"stage": "compare_answers", **dict(zip(names, each, strict=True))} for each in compared]
    return [*_read(sample, options)[1], *pairs]


def count_requests(samples: Sequence[Sample], options: Options) -> Counter[str]:
    """Return the number of distinct requests of the samples, by stage."""
    return count_distinct(payload for sample in samples for payload in payloads(sample, options))


def count_tool_turns(samples: Sequence[Sample], options: Options) -> int:
    """Return the number of additional requests with the results of the tool."""
    if options.quantity_tool != "tool":
        return 0
    compared = {one for sample in samples for one in expected_qa(sample, options).relations}
    return sum(quantities_of(*comparison) is not None for comparison in compared)


def _read(sample: Sample, options: Options) -> tuple[list[_Node], list[Payload]]:
    """Return the nodes in order of first appearance, contexts before the response, and the requests for them."""
    asked = summaries_of(sample) if options.summarise else []
    texts = passages(sample, options.summarise)
    questions = _questions(sample["query"], texts, options, asked)
    nodes: dict[Pair, _Node] = {}
    for name, text in texts if questions else []:
        asked.append({"stage": "answer_questions", "text": text, "questions": questions})
        for question, rated in zip(questions, answer(text, questions), strict=True):
            for said, rating in _rate(rated, options).items():
                node = nodes.setdefault((question, normalise(said)), _Node(len(nodes), question=question))
                _add(node, name, said, rating, rating >= options.confidence)
    return list(nodes.values()), asked


def _add(node: _Node, name: str | None, said: str, rating: float, passed: bool) -> None:
    node.ratings.append(rating)
    if name is None:
        node.response_texts.append(said)
        node.said = passed
        return
    node.add_context(said, name)
    if passed:
        node.sources.append(name)


def _questions(
    query: str, texts: Sequence[tuple[str | None, str]], options: Options, asked: list[Payload]
) -> list[str]:
    """Return the refined questions with enough relevance."""
    mined: dict[str, str] = {}
    for name, text in texts:
        if name is not None or options.questions == "all":
            asked.append({"stage": "mine_questions", "query": query, "text": text})
            for question in map(options.read, mine(query, text)):
                mined.setdefault(normalise(question), question)
    if not mined:
        return []
    questions = list(mined.values())
    asked.append({"stage": "refine_questions", "query": query, "questions": questions})
    refined = _rate(refine(query, questions), options)
    return [question for question, rating in refined.items() if rating >= options.relevance]


def _rate(rated: Sequence[Rated], options: Options) -> dict[str, float]:
    """Return texts and ratings, as the parsers read them."""
    return {options.read(text): options.expect(odds) for text, odds in first_of_equals(rated)}
