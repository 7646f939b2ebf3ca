"""Forms of batch APIs beside OpenAI's, a class each, as their makers document them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import IO, Any, ClassVar

from untold.udfs.llm.batch_api import NAME, WINDOW, BatchApi, BatchError, Look, NotYetError, OpenAiBatches, Sent, heard
from untold.udfs.llm.batch_files import FileBatches
from untold.udfs.llm.calls import PATHS, Answer, CallSettings
from untold.udfs.llm.message_batches import AnthropicBatches

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

    def create(self, sent: Sent) -> Look:
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

    def find_batch(self, sent: Sent) -> Look | None:
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

    def find_batch(self, sent: Sent) -> Look | None:
        """By its metadata, or by its file."""
        found = self._pages("/batch/jobs")
        own = (one for one in found if _named(one) == sent.name or sent.file in one["input_files"])
        return next(map(self._look, own), None)

    def create(self, sent: Sent) -> Look:
        """With the name among the metadata."""
        asked = {
            "input_files": [sent.file],
            "endpoint": self.path(sent.api),
            "metadata": {NAME: sent.name, **sent.more},
            "timeout_hours": int(WINDOW.removesuffix("h")),
        }
        return self._look(self._json("post", "/batch/jobs", body=asked))

    def look(self, batch: str) -> Look:
        """As `BatchApi` says."""
        return self._look(self._json("get", f"/batch/jobs/{batch}"))

    def cancel(self, batch: str) -> Look:
        """As `BatchApi` says."""
        return self._look(self._json("post", f"/batch/jobs/{batch}/cancel"))

    def _look(self, job: Mapping[str, Any]) -> Look:
        files = tuple(filter(None, (job.get("output_file"), job.get("error_file"))))
        with heard():
            status = str(job["status"]).lower()
            return Look(job["id"], self.statuses.get(status, status), files, job.get("completed_requests") or 0)

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

    def find_batch(self, sent: Sent) -> Look | None:
        """By its file."""
        own = (one for one in self._json("get", "/batches") if one.get("input_file_id") == sent.file)
        return next(map(_look_of_job, own), None)

    def create(self, sent: Sent) -> Look:
        """Without a name: there are no metadata."""
        asked = {"endpoint": self.path(sent.api), "input_file_id": sent.file, "completion_window": WINDOW}
        with heard():
            return _look_of_job(self._json("post", "/batches", body=asked)["job"])

    def look(self, batch: str) -> Look:
        """As `BatchApi` says."""
        return _look_of_job(self._json("get", f"/batches/{batch}"))

    def cancel(self, batch: str) -> Look:
        """As `BatchApi` says."""
        return _look_of_job(self._json("post", f"/batches/{batch}/cancel"))


def _look_of_job(job: Mapping[str, Any]) -> Look:
    """A batch of Together's, which says a share of what has ended, and no number."""
    files = tuple(filter(None, (job.get("output_file_id"), job.get("error_file_id"))))
    with heard():
        return Look(job["id"], str(job["status"]).lower(), files)


def _bare_line(request_id: str, body: bytes) -> bytes:
    """A line without method and address."""
    return b'{"custom_id":"%s","body":%s}\n' % (request_id.encode(), body)


def _named(batch: Mapping[str, Any]) -> Any:
    return (batch.get("metadata") or {}).get(NAME)


def file_in(files: Any, name: str, size: int) -> str | None:
    """The id of the file of a name and size among those of a list."""
    with heard():
        return next((str(one["id"]) for one in files if (one.get("filename"), one.get("bytes")) == (name, size)), None)


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
