"""Read the judgements of models, and align them with the units that people have labelled.

A unit is a response, a claim, an aspect, a reference or a nugget. Every study has one table of units, and one table of
judgements per model and metric with the same rows: row n of each is about unit n.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from duckdb import DuckDBPyConnection

from untold.jobs.inputs.files import find_files, inspect_files
from untold.jobs.run.manifest import NAME, read_manifest
from untold.jobs.run.terminal import amount
from untold.jobs.run_tables import RunTables, connect_tables, find_table, open_run, quoted
from untold.jobs.study_tables import META_EVALUATION
from untold.jobs.summary.score_counts import fetch_rows
from untold.udfs.errors import UserError, aside, near_misses, shorten
from untold.udfs.statistics.intervals import IntArray
from untold.udfs.storage import StoragePath

# Values that a message shows
SHOWN = 3
# Levels of the table `meta_evaluation`
BY_SAMPLE, BY_QUERY, BY_ITEM = "sample", "query", "item"
# The data set of averages over data sets
AVERAGE = "average"
Row = Mapping[str, Any]
Rows = list[dict[str, Any]]
Key = tuple[str, ...]
BoolArray = npt.NDArray[np.bool_]
Owner = tuple[str, str]
"""A model and a metric."""


class MetaEvaluationError(UserError):
    """Labels or judgements that a study cannot use. The message has one line per problem."""


@dataclass(frozen=True)
class Source:
    """A table of outputs that has judgements, and the names of its parts in error messages.

    `read` returns the columns `metric`, `units` and `value` of the judgements; a column `owner` names the metric that a
    baseline belongs to. `check` returns the problems of these rows. With `complete`, every unit needs a judgement. With
    `lenient`, judgements of other units are ignored.
    """

    table: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[str, pa.Table], pa.Table]
    unit: tuple[str, str]
    value: tuple[str, str]
    # The rows that a metric needs, and a unit with its key
    rows: str
    example: str
    check: Callable[[pa.Table], list[str]] = lambda _: []
    allowed: tuple[str, ...] | None = None
    baselines: tuple[str, ...] = ()
    complete: bool = False
    lenient: bool = False

    def describe(self, where: str, faults: Mapping[str, Sequence[Key]], about: str) -> list[str]:
        """Return one line per kind of fault, with one unit as an example. `about` is the input of the units."""
        (unit, units), (value, values) = self.unit, self.value
        allowed = ", ".join(self.allowed or ())
        words = {
            "lost": (f"{unit} of {about} has no {value}", f"{units} of {about} have no {value}"),
            "repeated": (f"{unit} of {about} has several {values}", f"{units} of {about} have several {values}"),
            "other": (f"{value} is not one of {allowed}", f"{values} are not one of {allowed}"),
            "unknown": (f"{value} belongs to no {unit} of {about}", f"{values} belong to no {unit} of {about}"),
        }
        lost, near = _nearest(faults.get("lost", ()), faults.get("unknown", ()))
        lines = []
        for fault, (one, many) in words.items():
            keys = faults.get(fault)
            if keys:
                shown = self.example.format(*map(shorten, lost if fault == "lost" else min(keys)))
                told = f"{amount(len(keys), one, many)}: {shown}{aside(near) if fault == 'lost' else ''}"
                lines.append(f"{where}: {told}")
        return lines


@dataclass(frozen=True)
class LabelledUnits:
    """The labelled units of an input: the columns `key` that identify a unit, and all that people say of it."""

    about: str
    table: pa.Table
    key: tuple[str, ...]

    @cached_property
    def keys(self) -> list[Key]:
        """The key of each unit."""
        return keys_of(self.table, self.key)

    @cached_property
    def rows(self) -> dict[Key, int]:
        """The row of each unit by its key."""
        return {key: row for row, key in enumerate(self.keys)}

    def column(self, name: str) -> list[Any]:
        """Return a column as a list with one value per unit."""
        values: list[Any] = self.table[name].to_pylist()
        return values


@dataclass(frozen=True)
class Judgements:
    """The judgements of each model and metric, one row per unit; a unit without a judgement has a row of nulls.

    `metrics` are those of each model, in the requested order, or else sorted; the baselines of a metric come last.
    `given` is True for units with a judgement.
    """

    metrics: Mapping[str, tuple[str, ...]]
    tables: Mapping[Owner, pa.Table]
    given: Mapping[Owner, BoolArray]

    @property
    def owners(self) -> list[Owner]:
        """The models with each of their metrics."""
        return [(model, metric) for model, metrics in self.metrics.items() for metric in metrics]

    def only(self, kept: BoolArray) -> Judgements:
        """Return the judgements of some units: bool[units]."""
        tables = {owner: table.filter(pa.array(kept)) for owner, table in self.tables.items()}
        return Judgements(self.metrics, tables, {owner: given[kept] for owner, given in self.given.items()})

    @property
    def all_metrics(self) -> tuple[str, ...]:
        """The metrics of all models, sorted."""
        return tuple(sorted({metric for metrics in self.metrics.values() for metric in metrics}))


def keys_of(table: pa.Table, key: Sequence[str]) -> list[Key]:
    """Return the key of each row."""
    return list(zip(*(table[name].to_pylist() for name in key), strict=True))


def read_judgements(
    source: Source,
    places: Mapping[str, str],
    units: LabelledUnits,
    metrics: Sequence[str] | None,
    judged: Mapping[str, Sequence[str]] | None = None,
) -> Judgements:
    """Read the judgements of each model from an output of `untold score`, or from a folder of Parquet.

    `places` are the folders by model. `metrics` are those to read, None for all metrics of a table; `judged` are those
    of models that judge only some metrics. Raises MetaEvaluationError with all problems of all tables, SampleError for
    a folder without files, and UnreadableRunError for an output whose run has not ended.
    """
    found: dict[str, tuple[str, ...]] = {}
    tables, given, problems, faults = {}, {}, list[str](), list[str]()
    for model, place in places.items():
        where = f"{model} ({place})"
        rows = source.read(where, read_columns(where, place, source.table, source.required, source.optional))
        owners = rows["owner" if "owner" in rows.column_names else "metric"]
        wanted = tuple((judged or {}).get(model) or metrics or _names(owners))
        has = _names(rows["metric"])
        problems += [
            f"{where} has no {source.rows} of metric `{shorten(name)}`{aside(near_misses(name, has))}. "
            f"It has {', '.join(has) or 'none'}"
            for name in wanted or ("any",)
            if name not in has
        ]
        own = rows.filter(pc.is_in(owners, pa.array(wanted, pa.string())))
        problems += [f"{where}: {problem}" for problem in source.check(own)]
        if source.complete and rows["metric"].null_count:
            problems.append(
                f"{where}: the column `metric` is null in some rows. Set the metric of every {source.value[0]}"
            )
        beside = set(_names(own["metric"]))
        found[model] = tuple(dict.fromkeys((*wanted, *(name for name in source.baselines if name in beside))))
        for metric in sorted(found[model]):
            mine = rows.filter(pc.equal(rows["metric"], metric))
            order, wrong = _align(source, mine, units)
            # Keys may be null in tables with problems
            faults += [] if problems else source.describe(f"{where}: {metric}", wrong, units.about)
            tables[model, metric] = mine.take(pa.array(order, mask=order < 0))
            given[model, metric] = order >= 0
    raise_all(problems)
    raise_all(faults)
    return Judgements(found, tables, given)


def fold_label(label: str) -> str:
    """Return a label in lower case with underscores.

    >>> fold_label(" Not supported")
    'not_supported'
    """
    return re.sub(r"[\s_-]+", "_", label.strip().lower())


def check_labels(path: str, labels: Iterable[str | None], known: Collection[str], unit: tuple[str, str]) -> None:
    """Raise MetaEvaluationError for labels that are not known, with the most frequent labels and near misses.

    `unit` is the name of a labelled unit and its plural.
    """
    wrong = Counter(label for label in labels if label not in known)
    parts = [
        f"none at all in {count:,}"
        if label is None
        else f"`{shorten(label)}`{aside(near_misses(label, known))} in {count:,}"
        for label, count in sorted(wrong.items(), key=lambda item: (-item[1], item[0] or ""))
    ]
    if parts:
        raise MetaEvaluationError(
            f"{path}: {amount(wrong.total(), f'{unit[0]} has', f'{unit[1]} have')} a label that is not one of "
            f"{', '.join(known)} ({', '.join(parts[:SHOWN])}{', ...' if len(parts) > SHOWN else ''}). "
            "Correct or remove them"
        )


def whole_rows(rows: Iterable[Row], **shared: Any) -> Rows:
    """Return rows of the table `meta_evaluation` with all its columns, null if neither a row nor `shared` has one."""
    return [{name: (shared | dict(row)).get(name) for name in META_EVALUATION.names} for row in rows]


def raise_all(problems: Sequence[str]) -> None:
    """Raise MetaEvaluationError with one line per problem, if there are problems."""
    if problems:
        raise MetaEvaluationError("\n".join(problems))


def _names(column: pa.ChunkedArray) -> list[str]:
    return sorted(name for name in column.unique().to_pylist() if name is not None)


def _align(source: Source, rows: pa.Table, units: LabelledUnits) -> tuple[IntArray, dict[str, list[Key]]]:
    """Return the row of each unit, -1 for none: int64[units]; and the keys of each kind of fault."""
    keys = keys_of(rows, units.key)
    counts = Counter(keys)
    order = np.full(len(units.keys), -1, dtype=np.int64)
    for row, key in enumerate(keys):
        if key in units.rows:
            order[units.rows[key]] = row
    wrong = {"repeated": [key for key, count in counts.items() if count > 1 and key in units.rows]}
    if source.complete:
        wrong["lost"] = [key for key, row in units.rows.items() if order[row] < 0]
    if not source.lenient:
        wrong["unknown"] = [key for key in counts if key not in units.rows]
    if source.allowed is not None:
        values = zip(keys, rows[source.value[0]].to_pylist(), strict=True)
        odd = {key for key, value in values if value not in (None, *source.allowed)}
        wrong["other"] = list((odd & units.rows.keys()).difference(wrong["repeated"]))
    return order, wrong


def _nearest(lost: Sequence[Key], unknown: Sequence[Key]) -> tuple[Key, list[str]]:
    """Return a lost key, and the id of an unknown key that differs from it only by case and signs, if there is one."""
    folded = {_fold(key): key for key in sorted(unknown, reverse=True)}
    pairs = [(key, list(folded[_fold(key)])) for key in sorted(lost) if _fold(key) in folded]
    return pairs[0] if pairs else (min(lost, default=()), [])


def _fold(key: Key) -> str:
    return re.sub(r"[\W_]+", "", "".join(key).lower())


def table_files(place: str, name: str) -> list[StoragePath]:
    """Return the Parquet files of a table of an output, or those of the folder itself.

    Raises UnreadableRunError for an output whose run has not ended: its tables may be of an earlier start.
    """
    table = find_table(place, name)
    # A folder of that name without a manifest has no run
    if table is not None and (StoragePath(place) / NAME).entry().kind == "file":
        open_run(place)
    files = inspect_files(find_files(place if table is None else str(table)))
    found = [StoragePath(file.path) for file in files if file.kind == "parquet"]
    if not found:
        raise MetaEvaluationError(f"{place} has no Parquet. Give an output of untold score, or a folder of Parquet")
    return found


def read_columns(where: str, place: str, name: str, required: Sequence[str], optional: Sequence[str] = ()) -> pa.Table:
    """Return columns of a table as `table_files` finds it; of the optional columns those that the table has.

    `where` names the table in messages. Raises MetaEvaluationError for unreadable files and missing columns.
    """
    try:
        # Files of different writers may lack optional columns
        paths = [file.arrow for file in table_files(place, name)]
        factory = ds.FileSystemDatasetFactory(paths[0][0], [path for _, path in paths], ds.ParquetFileFormat())
        schema = factory.inspect(promote_options="permissive")
        # Other writers store text as large strings or dictionaries
        rows = factory.finish(pa.schema([field.with_type(_plain(field.type)) for field in schema]))
        has = schema.names
        missing = [column for column in required if column not in has]
        if missing:
            parts = [f"no column `{column}`{aside(near_misses(column, has))}" for column in missing]
            raise MetaEvaluationError(f"{where}: {', and '.join(parts)}. It has {', '.join(sorted(has))}")
        return rows.to_table(columns=[*required, *(column for column in optional if column in has)])
    except (pa.ArrowException, OSError) as error:
        raise MetaEvaluationError(
            f"{where}: one of its files cannot be read ({type(error).__name__}). Give one table of {name}"
        ) from error


def _plain(kind: pa.DataType) -> pa.DataType:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_large_string(value) or pa.types.is_string_view(value)
    return pa.string() if is_text else value


def open_tables(place: str, names: Sequence[str]) -> DuckDBPyConnection | None:
    """Return a database with tables of an output as views, with all columns of the contract; None if one is missing."""
    if any(find_table(place, name) is None for name in names):
        return None
    return connect_tables([RunTables(place, read_manifest(place) or {})], names)


def read_means(places: Iterable[str], metric: str) -> list[Row]:
    """Return measure and mean of a metric's measures over all samples, for the outputs that have them."""
    query = f"select measure, mean from measures_summary where metric = {quoted(metric)} and level = 'overall'"
    opened = [open_tables(place, ["measures_summary"]) for place in places]
    return [row for database in opened if database is not None for row in fetch_rows(database, query)]
