"""Return the parsed completions of the stages of icat, without the parts that the tests do not need."""

from __future__ import annotations

from collections.abc import Sequence

from untold.udfs.stages.importance import ALIGN_CLAIMS, EXTRACT_CLAIMS, GENERATE_ASPECTS

ICAT = (EXTRACT_CLAIMS, GENERATE_ASPECTS, ALIGN_CLAIMS)


def claims(completion: str, text: str = "t") -> list[str]:
    found: list[str] = EXTRACT_CLAIMS.parse(completion, {"text": text})["claims"]
    return found


def aspects(completion: str) -> list[str]:
    found: list[str] = GENERATE_ASPECTS.parse(completion, {"query": "q"})["aspects"]
    return found


def evidence(
    completion: str, among: Sequence[str] = ("age", "height", "use"), of: Sequence[str] = ("It is old.", "It is high.")
) -> list[list[int]]:
    """Return the numbers of the claims by aspect."""
    variables = {"query": "q", "aspects": list(among), "claims": list(of)}
    found: list[list[int]] = ALIGN_CLAIMS.parse(completion, variables)["evidence"]
    return found
