"""Cut the response and the references of a sample into facts (methods, section 13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from untold.udfs.recall.candidates import Thresholds
from untold.udfs.recall.fact_texts import Fact, match_form, shown_form
from untold.udfs.recall.segmentation import Choice, Segmentation, choose_segmentation, cut, free_facts
from untold.udfs.samples.batches import in_batches

Row = dict[str, Any]
# As Python objects, the 2,000 rows of one Spark batch, with 108 and 100 facts each, took 230 MB instead of 35 MB
_ROWS = 32


def sliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches in slices of few rows."""
    return (batch.slice(start, _ROWS) for batch in batches for start in range(0, batch.num_rows, _ROWS))


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield the rows of batches, with only a few as Python objects at a time."""
    return (row for batch in sliced(batches) for row in batch.to_pylist())


def batches_of(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows, one per sample, in small batches."""
    return in_batches(rows, schema, _ROWS)


RESPONSE, REFERENCES = SIDES = ("response", "references")

_FACT = pa.struct(
    [*((name, pa.string()) for name in ("id", "anchor", "evidence", "under")), ("free", pa.bool_())],
)
# A sample with both sides cut, or not cut yet. A null list of facts is unknown. texts: the source of a side, null for
# given references. to_extract: the sides whose facts need a model. dropped: facts beyond the cap
CUT = pa.schema(
    [
        ("sample_id", pa.string()),
        ("texts", pa.struct([(side, pa.string()) for side in SIDES])),
        ("to_extract", pa.list_(pa.struct([("side", pa.string()), ("text", pa.string())]))),
        ("facts", pa.struct([(side, pa.list_(_FACT)) for side in SIDES])),
        ("dropped", pa.int64()),
    ]
)
# A side with facts from free text: these facts, in order
FREE = pa.schema(
    [("sample_id", pa.string()), ("side", pa.string()), ("text", pa.string()), ("facts", pa.list_(pa.string()))]
)


@dataclass(frozen=True)
class Options:
    """The settings `longrecall.*` of the rules. `cosine` is resolved, and not null."""

    segmentation: Choice = "auto"
    anchor_words: int = 10
    max_facts: int = 2_000
    duplicate_similarity: float = 0.9
    cosine: float = 0.6
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True)
class NamedFact:
    """A fact with its given id, if it has one."""

    fact: Fact
    id: str | None = None

    def to_row(self) -> dict[str, Any]:
        """Return a value of a list of facts in `CUT`."""
        return {"id": self.id, **asdict(self.fact)}


Sides = dict[str, list[NamedFact] | None]
"""The facts of each side in order, None if unknown."""


def cut_samples(batches: Iterable[pa.RecordBatch], options: Options) -> Iterator[pa.RecordBatch]:
    """Yield rows of `CUT`, one per sample; from sample_id, response, references list<struct<id, text, anchor>>.

    A single reference without an id is a text to cut. Without references, no requests are needed.
    """
    return batches_of((_cut(row, options) for row in rows_of(batches)), CUT)


def _cut(row: Mapping[str, Any], options: Options) -> dict[str, Any]:
    given = row["references"]
    text = given[0]["text"] if len(given) == 1 and given[0]["id"] is None else None
    texts = {RESPONSE: row["response"], REFERENCES: text}
    how = choose_segmentation(options.segmentation, row["response"], text)
    facts: Sides = {side: _cut_side(texts[side] or "", how, options) for side in SIDES}
    if text is None:
        facts[REFERENCES] = [NamedFact(_given(one), one["id"]) for one in given]
    facts, dropped = _limited(facts, options.max_facts)
    open_sides = [side for side in SIDES if facts[side] is None and facts[REFERENCES] != []]
    return {
        "sample_id": row["sample_id"],
        "texts": texts,
        "to_extract": [{"side": side, "text": texts[side]} for side in open_sides],
        "facts": _as_rows(facts),
        "dropped": dropped,
    }


def _cut_side(text: str, how: Segmentation, options: Options) -> list[NamedFact] | None:
    """Return the facts of a text, or None if they need a model."""
    if how == "atomic" and shown_form(text):
        return None
    return [NamedFact(fact) for fact in cut(text, how, options.anchor_words)]


def _given(row: Mapping[str, Any]) -> Fact:
    return Fact(shown_form(row["text"]), shown_form(row["anchor"] or "") or None)


def _limited(facts: Sides, most: int) -> tuple[Sides, int]:
    """Return the first facts of each side, and the number of later facts. A fact without a match form is removed."""
    found: Sides = {}
    dropped = 0
    for side, own in facts.items():
        said = None if own is None else [one for one in own if match_form(one.fact.text)]
        found[side] = said if said is None else said[:most]
        dropped += max(0, len(said or ()) - most)
    return found, dropped


def add_extracted(batches: Iterable[pa.RecordBatch], options: Options) -> Iterator[pa.RecordBatch]:
    """Yield rows of `CUT` with the extracted facts.

    batches: the columns of `CUT`, and extracted list<struct<side, claims list<string>>>, null if no request was sent.
    """
    return batches_of((_add_extracted(row, options) for row in rows_of(batches)), CUT)


def _add_extracted(row: Mapping[str, Any], options: Options) -> dict[str, Any]:
    facts = _facts_of_side(row)
    for one in row["extracted"] or ():
        if one["claims"] is not None:
            facts[one["side"]] = [NamedFact(fact) for fact in free_facts(one["claims"])]
    facts, dropped = _limited(facts, options.max_facts)
    return {**{name: row[name] for name in CUT.names}, "facts": _as_rows(facts), "dropped": row["dropped"] + dropped}


def free_sides(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of `FREE`: the facts from free text of samples with facts on both sides; from rows of `CUT`."""
    return batches_of((side for row in rows_of(batches) for side in _free_sides(row)), FREE)


def _free_sides(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    facts = _facts_of_side(row)
    if not all(facts.values()):
        return
    for side, own in facts.items():
        texts = [one.fact.text for one in own or () if one.fact.free]
        if texts:
            yield {"sample_id": row["sample_id"], "side": side, "text": row["texts"][side], "facts": texts}


def resolved_sides(row: Mapping[str, Any]) -> Sides:
    """Return the facts of both sides, with the resolved form of facts from free text.

    row: the columns of `CUT`, and resolved list<struct<side, facts list<string>>>, null if no request was sent.
    """
    facts = _facts_of_side(row)
    for one in row["resolved"] or ():
        own = facts[one["side"]]
        if own is not None and one["facts"] is not None:
            resolved = iter(free_facts(one["facts"]))
            facts[one["side"]] = [NamedFact(next(resolved)) if each.fact.free else each for each in own]
    return facts


def _facts_of_side(row: Mapping[str, Any]) -> Sides:
    """Return the facts of both sides of a row of `CUT`."""
    return {
        side: None
        if own is None
        else [NamedFact(Fact(one["evidence"], one["anchor"], one["free"], one["under"]), one["id"]) for one in own]
        for side, own in row["facts"].items()
    }


def _as_rows(facts: Sides) -> dict[str, list[dict[str, Any]] | None]:
    """Return the column `facts` of `CUT`."""
    return {side: None if own is None else [one.to_row() for one in own] for side, own in facts.items()}
