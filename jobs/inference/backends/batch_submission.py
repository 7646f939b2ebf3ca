"""Carry out a job with batches of its endpoint: cut, upload, create, poll, read, and repeat. Imports no pyspark.

The ledger of the job records each step before the next one begins. An upload or a batch that a killed start may have
begun without a record is searched by its name before it is repeated.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from time import monotonic, sleep, time
from typing import IO, Any

import pyarrow.parquet as pq

from untold.jobs.inference.backends.batch_jobs import (
    INFINITE,
    Batch,
    BatchJob,
    EndedError,
    Ledger,
    Load,
    OutageTracker,
    Part,
    Rest,
    Watch,
    fill,
    fingerprint,
    left_of,
    remembered,
)
from untold.jobs.inference.backends.job import Job, JobOutcome, progress
from untold.jobs.settings.sections import BatchSettings
from untold.udfs.llm.batch_api import HIDDEN, QUEUE_FULL, BatchApi, BatchError, BatchStatus, NotYetError, Sent
from untold.udfs.llm.batch_results import BatchOutcome, BatchResults
from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.pacing import CompletionSizes
from untold.udfs.llm.retrying import is_passing, remedy_of
from untold.udfs.llm.script import accept_of, script_of
from untold.udfs.llm.store_files import COMPLETIONS, completions_table
from untold.udfs.llm.units import UNIT_ROWS
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.stages import definition_of
from untold.udfs.storage import StoragePath

LOOK_SECONDS = 0.2
SLOWER = 1.5
# The number of downloads before incomplete results are accepted
DOWNLOADS = 3
LARGEST_QUEUE = 2**50
# After these errors, the endpoint did nothing. After other temporary errors, this is unknown
NOT_DONE = ("http_429",)
# The errors for removed files
GONE = ("http_404", "http_410")


class Lines:
    """The lines of the requests of a job in the format of an endpoint, and their sizes."""

    def __init__(self, spooled: BatchJob, job: Job, api: BatchApi) -> None:
        self._spooled, self._job, self._api = spooled, job, api
        self.script = script_of(job.stage, accept_of(job.stage), definition_of(job.stage.name).form)
        self.sizes = CompletionSizes(job.stage.max_tokens)

    def rendered(self, parts: Iterable[Part]) -> Iterator[tuple[int, Request, bytes | None]]:
        """Yield the rows, requests and bodies of parts. The body is None after an error of the template."""
        for number, request in self._spooled.requests_of(parts):
            yield number, request, self.script.render(request)[0]

    def load(self, body: bytes | None) -> Load:
        """Return the size of a request, 0 for a request without a body."""
        if body is None:
            return Load()
        prompt = self.script.tokens_of(len(body))
        # With an id of the length of request ids
        size = len(self._api.line("0" * 32, self._job.stage.api, body))
        return self._priced(Load(1, size, prompt, prompt + self.sizes.expected))

    def load_of(self, batches: Iterable[Batch]) -> Load:
        """Return the size of batches, without their bytes."""
        loads = (Load(batch.requests, 0, batch.tokens, batch.most) for batch in batches)
        return self._priced(sum(loads, Load()))

    def _priced(self, load: Load) -> Load:
        prices = self._job.settings.prices
        return replace(load, cost=prices.cost(load.prompt, load.tokens - load.prompt, load.requests) or 0.0)

    def open(self, batch: Batch) -> IO[bytes]:
        """Return an open file with the lines of a batch."""
        file = tempfile.TemporaryFile()  # noqa: SIM115
        for _, request, body in self.rendered(batch.parts):
            if body is not None:
                file.write(self._api.line(request.request_id, self._job.stage.api, body))
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
        self._spooled, self._job, self._api, self._how, self._watch = spooled, job, api, how, watch
        self._beside = tuple(beside)
        self._ledger = spooled.ledger()
        self._lines = Lines(spooled, job, api)
        self._rows = sum(spooled.units.values())
        self._key = fingerprint(os.environ.get(job.settings.api_key_env or "", ""), spooled.name)
        # The endpoint may have these batches, although the ledger has no id
        self._doubtful = {batch.name for batch in self._ledger.batches if batch.id is None}
        # The batches of other keys, and those that this start has created
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
        StoragePath(job.directory).make_folder()

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
            self._begin(submit=submit)
            while self._work(submit=submit):
                # Other jobs release their share of the limits when their batches are checked
                if not poll or (_at_endpoint(self._beside) and not self._awaited):
                    return JobOutcome("batched", usage=self.used)
                self._pause()
            # The other requests are in batches of other keys
            if self._ledger.batches:
                return JobOutcome("batched", usage=self.used)
            self._spooled.close()
            return JobOutcome(usage=self.used)
        except EndedError as ended:
            if ended.reason == "interrupted" and self._awaited:
                ids = ", ".join(str(batch.id) for batch in self._awaited)
                self._watch.note(f"these batches continue, and the next start reads their completions: {ids}")
            return JobOutcome(ended.reason, ended.error, self.used)

    def _begin(self, *, submit: bool) -> None:
        """Remove leftover files, and return batches to the pool that exceed the limits and that no endpoint has."""
        self._clear()
        if not submit:
            # First of all, because this job must never send the returned requests, even after a kill
            self._note(replace(self._ledger, pool=()))
            return
        for batch in self._ledger.batches:
            if batch.id is None and batch.file is None:
                loads = [self._lines.load(body) for *_, body in self._lines.rendered(batch.parts)]
                if len(fill(loads, self._limits)) < len(loads):
                    self._note(self._ledger.without(batch, batch.parts))

    def _work(self, *, submit: bool) -> bool:
        """Advance all batches as far as possible. Return True if work is left. Raises EndedError for a spent budget."""
        while self._advance(submit=submit):
            if not self._full:
                self._wait = self._how.poll_seconds
            self._report()
        self._report()
        if not submit:
            maybe = self._doubtful | self._foreign
            kept = (batch for batch in self._ledger.batches if batch.id is not None or batch.name in maybe)
            self._note(replace(self._ledger, batches=tuple(kept), pool=()))
        elif self._short and not self._awaited:
            raise EndedError("budget")
        return bool(self._ledger.pool) or any(one.name not in self._foreign for one in self._ledger.batches)

    @property
    def _awaited(self) -> list[Batch]:
        """The batches of this start that are in progress."""
        return [batch for batch in self._ledger.in_flight if batch.name not in self._foreign]

    def _check_stopped(self) -> None:
        if reason := self._watch.stopped():
            raise EndedError(reason)

    def _advance(self, *, submit: bool) -> bool:
        """Advance each batch by one step, and cut new batches. Return True if a step was done."""
        moved = self._short = False
        for batch in self._ledger.batches:
            self._check_stopped()
            if batch.name in self._foreign:
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
            moved = self._submit(batch, create=submit) if batch.id is None else self._poll(batch, batch.id)
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
            line = f"batch {batch.name} of {self._job.stage.name}: {reason}"
            if line not in self._told:
                self._told.add(line)
                self._watch.note(line)
        self._outage.record_success()
        return moved

    def _poll(self, batch: Batch, batch_id: str) -> bool:
        """Read the results of a batch if it has ended. Return True if it has."""
        look = self._api.look(batch_id)
        self._done[batch.name] = look.done
        if look.ended:
            self._read(batch, look)
        return look.ended

    def _pass_over(self, batch: Batch) -> None:
        """Skip a batch of another key."""
        self._foreign.add(batch.name)
        hidden = f"batch {batch.label} is not visible with this key and is passed over"
        self._watch.note(f"{hidden}: start with the key that made it")

    @property
    def _waits(self) -> bool:
        """Return True if the endpoint has batches of this or of other jobs."""
        return _at_endpoint((*self._ledger.batches, *self._beside))

    def _fits(self, batch: Batch) -> bool:
        """Return True if a batch is within the limits, with the batches in flight."""
        if self._full:
            return False
        room = self._room(self._ledger.in_flight)
        if not self._lines.load_of([batch]).is_affordable(room):
            self._short = True
            return False
        return batch.tokens <= room.prompt or not self._waits

    def _cut(self) -> Batch | None:
        """Cut and record a batch of the pool. Return None if the pool is empty, or if the limits allow no batch now."""
        ledger, room = self._ledger, self._room(self._ledger.batches)
        if not ledger.pool or self._full or (self._waits and room.prompt < self._limits.prompt / 2):
            return None
        places: list[tuple[int, int]] = []

        def loads() -> Iterator[Load]:
            for index, part in enumerate(ledger.pool):
                for number, _, body in self._lines.rendered([part]):
                    places.append((index, number))
                    yield self._lines.load(body)

        taken = fill(loads(), replace(room, requests=min(room.requests, self._how.requests)))
        if not taken:
            self._short = True
            return None
        parts, pool = ledger.pool, ledger.pool[:0]
        if len(places) > len(taken):
            # The first request of the rest
            index, number = places[len(taken)]
            cut = ledger.pool[index]
            parts = (*ledger.pool[:index], replace(cut, end=number))
            pool = (replace(cut, first=number), *ledger.pool[index + 1 :])
        total, name = sum(taken, Load()), f"{ledger.made + 1:06d}"
        batch = Batch(name, parts, int(total.requests), int(total.prompt), int(total.tokens), self._key)
        self._note(replace(ledger.with_batch(batch), pool=pool, made=ledger.made + 1))
        return batch

    @property
    def _limits(self) -> Load:
        """The limits of a batch at an endpoint without other batches, without the budget."""
        queue = min(self._how.queue or INFINITE, self._ledger.queue or INFINITE)
        return Load(self._how.requests, min(self._how.bytes, self._api.most_bytes), queue, INFINITE, INFINITE)

    def _room(self, own: Sequence[Batch]) -> Load:
        """Return the rest of the budget and of the queue, after the batches of this and of other jobs."""
        reserved = (*own, *self._beside)
        budget, spent, load = self._job.settings.budget, self._job.call.spent + self.used, self._lines.load_of(reserved)
        return replace(
            self._limits,
            requests=left_of(budget.max_calls, spent.calls + load.requests),
            prompt=self._limits.prompt - sum(batch.tokens for batch in reserved if batch.id is not None),
            tokens=left_of(budget.max_tokens, spent.tokens + load.tokens),
            cost=left_of(budget.max_cost, (spent.cost or 0.0) + load.cost),
        )

    def _submit(self, batch: Batch, *, create: bool) -> bool:
        """Upload and create a batch, without steps that are done. Return True if the endpoint has it now."""
        look = None
        # The ledger has the file before the batch is created
        if batch.name in self._doubtful and batch.file is not None:
            look = self._api.find_batch(self._sent(batch))
            if look is None and batch.key != self._key:
                self._pass_over(batch)
                return False
            # The list can lack a new batch
            if look is None and time() - batch.asked < self._how.settle_seconds:
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
        job = self._job
        left: dict[str, dict[str, Any]] = {}

        def again(request: Request) -> None:
            left[request.request_id] = remembered(request)

        judged = BatchOutcome(job.stage, job.settings, self._lines.script, job.run, again, self._completed)

        def write(file: IO[bytes]) -> None:
            with pq.ParquetWriter(file, COMPLETIONS, compression="zstd", write_page_checksum=True) as writer:
                for _, request, body in self._lines.rendered(batch.parts):
                    self._judge(request, body, look, results, judged)
                    if len(judged.rows) >= UNIT_ROWS:
                        writer.write_table(completions_table(judged.rows))
                        judged.rows = []
                judged.end()
                writer.write_table(completions_table(judged.rows))

        with closing(self._download(batch, look)) as results:
            StoragePath(f"{job.directory}/{job.run}-{batch.name}.parquet").write_whole(write)
        self._completed |= judged.completed
        self._pace(batch, look)
        # The files at the endpoint are removed after this record
        files = () if job.settings.keep_files else (batch.file, *look.results)
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
        results = BatchResults(self._api, look)
        for _ in range(DOWNLOADS - 1):
            if results.whole and len(results) >= least:
                return results
            results.close()
            self._pause(longer=False)
            self._check_stopped()
            results = BatchResults(self._api, look)
        if not results.whole or len(results) < least:
            self._watch.note(f"batch {look.id} has incomplete results. The missing requests are sent again")
        return results

    def _judge(
        self, request: Request, body: bytes | None, look: BatchStatus, results: BatchResults, judged: BatchOutcome
    ) -> None:
        """Judge the result of one request."""
        if body is None:
            failure = self._lines.script.render(request)[1]
            judged.accept(request, failure or Answer(error_type="template"))
        elif look.status == "completed" and request.request_id not in results:
            judged.miss(request)
        elif (answer := results.answer(request, self._lines.script, len(body))) is None:
            judged.again(request)
        else:
            if answer.text is not None:
                self._lines.sizes.remember(answer.usage.completion_tokens)
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

    def _replace(self, batch: Batch, left: Rest, used: Usage, files: tuple[str, ...]) -> None:
        """Return the remaining requests of a batch to the pool, in one write with its usage and its files."""
        pool: tuple[Part, ...] = ()
        if left:
            rest = f"{batch.name}-left"
            self._spooled.write_rest(rest, left)
            pool = (Part(min(part.first for part in batch.parts), max(part.end for part in batch.parts), rest),)
        ledger = self._ledger.without(batch, pool)
        self._note(replace(ledger, used=ledger.used + used, leftovers=(*ledger.leftovers, *files)))
        self._done.pop(batch.name, None)
        self._used += used

    def _note(self, ledger: Ledger) -> None:
        """Write the ledger, so that it survives a kill of this process."""
        self._spooled.write_ledger(ledger)
        self._ledger = ledger

    def _report(self) -> None:
        """Report the progress of the job."""
        in_flight = sum(batch.requests for batch in self._ledger.in_flight)
        done = sum(self._done.get(batch.name, 0) for batch in self._ledger.in_flight)
        event = progress(self._job.stage, self._rows, self.used)
        self._watch.show(event | {"in_flight": max(0, in_flight - done)})

    def _pause(self, *, longer: bool = True) -> None:
        """Wait before the next poll, each time `longer`, or for the pause of the endpoint. A stop ends the wait."""
        until = max(monotonic() + self._wait, self._outage.held_until)
        if longer:
            self._wait = min(SLOWER * self._wait, self._how.longest_poll_seconds)
        while (left := until - monotonic()) > 0 and not self._watch.stopped():
            sleep(min(left, LOOK_SECONDS))
        self._full &= not longer


def _at_endpoint(batches: Iterable[Batch]) -> bool:
    return any(batch.id is not None for batch in batches)
