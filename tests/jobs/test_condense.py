"""Test `untold condense`: relations from any source to statements, and the errors for invalid input."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from untold.jobs.condense import TABLES, CondenseRequest, RelationsError, condense
from untold.jobs.inputs.files import SampleError
from untold.jobs.run.manifest import OutputError
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import GraphSettings, Settings

Rows = list[dict[str, Any]]

# The response states that it works. One context confirms it twice, and another context denies it twice
NODES: Rows = [
    {"id": "a0", "text": "It works on it.", "origin": "response"},
    {"id": "c0", "text": "It does not work.", "origin": "context", "frequency": 1},
    {"id": "c1", "text": "It will not work.", "origin": "context", "frequency": 2},
    {"id": "c2", "text": "It is not supported.", "origin": "context"},
    {"id": "c3", "text": "It runs on it.", "origin": "context"},
    {"id": "c4", "text": "It is available for it.", "origin": "context"},
]
PAIRS = [
    ("a0", "c3", "entailment"),
    ("c3", "a0", "entailment"),
    ("c3", "c4", "entailment"),
    ("c0", "c1", "entailment"),
    ("c1", "c0", "implied"),
    ("c0", "c2", "entailment"),
    ("a0", "c0", "contradiction"),
    ("c2", "c4", "neutral"),
]
RELATIONS: Rows = [dict(zip(("premise_id", "hypothesis_id", "relation"), pair, strict=True)) for pair in PAIRS]


def write(path: Path, rows: Rows) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    if path.suffix == ".csv":
        pacsv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return str(path)


def ask(
    folder: Path, relations: Rows, nodes: Rows | None, *, suffix: str = ".parquet", **graph: Any
) -> CondenseRequest:
    given = None if nodes is None else write(folder / f"nodes{suffix}", nodes)
    settings = Settings(graph=GraphSettings(**graph))
    path, output = write(folder / f"relations{suffix}", relations), str(folder / "out")
    return CondenseRequest(relations=path, nodes=given, output=output, settings=settings)


def rows_of(request: CondenseRequest, table: str) -> Rows:
    return open_run(request.output).table(table).to_pylist()


@pytest.mark.parametrize(
    "suffix", [".parquet", *(pytest.param(suffix, marks=pytest.mark.gate) for suffix in (".jsonl", ".csv"))]
)
def test_statements_atoms_and_scores(spark: SparkSession, tmp_path: Path, suffix: str) -> None:
    request = ask(tmp_path, RELATIONS, NODES, suffix=suffix)
    counts = condense(request)
    statements = {row["statement_id"]: row for row in rows_of(request, "statements")}
    assert {name: (row["text"], row["covered"], row["in_basis"]) for name, row in statements.items()} == {
        "a0": ("It runs on it.", True, False),
        "c0": ("It will not work.", False, True),
        "c2": ("It is not supported.", False, False),
        "c4": ("It is available for it.", True, False),
    }
    assert statements["a0"]["members"] == ["It runs on it.", "It works on it."]
    atoms = {row["atom_id"]: (row["origin"], row["statement_id"], row["kept"]) for row in rows_of(request, "atoms")}
    assert atoms["a0"] == ("response", "a0", True)
    assert atoms["c1"] == ("context", "c0", True)
    [score] = rows_of(request, "scores")
    assert score == {
        "sample_id": None,
        "metric": "condense",
        "system": None,
        "score": 0.5,
        "score_low": 0.5,
        "score_high": 0.5,
        "covered": 2,
        "uncovered": 2,
        "unjudged": 0,
        "dropped": 0,
        "status": "ok",
    }
    assert open_run(request.output).manifest["status"] == "finished"
    assert counts["statements"] == 4
    assert counts["basis"] == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name[0] != "_") == [
        "atoms",
        "manifest.json",
        "scores",
        "statements",
    ]


@pytest.mark.gate
def test_samples_and_metrics_are_graphs_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    groups = [{"sample_id": sample, "metric": metric} for sample in ("1", "2") for metric in ("nli", "qa")]
    relations = [
        {**row, **group} for group in groups for row in RELATIONS if group != groups[0] or row["premise_id"] != "a0"
    ]
    request = ask(tmp_path, relations, [{**row, **group} for group in groups for row in NODES])
    assert condense(request)["graphs"] == 4
    scores = {(row["sample_id"], row["metric"]): row["covered"] for row in rows_of(request, "scores")}
    assert scores == {("1", "nli"): 0, ("1", "qa"): 2, ("2", "nli"): 2, ("2", "qa"): 2}


@pytest.mark.gate
def test_nodes_without_a_sample_are_of_every_sample_that_relates_them(spark: SparkSession, tmp_path: Path) -> None:
    told = [{**row, "sample_id": "told"} for row in RELATIONS]
    untold = [{**row, "sample_id": "untold"} for row in RELATIONS if "a0" not in row.values()]
    request = ask(tmp_path, [*told, *untold], NODES)
    condense(request)
    scores = {row["sample_id"]: (row["covered"], row["uncovered"]) for row in rows_of(request, "scores")}
    assert scores == {"told": (2, 2), "untold": (0, 4)}
    assert len(rows_of(request, "atoms")) == 6 + 5


@pytest.mark.gate
def test_without_nodes_every_id_is_a_context(spark: SparkSession, tmp_path: Path) -> None:
    request = ask(tmp_path, RELATIONS, None)
    condense(request)
    found = {row["statement_id"]: (row["text"], row["members"]) for row in rows_of(request, "statements")}
    assert found == {"a0": ("a0", ["a0", "c3"]), "c0": ("c0", ["c0", "c1"]), "c2": ("c2", ["c2"]), "c4": ("c4", ["c4"])}


@pytest.mark.gate
def test_relations_of_unordered_pairs(spark: SparkSession, tmp_path: Path) -> None:
    pairs = [("a0", "c0", "equivalent"), ("c1", "c0", "second_implies_first"), ("c2", "c1", "first_implies_second")]
    rows = [dict(zip(RELATIONS[0], pair, strict=True)) for pair in [*pairs, ("c3", "c4", "contradictory")]]
    request = ask(tmp_path, rows, NODES)
    condense(request)
    assert {row["statement_id"]: row["covered"] for row in rows_of(request, "statements")} == {
        "a0": True,
        "c1": True,
        "c2": False,
        "c3": False,
        "c4": False,
    }


@pytest.mark.gate
@pytest.mark.parametrize(("known", "low", "high"), [("neutral", 0.0, 0.0), ("contradictory", 0.0, 1.0)])
def test_unjudged_pairs_are_directed_for_nli_and_undirected_for_qa(
    spark: SparkSession, tmp_path: Path, known: str, low: float, high: float
) -> None:
    nodes = [
        {**row, "origin": "response" if row["id"] == "a0" else "context"} for row in NODES if row["id"] in ("a0", "c0")
    ]
    rows = [
        {"premise_id": "a0", "hypothesis_id": "a0", "relation": known},
        {"premise_id": "c0", "hypothesis_id": "a0", "relation": None},
    ]
    request = ask(tmp_path, rows, nodes)
    condense(request)
    [score] = rows_of(request, "scores")
    assert (score["score_low"], score["score_high"]) == (low, high)
    assert (score["score"], score["unjudged"], score["status"]) == (0.0, 1, "partial")


@pytest.mark.gate
def test_nodes_without_context_make_no_statements(spark: SparkSession, tmp_path: Path) -> None:
    request = ask(tmp_path, RELATIONS, [{**row, "origin": "response"} for row in NODES])
    condense(request)
    [score] = rows_of(request, "scores")
    assert (score["score"], score["score_low"], score["covered"], score["status"]) == (None, None, 0, "no_statements")


@pytest.mark.gate
def test_order_and_partitioning_change_no_byte(spark: SparkSession, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    (parts / "relations").mkdir(parents=True)
    first = ask(whole, RELATIONS, NODES)
    shuffled = random.Random(1).sample(RELATIONS, len(RELATIONS))
    for number in range(3):
        write(parts / "relations" / f"{number}.jsonl", shuffled[number::3])
    nodes = write(parts / "nodes.csv", [*NODES[::-1], NODES[0]])
    second = CondenseRequest(
        relations=str(parts / "relations"), nodes=nodes, output=str(parts / "out"), settings=Settings()
    )
    for request in (first, second):
        condense(request)
    for name in TABLES:
        one, other = (sorted(Path(request.output, name).glob("*.parquet")) for request in (first, second))
        assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def lacks(rows: Rows, *names: str) -> Rows:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def changed(rows: Rows, number: int, **values: Any) -> Rows:
    return [{**row, **values} if place == number else row for place, row in enumerate(rows)]


REFUSED = {
    "missing column": (
        [{**lacks([row], "relation")[0], "relations": "neutral"} for row in RELATIONS],
        NODES,
        "`relations`?",
    ),
    "unknown relation": (
        changed(RELATIONS, 2, relation="Entails"),
        NODES,
        "`Entails` (did you mean `entailment`?) in 1",
    ),
    "null id": (changed(RELATIONS, 2, premise_id=None), NODES, "no `premise_id` in 1 of 8 rows"),
    "unknown id": (changed(RELATIONS, 2, premise_id="C3"), NODES, "1 id is missing in the nodes"),
    "near id": (changed(RELATIONS, 2, premise_id="C3"), NODES, "`C3` (did you mean `c3`?)"),
    "two texts": (RELATIONS, [*NODES, {**NODES[1], "text": "Other."}], "1 id has different texts (`c0`)"),
    "unknown origin": (RELATIONS, changed(NODES, 1, origin="contexts"), "`contexts` (did you mean `context`?)"),
    "null text": (RELATIONS, changed(NODES, 1, text=None), "no `text` in 1 of 6 rows"),
    "frequency": (
        RELATIONS,
        [{**row, "frequency": 0} for row in NODES],
        "`frequency` must be a positive integer (6 rows without one)",
    ),
    "samples in one": (RELATIONS, [{**row, "sample_id": "1"} for row in NODES], "has the column `sample_id`"),
}


@pytest.mark.gate
@pytest.mark.parametrize("case", REFUSED)
def test_refuses_input_with_one_line(spark: SparkSession, tmp_path: Path, case: str) -> None:
    relations, nodes, message = REFUSED[case]
    request = ask(tmp_path, relations, nodes)
    with pytest.raises(RelationsError) as raised:
        condense(request)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_missing_input_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="does not exist"):
        condense(
            CondenseRequest(relations=str(tmp_path / "none.csv"), output=str(tmp_path / "out"), settings=Settings())
        )


@pytest.mark.gate
def test_an_output_is_replaced_only_with_the_option(spark: SparkSession, tmp_path: Path) -> None:
    request = ask(tmp_path, RELATIONS, NODES)
    first = condense(request)
    assert (first["nodes"], first["relations"]) == (len(NODES), len(RELATIONS))
    with pytest.raises(OutputError, match="--overwrite"):
        condense(request)
    again = condense(replace(request, overwrite=True, nodes=None))
    assert len(rows_of(request, "statements")) == again["statements"]
    assert (first["covered"], again["covered"]) == (2, 0)
