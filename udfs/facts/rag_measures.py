"""The measures of RAGChecker (Ru et al. 2024, section 3; methods, section 16), over relations of texts to claims.

A relation that could not be had is None. A value is then over the claims, or contexts, for which it makes no
difference, and bounds are over every way in which it could come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from untold.udfs.facts.aspect_coverage import Bounded
from untold.udfs.facts.importance_measures import UNDEFINED, f1_of

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
# What takes a response from recall 1, then from precision 1: by the share of claims, the half of the pipeline, the
# published measure that shows it, and what these claims are
FAULTS = {
    NOT_RETRIEVED: ("retriever", CLAIM_RECALL, "left out, in no context"),
    NOT_USED: ("generator", UTILIZATION, "left out, though a context states it"),
    IN_RELEVANT: ("generator", IN_RELEVANT, "not in the ground truth, from a relevant context"),
    IN_IRRELEVANT: ("generator", IN_IRRELEVANT, "not in the ground truth, from an irrelevant context"),
    HALLUCINATION: ("generator", HALLUCINATION, "not in the ground truth, in no context"),
}
# What else than entailment relations are, for the shares beside these measures: `precision_contradicted`
SPLIT = (PRECISION, RECALL, CLAIM_RECALL, FAITHFULNESS)
CONTRADICTED, UNSTATED = "contradicted", "neutral"


class Flag(NamedTuple):
    """Whether something holds: whether it must, and whether it may."""

    low: bool
    high: bool

    def __invert__(self) -> Flag:
        return Flag(not self.high, not self.low)

    def __and__(self, other: Flag) -> Flag:
        return Flag(self.low and other.low, self.high and other.high)

    @property
    def known(self) -> bool:
        """Whether it must or must not."""
        return self.low == self.high


@dataclass(frozen=True)
class Side:
    """The claims of a response or of its ground truth.

    whole: of each claim, how the other side's text relates to it; contexts: of each claim, how each context does.
    """

    whole: Sequence[Relation]
    contexts: Sequence[Sequence[Relation]]

    @property
    def unjudged(self) -> int:
        """How many relations could not be had."""
        return sum(one is None for row in (self.whole, *self.contexts) for one in row)

    @property
    def stated(self) -> list[Flag]:
        """Of each claim, whether the other side's text entails it."""
        return [is_entailed(one) for one in self.whole]

    @property
    def found(self) -> list[Flag]:
        """Of each claim, whether some context entails it."""
        return [any_of(map(is_entailed, row)) for row in self.contexts]


def is_entailed(relation: Relation) -> Flag:
    """Whether a claim is entailed."""
    return Flag(relation == ENTAILMENT, relation in (ENTAILMENT, None))


def any_of(flags: Iterable[Flag]) -> Flag:
    """Whether one of them holds."""
    several = list(flags)
    return Flag(any(flag.low for flag in several), any(flag.high for flag in several))


def relevant_contexts(truth: Side, contexts: int) -> list[Flag]:
    """Of each context, whether it entails a claim of the ground truth."""
    return [any_of(is_entailed(row[place]) for row in truth.contexts) for place in range(contexts)]


def share(flags: Sequence[Flag]) -> Bounded:
    """The share of what holds, over what is known; with the rest all against it, and all for it.

    >>> share([Flag(True, True), Flag(False, True), Flag(False, False), Flag(False, False)])
    Bounded(value=0.3333333333333333, low=0.25, high=0.5)
    """
    if not flags:
        return UNDEFINED
    known = [flag.low for flag in flags if flag.known]
    low, high = (sum(ends) / len(flags) for ends in zip(*flags, strict=True))
    return Bounded(sum(known) / len(known) if known else None, low, high)


def utilization(found: Sequence[Flag], stated: Sequence[Flag]) -> Bounded:
    """Of the claims that some context entails, the share that the response entails. Undefined without such claims.

    A claim that may be found lowers the share only where it may be left out, and raises it only where it may be stated.
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
    return Bounded(sum(known) / len(known) if known else None, low, high)


def _ratio(part: int, whole: int, otherwise: float) -> float:
    return part / whole if whole else otherwise


def measures_of(response: Side, truth: Side, contexts: int) -> dict[str, Bounded]:
    """All measures of a sample by name. Undefined is what RAGChecker sets to 0 because nothing can be divided.

    Of `noise_sensitivity_in_irrelevant` are claims that no relevant context entails; `not_retrieved` and `not_used` are
    the claims of the ground truth that the response leaves out, without and with a context that entails them.
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
    # Without contexts nothing is said of them
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
    return {**found, **missed, **split, **{name: Bounded(*[float(count)] * 3) for name, count in counts.items()}}


def _both(first: Sequence[Flag], second: Sequence[Flag]) -> list[Flag]:
    return [one & other for one, other in zip(first, second, strict=True)]


def _is_contradicted(relations: Sequence[Relation]) -> Flag:
    """Whether a text contradicts the claim, and none entails it."""
    no, said = ENTAILMENT not in relations, CONTRADICTION in relations
    return Flag(no and said and None not in relations, no and (said or None in relations))


def _is_unstated(relations: Sequence[Relation]) -> Flag:
    """Whether no text entails or contradicts the claim."""
    high = not {ENTAILMENT, CONTRADICTION} & set(relations)
    return Flag(high and None not in relations, high)


def names_of_measures() -> list[str]:
    """The measures that a sample has."""
    return list(measures_of(Side([], []), Side([], []), 0))
