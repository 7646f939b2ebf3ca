"""Test the number of actors that call an endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from untold.jobs.inference.stage.call_settings import count_actors
from untold.jobs.settings.model import LlmSettings, RaySettings, Settings


@pytest.mark.parametrize(
    ("llm", "address", "actors"),
    [
        ({}, None, 1),
        ({"max_concurrency": 128}, None, 1),
        ({"max_concurrency": 129}, None, 2),
        ({"max_concurrency": 2000}, None, 3),
        ({"max_concurrency": 2000}, "auto", 16),
        ({"max_concurrency": 2000, "tokens_per_minute": 100}, None, 1),
        ({"max_concurrency": 2000, "requests_per_minute": 60_001}, None, 2),
        ({"max_concurrency": 2000, "actors": 5}, None, 5),
    ],
)
def test_without_limits_the_concurrency_determines_the_number_of_actors(
    llm: dict[str, Any], address: str | None, actors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("untold.jobs.inference.stage.call_settings.usable_cores", lambda: 3)
    settings = Settings(llm=LlmSettings(**llm), ray=RaySettings(address=address))
    assert count_actors(settings) == actors
