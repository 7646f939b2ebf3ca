"""What others may follow of a run: OpenLineage events of its inputs and outputs, and OpenTelemetry spans of its stages.

Both are off unless the environment asks for them, and neither ever fails a run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from untold.jobs.lakehouse.inputs import table_named
from untold.udfs.samples.files import is_remote
from untold.udfs.storage import Place

# By either of which OpenLineage's client knows where events go
SWITCHES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
PRODUCER = "https://pypi.org/project/untold"


@dataclass
class Lineage:
    """A run as events tell of it. `manifest` is that of its end, and empty where it did not come to one."""

    job: str
    input: str
    output: str
    manifest: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def lineage(job: str, input: str, output: str, note: Callable[[str], None]) -> Iterator[Lineage]:
    """Tells OpenLineage of the run within: START, then COMPLETE, or FAIL where it raises or ended early."""
    told = Lineage(job, input, output)
    emit = _emitter(told, note) if any(os.environ.get(name) for name in SWITCHES) else lambda _: None
    emit("START")
    try:
        yield told
    finally:
        emit("COMPLETE" if told.manifest.get("status") == "finished" else "FAIL")


def _emitter(told: Lineage, note: Callable[[str], None]) -> Callable[[str], None]:
    """What sends an event of a state. Where that fails once it is a line, and no other is sent."""
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.uuid import generate_new_uuid

        client, run = OpenLineageClient(), Run(runId=str(generate_new_uuid()))
    except Exception as error:
        note(f"OpenLineage is not told ({type(error).__name__}: {error})")
        return lambda _: None
    failed: list[str] = []

    def emit(state: str) -> None:
        if failed:
            return
        try:
            event = RunEvent(
                eventType=RunState[state],
                eventTime=datetime.now(UTC).isoformat(),
                run=run,
                job=Job(namespace=os.environ.get("OPENLINEAGE_NAMESPACE", "default"), name=told.job),
                producer=PRODUCER,
                inputs=[_read(told.input)],
                outputs=_written(told) if state == "COMPLETE" else [],
            )
            client.emit(event)
        except Exception as error:
            failed.append(state)
            note(f"OpenLineage could not be told ({type(error).__name__})")

    return emit


def _read(path: str) -> Any:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset

    table = table_named(path)
    if table is None:
        return InputDataset(*dataset_of(path))
    version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(table.version))
    name = ("iceberg", table.name) if table.format == "iceberg" else dataset_of(table.name)
    return InputDataset(*name, facets={"version": version})


def _written(told: Lineage) -> list[Any]:
    """The tables of the output; those of a lakehouse by the names that they have there."""
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    lake, rows = told.manifest.get("lakehouse"), told.manifest.get("rows") or {}
    found = []
    for name in told.manifest.get("tables") or ():
        facet = statistics.OutputStatisticsOutputDatasetFacet(rowCount=rows.get(name))
        if lake and lake["format"] == "iceberg":
            known = ("iceberg", f"{lake['place']}.{name}")
        else:
            known = dataset_of(f"{lake['place'] if lake else told.output}/{name}")
        found.append(OutputDataset(*known, outputFacets={"outputStatistics": facet}))
    return found


def dataset_of(path: str) -> tuple[str, str]:
    """The namespace and name that OpenLineage has for a path.

    >>> dataset_of("/data/out/scores"), dataset_of("s3a://bucket/out/scores")
    (('file', '/data/out/scores'), ('s3://bucket', 'out/scores'))
    """
    if not is_remote(path):
        return "file", Place(path).spark
    scheme, _, rest = path.replace("s3a://", "s3://", 1).partition("://")
    authority, _, name = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}", name or "/"


def span(name: str, **attributes: str) -> AbstractContextManager[Any]:
    """An OpenTelemetry span of what is within; nothing where the process has not loaded OpenTelemetry.

    Who wants spans loads it before, by `opentelemetry-instrument` or a provider of their own.
    """
    trace = sys.modules.get("opentelemetry.trace")
    return (
        nullcontext()
        if trace is None
        else trace.get_tracer("untold").start_as_current_span(name, attributes=attributes)
    )
