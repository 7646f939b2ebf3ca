"""The expected results of importance for samples of the symbolic world, by brute force ("Beyond Precision", 2026).

The texts of facts and the chunks for claims are arguments, so the function works for any source. Shares are exact
fractions that are rounded once. Classes come from SciPy's complete linkage over a square of cosines.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, permutations
from typing import Any

import networkx as nx
import numpy as np
from rapidfuzz.distance import Indel
from scipy.cluster.hierarchy import fcluster, linkage

from tests.fakes.answers import expected_score
from tests.fakes.claims import claims_of, verifiable_claims
from tests.fakes.expected_icat import Chunk, distinct
from tests.fakes.facts import normalise, relate, sentences
from tests.fakes.importance import covering, facts_of, importance, verify
from tests.fakes.lookups import vector_of

Bounds = tuple[float | None, float | None, float | None]
# The function words in the language of the world
_FUNCTION_WORDS = frozenset(["was", "in", "on", "the", "of", "is", "has", "to", "at"])
_WORD = re.compile(r"[\w']+")
NOTHING: Bounds = (None, None, None)


@dataclass(frozen=True)
class Options:
    """The options of a job in a world: the judge of the server, and the settings of the job.

    `top` is the number of requested alternatives of a rating, None for plain digits. `unverified(claim)` and
    `unchecked(fact)` return True for a lost verdict.
    """

    judge: str = "closed"
    source: str = "contexts"
    top: int | None = 10
    duplicates: str = "words"
    duplicate_distance: float = 0.1
    max_facts: int = 5000
    batch: int = 50
    relevance_weight: float = 0.5
    min_weight: float | None = None
    top_k: int | None = None
    # None shows a claim all chunks
    evidence_chunks: int | None = 5
    ks: tuple[int, ...] = (5, 10, 20, 50)
    # Extract the claims of each sentence from its window
    windows: bool = False
    # Selects the shown chunks if there are more. The default uses products in double precision
    nearest: Callable[[str, Sequence[Chunk], int], Sequence[Chunk]] | None = None
    unverified: Callable[[str], bool] = lambda claim: False
    unchecked: Callable[[str], bool] = lambda fact: False


@dataclass(frozen=True)
class ExpectedFact:
    """A fact, in order of first appearance. `covered` is None if it is unjudged or not required."""

    text: str
    reference_id: str | None
    sources: tuple[str, ...] | None
    members: tuple[str, ...] | None
    relevance: float | None
    salience: float | None
    weight: float
    rank: int
    kept: bool
    covered: bool | None
    claims: tuple[int, ...] | None


@dataclass(frozen=True)
class ExpectedClaim:
    """A claim, its verdict (None if unjudged or not to be judged) and its chunks, in order."""

    text: str
    verdict: str | None
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class ExpectedImportance:
    """The expected importance result of a sample. Measures by name: value, low, high."""

    facts: tuple[ExpectedFact, ...]
    claims: tuple[ExpectedClaim, ...]
    measures: Mapping[str, Bounds]
    status: str
    left_out: int
    # Covered, uncovered, unjudged
    counts: tuple[int, int, int]
    # The number of prompts for ratings
    prompts: int


@dataclass(frozen=True)
class _Fact:
    text: str
    sources: tuple[str, ...] | None
    members: tuple[str, ...] | None
    weight: float | None = None
    reference_id: str | None = None


def expected_importance(
    sample: Mapping[str, Any], texts: Sequence[tuple[str, str]], chunks: Sequence[Chunk], options: Options
) -> ExpectedImportance:
    """Compute the result by brute force. texts: source and text of facts. chunks: the chunks for claims.

    For contexts: without texts, no claim is requested unless references are given. Without contexts, no claim is judged
    if references are given.
    """
    given = _given(sample.get("references"))
    facts, left_out = (given, 0) if given else _mined(texts, options)
    rated, prompts = _rated(sample["query"], facts, options)
    searched = options.source != "contexts"
    is_read = searched or bool(given or texts) or not sample["response"].strip()
    judged = searched or not given or bool(sample.get("contexts"))
    read = claims_in_windows if options.windows else claims_of
    said = distinct([claim.strip() for claim in read(sample["response"])]) if is_read else []
    claims = [_verified(text, chunks, options) if judged else ExpectedClaim(text, None, ()) for text in said]
    checked = [_checked(fact, said, options) for fact in rated]
    measures = _measures(claims if judged else (), said if is_read else None, checked, options)
    if any(fact.weight is not None for fact in given):
        measures |= {name: NOTHING for name in measures if name.startswith(("recall_relevance", "recall_salience"))}
    kept = [fact for fact in checked if fact.kept]
    unjudged = kept_unjudged = sum(fact.covered is None for fact in kept)
    unjudged += sum(claim.verdict is None for claim in claims) if judged else 0
    empty = not any(fact.weight for fact in kept)
    status = "no_statements" if empty else "partial" if unjudged else "ok"
    covered = sum(fact.covered is True for fact in kept)
    counts = covered, len(kept) - covered - kept_unjudged, unjudged
    return ExpectedImportance(tuple(checked), tuple(claims), measures, status, left_out, counts, prompts)


def claims_in_windows(text: str) -> list[str]:
    """Return the verifiable claims of each sentence, read with three sentences before it and one after it."""
    cut = sentences(text)
    return [
        claim
        for at, sentence in enumerate(cut)
        for claim in verifiable_claims(sentence, " ".join(cut[max(0, at - 3) : at]), " ".join(cut[at + 1 : at + 2]))
    ]


def _given(references: Any) -> list[_Fact]:
    if isinstance(references, str):
        references = [references]
    found = []
    for number, one in enumerate(references or (), start=1):
        item = {"text": one} if isinstance(one, str) else one
        found.append(_Fact(item["text"], None, None, item.get("weight"), str(item.get("id") or number)))
    return found


def _mined(texts: Sequence[tuple[str, str]], options: Options) -> tuple[list[_Fact], int]:
    """Return the facts of the texts in order of first appearance, with equal and near facts merged."""
    forms: dict[str, list[str]] = {}
    sources: dict[str, list[int]] = {}
    for place, (_, text) in enumerate(texts):
        for fact in facts_of(text):
            forms.setdefault(normalise(fact), []).append(fact.strip())
            sources.setdefault(normalise(fact), []).append(place)
    nodes = list(forms)[: options.max_facts]
    # The most frequent form, the first on a tie
    labels = {node: max(dict.fromkeys(forms[node]), key=forms[node].count) for node in nodes}
    merged = []
    for members, head in _classes([labels[node] for node in nodes], [len(forms[node]) for node in nodes], options):
        places = sorted({place for at in members for place in sources[nodes[at]]})
        named = tuple(dict.fromkeys(texts[place][0] for place in places))
        merged.append(_Fact(labels[nodes[head]], named, tuple(labels[nodes[at]] for at in members)))
    return merged, len(forms) - len(nodes)


def _classes(texts: Sequence[str], frequencies: Sequence[int], options: Options) -> list[tuple[list[int], int]]:
    """Return the members of each class, and its representative."""
    everyone = range(len(texts))
    if options.duplicates == "none" or len(texts) < 2:
        return [([at], at) for at in everyone]
    vectors = _unit_vectors(texts)
    cosines = vectors @ vectors.T
    if options.duplicates == "entailed":
        graph = nx.DiGraph()
        graph.add_nodes_from(everyone)
        for one, other in permutations(everyone, 2):
            if (
                round(1 - cosines[one][other], 6) <= 0.25
                and relate(texts[one], texts[other], options.judge) == "entailment"
            ):
                graph.add_edge(one, other)
        classes = sorted(sorted(members) for members in nx.strongly_connected_components(graph))
        return [(members, max(members, key=lambda at: (frequencies[at], -at))) for members in classes]
    apart = [
        2.0
        if options.duplicates == "words" and not _say_same_words(texts[one], texts[other])
        else round(1 - cosines[one][other], 6)
        for one, other in combinations(everyone, 2)
    ]
    labels = list(fcluster(linkage(np.array(apart), "complete"), options.duplicate_distance, "distance"))
    classes = [[at for at in everyone if labels[at] == label] for label in dict.fromkeys(labels)]

    def nearness(at: int, members: Sequence[int]) -> float:
        return round(sum(cosines[at][other] for other in members if other != at), 6)

    return [(members, max(members, key=lambda at: (nearness(at, members), -at))) for members in classes]


def _unit_vectors(texts: Sequence[str]) -> Any:
    """Return vectors of length 1 in single precision, as they are stored. Products use double precision."""
    vectors = np.array([vector_of(text) for text in texts])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32).astype(np.float64)


def nearest(claim: str, chunks: Sequence[Chunk], most: int) -> list[Chunk]:
    """Return the chunks by the cosines of the server's vectors, to 6 decimals, then by their ids."""
    cosines = _unit_vectors([chunk.text for chunk in chunks]) @ _unit_vectors([claim])[0]
    order = sorted(range(len(chunks)), key=lambda at: (-round(float(cosines[at]), 6), chunks[at].chunk_id))
    return [chunks[at] for at in order[:most]]


def _say_same_words(first: str, second: str) -> bool:
    one, other = (
        set(_WORD.findall(unicodedata.normalize("NFKC", text).casefold())) - _FUNCTION_WORDS for text in (first, second)
    )
    left, right = sorted(one - other), sorted(other - one)
    if len(left) != len(right) or any(sign.isdigit() for word in (*left, *right) for sign in word):
        return False
    return any(
        all(Indel.normalized_similarity(a, b) >= 0.8 for a, b in zip(left, order, strict=True))
        for order in permutations(right)
    )


def _rated(query: str, facts: Sequence[_Fact], options: Options) -> tuple[list[ExpectedFact], int]:
    """Return the facts with ratings, weights and ranks, before checks, and the number of prompts."""
    unrated = [fact.text for fact in facts if fact.weight is None]
    prompts = -(-len(unrated) // options.batch)
    scores: list[tuple[float, float]] = []
    for batch in np.array_split(np.arange(len(unrated)), prompts) if prompts else []:
        for odds in importance(query, [unrated[at] for at in batch]):
            relevance, salience = (expected_score(one, next(iter(one)), options.top) for one in odds)
            scores.append((relevance, salience))
    left = iter(scores)
    found = []
    for fact in facts:
        relevance, salience = (None, None) if fact.weight is not None else next(left)
        weight = fact.weight if relevance is None or salience is None else _weigh(relevance, salience, options)
        assert weight is not None
        found.append((fact, relevance, salience, weight))
    order = sorted(range(len(found)), key=lambda at: (-round(found[at][3], 9), -round(found[at][1] or -1.0, 9), at))
    ranks = {at: rank for rank, at in enumerate(order, start=1)}
    kept = [at for at in order if options.min_weight is None or round(found[at][3], 9) >= round(options.min_weight, 9)]
    wanted = set(kept[: options.top_k])
    facts_found = [
        ExpectedFact(
            one.text, one.reference_id, one.sources, one.members, relevance, salience, weight, ranks[at],
            at in wanted, None, None,
        )
        for at, (one, relevance, salience, weight) in enumerate(found)
    ]  # fmt: skip
    return facts_found, prompts


def _weigh(relevance: float, salience: float, options: Options) -> float:
    a = options.relevance_weight
    return a * (relevance - 1) / 4 + (1 - a) * (salience - 1) / 4


def _verified(claim: str, chunks: Sequence[Chunk], options: Options) -> ExpectedClaim:
    most = options.evidence_chunks or len(chunks)
    shown = (options.nearest or nearest)(claim, chunks, most) if len(chunks) > most else list(chunks)
    verdict = verify(claim, [chunk.text for chunk in shown], options.judge) if shown else "not_supported"
    lost = bool(shown) and options.unverified(claim)
    return ExpectedClaim(claim, None if lost else verdict, tuple(chunk.chunk_id for chunk in shown))


def _checked(fact: ExpectedFact, claims: Sequence[str], options: Options) -> ExpectedFact:
    if not fact.kept:
        return fact
    if claims and options.unchecked(fact.text):
        return fact
    numbers = tuple(covering(fact.text, claims, options.judge)) if claims else ()
    return ExpectedFact(**{**vars(fact), "covered": bool(numbers), "claims": numbers})


def _measures(
    claims: Sequence[ExpectedClaim], said: Sequence[str] | None, facts: Sequence[ExpectedFact], options: Options
) -> dict[str, Bounds]:
    kept = sorted((fact for fact in facts if fact.kept), key=lambda fact: fact.rank)
    verdicts = [claim.verdict for claim in claims]
    measures: dict[str, Bounds] = {}
    for name, label in (
        ("precision", "supported"),
        ("contradiction_rate", "contradicted"),
        ("not_supported_rate", "not_supported"),
    ):
        measures[name] = _share([None if one is None else one == label for one in verdicts])
    recall = measures["recall"] = _share([fact.covered for fact in kept])
    measures["weighted_recall"] = _share([fact.covered for fact in kept], [fact.weight for fact in kept])
    measures["f1"] = tuple(_f1(p, r) for p, r in zip(measures["precision"], recall, strict=True))  # type: ignore[assignment]
    for name, key in (
        ("recall", lambda fact: (fact.rank,)),
        ("recall_relevance", lambda fact: (-round(fact.relevance or 0, 9), -round(fact.salience or 0, 9))),
        ("recall_salience", lambda fact: (-round(fact.salience or 0, 9), -round(fact.relevance or 0, 9))),
    ):
        ordered = sorted((fact for fact in facts if fact.kept), key=key)
        for k in options.ks:
            measures[f"{name}@{k}"] = _share([fact.covered for fact in ordered[:k]])
    measures["claims"] = NOTHING if said is None else (float(len(said)),) * 3
    measures["facts"] = (float(len(kept)),) * 3
    return measures


def _share(flags: Sequence[bool | None], weights: Sequence[float] | None = None) -> Bounds:
    sized = [(flag, Fraction(1.0 if weights is None else weights[at])) for at, flag in enumerate(flags)]
    true, false, unjudged = (sum((w for flag, w in sized if flag is kind), Fraction(0)) for kind in (True, False, None))
    whole = true + false + unjudged
    if not whole:
        return NOTHING
    value = float(true / (true + false)) if true + false else None
    return value, float(true / whole), float((true + unjudged) / whole)


def _f1(precision: float | None, recall: float | None) -> float | None:
    if precision is None or recall is None:
        return None
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
