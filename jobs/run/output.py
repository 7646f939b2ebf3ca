"""The output of a run for its life: locked, claimed for one identity, its tables written, its manifest true."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import takewhile
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.lakehouse.base import Lake
from untold.jobs.run import manifest
from untold.jobs.run.folders import Counted, Workspace, check_folders, check_rows, write_parquet
from untold.jobs.run.locks import Lock, check_lockable, is_lockable, lock_folder
from untold.jobs.run.manifest import Added, Identity
from untold.jobs.run.outcome import LEFT, Ending
from untold.jobs.run.session import is_local, read_parquet, spark_schema
from untold.jobs.run_tables import RunTables, place_of_table
from untold.jobs.settings.model import Settings
from untold.jobs.tables import ADDED, SORTED_BY_FILE, TABLES
from untold.udfs.redaction import without_secrets
from untold.udfs.schemes import variables
from untold.udfs.storage import StoragePath

WORK = "_work"
# In it, tables that are yet to take the place of others
ASIDE = "tables"
# Of the tables of a lakehouse
LAST_ADDED = "summary"
# Columns of `usage` that may be added over starts; requests may not, for each start needs the same ones
SUMMED = (
    *("calls", "retries", "rate_limited", "retries_after_parse", "answered"),
    *("prompt_tokens", "completion_tokens", "cost", "seconds"),
)


def absolute(path: str) -> str:
    """A path that means the same in every process, to Spark and to Arrow; `~` is the user's home."""
    return StoragePath(path).spark


def store_of(settings: Settings, output: str) -> str:
    """Where completions are kept: the setting `completion_store`, else a folder of the output."""
    return absolute(settings.completion_store) if settings.completion_store else f"{output}/completions"


def steps_folder(output: str, work: str) -> str:
    """The folder of a run's steps in one for many runs: the same each time, so that what a killed run left goes.

    Where stores are opened otherwise (`storage.*`), an output of the same name is another.
    """
    named = repr((output, variables()))
    return f"{work}/untold-{blake2b(named.encode(), digest_size=8).hexdigest()}"


def shown(settings: Settings, **fields: Any) -> dict[str, Any]:
    """The settings as a manifest shows them: no secrets; `fields` as `model_dump` takes them."""
    safe: dict[str, Any] = without_secrets(settings.model_dump(mode="json", **fields))
    # Its address may be all that is needed to post there
    safe.pop("notify", None)
    return safe


def _say(line: str) -> None:
    print(f"untold: {line}", file=sys.stderr)


@dataclass
class Output:
    """The folder of a run. As a context manager it is locked, and left as one start of a run ought to leave it.

    In order: `claim` says whose the folder is to be, `begin` writes the manifest as `running`, `write` the tables,
    `end` the manifest as it ended. What raises between `begin` and `end` takes half a run's tables with it, those of
    `kept` aside, and the manifest says `interrupted` or `failed`. `run` is the id of this start. A folder that is not
    ours, and one that lies in one of `inputs` or holds it, raises OutputError before all else; `store`, where
    completions are kept, may lie anywhere. One that another run took over is left to it: LostLockError. Without `lock`
    nobody else may use the folder. Steps are kept in `work`; without it on this machine where output and store lie in
    an object store and the run is `alone`, with no Ray of other machines.

    On a local disk a table is the folder `<name>`. Elsewhere no folder is renamed at once: a start writes its tables
    into `<name>/<run>`, and those of the start before stay until its manifest, written last, names others. `notify`
    hears of what could not be removed once the tables are written, which is no error.
    """

    place: str
    tables: Sequence[str]
    overwrite: bool = False
    # Whether the output of another input is made anew of this one; its tables stay until those of this start are whole
    refresh: bool = False
    kept: Sequence[str] = ()
    inputs: Sequence[str | None] = ()
    store: str | None = None
    lock: bool = True
    work: str | None = None
    alone: bool = True
    # What the tables of a finished run are added to; they lie there from the first
    lake: Lake | None = None
    run: str = field(default_factory=lambda: uuid4().hex[:12])
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    earlier: Mapping[str, Any] | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    notify: Callable[[str], None] = _say
    # Whether `claim` found the output of another input, which `refresh` makes anew
    refreshes: bool = False
    # Whether tables and manifest of the earlier start stay until those of this one are whole
    _keeps: bool = False
    # Whether others may read tables of this start already
    _added: bool = False
    _tables: dict[str, str] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)
    _workspace: Workspace | None = None
    _lock: Lock | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Output:
        check_folders(self.inputs, self.place, self.store)
        if self.lock and self.store:
            check_lockable(self.store)
        if self.lock and (self.store or is_lockable(self.place)):
            # Never waits: what another run writes here is what this one would write over
            self._lock = lock_folder(self.place, self.run, wait=False).__enter__()
            self._stack.callback(self.tidy, f"the lock of {self.place}", self._lock.__exit__)
        return self

    def check_lock(self) -> None:
        """Raises LostLockError where another run took the folder over; looked at before every write."""
        if self._lock is not None:
            self._lock.check()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with self._stack:
            self.check_lock()
            if error is not None and self.manifest.get("status") == "running":
                self._break_off("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            self._remove_steps()

    def _break_off(self, status: str) -> None:
        """Removes half a run's tables, and says in the manifest how it ended, where that is this start's already."""
        lost = [name for name in self.tables if self._keeps or name not in self.kept]
        if not self._added:
            self.remove(lost)
        if not self._keeps:
            named = {name: path for name, path in self._tables.items() if name not in lost}
            manifest.write_manifest(self.place, {**self.manifest, "status": status, "tables": named})

    def _remove_steps(self) -> None:
        if self._workspace is not None:
            self.tidy(self._workspace.folder, self._workspace.remove)
        self._workspace = None

    def tidy(self, what: str, remove: Callable[[], object]) -> None:
        """Removes what nobody reads any more. Where that fails it stays, and a line says so."""
        try:
            remove()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            self.notify(f"{what} could not be removed ({reason}). No run reads it, so remove it when possible")

    def claim(self, identity: Identity, added: Added | None = None) -> None:
        """Makes the folder that of this identity. Raises OutputError where it belongs to another, unless `overwrite`.

        `earlier` is the manifest of the start before, of the same identity; with `added` it has fewer metrics, and its
        tables stay until those of this start are whole.
        """
        self.earlier = None if self.overwrite else manifest.read_manifest(self.place)
        found = [] if self.earlier is None else manifest.differences(identity, self.earlier.get("identity", {}), added)
        if self.earlier is not None and self.earlier.get("format") != manifest.FORMAT:
            found = [manifest.OTHER_FORMAT]
        self.refreshes = self.refresh and found == [manifest.PARTS["input"]]
        if found and not self.refreshes:
            raise manifest.refused(self.place, found)
        self.manifest = {"format": manifest.FORMAT, "identity": dict(identity), "versions": manifest.versions()}
        if self.lake is not None:
            self.manifest["lakehouse"] = self.lake.shown
        self._keeps = (added is not None or self.refreshes) and self._has_whole_tables(self.earlier)

    @property
    def _renames(self) -> bool:
        """Whether a table is a folder of one name, which those of a later start are put in the place of."""
        return self.lake is None and StoragePath(self.place).local is not None

    @property
    def _folder(self) -> str:
        """What tables lie in: the output, or aside until they take the place of those of an earlier start."""
        return f"{self.place}/{WORK}/{ASIDE}" if self._keeps and self._renames else self.place

    def table(self, name: str) -> str:
        """Where this start writes a table, which its manifest then names."""
        if self.lake is not None:
            if name not in self._tables:
                self._tables[name] = f"{self.lake.folder(name, TABLES[name])}/{self.run}"
            return self._tables[name]
        # A table that is added to an output after its run is in no manifest
        self._tables[name] = name if self._renames or not self.manifest else f"{name}/{self.run}"
        return f"{self._folder}/{self._tables[name]}"

    def place_of(self, name: str) -> str | None:
        """Where the table of the earlier start lies; None where it is not there."""
        place = place_of_table(self.place, self.earlier or {}, name)
        return str(place) if place.entry().kind else None

    def note_input(self, now: Mapping[str, Any]) -> None:
        """Says in the manifest of an output that stays as it is what is known of its input now, where that differs."""
        earlier = dict(self.earlier or {})
        if not now.items() <= earlier.get("input", {}).items():
            self.check_lock()
            manifest.write_manifest(self.place, {**earlier, "input": {**earlier["input"], **now}})

    def metrics(self) -> tuple[str, ...]:
        """The metrics that an earlier start gave the output; none where it is to be replaced."""
        earlier = None if self.overwrite else manifest.read_manifest(self.place)
        return tuple((earlier or {}).get("metrics") or ())

    def is_complete(self, *, retry_failed: bool) -> bool:
        """Whether an earlier start left nothing to ask, lasting failures included where they are asked again."""
        return not self.refreshes and self.left_nothing(self.earlier, retry_failed=retry_failed)

    def seems_complete(self, *, retry_failed: bool) -> bool:
        """As `is_complete`, before `claim` knows whether the earlier start was one of the same identity."""
        return not self.overwrite and self.left_nothing(manifest.read_manifest(self.place), retry_failed=retry_failed)

    def left_nothing(self, earlier: Mapping[str, Any] | None, *, retry_failed: bool) -> bool:
        """Whether a manifest says that all was answered, and the tables are there as it says.

        `passing_failures` of its counts are asked again by any start, `failures` by one that retries all.
        """
        if earlier is None or earlier["status"] != "finished" or not self._has_whole_tables(earlier):
            return False
        return not earlier["counts"]["failures" if retry_failed else "passing_failures"]

    def _has_whole_tables(self, earlier: Mapping[str, Any] | None) -> bool:
        """Whether an earlier start wrote all of its tables, and they are there."""
        if earlier is None or earlier["status"] == "running":
            return False
        if self.lake is not None or "lakehouse" in earlier:
            return self._is_added(earlier.get("lakehouse", {}))
        return set(self.tables) <= self._folders()

    def _is_added(self, known: Mapping[str, Any]) -> bool:
        """Whether the tables of an earlier start are in the lakehouse that is asked for."""
        wanted = {} if self.lake is None else self.lake.shown
        return "versions" in known and wanted.items() <= known.items() and self.lake is not None

    def begin(self, settings: Mapping[str, Any], **fields: Any) -> None:
        """Writes the manifest as `running`: settings as `shown` gives them, other fields, what earlier starts did.

        Where tables of an earlier start stay, so does its manifest.
        """
        self.check_lock()
        StoragePath(self.place).make_folder()
        if self.lake is not None:
            # One after the other, and before anything is asked: catalogs may refuse, or race with themselves
            for name in self.tables:
                self.table(name)
        earlier = self.earlier or {}
        past = {name: type(empty)(earlier.get(name, empty)) for name, empty in _PAST.items()}
        self.manifest = {**self.manifest, "status": "running", "settings": dict(settings), **past, **fields}
        if not self._keeps:
            manifest.write_manifest(self.place, self.manifest)

    def end(
        self, ending: Ending, *, code: int = 0, usage: Sequence[Mapping[str, Any]] | None = None, **fields: Any
    ) -> None:
        """Writes the manifest as it ended, with one more entry where this start had something to ask."""
        self.check_lock()
        if self.lake is not None and ending.status == "finished":
            self._add_tables(self.lake)
        elif self._keeps and self._renames:
            self._replace_tables()
        tables, rows = (dict(sorted(found.items())) for found in (self._tables, self._rows))
        self.manifest |= {"status": ending.status, "tables": tables, "rows": rows, **fields}
        if usage is not None:
            self._add_start(usage, code)
        # Before the manifest: killed between the two, a start that finds nothing to ask would leave the steps for ever
        self._remove_steps()
        manifest.write_manifest(self.place, self.manifest)
        if not self._renames and (self.earlier or self.overwrite):
            self.tidy(f"tables of an earlier start in {self.place}", self._remove_earlier)

    def _remove_earlier(self) -> None:
        """Removes the tables of other starts, killed ones too, where each start has a folder of its own.

        What is in a lakehouse stays for readers that have begun, until the lakehouse's own upkeep removes it.
        """
        earlier = self.earlier or {}
        if self.lake is not None:
            for name in () if "versions" in earlier.get("lakehouse", {}) else earlier.get("tables") or ():
                place_of_table(self.place, earlier, name).remove()
            return
        for name, path in self._tables.items():
            for entry in (StoragePath(self.place) / name).entries():
                if path != f"{name}/{entry.name}":
                    entry.place.remove()

    def _replace_tables(self) -> None:
        """Puts the tables that were written aside in the place of the earlier ones."""
        aside = StoragePath(self._folder)
        self._keeps = False
        # Killed from here on, it is as after any kill: the next start writes all tables anew, and asks nothing for it
        manifest.write_manifest(self.place, self.manifest)
        self.remove(self.tables)
        for name in self.tables:
            (aside / name).move(StoragePath(self.place) / name)

    def _add_tables(self, lake: Lake) -> None:
        """Adds the tables to those of a lakehouse, a commit each, `summary` last: a date that is there is whole."""
        self._keeps, self._added = False, True
        # Killed from here on, it is as after any kill: the next start adds all of them anew
        manifest.write_manifest(self.place, self.manifest)
        versions = {}
        for name in sorted(self._tables, key=lambda name: (name == LAST_ADDED, name)):
            self.check_lock()
            versions[name] = lake.replace(name, self._tables[name])
        self.manifest["lakehouse"] = {**lake.shown, "versions": versions}

    def _add_start(self, usage: Sequence[Mapping[str, Any]], code: int) -> None:
        """Adds this start to the manifest, unless it asked nothing and is not the first; sums up all of them."""
        asked = any(row["calls"] or row["unasked"] for row in usage)
        if asked or not self.manifest["starts"]:
            self.manifest["starts"].append(
                {
                    "run": self.run,
                    "started_at": self.started_at.isoformat(),
                    "ended_at": datetime.now(UTC).isoformat(),
                    "status": self.manifest["status"],
                    "exit_code": code,
                    "usage": list(usage),
                }
            )
        self.manifest["totals"] = {name: manifest.sum_starts(self.manifest, name) for name in SUMMED}

    @property
    def has_answered(self) -> bool:
        """Whether an earlier start was ever answered."""
        return bool(self.earlier and manifest.sum_starts(self.earlier, "answered"))

    @property
    def spooled_runs(self) -> frozenset[str]:
        """The starts just before this one that left requests in a spool or in batches: this one goes on with them."""
        starts = takewhile(lambda start: start["status"] in LEFT, reversed((self.earlier or {}).get("starts", [])))
        return frozenset(start["run"] for start in starts)

    def workspace(self, spark: SparkSession, *, small: bool = False) -> Workspace:
        """Where steps are kept until the run ends; what a killed run left there goes. `small` as of `open_session`."""
        if self._workspace is None:
            # Other machines may be lost, and with them what is in their memory
            self._workspace = Workspace(spark, self._steps(spark), in_memory=small and is_local(spark))
            self._workspace.remove()
        return self._workspace

    def _steps(self, spark: SparkSession) -> str:
        """The folder of steps. It takes most requests of a small run: an object store is the last choice."""
        if self.work:
            return steps_folder(self.place, absolute(self.work))
        if StoragePath(self.place).local is None and self.alone and is_local(spark):
            own = f"{tempfile.gettempdir()}/untold-{os.getuid()}"
            os.makedirs(own, mode=0o700, exist_ok=True)
            return steps_folder(self.place, own)
        return f"{self.place}/{WORK}"

    def write(
        self,
        name: str,
        frame: DataFrame,
        *,
        order: Sequence[str],
        schema: pa.Schema | None = None,
        few: bool = False,
        counted: Counted | None = None,
    ) -> DataFrame:
        """Writes a table in this order, with the columns of `schema` where one is given, and gives it as written.

        `few`: one task sorts and writes them all. `counted`: what is counted of the rows on the way. Raises
        LostRowsError where fewer rows can be read back than were written.
        """
        self.check_lock()
        columns = frame.columns if schema is None else schema.names
        rows = frame if schema is None else with_added(name, frame).select(*columns)
        ordered = _sorted(rows, order, few=few, by_file=name in SORTED_BY_FILE)
        # Above the sort: what lies below it is evaluated for its ranges too, and would be counted twice
        watched = ordered if counted is None else counted.on(ordered)
        path = self.table(name)
        self._rows[name] = write_parquet(watched, path)
        written = rows.schema if schema is None else spark_schema(schema)
        return read_parquet(frame.sparkSession, path, schema=written)

    def opened(self, names: Iterable[str]) -> RunTables:
        """Return the tables that this start has written, before its manifest names them."""
        return RunTables(self.place, {"tables": {name: self.table(name) for name in names}})

    def take_written(self, name: str, rows: int) -> None:
        """Counts a table that somebody else wrote at `table(name)`. Raises LostRowsError where it has other rows."""
        path = self._tables[name] if self.lake else f"{self._folder}/{self._tables[name]}"
        check_rows(path, rows)
        if self.lake is not None:
            # Before anything is asked: columns of the user's own may have other types than those of other dates
            self.lake.check(name, path)
        self._rows[name] = rows

    def write_rows(self, name: str, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
        """Writes a small table as one file of one name, so that the same rows are the same bytes."""
        self.check_lock()
        if self._renames:
            # Spark's files would stay beside it, whose names are new each time
            self.remove([name])
        values = [{column: row.get(column) for column in schema.names} for row in rows]
        place = StoragePath(self.table(name))
        place.make_folder()
        self._rows[name] = len(values)
        table = pa.Table.from_pylist(values, schema=schema)
        (place / "part-0.parquet").write_whole(lambda file: pq.write_table(table, file))

    def _folders(self) -> set[str]:
        """The names of the folders of the output, by one listing."""
        return {entry.name for entry in StoragePath(self.place).entries() if entry.kind == "folder"}

    def remove(self, names: Iterable[str]) -> None:
        """Removes those tables of this start that are there."""
        self.check_lock()
        for name in names:
            if self.lake is None or name in self._tables:
                StoragePath(self.table(name)).remove()


def _sorted(rows: DataFrame, order: Sequence[str], *, few: bool, by_file: bool) -> DataFrame:
    """The rows in order: in one task, within each file, where rows of one sample stay together, or over all files."""
    if few:
        return rows.coalesce(1).sortWithinPartitions(*order)
    return rows.repartition(order[0]).sortWithinPartitions(*order) if by_file else rows.orderBy(*order)


def with_added(name: str, frame: DataFrame) -> DataFrame:
    """The rows of a table with nulls in those columns of `ADDED` that they lack."""
    fields = spark_schema(TABLES[name]) if name in ADDED else ()
    missing = [field for field in fields if field.name in ADDED[name] and field.name not in frame.columns]
    return frame.select("*", *(F.lit(None).cast(field.dataType).alias(field.name) for field in missing))


_PAST: Mapping[str, Any] = {"models": [], "starts": [], "totals": {}}
