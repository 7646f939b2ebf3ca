"""Whether what the settings name can be used: one call, or one text, and what to do where that fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from untold.jobs.asking.calling import Section, address_of, classifiers_of, is_address, section_of
from untold.jobs.asking.endpoint import key_remedy
from untold.jobs.asking.lookups import bind_embedding, bind_entailment, bind_search
from untold.jobs.run.terminal import Page, wrapped
from untold.jobs.settings.model import Settings, SettingsError
from untold.jobs.settings.retrieval import BRAVE_URL
from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.client import Endpoint
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.retrying import address_setting
from untold.udfs.llm.retrying import remedy_of as refusal_remedy
from untold.udfs.llm.script import key_header_of, script_of
from untold.udfs.redaction import redact
from untold.udfs.retrieval.embedding import Classifier, Embedder, find_classifier, find_model
from untold.udfs.retrieval.local_models import MINILM, LocalModelFileError
from untold.udfs.stages import LOOKUPS

OK, WARN, FAIL = "ok", "warn", "FAIL"
CALL_SECONDS = 60.0
# Where the text of a finding begins
INDENT = 25


@dataclass(frozen=True)
class Finding:
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


def check_lookups(settings: Settings) -> Iterator[Finding]:
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


def _found(section: Section, where: str, answer: Answer, settings: Settings) -> Finding:
    """The finding about an endpoint that is no language model's."""
    if answer.error_type is None:
        return Finding(OK, section, where)
    return Finding(FAIL, section, f"{where}: {answer.error}; {remedy_of(answer, settings, section)}")


def _check_files(about: str, use: Callable[[], object]) -> Finding:
    """Whether a local model can be used. Its errors say what is missing, or wrong with it."""
    try:
        use()
        return Finding(OK, about, "a local model, run within tasks")
    except LocalModelFileError as error:
        return Finding(FAIL, about, str(error))


def _try_embedding(settings: Settings, seconds: float) -> Answer:
    """What the endpoint for embeddings makes of a short text, within so many seconds; no retry hides what is wrong."""
    row = {"text": "water is wet", "kind": "document"}
    member = Request("tried", row, "tried")
    return _try(bind_embedding(settings), settings, Request("tried", row, "tried", members=[member]), seconds)


def _check_search(settings: Settings, seconds: float) -> Finding:
    """What the web search makes of one query, within so many seconds; what its settings lack is a finding too."""
    row = {"query": "water is wet", "count": 1}
    try:
        stage = bind_search(settings)
    except SettingsError as error:
        return Finding(FAIL, "search", str(error))
    where = f"{settings.search.model} at {plain_url(settings.search.base_url)}"
    return _found("search", where, _try(stage, settings, Request("tried", row, "tried"), seconds), settings)


def _check_server(address: str, settings: Settings, seconds: float) -> Finding:
    """What a server makes of one pair, within so many seconds; what its settings lack is a finding too."""
    row = {"premise": "water is wet", "hypothesis": "water is wet"}
    try:
        stage = bind_entailment(settings)
    except (SettingsError, LocalModelFileError) as error:
        return Finding(FAIL, "classifier", str(error).replace("\n", "; "))
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
