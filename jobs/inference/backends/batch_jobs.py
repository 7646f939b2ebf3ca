"""Batch jobs and their ledger, and the waiting for batches. Imports no pyspark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from time import monotonic
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from untold.jobs.inference.backends.job import Spool, SpooledJob
from untold.udfs.llm.calls import Answer
from untold.udfs.llm.retrying import is_passing, remedy_of
from untold.udfs.llm.units import list_units, read_requests
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.storage import StoragePath

FOLDER = "batches"
LEDGER, REST, ASKED = "batches.json", "rest", "asked.parquet"
Rest = Mapping[str, Mapping[str, Any]]
"""What is known of the requests of a batch by their ids (`remembered`)."""


@dataclass(frozen=True)
class Batch:
    """Requests of a job in one file: its rows from `first` to before `end`, or those that the file in `rest/` names.

    `tokens`: of the prompts, estimated; `most`: with the completions. `key`: whose the batch is. `file`, with the
    `digest` of its content, and `id` are as the endpoint knows them, once it does. `asked`: when its creation was last
    asked for, in seconds of the epoch; 0 where it was refused.
    """

    name: str
    first: int
    end: int
    requests: int
    tokens: int
    most: int
    part: bool = False
    key: str = ""
    file: str | None = None
    digest: str = ""
    id: str | None = None
    asked: float = 0.0


@dataclass(frozen=True)
class Ledger:
    """The batches of a job that are not read yet.

    `cut`: how many rows of the job are in batches, or were. `made`: how many batches there were. `queue`: how many
    tokens the endpoint lets wait, where it has said so. `used`: by batches that were read, until it is collected.
    `leftovers`: files of batches that were read, at the endpoint.
    """

    batches: tuple[Batch, ...] = ()
    cut: int = 0
    made: int = 0
    queue: int | None = None
    used: Usage = field(default_factory=Usage)
    leftovers: tuple[str, ...] = ()

    @property
    def in_flight(self) -> list[Batch]:
        """The batches that the endpoint has."""
        return [batch for batch in self.batches if batch.id is not None]

    def with_batch(self, batch: Batch) -> Ledger:
        """The ledger with more that is known of a batch, or with a new one."""
        known = {one.name: one for one in self.batches} | {batch.name: batch}
        return replace(self, batches=tuple(known.values()))


@dataclass(frozen=True)
class BatchJob(SpooledJob):
    """A job of a spool whose requests are asked in batches. Whoever holds its lock writes it."""

    def ledger(self) -> Ledger:
        """What is known of its batches."""
        note = self.place / LEDGER
        if note.entry().kind != "file":
            return Ledger()
        plain = json.loads(note.read_bytes())
        batches = tuple(Batch(**batch) for batch in plain["batches"])
        read = {"batches": batches, "used": Usage.of(plain["used"]), "leftovers": tuple(plain.get("leftovers", ()))}
        return Ledger(**{**plain, **read})

    def write_ledger(self, ledger: Ledger) -> None:
        """Writes what is known, durably and as a whole."""
        (self.place / LEDGER).write_bytes(json.dumps(asdict(ledger)).encode())

    def rest(self, batch: Batch) -> Rest | None:
        """The requests that a batch is of; None for all of its rows."""
        if not batch.part:
            return None
        rest: Rest = json.loads((self._rest / f"{batch.name}.json").read_bytes())
        return rest

    def write_rest(self, name: str, rest: Rest) -> None:
        """Writes which requests the batch of this name is of."""
        self._rest.make_folder()
        (self._rest / f"{name}.json").write_bytes(json.dumps(rest).encode())

    def rows(self, batch: Batch) -> Iterator[tuple[str, dict[str, Any], Mapping[str, Any] | None]]:
        """The requests of a batch: id, variables, and what is known of it from batches before."""
        rest, place = self.rest(batch), 0
        for unit, count in self.units.items():
            if place < batch.end and place + count > batch.first:
                for number, (request_id, variables) in enumerate(read_requests(unit), start=place):
                    if batch.first <= number < batch.end and (rest is None or request_id in rest):
                        yield request_id, variables, rest and rest[request_id]
            place += count

    @cached_property
    def units(self) -> dict[str, int]:
        """Its requests in an order that stays: units of work with their rows."""
        return list_units(self.requests)

    def note_asked(self) -> str:
        """Writes the ids of the requests that an endpoint has; gives the file."""
        schema, note = pa.schema([("request_id", pa.string())]), self.place / ASKED

        def write(file: IO[bytes]) -> None:
            with pq.ParquetWriter(file, schema) as writer:
                for batch in self.ledger().batches:
                    writer.write_table(pa.table([[one for one, *_ in self.rows(batch)]], schema=schema))

        note.write_whole(write)
        return str(note)

    @property
    def _rest(self) -> StoragePath:
        return self.place / REST

    def close(self) -> None:
        """As of any job; the batches are all read."""
        super().close()
        self._rest.remove()

    def collect(self, folder: str) -> Usage:
        """The completions that are new, and what they took."""
        used, ledger = super().collect(folder), self.ledger()
        if ledger.used != NOTHING_USED:
            self.write_ledger(replace(ledger, used=NOTHING_USED))
        return used + replace(ledger.used, done=0, failed=0)


def batch_spool(store: str) -> Spool:
    """Where the batches of a store are."""
    return Spool(f"{store}/{FOLDER}")


def batch_jobs(store: str, prefix: str = "") -> list[BatchJob]:
    """The open jobs of a store that are asked in batches, those whose names begin like that."""
    return [BatchJob(job.place) for job in batch_spool(store).jobs(prefix) if job.is_open]


@dataclass(frozen=True)
class BatchLimits:
    """What a batch may hold: requests, bytes, tokens of prompts; and tokens and cost of all, as the budget has left."""

    requests: float
    bytes: float
    queue: float = float("inf")
    tokens: float = float("inf")
    cost: float = float("inf")


@dataclass(frozen=True)
class RequestSize:
    """What a request takes of a batch: bytes, tokens of its prompt and of all, cost. Without bytes it is not sent."""

    bytes: int
    prompt: int
    most: int
    cost: float


def fill(lines: Iterable[RequestSize], room: BatchLimits) -> list[RequestSize]:
    """As many of the first lines as fit. The first always fits, unless the budget has no room for it.

    >>> len(fill([RequestSize(10, 3, 5, 0.0)] * 9, BatchLimits(requests=5, bytes=42)))
    4
    """
    taken: list[RequestSize] = []
    size = prompt = most = requests = 0
    cost = 0.0
    for line in lines:
        requests, size, prompt = requests + (line.bytes > 0), size + line.bytes, prompt + line.prompt
        most, cost = most + line.most, cost + line.cost
        affordable = requests <= room.requests and most <= room.tokens and cost <= room.cost
        fits = size <= room.bytes and prompt <= room.queue
        if not affordable or (requests > 1 and not fits):
            break
        taken.append(line)
    return taken


def parts(lines: list[RequestSize], room: BatchLimits) -> list[range]:
    """All lines in as few batches as their order allows: the places of each.

    >>> parts([RequestSize(10, 3, 5, 0.0)] * 5, BatchLimits(requests=2, bytes=100))
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    found, first = [], 0
    while first < len(lines):
        count = len(fill(islice(lines, first, None), room))
        found.append(range(first, first + count))
        first += count
    return found


def left_of(most: float | None, used: float) -> float:
    """What a bound of the budget has left."""
    return float("inf") if most is None else most - used


def fingerprint(key: str, salt: str) -> str:
    """What tells one key from another and says nothing of it; other for each salt."""
    return blake2b(key.encode(), digest_size=4, salt=blake2b(salt.encode(), digest_size=8).digest()).hexdigest()


# An address that never answered is wrong more likely than out
FIRST_OUTAGE_SECONDS = 60.0
# So many batches in a row of which nothing came
FRUITLESS = 3
NO_BATCHES = "if the endpoint has no batches, set llm.backend to process"
REMEDIES = {
    **dict.fromkeys(("http_400", "http_404", "http_405"), NO_BATCHES),
    "http_413": "lower batch.requests or batch.bytes",
}


@dataclass(frozen=True)
class Watch:
    """Who waits for batches: whether to stop, what takes progress, and lines that stay."""

    stopped: Callable[[], str | None]
    show: Callable[[Mapping[str, Any]], None]
    note: Callable[[str], None]


class EndedError(Exception):
    """The job ends early, for a reason of `Outcome` and with an error."""

    def __init__(self, reason: str, error: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.error = reason, error


class OutageTracker:
    """What has gone wrong at an endpoint that may be away for `outage` seconds.

    `faults`: so many since it answered last. `held_until`: until when it asked to be left alone.
    """

    def __init__(self, outage: float) -> None:
        self.faults, self.held_until = 0, 0.0
        self._outage = outage
        self._first, self._reached, self._fruitless = 0.0, False, 0

    @property
    def is_held(self) -> bool:
        """Whether the endpoint is left alone."""
        return monotonic() < self.held_until

    def record_success(self) -> None:
        """Takes that the endpoint answered."""
        self.faults, self._reached = 0, True

    def record_failure(self, answer: Answer) -> None:
        """Takes an error of the endpoint, which passes. Raises EndedError for others, and where it lasts too long."""
        if answer.refused or not is_passing(answer.error_type):
            remedy = REMEDIES.get(answer.error_type or "") or remedy_of(answer)
            raise EndedError("refused", f"{answer.error}; {remedy}")
        now, most = monotonic(), self._outage
        if answer.retry_after:
            self.held_until = max(self.held_until, now + answer.retry_after)
        self._first = self._first if self.faults else now
        self.faults += 1
        if self.faults > 1 and now - self._first >= (most if self._reached else min(most, FIRST_OUTAGE_SECONDS)):
            raise EndedError("outage")

    def read(self, *, came: bool) -> None:
        """Takes whether anything came of a batch. Raises EndedError where nothing did of several in a row."""
        self._fruitless = 0 if came else self._fruitless + 1
        if self._fruitless >= FRUITLESS:
            raise EndedError("outage")
