"""Worlds and expected results of the metric rubric with blocked sources, by brute force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import Any

from tests.fakes.rubrics import ExpectedRubric, JudgedRubric, expected_rubric, normalised, rubric_worlds, share_of

Row = Mapping[str, Any]
BLOCKED = "https://blocked.org/paper"


@dataclass(frozen=True)
class BlockedSample:
    """A sample, and its response without the sentences that cite a blocked source, None if no sentence does."""

    sample: dict[str, Any]
    unblocked: str | None


def blocked_samples(count: int) -> list[BlockedSample]:
    """Return two samples for each world. Some responses cite no source, and some samples have no blocked sources."""
    found = []
    for seed, world in enumerate(rubric_worlds(count)):
        random = Random(f"blocked/{seed}")
        for sample in world.samples(2):
            wanted = [one["text"].partition("that ")[2] for one in normalised(sample["rubric"])]
            known = [*wanted, *wanted, *(leaf.sentence(0) for leaf in world._world.leaves)]
            texts = [random.choice(known) for _ in range(random.choice((0, 1, 3, 6)))]
            sources = [random.choice((None, BLOCKED, "https://a.org")) for _ in texts]
            said = [text if url is None else _cited(text, url) for text, url in zip(texts, sources, strict=True)]
            left = [_cited("", url) if url == BLOCKED else text for text, url in zip(said, sources, strict=True)]
            is_told = seed % 5 != 4
            more = {"blocked_sources": ["http://blocked.org/paper/", "https://b.org"]} if is_told else {}
            row = {**sample, "response": " ".join(said) or " \n", **more}
            found.append(BlockedSample(row, " ".join(left) if is_told and BLOCKED in sources else None))
    return found


def _cited(text: str, url: str) -> str:
    return f"{text} [[1]]({url})"


def judged_without_blocked(judge: JudgedRubric, one: BlockedSample) -> ExpectedRubric:
    """Send all requests of a sample, and return its result."""
    criteria = normalised(one.sample["rubric"])
    whole, *rest = (
        judge._verdicts(one.sample["query"], text, criteria)
        for text in (one.sample["response"], *([] if one.unblocked is None else [one.unblocked]))
    )
    verdicts = [_lesser(*each) for each in zip(criteria, whole, rest[0] if rest else whole, strict=True)]
    expected = expected_rubric(one.sample, verdicts, [], judge.score)
    if "blocked_sources" not in one.sample:
        return expected
    flags = [None if last is None else last != first for first, last in zip(whole, verdicts, strict=True)]
    low, high = (
        float(Fraction(flags.count(True) + more, len(flags))) if flags else None for more in (0, flags.count(None))
    )
    known = len(flags) - flags.count(None)
    value = float(Fraction(flags.count(True), known)) if known and expected.status != "failed" else None
    return replace(expected, measures={**expected.measures, "blocked_rate": (value, low, high)})


def _lesser(criterion: Row, whole: str | None, unblocked: str | None) -> str | None:
    """Return the verdict with less credit for a wanted criterion."""
    half = Fraction(1, 2)
    if criterion["points"] <= 0 or (whole is not None and not share_of(criterion, whole, half)):
        return whole
    if whole is None or unblocked is None:
        return None
    return unblocked if share_of(criterion, unblocked, half) < share_of(criterion, whole, half) else whole


def texts_judged(samples: Sequence[BlockedSample]) -> int:
    """Return the number of responses that are judged twice."""
    return sum(one.unblocked is not None for one in samples)
