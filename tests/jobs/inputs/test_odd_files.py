"""Test unusual files: other encodings, delimiters and column names. Each row keeps its position in the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.sample_files import ROW, write_csv, write_lines
from untold.jobs.cli.main import main
from untold.jobs.condense import CondenseRequest, condense
from untold.jobs.inputs.files import ReadOptions, SampleError
from untold.jobs.inputs.reading import read_corpus, read_queries, read_table
from untold.jobs.inputs.samples import fingerprint, read_samples, show_invalid
from untold.jobs.run.terminal import Display
from untold.jobs.settings.model import LlmSettings, Settings
from untold.udfs.samples.conversion import KNOWN

ASKED = ({**ROW, "query": "café?", "n": "1"}, {**ROW, "query": "tea?", "response": "", "n": "2"})
RENAMED = {"query": "question", "response": "answer"}


@contextmanager
def in_parts(spark: SparkSession, size: str) -> Iterator[None]:
    """Split files into parts of this size."""
    name = "spark.sql.files.maxPartitionBytes"
    before = str(spark.conf.get(name))
    spark.conf.set(name, size)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def as_theirs(text: str) -> str:
    return text.replace("query", "question").replace("response", "answer")


@pytest.mark.gate
def test_what_is_read_is_the_same_however_a_file_is_written(spark: SparkSession, tmp_path: Path) -> None:
    plain = Path(write_csv(tmp_path / "a.csv", ASKED)).read_text("utf-8")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ASKED)
    files = {
        "excel.csv": plain.replace('","', '";"').encode("cp1252"),
        "marked.csv": plain.encode("utf-8-sig"),
        "wide.jsonl": lines.encode("utf-16"),
        "packed.jsonl.zst": pa.compress(lines.encode(), "zstd", asbytes=True),
        "packed.csv.zst": pa.compress(plain.encode(), "zstd", asbytes=True),
        "theirs.csv": as_theirs(plain).encode("cp1252"),
        "theirs.jsonl": as_theirs(lines).encode(),
    }
    wanted = fingerprint(read_samples(spark, str(tmp_path / "a.csv")).samples)

    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        encoding = "cp1252" if name in ("excel.csv", "theirs.csv") else None
        options = ReadOptions(RENAMED if name.startswith("theirs") else {}, encoding)
        read = read_samples(spark, str(tmp_path / name), options=options)
        assert (fingerprint(read.samples), read.invalid_count) == (wanted, 0), name


def test_a_renamed_column_replaces_our_column(spark: SparkSession, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**ROW, "question": "asked"}])

    read = read_samples(spark, path, options=ReadOptions({"query": "question"}))

    assert read.samples.columns == list(KNOWN)
    assert [row["query"] for row in read.samples.collect()] == ["asked"]
    with pytest.raises(SampleError, match="columns: no column `qurey` is read \\(did you mean `query`\\?\\)"):
        read_samples(spark, path, options=ReadOptions({"qurey": "question"}))


def test_a_line_of_another_encoding_is_named_by_its_place_in_the_file(spark: SparkSession, tmp_path: Path) -> None:
    lines = [json.dumps({**ROW, "n": n}).encode() for n in range(60)]
    lines[20], lines[40] = b"", b'{"query": "caf\xe9"}'
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))

    with in_parts(spark, "400b"), pytest.raises(SampleError) as error:
        read_samples(spark, str(tmp_path / "a.jsonl"))

    assert str(error.value) == (
        f"{tmp_path}/a.jsonl: line 41 is not UTF-8; give its encoding, such as --encoding cp1252"
    )


def test_rows_are_numbered_as_in_their_files_everywhere(spark: SparkSession, tmp_path: Path) -> None:
    bad = {"query": "", "response": "r", "contexts": []}
    write_lines(tmp_path / "a.jsonl", ["", ROW, "", "", bad, "", "no json", ""])
    (tmp_path / "b.csv").write_text('query,response,contexts\n\n"two\nlines",r,[]\n\n,r,[]\n')
    (tmp_path / "c.json").write_text(json.dumps([{**ROW, "query": "c"}, bad], indent=1))
    (tmp_path / "README.md").write_text("# Data")

    with in_parts(spark, "40b"):
        read = read_samples(spark, str(tmp_path))

    assert sorted(row["error"] for row in read.invalid.collect()) == [
        f"{tmp_path}/a.jsonl row 5: query is empty",
        f"{tmp_path}/a.jsonl row 7: no JSON",
        f"{tmp_path}/b.csv row 6: query is null",
    ]
    # Two rows are the same: the second row of the array occurs twice
    assert read.duplicates == 1
    shown = StringIO()
    show_invalid(read, Display(shown))
    assert "skipped, because their extensions are unknown: README.md\n" in shown.getvalue()
    write_lines(tmp_path / "a.jsonl", ["", {**ROW, "sample_id": "s"}, "", {**bad, "sample_id": "s"}])
    with pytest.raises(SampleError, match=f"has two contents: {tmp_path}/a.jsonl row 2 and {tmp_path}/a.jsonl row 4"):
        read_samples(spark, str(tmp_path / "a.jsonl"))


@pytest.mark.gate
def test_queries_without_ids_are_numbered_and_wrong_queries_keep_their_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path / "a.jsonl", ["", {"q": "first"}, "", "", {"q": ""}, {"q": "third"}])
    (tmp_path / "b.csv").write_bytes("q;other\n\nvierter;é\n".encode("cp1252"))

    with in_parts(spark, "20b"):
        found = read_queries(spark, str(tmp_path / "[ab].*"), ReadOptions({"query": "q"}, "cp1252"))

    assert sorted((row["query_id"], row["query"]) for row in found.samples.collect()) == [
        ("1", "first"),
        ("3", "third"),
        ("4", "vierter"),
    ]
    assert found.first_invalid == [f"{tmp_path}/a.jsonl row 5: query is empty"]


def test_documents_are_read_under_their_names(spark: SparkSession, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"docid": "1", "body": "t"}])

    found = read_corpus(spark, path, options=ReadOptions({"text": "body"} | DOCID))

    assert [(row["document_id"], row["text"]) for row in found.samples.collect()] == [("1", "t")]


DOCID = {"document_id": "docid"}


@pytest.mark.usefixtures("spark")
def test_a_plan_with_only_invalid_rows_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("query,response,contexts\nq,r,\"['a', 'b']\"\n\np,r,\"['a']\"\n")
    endpoint = ("--set", "llm.base_url=http://127.0.0.1:9/v1", "--set", "llm.model=m")

    assert main(["plan", "--input", str(path), "--metric", "e2e", *endpoint]) == 1
    shown = capsys.readouterr()
    assert shown.err.endswith(
        f"untold: all 2 rows of {path} are invalid. The first: {path} row 2: contexts is a Python list, not JSON; "
        'write the file again after df["contexts"] = df["contexts"].map(json.dumps)\n'
    )
    assert shown.out == ""


@pytest.mark.gate
@pytest.mark.usefixtures("spark")
def test_relations_are_read_under_their_names(tmp_path: Path) -> None:
    rows = "von;nach;relation\né;b;entailment\n"
    settings = Settings(llm=LlmSettings(base_url="http://localhost", model="any"))
    options = ReadOptions({"premise_id": "von", "hypothesis_id": "nach"}, "cp1252")
    found = []
    for name, content in (("a.csv", rows.encode("cp1252")), ("b.tsv", rows.replace(";", "\t").encode("utf-16"))):
        (tmp_path / name).write_bytes(content)
        out = str(tmp_path / f"{name}-out")
        found.append(
            condense(CondenseRequest(relations=str(tmp_path / name), output=out, settings=settings, read=options))
        )

    assert found[0] == found[1]
    assert (found[0]["nodes"], found[0]["relations"]) == (2, 1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"a": 1}'.encode("utf-16")),
        ("a.csv.zst", pa.compress(b"a,b\n1,2\n", "zstd", asbytes=True)),
        ("a.json", b'{\n "a": 1\n}'),
    ],
)
def test_relations_are_read_in_every_form(spark: SparkSession, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    rows, _ = read_table(spark, str(tmp_path / name), ["a"])

    assert [row["a"] for row in rows.collect()] == ["1"]


def test_a_broken_row_of_relations_is_named_by_its_place(spark: SparkSession, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [RELATION, "", "no json", RELATION])
    request = CondenseRequest(relations=path, output=str(tmp_path / "out"), settings=Settings())

    with pytest.raises(SampleError, match=f"{path} row 3: no JSON. Correct or remove this row"):
        condense(request)


RELATION = {"premise_id": "a", "hypothesis_id": "b", "relation": "entailment"}
