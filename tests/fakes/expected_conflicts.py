"""The expected results of the metric e2e for conflicts of contexts, by brute force (methods, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.answers import expected_e2e
from tests.fakes.expected import contexts_of
from tests.fakes.facts import conflicts_among, conveys, normalise, summarise

# The text, the ids of its contexts, and its coverage by the response, None if lost
Side = tuple[str, list[str], bool | None]
Ask = Callable[..., bool]
COVERAGE: Mapping[tuple[bool | None, bool | None], str] = {
    (True, True): "both",
    (True, False): "first",
    (False, True): "second",
    (False, False): "neither",
}


@dataclass(frozen=True)
class ExpectedConflicts:
    """The expected result of a sample: the status of its score, and the sides of its conflicts.

    `known`: its conflicts are known. `whole`: all sides are known.
    """

    status: str
    conflicts: list[tuple[Side, Side]] = field(default_factory=list)
    known: bool = True
    whole: bool = True

    @property
    def rows(self) -> list[list[Any]]:
        """Return first, its sources, second, its sources, and coverage of each conflict, sorted."""
        rows = [[*a[:2], *b[:2], COVERAGE.get((a[2], b[2]))] for a, b in self.conflicts]
        return sorted(rows, key=str)

    @property
    def measures(self) -> dict[str, tuple[float | None, float | None, float | None]]:
        """Return value, low and high by name."""
        coverage = [row[4] for row in self.rows if row[4] is not None]
        found: dict[str, tuple[float | None, float | None, float | None]] = {
            "conflicts": (float(len(self.conflicts)) if self.known else None, None, None)
        }
        for name, wanted in (("conflict_coverage", ("both",)), ("one_sided", ("first", "second"))):
            share = sum(one in wanted for one in coverage) / len(coverage) if coverage else None
            found[name] = (share, share, share) if self.known and self.whole else (share, 0.0, 1.0)
        return found


def expected_conflicts(sample: Mapping[str, Any], judge: str, ask: Ask = lambda stage, **_: True) -> ExpectedConflicts:
    """Return the expected result of a sample. `ask` is called with each request, and returns True for a success."""
    query, response, texts = sample["query"], sample["response"], contexts_of(sample)
    read = {name: ask("summarise_context", query=query, text=text) for name, text in texts.items()}
    if not all(read.values()):
        return ExpectedConflicts("failed", known=False)
    shown = {name: text for name, whole in texts.items() if (text := summarise(whole)) is not None}
    if not shown:
        return ExpectedConflicts("no_statements")
    contexts = list(shown.values())
    judged = ask("evaluate_coverage", query=query, contexts=contexts, response=response)
    listed = len(contexts) < 2 or ask("list_conflicts", query=query, contexts=contexts)
    covered, uncovered = expected_e2e(query, contexts, response)
    status = "failed" if not judged else "ok" if covered or uncovered else "no_statements"
    if not judged or not listed or len(contexts) < 2:
        return ExpectedConflicts(status, known=judged and listed)
    known: dict[str, bool | None] = dict.fromkeys((normalise(text) for text, _ in covered), True)
    known |= dict.fromkeys((normalise(text) for text, _ in uncovered), False)
    pairs = _distinct_pairs(contexts, judge)
    asked = sorted({text for pair in pairs for text, _ in pair if normalise(text) not in known})
    told = not asked or not response.strip() or ask("cover_sides", response=response, statements=asked)
    names = list(shown)

    def side(text: str, numbers: list[int]) -> Side:
        said = known[normalise(text)] if normalise(text) in known else conveys(response, text, judge) if told else None
        return text, [names[number - 1] for number in numbers], said

    return ExpectedConflicts(status, [(side(*one), side(*other)) for one, other in pairs], whole=told)


def _distinct_pairs(contexts: list[str], judge: str) -> list[tuple[tuple[str, list[int]], tuple[str, list[int]]]]:
    """Return the distinct pairs of texts with their numbers."""
    found = {}
    for first, first_sources, second, second_sources in conflicts_among(contexts, judge):
        pair = frozenset((normalise(first), normalise(second)))
        if len(pair) > 1:
            found.setdefault(pair, ((first, first_sources), (second, second_sources)))
    return list(found.values())
