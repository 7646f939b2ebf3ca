"""Settings, results and progress of calls to an endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from untold.udfs.llm.keys import Parameters, SchemaSupport, Stage
from untold.udfs.llm.limiter import Budget, Limits
from untold.udfs.llm.tools import ToolCall
from untold.udfs.llm.usage import NOTHING_USED, Prices, Usage, sum_costs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# The header of the key, unless an API has its own
BEARER = "Authorization"
# The path of each API below the address of the endpoint
# The protocol of Anthropic's Messages API (`CallSettings.protocol`)
MESSAGES = "messages"
# A call was refused because its key had expired. It is sent again with a new key
EXPIRED_KEY = "expired_key"
PATHS = {"chat": "/chat/completions", "completions": "/completions", "embeddings": "/embeddings"}


@dataclass(frozen=True)
class CallSettings:
    """The settings of calls to an endpoint. They do not change completions. Times are in seconds.

    Attributes:
        timeout: limit of one call.
        deadline: limit of a request, over all its calls and waits.
        outage: how long an endpoint may be unavailable before the run ends.
        flush: time between two writes of completions.
        prices: prices of the stage.
        batch: maximum number of rows per call, for APIs that accept several.
        section: section of the settings that names the endpoint.
        model: name of the model at the endpoint. None for the name in the stage.
        headers, query: values for every call. Each is a text or `{"env": variable}`.
        endpoints: settings of each endpoint if there are several. `weight` is the share of an endpoint in the calls.
        batch_format: format of batches. Without an endpoint for batches, they are files in `batch_folder`.
        keep_files: keep the files of batches at the endpoint.
        protocol: `chat` for the OpenAI-compatible API, `messages` for Anthropic's Messages API.
        api_key_command: shell command that prints the key, in place of `api_key_env`. It runs again after
            `api_key_seconds` and after a 401.
        gpus: number of GPUs per actor that runs a local model.
        provider: execution provider of onnxruntime for a local model.
    """

    base_url: str
    api_key_env: str | None = None
    timeout: float = 120.0
    deadline: float = 600.0
    outage: float = 600.0
    max_attempts: int = 4
    flush: float = 5.0
    prices: Prices = field(default_factory=Prices)
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    batch: int = 1
    section: str = "llm"
    name: str | None = None
    model: str | None = None
    weight: float = 1.0
    headers: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    endpoints: tuple[CallSettings, ...] = ()
    batch_format: str = "openai"
    batch_folder: str | None = None
    keep_files: bool = False
    protocol: str = "chat"
    api_key_command: str | None = None
    api_key_seconds: float = 1800.0
    gpus: float = 0.0
    provider: str = "CUDAExecutionProvider"

    @property
    def each(self) -> tuple[CallSettings, ...]:
        """The settings of each endpoint."""
        return self.endpoints or (self,)

    @property
    def label(self) -> str:
        """The name of the endpoint: its address, or a longer name if several endpoints have the same address."""
        return self.name or self.base_url

    def priced(self, usage: Usage) -> Usage:
        """Return the usage with its cost. Each of several endpoints has its own prices."""
        if not self.endpoints:
            return self.prices.priced(usage)
        parts = {one.label: one.priced(usage.endpoints.get(one.label, NOTHING_USED)) for one in self.endpoints}
        return replace(usage, cost=sum_costs(parts.values()), endpoints=parts)

    @property
    def counts_tokens(self) -> bool:
        """True if the tokens of a call must be estimated before it is sent."""
        # A limit of the cost also limits tokens, because the cost must be known before the call
        limits = (one.limits.tokens_per_minute for one in self.each)
        return any(bound is not None for bound in (*limits, self.budget.max_tokens, self.budget.max_cost))


def sent_values(given: Mapping[str, Any]) -> dict[str, str]:
    """Return headers or parameters as texts, with the values of environment variables. Leave out unset variables."""
    values = {name: os.environ.get(one["env"]) if isinstance(one, Mapping) else str(one) for name, one in given.items()}
    return {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class Answer:
    """The result of one call: a completion, a vector or an error.

    Attributes:
        error_type: None for a readable completion.
        refused: True if the error concerns the run and not only its row (key, credit, budget, certificate, address or
            model).
        about: the parameters and topics that the error names, in the order in which Untold leaves them out: a parameter
            of the request, or `tools`, `response_format`, `system`, `developer`, `context`, `api_key`, `credit`,
            `budget` or `certificate`.
        window: the context window that the error states.
        most_tokens: the largest token limit that the error allows.
        unconnected: True if there was no connection.
        retry_after: seconds until the next attempt.
        parts: the results of the rows, for an API that accepts several rows per call.
        vector: the result of an embedding model.
        thinks: True if the response has reasoning in its own field.
        misplaced: True if the text was in the field of the reasoning.
    """

    text: str | None = None
    finish_reason: str | None = None
    model: str | None = None
    usage: Usage = NOTHING_USED
    logprobs: Any = None
    tool_calls: tuple[ToolCall, ...] = ()
    error_type: str | None = None
    error: str | None = None
    retry_after: float | None = None
    refused: bool = False
    about: tuple[str, ...] = ()
    window: int | None = None
    most_tokens: int | None = None
    thinks: bool = False
    misplaced: bool = False
    unconnected: bool = False
    vector: NDArray[np.float32] | None = None
    parts: tuple[Answer, ...] = ()

    @property
    def about_tools(self) -> bool:
        """Return True if the error names tools."""
        return "tools" in self.about

    @property
    def about_schema(self) -> bool:
        """Return True if the error names the schema that was sent."""
        return "response_format" in self.about


@dataclass(frozen=True)
class CallContext:
    """A stage to call, and the facts from earlier calls of the run that decide how to call it.

    The runner makes it. The pending requests, the job and the work of each actor hold the same record.

    Attributes:
        stage: the stage.
        spent: the usage of this start before the stage. It counts against the budget.
        answered_before: True if the endpoint answered this run before. A 403 or 404 is then an error of its row and
            not of the run.
        tries_schema: True if a single first request tests if the endpoint supports JSON schemas.
        may_drop_schema: True if a refused schema ends the job, so that the runner starts it again without a schema.
        may_adapt: True if a refused parameter ends the job, so that the runner starts it again without the parameter.
    """

    stage: Stage
    spent: Usage = field(default_factory=Usage)
    answered_before: bool = False
    tries_schema: bool = False
    may_drop_schema: bool = False
    may_adapt: bool = False


@dataclass(frozen=True)
class Work:
    """The work of one actor.

    `call_id` identifies one call of the stage; a start can call a stage several times. `directory` is the folder of the
    completions. `gone` is the usage of the dead actors of that call, by name.
    """

    name: str
    call_id: str
    run: str
    call: CallContext
    settings: CallSettings
    directory: str = ""
    gone: Mapping[str, Usage] = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        """Return the stage of the call."""
        return self.call.stage


@dataclass(frozen=True)
class Progress:
    """A snapshot of a request loop: usage, waiting requests, requests in flight, written units, and errors.

    Attributes:
        paused: seconds of the pause that the endpoint requested.
        unwritten: completed rows that are not on a disk yet.
        trouble: the error of the last failed write.
        unwritable: True if writes have failed for too long.
        finding: the schema support of the endpoint, once it is known.
        tries_schema: True while the loop tests the schema support.
        parameters: the parameters that the endpoint refuses, and the number of reasoning tokens.
        left_out: a line for each endpoint that refuses the run while other endpoints respond.
    """

    usage: Usage
    queued: int
    in_flight: int
    finished_units: tuple[str, ...]
    refusal: str | None
    refused: str | None
    models: tuple[str, ...]
    answered_ever: bool
    paused: float = 0.0
    unwritten: int = 0
    trouble: str | None = None
    unwritable: bool = False
    finding: SchemaSupport | None = None
    parameters: Parameters | None = None
    tries_schema: bool = False
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class Request:
    """The state of a request until its completion: sent and used tokens, calls, and the last error.

    Attributes:
        first_sent, first_fault: times of a monotonic clock.
        rounds: number of responses in which the model called tools.
        turns: the turns after the prompt.
        trace: the calls and results of tools.
        turn_due: True if the next call is the first call with the newest turns.
        names_form: True if calls name the output format.
        members: the rows of a request with several rows. Each is a row of the store.
        reserved: tokens of the call that are reserved from the limit, and from the budget if endpoints share it.
        failed_at: indices of endpoints at which the request failed. The next call goes to another endpoint.
        limit: the token limit of the next call. None for the limit of the stage.
        sent_limit: the token limit in the newest body. None if the body has no limit, or another process wrote it.
    """

    request_id: str
    variables: Mapping[str, Any]
    unit: str
    body: bytes | None = None
    tokens: int = 0
    reserved: tuple[int, ...] = ()
    attempts: int = 0
    calls: int = 0
    limited: int = 0
    first_sent: float | None = None
    first_fault: float | None = None
    last: Answer | None = None
    usage: Usage = NOTHING_USED
    rounds: int = 0
    turn_due: bool = False
    names_form: bool = False
    turns: list[dict[str, Any]] = field(default_factory=list)
    trace: list[dict[str, str]] = field(default_factory=list)
    members: list[Request] = field(default_factory=list)
    failed_at: frozenset[int] = frozenset()
    limit: int | None = None
    sent_limit: int | None = None

    @property
    def rows(self) -> int:
        """The number of its rows in the store."""
        return len(self.members) or 1

    def begin_again(self, *, names_form: bool) -> None:
        """Remove all turns after the prompt. With `names_form`, the next call names the output format."""
        self.names_form |= names_form
        self.rounds, self.turns, self.trace, self.turn_due = 0, [], [], False
        self.body, self.tokens = None, 0

    def bound(self, limit: int | None) -> None:
        """Set the token limit of the next call; None keeps the limit."""
        if limit is not None:
            self.limit, self.body, self.tokens = limit, None, 0

    def go_on(self, turns: list[dict[str, Any]], said: list[dict[str, str]]) -> None:
        """Add turns in which tools were called. The next call sends them."""
        self.turns += turns
        self.trace += said
        self.rounds += 1
        self.turn_due = True
        self.body, self.tokens = None, 0


@dataclass
class Units:
    """The units of work, with the number of their requests that are not recorded yet.

    A unit is `recorded` when the writer has all its rows, and `finished` when all its rows are on the disk.
    """

    left: dict[str, int] = field(default_factory=dict)
    recorded: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    requests_left: int = 0

    def take(self, unit: str, count: int) -> None:
        """Add a unit with `count` requests."""
        self.left[unit] = count
        self.requests_left += count
        if not count:
            self.recorded.append(unit)

    def record(self, unit: str) -> None:
        """Record that the writer has one more request of the unit."""
        self.left[unit] -= 1
        self.requests_left -= 1
        if not self.left[unit]:
            self.recorded.append(unit)


def is_loopback(url: str) -> bool:
    """Return True if the host of a URL is the loopback interface of this machine.

    >>> is_loopback("http://127.0.0.1:8000/v1"), is_loopback("https://api.example.org/v1")
    (True, False)
    """
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# Names of hosts, or their endings, with the format of their batches
_HOSTS = {
    ".openai.azure.com": "azure",
    ".cognitiveservices.azure.com": "azure",
    ".services.ai.azure.com": "azure",
    "api.mistral.ai": "mistral",
    "api.together.xyz": "together",
    "api.together.ai": "together",
    "api.groq.com": "groq",
    "api.anthropic.com": "anthropic",
}


def format_at(base_url: str) -> str:
    """Return the format of batches at an address: the format of a known host, otherwise the format of OpenAI.

    >>> format_at("https://api.mistral.ai/v1"), format_at("http://localhost:8000/v1")
    ('mistral', 'openai')
    """
    host = urlsplit(base_url).hostname or ""
    return next((name for end, name in _HOSTS.items() if f".{host}".endswith(f".{end.lstrip('.')}")), "openai")
