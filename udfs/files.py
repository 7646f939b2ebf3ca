"""Paths and URIs as Arrow's file systems take them, and files that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pyarrow import fs

# What file systems answer that cannot sync a folder; they keep the names of a folder in order by themselves.
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


def open_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """The Arrow file system of a path or URI, and the path in it; Spark's `s3a://` and `s3n://` are Arrow's `s3://`.

    Raises ValueError for a scheme that Arrow does not know. Nothing is opened yet, and nothing need exist.

    >>> open_filesystem("/data/out")[1]
    '/data/out'
    """
    if "://" not in uri:
        return fs.LocalFileSystem(), uri
    system, path = fs.FileSystem.from_uri(re.sub("^s3[an]://", "s3://", uri))
    return system, path


def write_bytes(uri: str, content: bytes) -> None:
    """Writes a file, and on a local disk the folder it lies in, so that readers see the old one or the new one.

    Raises OSError where it cannot be written. An object store has no folders to make.
    """
    system, path = open_filesystem(uri)
    if isinstance(system, fs.LocalFileSystem):
        make_folder(os.path.dirname(path) or ".")
    write_whole(uri, lambda stream: stream.write(content))


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Gives the path to an OSError that names no file, as that of a full disk does."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def write_whole(uri: str, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes a file that readers see as it was before or whole, and that a power cut leaves so once this returns.

    Locally aside, synced, renamed, and the folder synced; an object store takes it in one put. What is left of a
    write that fails is removed, so that a full disk is no fuller for it. Raises OSError.
    """
    system, path = open_filesystem(uri)
    if not isinstance(system, fs.LocalFileSystem):
        with system.open_output_stream(path) as stream:
            write(stream)
        return
    folder, name = os.path.split(path)
    # In the same folder, as a rename is atomic within one file system alone; hidden from those who list it.
    aside = os.path.join(folder, f".{name}.tmp")
    try:
        with naming(path), open(aside, "wb") as file:
            write(file)
            file.flush()
            # The content before its name: after a power cut, a name could else stand over nothing.
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    sync_folder(folder or ".")


def make_folder(uri: str) -> None:
    """Makes a folder and those above it; on a local disk their names last through a power cut.

    Each new folder is synced in the one above it: a file that was synced is lost with a folder whose name was not.
    """
    system, path = open_filesystem(uri)
    if not isinstance(system, fs.LocalFileSystem):
        system.create_dir(path, recursive=True)
        return
    path = os.path.abspath(path)
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.makedirs(folder, exist_ok=True)
        sync_folder(os.path.dirname(folder))


def sync_folder(path: str) -> None:
    """Makes the names in a local folder last through a power cut, where its file system can.

    Raises OSError for a disk that fails; a file system that knows no such thing is passed over.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def is_local(uri: str) -> bool:
    """Whether a path or URI is on a local disk, where a rename is atomic.

    >>> is_local("/data/out"), is_local("file:///data/out")
    (True, True)
    """
    return isinstance(open_filesystem(uri)[0], fs.LocalFileSystem)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file of this machine; none where there is no such file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
