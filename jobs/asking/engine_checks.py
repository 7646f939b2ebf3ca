"""Whether Spark and Ray start under the settings, and reach the store: each tried in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from untold.jobs.asking.checks import FAIL, OK, WARN, Finding
from untold.jobs.asking.probing import check_nodes
from untold.jobs.asking.reach import Reach
from untold.jobs.run import manifest
from untold.jobs.run.refusals import explain, root_cause
from untold.jobs.run.session import loopback_of_driver, open_session
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError, require
from untold.udfs.python_path import python_environment
from untold.udfs.storage import Place

# Seconds until a check has failed. A bare Spark and Ray took 18 s together on two slow cores, and a cluster may be
# crowded
ENGINE_SECONDS = 180.0
# What checks say of a cluster that runs the answering as a job
RAY_JOBS = "Ray jobs"
# Characters of what an engine says
LONGEST = 600


def check_spark(settings: Settings, seconds: float = ENGINE_SECONDS) -> Finding:
    """Whether a Spark session starts and a worker runs Python over Arrow, in a process of its own.

    Under the settings' master and `spark.conf.*`, as a run would have it: wrong jars and unreachable masters show here,
    as do executors that do not reach the store, read another index, or have other versions.
    """
    master = settings.spark.master or "the launcher's master"
    remedy = "check spark.master and spark.conf.*, free memory, and that workers have this environment"
    if not master.startswith("local") and (host := loopback_of_driver(settings)):
        remedy += (
            f"; workers may not reach the driver at {host}: set spark.conf.spark.driver.host and SPARK_LOCAL_IP to the "
            "address of this machine that they reach"
        )
    given: dict[str, Any] = {"settings": settings.model_dump(mode="json"), "places": _places(settings)}
    index = settings.knowledge.index
    given["files"] = [f"{Place(index).spark}/{manifest.NAME}"] if index else []
    return _check_engine("Spark", f"at {master}", given, remedy, seconds)


def check_ray(settings: Settings, seconds: float = ENGINE_SECONDS) -> Finding:
    """Whether a local Ray starts, or the cluster of `ray.address` can be joined, and all its nodes reach the store.

    Where a run starts no Ray of its own, the one that answers is asked for: the job server, or none.
    """
    address = settings.ray.address
    if settings.llm.answering == "ray-job":
        remedy = "see that ray.address names the job server of a running Ray cluster, with ray[default] on its head"
        return _check_engine(RAY_JOBS, f"at {address}", {"address": address}, remedy, seconds)
    if settings.llm.answering == "spool":
        return Finding(WARN, "Ray", "not checked: llm.answering is spool, and `untold answer` checks its own Ray")
    if settings.llm.delivery != "calls":
        return Finding(OK, "Ray", f"not needed: llm.delivery is {settings.llm.delivery}")
    remedy = (
        "check ray.address and that the cluster runs" if address else "check free memory and /dev/shm, or ray.address"
    )
    given = {"address": address, "places": _places(settings), "storage": settings.storage.environment}
    given["runtime_env"] = settings.ray.runtime_env
    return _check_engine("Ray", f"at {address}" if address else "local", given, remedy, seconds)


def _places(settings: Settings) -> dict[str, str]:
    """The folders that all machines share, for a process in another folder."""
    return {place: place for place in (Place(path).spark for path in (settings.store, settings.work) if path)}


def _check_engine(name: str, where: str, given: Any, remedy: str, seconds: float) -> Finding:
    """Whether an engine starts: its version, or its last word and the remedy."""
    code, output = _run_probe(name, json.dumps(given), seconds)
    if code == 0:
        return Finding(OK, name, f"{output} {where}")
    reason = f"no answer within {seconds:g} s" if code is None else output or f"ended with code {code}"
    return Finding(FAIL, name, f"{where}: {reason}; {remedy}")


def _run_probe(name: str, given: str, seconds: float) -> tuple[int | None, str]:
    """Exit code (None where time ran out) and last line of a probe, which leaves no process behind."""
    with tempfile.TemporaryDirectory(prefix="untold-doctor-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "untold.jobs.asking.engine_checks", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Python imports from where it is started, and what lies there is somebody else's
            cwd=folder,
            # A group of its own, which takes the JVM or the raylet along when it is killed
            start_new_session=True,
            env=python_environment(),
        )
        try:
            output = process.communicate(given, timeout=seconds)[0]
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return None, ""
    lines = [line for line in output.splitlines() if line.strip()]
    return process.returncode, lines[-1][:LONGEST] if lines else ""


def _probe_spark(given: Any) -> str:
    """Spark's version, once a row has gone through a Python worker and back."""
    session = open_session(Settings.model_validate_json(json.dumps(given["settings"])), "untold-doctor")
    try:
        Reach(session, given["places"], given["files"]).check_executors()
        rows = session.range(1).mapInArrow(_pass_on, "id long").collect()
        return str(session.version) if len(rows) == 1 else _refuse("a row was lost on its way through a worker")
    finally:
        session.stop()


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches as they came: what a worker does without our code tests Python and Arrow alone."""
    return batches


def _probe_ray(given: Any) -> str:
    """Ray's version, once an actor has answered."""
    # Only the process of this probe may hold a Ray
    import ray

    from untold.jobs.asking.local_ray import start_ray, visit_nodes

    os.environ.update(given["storage"])
    start_ray(given["address"], given["runtime_env"])
    try:
        check_nodes(given["places"], visit_nodes, print)
        # As the actors of a run: no core is theirs, so that a busy cluster still answers
        actor = ray.remote(_Echo).options(num_cpus=0).remote()
        ray.get(actor.say.remote("ready"), timeout=ENGINE_SECONDS)
        return str(ray.__version__)
    finally:
        ray.shutdown()


def _probe_jobs(given: Any) -> str:
    """The version of the API by which a cluster takes jobs."""
    require("llm.answering=ray-job", "cluster", "requests", "aiohttp")
    from ray.job_submission import JobSubmissionClient

    return f"version {JobSubmissionClient(given['address']).get_version()} of its API"


class _Echo:
    """The smallest actor that there is."""

    def say(self, word: str) -> str:
        """The word, once it has gone to an actor and back."""
        return word


def _refuse(reason: str) -> str:
    """Raises RuntimeError; an expression where a statement cannot stand."""
    raise RuntimeError(reason)


PROBES: Mapping[str, Callable[[Any], str]] = {
    "Spark": _probe_spark,
    "Ray": _probe_ray,
    RAY_JOBS: _probe_jobs,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the probe of that name on the JSON of standard input, and prints one line: a version, or what went wrong."""
    name = (sys.argv[1:] if arguments is None else arguments)[0]
    try:
        print(PROBES[name](json.load(sys.stdin)))
    except UserError as error:
        print("; ".join(str(error).splitlines()))
        return 1
    except Exception as error:
        print(explain(error) or root_cause(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
