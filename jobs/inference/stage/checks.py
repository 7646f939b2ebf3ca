"""Check that settings, Spark, Ray and the store work, and name the remedy if they do not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from untold.jobs.inference.backends.node_checks import ClusterChecks, check_nodes
from untold.jobs.inference.stage.bindings import bind_embedding, bind_entailment, bind_search
from untold.jobs.inference.stage.call_settings import (
    Section,
    address_of,
    classifiers_of,
    is_address,
    key_remedy,
    section_of,
)
from untold.jobs.run import manifest
from untold.jobs.run.error_messages import explain, root_cause
from untold.jobs.run.session import loopback_of_driver, open_session
from untold.jobs.run.terminal import Page, wrapped
from untold.jobs.settings.model import Settings, SettingsError
from untold.jobs.settings.sections import BRAVE_URL
from untold.udfs.errors import UserError, require
from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.client import Endpoint
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.retrying import address_setting
from untold.udfs.llm.retrying import remedy_of as refusal_remedy
from untold.udfs.llm.script import key_header_of, script_of
from untold.udfs.python_path import python_environment
from untold.udfs.redaction import redact
from untold.udfs.retrieval.embedding import Classifier, Embedder, find_classifier, find_model
from untold.udfs.retrieval.local_models import MINILM, LocalModelFileError
from untold.udfs.stages import LOOKUPS
from untold.udfs.storage import StoragePath

OK, WARN, FAIL = "ok", "warn", "FAIL"
CALL_SECONDS = 60.0
# Where the text of a finding begins
INDENT = 25


@dataclass(frozen=True)
class CheckResult:
    """What a check found: `ok`, `warn` or `FAIL`, about what, and for a failure what to do."""

    state: str
    about: str
    text: str

    def lines(self, page: Page) -> list[str]:
        """The finding on a page; what does not fit on its first line is indented."""
        return wrapped(str(self), page, indent=INDENT)

    def __str__(self) -> str:
        return redact(f"{self.state:4}  {self.about:17}  {self.text}")


def plain_url(url: str) -> str:
    """A URL without user, password and query, which may hold keys."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if "://" in url else url


def remedy_of(answer: Answer, settings: Settings, section: Section = "llm") -> str:
    """What to do about an answer that failed, by its kind and the section of the settings that names its endpoint."""
    kind = answer.error_type or ""
    if answer.about:
        return refusal_remedy(answer, section)
    if kind in ("http_401", "http_403"):
        return key_remedy(getattr(settings, section).api_key_env, section)
    address = address_setting(section)
    if answer.refused:
        return f"check {address}{'' if section == 'classifier' else ' (most end in /v1)'} and {section}.model"
    fits = {
        "llm": "an OpenAI-compatible API (most end in /v1) and fits llm.api",
        "search": "the web search",
        "classifier": "a server that classifies pairs",
    }
    remedies = {
        "connection": f"check {address} and that its server runs and can be reached from here",
        "timeout": f"check {address} and the load of its server, or raise llm.timeout_seconds",
        "bad_body": f"check that {address} is {fits.get(section, 'an OpenAI-compatible API for embeddings')}",
        "http_429": "the rate or the quota is used up: wait, or check the account",
    }
    if kind.startswith("http_5"):
        return "the endpoint is in trouble: try again later, or see its own log"
    others = {
        "llm": "llm.model, llm.api, llm.extra_body and the decoding settings",
        "search": "search.base_url",
        "classifier": "classifier.model, classifier.separator and classifier.batch",
    }
    return remedies.get(kind, f"check {others.get(section, f'{section}.model and {section}.extra_body')}")


def check_lookups(settings: Settings) -> Iterator[CheckResult]:
    """Of what facts are looked up with, what is set: an endpoint or a model for embeddings, a search, a classifier."""
    seconds = min(CALL_SECONDS, settings.llm.timeout_seconds)
    embeddings, searching = settings.embeddings, settings.search
    if embeddings.base_url is not None:
        where = f"{embeddings.model} at {plain_url(embeddings.base_url)}"
        yield _found("embeddings", where, _try_embedding(settings, seconds), settings)
    elif embeddings.model != MINILM:
        yield _check_files("embeddings", lambda: Embedder(find_model(embeddings.model)).embed(["water is wet"]))
    if searching.base_url != BRAVE_URL or os.environ.get(searching.api_key_env or ""):
        yield _check_search(settings, seconds)
    for named in classifiers_of(settings):
        if is_address(named):
            yield _check_server(named, settings, seconds)
        else:
            yield _check_files("classifier", partial(_try_classifier, named))


def _try_classifier(folder: str) -> object:
    return Classifier(find_classifier(folder)).classify([("wet", "wet")])


def _found(section: Section, where: str, answer: Answer, settings: Settings) -> CheckResult:
    """The finding about an endpoint that is no language model's."""
    if answer.error_type is None:
        return CheckResult(OK, section, where)
    return CheckResult(FAIL, section, f"{where}: {answer.error}; {remedy_of(answer, settings, section)}")


def _check_files(about: str, use: Callable[[], object]) -> CheckResult:
    """Whether a local model can be used. Its errors say what is missing, or wrong with it."""
    try:
        use()
        return CheckResult(OK, about, "a local model, run within tasks")
    except LocalModelFileError as error:
        return CheckResult(FAIL, about, str(error))


def _try_embedding(settings: Settings, seconds: float) -> Answer:
    """What the endpoint for embeddings makes of a short text, within so many seconds; no retry hides what is wrong."""
    row = {"text": "water is wet", "kind": "document"}
    member = Request("tried", row, "tried")
    return _try(bind_embedding(settings), settings, Request("tried", row, "tried", members=[member]), seconds)


def _check_search(settings: Settings, seconds: float) -> CheckResult:
    """What the web search makes of one query, within so many seconds; what its settings lack is a finding too."""
    row = {"query": "water is wet", "count": 1}
    try:
        stage = bind_search(settings)
    except SettingsError as error:
        return CheckResult(FAIL, "search", str(error))
    where = f"{settings.search.model} at {plain_url(settings.search.base_url)}"
    return _found("search", where, _try(stage, settings, Request("tried", row, "tried"), seconds), settings)


def _check_server(address: str, settings: Settings, seconds: float) -> CheckResult:
    """What a server makes of one pair, within so many seconds; what its settings lack is a finding too."""
    row = {"premise": "water is wet", "hypothesis": "water is wet"}
    try:
        stage = bind_entailment(settings)
    except (SettingsError, LocalModelFileError) as error:
        return CheckResult(FAIL, "classifier", str(error).replace("\n", "; "))
    request = Request("tried", row, "tried", members=[Request("tried", row, "tried")])
    where = f"{stage.model} at {plain_url(address)}"
    return _found("classifier", where, _try(stage, settings, request, seconds), settings)


def _try(stage: Stage, settings: Settings, request: Request, seconds: float) -> Answer:
    """One call as a run would make it, in a loop and a client of its own."""
    script = script_of(stage, LOOKUPS[stage.name].parse)
    given = getattr(settings, section_of(stage.api))
    body, _ = script.render(request)

    async def call() -> Answer:
        key = os.environ.get(given.api_key_env or "")
        header = key_header_of(stage)
        address = address_of(settings, section_of(stage.api)) or ""
        endpoint = Endpoint(address, key or None, connections=1, timeout=seconds, key_header=header)
        try:
            return await endpoint.call(stage.api, body or b"", seconds, script.reader(request))
        finally:
            await endpoint.close()

    return asyncio.run(call())


# Seconds until a check has failed. A bare Spark and Ray took 18 s together on two slow cores, and a cluster may be
# crowded
ENGINE_SECONDS = 180.0
# What checks say of a cluster that runs the answering as a job
RAY_JOBS = "Ray jobs"
# Characters of what an engine says
LONGEST = 600


def check_spark(settings: Settings, seconds: float = ENGINE_SECONDS) -> CheckResult:
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
    given["files"] = [f"{StoragePath(index).spark}/{manifest.NAME}"] if index else []
    return _check_engine("Spark", f"at {master}", given, remedy, seconds)


def check_ray(settings: Settings, seconds: float = ENGINE_SECONDS) -> CheckResult:
    """Whether a local Ray starts, or the cluster of `ray.address` can be joined, and all its nodes reach the store.

    Where a run starts no Ray of its own, the one that answers is asked for: the job server, or none.
    """
    address = settings.ray.address
    if settings.llm.backend == "ray-job":
        remedy = "see that ray.address names the job server of a running Ray cluster, with ray[default] on its head"
        return _check_engine(RAY_JOBS, f"at {address}", {"address": address}, remedy, seconds)
    if settings.llm.backend == "spool":
        return CheckResult(WARN, "Ray", "not checked: llm.backend is spool, and `untold answer` checks its own Ray")
    if settings.llm.backend == "batch":
        return CheckResult(OK, "Ray", "not needed: llm.backend is batch")
    remedy = (
        "check ray.address and that the cluster runs" if address else "check free memory and /dev/shm, or ray.address"
    )
    given = {"address": address, "places": _places(settings), "storage": settings.storage.environment}
    given["runtime_env"] = settings.ray.runtime_env
    return _check_engine("Ray", f"at {address}" if address else "local", given, remedy, seconds)


def _places(settings: Settings) -> dict[str, str]:
    """The folders that all machines share, for a process in another folder."""
    return {
        place: place
        for place in (StoragePath(path).spark for path in (settings.completion_store, settings.work_dir) if path)
    }


def _check_engine(name: str, where: str, given: Any, remedy: str, seconds: float) -> CheckResult:
    """Whether an engine starts: its version, or its last word and the remedy."""
    code, output = _run_probe(name, json.dumps(given), seconds)
    if code == 0:
        return CheckResult(OK, name, f"{output} {where}")
    reason = f"no answer within {seconds:g} s" if code is None else output or f"ended with code {code}"
    return CheckResult(FAIL, name, f"{where}: {reason}; {remedy}")


def _run_probe(name: str, given: str, seconds: float) -> tuple[int | None, str]:
    """Exit code (None where time ran out) and last line of a probe, which leaves no process behind."""
    with tempfile.TemporaryDirectory(prefix="untold-doctor-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "untold.jobs.inference.stage.checks", name],
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
        ClusterChecks(session, given["places"], given["files"]).check_executors()
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

    from untold.jobs.inference.backends.actor_pool import start_ray, visit_nodes

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
    require("llm.backend=ray-job", "cluster", "requests", "aiohttp")
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
