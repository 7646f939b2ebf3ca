"""The settings of a stage's calls: address, limits, prices and actors, and the embedded model's server.

The support of endpoints for schemas and parameters is stored, so that all runs on a store send the same requests.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from pydantic import BaseModel

from untold.jobs.inference.backends import local_model
from untold.jobs.inference.backends.job import Job
from untold.jobs.run.error_messages import EnvironmentVariableError
from untold.jobs.settings.model import LlmSettings, Settings, backend_for, decoding_for, prices_at, prices_for
from untold.jobs.settings.sections import EndpointSettings
from untold.udfs.llm.calls import Answer, CallSettings, format_at, is_loopback
from untold.udfs.llm.keys import (
    BROKEN,
    CLASSIFYING,
    IGNORED,
    LOCAL,
    REFUSED,
    SEVERAL_ROWS,
    TAKEN,
    UNTRIED,
    Parameters,
    SchemaSupport,
    Stage,
)
from untold.udfs.llm.limiter import Budget, Limits
from untold.udfs.llm.retrying import address_setting, remedy_of
from untold.udfs.llm.usage import Usage
from untold.udfs.python_path import usable_cores
from untold.udfs.storage import StoragePath

# Measured on slow cores: at most 2,500 calls per second, and fewer with long prompts and slow disks
REQUESTS_PER_SECOND_AND_ACTOR = 1000
# The number of calls in flight that keeps an actor busy, with a tenth of a second per call
PLACES_OF_AN_ACTOR = 128
MINUTES_PER_HOUR = SECONDS_PER_MINUTE = 60
# Seconds between two writes of completions, which a killed actor loses. Each write to an object store costs a request
LOCAL_FLUSH_SECONDS, REMOTE_FLUSH_SECONDS = 1.0, 5.0
# The time limit of endpoints for a batch
BATCH_HOURS = 24.0

# Fields of `CallSettings` and their names in `llm.*`
_TIMES = {
    "timeout": "timeout_seconds",
    "deadline": "deadline_seconds",
    "flush": "flush_seconds",
    "max_attempts": "max_attempts",
}

Section = Literal["llm", "embeddings", "search", "classifier"]
RELATION = "relation"


def section_of(api: str) -> Section:
    """Return the section of the settings with the endpoint of an API."""
    if api in (LOCAL, *CLASSIFYING):
        return "classifier"
    if api == "embeddings":
        return "embeddings"
    return "search" if api == "search" else "llm"


def classifiers_of(settings: Settings) -> list[str]:
    """Return the distinct classifiers in the settings: folders or addresses of servers (`is_address`)."""
    named = (settings.grounding.verifier, settings.nli.classifier, settings.nli.classifier_url)
    return [one for one in dict.fromkeys(named) if one and one != RELATION]


def is_address(classifier: str) -> bool:
    """Return True if a classifier is the address of a server."""
    return classifier.startswith(("http://", "https://"))


def address_of(settings: Settings, section: str) -> str | None:
    """Return the address of the endpoint of a section, None without an address."""
    if section == "classifier":
        return next(filter(is_address, classifiers_of(settings)), None)
    address: str | None = getattr(settings, section).base_url
    return address


def batch_of(settings: Settings, api: str) -> int:
    """Return the maximum number of rows per HTTP request."""
    return getattr(settings, section_of(api)).batch if api in SEVERAL_ROWS else 1


def runs_in_tasks(stage: Stage, settings: Settings) -> bool:
    """Return True if a model in the tasks of Spark answers a stage without calls."""
    if stage.api == LOCAL:
        return settings.nli.classifier_gpus is None or stage.name != "classify_entailment"
    return stage.api == "embeddings" and settings.embeddings.base_url is None


def call_settings(settings: Settings, stage: Stage, base_url: str) -> CallSettings:
    """Return the settings of the calls of a stage.

    They are not part of the ids of requests, so two starts of one run can have different ones. Minutes become seconds.
    Times, attempts and writes come from `llm.*` for every endpoint.
    """
    llm, budget, section = settings.llm, settings.budget, section_of(stage.api)
    own = getattr(settings, section)
    calls = CallSettings(
        base_url=base_url,
        api_key_env=own.api_key_env,
        timeout=llm.timeout_seconds,
        deadline=llm.deadline_seconds,
        outage=llm.outage_minutes * 60,
        max_attempts=llm.max_attempts,
        prices=prices_for(settings, stage.name),
        limits=limits_of(settings, stage.api),
        budget=Budget(budget.max_calls, budget.max_tokens, budget.max_cost),
        batch=batch_of(settings, stage.api),
        section=section,
        gpus=(settings.nli.classifier_gpus or 0.0) if stage.api == LOCAL else 0.0,
        headers=getattr(own, "extra_headers", {}),
        query=getattr(own, "extra_query", {}),
        protocol=getattr(own, "protocol", "chat"),
        api_key_command=getattr(own, "api_key_command", None),
        api_key_seconds=llm.api_key_minutes * SECONDS_PER_MINUTE,
        batch_format=format_at(base_url) if settings.batch.format == "auto" else settings.batch.format,
        batch_folder=settings.batch.folder,
        keep_files=settings.batch.keep_files,
    )
    return replace(calls, endpoints=tuple(_endpoints(settings, stage, calls))) if section == "llm" else calls


def flush_seconds(settings: Settings, folder: str) -> float:
    """Return the seconds between two writes of completions to a folder."""
    is_local = StoragePath(folder).local is not None
    return settings.llm.flush_seconds or (LOCAL_FLUSH_SECONDS if is_local else REMOTE_FLUSH_SECONDS)


def _endpoints(settings: Settings, stage: Stage, calls: CallSettings) -> Iterator[CallSettings]:
    """Yield the settings of each of several endpoints, nothing for a single endpoint.

    The own model of a stage has the same name at all endpoints.
    """
    named = _names(settings.llm.endpoints)
    for given, own, name in zip(settings.llm.endpoints, settings.llm.each, named, strict=False):
        yield replace(
            calls,
            base_url=given.base_url,
            name=name,
            api_key_env=own.api_key_env,
            model=given.model if stage.model == settings.llm.model else None,
            weight=given.weight,
            prices=prices_at(own, settings, stage.name),
            limits=_limits(own),
            headers=own.extra_headers,
            query=own.extra_query,
            protocol=own.protocol,
            api_key_command=own.api_key_command,
        )


def _names(endpoints: Sequence[EndpointSettings]) -> list[str | None]:
    """Return the names of endpoints with equal addresses: the model and key, or the index if these are equal too.

    Headers and parameters are not shown.
    """
    known = [(one.base_url, one.model, one.api_key_env) for one in endpoints]
    addresses = [address for address, *_ in known]
    names: list[str | None] = []
    for place, (address, *own) in enumerate(known, start=1):
        alike = known.count(known[place - 1]) > 1
        more = ", ".join(filter(None, (*own, f"number {place}" if alike else None)))
        names.append(f"{address} ({more})" if addresses.count(address) > 1 and more else None)
    return names


def with_given(job: Job, given: Settings) -> Job:
    """Return a job with other settings: address, key, times, limits, budget and actors.

    Only given settings change the job (`load_given`). The key of the job is never sent to another address.
    """
    section, llm = getattr(given, job.settings.section), given.llm
    named = llm.model_fields_set
    changed: dict[str, Any] = {
        "limits": _with_set(job.settings.limits, section),
        "budget": _with_set(job.settings.budget, given.budget),
    }
    changed |= {own: getattr(llm, name) for own, name in _TIMES.items() if name in named}
    if "outage_minutes" in named:
        changed["outage"] = llm.outage_minutes * 60
    address = _given_address(given, job.settings.section)
    if address not in (None, job.settings.base_url):
        changed |= {
            "base_url": address,
            "api_key_env": None,
            "api_key_command": None,
            "headers": {},
            "query": {},
            "endpoints": (),
            "protocol": "chat",
        }
    own_fields = ("api_key_env", "api_key_command", "protocol")
    changed |= {name: getattr(section, name) for name in own_fields if name in section.model_fields_set}
    sent = {"headers": "extra_headers", "query": "extra_query"}
    changed |= {own: getattr(section, name) for own, name in sent.items() if name in section.model_fields_set}
    calls = replace(job.settings, **changed)
    if section is llm and llm.endpoints:
        # With the given settings, and otherwise with those of the first endpoint of the job
        calls, first = replace(calls, endpoints=()), job.settings.each[0]
        base = vars(_with_set(first.limits, llm)) | {
            "price_per_million_prompt_tokens": first.prices.prompt,
            "price_per_million_completion_tokens": first.prices.completion,
        }
        known = given.model_copy(update={"llm": llm.model_copy(update=base | {"model": llm.model or job.stage.model})})
        calls = replace(calls, endpoints=tuple(_endpoints(known, job.stage, calls)))
    elif calls.endpoints:
        own_limits = {name: value for name, value in changed.items() if name not in ("limits", "endpoints")}
        each = (replace(one, **own_limits, limits=_with_set(one.limits, section)) for one in calls.endpoints)
        calls = replace(calls, endpoints=tuple(each))
    actors = llm.actors if "actors" in named and llm.actors else job.actors
    return replace(job, settings=calls, actors=actors)


def _given_address(given: Settings, section: str) -> str | None:
    """Return the given address, None for a default value."""
    is_set = section == "classifier" or "base_url" in getattr(given, section).model_fields_set
    return address_of(given, section) if is_set else None


def _with_set(value: Any, section: BaseModel) -> Any:
    """Return limits or a budget with the given fields of a section."""
    known = {item.name for item in fields(value)} & section.model_fields_set
    return replace(value, **{name: getattr(section, name) for name in known})


def price(settings: Settings, stage: Stage, usage: Usage) -> Usage:
    """Return the usage of a stage with its cost. Each of several endpoints has its own prices."""
    if section_of(stage.api) != "llm" or not settings.llm.endpoints:
        return prices_for(settings, stage.name).priced(usage)
    calls = CallSettings("")
    return replace(calls, endpoints=tuple(_endpoints(settings, stage, calls))).priced(usage)


def limits_of(settings: Settings, api: str) -> Limits:
    """Return the limits of the endpoint of an API, or the sum over several endpoints. A search has no token limit."""
    section = section_of(api)
    each = [_limits(own) for own in (settings.llm.each if section == "llm" else [getattr(settings, section)])]
    requests, tokens = ([getattr(one, name) for one in each] for name in ("requests_per_minute", "tokens_per_minute"))
    places = sum(one.max_concurrency for one in each)
    return Limits(None if None in requests else sum(requests), None if None in tokens else sum(tokens), places)


def _limits(own: Any) -> Limits:
    """Return the limits of a section."""
    return Limits(own.requests_per_minute, getattr(own, "tokens_per_minute", None), own.max_concurrency)


def count_actors(settings: Settings, api: str = "chat") -> int:
    """Return `llm.actors`, or one actor per thousand requests per second of the limit.

    Without a limit, return one actor per 128 concurrent requests, and on one machine at most the number of its cores.
    """
    if settings.llm.actors:
        return settings.llm.actors
    limits = limits_of(settings, api)
    if limits.requests_per_minute or limits.tokens_per_minute:
        return max(1, -(-int(limits.requests_per_minute or 0) // (60 * REQUESTS_PER_SECOND_AND_ACTOR)))
    wanted = -(-limits.max_concurrency // PLACES_OF_AN_ACTOR)
    return wanted if settings.ray.address else min(wanted, usable_cores())


def calls_for(settings: Settings, stage: Stage, requests: int) -> int:
    """Return the number of HTTP requests for `requests` requests of a stage without failures."""
    return -(-requests // batch_of(settings, stage.api))


def hours_at(settings: Settings, stage: Stage, calls: float, tokens: float, seconds: float = 0.0) -> float | None:
    """Return the hours of the calls of a stage: `hours_of`, or a day for batches."""
    if backend_for(settings, stage.name) == "batch":
        return BATCH_HOURS if calls else 0.0
    return hours_of(limits_of(settings, stage.api), calls, tokens, seconds)


def hours_of(limits: Limits | LlmSettings, requests: float, tokens: float, seconds: float = 0.0) -> float | None:
    """Return the hours of requests and tokens at the limits, None without a limit.

    The slowest limit counts: 60 requests of 2,000 tokens at 60 requests and 60,000 tokens per minute take two minutes,
    which are 0.033 hours. `seconds` is the total time of the requests at the endpoint, with `max_concurrency` of them
    at a time, 0 if it is unknown.
    """
    limited = ((requests, limits.requests_per_minute), (tokens, limits.tokens_per_minute))
    minutes = [amount / limit for amount, limit in limited if limit is not None]
    minutes += [seconds / limits.max_concurrency / SECONDS_PER_MINUTE] if seconds else []
    return max(minutes) / MINUTES_PER_HOUR if minutes else None


# Some endpoints return 403 in place of 401. The client writes both in this form
_ABOUT_KEYS = re.compile(r"HTTP 40[13]\b")
DEMO_LABEL = "embedded demo model"


def key_remedy(endpoint: Any, section: str = "llm") -> str:
    """Return the remedy for a missing or refused key of an endpoint, which is a section of the settings.

    It names the variable of the key and tells if it is set, but never contains its value.
    """
    variable, name = endpoint.api_key_env, f"{section}.api_key_env"
    if getattr(endpoint, "api_key_command", None):
        return f"check the key that {section}.api_key_command prints"
    if variable is None:
        return f"no key was sent, because this address has none. Set the variable of the key with --set {name}=NAME"
    known = "is set" if os.environ.get(variable) else "is not set"
    return f"check the key: {variable} ({name}) {known}"


def call_remedy(answer: Answer, settings: Settings, section: Section = "llm") -> str:
    """Return the remedy of a failed call. `section` is the section of the settings with the endpoint."""
    kind = answer.error_type or ""
    if answer.about:
        return remedy_of(answer, section)
    if kind in ("http_401", "http_403"):
        return key_remedy(getattr(settings, section), section)
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


def explain_refusal(error: str, endpoints: Iterable[Any], section: str = "llm") -> str:
    """Return the refusal of endpoints with the remedy for their keys."""
    remedies = dict.fromkeys(key_remedy(endpoint, section) for endpoint in endpoints)
    return f"{error}: {'; '.join(remedies)}" if _ABOUT_KEYS.search(error) else error


def check_network(addresses: Iterable[str]) -> None:
    """Raise EnvironmentVariableError for certificates or a proxy that no client of these addresses can use."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        path = os.environ.get(name)
        if path and (reason := _unusable_authorities(name, path)):
            raise EnvironmentVariableError(f"{name} names {path}, {reason}; correct the path, or unset {name}")
    if all(is_loopback(address) for address in addresses):
        return
    for name in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"):
        for variable in (name, name.lower()):
            scheme, separator, _ = os.environ.get(variable, "").partition("://")
            if separator and scheme.lower() not in ("http", "https"):
                raise EnvironmentVariableError(
                    f"{variable} names a proxy of the kind {scheme}://, which is not supported; set it to an http:// "
                    f"proxy, or unset {variable}"
                )


def _unusable_authorities(name: str, path: str) -> str | None:
    """Return the reason why a file or a folder of certificates cannot be used."""
    if name == "SSL_CERT_DIR":
        return None if os.path.isdir(path) else "which is not a folder"
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        return "which has no certificates"
    except OSError as error:
        return f"which cannot be read ({error.strerror or type(error).__name__})"
    return None


def addresses_of(settings: Settings) -> list[str]:
    """Return the addresses that a run under these settings may call."""
    llm = [str(one.base_url) for one in settings.llm.each if one.base_url]
    return llm + [address for name in ("embeddings", "search", "classifier") if (address := address_of(settings, name))]


def clear_text_warning(base_url: str | None) -> str | None:
    """Return a warning for an address that is called over a network without encryption, None for other addresses."""
    if base_url is None or not base_url.startswith("http://") or is_loopback(base_url):
        return None
    return f"{base_url} is not encrypted. Others on the network can read texts and key. Use https:// if possible"


class RunEndpoint:
    """The base URL of a run. The embedded server starts at the first call of `base_url` and ends with `close`.

    The constructor reads the file of the model, because its sha256 is part of the ids of requests. `wait` is True to
    wait for the server of another run on this machine. Raises LocalModelError for an unusable model, and
    EnvironmentVariableError for certificates or a proxy that no client can use.
    """

    def __init__(self, settings: Settings, *, embedded: bool, wait: bool, notify: Callable[[str], None]) -> None:
        self._settings, self._wait, self._notify = settings, wait, notify
        self._stack = ExitStack()
        self._base_url = settings.llm.each[0].base_url
        self._told: set[str] = set()
        check_network(addresses_of(settings))
        self._file = local_model.model_file(settings.llm.local_model) if embedded else None

    @property
    def model_sha256(self) -> str | None:
        """The sha256 of the file of the embedded model, None for an address."""
        return self._file.sha256 if self._file else None

    def base_url(self, api: str = "chat") -> str:
        """Return the address for the calls of an API, the first of several, and "" for a local model.

        The first call warns about addresses that receive texts and keys in clear text.
        """
        if api == LOCAL:
            return ""
        section = section_of(api)
        address = self._base_url if section == "llm" else address_of(self._settings, section)
        if section not in self._told:
            self._told.add(section)
            for one in self._settings.llm.each if section == "llm" else [None]:
                if warning := clear_text_warning(one.base_url if one else address):
                    self._notify(warning)
        if section != "llm":
            assert isinstance(address, str)
            return address
        # As late as possible, because it needs more than 1 GB, and a run with a full store sends no requests
        if self._base_url is None:
            assert self._file is not None
            server = local_model.LocalServer(self._file, wait=self._wait, notice=self._notify)
            self._base_url = self._stack.enter_context(server).base_url
        return self._base_url

    def close(self) -> None:
        """End the embedded server if it runs."""
        self._stack.close()

    def __enter__(self) -> RunEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# The files next to the store
SCHEMAS_NAME, PARAMETERS_NAME = "structured.json", "parameters.json"
_SAID = {
    TAKEN: "completions follow the JSON schema of their stage",
    IGNORED: "the endpoint ignores a schema, so completions are read as text",
    REFUSED: "the endpoint refuses a schema, so requests have none",
    UNTRIED: "requests have no schema, because this backend cannot test one",
    BROKEN: "completions with a schema have no content, so requests have none",
}


@dataclass(frozen=True)
class Findings:
    """The support of an endpoint for schemas and parameters by model, kept next to the store. None is no store."""

    settings: Settings
    store: str | None
    # The findings of this start, in case the store is not writable
    learned: dict[str, dict[str, Any]] = field(default_factory=dict)
    adapted: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Models whose last response refused a parameter. Their next request is the only one in flight
    _unsettled: set[str] = field(default_factory=set)

    def applied(self, stage: Stage) -> Stage:
        """Return the stage without unsupported schemas and parameters. Unknown endpoints get the schema."""
        known, parameters = self._known(stage), self.parameters(stage)
        stage = known.applied(stage) if known else stage
        return parameters.applied(stage) if parameters else stage

    def parameters(self, stage: Stage) -> Parameters | None:
        """Return the parameters that the endpoint and the model of a stage refuse, as far as they are known."""
        known = self._read(PARAMETERS_NAME, self.adapted).get(self._key(stage))
        return Parameters.of(known) if known and section_of(stage.api) == "llm" else None

    def described(self, stages: Iterable[Stage]) -> dict[str, list[str]]:
        """Return the known lines about parameters of these stages, by model."""
        known = {stage.model: self.parameters(stage) for stage in stages}
        return {model: found.lines() for model, found in known.items() if found and found.lines()}

    def adapt(self, stage: Stage, found: Parameters) -> list[str]:
        """Store the parameters that an endpoint refuses. Return one line per new parameter."""
        key, before = self._key(stage), self.parameters(stage) or Parameters()
        if found.changes(stage):
            self._unsettled.add(key)
        merged = before.merged(found)
        self.adapted[key] = asdict(merged)
        self._write(PARAMETERS_NAME, self.adapted)
        known = set(before.lines())
        return [f"{stage.model}: {line}" for line in merged.lines() if line not in known]

    def settle(self, stage: Stage) -> None:
        """Record that the endpoint refused no parameter of the stage."""
        self._unsettled.discard(self._key(stage))

    def can_drop_schema(self, stage: Stage) -> bool:
        """Return True if the stage drops its schema for endpoints without support."""
        return stage.structured is not None and decoding_for(self.settings, stage.name).structured == "auto"

    def needs_probe(self, stage: Stage) -> bool:
        """Return True if the first response of a stage must show the support for its schema."""
        known = self._known(stage)
        return self.can_drop_schema(stage) and (known is None or not known.settles(stage))

    def goes_alone(self, stage: Stage) -> bool:
        """Return True if the first request of the stage waits for its response, which may change all others."""
        return self.needs_probe(stage) or self._key(stage) in self._unsettled

    def record(self, stage: Stage, found: SchemaSupport) -> str:
        """Store the finding of a response of this stage, and return it as a line.

        A model that accepts schemas but refuses the schema of a rated stage accepts none with log-probabilities.
        """
        known = self._known(stage)
        if known and known.outcome == TAKEN and stage.rated:
            found = replace(known, weighs=found.outcome == IGNORED or bool(found.weighs))
        self.learned[self._key(stage)] = asdict(found)
        self._write(SCHEMAS_NAME, self.learned)
        return _describe(stage, found)

    def _known(self, stage: Stage) -> SchemaSupport | None:
        known = self._read(SCHEMAS_NAME, self.learned).get(self._key(stage)) if self.can_drop_schema(stage) else None
        return SchemaSupport(**known) if known else None

    def _write(self, name: str, learned: dict[str, dict[str, Any]]) -> None:
        """Write a file of findings next to the store."""
        if self.store is not None:
            content = json.dumps(self._read(name, learned), indent=2, sort_keys=True, ensure_ascii=False)
            # The write of completions reports a full disk
            with suppress(OSError):
                (StoragePath(self.store) / name).write_bytes(content.encode("utf-8") + b"\n")

    def _read(self, name: str, learned: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the findings of this start and of a file next to the store. An unreadable file has none."""
        try:
            kept = {} if self.store is None else dict(json.loads((StoragePath(self.store) / name).read_bytes()))
        except (OSError, ValueError, TypeError):
            kept = {}
        return kept | learned

    def _key(self, stage: Stage) -> str:
        """Return the addresses of the endpoints and the model. Addresses in settings have no password."""
        addresses = sorted(one.base_url or "embedded" for one in self.settings.llm.each)
        return " ".join((*addresses, stage.model_key or stage.model))


def _describe(stage: Stage, found: SchemaSupport) -> str:
    thinks = ", without reasoning as the model thinks" if found.thinks else ""
    weighs = ", except for ratings, which have no log-probabilities with it" if found.weighs is False else ""
    return f"{stage.model}: {_SAID[found.outcome]}{thinks}{weighs} (llm.structured)"
