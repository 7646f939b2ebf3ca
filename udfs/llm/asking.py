"""Answers requests: a pool of workers that shares one client, takes slots from the limiter and records completions.

A plain object without Ray, so that its loop runs untraced and can be tested alone. When to send is decided in
`pacing`, what an answer means in `retrying`; here these decisions are carried out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from untold.udfs.llm.batches import attempts_of_halves, gather, halve, may_hide_a_culprit, spend, split_answered
from untold.udfs.llm.calls import Answer, Progress, Request, Units, Work
from untold.udfs.llm.client import Endpoint
from untold.udfs.llm.limiter import Lease, Report
from untold.udfs.llm.pacing import CompletionSizes, Pacing
from untold.udfs.llm.records import completion_of
from untold.udfs.llm.retrying import ASKED_AGAIN, NO_SCHEMA, NO_TOOLS, Act, Standing, judge, remedy_of
from untold.udfs.llm.script import Parse, Script, failed, script_of
from untold.udfs.llm.segments import SegmentWriter
from untold.udfs.llm.tools import MAX_ROUNDS, exchange, run_tool, trace
from untold.udfs.llm.trial import SchemaTrial
from untold.udfs.llm.usage import Usage
from untold.udfs.llm.waiters import Waiters
from untold.udfs.stages.schemas import Form

# How often to look whether something is to be written, so that a unit which ends is on the disk a tenth later.
FLUSH_LOOK_SECONDS = 0.1
# A lease is asked for ten times a second while requests wait for spaced slots; else often enough to be no news late.
POLL_SECONDS = 0.1
IDLE_POLL_SECONDS = 0.25
STOP_LOOK_SECONDS = 0.05
# What a task may take to end after it is cancelled, and the client to close its connections.
CLOSE_SECONDS = 5.0
# While nothing of the run has ever succeeded, a user waits and watches: a minute is long enough to tell.
FIRST_OUTAGE_SECONDS = 60.0


class Asker:
    """Answers what it is fed, within what `lease` grants, and hands every result to `writer`.

    `lease` may wait, and is asked by one loop alone; `writer` belongs to this asker. All of it runs in one event loop,
    so that no state needs a lock.
    """

    def __init__(
        self,
        work: Work,
        parse: Parse,
        endpoint: Endpoint,
        lease: Callable[[Report], Awaitable[Lease]],
        writer: SegmentWriter,
        form: Form | None = None,
    ) -> None:
        stage, settings = work.stage, work.settings
        self._work, self._stage, self._settings = work, stage, settings
        self._script: Script = script_of(stage, parse, form)
        self._endpoint, self._lease, self._writer = endpoint, lease, writer
        self._counts_tokens = settings.counts_tokens
        self._pacing = Pacing()
        self._standing = Standing(answered_ever=work.answered_before, completed=work.answered_before)
        # Vectors and hits are no tokens
        self._sizes = CompletionSizes(stage.max_tokens if stage.api in ("chat", "completions") else 0)
        self._usage, self._units, self._waiters = Usage(), Units(), Waiters()
        self._ready: deque[Request] = deque()
        # Errors about the run that may turn out to be their rows' alone: recorded once a completion has come between
        self._held: list[tuple[Request, Answer]] = []
        self._in_flight = 0
        self._reports = 0
        self._refused: str | None = None
        self._trial = SchemaTrial(stage, pending=work.tries_schema, may_drop=work.may_drop_schema)
        self._stopping = False
        self._end = float("inf")
        self._need_lease = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._models: set[str] = set()

    def start(self) -> None:
        """Starts the workers; call it inside the event loop."""
        loops = [self._answer() for _ in range(self._settings.limits.max_concurrency)]
        loops += [self._keep_leasing(), self._keep_flushing(), self._writer.keep_synced()]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    def feed(self, unit: str, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Takes the requests of a unit of work: (request id, variables) each."""
        fed = [Request(request_id, variables, unit) for request_id, variables in requests]
        self._ready.extend(gather(fed, self._settings.batch) if self._stage.api == "embeddings" else fed)
        self._units.take(unit, len(fed))
        self._need_lease.set()

    def remember(self, gone: Mapping[str, Usage]) -> None:
        """Takes what other askers of the stage that died had spent, by name, to tell a limiter that is restarted."""
        self._work = replace(self._work, gone=gone)

    def progress(self) -> Progress:
        """How far it is. Raises what broke one of its loops."""
        for task in self._tasks:
            # No loop that is needed ends by itself but by an error, and none is to end in silence.
            if task.done() and not task.cancelled():
                task.result()
        return Progress(
            usage=self._usage,
            queued=sum(request.rows for request in self._ready),
            in_flight=self._in_flight,
            finished_units=tuple(self._units.finished),
            refusal=self._pacing.refusal,
            refused=self._refused,
            models=tuple(sorted(self._models)),
            answered_ever=self._standing.answered_ever,
            paused=self._pacing.paused(monotonic()),
            unwritten=self._writer.unwritten,
            trouble=self._writer.trouble,
            unwritable=self._writer.failing_for >= self._settings.outage,
            finding=self._trial.finding,
            tries_schema=self._trial.pending,
        )

    async def stop(self, grace: float) -> Progress:
        """Takes nothing more, waits up to `grace` seconds for what is in flight, writes everything and closes.

        What is answered is written before anything is waited for: a process that is killed while it stops loses none
        of it. A disk that cannot be written is tried until `grace` is over.
        """
        self._stopping = True
        self.hurry(grace)
        await self._flush()
        while self._in_flight and monotonic() < self._end:
            await asyncio.sleep(STOP_LOOK_SECONDS)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        while not await self._flush() and monotonic() < self._end:
            await asyncio.sleep(STOP_LOOK_SECONDS)
        self._writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._endpoint.close()
        return self.progress()

    def hurry(self, grace: float) -> None:
        """Ends the waiting of `stop` after so many seconds at the latest."""
        self._end = min(self._end, monotonic() + grace)

    async def _answer(self) -> None:
        """A worker: takes the next request and the right to send it, asks, and again; waits for both."""
        while True:
            request = self._take()
            if request is None:
                await self._waiters.wait()
                continue
            self._in_flight += 1
            try:
                await self._ask(request)
            finally:
                self._in_flight -= 1

    def _take(self) -> Request | None:
        """The next request together with the right to send it now; None where one of both is missing."""
        if not self._may_send():
            return None
        wait = self._pacing.wait(monotonic())
        if wait is None:
            self._need_lease.set()
            return None
        if wait:
            self._waiters.wake_after(wait)
            return None
        request = self._ready.popleft()
        request.reserved = self._pacing.use()
        if self._pacing.runs_low:
            self._need_lease.set()
        if self._pacing.held and self._ready:
            self._waiters.wake()
        return request

    def _may_send(self) -> bool:
        """Whether anything may be sent but for the slots: not where it might be paid for and lost, or is refused."""
        # Before any completion an error about the run is most likely true of every row: nothing more is sent until what
        # is in flight has told.
        doubtful = bool(self._held) and not self._standing.completed
        doubtful = doubtful or self._trial.over
        closed = self._stopping or self._refused is not None or doubtful or self._writer.full
        places = min(1, self._pacing.places) if self._trial.pending else self._pacing.places
        return bool(self._ready and self._in_flight < places and not closed)

    async def _ask(self, request: Request) -> None:
        """One call for the request, or its end where its deadline is over or its template cannot be filled in."""
        body, failure = self._script.render(request)
        request.body = None
        now = monotonic()
        request.first_sent = request.first_sent or now
        left = self._settings.deadline - (now - request.first_sent)
        failure = failure or (request.last if left <= 0 else None)
        # Nothing is sent, so that the slot's tokens go back, and the last answer, if there was one, is the reason that
        # stays.
        if body is None or failure is not None:
            self._pacing.settle(request.release(), 0)
            self._record(request, failure or Answer())
            return
        # Counted before it is sent: what is in flight when a process is killed may have been paid for.
        self._usage += Usage(calls=1, asked=not request.calls, tool_turns=request.turn_due)
        request.calls, request.turn_due = request.calls + 1, False
        answer = await self._endpoint.call(self._stage.api, body, left, self._script.reader(request))
        self._book(request, answer, len(body))
        if self._stage.tools and answer.tool_calls and answer.error_type in (None, "empty"):
            self._use_tools(request, answer)
        else:
            self._settle(request, self._script.read(answer, request.variables))

    def _book(self, request: Request, answer: Answer, sent: int) -> None:
        """Books what a call cost. One that timed out was read, and answered for all we know: it is estimated."""
        usage, timed_out = answer.usage, answer.error_type == "timeout"
        if timed_out:
            usage = Usage(self._script.tokens_of(sent), 0, self._sizes.expected, estimated=True)
        spend(request, usage, answer.parts)
        self._usage += usage
        lost = timed_out or answer.error_type == "connection"
        reserved = request.release()
        # What became of a call without an answer nobody knows; the limit holds whichever it was, so that all of it is
        # used up.
        self._pacing.settle(reserved, max(usage.tokens, reserved) if lost else usage.tokens)
        if answer.model:
            self._models.add(answer.model)
        if answer.text is not None:
            self._sizes.remember(usage.completion_tokens)

    def _use_tools(self, request: Request, answer: Answer) -> None:
        """Runs what the model calls and goes on with the conversation; each of its turns is a call under the limits."""
        if request.rounds >= MAX_ROUNDS:
            self._settle(request, failed(answer, "unparsable", "the model does not stop calling tools"))
            return
        self._standing.hear(request, answer, monotonic())
        results = [run_tool(call) for call in answer.tool_calls]
        request.go_on(exchange(answer.text, answer.tool_calls, results), trace(answer.tool_calls, results))
        self._return(request)

    def _settle(self, request: Request, answer: Answer) -> None:
        """Carries out what the answer means."""
        self._trial.hear(request, answer, completed=self._standing.completed_here)
        if self._trial.over:
            return
        if answer.about_schema and self._stage.structured and not self._standing.completed_here:
            self._refuse(answer, NO_SCHEMA)
            return
        # A model without tools refuses all rows alike. After a completion the same words are about one row.
        if answer.about_tools and self._stage.tools and not self._standing.completed_here:
            self._refuse(answer, NO_TOOLS)
            return
        now = monotonic()
        free = self._standing.hear(request, answer, now)
        if answer.parts:
            answered, rest, answer = split_answered(request, answer)
            for member, part in answered:
                self._record_row(request, member, part)
            if rest is None:
                return
            request = rest
        if answer.retry_after is not None:
            # Not only by the next lease: what is sent until then would be refused too.
            self._pacing.pause(answer.retry_after, now)
        if answer.error_type == "http_429":
            self._usage += Usage(rate_limited=1)
            request.limited += 1
        verdict = judge(request, answer, self._settings.max_attempts, free=free)
        request.attempts += verdict.attempt
        if verdict.anew:
            request.first_sent = None
        if verdict.afresh:
            self._begin_again(request, answer)
        if verdict.act is Act.REFUSE:
            self._refuse(answer, remedy_of(answer, self._settings.section))
        elif verdict.act is Act.HOLD:
            self._held.append((request, answer))
        elif verdict.act is Act.AGAIN:
            self._ask_again(request, answer, verdict.wait)
        else:
            self._record(request, answer)
        if self._held:
            self._settle_held()

    def _begin_again(self, request: Request, answer: Answer) -> None:
        """Forgets what followed the prompt. What could not be read is a row of its own, and the next call says so."""
        unread = answer.error_type == "unparsable"
        self._usage += Usage(asked_again=1)
        if unread:
            self._write(request, failed(answer, ASKED_AGAIN, f"{answer.error_type}: {answer.error}"))
            # The tokens of the next row are those of later calls
            request.usage = Usage()
        request.begin_again(names_form=unread)

    def _write(self, row: Request, answer: Answer) -> None:
        """Hands a row to the writer."""
        completion = completion_of(row, answer, rated=self._stage.rated, run=self._work.run)
        self._writer.add(completion, completion.size)

    def _refuse(self, answer: Answer, remedy: str) -> None:
        """Ends the asking of this run; the first reason stays, as later ones follow from it."""
        self._refused = self._refused or f"{answer.error}; {remedy}"

    def _settle_held(self) -> None:
        """Errors about the run are their rows' where a completion came between, or nothing else is left to ask.

        Before the first completion of a run, what is in flight may still bring it.
        """
        standing, rows = self._standing, sum(request.rows for request, _ in self._held)
        if standing.is_refused(self._in_flight):
            self._refuse(self._held[0][1], remedy_of(self._held[0][1], self._settings.section))
        elif not standing.doubts or (standing.completed and rows == self._units.requests_left):
            held, self._held = self._held, []
            for request, answer in held:
                self._record(request, answer)
            self._waiters.wake()

    def _ask_again(self, request: Request, answer: Answer, wait: float) -> None:
        """Asks once more after so many seconds, where the request's deadline is not over by then."""
        request.last = answer
        sent = request.first_sent
        self._need_lease.set()
        if sent is not None and monotonic() + wait - sent > self._settings.deadline:
            self._record(request, answer)
        elif wait <= 0:
            self._return(request)
        else:
            asyncio.get_running_loop().call_later(wait, self._return, request)

    def _return(self, request: Request) -> None:
        """Puts a request back, before those that were never asked: its deadline runs already."""
        self._ready.appendleft(request)
        self._need_lease.set()
        self._waiters.wake()

    def _record(self, request: Request, answer: Answer) -> None:
        """Ends a request. One for several rows that a single row of them may have spoilt is asked in halves."""
        late = request.first_sent is None or monotonic() - request.first_sent >= self._settings.deadline
        if may_hide_a_culprit(request, answer) and not late:
            for half in halve(request, attempts_of_halves(request, answer, self._settings.max_attempts)):
                self._return(half)
            return
        for row in request.members or [request]:
            self._record_row(request, row, answer)

    def _record_row(self, request: Request, row: Request, answer: Answer) -> None:
        """Ends a row of a request: it is with the writer, and its unit has one less to wait for."""
        row.calls, row.first_sent = request.calls, request.first_sent
        self._write(row, answer)
        self._usage += Usage(done=1, failed=answer.error_type is not None)
        self._units.record(row.unit)

    async def _keep_flushing(self) -> None:
        """Writes when the writer says so, and what is left as soon as nothing more is to come."""
        while True:
            await asyncio.sleep(min(FLUSH_LOOK_SECONDS, self._settings.flush))
            ended = self._units.recorded and not self._ready and not self._in_flight
            if self._writer.due or (ended and self._writer.may_write):
                await self._flush()

    async def _flush(self) -> bool:
        """Writes what is recorded. False where it could not be: it is kept, and the writer knows why."""
        recorded, self._units.recorded = self._units.recorded, []
        try:
            await self._writer.flush()
        except BaseException as error:
            # A unit is finished once it is on the disk; until then whoever takes over has to ask it again.
            self._units.recorded = recorded + self._units.recorded
            if not isinstance(error, Exception):
                raise
            return False
        self._units.finished.extend(recorded)
        self._waiters.wake()
        return True

    async def _keep_leasing(self) -> None:
        """Keeps slots at hand: asks when the last ones run low or something is new, else every `IDLE_POLL_SECONDS`."""
        while True:
            waiting = self._ready and self._pacing.strict
            # Not asyncio.wait_for: on Python 3.11 it swallows a cancellation that comes as the event is set.
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if waiting else IDLE_POLL_SECONDS):
                    await self._need_lease.wait()
            self._need_lease.clear()
            granted = await self._renew()
            if not granted and self._ready:
                # A limiter with nothing to give is not asked again at once; slots come a quarter of a second at a time.
                await asyncio.sleep(POLL_SECONDS / 2)

    async def _renew(self) -> bool:
        """Reports to the limiter and takes new slots; whether any were granted."""
        if self._stopping:
            return False
        report = self._report()
        sent = monotonic()
        lease = await self._lease(report)
        self._pacing.receive(lease, report.estimates, sent, monotonic())
        self._standing.learn(lease, self._pacing.clock.local(lease.answered_at))
        if self._held:
            self._settle_held()
        self._waiters.wake()
        return bool(lease.times)

    def _report(self) -> Report:
        """What is told with the next lease, with all that is news since the last one."""
        self._reports += 1
        report = self._pacing.report(self._work, self._usage, self._wanted(), self._in_flight, monotonic())
        completed = self._standing.completed
        outage = self._settings.outage if completed else min(FIRST_OUTAGE_SECONDS, self._settings.outage)
        return replace(report, number=self._reports, outage_seconds=outage, **vars(self._standing.tell()))

    def _wanted(self) -> tuple[int, ...]:
        """Token estimates of the next requests that need a slot."""
        if self._refused is not None or self._writer.full:
            return ()
        count = self._pacing.wanted(len(self._ready), self._in_flight)
        if not self._counts_tokens:
            return (0,) * count
        first = self._pacing.held
        return tuple(self._estimate(self._ready[first + index]) for index in range(count))

    def _estimate(self, request: Request) -> int:
        """Tokens that the next call of a request is expected to take; its body is rendered here or when it is sent."""
        if not request.tokens:
            request.body, _ = self._script.render(request)
            request.tokens = self._script.tokens_of(len(request.body or b""))
        return request.tokens + self._sizes.expected
