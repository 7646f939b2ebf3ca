"""Test the samples of a worker from files and records, without Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.sample_files import HOSTILE, ROW, write_csv, write_lines, write_parquet
from untold.udfs.samples import file_records
from untold.udfs.samples.conversion import EITHER, REQUIRED, Sample, to_sample
from untold.udfs.samples.file_records import READERS, FileRecord, Unit, UnreadableFileError, json_kind
from untold.udfs.samples.values import merge_shapes, shape_of


def parse(path: str, kind: str) -> list[Sample]:
    return [to_sample(record, kind in ("csv", "parquet")) for record in READERS[kind](Unit(0, path, kind))]


def sample_of(**values: Any) -> Sample:
    return to_sample(FileRecord({**ROW, **values}), items_as_text=False)


AS_PYTHON = (
    'contexts is a Python list, not JSON; write the file again after df["contexts"] = df["contexts"].map(json.dumps)'
)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"query": None}, "query is null"),
        ({"query": ""}, "query is empty"),
        ({"query": " \n"}, "query is empty"),
        ({"query": {"a": 1}}, "query is not a text"),
        ({"response": None}, "response is null"),
        ({"response": ["r"]}, "response is not a text"),
        ({"contexts": None}, "contexts is null"),
        ({"contexts": " "}, "contexts is an empty text. Give [] for no contexts"),
        ({"contexts": '["a"'}, "contexts is not a JSON list"),
        ({"contexts": '[{"text": "a"'}, "contexts is not a JSON list"),
        ({"contexts": "['a', 'b']"}, AS_PYTHON),
        ({"contexts": '["it\'s", None]'}, AS_PYTHON),
        ({"contexts": "[{'id': '1', 'text': 'a'}]"}, AS_PYTHON),
        ({"contexts": "array(['a', 'b'], dtype=object)"}, AS_PYTHON),
        ({"contexts": "{'text': ['a']}"}, AS_PYTHON),
        ({"contexts": 3}, "contexts is not a list"),
        ({"contexts": {"id": "1", "text": "a"}}, "contexts is not a list"),
        ({"contexts": ["a", None]}, "context 2 is null"),
        ({"contexts": [{"id": "1"}]}, "context 1 has no text"),
        ({"contexts": [["a"]]}, "context 1 is neither text nor an object of id and text"),
        ({"contexts": ["a", {"id": "1", "text": "b"}]}, "contexts 1 and 2 have one id"),
        ({"query": None, "contexts": 3}, "query is null; contexts is not a list"),
    ],
)
def test_a_bad_row_has_an_error(values: dict[str, Any], error: str) -> None:
    assert sample_of(**values).error == error


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"contexts": None, "references": ["a"]}, None),
        ({"contexts": None, "references": "One. Two."}, None),
        ({"contexts": 3, "references": [{"text": "a"}]}, None),
        ({"contexts": None, "references": []}, "contexts is null"),
        ({"contexts": None, "references": None}, "contexts is null"),
        ({"contexts": None}, "contexts is null"),
        ({"contexts": []}, None),
        ({"contexts": None, "references": [None]}, "reference 1 is null"),
    ],
)
def test_references_can_replace_contexts(values: dict[str, Any], error: str | None) -> None:
    required = ("query", "response", EITHER)
    assert to_sample(FileRecord({**ROW, **values}), False, required, OPTIONAL).error == error
    # This does not apply if another part of the run reads the contexts
    both = to_sample(FileRecord({**ROW, **values}), False, (*required, "contexts"), OPTIONAL).error
    assert both is not None or values["contexts"] == []


OPTIONAL = ("query_id", "aspects", "references")


def optional_of(*required: str, as_text: bool = False, **values: Any) -> Sample:
    return to_sample(FileRecord({**ROW, **values}), as_text, (*REQUIRED, *required), OPTIONAL)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"aspects": "cost"}, "aspects is not a list"),
        ({"aspects": ["cost", None]}, "aspect 2 is null"),
        ({"aspects": [{"id": "1"}]}, "aspect 1 has no text"),
        ({"aspects": [["cost"]]}, "aspect 1 is neither text nor an object of id and text"),
        ({"aspects": [{"id": "2", "text": "a"}, "b"]}, "aspects 1 and 2 have one id"),
        ({"aspects": [{"text": "a", "labels": {"a": "yes"}}]}, "labels of aspect 1 are not texts"),
        ({"query": None, "aspects": 3}, "query is null; aspects is not a list"),
    ],
)
def test_invalid_aspects_have_an_error(values: dict[str, Any], error: str) -> None:
    sample = optional_of(**values)
    assert (sample.error, sample.rest["aspects"]) == (error, None)
    # If no metric reads the aspects, they are copied without a check and do not change the id
    carried = sample_of(**values)
    assert (carried.rest["aspects"], carried.content) == (values["aspects"], sample.content)


def test_optional_columns_have_one_form() -> None:
    given = ["cost", {"id": 7, "text": "safety", "labels": [True, "no", None], "weight": 2}]
    wanted = [
        {"id": "1", "text": "cost", "labels": None},
        {"id": "7", "text": "safety", "labels": ["true", "no", None]},
    ]
    sample = optional_of(aspects=given, query_id=2.0)
    assert (sample.error, sample.rest["aspects"], sample.rest["query_id"]) == (None, wanted, "2")
    assert optional_of(aspects=json.dumps(given), as_text=True, contexts='["a"]').rest["aspects"] == wanted
    assert optional_of(aspects="[", as_text=True, contexts='["a"]').error == "aspects is not a JSON list"
    assert optional_of(aspects=None).rest == {"aspects": None}
    assert optional_of().rest == {}
    assert optional_of("query_id", query_id="").error == "query_id is null"


def test_references_can_be_one_text_and_can_be_required() -> None:
    assert optional_of(references="One. Two.").rest["references"][0]["id"] is None
    given = ("[1] a", '["a", "b"]', '["a')
    of_text = {text: optional_of(references=text, as_text=True, contexts="[]") for text in given}
    assert [len(sample.rest["references"] or ()) for sample in of_text.values()] == [1, 2, 0]
    assert [sample.error for sample in of_text.values()] == [None, None, "references is not a JSON list"]
    assert optional_of("references").error == "references is null"
    assert optional_of("references", references=None).error == "references is null"
    assert optional_of("references", references=[]).error is None
    assert optional_of("references", references=["a", None]).error == "reference 2 is null"


def test_an_empty_response_and_no_contexts_are_valid() -> None:
    sample = sample_of(response="", contexts=[])

    assert sample.error is None
    assert (sample.known["response"], sample.known["contexts"]) == ("", [])


def test_contexts_without_ids_get_ids_by_position() -> None:
    contexts = ["a", {"id": 7, "text": "b"}, {"text": "c"}, {"id": None, "text": 4}, {"id": "", "text": ""}]

    found = sample_of(contexts=contexts).known["contexts"]

    assert [(context["id"], context["text"]) for context in found] == [
        ("1", "a"),
        ("7", "b"),
        ("3", "c"),
        ("4", "4"),
        ("5", ""),
    ]


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("one text", ["one text"]),
        ("[1] One, says the first.", ["[1] One, says the first."]),
        ("3", ["3"]),
        ('["a", "b"]', ["a", "b"]),
        ({"text": ["a", "b"]}, ["a", "b"]),
        ({"id": ["x", "y"], "text": ["a", "b"]}, ["a", "b"]),
        ('{"text": ["a"]}', ["a"]),
        ({"text": []}, []),
    ],
)
def test_contexts_may_be_one_text_or_an_object_of_lists(given: Any, texts: list[str]) -> None:
    sample = sample_of(contexts=given)

    assert sample.error is None
    assert [context["text"] for context in sample.known["contexts"]] == texts
    assert sample.content == sample_of(contexts=sample.known["contexts"]).content


def test_a_response_in_cited_sentences_is_one_text() -> None:
    sentences = [{"text": "One.", "citations": [0]}, {"text": "Two.", "citations": []}]

    assert sample_of(response=sentences).known["response"] == "One. Two."
    assert sample_of(response=[{"text": None}]).error == "response is not a text"


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
    found = to_sample(FileRecord({**absent, **dict(reversed(ROW.items())), "extra": None}), items_as_text=False)

    assert found.known["sample_id"] == sample_of().known["sample_id"]
    assert re.fullmatch("[0-9a-f]{32}", found.known["sample_id"])


@pytest.mark.parametrize(
    "other", [{"extra": 1}, {"label": "x"}, {"system": "x"}, {"contexts": ["b", "a"]}, {"query": "p"}]
)
def test_every_column_is_in_the_hash(other: dict[str, Any]) -> None:
    assert sample_of(**other).content != sample_of().content


def test_a_recorded_id_never_changes() -> None:
    """The outputs and stores of users contain such ids."""
    assert sample_of(extra={"b": 1.0, "a": [None, "é"]}).known["sample_id"] == "3fd1e0860a900b5b710deab1036177d4"


def test_numbers_that_are_equal_have_one_hash() -> None:
    assert sample_of(extra=1).content == sample_of(extra=1.0).content
    assert sample_of(extra={"a": 1, "b": None}).content == sample_of(extra={"a": 1.0}).content
    assert sample_of(extra=1).content != sample_of(extra=1.5).content


def test_rows_without_usable_contexts_keep_their_own_hash() -> None:
    assert len({sample_of(contexts=contexts).content for contexts in (None, 3, "['x", '["y', [None], ["a", None])}) == 6


def test_json_lines_skip_blank_lines_a_mark_and_repair_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lone = rb'{"query": "\ud800 \ud83d\ude00", "response": "r", "contexts": ["\udfff"]}'
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
    assert samples[0].known["contexts"] == [{"id": "1", "text": "\ufffd"}]
    assert [sample.error for sample in samples] == [None, "no JSON", "no JSON object", *["nested too deeply"] * 2]


@pytest.mark.parametrize("size", [1, 7, 40, 41, 42, 1000])
def test_json_lines_are_split_without_loss(tmp_path: Path, size: int) -> None:
    path = Path(write_lines(tmp_path / "a.jsonl", [{"query": "q" * n} for n in range(20)]))
    length = path.stat().st_size

    units = [Unit(0, str(path), "lines", start, min(size, length - start)) for start in range(0, length, size)]
    queries = [record.values["query"] for unit in units for record in READERS["lines"](unit)]

    assert queries == ["q" * n for n in range(20)]


def test_an_array_is_read_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_records, "CHUNK", 3)
    path = tmp_path / "a.json"
    path.write_text("\ufeff [" + json.dumps({"query": "x\ny", "n": 12345}) + " ,\n 123456, " + json.dumps(ROW) + "] \n")

    found = list(READERS["array"](Unit(0, str(path), "array")))

    assert [record.values for record in found] == [{"query": "x\ny", "n": 12345}, {}, ROW]
    assert [record.problem for record in found] == [None, "no JSON object", None]


@pytest.mark.parametrize("text", ["[{}", '[{"a": 1},', "[{} {}]", '[{"a" 1}]', "[{}] x", '[{"a": "b'])
def test_a_broken_array_is_a_problem_of_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)

    with pytest.raises(UnreadableFileError, match="array"):
        list(READERS["array"](Unit(0, str(tmp_path / "a.json"), "array")))


@pytest.mark.parametrize(
    ("text", "kind"),
    [('\ufeff \n [\n{"a": 1}]', "array"), ('[{"a": 1}]\n', "array"), ('["a"]\n{"a": 1}\n', "lines"), ("{}", "lines")],
)
def test_the_first_line_distinguishes_an_array_from_lines(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "a.json").write_text(text, "utf-8")

    assert json_kind(str(tmp_path / "a.json")) == kind


def test_empty_csv_cells_are_null_except_a_response(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "\ufeffsample_id,query,response,contexts,system,x\r\n"
        ',"a ""b"",\nc",,"[""d""]",,\r\n\r\nshort,row\r\n1,q,r,"[""no",s,y\r\n',
        newline="",
    )

    first, short, last = parse(str(path), "csv")

    assert (first.known["query"], first.known["response"], first.known["system"]) == ('a "b",\nc', "", None)
    assert first.rest == {"x": None}
    assert short.error == "2 cells where the header has 6"
    assert last.error == "contexts is not a JSON list"


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


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
def test_a_column_has_the_type_of_all_its_values(values: list[Any], shape: Any) -> None:
    found: Any = "null"
    for value in values:
        found = merge_shapes(found, shape_of(value))

    assert found == shape


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_not_text(tmp_path: Path, number: str) -> None:
    rows = [
        f'{{"sample_id": "{name}", "query": "q", "response": "r", "contexts": ["c"], "{name}": {number}}}'
        for name in ("query", "response", "system", "label", "sample_id", "contexts")
    ]
    query, response, system, label, named, contexts = parse(write_lines(tmp_path / "a.jsonl", rows), "lines")

    assert [one.error for one in (query, response, contexts)] == [
        f"{name} is null" for name in ("query", "response", "contexts")
    ]
    assert (system.known["system"], label.known["label"]) == (None, None)
    assert len(named.known["sample_id"]) == 32
    assert [one.error for one in (system, label, named)] == [None] * 3


def test_rows_without_an_id_that_data_frames_wrote_are_two_samples(tmp_path: Path) -> None:
    rows = [json.dumps({**ROW, "query": query, "sample_id": float("nan")}) for query in ("a", "b")]
    assert len({one.known["sample_id"] for one in parse(write_lines(tmp_path / "a.jsonl", rows), "lines")}) == 2


def test_a_text_of_csv_does_not_change(tmp_path: Path) -> None:
    (sample,) = parse(write_csv(tmp_path / "a.csv", [{**ROW, "response": "NaN"}]), "csv")
    assert sample.known["response"] == "NaN"


def test_ids_of_samples_with_nan_in_a_carried_column_stay(tmp_path: Path) -> None:
    (sample,) = parse(write_lines(tmp_path / "a.jsonl", [json.dumps({**ROW, "n": float("nan")})]), "lines")
    assert sample.known["sample_id"] == "5e76259b6e37fb421083a42e896d2f32"


@pytest.mark.parametrize(
    "cell",
    [
        "[Document(metadata={'source': 'a.pdf'}, page_content='The bridge.'), Document(page_content='b')]",
        "[Document(page_content='cut",
        "page_content='The bridge.' metadata={'source': 'a.pdf'}",
        "[NodeWithScore(node=TextNode(id_='1', text='a'), score=0.5)]",
        "[<langchain.Document object at 0x7f>]",
        *("('a', 'b')", "('a',)", "(\"it's\", 'b')", "('a', 'cut", "{'a', 'b'}", "['a' 'b']", "['a'\n 'b']"),
        *("['a', nan]", "deque(['a'])", "frozenset({'a'})", "[array(['a'], dtype=object)]", "{'page_content': 'a'}"),
        "\"['a', 'b']\"",
    ],
)
@pytest.mark.parametrize("name", ["contexts", "references", "ground_truth"])
def test_what_python_wrote_is_an_error_of_the_row(cell: str, name: str) -> None:
    values = {"query": "q", "response": "r", "contexts": ["c"], name: cell}
    sample = to_sample(FileRecord(values), False, REQUIRED, ("references", "ground_truth"))
    assert re.fullmatch(
        rf"{name} is a Python list( of objects)?, not JSON; write the file again after df.*", sample.error or ""
    )


@pytest.mark.parametrize(
    "text",
    [
        *(
            "('A', 'B') are its names.",
            "(see 'a', 'b')",
            "[1] One.",
            "[text](http://a)",
            "[Smith(2003)] says so.",
            '"Yes."',
        ),
        *("foo(x='a')", "f(x) = ('a', 'b')", "'a', 'b'", "[foo('a')](url)", '"[1] One."'),
    ],
)
def test_prose_with_brackets_is_one_context(text: str) -> None:
    assert [one["text"] for one in sample_of(contexts=text).known["contexts"]] == [text]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_json_in_json_is_read(times: int) -> None:
    cell = '["a", {"id": "x", "text": "b"}]'
    for _ in range(times):
        cell = json.dumps(cell)
    assert [one["text"] for one in sample_of(contexts=cell).known["contexts"]] == ["a", "b"]


@pytest.mark.parametrize("name", ["page_content", "pageContent", "content", "passage"])
def test_the_text_of_a_context_may_have_another_name(name: str) -> None:
    contexts = [{name: "a", "metadata": {"source": "a.pdf"}}, {"id": 0, name: "b"}]
    assert [(one["id"], one["text"]) for one in sample_of(contexts=contexts).known["contexts"]] == [
        ("1", "a"),
        ("0", "b"),
    ]


def test_a_context_without_a_known_text_names_the_column_to_rename() -> None:
    error = sample_of(contexts=[{"id": "1", "passage_text": "a"}]).error
    assert error == "context 1 has no text; rename `passage_text` to `text`"
    assert sample_of(contexts=[{"content": "a", "body": "b"}]).error == (
        "context 1 has no text; rename `content` or `body` to `text`"
    )


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (bytes.fromhex("d67c5028049e499d8ab41d39abf4ea57"), "d67c5028-049e-499d-8ab4-1d39abf4ea57"),
        (bytes(16), "00000000-0000-0000-0000-000000000000"),
        (b"\xff\x00", "ff00"),
        ("é-1".encode(), "é-1"),
        (b"sixteen-letters!", "sixteen-letters!"),
    ],
)
def test_bytes_are_an_id(given: bytes, shown: str) -> None:
    sample = sample_of(sample_id=given, system=given, contexts=[{"id": given, "text": "c"}])
    assert [sample.known["sample_id"], sample.known["system"], sample.known["contexts"][0]["id"]] == [shown] * 3


@pytest.mark.parametrize("kind", [pa.binary(16), pa.binary(), pa.uuid()])
def test_uuids_of_parquet_are_text(tmp_path: Path, kind: pa.DataType) -> None:
    raw = bytes.fromhex("d67c5028049e499d8ab41d39abf4ea57")
    table = pa.table({"sample_id": pa.array([raw], kind), "query": ["q"], "response": ["r"], "contexts": [["c"]]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert parse(str(tmp_path / "a.parquet"), "parquet")[0].known["sample_id"] == "d67c5028-049e-499d-8ab4-1d39abf4ea57"
