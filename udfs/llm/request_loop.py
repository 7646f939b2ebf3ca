"""Send requests with a pool of workers to one or several endpoints, and record the completions.

The loop has no Ray, so that it runs without tracing and can be tested by itself. `pacing` decides when to send,
`retrying` decides what an answer means, and this module carries out the decisions.
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
    attempts_of_halves,
    gather,
    group_of,
    may_fail_for_one_row,
    spend,
    split,
    split_answered,
)
from untold.udfs.llm.keys import SEVERAL_ROWS, Parameters
from untold.udfs.llm.pacing import IDLE_POLL_SECONDS, CompletionSizes, Slots
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
from untold.udfs.llm.store_files import SegmentWriter, completion_of
from untold.udfs.llm.tools import MAX_ROUNDS, exchange, run_tool, trace
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.stages.schemas import OutputFormat

# The time between two checks for unwritten rows. A finished unit is on the disk after a tenth of a second
FLUSH_LOOK_SECONDS = 0.1
STOP_LOOK_SECONDS = 0.05
# After this time without a rejection, no more units arrive, and the completions of other actors are known
ALL_REJECTED_SECONDS = 1.0
# The reserve for reasoning grows in these steps, so that few runs change it
REASONING_STEP = 256
# Time limit for the end of a cancelled task, and for closing connections
CLOSE_SECONDS = 5.0


class RequestLoop:
    """Send requests within the slots that the limiters grant, and pass each result to `writer`.

    No other loop uses `writer`. Everything runs in one event loop, so no state needs a lock.
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
        # Vectors and hits have no tokens
        self._sizes = CompletionSizes(stage.max_tokens if stage.api in ("chat", "completions") else 0)
        self._units = Units()
        # Workers without a slot or a request wait here. One is woken at a time: waking hundreds for each slot would
        # cost hundreds of turns of the event loop per call
        self._waiters = asyncio.Semaphore(0)
        self._alarm: asyncio.TimerHandle | None = None
        weights = [channel.work.settings.weight for channel in self._channels]
        self._ready = SharedQueue(weights, group_of(stage) if len(weights) > 1 else None)
        self._trial = Trial(work.call)
        # Nothing is sent before each limiter has granted slots: the first endpoints would get all requests
        self._unleased = set(endpoints.slots)
        self._stopping = False
        self._end = float("inf")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the workers. Call it inside the event loop."""
        workers = sum(channel.work.settings.limits.max_concurrency for channel in self._channels)
        loops = [self._answer() for _ in range(workers)]
        loops += [self._keep_leasing(), self._keep_flushing()]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    def feed(self, unit: str, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Add the requests of a unit of work: pairs of request id and variables."""
        fed = [Request(request_id, variables, unit) for request_id, variables in requests]
        self._ready.extend(gather(fed, self._settings.batch) if self._stage.api in SEVERAL_ROWS else fed)
        self._units.take(unit, len(fed))
        self._endpoints.need_leases()

    def remember(self, gone: Mapping[str, Usage]) -> None:
        """Accept the usage of dead actors of the stage, by name, for the report to a restarted limiter."""
        for slots in self._endpoints.slots:
            slots.work = replace(slots.work, gone=gone)

    def progress(self) -> Progress:
        """Return the progress. Raises the error of a broken task."""
        for task in self._tasks:
            # A task ends only with an error, and no error may be lost
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
            # Of several endpoints, the one with the shortest pause
            paused=min(channel.paused(now) for channel in self._channels),
            unwritten=self._writer.unwritten,
            trouble=self._writer.trouble,
            unwritable=self._writer.failing_for >= self._settings.outage,
            finding=self._trial.finding,
            parameters=self._trial.parameters or self._reasoning(),
            tries_schema=self._trial.pending,
            left_out=self._endpoints.left_out,
        )

    def _reasoning(self) -> Parameters | None:
        """Return the tokens of reasoning, in steps of `REASONING_STEP`. None if the stage has this reserve."""
        used = max((script.reasoning_tokens for script in self._scripts if isinstance(script, Prompting)), default=0)
        room = -(-used // REASONING_STEP) * REASONING_STEP
        return Parameters(reasoning_tokens=room) if room > self._stage.reasoning_tokens else None

    async def stop(self, grace: float) -> Progress:
        """Send nothing more, wait up to `grace` seconds for calls in flight, write everything and close.

        The first step writes all completions, so that a process that is killed while it stops loses none. Failed writes
        are retried until `grace` is over.
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
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(channel.client.close() for channel in self._channels))
        return self.progress()

    def shorten_deadline(self, grace: float) -> None:
        """Limit the wait of `stop` to this number of seconds from now."""
        self._end = min(self._end, monotonic() + grace)

    async def _answer(self) -> None:
        """Run a worker: wait for a request with a slot, send it, and repeat."""
        while True:
            taken = self._take()
            if taken is None:
                await self._waiters.acquire()
                continue
            number, request = taken
            channel = self._channels[number]
            channel.in_flight += 1
            try:
                await self._ask(number, request)
            finally:
                channel.in_flight -= 1

    def _take(self) -> tuple[int, Request] | None:
        """Take the next request and a slot of an endpoint. Return None if there is no request or no slot."""
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
        request.reserved = tuple(self._use(slots) for slots in self._endpoints.slots_of(self._channels[number]))
        if self._ready and any(channel.held for channel in self._channels):
            self._wake()
        return number, request

    def _has_slot(self, slots: Slots, now: float) -> bool:
        """Return True if a slot can be used now. Otherwise wake a worker at the time of the next slot."""
        wait = slots.wait(now)
        if wait is None:
            self._endpoints.need_leases(slots)
        elif wait:
            self._wake_after(wait)
        return wait == 0

    def _wake(self) -> None:
        """Wake one worker, which wakes the next one if there is more work."""
        if self._waiters.locked():
            self._waiters.release()

    def _wake_after(self, seconds: float) -> None:
        """Wake one worker at the time of the next slot."""
        loop = asyncio.get_running_loop()
        # One alarm is enough, because a woken worker sets the alarm for the next slot
        if self._alarm is None or self._alarm.cancelled() or self._alarm.when() <= loop.time():
            self._alarm = loop.call_later(seconds, self._wake)

    def _use(self, slots: Slots) -> int:
        """Use the next slot and return its reserved tokens."""
        reserved = slots.use()
        if slots.runs_low:
            self._endpoints.need_leases(slots)
        return reserved

    def _able(self, living: Sequence[int]) -> list[int]:
        """Return the indices of the endpoints that can receive requests, apart from their slots.

        An endpoint that refuses the run receives none, and no endpoint does if a paid completion might be lost.
        """
        # During the test of a schema, only one request is in flight
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
        """Send one call of the request, or end the request after its deadline or an error in its template."""
        channel, script = self._channels[number], self._scripts[number]
        body, failure = script.render(request)
        request.body = None
        now = monotonic()
        request.first_sent = request.first_sent or now
        left = self._settings.deadline - (now - request.first_sent)
        failure = failure or (request.last if left <= 0 else None)
        # Without a call, the tokens of the slot are returned, and the last answer remains as the reason
        if body is None or failure is not None:
            self._endpoints.settle(channel, request, 0)
            self._record(channel, request, failure or Answer())
            return
        # Counted before the call, because a call in flight may be paid if the process is killed
        channel.tally.count(calls=1, asked=not request.calls, tool_turns=request.turn_due)
        request.calls, request.turn_due = request.calls + 1, False
        answer = await channel.client.call(self._stage.api, body, left, script.reader(request))
        self._book(channel, request, answer, script.tokens_of(len(body)))
        if self._stage.tools and answer.tool_calls and answer.error_type in (None, "empty"):
            self._use_tools(channel, request, answer)
        else:
            self._settle(channel, request, script.read(answer, request.variables))

    def _book(self, channel: Channel, request: Request, answer: Answer, sent: int) -> None:
        """Record the usage of a call. A call that timed out may be paid, so its usage is estimated."""
        usage, timed_out = answer.usage, answer.error_type == "timeout"
        if timed_out:
            usage = Usage(sent, 0, self._sizes.expected, estimated=True)
        spend(request, usage, answer.parts)
        channel.tally.book(usage)
        lost = timed_out or answer.error_type == "connection"
        self._endpoints.settle(channel, request, usage.tokens, lost=lost)
        if answer.model:
            channel.models.add(answer.model)
        if answer.text is not None:
            self._sizes.remember(usage.completion_tokens)

    def _use_tools(self, channel: Channel, request: Request, answer: Answer) -> None:
        """Run the tools that the model calls, and continue the conversation. Each turn is a call within the limits."""
        if request.rounds >= MAX_ROUNDS:
            self._settle(channel, request, failed(answer, "unparsable", "the model does not stop calling tools"))
            return
        channel.standing.record(request, answer, monotonic())
        results = [run_tool(call) for call in answer.tool_calls]
        request.go_on(exchange(answer.text, answer.tool_calls, results), trace(answer.tool_calls, results))
        self._return(request)

    def _settle(self, channel: Channel, request: Request, answer: Answer) -> None:
        """Decide about an answer, and carry out the decision."""
        completed = channel.standing.completed_here
        self._trial.record(request, answer, completed=completed)
        if self._trial.over:
            return
        if answer.about_schema and self._stage.structured and not completed:
            self._refuse(channel, request, answer, NO_SCHEMA)
            return
        # A model without tools refuses all rows. After a completion, the same error concerns one row
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
            # At once, because the endpoint would also refuse the calls before the next lease
            channel.pause(answer.retry_after, now)
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
            if each.held_back:
                self._settle_held(each)
            self._settle_rejected(each)

    def _carry_out(self, channel: Channel, request: Request, answer: Answer, verdict: Verdict) -> None:
        """Carry out the verdict about an answer."""
        request.attempts += verdict.attempt
        if verdict.anew:
            request.first_sent = None
        if verdict.afresh:
            self._begin_again(channel, request, answer)
        request.bound(verdict.limit)
        if verdict.act is RetryDecision.REFUSE:
            self._refuse(channel, request, answer, remedy_of(answer, self._settings.section))
        elif verdict.act is RetryDecision.HOLD:
            channel.held_back.append((request, answer))
        elif verdict.act is RetryDecision.AGAIN:
            self._ask_again(channel, request, answer, verdict.wait)
        else:
            self._record(channel, request, answer)

    def _settle_rejected(self, channel: Channel) -> None:
        """Decide about rejected requests. After a completion, or if their errors differ, each fails by itself.

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
        self._wake()

    def _begin_again(self, channel: Channel, request: Request, answer: Answer) -> None:
        """Remove the turns after the prompt. An unparsable completion becomes a row, and the next call mentions it."""
        unread = answer.error_type == "unparsable"
        channel.tally.count(retries_after_parse=1)
        if unread:
            self._write(channel, request, failed(answer, ASKED_AGAIN, f"{answer.error_type}: {answer.error}"))
            # The tokens of the next row are those of later calls
            request.usage = NOTHING_USED
        request.begin_again(names_form=unread)

    def _write(self, channel: Channel, row: Request, answer: Answer) -> None:
        """Pass a row to the writer."""
        completion = completion_of(
            row, answer, rated=self._stage.rated, run=self._work.run, endpoint=channel.label or None
        )
        self._writer.add(completion, completion.size)

    def _refuse(self, channel: Channel, request: Request, answer: Answer, remedy: str) -> None:
        """Send no more requests to an endpoint. Without another endpoint, the run ends.

        The other endpoints get the refused requests. The first reason remains, because later reasons follow from it.
        """
        channel.refused = channel.refused or f"{answer.error}; {remedy}"
        held, channel.held_back = channel.held_back, []
        for one in (request, *(other for other, _ in held if other is not request)):
            self._return(one, channel)

    def _settle_held(self, channel: Channel) -> None:
        """Decide about rows with an error that may concern the run.

        They fail if a completion arrived in the meantime, or if no other request is left. Before the first completion
        of a run, calls in flight may still bring it. A row fails only after all endpoints failed for it.
        """
        standing, rows = channel.standing, sum(each.held_rows for each in self._channels)
        if standing.is_refused(channel.in_flight):
            self._refuse(channel, *channel.held_back[0], remedy_of(channel.held_back[0][1], self._settings.section))
        elif not standing.doubts or (standing.completed and rows == self._units.requests_left):
            held, channel.held_back = channel.held_back, []
            for request, answer in held:
                tried = request.failed_at | {self._channels.index(channel)}
                if len(tried) < len(self._channels) and self._endpoints.others_live(channel):
                    self._return(request, channel)
                else:
                    self._record(channel, request, answer)
            self._wake()

    def _ask_again(self, channel: Channel, request: Request, answer: Answer, wait: float) -> None:
        """Send a request again after `wait` seconds, or at once to another endpoint, within its deadline."""
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
        """Return a request to the queue, before new requests, because its deadline has started.

        An endpoint other than `channel` takes it if there is one.
        """
        self._ready.give_back(request, None if channel is None else self._channels.index(channel))
        self._endpoints.need_leases()
        self._wake()

    def _record(self, channel: Channel, request: Request, answer: Answer) -> None:
        """End a request. If one of its several rows may have caused the error, send it again in halves."""
        late = request.first_sent is None or monotonic() - request.first_sent >= self._settings.deadline
        if may_fail_for_one_row(request, answer) and not late:
            for half in split(request, attempts_of_halves(request, answer, self._settings.max_attempts)):
                self._return(half)
            return
        for row in request.members or [request]:
            self._record_row(channel, request, row, answer)

    def _record_row(self, channel: Channel, request: Request, row: Request, answer: Answer) -> None:
        """End a row of a request: pass it to the writer, and count it for its unit."""
        row.calls, row.first_sent = request.calls, request.first_sent
        self._write(channel, row, answer)
        channel.tally.count(done=1, failed=answer.error_type is not None)
        self._units.record(row.unit)

    async def _keep_flushing(self) -> None:
        """Write when the writer is due, and at once when no more requests are left."""
        while True:
            await asyncio.sleep(min(FLUSH_LOOK_SECONDS, self._settings.flush))
            ended = self._units.recorded and not self._ready and not self._endpoints.in_flight
            if self._writer.due or (ended and self._writer.may_write):
                await self._flush()

    async def _flush(self) -> bool:
        """Write the recorded rows. After a failed write, return False and keep the rows. The writer has the error."""
        recorded, self._units.recorded = self._units.recorded, []
        try:
            await self._writer.flush()
        except BaseException as error:
            # A unit is finished when it is on the disk. Until then, a successor must send it again
            self._units.recorded = recorded + self._units.recorded
            if not isinstance(error, Exception):
                raise
            return False
        self._units.finished.extend(recorded)
        self._wake()
        return True

    async def _keep_leasing(self) -> None:
        """Renew leases when slots run low or something changes, and every `IDLE_POLL_SECONDS`."""
        needs_lease, every = self._endpoints.needs_lease, self._endpoints.slots
        while not self._stopping:
            due_at = min(slots.next_report(waiting=bool(self._ready)) for slots in every)
            # Not asyncio.wait_for: on Python 3.11 it loses a cancellation at the moment when the event is set
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(IDLE_POLL_SECONDS, due_at - monotonic()))):
                    await needs_lease.wait()
            needs_lease.clear()
            if not self._stopping:
                await self._renew()

    async def _renew(self) -> None:
        """Report to the limiters that are due, and lease new slots."""
        now, every = monotonic(), self._endpoints.slots
        due = [number for number, slots in enumerate(every) if slots.next_report(waiting=bool(self._ready)) <= now]
        if not due:
            return
        reports = {number: self._endpoints.report(every[number], self._wanted(number), now) for number in due}
        sent = monotonic()
        leases = await self._endpoints.lend(reports)
        received = monotonic()
        for number, lease in leases.items():
            slots = every[number]
            slots.receive(lease, reports[number].estimates, sent, received)
            self._unleased.discard(slots)
            if isinstance(slots, Channel):
                if slots.held_back:
                    self._settle_held(slots)
                self._settle_rejected(slots)
        self._wake()

    def _wanted(self, number: int) -> tuple[int, ...]:
        """Return the estimated tokens of the next requests that need a slot of a limiter."""
        slots = self._endpoints.slots[number]
        owner = slots if isinstance(slots, Channel) else self._endpoints
        if owner.refused is not None or self._writer.full:
            return ()
        count = slots.wanted(len(self._ready), owner.in_flight)
        if not self._counts_tokens:
            return (0,) * count
        endpoint = number % len(self._channels)
        return tuple(
            self._estimate(request, endpoint) for request in islice(self._ready, slots.held, slots.held + count)
        )

    def _estimate(self, request: Request, number: int) -> int:
        """Return the expected tokens of the next call of a request. This renders its body."""
        if not request.tokens:
            body, _ = self._scripts[number].render(request)
            request.tokens = self._scripts[number].tokens_of(len(body or b""))
            # The model may have another name at another endpoint
            request.body = body if len(self._channels) == 1 else None
        return request.tokens + self._sizes.expected
