"""What reached the model server, kept small: millions of requests are counted in one process."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from struct import Struct
from time import time

COMPLETION_PATHS = ("/v1/chat/completions", "/v1/completions")
# Whatever is asked for: what is counted by stage
CLASSIFYING_PATHS = ("/classify", "/predict", "/score")
ASKED_PATHS = (*COMPLETION_PATHS, "/v1/embeddings", "/res/v1/web/search", *CLASSIFYING_PATHS)


@dataclass(frozen=True)
class Arrival:
    """A request that reached the server.

    `at` is a time.time, `key` a hash of its messages or prompt. `status` is what the server answered, 0 where it did
    not (a hang, a refusal, an answer still due or a client that left first).
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
        """Writes a request that is not answered yet; gives its position."""
        position, (paths, models, stages) = len(self.rows), self.names
        named = paths.setdefault(path, len(paths)), models.setdefault(model, len(models))
        self.rows += self._ROW.pack(time(), *named, stages.setdefault(stage, len(stages)), 0, prompt_tokens, 0, key)
        if path in ASKED_PATHS:
            self.counts[stage or ""] += 1
        return position

    def answered(self, position: int, status: int, completion_tokens: int) -> None:
        """Writes what the request at that position was answered."""
        for (field, offset), value in ((self._STATUS, status), (self._COMPLETION_TOKENS, completion_tokens)):
            field.pack_into(self.rows, position + offset, value)

    def pack(self) -> bytes:
        """All of it as bytes, for `unpack`."""
        return json.dumps([list(names) for names in self.names]).encode() + b"\n" + self.rows

    @classmethod
    def unpack(cls, blob: bytes) -> list[Arrival]:
        """The arrivals that `pack` wrote, in order."""
        head, _, rows = blob.partition(b"\n")
        paths, models, stages = json.loads(head)
        return [
            Arrival(at, paths[path], models[model], f"{key:016x}", stages[stage], status, prompt, completion)
            for at, path, model, stage, status, prompt, completion, key in cls._ROW.iter_unpack(rows)
        ]
