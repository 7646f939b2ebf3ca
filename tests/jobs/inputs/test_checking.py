"""Test the checks of the first rows of the files. They run before Spark starts and report one line per file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sample_files import ROW, write_csv, write_lines, write_parquet
from untold.jobs.cli.main import main
from untold.jobs.inputs.checking import adapter_of, check_input
from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions, SampleError
from untold.jobs.inputs.reading import DOCUMENT, DOCUMENT_NEEDS
from untold.udfs.samples.adapters import FORMATS
from untold.udfs.samples.conversion import EITHER, REQUIRED

ENDPOINT = ("--set", "llm.base_url=http://127.0.0.1:9/v1", "--set", "llm.model=m")
RAGAS = {"question": "q", "answer": "r", "contexts": ["a"], "ground_truth": "g"}
NEW_RAGAS = {"user_input": "q", "response": "r", "retrieved_contexts": ["a"], "reference": "g"}
TREC_RAG = {"topic_id": "1", "topic": "q", "answer": [{"text": "r", "citations": [0]}], "references": ["a b"]}
NOT_UTF_8 = "is not UTF-8; give its encoding, such as --encoding cp1252"


def told(path: Path | str, options: ReadOptions = AS_THEY_ARE, required: tuple[str, ...] = REQUIRED) -> str:
    """Return the message about an input without the name of the folder. The text is empty if the input is valid."""
    try:
        check_input(str(path), options, required)
    except SampleError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (RAGAS, "query=question,response=answer"),
        (NEW_RAGAS, "query=user_input,contexts=retrieved_contexts,references=reference"),
        (TREC_RAG, "query=topic,response=answer,contexts=references,query_id=topic_id"),
        ({"Question": "q", "response": "r", "contexts": []}, "query=Question"),
    ],
)
def test_the_columns_that_would_do_are_named_and_do(tmp_path: Path, row: dict[str, Any], columns: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [row])

    assert f"; give --columns {columns}" in told(path)
    mapped = dict(pair.split("=") for pair in columns.split(","))
    assert told(path, ReadOptions(columns=mapped)) == ""


@pytest.mark.parametrize("write", [write_lines, write_csv, write_parquet])
def test_columns_are_checked_under_our_names_in_every_format(tmp_path: Path, write: Any) -> None:
    name = {write_lines: "a.jsonl", write_csv: "a.csv", write_parquet: "a.parquet"}[write]
    path = write(tmp_path / name, [RAGAS])

    missing = "no column `query` (did you mean `question`?), and no column `response` (did you mean `answer`?)"
    assert missing in told(path)
    assert told(path, ReadOptions({"query": "question", "response": "answer"})) == ""
    wrong = told(path, ReadOptions({"query": "questoin", "response": "answer"}))
    assert "no column `questoin` (did you mean `question`?), which --columns takes for `query`" in wrong
    assert wrong.endswith("; correct --columns")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "query,response,contexts\nq,r,[]\ncafé,r,[]\n".encode("cp1252"), f"line 3 {NOT_UTF_8}"),
        ("a.csv", "query,réponse,contexts\n".encode("cp1252"), f"line 1 {NOT_UTF_8}"),
        ("a.jsonl", b'\n\n{"query": "caf\xe9"}\n', f"line 3 {NOT_UTF_8}"),
        ("a.json", b'[\n{"query": "caf\xe9"}]', f"line 2 {NOT_UTF_8}"),
        ("a.xlsx", b"x", "unknown extension. Known extensions are .parquet, .jsonl, .ndjson, .json, .csv, .tsv"),
        ("a.jsonl", b"", "has no samples"),
        ("a.jsonl", b"\n \n", "has no samples"),
        ("a.csv", b"query,response,contexts\n", "has no samples"),
        ("a.json", b'{\n "results": []\n}', "--format ragchecker reads one object"),
        ("a.json", b'{"results": []}', "--format ragchecker reads one object with `results`"),
        ("a.parquet", b"PAR1 not really", "cannot be read"),
        ("a.csv", b"query,query\n", "twice"),
        ("absent.csv", None, "does not exist"),
    ],
)
def test_an_unusable_file_is_one_line(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)

    said = told(tmp_path / name)

    assert said.startswith(f"{tmp_path / name}")
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("a.csv", "query;response;contexts\ncafé;r;[]\n".encode("cp1252"), ReadOptions(encoding="cp1252")),
        ("a.tsv", b"query\tresponse\tcontexts\nq\tr\t[]\n", AS_THEY_ARE),
        ("a.csv", b"query|response|contexts\nq|r|[]\n", ReadOptions(delimiter="|")),
        ("a.csv", "query,response,contexts\nq,r,[]\n".encode("utf-16"), AS_THEY_ARE),
        ("a.jsonl", json.dumps(ROW).encode("utf-16"), AS_THEY_ARE),
    ],
)
def test_files_in_other_forms_are_of_use(tmp_path: Path, name: str, text: bytes, options: ReadOptions) -> None:
    (tmp_path / name).write_bytes(text)

    assert told(tmp_path / name, options) == ""


def test_files_that_a_format_reads_itself_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"results": [{"query": "q"}]}))
    check_input(str(tmp_path), AS_THEY_ARE, (), FORMATS["ragchecker"])

    (tmp_path / "b.json").write_text(json.dumps([ROW]))
    with pytest.raises(SampleError, match=r"b\.json: no JSON object with a list `results`"):
        check_input(str(tmp_path), AS_THEY_ARE, (), FORMATS["ragchecker"])
    with pytest.raises(SampleError, match="no column `question`"):
        check_input(write_lines(tmp_path / "c.jsonl", [ROW]), AS_THEY_ARE, (), FORMATS["expertqa"])
    with pytest.raises(SampleError, match="unknown format `expertq`"):
        adapter_of("expertq")


def test_a_column_beyond_the_first_rows_is_not_looked_for(tmp_path: Path) -> None:
    bare = {"query": "q", "response": "r"}
    assert "no column `contexts`" in told(write_lines(tmp_path / "late.jsonl", [*[bare] * 1000, ROW]))
    assert told(write_lines(tmp_path / "soon.jsonl", [*[bare] * 999, ROW])) == ""
    assert told(write_lines(tmp_path / "either.jsonl", [{**bare, "references": "g"}]), required=(EITHER,)) == ""


def test_a_folder_is_read_by_its_data_files(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [ROW])
    (tmp_path / "README.md").write_text("# Data")
    (tmp_path / "LICENSE").write_text("Free")
    assert told(tmp_path) == ""

    (tmp_path / "a.jsonl").unlink()
    assert told(tmp_path).count("unknown extension") == 2


@pytest.mark.parametrize("name", ["", "lost.jsonl", "*.jsonl"])
def test_a_broken_link_is_named(tmp_path: Path, name: str) -> None:
    write_lines(tmp_path / "a.jsonl", [ROW])
    (tmp_path / "lost.jsonl").symlink_to(tmp_path / "nowhere")

    assert told(tmp_path / name) == f"{tmp_path}/lost.jsonl is a link to a missing file. Remove or fix it"


def test_documents_are_checked_by_any_of_their_names(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"id": "1", "contents": "t"}])
    check_input(path, AS_THEY_ARE, DOCUMENT_NEEDS, names=DOCUMENT)

    path = write_lines(tmp_path / "b.jsonl", [{"id": "1", "body": "t"}])
    with pytest.raises(SampleError, match=r"no column `text`\. It has `body`, `document_id`, `id`"):
        check_input(path, AS_THEY_ARE, DOCUMENT_NEEDS, names=DOCUMENT)
    check_input(path, ReadOptions({"text": "body"}), DOCUMENT_NEEDS, names=DOCUMENT)


COMMANDS = {
    "score": ("--input", "IN", "--output", "OUT", "--metric", "e2e"),
    "plan": ("--input", "IN", "--metric", "e2e"),
    "generate": ("--input", "IN", "--output", "OUT", "--systems", "SYSTEMS"),
    "meta-evaluate": ("--dataset", "coverage", "--input", "IN", "--output", "OUT", "--metric", "e2e"),
    "index": ("--input", "IN", "--output", "OUT"),
    "search": ("--index", "INDEX", "--queries", "IN", "--output", "OUT"),
    "condense": ("--relations", "IN", "--output", "OUT"),
}


def words(command: str, folder: Path, *more: str) -> list[str]:
    (folder / "systems.yaml").write_text("one: {}\ntwo: {model: n}\n")
    places = {"IN": str(folder / "in.csv"), "OUT": str(folder / "out"), "SYSTEMS": str(folder / "systems.yaml")}
    given = [places.get(word, word) for word in COMMANDS[command]]
    return [command, *given, *more, *([] if command in ("index", "search", "condense") else ENDPOINT)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_checks_its_input_first(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    (tmp_path / "in.csv").write_bytes("some;réponse\n".encode("cp1252"))

    assert main(words(command, tmp_path)) == 1
    assert capsys.readouterr().err == f"untold: {tmp_path / 'in.csv'}: line 1 {NOT_UTF_8}\n"
    assert main(words(command, tmp_path, "--encoding", "cp1252", "--delimiter", ";")) == 1
    shown = capsys.readouterr().err
    assert "no column" in shown
    assert "It has `réponse`, `some`" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "columns", "message"),
    [
        ("score", "qurey=a", "Invalid value for '--columns': no column qurey; there are sample_id, query, "),
        ("score", "qurey=a", "did you mean query?"),
        ("score", "query", "Invalid value for '--columns': 'query' is not of the form OURS=THEIRS"),
        ("plan", "query=a,query=b", "Invalid value for '--columns': query is named twice"),
        ("index", "txt=a", "no column txt; there are document_id, text, title, url; did you mean text?"),
        ("search", "qury=a", "did you mean query?"),
        ("condense", "relatoin=a", "did you mean relation?"),
        ("meta-evaluate", "lable=a", "did you mean label?"),
        ("generate", "questionid=a", "did you mean question_id?"),
    ],
)
def test_a_wrong_column_of_ours_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, columns: str, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words(command, tmp_path, "--columns", columns))

    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--encoding", "cp1525"), ("--delimiter", "ab"), ("--delimiter", '"')])
def test_a_wrong_encoding_or_delimiter_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words("score", tmp_path, option, value))

    assert ended.value.code == 2
    assert f"Invalid value for '{option}': " in capsys.readouterr().err


@pytest.mark.gate
def test_wrong_columns_are_reported_without_java(tmp_path: Path) -> None:
    """Spark would report a missing Java first, so this message shows that Spark did not start."""
    (tmp_path / "in.csv").write_text("query,respones,contexts\nq,r,[]\n")
    environ = {**os.environ, "JAVA_HOME": str(tmp_path / "nowhere")}

    ended = subprocess.run(
        [sys.executable, "-m", "untold", *words("score", tmp_path)],
        cwd=Path(__file__).parents[3],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1
    assert "no column `response` (did you mean `respones`?)" in ended.stderr
    assert "Java" not in ended.stderr


def test_files_are_inspected_without_java(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [ROW])
    ended = subprocess.run(
        [sys.executable, "-m", "untold", "inspect", path],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "JAVA_HOME": str(tmp_path / "nowhere"), "OPENAI_API_KEY": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith(f"next: untold plan --input {path} --metric nli\n")


@pytest.mark.parametrize("key", ["data", "rows", "samples", "anything"])
def test_a_list_of_rows_in_an_object_is_reported(tmp_path: Path, key: str) -> None:
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(json.dumps({"version": 1, key: [ROW, ROW]}, indent=indent))
        assert told(tmp_path / "a.json").endswith(
            f"its rows are in the list `{key}`. Write one per line: jq -c '.{key}[]' FILE > NEW.jsonl"
        )


@pytest.mark.parametrize("value", [lambda one: [one, one], lambda one: {"0": one, "1": one}])
@pytest.mark.parametrize("names", [("query", "response", "contexts"), ("question", "answer", "passages")])
def test_rows_by_columns_are_reported(tmp_path: Path, value: Any, names: tuple[str, ...]) -> None:
    columns = dict(zip(names, map(value, ROW.values()), strict=True))
    (tmp_path / "a.json").write_text(json.dumps(columns))
    assert "its only object has columns instead of rows. Write one row per line with pandas" in told(
        tmp_path / "a.json"
    )


def test_contexts_between_bars_are_reported(tmp_path: Path) -> None:
    names = {"query": "input", "response": "actual_output", "contexts": "retrieval_context"}
    (tmp_path / "a.csv").write_text("input,actual_output,retrieval_context\nq,r,a|b\n")
    assert told(tmp_path / "a.csv", ReadOptions(columns=names)).endswith("Use --format deepeval")
    assert told(tmp_path / "a.csv").endswith("give --format deepeval, or rename them")
    (tmp_path / "a.csv").write_text('input,actual_output,retrieval_context\nq,r,"[""a|b""]"\n')
    assert told(tmp_path / "a.csv", ReadOptions(columns=names)) == ""


@pytest.mark.parametrize(
    "command",
    [
        ["score", "--metric", "e2e", "--output", "o"],
        ["plan", "--metric", "e2e"],
        ["index", "--output", "o"],
        ["meta-evaluate", "--dataset", "wikicontradict", "--metric", "e2e", "--output", "o"],
    ],
)
def test_a_missing_file_comes_before_a_missing_endpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert main([*command, "--input", "nofile.jsonl", "--set", "llm.model=m"]) != 0
    assert "untold: nofile.jsonl does not exist" in capsys.readouterr().err
