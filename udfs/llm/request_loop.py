"""Answers requests: a pool of workers that takes slots of one endpoint, or of several, and records completions.

A plain object without Ray, so that its loop runs untraced and can be tested alone. When to send is decided in
`pacing`, what an answer means in `retrying`; here these decisions are carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from time import monotonic
from typing import Any

from untold.udfs.llm.calls import Answer, Progress, Request, Units, Work
from untold.udfs.llm.channels import (
    Channel,
    Channels,
    SharedQueue,
    Slots,
    Waiters,
    attempts_of_halves,
    gather,
    group_of,
    may_fail_for_one_row,
    spend,
    split,
    split_answered,
)
from untold.udfs.llm.keys import SEVERAL_ROWS, Parameters
from untold.udfs.llm.pacing import CompletionSizes
from untold.udfs.llm.retrying import (
    ASKED_AGAIN,
    DOUBTS_IN_A_ROW,
    NO_SCHEMA,
    NO_TOOLS,
    RetryDecision,
    Trial,
    Verdict,
    is_rejection,
    judge,
    remedy_of,
)
from untold.udfs.llm.script import Parse, Prompting, Script, failed, script_of
from untold.udfs.llm.segments import SegmentWriter, completion_of
from untold.udfs.llm.tools import MAX_ROUNDS, exchange, run_tool, trace
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.stages.definitions import OutputFormat

# How often to look whether something is to be written, so that a unit which ends is on the disk a tenth later.
FLUSH_LOOK_SECONDS = 0.1
# A lease is asked for ten times a second while requests wait for spaced slots; else often enough to be no news late.
POLL_SECONDS = 0.1
IDLE_POLL_SECONDS = 0.25
STOP_LOOK_SECONDS = 0.05
# So long after the last rejection no further unit of work is to come, and completions of other actors are known
ALL_REJECTED_SECONDS = 1.0
# Room for reasoning grows in such steps, so that few runs change it
REASONING_STEP = 256
# What a task may take to end after it is cancelled, and the client to close its connections.
CLOSE_SECONDS = 5.0


class RequestLoop:
    """Answers what it is fed, within what the limiters of its endpoints grant, and hands every result to `writer`.

    `writer` belongs to this asker. All of it runs in one event loop, so that no state needs a lock.
    """

    def __init__(
        self,
        work: Work,
        parse: Parse,
        endpoints: Channels,
        writer: SegmentWriter,
        form: OutputFormat | None = None,
    ) -> None:
        stage, settings = work.stage, work.settings
        self._work, self._stage, self._settings = work, stage, settings
        self._endpoints, self._channels, self._writer = endpoints, endpoints.each, writer
        models = [channel.work.settings.model or stage.model for channel in self._channels]
        self._scripts: list[Script] = [script_of(replace(stage, model=model), parse, form) for model in models]
        self._counts_tokens = settings.counts_tokens
        # Vectors and hits are no tokens
        self._sizes = CompletionSizes(stage.max_tokens if stage.api in ("chat", "completions") else 0)
        self._units, self._waiters = Units(), Waiters()
        weights = [channel.work.settings.weight for channel in self._channels]
        self._ready = SharedQueue(weights, group_of(stage) if len(weights) > 1 else None)
        self._trial = Trial(work.call)
        # Until each limiter has answered, the first ones would have all that waits
        self._unleased = set(endpoints.slots)
        self._stopping = False
        self._end = float("inf")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts the workers; call it inside the event loop."""
        workers = sum(channel.work.settings.limits.max_concurrency for channel in self._channels)
        loops = [self._answer() for _ in range(workers)]
        loops += [self._keep_leasing(slots) for slots in self._endpoints.slots]
        loops += [self._keep_flushing(), self._writer.keep_synced()]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    def feed(self, unit: str, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Takes the requests of a unit of work: (request id, variables) each."""
        fed = [Request(request_id, variables, unit) for request_id, variables in requests]
        self._ready.extend(gather(fed, self._settings.batch) if self._stage.api in SEVERAL_ROWS else fed)
        self._units.take(unit, len(fed))
        self._endpoints.need_leases()

    def remember(self, gone: Mapping[str, Usage]) -> None:
        """Takes what other askers of the stage that died had spent, by name, to tell a limiter that is restarted."""
        for slots in self._endpoints.slots:
            slots.work = replace(slots.work, gone=gone)

    def progress(self) -> Progress:
        """How far it is. Raises what broke one of its loops."""
        for task in self._tasks:
            # No loop that is needed ends by itself but by an error, and none is to end in silence.
            if task.done() and not task.cancelled():
                task.result()
        now = monotonic()
        return Progress(
            usage=self._endpoints.used,
            queued=self._ready.rows,
            in_flight=self._endpoints.in_flight,
            finished_units=tuple(self._units.finished),
            refusal=self._endpoints.refusal,
            refused=self._endpoints.refused,
            models=tuple(sorted({model for channel in self._channels for model in channel.models})),
            answered_ever=any(channel.standing.answered_ever for channel in self._channels),
            # Of several, the one that is asked again first
            paused=min(channel.pacing.paused(now) for channel in self._channels),
            unwritten=self._writer.unwritten,
            trouble=self._writer.trouble,
            unwritable=self._writer.failing_for >= self._settings.outage,
            finding=self._trial.finding,
            parameters=self._trial.parameters or self._reasoning(),
            tries_schema=self._trial.pending,
            left_out=self._endpoints.left_out,
        )

    def _reasoning(self) -> Parameters | None:
        """Return the room that reasoning takes, in steps of `REASONING_STEP`; None if the stage has it already."""
        used = max((script.reasoning_tokens for script in self._scripts if isinstance(script, Prompting)), default=0)
        room = -(-used // REASONING_STEP) * REASONING_STEP
        return Parameters(reasoning_tokens=room) if room > self._stage.reasoning_tokens else None

    async def stop(self, grace: float) -> Progress:
        """Takes nothing more, waits up to `grace` seconds for what is in flight, writes everything and closes.

        What is answered is written before anything is waited for: a process that is killed while it stops loses none
        of it. A disk that cannot be written is tried until `grace` is over.
        """
        self._stopping = True
        self.shorten_deadline(grace)
        await self._flush()
        while self._endpoints.in_flight and monotonic() < self._end:
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
                await asyncio.gather(*(channel.client.close() for channel in self._channels))
        return self.progress()

    def shorten_deadline(self, grace: float) -> None:
        """Ends the waiting of `stop` after so many seconds at the latest."""
        self._end = min(self._end, monotonic() + grace)

    async def _answer(self) -> None:
        """A worker: takes the next request and the right to send it, asks, and again; waits for both."""
        while True:
            taken = self._take()
            if taken is None:
                await self._waiters.wait()
                continue
            number, request = taken
            channel = self._channels[number]
            channel.in_flight += 1
            try:
                await self._ask(number, request)
            finally:
                channel.in_flight -= 1

    def _take(self) -> tuple[int, Request] | None:
        """An endpoint, and the next request together with the right to send it there now; None where one is missing."""
        now = monotonic()
        living = self._endpoints.living
        able = self._able(living)
        able = [number for number in able if self._has_slot(self._channels[number], now)]
        if not able or (self._endpoints.budget_slots and not self._has_slot(self._endpoints.budget_slots, now)):
            return None
        for number in self._ready.order(able):
            request = self._ready.take(number, able, living)
            if request is not None:
                break
        else:
            return None
        request.reserved = self._channels[number].use()
        request.promised = self._endpoints.budget_slots.use() if self._endpoints.budget_slots else 0
        if self._ready and any(channel.pacing.held for channel in self._channels):
            self._waiters.wake()
        return number, request

    def _has_slot(self, slots: Slots, now: float) -> bool:
        """Whether a slot may be used now; a worker is woken when the next one may be."""
        wait = slots.wait(now)
        if wait:
            self._waiters.wake_after(wait)
        return wait == 0

    def _able(self, living: Sequence[int]) -> list[int]:
        """The endpoints that may be sent anything but for the slots: not one where it might be paid for and lost, or
        that refuses.
        """
        # While a schema is tried one request goes alone
        tried = self._trial.pending and self._endpoints.in_flight > 0
        if not self._ready or self._unleased or tried or self._stopping or self._trial.over or self._writer.full:
            return []
        several = len(self._channels) > 1
        ahead, of_one = self._ready.ahead(living) if several else set[int](), self._endpoints.places_of_one()
        return [
            number
            for number, channel in enumerate(self._channels)
            if channel.refused is None
            and not channel.is_doubtful
            and channel.may_try
            and channel.in_flight < self._endpoints.places(channel, of_one, ahead=number in ahead)
        ]

    async def _ask(self, number: int, request: Request) -> None:
        """One call for the request, or its end where its deadline is over or its template cannot be filled in."""
        channel, script = self._channels[number], self._scripts[number]
        body, failure = script.render(request)
        request.body = None
        now = monotonic()
        request.first_sent = request.first_sent or now
        left = self._settings.deadline - (now - request.first_sent)
        failure = failure or (request.last if left <= 0 else None)
        # Nothing is sent, so that the slot's tokens go back, and the last answer, if there was one, is the reason that
        # stays.
        if body is None or failure is not None:
            self._endpoints.settle(channel, request.release(), 0)
            self._record(channel, request, failure or Answer())
            return
        # Counted before it is sent: what is in flight when a process is killed may have been paid for.
        channel.tally.count(calls=1, asked=not request.calls, tool_turns=request.turn_due)
        request.calls, request.turn_due = request.calls + 1, False
        answer = await channel.client.call(self._stage.api, body, left, script.reader(request))
        self._book(channel, request, answer, script.tokens_of(len(body)))
        if self._stage.tools and answer.tool_calls and answer.error_type in (None, "empty"):
            self._use_tools(channel, request, answer)
        else:
            self._settle(channel, request, script.read(answer, request.variables))

    def _book(self, channel: Channel, request: Request, answer: Answer, sent: int) -> None:
        """Books what a call cost. One that timed out was read, and answered for all we know: it is estimated."""
        usage, timed_out = answer.usage, answer.error_type == "timeout"
        if timed_out:
            usage = Usage(sent, 0, self._sizes.expected, estimated=True)
        spend(request, usage, answer.parts)
        channel.tally.book(usage)
        lost = timed_out or answer.error_type == "connection"
        self._endpoints.settle(channel, request.release(), usage.tokens, lost=lost)
        if answer.model:
            channel.models.add(answer.model)
        if answer.text is not None:
            self._sizes.remember(usage.completion_tokens)

    def _use_tools(self, channel: Channel, request: Request, answer: Answer) -> None:
        """Runs what the model calls and goes on with the conversation; each of its turns is a call under the limits."""
        if request.rounds >= MAX_ROUNDS:
            self._settle(channel, request, failed(answer, "unparsable", "the model does not stop calling tools"))
            return
        channel.standing.record(request, answer, monotonic())
        results = [run_tool(call) for call in answer.tool_calls]
        request.go_on(exchange(answer.text, answer.tool_calls, results), trace(answer.tool_calls, results))
        self._return(request)

    def _settle(self, channel: Channel, request: Request, answer: Answer) -> None:
        """Carries out what the answer means."""
        completed = channel.standing.completed_here
        self._trial.record(request, answer, completed=completed)
        if self._trial.over:
            return
        if answer.about_schema and self._stage.structured and not completed:
            self._refuse(channel, request, answer, NO_SCHEMA)
            return
        # A model without tools refuses all rows alike. After a completion the same words are about one row.
        if answer.about_tools and self._stage.tools and not completed:
            self._refuse(channel, request, answer, NO_TOOLS)
            return
        now = monotonic()
        free = channel.standing.record(request, answer, now)
        if answer.parts:
            answered, rest, answer = split_answered(request, answer)
            for member, part in answered:
                self._record_row(channel, request, member, part)
            if rest is None:
                return
            request = rest
        if answer.retry_after is not None:
            # Not only by the next lease: what is sent until then would be refused too.
            channel.pacing.pause(answer.retry_after, now)
        if answer.error_type == "http_429":
            channel.tally.count(rate_limited=1)
            request.limited += 1
        verdict = judge(request, answer, self._settings.max_attempts, free=free)
        if is_rejection(answer) and verdict.limit is None and channel.waits_for_completion and request.rows == 1:
            channel.rejected.append((request, answer))
            channel.rejected_at = now
        else:
            self._carry_out(channel, request, answer, verdict)
        for each in self._channels:
            if each.held:
                self._settle_held(each)
            self._settle_rejected(each)

    def _carry_out(self, channel: Channel, request: Request, answer: Answer, verdict: Verdict) -> None:
        """Do what the verdict about an answer says."""
        request.attempts += verdict.attempt
        if verdict.anew:
            request.first_sent = None
        if verdict.afresh:
            self._begin_again(channel, request, answer)
        request.bound(verdict.limit)
        if verdict.act is RetryDecision.REFUSE:
            self._refuse(channel, request, answer, remedy_of(answer, self._settings.section))
        elif verdict.act is RetryDecision.HOLD:
            channel.held.append((request, answer))
        elif verdict.act is RetryDecision.AGAIN:
            self._ask_again(channel, request, answer, verdict.wait)
        else:
            self._record(channel, request, answer)

    def _settle_rejected(self, channel: Channel) -> None:
        """Decide about rejected requests: they fail alone after a completion, and as long as errors differ.

        Before any completion, the same error of `DOUBTS_IN_A_ROW` requests, or of all, ends the run.
        """
        rejected, rows = channel.rejected, sum(len(each.rejected) + each.held_rows for each in self._channels)
        if not rejected:
            return
        idle = monotonic() - channel.rejected_at >= ALL_REJECTED_SECONDS
        everything = len(rejected) >= DOUBTS_IN_A_ROW or (idle and rows == self._units.requests_left)
        if channel.waits_for_completion and not everything:
            return
        channel.rejected = []
        if channel.waits_for_completion and len({answer.error for _, answer in rejected}) == 1:
            for request, answer in rejected:
                self._refuse(channel, request, answer, remedy_of(answer, self._settings.section))
            return
        channel.errors_differ |= everything
        for request, answer in rejected:
            verdict = judge(request, answer, self._settings.max_attempts, free=False)
            self._carry_out(channel, request, answer, verdict)
        self._waiters.wake()

    def _begin_again(self, channel: Channel, request: Request, answer: Answer) -> None:
        """Forgets what followed the prompt. What could not be read is a row of its own, and the next call says so."""
        unread = answer.error_type == "unparsable"
        channel.tally.count(retries_after_parse=1)
        if unread:
            self._write(channel, request, failed(answer, ASKED_AGAIN, f"{answer.error_type}: {answer.error}"))
            # The tokens of the next row are those of later calls
            request.usage = NOTHING_USED
        request.begin_again(names_form=unread)

    def _write(self, channel: Channel, row: Request, answer: Answer) -> None:
        """Hands a row to the writer."""
        completion = completion_of(
            row, answer, rated=self._stage.rated, run=self._work.run, endpoint=channel.label or None
        )
        self._writer.add(completion, completion.size)

    def _refuse(self, channel: Channel, request: Request, answer: Answer, remedy: str) -> None:
        """Ends the asking of an endpoint, and of the run where it is the last.

        Others take what it refused. The first reason stays, as later ones follow from it.
        """
        channel.refused = channel.refused or f"{answer.error}; {remedy}"
        held, channel.held = channel.held, []
        for one in (request, *(other for other, _ in held if other is not request)):
            self._return(one, channel)

    def _settle_held(self, channel: Channel) -> None:
        """Errors about the run are their rows' where a completion came between, or nothing else is left to ask.

        Before the first completion of a run, what is in flight may still bring it. Of several endpoints each other one
        is asked before a row fails.
        """
        standing, rows = channel.standing, sum(each.held_rows for each in self._channels)
        if standing.is_refused(channel.in_flight):
            self._refuse(channel, *channel.held[0], remedy_of(channel.held[0][1], self._settings.section))
        elif not standing.doubts or (standing.completed and rows == self._units.requests_left):
            held, channel.held = channel.held, []
            for request, answer in held:
                tried = request.failed_at | {self._channels.index(channel)}
                if len(tried) < len(self._channels) and self._endpoints.others_live(channel):
                    self._return(request, channel)
                else:
                    self._record(channel, request, answer)
            self._waiters.wake()

    def _ask_again(self, channel: Channel, request: Request, answer: Answer, wait: float) -> None:
        """Asks once more after so many seconds, where the request's deadline is not over by then; another endpoint at
        once.
        """
        request.last = answer
        sent, wait = request.first_sent, 0.0 if self._endpoints.others_live(channel) else wait
        self._endpoints.need_leases()
        if sent is not None and monotonic() + wait - sent > self._settings.deadline:
            self._record(channel, request, answer)
        elif wait <= 0:
            self._return(request, channel)
        else:
            asyncio.get_running_loop().call_later(wait, self._return, request, channel)

    def _return(self, request: Request, channel: Channel | None = None) -> None:
        """Puts a request back, before those that were never asked: its deadline runs already.

        Another endpoint than `channel` takes it, if there is one.
        """
        self._ready.give_back(request, None if channel is None else self._channels.index(channel))
        self._endpoints.need_leases()
        self._waiters.wake()

    def _record(self, channel: Channel, request: Request, answer: Answer) -> None:
        """Ends a request. One for several rows that a single row of them may have spoilt is asked in halves."""
        late = request.first_sent is None or monotonic() - request.first_sent >= self._settings.deadline
        if may_fail_for_one_row(request, answer) and not late:
            for half in split(request, attempts_of_halves(request, answer, self._settings.max_attempts)):
                self._return(half)
            return
        for row in request.members or [request]:
            self._record_row(channel, request, row, answer)

    def _record_row(self, channel: Channel, request: Request, row: Request, answer: Answer) -> None:
        """Ends a row of a request: it is with the writer, and its unit has one less to wait for."""
        row.calls, row.first_sent = request.calls, request.first_sent
        self._write(channel, row, answer)
        channel.tally.count(done=1, failed=answer.error_type is not None)
        self._units.record(row.unit)

    async def _keep_flushing(self) -> None:
        """Writes when the writer says so, and what is left as soon as nothing more is to come."""
        while True:
            await asyncio.sleep(min(FLUSH_LOOK_SECONDS, self._settings.flush))
            ended = self._units.recorded and not self._ready and not self._endpoints.in_flight
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

    async def _keep_leasing(self, slots: Slots) -> None:
        """Keeps slots at hand: asks when the last ones run low or something is new, else every `IDLE_POLL_SECONDS`."""
        while True:
            waiting = self._ready and slots.pacing.strict
            # Not asyncio.wait_for: on Python 3.11 it swallows a cancellation that comes as the event is set.
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if waiting else IDLE_POLL_SECONDS):
                    await slots.needs_lease.wait()
            slots.needs_lease.clear()
            granted = await self._renew(slots)
            if not granted and self._ready:
                # A limiter with nothing to give is not asked again at once; slots come a quarter of a second at a time.
                await asyncio.sleep(POLL_SECONDS / 2)

    async def _renew(self, slots: Slots) -> bool:
        """Reports to a limiter and takes new slots; whether any were granted."""
        if self._stopping:
            return False
        lease = await slots.renew(self._endpoints.report(slots, self._wanted(slots)))
        self._unleased.discard(slots)
        if isinstance(slots, Channel):
            if slots.held:
                self._settle_held(slots)
            self._settle_rejected(slots)
        self._waiters.wake()
        return bool(lease.times)

    def _wanted(self, slots: Slots) -> tuple[int, ...]:
        """Token estimates of the next requests that need a slot."""
        owner = slots if isinstance(slots, Channel) else self._endpoints
        if owner.refused is not None or self._writer.full:
            return ()
        count = slots.pacing.wanted(len(self._ready), owner.in_flight)
        if not self._counts_tokens:
            return (0,) * count
        first, number = slots.pacing.held, self._endpoints.slots.index(slots) % len(self._channels)
        return tuple(self._estimate(request, number) for request in islice(self._ready, first, first + count))

    def _estimate(self, request: Request, number: int) -> int:
        """Tokens that the next call of a request is expected to take; its body is rendered here or when it is sent."""
        if not request.tokens:
            body, _ = self._scripts[number].render(request)
            request.tokens = self._scripts[number].tokens_of(len(body or b""))
            # Another endpoint may know the model by another name
            request.body = body if len(self._channels) == 1 else None
        return request.tokens + self._sizes.expected
