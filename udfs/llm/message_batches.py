"""Anthropic's Message Batches: requests inline in the form of /v1/messages, results by their own address.

Source: Anthropic's API reference, "Message Batches" and "Messages", and the package `anthropic`, their types.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import IO, Any, ClassVar, Final

from untold.udfs.llm.batch_api import (
    HIDDEN,
    SPELLINGS,
    BatchError,
    BatchStatus,
    NotYetError,
    OpenAiBatches,
    Sent,
    heard,
    json_of,
)
from untold.udfs.llm.responses import status_in

PATH: Final = "/messages/batches"
# What a request has to say, where the settings send no limit
MAX_TOKENS = 4096
# By how much the clock of the endpoint may be behind ours
SKEW_SECONDS = 300.0
PAGE = 1000
# As chat completions call it
_FINISHES = {
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "model_context_window_exceeded": "length",
}
_STATUSES = {"billing_error": 402, "request_too_large": 413, "timeout_error": 504}
# Fields of chat requests that messages have not
_UNKNOWN = ("logprobs", "top_logprobs", "stop", "response_format", "max_completion_tokens", "n")


class AnthropicBatches(OpenAiBatches):
    """Message Batches. There are no files, names or metadata: a batch is created with its requests in one call.

    A batch that nobody heard of is looked for among those created since that have as many requests. Whose one is shows
    the `custom_id` of its results, and so once it has ended.
    """

    most_bytes: ClassVar[int] = 256_000_000
    key_header: ClassVar[str] = "x-api-key"
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """As {custom_id, params}."""
        params = json.dumps(params_of(json.loads(body)), ensure_ascii=False, separators=(",", ":"))
        return b'{"custom_id":"%s","params":%s}\n' % (request_id.encode(), params.encode())

    def find_file(self, name: str, size: int) -> str | None:
        """There is none before the batch."""
        return None

    def upload(self, name: str, file: IO[bytes]) -> str:
        """Sends nothing."""
        return name

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """By the ids of its results."""
        running = None
        for batch in self._since(sent.since - SKEW_SECONDS):
            with heard():
                look = _look(batch)
                is_like = sum(batch["request_counts"].values()) == sent.requests and look.id not in sent.others
            if is_like and not look.ended:
                running = look.id
            elif is_like and self._answers(look.id, sent):
                return look
        if running:
            raise NotYetError(f"batch {running} may be it, which shows once that has ended")
        return None

    def create(self, sent: Sent) -> BatchStatus:
        """With all of its requests."""
        with sent.open() as lines, tempfile.TemporaryFile() as body:
            body.write(b'{"requests":[')
            for number, line in enumerate(lines):
                body.write(b"," * bool(number) + line.rstrip(b"\n"))
            body.write(b"]}")
            body.seek(0)
            created = self._json("post", PATH, content=body, headers={"Content-Type": "application/json"})
        with heard():
            return _look(created)

    def look(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        found = self._json("get", f"{PATH}/{batch}")
        with heard():
            return _look(found)

    def cancel(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        found = self._json("post", f"{PATH}/{batch}/cancel")
        with heard():
            return _look(found)

    def lines(self, file: str) -> Iterator[bytes]:
        """The results of a batch, which is their file. The address that it names is not followed with the key."""
        return map(result_line, self._stream(f"{PATH}/{file}/results"))

    def remove(self, file: str) -> None:
        """Removes a batch with its results. Of requests there is no file."""
        if not file.startswith("untold-"):
            self._json("delete", f"{PATH}/{file}")

    def _since(self, moment: float) -> Iterator[dict[str, Any]]:
        """The batches that were created since, the newest first."""
        after: dict[str, str] = {}
        while True:
            page = self._json("get", PATH, params={"limit": str(PAGE), **after})
            with heard():
                found = [one for one in page["data"] if _time_of(one["created_at"]) >= moment]
            yield from found
            if len(found) < len(page["data"]) or not page.get("has_more") or not found:
                return
            after = {"after_id": page["last_id"]}

    def _answers(self, batch: str, sent: Sent) -> bool:
        """Whether the results of a batch that has ended are those of these requests."""
        try:
            named = next((line for line in map(json_of, self._stream(f"{PATH}/{batch}/results")) if line), {})
        except BatchError as error:
            # One that was read is removed, and may still be in the list
            if error.answer.error_type in HIDDEN:
                return False
            raise
        head = b'{"custom_id":"%s"' % str(named.get("custom_id")).encode()
        with sent.open() as lines:
            return any(line.startswith(head) for line in lines)


def _look(batch: Mapping[str, Any]) -> BatchStatus:
    """A batch: `ended` is what became of its requests."""
    counts = batch["request_counts"]
    status = SPELLINGS.get(batch["processing_status"], batch["processing_status"])
    if status == "ended":
        cut = {"cancelled": counts["canceled"], "expired": counts["expired"]}
        status = next((name for name, number in cut.items() if number), "completed")
    done = sum(counts.values()) - counts["processing"]
    return BatchStatus(batch["id"], status, (batch["id"],) if batch.get("results_url") else (), done)


def _time_of(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def params_of(chat: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat completion as parameters of a message: `system` apart, tools and their results as blocks.

    A temperature above 1 is 1, and a `top_p` of 1 is not sent, as both together are refused. There are no
    log-probabilities. A field that chat completions do not have is sent as it is.
    """
    turns = list(chat["messages"])
    system = "\n\n".join(turn["content"] for turn in turns if turn["role"] == "system")
    params = {name: value for name, value in chat.items() if name not in (*_UNKNOWN, "messages")}
    params["max_tokens"] = chat.get("max_tokens") or chat.get("max_completion_tokens") or MAX_TOKENS
    params["messages"] = _messages(turn for turn in turns if turn["role"] != "system")
    if system:
        params["system"] = system
    if "temperature" in chat:
        params["temperature"] = min(1.0, chat["temperature"])
    if chat.get("top_p") == 1:
        del params["top_p"]
    if stop := chat.get("stop"):
        params["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if "tools" in chat:
        params["tools"] = [_tool(tool["function"]) for tool in chat["tools"]]
    if isinstance(chat.get("tool_choice"), str):
        params["tool_choice"] = {"type": {"required": "any"}.get(chat["tool_choice"], chat["tool_choice"])}
    if schema := (chat.get("response_format") or {}).get("json_schema"):
        params["output_config"] = {"format": {"type": "json_schema", "schema": schema["schema"]}}
    return params


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: function[name] for name in ("name", "description") if name in function}
    return {**told, "input_schema": function.get("parameters") or {"type": "object"}}


def _messages(turns: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turns of a chat; results of tools that follow each other are one turn of the user's."""
    found: list[dict[str, Any]] = []
    before = ""
    for turn in turns:
        if turn["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}
            if before != "tool":
                found.append({"role": "user", "content": []})
            found[-1]["content"].append(block)
        elif calls := turn.get("tool_calls"):
            said = [{"type": "text", "text": turn["content"]}] if turn.get("content") else []
            found.append({"role": "assistant", "content": said + [_use(call) for call in calls]})
        else:
            found.append({"role": turn["role"], "content": turn["content"]})
        before = turn["role"]
    return found


def _use(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call of a tool. Arguments that are no JSON object are none: the model was told so by the result."""
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json_of(function["arguments"])}


def result_line(line: bytes) -> bytes:
    """A line of results in OpenAI's form; one that cannot be read stays as it is."""
    read = json_of(line)
    result = read.get("result")
    if not isinstance(result, dict):
        return line
    kind, response, error = result.get("type"), None, None
    try:
        if kind == "succeeded":
            response = {"status_code": 200, "body": completion_of_message(result["message"])}
        elif kind == "errored":
            told = result["error"].get("error", result["error"])
            status = _STATUSES.get(told["type"]) or status_in({"error": told}) or 500
            response = {"status_code": status, "body": {"error": told}}
        else:
            error = {"code": "batch_expired" if kind == "expired" else "batch_cancelled"}
    except (LookupError, TypeError, AttributeError):
        return line
    return json.dumps({"custom_id": read.get("custom_id"), "response": response, "error": error}).encode()


def completion_of_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as a chat completion. Raises LookupError or TypeError for what is none."""
    blocks = message["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    thoughts = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    said = {"role": "assistant", "content": text, "tool_calls": calls or None, "reasoning_content": thoughts or None}
    finish = message["stop_reason"]
    choice = {"index": 0, "message": said, "finish_reason": _FINISHES.get(finish, finish)}
    return {"model": message.get("model"), "choices": [choice], "usage": _usage(message["usage"])}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens as completions count them: those of the cache are of the prompt."""
    read, written = (usage.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    return {
        "prompt_tokens": usage["input_tokens"] + read + written,
        "completion_tokens": usage["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": read},
    }
