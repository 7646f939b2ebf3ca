"""List, collect or cancel the batches that runs left at endpoints: `untold batches`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from uuid import uuid4

from untold.jobs.inference.backends.batch_jobs import FOLDER, Batch, BatchJob, Watch, batch_jobs
from untold.jobs.inference.backends.batch_submission import BatchSubmitter
from untold.jobs.inference.backends.job import JOBS, Job
from untold.jobs.run.manifest import read_manifest
from untold.jobs.run.output import store_of
from untold.jobs.run.terminal import Page, table
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError
from untold.udfs.llm.batch_api import HIDDEN, BatchApi, BatchError
from untold.udfs.llm.batch_formats import open_batches
from untold.udfs.storage import StoragePath, absolute

# The statuses of batches that end without `cancel`
ENDING = ("cancelling", "finalizing")


class NoBatchesError(UserError):
    """A folder without batches, or a missing batch. The message has the remedy."""


@dataclass(frozen=True)
class BatchListing:
    """A batch at its endpoint. `status` is `not submitted`, the status, or the reason if it is unknown."""

    batch: str
    stage: str
    run: str
    requests: int
    status: str
    done: int = 0


def batches(
    folder: str, act: str, note: Callable[[str], None], ids: Sequence[str] = (), api_key_env: str | None = None
) -> list[BatchListing]:
    """Return the batches of a store or an output, after `fetch` or `cancel`.

    `ids` are the batches to cancel, by default all. A named batch that has ended or is unknown to the endpoint is
    removed from the ledger, so its requests are sent again. Raises NoBatchesError, also if a batch cannot be canceled,
    and LockedError if a run uses the batches.
    """
    store = _store_at(absolute(folder))
    jobs = batch_jobs(store)
    known = {batch.label for job in jobs for batch in job.ledger().batches}
    if missing := sorted(set(ids) - known):
        raise NoBatchesError(f"{store} has no batch {missing[0]}; it has {', '.join(sorted(known)) or 'none'}")
    found: list[BatchListing] = []
    failed: list[str] = []
    for job in jobs:
        read = job.read()
        settings = replace(read.settings, api_key_env=api_key_env or read.settings.api_key_env)
        read = replace(read, settings=settings)
        with closing(open_batches(settings)) as api:
            if act != "list":
                with job.locked(f"batches-{uuid4().hex[:12]}", wait=False):
                    if act == "fetch":
                        watch = Watch(lambda: None, lambda _: None, note)
                        BatchSubmitter(job, read, api, Settings().batch, watch).run(submit=False, poll=False)
                    else:
                        failed += _cancel(job, api, ids)
            found += _listed(job, read, api)
    if failed:
        raise NoBatchesError(f"{'; '.join(failed)}; check the account that created them")
    return found


def _store_at(folder: str) -> str:
    """Return the store of a folder or of the output in it. Raises NoBatchesError."""
    manifest = read_manifest(folder)
    named = ((manifest or {}).get("settings") or {}).get("completion_store")
    store = folder if manifest is None else store_of(Settings(completion_store=named), folder)
    if (StoragePath(store) / FOLDER / JOBS).entry().kind != "folder":
        raise NoBatchesError(f"{folder} has no batches. Give the output of a run, or its store")
    return store


def _listed(job: BatchJob, read: Job, api: BatchApi) -> Iterator[BatchListing]:
    """Yield the batches of a job with their statuses at the endpoint."""
    for batch in job.ledger().batches:
        status, done = "not submitted", 0
        if batch.id is not None:
            try:
                look = api.look(batch.id)
                status, done = look.status, look.done
            except BatchError as error:
                status = "not visible" if error.answer.error_type in HIDDEN else str(error)
        yield BatchListing(batch.label, read.stage.name, read.run, batch.requests, status, done)


def _cancel(job: BatchJob, api: BatchApi, ids: Sequence[str]) -> list[str]:
    """Cancel batches of a job, and return one line per batch that it cannot cancel.

    Named batches that have ended or are unknown to the endpoint are removed from the ledger.
    """
    failed = []
    for batch in job.ledger().batches:
        if ids and batch.label not in ids:
            continue
        try:
            is_over = batch.id is None or _has_ended(api, batch.id)
        except BatchError as error:
            is_over = error.answer.error_type in HIDDEN
            if not is_over or not ids:
                failed.append(f"{batch.id} cannot be cancelled: {error}")
        if is_over and ids:
            _forget(job, batch)
    return failed


def _has_ended(api: BatchApi, batch: str) -> bool:
    """Cancel a batch in progress. Return True for a batch that ended before."""
    look = api.look(batch)
    if not look.ended and look.status not in ENDING:
        api.cancel(batch)
    return look.ended


def _forget(job: BatchJob, batch: Batch) -> None:
    """Replace a batch with a new one of another name, which sends its requests again."""
    ledger = job.ledger()
    new = replace(batch, name=f"{ledger.made + 1:06d}", id=None, file=None)
    others = tuple(one for one in ledger.batches if one.name != batch.name)
    job.write_ledger(replace(ledger, batches=(*others, new), made=ledger.made + 1))


def batch_lines(found: Sequence[BatchListing], act: str, page: Page) -> Iterator[str]:
    """Yield one line per batch, and the next command."""
    if not found:
        yield "No batches"
    else:
        rows = [[one.batch, one.stage, one.run, f"{one.requests:,}", one.status, f"{one.done:,}"] for one in found]
        heads = ["batch", "stage", "run", "requests", "status", "done"]
        yield from table(heads, rows, page, names=5)
    if act != "list":
        yield "next: start the run again. It reads the completions and sends the other requests"
