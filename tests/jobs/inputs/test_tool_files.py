"""Test the files of other tools (see `exports/README.md`), as samples and in the output of `inspect`."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.sample_files import ROW, write_csv, write_lines, write_parquet
from untold.jobs.cli.arguments import Options
from untold.jobs.cli.main import main
from untold.jobs.cli.studies import _check_questions
from untold.jobs.inputs.checking import check_input, head_unit, input_files
from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions, SampleError
from untold.jobs.inputs.questions import read_questions
from untold.jobs.inputs.reading import read_table
from untold.jobs.inputs.samples import fingerprint, read_samples
from untold.jobs.inspect import inspect, inspection_lines
from untold.jobs.run.terminal import Page, width_of
from untold.udfs.samples.adapters import FORMATS
from untold.udfs.samples.batches import ColumnSelection, UnitProgress, expanded, reader_of, samples_of
from untold.udfs.samples.conversion import OPTIONAL, REQUIRED, Sample
from untold.udfs.samples.data_sets import COLUMNS, MUST_HAVE
from untold.udfs.samples.tool_files import ASKED, ASKING, documents_in, find_text

EXPORTS = Path(__file__).parent / "exports"
EVEREST = ("How high is Mount Everest?", "8,848 metres, by a survey of 1955.")
SURVEYS = ["The Survey of India measured 8,848 metres in 1955.", "A survey of 2020 found 8,848.86 metres."]
# Files with contexts, and the format of each file
WITH_CONTEXTS = {
    "ragas.jsonl": "ragas",
    "ragas.csv": "ragas",
    "huggingface": "huggingface",
    "langsmith.jsonl": "langsmith",
    "langfuse.jsonl": "langfuse",
    "mlflow.jsonl": "mlflow",
    "phoenix.jsonl": "phoenix",
    "phoenix_spans.jsonl": "phoenix",
    "openai_evals_items.jsonl": "openai_evals",
}


def samples_in(path: Path, format: str | None, options: ReadOptions = AS_THEY_ARE) -> Iterator[Sample]:
    """Yield the samples of files in the same way as the workers."""
    adapter = None if format is None else FORMATS[format]
    for file in input_files(str(path), adapter, options)[0]:
        unit, tally = head_unit(file), UnitProgress()
        for record in tally.rows(unit, reader_of(unit, adapter), options.columns):
            yield from samples_of(unit, expanded(adapter, record, 0), ColumnSelection(adapter, REQUIRED, OPTIONAL))


def written(folder: Path, format: str, *rows: dict[str, Any]) -> list[Sample]:
    """Return the samples of rows in the format of a tool."""
    return list(samples_in(Path(write_lines(folder / "a.jsonl", rows)), format))


def texts_of(sample: Sample) -> list[str]:
    return [one["text"] for one in sample.known["contexts"]]


@pytest.mark.parametrize("name", WITH_CONTEXTS)
def test_a_file_of_a_tool_is_its_questions_answers_and_contexts(name: str) -> None:
    check_input(str(EXPORTS / name), AS_THEY_ARE, REQUIRED, FORMATS[WITH_CONTEXTS[name]])
    found = list(samples_in(EXPORTS / name, WITH_CONTEXTS[name]))

    assert [one.error for one in found] == [None] * len(found)
    by_query = {one.known["query"]: one for one in found}
    assert len(by_query) == len(found)
    everest = by_query[EVEREST[0]]
    assert (everest.known["response"], texts_of(everest)) == (EVEREST[1], SURVEYS)


# Files that only need a mapping of columns, with the mapping in docs/howto/data.md
MAPPED = {
    "trulens.jsonl": {"query": "input", "response": "output", "system": "app_version", "query_id": "record_id"},
    "llama_index.jsonl": {},
    "llama_index_dataset.jsonl": {"ground_truth": "reference_answer"},
}


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapping_of_columns_reads_trulens_and_llama_index(name: str) -> None:
    options = ReadOptions(MAPPED[name])
    check_input(str(EXPORTS / name), options, REQUIRED, None)
    everest, emma = samples_in(EXPORTS / name, None, options)
    assert (everest.error, emma.error) == (None, None)
    assert ((everest.known["query"], everest.known["response"]), texts_of(everest)) == (EVEREST, SURVEYS)
    assert (everest.known["system"], everest.rest.get("query_id")) == {"trulens.jsonl": ("v2", "record_0")}.get(
        name, (None, None)
    )
    truth = everest.rest.get("ground_truth")
    assert (truth and truth["text"]) == {"llama_index_dataset.jsonl": "8,848.86 metres"}.get(name)
    mapping = ",".join(f"{ours}={theirs}" for ours, theirs in MAPPED[name].items())
    assert not mapping or f"--columns {mapping}`" in (EXPORTS.parents[3] / "docs/howto/data.md").read_text("utf-8")


def test_the_same_data_set_is_the_same_samples_in_either_form_of_ragas() -> None:
    one, other = (list(samples_in(EXPORTS / f"ragas.{ending}", "ragas")) for ending in ("jsonl", "csv"))
    assert [(sample.known, sample.rest) for sample in one] == [(sample.known, sample.rest) for sample in other]
    assert [reference["text"] for reference in one[1].rest["references"]] == ["Jane Austen"]


def test_older_names_and_conversations_of_ragas_are_read(tmp_path: Path) -> None:
    older = {"question": "q", "answer": "r", "contexts": ["a"], "ground_truth": "g"}
    said = [{"type": "human", "content": "q1"}, {"type": "ai", "content": "r1"}, {"type": "human", "content": "q2"}]
    talk = {"user_input": [*said, {"type": "ai", "content": "r2"}], "retrieved_contexts": ["a"], "reference": "g"}
    several = {**older, "ground_truth": None, "ground_truths": ["g", None, "h"]}
    nothing = {**older, "ground_truth": None, "ground_truths": [None]}
    one, two, three, four = written(tmp_path, "ragas", older, talk, several, nothing)
    assert four.rest["ground_truth"] is None
    truths = [sample.rest["ground_truth"]["text"] for sample in (one, two, three)]
    assert (truths, three.rest["ground_truth"]["claims"]) == (["g", "g", "g\nh"], None)
    assert [sample.known["query"] for sample in (one, two)] == ["q", "q2"]
    assert [sample.known["response"] for sample in (one, two)] == ["r", "r2"]


def test_answers_of_trec_rag_have_their_topics_and_runs_and_no_contexts() -> None:
    first, second = samples_in(EXPORTS / "trec_rag.jsonl", "trec_rag")
    assert (first.known["query"], first.known["response"], first.known["system"]) == (*EVEREST, "webis-1")
    assert (second.known["query"], second.known["system"], second.rest["query_id"]) == (
        "Who wrote Emma?",
        "webis-2",
        "7",
    )
    assert first.rest["segment_ids"] == ["msmarco_v2.1_doc_16_287012450#4_490828734", "msmarco_v2.1_doc_01_1#0_2"]
    with pytest.raises(
        SampleError, match=r"no column `contexts`\. It has .*`segment_ids`.*metric that reads no contexts"
    ):
        check_input(str(EXPORTS / "trec_rag.jsonl"), AS_THEY_ARE, REQUIRED, FORMATS["trec_rag"])


def test_texts_and_ranked_lists_of_trec_rag_are_contexts(tmp_path: Path) -> None:
    (ranked,) = samples_in(EXPORTS / "trec_rag_retrieved.jsonl", "trec_rag")
    assert (texts_of(ranked), ranked.rest["query_id"]) == (SURVEYS, "2024-1")
    assert ranked.known["contexts"][0]["id"] == "msmarco_v2.1_doc_16#0"
    (texts,) = written(tmp_path, "trec_rag", {"topic": "q", "references": SURVEYS, "answer": [{"text": "r"}]})
    assert texts_of(texts) == SURVEYS


def test_nuggets_of_nuggetizer_are_references_and_assignments_labels(tmp_path: Path) -> None:
    nuggets = [
        {"text": "Everest is 8,848 metres high", "importance": "vital", "assignment": "partial_support"},
        {"text": "It was measured in 1955", "importance": "okay", "assignment": "support"},
    ]
    row = {"qid": "2024-1", "query": EVEREST[0], "answer_text": EVEREST[1], "run_id": "webis-1", "nuggets": nuggets}
    (assigned,) = written(tmp_path, "trec_rag_nuggets", row)
    assert [assigned.known[name] for name in ("query", "response", "system")] == [*EVEREST, "webis-1"]
    assert assigned.rest["query_id"] == "2024-1"
    assert [(one["text"], one["importance"], one["labels"]) for one in assigned.rest["references"]] == [
        (one["text"], one["importance"], [one["assignment"]]) for one in nuggets
    ]


def test_answers_of_trec_rag_need_no_topic(tmp_path: Path) -> None:
    said = [{"text": "8,848 metres,", "citations": [0]}, {"text": "by a survey of 1955.", "citations": []}]
    answer = {"topic_id": "2024-1", "answer": said, "references": ["msmarco_v2.1_doc_16#4"]}
    bare, asked = written(tmp_path, "trec_rag_answers", answer, {**answer, "topic": EVEREST[0]})
    assert (bare.known["query"], bare.known["response"], bare.rest["query_id"]) == ("2024-1", EVEREST[1], "2024-1")
    assert asked.known["query"] == EVEREST[0]


def test_a_log_of_evals_has_its_samples_with_the_expected_answers() -> None:
    first, second = samples_in(EXPORTS / "openai_evals.jsonl", "openai_evals")
    assert (first.known["sample_id"], first.known["query"], first.known["response"]) == ("heights.dev.0", *EVEREST)
    assert [one["text"] for one in first.rest["references"]] == ["8,848.86 metres"]
    assert "references" not in second.rest
    with pytest.raises(SampleError, match="no column `contexts`"):
        check_input(str(EXPORTS / "openai_evals.jsonl"), AS_THEY_ARE, REQUIRED, FORMATS["openai_evals"])


@pytest.mark.parametrize(
    ("format", "row"),
    [
        (
            "langsmith",
            {"id": "a", "run_type": "chain", "inputs": {"input": "q", "lang": "en"}, "outputs": {"output": "r"}},
        ),
        ("langfuse", {"id": "a", "timestamp": "t", "input": {"input": "q", "lang": "en"}, "output": "r"}),
        (
            "phoenix",
            {
                "context.trace_id": "a",
                "attributes.input.value": '{"input": "q", "lang": "en"}',
                "attributes.output.value": "r",
            },
        ),
    ],
)
def test_a_trace_without_a_retriever_has_no_contexts_and_reports_it(
    tmp_path: Path, format: str, row: dict[str, Any]
) -> None:
    (sample,) = written(tmp_path, format, row)

    assert (sample.known["sample_id"], sample.known["query"], sample.known["response"]) == ("a", "q", "r")
    assert (sample.error, sample.known["contexts"]) == ("contexts is null", None)
    assert sample.rest["inputs.lang"] == "en"


def test_fields_of_a_trace_are_columns_that_may_be_mapped(tmp_path: Path) -> None:
    row = {"id": "a", "run_type": "chain", "inputs": {"ask": "q", "n": 1}, "outputs": {"said": "r", "docs": ["a"]}}
    path = Path(write_lines(tmp_path / "a.jsonl", [row]))
    (lost,) = samples_in(path, "langsmith")
    assert lost.error == "query is null; response is null"

    options = ReadOptions({"query": "inputs.ask", "response": "outputs.said"})
    (sample,) = samples_in(path, "langsmith", options)
    assert (sample.error, sample.known["query"], sample.known["response"]) == (None, "q", "r")
    assert texts_of(sample) == ["a"]


def test_spans_of_a_trace_can_be_in_any_order_and_nested(tmp_path: Path) -> None:
    first = {"id": "a", "trace_id": "a", "run_type": "chain", "inputs": {"question": "q"}, "outputs": {"answer": "r"}}
    found = {"run_type": "retriever", "outputs": {"documents": [{"page_content": "t", "metadata": {}}]}}
    below = {**found, "id": "b", "trace_id": "a", "parent_run_id": "a"}
    for rows in ([first, below], [below, first], [{**first, "child_runs": [below]}]):
        (sample,) = written(tmp_path, "langsmith", *rows)
        assert (sample.error, texts_of(sample)) == (None, ["t"])
    (alone,) = written(tmp_path, "langsmith", below)
    assert alone.error == "a trace without its first span"


def test_traces_of_langfuse_with_their_observations(tmp_path: Path) -> None:
    found = {"id": "o", "type": "RETRIEVER", "parentObservationId": None, "input": "q", "output": [{"content": "t"}]}
    (sample,) = written(
        tmp_path, "langfuse", {"id": "t1", "input": {"query": "q"}, "output": "r", "observations": [found]}
    )
    assert (sample.known["sample_id"], sample.known["query"], texts_of(sample)) == ("t1", "q", ["t"])


def test_texts_and_documents_are_distinguished() -> None:
    chain = {"messages": [[{"lc": 1, "id": ["langchain", "HumanMessage"], "kwargs": {"content": "q"}}]]}
    parts = [{"role": "user", "content": [{"type": "text", "text": "q"}]}]
    assert [find_text(one, ASKED, ASKING) for one in (chain, parts, [], {}, None, 7)] == [
        "q",
        "q",
        None,
        None,
        None,
        "7",
    ]
    lists = {"documents": [{"kwargs": {"page_content": "t"}}, {"document": {"content": "u", "id": "7"}}, None, 3]}
    assert documents_in(lists) == [{"id": None, "text": "t"}, {"id": "7", "text": "u"}]


def test_broken_lines_of_a_trace_file_are_rows_with_their_places(tmp_path: Path) -> None:
    row = {"id": "a", "run_type": "chain", "inputs": {"question": "q"}, "outputs": {"answer": "r", "contexts": ["t"]}}
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"cut\n{json.dumps(row)}\n[1]\n')
    assert [one.error for one in samples_in(path, "langsmith")] == ["no JSON", None, "no JSON object"]


def test_no_stream_of_arrow_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"not Arrow")
    with pytest.raises(SampleError, match=r"a\.arrow: is not an Arrow stream\. Give a folder"):
        check_input(str(tmp_path), AS_THEY_ARE, REQUIRED, FORMATS["huggingface"])


def test_spark_reads_the_same_rows_as_python(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("ragas.csv", "huggingface", "mlflow.jsonl"):
        found = read_samples(spark, str(EXPORTS / name), format=WITH_CONTEXTS[name], optional=OPTIONAL)
        here = {one.known["sample_id"]: one.known for one in samples_in(EXPORTS / name, WITH_CONTEXTS[name])}
        rows = {row["sample_id"]: row for row in found.samples.collect()}
        assert found.invalid_count == 0
        assert {key: (row["query"], row["response"]) for key, row in rows.items()} == {
            key: (one["query"], one["response"]) for key, one in here.items()
        }
    # Only the first spans of the file are rows
    questions, _ = read_questions(spark, str(EXPORTS / "openai_evals_data.jsonl"), format="openai_evals")
    assert [row["query"] for row in questions.samples.collect()] == [EVEREST[0]]


@pytest.mark.gate
def test_compressed_files_are_the_samples_that_they_were(spark: SparkSession, tmp_path: Path) -> None:
    content = "".join(json.dumps({**ROW, "n": n}) + "\n" for n in range(50)).encode()
    zstd = pa.compress(content, "zstd", asbytes=True)
    # Parallel compressors write files in several parts, and all of the parts are read
    forms = {
        "": content,
        ".gz": gzip.compress(content[:300]) + gzip.compress(content[300:]),
        ".bz2": bz2.compress(content[:300]) + bz2.compress(content[300:]),
        ".zst": zstd,
    }
    prints = set()
    for ending, data in forms.items():
        path = tmp_path / f"a.jsonl{ending}"
        path.write_bytes(data)
        check_input(str(path), AS_THEY_ARE, REQUIRED)
        assert inspect(str(path)).rows == 50
        found = read_samples(spark, str(path))
        assert found.row_count == 50
        prints.add(fingerprint(found.samples))
        assert read_table(spark, str(path), ["query"])[0].count() == 50
    assert len(prints) == 1


@pytest.mark.parametrize("name", [*WITH_CONTEXTS, "excel.csv", "trec_rag.jsonl", "openai_evals.jsonl"])
def test_inspect_knows_the_files_of_tools(name: str) -> None:
    found = inspect(str(EXPORTS / name))
    formats = {**WITH_CONTEXTS, "trec_rag.jsonl": "trec_rag", "openai_evals.jsonl": "openai_evals"}
    assert found.format == formats.get(name)
    assert found.usable is (name != "trec_rag.jsonl")
    assert [one["query"] for one in found.samples if one["query"].startswith("How high is")]
    if name in WITH_CONTEXTS:
        assert found.problems == []
        assert found.command.endswith(f"--format {found.format} --metric e2e")


def inspected(path: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["inspect", path, *words])
    return code, capsys.readouterr().out


def test_inspect_shows_columns_rows_and_the_next_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"q{n}", "answer": "r", "passages": ["a", "b"], "day": n or None} for n in range(5)]
    path = write_lines(tmp_path / "a.jsonl", rows)

    code, shown = inspected(path, capsys)

    assert code == 0
    assert "rows: 5\n" in shown
    for cells in (["question", "query", "5 / 5"], ["passages", "contexts", "5 / 5"], ["day", "- (kept)", "4 / 5"]):
        assert [line for line in shown.splitlines() if " ".join(line.split()) == " ".join(cells)]
    assert shown.count("\nsample ") == 3
    command = f"untold plan --input {path} --columns query=question,response=answer,contexts=passages --metric nli"
    assert shown.endswith(f"no problem was found\n\nnext: {command}\n")
    assert main(["inspect", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == command


@pytest.mark.parametrize(
    ("variable", "metric"), [(None, "nli"), ("OPENAI_API_KEY", "e2e"), ("UNTOLD_LLM__BASE_URL", "e2e")]
)
def test_the_next_command_has_a_metric_that_works_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: Any,
    metric: str,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "http://127.0.0.1:9/v1")
        monkeypatch.setenv("UNTOLD_LLM__MODEL", "m")
    code, shown = inspected(write_lines(tmp_path / "a.jsonl", [ROW]), capsys)
    assert (code, shown.split()[-1]) == (0, metric)


def test_a_common_column_does_not_identify_a_data_set(tmp_path: Path) -> None:
    found = inspect(write_lines(tmp_path / "a.jsonl", [{"prompt": "q", "completion": "r", "documents": ["a"]}]))
    assert (found.format, found.usable) == (None, True)
    assert "--columns query=prompt,response=completion,contexts=documents" in found.command


def test_inspect_reports_the_problems_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = [{**ROW, "sample_id": "a"}, {**ROW, "sample_id": "a", "n": 1}]
    path = write_lines(tmp_path / "a.jsonl", [ROW, {**ROW, "query": " "}, "{cut", *twice])

    code, shown = inspected(path, capsys)

    assert code == 0
    assert f"{path} row 2: query is empty\n{path} row 3: no JSON\nsample_id `a` has two contents\n" in shown


@pytest.mark.parametrize("write", [write_lines, write_csv, write_parquet])
def test_inspect_names_columns_that_lack(tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Any) -> None:
    name = {write_lines: "a.jsonl", write_csv: "a.csv", write_parquet: "a.parquet"}[write]
    path = write(tmp_path / name, [{"text": "q", "contexts": ["a"], "other": 1}])

    code, shown = inspected(path, capsys)

    assert code == 1
    assert f"{path}: no column `query`" in shown


def test_questions_of_a_tool_need_no_contexts_to_be_answered() -> None:
    given = {"input": str(EXPORTS / "openai_evals_data.jsonl"), "format": "openai_evals", "contexts": None}
    options = Options(**given, columns=None, encoding=None, delimiter=None)
    assert _check_questions(options) == AS_THEY_ARE
    with pytest.raises(SampleError, match="no column `query`"):
        _check_questions(Options(**{**vars(options), "format": None}))


def test_questions_lead_to_generate(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"query": "q", "contexts": ["a"]}])
    assert inspect(path).command == f"untold generate --input {path} --systems systems.yaml --output answers"


def test_rows_are_counted_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = write_lines(tmp_path / "a.jsonl", [ROW] * 3000)
    table = write_parquet(tmp_path / "a.parquet", [ROW] * 3000, row_group_size=100)
    cells = write_csv(tmp_path / "a.csv", [ROW] * 1300)
    for path, rows in ((lines, 3000), (table, 3000), (cells, 1300)):
        found = inspect(path)
        assert (found.rows, found.exact) == (rows, True)
    monkeypatch.setattr("untold.jobs.inspect.COUNTED_BYTES", 1000)
    monkeypatch.setattr("untold.jobs.inspect.COUNTED_RECORDS", 100)
    for path in (lines, cells):
        found = inspect(path)
        assert not found.exact
        assert 0 < found.rows <= 100
        assert f"rows: at least {found.rows}; " in "\n".join(inspection_lines(found, Page()))


def test_an_inspection_fits_the_terminal_except_for_text_to_copy(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{**ROW, "query": "long " * 100, "response": "\x1b[31mred\n" * 50}])
    lines = inspection_lines(inspect(path), Page(60))
    shown = [line for line in lines if str(tmp_path) not in line]
    assert max(map(width_of, shown)) <= 60
    assert all(line.isprintable() for line in shown)


def test_a_folder_is_inspected_as_it_is_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [ROW])
    write_lines(tmp_path / "b.jsonl", [{**ROW, "n": 1}, {**ROW, "n": 2}])
    (tmp_path / "README.md").write_text("# Data")
    found = inspect(str(tmp_path))
    assert (found.files, found.rows, found.usable) == (2, 3, True)
    assert found.problems == ["skipped, because their extensions are unknown: README.md"]
    with pytest.raises(SampleError, match="does not exist"):
        inspect(str(tmp_path / "absent"))


def test_a_file_that_breaks_off_is_counted_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(f"{json.dumps(ROW)}\n".encode() * 50_000)[:-50])
    found = inspect(str(path))
    assert (found.usable, found.exact) == (True, False)
    assert 1000 < found.rows < 50_000


@pytest.mark.parametrize(
    "cell",
    [
        *(
            "['a'\n 'b']",
            "['a' 'b']",
            "[\"a\" 'b']",
            "array(['a', 'b'], dtype=object)",
            "array(['a', 'b'],\n      dtype='<U1')",
        ),
        *("[np.str_('a'), np.str_('b')]", "[{'text': 'a'} {'text': 'b'}]", "['a', 'b']"),
    ],
)
def test_lists_of_numpy_are_read(tmp_path: Path, cell: str) -> None:
    (sample,) = written(tmp_path, "ragas", {"user_input": "q", "response": "r", "retrieved_contexts": cell})
    assert [one["text"] for one in sample.known["contexts"]] == ["a", "b"]


@pytest.mark.parametrize(
    "cell",
    ["['a', nan]", "['a', 'cut", "['a' 'a' ... 'a']", "array(['a', inf])", "[Document(page_content='a')]", "['a', x]"],
)
@pytest.mark.parametrize("name", ["retrieved_contexts", "reference"])
def test_broken_lists_of_ragas_are_errors_of_their_rows(tmp_path: Path, cell: str, name: str) -> None:
    good = {"user_input": "q", "response": "r", "retrieved_contexts": "['a']", "reference": "a"}
    first, second = written(tmp_path, "ragas", {**good, name: cell}, good)
    assert first.error is not None
    assert second.error is None


def test_inspect_continues_after_a_broken_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("user_input,retrieved_contexts,response,reference\nq,\"['a', 'cut\",r,1931\n")
    code, shown = inspected(str(path), capsys)
    assert code == 1
    assert f"{path} row 2: the list in contexts is cut, or holds more than texts; write the rows again as JSON" in shown


@pytest.mark.parametrize("camel", [False, True])
def test_contexts_of_deepeval_are_between_bars_in_csv(tmp_path: Path, camel: bool) -> None:
    names = ["input", "actualOutput", "retrievalContext"] if camel else ["input", "actual_output", "retrieval_context"]
    path = tmp_path / "a.csv"
    path.write_text(f"{','.join(names)},expected_output\nq,r,The bridge.|It is long.,e\n")

    found = inspect(str(path))

    assert (found.format, found.problems) == ("deepeval", [])
    assert [one["text"] for one in found.samples[0]["contexts"]] == ["The bridge.", "It is long."]
    assert found.samples[0]["references"][0]["text"] == "e"
    (of_json,) = written(tmp_path, "deepeval", {names[0]: "q", names[1]: "r", names[2]: ["a|b", "c"]})
    assert [one["text"] for one in of_json.known["contexts"]] == ["a|b", "c"]


@pytest.mark.parametrize("write", [write_lines, write_csv, write_parquet])
@pytest.mark.parametrize("given", [".", "system=*", "system=gpt-4%2Fmini/{}"])
def test_folders_name_columns(tmp_path: Path, write: Any, given: str) -> None:
    name = f"part-0{'.jsonl' if write is write_lines else '.csv' if write is write_csv else '.parquet'}"
    folder = tmp_path / "system=gpt-4%2Fmini" / "n=5" / "query_id=__HIVE_DEFAULT_PARTITION__"
    folder.mkdir(parents=True)
    write(folder / name, [ROW, {**ROW, "query": "p"}])
    path = tmp_path / given.format(f"n=5/query_id=__HIVE_DEFAULT_PARTITION__/{name}")

    samples = list(samples_in(path, None))

    assert [one.known["system"] for one in samples] == ["gpt-4/mini"] * 2
    assert all("query_id" not in one.rest and "n" not in one.rest for one in samples)


def test_the_system_of_a_row_has_priority_over_its_folder(tmp_path: Path) -> None:
    (tmp_path / "system=a").mkdir()
    write_lines(tmp_path / "system=a" / "a.jsonl", [{**ROW, "system": "b"}, {**ROW, "system": None}])
    assert [one.known["system"] for one in samples_in(tmp_path, None)] == ["b", "a"]


def test_folders_name_columns_of_files_with_readers_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "system=a").mkdir()
    (tmp_path / "system=a" / "a.json").write_text(json.dumps({"results": [{"query": "q", "response": "r"}]}))
    assert [one.known["system"] for one in samples_in(tmp_path, "ragchecker")] == ["a"]


def test_folders_name_columns_of_plain_rows(tmp_path: Path, spark: SparkSession) -> None:
    for name in ("a", "b [1]"):
        (tmp_path / f"sample_id={name}").mkdir()
        write_lines(tmp_path / f"sample_id={name}" / "a.jsonl", [{"premise_id": "1"}])
    rows = read_table(spark, str(tmp_path), ["premise_id", "sample_id"])[0].collect()
    assert sorted((row["premise_id"], row["sample_id"]) for row in rows) == [("1", "a"), ("1", "b [1]")]


@pytest.mark.parametrize("name", ["v [2]", "run{1}", "a*b?", "50% +#x,y", "é"])
def test_folders_that_look_like_globs_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    write_lines(tmp_path / name / "a [1].jsonl", [ROW])
    for path in (tmp_path / name, tmp_path / name / "a [1].jsonl", tmp_path / name / "*.jsonl", tmp_path / name / "**"):
        assert len(list(samples_in(path, None))) == 1


@pytest.mark.parametrize(("mark", "options"), [(";", AS_THEY_ARE), ("|", ReadOptions(delimiter="|"))])
def test_files_of_k_qa_may_have_another_delimiter(tmp_path: Path, mark: str, options: ReadOptions) -> None:
    row = {
        **dict.fromkeys(COLUMNS, "Entailment"),
        "category_x": MUST_HAVE,
        "Question": "Is honey old?",
        "answer": "It is, by far.",
    }
    path = tmp_path / "NLI_medical_annotator.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, row, delimiter=mark)
        writer.writeheader()
        writer.writerow(row)

    (sample,) = samples_in(path, "k_qa", options)

    assert (sample.known["query"], sample.known["response"]) == ("Is honey old?", "It is, by far.")
