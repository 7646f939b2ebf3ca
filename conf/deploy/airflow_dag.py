"""Run Untold every night on Airflow 3: a task per metric, a run per date. Copy it and edit the paths."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, get_current_context, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

METRICS = ["e2e", "nli"]
INPUT = "/data/incoming/{date}/*.jsonl"
OUTPUT = "/data/nightly/{metric}/{{date}}"
STORE = "/data/nightly/completions"
# Budget, outage, spool and interrupt: the same command continues. Other codes need a person
AGAIN = (3, 5, 6, 7, 130)


@task(retries=12, retry_delay=timedelta(minutes=30))
def score(metric: str) -> None:
    """Score the day before the run by one metric. The log of the task has the output."""
    night = (get_current_context()["logical_date"] - timedelta(days=1)).date().isoformat()
    command = ["untold", "nightly", "--input", INPUT, "--output", OUTPUT.format(metric=metric), "--metric", metric]
    command += ["--date", night, "--set", f"completion_store={STORE}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(line, end="")
    if process.returncode in AGAIN:
        raise AirflowException(f"untold ended with {process.returncode}: the next attempt continues the run")
    if process.returncode:
        raise AirflowFailException(f"untold ended with {process.returncode}: see its lines above")


@dag(schedule="30 2 * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def untold_nightly() -> None:
    """Score every metric."""
    score.expand(metric=METRICS)


untold_nightly()
