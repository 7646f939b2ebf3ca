"""The metric longrecall on Spark, with answers from a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from jobs.metrics import METRICS
from jobs.settings.model import Settings
from tests.jobs.metrics.scripted import ScriptedTools, samples_of, score_rows

LONGRECALL = METRICS["longrecall"]
DIRECTORS = {
    "sample_id": "directors",
    "query": "Which film directors influenced the school?",
    "response": """They are:
- **Il Maestro** (La Strada, 1954)
- Richard Boleslavsky: left Warsaw for Hollywood
- Steve McQueen, the American actor of Bullitt
- Liv Ullmann: acted for Ingmar Bergman
""",
    "references": [
        {"id": "f", "anchor": "Federico Fellini", "text": "made La Strada in 1954"},
        {"id": "b", "text": "Ryszard Boleslawski"},
        {"id": "m", "text": "Steve McQueen"},
        {"id": "i", "text": "Ingmar Bergman"},
    ],
}
TRUE = {("Federico Fellini: made La Strada in 1954", "Il Maestro: La Strada, 1954"),
        ("Ryszard Boleslawski", "Richard Boleslavsky: left Warsaw for Hollywood")}

def script(stage: str, variables: Mapping[str, Any]):
    if stage == "match_one":
        return {"matched": (variables["reference"], variables["candidate"]) in TRUE}
    if stage == "match_many":
        return {"candidates": [n for n, c in enumerate(variables["candidates"], 1) if (variables["reference"], c) in TRUE]}
    if stage == "embed_text":
        t = variables["text"]
        return {"vector": [1.0, 0.0] if "Fellini" in t or "Maestro" in t else [0.0, 1.0]}
    if stage == "resolve_coreference":
        return {"facts": variables["facts"]}
    raise AssertionError(stage)

def test_x(spark: SparkSession) -> None:
    tools = ScriptedTools(spark, script)
    t = score_rows(LONGRECALL, tools, samples_of(spark, [DIRECTORS]), Settings.model_validate({}))
    for n, rows in t.items():
        print(n)
        for r in rows: print("   ", r)
    for r in tools.requests: print(r)
    assert 0
