"""Test `untold plan`: its counts equal the requests of a run, and it sends no requests and writes no files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.runs.here import RunHere
from untold.jobs.inference.backends import local_model
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import hours_of
from untold.jobs.inference.stage.expected_usage import Lookup
from untold.jobs.inference.store.store import stage_folder
from untold.jobs.metrics import METRICS, stages_of
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.plan import (
    UNLIMITED_COMPLETION_TOKENS,
    Planner,
    completion_limit,
    cost_and_hours,
    one_a_stage,
    plan,
    plan_lines,
)
from untold.jobs.run.session import spark_schema
from untold.jobs.run.terminal import Page
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import LlmSettings, Settings, StageSettings
from untold.jobs.tables import SAMPLES
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.store_files import Completion, completions_table, write_file
from untold.udfs.stages import STAGES, definition_of

PROMPTS = str(Path(__file__).parents[1] / "fakes" / "prompts")
KEYS = {
    *("metric", "stage", "requests", "exact", "reused", "prompt_tokens", "completion_tokens", "cost", "hours"),
    "batch_cost",
    *("expected_requests", "expected_prompt_tokens", "expected_completion_tokens", "expected_cost"),
}


def settings_for(base_url: str = "http://127.0.0.1:9/v1", **llm: Any) -> Settings:
    return Settings(llm=LlmSettings(base_url=base_url, model="m", **llm), prompts_dir=PROMPTS)


def write_samples(path: Path, samples: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    return str(path)


def sample(topic: int, response: str) -> dict[str, Any]:
    contexts = [f"Fact A{topic}. Fact B{topic}.", f"IRRELEVANT {topic}. Fact C{topic}.", "IRRELEVANT to all."]
    return {"query": f"What of {topic}?", "response": response, "contexts": contexts}


SAMPLES_OF_PLAN = [sample(number // 3, f"Fact A{number // 3}. Answer {number}.") for number in range(9)]
# An invalid sample is not part of any request, in a plan or in a run
INVALID = {"query": "", "response": "x", "contexts": ["a"]}


def files_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@dataclass(frozen=True)
class Planned:
    """The rows of a plan, the calls to the server and the new files on the disk."""

    rows: list[dict[str, Any]]
    calls: int
    new_files: set[Path]


@pytest.fixture(scope="module")
def planned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    folder = tmp_path_factory.mktemp("plan")
    path = write_samples(folder / "in.jsonl", [*SAMPLES_OF_PLAN, INVALID])
    before = files_in(folder)
    with ModelServer(answer="e2e") as server:
        settings = settings_for(server.base_url)
        rows = plan(asked(path, str(folder / "out"), settings))
        return Planned(rows, server.count(), files_in(folder) - before)


def test_a_plan_has_one_row_per_stage_with_the_documented_fields(planned: Planned) -> None:
    assert [(row["metric"], row["stage"]) for row in planned.rows] == [
        ("e2e", "summarise_context"),
        ("e2e", "evaluate_coverage"),
    ]
    assert all(set(row) == KEYS for row in planned.rows)


def test_a_plan_sends_no_request_and_writes_no_file(planned: Planned) -> None:
    assert (planned.calls, planned.new_files) == (0, set())


def test_first_stage_is_known_and_a_later_one_bounded(planned: Planned) -> None:
    assert [(row["exact"], row["requests"], row["reused"]) for row in planned.rows] == [(True, 9, 0), (False, 9, 0)]


def test_without_a_store_the_expected_counts_come_from_the_shipped_figures(planned: Planned) -> None:
    condensed, judged = planned.rows
    # A context and its query have between 24 and 33 bytes, and a template is many times longer
    assert (condensed["expected_requests"], condensed["expected_prompt_tokens"]) == (9, condensed["prompt_tokens"])
    assert 0 < condensed["expected_completion_tokens"] <= 9 * 0.44 * 33 / 4 + 1
    assert judged["expected_requests"] == 9
    assert 0 < judged["expected_prompt_tokens"] <= judged["prompt_tokens"]
    assert 0 < judged["expected_completion_tokens"] < 9 * 200 < judged["completion_tokens"]


def test_the_embedded_model_is_neither_assembled_nor_started(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_samples(tmp_path / "in.jsonl", SAMPLES_OF_PLAN[:1])
    rows = plan(asked(path, "", Settings(prompts_dir=PROMPTS), embedded=True))
    assert [row["requests"] for row in rows] == [3, 1]
    assert files_in(tmp_path) == {tmp_path / "in.jsonl"}


def test_missing_file_of_a_local_model_is_named(tmp_path: Path) -> None:
    settings = Settings(llm=LlmSettings(local_model=str(tmp_path / "none.gguf")), prompts_dir=PROMPTS)
    with pytest.raises(local_model.LocalModelError, match=r"none\.gguf"):
        plan(asked("in.jsonl", "", settings, embedded=True))


def asked(path: str, output: str, settings: Settings, *metrics: str, embedded: bool = False) -> ScoreRequest:
    return ScoreRequest(input=path, output=output, metrics=metrics or ("e2e",), settings=settings, embedded=embedded)


def frame_of(spark: SparkSession, samples: Sequence[dict[str, Any]]) -> DataFrame:
    rows = [
        (
            str(number),
            one["query"],
            one["response"],
            [(str(n), text, None) for n, text in enumerate(one["contexts"])],
            "",
            "",
        )
        for number, one in enumerate(samples)
    ]
    return spark.createDataFrame(rows, spark_schema(SAMPLES))


def store_completion(store: Path, stage: Stage, variables: dict[str, Any], text: str | None, error: str | None) -> None:
    request_id = stage.request_id(variables)
    known = {"request_id": request_id, "text": text, "error_type": error, "answered_at": datetime.now(UTC)}
    folder = Path(stage_folder(str(store), stage))
    folder.mkdir(parents=True, exist_ok=True)
    write_file(f"{folder}/{request_id}.parquet", completions_table([Completion(**known)]))


def count(
    spark: SparkSession, samples: DataFrame, store: Path | None, metrics: Sequence[str] = ("e2e",), **options: bool
) -> list[dict[str, Any]]:
    settings = settings_for()
    stages = {name: bind_stage(name, settings) for name in STAGES}
    planner = Planner(Lookup(spark, str(store) if store else None, **options), stages)
    for metric in metrics:
        planner.add(replace(METRICS["e2e"], name=metric), samples, settings)
    return planner.rows()


@pytest.mark.gate
@pytest.mark.parametrize(("retry_failed", "reused"), [(False, 2), (True, 1)])
def test_failures_are_counted_like_the_retries_of_a_run(
    spark: SparkSession, tmp_path: Path, retry_failed: bool, reused: int
) -> None:
    one = sample(0, "Fact A0.")
    stage = bind_stage("summarise_context", settings_for())
    outcomes = [("Fact A0.", None), (None, "filtered"), (None, "timeout")]
    for text, (completion, error) in zip(one["contexts"], outcomes, strict=True):
        store_completion(tmp_path, stage, {"query": one["query"], "text": text}, completion, error)
    row = count(spark, frame_of(spark, [one]), tmp_path, retry_failed=retry_failed)[0]
    assert (row["requests"], row["reused"]) == (3, reused)


@pytest.mark.gate
def test_known_summaries_make_the_next_stage_exact(spark: SparkSession, tmp_path: Path) -> None:
    one = sample(0, "Fact A0.")
    stage = bind_stage("summarise_context", settings_for())
    for text, summary in zip(one["contexts"], ("Fact A0.", "None", "none."), strict=True):
        store_completion(tmp_path, stage, {"query": one["query"], "text": text}, summary, None)
    judge = bind_stage("evaluate_coverage", settings_for())
    shown = {"query": one["query"], "contexts": ["Fact A0."], "response": one["response"]}
    store_completion(tmp_path, judge, shown, "[Covered statements]\nNone\n[Uncovered statements]\nNone", None)
    row = count(spark, frame_of(spark, [one]), tmp_path)[1]
    assert (row["exact"], row["requests"], row["reused"]) == (True, 1, 1)


@pytest.mark.gate
def test_whole_contexts_that_were_judged_do_not_pass_for_their_summaries(spark: SparkSession, tmp_path: Path) -> None:
    one = sample(0, "Fact A0.")
    judge = bind_stage("evaluate_coverage", settings_for())
    store_completion(tmp_path, judge, {name: one[name] for name in judge.variables}, "any", None)
    row = count(spark, frame_of(spark, [one]), tmp_path)[1]
    assert (row["exact"], row["requests"], row["reused"]) == (False, 1, 0)


@pytest.mark.gate
def test_a_later_metric_reuses_the_requests_of_an_earlier_metric(spark: SparkSession) -> None:
    rows = count(spark, frame_of(spark, SAMPLES_OF_PLAN[:2]), None, metrics=("first", "second"))
    assert [(row["metric"], row["requests"], row["reused"], row["exact"]) for row in rows] == [
        ("first", 3, 0, True),
        ("first", 2, 0, False),
        ("second", 3, 3, True),
        ("second", 2, 2, False),
    ]


@pytest.mark.parametrize("metric", METRICS)
def test_a_plan_assumes_the_whole_output_of_every_stage(spark: SparkSession, metric: str) -> None:
    """The verifier accepts the output of all kinds of stages. The plan also assumes the optional stages."""
    assumed = METRICS[metric].assume(Settings()).results
    own = METRICS[metric].stages(Settings())
    assert assumed.keys() >= set(own)
    assert all(set(definition_of(name).results.names) - {"read_as"} <= set(assumed[name]) for name in own)


SUMMARISE = "summarise_context"
STAGES_OF = {
    "e2e": [SUMMARISE, "evaluate_coverage"],
    "qa": [SUMMARISE, "mine_questions", "refine_questions", "answer_questions", "compare_answers"],
    "nli": [SUMMARISE, "extract_atoms", "revise_atoms", "rate_relevance", "classify_relation"],
}
# The prices are high, so that the cost of a few samples is not rounded to zero
PRICES = {"price_per_million_prompt_tokens": 1000.0, "price_per_million_completion_tokens": 4000.0}
ALL_METRICS = tuple(STAGES_OF)


@dataclass(frozen=True)
class RunOfWorlds:
    """A plan of metrics for samples of the symbolic world, and the results of the run after the plan."""

    before: list[dict[str, Any]]
    calls_before: int
    calls: dict[str, int]
    usage: dict[str, dict[str, Any]]
    request: ScoreRequest
    samples: list[dict[str, Any]]

    def rows(self, metric: str) -> list[dict[str, Any]]:
        return [row for row in self.before if row["metric"] == metric]


def run_worlds(
    run_here: RunHere,
    server: ModelServer,
    folder: Path,
    first: int,
    metrics: Sequence[str] = ALL_METRICS,
    store: str | None = None,
) -> RunOfWorlds:
    """Plan and run four worlds. The plan can use a store of other samples, and the run has its own store."""
    samples = [sample for world in worlds(4, first=first) for sample in world.samples(2)]
    path, output = write_samples(folder / "in.jsonl", [*samples, {**INVALID, "sample_id": "invalid"}]), folder / "out"
    settings = settings_for(server.base_url, **PRICES)
    request = asked(path, str(output), settings, *metrics)
    planned = (
        replace(request, output="", settings=settings.model_copy(update={"completion_store": store}))
        if store
        else request
    )
    server.reset()
    before, calls_before = plan(planned), server.count()
    given = {"llm.model": "m", "fail_on_error": "none", **{f"llm.{name}": price for name, price in PRICES.items()}}
    ended = run_here(server, Path(path), output, "--metric", ",".join(metrics), settings=given)
    assert ended.code == 0, ended.err
    calls = {name: server.count(name) for name in stages_of(metrics, settings)}
    usage = {row["stage"]: row for row in open_run(output).table("usage").to_pylist()}
    return RunOfWorlds(before, calls_before, calls, usage, request, samples)


@pytest.fixture(scope="module")
def world_server() -> Iterator[ModelServer]:
    with ModelServer(answer="world") as running:
        yield running


@pytest.fixture(scope="module")
def first_run(
    run_here: RunHere, spark: SparkSession, world_server: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> RunOfWorlds:
    return run_worlds(run_here, world_server, tmp_path_factory.mktemp("worlds"), first=0)


# Among the three metrics, `qa` has the most stages: its requests are per context, question, answer and pair
@pytest.fixture(scope="module", params=[("qa",), pytest.param(ALL_METRICS, marks=pytest.mark.slow)], ids=",".join)
def second_run(
    request: pytest.FixtureRequest,
    run_here: RunHere,
    world_server: ModelServer,
    tmp_path_factory: pytest.TempPathFactory,
    first_run: RunOfWorlds,
) -> RunOfWorlds:
    """Run other samples with a plan that uses the store of the first run."""
    store = f"{first_run.request.output}/completions"
    return run_worlds(run_here, world_server, tmp_path_factory.mktemp("worlds"), 100, request.param, store)


@pytest.mark.gate
@pytest.mark.parametrize("metric", STAGES_OF)
def test_pairs_are_counted_before_the_first_request(first_run: RunOfWorlds, metric: str) -> None:
    before = first_run.rows(metric)
    assert (first_run.calls_before, [row["stage"] for row in before]) == (0, STAGES_OF[metric])
    assert [row["exact"] for row in before] == [True, *[False] * (len(before) - 1)]
    for row in before:
        used = first_run.usage[row["stage"]]
        assert row["requests"] >= used["requests"]
        # A comparison can call a tool, and then it needs two calls
        assert first_run.calls[row["stage"]] == used["calls"] >= used["requests"]
        if not row["reused"]:
            assert row["prompt_tokens"] >= used["prompt_tokens"], row["stage"]
            assert row["completion_tokens"] >= used["completion_tokens"], row["stage"]


@pytest.mark.gate
def test_the_first_stage_has_the_requests_of_the_run(first_run: RunOfWorlds) -> None:
    row, used = first_run.before[0], first_run.usage[SUMMARISE]
    assert (row["exact"], row["requests"], row["reused"]) == (True, used["requests"], 0)
    assert row["requests"] == first_run.calls[SUMMARISE]
    assert row["prompt_tokens"] == used["prompt_tokens"]


@pytest.mark.slow
def test_after_a_run_all_pairs_are_known_and_nothing_is_expected(first_run: RunOfWorlds, tmp_path: Path) -> None:
    known = [first_run.usage[row["stage"]]["requests"] for row in first_run.before]
    after = plan(first_run.request)
    assert [(row["requests"], row["reused"], row["exact"], row["prompt_tokens"]) for row in after] == [
        (requests, requests, True, 0) for requests in known
    ]
    expected = ("expected_requests", "expected_prompt_tokens", "expected_completion_tokens", "expected_cost")
    assert {row[name] for row in after for name in expected} == {0}
    added = {**first_run.samples[0], "sample_id": "new", "system": "other"}
    more = write_samples(tmp_path / "more.jsonl", [*first_run.samples, added])
    rows = plan(replace(first_run.request, input=more, metrics=("qa",)))
    assert [row["requests"] for row in rows] == [first_run.usage[stage]["requests"] for stage in STAGES_OF["qa"]]


@pytest.mark.gate
def test_new_answer_to_known_contexts_is_exactly_one_request(first_run: RunOfWorlds, tmp_path: Path) -> None:
    added = {**first_run.samples[0], "sample_id": "new", "response": "Another answer."}
    more = write_samples(tmp_path / "more.jsonl", [*first_run.samples, added])
    rows = plan(replace(first_run.request, input=more, metrics=("e2e",)))
    condensed, judged = (first_run.usage[stage]["requests"] for stage in STAGES_OF["e2e"])
    assert [(row["requests"], row["reused"], row["exact"]) for row in rows] == [
        (condensed, condensed, True),
        (judged + 1, judged, True),
    ]


@pytest.mark.gate
def test_the_expected_cost_is_near_the_actual_cost(second_run: RunOfWorlds) -> None:
    """The plan uses the means of a store with other samples.

    The first metric pays for the stages that all metrics share.
    """
    metrics = second_run.request.metrics
    for metric in metrics:
        rows = second_run.rows(metric)
        own = [row["stage"] for row in rows if row["stage"] != SUMMARISE or metric == metrics[0]]
        spent = sum(second_run.usage[stage]["cost"] for stage in own)
        expected = sum(row["expected_cost"] for row in rows)
        asked = {row["stage"]: (row["expected_requests"], second_run.usage[row["stage"]]["requests"]) for row in rows}
        assert spent / 1.5 <= expected <= spent * 1.5, (metric, expected / spent, asked)
        assert all(row["expected_requests"] <= row["requests"] - row["reused"] for row in rows)


@pytest.mark.parametrize(
    ("llm", "limit"),
    [
        ({"max_tokens": 100}, 100),
        ({"max_tokens": None, "extra_body": {"max_completion_tokens": 70}}, 70),
        ({"max_tokens": None}, UNLIMITED_COMPLETION_TOKENS),
    ],
)
def test_the_completion_limit_is_the_limit_of_the_stage(llm: dict[str, Any], limit: int) -> None:
    assert completion_limit(bind_stage("classify_relation", settings_for(**llm))) == limit


def test_hours_depend_on_the_tighter_limit() -> None:
    limits = LlmSettings(requests_per_minute=60.0, tokens_per_minute=1000.0)
    assert hours_of(limits, 7200, 60_000) == pytest.approx(2.0)
    assert hours_of(limits, 60, 120_000) == pytest.approx(2.0)
    assert hours_of(LlmSettings(), 60, 120_000) is None


def plan_row(**fields: Any) -> dict[str, Any]:
    row = {"metric": "e2e", "stage": "summarise_context", "requests": 1200, "exact": True, "reused": 200}
    row |= {"prompt_tokens": 5000, "completion_tokens": 700, "cost": 1.5, "batch_cost": 0.75, "hours": None}
    row |= {"expected_requests": 300, "expected_prompt_tokens": 900, "expected_completion_tokens": 20}
    return {**row, "expected_cost": 0.25, **fields}


def test_tables_show_the_possible_and_the_expected_numbers() -> None:
    rows = [plan_row(), plan_row(stage="evaluate_coverage", exact=False)]
    lines = [" ".join(line.split()) for line in plan_lines(rows, Page())]
    assert lines[:11] == [
        "possible",
        "metric stage requests reused tokens in tokens out cost hours",
        "e2e summarise_context = 1,200 200 5,000 700 1.50 -",
        "e2e evaluate_coverage <= 1,200 200 5,000 700 1.50 -",
        "total <= 2,400 400 10,000 1,400 3.00 -",
        "",
        "expected",
        "metric stage requests tokens in tokens out cost",
        "e2e summarise_context 300 900 20 0.25",
        "e2e evaluate_coverage 300 900 20 0.25",
        "total 600 1,800 40 0.50",
    ]


def test_a_judge_without_a_price_makes_the_cost_of_its_stage_unknown() -> None:
    (row,) = one_a_stage([plan_row(cost=2.0), plan_row(cost=None, expected_cost=None), plan_row(cost=1.0)])
    assert (row["cost"], row["expected_cost"], row["requests"]) == (None, None, 3 * plan_row()["requests"])


def test_a_plan_shows_the_cost_and_the_rounds_of_batches() -> None:
    answered = plan_row(stage="rate_relevance", reused=1200, batch_cost=0.0)
    rows = [plan_row(), plan_row(stage="evaluate_coverage"), answered, plan_row(stage="embed_text", batch_cost=0.0)]
    line = "by batches (llm.backend=batch): cost 1.50 at most, 2 rounds of batches, each within 24 hours"
    assert line in plan_lines(rows, Page())
    assert not any("batches" in line for line in plan_lines([plan_row(batch_cost=None)], Page()))


def test_prices_and_hours_of_a_stage_in_batches() -> None:
    given = settings_for(
        price_per_million_prompt_tokens=2.0, price_per_million_completion_tokens=8.0, requests_per_minute=60.0
    )
    own = given.model_copy(update={"stages": {"evaluate_coverage": StageSettings(backend="batch")}})
    asked = {"prompt_tokens": 1_000_000, "completion_tokens": 500_000}
    for settings, name, row in (
        (given, "evaluate_coverage", {"cost": 6.0, "batch_cost": 3.0, "hours": 2.0}),
        (own, "evaluate_coverage", {"cost": 3.0, "batch_cost": 3.0, "hours": 24.0}),
        (own, "summarise_context", {"cost": 6.0, "batch_cost": 3.0, "hours": 2.0}),
    ):
        assert cost_and_hours(settings, bind_stage(name, settings), 7200, asked) == row


def test_a_plan_of_a_million_requests_fits_100_columns() -> None:
    tokens = {name: 10**9 for name in plan_row() if name.endswith("tokens")}
    millions = {"requests": 1_000_000, "exact": False, "reused": 0, "expected_requests": 500_000, "cost": 12_345.0}
    rows = [
        plan_row(metric=metric, stage=stage, hours=100.0, **tokens, **millions)
        for metric in ("importance", "longrecall")
        for stage in STAGES
    ]
    assert max(map(len, plan_lines(rows[:1], Page()))) <= 100
    assert max(map(len, plan_lines(rows, Page(100)))) <= 100
