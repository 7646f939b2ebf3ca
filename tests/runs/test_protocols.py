"""Run a job with the Messages API of Anthropic. A command prints the key, and the key expires."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import canonical, count_distinct, make_samples, write_samples
from tests.runs.here import RunHere

pytestmark = pytest.mark.gate


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as started:
        yield started


def test_a_job_over_messages_has_the_tables_of_chat_completions(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    rows = make_samples(10)
    samples, store = write_samples(tmp_path / "samples.jsonl", rows), {"completion_store": str(tmp_path / "store")}
    chat = run_here(server, samples, tmp_path / "chat", settings=store)
    assert chat.code == 0, chat.err
    calls = server.count()
    assert calls == count_distinct(rows)

    # The store of chat completions serves the other protocol
    messages = {"llm.protocol": "messages"}
    again = run_here(server, samples, tmp_path / "again", settings=store | messages)
    assert (again.code, server.count()) == (0, calls), again.err

    server.configure(api_key="sk-printed")
    (tmp_path / "key").write_text("sk-printed\n")
    command = {"llm.api_key_command": f"cat {tmp_path}/key"}
    other = run_here(server, samples, tmp_path / "other", settings=messages | command)
    assert (other.code, server.count()) == (0, 2 * calls), other.err
    assert canonical(tmp_path / "chat") == canonical(tmp_path / "again") == canonical(tmp_path / "other")


def test_a_refused_key_of_a_command_ends_the_run_in_one_line(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    server.configure(api_key="sk-another")
    path = tmp_path / "key"
    path.write_text("sk-wrong-and-secret")
    samples = write_samples(tmp_path / "samples.jsonl", make_samples(5))
    ended = run_here(server, samples, tmp_path / "out", settings={"llm.api_key_command": f"cat {path}"})
    assert ended.code == 1
    assert "check the key that llm.api_key_command prints" in ended.err
    assert "sk-wrong-and-secret" not in ended.err
