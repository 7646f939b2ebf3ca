"""What the metric nli must make of samples of the symbolic world, by brute force (methods, sections 2 and 5)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations, product
from typing import Any, Generic, TypeVar

import networkx as nx

from tests.fakes.answers import expected_score
from tests.fakes.facts import extract, normalise, rate, relate, revise, summarise

Sample = Mapping[str, Any]
Pair = tuple[str, str]
AtomType = TypeVar("AtomType")
PairType = TypeVar("PairType")


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
    """A statement of the contexts.

    `sources` are in the order of the contexts, `members` in that of first appearance, those of contexts first.
    """

    text: str
    covered: bool
    in_basis: bool
    sources: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True)
class ExpectedConflict:
    """Two statements of which members contradict each other, the one that appears first before the other."""

    first: ExpectedStatement
    second: ExpectedStatement

    @property
    def coverage(self) -> str:
        """Which of them the response conveys."""
        said = [name for name in ("first", "second") if getattr(self, name).covered]
        return said[0] if len(said) == 1 else "both" if said else "neither"


@dataclass(frozen=True)
class Verdict(Generic[AtomType, PairType]):
    """What must come of a sample: atoms, statements in order of first appearance, relations, None where unjudged.

    `score` is of what was judged, `bounds` are its (low, high). `conflicts` are in the order of their statements.
    """

    atoms: tuple[AtomType, ...] = ()
    statements: tuple[ExpectedStatement, ...] = ()
    relations: Mapping[PairType, str | None] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    conflicts: tuple[ExpectedConflict, ...] = ()

    @property
    def measures(self) -> dict[str, float | None]:
        """By name those of conflicts; shares are None without any."""
        coverage = [conflict.coverage for conflict in self.conflicts]
        both, neither, total = coverage.count("both"), coverage.count("neither"), len(coverage)
        shares = (both / total, (total - both - neither) / total) if total else (None, None)
        return {"conflicts": total, "conflict_coverage": shares[0], "one_sided": shares[1]}

    @property
    def status(self) -> str:
        """`no_statements`, `partial` where a relation is missing, else `ok`."""
        if not self.statements:
            return "no_statements"
        return "partial" if None in self.relations.values() else "ok"

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


@dataclass(frozen=True)
class Expected(Verdict[Atom, Pair]):
    """What nli must make of a sample: relations by (premise text, hypothesis text).

    Atoms are in order of first appearance, those of unit types that are not wanted after the others.
    """

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


@dataclass
class Node:
    """What is equal after normalisation, where it was found, and the `sources` whose rating passed.

    `position` is its place in order of first appearance.
    """

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
    def label(self) -> str:
        """What a statement is named after it."""
        return self.text

    @property
    def frequency(self) -> int:
        return len(self.context_texts) + len(self.response_texts)

    @property
    def kept(self) -> bool:
        return self.wanted and bool(self.sources or self.response_texts)

    @property
    def is_said(self) -> bool:
        """Whether the response says it."""
        return bool(self.response_texts)

    @property
    def shown_sources(self) -> list[str]:
        """The sources that passed; of one that is not kept, all that it was found in."""
        return self.sources if self.kept else self.found_in

    def add_context(self, text: str, name: str) -> None:
        """An occurrence in a context, whether it passes or not."""
        self.context_texts.append(text)
        if name not in self.found_in:
            self.found_in.append(name)

    def to_atom(self) -> Atom:
        """It as a row."""
        sources = self.shown_sources
        origin = "response" if not sources else "both" if self.is_said else "context"
        return Atom(self.text, origin, tuple(sources), self.kept)


class FactGraph:
    """Nodes by label, the edges between them, what the response reaches, and the classes that hold a context node."""

    def __init__(self, nodes: Sequence[Node], edges: Iterable[Pair]) -> None:
        self.edges = nx.DiGraph(edges)
        self.edges.add_nodes_from(node.label for node in nodes)
        said = {node.label for node in nodes if node.is_said}
        self.reached = said.union(*(nx.descendants(self.edges, label) for label in said))
        classes = [[n for n in nodes if n.label in labels] for labels in nx.strongly_connected_components(self.edges)]
        stated = [members for members in classes if any(node.sources for node in members)]
        self.classes = sorted(stated, key=lambda members: next(node.position for node in members if node.sources))
        self.missing = {node.label for members in self.classes for node in members} - self.reached

    def count_classes(self, wanted: Container[str]) -> int:
        """How many classes hold a context node of which the label is wanted."""
        return sum(any(node.sources and node.label in wanted for node in members) for members in self.classes)


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
    lower = FactGraph(kept, [pair for pair in pairs if relations[pair] == "entailment"])
    upper = FactGraph(kept, [pair for pair in pairs if relations[pair] in ("entailment", None)])
    atoms = tuple(node.to_atom() for node in [*nodes, *_others(sample, options, nodes)])
    against = {pair for pair, relation in relations.items() if relation == "contradiction"}
    return Expected(atoms, relations=relations, **conclude(sample, lower, upper, against))


def conclude(sample: Sample, lower: FactGraph, upper: FactGraph, against: Container[Pair]) -> dict[str, Any]:
    """The statements and conflicts of the graph without the unjudged edges, and bounds by it and that with all of them.

    against: the pairs of labels that contradict each other.
    """
    statements = tuple(_statement(members, lower, list(contexts_of(sample))) for members in lower.classes)
    conflicts = tuple(
        ExpectedConflict(statements[first], statements[second])
        for first, second in combinations(range(len(statements)), 2)
        if _are_against(lower.classes[first], lower.classes[second], against)
    )
    bounds = _bounds(lower, upper) if statements else None
    return {"statements": statements, "bounds": bounds, "conflicts": conflicts}


def _are_against(first: Sequence[Node], second: Sequence[Node], against: Container[Pair]) -> bool:
    """Whether a member of one contradicts one of the other."""
    pairs = [(one.label, other.label) for one, other in product(first, second)]
    return any(pair in against or pair[::-1] in against for pair in pairs)


def _statement(members: Sequence[Node], graph: FactGraph, contexts: Sequence[str]) -> ExpectedStatement:
    of_contexts = [node for node in members if node.sources]
    sources = {source for node in of_contexts for source in node.sources}
    representative = max(of_contexts, key=lambda node: node.frequency)
    labels = {node.label for node in members}
    is_missing = labels <= graph.missing
    is_first = not any((nx.ancestors(graph.edges, label) - labels) & graph.missing for label in labels)
    return ExpectedStatement(
        text=representative.label,
        covered=not is_missing,
        in_basis=is_missing and is_first,
        sources=tuple(source for source in contexts if source in sources),
        members=tuple(node.label for node in sorted(members, key=lambda node: not node.sources)),
    )


def _bounds(lower: FactGraph, upper: FactGraph) -> tuple[float, float]:
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
    return count_distinct(payload for sample in samples for payload in payloads(sample, options))


def count_distinct(asked: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many different payloads there are, by stage."""
    distinct = {json.dumps(payload, sort_keys=True) for payload in asked}
    return Counter(json.loads(payload)["stage"] for payload in distinct)


def contexts_of(sample: Sample) -> dict[str, str]:
    """The contexts by id; those that are strings are numbered from 1."""
    given = enumerate(sample["contexts"], start=1)
    return {
        str(number) if isinstance(context, str) else context["id"]: context
        if isinstance(context, str)
        else context["text"]
        for number, context in given
    }


def summaries_of(sample: Sample) -> list[dict[str, Any]]:
    """What is asked to condense the contexts."""
    of_query = {"stage": "summarise_context", "query": sample["query"]}
    return [{**of_query, "text": text} for text in contexts_of(sample).values()]


def _read(sample: Sample, options: Options) -> tuple[list[Node], list[dict[str, Any]]]:
    """The nodes in order of first appearance, contexts before the response, and what was asked for them."""
    asked = summaries_of(sample) if options.summarise else []
    nodes: dict[str, Node] = {}
    for name, text in passages(sample, options.summarise):
        atoms = _atoms(text, options, asked)
        if name is None:
            for atom in atoms:
                nodes.setdefault(normalise(atom), Node(len(nodes))).response_texts.append(atom)
            continue
        for atom, passed in _rate(sample["query"], atoms, options, asked):
            node = nodes.setdefault(normalise(atom), Node(len(nodes)))
            node.add_context(atom, name)
            if passed and name not in node.sources:
                node.sources.append(name)
    return list(nodes.values()), asked


def passages(sample: Sample, summarised: bool) -> list[tuple[str | None, str]]:
    """The texts that have atoms, by context id, last that of the response (None); none where no context is left."""
    texts = contexts_of(sample)
    if summarised:
        texts = {name: summary for name, text in texts.items() if (summary := summarise(text)) is not None}
    found = [*texts.items(), (None, sample["response"])] if texts else []
    return [(name, text) for name, text in found if text.strip()]


def _others(sample: Sample, options: Options, nodes: Sequence[Node]) -> list[Node]:
    """The units of types that are not wanted, unless a node is equal to them."""
    known, others = {normalise(node.text) for node in nodes}, dict[str, Node]()
    for name, text in passages(sample, options.summarise):
        for unit, kind in extract(text):
            if kind in options.unit_types or normalise(unit) in known:
                continue
            other = others.setdefault(normalise(unit), Node(len(others), wanted=False))
            if name is None:
                other.response_texts.append(options.read(unit))
            else:
                other.add_context(options.read(unit), name)
    return list(others.values())


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
