"""Test lists of claims with chunks and of responses with responses. The results are the same as with single pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.fakes.facts import roll
from tests.fakes.questions import SWAPPED
from tests.jobs.metrics.scripted import Row, ScriptedTools, rows_of
from untold.jobs.metrics.grounded_claims import ground_claims
from untold.jobs.metrics.icat import stages
from untold.jobs.metrics.judging import CLASSIFY, CLASSIFY_LISTS
from untold.jobs.metrics.qa import COMPARE, COMPARE_LISTS, _sizes, compare_answers
from untold.jobs.metrics.reference_facts import GIVEN, Evidence, Owners
from untold.jobs.metrics.settings import QaSettings
from untold.jobs.metrics.verified_claims import VERIFY, verify_claims
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError
from untold.udfs.facts.claim_verdicts import EVIDENCE
from untold.udfs.facts.nodes import SAMPLE_NODES
from untold.udfs.stages.nli import RELATIONS
from untold.udfs.stages.qa import RELATIONS as COMPARISONS

pytestmark = pytest.mark.gate

Judge = Callable[[str, str], str]
OWNED = "sample_id string, owner string"


def entailing(premise: str, hypothesis: str) -> str:
    return (*RELATIONS, "neutral", "neutral")[roll(premise, hypothesis) % 5]


def listed(judge: Judge, one: str, others: Sequence[str]) -> Row | str:
    """Return the relations of a list with some missing items. Some lists always fail, but single items do not."""
    dice = Random(roll(one, *others))
    if len(others) > 1 and dice.random() < 0.1:
        return "truncated"
    lost = [len(others) > 1 and dice.random() < 0.2 for _ in others]
    return {"relations": [None if gone else judge(one, other) for other, gone in zip(others, lost, strict=True)]}


def hits(query: str) -> list[Row]:
    """Return five of eight chunks. Two of the documents have the same text."""
    dice = Random(roll(query))
    named = {name: "One text." if name in "ab" else f"The text of {name}." for name in "abcdefgh"}
    chosen = dice.sample(sorted(named), 5)
    return [
        {"chunk_id": name, "document_id": name, "url": None, "text": named[name], "similarity": dice.random()}
        for name in chosen
    ]


def ground(spark: SparkSession, claims: DataFrame, size: int | None) -> tuple[ScriptedTools, list[dict[str, Any]]]:
    script = {
        CLASSIFY: lambda one: {"relation": entailing(one["premise"], one["hypothesis"])},
        CLASSIFY_LISTS: lambda one: listed(entailing, one["premise"], one["hypotheses"]),
    }
    tools = ScriptedTools(spark, script, hits)
    settings = Settings.model_validate({"knowledge": {"source": "index", "top_k": 5}})
    found = ground_claims(claims, tools, settings, early_stop=True, list_size=size)
    columns = ("sample_id", "position", "verdict", "evidence", "unjudged")
    return tools, rows_of(found.claims.select(*columns), "sample_id", "position")


SLOW_SIZES = [pytest.param(size, marks=pytest.mark.slow) for size in (1, 20)]


@pytest.mark.parametrize("size", [3, *SLOW_SIZES])
def test_claims_in_lists_have_the_verdicts_of_pairs(spark: SparkSession, size: int) -> None:
    rows = [(f"s{n}", place, f"Claim {roll(str(n), str(place)) % 90}") for n in range(20) for place in range(1, 9)]
    claims = spark.createDataFrame(rows, "sample_id string, position long, text string")
    claims = claims.dropDuplicates(["sample_id", "text"])
    _, expected = ground(spark, claims, None)
    lists, found = ground(spark, claims, size)
    assert found == expected
    assert len({row["verdict"] for row in found}) == 3
    sizes = [len(one["hypotheses"]) for one in lists.asked[CLASSIFY_LISTS]]
    assert max(sizes) <= size
    assert not lists.asked[CLASSIFY]
    assert all(one["hypotheses"] == sorted(set(one["hypotheses"])) for one in lists.asked[CLASSIFY_LISTS])


def verify(claim: str, evidence: Sequence[str]) -> str:
    """Return the verdict of several chunks, each judged without the other chunks."""
    said = {entailing(text, claim) for text in evidence}
    return "supported" if "entailment" in said else "contradicted" if "contradiction" in said else "not_supported"


def verified(spark: SparkSession, claims: DataFrame, **options: Any) -> tuple[ScriptedTools, list[dict[str, Any]]]:
    """Return the verdicts on the claims of samples. Three samples share their evidence."""
    script = {
        VERIFY: lambda one: {"relation": verify(one["claim"], one["evidence"])},
        CLASSIFY_LISTS: lambda one: listed(entailing, one["premise"], one["hypotheses"]),
    }
    tools = ScriptedTools(spark, script)
    names = sorted(row["sample_id"] for row in claims.select("sample_id").distinct().collect())
    owned = spark.createDataFrame([(name, names[place // 3 * 3]) for place, name in enumerate(names)], OWNED)
    contexts = [{"id": "1", "text": "x"}]
    owners = spark.createDataFrame(
        [(owner, "q", contexts, None) for owner in names[::3]],
        f"owner string, query string, contexts array<struct<id: string, text: string>>, given {GIVEN}",
    )
    chunks = [(owner, [(str(n), "1", None, f"Text {n} of {owner}") for n in range(3)]) for owner in names[::3]]
    evidence = Evidence(spark.createDataFrame(chunks, spark_schema(EVIDENCE)))
    settings = Settings.model_validate({"knowledge": {"source": "contexts"}, "importance": options})
    found = verify_claims(claims, Owners(owned, owners), evidence, tools, settings)
    return tools, rows_of(found.claims.select("sample_id", "position", "verdict", "shown"), "sample_id", "position")


@pytest.mark.parametrize("size", [3, *SLOW_SIZES[1:]])
def test_claims_that_are_verified_in_lists_have_the_verdicts_of_chunks_together(spark: SparkSession, size: int) -> None:
    rows = [(f"s{n:02}", place, f"Claim {roll(str(n), str(place)) % 40}") for n in range(9) for place in range(1, 8)]
    claims = spark.createDataFrame(rows, "sample_id string, position long, text string")
    claims = claims.dropDuplicates(["sample_id", "text"])
    _, expected = verified(spark, claims)
    lists, found = verified(spark, claims, judgement="lists", list_size=size)
    assert found == expected
    assert len({row["verdict"] for row in found}) == 3
    assert not lists.asked[VERIFY]
    assert max(len(one["hypotheses"]) for one in lists.asked[CLASSIFY_LISTS]) <= size


def test_lists_of_a_classifier_are_refused() -> None:
    settings = Settings.model_validate({"icat": {"judgement": "lists"}, "grounding": {"verifier": "folder"}})
    with pytest.raises(UserError, match=r"icat\.judgement=lists asks a model"):
        stages(settings)


def comparing(first: str, second: str) -> str:
    """Return the same relation for both orders of two texts."""
    relation = COMPARISONS[roll(*sorted((first, second))) % 5]
    return relation if first < second else SWAPPED.get(relation, relation)


def atoms_of(spark: SparkSession, samples: Mapping[str, Sequence[tuple[str, str, bool]]]) -> DataFrame:
    """Return the rows of `SAMPLE_NODES`: the question, the text and the flag `context` of each answer."""
    rows = []
    for name, answers in samples.items():
        ordered = sorted(answers, key=lambda one: not one[2])
        atoms = [
            {**dict.fromkeys(SAMPLE_NODES.field("atoms").type.value_type.names), "node": node, "question": question}
            | {"text": text, "context": context, "response": not context, "kept": True}
            for node, (question, text, context) in enumerate(ordered)
        ]
        contexts = sum(context for *_, context in answers)
        rows.append({"sample_id": name, "atoms": atoms, "contexts": contexts, "responses": len(answers) - contexts})
    schema = spark_schema(SAMPLE_NODES)
    return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in rows], schema)


def compare(spark: SparkSession, atoms: DataFrame, settings: QaSettings) -> tuple[ScriptedTools, dict[Any, Any]]:
    script = {
        COMPARE: lambda one: {"relation": comparing(one["first"], one["second"])},
        COMPARE_LISTS: lambda one: listed(comparing, one["answer"], one["others"]),
    }
    tools = ScriptedTools(spark, script)
    rows = rows_of(compare_answers(atoms, tools, settings), "sample_id", "source", "target")
    return tools, {(row["sample_id"], row["source"], row["target"]): row["relation"] for row in rows}


def test_answers_in_lists_have_the_relations_of_pairs_and_share_context_requests(spark: SparkSession) -> None:
    dice = Random(1)
    of_contexts = [("Q?", f"c{n}", True) for n in range(7)] + [("P?", "only", True)]
    samples = {
        f"s{number}": [*of_contexts, *(("Q?", f"{dice.choice('az')}{number}-{n}", False) for n in range(3))]
        for number in range(4)
    }
    atoms = atoms_of(spark, samples)
    _, expected = compare(spark, atoms, QaSettings(quantity_tool="none"))
    lists, found = compare(spark, atoms, QaSettings(quantity_tool="none", judgement="lists", list_size=4))
    assert found == expected
    assert len(found) == 4 * (7 * 6 // 2 + 3 * 7)
    # The other side has only answers of contexts, so the requests between contexts are shared by all samples
    others = [one["others"] for one in lists.asked[COMPARE_LISTS]]
    assert all(len(texts) <= 4 and all(text.startswith("c") for text in texts) for texts in others)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
def test_the_sizes_of_a_plan_are_the_number_of_lists(spark: SparkSession, size: int) -> None:
    counts = [(contexts, responses) for contexts in range(8) for responses in range(3)]
    rows = spark.createDataFrame(counts, "contexts long, responses long")
    rows = rows.withColumns({"longest": F.lit(1), "asked": F.lit(1), "at": F.monotonically_increasing_id()})
    expected = [
        sum(-(-behind // size) for behind in range(1, contexts)) + responses * -(-contexts // size)
        for contexts, responses in counts
    ]
    assert sum(row["requests"] for row in _sizes(rows, size).collect()) == sum(expected)
