"""`--sample`: rows of an input at random, the same for one seed, and stable when rows are added."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.sample_files import write_lines
from untold.jobs.inputs.drawing import Draw
from untold.jobs.inputs.samples import fingerprint, read_samples


def write_rows(path: Path, count: int) -> str:
    contexts = ["one"]
    rows = [{"sample_id": f"s-{n}", "query": f"q{n}", "response": "r", "contexts": contexts} for n in range(count)]
    return write_lines(path, rows)


def ids_of(spark: SparkSession, path: str, draw: Draw, **options: object) -> set[str]:
    found = read_samples(spark, path, draw=draw, **options)  # type: ignore[arg-type]
    ids = {row["sample_id"] for row in found.samples.select("sample_id").collect()}
    assert len(ids) == found.row_count
    return ids


def test_so_many_rows_are_drawn_the_same_for_one_seed(spark: SparkSession, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", 40)
    drawn = {seed: ids_of(spark, path, Draw(10, seed)) for seed in (0, 1)}
    assert len(drawn[0]) == len(drawn[1]) == 10
    assert drawn[0] != drawn[1]
    assert ids_of(spark, path, Draw(10, 0)) == drawn[0]
    assert ids_of(spark, path, Draw(10, 0), limit=4) == set(sorted(drawn[0])[:4])
    assert len(ids_of(spark, path, Draw(99, 0))) == 40


def test_rows_that_are_added_displace_one_each_at_most(spark: SparkSession, tmp_path: Path) -> None:
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


def test_another_draw_is_another_input(spark: SparkSession, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", 40)
    contents = {fingerprint(read_samples(spark, path, draw=Draw(10, seed)).samples) for seed in (0, 0, 1)}
    assert len(contents) == 2
