"""A sample of rag as lines: which half of the pipeline to blame, what is left out, and which claims are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from untold.graph.views import one_line
from untold.jobs.metrics.source_lines import Line
from untold.jobs.metrics.views import BLANK, INDENT, Row, View, count
from untold.udfs.facts.claim_verdicts import SUPPORTED
from untold.udfs.facts.rag_measures import FAULTS, HALLUCINATION, IN_IRRELEVANT, IN_RELEVANT, NOT_RETRIEVED, NOT_USED


def faults_of(statements: Sequence[Row], claims: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Of each fault of `FAULTS` that a sample has, how many claims it is of, and out of how many; most shares first."""
    missing = [row for row in statements if row["covered"] is False]
    relevant = {name for row in statements for name in row["sources"] or ()}
    kinds = Counter(NOT_USED if row["sources"] else NOT_RETRIEVED for row in missing)
    for row in _wrong(claims):
        kinds[
            HALLUCINATION if not row["evidence"] else IN_RELEVANT if relevant & {*row["evidence"]} else IN_IRRELEVANT
        ] += 1
    totals = {name: len(statements if name in (NOT_RETRIEVED, NOT_USED) else claims) for name in kinds}
    order = sorted(kinds, key=lambda name: (-kinds[name] / totals[name], list(FAULTS).index(name)))
    return {name: (kinds[name], totals[name]) for name in order}


def _wrong(claims: Sequence[Row]) -> list[Row]:
    """The claims that the ground truth does not entail, in the order of the response."""
    found = [row for row in claims if row["verdict"] not in (None, SUPPORTED)]
    return sorted(found, key=lambda row: row["position"] or 0)


class RagView(View):
    """A sample whose statements are the claims of its ground truth, beside those of the response."""

    statement = "ground-truth claim"
    unjudged = "relation"

    def lines(self) -> Iterator[Line]:
        """The faults, the gravest first, then the claims that are missing and covered, then those that are wrong."""
        for number, (name, (wrong, total)) in enumerate(faults_of(self.rows.statements, self.rows.claims).items()):
            half, measure, what = FAULTS[name]
            of = self.statement if name in (NOT_RETRIEVED, NOT_USED) else "claim"
            if not number:
                yield BLANK
            yield f"{half}: {wrong:,} of {count(total, of)} {what} ({measure})", "", "  "
        yield from super().lines()

    def rest(self) -> Iterator[Line]:
        """The claims of the response that the ground truth does not entail, with the contexts that state each."""
        wrong = _wrong(self.rows.claims)
        if not wrong:
            return
        yield BLANK
        yield f"not in the ground truth: {count(len(wrong), 'claim')}", "", ""
        for row in wrong:
            verdict = row["verdict"].replace("_", " ")
            yield one_line(row["text"] or ""), f"{INDENT}{verdict}: ", f"{INDENT}  "
            names = ", ".join(map(one_line, row["evidence"] or ()))
            yield (f"stated in context {names}" if names else "stated in no context"), f"{INDENT}  ", f"{INDENT}    "
