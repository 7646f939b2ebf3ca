"""The batch API of an endpoint: its records, its interface, and the client of all hosts with files and batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Final, Literal, Protocol

from openai import (
    APIConnectionError,
    APIStatusError,
    DefaultHttpxClient,
    HttpxBinaryResponseContent,
    OpenAI,
    OpenAIError,
)

from untold.udfs.llm.calls import BEARER, PATHS, Answer, CallSettings, is_loopback
from untold.udfs.llm.client import (
    BROKEN_STREAMS,
    NOTHING,
    ApiKey,
    KeyCommandError,
    read_connection_error,
    sent_beside,
)
from untold.udfs.llm.responses import read_status, status_in

Json = Mapping[str, Any]
# The only window that all hosts have
WINDOW: Final = "24h"
# The key of the metadata that identifies a batch without its id
NAME = "untold"
ENDED = frozenset({"completed", "expired", "cancelled", "failed"})
# Other names of statuses
SPELLINGS: Final = {
    "canceled": "cancelled",
    "canceling": "cancelling",
    "cancellation_requested": "cancelling",
    "success": "completed",
    "timeout_exceeded": "expired",
}
# The errors for items that the key cannot access or that are removed
HIDDEN: Final = ("http_403", "http_404", "http_410")
# With this header, the package returns a response before its body is read
_STREAMED: Final = "X-Stainless-Raw-Response"
# The error if the tokens that wait at the endpoint would exceed the limit of the account
QUEUE_FULL = "token_limit_exceeded"


class BatchError(Exception):
    """A failed call. `answer` is the error of the endpoint."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.answer = answer


@dataclass(frozen=True)
class BatchStatus:
    """The status of a batch at its endpoint.

    `results` are the ids of the files of results, completions first, and `done` is the number of requests that have
    ended. `code` is the error that failed the whole batch. `hint` is the next command of the user.
    """

    id: str
    status: str
    results: tuple[str, ...] = ()
    done: int = 0
    code: str | None = None
    hint: str = ""

    @property
    def ended(self) -> bool:
        """Return True if the results are complete."""
        return self.status in ENDED

    @property
    def refusal(self) -> Answer | None:
        """Return the error of a failed batch, or None. A full queue is no refusal."""
        if self.status != "failed" or self.code == QUEUE_FULL:
            return None
        error = {"error": {"code": self.code}}
        return read_status(status_in(error) or 400, json.dumps(error).encode(), {})


class NotYetError(Exception):
    """The endpoint cannot do this yet, which is no failure. The message has the reason."""


@dataclass(frozen=True)
class Sent:
    """A batch that is sent to an endpoint, or that an earlier start may have sent.

    `name` identifies it, `file` is the id of its file, and `more` is other metadata. `since` is the time when it was
    sent first, in seconds of the epoch. `requests` is their number, and `open` returns their lines. `others` are the
    ids of known batches.
    """

    name: str
    file: str
    api: str
    more: Mapping[str, str]
    since: float
    requests: int
    open: Callable[[], IO[bytes]]
    others: frozenset[str] = frozenset()


class BatchApi(Protocol):
    """The interface of batch APIs. Methods with a connection raise BatchError."""

    @property
    def most_bytes(self) -> int:
        """Return the maximum size of a file of requests."""

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """Return the line of a request with the body of a call."""

    def find_file(self, name: str, size: int) -> str | None:
        """Return the id of the uploaded file of this name and size, or None."""

    def upload(self, name: str, file: IO[bytes]) -> str:
        """Upload the file of requests, and return its id."""

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """Return the batch if it was created. Raises NotYetError if this is unknown yet."""

    def create(self, sent: Sent) -> BatchStatus:
        """Create a batch. Raises NotYetError if the file is not ready."""

    def look(self, batch: str) -> BatchStatus:
        """Return the status of a batch."""

    def cancel(self, batch: str) -> BatchStatus:
        """Cancel a batch. Its completions so far are kept."""

    def lines(self, file: str) -> Iterable[bytes]:
        """Yield the lines of a file of results in OpenAI's format. The last one can be incomplete."""

    def remove(self, file: str) -> None:
        """Remove a file of requests or results."""

    def close(self) -> None:
        """Close all connections."""


def line_of(request_id: str, path: str, body: bytes) -> bytes:
    """Return the line of a request in OpenAI's format.

    >>> line_of("r1", "/v1/chat/completions", b'{"model":"m"}')
    b'{"custom_id":"r1","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}\\n'
    """
    return b'{"custom_id":"%s","method":"POST","url":"%s","body":%s}\n' % (request_id.encode(), path.encode(), body)


def creation_of(sent: Sent, path: str) -> Json:
    """Return the body of the call that creates a batch, in OpenAI's format."""
    asked = {"endpoint": path, "completion_window": WINDOW, "input_file_id": sent.file}
    return asked | {"metadata": {NAME: sent.name, **sent.more}}


def status_of(batch: Json) -> BatchStatus:
    """Return the status of a batch in the format of OpenAI, Mistral or Together. Endpoints omit fields."""
    batch = batch.get("job", batch)
    if not isinstance(batch["id"], str):
        raise TypeError
    files = (batch.get(name) for name in ("output_file_id", "output_file", "error_file_id", "error_file"))
    counts, errors = batch.get("request_counts") or {}, batch.get("errors") or {}
    done = (counts.get("completed") or 0) + (counts.get("failed") or 0) + (batch.get("completed_requests") or 0)
    codes = (error.get("code") for error in errors.get("data") or ()) if isinstance(errors, Mapping) else ()
    status = str(batch["status"]).lower()
    code = next(filter(None, codes), None)
    return BatchStatus(batch["id"], SPELLINGS.get(status, status), tuple(filter(None, files)), done, code)


def next_by_cursor(page: Json, number: int) -> Json | None:
    """Return the parameters of the page after a page of OpenAI's lists, None after the last page."""
    return None if page.get("has_more") is False else {"after": page["data"][-1]["id"]}


@dataclass(frozen=True)
class Host:
    """A format of batches: the functions for lines, creation, status and results, and the paths of files and batches.

    `next_page` returns the parameters of the next page from a page of a list and the number of pages, or None. None
    in its place means that lists have one page. `listed` are the parameters of the first page of batches and of files.
    """

    line: Callable[[str, str, bytes], bytes] = line_of
    creation: Callable[[Sent, str], Json] = creation_of
    status: Callable[[Json], BatchStatus] = status_of
    result: Callable[[bytes], bytes] = bytes
    next_page: Callable[[Json, int], Json | None] | None = next_by_cursor
    listed: tuple[Json, Json] = ({"limit": 100}, {"purpose": "batch"})
    most_bytes: int = 200_000_000
    batches: str = "/batches"
    upload: str = "/files"
    upload_form: Callable[[str], Json] = lambda name: {"purpose": "batch"}
    results: str = "/files/{}/content"
    removed: str = "/files/{}"
    # The header of the key, and the default headers
    key_header: str = BEARER
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING)


class HostedBatches:
    """The batch API of a host. Each call is sent once, like completions.

    Source: the API reference of OpenAI, "Batch" and "Files".
    """

    def __init__(self, settings: CallSettings, host: Host) -> None:
        self.host, self.most_bytes = host, host.most_bytes
        known = ApiKey.of(settings)
        try:
            asyncio.run(known.renew())
        except KeyCommandError as error:
            raise BatchError(Answer(error_type="connection", error=str(error))) from error
        key = known.text
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
        headers = {**host.headers, **settings.headers}
        self._options = sent_beside(self._client, key, host.key_header, headers, settings.query)

    def path(self, api: str) -> str:
        """Return the path of an API in batches, which does not depend on the address of the endpoint."""
        return f"/v1{PATHS[api]}"

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """Return the line of a request in the format of the host."""
        return self.host.line(request_id, self.path(api), body)

    def find_file(self, name: str, size: int) -> str | None:
        """Find a file by its name and size. An interrupted upload has another size."""
        found = self._list("/files", self.host.listed[1])
        return next((str(one["id"]) for one in found if (one.get("filename"), one.get("bytes")) == (name, size)), None)

    def upload(self, name: str, file: IO[bytes]) -> str:
        """Upload a file as a stream."""
        given: Any = [("file", (name, file, "application/jsonl"))]
        headers = {"Content-Type": "multipart/form-data"}
        sent = self.json("post", self.host.upload, body=self.host.upload_form(name), files=given, headers=headers)
        with heard():
            return str(sent["id"])

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """Find a batch by its metadata or by its file, because some endpoints keep no metadata."""
        for batch in self._list(self.host.batches, self.host.listed[0]):
            with heard():
                files = (batch.get("input_file_id"), *(batch.get("input_files") or ()))
                if (batch.get("metadata") or {}).get(NAME) == sent.name or sent.file in files:
                    return self.host.status(batch)
        return None

    def create(self, sent: Sent) -> BatchStatus:
        """Create a batch of an uploaded file."""
        return self._status("post", self.host.batches, body=self.host.creation(sent, self.path(sent.api)))

    def look(self, batch: str) -> BatchStatus:
        """Return the status of a batch."""
        return self._status("get", f"{self.host.batches}/{batch}")

    def cancel(self, batch: str) -> BatchStatus:
        """Cancel a batch."""
        return self._status("post", f"{self.host.batches}/{batch}/cancel")

    def lines(self, file: str) -> Iterator[bytes]:
        """Yield the lines of results from a stream, in OpenAI's format."""
        return map(self.host.result, self.stream(self.host.results.format(file)))

    def remove(self, file: str) -> None:
        """Remove a file."""
        self.json("delete", self.host.removed.format(file))

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _status(self, method: Literal["get", "post"], path: str, **given: Any) -> BatchStatus:
        found = self.json(method, path, **given)
        with heard():
            return self.host.status(found)

    def _list(self, path: str, params: Json) -> Iterator[Any]:
        """Yield the items of a list. A page without a new item is the last: some endpoints repeat their first page."""
        seen: set[str] = set()
        turn: Json | None = {}
        pages = 0
        while turn is not None:
            page = self.json("get", path, params={**params, **turn})
            with heard():
                items = page if isinstance(page, list) else page.get("data") or ()
                new = [item for item in items if item["id"] not in seen]
                seen.update(item["id"] for item in new)
            yield from new
            pages += 1
            with heard():
                turn = self.host.next_page(page, pages) if new and self.host.next_page else None

    def json(self, method: Literal["get", "post", "delete"], path: str, **given: Any) -> Any:
        """Return the JSON of a response. `params` and `headers` are added to those of the settings."""
        sent = {name: {**self._options.get(name, {}), **given.pop(name, {})} for name in ("params", "headers")}
        options = {**self._options, **sent}
        with heard():
            response: Any = getattr(self._client, method)(
                path, cast_to=HttpxBinaryResponseContent, options=options, **given
            )
            return json.loads(response.content)

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the lines of a body while it arrives. The last one can be incomplete."""
        headers = {**self._options.get("headers", {}), "Accept": "application/binary", _STREAMED: "stream"}
        with heard():
            options: Any = {**self._options, "headers": headers}
            response: Any = self._client.get(path, cast_to=HttpxBinaryResponseContent, options=options)
            with closing(response):
                yield from lines_in(response.iter_bytes())


def lines_in(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text in chunks. The last one can be incomplete or empty."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    yield rest


@contextmanager
def heard() -> Iterator[None]:
    """Raise BatchError for the errors of the package and of unreadable responses."""
    try:
        yield
    except APIStatusError as error:
        response = error.response
        raise BatchError(read_status(error.status_code, response.content, response.headers)) from error
    except APIConnectionError as error:
        raise BatchError(read_connection_error(error)) from error
    except BROKEN_STREAMS as error:
        raise BatchError(Answer(error_type="bad_body", error="the endpoint's answer broke off")) from error
    except (OpenAIError, AttributeError, TypeError, ValueError, LookupError) as error:
        raise BatchError(Answer(error_type="bad_body", error="the endpoint's answer is not a batch or file")) from error
