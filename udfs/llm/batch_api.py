"""The batch API of an endpoint: what runs need of any, and OpenAI's, whose form many others have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import IO, Any, ClassVar, Final, Literal, Protocol

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

PURPOSE: Final = "batch"
# The only one that all have
WINDOW: Final = "24h"
# By which a batch is found again whose id was lost
NAME = "untold"
ENDED = frozenset({"completed", "expired", "cancelled", "failed"})
# Other spellings of statuses
SPELLINGS: Final = {"canceled": "cancelled", "canceling": "cancelling"}
# What an endpoint says of what the key does not see, or of what is gone
HIDDEN: Final = ("http_403", "http_404", "http_410")
# By which the package hands a response over before its body is read
_STREAMED: Final = "X-Stainless-Raw-Response"
# The endpoint has as many tokens waiting as the account may have
QUEUE_FULL = "token_limit_exceeded"


class BatchError(Exception):
    """What an endpoint said instead of doing what was asked: `answer`."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.answer = answer


@dataclass(frozen=True)
class BatchStatus:
    """A batch as its endpoint shows it.

    `results`: the ids of its files, that of answers first. `done`: how many requests have ended. `code`: of the error
    that kept all of them from being asked. `hint`: what the user has to do for it.
    """

    id: str
    status: str
    results: tuple[str, ...] = ()
    done: int = 0
    code: str | None = None
    hint: str = ""

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


def line_of(request_id: str, path: str, body: bytes) -> bytes:
    """The line of OpenAI's form that asks a request.

    >>> line_of("r1", "/v1/chat/completions", b'{"model":"m"}')
    b'{"custom_id":"r1","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}\\n'
    """
    return b'{"custom_id":"%s","method":"POST","url":"%s","body":%s}\n' % (request_id.encode(), path.encode(), body)


class NotYetError(Exception):
    """The endpoint cannot say or do it yet, and nothing is wrong: it is asked again later. The message says why."""


@dataclass(frozen=True)
class Sent:
    """A batch that is sent, or perhaps was.

    `name`: by which it is found again. `file`: of its requests, as the endpoint knows it. `api`: of its requests.
    `more` is kept beside the name. `since`: when it was sent first, in seconds of the epoch. `requests`: how many it
    has; `open` gives their lines. `others`: ids of batches that it is not.
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
    """What a batch API can do. Everything with a connection raises BatchError."""

    most_bytes: ClassVar[int]

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """The line that asks a request, for the body that a call would send."""

    def find_file(self, name: str, size: int) -> str | None:
        """The id of an uploaded file of this name and size."""

    def upload(self, name: str, file: IO[bytes]) -> str:
        """Uploads requests; the id of the file."""

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """The batch that was created, if it was. Raises NotYetError where that is not known yet."""

    def create(self, sent: Sent) -> BatchStatus:
        """Has the requests of a file answered. Raises NotYetError where the file is not ready."""

    def look(self, batch: str) -> BatchStatus:
        """How far a batch is."""

    def cancel(self, batch: str) -> BatchStatus:
        """Ends a batch; what is answered by then is kept."""

    def lines(self, file: str) -> Iterable[bytes]:
        """The lines of a file of results in OpenAI's form, the last one perhaps cut."""

    def remove(self, file: str) -> None:
        """Removes a file of requests or results."""

    def close(self) -> None:
        """Closes all connections."""


class OpenAiBatches:
    """The batch API of OpenAI, and of endpoints that have the same. Each call is sent once, as completions are.

    Source: the API reference of OpenAI, "Batch" and "Files".
    """

    most_bytes: ClassVar[int] = 200_000_000
    purpose: ClassVar[Any] = PURPOSE
    # In which the key is sent, and what is sent beside it where the settings say nothing else
    key_header: ClassVar[str] = BEARER
    headers: ClassVar[Mapping[str, str]] = NOTHING

    def __init__(self, settings: CallSettings) -> None:
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
        headers = {**self.headers, **settings.headers}
        self._options = sent_beside(self._client, key, self.key_header, headers, settings.query)
        self._sent: Any = {"extra_headers": self._options.get("headers"), "extra_query": self._options.get("params")}

    def path(self, api: str) -> str:
        """The address of an API as batches name it, whatever path the endpoint itself is at."""
        return f"/v1{PATHS[api]}"

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """As {custom_id, method, url, body}."""
        return line_of(request_id, self.path(api), body)

    def find_file(self, name: str, size: int) -> str | None:
        """By its name: one that broke off while it was uploaded has another size."""
        with heard():
            found = self._client.files.list(purpose=self.purpose, **self._sent)
            return next((file.id for file in _once(found) if (file.filename, file.bytes) == (name, size)), None)

    def upload(self, name: str, file: IO[bytes]) -> str:
        """In a stream, from where the file stands."""
        with heard():
            given: Any = (name, file, "application/jsonl")
            return self._client.files.create(file=given, purpose=self.purpose, **self._sent).id

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """By its metadata among all that the key sees, or by its file: some endpoints keep no metadata."""
        with heard():
            found = _once(self._client.batches.list(limit=100, **self._sent))
            own = (
                one for one in found if (one.metadata or {}).get(NAME) == sent.name or one.input_file_id == sent.file
            )
            return next(map(_look, own), None)

    def create(self, sent: Sent) -> BatchStatus:
        """With the name among the metadata."""
        metadata = {NAME: sent.name, **sent.more}
        path: Any = self.path(sent.api)
        with heard():
            return _look(
                self._client.batches.create(
                    endpoint=path, completion_window=WINDOW, input_file_id=sent.file, metadata=metadata, **self._sent
                )
            )

    def look(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        with heard():
            return _look(self._client.batches.retrieve(batch, **self._sent))

    def cancel(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        with heard():
            return _look(self._client.batches.cancel(batch, **self._sent))

    def lines(self, file: str) -> Iterator[bytes]:
        """In a stream."""
        return self._stream(f"/files/{file}/content")

    def remove(self, file: str) -> None:
        """As `BatchApi` says."""
        self._json("delete", f"/files/{file}")

    def close(self) -> None:
        """Closes all connections."""
        self._client.close()

    def _json(self, method: Literal["get", "post", "delete"], path: str, **given: Any) -> Any:
        """What the endpoint answers, read as JSON; `params` go into the address, all else is what the package takes."""
        sent = {name: {**self._options.get(name, {}), **given.pop(name, {})} for name in ("params", "headers")}
        options = {**self._options, **sent}
        with heard():
            response: Any = getattr(self._client, method)(
                path, cast_to=HttpxBinaryResponseContent, options=options, **given
            )
            return json.loads(response.content)

    def _stream(self, path: str) -> Iterator[bytes]:
        """The lines of a body as they come, the last one perhaps cut."""
        headers = {**self._options.get("headers", {}), "Accept": "application/binary", _STREAMED: "stream"}
        with heard():
            options: Any = {**self._options, "headers": headers}
            response: Any = self._client.get(path, cast_to=HttpxBinaryResponseContent, options=options)
            with closing(response):
                yield from lines_in(response.iter_bytes())


def lines_in(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a text that comes in chunks, the last one perhaps cut or empty."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    yield rest


def _once(found: Iterable[Any]) -> Iterator[Any]:
    """What a list has, page by page, up to an id that was seen: some endpoints give the first page for ever."""
    seen: set[str] = set()
    for one in found:
        if one.id in seen:
            return
        seen.add(one.id)
        yield one


def _look(batch: Any) -> BatchStatus:
    """What the package has read; endpoints leave fields out. Raises TypeError for what is no batch."""
    if not isinstance(batch.id, str):
        raise TypeError
    errors = batch.errors.data if batch.errors else None
    files = (batch.output_file_id, batch.error_file_id)
    counts = batch.request_counts
    done = (counts.completed or 0) + (counts.failed or 0) if counts else 0
    code = next((error.code for error in errors or () if error.code), None)
    status = str(batch.status).lower()
    return BatchStatus(batch.id, SPELLINGS.get(status, status), tuple(filter(None, files)), done, code)


@contextmanager
def heard() -> Iterator[None]:
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
    except (OpenAIError, AttributeError, TypeError, ValueError, LookupError) as error:
        raise BatchError(Answer(error_type="bad_body", error="the endpoint's answer is not a batch or file")) from error
