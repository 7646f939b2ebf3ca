"""Check the claims of a response and of its ground truth, and measure them as RAGChecker does (Ru et al. 2024).

Section 3 of the paper; methods, section 16. Texts have ranks: 0 is the other side's whole text, and contexts follow
from 1. A missing relation is None. A value then covers the claims or contexts that do not depend on it, and bounds
cover all its possible results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from untold.udfs.arrow import FLAG, NUMBER, TEXT, Row, columns, over_rows, struct
from untold.udfs.facts.aspect_coverage import CONCLUSION, UNDEFINED, BoundedValue, conclusion, f_of, share_of
from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED, distinct_texts
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


Flag = bool | None
"""A flag, None if it depends on a missing relation."""


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
    def stated(self) -> list[Flag]:
        """Return for each claim whether the other side's text entails it."""
        return [is_entailed(one) for one in self.whole]

    @property
    def found(self) -> list[Flag]:
        """Return for each claim whether some context entails it."""
        return [any_of(map(is_entailed, row)) for row in self.contexts]


def is_entailed(relation: Relation) -> Flag:
    """Return whether a claim is entailed."""
    return None if relation is None else relation == ENTAILMENT


def any_of(flags: Iterable[Flag]) -> Flag:
    """Return whether any flag holds."""
    several = set(flags)
    if True in several:
        return True
    return None if None in several else False


def relevant_contexts(truth: ClaimSide, contexts: int) -> list[Flag]:
    """Return for each context whether it entails a claim of the ground truth."""
    return [any_of(is_entailed(row[place]) for row in truth.contexts) for place in range(contexts)]


def utilization(found: Sequence[Flag], stated: Sequence[Flag]) -> BoundedValue:
    """Return the share of claims found in contexts that the response entails, undefined without such claims.

    A claim that is possibly found lowers the share only if the response may omit it, and raises it only if the response
    may state it.
    """
    pairs = list(zip(found, stated, strict=True))
    surely = [said for there, said in pairs if there]
    maybe = [said for there, said in pairs if there is None]
    known = [said for said in surely if said is not None]
    if not surely and not maybe:
        return UNDEFINED
    left_out, used = len(maybe) - maybe.count(True), len(maybe) - maybe.count(False)
    low = _ratio(surely.count(True), len(surely) + left_out, 1.0)
    high = _ratio(len(surely) - surely.count(False) + used, len(surely) + used, 0.0)
    return BoundedValue(sum(known) / len(known) if known else None, low, high)


def _ratio(part: int, whole: int, otherwise: float) -> float:
    return part / whole if whole else otherwise


def measures_of(response: ClaimSide, truth: ClaimSide, contexts: int) -> dict[str, BoundedValue]:
    """Return all measures of a sample by name. Measures that RAGChecker sets to 0 for lack of a divisor are undefined.

    `noise_sensitivity_in_irrelevant` counts claims that no relevant context entails. `not_retrieved` and `not_used` are
    the claims of the ground truth that the response omits, without and with a context that entails them.
    """
    precision, recall = share_of(response.stated), share_of(truth.stated)
    relevant = relevant_contexts(truth, contexts)
    entailed = [[is_entailed(one) for one in row] for row in response.contexts]
    wrong, left_out, unfound = _negated(response.stated), _negated(truth.stated), _negated(response.found)
    misled = [any_of(_both(row, relevant)) for row in entailed]
    noised = [any_of(_both(row, _negated(relevant))) for row in entailed]
    found = {
        PRECISION: precision,
        RECALL: recall,
        F1: f_of(precision, recall),
        CLAIM_RECALL: share_of(truth.found),
        CONTEXT_PRECISION: share_of(relevant) if truth.whole else UNDEFINED,
        UTILIZATION: utilization(truth.found, truth.stated),
        IN_RELEVANT: share_of(_both(misled, wrong)) if truth.whole else UNDEFINED,
        IN_IRRELEVANT: share_of(_both(_both(noised, _negated(misled)), wrong)) if truth.whole else UNDEFINED,
        HALLUCINATION: share_of(_both(unfound, wrong)),
        SELF_KNOWLEDGE: share_of(_both(unfound, response.stated)),
        FAITHFULNESS: share_of(response.found),
    }
    # Measures of contexts are undefined without contexts
    found |= {} if contexts else dict.fromkeys((*RETRIEVER, *GENERATOR), UNDEFINED)
    missed = {
        NOT_RETRIEVED: share_of(_both(left_out, _negated(truth.found))),
        NOT_USED: share_of(_both(left_out, truth.found)),
    }
    rows = {
        PRECISION: [[one] for one in response.whole],
        RECALL: [[one] for one in truth.whole],
        CLAIM_RECALL: truth.contexts if contexts else (),
        FAITHFULNESS: response.contexts if contexts else (),
    }
    split = {
        f"{name}_{kind}": share_of([said(row) for row in rows[name]])
        for name in SPLIT
        for kind, said in ((CONTRADICTED, _is_contradicted), (UNSTATED, _is_unstated))
    }
    counts = {CLAIMS: len(response.whole), TRUTH_CLAIMS: len(truth.whole)}
    return {**found, **missed, **split, **{name: BoundedValue.exact(float(count)) for name, count in counts.items()}}


def _both(first: Iterable[Flag], second: Iterable[Flag]) -> list[Flag]:
    """Return for each pair of flags whether both hold. They do unless one of them does not."""
    return _negated(any_of(pair) for pair in zip(_negated(first), _negated(second), strict=True))


def _negated(flags: Iterable[Flag]) -> list[Flag]:
    """Return for each flag whether it does not hold."""
    return [None if flag is None else not flag for flag in flags]


def _is_contradicted(relations: Sequence[Relation]) -> Flag:
    """Return whether a text contradicts the claim, and no text entails it."""
    if ENTAILMENT in relations:
        return False
    return None if None in relations else CONTRADICTION in relations


def _is_unstated(relations: Sequence[Relation]) -> Flag:
    """Return whether no text entails or contradicts the claim."""
    if {ENTAILMENT, CONTRADICTION} & set(relations):
        return False
    return None if None in relations else True


def names_of_measures() -> list[str]:
    """Return the names of the measures of a sample."""
    return list(measures_of(ClaimSide([], []), ClaimSide([], []), 0))


VERDICTS = {ENTAILMENT: SUPPORTED, CONTRADICTION: CONTRADICTED, NEUTRAL: NOT_SUPPORTED}

# The columns that `untold.udfs.facts.pairs.generate_lists` reads, the origin of their texts, and the ranks of premises
OWNERS = columns(
    columns(owner=TEXT, sample_id=TEXT, side=TEXT, texts=[TEXT], ranks=[NUMBER]),
    columns(contexts=NUMBER, between_contexts=NUMBER, to_contexts=NUMBER, to_responses=NUMBER),
)
_STATEMENT = struct(number=NUMBER, text=TEXT, covered=FLAG, claims=[NUMBER], sources=[TEXT], relation=TEXT)
_CLAIM = struct(position=NUMBER, text=TEXT, verdict=TEXT, evidence=[TEXT])
_OF_CONTEXT = struct(rank=NUMBER, context_id=TEXT, relevant=FLAG, used=FLAG, noise=FLAG, new_claims=NUMBER)
_CONTEXT = struct(_OF_CONTEXT, **{side: [TEXT] for side in SIDES})
CONCLUDED = columns(CONCLUSION, statements=[_STATEMENT], claims=[_CLAIM], contexts=[_CONTEXT])


@over_rows(OWNERS)
def claim_owners(sample: Row) -> Iterator[Row]:
    """Yield columns of `OWNERS`: for each side the texts that its claims are checked against, then the claims.

    sample: sample_id, response, ground_truth struct<text, claims>, contexts list<struct<id, text>>, claim_checks, and
    the extracted claims by side. A blank text entails no claim, and given relations need no request.
    """
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


def _claims(sample: Row, side: str) -> list[str]:
    """Return the claims of a side: the given claims, otherwise the extracted claims without duplicates."""
    given = given_claims(sample["claim_checks"], sample["ground_truth"], side)
    return distinct_texts(sample[f"{side}_claims"] or ()) if given is None else given


@over_rows(CONCLUDED)
def conclude_checks(sample: Row) -> Row:
    """Return columns of `CONCLUDED`.

    sample: as for `claim_owners`, without response and texts of contexts, and judged list<struct<side, rank, place,
    relation>>: the relation of the requested text of each rank to the claim at each position, null if missing. `empty`:
    F1 is undefined. Without a ground truth, only the measures in `WITHOUT_TRUTH` are defined. Do not use the row of a
    sample without claims.
    """
    names = [one["id"] for one in sample["contexts"]]
    claims = {side: _claims(sample, side) for side in SIDES}
    sides = {side: _side(sample, side, len(claims[side]), len(names)) for side in SIDES}
    response, truth = sides[RESPONSE], sides[TRUTH]
    measures = measures_of(response, truth, len(names))
    has_truth = has_reference(sample)
    if not has_truth:
        measures |= {name: UNDEFINED for name in measures if name not in WITHOUT_TRUTH}
    of_truth = zip(claims[TRUTH], truth.stated, truth.contexts, truth.whole, strict=True)
    of_response = zip(claims[RESPONSE], response.whole, response.contexts, strict=True)
    return {
        **conclusion(sample, measures, truth.stated, empty=not claims[RESPONSE] or not claims[TRUTH]),
        "unjudged": sum(side.unjudged for side in sides.values()),
        "statements": [
            {"number": number, "text": text, "covered": said, "sources": _entailing(row, names), "relation": relation}
            for number, (text, said, row, relation) in enumerate(of_truth, start=1)
        ],
        "claims": [
            {
                "position": number,
                "text": text,
                "verdict": VERDICTS.get(one or "") if has_truth else None,
                "evidence": _entailing(row, names),
            }
            for number, (text, one, row) in enumerate(of_response, start=1)
        ],
        "contexts": [
            one if has_truth else {**one, "relevant": None, "noise": None, "new_claims": None}
            for one in _contexts(response, truth, names)
        ],
    }


def has_reference(sample: Row) -> bool:
    """Return True if the sample has a ground truth, or claims or relations of one."""
    given = sample["claim_checks"] or {}
    return sample["ground_truth"] is not None or any(given.get(name) is not None for name in FIELDS[TRUTH])


def _side(sample: Row, side: str, claims: int, contexts: int) -> ClaimSide:
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


def _contexts(response: ClaimSide, truth: ClaimSide, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the measures of each context, by rank. A value that depends on a missing relation is null."""
    relevant, wrong = relevant_contexts(truth, len(names)), _negated(response.stated)
    recalled: list[Flag] = [False] * len(truth.whole)
    for place, name in enumerate(names):
        of_truth, of_response = ([row[place] for row in side.contexts] for side in (truth, response))
        stated = [is_entailed(one) for one in of_response]
        now = [any_of((before, is_entailed(one))) for before, one in zip(recalled, of_truth, strict=True)]
        known = None not in (*recalled, *now)
        yield {
            "rank": place + 1,
            "context_id": name,
            "relevant": relevant[place],
            "used": any_of(stated),
            "noise": any_of(_both(stated, wrong)),
            "new_claims": now.count(True) - recalled.count(True) if known else None,
            RESPONSE: of_response,
            TRUTH: of_truth,
        }
        recalled = now
