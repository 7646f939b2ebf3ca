"""A metric's own code over a few samples on Spark, answered by a script: no server, and each request written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from graph.distributed import Condensed
from jobs.asking.requests import Requests, Rows
from jobs.inputs.samples import OPTIONAL_TYPES
from jobs.metrics.base import Metric
from jobs.run.session import spark_schema
from jobs.settings.model import Settings
from udfs.samples.items import normalise_references
from udfs.stages import definition_of

Row = dict[str, Any]
Script = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | str]
"""From a stage and its variables to its output, or to the type of an error."""


class ScriptedTools:
    """What a metric calls, answered by a script. `requests`: (stage, variables), each time that they are asked."""

    def __init__(self, spark: SparkSession, script: Script) -> None:
        self._spark, self._script = spark, script
        self.requests: list[tuple[str, Row]] = []

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        assert isinstance(rows, DataFrame | Rows)
        frame, kept = (rows, tuple(carry)) if isinstance(rows, DataFrame) else (rows.frame, rows.carry)
        definition = definition_of(stage)
        own = [name for name in definition.variables if name not in kept]
        fields = [frame.schema[name] for name in kept]
        output = spark_schema(pa.schema(definition.output)).fields
        texts = [T.StructField(name, T.StringType()) for name in ("request_id", "error_type", "error")]
        schema = T.StructType([*fields, texts[0], *output, *texts[1:]])
        answered = []
        for row in frame.select(*kept, *own).collect():
            given = row.asDict(recursive=True)
            variables = {name: given[name] for name in definition.variables}
            key = json.dumps(variables, sort_keys=True)
            self.requests.append((stage, variables))
            said = self._script(stage, variables)
            found = {"error_type": said, "error": said} if isinstance(said, str) else said
            answered.append(
                [*(given[name] for name in kept), key, *(found.get(one.name) for one in schema[len(kept) + 1 :])]
            )
        return self._spark.createDataFrame(answered, schema)

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        return frame.localCheckpoint()

    def contexts(self) -> DataFrame:
        raise AssertionError("no contexts are read")

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        raise AssertionError("nothing is looked up")

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        raise AssertionError("there is no graph")


def samples_of(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Samples with references, as they are after they were read."""
    texts = [T.StructField(name, T.StringType()) for name in ("sample_id", "query", "response", "system")]
    schema = T.StructType([*texts, T.StructField("references", OPTIONAL_TYPES["references"])])
    given = [
        {"query": "q", "system": None, **row, "references": normalise_references(row["references"])} for row in rows
    ]
    return spark.createDataFrame([[row[name] for name in schema.names] for row in given], schema)


def score_rows(metric: Metric, tools: ScriptedTools, samples: DataFrame, settings: Settings) -> dict[str, list[Row]]:
    """The rows of each table that the metric gives."""
    tables = metric.score(samples, tools, settings)
    return {name: [row.asDict(recursive=True) for row in frame.collect()] for name, frame in tables.items()}
