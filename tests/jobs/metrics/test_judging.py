"""Test relations from lists: they equal the relations of pairs if a list omits, repeats, swaps or adds items."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.fakes.expected import Expected, Options, expected_nli
from tests.fakes.facts import careless_lines, relation_lines
from tests.fakes.world import worlds
from tests.jobs.metrics.scripted import ScriptedTools, rows_of
from untold.jobs.inference.stage.requests import Lists
from untold.jobs.metrics.judging import CLASSIFY_LISTS, judge_pairs
from untold.jobs.metrics.nli import add_owners
from untold.jobs.metrics.settings import NliSettings
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.nli import CLASSIFY_RELATIONS

pytestmark = pytest.mark.gate

WORLDS, JUDGE, SIZE = 150, "noisy", 4
ATOMS = "sample_id string, texts array<string>, contexts long, responses long, contexts_key string"
Pairs = Mapping[tuple[str, str], str | None]
Says = Callable[[str, Sequence[str], str], list[str]]


def atoms_of(name: str, contexts: Sequence[str], responses: Sequence[str]) -> tuple[Any, ...]:
    return name, [*contexts, *responses], len(contexts), len(responses), "|".join(contexts)


def judge(
    spark: SparkSession, atoms: Sequence[tuple[Any, ...]], says: Says, **settings: Any
) -> tuple[ScriptedTools, DataFrame]:
    """Return the tools with their requests and the relations of the samples with these atoms."""

    def answer(variables: Mapping[str, Any]) -> Mapping[str, Any] | str:
        try:
            said = "\n".join(says(variables["premise"], variables["hypotheses"], JUDGE))
            return CLASSIFY_RELATIONS.parse(said, variables)
        except Unparsable:
            return "unparsable"

    tools = ScriptedTools(spark, {CLASSIFY_LISTS: answer})
    options = NliSettings(judgement="lists", **{"list_size": SIZE, **settings})
    owners = tools.keep(add_owners(spark.createDataFrame(atoms, ATOMS), options.max_pairs_per_sample))
    return tools, judge_pairs(owners, tools, options)


def relations_of(found: Any, atoms: Sequence[tuple[Any, ...]]) -> dict[str, dict[tuple[str, str], str | None]]:
    """Return the relation of each pair of texts by the owner of the pair."""
    texts = {f"sample:{name}": texts for name, texts, *_ in atoms}
    texts |= {f"contexts:{key}:{count * (count - 1)}": texts for _, texts, count, _, key in atoms}
    pairs: dict[str, dict[tuple[str, str], str | None]] = defaultdict(dict)
    for row in rows_of(found, "owner", "source", "target"):
        pair = (texts[row["owner"]][row["source"]], texts[row["owner"]][row["target"]])
        assert pair not in pairs[row["owner"]]
        pairs[row["owner"]][pair] = row["relation"]
    return pairs


def world_atoms() -> list[tuple[tuple[Any, ...], Expected]]:
    """Return the atoms of worlds with two responses and some context atoms, and the relations from brute force."""
    found = []
    for world in worlds(WORLDS, JUDGE):
        for sample in world.samples(2):
            expected = expected_nli(sample, Options(judge=JUDGE))
            kept = [atom for atom in expected.atoms if atom.kept]
            contexts = [atom.text for atom in kept if atom.origin != "response"]
            responses = [atom.text for atom in kept if atom.origin == "response"]
            if contexts:
                found.append((atoms_of(sample["sample_id"], sorted(contexts), responses), expected))
    return found


@pytest.mark.parametrize("says", [relation_lines, careless_lines])
def test_lists_equal_pairs_if_they_omit_repeat_swap_or_add_items(spark: SparkSession, says: Says) -> None:
    known = world_atoms()
    atoms = [row for row, _ in known]
    tools, found = judge(spark, atoms, says)
    relations = relations_of(found, atoms)
    for (name, texts, contexts, _, key), expected in known:
        own = relations.get(f"sample:{name}", {}) | relations.get(f"contexts:{key}:{contexts * (contexts - 1)}", {})
        assert own == {pair: expected.relations[pair] for pair in expected.relations}, name
        assert len(own) == len(expected.relations) <= len(texts) * (len(texts) - 1)
    asked = tools.asked[CLASSIFY_LISTS]
    assert len({(one["premise"], *one["hypotheses"]) for one in asked}) == len(asked)
    assert all(one["hypotheses"] == sorted(one["hypotheses"]) and len(one["hypotheses"]) <= SIZE for one in asked)
    assert rows_of(found.where("error_type is not null or relation is null"), "owner") == []


def test_a_pair_without_a_label_in_a_single_request_is_unjudged(spark: SparkSession) -> None:
    def says(premise: str, hypotheses: Sequence[str], judge: str) -> list[str]:
        return [line for line in relation_lines(premise, hypotheses, judge) if "Bo" not in hypotheses[int(line[0]) - 1]]

    atoms = [atoms_of("s", ["Ada", "Bo", "Cy"], ["Di"])]
    tools, found = judge(spark, atoms, says)
    rows = rows_of(found, "source", "target")
    assert {(row["target"] == 1, row["relation"] is None, row["error_type"]) for row in rows} == {
        (True, True, "unparsable"),
        (False, False, None),
    }
    asked = [(one["premise"], tuple(one["hypotheses"])) for one in tools.asked[CLASSIFY_LISTS]]
    assert sorted(asked) == [
        *[("Ada", ("Bo",)), ("Ada", ("Bo", "Cy")), ("Ada", ("Di",))],
        *[("Bo", ("Ada", "Cy")), ("Bo", ("Di",))],
        *[("Cy", ("Ada", "Bo")), ("Cy", ("Bo",)), ("Cy", ("Di",))],
        *[("Di", ("Ada", "Bo", "Cy")), ("Di", ("Bo",))],
    ]


def test_missing_hypotheses_are_sent_in_a_list_and_then_singly(spark: SparkSession) -> None:
    def says(premise: str, hypotheses: Sequence[str], judge: str) -> list[str]:
        return relation_lines(premise, hypotheses, judge)[: 1 if len(hypotheses) > 1 else None]

    atoms = [atoms_of("s", ["Ada", "Bo", "Cy", "Ed"], ["Di"])]
    tools, found = judge(spark, atoms, says)
    assert rows_of(found.where("relation is null"), "source") == []
    asked = [tuple(one["hypotheses"]) for one in tools.asked[CLASSIFY_LISTS] if one["premise"] == "Di"]
    assert asked == [("Ada", "Bo", "Cy", "Ed"), ("Bo", "Cy", "Ed"), ("Cy",), ("Ed",)]


@pytest.mark.parametrize(("error_type", "again"), [("truncated", True), ("http_400", True), ("timeout", False)])
def test_a_list_that_failed_for_good_is_sent_in_single_pairs(spark: SparkSession, error_type: str, again: bool) -> None:
    atoms = [atoms_of("s", ["Ada", "Bo"], ["Di"])]
    tools = ScriptedTools(
        spark,
        {CLASSIFY_LISTS: lambda one: error_type if len(one["hypotheses"]) > 1 else {"relations": ["neutral"]}},
    )
    options = NliSettings(judgement="lists")
    found = judge_pairs(tools.keep(add_owners(spark.createDataFrame(atoms, ATOMS), None)), tools, options)
    relations = Counter((row["source"], row["relation"], row["error_type"]) for row in rows_of(found, "source"))
    of_list = (2, "neutral", None) if again else (2, None, error_type)
    assert relations == {(0, "neutral", None): 2, (1, "neutral", None): 2, of_list: 2}


def test_a_sample_of_20_and_40_atoms_with_five_responses_takes_96_lists(spark: SparkSession) -> None:
    contexts = [f"Context {number:02}" for number in range(40)]
    atoms = [atoms_of(f"s{k}", contexts, [f"Response {k} {number:02}" for number in range(20)]) for k in range(5)]
    tools, found = judge(spark, atoms, relation_lines, list_size=20)
    assert found.count() == 5 * 2 * 20 * 40 + 40 * 39
    assert len(tools.asked[CLASSIFY_LISTS]) == 5 * 96


def test_the_bound_of_a_plan_is_the_number_of_lists(spark: SparkSession) -> None:
    atoms = [atoms_of("s", ["a", "b", "c", "d"], ["e", "f"]), atoms_of("t", ["g"], []), atoms_of("u", ["h"], ["i"])]
    tools, _ = judge(spark, atoms, relation_lines, list_size=2)
    counts = [(len(texts), contexts, responses) for _, texts, contexts, responses, _ in atoms]
    owners = spark.createDataFrame(
        [(["x"] * n, c, c * r, c * (c - 1), c * r) for n, c, r in counts],
        "texts array<string>, contexts long, to_contexts long, between_contexts long, to_responses long",
    )
    bound = Lists(owners, size=2).bound.agg({"requests": "sum"}).collect()[0][0]
    assert bound == len(tools.asked[CLASSIFY_LISTS])
