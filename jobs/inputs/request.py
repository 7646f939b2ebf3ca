"""The common parts of all run requests: the input, the output and the command to start it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

from pyspark.sql import SparkSession

from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions, count_bytes
from untold.jobs.inputs.options import RunOptions
from untold.jobs.inputs.samples import Samples, read_samples
from untold.jobs.inputs.sampling import Draw, shown_draw
from untold.jobs.lakehouse.base import Lake
from untold.jobs.lakehouse.inputs import location_of, pinned, table_named
from untold.jobs.run.manifest import read_manifest
from untold.jobs.run.output import Output, store_of
from untold.jobs.run.session import SMALL_BYTES
from untold.jobs.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class RunRequest(RunOptions):
    """The common fields of all run requests, with absolute paths. Commands add their own fields."""

    input: str
    # Empty if no output is written: for a plan, and for a search for one query
    output: str
    settings: Settings
    # A known data set, or None for reading by extension
    format: str | None = None
    draw: Draw | None = None
    read: ReadOptions = AS_THEY_ARE
    # True if an output of another input is rebuilt from this input
    refresh: bool = False
    # Lakehouse tables that also receive the tables of the output
    lake: Lake | None = None
    # The command in messages
    command: str = ""

    @cached_property
    def store(self) -> str:
        """Return the path of the completions, empty without a store and an output."""
        return store_of(self.settings, self.output) if self.settings.completion_store or self.output else ""

    @cached_property
    def small(self) -> bool:
        """Return True if the input is so small that the start takes most of the time (`open_session`).

        The store counts too, because the same session reads its completions.
        """
        return count_bytes(*filter(None, (self.input, self.store))) < SMALL_BYTES

    def open_output(self, tables: Iterable[str], *more: str | None, kept: Sequence[str] = ()) -> Output:
        """Return the output with tables of these names, to be used in a `with` block. `more` are additional inputs."""
        return Output(
            self.output,
            tuple(tables),
            self.overwrite,
            refresh=self.refresh,
            kept=kept,
            inputs=[location_of(path) for path in (self.input, *more) if path],
            store=self.store,
            lock=self.lock,
            work=self.settings.work_dir,
            alone=self.settings.ray.address is None,
            lake=self.lake,
        )

    def pinned(self) -> Self:
        """Return the request with a version for a table: the version of the output's first start, or the newest."""
        if table_named(self.input) is None:
            return self
        keeps = self.output and not (self.overwrite or self.refresh)
        earlier = read_manifest(self.output) if keeps else None
        return replace(self, input=pinned(self.input, (earlier or {}).get("input", {}).get("path")))

    @property
    def layout(self) -> str | None:
        """Return the name of the adapter for the input."""
        return self.format

    def read_columns(self, spark: SparkSession, required: Sequence[str], optional: Sequence[str] = ()) -> Samples:
        """Return the samples of the input with these columns and the columns of every sample (`read_samples`)."""
        return read_samples(
            spark,
            self.input,
            format=self.layout,
            limit=self.limit,
            draw=self.draw,
            required=required,
            optional=optional,
            options=self.read,
        )

    def shared(self) -> dict[str, Any]:
        """Return the fields of this class, for a run of another command that this run starts."""
        return {one.name: getattr(self, one.name) for one in fields(RunRequest)}

    @property
    def named_input(self) -> dict[str, Any]:
        """Return the input for the manifest: its path, and the version of a table."""
        table = table_named(self.input)
        return {"path": self.input, **({} if table is None else {"version": table.version})}

    def shown_input(self, fingerprint: str, **more: Any) -> dict[str, Any]:
        """Return the input as shown in the manifest."""
        return {
            **self.named_input,
            "format": self.layout,
            "limit": self.limit,
            "draw": shown_draw(self.draw),
            "fingerprint": fingerprint,
            **more,
        }
