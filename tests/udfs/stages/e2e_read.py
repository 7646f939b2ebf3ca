"""Return the parsed completions of the stages of e2e, without the parts that the tests do not need."""

from __future__ import annotations

from untold.udfs.stages.e2e import EVALUATE_COVERAGE, SUMMARISE_CONTEXT

Read = list[tuple[str, bool, list[int]]]


def coverage(completion: str, contexts: int = 3) -> Read:
    variables = {"query": "?", "contexts": ["text"] * contexts, "response": "answer"}
    row = EVALUATE_COVERAGE.parse(completion, variables)
    return [(each["text"], each["covered"], each["sources"]) for each in row["statements"]]


def lists(covered: str, uncovered: str) -> str:
    return f"[Covered statements]\n{covered}\n[Uncovered statements]\n{uncovered}"


def summary(completion: str) -> str | None:
    result: str | None = SUMMARISE_CONTEXT.parse(completion, {"query": "?", "text": "t"})["summary"]
    return result
