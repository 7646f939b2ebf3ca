"""Which tables of a lakehouse an output's tables are added to: `--output-format delta | iceberg`."""

from __future__ import annotations

from datetime import date

from untold.jobs.lakehouse.base import Lake, LakehouseError
from untold.jobs.settings.sections import LakehouseSettings
from untold.udfs.errors import require
from untold.udfs.storage import Place

FORMATS = ("parquet", "delta", "iceberg")


def open_lake(format: str, settings: LakehouseSettings, day: date) -> Lake | None:
    """The tables that `--output-format` names; None for `parquet`. Raises LakehouseError where a setting is missing."""
    if format == "delta":
        require("--output-format delta", "lakehouse", "deltalake")
        if settings.path is None:
            raise LakehouseError("--output-format delta needs lakehouse.path: --set lakehouse.path=DIR")
        from untold.jobs.lakehouse.delta import DeltaLake

        return DeltaLake(Place(settings.path).spark, day)
    if format == "iceberg":
        require("--output-format iceberg", "lakehouse", "pyiceberg")
        if settings.catalog is None or settings.namespace is None:
            raise LakehouseError(
                "--output-format iceberg needs lakehouse.catalog and lakehouse.namespace: "
                "--set lakehouse.catalog=NAME --set lakehouse.namespace=NAME"
            )
        from untold.jobs.lakehouse.iceberg import IcebergLake

        return IcebergLake(f"{settings.catalog}.{settings.namespace}", day)
    return None
