"""Test `untold batches`: the list of the batches at an endpoint, and how to fetch, cancel and forget them."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.jobs.inference.batched import ROWS, deliver, left_job, rows_of
from untold.jobs.batches import BatchListing, NoBatchesError, batches
from untold.jobs.cli.main import main
from untold.jobs.inference.backends.batch_jobs import BatchJob
from untold.udfs.llm.batch_api import BatchError, BatchStatus, HostedBatches
from untold.udfs.llm.batch_formats import open_batches
from untold.udfs.llm.calls import Answer


@pytest.fixture
def job(server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchJob:
    """Return a job with three batches that were created with the key in A_KEY."""
    monkeypatch.setenv("A_KEY", "sk-one")
    server.configure(batches={"delay": 60.0})
    job = left_job(tmp_path, base_url=server.base_url, api_key_env="A_KEY")
    with closing(open_batches(job.read().settings)) as api:
        assert deliver(job, api, poll=False).reason == "batched"
    return job


def run(job: BatchJob, act: str, *ids: str, key: str | None = None) -> list[BatchListing]:
    store = str(job.place).partition("/batches/")[0]
    return batches(store, act, lambda _: None, ids, key)


def test_batches_are_listed_as_the_endpoint_shows_them(job: BatchJob) -> None:
    assert [(one.batch, one.requests, one.status, one.stage, one.run) for one in run(job, "list")] == [
        ("batch_1", 4, "in_progress", "summarise_context", "run1"),
        ("batch_2", 4, "in_progress", "summarise_context", "run1"),
        ("batch_3", 2, "in_progress", "summarise_context", "run1"),
    ]


def test_the_command_prints_lines_and_json(job: BatchJob, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(job.place).partition("/batches/")[0]
    assert main(["batches", store]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["batch_1", "summarise_context"]
    assert main(["batches", store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [asdict(one) for one in run(job, "list")]


def test_a_cancelled_batch_keeps_its_completions_and_the_others_continue(job: BatchJob) -> None:
    assert [one.status for one in run(job, "cancel", "batch_2")] == ["in_progress", "cancelled", "in_progress"]
    assert [one.batch for one in run(job, "fetch")] == ["batch_1", "batch_3"]
    assert len(rows_of(job)) == 4
    run(job, "cancel")
    assert run(job, "fetch") == []
    assert (len(rows_of(job)), job.is_open) == (ROWS, False)


def test_a_batch_of_another_key_is_forgotten_only_by_its_id(job: BatchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOTHER", "sk-another")
    assert {one.status for one in run(job, "list", key="ANOTHER")} == {"not visible"}
    with pytest.raises(
        NoBatchesError, match="; batch_3 cannot be cancelled: HTTP 404; check the account that created them"
    ):
        run(job, "cancel", key="ANOTHER")
    with pytest.raises(NoBatchesError, match="has no batch batch_9; it has batch_1, batch_2, batch_3"):
        run(job, "cancel", "batch_9", key="ANOTHER")
    found = run(job, "cancel", "batch_2", key="ANOTHER")
    assert [(one.batch, one.status) for one in found] == [
        ("batch_1", "not visible"),
        ("batch_3", "not visible"),
        ("000004", "not submitted"),
    ]
    # The batch is forgotten, so the next run creates it again
    run(job, "fetch")
    assert [batch.id for batch in job.ledger().batches] == ["batch_1", "batch_3"]


def test_what_has_ended_is_forgotten_only_by_its_id(job: BatchJob) -> None:
    run(job, "cancel")
    assert [one.batch for one in run(job, "cancel")] == ["batch_1", "batch_2", "batch_3"]
    assert [one.batch for one in run(job, "cancel", "batch_1")] == ["batch_2", "batch_3", "000004"]


def test_a_batch_that_cannot_be_cancelled_keeps_no_other_from_it(
    job: BatchJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []

    def cancel(_: HostedBatches, batch: str) -> None:
        if batch == "batch_1":
            raise BatchError(Answer(error_type="http_500", error="HTTP 500"))
        cancelled.append(batch)

    monkeypatch.setattr(HostedBatches, "cancel", cancel)
    with pytest.raises(NoBatchesError, match="batch_1 cannot be cancelled: HTTP 500; check the account"):
        run(job, "cancel")
    assert cancelled == ["batch_2", "batch_3"]
    # A batch that is about to end is not cancelled
    monkeypatch.setattr(HostedBatches, "look", lambda _, batch: BatchStatus(batch, "finalizing"))
    assert {one.status for one in run(job, "cancel")} == {"finalizing"}
    assert len(cancelled) == 2


def test_a_folder_without_batches_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoBatchesError, match=r"has no batches\. Give the output of a run, or its store"):
        batches(str(tmp_path), "list", print)
