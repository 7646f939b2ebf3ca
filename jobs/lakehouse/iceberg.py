"""Read and write Iceberg tables with `pyiceberg`. Its own file and variables configure the catalogs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, ClassVar

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType

from untold.jobs.lakehouse import base
from untold.udfs.storage import StoragePath

CHECK = "check the name, and the catalog in .pyiceberg.yaml or PYICEBERG_CATALOG__*"
# The property with column names for files without field ids, such as files from Spark
MAPPING = "schema.name-mapping.default"
# Column statistics. They are optional, and readers then use the statistics in the files
FIGURES = (
    *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"),
    *("lower_bounds", "upper_bounds"),
)
FIELD_ID = b"PARQUET:field_id"
EPOCH = date(1970, 1, 1)


def read_version(name: str, version: str | datetime | None, wanted: Mapping[str, str]) -> base.TableVersion:
    """Return the files of `CATALOG.NAMESPACE.TABLE`, or of a partition, at a snapshot, at a time, or now.

    Raises LakehouseError if the files need more than a Parquet reader, and NoTableError if there is no table.
    """
    with base.telling(f"iceberg:{name}", CHECK):
        try:
            table = _catalog_of(name).load_table(name.partition(".")[2])
        except NoSuchTableError as error:
            raise base.NoTableError(f"iceberg:{name} does not exist; {CHECK}") from error
        snapshot = _snapshot(table, name, version)
        scan = table.scan(snapshot_id=snapshot)
        schema, specs = scan.projection(), table.specs()
        columns = index_name_by_id(schema)
        parted = ((task, _parts(task, specs, schema)) for task in scan.plan_files())
        tasks = base.in_partition(f"iceberg:{name}", parted, wanted)
        _check_readable(name, tasks, schema)
    return base.TableVersion(str(snapshot), [_file(task, specs, schema, columns) for task in tasks])


def _catalog_of(name: str) -> Catalog:
    return load_catalog(name.partition(".")[0])


def _snapshot(table: Table, name: str, version: str | datetime | None) -> int:
    """Return the id of a snapshot. Raises LakehouseError if the table does not have it."""
    if isinstance(version, datetime):
        found = table.snapshot_as_of_timestamp(int(version.timestamp() * 1000))
        if found is None:
            raise base.LakehouseError(f"the table iceberg:{name} is newer than {version.isoformat()}. Use a later time")
    elif version is not None:
        found = table.snapshot_by_id(int(version))
        if found is None:
            raise base.LakehouseError(f"iceberg:{name} has no snapshot {version}. It may have expired")
    else:
        found = table.current_snapshot()
        if found is None:
            raise base.NoTableError(f"iceberg:{name} has no rows yet")
    return found.snapshot_id


def _check_readable(name: str, tasks: Sequence[FileScanTask], schema: Schema) -> None:
    """Raise LakehouseError if a Parquet reader would not see the rows of the table."""
    if any(task.delete_files for task in tasks):
        raise base.LakehouseError(
            f"iceberg:{name} has delete files, which are not supported. Rewrite the files first with "
            "CALL ... rewrite_data_files with delete-file-threshold 1"
        )
    if any(task.file.file_format != FileFormat.PARQUET for task in tasks):
        raise base.LakehouseError(f"iceberg:{name} has files that are not Parquet. Rewrite them as Parquet")
    if defaults := [field.name for field in schema.fields if field.initial_default is not None]:
        raise base.LakehouseError(
            f"iceberg:{name} has a default for `{defaults[0]}` of older files, which is not supported. Rewrite them"
        )


def _file(
    task: FileScanTask, specs: Mapping[int, PartitionSpec], schema: Schema, columns: Mapping[int, str]
) -> base.ListedFile:
    """Return a file with the values of identity partition columns, because the file need not have them."""
    types = schema_to_pyarrow(schema)
    constants = {}
    for position, part in enumerate(specs[task.file.spec_id].fields):
        if isinstance(part.transform, IdentityTransform) and part.source_id in columns:
            column = columns[part.source_id]
            constants[column] = pa.scalar(task.file.partition[position], types.field(column).type)
    path = StoragePath(task.file.file_path).spark
    return base.ListedFile(path, task.file.file_size_in_bytes, constants=constants, names=columns)


def _parts(task: FileScanTask, specs: Mapping[int, PartitionSpec], schema: Schema) -> dict[str, str]:
    """Return the values, or the days, of the partition columns of a file."""
    fields = enumerate(specs[task.file.spec_id].fields)
    return {
        schema.find_field(part.source_id).name: part.transform.to_human_string(
            schema.find_field(part.source_id).field_type, task.file.partition[position]
        )
        for position, part in fields
        if isinstance(part.transform, IdentityTransform | DayTransform)
    }


def differing_column(file: pa.Schema, names: Mapping[int, str]) -> str | None:
    """Return a column of a file that its table has under another name or has dropped, or None."""
    if not any(FIELD_ID in (field.metadata or {}) for field in file):
        return None
    found = index_name_by_id(pyarrow_to_schema(file))
    return next((column for number, column in found.items() if names.get(number) != column), None)


@dataclass(frozen=True)
class IcebergLake(base.Lake):
    """Iceberg tables of a namespace: `CATALOG.NAMESPACE.scores`, `CATALOG.NAMESPACE.statements`, ..."""

    FORMAT: ClassVar[str] = "iceberg"

    def folder(self, name: str, schema: pa.Schema) -> str:
        with self._telling(name):
            location = StoragePath(self._table(name, schema).location()).spark
        return f"{location.rstrip('/')}/data/{base.DATE}={self.date}"

    def extend(self, name: str, schema: pa.Schema) -> None:
        with self._telling(name):
            table = self._catalog.load_table(self._identifier(name))
            if new := [field for field in schema if field.name not in table.schema().column_names]:
                with table.transaction() as change:
                    with change.update_schema() as update:
                        update.union_by_name(pa.schema(new))
                    change.set_properties(_mapping(change.table_metadata.schema()))
            there = table.schema()
            for field in schema:
                if _type_in(there, field) != (known := there.find_field(field.name).field_type):
                    raise self.other_type(name, field, known)

    def commit(self, name: str, files: Sequence[base.DataFile]) -> int:
        with self._telling(name):
            return base.repeated(lambda: self._commit(name, files), CommitFailedException, ValidationException)

    def _commit(self, name: str, files: Sequence[base.DataFile]) -> int:
        table = self._catalog.load_table(self._identifier(name))
        earlier = [task.file for task in table.scan(f"{base.DATE} = '{self.date}'").plan_files()]
        if earlier or files:
            with table.transaction() as change, change.update_snapshot().overwrite() as update:
                for one in earlier:
                    update.delete_data_file(one)
                for file in files:
                    update.append_data_file(self._added(file, table.metadata.default_spec_id))
        snapshot = table.current_snapshot()
        return -1 if snapshot is None else snapshot.snapshot_id

    def _added(self, file: base.DataFile, spec: int) -> IcebergFile:
        unknown: dict[str, Any] = dict.fromkeys(("sort_order_id", "equality_ids", "key_metadata", "split_offsets"))
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=_uri(file.entry.place),
            file_format=FileFormat.PARQUET,
            partition=Record((self.date - EPOCH).days),
            record_count=file.rows,
            file_size_in_bytes=file.entry.size,
            spec_id=spec,
            **unknown | {figure: {} for figure in FIGURES},
        )

    def _table(self, name: str, schema: pa.Schema) -> Table:
        """Return the table, and create it with these columns if it does not exist."""
        identifier = self._identifier(name)
        if self._catalog.table_exists(identifier):
            return self._catalog.load_table(identifier)
        self._catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
        with self._catalog.create_table_transaction(identifier, schema.append(base.DATE_FIELD)) as change:
            with change.update_spec() as update:
                update.add_identity(base.DATE)
            change.set_properties(_mapping(change.table_metadata.schema()))
        return self._catalog.load_table(identifier)

    @property
    def _catalog(self) -> Catalog:
        return _catalog_of(self.place)

    def _identifier(self, name: str) -> str:
        return f"{self.place.partition('.')[2]}.{name}"

    def _telling(self, name: str) -> Any:
        return base.telling(f"{self.place}.{name}", CHECK)


def _type_in(table: Schema, column: pa.Field[Any]) -> IcebergType | None:
    """Return the type of a file's column in a table with this column, or None if the types have another structure."""
    try:
        return pyarrow_to_schema(pa.schema([column]), create_mapping_from_schema(table)).fields[0].field_type
    except ValueError:
        return None


def _mapping(schema: Schema) -> dict[str, str]:
    return {MAPPING: create_mapping_from_schema(schema).model_dump_json()}


def _uri(place: StoragePath) -> str:
    """Return the path of a file for manifests of Iceberg, which other readers also use."""
    return f"file://{place.local}" if place.local is not None else str(place).replace("s3a://", "s3://", 1)
