"""Test text files of all encodings, delimiters and compressions. The samples are the same, and errors name the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.sample_files import ROW
from untold.udfs.samples.adapters import FORMATS
from untold.udfs.samples.batches import UnitProgress
from untold.udfs.samples.file_records import (
    DELIMITERS,
    READERS,
    READERS_OF_PARTS,
    FileRecord,
    UndecodableError,
    Unit,
    UnreadableFileError,
    csv_header,
    find_delimiter,
    json_kind,
    renamed,
)
from untold.udfs.samples.files import check_encoding, encoding_of

# Hypothesis calls a test several times with the same folder
IN_ONE_FOLDER = examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
# The characters that all encodings with one byte per character have
LATIN = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), min_size=1, max_size=12)


def unit_of(path: Path, kind: str, encoding: str | None = None, **more: Any) -> Unit:
    return Unit(0, str(path), kind, encoding=encoding_of(str(path), encoding), **more)


def values_of(unit: Unit) -> list[Any]:
    return [record.values for record in READERS[unit.kind](unit)]


def csv_text(rows: list[dict[str, str]]) -> str:
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


@IN_ONE_FOLDER
@given(st.lists(WORD, min_size=1, max_size=3), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_unicode_files_are_read_by_their_marks(tmp_path: Path, words: list[str], encoding: str) -> None:
    rows: list[Any] = [{"query": word} for word in words]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_bytes(lines.encode(encoding))
    (tmp_path / "a.json").write_bytes(json.dumps(rows, ensure_ascii=False).encode(encoding))
    (tmp_path / "a.csv").write_bytes(csv_text(rows).encode(encoding))

    assert values_of(unit_of(tmp_path / "a.jsonl", "lines")) == rows
    assert values_of(unit_of(tmp_path / "a.json", "array")) == rows
    assert values_of(unit_of(tmp_path / "a.csv", "csv")) == rows
    assert json_kind(str(tmp_path / "a.json"), encoding_of(str(tmp_path / "a.json"))) == "array"


@IN_ONE_FOLDER
@given(LATIN, st.sampled_from(["latin-1", "cp1252", "iso8859-15"]))
def test_files_with_one_byte_per_character_are_read_with_the_given_encoding(
    tmp_path: Path, word: str, encoding: str
) -> None:
    text = word.encode(encoding, "ignore").decode(encoding)
    rows = [{"query": f"{text}.", "n": "1"}]
    (tmp_path / "a.csv").write_bytes(csv_text(rows).encode(encoding))
    (tmp_path / "a.jsonl").write_bytes(json.dumps(rows[0], ensure_ascii=False).encode(encoding))

    assert values_of(unit_of(tmp_path / "a.csv", "csv", encoding)) == rows
    assert values_of(unit_of(tmp_path / "a.jsonl", "lines", encoding)) == rows


@IN_ONE_FOLDER
@given(st.integers(0, 400), st.sampled_from(["lines", "array", "csv"]), st.sampled_from(["\n", "\r\n"]))
def test_the_first_line_that_is_not_of_the_encoding_is_named(tmp_path: Path, before: int, kind: str, end: str) -> None:
    row = {"lines": '{"query": "ok"}', "array": '{"query": "ok"},', "csv": "ok"}[kind]
    opening = {"lines": [], "array": ["["], "csv": ["query"]}[kind]
    lines = [*opening, *[row] * before, row.replace("ok", "caf\u00e9"), row, "]" if kind == "array" else row]
    (tmp_path / "a").write_bytes(end.join(lines).encode("cp1252"))

    with pytest.raises(UndecodableError) as error:
        values_of(unit_of(tmp_path / "a", kind))

    assert str(error.value) == (
        f"line {len(opening) + before + 1} is not UTF-8; give its encoding, such as --encoding cp1252"
    )


@given(st.lists(WORD, min_size=2, max_size=5), st.sampled_from(DELIMITERS))
def test_the_delimiter_of_quoted_names_is_found(names: list[str], delimiter: str) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerow(names)

    assert find_delimiter(stream.getvalue()) == delimiter


@pytest.mark.parametrize(
    ("head", "delimiter"),
    [
        ("query,response\n", ","),
        ("query;response;contexts\na,b;c;d\n", ";"),
        ("query\tresponse\n", "\t"),
        ("\n\nquery;response\n", ";"),
        ("query\na;b\n", ","),
        ('query,"a;b"\n', ","),
        ("", ","),
    ],
)
def test_the_delimiter_is_that_of_the_header(head: str, delimiter: str) -> None:
    assert find_delimiter(head) == delimiter


def test_a_header_is_read_by_the_delimiter_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("query|res;ponse\nq|r\n")

    assert csv_header(str(tmp_path / "a.csv"), delimiter="|") == (["query", "res;ponse"], "|")
    assert values_of(unit_of(tmp_path / "a.csv", "csv", delimiter="|")) == [{"query": "q", "res;ponse": "r"}]


@pytest.mark.parametrize("frames", [1, 3])
def test_compressed_files_are_read(tmp_path: Path, frames: int) -> None:
    rows = [{**ROW, "n": n} for n in range(3000)]
    size = len(rows) // frames
    parts = [
        "".join(json.dumps(row) + "\n" for row in rows[start : start + size]).encode()
        for start in range(0, len(rows), size)
    ]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(pa.compress(part, "zstd", asbytes=True) for part in parts))
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(gzip.compress(part) for part in parts))

    assert values_of(unit_of(tmp_path / "a.jsonl.zst", "lines")) == rows
    assert values_of(unit_of(tmp_path / "a.jsonl.gz", "lines")) == rows


def test_a_cut_zstd_file_is_an_error_and_no_shorter_file(tmp_path: Path) -> None:
    whole = pa.compress(json.dumps(ROW).encode() * 1000, "zstd", asbytes=True)
    (tmp_path / "a.jsonl.zst").write_bytes(whole[:-8])

    with pytest.raises(OSError, match="Truncated"):
        values_of(Unit(0, str(tmp_path / "a.jsonl.zst"), "lines"))


@pytest.mark.parametrize("name", ["cp1525", "rot13", "hex", "", "a\0b"])
def test_an_encoding_unknown_to_python_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown encoding"):
        check_encoding(name)


def test_rows_have_the_line_of_their_beginning(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('\nquery,n\n\n"two\nlines",1\n\n"a"b,2\nlast,3\n')
    (tmp_path / "a.jsonl").write_text('\n{"n": 1}\n\n\nno json\n{"n": 2}\n\n\n')
    (tmp_path / "a.json").write_text('[\n\n{"n": 1},\n\n{"n": 2}]')

    def rows(name: str, kind: str) -> list[int]:
        return [record.row for record in READERS[kind](Unit(0, str(tmp_path / name), kind))]

    assert rows("a.csv", "csv") == [4, 7, 8]
    assert rows("a.jsonl", "lines") == [2, 5, 6]
    assert rows("a.json", "array") == [1, 2]


@IN_ONE_FOLDER
@given(st.lists(st.sampled_from(["", "  ", '{"n": 1}', "broken"]), max_size=12), st.integers(1, 30))
def test_the_lines_of_all_parts_equal_the_lines_of_the_file(tmp_path: Path, lines: list[str], size: int) -> None:
    text = "".join(line + "\n" for line in lines)
    (tmp_path / "a.jsonl").write_text(text)
    found, before = [], 0
    for start in range(0, max(len(text), 1), size):
        tally = UnitProgress()
        unit = Unit(0, str(tmp_path / "a.jsonl"), "lines", start, min(size, max(len(text) - start, 1)))
        found += [before + record.row for record in tally.rows(unit, READERS_OF_PARTS["lines"], {})]
        before += tally.lines

    assert found == [number for number, line in enumerate(lines, start=1) if line.strip()]
    assert before == len(lines)


@given(st.dictionaries(WORD, WORD, max_size=4), st.dictionaries(WORD, st.integers(), max_size=6))
def test_a_renamed_row_has_our_names_for_its_columns(columns: dict[str, str], row: dict[str, int]) -> None:
    found = renamed(row, columns)

    assert {name: found.get(name) for name in columns} == {ours: row.get(theirs) for ours, theirs in columns.items()}
    untouched = set(row) - set(columns) - set(columns.values())
    assert {name: found[name] for name in untouched} == {name: row[name] for name in untouched}
    assert set(found) <= untouched | set(columns)


RESULT = {
    "query_id": "0",
    "query": "q",
    "gt_answer": "g",
    "response": "r",
    "retrieved_context": [{"doc_id": "d1", "text": "a"}, {"doc_id": "d2", "text": "b"}],
}


def results_of(path: Path, text: str) -> list[FileRecord]:
    path.write_text(text)
    read = FORMATS["ragchecker"].read
    assert read is not None
    return list(read(unit_of(path, "")))


def test_results_of_ragchecker_are_unnested(tmp_path: Path) -> None:
    checks = {"response_claims": ["r"], "answer2response": ["Entailment"]}
    twice = {**RESULT, "retrieved_context": [{"doc_id": "d", "text": "a"}] * 2, "metrics": {"f1": 1.0}, **checks}
    text = json.dumps({"results": [RESULT, twice, 3], "metrics": {}}, indent=1)

    first, second, third = results_of(tmp_path / "a.json", text)

    contexts = [{"id": "d1", "text": "a"}, {"id": "d2", "text": "b"}]
    named = {"sample_id": "0", "query_id": "0", "query": "q", "response": "r"}
    assert (first.values, first.row) == ({**named, "contexts": contexts, "references": "g", "ground_truth": "g"}, 1)
    assert second.values["contexts"] == [{"id": None, "text": "a"}] * 2
    assert second.values["metrics"] == {"f1": 1.0}
    assert (second.values["claim_checks"], "answer2response" in second.values) == (checks, False)
    assert (third.problem, third.row) == ("no JSON object", 3)


@pytest.mark.parametrize("text", ["[]", "{}", '{"results": {}}', "no json", json.dumps(RESULT)])
def test_an_invalid_file_of_ragchecker_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableFileError, match="no JSON object with a list `results`"):
        results_of(tmp_path / "a.json", text)


def read_all(path: Path) -> list[FileRecord]:
    kind = json_kind(str(path))
    return list(READERS[kind](Unit(0, str(path), kind)))


@pytest.mark.parametrize("indent", [1, 2, "\t"])
@pytest.mark.parametrize("between", ["\n", "", ",\n", "\r\n\r\n"])
def test_objects_over_several_lines_are_rows(tmp_path: Path, indent: Any, between: str) -> None:
    rows = [{**ROW, "n": n, "more": {"a": [1, {"b": "}{"}]}} for n in range(3)]
    path = tmp_path / "a.json"
    path.write_bytes(between.join(json.dumps(row, indent=indent) for row in rows).encode())

    found = read_all(path)

    assert [dict(one.values) for one in found] == rows
    assert [one.row for one in found] == [1, 2, 3]


def test_objects_that_are_cut_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f"{json.dumps(ROW, indent=2)}\n{json.dumps(ROW, indent=2)[:-3]}")
    with pytest.raises(UnreadableFileError, match="element 2 of the JSON array is broken or cut"):
        read_all(path)


def test_commas_of_a_lost_array_are_not_part_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps({**ROW, 'n': n})},\n" for n in range(2)))
    assert [one.values["n"] for one in read_all(path)] == [0, 1]
    path.write_text(f"[{json.dumps(ROW)},\n {json.dumps(ROW)},\n]")
    assert [one.problem for one in read_all(path)] == [None, None]


@pytest.mark.parametrize("mark", ";,|\t")
@pytest.mark.parametrize("quote", ['"', ""])
def test_the_line_of_excel_names_the_delimiter(tmp_path: Path, mark: str, quote: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{quote}sep={mark}{quote}\nquery{mark}response\n1,5;2{mark}b\n".replace("1,5;2", '"1,5;2"'))

    header, found = csv_header(str(path))

    assert (header, found) == (["query", "response"], mark)
    (record,) = READERS["csv"](Unit(0, str(path), "csv", delimiter=found))
    assert (dict(record.values), record.row) == ({"query": "1,5;2", "response": "b"}, 3)


def test_quotes_that_spark_wrote_have_their_way_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('query,response\n"Who said \\"open\\"?","He said \\"open\\", twice."\n')
    (record,) = READERS["csv"](Unit(0, str(path), "csv"))
    assert record.problem == "broken CSV quoting. Write quotes doubled (in Spark, option('escape', '\"'))"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_utf_16_without_a_mark_is_reported(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / name
    path.write_bytes((json.dumps(ROW) if name == "a.jsonl" else "query,response\nq,r\n").encode(encoding))
    with pytest.raises(
        UnreadableFileError, match="has NUL characters; give its encoding, such as --encoding utf-16-le"
    ):
        csv_header(str(path)) if name == "a.csv" else json_kind(str(path))
