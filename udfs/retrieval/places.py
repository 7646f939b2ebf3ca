"""Where the shards of an index lie: on a local disk as they are, elsewhere by way of a copy on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from pyarrow import fs

from untold.udfs.files import is_local, make_folder, open_filesystem
from untold.udfs.retrieval.catalog import COARSE, DEAD, SHARDS
from untold.udfs.retrieval.shards import FACTS_FILE, Shard, move_folder, read_dead


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
    system, path = open_filesystem(uri)
    if isinstance(system, fs.LocalFileSystem):
        return path
    place = os.path.join(cache, os.path.basename(path))
    if not os.path.isdir(place):
        aside = os.path.join(cache, f".{os.path.basename(path)}-{uuid4().hex[:8]}")
        make_folder(aside)
        try:
            fs.copy_files(path, aside, source_filesystem=system)
            move_folder(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return place


def _local_file(uri: str, cache: str) -> str:
    """A file on this machine's disk with the bytes of `uri`, whose name is of its content."""
    system, path = open_filesystem(uri)
    if isinstance(system, fs.LocalFileSystem):
        return path
    place = os.path.join(cache, os.path.basename(path))
    if not os.path.exists(place):
        make_folder(cache)
        aside = f"{place}.{uuid4().hex[:8]}"
        fs.copy_files(path, aside, source_filesystem=system)
        os.replace(aside, place)
    return place


@contextmanager
def coarse_of(index: str) -> Iterator[str]:
    """A local file with the empty index that every shard of an index begins as, for the time of a `with` block."""
    system, path = open_filesystem(f"{index}/{COARSE}")
    if isinstance(system, fs.LocalFileSystem):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="untold-") as folder:
        fs.copy_files(path, os.path.join(folder, COARSE), source_filesystem=system)
        yield os.path.join(folder, COARSE)


@contextmanager
def place_to_write(index: str, name: str) -> Iterator[str]:
    """A local folder name under which a shard may be written; once the block ends it is where it belongs.

    On an object store nothing can be renamed: what says that a shard is whole is copied last.
    """
    uri = shard_folder(index, name)
    if is_local(uri):
        yield open_filesystem(uri)[1]
        return
    with tempfile.TemporaryDirectory(prefix="untold-") as folder:
        yield os.path.join(folder, name)
        system, path = open_filesystem(uri)
        made = os.path.join(folder, name)
        for file in sorted(os.listdir(made), key=lambda file: (file == FACTS_FILE, file)):
            fs.copy_files(os.path.join(made, file), f"{path}/{file}", destination_filesystem=system)
