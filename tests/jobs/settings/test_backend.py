"""Test the backend of a run and of each stage: the stages that use batches, the prices, and the unsupported stages."""

from __future__ import annotations

import json

import pytest

from tests.jobs.settings.cases import SERVER, load, problems
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import call_settings
from untold.jobs.inference.stage.engines import calls_endpoint
from untold.jobs.settings.model import STAGE_NAMES, backend_for, prices_for, result_settings
from untold.udfs.llm.usage import Prices

PRICES = ("llm.price_per_million_prompt_tokens=2", "llm.price_per_million_completion_tokens=8")


def test_a_stage_uses_its_backend_and_lookups_use_calls() -> None:
    settings = load(*SERVER, *PRICES, "llm.backend=batch", "stages.evaluate_coverage.backend=process").settings
    delivered = {name: backend_for(settings, name) for name in ("summarise_context", "evaluate_coverage", "embed_text")}
    assert delivered == {"summarise_context": "batch", "evaluate_coverage": "process", "embed_text": "process"}
    assert prices_for(settings, "summarise_context") == Prices(1.0, 4.0)
    assert prices_for(settings, "evaluate_coverage") == Prices(2.0, 8.0)
    assert prices_for(settings, "evaluate_coverage", "batch") == Prices(1.0, 4.0)


def test_a_backend_changes_neither_keys_nor_the_identity_of_an_output() -> None:
    calls = load(*SERVER).settings
    batches = load(
        *SERVER, "llm.backend=batch", "batch.requests=10", "stages.classify_relation.backend=process"
    ).settings
    for name in STAGE_NAMES:
        assert bind_stage(name, calls).digest == bind_stage(name, batches).digest
    assert result_settings(calls) == result_settings(batches)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            [f"llm.endpoints={json.dumps([{'base_url': 'http://a/v1'}, {'base_url': 'http://b/v1'}])}", "llm.model=m"],
            "must be process with several llm.endpoints",
        ),
        ([], "must be process with the embedded model"),
    ],
)
@pytest.mark.parametrize("key", ["llm.backend", "stages.evaluate_coverage.backend"])
def test_a_stage_without_batches_is_an_error_with_the_setting(overrides: list[str], told: str, key: str) -> None:
    (problem,) = problems(*overrides, f"{key}=batch")
    assert problem.startswith(key)
    assert problem.endswith(told)


@pytest.mark.parametrize("backend", ["process", "batch"])
@pytest.mark.parametrize("spool", ["spool", "ray-job"])
def test_a_stage_has_no_own_backend_with_a_spool(spool: str, backend: str) -> None:
    given = (f"llm.backend={spool}", "ray.address=http://head:8265", f"stages.evaluate_coverage.backend={backend}")
    (problem,) = problems(*SERVER, *given)
    assert problem.startswith(f"stages.evaluate_coverage.backend={backend}")
    assert problem.endswith(f"must be left out with llm.backend={spool}")


@pytest.mark.parametrize(("backend", "lookups"), [("process", "process"), ("batch", "process"), ("spool", "spool")])
def test_lookups_have_the_backend_of_the_run_unless_it_is_batches(backend: str, lookups: str) -> None:
    assert backend_for(load(*SERVER, f"llm.backend={backend}").settings, "embed_text") == lookups


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["batch.format=files"], "needs batch.folder, a folder of the requests and results"),
        (
            ["batch.format=anthropic", "llm.api=completions"],
            "supports only chat completions: set llm.api to chat",
        ),
        (["batch.format=claude"], "must be"),
    ],
)
def test_a_form_that_cannot_be_is_refused(overrides: list[str], told: str) -> None:
    (problem,) = problems(*SERVER, "llm.backend=batch", *overrides)
    assert problem.startswith("batch.format")
    assert told in problem


def test_the_format_of_batches_depends_on_the_host_unless_it_is_set() -> None:
    def form_of(*overrides: str) -> tuple[str, str | None]:
        settings = load("llm.model=m", "llm.base_url=https://api.mistral.ai/v1", *overrides).settings
        calls = call_settings(settings, bind_stage("summarise_context", settings), str(settings.llm.base_url))
        return calls.batch_format, calls.batch_folder

    assert form_of() == ("mistral", None)
    assert form_of("batch.format=files", "batch.folder=/there") == ("files", "/there")


def test_ray_starts_first_only_if_a_stage_uses_calls() -> None:
    stages = ("summarise_context", "evaluate_coverage", "embed_text")
    batches = [f"stages.{name}.backend=batch" for name in stages[:2]]
    assert calls_endpoint(load(*SERVER).settings, stages)
    assert not calls_endpoint(load(*SERVER, "llm.backend=batch").settings)
    assert not calls_endpoint(load(*SERVER, *batches).settings, stages)
    assert calls_endpoint(load(*SERVER, *batches[:1]).settings, stages)
    assert calls_endpoint(
        load(*SERVER, "llm.backend=batch", "stages.evaluate_coverage.backend=process").settings, stages
    )


def test_another_backend_is_refused() -> None:
    (problem,) = problems(*SERVER, "llm.backend=bach")
    assert problem == "llm.backend=bach (--set): must be process | ray-job | spool | batch"
