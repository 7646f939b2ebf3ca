"""Test the settings of several endpoints: their own values, the values from `llm.*`, and the errors and secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.settings.cases import load
from untold.jobs.inference.backends.job import Job, Spool, SpoolError, job_from_json, job_to_json
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import call_settings, hours_of, limits_of, price, with_given
from untold.jobs.run.output import shown
from untold.jobs.settings.loading import load_given
from untold.jobs.settings.model import Settings, SettingsError, prices_for
from untold.udfs.llm.calls import CallContext, CallSettings
from untold.udfs.llm.limiter import Limits
from untold.udfs.llm.usage import Prices, Usage

A, B = "http://a.test/v1", "http://b.test/v1"
PRICES = ["llm.price_per_million_prompt_tokens=1", "llm.price_per_million_completion_tokens=2"]


def endpoints(*each: dict[str, Any]) -> str:
    return f"llm.endpoints={json.dumps(each)}"


def settings_of(*sets: str) -> Settings:
    return load(*sets, "llm.model=m").settings


def calls_of(settings: Settings, stage: str = "evaluate_coverage") -> CallSettings:
    return call_settings(settings, bind_stage(stage, settings), A)


def test_what_an_endpoint_leaves_out_is_that_of_llm() -> None:
    own = {"base_url": B, "model": "theirs", "requests_per_minute": None, "price_per_million_prompt_tokens": 9}
    given = ["llm.requests_per_minute=60", "llm.api_key_env=A_NAME", "llm.extra_query.version=one", *PRICES]
    settings = settings_of(endpoints({"base_url": A, "extra_query": {"more": "two"}}, own), *given)
    first, second = calls_of(settings).endpoints
    assert (first.model, first.limits, first.prices) == (None, Limits(60, None, 64), Prices(1, 2))
    assert (second.model, second.limits, second.prices) == ("theirs", Limits(None, None, 64), Prices(9, 2))
    assert (first.api_key_env, second.api_key_env) == ("A_NAME", "A_NAME")
    assert (first.query, second.query) == ({"version": "one", "more": "two"}, {"version": "one"})
    assert prices_for(settings, "evaluate_coverage") == Prices(9, 2)
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_endpoints_change_no_key_of_a_request() -> None:
    alone = settings_of(f"llm.base_url={A}")
    several = settings_of(endpoints({"base_url": A, "model": "x"}, {"base_url": B}), "llm.extra_headers.X-Id=7")
    digests = {bind_stage("evaluate_coverage", settings).digest for settings in (alone, several)}
    assert len(digests) == 1


def test_the_model_of_a_stage_is_identified_by_its_name() -> None:
    settings = settings_of(endpoints({"base_url": A, "model": "x"}), "stages.evaluate_coverage.model=strong")
    assert calls_of(settings).endpoints[0].model is None
    assert calls_of(settings, "summarise_context").endpoints[0].model == "x"


def test_prices_of_a_stage_apply_to_each_endpoint() -> None:
    own = {"base_url": B, "price_per_million_prompt_tokens": 9}
    stage = "stages.summarise_context.price_per_million"
    given = [f"{stage}_prompt_tokens=0.5", f"{stage}_completion_tokens=null"]
    settings = settings_of(endpoints({"base_url": A}, own), *PRICES, *given)
    assert [one.prices for one in calls_of(settings, "summarise_context").endpoints] == [Prices(0.5), Prices(0.5)]
    assert [one.prices for one in calls_of(settings).endpoints] == [Prices(1, 2), Prices(9, 2)]
    assert prices_for(settings, "summarise_context") == Prices(0.5)
    used = Usage(endpoints={one: Usage(1_000_000, calls=1) for one in (A, B)})
    assert price(settings, bind_stage("summarise_context", settings), used).cost == 1.0


def test_two_accounts_of_one_address_are_distinct() -> None:
    each = calls_of(settings_of(endpoints({"base_url": A, "api_key_env": "ONE"}, {"base_url": A}))).endpoints
    assert [one.label for one in each] == [f"{A} (ONE)", A]


def test_routes_of_a_gateway_are_distinguished_by_extra_fields() -> None:
    routes = [{"base_url": A, "extra_headers": {"X-Route": route}} for route in ("hush1", "hush2")]
    each = calls_of(settings_of(endpoints(*routes, {"base_url": A, "extra_query": {"api-version": "1"}}))).endpoints
    assert [one.label for one in each] == [f"{A} (number 1)", f"{A} (number 2)", f"{A} (number 3)"]
    assert [one.headers.get("X-Route") for one in each] == ["hush1", "hush2", None]


def test_a_plan_counts_with_all_limits_together() -> None:
    each = [{"base_url": A, "requests_per_minute": 60}, {"base_url": B, "requests_per_minute": 120}]
    limits = limits_of(settings_of(endpoints(*each)), "chat")
    assert (limits.requests_per_minute, hours_of(limits, 10_800, 0)) == (180, 1.0)
    free = limits_of(settings_of(endpoints(each[0], {"base_url": B})), "chat")
    assert free.requests_per_minute is None


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([endpoints({"base_url": A}, {"base_url": B, "weight": 0})], "in entry 2, weight must be a number > 0"),
        ([endpoints({"base_url": "a.test"})], "in entry 1, base_url must be an http"),
        ([endpoints({"base_url": A, "wieght": 1})], "the nearest is weight"),
        ([endpoints({"base_url": A}, {"base_url": A})], "that differ in base_url"),
        ([endpoints({"base_url": A}), f"llm.base_url={B}"], "must be null, or one of llm.endpoints"),
        ([endpoints({"base_url": A}), "budget.max_cost=3"], "needs llm.price"),
        ([f"llm.base_url={A}", "llm.extra_headers={Host: hush}"], "which Untold sends itself"),
        ([f"llm.base_url={A}", 'llm.extra_headers={X: "a\\nhush"}'], "must be a mapping"),
        ([f"llm.base_url={A}", "llm.extra_headers={X: {env: sk-a-secret-hush}}"], "must be a mapping"),
    ],
)
def test_what_is_wrong_is_named_without_its_values(sets: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        settings_of(*sets)
    assert "hush" not in str(caught.value)


def test_headers_and_parameters_are_never_shown() -> None:
    given = ["llm.extra_headers.X-Id=hush7", "llm.extra_query.version=hush8"]
    own = {"base_url": A, "extra_headers": {"X-Own": "hush9"}}
    assert "hush" not in json.dumps(shown(settings_of(endpoints(own), *given)))


def test_a_null_removes_a_header() -> None:
    settings = settings_of(
        f"llm.base_url={A}", "llm.extra_headers={X-Id: 7, X-Other: 8}", "llm.extra_headers.X-Id=null"
    )
    assert calls_of(settings).headers == {"X-Other": 8}


def test_a_preset_s_headers_go_to_no_address_of_the_user_s() -> None:
    sets = ["llm.endpoint=openai", endpoints({"base_url": A})]
    assert calls_of(settings_of(*sets)).endpoints[0].api_key_env is None


def job_of(settings: Settings) -> Job:
    return Job("requests", "/store", "run", CallContext(bind_stage("evaluate_coverage", settings)), calls_of(settings))


def test_a_worker_has_the_endpoints_of_a_job_and_may_have_others() -> None:
    job = job_of(settings_of(endpoints({"base_url": A, "weight": 2}, {"base_url": B}), "llm.requests_per_minute=60"))
    assert job_from_json(json.loads(json.dumps(job_to_json(job)))) == job
    slower = with_given(job, load_given(None, ["llm.requests_per_minute=6"], {})).settings.endpoints
    assert [(one.base_url, one.limits.requests_per_minute) for one in slower] == [(A, 6), (B, 6)]
    moved = with_given(job, load_given(None, [endpoints({"base_url": "http://c.test/v1"})], {})).settings.endpoints
    assert [(one.base_url, one.limits, one.api_key_env) for one in moved] == [("http://c.test/v1", Limits(60), None)]
    alone = with_given(job, load_given(None, ["llm.base_url=http://c.test/v1"], {})).settings
    assert (alone.base_url, alone.endpoints) == ("http://c.test/v1", ())


def test_a_spool_contains_no_secret_of_a_header(tmp_path: Any) -> None:
    job = Spool(str(tmp_path)).job("a-job")
    own = {"base_url": A, "extra_headers": {"api-key": "a-word"}}
    with pytest.raises(SpoolError, match="a header or a parameter"):
        job.publish(job_of(settings_of(endpoints(own))))
    named = {"base_url": A, "extra_headers": {"api-key": {"env": "A_NAME"}}, "extra_query": {"api-version": "1"}}
    job.place.make_folder()
    job.publish(job_of(settings_of(endpoints(named))))
    assert job.read().settings.endpoints[0].headers == {"api-key": {"env": "A_NAME"}}
