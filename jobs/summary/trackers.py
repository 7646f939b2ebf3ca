"""Write the scores of a run for tools that show traces, and send them to Langfuse, Phoenix, MLflow or OTLP.

A line of a file is the JSON body of one HTTP call. The id of a record depends on the run, the sample and the metric.
"""

from __future__ import annotations

import json
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from http.client import HTTPException
from itertools import groupby, islice
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote
from urllib.request import HTTPRedirectHandler, Request, build_opener

from untold.udfs.errors import UserError
from untold.udfs.llm.responses import read_retry_after
from untold.udfs.redaction import plain_url, redact

SECONDS = 30.0
MOST_ATTEMPTS = 6
# The most scores of a call to a tool that accepts several
SCORES_PER_CALL = 100
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
TRACE_DIGITS, SPAN_DIGITS = 32, 16
_TRACE, _SPAN = re.compile(rf"[0-9a-f]{{{TRACE_DIGITS}}}"), re.compile(rf"[0-9a-f]{{{SPAN_DIGITS}}}")
# The key of our id in the metadata of an assessment. MLflow chooses the ids of assessments
ID = "untold.id"
PRODUCT = "untold"
Body = Any
Headers = dict[str, str]


@dataclass(frozen=True)
class TrackedScore:
    """A score of a sample under a metric. `trace` and `span` are the ids of the response in the tool.

    `comment` lists the first missing statements. `score` is None if it is undefined or unknown.
    """

    id: str
    trace: str
    span: str | None
    metric: str
    score: float | None
    low: float | None
    high: float | None
    status: str
    comment: str
    started_at: str

    def details(self) -> dict[str, Any]:
        """Return the bounds and the status, without missing bounds."""
        bounds = {"score_low": self.low, "score_high": self.high, "status": self.status}
        return {name: value for name, value in bounds.items() if value is not None}


@dataclass(frozen=True)
class TrackerCall:
    """An HTTP call: a path below the address of the tool, and the JSON body."""

    path: str
    body: Body


def score_id(run: str, sample: str, metric: str) -> str:
    """Return an id of 32 hexadecimal digits.

    >>> score_id("run", "s1", "nli")[:8]
    'be1a79e9'
    """
    return sha256("\0".join((run, sample, metric)).encode()).hexdigest()[:TRACE_DIGITS]


def langfuse_calls(scores: Sequence[TrackedScore]) -> Iterator[TrackerCall]:
    """Yield one list of scores (`CreateScoreRequest`). A sample without a score has its status as a category."""
    body = [
        {
            "id": one.id,
            "traceId": one.trace,
            **({"observationId": one.span} if one.span else {}),
            "name": one.metric,
            "value": one.status if one.score is None else one.score,
            "dataType": "CATEGORICAL" if one.score is None else "NUMERIC",
            "comment": one.comment,
            "metadata": one.details(),
            "timestamp": one.started_at,
        }
        for one in scores
    ]
    yield TrackerCall("/api/public/scores", body)


def phoenix_calls(scores: Sequence[TrackedScore]) -> Iterator[TrackerCall]:
    """Yield the annotations of traces and the annotations of spans. An equal identifier replaces an annotation."""
    for is_span, group in groupby(sorted(scores, key=_has_span), key=_has_span):
        kind = "span" if is_span else "trace"
        data = [
            {
                f"{kind}_id": one.span if is_span else one.trace,
                "name": one.metric,
                "annotator_kind": "LLM",
                "result": {
                    "label": one.status,
                    "explanation": one.comment,
                    **({} if one.score is None else {"score": one.score}),
                },
                "metadata": one.details(),
                "identifier": one.id,
            }
            for one in group
        ]
        # Without `sync`, Phoenix silently drops annotations of unknown traces
        yield TrackerCall(f"/v1/{kind}_annotations?sync=true", {"data": data})


def _has_span(score: TrackedScore) -> bool:
    return score.span is not None


def mlflow_calls(scores: Sequence[TrackedScore]) -> Iterator[TrackerCall]:
    """Yield one assessment per score. A sample without a score is an error with its status."""
    for one in scores:
        error = {"error": {"error_code": one.status, "error_message": "the sample has no score"}}
        assessment = {
            "assessment_name": one.metric,
            "trace_id": one.trace,
            **({"span_id": one.span} if one.span else {}),
            "source": {"source_type": "LLM_JUDGE", "source_id": PRODUCT},
            "create_time": one.started_at,
            "last_update_time": one.started_at,
            "feedback": error if one.score is None else {"value": one.score},
            "rationale": one.comment,
            "metadata": {name: str(value) for name, value in (one.details() | {ID: one.id}).items()},
        }
        yield TrackerCall(f"/api/3.0/mlflow/traces/{quote(one.trace, safe='')}/assessments", {"assessment": assessment})


def otlp_calls(scores: Sequence[TrackedScore]) -> Iterator[TrackerCall]:
    """Yield one `ExportTraceServiceRequest`: a span per score with attributes of the conventions for generative AI.

    The span is in the trace of the response if the sample has the id of one, otherwise in a trace of its own.
    """
    scope = {"scope": {"name": PRODUCT}, "spans": [_otlp_span(one) for one in scores]}
    resource = {"attributes": _attributes({"service.name": PRODUCT})}
    yield TrackerCall("/v1/traces", {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def _otlp_span(score: TrackedScore) -> dict[str, Any]:
    is_known = _TRACE.fullmatch(score.trace)
    parent = {"parentSpanId": score.span} if is_known and _SPAN.fullmatch(score.span or "") else {}
    instant = str(round(datetime.fromisoformat(score.started_at).timestamp() * 1e6) * 1000)
    values = {
        "gen_ai.operation.name": "evaluate",
        "gen_ai.evaluation.name": score.metric,
        "gen_ai.evaluation.score.value": score.score,
        "gen_ai.evaluation.score.label": score.status,
        "gen_ai.evaluation.explanation": score.comment,
        "untold.trace": score.trace,
        **{f"untold.{name}": value for name, value in score.details().items()},
    }
    return {
        "traceId": score.trace if is_known else sha256(score.trace.encode()).hexdigest()[:TRACE_DIGITS],
        "spanId": score.id[:SPAN_DIGITS],
        **parent,
        "name": f"evaluate {score.metric}",
        "kind": 1,
        "startTimeUnixNano": instant,
        "endTimeUnixNano": instant,
        "attributes": _attributes(values),
    }


def _attributes(values: Mapping[str, float | str | None]) -> list[dict[str, Any]]:
    return [
        {"key": name, "value": {"doubleValue" if isinstance(value, float) else "stringValue": value}}
        for name, value in values.items()
        if value is not None
    ]


def _bearer(token: str) -> Headers:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _basic(user: str, password: str) -> Headers:
    pair = b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"} if user and password else {}


def _basic_or_bearer(token: str, user: str, password: str) -> Headers:
    return _basic(user, password) or _bearer(token)


def _listed(headers: str) -> Headers:
    """Return the headers of `name=value,...`, as the specification of OTLP has them."""
    split = (pair.partition("=") for pair in headers.split(",") if "=" in pair)
    return {name.strip(): unquote(value.strip()) for name, _, value in split}


@dataclass(frozen=True)
class Tracker:
    """A tool that accepts scores over HTTP. `addresses` and `keys` name the environment variables of the tool.

    `authorise` returns the headers from the values of `keys`, which are empty texts if they are not set.
    """

    calls: Callable[[Sequence[TrackedScore]], Iterator[TrackerCall]]
    addresses: tuple[str, ...]
    default: str
    keys: tuple[str, ...]
    authorise: Callable[..., Headers]
    needs_key: bool = False

    def address(self, known: Mapping[str, str]) -> str:
        """Return the address of the tool, without a slash at the end."""
        found = next((known[name] for name in self.addresses if known.get(name)), self.default)
        return found.rstrip("/")

    def headers(self, known: Mapping[str, str]) -> Headers:
        """Return the headers with the key of the tool."""
        return self.authorise(*(known.get(name) or "" for name in self.keys))

    def calls_of(self, scores: Iterable[TrackedScore]) -> Iterator[TrackerCall]:
        """Yield the calls of all scores, in batches."""
        rows = iter(scores)
        while chunk := list(islice(rows, SCORES_PER_CALL)):
            yield from self.calls(chunk)


TRACKERS: Mapping[str, Tracker] = {
    "langfuse": Tracker(
        langfuse_calls,
        ("LANGFUSE_BASE_URL", "LANGFUSE_HOST"),
        "https://cloud.langfuse.com",
        ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"),
        _basic,
        needs_key=True,
    ),
    "phoenix": Tracker(
        phoenix_calls,
        ("PHOENIX_ENDPOINT", "PHOENIX_COLLECTOR_ENDPOINT", "PHOENIX_BASE_URL"),
        "http://localhost:6006",
        ("PHOENIX_API_KEY",),
        _bearer,
    ),
    "mlflow-traces": Tracker(
        mlflow_calls,
        ("MLFLOW_TRACKING_URI",),
        "http://localhost:5000",
        ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
        _basic_or_bearer,
    ),
    "otlp": Tracker(
        otlp_calls,
        ("OTEL_EXPORTER_OTLP_ENDPOINT",),
        "http://localhost:4318",
        ("OTEL_EXPORTER_OTLP_HEADERS",),
        _listed,
    ),
}


def json_bytes(value: Body) -> bytes:
    """Return a value as JSON in UTF-8, with `?` for lone surrogates."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


class _NoRedirects(HTTPRedirectHandler):
    """Refuse redirects, which would send the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class TrackerClient:
    """Send calls one after another, at most `rate` per second. Retry after 429, 5xx and failures of the connection."""

    def __init__(
        self,
        address: str,
        headers: Headers,
        rate: float,
        keys: Sequence[str] = (),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address, self._keys = address, keys
        self._headers = {"Content-Type": "application/json", "User-Agent": PRODUCT, **headers}
        self._interval, self._sleep = 1.0 / rate, sleep
        self._next = time.monotonic()
        self._opener = build_opener(_NoRedirects)

    def send(self, method: str, path: str, body: Body = None, is_done: Callable[[], bool] = lambda: False) -> Any:
        """Return the JSON of the response, or None if it has no JSON.

        A call without a response may have worked. `is_done` returns True if it did, and prevents the next attempt.

        Raises:
            UserError: The tool refuses the call, or does not respond after `MOST_ATTEMPTS` attempts. The message
                contains neither a key nor the body of a response.
        """
        data = None if body is None else json_bytes(body)
        request = Request(self._address + path, data, self._headers, method=method)
        place = plain_url(request.full_url)
        for attempt in range(1, MOST_ATTEMPTS + 1):
            now = time.monotonic()
            if self._next > now:
                self._sleep(self._next - now)
            self._next = max(now, self._next) + self._interval
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
            try:
                with self._opener.open(request, timeout=SECONDS) as response:
                    return _json(response.read())
            except HTTPError as error:
                reason = f"status {error.code}"
                if error.code != 429 and error.code < 500:
                    raise UserError(f"{place} refused the scores with {reason}{self._hint(error.code)}") from None
                wait = read_retry_after({name.lower(): value for name, value in error.headers.items()}) or wait
            except (OSError, HTTPException) as error:
                reason = redact(str(getattr(error, "reason", None) or error) or type(error).__name__)
            if attempt < MOST_ATTEMPTS:
                self._sleep(wait)
                if is_done():
                    return None
        raise UserError(f"cannot send to {place}: {reason}. Send again later: scores that are there are replaced")

    def _hint(self, status: int) -> str:
        if status in (401, 403):
            return f". Check the key in {', '.join(self._keys) or 'the environment variables of the tool'}"
        return ". Check that the tool has the traces of the samples" if status == 404 else ""


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def send_scores(name: str, scores: Iterable[TrackedScore], client: TrackerClient) -> int:
    """Send scores to a tool. Return the number of calls that changed something there.

    Raises:
        UserError: The tool refuses a call or a part of it, or does not respond.
    """
    calls = 0
    for call in TRACKERS[name].calls_of(scores):
        if name == "mlflow-traces":
            calls += _send_assessment(client, call)
            continue
        answer = client.send("POST", call.path, call.body)
        if isinstance(answer, Mapping) and answer.get("rejected"):
            raise UserError(f"{name} rejected {answer['rejected']} of {len(call.body)} scores of a call")
        calls += 1
    return calls


def _send_assessment(client: TrackerClient, call: TrackerCall) -> bool:
    """Create an assessment, or update the one with its id. Return False if it is already there."""
    wanted, fields = call.body["assessment"], ("feedback", "rationale", "metadata")
    known = _find_assessment(client, call)
    if known is None:
        client.send("POST", call.path, call.body, lambda: _find_assessment(client, call) is not None)
        return True
    if all(_contains(known.get(field), wanted[field]) for field in fields):
        return False
    path = f"{call.path}/{quote(known['assessment_id'], safe='')}"
    client.send("PATCH", path, {"assessment": wanted, "update_mask": ",".join(fields)})
    return True


def _find_assessment(client: TrackerClient, call: TrackerCall) -> Mapping[str, Any] | None:
    """Return the assessment of the trace with our id, or None."""
    wanted = call.body["assessment"]["metadata"][ID]
    trace = (client.send("GET", call.path.removesuffix("/assessments")) or {}).get("trace") or {}
    found = (trace.get("trace_info") or {}).get("assessments") or ()
    return next((one for one in found if (one.get("metadata") or {}).get(ID) == wanted), None)


def _contains(known: Any, wanted: Any) -> bool:
    """Return True if the values are equal. An object may have fields that the tool added."""
    if isinstance(known, Mapping) and isinstance(wanted, Mapping):
        return all(_contains(known.get(name), value) for name, value in wanted.items())
    return bool(known == wanted)
