"""The batch API of the model server: files, batches and their faults. A function answers each single request."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from tests.fakes.batch_forms import FORMS, Asked, WrongError
from tests.fakes.replies import Reply, count_tokens, error_reply, http_message

Ask = Callable[[str, bytes], tuple[int, Any]]
"""Returns the status and body of the response to a request body for a path."""
PATH = "/v1/chat/completions"
DEEDS = {"delay", "expire", "twice", "cut", "shuffle", "lost", "fail", "garbage", "lag"}


class LostError(Exception):
    """A request that was executed, and whose response is lost."""


class HungError(Exception):
    """A response that never arrives."""


@dataclass
class Batch:
    """A batch with its results, which are visible after `until`, or after it was cancelled."""

    id: str
    file: str
    metadata: Mapping[str, str]
    tokens: int
    until: float
    deeds: Mapping[str, Any]
    key: str
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    answered: int = 0
    cancelled: bool = False
    created: float = field(default_factory=time)

    def status(self, now: float) -> str:
        if "fail" in self.deeds:
            return "failed"
        if self.cancelled:
            return "cancelled"
        if now < self.until:
            return "in_progress"
        return "expired" if "expire" in self.deeds else "completed"


@dataclass
class FakeBatches:
    """Files and batches with faults.

    `batches` are the deeds of consecutive batches, in the order of their creation. `uploads` are the faults of
    consecutive uploads: `lost` (the response), `fails`, `hangs` (the upload is lost) or `hung` (the upload exists).
    `queue` is the maximum number of waiting tokens. Requests in `slow` (method and path prefix) get no response. `busy`
    is the number of 503s for a method and path, with `retry_after` seconds. `form` is the format of the API. `pending`
    is the number of looks at a file before it is ready, if the format has this state.

    Deeds: `delay` seconds, `expire` at this share of the requests, `twice` each result, `cut` the file of results,
    `shuffle` it, `lost` is the response to its creation, `fail` with this code, `garbage` for this number of lines,
    `lag` seconds before lists contain it.
    """

    ask: Ask
    batches: Sequence[Mapping[str, Any]] = ()
    uploads: Sequence[str] = ()
    delay: float = 0.0
    queue: int | None = None
    slow: str = ""
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    made: dict[str, Batch] = field(default_factory=dict)
    uploaded: int = 0
    form: str = "openai"
    pending: int = 0
    busy: dict[str, int] = field(default_factory=dict)
    retry_after: float = 0.0
    file_looks: dict[str, int] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    def upload(self, name: str, content: bytes) -> str:
        deed = self.uploads[self.uploaded] if self.uploaded < len(self.uploads) else ""
        self.uploaded += 1
        if deed == "fails":
            raise LostError
        if deed == "hangs":
            raise HungError
        found = f"file-{len(self.files) + 1}"
        self.files[found] = (name, content)
        if deed in ("lost", "hung"):
            raise LostError if deed == "lost" else HungError
        return found

    def create(self, file: str, metadata: Mapping[str, str], key: str = "") -> Batch:
        number = len(self.made)
        deeds = self.batches[number] if number < len(self.batches) else {}
        assert set(deeds) <= DEEDS, deeds
        lines = [json.loads(line) for line in self.files[file][1].splitlines()]
        assert len({line["custom_id"] for line in lines}) == len(lines) > 0
        tokens = sum(count_tokens(json.dumps(line["body"])) for line in lines)
        now = monotonic()
        waiting = sum(one.tokens for one in self.made.values() if one.status(now) == "in_progress")
        if self.queue is not None and waiting + tokens > self.queue:
            deeds = {**deeds, "fail": "token_limit_exceeded"}
        batch = Batch(f"batch_{number + 1}", file, metadata, tokens, now + deeds.get("delay", self.delay), deeds, key)
        self.made[batch.id] = batch
        if "fail" not in deeds:
            self._answer(batch, lines)
        if "lost" in deeds:
            raise LostError
        return batch

    def _answer(self, batch: Batch, lines: list[dict[str, Any]]) -> None:
        deeds = batch.deeds
        asked = int(deeds.get("expire", 1.0) * len(lines))
        for line in lines[:asked]:
            url = line.get("url", PATH)
            status, body = self.ask(url if url.startswith("/v1") else f"/v1{url}", json.dumps(line["body"]).encode())
            response = {"status_code": status, "request_id": "r", "body": body}
            result = {"id": "b", "custom_id": line["custom_id"], "response": response, "error": None}
            (batch.lines if status == 200 else batch.errors).append(json.dumps(result))
        batch.answered = len(batch.lines)
        for line in lines[asked:]:
            error = {"code": "batch_expired", "message": "This request could not be executed in time."}
            result = {"id": "b", "custom_id": line["custom_id"], "response": None, "error": error}
            batch.errors.append(json.dumps(result))
        batch.lines *= 2 if deeds.get("twice") else 1
        batch.lines[: deeds.get("garbage", 0)] = ["{never a line"] * min(deeds.get("garbage", 0), len(batch.lines))
        if deeds.get("shuffle"):
            random.Random(0).shuffle(batch.lines)

    def content(self, file: str) -> bytes:
        """Return an uploaded file, or the results of a batch. Raises KeyError for a removed file."""
        if file in self.removed:
            raise KeyError(file)
        if file in self.files:
            return self.files[file][1]
        kind, _, batch_id = file.partition("-")
        batch = self.made[batch_id]
        content = "".join(f"{line}\n" for line in (batch.lines if kind == "output" else batch.errors)).encode()
        return content[: len(content) * 2 // 3] if kind == "output" and batch.deeds.get("cut") else content

    def remove(self, file: str) -> None:
        """Remove a file, or results."""
        if file in self.removed or not (file in self.files or file.partition("-")[2] in self.made):
            raise KeyError(file)
        self.removed.append(file)

    def show(self, batch: Batch) -> dict[str, Any]:
        """Return a batch in the format of the API."""
        status = batch.status(monotonic())
        ended = status in ("completed", "expired", "cancelled")
        error = {"code": batch.deeds.get("fail"), "message": "said by the endpoint"}
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "created_at": 0,
            "status": status,
            "input_file_id": batch.file,
            "metadata": dict(batch.metadata),
            "output_file_id": f"output-{batch.id}" if ended and batch.lines else None,
            "error_file_id": f"errors-{batch.id}" if ended and batch.errors else None,
            "errors": {"object": "list", "data": [error]} if status == "failed" else None,
            "request_counts": {"total": 0, "completed": batch.answered if ended else 0, "failed": 0},
        }

    def reply(self, method: str, target: str, head: bytes, body: bytes, key: str) -> Reply:
        """Return the response to an HTTP request for files or batches."""
        reply = self._reply(Asked(method, target, head, body), key)
        if self.slow and f"{method} {target}".startswith(self.slow):
            reply.content = None
        return reply

    def _reply(self, asked: Asked, key: str) -> Reply:
        if self.busy.get(f"{asked.method} {asked.path}", 0) > 0:
            self.busy[f"{asked.method} {asked.path}"] -= 1
            return error_reply(503, {"message": "busy"}, {"Retry-After": f"{self.retry_after:g}"})
        try:
            answer = FORMS[self.form](self, asked, key) if self.form in FORMS else self.openai(asked, key)
        except HungError:
            return Reply(0, None)
        except LostError:
            return error_reply(500, {"message": "lost", "code": "server_error"})
        except KeyError:
            return error_reply(404, {"message": f"no such thing: {asked.path}"})
        except WrongError as error:
            return error_reply(400, {"message": str(error), "type": "invalid_request_error"})
        if isinstance(answer, bytes):
            return Reply(200, http_message(200, answer, {"Content-Type": "application/jsonl"}))
        return Reply(200, http_message(200, json.dumps(answer).encode()))

    def openai(self, asked: Asked, key: str) -> Any:
        """Return OpenAI's response, as JSON or the bytes of a file. Raises KeyError for a missing item."""
        after = asked.query.get("after", "")
        match (asked.method, asked.parts):
            case ("POST", ["files"]):
                form = asked.form()
                assert form["purpose"].get_payload() == "batch"
                content: Any = form["file"].get_payload(decode=True)
                return self.file(self.upload(str(form["file"].get_filename()), content))
            case ("GET", ["files"]):
                return _page([self.file(file) for file in self.files], after)
            case ("GET", ["files", file, "content"]):
                return self.content(file)
            case ("DELETE", ["files", file]):
                self.remove(file)
                return {"id": file, "object": "file", "deleted": True}
            case ("POST", ["batches"]):
                given = json.loads(asked.body)
                return self.show(self.create(given["input_file_id"], given["metadata"], key))
            case ("GET", ["batches"]):
                return _page(self.listed(key), after)
            case ("GET", ["batches", name]):
                return self.show(self.seen(name, key))
            case ("POST", ["batches", name, "cancel"]):
                self.seen(name, key).cancelled = True
                return self.show(self.made[name])
        raise KeyError(asked.path)

    def listed(self, key: str) -> list[dict[str, Any]]:
        """Return the batches in the list of a key. The list may be late."""
        now = time()
        own = (batch for batch in self.made.values() if batch.key == key)
        return [self.show(batch) for batch in own if now >= batch.created + batch.deeds.get("lag", 0.0)]

    def seen(self, name: str, key: str) -> Batch:
        """Return a batch of a key. Raises KeyError for a batch of another key."""
        if self.made[name].key != key:
            raise KeyError(name)
        return self.made[name]

    def file(self, file: str) -> dict[str, Any]:
        """Return a file in the format of the API."""
        name, content = self.files[file]
        shown = {"id": file, "object": "file", "bytes": len(content), "filename": name, "purpose": "batch"}
        return shown | {"created_at": 0, "status": "processed"}


def _page(items: list[dict[str, Any]], after: str = "") -> dict[str, Any]:
    """Return two items as a page of a longer list."""
    ids = [item["id"] for item in items]
    first = ids.index(after) + 1 if after in ids else 0
    shown = items[first : first + 2]
    return {"object": "list", "data": shown, "has_more": first + 2 < len(items)}
