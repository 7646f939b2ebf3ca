"""Check the claims of a response and of its ground truth, and measure them as RAGChecker does (Ru et al. 2024).

Section 3 of the paper; methods, section 16. Texts have ranks: 0 is the other side's whole text, and contexts follow
from 1. A missing relation is None. A value then covers the claims or contexts that do not depend on it, and bounds
cover all its possible results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from untold.udfs.facts.aspect_coverage import COUNTS, MEASURE, UNDEFINED, BoundedValue, measure_list
from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED, distinct_texts
from untold.udfs.facts.importance_measures import f1_of
from untold.udfs.samples.batches import in_batches
from untold.udfs.samples.items import FIELDS, RESPONSE, SIDES, TRUTH, given_claims, given_relations

ENTAILMENT, CONTRADICTION, NEUTRAL = "entailment", "contradiction", "neutral"
Relation = str | None
PRECISION, RECALL, F1 = OVERALL = ("precision", "recall", "f1")
RETRIEVER = (CLAIM_RECALL, CONTEXT_PRECISION) = ("claim_recall", "context_precision")
(UTILIZATION, IN_RELEVANT, IN_IRRELEVANT, HALLUCINATION, SELF_KNOWLEDGE, FAITHFULNESS) = GENERATOR = (
    "context_utilization",
    "noise_sensitivity_in_relevant",
    "noise_sensitivity_in_irrelevant",
    "hallucination",
    "self_knowledge",
    "faithfulness",
)
GROUPS = {"overall": OVERALL, "retriever": RETRIEVER, "generator": GENERATOR}
PUBLISHED = (*OVERALL, *RETRIEVER, *GENERATOR)
NOT_RETRIEVED, NOT_USED = "not_retrieved", "not_used"
CLAIMS, TRUTH_CLAIMS = "claims", "ground_truth_claims"
# The faults that reduce recall, then precision. For each share of claims: the half of the pipeline, the published
# measure that shows it, and a description of the claims
FAULTS = {
    NOT_RETRIEVED: ("retriever", CLAIM_RECALL, "left out, in no context"),
    NOT_USED: ("generator", UTILIZATION, "left out, though a context states it"),
    IN_RELEVANT: ("generator", IN_RELEVANT, "not in the ground truth, from a relevant context"),
    IN_IRRELEVANT: ("generator", IN_IRRELEVANT, "not in the ground truth, from an irrelevant context"),
    HALLUCINATION: ("generator", HALLUCINATION, "not in the ground truth, in no context"),
}
# The measures with separate shares of the other relations: `precision_contradicted`
SPLIT = (PRECISION, RECALL, CLAIM_RECALL, FAITHFULNESS)
UNSTATED = "neutral"
# The measures that need no ground truth
WITHOUT_TRUTH = (FAITHFULNESS, f"{FAITHFULNESS}_{CONTRADICTED}", f"{FAITHFULNESS}_{UNSTATED}", CLAIMS)


class BoundedBool(NamedTuple):
    """A boolean with bounds: `low` if it must hold, `high` if it may hold."""

    low: bool
    high: bool

    def __invert__(self) -> BoundedBool:
        return BoundedBool(not self.high, not self.low)

    def __and__(self, other: BoundedBool) -> BoundedBool:
        return BoundedBool(self.low and other.low, self.high and other.high)

    @property
    def known(self) -> bool:
        """Return True if both bounds are equal."""
        return self.low == self.high


@dataclass(frozen=True)
class ClaimSide:
    """The claims of a response or of its ground truth.

    whole: the relation of the other side's text to each claim. contexts: the relations of each context to each claim.
    """

    whole: Sequence[Relation]
    contexts: Sequence[Sequence[Relation]]

    @property
    def unjudged(self) -> int:
        """Return the number of missing relations."""
        return sum(one is None for row in (self.whole, *self.contexts) for one in row)

    @property
    def stated(self) -> list[BoundedBool]:
        """Return for each claim whether the other side's text entails it."""
        return [is_entailed(one) for one in self.whole]

    @property
    def found(self) -> list[BoundedBool]:
        """Return for each claim whether some context entails it."""
        return [any_of(map(is_entailed, row)) for row in self.contexts]


def is_entailed(relation: Relation) -> BoundedBool:
    """Return whether a claim is entailed."""
    return BoundedBool(relation == ENTAILMENT, relation in (ENTAILMENT, None))


def any_of(flags: Iterable[BoundedBool]) -> BoundedBool:
    """Return whether any flag holds."""
    several = list(flags)
    return BoundedBool(any(flag.low for flag in several), any(flag.high for flag in several))


def relevant_contexts(truth: ClaimSide, contexts: int) -> list[BoundedBool]:
    """Return for each context whether it entails a claim of the ground truth."""
    return [any_of(is_entailed(row[place]) for row in truth.contexts) for place in range(contexts)]


def share(flags: Sequence[BoundedBool]) -> BoundedValue:
    """Return the share of true flags over the known flags, with bounds for all other flags false and true.

    >>> share([BoundedBool(True, True), BoundedBool(False, True), BoundedBool(False, False), BoundedBool(False, False)])
    BoundedValue(value=0.3333333333333333, low=0.25, high=0.5)
    """
    if not flags:
        return UNDEFINED
    known = [flag.low for flag in flags if flag.known]
    low, high = (sum(ends) / len(flags) for ends in zip(*flags, strict=True))
    return BoundedValue(sum(known) / len(known) if known else None, low, high)


def utilization(found: Sequence[BoundedBool], stated: Sequence[BoundedBool]) -> BoundedValue:
    """Return the share of claims found in contexts that the response entails, undefined without such claims.

    A claim that is possibly found lowers the share only if the response may omit it, and raises it only if the response
    may state it.
    """
    pairs = list(zip(found, stated, strict=True))
    known = [said.low for there, said in pairs if there.low and there.known and said.known]
    surely = [said for there, said in pairs if there.low]
    maybe = [said for there, said in pairs if not there.known]
    if not surely and not maybe:
        return UNDEFINED
    left_out, used = sum(not said.low for said in maybe), sum(said.high for said in maybe)
    low = _ratio(sum(said.low for said in surely), len(surely) + left_out, 1.0)
    high = _ratio(sum(said.high for said in surely) + used, len(surely) + used, 0.0)
    return BoundedValue(sum(known) / len(known) if known else None, low, high)


def _ratio(part: int, whole: int, otherwise: float) -> float:
    return part / whole if whole else otherwise


def measures_of(response: ClaimSide, truth: ClaimSide, contexts: int) -> dict[str, BoundedValue]:
    """Return all measures of a sample by name. Measures that RAGChecker sets to 0 for lack of a divisor are undefined.

    `noise_sensitivity_in_irrelevant` counts claims that no relevant context entails. `not_retrieved` and `not_used` are
    the claims of the ground truth that the response omits, without and with a context that entails them.
    """
    precision, recall = share(response.stated), share(truth.stated)
    relevant = relevant_contexts(truth, contexts)
    entailed = [[is_entailed(one) for one in row] for row in response.contexts]
    wrong = [~flag for flag in response.stated]
    misled = [any_of(one & of for one, of in zip(row, relevant, strict=True)) for row in entailed]
    noised = [any_of(one & ~of for one, of in zip(row, relevant, strict=True)) for row in entailed]
    left_out = [~flag for flag in truth.stated]
    found = {
        PRECISION: precision,
        RECALL: recall,
        F1: f1_of(precision, recall),
        CLAIM_RECALL: share(truth.found),
        CONTEXT_PRECISION: share(relevant) if truth.whole else UNDEFINED,
        UTILIZATION: utilization(truth.found, truth.stated),
        IN_RELEVANT: share(_both(misled, wrong)) if truth.whole else UNDEFINED,
        IN_IRRELEVANT: share(_both(_both(noised, [~flag for flag in misled]), wrong)) if truth.whole else UNDEFINED,
        HALLUCINATION: share(_both([~flag for flag in response.found], wrong)),
        SELF_KNOWLEDGE: share(_both([~flag for flag in response.found], response.stated)),
        FAITHFULNESS: share(response.found),
    }
    # Measures of contexts are undefined without contexts
    found |= {} if contexts else dict.fromkeys((*RETRIEVER, *GENERATOR), UNDEFINED)
    missed = {
        NOT_RETRIEVED: share(_both(left_out, [~flag for flag in truth.found])),
        NOT_USED: share(_both(left_out, truth.found)),
    }
    rows = {
        PRECISION: [[one] for one in response.whole],
        RECALL: [[one] for one in truth.whole],
        CLAIM_RECALL: truth.contexts if contexts else (),
        FAITHFULNESS: response.contexts if contexts else (),
    }
    split = {
        f"{name}_{kind}": share([said(row) for row in rows[name]])
        for name in SPLIT
        for kind, said in ((CONTRADICTED, _is_contradicted), (UNSTATED, _is_unstated))
    }
    counts = {CLAIMS: len(response.whole), TRUTH_CLAIMS: len(truth.whole)}
    return {**found, **missed, **split, **{name: BoundedValue.exact(float(count)) for name, count in counts.items()}}


def _both(first: Sequence[BoundedBool], second: Sequence[BoundedBool]) -> list[BoundedBool]:
    return [one & other for one, other in zip(first, second, strict=True)]


def _is_contradicted(relations: Sequence[Relation]) -> BoundedBool:
    """Return whether a text contradicts the claim, and no text entails it."""
    no, said = ENTAILMENT not in relations, CONTRADICTION in relations
    return BoundedBool(no and said and None not in relations, no and (said or None in relations))


def _is_unstated(relations: Sequence[Relation]) -> BoundedBool:
    """Return whether no text entails or contradicts the claim."""
    high = not {ENTAILMENT, CONTRADICTION} & set(relations)
    return BoundedBool(high and None not in relations, high)


def names_of_measures() -> list[str]:
    """Return the names of the measures of a sample."""
    return list(measures_of(ClaimSide([], []), ClaimSide([], []), 0))


VERDICTS = {ENTAILMENT: SUPPORTED, CONTRADICTION: CONTRADICTED, NEUTRAL: NOT_SUPPORTED}

_TEXTS = pa.list_(pa.string())
# The columns that `untold.udfs.facts.pairs.generate_lists` reads, the origin of their texts, and the ranks of premises
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
        ("new_claims", pa.int64()),
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
        *COUNTS,
    ]
)


def claim_owners(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield columns of `OWNERS`: for each side the texts that its claims are checked against, then the claims.

    batches: sample_id, response, ground_truth struct<text, claims>, contexts list<struct<id, text>>, claim_checks, and
    the extracted claims by side. A blank text entails no claim, and given relations need no request.
    """
    for batch in batches:
        yield from in_batches((row for sample in batch.to_pylist() for row in _owners(sample)), OWNERS)


def _owners(sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    others = {RESPONSE: (sample["ground_truth"] or {}).get("text") or "", TRUTH: sample["response"]}
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
    """Return the claims of a side: the given claims, otherwise the extracted claims without duplicates."""
    given = given_claims(sample["claim_checks"], sample["ground_truth"], side)
    return distinct_texts(sample[f"{side}_claims"] or ()) if given is None else given


def conclude_checks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield columns of `CONCLUDED`, a row per sample.

    batches: as for `claim_owners`, without response and texts of contexts, and judged list<struct<side, rank, place,
    relation>>: the relation of the requested text of each rank to the claim at each position, null if missing. `empty`:
    F1 is undefined. Without a ground truth, only the measures in `WITHOUT_TRUTH` are defined. Do not use the row of a
    sample without claims.
    """
    for batch in batches:
        yield from in_batches(map(_conclude, batch.to_pylist()), CONCLUDED)


def _conclude(sample: Mapping[str, Any]) -> dict[str, Any]:
    names = [one["id"] for one in sample["contexts"]]
    claims = {side: _claims(sample, side) for side in SIDES}
    sides = {side: _side(sample, side, len(claims[side]), len(names)) for side in SIDES}
    truth = sides[TRUTH]
    measures = measures_of(sides[RESPONSE], truth, len(names))
    has_truth = has_reference(sample)
    if not has_truth:
        measures |= {name: UNDEFINED for name in measures if name not in WITHOUT_TRUTH}
    covered = [_known(flag) for flag in truth.stated]
    return {
        "sample_id": sample["sample_id"],
        "measures": measure_list(measures),
        "statements": [
            {"number": number, "text": text, "covered": said, "sources": _entailing(row, names), "relation": relation}
            for number, (text, said, row, relation) in enumerate(
                zip(claims[TRUTH], covered, truth.contexts, truth.whole, strict=True), start=1
            )
        ],
        "claims": [
            {
                "position": number,
                "text": text,
                "verdict": VERDICTS.get(one or "") if has_truth else None,
                "evidence": _entailing(row, names),
            }
            for number, (text, one, row) in enumerate(
                zip(claims[RESPONSE], sides[RESPONSE].whole, sides[RESPONSE].contexts, strict=True), start=1
            )
        ],
        "contexts": [
            one if has_truth else {**one, "relevant": None, "noise": None, "new_claims": None}
            for one in _contexts(sides[RESPONSE], truth, names)
        ],
        "covered": covered.count(True),
        "uncovered": covered.count(False),
        "unjudged": sum(side.unjudged for side in sides.values()),
        "empty": not claims[RESPONSE] or not claims[TRUTH],
    }


def has_reference(sample: Mapping[str, Any]) -> bool:
    """Return True if the sample has a ground truth, or claims or relations of one."""
    given = sample["claim_checks"] or {}
    return sample["ground_truth"] is not None or any(given.get(name) is not None for name in FIELDS[TRUTH])


def _side(sample: Mapping[str, Any], side: str, claims: int, contexts: int) -> ClaimSide:
    """Return the relations of a side's claims: given or requested, otherwise neutral, as for a blank text."""
    whole, retrieved = given_relations(sample["claim_checks"], side)
    rows: list[list[Relation]] = [[NEUTRAL] * (1 + contexts) for _ in range(claims)]
    for place, row in enumerate(rows):
        row[0] = row[0] if whole is None else whole[place]
        row[1:] = row[1:] if retrieved is None else retrieved[place]
    for one in sample["judged"] or ():
        if one["side"] == side:
            rows[one["place"]][one["rank"]] = one["relation"]
    return ClaimSide([row[0] for row in rows], [row[1:] for row in rows])


def _entailing(relations: Sequence[Relation], names: Sequence[str]) -> list[str]:
    """Return the names of the contexts that entail a claim."""
    return [name for name, relation in zip(names, relations, strict=True) if relation == ENTAILMENT]


def _known(flag: BoundedBool) -> bool | None:
    return flag.low if flag.known else None


def _contexts(response: ClaimSide, truth: ClaimSide, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the measures of each context, by rank. A value that depends on a missing relation is null."""
    relevant = relevant_contexts(truth, len(names))
    recalled = [BoundedBool(False, False)] * len(truth.whole)
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
            "new_claims": sum(flag.low for flag in now) - sum(flag.low for flag in recalled) if known else None,
            RESPONSE: of_response,
            TRUTH: of_truth,
        }
        recalled = now
