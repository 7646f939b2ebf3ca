"""Checks this machine, the settings and the endpoint, and says what to mend. Every check is bounded in time."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from untold.jobs.inference.backends import local_model
from untold.jobs.inference.stage.bindings import checked_template
from untold.jobs.inference.stage.call_settings import addresses_of, check_network, clear_text_warning
from untold.jobs.inference.stage.checks import (
    CALL_SECONDS,
    FAIL,
    OK,
    RAY_JOBS,
    WARN,
    CheckResult,
    check_lookups,
    check_ray,
    check_spark,
    plain_url,
    remedy_of,
)
from untold.jobs.run.cache import cache_dir
from untold.jobs.run.error_messages import EnvironmentVariableError
from untold.jobs.run.session import JavaError, check_java
from untold.jobs.run.terminal import page_of, print_lines
from untold.jobs.settings.loading import NoEndpointError, Resolved
from untold.jobs.settings.model import AUTO, Settings, SettingsError
from untold.udfs.errors import UserError
from untold.udfs.llm.calls import Answer
from untold.udfs.llm.client import Endpoint
from untold.udfs.llm.keys import Parameters, Stage
from untold.udfs.llm.retrying import refused_parameters
from untold.udfs.llm.script import request_body
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.stages import STAGES
from untold.udfs.storage import StoragePath

# python_requires of setup.py
OLDEST_PYTHON = (3, 11)
# Seconds until a check has failed; a local model's server reads a gigabyte from disk before it answers
QUICK_SECONDS = 30.0
SERVER_SECONDS = 120.0
# Tokens of an answer: enough for a word or a digit, so that a check costs next to nothing
TINY_TOKENS = 16
LOW_DISK_BYTES = 2 * 10**9
MODEL_BYTES = 1.1e9
# Kinds of error of an endpoint that works: it gave a completion, though not one that a stage would take
ANSWERED = (None, "truncated", "empty", "filtered")
# Stages have a system turn too, which some models refuse
TASK = "You answer short questions."
GREETING = "Answer with the one word: ready"
RATING = "How true is this from 1 (wrong) to 5 (right): water is wet. Answer with the digit alone."
NO_RATINGS = "ratings will be the digits themselves, not weighted by probability"


def examine(load: Callable[[], Resolved]) -> int:
    """Runs all checks and prints a line each as it is known. 1 where one failed, else 0.

    `load` gives the settings of the command line; what they lack is a finding, and the other checks run without them.
    """
    failed = False
    for finding in _findings(load):
        print_lines(finding.lines(page_of(sys.stdout)))
        failed = failed or finding.state == FAIL
    return 1 if failed else 0


def _findings(load: Callable[[], Resolved]) -> Iterator[CheckResult]:
    """The findings in the order in which one thing needs the other, each as soon as it is known."""
    resolved, problem = _load(load)
    settings = resolved.settings if resolved else Settings()
    yield _check_python()
    java = _within("Java", QUICK_SECONDS, _check_java)
    yield java
    spark = check_spark(settings) if java.state == OK else CheckResult(WARN, "Spark", "not checked: it needs Java")
    yield spark
    ray = check_ray(settings)
    yield ray
    if problem is not None:
        yield problem
    if resolved is not None:
        yield from check_templates(settings)
        try:
            check_network(addresses_of(settings))
            yield from _check_model(resolved)
            yield from check_lookups(settings)
        except EnvironmentVariableError as error:
            yield CheckResult(FAIL, "network", str(error))
    store = _within("store", QUICK_SECONDS, partial(check_store, settings.completion_store))
    # The nodes behind a job server look for themselves, in the job
    untried = [one.about for one in (spark, ray) if one.state != OK or one.about == RAY_JOBS]
    if settings.completion_store is not None and store.state == OK and untried:
        store = replace(store, state=WARN, text=f"{store.text}: reached from here, not by {' and '.join(untried)}")
    yield store
    yield from check_disk(settings.completion_store)


def _load(load: Callable[[], Resolved]) -> tuple[Resolved | None, CheckResult | None]:
    """The settings, or the finding that says what they lack. Without an endpoint the machine can still be checked."""
    try:
        return load(), None
    # Before SettingsError, of which it is one
    except NoEndpointError as error:
        return None, CheckResult(WARN, "endpoint", str(error))
    except SettingsError as error:
        return None, CheckResult(FAIL, "settings", "; ".join(str(error).splitlines()))


def _within(about: str, seconds: float, check: Callable[[], CheckResult]) -> CheckResult:
    """The check's finding, or a failure where it breaks or takes longer; it then goes on until this process ends."""
    found: list[CheckResult] = []

    def run() -> None:
        try:
            found.append(check())
        except Exception as error:
            found.append(CheckResult(FAIL, about, f"the check broke ({type(error).__name__}); please report it"))

    # A daemon, so that a check that hangs does not keep the process
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else CheckResult(FAIL, about, f"no result within {seconds:g} s. Find out why it waits")


def _check_python() -> CheckResult:
    """Whether this Python is one that the project runs on."""
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return CheckResult(FAIL, "Python", f"{text}; install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return CheckResult(OK, "Python", text)


def _check_java() -> CheckResult:
    """Whether there is a Java that Spark runs on."""
    try:
        return CheckResult(OK, "Java", check_java())
    except JavaError as error:
        return CheckResult(FAIL, "Java", str(error))


def check_templates(settings: Settings) -> Iterator[CheckResult]:
    """Whether every stage's template can be filled in; a finding for each that cannot."""
    wrong = 0
    for stage in STAGES:
        try:
            checked_template(stage, settings)
        except UserError as error:
            wrong += 1
            yield CheckResult(FAIL, "template", str(error))
    if not wrong:
        yield CheckResult(OK, "templates", f"all {len(STAGES)} can be filled in")


def _check_model(resolved: Resolved) -> Iterator[CheckResult]:
    """The endpoint, or the embedded model, and whether it gives log-probabilities.

    The embedded model is started for the calls, unless its file would have to be made first, or another run has the
    machine's one server: then nothing is wrong with it, and nothing is said of log-probabilities.
    """
    settings = resolved.settings
    if not resolved.embedded:
        for one in settings.llm.each:
            yield from check_endpoint(settings.model_copy(update={"llm": one}), str(one.base_url))
        return
    file = _assembled_file(settings)
    if file is None:
        gigabytes = f"{MODEL_BYTES / 1e9:.1f} GB"
        where = cache_dir()
        yield CheckResult(OK, "endpoint", f"embedded model; its file ({gigabytes}) is made in {where} at the first run")
        return
    try:
        model = local_model.model_file(settings.llm.local_model)
        with local_model.LocalServer(model, wait=False, start_seconds=SERVER_SECONDS) as server:
            yield from check_endpoint(settings, server.base_url, about="embedded model")
    except local_model.LocalModelError as error:
        state = WARN if "in use by another run" in str(error) else FAIL
        yield CheckResult(state, "endpoint", str(error))


def _assembled_file(settings: Settings) -> Path | None:
    """The file of the embedded model where there is one; a setting's file is taken as there."""
    if settings.llm.local_model is not None:
        return Path(settings.llm.local_model)
    path = cache_dir() / "models" / f"{local_model.MODEL_NAME}.gguf"
    return path if path.is_file() else None


def check_endpoint(settings: Settings, base_url: str, about: str = "") -> Iterator[CheckResult]:
    """Two calls of `TINY_TOKENS`: whether the endpoint answers, and whether it gives log-probabilities.

    The second is left out where the first fails. `about` names the model where the settings do not. An address without
    encryption that is not of this machine is a warning, since the key and the texts can be read on the way.
    """
    where = f"{about or settings.llm.model} at {plain_url(base_url)}"
    if warning := clear_text_warning(base_url):
        yield CheckResult(WARN, "encryption", warning)
    answer, dropped = _call(settings, base_url, GREETING, Parameters(), rated=False)
    if answer.error_type not in ANSWERED:
        yield CheckResult(FAIL, "endpoint", f"{where}: {answer.error}; {remedy_of(answer, settings)}")
        yield CheckResult(WARN, "log-probabilities", "not checked: the endpoint gave no completion")
        return
    yield CheckResult(OK, "endpoint", where)
    rated, dropped = _call(settings, base_url, RATING, dropped, rated=True)
    if lines := dropped.lines():
        yield CheckResult(OK, "parameters", "; ".join(lines))
    if rated.error_type not in ANSWERED:
        yield CheckResult(
            WARN, "log-probabilities", f"asking for them fails ({rated.error}): rated stages would fail here"
        )
    elif has_alternatives(rated.logprobs, settings.llm.api):
        yield CheckResult(OK, "log-probabilities", "given; ratings are weighted by probability")
    else:
        yield CheckResult(WARN, "log-probabilities", f"not given; {NO_RATINGS}")


def _call(
    settings: Settings, base_url: str, prompt: str, known: Parameters, *, rated: bool
) -> tuple[Answer, Parameters]:
    """Return the answer to a prompt that is sent as a stage of these settings sends it, and the refused parameters.

    A refused parameter is left out of the next call, as in a run. `rated` asks for log-probabilities too; `known`:
    the parameters that are refused already.
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
    while True:
        stage = known.applied(stage)
        answer = asyncio.run(_send(settings, base_url, request_body(stage, compiled, {})))
        refused = refused_parameters(stage, answer)
        if refused is None:
            return answer, known
        known = known.merged(refused)


async def _send(settings: Settings, base_url: str, body: bytes) -> Answer:
    """One call in a loop and a client of its own, bounded by `CALL_SECONDS`; no retry hides what is wrong."""
    llm = settings.llm
    key = os.environ.get(llm.api_key_env or "")
    seconds = min(CALL_SECONDS, llm.timeout_seconds)
    endpoint = Endpoint(
        base_url, key or None, connections=1, timeout=seconds, headers=llm.extra_headers, query=llm.extra_query
    )
    try:
        return await endpoint.call(llm.api, body)
    finally:
        await endpoint.close()


def has_alternatives(logprobs: Any, api: str) -> bool:
    """Whether a choice's `logprobs`, as chat or plain completions have them, hold the alternatives of a token.

    Chat completions: `{"content": [{"top_logprobs": [...]}]}`, plain ones: `{"top_logprobs": [{token: logprob}]}`.
    Servers that know no log-probabilities send null, an empty list, or tokens without alternatives.
    """
    if not isinstance(logprobs, Mapping):
        return False
    if api != "chat":
        return any(logprobs.get("top_logprobs") or [])
    tokens = logprobs.get("content") or []
    return any(isinstance(token, Mapping) and token.get("top_logprobs") for token in tokens)


def check_store(store: str | None) -> CheckResult:
    """Whether a file can be written, renamed (on local disks), read and deleted where completions are kept.

    A store that does not exist yet is tried in the nearest folder above it. Object stores have no rename, and files
    there are written under their final names.
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
    """Writes, renames on a local disk, reads and deletes a file. Raises OSError where one of these fails.

    A content that comes back changed is such a failure.
    """
    place, content = folder / f".untold-doctor-{uuid4().hex}", b"untold"
    try:
        place.write_bytes(content)
        if place.read_bytes() != content:
            raise OSError("the content that was read differs from the written content")
    finally:
        with suppress(OSError):
            place.remove()


def _existing(path: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def check_disk(store: str | None) -> Iterator[CheckResult]:
    """The free space of the temporary folder, and of the store's or the current one; GB are of 10^9 bytes."""
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
