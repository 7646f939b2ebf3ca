"""Cut the response and the references of a sample into facts (methods, section 13)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from untold.udfs.arrow import FLAG, NUMBER, TEXT, Row, columns, over_rows, struct
from untold.udfs.recall.candidates import Thresholds
from untold.udfs.recall.fact_texts import Fact, match_form, shown_form
from untold.udfs.recall.segmentation import Choice, Segmentation, choose_segmentation, cut, free_facts

# As Python objects, the 2,000 rows of one Spark batch, with 108 and 100 facts each, took 230 MB instead of 35 MB
FEW_ROWS = 32
RESPONSE, REFERENCES = SIDES = ("response", "references")

_FACT = struct(id=TEXT, anchor=TEXT, evidence=TEXT, under=TEXT, free=FLAG)
# A sample with both sides cut, or not cut yet. A null list of facts is unknown. texts: the source of a side, null for
# given references. to_extract: the sides whose facts need a model. dropped: facts beyond the cap
CUT = columns(
    sample_id=TEXT,
    texts=struct(**dict.fromkeys(SIDES, TEXT)),
    to_extract=[struct(side=TEXT, text=TEXT)],
    facts=struct(**{side: [_FACT] for side in SIDES}),
    dropped=NUMBER,
)
# A side with facts from free text: these facts, in order
FREE = columns(sample_id=TEXT, side=TEXT, text=TEXT, facts=[TEXT])


@dataclass(frozen=True)
class Options:
    """The settings `longrecall.*` of the rules. `cosine` is resolved, and not null."""

    segmentation: Choice = "auto"
    anchor_words: int = 10
    max_facts: int = 2_000
    duplicate_similarity: float = 0.9
    cosine: float = 0.6
    thresholds: Thresholds = field(default_factory=Thresholds)


Sides = dict[str, list[Fact] | None]
"""The facts of each side in order, None if unknown."""


@over_rows(CUT, FEW_ROWS, FEW_ROWS)
def cut_samples(row: Row, options: Options) -> Row:
    """Return the columns of `CUT`; from sample_id, response, references list<struct<id, text, anchor>>.

    A single reference without an id is a text to cut. Without references, no requests are needed.
    """
    given = row["references"]
    text = given[0]["text"] if len(given) == 1 and given[0]["id"] is None else None
    texts = {RESPONSE: row["response"], REFERENCES: text}
    how = choose_segmentation(options.segmentation, row["response"], text)
    facts: Sides = {side: _cut_side(texts[side] or "", how, options) for side in SIDES}
    if text is None:
        facts[REFERENCES] = [_given(one) for one in given]
    facts, dropped = _limited(facts, options.max_facts)
    open_sides = [side for side in SIDES if facts[side] is None and facts[REFERENCES] != []]
    return {
        "sample_id": row["sample_id"],
        "texts": texts,
        "to_extract": [{"side": side, "text": texts[side]} for side in open_sides],
        "facts": _as_rows(facts),
        "dropped": dropped,
    }


def _cut_side(text: str, how: Segmentation, options: Options) -> list[Fact] | None:
    """Return the facts of a text, or None if they need a model."""
    if how == "atomic" and shown_form(text):
        return None
    return cut(text, how, options.anchor_words)


def _given(row: Row) -> Fact:
    return Fact(shown_form(row["text"]), shown_form(row["anchor"] or "") or None, id=row["id"])


def _limited(facts: Sides, most: int) -> tuple[Sides, int]:
    """Return the first facts of each side, and the number of later facts. A fact without a match form is removed."""
    found: Sides = {}
    dropped = 0
    for side, own in facts.items():
        said = None if own is None else [one for one in own if match_form(one.text)]
        found[side] = said if said is None else said[:most]
        dropped += max(0, len(said or ()) - most)
    return found, dropped


@over_rows(CUT, FEW_ROWS, FEW_ROWS)
def add_extracted(row: Row, options: Options) -> Row:
    """Return the columns of `CUT` with the extracted facts.

    row: the columns of `CUT`, and extracted list<struct<side, claims list<string>>>, null if no request was sent.
    """
    facts = _facts_of_side(row)
    for one in row["extracted"] or ():
        if one["claims"] is not None:
            facts[one["side"]] = free_facts(one["claims"])
    facts, dropped = _limited(facts, options.max_facts)
    return {**row, "facts": _as_rows(facts), "dropped": row["dropped"] + dropped}


@over_rows(FREE, FEW_ROWS, FEW_ROWS)
def free_sides(row: Row) -> Iterator[Row]:
    """Yield rows of `FREE`: the facts from free text of a sample with facts on both sides; from a row of `CUT`."""
    facts = _facts_of_side(row)
    if not all(facts.values()):
        return
    for side, own in facts.items():
        texts = [one.text for one in own or () if one.free]
        if texts:
            yield {"sample_id": row["sample_id"], "side": side, "text": row["texts"][side], "facts": texts}


def resolved_sides(row: Row) -> Sides:
    """Return the facts of both sides, with the resolved form of facts from free text.

    row: the columns of `CUT`, and resolved list<struct<side, facts list<string>>>, null if no request was sent.
    """
    facts = _facts_of_side(row)
    for one in row["resolved"] or ():
        own = facts[one["side"]]
        if own is not None and one["facts"] is not None:
            resolved = iter(free_facts(one["facts"]))
            facts[one["side"]] = [next(resolved) if each.free else each for each in own]
    return facts


def _facts_of_side(row: Row) -> Sides:
    """Return the facts of both sides of a row of `CUT`."""
    return {side: None if own is None else [Fact(**one) for one in own] for side, own in row["facts"].items()}


def _as_rows(facts: Sides) -> dict[str, list[dict[str, Any]] | None]:
    """Return the column `facts` of `CUT`."""
    return {side: None if own is None else list(map(vars, own)) for side, own in facts.items()}
