"""The candidates of one sample as lines: what was shown for a reference that nothing covers, and what covers none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from untold.graph.views import one_line

Row = Mapping[str, Any]
# A line with what stands before it, and before those that it is wrapped to
Line = tuple[str, str, str]
FOUND_BY = {"lexical": "by words", "semantic": "by vectors"}


@dataclass(frozen=True)
class CandidateLines:
    """Rows of one sample and metric: of `candidates`, and of `claims`, its generated facts."""

    rows: Sequence[Row] = ()
    claims: Sequence[Row] = ()

    @cached_property
    def by_statement(self) -> Mapping[str, Sequence[Row]]:
        """The candidates of each reference as they were shown: by words first, by rank."""
        found: dict[str, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: (row["step"], row["rank"])):
            found.setdefault(row["statement_id"], []).append(row)
        return found

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """What the generated facts say, by their ids, in the order of the response."""
        ordered = sorted(self.claims, key=lambda row: row["position"] or 0)
        return {row["claim_id"]: one_line(row["text"] or "") for row in ordered}

    def best(self, statement: Row) -> Iterator[Line]:
        """The candidates of a reference that nothing covers, with what spoke for each."""
        shown = self.by_statement.get(statement["statement_id"], ())
        if not shown:
            yield "nothing is near it", "       ", "       "
        for row in shown:
            state = "not judged" if row["chosen"] is None else "rejected"
            start = f"       {state}, found {FOUND_BY.get(row['step'], one_line(row['step']))} ({_likeness(row)}): "
            yield self.texts.get(row["claim_id"], ""), start, "         "

    def covering(self, names: Iterable[str] | None) -> Iterator[Line]:
        """The generated facts that cover a reference."""
        for name in names or ():
            yield self.texts.get(name, ""), "       fact: ", "         "

    def others(self, covering: Iterable[str]) -> Iterator[Line]:
        """The generated facts that cover no reference."""
        used = set(covering)
        rest = [text for name, text in self.texts.items() if name not in used]
        if rest:
            yield f"of no reference: {len(rest):,} fact{'' if len(rest) == 1 else 's'}", "", ""
        for text in rest:
            yield text, "       fact: ", "         "


def _likeness(row: Row) -> str:
    """J, L and the cosine, as far as there are any."""
    known = (("J", row["jaccard"]), ("L", row["lcs"]), ("cosine", row["cosine"]))
    return ", ".join(f"{name} {value:.2f}" for name, value in known if value is not None)
