"""Test the requests and settings of nuggets, and the effect of each lost or missing completion on the samples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tests.jobs.metrics.scripted import Hits, Row, ScriptedTools, no_hits, rows_of
from untold.jobs.inputs.samples import CONTEXTS, OPTIONAL_TYPES
from untold.jobs.metrics import METRICS, digests_of, needs_of, optional_of, stages_of
from untold.jobs.metrics.nuggets import score
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError
from untold.udfs.samples.items import normalise_references
from untold.udfs.stages.arrow import UNASKED

TEXTS = ("sample_id", "query", "response", "system", "query_id")
SAMPLES = T.StructType(
    [
        *(T.StructField(name, T.StringType()) for name in TEXTS),
        T.StructField("contexts", CONTEXTS),
        T.StructField("references", OPTIONAL_TYPES["references"]),
    ]
)
FATES = ("http_400", UNASKED)


def created(row: Row) -> Row:
    said = [f"{part.strip()}." for text in row["texts"] for part in text.split(".") if part.strip()]
    return {"nuggets": [*row["nuggets"], *said]}


def rated(row: Row) -> Row:
    """Return a label for each nugget. If the query is careless, only the first label of the list is valid."""
    labels = ["vital" if "sails" in nugget or "swims" in nugget else "okay" for nugget in row["nuggets"]]
    return {"labels": [labels[0], *[None] * (len(labels) - 1)] if "careless" in row["query"] else labels}


def assigned(row: Row) -> Row:
    """Return the label of each nugget.

    The response must contain the nugget, and a longer sentence is partial support.
    """
    said, nuggets = row["response"], row["nuggets"]
    labels = [
        "support" if one in said else "partial_support" if one.removesuffix(".") in said else "not_support"
        for one in nuggets
    ]
    return {"labels": labels, "reasons": ["a bit" if label == "partial_support" else None for label in labels]}


SCRIPT: Mapping[str, Callable[[Row], Row | str]] = {
    "summarise_context": lambda row: {"summary": None if "silent" in row["query"] else row["text"]},
    "create_nuggets": created,
    "rate_nuggets": rated,
    "assign_nuggets": assigned,
}


def sample(name: str, query: str = "q", **more: Any) -> Row:
    """Return a sample with four facts about a person in three contexts.

    The response has one fact and a part of another.
    """
    said = (f"{name} sails. {name} reads.", f"{name} knits.", f"{name} swims.")
    contexts = [{"id": str(number), "text": text} for number, text in enumerate(said, start=1)]
    response = f"{name} sails. {name} swims a bit."
    return {"sample_id": name, "query": query, "response": response, "contexts": contexts, **more}


def named(stage: str, fate: str) -> str:
    return f"{stage.title().replace('_', '')}{fate.title().replace('_', '')}"


def broken(stage: str) -> Callable[[Row], Row | str]:
    """Return a stage that fails for the requests of some samples about knitting."""
    fates = {f"{named(stage, fate)} knits": fate for fate in FATES}

    def answer(row: Row) -> Row | str:
        said = str(dict(row))
        return next((fate for text, fate in fates.items() if text in said), None) or SCRIPT[stage](row)

    return answer


@dataclass(frozen=True)
class Run:
    """The tables of the metric and the tools with the requests."""

    tables: Mapping[str, list[dict[str, Any]]]
    tools: ScriptedTools

    def rows(self, table: str, name: str) -> list[dict[str, Any]]:
        return [row for row in self.tables[table] if row["sample_id"] == name]

    def outcome(self, name: str) -> tuple[Any, ...]:
        """Return the status, the counts of covered, uncovered and unjudged nuggets, and the score with its bounds."""
        (row,) = self.rows("scores", name)
        counts = row["covered"], row["uncovered"], row["unjudged"]
        return row["status"], counts, row["score"], (row["score_low"], row["score_high"])

    def nuggets(self, name: str) -> list[tuple[Any, ...]]:
        rows = sorted(self.rows("statements", name), key=lambda row: row["rank"])
        return [(row["text"].removeprefix(f"{name} "), row["importance"], row["support"]) for row in rows]

    def measures(self, name: str) -> dict[str, float | None]:
        return {row["measure"]: row["value"] for row in self.rows("measures", name)}

    def asked(self, name: str) -> Counter[str]:
        """Return the number of requests by stage that contain the name."""
        return Counter(stage for stage, rows in self.tools.asked.items() for row in rows if f"{name} " in str(row))


def scored(spark: SparkSession, samples: Iterable[Row], hits: Hits = no_hits, **settings: Any) -> Run:
    tools = ScriptedTools(spark, {stage: broken(stage) for stage in SCRIPT}, hits)
    rows = [{**one, "references": normalise_references(one.get("references"))} for one in samples]
    frame = spark.createDataFrame([[row.get(name) for name in SAMPLES.names] for row in rows], SAMPLES)
    found = score(frame, tools, Settings.model_validate(settings))
    return Run({name: rows_of(table, *table.columns[:3]) for name, table in found.items()}, tools)


GIVEN = [
    {"id": "b", "text": "Gina knits.", "importance": "okay"},
    {"id": "a", "text": "Gina sails.", "importance": "vital"},
    {"id": "c", "text": "Gina swims."},
    {"id": "d", "text": "Gina reads.", "weight": 0.5},
]


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Run:
    """Score samples with one context per window: one sample for each stage and type of error, and some others."""
    lost = [sample(named(stage, fate), f"q {named(stage, fate)}") for stage in SCRIPT for fate in FATES]
    others = [
        sample("Ada", "q Ada"),
        sample("Ada", "q Ada") | {"sample_id": "Again", "response": "Ada knits."},
        sample("Bare", contexts=[]),
        sample("Mute", "silent"),
        sample("Blank", response=" \n"),
        sample("Gina", references=GIVEN, contexts=None),
        sample("Okay", references=[{"text": "Okay knits.", "importance": "okay"}]),
        sample("Cora", "careless"),
    ]
    return scored(spark, [*lost, *others], nuggets={"window": 1})


@pytest.mark.gate
def test_a_sample_by_hand(run: Run) -> None:
    assert run.nuggets("Ada") == [
        ("sails.", "vital", "support"),
        ("swims.", "vital", "partial_support"),
        ("reads.", "okay", "not_support"),
        ("knits.", "okay", "not_support"),
    ]
    assert [row["reason"] for row in run.rows("statements", "Ada") if row["support"] == "partial_support"] == ["a bit"]
    assert sum(row["reason"] is not None for row in run.rows("statements", "Ada")) == 1
    assert run.outcome("Ada") == ("ok", (1, 3, 0), 0.75, (0.75, 0.75))
    assert run.measures("Ada") == {
        "strict_vital": 0.5,
        "strict_all": 0.25,
        "vital": 0.75,
        "all": 0.375,
        "weighted": 0.5,
        "nuggets": 4.0,
        "vital_nuggets": 2.0,
    }
    assert run.asked("Ada") == {"summarise_context": 3, "create_nuggets": 3, "rate_nuggets": 1, "assign_nuggets": 2}


@pytest.mark.gate
def test_windows_are_sent_in_order_with_the_earlier_nuggets(run: Run) -> None:
    asked = [row for row in run.tools.asked["create_nuggets"] if row["query"] == "q Ada"]
    assert [(row["texts"], row["nuggets"]) for row in asked] == [
        (["Ada sails. Ada reads."], []),
        (["Ada knits."], ["Ada sails.", "Ada reads."]),
        (["Ada swims."], ["Ada sails.", "Ada reads.", "Ada knits."]),
    ]
    assert {row["most"] for row in asked} == {30}


@pytest.mark.gate
@pytest.mark.parametrize("stage", SCRIPT)
def test_what_is_lost_fails_a_sample_or_leaves_it_partial(run: Run, stage: str) -> None:
    name = named(stage, "http_400")
    assert [(one["stage"], one["error_type"]) for one in run.rows("failures", name)] == [(stage, "http_400")]
    if stage == "assign_nuggets":
        assert run.outcome(name) == ("partial", (1, 2, 1), 0.75, (0.75, 0.75))
        bounds = {row["measure"]: (row["value_low"], row["value_high"]) for row in run.rows("measures", name)}
        assert (run.measures(name)["all"], bounds["all"]) == (0.5, (0.375, 0.625))
        # The stage sends a list and then each of its nuggets
        assert run.asked(name)[stage] == 5
    else:
        assert run.outcome(name) == ("failed", (None, None, None), None, (0.0, 1.0))
        assert not run.asked(name)["assign_nuggets"]


@pytest.mark.gate
@pytest.mark.parametrize("stage", SCRIPT)
def test_unsent_requests_wait_for_the_next_run(run: Run, stage: str) -> None:
    name = named(stage, UNASKED)
    assert run.outcome(name) == ("budget", (None, None, None), None, (0.0, 1.0))
    assert run.rows("failures", name) == []


@pytest.mark.gate
def test_nuggets_without_a_clear_label_are_sent_in_a_list_and_then_singly(run: Run) -> None:
    # The first list labels one of the four nuggets, and the second list labels another. The last two are single
    # requests
    assert run.asked("Cora") == {"summarise_context": 3, "create_nuggets": 3, "rate_nuggets": 4, "assign_nuggets": 1}
    sizes = [len(row["nuggets"]) for row in run.tools.asked["rate_nuggets"] if row["query"] == "careless"]
    assert sizes == [4, 3, 1, 1]
    assert run.outcome("Cora")[:2] == run.outcome("Ada")[:2]


@pytest.mark.gate
def test_content_to_avoid_is_left_out_and_the_message_names_the_metric_for_it(spark: SparkSession) -> None:
    given = [{"text": "Gina sails.", "weight": 5}, {"text": "Gina swims.", "weight": -8}]
    found = scored(spark, [sample("Gina", references=given)])
    assert [(row["text"], row["kept"], row["covered"]) for row in found.rows("statements", "Gina")] == [
        ("Gina sails.", True, True),
        ("Gina swims.", False, None),
    ]
    assert [row["nuggets"] for row in found.tools.asked["assign_nuggets"]] == [["Gina sails."]]
    assert [(row["score"], row["dropped"]) for row in found.rows("scores", "Gina")] == [(1.0, 1)]
    assert "--metric rubric" in str(METRICS["nuggets"].dropped)


@pytest.mark.gate
def test_given_nuggets_without_an_importance_are_rated(run: Run) -> None:
    assert [(row["reference_id"], row["importance"], row["weight"]) for row in run.rows("statements", "Gina")] == [
        ("a", "vital", None),
        ("c", "vital", None),
        ("b", "okay", None),
        ("d", "okay", 0.5),
    ]
    assert [row["nuggets"] for row in run.tools.asked["rate_nuggets"] if "Gina" in str(row)] == [["Gina swims."]]
    assert not {"summarise_context", "create_nuggets"} & set(run.asked("Gina"))


@pytest.mark.gate
def test_without_vital_nuggets_the_score_is_undefined(run: Run) -> None:
    assert run.outcome("Bare") == run.outcome("Mute") == ("no_statements", (0, 0, 0), None, (None, None))
    assert run.outcome("Okay") == ("no_statements", (0, 1, 0), None, (None, None))
    assert (run.measures("Okay")["vital"], run.measures("Okay")["all"]) == (None, 0.0)


@pytest.mark.gate
def test_a_blank_response_supports_nothing_without_a_request(run: Run) -> None:
    assert run.outcome("Blank") == ("ok", (0, 4, 0), 0.0, (0.0, 0.0))
    assert "assign_nuggets" not in run.asked("Blank")


@pytest.mark.slow
def test_nuggets_are_cut_when_they_are_made_and_when_they_are_ranked(spark: SparkSession) -> None:
    own = {"max_generated": 3, "top_k": 1, "score": "strict_all"}
    found = scored(spark, [sample("Ada")], nuggets=own)
    assert found.nuggets("Ada") == [("sails.", "vital", "support"), ("reads.", "okay", None), ("knits.", "okay", None)]
    assert [row["kept"] for row in found.rows("statements", "Ada")] == [True, False, False]
    assert found.outcome("Ada")[:3] == ("ok", (1, 0, 0), 1.0)
    assert [row["dropped"] for row in found.rows("scores", "Ada")] == [2]
    assert [len(row["texts"]) for row in found.tools.asked["create_nuggets"]] == [3]


HITS = [{"chunk_id": f"c#{n}", "document_id": "c", "text": f"Ada {said}."} for n, said in enumerate(("sails", "knits"))]


@pytest.mark.gate
def test_nuggets_are_created_from_the_hits_of_a_query(spark: SparkSession) -> None:
    lost = sample("Lost", "lost")
    found = scored(
        spark, [sample("Ada"), lost], lambda query: "http_500" if query == "lost" else HITS, knowledge={"source": "web"}
    )
    assert [text for text, *_ in found.nuggets("Ada")] == ["sails.", "knits."]
    assert found.outcome("Lost")[0] == "failed"
    assert [(row["stage"], row["error_type"]) for row in found.rows("failures", "Lost")] == [("web_search", "http_500")]


@pytest.mark.gate
def test_a_file_of_nuggets_is_joined_by_topic(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "nuggets.jsonl"
    own = [{"text": "Ada sails.", "importance": "vital"}, {"text": "Ada knits.", "importance": "okay"}]
    file.write_text(json.dumps({"qid": 7, "query": "q", "nuggets": own}) + "\n", encoding="utf-8")
    samples = [sample("Ada", query_id="7", contexts=None), sample("Other", query_id="8", contexts=None)]
    found = scored(spark, samples, nuggets={"file": str(file)})
    assert found.nuggets("Ada") == [("sails.", "vital", "support"), ("knits.", "okay", "not_support")]
    assert found.outcome("Other")[0] == "no_statements"
    settings = Settings.model_validate({"nuggets": {"file": str(file)}})
    assert needs_of(["nuggets"], settings) == ("query", "response", "query_id")
    assert list(digests_of(["nuggets"], settings)) == ["nuggets.file"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "line 2 is not an object with qid and nuggets"),
        (
            '{"qid": "2", "nuggets": [{"text": "a", "importance": "high"}]}',
            "line 2 is not an object with qid and nuggets",
        ),
        ('{"qid": "1", "nuggets": []}', "line 2 repeats a qid"),
    ],
)
def test_a_file_of_nuggets_that_cannot_be_used_is_an_error(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "nuggets.jsonl"
    file.write_text(f'{{"qid": "1", "nuggets": []}}\n{line}\n', encoding="utf-8")
    with pytest.raises(UserError, match=said):
        digests_of(["nuggets"], Settings.model_validate({"nuggets": {"file": str(file)}}))


def test_its_stages_and_requirements() -> None:
    of_contexts = Settings()
    of_index = Settings.model_validate({"knowledge": {"source": "index"}})
    own = ["create_nuggets", "rate_nuggets", "assign_nuggets"]
    assert stages_of(["nuggets"], of_contexts) == ["summarise_context", *own]
    assert stages_of(["nuggets"], of_index) == [*own, "embed_text"]
    assert needs_of(["nuggets"], of_contexts) == ("query", "response", "contexts or references")
    assert needs_of(["nuggets"], of_index) == ("query", "response")
    assert optional_of(["nuggets"], Settings()) == ("query_id", "references")
    assert METRICS["nuggets"].bounds_of_unknown(of_contexts)["vital"] == (0.0, 1.0)
