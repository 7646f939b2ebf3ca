"""A sample of icat as lines: which claims cover an aspect, which chunks ground them, and which nothing grounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from untold.graph.views import one_line
from untold.jobs.metrics.source_lines import Line
from untold.jobs.metrics.views import BLANK, INDENT, Row, View, count

SUPPORTED = "supported"


class ClaimView(View):
    """A sample whose claims are verified: what it says of aspects is that of icat."""

    statement = "aspect"
    unjudged = "claim"

    @cached_property
    def by_id(self) -> Mapping[str, Row]:
        """The claims by their ids, in the order of the response."""
        return {row["claim_id"]: row for row in sorted(self.rows.claims, key=lambda row: row["position"] or 0)}

    @cached_property
    def nearest(self) -> Mapping[str, Row]:
        """By claim, its pair with the chunk of the first rank that was to be judged."""
        ranked = sorted(self.rows.evidence, key=lambda row: (row["rank"], row["chunk_id"]), reverse=True)
        return {row["claim_id"]: row for row in ranked}

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """What the chunks say, by their ids."""
        return {row["chunk_id"]: row["text"] or "" for row in self.rows.chunks}

    def chunk_ids(self) -> list[str]:
        """What grounds a claim, else what is nearest to it."""
        grounding = {chunk for row in self.rows.claims for chunk in row["evidence"] or ()}
        nearest = {row["chunk_id"] for name, row in self.nearest.items() if not self._is_grounded(name)}
        return sorted(grounding | nearest)

    def _is_grounded(self, name: str) -> bool:
        return name in self.by_id and self.by_id[name]["verdict"] == SUPPORTED

    def below(self, statement: Row) -> Iterator[Line]:
        """The claims that cover an aspect, each with the chunks that ground it."""
        return self._covering(statement.get("claims") or ())

    def _covering(self, names: Iterable[str]) -> Iterator[Line]:
        for name in names:
            if name in self.by_id:
                yield one_line(self.by_id[name]["text"] or ""), f"{INDENT}claim: ", f"{INDENT}  "
                yield from self._grounding(self.by_id[name])

    def _grounding(self, claim: Row) -> Iterator[Line]:
        for chunk in claim["evidence"] or ():
            yield one_line(self.texts.get(chunk, "")), f"         {one_line(chunk)}: ", "           "

    def rest(self) -> Iterator[Line]:
        """The grounded claims that cover nothing, then those that nothing grounds, each with its nearest chunk."""
        used = {name for row in self.rows.statements for name in row.get("claims") or ()}
        grounded = [name for name in self.by_id if self._is_grounded(name) and name not in used]
        if grounded:
            yield BLANK
            yield f"grounded, but of no aspect: {count(len(grounded), 'claim')}", "", ""
            yield from self._covering(grounded)
        rest = [name for name in self.by_id if not self._is_grounded(name)]
        if rest:
            if not grounded:
                yield BLANK
            yield f"not grounded: {count(len(rest), 'claim')}", "", ""
            for name in rest:
                yield from self._ungrounded(name)

    def _ungrounded(self, name: str) -> Iterator[Line]:
        verdict = one_line(self.by_id[name]["verdict"] or "not judged").replace("_", " ")
        yield one_line(self.by_id[name]["text"] or ""), f"       {verdict}: ", "         "
        pair = self.nearest.get(name)
        if pair is None:
            yield "no chunk was found for it", "         ", "           "
            return
        relation = one_line(pair["relation"] or "not judged")
        text = one_line(self.texts.get(pair["chunk_id"], ""))
        yield text, f"         nearest, {relation}, {one_line(pair['chunk_id'])}: ", "           "
