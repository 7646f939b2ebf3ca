"""The hosts of batches as a table, the two with methods of their own, and batches as files in a folder."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from shutil import copyfileobj
from typing import IO, ClassVar

from untold.udfs.llm import messages
from untold.udfs.llm.batch_api import (
    HIDDEN,
    NAME,
    SPELLINGS,
    WINDOW,
    BatchApi,
    BatchError,
    BatchStatus,
    Host,
    HostedBatches,
    Json,
    NotYetError,
    Sent,
    heard,
    line_of,
    lines_in,
)
from untold.udfs.llm.calls import PATHS, Answer, CallSettings
from untold.udfs.llm.responses import status_in
from untold.udfs.storage import StoragePath

_INPUT, _RESULTS, _CANCELLED = ".jsonl", ".results.jsonl", ".cancelled"


class FileBatches:
    """Files for vLLM's `run-batch`, with the lines and results of OpenAI's batches.

    A batch exists as soon as its file exists. It is completed when its results have a line for each request, because
    `run-batch` writes them one by one. `cancel` removes the file of requests.
    Source: vLLM's `vllm/entrypoints/openai/run_batch.py`.
    """

    most_bytes: ClassVar[int] = 2**40

    def __init__(self, settings: CallSettings) -> None:
        self._folder = StoragePath(settings.batch_folder or "")

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """Return the line {custom_id, method, url, body}."""
        return line_of(request_id, f"/v1{PATHS[api]}", body)

    def find_file(self, name: str, size: int) -> str | None:
        """Find a file by its name, because files are written whole."""
        return name if (self._folder / name).entry().kind == "file" else None

    def upload(self, name: str, file: IO[bytes]) -> str:
        """Write the file whole."""
        self._folder.make_folder()
        (self._folder / name).write_whole(lambda out: copyfileobj(file, out))
        return name

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """Find a batch by its file."""
        return self.look(sent.file) if self.find_file(sent.file, 0) else None

    def create(self, sent: Sent) -> BatchStatus:
        """Return the batch of a file with the command that runs it."""
        with sent.open() as lines:
            model = json.loads(lines.readline())["body"]["model"]
        words = ["vllm", "run-batch", "-i", self._path(sent.file), "-o", self._path(_beside(sent.file, _RESULTS))]
        return BatchStatus(sent.file, "in_progress", hint=f"run: {shlex.join([*words, '--model', model])}")

    def look(self, batch: str) -> BatchStatus:
        """Count the lines of the results. Raises BatchError if both requests and results are missing."""
        results = _beside(batch, _RESULTS)
        done = self._count(results)
        found = (results,) if done is not None else ()
        if self._count(_beside(batch, _CANCELLED)) is not None:
            return BatchStatus(batch, "cancelled", found, done or 0)
        asked = self._count(batch)
        if asked is None and done is None:
            raise BatchError(Answer(error_type="http_404", error=f"{self._path(batch)} is not there"))
        return BatchStatus(batch, "completed" if (done or 0) >= (asked or 0) else "in_progress", found, done or 0)

    def cancel(self, batch: str) -> BatchStatus:
        """Remove the file of requests."""
        (self._folder / _beside(batch, _CANCELLED)).write_bytes(b"")
        (self._folder / batch).remove()
        return self.look(batch)

    def lines(self, file: str) -> Iterator[bytes]:
        """Yield the lines of a file."""
        yield from lines_in(_chunks(self._folder / file))

    def remove(self, file: str) -> None:
        """Remove a file and the mark of its cancellation."""
        for name in (file, _beside(file, _CANCELLED)):
            (self._folder / name).remove()

    def close(self) -> None:
        """Do nothing, because there is no connection."""

    def _path(self, name: str) -> str:
        return (self._folder / name).spark

    def _count(self, name: str) -> int | None:
        """Return the number of whole lines of a file, None for a missing file."""
        place = self._folder / name
        if place.entry().kind != "file":
            return None
        return sum(chunk.count(b"\n") for chunk in _chunks(place))


def _chunks(place: StoragePath) -> Iterator[bytes]:
    with place.open() as file:
        yield from iter(lambda: file.read(2**20), b"")


def _beside(name: str, ending: str) -> str:
    """Return the name of another file of a batch."""
    return name.removesuffix(_INPUT) + ending


_DEPLOYMENT = re.compile(r"/deployments/([^/]+)$")


class AzureBatches(HostedBatches):
    """Azure OpenAI. Files and batches are next to the deployments, whose name is the model of each line.

    An address without `/v1` needs `api-version` in `llm.extra_query`, and paths in lines have no `/v1`. A batch can be
    created when its file is `processed`.
    Source: Microsoft's "Getting started with Azure OpenAI batch deployments", REST.
    """

    def __init__(self, settings: CallSettings) -> None:
        found = _DEPLOYMENT.search(settings.base_url)
        self._deployment = found and found[1]
        self._root = _DEPLOYMENT.sub("", settings.base_url)
        super().__init__(replace(settings, base_url=self._root), Host(key_header="api-key"))

    def path(self, api: str) -> str:
        """Return the path of an API in lines."""
        return super().path(api) if self._root.endswith("/v1") else PATHS[api]

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """Return the line of a request. Its model is the deployment of the address, if the address has one."""
        if self._deployment and body:
            renamed = json.loads(body) | {"model": self._deployment}
            body = json.dumps(renamed, ensure_ascii=False, separators=(",", ":")).encode()
        return super().line(request_id, api, body)

    def create(self, sent: Sent) -> BatchStatus:
        """Create a batch after its file is processed."""
        status = str(self.json("get", f"/files/{sent.file}").get("status")).lower()
        if status in ("error", "failed", "deleted"):
            raise BatchError(Answer(error_type="http_400", error=f"the file of requests is {status}"))
        if status not in ("processed", "none"):
            raise NotYetError(f"the file of requests is {status}")
        return super().create(sent)


def _bare_line(request_id: str, path: str, body: bytes) -> bytes:
    """Return the line {custom_id, body}."""
    return b'{"custom_id":"%s","body":%s}\n' % (request_id.encode(), body)


# Groq: files of 100 MB, and lists in one page without parameters.
# Source: the package `groq`, types of batches and files.
GROQ = Host(next_page=None, listed=({}, {}), most_bytes=100_000_000)

# Mistral: jobs with `input_files` and `timeout_hours`, and lists by the number of the page.
# Source: Mistral's "Batch Processing", and the package `mistralai`, types of batch jobs and files.
MISTRAL = Host(
    line=_bare_line,
    creation=lambda sent, path: {
        "input_files": [sent.file],
        "endpoint": path,
        "metadata": {NAME: sent.name, **sent.more},
        "timeout_hours": int(WINDOW.removesuffix("h")),
    },
    next_page=lambda page, number: {"page": number},
    listed=({"page": 0, "page_size": 100}, {"page": 0, "page_size": 100, "purpose": "batch"}),
    most_bytes=512_000_000,
    batches="/batch/jobs",
)

# Together: separate uploads, no metadata, and lists in one page. The new batch is in the field `job`.
# Source: Together's "Batch" and "Upload a file", and the package `together`, types of batches and files.
TOGETHER = Host(
    line=_bare_line,
    creation=lambda sent, path: {"endpoint": path, "input_file_id": sent.file, "completion_window": WINDOW},
    next_page=None,
    listed=({}, {}),
    most_bytes=100_000_000,
    upload="/files/upload",
    upload_form=lambda name: {"purpose": "batch-api", "file_name": name, "file_type": "jsonl"},
)


# The clock of the endpoint may be this many seconds behind
SKEW_SECONDS = 300.0
_STATUSES = {"billing_error": 402, "request_too_large": 413, "timeout_error": 504}


def _message_line(request_id: str, path: str, body: bytes) -> bytes:
    """Return the line {custom_id, params}."""
    return b'{"custom_id":"%s","params":%s}\n' % (request_id.encode(), messages.message_body(body))


def _message_status(batch: Json) -> BatchStatus:
    """Return the status of a batch. The status `ended` becomes the outcome of its requests."""
    counts = batch["request_counts"]
    status = str(SPELLINGS.get(batch["processing_status"], batch["processing_status"]))
    if status == "ended":
        cut = {"cancelled": counts["canceled"], "expired": counts["expired"]}
        status = next((name for name, number in cut.items() if number), "completed")
    done = sum(counts.values()) - counts["processing"]
    return BatchStatus(batch["id"], status, (batch["id"],) if batch.get("results_url") else (), done)


def result_line(line: bytes) -> bytes:
    """Return a line of results in OpenAI's format. An unreadable line stays unchanged."""
    read = messages.json_of(line)
    result = read.get("result")
    if not isinstance(result, dict):
        return line
    kind, response, error = result.get("type"), None, None
    try:
        if kind == "succeeded":
            response = {"status_code": 200, "body": messages.chat_of_message(result["message"])}
        elif kind == "errored":
            body = result["error"].get("error", result["error"])
            status = _STATUSES.get(body["type"]) or status_in({"error": body}) or 500
            response = {"status_code": status, "body": {"error": body}}
        else:
            error = {"code": "batch_expired" if kind == "expired" else "batch_cancelled"}
    except (LookupError, TypeError, AttributeError):
        return line
    return json.dumps({"custom_id": read.get("custom_id"), "response": response, "error": error}).encode()


# The key is not sent to the address of the results that a batch names, so the path is fixed
ANTHROPIC = Host(
    line=_message_line,
    status=_message_status,
    result=result_line,
    next_page=lambda page, number: {"after_id": page["last_id"]} if page.get("has_more") else None,
    listed=({"limit": 1000}, {}),
    most_bytes=256_000_000,
    batches="/messages/batches",
    results="/messages/batches/{}/results",
    removed="/messages/batches/{}",
    key_header=messages.KEY_HEADER,
    headers=messages.HEADERS,
)


class AnthropicBatches(HostedBatches):
    """Anthropic's Message Batches: one call creates a batch with its requests. There are no files, names or metadata.

    After a lost response, the batch is searched among the later batches with the same number of requests. Only the
    `custom_id` of its results identifies it, so it must have ended.
    Source: Anthropic's API reference, "Message Batches".
    """

    def find_file(self, name: str, size: int) -> str | None:
        """Return None, because there is no file before the batch."""
        return None

    def upload(self, name: str, file: IO[bytes]) -> str:
        """Return the name. The requests are sent with the batch."""
        return name

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """Return the batch whose results have the ids of the requests."""
        running = None
        for batch in self._list(self.host.batches, self.host.listed[0]):
            with heard():
                look = self.host.status(batch)
                is_like = sum(batch["request_counts"].values()) == sent.requests and look.id not in sent.others
                created = datetime.fromisoformat(batch["created_at"]).timestamp()
            # The newest batches are first
            if created < sent.since - SKEW_SECONDS:
                break
            if is_like and not look.ended:
                running = look.id
            elif is_like and self._answers(look.id, sent):
                return look
        if running:
            raise NotYetError(f"batch {running} may be it, which shows once that has ended")
        return None

    def create(self, sent: Sent) -> BatchStatus:
        """Create the batch with all its requests."""
        with sent.open() as lines, tempfile.TemporaryFile() as body:
            body.write(b'{"requests":[')
            for number, line in enumerate(lines):
                body.write(b"," * bool(number) + line.rstrip(b"\n"))
            body.write(b"]}")
            body.seek(0)
            headers = {"Content-Type": "application/json"}
            return self._status("post", self.host.batches, content=body, headers=headers)

    def remove(self, file: str) -> None:
        """Remove a batch with its results. Requests have no file."""
        if not file.startswith("untold-"):
            super().remove(file)

    def _answers(self, batch: str, sent: Sent) -> bool:
        """Return True if the results of an ended batch belong to these requests."""
        try:
            results = map(messages.json_of, self.stream(self.host.results.format(batch)))
            named = next(filter(None, results), {})
        except BatchError as error:
            # A removed batch can still be in the list
            if error.answer.error_type in HIDDEN:
                return False
            raise
        head = b'{"custom_id":"%s"' % str(named.get("custom_id")).encode()
        with sent.open() as lines:
            return any(line.startswith(head) for line in lines)


FORMATS: Mapping[str, Callable[[CallSettings], BatchApi]] = {
    "openai": partial(HostedBatches, host=Host()),
    "azure": AzureBatches,
    "mistral": partial(HostedBatches, host=MISTRAL),
    "together": partial(HostedBatches, host=TOGETHER),
    "groq": partial(HostedBatches, host=GROQ),
    "anthropic": partial(AnthropicBatches, host=ANTHROPIC),
    "files": FileBatches,
}


def open_batches(settings: CallSettings) -> BatchApi:
    """Return the batch API of an endpoint in the format of its settings."""
    return FORMATS[settings.batch_format](settings)
