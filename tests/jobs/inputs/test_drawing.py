"""`--sample`: rows of an input at random, the same for one seed, and stable when rows are added."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.sample_files import write_lines
from untold.jobs.inputs.samples import SampleError, fingerprint, read_samples
from untold.jobs.inputs.sampling import Draw, allocate
from untold.udfs.errors import UserError


def write_rows(path: Path, count: int) -> str:
    contexts = ["one"]
    rows = [{"sample_id": f"s-{n}", "query": f"q{n}", "response": "r", "contexts": contexts} for n in range(count)]
    return write_lines(path, rows)


def ids_of(spark: SparkSession, path: str, draw: Draw, **options: object) -> set[str]:
    found = read_samples(spark, path, draw=draw, **options)  # type: ignore[arg-type]
    ids = {row["sample_id"] for row in found.samples.select("sample_id").collect()}
    assert len(ids) == found.row_count
    return ids


@pytest.mark.gate
def test_the_same_rows_are_drawn_for_one_seed(spark: SparkSession, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", 40)
    drawn = {seed: ids_of(spark, path, Draw(10, seed)) for seed in (0, 1)}
    assert len(drawn[0]) == len(drawn[1]) == 10
    assert drawn[0] != drawn[1]
    assert ids_of(spark, path, Draw(10, 0)) == drawn[0]
    assert ids_of(spark, path, Draw(10, 0), limit=4) == set(sorted(drawn[0])[:4])
    assert len(ids_of(spark, path, Draw(99, 0))) == 40


@pytest.mark.gate
def test_each_added_row_displaces_at_most_one_row(spark: SparkSession, tmp_path: Path) -> None:
    before = ids_of(spark, write_rows(tmp_path / "a.jsonl", 40), Draw(20, 0))
    after = ids_of(spark, write_rows(tmp_path / "b.jsonl", 43), Draw(20, 0))
    assert len(before - after) == len(after - before) <= 3
    assert after - before <= {"s-40", "s-41", "s-42"}


def test_instances_are_drawn_with_all_their_samples(spark: SparkSession, tmp_path: Path) -> None:
    row = {f"{name}_evidence": name for name in ("default", "misinformation_conflict", "temporal_conflict")}
    row |= {"semantic_conflict_evidence": "s", "default_claim": "d", "misinformation_conflict_claim": "c"}
    path = write_lines(tmp_path / "bank.jsonl", [row | {"question": f"q{n}"} for n in range(30)])
    for name, size in (("conflictbank", 2), ("conflictbank_alone", 10)):
        ids = ids_of(spark, path, Draw(7, 3), format=name)
        rows = {each.split("-")[0] for each in ids}
        assert (len(rows), len(ids)) == (7, 7 * size)


@pytest.mark.gate
def test_each_stratum_has_its_share_and_at_least_one(spark: SparkSession, tmp_path: Path) -> None:
    systems = ["a"] * 60 + ["b"] * 36 + ["c"] * 3 + [None]
    rows = [
        {"sample_id": f"s-{n}", "query": f"q{n}", "response": "r", "contexts": ["c"], "system": name, "no.": n % 2}
        for n, name in enumerate(systems)
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    found = read_samples(spark, path, draw=Draw(20, 0, ("system",)))
    drawn = Counter(row["system"] for row in found.samples.collect())
    assert drawn == {"a": 11, "b": 7, "c": 1, None: 1}
    assert found.draw == {
        "rows": 20,
        "seed": 0,
        "stratify": ["system"],
        "of": 100,
        "strata": [{"system": name, "rows": drawn[name], "of": systems.count(name)} for name in ("a", "b", "c", None)],
    }
    # The rows of a stratum are the same as in a sample of this stratum without the other strata
    alone = write_lines(tmp_path / "b.jsonl", [row for row in rows if row["system"] == "a"])
    first = {row["sample_id"] for row in found.samples.where("system = 'a'").collect()}
    assert first == ids_of(spark, alone, Draw(11, 0))
    # One column is copied from the input, and the other column is in all samples
    both = read_samples(spark, path, draw=Draw(20, 0, ("system", "no."))).samples.collect()
    assert Counter((row["system"], row["no."]) for row in both)["a", 1] == 6
    with pytest.raises(UserError, match=r"^3 random rows are fewer than the strata by system; draw more"):
        read_samples(spark, path, draw=Draw(3, 0, ("system",)))
    with pytest.raises(
        SampleError,
        match=r"^stratify: no column `sistem` \(did you mean `system`\?\)\. Columns are sample_id",
    ):
        read_samples(spark, path, draw=Draw(9, 0, ("sistem",)))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_an_allocation_is_whole_and_near_its_proportions(counts: list[int], more: int) -> None:
    rows = len(counts) + more
    given = allocate(counts, rows)
    assert sum(given) == min(rows, sum(counts))
    assert all(1 <= share <= count for share, count in zip(given, counts, strict=True))
    if rows < sum(counts) and min(counts) * rows >= sum(counts):
        assert all(abs(share - rows * count / sum(counts)) < 1 for share, count in zip(given, counts, strict=True))


def test_another_draw_is_another_input(spark: SparkSession, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", 40)
    contents = {fingerprint(read_samples(spark, path, draw=Draw(10, seed)).samples) for seed in (0, 0, 1)}
    assert len(contents) == 2
