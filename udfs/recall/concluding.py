"""LongRecall of a sample: which references are covered, by what and found how, measures and bounds (section 13).

R = |covered| / |references|. A reference that a lost request leaves open is unjudged: values are over the others, and
the bounds have all of these uncovered, or covered. A covered reference was missed if nothing that covers it
was shown to a stage of entailment, or if the stage said no.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from untold.udfs.facts.aspect_coverage import COUNTS, MEASURE
from untold.udfs.facts.nodes import normalise
from untold.udfs.recall.candidate_pairs import LEXICAL, PAIR, SEMANTIC
from untold.udfs.recall.sample_facts import batches_of, rows_of

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


RECALL, ARECALL, ERECALL, HOLISTIC, REFERENCES, GENERATED = (
    *("recall", "arecall", "erecall", "holistic", "references", "generated"),
)
BASELINES = (ARECALL, ERECALL, HOLISTIC)

_STATEMENT = pa.struct(
    [
        ("number", pa.int64()),
        ("reference_id", pa.string()),
        ("text", pa.string()),
        ("anchor", pa.string()),
        ("covered", pa.bool_()),  # null where it is unjudged
        ("claims", pa.list_(pa.int64())),  # positions of the generated facts that cover it; null where it is unjudged
        ("found_by", pa.string()),
        *((name, pa.bool_()) for name in BASELINES),
    ]
)
_CANDIDATE = pa.struct([*PAIR, ("chosen", pa.bool_())])
CONCLUDED = pa.schema(
    [
        ("sample_id", pa.string()),
        ("statements", pa.list_(_STATEMENT)),
        ("candidates", pa.list_(_CANDIDATE)),
        ("measures", pa.list_(MEASURE)),
        *COUNTS,
        ("unasked", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class ReferenceVerdict:
    """What became of a reference: the positions of the generated facts that cover it, none where nothing does.

    `chosen` is None where it is not known: a request was lost, or never asked (`waiting`).
    """

    chosen: tuple[int, ...] | None
    found_by: str | None = None
    waiting: bool = False


def conclude_samples(batches: Iterable[pa.RecordBatch], *, baselines: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows of `CONCLUDED`, a row a sample.

    batches: the columns of `udfs.recall.candidate_pairs.PREPARED`; outcomes list<OUTCOME> of what words found;
    by_vectors list<struct<number, pairs, lost, waiting, outcome OUTCOME>>, of the references that words left open;
    holistic list<list<int>>, null where it was not asked or was lost. `empty`: there are no references; `unasked`:
    something that a verdict needs was never asked.
    """
    return batches_of((_conclude(row, baselines) for row in rows_of(batches)), CONCLUDED)


def _conclude(row: Mapping[str, Any], baselines: Sequence[str]) -> dict[str, Any]:
    first = {one["number"]: one for one in row["outcomes"] or ()}
    second = {one["number"]: one for one in row["by_vectors"] or ()}
    verdicts = [judge_reference(first.get(one["number"]), second.get(one["number"])) for one in row["references"]]
    said = {name: _baseline(row, name) for name in baselines}
    covered = sum(bool(one.chosen) for one in verdicts)
    unjudged = sum(one.chosen is None for one in verdicts)
    return {
        "sample_id": row["sample_id"],
        "statements": [
            _statement(one, verdict, {name: flags[place] for name, flags in said.items() if flags is not None})
            for place, (one, verdict) in enumerate(zip(row["references"], verdicts, strict=True))
        ],
        "candidates": [*_candidates(row["pairs"], first), *_shown_by_vectors(second.values())],
        "measures": list(_measures(covered, unjudged, len(verdicts), said, row["generated"])),
        "covered": covered,
        "uncovered": len(verdicts) - covered - unjudged,
        "unjudged": unjudged,
        "empty": not verdicts,
        "unasked": any(one.waiting for one in verdicts),
    }


def judge_reference(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> ReferenceVerdict:
    """The verdict of a reference by what words found (an OUTCOME), and of one left open by what vectors found.

    Both are None where nothing was shown. What covers a reference does so whatever else is missing.

    >>> judge_reference({"chosen": [2], "lost": False, "waiting": False}, None)
    ReferenceVerdict(chosen=(2,), found_by='lexical', waiting=False)
    """
    if first is not None and (first["chosen"] or first["lost"] or first["waiting"]):
        return _verdict(first, LEXICAL)
    if second is None:
        return ReferenceVerdict(())
    outcome = second["outcome"]
    found = ReferenceVerdict(()) if outcome is None else _verdict(outcome, SEMANTIC)
    if found.chosen == () and (second["lost"] or second["waiting"]):
        return ReferenceVerdict(None, waiting=bool(second["waiting"]))
    return found


def _verdict(outcome: Mapping[str, Any], step: str) -> ReferenceVerdict:
    if outcome["lost"] or outcome["waiting"]:
        return ReferenceVerdict(None, waiting=bool(outcome["waiting"]))
    chosen = tuple(outcome["chosen"])
    return ReferenceVerdict(chosen, step if chosen else None)


def _baseline(row: Mapping[str, Any], name: str) -> list[bool] | None:
    """What a baseline says of each reference; None where it was lost. Where there is nothing to ask nothing is."""
    if name != HOLISTIC:
        return [bool(one[name]) for one in row["references"]]
    if not (row["references"] and row["generated"]):
        return [False for _ in row["references"]]
    return None if row["holistic"] is None else [bool(numbers) for numbers in row["holistic"]]


def _statement(
    reference: Mapping[str, Any], verdict: ReferenceVerdict, baselines: Mapping[str, bool]
) -> dict[str, Any]:
    known = verdict.chosen is not None
    return {
        **{name: reference[name] for name in ("number", "text", "anchor")},
        "reference_id": reference["id"],
        "covered": bool(verdict.chosen) if known else None,
        "claims": sorted(verdict.chosen or ()) if known else None,
        "found_by": verdict.found_by,
        **{name: baselines.get(name) for name in BASELINES},
    }


def _candidates(
    pairs: Iterable[Mapping[str, Any]], outcomes: Mapping[int, Mapping[str, Any] | None]
) -> Iterator[dict[str, Any]]:
    """The pairs that were shown, each with whether it was chosen; None where the request was lost."""
    for pair in pairs:
        outcome = outcomes.get(pair["number"])
        chosen = None if outcome is None else outcome["chosen"]
        yield {**pair, "chosen": None if chosen is None else pair["position"] in chosen}


def _shown_by_vectors(second: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in second:
        yield from _candidates(one["pairs"], {one["number"]: one["outcome"]})


def _measures(
    covered: int,
    unjudged: int,
    references: int,
    baselines: Mapping[str, Sequence[bool] | None],
    generated: Sequence[Any] | None,
) -> Iterator[dict[str, Any]]:
    """The measures of a sample: shares of its references, None without any, and how many facts there are."""
    judged = references - unjudged
    if references:
        value = covered / judged if judged else None
        yield _measure(RECALL, value, covered / references, (covered + unjudged) / references)
    else:
        yield _measure(RECALL, None, None, None)
    for name, flags in baselines.items():
        if flags is None:
            yield _measure(name, None, 0.0, 1.0)
        else:
            share = sum(flags) / references if references else None
            yield _measure(name, share, share, share)
    for name, count in ((REFERENCES, references), (GENERATED, None if generated is None else len(generated))):
        number = None if count is None else float(count)
        yield _measure(name, number, number, number)


def _measure(name: str, value: float | None, low: float | None, high: float | None) -> dict[str, Any]:
    return {"measure": name, "value": value, "value_low": low, "value_high": high}
