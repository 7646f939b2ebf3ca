"""Test `untold generate` without a model: the questions in files, the systems, their settings, and the table rows."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.fakes.model_server import ModelServer
from tests.runs.harness import PROMPTS
from tests.sample_files import write_csv, write_lines, write_parquet
from untold.jobs.cli.main import main
from untold.jobs.generate import GenerateRequest, generate, make_failures, make_samples
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inputs.questions import read_questions
from untold.jobs.inputs.samples import SampleError, Samples
from untold.jobs.inputs.sampling import Draw
from untold.jobs.run.terminal import Display
from untold.jobs.settings.loading import Resolved, SystemsError, load_settings, load_systems
from untold.jobs.settings.model import Settings, decoding_for
from untold.udfs.llm.templates import compile_prompt

QUESTION = {"query": "q", "contexts": ["a", {"id": "x", "text": "b"}]}
SERVER = ("llm.base_url=http://h/v1", "llm.model=m")


def rows_of(found: Samples) -> dict[str, dict[str, Any]]:
    return {row["sample_id"]: row.asDict(recursive=True) for row in found.samples.collect()}


def test_questions_are_samples_without_the_columns_of_answers(spark: SparkSession, tmp_path: Path) -> None:
    answered = [{**QUESTION, "question_id": "1", "sample_id": f"1:{name}", "n": 1} for name in ("a", "b")]
    answered = [
        {**row, "response": row["sample_id"], "system": row["sample_id"], "label": "Correct"} for row in answered
    ]
    path = write_lines(tmp_path / "a.jsonl", [*answered, {**QUESTION, "sample_id": 2}, {**QUESTION, "Question_ID": 3}])

    found, notes = read_questions(spark, path)

    rows = rows_of(found)
    (hashed,) = rows.keys() - {"1", "2"}
    assert len(hashed) == 32
    assert rows["1"] == {
        "sample_id": "1",
        "query": "q",
        "contexts": [{"id": "1", "text": "a", "kind": None}, {"id": "x", "text": "b", "kind": None}],
        "Question_ID_2": None,
        "n": 1,
    }
    assert (found.row_count, found.duplicates, found.invalid_count) == (3, 1, 0)
    assert notes == [
        f"{path}: `response`, `system`, `label` skipped, because columns of answers are not part of a question"
    ]


def test_an_id_of_a_question_does_not_depend_on_its_answers_or_its_file(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{**QUESTION, "contexts": ["a", "b"], "n": "1"}]
    paths = [
        write_lines(tmp_path / "a.jsonl", rows),
        write_lines(tmp_path / "b.jsonl", [{**rows[0], "response": "r", "label": None}]),
        write_csv(tmp_path / "c.csv", rows),
        write_parquet(tmp_path / "d.parquet", [{**rows[0], "question_id": None}]),
    ]

    found = [read_questions(spark, path) for path in paths]

    assert len({name for one, _ in found for name in rows_of(one)}) == 1
    assert [notes != [] for _, notes in found] == [False, True, False, False]
    assert {tuple(one.samples.columns) for one, _ in found} == {("sample_id", "query", "contexts", "n")}


def test_invalid_questions_and_missing_columns_are_named(spark: SparkSession, tmp_path: Path) -> None:
    rows = [QUESTION, {**QUESTION, "query": " "}, {"query": "p", "contexts": 3}]
    path = write_lines(tmp_path / "a.jsonl", rows)

    found, _ = read_questions(spark, path)

    assert found.first_invalid == [f"{path} row 2: query is empty", f"{path} row 3: contexts is not a list"]
    with pytest.raises(SampleError, match=r"no column `query`.*, and no column `contexts`"):
        read_questions(spark, write_lines(tmp_path / "b.jsonl", [{"response": "r"}]))


ELI5 = [
    {"q_id": f"q{n}", "title": f"Why {n}?", "selftext": "More.", "category": "Other", "answers": {}} for n in range(6)
]


def write_eli5(folder: Path, contexts: list[Any], questions: list[Any] = ELI5) -> tuple[str, str]:
    path = folder / "questions.json.gz"
    path.write_bytes(gzip.compress(json.dumps(questions).encode()))
    return str(path), write_lines(folder / "contexts.jsonl", contexts)


def test_contexts_join_the_questions_of_eli5_category(spark: SparkSession, tmp_path: Path) -> None:
    given = [{"q_id": name, "contexts": ["a", "b"], "retriever": "bm25"} for name in ("q5", "q0", "q4", "strange")]
    path, contexts = write_eli5(tmp_path, [*given, {"q_id": "q2", "contexts": None}, {"contexts": ["a"]}])

    found, notes = read_questions(spark, path, contexts=contexts)

    rows = rows_of(found)
    assert sorted(rows) == ["q0", "q2", "q4", "q5"]
    assert rows["q4"] == {
        "sample_id": "q4",
        "query": "Why 4?",
        "contexts": [{"id": "1", "text": "a", "kind": None}, {"id": "2", "text": "b", "kind": None}],
        "category": "Other",
        "selftext": "More.",
    }
    assert notes == [
        f"2 of 6 questions skipped (no contexts in {contexts})",
        f"2 of 6 rows of {contexts} skipped (no question in {path})",
    ]
    assert [row.asDict() for row in found.invalid.collect()] == [
        {"sample_id": "q2", "error": f"{contexts} row 5: contexts is null"}
    ]
    assert (found.row_count, found.invalid_count) == (4, 1)


def test_a_limit_counts_questions_that_have_contexts(spark: SparkSession, tmp_path: Path) -> None:
    path, contexts = write_eli5(tmp_path, [{"q_id": f"q{n}", "contexts": []} for n in (5, 3, 1)])

    found, _ = read_questions(spark, path, contexts=contexts, limit=2)

    assert sorted(rows_of(found)) == ["q1", "q3"]
    assert found.row_count == 2


@pytest.mark.gate
def test_files_of_questions_and_contexts_that_do_not_fit_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path, contexts = write_eli5(tmp_path, [{"q_id": "Q1", "contexts": ["a"]}])

    with pytest.raises(SampleError, match=r"has no contexts for the questions of .*\. Check their q_id"):
        read_questions(spark, path, contexts=contexts)
    with pytest.raises(SampleError, match="does not exist"):
        read_questions(spark, path, contexts=str(tmp_path / "none.jsonl"))
    write_eli5(tmp_path, [{"q_id": "q1", "contexts": [text]} for text in "ab"])
    with pytest.raises(SampleError, match="sample_id `q1` has two contents"):
        read_questions(spark, path, contexts=contexts)


@pytest.mark.gate
def test_the_questions_of_eli5_category_are_read(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    contexts = write_lines(tmp_path / "contexts.jsonl", [{"q_id": "5lcm18", "contexts": ["a"]}])

    found, notes = read_questions(spark, str(data / "eli5_category" / "eli5-category-test.json.gz"), contexts=contexts)

    assert notes == [f"5,410 of 5,411 questions skipped (no contexts in {contexts})"]
    assert rows_of(found)["5lcm18"]["query"] == "Why do old games running on new hardware still have technical issues?"


def test_topics_of_the_web_track_are_questions_with_aspects_and_without_contexts(
    spark: SparkSession, data: Path
) -> None:
    found, notes = read_questions(spark, str(data / "trec_web"), format="trec_web", limit=3)

    rows = rows_of(found)
    assert (notes, list(rows)) == ([], ["1", "10", "100"])
    assert rows["1"]["query"].startswith("Find information on President Barack Obama")
    assert rows["1"]["contexts"] == []
    assert [aspect["id"] for aspect in rows["1"]["aspects"]] == ["1", "2", "3"]
    assert (rows["1"]["query_id"], rows["1"]["topic"]) == ("1", "obama family tree")


def test_a_system_without_contexts_has_no_context_in_its_prompt() -> None:
    stage = bind_stage("generate_answer", Settings())
    prompt = compile_prompt(stage.template, api="chat", name=stage.name)
    known, nothing, given = (
        [turn["content"] for turn in prompt.messages({"query": "Why?", "contexts": contexts})]
        for contexts in (None, [], ["It is so."])
    )

    assert "from what you know" in known[0]
    assert not any("context" in turn for turn in known)
    # An empty list of contexts does not permit the model to add facts that are not in a context
    assert nothing[:-1] == given[:-1] != known[:-1]


def load(folder: Path, text: str, *overrides: str, environ: Mapping[str, str] | None = None) -> dict[str, Resolved]:
    path = folder / "systems.yaml"
    path.write_text(text, encoding="utf-8")
    return load_systems(
        str(path),
        lambda system: load_settings(
            None, overrides, None, environ or {}, system=system, local_installed=lambda: False
        ),
    )


def test_settings_of_a_system_have_priority_over_the_run(tmp_path: Path) -> None:
    text = "b: {model: m2, temperature: null, extra_body: {reasoning_effort: high}}\na:\nc: {max_tokens: 9}"
    run = (*SERVER, "llm.extra_body.seed=1", "stages.generate_answer.temperature=0.5", "stages.generate_answer.model=s")

    systems = load(tmp_path, text, *run)

    assert list(systems) == ["a", "b", "c"]
    decoding = {name: decoding_for(one.settings, "generate_answer") for name, one in systems.items()}
    assert [(one.model, one.temperature, one.max_tokens) for one in decoding.values()] == [
        ("s", 0.5, 4096),
        ("m2", None, 4096),
        ("s", 0.5, 9),
    ]
    assert decoding["b"].extra_body == {"seed": 1, "reasoning_effort": "high"}


def test_a_system_with_an_endpoint_ignores_the_endpoint_of_the_run(tmp_path: Path) -> None:
    run = (*SERVER, "llm.api_key_env=OWN_KEY", "llm.timeout_seconds=7", "llm.price_per_million_prompt_tokens=3")

    systems = load(tmp_path, "own: {}\nother: {endpoint: vllm, model: x}", *run)

    other, own = (systems[name].settings.llm for name in ("other", "own"))
    assert (other.base_url, other.model, other.api_key_env) == ("http://localhost:8000/v1", "x", None)
    assert (other.timeout_seconds, other.price_per_million_prompt_tokens) == (7, None)
    assert (own.base_url, own.model, own.api_key_env) == ("http://h/v1", "m", "OWN_KEY")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a: {modle: m}",
            ["llm.modle=m (PATH system a): no such setting; the nearest is llm.model (a string or null)"],
        ),
        (
            "a:\n  temperature: -1\nb:\n  stages: {}",
            [
                "llm.temperature=-1 (PATH system a): must be a number >= 0 or null",
                "llm.stages (PATH system b): no such setting; the nearest is llm.",
            ],
        ),
        ("a: 5", ["llm=5 (PATH system a): must be a mapping of settings"]),
        ("a: {endpoint: openai}", ["PATH system a: OPENAI_API_KEY: not set in the environment"]),
        ("a: {}\na: {}", ["PATH line 2: cannot be read: the key a is given twice in its mapping"]),
        ("[a]", ["the file (PATH): must be a mapping: the name of each system"]),
        ("", ["the file (PATH): must be a mapping: the name of each system"]),
        ("a: [", ["PATH line 1: not valid YAML"]),
        ("qwen:7b: {}", ["PATH: `qwen:7b` cannot name a system: give text without a colon"]),
        ("' ': {}", ["PATH: `` cannot name a system"]),
        ("a: {extra_body: {model: x}}", ["llm.extra_body (PATH system a): must be a mapping without model"]),
    ],
)
def test_what_is_wrong_with_a_file_of_systems_is_named(tmp_path: Path, text: str, expected: list[str]) -> None:
    with pytest.raises(SystemsError) as raised:
        load(tmp_path, text, *SERVER)

    lines = str(raised.value).splitlines()
    starts = [line.replace("PATH", str(tmp_path / "systems.yaml")) for line in expected]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * len(lines), lines


def test_a_system_without_an_endpoint_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(SystemsError, match=r"systems\.yaml system a: no endpoint is set. Set OPENAI_API_KEY"):
        load(tmp_path, "a: {}")
    with pytest.raises(SystemsError, match=r"none\.yaml cannot be read \(No such file"):
        load_systems(str(tmp_path / "none.yaml"), lambda system: pytest.fail("nothing to load"))


def test_systems_that_would_share_every_answer_are_refused_before_any_call(tmp_path: Path) -> None:
    with ModelServer() as server:
        run = (f"llm.base_url={server.base_url}", "llm.model=m", f"prompts_dir={PROMPTS}")
        systems = load(tmp_path, "a: {}\nb: {base_url: 'http://elsewhere/v1'}\nc: {temperature: 1}", *run)
        request = GenerateRequest(
            input=str(tmp_path / "none.jsonl"),
            output=str(tmp_path / "out"),
            settings=systems["a"].settings,
            systems=systems,
        )
        with pytest.raises(SystemsError, match="systems a and b have the same model, decoding and template"):
            generate(request, Display())
        assert server.count() == 0


ANSWERS = "sample_id string, request_id string, answer string, error_type string, error string"


def test_failed_and_unsent_requests_are_not_answers(spark: SparkSession) -> None:
    columns = "sample_id string, query string, `a.b``` int"
    plain = spark.createDataFrame([(name, "q", 1) for name in "wxyz"], columns)
    questions = plain.selectExpr("sample_id", "query", "array(struct('1' as id, 't' as text)) as contexts", "`a.b```")
    answers = spark.createDataFrame(
        [
            ("y", "r1", "two", None, None),
            ("x", "r0", "", None, None),
            ("z", "r2", None, "http_400", "HTTP 400"),
            ("w", "r3", None, "unasked", None),
        ],
        ANSWERS,
    )
    invalid = spark.createDataFrame([("bad:row", "file row 3: query is null")], "sample_id string, error string")

    samples = make_samples(questions, answers, "s").orderBy("sample_id").collect()
    failures = make_failures(answers, invalid, "s").orderBy("sample_id").collect()

    assert [tuple(row)[:3] + tuple(row)[4:] for row in samples] == [
        ("x:s", "q", "", "s", "x", 1),
        ("y:s", "q", "two", "s", "y", 1),
    ]
    assert [tuple(row) for row in failures] == [
        ("bad:row:s", None, "input", None, "invalid_input", "file row 3: query is null"),
        ("z:s", None, "generate_answer", "r2", "http_400", "HTTP 400"),
    ]


@pytest.mark.parametrize(
    "flags",
    [("--format", "eli5_category"), ("--contexts", "c.jsonl"), ("--format", "trec_web", "--contexts", "c.jsonl")],
)
def test_a_format_and_contexts_go_together(capsys: pytest.CaptureFixture[str], flags: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["generate", "--input", "a", "--output", "b", "--systems", "c", *flags])

    assert raised.value.code == 2
    assert "--format eli5_category and --contexts go together" in capsys.readouterr().err


def test_questions_of_a_known_data_set_bring_their_contexts_and_references(spark: SparkSession, tmp_path: Path) -> None:
    answer = {"answer_text": "Marigold", "aid": "a0", "proof": [{"proof_text": "Osk built the Marigold."}]}
    path = write_lines(tmp_path / "a.jsonl", [{"qid": "7", "question_text": "Which boat?", "answer_list": [answer]}])
    (found,) = read_questions(spark, path, format="qampari")[0].samples.collect()
    assert (found["sample_id"], found["query"]) == ("7", "Which boat?")
    assert [context["text"] for context in found["contexts"]] == ["Marigold: Osk built the Marigold."]
    assert [one.asDict() for one in found["references"]] == [
        dict.fromkeys(("weight", "labels", "covered_by", "importance"))
        | {"id": "a0", "anchor": "Marigold", "text": "Osk built the Marigold."}
    ]
    prompts = write_lines(tmp_path / "b.jsonl", [{"prompt": "What is rain?", "canary": "c"}])
    (prompt,) = read_questions(spark, prompts, format="longfact")[0].samples.collect()
    assert (prompt["query"], prompt["contexts"]) == ("What is rain?", [])
    with pytest.raises(SampleError, match="no column `prompt`"):
        read_questions(spark, path, format="longfact")


def write_longfact(folder: Path, topics: Mapping[str, int]) -> str:
    """Write a file of LongFact per topic, with that number of prompts."""
    (folder / "longfact").mkdir()
    for topic, count in topics.items():
        rows = [{"prompt": f"What is {topic} {number}?", "canary": "c"} for number in range(count)]
        write_lines(folder / "longfact" / f"longfact-concepts_{topic}.jsonl", rows)
    return str(folder / "longfact")


def test_prompts_of_longfact_keep_the_topic_of_their_row_or_file(spark: SparkSession, tmp_path: Path) -> None:
    path = write_longfact(tmp_path, {"US-foreign-policy": 1, "rain": 1})
    write_lines(tmp_path / "longfact" / "more.jsonl", [{"prompt": "a", "topic": "snow"}, {"prompt": "b"}])
    rows = rows_of(read_questions(spark, path, format="longfact")[0]).values()
    assert {row["query"]: row["topic"] for row in rows} == {
        "What is US-foreign-policy 0?": "US-foreign-policy",
        "What is rain 0?": "rain",
        "a": "snow",
        "b": None,
    }


def test_a_draw_of_questions_has_its_share_of_each_topic(spark: SparkSession, tmp_path: Path) -> None:
    path = write_longfact(tmp_path, {"law": 20, "rain": 10, "snow": 1})
    found, _ = read_questions(spark, path, format="longfact", draw=Draw(8, 1, ("topic",)))
    assert Counter(row["topic"] for row in rows_of(found).values()) == {"law": 5, "rain": 2, "snow": 1}
    with pytest.raises(SampleError, match="stratify: no column `topics` \\(did you mean `topic`"):
        read_questions(spark, path, format="longfact", draw=Draw(8, 1, ("topics",)))


@pytest.mark.gate
def test_a_draw_of_eli5_category_has_its_share_of_each_category(spark: SparkSession, tmp_path: Path) -> None:
    questions = [{**row, "category": "Law" if row["q_id"] == "q5" else "Other"} for row in ELI5]
    path, contexts = write_eli5(tmp_path, [{"q_id": f"q{n}", "contexts": ["a"]} for n in range(6)], questions)
    found, _ = read_questions(spark, path, contexts=contexts, draw=Draw(3, 1, ("category",)))
    assert (found.row_count, Counter(row["category"] for row in rows_of(found).values())) == (3, {"Law": 1, "Other": 2})
    with pytest.raises(SampleError, match="stratify: no column `kind`"):
        read_questions(spark, path, contexts=contexts, draw=Draw(3, 1, ("kind",)))


@pytest.mark.parametrize("name", ["qampari", "romqa"])
def test_questions_of_lists_are_drawn_by_stratum(spark: SparkSession, tmp_path: Path, name: str) -> None:
    rows = {
        "qampari": [{"qid": f"q-{n}", "question_text": f"Which {n % 2}?", "answer_list": []} for n in range(8)],
        "romqa": [{"id": f"q-{n}", "question": f"Which {n % 2}?", "candidates": []} for n in range(8)],
    }
    path = write_lines(tmp_path / "a.jsonl", rows[name])
    found, _ = read_questions(spark, path, format=name, draw=Draw(4, 1, ("query",)))
    assert Counter(row["query"] for row in rows_of(found).values()) == {"Which 0?": 2, "Which 1?": 2}
