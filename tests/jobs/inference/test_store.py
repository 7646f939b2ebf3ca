from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.jobs.inference.completions import break_pages, failed, names_in, row, segments_of, write
from untold.jobs.inference.store.compaction import Whole, compact_folder, live_names
from untold.jobs.inference.store.store import (
    PAUSES,
    Reading,
    StoreError,
    compact,
    is_transient,
    one_a_request,
    open_reading,
    read_strictly,
    stage_folder,
    states_of_requests,
)
from untold.jobs.run.session import spark_schema
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.retrying import is_passing
from untold.udfs.llm.store_files import write_file

EARLIER = Path(__file__).parent / "earlier_store"


def best(spark: SparkSession, folder: Path) -> dict[str, tuple[str | None, str | None]]:
    """Return the text and the error type of each request, as a run would read them."""
    rows = one_a_request(open_reading(spark, str(folder)).completions).collect()
    assert len({one["request_id"] for one in rows}) == len(rows)
    return {one["request_id"]: (one["text_of_completion"], one["error_type"]) for one in rows}


def test_a_stage_has_its_own_folder() -> None:
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


def test_one_of_several_rows_is_read(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**one, "request_id": name} for name, given in RULES.items() for one in given]
    write(tmp_path, "run-a-1.parquet", rows)
    assert best(spark, tmp_path) == EXPECTED


def test_neither_the_order_of_rows_nor_of_files_decides(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**one, "request_id": name} for name, given in RULES.items() for one in given]
    for number, one in enumerate(reversed(rows)):
        write(tmp_path, f"run-{number:02d}.parquet", [one])
    assert best(spark, tmp_path) == EXPECTED


def test_equal_times_are_decided_by_content_only(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["one", "two", "three"]
    chosen = set()
    for number, order in enumerate(itertools.permutations(texts)):
        write(tmp_path / str(number), "a.parquet", [row(text=text) for text in order])
        chosen.add(best(spark, tmp_path / str(number))["r"])
    assert len(chosen) == 1


def test_text_and_model_come_from_one_row(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row(text="a", model="z", minute=1), row(text="b", model="a", minute=0), failed("empty", model="c")]
    write(tmp_path, "a.parquet", rows)
    (one,) = one_a_request(open_reading(spark, str(tmp_path)).completions).collect()
    assert (one["text_of_completion"], one["model"], one["error"]) == ("b", "a", None)


def test_states_are_the_best_that_the_store_has(spark: SparkSession, tmp_path: Path) -> None:
    passing = ("timeout", "connection", "bad_body", "http_500", "http_503", "http_429")
    lasting = ("http_400", "http_422", "filtered", "crashed", "truncated", "empty", "unparsable", "template")
    rows = [failed(name, request_id=name) for name in passing + lasting]
    rows += [row("ok", text="t"), failed("filtered", request_id="ok"), failed("timeout", request_id="empty")]
    write(tmp_path, "a.parquet", rows)
    states = states_of_requests(open_reading(spark, str(tmp_path)).completions)
    found = {one["request_id"]: one["state"] for one in states.collect()}
    assert found == {"ok": "ok", **dict.fromkeys(lasting, "lasting"), **dict.fromkeys(passing, "passing")}


def test_a_store_that_is_not_there_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    completions = open_reading(spark, str(tmp_path / "nowhere")).completions
    assert completions.schema == spark_schema(COMPLETIONS)
    assert completions.count() == 0


def test_rows_are_read_with_the_schema_of_completions(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [row()])
    completions = open_reading(spark, str(tmp_path)).completions
    assert [field.name for field in completions.schema] == COMPLETIONS.names
    assert completions.first().answered_at is not None  # type: ignore[union-attr]


def test_files_of_an_older_version_lack_columns_and_are_read(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"request_id": ["r"], "text": ["text"]})
    write_file(f"{tmp_path}/old.parquet", table)
    write(tmp_path, "new.parquet", [row("s", text="other")])
    assert best(spark, tmp_path) == {"r": ("text", None), "s": ("other", None)}


def ids_of(reading: Reading) -> set[str]:
    """Run an action that reads every column."""
    return {one["request_id"] for one in reading.completions.collect()}


def told(folder: Path, spark: SparkSession, act: Callable[[Reading], set[str]]) -> tuple[set[str], list[str]]:
    """Return the completions of a folder and the names of the damaged files."""
    damaged: list[str] = []
    found = read_strictly(spark, str(folder), act, lambda whole: damaged.extend(whole.damaged))
    return found, sorted(damaged)


def test_files_without_a_footer_are_moved_aside_before_anything_is_read(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [row("r", text="good")])
    (tmp_path / "empty.parquet").write_bytes(b"")
    assert told(tmp_path, spark, ids_of) == ({"r"}, ["empty.parquet"])
    assert names_in(tmp_path / "damaged") == ["empty.parquet"]


def test_damaged_rows_behind_good_footers_are_found_by_reading(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [row("r", text="good")])
    for name in "bcd":
        break_pages(write(tmp_path, f"{name}.parquet", [row(name, text="t" * 5000)]))
    assert told(tmp_path, spark, ids_of) == ({"r"}, ["b.parquet", "c.parquet", "d.parquet"])
    assert best(spark, tmp_path) == {"r": ("good", None)}


def test_a_setting_of_the_session_does_not_drop_rows(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [row("r", text="good")])
    break_pages(write(tmp_path, "b.parquet", [row("s", text="t" * 5000)]))
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        assert told(tmp_path, spark, ids_of) == ({"r"}, ["b.parquet"])
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_a_file_that_is_away_for_a_moment_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet", [row("r", text="good")])
    away = tmp_path / "elsewhere"

    def interrupted(reading: Reading) -> set[str]:
        reading.completions.count()
        tries.append(1)
        if len(tries) == 1:
            path.rename(away)
        try:
            return ids_of(reading)
        finally:
            if away.exists():
                away.rename(path)

    tries: list[int] = []
    assert told(tmp_path, spark, interrupted) == ({"r"}, [])
    assert len(tries) == 2


def test_an_unreadable_store_without_damage_is_one_clear_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("untold.jobs.inference.store.store.PAUSES", [0.0] * len(PAUSES))
    path = write(tmp_path, "a.parquet", [row("r", text="good")])

    def act(reading: Reading) -> set[str]:
        return {one["request_id"] for one in spark.read.schema("request_id string").parquet(f"{path}x").collect()}

    with pytest.raises(StoreError, match=f"^{tmp_path} cannot be read.*$"):
        told(tmp_path, spark, act)


def test_an_error_that_is_not_about_the_store_is_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [row("r", text="good")])
    with pytest.raises(Exception, match="no_such_column"):
        told(tmp_path, spark, lambda reading: set(reading.completions.select("no_such_column").collect()))


@pytest.mark.parametrize(("more", "enough"), [(0, True), (1, False)])
def test_rows_read_are_compared_with_the_footers(spark: SparkSession, tmp_path: Path, more: int, enough: bool) -> None:
    segments_of(tmp_path, "run1", 3)
    whole = open_reading(spark, str(tmp_path)).whole
    reading = Reading(spark, Whole(whole.names, whole.uris, whole.rows + more))
    ids = spark.createDataFrame([("run1-1",), ("another",)], "request_id string")
    completions, check = reading.counted("request_id", "error_type")
    assert completions.join(ids, on="request_id", how="left_semi").count() == 1
    if enough:
        check()
    else:
        with pytest.raises(StoreError, match="3 of 4"):
            check()


def test_both_forms_of_the_rule_agree_about_a_failure(spark: SparkSession) -> None:
    types = [
        "timeout",
        "connection",
        "bad_body",
        "bad_finish",
        *(f"http_{n}" for n in range(400, 520)),
        "filtered",
        "x",
    ]
    frame = spark.createDataFrame([(one,) for one in types], "error_type string")
    passing = {one["error_type"] for one in frame.where(is_transient()).collect()}
    assert passing == {one for one in types if is_passing(one)}
    assert {"http_408", "http_409", "http_425", "http_429", "http_503", "bad_finish"} < passing
    assert not passing & {"http_400", "http_402", "http_404", "http_422", "filtered"}


def test_a_compacted_store_has_the_same_rows_in_one_file(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 12)
    before = best(spark, tmp_path)
    compact(spark, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    assert best(spark, tmp_path) == before


def test_files_that_another_run_merges_during_a_read_are_read_again(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 12)
    looks: list[int] = []

    def act(reading: Reading) -> set[str]:
        looks.append(1)
        if len(looks) == 1:
            compact_folder(str(tmp_path))
        return {one["request_id"] for one in reading.completions.select("request_id").collect()}

    assert told(tmp_path, spark, act)[0] == {f"run1-{number}" for number in range(12)}
    assert len(looks) == 2


def test_much_is_merged_by_the_workers(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("untold.jobs.inference.store.store.BYTES_HERE", 0)
    monkeypatch.setattr("untold.jobs.inference.store.store.run_merges", None)
    size = segments_of(tmp_path, "run1", 16)[0].stat().st_size
    before = best(spark, tmp_path)
    compact(spark, str(tmp_path), file_bytes=3 * size)
    live = live_names(str(tmp_path))
    assert len([name for name in live if name.startswith("merged-")]) > 2
    assert sum(pq.read_metadata(tmp_path / name).num_rows for name in live) == 16
    assert best(spark, tmp_path) == before


def test_a_store_of_an_earlier_version_stays_readable_and_paid_for(spark: SparkSession, tmp_path: Path) -> None:
    """The store has segments, a compacted file without a snapshot, and segments of a second run."""
    (earlier,) = EARLIER.iterdir()
    folder = tmp_path / earlier.name
    shutil.copytree(earlier, folder)
    expected = {f"{number:032x}": (f"An answer, number {number}.", None) for number in range(19)}
    expected |= {f"{19:032x}": (None, "filtered"), f"{20:032x}": (None, "timeout")}
    assert best(spark, folder) == expected
    rated = [
        one for one in one_a_request(open_reading(spark, str(folder)).completions).collect() if one["alternatives"]
    ]
    segments_of(folder, "run3", 8)
    compact_folder(str(folder))
    assert [name[:7] for name in live_names(str(folder))] == ["merged-"]
    found = best(spark, folder)
    assert {name: found[name] for name in expected} == expected
    assert len(found) == 21 + 8
    after = {one["request_id"]: one for one in one_a_request(open_reading(spark, str(folder)).completions).collect()}
    assert rated == [after[one["request_id"]] for one in rated]
