"""An S3 of one bucket on loopback, over real HTTP: objects whole, listed, in parts, removed. It knows no rights."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from time import time
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class ObjectStore:
    """The server as a test holds it: `objects` by key, `options` as the setting `storage.options` has them.

    `keys`: the variables that they name.
    """

    keys: Mapping[str, str] = {"OBJECT_STORE_ID": "someone", "OBJECT_STORE_SECRET": "a secret of tests"}

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.options: Mapping[str, Mapping[str, Any]] = {
            "s3": {
                "endpoint_override": f"127.0.0.1:{self._server.server_port}",
                "scheme": "http",
                "region": "eu-west-1",
                "access_key_env": "OBJECT_STORE_ID",
                "secret_key_env": "OBJECT_STORE_SECRET",
            }
        }

    def __enter__(self) -> ObjectStore:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, key: str, query: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and body of a request that is about an object or the bucket."""
        if not key:
            return (
                (200, self._listing(query)) if method == "GET" and "list-type" in query else self._bucket(query, body)
            )
        if method == "POST" and "uploads" in query:
            self.parts[key] = {}
            return 200, _xml("InitiateMultipartUploadResult", f"<UploadId>{escape(key)}</UploadId>")
        if method == "POST":
            self.objects[key] = b"".join(part for _, part in sorted(self.parts.pop(key).items()))
            return 200, _xml("CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key><ETag>any</ETag>")
        if method == "PUT" and "partNumber" in query:
            self.parts[key][int(query["partNumber"])] = body
        elif method == "PUT":
            self.objects[key] = body
        elif method == "DELETE":
            self.objects.pop(key, None)
            return 204, b""
        elif key not in self.objects:
            return 404, _xml("Error", "<Code>NoSuchKey</Code>")
        return 200, self.objects.get(key, b"") if method == "GET" else b""

    def _bucket(self, query: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """A request about the bucket itself: several removals, or whether it is there."""
        if "delete" in query:
            for key in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                self.objects.pop(key, None)
            return 200, _xml("DeleteResult", "")
        return 200, b""

    def _listing(self, query: Mapping[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        folders, lines = set(), []
        for key, content in sorted(self.objects.items()):
            head, found, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
            if key.startswith(prefix) and found:
                folders.add(f"{prefix}{head}{delimiter}")
            elif key.startswith(prefix):
                stamp = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                lines.append(f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>{stamp}</Contents>")
        lines += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        return _xml(
            "ListBucketResult", f"<KeyCount>{len(lines)}</KeyCount><IsTruncated>false</IsTruncated>{''.join(lines)}"
        )


def _xml(name: str, content: str) -> bytes:
    return f'<?xml version="1.0"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}</{name}>'.encode()


def _read_chunks(stream: IO[bytes]) -> bytes:
    """The content of a body in chunks, HTTP's or Amazon's: each after its size in hex. Trailers are left out."""
    pieces = []
    while size := int(stream.readline().partition(b";")[0], 16):
        pieces.append(stream.read(size))
        stream.readline()
    while stream.readline().strip():
        pass
    return b"".join(pieces)


def _handler_of(store: ObjectStore) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = _read_chunks(self.rfile)
            if self.headers.get("Content-Encoding") == "aws-chunked":
                body = _read_chunks(BytesIO(body))
            if source := self.headers.get("x-amz-copy-source"):
                body = store.objects[unquote(source).lstrip("/").partition("/")[2]]
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            signed = "Credential=someone/" in (self.headers.get("Authorization") or "")
            with store.lock:
                status, content = store.answer(self.command, key, query, body) if signed else (403, b"")
                size = len(store.objects.get(key, b"")) if self.command == "HEAD" and bucket == BUCKET else len(content)
            wanted = _RANGE.fullmatch(self.headers.get("Range") or "")
            if wanted and status == 200:
                end = int(wanted[2]) + 1 if wanted[2] else size
                status, content = 206, content[int(wanted[1]) : end]
                size = len(content)
            self.send_response(status)
            self.send_header("Content-Length", str(size))
            self.send_header("ETag", f'"{md5(body, usedforsecurity=False).hexdigest()}"')
            self.send_header("Last-Modified", formatdate(time(), usegmt=True))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    return Handler
