"""Samples: what is read, what becomes of bad rows, which files a run refuses."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from jobs import formats
from jobs.formats import Record, Sample, Unit, UnreadableFileError
from jobs.samples import SampleError, fingerprint, read_samples

ROW = {"query": "q", "response": "r", "contexts": ["a", "b"]}
HOSTILE = ['a "quoted", cell', "line\nbreak\r\nand\rmore", "nul\x00", "\u2028\u2029\x85", "😀", "\\", "'", "[{", " "]


def write_lines(path: Path, rows: Iterable[Any]) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return str(path)


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    listed = [{**row, "contexts": json.dumps(row["contexts"])} for row in rows]
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(listed[0]), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(listed)
    return str(path)


def write_parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return str(path)


def by_query(samples: DataFrame) -> dict[str, dict[str, Any]]:
    return {row["query"]: row.asDict(recursive=True) for row in samples.collect()}


def parse(path: str, kind: str) -> list[Sample]:
    return [
        formats.to_sample(record, kind in ("csv", "parquet")) for record in formats.READERS[kind](Unit(0, path, kind))
    ]


def sample_of(**values: Any) -> Sample:
    return formats.to_sample(Record({**ROW, **values}), contexts_as_text=False)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"query": None}, "query is null"),
        ({"query": ""}, "query is empty"),
        ({"query": " \n"}, "query is empty"),
        ({"query": {"a": 1}}, "query is no text"),
        ({"response": None}, "response is null"),
        ({"response": ["r"]}, "response is no text"),
        ({"contexts": None}, "contexts is null"),
        ({"contexts": "a"}, "contexts is no list"),
        ({"contexts": 3}, "contexts is no list"),
        ({"contexts": {"id": "1", "text": "a"}}, "contexts is no list"),
        ({"contexts": ["a", None]}, "context 2 is null"),
        ({"contexts": [{"id": "1"}]}, "context 1 has no text"),
        ({"contexts": [["a"]]}, "context 1 is neither text nor an object of id and text"),
        ({"contexts": ["a", {"id": "1", "text": "b"}]}, "contexts 1 and 2 have one id"),
        ({"query": None, "contexts": 3}, "query is null; contexts is no list"),
    ],
)
def test_a_bad_row_says_what_is_wrong(values: dict[str, Any], error: str) -> None:
    assert sample_of(**values).error == error


def test_an_empty_response_and_no_contexts_are_valid() -> None:
    sample = sample_of(response="", contexts=[])

    assert sample.error is None
    assert (sample.known["response"], sample.known["contexts"]) == ("", [])


def test_contexts_get_ids_by_position_where_they_have_none() -> None:
    contexts = ["a", {"id": 7, "text": "b"}, {"text": "c"}, {"id": None, "text": 4}, {"id": "", "text": ""}]

    found = sample_of(contexts=contexts).known["contexts"]

    assert [(context["id"], context["text"]) for context in found] == [
        ("1", "a"),
        ("7", "b"),
        ("3", "c"),
        ("4", "4"),
        ("5", ""),
    ]


def test_scalars_become_text() -> None:
    known = sample_of(query=5, response=True, system=2, label=False, sample_id=12).known

    assert [known[name] for name in ("query", "response", "system", "label", "sample_id")] == [
        "5",
        "true",
        "2",
        "false",
        "12",
    ]


@pytest.mark.parametrize("absent", [{}, {"sample_id": None}, {"sample_id": ""}])
def test_without_an_id_a_row_has_the_hash_of_its_columns(absent: dict[str, Any]) -> None:
    found = formats.to_sample(Record({**absent, **dict(reversed(ROW.items())), "extra": None}), contexts_as_text=False)

    assert found.known["sample_id"] == sample_of().known["sample_id"]
    assert re.fullmatch("[0-9a-f]{32}", found.known["sample_id"])


@pytest.mark.parametrize(
    "other", [{"extra": 1}, {"label": "x"}, {"system": "x"}, {"contexts": ["b", "a"]}, {"query": "p"}]
)
def test_every_column_is_in_the_hash(other: dict[str, Any]) -> None:
    assert sample_of(**other).content != sample_of().content


def test_a_recorded_id_never_changes() -> None:
    """People's outputs and stores hold such ids."""
    assert sample_of(extra={"b": 1.0, "a": [None, "é"]}).known["sample_id"] == "3fd1e0860a900b5b710deab1036177d4"


def test_numbers_that_are_equal_have_one_hash() -> None:
    assert sample_of(extra=1).content == sample_of(extra=1.0).content
    assert sample_of(extra={"a": 1, "b": None}).content == sample_of(extra={"a": 1.0}).content
    assert sample_of(extra=1).content != sample_of(extra=1.5).content


def test_rows_without_usable_contexts_keep_their_own_hash() -> None:
    assert len({sample_of(contexts=contexts).content for contexts in (None, 3, "x", "y", [None], ["a", None])}) == 6


def test_json_lines_skip_blank_lines_a_mark_and_repair_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lone = rb'{"query": "\ud800 \ud83d\ude00", "response": "\xff", "contexts": ["\udfff"]}'.replace(rb"\xff", b"\xff")
    path.write_bytes(
        b"\xef\xbb\xbf\n  \r\n"
        + lone
        + b"\r\n\nnot json\n[1]\n"
        + b"[" * 100_000
        + b"\n"
        + b'{"a":' * 300
        + b"1"
        + b"}" * 300
    )

    samples = parse(str(path), "lines")

    assert samples[0].known["query"] == "\ufffd 😀"
    assert samples[0].known["response"] == "\ufffd"
    assert samples[0].known["contexts"] == [{"id": "1", "text": "\ufffd"}]
    assert [sample.error for sample in samples] == [None, "no JSON", "no JSON object", *["nested too deeply"] * 2]


@pytest.mark.parametrize("size", [1, 7, 40, 41, 42, 1000])
def test_json_lines_are_split_without_loss(tmp_path: Path, size: int) -> None:
    path = Path(write_lines(tmp_path / "a.jsonl", [{"query": "q" * n} for n in range(20)]))
    length = path.stat().st_size

    units = [Unit(0, str(path), "lines", start, min(size, length - start)) for start in range(0, length, size)]
    queries = [record.values["query"] for unit in units for record in formats.READERS["lines"](unit)]

    assert queries == ["q" * n for n in range(20)]


def test_an_array_is_read_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "CHUNK", 3)
    path = tmp_path / "a.json"
    path.write_text("\ufeff [" + json.dumps({"query": "x\ny", "n": 12345}) + " ,\n 123456, " + json.dumps(ROW) + "] \n")

    records = list(formats.READERS["array"](Unit(0, str(path), "array")))

    assert [record.values for record in records] == [{"query": "x\ny", "n": 12345}, {}, ROW]
    assert [record.problem for record in records] == [None, "no JSON object", None]


@pytest.mark.parametrize("text", ["[{}", '[{"a": 1},', "[{} {}]", '[{"a" 1}]', "[{}] x", '[{"a": "b'])
def test_a_broken_array_is_a_problem_of_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)

    with pytest.raises(UnreadableFileError, match="array"):
        list(formats.READERS["array"](Unit(0, str(tmp_path / "a.json"), "array")))


@pytest.mark.parametrize(
    ("text", "kind"),
    [('\ufeff \n [\n{"a": 1}]', "array"), ('[{"a": 1}]\n', "array"), ('["a"]\n{"a": 1}\n', "lines"), ("{}", "lines")],
)
def test_the_first_line_tells_an_array_from_lines(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "a.json").write_text(text, "utf-8")

    assert formats.json_kind(str(tmp_path / "a.json")) == kind


def test_csv_cells_are_null_where_empty_but_a_response(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "\ufeffsample_id,query,response,contexts,system,x\r\n"
        ',"a ""b"",\nc",,"[""d""]",,\r\n\r\nshort,row\r\n1,q,r,nope,s,y\r\n',
        newline="",
    )

    first, short, last = parse(str(path), "csv")

    assert (first.known["query"], first.known["response"], first.known["system"]) == ('a "b",\nc', "", None)
    assert first.rest == {"x": None}
    assert short.error == "2 cells where the header has 6"
    assert last.error == "contexts is no JSON list"


def test_a_broken_csv_record_is_its_own_problem(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('query,response,contexts\nq,"a"b,[]\nq,r,[]\n')

    broken, whole = parse(str(tmp_path / "a.csv"), "csv")

    assert broken.error
    assert "quoting" in broken.error
    assert whole.error is None


def test_a_quote_that_never_ends_is_a_problem_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('query,response,contexts\nq,"r,[]\nq,r,[]\n')

    with pytest.raises(UnreadableFileError, match="never ends"):
        parse(str(tmp_path / "a.csv"), "csv")


def test_parquet_with_invalid_text_is_repaired(tmp_path: Path) -> None:
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"q\xff"))
    contexts = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), broken)
    table = pa.table({"query": broken, "response": pa.array([b"r"], pa.binary()), "contexts": contexts})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, write_statistics=False)

    (sample,) = parse(str(tmp_path / "a.parquet"), "parquet")

    assert (sample.known["query"], sample.known["response"]) == ("q\ufffd", "r")
    assert sample.known["contexts"] == [{"id": "1", "text": "q\ufffd"}]


text = st.text(st.characters(), min_size=1, max_size=8) | st.sampled_from(HOSTILE)
rows = st.fixed_dictionaries(
    {"query": text, "response": text, "contexts": st.lists(text, max_size=3), "system": text, "extra": text}
)


def clean(value: Any) -> Any:
    if isinstance(value, list):
        return [clean(item) for item in value]
    return re.sub("[\ud800-\udfff]", "\ufffd", value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=4))
def test_every_format_reads_the_same_samples(tmp_path: Path, listed: list[dict[str, Any]]) -> None:
    valid = [{name: clean(value) for name, value in row.items()} for row in listed]

    lines = parse(write_lines(tmp_path / "a.jsonl", listed), "lines")

    assert lines == parse(write_csv(tmp_path / "a.csv", valid), "csv")
    assert lines == parse(write_parquet(tmp_path / "a.parquet", valid), "parquet")
    (tmp_path / "a.json").write_text(json.dumps(listed))
    assert lines == parse(str(tmp_path / "a.json"), "array")


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ([1, 2.5, None], "double"),
        ([1, "a"], "text"),
        ([2**70], "text"),
        ([None], "null"),
        ([[1], [], [None, 2.5]], {"list": "double"}),
        ([{"a": 1}, {"b": "x"}], {"struct": {"a": "long", "b": "string"}}),
        ([{"a": 1}, {"a": [1]}], "text"),
        ([{"a": 1, "A": 2}], "text"),
        ([True, 1], "text"),
    ],
)
def test_a_column_has_the_type_that_holds_all_its_values(values: list[Any], shape: Any) -> None:
    found: Any = "null"
    for value in values:
        found = formats.merge_shapes(found, formats.shape_of(value))

    assert found == shape


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
        "contexts array<struct<id:string,text:string>>",
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
    assert found["q"]["contexts"] == [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}]
    assert (found["q"]["a.b"], found["q"]["number"], found["q"]["sample"]) == ({"x": 1, "y": []}, 1.0, "{}")
    assert (found["p"]["mixed"], found["o"]["mixed"], found["p"]["label"]) == ('{"k":1}', "text", "3")
    assert (read.row_count, read.invalid_count, read.duplicates, read.first_invalid) == (3, 0, 0, [])


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
        f"{path} row 5: query is empty",
        f"{path} row 21: no JSON",
        f"{path} row 30: contexts is null",
    ]
    invalid = {row["sample_id"]: row["error"] for row in read.invalid.collect()}
    assert sorted(invalid.values()) == sorted(read.first_invalid)
    assert len({row["sample_id"] for row in found}) == len(found) == read.row_count == 30
    nulls = {invalid[row["sample_id"]]: row for row in found if row["sample_id"] in invalid}
    assert nulls[f"{path} row 5: query is empty"]["query"] is None
    assert nulls[f"{path} row 30: contexts is null"]["contexts"] is None


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


def test_one_id_with_two_contents_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**ROW, "sample_id": f"s{n % 7}", "n": n} for n in range(14)]
    path = write_lines(tmp_path / "a.jsonl", rows)

    with pytest.raises(SampleError) as error:
        read_samples(spark, path)

    lines = str(error.value).splitlines()
    assert lines[0] == f"sample_id `s0` has two contents: {path}:1 and {path}:8"
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
    assert "d.jsonl: no row of it is a JSON object" in fourth


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.jsonl", None, "no such file"),
        ("a.txt", b"x", "unknown extension"),
        ("a.parquet", b"PAR1 not really", "cannot be read"),
        ("a.jsonl.gz", b"not gzip", "cannot be read"),
        ("a.json", "[]".encode("utf-16"), "not UTF-8"),
        ("a.csv", b"query,query\n", "twice"),
        (".", None, "no such file, or no files"),
    ],
)
def test_what_cannot_be_read_is_one_line(
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


def test_a_glob_is_read_and_what_exists_wins_over_it(spark: SparkSession, tmp_path: Path) -> None:
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
    assert row["contexts"] == [{"id": "5", "text": "a"}]
    assert (row["map"], row["big"], row["pair"]) == ({"k": 1}, str(2**64 - 1), '{"A":2,"a":1}')


def test_the_fingerprint_is_of_the_content_alone(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**ROW, "query": text} for text in HOSTILE if text.strip()]

    samples = read_samples(spark, write_lines(tmp_path / "a.jsonl", rows)).samples
    samples.write.parquet(str(tmp_path / "out"))
    written = spark.read.parquet(str(tmp_path / "out"))

    assert set(by_query(written)) == {row["query"] for row in rows}
    assert fingerprint(samples) == fingerprint(written.repartition(3))
    assert fingerprint(written) != fingerprint(written.where("query != '😀'"))


def test_an_unknown_format_is_named_with_what_is_near(spark: SparkSession) -> None:
    with pytest.raises(SampleError, match="did you mean `wikicontradict`"):
        read_samples(spark, "a.jsonl", format="wikicontradicts")


def test_wikicontradict_rows_become_five_labelled_samples(spark: SparkSession, tmp_path: Path) -> None:
    row = {"question": "q", "context1_self_contained": "a", "context2_self_contained": "b", "model": "m"}
    row |= {f"answer{n}": f"r{n}" for n in range(5)} | {f"label{n}": "Correct" for n in range(5)}
    path = write_lines(tmp_path / "a.jsonl", [row, {**row, "question": "p"}])

    found = {
        sample["sample_id"]: sample for sample in read_samples(spark, path, format="wikicontradict").samples.collect()
    }

    assert sorted(found) == [f"{n}-answer{k}" for n in range(2) for k in range(5)]
    sample = found["1-answer2"].asDict(recursive=True)
    assert sample == {
        "sample_id": "1-answer2",
        "query": "p",
        "response": "r2",
        "contexts": [{"id": "context1_self_contained", "text": "a"}, {"id": "context2_self_contained", "text": "b"}],
        "system": "m",
        "label": "Partially correct",
        "prompt_index": 2,
        "row": 1,
    }
    assert [found[f"0-answer{k}"]["label"] for k in (0, 1, 3)] == ["Correct", "Partially correct", "Correct"]


def test_the_human_evaluation_has_1200_labelled_samples(spark: SparkSession, data: Path) -> None:
    path = data / "wikicontradict" / "wiki_contradict_simple_humaneval.jsonl"

    read = read_samples(spark, str(path), format="wikicontradict")

    labels = {row["label"]: row["count"] for row in read.samples.groupBy("label").count().collect()}
    assert labels == {"Partially correct": 924, "Incorrect": 207, "Correct": 69}
    assert (read.row_count, read.invalid_count, read.duplicates) == (1200, 0, 0)
