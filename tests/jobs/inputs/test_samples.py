"""Test the samples of an input: the rows of all files, the invalid rows, and the files that a run refuses."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.jobs.executions import counted_executions
from tests.sample_files import HOSTILE, ROW, write_csv, write_lines, write_parquet
from untold.jobs.inputs.samples import SampleError, fingerprint, read_samples, show_untested, write_samples
from untold.jobs.run.terminal import Display


def by_query(samples: DataFrame) -> dict[str, dict[str, Any]]:
    return {row["query"]: row.asDict(recursive=True) for row in samples.collect()}


def test_samples_have_the_columns_of_the_contract(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        {
            **ROW,
            "z": None,
            "a.b": {"x": 1, "y": []},
            "Query": 1,
            "tags": ["t"],
            "number": 1,
            "sample": {},
            "": "n",
            "n": "1",
        },
        {**ROW, "query": "p", "system": "s", "label": 3, "number": 1.5, "mixed": {"k": 1}, "file": float("nan")},
        {**ROW, "query": "o", "mixed": "text", "row": [[1], [2.5]]},
    ]

    read = read_samples(spark, write_lines(tmp_path / "a.jsonl", rows))
    read.samples.write.parquet(str(tmp_path / "out"))
    written = spark.read.parquet(str(tmp_path / "out"))

    assert [f"{column.name} {column.dataType.simpleString()}" for column in written.schema] == [
        "sample_id string",
        "query string",
        "response string",
        "contexts array<struct<id:string,text:string,kind:string>>",
        "system string",
        "label string",
        "Query_2 bigint",
        "_c0 string",
        "a.b struct<x:bigint,y:array<string>>",
        "file double",
        "mixed string",
        "n string",
        "number double",
        "row array<array<double>>",
        "sample string",
        "tags array<string>",
        "z string",
    ]
    found = by_query(written)
    assert found["q"]["contexts"] == [
        {"id": name, "text": text, "kind": None} for name, text in (("1", "a"), ("2", "b"))
    ]
    assert (found["q"]["a.b"], found["q"]["number"], found["q"]["sample"]) == ({"x": 1, "y": []}, 1.0, "{}")
    assert (found["p"]["mixed"], found["o"]["mixed"], found["p"]["label"]) == ('{"k":1}', "text", "3")
    assert (read.row_count, read.invalid_count, read.duplicates, read.first_invalid) == (3, 0, 0, [])


def test_optional_columns_that_are_read_have_one_type(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**ROW, "query_id": 7, "aspects": None}, {**ROW, "query": "p", "query_id": "8"}]
    write_lines(tmp_path / "a.jsonl", rows)
    pq.write_table(pa.Table.from_pylist([{**ROW, "query": "o", "aspects": ["cost"]}]), tmp_path / "b.parquet")
    labelled = json.dumps([{"id": "x", "text": "t", "labels": [1]}])
    write_csv(tmp_path / "c.csv", [{**ROW, "query": "n", "aspects": labelled}])
    required = ("query", "response")

    read = read_samples(spark, str(tmp_path), required=required, optional=("query_id", "aspects"))

    types = {column.name: column.dataType.simpleString() for column in read.samples.schema}
    assert types["query_id"] == "string"
    assert types["aspects"] == "array<struct<id:string,text:string,labels:array<string>>>"
    found = by_query(read.samples)
    assert {query: row["query_id"] for query, row in found.items()} == {"q": "7", "p": "8", "o": None, "n": None}
    assert [found[query]["aspects"] for query in "qpon"] == [
        None,
        None,
        [{"id": "1", "text": "cost", "labels": None}],
        [{"id": "x", "text": "t", "labels": ["1"]}],
    ]
    assert read.invalid_count == 0
    as_read = {
        column.name: column.dataType.simpleString() for column in read_samples(spark, str(tmp_path)).samples.schema
    }
    assert as_read["aspects"] == "string"


def test_invalid_rows_are_samples_with_file_and_row(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[Any] = [{**ROW, "n": n} for n in range(30)]
    rows[4], rows[20], rows[29] = {**ROW, "query": " "}, "secret text", {**ROW, "contexts": None}
    path = write_lines(tmp_path / "a b[1]%20é.jsonl", [row for item in rows for row in ("", item)])
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "700b")
    try:
        read = read_samples(spark, path)
        found = read.samples.collect()
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(before))

    assert read.first_invalid == [
        f"{path} row 10: query is empty",
        f"{path} row 42: no JSON",
        f"{path} row 60: contexts is null",
    ]
    invalid = {row["sample_id"]: row["error"] for row in read.invalid.collect()}
    assert sorted(invalid.values()) == sorted(read.first_invalid)
    assert len({row["sample_id"] for row in found}) == len(found) == read.row_count == 30
    nulls = {invalid[row["sample_id"]]: row for row in found if row["sample_id"] in invalid}
    assert nulls[f"{path} row 10: query is empty"]["query"] is None
    assert nulls[f"{path} row 60: contexts is null"]["contexts"] is None


def test_exact_duplicates_are_kept_once_over_all_formats(spark: SparkSession, tmp_path: Path) -> None:
    bad = {**ROW, "query": None}
    write_lines(tmp_path / "a.jsonl", [ROW, {**ROW, "label": "x"}, ROW, bad])
    write_parquet(tmp_path / "b.parquet", [ROW, {**ROW, "query": "p"}], row_group_size=1)
    (tmp_path / "sub").mkdir()
    write_csv(tmp_path / "sub" / "c.CSV", [ROW, bad])
    (tmp_path / "d.json.gz").write_bytes(gzip.compress(json.dumps([ROW, {**ROW, "query": "o"}]).encode()))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden.txt").touch()
    (tmp_path / "empty.jsonl").touch()

    read = read_samples(spark, str(tmp_path))

    found = read.samples.collect()
    assert sorted((row["query"] or "", row["label"] or "") for row in found) == [
        ("", ""),
        ("o", ""),
        ("p", ""),
        ("q", ""),
        ("q", "x"),
    ]
    assert (read.row_count, read.duplicates, read.invalid_count) == (5, 5, 1)
    assert read.first_invalid == [f"{tmp_path}/a.jsonl row 4: query is null"]


def test_limit_keeps_the_first_samples_by_id(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**ROW, "sample_id": f"s{n}"} for n in (3, 1, 2, 1)] + [
        {**ROW, "query": "", "sample_id": n} for n in ("s0", "z")
    ]

    read = read_samples(spark, write_lines(tmp_path / "a.jsonl", rows), limit=3)

    assert sorted(row["sample_id"] for row in read.samples.collect()) == ["s0", "s1", "s2"]
    assert (read.row_count, read.invalid_count) == (3, 1)
    assert [row["sample_id"] for row in read.invalid.collect()] == ["s0"]


def test_too_many_columns_in_one_file_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**ROW, **{f"k{part}-{n}": 1 for n in range(500)}} for part in range(2)])

    with pytest.raises(SampleError, match=re.escape(f"{path}: more than 1,000 columns; put keys that vary")):
        read_samples(spark, path)


def test_too_many_columns_over_all_files_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{**ROW, **{f"a{n}": 1 for n in range(500)}}])
    write_csv(tmp_path / "b.csv", [{**ROW, **{f"b{n}": 1 for n in range(498)}}])

    with pytest.raises(SampleError, match=re.escape(f"{tmp_path} has 1,001 columns over all files, at most 1,000; ")):
        read_samples(spark, str(tmp_path))


def test_one_id_with_two_contents_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**ROW, "sample_id": f"s{n % 7}", "n": n} for n in range(14)]
    path = write_lines(tmp_path / "a.jsonl", rows)

    with pytest.raises(SampleError) as error:
        read_samples(spark, path)

    lines = str(error.value).splitlines()
    assert lines[0] == f"sample_id `s0` has two contents: {path} row 1 and {path} row 8"
    assert len(lines) == 6
    assert lines[5].startswith("2 more such ids")


def test_missing_columns_of_all_files_are_named_at_once(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"Question": "q", "answer": "r", "context": ["a"]}])
    (tmp_path / "b.csv").write_text("query,respones,contexts\n")
    write_parquet(tmp_path / "c.parquet", [{"query": "q", "response": "r"}])
    write_lines(tmp_path / "d.jsonl", ["no json"])
    write_lines(tmp_path / "e.jsonl", [ROW])

    with pytest.raises(SampleError) as error:
        read_samples(spark, str(tmp_path))

    first, second, third, fourth = str(error.value).splitlines()
    assert "no column `query` (did you mean `Question`?)" in first
    assert "no column `response` (did you mean `answer`?)" in first
    assert "no column `contexts` (did you mean `context`?)" in first
    assert "b.csv: no column `response` (did you mean `respones`?)" in second
    assert "c.parquet: no column `contexts`" in third
    assert "d.jsonl: none of its rows is a JSON object" in fourth


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.jsonl", None, "does not exist"),
        ("a.txt", b"x", "unknown extension"),
        ("a.parquet", b"PAR1 not really", "cannot be read"),
        ("a.jsonl.gz", b"not gzip", "cannot be read"),
        ("a.jsonl", b"caf\xe9\n", "line 1 is not UTF-8; give its encoding"),
        ("a.csv", b"query,query\n", "twice"),
        (".", None, "does not exist, or has no files"),
    ],
)
def test_an_unreadable_input_is_one_line(
    spark: SparkSession, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(SampleError, match=message) as error:
        read_samples(spark, str(tmp_path / name))

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"\n \n", "no samples"),
        ("a.json", b'[{"query": "q"}, {"que', "broken or cut"),
        ("b.jsonl.gz", gzip.compress(json.dumps(ROW).encode() * 1000)[:-8], "cannot be read"),
    ],
)
def test_a_file_that_breaks_off_is_refused(
    spark: SparkSession, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(SampleError, match=message):
        read_samples(spark, str(tmp_path / name))


def test_a_glob_is_read_and_an_existing_path_has_priority(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "a1.jsonl", [ROW])
    write_lines(tmp_path / "a2.jsonl", [{**ROW, "query": "p"}])
    literal = write_lines(tmp_path / "a[12].jsonl", [{**ROW, "query": "o"}])

    assert set(by_query(read_samples(spark, str(tmp_path / "a?.jsonl")).samples)) == {"q", "p"}
    assert set(by_query(read_samples(spark, f"file://{literal}").samples)) == {"o"}


def test_parquet_types_are_carried(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table(
        {
            "query": pa.array(["q"], pa.large_string()),
            "Query": ["other"],
            "response": pa.array(["r"]).dictionary_encode(),
            "contexts": pa.array([[{"id": 5, "text": "a", "more": 1}]]),
            "day": pa.array([1], pa.date32()),
            "clock": pa.array([1], pa.timestamp("us")),
            "at": pa.array([1_000_001], pa.timestamp("ns", "UTC")),
            "price": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
            "big": pa.array([2**64 - 1], pa.uint64()),
            "pair": pa.array([{"a": 1, "A": 2}]),
            "none": pa.nulls(1),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")

    read_samples(spark, str(tmp_path / "a.parquet")).samples.write.parquet(str(tmp_path / "out"))

    written = spark.read.parquet(str(tmp_path / "out"))
    types = {column.name: column.dataType.simpleString() for column in written.schema}
    assert [types[name] for name in ("day", "clock", "at", "price", "map", "big", "pair", "none", "Query_2")] == [
        "date",
        "timestamp_ntz",
        "timestamp",
        "decimal(10,2)",
        "map<string,int>",
        "string",
        "string",
        "string",
        "string",
    ]
    (row,) = by_query(written).values()
    assert row["contexts"] == [{"id": "5", "text": "a", "kind": None}]
    assert (row["map"], row["big"], row["pair"]) == ({"k": 1}, str(2**64 - 1), '{"A":2,"a":1}')


def test_the_fingerprint_depends_only_on_the_content(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**ROW, "query": text} for text in HOSTILE if text.strip()]

    samples = read_samples(spark, write_lines(tmp_path / "a.jsonl", rows)).samples
    samples.write.parquet(str(tmp_path / "out"))
    written = spark.read.parquet(str(tmp_path / "out"))

    assert set(by_query(written)) == {row["query"] for row in rows}
    assert fingerprint(samples) == fingerprint(written.repartition(3))
    assert fingerprint(written) != fingerprint(written.where("query != '😀'"))


def test_an_unknown_format_is_an_error_with_similar_names(spark: SparkSession) -> None:
    with pytest.raises(SampleError, match="did you mean `wikicontradict`"):
        read_samples(spark, "a.jsonl", format="wikicontradicts")


def test_what_was_read_is_not_read_again(spark: SparkSession, tmp_path: Path) -> None:
    path = Path(write_lines(tmp_path / "a.jsonl", [{**ROW, "n": 1}, {**ROW, "query": "p"}]))

    read = read_samples(spark, str(path))
    path.write_text("no json at all\n")
    before = fingerprint(read.samples)
    written = write_samples(read, str(tmp_path / "out"))

    assert set(by_query(written.samples)) == {"q", "p"}
    assert written.fingerprint == before == fingerprint(written.samples)


@pytest.mark.parametrize("untested", ["query", "response", "contexts"])
def test_samples_with_a_text_in_an_untested_script_are_counted(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], untested: str
) -> None:
    tested = [
        "Paris",
        "Москва",
        "Αθήνα",
        "北京",
        "とうきょう",
        "서울",
        "दिल्ली",
        "القاهرة",
        "ירושלים",
        "กรุงเทพ",
        "1 + 1 = 2 ①",
    ]
    georgian = "თბილისი 5"
    text: object = ["Paris", georgian] if untested == "contexts" else georgian
    rows = [{**ROW, "query": query} for query in [*tested, f"{georgian} is Tbilisi"]]
    path = write_lines(tmp_path / "a.jsonl", [*rows, {**ROW, "sample_id": "g", untested: text}])

    written = write_samples(read_samples(spark, path), str(tmp_path / "out"))
    show_untested(written, Display())

    assert written.untested == 1
    assert "1 sample has a text in a script that Untold is not tested with" in capsys.readouterr().err


def test_a_start_reads_checks_hashes_and_writes_in_three_executions(spark: SparkSession, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**ROW, "sample_id": f"s{n}", "n": n} for n in range(30)])

    with counted_executions(spark) as executions:
        read = read_samples(spark, path)
        fingerprint(read.samples)
        write_samples(read, str(tmp_path / "out"))
    assert executions == [3]


@pytest.mark.gate
def test_the_fingerprint_of_an_input_does_not_change(spark: SparkSession, tmp_path: Path) -> None:
    """Existing outputs depend on the fingerprint of an input. The values were recorded with version 0.1.0."""
    lines = [
        {**ROW, "n": 1, "share": 0.1, "tags": ["t", None], "more": {"k": 1.5, "l": []}, "Query": "Q", "label": 3},
        {
            **ROW,
            "query": "😀 \u2028 nul\x00",
            "n": 2**40,
            "share": 1e300,
            "more": {"k": None},
            "system": "s",
            "no": None,
        },
        {**ROW, "query": "p", "mixed": [1, "a"], "flag": True, "contexts": [{"id": 5, "text": "x"}]},
        {**ROW, "query": None, "mixed": {"a": 1}},
        ROW,
        ROW,
        "no json",
    ]
    write_lines(tmp_path / "a.jsonl", lines)
    columns = {
        "query": ["x", "y"],
        "response": ["r", ""],
        "contexts": [["a"], []],
        "day": pa.array([1, None], pa.date32()),
        "clock": pa.array([1, 2], pa.timestamp("us")),
        "at": pa.array([1_000_001, None], pa.timestamp("ns", "UTC")),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
        "raw": pa.array([b"\x00\xff", None]),
        "small": pa.array([1, 2], pa.int8()),
        "real": pa.array([0.1, 2.0], pa.float32()),
        "times": pa.array([[1], None], pa.list_(pa.timestamp("us"))),
        "pair": pa.array([{"a": 1, "b": "c"}, None]),
    }
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    write_csv(tmp_path / "c.csv", [{"query": "z", "response": "r", "contexts": ["a"], "n": 1, "extra": "e"}])

    whole, limited = read_samples(spark, str(tmp_path)), read_samples(spark, str(tmp_path), limit=4)

    assert (whole.row_count, whole.invalid_count, whole.duplicates) == (9, 2, 1)
    assert [fingerprint(whole.samples), fingerprint(limited.samples)] == [
        "ec0c761d255b731a97c9d61d4772f565",
        "be38d3e5b24c871f4e3d9f194a5b0202",
    ]
