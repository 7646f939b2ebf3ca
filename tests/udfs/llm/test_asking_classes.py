"""Test the classes of pairs over real HTTP with three APIs, and the error of a pair that breaks its call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnxruntime import get_available_providers

from tests.fakes.classifier import LABELS, SEPARATOR, FakeClassifier
from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS, InProcess, Run, ask, never_unparsable, rows_in
from tests.udfs.retrieval.onnx_files import write_classifier
from untold.jobs.inference.stage.bindings import bind_lookup
from untold.jobs.settings.model import Settings
from untold.udfs.llm.actors import open_channels
from untold.udfs.llm.calls import CallContext, Progress, Work
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.limiter import Limiter
from untold.udfs.llm.request_loop import RequestLoop
from untold.udfs.llm.store_files import SegmentWriter
from untold.udfs.llm.text_models import read_classes
from untold.udfs.retrieval.classifying import Classifier, find_classifier
from untold.udfs.retrieval.local_models import ON_PROCESSORS, LocalModelFileError

WORDS = ["bees", "make", "honey", "water", "boils"]
FAKE = {"words": WORDS, "doubted": ["water"]}
APIS = ("classify", "predict", "score")
CALLS = replace(SETTINGS, batch=32, section="classifier")
PREMISE, POISON = "bees make honey", "poison of bees"


@pytest.fixture
def classifier() -> Iterator[ModelServer]:
    with ModelServer(classifier=FAKE) as server:
        yield server


def stage_of(api: str, relations: tuple[str, ...] = LABELS) -> Stage:
    separator = SEPARATOR if api == "classify" else ""
    more = {"relations": [] if api == "score" else list(relations)}
    return Stage("classify_entailment", ("premise", "hypothesis"), "judge", separator, api=api, extra_body=more)


def pairs(count: int, place: int | None = None) -> list[tuple[str, dict[str, str]]]:
    said = [POISON if number == place else f"{WORDS[number % 5]} {number}" for number in range(count)]
    return [(f"r{number:04d}", {"premise": PREMISE, "hypothesis": text}) for number, text in enumerate(said)]


def classify(
    server: ModelServer, folder: Path, rows: list[tuple[str, dict[str, str]]], stage: Stage, **changes: Any
) -> tuple[Progress, dict[str, dict[str, Any]]]:
    settings = replace(CALLS, base_url=f"{server.root_url}/{stage.api}", **changes)
    return ask(server, folder, rows, settings, stage=stage), rows_in(folder)


def failed(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row["error_type"] for name, row in rows.items() if row["error_type"]}


@pytest.mark.parametrize("api", APIS)
def test_a_call_asks_for_a_batch_and_every_pair_is_a_row(classifier: ModelServer, tmp_path: Path, api: str) -> None:
    progress, rows = classify(classifier, tmp_path, pairs(70), stage_of(api))
    assert classifier.count("classify_entailment") == progress.usage.calls == progress.usage.asked == 3
    assert (progress.usage.done, progress.usage.failed) == (70, 0)
    for name, variables in pairs(70):
        shares = dict(zip(LABELS, FakeClassifier(**FAKE).probabilities(**variables), strict=True))
        expected = {"entailment": shares["entailment"]} if api == "score" else shares
        assert json.loads(rows[name]["text"]) == expected
    arrived = sum(arrival.prompt_tokens for arrival in classifier.arrivals())
    assert progress.usage.prompt_tokens == arrived == sum(row["prompt_tokens"] for row in rows.values())
    assert (progress.usage.completion_tokens, {row["tokens_estimated"] for row in rows.values()}) == (0, {False})


@pytest.mark.parametrize("api", APIS)
def test_one_poison_pair_is_the_only_one_that_fails(classifier: ModelServer, tmp_path: Path, api: str) -> None:
    classifier.configure(rules=[{"when": {"contains": POISON}, "do": {"status": 413}}])
    progress, rows = classify(classifier, tmp_path, pairs(32, 11), stage_of(api))
    assert failed(rows) == {"r0011": "http_413"}
    # The call is split in half five times to find one of 32 pairs, with two calls each after the first
    assert progress.usage.calls == 11


@pytest.mark.parametrize("api", APIS)
def test_invalid_probabilities_only_fail_their_pair(classifier: ModelServer, tmp_path: Path, api: str) -> None:
    classifier.configure(rules=[{"do": {"nan": POISON}}])
    progress, rows = classify(classifier, tmp_path, pairs(8, 5), stage_of(api), max_attempts=2)
    assert (failed(rows), progress.usage.calls) == ({"r0005": "bad_body"}, 2)
    assert rows["r0005"]["text"] is None


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("deed", ["drop", "html", "cut_json", {"nan": True}, {"status": 503}, {"status": 429}])
def test_a_temporary_error_is_retried(classifier: ModelServer, tmp_path: Path, api: str, deed: Any) -> None:
    classifier.configure(rules=[{"when": {"attempt_below": 2}, "do": deed}])
    progress, rows = classify(classifier, tmp_path, pairs(10), stage_of(api))
    assert (failed(rows), progress.usage.calls, progress.usage.asked) == ({}, 2, 1)
    assert progress.usage.rate_limited == (deed == {"status": 429})


def test_a_batch_that_a_server_does_not_take_is_halved(classifier: ModelServer, tmp_path: Path) -> None:
    progress, rows = classify(classifier, tmp_path, pairs(64), stage_of("predict"), batch=64)
    assert (failed(rows), progress.usage.calls) == ({}, 3)


@pytest.mark.parametrize(
    ("api", "relations", "deed"),
    [
        ("classify", LABELS[:2], "no_usage"),
        ("classify", LABELS[::-1], "no_usage"),
        ("predict", (), "unnamed"),
    ],
)
def test_unnamed_classes_end_the_run(
    classifier: ModelServer, tmp_path: Path, api: str, relations: tuple[str, ...], deed: str
) -> None:
    classifier.configure(rules=[{"do": deed}])
    settings = replace(CALLS, base_url=f"{classifier.root_url}/{api}")

    async def refused() -> str:
        one = Run(classifier, tmp_path, settings, stage=stage_of(api, relations))
        one.asker.start()
        one.asker.feed("unit", pairs(40))
        await one.until(lambda progress: progress.refused is not None)
        return str((await one.asker.stop(1.0)).refused)

    said = asyncio.run(refused())
    assert ("classifier.labels" in said, "nli.classifier_url" in said) == (True, True)
    assert rows_in(tmp_path) == {}


def test_numbered_classes_equal_the_settings(classifier: ModelServer, tmp_path: Path) -> None:
    classifier.configure(rules=[{"do": "unnamed"}])
    _, rows = classify(classifier, tmp_path, pairs(1), stage_of("predict"))
    assert json.loads(rows["r0000"]["text"])["entailment"] == FakeClassifier(**FAKE).probabilities(PREMISE, "bees 0")[0]


@pytest.mark.parametrize(
    "body",
    [
        [[{"label": "neutral", "score": 1.0}]],
        [[{"label": "entailment", "score": 4.5}, {"label": "neutral", "score": -3.5}]],
        [[{"label": "entailment", "score": 0.7}, {"label": "neutral", "score": 0.6}]],
        [[{"label": "entailment", "score": True}]],
        [[{"label": "entailment"}]],
        [7],
        {"error": {"code": "server_error"}},
    ],
)
def test_a_response_without_the_class_or_with_other_scores_is_invalid(body: Any) -> None:
    answer = read_classes(json.dumps(body).encode(), 40, {}, api="predict", sizes=[10], relations=())
    assert answer.error_type == ("http_500" if isinstance(body, dict) else "bad_body")
    assert not answer.refused


def test_classes_of_one_relation_are_added() -> None:
    body = {"data": [{"index": 0, "label": "not_entailment", "probs": [0.25, 0.5, 0.25]}]}
    relations = ("entailment", "neutral", "neutral")
    answer = read_classes(json.dumps(body).encode(), 40, {}, api="classify", sizes=[10], relations=relations)
    assert json.loads(str(answer.parts[0].text)) == {"entailment": 0.25, "neutral": 0.75}


class LocalRun(Run):
    """A request loop with a classifier in a folder, as in an actor with a GPU, with a provider of this machine."""

    def __init__(self, stage: Stage, folder: Path, provider: str) -> None:
        self.settings = replace(CALLS, provider=provider, max_attempts=1)
        work = Work("a", "run/stage", "run", CallContext(stage), self.settings)
        channels = open_channels(work, InProcess([Limiter()]).lend)
        self.asker = RequestLoop(
            work, never_unparsable, channels, SegmentWriter(str(folder), "run-a", self.settings.flush)
        )


@pytest.fixture
def local(tmp_path: Path) -> Stage:
    write_classifier(tmp_path / "judge", WORDS, list(LABELS))
    return bind_lookup("classify_entailment", Settings.model_validate({"nli": {"classifier": str(tmp_path / "judge")}}))


def test_a_local_model_is_called_like_an_endpoint_and_has_the_results_of_a_task(local: Stage, tmp_path: Path) -> None:
    rows = [*pairs(70), ("long", {"premise": PREMISE, "hypothesis": "honey " * 600})]
    progress = asyncio.run(LocalRun(local, tmp_path, ON_PROCESSORS).ask({"unit": rows}))
    found, classifier = rows_in(tmp_path), Classifier(find_classifier(local.model))
    expected = classifier.classify([(row["premise"], row["hypothesis"]) for _, row in pairs(70)])
    assert [json.loads(found[name]["text"]) for name, _ in pairs(70)] == expected
    assert failed(found) == {"long": "truncated"}
    assert (progress.usage.done, progress.usage.failed, progress.usage.tokens) == (71, 1, 0)


@pytest.mark.skipif("CUDAExecutionProvider" in get_available_providers(), reason="onnxruntime has CUDA here")
def test_without_cuda_there_is_no_fallback_to_the_processor(local: Stage, tmp_path: Path) -> None:
    with pytest.raises(LocalModelFileError, match="pip install onnxruntime-gpu"):
        LocalRun(local, tmp_path, SETTINGS.provider)
