"""Requests as lines of a batch, and the lines that come back as rows of `completions`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any

from untold.udfs.llm.batch_api import HIDDEN, BatchApi, BatchError, BatchStatus
from untold.udfs.llm.calls import Answer, CallSettings, Request
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.messages import json_of
from untold.udfs.llm.responses import read_status, status_in
from untold.udfs.llm.retrying import (
    ASKED_AGAIN,
    NO_SCHEMA,
    NO_TOOLS,
    RetryDecision,
    is_rejection,
    judge,
    next_limit,
    remedy_of,
)
from untold.udfs.llm.script import Script, failed
from untold.udfs.llm.store_files import Completion, completion_of
from untold.udfs.llm.tools import MAX_ROUNDS, exchange, run_tool, trace
from untold.udfs.llm.usage import NOTHING_USED, Usage

# What a request brings along from the batches before
_KEPT = ("attempts", "calls", "names_form", "rounds", "turn_due", "turns", "trace", "limit")
# Errors of lines that were not asked
_UNASKED = ("batch_expired", "batch_cancelled")


def remembered(request: Request) -> dict[str, Any]:
    """What the next batch must know of a request, as JSON."""
    known = {name: value for name in _KEPT if (value := getattr(request, name))}
    return known | ({"usage": asdict(request.usage)} if request.usage != NOTHING_USED else {})


def resumed(request_id: str, variables: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> Request:
    """The request of `remembered`; without it one that was never asked."""
    fields = dict(known or {})
    usage = Usage.of(fields.pop("usage", {}))
    return Request(request_id, variables, "", usage=usage, **fields)


class BatchResults:
    """The results of a batch on this machine's disk, by request; the first of several counts.

    A line that cannot be read is none.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._places: dict[str, tuple[int, int]] = {}
        place = 0
        for line in lines:
            named = json_of(line).get("custom_id")
            if isinstance(named, str) and named not in self._places:
                self._file.write(line)
                self._places[named] = place, len(line)
                place += len(line)

    def __enter__(self) -> BatchResults:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._places

    @property
    def count(self) -> int:
        """How many requests have a line."""
        return len(self._places)

    def close(self) -> None:
        """Removes them from the disk."""
        self._file.close()

    def answer(self, request: Request, script: Script, sent: int) -> Answer | None:
        """What came of a request whose body had `sent` bytes; None where it was not asked."""
        if request.request_id not in self._places:
            return None
        place, size = self._places[request.request_id]
        self._file.seek(place)
        line = json_of(self._file.read(size))
        response, error = line.get("response"), line.get("error")
        # Some have an empty response beside such an error
        if isinstance(error, Mapping) and error.get("code") in _UNASKED:
            return None
        told = status_in(line)
        if not isinstance(response, Mapping) and told is not None:
            return read_status(told, json.dumps({"error": error}).encode(), {})
        if not isinstance(response, Mapping):
            return Answer(error_type="bad_body", error="the endpoint ended the request without an answer")
        content, status = json.dumps(response.get("body")).encode(), response.get("status_code")
        if status == 200:
            return script.reader(request)(content, sent, {})
        return read_status(status if isinstance(status, int) else 500, content, {})


def download(api: BatchApi, look: BatchStatus) -> tuple[BatchResults, bool]:
    """The results of a batch, and whether each file came to its end. A file that is gone is an empty one.

    Raises BatchError for what another try may mend.
    """
    whole = True

    def lines() -> Iterator[bytes]:
        nonlocal whole
        for file in look.results:
            try:
                yield from api.lines(file)
            except BatchError as error:
                if error.answer.error_type not in ("bad_body", *HIDDEN):
                    raise
                whole = False

    return BatchResults(lines()), whole


@dataclass
class BatchOutcome:
    """What the answers of a batch mean, as `retrying.judge` says of those of calls.

    `rows` to write, requests to ask `again`, what was `used`, whether a completion came, and what speaks of the run:
    `refusal`, or errors that are `held` until all answers are known.
    """

    stage: Stage
    settings: CallSettings
    script: Script
    run: str
    completed: bool = False
    rows: list[Completion] = field(default_factory=list)
    again: list[Request] = field(default_factory=list)
    held: list[tuple[Request, Answer, str]] = field(default_factory=list)
    used: Usage = field(default_factory=Usage)
    refusal: str | None = None

    def accept(self, request: Request, answer: Answer) -> None:
        """Takes the answer to a request."""
        limited = answer.error_type == "http_429"
        self.used += replace(answer.usage, calls=1, asked=not request.calls, tool_turns=request.turn_due)
        self.used += Usage(rate_limited=limited)
        request.usage += answer.usage
        request.calls, request.turn_due = request.calls + 1, False
        if self.stage.tools and answer.tool_calls and answer.error_type in (None, "empty"):
            if request.rounds < MAX_ROUNDS:
                self.completed = True
                results = [run_tool(call) for call in answer.tool_calls]
                request.go_on(exchange(answer.text, answer.tool_calls, results), trace(answer.tool_calls, results))
                self.again.append(request)
                return
            answer = failed(answer, "unparsable", "the model does not stop calling tools")
        self._judge(request, self.script.read(answer, request.variables))

    def miss(self, request: Request) -> None:
        """Takes that a completed batch has no line for a request: an attempt, and no call."""
        self._judge(request, Answer(error_type="bad_body", error="the batch has no result for the request"))

    def _judge(self, request: Request, answer: Answer) -> None:
        self.completed |= answer.text is not None
        if remedy := self._remedy_before_completion(answer):
            self.held.append((request, answer, remedy))
            return
        verdict = judge(request, answer, self.settings.max_attempts, free=False)
        request.attempts += verdict.attempt
        if verdict.afresh:
            self._begin_again(request, answer)
        request.bound(verdict.limit)
        if verdict.act is RetryDecision.REFUSE:
            self.refusal = self.refusal or f"{answer.error}; {remedy_of(answer)}"
        if verdict.act is RetryDecision.HOLD:
            self.held.append((request, answer, remedy_of(answer)))
        elif verdict.act is RetryDecision.RECORD:
            self.record(request, answer)
        else:
            self.again.append(request)

    def _remedy_before_completion(self, answer: Answer) -> str | None:
        """Return the remedy for an error that every request may get; after a completion it is about one row."""
        if answer.about_schema and self.stage.structured:
            return NO_SCHEMA
        if answer.about_tools and self.stage.tools:
            return NO_TOOLS
        return remedy_of(answer) if is_rejection(answer) and next_limit(answer, None) is None else None

    def _begin_again(self, request: Request, answer: Answer) -> None:
        """Forgets what followed the prompt. What could not be read is a row of its own, and the next line says so."""
        self.used += Usage(retries_after_parse=1)
        unread = answer.error_type == "unparsable"
        if unread:
            self._write(request, failed(answer, ASKED_AGAIN, f"{answer.error_type}: {answer.error}"))
            request.usage = NOTHING_USED
        request.begin_again(names_form=unread)

    def end(self) -> None:
        """Once all answers are heard: what was held is the run's where no completion came, else its rows'."""
        alike = len({answer.error for _, answer, _ in self.held}) == 1
        of_rows = all(is_rejection(answer) for _, answer, _ in self.held)
        if self.held and not self.completed and (alike or not of_rows):
            _, answer, remedy = self.held[0]
            self.refusal = self.refusal or f"{answer.error}; {remedy}"
        for request, answer, _ in self.held:
            if self.refusal:
                self.again.append(request)
            else:
                self.record(request, answer)
        self.held = []

    def record(self, request: Request, answer: Answer) -> None:
        """Ends a request."""
        self._write(request, answer)
        self.used += Usage(done=1, failed=answer.error_type is not None)

    def _write(self, request: Request, answer: Answer) -> None:
        row = completion_of(request, answer, rated=self.stage.rated, run=self.run, endpoint=self.settings.label)
        self.rows.append(row)

    def take_rows(self) -> list[Completion]:
        """The rows so far, which are forgotten."""
        rows, self.rows = self.rows, []
        return rows

    def take_again(self) -> list[Request]:
        """The requests so far that are asked again, which are forgotten."""
        again, self.again = self.again, []
        return again
