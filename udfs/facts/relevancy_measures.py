"""Measure the sentences of a response that address its query (answer relevancy of DeepEval; methods, section 21).

A sentence without a label is unjudged: values cover the others, and bounds cover all its possible labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.facts.aspect_coverage import COUNTS, MEASURE, BoundedValue, measure_list
from untold.udfs.facts.rag_measures import BoundedBool, share
from untold.udfs.samples.batches import in_batches
from untold.udfs.samples.citations import cited_sentences

LABELS = RELEVANT, BACKGROUND, IRRELEVANT = "relevant", "background", "irrelevant"
RELEVANCY, DIRECT, SENTENCES = MEASURES = "answer_relevancy", "direct_relevancy", "sentences"
# The labels that count, by measure
CREDITED = {RELEVANCY: (RELEVANT, BACKGROUND), DIRECT: (RELEVANT,)}

_LISTED = pa.struct([("number", pa.int64()), ("text", pa.string())])
CUT = pa.schema([("sample_id", pa.string()), ("query", pa.string()), ("listed", pa.list_(_LISTED))])
_STATEMENT = pa.struct(
    [
        *_LISTED,
        ("covered", pa.bool_()),
        ("reference_id", pa.string()),
        ("claims", pa.list_(pa.int64())),
        ("relation", pa.string()),
        ("reason", pa.string()),
    ]
)
CONCLUDED = pa.schema(
    [("sample_id", pa.string()), ("measures", pa.list_(MEASURE)), ("statements", pa.list_(_STATEMENT)), *COUNTS]
)


def cut_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield columns of `CUT`: the sentences of each response without markers, headings, code and references."""
    for batch in batches:
        rows = (
            {**row, "listed": [{"number": number, "text": one.text} for number, one in enumerate(found, start=1)]}
            for row in batch.to_pylist()
            for found in [cited_sentences(row.pop("response") or "", None, ())]
        )
        yield from in_batches(rows, CUT)


def measures_of(labels: Sequence[str | None]) -> dict[str, BoundedValue]:
    """Return the measures of a response by name. Without sentences, the shares are undefined.

    >>> measures_of(["relevant", "background", "irrelevant", None])["answer_relevancy"]
    BoundedValue(value=0.6666666666666666, low=0.5, high=0.75)
    """
    shares = {
        name: share([BoundedBool(one in credited, one is None or one in credited) for one in labels])
        for name, credited in CREDITED.items()
    }
    return {**shares, SENTENCES: BoundedValue.exact(float(len(labels)))}


def conclude_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield columns of `CONCLUDED`, a row per sample. `empty`: the response has no sentence.

    batches: the columns of `CUT`, and judged list<struct<number, label, reason>>.
    """
    for batch in batches:
        yield from in_batches(map(_concluded, batch.to_pylist()), CONCLUDED)


def _concluded(row: Mapping[str, Any]) -> dict[str, Any]:
    judged = {one["number"]: one for one in row["judged"] or ()}
    statements = []
    for one in row["listed"]:
        label, reason = (judged.get(one["number"], {}).get(name) for name in ("label", "reason"))
        covered = None if label is None else label != IRRELEVANT
        statements.append({**one, "covered": covered, "relation": label, "reason": reason})
    covered = [one["covered"] for one in statements]
    return {
        "sample_id": row["sample_id"],
        "measures": measure_list(measures_of([one["relation"] for one in statements])),
        "statements": statements,
        "covered": covered.count(True),
        "uncovered": covered.count(False),
        "unjudged": covered.count(None),
        "empty": not covered,
    }
