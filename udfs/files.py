"""Paths and URIs as Arrow's file systems take them."""

from __future__ import annotations

import re

from pyarrow import fs


def open_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """The Arrow file system of a path or URI, and the path in it; Spark's `s3a://` and `s3n://` are Arrow's `s3://`."""
    if "://" not in uri:
        return fs.LocalFileSystem(), uri
    system, path = fs.FileSystem.from_uri(re.sub("^s3[an]://", "s3://", uri))
    return system, path


def is_local(uri: str) -> bool:
    """Whether a path or URI is on a local disk, where a rename is atomic."""
    return isinstance(open_filesystem(uri)[0], fs.LocalFileSystem)
