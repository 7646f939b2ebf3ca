"""Claims of a response, and what the chunks that were found for one make of it (Samarinas et al. 2025; ICAT)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import normalise
from untold.udfs.facts.passages import cut_windows
from untold.udfs.samples.batches import in_batches

SUPPORTED, CONTRADICTED, NOT_SUPPORTED = "supported", "contradicted", "not_supported"
CONTRADICTION = "contradiction"
# The last ranks of the waves in which an ungrounded claim is held against its chunks: a first chunk grounds most claims
# that any grounds, and the ten published ranks are three waves
ENDS_OF_WAVES = (1, 4)

CLAIMS = pa.schema([("sample_id", pa.string()), ("position", pa.int64()), ("text", pa.string())])
WINDOWS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("sample_id", "query", "before", "sentence", "after")),
        ("number", pa.int64()),
    ]
)
VERDICTS = pa.schema(
    [
        ("owner", pa.string()),
        ("claim_key", pa.string()),
        ("verdict", pa.string()),
        ("evidence", pa.list_(pa.string())),
        ("document_id", pa.string()),
        ("unjudged", pa.bool_()),
        ("waiting", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class ChunkJudgement:
    """A chunk held against a claim. `relation` is null where it could not be had; `waiting`: it was never asked."""

    rank: int
    chunk_id: str
    document_id: str | None = None
    relation: str | None = None
    grounded: bool = False
    waiting: bool = False


@dataclass(frozen=True)
class ClaimVerdict:
    """What is concluded of a claim.

    `verdict` is None where nothing grounds it and some of what it needs is missing: lost (`unjudged`) or never asked
    (`waiting`). `evidence`: the chunks that ground it, by rank; `document_id`: the document of the first of them.
    """

    verdict: str | None
    evidence: tuple[str, ...] = ()
    document_id: str | None = None
    unjudged: bool = False
    waiting: bool = False


def distinct_texts(texts: Iterable[str]) -> list[str]:
    """The texts in their order, of those that are equal after `normalise` the first.

    >>> distinct_texts(["Bees make honey.", "Ice floats.", "bees  make honey"])
    ['Bees make honey.', 'Ice floats.']
    """
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(normalise(text), text)
    return list(first.values())


def number_claims(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `CLAIMS`, a row a distinct claim, positions from 1; from sample_id and claims list<string>."""
    for batch in batches:
        rows = (
            {"sample_id": row["sample_id"], "position": position, "text": text}
            for row in batch.to_pylist()
            for position, text in enumerate(distinct_texts(row["claims"] or ()), start=1)
        )
        yield from in_batches(rows, CLAIMS)


def window_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `WINDOWS`, a row per sentence of a response, numbers from 1; from sample_id, query and text."""
    for batch in batches:
        rows = (
            {"before": before, "sentence": sentence, "after": after, "number": number}
            | {name: row[name] for name in ("sample_id", "query")}
            for row in batch.to_pylist()
            for number, (before, sentence, after) in enumerate(cut_windows(row["text"]), start=1)
        )
        yield from in_batches(rows, WINDOWS)


def waves_of(top: int, *, early_stop: bool) -> list[tuple[int, int]]:
    """The first and the last rank of each wave in which the `top` chunks of a claim are judged.

    >>> waves_of(10, early_stop=True), waves_of(3, early_stop=True), waves_of(10, early_stop=False)
    ([(1, 1), (2, 4), (5, 10)], [(1, 1), (2, 3)], [(1, 10)])
    """
    ends = [*(end for end in ENDS_OF_WAVES if early_stop and end < top), top]
    return list(zip([1, *(end + 1 for end in ends)], ends, strict=False))


def judge_claim(judgements: Iterable[ChunkJudgement], *, lost: bool = False, waiting: bool = False) -> ClaimVerdict:
    """The verdict over the chunks of a claim: supported where one grounds it, else contradicted, else not supported.

    What grounds a claim does so whatever else is missing; without that, a relation that failed, or a retrieval that was
    `lost`, leaves it unjudged, and one that was never asked leaves it `waiting`.
    """
    judged = sorted(judgements, key=lambda one: (one.rank, one.chunk_id))
    grounding = [one for one in judged if one.grounded]
    if grounding:
        return ClaimVerdict(SUPPORTED, tuple(one.chunk_id for one in grounding), grounding[0].document_id)
    if waiting or any(one.waiting for one in judged):
        return ClaimVerdict(None, waiting=True)
    if lost or any(one.relation is None for one in judged):
        return ClaimVerdict(None, unjudged=True)
    contradicted = any(one.relation == CONTRADICTION for one in judged)
    return ClaimVerdict(CONTRADICTED if contradicted else NOT_SUPPORTED)


def judge_claims(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `VERDICTS`, a row a claim.

    batches: owner, claim_key, lost, waiting, judged list<struct<rank, chunk_id, document_id, relation, grounded,
    waiting>>: the retrieval, and each chunk that was judged or ought to have been.
    """
    for batch in batches:
        rows = [_judge(row) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, VERDICTS)


def _judge(row: Mapping[str, Any]) -> dict[str, Any]:
    judged: Sequence[Mapping[str, Any]] = row["judged"] or ()
    found = judge_claim(
        [ChunkJudgement(**{**one, "grounded": bool(one["grounded"])}) for one in judged],
        lost=bool(row["lost"]),
        waiting=bool(row["waiting"]),
    )
    return {"owner": row["owner"], "claim_key": row["claim_key"], **vars(found)}
