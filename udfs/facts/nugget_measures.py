"""Measure the support of a response for the nuggets that an answer should state (Pradeep et al. 2025, AutoNuggetizer).

Methods, section 17. Lost assignments are unjudged: values cover the rest, and bounds cover all their possible results.
Nuggets by topic are read in nuggetizer's format: JSON Lines of qid, query and nuggets (text, importance, assignment).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from operator import itemgetter
from typing import Any

from untold.udfs.arrow import FLAG, FLOAT, NUMBER, TEXT, Row, columns, over_rows, struct
from untold.udfs.errors import UserError
from untold.udfs.facts.aspect_coverage import CONCLUSION, UNDEFINED, BoundedValue, conclusion, numbered_lines
from untold.udfs.samples.items import IMPORTANCES, normalise_references
from untold.udfs.samples.tool_files import references_of
from untold.udfs.samples.values import canonical, load_json, text_of

REFERENCE = struct(id=TEXT, text=TEXT, anchor=TEXT, weight=FLOAT, labels=[TEXT], covered_by=[TEXT], importance=TEXT)
# Samples may have columns of any plain name
TOPIC, OF_TOPIC = "_topic_of_nuggets", "_nuggets_of_topic"
GIVEN = columns(**{"query_id": TEXT, TOPIC: TEXT, OF_TOPIC: [REFERENCE]})


class NuggetsError(UserError):
    """An unreadable file of nuggets. The message has the file and line, and never their content."""


def read_nuggets(path: str) -> Iterator[dict[str, Any]]:
    """Yield rows of `GIVEN`, one per line. Raises NuggetsError for a line in another format or a duplicate topic."""
    seen: set[str] = set()
    for number, line in numbered_lines(path, NuggetsError, "nuggets.file"):
        try:
            row = load_json(line)
            name, nuggets = text_of(row["qid"]), normalise_references(references_of(row["nuggets"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            name = nuggets = None
        if not name or nuggets is None or name in seen:
            why = "repeats a qid" if name in seen else "is not an object with qid and nuggets"
            raise NuggetsError(f"{path}: line {number} {why}. Fix the line, or check nuggets.file")
        seen.add(name)
        yield {"query_id": name, TOPIC: text_of(row.get("query")), OF_TOPIC: nuggets}


def digest_of_nuggets(path: str) -> str:
    """Return 32 hex characters of the nuggets by topic, for the identity of outputs. Raises as `read_nuggets`."""
    found = canonical(sorted(read_nuggets(path), key=itemgetter("query_id")))
    return hashlib.blake2b(found.encode("utf-8", "replace"), digest_size=16).hexdigest()


@over_rows(GIVEN)
def given_nuggets(row: Row) -> Iterator[Row]:
    """Yield columns of `GIVEN`, a row per topic, from the paths of files (column path)."""
    return read_nuggets(row["path"])


VITAL, OKAY = IMPORTANCES
SUPPORTS = SUPPORT, PARTIAL, NOT_SUPPORT = "support", "partial_support", "not_support"
STRICT_VITAL, STRICT_ALL, OF_VITAL, OF_ALL, WEIGHTED = SCORES = (
    *("strict_vital", "strict_all", "vital", "all", "weighted"),
)
NUGGETS, VITAL_NUGGETS = "nuggets", "vital_nuggets"
MEASURES = (*SCORES, NUGGETS, VITAL_NUGGETS)
# The end of the name of a measure over the sentences with a supporting citation
SUPPORTED = "_supported"
OF_VITALS = tuple(f"{name}{end}" for name in (STRICT_VITAL, OF_VITAL) for end in ("", SUPPORTED))
LARGEST = 1e290
STRICT: Mapping[str, float] = {SUPPORT: 1.0}
LENIENT: Mapping[str, float] = {SUPPORT: 1.0, PARTIAL: 0.5}
WEIGHTS = {VITAL: 1.0, OKAY: 0.5}

NUGGET = struct(number=NUMBER, reference_id=TEXT, text=TEXT, importance=TEXT, weight=FLOAT, kept=FLAG)
RANKED = columns(owner=TEXT, nuggets=[NUGGET])
# In the format of `covered_statements`. Nuggets have no known claims
_STATEMENT = struct(NUGGET, rank=NUMBER, support=TEXT, reason=TEXT, covered=FLAG, claims=[NUMBER])
# lost_support: true if a request for the supported sentences or for their nuggets failed
CONCLUDED = columns(CONCLUSION, statements=[_STATEMENT], left_out=NUMBER, lost_support=FLAG)


@dataclass(frozen=True)
class Nugget:
    """A nugget for measures. `support` is None if unjudged, `weight` if none was given."""

    importance: str
    support: str | None
    weight: float | None = None

    @property
    def weighs(self) -> float:
        """Return the given weight, otherwise 1 for vital and 0.5 for okay nuggets."""
        return WEIGHTS[self.importance] if self.weight is None else self.weight


def measures_of(nuggets: Iterable[Nugget]) -> dict[str, BoundedValue]:
    """Return the measures of a sample by name, for nuggets with weights of at least 0."""
    every = list(nuggets)
    vital = [one for one in every if one.importance == VITAL]
    return {
        STRICT_VITAL: _share(vital, STRICT),
        STRICT_ALL: _share(every, STRICT),
        OF_VITAL: _share(vital, LENIENT),
        OF_ALL: _share(every, LENIENT),
        WEIGHTED: _share(every, LENIENT, [one.weighs for one in every]),
        NUGGETS: BoundedValue.exact(float(len(every))),
        VITAL_NUGGETS: BoundedValue.exact(float(len(vital))),
    }


def names_of_measures(*, supported: bool) -> tuple[str, ...]:
    """Return the names of the measures of a sample."""
    return (*MEASURES, *(f"{name}{SUPPORTED}" for name in SCORES if supported))


def supported_measures(nuggets: Sequence[tuple[Nugget, Nugget]]) -> dict[str, BoundedValue]:
    """Return the measures over supported sentences, for the least and the largest support of each nugget.

    A measure has a value only if both supports give the same, because a missing verdict can only lose support.
    """
    low, high = (measures_of(ends) for ends in (zip(*nuggets, strict=True) if nuggets else ((), ())))
    values = {name: (low[name].value, high[name].value) for name in SCORES}
    return {
        f"{name}{SUPPORTED}": BoundedValue(least if least == most else None, least, most)
        for name, (least, most) in values.items()
    }


def _share(
    nuggets: Sequence[Nugget], credit: Mapping[str, float], weights: Sequence[float] | None = None
) -> BoundedValue:
    """Return the credit of judged nuggets over their positive weight, from 0 to 1, undefined without such weight."""
    # Sums of the largest weights would overflow
    scale = LARGEST if max(weights or (), default=0.0) > LARGEST else 1.0
    sized = [(one, weight / scale) for one, weight in zip(nuggets, weights or [1.0] * len(nuggets), strict=True)]
    earned = fsum(weight * credit.get(one.support, 0.0) for one, weight in sized if one.support is not None)
    whole = fsum(weight for _, weight in sized)
    if not whole:
        return UNDEFINED
    judged, unjudged = (
        fsum(weight for one, weight in sized if (one.support is None) == is_lost) for is_lost in (False, True)
    )
    # The sum of two rounded sums can exceed the whole
    high = min(1.0, (earned + unjudged) / whole)
    return BoundedValue(earned / judged if judged else None, earned / whole, high)


@over_rows(RANKED)
def rank_batches(row: Row, keep: int) -> Row:
    """Return columns of `RANKED`: the nuggets of an owner, the vital ones first, numbered from 1.

    row: owner, nuggets list<struct<reference_id, text, importance, weight>>, rated list<struct<number, label>>: the
    missing importances, by position from 1. The first `keep` nuggets and all nuggets with a given weight are kept, but
    none with a weight below 0: a nugget is wanted, and the metric rubric scores content to avoid.
    """
    rated = {one["number"]: one["label"] for one in row["rated"] or ()}
    found = [
        {**one, "importance": one["importance"] or rated[place]} for place, one in enumerate(row["nuggets"], start=1)
    ]
    found.sort(key=lambda one: (_is_unwanted(one), IMPORTANCES.index(one["importance"])))
    numbered = [
        {**one, "number": number, "kept": (number <= keep or one["weight"] is not None) and not _is_unwanted(one)}
        for number, one in enumerate(found, start=1)
    ]
    return {"owner": row["owner"], "nuggets": numbered}


def _is_unwanted(nugget: Row) -> bool:
    return (nugget["weight"] or 0.0) < 0


@over_rows(CONCLUDED)
def conclude_batches(row: Row, score: str) -> Row:
    """Return columns of `CONCLUDED`.

    row: sample_id; blank, true for a blank response; nuggets (of `RANKED`); assigned list<struct<number, label,
    reason>>, with a null label for a lost assignment. `empty`: the measure `score` covers no nugget. For measures over
    supported sentences, also whole, lost and supported_text (`untold.udfs.facts.citation_measures.SUPPORTED`), and
    labels list<struct<number, label>> by this text, for nuggets that the response supports in full or partly.
    """
    blank = {"label": NOT_SUPPORT} if row["blank"] else {}
    assigned = {one["number"]: one for one in row["assigned"] or ()}
    statements = [_statement(one, blank or assigned.get(one["number"], {})) for one in row["nuggets"] or ()]
    kept = [one for one in statements if one["kept"]]
    measures = measures_of(Nugget(one["importance"], one["support"], one["weight"]) for one in kept)
    empty = measures[score].high is None
    within: list[str | None] = []
    if "whole" in row:
        within = [_support_within(one, row) for one in kept]
        ends = [_least_and_most(*pair, whole=row["whole"]) for pair in zip(kept, within, strict=True)]
        measures |= supported_measures(ends)
    return {
        **conclusion(row, measures, [one["covered"] for one in kept], empty=empty),
        "statements": statements,
        "left_out": len(statements) - len(kept),
        "lost_support": bool(row.get("lost")) or None in within,
    }


def _support_within(nugget: Row, row: Row) -> str | None:
    """Return the support for a nugget by the supported sentences, None for a lost request."""
    if nugget["support"] == NOT_SUPPORT or (nugget["support"] and not row["supported_text"].strip()):
        return NOT_SUPPORT
    return next((one["label"] for one in row["labels"] or () if one["number"] == nugget["number"]), None)


def _least_and_most(nugget: Row, within: str | None, *, whole: bool) -> tuple[Nugget, Nugget]:
    """Return a nugget with the least and with the largest support, which is at most the support by the response."""
    most = nugget["support"] or SUPPORT
    least = max(most, within or NOT_SUPPORT, key=SUPPORTS.index)
    ends = (least, least if whole and within else most)
    low, high = (Nugget(nugget["importance"], support, nugget["weight"]) for support in ends)
    return low, high


def _statement(nugget: Row, assigned: Row) -> dict[str, Any]:
    """Return a nugget with its support and the reason for it. Only kept nuggets have support."""
    support = assigned.get("label") if nugget["kept"] else None
    return {
        **nugget,
        "rank": nugget["number"],
        "support": support,
        "reason": None if support is None else assigned.get("reason"),
        "covered": None if support is None else support == SUPPORT,
    }
