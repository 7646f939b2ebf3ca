from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jobs.asking.store import (
    compact,
    count_damaged,
    list_segments,
    one_a_request,
    read_completions,
    stage_folder,
    states_of_requests,
)
from jobs.run.session import spark_schema
from jobs.tables import COMPLETIONS
from udfs.llm.keys import Stage
from udfs.llm.segments import write_file

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WEEK = 7 * 24 * 3600
Row = dict[str, Any]


def row(request_id: str = "r", *, minute: int = 0, **fields: Any) -> Row:
    """A row of `completions`; a text makes it a good one."""
    return {"request_id": request_id, "answered_at": NOON + timedelta(minutes=minute), **fields}


def failed(error_type: str, **fields: Any) -> Row:
    return row(error_type=error_type, error=f"why {error_type}", **fields)


def write(folder: Path, name: str, rows: Sequence[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, COMPLETIONS)
    write_file(f"{folder}/{name}", table)
    return folder / name


def best(spark: SparkSession, folder: Path) -> dict[str, tuple[str | None, str | None]]:
    """The (text, error_type) that a run would read, by request id."""
    rows = one_a_request(read_completions(spark, str(folder))).collect()
    assert len({one["request_id"] for one in rows}) == len(rows)
    return {one["request_id"]: (one["text_of_completion"], one["error_type"]) for one in rows}


def test_a_stage_has_a_folder_of_its_own() -> None:
    stage = Stage("s", (), "m", "t")
    assert stage_folder("/store/", stage) == stage_folder("/store", stage) == f"/store/v1/s-{stage.digest}"


RULES = {
    "ok before failed": [row(text="good", minute=9), failed("http_400"), failed("timeout")],
    "lasting before passing": [failed("filtered", minute=9), failed("http_500"), failed("timeout"), failed("bad_body")],
    "the earliest of good ones": [row(text="good", minute=1), row(text="another", minute=2)],
    "the earliest of lasting ones": [failed("unparsable", minute=1), failed("empty", minute=2)],
    "the earliest of passing ones": [failed("timeout", minute=1), failed("connection", minute=2)],
}
EXPECTED = {
    "ok before failed": ("good", None),
    "lasting before passing": (None, "filtered"),
    "the earliest of good ones": ("good", None),
    "the earliest of lasting ones": (None, "unparsable"),
    "the earliest of passing ones": (None, "timeout"),
}


def test_of_several_rows_one_is_read(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**one, "request_id": name} for name, given in RULES.items() for one in given]
    write(tmp_path, "run-a-1.parquet", rows)
    assert best(spark, tmp_path) == EXPECTED


def test_neither_the_order_of_rows_nor_of_files_decides(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**one, "request_id": name} for name, given in RULES.items() for one in given]
    for number, one in enumerate(reversed(rows)):
        write(tmp_path, f"run-{number:02d}.parquet", [one])
    assert best(spark, tmp_path) == EXPECTED


def test_equal_times_are_decided_by_content_alone(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["one", "two", "three"]
    chosen = set()
    for number, order in enumerate(itertools.permutations(texts)):
        write(tmp_path / str(number), "a.parquet", [row(text=text) for text in order])
        chosen.add(best(spark, tmp_path / str(number))["r"])
    assert len(chosen) == 1


def test_text_and_model_come_from_one_row(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row(text="a", model="z", minute=1), row(text="b", model="a", minute=0), failed("empty", model="c")]
    write(tmp_path, "a.parquet", rows)
    (one,) = one_a_request(read_completions(spark, str(tmp_path))).collect()
    assert (one["text_of_completion"], one["model"], one["error"]) == ("b", "a", None)


def test_states_are_the_best_that_the_store_has(spark: SparkSession, tmp_path: Path) -> None:
    passing = ("timeout", "connection", "bad_body", "http_500", "http_503", "http_429")
    lasting = ("http_400", "http_422", "filtered", "crashed", "truncated", "empty", "unparsable", "template")
    rows = [failed(name, request_id=name) for name in passing + lasting]
    rows += [row("ok", text="t"), failed("filtered", request_id="ok"), failed("timeout", request_id="empty")]
    write(tmp_path, "a.parquet", rows)
    states = states_of_requests(read_completions(spark, str(tmp_path)))
    found = {one["request_id"]: one["state"] for one in states.collect()}
    assert found == {"ok": "ok", **dict.fromkeys(lasting, "lasting"), **dict.fromkeys(passing, "passing")}


def test_a_store_that_is_not_there_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    completions = read_completions(spark, str(tmp_path / "nowhere"))
    assert completions.schema == spark_schema(COMPLETIONS)
    assert completions.count() == 0


def test_rows_are_read_with_the_schema_of_completions(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [row()])
    completions = read_completions(spark, str(tmp_path))
    assert [field.name for field in completions.schema] == COMPLETIONS.names
    assert completions.first().answered_at is not None  # type: ignore[union-attr]


def test_files_of_an_older_version_lack_columns_and_are_read(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"request_id": ["r"], "text": ["text"]})
    write_file(f"{tmp_path}/old.parquet", table)
    write(tmp_path, "new.parquet", [row("s", text="other")])
    assert best(spark, tmp_path) == {"r": ("text", None), "s": ("other", None)}


def damage(folder: Path) -> int:
    """Puts damaged files beside the good ones; gives their number."""
    good = write(folder, "whole.parquet", [row("whole", text="t" * 5000)]).read_bytes()
    damaged = {"empty": b"", "cut": good[: len(good) // 2], "text": b"no parquet"}
    for name, content in damaged.items():
        (folder / f"{name}.parquet").write_bytes(content)
    return len(damaged)


def test_damaged_files_are_skipped_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [row("r", text="good")])
    number = damage(tmp_path)
    assert {key: error for key, (_, error) in best(spark, tmp_path).items()} == {"r": None, "whole": None}
    assert count_damaged(str(tmp_path)) == number


def break_pages(path: Path) -> None:
    """Leaves the footer of a file as it is, and nothing of its rows."""
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    path.write_bytes(content[:4] + b"\xff" * (len(content) - 4 - footer) + content[-footer:])


def test_a_file_with_a_footer_and_damaged_rows_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [row("r", text="good")])
    break_pages(write(tmp_path, "b.parquet", [row("s", text="t" * 5000)]))
    assert best(spark, tmp_path) == {"r": ("good", None)}


def test_damage_elsewhere_in_the_session_is_still_an_error(spark: SparkSession, tmp_path: Path) -> None:
    damage(tmp_path)
    read_completions(spark, str(tmp_path)).count()
    with pytest.raises(Exception, match="parquet"):
        spark.read.schema(spark_schema(COMPLETIONS)).parquet(str(tmp_path)).select("text").collect()


def test_files_that_are_aside_are_no_segments(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet", [row("r", text="t")])
    for name in (".b.parquet.tmp", "_probe-run-a", "_lock", "_compacted-run.json", "._c.parquet"):
        (tmp_path / name).write_bytes(b"aside")
    assert [info.base_name for info in list_segments(str(tmp_path))] == [path.name]
    assert best(spark, tmp_path) == {"r": ("t", None)}
    assert count_damaged(str(tmp_path)) == 0


def segments_of(folder: Path, run: str, count: int) -> list[Path]:
    return [
        write(folder, f"{run}-a-{number:06d}.parquet", [row(f"{run}{number}", text=f"t{number}")])
        for number in range(count)
    ]


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_compaction_keeps_results_and_segments(spark: SparkSession, tmp_path: Path, form: str) -> None:
    old = segments_of(tmp_path, "run1", 12) + segments_of(tmp_path, "run2", 3)
    before = best(spark, tmp_path)
    compact(spark, form.format(tmp_path), "run1")
    assert best(spark, tmp_path) == before
    assert all(path.exists() for path in old)
    made = sorted(tmp_path.glob("compact-run1-*.parquet"))
    assert sum(pq.read_metadata(path).num_rows for path in made) == 12
    assert not list(tmp_path.glob("_compact-*"))


def test_the_columns_of_compacted_files_are_those_of_completions(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 12)
    compact(spark, str(tmp_path), "run1")
    (made,) = tmp_path.glob("compact-run1-*.parquet")
    assert pq.read_schema(made).names == COMPLETIONS.names
    assert pq.read_table(made, schema=COMPLETIONS).num_rows == 12


def test_few_segments_stay_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 3)
    compact(spark, str(tmp_path), "run1")
    assert list(tmp_path.glob("compact-*")) == []


def test_compacting_twice_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 12)
    before = best(spark, tmp_path)
    compact(spark, str(tmp_path), "run1")
    compact(spark, str(tmp_path), "run1")
    assert best(spark, tmp_path) == before
    assert len(list(tmp_path.glob("compact-*"))) == 1


def age(note: Path, seconds: float) -> None:
    content = json.loads(note.read_text())
    note.write_text(json.dumps({**content, "at": time() - seconds}))


@pytest.mark.parametrize(("seconds", "left"), [(WEEK - 60, 12), (WEEK + 60, 0)])
def test_segments_go_a_week_after_they_were_compacted(
    spark: SparkSession, tmp_path: Path, seconds: float, left: int
) -> None:
    segments_of(tmp_path, "run1", 12)
    other = segments_of(tmp_path, "run2", 2)
    before = best(spark, tmp_path)
    compact(spark, str(tmp_path), "run1")
    age(tmp_path / "_compacted-run1.json", seconds)
    compact(spark, str(tmp_path), "run2")
    assert len(list(tmp_path.glob("run1-*.parquet"))) == left
    assert all(path.exists() for path in other)
    assert best(spark, tmp_path) == before


def test_a_damaged_segment_does_not_stop_the_compaction(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 12)
    (tmp_path / "run1-a-000003.parquet").write_bytes(b"PAR1 and no more")
    before = best(spark, tmp_path)
    compact(spark, str(tmp_path), "run1")
    assert best(spark, tmp_path) == before
    assert len(before) == 11
