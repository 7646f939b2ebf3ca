"""Batch APIs other than OpenAI's, and batches as files in a folder."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import count
from shutil import copyfileobj
from typing import IO, Any, ClassVar

from untold.udfs.llm import messages
from untold.udfs.llm.batch_api import (
    HIDDEN,
    NAME,
    SPELLINGS,
    WINDOW,
    BatchApi,
    BatchError,
    BatchStatus,
    NotYetError,
    OpenAiBatches,
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
    """Files for vLLM's `run-batch`, which have the lines of OpenAI's batches and results.

    A batch is there as soon as its file is, and completed once its results have a line for each request: `run-batch`
    writes while it goes on. To cancel one takes its file away, and the results that are there by then.
    Source: vLLM's `vllm/entrypoints/openai/run_batch.py`.
    """

    most_bytes: ClassVar[int] = 2**40

    def __init__(self, settings: CallSettings) -> None:
        self._folder = StoragePath(settings.batch_folder or "")

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """As {custom_id, method, url, body}."""
        return line_of(request_id, f"/v1{PATHS[api]}", body)

    def find_file(self, name: str, size: int) -> str | None:
        """By its name; files are whole or not there."""
        return name if (self._folder / name).entry().kind == "file" else None

    def upload(self, name: str, file: IO[bytes]) -> str:
        """Writes the file whole."""
        self._folder.make_folder()
        (self._folder / name).write_whole(lambda out: copyfileobj(file, out))
        return name

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """By its file."""
        return self.look(sent.file) if self.find_file(sent.file, 0) else None

    def create(self, sent: Sent) -> BatchStatus:
        """Says what has to be run; the file is there."""
        with sent.open() as lines:
            model = json.loads(lines.readline())["body"]["model"]
        words = ["vllm", "run-batch", "-i", self._path(sent.file), "-o", self._path(_beside(sent.file, _RESULTS))]
        return BatchStatus(sent.file, "in_progress", hint=f"run: {shlex.join([*words, '--model', model])}")

    def look(self, batch: str) -> BatchStatus:
        """By the lines that the results have. Raises BatchError where neither requests nor results are there."""
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
        """Takes the file of requests away."""
        (self._folder / _beside(batch, _CANCELLED)).write_bytes(b"")
        (self._folder / batch).remove()
        return self.look(batch)

    def lines(self, file: str) -> Iterator[bytes]:
        """As they stand in the file."""
        yield from lines_in(_chunks(self._folder / file))

    def remove(self, file: str) -> None:
        """With the note that it was cancelled."""
        for name in (file, _beside(file, _CANCELLED)):
            (self._folder / name).remove()

    def close(self) -> None:
        """There is nothing to close."""

    def _path(self, name: str) -> str:
        return (self._folder / name).spark

    def _count(self, name: str) -> int | None:
        """The whole lines of a file; None where there is none."""
        place = self._folder / name
        if place.entry().kind != "file":
            return None
        return sum(chunk.count(b"\n") for chunk in _chunks(place))


def _chunks(place: StoragePath) -> Iterator[bytes]:
    with place.open() as file:
        yield from iter(lambda: file.read(2**20), b"")


def _beside(name: str, ending: str) -> str:
    """The file that belongs to one of requests."""
    return name.removesuffix(_INPUT) + ending


_DEPLOYMENT = re.compile(r"/deployments/([^/]+)$")
# Of a page of a list
PAGE = 100


class AzureBatches(OpenAiBatches):
    """Azure OpenAI: files and batches lie beside the deployments, whose name is the model of each line.

    The key is sent as `api-key`. An address without `/v1` needs `api-version` in `llm.extra_query`, and its lines name
    their address without `/v1`. A batch is created once its file is `processed`.
    Source: Microsoft's "Getting started with Azure OpenAI batch deployments", REST.
    """

    key_header: ClassVar[str] = "api-key"

    def __init__(self, settings: CallSettings) -> None:
        found = _DEPLOYMENT.search(settings.base_url)
        self._deployment = found and found[1]
        self._root = _DEPLOYMENT.sub("", settings.base_url)
        super().__init__(replace(settings, base_url=self._root))

    def path(self, api: str) -> str:
        """As lines name it."""
        return f"/v1{PATHS[api]}" if self._root.endswith("/v1") else PATHS[api]

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """With the deployment of the address as the model, where the address has one."""
        if self._deployment and body:
            renamed = json.loads(body) | {"model": self._deployment}
            body = json.dumps(renamed, ensure_ascii=False, separators=(",", ":")).encode()
        return super().line(request_id, api, body)

    def create(self, sent: Sent) -> BatchStatus:
        """Once the file is processed: before, it is refused."""
        status = str(self._json("get", f"/files/{sent.file}").get("status")).lower()
        if status in ("error", "failed", "deleted"):
            raise BatchError(Answer(error_type="http_400", error=f"the file of requests is {status}"))
        if status not in ("processed", "none"):
            raise NotYetError(f"the file of requests is {status}")
        return super().create(sent)


class _ShortLists(OpenAiBatches):
    """APIs that list all files at once."""

    def find_file(self, name: str, size: int) -> str | None:
        """By its name and size."""
        return file_in(self._json("get", "/files")["data"], name, size)


class GroqBatches(_ShortLists):
    """Groq: OpenAI's form with files of 100 MB, and lists in one page that take no parameters.

    Source: the package `groq`, types of batches and files.
    """

    most_bytes: ClassVar[int] = 100_000_000

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """By its metadata, or by its file."""
        found = self._json("get", "/batches")["data"]
        own = (one for one in found if _named(one) == sent.name or one["input_file_id"] == sent.file)
        return next((self.look(one["id"]) for one in own), None)


class MistralBatches(OpenAiBatches):
    """Mistral: jobs at `/batch/jobs` over `input_files`, with metadata and `timeout_hours`; lists by page number.

    Source: Mistral's "Batch Processing", and the package `mistralai`, types of batch jobs and files.
    """

    most_bytes: ClassVar[int] = 512_000_000
    statuses: ClassVar[Mapping[str, str]] = {
        "success": "completed",
        "timeout_exceeded": "expired",
        "cancellation_requested": "cancelling",
    }

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """As {custom_id, body}."""
        return _bare_line(request_id, body)

    def find_file(self, name: str, size: int) -> str | None:
        """By its name and size."""
        return file_in(self._pages("/files", purpose=self.purpose), name, size)

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """By its metadata, or by its file."""
        found = self._pages("/batch/jobs")
        own = (one for one in found if _named(one) == sent.name or sent.file in one["input_files"])
        return next(map(self._look, own), None)

    def create(self, sent: Sent) -> BatchStatus:
        """With the name among the metadata."""
        asked = {
            "input_files": [sent.file],
            "endpoint": self.path(sent.api),
            "metadata": {NAME: sent.name, **sent.more},
            "timeout_hours": int(WINDOW.removesuffix("h")),
        }
        return self._look(self._json("post", "/batch/jobs", body=asked))

    def look(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        return self._look(self._json("get", f"/batch/jobs/{batch}"))

    def cancel(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        return self._look(self._json("post", f"/batch/jobs/{batch}/cancel"))

    def _look(self, job: Mapping[str, Any]) -> BatchStatus:
        files = tuple(filter(None, (job.get("output_file"), job.get("error_file"))))
        with heard():
            status = str(job["status"]).lower()
            return BatchStatus(job["id"], self.statuses.get(status, status), files, job.get("completed_requests") or 0)

    def _pages(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """What a list has, page by page; some count from 0, and give no total."""
        seen: set[str] = set()
        for number in count():
            found = self._json("get", path, params={**params, "page": number, "page_size": PAGE})
            new = [one for one in found.get("data") or () if one["id"] not in seen]
            yield from new
            seen.update(one["id"] for one in new)
            if not new or len(seen) >= (found.get("total") or float("inf")):
                return


class TogetherBatches(_ShortLists):
    """Together: files of the purpose `batch-api` at `/files/upload`, a batch within `job`, no metadata, lists bare.

    A batch that nobody heard of is found by its file. Source: Together's "Batch" and "Upload a file", and the package
    `together`, types of batches and files.
    """

    most_bytes: ClassVar[int] = 100_000_000
    purpose: ClassVar[Any] = "batch-api"

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """As {custom_id, body}."""
        return _bare_line(request_id, body)

    def upload(self, name: str, file: IO[bytes]) -> str:
        """As a form with the name and type of the file."""
        form = {"purpose": self.purpose, "file_name": name, "file_type": "jsonl"}
        given: Any = [("file", (name, file, "application/jsonl"))]
        headers = {"Content-Type": "multipart/form-data"}
        answer = self._json("post", "/files/upload", body=form, files=given, headers=headers)
        with heard():
            return str(answer["id"])

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """By its file."""
        own = (one for one in self._json("get", "/batches") if one.get("input_file_id") == sent.file)
        return next(map(_look_of_job, own), None)

    def create(self, sent: Sent) -> BatchStatus:
        """Without a name: there are no metadata."""
        asked = {"endpoint": self.path(sent.api), "input_file_id": sent.file, "completion_window": WINDOW}
        with heard():
            return _look_of_job(self._json("post", "/batches", body=asked)["job"])

    def look(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        return _look_of_job(self._json("get", f"/batches/{batch}"))

    def cancel(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        return _look_of_job(self._json("post", f"/batches/{batch}/cancel"))


def _look_of_job(job: Mapping[str, Any]) -> BatchStatus:
    """A batch of Together's, which says a share of what has ended, and no number."""
    files = tuple(filter(None, (job.get("output_file_id"), job.get("error_file_id"))))
    with heard():
        return BatchStatus(job["id"], str(job["status"]).lower(), files)


def _bare_line(request_id: str, body: bytes) -> bytes:
    """A line without method and address."""
    return b'{"custom_id":"%s","body":%s}\n' % (request_id.encode(), body)


def _named(batch: Mapping[str, Any]) -> Any:
    return (batch.get("metadata") or {}).get(NAME)


def file_in(files: Any, name: str, size: int) -> str | None:
    """The id of the file of a name and size among those of a list."""
    with heard():
        return next((str(one["id"]) for one in files if (one.get("filename"), one.get("bytes")) == (name, size)), None)


BATCHES_PATH = "/messages/batches"
# The clock of the endpoint may be this many seconds behind
SKEW_SECONDS = 300.0
PAGE = 1000
_STATUSES = {"billing_error": 402, "request_too_large": 413, "timeout_error": 504}


class AnthropicBatches(OpenAiBatches):
    """Anthropic's Message Batches: one call creates a batch with its requests. There are no files, names or metadata.

    After a lost response, the batch is searched among the later batches with the same number of requests. Only the
    `custom_id` of its results identifies it, so it must have ended.
    Source: Anthropic's API reference, "Message Batches".
    """

    most_bytes: ClassVar[int] = 256_000_000
    key_header: ClassVar[str] = messages.KEY_HEADER
    headers: ClassVar[Mapping[str, str]] = messages.HEADERS

    def line(self, request_id: str, api: str, body: bytes) -> bytes:
        """Return the line {custom_id, params}."""
        return b'{"custom_id":"%s","params":%s}\n' % (request_id.encode(), messages.message_body(body))

    def find_file(self, name: str, size: int) -> str | None:
        """Return None, because there is no file before the batch."""
        return None

    def upload(self, name: str, file: IO[bytes]) -> str:
        """Return the name. The requests are sent with the batch."""
        return name

    def find_batch(self, sent: Sent) -> BatchStatus | None:
        """Return the batch whose results have the ids of the requests."""
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
        """Create the batch with all its requests."""
        with sent.open() as lines, tempfile.TemporaryFile() as body:
            body.write(b'{"requests":[')
            for number, line in enumerate(lines):
                body.write(b"," * bool(number) + line.rstrip(b"\n"))
            body.write(b"]}")
            body.seek(0)
            created = self._json("post", BATCHES_PATH, content=body, headers={"Content-Type": "application/json"})
        with heard():
            return _look(created)

    def look(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        found = self._json("get", f"{BATCHES_PATH}/{batch}")
        with heard():
            return _look(found)

    def cancel(self, batch: str) -> BatchStatus:
        """As `BatchApi` says."""
        found = self._json("post", f"{BATCHES_PATH}/{batch}/cancel")
        with heard():
            return _look(found)

    def lines(self, file: str) -> Iterator[bytes]:
        """Yield the results of a batch. The key is not sent to the address of the results that the batch names."""
        return map(result_line, self._stream(f"{BATCHES_PATH}/{file}/results"))

    def remove(self, file: str) -> None:
        """Remove a batch with its results. Requests have no file."""
        if not file.startswith("untold-"):
            self._json("delete", f"{BATCHES_PATH}/{file}")

    def _since(self, moment: float) -> Iterator[dict[str, Any]]:
        """Yield the batches since a time, the newest first."""
        after: dict[str, str] = {}
        while True:
            page = self._json("get", BATCHES_PATH, params={"limit": str(PAGE), **after})
            with heard():
                found = [one for one in page["data"] if _time_of(one["created_at"]) >= moment]
            yield from found
            if len(found) < len(page["data"]) or not page.get("has_more") or not found:
                return
            after = {"after_id": page["last_id"]}

    def _answers(self, batch: str, sent: Sent) -> bool:
        """Return True if the results of an ended batch belong to these requests."""
        try:
            results = map(messages.json_of, self._stream(f"{BATCHES_PATH}/{batch}/results"))
            named = next(filter(None, results), {})
        except BatchError as error:
            # A removed batch can still be in the list
            if error.answer.error_type in HIDDEN:
                return False
            raise
        head = b'{"custom_id":"%s"' % str(named.get("custom_id")).encode()
        with sent.open() as lines:
            return any(line.startswith(head) for line in lines)


def _look(batch: Mapping[str, Any]) -> BatchStatus:
    """Return the status of a batch. The status `ended` becomes the outcome of its requests."""
    counts = batch["request_counts"]
    status = SPELLINGS.get(batch["processing_status"], batch["processing_status"])
    if status == "ended":
        cut = {"cancelled": counts["canceled"], "expired": counts["expired"]}
        status = next((name for name, number in cut.items() if number), "completed")
    done = sum(counts.values()) - counts["processing"]
    return BatchStatus(batch["id"], status, (batch["id"],) if batch.get("results_url") else (), done)


def _time_of(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


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


FORMATS: Mapping[str, Callable[[CallSettings], BatchApi]] = {
    "openai": OpenAiBatches,
    "azure": AzureBatches,
    "mistral": MistralBatches,
    "together": TogetherBatches,
    "groq": GroqBatches,
    "anthropic": AnthropicBatches,
    "files": FileBatches,
}


def open_batches(settings: CallSettings) -> BatchApi:
    """The batch API of an endpoint, by the form that its settings name."""
    return FORMATS[settings.batch_format](settings)
