"""Test the folders that a run can write into. A run never overwrites its inputs. The files and links are real."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.run.folders import check_folders
from untold.jobs.run.manifest import NAME, OutputError, write_manifest
from untold.jobs.tables import TABLES


def make(folder: Path, *names: str) -> Path:
    """Create a folder with empty files. A name with a slash at the end is a folder."""
    folder.mkdir(exist_ok=True)
    for name in names:
        place = folder / name
        (place if name.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            place.touch()
    return folder


def write_table(folder: Path, name: str, schema: pa.Schema | None = None) -> None:
    (folder / name).mkdir(parents=True)
    pq.write_table((schema or TABLES[name]).empty_table(), folder / name / "part-0.parquet")


def is_refused(output: Path, *inputs: Path | str, store: Path | None = None) -> bool:
    """Return True if the output is refused with a message of one line that names the remedy."""
    try:
        check_folders([str(path) for path in inputs], str(output), None if store is None else str(store))
    except OutputError as error:
        return "give another --output" in str(error).lower() and len(str(error).splitlines()) == 1
    return False


@pytest.mark.parametrize(
    "names",
    [
        ("notes.txt",),
        ("summary/q3.txt",),
        ("samples/mine.csv", "summary/q3.txt"),
        ("_work/mine.txt",),
        (".git/config",),
        ("manifest.json.bak",),
        ("completions/mine.txt",),
        ("runs/mine.txt",),
        ("photos/",),
        ("scores",),
    ],
)
def test_a_folder_of_another_program_is_refused(tmp_path: Path, names: Sequence[str]) -> None:
    assert is_refused(make(tmp_path / "out", *names))


def test_a_parquet_table_of_another_program_is_refused_by_its_columns(tmp_path: Path) -> None:
    write_table(tmp_path / "out", "summary", pa.schema([("quarter", pa.string())]))
    assert is_refused(tmp_path / "out")


def test_a_foreign_file_beside_tables_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "out", "scores")
    assert not is_refused(tmp_path / "out")
    make(tmp_path / "out", "thesis.tex")
    assert is_refused(tmp_path / "out")


@pytest.mark.parametrize("content", ["{}", '{"manifest_version": 3, "name": "a browser extension"}', "[1]"])
def test_a_manifest_of_something_else_is_foreign(tmp_path: Path, content: str) -> None:
    (make(tmp_path / "out") / NAME).write_text(content)
    assert is_refused(tmp_path / "out")


def test_a_file_is_not_an_output(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    assert is_refused(tmp_path / "out")


def test_a_refused_folder_does_not_change(tmp_path: Path) -> None:
    make(tmp_path / "out", "summary/q3.txt")
    assert is_refused(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["summary", "q3.txt"]


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("_lock", "_lock-held", "_lock-0123456789ab"),
        ("_work/01-judge/keyed/part-0.parquet", "_work/01-judge/keyed/_SUCCESS", "_work/01-judge/keyed/.part.crc"),
        ("completions/v1/judge-0123/run.parquet",),
        ("runs/", "runs/model/_lock-held", "meta_evaluation.md", "meta_evaluation.svg"),
        ("scores/_temporary/0/_task/part-0.parquet", "scores/_SUCCESS"),
        ("manifest.json.tmp",),
        ("manifest.json",),
    ],
)
def test_files_of_a_killed_run_are_not_an_obstacle(tmp_path: Path, names: Sequence[str]) -> None:
    assert not is_refused(make(tmp_path / "out", *names))


def test_every_table_of_ours_is_known(tmp_path: Path) -> None:
    for name in TABLES.keys() - {"completions"}:
        write_table(tmp_path / "out", name)
    assert not is_refused(tmp_path / "out")


def test_an_output_can_contain_other_files(tmp_path: Path) -> None:
    write_manifest(str(tmp_path / "out"), {"format": 1, "status": "finished"})
    assert not is_refused(make(tmp_path / "out", "notes.txt", "summary/q3.txt"))


def test_a_folder_that_is_not_there_is_free(tmp_path: Path) -> None:
    assert not is_refused(tmp_path / "not" / "there", tmp_path / "in.jsonl")


@pytest.mark.parametrize("store", ["out/kept/store", "out/kept", "out", "elsewhere"])
def test_a_store_can_be_anywhere(tmp_path: Path, store: str) -> None:
    make(tmp_path / "out")
    make(tmp_path, f"{store}/v1/judge-0123/run.parquet")
    assert not is_refused(tmp_path / "out", store=tmp_path / store)
    if store.startswith("out"):
        assert is_refused(tmp_path / "out")


def test_an_input_within_the_output_is_refused(tmp_path: Path) -> None:
    write_manifest(str(tmp_path / "out"), {"format": 1, "status": "finished"})
    make(tmp_path / "out", "samples/part-0.parquet", "in.jsonl")
    os.symlink(tmp_path / "out" / "samples", tmp_path / "link")
    os.symlink(tmp_path / "out", tmp_path / "other-name")
    make(tmp_path / "in")
    os.symlink(tmp_path / "out" / "in.jsonl", tmp_path / "in" / "a.jsonl")
    for given in ("out", "out/samples", "out/in.jsonl", "link", "o*/s*", "o*/s*/*.parquet", "**/*.parquet", "in"):
        assert is_refused(tmp_path / "out", tmp_path / given), given
        assert is_refused(tmp_path / "other-name", tmp_path / given), given
    assert is_refused(tmp_path / "out", f"file://{tmp_path}/out/samples")


def test_an_output_within_the_input_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "in", "a.jsonl")
    os.symlink(tmp_path / "in", tmp_path / "link")
    for given in ("in", "link", "i*", "in/*", "in/**", "link/*"):
        assert is_refused(tmp_path / "in" / "out", tmp_path / given), given
        assert is_refused(tmp_path / "link" / "out", tmp_path / given), given
    assert is_refused(tmp_path / "link" / "out", "s3://bucket/a.jsonl", tmp_path / "in")


def test_inputs_beside_the_output_are_read(tmp_path: Path) -> None:
    make(tmp_path / "in", "a.jsonl", "2026/b.jsonl")
    make(tmp_path / "answered", "samples/part-0.parquet")
    for given in ("in/a.jsonl", "in/*.jsonl", "in/2026", "in/2026/*", "in/**/*.jsonl", "answered/samples", "ou[t]x*"):
        assert not is_refused(tmp_path / "in" / "out", tmp_path / given), given
    assert not is_refused(tmp_path / "ranked", tmp_path / "answered" / "samples")
    assert not is_refused(tmp_path / "answered-2", tmp_path / "answered")


def test_addresses_are_compared_without_their_scheme_s_name() -> None:
    with pytest.raises(OutputError, match="is in the output"):
        check_folders(["s3a://bucket/out/samples"], "s3://bucket/out/")
    with pytest.raises(OutputError, match="is in the input"):
        check_folders(["s3://bucket/in/*"], "s3n://bucket/in/out")
