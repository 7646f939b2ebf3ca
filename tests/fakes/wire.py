"""Parse HTTP/1.1 requests from the bytes of a connection."""

from __future__ import annotations

import re

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)")


def parse_request(buffer: bytearray) -> tuple[bytes, bytes, int] | None:
    """Return head (with a line break at the end), body and size of the first request, or None if it is incomplete."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head, start = bytes(buffer[: end + 2]), end + 4
    lowered = head.lower()
    if b"\r\ntransfer-encoding: chunked" in lowered:
        return _parse_chunks(head, buffer, start)
    length = _CONTENT_LENGTH.search(lowered)
    stop = start + (int(length.group(1)) if length else 0)
    return (head, bytes(buffer[start:stop]), stop) if len(buffer) >= stop else None


def _parse_chunks(head: bytes, buffer: bytearray, start: int) -> tuple[bytes, bytes, int] | None:
    chunks: list[bytes] = []
    while (end := buffer.find(b"\r\n", start)) >= 0:
        size = int(buffer[start:end].partition(b";")[0], 16)
        start = end + 2 + size + 2
        if len(buffer) < start:
            return None
        if size == 0:
            return head, b"".join(chunks), start
        chunks.append(bytes(buffer[end + 2 : start - 2]))
    return None
