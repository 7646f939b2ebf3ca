"""Test helpers for batch jobs, with a batch endpoint in this process that can stop at any call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fakes.answers import Said
from tests.fakes.batches import Batch as FakeBatch
from tests.fakes.batches import FakeBatches, LostError
from tests.fakes.replies import completion_body
from tests.udfs.llm.askers import SETTINGS, STAGE, requests
from untold.jobs.inference.backends.batch_jobs import BatchJob, Watch, batch_spool
from untold.jobs.inference.backends.batch_submission import BatchSubmitter
from untold.jobs.inference.backends.job import Job, JobOutcome
from untold.jobs.settings.sections import BatchSettings
from untold.udfs.llm.batch_api import BatchApi, BatchError, BatchStatus, Sent, line_of
from untold.udfs.llm.calls import Answer, CallContext
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.responses import read_status
from untold.udfs.llm.retrying import ASKED_AGAIN

HOW = BatchSettings(requests=4, poll_seconds=0.001, longest_poll_seconds=0.001, settle_seconds=0.0)
ROWS = 10
Row = dict[str, Any]


class KilledError(Exception):
    """The process stops at this call."""


@dataclass
class Endpoint:
    """An endpoint that returns completions for batches.

    `asked` counts the requests, and `said` overrides some completions.
    """

    asked: Counter[str] = field(default_factory=Counter)
    said: Mapping[str, Callable[[int], tuple[int, Any]]] = field(default_factory=dict)

    def __call__(self, path: str, raw: bytes) -> tuple[int, Any]:
        body = json.loads(raw)
        text = json.loads(body["messages"][-1]["content"])["text"]
        self.asked[text] += 1
        if text in self.said:
            return self.said[text](self.asked[text])
        return 200, completion_body(body, True, Said(f"A summary of {text}"), "stop", (7, 3))


@dataclass
class Api:
    """A `BatchApi` in this process. It fails before call number `dies`, or after it if the number ends in one half."""

    most_bytes: ClassVar[int] = 10**9

    fake: FakeBatches
    key: str = ""
    dies: float = float("inf")
    calls: int = 0

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        return line_of(request_id, "/v1/chat/completions", body)

    def find_file(self, name: str, size: int) -> str | None:
        found = {one: (known, len(content)) for one, (known, content) in self.fake.files.items()}
        return self._call(lambda: next((one for one, known in found.items() if known == (name, size)), None))

    def upload(self, name: str, file: IO[bytes]) -> str:
        return self._call(lambda: self.fake.upload(name, file.read()))

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        listed = [self.fake.made[shown["id"]] for shown in self.fake.listed(self.key)]
        seen = [one for one in listed if one.metadata["untold"] == sent.name]
        return self._call(lambda: next((self._look(one) for one in seen), None))

    def create(self, sent: Sent) -> BatchStatus:
        metadata = {"untold": sent.name, **sent.more}
        return self._call(lambda: self._look(self.fake.create(sent.file, metadata, self.key)))

    def look(self, batch: str) -> BatchStatus:
        if self.fake.made[batch].key != self.key:
            raise BatchError(read_status(404, b"{}", {}))
        return self._call(lambda: self._look(self.fake.made[batch]))

    def cancel(self, batch: str) -> BatchStatus:
        self.fake.made[batch].cancelled = True
        return self.look(batch)

    def lines(self, file: str) -> Iterable[bytes]:
        return self._call(lambda: self.fake.content(file).split(b"\n"))

    def remove(self, file: str) -> None:
        return self._call(lambda: self.fake.remove(file))

    def close(self) -> None:
        """Do nothing, because there are no resources to close."""

    def _look(self, batch: FakeBatch) -> BatchStatus:
        shown = self.fake.show(batch)
        files = tuple(filter(None, (shown["output_file_id"], shown["error_file_id"])))
        return BatchStatus(batch.id, shown["status"], files, 0, batch.deeds.get("fail"))

    def _call(self, act: Callable[[], Any]) -> Any:
        self.calls += 1
        if self.calls == self.dies:
            raise KilledError
        try:
            done = act()
        except KeyError:
            raise BatchError(read_status(404, b"{}", {})) from None
        except LostError:
            raise BatchError(Answer(error_type="http_500", error="HTTP 500")) from None
        if self.calls == self.dies - 0.5:
            raise KilledError
        return done


def left_job(
    folder: Path, asked: Sequence[tuple[str, Mapping[str, Any]]] = (), stage: Stage = STAGE, **changes: Any
) -> BatchJob:
    """Return a job in the state after a run, with three requests per file."""
    store = folder / f"store-{len(list(folder.iterdir()))}"
    job = BatchJob(batch_spool(str(store)).job("stage-run1").place)
    Path(job.requests).mkdir(parents=True)
    rows = [{"request_id": one, **variables} for one, variables in asked or requests(ROWS)]
    for first in range(0, len(rows), 3):
        pq.write_table(pa.Table.from_pylist(rows[first : first + 3]), f"{job.requests}/part-{first:03}.parquet")
    job.publish(Job("", "", "run1", CallContext(stage), replace(SETTINGS, **{"base_url": "http://host/v1", **changes})))
    return job


def deliver(
    job: BatchJob, api: BatchApi, how: BatchSettings = HOW, *, stopped: str | None = None, **options: Any
) -> JobOutcome:
    return delivery(job, api, how, stopped)[0].run(**options)


def delivery(
    job: BatchJob, api: BatchApi, how: BatchSettings = HOW, stopped: str | None = None
) -> tuple[BatchSubmitter, list[str]]:
    """Return the submitter of a job and the list of its notes."""
    notes: list[str] = []
    return BatchSubmitter(job, job.read(), api, how, Watch(lambda: stopped, lambda _: None, notes.append)), notes


def rows_of(job: BatchJob) -> list[Row]:
    """Return the written rows, without the completions of retried requests."""
    files = sorted(Path(job.completions).glob("*.parquet"))
    rows: list[Row] = [row for file in files for row in pq.read_table(file).to_pylist()]
    return [row for row in rows if row["error_type"] != ASKED_AGAIN]


def is_whole(job: BatchJob) -> bool:
    """Return True if each request has exactly one row and no error."""
    found = rows_of(job)
    ids = [row["request_id"] for row in found]
    return sorted(ids) == [one for one, _ in requests(ROWS)] and not any(row["error_type"] for row in found)
