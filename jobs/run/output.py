"""Lock the output of a run, and write the tables and the manifest."""

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
from untold.jobs.tables import ADDED, TABLES
from untold.udfs.redaction import without_secrets
from untold.udfs.schemes import variables
from untold.udfs.storage import StoragePath, absolute

# The sort order of each table. Equal results have equal files.
ORDER = {
    "samples": ("sample_id",),
    "atoms": ("sample_id", "metric", "atom_id"),
    "relations": ("sample_id", "metric", "premise_id", "hypothesis_id"),
    "statements": ("sample_id", "metric", "statement_id"),
    "conflicts": ("sample_id", "metric", "first_id", "second_id"),
    "scores": ("sample_id", "metric"),
    "measures": ("sample_id", "metric", "measure"),
    "claims": ("sample_id", "metric", "position"),
    "evidence": ("sample_id", "metric", "claim_id", "rank"),
    "chunks": ("chunk_id",),
    "candidates": ("sample_id", "metric", "statement_id", "step", "rank"),
    "contexts_used": ("sample_id", "metric", "rank"),
    "criteria": ("sample_id", "metric", "number"),
    "citations": ("sample_id", "metric", "sentence_number", "citation"),
    "votes": ("sample_id", "metric", "stage", "item_id", "judge"),
    "failures": ("sample_id", "metric", "stage", "request_id"),
}
# Tables with many rows per sample. Each file is sorted and has all rows of its samples. To sort across files, Spark
# would compute the rows twice.
SORTED_BY_FILE = frozenset({"relations", "conflicts"})
WORK = "_work"
# The folder of tables that will replace others
ASIDE = "tables"
# The last table that is added to a lakehouse
LAST_ADDED = "summary"
# Columns of `usage` that can be added over starts. Requests cannot, because each start needs the same ones
SUMMED = (
    *("calls", "retries", "rate_limited", "retries_after_parse", "answered"),
    *("prompt_tokens", "completion_tokens", "cost", "seconds"),
)


def store_of(settings: Settings, output: str) -> str:
    """Return the folder of completions: the setting `completion_store`, or a folder of the output."""
    return absolute(settings.completion_store) if settings.completion_store else f"{output}/completions"


def steps_folder(output: str, work: str) -> str:
    """Return the folder of the steps of a run. Each start uses the same folder and removes old steps.

    With other settings `storage.*`, an output of the same name is another output.
    """
    named = repr((output, variables()))
    return f"{work}/untold-{blake2b(named.encode(), digest_size=8).hexdigest()}"


def shown(settings: Settings, **fields: Any) -> dict[str, Any]:
    """Return the settings for a manifest, without secrets. `fields` are options of `model_dump`."""
    safe: dict[str, Any] = without_secrets(settings.model_dump(mode="json", **fields))
    # The address may be a secret
    safe.pop("notify", None)
    return safe


def _say(line: str) -> None:
    print(f"untold: {line}", file=sys.stderr)


@dataclass
class Output:
    """The folder of a run. The context manager locks the folder.

    Call the methods in this order: `claim` sets the identity, `begin` writes the manifest as `running`, `write` writes
    the tables, and `end` writes the final manifest. An error between `begin` and `end` removes the incomplete
    tables except `kept`, and the manifest has the status `interrupted` or `failed`.

    On a local disk, a table is the folder `<name>`. Other file systems cannot rename a folder atomically, so a start
    writes its tables to `<name>/<run>`. The tables of the earlier start stay until the final manifest names the new
    ones.

    Raises OutputError for a folder that is not an output, and for a folder that contains an input or is part of an
    input. Raises LostLockError if the folder is locked by another run. If `lock` is False, the user must make sure that
    no other run uses the folder.

    Attributes:
        run: id of this start.
        store: folder of completions, which can be anywhere.
        work: folder of steps. Without it, steps are on this machine if output and store are in an object store and the
            run is `alone`, without a Ray on other machines.
        notify: accepts lines about files that could not be removed after the tables were written.
    """

    place: str
    tables: Sequence[str]
    overwrite: bool = False
    # True to replace the output of another input. Its tables stay until the tables of this start are complete
    refresh: bool = False
    kept: Sequence[str] = ()
    inputs: Sequence[str | None] = ()
    store: str | None = None
    lock: bool = True
    work: str | None = None
    alone: bool = True
    # The lakehouse with the tables of a finished run
    lake: Lake | None = None
    run: str = field(default_factory=lambda: uuid4().hex[:12])
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    earlier: Mapping[str, Any] | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    notify: Callable[[str], None] = _say
    # True if `claim` found the output of another input, which `refresh` replaces
    refreshes: bool = False
    # True if the tables and the manifest of the earlier start stay until those of this start are complete
    _keeps: bool = False
    # True if others can read tables of this start
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
            # This does not wait, because this run would overwrite the tables of the other run
            self._lock = lock_folder(self.place, self.run, wait=False).__enter__()
            self._stack.callback(self.tidy, f"the lock of {self.place}", self._lock.__exit__)
        return self

    def check_lock(self) -> None:
        """Raise LostLockError if another run took over the folder. Each write calls this first."""
        if self._lock is not None:
            self._lock.check()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with self._stack:
            self.check_lock()
            if error is not None and self.manifest.get("status") == "running":
                self._break_off("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            self._remove_steps()

    def _break_off(self, status: str) -> None:
        """Remove incomplete tables, and write the status to the manifest if it belongs to this start."""
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
        """Remove unneeded files. If this fails, they stay, and a line reports it."""
        try:
            remove()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            self.notify(f"{what} could not be removed ({reason}). No run reads it, so remove it when possible")

    def claim(self, identity: Identity, added: Added | None = None) -> None:
        """Set the identity of the folder. Raises OutputError for a folder with another identity, unless `overwrite`.

        `earlier` becomes the manifest of an earlier start with the same identity. With `added` it has fewer metrics,
        and its tables stay until the tables of this start are complete.
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
        """True if a table is a folder of a fixed name, which later starts replace."""
        return self.lake is None and StoragePath(self.place).local is not None

    @property
    def _folder(self) -> str:
        """The folder of the tables: the output, or a folder for tables that will replace those of an earlier start."""
        return f"{self.place}/{WORK}/{ASIDE}" if self._keeps and self._renames else self.place

    def table(self, name: str) -> str:
        """Return the folder of a table of this start, for its manifest."""
        if self.lake is not None:
            if name not in self._tables:
                self._tables[name] = f"{self.lake.folder(name, TABLES[name])}/{self.run}"
            return self._tables[name]
        # The manifest has no table that is added after the run
        self._tables[name] = name if self._renames or not self.manifest else f"{name}/{self.run}"
        return f"{self._folder}/{self._tables[name]}"

    def place_of(self, name: str) -> str | None:
        """Return the folder of a table of the earlier start, None if it is missing."""
        place = place_of_table(self.place, self.earlier or {}, name)
        return str(place) if place.entry().kind else None

    def note_input(self, now: Mapping[str, Any]) -> None:
        """Update the input in the manifest of an unchanged output, if it differs."""
        earlier = dict(self.earlier or {})
        if not now.items() <= earlier.get("input", {}).items():
            self.check_lock()
            manifest.write_manifest(self.place, {**earlier, "input": {**earlier["input"], **now}})

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics of an earlier start, none if the output is replaced."""
        earlier = None if self.overwrite else manifest.read_manifest(self.place)
        return tuple((earlier or {}).get("metrics") or ())

    def is_complete(self, *, retry_failed: bool) -> bool:
        """Return True if no request is missing. `retry_failed` counts permanently failed requests as missing."""
        return not self.refreshes and self.left_nothing(self.earlier, retry_failed=retry_failed)

    def seems_complete(self, *, retry_failed: bool) -> bool:
        """Return True if the output seems complete, before `claim` checks the identity of the earlier start."""
        return not self.overwrite and self.left_nothing(manifest.read_manifest(self.place), retry_failed=retry_failed)

    def left_nothing(self, earlier: Mapping[str, Any] | None, *, retry_failed: bool) -> bool:
        """Return True if a manifest has no missing requests, and its tables exist.

        Each start sends temporary failures (`passing_failures`) again. With `retry_failed`, it sends all `failures`.
        """
        if earlier is None or earlier["status"] != "finished" or not self._has_whole_tables(earlier):
            return False
        return not earlier["counts"]["failures" if retry_failed else "passing_failures"]

    def _has_whole_tables(self, earlier: Mapping[str, Any] | None) -> bool:
        """Return True if an earlier start wrote all its tables, and they exist."""
        if earlier is None or earlier["status"] == "running":
            return False
        if self.lake is not None or "lakehouse" in earlier:
            return self._is_added(earlier.get("lakehouse", {}))
        folders = {entry.name for entry in StoragePath(self.place).entries() if entry.kind == "folder"}
        return set(self.tables) <= folders

    def _is_added(self, known: Mapping[str, Any]) -> bool:
        """Return True if the tables of an earlier start are in the requested lakehouse."""
        wanted = {} if self.lake is None else self.lake.shown
        return "versions" in known and wanted.items() <= known.items() and self.lake is not None

    def begin(self, settings: Mapping[str, Any], **fields: Any) -> None:
        """Write the manifest as `running`, with settings from `shown`, other fields, and the earlier starts.

        The manifest of an earlier start is kept if its tables are kept.
        """
        self.check_lock()
        StoragePath(self.place).make_folder()
        if self.lake is not None:
            # In sequence and before the first request, because catalogs can refuse a table, or fail in parallel
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
        """Write the final manifest, with an entry for this start if it had missing requests."""
        self.check_lock()
        if self.lake is not None and ending.status == "finished":
            self._add_tables(self.lake)
        elif self._keeps and self._renames:
            self._replace_tables()
        tables, rows = (dict(sorted(found.items())) for found in (self._tables, self._rows))
        self.manifest |= {"status": ending.status, "tables": tables, "rows": rows, **fields}
        if usage is not None:
            self._add_start(usage, code)
        # Before the manifest: after a kill in between, a start without missing requests would never remove the steps
        self._remove_steps()
        manifest.write_manifest(self.place, self.manifest)
        if not self._renames and (self.earlier or self.overwrite):
            self.tidy(f"tables of an earlier start in {self.place}", self._remove_earlier)

    def _remove_earlier(self) -> None:
        """Remove the tables of other starts, also killed ones, if each start has its own folder.

        Files of a lakehouse stay for current readers until the maintenance of the lakehouse removes them.
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
        """Replace the earlier tables with the new ones."""
        aside = StoragePath(self._folder)
        self._keeps = False
        # After a kill from here on, the next start writes all tables again without requests
        manifest.write_manifest(self.place, self.manifest)
        self.remove(self.tables)
        for name in self.tables:
            (aside / name).move(StoragePath(self.place) / name)

    def _add_tables(self, lake: Lake) -> None:
        """Add the tables to a lakehouse with one commit each, `summary` last, so that its dates are complete."""
        self._keeps, self._added = False, True
        # After a kill from here on, the next start adds all tables again
        manifest.write_manifest(self.place, self.manifest)
        versions = {}
        for name in sorted(self._tables, key=lambda name: (name == LAST_ADDED, name)):
            self.check_lock()
            versions[name] = lake.replace(name, self._tables[name])
        self.manifest["lakehouse"] = {**lake.shown, "versions": versions}

    def _add_start(self, usage: Sequence[Mapping[str, Any]], code: int) -> None:
        """Add this start to the manifest if it had requests or is the first one. Update the sums over all starts."""
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
        """True if an earlier start had a response."""
        return bool(self.earlier and manifest.sum_starts(self.earlier, "answered"))

    @property
    def spooled_runs(self) -> frozenset[str]:
        """Return the last starts with requests in a spool or in batches, which this start continues."""
        starts = takewhile(lambda start: start["status"] in LEFT, reversed((self.earlier or {}).get("starts", [])))
        return frozenset(start["run"] for start in starts)

    def workspace(self, spark: SparkSession, *, small: bool = False) -> Workspace:
        """Return the workspace of the steps, without the files of a killed run. See `open_session` for `small`."""
        if self._workspace is None:
            # The memory of other machines can be lost
            self._workspace = Workspace(spark, self._steps(spark), in_memory=small and is_local(spark))
            self._workspace.remove()
        return self._workspace

    def _steps(self, spark: SparkSession) -> str:
        """Return the folder of steps. An object store is the last choice, because steps need most file requests."""
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
        """Write a table in this order, with the columns of `schema` if it is given, and return the written table.

        With `few`, one task sorts and writes all rows. `counted` has the counts to compute during the write. Raises
        LostRowsError if fewer rows can be read than were written.
        """
        self.check_lock()
        columns = frame.columns if schema is None else schema.names
        rows = frame if schema is None else with_added(name, frame).select(*columns)
        ordered = _sorted(rows, order, few=few, by_file=name in SORTED_BY_FILE)
        # After the sort, because Spark also evaluates its input for the ranges and would count it twice
        watched = ordered if counted is None else counted.on(ordered)
        path = self.table(name)
        self._rows[name] = write_parquet(watched, path)
        written = rows.schema if schema is None else spark_schema(schema)
        return read_parquet(frame.sparkSession, path, schema=written)

    def opened(self, names: Iterable[str]) -> RunTables:
        """Return the tables that this start has written, before its manifest names them."""
        return RunTables(self.place, {"tables": {name: self.table(name) for name in names}})

    def take_written(self, name: str, rows: int) -> None:
        """Accept a table that other code wrote to `table(name)`. Raises LostRowsError for another number of rows."""
        path = self.table(name)
        check_rows(path, rows)
        if self.lake is not None:
            # Before the first request, because columns of users can have other types than on other dates
            self.lake.check(name, path)
        self._rows[name] = rows

    def write_rows(self, name: str, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
        """Write a small table as one file with a fixed name, so that equal rows have equal bytes."""
        self.check_lock()
        if self._renames:
            # The files of Spark have new names in each run, so the old files must be removed
            self.remove([name])
        values = [{column: row.get(column) for column in schema.names} for row in rows]
        place = StoragePath(self.table(name))
        place.make_folder()
        self._rows[name] = len(values)
        table = pa.Table.from_pylist(values, schema=schema)
        (place / "part-0.parquet").write_whole(lambda file: pq.write_table(table, file))

    def remove(self, names: Iterable[str]) -> None:
        """Remove the existing tables among `names` of this start."""
        self.check_lock()
        for name in names:
            if self.lake is None or name in self._tables:
                StoragePath(self.table(name)).remove()


def _sorted(rows: DataFrame, order: Sequence[str], *, few: bool, by_file: bool) -> DataFrame:
    """Return the sorted rows: in one task, within each file with the rows of a sample together, or over all files."""
    if few:
        return rows.coalesce(1).sortWithinPartitions(*order)
    return rows.repartition(order[0]).sortWithinPartitions(*order) if by_file else rows.orderBy(*order)


def with_added(name: str, frame: DataFrame) -> DataFrame:
    """Return the rows of a table with nulls in missing columns of `ADDED`."""
    fields = spark_schema(TABLES[name]) if name in ADDED else ()
    missing = [field for field in fields if field.name in ADDED[name] and field.name not in frame.columns]
    return frame.select("*", *(F.lit(None).cast(field.dataType).alias(field.name) for field in missing))


_PAST: Mapping[str, Any] = {"models": [], "starts": [], "totals": {}}
