"""A sample of importance as lines: which facts are missing, which claims are contradicted, and what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from untold.graph.views import one_line
from untold.jobs.metrics.claim_lines import ClaimView
from untold.jobs.metrics.source_lines import Line, stating_lines
from untold.jobs.metrics.views import BLANK, INDENT, Row, count, required, wordings

CONTRADICTED = "contradicted"


class FactView(ClaimView):
    """A sample whose statements are ranked facts, beside its verified claims."""

    statement = "fact"
    unjudged = "verdict"
    dropped = "beyond importance.max_facts left out"

    def lines(self) -> Iterator[Line]:
        """Missing facts, the most important first, contradicted claims with their evidence, then what is covered."""
        facts = list(enumerate(required(self.rows.statements), start=1))
        if self.rows.statements:
            yield from self._facts(facts)
        yield from self._others()

    def _facts(self, facts: Sequence[tuple[int, Row]]) -> Iterator[Line]:
        missing = [(number, row) for number, row in facts if row["covered"] is False]
        unjudged = [(number, row) for number, row in facts if row["covered"] is None]
        covered = [(number, row) for number, row in facts if row["covered"]]
        yield from self._part(f"missing: {count(len(missing), 'fact')}, most important first", missing)
        if unjudged:
            yield from self._part(f"not judged: {count(len(unjudged), 'fact')}", unjudged)
        yield from self._contradicted()
        yield from self._part(f"covered: {count(len(covered), 'fact')}", covered)
        left_out = len(self.rows.statements) - len(facts)
        if left_out:
            yield f"{left_out:,} more that an answer need not give (importance.min_weight, importance.top_k)", "", ""

    def _part(self, heading: str, facts: Sequence[tuple[int, Row]]) -> Iterator[Line]:
        yield BLANK
        yield heading, "", ""
        for number, row in facts:
            yield from self._fact(number, row)

    def _fact(self, number: int, row: Row) -> Iterator[Line]:
        yield f"{one_line(row['text'] or '')} ({_weight_of(row)})", f"  {number:>3}  ", INDENT
        yield from stating_lines(row["text"] or "", row["sources"], self.rows.contexts, quoted=row["covered"] is False)
        yield from wordings(row)
        for name in row.get("claims") or ():
            if name in self.by_id:
                yield one_line(self.by_id[name]["text"] or ""), f"{INDENT}claim: ", f"{INDENT}  "

    def _contradicted(self) -> Iterator[Line]:
        found = [row for row in self.by_id.values() if row["verdict"] == CONTRADICTED]
        if not found:
            return
        yield BLANK
        yield f"contradicted: {count(len(found), 'claim')}", "", ""
        for row in found:
            yield one_line(row["text"] or ""), INDENT, f"{INDENT}  "
            for chunk in row["evidence"] or ():
                text = one_line(self.texts.get(chunk, ""))
                yield text, f"{INDENT}  {one_line(chunk)}: ", f"{INDENT}    "

    def _others(self) -> Iterator[Line]:
        """The claims that are not contradicted and cover no fact, each with its verdict."""
        covering = {name for row in self.rows.statements for name in row.get("claims") or ()}
        others = [row for name, row in self.by_id.items() if name not in covering and row["verdict"] != CONTRADICTED]
        if not others:
            return
        yield BLANK
        yield f"of no fact: {count(len(others), 'claim')}", "", ""
        for row in others:
            verdict = one_line(row["verdict"] or "not judged").replace("_", " ")
            yield one_line(row["text"] or ""), f"{INDENT}{verdict}: ", f"{INDENT}  "


def _weight_of(row: Row) -> str:
    """A fact's weight, with the ratings that it is made of, where it is."""
    weight = f"weight {row['weight']:.2f}"
    if row["relevance"] is None:
        return weight
    return f"{weight}: relevance {row['relevance']:.1f}, salience {row['salience']:.1f}"
