"""A sample of nuggets as lines: what is not supported, in part and in whole, the vital nuggets first."""

from __future__ import annotations

from collections.abc import Iterator

from untold.graph.views import one_line
from untold.jobs.metrics.source_lines import INDENT, Line
from untold.jobs.metrics.views import BLANK, View, count, required
from untold.udfs.facts.nugget_measures import NOT_SUPPORT, PARTIAL, SUPPORT

HEADINGS = {NOT_SUPPORT: "missing", PARTIAL: "supported in part", None: "not judged", SUPPORT: "supported"}


class NuggetView(View):
    """A sample whose statements are nuggets."""

    statement = "nugget"
    unjudged = "nugget"
    dropped = "beyond nuggets.keep left out"

    def lines(self) -> Iterator[Line]:
        """Nuggets by their support, each with its importance, and its weight where one was given."""
        nuggets = sorted(required(self.rows.statements), key=lambda row: row["rank"])
        for support, heading in HEADINGS.items():
            own = [(number, row) for number, row in enumerate(nuggets, start=1) if row["support"] == support]
            if own:
                yield BLANK
                yield f"{heading}: {count(len(own), self.statement)}, vital ones first", "", ""
            for number, row in own:
                weight = "" if row["weight"] is None else f", weight {row['weight']:g}"
                yield f"{one_line(row['text'] or '')} ({row['importance']}{weight})", f"  {number:>3}  ", INDENT
