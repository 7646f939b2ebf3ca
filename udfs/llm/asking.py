"""Answers requests: a pool of workers that shares one client, takes slots from the limiter and records completions.

A plain object without Ray, so that its loop runs untraced and can be tested alone.
"""

from __future__ import annotations

import asyncio
import random
from bisect import insort
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic, time
from typing import Any

from udfs.llm.accounts import CallSettings, News, Progress, Request, Tally, completion_row
from udfs.llm.client import Answer, Endpoint, Usage, request_body
from udfs.llm.keys import Stage
from udfs.llm.limiter import NOTHING_SPENT, OUTAGE_FAULTS, Lease, Report, Spent
from udfs.llm.segments import SegmentWriter
from udfs.llm.templates import Prompt, compile_prompt
from udfs.llm.tokens import estimate_tokens
from udfs.llm.tools import MAX_ROUNDS, exchange, run_tool, trace
from udfs.stages.definitions import Unparsable

LATE_SECONDS = 0.05
FLUSH_LOOK_SECONDS = 0.1
POLL_SECONDS = 0.1
IDLE_POLL_SECONDS = 0.25
PREFETCH = 512
FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0
COMPLETION_QUANTILE = 0.9
COMPLETIONS_REMEMBERED = 1000
FIRST_COMPLETION_TOKENS = 512
FAULTS = frozenset({"timeout", "connection"})
CHECK = "check key, llm.base_url and llm.model"
NO_TOOLS = "it takes no tools, set qa.quantity_tool to resolve or none"
ASK_AGAIN = frozenset({"unparsable", "empty", "truncated", "bad_body"})


class Asker:
    """Answers what it is fed, within what `lease` grants, and hands every result to `writer`."""

    def __init__(
        self,
        name: str,
        run: str,
        stage: Stage,
        parse: Callable[[str, Mapping[str, Any]], Any],
        settings: CallSettings,
        endpoint: Endpoint,
        lease: Callable[[Report], Awaitable[Lease]],
        writer: SegmentWriter,
        *,
        spent_before: Spent = NOTHING_SPENT,
        answered_before: bool = False,
    ) -> None:
        self._name, self._run, self._stage, self._parse = name, run, stage, parse
        self._settings, self._endpoint, self._lease, self._writer = settings, endpoint, lease, writer
        self._spent_before = spent_before
        self._answered_ever = self._succeeded_ever = answered_before
        self._answered_at = 0.0
        self._answered_here = False
        self._prompt: Prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
        self._counts_tokens = (
            settings.limits.tokens_per_minute is not None
            or settings.budget.max_tokens is not None
            or settings.budget.max_cost is not None
        )
        self._tally = Tally()
        self._ready: deque[Request] = deque()
        self._slots: deque[tuple[float, int]] = deque()
        self._units: dict[str, int] = {}
        self._recorded: list[str] = []
        self._finished: list[str] = []
        self._in_flight = 0
        self._places = 0
        self._offset: float | None = None
        self._round_trip = float("inf")
        self._paused_until = 0.0
        self._until = 0.0
        self._strict = True
        self._probing = False
        self._refusal: str | None = None
        self._refused: Answer | None = None
        self._stopping = False
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._need_lease = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._models: set[str] = set()
        self._completions: deque[int] = deque(maxlen=COMPLETIONS_REMEMBERED)
        self._sorted_completions: list[int] = []
        self._news = News()

    def start(self) -> None:
        """Starts the workers; call it inside the event loop."""
        workers = self._settings.limits.max_in_flight
        self._tasks = [asyncio.create_task(self._work()) for _ in range(workers)]
        self._tasks += [asyncio.create_task(self._keep_leasing()), asyncio.create_task(self._keep_flushing())]

    def feed(self, unit: str, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Takes the requests of a unit of work: (request id, variables) each."""
        before = len(self._ready)
        self._ready.extend(Request(request_id, variables, unit) for request_id, variables in requests)
        fed = len(self._ready) - before
        self._units[unit] = fed
        self._tally.taken += fed
        if not fed:
            self._recorded.append(unit)
        self._need_lease.set()

    def progress(self) -> Progress:
        """How far it is. Raises what broke the flushing or the leasing."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        refused = self._refused.error if self._refused else None
        return Progress(
            self._tally,
            len(self._ready),
            self._in_flight,
            tuple(self._finished),
            self._refusal,
            refused,
            tuple(sorted(self._models)),
            self._answered_ever,
        )

    async def stop(self, grace: float) -> Progress:
        """Takes nothing more, waits up to `grace` seconds for what is in flight, writes everything and closes."""
        self._stopping = True
        end = monotonic() + grace
        while self._in_flight and monotonic() < end:
            await asyncio.sleep(0.05)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._flush()
        await self._endpoint.close()
        return self.progress()

    async def _work(self) -> None:
        while True:
            request = await self._take()
            self._in_flight += 1
            try:
                await self._ask(request)
            finally:
                self._in_flight -= 1

    async def _take(self) -> Request:
        """The next request together with the right to send it now."""
        while True:
            request = self._pop() if self._may_send() else None
            if request is not None:
                if len(self._slots) < (1 if self._strict else PREFETCH // 2):
                    self._need_lease.set()
                if self._slots and self._ready:
                    self._wake()
                return request
            sleeper = asyncio.get_running_loop().create_future()
            self._sleepers.append(sleeper)
            await sleeper

    def _may_send(self) -> bool:
        return bool(
            self._ready
            and self._slots
            and self._in_flight < self._places
            and not self._stopping
            and self._refused is None
        )

    def _pop(self) -> Request | None:
        """Takes a slot and a request if the slot's time has come; arranges to be woken if it has not."""
        now = time() + (self._offset or 0.0)
        while self._slots:
            at, tokens = self._slots[0]
            if self._strict and (at < now - LATE_SECONDS or at < self._paused_until):
                self._slots.popleft()
                self._news.unused_tokens += tokens
                continue
            wait = max(at, self._paused_until) - now
            if wait > 0.001:
                self._wake_after(wait)
                return None
            self._slots.popleft()
            request = self._ready.popleft()
            request.reserved = tokens
            self._news.reserved += tokens
            return request
        self._need_lease.set()
        return None

    def _wake_after(self, seconds: float) -> None:
        """Wakes one worker when the next slot's time comes; that worker wakes the next."""
        loop = asyncio.get_running_loop()
        if self._alarm is None or self._alarm.cancelled() or self._alarm.when() <= loop.time():
            self._alarm = loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        while self._sleepers:
            sleeper = self._sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                return

    async def _ask(self, request: Request) -> None:
        try:
            body = request.body or self._body(request)
        except Exception as error:
            self._give_back(request, 0)
            failure = Answer(error_type="template", error=f"the template cannot be filled in ({type(error).__name__})")
            self._record(request, failure)
            return
        request.body = None
        now = monotonic()
        request.first_sent = request.first_sent or now
        left = self._settings.deadline - (now - request.first_sent)
        if left <= 0 and request.last is not None:
            self._give_back(request, 0)
            self._record(request, request.last)
            return
        self._tally.asked += not request.calls
        self._tally.calls += 1
        request.calls += 1
        answer = await self._endpoint.call(self._stage.api, body, left)
        self._count(request, answer)
        if self._stage.tools and answer.tool_calls and answer.error_type in (None, "empty"):
            self._use_tools(request, answer)
        else:
            self._settle(request, self._read(request, answer))

    def _body(self, request: Request) -> bytes:
        left = request.rounds < MAX_ROUNDS
        return request_body(self._stage, self._prompt, request.variables, request.turns, tools_left=left)

    def _use_tools(self, request: Request, answer: Answer) -> None:
        """Runs what the model calls and goes on with the conversation; each of its turns is a call under the limits."""
        if request.rounds >= MAX_ROUNDS:
            self._settle(request, _failed(answer, "unparsable", "the model does not stop calling tools"))
            return
        self._hear(success=True)
        results = [run_tool(call) for call in answer.tool_calls]
        request.turns += exchange(answer.text, answer.tool_calls, results)
        request.trace += trace(answer.tool_calls, results)
        request.rounds += 1
        request.body, request.tokens = None, 0
        self._return(request)

    def _read(self, request: Request, answer: Answer) -> Answer:
        """The answer, with the error `unparsable` where the stage's parser cannot read it."""
        if answer.error_type is not None or answer.text is None:
            return answer
        try:
            self._parse(answer.text, request.variables)
        except Unparsable as error:
            return _failed(answer, "unparsable", str(error))
        except Exception as error:
            return _failed(answer, "unparsable", f"the parser failed ({type(error).__name__})")
        return answer

    def _count(self, request: Request, answer: Answer) -> None:
        usage: Usage = answer.usage
        request.prompt_tokens += usage.prompt_tokens
        request.cached_prompt_tokens += usage.cached_prompt_tokens
        request.completion_tokens += usage.completion_tokens
        request.estimated |= usage.estimated
        self._tally.prompt_tokens += usage.prompt_tokens
        self._tally.completion_tokens += usage.completion_tokens
        self._tally.tokens_estimated |= usage.estimated
        used = usage.prompt_tokens + usage.completion_tokens
        self._give_back(request, request.reserved if answer.error_type in FAULTS else used)
        if answer.model:
            self._models.add(answer.model)
        if answer.text is not None and self._counts_tokens:
            self._remember_completion(usage.completion_tokens)

    def _give_back(self, request: Request, used: int) -> None:
        """Ends a reservation; a call without an answer counts as if it had used all of it."""
        self._news.unused_tokens += request.reserved - used
        self._news.reserved -= request.reserved
        request.reserved = 0

    def _settle(self, request: Request, answer: Answer) -> None:
        """Records the answer, or arranges for the request to be asked again."""
        error_type = answer.error_type
        without_tools = answer.about_tools and bool(self._stage.tools) and not self._answered_here
        if answer.refused or without_tools:
            remedy = NO_TOOLS if without_tools else CHECK
            self._refused = self._refused or replace(answer, error=f"{answer.error}; {remedy}")
            return
        if error_type == "http_429":
            self._settle_limited(request, answer)
            return
        if error_type in FAULTS or (error_type or "").startswith("http_5"):
            self._settle_fault(request, answer)
            return
        self._hear(success=error_type is None)
        request.attempts += 1
        if error_type in ASK_AGAIN and request.attempts < self._settings.max_attempts:
            request.begin_again()
            self._ask_again(request, answer, _backoff(request.attempts) if error_type == "bad_body" else 0.0)
        else:
            self._record(request, answer)

    def _hear(self, *, success: bool) -> None:
        """Notes that the endpoint answers."""
        self._news.hear(success=success)
        self._answered_ever, self._answered_at = True, time()
        self._succeeded_ever |= success
        self._answered_here |= success

    def _settle_limited(self, request: Request, answer: Answer) -> None:
        self._tally.rate_limited += 1
        request.limited += 1
        self._hear(success=False)
        self._news.limited = True
        self._pause(answer.retry_after)
        wait = answer.retry_after if answer.retry_after is not None else _backoff(request.limited)
        self._ask_again(request, answer, wait)

    def _pause(self, seconds: float | None) -> None:
        """Stops sending for so long, here at once and everywhere with the next lease."""
        if seconds is not None:
            self._news.retry_after = max(self._news.retry_after or 0.0, seconds)
            self._paused_until = max(self._paused_until, time() + (self._offset or 0.0) + seconds)
        self._need_lease.set()

    def _settle_fault(self, request: Request, answer: Answer) -> None:
        never_reached = answer.unconnected and not self._answered_ever
        request.first_fault = request.first_fault or time()
        self._pause(answer.retry_after)
        if never_reached:
            self._news.faults += OUTAGE_FAULTS
        elif self._answered_at <= request.first_fault:
            # Where others were answered since, it is the request that fails and not the endpoint.
            self._news.faults += 1
        if never_reached or self._probing:
            request.first_sent = None
            self._ask_again(request, answer, FIRST_BACKOFF)
            return
        request.attempts += 1
        if request.attempts >= self._settings.max_attempts:
            self._record(request, answer)
        else:
            self._ask_again(request, answer, max(_backoff(request.attempts), answer.retry_after or 0.0))

    def _ask_again(self, request: Request, answer: Answer, wait: float) -> None:
        request.last = answer
        sent = request.first_sent
        if sent is not None and monotonic() + wait - sent > self._settings.deadline:
            self._record(request, answer)
        elif wait <= 0:
            self._return(request)
        else:
            asyncio.get_running_loop().call_later(wait, self._return, request)

    def _return(self, request: Request) -> None:
        self._ready.appendleft(request)
        self._need_lease.set()
        self._wake()

    def _record(self, request: Request, answer: Answer) -> None:
        size = len(answer.text or "") + len(request.request_id) + 200
        self._writer.add(completion_row(request, answer, rated=self._stage.rated, run=self._run), size)
        self._tally.done += 1
        self._tally.failed += answer.error_type is not None
        self._units[request.unit] -= 1
        if not self._units[request.unit]:
            self._recorded.append(request.unit)

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(min(FLUSH_LOOK_SECONDS, self._settings.flush))
            if self._writer.due or (self._recorded and not self._ready and not self._in_flight):
                await self._flush()

    async def _flush(self) -> None:
        recorded, self._recorded = self._recorded, []
        await self._writer.flush()
        self._finished.extend(recorded)

    async def _keep_leasing(self) -> None:
        while True:
            seconds = POLL_SECONDS if self._ready and self._strict else IDLE_POLL_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(self._need_lease.wait(), seconds)
            self._need_lease.clear()
            granted = await self._renew()
            if not granted and self._ready:
                await asyncio.sleep(POLL_SECONDS / 2)

    async def _renew(self) -> bool:
        """Reports to the limiter and takes new slots; whether any were granted."""
        if self._stopping:
            return False
        report = self._report()
        sent = time()
        lease = await self._lease(report)
        received = time()
        if received - sent < self._round_trip:
            self._round_trip = received - sent
            self._offset = lease.now - (sent + received) / 2
        self._places = lease.places
        self._answered_at = max(self._answered_at, lease.answered_at - (self._offset or 0.0))
        self._paused_until = max(self._paused_until, lease.paused_until)
        self._strict, self._probing, self._refusal = lease.strict, lease.probing, lease.refusal
        if lease.probing or lease.refusal:
            self._news.unused_tokens += sum(tokens for _, tokens in self._slots)
            self._slots.clear()
        self._slots.extend(zip(lease.times, report.estimates, strict=False))
        if lease.times:
            self._until = max(self._until, lease.times[-1])
        self._wake()
        return bool(lease.times)

    def _report(self) -> Report:
        news, self._news = self._news, News()
        self._news.reserved = news.reserved
        tally, settings = self._tally, self._settings
        tokens = tally.prompt_tokens + tally.completion_tokens
        held_tokens = sum(tokens for _, tokens in self._slots)
        cost = settings.cost(tally.prompt_tokens, tally.completion_tokens)
        price = max(settings.prompt_price, settings.completion_price) / 1e6
        return Report(
            client=self._name,
            run=f"{self._run}/{self._stage.name}",
            estimates=self._wanted(),
            in_flight=self._in_flight,
            held=len(self._slots),
            held_tokens=held_tokens,
            spent=Spent(tally.calls, tokens + news.reserved, cost + news.reserved * price),
            spent_before=self._spent_before,
            cost_per_token=price,
            unused_tokens=news.unused_tokens if self._counts_tokens else 0,
            successes=news.successes,
            answered=news.answered,
            faults=news.faults,
            limited=news.limited,
            retry_after=news.retry_after,
            until=self._until,
            places=self._places,
            outage_seconds=settings.outage if self._succeeded_ever else min(60.0, settings.outage),
            limits=settings.limits,
            budget=settings.budget,
        )

    def _wanted(self) -> tuple[int, ...]:
        """Token estimates of the next requests that need a slot."""
        if self._refused is not None:
            return ()
        room = PREFETCH if not self._strict else max(1, self._places - self._in_flight) + 1
        count = max(0, min(len(self._ready), room) - len(self._slots))
        if not self._counts_tokens:
            return (0,) * count
        first = len(self._slots)
        return tuple(self._request_tokens(self._ready[first + index]) for index in range(count))

    def _request_tokens(self, request: Request) -> int:
        if not request.tokens:
            try:
                request.body = self._body(request)
            except Exception:
                request.body = None
            request.tokens = estimate_tokens(len(request.body or b""))
        return request.tokens + self._completion_tokens()

    def _remember_completion(self, tokens: int) -> None:
        if len(self._completions) == COMPLETIONS_REMEMBERED:
            self._sorted_completions.remove(self._completions[0])
        self._completions.append(tokens)
        insort(self._sorted_completions, tokens)

    def _completion_tokens(self) -> int:
        """What a completion of this stage is expected to take at most, in all but one of ten."""
        if self._sorted_completions:
            return self._sorted_completions[int(COMPLETION_QUANTILE * (len(self._sorted_completions) - 1))]
        return min(FIRST_COMPLETION_TOKENS, self._stage.max_tokens or FIRST_COMPLETION_TOKENS)


def _failed(answer: Answer, error_type: str, error: str) -> Answer:
    return replace(answer, error_type=error_type, error=error)


def _backoff(attempt: int) -> float:
    return min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
