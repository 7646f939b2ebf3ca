"""Files of samples as streams, local or remote, compressed or not."""

from __future__ import annotations

import gzip
import io
import os
from typing import IO, Any, cast

from pyarrow import fs

from untold.udfs.files import open_filesystem

# A read of an object store is a request: lines are taken from a megabyte at a time.
BUFFER_BYTES = 1 << 20


def is_remote(path: str) -> bool:
    """Whether a path has a scheme other than `file`.

    A file that exists by that very name is local, whatever its name looks like.

    >>> is_remote("s3://bucket/samples.jsonl"), is_remote("file:///data/samples.jsonl"), is_remote("samples.jsonl")
    (True, False, False)
    """
    return "://" in path and not path.startswith("file:/") and not os.path.exists(path)


def is_gzip(path: str) -> bool:
    """Whether a file's name says that it is compressed."""
    return path.lower().endswith(".gz")


def split_uri(uri: str) -> tuple[fs.FileSystem, str]:
    """Arrow's file system of a URI, and the path in it as it stands: it may hold spaces, brackets and wildcards.

    Arrow's own parser of URIs takes a space or a bracket for a mistake, so that it sees scheme and host alone.
    """
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    system, base = open_filesystem(f"{scheme}://{host or '/'}")
    return system, f"{base.rstrip('/')}/{path}"


def open_file(path: str) -> IO[bytes]:
    """A file's bytes as a buffered stream, uncompressed where its name ends in .gz.

    Raises OSError where there is none. Whoever opens it closes it.
    """
    if is_remote(path):
        system, inner = split_uri(path)
        stream = cast(IO[bytes], io.BufferedReader(system.open_input_file(inner), BUFFER_BYTES))
    else:
        stream = open(path, "rb", BUFFER_BYTES)  # noqa: SIM115
    return cast(IO[bytes], gzip.open(stream)) if is_gzip(path) else stream


def open_text(path: str, newline: str | None = None) -> IO[str]:
    """A file's text, without a byte order mark, what is no UTF-8 replaced.

    A broken byte shall not end the reading of a file: it becomes U+FFFD, which samples may hold.
    """
    return io.TextIOWrapper(cast(Any, open_file(path)), encoding="utf-8-sig", errors="replace", newline=newline)
