"""Facts ranked and samples concluded, in batches of rows, for the metric importance (methods, section 12)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from untold.udfs.facts.importance_measures import RANKINGS, CheckedFact, RatedFact, measures_of, rank_facts, weigh

RANKED_FACT = pa.struct(
    [
        ("number", pa.int64()),
        ("reference_id", pa.string()),
        ("text", pa.string()),
        ("anchor", pa.string()),
        ("sources", pa.list_(pa.string())),
        ("members", pa.list_(pa.string())),
        ("relevance", pa.float64()),
        ("salience", pa.float64()),
        ("weight", pa.float64()),
        ("rank", pa.int64()),
        ("relevance_rank", pa.int64()),
        ("salience_rank", pa.int64()),
        ("kept", pa.bool_()),
    ]
)
RANKED = pa.schema([("owner", pa.string()), ("facts", pa.list_(RANKED_FACT)), ("rated", pa.bool_())])
_MEASURE = pa.struct(
    [("measure", pa.string()), ("value", pa.float64()), ("value_low", pa.float64()), ("value_high", pa.float64())]
)
_COVERED = pa.struct([("number", pa.int64()), ("covered", pa.bool_()), ("claims", pa.list_(pa.int64()))])
CONCLUDED = pa.schema(
    [
        ("sample_id", pa.string()),
        ("measures", pa.list_(_MEASURE)),
        ("coverage", pa.list_(_COVERED)),
        ("covered", pa.int64()),
        ("uncovered", pa.int64()),
        ("unjudged", pa.int64()),
        ("empty", pa.bool_()),
    ]
)
Row = Mapping[str, Any]


def rank_batches(
    batches: Iterable[pa.RecordBatch], relevance_weight: float, min_weight: float | None, top: int | None
) -> Iterator[pa.RecordBatch]:
    """Columns of `RANKED`, a row an owner: its facts in order of first appearance, rated, weighted and ranked.

    batches: owner, facts (of `udfs.facts.reference_facts.FACTS`), ratings list<struct<batch, relevance list<double>,
    salience list<double>>>, in the order of batches, of the facts without a weight. `rated`: no weight was given.
    """
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            facts = _weighted(row, relevance_weight)
            ranked = rank_facts(facts, min_weight, top)
            shown = [{**given, **vars(fact)} for given, fact in zip(row["facts"] or (), ranked, strict=True)]
            rated = all(one["weight"] is None for one in row["facts"] or ())
            rows.append({"owner": row["owner"], "facts": shown, "rated": rated})
        yield pa.RecordBatch.from_pylist(rows, RANKED)


def _weighted(row: Row, relevance_weight: float) -> list[RatedFact]:
    """The facts with the ratings that are theirs, in order: those with a weight of their own have none."""
    ratings = iter(
        list(
            chain.from_iterable(
                zip(prompt["relevance"], prompt["salience"], strict=True) for prompt in row["ratings"] or ()
            )
        )
    )
    facts = []
    for number, given in enumerate(row["facts"] or (), start=1):
        if given["weight"] is not None:
            facts.append(RatedFact(number, None, None, given["weight"]))
            continue
        relevance, salience = next(ratings)
        facts.append(RatedFact(number, relevance, salience, weigh(relevance, salience, relevance_weight)))
    return facts


def conclude_batches(batches: Iterable[pa.RecordBatch], ks: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Columns of `CONCLUDED`, a row a sample.

    batches: sample_id; facts and rated (of `RANKED`); claims list<struct<position, verdict>>, null where they were not
    asked for; judged, whether claims are to have verdicts; checked list<struct<number, covered, claims list<int>>>, the
    facts that were checked, `covered` null where that was lost. A fact that ought to be given and was not checked, as
    there are no claims, is not covered. `empty`: nothing weighs anything. Of a sample that lacks facts or claims
    nothing here is to be read.
    """
    for batch in batches:
        yield pa.RecordBatch.from_pylist([_conclude(row, ks) for row in batch.to_pylist()], CONCLUDED)


def _conclude(row: Row, ks: Sequence[int]) -> dict[str, Any]:
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
    return {
        "sample_id": row["sample_id"],
        "measures": [
            {"measure": name, "value": one.value, "value_low": one.low, "value_high": one.high}
            for name, one in measures.items()
        ],
        "coverage": coverage,
        "covered": sum(fact.covered is True for fact in facts),
        "uncovered": sum(fact.covered is False for fact in facts),
        "unjudged": sum(fact.covered is None for fact in facts) + sum(one is None for one in verdicts or ()),
        "empty": not any(fact.weight for fact in facts),
    }
