"""Why a covered reference was missed: nothing that covers it was shown to a stage of entailment, or it said no.

LongRecall; methods, section 6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa

from untold.udfs.facts.nodes import normalise

MISSES = pa.schema([("method", pa.string()), ("was_shown", pa.bool_())])


def was_shown(shown: Collection[str], covered_by: Collection[str] | None) -> bool:
    """Whether an entailment stage saw some of the facts that cover a reference; any fact, where none are named.

    Facts are the same where they are equal after normalisation (`untold.udfs.facts.nodes.normalise`).

    >>> was_shown(["Bees fly."], ["bees fly"]), was_shown(["Bees fly."], ["Bees sting."]), was_shown([], None)
    (True, False, False)
    """
    if covered_by is None:
        return bool(shown)
    return not {normalise(text) for text in shown}.isdisjoint(map(normalise, covered_by))


def miss_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The columns of `MISSES` of method, and of shown and covered_by, both list<string> or null."""
    for batch in batches:
        rows = [
            {"method": row["method"], "was_shown": was_shown(row["shown"] or (), row["covered_by"])}
            for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pylist(rows, MISSES)
