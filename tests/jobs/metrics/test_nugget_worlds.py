"""Compare the metric nuggets with brute force in hundreds of worlds: the requests and all of the tables."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tests.fakes.asked_nuggets import judge_nuggets
from tests.fakes.expected_nuggets import Options
from tests.fakes.world_nuggets import nugget_worlds
from tests.jobs.metrics.scripted import Row, ScriptedTools, say_as_world, write_tables
from tests.jobs.metrics.test_conflicts import is_lost
from tests.runs.harness import read_table
from tests.runs.test_nuggets import assert_concluded
from untold.jobs.inputs.samples import CONTEXTS, OPTIONAL_TYPES
from untold.jobs.metrics.nuggets import score
from untold.jobs.settings.model import Settings
from untold.udfs.samples.conversion import normalise_contexts
from untold.udfs.samples.items import normalise_references

WORLDS, JUDGE = 200, "noisy"
STAGES = ("summarise_context", "create_nuggets", "rate_nuggets", "assign_nuggets")
OPTIONS = Options(judge=JUDGE, window=2, max_generated=6, top_k=4, vital_weight=0.5)
SETTINGS = {"window": 2, "max_generated": 6, "top_k": 4, "vital_weight": 0.5}


@pytest.mark.slow
def test_all_tables_equal_brute_force_for_any_lost_requests(spark: SparkSession, tmp_path: Path) -> None:
    samples = [sample for world in nugget_worlds(WORLDS, JUDGE) for sample in world.samples(2)]
    lost, asked = is_lost(STAGES), set[tuple[str, str]]()

    def ask(stage: str, **variables: Any) -> str | None:
        asked.add((stage, json.dumps(variables, sort_keys=True)))
        return "unparsable" if lost(stage, variables) else None

    judged = {sample["sample_id"]: judge_nuggets(sample, OPTIONS, ask) for sample in samples}
    tools = ScriptedTools(spark, say_as_world(JUDGE, lost))
    write_tables(score(_frame(spark, samples), tools, Settings.model_validate({"nuggets": SETTINGS})), tmp_path)
    assert_concluded(tmp_path, {name: one.verdict for name, one in judged.items()})
    failures = {(name, stage) for name, one in judged.items() for stage, *_ in one.lost}
    assert {(row["sample_id"], row["stage"]) for row in read_table(tmp_path, "failures")} == failures
    assert Counter({stage: len(rows) for stage, rows in tools.asked.items()}) == Counter(stage for stage, _ in asked)
    statuses = Counter("failed" if one.verdict is None else one.verdict.status for one in judged.values())
    assert min(statuses[name] for name in ("ok", "partial", "failed", "no_statements")) > 5, statuses


def _frame(spark: SparkSession, samples: list[Row]) -> Any:
    """Return the samples in the same form as after reading them."""
    texts = [T.StructField(name, T.StringType()) for name in ("sample_id", "query", "response", "system", "query_id")]
    given = {"contexts": CONTEXTS, "references": OPTIONAL_TYPES["references"]}
    schema = T.StructType([*texts, *(T.StructField(name, kind) for name, kind in given.items())])
    read = [
        {
            **one,
            "contexts": normalise_contexts(list(one["contexts"] or [])),
            "references": normalise_references(one["references"]),
        }
        for one in samples
    ]
    return spark.createDataFrame([[one.get(name) for name in schema.names] for one in read], schema)
