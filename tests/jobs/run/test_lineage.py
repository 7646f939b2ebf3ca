"""Test the records of a run for other systems: OpenLineage events over HTTP and spans of OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.jobs.run.test_reports import Hook
from untold.jobs.run.notifications import lineage, span

FINISHED = {"status": "finished", "tables": {"scores": "scores", "usage": "usage"}, "rows": {"scores": 3, "usage": 1}}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    started = Hook()
    monkeypatch.setenv("OPENLINEAGE_URL", started.url)
    yield started
    started.close()


def names(event: dict[str, Any], side: str) -> list[tuple[str, str]]:
    return [(found["namespace"], found["name"]) for found in event[side]]


def test_a_run_is_reported_from_start_to_end(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "nights")
    notes: list[str] = []
    with lineage("untold.score", "delta:s3a://lake/answers@v12", "/data/out", notes.append) as told:
        told.manifest = FINISHED
    assert notes == []
    first, last = hook.facts
    assert (first["eventType"], last["eventType"]) == ("START", "COMPLETE")
    assert first["run"]["runId"] == last["run"]["runId"]
    assert last["job"]["namespace"] == "nights"
    assert last["job"]["name"] == "untold.score"
    assert names(first, "inputs") == names(last, "inputs") == [("s3://lake", "answers")]
    assert last["inputs"][0]["facets"]["version"]["datasetVersion"] == "v12"
    assert names(first, "outputs") == []
    assert names(last, "outputs") == [("file", "/data/out/scores"), ("file", "/data/out/usage")]
    assert last["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3


def test_tables_of_a_lakehouse_are_reported_with_their_own_names(hook: Hook) -> None:
    for lake in ({"format": "delta", "place": "/lake"}, {"format": "iceberg", "place": "prod.nights"}):
        with lineage("untold.score", "iceberg:prod.db.answers@7", "/data/out", print) as told:
            told.manifest = {**FINISHED, "lakehouse": lake}
    assert names(hook.facts[1], "outputs")[0] == ("file", "/lake/scores")
    assert names(hook.facts[3], "outputs")[0] == ("iceberg", "prod.nights.scores")
    assert names(hook.facts[3], "inputs") == [("iceberg", "prod.db.answers")]


def test_what_raises_or_ends_early_has_failed(hook: Hook) -> None:
    with pytest.raises(ValueError, match="broken"), lineage("untold.score", "in", "out", print):
        raise ValueError("broken")
    with lineage("untold.score", "in", "out", print) as told:
        told.manifest = {**FINISHED, "status": "budget"}
    assert [event["eventType"] for event in hook.facts] == ["START", "FAIL"] * 2


def test_no_event_is_sent_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    with patch.dict(sys.modules, {"openlineage.client": None}):
        with lineage("untold.score", "in", "out", pytest.fail) as told:
            told.manifest = FINISHED


def test_telling_fails_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    refusing = Hook(404)
    monkeypatch.setenv("OPENLINEAGE_URL", refusing.url)
    with lineage("untold.score", "in", "out", notes.append) as told:
        told.manifest = FINISHED
    refusing.close()
    assert len(notes) == 1
    assert notes[0].startswith("OpenLineage could not be reached (")
    notes.clear()
    with patch.dict(sys.modules, {"openlineage.client": None}), lineage("untold.score", "in", "out", notes.append):
        pass
    assert "OpenLineage events are not sent" in notes[0]


def test_stages_are_spans_if_opentelemetry_is_loaded() -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with patch.object(trace, "get_tracer", provider.get_tracer):
        with span("untold score"), span("stage evaluate_coverage", metric="e2e"):
            pass
    inner, outer = kept.get_finished_spans()
    assert (inner.name, dict(inner.attributes or {})) == ("stage evaluate_coverage", {"metric": "e2e"})
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    with patch.dict(sys.modules):
        del sys.modules["opentelemetry.trace"]
        with span("untold score") as nothing:
            assert nothing is None
