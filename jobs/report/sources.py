"""The runs, samples and texts of a report, each text stored once and cut to the bytes of the page."""

from __future__ import annotations

import base64
import gzip
import heapq
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from untold.jobs.run_tables import RunTables, UnreadableRunError, batches_of, lowest_scores
from untold.jobs.summary.ranking import names_of
from untold.jobs.summary.trends import Trend, find_trend, named_date
from untold.jobs.tables import RESULT_TABLES

# The maximum number of samples that a report lists fully. For more samples, it lists PART of the worst and PART drawn
# at random
LISTED, PART = 10_000, 1_000
ROWS_AT_ONCE = 1_000
Key = tuple[int, str]
"""A sample: the position of its run, and its sample_id."""


@dataclass(frozen=True)
class Sources:
    """Runs with scores, in the given order, and studies of the agreement of their judge with people."""

    runs: tuple[RunTables, ...]
    studies: tuple[RunTables, ...] = ()

    @cached_property
    def names(self) -> list[str]:
        """Return the names of runs, which are also the names of their unnamed systems."""
        return names_of(self.runs)

    @cached_property
    def summaries(self) -> list[list[dict[str, Any]]]:
        """Return the rows of the table `summary` of each run."""
        return [rows_of(run, "summary") for run in self.runs]

    @cached_property
    def labels(self) -> dict[tuple[int, str | None], str]:
        """Return the label of each system of a run: its name, and the name of its run if several runs have it."""
        found = [(place, row["system"]) for place, rows in enumerate(self.summaries) for row in rows]
        pairs = list(dict.fromkeys(found))
        given = [self.names[place] if system is None else system for place, system in pairs]
        return {
            (place, system): name if given.count(name) == 1 else f"{name} ({self.names[place]})"
            for (place, system), name in zip(pairs, given, strict=True)
        }

    @cached_property
    def sizes(self) -> list[int]:
        """Return the number of samples of each run."""
        return [run.dataset("samples").count_rows() if "samples" in run.tables else 0 for run in self.runs]

    @cached_property
    def trend(self) -> Trend | None:
        """Return the trend if all outputs have distinct dates (in manifest or path), otherwise None."""
        dates = {day for run in self.runs if (day := named_date(run))}
        return find_trend(self.runs) if len(dates) == len(self.runs) > 1 else None

    @cached_property
    def chosen(self) -> list[frozenset[str] | None]:
        """Return the ids of the listed samples of each run, None for all.

        Above `LISTED` samples, these are the worst by score, and answers to queries drawn by a hash, so that the
        answers of all systems to one query stay together. The same outputs return the same samples.
        """
        if sum(self.sizes) <= LISTED:
            return [None] * len(self.runs)
        part = max(1, PART // len(self.runs))
        worst = [lowest_scores(run.dataset("scores"), part)["sample_id"].to_pylist() for run in self.runs]
        return [frozenset({*low, *_drawn(run, part)}) for low, run in zip(worst, self.runs, strict=True)]

    @property
    def shown(self) -> int:
        """Return the number of listed samples."""
        return sum(size if ids is None else len(ids) for size, ids in zip(self.sizes, self.chosen, strict=True))

    def rows(
        self,
        name: str,
        columns: Sequence[str],
        where: pc.Expression | None = None,
        among: Collection[Key] | None = None,
    ) -> Iterator[tuple[Key, dict[str, Any]]]:
        """Yield the rows of a table for the listed samples, or for the samples in `among`, with missing columns null.

        `where` is a filter of the columns. Rows are read in batches, because a table may be larger than memory.
        """
        for place, run in enumerate(self.runs):
            if name not in run.tables:
                continue
            ids = self.chosen[place] if among is None else {name for one, name in among if one == place}
            rows = run.dataset(name)
            there = [column for column in dict.fromkeys(("sample_id", *columns)) if column in rows.schema.names]
            wanted = None if ids is None else ds.field("sample_id").isin(pa.array(sorted(ids), pa.string()))
            both = wanted & where if wanted is not None and where is not None else wanted if where is None else where
            for batch in batches_of(rows, there, both, ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    yield (place, row["sample_id"]), dict.fromkeys(columns) | row


def rows_of(run: RunTables, name: str) -> list[dict[str, Any]]:
    """Return the rows of a small table, none if the run lacks it. Columns newer than the run are null."""
    if name not in run.tables:
        return []
    return [dict.fromkeys(RESULT_TABLES[name].names) | row for row in run.table(name).to_pylist()]


def open_sources(runs: Sequence[RunTables]) -> Sources:
    """Return the runs as sources. Raises UnreadableRunError if no run has scores or a run is not usable."""
    scored = tuple(run for run in runs if "scores" in run.tables)
    studies = tuple(run for run in runs if "scores" not in run.tables and "meta_evaluation" in run.tables)
    for run in runs:
        if run not in scored and run not in studies:
            raise UnreadableRunError(f"{run.directory} has no table scores. Give an output of untold score")
    if not scored:
        raise UnreadableRunError("no output has scores. Add an output of untold score to the outputs of meta-evaluate")
    return Sources(scored, studies)


def _drawn(run: RunTables, count: int) -> list[str]:
    """Return samples ordered by a hash of their query, then of their id."""
    keys = (
        (_hash(query or name), _hash(name), name)
        for batch in batches_of(run.dataset("samples"), ["sample_id", "query"])
        for name, query in zip(batch["sample_id"].to_pylist(), batch["query"].to_pylist(), strict=True)
    )
    return [name for *_, name in heapq.nsmallest(count, keys)]


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()


# Characters of one text, and of all texts. Longer texts are cut during reading, which limits memory
LONGEST, MOST, SHORT = 200_000, 60_000_000, 300
# Bytes of the data in the page. The page has a limit of 5 MB, and its figures, style and script need about 0.1 MB
BUDGET = 4_750_000
# Larger data is compressed
PLAIN = 1_500_000
# Maximum characters of texts with weight 1; the first limit that fits is used, each two thirds of the one before
LIMITS = tuple(int(LONGEST * (2 / 3) ** step) for step in range(31))
# Weights of texts, which multiply the limit. The texts of detailed answers are longer
CONTEXT, RESPONSE, STATEMENT, DETAILED = 1, 8, 8, 4


@dataclass
class ReportTexts:
    """Distinct texts by number, in order of first appearance."""

    texts: list[str] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    # Lengths of the texts that were cut during reading
    lengths: dict[int, int] = field(default_factory=dict)
    _known: dict[tuple[str, int], int] = field(default_factory=dict)
    _size: int = 0

    def add(self, text: str | None, weight: int = STATEMENT) -> int | None:
        """Return the number of a text, or None for None."""
        return None if text is None else self.number(text, weight)

    def number(self, text: str, weight: int = STATEMENT) -> int:
        """Return the number of a text."""
        kept = text[: LONGEST if self._size < MOST else SHORT]
        # Long texts may have the same beginning
        key = (kept, hash(text))
        number = self._known.setdefault(key, len(self.texts))
        if number == len(self.texts):
            self.texts.append(kept)
            self.weights.append(weight)
            self._size += len(kept)
            if len(kept) < len(text):
                self.lengths[number] = len(text)
        self.weights[number] = max(weight, self.weights[number])
        return number

    def cut(self, limit: int) -> dict[str, Any]:
        """Return `texts`, cut to the limit times their weight, and `lengths` of the cut texts by number."""
        pairs = list(zip(self.texts, self.weights, strict=True))
        longer = {number: len(text) for number, (text, weight) in enumerate(pairs) if len(text) > limit * weight}
        return {"texts": [text[: limit * weight] for text, weight in pairs], "lengths": {**longer, **self.lengths}}

    def size(self, limit: int) -> int:
        """Return the number of characters under a limit."""
        return sum(min(len(text), limit * weight) for text, weight in zip(self.texts, self.weights, strict=True))


@dataclass(frozen=True)
class Packed:
    """The data of the page: JSON, or if it is large `packed` by gzip and base64.

    `limit` is the maximum characters of texts with weight 1, None if no text is cut.
    """

    text: str
    packed: bool
    limit: int | None


def pack(data: Mapping[str, Any], texts: ReportTexts, budget: int = BUDGET) -> Packed:
    """Return the data with its texts, cut by the largest limit of `LIMITS` that fits the budget, or by the last."""
    found = _pack(data, texts, LIMITS[0], budget)
    if len(found.text) <= budget:
        return found
    figures = len(_gzip(_json(data)))
    # Packing takes a second, so limits are skipped that are too large according to the compression of the last attempt
    share = (len(found.text) - figures) / texts.size(LIMITS[0])
    for limit in LIMITS[1:]:
        if limit != LIMITS[-1] and figures + share * texts.size(limit) > budget:
            continue
        found = _pack(data, texts, limit, budget)
        if len(found.text) <= budget:
            break
        share = (len(found.text) - figures) / texts.size(limit)
    return found


def _pack(data: Mapping[str, Any], texts: ReportTexts, limit: int, budget: int) -> Packed:
    found = texts.cut(limit)
    written, told = _json({**data, **found}), limit if found["lengths"] else None
    if len(written) <= min(PLAIN, budget):
        return Packed(written, False, told)
    return Packed(_gzip(written), True, told)


def _gzip(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode()


def _json(value: Any) -> str:
    """Return JSON that cannot start or end an HTML element: `<` and other special signs are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row without null and empty values.

    >>> compact({"a": 0, "b": None, "c": [], "d": False})
    {'a': 0, 'd': False}
    """
    return {name: value for name, value in row.items() if value is not None and value != [] and value != {}}


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Return a number with few digits, or None for null and NaN."""
    return None if value is None or value != value else round(value, digits)


def columns_of(statements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return statements as columns, which compress to a third: `text`, `number`, `point`, `is` and `more`.

    Numbers are differences from the statement before. `is` has one sign per statement: 1 covered, 0 missing, b missing
    and in the basis, ? not judged. `point` is left out if it equals `text`, and `more` if it is empty for all.

    >>> columns_of([{"text": 7, "point": 7, "covered": True, "number": 1},
    ...             {"text": 9, "point": 9, "covered": None, "number": 2, "rank": 2}])
    {'text': [7, 2], 'number': [1, 1], 'is': '1?', 'more': [{}, {'rank': 2}]}
    """
    texts, points = [row["text"] for row in statements], [row["point"] for row in statements]
    own = ("text", "number", "point", "covered", "in_basis")
    more = [compact({name: value for name, value in row.items() if name not in own}) for row in statements]
    numbers = [row["number"] for row in statements]
    found = {"text": _steps(texts), "number": _steps(numbers), "is": "".join(map(_sign, statements))}
    return found | ({"point": _steps(points)} if points != texts else {}) | ({"more": more} if any(more) else {})


def _steps(numbers: Sequence[int]) -> list[int]:
    return [number - before for number, before in zip(numbers, [0, *numbers], strict=False)]


def _sign(row: Mapping[str, Any]) -> str:
    if row["covered"] is None:
        return "?"
    return "1" if row["covered"] else "b" if row.get("in_basis") else "0"
