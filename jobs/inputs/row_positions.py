"""Where rows of an input stand in its files, and what its parts tell of each file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inputs.files import FileFacts, InputFile
from untold.udfs.samples.file_records import undecodable

STARTS = "file int, block long, path string, rows_before long, numbers_before long"


@dataclass(frozen=True)
class Parts:
    """What the parts of an input tell: facts by file, and of each part where it begins (`STARTS` without the path).

    `rows_before`: rows of its file before it, blank lines counted; `numbers_before`: records of all files before it.
    """

    facts: Mapping[int, FileFacts]
    starts: Sequence[tuple[int, int, int, int]]


def read_parts(found: Sequence[str]) -> Parts:
    """The facts of all parts (`untold.udfs.samples.batches.Tally.facts`), put together by file."""
    merged: dict[int, FileFacts] = {}
    starts: list[tuple[int, int, int, int]] = []
    lines: dict[int, int] = {}
    records = 0
    # Sorted, so that which of two problems is shown does not depend on which task was first
    for plain in sorted(map(json.loads, found), key=lambda each: (each["file"], each["block"])):
        file, problem = plain["file"], plain["problem"]
        before = lines.get(file, 0)
        starts.append((file, plain["block"], before, records))
        lines[file], records = before + plain["lines"], records + plain["rows"]
        if plain["undecodable"] is not None:
            line, encoding = plain["undecodable"]
            problem = undecodable(before + line, encoding)
        facts = FileFacts(frozenset(plain["columns"]), plain["shapes"], plain["rows"], problem)
        merged[file] = merged.get(file, FileFacts()).merge(facts)
    return Parts(merged, starts)


def with_row(places: DataFrame, parts: Parts, files: Sequence[InputFile]) -> DataFrame:
    """The places (file, block, n) with the columns of `STARTS`, and `row`, which is 1-based in the file."""
    starts = [(file, block, files[file].path, *before) for file, block, *before in parts.starts]
    known = F.broadcast(places.sparkSession.createDataFrame(starts, STARTS))
    return places.join(known, on=["file", "block"], how="left").withColumn("row", F.col("rows_before") + F.col("n"))
