"""What every run is asked: what it reads, where its tables go, and how to start it again."""

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
    """What every run is asked, with absolute paths. Commands add what is their own."""

    input: str
    # Empty where nothing is written: of a plan, and of a search for one query
    output: str
    settings: Settings
    # A known data set; None for files as their extensions say
    format: str | None = None
    draw: Draw | None = None
    read: ReadOptions = AS_THEY_ARE
    # Whether an output of another input is made anew of this one
    refresh: bool = False
    # What its tables are added to, besides being those of its output
    lake: Lake | None = None
    # How to start it again, as messages say it
    command: str = ""

    @cached_property
    def store(self) -> str:
        """Where completions are kept; empty where neither a store nor an output is named."""
        return store_of(self.settings, self.output) if self.settings.completion_store or self.output else ""

    @cached_property
    def small(self) -> bool:
        """Whether there is so little to read that the start is what takes time (`open_session`).

        The store counts as well: its completions are read by the same session.
        """
        return count_bytes(*filter(None, (self.input, self.store))) < SMALL_BYTES

    def open_output(self, tables: Iterable[str], *more: str | None, kept: Sequence[str] = ()) -> Output:
        """The output, to be entered, with tables of these names; `more` are inputs besides `input`."""
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
        """The request whose input, where it is a table, names a version: that of the output's first start, or now's."""
        if table_named(self.input) is None:
            return self
        keeps = self.output and not (self.overwrite or self.refresh)
        earlier = read_manifest(self.output) if keeps else None
        return replace(self, input=pinned(self.input, (earlier or {}).get("input", {}).get("path")))

    @property
    def layout(self) -> str | None:
        """The name of the adapter that reads the input."""
        return self.format

    def read_columns(self, spark: SparkSession, required: Sequence[str], optional: Sequence[str] = ()) -> Samples:
        """The samples of the input with these columns besides those that every sample has (`read_samples`)."""
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
        """The fields that all requests have, for a run of another command that this one starts."""
        return {one.name: getattr(self, one.name) for one in fields(RunRequest)}

    @property
    def named_input(self) -> dict[str, Any]:
        """How the manifest names the input: its path, and of a table the version."""
        table = table_named(self.input)
        return {"path": self.input, **({} if table is None else {"version": table.version})}

    def shown_input(self, fingerprint: str, **more: Any) -> dict[str, Any]:
        """The input as the manifest shows it."""
        return {
            **self.named_input,
            "format": self.layout,
            "limit": self.limit,
            "draw": shown_draw(self.draw),
            "fingerprint": fingerprint,
            **more,
        }
