"""Batches without an endpoint: a file of requests in a folder, and the results that somebody else puts beside it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from shutil import copyfileobj
from typing import IO, ClassVar

from untold.udfs.llm.batch_api import BatchError, Look, Sent, line_of, lines_in
from untold.udfs.llm.calls import PATHS, Answer, CallSettings
from untold.udfs.storage import Place

_INPUT, _RESULTS, _CANCELLED = ".jsonl", ".results.jsonl", ".cancelled"


class FileBatches:
    """Files for vLLM's `run-batch`, which have the lines of OpenAI's batches and results.

    A batch is there as soon as its file is, and completed once its results have a line for each request: `run-batch`
    writes while it goes on. To cancel one takes its file away, and the results that are there by then.
    Source: vLLM's `vllm/entrypoints/openai/run_batch.py`.
    """

    most_bytes: ClassVar[int] = 2**40

    def __init__(self, settings: CallSettings) -> None:
        self._folder = Place(settings.batch_folder or "")

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

    def find_batch(self, sent: Sent) -> Look | None:
        """By its file."""
        return self.look(sent.file) if self.find_file(sent.file, 0) else None

    def create(self, sent: Sent) -> Look:
        """Says what has to be run; the file is there."""
        with sent.open() as lines:
            model = json.loads(lines.readline())["body"]["model"]
        words = ["vllm", "run-batch", "-i", self._path(sent.file), "-o", self._path(_beside(sent.file, _RESULTS))]
        return Look(sent.file, "in_progress", hint=f"run: {shlex.join([*words, '--model', model])}")

    def look(self, batch: str) -> Look:
        """By the lines that the results have. Raises BatchError where neither requests nor results are there."""
        results = _beside(batch, _RESULTS)
        done = self._count(results)
        found = (results,) if done is not None else ()
        if self._count(_beside(batch, _CANCELLED)) is not None:
            return Look(batch, "cancelled", found, done or 0)
        asked = self._count(batch)
        if asked is None and done is None:
            raise BatchError(Answer(error_type="http_404", error=f"{self._path(batch)} is not there"))
        return Look(batch, "completed" if (done or 0) >= (asked or 0) else "in_progress", found, done or 0)

    def cancel(self, batch: str) -> Look:
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


def _chunks(place: Place) -> Iterator[bytes]:
    with place.open() as file:
        yield from iter(lambda: file.read(2**20), b"")


def _beside(name: str, ending: str) -> str:
    """The file that belongs to one of requests."""
    return name.removesuffix(_INPUT) + ending
