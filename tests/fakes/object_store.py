"""An S3 with one bucket on loopback, by moto. It supports conditions, counts requests, and fails on demand."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import sleep
from typing import Any, NamedTuple

from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import FakeBucket, s3_backends
from werkzeug.serving import make_server

from untold.udfs.schemes import environment_of

BUCKET = "bucket"
KEYS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "a secret of tests"}
SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
_SIGNED = re.compile(f"Credential={KEYS['AWS_ACCESS_KEY_ID']}/")


class Request(NamedTuple):
    """A request and the status of its response. `key` is empty for a request about the bucket."""

    method: str
    key: str
    query: str
    status: int


class Fault(NamedTuple):
    """The fault of a request: a delay, a 503 or 403, a cut body, or a lost response."""

    seconds: float = 0.0
    refused: bool = False
    denied: bool = False
    cut: bool = False
    lost: bool = False


class ObjectStore:
    """The handle of the server for tests. `settings` are the settings of the section `storage`.

    `requests` are all requests. `fault` is called with the method and key of each request before the response.
    `conditional`: the server supports the conditions of writes; otherwise it ignores them.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.fault: Callable[[str, str], Fault | None] = lambda method, key: None
        self.conditional = True
        self._lock = threading.Lock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_QuietHandler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.settings: Mapping[str, Any] = {"endpoint": self.endpoint, "region": "eu-west-1"}

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of a process that uses the store."""
        return {**environment_of(self.settings), **KEYS}

    @property
    def objects(self) -> dict[str, bytes]:
        """Return the content of each object by its key."""
        return {key: self._bucket.keys[key].value for key in sorted(self._bucket.keys)}

    def entry(self, key: str) -> Any:
        """Return moto's record of an object, which tests may change."""
        return self._bucket.keys[key]

    def put(self, key: str, content: bytes) -> None:
        """Create an object."""
        _backend().put_object(BUCKET, key, content)

    def __enter__(self) -> ObjectStore:
        _backend().create_bucket(BUCKET, self.settings["region"])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        _backend().reset()

    @property
    def _bucket(self) -> FakeBucket:
        return _backend().buckets[BUCKET]

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ["QUERY_STRING"]
        key = environ["PATH_INFO"].removeprefix(f"/{BUCKET}").lstrip("/")
        fault = self.fault(method, key) or Fault()
        sleep(fault.seconds)

        def begin(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            self.requests.append(Request(method, key, query, int(status.split()[0])))
            return start(status, headers, *rest)

        if not fault.refused and not _SIGNED.search(environ.get("HTTP_AUTHORIZATION", "")):
            begin("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        if fault.denied:
            begin("403 Forbidden", [("Content-Length", str(len(DENIED)))])
            return [DENIED]
        if fault.refused:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            begin("503 Slow Down", [("Content-Length", str(len(SLOW_DOWN)))])
            return [SLOW_DOWN]
        if not self.conditional:
            environ = {name: value for name, value in environ.items() if name not in _CONDITIONS}
        # The test of a condition and the write are atomic, because moto would test first, and write later
        with self._lock:
            body = b"".join(self._moto(environ, (lambda *_: None) if fault.lost else begin))
        if fault.lost:
            begin("500 Internal Server Error", [("Content-Length", "0")])
            return [b""]
        return _half(body) if fault.cut and method == "GET" and len(body) > 1 else [body]


class _QuietHandler(MotoRequestHandler):
    """A handler that does not log requests."""

    def log(self, type: str, message: str, *args: Any) -> None:
        """Write no log."""


def _half(body: bytes) -> Iterator[bytes]:
    """Yield the first half of a body, then raise an error that makes the server close the connection."""
    yield body[: len(body) // 2]
    raise ConnectionAbortedError


def _backend() -> Any:
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
