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


# The header that a key is sent in, where an API has no other
BEARER = "Authorization"
# Of the APIs whose address is one of the endpoint's
PATHS = {"chat": "/chat/completions", "completions": "/completions", "embeddings": "/embeddings"}


@dataclass(frozen=True)
class CallSettings:
    """How the endpoint is called: everything that does not change a completion. Times in seconds.

    `timeout` is of one call, `deadline` of a request over all its calls and waits, `outage` how long an endpoint may be
    away before the run ends. `flush`: between two writes of completions. `journal`: the folder in which an actor keeps
    them until then, empty for the node's own, None for no journal. `prices` are those of the stage that is asked.
    `batch`: the most rows of one call, for APIs that take several. `section`: of the settings that name the endpoint.
    `model`: as the endpoint calls it, None for the stage's. `headers` and `query`: sent with every call, each a text or
    `{"env": variable}`. `endpoints`: where several answer, the settings of each; `weight` is its share of the calls.
    `batch_format`: how batches are sent, in files of `batch_folder` where no endpoint takes them; `keep_files`: whether
    their files stay.
    `gpus`: those of an actor that runs a local model, and `provider` what of onnxruntime does so.
    """

    base_url: str
    api_key_env: str | None = None
    timeout: float = 120.0
    deadline: float = 600.0
    outage: float = 600.0
    max_attempts: int = 4
    flush: float = 1.0
    prices: Prices = field(default_factory=Prices)
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    journal: str | None = None
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
    gpus: float = 0.0
    provider: str = "CUDAExecutionProvider"

    @property
    def each(self) -> tuple[CallSettings, ...]:
        """The settings of each endpoint."""
        return self.endpoints or (self,)

    @property
    def label(self) -> str:
        """What the endpoint goes by: its address, and more where several have one."""
        return self.name or self.base_url

    def priced(self, usage: Usage) -> Usage:
        """The usage with its cost; of several endpoints each has its own prices."""
        if not self.endpoints:
            return self.prices.priced(usage)
        parts = {one.label: one.priced(usage.endpoints.get(one.label, NOTHING_USED)) for one in self.endpoints}
        return replace(usage, cost=sum_costs(parts.values()), endpoints=parts)

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens have to be estimated before they are spent."""
        # A bound on cost is one on tokens too: what they cost has to be known before they are spent.
        limits = (one.limits.tokens_per_minute for one in self.each)
        return any(bound is not None for bound in (*limits, self.budget.max_tokens, self.budget.max_cost))


def sent_values(given: Mapping[str, Any]) -> dict[str, str]:
    """Headers or parameters as they are sent: texts, and values of the variables that they name.

    What an unset variable would give is left out.
    """
    values = {name: os.environ.get(one["env"]) if isinstance(one, Mapping) else str(one) for name, one in given.items()}
    return {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class Answer:
    """What came of one call.

    `error_type` is None for a completion that can be read. `refused` means that the error speaks of the run and not of
    its row (key, credit, budget, certificate, address or model). `about`: the parameters and topics that the error
    names, in the order in which they are given up: a parameter of the request, or `tools`, `response_format`, `system`,
    `developer`, `context`, `api_key`, `credit`, `budget` or `certificate`. `window`: the context window that the error
    states, and `most_tokens` the largest limit that it allows. `unconnected` means that no connection was made.
    `retry_after` is in seconds. Of an API that takes several rows at once, `parts` are the answers to each of them;
    `vector` is what an embedding model gives, instead of a text. `thinks`: thinking came beside the text; `misplaced`:
    the text stood where thinking belongs.
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
        tries_schema: True if the first request is sent alone, to find out if the endpoint supports JSON schemas.
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

    `call_id` identifies one call of the stage; a start can call a stage several times. `gone` is the usage of the dead
    actors of that call, by name.
    """

    name: str
    call_id: str
    run: str
    call: CallContext
    settings: CallSettings
    gone: Mapping[str, Usage] = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        """Return the stage of the call."""
        return self.call.stage


@dataclass(frozen=True)
class Progress:
    """A snapshot of an asker: what it used, what waits and is in flight, which units are written, why it stands still.

    `paused`: seconds for which the endpoint asked to be left alone. `unwritten`: answered rows on no disk yet;
    `trouble`: why they could not be written the last time, and `unwritable`: that this has lasted too long. `finding`:
    what the endpoint makes of a schema, where that was to be found out, which goes on while it `tries_schema`.
    `parameters`: those that the endpoint refuses, and the tokens that reasoning took.
    `left_out`: a line for each endpoint that refuses the run while others answer.
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
    """A request while it is asked: what was sent and spent, why it was not answered yet. Times by a monotonic clock.

    `turns` are those that followed the prompt, in `rounds` in which the model called tools; `trace` is what these said;
    `turn_due`: the next call goes on with them for the first time. `names_form`: calls say which form is wanted.
    `members` are the rows of a request that asks for several at once; each is a row of the store. `promised`: tokens of
    the budget that its call may take; `failed_at`: endpoints, by number, that another one is to be asked after.
    `limit`: the token limit of its next call, instead of the stage's.
    """

    request_id: str
    variables: Mapping[str, Any]
    unit: str
    body: bytes | None = None
    tokens: int = 0
    reserved: int = 0
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
    promised: int = 0
    failed_at: frozenset[int] = frozenset()
    limit: int | None = None

    @property
    def rows(self) -> int:
        """How many rows of the store it is."""
        return len(self.members) or 1

    def begin_again(self, *, names_form: bool) -> None:
        """Forgets what followed the prompt; the next call names the form that is wanted, or is the same."""
        self.names_form |= names_form
        self.rounds, self.turns, self.trace, self.turn_due = 0, [], [], False
        self.body, self.tokens = None, 0

    def bound(self, limit: int | None) -> None:
        """Set the token limit of the next call; None keeps the limit."""
        if limit is not None:
            self.limit, self.body, self.tokens = limit, None, 0

    def go_on(self, turns: list[dict[str, Any]], said: list[dict[str, str]]) -> None:
        """Takes the turns in which tools were used; the next call sends them."""
        self.turns += turns
        self.trace += said
        self.rounds += 1
        self.turn_due = True
        self.body, self.tokens = None, 0

    def release(self) -> tuple[int, int]:
        """Ends the reservations of its call; the tokens that were reserved of the limit and of the budget."""
        reserved, self.reserved, self.promised = (self.reserved, self.promised), 0, 0
        return reserved


@dataclass
class Units:
    """The units of work, by how many of their requests are not recorded yet.

    A unit is `recorded` once all of its rows are with the writer, and `finished` once these are on the disk.
    """

    left: dict[str, int] = field(default_factory=dict)
    recorded: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    requests_left: int = 0

    def take(self, unit: str, count: int) -> None:
        """A new unit of so many requests."""
        self.left[unit] = count
        self.requests_left += count
        if not count:
            self.recorded.append(unit)

    def record(self, unit: str) -> None:
        """One request of the unit is with the writer."""
        self.left[unit] -= 1
        self.requests_left -= 1
        if not self.left[unit]:
            self.recorded.append(unit)


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine's loopback interface.

    >>> is_loopback("http://127.0.0.1:8000/v1"), is_loopback("https://api.example.org/v1")
    (True, False)
    """
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# Names of hosts, or their ends, that have no other form
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
    """The form of batches at an address: that of its maker where the host says who that is, else OpenAI's.

    >>> format_at("https://api.mistral.ai/v1"), format_at("http://localhost:8000/v1")
    ('mistral', 'openai')
    """
    host = urlsplit(base_url).hostname or ""
    return next((name for end, name in _HOSTS.items() if f".{host}".endswith(f".{end.lstrip('.')}")), "openai")
