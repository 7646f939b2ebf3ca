"""Return the parsed completions of the stages of nli, without the parts that the tests do not need."""

from __future__ import annotations

from untold.udfs.ratings import Digit
from untold.udfs.stages.nli import (
    CLASSIFY_RELATION,
    EXTRACT_ATOMS,
    RATE_RELEVANCE,
    REVISE_ATOMS,
)

NLI = (EXTRACT_ATOMS, REVISE_ATOMS, RATE_RELEVANCE, CLASSIFY_RELATION)
Units = list[tuple[str, str]]


def units(completion: str) -> Units:
    row = EXTRACT_ATOMS.parse(completion, {"text": "t"})
    return [(atom["text"], atom["unit_type"]) for atom in row["atoms"]]


def revised(completion: str) -> list[str]:
    atoms: list[str] = REVISE_ATOMS.parse(completion, {"text": "t", "statements": ["a"]})["atoms"]
    return atoms


def ratings(completion: str, statements: list[str]) -> list[int]:
    """Return the ratings, and check that each digit is at its offset in the completion."""
    digits: list[Digit] = RATE_RELEVANCE.parse(completion, {"query": "?", "statements": statements})["ratings"]
    assert [completion[digit.offset] for digit in digits] == [str(digit.value) for digit in digits]
    return [digit.value for digit in digits]


def relation(completion: str, premise: str = "It rains.", hypothesis: str = "It is wet.") -> str:
    found: str = CLASSIFY_RELATION.parse(completion, {"premise": premise, "hypothesis": hypothesis})["relation"]
    return found
