"""Schemes of URIs, and the variables that configure file systems. Imports no engine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from untold.udfs.errors import UserError

# Variables of the settings `storage.*`. Every process of a run reads them, on every machine
PREFIX = "UNTOLD_STORAGE__"
# Names of a scheme in other engines
ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
STORES = ("s3", "gs", "abfss")
SCHEMES = (*STORES, "hdfs")
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*):/")


class PlaceError(UserError, ValueError):
    """A path whose file system cannot be opened. The message has the reason."""


def environment_of(storage: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables for the section `storage` of the settings."""
    return {f"{PREFIX}{name.upper()}": json.dumps(value) for name, value in storage.items() if value not in (None, {})}


def variables() -> dict[str, str]:
    """Return the variables of this process that configure file systems."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)}


def scheme_of(path: str) -> str | None:
    """Return the scheme of a URI, the same for all its aliases, or None for a local path.

    >>> scheme_of("s3a://bucket/out"), scheme_of("/data/out"), scheme_of("file:///data/out")
    ('s3', None, None)
    """
    match = _SCHEME.match(path)
    return None if match is None or match[1] == "file" or os.path.exists(path) else ALIASES.get(match[1], match[1])


def complaint_of(path: str) -> str | None:
    """Return the problem with the scheme of a path, or None if the scheme is known or absent.

    >>> complaint_of("dbfs:/mnt/out"), complaint_of("s3a://bucket/out"), complaint_of("a:b/out")
    ('dbfs:/mnt/out has the unknown scheme dbfs. Give a local path, or a URI of s3, gs, abfss, hdfs', None, None)
    """
    scheme = scheme_of(path)
    if scheme is None or (scheme in SCHEMES and "://" in path):
        return None
    name, known = path.partition(":")[0], ", ".join(SCHEMES)
    return f"{path} has the unknown scheme {name}. Give a local path, or a URI of {known}"
