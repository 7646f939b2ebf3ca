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

from untold.udfs.errors import UserError
from untold.udfs.hints import did_you_mean, near_misses
from untold.udfs.storage import Place, PlaceError

MANIFEST = "manifest.json"


class UnreadableRunError(UserError):
    """A directory that holds no run that can be read, or a table that the run does not have."""


@dataclass(frozen=True)
class Run:
    """The output of one run: its manifest and its tables. Made by `open_run`."""

    directory: str
    manifest: Mapping[str, Any]

    @property
    def place(self) -> Place:
        """Its directory, the same in every process."""
        return Place(Place(self.directory).spark)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables present, sorted."""
        folders = [entry.name for entry in self.place.entries() if entry.kind == "folder"]
        return tuple(sorted(name for name in folders if not _hidden(name) and self._files(name)))

    def dataset(self, name: str) -> ds.Dataset:
        """The table as a `pyarrow.dataset.Dataset`, for tables larger than memory.

        Its schema is the union of its files' schemas. Raises `UnreadableRunError` for a table that is not there.
        """
        if name not in self.tables:
            near = did_you_mean(near_misses(name, self.tables, most=3), quote="")
            hint = near or f"it has {', '.join(self.tables) or 'none'}"
            raise UnreadableRunError(f"{self.directory}: no table {name!r}; {hint}")
        factory = ds.FileSystemDatasetFactory(self.place.arrow[0], self._files(name), ds.ParquetFileFormat())
        return factory.finish(factory.inspect())

    def table(self, name: str) -> pa.Table:
        """The whole table in memory, with the columns of the contract. Raises as `dataset`."""
        return self.dataset(name).to_table()

    def summary(self) -> pa.Table:
        """The table `summary`, sorted: for each metric the row of all samples first, then one a system."""
        return self.table("summary").sort_by([("metric", "ascending"), ("level", "ascending"), ("system", "ascending")])

    def _files(self, name: str) -> list[str]:
        """The Parquet files of a table for Arrow, sorted, so that its rows have one order."""
        files = [entry.place for entry in (self.place / name).entries() if entry.kind == "file"]
        # Spark leaves _SUCCESS and checksums beside its files
        return sorted(file.arrow[1] for file in files if file.name.endswith(".parquet") and not _hidden(file.name))


def open_run(directory: str | os.PathLike[str], *, allow_running: bool = False) -> Run:
    """The run whose output is `directory`: a local path or a URI, as `untold.udfs.storage.Place` knows them.

    Raises `UnreadableRunError` where there is no readable manifest.json, and where its status is `running` unless
    `allow_running`: the tables beside such a manifest may be missing, half written or those of an earlier start.
    """
    place = os.fspath(directory)
    run = Run(place, _read_manifest(place))
    # A killed run leaves this status too: it could not write another
    if run.manifest.get("status") == "running" and not allow_running:
        raise UnreadableRunError(
            f"{place}: the run has not ended, or was killed; wait for it or start it again, "
            "or read what is there with allow_running=True"
        )
    return run


def _read_manifest(place: str) -> dict[str, Any]:
    """The manifest. Raises UnreadableRunError where there is none, or nothing that can be read as one."""
    try:
        manifest = json.loads((Place(Place(place).spark) / MANIFEST).read_bytes())
    except PlaceError as error:
        raise UnreadableRunError(str(error)) from error
    except FileNotFoundError as error:
        raise UnreadableRunError(
            f"{place}: no {MANIFEST}, so this is not the output of a run; give the directory that --output named"
        ) from error
    except (ValueError, OSError) as error:
        raise UnreadableRunError(f"{place}: {MANIFEST} cannot be read ({type(error).__name__})") from error
    if not isinstance(manifest, dict):
        raise UnreadableRunError(f"{place}: {MANIFEST} holds no JSON object")
    return manifest


def _hidden(name: str) -> bool:
    """Whether readers pass over it: Spark's own files, working folders, and what is not yet whole."""
    return name.startswith(("_", "."))
