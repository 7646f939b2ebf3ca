"""Carry out a job with batches of its endpoint: cut, upload, create, poll, read, and repeat. Imports no pyspark.

The ledger of the job records each step before the next one begins. An upload or a batch that a killed start may have
begun without a record is searched by its name before it is repeated.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from time import monotonic, sleep, time
from typing import IO, Any

import pyarrow.parquet as pq

from untold.jobs.inference.backends.batch_jobs import (
    Batch,
    BatchJob,
    BatchLimits,
    EndedError,
    Ledger,
    OutageTracker,
    RequestSize,
    Watch,
    fill,
    fingerprint,
    left_of,
    parts,
)
from untold.jobs.inference.backends.job import Job, JobOutcome
from untold.jobs.settings.sections import BatchSettings
from untold.udfs.llm.batch_api import HIDDEN, QUEUE_FULL, BatchApi, BatchError, BatchStatus, NotYetError, Sent
from untold.udfs.llm.batch_results import BatchOutcome, BatchResults, download, remembered, resumed
from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.pacing import CompletionSizes
from untold.udfs.llm.retrying import is_passing, remedy_of
from untold.udfs.llm.script import Script, accept_of, script_of
from untold.udfs.llm.store_files import COMPLETIONS, completions_table
from untold.udfs.llm.units import UNIT_ROWS
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.stages import definition_of
from untold.udfs.storage import StoragePath

Left = tuple[str, dict[str, Any], RequestSize]
"""What is kept of a request until it is in another batch: id, what is known of it, what it takes."""


LOOK_SECONDS = 0.2
SLOWER = 1.5
# The number of downloads before incomplete results are accepted
DOWNLOADS = 3
LARGEST_QUEUE = 2**50
# After these errors, the endpoint did nothing. After other temporary errors, this is unknown
NOT_DONE = ("http_429",)
# The errors for removed files
GONE = ("http_404", "http_410")
INFINITE = float("inf")


@dataclass(frozen=True)
class Lines:
    """The lines of the requests of a job, in the format of an endpoint."""

    spooled: BatchJob
    job: Job
    api: BatchApi
    script: Script
    sizes: CompletionSizes

    def bodies(self, batch: Batch) -> Iterator[tuple[Request, bytes | None]]:
        """Yield the requests of a batch with their bodies, None after an error of the template."""
        for row in self.spooled.rows(batch):
            request = resumed(*row)
            yield request, self.script.render(request)[0]

    def line(self, body: bytes | None) -> RequestSize:
        """Return the size of a request in a batch, 0 for a request without a body."""
        if body is None:
            return RequestSize(0, 0, 0, 0.0)
        prompt = self.script.tokens_of(len(body))
        most = prompt + self.sizes.expected
        # With an id of the length of request ids
        size = len(self.api.line("0" * 32, self.job.stage.api, body))
        return RequestSize(size, prompt, most, self.cost(1, prompt, most))

    def left(self, request: Request) -> Left:
        """Return the record of a request for the next batch."""
        return request.request_id, remembered(request), self.line(self.script.render(request)[0])

    def cost(self, requests: int, tokens: int, most: int) -> float:
        """Return the maximum cost of requests. `tokens` are the tokens of prompts, and `most` the tokens of all."""
        return self.job.settings.prices.cost(tokens, most - tokens, requests) or 0.0

    def open(self, batch: Batch) -> IO[bytes]:
        """Return an open file with the lines of a batch."""
        file = tempfile.TemporaryFile()  # noqa: SIM115
        for request, body in self.bodies(batch):
            if body is not None:
                file.write(self.api.line(request.request_id, self.job.stage.api, body))
        file.seek(0)
        return file


def digest_and_size(file: IO[bytes]) -> tuple[str, int]:
    """Return the digest and the size of a file, and rewind it."""
    digest = blake2b(digest_size=16)
    for chunk in iter(lambda: file.read(2**20), b""):
        digest.update(chunk)
    size = file.tell()
    file.seek(0)
    return digest.hexdigest(), size


class BatchSubmitter:
    """The batches of one locked job. `beside` are batches of other jobs at the endpoint, which also cost money."""

    def __init__(
        self,
        spooled: BatchJob,
        job: Job,
        api: BatchApi,
        how: BatchSettings,
        watch: Watch,
        beside: Sequence[Batch] = (),
    ) -> None:
        self._script = script_of(job.stage, accept_of(job.stage), definition_of(job.stage.name).form)
        self._spooled, self._job, self._api, self._how, self._watch = spooled, job, api, how, watch
        self._ledger = spooled.ledger()
        StoragePath(job.directory).make_folder()
        self._rows = sum(spooled.units.values())
        self._beside = tuple(beside)
        self._sizes = CompletionSizes(job.stage.max_tokens)
        self._lines = Lines(spooled, job, api, self._script, self._sizes)
        self._key = fingerprint(os.environ.get(job.settings.api_key_env or "", ""), spooled.name)
        # The endpoint may have these batches, although the ledger has no id
        self._doubtful = {batch.name for batch in self._ledger.batches if batch.id is None}
        self._foreign: set[str] = set()
        self._own: set[str] = set()
        self._done: dict[str, int] = {}
        self._completed = job.call.answered_before
        # True if the budget, or the queue of the endpoint until the next pause, allows no batch
        self._short = self._full = False
        self._outage = OutageTracker(job.settings.outage)
        self._told: set[str] = set()
        self._wait = how.poll_seconds
        self._used = NOTHING_USED

    @property
    def used(self) -> Usage:
        """The usage of the batches that this start has read, with its cost."""
        return self._job.settings.priced(self._used)

    def run(self, *, submit: bool = True, poll: bool = True) -> JobOutcome:
        """Carry out the job and close it. Without `poll`, check all batches once.

        Without `submit`, create no batch, and return requests that no endpoint has, for another job. The reason of the
        outcome is None if no batch is left, and `batched` if batches are in progress.
        """
        try:
            self._clear()
            if submit:
                self._recut()
            else:
                # First of all, because this job must never send the returned requests, even after a kill
                self._note(replace(self._ledger, cut=self._rows))
            while True:
                while self._advance(submit=submit):
                    if not self._full:
                        self._wait = self._how.poll_seconds
                    self._report()
                self._report()
                if not submit:
                    self._note(replace(self._ledger, batches=tuple(self._kept)))
                if not self._goes_on(submit=submit):
                    # The other requests are in batches of other keys
                    if self._ledger.batches:
                        return JobOutcome("batched", usage=self.used)
                    self._spooled.close()
                    return JobOutcome(usage=self.used)
                # Other jobs release their share of the limits when their batches are checked
                if not poll or (self._beside_in_flight and not self._awaited):
                    return JobOutcome("batched", usage=self.used)
                self._pause()
        except EndedError as ended:
            if ended.reason == "interrupted" and self._awaited:
                ids = ", ".join(str(batch.id) for batch in self._awaited)
                self._watch.note(f"these batches continue, and the next start reads their completions: {ids}")
            return JobOutcome(ended.reason, ended.error, self.used)

    @property
    def _kept(self) -> list[Batch]:
        """Return the batches that the endpoint has or may have."""
        doubtful = self._doubtful | self._foreign
        return [batch for batch in self._ledger.batches if batch.id is not None or batch.name in doubtful]

    @property
    def _awaited(self) -> list[Batch]:
        """The batches of this start that are in progress."""
        return [batch for batch in self._ledger.in_flight if batch.name not in self._foreign]

    @property
    def _beside_in_flight(self) -> bool:
        return any(batch.id is not None for batch in self._beside)

    def _goes_on(self, *, submit: bool) -> bool:
        """Return True if batches are in progress. Raises EndedError if the budget allows no other step."""
        left = [batch for batch in self._ledger.batches if batch.name not in self._foreign]
        if self._awaited or not submit:
            return bool(left)
        if self._short:
            raise EndedError("budget")
        return bool(left) or self._ledger.cut < self._rows

    def _check_stopped(self) -> None:
        if reason := self._watch.stopped():
            raise EndedError(reason)

    def _advance(self, *, submit: bool) -> bool:
        """Advance each batch by one step, and cut new batches. Return True if a step was done."""
        moved = self._short = False
        for batch in self._ledger.batches:
            self._check_stopped()
            if batch.name in self._foreign or batch not in self._ledger.batches:
                continue
            may_submit = batch.id is None and submit and self._fits(batch)
            if batch.id is not None or may_submit or batch.name in self._doubtful:
                moved |= self._step(batch, submit=may_submit)
        while submit and (new := self._cut()) is not None:
            self._check_stopped()
            if self._step(new, submit=True):
                moved = True
            elif self._outage.faults:
                break
        return moved

    def _step(self, batch: Batch, *, submit: bool) -> bool:
        """Do the next step of a batch. Return True if it was done."""
        if self._outage.is_held:
            return False
        try:
            if batch.id is None:
                moved = self._submit(batch, create=submit)
            else:
                look = self._api.look(batch.id)
                self._done[batch.name] = look.done
                if look.ended:
                    self._read(batch, look)
                moved = look.ended
        except BatchError as error:
            # After a poll. Missing files of results are not an error
            if batch.id is not None and error.answer.error_type in HIDDEN:
                self._pass_over(batch)
            else:
                self._outage.record_failure(error.answer)
                if error.answer.error_type not in NOT_DONE:
                    self._doubtful.add(batch.name)
            return False
        except NotYetError as reason:
            moved = False
            self._tell(f"batch {batch.name} of {self._job.stage.name}: {reason}")
        self._outage.record_success()
        return moved

    def _tell(self, line: str) -> None:
        """Report a line once."""
        if line not in self._told:
            self._told.add(line)
            self._watch.note(line)

    def _pass_over(self, batch: Batch) -> None:
        """Skip a batch of another key."""
        self._foreign.add(batch.name)
        shown = batch.id or batch.name
        self._watch.note(
            f"batch {shown} is not visible with this key and is passed over: start with the key that made it"
        )

    def _fits(self, batch: Batch) -> bool:
        """Return True if a batch is within the limits, with the batches in flight."""
        if self._full:
            return False
        room = self._room([one for one in self._ledger.in_flight if one.name != batch.name])
        line = RequestSize(1, batch.tokens, batch.most, self._lines.cost(batch.requests, batch.tokens, batch.most))
        if batch.requests > room.requests or not fill([line], replace(room, requests=1)):
            self._short = True
            return False
        return batch.tokens <= room.queue or not (self._ledger.in_flight or self._beside_in_flight)

    def _cut(self) -> Batch | None:
        """Cut and record a batch of the next rows. Return None if no row is left, or if the limits allow none now."""
        ledger, queue = self._ledger, self._queue
        if ledger.cut >= self._rows or self._full:
            return None
        room = self._room(ledger.batches, self._how.requests)
        if (ledger.in_flight or self._beside_in_flight) and room.queue < queue / 2:
            return None
        rest = Batch("", ledger.cut, self._rows, 0, 0, 0)
        lines = fill((self._lines.line(body) for _, body in self._lines.bodies(rest)), room)
        if not lines:
            self._short = True
            return None
        end = ledger.cut + len(lines)
        batch = self._batch_of(f"{ledger.made + 1:06d}", ledger.cut, end, lines)
        self._note(replace(ledger.with_batch(batch), cut=end, made=ledger.made + 1))
        return batch

    def _batch_of(self, name: str, first: int, end: int, lines: list[RequestSize], *, part: bool = False) -> Batch:
        sent = sum(line.bytes > 0 for line in lines)
        tokens, most = sum(line.prompt for line in lines), sum(line.most for line in lines)
        return Batch(name, first, end, sent, tokens, most, part, self._key)

    @property
    def _queue(self) -> float:
        """The maximum number of waiting tokens at the endpoint."""
        return min(self._how.queue or INFINITE, self._ledger.queue or INFINITE)

    def _room(self, own: Sequence[Batch], most_requests: float = INFINITE) -> BatchLimits:
        """Return the rest of the limits for a batch, after the batches of this and of other jobs."""
        reserved = (*own, *self._beside)
        budget, spent = self._job.settings.budget, self._job.call.spent + self.used
        calls, most = sum(batch.requests for batch in reserved), sum(batch.most for batch in reserved)
        cost = sum(self._lines.cost(batch.requests, batch.tokens, batch.most) for batch in reserved)
        waiting = sum(batch.tokens for batch in reserved if batch.id is not None)
        return BatchLimits(
            requests=min(most_requests, left_of(budget.max_calls, spent.calls + calls)),
            bytes=min(self._how.bytes, self._api.most_bytes),
            queue=self._queue - waiting,
            tokens=left_of(budget.max_tokens, spent.tokens + most),
            cost=left_of(budget.max_cost, (spent.cost or 0.0) + cost),
        )

    def _submit(self, batch: Batch, *, create: bool) -> bool:
        """Upload and create a batch, without steps that are done. Return True if the endpoint has it now."""
        # The ledger has the file before the batch is created
        doubtful = batch.name in self._doubtful and batch.file is not None
        look = self._api.find_batch(self._sent(batch)) if doubtful else None
        if look is None and doubtful and batch.key != self._key:
            self._pass_over(batch)
            return False
        if look is None and doubtful and time() - batch.asked < self._how.settle_seconds:
            # The list can lack a new batch
            return False
        if look is None and not create:
            self._doubtful.discard(batch.name)
            return False
        if look is None:
            if not batch.requests:
                self._read(batch, BatchStatus("", "completed"))
                return True
            batch = replace(self._uploaded(batch) if batch.file is None else batch, asked=time())
            look = self._create(batch)
        self._note(self._ledger.with_batch(replace(batch, id=look.id)))
        self._doubtful.discard(batch.name)
        self._own.add(batch.name)
        hint = f"; {look.hint}" if look.hint else ""
        self._watch.note(f"batch {look.id}: {batch.requests:,} requests of {self._job.stage.name}{hint}")
        return True

    def _create(self, batch: Batch) -> BatchStatus:
        """Record and create a batch. After a refusal, the endpoint has no batch."""
        self._note(self._ledger.with_batch(batch))
        try:
            return self._api.create(self._sent(batch))
        except BatchError as error:
            if error.answer.refused or not is_passing(error.answer.error_type):
                self._note(self._ledger.with_batch(replace(batch, asked=0.0)))
            raise

    def _sent(self, batch: Batch) -> Sent:
        """Return a batch in the form for the endpoint."""
        job = self._job
        return Sent(
            name=f"{self._spooled.name}/{batch.name}",
            file=str(batch.file),
            api=job.stage.api,
            more={"run": job.run, "stage": job.stage.name, "digest": batch.digest},
            since=batch.asked,
            requests=batch.requests,
            open=partial(self._lines.open, batch),
            others=frozenset(str(one.id) for one in (*self._ledger.in_flight, *self._beside)),
        )

    def _uploaded(self, batch: Batch) -> Batch:
        """Find or upload the file of a batch, and return the batch with it."""
        with self._lines.open(batch) as file:
            digest, size = digest_and_size(file)
            name = f"untold-{self._spooled.name}-{batch.name}.jsonl"
            known = self._api.find_file(name, size) if batch.name in self._doubtful else None
            return replace(batch, file=known or self._api.upload(name, file), digest=digest, key=self._key)

    def _read(self, batch: Batch, look: BatchStatus) -> None:
        """Read the results of a batch: rows for the store, and requests for later batches."""
        stage, settings, run = self._job.stage, self._job.settings, self._job.run
        judged = BatchOutcome(stage, settings, self._script, run, self._completed)
        left: list[Left] = []

        def write(file: IO[bytes]) -> None:
            with pq.ParquetWriter(file, COMPLETIONS, compression="zstd", write_page_checksum=True) as writer:
                for number, (request, body) in enumerate(self._lines.bodies(batch), start=1):
                    self._take(request, body, look, results, judged)
                    if number % UNIT_ROWS == 0:
                        writer.write_table(completions_table(judged.take_rows()))
                        left.extend(map(self._lines.left, judged.take_again()))
                judged.end()
                writer.write_table(completions_table(judged.take_rows()))
                left.extend(map(self._lines.left, judged.take_again()))

        with self._download(batch, look) as results:
            StoragePath(f"{self._job.directory}/{run}-{batch.name}.parquet").write_whole(write)
        self._completed |= judged.completed
        self._pace(batch, look)
        # The files at the endpoint are removed after this record
        files = () if self._job.settings.keep_files else (batch.file, *look.results)
        self._replace(batch, left, judged.used, tuple(filter(None, files)))
        self._clear()
        if look.id:
            answered = judged.used.done - judged.used.failed
            self._watch.note(f"batch {look.id} {look.status}: {answered:,} answered, {len(left):,} to be sent again")
        if look.refusal is not None:
            judged.refusal = f"{look.refusal.error}; {remedy_of(look.refusal)}"
        # The reason of the end of an earlier start may be fixed
        if judged.refusal and batch.name in self._own:
            raise EndedError("refused", judged.refusal)
        came = judged.used.done or judged.used.calls > judged.used.rate_limited
        self._outage.read(came=bool(came) or not look.id or look.code == QUEUE_FULL)

    def _download(self, batch: Batch, look: BatchStatus) -> BatchResults:
        """Return the results of a batch. Download them again if there are fewer than the endpoint has counted."""
        least = look.done or (batch.requests if look.status == "completed" else 0)
        for _ in range(DOWNLOADS - 1):
            results, whole = download(self._api, look)
            if whole and results.count >= least:
                return results
            results.close()
            self._pause(longer=False)
            self._check_stopped()
        results, whole = download(self._api, look)
        if not whole or results.count < least:
            self._watch.note(f"batch {look.id} has incomplete results. The missing requests are sent again")
        return results

    def _take(
        self, request: Request, body: bytes | None, look: BatchStatus, results: BatchResults, judged: BatchOutcome
    ) -> None:
        """Judge the result of one request."""
        if body is None:
            failure = self._script.render(request)[1]
            judged.accept(request, failure or Answer(error_type="template"))
            return
        if look.status == "completed" and request.request_id not in results:
            judged.miss(request)
            return
        answer = results.answer(request, self._script, len(body))
        if answer is None:
            judged.again.append(request)
            return
        if answer.text is not None:
            self._sizes.remember(answer.usage.completion_tokens)
        judged.accept(request, answer)

    def _pace(self, batch: Batch, look: BatchStatus) -> None:
        """Update the queue of the endpoint after a poll. A full queue is halved, and grows with completed batches."""
        queue = self._ledger.queue
        if look.code == QUEUE_FULL:
            self._full = True
            others = sum(one.tokens for one in self._ledger.in_flight if one.name != batch.name)
            queue = max(others, batch.tokens // 2, 1)
        elif queue and look.id and look.status == "completed":
            queue = min(2 * queue, self._how.queue or LARGEST_QUEUE)
        self._ledger = replace(self._ledger, queue=queue)

    @property
    def _limits(self) -> BatchLimits:
        return BatchLimits(self._how.requests, min(self._how.bytes, self._api.most_bytes), self._queue)

    def _recut(self) -> None:
        """Cut batches again that no endpoint has, if the limits are lower now."""
        for batch in self._ledger.batches:
            if batch.id is None and batch.file is None:
                left = [self._lines.left(request) for request, _ in self._lines.bodies(batch)]
                if len(parts([line for *_, line in left], self._limits)) > 1:
                    self._replace(batch, left)

    def _clear(self) -> None:
        """Remove the files of finished batches."""
        for file in self._ledger.leftovers:
            try:
                self._api.remove(file)
            except BatchError as error:
                if error.answer.error_type not in GONE:
                    self._watch.note(f"file {file} stays at the endpoint: {error}")
        # The next record writes this. A second removal of a file does no harm
        self._ledger = replace(self._ledger, leftovers=())

    def _replace(self, batch: Batch, left: list[Left], used: Usage = NOTHING_USED, files: tuple[str, ...] = ()) -> None:
        """Replace a batch with batches of its remaining requests, in one write with its usage and its files.

        Remaining requests of other batches that were not sent are cut again, because the queue may have grown.
        """
        ledger = self._ledger
        waiting = [one for one in ledger.batches if one.part and one.file is None and one.name not in self._doubtful]
        gone = [batch, *(one for one in waiting if one.name != batch.name)]
        left = left + [self._lines.left(request) for one in gone[1:] for request, _ in self._lines.bodies(one)]
        first, end = min(one.first for one in gone), max(one.end for one in gone)
        new, made = [], ledger.made
        for places in parts([line for *_, line in left], self._limits):
            made += 1
            own = left[places.start : places.stop]
            self._spooled.write_rest(f"{made:06d}", {request_id: known for request_id, known, _ in own})
            new.append(self._batch_of(f"{made:06d}", first, end, [line for *_, line in own], part=True))
        names = {one.name for one in gone}
        kept = [one for one in ledger.batches if one.name not in names]
        self._done.pop(batch.name, None)
        self._used += used
        leftovers = (*ledger.leftovers, *files)
        self._note(replace(ledger, batches=(*kept, *new), made=made, used=ledger.used + used, leftovers=leftovers))

    def _note(self, ledger: Ledger) -> None:
        """Write the ledger, so that it survives a kill of this process."""
        self._spooled.write_ledger(ledger)
        self._ledger = ledger

    def _report(self) -> None:
        """Report the progress of the job."""
        in_flight = sum(batch.requests for batch in self._ledger.in_flight)
        done = sum(self._done.get(batch.name, 0) for batch in self._ledger.in_flight)
        usage = asdict(self.used)
        event = {"event": "progress", "stage": self._job.stage.name, "total": self._rows, "usage": usage}
        self._watch.show(event | {"in_flight": max(0, in_flight - done)})

    def _pause(self, *, longer: bool = True) -> None:
        """Wait before the next poll, each time `longer`, or for the pause of the endpoint. A stop ends the wait."""
        until = max(monotonic() + self._wait, self._outage.held_until)
        if longer:
            self._wait = min(SLOWER * self._wait, self._how.longest_poll_seconds)
        while (left := until - monotonic()) > 0 and not self._watch.stopped():
            sleep(min(left, LOOK_SECONDS))
        self._full &= not longer
