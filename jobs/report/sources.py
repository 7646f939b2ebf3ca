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

# Samples whose answers a report shows; of more, so many that score worst and so many drawn at random
LISTED, PART = 10_000, 1_000
ROWS_AT_ONCE = 1_000
Key = tuple[int, str]
"""A sample: the place of its run, and its sample_id."""


@dataclass(frozen=True)
class Sources:
    """Runs with scores, in the order given, and studies that say how far their judge agrees with people."""

    runs: tuple[RunTables, ...]
    studies: tuple[RunTables, ...] = ()

    @cached_property
    def names(self) -> list[str]:
        """What runs are called, and systems without a name in them."""
        return names_of(self.runs)

    @cached_property
    def summaries(self) -> list[list[dict[str, Any]]]:
        """By run the rows of its table `summary`."""
        return [rows_of(run, "summary") for run in self.runs]

    @cached_property
    def labels(self) -> dict[tuple[int, str | None], str]:
        """What each system of a run is called: by its name, with that of its run where several runs have it."""
        found = [(place, row["system"]) for place, rows in enumerate(self.summaries) for row in rows]
        pairs = list(dict.fromkeys(found))
        given = [self.names[place] if system is None else system for place, system in pairs]
        return {
            (place, system): name if given.count(name) == 1 else f"{name} ({self.names[place]})"
            for (place, system), name in zip(pairs, given, strict=True)
        }

    @cached_property
    def sizes(self) -> list[int]:
        """By run how many samples it has."""
        return [run.dataset("samples").count_rows() if "samples" in run.tables else 0 for run in self.runs]

    @cached_property
    def trend(self) -> Trend | None:
        """The trend of outputs that name several dates, by manifest or path; None of others."""
        dates = {day for run in self.runs if (day := named_date(run))}
        return find_trend(self.runs) if len(dates) == len(self.runs) > 1 else None

    @cached_property
    def chosen(self) -> list[frozenset[str] | None]:
        """By run the samples whose answers are shown; None for all of them.

        Of more than `LISTED` the worst by score, and answers to queries drawn by a hash, so that the answers of all
        systems to one query stay together. The same outputs give the same samples.
        """
        if sum(self.sizes) <= LISTED:
            return [None] * len(self.runs)
        part = max(1, PART // len(self.runs))
        worst = [lowest_scores(run.dataset("scores"), part)["sample_id"].to_pylist() for run in self.runs]
        return [frozenset({*low, *_drawn(run, part)}) for low, run in zip(worst, self.runs, strict=True)]

    @property
    def shown(self) -> int:
        """How many samples are shown."""
        return sum(size if ids is None else len(ids) for size, ids in zip(self.sizes, self.chosen, strict=True))

    def rows(
        self,
        name: str,
        columns: Sequence[str],
        where: pc.Expression | None = None,
        among: Collection[Key] | None = None,
    ) -> Iterator[tuple[Key, dict[str, Any]]]:
        """The rows of a table for the samples shown, or for those `among` them; columns a table lacks are null.

        `where` is about the columns.

        Rows are read a batch at a time: a table may be larger than memory.
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
    """The rows of a small table; none where the run lacks it. Columns that came after the run are null."""
    if name not in run.tables:
        return []
    return [dict.fromkeys(RESULT_TABLES[name].names) | row for row in run.table(name).to_pylist()]


def open_sources(runs: Sequence[RunTables]) -> Sources:
    """The runs by what they hold. Raises UnreadableRunError where none has scores, or one has nothing for a report."""
    scored = tuple(run for run in runs if "scores" in run.tables)
    studies = tuple(run for run in runs if "scores" not in run.tables and "meta_evaluation" in run.tables)
    for run in runs:
        if run not in scored and run not in studies:
            raise UnreadableRunError(f"{run.directory} has no table scores. Give an output of untold score")
    if not scored:
        raise UnreadableRunError("no output has scores. Add an output of untold score to the outputs of meta-evaluate")
    return Sources(scored, studies)


def _drawn(run: RunTables, count: int) -> list[str]:
    """Samples by a hash of their query, then of their id."""
    samples = run.dataset("samples")

    def keys() -> Iterator[tuple[bytes, bytes, str]]:
        for batch in batches_of(samples, ["sample_id", "query"]):
            for name, query in zip(batch["sample_id"].to_pylist(), batch["query"].to_pylist(), strict=True):
                yield _hash(query or name), _hash(name), name

    return [name for *_, name in heapq.nsmallest(count, keys())]


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()


# Characters of one text, and of all: beyond these a text is cut while it is read, so that memory stays bounded
LONGEST, MOST, SHORT = 200_000, 60_000_000, 300
# Bytes of the data in the page: it has 5 MB in all, and its figures, style and script take some 0.1 MB
BUDGET = 4_750_000
# Up to so many bytes the data stands in the page as it is; beyond, it is packed
PLAIN = 1_500_000
# Characters that texts of weight 1 are cut to, the first that fits: each is two thirds of the one before
LIMITS = tuple(int(LONGEST * (2 / 3) ** step) for step in range(31))
# What a text is worth beside others: so many times the characters are left of it. A detailed answer's are left last
CONTEXT, RESPONSE, STATEMENT, DETAILED = 1, 8, 8, 4


@dataclass
class ReportTexts:
    """Distinct texts by number, in the order in which they came."""

    texts: list[str] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    # Characters of those that were cut while they were read
    lengths: dict[int, int] = field(default_factory=dict)
    _known: dict[tuple[str, int], int] = field(default_factory=dict)
    _size: int = 0

    def add(self, text: str | None, weight: int = STATEMENT) -> int | None:
        """The number of a text; None for none."""
        return None if text is None else self.number(text, weight)

    def number(self, text: str, weight: int = STATEMENT) -> int:
        """The number of a text."""
        kept = text[: LONGEST if self._size < MOST else SHORT]
        # Long texts may begin alike
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
        """`texts`, none longer than the limit times its weight, and `lengths` of those that are cut, by number."""
        pairs = list(zip(self.texts, self.weights, strict=True))
        longer = {number: len(text) for number, (text, weight) in enumerate(pairs) if len(text) > limit * weight}
        return {"texts": [text[: limit * weight] for text, weight in pairs], "lengths": {**longer, **self.lengths}}

    def size(self, limit: int) -> int:
        """The characters that are left under a limit."""
        return sum(min(len(text), limit * weight) for text, weight in zip(self.texts, self.weights, strict=True))


@dataclass(frozen=True)
class Packed:
    """Data as it stands in the page: JSON, or where that is large `packed` by gzip and base64.

    `limit`: the characters that texts of weight 1 are cut to, None where no text is cut.
    """

    text: str
    packed: bool
    limit: int | None


def pack(data: Mapping[str, Any], texts: ReportTexts, budget: int = BUDGET) -> Packed:
    """The data with its texts, cut by the least of `LIMITS` that is found to fit the budget, or by the last."""
    found = _pack(data, texts, LIMITS[0], budget)
    if len(found.text) <= budget:
        return found
    figures = len(_gzip(_json(data)))
    # Packing takes a second: limits that leave too much, by what the last try's texts took, are passed over
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
    """JSON that no element of a page can end or begin in: `<` and what else HTML reads is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what is null or empty.

    >>> compact({"a": 0, "b": None, "c": [], "d": False})
    {'a': 0, 'd': False}
    """
    return {name: value for name, value in row.items() if value is not None and value != [] and value != {}}


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A number with few digits; None for null and for what is no number."""
    return None if value is None or value != value else round(value, digits)


def columns_of(statements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Statements as columns, which pack to a third: `text` and `point` by their steps, `is` a sign each, and `more`.

    Signs are 1 covered, 0 missing, b missing and in the basis, ? not judged. `point` is left out where each is its own
    text, `more` where nothing else is known of any.

    >>> columns_of([{"text": 7, "point": 7, "covered": True}, {"text": 9, "point": 9, "covered": None, "rank": 2}])
    {'text': [7, 2], 'is': '1?', 'more': [{}, {'rank': 2}]}
    """
    texts, points = [row["text"] for row in statements], [row["point"] for row in statements]
    own = ("text", "point", "covered", "in_basis")
    more = [compact({name: value for name, value in row.items() if name not in own}) for row in statements]
    found = {"text": _steps(texts), "is": "".join(map(_sign, statements))}
    return found | ({"point": _steps(points)} if points != texts else {}) | ({"more": more} if any(more) else {})


def _steps(numbers: Sequence[int]) -> list[int]:
    return [number - before for number, before in zip(numbers, [0, *numbers], strict=False)]


def _sign(row: Mapping[str, Any]) -> str:
    if row["covered"] is None:
        return "?"
    return "1" if row["covered"] else "b" if row.get("in_basis") else "0"
