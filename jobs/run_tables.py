"""Read the output of a run from notebooks and scripts, without Spark: `open_run(DIR)`.

run = untold.open_run("out")
run.summary().to_pylist()
run.dataset("scores").head(10)  # a table may be larger than memory
run.sql("select system, avg(score) from scores group by system")
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from untold.jobs.tables import RESULT_TABLES, TABLES
from untold.udfs.errors import UserError, did_you_mean, near_misses, require
from untold.udfs.storage import PlaceError, StoragePath

if TYPE_CHECKING:
    import duckdb
    import pandas

MANIFEST = "manifest.json"
# Rows of a batch of a table with short rows: a sixteenth of Arrow's default, to keep the memory of the process small
BATCH_ROWS = 2**13
# Characters of patterns in the paths of DuckDB
_PATTERN = re.compile(r"[*?\[]")


class UnreadableRunError(UserError):
    """A directory without a readable run, or a table that the run does not have."""


@dataclass(frozen=True, repr=False)
class RunTables:
    """The manifest and the tables of one run, without Spark. `open_run` creates it, and `untold.Run` extends it."""

    directory: str
    manifest: Mapping[str, Any]

    @property
    def place(self) -> StoragePath:
        """Return the directory, as an absolute path or a URI."""
        return StoragePath(StoragePath(self.directory).spark)

    @property
    def status(self) -> str:
        """Return the status: `finished`, `budget`, `outage`, `interrupted`, `failed` or `running`."""
        return str(self.manifest["status"])

    @property
    def _ended(self) -> bool:
        return self.manifest.get("status") not in (None, "running")

    @property
    def usage(self) -> list[dict[str, Any]]:
        """Return the table `usage` of the last start, one row per stage and endpoint."""
        return cast(list[dict[str, Any]], self.table("usage").to_pylist())

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """Return the sorted names of the tables that exist."""
        folders = {entry.name for entry in self.place.entries() if entry.kind == "folder"}
        named = set(self.manifest.get("tables") or ())
        # The manifest of a finished run lists its tables. On an object store, each check takes three requests.
        known = named if self.place.local is None and self._ended else set()
        found = (name for name in folders | named if not _hidden(name))
        return tuple(sorted(name for name in found if name in known or self._files(name)))

    def path_of(self, name: str) -> StoragePath:
        """Return the folder of a table, which can be missing."""
        return place_of_table(str(self.place), self.manifest, name)

    def dataset(self, name: str) -> ds.Dataset:
        """Return the table as a `pyarrow.dataset.Dataset`, for tables larger than memory.

        Its schema is the union of the schemas of its files. Raises `UnreadableRunError` for a missing table.
        """
        files = [] if _hidden(name) or "/" in name else self._files(name)
        if not files:
            near = did_you_mean(near_misses(name, self.tables, most=3), quote="")
            hint = near or f"it has {', '.join(self.tables) or 'none'}"
            raise UnreadableRunError(f"{self.directory} has no table {name!r}; {hint}")
        factory = ds.FileSystemDatasetFactory(self.path_of(name).arrow[0], files, ds.ParquetFileFormat())
        return factory.finish(factory.inspect())

    def table(self, name: str) -> pa.Table:
        """Return the whole table in memory, with the columns of the contract. Raises like `dataset`."""
        return self.dataset(name).to_table()

    def summary(self) -> pa.Table:
        """Return the table `summary`: for each metric the row of all samples, and then one row per system."""
        return self.table("summary").sort_by([("metric", "ascending"), ("level", "ascending"), ("system", "ascending")])

    def pandas(self, name: str) -> pandas.DataFrame:
        """Return the whole table as a pandas frame. Raises like `dataset`."""
        require("Run.pandas", "notebook", "pandas")
        return self.table(name).to_pandas()

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Run a SELECT over all tables with DuckDB, which reads only the needed columns and row groups.

        `.df()` returns a pandas frame, `.pl()` a polars frame, and `.arrow()` an Arrow reader.
        """
        return self._database.sql(query)

    def sample(self, sample_id: str) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of one sample by table, without tables that have none.

        Raises UnreadableRunError for an unknown id.
        """
        found = {}
        for name in self.tables:
            rows = self.dataset(name)
            if "sample_id" in rows.schema.names:
                found[name] = rows.to_table(filter=ds.field("sample_id") == sample_id).to_pylist()
        if not found.get("samples"):
            raise UnreadableRunError(f"{self.directory}: no sample {sample_id!r}")
        return {name: rows for name, rows in found.items() if rows}

    def missing(self, n: int = 10) -> pa.Table:
        """Return the n samples with the most uncovered statements.

        Columns: sample_id, metric, system, score, uncovered, and missing, the texts of the uncovered statements.
        """
        columns = ["sample_id", "metric", "system", "score", "uncovered"]
        order = [("uncovered", "descending"), ("sample_id", "ascending"), ("metric", "ascending")]
        worst = first_rows(self.dataset("scores"), n, columns, order, ds.field("uncovered") > 0)
        texts: dict[tuple[str, str], list[str]] = defaultdict(list)
        chosen = ds.field("sample_id").isin(worst["sample_id"].combine_chunks()) & ~ds.field("covered")
        left_out = self.dataset("statements").to_table(columns=["sample_id", "metric", "text"], filter=chosen)
        for row in left_out.to_pylist():
            texts[row["sample_id"], row["metric"]].append(row["text"])
        of_rows = [sorted(texts[row["sample_id"], row["metric"]]) for row in worst.to_pylist()]
        return worst.append_column("missing", pa.array(of_rows, pa.list_(pa.string())))

    def __repr__(self) -> str:
        return f"<Run {self.place.name}: {self.status}>"

    def _repr_html_(self) -> str:
        """Return the status and the summary as HTML for notebooks."""
        shown = ["metric", "system", "n", "scored", "undefined", "failed", "mean", "ci_low", "ci_high"]
        summary = self.summary().to_pylist() if "summary" in self.tables else []
        rows = [{name: row[name] for name in shown} | {"system": row["system"] or "all"} for row in summary]
        # Without the folder, because people share notebooks
        return f"<p>{escape(self.place.name)}: {escape(self.status)}</p>{html_table(rows)}"

    @cached_property
    def _database(self) -> duckdb.DuckDBPyConnection:
        """Return a database in memory with all tables of the contract as views, also missing ones."""
        return connect_tables([self], {*self.tables, *RESULT_TABLES})

    def select_from(self, database: duckdb.DuckDBPyConnection, name: str) -> str:
        """Return SQL for all rows of a table, with the columns of the contract first.

        DuckDB reads local files itself, in a tenth of the time, and other files through Arrow.
        """
        columns, rows = TABLES.get(name), None
        # The manifest of a finished run knows the empty tables, which are most. Opening one takes four requests.
        empty = columns is not None and self._ended and self.manifest.get("rows", {}).get(name) == 0
        files = self._files(name) if name in self.tables and not empty else []
        if any(_PATTERN.search(file) for file in files) or (files and self.path_of(name).local is None):
            rows = f"from {_named(database, self.dataset(name))}"
            # DuckDB ends some joins with "not supported in PyArrow Scans"
            database.execute("set disabled_optimizers = 'join_filter_pushdown'")
        elif files:
            listed = ", ".join(quoted(file) for file in files)
            rows = f"from read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
        nothing = None if columns is None else f"from {_without_rows(database, name, columns)}"
        return " union all by name ".join(part for part in (nothing, rows) if part is not None)

    def _files(self, name: str) -> list[str]:
        """Return the sorted Parquet files of a table for Arrow, so that its rows have a fixed order."""
        files = [entry.place for entry in self.path_of(name).entries() if entry.kind == "file"]
        # Spark writes _SUCCESS and checksums next to its files
        return sorted(file.arrow[1] for file in files if file.name.endswith(".parquet") and not _hidden(file.name))


def open_run(directory: str | os.PathLike[str], *, allow_running: bool = False) -> RunTables:
    """Return the run whose output is `directory`, a local path or a URI (`untold.udfs.storage.StoragePath`).

    Raises `UnreadableRunError` for a missing or unreadable manifest.json, and for the status `running` unless
    `allow_running`. The tables of a running run can be missing, incomplete or left from an earlier start.
    """
    place = os.fspath(directory)
    run = RunTables(place, _read_manifest(place))
    # A killed run has this status too
    if run.manifest.get("status") == "running" and not allow_running:
        raise UnreadableRunError(
            f"{place}: the run has not ended, or was killed. Wait for it or start it again "
            "(in Python, allow_running=True reads the tables that exist)"
        )
    return run


def connect_tables(
    runs: Sequence[RunTables], names: Iterable[str], *, numbered: bool = False
) -> duckdb.DuckDBPyConnection:
    """Return a database in memory with these tables as views. `numbered` adds `output`, the index of the run.

    DuckDB spills to the temporary folder.
    """
    import duckdb

    database = duckdb.connect(config={"temp_directory": os.path.join(tempfile.gettempdir(), f"untold-{os.getpid()}")})
    database.execute("create schema without_rows")
    for name in names:
        parts = [run.select_from(database, name) for run in runs]
        if numbered:
            parts = [f"select {place} as output, * from ({part})" for place, part in enumerate(parts)]
        database.execute(f'create view "{name}" as {" union all by name ".join(parts)}')
    return database


def quoted(text: str) -> str:
    """Return a text as an SQL literal.

    >>> quoted("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def quoted_list(texts: Iterable[str]) -> str:
    """Return texts as SQL literals with commas between them.

    >>> quoted_list(["a", "b"])
    "'a', 'b'"
    """
    return ", ".join(map(quoted, texts))


def _named(database: duckdb.DuckDBPyConnection, rows: pa.Table | ds.Dataset) -> str:
    """Register Arrow rows in the database and return their name."""
    name = f"arrow_{id(rows)}"
    database.register(name, rows)
    return name


def _without_rows(database: duckdb.DuckDBPyConnection, name: str, columns: pa.Schema) -> str:
    """Create an empty table with these columns and return its name."""
    rows = _named(database, columns.empty_table())
    database.execute(f"create table if not exists without_rows.{name} as from {rows}")
    database.unregister(rows)
    return f"without_rows.{name}"


def place_of_table(directory: str, manifest: Mapping[str, Any], name: str) -> StoragePath:
    """Return the folder of a table from the manifest: in the output, or in a lakehouse.

    >>> str(place_of_table("out", {"tables": {"scores": "scores/3f0c"}}, "scores"))
    'out/scores/3f0c'
    >>> str(place_of_table("out", {"tables": {"scores": "/lake/scores/date=2026-11-20/3f0c"}}, "scores"))
    '/lake/scores/date=2026-11-20/3f0c'
    """
    path = str((manifest.get("tables") or {}).get(name, name))
    return StoragePath(path) if path.startswith("/") or "://" in path else StoragePath(directory) / path


def find_table(directory: str, name: str) -> StoragePath | None:
    """Return the folder of a table of an output, or of a folder without a manifest; None for a missing table."""
    try:
        manifest = _read_manifest(directory)
    except UnreadableRunError:
        manifest = {}
    found = place_of_table(directory, manifest, name)
    return found if found.entry().kind == "folder" else None


def _read_manifest(place: str) -> dict[str, Any]:
    """Return the manifest. Raises UnreadableRunError if it is missing or not readable."""
    try:
        manifest = json.loads((StoragePath(StoragePath(place).spark) / MANIFEST).read_bytes())
    except PlaceError as error:
        raise UnreadableRunError(str(error)) from error
    except FileNotFoundError as error:
        raise UnreadableRunError(
            f"{place} has no {MANIFEST}, so it is not the output of a run. Give the directory of --output"
        ) from error
    except (ValueError, OSError) as error:
        raise UnreadableRunError(f"{place}: {MANIFEST} cannot be read ({type(error).__name__})") from error
    if not isinstance(manifest, dict):
        raise UnreadableRunError(f"{place}: {MANIFEST} holds no JSON object")
    return manifest


def first_rows(
    rows: ds.Dataset, n: int, columns: Sequence[str], order: Sequence[tuple[str, str]], where: ds.Expression
) -> pa.Table:
    """Return the first n rows in an order, with n rows in memory."""
    first = pa.schema([rows.schema.field(name) for name in columns]).empty_table()
    for batch in batches_of(rows, columns, where):
        both = pa.concat_tables([first, pa.Table.from_batches([batch])])
        first = both.take(pc.select_k_unstable(both, k=n, sort_keys=list(order)))
    return first


def lowest_scores(scores: ds.Dataset, n: int) -> pa.Table:
    """Return the n lowest scores of all metrics: score, sample_id, metric."""
    columns = ["score", "sample_id", "metric"]
    return first_rows(scores, n, columns, [(name, "ascending") for name in columns], ds.field("score").is_valid())


def batches_of(
    rows: ds.Dataset, columns: Sequence[str], where: ds.Expression | None = None, most: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield columns of a table in batches of bounded rows. A column is null if a file lacks it.

    `where` filters by the columns. One batch is decoded at a time in this thread. A scan of the data set would decode
    whole row groups in several threads, and each thread keeps its freed memory.
    """
    schema = pa.schema([rows.schema.field(name) for name in columns])
    for fragment in rows.get_fragments():
        # Skip row groups whose statistics exclude the filter
        wanted = fragment if where is None else fragment.subset(where, rows.schema)
        groups = [group.id for group in wanted.row_groups]
        with (
            fragment.filesystem.open_input_file(fragment.path) as stream,
            pq.ParquetFile(stream, metadata=fragment.metadata, pre_buffer=False) as file,
        ):
            there = set(columns) & set(file.schema_arrow.names)
            for batch in file.iter_batches(most, row_groups=groups, columns=[*there], use_threads=False):
                of_schema = [
                    batch[field.name].cast(field.type) if field.name in there else pa.nulls(len(batch), field.type)
                    for field in schema
                ]
                found = pa.RecordBatch.from_arrays(of_schema, schema=schema)
                yield found if where is None else found.filter(where)


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as an HTML table with escaped values. Nulls are empty cells."""

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.3f}" if isinstance(value, float) else escape(str(value))

    names = list(dict.fromkeys(name for row in rows for name in row))
    heads = [f"      <th>{escape(name)}</th>" for name in names]
    lines = ["  <thead>", '    <tr style="text-align: right;">', *heads, "    </tr>", "  </thead>", "  <tbody>"]
    for row in rows:
        lines += ["    <tr>", *(f"      <td>{cell(row.get(name))}</td>" for name in names), "    </tr>"]
    return "\n".join(['<table class="dataframe">', *lines, "  </tbody>", "</table>"])


def _hidden(name: str) -> bool:
    """Return True for files that readers skip: files of Spark, working folders, and incomplete files."""
    return name.startswith(("_", "."))
