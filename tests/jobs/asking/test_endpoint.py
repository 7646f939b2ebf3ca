from __future__ import annotations

import pytest

from untold.jobs.asking.endpoint import RunEndpoint, explain_refusal
from untold.jobs.settings.model import LlmSettings, Settings


@pytest.mark.parametrize(
    ("address", "said"), [("http://192.0.2.1/v1", 1), ("https://192.0.2.1/v1", 0), ("http://localhost:8000/v1", 0)]
)
def test_a_run_says_once_that_it_calls_without_encryption(address: str, said: int) -> None:
    notes: list[str] = []
    settings = Settings(llm=LlmSettings(base_url=address))
    endpoint = RunEndpoint(settings, embedded=False, wait=False, notify=notes.append)
    assert notes == []
    assert [endpoint.base_url(), endpoint.base_url()] == [address, address]
    assert len(notes) == said
    assert all(address in note and "https://" in note for note in notes)


@pytest.mark.parametrize(
    ("error", "variable", "part"),
    [
        ("HTTP 401 (invalid_api_key)", None, "--set llm.api_key_env=NAME"),
        ("HTTP 401", "A_VARIABLE_THAT_IS_NOT_SET", "A_VARIABLE_THAT_IS_NOT_SET (llm.api_key_env) is not set"),
        ("HTTP 403", None, "--set llm.api_key_env=NAME"),
    ],
)
def test_a_refusal_over_the_key_says_how_to_name_one(error: str, variable: str | None, part: str) -> None:
    said = explain_refusal(error, [variable])
    assert said.startswith(f"{error}: ")
    assert part in said


def test_another_refusal_is_left_as_it_is() -> None:
    assert explain_refusal("HTTP 404 (model_not_found)", [None]) == "HTTP 404 (model_not_found)"
