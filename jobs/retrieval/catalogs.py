"""Indexes by their folders: what the manifest of one says that it is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from untold.jobs.run.manifest import read_manifest
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError
from untold.udfs.retrieval.catalog import Catalog, read_catalog


class UnusableIndexError(UserError):
    """A folder that is no index to search in. The message says what to do."""


def catalog_in(manifest: Mapping[str, Any] | None) -> Catalog | None:
    """The index that a manifest names; None for a build that never came to its end."""
    plain = None if manifest is None else manifest.get("index")
    return None if plain is None else read_catalog(plain)


def open_catalog(index: str) -> Catalog:
    """The index of a folder, as it was when it was last whole: one that is grown meanwhile stays searchable.

    Raises UnusableIndexError where there is none.
    """
    manifest = read_manifest(index)
    if manifest is None:
        raise UnusableIndexError(f"{index} holds no index; make one with: untold index --input CORPUS --output {index}")
    try:
        found = catalog_in(manifest)
    except (KeyError, TypeError) as error:
        raise UnusableIndexError(f"{index}/manifest.json is damaged; make the index anew with --overwrite") from error
    if found is None:
        raise UnusableIndexError(f"{index} holds no whole index; start untold index again, it goes on where it was")
    return found


def check_model(index: str, catalog: Catalog, model: str) -> None:
    """Raises UnusableIndexError for vectors of another model, which could be compared with nothing."""
    if catalog.making.model != model:
        raise UnusableIndexError(
            f"{index} was made with another embedding model or other settings of it; "
            "set embeddings.* as they were, or search with --retriever bm25"
        )


def cache_of(settings: Settings) -> str:
    """Where each machine keeps copies of shards that lie on no local disk."""
    return settings.index.cache or os.path.join(tempfile.gettempdir(), "untold-index")
