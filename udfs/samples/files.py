"""Open files of samples as streams: local or remote, compressed or not, in their encoding."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import os
import re
from contextlib import closing
from typing import IO, Any, cast

import pyarrow as pa

from untold.udfs.storage import StoragePath

# Each read of an object store is a request, so lines are read from a buffer of one megabyte
BUFFER_BYTES = 1 << 20
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2"}
# Skips the byte order mark, if there is one
UTF_8 = "utf-8-sig"
# UTF-32 is first, because its mark begins with the mark of UTF-16
MARKS = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
LONGEST_MARK = 4
# The characters for bytes outside the encoding with `surrogateescape`
UNDECODED = re.compile("[\udc80-\udcff]")


def is_remote(path: str) -> bool:
    """Return True if a path has a scheme other than `file`.

    An existing file with this exact name is local.

    >>> is_remote("s3://bucket/samples.jsonl"), is_remote("file:///data/samples.jsonl"), is_remote("samples.jsonl")
    (True, False, False)
    """
    return "://" in path and not path.startswith("file:/") and not os.path.exists(path)


def compression_of(path: str) -> str | None:
    """Return the compression of a file by its name: gzip, zstd, bzip2 or None.

    >>> compression_of("a.jsonl.gz"), compression_of("a.CSV.ZST"), compression_of("a.csv")
    ('gzip', 'zstd', None)
    """
    return next((name for ending, name in COMPRESSIONS.items() if path.lower().endswith(ending)), None)


def open_file(path: str) -> IO[bytes]:
    """Open a file as a buffered stream of bytes, decompressed according to its name. The caller closes it.

    Raises OSError if it does not exist.
    """
    if is_remote(path):
        stream = cast(IO[bytes], io.BufferedReader(StoragePath(path).open(), BUFFER_BYTES))
    else:
        stream = open(path, "rb", BUFFER_BYTES)  # noqa: SIM115
    match compression_of(path):
        case "gzip":
            return cast(IO[bytes], gzip.open(stream))
        case "bzip2":
            return cast(IO[bytes], io.BufferedReader(bz2.open(stream), BUFFER_BYTES))
        case "zstd":
            return cast(IO[bytes], io.BufferedReader(pa.CompressedInputStream(stream, "zstd"), BUFFER_BYTES))
    return stream


def open_text(path: str, encoding: str = UTF_8, *, newline: str | None = None, errors: str = "strict") -> IO[str]:
    """Open a file as text, without a byte order mark. Reading raises UnicodeError for another encoding."""
    return io.TextIOWrapper(cast(Any, open_file(path)), encoding=encoding, errors=errors, newline=newline)


def encoding_of(path: str, given: str | None = None) -> str:
    """Return the encoding of a file: from its byte order mark, otherwise the given encoding, otherwise UTF-8."""
    with closing(open_file(path)) as stream:
        head = stream.read(LONGEST_MARK)
    return next((name for mark, name in MARKS if head.startswith(mark)), given or UTF_8)


def check_encoding(name: str) -> str:
    """Return Python's name of a text encoding. Raises ValueError for an unknown encoding.

    >>> check_encoding("Latin-1")
    'iso8859-1'
    """
    try:
        codecs.lookup(name)
        b"".decode(name)
        "a".encode(name)
    except (LookupError, ValueError):
        raise ValueError(f"unknown encoding {name!r}; give one such as utf-8, cp1252, latin-1 or utf-16") from None
    return codecs.lookup(name).name


def cuts_lines(encoding: str) -> bool:
    """Return True if a line of bytes is a line of text, so that reading can start at any line.

    >>> cuts_lines("utf-8"), cuts_lines("cp1252"), cuts_lines("utf-16")
    (True, True, False)
    """
    return "\n".encode(encoding.removesuffix("-sig")) == b"\n"
