"""Decide on a response: record it, retry, wait, or stop the run. Learn the parameters that an endpoint refuses."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from untold.udfs.llm.calls import EXPIRED_KEY, Answer, CallContext, Request
from untold.udfs.llm.keys import (
    BROKEN,
    IGNORED,
    MAX_COMPLETION_TOKENS,
    MAX_TOKENS,
    RATING,
    REFUSED,
    SYSTEM,
    TAKEN,
    Parameters,
    SchemaSupport,
    Stage,
)
from untold.udfs.llm.limiter import OUTAGE_FAULTS, EndpointNews, Lease
from untold.udfs.ratings import SCALE, read_alternatives
from untold.udfs.stages.definitions import SCHEMA, read_as

# Parameters that a request can do without
_OPTIONAL = ("temperature", "top_p", "logprobs", "top_logprobs", "seed")
# No stage can use a completion with fewer tokens
LEAST_TOKENS = 16
# Halving an unexplained limit stops here
LEAST_HALF = 256


def find(stage: Stage, answer: Answer, variables: Mapping[str, Any]) -> SchemaSupport | None:
    """Return the schema support that an answer to a request with a schema shows, None if it shows nothing."""
    if stage.structured is None:
        return None
    if answer.about_schema:
        return SchemaSupport(REFUSED)
    if answer.misplaced or answer.error_type == "empty":
        return SchemaSupport(BROKEN)
    if answer.text is None:
        return None
    if read_as(answer.text, stage.structured["schema"], None, variables) != SCHEMA:
        return SchemaSupport(IGNORED)
    return SchemaSupport(TAKEN, answer.thinks, _weighs(stage, answer))


def _weighs(stage: Stage, answer: Answer) -> bool | None:
    """Return True if an answer of a rated stage has log-probabilities, None if the request did not ask for them."""
    asked = stage.rated and stage.extra_body.get("logprobs") is not False
    rating = asked and answer.text is not None and any(digit in answer.text for digit in SCALE)
    return read_alternatives(answer.text or "", answer.logprobs) is not None if rating else None


def refused_parameters(stage: Stage, answer: Answer) -> Parameters | None:
    """Return how to send the stage after this refusal; None if it names nothing that the stage sends."""
    sends = {**stage.decoding}
    if stage.rated and sends.get("logprobs") is not False:
        sends |= dict.fromkeys(RATING)
    for name in answer.about:
        if name in _OPTIONAL and name in sends and sends[name] is not False:
            return Parameters(dropped=(name,))
        if name == MAX_COMPLETION_TOKENS and MAX_TOKENS in sends and stage.api == "chat":
            return Parameters(limit_name=MAX_COMPLETION_TOKENS)
        if name == "developer" and stage.system_role == SYSTEM and stage.api == "chat":
            return Parameters(system_role="developer")
        if name in (SYSTEM, "developer") and stage.system_role != "user" and stage.api == "chat":
            return Parameters(system_role="user")
        if name == MAX_TOKENS and (smaller := _smaller(stage, answer)):
            return smaller
    return None


def _smaller(stage: Stage, answer: Answer) -> Parameters | None:
    """Return a smaller limit for a stage whose limit is too large: the window, the named limit, or half."""
    if answer.window and stage.window is None:
        return Parameters(window=answer.window)
    if stage.max_tokens is None:
        return None
    sent = stage.most_tokens or stage.max_tokens + stage.reasoning_tokens
    if answer.most_tokens and LEAST_TOKENS <= answer.most_tokens < sent:
        return Parameters(max_tokens=answer.most_tokens)
    half = sent // 2
    return Parameters(max_tokens=half) if half >= LEAST_HALF else None


class Trial:
    """The trial of the schema and the parameters of a call.

    While the trial is `pending`, only one request is in flight. The trial is `over` once all requests of the stage must
    be sent with another schema or other parameters.
    """

    def __init__(self, call: CallContext) -> None:
        self._call, self._stage = call, call.stage
        self.pending = call.tries_schema
        self.finding: SchemaSupport | None = None
        self.parameters: Parameters | None = None
        self.over = False
        self._empty: str | None = None

    def record(self, request: Request, answer: Answer, *, completed: bool) -> None:
        """Note the first answer, or a refusal before any completion. A rate limit says nothing.

        One request with an empty completion says nothing; two do.
        """
        refused = refused_parameters(self._stage, answer) if self._call.may_adapt and not completed else None
        if refused is not None and refused.changes(self._stage):
            self.parameters, self.over = refused, True
            return
        first = self.pending and answer.error_type == "empty" and self._empty in (None, request.request_id)
        self._empty = request.request_id if first else self._empty
        if first:
            return
        if self.pending or (self._call.may_drop_schema and answer.about_schema and not completed):
            self.finding = find(self._stage, answer, request.variables)
            self.over = self.finding is not None and self.finding.changes(self._stage)
            self.pending = answer.error_type == "http_429"


# The error of the row of an unparsable completion whose request was sent again
ASKED_AGAIN = "asked_again"
# Temporary conflicts. The client of OpenAI also retries these statuses
RETRIED_STATUSES = ("http_408", "http_409", "http_425", EXPIRED_KEY)
# A vote of a judge whose endpoint refused the run or had an outage
JUDGE_DOWN = "judge_down"
# Temporary failures. The next start of a run sends these requests again, and no others
PASSING_TYPES = (
    "timeout",
    "connection",
    "bad_body",
    "bad_finish",
    *RETRIED_STATUSES,
    "http_429",
    ASKED_AGAIN,
    JUDGE_DOWN,
)
PASSING_PREFIX = "http_5"

# Unusable answers whose requests the same start sends again, up to `llm.max_attempts`
ASK_AGAIN = frozenset({"unparsable", "refused", "empty", "truncated", "bad_body", "bad_finish"})
# They indicate a problem of the endpoint, so the request is sent again after a wait
_AFTER_A_WAIT = frozenset({"bad_body", "bad_finish"})
# With a completion, even an unusable one, the key, the address and the model are right
_COMPLETED = frozenset({None, "unparsable", "refused", "empty", "truncated", "filtered"})
# Errors that no row can cause: the key (401), the credit (402, or 429 for an exhausted quota)
_SURE_REFUSALS = frozenset({"http_401", "http_402", "http_429"})
# After this number of errors about the run (403, 404, unknown model) in a row, the rows are not the reason
DOUBTS_IN_A_ROW = 20

# Seconds, doubled after each attempt: short for a temporary error, long for an endpoint that restarts
FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0

CHECK = "check key, {address} and {section}.model"
CREDIT = "add credit to the account, or raise its quota"
NO_SCHEMA = "it takes no schema in this form, set llm.structured to auto or off"
NO_TOOLS = "it takes no tools, set qa.quantity_tool to resolve or none"
_LEARN = "a run with llm.backend=process finds the accepted parameters"
# By the parameter or topic that an error names
_REMEDIES = {
    "temperature": f"set llm.temperature to null, or to a value that the model accepts; {_LEARN}",
    "top_p": f"set llm.top_p to null; {_LEARN}",
    **dict.fromkeys(("logprobs", "top_logprobs"), f"set llm.extra_body to {{logprobs: false}}; {_LEARN}"),
    "seed": "remove seed from llm.extra_body",
    "max_tokens": f"lower llm.max_tokens; {_LEARN}",
    "max_completion_tokens": f"name the limit in llm.extra_body and set llm.max_tokens to null; {_LEARN}",
    **dict.fromkeys(("system", "developer"), f"the model accepts no system turn; {_LEARN}"),
    "response_format": NO_SCHEMA,
    "tools": NO_TOOLS,
    "context": "the prompt does not fit into the context window: lower llm.max_tokens, summarise or shorten the "
    "contexts, or set llm.model to one with a larger window",
    "api_key": "check the key that llm.api_key_env names, or that llm.api_key_command prints",
    "credit": CREDIT,
    "budget": "raise the budget of the key at the endpoint, or use another key",
    "base_url": "check that llm.base_url is the address of an OpenAI-compatible API; most end in /v1",
    "certificate": "the certificate is not trusted: name the file of its authority in SSL_CERT_FILE",
}


def is_passing(error_type: str | None) -> bool:
    """Return True if a failure is temporary.

    >>> is_passing("http_503"), is_passing("http_400"), is_passing(None)
    (True, False, False)
    """
    return error_type in PASSING_TYPES or (error_type or "").startswith(PASSING_PREFIX)


def is_fault(error_type: str | None) -> bool:
    """Return True for an error of the endpoint: a timeout, a connection error or a 5xx."""
    return error_type in ("timeout", "connection") or (error_type or "").startswith("http_5")


def remedy_of(answer: Answer, section: str = "llm") -> str:
    """Return the remedy for a refusal by the endpoint that this section of the settings names."""
    if known := next((_REMEDIES[one] for one in answer.about if one in _REMEDIES), None):
        return known.replace("llm.", f"{section}.") if section != "llm" else known
    if answer.about:
        return f"remove {answer.about[0]} from {section}.extra_body"
    if answer.error_type in ("http_402", "http_429"):
        return CREDIT
    return CHECK.format(address=address_setting(section), section=section)


def is_rejection(answer: Answer) -> bool:
    """Return True if every request may get this error, though it does not say so: a 4xx, or a body of another kind.

    >>> is_rejection(Answer(error_type="http_400")), is_rejection(Answer(error_type="http_429"))
    (True, False)
    """
    kind = answer.error_type or ""
    if answer.refused or kind in RETRIED_STATUSES or kind == "http_429":
        return False
    return kind.startswith("http_4") or "base_url" in answer.about


def next_limit(answer: Answer, sent: int | None) -> int | None:
    """Return the token limit for the next call of a request, after an error about the limit `sent`; None for no change.

    The limit doubles after a completion that was cut off. A limit above the context window becomes the rest of the
    window.
    """
    if answer.error_type == "truncated":
        used = 0 if answer.usage.estimated else answer.usage.completion_tokens
        return 2 * max(used, sent or 0) or None
    if "max_tokens" in answer.about and (most := answer.most_tokens) and LEAST_TOKENS <= most < (sent or most + 1):
        return most
    return None


def address_setting(section: str) -> str:
    """Return the setting with the address of the endpoint of a section."""
    return "nli.classifier_url" if section == "classifier" else f"{section}.base_url"


def backoff(attempt: int) -> float:
    """Return the seconds before attempt number `attempt` + 1: doubled each time, with jitter against bursts."""
    return min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


class RetryDecision(Enum):
    """The decision about a request after an answer."""

    RECORD = "record"
    AGAIN = "again"
    HOLD = "hold"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Verdict:
    """A decision with its details.

    Attributes:
        act: the decision.
        wait: seconds before `AGAIN`.
        attempt: True if the answer counts as an attempt of the request.
        afresh: True if the conversation begins again.
        anew: True if the deadline of the request begins again.
        limit: the token limit of the next call, None for the same limit.
    """

    act: RetryDecision
    wait: float = 0.0
    attempt: bool = False
    afresh: bool = False
    anew: bool = False
    limit: int | None = None


_LAST = Verdict(RetryDecision.RECORD, attempt=True)


def judge(request: Request, answer: Answer, max_attempts: int, *, free: bool) -> Verdict:
    """Return the decision about a request. With `free`, an error is part of an outage and is not an attempt.

    The decision depends on the kind of the answer and never on its text, so it is the same for all rows of a stage.

    >>> limited = Answer(error_type="http_429", retry_after=2.0)
    >>> judge(Request("id", {}, "unit"), limited, 4, free=False)
    Verdict(act=<RetryDecision.AGAIN: 'again'>, wait=2.0, attempt=False, afresh=False, anew=False, limit=None)
    """
    kind = answer.error_type
    if answer.refused:
        # First, because the error concerns the run, so that no rule about its row applies
        sure = kind in _SURE_REFUSALS or "certificate" in answer.about
        return Verdict(RetryDecision.REFUSE if sure else RetryDecision.HOLD)
    if kind is None:
        return _LAST
    # A rate limit is not an attempt of the request, but its deadline continues
    if kind == "http_429":
        return Verdict(
            RetryDecision.AGAIN, backoff(request.limited) if answer.retry_after is None else answer.retry_after
        )
    if is_fault(kind) and free:
        # The limiter grants only single probes during an outage, so a short wait is enough here
        return Verdict(RetryDecision.AGAIN, FIRST_BACKOFF, anew=True)
    if request.attempts + 1 >= max_attempts:
        return _LAST
    wait = backoff(request.attempts + 1)
    if is_fault(kind) or kind in RETRIED_STATUSES:
        return Verdict(RetryDecision.AGAIN, max(wait, answer.retry_after or 0.0), attempt=True)
    afresh, limit = kind in ASK_AGAIN, next_limit(answer, request.limit or request.sent_limit)
    if not (afresh or limit):
        return _LAST
    return Verdict(
        RetryDecision.AGAIN, wait if kind in _AFTER_A_WAIT else 0.0, attempt=True, afresh=afresh, limit=limit
    )


@dataclass
class EndpointHealth:
    """The state of an endpoint in a request loop: responses, refusals and outages. Times of the clock of the loop.

    Attributes:
        completed: True after a completion in this run. `completed_here`: in this stage of this start.
        doubts: errors about the run since the last completion in this loop.
        doubts_of_all: the same number over all actors, by the last report of the limiter.
    """

    answered_ever: bool = False
    completed: bool = False
    completed_here: bool = False
    answered_at: float = float("-inf")
    probing: bool = False
    doubts: int = 0
    doubts_of_all: int = 0
    news: EndpointNews = field(default_factory=EndpointNews)

    def record(self, request: Request, answer: Answer, now: float) -> bool:
        """Record an answer. Return True for an error of the endpoint that is not an attempt of the request."""
        kind, news = answer.error_type, self.news
        if answer.retry_after is not None:
            news.retry_after = max(news.retry_after or 0.0, answer.retry_after)
        if is_fault(kind) and not answer.refused:
            return self._hear_fault(request, answer, now)
        self.answered_ever, self.answered_at = True, now
        news.answered, news.faults = True, 0
        news.limited |= kind == "http_429"
        news.served |= kind != "http_429"
        news.successes += kind is None
        if answer.refused:
            self.doubts += 1
            news.doubts += 1
        elif kind in _COMPLETED:
            self.completed = self.completed_here = news.completed = True
            self.doubts = news.doubts = 0
        return False

    def _hear_fault(self, request: Request, answer: Answer, now: float) -> bool:
        """Record an error of the endpoint. Return True if it is no attempt: in an outage, or without any contact."""
        never_reached = answer.unconnected and not self.answered_ever
        request.first_fault = request.first_fault or now
        if never_reached:
            # An address without a server is an outage at once, without fifty errors
            self.news.faults += OUTAGE_FAULTS
        elif self.answered_at <= request.first_fault:
            # If other requests had a response since then, the request fails and not the endpoint
            self.news.faults += 1
        return never_reached or self.probing

    def learn(self, lease: Lease, answered_at: float) -> None:
        """Update the state from a lease. `answered_at` is the time in the lease, by the clock of the loop."""
        self.answered_at = max(self.answered_at, answered_at)
        self.probing = lease.probing
        self.completed |= lease.completed
        self.completed_here |= lease.completed
        self.doubts_of_all = lease.doubts

    def tell(self) -> EndpointNews:
        """Return the news since the last call."""
        news, self.news = self.news, EndpointNews()
        return news

    def is_refused(self, in_flight: int) -> bool:
        """Return True if errors about the run end it: there are too many, or there is no other result."""
        in_a_row = max(self.doubts, self.doubts_of_all)
        return in_a_row >= DOUBTS_IN_A_ROW or not (self.completed or in_flight)
