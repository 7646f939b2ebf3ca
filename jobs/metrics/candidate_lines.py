"""A sample of longrecall as lines: what was shown for a reference that nothing covers, and which facts cover none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from untold.graph.views import one_line
from untold.jobs.metrics.source_lines import Line
from untold.jobs.metrics.views import BLANK, INDENT, Row, View, count

FOUND_BY = {"lexical": "by words", "semantic": "by vectors"}


class ReferenceView(View):
    """A sample whose statements are references, beside the facts of its response."""

    statement = unjudged = "reference"
    dropped = "beyond longrecall.max_facts left out"

    @cached_property
    def by_statement(self) -> Mapping[str, Sequence[Row]]:
        """The candidates of each reference as they were shown: by words first, by rank."""
        found: dict[str, list[Row]] = {}
        for row in sorted(self.rows.candidates, key=lambda row: (row["step"], row["rank"])):
            found.setdefault(row["statement_id"], []).append(row)
        return found

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """What the generated facts say, by their ids, in the order of the response."""
        ordered = sorted(self.rows.claims, key=lambda row: row["position"] or 0)
        return {row["claim_id"]: one_line(row["text"] or "") for row in ordered}

    def below(self, statement: Row) -> Iterator[Line]:
        """The facts that cover a reference; of one that nothing covers its candidates, with what spoke for each."""
        for name in statement.get("claims") or ():
            yield self.texts.get(name, ""), f"{INDENT}fact: ", f"{INDENT}  "
        if not statement["covered"]:
            yield from self._candidates(statement)

    def _candidates(self, statement: Row) -> Iterator[Line]:
        shown = self.by_statement.get(statement["statement_id"], ())
        if not shown:
            yield "nothing is near it", INDENT, INDENT
        for row in shown:
            state = "not judged" if row["chosen"] is None else "rejected"
            start = f"{INDENT}{state}, found {FOUND_BY.get(row['step'], one_line(row['step']))} ({_likeness(row)}): "
            yield self.texts.get(row["claim_id"], ""), start, f"{INDENT}  "

    def rest(self) -> Iterator[Line]:
        """The facts of the response that cover no reference."""
        used = {name for row in self.rows.statements for name in row.get("claims") or ()}
        rest = [text for name, text in self.texts.items() if name not in used]
        if rest:
            yield BLANK
            yield f"of no reference: {count(len(rest), 'fact')}", "", ""
        for text in rest:
            yield text, f"{INDENT}fact: ", f"{INDENT}  "


def _likeness(row: Row) -> str:
    """J, L and the cosine, as far as there are any."""
    known = (("J", row["jaccard"]), ("L", row["lcs"]), ("cosine", row["cosine"]))
    return ", ".join(f"{name} {value:.2f}" for name, value in known if value is not None)
