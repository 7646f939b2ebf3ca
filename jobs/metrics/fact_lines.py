"""The facts and claims of one sample of importance as lines: what is missing, what is contradicted, what is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from untold.graph.views import one_line
from untold.jobs.metrics.claim_lines import ClaimLines, Line, Row
from untold.jobs.metrics.source_lines import stating_lines

CONTRADICTED = "contradicted"
_INDENT = "       "


def are_ranked(statements: Sequence[Row]) -> bool:
    """Whether statements are facts with ranks, as importance gives them."""
    return any(row.get("rank") is not None for row in statements)


def wanted(statements: Sequence[Row]) -> list[Row]:
    """The facts that an answer ought to give."""
    return [row for row in statements if row.get("kept") is not False]


@dataclass(frozen=True)
class FactLines:
    """Rows of `statements` of one sample, in the order of `order_statements`, its claims, and its contexts by id."""

    statements: Sequence[Row]
    claims: ClaimLines
    contexts: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[Line]:
        """Missing facts, the most important first, contradicted claims with their evidence, then what is covered."""
        facts = list(enumerate(wanted(self.statements), start=1))
        missing = [(number, row) for number, row in facts if row["covered"] is False]
        unjudged = [(number, row) for number, row in facts if row["covered"] is None]
        covered = [(number, row) for number, row in facts if row["covered"]]
        yield from self._part(f"missing: {_count(missing, 'fact')}, most important first", missing)
        if unjudged:
            yield from self._part(f"not judged: {_count(unjudged, 'fact')}", unjudged)
        yield from self._contradicted()
        yield from self._part(f"covered: {_count(covered, 'fact')}", covered)
        left_out = len(self.statements) - len(facts)
        if left_out:
            yield f"{left_out:,} more that an answer need not give (importance.min_weight, importance.top_k)", "", ""
        yield from self._others()

    def _part(self, heading: str, facts: Sequence[tuple[int, Row]]) -> Iterator[Line]:
        yield "", "", ""
        yield heading, "", ""
        for number, row in facts:
            yield from self._fact(number, row)

    def _fact(self, number: int, row: Row) -> Iterator[Line]:
        yield f"{one_line(row['text'] or '')} ({_weight_of(row)})", f"  {number:>3}  ", _INDENT
        yield from stating_lines(row["text"] or "", row["sources"], self.contexts, quoted=row["covered"] is False)
        for member in row["members"] or ():
            if member != row["text"]:
                yield one_line(member), f"{_INDENT}also: ", f"{_INDENT}  "
        for name in row.get("claims") or ():
            if name in self.claims.by_id:
                yield one_line(self.claims.by_id[name]["text"] or ""), f"{_INDENT}claim: ", f"{_INDENT}  "

    def _contradicted(self) -> Iterator[Line]:
        found = [row for row in self.claims.by_id.values() if row["verdict"] == CONTRADICTED]
        if not found:
            return
        yield "", "", ""
        yield f"contradicted: {_count(found, 'claim')}", "", ""
        for row in found:
            yield one_line(row["text"] or ""), _INDENT, f"{_INDENT}  "
            for chunk in row["evidence"] or ():
                text = one_line(self.claims.texts.get(chunk, ""))
                yield text, f"{_INDENT}  {one_line(chunk)}: ", f"{_INDENT}    "

    def _others(self) -> Iterator[Line]:
        """The claims that are not contradicted and cover no fact, each with its verdict."""
        covering = {name for row in self.statements for name in row.get("claims") or ()}
        others = [
            row for name, row in self.claims.by_id.items() if name not in covering and row["verdict"] != CONTRADICTED
        ]
        if not others:
            return
        yield "", "", ""
        yield f"of no fact: {_count(others, 'claim')}", "", ""
        for row in others:
            verdict = one_line(row["verdict"] or "not judged").replace("_", " ")
            yield one_line(row["text"] or ""), f"{_INDENT}{verdict}: ", f"{_INDENT}  "


def _weight_of(row: Row) -> str:
    """A fact's weight, with the ratings that it is made of, where it is."""
    weight = f"weight {row['weight']:.2f}"
    if row["relevance"] is None:
        return weight
    return f"{weight}: relevance {row['relevance']:.1f}, salience {row['salience']:.1f}"


def _count(rows: Sequence[object], word: str) -> str:
    return f"{len(rows):,} {word}{'' if len(rows) == 1 else 's'}"
