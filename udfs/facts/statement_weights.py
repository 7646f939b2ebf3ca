"""Weigh the statements of a sample by the reliability of their sources and by their relevance.

Methods, section 20. The weighted score is the covered share of the weight. Both papers name the weights as future work
(Dejl et al. 2025; "Beyond Precision" 2026).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from untold.udfs.facts.aspect_coverage import MEASURE, BoundedValue, measure_list
from untold.udfs.facts.importance_measures import (
    UNDEFINED,
    WEIGHTED,
    CheckedFact,
    recall_at,
    weigh,
    weighted_recall_of,
)

SOURCE_WEIGHTED = "source_weighted"
# The score without the statements of one source, and the difference from the score
WITHOUT, CHANGE = "without:", "change_without:"
WEIGHED = pa.schema(
    [
        ("sample_id", pa.string()),
        ("measures", pa.list_(MEASURE)),
        (
            "weights",
            pa.list_(
                pa.struct(
                    [
                        ("statement_id", pa.string()),
                        ("source_weight", pa.float64()),
                        ("relevance_weight", pa.float64()),
                        ("relevance_rank", pa.int64()),
                    ]
                )
            ),
        ),
    ]
)
Bounds = dict[str, tuple[float | None, float | None]]


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

    def bounds(self) -> Bounds:
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


def weigh_batches(batches: Iterable[pa.RecordBatch], weighting: Weighting) -> Iterator[pa.RecordBatch]:
    """Yield columns of `WEIGHED`, a row per sample.

    batches: sample_id, status, contexts list<struct<id, kind>>, statements list<struct<number, statement_id, covered,
    kept, weight, relevance, sources>>. A statement counts unless `kept` is false.
    """
    for batch in batches:
        yield pa.RecordBatch.from_pylist([_weigh(row, weighting) for row in batch.to_pylist()], WEIGHED)


def _weigh(row: Mapping[str, Any], weighting: Weighting) -> dict[str, Any]:
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
