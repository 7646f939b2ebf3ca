"""Check Python, Java, Spark, Ray, the endpoints, the store and the disks: `untold doctor`.

Spark and Ray start in a process of their own: `python -m untold.jobs.doctor NAME` is the probe of one engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pyarrow as pa

from untold.jobs.inference.backends import local_model
from untold.jobs.inference.backends.node_checks import check_nodes
from untold.jobs.inference.stage.bindings import bind_embedding, bind_entailment, bind_search, checked_template
from untold.jobs.inference.stage.call_settings import (
    Section,
    address_of,
    addresses_of,
    call_remedy,
    check_network,
    classifiers_of,
    clear_text_warning,
    is_address,
)
from untold.jobs.run import manifest
from untold.jobs.run.cache import cache_dir
from untold.jobs.run.connectors import find_spark
from untold.jobs.run.error_messages import EnvironmentVariableError, explain, root_cause
from untold.jobs.run.terminal import Page, page_of, print_lines, wrapped
from untold.jobs.settings.loading import NoEndpointError, Resolved
from untold.jobs.settings.model import AUTO, Settings, SettingsError, settings_model
from untold.jobs.settings.sections import BRAVE_URL
from untold.udfs.errors import ENGINE, Needs, UserError, missing_modules, missing_packages, require
from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.keys import Parameters, Stage
from untold.udfs.llm.responses import Reader, has_alternatives
from untold.udfs.llm.retrying import refused_parameters
from untold.udfs.llm.script import key_header_of, request_body, script_of
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.object_stores import OverdueError, run_within
from untold.udfs.python_path import python_environment
from untold.udfs.redaction import plain_url, redact
from untold.udfs.retrieval.classifying import Classifier, find_classifier
from untold.udfs.retrieval.embedding import Embedder, find_model
from untold.udfs.retrieval.local_models import JUDGE, MINILM, LocalModelFileError
from untold.udfs.stages import LOOKUPS, STAGES
from untold.udfs.storage import StoragePath

OK, WARN, FAIL = "ok", "warn", "FAIL"
OLDEST_PYTHON = (3, 11)  # python_requires of setup.py
# Seconds before a check fails. The server of a local model reads a gigabyte before its first completion. Spark and Ray
# together started in 18 s on two slow cores, and a cluster can be busy
QUICK_SECONDS = 30.0
CALL_SECONDS = 60.0
SERVER_SECONDS = 120.0
ENGINE_SECONDS = 180.0
TINY_TOKENS = 16  # enough for a word or a digit, at almost no cost
LOW_DISK_BYTES = 2 * 10**9
MODEL_BYTES = 1.1e9
# The column of the text of a result, and the maximum number of characters of an engine's message
INDENT = 25
LONGEST = 600
# The errors of an endpoint that works: it returned a completion, although a stage would not accept it
ANSWERED = (None, "truncated", "empty", "filtered")
LOCAL_MODEL = "a local model, run within tasks"
RAY_JOBS = "Ray jobs"  # the check of a cluster that runs the requests as a job
TASK = "You answer short questions."  # a system turn as in stages, which some models reject
GREETING = "Answer with the one word: ready"
RATING = "How true is this from 1 (wrong) to 5 (right): water is wet. Answer with the digit alone."


@dataclass(frozen=True)
class CheckResult:
    """The result of a check: `ok`, `warn` or `FAIL`, the checked thing, and a text with the remedy of a failure."""

    state: str
    about: str
    text: str

    def lines(self, page: Page) -> list[str]:
        """Return the lines of the result, with the continuation lines indented."""
        return wrapped(str(self), page, indent=INDENT)

    def __str__(self) -> str:
        return redact(f"{self.state:4}  {self.about:17}  {self.text}")


def examine(load: Callable[[], Resolved], needs: Mapping[str, Needs] = MappingProxyType({})) -> int:
    """Run all checks and print each result at once. Return 1 if a check fails, else 0.

    `load` returns the settings of the command line. Without settings, the other checks still run. If packages of the
    engine are missing, only Python, the packages and the disk are checked.
    """
    failed = False
    for found in check_all(load, needs):
        print_lines(found.lines(page_of(sys.stdout)))
        failed = failed or found.state == FAIL
    return 1 if failed else 0


def check_all(load: Callable[[], Resolved], needs: Mapping[str, Needs]) -> Iterator[CheckResult]:
    """Yield the results of all checks. A check comes after the checks that it depends on."""
    yield _check_python()
    yield from check_packages(needs)
    if find_spec("pyspark"):
        yield _try("PySpark", find_spark)
    if missing_modules(ENGINE):
        yield from check_disk(None)
        return
    from untold.jobs.run.session import check_java

    resolved = _load(load)
    settings = resolved.settings if isinstance(resolved, Resolved) else Settings()
    java = _within("Java", QUICK_SECONDS, partial(_try, "Java", check_java))
    yield java
    spark = check_spark(settings) if java.state == OK else CheckResult(WARN, "Spark", "not checked: it needs Java")
    yield spark
    ray = check_ray(settings)
    yield ray
    if isinstance(resolved, CheckResult):
        yield resolved
    else:
        yield from _check_templates(settings)
        try:
            check_network(addresses_of(settings))
            yield from _check_model(resolved)
            yield from check_lookups(settings)
        except EnvironmentVariableError as error:
            yield CheckResult(FAIL, "network", str(error))
    store = _within("store", QUICK_SECONDS, partial(check_store, settings.completion_store))
    # The job checks the nodes of a job server
    untried = [one.about for one in (spark, ray) if one.state != OK or one.about == RAY_JOBS]
    if settings.completion_store is not None and store.state == OK and untried:
        store = replace(store, state=WARN, text=f"{store.text}: reached from here, not by {' and '.join(untried)}")
    yield store
    yield from check_disk(settings.completion_store)


def _load(load: Callable[[], Resolved]) -> Resolved | CheckResult:
    """Return the settings, or the result of their failure. Without an endpoint, the machine can still be checked."""
    try:
        return load()
    # A subclass of SettingsError
    except NoEndpointError as error:
        return CheckResult(WARN, "endpoint", str(error))
    except SettingsError as error:
        return CheckResult(FAIL, "settings", "; ".join(str(error).splitlines()))


def _within(about: str, seconds: float, check: Callable[[], CheckResult]) -> CheckResult:
    """Return the result of a check, or a failure if it raises an error or exceeds the time limit."""
    try:
        return run_within(seconds, check)
    except OverdueError:
        return CheckResult(FAIL, about, f"no result within {seconds:g} s. Find out why it waits")
    except Exception as error:
        return CheckResult(FAIL, about, f"the check broke ({type(error).__name__}); please report it")


def _check_python() -> CheckResult:
    """Check the version of Python."""
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return CheckResult(FAIL, "Python", f"{text}; install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return CheckResult(OK, "Python", text)


def check_packages(needs: Mapping[str, Needs]) -> Iterator[CheckResult]:
    """Yield the commands whose packages are installed, and a warning for the packages that other commands need."""
    commands: dict[str, list[str]] = {}
    for command, extras in needs.items():
        missing = [line for extra, modules in extras.items() if (line := missing_packages(extra, *modules))]
        for line in missing or [""]:
            commands.setdefault(line, []).append(command)
    for line, names in sorted(commands.items()):
        text = f"missing {line}, for {', '.join(names)}" if line else f"complete for {', '.join(names)}"
        yield CheckResult(WARN if line else OK, "packages", text)


def _try(about: str, use: Callable[[], object]) -> CheckResult:
    """Check that a call raises no UserError. It returns the text of the result."""
    try:
        return CheckResult(OK, about, str(use()))
    except UserError as error:
        return CheckResult(FAIL, about, str(error))


def _check_templates(settings: Settings) -> Iterator[CheckResult]:
    """Check the templates of all stages. Each invalid template is a failure."""
    tried = [_try("template", partial(checked_template, stage, settings)) for stage in STAGES]
    wrong = [one for one in tried if one.state == FAIL]
    yield from wrong or [CheckResult(OK, "templates", f"all {len(STAGES)} can be filled in")]


def _check_model(resolved: Resolved) -> Iterator[CheckResult]:
    """Check each endpoint, the judge, or the embedded model, and the log-probabilities of language models.

    The embedded model starts for the calls. Without its file, or if another run uses the only server of the machine, no
    call is sent and the log-probabilities are not checked.
    """
    settings = resolved.settings
    if settings.llm.is_judge:
        yield _try("judge", partial(_classify, JUDGE))
        return
    if not resolved.embedded:
        for one in settings.llm.each:
            yield from check_endpoint(settings.model_copy(update={"llm": one}), str(one.base_url))
        return
    file = _assembled_file(settings)
    if file is None:
        text = f"embedded model; its file ({MODEL_BYTES / 1e9:.1f} GB) is made in {cache_dir()} at the first run"
        yield CheckResult(OK, "endpoint", text)
        return
    try:
        model = local_model.model_file(settings.llm.local_model)
        with local_model.LocalServer(model, wait=False, start_seconds=SERVER_SECONDS) as server:
            yield from check_endpoint(settings, server.base_url, about="embedded model")
    except local_model.LocalModelError as error:
        state = WARN if "in use by another run" in str(error) else FAIL
        yield CheckResult(state, "endpoint", str(error))


def _assembled_file(settings: Settings) -> Path | None:
    """Return the file of the embedded model, or None without a file. The file of a setting is not checked."""
    if settings.llm.local_model is not None:
        return Path(settings.llm.local_model)
    path = cache_dir() / "models" / f"{local_model.MODEL_NAME}.gguf"
    return path if path.is_file() else None


def check_endpoint(settings: Settings, base_url: str, about: str = "") -> Iterator[CheckResult]:
    """Check with two calls of `TINY_TOKENS` that an endpoint works and that it returns log-probabilities.

    The second call is only sent if the first succeeds. `about` names a model without a name in the settings. An address
    of another machine without encryption is a warning, because others can read the key and the texts.
    """
    where = f"{about or settings.llm.model} at {plain_url(base_url)}"
    if warning := clear_text_warning(base_url):
        yield CheckResult(WARN, "encryption", warning)
    answer, dropped = _call(settings, base_url, GREETING, Parameters(), rated=False)
    if answer.error_type not in ANSWERED:
        yield CheckResult(FAIL, "endpoint", f"{where}: {answer.error}; {call_remedy(answer, settings)}")
        yield CheckResult(WARN, "log-probabilities", "not checked: the endpoint gave no completion")
        return
    yield CheckResult(OK, "endpoint", where)
    rated, dropped = _call(settings, base_url, RATING, dropped, rated=True)
    if lines := dropped.lines():
        yield CheckResult(OK, "parameters", "; ".join(lines))
    if rated.error_type not in ANSWERED:
        yield CheckResult(WARN, "log-probabilities", f"the request fails ({rated.error}), so rated stages would fail")
    elif has_alternatives(rated.logprobs, settings.llm.api):
        yield CheckResult(OK, "log-probabilities", "given; ratings are weighted by probability")
    else:
        yield CheckResult(
            WARN, "log-probabilities", "not given; ratings will be the digits themselves, not weighted by probability"
        )


def _call(
    settings: Settings, base_url: str, prompt: str, known: Parameters, *, rated: bool
) -> tuple[Answer, Parameters]:
    """Send a prompt as a stage would, and return the answer and the rejected parameters.

    Rejected parameters are left out of the next call, as in a run. `known` are the parameters that are already
    rejected. `rated` requests log-probabilities.
    """
    llm = settings.llm
    stage = Stage(
        name="doctor",
        variables=(),
        model=llm.model or "local",
        template=prompt,
        api=llm.api,
        temperature=llm.temperature,
        top_p=llm.top_p,
        max_tokens=TINY_TOKENS if llm.max_tokens == AUTO else llm.max_tokens and min(TINY_TOKENS, llm.max_tokens),
        extra_body=llm.extra_body,
        rated=rated,
    )
    turns = f"=== system\n{TASK}\n=== user\n{prompt}" if llm.api == "chat" else prompt
    compiled = compile_prompt(turns, api=llm.api, name=stage.name)
    given: dict[str, Any] = {"headers": llm.extra_headers, "query": llm.extra_query, "protocol": llm.protocol}
    while True:
        stage = known.applied(stage)
        body = request_body(stage, compiled, {})
        answer = asyncio.run(_send(settings, "llm", base_url, llm.api, body, **given))
        refused = refused_parameters(stage, answer)
        if refused is None:
            return answer, known
        known = known.merged(refused)


async def _send(settings: Settings, section: Section, url: str, api: str, body: bytes, **given: Any) -> Answer:
    """Send one call without a retry by a client of its own. `read` reads the answer; the rest is for the client."""
    read: Reader | None = given.pop("read", None)
    from untold.udfs.llm.client import ApiKey, Endpoint

    own, seconds = getattr(settings, section), min(CALL_SECONDS, settings.llm.timeout_seconds)
    key = ApiKey(os.environ.get(own.api_key_env or "") or None, getattr(own, "api_key_command", None))
    endpoint = Endpoint(url, key, connections=1, timeout=seconds, **given)
    try:
        return await endpoint.call(api, body, read=read)
    finally:
        await endpoint.close()


def check_lookups(settings: Settings) -> Iterator[CheckResult]:
    """Yield the results for the configured embeddings, web search and classifiers."""
    embeddings, searching = settings.embeddings, settings.search
    if embeddings.base_url is not None:
        yield _check_lookup("embeddings", settings, bind_embedding, {"text": "water is wet", "kind": "document"})
    elif embeddings.model != MINILM:
        yield _try("embeddings", partial(_embed, embeddings.model))
    if searching.base_url != BRAVE_URL or os.environ.get(searching.api_key_env or ""):
        yield _check_lookup("search", settings, bind_search, {"query": "water is wet", "count": 1})
    for named in classifiers_of(settings):
        if is_address(named):
            pair = {"premise": "water is wet", "hypothesis": "water is wet"}
            yield _check_lookup("classifier", settings, bind_entailment, pair)
        else:
            yield _try("classifier", partial(_classify, named))


def _embed(model: str) -> str:
    Embedder(find_model(model)).embed(["water is wet"])
    return LOCAL_MODEL


def _classify(folder: str) -> str:
    Classifier(find_classifier(folder)).classify([("wet", "wet")])
    return LOCAL_MODEL


def _check_lookup(
    section: Section, settings: Settings, bind: Callable[[Settings], Stage], row: Mapping[str, Any]
) -> CheckResult:
    """Send one request of a lookup as a run would. Invalid settings are a failure."""
    try:
        stage = bind(settings)
    except (SettingsError, LocalModelFileError) as error:
        return CheckResult(FAIL, section, str(error).replace("\n", "; "))
    members = [] if section == "search" else [Request("tried", row, "tried")]
    request = Request("tried", row, "tried", members=members)
    script = script_of(stage, LOOKUPS[stage.name].parse)
    body, _ = script.render(request)
    address = address_of(settings, section) or ""
    call = partial(_send, key_header=key_header_of(stage), read=script.reader(request))
    answer = asyncio.run(call(settings, section, address, stage.api, body or b""))
    where = f"{stage.model} at {plain_url(address)}"
    if answer.error_type is None:
        return CheckResult(OK, section, where)
    return CheckResult(FAIL, section, f"{where}: {answer.error}; {call_remedy(answer, settings, section)}")


def check_spark(settings: Settings, seconds: float = ENGINE_SECONDS) -> CheckResult:
    """Check in a new process that a Spark session starts and that a worker runs Python with Arrow.

    The session has the master and the `spark.conf.*` of a run. The check therefore finds wrong jars, unreachable
    masters, and executors that do not reach the store, read another index or have other versions.
    """
    from untold.jobs.run.session import loopback_of_driver

    master = settings.spark.master or "the launcher's master"
    remedy = "check spark.master and spark.conf.*, free memory, and that workers have this environment"
    if not master.startswith("local") and (host := loopback_of_driver(settings)):
        remedy += (
            f". Workers may not reach the driver at {host}. Set spark.conf.spark.driver.host and SPARK_LOCAL_IP to an "
            "address of this machine that they can reach"
        )
    given: dict[str, Any] = {"settings": settings.model_dump(mode="json"), "places": _places(settings)}
    index = settings.knowledge.index
    given["files"] = [f"{StoragePath(index).spark}/{manifest.NAME}"] if index else []
    return _check_engine("Spark", f"at {master}", given, remedy, seconds)


def check_ray(settings: Settings, seconds: float = ENGINE_SECONDS) -> CheckResult:
    """Check that Ray starts, or that the cluster of `ray.address` accepts a driver. Its nodes must reach the store.

    A run with a job server starts no Ray, so only the server is checked. A spool and batches need no Ray here.
    """
    address = settings.ray.address
    if settings.llm.backend == "ray-job":
        remedy = "see that ray.address names the job server of a running Ray cluster, with ray[default] on its head"
        return _check_engine(RAY_JOBS, f"at {address}", {"address": address}, remedy, seconds)
    if settings.llm.backend == "spool":
        return CheckResult(WARN, "Ray", "not checked: llm.backend is spool, and `untold answer` checks its own Ray")
    if settings.llm.backend == "batch":
        return CheckResult(OK, "Ray", "not needed: llm.backend is batch")
    remedy = "check ray.address and the cluster" if address else "check free memory and /dev/shm, or ray.address"
    given = {"address": address, "places": _places(settings), "storage": settings.storage.environment}
    given["runtime_env"] = settings.ray.runtime_env
    return _check_engine("Ray", f"at {address}" if address else "local", given, remedy, seconds)


def _places(settings: Settings) -> dict[str, str]:
    """Return the absolute paths of the folders that all machines share."""
    return {
        place: place
        for place in (StoragePath(path).spark for path in (settings.completion_store, settings.work_dir) if path)
    }


def _check_engine(name: str, where: str, given: Any, remedy: str, seconds: float) -> CheckResult:
    """Check that an engine starts. The result has its version, or its last message and the remedy."""
    code, output = _run_probe(name, json.dumps(given), seconds)
    if code == 0:
        return CheckResult(OK, name, f"{output} {where}")
    reason = f"no answer within {seconds:g} s" if code is None else output or f"ended with code {code}"
    return CheckResult(FAIL, name, f"{where}: {reason}; {remedy}")


def _run_probe(name: str, given: str, seconds: float) -> tuple[int | None, str]:
    """Return the exit code of a probe (None after the time limit) and its last line. All its processes end."""
    with tempfile.TemporaryDirectory(prefix="untold-doctor-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "untold.jobs.doctor", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Python imports modules from its working folder, which can contain anything
            cwd=folder,
            # The kill of the process group also ends the JVM or the raylet
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
    """Return the version of Spark after a row passed through a Python worker."""
    from untold.jobs.inference.backends.backends import ClusterChecks
    from untold.jobs.run.session import open_session

    settings = settings_model().model_validate_json(json.dumps(given["settings"]))
    session = open_session(settings, "untold-doctor")
    try:
        ClusterChecks(session, given["places"], given["files"]).check_executors()
        rows = session.range(1).mapInArrow(_pass_on, "id long").collect()
        if len(rows) != 1:
            raise RuntimeError("a row was lost on its way through a worker")
        return str(session.version)
    finally:
        session.stop()


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches unchanged, which tests Python and Arrow of a worker without our code."""
    return batches


def _probe_ray(given: Any) -> str:
    """Return the version of Ray after an actor has answered."""
    # Only the process of this probe may start Ray
    import ray

    from untold.jobs.inference.backends.actor_pool import start_ray, visit_nodes

    os.environ.update(given["storage"])
    start_ray(given["address"], given["runtime_env"])
    try:
        check_nodes(given["places"], visit_nodes, print)
        # Like the actors of a run without a core, so that a busy cluster still starts it
        actor = ray.remote(_Echo).options(num_cpus=0).remote()
        ray.get(actor.say.remote("ready"), timeout=ENGINE_SECONDS)
        return str(ray.__version__)
    finally:
        ray.shutdown()


def _probe_jobs(given: Any) -> str:
    """Return the version of the job API of a cluster."""
    require("llm.backend=ray-job", "cluster", "requests", "aiohttp")
    from ray.job_submission import JobSubmissionClient

    return f"version {JobSubmissionClient(given['address']).get_version()} of its API"


class _Echo:
    """An actor that returns its argument."""

    def say(self, word: str) -> str:
        """Return the word."""
        return word


PROBES: Mapping[str, Callable[[Any], str]] = {
    "Spark": _probe_spark,
    "Ray": _probe_ray,
    RAY_JOBS: _probe_jobs,
}


def main() -> int:
    """Run a probe on the JSON of standard input, and print the version or the error. Return 1 for an error."""
    try:
        print(PROBES[sys.argv[1]](json.load(sys.stdin)))
    except UserError as error:
        print("; ".join(str(error).splitlines()))
        return 1
    except Exception as error:
        print(explain(error) or root_cause(error))
        return 1
    return 0


def check_store(store: str | None) -> CheckResult:
    """Check that a file of the store can be written, renamed (on local disks), read and deleted.

    If the store does not exist yet, the nearest folder above it is checked. Object stores have no rename.
    """
    if store is None:
        return CheckResult(OK, "store", "completion_store is not set, so each output has its own completions")
    where = plain_url(store)
    try:
        place = StoragePath(store)
        _try_file(place if place.local is None else StoragePath(str(_existing(Path(place.local)))))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        remedy = "check the path, its rights and credentials, or set completion_store to another"
        return CheckResult(FAIL, "store", f"{where}: cannot write, read and delete a file ({reason}); {remedy}")
    return CheckResult(OK, "store", where)


def _try_file(folder: StoragePath) -> None:
    """Write, rename on a local disk, read and delete a file. Raises OSError for a failure or a changed content."""
    place, content = folder / f".untold-doctor-{uuid4().hex}", b"untold"
    try:
        place.write_bytes(content)
        if place.read_bytes() != content:
            raise OSError("the content that was read differs from the written content")
    finally:
        with suppress(OSError):
            place.remove()


def _existing(path: Path) -> Path:
    """Return the folder, or the nearest existing folder above it."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def check_disk(store: str | None) -> Iterator[CheckResult]:
    """Check the free space of the temporary folder, and of the store or the current folder. A GB is 10^9 bytes."""
    places = {"temporary folder": Path(tempfile.gettempdir())}
    if store is None:
        places["current folder"] = Path.cwd()
    elif (local := StoragePath(store).local) is not None:
        places["store"] = _existing(Path(local))
    for name, path in places.items():
        free = shutil.disk_usage(path).free
        text = f"{free / 1e9:,.1f} GB free in the {name} {path}"
        if free < LOW_DISK_BYTES:
            text += f". A run may need {LOW_DISK_BYTES / 1e9:g} GB. Make room, or use another folder"
        yield CheckResult(OK if free >= LOW_DISK_BYTES else WARN, "disk", text)


if __name__ == "__main__":
    sys.exit(main())
