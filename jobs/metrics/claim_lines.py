"""The claims of one sample as lines: which cover an aspect, which chunks ground them, and which nothing grounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from untold.graph.views import one_line

Row = Mapping[str, Any]
# A line with what stands before it, and before those that it is wrapped to
Line = tuple[str, str, str]
SUPPORTED = "supported"


@dataclass(frozen=True)
class ClaimLines:
    """Rows of one sample and metric: of `claims`, and of `evidence`; of `chunks` those that they name."""

    claims: Sequence[Row] = ()
    evidence: Sequence[Row] = ()
    chunks: Sequence[Row] = ()

    @cached_property
    def by_id(self) -> Mapping[str, Row]:
        """The claims by their ids, in the order of the response."""
        return {row["claim_id"]: row for row in sorted(self.claims, key=lambda row: row["position"] or 0)}

    @cached_property
    def nearest(self) -> Mapping[str, Row]:
        """By claim, its pair with the chunk of the first rank that was to be judged."""
        ranked = sorted(self.evidence, key=lambda row: (row["rank"], row["chunk_id"]), reverse=True)
        return {row["claim_id"]: row for row in ranked}

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """What the chunks say, by their ids."""
        return {row["chunk_id"]: row["text"] or "" for row in self.chunks}

    def chunks_of_interest(self) -> list[str]:
        """The ids of the chunks that `describe` shows: what grounds a claim, else what is nearest to it."""
        grounding = {chunk for row in self.claims for chunk in row["evidence"] or ()}
        nearest = {row["chunk_id"] for name, row in self.nearest.items() if not self._is_grounded(name)}
        return sorted(grounding | nearest)

    def _is_grounded(self, name: str) -> bool:
        return name in self.by_id and self.by_id[name]["verdict"] == SUPPORTED

    def covering(self, names: Iterable[str] | None) -> Iterator[Line]:
        """The claims that cover an aspect, each with the chunks that ground it."""
        for name in names or ():
            if name in self.by_id:
                yield one_line(self.by_id[name]["text"] or ""), "       claim: ", "         "
                yield from self._grounding(self.by_id[name])

    def _grounding(self, claim: Row) -> Iterator[Line]:
        for chunk in claim["evidence"] or ():
            yield one_line(self.texts.get(chunk, "")), f"         {one_line(chunk)}: ", "           "

    def others(self, covering: Iterable[str]) -> Iterator[Line]:
        """The grounded claims that cover nothing, then those that nothing grounds, each with its nearest chunk."""
        used = set(covering)
        grounded = [name for name in self.by_id if self._is_grounded(name) and name not in used]
        if grounded:
            yield f"grounded, but of no aspect: {_count(grounded)}", "", ""
            yield from self.covering(grounded)
        rest = [name for name in self.by_id if not self._is_grounded(name)]
        if rest:
            yield f"not grounded: {_count(rest)}", "", ""
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


def _count(names: Sequence[str]) -> str:
    return f"{len(names):,} claim{'' if len(names) == 1 else 's'}"
