"""Test the requests and settings of importance, and the effect of each lost, invalid or missing completion on the
samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import hypot
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.jobs.metrics.scripted import Hits, Row, ScriptedTools, no_hits, rows_of
from untold.jobs.metrics import METRICS, needs_of, optional_of, stages_of
from untold.jobs.metrics.importance import score
from untold.jobs.settings.model import Settings
from untold.udfs.stages.arrow import UNASKED

COLUMNS = ("sample_id", "query", "response", "contexts", "references")
SAMPLES = (
    "sample_id string, query string, response string, contexts array<struct<id: string, text: string>>, references "
    "array<struct<id: string, text: string, anchor: string, weight: double, labels: array<string>, covered_by: "
    "array<string>, importance: string>>, system string"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
Tables = Mapping[str, list[dict[str, Any]]]


def sentences(text: str) -> list[str]:
    return [f"{part.strip()}." for part in text.split(".") if part.strip()]


def supported(row: Row) -> Row:
    return {"relation": "supported" if any(row["claim"] in text for text in row["evidence"]) else "contradicted"}


def covered(row: Row) -> Row:
    numbers = [number for number, claim in enumerate(row["claims"], start=1) if claim == row["fact"]]
    return {"covered": bool(numbers), "claims": numbers}


def vector(row: Row) -> Row:
    """Return a vector with one dimension per letter.

    The texts have different words, so there are no near-duplicates.
    """
    counts = [row["text"].casefold().count(letter) for letter in LETTERS]
    return {"vector": [count / hypot(*counts) for count in counts]}


def rated(row: Row) -> Row:
    """Return equal ratings, or higher ratings for longer facts if the query asks for the longest."""
    alike = 1.0 if row["query"].startswith("light") else 3.0
    ratings = [min(5.0, len(fact) / 4) if row["query"].startswith("long") else alike for fact in row["facts"]]
    return {**dict.fromkeys(("relevance", "salience"), ratings), "weighted": True}


SCRIPT: Mapping[str, Callable[[Row], Row | str]] = {
    "summarise_context": lambda row: {"summary": None if "silent" in row["query"] else row["text"]},
    "extract_facts": lambda row: {"facts": [] if "Nobody" in row["text"] else sentences(row["text"])},
    "embed_text": vector,
    "rate_importance": rated,
    "extract_claims": lambda row: {"claims": sentences(row["text"])},
    "verify_claim": supported,
    "check_coverage": covered,
}
WINDOW = "extract_verifiable_claims"
# The word that selects the text of a sample for the errors of each stage
WHERE = {
    "summarise_context": "knits",
    "extract_facts": "knits",
    "embed_text": "knits",
    "rate_importance": "sails",
    "extract_claims": "sings",
    WINDOW: "sings",
    "verify_claim": "sings",
    "check_coverage": "knits",
}
FATES = ("http_400", UNASKED)


def sample(name: str, query: str = "q", **more: Any) -> Row:
    """Return a sample with three facts about a person in two contexts.

    The response has one of the facts and another.
    """
    contexts = [
        {"id": "a", "text": f"{name} sails. {name} swims."},
        {"id": "b", "text": f"{name} swims. {name} knits."},
    ]
    said = f"{name} sails. {name} sings."
    return {"sample_id": name, "query": query, "response": said, "contexts": contexts, **more}


def in_both_orders(name: str, query: str) -> list[Row]:
    """Return the sample with a third context, and the same sample with its contexts in reverse order."""
    straight = sample(name, query)
    straight["contexts"].append({"id": "c", "text": f"{name} collects. {name} knits."})
    return [straight, {**straight, "sample_id": f"{name}Turned", "contexts": straight["contexts"][::-1]}]


def given(name: str, query: str = "q", unwanted: str | None = None, **more: Any) -> Row:
    """Return the sample with a reference without an id and, optionally, a reference with a negative weight."""
    references = [(None, f"{name} sails.", None, None, None, None, None)]
    references += [("-", unwanted, None, -1.0, None, None, None)] if unwanted else []
    return sample(name, query, references=references, **more)


def named(stage: str, fate: str) -> str:
    """Return the name of the sample that has no completion of a stage."""
    return f"{stage.title().replace('_', '')}{fate.title().replace('_', '')}"


def broken(stage: str) -> Callable[[Row], Row | str]:
    """Return a stage that fails for some samples, but only for requests with the word in `WHERE`."""
    script = {**SCRIPT, WINDOW: lambda row: {"claims": [] if row["sentence"][0] in "N." else [row["sentence"]]}}
    fates = {f"{named(stage, fate)} {WHERE[stage]}": fate for fate in FATES}

    def answer(row: Row) -> Row | str:
        said = str(dict(row))
        return next((fate for text, fate in fates.items() if text in said), None) or script[stage](row)

    return answer


def scored(spark: SparkSession, samples: Iterable[Row], hits: Hits = no_hits, **settings: Any) -> Run:
    """Return the tables of the metric for the samples and the tools with the requests."""
    tools = ScriptedTools(spark, {stage: broken(stage) for stage in (*SCRIPT, WINDOW)}, hits)
    rows = [(*(one.get(name) for name in COLUMNS), "system") for one in samples]
    found = score(spark.createDataFrame(rows, SAMPLES), tools, Settings.model_validate(settings))
    return Run({name: rows_of(table, *table.columns[:3]) for name, table in found.items()}, tools)


@dataclass(frozen=True)
class Run:
    """The tables of the metric and the tools with the requests."""

    tables: Tables
    tools: ScriptedTools

    def rows(self, table: str, name: str) -> list[dict[str, Any]]:
        return [row for row in self.tables[table] if row["sample_id"] == name]

    def outcome(self, name: str) -> tuple[Any, ...]:
        """Return the status, the counts of covered, uncovered and unjudged facts, and the score."""
        (row,) = self.rows("scores", name)
        return row["status"], (row["covered"], row["uncovered"], row["unjudged"]), row["score"]

    def bounds(self, name: str) -> tuple[Any, ...]:
        (row,) = self.rows("scores", name)
        return row["score_low"], row["score_high"]

    def measures(self, name: str) -> dict[str, float | None]:
        return {row["measure"]: row["value"] for row in self.rows("measures", name)}

    def asked(self, name: str) -> Counter[str]:
        """Return the number of requests by stage that contain the name."""
        return Counter(stage for stage, rows in self.tools.asked.items() for row in rows if f"{name} " in str(row))


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Run:
    """Score samples with contexts: one sample for each stage and type of error, and some other samples."""
    lost = [sample(named(stage, fate), f"q {named(stage, fate)}") for stage in SCRIPT for fate in FATES]
    others = [
        sample("Ada"),
        sample("Bare", contexts=[]),
        sample("Mute", "silent"),
        sample("Nobody"),
        sample("Blank", response=" \n"),
        sample("Feather", "light"),
        given("Gina"),
        given("Alone", contexts=None),
        given("Nega", unwanted="Nega sings."),
        *in_both_orders("Ivo", "long"),
    ]
    return scored(spark, [*lost, *others])


THIRD = pytest.approx(1 / 3)


@pytest.mark.gate
def test_a_sample_by_hand(run: Run) -> None:
    assert run.outcome("Ada") == ("ok", (1, 2, 0), THIRD)
    facts = [
        (row["text"], row["sources"], row["rank"], row["covered"], row["claims"])
        for row in run.rows("statements", "Ada")
    ]
    assert facts == [
        ("Ada sails.", ["a"], 1, True, ["Ada:importance:1"]),
        ("Ada swims.", ["a", "b"], 2, False, []),
        ("Ada knits.", ["b"], 3, False, []),
    ]
    assert [(row["text"], row["verdict"], len(row["evidence"])) for row in run.rows("claims", "Ada")] == [
        ("Ada sails.", "supported", 2),
        ("Ada sings.", "contradicted", 2),
    ]
    measures = run.measures("Ada")
    assert (measures["precision"], measures["recall"], measures["recall@5"]) == (0.5, THIRD, THIRD)
    assert run.asked("Ada") == {
        "summarise_context": 2,
        "extract_facts": 2,
        "rate_importance": 1,
        # Only facts are embedded: a claim gets all of the chunks
        "embed_text": 3,
        "extract_claims": 1,
        "verify_claim": 2,
        "check_coverage": 3,
    }


@pytest.mark.gate
def test_the_order_of_contexts_changes_only_ties(run: Run) -> None:
    facts, turned = (
        {row["text"]: (row["weight"], set(row["sources"])) for row in run.rows("statements", name)}
        for name in ("Ivo", "IvoTurned")
    )
    assert facts == turned
    # The longest fact is the first in both samples. The other facts have the same length
    ranks = [[row["rank"] for row in run.rows("statements", name)] for name in ("Ivo", "IvoTurned")]
    assert ranks == [[2, 3, 4, 1], [1, 2, 3, 4]]
    assert run.measures("Ivo") == run.measures("IvoTurned")
    assert run.outcome("Ivo") == run.outcome("IvoTurned")


@pytest.mark.gate
@pytest.mark.parametrize("stage", SCRIPT)
def test_what_is_lost_fails_a_sample_or_leaves_it_partial(run: Run, stage: str) -> None:
    name = named(stage, "http_400")
    assert [(one["stage"], one["error_type"]) for one in run.rows("failures", name)] == [(stage, "http_400")]
    if stage in ("verify_claim", "check_coverage"):
        of_fact = stage == "check_coverage"
        assert run.outcome(name) == ("partial", (1, 1 if of_fact else 2, 1), pytest.approx(0.5 if of_fact else 1 / 3))
        assert run.bounds(name) == (THIRD, pytest.approx(2 / 3 if of_fact else 1 / 3))
    else:
        assert run.outcome(name) == ("failed", (None, None, None), None)
        assert run.bounds(name) == (0.0, 1.0)
        assert not {"verify_claim", "check_coverage"} & set(run.asked(name))


@pytest.mark.gate
@pytest.mark.parametrize("stage", SCRIPT)
def test_unsent_requests_wait_for_the_next_run(run: Run, stage: str) -> None:
    name = named(stage, UNASKED)
    assert (run.outcome(name), run.bounds(name)) == (("budget", (None, None, None), None), (0.0, 1.0))
    assert run.rows("failures", name) == []
    assert set(run.measures(name).values()) == {None}


@pytest.mark.gate
def test_without_contexts_no_further_request_is_sent(run: Run) -> None:
    assert run.outcome("Bare") == run.outcome("Mute") == ("no_statements", (0, 0, 0), None)
    assert (run.asked("Bare"), run.asked("Mute")) == ({}, {"summarise_context": 2})


@pytest.mark.gate
def test_without_facts_claims_are_verified_all_the_same(run: Run) -> None:
    measures = run.measures("Nobody")
    assert run.outcome("Nobody") == ("no_statements", (0, 0, 0), None)
    assert (measures["precision"], measures["recall"], measures["facts"]) == (0.5, None, 0.0)


@pytest.mark.gate
def test_facts_with_zero_weight_leave_the_score_undefined(run: Run) -> None:
    assert run.outcome("Feather") == ("no_statements", (1, 2, 0), None)
    assert run.measures("Feather")["recall"] == THIRD


@pytest.mark.gate
def test_a_blank_response_covers_nothing(run: Run) -> None:
    assert run.outcome("Blank") == ("ok", (0, 3, 0), 0.0)
    assert not {"extract_claims", "verify_claim", "check_coverage"} & set(run.asked("Blank"))


@pytest.mark.gate
def test_references_need_neither_extraction_nor_vectors(run: Run) -> None:
    assert run.outcome("Gina") == ("ok", (1, 0, 0), 1.0)
    assert set(run.asked("Gina")) == {"rate_importance", "extract_claims", "verify_claim", "check_coverage"}
    (fact,) = run.rows("statements", "Gina")
    assert (fact["reference_id"], fact["sources"], fact["members"]) == ("1", None, None)


@pytest.mark.gate
def test_a_reference_with_negative_weight_is_not_an_expected_fact(run: Run) -> None:
    assert run.outcome("Nega") == ("ok", (1, 0, 0), 1.0)


@pytest.mark.gate
def test_without_contexts_references_are_checked_and_claims_not_judged(run: Run) -> None:
    measures = run.measures("Alone")
    assert run.outcome("Alone") == ("ok", (1, 0, 0), 1.0)
    assert (measures["precision"], measures["f1"], measures["claims"]) == (None, None, 2.0)
    assert [row["verdict"] for row in run.rows("claims", "Alone")] == [None, None]
    assert "verify_claim" not in run.asked("Alone")


@pytest.mark.gate
def test_claims_are_shown_the_nearest_chunks_or_are_unjudged(spark: SparkSession) -> None:
    # The requests for the vectors of one claim and one chunk fail
    odd = named("embed_text", "http_400")
    samples = [sample("Ada"), sample(odd), sample("Cleo", response=f"Cleo sails. {odd} knits.")]
    found = scored(spark, samples, importance={"evidence_chunks": 1, "duplicates": "none"})
    shown = {row["claim_id"]: row["chunk_id"].partition("@")[0] for row in found.rows("evidence", "Ada")}
    assert shown == {"Ada:importance:1": "a#0", "Ada:importance:2": "b#0"}
    assert all(row["rank"] == 1 and row["similarity"] > 0.5 for row in found.rows("evidence", "Ada"))
    assert [row["verdict"] for row in found.rows("claims", odd)] == [None, None]
    assert found.outcome(odd) == ("partial", (1, 2, 2), THIRD)
    assert [row["verdict"] for row in found.rows("claims", "Cleo")] == ["supported", None]
    assert found.outcome("Cleo") == ("partial", (1, 2, 1), THIRD)
    assert {(row["sample_id"], row["stage"], row["error_type"]) for row in found.tables["failures"]} == {
        (odd, "embed_text", "http_400"),
        ("Cleo", "embed_text", "http_400"),
    }


@pytest.mark.gate
@pytest.mark.parametrize("fate", FATES)
def test_claims_of_sentences_are_gathered_in_order_or_lost_together(spark: SparkSession, fate: str) -> None:
    odd = named(WINDOW, fate)
    samples = [
        sample("Ada", response="Ada sails. Nice! Ada sings. Ada sails. Ada knits. Ada reads."),
        sample(odd),
        sample("Blank", response=" \n"),
        sample("Mute", response="Nice!"),
        sample("Signs", response="..."),
    ]
    found = scored(spark, samples, importance={"claims": "window"})
    assert [row["text"] for row in found.rows("claims", "Ada")] == [
        "Ada sails.",
        "Ada sings.",
        "Ada knits.",
        "Ada reads.",
    ]
    windows = {(row["before"], row["sentence"], row["after"]) for row in found.tools.asked[WINDOW]}
    assert {
        ("", "Ada sails.", "Nice!"),
        ("Ada sails.", "Nice!", "Ada sings."),
        ("Nice! Ada sings. Ada sails.", "Ada knits.", "Ada reads."),
        ("Ada sings. Ada sails. Ada knits.", "Ada reads.", ""),
        ("", "Nice!", ""),
    } < windows
    assert found.outcome("Ada")[:2] == ("ok", (2, 1, 0))
    assert found.outcome("Mute") == found.outcome("Signs") == found.outcome("Blank") == ("ok", (0, 3, 0), 0.0)
    assert [found.measures(name)["claims"] for name in ("Ada", "Mute", "Blank")] == [4.0, 0.0, 0.0]
    assert found.outcome(odd)[0] == ("failed" if fate == "http_400" else "budget")
    assert found.rows("claims", odd) == []
    failed = [(row["stage"], row["error_type"]) for row in found.rows("failures", odd)]
    # The windows of both sentences contain the claim
    assert failed == [(WINDOW, fate)] * (2 if fate == "http_400" else 0)
    assert "extract_claims" not in found.tools.asked


@pytest.mark.gate
def test_a_claim_is_shown_all_evidence_of_its_query(spark: SparkSession) -> None:
    contexts = [{"id": str(number), "text": f"Ada sails {number}."} for number in range(9)]
    samples = [sample("Ada", contexts=contexts, response="Ada sails 8.")]
    few, whole = (scored(spark, samples, importance={"evidence_chunks": most}) for most in (5, None))
    assert [len(run.tools.asked["verify_claim"][0]["evidence"]) for run in (few, whole)] == [5, 9]
    assert [row["rank"] for row in whole.rows("evidence", "Ada")] == list(range(1, 10))
    assert whole.tools.asked["verify_claim"][0]["evidence"] == [context["text"] for context in contexts]


HITS = [
    {"chunk_id": f"{document}#{number}", "document_id": document, "text": text, "similarity": similarity}
    for document, number, text, similarity in (
        ("b", 0, "Ada swims.", 0.9),
        ("a", 1, "Ada sails.", 0.9000001),
        ("c", 0, "Ada knits.", 0.4),
        ("b", 1, "Ada reads.", 0.3),
    )
]


@pytest.mark.gate
def test_facts_are_taken_from_the_best_documents_of_an_index(spark: SparkSession) -> None:
    settings = {"knowledge": {"source": "index"}, "importance": {"documents": 2, "max_facts": 2}}
    found = scored(spark, [sample("Ada", contexts=None)], lambda query: HITS, **settings)
    # The similarities are equal to six decimals, so the documents are sorted by name
    assert [(row["text"], row["sources"]) for row in found.tables["statements"]] == [
        ("Ada sails.", ["a#1"]),
        ("Ada swims.", ["b#0"]),
    ]
    # The third fact exceeds the maximum
    assert [row["dropped"] for row in found.tables["scores"]] == [1]
    assert [row["chunk_id"] for row in found.tables["chunks"]] == ["a#1", "b#0", "b#1"]
    assert found.tools.asked["verify_claim"][0]["evidence"] == ["Ada sails.", "Ada swims.", "Ada reads."]
    assert "summarise_context" not in found.tools.asked


@pytest.mark.slow
def test_searches_that_fail_or_find_nothing(spark: SparkSession) -> None:
    samples = [sample("Ada", "nothing"), sample("Lost", "lost"), given("Gina", "lost")]
    found = scored(spark, samples, lambda query: "timeout" if query == "lost" else [], knowledge={"source": "web"})
    assert found.outcome("Ada") == ("no_statements", (0, 0, 0), None)
    assert [row["verdict"] for row in found.rows("claims", "Ada")] == ["not_supported"] * 2
    assert "verify_claim" not in found.tools.asked
    assert (found.outcome("Lost")[0], found.outcome("Gina")) == ("failed", ("partial", (1, 0, 2), 1.0))
    assert {(row["sample_id"], row["stage"], row["error_type"]) for row in found.tables["failures"]} == {
        ("Lost", "web_search", "timeout"),
        ("Gina", "web_search", "timeout"),
    }


@pytest.mark.parametrize(
    ("given", "stages"),
    [
        (
            {},
            [
                *("summarise_context", "extract_facts", "embed_text"),
                *("rate_importance", "extract_claims", "verify_claim", "check_coverage"),
            ],
        ),
        (
            {"importance": {"claims": "window"}},
            [
                *("summarise_context", "extract_facts", "embed_text"),
                *("rate_importance", "extract_verifiable_claims", "verify_claim", "check_coverage"),
            ],
        ),
        (
            {"knowledge": {"source": "web"}, "importance": {"duplicates": "entailed"}},
            [
                *("extract_facts", "embed_text", "classify_relation"),
                *("rate_importance", "extract_claims", "verify_claim", "check_coverage", "web_search"),
            ],
        ),
    ],
)
def test_stages_follow_from_the_settings(given: dict[str, Any], stages: list[str]) -> None:
    assert stages_of(["importance"], Settings.model_validate(given)) == stages


def test_settings_that_read_contexts_require_contexts_or_references() -> None:
    of_contexts, of_index = Settings(), Settings.model_validate({"knowledge": {"source": "index"}})
    assert needs_of(["importance"], of_contexts) == ("query", "response", "contexts or references")
    assert needs_of(["importance"], of_index) == ("query", "response")
    assert needs_of(["importance", "e2e"], of_contexts)[-1] == "contexts"
    assert optional_of(["importance"], Settings()) == ("references",)
    assert METRICS["importance"].bounds_of_unknown(of_contexts)["recall@50"] == (0.0, 1.0)
