"""The requests of a batch job as lines of batches: what each takes, and files of them. Imports no pyspark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import IO, Any

from untold.jobs.asking.batch_jobs import Batch, BatchJob, Line
from untold.jobs.asking.job import Job
from untold.udfs.llm.batch_api import BatchApi
from untold.udfs.llm.batch_results import remembered, resumed
from untold.udfs.llm.calls import Request
from untold.udfs.llm.pacing import CompletionSizes
from untold.udfs.llm.script import Script

Left = tuple[str, dict[str, Any], Line]
"""What is kept of a request until it is in another batch: id, what is known of it, what it takes."""


@dataclass(frozen=True)
class Lines:
    """The lines of a job's requests, in the form of an endpoint."""

    spooled: BatchJob
    job: Job
    api: BatchApi
    script: Script
    sizes: CompletionSizes

    def bodies(self, batch: Batch) -> Iterator[tuple[Request, bytes | None]]:
        """The requests of a batch with their bodies; None for one whose template cannot be filled in."""
        for row in self.spooled.rows(batch):
            request = resumed(*row)
            yield request, self.script.render(request)[0]

    def line(self, body: bytes | None) -> Line:
        """What a request takes of a batch. One that cannot be asked takes nothing."""
        if body is None:
            return Line(0, 0, 0, 0.0)
        prompt = self.script.tokens_of(len(body))
        most = prompt + self.sizes.expected
        # With an id as long as those of requests
        size = len(self.api.line("0" * 32, self.job.stage.api, body))
        return Line(size, prompt, most, self.cost(1, prompt, most))

    def left(self, request: Request) -> Left:
        """What is kept of a request."""
        return request.request_id, remembered(request), self.line(self.script.render(request)[0])

    def cost(self, requests: int, tokens: int, most: int) -> float:
        """What so many requests cost at most, by the tokens of their prompts, and of all."""
        return self.job.settings.prices.cost(tokens, most - tokens, requests) or 0.0

    def open(self, batch: Batch) -> IO[bytes]:
        """A file of the lines of a batch, at its beginning."""
        file = tempfile.TemporaryFile()  # noqa: SIM115
        for request, body in self.bodies(batch):
            if body is not None:
                file.write(self.api.line(request.request_id, self.job.stage.api, body))
        file.seek(0)
        return file


def digest_and_size(file: IO[bytes]) -> tuple[str, int]:
    """The digest of a file, and its bytes; it stands at its beginning again."""
    digest = blake2b(digest_size=16)
    for chunk in iter(lambda: file.read(2**20), b""):
        digest.update(chunk)
    size = file.tell()
    file.seek(0)
    return digest.hexdigest(), size
