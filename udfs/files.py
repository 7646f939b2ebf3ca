"""Paths and URIs as Arrow's file systems take them."""

from __future__ import annotations

import os
import re

from pyarrow import fs


def open_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """The Arrow file system of a path or URI, and the path in it; Spark's `s3a://` and `s3n://` are Arrow's `s3://`."""
    if "://" not in uri:
        return fs.LocalFileSystem(), uri
    system, path = fs.FileSystem.from_uri(re.sub("^s3[an]://", "s3://", uri))
    return system, path


def write_bytes(uri: str, content: bytes) -> None:
    """Writes a file, and on a local disk the folder it lies in, so that readers see the old one or the new one."""
    system, path = open_filesystem(uri)
    local = isinstance(system, fs.LocalFileSystem)
    if local:
        system.create_dir(os.path.dirname(path), recursive=True)
    target = f"{path}.tmp" if local else path
    with system.open_output_stream(target) as stream:
        stream.write(content)
    if local:
        system.move(target, path)


def is_local(uri: str) -> bool:
    """Whether a path or URI is on a local disk, where a rename is atomic."""
    return isinstance(open_filesystem(uri)[0], fs.LocalFileSystem)
