"""Notify other systems of a run: OpenLineage events, OpenTelemetry spans, Prometheus metrics and webhooks."""

from __future__ import annotations

import hmac
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.request import Request, urlopen

from untold.jobs.lakehouse.inputs import table_named
from untold.jobs.settings.sections import NotifySettings
from untold.udfs.redaction import without_secrets
from untold.udfs.samples.files import is_remote
from untold.udfs.storage import StoragePath

# OpenLineage's client reads its destination from one of these variables
SWITCHES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
PRODUCER = "https://pypi.org/project/untold"


@dataclass
class Lineage:
    """The names of a run in events, and its final manifest, which is empty for an incomplete run."""

    job: str
    input: str
    output: str
    manifest: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def lineage(job: str, input: str, output: str, note: Callable[[str], None]) -> Iterator[Lineage]:
    """Send the OpenLineage events of the block: START, then COMPLETE, or FAIL for an error or an unfinished run."""
    told = Lineage(job, input, output)
    emit = _emitter(told, note) if any(os.environ.get(name) for name in SWITCHES) else lambda _: None
    emit("START")
    try:
        yield told
    finally:
        emit("COMPLETE" if told.manifest.get("status") == "finished" else "FAIL")


def _emitter(told: Lineage, note: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that sends the event of a state. After an error it prints one line and sends nothing more."""
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.uuid import generate_new_uuid

        client, run = OpenLineageClient(), Run(runId=str(generate_new_uuid()))
    except Exception as error:
        note(f"OpenLineage events are not sent ({type(error).__name__}: {error})")
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
            note(f"OpenLineage could not be reached ({type(error).__name__})")

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
    """Return the tables of the output, with their own names if they are in a lakehouse."""
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
    """Return the namespace and the name of a path in OpenLineage.

    >>> dataset_of("/data/out/scores"), dataset_of("s3a://bucket/out/scores")
    (('file', '/data/out/scores'), ('s3://bucket', 'out/scores'))
    """
    if not is_remote(path):
        return "file", StoragePath(path).spark
    scheme, _, rest = path.replace("s3a://", "s3://", 1).partition("://")
    authority, _, name = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}", name or "/"


def span(name: str, **attributes: str) -> AbstractContextManager[Any]:
    """Return an OpenTelemetry span of the block, or an empty context if OpenTelemetry is not loaded.

    `opentelemetry-instrument`, or code with a provider, loads it before.
    """
    trace = sys.modules.get("opentelemetry.trace")
    return (
        nullcontext()
        if trace is None
        else trace.get_tracer("untold").start_as_current_span(name, attributes=attributes)
    )


SIGNATURE = "X-Untold-Signature"
SECONDS = 10.0


@dataclass
class RunNotification:
    """The notification of a command: `facts` for the message, without texts of samples, and the metrics file's text."""

    facts: dict[str, Any] = field(default_factory=dict)
    metrics: str | None = None


def facts_of(manifest: Mapping[str, Any], exit_code: int) -> dict[str, Any]:
    """Return the facts of a run for a message."""
    named = ("run", "counts", "summary", "totals")
    return {"status": manifest["status"], "exit_code": exit_code, **{name: manifest.get(name) for name in named}}


@contextmanager
def reporting(
    settings: NotifySettings, metrics_file: str | None, note: Callable[[str], None], **facts: Any
) -> Iterator[RunNotification]:
    """Send the notification of the block at its end. For an error it has the status `failed` and only the type.

    A notification that cannot be written or sent prints a line. The command does not fail.
    """
    report = RunNotification({**facts, "status": "failed", "exit_code": 1})
    try:
        yield report
    except BaseException as error:
        interrupted = {"status": "interrupted", "exit_code": 130} if isinstance(error, KeyboardInterrupt) else {}
        report.facts |= {"error": type(error).__name__, **interrupted}
        raise
    finally:
        _tell(report, settings, metrics_file, note)


def _tell(
    report: RunNotification, settings: NotifySettings, metrics_file: str | None, note: Callable[[str], None]
) -> None:
    if metrics_file is not None and report.metrics is not None:
        try:
            StoragePath(metrics_file).write_bytes(report.metrics.encode())
        except (OSError, ValueError) as error:
            note(f"--metrics-file {metrics_file} could not be written ({_reason(error)})")
    if settings.url is not None:
        try:
            _send(settings, report.facts)
        except (OSError, ValueError) as error:
            note(f"notify.url could not be reached ({_reason(error)})")


def _send(settings: NotifySettings, facts: Mapping[str, Any]) -> None:
    """Post the facts as JSON, signed if `key_env` is set. Raises OSError, and ValueError for a missing key."""
    body = json.dumps(without_secrets(facts), ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "untold"}
    if settings.key_env is not None:
        key = os.environ.get(settings.key_env)
        if not key:
            raise ValueError(f"{settings.key_env} is not set")
        headers[SIGNATURE] = f"sha256={hmac.new(key.encode(), body, sha256).hexdigest()}"
    with urlopen(Request(str(settings.url), body, headers), timeout=SECONDS) as answer:
        answer.read()


def _reason(error: Exception) -> str:
    """Return the short reason of an error."""
    return str(getattr(error, "strerror", None) or getattr(error, "reason", None) or error) or type(error).__name__
