"""The requests that reached the model server, stored compactly, because one process counts millions of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from struct import Struct
from time import time

COMPLETION_PATHS = ("/v1/chat/completions", "/v1/completions")
# These count by stage for any request
CLASSIFYING_PATHS = ("/classify", "/predict", "/score")
ASKED_PATHS = (*COMPLETION_PATHS, "/v1/embeddings", "/res/v1/web/search", *CLASSIFYING_PATHS)


@dataclass(frozen=True)
class Arrival:
    """A request that reached the server.

    `at` is time.time, and `key` a hash of its messages or prompt. `status` is the status of the response. It is 0
    without a response: after a hang or a refusal, before the response, or if the client left first.
    """

    at: float
    path: str
    model: str
    key: str
    stage: str | None
    status: int
    prompt_tokens: int
    completion_tokens: int


class Log:
    """Arrivals as packed rows: at, path, model, stage, status, prompt tokens, completion tokens, key."""

    _ROW = Struct("<dHHHHIIQ")
    _STATUS, _COMPLETION_TOKENS = (Struct("<H"), 14), (Struct("<I"), 20)

    def __init__(self) -> None:
        self.rows = bytearray()
        self.names: list[dict[str | None, int]] = [{}, {}, {}]
        self.counts: Counter[str] = Counter()

    def add(self, path: str, model: str, stage: str | None, prompt_tokens: int, key: int) -> int:
        """Add a request without a response, and return its position."""
        position, (paths, models, stages) = len(self.rows), self.names
        named = paths.setdefault(path, len(paths)), models.setdefault(model, len(models))
        self.rows += self._ROW.pack(time(), *named, stages.setdefault(stage, len(stages)), 0, prompt_tokens, 0, key)
        if path in ASKED_PATHS:
            self.counts[stage or ""] += 1
        return position

    def answered(self, position: int, status: int, completion_tokens: int) -> None:
        """Add the response to the request at this position."""
        for (field, offset), value in ((self._STATUS, status), (self._COMPLETION_TOKENS, completion_tokens)):
            field.pack_into(self.rows, position + offset, value)

    def pack(self) -> bytes:
        """Return the whole log as bytes for `unpack`."""
        return json.dumps([list(names) for names in self.names]).encode() + b"\n" + self.rows

    @classmethod
    def unpack(cls, blob: bytes) -> list[Arrival]:
        """Return the arrivals of `pack`, in order."""
        head, _, rows = blob.partition(b"\n")
        paths, models, stages = json.loads(head)
        return [
            Arrival(at, paths[path], models[model], f"{key:016x}", stages[stage], status, prompt, completion)
            for at, path, model, stage, status, prompt, completion, key in cls._ROW.iter_unpack(rows)
        ]
