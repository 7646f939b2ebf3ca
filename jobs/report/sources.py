"""The runs of a report: what their systems are called, which samples it shows, and the rows of these."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from untold.jobs.results import Run, UnreadableRunError, batches_of, lowest_scores
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

    runs: tuple[Run, ...]
    studies: tuple[Run, ...] = ()

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


def rows_of(run: Run, name: str) -> list[dict[str, Any]]:
    """The rows of a small table; none where the run lacks it. Columns that came after the run are null."""
    if name not in run.tables:
        return []
    return [dict.fromkeys(RESULT_TABLES[name].names) | row for row in run.table(name).to_pylist()]


def open_sources(runs: Sequence[Run]) -> Sources:
    """The runs by what they hold. Raises UnreadableRunError where none has scores, or one has nothing for a report."""
    scored = tuple(run for run in runs if "scores" in run.tables)
    studies = tuple(run for run in runs if "scores" not in run.tables and "meta_evaluation" in run.tables)
    for run in runs:
        if run not in scored and run not in studies:
            raise UnreadableRunError(f"{run.directory}: no table scores; give an output of untold score")
    if not scored:
        raise UnreadableRunError("no output has scores; give an output of untold score beside those of meta-evaluate")
    return Sources(scored, studies)


def _drawn(run: Run, count: int) -> list[str]:
    """Samples by a hash of their query, then of their id."""
    samples = run.dataset("samples")

    def keys() -> Iterator[tuple[bytes, bytes, str]]:
        for batch in batches_of(samples, ["sample_id", "query"]):
            for name, query in zip(batch["sample_id"].to_pylist(), batch["query"].to_pylist(), strict=True):
                yield _hash(query or name), _hash(name), name

    return [name for *_, name in heapq.nsmallest(count, keys())]


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()
