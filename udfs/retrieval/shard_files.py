"""Where the shards of an index lie: on a local disk as they are, elsewhere by way of a copy on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from untold.udfs.retrieval.catalog import COARSE, DEAD, SHARDS
from untold.udfs.retrieval.shards import FACTS_FILE, Shard, move_folder, read_dead
from untold.udfs.storage import Place


def shard_folder(index: str, name: str) -> str:
    """The folder of a shard, path or URI."""
    return f"{index}/{SHARDS}/{name}"


def open_shard(index: str, name: str, tombstones: str | None, cache: str) -> Shard:
    """A shard with its tombstones; of an index that is not on a local disk, a copy of it in `cache`.

    A copy is made once: a shard of one name never changes. Raises DamagedShardError.
    """
    dead = read_dead(_local_file(f"{index}/{DEAD}/{tombstones}", cache)) if tombstones else None
    return Shard(local_folder(shard_folder(index, name), cache), dead)


def local_folder(uri: str, cache: str) -> str:
    """A folder on this machine's disk with the files of `uri`."""
    source = Place(uri)
    if source.local is not None:
        return source.local
    place = os.path.join(cache, source.name)
    if not os.path.isdir(place):
        aside = os.path.join(cache, f".{source.name}-{uuid4().hex[:8]}")
        Place(aside).make_folder()
        try:
            source.copy(Place(aside))
            move_folder(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return place


def _local_file(uri: str, cache: str) -> str:
    """A file on this machine's disk with the bytes of `uri`, whose name is of its content."""
    source = Place(uri)
    if source.local is not None:
        return source.local
    place = Place(cache) / source.name
    if place.entry().kind is None:
        place.put_if_absent(source.read_bytes())
    return str(place)


@contextmanager
def coarse_of(index: str) -> Iterator[str]:
    """A local file with the empty index that every shard of an index begins as, for the time of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="untold-") as folder:
        yield _local_file(f"{index}/{COARSE}", folder)


@contextmanager
def place_to_write(index: str, name: str) -> Iterator[str]:
    """A local folder name under which a shard may be written; once the block ends it is where it belongs.

    On an object store nothing can be renamed: what says that a shard is whole is copied last.
    """
    place = Place(shard_folder(index, name))
    if place.local is not None:
        yield place.local
        return
    with tempfile.TemporaryDirectory(prefix="untold-") as folder:
        made = Place(folder) / name
        yield str(made)
        for entry in sorted(made.entries(), key=lambda entry: (entry.name == FACTS_FILE, entry.name)):
            entry.place.copy(place / entry.name)
