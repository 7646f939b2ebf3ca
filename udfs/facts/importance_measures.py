"""Measure the importance of facts and their recall by a response, and weigh statements by relevance and source.

"Beyond Precision" 2026; methods, sections 12 and 20. Of M claims S are supported, X contradicted and N not supported.
Of F facts that a response should include, C are covered. Lost judgements are unjudged: values cover the rest, and
bounds cover all their possible results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median_high

from untold.udfs.arrow import FLAG, FLOAT, NUMBER, TEXT, Row, columns, over_rows, struct
from untold.udfs.facts.aspect_coverage import (
    CONCLUSION,
    MEASURE,
    UNDEFINED,
    BoundedValue,
    conclusion,
    f_of,
    f_score,
    measure_list,
    share_of,
)
from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED

PRECISION, RECALL, WEIGHTED, F1 = "precision", "recall", "weighted_recall", "f1"
RATES = {PRECISION: SUPPORTED, "contradiction_rate": CONTRADICTED, "not_supported_rate": NOT_SUPPORTED}
CLAIMS, FACTS = "claims", "facts"
# The order of facts for each measure at k
RANKINGS = {"recall": "rank", "recall_relevance": "relevance_rank", "recall_salience": "salience_rank"}
# Decimals for the comparison of weights. Further decimals of expected scores depend on how an endpoint writes numbers
WEIGHT_DECIMALS = 9
LOWEST, HIGHEST = 1.0, 5.0


@dataclass(frozen=True)
class RatedFact:
    """A fact: its number by first appearance (from 1), its ratings (None for a given weight) and its weight.

    `rank` is by weight, and `relevance_rank` and `salience_rank` by these ratings, all from 1. `kept`: an answer should
    state the fact.
    """

    number: int
    relevance: float | None
    salience: float | None
    weight: float
    rank: int = 0
    relevance_rank: int = 0
    salience_rank: int = 0
    kept: bool = True


@dataclass(frozen=True)
class CheckedFact:
    """A fact for recall: its weight and ranks, and whether it is covered. None is unjudged."""

    weight: float
    covered: bool | None
    rank: int
    relevance_rank: int = 0
    salience_rank: int = 0


def weigh(relevance: float, salience: float, relevance_weight: float) -> float:
    """Return w = a (relevance - 1) / 4 + (1 - a) (salience - 1) / 4, from 0 to 1, for ratings from 1 to 5.

    >>> weigh(5.0, 1.0, 0.5), weigh(3.0, 2.0, 1.0)
    (0.5, 0.5)
    """
    span = HIGHEST - LOWEST
    return relevance_weight * (relevance - LOWEST) / span + (1 - relevance_weight) * (salience - LOWEST) / span


def rank_facts(facts: Sequence[RatedFact], min_weight: float | None, top: int | None) -> list[RatedFact]:
    """Return the facts in order, ranked by weight, then relevance, both descending, then by first appearance.

    The first `top` facts of at least `min_weight` are kept; None keeps all. Ranks by one rating use the other for ties.
    """
    orders = {
        "rank": _places(facts, lambda fact: (-_compared(fact.weight), -_compared(fact.relevance))),
        "relevance_rank": _places(facts, lambda fact: (-_compared(fact.relevance), -_compared(fact.salience))),
        "salience_rank": _places(facts, lambda fact: (-_compared(fact.salience), -_compared(fact.relevance))),
    }
    ranked = []
    for place, fact in enumerate(facts):
        ranks = {name: order[place] for name, order in orders.items()}
        heavy = min_weight is None or _compared(fact.weight) >= _compared(min_weight)
        ranked.append(replace(fact, **ranks, kept=heavy and (top is None or ranks["rank"] <= top)))
    return ranked


def _compared(value: float | None) -> float:
    """Return a weight or a rating for comparison. An unknown value is the lowest."""
    return -1.0 if value is None else round(value, WEIGHT_DECIMALS)


def _places(facts: Sequence[RatedFact], key: Callable[[RatedFact], tuple[float, float]]) -> dict[int, int]:
    """Return the rank of each fact, from 1. The sort is stable, so ties are by first appearance."""
    order = sorted(range(len(facts)), key=lambda place: key(facts[place]))
    return {place: rank for rank, place in enumerate(order, start=1)}


def rates_of(verdicts: Sequence[str | None]) -> dict[str, BoundedValue]:
    """Return the share of each verdict over the judged claims. None is unjudged. Without claims it is undefined.

    >>> rates_of(["supported", "contradicted", None, "supported"])["precision"]
    BoundedValue(value=0.6666666666666666, low=0.5, high=0.75)
    """
    return {
        name: share_of([None if one is None else one == wanted for one in verdicts]) for name, wanted in RATES.items()
    }


def recall_of(facts: Sequence[CheckedFact]) -> BoundedValue:
    """Return C / F, undefined without facts."""
    return share_of([fact.covered for fact in facts])


def weighted_recall_of(facts: Sequence[CheckedFact]) -> BoundedValue:
    """Return the covered share of the weight, undefined without weight."""
    return share_of([fact.covered for fact in facts], [fact.weight for fact in facts])


def recall_at(facts: Sequence[CheckedFact], k: int, rank: str = "rank") -> BoundedValue:
    """Return the recall over the first min(k, F) facts by an attribute. Its bounds use unjudged facts within k."""
    return recall_of(sorted(facts, key=lambda fact: getattr(fact, rank))[:k])


def recall_at_claims(supported: int, k: int) -> float:
    """Return R@K = min(S / K, 1) for S supported claims. Source: Wei et al. 2024, section 5 (SAFE).

    >>> recall_at_claims(3, 4), recall_at_claims(9, 4)
    (0.75, 1.0)
    """
    return min(supported / k, 1.0)


def f1_at_claims(supported: int, claims: int, k: int) -> float:
    """Return F1@K: the harmonic mean of S / M and R@K, 0 without supported claims. Source: Wei et al. 2024, section 5.

    >>> f1_at_claims(3, 4, 6), f1_at_claims(0, 0, 6)
    (0.6, 0.0)
    """
    if not supported:
        return 0.0
    return f_score(supported / claims, recall_at_claims(supported, k)) or 0.0


def claims_at(share: BoundedValue, claims: float | None, k: int) -> dict[str, BoundedValue]:
    """Return R@K and F1@K by measure for the share of supported claims, and the number of claims, None if unknown.

    Without claims, both are 0. If a verdict is missing, they have bounds and no value.

    >>> claims_at(BoundedValue(0.75, 0.75, 0.75), 4, 6)["claims_f1@6"].value
    0.6
    """

    def at(end: float | None) -> tuple[float | None, float | None]:
        if claims == 0:
            return 0.0, 0.0
        if end is None or claims is None:
            return end, end
        supported = round(end * claims)
        return recall_at_claims(supported, k), f1_at_claims(supported, round(claims), k)

    ends = [at(share.value if share.low == share.high else None), at(share.low), at(share.high)]
    return {name: BoundedValue(*values) for name, values in zip(names_at(k), zip(*ends, strict=True), strict=True)}


def names_at(k: int) -> tuple[str, str]:
    """Return the names of R@K and F1@K of claims."""
    return f"claims_recall@{k}", f"claims_f1@{k}"


CLAIMS_AT = columns(sample_id=TEXT, measures=[MEASURE])


@over_rows(CLAIMS_AT)
def claims_at_batches(row: Row, k: int) -> Row:
    """Return columns of `CLAIMS_AT`. row: sample_id, claims, share struct<value, low, high>."""
    found = claims_at(BoundedValue(**row["share"]), row["claims"], k)
    return {"sample_id": row["sample_id"], "measures": measure_list(found)}


def median_of_claims(counts: Mapping[int, int]) -> int:
    """Return the K of VeriScore: the upper median of the number of claims of a response, at least 1.

    counts: the number of responses by their number of claims. Source: Song et al. 2024, section 3.3, and its code.

    >>> median_of_claims({2: 1, 5: 1}), median_of_claims({0: 3})
    (5, 1)
    """
    return max(1, median_high(Counter(counts).elements()))


def measures_of(
    verdicts: Sequence[str | None] | None,
    claims: int | None,
    facts: Sequence[CheckedFact],
    ks: Iterable[int],
    *,
    rated: bool,
) -> dict[str, BoundedValue]:
    """Return all measures of a sample by name.

    verdicts: verdicts of the claims, None if claims are not judged. claims: their number, None if not requested.
    `rated`: all weights come from ratings; otherwise there is no rank by one rating.
    """
    rates = dict.fromkeys(RATES, UNDEFINED) if verdicts is None else rates_of(verdicts)
    recall = recall_of(facts)
    at_k = {
        f"{name}@{k}": recall_at(facts, k, rank) if rated or name == RECALL else UNDEFINED
        for name, rank in RANKINGS.items()
        for k in dict.fromkeys(ks)
    }
    numbers = {CLAIMS: claims, FACTS: len(facts)}
    counts = {name: BoundedValue.exact(None if number is None else float(number)) for name, number in numbers.items()}
    found = {RECALL: recall, WEIGHTED: weighted_recall_of(facts), F1: f_of(rates[PRECISION], recall)}
    return {**rates, **found, **at_k, **counts}


def names_of_measures(ks: Iterable[int]) -> list[str]:
    """Return the names of the measures of a sample."""
    return list(measures_of(None, 0, [], ks, rated=True))


FACT = struct(reference_id=TEXT, text=TEXT, anchor=TEXT, weight=FLOAT, sources=[TEXT], members=[TEXT])
_RANKS = struct(rank=NUMBER, relevance_rank=NUMBER, salience_rank=NUMBER)
RANKED_FACT = struct(FACT, _RANKS, number=NUMBER, relevance=FLOAT, salience=FLOAT, kept=FLAG)
RANKED = columns(owner=TEXT, facts=[RANKED_FACT], rated=FLAG)
_COVERED = struct(number=NUMBER, covered=FLAG, claims=[NUMBER])
CONCLUDED = columns(CONCLUSION, coverage=[_COVERED])


@over_rows(RANKED)
def rank_batches(row: Row, relevance_weight: float, min_weight: float | None, top: int | None) -> Row:
    """Return columns of `RANKED`: the facts of an owner in order of first appearance, weighted and ranked.

    row: owner, facts (`udfs.facts.reference_facts.FACTS`), ratings list<struct<batch, relevance list<double>, salience
    list<double>>>, in the order of batches, for the facts without a weight. `rated`: no weight was given.
    """
    given = row["facts"] or ()
    ranked = rank_facts(_weighted(row, relevance_weight), min_weight, top)
    shown = [{**one, **vars(fact)} for one, fact in zip(given, ranked, strict=True)]
    return {"owner": row["owner"], "facts": shown, "rated": all(one["weight"] is None for one in given)}


def _weighted(row: Row, relevance_weight: float) -> list[RatedFact]:
    """Return the facts with their ratings, in order. A fact with a given weight has no rating."""
    prompts = (zip(one["relevance"], one["salience"], strict=True) for one in row["ratings"] or ())
    ratings = iter(list(chain.from_iterable(prompts)))
    facts = []
    for number, given in enumerate(row["facts"] or (), start=1):
        if given["weight"] is not None:
            facts.append(RatedFact(number, None, None, given["weight"]))
            continue
        relevance, salience = next(ratings)
        facts.append(RatedFact(number, relevance, salience, weigh(relevance, salience, relevance_weight)))
    return facts


@over_rows(CONCLUDED)
def conclude_batches(row: Row, ks: Sequence[int]) -> Row:
    """Return columns of `CONCLUDED`.

    row: sample_id; facts and rated (of `RANKED`); claims list<struct<position, verdict>>, null if not requested;
    judged, true if claims get verdicts; checked list<struct<number, covered, claims list<int>>>, with a null `covered`
    for a lost check. A required fact without a check, in a sample without claims, is not covered. `empty`: all weights
    are 0. Do not use the row of a sample without facts or claims.
    """
    kept = [fact for fact in row["facts"] or () if fact["kept"]]
    checked = {one["number"]: one for one in row["checked"] or ()}
    coverage = [
        checked.get(fact["number"], {"number": fact["number"], "covered": False, "claims": []}) for fact in kept
    ]
    ranks = [{name: fact[name] for name in RANKINGS.values()} for fact in kept]
    facts = [
        CheckedFact(fact["weight"], one["covered"], **own) for fact, one, own in zip(kept, coverage, ranks, strict=True)
    ]
    claims = row["claims"]
    verdicts = [claim["verdict"] for claim in claims] if row["judged"] and claims is not None else None
    measures = measures_of(verdicts, None if claims is None else len(claims), facts, ks, rated=bool(row["rated"]))
    found = conclusion(row, measures, [fact.covered for fact in facts], empty=not any(fact.weight for fact in facts))
    return {**found, "unjudged": found["unjudged"] + (verdicts or []).count(None), "coverage": coverage}


SOURCE_WEIGHTED = "source_weighted"
# The score without the statements of one source, and the difference from the score
WITHOUT, CHANGE = "without:", "change_without:"
_WEIGHT = struct(statement_id=TEXT, source_weight=FLOAT, relevance_weight=FLOAT, relevance_rank=NUMBER)
WEIGHED = columns(sample_id=TEXT, measures=[MEASURE], weights=[_WEIGHT])


@dataclass(frozen=True)
class Weighting:
    """The weights of a run.

    Attributes:
        sources: the weight by id or kind of a source. Other sources have the weight 1. Empty for no such measures.
        ks: the k of recall@k over statements by relevance. Empty if statements are not weighed by relevance.
        whole_range: True if an unjudged part of a partial sample may change its statements, as in a fact graph.
    """

    sources: Mapping[str, float]
    ks: Sequence[int] = ()
    whole_range: bool = False

    def __bool__(self) -> bool:
        """Return True if the run weighs statements."""
        return bool(self.sources or self.ks)

    def bounds(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the bounds of each measure for a sample without results."""
        names = [SOURCE_WEIGHTED, *(f"{WITHOUT}{source}" for source in self.sources)] if self.sources else []
        names += [WEIGHTED, *(f"recall@{k}" for k in dict.fromkeys(self.ks))] if self.ks else []
        changes = dict.fromkeys((f"{CHANGE}{source}" for source in self.sources), (-1.0, 1.0))
        return {**dict.fromkeys(names, (0.0, 1.0)), **changes}


@dataclass(frozen=True)
class WeighedStatement:
    """A statement with its own weight, and the names of each of its sources: the id, then the kind if it has one.

    `covered` is None if it is unjudged.
    """

    covered: bool | None
    weight: float
    sources: Sequence[tuple[str, ...]]

    def source_weight(self, weights: Mapping[str, float]) -> float:
        """Return the largest weight of the sources, 1 without sources. The weight of an id replaces that of its kind.

        >>> WeighedStatement(True, 1.0, [("7", "forum"), ("8",)]).source_weight({"forum": 0.3})
        1.0
        >>> WeighedStatement(True, 1.0, [("7", "forum")]).source_weight({"forum": 0.3, "7": 0.5})
        0.5
        """
        found = (next((weights[name] for name in names if name in weights), 1.0) for names in self.sources)
        return max(found, default=1.0)

    def is_left_out(self, source: str) -> bool:
        """Return True if all sources have this id or kind.

        >>> WeighedStatement(True, 1.0, [("7", "forum"), ("8",)]).is_left_out("forum")
        False
        """
        return bool(self.sources) and all(source in names for names in self.sources)


def source_measures(statements: Sequence[WeighedStatement], weights: Mapping[str, float]) -> dict[str, BoundedValue]:
    """Return the measures of sources: the weighted score, and for each source the score without it and the change.

    >>> wiki = WeighedStatement(True, 1.0, [("wiki",)])
    >>> forum = WeighedStatement(False, 1.0, [("forum",)])
    >>> {name: one.value for name, one in source_measures([wiki, forum], {"forum": 0.25}).items()}
    {'source_weighted': 0.8, 'without:forum': 1.0, 'change_without:forum': 0.5}
    """
    weighed = [replace(one, weight=one.weight * one.source_weight(weights)) for one in statements]
    score = _score(statements)
    found = {SOURCE_WEIGHTED: _score(weighed)}
    for source in weights:
        without = _score([one for one in statements if not one.is_left_out(source)])
        found[f"{WITHOUT}{source}"] = without
        found[f"{CHANGE}{source}"] = _difference(without, score)
    return found


def _score(statements: Sequence[WeighedStatement]) -> BoundedValue:
    return weighted_recall_of([CheckedFact(one.weight, one.covered, rank=0) for one in statements])


def _difference(first: BoundedValue, second: BoundedValue) -> BoundedValue:
    """Return first minus second. The bounds allow each value of both."""
    ends = ((first.value, second.value), (first.low, second.high), (first.high, second.low))
    return BoundedValue(*(None if a is None or b is None else a - b for a, b in ends))


def rank_by_relevance(relevances: Sequence[float | None]) -> list[tuple[float | None, int | None]]:
    """Return the weight (r - 1) / 4 and the rank from 1 of each statement, None without a rating.

    Equal weights have the order of the statements.

    >>> rank_by_relevance([3.0, None, 5.0])
    [(0.5, 2), (None, None), (1.0, 1)]
    """
    weights = [None if one is None else weigh(one, one, 1.0) for one in relevances]
    rated = sorted((-weight, place) for place, weight in enumerate(weights) if weight is not None)
    ranks = {place: rank for rank, (_, place) in enumerate(rated, start=1)}
    return [(weight, ranks.get(place)) for place, weight in enumerate(weights)]


def relevance_measures(
    covered: Sequence[bool | None], ranked: Sequence[tuple[float | None, int | None]], ks: Iterable[int]
) -> dict[str, BoundedValue]:
    """Return the weighted score and recall@k of the statements with a rating.

    >>> found = relevance_measures([True, False], [(0.25, 2), (1.0, 1)], [1])
    >>> {name: one.value for name, one in found.items()}
    {'weighted_recall': 0.2, 'recall@1': 0.0}
    """
    facts = [
        CheckedFact(weight, flag, rank)
        for flag, (weight, rank) in zip(covered, ranked, strict=True)
        if weight is not None and rank is not None
    ]
    return {WEIGHTED: weighted_recall_of(facts), **{f"recall@{k}": recall_at(facts, k) for k in dict.fromkeys(ks)}}


@over_rows(WEIGHED)
def weigh_batches(row: Row, weighting: Weighting) -> Row:
    """Return columns of `WEIGHED`.

    row: sample_id, status, contexts list<struct<id, kind>>, statements list<struct<number, statement_id, covered, kept,
    weight, relevance, sources>>. A statement counts unless `kept` is false.
    """
    statements = sorted(row["statements"] or (), key=lambda one: one["number"])
    kinds = {one["id"]: one["kind"] for one in row["contexts"] or ()}
    weighed = [
        WeighedStatement(
            one["covered"],
            1.0 if one["weight"] is None else one["weight"],
            [tuple(filter(None, (name, kinds.get(name)))) for name in one["sources"] or ()],
        )
        for one in statements
    ]
    ranked = rank_by_relevance([one["relevance"] if weighting.ks else None for one in statements])
    counted = [place for place, one in enumerate(statements) if one["kept"] is not False]
    measures: dict[str, BoundedValue] = {}
    if weighting.sources:
        measures |= source_measures([weighed[place] for place in counted], weighting.sources)
    if weighting.ks:
        flags = [statements[place]["covered"] for place in counted]
        measures |= relevance_measures(flags, [ranked[place] for place in counted], weighting.ks)
    if weighting.whole_range and row["status"] == "partial":
        ends = weighting.bounds()
        measures = {
            name: UNDEFINED if one.value is None else BoundedValue(one.value, *ends[name])
            for name, one in measures.items()
        }
    weights = [
        {
            "statement_id": one["statement_id"],
            "source_weight": own.source_weight(weighting.sources) if weighting.sources and own.sources else None,
            "relevance_weight": weight,
            "relevance_rank": rank,
        }
        for one, own, (weight, rank) in zip(statements, weighed, ranked, strict=True)
    ]
    return {"sample_id": row["sample_id"], "measures": measure_list(measures), "weights": weights}
