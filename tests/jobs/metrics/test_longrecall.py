"""Test the metric longrecall on Spark with scripted completions: the example of the paper and symbolic worlds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from math import hypot
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.fakes.expected_longrecall import Options, Variables, expect
from tests.fakes.facts import roll
from tests.fakes.lookups import vector_of
from tests.fakes.recall import entails, extracted, map_all, minimal_subset, resolve_all
from tests.fakes.world_longrecall import longrecall_worlds
from tests.jobs.metrics.scripted import ScriptedTools, samples_with_references
from tests.runs.recalled import assert_as_expected
from untold.jobs.metrics import METRICS
from untold.jobs.settings.model import Settings

pytestmark = pytest.mark.gate

LONGRECALL = METRICS["longrecall"]
Judge = Callable[[str, Variables], Mapping[str, Any] | str]
"""From a stage and its variables to its output, or to the type of an error."""
Row = dict[str, Any]
WORLDS = 12
FELLINI, BOLESLAWSKI = "Federico Fellini: made La Strada in 1954", "Ryszard Boleslawski"
MAESTRO, BOLESLAVSKY = "Il Maestro: La Strada, his film of 1954", "Richard Boleslavsky"
MCQUEEN = "Steve McQueen: an American actor, known for Bullitt"
ULLMANN = "Liv Ullmann: acted in ten films of Ingmar Bergman"
EXAMPLE = {
    "sample_id": "directors",
    "query": "Which film directors have influenced the school?",
    "response": f"""These directors are named most often:
- **Il Maestro** (La Strada, his film of 1954)
- {BOLESLAVSKY}
- {MCQUEEN}
- [Liv Ullmann] acted in ten films of Ingmar Bergman""",
    "references": [
        {"id": "f", "anchor": "Federico Fellini", "text": "made La Strada in 1954"},
        {"id": "b", "text": BOLESLAWSKI},
        {"id": "m", "anchor": "Steve McQueen", "text": "made Hunger"},
        {"id": "i", "text": "Ingmar Bergman"},
        {"id": "unwanted", "text": "Liv Ullmann", "weight": -1},
    ],
}
# The judgements of a human reader. A nickname and a transliteration refer to the same person, but a namesake does not.
# The person in the background of another entry is not a director in the response.
ENTAILED = {(FELLINI, MAESTRO), (BOLESLAWSKI, BOLESLAVSKY)}


def settings_for(**longrecall: Any) -> Settings:
    return Settings.model_validate({"longrecall": longrecall, "embeddings": {"model": "a folder"}})


def score_rows(
    spark: SparkSession, judge: Judge, samples: list[Row], settings: Settings
) -> tuple[dict[str, list[Row]], ScriptedTools]:
    """Return the rows of each table of the metric and the tools with the requests."""
    tools = ScriptedTools(
        spark, {stage: partial(judge, stage) for stage in (*LONGRECALL.stages(settings), "embed_text")}
    )
    tables = LONGRECALL.score(samples_with_references(spark, samples), tools, settings)
    return {name: [row.asDict(recursive=True) for row in frame.collect()] for name, frame in tables.items()}, tools


def judge_example(stage: str, variables: Variables) -> Mapping[str, Any]:
    if stage == "match_one":
        return {"matched": (variables["reference"], variables["candidate"]) in ENTAILED}
    if stage == "match_many":
        pairs = [(variables["reference"], candidate) for candidate in variables["candidates"]]
        return {"candidates": [number for number, pair in enumerate(pairs, start=1) if pair in ENTAILED]}
    assert stage == "embed_text"
    film = "1954" in variables["text"]
    return {"vector": [1.0, 0.0] if film else [0.6, 0.8] if "Bergman" in variables["text"] else [0.0, 1.0]}


def test_the_papers_example(spark: SparkSession) -> None:
    tables, _ = score_rows(spark, judge_example, [EXAMPLE], settings_for(cosine=0.9, jaccard=0.5))
    found = {row["reference_id"]: row for row in tables["statements"]}
    assert {name: (row["covered"], row["found_by"]) for name, row in found.items()} == {
        "f": (True, "semantic"),  # a nickname with no similar word
        "b": (True, "lexical"),  # a transliteration with mostly the same letters
        "m": (False, None),  # a namesake that the lexical step finds and the judge rejects
        "i": (False, None),  # a name in the background of another entry
    }
    assert found["f"]["claims"] == ["directors:longrecall:1"]
    # With only the names, both spellings are missed, and the namesake and the person in the background are covered
    assert {name: row["arecall"] for name, row in found.items()} == {"f": False, "b": False, "m": True, "i": True}
    shown = {(row["statement_id"][-1], row["claim_id"][-1], row["step"]): row["chosen"] for row in tables["candidates"]}
    assert shown["2", "2", "lexical"] is True
    assert shown["3", "3", "lexical"] is False
    assert shown["1", "1", "semantic"] is True
    # A rejected pair is never a candidate again
    assert len({(reference, claim) for reference, claim, _ in shown}) == len(shown)
    (score,) = tables["scores"]
    assert (score["score"], score["covered"], score["uncovered"], score["status"]) == (0.5, 2, 2, "ok")
    assert [row["anchor"] for row in sorted(tables["claims"], key=lambda row: row["position"])] == [
        *("Il Maestro", BOLESLAVSKY, "Steve McQueen", "Liv Ullmann")
    ]


def judge_worlds(lost: Callable[[str, Variables], bool], stage: str, variables: Variables) -> Mapping[str, Any] | str:
    """Return the truth of the world as the output of a stage, or the type of an error."""
    if lost(stage, variables):
        return "server_error"
    if stage == "extract_claims":
        return {"claims": extracted(variables["text"])}
    if stage == "resolve_coreference":
        return {"facts": resolve_all(variables["text"], variables["facts"])}
    if stage == "match_one":
        return {"matched": entails(variables["reference"], [variables["candidate"]])}
    if stage == "match_many":
        return {"candidates": minimal_subset(variables["reference"], variables["candidates"])}
    if stage == "match_holistic":
        return {"candidates": map_all(variables["references"], variables["candidates"])}
    vector = vector_of(variables["text"])
    return {"vector": [value / hypot(*vector) for value in vector]}


def nothing_lost(stage: str, variables: Variables) -> bool:
    return False


def some_lost(share: int, stage: str, variables: Variables) -> bool:
    """Return True for about one in `share` requests of each stage. The result depends only on the request."""
    return roll("lost", stage, json.dumps(variables, sort_keys=True)) % share == 0


def score_worlds(
    spark: SparkSession, samples: list[Row], options: Options
) -> tuple[dict[str, list[Row]], ScriptedTools]:
    names = ("segmentation", "resolve_coreference", "cosine", "top_k", "max_facts")
    settings = settings_for(baselines=list(options.baselines), **{name: getattr(options, name) for name in names})
    return score_rows(spark, partial(judge_worlds, options.lost), samples, settings)


def assert_worlds(spark: SparkSession, count: int, options: Options) -> list[str]:
    """Check that all tables and requests equal the results of brute force, and return the statuses of the samples."""
    samples = [sample for world in longrecall_worlds(count) for sample in world.samples(2)]
    tables, tools = score_worlds(spark, samples, options)
    expected = {sample["sample_id"]: expect(sample, options) for sample in samples}
    assert_as_expected(tables, expected)
    asked = {
        (stage, json.dumps(variables, sort_keys=True, ensure_ascii=False))
        for stage, requests in tools.asked.items()
        for variables in requests
    }
    assert asked == {request for one in expected.values() for request in one.requests}
    lost = {row["sample_id"] for row in tables["failures"]}
    assert lost >= {name for name, one in expected.items() if one.status in ("partial", "failed")}
    return [one.status for one in expected.values()]


ALL = ("arecall", "erecall", "holistic")


@pytest.mark.parametrize(
    ("options", "statuses"),
    [
        (Options(baselines=ALL), {"ok"}),
        (Options(segmentation="list", resolve_coreference=False, top_k=1, max_facts=2, baselines=("erecall",)), {"ok"}),
        (Options(lost=partial(some_lost, 12), baselines=ALL), {"ok", "partial", "failed"}),
    ],
    ids=["whole", "few", "lost"],
)
def test_worlds_are_as_brute_force_has_them(spark: SparkSession, options: Options, statuses: set[str]) -> None:
    assert statuses <= set(assert_worlds(spark, WORLDS, options))


@pytest.mark.slow
@pytest.mark.parametrize("segmentation", ["auto", "list", "sentences", "atomic"])
@pytest.mark.parametrize("lost", [nothing_lost, partial(some_lost, 15)], ids=["whole", "lost"])
def test_hundreds_of_worlds(spark: SparkSession, segmentation: str, lost: Callable[[str, Variables], bool]) -> None:
    statuses = assert_worlds(spark, 300, Options(segmentation=segmentation, lost=lost, baselines=ALL))
    assert set(statuses) >= {"ok", "no_statements"} | ({"partial", "failed"} if lost is not nothing_lost else set())
