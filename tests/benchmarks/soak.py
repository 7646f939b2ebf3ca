"""Run a long job with faults. Each kind of fault affects a hundredth of the requests once.

The run is killed three times, and its disk is full once. No request may be lost, wrong, or paid twice except for
unwritten completions at a kill, and memory stays constant.

Every fault disappears at the second attempt, so that every request has its completion at the end. Faults affect single
requests, except for 429s, which come in bursts like the limit of an endpoint. With random 429s for one percent of the
requests, an endpoint would allow about twenty calls per second, and the run would take hours.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import sleep, time
from typing import Any

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.watching import ACTOR, DRIVER, LIMITER, Look, Watch
from tests.fakes.arrivals import Arrival
from tests.fakes.model_server import ModelServer
from tests.fakes.rules import hash_of
from tests.runs.harness import PROMPTS, Run, expected_statements, read_statements, read_table, write_samples

REQUESTS = 200_000
SHARE = 0.01
# At these shares of the requests, so that the last start is long. Its memory is measured
KILLED_AT = (0.1, 0.2, 0.3)
FULL_AT = 0.6
IN_FLIGHT = 64
FLUSH_SECONDS = 1.0
FULL_SECONDS = 5.0
TIMEOUT_SECONDS = 2
LONGEST_SECONDS = 4 * 3600.0
GOAL_FLAT = 1.1
BURSTS = 10
LIMITED = {"status": 429, "headers": {"Retry-After": "0.5"}}
FAULTS: Sequence[Any] = (
    {"status": 500},
    {"status": 503},
    {"status": 200, "error": {"code": 502}},
    {"finish": "abort"},
    "refuse",
    "hang",
    "html",
    "cut_json",
    "empty",
    "length",
    "garbage",
)
RULES = [{"when": {"share": SHARE, "attempt_below": 2}, "do": deed} for deed in FAULTS]
# The disk of the store: the size of all completions, and the same again for their compaction
BYTES_A_REQUEST = 2_000


@dataclass(frozen=True)
class Kill:
    """The start of a kill, and the end of the last process of the run (time.time)."""

    began: float
    ended: float


def measure(options: Options) -> list[Figure]:
    """Measure one run: the counts of the server, the tables, and the memory of the last start."""
    count = options.requests or REQUESTS
    with TemporaryDirectory(prefix="untold-soak-") as name, ModelServer(rules=[*RULES, *_bursts(count)]) as server:
        folder = Path(name)
        samples = [_sample(number) for number in range(count)]
        path = write_samples(folder / "samples.jsonl", samples)
        with _disk(folder / "disk", count * BYTES_A_REQUEST + 64 * 2**20) as disk:
            kills, looks = _run_through(server, path, folder / "out", disk, count)
            lost, wrong = _compare(folder / "out", samples)
            arrivals = server.arrivals()
    unwritten = sum(_arrived_unwritten(arrivals, kill) for kill in kills) + len(kills) * IN_FLIGHT
    limited = sum(arrival.status == LIMITED["status"] for arrival in arrivals)
    return [
        Figure("requests", (float(count),)),
        Figure("calls that reached the server", (float(len(arrivals)),)),
        Figure("429s", (float(limited),)),
        Figure("lost", (float(lost),), at_most=0),
        Figure("wrong", (float(wrong),), at_most=0),
        Figure("paid twice", (float(_paid_twice(arrivals)),), at_most=float(unwritten)),
        *(_flatness(role, _while_asking(looks, arrivals, kills[-1])) for role in (DRIVER, ACTOR, LIMITER)),
    ]


def _bursts(count: int) -> list[dict[str, Any]]:
    """Return rules of 429s for a hundredth of `count` requests."""
    # Half of the requests in a burst are second attempts, and succeed
    length = max(2, round(2 * SHARE * count / BURSTS))
    starts = [round(count * (burst + 0.5) / BURSTS) for burst in range(BURSTS)]
    return [{"when": {"after": n, "first": n + length, "attempt_below": 2}, "do": LIMITED} for n in starts]


def _sample(number: int) -> dict[str, Any]:
    return {
        "sample_id": f"s{number:07d}",
        "query": f"What of {number}?",
        "response": f"Fact A{number}.",
        "contexts": [f"Fact A{number}. Fact B{number}."],
        "system": f"system{number % 2}",
    }


@contextmanager
def _disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a separate disk in memory, for filling it. Raises RuntimeError if mounting is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        raise RuntimeError("soak mounts a disk in memory, which this user may not: run it as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def _run_through(
    server: ModelServer, samples: Path, output: Path, disk: Path, count: int
) -> tuple[list[Kill], Sequence[Look]]:
    """Start the run, kill it three times, and fill the disk of the last start. Return the kills and its looks.

    Raises RuntimeError if the last start fails.
    """
    settings = {
        "prompts_dir": PROMPTS,
        "summarise_contexts": "false",
        "completion_store": disk / "store",
        "llm.timeout_seconds": TIMEOUT_SECONDS,
        "llm.max_concurrency": IN_FLIGHT,
        "llm.flush_seconds": FLUSH_SECONDS,
    }
    kills: list[Kill] = []
    for share in KILLED_AT:
        with _started(server, samples, output, settings) as run:
            run.wait_for(server, round(count * share), timeout=LONGEST_SECONDS)
            began = time()
            run.kill()
            kills.append(Kill(began, time()))
    with _started(server, samples, output, settings) as run, Watch(run.pid) as watching:
        run.wait_for(server, round(count * FULL_AT), timeout=LONGEST_SECONDS)
        _fill(disk)
        ended = run.wait(LONGEST_SECONDS)
    if ended.code:
        raise RuntimeError(f"the run ended with code {ended.code}: {ended.err[-2000:]}")
    if "answers cannot be written" not in ended.err:
        raise RuntimeError("the run did not notice that its disk was full")
    return kills, watching.looks


@contextmanager
def _started(server: ModelServer, samples: Path, output: Path, settings: Mapping[str, Any]) -> Iterator[Run]:
    """Start the run, and end it if the benchmark is interrupted."""
    run = Run(server, samples, output, settings=settings)
    try:
        yield run
    finally:
        if run.is_running:
            run.kill()


def _fill(disk: Path) -> None:
    """Leave no space on the disk for a while."""
    filler = disk / "filler"
    try:
        with filler.open("wb") as file:
            while True:
                file.write(bytes(2**20))
    except OSError:
        sleep(FULL_SECONDS)
    filler.unlink()


def _compare(output: Path, samples: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return the number of samples without a score, and of samples with another score or other statements."""
    scores = {row["sample_id"]: row for row in read_table(output, "scores")}
    found = read_statements(output)
    lost = wrong = 0
    for sample in samples:
        row = scores.get(sample["sample_id"])
        if row is None or row["status"] != "ok":
            lost += 1
            continue
        expected = expected_statements(sample)
        covered = sum(is_covered for _, is_covered, _ in expected)
        counts_differ = (row["covered"], row["uncovered"]) != (covered, len(expected) - covered)
        wrong += counts_differ or found[sample["sample_id"]] != expected
    return lost, wrong


def _paid_twice(arrivals: Sequence[Arrival]) -> int:
    """Return the calls beyond one per request, and beyond one more for each request with a fault."""
    limited = {arrival.key for arrival in arrivals if arrival.status == LIMITED["status"]}
    calls = Counter(arrival.key for arrival in arrivals)
    return len(arrivals) - sum(2 if key in limited or _meets_fault(int(key, 16)) else 1 for key in calls)


def _meets_fault(key: int) -> bool:
    """Return True if a share of the server's rules affects a request, by the server's hash."""
    content = key.to_bytes(8, "big")
    return any(hash_of(str(index).encode() + content) < SHARE * 2**64 for index in range(len(RULES)))


def _arrived_unwritten(arrivals: Sequence[Arrival], kill: Kill) -> int:
    """Return the number of calls within one write interval before a kill, whose completions may be unwritten."""
    return sum(kill.began - FLUSH_SECONDS <= arrival.at <= kill.ended for arrival in arrivals)


def _while_asking(looks: Sequence[Look], arrivals: Sequence[Arrival], last_kill: Kill) -> list[Look]:
    """Return the looks between the first and the last call of the last start, without reading and writing of tables."""
    moments = [arrival.at for arrival in arrivals if arrival.at > last_kill.ended]
    return [look for look in looks if moments[0] <= look.at <= moments[-1]]


def _flatness(role: str, looks: Sequence[Look]) -> Figure:
    """Return the memory of a role in the last tenth of these looks, over the memory in the second tenth."""
    sizes = [look.bytes[role] for look in looks if look.bytes.get(role)]
    tenth = max(1, len(sizes) // 10)
    ratio = mean(sizes[-tenth:]) / mean(sizes[tenth : 2 * tenth] or sizes)
    return Figure(f"{role}: memory at the end, of that at the beginning", (ratio,), at_most=GOAL_FLAT)
