from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.jobs.settings.model import LlmSettings, Settings, StageSettings, prices_for
from untold.udfs.llm.usage import NOTHING_USED, Prices, Usage, UsageCounter
from untold.udfs.stages import STAGES

COUNTED = ("calls", "asked", "rate_limited", "tool_turns", "retries_after_parse", "done", "failed")
PRICE = st.one_of(st.none(), st.floats(0, 1e3))
TOKENS = st.integers(0, 10**9)


def test_cost_is_by_price_and_null_without_one() -> None:
    assert Prices(2.0, 10.0).cost(1_000_000, 100_000) == pytest.approx(3.0)
    assert Prices(2.0).cost(1_000_000, 100_000) == pytest.approx(2.0)
    assert Prices().cost(1_000_000, 100_000) is None


@given(PRICE, PRICE, TOKENS, TOKENS)
def test_no_call_costs_more_than_its_tokens_may(
    prompt: float | None, completion: float | None, asked: int, answered: int
) -> None:
    prices = Prices(prompt, completion)
    most = (asked + answered) * prices.most_of_a_token
    assert (prices.cost(asked, answered) or 0.0) <= most * (1 + 1e-9)


def test_a_budget_needs_both_prices() -> None:
    assert Prices(1.0, 0.0).complete
    assert Prices(1.0).known
    assert not Prices(1.0).complete
    assert not Prices().known


def test_every_stage_has_the_prices_of_the_settings() -> None:
    llm = LlmSettings(price_per_million_prompt_tokens=0.4, price_per_million_completion_tokens=1.6)
    assert {prices_for(Settings(llm=llm), stage) for stage in STAGES} == {Prices(0.4, 1.6)}


def test_a_stage_has_its_own_price_and_else_that_of_llm() -> None:
    llm = LlmSettings(price_per_million_prompt_tokens=0.4, price_per_million_completion_tokens=1.6)
    own = StageSettings(price_per_million_prompt_tokens=0.1, price_per_million_completion_tokens=None)
    settings = Settings(llm=llm, stages={"extract_facts": own})
    assert prices_for(settings, "extract_facts") == Prices(0.1)
    assert prices_for(settings, "extract_facts", "batch") == Prices(0.05)
    assert prices_for(settings, "classify_relation") == Prices(0.4, 1.6)


@given(
    st.lists(
        st.builds(
            Usage, prompt_tokens=TOKENS, cached_prompt_tokens=TOKENS, completion_tokens=TOKENS, estimated=st.booleans()
        )
        | st.dictionaries(st.sampled_from(COUNTED), st.integers(0, 3))
    )
)
def test_what_is_counted_up_is_the_sum_of_its_parts(parts: list[Usage | dict[str, int]]) -> None:
    tally = UsageCounter()
    for part in parts:
        tally.book(part) if isinstance(part, Usage) else tally.count(**part)
    assert tally.usage == sum((part if isinstance(part, Usage) else Usage(**part) for part in parts), NOTHING_USED)
