"""Compare the metric rag with brute force in hundreds of worlds: the requests and all of the tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tests.fakes.claims import claims_of
from tests.fakes.expected_rag import Checked, Relation, check, rag_samples
from tests.fakes.facts import relate_text, roll
from tests.jobs.metrics.scripted import Row, ScriptedTools, rows_of
from untold.jobs.inputs.samples import CONTEXTS, OPTIONAL_TYPES
from untold.jobs.metrics.rag import score
from untold.jobs.metrics.views import faults_of
from untold.jobs.settings.model import Settings
from untold.udfs.facts.rag_measures import FAULTS, PUBLISHED, VERDICTS, WITHOUT_TRUTH
from untold.udfs.samples.conversion import normalise_contexts
from untold.udfs.samples.data_sets import read_results
from untold.udfs.samples.file_records import Unit
from untold.udfs.samples.items import normalise_checks, normalise_ground_truth
from untold.udfs.stages.arrow import UNASKED

WORLDS, JOINT = 220, 3
EXPORTS = Path(__file__).parents[1] / "inputs" / "exports"
# For some relations, only a request for the single pair succeeds. For a few relations, all of the requests fail
OPEN, LOST = 12, 36


def relate(premise: str, claim: str) -> Relation:
    return None if roll(premise, claim) % LOST == 0 else relate_text(premise, claim, "noisy")


def checked(row: Row) -> Row | str:
    premise, claims = row["premise"], row["hypotheses"]
    if len(claims) == 1:
        found = relate(premise, claims[0])
        return "unparsable" if found is None else {"relations": [found]}
    open_ones = [roll(premise, claim) % OPEN == 0 for claim in claims]
    return {
        "relations": [None if one else relate(premise, claim) for one, claim in zip(open_ones, claims, strict=True)]
    }


def extracted(row: Row) -> Row | str:
    fates = {"unread": "unparsable", "unasked": UNASKED}
    return next((fate for text, fate in fates.items() if text in row["text"]), None) or {
        "claims": claims_of(row["text"])
    }


SCRIPT = {"extract_claims": extracted, "check_claims": checked}
Tables = Mapping[str, list[dict[str, Any]]]


def scored(spark: SparkSession, samples: Sequence[Row]) -> tuple[Tables, ScriptedTools]:
    """Return the tables of the samples and the tools with the requests."""
    tools = ScriptedTools(spark, SCRIPT)
    texts = [T.StructField(name, T.StringType()) for name in ("sample_id", "query", "response", "system")]
    given = {"contexts": CONTEXTS, **{name: OPTIONAL_TYPES[name] for name in ("ground_truth", "claim_checks")}}
    schema = T.StructType([*texts, *(T.StructField(name, kind) for name, kind in given.items())])
    read = {"contexts": normalise_contexts, "ground_truth": normalise_ground_truth, "claim_checks": normalise_checks}
    rows = [[read.get(name, lambda value: value)(one.get(name)) for name in schema.names] for one in samples]
    found = score(
        spark.createDataFrame(rows, schema), tools, Settings.model_validate({"rag": {"claims_per_request": JOINT}})
    )
    return {
        name: rows_of(frame, "sample_id", *(["rank"] if name == "contexts_used" else []))
        for name, frame in found.items()
    }, tools


@pytest.fixture(scope="module")
def worlds() -> list[Row]:
    return rag_samples(WORLDS, judge="noisy")


@pytest.fixture(scope="module")
def job(spark: SparkSession, worlds: Sequence[Row]) -> tuple[Tables, ScriptedTools]:
    return scored(spark, worlds)


@pytest.fixture(scope="module")
def expected(worlds: Sequence[Row]) -> dict[str, Checked]:
    return {one["sample_id"]: check(one, relate) for one in worlds}


def by_sample(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["sample_id"], []).append(row)
    return found


@pytest.mark.gate
def test_measures_and_bounds_are_those_of_brute_force(
    job: tuple[Tables, ScriptedTools], expected: Mapping[str, Checked]
) -> None:
    measures, compared = by_sample(job[0]["measures"]), Counter[bool]()
    for name, one in expected.items():
        if one.unjudged > 4:
            continue
        wanted = one.measures()
        found = {row["measure"]: (row["value_low"], row["value_high"]) for row in measures[name]}
        assert {measure: pytest.approx(ends) for measure, ends in wanted.items()} == found, name
        compared[one.unjudged > 0] += 1
    assert min(compared.values()) > 50


@pytest.mark.gate
def test_scores_are_f1_with_the_status_of_the_missing_part(
    job: tuple[Tables, ScriptedTools], expected: Mapping[str, Checked]
) -> None:
    f1 = {row["sample_id"]: row for row in job[0]["measures"] if row["measure"] == "f1"}
    statuses = Counter[str]()
    for row in job[0]["scores"]:
        one, whole = expected[row["sample_id"]], f1[row["sample_id"]]
        empty = not one.response or not one.truth
        assert row["status"] == ("no_statements" if empty else "partial" if one.unjudged else "ok")
        assert (row["score"], row["score_low"], row["score_high"]) == tuple(
            whole[name] for name in ("value", "value_low", "value_high")
        )
        said = Counter(cells[0] and cells[0] == "entailment" for cells in one.of_truth)
        assert (row["covered"], row["uncovered"], row["unjudged"]) == (said[True], said[False], one.unjudged)
        statuses[row["status"]] += 1
    assert min(statuses[name] for name in ("ok", "partial", "no_statements")) > 20


@pytest.mark.gate
def test_claims_statements_and_contexts_have_their_relations(
    job: tuple[Tables, ScriptedTools], expected: Mapping[str, Checked], worlds: Sequence[Row]
) -> None:
    tables = {name: by_sample(job[0][name]) for name in ("claims", "statements", "contexts_used")}
    for sample in worlds:
        name, one = sample["sample_id"], expected[sample["sample_id"]]
        ids = [context["id"] for context in normalise_contexts(list(sample["contexts"]))]

        def entailing(cells: Sequence[Relation], ids: Sequence[str] = ids) -> list[str]:
            return [each for each, cell in zip(ids, cells[1:], strict=True) if cell == "entailment"]

        claims = sorted(tables["claims"].get(name, []), key=lambda row: row["position"])
        assert [(row["text"], row["verdict"], row["evidence"]) for row in claims] == [
            (text, VERDICTS.get(cells[0] or ""), entailing(cells))
            for text, cells in zip(one.response, one.of_response, strict=True)
        ]
        statements = sorted(tables["statements"].get(name, []), key=lambda row: int(row["statement_id"].split(":")[-1]))
        assert [(row["text"], row["relation"], row["sources"]) for row in statements] == [
            (text, cells[0], entailing(cells)) for text, cells in zip(one.truth, one.of_truth, strict=True)
        ]
        contexts = tables["contexts_used"].get(name, [])
        assert [(row["rank"], row["context_id"], row["response"], row["ground_truth"]) for row in contexts] == [
            (rank, each, *([cells[rank] for cells in rows] for rows in (one.of_response, one.of_truth)))
            for rank, each in enumerate(ids, start=1)
        ]
        assert_flags(contexts, one)


def assert_flags(contexts: Sequence[Row], one: Checked) -> None:
    """Check the flags of each context if all of the claims are judged."""
    if one.unjudged:
        return
    seen: set[int] = set()
    for row in contexts:
        recalled = {place for place, cells in enumerate(one.of_truth) if cells[row["rank"]] == "entailment"}
        stated = {place for place, cells in enumerate(one.of_response) if cells[row["rank"]] == "entailment"}
        wrong = {place for place in stated if one.of_response[place][0] != "entailment"}
        assert (row["relevant"], row["used"], row["noise"]) == (bool(recalled), bool(stated), bool(wrong))
        assert row["new_claims"] == len(recalled - seen)
        seen |= recalled


@pytest.mark.gate
def test_the_shown_faults_equal_the_measures(
    job: tuple[Tables, ScriptedTools], expected: Mapping[str, Checked]
) -> None:
    tables = {name: by_sample(job[0][name]) for name in ("statements", "claims", "measures")}
    halves = Counter[str]()
    for name, one in expected.items():
        if one.unjudged or not one.contexts or not one.truth:
            continue
        found = faults_of(tables["statements"].get(name, []), tables["claims"].get(name, []))
        measures = {row["measure"]: row["value"] for row in tables["measures"][name]}
        assert {fault: part / whole for fault, (part, whole) in found.items()} == pytest.approx(
            {fault: measures[fault] for fault in FAULTS if measures[fault]}
        )
        halves.update(list(found))
    assert min(halves[name] for name in FAULTS) > 3


@pytest.mark.gate
def test_equal_requests_are_sent_once_and_open_requests_singly(
    job: tuple[Tables, ScriptedTools], expected: Mapping[str, Checked]
) -> None:
    asked = job[1].asked["check_claims"]
    assert len({(row["premise"], *row["hypotheses"]) for row in asked}) == len(asked)
    assert max(len(row["hypotheses"]) for row in asked) == JOINT
    failed = [row for row in job[0]["failures"] if row["error_type"] == "unparsable"]
    assert {row["sample_id"] for row in failed} == {name for name, one in expected.items() if one.unjudged}
    texts = Counter(row["text"] for row in job[1].asked["extract_claims"])
    assert max(texts.values()) == 1


CHECKS = {
    "response_claims": ["one", ["two", "is", "2"]],
    "gt_answer_claims": ["one"],
    "answer2response": ["Entailment", "Neutral"],
    "response2answer": ["Entailment"],
    "retrieved2answer": [["Neutral", "Entailment"]],
    "retrieved2response": [["Neutral", "Entailment"], ["Contradiction", "Neutral"]],
}
# The expected texts of the checks of a sample, by the missing field of its own checks
ASKED = {
    "nothing": [],
    "answer2response": ["truth"],
    "response2answer": ["response"],
    "retrieved2answer": ["first", "second"],
    "retrieved2response": ["first", "second"],
}


@pytest.fixture(scope="module")
def brought(spark: SparkSession) -> tuple[Tables, ScriptedTools]:
    """Score samples with all or most of their checks, and two samples with a failed or unsent request."""
    samples = [
        {
            "sample_id": name,
            "query": "q",
            "response": f"response of {name}",
            "ground_truth": f"truth of {name}",
            "contexts": [f"first of {name}", f"second of {name}"],
            "claim_checks": {**CHECKS, name: None},
        }
        for name in ASKED
    ]
    texts = {"lost": ("unread", "Bees."), "later": ("Bees.", "unasked")}
    samples += [
        {"sample_id": name, "query": "q", "response": response, "contexts": ["c"], "ground_truth": truth}
        for name, (response, truth) in texts.items()
    ]
    return scored(spark, samples)


@pytest.mark.gate
def test_a_sample_whose_claims_are_missing_is_not_checked(brought: tuple[Tables, ScriptedTools]) -> None:
    tables = {name: by_sample(rows) for name, rows in brought[0].items()}
    assert [tables["scores"][name][0]["status"] for name in ("lost", "later")] == ["failed", "budget"]
    assert [(row["sample_id"], row["stage"]) for row in brought[0]["failures"]] == [("lost", "extract_claims")]
    for name in ("lost", "later"):
        assert {(row["value"], row["value_low"]) for row in tables["measures"][name]} == {(None, 0.0), (None, None)}
        assert name not in tables["contexts_used"]


@pytest.mark.gate
def test_given_claims_and_relations_are_not_requested(brought: tuple[Tables, ScriptedTools]) -> None:
    tables, tools = brought
    asked = {row["premise"] for row in tools.asked["check_claims"]}
    assert asked == {f"{text} of {name}" for name, texts in ASKED.items() for text in texts}
    assert {row["text"] for row in tools.asked["extract_claims"]} == {"unread", "Bees.", "unasked"}
    found = {row["measure"]: row["value"] for row in tables["measures"] if row["sample_id"] == "nothing"}
    assert (found["precision"], found["recall"], found["context_precision"], found["faithfulness"]) == (
        0.5,
        1,
        0.5,
        0.5,
    )
    assert [row["text"] for row in by_sample(tables["claims"])["nothing"]] == ["one", "two is 2"]


@pytest.mark.gate
def test_measures_of_ragcheckers_own_example_are_its_own_to_the_last_digit(spark: SparkSession) -> None:
    """Compare the measures with the outputs in the repository of RAGChecker. No requests are sent."""
    file = EXPORTS / "ragchecker.json"
    own = json.loads(file.read_text(encoding="utf-8"))
    tables, tools = scored(spark, [one.values for one in read_results(Unit(0, str(file), ""))])
    assert not tools.asked
    found = {
        name: {row["measure"]: row["value"] for row in rows if row["measure"] in PUBLISHED}
        for name, rows in by_sample(tables["measures"]).items()
    }
    assert found == {one["query_id"]: one["metrics"] for one in own["results"]}
    printed = {name: value for group in own["metrics"].values() for name, value in group.items()}
    assert {name: round(100 * mean(one[name] for one in found.values()), 1) for name in PUBLISHED} == printed


@pytest.mark.gate
def test_without_a_ground_truth_only_faithfulness_is_defined(spark: SparkSession) -> None:
    worlds = [one for one in rag_samples(40, judge="noisy") if "un" not in one["response"]]
    (whole, _), (bare, tools) = (
        scored(spark, [{**one, **more} for one in worlds]) for more in ({}, {"ground_truth": None})
    )
    measures = {name: by_sample(tables["measures"]) for name, tables in (("whole", whole), ("bare", bare))}
    defined = Counter[str]()
    for one in worlds:
        wanted, found = (
            {row["measure"]: tuple(row[end] for end in ("value", "value_low", "value_high")) for row in rows}
            for rows in (measures[name][one["sample_id"]] for name in ("whole", "bare"))
        )
        assert set(found) == set(wanted)
        for name, ends in found.items():
            assert ends == (wanted[name] if name in WITHOUT_TRUTH else (None, None, None)), name
            defined[name] += ends[0] is not None
    assert defined["faithfulness"] > 10
    assert {row["status"] for row in bare["scores"]} == {"no_statements"}
    assert {row["score"] for row in bare["scores"]} == {None}
    assert {row["verdict"] for row in bare["claims"]} == {None}
    assert bare["statements"] == []
    used = [row["used"] for row in whole["contexts_used"]]
    assert [row["used"] for row in bare["contexts_used"]] == used
    assert {row[name] for row in bare["contexts_used"] for name in ("relevant", "noise", "new_claims")} == {None}
    # No claim is compared with a ground truth
    texts = {text["text"] for one in worlds for text in normalise_contexts(one["contexts"])}
    assert {row["premise"] for row in tools.asked["check_claims"]} <= texts
