"""Interrupt `session.score` in a Jupyter kernel. The kernel survives, and the same call resumes the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from tests.fakes.model_server import ModelServer
from tests.runs.harness import PROMPTS, SETTINGS, WAIT_SECONDS, clean_environment

pytestmark = pytest.mark.slow
SAMPLES = 40
OPEN = """
import json, untold
rows = json.loads({rows!r})
import pyarrow as pa
session = untold.Session(settings=json.loads({settings!r}))
"""
SCORE = """
run = session.score(pa.Table.from_pylist(rows), "e2e", {output!r})
print(run.status, len(run.table("scores")))
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path), env=clean_environment())
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel()


def run_cell(client: BlockingKernelClient, code: str) -> tuple[dict[str, Any], str]:
    """Return the reply to a cell and its output."""
    printed: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=hear, timeout=WAIT_SECONDS)
    return reply["content"], "".join(printed)


def test_an_interrupted_call_can_be_resumed_in_the_same_kernel(
    kernel: tuple[KernelManager, BlockingKernelClient], tmp_path: Path
) -> None:
    manager, client = kernel
    rows = [{"query": f"q{place}?", "response": f"r{place}.", "contexts": [f"c{place}."]} for place in range(SAMPLES)]
    with ModelServer() as server:
        settings = {**SETTINGS, "prompts_dir": str(PROMPTS), "llm.base_url": server.base_url}
        settings |= {"summarise_contexts": False, "llm.max_concurrency": 2}
        opened, _ = run_cell(client, OPEN.format(rows=json.dumps(rows), settings=json.dumps(settings)))
        assert opened["status"] == "ok"
        server.configure(latency=1.0)
        score = SCORE.format(output=str(tmp_path / "out"))
        asked = client.execute(score)
        server.wait_for(3, timeout=WAIT_SECONDS)
        manager.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=WAIT_SECONDS))["parent_header"].get("msg_id") != asked:
            pass
        assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "KeyboardInterrupt")
        answered = server.count()
        assert 0 < answered < SAMPLES
        assert run_cell(client, "print(1 + 1)")[1] == "2\n"
        server.configure(latency=0.0)
        again, printed = run_cell(client, score)
        assert again["status"] == "ok"
        assert printed == f"finished {SAMPLES}\n"
        # No completion from before the interrupt is requested again
        assert server.count() <= SAMPLES + 2
        assert run_cell(client, "session.close()")[0]["status"] == "ok"
