"""The expected results of nli for samples of the symbolic world, by brute force (methods, sections 2 and 5)."""

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
    """The options of a job in a world: the judge of the server, and the settings of the job.

    `top` is the number of requested alternatives of a rating, None for plain digits. `read` applies the changes of the
    parsers to an item of a list.
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

    A `kept` atom passed in its `sources` or is in the response. Other atoms have a low rating in all of them, or
    another unit type.
    """

    text: str
    origin: str
    sources: tuple[str, ...]
    kept: bool


@dataclass(frozen=True)
class ExpectedStatement:
    """A statement of the contexts.

    `sources` are in the order of the contexts, and `members` in the order of appearance, members from contexts first.
    """

    text: str
    covered: bool
    in_basis: bool
    sources: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True)
class ExpectedConflict:
    """Two statements with members that contradict each other, in order of first appearance."""

    first: ExpectedStatement
    second: ExpectedStatement

    @property
    def coverage(self) -> str:
        """Return which of the statements the response conveys."""
        said = [name for name in ("first", "second") if getattr(self, name).covered]
        return said[0] if len(said) == 1 else "both" if said else "neither"


@dataclass(frozen=True)
class Verdict(Generic[AtomType, PairType]):
    """The expected result of a sample: atoms, statements in order of first appearance, and relations.

    An unjudged relation is None. `score` covers the judged part, and `bounds` are its (low, high). `conflicts` are in
    the order of their statements.
    """

    atoms: tuple[AtomType, ...] = ()
    statements: tuple[ExpectedStatement, ...] = ()
    relations: Mapping[PairType, str | None] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    conflicts: tuple[ExpectedConflict, ...] = ()

    @property
    def measures(self) -> dict[str, float | None]:
        """Return the measures of conflicts by name. Shares are None without conflicts."""
        coverage = [conflict.coverage for conflict in self.conflicts]
        both, neither, total = coverage.count("both"), coverage.count("neither"), len(coverage)
        shares = (both / total, (total - both - neither) / total) if total else (None, None)
        return {"conflicts": total, "conflict_coverage": shares[0], "one_sided": shares[1]}

    @property
    def status(self) -> str:
        """Return `no_statements`, `partial` if a relation is missing, otherwise `ok`."""
        if not self.statements:
            return "no_statements"
        return "partial" if None in self.relations.values() else "ok"

    @property
    def covered(self) -> int:
        """Return the number of covered statements."""
        return sum(statement.covered for statement in self.statements)

    @property
    def uncovered(self) -> int:
        """Return the number of uncovered statements."""
        return len(self.statements) - self.covered

    @property
    def score(self) -> float | None:
        """Return the covered share, None without statements."""
        return self.covered / len(self.statements) if self.statements else None


@dataclass(frozen=True)
class Expected(Verdict[Atom, Pair]):
    """The expected nli result of a sample: relations by (premise text, hypothesis text).

    Atoms are in order of first appearance. Atoms of unwanted unit types are last.
    """

    @property
    def context_atoms(self) -> int:
        """Return C, the number of nodes that passed from a context."""
        return sum(atom.kept and bool(atom.sources) for atom in self.atoms)

    @property
    def response_atoms(self) -> int:
        """Return R, the number of other nodes."""
        return sum(atom.kept and not atom.sources for atom in self.atoms)

    @property
    def pairs(self) -> int:
        """Return the number of ordered pairs to judge: 2 R C + C (C - 1)."""
        return len(self.relations)


@dataclass
class Node:
    """Equal texts after normalisation, with their occurrences and the `sources` with a passing rating.

    `position` is the index in order of first appearance.
    """

    position: int
    context_texts: list[str] = field(default_factory=list)
    response_texts: list[str] = field(default_factory=list)
    found_in: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    wanted: bool = True

    @property
    def text(self) -> str:
        """Return the most frequent form in the contexts, otherwise in the response, the first on a tie."""
        texts = self.context_texts or self.response_texts
        return max(dict.fromkeys(texts), key=texts.count)

    @property
    def label(self) -> str:
        """Return the name of the node's statement."""
        return self.text

    @property
    def frequency(self) -> int:
        return len(self.context_texts) + len(self.response_texts)

    @property
    def kept(self) -> bool:
        return self.wanted and bool(self.sources or self.response_texts)

    @property
    def is_said(self) -> bool:
        """Return True if the node is in the response."""
        return bool(self.response_texts)

    @property
    def shown_sources(self) -> list[str]:
        """Return the passing sources. A node that is not kept has all its sources."""
        return self.sources if self.kept else self.found_in

    def add_context(self, text: str, name: str) -> None:
        """Add an occurrence in a context, passing or not."""
        self.context_texts.append(text)
        if name not in self.found_in:
            self.found_in.append(name)

    def to_atom(self) -> Atom:
        """Return the node as an atom."""
        sources = self.shown_sources
        origin = "response" if not sources else "both" if self.is_said else "context"
        return Atom(self.text, origin, tuple(sources), self.kept)


class FactGraph:
    """Nodes by label, their edges, the nodes that the response reaches, and the classes with a context node."""

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
        """Return the number of classes with a context node whose label is wanted."""
        return sum(any(node.sources and node.label in wanted for node in members) for members in self.classes)


def expected_nli(sample: Sample, options: Options, answered: Mapping[Pair, str | None] | None = None) -> Expected:
    """Return the expected atoms, relations, statements and bounds of a sample, with counts, score and status.

    A node contains equal texts by `normalise`. Its sources are the contexts with a passing rating, and its texts and
    frequency include every occurrence of a kept unit type. Without contexts, or without summaries, there is no request.
    `answered` has the pairs of texts with another result than the judge's, None for a lost one.
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
    """Return the statements and conflicts of the graph without unjudged edges, and bounds from both graphs.

    The second graph has all unjudged edges. against: the pairs of labels that contradict each other.
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
    """Return True if a member of one contradicts a member of the other."""
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
    """Return the stage and variables of every request of a sample, with duplicates."""
    relations = expected_nli(sample, options).relations
    pairs = [{"stage": "classify_relation", "premise": one, "hypothesis": other} for one, other in relations]
    return [*_read(sample, options)[1], *pairs]


def count_requests(samples: Sequence[Sample], options: Options) -> Counter[str]:
    """Return the number of distinct requests of the samples, by stage."""
    return count_distinct(payload for sample in samples for payload in payloads(sample, options))


def count_distinct(asked: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the number of distinct payloads, by stage."""
    distinct = {json.dumps(payload, sort_keys=True) for payload in asked}
    return Counter(json.loads(payload)["stage"] for payload in distinct)


def contexts_of(sample: Sample) -> dict[str, str]:
    """Return the contexts by id. Strings are numbered from 1."""
    given = enumerate(sample["contexts"], start=1)
    return {
        str(number) if isinstance(context, str) else context["id"]: context
        if isinstance(context, str)
        else context["text"]
        for number, context in given
    }


def summaries_of(sample: Sample) -> list[dict[str, Any]]:
    """Return the requests for summaries of the contexts."""
    of_query = {"stage": "summarise_context", "query": sample["query"]}
    return [{**of_query, "text": text} for text in contexts_of(sample).values()]


def _read(sample: Sample, options: Options) -> tuple[list[Node], list[dict[str, Any]]]:
    """Return the nodes in order of first appearance, contexts before the response, and the requests for them."""
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
    """Return the texts with atoms by context id, the response (None) last. It is empty if no context is left."""
    texts = contexts_of(sample)
    if summarised:
        texts = {name: summary for name, text in texts.items() if (summary := summarise(text)) is not None}
    found = [*texts.items(), (None, sample["response"])] if texts else []
    return [(name, text) for name, text in found if text.strip()]


def _others(sample: Sample, options: Options, nodes: Sequence[Node]) -> list[Node]:
    """Return the units of unwanted types that are not equal to a node."""
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
