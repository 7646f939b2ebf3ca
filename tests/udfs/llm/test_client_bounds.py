"""Test endless bodies: the client reads them up to a limit, with and without compression, for every status."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import Iterator
from itertools import repeat

import pytest

from tests.udfs.llm.test_reading import completion
from untold.udfs.llm import client
from untold.udfs.llm.calls import Answer
from untold.udfs.llm.client import Endpoint

PIECE = 2**16
MANY = 8 * 2**20


def spaces(size: int) -> Iterator[bytes]:
    yield from repeat(b" " * PIECE, size // PIECE)


def zipped(size: int) -> Iterator[bytes]:
    """Yield this number of spaces, compressed with gzip to a thousandth of the size."""
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    yield from filter(None, map(packer.compress, spaces(size)))
    yield packer.flush()


def call(pieces: Iterator[bytes], headers: str = "", status: int = 200) -> tuple[Answer, int]:
    """Return the answer to a response in these pieces, and the number of bytes that the server could send."""
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} Status\r\n{headers}Connection: close\r\n\r\n".encode())
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
            writer.close()
        except ConnectionError:
            return

    async def ask() -> Answer:
        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", None, connections=1, timeout=60.0)
        try:
            return await endpoint.call("chat", b"{}")
        finally:
            await endpoint.close()
            listener.close()

    return asyncio.run(ask()), sent


@pytest.fixture
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 2**20)


def test_the_bound_is_64_megabytes() -> None:
    assert client.MOST_BYTES == 64 * 2**20


@pytest.mark.usefixtures("small_bound")
@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_body_that_is_too_long_is_not_read_to_its_end(status: int) -> None:
    answer, sent = call(spaces(256 * 2**20), status=status)
    assert (answer.error_type, answer.usage.estimated) == ("bad_body", True)
    assert sent < 128 * 2**20


@pytest.mark.usefixtures("small_bound")
@pytest.mark.parametrize("status", [200, 500])
def test_a_body_that_inflates_is_not_inflated_to_its_end(status: int) -> None:
    pieces = iter([b"".join(zipped(MANY * 8))])
    tracemalloc.start()
    answer, sent = call(pieces, "Content-Encoding: gzip\r\n", status)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.error_type == "bad_body"
    assert sent < 2**20
    assert peak < MANY


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
def test_a_compressed_completion_is_read(encoding: str) -> None:
    text = completion(choices=[{"finish_reason": "stop", "message": {"content": "word " * 10**6}}])
    answer, _ = call(iter([gzip.compress(text)]), f"Content-Encoding: {encoding}\r\n")
    assert (answer.error_type, len(answer.text or "")) == (None, 5 * 10**6)


@pytest.mark.parametrize("body", [b"no gzip", gzip.compress(completion())[:40]], ids=["other bytes", "cut"])
def test_a_body_that_cannot_be_decompressed_is_bad(body: bytes) -> None:
    assert call(iter([body]), "Content-Encoding: gzip\r\n")[0].error_type == "bad_body"


def test_an_unrequested_encoding_is_bad() -> None:
    assert call(iter([completion()]), "Content-Encoding: br\r\n")[0].error_type == "bad_body"


def test_only_gzip_is_requested() -> None:
    async def ask() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.close()

        received: list[bytes] = []
        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", None, connections=1, timeout=5.0)
        await endpoint.call("chat", b"{}")
        await endpoint.close()
        listener.close()
        return received[0].lower()

    assert b"\r\naccept-encoding: gzip\r\n" in asyncio.run(ask())
