"""What the metric nli must make of samples of the symbolic world, by brute force (methods, sections 2 and 5)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import networkx as nx

from tests.fakes.answers import expected_score
from tests.fakes.facts import extract, normalise, rate, relate, revise, summarise

Sample = Mapping[str, Any]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Options:
    """What a job does with a world: the judge that the server is, and the job's settings.

    `top` is how many alternatives of a rating are asked for, None where the digits themselves count. `read` is what
    the parsers make of an item of a list.
    """

    judge: str = "closed"
    top: int | None = 10
    relevance: float = 3.5
    unit_types: tuple[str, ...] = ("Fact", "Claim")
    summarise: bool = True
    read: Callable[[str], str] = str.strip


@dataclass(frozen=True)
class Atom:
    """An atom of a sample.

    One that is `kept` passed from its `sources` or was said by the response. One that is not was rated too low in all
    of them, or is of another unit type.
    """

    text: str
    origin: str
    sources: tuple[str, ...]
    kept: bool


@dataclass(frozen=True)
class ExpectedStatement:
    """A statement of the contexts; `members` in order of first appearance, those of contexts first."""

    text: str
    covered: bool
    in_basis: bool
    sources: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True)
class Expected:
    """What must come of a sample: relations by (premise text, hypothesis text), None where unjudged.

    Statements and atoms are in order of first appearance, atoms of unit types that are not wanted after the others.
    `score` is of what was judged, `bounds` are its (low, high).
    """

    atoms: tuple[Atom, ...] = ()
    statements: tuple[ExpectedStatement, ...] = ()
    relations: Mapping[Pair, str | None] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None

    @property
    def status(self) -> str:
        """`no_statements`, `partial` where a relation is missing, else `ok`."""
        if not self.statements:
            return "no_statements"
        return "partial" if None in self.relations.values() else "ok"

    @property
    def context_atoms(self) -> int:
        """C: how many nodes passed from a context."""
        return sum(atom.kept and bool(atom.sources) for atom in self.atoms)

    @property
    def response_atoms(self) -> int:
        """R: how many other nodes there are."""
        return sum(atom.kept and not atom.sources for atom in self.atoms)

    @property
    def pairs(self) -> int:
        """How many ordered pairs there are to judge: 2 R C + C (C - 1)."""
        return len(self.relations)

    @property
    def covered(self) -> int:
        """How many statements the response covers."""
        return sum(statement.covered for statement in self.statements)

    @property
    def uncovered(self) -> int:
        """How many it does not cover."""
        return len(self.statements) - self.covered

    @property
    def score(self) -> float | None:
        """The share covered; None without statements."""
        return self.covered / len(self.statements) if self.statements else None


@dataclass
class _Node:
    position: int
    context_texts: list[str] = field(default_factory=list)
    response_texts: list[str] = field(default_factory=list)
    found_in: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    wanted: bool = True

    @property
    def text(self) -> str:
        """The most frequent verbatim form in the contexts, else in the response; ties by first appearance."""
        texts = self.context_texts or self.response_texts
        return max(dict.fromkeys(texts), key=texts.count)

    @property
    def frequency(self) -> int:
        return len(self.context_texts) + len(self.response_texts)

    @property
    def kept(self) -> bool:
        return self.wanted and bool(self.sources or self.response_texts)

    def to_atom(self) -> Atom:
        sources = self.sources if self.kept else self.found_in
        origin = "response" if not sources else "both" if self.response_texts else "context"
        return Atom(self.text, origin, tuple(sources), self.kept)


class _Graph:
    """Nodes by text, the edges between them, what the response reaches, and the classes that hold a context node."""

    def __init__(self, nodes: Sequence[_Node], edges: Iterable[Pair]) -> None:
        self.edges = nx.DiGraph(edges)
        self.edges.add_nodes_from(node.text for node in nodes)
        said = {node.text for node in nodes if node.response_texts}
        self.reached = said.union(*(nx.descendants(self.edges, text) for text in said))
        classes = [[n for n in nodes if n.text in texts] for texts in nx.strongly_connected_components(self.edges)]
        self.classes = sorted((c for c in classes if any(n.sources for n in c)), key=lambda c: c[0].position)
        self.missing = {node.text for members in self.classes for node in members} - self.reached

    def count_classes(self, wanted: Container[str]) -> int:
        """How many classes hold a context node of which the text is wanted."""
        return sum(any(node.sources and node.text in wanted for node in members) for members in self.classes)


def expected_nli(sample: Sample, options: Options, answered: Mapping[Pair, str | None] | None = None) -> Expected:
    """The atoms, relations, statements and bounds of a sample, and with them its counts, score and status.

    A node is what is equal by `normalise`. It has the sources whose own rating passed, and its texts and frequency by
    every occurrence of a kept unit type. Without contexts, or with none that has a summary, nothing is asked.
    `answered` has the pairs of texts that were not answered as by the judge, None where by nobody.
    """
    nodes = _read(sample, options)[0]
    kept = [node for node in nodes if node.kept]
    pairs = [(a.text, b.text) for a, b in permutations(kept, 2) if a.sources or b.sources]
    relations = {pair: (answered or {}).get(pair, relate(*pair, options.judge)) for pair in pairs}
    lower = _Graph(kept, [pair for pair in pairs if relations[pair] == "entailment"])
    upper = _Graph(kept, [pair for pair in pairs if relations[pair] in ("entailment", None)])
    atoms = tuple(node.to_atom() for node in [*nodes, *_others(sample, options, nodes)])
    statements = tuple(_statement(members, lower) for members in lower.classes)
    return Expected(atoms, statements, relations, _bounds(lower, upper) if statements else None)


def _statement(members: Sequence[_Node], graph: _Graph) -> ExpectedStatement:
    of_contexts = [node for node in members if node.sources]
    representative = max(of_contexts, key=lambda node: node.frequency)
    texts = {node.text for node in members}
    is_missing = texts <= graph.missing
    is_first = not any((nx.ancestors(graph.edges, text) - texts) & graph.missing for text in texts)
    return ExpectedStatement(
        text=representative.text,
        covered=not is_missing,
        in_basis=is_missing and is_first,
        sources=tuple({source: None for node in of_contexts for source in node.sources}),
        members=tuple(node.text for node in sorted(members, key=lambda node: not node.sources)),
    )


def _bounds(lower: _Graph, upper: _Graph) -> tuple[float, float]:
    least, most = upper.count_classes(lower.reached), lower.count_classes(upper.reached)
    fewest, all_missing = upper.count_classes(upper.missing), lower.count_classes(lower.missing)
    return least / (least + all_missing), most / (most + fewest)


def payloads(sample: Sample, options: Options) -> list[dict[str, Any]]:
    """What a sample asks for: stage and variables of every request, repetitions included."""
    relations = expected_nli(sample, options).relations
    pairs = [{"stage": "classify_relation", "premise": one, "hypothesis": other} for one, other in relations]
    return [*_read(sample, options)[1], *pairs]


def count_requests(samples: Sequence[Sample], options: Options) -> Counter[str]:
    """How many distinct requests the samples need, by stage."""
    asked = {json.dumps(payload, sort_keys=True) for sample in samples for payload in payloads(sample, options)}
    return Counter(json.loads(payload)["stage"] for payload in asked)


def contexts_of(sample: Sample) -> dict[str, str]:
    """The contexts by id; those that are strings are numbered from 1."""
    given = enumerate(sample["contexts"], start=1)
    return {
        str(number) if isinstance(context, str) else context["id"]: context
        if isinstance(context, str)
        else context["text"]
        for number, context in given
    }


def _read(sample: Sample, options: Options) -> tuple[list[_Node], list[dict[str, Any]]]:
    """The nodes in order of first appearance, contexts before the response, and what was asked for them."""
    asked: list[dict[str, Any]] = []
    if options.summarise:
        of_query = {"stage": "summarise_context", "query": sample["query"]}
        asked += [{**of_query, "text": text} for text in contexts_of(sample).values()]
    nodes: dict[str, _Node] = {}
    for name, text in _passages(sample, options):
        atoms = _atoms(text, options, asked)
        if name is None:
            for atom in atoms:
                nodes.setdefault(normalise(atom), _Node(len(nodes))).response_texts.append(atom)
            continue
        for atom, passed in _rate(sample["query"], atoms, options, asked):
            node = nodes.setdefault(normalise(atom), _Node(len(nodes)))
            _add_context(node, atom, name)
            if passed and name not in node.sources:
                node.sources.append(name)
    return list(nodes.values()), asked


def _passages(sample: Sample, options: Options) -> list[tuple[str | None, str]]:
    """The texts that have atoms, by context id, last that of the response (None); none where no context is left."""
    texts = contexts_of(sample)
    if options.summarise:
        texts = {name: summary for name, text in texts.items() if (summary := summarise(text)) is not None}
    passages = [*texts.items(), (None, sample["response"])] if texts else []
    return [(name, text) for name, text in passages if text.strip()]


def _others(sample: Sample, options: Options, nodes: Sequence[_Node]) -> list[_Node]:
    """The units of types that are not wanted, unless a node is equal to them."""
    known, others = {normalise(node.text) for node in nodes}, dict[str, _Node]()
    for name, text in _passages(sample, options):
        for unit, kind in extract(text):
            if kind in options.unit_types or normalise(unit) in known:
                continue
            other = others.setdefault(normalise(unit), _Node(len(others), wanted=False))
            if name is None:
                other.response_texts.append(options.read(unit))
            else:
                _add_context(other, options.read(unit), name)
    return list(others.values())


def _add_context(node: _Node, text: str, name: str) -> None:
    node.context_texts.append(text)
    if name not in node.found_in:
        node.found_in.append(name)


def _atoms(text: str, options: Options, asked: list[dict[str, Any]]) -> list[str]:
    asked.append({"stage": "extract_atoms", "text": text})
    units = [options.read(unit) for unit, kind in extract(text) if kind in options.unit_types]
    if not units:
        return []
    asked.append({"stage": "revise_atoms", "text": text, "statements": units})
    return [options.read(atom) for atom in revise(text, units)]


def _rate(query: str, atoms: list[str], options: Options, asked: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    if not atoms:
        return []
    asked.append({"stage": "rate_relevance", "query": query, "statements": atoms})
    scores = [expected_score(odds, next(iter(odds)), options.top) for odds in rate(query, atoms)]
    return [(atom, score >= options.relevance) for atom, score in zip(atoms, scores, strict=True)]
