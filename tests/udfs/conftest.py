from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.model_server import ModelServer


@pytest.fixture(scope="module")
def process() -> Iterator[ModelServer]:
    with ModelServer() as started:
        yield started


@pytest.fixture
def server(process: ModelServer) -> ModelServer:
    process.configure(answer="e2e", rules=[], limits={}, latency=0.0, api_key=None, down=False)
    process.reset()
    return process
