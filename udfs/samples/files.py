"""Files of samples as streams: local or remote, compressed or not, in their encoding."""

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

# A read of an object store is a request: lines are taken from a megabyte at a time.
BUFFER_BYTES = 1 << 20
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2"}
# Without its byte order mark, where there is one
UTF_8 = "utf-8-sig"
# That of UTF-32 begins with that of UTF-16
MARKS = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
LONGEST_MARK = 4
# What `surrogateescape` makes of bytes that are not of the encoding, which has no other way to write them
UNDECODED = re.compile("[\udc80-\udcff]")


def is_remote(path: str) -> bool:
    """Whether a path has a scheme other than `file`.

    A file that exists by that very name is local, whatever its name looks like.

    >>> is_remote("s3://bucket/samples.jsonl"), is_remote("file:///data/samples.jsonl"), is_remote("samples.jsonl")
    (True, False, False)
    """
    return "://" in path and not path.startswith("file:/") and not os.path.exists(path)


def compression_of(path: str) -> str | None:
    """How a file is compressed, by its name: gzip, zstd, bzip2 or not at all.

    >>> compression_of("a.jsonl.gz"), compression_of("a.CSV.ZST"), compression_of("a.csv")
    ('gzip', 'zstd', None)
    """
    return next((name for ending, name in COMPRESSIONS.items() if path.lower().endswith(ending)), None)


def open_file(path: str) -> IO[bytes]:
    """A file's bytes as a buffered stream, uncompressed where its name says that it is compressed.

    Raises OSError where there is none. Whoever opens it closes it.
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
    """A file's text, without a byte order mark. Reading raises UnicodeError for bytes of another encoding."""
    return io.TextIOWrapper(cast(Any, open_file(path)), encoding=encoding, errors=errors, newline=newline)


def encoding_of(path: str, given: str | None = None) -> str:
    """The encoding of a file: what its byte order mark says, else the given one, else UTF-8."""
    with closing(open_file(path)) as stream:
        head = stream.read(LONGEST_MARK)
    return next((name for mark, name in MARKS if head.startswith(mark)), given or UTF_8)


def check_encoding(name: str) -> str:
    """The name of an encoding of text that Python knows. Raises ValueError for another.

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
    """Whether a line of bytes is a line of text, so that a file can be entered at any line.

    >>> cuts_lines("utf-8"), cuts_lines("cp1252"), cuts_lines("utf-16")
    (True, True, False)
    """
    return "\n".encode(encoding.removesuffix("-sig")) == b"\n"
