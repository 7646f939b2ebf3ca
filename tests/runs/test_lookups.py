"""Test vectors, web searches and local classifiers as stages of a run: requests, store, limits and counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.fakes.lookups import search, vector_of
from tests.fakes.model_server import ModelServer
from tests.runs.harness import PROMPTS, WAIT_SECONDS, kill_processes, most_within, start_worker, times
from tests.runs.here import RunHere
from tests.udfs.retrieval.onnx_files import SPECIAL, write_classifier, write_lookup, write_tokenizer
from untold.jobs.inference.backends.job import Job, JobOutcome, Spool
from untold.jobs.inference.backends.process import ActorProcess
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import call_settings
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.metrics.grounded_claims import ground, grounding_stage
from untold.jobs.settings.model import Settings
from untold.udfs.llm.calls import CallContext
from untold.udfs.retrieval.embedding import normalised

pytestmark = pytest.mark.gate

WORDS = ["bees", "make", "honey", "water", "boils"]
TEXTS = [f"hive {number} of honey" for number in range(130)]


def settings_for(**sections: Any) -> Settings:
    return Settings.model_validate({"llm": {"base_url": "http://127.0.0.1:9/v1", "model": "none"}, **sections})


def remote(server: ModelServer, **given: Any) -> Settings:
    return settings_for(embeddings={"base_url": server.base_url, "model": "embedder", **given})


def embed(runner: StageRunner, texts: list[str], kind: str = "document") -> dict[str, Any]:
    """Return the vector or the error type by text. Each text is in two rows, but in one request."""
    rows = runner.engines.spark.createDataFrame([(text, kind) for text in texts * 2], "text string, kind string")
    found = runner.ask("embed_text", rows, carry=("text",)).collect()
    assert len(found) == 2 * len(texts)
    return {row["text"]: row["error_type"] or row["vector"] for row in found}


def usage_of(runner: StageRunner) -> dict[str, Any]:
    (row,) = runner.usage
    return row


def test_vectors_are_requested_once_and_read_with_length_one(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    with run_here.runner(tmp_path, remote(server, price_per_million_tokens=2.0), "embed_text") as runner:
        found = embed(runner, TEXTS)
        usage = usage_of(runner)
        expected = normalised(np.array([vector_of(text) for text in TEXTS], np.float32))
        assert np.array_equal(np.array([found[text] for text in TEXTS], np.float32), expected)
        tokens = sum(arrival.prompt_tokens for arrival in server.arrivals())
        calls = server.count("embed_text")
        # The 130 texts are in units of whole batches: three calls, and the last call has two texts
        assert calls == 3
        assert {name: usage[name] for name in ("requests", "answered", "calls", "retries", "prompt_tokens")} == {
            "requests": 130,
            "answered": 130,
            "calls": 3,
            "retries": 0,
            "prompt_tokens": tokens,
        }
        assert usage["cost"] == pytest.approx(tokens * 2e-6)
        assert embed(runner, TEXTS) == found
        assert server.count() == calls
        # The same text as a query is another request
        embed(runner, TEXTS[:1], "query")
        assert server.count() == calls + 1


def test_failed_texts_are_rows_and_the_next_run_retries_temporary_errors(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    poison, passing = "poison of bees", "nan of bees"
    server.configure(
        rules=[
            {"when": {"contains": poison}, "do": {"status": 400}},
            {"when": {"attempt_below": 99}, "do": {"nan": "nan"}},
        ]
    )
    settings = remote(server).model_copy(update={"llm": settings_for().llm.model_copy(update={"max_attempts": 2})})
    with run_here.runner(tmp_path, settings, "embed_text") as runner:
        found = embed(runner, [*TEXTS[:60], poison, passing])
        assert {text: said for text, said in found.items() if isinstance(said, str)} == {
            poison: "http_400",
            passing: "bad_body",
        }
        assert usage_of(runner)["failed"] == 2
    server.configure(rules=[])
    server.reset()
    with run_here.runner(tmp_path, settings, "embed_text") as runner:
        again = embed(runner, [*TEXTS[:60], poison, passing])
        assert {text for text, said in again.items() if isinstance(said, str)} == {poison}
        assert server.count() == 1


@pytest.mark.slow
def test_a_search_is_made_once_for_each_edition(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    query = "What is known of the home of Ada Mill?"

    def hits(**given: Any) -> list[dict[str, str]]:
        settings = settings_for(search={"base_url": server.search_url, "api_key_env": None, **given})
        with run_here.runner(tmp_path, settings, "web_search") as runner:
            rows = runner.engines.spark.createDataFrame([(query, 3)], "query string, count int")
            (row,) = runner.ask("web_search", rows).collect()
            usage = usage_of(runner)
            assert (usage["cost"] or 0.0) == pytest.approx(0.005 * usage["calls"])
            return [hit.asDict() for hit in row["hits"]]

    expected = [{"id": one["url"], "text": f"{one['title']} {one['text']}"} for one in search(query, 3)]
    assert hits(price_per_thousand_requests=5.0) == expected
    assert hits(price_per_thousand_requests=5.0, requests_per_minute=None) == expected
    assert server.count("web_search") == 1
    assert hits(price_per_thousand_requests=5.0, edition="another day") == expected
    assert server.count("web_search") == 2


def test_a_local_model_embeds_within_tasks_and_its_rows_are_in_the_store(
    run_here: RunHere, spark: SparkSession, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    write_tokenizer(model, WORDS)
    write_lookup(model, np.array([[number, number**2] for number in range(len(SPECIAL) + len(WORDS))]))
    settings = settings_for(embeddings={"model": str(model), "query_prefix": "water "})
    with run_here.runner(tmp_path, settings, "embed_text") as runner:
        found = embed(runner, ["bees make", "honey"])
        assert found["bees make"] == pytest.approx(list(np.array([3.5, 13.5]) / np.hypot(3.5, 13.5)))
        # The prefix comes before the text: the tokens [CLS] water honey [SEP] are 2, 7, 6, 3
        query = embed(runner, ["honey"], "query")["honey"]
        assert query == pytest.approx(list(np.array([4.5, 24.5]) / np.hypot(4.5, 24.5)))
        usage = usage_of(runner)
        assert (usage["requests"], usage["answered"], usage["calls"], usage["retries"]) == (3, 3, 0, 0)
        assert usage["cost"] is None
    (folder,) = (tmp_path / "store" / "v1").iterdir()
    stored = pa.concat_tables([pq.read_table(file) for file in folder.glob("*.parquet")])
    # The store contains the vectors of the model, and they are divided by their length after reading
    assert [3.5, 13.5] in stored["vector"].to_pylist()
    assert (len(stored), set(stored["model"].to_pylist())) == (3, {str(model)})
    with run_here.runner(tmp_path, settings, "embed_text") as runner:
        assert embed(runner, ["honey", "bees make"]) == found
        assert usage_of(runner)["reused"] == 2


@pytest.mark.parametrize(("threshold", "grounded"), [(0.5, True), (0.95, False)])
def test_a_classifier_judges_within_tasks_and_its_threshold_grounds(
    run_here: RunHere, tmp_path: Path, threshold: float, grounded: bool
) -> None:
    write_classifier(tmp_path / "judge", WORDS, ["entailment", "neutral", "contradiction"])
    settings = settings_for(grounding={"verifier": str(tmp_path / "judge"), "threshold": threshold})
    pairs = [("bees make honey", "bees honey"), ("bees make honey", "water boils")]
    found = judged(run_here, tmp_path, settings, pairs)
    sure = np.exp(3) / (np.exp(3) + 2)
    assert found["bees honey"] == ("entailment", pytest.approx(sure), grounded)
    assert found["water boils"] == ("contradiction", pytest.approx((1 - sure) / 2), False)


def test_a_language_model_grounds_a_claim_by_its_relation(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    server.configure(answer="world")
    settings = settings_for(llm={"base_url": server.base_url, "model": "m"}, prompts_dir=str(PROMPTS))
    home = "Ada Mill lives in Lyon."
    found = judged(run_here, tmp_path, settings, [(home, "Ada Mill lives in France."), (home, "Ada Mill likes tea.")])
    assert found["Ada Mill lives in France."] == ("entailment", None, True)
    assert found["Ada Mill likes tea."] == ("neutral", None, False)


def judged(
    run_here: RunHere, folder: Path, settings: Settings, pairs: list[tuple[str, str]]
) -> dict[str, tuple[str, float | None, bool]]:
    """Return the relation, the probability of entailment and the grounding by hypothesis."""
    with run_here.runner(folder, settings, grounding_stage(settings)) as runner:
        rows = runner.engines.spark.createDataFrame(pairs, "premise string, hypothesis string")
        found = ground(rows, runner, settings, carry=("hypothesis",)).collect()
    return {row["hypothesis"]: (row["relation"], row["probability"], row["grounded"]) for row in found}


@pytest.mark.slow
def test_a_search_limit_holds_over_two_jobs(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    per_minute = 600
    settings = settings_for(
        search={"base_url": server.search_url, "api_key_env": None, "requests_per_minute": per_minute}
    )
    stage = bind_stage("web_search", settings)
    jobs = []
    for name in ("a", "b"):
        rows = [{"request_id": f"{name}{number}", "query": f"home {number}", "count": 1} for number in range(20)]
        (tmp_path / name / "requests").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / "requests" / "1.parquet")
        call = call_settings(settings, stage, server.search_url)
        jobs.append(
            Job(str(tmp_path / name / "requests"), str(tmp_path / name / "store"), name, CallContext(stage), call)
        )
    with run_here.answering(2) as processes:
        outcomes = answer_together(processes, jobs)
    assert [outcome.usage.calls for outcome in outcomes] == [20, 20]
    moments = times(server.arrivals())
    assert len(moments) == 40
    assert most_within(moments, 1.0) <= per_minute / 60 + 2


def answer_together(processes: list[ActorProcess], jobs: list[Job]) -> list[JobOutcome]:
    """Return the outcomes of jobs that run in parallel."""

    def answer(process: ActorProcess, job: Job) -> JobOutcome:
        return process.answer(job, lambda _: None, lambda: False)

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(answer, processes, jobs))


BATCH = 8


@pytest.mark.slow
def test_a_run_killed_during_vector_requests_sends_no_stored_request_again(server: ModelServer, tmp_path: Path) -> None:
    server.configure(latency=0.1)
    settings = remote(server, batch=BATCH, max_concurrency=4)
    stage = bind_stage("embed_text", settings)
    call = replace(call_settings(settings, stage, server.base_url), flush=0.2)
    rows = [{"request_id": f"r{number:04d}", "text": f"hive {number}", "kind": "document"} for number in range(800)]
    job = Spool(str(tmp_path)).job("vectors")
    Path(job.requests).mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), f"{job.requests}/1.parquet")
    job.publish(Job(job.requests, job.completions, "one", CallContext(stage), call))
    first = start_worker(tmp_path)
    server.wait_for(40, timeout=WAIT_SECONDS)
    kill_processes([psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)])
    first.wait()
    arrived, kept = server.count(), stored_ids(Path(job.completions))
    assert 0 < len(kept) < len(rows)
    assert start_worker(tmp_path).wait(WAIT_SECONDS) == 0
    assert stored_ids(Path(job.completions)) == {row["request_id"] for row in rows}
    assert server.count() - arrived == -(-(800 - len(kept)) // BATCH)


def stored_ids(store: Path) -> set[str]:
    return {one for file in store.glob("*.parquet") for one in pq.read_table(file)["request_id"].to_pylist()}
