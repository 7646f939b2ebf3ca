"""Options of runs between tables of a lakehouse, and how they become what a job is asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from untold.jobs.cli.arguments import Option, Options
from untold.jobs.cli.values import one_of, version

if TYPE_CHECKING:
    from untold.jobs.metrics.request import ScoreRequest

LAKEHOUSE_OPTIONS = [
    Option(
        "--output-format",
        "NAME",
        "parquet, or delta or iceberg: the tables are also those of their date in a lakehouse (parquet)",
        read=one_of(("parquet", "delta", "iceberg")),
        default="parquet",
    ),
    Option("--since", "VERSION", "with --input delta:PATH: a version (v12) whose rows are scored", read=version),
]


def with_tables(request: ScoreRequest, options: Options) -> ScoreRequest:
    """The request with the tables that its own are added to, and the version that it goes on from.

    The date of the tables is `--date`, else that of the first start, which the output's manifest knows. Raises
    LakehouseError.
    """
    request = replace(request, since=options.since, refresh=options.since is not None, day=options.date)
    if options.output_format == "parquet":
        return request
    from untold.jobs.lakehouse.inputs import open_lake
    from untold.jobs.run.manifest import read_manifest

    earlier = None if options.overwrite or options.date else read_manifest(request.output)
    known = (earlier or {}).get("lakehouse", {}).get("date")
    day = options.date or (date.fromisoformat(known) if known else datetime.now(UTC).date())
    return replace(request, lake=open_lake(options.output_format, request.settings.lakehouse, day))
