"""Tools of a metric with scripted completions. Every stage is a function of the variables of a request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.fakes.answers import Said, world
from untold.graph.distributed import Condensed
from untold.jobs.inference.stage.requests import Requests, Rows, result_schema
from untold.jobs.inputs.samples import OPTIONAL_TYPES
from untold.jobs.metrics.condensing import Condenser
from untold.jobs.metrics.summaries import summarise_contexts
from untold.jobs.retrieval.sources import FOUND
from untold.jobs.tables import RESULT_TABLES
from untold.udfs.llm.keys import Stage
from untold.udfs.ratings import Digit
from untold.udfs.samples.items import normalise_references
from untold.udfs.stages import STAGES, definition_of

Row = Mapping[str, Any]
# Each function returns the result of a stage for the variables of a request, or the type of an error
Script = Mapping[str, Callable[[Row], Row | str]]
Hits = Callable[[str], list[Row] | str]


def no_hits(query: str) -> list[Row]:
    """Return no hits for any query."""
    return []


@dataclass
class ScriptedTools:
    """Run stages by a script and searches by `hits`.

    `asked` contains the variables of the distinct requests by stage.
    """

    spark: SparkSession
    script: Script
    hits: Hits = no_hits
    samples: DataFrame | None = None
    condenser: Condenser | None = None
    asked: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    _known: set[str | None] = field(default_factory=set)

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """Return one row for each input row, with errors in the same form as in a run."""
        requests = Rows(rows, tuple(carry)) if isinstance(rows, DataFrame) else rows
        definition = definition_of(stage)
        bound = Stage(stage, definition.variables, "scripted", "{}")
        identified = requests.identify(bound).localCheckpoint()
        schema = result_schema(bound, identified, requests.carry)
        found = []
        wanted = identified.select("request_id").distinct()
        texts = {
            row["request_id"]: {name: row[name] for name in definition.variables}
            for row in requests.texts_of(bound, identified, wanted).collect()
        }
        for row in identified.collect():
            variables = texts[row["request_id"]]
            if row["request_id"] not in self._known:
                self._known.add(row["request_id"])
                self.asked[stage].append(variables)
            said = self.script[stage](variables)
            own = {"error_type": said, "error": "as the test says"} if isinstance(said, str) else dict(said)
            everything = {**{name: row[name] for name in requests.carry}, "request_id": row["request_id"], **own}
            found.append(tuple(everything.get(one.name) for one in schema.fields))
        return self.spark.createDataFrame(found, schema)

    def contexts(self) -> DataFrame:
        """Return the summaries of the contexts of the samples."""
        assert self.samples is not None
        return self.keep(summarise_contexts(self.samples, self.ask, summarise=True))

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        """Return the hits of the test in the order of their ranks. A text is the type of an error."""
        schema = T.StructType([*rows.schema.fields, *T._parse_datatype_string(_FOUND).fields])  # type: ignore[attr-defined]
        found = []
        for row in rows.collect():
            hits = self.hits(row["query"])
            if isinstance(hits, str):
                failed = {"stage": "web_search", "request_id": "r", "error_type": hits, "error": "as the test says"}
                found.append((*row, *(failed.get(name) for name in FOUND)))
                continue
            ranked = [{"rank": rank, **hit} for rank, hit in enumerate(hits, start=1)] or [{}]
            found += [(*row, *(hit.get(name) for name in FOUND)) for hit in ranked]
        return self.spark.createDataFrame(found, schema)

    def keep(self, frame: DataFrame, name: str = "") -> DataFrame:
        return frame.localCheckpoint()

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        assert self.condenser is not None
        return self.condenser.condense(nodes, edges)


def plain(value: Any) -> Any:
    """Return the result of a parser with numbers in place of digits."""
    if isinstance(value, Digit):
        return float(value.value)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


_FOUND = ", ".join(f"{name} {kind}" for name, kind in FOUND.items())


def say_as_world(judge: str, lost: Callable[[str, Row], bool]) -> Script:
    """Return a script with the judgements of a judge in the symbolic world. `lost` selects the missing completions."""

    def answer(stage: str, row: Row) -> Row | str:
        if lost(stage, row):
            return "unparsable"
        said = world({"stage": stage, **row}, judge)
        return plain(definition_of(stage).parse(said.text if isinstance(said, Said) else said, row))

    return {stage: partial(answer, stage) for stage in STAGES}


def write_tables(tables: Mapping[str, DataFrame], output: Path) -> None:
    """Write the tables in the same form as a run."""
    for name, frame in tables.items():
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        (output / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, RESULT_TABLES[name]), output / name / "part-0.parquet")


def rows_of(frame: DataFrame, *order: str) -> list[dict[str, Any]]:
    """Return the rows of a frame as dictionaries, in the given order."""
    return [row.asDict(recursive=True) for row in frame.orderBy(*map(F.col, order)).collect()]


def samples_with_references(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """Return samples with references in the same form as after reading them."""
    texts = [T.StructField(name, T.StringType()) for name in ("sample_id", "query", "response", "system")]
    schema = T.StructType([*texts, T.StructField("references", OPTIONAL_TYPES["references"])])
    given = [
        {"query": "q", "system": None, **row, "references": normalise_references(row["references"])} for row in rows
    ]
    return spark.createDataFrame([[row[name] for name in schema.names] for row in given], schema)
