"""Test spools as folders: the files that a run writes into the spool and the files that it reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs.inference.completions import failed, names_in, row, write
from tests.udfs.llm.askers import SETTINGS, STAGE
from untold.jobs.inference.backends.job import Job, Spool, SpooledJob, SpoolError, open_spool
from untold.jobs.inference.stage.call_settings import with_given
from untold.jobs.run.locks import LockedError
from untold.jobs.settings.loading import load_given
from untold.jobs.settings.model import SettingsError
from untold.udfs.llm.calls import CallContext
from untold.udfs.llm.usage import Usage

JOB = Job("", "", "run1", CallContext(STAGE), SETTINGS)


def spooled(folder: Path, name: str = "stage-run1", job: Job = JOB) -> SpooledJob:
    found = Spool(str(folder)).job(name)
    Path(found.requests).mkdir(parents=True)
    pq.write_table(pa.table({"request_id": ["a", "b"]}), f"{found.requests}/part-0.parquet")
    found.publish(job)
    return found


def test_a_job_has_the_paths_of_its_reader(tmp_path: Path) -> None:
    spooled(tmp_path / "here")
    (tmp_path / "there").symlink_to(tmp_path / "here")
    (job,) = open_spool(str(tmp_path / "there")).jobs()
    assert job.is_open
    assert job.count_requests() == 2
    assert job.read() == replace(JOB, requests=job.requests, directory=job.completions)
    assert job.requests == f"{tmp_path}/there/jobs/stage-run1/requests"
    assert str(tmp_path) not in (tmp_path / "here/jobs/stage-run1/job.json").read_text()


def test_jobs_of_two_stores_are_distinct_and_jobs_of_one_store_are_not(tmp_path: Path) -> None:
    spool, moved = Spool(f"{tmp_path}/spool"), Spool(f"{tmp_path}/mount/spool")
    assert spool.prefix(STAGE, f"{tmp_path}/one") != spool.prefix(STAGE, f"{tmp_path}/two")
    assert spool.prefix(STAGE, f"{tmp_path}/one") == moved.prefix(STAGE, f"{tmp_path}/mount/one")
    assert spool.prefix(STAGE, f"{tmp_path}/one").startswith(f"{STAGE.name}-{STAGE.digest}-")


def test_a_password_is_never_in_a_spool(tmp_path: Path) -> None:
    secret = replace(JOB, settings=replace(SETTINGS, base_url="http://me:hush-hush@host/v1"))
    with pytest.raises(
        SpoolError, match=r"llm\.base_url, llm\.extra_body, a header or a parameter contains a secret"
    ) as refused:
        spooled(tmp_path, job=secret)
    assert "hush-hush" not in str(refused.value)
    assert not any(job.is_open for job in Spool(str(tmp_path)).jobs())


def test_what_was_collected_is_not_collected_again(tmp_path: Path) -> None:
    job = spooled(tmp_path)
    write(Path(job.completions), "one.parquet", [row("a", text="t")])
    job.note_usage("worker1", Usage(calls=1, cost=0.5))
    job.note_usage("worker1", Usage(calls=3, cost=1.5))
    store = str(tmp_path / "store")
    assert job.collect(store) == Usage(calls=3, done=1, cost=1.5)
    write(Path(job.completions), "two.parquet", [failed("filtered", request_id="b")])
    before = (tmp_path / "store/one.parquet").stat().st_mtime_ns
    job.note_usage("worker2", Usage(calls=2))
    assert job.collect(store) == Usage(calls=2, done=1, failed=1)
    assert names_in(tmp_path / "store") == ["one.parquet", "two.parquet"]
    assert (tmp_path / "store/one.parquet").stat().st_mtime_ns == before


def test_a_closed_job_keeps_its_answers_and_is_open_no_more(tmp_path: Path) -> None:
    job = spooled(tmp_path)
    write(Path(job.completions), "one.parquet", [row("a", text="t")])
    job.close()
    assert not job.is_open
    assert names_in(Path(job.completions)) == ["one.parquet"]
    assert not Path(job.requests).exists()


def test_two_workers_never_have_the_same_job(tmp_path: Path) -> None:
    job = spooled(tmp_path)
    with job.locked("worker1", wait=False) as is_lost:
        assert not is_lost()
        with pytest.raises(LockedError), job.locked("worker2", wait=False):
            pass


@pytest.mark.parametrize("content", ["{", "{}", json.dumps({"stage": {}, "settings": {}})])
def test_an_invalid_job_is_an_error_with_a_remedy(tmp_path: Path, content: str) -> None:
    job = spooled(tmp_path)
    (tmp_path / "jobs/stage-run1/job.json").write_text(content)
    with pytest.raises(SpoolError, match=r"stage-run1/job\.json cannot be read. Remove .*, and start the run again"):
        job.read()


def test_a_folder_without_a_spool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="is not a spool, because it has no folder jobs"):
        open_spool(str(tmp_path))


def test_a_worker_has_its_own_key_limits_times_and_budget_and_the_rest_of_the_job() -> None:
    sets = ["llm.api_key_env=MINE", "llm.max_concurrency=3", "llm.outage_minutes=2", "budget.max_calls=7"]
    job = replace(JOB, actors=2)
    changed = with_given(job, load_given(None, [*sets, "llm.actors=5"], {"UNTOLD_LLM__TIMEOUT_SECONDS": "9"}))
    settings = changed.settings
    assert (settings.api_key_env, settings.limits.max_concurrency, settings.budget.max_calls) == ("MINE", 3, 7)
    assert (settings.timeout, settings.outage, changed.actors) == (9.0, 120.0, 5)
    assert (settings.base_url, settings.max_attempts) == (SETTINGS.base_url, SETTINGS.max_attempts)
    assert with_given(job, load_given(None, [], {})) == job


def test_the_key_of_a_job_is_sent_to_no_other_address() -> None:
    keyed = replace(JOB, settings=replace(SETTINGS, api_key_env="KEY_OF_THE_JOB"))
    moved = with_given(keyed, load_given(None, ["llm.base_url=http://elsewhere/v1"], {}))
    assert (moved.settings.base_url, moved.settings.api_key_env) == ("http://elsewhere/v1", None)
    same = with_given(keyed, load_given(None, [f"llm.base_url={SETTINGS.base_url}"], {}))
    assert same.settings.api_key_env == "KEY_OF_THE_JOB"


def test_settings_of_a_worker_are_checked_as_any() -> None:
    with pytest.raises(SettingsError, match=r"llm\.actors"):
        load_given(None, ["llm.actors=none"], {})
