"""Claims of a response and of its ground truth: which texts they are checked against, and what is concluded of them.

Ru et al. 2024; methods, section 16. Texts have ranks: 0 is the other side's whole text, contexts follow from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.facts.aspect_coverage import MEASURE
from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED, distinct_texts
from untold.udfs.facts.rag_measures import (
    CONTRADICTION,
    ENTAILMENT,
    NEUTRAL,
    Flag,
    Relation,
    Side,
    any_of,
    is_entailed,
    measures_of,
    relevant_contexts,
)
from untold.udfs.samples.batches import in_batches
from untold.udfs.samples.checks import RESPONSE, SIDES, TRUTH, given_claims, given_relations

VERDICTS = {ENTAILMENT: SUPPORTED, CONTRADICTION: CONTRADICTED, NEUTRAL: NOT_SUPPORTED}

_TEXTS = pa.list_(pa.string())
# The columns that `untold.udfs.facts.pairs.generate_lists` reads, and whose texts they are, with the ranks of premises
OWNERS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("owner", "sample_id", "side")),
        pa.field("texts", _TEXTS),
        pa.field("ranks", pa.list_(pa.int64())),
        *(pa.field(name, pa.int64()) for name in ("contexts", "between_contexts", "to_contexts", "to_responses")),
    ]
)
_STATEMENT = pa.struct(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("covered", pa.bool_()),
        ("sources", _TEXTS),
        ("relation", pa.string()),
    ]
)
_CLAIM = pa.struct([("position", pa.int64()), ("text", pa.string()), ("verdict", pa.string()), ("evidence", _TEXTS)])
_CONTEXT = pa.struct(
    [
        ("rank", pa.int64()),
        ("context_id", pa.string()),
        *((name, pa.bool_()) for name in ("relevant", "used", "noise")),
        ("new", pa.int64()),
        *((side, _TEXTS) for side in SIDES),
    ]
)
CONCLUDED = pa.schema(
    [
        ("sample_id", pa.string()),
        ("measures", pa.list_(MEASURE)),
        ("statements", pa.list_(_STATEMENT)),
        ("claims", pa.list_(_CLAIM)),
        ("contexts", pa.list_(_CONTEXT)),
        *((name, pa.int64()) for name in ("covered", "uncovered", "unjudged")),
        ("empty", pa.bool_()),
    ]
)


def claim_owners(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `OWNERS`: of each side the texts that its claims are to be checked against, then the claims.

    batches: sample_id, response, ground_truth struct<text, claims>, contexts list<struct<id, text>>, claim_checks,
    and by side the claims that were extracted. A blank text entails nothing, and what is given is not asked.
    """
    for batch in batches:
        yield from in_batches((row for sample in batch.to_pylist() for row in _owners(sample)), OWNERS)


def _owners(sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    others = {RESPONSE: sample["ground_truth"]["text"], TRUTH: sample["response"]}
    for side in SIDES:
        claims = _claims(sample, side)
        whole, retrieved = given_relations(sample["claim_checks"], side)
        texts = [(0, others[side])] if whole is None else []
        texts += enumerate((one["text"] for one in sample["contexts"]), start=1) if retrieved is None else []
        premises = [(rank, text) for rank, text in texts if text.strip()]
        if premises and claims:
            yield {
                "owner": f"{side}:{sample['sample_id']}",
                "sample_id": sample["sample_id"],
                "side": side,
                "texts": [*(text for _, text in premises), *claims],
                "ranks": [rank for rank, _ in premises],
                "contexts": len(premises),
                **dict.fromkeys(("between_contexts", "to_contexts"), 0),
                "to_responses": len(premises) * len(claims),
            }


def _claims(sample: Mapping[str, Any], side: str) -> list[str]:
    """The claims of a side: those that are given, else those that were extracted, equal ones once."""
    given = given_claims(sample["claim_checks"], sample["ground_truth"], side)
    return distinct_texts(sample[f"{side}_claims"] or ()) if given is None else given


def conclude_checks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `CONCLUDED`, a row a sample.

    batches: as `claim_owners` has them, without response and texts of contexts, and judged list<struct<side, rank,
    place, relation>>: the relation of the text of each rank that was asked to the claim at each place; null where that
    could not be had. `empty`: F1 is undefined.
    Of a sample that lacks claims nothing here is to be read.
    """
    for batch in batches:
        yield from in_batches(map(_conclude, batch.to_pylist()), CONCLUDED)


def _conclude(sample: Mapping[str, Any]) -> dict[str, Any]:
    names = [one["id"] for one in sample["contexts"]]
    claims = {side: _claims(sample, side) for side in SIDES}
    sides = {side: _side(sample, side, len(claims[side]), len(names)) for side in SIDES}
    truth = sides[TRUTH]
    measures = measures_of(sides[RESPONSE], truth, len(names))
    covered = [_known(flag) for flag in truth.stated]
    return {
        "sample_id": sample["sample_id"],
        "measures": [
            {"measure": name, "value": one.value, "value_low": one.low, "value_high": one.high}
            for name, one in measures.items()
        ],
        "statements": [
            {"number": number, "text": text, "covered": said, "sources": _entailing(row, names), "relation": relation}
            for number, (text, said, row, relation) in enumerate(
                zip(claims[TRUTH], covered, truth.contexts, truth.whole, strict=True), start=1
            )
        ],
        "claims": [
            {"position": number, "text": text, "verdict": VERDICTS.get(one or ""), "evidence": _entailing(row, names)}
            for number, (text, one, row) in enumerate(
                zip(claims[RESPONSE], sides[RESPONSE].whole, sides[RESPONSE].contexts, strict=True), start=1
            )
        ],
        "contexts": list(_contexts(sides[RESPONSE], truth, names)),
        "covered": covered.count(True),
        "uncovered": covered.count(False),
        "unjudged": sum(side.unjudged for side in sides.values()),
        "empty": not claims[RESPONSE] or not claims[TRUTH],
    }


def _side(sample: Mapping[str, Any], side: str, claims: int, contexts: int) -> Side:
    """What the texts make of a side's claims: what was given, what was asked, else nothing, as of a blank text."""
    whole, retrieved = given_relations(sample["claim_checks"], side)
    rows: list[list[Relation]] = [[NEUTRAL] * (1 + contexts) for _ in range(claims)]
    for place, row in enumerate(rows):
        row[0] = row[0] if whole is None else whole[place]
        row[1:] = row[1:] if retrieved is None else retrieved[place]
    for one in sample["judged"] or ():
        if one["side"] == side:
            rows[one["place"]][one["rank"]] = one["relation"]
    return Side([row[0] for row in rows], [row[1:] for row in rows])


def _entailing(relations: Sequence[Relation], names: Sequence[str]) -> list[str]:
    """The names of the contexts that entail a claim."""
    return [name for name, relation in zip(names, relations, strict=True) if relation == ENTAILMENT]


def _known(flag: Flag) -> bool | None:
    return flag.low if flag.known else None


def _contexts(response: Side, truth: Side, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What each context is worth, by rank; what depends on a relation that could not be had is null."""
    relevant = relevant_contexts(truth, len(names))
    recalled = [Flag(False, False)] * len(truth.whole)
    for place, name in enumerate(names):
        of_truth, of_response = ([row[place] for row in side.contexts] for side in (truth, response))
        stated = [is_entailed(one) for one in of_response]
        now = [any_of((before, is_entailed(one))) for before, one in zip(recalled, of_truth, strict=True)]
        known = all(flag.known for flag in (*recalled, *now))
        yield {
            "rank": place + 1,
            "context_id": name,
            "relevant": _known(relevant[place]),
            "used": _known(any_of(stated)),
            "noise": _known(any_of(one & ~said for one, said in zip(stated, response.stated, strict=True))),
            "new": sum(flag.low for flag in now) - sum(flag.low for flag in recalled) if known else None,
            RESPONSE: of_response,
            TRUTH: of_truth,
        }
        recalled = now
