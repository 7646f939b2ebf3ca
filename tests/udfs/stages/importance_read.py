"""Return the parsed completions of the stages of importance, without the parts that the tests do not need."""

from __future__ import annotations

from collections.abc import Sequence

from untold.udfs.ratings import Digit
from untold.udfs.stages.importance import (
    CHECK_COVERAGE,
    EXTRACT_FACTS,
    EXTRACT_VERIFIABLE_CLAIMS,
    RATE_IMPORTANCE,
    VERIFY_CLAIM,
)

IMPORTANCE = (EXTRACT_FACTS, EXTRACT_VERIFIABLE_CLAIMS, RATE_IMPORTANCE, VERIFY_CLAIM, CHECK_COVERAGE)


def facts(completion: str, text: str = "t") -> list[str]:
    found: list[str] = EXTRACT_FACTS.parse(completion, {"text": text})["facts"]
    return found


def ratings(completion: str, of: Sequence[str] = ("It is old.", "It is high.")) -> list[tuple[int, int]]:
    """Return the relevance and salience by fact, and check that each digit is at its offset in the completion."""
    found: dict[str, list[Digit]] = RATE_IMPORTANCE.parse(completion, {"query": "q", "facts": list(of)})
    digits = [digit for scale in ("relevance", "salience") for digit in found[scale]]
    assert all(digit.offset < 0 or completion[digit.offset] == str(digit.value) for digit in digits)
    return [(one.value, other.value) for one, other in zip(found["relevance"], found["salience"], strict=True)]


def verdict(completion: str, claim: str = "It is wet.", evidence: Sequence[str] = ("It rains.",)) -> str:
    found: str = VERIFY_CLAIM.parse(completion, {"claim": claim, "evidence": list(evidence)})["relation"]
    return found


def covering(completion: str, claims: Sequence[str] = ("It is old.", "It is high.", "It is red.")) -> list[int]:
    """Return the numbers of the claims, or an empty list if the fact is not covered."""
    found = CHECK_COVERAGE.parse(completion, {"fact": "It is so.", "claims": list(claims)})
    assert found["covered"] is bool(found["claims"])
    numbers: list[int] = found["claims"]
    return numbers
