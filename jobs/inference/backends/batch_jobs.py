"""Batch jobs with their ledgers, the limits of batches, and the state of a broken endpoint. Imports no pyspark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from time import monotonic
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from untold.jobs.inference.backends.job import Spool, SpooledJob
from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.retrying import is_passing, remedy_of
from untold.udfs.llm.units import list_units, read_requests
from untold.udfs.llm.usage import NOTHING_USED, Usage

FOLDER = "batches"
LEDGER, REST, ASKED = "batches.json", "rest", "asked.parquet"
Rest = Mapping[str, Mapping[str, Any]]
"""The state of the requests of a batch by their ids (`remembered`)."""
INFINITE = float("inf")
# The state of a request after earlier batches
_KEPT = ("attempts", "calls", "names_form", "rounds", "turn_due", "turns", "trace", "limit")


def remembered(request: Request) -> dict[str, Any]:
    """Return the state of a request for the next batch, as JSON values."""
    known = {name: value for name in _KEPT if (value := getattr(request, name))}
    return known | ({"usage": asdict(request.usage)} if request.usage != NOTHING_USED else {})


def resumed(request_id: str, variables: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> Request:
    """Return the request of a state of `remembered`, or a new request."""
    fields = dict(known or {})
    usage = Usage.of(fields.pop("usage", {}))
    return Request(request_id, variables, "", usage=usage, **fields)


@dataclass(frozen=True)
class Part:
    """The requests in the rows from `first` to before `end` of a job, or only those in the file `rest`."""

    first: int
    end: int
    rest: str | None = None


@dataclass(frozen=True)
class Batch:
    """Requests of a job in one file at the endpoint.

    `tokens` are the estimated tokens of the prompts, and `most` the maximum tokens of all. `key` is the fingerprint of
    the API key. The endpoint knows the batch as `id`, and its file as `file`; `digest` is the digest of the file.
    `asked` is the time of its creation, in seconds of the epoch, 0 after a refusal.
    """

    name: str
    parts: tuple[Part, ...]
    requests: int
    tokens: int
    most: int
    key: str = ""
    file: str | None = None
    digest: str = ""
    id: str | None = None
    asked: float = 0.0

    @property
    def label(self) -> str:
        """Return the id at the endpoint, or the name of a batch without an id."""
        return self.id or self.name


@dataclass(frozen=True)
class Ledger:
    """The batches of a job that are not read yet, and the pool of requests without a batch.

    `made` is the number of all batches. `queue` is the maximum number of waiting tokens, if the endpoint has refused
    more. `used` is the usage of batches that were read, until it is collected. `leftovers` are files at the endpoint
    that are no longer needed.
    """

    batches: tuple[Batch, ...] = ()
    pool: tuple[Part, ...] = ()
    made: int = 0
    queue: int | None = None
    used: Usage = field(default_factory=Usage)
    leftovers: tuple[str, ...] = ()

    @property
    def in_flight(self) -> list[Batch]:
        """Return the batches at the endpoint."""
        return [batch for batch in self.batches if batch.id is not None]

    def with_batch(self, batch: Batch) -> Ledger:
        """Return the ledger with a new or changed batch."""
        known = {one.name: one for one in self.batches} | {batch.name: batch}
        return replace(self, batches=tuple(known.values()))

    def without(self, batch: Batch, pool: tuple[Part, ...]) -> Ledger:
        """Return the ledger without a batch, with other parts first in the pool."""
        batches = tuple(one for one in self.batches if one.name != batch.name)
        return replace(self, batches=batches, pool=(*pool, *self.pool))


@dataclass(frozen=True)
class BatchJob(SpooledJob):
    """A job of a spool whose requests are sent in batches. Only the process with its lock writes it."""

    def ledger(self) -> Ledger:
        """Return the ledger of the job. Before the first batch, all rows are in the pool."""
        note = self.place / LEDGER
        if note.entry().kind != "file":
            return Ledger(pool=(Part(0, self.count_requests()),))
        plain = json.loads(note.read_bytes())
        if "cut" in plain:
            # Earlier versions had a number of rows instead of a pool
            plain["pool"] = [{"first": plain.pop("cut"), "end": self.count_requests()}]
        read = {
            "batches": tuple(map(_batch_of, plain["batches"])),
            "pool": _parts_of(plain["pool"]),
            "used": Usage.of(plain["used"]),
            "leftovers": tuple(plain.get("leftovers", ())),
        }
        return Ledger(**{**plain, **read})

    def write_ledger(self, ledger: Ledger) -> None:
        """Write the ledger, durably and whole."""
        (self.place / LEDGER).write_bytes(json.dumps(asdict(ledger)).encode())

    def write_rest(self, name: str, rest: Rest) -> None:
        """Write the requests of a part in a file of this name."""
        (self.place / REST).make_folder()
        (self.place / REST / f"{name}.json").write_bytes(json.dumps(rest).encode())

    def requests_of(self, parts: Iterable[Part]) -> Iterator[tuple[int, Request]]:
        """Yield the requests of parts with the numbers of their rows, in their state after earlier batches."""
        for part in parts:
            rest: Rest | None = None
            if part.rest is not None:
                rest = json.loads((self.place / REST / f"{part.rest}.json").read_bytes())
            first = 0
            for unit, count in self.units.items():
                if first < part.end and first + count > part.first:
                    for number, (request_id, variables) in enumerate(read_requests(unit), start=first):
                        if part.first <= number < part.end and (rest is None or request_id in rest):
                            yield number, resumed(request_id, variables, rest and rest[request_id])
                first += count

    @cached_property
    def units(self) -> dict[str, int]:
        """Return the units of work and their rows, always in the same order."""
        return list_units(self.requests)

    def pending(self) -> str:
        """Write the ids of the requests in batches, and return the path of the file."""
        schema, note = pa.schema([("request_id", pa.string())]), self.place / ASKED

        def write(file: IO[bytes]) -> None:
            with pq.ParquetWriter(file, schema) as writer:
                for batch in self.ledger().batches:
                    ids = [request.request_id for _, request in self.requests_of(batch.parts)]
                    writer.write_table(pa.table([ids], schema=schema))

        note.write_whole(write)
        return str(note)

    def close(self) -> None:
        """Remove the job and its requests after all batches are read."""
        super().close()
        (self.place / REST).remove()

    def collect(self, folder: str) -> Usage:
        """Copy new completions to a stage's folder, and return their usage."""
        used, ledger = super().collect(folder), self.ledger()
        if ledger.used != NOTHING_USED:
            self.write_ledger(replace(ledger, used=NOTHING_USED))
        return used + replace(ledger.used, done=0, failed=0)


def _batch_of(plain: Mapping[str, Any]) -> Batch:
    """Return the batch of its JSON. In earlier versions, a batch had one part."""
    fields = dict(plain)
    if "parts" not in fields:
        first, end, part = (fields.pop(name) for name in ("first", "end", "part"))
        fields["parts"] = [{"first": first, "end": end, "rest": fields["name"] if part else None}]
    return Batch(**{**fields, "parts": _parts_of(fields["parts"])})


def _parts_of(plain: Iterable[Mapping[str, Any]]) -> tuple[Part, ...]:
    """Return the parts of their JSON, without empty ones."""
    return tuple(part for part in (Part(**fields) for fields in plain) if part.first < part.end)


def batch_spool(store: str) -> Spool:
    """Return the folder of the batch jobs of a store."""
    return Spool(f"{store}/{FOLDER}")


def batch_jobs(store: str, prefix: str = "") -> list[BatchJob]:
    """Return the open batch jobs of a store whose names begin with the prefix."""
    return [BatchJob(job.place) for job in batch_spool(store).jobs(prefix) if job.is_open]


@dataclass(frozen=True)
class Load:
    """The size of requests, or the room for requests: number, bytes, tokens of prompts, and maximum tokens and cost."""

    requests: float = 0
    bytes: float = 0
    prompt: float = 0
    tokens: float = 0
    cost: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(
            self.requests + other.requests,
            self.bytes + other.bytes,
            self.prompt + other.prompt,
            self.tokens + other.tokens,
            self.cost + other.cost,
        )

    def is_affordable(self, room: Load) -> bool:
        """Return True if the budget allows these requests."""
        return self.requests <= room.requests and self.tokens <= room.tokens and self.cost <= room.cost


def fill(lines: Iterable[Load], room: Load) -> list[Load]:
    """Return the first requests that fit. The first one always fits, unless the budget does not allow it.

    >>> len(fill([Load(1, 10, 3, 5)] * 9, Load(5, 42, INFINITE, INFINITE)))
    4
    """
    taken: list[Load] = []
    total = Load()
    for line in lines:
        total += line
        fits = total.bytes <= room.bytes and total.prompt <= room.prompt
        if not total.is_affordable(room) or (total.requests > 1 and not fits):
            break
        taken.append(line)
    return taken


def left_of(most: float | None, used: float) -> float:
    """Return the rest of a limit."""
    return INFINITE if most is None else most - used


def fingerprint(key: str, salt: str) -> str:
    """Return a short digest that distinguishes keys and reveals nothing. It differs for each salt."""
    return blake2b(key.encode(), digest_size=4, salt=blake2b(salt.encode(), digest_size=8).digest()).hexdigest()


# An address that never responded is probably wrong
FIRST_OUTAGE_SECONDS = 60.0
# Batches in a row without results
FRUITLESS = 3
NO_BATCHES = "if the endpoint has no batches, set llm.backend to process"
REMEDIES = {
    **dict.fromkeys(("http_400", "http_404", "http_405"), NO_BATCHES),
    "http_413": "lower batch.requests or batch.bytes",
}


@dataclass(frozen=True)
class Watch:
    """The run that waits for batches: its reason to stop, and the functions for progress and for lines."""

    stopped: Callable[[], str | None]
    show: Callable[[Mapping[str, Any]], None]
    note: Callable[[str], None]


class EndedError(Exception):
    """The job ends early, with a reason of `Outcome` and an error."""

    def __init__(self, reason: str, error: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.error = reason, error


class OutageTracker:
    """The failures of an endpoint, which may be unavailable for `outage` seconds.

    `faults` is the number of failures since its last response. It accepts no call until `held_until`.
    """

    def __init__(self, outage: float) -> None:
        self.faults, self.held_until = 0, 0.0
        self._outage = outage
        self._first, self._reached, self._fruitless = 0.0, False, 0

    @property
    def is_held(self) -> bool:
        """Return True if the endpoint has requested a pause."""
        return monotonic() < self.held_until

    def record_success(self) -> None:
        """Record a response."""
        self.faults, self._reached = 0, True

    def record_failure(self, answer: Answer) -> None:
        """Record a temporary error. Raises EndedError for other errors, and after an outage."""
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
        """Record if a batch had any result. Raises EndedError after several batches without one."""
        self._fruitless = 0 if came else self._fruitless + 1
        if self._fruitless >= FRUITLESS:
            raise EndedError("outage")
