"""How notebooks and scripts read what a run wrote: `open_run(DIR)`, without Spark, wherever pyarrow reads.

run = open_run("out")
run.summary().to_pylist()
run.dataset("scores").head(10)  # a table may be larger than memory
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from untold.udfs.errors import UserError
from untold.udfs.files import open_filesystem
from untold.udfs.hints import did_you_mean, near_misses

MANIFEST = "manifest.json"


class UnreadableRunError(UserError):
    """A directory that holds no run that can be read, or a table that the run does not have."""


@dataclass(frozen=True)
class Run:
    """The output of one run: its manifest and its tables. Made by `open_run`."""

    directory: str
    manifest: Mapping[str, Any]
    filesystem: fs.FileSystem

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables present, sorted."""
        entries = self.filesystem.get_file_info(fs.FileSelector(""))
        folders = [entry.path for entry in entries if entry.type == fs.FileType.Directory]
        return tuple(sorted(name for name in folders if not _hidden(name) and self._files(name)))

    def dataset(self, name: str) -> ds.Dataset:
        """The table as a `pyarrow.dataset.Dataset`, for tables larger than memory.

        Its schema is the union of its files' schemas. Raises `UnreadableRunError` for a table that is not there.
        """
        if name not in self.tables:
            near = did_you_mean(near_misses(name, self.tables, most=3), quote="")
            hint = near or f"it has {', '.join(self.tables) or 'none'}"
            raise UnreadableRunError(f"{self.directory}: no table {name!r}; {hint}")
        factory = ds.FileSystemDatasetFactory(self.filesystem, self._files(name), ds.ParquetFileFormat())
        return factory.finish(factory.inspect())

    def table(self, name: str) -> pa.Table:
        """The whole table in memory, with the columns of the contract. Raises as `dataset`."""
        return self.dataset(name).to_table()

    def summary(self) -> pa.Table:
        """The table `summary`, sorted: for each metric the row of all samples first, then one a system."""
        return self.table("summary").sort_by([("metric", "ascending"), ("level", "ascending"), ("system", "ascending")])

    def _files(self, name: str) -> list[str]:
        """The Parquet files of a table, sorted, so that its rows have one order."""
        entries = self.filesystem.get_file_info(fs.FileSelector(name))
        # Spark leaves _SUCCESS and checksums beside its files
        files = [entry.path for entry in entries if entry.type == fs.FileType.File and entry.extension == "parquet"]
        return sorted(path for path in files if not _hidden(path))


def open_run(directory: str | os.PathLike[str], *, allow_running: bool = False) -> Run:
    """The run whose output is `directory`: a local path or a URI that `pyarrow.fs` knows.

    Raises `UnreadableRunError` where there is no readable manifest.json, and where its status is `running` unless
    `allow_running`: the tables beside such a manifest may be missing, half written or those of an earlier start.
    """
    place = os.fspath(directory)
    filesystem = _filesystem(place)
    manifest = _read_manifest(place, filesystem)
    # A killed run leaves this status too: it could not write another
    if manifest.get("status") == "running" and not allow_running:
        raise UnreadableRunError(
            f"{place}: the run has not ended, or was killed; wait for it or start it again, "
            "or read what is there with allow_running=True"
        )
    return Run(place, manifest, filesystem)


def _filesystem(place: str) -> fs.FileSystem:
    """A file system whose root is the run's directory."""
    if "://" not in place:
        return fs.SubTreeFileSystem(os.path.abspath(os.path.expanduser(place)), fs.LocalFileSystem())
    try:
        base, path = open_filesystem(place)
    except (pa.ArrowInvalid, OSError) as error:
        raise UnreadableRunError(f"{place}: {error}") from error
    return fs.SubTreeFileSystem(path, base)


def _read_manifest(place: str, filesystem: fs.FileSystem) -> dict[str, Any]:
    """The manifest. Raises UnreadableRunError where there is none, or nothing that can be read as one."""
    try:
        with filesystem.open_input_file(MANIFEST) as stream:
            manifest = json.loads(stream.read())
    except FileNotFoundError as error:
        raise UnreadableRunError(
            f"{place}: no {MANIFEST}, so this is not the output of a run; give the directory that --output named"
        ) from error
    except (ValueError, OSError) as error:
        raise UnreadableRunError(f"{place}: {MANIFEST} cannot be read ({type(error).__name__})") from error
    if not isinstance(manifest, dict):
        raise UnreadableRunError(f"{place}: {MANIFEST} holds no JSON object")
    return manifest


def _hidden(path: str) -> bool:
    """Whether readers pass over it: Spark's own files, working folders, and what is not yet whole."""
    return path.rsplit("/", 1)[-1].startswith(("_", "."))
