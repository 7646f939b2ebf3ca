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
# The 2,000 rows of one of Spark's batches, with 108 and 100 facts each, took 230 MB as Python's objects, so 35 MB
_ROWS = 32


def sliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches in slices of few rows."""
    return (batch.slice(start, _ROWS) for batch in batches for start in range(0, batch.num_rows, _ROWS))


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows of batches, few of them at a time as Python's objects."""
    return (row for batch in sliced(batches) for row in batch.to_pylist())


def batches_of(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows, a row a sample, in batches of few."""
    return in_batches(rows, schema, _ROWS)


RESPONSE, REFERENCES = SIDES = ("response", "references")

_FACT = pa.struct(
    [*((name, pa.string()) for name in ("id", "anchor", "evidence", "under")), ("free", pa.bool_())],
)
# A sample whose sides are cut, or have yet to be: a null list of facts is not known. texts: what a side is cut out of,
# null for given references; to_extract: the sides whose facts a model has to give; dropped: facts beyond the cap
CUT = pa.schema(
    [
        ("sample_id", pa.string()),
        ("texts", pa.struct([(side, pa.string()) for side in SIDES])),
        ("to_extract", pa.list_(pa.struct([("side", pa.string()), ("text", pa.string())]))),
        ("facts", pa.struct([(side, pa.list_(_FACT)) for side in SIDES])),
        ("dropped", pa.int64()),
    ]
)
# A side whose facts were cut out of free text: these facts, in order
FREE = pa.schema(
    [("sample_id", pa.string()), ("side", pa.string()), ("text", pa.string()), ("facts", pa.list_(pa.string()))]
)


@dataclass(frozen=True)
class Options:
    """The settings `longrecall.*` that rules go by; `cosine` is the one that null stands for."""

    segmentation: Choice = "auto"
    anchor_words: int = 10
    max_facts: int = 2_000
    duplicate_similarity: float = 0.9
    cosine: float = 0.6
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True)
class NamedFact:
    """A fact, and its id where it was given with one."""

    fact: Fact
    id: str | None = None

    def to_row(self) -> dict[str, Any]:
        """A value of a list of facts in `CUT`."""
        return {"id": self.id, **asdict(self.fact)}


Sides = dict[str, list[NamedFact] | None]
"""By side its facts in order; None where they are not known."""


def cut_samples(batches: Iterable[pa.RecordBatch], options: Options) -> Iterator[pa.RecordBatch]:
    """Rows of `CUT`, a row a sample; from sample_id, response, references list<struct<id, text, anchor>>.

    One reference without an id is a text that is yet to be cut. Where there are no references nothing is asked for.
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
    """The facts of a text; None where a model has to give them."""
    if how == "atomic" and shown_form(text):
        return None
    return [NamedFact(fact) for fact in cut(text, how, options.anchor_words)]


def _given(row: Mapping[str, Any]) -> Fact:
    return Fact(shown_form(row["text"]), shown_form(row["anchor"] or "") or None)


def _limited(facts: Sides, most: int) -> tuple[Sides, int]:
    """The first facts of each side, and how many come after them. What has no form for matching is no fact."""
    found: Sides = {}
    dropped = 0
    for side, own in facts.items():
        said = None if own is None else [one for one in own if match_form(one.fact.text)]
        found[side] = said if said is None else said[:most]
        dropped += max(0, len(said or ()) - most)
    return found, dropped


def add_extracted(batches: Iterable[pa.RecordBatch], options: Options) -> Iterator[pa.RecordBatch]:
    """Rows of `CUT` with the facts that were extracted.

    batches: the columns of `CUT`, and extracted list<struct<side, claims list<string>>>, null where nothing was asked.
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
    """Rows of `FREE`: what was cut out of free text, where both sides have facts; from rows of `CUT`."""
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
    """The facts of both sides, those out of free text as they were resolved.

    row: the columns of `CUT`, and resolved list<struct<side, facts list<string>>>, null where nothing was asked.
    """
    facts = _facts_of_side(row)
    for one in row["resolved"] or ():
        own = facts[one["side"]]
        if own is not None and one["facts"] is not None:
            resolved = iter(free_facts(one["facts"]))
            facts[one["side"]] = [NamedFact(next(resolved)) if each.fact.free else each for each in own]
    return facts


def _facts_of_side(row: Mapping[str, Any]) -> Sides:
    """The facts of both sides of a row of `CUT`."""
    return {
        side: None
        if own is None
        else [NamedFact(Fact(one["evidence"], one["anchor"], one["free"], one["under"]), one["id"]) for one in own]
        for side, own in row["facts"].items()
    }


def _as_rows(facts: Sides) -> dict[str, list[dict[str, Any]] | None]:
    """The column `facts` of `CUT`."""
    return {side: None if own is None else [one.to_row() for one in own] for side, own in facts.items()}
