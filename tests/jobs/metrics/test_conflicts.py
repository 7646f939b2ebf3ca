"""Compare the conflicts of hundreds of worlds with brute force: relations, statements, measures and bounds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.fakes import expected_qa as of_qa
from tests.fakes.expected import Options, expected_nli
from tests.fakes.expected_conflicts import ExpectedConflicts, expected_conflicts
from tests.fakes.facts import roll
from tests.fakes.world import World, qa_worlds, worlds
from tests.jobs.metrics.scripted import Row, ScriptedTools, say_as_world, write_tables
from tests.jobs.studies import wiki_row
from tests.runs.harness import read_table
from tests.runs.worlds import (
    Concluded,
    assert_conflicts_listed,
    assert_leaning,
    assert_partly_judged,
    expected_statements,
    rows_by_sample,
    statements_of,
    with_kinds,
)
from tests.sample_files import CONFLICTBANK_ROW, write_lines
from untold.jobs.inputs.samples import read_samples
from untold.jobs.metrics import e2e, nli, qa
from untold.jobs.metrics.base import Tables
from untold.jobs.metrics.condensing import Condenser
from untold.jobs.metrics.graphs import SIDES
from untold.jobs.run.folders import Workspace
from untold.jobs.run.session import spark_schema
from untold.jobs.run_tables import RunTables
from untold.jobs.settings.model import Settings
from untold.jobs.summary.aggregate import count_leaning, leaning_rows
from untold.jobs.tables import SAMPLES
from untold.udfs.samples.conversion import normalise_contexts
from untold.udfs.stages.e2e import parse_conflicts

pytestmark = pytest.mark.gate

WORLDS, JUDGE = 200, "noisy"
# Stages with lost requests lose one of this number
LOST = 40
COVERAGES = ("both", "first", "second", "neither")
Score = Callable[..., Tables]


def is_lost(stages: Sequence[str]) -> Callable[[str, Row], bool]:
    return lambda stage, row: stage in stages and roll(json.dumps(row, sort_keys=True)) % LOST == 0


def scored(
    spark: SparkSession, folder: Path, score: Score, samples: Sequence[Row], losing: Sequence[str], **settings: Any
) -> ScriptedTools:
    """Write the tables of samples and the table source_preference to `out` in the folder."""
    schema = spark_schema(SAMPLES)
    read = [{**one, "contexts": normalise_contexts(list(one["contexts"]))} for one in samples]
    frame = spark.createDataFrame([[one.get(name) for name in schema.names] for one in read], schema).cache()
    given = Settings.model_validate(settings)
    condenser = Condenser(given, Workspace(spark, str(folder / "work")))
    tools = ScriptedTools(spark, say_as_world(JUDGE, is_lost(losing)), samples=frame, condenser=condenser)
    tables = score(frame, tools, given)
    write_tables({**tables, "samples": frame}, folder / "out")
    leaning = leaning_rows(count_leaning(RunTables(str(folder / "out"), {})), seed=0)
    write_tables({"source_preference": spark.createDataFrame(leaning)}, folder / "out")
    return tools


def samples_of(make: Callable[..., list[World]]) -> list[Row]:
    """Return two responses to the query of each world. Half of the samples have contexts with ids and kinds."""
    known = [*make(WORLDS // 2, JUDGE), *make(WORLDS // 2, JUDGE, ids=True, first=WORLDS // 2)]
    return [with_kinds(sample) for world in known for sample in world.samples(2)]


def assert_all(output: Path, samples: Sequence[Row], relations: Any, expect: Callable[..., Concluded]) -> None:
    """Assert that all tables are equal to the tables of brute force with the known relations."""
    assert_partly_judged(output, samples, relations, expect)
    expected = {one["sample_id"]: expect(one, relations.get(one["sample_id"], {})) for one in samples}
    assert statements_of(output) == expected_statements(expected)
    assert_leaning(output, samples, expected)
    statuses = Counter(one.status for one in expected.values())
    assert min(statuses[name] for name in ("ok", "partial", "no_statements")) > 10, statuses
    coverage = Counter(row["coverage"] for row in read_table(output, "conflicts"))
    assert min(coverage[name] for name in COVERAGES) > 20, coverage


@pytest.mark.slow
def test_nli_equals_brute_force(spark: SparkSession, tmp_path: Path) -> None:
    samples, options = samples_of(worlds), Options(judge=JUDGE, top=None)
    tools = scored(spark, tmp_path, nli.score, samples, ["classify_relation"])
    relations: dict[str, dict[Any, str | None]] = {}
    lost = is_lost(["classify_relation"])
    for sample in samples:
        pairs = expected_nli(sample, options).relations
        unheard = [(p, h) for p, h in pairs if lost("classify_relation", {"premise": p, "hypothesis": h})]
        relations[sample["sample_id"]] = {**pairs, **dict.fromkeys(unheard)}
    output = tmp_path / "out"
    texts = {row["atom_id"]: row["text"] for row in read_table(output, "atoms")}
    found = {
        name: {(texts[row["premise_id"]], texts[row["hypothesis_id"]]): row["relation"] for row in rows}
        for name, rows in rows_by_sample(output, "relations").items()
    }
    assert found == {name: pairs for name, pairs in relations.items() if pairs}
    assert_all(output, samples, relations, lambda sample, answered: expected_nli(sample, options, answered))
    asked = tools.asked["classify_relation"]
    distinct = {pair for pairs in relations.values() for pair in pairs}
    assert sorted((row["premise"], row["hypothesis"]) for row in asked) == sorted(distinct)


@pytest.mark.slow
def test_qa_equals_brute_force(spark: SparkSession, tmp_path: Path) -> None:
    samples = samples_of(qa_worlds)
    options = of_qa.Options(judge=JUDGE, top=None, quantity_tool="none")
    tools = scored(spark, tmp_path, qa.score, samples, ["compare_answers"], qa={"quantity_tool": "none"})
    relations: dict[str, dict[Any, str | None]] = {}
    lost, names = is_lost(["compare_answers"]), ("question", "first", "second")
    for sample in samples:
        pairs = of_qa.expected_qa(sample, options).relations
        unheard = [one for one in pairs if lost("compare_answers", dict(zip(names, one, strict=True)))]
        relations[sample["sample_id"]] = {**pairs, **dict.fromkeys(unheard)}
    output = tmp_path / "out"
    assert_all(output, samples, relations, lambda sample, answered: of_qa.expected_qa(sample, options, answered))
    asked = Counter({stage: len(rows) for stage, rows in tools.asked.items()})
    assert asked == of_qa.count_requests(samples, options)


@pytest.fixture(scope="module")
def expected_of_e2e() -> tuple[list[Row], dict[str, ExpectedConflicts], Counter[str]]:
    """Return the samples, the expected results with lost lists of both stages, and the distinct requests."""
    samples = samples_of(worlds)
    asked: set[tuple[str, str]] = set()
    lost = is_lost((e2e.LIST, e2e.COVER))

    def ask(stage: str, **variables: Any) -> bool:
        asked.add((stage, json.dumps(variables, sort_keys=True)))
        return not lost(stage, variables)

    expected = {one["sample_id"]: expected_conflicts(one, JUDGE, ask) for one in samples}
    return samples, expected, Counter(stage for stage, _ in asked)


@pytest.mark.slow
def test_e2e_equals_brute_force(
    spark: SparkSession, tmp_path: Path, expected_of_e2e: tuple[list[Row], dict[str, ExpectedConflicts], Counter[str]]
) -> None:
    samples, expected, requests = expected_of_e2e
    tools = scored(spark, tmp_path, e2e.score, samples, (e2e.LIST, e2e.COVER), e2e={"conflicts": True})
    assert_conflicts_listed(tmp_path / "out", expected)
    assert Counter({stage: len(rows) for stage, rows in tools.asked.items()}) == requests
    # A blank response covers nothing, so there is no request
    assert all(row["response"].strip() for row in tools.asked[e2e.COVER])
    assert any(not sample["response"].strip() and expected[sample["sample_id"]].conflicts for sample in samples)
    coverage = Counter(row[4] for one in expected.values() for row in one.rows)
    assert min(coverage[name] for name in (*COVERAGES[1:], None)) > 10, coverage
    assert coverage["both"]
    assert Counter((one.known, one.whole) for one in expected.values()).keys() >= {(False, True), (True, False)}


def test_pairs_of_no_shown_context_count_as_dropped(spark: SparkSession, tmp_path: Path) -> None:
    sample = {
        "sample_id": "s",
        "query": "q",
        "response": "It stands. It is red.",
        "contexts": ["It stands.", "It fell."],
    }
    side = '{"first": "It stands.", "first_sources": [1], "second": "It fell.", "second_sources": [%s]}'
    script = say_as_world(JUDGE, lambda stage, row: False)

    def listed(row: Row) -> Row:
        parsed: Row = parse_conflicts("\n".join(side % number for number in (2, 9, "")), row)
        return parsed

    schema = spark_schema(SAMPLES)
    read = {**sample, "contexts": normalise_contexts(sample["contexts"])}
    frame = spark.createDataFrame([[read.get(name) for name in schema.names]], schema)
    tools = ScriptedTools(spark, {**script, e2e.LIST: listed}, samples=frame)
    write_tables(e2e.score(frame, tools, Settings.model_validate({"e2e": {"conflicts": True}})), tmp_path)
    assert [row["dropped"] for row in read_table(tmp_path, "scores")] == [2]
    assert [row["coverage"] for row in read_table(tmp_path, "conflicts")] == ["first"]


# By format: the rows, a function that returns True if a response covers a context, and the followed sides by kind
DATA_SETS: dict[str, tuple[list[Row], Callable[[str, str], bool], dict[str, tuple[int, int]]]] = {
    # A response states the fact, or the contradiction in the other three contexts
    "conflictbank": (
        [{**CONFLICTBANK_ROW, "question": name} for name in "pq"],
        lambda text, response: text[0] == response[-2],
        {"default": (6, 12), "misinformation": (2, 4), "temporal": (2, 4), "semantic": (2, 4)},
    ),
    # The first answer follows the first context, the second answer the other context, and the last answer both
    "wikicontradict": (
        [wiki_row(number, "IPPPC") for number in (0, 2)],
        lambda text, response: response[-1] == "4" or text[8] == response[-1],
        {"context1": (2, 4), "context2": (2, 4)},
    ),
}


@pytest.mark.parametrize("format", DATA_SETS)
def test_data_sets_of_conflicts_have_preferences_by_kind(spark: SparkSession, tmp_path: Path, format: str) -> None:
    rows, conveys, expected = DATA_SETS[format]
    samples = read_samples(spark, write_lines(tmp_path / "rows.jsonl", rows), format=format).samples
    script = {
        "summarise_context": lambda row: {"summary": row["text"]},
        "evaluate_coverage": lambda row: {"statements": [], "dropped": 0},
        e2e.LIST: lambda row: {"conflicts": list(_against_the_first(row["contexts"])), "dropped": 0},
        e2e.COVER: lambda row: {"covered": [conveys(text, row["response"]) for text in row["statements"]]},
    }
    tools = ScriptedTools(spark, script, samples=samples)
    tables = e2e.score(samples, tools, Settings.model_validate({"e2e": {"conflicts": True}}))
    write_tables({"conflicts": tables["conflicts"], "samples": samples}, tmp_path)
    leaning = leaning_rows(count_leaning(RunTables(str(tmp_path), {})), seed=0)
    found = {
        row["source"]: (row["followed"], row["n"]) for row in leaning if (row["by"], row["system"]) == ("kind", None)
    }
    assert found == expected


def _against_the_first(contexts: Sequence[str]) -> Iterator[Row]:
    for number, text in enumerate(contexts[1:], start=2):
        sides = ((contexts[0], 1), (text, number))
        yield {name: {"text": said, "sources": [n]} for name, (said, n) in zip(SIDES, sides, strict=True)}
