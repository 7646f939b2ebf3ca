"""Test a classifier on Ray actors with GPUs. Ray assumes one GPU, but the classifier runs on the processor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayError

from tests.jobs.inference.test_actor_driver import Event
from tests.jobs.inference.test_nodes import STORE_BYTES
from tests.runs.cluster import SHARED_RAY
from tests.udfs.llm.askers import rows_in
from tests.udfs.retrieval.onnx_files import write_classifier
from untold.jobs.inference.backends import actor_pool
from untold.jobs.inference.backends.actor_driver import ActorDriver, explain
from untold.jobs.inference.backends.job import Job
from untold.jobs.inference.stage.bindings import bind_lookup
from untold.jobs.inference.stage.call_settings import call_settings, runs_in_tasks
from untold.jobs.settings.model import Settings
from untold.udfs.llm.calls import CallContext
from untold.udfs.retrieval.classifying import Classifier, find_classifier
from untold.udfs.retrieval.local_models import ON_PROCESSORS

pytestmark = [pytest.mark.slow, pytest.mark.alone]
WORDS = ["bees", "make", "honey", "water", "boils"]
PAIRS = [("bees make honey", f"{WORDS[number % 5]} {'honey ' * number}") for number in range(100)]
TOO_LONG = ("bees", "honey " * 600)


@pytest.fixture(scope="module")
def one_gpu() -> Iterator[None]:
    with patch.dict(os.environ, SHARED_RAY):
        actor_pool._keep_to_loopback()
        cluster = Cluster()
        options = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        cluster.add_node(node_ip_address="127.0.0.1", **options)
        actor_pool.start_ray(cluster.address)
        yield
        ray.shutdown()
        cluster.shutdown()


def job_of(folder: Path, gpus: float, **changes: Any) -> Job:
    write_classifier(folder / "judge", WORDS, ["entailment", "neutral", "contradiction"])
    settings = Settings.model_validate({"nli": {"classifier": str(folder / "judge"), "classifier_gpus": gpus}})
    stage = bind_lookup("classify_entailment", settings)
    assert not runs_in_tasks(stage, settings)
    rows = [{"premise": premise, "hypothesis": hypothesis} for premise, hypothesis in [*PAIRS, TOO_LONG]]
    (folder / "requests").mkdir()
    known = [{"request_id": f"r{number:04d}", **row} for number, row in enumerate(rows)]
    pq.write_table(pa.Table.from_pylist(known), folder / "requests" / "1.parquet")
    calls = replace(call_settings(settings, stage, ""), **changes)
    return Job(str(folder / "requests"), str(folder / "store"), "run", CallContext(stage), calls, actors=1)


def answer(job: Job) -> list[Event]:
    Path(job.directory).mkdir()
    events: list[Event] = []
    outcome = ActorDriver(job, lambda: None, events.append, []).run()
    assert outcome.reason is None, outcome.error
    return events


@pytest.mark.parametrize("gpus", [1.0, 0.5])
def test_an_actor_with_a_gpu_has_the_results_of_a_task_and_frees_the_gpu(
    one_gpu: None, tmp_path: Path, gpus: float
) -> None:
    job = job_of(tmp_path, gpus, provider=ON_PROCESSORS, max_attempts=1)
    usage = answer(job)[-1]["usage"]
    rows, classifier = rows_in(tmp_path / "store"), Classifier(find_classifier(job.stage.model))
    expected = classifier.classify(PAIRS)
    assert [json.loads(rows[f"r{number:04d}"]["text"]) for number in range(len(PAIRS))] == expected
    assert rows["r0100"]["error_type"] == "truncated"
    assert (usage["done"], usage["failed"], usage["prompt_tokens"]) == (101, 1, 0)
    # The GPU is free before the next stage starts
    assert waits_for_gpus(1.0)


def waits_for_gpus(count: float) -> bool:
    """Return True if another actor can reserve this number of GPUs within a minute."""
    actor = ray.remote(_Held).options(num_cpus=0, num_gpus=count).remote()
    held: bool = ray.get(actor.ping.remote(), timeout=60)
    ray.kill(actor)
    return held


class _Held:
    def ping(self) -> bool:
        return len(ray.get_gpu_ids()) == 1


def test_more_gpus_than_there_are_end_the_job_at_once(one_gpu: None, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="wants 2 GPUs and Ray has 1"):
        answer(job_of(tmp_path, 2.0))


def test_an_onnxruntime_without_cuda_is_an_error_without_a_fallback(one_gpu: None, tmp_path: Path) -> None:
    with pytest.raises(RayError) as raised:
        answer(job_of(tmp_path, 1.0))
    assert explain(raised.value) == (
        "this machine's onnxruntime has no CUDAExecutionProvider: pip install onnxruntime-gpu in place of onnxruntime"
    )
