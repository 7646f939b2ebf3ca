"""Test jobs with and without schemas. The tables are the same, and the findings about the endpoint are stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.world import qa_worlds, worlds
from tests.fakes.world_icat import icat_worlds
from tests.fakes.world_importance import importance_worlds
from tests.fakes.world_longrecall import longrecall_worlds
from tests.runs.harness import RESULTS, Row, make_samples, read_table, sorted_rows, sum_usage, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder

pytestmark = pytest.mark.gate

TAKEN = [{"do": {"schema": "taken"}}]
READINGS = ("parsed_schema", "parsed_template", "parsed_lenient")
slow = pytest.mark.slow


def world_samples(count: int, of: Callable[[int, str], Any]) -> list[Row]:
    return [sample for world in of(count, "noisy") for sample in world.samples(2)]


METRICS = {
    "e2e": lambda: make_samples(6),
    "nli": lambda: world_samples(4, worlds),
    "qa": lambda: world_samples(4, qa_worlds),
    "icat": lambda: world_samples(4, icat_worlds),
    "importance": lambda: world_samples(3, importance_worlds),
    "longrecall": lambda: world_samples(4, longrecall_worlds),
}


@pytest.fixture
def judge(metric: str) -> Iterator[ModelServer]:
    with ModelServer(answer="e2e" if metric == "e2e" else "world_noisy", rules=TAKEN) as server:
        yield server


def tables_of(output: Path) -> dict[str, list[str]]:
    """Return all tables of the output except `usage`.

    The rows have no request ids, because the ids depend on the schema.
    """
    names = {path.name for path in output.iterdir() if path.is_dir() and any(path.glob("*.parquet"))}
    assert set(RESULTS) <= names | {"atoms", "relations"}
    return {name: sorted_rows(output, name) for name in sorted(names - {"usage", "completions"})}


def readings_of(output: Path) -> dict[str, tuple[int, ...]]:
    return {row["stage"]: tuple(row[name] for name in READINGS) for row in read_table(output, "usage")}


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["e2e", *(pytest.param(name, marks=slow) for name in METRICS if name != "e2e")])
def test_a_schema_changes_no_table(run_here: RunHere, judge: ModelServer, tmp_path: Path, metric: str) -> None:
    path = write_samples(tmp_path / "samples.jsonl", METRICS[metric]())
    given: Mapping[str, Any] = {**embedder(judge), "qa.quantity_tool": "none", "llm.max_attempts": 1}
    for structured in ("auto", "off"):
        settings = {**given, "llm.structured": structured}
        ended = run_here(judge, path, tmp_path / structured, "--metric", metric, settings=settings)
        assert ended.code == 0, ended.err
    assert tables_of(tmp_path / "auto") == tables_of(tmp_path / "off")
    on, off = readings_of(tmp_path / "auto"), readings_of(tmp_path / "off")
    asked = {stage for stage, counts in off.items() if stage in judge_stages(judge)}
    assert asked
    for stage in asked:
        assert (on[stage][0], on[stage][1:]) == (sum(off[stage]), (0, 0)), stage
        assert off[stage][0] == 0, stage


def judge_stages(server: ModelServer) -> set[str]:
    return {one.stage for one in server.arrivals() if one.stage} - {"embed_text", "web_search"}


def completions_of(store: Path) -> list[Row]:
    return [row for path in store.glob("v1/*/*.parquet") for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize(
    ("kind", "said", "more"),
    [
        ("refused", "the endpoint refuses a schema", 1),
        pytest.param("empty", "completions with a schema have no content", 5, marks=slow),
        pytest.param("ignored", "ignored", 0, marks=slow),
    ],
)
def test_the_support_of_an_endpoint_for_schemas_is_probed_once(
    run_here: RunHere, server: ModelServer, tmp_path: Path, kind: str, said: str, more: int
) -> None:
    server.configure(answer="e2e", rules=[] if kind == "ignored" else [{"do": {"schema": kind}}])
    path, store = write_samples(tmp_path / "samples.jsonl", make_samples(4)), {"completion_store": tmp_path / "store"}
    ended = run_here(server, path, tmp_path / "one", settings=store)
    assert ended.code == 0, ended.err
    answered = sum_usage(tmp_path / "one", "answered")
    assert said in ended.err
    assert server.count() == sum_usage(tmp_path / "one", "calls") == answered + more
    (found,) = json.loads((tmp_path / "store" / "structured.json").read_text()).items()
    assert found[0] == f"{server.base_url} fake-model"
    assert found[1]["outcome"] == {"empty": "broken"}.get(kind, kind)
    assert sum(row[1] for row in readings_of(tmp_path / "one").values()) == answered

    # Another run on the store sends no requests, and a restart of the first run sends none either
    again = run_here(server, path, tmp_path / "two", settings=store)
    assert (again.code, sum_usage(tmp_path / "two", "calls")) == (0, 0)
    assert said not in again.err
    assert run_here(server, path, tmp_path / "one", settings=store).code == 0
    assert server.count() == answered + more


def test_completions_of_no_use_are_rows_and_are_counted(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    rules = [{"when": {"stage": "evaluate_coverage", "attempt_below": 2}, "do": "garbage"}]
    server.configure(answer="e2e", rules=rules)
    path = write_samples(tmp_path / "samples.jsonl", make_samples(3))
    settings = {"completion_store": tmp_path / "store", "llm.structured": "off", "summarise_contexts": "false"}
    ended = run_here(server, path, tmp_path / "out", settings=settings)
    assert ended.code == 0, ended.err
    (row,) = read_table(tmp_path / "out", "usage")
    assert (row["answered"], row["calls"], row["retries"], row["retries_after_parse"]) == (3, 6, 3, 3)
    assert (row["parsed_schema"], row["parsed_template"], row["parsed_lenient"], row["unparsable"], row["refused"]) == (
        0,
        3,
        0,
        0,
        0,
    )
    found = sorted(
        (one["request_id"], one["attempts"], one["error_type"]) for one in completions_of(tmp_path / "store")
    )
    assert [error for _, _, error in found] == ["asked_again", None] * 3
    assert sum(one["prompt_tokens"] for one in completions_of(tmp_path / "store")) == row["prompt_tokens"]


def test_a_judge_that_keeps_to_no_form_is_seen(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    rules: list[Row] = [
        {"when": {"stage": "evaluate_coverage", "contains": "sample 1"}, "do": "garbage"},
        {"when": {"stage": "summarise_context"}, "do": {"text": "Summary: a text."}},
    ]
    server.configure(answer="e2e", rules=rules)
    path = write_samples(tmp_path / "samples.jsonl", make_samples(3))
    settings = {"llm.structured": "off", "llm.max_attempts": 1, "llm.actors": 1}
    ended = run_here(server, path, tmp_path / "out", settings=settings)
    rows = {row["stage"]: row for row in read_table(tmp_path / "out", "usage")}
    coverage = rows["evaluate_coverage"]
    assert coverage["unparsable"] == coverage["failed"]
    assert coverage["parsed_template"] == coverage["answered"]
    assert ended.code in (0, 4)
