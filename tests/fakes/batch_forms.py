"""Batch APIs in other formats than OpenAI's, over `FakeBatches`. They check their documented formats strictly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import Message
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from tests.fakes.batches import Batch, FakeBatches

Json = dict[str, Any]
_MISTRAL = {"completed": "SUCCESS", "expired": "TIMEOUT_EXCEEDED", "in_progress": "RUNNING"}
_FINISHES = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 404: "not_found_error"}


class WrongError(Exception):
    """A request that the API refuses with the status 400."""


class Asked:
    """An HTTP request to a batch API."""

    def __init__(self, method: str, target: str, head: bytes, body: bytes) -> None:
        path, _, query = target.partition("?")
        self.method, self.head, self.body = method, head, body
        self.root, self.path = next((root, path[len(root) :]) for root in ROOTS if path.startswith(root))
        self.parts = self.path.strip("/").split("/")
        self.query = {name: values[0] for name, values in parse_qs(query).items()}

    def form(self) -> dict[str, Message]:
        """Return the parts of a form by name."""
        read = message_from_bytes(self.head.partition(b"\r\n")[2] + b"\r\n" + self.body)
        parts: Any = read.get_payload()
        return {str(part.get_param("name", header="content-disposition")): part for part in parts}


ROOTS = ("/openai/v1", "/openai", "/v1")
PATHS = ("/files", "/batches", "/batch/jobs", "/messages/batches")


def is_batch_path(path: str) -> bool:
    """Return True if a path belongs to files or batches, in any format."""
    return any(path.startswith(root + end) for root in ROOTS for end in PATHS)


def check(holds: object, message: str) -> None:
    """Raise WrongError with the message if a request is wrong."""
    if not holds:
        raise WrongError(message)


def azure(fake: FakeBatches, asked: Asked, key: str) -> Any:
    """Azure: `api-key`, `api-version` if the address has no /v1, pending files, statuses with capitals."""
    check(b"\r\napi-key:" in asked.head.lower(), "no api-key")
    check(asked.root.endswith("/v1") or "api-version" in asked.query, "no api-version")
    match (asked.method, asked.parts):
        case ("GET", ["files", file]) if file in fake.files:
            looks = fake.file_looks.get(file, 0)
            fake.file_looks[file] = looks + 1
            return fake.file(file) | {"status": "processed" if looks >= fake.pending else "pending"}
        case ("POST", ["batches"]):
            given = json.loads(asked.body)
            check(fake.file_looks.get(given["input_file_id"], 0) > fake.pending, "the file is in 'pending' state")
            lines = [json.loads(line) for line in fake.files[given["input_file_id"]][1].splitlines()]
            path = "/v1/chat/completions" if asked.root.endswith("/v1") else "/chat/completions"
            check({line["url"] for line in lines} == {given["endpoint"]} == {path}, "another url")
            check({line["body"]["model"] for line in lines} == {"a-deployment"}, "no such deployment")
    reply = fake.openai(asked, key)
    if isinstance(reply, dict) and reply.get("object") == "batch":
        return reply | {"status": reply["status"].capitalize(), "metadata": None, "created_at": "2026-01-01T00:00:00Z"}
    return reply


def groq(fake: FakeBatches, asked: Asked, key: str) -> Any:
    """Groq: lists in one page, without parameters."""
    match (asked.method, asked.parts):
        case ("GET", ["files" | "batches"]):
            check(not asked.query, "unknown parameters")
            shown = [fake.file(one) for one in fake.files] if asked.parts == ["files"] else fake.listed(key)
            return {"object": "list", "data": shown}
        case ("POST", ["batches"]):
            check(re.fullmatch("24h|[1-7]d", json.loads(asked.body)["completion_window"]), "another window")
    return fake.openai(asked, key)


def mistral(fake: FakeBatches, asked: Asked, key: str) -> Any:
    """Mistral: jobs over input files, lists by pages."""
    match (asked.method, asked.parts):
        case ("GET", ["files"]):
            return _numbered([fake.file(one) for one in fake.files], asked.query, total=False)
        case ("POST", ["batch", "jobs"]):
            given = json.loads(asked.body)
            check(set(given) <= {"input_files", "endpoint", "metadata", "timeout_hours", "model"}, "unknown fields")
            lines = [json.loads(line) for line in fake.files[given["input_files"][0]][1].splitlines()]
            check(all(set(line) == {"custom_id", "body"} for line in lines), "unknown fields of a line")
            return _job(fake, fake.create(given["input_files"][0], given["metadata"], key))
        case ("GET", ["batch", "jobs"]):
            shown = [_job(fake, fake.made[one["id"]]) for one in fake.listed(key)]
            return _numbered(shown[::-1], asked.query, total=True)
        case ("GET", ["batch", "jobs", name]):
            return _job(fake, fake.seen(name, key))
        case ("POST", ["batch", "jobs", name, "cancel"]):
            fake.seen(name, key).cancelled = True
            return _job(fake, fake.made[name])
    check(asked.parts[0] == "files", "no such path")
    return fake.openai(asked, key)


def _job(fake: FakeBatches, batch: Batch) -> Json:
    shown = fake.show(batch)
    return {
        "id": batch.id,
        "object": "batch",
        "input_files": [batch.file],
        "endpoint": "/v1/chat/completions",
        "errors": [],
        "metadata": dict(batch.metadata),
        "status": _MISTRAL.get(shown["status"], shown["status"].upper()),
        "output_file": shown["output_file_id"],
        "error_file": shown["error_file_id"],
        "completed_requests": shown["request_counts"]["completed"],
    }


def _numbered(items: list[Json], query: Mapping[str, str], *, total: bool) -> Json:
    """Return a page of two items."""
    first = 2 * int(query.get("page", 0))
    page: Json = {"object": "list", "data": items[first : first + 2]}
    return page | ({"total": len(items)} if total else {})


def together(fake: FakeBatches, asked: Asked, key: str) -> Any:
    """Together: uploads in a separate form, a created batch within `job`, a bare list, no metadata."""
    match (asked.method, asked.parts):
        case ("GET", ["files"]):
            return {"data": [fake.file(one) for one in fake.files]}
        case ("POST", ["files", "upload"]):
            form = asked.form()
            said = {name: form[name].get_payload() for name in ("purpose", "file_name", "file_type")}
            check((said["purpose"], said["file_type"]) == ("batch-api", "jsonl"), "another purpose or type")
            content: Any = form["file"].get_payload(decode=True)
            return fake.file(fake.upload(str(said["file_name"]), content))
        case ("POST", ["batches"]):
            given = json.loads(asked.body)
            check(set(given) == {"endpoint", "input_file_id", "completion_window"}, "unknown fields")
            return {"job": _flat(fake, fake.create(given["input_file_id"], {}, key)), "warning": ""}
        case ("GET", ["batches"]):
            return [_flat(fake, fake.made[one["id"]]) for one in fake.listed(key)]
        case ("GET", ["batches", name]):
            return _flat(fake, fake.seen(name, key))
        case ("POST", ["batches", name, "cancel"]):
            fake.seen(name, key).cancelled = True
            return _flat(fake, fake.made[name])
    check(asked.parts[0] == "files", "no such path")
    return fake.openai(asked, key)


def _flat(fake: FakeBatches, batch: Batch) -> Json:
    shown = fake.show(batch)
    names = ("id", "input_file_id", "output_file_id", "error_file_id")
    return {name: shown[name] for name in names if shown[name]} | {"status": shown["status"].upper(), "progress": 0.0}


def anthropic(fake: FakeBatches, asked: Asked, key: str) -> Any:
    """Message Batches: inline requests, results as lines by `type`, no names."""
    head = asked.head.lower()
    check(b"\r\nanthropic-version:" in head and b"\r\nauthorization:" not in head, "no version, or another key")
    match (asked.method, asked.parts[1:]):
        case ("POST", ["batches"]):
            lines = [_chat_line(one) for one in json.loads(asked.body)["requests"]]
            content = "".join(json.dumps(line) + "\n" for line in lines).encode()
            file = f"inline-{len(fake.made)}"
            fake.files[file] = (file, content)
            return _message_batch(fake, fake.create(file, {}, key))
        case ("GET", ["batches"]):
            shown = [_message_batch(fake, fake.made[one["id"]]) for one in fake.listed(key)][::-1]
            ids = [one["id"] for one in shown]
            first = ids.index(asked.query["after_id"]) + 1 if "after_id" in asked.query else 0
            page = shown[first : first + 2]
            return {"data": page, "has_more": first + 2 < len(shown), "last_id": page[-1]["id"] if page else None}
        case ("GET", ["batches", name]):
            return _message_batch(fake, fake.seen(name, key))
        case ("GET", ["batches", name, "results"]) if name not in fake.removed:
            batch = fake.seen(name, key)
            lines = [json.loads(line) for line in (*batch.errors, *batch.lines) if line[:2] != "{n"]
            results = "".join(json.dumps(_result(line)) + "\n" for line in lines).encode()
            return results[: len(results) * 2 // 3] if batch.deeds.get("cut") else results
        case ("POST", ["batches", name, "cancel"]):
            fake.seen(name, key).cancelled = True
            return _message_batch(fake, fake.made[name])
        case ("DELETE", ["batches", name]):
            check(fake.seen(name, key).status(monotonic()) != "in_progress", "it has not ended")
            fake.removed.append(name)
            return {"id": name, "type": "message_batch_deleted"}
    raise KeyError(asked.path)


def _chat_line(request: Json) -> Json:
    """Return the line of a chat completion for an inline request."""
    check(re.fullmatch("[a-zA-Z0-9_-]{1,64}", request["custom_id"]), "another custom_id")
    body = chat_of_params(request["params"])
    return {"custom_id": request["custom_id"], "url": "/v1/chat/completions", "body": body}


def chat_of_params(params: Json) -> Json:
    """Return the body of a chat completion for the body of a message. Raises the error of `check` for another body."""
    params = dict(params)
    check(isinstance(params.get("max_tokens"), int), "no max_tokens")
    check(all(turn["role"] in ("user", "assistant") for turn in params["messages"]), "another role")
    unknown = {"logprobs", "top_logprobs", "response_format", "stop"} & set(params)
    check(not unknown and params.get("temperature", 0) <= 1, "unknown fields")
    check(not ("temperature" in params and "top_p" in params), "both temperature and top_p")
    system = [{"role": "system", "content": params.pop("system")}] if "system" in params else []
    body = params | {"messages": [*system, *(one for turn in params["messages"] for one in _chat_turns(turn))]}
    if "tools" in params:
        body["tools"] = [
            {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}}
            for tool in params["tools"]
        ]
        body["tool_choice"] = (params.get("tool_choice") or {"type": "auto"})["type"]
    if schema := body.pop("output_config", {}).get("format"):
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema["schema"]}}
    return body


def _chat_turns(turn: Json) -> list[Json]:
    """Return a turn of a message as turns of a chat, with separate turns for tools."""
    if isinstance(turn["content"], str):
        return [turn]
    kinds = {block["type"] for block in turn["content"]}
    if turn["role"] == "user":
        check(kinds == {"tool_result"}, "another block")
        return [
            {"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]}
            for block in turn["content"]
        ]
    check(kinds <= {"text", "tool_use"}, "another block")
    calls = [
        {"id": one["id"], "type": "function", "function": {"name": one["name"], "arguments": json.dumps(one["input"])}}
        for one in turn["content"]
        if one["type"] == "tool_use"
    ]
    return [{"role": "assistant", "content": None, "tool_calls": calls}]


def _message_batch(fake: FakeBatches, batch: Batch) -> Json:
    status, total = batch.status(monotonic()), len(batch.lines) + len(batch.errors)
    ended = status != "in_progress"
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if not ended:
        counts["processing"] = total
    else:
        counts["expired"] = sum('"batch_expired"' in line for line in batch.errors)
        counts |= {"succeeded": len(batch.lines), "errored": len(batch.errors) - counts["expired"]}
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "in_progress",
        "request_counts": counts,
        "created_at": datetime.fromtimestamp(batch.created, UTC).isoformat(),
        "results_url": f"https://elsewhere.test/{batch.id}/results" if ended else None,
    }


def _result(line: Json) -> Json:
    """Return a line of results for a line in OpenAI's format."""
    response = line["response"]
    if response is None:
        return {"custom_id": line["custom_id"], "result": {"type": "expired"}}
    if response["status_code"] != 200:
        kind = _ERRORS.get(response["status_code"], "api_error")
        told = {"type": kind, "message": response["body"].get("error", {}).get("message", "")}
        return {
            "custom_id": line["custom_id"],
            "result": {"type": "errored", "error": {"type": "error", "error": told}},
        }
    return {"custom_id": line["custom_id"], "result": {"type": "succeeded", "message": message_of(response["body"])}}


def message_of(completion: Json) -> Json:
    """Return the message for a chat completion."""
    (choice,) = completion["choices"]
    text, calls = choice["message"].get("content"), choice["message"].get("tool_calls") or ()
    blocks: list[Json] = [{"type": "text", "text": text}] if text else []
    for call in calls:
        function = call["function"]
        used = {"id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}
        blocks.append({"type": "tool_use", **used})
    usage = completion.get("usage") or {"prompt_tokens": 0, "completion_tokens": 0}
    return {
        "role": "assistant",
        "model": completion["model"],
        "content": blocks,
        "stop_reason": _FINISHES.get(choice["finish_reason"], choice["finish_reason"]),
        "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
    }


FORMS: Mapping[str, Callable[[FakeBatches, Asked, str], Any]] = {
    "azure": azure,
    "groq": groq,
    "mistral": mistral,
    "together": together,
    "anthropic": anthropic,
}
