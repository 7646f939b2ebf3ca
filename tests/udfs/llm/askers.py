"""Run a request loop with a real model server. The limiter is in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fakes.model_server import ModelServer
from untold.udfs.llm.actors import limiters_of, open_channels
from untold.udfs.llm.calls import CallContext, CallSettings, Progress, Work
from untold.udfs.llm.channels import Channel, Channels
from untold.udfs.llm.client import Endpoint
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.limiter import Lease, Limiter, LimiterReport, Limits
from untold.udfs.llm.request_loop import RequestLoop
from untold.udfs.llm.retrying import ASKED_AGAIN
from untold.udfs.llm.store_files import SegmentWriter
from untold.udfs.stages.schemas import OutputFormat

STAGE = Stage(
    name="summarise_context",
    variables=("query", "text"),
    model="fake-model",
    template='{"stage": "summarise_context", "query": {{ query | tojson }}, "text": {{ text | tojson }}}',
    temperature=0.0,
)
SETTINGS = CallSettings(base_url="", timeout=3.0, deadline=30.0, flush=0.1, limits=Limits(max_concurrency=8))


def never_unparsable(text: str, _: Any) -> None:
    """Accept any text."""


def requests(count: int, *, text: str = "Text number {}.") -> list[tuple[str, dict[str, str]]]:
    return [(f"r{number:04d}", {"query": "Who?", "text": text.format(number)}) for number in range(count)]


class Run:
    """A request loop with a real server and a limiter in this process."""

    def __init__(
        self,
        server: ModelServer,
        folder: Path,
        settings: CallSettings = SETTINGS,
        *,
        parse: Callable[[str, Any], Any] = never_unparsable,
        stage: Stage = STAGE,
        answered_before: bool = False,
        tries_schema: bool = False,
        may_adapt: bool = False,
        form: OutputFormat | None = None,
    ) -> None:
        self.settings = replace(settings, base_url=settings.base_url or server.base_url)
        endpoint = Endpoint(self.settings.base_url, None, connections=8, timeout=self.settings.timeout)
        writer = SegmentWriter(str(folder), "run-a", self.settings.flush)
        self.limiter = Limiter()
        call = CallContext(stage, answered_before=answered_before, tries_schema=tries_schema, may_adapt=may_adapt)
        work = Work("a", "run/stage", "run", call, self.settings)
        self.asker = RequestLoop(work, parse, Channels(work, self._lend, [Channel(work, endpoint)]), writer, form)

    async def _lend(self, reports: Mapping[int, LimiterReport]) -> dict[int, Lease]:
        return {number: await self._lease(report) for number, report in reports.items()}

    async def _lease(self, report: LimiterReport) -> Lease:
        await asyncio.sleep(0)
        return self.limiter.lease(report)

    async def until(self, done: Callable[[Progress], bool], seconds: float = 120.0) -> Progress:
        """Wait until the condition is true. Raise TimeoutError if the time expires."""
        async with asyncio.timeout(seconds):
            while not done(progress := self.asker.progress()):
                await asyncio.sleep(0.01)
        return progress

    async def ask(self, units: dict[str, Sequence[tuple[str, Any]]], seconds: float = 120.0) -> Progress:
        """Send the requests of these units to their end and stop."""
        self.asker.start()
        for unit, rows in units.items():
            self.asker.feed(unit, rows)
        await self.until(lambda progress: set(progress.finished_units) == set(units), seconds)
        return await self.asker.stop(1.0)


class RunOfSeveral(Run):
    """A request loop with several servers. Each server has a limiter, and another limiter has the budget.

    `own` are the settings of each endpoint. The default of `concurrency` is the value in the settings.
    """

    def __init__(
        self,
        servers: Sequence[ModelServer],
        folder: Path,
        own: Sequence[dict[str, Any]] = (),
        settings: CallSettings = SETTINGS,
        *,
        parse: Callable[[str, Any], Any] = never_unparsable,
        stage: Stage = STAGE,
    ) -> None:
        given = [*own, *({} for _ in servers[len(own) :])]
        each = [replace(settings, base_url=server.base_url, **one) for server, one in zip(servers, given, strict=True)]
        self.settings = replace(settings, endpoints=tuple(each))
        work = Work("a", "run/stage", "run", CallContext(stage), self.settings)
        self.limiters = [Limiter() for _ in limiters_of(work)]
        channels = open_channels(work, InProcess(self.limiters).lend)
        self.asker = RequestLoop(work, parse, channels, SegmentWriter(str(folder), "run-a", self.settings.flush))


class InProcess:
    """A set of limiters in this process."""

    def __init__(self, limiters: Sequence[Limiter]) -> None:
        self.limiters = limiters

    async def lend(self, reports: Mapping[int, LimiterReport]) -> dict[int, Lease]:
        await asyncio.sleep(0)
        return {number: self.limiters[number].lease(report) for number, report in reports.items()}


def ask(
    server: ModelServer,
    folder: Path,
    rows: Sequence[tuple[str, Any]],
    settings: CallSettings = SETTINGS,
    seconds: float = 120.0,
    **kinds: Any,
) -> Progress:
    """Send these requests to their end. Raise TimeoutError if the time expires."""

    async def run() -> Progress:
        return await Run(server, folder, settings, **kinds).ask({"unit": rows}, seconds)

    return asyncio.run(run())


def rows_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the last row of each request by id, and check that each id occurs once."""
    rows = [row for row in all_rows_in(folder) if row["error_type"] != ASKED_AGAIN]
    assert len({row["request_id"] for row in rows}) == len(rows)
    return {row["request_id"]: row for row in rows}


def all_rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return all written rows, including the completions of requests that were retried later."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return pa.concat_tables(tables).to_pylist() if tables else []
