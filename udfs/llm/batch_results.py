"""Read the results of a batch, and turn them into rows of `completions` and requests of later batches."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

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

# The errors of requests that were not sent to the model
_UNASKED = ("batch_expired", "batch_cancelled")


class BatchResults:
    """The results of a batch, downloaded to the local disk. The first result of a request counts.

    `whole` is False if a file is missing or incomplete. Unreadable lines are ignored. Raises BatchError for temporary
    errors.
    """

    def __init__(self, api: BatchApi, look: BatchStatus) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._places: dict[str, tuple[int, int]] = {}
        self.whole = True
        for file in look.results:
            try:
                for line in api.lines(file):
                    self._add(line)
            except BatchError as error:
                if error.answer.error_type not in ("bad_body", *HIDDEN):
                    raise
                self.whole = False

    def _add(self, line: bytes) -> None:
        named = json_of(line).get("custom_id")
        if isinstance(named, str) and named not in self._places:
            self._places[named] = self._file.tell(), len(line)
            self._file.write(line)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._places

    def __len__(self) -> int:
        return len(self._places)

    def close(self) -> None:
        """Remove the results from the disk."""
        self._file.close()

    def answer(self, request: Request, script: Script, sent: int) -> Answer | None:
        """Return the result of a request whose body had `sent` bytes. None if the request was not sent to the model."""
        if request.request_id not in self._places:
            return None
        place, size = self._places[request.request_id]
        self._file.seek(place)
        line = json_of(self._file.read(size))
        response, error = line.get("response"), line.get("error")
        # Some endpoints add an empty response to this error
        if isinstance(error, Mapping) and error.get("code") in _UNASKED:
            return None
        if not isinstance(response, Mapping):
            if (status := status_in(line)) is not None:
                return read_status(status, json.dumps({"error": error}).encode(), {})
            return Answer(error_type="bad_body", error="the endpoint ended the request without an answer")
        content, status = json.dumps(response.get("body")).encode(), response.get("status_code")
        if status == 200:
            return script.reader(request)(content, sent, {})
        return read_status(status if isinstance(status, int) else 500, content, {})


@dataclass
class BatchOutcome:
    """The judged results of a batch, by the rules for calls (`retrying.judge`).

    `rows` are the rows to write. `again` receives the requests of later batches. `completed` is True after the first
    completion. `refusal` is an error that ends the run, and `held` are errors that may end it after the last result.
    """

    stage: Stage
    settings: CallSettings
    script: Script
    run: str
    again: Callable[[Request], None]
    completed: bool = False
    rows: list[Completion] = field(default_factory=list)
    held: list[tuple[Request, Answer, str]] = field(default_factory=list)
    used: Usage = field(default_factory=Usage)
    refusal: str | None = None

    def accept(self, request: Request, answer: Answer) -> None:
        """Judge the result of a request."""
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
                self.again(request)
                return
            answer = failed(answer, "unparsable", "the model does not stop calling tools")
        self._judge(request, self.script.read(answer, request.variables))

    def miss(self, request: Request) -> None:
        """Count an attempt, but no call, of a request without a line in a completed batch."""
        self._judge(request, Answer(error_type="bad_body", error="the batch has no result for the request"))

    def _judge(self, request: Request, answer: Answer) -> None:
        self.completed |= answer.text is not None
        if remedy := self._remedy_before_completion(answer):
            self.held.append((request, answer, remedy))
            return
        if answer.error_type == "truncated" and request.sent_limit is None:
            # Another process wrote the batch. The body has the token limit
            self.script.render(request)
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
            self._record(request, answer)
        else:
            self.again(request)

    def _remedy_before_completion(self, answer: Answer) -> str | None:
        """Return the remedy of an error that concerns all requests. After a completion, it concerns one row."""
        if answer.about_schema and self.stage.structured:
            return NO_SCHEMA
        if answer.about_tools and self.stage.tools:
            return NO_TOOLS
        return remedy_of(answer) if is_rejection(answer) and next_limit(answer, None) is None else None

    def _begin_again(self, request: Request, answer: Answer) -> None:
        """Reset a request to its prompt. An unreadable completion is a row, and the next request names the format."""
        self.used += Usage(retries_after_parse=1)
        unread = answer.error_type == "unparsable"
        if unread:
            self._write(request, failed(answer, ASKED_AGAIN, f"{answer.error_type}: {answer.error}"))
            request.usage = NOTHING_USED
        request.begin_again(names_form=unread)

    def end(self) -> None:
        """Decide the held errors after the last result. Without a completion they end the run, else they are rows."""
        alike = len({answer.error for _, answer, _ in self.held}) == 1
        of_rows = all(is_rejection(answer) for _, answer, _ in self.held)
        if self.held and not self.completed and (alike or not of_rows):
            _, answer, remedy = self.held[0]
            self.refusal = self.refusal or f"{answer.error}; {remedy}"
        for request, answer, _ in self.held:
            if self.refusal:
                self.again(request)
            else:
                self._record(request, answer)
        self.held = []

    def _record(self, request: Request, answer: Answer) -> None:
        self._write(request, answer)
        self.used += Usage(done=1, failed=answer.error_type is not None)

    def _write(self, request: Request, answer: Answer) -> None:
        row = completion_of(request, answer, rated=self.stage.rated, run=self.run, endpoint=self.settings.label)
        self.rows.append(row)
