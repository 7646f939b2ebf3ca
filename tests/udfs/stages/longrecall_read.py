"""Return the parsed completions of the stages of longrecall, without the parts that the tests do not need."""

from __future__ import annotations

from collections.abc import Sequence

from untold.udfs.stages.longrecall import MATCH_HOLISTIC, MATCH_MANY, MATCH_ONE, RESOLVE_COREFERENCE

LONGRECALL = (RESOLVE_COREFERENCE, MATCH_ONE, MATCH_MANY, MATCH_HOLISTIC)
FACTS = ("It is high.", "It is old.", "Ada Fenn built it.")


def resolved(completion: str, facts: Sequence[str] = FACTS, text: str = "t") -> list[str]:
    found: list[str] = RESOLVE_COREFERENCE.parse(completion, {"text": text, "facts": list(facts)})["facts"]
    return found


def matched(completion: str, reference: str = "It is high.", candidate: str = "It is 41 m high.") -> bool:
    found: bool = MATCH_ONE.parse(completion, {"reference": reference, "candidate": candidate})["matched"]
    return found


def chosen(completion: str, candidates: Sequence[str] = FACTS) -> list[int]:
    """Return the numbers of the candidates."""
    variables = {"reference": "r", "candidates": list(candidates)}
    found: list[int] = MATCH_MANY.parse(completion, variables)["candidates"]
    return found


def mapped(
    completion: str, references: Sequence[str] = ("age", "height"), candidates: Sequence[str] = FACTS
) -> list[list[int]]:
    """Return the numbers of the candidates by reference."""
    variables = {"query": "q", "references": list(references), "candidates": list(candidates)}
    found: list[list[int]] = MATCH_HOLISTIC.parse(completion, variables)["candidates"]
    return found
