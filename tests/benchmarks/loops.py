"""The bare loops that a whole job is compared with: `python -m tests.benchmarks.loops KIND BASE_URL STAGE ROWS N`.

`user` is the loop that a user would write with the SDK. `engine` is the engine's call path without Ray, limiter and
files. Each keeps N calls in flight, and prints the processor time of its loop as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient

from tests.benchmarks.samples import bound_stage, read_variables
from untold.udfs.llm.client import Endpoint
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.script import request_body
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.stages import STAGES

TIMEOUT_SECONDS = 120.0
Variables = Sequence[Mapping[str, Any]]


async def ask_as_a_user(base_url: str, stage: Stage, rows: Variables, in_flight: int) -> float:
    """Call `chat.completions.create` under a semaphore, with prepared messages. Return seconds of CPU."""
    prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
    prompts: list[Any] = [prompt.messages(row) for row in rows]
    semaphore = asyncio.Semaphore(in_flight)
    client = AsyncOpenAI(base_url=base_url, api_key="none", http_client=DefaultAioHttpClient())

    async def ask(messages: Any) -> str | None:
        async with semaphore:
            response = await client.chat.completions.create(model=stage.model, messages=messages, **stage.decoding)
            text: str | None = response.choices[0].message.content
            return text

    began = process_time()
    texts = await asyncio.gather(*[ask(messages) for messages in prompts])
    spent = process_time() - began
    await client.close()
    if not all(texts):
        raise RuntimeError(f"{texts.count(None)} of {len(texts)} calls gave no text")
    return spent


async def ask_as_the_engine(base_url: str, stage: Stage, rows: Variables, in_flight: int) -> float:
    """Call with the engine's parts from a pool of workers, as an actor does. Return seconds of CPU."""
    prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
    parse = STAGES[stage.name].parse
    endpoint = Endpoint(base_url, None, connections=in_flight, timeout=TIMEOUT_SECONDS)

    async def work(waiting: Iterator[Mapping[str, Any]]) -> None:
        for row in waiting:
            answer = await endpoint.call(stage.api, request_body(stage, prompt, row))
            if answer.error_type is not None or answer.text is None:
                raise RuntimeError(f"a call failed: {answer.error_type}")
            parse(answer.text, row)

    gc.collect()
    gc.freeze()
    waiting = iter(rows)
    began = process_time()
    await asyncio.gather(*[work(waiting) for _ in range(in_flight)])
    spent = process_time() - began
    await endpoint.close()
    return spent


LOOPS: dict[str, Callable[[str, Stage, Variables, int], Awaitable[float]]] = {
    "user": ask_as_a_user,
    "engine": ask_as_the_engine,
}


def _event_loop(kind: str) -> asyncio.AbstractEventLoop:
    """Return the event loop of Ray's actor for `engine` (uvloop if installed), and asyncio's loop for `user`."""
    if kind == "engine" and find_spec("uvloop"):
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()


def main(arguments: Sequence[str]) -> None:
    """Run one loop."""
    kind, base_url, name, path, in_flight = arguments
    stage = bound_stage(base_url, name)
    rows = read_variables(Path(path), stage)

    async def ask() -> float:
        return await LOOPS[kind](base_url, stage, rows, int(in_flight))

    with asyncio.Runner(loop_factory=lambda: _event_loop(kind)) as runner:
        print(json.dumps({"calls": len(rows), "cpu_seconds": runner.run(ask())}))


if __name__ == "__main__":
    main(sys.argv[1:])
