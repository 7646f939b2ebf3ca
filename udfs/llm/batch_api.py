"""The batch API of an endpoint, as OpenAI has it: files up, batches created and looked at, results down."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol

from openai import APIConnectionError, APIStatusError, DefaultHttpxClient, OpenAI, OpenAIError

from untold.udfs.llm.calls import Answer, CallSettings
from untold.udfs.llm.client import BROKEN_STREAMS, is_loopback, read_connection_error, read_status, status_in
from untold.udfs.llm.headers import sent_beside

PURPOSE: Final = "batch"
# The only one that there is
WINDOW = "24h"
# By which a batch is found again whose id was lost
NAME = "untold"
ENDED = frozenset({"completed", "expired", "cancelled", "failed"})
# Other spellings of statuses
SPELLINGS: Final = {"canceled": "cancelled", "canceling": "cancelling"}
# What an endpoint says of what the key does not see, or of what is gone
HIDDEN: Final = ("http_403", "http_404", "http_410")
# The endpoint has as many tokens waiting as the account may have
QUEUE_FULL = "token_limit_exceeded"


class BatchError(Exception):
    """What an endpoint said instead of doing what was asked: `answer`."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.answer = answer


@dataclass(frozen=True)
class Look:
    """A batch as its endpoint shows it.

    `results`: the ids of its files, that of answers first. `done`: how many requests have ended. `code`: of the error
    that kept all of them from being asked.
    """

    id: str
    status: str
    results: tuple[str, ...] = ()
    done: int = 0
    code: str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.status in ENDED

    @property
    def refusal(self) -> Answer | None:
        """Why none of its requests was asked, but for a queue that was full."""
        if self.status != "failed" or self.code == QUEUE_FULL:
            return None
        error = {"error": {"code": self.code}}
        return read_status(status_in(error) or 400, json.dumps(error).encode(), {})


class BatchApi(Protocol):
    """What a batch API can do. Everything but `close` raises BatchError."""

    def find_file(self, name: str, size: int) -> str | None:
        """The id of an uploaded file of this name and size."""

    def upload(self, name: str, file: IO[bytes]) -> str:
        """Uploads requests; the id of the file."""

    def find_batch(self, name: str, file: str) -> Look | None:
        """The batch that was created under a name, or of a file."""

    def create(self, name: str, file: str, path: str, more: Mapping[str, str]) -> Look:
        """Has the requests of a file answered; `more` is kept beside the name."""

    def look(self, batch: str) -> Look:
        """How far a batch is."""

    def cancel(self, batch: str) -> Look:
        """Ends a batch; what is answered by then is kept."""

    def lines(self, file: str) -> Iterable[bytes]:
        """The lines of a file of results, the last one perhaps cut."""

    def close(self) -> None:
        """Closes all connections."""


class OpenAiBatches:
    """The batch API of OpenAI, and of endpoints that have the same. Each call is sent once, as completions are."""

    def __init__(self, settings: CallSettings) -> None:
        key = os.environ.get(settings.api_key_env or "") or None
        self._client = OpenAI(
            base_url=settings.base_url,
            api_key=key or "none",
            max_retries=0,
            timeout=settings.timeout,
            http_client=DefaultHttpxClient(
                headers={"Accept-Encoding": "gzip"},
                follow_redirects=False,
                trust_env=not is_loopback(settings.base_url),
            ),
        )
        options = sent_beside(self._client, key, headers=settings.headers, query=settings.query)
        self._sent: Any = {"extra_headers": options.get("headers"), "extra_query": options.get("params")}

    def find_file(self, name: str, size: int) -> str | None:
        """By its name: one that broke off while it was uploaded has another size."""
        with _heard():
            found = self._client.files.list(purpose=PURPOSE, **self._sent)
            return next((file.id for file in _once(found) if (file.filename, file.bytes) == (name, size)), None)

    def upload(self, name: str, file: IO[bytes]) -> str:
        """In a stream, from where the file stands."""
        with _heard():
            return self._client.files.create(file=(name, file, "application/jsonl"), purpose=PURPOSE, **self._sent).id

    def find_batch(self, name: str, file: str) -> Look | None:
        """By its metadata among all that the key sees, or by its file: some endpoints keep no metadata."""
        with _heard():
            found = _once(self._client.batches.list(limit=100, **self._sent))
            own = (one for one in found if (one.metadata or {}).get(NAME) == name or one.input_file_id == file)
            return next(map(_look, own), None)

    def create(self, name: str, file: str, path: str, more: Mapping[str, str]) -> Look:
        """With the name among the metadata."""
        metadata = {NAME: name, **more}
        asked: Any = {"endpoint": path, "completion_window": WINDOW, "input_file_id": file, "metadata": metadata}
        with _heard():
            return _look(self._client.batches.create(**asked, **self._sent))

    def look(self, batch: str) -> Look:
        """As `BatchApi` says."""
        with _heard():
            return _look(self._client.batches.retrieve(batch, **self._sent))

    def cancel(self, batch: str) -> Look:
        """As `BatchApi` says."""
        with _heard():
            return _look(self._client.batches.cancel(batch, **self._sent))

    def lines(self, file: str) -> Iterator[bytes]:
        """In a stream."""
        with _heard(), self._client.files.with_streaming_response.content(file, **self._sent) as response:
            rest = b""
            for chunk in response.iter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
            yield rest

    def close(self) -> None:
        """Closes all connections."""
        self._client.close()


def _once(found: Iterable[Any]) -> Iterator[Any]:
    """What a list has, page by page, up to an id that was seen: some endpoints give the first page for ever."""
    seen: set[str] = set()
    for one in found:
        if one.id in seen:
            return
        seen.add(one.id)
        yield one


def _look(batch: Any) -> Look:
    """What the package has read; endpoints leave fields out. Raises TypeError for what is no batch."""
    if not isinstance(batch.id, str):
        raise TypeError
    errors = batch.errors.data if batch.errors else None
    files = (batch.output_file_id, batch.error_file_id)
    counts = batch.request_counts
    done = (counts.completed or 0) + (counts.failed or 0) if counts else 0
    code = next((error.code for error in errors or () if error.code), None)
    status = str(batch.status).lower()
    return Look(batch.id, SPELLINGS.get(status, status), tuple(filter(None, files)), done, code)


@contextmanager
def _heard() -> Iterator[None]:
    """Turns what the package raises into BatchError."""
    try:
        yield
    except APIStatusError as error:
        response = error.response
        raise BatchError(read_status(error.status_code, response.content, response.headers)) from error
    except APIConnectionError as error:
        raise BatchError(read_connection_error(error)) from error
    except BROKEN_STREAMS as error:
        raise BatchError(Answer(error_type="bad_body", error="the endpoint's answer broke off")) from error
    except (OpenAIError, AttributeError, TypeError, ValueError) as error:
        raise BatchError(Answer(error_type="bad_body", error="the endpoint's answer is no batch or file")) from error
