"""A sample's ground truth, and what RAGChecker's files have of its claims: as they are given, and as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from untold.udfs.samples.values import finite, text_of

RESPONSE, TRUTH = SIDES = ("response", "ground_truth")
# By side the fields of `claim_checks`: its claims, what the other side's text makes of each, what each context does
FIELDS = {
    RESPONSE: ("response_claims", "answer2response", "retrieved2response"),
    TRUTH: ("gt_answer_claims", "response2answer", "retrieved2answer"),
}
LABELS = ("entailment", "neutral", "contradiction")
# What a checker says that does not judge: it does not count as entailed
ABSTAIN = "abstain"
Checks = Mapping[str, Any] | None
Relations = Sequence[str | None]


def normalise_ground_truth(value: Any) -> dict[str, Any] | None:
    """A ground truth as {text, claims}, null as None; of claims alone the text is their lines.

    Raises ValueError that says what is wrong, without the text.

    >>> normalise_ground_truth("Bees make honey.")
    {'text': 'Bees make honey.', 'claims': None}
    >>> normalise_ground_truth(["Bees make honey.", "Ice floats."])["text"]
    'Bees make honey.\\nIce floats.'
    """
    if finite(value) is None:
        return None
    fields = value if isinstance(value, dict) else {"claims" if isinstance(value, list) else "text": value}
    claims = _claims(fields.get("claims"), "claims of ground_truth")
    text = finite(fields.get("text"))
    if isinstance(text, list | dict) or (text is None and claims is None):
        raise ValueError("ground_truth is neither text nor a list of claims")
    return {"text": "\n".join(claims or ()) if text is None else text_of(text), "claims": claims}


def normalise_checks(value: Any) -> dict[str, Any] | None:
    """The fields of RAGChecker's results by name, null where they are not there; labels in lower case.

    Claims in parts, as its triplets are, become one text. Raises ValueError that says what is wrong, without a text.
    """
    if finite(value) is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("claim_checks is no object")
    found: dict[str, Any] = {}
    for claims, whole, retrieved in FIELDS.values():
        found[claims] = _claims(value.get(claims), claims)
        found[whole] = _labels(value.get(whole), whole)
        rows = value.get(retrieved)
        if rows is not None and not isinstance(rows, list):
            raise ValueError(f"{retrieved} is no list")
        found[retrieved] = None if rows is None else [_labels(row, retrieved) or [] for row in rows]
        for name in (whole, retrieved):
            count, wanted = len(found[name] or ()), len(found[claims] or ())
            if found[name] is not None and count != wanted:
                raise ValueError(f"the length of {name} is {count:,}, and that of {claims} {wanted:,}")
        if found[claims] is None:
            # Relations of no claims say nothing of those that will be extracted
            found[whole] = found[retrieved] = None
    return found


def check_contexts(checks: Checks, contexts: Sequence[Any]) -> str | None:
    """What is wrong with the relations of contexts to a claim, which are as many as the contexts; None for nothing."""
    for name in ("retrieved2response", "retrieved2answer"):
        for row in (checks or {}).get(name) or ():
            if len(row) != len(contexts):
                return f"the length of a row of {name} is {len(row):,}, and that of contexts {len(contexts):,}"
    return None


def given_claims(checks: Checks, truth: Mapping[str, Any], side: str) -> list[str] | None:
    """The claims of a side that a sample brings; None where they have to be extracted."""
    claims: list[str] | None = (checks or {}).get(FIELDS[side][0])
    return truth["claims"] if claims is None and side == TRUTH else claims


def given_relations(checks: Checks, side: str) -> tuple[Relations | None, Sequence[Relations] | None]:
    """What a sample brings of a side's claims: of each its relation to the other text, and those to the contexts."""
    _, whole, retrieved = FIELDS[side]
    return (checks or {}).get(whole), (checks or {}).get(retrieved)


def _claims(value: Any, what: str) -> list[str] | None:
    if finite(value) is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"{what} is no list")
    texts = [" ".join(map(str, one)) if isinstance(one, list) else text_of(one) for one in value]
    if any(text is None for text in texts) or any(isinstance(one, dict) for one in value):
        raise ValueError(f"{what} holds what is no text")
    return [text for text in texts if text is not None]


def _labels(value: Any, what: str) -> list[str | None] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"{what} is no list")
    labels = [None if finite(one) is None else str(one).lower() for one in value]
    if any(label not in (*LABELS, ABSTAIN, None) for label in labels):
        raise ValueError(f"{what} has a relation that is none of {', '.join(LABELS)}")
    return ["neutral" if label == ABSTAIN else label for label in labels]
